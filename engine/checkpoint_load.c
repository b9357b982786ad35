/* Fills the engine's planes: from a checkpoint, from a Hugging Face folder, or with fresh values. */
#include "base/assert.h"
#include "base/planes.h"
#include "base/pool.h"
#include "engine/checkpoint.h"
#include "engine/checkpoint_internal.h"
#include "engine/engine_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { INIT_GRAIN = 64 };

/* Where values come from: `fill` sets view->values of a piece, and m and v unless they are zero. */
struct source {
    enum ox_status (*fill)(const struct source *, const struct ox_chunk_view *, const struct ox_piece *);
    const struct ox_model *model;
    const struct ox_hf_folder *folder;
    const struct ox_st_file *optim;
    const struct ox_st_entry **entries; /* of the optimizer file, by tensor and plane; NULL without master */
    bool moments;
    struct ox_pool *pool;
    uint64_t seed;
};

/* Gaps between tensors are zero in every plane and stay so, because nothing else writes them. */
static enum ox_status fill_planes(struct ox_engine *engine, const struct source *source) {
    const struct ox_model *const model = engine->config.model;
    for (uint32_t unit_idx = 0; unit_idx < model->unit_count; unit_idx++) {
        const uint32_t chunk_count = ox_engine_chunk_count(engine, unit_idx);
        for (uint32_t i = 0; i < chunk_count; i++) {
            struct ox_chunk_view view;
            if (engine->config.stop != NULL && *engine->config.stop != 0) {
                return ox_fail(OX_E_ABORTED, "stopped while the weights were loaded");
            }
            ox_engine_chunk_view(engine, unit_idx, i, &view);
            memset(view.values, 0, view.count * sizeof *view.values);
            memset(view.m, 0, view.count * sizeof *view.m);
            memset(view.v, 0, view.count * sizeof *view.v);
            struct ox_piece piece = {0};
            enum ox_status status = OX_OK;
            while (status == OX_OK && ox_piece_next(model, unit_idx, &view, &piece)) {
                status = source->fill(source, &view, &piece);
            }
            for (uint64_t k = 0; k < view.count; k++) {
                view.hi[k] = ox_plane_hi(view.values[k]);
                view.lo[k] = ox_plane_lo(view.values[k]);
            }
            if (status == OX_OK) {
                status = ox_engine_chunk_put(engine, unit_idx, i, &view);
            }
            if (status != OX_OK) {
                return status;
            }
        }
    }
    return OX_OK;
}

/* ---- from a checkpoint --------------------------------------------------------------------------- */

const struct ox_st_entry *ox_optim_find(const struct ox_st_file *file, const struct ox_tensor *tensor,
                                        enum ox_optim_plane plane) {
    char name[OX_OPTIM_NAME_BYTES];
    ox_optim_name(tensor, plane, name);
    for (uint32_t i = 0; i < ox_st_count(file); i++) {
        if (strcmp(ox_st_entry(file, i)->name, name) == 0) {
            return ox_st_entry(file, i);
        }
    }
    return NULL;
}

static enum ox_status fill_from_checkpoint(const struct source *source, const struct ox_chunk_view *view,
                                           const struct ox_piece *piece) {
    const struct ox_st_entry *const *const entries =
        &source->entries[(size_t)piece->tensor_idx * OX_OPTIM_PLANE_COUNT];
    float *const values = view->values + piece->at;
    enum ox_status status =
        entries[OX_OPTIM_MASTER] != NULL
            ? ox_st_read_f32(source->optim, entries[OX_OPTIM_MASTER], piece->first, piece->count, values)
            : ox_hf_read(source->folder, piece->tensor_idx, piece->first, piece->count, values);
    if (status == OX_OK && source->moments) {
        status = ox_st_read_f32(source->optim, entries[OX_OPTIM_M], piece->first, piece->count,
                                view->m + piece->at);
    }
    if (status == OX_OK && source->moments) {
        status = ox_st_read_f32(source->optim, entries[OX_OPTIM_V], piece->first, piece->count,
                                view->v + piece->at);
    }
    return status;
}

/* Every plane of every tensor once, in F32 and in the tensor's shape, and nothing else. */
static enum ox_status find_entries(const struct ox_model *model, bool masters, const struct ox_st_file *optim,
                                   const struct ox_st_entry **entries) {
    const uint32_t plane_count = masters ? OX_OPTIM_PLANE_COUNT : OX_OPTIM_MASTER;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        for (uint32_t plane = 0; plane < plane_count; plane++) {
            const struct ox_tensor *const tensor = &model->tensors[i];
            const struct ox_st_entry *const entry = ox_optim_find(optim, tensor, (enum ox_optim_plane)plane);
            if (entry == NULL || entry->dtype != OX_DTYPE_F32 || entry->rank != tensor->rank ||
                memcmp(entry->shape, tensor->shape, tensor->rank * sizeof *tensor->shape) != 0) {
                char name[OX_OPTIM_NAME_BYTES];
                ox_optim_name(tensor, (enum ox_optim_plane)plane, name);
                return ox_fail(OX_E_CORRUPT, "%s: tensor \"%s\" is %s; use another checkpoint",
                               ox_st_path(optim), name,
                               entry == NULL ? "missing" : "not F32 of the shape that config.json asks for");
            }
            entries[(size_t)i * OX_OPTIM_PLANE_COUNT + plane] = entry;
        }
    }
    if (ox_st_count(optim) != model->tensor_count * plane_count) {
        return ox_fail(OX_E_CORRUPT, "%s: holds %" PRIu32 " tensors instead of %" PRIu32, ox_st_path(optim),
                       ox_st_count(optim), model->tensor_count * plane_count);
    }
    return OX_OK;
}

static enum ox_status check_same_model(const struct ox_model *ours, const struct ox_model *other,
                                       const char *where) {
    bool same =
        strcmp(ours->config.family, other->config.family) == 0 && ours->tensor_count == other->tensor_count;
    for (uint32_t i = 0; same && i < ours->tensor_count; i++) {
        const struct ox_tensor *const a = &ours->tensors[i], *const b = &other->tensors[i];
        same = strcmp(a->name, b->name) == 0 && a->rank == b->rank && a->shape[0] == b->shape[0] &&
               a->shape[1] == b->shape[1];
    }
    return same ? OX_OK
                : ox_fail(OX_E_CONFIG,
                          "%s: holds another model than the one in training; give a folder of "
                          "the same model",
                          where);
}

enum ox_status ox_checkpoint_load(struct ox_engine *engine, const char *path) {
    char optim_path[OX_PATH_BYTES];
    struct ox_manifest manifest = {0};
    struct ox_hf_folder *folder = NULL;
    struct ox_st_file *optim = NULL;
    const struct ox_model *const model = engine->config.model;
    const struct ox_st_entry **const entries =
        calloc((size_t)model->tensor_count * OX_OPTIM_PLANE_COUNT, sizeof *entries);
    enum ox_status status = entries != NULL ? ox_path_join(path, OX_OPTIM_FILE, optim_path)
                                            : ox_fail(OX_E_NOMEM, "%s: no memory to load it", path);
    if (status == OX_OK) {
        status = ox_manifest_read(path, &manifest);
    }
    if (status == OX_OK) {
        status = ox_hf_open(path, true, &folder);
    }
    if (status == OX_OK) {
        status = check_same_model(model, ox_hf_model(folder), path);
    }
    if (status == OX_OK) {
        status = ox_st_open(optim_path, &optim);
    }
    if (status == OX_OK) {
        status = find_entries(model, manifest.weights_dtype == OX_DTYPE_BF16, optim, entries);
    }
    if (status == OX_OK) {
        status = fill_planes(engine, &(struct source){.fill = fill_from_checkpoint,
                                                      .model = model,
                                                      .folder = folder,
                                                      .optim = optim,
                                                      .entries = entries,
                                                      .moments = !engine->config.eval_only});
    }
    ox_st_close(&optim);
    ox_hf_close(&folder);
    ox_manifest_close(&manifest);
    free(entries);
    return status;
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
                           " of tensor \"%s\" is %g, which no weight can be; the file is "
                           "damaged or comes from a run that diverged",
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

static enum ox_status fill_from_folder(const struct source *source, const struct ox_chunk_view *view,
                                       const struct ox_piece *piece) {
    return ox_hf_read_finite(source->folder, piece->tensor_idx, piece->first, piece->count,
                             view->values + piece->at);
}

enum ox_status ox_engine_load_weights(struct ox_engine *engine, const struct ox_hf_folder *folder) {
    OX_ASSERT(ox_hf_has_weights(folder));
    const enum ox_status status =
        check_same_model(engine->config.model, ox_hf_model(folder), "the model folder");
    return status == OX_OK ? fill_planes(engine, &(struct source){.fill = fill_from_folder, .folder = folder})
                           : status;
}

/* ---- fresh -------------------------------------------------------------------------------------- */

struct fresh {
    const struct source *source;
    const struct ox_piece *piece;
    float *values;
};

static void fill_share(void *context, uint32_t idx, uint32_t count) {
    const struct fresh *const fresh = context;
    const struct ox_model *const model = fresh->source->model;
    const struct ox_range range = ox_pool_range(fresh->piece->count, INIT_GRAIN, idx, count);
    for (uint64_t i = range.begin; i < range.end; i++) {
        fresh->values[i] = ox_model_init_value(model, &model->tensors[fresh->piece->tensor_idx],
                                               fresh->source->seed, fresh->piece->first + i);
    }
}

static enum ox_status fill_fresh(const struct source *source, const struct ox_chunk_view *view,
                                 const struct ox_piece *piece) {
    struct fresh fresh = {.source = source, .piece = piece, .values = view->values + piece->at};
    ox_pool_run(source->pool, fill_share, &fresh);
    return OX_OK;
}

enum ox_status ox_engine_init_weights(struct ox_engine *engine, uint64_t seed) {
    return fill_planes(engine, &(struct source){.fill = fill_fresh,
                                                .model = engine->config.model,
                                                .pool = engine->optim_pool,
                                                .seed = seed});
}
