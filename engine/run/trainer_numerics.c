/* What a run minimises, and the hash of everything that may change its bits. What an earlier version did not have adds
 * nothing where it is not used, because the checkpoints of that version have the hash without it. */
#include "engine/run/trainer_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/hash/hash.h"
#include "base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Hash of `seed` and of what may change bits on a GPU: libraries choose algorithms by GPU and by their own version. The
 * reason why cuDNN is missing changes no bit. */
static uint64_t gpu_hash(const struct ox_trainer *trainer, uint64_t seed) {
    const struct ox_cuda_device_info *const gpu = &trainer->gpu;
    const char *const attention = strncmp(gpu->attention, "cuDNN ", 6) == 0 ? gpu->attention : "";
    const uint64_t words[] = {seed, (uint64_t)trainer->engine_config.device, gpu->capability, gpu->processor_count,
                              gpu->blas_version, ox_hash64(attention, strlen(attention), 0)};
    return ox_hash_seed(words, sizeof words / sizeof *words);
}

/* Hash of `seed` and of the options of the learning rate that older versions did not have; `seed` itself where none is
 * given, because the checkpoints of these versions have the hash without them. */
static uint64_t rate_hash(const struct ox_config *config, uint64_t seed) {
    char text[256];
    if (config->optim.min_lr == 0 && config->optim.lr_decay_type == OX_DECAY_AUTO && config->optim.lr_num_cycles == 0 &&
        config->optim.lr_power == 1 && config->optim.lr_timescale == 0) {
        return seed;
    }
    const int bytes = snprintf(text, sizeof text, "%.17g %d %.17g %.17g %" PRIu64, config->optim.min_lr,
                               (int)config->optim.lr_decay_type, config->optim.lr_num_cycles, config->optim.lr_power,
                               config->optim.lr_timescale);
    OX_ASSERT(bytes > 0 && (size_t)bytes < sizeof text);
    return ox_hash64(text, (size_t)bytes, seed);
}

/* Adds which layers have a window and a rotation, where the hash does not know that by the first layer with a window;
 * `seed` itself in all other models, those that earlier versions computed. */
static uint64_t layers_hash(const struct ox_model_config *model, uint64_t seed) {
    const bool all_rotate = ox_layers_first(&model->unrotated, model->layers) == model->layers;
    if (all_rotate && ox_layers_are_last(&model->windowed, model->layers)) {
        return seed;
    }
    return ox_hash64(&model->unrotated, sizeof model->unrotated,
                     ox_hash64(&model->windowed, sizeof model->windowed, seed));
}

/* Adds the rotation, where it is none that earlier versions computed. */
static uint64_t rope_hash(const struct ox_model_config *model, uint64_t seed) {
    const struct ox_rope_scaling *const s = &model->rope_scaling;
    if (s->kind <= OX_ROPE_LLAMA3 && s->kind != OX_ROPE_LINEAR && s->kind != OX_ROPE_DYNAMIC &&
        model->rotary_dim == model->head_dim) {
        return seed;
    }
    const double numbers[] = {s->kind, model->rotary_dim, s->factor, s->fast, s->slow, s->attention, s->mscale,
                              s->mscale_all, s->truncate};
    const size_t bytes = s->factor_count * sizeof(double);
    const uint64_t hash = ox_hash64(s->long_factors, bytes, ox_hash64(numbers, sizeof numbers, seed));
    return ox_hash64(s->short_factors, bytes, hash);
}

/* The number of a format in hashes. */
static int dtype_number(enum ox_compute_dtype dtype) {
    static const int numbers[OX_COMPUTE_DTYPE_COUNT] = {
        [OX_COMPUTE_FP32] = 1, [OX_COMPUTE_BF16] = 0, [OX_COMPUTE_FP16] = 2};
    return numbers[dtype];
}

/* Adds factors, caps and offsets, where there are any. */
static uint64_t facts_hash(const struct ox_model_config *m, uint64_t seed) {
    const double numbers[] = {(double)m->gain_offset, m->local_theta, m->rope_neighbours, m->parallel, m->embed_scale,
                              m->embed_scale_rounds, m->residual_scale, m->attention_scale, m->attention_cap,
                              m->logit_scale, m->logit_cap};
    bool any = false;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        any |= numbers[i] != 0.0;
    }
    seed = any ? ox_hash64(numbers, sizeof numbers, seed) : seed;
    return m->shared_layers > 1 ? ox_hash64(&m->shared_layers, sizeof m->shared_layers, seed) : seed;
}

/* Adds how a head of latent attention is cut, where the model has that. */
static uint64_t latent_hash(const struct ox_latent *latent, uint64_t seed) {
    const uint64_t numbers[] = {seed, latent->kv_rank, latent->q_rank, latent->rotated, latent->rest, latent->value};
    return latent->kv_rank != 0 ? ox_hash_seed(numbers, sizeof numbers / sizeof *numbers) : seed;
}

/* Adds what config.json says of a router and changes no size, and what else of it is not as usual. */
static uint64_t mixture_hash(const struct ox_engine_config *e, uint64_t seed) {
    const struct ox_model_config *const m = &e->model->config;
    const double numbers[] = {m->mixture.router.chosen, m->mixture.router.renormalise, m->clip_qkv};
    const struct ox_router *const router = &m->mixture.router;
    const double more[] = {router->groups, router->groups_kept, (double)router->scale};
    if (router->groups > 1 || (router->experts != 0 && router->scale != 1.0f)) {
        seed = ox_hash64(more, sizeof more, seed);
    }
    const double losses[] = {e->router_balance, e->router_z, e->router_rounds};
    if (m->mixture.router.experts == 0) {
        return seed;
    }
    const bool any = e->router_balance > 0 || e->router_z > 0 || e->router_rounds;
    const double updates[] = {e->router_bias_rate, e->skips_idle};
    uint64_t hash = ox_hash64(numbers, sizeof numbers, seed);
    hash = any ? ox_hash64(losses, sizeof losses, hash) : hash;
    return e->router_bias_rate > 0 || e->skips_idle ? ox_hash64(updates, sizeof updates, hash) : hash;
}

/* Adds the rates and decays of tensors in groups, where there are any. */
static uint64_t groups_hash(const struct ox_model *model, uint64_t seed) {
    uint64_t hash = seed;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct ox_tensor_group *const group = &model->tensors[i].group;
        const double numbers[] = {i, group->rate_share, isnan(group->weight_decay) ? -1 : group->weight_decay};
        hash = group->given ? ox_hash64(numbers, sizeof numbers, hash) : hash;
    }
    return hash;
}

/* How the gradients of ranks are added, where it is not as one rank would. */
static uint64_t exchange_hash(const struct ox_engine_config *e, uint64_t hash) {
    if (e->library_sums && e->ranks > 1) {
        return ox_hash64("library sums", strlen("library sums"), hash);
    }
    if (e->low_rank.rank > 0) { /* blocks are the rows of a rank */
        const uint64_t low_rank[] = {hash, e->low_rank.rank, e->low_rank.start_step, e->low_rank.warm_start,
                                     (uint64_t)(1000 * e->low_rank.min_rate), e->ranks, e->copies};
        return ox_hash_seed(low_rank, sizeof low_rank / sizeof *low_rank);
    }
    if (e->exchange != OX_EXCHANGE_FP32 && e->ranks > 1) { /* each sum that travels is rounded: their number counts */
        const uint64_t narrow[] = {hash, e->exchange,
                                   e->ranks / e->pipe / ox_max_u64(e->tensors, 1), e->copies};
        return ox_hash_seed(narrow, sizeof narrow / sizeof *narrow);
    }
    return hash;
}

/* Into what sums are cut; one group adds nothing, because older checkpoints do not name it. */
static uint64_t sums_hash(const struct ox_engine_config *e, uint64_t hash) {
    if (e->sum_groups > 1) {
        const uint64_t groups[] = {hash, e->sum_groups};
        hash = ox_hash_seed(groups, sizeof groups / sizeof *groups);
    }
    if (ox_model_groups(&e->model->config) > 1) {
        hash = ox_hash64("tensor groups", strlen("tensor groups"), hash + ox_model_groups(&e->model->config));
    }
    const uint64_t rows[] = {hash, e->context_groups, e->context_mode == OX_CONTEXT_RING ? 2 : 1};
    return e->context_groups > 1 ? ox_hash_seed(rows, sizeof rows / sizeof *rows) : hash;
}

/* Its "0" stands where earlier versions had the threads of the CPU device,
 * because their bits depended on them; so a run that they began on that device has another hash. */
uint64_t ox_trainer_numerics_hash(const struct ox_trainer *trainer) {
    const struct ox_config *const c = &trainer->config;
    const struct ox_engine_config *const e = &trainer->engine_config;
    const struct ox_model_config *const m = &e->model->config;
    char text[1024];
    const int bytes = snprintf(
        text, sizeof text,
        "%s %u %u %u %u %u %u %u|%u %u %u %d %d %d|%.17g %.17g %.17g %.17g %.17g %.17g|%d %.0f"
        " %.17g %.17g %" PRIu64 " %" PRIu64 "|%" PRIu64 " %s 0",
        m->family, m->vocab, m->hidden, m->layers, m->heads, m->kv_heads, m->head_dim, m->width, e->batch, e->seq,
        e->micro_batches, dtype_number(e->dtype), e->grad_bf16, e->decay_embeddings, c->optim.learning_rate,
        c->optim.weight_decay, c->optim.adam_beta1, c->optim.adam_beta2, c->optim.adam_epsilon, c->optim.max_grad_norm,
        (int)c->optim.lr_scheduler_type, c->optim.warmup_steps, c->optim.warmup_ratio, c->optim.min_lr_ratio,
        c->optim.decay_steps, trainer->max_steps, c->train.seed, c->rows.data_order);
    OX_ASSERT(bytes > 0 && (size_t)bytes < sizeof text);
    char rows[512];
    int used = snprintf(rows, sizeof rows, "%d %d %d %d %.17g", (int)c->rows.packing, (int)c->rows.document_mask,
                        (int)c->rows.overlong, c->eval.bos_per_window,
                        c->files.eval_data[0] != '\0' ? 0 : c->rows.eval_fraction);
    for (uint32_t i = 0; i < c->files.data_count; i++) {
        used += snprintf(rows + used, sizeof rows - (size_t)used, " %.9g", c->files.data[i].weight);
    }
    if (c->rows.mixture != OX_MIXTURE_PASSES) { /* without it as before there was a choice */
        used += snprintf(rows + used, sizeof rows - (size_t)used, " %d", (int)c->rows.mixture);
    }
    OX_ASSERT(used > 0 && (size_t)used < sizeof rows);
    const struct ox_unit *const block = &e->model->units[e->model->blocks[0]];
    const bool qk_norm = ox_model_stage_has(e->model, block, OX_ROLE_Q_NORM);
    char shape[512]; /* all that config.json can change without changing a size */
    const int more = snprintf(shape, sizeof shape, "%d %d %.9g %d %.17g|%.17g %.17g %.17g %u|%u %u %d %d",
                              (int)m->norm, (int)m->act, (double)m->norm_eps, m->rope, m->rope_theta,
                              m->rope_scaling.factor, m->rope_scaling.low_factor, m->rope_scaling.high_factor,
                              m->rope_scaling.original, m->window,
                              m->window == 0 ? 0 : ox_layers_first(&m->windowed, m->layers), qk_norm, e->decay_all);
    OX_ASSERT(more > 0 && (size_t)more < sizeof shape);
    uint64_t hash = ox_hash64(rows, (size_t)used, ox_hash64(text, (size_t)bytes, 0));
    hash = rate_hash(c, ox_hash64(shape, (size_t)more, hash));
    hash = ox_trainer_objective_hash(c, groups_hash(e->model, hash));
    hash = mixture_hash(e, latent_hash(&m->latent, facts_hash(m, rope_hash(m, layers_hash(m, hash)))));
    if (e->device == OX_DEVICE_CUDA) {
        hash = gpu_hash(trainer, hash);
    }
    hash = exchange_hash(e, sums_hash(e, hash));
    if (ox_engine_precision(e)->scales) {
        const double scale[] = {c->loss.loss_scale, (double)c->loss.loss_scale_window};
        hash = ox_hash64(scale, sizeof scale, hash);
    }
    if (e->model->config.lora.dropout != 0.0) {
        const double dropout = e->model->config.lora.dropout;
        hash = ox_hash64(&dropout, sizeof dropout, hash);
    }
    if (e->state.averages) {
        hash = ox_hash64(&c->optim.ema_decay, sizeof c->optim.ema_decay, hash);
    }
    if (e->state.kind == OX_OPTIM_MUON) {
        const double muon[] = {c->optim.muon_momentum, c->optim.muon_nesterov, (double)c->optim.muon_ns_steps,
                               c->optim.muon_adjust_lr_fn};
        hash = ox_hash64(muon, sizeof muon, hash);
    }
    /* AdamW in fp32 adds nothing to the hash, because older checkpoints do not name their format. */
    const uint64_t format[] = {hash, e->state.kind, e->state.moments};
    return e->state.kind == OX_OPTIM_ADAMW && e->state.moments == OX_MOMENTS_F32
               ? hash : ox_hash_seed(format, sizeof format / sizeof *format);
}

/* ---- groups of rows ---- */

/* What does not exist with groups of rows, in words of options; NULL: all of the run does. */
static const char *not_in_groups(const struct ox_trainer *trainer) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const struct ox_model_config *const model = &engine->model->config;
    const struct ox_config_parts *const parts = &trainer->config.parts;
    return engine->objective.pairs           ? "--dpo"
           : engine->objective.noise != 0.0f ? "--neftune-noise-alpha"
           : model->lora.dropout != 0.0      ? parts->lora_dropout != 0.0 ? "--lora-dropout"
                                               : "the lora_dropout of the adapter (in its adapter_config.json)"
           : model->lora.dora                ? parts->use_dora ? "--use-dora"
                                               : "the use_dora of the adapter (in its adapter_config.json)"
           : trainer->config.ranks.exchange_dtype != OX_EXCHANGE_FP32 && !trainer->input.eval_alone ? "--exchange-dtype"
           : trainer->config.ranks.reduction == OX_REDUCTION_LIBRARY ? "--reduction library" : NULL;
}

static bool is_power(uint64_t number) {
    return (number & (number - 1)) == 0;
}

/* Whether the groups of each rank are summed as a node of the tree. */
static enum ox_status check_context_tree(const struct ox_trainer *trainer, uint32_t groups, uint32_t of_batch,
                                         uint32_t sums) {
    const uint32_t contexts = trainer->engine_config.contexts, own = groups / contexts;
    const char *const option = groups > contexts ? "groups" : "parallel-size";
    if (own > 1 && of_batch > 1) {
        return ox_fail(OX_E_CONFIG, "--context-groups %u: %u data ranks would each sum %u groups of rows; give "
                       "--context-parallel-size %u, or one data rank", groups, of_batch, own, groups);
    }
    if (!is_power(sums) && trainer->input.eval_alone) {
        return ox_fail(OX_E_CONFIG, "--context-%s %u: beside ranks or groups that divide rows an evaluation needs a "
                       "power of two of data ranks, and there are %u; give --data-parallel-size %u", option, groups,
                       sums, 1u << (31 - __builtin_clz(sums)));
    }
    if (!is_power(sums)) {
        return ox_fail(OX_E_CONFIG, "--context-%s %u: each group of rows sums a power of two of --sum-groups, and "
                       "there are %u; give --sum-groups %u", option, groups, sums, 1u << (32 - __builtin_clz(sums)));
    }
    return own == 1 || contexts == 1 || is_power(own)
               ? OX_OK : ox_fail(OX_E_CONFIG, "--context-parallel-size %u: each rank would sum %u groups of rows, "
                                 "which is no power of two; use %u", contexts, own, groups);
}

/* Behind auto come the names of the modes, and those of other programs in the same order. A resumed run keeps a ring,
 * on which bits depend. */
void ox_trainer_set_context_mode(struct ox_trainer *trainer, int recorded) {
    int *const given = &trainer->config.ranks.context_parallel_mode;
    enum ox_context_mode *const mode = &trainer->engine_config.context_mode;
    const int said = *given > 0 ? *given : recorded;
    *mode = said > 0 ? (enum ox_context_mode)((said - 1) % OX_CONTEXT_MODE_COUNT) : OX_CONTEXT_GATHER;
    trainer->any_context_mode = *given == 0 && *mode != OX_CONTEXT_RING;
    *mode = trainer->any_context_mode ? OX_CONTEXT_GATHER : *mode;
    *given = 1 + (int)*mode;
}

/* Whether the keys and values of row groups can go round. */
static enum ox_status check_ring(const struct ox_trainer *trainer, uint32_t groups) {
    enum { RING_RANKS_MAX = 16 };
    const struct ox_engine_config *const engine = &trainer->engine_config;
    if (engine->context_mode != OX_CONTEXT_RING) {
        return OX_OK;
    }
    if (engine->contexts > 1 && groups > engine->contexts) {
        return ox_fail(OX_E_CONFIG, "--context-parallel-mode ring: %u ranks for %u --context-groups, and in a ring "
                       "each rank has one, or one rank all; give --context-parallel-size %u", engine->contexts,
                       groups, groups);
    }
    if (engine->contexts > RING_RANKS_MAX) {
        return ox_fail(OX_E_CONFIG, "--context-parallel-mode ring: %u ranks; use gather, or --context-parallel-size %u "
                       "at most", engine->contexts, RING_RANKS_MAX);
    }
    return OX_OK;
}

enum ox_status ox_trainer_check_heads(const struct ox_trainer *trainer) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const struct ox_model *const model = engine->model;
    const uint32_t groups = ox_model_groups(&model->config), heads = model->config.kv_heads / groups;
    uint32_t most = engine->contexts;
    bool sinks = false;
    if (engine->context_mode != OX_CONTEXT_ULYSSES || engine->contexts <= 1) {
        return OX_OK;
    }
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        sinks |= model->tensors[i].role == OX_ROLE_SINKS;
    }
    if (sinks) {
        return ox_fail(OX_E_CONFIG, "--context-parallel-mode ulysses: does not exist yet for models whose attention "
                       "has sinks; use gather");
    }
    while (heads % most != 0) {
        most--;
    }
    if (most == engine->contexts) {
        return OX_OK;
    }
    return ox_fail(OX_E_CONFIG, "--context-parallel-mode ulysses: %u key/value heads%s for %u ranks; use gather or "
                   "ring, or --context-parallel-size %u", heads, groups > 1 ? " in a group of features" : "",
                   engine->contexts, most);
}

enum ox_status ox_trainer_set_context_groups(struct ox_trainer *trainer, uint32_t of_batch, uint32_t sum_groups) {
    struct ox_engine_config *const engine = &trainer->engine_config;
    uint64_t *const given = &trainer->config.train.context_groups;
    const uint32_t groups = (uint32_t)ox_max_u64(*given, engine->contexts), seq = engine->seq;
    const char *const option = groups > engine->contexts ? "groups" : "parallel-size";
    engine->context_groups = groups;
    if (groups <= 1) {
        return engine->context_mode == OX_CONTEXT_GATHER || strcmp(trainer->config.ranks.mesh, "auto") == 0
                   ? OX_OK : ox_fail(OX_E_CONFIG, "--context-parallel-mode %s: no ranks divide rows; add "
                                     "--context-parallel-size N, or leave it out",
                                     ox_context_mode_name(engine->context_mode));
    }
    if (*given > 0 && groups % engine->contexts != 0) {
        return ox_fail(OX_E_CONFIG, "--context-groups %" PRIu64 ": --context-parallel-size %u needs as many groups for "
                       "each rank; for a new run give %u", *given, engine->contexts,
                       (uint32_t)ox_div_up(groups, engine->contexts) * engine->contexts);
    }
    if (*given > 0 && *given < engine->contexts) {
        return ox_fail(OX_E_CONFIG, "--context-groups %" PRIu64 ": --context-parallel-size %u needs a group for each "
                       "rank; for a new run give %u", *given, engine->contexts, engine->contexts);
    }
    const char *const other = not_in_groups(trainer);
    if (other != NULL) {
        return ox_fail(OX_E_CONFIG, "--context-%s %u: does not exist with %s yet; leave one of them out", option,
                       groups, other);
    }
    if (seq % (2 * groups) != 0) {
        return ox_fail(OX_E_CONFIG, "--context-%s %u: %u tokens of --max-seq-length cannot be cut into %u equal parts, "
                       "two for each group of rows; use --max-seq-length %u", option, groups, seq, 2 * groups,
                       (uint32_t)ox_align_up(seq, 2 * groups));
    }
    const uint32_t own = groups / engine->contexts, per_unit = engine->model->config.mixture.per_unit;
    if (own > 1 && per_unit > 0) {
        const bool by_ranks = engine->experts > 1; /* which need groups of experts */
        return ox_fail(OX_E_CONFIG, "--expert%s %u: does not exist yet where a rank has %u of %u groups of rows; "
                       "%s, or give --context-parallel-size %u", by_ranks ? "-parallel-size" : "s-per-unit",
                       by_ranks ? ox_mesh_expert_ranks(engine->experts, engine->tensors) : per_unit, own, groups,
                       by_ranks ? "leave it out" : "give --experts-per-unit all", groups);
    }
    if (own > 1 && engine->tensors > 1) {
        return ox_fail(OX_E_CONFIG, "--context-groups %u: a rank would have %u of the groups of rows, and with "
                       "--tensor-parallel-size each rank has one; give --context-parallel-size %u", groups, own,
                       groups);
    }
    *given = groups;
    OX_TRY(ox_trainer_check_heads(trainer));
    OX_TRY(check_ring(trainer, groups));
    return check_context_tree(trainer, groups, of_batch, sum_groups);
}

/* ---- ranks that divide groups of features ---- */

/* What asks for updates before the norm, in words of options; NULL: nothing. */
static const char *updates_ahead(const struct ox_config *config) {
    return strcmp(config->place.optimizer_overlap, "speculative") == 0 ? "--optimizer-overlap speculative"
           : config->place.speculative_units > 0 && strcmp(config->place.optimizer_overlap, "held") != 0
               ? "--speculative-units" : NULL;
}

/* What no group has several ranks update alike, and one of them writes it to their store, to which none may return. */
static enum ox_status hold_updates(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    if (config->memory.nvme_count == 0) {
        return OX_OK;
    }
    const char *const ahead = updates_ahead(config);
    if (ahead != NULL) {
        return ox_fail(OX_E_CONFIG, "%s: does not exist with ranks that divide features (--tensor-parallel-size) and "
                       "--nvme together yet; use --optimizer-overlap held", ahead);
    }
    trainer->engine_config.request.speculative_units = 0;
    return OX_OK;
}

enum ox_status ox_trainer_check_tensors(struct ox_trainer *trainer) {
    const uint32_t tensors = trainer->engine_config.tensors;
    const uint32_t groups = ox_model_groups(&trainer->engine_config.model->config);
    if (tensors == 1) {
        return OX_OK;
    }
    if (groups % tensors != 0) {
        return ox_fail(OX_E_CONFIG, "%u ranks that divide features (--tensor-parallel-size) need %s each, and "
                       "--tensor-groups is %u; for a new run give --tensor-groups %u", tensors,
                       groups < tensors ? "a group" : "as many groups", groups, tensors);
    }
    return is_power(groups / tensors)
               ? hold_updates(trainer)
               : ox_fail(OX_E_CONFIG, "--tensor-parallel-size %u: each rank would add %u groups, which is no power of "
                         "two; use %u", tensors, groups / tensors, groups);
}

/* ---- Muon ---- */

enum ox_status ox_trainer_check_hosts(const struct ox_model *model) {
    bool host = true, lacks = false;
    for (uint32_t i = 0; i < model->stage_count; i++) {
        const struct ox_unit *const unit = &model->units[model->stages[i]];
        host = unit->kind == OX_UNIT_BLOCK ? unit->one_moment : host;
        lacks |= unit->kind == OX_UNIT_EXPERTS && unit->one_moment && !host;
    }
    return !lacks ? OX_OK
                  : ox_fail(OX_E_CONFIG, "--optimizer muon: of a block experts alone are trained, and these are units "
                            "of their own; use --experts-per-unit all");
}

void ox_trainer_mark_matrices(struct ox_trainer *trainer) {
    struct ox_model *const model = ox_hf_own_model(trainer->folder);
    if (trainer->config.optim.optimizer == OX_OPTIM_MUON && !trainer->input.eval_alone && model->config.lora.r == 0) {
        model->config.whole_matrices = true;
        ox_model_settle_trained(model);
    }
}

/* Leaves the arenas of a GPU without what the iterations take there. */
static enum ox_status spare_device_memory(struct ox_engine_config *engine) {
    const uint64_t bytes = ox_muon_bytes(engine->model, engine->device, OX_TIER_DEVICE);
    char needed[OX_SIZE_TEXT_BYTES];
    if (bytes > 0 && bytes >= engine->budget.device_bytes) {
        return ox_fail(OX_E_CONFIG, "--optimizer muon: its iterations take %s of a GPU's memory for the largest "
                       "matrix; give more --device-mem, or use --optimizer adamw", ox_size_text(bytes, needed));
    }
    engine->budget.device_bytes -= bytes;
    engine->budget.device_beside_bytes += bytes;
    return OX_OK;
}

enum ox_status ox_trainer_check_muon_groups(const struct ox_trainer *trainer) {
    const uint32_t groups = ox_model_groups(&trainer->engine_config.model->config);
    return trainer->engine_config.state.kind != OX_OPTIM_MUON || groups == 1
               ? OX_OK : ox_fail(OX_E_CONFIG, "--optimizer muon updates whole matrices, which %" PRIu32 " groups of "
                                 "features cut", groups);
}

enum ox_status ox_trainer_set_muon(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    struct ox_engine_config *const engine = &trainer->engine_config;
    if (engine->state.kind != OX_OPTIM_MUON || trainer->input.eval_alone) {
        return OX_OK;
    }
    const struct ox_model *const model = engine->model;
    bool any = false;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        any |= model->units[i].whole;
    }
    engine->muon = (struct ox_muon){.momentum = (float)config->optim.muon_momentum,
                                    .nesterov = config->optim.muon_nesterov,
                                    .iterations = (uint32_t)config->optim.muon_ns_steps,
                                    .ratio = (enum ox_muon_ratio)config->optim.muon_adjust_lr_fn};
    engine->request.state_off_device = true;
    if (engine->request.state_tier == OX_TIER_DEVICE || engine->request.device_units > 0) {
        return ox_fail(OX_E_CONFIG, "--optimizer muon: matrices are updated by the processor, from host memory or "
                       "drives; leave out --state-tier device and --device-state-units");
    }
    OX_TRY(spare_device_memory(engine));
    if (ox_trainer_has_adapters(trainer)) {
        return ox_fail(OX_E_CONFIG, "--optimizer muon: adapters are narrow matrices, which it is not meant for; use "
                       "--optimizer adamw");
    }
    if (!any) {
        return ox_fail(OX_E_CONFIG, "--optimizer muon: no matrix of a block is trained; use --optimizer adamw, or "
                       "freeze less");
    }
    return ox_trainer_check_hosts(model);
}

/* ---- what is minimised ---- */

enum ox_status ox_trainer_check_dropout(const struct ox_trainer *trainer) {
    const struct ox_model_config *const model = &ox_hf_model(trainer->folder)->config;
    if (model->lora.dropout == 0.0 || trainer->input.eval_alone) {
        return OX_OK;
    }
    if (trainer->config.loss.dpo) {
        return ox_fail(OX_E_CONFIG, "--dpo: preferences are trained without dropout, as by TRL; leave out "
                       "--lora-dropout, or set lora_dropout in the adapter_config.json to 0");
    }
    return model->latent.kv_rank == 0 ? OX_OK : ox_fail(OX_E_CONFIG, "--lora-dropout: does not exist for latent "
                                                        "attention; leave it out");
}

struct ox_objective ox_trainer_objective(const struct ox_config *config) {
    const uint64_t noise[] = {config->train.seed, UINT64_C(0x6e656674756e6500)}; /* "neftune" */
    const uint64_t drop[] = {config->train.seed, UINT64_C(0x6c6f726164726f70)}; /* "loradrop" */
    return (struct ox_objective){.drop_seed = ox_hash_seed(drop, sizeof drop / sizeof *drop),
                                 .smoothing = (float)config->loss.label_smoothing_factor,
                                 .z_loss = (float)config->loss.z_loss_coef,
                                 .noise = (float)config->loss.neftune_noise_alpha,
                                 .noise_seed = ox_hash_seed(noise, sizeof noise / sizeof *noise),
                                 .pairs = config->loss.dpo,
                                 .pair_loss = (enum ox_pair_loss)config->loss.dpo_loss,
                                 .beta = (float)config->loss.dpo_beta,
                                 .pair_smoothing = (float)config->loss.dpo_label_smoothing,
                                 .sft = (float)config->loss.dpo_sft_coef};
}

_Static_assert((int)OX_DPO_SIGMOID == (int)OX_PAIR_SIGMOID && (int)OX_DPO_IPO == (int)OX_PAIR_IPO &&
               (int)OX_DPO_ROBUST == (int)OX_PAIR_ROBUST && (int)OX_DPO_HINGE == (int)OX_PAIR_HINGE,
               "the choices of --dpo-loss are the losses of pairs");

uint32_t ox_trainer_unit(const struct ox_config *config) {
    return config->loss.dpo ? 2 : 1;
}

/* Whether columns are named that rows of preferences do not have. */
static bool names_other_rows(const struct ox_config *c) {
    return c->rows.column_messages[0] != '\0' || c->rows.column_completion[0] != '\0' ||
           c->rows.column_instruction[0] != '\0' || c->rows.column_input[0] != '\0' ||
           c->rows.column_output[0] != '\0' || c->rows.column_system[0] != '\0' || c->rows.column_text[0] != '\0';
}

enum ox_status ox_trainer_check_pairs(const struct ox_config *config) {
    const bool smooths = config->loss.dpo_loss == OX_DPO_SIGMOID || config->loss.dpo_loss == OX_DPO_ROBUST;
    const struct {
        const char *option, *why;
        bool wrong;
    } checks[] = {
        {"--dpo-beta", "means nothing without --dpo", !config->loss.dpo && config->loss.dpo_beta != 0.1},
        {"--dpo-loss", "means nothing without --dpo", !config->loss.dpo && config->loss.dpo_loss != OX_DPO_SIGMOID},
        {"--dpo-label-smoothing", "means nothing without --dpo; of tokens it is --label-smoothing-factor",
         !config->loss.dpo && config->loss.dpo_label_smoothing > 0},
        {"--dpo-sft-coef", "means nothing without --dpo", !config->loss.dpo && config->loss.dpo_sft_coef > 0},
        {"--dpo-label-smoothing", "is for --dpo-loss sigmoid and robust; leave it out",
         config->loss.dpo_label_smoothing > 0 && !smooths},
        {"--label-smoothing-factor", "smooths targets of cross-entropy, which --dpo has not; --dpo-label-smoothing is "
         "that of preferences", config->loss.dpo && config->loss.label_smoothing_factor > 0},
        {"--z-loss-coef", "belongs to cross-entropy, which --dpo has not; leave it out",
         config->loss.dpo && config->loss.z_loss_coef > 0},
        {"--per-device-train-batch-size", "with --dpo it counts pairs, of which a micro-batch has at most 128; take "
         "more micro-batches with --gradient-accumulation-steps", config->loss.dpo &&
         config->train.per_device_train_batch_size > OX_PAIR_SEQUENCES_MAX / 2},
        {"--packing", "with --dpo each answer has a sequence of its own (pad); leave it out", config->loss.dpo &&
         config->rows.packing != OX_PACKING_AUTO && config->rows.packing != OX_PACKING_PAD},
        {"--overlong split", "an answer cannot go on in another sequence; use truncate, or drop, which leaves out the "
         "pair", config->loss.dpo && config->rows.overlong == OX_LONG_SPLIT},
        {"--bos-per-window", "works on a stream of tokens, which --dpo has not; leave it out",
         config->loss.dpo && config->eval.bos_per_window},
        {"--train-on", "with --dpo all of an answer counts, and nothing of its prompt; leave it out",
         config->loss.dpo && config->rows.train_on != OX_TRAIN_ALL},
        {"--column-messages, --column-completion, --column-instruction, --column-input, --column-output, "
         "--column-system or --column-text", "with --dpo rows have \"prompt\" (--column-prompt), \"chosen\" and "
         "\"rejected\"; leave it out", config->loss.dpo && names_other_rows(config)},
    };
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        if (checks[i].wrong) {
            return ox_fail(OX_E_CONFIG, "%s: %s", checks[i].option, checks[i].why);
        }
    }
    return OX_OK;
}

/* The names of TRL's DPOTrainer; margins are of the means. */
static uint32_t name_pairs(const struct ox_objective *objective, const double *v, struct ox_report_part *parts) {
    const struct ox_report_part all[] = {
        {"rewards/chosen", v[OX_PAIR_REWARD_CHOSEN], false},
        {"rewards/rejected", v[OX_PAIR_REWARD_REJECTED], false},
        {"rewards/accuracies", v[OX_PAIR_RIGHT], false},
        {"rewards/margins", v[OX_PAIR_REWARD_CHOSEN] - v[OX_PAIR_REWARD_REJECTED], false},
        {"logps/chosen", v[OX_PAIR_LOGP_CHOSEN], true},
        {"logps/rejected", v[OX_PAIR_LOGP_REJECTED], true},
        {"nll_loss", v[OX_PAIR_SFT] / (double)objective->sft, false},
    };
    const uint32_t count = sizeof all / sizeof *all - (objective->sft == 0.0f);
    memcpy(parts, all, count * sizeof *all);
    return count;
}

uint32_t ox_trainer_parts(const struct ox_trainer *trainer, const double *values,
                          struct ox_report_part parts[OX_REPORT_PARTS_MAX]) {
    const struct ox_objective *const objective = &trainer->engine_config.objective;
    uint32_t count = 0;
    if (objective->pairs) {
        return name_pairs(objective, values, parts);
    }
    if (objective->smoothing != 0.0f || objective->z_loss != 0.0f) {
        parts[count++] = (struct ox_report_part){"cross_entropy", values[OX_LOSS_NLL], false};
    }
    if (objective->z_loss != 0.0f) {
        parts[count++] = (struct ox_report_part){"z_loss", values[OX_LOSS_Z], false};
    }
    return count;
}

uint64_t ox_trainer_objective_hash(const struct ox_config *config, uint64_t seed) {
    const double numbers[] = {config->loss.label_smoothing_factor, config->loss.z_loss_coef,
                              config->loss.neftune_noise_alpha};
    bool any = false;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        any |= numbers[i] != 0.0;
    }
    const double pairs[] = {config->loss.dpo_loss, config->loss.dpo_beta, config->loss.dpo_label_smoothing,
                            config->loss.dpo_sft_coef};
    const uint64_t hash = any ? ox_hash64(numbers, sizeof numbers, seed) : seed;
    return config->loss.dpo ? ox_hash64(pairs, sizeof pairs, hash) : hash;
}

const char *ox_trainer_routes(const struct ox_config *config) {
    return config->optim.idle_experts == OX_IDLE_SKIP        ? "--idle-experts skip"
           : config->optim.router_bias_update_rate > 0 ? "--router-bias-update-rate" : NULL;
}

double ox_trainer_balance(const struct ox_config *config, const struct ox_model_config *model) {
    const double asked = model->mixture.asks_balance ? model->mixture.balance : 0;
    return config->loss.router_aux_loss_coef < 0 ? asked : config->loss.router_aux_loss_coef;
}

/* Lion moves a weight by its whole rate, whatever the gradient: also those of experts that no token chose. */
static void warn_of_lion(const struct ox_config *config, const struct ox_model *model) {
    bool trains = false;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        trains |= model->units[i].role_trained[OX_ROLE_EXPERT_DOWN];
    }
    if (trains && config->optim.optimizer == OX_OPTIM_LION && config->optim.idle_experts == OX_IDLE_ZEROS) {
        ox_log(OX_LOG_WARN, "--optimizer lion: an expert that no token of a step chooses still moves by the whole "
                            "learning rate, step after step, which destroys experts that are seldom chosen; use adamw "
                            "or --idle-experts skip");
    }
}

/* A loss of routers of which none is trained reaches only what comes before them. */
static void warn_of_frozen(const struct ox_config *config, const struct ox_model *model) {
    bool trains = false;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        trains |= model->units[i].role_trained[OX_ROLE_ROUTER];
    }
    const char *const option = config->loss.router_aux_loss_coef > 0 ? "--router-aux-loss-coef"
                               : config->loss.router_z_loss_coef > 0 ? "--router-z-loss-coef" : NULL;
    if (!trains && option != NULL) {
        ox_log(OX_LOG_WARN, "%s: all routers are frozen, so that this loss moves only what comes before them; leave it "
                            "out, or train the routers", option);
    }
}

enum ox_status ox_trainer_check_bias(const struct ox_config *config, const struct ox_model *model) {
    bool has = false;
    for (uint32_t i = 0; i < model->unit_count && config->optim.router_bias_update_rate > 0; i++) {
        const struct ox_unit *const unit = &model->units[i];
        if (unit->role_offset[OX_ROLE_CHOICE_BIAS] == UINT64_MAX) {
            continue;
        }
        if (!unit->trained) {
            return ox_fail(OX_E_CONFIG, "--router-bias-update-rate: nothing else of the block of \"%s\" is trained, so "
                           "that nothing of it is written; freeze less, %sor leave the option out",
                           model->tensors[unit->tensor_first].name,
                           model->config.mixture.per_unit > 0 ? "give --experts-per-unit all, " : "");
        }
        has = true;
    }
    return has || config->optim.router_bias_update_rate <= 0
               ? OX_OK : ox_fail(OX_E_CONFIG, "--router-bias-update-rate: models of the model_type \"%s\" have no bias "
                                 "of the choice; --router-aux-loss-coef balances their experts",
                                 model->config.family);
}

/* Sums and eight-bit moments are over blocks of elements, which two experts must not share. */
static enum ox_status check_idle(const struct ox_config *config, const struct ox_model *model) {
    const struct ox_mixture *const mixture = &model->config.mixture;
    const uint64_t width = mixture->width, hidden = model->config.hidden;
    bool biased = false;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        biased |= model->units[i].role_offset[OX_ROLE_EXPERT_DOWN_BIAS] != UINT64_MAX;
    }
    const bool shares = width * hidden % OX_Q8_BLOCK != 0 ||
                        (biased && (2 * width % OX_Q8_BLOCK != 0 || hidden % OX_Q8_BLOCK != 0));
    return config->optim.idle_experts == OX_IDLE_ZEROS || !shares
               ? OX_OK : ox_fail(OX_E_CONFIG, "--idle-experts skip: an expert's tensors (width %" PRIu64 ", hidden "
                                 "size %" PRIu64 ") have no whole number of %d elements, which are updated together; "
                                 "use --idle-experts zeros", width, hidden, OX_Q8_BLOCK);
}

enum ox_status ox_trainer_check_routers(const struct ox_config *config, const struct ox_model *model) {
    const char *const option = config->loss.router_aux_loss_coef > 0 ? "--router-aux-loss-coef"
                               : config->loss.router_z_loss_coef > 0 ? "--router-z-loss-coef"
                               : config->loss.router_dtype == OX_ROUTER_MODEL ? "--router-dtype model"
                               : config->optim.router_bias_update_rate > 0 ? "--router-bias-update-rate"
                               : config->optim.idle_experts == OX_IDLE_SKIP ? "--idle-experts skip" : NULL;
    if (option != NULL && model->config.mixture.router.experts == 0) {
        return ox_fail(OX_E_CONFIG, "%s: the model's model_type \"%s\" has no mixture of experts; leave it out", option,
                       model->config.family);
    }
    if (config->loss.router_aux_loss_coef < 0 && config->loss.router_aux_loss_coef != -1) {
        return ox_fail(OX_E_CONFIG, "--router-aux-loss-coef %g: give 0 or more, or -1 for what config.json says",
                       config->loss.router_aux_loss_coef);
    }
    if (config->loss.router_aux_loss_coef < 0 && ox_trainer_balance(config, &model->config) > 0) {
        ox_log(OX_LOG_INFO, "the balance loss of routers counts %g times, as output_router_logits of config.json asks; "
                            "--router-aux-loss-coef 0 leaves it out", ox_trainer_balance(config, &model->config));
    }
    const char *const ahead = updates_ahead(config), *const routes = ox_trainer_routes(config);
    if (routes != NULL && ahead != NULL) {
        return ox_fail(OX_E_CONFIG, "%s: %s needs to know how all tokens of a step were routed before it updates; use "
                       "--optimizer-overlap held", ahead, routes);
    }
    OX_TRY(ox_trainer_check_bias(config, model));
    OX_TRY(check_idle(config, model));
    warn_of_lion(config, model);
    warn_of_frozen(config, model);
    return config->loss.router_dtype != OX_ROUTER_MODEL || config->train.dtype != OX_COMPUTE_FP16
               ? OX_OK : ox_fail(OX_E_CONFIG, "--router-dtype model: with --dtype fp16 a router is computed in fp32 "
                                 "alone; use --router-dtype fp32, or --dtype bf16");
}
