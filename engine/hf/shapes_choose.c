/* Chooses a shape for a number of parameters by rules that published models follow. */
#include "engine/hf/shapes.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/name/name.h"
#include "engine/family/families.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Width over depth of published models: 64 at 100 M parameters (GPT-2, SmolLM), 128 at 7 B (Llama) and beyond. */
static const double aspect_small = 64, aspect_large = 128, params_small = 1e8, params_large = 7e9;
static const double params_many = 3e9; /* from here on the table is a small part, and untied */
static const double params_grouped = 1e9; /* from here on queries share keys and values */

/* Mixtures of experts of which a shape can be chosen: experts of a layer and of a token, and an expert's width by the
 * model's, as their publishers have them; the key of the first; whether the width has a key of its own, beside that of
 * MLPs. */
static const struct mixture_rule {
    const char *family;
    uint32_t experts, chosen;
    double width;
    const char *key;
    bool own_width;
    uint32_t shared;      /* the width of an expert that every token passes, by the others'; 0: none */
    const char *shared_key; /* which takes that width; NULL: none, or it takes `shared` */
    uint32_t dense;       /* layers in front with an MLP instead */
    uint32_t head_dim_most; /* also of wide models; 0: by the width */
    bool latent;          /* keys and values come from a narrow vector */
    bool windows;         /* in every other layer */
    const char *more;     /* further keys */
} mixtures[] = {
    {.family = "mixtral", .experts = 8, .chosen = 2, .width = 3.5, .key = "num_local_experts"},
    {.family = "granitemoe", .experts = 32, .chosen = 8, .width = 0.5, .key = "num_local_experts"},
    {.family = "olmoe", .experts = 64, .chosen = 8, .width = 0.5, .key = "num_experts"},
    {.family = "qwen2_moe", .experts = 60, .chosen = 4, .width = 0.6875, .key = "num_experts", .own_width = true,
     .shared = 4, .shared_key = "shared_expert_intermediate_size"},
    {.family = "qwen3_moe", .experts = 128, .chosen = 8, .width = 0.375, .key = "num_experts", .own_width = true,
     .more = ",\"norm_topk_prob\":true"},
    {.family = "gpt_oss", .experts = 32, .chosen = 4, .width = 1, .key = "num_local_experts", .head_dim_most = 64,
     .windows = true, .more = ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":150000.0}"},
    {.family = "glm4_moe", .experts = 128, .chosen = 8, .width = 0.34375, .key = "n_routed_experts", .own_width = true,
     .shared = 1, .dense = 1,
     .more = ",\"n_shared_experts\":1,\"first_k_dense_replace\":1,\"norm_topk_prob\":true,\"attention_bias\":true,"
             "\"partial_rotary_factor\":0.5"},
    {.family = "deepseek_v3", .experts = 256, .chosen = 8, .width = 0.2857, .key = "n_routed_experts",
     .own_width = true, .shared = 1, .dense = 1, .latent = true,
     .more = ",\"n_shared_experts\":1,\"first_k_dense_replace\":1,\"norm_topk_prob\":true,\"n_group\":8,"
             "\"topk_group\":4,\"routed_scaling_factor\":2.5"}};
enum { MORE_BYTES = 512 };

/* NULL: the family has no experts, or none that can be chosen. */
static const struct mixture_rule *mixture_of(const struct ox_shape_request *request) {
    const struct mixture_rule *found = NULL;
    for (size_t i = 0; i < sizeof mixtures / sizeof *mixtures; i++) {
        found = strcmp(request->family, mixtures[i].family) == 0 ? &mixtures[i] : found;
    }
    return found;
}

static double wanted_aspect(double params) {
    const double share = log(params / params_small) / log(params_large / params_small);
    return aspect_small * pow(aspect_large / aspect_small, fmin(fmax(share, 0), 1));
}

static bool is_gpt2(const struct ox_shape_request *request) {
    return strcmp(request->family, "gpt2") == 0;
}

/* Heads of 64 below a width of 2048, and of 128 from there, as in Llama; small models have narrower ones. */
static uint32_t head_dim_of(uint32_t hidden) {
    return hidden < 256 ? 32 : hidden < 2048 ? 64 : 128;
}

/* Widths whose heads can be shared evenly. */
static uint32_t step_of(uint32_t hidden) {
    return hidden < 512 ? head_dim_of(hidden) : hidden < 2048 ? 128 : hidden < 4096 ? 512 : 1024;
}

static bool is_latent(const struct ox_shape_request *request) {
    return mixture_of(request) != NULL && mixture_of(request)->latent;
}

static uint32_t kv_heads_of(const struct ox_shape_request *request, uint32_t heads) {
    uint32_t kv = heads;
    if (!is_gpt2(request) && !is_latent(request) && (double)request->param_count >= params_grouped) {
        for (kv = heads < 8 ? heads : 8; heads % kv != 0;) {
            kv--;
        }
    }
    return kv;
}

static void set_shape(const struct ox_shape_request *request, uint32_t layers, uint32_t hidden, uint32_t width,
                      struct ox_model_config *config) {
    const struct mixture_rule *const rule = mixture_of(request);
    const uint32_t most = rule != NULL ? rule->head_dim_most : 0;
    const uint32_t head_dim = most > 0 && most < head_dim_of(hidden) ? most : head_dim_of(hidden);
    config->layers = layers;
    config->hidden = hidden;
    config->heads = hidden / head_dim;
    config->kv_heads = kv_heads_of(request, config->heads);
    config->head_dim = head_dim;
    config->width = width;
    if (is_latent(request)) { /* by heads as in DeepSeek-V2, 2.1.2; narrow queries as in the wide ones alone */
        config->latent = (struct ox_latent){.kv_rank = 4 * head_dim, .q_rank = hidden > 4096 ? 12 * head_dim : 0,
                                            .rotated = head_dim / 2, .rest = head_dim, .value = head_dim};
    }
}

static uint32_t step_of_width(uint32_t hidden) {
    return hidden < 1024 ? 32 : 128;
}

/* An MLP: four times the width in the two matrices of gpt2; in three matrices 8/3, as many parameters. */
static uint32_t mlp_width(const struct ox_shape_request *request, uint32_t hidden) {
    return is_gpt2(request) ? 4 * hidden : (uint32_t)ox_align_up((uint64_t)(hidden * 8.0 / 3), step_of_width(hidden));
}

/* That, or the width of an expert, which is its family's. */
static uint32_t usual_width(const struct ox_shape_request *request, uint32_t hidden) {
    const struct mixture_rule *const rule = mixture_of(request);
    return rule == NULL ? mlp_width(request, hidden)
                        : (uint32_t)ox_align_up((uint64_t)(hidden * rule->width), step_of_width(hidden));
}

/* Parameters of a layer's attention, by the model's width. */
static double count_attention(const struct ox_shape_request *request, const struct ox_model_config *c) {
    const double values = (double)c->heads * c->head_dim, keys = (double)c->kv_heads * c->head_dim;
    const struct ox_latent *const at = &c->latent;
    if (!is_latent(request)) {
        return 2 * values + 2 * keys;
    }
    const double query = (double)c->heads * (at->rotated + at->rest);
    const double queries = at->q_rank > 0 ? at->q_rank + query * at->q_rank / c->hidden : query;
    return queries + at->kv_rank + at->rotated + 2 * values * at->kv_rank / c->hidden + values;
}

/* Parameters but for vectors, which are too few to matter for a choice, with so many experts in a layer. */
static double count_with(const struct ox_shape_request *request, const struct ox_model_config *c, double experts) {
    const struct mixture_rule *const rule = mixture_of(request);
    const double hidden = c->hidden, matrices = is_gpt2(request) ? 2 : 3;
    const double tables = request->vocab * (c->tied ? 1.0 : 2.0) + (is_gpt2(request) ? c->contexts : 0);
    const double dense = rule != NULL ? fmin(rule->dense, c->layers) : 0, routers = rule != NULL ? rule->experts : 0;
    const double each = routers + matrices * (experts + (rule != NULL ? rule->shared : 0)) * c->width;
    return tables * hidden + c->layers * hidden * count_attention(request, c) +
           hidden * (dense * matrices * mlp_width(request, c->hidden) + (c->layers - dense) * each);
}

static double count_of(const struct ox_shape_request *request, const struct ox_model_config *c) {
    return count_with(request, c, mixture_of(request) != NULL ? mixture_of(request)->experts : 1);
}

/* Lets MLPs, or experts, take what the other parameters leave of the number, up to a sixth off their usual width (2.3
 * to 3.1 times the model's where there are no experts). */
static void fit_width(const struct ox_shape_request *request, struct ox_model_config *c) {
    const struct mixture_rule *const rule = mixture_of(request);
    const double hidden = c->hidden, step = step_of_width(c->hidden), share = rule != NULL ? rule->width * 3 / 8 : 1;
    const double spare = (double)request->param_count - count_of(request, c);
    const double layers = fmax(1, (double)c->layers - (rule != NULL ? rule->dense : 0));
    const double width = c->width + spare / (3 * hidden * layers * (rule != NULL ? rule->experts + rule->shared : 1));
    if (!is_gpt2(request)) {
        const double steps = round(fmin(fmax(width, 2.3 * share * hidden), 3.1 * share * hidden) / step);
        c->width = (uint32_t)(fmax(steps, 1) * step);
    }
}

/* Walks widths and depths, and keeps the best: near the number, and near the usual ratio of width to depth. */
static double find_shape(const struct ox_shape_request *request, struct ox_model_config *out) {
    const double aspect = wanted_aspect((double)request->param_count);
    const uint32_t dense = mixture_of(request) != NULL ? mixture_of(request)->dense : 0;
    double best = INFINITY;
    struct ox_model_config c = *out;
    for (uint32_t hidden = 32; hidden <= 32768; hidden += step_of(hidden)) {
        for (uint32_t layers = 1 + dense; layers <= 200; layers++) {
            set_shape(request, layers, hidden, usual_width(request, hidden), &c);
            fit_width(request, &c);
            const double miss = fabs(log(count_of(request, &c) / (double)request->param_count));
            const double bend = fabs(log(hidden / (layers * aspect)));
            const double score = 8 * miss + bend;
            if (score < best) {
                best = score;
                *out = c;
            }
        }
    }
    return fabs(count_of(request, out) / (double)request->param_count - 1);
}

static void name_count(double count, char text[16]) {
    const double unit = count >= 1e9 ? 1e9 : count >= 1e6 ? 1e6 : 1e3;
    snprintf(text, 16, "%.4g %s", count / unit, unit == 1e9 ? "B" : unit == 1e6 ? "M" : "K");
}

static size_t tell_mlp(const struct ox_shape_request *request, const struct ox_model_config *c, char *text,
                       size_t bytes) {
    const struct mixture_rule *const rule = mixture_of(request);
    if (rule != NULL) {
        char active[16];
        name_count(count_with(request, c, rule->chosen), active);
        size_t used = (size_t)snprintf(text, bytes,
                                       "  experts            %" PRIu32 " a layer, of which a token passes %" PRIu32
                                       ", as published: it meets %s parameters\n"
                                       "  width of experts   %" PRIu32 ", %.2f times the width; published: %.4g\n",
                                       rule->experts, rule->chosen, active, c->width, (double)c->width / c->hidden,
                                       rule->width);
        if (rule->shared > 0) {
            used += (size_t)snprintf(text + used, bytes - used,
                                     "  shared expert      one more, as wide as %" PRIu32 ", that every token "
                                     "passes, as published\n", rule->shared);
        }
        if (rule->dense > 0) {
            used += (size_t)snprintf(text + used, bytes - used,
                                     "  first layer        an MLP of %" PRIu32 ", 8/3 of the width: published models "
                                     "have 1 to 3 such layers in front\n", mlp_width(request, c->hidden));
        }
        if (rule->windows) {
            used += (size_t)snprintf(text + used, bytes - used,
                                     "  windows            of 128 tokens in every other layer, as published\n");
        }
        return used;
    }
    return (size_t)snprintf(text, bytes, "  MLP                %" PRIu32 ", %.2f times the width; %s\n", c->width,
                            (double)c->width / c->hidden,
                            is_gpt2(request) ? "4 in two matrices"
                                             : "near 8/3: in three matrices as many parameters as 4 in two");
}

static void tell(const struct ox_shape_request *request, const struct ox_model_config *c, char *reasons) {
    char table[16], all[16];
    const double table_count = (double)c->vocab * c->hidden;
    name_count(table_count, table);
    name_count(count_of(request, c), all);
    size_t used = (size_t)snprintf(
        reasons, OX_SHAPE_REASONS_BYTES,
        "  width / depth      %" PRIu32 " / %" PRIu32 " = %.0f; published models have 64 at 100 M parameters, 128 from "
        "7 B on\n"
        "  heads              %" PRIu32 " of %" PRIu32 " elements; %s\n",
        c->hidden, c->layers, (double)c->hidden / c->layers, c->heads, c->head_dim,
        c->head_dim == 128 ? "128 from a width of 2048 on" : "128 would leave few of them at this width");
    if (is_latent(request)) {
        used += (size_t)snprintf(reasons + used, OX_SHAPE_REASONS_BYTES - used,
                                 "  keys and values    from %" PRIu32 " elements of a token, 4 heads' as published, "
                                 "and %" PRIu32 " that are rotated, half a head's; queries from %s\n",
                                 c->latent.kv_rank, c->latent.rotated,
                                 c->latent.q_rank > 0 ? "12 heads'" : "the block's input, as in models of this width");
    } else if (c->kv_heads < c->heads) {
        used += (size_t)snprintf(reasons + used, OX_SHAPE_REASONS_BYTES - used,
                                 "  keys and values    %" PRIu32 " heads, each for %" PRIu32 " of queries: generation "
                                 "keeps 1/%" PRIu32 " of them\n",
                                 c->kv_heads, c->heads / c->kv_heads, c->heads / c->kv_heads);
    } else {
        used += (size_t)snprintf(reasons + used, OX_SHAPE_REASONS_BYTES - used,
                                 "  keys and values    as many heads as queries: below 1 B parameters sharing them "
                                 "saves little\n");
    }
    used += tell_mlp(request, c, reasons + used, OX_SHAPE_REASONS_BYTES - used);
    snprintf(reasons + used, OX_SHAPE_REASONS_BYTES - used,
             "  table              %" PRIu32 " tokens, %s parameters of %s, %s\n", c->vocab, table, all,
             c->tied ? "also the head: a second one would take as many again"
                     : "and a head of its own: both are a small part");
}

/* Further keys of a mixture's config.json. */
static void tell_mixture(const struct mixture_rule *rule, const struct ox_model_config *c, char more[MORE_BYTES]) {
    size_t used = (size_t)snprintf(more, MORE_BYTES, "{\"%s\":%" PRIu32 ",\"num_experts_per_tok\":%" PRIu32, rule->key,
                                   rule->experts, rule->chosen);
    if (rule->own_width) {
        used += (size_t)snprintf(more + used, MORE_BYTES - used, ",\"moe_intermediate_size\":%" PRIu32, c->width);
    }
    if (rule->shared_key != NULL) {
        used += (size_t)snprintf(more + used, MORE_BYTES - used, ",\"%s\":%" PRIu32, rule->shared_key,
                                 rule->shared * c->width);
    }
    if (rule->latent) {
        used += (size_t)snprintf(more + used, MORE_BYTES - used,
                                 ",\"kv_lora_rank\":%" PRIu32 ",\"qk_rope_head_dim\":%" PRIu32 ",\"qk_nope_head_dim\":%"
                                 PRIu32 ",\"v_head_dim\":%" PRIu32 ",\"q_lora_rank\":", c->latent.kv_rank,
                                 c->latent.rotated, c->latent.rest, c->latent.value);
        used += (size_t)snprintf(more + used, MORE_BYTES - used, c->latent.q_rank > 0 ? "%" PRIu32 : "null",
                                 c->latent.q_rank);
    }
    used += (size_t)snprintf(more + used, MORE_BYTES - used, "%s}", rule->more != NULL ? rule->more : "");
    OX_ASSERT(used < MORE_BYTES);
}

/* Whether its file would be read again. */
static bool is_readable(const struct ox_model_config *config) {
    json_t *json = NULL;
    struct ox_model_config again;
    enum ox_status status = ox_model_config_json(config, NULL, "float32", &json);
    OX_THEN(status, ox_model_config_parse(config->family, json, &again));
    json_decref(json);
    return status == OX_OK;
}

/* Leaves out a window over all layers, as newer models of these families do; where layers with one take turns with
 * others, the family needs it. */
static void settle_window(struct ox_model_config *config) {
    const uint32_t window = config->window;
    config->window = 0;
    if (!is_readable(config)) {
        config->window = window;
    }
}

/* The configuration of these sizes; what is no size is the family's default. */
static enum ox_status make_config(const struct ox_shape_request *request, struct ox_model_config *config) {
    const bool is_phi3 = strcmp(request->family, "phi3") == 0;
    const struct mixture_rule *const rule = mixture_of(request);
    const bool has_mlps = rule != NULL && rule->own_width; /* in front, or at least a key for their width */
    char more[MORE_BYTES];
    if (rule != NULL) {
        tell_mixture(rule, config, more);
    } else {
        snprintf(more, sizeof more, "{\"pad_token_id\":null,\"original_max_position_embeddings\":%" PRIu32 "}",
                 request->contexts);
    }
    const struct ox_known_shape shape = {.name = "--like", .family = request->family, .vocab = request->vocab,
                                   .hidden = config->hidden, .layers = config->layers,
                                   .width = has_mlps ? mlp_width(request, config->hidden) : config->width,
                                   .heads = config->heads, .kv_heads = config->kv_heads,
                                   .head_dim = is_phi3 || is_gpt2(request) || is_latent(request) ? 0
                                                                                                 : config->head_dim,
                                   .contexts = request->contexts, .tied = config->tied,
                                   .more = is_phi3 || rule != NULL ? more : NULL};
    json_t *json = NULL;
    enum ox_status status = ox_shape_config(&shape, &json);
    OX_THEN(status, ox_model_config_parse(shape.name, json, config));
    json_decref(json);
    /* Also where what the family's own defaults come to is refused. */
    if (config->mixture.router.experts > 0 && rule == NULL) {
        return ox_fail(OX_E_CONFIG, "--like %s: no shape of this mixture of experts is chosen for --params; give "
                       "mixtral, granitemoe, olmoe, qwen2_moe, qwen3_moe, gpt_oss, glm4_moe or deepseek_v3, or the "
                       "name of a known shape without --params",
                       request->family);
    }
    if (status == OX_OK) {
        config->bos_id = request->bos_id;
        config->eos_id = request->eos_id;
        config->rope_theta = config->rope && request->contexts > 4096 ? fmax(config->rope_theta, 5e5)
                                                                      : config->rope_theta;
        settle_window(config);
    }
    return status;
}

enum ox_status ox_shape_choose(const struct ox_shape_request *request, struct ox_model_config *out,
                               char reasons[OX_SHAPE_REASONS_BYTES]) {
    const struct ox_known_shape *const known = ox_shape_find(request->family);
    if (known != NULL && strcmp(known->family, request->family) != 0) {
        return ox_fail(OX_E_CONFIG, "--like %s: is a shape of its own size; leave --params out, or give --like %s",
                       request->family, known->family);
    }
    char families[OX_FAMILY_NAMES_BYTES], near[OX_NAME_BYTES];
    ox_family_names(families);
    if (known == NULL && ox_name_nearest(families, ", ", request->family, near) &&
        strcmp(near, request->family) != 0) {
        return ox_fail(OX_E_CONFIG, "--like %s: is no family; did you mean %s?", request->family, near);
    }
    *out = (struct ox_model_config){.vocab = request->vocab, .contexts = request->contexts,
                                    .tied = is_gpt2(request) || (double)request->param_count < params_many};
    const double off = find_shape(request, out);
    if (off > 0.1) {
        return ox_fail(OX_E_CONFIG, "--params %" PRIu64 ": no shape of %s with %" PRIu32 " tokens has about so many "
                       "parameters: the nearest, of width %" PRIu32 " and %" PRIu32 " layer%s, has %.0f; give another "
                       "number, or a smaller vocabulary", request->param_count, request->family, request->vocab,
                       out->hidden, out->layers, ox_plural(out->layers), count_of(request, out));
    }
    tell(request, out, reasons);
    return make_config(request, out);
}
