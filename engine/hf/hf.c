/* Reads a Hugging Face model folder: finds the file of each tensor, and checks all of them before any is read. */
#include "engine/hf/hf_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/hash/listed.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/hf/shapes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONFIG_BYTES_MAX = 16 << 20,
    INDEX_BYTES_MAX = 100 << 20,
    FILES_MAX = 4096,
    SAMPLE_ELEMS = 1024,
    SAMPLE_COUNT = 64,
};

enum ox_status ox_hf_fail_memory(const char *path) {
    return ox_fail(OX_E_NOMEM, "%s: no memory to open the model folder", path);
}

static const char *shape_text(uint32_t rank, const uint64_t *shape, char *text, size_t bytes) {
    size_t filled = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < rank && filled < bytes; i++) {
        filled += (size_t)snprintf(text + filled, bytes - filled, "%s%" PRIu64, i > 0 ? ", " : "", shape[i]);
    }
    return text;
}

/* What expects a shape of a model's own tensor, and what helps. */
static const char own_config[] = "config.json", own_remedy[] = "use the config.json that came with the weights";

/* Whether two shapes are those of matrices, or of as many, that lie the other way: no other config.json helps there. */
static bool is_transposed(const struct ox_st_entry *entry, uint32_t rank, const uint64_t *shape) {
    return rank >= 2 && entry->rank == rank && entry->shape[rank - 1] == shape[rank - 2] &&
           entry->shape[rank - 2] == shape[rank - 1] && (rank == 2 || entry->shape[0] == shape[0]);
}

enum ox_status ox_hf_check_shape(const struct ox_hf_place *place, uint32_t rank, const uint64_t *shape,
                                 const char *expects, const char *remedy) {
    const struct ox_st_entry *const entry = place->entry;
    bool same = entry->rank == rank;
    for (uint32_t i = 0; same && i < rank; i++) {
        same = entry->shape[i] == shape[i];
    }
    if (!same) {
        char have[200], want[64];
        return ox_fail(OX_E_CONFIG,
                       "%s: tensor \"%s\" has the shape [%s], but %s expects [%s]; %s", ox_st_path(place->file),
                       entry->name, shape_text(entry->rank, entry->shape, have, sizeof have), expects,
                       shape_text(rank, shape, want, sizeof want),
                       is_transposed(entry, rank, shape) ? "it is transposed: save it the other way around" : remedy);
    }
    if (ox_dtype_bytes(entry->dtype) == 0) {
        return ox_fail(OX_E_CONFIG,
                       "%s: tensor \"%s\" is stored as %s; only F32, F16 and BF16 weights can be read",
                       ox_st_path(place->file), entry->name, entry->dtype_text);
    }
    return OX_OK;
}

/* Whether a name in an index is a plain file name, without a folder and not hidden. */
static bool is_plain_name(const char *name) {
    return name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL && strlen(name) <= 255;
}

static const char *file_name_of(const struct ox_st_file *file) {
    const char *const slash = strrchr(ox_st_path(file), '/');
    return slash != NULL ? slash + 1 : ox_st_path(file);
}

enum ox_status ox_hf_open_file(struct ox_hf_folder *folder, const char *where, const char *name) {
    char path[OX_PATH_BYTES];
    enum ox_status status = ox_path_join(where, name, path);
    if (status == OX_OK && folder->file_count >= FILES_MAX) {
        status = ox_fail(OX_E_CONFIG, "%s: the index names more than %d files; save the model in larger ones",
                         folder->path, FILES_MAX);
    }
    if (status != OX_OK) {
        return status;
    }
    struct ox_st_file **const longer =
        realloc(folder->files, (folder->file_count + (size_t)1) * sizeof *folder->files);
    if (longer == NULL) {
        return ox_hf_fail_memory(folder->path);
    }
    folder->files = longer;
    status = ox_st_open(path, &folder->files[folder->file_count]);
    folder->file_count += status == OX_OK;
    return status;
}

static bool is_open(const struct ox_hf_folder *folder, const char *name) {
    for (uint32_t i = 0; i < folder->file_count; i++) {
        if (strcmp(file_name_of(folder->files[i]), name) == 0) {
            return true;
        }
    }
    return false;
}

static enum ox_status open_indexed_files(struct ox_hf_folder *folder, const char *path, const json_t *index) {
    const json_t *const map = json_object_get(index, "weight_map");
    const char *tensor;
    json_t *file;
    if (!json_is_object(map) || json_object_size(map) == 0) {
        return ox_fail(OX_E_CORRUPT, "%s: has no \"weight_map\" of tensors; fetch or save it again", path);
    }
    json_object_foreach((json_t *)map, tensor, file) {
        const char *const name = json_string_value(file);
        if (name == NULL || !is_plain_name(name)) {
            char text[OX_JSON_EXCERPT_BYTES];
            return ox_fail(OX_E_CORRUPT,
                           "%s: tensor \"%.200s\" is listed in %s, which is not the name of a file in the same "
                           "folder; nothing outside the folder is read",
                           path, tensor, ox_json_excerpt(file, text));
        }
        if (!is_open(folder, name)) {
            const enum ox_status status = ox_hf_open_file(folder, folder->path, name);
            if (status != OX_OK) {
                return ox_fail_in(status, "%s", path);
            }
        }
    }
    /* Files and index must agree: a tensor in another file than the index names may be an old one. */
    size_t found = 0;
    for (uint32_t i = 0; i < folder->file_count; i++) {
        const struct ox_st_file *const file_open = folder->files[i];
        for (uint32_t j = 0; j < ox_st_count(file_open); j++) {
            const char *const name = ox_st_entry(file_open, j)->name;
            const char *const said = json_string_value(json_object_get(map, name));
            if (said == NULL || strcmp(said, file_name_of(file_open)) != 0) {
                return ox_fail(OX_E_CORRUPT,
                               "%s: holds tensor \"%s\", which the index %s; fetch or save the folder again",
                               ox_st_path(file_open), name,
                               said == NULL ? "does not list" : "places in another file");
            }
            found++;
        }
    }
    return found == json_object_size(map)
               ? OX_OK
               : ox_fail(OX_E_CORRUPT,
                         "%s: lists %zu tensors, but its files hold %zu of them; fetch what is missing", path,
                         json_object_size(map), found);
}

static enum ox_status open_files(struct ox_hf_folder *folder) {
    char path[OX_PATH_BYTES];
    json_t *index = NULL;
    enum ox_status status = ox_path_join(folder->path, "model.safetensors", path);
    if (status == OX_OK && ox_path_exists(path)) {
        return ox_hf_open_file(folder, folder->path, "model.safetensors");
    }
    OX_THEN(status, ox_path_join(folder->path, "model.safetensors.index.json", path));
    if (status == OX_OK && !ox_path_exists(path)) {
        status = ox_hf_check_folder(folder->path);
    }
    if (status == OX_OK && !ox_path_exists(path)) {
        status = ox_fail(OX_E_CONFIG,
                         "%s: holds neither model.safetensors nor model.safetensors.index.json; convert "
                         "other formats with save_pretrained of transformers, or start fresh with `offload train "
                         "--from-scratch`",
                         folder->path);
    }
    OX_THEN(status, ox_json_load(path, INDEX_BYTES_MAX, &index));
    OX_THEN(status, open_indexed_files(folder, path, index));
    json_decref(index);
    return status;
}

/* ---- tensors ---- */

/* How an expert's tensors are named, for an error; empty where there are no experts. */
static const char *expert_names(const struct ox_model *model, char *text, size_t bytes) {
    const struct ox_tensor *const end = model->tensors + model->tensor_count, *tensor = model->tensors;
    char shape[64];
    while (tensor < end && tensor->role != OX_ROLE_EXPERT_GATE_UP) {
        tensor++;
    }
    text[0] = '\0';
    if (tensor < end) {
        snprintf(text, bytes, ", whose experts have tensors such as \"%s\" [%s]", tensor->name,
                 shape_text(tensor->rank, tensor->shape, shape, sizeof shape));
    }
    return text;
}

/* One of the two tensors of one in MXFP4. The blocks stand for it. */
static enum ox_status place_part(struct ox_hf_folder *folder, const struct ox_hf_place *place, enum ox_mxfp4_part part,
                                 uint32_t idx) {
    struct ox_mxfp4_source *const source = &folder->mxfp4[idx];
    if (source->entries[part] != NULL || (part == OX_MXFP4_BLOCKS && folder->places[idx].entry != NULL)) {
        return ox_fail(OX_E_CORRUPT, "%s: tensor \"%s\" is stored twice; fetch or save it again",
                       ox_st_path(place->file), place->entry->name);
    }
    source->files[part] = place->file;
    source->entries[part] = place->entry;
    if (part == OX_MXFP4_BLOCKS) {
        folder->places[idx] = *place;
    }
    return ox_mxfp4_check(ox_st_path(place->file), place->entry, part, &folder->model->tensors[idx]);
}

static bool is_mxfp4(const struct ox_hf_folder *folder, uint32_t tensor_idx) {
    return folder->mxfp4 != NULL && folder->mxfp4[tensor_idx].entries[OX_MXFP4_BLOCKS] != NULL;
}

/* Whether a tensor's weights are there, with their scales where they need some. */
static bool is_placed(const struct ox_hf_folder *folder, uint32_t tensor_idx) {
    return folder->places[tensor_idx].entry != NULL &&
           (!is_mxfp4(folder, tensor_idx) || folder->mxfp4[tensor_idx].entries[OX_MXFP4_SCALES] != NULL);
}

static enum ox_status place_entry(struct ox_hf_folder *folder, const struct ox_hf_place *place) {
    const char *name = place->entry->name;
    char inner[2 * OX_TENSOR_NAME_BYTES];
    if (folder->has_parts) {
        if (!ox_text_tensor_name(name, inner, sizeof inner)) {
            return OX_OK;
        }
        name = inner;
    }
    char whole[2 * OX_TENSOR_NAME_BYTES];
    const enum ox_mxfp4_part part =
        folder->mxfp4 != NULL ? ox_mxfp4_part_of(name, whole, sizeof whole) : OX_MXFP4_NONE;
    const int64_t idx = ox_model_find_tensor(folder->model, part == OX_MXFP4_NONE ? name : whole);
    if (idx >= 0 && part != OX_MXFP4_NONE && folder->model->tensors[idx].rank == 3) {
        return place_part(folder, place, part, (uint32_t)idx);
    }
    if (idx == -1 || part != OX_MXFP4_NONE) {
        char experts[OX_TENSOR_NAME_BYTES + 128];
        return ox_fail(OX_E_CONFIG,
                       "%s: tensor \"%s\" does not belong to the %s that config.json describes%s; use the config.json "
                       "that came with the weights",
                       ox_st_path(place->file), place->entry->name, folder->model->config.family,
                       expert_names(folder->model, experts, sizeof experts));
    }
    if (idx == -2) {
        folder->beyond_count += strstr(name, "layers.") != NULL && strstr(name, "inv_freq") == NULL;
        if (strcmp(name, "lm_head.weight") == 0) {
            folder->head = *place;
        }
        return OX_OK;
    }
    if (folder->places[idx].entry != NULL) {
        return ox_fail(OX_E_CORRUPT, "%s: tensor \"%s\" is stored twice, also in %s; fetch or save it again",
                       ox_st_path(place->file), place->entry->name, ox_st_path(folder->places[idx].file));
    }
    const struct ox_tensor *const tensor = &folder->model->tensors[idx];
    folder->places[idx] = *place;
    return ox_hf_check_shape(place, tensor->rank - tensor->limbs, tensor->shape, own_config, own_remedy);
}

static enum ox_status check_complete(const struct ox_hf_folder *folder) {
    const struct ox_model *const model = folder->model;
    uint32_t missing_count = 0;
    const char *missing = "", *half = ""; /* half: of a tensor in MXFP4 whose blocks are there */
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        if (!is_placed(folder, i)) {
            missing = missing_count == 0 ? model->tensors[i].name : missing;
            half = missing_count == 0 && folder->places[i].entry != NULL ? "_scales" : half;
            missing_count++;
        }
    }
    if (missing_count == 0) {
        return OX_OK;
    }
    const bool head_alone = missing_count == 1 && strcmp(missing, "lm_head.weight") == 0;
    return ox_fail(OX_E_CONFIG, "%s: tensor \"%s%s\" is missing (%" PRIu32 " in all)%s", folder->path, missing,
                   half, missing_count,
                   head_alone ? "; if the head is the embedding, set \"tie_word_embeddings\" to true "
                                "in config.json"
                              : "; fetch what is missing, or use the config.json that came with the weights");
}

/* Refuses a stored head of a tied model that differs from the embedding. It compares samples, because the two may be
 * gigabytes. */
static enum ox_status check_tied_head(const struct ox_hf_folder *folder) {
    const struct ox_tensor *const embed = &folder->model->tensors[0];
    OX_ASSERT(embed->role == OX_ROLE_EMBED);
    if (folder->head.entry == NULL) {
        return OX_OK;
    }
    enum ox_status status = ox_hf_check_shape(&folder->head, embed->rank, embed->shape, own_config, own_remedy);
    const uint64_t part = ox_min_u64(embed->count, SAMPLE_ELEMS);
    for (uint64_t i = 0; status == OX_OK && i < SAMPLE_COUNT; i++) {
        float head[SAMPLE_ELEMS], other[SAMPLE_ELEMS];
        const uint64_t first = (embed->count - part) / (SAMPLE_COUNT - 1) * i;
        status = ox_st_read_f32(folder->head.file, folder->head.entry, first, part, head);
        OX_THEN(status, ox_st_read_f32(folder->places[0].file, folder->places[0].entry, first, part, other));
        if (status == OX_OK && memcmp(head, other, part * sizeof *head) != 0) {
            status = ox_fail(OX_E_CONFIG,
                             "%s: \"lm_head.weight\" differs from the embedding although they are tied; "
                             "set \"tie_word_embeddings\" to false in config.json to train both",
                             folder->path);
        }
    }
    return status;
}

/* A folder in 16 bits may have some tensors in F32, such as routers, whatever its family usually has: what is saved in
 * 16 bits has them so too. */
static void keep_formats(struct ox_hf_folder *folder) {
    bool is_narrow = false;
    for (uint32_t i = 0; i < folder->model->tensor_count; i++) {
        const enum ox_dtype dtype = ox_hf_dtype(folder, i);
        is_narrow |= dtype == OX_DTYPE_BF16 || dtype == OX_DTYPE_F16;
    }
    for (uint32_t i = 0; i < folder->model->tensor_count && is_narrow; i++) {
        struct ox_tensor *const tensor = &folder->model->tensors[i];
        tensor->fp32 = tensor->limbs || ox_hf_dtype(folder, i) == OX_DTYPE_F32;
    }
}

/* Opens the files; without `weights` those of a mixture alone, where there are some, to see its layout. */
static enum ox_status open_weights(struct ox_hf_folder *folder, bool weights) {
    const bool is_mixture = folder->model->config.mixture.router.experts != 0;
    if (!weights && !(is_mixture && ox_hf_has_weight_files(folder->path))) {
        return OX_OK;
    }
    enum ox_status status = open_files(folder);
    if (status == OX_OK && is_mixture) {
        status = ox_hf_choose_layout(folder->path, folder->files, folder->file_count, &folder->model);
    }
    if (status != OX_OK || !weights) {
        return status;
    }
    folder->places = calloc(folder->model->tensor_count, sizeof *folder->places);
    if (folder->model->config.mixture.mxfp4) {
        folder->mxfp4 = calloc(folder->model->tensor_count, sizeof *folder->mxfp4);
    }
    if (folder->places == NULL || (folder->model->config.mixture.mxfp4 && folder->mxfp4 == NULL)) {
        return ox_hf_fail_memory(folder->path);
    }
    for (uint32_t i = 0; i < folder->file_count; i++) {
        for (uint32_t j = 0; status == OX_OK && j < ox_st_count(folder->files[i]); j++) {
            const struct ox_hf_place place = {folder->files[i], ox_st_entry(folder->files[i], j)};
            status = place_entry(folder, &place);
        }
    }
    OX_THEN(status, check_complete(folder));
    if (status == OX_OK) {
        keep_formats(folder);
    }
    if (status == OX_OK && folder->beyond_count > 0) {
        ox_log(OX_LOG_WARN, "%s: %" PRIu32 " tensors are of layers behind the last, which predict further tokens; they "
               "are neither trained nor saved", folder->path, folder->beyond_count);
    }
    if (status == OX_OK && folder->has_parts) {
        ox_log(OX_LOG_WARN, "%s: of this model of several parts the text model alone is read, and saved again",
               folder->path);
    }
    return status == OX_OK ? check_tied_head(folder) : status;
}

/* Returns a failure to open the weights, unless a file is damaged: then that is the cause. */
static enum ox_status find_cause(const struct ox_hf_folder *folder, enum ox_status failure) {
    char text[OX_ERROR_TEXT_BYTES];
    memcpy(text, ox_error_text(), sizeof text);
    const enum ox_status status = ox_hf_verify(folder);
    return status != OX_OK ? status : ox_fail(failure, "%s", text);
}

/* Makes the model of folder->config. */
static enum ox_status build_model(struct ox_hf_folder *folder, const char *where) {
    struct ox_model_config config;
    json_t *text = NULL;
    enum ox_status status = ox_text_config(where, folder->config, &text);
    if (text != NULL) {
        json_decref(folder->config);
        folder->config = text;
        folder->has_parts = true;
    }
    OX_THEN(status, ox_model_config_parse(where, folder->config, &config));
    if (status == OX_OK) {
        status = ox_model_build(&config, &folder->model);
        status = status == OX_OK ? OX_OK : ox_fail_in(status, "%s", where);
    }
    return status;
}

bool ox_hf_is_shape(const char *name) {
    return ox_shape_find(name) != NULL;
}

enum ox_status ox_hf_open_shape(const char *name, struct ox_hf_folder **out) {
    const struct ox_known_shape *const shape = ox_shape_find(name);
    OX_ASSERT(shape != NULL);
    struct ox_hf_folder *folder = calloc(1, sizeof *folder);
    enum ox_status status = folder != NULL && (folder->path = strdup(shape->name)) != NULL
                                ? ox_shape_config(shape, &folder->config) : ox_hf_fail_memory(shape->name);
    OX_THEN(status, build_model(folder, shape->name));
    const bool is_bf16 = strcmp(shape->family, "gpt2") != 0;
    if (status == OX_OK && is_bf16 && json_object_set_new(folder->config, "dtype", json_string("bfloat16")) != 0) {
        status = ox_hf_fail_memory(shape->name);
    }
    if (status != OX_OK) {
        ox_hf_close(&folder);
    }
    *out = folder;
    return status;
}

enum ox_status ox_hf_open(const char *path, bool weights, struct ox_hf_folder **out) {
    char config_path[OX_PATH_BYTES];
    const bool is_folder = ox_path_is_folder(path);
    enum ox_status status =
        ox_path_join(is_folder ? path : "", is_folder ? "config.json" : path, config_path);
    if (status != OX_OK) {
        return status;
    }
    if (is_folder && ox_hf_is_adapter(path)) {
        char base[OX_PATH_BYTES];
        status = ox_hf_adapter_base(path, base);
        return status == OX_OK ? ox_hf_open_adapter(base, path, weights, out) : status;
    }
    struct ox_hf_folder *folder = calloc(1, sizeof *folder);
    if (folder == NULL || (folder->path = strdup(path)) == NULL) {
        status = ox_hf_fail_memory(path);
        goto fail;
    }
    ox_path_warn_shared(path);
    status = !is_folder                     ? ox_hf_check_file(path, false)
             : !ox_path_exists(config_path) ? ox_hf_check_folder(path) : OX_OK;
    if (is_folder) {
        OX_THEN(status, ox_listed_verify_small(path));
    }
    OX_THEN(status, ox_json_load(config_path, CONFIG_BYTES_MAX, &folder->config));
    OX_THEN(status, build_model(folder, config_path));
    if (status == OX_OK && is_folder) {
        status = open_weights(folder, weights);
        status = status == OX_OK ? status : find_cause(folder, status);
    }
    if (status != OX_OK) {
        goto fail;
    }
    *out = folder;
    return OX_OK;
fail:
    ox_hf_close(&folder);
    return status;
}

void ox_hf_close(struct ox_hf_folder **folder) {
    if (*folder == NULL) {
        return;
    }
    for (uint32_t i = 0; i < (*folder)->file_count; i++) {
        ox_st_close(&(*folder)->files[i]);
    }
    for (uint32_t i = 0; (*folder)->means != NULL && i < (*folder)->model->tensor_count; i++) {
        free((*folder)->means[i]);
    }
    free((*folder)->means);
    ox_mxfp4_close(&(*folder)->reader);
    free((*folder)->mxfp4);
    ox_hf_adapter_close(&(*folder)->adapter);
    ox_model_close(&(*folder)->model);
    json_decref((*folder)->config);
    free((*folder)->files);
    free((*folder)->places);
    free((*folder)->path);
    free(*folder);
    *folder = NULL;
}

const struct ox_model *ox_hf_model(const struct ox_hf_folder *folder) {
    return folder->model;
}

struct ox_model *ox_hf_own_model(struct ox_hf_folder *folder) {
    return folder->model;
}

const json_t *ox_hf_config(const struct ox_hf_folder *folder) {
    return folder->config;
}

enum ox_dtype ox_hf_config_dtype(const json_t *config) {
    const char *const named = json_string_value(json_object_get(config, "dtype"));
    const char *const earlier = json_string_value(json_object_get(config, "torch_dtype"));
    const char *const dtype = named != NULL ? named : earlier;
    return dtype == NULL                      ? OX_DTYPE_F32
           : strcmp(dtype, "bfloat16") == 0 ? OX_DTYPE_BF16
           : strcmp(dtype, "float16") == 0  ? OX_DTYPE_F16 : OX_DTYPE_F32;
}

bool ox_hf_has_weights(const struct ox_hf_folder *folder) {
    return folder->places != NULL;
}

/* ---- added rows ---------------------------------------------------------------------------------------------- */

/* The mean of all rows of a table, as the row of an added token. */
static enum ox_status take_mean(struct ox_hf_folder *folder, uint32_t tensor_idx) {
    const struct ox_hf_place *const place = &folder->places[tensor_idx];
    const uint64_t rows = place->entry->shape[0], width = place->entry->shape[1];
    float *const row = malloc(width * sizeof *row);
    double *const sums = calloc(width, sizeof *sums);
    enum ox_status status = row != NULL && sums != NULL ? OX_OK : ox_hf_fail_memory(folder->path);
    for (uint64_t i = 0; i < rows && status == OX_OK; i++) {
        status = ox_st_read_f32(place->file, place->entry, i * width, width, row);
        for (uint64_t k = 0; k < width; k++) {
            sums[k] += row[k];
        }
    }
    for (uint64_t k = 0; k < width && status == OX_OK; k++) {
        row[k] = (float)(sums[k] / (double)rows);
    }
    free(sums);
    folder->means[tensor_idx] = row;
    return status;
}

enum ox_status ox_hf_resize(struct ox_hf_folder *folder, uint32_t vocab, bool mean, uint64_t seed) {
    struct ox_model_config config = folder->model->config;
    struct ox_model *model = NULL;
    OX_ASSERT(vocab > config.vocab && folder->means == NULL);
    config.vocab = vocab;
    enum ox_status status = ox_model_build(&config, &model);
    if (status != OX_OK) {
        return ox_fail_in(status, "%s", folder->path);
    }
    OX_ASSERT(model->tensor_count == folder->model->tensor_count);
    folder->seed = seed;
    folder->means = calloc(model->tensor_count, sizeof *folder->means);
    status = folder->means != NULL ? OX_OK : ox_hf_fail_memory(folder->path);
    for (uint32_t i = 0; i < model->tensor_count && folder->places != NULL && status == OX_OK; i++) {
        if (mean && model->tensors[i].count != folder->model->tensors[i].count) {
            status = take_mean(folder, i);
        }
    }
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        ox_tensor_take(&model->tensors[i], &folder->model->tensors[i]);
    }
    ox_model_settle_trained(model);
    ox_model_close(&folder->model);
    folder->model = model;
    return status;
}

/* Writes elements of added rows. */
static void read_added(const struct ox_hf_folder *folder, uint32_t tensor_idx, uint64_t first, uint64_t count,
                       float *out) {
    const struct ox_tensor *const tensor = &folder->model->tensors[tensor_idx];
    const float *const mean = folder->means[tensor_idx];
    if (mean == NULL) {
        ox_model_init_values(folder->model, tensor, folder->seed, first, count, out);
    }
    for (uint64_t i = 0; i < count && mean != NULL; i++) {
        out[i] = mean[(first + i) % tensor->shape[1]];
    }
}

static enum ox_status read_limbs(const struct ox_hf_place *place, uint64_t first, uint64_t count, float *out) {
    enum ox_status status = OX_OK;
    for (uint64_t i = 0; i < count && status == OX_OK; i++) {
        float value, limbs[OX_LIMBS];
        status = ox_st_read_f32(place->file, place->entry, (first + i) / OX_LIMBS, 1, &value);
        if (status == OX_OK) {
            ox_limbs_of(value, limbs);
            out[i] = limbs[(first + i) % OX_LIMBS];
        }
    }
    return status;
}

static void tell_mxfp4(const struct ox_hf_folder *folder) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < folder->model->tensor_count; i++) {
        count += is_mxfp4(folder, i);
    }
    if (count > 0) {
        ox_log(OX_LOG_WARN, "%s: %" PRIu32 " tensors of experts are MXFP4; they are read exactly, and saved as BF16 in "
               "an export, in checkpoints as --save-dtype says", folder->path, count);
    }
}

/* Elements from `first` on of the file's tensor. */
static enum ox_status read_run(const struct ox_hf_folder *folder, uint32_t tensor_idx, uint64_t first, uint64_t count,
                               float *out) {
    const struct ox_hf_place *const place = &folder->places[tensor_idx];
    if (is_mxfp4(folder, tensor_idx)) {
        if (folder->reader == NULL) {
            tell_mxfp4(folder);
        }
        return ox_mxfp4_read((struct ox_mxfp4_reader **)&folder->reader, &folder->mxfp4[tensor_idx],
                             &folder->model->tensors[tensor_idx], first, count, out);
    }
    if (folder->model->tensors[tensor_idx].limbs) {
        return read_limbs(place, first, count, out);
    }
    const uint64_t there = first < place->entry->count ? ox_min_u64(count, place->entry->count - first) : 0;
    const enum ox_status status =
        there > 0 ? ox_st_read_f32(place->file, place->entry, first, there, out) : OX_OK;
    if (status == OX_OK && there < count) {
        read_added(folder, tensor_idx, first + there, count - there, out + there);
    }
    return status;
}

enum ox_status ox_hf_read_whole(const struct ox_hf_folder *folder, uint32_t tensor_idx, uint64_t first,
                                uint64_t count, float *out) {
    return read_run(folder, tensor_idx, first, count, out);
}

enum ox_status ox_hf_read_base(const struct ox_hf_folder *folder, uint32_t tensor_idx, uint64_t first,
                                uint64_t count, float *out) {
    const struct ox_tensor *const tensor = &folder->model->tensors[tensor_idx];
    enum ox_status status = OX_OK;
    for (uint64_t here; count > 0 && status == OX_OK; first += here, out += here, count -= here) {
        here = ox_tensor_together(tensor, first, count);
        status = read_run(folder, tensor_idx, ox_tensor_in_files(tensor, first), here, out);
    }
    return status;
}

/* Whether an adapter's file has the tensor, or its seed: of what is trained beside fresh adapters the base has it. */
static bool is_adapters(const struct ox_hf_folder *folder, uint32_t tensor_idx) {
    const struct ox_hf_adapter *const adapter = folder->adapter;
    OX_ASSERT(folder->places != NULL && tensor_idx < folder->model->tensor_count);
    if (adapter == NULL) {
        return false;
    }
    const struct ox_model *const model = adapter->merged != NULL ? adapter->merged : folder->model;
    return tensor_idx >= model->adapter_first ||
           (adapter->file != NULL && model->tensors[tensor_idx].saved_idx != OX_NO_TENSOR);
}

enum ox_status ox_hf_read(const struct ox_hf_folder *folder, uint32_t tensor_idx, uint64_t first,
                          uint64_t count, float *out) {
    if (is_adapters(folder, tensor_idx)) {
        const struct ox_model *const merged = folder->adapter->merged;
        const struct ox_tensor *const tensor = &(merged != NULL ? merged : folder->model)->tensors[tensor_idx];
        if (folder->adapter->file == NULL && ox_role_is_magnitude(tensor->role)) {
            return ox_hf_fresh_magnitudes(folder, tensor, first, count, out);
        }
        return ox_hf_adapter_read(folder->adapter, merged != NULL ? merged : folder->model, tensor_idx, first, count,
                                  out);
    }
    const enum ox_status status = ox_hf_read_base(folder, tensor_idx, first, count, out);
    return status == OX_OK && folder->adapter != NULL && folder->adapter->merged != NULL
               ? ox_hf_adapter_add(folder, tensor_idx, ox_hf_dtype(folder, tensor_idx), first, count, out)
               : status;
}

enum ox_dtype ox_hf_dtype(const struct ox_hf_folder *folder, uint32_t tensor_idx) {
    if (is_adapters(folder, tensor_idx)) {
        return OX_DTYPE_F32;
    }
    const struct ox_st_entry *const entry = folder->places[tensor_idx].entry;
    return is_mxfp4(folder, tensor_idx)                              ? OX_DTYPE_BF16
           : entry->count < ox_tensor_whole_count(&folder->model->tensors[tensor_idx]) ? OX_DTYPE_F32 : entry->dtype;
}

enum ox_status ox_hf_verify(const struct ox_hf_folder *folder) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; status == OX_OK && i < folder->file_count; i++) {
        status = ox_st_verify(folder->files[i]);
    }
    return status;
}

const char *ox_hf_tensor_path(const struct ox_hf_folder *folder, uint32_t tensor_idx) {
    if (is_adapters(folder, tensor_idx)) {
        return folder->adapter->path != NULL ? folder->adapter->path : folder->path;
    }
    return ox_st_path(folder->places[tensor_idx].file);
}
