/* Makes a folder's model anew: with its experts in other units, or with a head of its own. */
#include "engine/hf/hf_internal.h"

#include "base/assert.h"

#include <stdlib.h>

/* The tensor of `model` that has the values of one of another model: of a head that is tied, the table. */
static uint32_t named(const struct ox_model *model, const struct ox_tensor *tensor) {
    const bool was_tied = tensor->role == OX_ROLE_HEAD && model->config.tied;
    const int64_t idx = ox_model_find_tensor(model, was_tied ? model->tensors[0].name : tensor->name);
    OX_ASSERT(idx >= 0 && (!was_tied || model->tensors[idx].role == OX_ROLE_EMBED));
    return (uint32_t)idx;
}

/* Puts what a folder knows of each tensor in the order of another model with the same tensors, of which the one has
 * whole and the other parts; those of adapters, which come last, keep their places. */
static enum ox_status reorder(struct ox_hf_folder *folder, const struct ox_model *to) {
    const struct ox_model *const from = folder->model;
    const uint32_t count = to->adapter_first;
    struct ox_hf_place *const places = folder->places == NULL ? NULL : calloc(count, sizeof *places);
    struct ox_mxfp4_source *const mxfp4 = folder->mxfp4 == NULL ? NULL : calloc(to->tensor_count, sizeof *mxfp4);
    float **const means = folder->means == NULL ? NULL : calloc(to->tensor_count, sizeof *means);
    if ((folder->places != NULL && places == NULL) || (folder->means != NULL && means == NULL) ||
        (folder->mxfp4 != NULL && mxfp4 == NULL)) {
        free(places);
        free(mxfp4);
        free(means);
        return ox_hf_fail_memory(folder->path);
    }
    for (uint32_t i = 0; i < to->tensor_count; i++) {
        const uint32_t old = named(from, &to->tensors[i]);
        ox_tensor_take(&to->tensors[i], &from->tensors[old]);
        if (mxfp4 != NULL && i < count) {
            mxfp4[i] = folder->mxfp4[old];
        }
        if (places != NULL && i < count) {
            places[i] = folder->places[old];
        }
        if (means != NULL) {
            means[i] = folder->means[old];
        }
    }
    ox_mxfp4_close(&folder->reader); /* it names a tensor of the other model */
    free(folder->places);
    free(folder->mxfp4);
    free(folder->means);
    folder->places = places;
    folder->mxfp4 = mxfp4;
    folder->means = means;
    return OX_OK;
}

/* Gives the folder a model of this configuration, which has the tensors of its own. */
static enum ox_status remake(struct ox_hf_folder *folder, const struct ox_model_config *config) {
    struct ox_model *model = NULL;
    enum ox_status status = ox_model_build(config, &model);
    if (status != OX_OK) {
        return ox_fail_in(status, "%s", folder->path);
    }
    status = reorder(folder, model);
    if (status != OX_OK) {
        ox_model_close(&model);
        return status;
    }
    ox_model_settle_trained(model);
    ox_model_close(&folder->model);
    folder->model = model;
    return OX_OK;
}

enum ox_status ox_hf_untie(struct ox_hf_folder *folder) {
    struct ox_model_config config = folder->model->config;
    config.tied = false;
    return remake(folder, &config);
}

enum ox_status ox_hf_regroup(struct ox_hf_folder *folder, uint32_t per_unit) {
    struct ox_model_config config = folder->model->config;
    if (config.mixture.per_unit == per_unit) {
        return OX_OK;
    }
    config.mixture.per_unit = per_unit;
    return remake(folder, &config);
}
