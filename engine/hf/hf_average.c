/* The averages that a checkpoint's optimizer file has, read in place of its weights. */
#include "engine/hf/hf_internal.h"

#include <stdio.h>

/* The entry "<name>.ema" of a file; NULL: it has none. */
static const struct ox_st_entry *find_average(const struct ox_st_file *file, const struct ox_tensor *tensor) {
    char name[OX_TENSOR_NAME_BYTES + 8];
    snprintf(name, sizeof name, "%s.ema", tensor->name);
    const struct ox_st_entry *const entry = ox_st_find(file, name);
    return entry != NULL && entry->count == tensor->count ? entry : NULL;
}

static enum ox_status use_averages(struct ox_hf_folder *folder) {
    const struct ox_model *const model = folder->model;
    struct ox_hf_adapter *const adapter = model->config.lora.r > 0 ? folder->adapter : NULL;
    const char *const where = adapter != NULL && adapter->path != NULL ? adapter->path : folder->path;
    const struct ox_st_file *file = NULL;
    uint32_t found = 0;
    if (ox_folder_has(where, "optimizer.safetensors")) {
        OX_TRY(ox_hf_open_file(folder, where, "optimizer.safetensors"));
        file = folder->files[folder->file_count - 1];
    }
    for (uint32_t k = 0; file != NULL && k < model->saved_count; k++) {
        const uint32_t i = model->saved[k];
        const uint32_t first = model->tensors[i].shares_idx == OX_NO_TENSOR ? i : model->tensors[i].shares_idx;
        const struct ox_st_entry *const entry = find_average(file, &model->tensors[first]);
        if (entry != NULL && adapter != NULL) {
            adapter->entries[k] = entry;
            found++;
        } else if (entry != NULL && folder->places != NULL && !model->tensors[i].limbs) {
            folder->places[i] = (struct ox_hf_place){.file = file, .entry = entry};
            found++;
        }
    }
    if (found == 0) {
        return ox_fail(OX_E_CONFIG, "%s: holds no averages; --ema reads those of a checkpoint of a run that keeps "
                       "some as it trains", where);
    }
    if (adapter != NULL) {
        adapter->file = file;
        adapter->cached = OX_NO_TENSOR;
    }
    return OX_OK;
}

enum ox_status ox_hf_use_averages(struct ox_hf_folder *folder) {
    const uint32_t before = folder->model->config.shared_layers; /* of layers that shared, the file has one's */
    const uint32_t saved = folder->model->config.lora.r > 0 ? 0 : ox_hf_saved_sharing(folder->path);
    enum ox_status status = ox_hf_share_layers(folder, saved, false);
    OX_THEN(status, use_averages(folder));
    OX_THEN(status, ox_hf_share_layers(folder, before, false));
    return status;
}
