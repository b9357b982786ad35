/* Mixtures of experts against transformers (mixtures.json, made by make/golden_mixtures.py): the operations of a block
 * one after the other, for each way to route; the load-balancing loss; attention with sinks; MXFP4. */
#include "base/json.h"
#include "engine/hf/mxfp4.h"
#include "base/planes.h"
#include "tests/kit/device/ops_kit.h"

#include <math.h>
#include <string.h>

/* ---- reading ---- */

static const json_t *list_of(const json_t *object, const char *key, size_t count) {
    const json_t *const list = json_object_get(object, key);
    if (json_array_size(list) != count) {
        printf("mixtures.json: %s has %zu numbers, not %zu\n", key, json_array_size(list), count);
        exit(1);
    }
    return list;
}

static float *take(const json_t *object, const char *key, size_t count) {
    const json_t *const list = list_of(object, key, count);
    float *const out = floats(count);
    for (size_t i = 0; i < count; i++) {
        out[i] = (float)json_number_value(json_array_get(list, i));
    }
    return out;
}

static int32_t *take_ids(const json_t *object, const char *key, size_t count) {
    const json_t *const list = list_of(object, key, count);
    int32_t *const out = guarded(count * sizeof *out);
    for (size_t i = 0; i < count; i++) {
        out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    }
    return out;
}

static uint32_t number(const json_t *object, const char *key, uint32_t missing) {
    const json_t *const value = json_object_get(object, key);
    return value == NULL ? missing : (uint32_t)json_integer_value(value);
}

static float real_number(const json_t *object, const char *key, double missing) {
    const json_t *const value = json_object_get(object, key);
    return (float)(value == NULL ? missing : json_number_value(value));
}

static struct ox_router router_of(const json_t *json) {
    const char *const scores = json_string_value(json_object_get(json, "scores"));
    return (struct ox_router){
        .experts = number(json, "experts", 0), .chosen = number(json, "chosen", 0), .groups = number(json, "groups", 0),
        .groups_kept = number(json, "groups_kept", 0),
        .scores = strcmp(scores, "sigmoid") == 0  ? OX_SCORES_SIGMOID
                  : strcmp(scores, "chosen") == 0 ? OX_SCORES_SOFTMAX_CHOSEN
                                                  : OX_SCORES_SOFTMAX,
        .group_rank = json_is_true(json_object_get(json, "best_two")) ? OX_GROUP_BY_BEST_TWO : OX_GROUP_BY_BEST,
        .renormalise = json_is_true(json_object_get(json, "renormalise")), .eps = real_number(json, "eps", 0.0),
        .scale = real_number(json, "scale", 1.0)};
}

static void check_list(const json_t *object, const char *key, const float *got, size_t count, double tolerance) {
    const float *const want = take(object, key, count);
    const char *const name = json_object_get(object, "name") == NULL ? "sinks, loss" : "blocks";
    check_error(name, error_of(got, widened(want, count), count), tolerance);
}

/* ---- blocks ---- */

struct block {
    const json_t *json;
    struct ox_router router;
    struct ox_gate gate;
    uint32_t rows, hidden, width, pairs;
    enum ox_weight_layout layout; /* gpt-oss: [in, out] */
    bool biased;
    float *x, *dy, *router_weight, *router_bias, *choice_bias, *gate_up, *gate_up_bias, *down, *down_bias;
    /* what the operations make */
    float *logits, *weights, *lse, *gathered, *pair, *act, *z, *y;
    float *dweights, *dlogits, *dz, *dact, *dpair, *dgathered, *dx, *drouter, *drouter_bias;
    float *dgate_up, *dgate_up_bias, *ddown, *ddown_bias;
    int32_t *experts, *offsets, *pair_of, *place;
    void *scratch;
};

static void read_block(const json_t *json, const struct lab *lab, struct block *b) {
    *b = (struct block){.json = json, .router = router_of(json_object_get(json, "router")), .gate = ox_gate_swiglu(),
                        .rows = number(json, "rows", 0), .hidden = number(json, "hidden", 0),
                        .width = number(json, "width", 0), .biased = json_object_get(json, "down_bias") != NULL};
    const size_t experts = b->router.experts, rows = b->rows, hidden = b->hidden, width = b->width;
    const size_t pairs = b->pairs = b->rows * b->router.chosen;
    if (b->biased) {
        b->layout = OX_WEIGHT_IN_OUT;
        b->gate = (struct ox_gate){real_number(json, "alpha", 0), real_number(json, "limit", 0), 1.0f, true};
        b->router_bias = take(json, "router_bias", experts);
        b->gate_up_bias = take(json, "gate_up_bias", experts * 2 * width);
        b->down_bias = take(json, "down_bias", experts * hidden);
        b->drouter_bias = floats(experts);
        b->dgate_up_bias = floats(experts * 2 * width);
        b->ddown_bias = floats(experts * hidden);
    }
    b->choice_bias = json_object_get(json, "choice_bias") == NULL ? NULL : take(json, "choice_bias", experts);
    b->x = take(json, "x", rows * hidden);
    b->dy = take(json, "dy", rows * hidden);
    b->router_weight = take(json, "router_weight", experts * hidden);
    b->gate_up = take(json, "gate_up", experts * 2 * width * hidden);
    b->down = take(json, "down", experts * width * hidden);
    float **const made[] = {&b->logits, &b->dlogits, &b->weights, &b->dweights, &b->lse, &b->gathered, &b->dgathered,
                            &b->pair, &b->dpair, &b->act, &b->dact, &b->z, &b->dz, &b->y, &b->dx, &b->drouter,
                            &b->dgate_up, &b->ddown};
    const size_t counts[] = {rows * experts, rows * experts, pairs, pairs, rows, pairs * hidden, pairs * hidden,
                             pairs * 2 * width, pairs * 2 * width, pairs * width, pairs * width, pairs * hidden,
                             pairs * hidden, rows * hidden, rows * hidden, experts * hidden,
                             experts * 2 * width * hidden, experts * width * hidden};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        *made[i] = floats(counts[i]);
    }
    b->experts = guarded(pairs * sizeof(int32_t));
    b->pair_of = guarded(pairs * sizeof(int32_t));
    b->place = guarded(pairs * sizeof(int32_t));
    b->offsets = guarded((experts + 1) * sizeof(int32_t));
    b->scratch = guarded(ox_ops_grouped_scratch_bytes(&lab->compute, b->hidden, 2 * b->width) +
                         ox_ops_route_sort_scratch_bytes(b->rows, b->router.experts));
}

static struct ox_experts experts_of(const struct block *b) {
    return (struct ox_experts){.offsets = b->offsets, .count = b->router.experts, .rows_max = b->pairs};
}

static void block_forward(struct ox_run *run, const struct block *b) {
    OX_RUN(run, router_forward, .logits = b->logits, .in = b->x, .weight = b->router_weight, .bias = b->router_bias,
           .rows = b->rows, .in_count = b->hidden, .experts = b->router.experts);
    OX_RUN(run, route_forward, .experts = b->experts, .weights = b->weights, .lse = b->lse, .logits = b->logits,
           .bias = b->choice_bias, .rows = b->rows, .router = b->router);
    OX_RUN(run, route_sort, .offsets = b->offsets, .pair_of = b->pair_of, .place = b->place, .experts = b->experts,
           .scratch = b->scratch, .rows = b->rows, .chosen = b->router.chosen, .expert_count = b->router.experts);
    OX_RUN(run, rows_gather, .out = b->gathered, .in = b->x, .pair_of = b->pair_of, .rows = b->rows,
           .chosen = b->router.chosen, .width = b->hidden);
    OX_RUN(run, grouped_forward, .out = b->pair, .in = b->gathered, .weight = b->gate_up, .bias = b->gate_up_bias,
           .scratch = b->scratch, .experts = experts_of(b), .in_count = b->hidden, .out_count = 2 * b->width,
           .layout = b->layout);
    OX_RUN(run, expert_act_forward, .out = b->act, .in = b->pair, .weights = b->weights, .pair_of = b->pair_of,
           .gate = b->gate, .rows = b->pairs, .width = b->width);
    OX_RUN(run, grouped_forward, .out = b->z, .in = b->act, .weight = b->down, .scratch = b->scratch,
           .experts = experts_of(b), .in_count = b->width, .out_count = b->hidden, .layout = b->layout);
    OX_RUN(run, rows_combine, .out = b->y, .in = b->z, .place = b->place, .bias = b->down_bias, .weights = b->weights,
           .experts = b->experts, .rows = b->rows, .chosen = b->router.chosen, .width = b->hidden);
}

static void block_backward(struct ox_run *run, const struct block *b) {
    OX_RUN(run, rows_gather, .out = b->dz, .in = b->dy, .pair_of = b->pair_of, .rows = b->rows,
           .chosen = b->router.chosen, .width = b->hidden);
    if (b->biased) {
        OX_RUN(run, combine_bias_backward, .dweights = b->dweights, .dbias = b->ddown_bias, .dout = b->dy,
               .bias = b->down_bias, .weights = b->weights, .experts = b->experts, .group = experts_of(b),
               .pair_of = b->pair_of, .rows = b->rows, .chosen = b->router.chosen, .width = b->hidden,
               .begins = true);
    }
    OX_RUN(run, grouped_backward, .din = b->dact, .dweight = b->ddown, .dout = b->dz, .in = b->act, .weight = b->down,
           .scratch = b->scratch, .experts = experts_of(b), .in_count = b->width, .out_count = b->hidden,
           .layout = b->layout, .begins = true);
    OX_RUN(run, expert_act_backward, .din = b->dpair, .dweights = b->dweights, .dout = b->dact, .in = b->pair,
           .weights = b->weights, .pair_of = b->pair_of, .gate = b->gate, .rows = b->pairs, .width = b->width,
           .adds = b->biased);
    OX_RUN(run, grouped_backward, .din = b->dgathered, .dweight = b->dgate_up, .dbias = b->dgate_up_bias,
           .dout = b->dpair, .in = b->gathered, .weight = b->gate_up, .scratch = b->scratch, .experts = experts_of(b),
           .in_count = b->hidden, .out_count = 2 * b->width, .layout = b->layout, .begins = true);
    OX_RUN(run, rows_combine, .out = b->dx, .in = b->dgathered, .place = b->place, .rows = b->rows,
           .chosen = b->router.chosen, .width = b->hidden, .from_last = true);
    OX_RUN(run, route_backward, .dlogits = b->dlogits, .dweights = b->dweights, .logits = b->logits,
           .weights = b->weights, .lse = b->lse, .experts = b->experts, .rows = b->rows, .router = b->router);
    OX_RUN(run, router_backward, .din = b->dx, .residual = b->dx, .dweight = b->drouter, .dbias = b->drouter_bias,
           .dlogits = b->dlogits, .in = b->x, .weight = b->router_weight, .rows = b->rows, .in_count = b->hidden,
           .experts = b->router.experts, .begins = true);
}

static void test_block(struct lab *lab, const json_t *json) {
    static const double near = 3e-6;
    struct block b;
    read_block(json, lab, &b);
    struct ox_run run = {.ops = &lab->ops, .lane = lab->lane};
    block_forward(&run, &b);
    block_backward(&run, &b);
    REQUIRE_OK(run.status);
    lab_finish(lab);
    const size_t experts = b.router.experts, hidden = b.hidden, width = b.width;
    CHECK(memcmp(b.experts, take_ids(json, "chosen", b.pairs), b.pairs * sizeof(int32_t)) == 0);
    check_list(json, "logits", b.logits, b.rows * experts, near);
    check_list(json, "weights", b.weights, b.pairs, near);
    check_list(json, "y", b.y, b.rows * hidden, near);
    check_list(json, "dx", b.dx, b.rows * hidden, near);
    check_list(json, "drouter", b.drouter, experts * hidden, near);
    check_list(json, "dgate_up", b.dgate_up, experts * 2 * width * hidden, near);
    check_list(json, "ddown", b.ddown, experts * width * hidden, near);
    if (b.biased) {
        check_list(json, "drouter_bias", b.drouter_bias, experts, near);
        check_list(json, "dgate_up_bias", b.dgate_up_bias, experts * 2 * width, near);
        check_list(json, "ddown_bias", b.ddown_bias, experts * hidden, near);
    }
    guards_end(0);
}

/* ---- the load-balancing loss, over two layers ---- */

static void test_loss(struct lab *lab, const json_t *json) {
    const uint32_t rows = number(json, "rows", 0), experts = number(json, "experts", 0);
    const struct ox_router router = {.experts = experts, .chosen = number(json, "chosen", 0), .scale = 1.0f};
    const struct ox_route_load_layout at = ox_route_load_layout_of(experts);
    const size_t pairs = (size_t)rows * router.chosen, count = (size_t)rows * experts;
    double *const load = doubles(at.count);
    int32_t *const counted = take_ids(json, "mask", rows), *ids[2];
    float *logits[2], *lse[2], *const weights = floats(pairs), *const dweights = floats(pairs);
    struct ox_run run = {.ops = &lab->ops, .lane = lab->lane};
    for (uint32_t row = 0; row < rows; row++) {
        counted[row] = counted[row] == 0 ? OX_TARGET_PADDING : 0;
    }
    fill(dweights, pairs, 0.0f);
    for (size_t layer = 0; layer < 2; layer++) {
        const json_t *const list = json_array_get(json_object_get(json, "logits"), layer);
        logits[layer] = floats(count);
        lse[layer] = floats(rows);
        ids[layer] = guarded(pairs * sizeof(int32_t));
        for (size_t i = 0; i < count; i++) {
            logits[layer][i] = (float)json_number_value(json_array_get(list, i));
        }
        OX_RUN(&run, route_forward, .experts = ids[layer], .weights = weights, .lse = lse[layer],
               .logits = logits[layer], .rows = rows, .router = router);
        OX_RUN(&run, route_load, .load = load, .logits = logits[layer], .lse = lse[layer], .experts = ids[layer],
               .counted = counted, .scratch = guarded(ox_ops_route_load_scratch_bytes(experts)), .rows = rows,
               .router = router, .begins = layer == 0);
    }
    for (size_t layer = 0; layer < 2; layer++) {
        const json_t *const list = json_array_get(json_object_get(json, "dlogits"), layer);
        float *const dlogits = floats(count), *const want = floats(count);
        for (size_t i = 0; i < count; i++) {
            want[i] = (float)json_number_value(json_array_get(list, i));
        }
        OX_RUN(&run, route_backward, .dlogits = dlogits, .dweights = dweights, .logits = logits[layer],
               .weights = weights, .lse = lse[layer], .experts = ids[layer], .load = load, .counted = counted,
               .rows = rows, .balance = 1.0f, .router = router);
        REQUIRE_OK(run.status);
        lab_finish(lab);
        check_error("gradient of the loss", error_of(dlogits, widened(want, count), count), 2e-6);
    }
    double loss = 0.0;
    for (uint32_t e = 0; e < experts; e++) {
        loss += load[at.counts + e] * load[at.probs + e];
    }
    loss *= experts / (load[at.rows] * load[at.rows]);
    CHECK(fabs(loss - json_number_value(json_object_get(json, "loss"))) < 1e-6);
    guards_end(0);
}

/* ---- attention with sinks ---- */

static void test_sinks(struct lab *lab, const json_t *json) {
    const struct ox_attention_shape s = {
        .batch = number(json, "batch", 0), .seq = number(json, "seq", 0), .heads = number(json, "heads", 0),
        .kv_heads = number(json, "kv_heads", 0), .head_dim = number(json, "head_dim", 0), .scale = 0.5f};
    const size_t qkv_len = (size_t)s.batch * s.seq * (s.heads + 2 * s.kv_heads) * s.head_dim;
    const size_t out_len = (size_t)s.batch * s.seq * s.heads * s.head_dim;
    float *const qkv = take(json, "qkv", qkv_len), *const sinks = take(json, "sinks", s.heads);
    float *const dout = take(json, "dout", out_len), *const out = floats(out_len), *const dqkv = floats(qkv_len);
    float *const lse = floats((size_t)s.batch * s.heads * s.seq), *const dsinks = floats(s.heads);
    void *const scratch = guarded(ox_ops_attention_scratch_bytes(&lab->compute, &s));
    struct ox_run run = {.ops = &lab->ops, .lane = lab->lane};
    OX_RUN(&run, attention_forward, .out = out, .lse = lse, .qkv = qkv, .scratch = scratch, .shape = s);
    OX_RUN(&run, sinks_forward, .out = out, .lse = lse, .sinks = sinks, .batch = s.batch, .seq = s.seq,
           .heads = s.heads, .head_dim = s.head_dim);
    OX_RUN(&run, attention_backward, .dqkv = dqkv, .dout = dout, .qkv = qkv, .out = out, .lse = lse,
           .scratch = scratch, .shape = s);
    OX_RUN(&run, sinks_backward, .dsinks = dsinks, .dout = dout, .out = out, .sinks = sinks, .lse = lse,
           .batch = s.batch, .seq = s.seq, .heads = s.heads, .head_dim = s.head_dim, .begins = true);
    REQUIRE_OK(run.status);
    lab_finish(lab);
    check_list(json, "out", out, out_len, 1e-6);
    check_list(json, "dqkv", dqkv, qkv_len, 2e-6);
    check_list(json, "dsinks", dsinks, s.heads, 2e-6);
    guards_end(0);
}

/* ---- MXFP4 ---- */

static void test_mxfp4(const json_t *json) {
    const size_t groups = json_array_size(json_object_get(json, "scales")), count = groups * OX_MXFP4_GROUP;
    const int32_t *const blocks = take_ids(json, "blocks", groups * OX_MXFP4_GROUP_BYTES);
    const int32_t *const scales = take_ids(json, "scales", groups);
    const float *const want = take(json, "values", count);
    for (size_t i = 0; i < groups; i++) {
        uint8_t block[OX_MXFP4_GROUP_BYTES];
        const uint8_t scale = (uint8_t)scales[i];
        float out[OX_MXFP4_GROUP];
        uint16_t narrow[OX_MXFP4_GROUP];
        for (size_t k = 0; k < OX_MXFP4_GROUP_BYTES; k++) {
            block[k] = (uint8_t)blocks[i * OX_MXFP4_GROUP_BYTES + k];
        }
        CHECK(ox_mxfp4_to_f32(out, block, &scale, 1) && ox_mxfp4_to_bf16(narrow, block, &scale, 1));
        for (size_t k = 0; k < OX_MXFP4_GROUP; k++) {
            CHECK(out[k] == want[i * OX_MXFP4_GROUP + k] && ox_bf16_to_f32(narrow[k]) == out[k]);
        }
    }
    guards_end(0);
}

int main(void) {
    struct lab labs[LAB_MAX];
    json_t *json = NULL;
    const json_t *block;
    size_t i;
    REQUIRE_OK(ox_json_load("tests/golden/mixtures.json", 4 << 20, &json));
    labs_open(labs);
    for (int lab = 0; lab < lab_count; lab++) {
        CHECK(json_array_size(json_object_get(json, "blocks")) == 7);
        json_array_foreach(json_object_get(json, "blocks"), i, block) {
            test_block(&labs[lab], block);
        }
        test_loss(&labs[lab], json_object_get(json, "loss"));
        test_sinks(&labs[lab], json_object_get(json, "sinks"));
    }
    test_mxfp4(json_object_get(json, "mxfp4"));
    json_decref(json);
    return labs_end(labs);
}
