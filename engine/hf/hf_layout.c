/* Mixtures of experts: which of its two layouts the tensors of a folder have. */
#include "engine/hf/hf_internal.h"

/* Looks for tensors that are in one layout alone: `found` becomes an entry of each of the two, or NULL. */
static void find_layouts(struct ox_st_file *const *files, uint32_t file_count, const struct ox_model *each,
                         const struct ox_model *packed, const struct ox_st_entry *found[2]) {
    for (uint32_t i = 0; i < file_count; i++) {
        for (uint32_t j = 0; j < ox_st_count(files[i]); j++) {
            const struct ox_st_entry *const entry = ox_st_entry(files[i], j);
            const bool in_each = ox_model_find_tensor(each, entry->name) >= 0;
            const bool in_packed = ox_model_find_tensor(packed, entry->name) >= 0;
            if (in_each != in_packed) {
                found[in_packed ? 1 : 0] = entry;
            }
        }
    }
}

enum ox_status ox_hf_choose_layout(const char *path, struct ox_st_file *const *files, uint32_t file_count,
                                   struct ox_model **model) {
    struct ox_model_config config = (*model)->config;
    struct ox_model *packed = NULL;
    const struct ox_st_entry *found[2] = {NULL, NULL};
    config.mixture.packed = true;
    enum ox_status status = ox_model_build(&config, &packed);
    if (status == OX_OK) {
        find_layouts(files, file_count, *model, packed, found);
    }
    if (found[0] != NULL && found[1] != NULL) {
        status = ox_fail(OX_E_CONFIG,
                         "%s: holds \"%s\", which is of one expert, and \"%s\", which is of all; a folder has one "
                         "layout or the other: save it again", path, found[0]->name, found[1]->name);
    } else if (found[1] != NULL) {
        struct ox_model *const each = *model;
        *model = packed;
        packed = each;
    }
    ox_model_close(&packed);
    return status;
}

enum ox_status ox_hf_take_layout(struct ox_hf_folder *folder, const char *path) {
    struct ox_model_config config = folder->model->config;
    struct ox_hf_folder *other = NULL;
    struct ox_model *model = NULL;
    OX_TRY(ox_hf_open(path, false, &other));
    config.mixture.packed = other->model->config.mixture.packed;
    ox_hf_close(&other);
    if (config.mixture.packed != folder->model->config.mixture.packed) {
        OX_TRY(ox_model_build(&config, &model));
        ox_model_close(&folder->model);
        folder->model = model;
    }
    return OX_OK;
}
