/* Fills the engine's planes from a checkpoint, from a Hugging Face folder, or with fresh values. */
#include "base/assert.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/planes.h"
#include "base/pool.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { INIT_GRAIN = 64 };

/* What to fill: a part of one plane of a tensor. */
struct target {
    enum ox_plane plane;
    struct ox_tensor_part piece;
    float *values; /* piece.count values */
};

/* Where values come from: `fill` sets the values of a target. Planes that the source does not have are zero. */
struct source {
    enum ox_status (*fill)(const struct source *, const struct target *);
    const char *path; /* for messages */
    bool has[OX_PLANE_COUNT];
    const struct ox_model *model;
    const struct ox_hf_folder *folder;
    const struct ox_st_file *optim;
    const struct ox_st_entry **entries; /* entries of the optimizer file, by tensor and plane; NULL without master */
    struct ox_pool *pool;
    uint64_t seed;
};

static enum ox_status fill_plane(const struct ox_model *model, uint32_t unit_idx, const struct source *source,
                                 const struct ox_chunk_view *view, enum ox_plane plane) {
    struct target target = {.plane = plane};
    memset(view->values, 0, view->count * sizeof *view->values);
    while (ox_tensor_part_next(model, unit_idx, view, &target.piece)) {
        target.values = view->values + target.piece.at;
        const enum ox_status status = source->fill(source, &target);
        if (status != OX_OK) {
            return status;
        }
    }
    const uint64_t bad_count = ox_chunk_values_set(view, plane);
    static const char *const names[OX_PLANE_COUNT] = {"weights", "first moments", "second moments", "averages"};
    return bad_count == 0 ? OX_OK
                          : ox_fail(OX_E_CORRUPT, "%s: %" PRIu64 " of the %s of unit %" PRIu32 " (elements %" PRIu64
                                    " to %" PRIu64 ") cannot be represented in a state with %s moments; use "
                                    "another checkpoint", source->path, bad_count, names[plane], unit_idx, view->first,
                                    view->first + view->count - 1, ox_moments_name(view->format.moments));
}

/* Fills all planes of all chunks that this process has. Gaps between tensors become zero in every plane and stay so,
 * because nothing else writes them. */
static enum ox_status fill_planes(struct ox_engine *engine, const struct source *source) {
    const struct ox_engine_config *const config = ox_engine_config_of(engine);
    const struct ox_model *const model = config->model;
    for (uint32_t unit_idx = 0; unit_idx < model->unit_count; unit_idx++) {
        const uint32_t chunk_count = ox_engine_chunk_count(engine, unit_idx);
        for (uint32_t i = 0; i < chunk_count; i++) {
            struct ox_chunk_view view;
            if (config->stop != NULL && *config->stop != 0) {
                return ox_fail(OX_E_ABORTED, "stopped while the weights were loaded");
            }
            if (!ox_engine_has_chunk(engine, unit_idx, i)) {
                continue;
            }
            ox_engine_chunk_view(engine, unit_idx, i, &view);
            ox_chunk_clear(&view);
            enum ox_status status = OX_OK;
            for (int plane = 0; plane < OX_PLANE_COUNT && status == OX_OK; plane++) {
                if (source->has[plane] && ox_chunk_has_plane(&view, (enum ox_plane)plane)) {
                    status = fill_plane(model, unit_idx, source, &view, (enum ox_plane)plane);
                }
            }
            if (status == OX_OK && !source->has[OX_PLANE_AVERAGE] && ox_chunk_has_plane(&view, OX_PLANE_AVERAGE)) {
                ox_chunk_values_get(&view, OX_PLANE_MASTER); /* averages begin with the weights */
                const uint64_t bad_count = ox_chunk_values_set(&view, OX_PLANE_AVERAGE);
                OX_ASSERT(bad_count == 0);
            }
            OX_THEN(status, ox_engine_chunk_put(engine, unit_idx, i, &view));
            if (status != OX_OK) {
                return status;
            }
        }
    }
    return OX_OK;
}

/* Returns the same status on all processes, each of which has loaded its own chunks. */
static enum ox_status agree(const struct ox_engine *engine, enum ox_status status) {
    return ox_team_agree(ox_engine_config_of(engine)->team, OX_TEAM_RUN, status, "the weights to begin with");
}

/* ---- from a checkpoint --------------------------------------------------------------------------- */

const struct ox_st_entry *ox_optim_find(const struct ox_st_file *file, const struct ox_tensor *tensor,
                                        enum ox_plane plane) {
    char name[OX_OPTIM_NAME_BYTES];
    ox_optim_name(tensor, plane, name);
    return ox_st_find(file, name);
}

static enum ox_status fill_from_checkpoint(const struct source *source, const struct target *target) {
    const struct ox_tensor_part *const piece = &target->piece;
    const struct ox_st_entry *const entry =
        source->entries[(size_t)piece->tensor_idx * OX_PLANE_COUNT + target->plane];
    if (entry == NULL && target->plane != OX_PLANE_MASTER) { /* not trained: zeros, as they are */
        return OX_OK;
    }
    const uint64_t first = ox_tensor_in_files(&source->model->tensors[piece->tensor_idx], piece->first);
    return entry != NULL ? ox_st_read_f32(source->optim, entry, first, piece->count, target->values)
                         : ox_hf_read(source->folder, piece->tensor_idx, piece->first, piece->count, target->values);
}

/* Whether a tensor need not have a plane: one that is not trained has no moments, and needs no master if its weights
 * were saved in 16 bits and may be that. Muon keeps one moment of matrices. */
static bool may_lack(const struct ox_tensor *tensor, enum ox_plane plane, enum ox_dtype weights_dtype,
                     enum ox_optim_kind kind) {
    const bool is_matrix = kind == OX_OPTIM_MUON && plane == OX_PLANE_V && ox_tensor_is_hidden(tensor);
    return is_matrix || (!tensor->trained && (plane != OX_PLANE_MASTER || weights_dtype != OX_DTYPE_F32));
}

/* Whether a tensor that is trained now was frozen when the checkpoint was saved: it has none of its moments. */
static bool was_frozen(const struct ox_st_file *optim, const struct ox_tensor *tensor) {
    return tensor->trained && ox_optim_find(optim, tensor, OX_PLANE_M) == NULL &&
           ox_optim_find(optim, tensor, OX_PLANE_V) == NULL;
}

/* Refuses an entry that is not there, or not as it should be. */
static enum ox_status refuse_entry(const struct ox_model *model, const struct ox_st_file *optim,
                                   const struct ox_tensor *tensor, enum ox_plane plane,
                                   const struct ox_st_entry *entry) {
    char name[OX_OPTIM_NAME_BYTES];
    if (was_frozen(optim, tensor) && model->config.lora.r > 0) {
        return ox_fail(OX_E_CONFIG, "%s: \"%s\" was not trained; give the run's --lora-target-modules, "
                       "--lora-target-parameters, --lora-modules-to-save and --lora-bias", ox_st_path(optim),
                       tensor->name);
    }
    if (was_frozen(optim, tensor)) {
        return ox_fail(OX_E_CONFIG, "%s: \"%s\" was frozen, so it has no moments to be trained with; give the run's "
                       "--freeze, or begin a new run with this folder as --model", ox_st_path(optim), tensor->name);
    }
    ox_optim_name(tensor, plane, name);
    return ox_fail(OX_E_CORRUPT, "%s: tensor \"%s\" is %s; use another checkpoint", ox_st_path(optim), name,
                   entry == NULL ? "missing" : "not F32 with the shape that config.json expects");
}

/* Finds every plane of every tensor in the optimizer file. Each must be F32 with the tensor's shape, and there may be
 * no other tensor. */
static enum ox_status find_entries(const struct ox_model *model, const struct ox_plane_list *planes,
                                   enum ox_optim_kind kind, const struct ox_st_file *optim,
                                   const struct ox_st_entry **entries) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const bool has = model->tensors[i].saved_idx != OX_NO_TENSOR && model->tensors[i].shares_idx == OX_NO_TENSOR;
        for (uint32_t k = 0; has && k < planes->count; k++) {
            const struct ox_tensor *const tensor = &model->tensors[i];
            const enum ox_plane plane = planes->planes[k];
            const struct ox_st_entry *const entry = ox_optim_find(optim, tensor, plane);
            if (entry == NULL && may_lack(tensor, plane, planes->weights_dtype, kind)) {
                continue;
            }
            if (entry == NULL || entry->dtype != OX_DTYPE_F32 || entry->rank != tensor->rank ||
                memcmp(entry->shape, tensor->whole, tensor->rank * sizeof *tensor->whole) != 0) {
                return refuse_entry(model, optim, tensor, plane, entry);
            }
            entries[(size_t)i * OX_PLANE_COUNT + plane] = entry;
            found += tensor->part_first == 0; /* parts share one */
        }
    }
    if (ox_st_count(optim) != found) {
        return ox_fail(OX_E_CORRUPT, "%s: holds %" PRIu32 " tensor%s instead of %" PRIu32 "; use another checkpoint",
                       ox_st_path(optim), ox_st_count(optim), ox_plural(ox_st_count(optim)), found);
    }
    return OX_OK;
}

static bool are_same(const struct ox_tensor *a, const struct ox_tensor *b) {
    return strcmp(a->name, b->name) == 0 && a->rank == b->rank && memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

static bool has_tensor(const struct ox_model *model, const struct ox_tensor *tensor) {
    uint32_t i = 0;
    while (i < model->tensor_count && !are_same(tensor, &model->tensors[i])) {
        i++;
    }
    return i < model->tensor_count;
}

/* The first tensor of `a` that `b` lacks or has in another shape; NULL: there is none. */
static const char *lacks(const struct ox_model *a, const struct ox_model *b) {
    for (uint32_t i = 0; i < a->tensor_count; i++) {
        if (!has_tensor(b, &a->tensors[i])) {
            return a->tensors[i].name;
        }
    }
    return NULL;
}

static enum ox_status check_same_model(const struct ox_model *ours, const struct ox_model *other,
                                       const char *where) {
    bool same =
        strcmp(ours->config.family, other->config.family) == 0 && ours->tensor_count == other->tensor_count;
    for (uint32_t i = 0; same && i < ours->tensor_count; i++) {
        same = are_same(&ours->tensors[i], &other->tensors[i]);
    }
    for (uint32_t i = 0; same && ours->config.lora.r > 0 && i < ours->tensor_count; i++) {
        if ((ours->tensors[i].saved_idx == OX_NO_TENSOR) != (other->tensors[i].saved_idx == OX_NO_TENSOR)) {
            return ox_fail(OX_E_CONFIG, "%s: \"%s\" was %strained beside its adapters; give the run's "
                           "--lora-modules-to-save and --lora-bias again", where, ours->tensors[i].name,
                           other->tensors[i].saved_idx == OX_NO_TENSOR ? "not " : "");
        }
    }
    if (same) {
        return OX_OK;
    }
    const char *const ours_alone = lacks(ours, other), *const theirs = lacks(other, ours);
    const char *const name = ours_alone != NULL ? ours_alone : theirs;
    return ox_fail(OX_E_CONFIG, "%s: has another model than the one in training%s%s%s; give a folder of the same model",
                   where, name == NULL ? "" : ": not both have, in the same shape, \"", name == NULL ? "" : name,
                   name == NULL ? "" : "\"");
}

/* Warns of what happens to a state when it is converted from one format to another. */
static void warn_conversion(const char *path, struct ox_state_format from, struct ox_state_format to) {
    if (from.averages != to.averages) {
        ox_log(OX_LOG_WARN, "%s: %s", path, to.averages ? "has no averages (--ema-decay); they begin with its weights"
                                                         : "has averages of the weights, which the run goes on without "
                                                           "(--ema-decay 0)");
    }
    if (from.kind == to.kind && from.moments == to.moments) {
        return;
    }
    const bool rounds = from.moments != to.moments && to.moments != OX_MOMENTS_F32;
    const bool lacks_v = ox_optim_has_v(to.kind) && (!ox_optim_has_v(from.kind) || from.kind == OX_OPTIM_MUON);
    ox_log(OX_LOG_WARN, "%s: has the state of %s with %s moments, but the run continues with %s and %s moments%s%s",
           path, ox_optim_kind_name(from.kind), ox_moments_name(from.moments), ox_optim_kind_name(to.kind),
           ox_moments_name(to.moments), rounds ? "; its numbers are rounded" : "",
           !lacks_v ? "" : ox_optim_has_v(from.kind) ? "; the second moments of matrices begin at zero"
                                                                 : "; the second moments begin at zero");
}

/* Whether an optimizer file has averages. */
static bool has_averages(const struct ox_st_file *optim, const struct ox_model *model) {
    bool any = false;
    for (uint32_t i = 0; i < model->saved_count && !any; i++) {
        any = ox_optim_find(optim, &model->tensors[model->saved[i]], OX_PLANE_AVERAGE) != NULL;
    }
    return any;
}

/* Refuses a state that is of fewer layers than the run trains, or of more. */
static enum ox_status check_sharing(const char *path, uint32_t had, uint32_t has) {
    return had == has ? OX_OK
           : has == 0
               ? ox_fail(OX_E_CONFIG, "%s: %u layers in a row shared their weights and have one optimizer state; give "
                         "--share-layers %u again, or let each have its own with `offload unlock`", path, had, had)
               : ox_fail(OX_E_CONFIG, "--share-layers: in %s %s; %s", path,
                         had == 0 ? "each layer has weights of its own" : "other layers share their weights",
                         had == 0 ? "leave it out, or begin a new run" : "give the run's number again");
}

/* Refuses a tensor without moments: it was frozen, or the checkpoint is of a model that does not have it. */
static enum ox_status refuse_untrained(const char *path, const struct ox_model *model, const struct ox_st_file *optim,
                                       const struct ox_tensor *tensor) {
    struct ox_hf_folder *folder = NULL;
    enum ox_status status = model->config.lora.r > 0 ? OX_OK : ox_hf_open(path, true, &folder);
    OX_THEN(status, folder != NULL ? ox_hf_regroup(folder, model->config.mixture.per_unit, model->config.tensor_groups)
                                   : OX_OK);
    if (status == OX_OK && folder != NULL && !has_tensor(ox_hf_model(folder), tensor)) {
        status = ox_fail(OX_E_CONFIG, "%s: has another model than the one in training: it lacks, in this shape, "
                         "\"%s\"; give the run's --model", path, tensor->name);
    }
    ox_hf_close(&folder);
    return status == OX_OK ? refuse_entry(model, optim, tensor, OX_PLANE_M, NULL) : status;
}

enum ox_status ox_checkpoint_check_trained(const char *path, const struct ox_model *model) {
    char optim_path[OX_PATH_BYTES];
    struct ox_st_file *optim = NULL;
    const bool had_adapters = ox_hf_is_adapter(path), has_adapters = model->config.lora.r > 0;
    if (had_adapters != has_adapters) {
        return ox_fail(OX_E_CONFIG, "%s: %s", path,
                       had_adapters ? "is a checkpoint of adapters; give the run's --lora-r or --adapter again"
                                    : "was trained without adapters; leave out --lora-r and --adapter, or begin a new "
                                      "run with it as --model");
    }
    enum ox_status status = ox_checkpoint_check_state(path);
    OX_THEN(status, check_sharing(path, ox_hf_saved_sharing(path), model->config.shared_layers));
    OX_THEN(status, ox_path_join(path, OX_OPTIM_FILE, optim_path));
    OX_THEN(status, ox_st_open(optim_path, &optim));
    for (uint32_t i = 0; status == OX_OK && i < model->tensor_count; i++) {
        if (model->tensors[i].shares_idx == OX_NO_TENSOR && was_frozen(optim, &model->tensors[i])) {
            status = refuse_untrained(path, model, optim, &model->tensors[i]);
        }
    }
    ox_st_close(&optim);
    return status;
}

enum ox_status ox_checkpoint_load(struct ox_engine *engine, const char *path) {
    return ox_checkpoint_load_on(engine, path, NULL);
}

enum ox_status ox_checkpoint_load_on(struct ox_engine *engine, const char *path, const char *base) {
    char optim_path[OX_PATH_BYTES];
    struct ox_manifest manifest = {0};
    struct ox_hf_folder *folder = NULL;
    struct ox_st_file *optim = NULL;
    const struct ox_model *const model = ox_engine_config_of(engine)->model;
    const struct ox_st_entry **const entries =
        calloc((size_t)model->tensor_count * OX_PLANE_COUNT, sizeof *entries);
    enum ox_status status = entries != NULL ? ox_path_join(path, OX_OPTIM_FILE, optim_path)
                                            : ox_fail(OX_E_NOMEM, "%s: no memory to load it", path);
    OX_THEN(status, ox_manifest_read(path, &manifest));
    OX_THEN(status, base != NULL ? ox_hf_open_adapter(base, path, true, &folder) : ox_hf_open(path, true, &folder));
    OX_THEN(status, ox_hf_regroup(folder, model->config.mixture.per_unit,
                                  model->config.tensor_groups)); /* files do not say how they are grouped */
    OX_THEN(status, check_same_model(model, ox_hf_model(folder), path));
    OX_THEN(status, check_sharing(path, manifest.shared_layers, model->config.shared_layers));
    OX_THEN(status, ox_st_open(optim_path, &optim));
    const struct ox_state_format to = ox_engine_config_of(engine)->state;
    const struct ox_state_format from = {.kind = (enum ox_optim_kind)manifest.state.optimizer,
                                         .moments = (enum ox_moments)manifest.state.moments,
                                         .averages = status == OX_OK && has_averages(optim, model)};
    if (status == OX_OK) {
        const struct ox_plane_list planes = ox_optim_planes(from, manifest.weights_dtype);
        status = find_entries(model, &planes, from.kind, optim, entries);
    }
    if (status == OX_OK) {
        const bool moments = !ox_engine_config_of(engine)->eval_only;
        const bool has_v = ox_plane_exists(from, OX_PLANE_V) && ox_plane_exists(to, OX_PLANE_V);
        if (moments && ox_team_leads(ox_engine_config_of(engine)->team)) {
            warn_conversion(path, from, to);
        }
        status = fill_planes(engine, &(struct source){.fill = fill_from_checkpoint,
                                                      .path = path,
                                                      .has = {true, moments, moments && has_v,
                                                              from.averages && to.averages},
                                                      .model = model,
                                                      .folder = folder,
                                                      .optim = optim,
                                                      .entries = entries});
    }
    OX_THEN(status, ox_engine_config_of(engine)->eval_only ? OX_OK : ox_checkpoint_read_residuals(engine, path));
    ox_st_close(&optim);
    ox_hf_close(&folder);
    ox_manifest_close(&manifest);
    free(entries);
    return agree(engine, status);
}

/* ---- from a Hugging Face folder ------------------------------------------------------------------- */

enum ox_status ox_check_finite(const char *path, const char *name, uint64_t first, uint64_t count,
                               const float *values) {
    enum { EXPONENT = 0x7f80 };
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t bits = ox_f32_bits(values[i]);
        if ((ox_plane_hi(values[i]) & EXPONENT) == EXPONENT || (bits >> 16 & EXPONENT) == EXPONENT) {
            return ox_fail(OX_E_CORRUPT,
                           "%s: element %" PRIu64
                           " of tensor \"%s\" is %g, which is not a valid weight; the file is damaged or comes from a "
                            "run that diverged: use another one",
                           path, first + i, name, (double)values[i]);
        }
    }
    return OX_OK;
}

enum ox_status ox_hf_read_finite(const struct ox_hf_folder *folder, uint32_t tensor_idx, uint64_t first,
                                 uint64_t count, float *out) {
    const enum ox_status status = ox_hf_read(folder, tensor_idx, first, count, out);
    return status == OX_OK ? ox_check_finite(ox_hf_tensor_path(folder, tensor_idx),
                                             ox_hf_model(folder)->tensors[tensor_idx].name, first, count, out)
                           : status;
}

static enum ox_status fill_from_folder(const struct source *source, const struct target *target) {
    const struct ox_tensor_part *const piece = &target->piece;
    return ox_hf_read_finite(source->folder, piece->tensor_idx, piece->first, piece->count, target->values);
}

enum ox_status ox_engine_load_weights(struct ox_engine *engine, const struct ox_hf_folder *folder) {
    OX_ASSERT(ox_hf_has_weights(folder));
    enum ox_status status =
        check_same_model(ox_engine_config_of(engine)->model, ox_hf_model(folder), "the model folder");
    OX_THEN(status, fill_planes(engine, &(struct source){.fill = fill_from_folder,
                                                         .path = "the model folder",
                                                         .has = {[OX_PLANE_MASTER] = true},
                                                         .folder = folder}));
    if (ox_team_leads(ox_engine_config_of(engine)->team)) { /* it reads all that a checkpoint lists: once for all */
        OX_THEN(status, ox_hf_verify(folder));
    }
    return agree(engine, status);
}

/* ---- fresh -------------------------------------------------------------------------------------- */

struct fresh {
    const struct source *source;
    const struct target *target;
};

static void fill_share(void *context, uint32_t idx, uint32_t count) {
    const struct fresh *const fresh = context;
    const struct ox_model *const model = fresh->source->model;
    const struct ox_tensor_part *const piece = &fresh->target->piece;
    const struct ox_range range = ox_pool_range(piece->count, INIT_GRAIN, idx, count);
    ox_model_init_values(model, &model->tensors[piece->tensor_idx], fresh->source->seed, piece->first + range.begin,
                         range.end - range.begin, fresh->target->values + range.begin);
}

static enum ox_status fill_fresh(const struct source *source, const struct target *target) {
    struct fresh fresh = {.source = source, .target = target};
    ox_pool_run(source->pool, fill_share, &fresh);
    return OX_OK;
}

enum ox_status ox_engine_init_weights(struct ox_engine *engine, uint64_t seed) {
    return agree(engine, fill_planes(engine, &(struct source){.fill = fill_fresh,
                                                              .path = "fresh weights",
                                                              .has = {[OX_PLANE_MASTER] = true},
                                                              .model = ox_engine_config_of(engine)->model,
                                                              .pool = ox_engine_pool(engine),
                                                              .seed = seed}));
}
