/* A trained model of 260 thousand parameters against PyTorch: logits, the first gradient, and thirty steps of
 * fine-tuning. The model is not part of the project; the tokens of the fine-tuning are
 * (tests/golden/make/golden_stories.py). */
#include "base/file.h"
#include "base/json.h"
#include "tests/kit/run/harness.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 30, BATCH = 8, SEQ = 127 /* predicted tokens of each row's 128 */, BOS = 1, TOP = 10 };

/* Tolerances, at most four times what was measured. The reference itself ran in float32. */
static const struct {
    double logits, grad_norms, losses, step_norms, parameters;
} limits = {2.5e-5, 3e-6, 6e-7, 2e-6, 7e-9};

static char model_folder[OX_PATH_BYTES];
static json_t *reference;

static void report(const char *what, double measured, double limit) {
    printf("  %-34s %9.2e  of %9.2e\n", what, measured, limit);
    CHECK(measured <= limit);
}

static const json_t *member(const json_t *object, const char *key) {
    const json_t *const value = json_object_get(object, key);
    if (value == NULL) {
        printf("reference.json: no %s\n", key);
        exit(1);
    }
    return value;
}

static double number(const json_t *value) {
    CHECK(json_is_number(value));
    return json_number_value(value);
}

/* ---- prompts ------------------------------------------------------------------------------------ */

/* Largest difference of the listed logits of the last position. Checks that these ten are the ten largest, in the same
 * order. */
static double prompt_error(const json_t *prompt) {
    const json_t *const ids = member(prompt, "prompt_ids"), *const top = member(prompt, "last_logits_top10");
    const struct harness_run run = {.model_folder = model_folder,
                                    .batch = 1,
                                    .seq = (uint32_t)json_array_size(ids),
                                    .micro_batches = 1,
                                    .dtype = OX_COMPUTE_FP32};
    struct harness harness;
    harness_open(&run, &harness_in_memory, &harness);
    const uint32_t vocab = harness.model->config.vocab;
    float *const logits = calloc((size_t)run.seq * vocab, sizeof *logits);
    const struct ox_batch batch = ox_engine_batch(harness.engine, 0);
    for (uint32_t i = 0; i < run.seq; i++) {
        batch.ids[i] = (int32_t)json_integer_value(json_array_get(ids, i));
        batch.targets[i] = BOS;
    }
    struct ox_eval_result result;
    double error = 0;
    REQUIRE_OK(ox_engine_eval(harness.engine,
                              &(struct ox_step_input){.target_count = run.seq, .logits = logits}, &result));
    const float *const last = logits + (size_t)(run.seq - 1) * vocab;
    CHECK(json_array_size(top) == TOP);
    for (size_t i = 0; i < TOP; i++) {
        const size_t id = (size_t)json_integer_value(json_array_get(json_array_get(top, i), 0));
        uint32_t above = 0;
        for (uint32_t j = 0; j < vocab; j++) {
            above += last[j] > last[id];
        }
        CHECK(above == i);
        const double difference = fabs(last[id] - number(json_array_get(json_array_get(top, i), 1)));
        error = difference <= error ? error : difference;
    }
    free(logits);
    harness_close(&harness);
    return error;
}

static void check_prompts(void) {
    const json_t *const prompts = member(reference, "prompts");
    double error = 0;
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const double one = prompt_error(json_array_get(prompts, i));
        error = one <= error ? error : one;
    }
    CHECK(json_array_size(prompts) > 0);
    report("ten largest logits", error, limits.logits);
}

/* ---- fine-tuning -------------------------------------------------------------------------------- */

static uint16_t *read_ids(void) {
    char *data = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read("tests/golden/stories/finetune_ids.bin", 1 << 20, &data, &bytes));
    CHECK(bytes == (size_t)STEPS * BATCH * SEQ * 2);
    uint16_t *const ids = malloc(bytes);
    for (size_t i = 0; i < bytes / 2; i++) {
        ids[i] = (uint16_t)((unsigned char)data[2 * i] | (unsigned char)data[2 * i + 1] << 8);
    }
    free(data);
    return ids;
}

/* Row b of step s is BOS and the next 127 ids; each token is predicted from those before it. */
static void fill(struct ox_engine *engine, const uint16_t *ids, size_t step) {
    const struct ox_batch batch = ox_engine_batch(engine, 0);
    for (size_t row = 0; row < BATCH; row++) {
        const uint16_t *const next = ids + (step * BATCH + row) * SEQ;
        for (size_t i = 0; i < SEQ; i++) {
            batch.ids[row * SEQ + i] = i == 0 ? BOS : next[i - 1];
            batch.targets[row * SEQ + i] = next[i];
        }
    }
}

static void check_first_gradient(struct harness *harness) {
    const json_t *const norms = member(reference, "step0_grad_norms");
    double error = 0;
    CHECK(json_object_size(norms) == harness->model->tensor_count);
    for (uint32_t i = 0; i < harness->model->tensor_count; i++) {
        const struct ox_tensor *const tensor = &harness->model->tensors[i];
        float *const grad = malloc(tensor->count * sizeof *grad);
        double sum = 0;
        ox_engine_grad_read(harness->engine, tensor->unit_idx, tensor->offset, tensor->count, grad);
        for (uint64_t j = 0; j < tensor->count; j++) {
            sum += (double)grad[j] * grad[j];
        }
        free(grad);
        const double difference = fabs(sqrt(sum) / number(member(norms, tensor->name)) - 1);
        error = difference <= error ? error : difference;
    }
    report("norms of the first gradient", error, limits.grad_norms);
}

static double parameters_l2(struct harness *harness) {
    double sum = 0;
    for (uint32_t i = 0; i < harness->model->unit_count; i++) {
        float *const values = harness_read_unit(harness, i, OX_PLANE_MASTER);
        for (uint64_t j = 0; j < harness->model->units[i].elem_count; j++) {
            sum += (double)values[j] * values[j];
        }
        free(values);
    }
    return sqrt(sum);
}

static void check_finetuning(void) {
    const struct harness_run run = {.model_folder = model_folder,
                                    .batch = BATCH,
                                    .seq = SEQ,
                                    .micro_batches = 1,
                                    .dtype = OX_COMPUTE_FP32,
                                    .decay_all = true};
    const json_t *const finetune = member(reference, "finetune"), *const steps =
                                                                      member(finetune, "trajectory");
    struct harness harness;
    double loss_error = 0, norm_error = 0;
    uint16_t *const ids = read_ids();
    harness_open(&run, &harness_in_memory, &harness);
    CHECK(json_array_size(steps) == STEPS);
    for (size_t i = 0; i < STEPS; i++) {
        const json_t *const expected = json_array_get(steps, i);
        const struct ox_step_input input = {
            .step = i + 1,
            .target_count = (uint64_t)BATCH * SEQ,
            .adam = {.learning_rate = 5e-4,
                     .beta1 = 0.9,
                     .beta2 = 0.95,
                     .eps = 1e-8,
                     .weight_decay = 0.1,
                     .grad_scale = 1,
                     .step = i + 1},
            .max_grad_norm = 1.0,
        };
        struct ox_step_result result;
        fill(harness.engine, ids, i);
        REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
        CHECK(result.finite);
        loss_error = fmax(loss_error, fabs(result.loss / number(member(expected, "loss")) - 1));
        norm_error = fmax(norm_error, fabs(result.grad_norm / number(member(expected, "grad_norm")) - 1));
        if (i == 0) {
            check_first_gradient(&harness);
        }
    }
    free(ids);
    report("losses of thirty steps", loss_error, limits.losses);
    report("gradient norms of thirty steps", norm_error, limits.step_norms);
    report("norm of all weights after them",
           fabs(parameters_l2(&harness) / number(member(finetune, "param_l2_after")) - 1), limits.parameters);
    harness_close(&harness);
}

int main(void) {
    char path[OX_PATH_BYTES];
    if (test_data_folder() == NULL) {
        test_skip("there is no folder of real models beside the project (OX_TEST_DATA)");
    }
    REQUIRE_OK(ox_path_join(test_data_folder(), "models/stories260K", model_folder));
    REQUIRE_OK(ox_path_join(model_folder, "reference.json", path));
    if (!ox_path_is_file(path)) {
        test_skip("the folder of real models has no models/stories260K");
    }
    REQUIRE_OK(ox_json_load(path, 1 << 20, &reference));
    check_prompts();
    check_finetuning();
    json_decref(reference);
    return test_end();
}
