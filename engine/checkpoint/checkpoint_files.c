/* Writes the files of one checkpoint: creates them with their full size, writes chunks in any order, and reads all
 * back. To check that the drive has what was written, it adds up the hashes of the written pieces, for each plane of
 * each tensor, and compares the sums with those of the same pieces read back. */
#include "base/assert.h"
#include "base/bytes.h"
#include "base/log.h"
#include "engine/checkpoint/checkpoint_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

struct ox_checkpoint_files {
    struct ox_team *team;
    const struct ox_model *model;
    char folder[OX_PATH_BYTES];
    enum ox_dtype dtype;
    enum ox_dtype model_dtype; /* as in struct ox_manifest */
    void *converted;           /* of a chunk: halves, with weights in F16, or sums of limbs */
    struct ox_last_eval eval;
    struct ox_plane_list planes; /* what the optimizer file has for each tensor */
    struct ox_hf_writer *hf;
    struct ox_st_writer *optim;
    uint32_t *optim_first; /* by saved tensor, and one more: index of its first plane in the optimizer file */
    uint64_t *sums;        /* by tensor, first of its weights, then of each plane: hashes of pieces, in any order */
    const struct ox_shard_table *table; /* pieces end where the unit's chunks do */
    uint32_t *chunk_first; /* by unit: index of its first chunk among all chunks */
    bool *has;             /* by chunk: whether it is written, or is for another process to write */
    uint64_t missing;      /* number of the other chunks */
};

/* ---- the parts of a chunk ---------------------------------------------------------------------- */

bool ox_tensor_part_next(const struct ox_model *model, uint32_t unit_idx, const struct ox_chunk_view *view,
                   struct ox_tensor_part *piece) {
    const struct ox_unit *const unit = &model->units[unit_idx];
    const uint64_t end = view->first + view->count;
    const uint64_t begin = piece->count == 0 ? view->first : view->first + piece->at + piece->count;
    uint32_t idx = piece->count == 0 ? unit->tensor_first : piece->tensor_idx;
    for (; idx < unit->tensor_first + unit->tensor_count; idx++) {
        const struct ox_tensor *const tensor = &model->tensors[idx];
        const uint64_t from = ox_max_u64(tensor->offset, begin);
        const uint64_t to = ox_min_u64(tensor->offset + tensor->count, end);
        if (tensor->unit_idx == unit_idx && from < to) {
            *piece = (struct ox_tensor_part){.tensor_idx = idx,
                                       .first = from - tensor->offset,
                                       .count = ox_tensor_together(tensor, from - tensor->offset, to - from),
                                       .at = from - view->first};
            return true;
        }
    }
    return false;
}

void ox_optim_name(const struct ox_tensor *tensor, enum ox_plane plane, char *name) {
    static const char *const suffixes[OX_PLANE_COUNT] = {
        [OX_PLANE_MASTER] = "master", [OX_PLANE_M] = "exp_avg", [OX_PLANE_V] = "exp_avg_sq",
        [OX_PLANE_AVERAGE] = "ema"};
    snprintf(name, OX_OPTIM_NAME_BYTES, "%s.%s", tensor->name, suffixes[plane]);
}

struct ox_plane_list ox_optim_planes(struct ox_state_format format, enum ox_dtype weights_dtype) {
    struct ox_plane_list list = {.planes = {OX_PLANE_M}, .count = 1, .weights_dtype = weights_dtype};
    for (enum ox_plane plane = OX_PLANE_V; plane <= OX_PLANE_AVERAGE; plane++) {
        if (ox_plane_exists(format, plane)) {
            list.planes[list.count++] = plane;
        }
    }
    if (weights_dtype != OX_DTYPE_F32) {
        list.planes[list.count++] = OX_PLANE_MASTER;
    }
    return list;
}

/* ---- hashes of the pieces ------------------------------------------------------------------------ */

static uint32_t planes_of(const struct ox_checkpoint_files *files) {
    return 1 + files->planes.count;
}

static uint64_t *sum_at(const struct ox_checkpoint_files *files, uint32_t tensor_idx, uint32_t nth) {
    return &files->sums[(size_t)tensor_idx * planes_of(files) + nth];
}

static uint32_t sum_count(const struct ox_checkpoint_files *files) {
    return files->model->tensor_count * planes_of(files);
}

/* To that of the tensor in the file, also from a part of it. */
static void add_sum(struct ox_checkpoint_files *files, uint32_t nth, const struct ox_tensor_part *piece,
                    const void *data, size_t bytes) {
    const struct ox_tensor *const tensor = &files->model->tensors[piece->tensor_idx];
    *sum_at(files, files->model->saved[tensor->saved_idx], nth) +=
        ox_hash64(data, bytes, ox_tensor_in_files(tensor, piece->first));
}

/* ---- creating the files ---------------------------------------------------------------------------- */

/* Whether the optimizer file has a plane of a tensor. */
static bool has_plane(const struct ox_model *model, uint32_t tensor_idx, enum ox_plane plane,
                      enum ox_dtype weights_dtype) {
    const struct ox_tensor *const tensor = &model->tensors[tensor_idx];
    static const enum ox_dtype same[] = {
        [OX_REAL_F32] = OX_DTYPE_F32, [OX_REAL_BF16] = OX_DTYPE_BF16, [OX_REAL_F16] = OX_DTYPE_F16};
    const enum ox_unit_format format = model->units[tensor->unit_idx].format;
    const bool exact = format != OX_FORMAT_MASTER && weights_dtype == same[ox_weight_format_of(format)->exact];
    const bool is_own = tensor->shares_idx == OX_NO_TENSOR; /* else another layer's tensor has the planes of both */
    const bool lacks_v = plane == OX_PLANE_V && model->units[tensor->unit_idx].one_moment;
    return tensor->saved_idx != OX_NO_TENSOR && is_own &&
           (plane == OX_PLANE_MASTER ? !exact : tensor->trained && !lacks_v);
}

/* How many of the first `count` planes of the list the optimizer file has of a tensor. */
static uint32_t planes_before(const struct ox_model *model, const struct ox_plane_list *planes, uint32_t tensor_idx,
                              uint32_t count) {
    uint32_t found = 0;
    for (uint32_t k = 0; k < count; k++) {
        found += has_plane(model, tensor_idx, planes->planes[k], planes->weights_dtype);
    }
    return found;
}

/* The tensors of the optimizer file. */
struct optim_specs {
    struct ox_st_spec *specs;
    char *names;
    uint32_t count;
};

static void optim_specs_close(struct optim_specs *specs) {
    free(specs->specs);
    free(specs->names);
    memset(specs, 0, sizeof *specs);
}

static enum ox_status optim_specs_open(const struct ox_model *model, const struct ox_plane_list *planes,
                                       struct optim_specs *out) {
    for (uint32_t i = 0; i < model->saved_count; i++) {
        out->count += planes_before(model, planes, model->saved[i], planes->count);
    }
    out->specs = calloc(out->count + (size_t)1, sizeof *out->specs);
    out->names = calloc(out->count + (size_t)1, OX_OPTIM_NAME_BYTES);
    if (out->specs == NULL || out->names == NULL) {
        optim_specs_close(out);
        return ox_fail(OX_E_NOMEM, "checkpoint: no memory to describe the optimizer's state");
    }
    for (uint32_t i = 0, at = 0; i < model->saved_count * planes->count; i++) {
        const uint32_t tensor_idx = model->saved[i / planes->count];
        const struct ox_tensor *const tensor = &model->tensors[tensor_idx];
        if (!has_plane(model, tensor_idx, planes->planes[i % planes->count], planes->weights_dtype)) {
            continue;
        }
        char *const name = out->names + (size_t)at * OX_OPTIM_NAME_BYTES;
        ox_optim_name(tensor, planes->planes[i % planes->count], name);
        out->specs[at] = (struct ox_st_spec){.name = name, .dtype = OX_DTYPE_F32, .rank = tensor->rank};
        memcpy(out->specs[at++].shape, tensor->whole, tensor->rank * sizeof *tensor->whole);
    }
    return OX_OK;
}

static uint64_t files_bytes(const struct ox_model *model, enum ox_dtype dtype, const struct optim_specs *specs) {
    uint64_t bytes = 0;
    return ox_add_u64(ox_hf_bytes(model, dtype), ox_st_file_bytes(specs->specs, specs->count), &bytes) ? bytes
                                                                                                   : UINT64_MAX;
}

/* The planes that are saved; none with weights alone, and then there is no optimizer file. */
static struct ox_plane_list saved_planes(struct ox_state_format format, enum ox_dtype weights_dtype, bool alone) {
    return alone ? (struct ox_plane_list){.weights_dtype = weights_dtype} : ox_optim_planes(format, weights_dtype);
}

enum ox_status ox_checkpoint_bytes(const struct ox_model *model, struct ox_state_format format,
                                   enum ox_dtype weights_dtype, bool alone, uint64_t *bytes) {
    const struct ox_plane_list planes = saved_planes(format, weights_dtype, alone);
    struct optim_specs specs = {0};
    const enum ox_status status = optim_specs_open(model, &planes, &specs);
    *bytes = status == OX_OK ? files_bytes(model, weights_dtype, &specs) : 0;
    optim_specs_close(&specs);
    return status;
}

/* Copies the companion files of the source model. The source may be only a config.json, or deleted since the run began;
 * neither may fail a checkpoint. */
static enum ox_status copy_companions(const char *source, const char *folder) {
    char path[OX_PATH_BYTES], base[OX_PATH_BYTES];
    if (source == NULL || source[0] == '\0') {
        return OX_OK;
    }
    OX_TRY(ox_path_join(source, "", path));
    if (ox_path_is_file(source)) {
        path[strlen(source)] = '\0';
        char *const slash = strrchr(path, '/');
        memcpy(slash != NULL ? slash + 1 : path, slash != NULL ? "" : ".", slash != NULL ? 1 : 2);
    }
    if (!ox_path_is_folder(path)) {
        ox_log(OX_LOG_WARN, "%s: no longer exists, so the checkpoint has no tokenizer files", source);
        return OX_OK;
    }
    if (ox_hf_tokenizer_folder(path, base) == OX_OK && strcmp(base, path) != 0) { /* an adapter's model */
        OX_TRY(ox_hf_copy_companions(base, folder));
    }
    return ox_hf_copy_companions(path, folder);
}

/* Copies the tokenizer that is a file of its own. It may be deleted since the run began. */
static enum ox_status copy_tokenizer(const char *file, const char *folder) {
    char path[OX_PATH_BYTES];
    if (file == NULL) {
        return OX_OK;
    }
    if (!ox_path_is_file(file)) {
        ox_log(OX_LOG_WARN, "%s: no longer exists, so the checkpoint lacks this tokenizer", file);
        return OX_OK;
    }
    const enum ox_status status = ox_path_join(folder, "tokenizer.json", path);
    return status == OX_OK ? ox_file_copy(file, path) : status;
}

static enum ox_status create(struct ox_checkpoint_files *files, const struct ox_checkpoint_save *save) {
    struct optim_specs specs = {0};
    char path[OX_PATH_BYTES];
    enum ox_status status = optim_specs_open(files->model, &files->planes, &specs);
    OX_THEN(status, ox_checkpoint_check_space(save->output_dir, files_bytes(files->model, files->dtype, &specs)));
    OX_THEN(status, ox_folder_make(files->folder));
    OX_THEN(status, ox_hf_create(files->folder, files->model, save->original_config, files->dtype,
                                 save->shard_bytes_max, &files->hf));
    if (status == OX_OK) {
        ox_hf_set_base(files->hf, save->base_model, save->base_hash);
    }
    OX_THEN(status, ox_path_join(files->folder, OX_OPTIM_FILE, path));
    if (files->planes.count > 0) {
        OX_THEN(status, ox_st_create(path, specs.specs, specs.count, &files->optim));
    }
    if (status == OX_OK && files->team != NULL) {
        ox_hf_share(files->hf);
        if (files->optim != NULL) {
            ox_st_share(files->optim);
        }
    }
    OX_THEN(status, copy_companions(save->source_model, files->folder));
    OX_THEN(status, copy_tokenizer(save->tokenizer_file, files->folder));
    if (status == OX_OK && save->tokens != NULL) {
        status = ox_hf_write_tokens(files->folder, save->source_config, save->tokens);
    }
    optim_specs_close(&specs);
    return status;
}

/* Opens the files that the first process has created. */
static enum ox_status join(struct ox_checkpoint_files *files, const struct ox_checkpoint_save *save) {
    struct optim_specs specs = {0};
    char path[OX_PATH_BYTES];
    enum ox_status status = optim_specs_open(files->model, &files->planes, &specs);
    OX_THEN(status, ox_hf_join(files->folder, files->model, files->dtype, save->shard_bytes_max, &files->hf));
    OX_THEN(status, ox_path_join(files->folder, OX_OPTIM_FILE, path));
    if (files->planes.count > 0) {
        OX_THEN(status, ox_st_join(path, specs.specs, specs.count, &files->optim));
    }
    optim_specs_close(&specs);
    return status == OX_E_CONFIG ? ox_fail_in(status, "a checkpoint is written to a folder that all processes reach")
                                 : status;
}

/* Planes lie tensor by tensor in the optimizer file. */
static enum ox_status number_planes(struct ox_checkpoint_files *files) {
    const struct ox_model *const model = files->model;
    files->optim_first = calloc(model->saved_count + (size_t)1, sizeof *files->optim_first);
    if (files->optim_first == NULL) {
        return ox_fail(OX_E_NOMEM, "checkpoint: no memory to number the optimizer's planes");
    }
    for (uint32_t i = 0; i < model->saved_count; i++) {
        uint32_t *const first = &files->optim_first[i];
        first[1] = first[0] + planes_before(model, &files->planes, model->saved[i], files->planes.count);
    }
    return OX_OK;
}

/* Whether a unit has tensors that are saved. */
static bool is_saved(const struct ox_model *model, uint32_t unit_idx) {
    bool is = false;
    for (const struct ox_tensor *at = NULL; (at = ox_unit_next_tensor(model, &model->units[unit_idx], at)) != NULL;) {
        is |= at->saved_idx != OX_NO_TENSOR;
    }
    return is;
}

static enum ox_status number_chunks(struct ox_checkpoint_files *files, const struct ox_engine *engine) {
    const uint32_t unit_count = files->model->unit_count;
    uint64_t largest = 0;
    files->chunk_first = calloc(unit_count + (size_t)1, sizeof *files->chunk_first);
    for (uint32_t i = 0; files->chunk_first != NULL && i < unit_count; i++) {
        files->chunk_first[i + 1] = files->chunk_first[i] + ox_engine_chunk_count(engine, i);
    }
    files->has = files->chunk_first != NULL ? calloc(files->chunk_first[unit_count] + (size_t)1, sizeof *files->has)
                                            : NULL;
    files->sums = calloc(sum_count(files), sizeof *files->sums);
    files->table = &ox_engine_plan_of(engine)->whole;
    for (uint32_t i = 0; i < unit_count; i++) {
        const struct ox_shard *const shard = &files->table->shards[i];
        largest = ox_max_u64(largest, ox_min_u64(shard->chunk_elems, shard->elem_count));
    }
    files->converted = malloc(largest * sizeof(uint16_t));
    if (files->has == NULL || files->sums == NULL || files->converted == NULL) {
        return ox_fail(OX_E_NOMEM, "checkpoint: no memory to count its chunks");
    }
    for (uint32_t unit_idx = 0; unit_idx < unit_count; unit_idx++) {
        const uint32_t first = files->chunk_first[unit_idx];
        const bool saved = is_saved(files->model, unit_idx);
        for (uint32_t i = first; i < files->chunk_first[unit_idx + 1]; i++) {
            files->has[i] = !saved || !ox_engine_owns_chunk(engine, unit_idx, i - first);
            files->missing += !files->has[i];
        }
    }
    return OX_OK;
}

/* ---- writing the planes -------------------------------------------------------------------------- */

static enum ox_status write_weights(struct ox_checkpoint_files *files, const struct ox_chunk_view *view,
                                    const struct ox_tensor_part *piece) {
    const struct ox_tensor *const tensor = &files->model->tensors[piece->tensor_idx];
    const enum ox_dtype dtype = ox_hf_file_dtype(tensor, files->dtype);
    const void *weights = view->values + piece->at;
    if (tensor->limbs) {
        ox_hf_join_limbs(weights, piece->count, files->converted);
        weights = files->converted;
    } else if (dtype == OX_DTYPE_BF16 && !ox_weight_format_of(view->weights)->hi_is_bf16) {
        for (uint64_t i = 0; i < piece->count; i++) {
            ((uint16_t *)files->converted)[i] = ox_plane_hi(view->values[piece->at + i]);
        }
        weights = files->converted;
    } else if (dtype == OX_DTYPE_BF16) {
        weights = view->hi + piece->at;
    } else if (dtype == OX_DTYPE_F16) {
        OX_TRY(ox_to_halves(tensor->name, weights, piece->count, files->converted));
        weights = files->converted;
    }
    enum ox_status status = OX_OK;
    for (uint32_t i = piece->tensor_idx; i != OX_NO_TENSOR && status == OX_OK;
         i = files->model->tensors[i].next_sharing) { /* layers that share weights have each their own in files */
        struct ox_tensor_part of = *piece;
        of.tensor_idx = i;
        add_sum(files, 0, &of, weights, of.count / ox_tensor_limbs(tensor) * ox_dtype_bytes(dtype));
        status = ox_hf_write(files->hf, i, of.first, of.count, weights);
    }
    return status;
}

/* Writes plane `nth` of the list. */
static enum ox_status write_plane(struct ox_checkpoint_files *files, uint32_t nth, const struct ox_chunk_view *view,
                                  const struct ox_tensor_part *piece) {
    const uint64_t bytes = piece->count * sizeof *view->values;
    add_sum(files, nth + 1, piece, view->values + piece->at, bytes);
    const uint32_t idx = files->optim_first[files->model->tensors[piece->tensor_idx].saved_idx] +
                         planes_before(files->model, &files->planes, piece->tensor_idx, nth);
    const uint64_t first = ox_tensor_in_files(&files->model->tensors[piece->tensor_idx], piece->first);
    return ox_st_write(files->optim, idx, first * sizeof *view->values, view->values + piece->at, bytes);
}

/* ---- reading back --------------------------------------------------------------------------------- */

static const char suffix[] = ".safetensors";

/* The place of a tensor's plane in the file that is read. */
struct span {
    uint64_t offset, elem_bytes;
    uint32_t tensor_idx, nth;
    uint32_t limbs; /* elements in memory for one of the file */
};

/* The state of reading a file back. Pieces, which are those that were written, fill a span without gaps, whichever
 * parts they are of; the next one begins at byte `begin` and has `left` bytes to come. */
struct reading {
    const struct ox_checkpoint_files *files;
    struct span *spans; /* in the order of the file */
    uint32_t span_count, span_idx;
    uint32_t seen_count; /* spans seen, in all files */
    uint64_t at, begin, left;
    uint64_t first, count; /* elements of the current piece, within the tensor in the file */
    uint64_t sum;          /* sum of the hashes of the span's pieces so far */
    const struct span *bad;
    XXH3_state_t state;
};

static void plane_name(const struct ox_checkpoint_files *files, uint32_t tensor_idx, uint32_t nth, char *name) {
    const struct ox_tensor *const tensor = &files->model->tensors[tensor_idx];
    if (nth == 0) {
        snprintf(name, OX_OPTIM_NAME_BYTES, "%s", tensor->name);
    } else {
        ox_optim_name(tensor, files->planes.planes[nth - 1], name);
    }
}

/* The tensor whose weights or plane an entry's name is; negative: none. */
static int64_t tensor_of(const struct ox_model *model, const char *name) {
    char stem[OX_OPTIM_NAME_BYTES];
    const char *const dot = strrchr(name, '.');
    const int64_t idx = ox_model_find_tensor(model, name);
    if (idx >= 0 || dot == NULL || dot - name >= (ptrdiff_t)sizeof stem) {
        return idx;
    }
    snprintf(stem, sizeof stem, "%.*s", (int)(dot - name), name);
    return ox_model_find_tensor(model, stem);
}

/* Finds the span of an entry; of parts it names the first. */
static bool find_span(const struct ox_checkpoint_files *files, const struct ox_st_entry *entry, struct span *out) {
    const int64_t weights = files->model->config.lora.r > 0 ? ox_hf_find_saved(files->model, entry->name) : -1;
    const char *const found = weights >= 0 ? files->model->tensors[weights].name : entry->name;
    const int64_t idx = weights >= 0 ? weights : tensor_of(files->model, found);
    const bool saved = idx >= 0 && files->model->tensors[idx].saved_idx != OX_NO_TENSOR;
    for (uint32_t nth = 0; saved && nth < planes_of(files); nth++) {
        const struct ox_tensor *const tensor = &files->model->tensors[idx];
        const uint32_t limbs = nth == 0 ? ox_tensor_limbs(tensor) : 1;
        char name[OX_OPTIM_NAME_BYTES];
        plane_name(files, (uint32_t)idx, nth, name);
        if (strcmp(found, name) == 0 && entry->count * limbs == ox_tensor_whole_count(tensor)) {
            *out = (struct span){.offset = entry->offset, .elem_bytes = ox_dtype_bytes(entry->dtype),
                                 .tensor_idx = (uint32_t)idx, .nth = nth, .limbs = limbs};
            return true;
        }
    }
    return false;
}

static int compare_spans(const void *a, const void *b) {
    const struct span *const left = a, *const right = b;
    return left->offset < right->offset ? -1 : left->offset > right->offset;
}

static enum ox_status list_spans(struct reading *reading, const struct ox_st_file *file) {
    reading->span_count = 0;
    reading->spans = calloc(ox_st_count(file) + (size_t)1, sizeof *reading->spans);
    if (reading->spans == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to read it back", ox_st_path(file));
    }
    for (uint32_t i = 0; i < ox_st_count(file); i++) {
        const struct ox_st_entry *const entry = ox_st_entry(file, i);
        if (!find_span(reading->files, entry, &reading->spans[reading->span_count++])) {
            return ox_fail(OX_E_CORRUPT, "%s: holds \"%.200s\", which was not written", ox_st_path(file), entry->name);
        }
    }
    qsort(reading->spans, reading->span_count, sizeof *reading->spans, compare_spans);
    return OX_OK;
}

static enum ox_status begin_file(void *context, const char *path, bool *known) {
    struct reading *const reading = context;
    const size_t bytes = strlen(path), suffix_bytes = strlen(suffix);
    struct ox_st_file *file = NULL;
    *known = bytes > suffix_bytes && strcmp(path + bytes - suffix_bytes, suffix) == 0 &&
             strstr(path, "/" OX_RESIDUALS_FILE) == NULL; /* which has no planes */
    if (!*known) {
        return OX_OK;
    }
    free(reading->spans);
    *reading = (struct reading){.files = reading->files, .seen_count = reading->seen_count};
    enum ox_status status = ox_st_open(path, &file);
    OX_THEN(status, list_spans(reading, file));
    ox_st_close(&file);
    return status;
}

/* Begins the next piece of the file; false after the last one. Pieces end where chunks of units end. */
static bool begin_piece(struct reading *reading) {
    if (reading->span_idx == reading->span_count) {
        return false;
    }
    const struct span *const span = &reading->spans[reading->span_idx];
    const struct ox_model *const model = reading->files->model;
    uint64_t idx = 0, left = 0;
    const uint32_t part_idx = ox_model_part_at(model, span->tensor_idx, reading->first, &idx, &left);
    OX_ASSERT(part_idx != OX_NO_TENSOR);
    const uint64_t chunk_elems = reading->files->table->shards[model->tensors[part_idx].unit_idx].chunk_elems;
    const uint64_t from = model->tensors[part_idx].offset + idx;
    reading->count = ox_min_u64(chunk_elems - from % chunk_elems, left);
    reading->begin = span->offset + reading->first / span->limbs * span->elem_bytes;
    reading->left = reading->count / span->limbs * span->elem_bytes;
    const XXH_errorcode begun = XXH3_64bits_reset_withSeed(&reading->state, reading->first);
    OX_ASSERT(begun == XXH_OK && reading->left > 0);
    return true;
}

static void end_piece(struct reading *reading) {
    const struct span *const span = &reading->spans[reading->span_idx];
    reading->sum += XXH3_64bits_digest(&reading->state);
    reading->first += reading->count;
    if (reading->first < ox_tensor_whole_count(&reading->files->model->tensors[span->tensor_idx])) {
        return;
    }
    if (reading->sum != *sum_at(reading->files, span->tensor_idx, span->nth) && reading->bad == NULL) {
        reading->bad = span;
    }
    reading->span_idx++;
    reading->seen_count++;
    reading->first = reading->sum = 0;
}

static void take_bytes(void *context, const unsigned char *data, size_t bytes) {
    struct reading *const reading = context;
    while (bytes > 0 && (reading->left > 0 || begin_piece(reading))) {
        const bool before = reading->at < reading->begin; /* in the header */
        const uint64_t wanted = before ? reading->begin - reading->at : reading->left;
        const size_t part = (size_t)ox_min_u64(wanted, bytes);
        if (!before) {
            const XXH_errorcode added = XXH3_64bits_update(&reading->state, data, part);
            OX_ASSERT(added == XXH_OK);
            reading->left -= part;
        }
        reading->at += part;
        data += part;
        bytes -= part;
        if (!before && reading->left == 0) {
            end_piece(reading);
        }
    }
}

static enum ox_status end_file(void *context, const char *path) {
    struct reading *const reading = context;
    char name[OX_OPTIM_NAME_BYTES];
    if (reading->bad == NULL) {
        return OX_OK;
    }
    plane_name(reading->files, reading->bad->tensor_idx, reading->bad->nth, name);
    return ox_fail(OX_E_CORRUPT, "%s: the drive returns other bytes of %s than were written; replace it or "
                   "use another", path, name);
}

/* Hashes all files for the manifest, and compares every tensor that is read back with what was written; a difference is
 * OX_E_CORRUPT. */
static enum ox_status collect(const struct ox_checkpoint_files *files, struct ox_manifest *manifest) {
    struct reading reading = {.files = files};
    const struct ox_readback read_back = {
        .begin = begin_file, .bytes = take_bytes, .end = end_file, .context = &reading};
    manifest->read_back = &read_back;
    enum ox_status status = ox_manifest_collect(files->folder, manifest);
    manifest->read_back = NULL;
    uint32_t expected = 0;
    for (uint32_t i = 0; i < files->model->saved_count; i++) {
        expected += 1 + planes_before(files->model, &files->planes, files->model->saved[i], files->planes.count);
    }
    if (status == OX_OK && reading.seen_count != expected) {
        status = ox_fail(OX_E_CORRUPT, "%s: %" PRIu32 " of %" PRIu32 " tensors could be read back", files->folder,
                         reading.seen_count, expected);
    }
    free(reading.spans);
    return status;
}

/* ---- public ---------------------------------------------------------------------------------------- */

enum ox_status ox_checkpoint_files_open(struct ox_engine *engine, const struct ox_checkpoint_save *save,
                                        const char *folder, struct ox_checkpoint_files **out) {
    struct ox_checkpoint_files *files = calloc(1, sizeof *files);
    *out = NULL;
    if (files == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to write it", folder);
    }
    files->team = ox_engine_config_of(engine)->team;
    files->model = ox_engine_config_of(engine)->model;
    files->dtype = save->weights_dtype;
    files->model_dtype = ox_hf_config_dtype(save->source_config);
    files->eval = save->eval;
    files->planes = saved_planes(ox_engine_config_of(engine)->state, save->weights_dtype, save->weights_alone);
    enum ox_status status = ox_path_join(folder, "", files->folder);
    OX_THEN(status, number_planes(files));
    OX_THEN(status, number_chunks(files, engine));
    OX_THEN(status, ox_team_leads(files->team) ? create(files, save) : join(files, save));
    if (status != OX_OK) {
        ox_checkpoint_files_discard(&files);
    }
    *out = files;
    return status;
}

static void close_files(struct ox_checkpoint_files *files) {
    ox_st_discard(&files->optim);
    ox_hf_discard(&files->hf);
}

void ox_checkpoint_files_discard(struct ox_checkpoint_files **files_ptr) {
    struct ox_checkpoint_files *const files = *files_ptr;
    if (files == NULL) {
        return;
    }
    close_files(files);
    free(files->optim_first);
    free(files->sums);
    free(files->converted);
    free(files->chunk_first);
    free(files->has);
    free(files);
    *files_ptr = NULL;
}

uint64_t ox_checkpoint_files_missing(const struct ox_checkpoint_files *files) {
    return files->missing;
}

enum ox_status ox_checkpoint_files_chunk(struct ox_checkpoint_files *files, uint32_t unit_idx, uint32_t chunk_idx,
                                         const struct ox_chunk_view *view) {
    OX_ASSERT(unit_idx < files->model->unit_count);
    const uint32_t idx = files->chunk_first[unit_idx] + chunk_idx;
    OX_ASSERT(idx < files->chunk_first[unit_idx + 1]);
    if (files->has[idx]) {
        return OX_OK;
    }
    enum ox_status status = OX_OK;
    struct ox_tensor_part piece = {0};
    ox_chunk_values_get(view, OX_PLANE_MASTER);
    while (status == OX_OK && ox_tensor_part_next(files->model, unit_idx, view, &piece)) {
        const bool has = files->model->tensors[piece.tensor_idx].saved_idx != OX_NO_TENSOR;
        status = has ? write_weights(files, view, &piece) : OX_OK;
    }
    for (uint32_t i = 0; i < files->planes.count && status == OX_OK; i++) {
        if (!ox_chunk_has_plane(view, files->planes.planes[i])) {
            continue;
        }
        ox_chunk_values_get(view, files->planes.planes[i]);
        piece = (struct ox_tensor_part){0};
        while (status == OX_OK && ox_tensor_part_next(files->model, unit_idx, view, &piece)) {
            const bool has = has_plane(files->model, piece.tensor_idx, files->planes.planes[i], files->dtype);
            status = has ? write_plane(files, i, view, &piece) : OX_OK;
        }
    }
    if (status == OX_OK) {
        files->has[idx] = true;
        files->missing--;
    }
    return status;
}

enum ox_status ox_checkpoint_files_fill(struct ox_checkpoint_files *files, struct ox_engine *engine,
                                        bool frozen_alone) {
    enum ox_status status = OX_OK;
    for (uint32_t unit_idx = 0; unit_idx < files->model->unit_count; unit_idx++) {
        if (frozen_alone && files->model->units[unit_idx].trained) {
            continue;
        }
        const uint32_t first = files->chunk_first[unit_idx], count = files->chunk_first[unit_idx + 1] - first;
        for (uint32_t i = 0; i < count && status == OX_OK; i++) {
            if (!files->has[first + i]) {
                struct ox_chunk_view view;
                status = ox_engine_chunk_get(engine, unit_idx, i, &view);
                OX_THEN(status, ox_checkpoint_files_chunk(files, unit_idx, i, &view));
            }
        }
    }
    return status;
}

enum ox_status ox_checkpoint_files_finish(struct ox_checkpoint_files **files_ptr, const struct ox_run_state *state,
                                          enum ox_team_channel channel, enum ox_status written) {
    struct ox_checkpoint_files *const files = *files_ptr;
    struct ox_manifest manifest = {.state = *state, .weights_dtype = files->dtype,
                                   .model_dtype = files->model_dtype, .eval = files->eval,
                                   .shared_layers = files->model->config.shared_layers};
    enum ox_status status = written;
    OX_ASSERT(status != OX_OK || files->missing == 0);
    if (files->optim != NULL) {
        OX_THEN(status, ox_st_finish(&files->optim));
    }
    OX_THEN(status, ox_hf_finish(&files->hf));
    close_files(files); /* after a failure, before the first process removes the folder */
    status = ox_team_agree(files->team, channel, status, "the chunks of a checkpoint");
    OX_THEN(status, ox_team_sum(files->team, channel, files->sums, sum_count(files), "hashes of a checkpoint"));
    if (ox_team_leads(files->team)) {
        OX_THEN(status, collect(files, &manifest));
        OX_THEN(status, ox_manifest_write(files->folder, &manifest));
        ox_manifest_close(&manifest);
    }
    ox_checkpoint_files_discard(files_ptr);
    return status;
}
