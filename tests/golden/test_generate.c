/* Generation against PyTorch: the logits of tests/golden/ token by token through the cache of keys and values, in
 * chunks and at once, from weights in memory and from files, on the CPU and on a GPU: the emulated one, and that of
 * this machine if it has one. And the command with a real model, where there is one. */
#include "base/file.h"
#include "engine/generate/generate.h"
#include "tests/kit/device/simt_kit.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

enum { THREADS = 2, ODD_CHUNK = 5 };

/* The tolerances of test_golden.c. */
static const double logits_limit = 1e-5, nll_limit = 1e-6;
/* Limits for the command with a real model. The reference ran in float32: the sum of its 512 logits is 4e-7 from that
 * in float64, ours 3e-7. */
static const struct {
    double logits, sum, nll;
} real_limits = {2.5e-5, 2e-6, 5e-7};

static const struct ox_cuda_config *gpu; /* NULL: the CPU computes */

/* One sequence of a golden case. */
struct sequence {
    int32_t ids[512];
    uint32_t count, vocab;
    const float *expected; /* (count, vocab) */
};

static struct ox_generator *open_generator(const struct ox_hf_folder *folder, struct ox_generator_config config) {
    struct ox_generator *generator = NULL;
    config.folder = folder;
    config.where = "the golden model";
    config.threads = THREADS;
    REQUIRE_OK(ox_generator_open(&config, &generator));
    return generator;
}

static uint32_t largest(const float *logits, uint32_t count) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

/* Also the token that would be taken, which no error of the logits may change. */
static void compare(struct harness_error *error, const float *logits, const struct sequence *sequence, uint32_t row) {
    const float *const expected = sequence->expected + (size_t)row * sequence->vocab;
    CHECK(largest(logits, sequence->vocab) == largest(expected, sequence->vocab));
    harness_compare(error, logits, 1, sequence->expected + (size_t)row * sequence->vocab, sequence->vocab);
}

/* One token at a time: the logits after each. */
static void read_singly(const struct ox_hf_folder *folder, const struct ox_generator_config *config,
                        const struct sequence *sequence, struct harness_error *error, float *kept) {
    struct ox_generator *generator = open_generator(folder, *config);
    for (uint32_t i = 0; i < sequence->count; i++) {
        const float *logits = NULL;
        CHECK(ox_generator_count(generator) == i);
        REQUIRE_OK(ox_generator_read(generator, &sequence->ids[i], 1, NULL, &logits));
        compare(error, logits, sequence, i);
        memcpy(kept + (size_t)i * sequence->vocab, logits, sequence->vocab * sizeof *logits);
    }
    ox_generator_close(&generator);
}

/* The mean of -log p of the reference's own logits. */
static double expected_nll(const struct sequence *sequence) {
    double total = 0;
    for (uint32_t i = 0; i + 1 < sequence->count; i++) {
        const float *const row = sequence->expected + (size_t)i * sequence->vocab;
        double sum = 0;
        for (uint32_t k = 0; k < sequence->vocab; k++) {
            sum += exp((double)row[k]);
        }
        total += log(sum) - row[sequence->ids[i + 1]];
    }
    return total / (sequence->count - 1);
}

/* In chunks of `chunk_rows`; with `split` the last token by itself. */
static double read_chunks(const struct ox_hf_folder *folder, struct ox_generator_config config, uint32_t chunk_rows,
                          const struct sequence *sequence, struct harness_error *error) {
    config.chunk_rows = chunk_rows;
    struct ox_generator *generator = open_generator(folder, config), *split = open_generator(folder, config);
    const float *logits = NULL;
    double nll_sum = -1;
    REQUIRE_OK(ox_generator_read(generator, sequence->ids, sequence->count, &nll_sum, &logits));
    compare(error, logits, sequence, sequence->count - 1);
    REQUIRE_OK(ox_generator_read(split, sequence->ids, sequence->count - 1, NULL, &logits));
    compare(error, logits, sequence, sequence->count - 2);
    REQUIRE_OK(ox_generator_read(split, sequence->ids + sequence->count - 1, 1, NULL, &logits));
    compare(error, logits, sequence, sequence->count - 1);
    ox_generator_close(&generator);
    ox_generator_close(&split);
    return nll_sum / (sequence->count - 1);
}

/* Budgets that lead to each home of the weights give the same bits; less than the least budget is refused. */
static void check_homes(const struct ox_hf_folder *folder, struct ox_generator_config config,
                        const struct sequence *sequence, const float *expected) {
    static const char *const names[] = {"joined", "planes", "files"};
    const size_t bytes = (size_t)sequence->count * sequence->vocab * sizeof(float);
    float *const kept = malloc(bytes);
    struct harness_error error = {0};
    struct ox_generator *generator = open_generator(folder, config), *refused = NULL;
    uint64_t need[OX_WEIGHTS_HOME_COUNT], least = UINT64_MAX;
    for (int i = 0; i < OX_WEIGHTS_HOME_COUNT; i++) {
        need[i] = ox_generator_need(generator, (enum ox_weights_home)i);
        least = need[i] < least ? need[i] : least;
    }
    CHECK(ox_generator_home(generator) == OX_WEIGHTS_JOINED);
    ox_generator_close(&generator);
    for (int i = 1; i < OX_WEIGHTS_HOME_COUNT; i++) {
        *(gpu != NULL ? &config.device_bytes : &config.host_bytes) = need[i];
        if (need[i] < need[0] && need[i] < need[i - 1]) {
            generator = open_generator(folder, config);
            CHECK(ox_generator_home(generator) == (enum ox_weights_home)i);
            ox_generator_close(&generator);
            read_singly(folder, &config, sequence, &error, kept);
            CHECK(memcmp(kept, expected, bytes) == 0);
            printf("  weights %s: %s as joined, %llu of %llu bytes\n", names[i],
                   memcmp(kept, expected, bytes) == 0 ? "same bits" : "OTHER BITS", (unsigned long long)need[i],
                   (unsigned long long)need[0]);
        }
    }
    *(gpu != NULL ? &config.device_bytes : &config.host_bytes) = least - 1;
    config.folder = folder;
    config.where = "the golden model";
    config.threads = THREADS;
    CHECK(ox_generator_open(&config, &refused) == OX_E_CONFIG && refused == NULL);
    CHECK(strstr(ox_error_text(), gpu != NULL ? "--device-mem" : "--host-mem") != NULL);
    if (gpu != NULL) { /* what is on its way is in host memory */
        config.device_bytes = need[0];
        config.host_bytes = 4096;
        CHECK(ox_generator_open(&config, &refused) == OX_E_CONFIG && refused == NULL);
        CHECK(strstr(ox_error_text(), "--host-mem") != NULL);
    }
    free(kept);
}

enum { CASES_EMULATED = 2 };

static void check_case(const struct golden *golden, const struct ox_hf_folder *folder, bool fp32) {
    const json_t *const inputs = json_array_get(json_array_get(json_object_get(golden->json, "inputs"), 0), 0);
    const uint32_t vocab = ox_hf_model(folder)->config.vocab, seq = (uint32_t)golden->seq;
    const enum ox_compute_dtype dtype = fp32 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16;
    const struct ox_generator_config config = {.dtype = dtype, .host_bytes = (uint64_t)1 << 30, .cuda = gpu,
                                               .device_bytes = (uint64_t)1 << 30, .contexts = seq, .chunk_rows = seq};
    struct harness_error single = {0}, chunked = {0}, whole = {0};
    uint64_t count = 0;
    double nll = 0;
    float *const expected = golden_tensor(golden, fp32 ? "logits" : "bf16_logits", "", &count);
    float *const kept = malloc((size_t)seq * vocab * sizeof *kept);
    CHECK(count == golden->batch * seq * vocab && seq <= 512 && seq >= ODD_CHUNK);
    for (uint32_t row = 0; row < golden->batch; row++) {
        struct sequence sequence = {.count = seq, .vocab = vocab, .expected = expected + (size_t)row * seq * vocab};
        for (uint32_t i = 0; i < seq; i++) {
            sequence.ids[i] = (int32_t)json_integer_value(json_array_get(inputs, (size_t)row * seq + i));
        }
        read_singly(folder, &config, &sequence, &single, kept);
        const double nlls[] = {read_chunks(folder, config, ODD_CHUNK, &sequence, &chunked),
                               read_chunks(folder, config, seq, &sequence, &whole)};
        for (int i = 0; i < 2; i++) {
            nll = fmax(nll, fabs(nlls[i] - expected_nll(&sequence)));
        }
        if (row == 0) {
            check_homes(folder, config, &sequence, kept);
        }
    }
    golden_report("logits, token by token", single.largest, logits_limit);
    golden_report("logits, in chunks", chunked.largest, logits_limit);
    golden_report("logits, at once", whole.largest, logits_limit);
    golden_report("loss of the text", nll, nll_limit);
    free(kept);
    free(expected);
}

static void check_golden(size_t first, size_t past) {
    for (size_t i = first; i < past; i++) {
        struct golden golden;
        struct ox_hf_folder *folder = NULL;
        golden_open(golden_cases[i], &golden);
        if (json_object_get(golden.json, "objective") != NULL || /* logits of training: with noise or dropout; or */
            json_object_get(golden.json, "base_dtype") != NULL) { /* of weights that only training rounds */
            golden_close(&golden);
            continue;
        }
        REQUIRE_OK(ox_hf_open(golden.folder, true, &folder));
        if (json_object_get(golden.json, "adapter") != NULL) {
            char path[600];
            snprintf(path, sizeof path, "%s/adapter", golden.folder);
            REQUIRE_OK(ox_hf_load_adapter(folder, path));
        }
        printf("%s\n", golden_cases[i]);
        check_case(&golden, folder, true);
        printf("%s, bf16\n", golden_cases[i]);
        check_case(&golden, folder, false);
        ox_hf_close(&folder);
        golden_close(&golden);
    }
}

/* ---- a real model through the command ---------------------------------------------------------------- */

static double number(const json_t *object, const char *key) {
    const json_t *const value = json_object_get(object, key);
    CHECK(json_is_number(value));
    return json_number_value(value);
}

struct real_errors {
    double logits, sum, nll; /* absolute, relative, absolute */
};

static void compare_logits(const json_t *prompt, const json_t *logits, struct real_errors *errors) {
    const json_t *const expected = json_object_get(prompt, "last_logits_top10");
    const json_t *const top = json_object_get(logits, "top");
    errors->sum = fmax(errors->sum, fabs(number(logits, "sum") / number(prompt, "last_logits_sum") - 1));
    errors->logits = fmax(errors->logits, fabs(number(logits, "logsumexp") - number(prompt, "last_logsumexp")));
    CHECK(json_array_size(expected) == 10 && json_array_size(top) == 10);
    for (size_t i = 0; i < 10; i++) {
        const json_t *const a = json_array_get(expected, i), *const b = json_array_get(top, i);
        CHECK(json_equal(json_array_get(a, 0), json_array_get(b, 0)));
        errors->logits = fmax(errors->logits, fabs(json_number_value(json_array_get(a, 1)) -
                                                   json_number_value(json_array_get(b, 1))));
    }
}

static void check_prompt(const char *model, const json_t *prompt, const char *more,
                         struct real_errors *errors) {
    static struct sys_process process;
    struct sys_args args;
    json_t *report = NULL;
    const size_t total = json_array_size(json_object_get(prompt, "greedy_ids")),
                 read = json_array_size(json_object_get(prompt, "prompt_ids"));
    sys_args_begin(&args, "generate");
    sys_args_word(&args, "--model");
    sys_args_word(&args, "%s", model);
    if (json_string_length(json_object_get(prompt, "prompt")) > 0) {
        sys_args_word(&args, "--prompt");
        sys_args_word(&args, "%s", json_string_value(json_object_get(prompt, "prompt")));
    }
    sys_args_word(&args, "--max-new-tokens=%zu", total - read);
    sys_args_add(&args, "--temperature 0 --format json --top-logits 10 --compute-threads 2");
    sys_args_add(&args, more);
    sys_run_well(&args, &process);
    CHECK((strstr(process.outcome.err, "again for every token") != NULL) == (more[0] != '\0'));
    REQUIRE_OK(ox_json_parse("stdout", process.outcome.out, strlen(process.outcome.out), &report));
    CHECK(json_equal(json_object_get(report, "ids"), json_object_get(prompt, "greedy_ids")));
    CHECK(json_equal(json_object_get(report, "text"), json_object_get(prompt, "greedy_text")));
    CHECK(number(report, "prompt_tokens") == (double)read && number(report, "new_tokens") == (double)(total - read));
    CHECK(strcmp(json_string_value(json_object_get(report, "finish")), "length") == 0);
    compare_logits(prompt, json_object_get(report, "prompt_logits"), errors);
    if (read > 1) {
        errors->nll = fmax(errors->nll, fabs(number(report, "prompt_mean_nll") - number(prompt, "prompt_mean_nll")));
    } else {
        CHECK(json_is_null(json_object_get(report, "prompt_mean_nll")));
    }
    json_decref(report);
}

/* The text as it streams is the text of the report. */
static void check_stream(const char *model, const json_t *prompt) {
    static struct sys_process process;
    struct sys_args args;
    const char *const expected = json_string_value(json_object_get(prompt, "greedy_text"));
    sys_args_begin(&args, "generate");
    sys_args_word(&args, "--model");
    sys_args_word(&args, "%s", model);
    sys_args_add(&args, "--max-new-tokens 200 --temperature 0");
    sys_run_well(&args, &process);
    CHECK(strncmp(process.outcome.out, expected, strlen(expected)) == 0);
    CHECK(strcmp(process.outcome.out + strlen(expected), "\n") == 0);
    CHECK(strstr(process.outcome.err, "1 token read, 200 new") != NULL);
}

static void check_real(void) {
    char model[OX_PATH_BYTES], path[OX_PATH_BYTES];
    json_t *reference = NULL;
    struct real_errors errors = {0};
    if (test_data_folder() == NULL) {
        printf("a real model: left out, there is no folder of real models beside the project (OX_TEST_DATA)\n");
        return;
    }
    REQUIRE_OK(ox_path_join(test_data_folder(), "models/stories260K", model));
    REQUIRE_OK(ox_path_join(model, "reference.json", path));
    if (!ox_path_is_file(path)) {
        printf("a real model: left out, the folder of real models has no models/stories260K\n");
        return;
    }
    REQUIRE_OK(ox_json_load(path, 1 << 20, &reference));
    const json_t *const prompts = json_object_get(reference, "prompts");
    CHECK(json_array_size(prompts) > 0);
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        check_prompt(model, json_array_get(prompts, i), "", &errors);
        check_prompt(model, json_array_get(prompts, i), "--host-mem 1200KiB", &errors);
    }
    check_stream(model, json_array_get(prompts, 0));
    printf("a real model\n");
    golden_report("largest logits and logsumexp", errors.logits, real_limits.logits);
    golden_report("sum of logits, relative", errors.sum, real_limits.sum);
    golden_report("loss of the prompt", errors.nll, real_limits.nll);
    json_decref(reference);
}

/* The emulated GPU, whose memory the host cannot touch while it is guarded; and this machine's. */
static void check_gpus(void) {
    const struct simt *const simt = simt_open();
    struct ox_cuda_config config = {.plugin_path = simt->kit.plugin};
    struct cuda_kit real;
    gpu = &config;
    printf("on the emulated GPU\n");
    simt->guard(true);
    check_golden(0, 1);
    simt->guard(false);
    check_golden(1, CASES_EMULATED);
    CHECK(simt->device_bytes() == 0);
    if (cuda_kit_real(&real)) {
        printf("on this machine's GPU\n");
        config.plugin_path = real.plugin;
        check_golden(0, golden_case_count);
    }
    gpu = NULL;
}

int main(void) {
    check_golden(0, golden_taken_count());
    check_gpus();
    check_real();
    return test_end();
}
