/* The generator: where its weights live, its memory, and one pass of tokens through the model. */
#include "engine/generate/generate.h"

#include "engine/generate/table_adapters.h"

#include "base/arena.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/planes.h"
#include "engine/model/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Weights that change on the way are read PIECE elements at a time. The head's table is walked in tiles of TABLE_ROWS
 * tokens wherever it lives, so that its bits do not depend on its home. A prompt whose loss is wanted passes the head
 * NLL_ROWS rows at a time. */
enum { PIECE = 1 << 18, TABLE_ROWS = 4096, NLL_ROWS = 64, SLOT_COUNT = 2 };

/* Parts of the arena whose size does not depend on where the weights live. */
struct memory {
    float *keys, *values;         /* (blocks, contexts, kv_heads * head_dim) */
    float *cos_table, *sin_table; /* (contexts, rotary_dim / 2)              */
    float *norm;                  /* the final norm: its gain, then its bias */
    int32_t *positions;           /* (chunk)                                 */
    float *x, *n;                 /* (chunk, hidden): activations, normed    */
    float *learned;               /* (chunk, hidden): learned positions      */
    float *logits;                /* (vocab)                                 */
    float *tile;                  /* (NLL_ROWS, TABLE_ROWS)                  */
    float *attention_scratch;
    void *work;
    struct ox_table_adapters adapters;
};

/* Host memory for what comes from a GPU and goes there; the CPU works where it lies. */
struct staging {
    float *piece;       /* (PIECE) */
    uint16_t *planes;   /* (PIECE) */
    float *logits;      /* (vocab) */
    float *tile;        /* (NLL_ROWS, TABLE_ROWS) */
    int32_t *positions; /* (chunk) */
};

struct ox_generator {
    struct ox_generator_config config;
    const struct ox_model *model;
    struct ox_device *device;
    struct ox_ops ops;
    struct ox_run run; /* operations on the only lane; its failure is final */
    void *arena;
    uint64_t arena_bytes;
    struct memory memory;
    struct ox_lane *copies; /* to the GPU and back; NULL: the CPU computes */
    void *staging_base;     /* what `staging` lies in, with a GPU */
    struct staging staging;
    enum ox_weights_home home;
    uint64_t need[OX_WEIGHTS_HOME_COUNT];
    uint64_t *unit_first;     /* first element of each unit in the weights */
    uint64_t elem_count;      /* in all units */
    float *joined;            /* the weights, or NULL */
    uint16_t *planes;         /* the weights, or NULL */
    float *slots[SLOT_COUNT]; /* (slot_elems): weights in use, unless all are joined */
    struct ox_mark marks[SLOT_COUNT]; /* last use of each slot */
    uint64_t slot_elems;
    unsigned slot_idx;
    uint32_t count;
};

/* ---- memory ---------------------------------------------------------------------------------------- */

static float *take_floats(struct ox_bump *carve, uint64_t count) {
    return ox_bump_alloc(carve, count * sizeof(float));
}

static struct ox_compute compute_of(const struct ox_generator *generator) {
    return (struct ox_compute){.device = generator->config.cuda != NULL ? OX_DEVICE_CUDA : OX_DEVICE_CPU,
                               .threads = generator->config.threads};
}

static struct ox_shape shape_of(const struct ox_generator *generator, uint32_t rows) {
    return (struct ox_shape){.model = generator->model, .batch = 1, .seq = rows, .rows = rows,
                             .dtype = generator->config.dtype, .compute = compute_of(generator)};
}

/* Floats that the keys of one block take; its values take as many. */
static uint64_t cache_stride(const struct ox_generator *generator) {
    const struct ox_model_config *const model = &generator->model->config;
    return ox_align_up((uint64_t)generator->config.contexts * model->kv_heads * model->head_dim, 16);
}

static uint64_t cache_bytes(const struct ox_generator *generator) {
    return 2 * generator->model->block_count * cache_stride(generator) * sizeof(float);
}

static struct ox_op_attention_cached attention_of(const struct ox_generator *generator) {
    const struct ox_model_config *const model = &generator->model->config;
    return (struct ox_op_attention_cached){.rows = generator->config.chunk_rows,
                                           .cached = generator->config.contexts,
                                           .heads = model->heads,
                                           .kv_heads = model->kv_heads,
                                           .head_dim = model->head_dim};
}

/* Whether positions are learned: rows of a table beside the embeddings. */
static bool has_positions(const struct ox_model *model) {
    return model->units[model->embed_idx].role_offset[OX_ROLE_POSITION] != UINT64_MAX;
}

/* A range of elements of a unit's flat vector, as fp32. */
struct range {
    uint32_t unit_idx;
    uint64_t first, count;
};

/* The weights of the final norm: its gain, and its bias behind it where the family has one. */
static struct range norm_range(const struct ox_generator *generator) {
    const uint32_t head_idx = generator->model->head_idx;
    const uint64_t *const offset = generator->model->units[head_idx].role_offset;
    const uint64_t last = offset[OX_ROLE_FINAL_NORM_BIAS] != UINT64_MAX ? offset[OX_ROLE_FINAL_NORM_BIAS]
                                                                        : offset[OX_ROLE_FINAL_NORM];
    OX_ASSERT(last >= offset[OX_ROLE_FINAL_NORM]);
    return (struct range){head_idx, offset[OX_ROLE_FINAL_NORM],
                          last + generator->model->config.hidden - offset[OX_ROLE_FINAL_NORM]};
}

/* Bytes of workspace that any block's forward needs; the final norm, a part of such a pass, needs less. */
static uint64_t work_bytes(const struct ox_shape *shape) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < shape->model->block_count; i++) {
        const struct ox_unit *const block = &shape->model->units[shape->model->blocks[i]];
        bytes = ox_max_u64(bytes, ox_unit_work_bytes(shape, block, OX_PASS_FORWARD));
    }
    return bytes;
}

static uint64_t carve_memory(const struct ox_generator *generator, void *base, struct memory *out) {
    const struct ox_generator_config *const config = &generator->config;
    const struct ox_model_config *const model = &generator->model->config;
    const struct ox_shape shape = shape_of(generator, config->chunk_rows);
    const struct ox_compute compute = compute_of(generator);
    const struct ox_op_attention_cached attention = attention_of(generator);
    const uint64_t wide = (uint64_t)config->chunk_rows * model->hidden;
    const uint64_t angles = ox_angles_floats(model, config->contexts);
    struct ox_bump carve = {.base = base};
    out->keys = take_floats(&carve, generator->model->block_count * cache_stride(generator));
    out->values = take_floats(&carve, generator->model->block_count * cache_stride(generator));
    out->cos_table = take_floats(&carve, angles);
    out->sin_table = take_floats(&carve, angles);
    out->norm = take_floats(&carve, norm_range(generator).count);
    out->positions = ox_bump_alloc(&carve, config->chunk_rows * sizeof *out->positions);
    out->x = take_floats(&carve, wide);
    out->n = take_floats(&carve, wide);
    out->learned = take_floats(&carve, has_positions(generator->model) ? wide : 0);
    out->logits = take_floats(&carve, model->vocab);
    out->tile = take_floats(&carve, ox_min_u64(NLL_ROWS, config->chunk_rows) * ox_min_u64(TABLE_ROWS, model->vocab));
    out->attention_scratch = ox_bump_alloc(&carve, ox_ops_attention_cached_scratch_bytes(&compute, &attention));
    out->work = ox_bump_alloc(&carve, work_bytes(&shape));
    ox_table_adapters_carve(&shape, &carve, &out->adapters);
    return carve.bytes;
}

static uint64_t carve_staging(const struct ox_generator *generator, void *base, struct staging *out) {
    const uint32_t vocab = generator->model->config.vocab, rows = generator->config.chunk_rows;
    struct ox_bump carve = {.base = base};
    out->piece = take_floats(&carve, PIECE);
    out->planes = ox_bump_alloc(&carve, PIECE * sizeof *out->planes);
    out->logits = take_floats(&carve, vocab);
    out->tile = take_floats(&carve, ox_min_u64(NLL_ROWS, rows) * ox_min_u64(TABLE_ROWS, vocab));
    out->positions = ox_bump_alloc(&carve, rows * sizeof *out->positions);
    return carve.bytes;
}

/* Places the units one after the other, those of a stage together, and computes the memory that each home needs. */
static enum ox_status measure(struct ox_generator *generator) {
    const struct ox_model *const model = generator->model;
    struct memory memory;
    uint64_t elems = 0, largest = ox_min_u64(TABLE_ROWS, model->config.vocab) * model->config.hidden;
    generator->unit_first = calloc(model->unit_count, sizeof *generator->unit_first);
    if (generator->unit_first == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to open the model", generator->config.where);
    }
    for (uint32_t i = 0; i < model->stage_count; i++) {
        const uint64_t first = elems;
        for (uint32_t unit_idx = model->stages[i]; unit_idx != OX_NO_UNIT; unit_idx = model->units[unit_idx].next) {
            generator->unit_first[unit_idx] = elems;
            elems += model->units[unit_idx].elem_count;
        }
        const bool is_block = model->units[model->stages[i]].kind == OX_UNIT_BLOCK;
        largest = is_block ? ox_max_u64(largest, elems - first) : largest;
    }
    generator->elem_count = elems;
    generator->slot_elems = ox_align_up(largest, 16);
    const uint64_t fixed = carve_memory(generator, NULL, &memory), slot = generator->slot_elems * sizeof(float);
    generator->need[OX_WEIGHTS_JOINED] = fixed + elems * sizeof(float);
    /* two planes take as many bytes as the joined weights */
    generator->need[OX_WEIGHTS_PLANES] =
        generator->config.dtype != OX_COMPUTE_BF16 ? UINT64_MAX : fixed + elems * sizeof(uint16_t) + slot;
    generator->need[OX_WEIGHTS_FILES] = fixed + SLOT_COUNT * slot;
    return OX_OK;
}

/* The memory that computes, and what users call it. */
static uint64_t budget_of(const struct ox_generator *generator) {
    return generator->config.cuda != NULL ? generator->config.device_bytes : generator->config.host_bytes;
}

static const char *option_of(const struct ox_generator *generator) {
    return generator->config.cuda != NULL ? "--device-mem" : "--host-mem";
}

static enum ox_status refuse_budget(const struct ox_generator *generator, uint64_t least) {
    char need[OX_SIZE_TEXT_BYTES], have[OX_SIZE_TEXT_BYTES], cache[OX_SIZE_TEXT_BYTES], enough[OX_SIZE_TEXT_BYTES];
    return ox_fail(OX_E_CONFIG,
                   "%s: generating needs %s (%s of it for the keys and values of %u tokens), but the %s memory to "
                   "use is %s; give %s %s, or fewer tokens by --max-new-tokens or a shorter prompt",
                   generator->config.where, ox_size_text(least, need), ox_size_text(cache_bytes(generator), cache),
                   generator->config.contexts, generator->config.cuda != NULL ? "device" : "host",
                   ox_size_text(budget_of(generator), have), option_of(generator),
                   ox_size_flag_text(least + generator->config.device_beside_bytes, enough));
}

static enum ox_status pick_home(struct ox_generator *generator) {
    const uint64_t beside = generator->config.device_beside_bytes;
    const uint64_t budget = budget_of(generator);
    char need[OX_SIZE_TEXT_BYTES], have[OX_SIZE_TEXT_BYTES];
    for (int home = 0; home < OX_WEIGHTS_HOME_COUNT; home++) {
        if (generator->need[home] <= budget) {
            generator->home = (enum ox_weights_home)home;
            if (home == OX_WEIGHTS_FILES) {
                const uint64_t resident = ox_min_u64(generator->need[0], generator->need[1]);
                ox_log(OX_LOG_WARN,
                       "the weights do not fit %s, so they are read from %s again for every token; %s %s would "
                       "hold them",
                       ox_size_text(budget, have), generator->config.where, option_of(generator),
                       ox_size_flag_text(resident + beside, need));
            }
            return OX_OK;
        }
    }
    uint64_t least = UINT64_MAX;
    for (int home = 0; home < OX_WEIGHTS_HOME_COUNT; home++) {
        least = ox_min_u64(least, generator->need[home]);
    }
    return refuse_budget(generator, least);
}

/* Staging on the host for a GPU; without one, what the CPU has computed is read where it lies. */
static enum ox_status reserve_staging(struct ox_generator *generator) {
    const uint64_t bytes = carve_staging(generator, NULL, &generator->staging);
    char need[OX_SIZE_TEXT_BYTES], have[OX_SIZE_TEXT_BYTES];
    if (generator->copies == NULL) {
        generator->staging = (struct staging){.logits = generator->memory.logits, .tile = generator->memory.tile,
                                              .positions = generator->memory.positions};
        return OX_OK;
    }
    if (bytes > generator->config.host_bytes) {
        return ox_fail(OX_E_CONFIG, "%s: generating on a GPU needs %s of host memory, but %s are to be used; give more "
                       "by --host-mem", generator->config.where, ox_size_text(bytes, need),
                       ox_size_text(generator->config.host_bytes, have));
    }
    generator->staging_base = malloc(bytes);
    if (generator->staging_base == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for %s on their way to the GPU", generator->config.where,
                       ox_size_text(bytes, need));
    }
    carve_staging(generator, generator->staging_base, &generator->staging);
    return OX_OK;
}

static enum ox_status reserve(struct ox_generator *generator) {
    const uint64_t fixed = carve_memory(generator, NULL, &generator->memory);
    generator->arena_bytes = generator->need[generator->home];
    OX_TRY(ox_device_mem_open(generator->device, generator->arena_bytes, &generator->arena));
    carve_memory(generator, generator->arena, &generator->memory);
    unsigned char *const rest = (unsigned char *)generator->arena + fixed;
    switch (generator->home) {
    case OX_WEIGHTS_JOINED:
        generator->joined = (float *)rest;
        break;
    case OX_WEIGHTS_PLANES:
        generator->planes = (uint16_t *)rest;
        generator->slots[0] = (float *)(rest + generator->elem_count * sizeof(uint16_t));
        break;
    default:
        generator->slots[0] = (float *)rest;
        generator->slots[1] = generator->slots[0] + generator->slot_elems;
        break;
    }
    return reserve_staging(generator);
}

/* Copies to the memory that computes, or from it, and waits. Nothing that is queued may use the target. */
static enum ox_status copy(const struct ox_generator *generator, void *target, const void *source, uint64_t bytes) {
    const struct ox_copy pair = {.target = target, .source = source, .bytes = bytes};
    struct ox_mark done;
    if (generator->copies == NULL) {
        memcpy(target, source, bytes);
        return OX_OK;
    }
    const enum ox_status status = ox_device_lane_copy(generator->device, generator->copies, &pair, &done);
    return status == OX_OK ? ox_mark_join(done) : status;
}

/* ---- weights --------------------------------------------------------------------------------------- */

static void round_all(enum ox_compute_dtype dtype, float *values, uint64_t count) {
    for (uint64_t i = 0; i < count && dtype != OX_COMPUTE_FP32; i++) {
        values[i] = dtype == OX_COMPUTE_BF16 ? ox_bf16_to_f32(ox_plane_hi(values[i]))
                                             : ox_f16_to_f32(ox_f16_from_f32(values[i]));
    }
}

/* Reads a range from the files; gaps between tensors are not touched. */
static enum ox_status read_range(const struct ox_generator *generator, struct range range, float *out) {
    const struct ox_unit *const unit = &generator->model->units[range.unit_idx];
    const uint64_t range_end = range.first + range.count;
    enum ox_status status = OX_OK;
    const struct ox_model *const model = generator->model;
    for (const struct ox_tensor *tensor = NULL; (tensor = ox_unit_next_tensor(model, unit, tensor)) != NULL;) {
        const uint32_t tensor_idx = (uint32_t)(tensor - model->tensors);
        uint64_t at = ox_max_u64(range.first, tensor->offset);
        const uint64_t end = ox_min_u64(range_end, tensor->offset + tensor->count);
        while (status == OX_OK && at < end) {
            const uint64_t count = ox_min_u64(end - at, PIECE);
            float *const to = out + (at - range.first);
            status = ox_hf_read(generator->config.folder, tensor_idx, at - tensor->offset, count, to);
            if (status == OX_OK) {
                round_all(generator->config.dtype, to, count);
            }
            at += count;
        }
    }
    return status;
}

/* Reads a range to the memory that computes. */
static enum ox_status load_range(const struct ox_generator *generator, struct range range, float *out) {
    float *const piece = generator->staging.piece;
    enum ox_status status = generator->copies == NULL ? read_range(generator, range, out) : OX_OK;
    for (uint64_t at = 0; generator->copies != NULL && status == OX_OK && at < range.count; at += PIECE) {
        const struct range part = {range.unit_idx, range.first + at, ox_min_u64(range.count - at, PIECE)};
        memset(piece, 0, part.count * sizeof *piece);
        status = read_range(generator, part, piece);
        OX_THEN(status, copy(generator, out + at, piece, part.count * sizeof *piece));
    }
    return status;
}

static enum ox_status load_planes(struct ox_generator *generator, uint32_t unit_idx) {
    const uint64_t elems = generator->model->units[unit_idx].elem_count;
    uint16_t *const planes = generator->planes + generator->unit_first[unit_idx];
    float *const piece = generator->copies != NULL ? generator->staging.piece : generator->slots[0];
    const uint64_t step = ox_min_u64(generator->slot_elems, PIECE);
    enum ox_status status = OX_OK;
    for (uint64_t at = 0; status == OX_OK && at < elems; at += step) {
        const struct range range = {unit_idx, at, ox_min_u64(elems - at, step)};
        memset(piece, 0, range.count * sizeof *piece);
        status = read_range(generator, range, piece);
        uint16_t *const hi = generator->copies != NULL ? generator->staging.planes : planes + at;
        for (uint64_t i = 0; status == OX_OK && i < range.count; i++) {
            hi[i] = ox_plane_hi(piece[i]);
        }
        if (generator->copies != NULL) {
            OX_THEN(status, copy(generator, planes + at, hi, range.count * sizeof *hi));
        }
    }
    return status;
}

static enum ox_status read_adapter(const void *context, uint32_t unit_idx, uint64_t first, uint64_t count, float *out) {
    return read_range(context, (struct range){unit_idx, first, count}, out);
}

static enum ox_status copy_adapter(const void *context, void *target, const void *source, uint64_t bytes) {
    return copy(context, target, source, bytes);
}

static enum ox_status load(struct ox_generator *generator) {
    const struct ox_model *const model = generator->model;
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; status == OX_OK && i < model->unit_count; i++) {
        const struct range whole = {i, 0, model->units[i].elem_count};
        if (generator->joined != NULL) {
            status = load_range(generator, whole, generator->joined + generator->unit_first[i]);
        } else if (generator->planes != NULL) {
            status = load_planes(generator, i);
        }
    }
    OX_THEN(status, load_range(generator, norm_range(generator), generator->memory.norm));
    OX_THEN(status, ox_table_adapters_load(&generator->memory.adapters, read_adapter, copy_adapter, generator));
    return status;
}

/* Returns weights for the operations queued next, until weights_done, from element `at` of a slot on. Files are read
 * here, while the lane computes with the weights before. */
static const float *weights_get(struct ox_generator *generator, struct range range, uint64_t at) {
    const uint64_t first = generator->unit_first[range.unit_idx] + range.first;
    if (generator->joined != NULL) {
        return generator->joined + first;
    }
    OX_ASSERT(at + range.count <= generator->slot_elems);
    float *const slot = generator->slots[generator->slot_idx] + at;
    if (generator->planes != NULL) {
        OX_RUN(&generator->run, planes_join, .out = slot, .hi = generator->planes + first, .count = range.count);
    } else {
        OX_THEN(generator->run.status, ox_mark_join(generator->marks[generator->slot_idx]));
        OX_THEN(generator->run.status, load_range(generator, range, slot));
    }
    return slot;
}

/* The weights of all units of a stage, which share a slot; until weights_done. */
static struct ox_stage_weights stage_get(struct ox_generator *generator, uint32_t first_idx) {
    const struct ox_model *const model = generator->model;
    struct ox_stage_weights out = {{NULL}, {NULL}};
    uint32_t nth = 0;
    uint64_t at = 0;
    for (uint32_t unit_idx = first_idx; unit_idx != OX_NO_UNIT; unit_idx = model->units[unit_idx].next) {
        out.weights[nth++] = weights_get(generator, (struct range){unit_idx, 0, model->units[unit_idx].elem_count}, at);
        at += model->units[unit_idx].elem_count;
    }
    return out;
}

static void weights_done(struct ox_generator *generator) {
    if (generator->home == OX_WEIGHTS_FILES) { /* in other homes the lane alone overwrites them */
        struct ox_mark *const mark = &generator->marks[generator->slot_idx];
        generator->slot_idx = (generator->slot_idx + 1) % SLOT_COUNT;
        OX_THEN(generator->run.status, generator->ops.mark(generator->run.lane, mark));
    }
}

/* Copies one row of a table of the embedding's unit to where blocks read it. */
static void row_get(struct ox_generator *generator, enum ox_role role, uint64_t idx, float *out) {
    const uint32_t hidden = generator->model->config.hidden, embed_idx = generator->model->embed_idx;
    const uint64_t within = generator->model->units[embed_idx].role_offset[role] + idx * hidden;
    const uint64_t first = generator->unit_first[embed_idx] + within;
    if (generator->joined != NULL) {
        OX_THEN(generator->run.status, copy(generator, out, generator->joined + first, hidden * sizeof *out));
    } else if (generator->planes != NULL) {
        OX_RUN(&generator->run, planes_join, .out = out, .hi = generator->planes + first, .count = hidden);
    } else {
        OX_THEN(generator->run.status, load_range(generator, (struct range){embed_idx, within, hidden}, out));
    }
}

/* ---- one pass --------------------------------------------------------------------------------------- */

/* The embeddings and positions of a chunk's rows, written before the lane uses them. */
static void embed(struct ox_generator *generator, const int32_t *ids, uint32_t rows) {
    const struct memory *const memory = &generator->memory;
    struct ox_run *const run = &generator->run;
    const uint32_t hidden = generator->model->config.hidden;
    const bool learned = has_positions(generator->model);
    for (uint32_t i = 0; i < rows; i++) {
        const size_t at = (size_t)i * hidden;
        generator->staging.positions[i] = (int32_t)(generator->count + i);
        row_get(generator, OX_ROLE_EMBED, (uint64_t)ids[i], memory->x + at);
        if (learned) {
            row_get(generator, OX_ROLE_POSITION, generator->count + i, memory->learned + at);
        }
    }
    if (generator->copies != NULL) {
        OX_THEN(run->status, copy(generator, memory->positions, generator->staging.positions,
                                  rows * sizeof *memory->positions));
    }
    if (learned) {
        OX_RUN(run, add, .target = memory->x, .a = memory->x, .b = memory->learned, .count = (uint64_t)rows * hidden);
    }
    const struct ox_shape shape = shape_of(generator, rows);
    struct ox_unit_job job = ox_table_adapters_job(&memory->adapters, run, &shape, OX_EMBED_ADAPTER);
    if (ox_embed_adapter_bytes(&shape) > 0) {
        OX_THEN(job.run.status, copy(generator, memory->adapters.ids, ids, rows * sizeof *ids));
        ox_embed_adapt(&job, memory->x);
    }
    ox_embed_scale(&job, memory->x);
    run->status = job.run.status;
}

static void run_blocks(struct ox_generator *generator, uint32_t rows) {
    const struct memory *const memory = &generator->memory;
    const struct ox_shape shape = shape_of(generator, rows);
    const uint64_t stride = cache_stride(generator);
    for (uint32_t i = 0; i < generator->model->block_count; i++) {
        const uint32_t unit_idx = generator->model->blocks[i];
        const struct ox_unit *const unit = &generator->model->units[unit_idx];
        const struct ox_cache cache = {.keys = memory->keys + i * stride,
                                       .values = memory->values + i * stride,
                                       .scratch = memory->attention_scratch,
                                       .count = generator->count};
        const struct ox_stage_weights weights = stage_get(generator, unit_idx);
        struct ox_unit_job job = {.run = generator->run, .shape = &shape, .unit = unit,
                                  .positions = memory->positions, .cache = &cache, .work = memory->work};
        ox_angles_take(&job, generator->config.contexts, memory->cos_table, memory->sin_table);
        generator->run.status = ox_unit_forward(&job, &weights, memory->x, memory->x);
        weights_done(generator);
    }
}

static void final_norm(struct ox_generator *generator, uint32_t first, uint32_t rows) {
    const struct memory *const memory = &generator->memory;
    const struct ox_shape shape = shape_of(generator, rows);
    const size_t skipped = (size_t)first * generator->model->config.hidden;
    struct ox_unit_job job = {.run = generator->run, .shape = &shape, .work = memory->work,
                              .unit = &generator->model->units[generator->model->head_idx]};
    generator->run.status = ox_final_norm(&job, memory->norm, memory->x + skipped, memory->n + skipped);
}

/* One tile of the head's table. */
struct tile {
    const float *weights;
    uint32_t first, count; /* tokens */
    const float *rows;     /* that the head reads, and what an adapter of its table has for them */
    struct ox_head_low low;
};

static void tile_logits(struct ox_generator *generator, const struct tile *tile, const float *in, uint32_t rows,
                        float *out) {
    const struct ox_shape shape = shape_of(generator, rows);
    struct ox_unit_job job = {.run = generator->run, .shape = &shape};
    struct ox_head_low low = tile->low;
    low.in = (const float *)low.in + (uint64_t)(in - tile->rows) / shape.model->config.hidden * low.r;
    low.weight = (const float *)low.weight + (uint64_t)tile->first * low.r;
    ox_head_logits(&job, tile->weights, low.r > 0 ? &low : NULL, tile->count, in, out);
    generator->run.status = job.run.status;
}

/* The rows of a chunk whose loss is wanted, with the ids that follow them. */
struct judged {
    const int32_t *targets;
    uint32_t rows;
    double *max, *sum, *target; /* (rows): running maximum, sum of exponentials, the target's logit */
};

static void judge_rows(const struct ox_generator *generator, const struct tile *tile, struct judged *judged,
                       uint32_t first, uint32_t rows) {
    for (uint32_t i = 0; i < rows; i++) {
        const float *const logits = generator->staging.tile + (size_t)i * tile->count;
        const uint32_t row = first + i, target = (uint32_t)judged->targets[row];
        double top = tile->first == 0 ? -INFINITY : judged->max[row];
        const double before = top;
        for (uint32_t k = 0; k < tile->count; k++) {
            top = logits[k] > top ? logits[k] : top;
        }
        double sum = tile->first == 0 ? 0 : judged->sum[row] * exp(before - top);
        for (uint32_t k = 0; k < tile->count; k++) {
            sum += exp(logits[k] - top);
        }
        judged->max[row] = top;
        judged->sum[row] = sum;
        if (target >= tile->first && target - tile->first < tile->count) {
            judged->target[row] = logits[target - tile->first];
        }
    }
}

static void judge_tile(struct ox_generator *generator, const struct tile *tile, struct judged *judged) {
    const uint32_t hidden = generator->model->config.hidden;
    struct ox_run *const run = &generator->run;
    for (uint32_t first = 0; run->status == OX_OK && first < judged->rows; first += NLL_ROWS) {
        const uint32_t rows = (uint32_t)ox_min_u64(NLL_ROWS, judged->rows - first);
        tile_logits(generator, tile, generator->memory.n + (size_t)first * hidden, rows, generator->memory.tile);
        OX_THEN(run->status, ox_lane_drain(run->lane));
        if (generator->copies != NULL) {
            OX_THEN(run->status, copy(generator, generator->staging.tile, generator->memory.tile,
                                      (uint64_t)rows * tile->count * sizeof(float)));
        }
        if (run->status == OX_OK) {
            judge_rows(generator, tile, judged, first, rows);
        }
    }
}

/* Computes the logits of the last of `rows` rows, if `last`, and the statistics of the judged rows. */
static void run_head(struct ox_generator *generator, uint32_t rows, bool last, struct judged *judged) {
    const struct memory *const memory = &generator->memory;
    const struct ox_model_config *const model = &generator->model->config;
    const struct ox_table table = generator->model->table;
    const float *const last_row = memory->n + (size_t)(rows - 1) * model->hidden;
    const uint32_t skipped = judged->rows > 0 ? 0 : rows - 1;
    struct tile tile = {0};
    final_norm(generator, skipped, rows - skipped);
    const struct ox_shape shape = shape_of(generator, rows - skipped);
    struct ox_unit_job job = ox_table_adapters_job(&memory->adapters, &generator->run, &shape, OX_HEAD_ADAPTER);
    tile.rows = memory->n + (size_t)skipped * model->hidden;
    tile.low = ox_head_adapt(&job, tile.rows);
    generator->run.status = job.run.status;
    for (; tile.first < model->vocab; tile.first += tile.count) {
        tile.count = (uint32_t)ox_min_u64(TABLE_ROWS, model->vocab - tile.first);
        tile.weights = weights_get(generator, (struct range){table.unit_idx,
                                                             table.offset + (uint64_t)tile.first * model->hidden,
                                                             (uint64_t)tile.count * model->hidden}, 0);
        if (last) {
            tile_logits(generator, &tile, last_row, 1, memory->logits + tile.first);
        }
        judge_tile(generator, &tile, judged);
        weights_done(generator);
    }
}

/* The tokens that pass the model together: a part of the tokens of a call. */
struct chunk {
    const int32_t *ids;
    uint32_t rows;
    bool last;        /* the last chunk of the call */
    double *nll_sum;  /* or NULL: no loss */
    double *state;    /* (3 * chunk_rows), if nll_sum is wanted */
};

static enum ox_status queue_chunk(struct ox_generator *generator, const struct chunk *chunk, struct judged *judged) {
    embed(generator, chunk->ids, chunk->rows);
    run_blocks(generator, chunk->rows);
    if (chunk->last || judged->rows > 0) {
        run_head(generator, chunk->rows, chunk->last, judged);
    }
    return generator->run.status;
}

static enum ox_status read_chunk(struct ox_generator *generator, const struct chunk *chunk) {
    const uint32_t stride = generator->config.chunk_rows;
    struct judged judged = {.targets = chunk->ids + 1};
    struct ox_first_failure first = {0};
    if (chunk->nll_sum != NULL) {
        judged.rows = chunk->rows - (chunk->last ? 1 : 0); /* nothing follows the last one */
        judged.max = chunk->state;
        judged.sum = chunk->state + stride;
        judged.target = chunk->state + 2 * (size_t)stride;
    }
    ox_first_failure_note(&first, queue_chunk(generator, chunk, &judged));
    ox_first_failure_note(&first, ox_lane_drain(generator->run.lane));
    if (chunk->last && generator->copies != NULL && first.status == OX_OK) {
        const uint64_t bytes = generator->model->config.vocab * sizeof(float);
        ox_first_failure_note(&first, copy(generator, generator->staging.logits, generator->memory.logits, bytes));
    }
    for (uint32_t i = 0; first.status == OX_OK && i < judged.rows; i++) {
        *chunk->nll_sum += judged.max[i] + log(judged.sum[i]) - judged.target[i];
    }
    generator->count += chunk->rows;
    return ox_first_failure_result(&first);
}

static enum ox_status check_ids(const struct ox_generator *generator, const int32_t *ids, uint32_t count) {
    const uint32_t vocab = generator->model->config.vocab;
    for (uint32_t i = 0; i < count; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= vocab) {
            return ox_fail(OX_E_CONFIG,
                           "token %u of the text is %d, but the vocabulary of %s has %u tokens; use the tokenizer that "
                           "the model was made for", i, ids[i], generator->config.where, vocab);
        }
    }
    return OX_OK;
}

/* ---- public ----------------------------------------------------------------------------------------- */

enum ox_status ox_generator_read(struct ox_generator *generator, const int32_t *ids, uint32_t count, double *nll_sum,
                                 const float **logits) {
    const uint32_t chunk_rows = generator->config.chunk_rows;
    double *state = NULL;
    OX_ASSERT(count > 0 && count <= generator->config.contexts - generator->count);
    enum ox_status status = check_ids(generator, ids, count);
    if (status == OX_OK && nll_sum != NULL) {
        *nll_sum = 0;
        state = malloc(3 * chunk_rows * sizeof *state);
        status = state == NULL ? ox_fail(OX_E_NOMEM, "no memory to judge a prompt") : OX_OK;
    }
    for (uint32_t at = 0; status == OX_OK && at < count; at += chunk_rows) {
        const uint32_t rows = (uint32_t)ox_min_u64(chunk_rows, count - at);
        const struct chunk chunk = {.ids = ids + at, .rows = rows, .last = at + rows == count, .nll_sum = nll_sum,
                                    .state = state};
        status = read_chunk(generator, &chunk);
    }
    free(state);
    *logits = generator->staging.logits;
    return status;
}

static enum ox_status open_gpu(struct ox_generator *generator) {
    enum ox_status status = ox_cuda_device_open(generator->config.cuda, &generator->device);
    if (status != OX_OK) {
        return status;
    }
    ox_ops_init_cuda(generator->device, &generator->ops);
    status = ox_device_lane_open(generator->device, "compute", &generator->run.lane);
    return status == OX_OK ? ox_device_lane_open(generator->device, "copies", &generator->copies) : status;
}

static enum ox_status open_device(struct ox_generator *generator) {
    const struct ox_cpu_device_config config = {.thread_count = generator->config.threads};
    generator->run.ops = &generator->ops;
    if (generator->config.cuda != NULL) {
        return open_gpu(generator);
    }
    ox_ops_init_cpu(&generator->ops);
    const enum ox_status status = ox_cpu_device_open(&config, &generator->device);
    return status == OX_OK ? ox_device_lane_open(generator->device, "compute", &generator->run.lane) : status;
}

static enum ox_status make_angles(struct ox_generator *generator) {
    return ox_angles_make(&generator->run, &generator->model->config, generator->config.contexts,
                          generator->memory.cos_table, generator->memory.sin_table);
}

enum ox_status ox_generator_open(const struct ox_generator_config *config, struct ox_generator **out) {
    const struct ox_model *const model = ox_hf_model(config->folder);
    OX_ASSERT(ox_hf_has_weights(config->folder) && config->threads > 0 && config->chunk_rows > 0 &&
              config->contexts > 0 && config->contexts <= model->config.contexts);
    struct ox_generator *generator = calloc(1, sizeof *generator);
    if (generator == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to open the model", config->where);
    }
    generator->config = *config;
    generator->config.chunk_rows = (uint32_t)ox_min_u64(config->chunk_rows, config->contexts);
    generator->model = model;
    OX_THEN(generator->run.status, measure(generator));
    OX_THEN(generator->run.status, pick_home(generator));
    OX_THEN(generator->run.status, open_device(generator));
    OX_THEN(generator->run.status, reserve(generator));
    OX_THEN(generator->run.status, make_angles(generator));
    OX_THEN(generator->run.status, load(generator));
    const enum ox_status status = generator->run.status;
    if (status != OX_OK) {
        ox_generator_close(&generator);
        return status;
    }
    *out = generator;
    return OX_OK;
}

void ox_generator_close(struct ox_generator **generator) {
    struct ox_generator *const closing = *generator;
    if (closing == NULL) {
        return;
    }
    ox_lane_close(&closing->copies);
    ox_lane_close(&closing->run.lane);
    if (closing->arena != NULL) {
        ox_device_mem_close(closing->device, closing->arena, closing->arena_bytes);
    }
    ox_device_close(&closing->device);
    free(closing->staging_base);
    free(closing->unit_first);
    free(closing);
    *generator = NULL;
}

enum ox_weights_home ox_generator_home(const struct ox_generator *generator) {
    return generator->home;
}

uint64_t ox_generator_need(const struct ox_generator *generator, enum ox_weights_home home) {
    OX_ASSERT((unsigned)home < OX_WEIGHTS_HOME_COUNT);
    return generator->need[home];
}

uint32_t ox_generator_count(const struct ox_generator *generator) {
    return generator->count;
}

void ox_generator_rewind(struct ox_generator *generator, uint32_t count) {
    OX_ASSERT(count <= generator->count);
    generator->count = count;
}

uint32_t ox_generator_room(const struct ox_generator *generator) {
    return generator->config.contexts;
}
