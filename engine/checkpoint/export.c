/* Exports weights alone as a Hugging Face folder, from a model folder or a checkpoint, of which it uses the exact
 * masters; or the mean of several. */
#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/planes.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { BUFFER_ELEMS = 1 << 18 };

struct export_source {
    struct ox_hf_folder *folder;
    struct ox_st_file *optim; /* with masters, or NULL */
};

struct export_job {
    const struct export_source *sources; /* one, or several of which the mean is written */
    uint32_t source_count;
    const struct ox_hf_folder *folder; /* of the last source */
    double *sums; /* BUFFER_ELEMS, with several */
    struct ox_hf_writer *writer;
    enum ox_dtype dtype;
    float *values; /* BUFFER_ELEMS */
    const char *adapter; /* the folder of adapters that are merged, or NULL */
    const char *source;  /* the folder with the files beside the weights */
    uint64_t shard_bytes_max;
};

static enum ox_status read_source(const struct export_source *source, uint32_t tensor_idx, uint64_t first,
                                  uint64_t count, float *values) {
    const struct ox_hf_folder *const folder = source->folder;
    const struct ox_st_file *const optim = source->optim;
    const struct ox_tensor *const tensors = ox_hf_model(folder)->tensors, *tensor = &tensors[tensor_idx];
    if (optim == NULL) {
        return ox_hf_read_finite(folder, tensor_idx, first, count, values);
    }
    tensor = tensor->shares_idx == OX_NO_TENSOR ? tensor : &tensors[tensor->shares_idx];
    const struct ox_st_entry *const entry = ox_optim_find(optim, tensor, OX_PLANE_MASTER);
    if (entry == NULL && ox_optim_find(optim, tensor, OX_PLANE_M) == NULL &&
        ox_hf_dtype(folder, tensor_idx) != OX_DTYPE_F32) { /* frozen, of numbers of 16 bits */
        return ox_hf_read_finite(folder, tensor_idx, first, count, values);
    }
    if (entry == NULL || entry->dtype != OX_DTYPE_F32 || entry->count != tensor->count) {
        return ox_fail(OX_E_CORRUPT,
                       "%s: the exact values of tensor \"%s\" are missing; export with --save-dtype "
                       "bf16 or use another checkpoint",
                       ox_st_path(optim), tensor->name);
    }
    const enum ox_status status = ox_st_read_f32(optim, entry, first, count, values);
    return status == OX_OK ? ox_check_finite(ox_st_path(optim), entry->name, first, count, values) : status;
}

/* Reads values into job->values: those of the source, or the mean of those of all. */
static enum ox_status read_part(const struct export_job *job, uint32_t tensor_idx, uint64_t first, uint64_t count) {
    enum ox_status status = OX_OK;
    for (uint32_t k = 0; k < job->source_count && status == OX_OK; k++) {
        status = read_source(&job->sources[k], tensor_idx, first, count, job->values);
        for (uint64_t i = 0; i < count && status == OX_OK && job->source_count > 1; i++) {
            job->sums[i] = (k > 0 ? job->sums[i] : 0) + (double)job->values[i];
        }
    }
    for (uint64_t i = 0; i < count && status == OX_OK && job->source_count > 1; i++) {
        job->values[i] = (float)(job->sums[i] / job->source_count);
    }
    return status;
}

enum ox_status ox_to_halves(const char *tensor, const float *weights, uint64_t count, uint16_t *out) {
    for (uint64_t i = 0; i < count; i++) { /* `out` may be the bytes of `weights` */
        const uint16_t half = ox_f16_from_f32(weights[i]);
        if ((half & 0x7fffu) == 0x7c00u) {
            return ox_fail(OX_E_CONFIG, "tensor \"%s\": a weight is %g, but fp16 ends at 65504; use --save-dtype bf16 "
                           "or fp32", tensor, (double)weights[i]);
        }
        memcpy(out + i, &half, sizeof half);
    }
    return OX_OK;
}

/* Converts values to the dtype of the export, in place: value i is never written past its own bytes. It rounds the
 * masters as PyTorch does, so the bits do not depend on the dtype in which the checkpoint was saved. */
static enum ox_status convert(const struct export_job *job, uint32_t tensor_idx, uint64_t count) {
    const struct ox_tensor *const tensor = &ox_hf_model(job->folder)->tensors[tensor_idx];
    const enum ox_dtype dtype = ox_hf_file_dtype(tensor, job->dtype);
    if (tensor->limbs) {
        ox_hf_join_limbs(job->values, count, job->values);
    }
    if (dtype == OX_DTYPE_F32) {
        return OX_OK;
    }
    if (dtype == OX_DTYPE_F16) {
        return ox_to_halves(tensor->name, job->values, count, (uint16_t *)job->values);
    }
    unsigned char *const out = (unsigned char *)job->values;
    for (uint64_t i = 0; i < count; i++) {
        const uint16_t rounded = ox_bf16_from_f32(job->values[i]);
        memcpy(out + i * sizeof rounded, &rounded, sizeof rounded);
    }
    return OX_OK;
}

static enum ox_status write_tensors(const struct export_job *job) {
    const struct ox_model *const model = ox_hf_model(job->folder);
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        for (uint64_t first = 0; first < model->tensors[i].count && status == OX_OK; first += BUFFER_ELEMS) {
            const uint64_t count = ox_min_u64(BUFFER_ELEMS, model->tensors[i].count - first);
            status = read_part(job, i, first, count);
            OX_THEN(status, convert(job, i, count));
            OX_THEN(status, ox_hf_write(job->writer, i, first, count, job->values));
        }
    }
    return status;
}

/* Whether the source is a checkpoint whose weights are rounded, so that it has masters. */
static bool has_rounded(const char *source) {
    struct ox_manifest manifest;
    if (ox_manifest_read(source, &manifest) != OX_OK) {
        return false; /* another program's folder: ox_hf_open has refused a damaged checkpoint */
    }
    const bool rounded = manifest.weights_dtype != OX_DTYPE_F32;
    ox_manifest_close(&manifest);
    return rounded;
}

/* Opens the optimizer file of a checkpoint if it has masters, without which rounded weights can only stay rounded. */
static enum ox_status open_masters(const char *source, const struct ox_model *model, enum ox_dtype dtype,
                                   struct ox_st_file **out) {
    char path[OX_PATH_BYTES];
    enum ox_status status = ox_path_join(source, OX_OPTIM_FILE, path);
    if (status == OX_OK && ox_path_is_file(path)) {
        status = ox_st_open(path, out);
    }
    bool any = false;
    for (uint32_t i = 0; *out != NULL && i < model->tensor_count && !any; i++) {
        any = ox_optim_find(*out, &model->tensors[i], OX_PLANE_MASTER) != NULL; /* some may need none */
    }
    if (status != OX_OK || any) {
        return status;
    }
    ox_st_close(out);
    return dtype == OX_DTYPE_F32 && has_rounded(source)
               ? ox_fail(OX_E_CORRUPT, "%s: the exact values of the weights are missing; export with --save-dtype bf16 "
                         "or use another checkpoint", path)
               : OX_OK;
}

/* Makes the temporary folder that is later renamed to `path`. If it exists, another export may be writing it, so that
 * is an error. */
static enum ox_status make_tmp(const char *path, char *tmp) {
    struct stat info;
    size_t bytes = strlen(path);
    while (bytes > 1 && path[bytes - 1] == '/') {
        bytes--;
    }
    if (bytes == 0 || bytes + 5 > OX_PATH_BYTES) {
        return ox_fail(OX_E_CONFIG, "a path of %zu bytes cannot be used; give one of 1 to %d", bytes,
                       OX_PATH_BYTES - 5);
    }
    memcpy(tmp, path, bytes);
    tmp[bytes] = '\0';
    if (lstat(tmp, &info) == 0) {
        return ox_fail(OX_E_CONFIG, "%s: exists already; name a folder that does not", tmp);
    }
    memcpy(tmp + bytes, ".tmp", 5);
    if (lstat(tmp, &info) == 0) {
        return ox_fail(OX_E_CONFIG,
                       "%s: a stopped export has left it, or another export is writing it; remove it if none is "
                       "running",
                       tmp);
    }
    size_t existing = 0;
    const enum ox_status status = ox_folder_make_undoable(tmp, &existing);
    if (status != OX_OK) { /* made, but that may not be durable */
        ox_folder_unmake(tmp, existing);
    }
    return status;
}

/* The folder with the files beside the weights: those that an adapter was trained with, if its folder has them. */
static const char *beside(const struct export_job *job, const char *source) {
    if (job->adapter != NULL && ox_folder_has(job->adapter, "tokenizer.json")) {
        return job->adapter;
    }
    return ox_folder_has(source, "tokenizer.json") || !ox_hf_is_adapter(source) ? source
                                                                                : ox_hf_base_path(job->folder);
}

static enum ox_status fill_folder(void *context, const char *tmp) {
    struct export_job *const job = context;
    const char *const source = job->source;
    const struct ox_model *const model = ox_hf_model(job->folder);
    enum ox_status status = ox_checkpoint_check_space(tmp, ox_hf_bytes(model, job->dtype));
    if (status == OX_OK) {
        status =
            ox_hf_create(tmp, model, ox_hf_config(job->folder), job->dtype, job->shard_bytes_max, &job->writer);
    }
    OX_THEN(status, write_tensors(job));
    for (uint32_t k = 0; k < job->source_count && status == OX_OK; k++) {
        status = ox_hf_verify(job->sources[k].folder);
        OX_THEN(status, job->sources[k].optim != NULL ? ox_st_verify(job->sources[k].optim) : OX_OK);
    }
    const char *const companions = beside(job, source);
    OX_THEN(status, ox_hf_copy_companions(companions, tmp));
    OX_THEN(status, ox_hf_copy_templates(companions, tmp));
    OX_THEN(status, ox_hf_finish(&job->writer));
    ox_hf_discard(&job->writer);
    return status;
}

static bool is_folder(const char *path, const struct stat *folder) {
    struct stat info;
    return lstat(path, &info) == 0 && info.st_dev == folder->st_dev && info.st_ino == folder->st_ino;
}

enum ox_status ox_folder_write(const char *path, ox_folder_fill *fill, void *context) {
    char tmp[OX_PATH_BYTES], text[OX_ERROR_TEXT_BYTES];
    struct stat made = {0};
    enum ox_status status = make_tmp(path, tmp);
    if (status != OX_OK) {
        return status;
    }
    (void)lstat(tmp, &made); /* if it fails, nothing is taken for the folder */
    status = fill(context, tmp);
    OX_THEN(status, ox_folder_commit(tmp, path));
    if (status == OX_OK) {
        return OX_OK;
    }
    memcpy(text, ox_error_text(), sizeof text);
    const char *const left = is_folder(tmp, &made) ? tmp : is_folder(path, &made) ? path : NULL;
    return left == NULL || ox_folder_remove(left) == OX_OK
               ? ox_fail(status, "%s", text) : ox_fail(status, "%.700s; %.200s could not be removed", text, left);
}

enum ox_status ox_export_folder(const char *source, const char *adapter, bool averages, const char *path,
                                enum ox_dtype dtype, uint64_t shard_bytes_max) {
    OX_ASSERT(dtype < OX_DTYPE_OTHER);
    struct export_source one = {.folder = NULL};
    struct export_job job = {.sources = &one, .source_count = 1, .dtype = dtype, .adapter = adapter, .source = source,
                             .shard_bytes_max = shard_bytes_max};
    enum ox_status status = ox_hf_open(source, true, &one.folder);
    if (status == OX_OK && adapter != NULL) {
        status = ox_hf_load_adapter(one.folder, adapter);
    }
    if (status == OX_OK && !ox_hf_has_weights(one.folder)) {
        status = ox_fail(OX_E_CONFIG, "%s: holds no weights; give a model folder or a checkpoint", source);
    }
    OX_THEN(status, averages ? ox_hf_use_averages(one.folder) : OX_OK);
    if (status == OX_OK && ox_hf_model(one.folder)->config.lora.r > 0) {
        status = ox_hf_merge(one.folder); /* a checkpoint of adapters has masters of these alone */
    } else if (!averages) {
        OX_THEN(status, ox_hf_share_layers(one.folder, ox_hf_saved_sharing(source), false));
        OX_THEN(status, open_masters(source, ox_hf_model(one.folder), dtype, &one.optim));
    }
    if (status == OX_OK) {
        job.folder = one.folder;
        job.values = malloc(BUFFER_ELEMS * sizeof *job.values);
        status = job.values != NULL ? ox_folder_write(path, fill_folder, &job)
                                    : ox_fail(OX_E_NOMEM, "%s: no memory to export it", source);
    }
    free(job.values);
    ox_st_close(&one.optim);
    ox_hf_close(&one.folder);
    return status;
}

/* ---- the mean of several ------------------------------------------------------------------------------- */

/* Whether two folders hold the same tensors. */
static bool are_alike(const struct ox_model *a, const struct ox_model *b) {
    bool alike = strcmp(a->config.family, b->config.family) == 0 && a->tensor_count == b->tensor_count;
    for (uint32_t i = 0; alike && i < a->tensor_count; i++) {
        alike = strcmp(a->tensors[i].name, b->tensors[i].name) == 0 && a->tensors[i].rank == b->tensors[i].rank &&
                memcmp(a->tensors[i].shape, b->tensors[i].shape, sizeof a->tensors[i].shape) == 0;
    }
    return alike;
}

static enum ox_status open_source(const char *path, const char *first, const struct ox_model *like, enum ox_dtype dtype,
                                  struct export_source *out) {
    if (ox_hf_is_adapter(path)) {
        return ox_fail(OX_E_CONFIG, "%s: is an adapter, and the mean of two products is not the product of two means; "
                       "merge each with its model (`offload merge`) and average those", path);
    }
    OX_TRY(ox_hf_open(path, true, &out->folder));
    if (!ox_hf_has_weights(out->folder)) {
        return ox_fail(OX_E_CONFIG, "%s: holds no weights; give a model folder or a checkpoint", path);
    }
    if (like != NULL && !are_alike(like, ox_hf_model(out->folder))) {
        return ox_fail(OX_E_CONFIG, "%.400s: has other tensors than %.400s; average checkpoints of one model", path,
                       first);
    }
    OX_TRY(ox_hf_share_layers(out->folder, ox_hf_saved_sharing(path), false));
    return open_masters(path, ox_hf_model(out->folder), dtype, &out->optim);
}

enum ox_status ox_export_mean(const char *const *sources, uint32_t count, const char *path, enum ox_dtype dtype,
                              uint64_t shard_bytes_max) {
    OX_ASSERT(dtype < OX_DTYPE_OTHER && count > 0);
    struct export_source *const all = calloc(count, sizeof *all);
    struct export_job job = {.dtype = dtype, .sources = all, .source_count = count, .source = sources[count - 1],
                             .shard_bytes_max = shard_bytes_max,
                             .values = malloc(BUFFER_ELEMS * sizeof *job.values),
                             .sums = malloc(BUFFER_ELEMS * sizeof *job.sums)};
    const bool has_memory = all != NULL && job.values != NULL && job.sums != NULL;
    enum ox_status status = has_memory ? OX_OK : ox_fail(OX_E_NOMEM, "%s: no memory to average", sources[0]);
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        status = open_source(sources[i], sources[0], i > 0 ? ox_hf_model(all[0].folder) : NULL, dtype, &all[i]);
    }
    if (status == OX_OK) {
        job.folder = all[count - 1].folder;
        status = ox_folder_write(path, fill_folder, &job);
    }
    for (uint32_t i = 0; all != NULL && i < count; i++) {
        ox_st_close(&all[i].optim);
        ox_hf_close(&all[i].folder);
    }
    free(job.values);
    free(job.sums);
    free(all);
    return status;
}

enum ox_status ox_export_dtype(const char *source, enum ox_dtype *dtype) {
    struct ox_hf_folder *folder = NULL;
    struct ox_manifest manifest;
    char base[OX_PATH_BYTES]; /* of an adapter the format of its model's weights, of which nothing is read for it */
    const bool is_adapter = ox_hf_is_adapter(source);
    *dtype = OX_DTYPE_F32;
    OX_TRY(is_adapter ? ox_hf_adapter_base(source, base) : OX_OK);
    OX_TRY(ox_hf_open(is_adapter ? base : source, true, &folder));
    *dtype = ox_hf_has_weights(folder) ? ox_hf_dtype(folder, 0) : OX_DTYPE_F32;
    for (uint32_t i = 0; i < ox_hf_model(folder)->tensor_count && ox_hf_has_weights(folder); i++) {
        const bool kept = ox_hf_model(folder)->tensors[i].fp32; /* F32 in any folder */
        *dtype = kept || ox_hf_dtype(folder, i) == *dtype ? *dtype : OX_DTYPE_F32;
    }
    ox_hf_close(&folder);
    if (*dtype == OX_DTYPE_F32 && ox_manifest_read(source, &manifest) == OX_OK) {
        *dtype = manifest.model_dtype;
        ox_manifest_close(&manifest);
    }
    return OX_OK;
}
