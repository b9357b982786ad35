/* Makes a folder's model anew with its experts in other units. */
#include "engine/hf/hf_internal.h"

#include "base/assert.h"

#include <stdlib.h>

/* The tensor of `model` that has a name. */
static uint32_t named(const struct ox_model *model, const char *name) {
    const int64_t idx = ox_model_find_tensor(model, name);
    OX_ASSERT(idx >= 0);
    return (uint32_t)idx;
}

/* Puts what a folder knows of each tensor in the order of another model with the same tensors. */
static enum ox_status reorder(struct ox_hf_folder *folder, const struct ox_model *to) {
    const struct ox_model *const from = folder->model;
    struct ox_hf_place *const places = calloc(to->tensor_count, sizeof *places);
    if (places == NULL) {
        return ox_hf_fail_memory(folder->path);
    }
    for (uint32_t i = 0; i < to->tensor_count; i++) {
        const uint32_t old = named(from, to->tensors[i].name);
        to->tensors[i].trained = from->tensors[old].trained;
        to->tensors[i].group = from->tensors[old].group;
        if (folder->places != NULL && i < to->saved_first + (folder->adapter == NULL ? to->tensor_count : 0)) {
            places[i] = folder->places[old];
        }
    }
    if (folder->places == NULL) {
        free(places);
    } else {
        free(folder->places);
        folder->places = places;
    }
    return OX_OK;
}

enum ox_status ox_hf_regroup(struct ox_hf_folder *folder, uint32_t per_unit) {
    struct ox_model_config config = folder->model->config;
    struct ox_model *model = NULL;
    OX_ASSERT(folder->means == NULL && folder->mxfp4 == NULL);
    if (config.mixture.per_unit == per_unit) {
        return OX_OK;
    }
    config.mixture.per_unit = per_unit;
    enum ox_status status = ox_model_build(&config, &model);
    if (status != OX_OK) {
        return ox_fail_in(status, "%s", folder->path);
    }
    OX_ASSERT(model->tensor_count == folder->model->tensor_count);
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
