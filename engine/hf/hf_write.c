/* Writes a Hugging Face model folder: shards, index, config.json. */
#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/hf/hf_internal.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHARDS_MAX = 512, SHARD_NAME_BYTES = 64 };

/* One of the files: tensors of the files' list. */
struct shard {
    uint32_t first, count;
    struct ox_st_writer *writer;
    bool finished;
};

struct ox_hf_writer {
    char path[OX_PATH_BYTES];
    const struct ox_model *model;
    json_t *config;
    enum ox_dtype dtype;
    bool joined; /* another process has created the files */
    struct shard *shards;
    uint32_t shard_count;
    const char *base; /* of adapters */
    uint64_t base_hash;
};

static bool is_adapter(const struct ox_model *model) {
    return model->config.lora.r > 0;
}

static const char *dtype_in_config(enum ox_dtype dtype) {
    switch (dtype) {
    case OX_DTYPE_F32:
        return "float32";
    case OX_DTYPE_F16:
        return "float16";
    case OX_DTYPE_BF16:
        return "bfloat16";
    case OX_DTYPE_OTHER:
        break;
    }
    OX_ASSERT(false);
    return "";
}

static void shard_name(const struct ox_hf_writer *writer, uint32_t idx, char *out) {
    if (writer->shard_count == 1) {
        snprintf(out, SHARD_NAME_BYTES, "%s", is_adapter(writer->model) ? "adapter_model.safetensors"
                                                                       : "model.safetensors");
    } else {
        snprintf(out, SHARD_NAME_BYTES, "model-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", idx + 1,
                 writer->shard_count);
    }
}

/* What is in the files, by the number of a saved tensor. Those of adapters have names as in PEFT. */
struct specs {
    struct ox_st_spec *specs;
    char (*names)[OX_HF_NAME_BYTES];
    uint32_t count;
};

static void close_specs(struct specs *specs) {
    free(specs->specs);
    free(specs->names);
}

static bool make_specs(const struct ox_model *model, enum ox_dtype dtype, struct specs *out) {
    out->count = model->saved_count;
    out->specs = calloc(out->count, sizeof *out->specs);
    out->names = calloc(out->count, sizeof *out->names);
    for (uint32_t i = 0; out->specs != NULL && out->names != NULL && i < out->count; i++) {
        const struct ox_tensor *const tensor = &model->tensors[model->saved[i]];
        struct ox_st_spec *const spec = &out->specs[i];
        ox_hf_file_name(model, tensor, out->names[i]);
        *spec = (struct ox_st_spec){.name = out->names[i], .dtype = ox_hf_file_dtype(tensor, dtype),
                                    .rank = tensor->rank - tensor->limbs};
        memcpy(spec->shape, tensor->whole, tensor->rank * sizeof *tensor->whole);
    }
    return out->specs != NULL && out->names != NULL;
}

static uint64_t file_bytes(const struct ox_tensor *tensor, enum ox_dtype dtype) {
    return ox_tensor_whole_count(tensor) / ox_tensor_limbs(tensor) * ox_dtype_bytes(ox_hf_file_dtype(tensor, dtype));
}

/* Divides the tensors among shards. A shard ends when the next tensor would exceed the limit; a tensor larger than the
 * limit gets a shard of its own. Fills `shards` unless it is NULL, and returns their number. */
static uint32_t divide(const struct ox_model *model, enum ox_dtype dtype, uint64_t limit,
                       struct shard *shards) {
    uint32_t count = 0;
    uint64_t used = 0;
    limit = is_adapter(model) ? UINT64_MAX : limit; /* PEFT reads one file */
    for (uint32_t i = 0; i < model->saved_count; i++) {
        const uint64_t bytes = file_bytes(&model->tensors[model->saved[i]], dtype);
        if (count == 0 || (used > 0 && (used > limit || bytes > limit - used))) {
            if (shards != NULL) {
                shards[count].first = i;
            }
            count++;
            used = 0;
        }
        used += bytes;
        if (shards != NULL) {
            shards[count - 1].count++;
        }
    }
    return count;
}

/* Refuses a folder with weights of another model, which would be loaded together with these. */
static enum ox_status check_empty(const char *path) {
    DIR *const folder = opendir(path);
    if (folder == NULL) {
        const bool is_choice = errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == ELOOP;
        return ox_fail_errno(is_choice ? OX_E_CONFIG : OX_E_IO, errno, "%s: cannot open the folder", path);
    }
    enum ox_status status = OX_OK;
    for (const char *name = ""; status == OX_OK && name != NULL;) {
        status = ox_folder_next(folder, path, &name);
        if (status == OX_OK && name != NULL && strstr(name, ".safetensors") != NULL &&
            (strncmp(name, "model", 5) == 0 || strncmp(name, "adapter_model", 13) == 0)) {
            status = ox_fail(OX_E_CONFIG, "%s: already holds %s; write to an empty folder", path, name);
        }
    }
    closedir(folder);
    return status;
}

enum ox_status ox_hf_write_json(const char *folder, const char *name, const json_t *json) {
    char path[OX_PATH_BYTES];
    enum ox_status status = ox_path_join(folder, name, path);
    char *text = NULL;
    for (size_t digits = 15; status == OX_OK && digits <= 17; digits++) {
        json_t *again = NULL;
        free(text);
        text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(digits));
        status = text == NULL ? ox_fail(OX_E_NOMEM, "%s: no memory to write it", path)
                              : ox_json_parse(path, text, strlen(text), &again);
        const bool same = json_equal(json, again) != 0;
        json_decref(again);
        if (same) {
            break;
        }
    }
    if (status == OX_OK) {
        const size_t bytes = strlen(text);
        text[bytes] = '\n'; /* replaces the NUL */
        status = ox_file_replace(path, text, bytes + 1);
    }
    free(text);
    return status;
}

/* The shard that has a tensor of the files. */
static uint32_t shard_of(const struct ox_hf_writer *writer, uint32_t number) {
    uint32_t low = 0, high = writer->shard_count;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (writer->shards[middle].first <= number) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static enum ox_status write_index(const struct ox_hf_writer *writer) {
    const struct ox_model *const model = writer->model;
    json_t *const map = json_object();
    uint64_t bytes = 0;
    bool done = map != NULL;
    for (uint32_t i = 0; done && i < model->saved_count; i++) {
        const struct ox_tensor *const tensor = &model->tensors[model->saved[i]];
        char name[SHARD_NAME_BYTES];
        shard_name(writer, shard_of(writer, i), name);
        bytes += file_bytes(tensor, writer->dtype);
        done = json_object_set_new(map, tensor->name, json_string(name)) == 0;
    }
    json_t *const index = json_pack(
        "{s:{s:I, s:I}, s:o}", "metadata", "total_parameters", (json_int_t)model->param_count, "total_size",
        (json_int_t)bytes, "weight_map", map);
    const enum ox_status status = done && index != NULL
                                      ? ox_hf_write_json(writer->path, "model.safetensors.index.json", index)
                                      : ox_fail(OX_E_NOMEM, "%s: no memory for the index", writer->path);
    json_decref(index);
    return status;
}

static enum ox_status open_shards(struct ox_hf_writer *writer) {
    struct specs specs;
    enum ox_status status = make_specs(writer->model, writer->dtype, &specs)
                                ? OX_OK : ox_fail(OX_E_NOMEM, "%s: no memory to write the model", writer->path);
    for (uint32_t i = 0; status == OX_OK && i < writer->shard_count; i++) {
        struct shard *const shard = &writer->shards[i];
        char name[SHARD_NAME_BYTES], path[OX_PATH_BYTES];
        shard_name(writer, i, name);
        status = ox_path_join(writer->path, name, path);
        OX_THEN(status, (writer->joined ? ox_st_join : ox_st_create)(
                            path, specs.specs + shard->first, shard->count, &shard->writer));
    }
    close_specs(&specs);
    return status;
}

/* Opens a writer that has no files yet. */
static enum ox_status open_writer(const char *path, const struct ox_model *model, enum ox_dtype dtype,
                                  uint64_t shard_bytes_max, struct ox_hf_writer **out) {
    const uint32_t shard_count = divide(model, dtype, shard_bytes_max, NULL);
    struct ox_hf_writer *const writer = *out = calloc(1, sizeof *writer);
    if (writer != NULL) {
        writer->shards = calloc(shard_count, sizeof *writer->shards);
    }
    if (writer == NULL || writer->shards == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to write the model", path);
    }
    writer->model = model;
    writer->dtype = dtype;
    writer->shard_count = shard_count;
    divide(model, dtype, shard_bytes_max, writer->shards);
    return shard_count <= SHARDS_MAX
               ? ox_path_join(path, "", writer->path)
               : ox_fail(OX_E_CONFIG,
                         "%s: the model needs %" PRIu32 " files of at most %" PRIu64
                         " bytes, but the limit is %d files; allow larger ones",
                         path, shard_count, shard_bytes_max, SHARDS_MAX);
}

enum ox_status ox_hf_create(const char *path, const struct ox_model *model, const json_t *original_config,
                            enum ox_dtype dtype, uint64_t shard_bytes_max, struct ox_hf_writer **out) {
    struct ox_hf_writer *writer = NULL;
    enum ox_status status = open_writer(path, model, dtype, shard_bytes_max, &writer);
    OX_THEN(status, check_empty(path));
    OX_THEN(status, ox_model_config_json(&model->config, original_config, dtype_in_config(dtype), &writer->config));
    OX_THEN(status, open_shards(writer));
    if (status != OX_OK) {
        ox_hf_discard(&writer);
        return status;
    }
    *out = writer;
    return OX_OK;
}

enum ox_status ox_hf_join(const char *path, const struct ox_model *model, enum ox_dtype dtype,
                          uint64_t shard_bytes_max, struct ox_hf_writer **out) {
    struct ox_hf_writer *writer = NULL;
    enum ox_status status = open_writer(path, model, dtype, shard_bytes_max, &writer);
    if (status == OX_OK) {
        writer->joined = true;
        status = open_shards(writer);
    }
    if (status != OX_OK) {
        ox_hf_discard(&writer);
        return status;
    }
    *out = writer;
    return OX_OK;
}

void ox_hf_set_base(struct ox_hf_writer *writer, const char *base, uint64_t base_hash) {
    writer->base = base;
    writer->base_hash = base_hash;
}

void ox_hf_share(struct ox_hf_writer *writer) {
    for (uint32_t i = 0; i < writer->shard_count; i++) {
        ox_st_share(writer->shards[i].writer);
    }
}

enum ox_status ox_hf_write(struct ox_hf_writer *writer, uint32_t tensor_idx, uint64_t first, uint64_t count,
                           const void *data) {
    OX_ASSERT(tensor_idx < writer->model->tensor_count);
    const struct ox_tensor *const tensor = &writer->model->tensors[tensor_idx];
    const uint64_t elem_bytes = ox_dtype_bytes(ox_hf_file_dtype(tensor, writer->dtype));
    const uint64_t limbs = ox_tensor_limbs(tensor);
    OX_ASSERT(first % limbs == 0 && count % limbs == 0 && tensor->saved_idx != OX_NO_TENSOR);
    const struct shard *const shard = &writer->shards[shard_of(writer, tensor->saved_idx)];
    enum ox_status status = OX_OK;
    for (uint64_t done = 0, here; done < count && status == OX_OK; done += here) {
        here = ox_tensor_together(tensor, first + done, count - done);
        status = ox_st_write(shard->writer, tensor->saved_idx - shard->first,
                             ox_tensor_in_files(tensor, first + done) / limbs * elem_bytes,
                             (const unsigned char *)data + done / limbs * elem_bytes, here / limbs * elem_bytes);
    }
    return status;
}

void ox_hf_join_limbs(const float *limbs, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count / OX_LIMBS; i++) {
        out[i] = ox_limbs_sum(limbs + i * OX_LIMBS);
    }
}

enum ox_status ox_hf_finish(struct ox_hf_writer **writer) {
    struct ox_hf_writer *const hf = *writer;
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; status == OX_OK && i < hf->shard_count; i++) {
        status = ox_st_finish(&hf->shards[i].writer);
        hf->shards[i].finished = status == OX_OK && !hf->joined;
    }
    if (status == OX_OK && !hf->joined) {
        status = hf->shard_count > 1 ? write_index(hf) : OX_OK;
        OX_THEN(status, is_adapter(hf->model)
                            ? ox_hf_adapter_describe(hf->path, hf->model, hf->base, hf->base_hash)
                            : ox_hf_write_json(hf->path, "config.json", hf->config));
        OX_THEN(status, ox_folder_sync(hf->path));
    }
    for (uint32_t i = 0; status == OX_OK && i < hf->shard_count; i++) {
        hf->shards[i].finished = false; /* so that ox_hf_discard keeps them */
    }
    ox_hf_discard(writer);
    return status;
}

void ox_hf_discard(struct ox_hf_writer **writer) {
    struct ox_hf_writer *const hf = *writer;
    if (hf == NULL) {
        return;
    }
    for (uint32_t i = 0; hf->shards != NULL && i < hf->shard_count; i++) {
        char name[SHARD_NAME_BYTES], path[OX_PATH_BYTES];
        ox_st_discard(&hf->shards[i].writer);
        shard_name(hf, i, name);
        if (hf->shards[i].finished && ox_path_join(hf->path, name, path) == OX_OK) {
            unlink(path);
        }
    }
    json_decref(hf->config);
    free(hf->shards);
    free(hf);
    *writer = NULL;
}

uint64_t ox_hf_bytes(const struct ox_model *model, enum ox_dtype dtype) {
    struct specs specs;
    const uint64_t bytes = make_specs(model, dtype, &specs) ? ox_st_file_bytes(specs.specs, specs.count) : UINT64_MAX;
    close_specs(&specs);
    return bytes;
}
