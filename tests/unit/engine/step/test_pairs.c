/* Losses of pairs of sequences beside TRL's DPOTrainer (tests/golden/make/golden_pairs.py): the reference's
 * log-probabilities, and losses, norms, rewards and accuracies of ten steps; the same bits in memory and on drives. */
#include "base/json.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BATCH = 4, SEQ = 24, MICRO_BATCHES = 2, STEPS = 10, ROWS = BATCH * MICRO_BATCHES, PAIRS = ROWS / 2 };

struct results {
    double loss[STEPS], norm[STEPS], values[STEPS][OX_PAIR_VALUES], reference[STEPS * ROWS];
};

static double number(const json_t *from, const char *key, size_t idx) {
    const json_t *const value = json_array_get(json_object_get(from, key), idx);
    CHECK(json_is_number(value));
    return json_number_value(value);
}

static void fill(struct ox_engine *engine, const json_t *golden, size_t step, const double *reference) {
    for (uint32_t mb = 0; mb < MICRO_BATCHES; mb++) {
        const struct ox_batch batch = ox_engine_batch(engine, mb);
        for (uint32_t row = 0; row < BATCH; row++) {
            const size_t idx = step * ROWS + mb * BATCH + row;
            const json_t *const ids = json_array_get(json_object_get(golden, "inputs"), idx);
            const json_t *const targets = json_array_get(json_object_get(golden, "targets"), idx);
            CHECK(json_array_size(ids) == SEQ && json_array_size(targets) == SEQ);
            for (uint32_t i = 0; i < SEQ; i++) {
                batch.ids[row * SEQ + i] = (int32_t)json_integer_value(json_array_get(ids, i));
                batch.targets[row * SEQ + i] = (int32_t)json_integer_value(json_array_get(targets, i));
            }
            batch.reference[row] = reference == NULL ? 0 : reference[idx];
        }
    }
}

/* Keeps the log-probabilities of all sequences by the weights as they are. */
static void take_reference(struct harness *harness, const json_t *golden, double *reference) {
    for (size_t step = 0; step < STEPS; step++) {
        struct ox_eval_result result;
        fill(harness->engine, golden, step, NULL);
        REQUIRE_OK(ox_engine_eval(harness->engine, &(struct ox_step_input){.target_count = PAIRS}, &result));
        CHECK(result.loss_values == OX_PAIR_VALUES + BATCH);
        for (uint32_t i = 0; i < ROWS; i++) {
            reference[step * ROWS + i] = result.losses[(size_t)(i / BATCH) * result.loss_values + OX_PAIR_VALUES +
                                                       i % BATCH];
        }
    }
}

/* tensors: ranks that divide the groups. */
static void train(const json_t *golden, const json_t *of, const struct harness_place *place, uint32_t tensor_groups,
                  uint32_t tensors, struct results *out) {
    const struct harness_run run = {
        .model_folder = "tests/golden/pairs", .batch = BATCH, .seq = SEQ, .micro_batches = MICRO_BATCHES,
        .compute_threads = 2, .dtype = OX_COMPUTE_FP32, .tensor_groups = tensor_groups,
        .tensors = tensors, .ranks = tensors, .sum_groups = 1,
        .objective = {.pairs = true,
                      .pair_loss = (enum ox_pair_loss)json_integer_value(json_object_get(of, "loss")),
                      .beta = (float)json_number_value(json_object_get(of, "beta")),
                      .pair_smoothing = (float)json_number_value(json_object_get(of, "smoothing")),
                      .sft = (float)json_number_value(json_object_get(of, "sft"))}};
    struct harness harness;
    *out = (struct results){0};
    harness_open(&run, place, &harness);
    take_reference(&harness, golden, out->reference);
    for (size_t step = 0; step < STEPS; step++) {
        struct ox_step_result result;
        fill(harness.engine, golden, step, out->reference);
        const struct ox_step_input input = {
            .step = step + 1, .target_count = PAIRS, .max_grad_norm = 1,
            .adam = {.learning_rate = json_number_value(json_object_get(golden, "learning_rate")), .beta1 = 0.9,
                     .beta2 = 0.999, .eps = 1e-8, .grad_scale = 1, .step = step + 1}};
        REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
        CHECK(memcmp(result.traffic, result.planned, sizeof result.traffic) == 0);
        out->loss[step] = result.loss;
        out->norm[step] = result.grad_norm;
        memcpy(out->values[step], result.values, sizeof result.values);
    }
    harness_close(&harness);
}

static void check_run(const json_t *golden, const char *name, const json_t *of, uint32_t tensor_groups) {
    static const struct {
        const char *key;
        enum ox_pair_value value;
        double limit;
    } parts[] = {{"rewards_chosen", OX_PAIR_REWARD_CHOSEN, 1.6e-5},
                 {"rewards_rejected", OX_PAIR_REWARD_REJECTED, 1.6e-5},
                 {"accuracies", OX_PAIR_RIGHT, 0}, {"logps_chosen", OX_PAIR_LOGP_CHOSEN, 3.4e-5},
                 {"logps_rejected", OX_PAIR_LOGP_REJECTED, 3.4e-5}};
    struct results memory, drives;
    double loss = 0, norm = 0, reference = 0, worst[sizeof parts / sizeof *parts] = {0};
    train(golden, of, &harness_in_memory, tensor_groups, 1, &memory);
    train(golden, of, &harness_places[0], tensor_groups, 1, &drives);
    CHECK(memcmp(&memory, &drives, sizeof memory) == 0);
    if (tensor_groups > 1) {
        train(golden, of, &harness_in_memory, tensor_groups, tensor_groups, &drives);
        CHECK(memcmp(&memory, &drives, sizeof memory) == 0);
    }
    for (size_t i = 0; i < STEPS; i++) {
        const double want = number(of, "losses", i);
        loss = fmax(loss, fabs(memory.loss[i] - want) / fmax(1, want));
        norm = fmax(norm, fabs(memory.norm[i] / number(of, "norms", i) - 1));
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
            worst[k] = fmax(worst[k], fabs(memory.values[i][parts[k].value] - number(of, parts[k].key, i)));
        }
    }
    for (size_t i = 0; i < STEPS * ROWS; i++) {
        reference = fmax(reference, fabs(memory.reference[i] - number(golden, "reference", i)));
    }
    printf("%s, %u tensor group%s\n", name, tensor_groups, tensor_groups == 1 ? "" : "s");
    golden_report("reference", reference, 5e-5);
    golden_report("losses", loss, 1.2e-5);
    golden_report("gradient norms, relative", norm, 1.4e-5);
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        golden_report(parts[k].key, worst[k], parts[k].limit);
    }
}

int main(void) {
    json_t *golden = NULL, *of;
    const char *name;
    REQUIRE_OK(ox_json_load("tests/golden/pairs/golden.json", 1 << 20, &golden));
    json_object_foreach(json_object_get(golden, "runs"), name, of) {
        check_run(golden, name, of, 1);
    }
    json_object_foreach(json_object_get(golden, "runs"), name, of) {
        check_run(golden, name, of, 2);
    }
    json_decref(golden);
    return test_end();
}
