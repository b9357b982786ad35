/* Makes a folder's model anew: with its experts in other units, cut into groups of features, with a head of its own, or
 * with layers that share their weights. */
#include "engine/hf/hf_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/hash/listed.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

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

enum ox_status ox_hf_regroup(struct ox_hf_folder *folder, uint32_t per_unit, uint32_t tensor_groups) {
    struct ox_model_config config = folder->model->config;
    const bool cut = ox_model_groups(&config) == (tensor_groups > 1 ? tensor_groups : 1);
    if (config.mixture.per_unit == per_unit && cut) {
        return OX_OK;
    }
    config.mixture.per_unit = per_unit;
    config.tensor_groups = tensor_groups;
    return remake(folder, &config);
}

/* ---- layers that share ---- */

enum { COMPARED_ELEMS = 1 << 16 };

/* Compares a tensor with the one that its layer shares, bit by bit. */
static enum ox_status compare(const struct ox_hf_folder *folder, uint32_t tensor_idx, float *values) {
    const struct ox_tensor *const tensor = &folder->model->tensors[tensor_idx];
    const struct ox_tensor *const first = &folder->model->tensors[tensor->shares_idx];
    enum ox_status status = OX_OK;
    for (uint64_t at = 0; at < tensor->count && status == OX_OK; at += COMPARED_ELEMS) {
        const uint64_t count = ox_min_u64(COMPARED_ELEMS, tensor->count - at);
        status = ox_hf_read(folder, tensor_idx, at, count, values);
        OX_THEN(status, ox_hf_read(folder, tensor->shares_idx, at, count, values + COMPARED_ELEMS));
        if (status == OX_OK && memcmp(values, values + COMPARED_ELEMS, count * sizeof *values) != 0) {
            status = ox_fail(OX_E_CONFIG, "--share-layers: layers %u and %u of %s hold different weights (%s); add "
                             "--from-scratch, or leave it out", first->layer, tensor->layer, folder->path,
                             tensor->name);
        }
    }
    return status;
}

enum ox_status ox_hf_share_layers(struct ox_hf_folder *folder, uint32_t layers, bool compares) {
    struct ox_model_config config = folder->model->config;
    config.shared_layers = layers > 1 ? layers : 0;
    if (config.shared_layers == folder->model->config.shared_layers) {
        return OX_OK;
    }
    enum ox_status status = remake(folder, &config);
    float *const values = malloc(2 * COMPARED_ELEMS * sizeof *values);
    if (values == NULL) {
        return ox_hf_fail_memory(folder->path);
    }
    compares = compares && folder->places != NULL;
    for (uint32_t i = 0; i < folder->model->tensor_count && compares && status == OX_OK; i++) {
        status = folder->model->tensors[i].shares_idx != OX_NO_TENSOR ? compare(folder, i, values) : OX_OK;
    }
    free(values);
    return status;
}

uint32_t ox_hf_saved_sharing(const char *folder) {
    char path[OX_PATH_BYTES];
    json_t *json = NULL;
    uint64_t layers = 0;
    if (ox_path_join(folder, OX_LISTED_IN, path) == OX_OK && ox_path_is_file(path) &&
        ox_json_load(path, OX_LISTED_IN_BYTES_MAX, &json) == OX_OK) {
        const json_t *const number = json_object_get(json, OX_SHARED_LAYERS_KEY);
        layers = json_is_integer(number) && json_integer_value(number) > 1 ? (uint64_t)json_integer_value(number) : 0;
    }
    json_decref(json);
    return (uint32_t)ox_min_u64(layers, UINT32_MAX);
}
