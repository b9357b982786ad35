/* Times the linear layers and the attention of a model at a run's micro-batch, on the threads of the CPU device. */
#include "engine/measure/measure_internal.h"
#include "engine/measure/probe.h"
#include "engine/measure/rig.h"
#include "engine/model/units.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"

#include <math.h>
#include <stdlib.h>

/* A linear layer's two passes are three GEMMs. */
enum {
    LAYERS = 5, ITEMS = LAYERS + 1, TURNS_MAX = 2, ROUNDS_MAX = 40, DIM_MIN = 128, PASS_GEMMS = 3, TRIAL_DIM = 384,
    TRIALS = 6
};
/* One round may take this share of the first turn, so that it has three at least; and memory at most so much. */
static const double ROUND_SHARE = 0.25;
static const uint64_t BYTES_LEAST = UINT64_C(8) << 20, APART_BYTES = UINT64_C(96) << 20, BYTES_MOST = UINT64_C(1) << 30;

struct layer {
    double params;                 /* in all layers of the kind in the model */
    struct ox_measure_layer shape; /* as measured: the model's, or smaller */
};

struct work {
    struct layer layers[LAYERS];
    struct ox_attention_shape attention;
    double seconds[TURNS_MAX][ITEMS][ROUNDS_MAX]; /* for forward and backward; layers, then attention */
    uint32_t counts[TURNS_MAX][ITEMS];
    uint32_t turns;
    uint64_t at; /* where in memory the next item lies: behind the last, so that caches do not hold it yet */
};

struct ox_measure_turns {
    const struct ox_measure_input *input;
    struct work work;
    struct ox_compute compute;
};

static double elems_of(const struct layer *layer) {
    return (double)layer->shape.in * layer->shape.out;
}

static double flops_of(const struct layer *layer) {
    return PASS_GEMMS * 2.0 * layer->shape.rows * elems_of(layer);
}

/* Bytes that the three GEMMs pack, read and write, as engine/model counts them: operands thrice, the result once. */
static double packed_bytes(const struct layer *layer) {
    const double rows = layer->shape.rows, w = elems_of(layer);
    const double x = rows * layer->shape.in, y = rows * layer->shape.out;
    return 4 * (3 * (x + w) + y + 3 * (y + w) + x + 3 * (y + x) + 2 * w);
}

static double attention_flops(const struct ox_compute *compute, const struct ox_attention_shape *shape) {
    return ox_attention_flops(compute, shape, false) + ox_attention_flops(compute, shape, true);
}

static uint64_t attention_bytes(const struct ox_attention_shape *shape, const struct ox_compute *compute) {
    const uint64_t rows = (uint64_t)shape->batch * shape->seq;
    const uint64_t wide = (uint64_t)(shape->heads + 2 * shape->kv_heads) * shape->head_dim;
    const uint64_t narrow = (uint64_t)shape->heads * shape->head_dim;
    return 4 * rows * (2 * wide + 2 * narrow + shape->heads) + ox_ops_attention_scratch_bytes(compute, shape) + 4096;
}

static uint64_t item_bytes(const struct work *work, uint32_t item, uint32_t threads) {
    const struct ox_compute compute = {.device = OX_DEVICE_CPU, .real = OX_REAL_F32, .threads = threads};
    return item < LAYERS ? ox_measure_layer_bytes(&work->layers[item].shape)
                         : attention_bytes(&work->attention, &compute);
}

/* Bytes of the largest item; or of all, one behind the other, if these are not many. */
static uint64_t work_bytes(const struct work *work, uint32_t threads, bool all) {
    uint64_t most = 0, sum = 0;
    for (uint32_t item = 0; item < ITEMS; item++) {
        most = ox_max_u64(most, item_bytes(work, item, threads));
        sum += item_bytes(work, item, threads);
    }
    return all ? ox_max_u64(most, ox_min_u64(sum, APART_BYTES)) : most;
}

/* ---- what is measured ------------------------------------------------------------------------------- */

static void lay_out(const struct ox_measure_input *input, struct work *work) {
    const struct ox_model_config *const model = input->model;
    const uint32_t heads = model->heads * model->head_dim, qkv = heads + 2 * model->kv_heads * model->head_dim;
    const uint32_t up = (ox_activation_is_gated(model->act) ? 2 : 1) * model->width;
    const uint32_t dims[LAYERS][2] = {{model->hidden, qkv}, {heads, model->hidden}, {model->hidden, up},
                                      {model->width, model->hidden}, {model->hidden, model->vocab}};
    *work = (struct work){.turns = 0};
    for (unsigned i = 0; i < LAYERS; i++) {
        const bool head = i == LAYERS - 1;
        struct layer *const layer = &work->layers[i];
        layer->shape = (struct ox_measure_layer){.rows = input->batch * input->seq, .in = dims[i][0], .out = dims[i][1],
                                                 .layout = head ? OX_WEIGHT_OUT_IN : model->layout};
        layer->params = elems_of(layer) * (head ? 1 : model->layers);
    }
    work->attention = (struct ox_attention_shape){
        .batch = input->batch, .seq = input->seq, .heads = model->heads, .kv_heads = model->kv_heads,
        .head_dim = model->head_dim, .window = ox_layers_has(&model->windowed, 0) ? model->window : 0,
        .scale = 1.0f / sqrtf((float)model->head_dim)};
}

/* Halves the largest dimension, beyond which the rate hardly changes; false when it cannot be halved. */
static bool halve(struct layer *layer) {
    uint32_t *dim = &layer->shape.rows;
    dim = layer->shape.in > *dim ? &layer->shape.in : dim;
    dim = layer->shape.out > *dim ? &layer->shape.out : dim;
    *dim = *dim > DIM_MIN ? *dim / 2 : *dim;
    return *dim > DIM_MIN;
}

static bool halve_attention(struct ox_attention_shape *shape) {
    const uint32_t group = shape->heads / shape->kv_heads;
    uint32_t *const dim = shape->batch > 1 ? &shape->batch : shape->kv_heads > 1 ? &shape->kv_heads : &shape->seq;
    *dim = *dim > 1 ? *dim / 2 : 1;
    shape->heads = group * shape->kv_heads;
    return shape->seq > DIM_MIN;
}

/* Makes the work so small that a round takes at most `seconds` at this rate, and its memory is at most `bytes`. */
static void shrink(struct work *work, const struct ox_measure_rig *rig, double flops, double seconds, uint64_t bytes) {
    const double attention_most = 0.25 * seconds, layers_most = seconds - attention_most;
    while ((attention_flops(&rig->compute, &work->attention) / flops > attention_most ||
            attention_bytes(&work->attention, &rig->compute) > bytes) && halve_attention(&work->attention)) {
    }
    for (bool more = true; more;) {
        struct layer *largest = &work->layers[0];
        double all = 0;
        for (unsigned i = 0; i < LAYERS; i++) {
            struct layer *const layer = &work->layers[i];
            all += flops_of(layer);
            largest = flops_of(layer) > flops_of(largest) ? layer : largest;
            while (ox_measure_layer_bytes(&layer->shape) > bytes && halve(layer)) {
            }
        }
        more = all / flops > layers_most && halve(largest);
    }
}

/* ---- running ---------------------------------------------------------------------------------------- */

static enum ox_status run_attention(struct ox_measure_rig *rig, const struct ox_attention_shape *shape,
                                    uint64_t offset, double *seconds) {
    struct ox_bump room = {.base = rig->arena.base + offset};
    const uint64_t rows = (uint64_t)shape->batch * shape->seq;
    const uint64_t wide = rows * (shape->heads + 2 * shape->kv_heads) * shape->head_dim * 4;
    const uint64_t narrow = rows * shape->heads * shape->head_dim * 4;
    void *const qkv = ox_bump_alloc(&room, wide), *const dqkv = ox_bump_alloc(&room, wide);
    void *const out = ox_bump_alloc(&room, narrow), *const dout = ox_bump_alloc(&room, narrow);
    float *const lse = ox_bump_alloc(&room, rows * shape->heads * 4);
    void *const scratch = ox_bump_alloc(&room, ox_ops_attention_scratch_bytes(&rig->compute, shape));
    const struct ox_op_attention_forward forward = {
        .out = out, .lse = lse, .qkv = qkv, .scratch = scratch, .shape = *shape, .real = OX_REAL_F32};
    const struct ox_op_attention_backward backward = {
        .dqkv = dqkv, .dout = dout, .qkv = qkv, .out = out, .lse = lse, .scratch = scratch, .shape = *shape,
        .real = OX_REAL_F32};
    const enum ox_status status = ox_measure_rig_time(rig, OX_OP_attention_forward, &forward, seconds);
    return status == OX_OK ? ox_measure_rig_time(rig, OX_OP_attention_backward, &backward, seconds) : status;
}

static enum ox_status run_item(struct ox_measure_rig *rig, struct work *work, uint32_t item, double *seconds) {
    const uint64_t bytes = ox_align_up(item_bytes(work, item, rig->compute.threads), 64);
    const uint64_t offset = work->at + bytes <= rig->arena.bytes ? work->at : 0;
    work->at = offset + bytes;
    *seconds = 0;
    return item < LAYERS ? ox_measure_rig_layer(rig, &work->layers[item].shape, offset, seconds)
                         : run_attention(rig, &work->attention, offset, seconds);
}

/* Runs all items one after another until the time is over. The first round touches the memory, and counts only for
 * items that the second does not reach. */
static enum ox_status run_rounds(struct ox_measure_rig *rig, struct work *work, uint64_t end_ns) {
    const uint32_t turn = work->turns++;
    OX_ASSERT(turn < TURNS_MAX);
    for (uint32_t round = 0; round <= ROUNDS_MAX; round++) {
        for (uint32_t item = 0; item < ITEMS; item++) {
            const uint32_t at = round == 0 ? 0 : round - 1;
            if ((round > 0 || item > 0) && ox_clock_ns() >= end_ns) {
                return OX_OK;
            }
            double seconds = 0;
            const enum ox_status status = run_item(rig, work, item, &seconds);
            if (status != OX_OK) {
                return status;
            }
            work->seconds[turn][item][at] = seconds;
            work->counts[turn][item] = at + 1;
        }
    }
    return OX_OK;
}

/* Seconds of an item: the median of its faster turn; 0: no turn reached it. */
static double seconds_of(const struct work *work, uint32_t item) {
    double least = INFINITY;
    for (uint32_t turn = 0; turn < work->turns; turn++) {
        const uint32_t count = work->counts[turn][item];
        least = count > 0 ? fmin(least, ox_probe_median(work->seconds[turn][item], count)) : least;
    }
    return isfinite(least) ? least : 0;
}

/* An item that no turn reached is left out. */
void ox_measure_turns_result(const struct ox_measure_turns *turns, struct ox_measure_compute *out) {
    const struct work *const work = &turns->work;
    double flops = 0, seconds = 0, packed = 0;
    for (unsigned i = 0; i < LAYERS && seconds_of(work, i) > 0; i++) {
        const struct layer *const layer = &work->layers[i];
        const double times = layer->params / elems_of(layer);
        flops += times * flops_of(layer);
        packed += times * packed_bytes(layer);
        seconds += times * seconds_of(work, i);
    }
    const double attention = seconds_of(work, LAYERS);
    *out = (struct ox_measure_compute){.gemm_flops = flops / seconds, .packed_bytes_per_flop = packed / flops};
    out->attention_flops =
        attention > 0 ? attention_flops(&turns->compute, &work->attention) / attention : out->gemm_flops;
}

/* A first guess of the rate: the best of some trials of a small layer, because the first ones start the threads. */
static enum ox_status guess(struct ox_measure_rig *rig, double *flops) {
    const struct layer trial = {
        .shape = {.rows = TRIAL_DIM, .in = TRIAL_DIM, .out = TRIAL_DIM, .layout = OX_WEIGHT_OUT_IN}};
    double least = INFINITY;
    enum ox_status status = OX_OK;
    for (int i = 0; i < TRIALS && status == OX_OK; i++) {
        double seconds = 0;
        status = ox_measure_rig_layer(rig, &trial.shape, 0, &seconds);
        least = fmin(least, fmax(seconds, 1e-9));
    }
    *flops = flops_of(&trial) / least;
    return status;
}

/* Opens memory for the work, as much of it as the machine gives within half of the time. */
static enum ox_status open_room(struct ox_measure_turns *turns, uint64_t end_ns, struct ox_measure_rig *rig) {
    const struct ox_measure_input *const input = turns->input;
    const uint64_t now_ns = ox_clock_ns(), left_ns = end_ns > now_ns ? end_ns - now_ns : 1;
    const struct ox_probe_room room = {.bytes = work_bytes(&turns->work, input->compute_threads, true),
                                       .least = BYTES_LEAST, .end_ns = now_ns + left_ns / 2};
    return ox_measure_rig_open(input->compute_threads, input->products, &room, rig);
}

/* Makes the work so small that several rounds of it fit in the time. */
static enum ox_status choose_work(struct ox_measure_turns *turns, uint64_t end_ns) {
    const struct ox_measure_input *const input = turns->input;
    const struct ox_probe_room small = {.bytes = BYTES_LEAST, .least = BYTES_LEAST, .end_ns = end_ns};
    struct ox_measure_rig rig;
    double flops = 0;
    enum ox_status status = ox_measure_rig_open(input->compute_threads, input->products, &small, &rig);
    if (status != OX_OK) {
        return status;
    }
    lay_out(input, &turns->work);
    turns->compute = rig.compute;
    status = guess(&rig, &flops);
    const uint64_t now_ns = ox_clock_ns();
    const double left = end_ns > now_ns ? (double)(end_ns - now_ns) * 1e-9 : 1e-3;
    if (status == OX_OK) {
        shrink(&turns->work, &rig, flops, ROUND_SHARE * left, BYTES_MOST);
    }
    ox_measure_rig_close(&rig);
    return status;
}

enum ox_status ox_measure_turn(struct ox_measure_turns *turns, uint64_t end_ns) {
    const bool first = turns->work.turns == 0;
    struct ox_measure_rig rig;
    enum ox_status status = first ? choose_work(turns, end_ns) : OX_OK;
    OX_THEN(status, open_room(turns, end_ns, &rig));
    if (status != OX_OK) {
        return status;
    }
    if (first) { /* less work for less memory; later turns must do the same */
        shrink(&turns->work, &rig, 1, INFINITY, rig.arena.bytes);
    }
    const bool enough = work_bytes(&turns->work, rig.compute.threads, false) <= rig.arena.bytes;
    turns->work.at = 0;
    status = enough ? run_rounds(&rig, &turns->work, end_ns)
                    : ox_fail(OX_E_BUSY, "the machine gives memory too slowly; try again when it is less busy, or "
                              "measure with `offload bench all --output FILE` and give --profile FILE");
    ox_measure_rig_close(&rig);
    return status;
}

enum ox_status ox_measure_turns_open(const struct ox_measure_input *input, struct ox_measure_turns **out) {
    *out = calloc(1, sizeof **out);
    if (*out == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory to measure compute");
    }
    (*out)->input = input;
    return OX_OK;
}

void ox_measure_turns_close(struct ox_measure_turns **turns) {
    free(*turns);
    *turns = NULL;
}
