/* The sizes of a step, and its products: those that engine/model/list.c and head.c run. */
#include "tools/bench/bench_device.h"

#include "base/bytes.h"

#include <inttypes.h>
#include <stdio.h>

enum { HIDDEN_MIN = 256, DIM_MIN = 32, GROUP = 4 /* heads of queries that share one of keys, without a model */ };

/* ---- sizes --------------------------------------------------------------------------------------------- */

static uint32_t half(uint32_t dim, uint32_t least) {
    return dim / 2 > least ? dim / 2 : least;
}

/* Whole sequences of at most `rows` tokens, each of at most `seq`. */
static void set_rows(struct ox_bench_shape *shape, uint32_t rows, uint32_t seq) {
    shape->seq = (uint32_t)ox_min_u64(seq, rows);
    shape->rows = rows / shape->seq * shape->seq;
}

static void halve(struct ox_bench_shape *shape, bool of_model) {
    set_rows(shape, half(shape->rows, DIM_MIN), shape->seq);
    if (!of_model) {
        shape->hidden = half(shape->hidden, HIDDEN_MIN);
        shape->width = half(shape->width, DIM_MIN);
        shape->vocab = half(shape->vocab, DIM_MIN);
    }
}

bool ox_bench_shape_choose(const struct ox_bench *bench, const struct ox_bench_device *device,
                           const struct ox_bench_limit *room, struct ox_bench_shape *out) {
    const bool gpu = device->compute.device == OX_DEVICE_CUDA, of_model = bench->model.hidden > 0;
    const struct ox_bench_shape fixed =
        gpu ? (struct ox_bench_shape){.rows = 8192, .seq = 4096, .hidden = 4096, .width = 11008, .vocab = 32000,
                                      .gated = true}
            : (struct ox_bench_shape){.rows = 512, .seq = 512, .hidden = 2048, .width = 5632, .vocab = 8000,
                                      .gated = true};
    *out = of_model ? bench->model : fixed;
    set_rows(out, fixed.rows, (uint32_t)ox_min_u64(fixed.seq, out->seq));
    uint64_t bytes = room->bytes(room->context, out), before = UINT64_MAX;
    while (room->most != 0 && bytes > room->most) {
        if (bytes == before) {
            return false;
        }
        before = bytes;
        halve(out, of_model);
        bytes = room->bytes(room->context, out);
    }
    return true;
}

enum ox_status ox_bench_shape_refuse(const struct ox_bench *bench, const struct ox_bench_limit *room,
                                     const struct ox_bench_shape *least) {
    const uint64_t bytes = room->bytes(room->context, least);
    return bench->config->bench.size_bytes != 0
               ? ox_fail(OX_E_CONFIG, "--size: %" PRIu64 " bytes are too few for the tensors; give at least %" PRIu64
                         "B",
                         room->most, bytes)
               : ox_fail(OX_E_CONFIG, "the tensors take at least %" PRIu64 " bytes, and half of the free memory is %"
                         PRIu64 "; --size %" PRIu64 "B tries it anyway", bytes, room->most, bytes);
}

void ox_bench_shape_note(const struct ox_bench *bench, const char *part, const struct ox_bench_shape *shape,
                         uint32_t rounds) {
    char heads[96] = "";
    if (shape->heads > 0) {
        snprintf(heads, sizeof heads, ", %" PRIu32 " heads of %" PRIu32 " with %" PRIu32 " of keys", shape->heads,
                 shape->head_dim, shape->kv_heads);
    }
    ox_bench_note(bench, "%s: %" PRIu32 " rows in sequences of %" PRIu32 ", hidden %" PRIu32 "%s, width %" PRIu32
                  ", vocabulary %" PRIu32 ", median of %" PRIu32 " rounds", part, shape->rows, shape->seq,
                  shape->hidden, heads, shape->width, shape->vocab, rounds);
}

/* ---- products ------------------------------------------------------------------------------------------ */

uint32_t ox_bench_attention_width(const struct ox_bench_shape *shape) {
    return shape->heads > 0 ? shape->heads * shape->head_dim : shape->hidden;
}

uint32_t ox_bench_qkv_width(const struct ox_bench_shape *shape) {
    return shape->heads > 0 ? (shape->heads + 2 * shape->kv_heads) * shape->head_dim : 3 * shape->hidden;
}

struct ox_bench_layer ox_bench_layer_of(const struct ox_bench_shape *shape, enum ox_bench_product product) {
    const uint32_t hidden = shape->hidden, width = shape->width;
    const struct ox_bench_layer all[OX_BENCH_PRODUCT_COUNT] = {
        [OX_BENCH_QKV] = {"qkv", hidden, ox_bench_qkv_width(shape), .in_block = true},
        [OX_BENCH_QKV_GQA] = {"qkv_gqa", hidden, hidden + 2 * (hidden / GROUP)},
        [OX_BENCH_PROJECTION] = {"projection", ox_bench_attention_width(shape), hidden, .residual = true,
                                 .in_block = true},
        [OX_BENCH_GATE_UP] = {"gate_up", hidden, (shape->gated ? 2 : 1) * width, .in_block = true},
        [OX_BENCH_DOWN] = {"down", width, hidden, .residual = true, .in_block = true},
        [OX_BENCH_HEAD] = {"head", hidden, shape->vocab},
    };
    struct ox_bench_layer layer = all[product];
    layer.layout = shape->transposed && layer.in_block ? OX_WEIGHT_IN_OUT : OX_WEIGHT_OUT_IN;
    return layer;
}

uint32_t ox_bench_layers(const struct ox_bench_shape *shape, struct ox_bench_layer layers[OX_BENCH_PRODUCT_COUNT]) {
    uint32_t count = 0;
    for (int i = 0; i < OX_BENCH_PRODUCT_COUNT; i++) {
        if (i != OX_BENCH_QKV_GQA || shape->heads == 0) {
            layers[count++] = ox_bench_layer_of(shape, (enum ox_bench_product)i);
        }
    }
    return count;
}
