/* powersgd.safetensors: what exchanges of low rank keep. <tensor>.residual, or <tensor>.residual.1 for the second use
 * of its unit, has the mean over all copies, with zeros in rows that no block has; <tensor>.q.<use>.<first row> Q of
 * the block that begins there, transposed; `copies` is their number. All that copies have left is still to be sent:
 * whatever divides the rows of the next run, each of its copies takes its rows of the mean, as many times more as there
 * are fewer copies. A block that was none begins with a Q of its own. */
#include "base/bytes.h"
#include "base/log.h"
#include "engine/checkpoint/checkpoint_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char COPIES[] = "copies";

enum { NAME_BYTES = OX_TENSOR_NAME_BYTES + 32 };

static void residual_name(const struct ox_model *model, const struct ox_residual *of, char name[NAME_BYTES]) {
    const int bytes = snprintf(name, NAME_BYTES, "%s.residual", model->tensors[of->tensor_idx].name);
    if (of->use > 0) {
        snprintf(name + bytes, (size_t)(NAME_BYTES - bytes), ".%" PRIu32, of->use);
    }
}

static void q_name(const struct ox_model *model, const struct ox_residual *of, char name[NAME_BYTES]) {
    snprintf(name, NAME_BYTES, "%s.q.%" PRIu32 ".%" PRIu32, model->tensors[of->tensor_idx].name, of->use,
             of->row_first);
}

/* The rows of a block's matrix. */
static uint64_t rows_of(const struct ox_model *model, const struct ox_residual *of) {
    return model->tensors[of->tensor_idx].count / of->cols;
}

/* What is written: two tensors for each block, or one where blocks are of one matrix. */
struct list {
    const struct ox_model *model;
    struct ox_st_spec *specs; /* NULL: only counted */
    char (*names)[NAME_BYTES];
    uint32_t count;
    struct ox_st_writer *writer;
};

static uint32_t find(const struct list *list, const char *name) {
    uint32_t i = 0;
    while (i < list->count && strcmp(list->names[i], name) != 0) {
        i++;
    }
    return i;
}

static void add(struct list *list, const char *name, uint64_t rows, uint64_t cols) {
    const uint32_t at = find(list, name);
    if (at == list->count) {
        snprintf(list->names[at], NAME_BYTES, "%s", name);
        list->specs[at] = (struct ox_st_spec){
            .name = list->names[at], .dtype = OX_DTYPE_F32, .rank = 2, .shape = {rows, cols}};
        list->count++;
    }
}

static enum ox_status count_block(void *context, const struct ox_residual *of) {
    (void)of;
    *(uint32_t *)context += 2;
    return OX_OK;
}

static enum ox_status list_block(void *context, const struct ox_residual *of) {
    struct list *const list = context;
    char name[NAME_BYTES];
    residual_name(list->model, of, name);
    add(list, name, rows_of(list->model, of), of->cols);
    q_name(list->model, of, name);
    add(list, name, of->rank, of->cols);
    return OX_OK;
}

static enum ox_status write_block(void *context, const struct ox_residual *of) {
    struct list *const list = context;
    const uint64_t row_bytes = of->cols * sizeof(float);
    char name[NAME_BYTES];
    residual_name(list->model, of, name);
    enum ox_status status =
        ox_st_write(list->writer, find(list, name), of->row_first * row_bytes, of->rest, of->rows * row_bytes);
    q_name(list->model, of, name);
    OX_THEN(status, ox_st_write(list->writer, find(list, name), 0, of->q, of->rank * row_bytes));
    return status;
}

/* Lists all tensors of the file; the caller frees `specs` and `names`. */
static enum ox_status open_list(const struct ox_engine *engine, struct list *list) {
    uint32_t most = 0;
    OX_TRY(ox_engine_list_residuals(engine, count_block, &most));
    list->specs = calloc(most + 1u, sizeof *list->specs);
    list->names = calloc(most + 1u, sizeof *list->names);
    if (list->specs == NULL || list->names == NULL) {
        return ox_fail(OX_E_NOMEM, "checkpoint: no memory to list residuals");
    }
    add(list, COPIES, 1, 1);
    return ox_engine_list_residuals(engine, list_block, list);
}

/* Creates the file on the first process, and joins it on the others. */
static enum ox_status open_file(struct list *list, struct ox_team *team, const char *path, enum ox_status status) {
    if (ox_team_leads(team)) {
        OX_THEN(status, ox_st_create(path, list->specs, list->count, &list->writer));
    }
    status = ox_team_agree(team, OX_TEAM_RUN, status, "the file of residuals");
    if (!ox_team_leads(team)) {
        OX_THEN(status, ox_st_join(path, list->specs, list->count, &list->writer));
    }
    return status;
}

enum ox_status ox_checkpoint_write_residuals(struct ox_engine *engine, const char *folder) {
    struct ox_team *const team = ox_engine_config_of(engine)->team;
    struct list list = {.model = ox_engine_config_of(engine)->model};
    char path[OX_PATH_BYTES];
    enum ox_status status = ox_path_join(folder, OX_RESIDUALS_FILE, path);
    OX_THEN(status, open_list(engine, &list));
    status = open_file(&list, team, path, status);
    if (status == OX_OK) {
        const float copies = (float)ox_plan_copies(&ox_engine_plan_of(engine)->input);
        ox_st_share(list.writer); /* rows that no block has stay zeros */
        status = ox_engine_each_residual(engine, true, write_block, &list);
        OX_THEN(status, ox_team_leads(team) ? ox_st_write(list.writer, find(&list, COPIES), 0, &copies, sizeof copies)
                                            : OX_OK);
    }
    if (status == OX_OK) {
        status = ox_st_finish(&list.writer);
    } else {
        ox_st_discard(&list.writer);
    }
    free(list.specs);
    free(list.names);
    return status;
}

/* ---- reading -------------------------------------------------------------------------------------------- */

struct reader {
    const struct ox_model *model;
    const struct ox_st_file *file;
    float share; /* what each copy takes of the mean */
    uint32_t blocks, anew; /* of these begin with a Q of their own */
};

static enum ox_status read_block(void *context, const struct ox_residual *of) {
    struct reader *const reader = context;
    char name[NAME_BYTES];
    residual_name(reader->model, of, name);
    const struct ox_st_entry *const rest = ox_st_find(reader->file, name);
    const bool fits = rest != NULL && rest->dtype == OX_DTYPE_F32 && rest->rank == 2 && rest->shape[1] == of->cols &&
                      rest->shape[0] == rows_of(reader->model, of);
    if (rest != NULL && !fits) {
        return ox_fail(OX_E_CORRUPT, "%s: tensor \"%s\" is not F32 with the shape that config.json expects; use "
                       "another checkpoint", ox_st_path(reader->file), name);
    }
    enum ox_status status = fits ? ox_st_read_f32(reader->file, rest, (uint64_t)of->row_first * of->cols,
                                                  (uint64_t)of->rows * of->cols, of->rest) : OX_OK;
    for (uint64_t i = 0; i < (uint64_t)of->rows * of->cols && fits && reader->share != 1; i++) {
        of->rest[i] *= reader->share;
    }
    q_name(reader->model, of, name);
    const struct ox_st_entry *const q = ox_st_find(reader->file, name);
    const bool known = q != NULL && q->dtype == OX_DTYPE_F32 && q->count == (uint64_t)of->rank * of->cols;
    reader->blocks++;
    reader->anew += !known;
    OX_THEN(status, known ? ox_st_read_f32(reader->file, q, 0, q->count, of->q) : OX_OK);
    return status;
}

/* Finds the factor of each residual: the copies of this run together have as much left as those that saved it. */
static enum ox_status find_share(const struct ox_engine *engine, const struct ox_st_file *file, float *share) {
    const struct ox_st_entry *const entry = ox_st_find(file, COPIES);
    float copies = 0;
    if (entry == NULL || entry->count != 1) {
        return ox_fail(OX_E_CORRUPT, "%s: does not say of how many copies; use another checkpoint", ox_st_path(file));
    }
    const enum ox_status status = ox_st_read_f32(file, entry, 0, 1, &copies);
    *share = copies / (float)ox_plan_copies(&ox_engine_plan_of(engine)->input);
    return status;
}

enum ox_status ox_checkpoint_read_residuals(struct ox_engine *engine, const char *folder) {
    struct reader reader = {.model = ox_engine_config_of(engine)->model};
    struct ox_st_file *file = NULL;
    char path[OX_PATH_BYTES];
    enum ox_status status = ox_path_join(folder, OX_RESIDUALS_FILE, path);
    const bool speaks = ox_team_leads(ox_engine_config_of(engine)->team);
    const bool there = status == OX_OK && ox_path_is_file(path);
    if (status != OX_OK || !there || !ox_engine_has_residuals(engine)) {
        if (there && speaks) {
            ox_log(OX_LOG_WARN, "%s: what low-rank exchanges have not sent yet (--powersgd-rank) is left out", path);
        }
        return status;
    }
    status = ox_st_open(path, &file);
    reader.file = file;
    OX_THEN(status, find_share(engine, file, &reader.share));
    OX_THEN(status, ox_engine_each_residual(engine, false, read_block, &reader));
    OX_THEN(status, ox_st_verify(file));
    if (status == OX_OK && reader.anew > 0 && speaks) {
        ox_log(OX_LOG_INFO, "--powersgd-rank: %" PRIu32 " of %" PRIu32 " blocks are other rows than the checkpoint's, "
               "and begin with a new Q", reader.anew, reader.blocks);
    }
    ox_st_close(&file);
    return status;
}
