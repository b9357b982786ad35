#include "tests/kit/run/golden.h"

#include "base/assert.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const golden_cases[] = {"gpt2_b1", "qwen3", "llama_untied_odd", "mistral_window", "gpt2_small",
                                    "gemma2", "granite", "cohere2", "olmo2", "frozen_parts", "qwen2_moe", "olmoe",
                                    "gpt_oss", "lora_qwen2", "glm4_moe", "deepseek_v3", "granitemoe",
                                    "router_losses", "router_bias", "lora_tables", "lora_saved",
                                    "shared_gemma3", "lora_mixtral", "lora_dora", "lora_q8",
                                    "lora_tables_gemma2", /* FEW */
                                    "llama_bias", "llama_tied_gqa", "llama3_rope", "qwen2", "qwen3_windows",
                                    "smollm3", "phi3_long", "phi3_short", "yarn", "linear_rope", "olmo3",
                                    "gemma3", "exaone4", "frozen_blocks", "frozen_below", "frozen_table",
                                    "groups", "loss_terms", "shared_qwen2",
                                    "mixtral", "mixtral_packed", "qwen3_moe", "gpt_oss_mxfp4", "glm4_moe_packed",
                                    "deepseek_v3_packed", "deepseek_v2", "lora_deepseek", "qwen2_moe_windows",
                                    "lora_llama", "lora_dropout", "lora_table_gpt2",
                                    "lora_gpt2", "lora_phi3", "lora_head", "lora_biases", "lora_olmoe",
                                    "lora_qwen2_moe", "lora_gpt_oss", "lora_dora_gpt2", "eight_qwen3",
                                    "eight_gpt2", "four_mixtral", "four_qwen2_moe"};
enum { FEW = 26 };
const size_t golden_case_count = sizeof golden_cases / sizeof *golden_cases;

size_t golden_taken_count(void) {
    return test_all() ? golden_case_count : FEW;
}

static const char CORE[] = "OX_TEST_CORE";

void golden_again(const char *core) {
    int ended = -1;
    if (getenv(CORE) != NULL || !test_all()) {
        return;
    }
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        setenv(CORE, core, 1);
        setenv("OPENBLAS_CORETYPE", core, 1);
        execl("/proc/self/exe", core, (char *)NULL);
        _exit(127);
    }
    printf("the same with kernels for %s\n", core);
    CHECK(child > 0 && waitpid(child, &ended, 0) == child && ended == 0);
}

/* Begins the program again where the shell chooses kernels of OpenBLAS, or their blocks, for another processor: their
 * roundings are not within all limits, and the library takes the choice when it is loaded. */
static void begin_plainly(void) {
    static const char *const variables[] = {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"};
    static char text[1 << 16];
    char *words[16] = {NULL}, *word = text;
    bool any = false;
    if (getenv(CORE) != NULL) {
        return; /* golden_again has chosen */
    }
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        any = any || getenv(variables[i]) != NULL;
        unsetenv(variables[i]);
    }
    if (!any || getenv("OMPI_COMM_WORLD_RANK") != NULL || getenv("PMI_RANK") != NULL) {
        return; /* mpirun knows its processes as they are */
    }
    FILE *const file = fopen("/proc/self/cmdline", "r");
    const size_t bytes = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file != NULL) {
        fclose(file);
    }
    for (size_t i = 0; i + 1 < sizeof words / sizeof *words && word < text + bytes; i++) {
        words[i] = word;
        word += strlen(word) + 1;
    }
    fflush(stdout);
    execv("/proc/self/exe", words); /* where that fails, limits decide */
}

void golden_open(const char *name, struct golden *out) {
    char path[512];
    begin_plainly();
    *out = (struct golden){0};
    snprintf(out->folder, sizeof out->folder, "tests/golden/%s", name);
    snprintf(path, sizeof path, "%s/golden.json", out->folder);
    REQUIRE_OK(ox_json_load(path, 8 << 20, &out->json));
    const struct {
        const char *key;
        uint64_t *value;
    } counts[] = {{"seq", &out->seq},
                  {"batch", &out->batch},
                  {"micro_batches", &out->micro_batches},
                  {"sample_stride", &out->stride},
                  {"sample_above", &out->sample_above}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        REQUIRE_OK(ox_json_get_u64(path, out->json, counts[i].key, true, counts[i].value));
    }
    out->stored_micro_batches = out->micro_batches;
    const struct {
        const char *key;
        double *value;
    } reals[] = {{"max_grad_norm", &out->max_grad_norm},
                 {"adam_beta1", &out->beta1},
                 {"adam_beta2", &out->beta2},
                 {"adam_epsilon", &out->eps},
                 {"weight_decay", &out->weight_decay}};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        REQUIRE_OK(ox_json_get_double(path, out->json, reals[i].key, true, reals[i].value));
    }
    snprintf(path, sizeof path, "%s/golden.safetensors", out->folder);
    REQUIRE_OK(ox_st_open(path, &out->tensors));
}

void golden_close(struct golden *golden) {
    ox_st_close(&golden->tensors);
    json_decref(golden->json);
}

double golden_number(const struct golden *golden, const char *key, size_t idx) {
    const json_t *const value = json_array_get(json_object_get(golden->json, key), idx);
    CHECK(json_is_number(value));
    return json_number_value(value);
}

float *golden_tensor(const struct golden *golden, const char *kind, const char *name, uint64_t *count) {
    char wanted[OX_TENSOR_NAME_BYTES + 16];
    snprintf(wanted, sizeof wanted, "%s%s%s", kind, name[0] == '\0' ? "" : ".", name);
    for (uint32_t i = 0; i < ox_st_count(golden->tensors); i++) {
        const struct ox_st_entry *const entry = ox_st_entry(golden->tensors, i);
        if (strcmp(entry->name, wanted) == 0) {
            float *const values = malloc(entry->count * sizeof *values);
            CHECK(values != NULL);
            REQUIRE_OK(ox_st_read_f32(golden->tensors, entry, 0, entry->count, values));
            *count = entry->count;
            return values;
        }
    }
    printf("%s: no tensor %s\n", golden->folder, wanted);
    exit(1);
}

static struct ox_objective objective_of(const struct golden *golden) {
    const json_t *const from = json_object_get(golden->json, "objective");
    return (struct ox_objective){
        .smoothing = (float)json_number_value(json_object_get(from, "smoothing")),
        .z_loss = (float)json_number_value(json_object_get(from, "z_loss")),
        .noise = (float)json_number_value(json_object_get(from, "noise")),
        .noise_seed = (uint64_t)json_integer_value(json_object_get(from, "noise_seed")),
        .drop_seed = (uint64_t)json_integer_value(json_object_get(from, "drop_seed"))};
}

struct harness_run golden_run(const struct golden *golden) {
    const json_t *const losses = json_object_get(golden->json, "router_weights");
    return (struct harness_run){
        .model_folder = golden->folder,
        .batch = (uint32_t)golden->batch,
        .seq = (uint32_t)(golden->seq + golden->padding),
        .micro_batches = (uint32_t)golden->micro_batches,
        .compute_threads = 2,
        .dtype = OX_COMPUTE_FP32,
        .frozen = json_object_get(golden->json, "frozen"),
        .groups = json_object_get(golden->json, "groups"),
        .adapter = json_string_value(json_object_get(golden->json, "adapter")),
        .base_q8 = json_object_get(golden->json, "base_dtype") != NULL,
        .share_layers = (uint32_t)json_integer_value(json_object_get(golden->json, "share_layers")),
        .objective = objective_of(golden),
        .router_balance = losses == NULL ? 0 : json_number_value(json_array_get(losses, 0)),
        .router_z = losses == NULL ? 0 : json_number_value(json_array_get(losses, 1)),
        .router_bias_rate = json_number_value(json_object_get(golden->json, "router_bias_rate")),
        .skips_idle = json_is_true(json_object_get(golden->json, "skips_idle")),
    };
}

/* ---- steps -------------------------------------------------------------------------------------- */

uint64_t golden_fill(struct ox_engine *engine, const struct golden *golden, size_t step) {
    uint64_t counted = 0;
    const json_t *const inputs = json_object_get(golden->json, "inputs");
    const json_t *const targets = json_object_get(golden->json, "targets");
    for (uint32_t mb_idx = 0; mb_idx < golden->micro_batches; mb_idx++) {
        const struct ox_batch batch = ox_engine_batch(engine, mb_idx);
        const uint64_t idx = (golden->first_micro_batch + step * golden->micro_batches + mb_idx) %
                             (GOLDEN_STEPS * golden->stored_micro_batches);
        const size_t from = idx / golden->stored_micro_batches, nth = idx % golden->stored_micro_batches;
        const json_t *const ids = json_array_get(json_array_get(inputs, from), nth);
        const json_t *const next = json_array_get(json_array_get(targets, from), nth);
        CHECK(json_array_size(ids) == golden->batch * golden->seq &&
              json_array_size(next) == json_array_size(ids));
        for (size_t i = 0; i < golden->batch * (golden->seq + golden->padding) && batch.ids != NULL; i++) {
            batch.ids[i] = 0; /* behind a sequence; batches are those of a rank of this process */
            batch.targets[i] = -1;
        }
        for (size_t i = 0; i < json_array_size(ids); i++) {
            const int32_t target = (int32_t)json_integer_value(json_array_get(next, i));
            const size_t at = i + i / golden->seq * golden->padding;
            counted += target != -1;
            if (batch.ids != NULL) {
                batch.ids[at] = (int32_t)json_integer_value(json_array_get(ids, i));
                batch.targets[at] = target;
            }
        }
    }
    return counted;
}

struct ox_step_input golden_input(const struct golden *golden, size_t step, uint64_t target_count) {
    return (struct ox_step_input){
        .step = step + 1,
        .target_count = target_count,
        .adam = {.learning_rate = golden_number(golden, "lrs", step),
                 .beta1 = golden->beta1,
                 .beta2 = golden->beta2,
                 .eps = golden->eps,
                 .weight_decay = golden->weight_decay,
                 .grad_scale = 1,
                 .step = step + 1,
                 .seed = 77},
        .max_grad_norm = golden->max_grad_norm,
    };
}

/* Reads the gradients whose home is in memory. */
static void read_grads(struct harness *harness, struct outcome *out) {
    const struct ox_shard_table *const table = &ox_engine_plan_of(harness->engine)->table;
    for (uint32_t i = 0; i < harness->model->unit_count; i++) {
        if (table->shards[i].homes.grad == OX_TIER_HOST && harness->run.team == NULL &&
            harness->model->units[i].trained) {
            out->grads[i] = calloc(out->elems[i], sizeof(float));
            ox_engine_grad_read(harness->engine, i, 0, out->elems[i], out->grads[i]);
        }
    }
}

static void begin_outcome(const struct harness *harness, const struct golden *golden, struct outcome *out) {
    OX_ASSERT(harness->model->unit_count <= GOLDEN_UNITS_MAX);
    *out = (struct outcome){.logits_count = golden->batch * (golden->seq + golden->padding) *
                                            harness->model->config.vocab};
    out->logits = ox_team_leads(harness->run.team) ? calloc(out->logits_count, sizeof(float)) : NULL;
    for (uint32_t i = 0; i < harness->model->unit_count; i++) {
        out->elems[i] = harness->model->units[i].elem_count;
    }
}

void golden_steps(struct harness *harness, const struct golden *golden, size_t first, size_t past,
                  struct outcome *out) {
    if (first == 0) {
        begin_outcome(harness, golden, out);
    }
    for (size_t i = first; i < past; i++) {
        struct ox_step_result result;
        struct ox_step_input input = golden_input(golden, i, golden_fill(harness->engine, golden, i));
        input.logits = i == 0 ? out->logits : NULL;
        input.loss_scale = harness->run.dtype == OX_COMPUTE_FP16 ? 4096 : 0;
        input.stays = harness->persist_steps > 0 && input.step % harness->persist_steps != 0;
        REQUIRE_OK(ox_engine_step(harness->engine, &input, &result));
        CHECK(result.finite);
        CHECK(memcmp(result.traffic, result.planned, sizeof result.traffic) == 0);
        out->losses[i] = result.loss;
        out->norms[i] = result.grad_norm;
        out->router_losses[i][0] = result.routers.balance;
        out->router_losses[i][1] = result.routers.z;
        for (int link = 0; link < OX_LINK_COUNT; link++) {
            out->left_out[link] += result.left_out[link];
        }
        if (i == 0) {
            read_grads(harness, out);
        }
    }
}

void outcome_read_weights(struct harness *harness, struct outcome *out) {
    for (uint32_t i = 0; i < harness->model->unit_count; i++) {
        free(out->weights[i]);
        free(out->moments[0][i]);
        free(out->moments[1][i]);
        out->weights[i] = harness_read_unit(harness, i, OX_PLANE_MASTER);
        out->moments[0][i] = harness_read_unit(harness, i, OX_PLANE_M);
        out->moments[1][i] = harness_read_unit(harness, i, OX_PLANE_V);
    }
}

void golden_train(const struct golden *golden, const struct harness_run *run,
                  const struct harness_place *place, size_t steps, struct outcome *out) {
    struct harness harness;
    harness_open(run, place, &harness);
    golden_steps(&harness, golden, 0, steps, out);
    outcome_read_weights(&harness, out);
    harness_close(&harness);
}

void outcome_close(struct outcome *outcome) {
    free(outcome->logits);
    for (int i = 0; i < GOLDEN_UNITS_MAX; i++) {
        free(outcome->grads[i]);
        free(outcome->weights[i]);
        free(outcome->moments[0][i]);
        free(outcome->moments[1][i]);
    }
}

/* ---- verdicts ----------------------------------------------------------------------------------- */

static bool same_floats(const float *a, const float *b, uint64_t count) {
    return a == NULL || b == NULL || memcmp(a, b, count * sizeof *a) == 0;
}

void outcome_check_same(const char *what, const struct outcome *expected, const struct outcome *outcome) {
    const bool losses = memcmp(expected->losses, outcome->losses, sizeof expected->losses) == 0 &&
                        memcmp(expected->router_losses, outcome->router_losses, sizeof expected->router_losses) == 0;
    const bool norms = memcmp(expected->norms, outcome->norms, sizeof expected->norms) == 0;
    const bool logits = same_floats(expected->logits, outcome->logits, expected->logits_count);
    bool weights = true, moments = true, grads = true;
    for (int i = 0; i < GOLDEN_UNITS_MAX; i++) {
        CHECK((expected->weights[i] == NULL) == (outcome->weights[i] == NULL));
        weights = weights && same_floats(expected->weights[i], outcome->weights[i], expected->elems[i]);
        for (int k = 0; k < 2; k++) {
            CHECK((expected->moments[k][i] == NULL) == (outcome->moments[k][i] == NULL));
            moments = moments && same_floats(expected->moments[k][i], outcome->moments[k][i], expected->elems[i]);
        }
        grads = grads && same_floats(expected->grads[i], outcome->grads[i], expected->elems[i]);
    }
    const bool same = losses && norms && logits && weights && moments && grads;
    printf("  %-46s %s\n", what, same ? "same bits" : "DIFFERENT BITS");
    if (!same) {
        printf("    losses %d, norms %d, logits %d, gradients %d, weights %d, moments %d\n", losses, norms, logits,
               grads, weights, moments);
    }
    CHECK(same);
}

void outcome_check_close(const char *what, const struct outcome *expected, const struct outcome *outcome) {
    double worst = 0;
    for (int i = 0; i < GOLDEN_STEPS; i++) {
        worst = fmax(worst, fabs(outcome->losses[i] - expected->losses[i]) / fmax(1, fabs(expected->losses[i])));
        worst = fmax(worst, fabs(outcome->norms[i] - expected->norms[i]) / fmax(1, fabs(expected->norms[i])));
    }
    printf("  %-46s within %.1e\n", what, worst);
    CHECK(worst < 1e-5);
}

void golden_end(struct harness *harness, const char *what, const struct outcome *expected, struct outcome *outcome) {
    outcome_read_weights(harness, outcome);
    outcome_check_same(what, expected, outcome);
    harness_close(harness);
    outcome_close(outcome);
}

enum { QUICK = 5 }; /* so many times as long strides in `make test` */

/* Whether a call takes this placement: every `stride`-th one, beginning with another at each call. */
static bool is_turn(const struct harness_place *place, size_t stride, size_t call) {
    return (size_t)(place - harness_places) % stride == call % stride;
}

void golden_check_places(const struct golden *golden, const struct harness_run *run, const char *what, size_t stride) {
    static size_t call;
    struct outcome expected, outcome;
    printf("%s, %s\n", golden->folder, what);
    golden_train(golden, run, &harness_in_memory, FEW_STEPS, &expected);
    stride *= test_stride(QUICK);
    call++;
    for (const struct harness_place *place = harness_places; place->name != NULL; place++) {
        if (!is_turn(place, stride, call)) {
            continue;
        }
        golden_train(golden, run, place, FEW_STEPS, &outcome);
        outcome_check_same(place->name, &expected, &outcome);
        outcome_close(&outcome);
    }
    outcome_close(&expected);
}

void golden_check_reopened(const struct golden *golden, const struct harness_run *run, const char *what,
                           size_t stride) {
    static size_t call;
    struct outcome expected, outcome;
    printf("%s, %s, reopened\n", golden->folder, what);
    golden_train(golden, run, &harness_in_memory, 2 * FEW_STEPS, &expected);
    stride *= test_stride(QUICK);
    call++;
    for (const struct harness_place *place = harness_places; place->name != NULL; place++) {
        if (!place->store || !is_turn(place, stride, call)) {
            continue;
        }
        struct harness_place later = place[1].name != NULL && place[1].store ? place[1] : harness_places[0];
        struct harness harness;
        later.drives = place->drives;
        later.chunk_elems = place->chunk_elems;
        harness_open(run, place, &harness);
        golden_steps(&harness, golden, 0, FEW_STEPS, &outcome);
        REQUIRE_OK(ox_engine_finish_update(harness.engine));
        harness_reopen(run, &later, &harness);
        golden_steps(&harness, golden, FEW_STEPS, 2 * FEW_STEPS, &outcome);
        golden_end(&harness, place->name, &expected, &outcome);
    }
    outcome_close(&expected);
}

/* A bias is exact in its limbs, and moves by exact steps: but for the rounding of each. */
static double compare_limbs(const float *limbs, const float *expected, uint64_t count) {
    double worst = 0;
    for (uint64_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs((double)ox_limbs_sum(limbs + i * OX_LIMBS) - (double)expected[i]));
    }
    return worst;
}

/* All elements of a tensor, as they lie in files, of its parts; free() it. */
static float *whole_of(const struct ox_model *model, uint32_t idx, float *const *units) {
    float *const out = calloc(ox_tensor_whole_count(&model->tensors[idx]), sizeof *out);
    CHECK(out != NULL);
    for (; idx != OX_NO_TENSOR; idx = model->tensors[idx].next_part) {
        const struct ox_tensor *const part = &model->tensors[idx];
        for (uint64_t i = 0; i < part->count; i++) {
            out[ox_tensor_in_files(part, i)] = units[part->unit_idx][part->offset + i];
        }
    }
    return out;
}

double golden_compare_tensors(const struct golden *golden, const struct ox_model *model, const char *kind,
                              float *const *units) {
    double worst = 0;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct ox_tensor *const tensor = &model->tensors[i];
        struct harness_error error = {0};
        uint64_t count = 0;
        const bool has = (!tensor->limbs || json_object_get(golden->json, "router_bias_rate") != NULL) &&
                         tensor->part_first == 0; /* of parts the first stands for all */
        if ((strstr(kind, "grad") != NULL && !tensor->trained) || !has || tensor->shares_idx != OX_NO_TENSOR) {
            continue; /* there is none, or it is fixed, or another layer's */
        }
        float *const expected = golden_tensor(golden, kind, tensor->name, &count);
        if (tensor->limbs) {
            worst = fmax(worst, compare_limbs(units[tensor->unit_idx] + tensor->offset, expected, count));
            free(expected);
            continue;
        }
        const uint64_t whole_count = ox_tensor_whole_count(tensor);
        const uint64_t stride = whole_count > golden->sample_above ? golden->stride : 1;
        float *const whole = whole_of(model, i, units);
        CHECK(count == (whole_count + stride - 1) / stride);
        harness_compare(&error, whole, stride, expected, count);
        free(whole);
        free(expected);
        CHECK(error.compared > count / 2);
        const double value = strstr(kind, "grad") != NULL ? error.largest / error.magnitude : error.largest;
        worst = value <= worst ? worst : value;
    }
    return worst;
}

double golden_compare_logits(const struct golden *golden, const char *name, const struct outcome *outcome) {
    struct harness_error error = {0};
    uint64_t count = 0;
    float *const expected = golden_tensor(golden, name, "", &count);
    const uint64_t real = outcome->logits_count / (golden->seq + golden->padding) * golden->seq;
    CHECK(count == real);
    for (uint64_t i = 0; i < golden->batch && count == real; i++) {
        const uint64_t each = real / golden->batch;
        harness_compare(&error, outcome->logits + i * (outcome->logits_count / golden->batch), 1, expected + i * each,
                        each);
    }
    free(expected);
    return error.largest;
}

void golden_report(const char *what, double measured, double limit) {
    printf("  %-34s %9.2e  of %9.2e\n", what, measured, limit);
    CHECK(measured <= limit);
}

const struct golden_limits golden_fp32_limits = {2e-6, 1e-5, 5e-6, 4e-6};

void golden_report_fp32(const struct golden *golden, const struct ox_model *model, const struct outcome *outcome,
                        size_t steps) {
    golden_report_within(golden, model, outcome, steps, &golden_fp32_limits);
}

void golden_report_within(const struct golden *golden, const struct ox_model *model, const struct outcome *outcome,
                          size_t steps, const struct golden_limits *limits) {
    double loss = 0, norm = 0, balance = 0, z = 0;
    for (size_t i = 0; i < steps; i++) {
        loss = fmax(loss, fabs(outcome->losses[i] - golden_number(golden, "losses", i)));
        norm = fmax(norm, fabs(outcome->norms[i] / golden_number(golden, "grad_norms", i) - 1));
    }
    golden_report("losses", loss, limits->loss);
    golden_report("logits", golden_compare_logits(golden, "logits", outcome), limits->logits);
    golden_report("gradients, of the largest", golden_compare_tensors(golden, model, "grad", outcome->grads),
                  limits->grads);
    golden_report("gradient norms, relative", norm, limits->norms);
    for (size_t i = 0; i < steps && json_object_get(golden->json, "router_weights") != NULL; i++) {
        balance = fmax(balance, fabs(outcome->router_losses[i][0] - golden_number(golden, "router_balance", i)));
        z = fmax(z, fabs(outcome->router_losses[i][1] / golden_number(golden, "router_z", i) - 1));
    }
    golden_report("losses of routers, z relative", fmax(balance, z), limits->loss);
}

void golden_check_bf16(const struct golden *golden, const struct harness_run *run, const struct golden_limits *limits,
                       struct outcome *outcome) {
    struct harness harness;
    double loss = 0, norm = 0;
    CHECK(run->dtype == OX_COMPUTE_BF16);
    harness_open(run, &harness_in_memory, &harness);
    golden_steps(&harness, golden, 0, 1, outcome);
    REQUIRE_OK(ox_json_get_double(golden->folder, golden->json, "bf16_loss", true, &loss));
    REQUIRE_OK(ox_json_get_double(golden->folder, golden->json, "bf16_grad_norm", true, &norm));
    golden_report("bf16 loss", fabs(outcome->losses[0] - loss), limits->loss);
    golden_report("bf16 logits", golden_compare_logits(golden, "bf16_logits", outcome), limits->logits);
    golden_report("bf16 gradients, of the largest",
                  golden_compare_tensors(golden, harness.model, "bf16_grad", outcome->grads), limits->grads);
    golden_report("bf16 gradient norm, relative", fabs(outcome->norms[0] / norm - 1), limits->norms);
    harness_close(&harness);
}

double golden_evaluate(const struct golden *golden, const struct harness_run *run) {
    struct harness harness;
    struct ox_eval_result result;
    harness_open(run, &harness_in_memory, &harness);
    const struct ox_step_input input = golden_input(golden, 0, golden_fill(harness.engine, golden, 0));
    REQUIRE_OK(ox_engine_eval(harness.engine, &input, &result));
    harness_close(&harness);
    return result.loss_sum;
}
