/* Predicted step times as users see them: in the plan, for another machine, and beside each step of a run. */
#include "kernels/cuda.h"
#include "base/file.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *text_path;

/* A machine whose compute is so slow that nothing else matters. */
static const char *write_profile(const char *name, double flops, const char *drives) {
    char text[1024];
    snprintf(text, sizeof text,
             "{\"offload_profile\": 2, \"name\": \"%s\", \"source\": \"a test\", \"task_seconds\": 1e-9, \"gpu\": null,"
             " \"host\": {\"memory_bytes\": 1e10, \"cores\": 4, \"dram_bytes_per_second\": 1e15,"
             " \"core_flops_per_second\": %g, \"flops_per_second\": %g,"
             " \"adam\": {\"threads\": 4, \"f32_seconds_per_param\": 1e-12}},"
             " \"drives\": [%s]}", name, flops, 4 * flops, drives);
    return files_write_text(test_pathf("%s.json", name), text);
}

static void begin(const char *command, const char *words) {
    sys_args_begin(&args, command);
    sys_args_word(&args, "--model=%s", model_path);
    sys_args_add(&args, "--seq-len 32 --batch-size 2 --gradient-accumulation-steps 2 --host-mem 64MiB");
    sys_args_add(&args, words);
}

/* Returns the plan as JSON, which the caller owns. */
static json_t *plan(const char *words, const char *profile) {
    begin("plan", "--format json");
    sys_args_add(&args, words);
    if (profile != NULL) {
        sys_args_word(&args, "--profile=%s", profile);
    }
    sys_run_well(&args, &process);
    json_t *const json = json_loads(process.outcome.out, 0, NULL);
    CHECK(json != NULL);
    return json;
}

static double number(const json_t *json, const char *key) {
    return json_number_value(json_object_get(json, key));
}

static void check_text(const json_t *json, const char *key, const char *expected) {
    const char *const text = json_string_value(json_object_get(json, key));
    CHECK(text != NULL && strcmp(text, expected) == 0);
}

static void test_machines(const char *slow, const char *fast) {
    json_t *const a = plan("", slow), *const b = plan("", fast);
    const double seconds = number(a, "predicted_seconds");
    CHECK(seconds > 0 && number(a, "floor_seconds") > 0 && number(a, "floor_seconds") <= seconds);
    CHECK(number(b, "predicted_seconds") < seconds / 9.5 && number(b, "predicted_seconds") > seconds / 10.5);
    check_text(a, "binding_resource", "cores");
    check_text(a, "machine", "slow");
    CHECK(json_is_true(json_object_get(a, "profiled")) && json_is_true(json_object_get(a, "feasible")));
    CHECK(number(json_object_get(a, "predicted_busy_seconds"), "compute") > 0.9 * seconds);
    json_decref(b);
    json_t *const one = plan("--compute-threads 1", slow); /* one of the machine's four cores */
    CHECK(number(one, "predicted_seconds") > 3.5 * seconds);
    json_decref(one);
    json_decref(a);
}

static double count(const json_t *json, const char *plane, const char *tier) {
    return number(json_object_get(json_object_get(json, "homes"), plane), tier);
}

/* The plan reports what was requested, and a home for each plane of every unit. */
static void test_choice(void) {
    static const char *const planes[] = {"weights", "state", "grads"};
    json_t *const json = plan("--device-mem 64MiB --device-state-units 2 --kept-blocks 1 --tiles 2 --prefetch-depth 1 "
                              "--optimizer-overlap held --activation-tier host", NULL);
    CHECK(number(json, "tiles") == 2 && number(json, "prefetch_depth") == 1 && number(json, "kept_blocks") == 1);
    CHECK(json_is_true(json_object_get(json, "overlap")) && number(json, "speculative_units") == 0);
    CHECK(number(json, "device_units") == 2 && number(json, "stream_slots") > 0);
    check_text(json, "activation_tier", "host");
    for (unsigned i = 0; i < sizeof planes / sizeof *planes; i++) {
        const double on_device = count(json, planes[i], "device"), on_host = count(json, planes[i], "host");
        CHECK(on_device + on_host == number(json, "units") && on_device >= 2);
        CHECK(i == 0 || on_device == 2);
        CHECK(count(json, planes[i], "nvme") == 0);
    }
    json_decref(json);
}

/* Advice: with slow compute only more tokens help, with a slow drive another drive. */
static void test_more(const char *slow, const char *drive) {
    json_t *json = plan("", slow);
    const json_t *more = json_object_get(json, "with_more");
    const double seconds = number(json, "predicted_seconds");
    CHECK(json_is_null(json_object_get(more, "device_memory")));
    CHECK(number(json_object_get(more, "host_memory"), "speedup") == 1);
    CHECK(number(json_object_get(more, "tokens"), "seconds") > 1.9 * seconds);
    CHECK(fabs(number(json_object_get(more, "tokens"), "speedup") - 1) < 0.05);
    json_decref(json);
    char words[SYS_PATH_BYTES];
    snprintf(words, sizeof words, "--persist-steps 1 --nvme %s:64MiB", test_folder());
    json = plan(words, drive);
    more = json_object_get(json, "with_more");
    CHECK(number(json_object_get(more, "drive"), "speedup") > 1.8);
    CHECK(number(json_object_get(more, "drive"), "speedup") < 2.2);
    json_decref(json);
    begin("plan", words);
    sys_args_word(&args, "--profile=%s", drive);
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.out, "with one more drive: ") != NULL);
    CHECK(strstr(process.outcome.out, "host memory: ") == NULL);
    CHECK(strstr(process.outcome.out, "  lower bound ") != NULL);
}

/* What one thing more is said to bring is what the plan with it predicts, or up to 2 % less: the search for advice ends
 * early. */
static void test_advice_is_a_plan(void) {
    static const char model[] = "tools/dev/scale/7b.json";
    double seconds[2] = {0};
    if (!ox_path_is_file(model)) {
        printf("%s is not there, so its advice is not compared\n", model);
        return;
    }
    for (int i = 0; i < 2; i++) {
        sys_args_begin(&args, "plan");
        sys_args_word(&args, "--model=%s", model);
        sys_args_add(&args, "--format json --dtype bf16 --device-mem 20GiB --max-seq-length 2048 "
                     "--gradient-accumulation-steps 8 --profile rtx4090-1-drive");
        sys_args_add(&args, i == 0 ? "--host-mem 48GiB" : "--host-mem 80GiB");
        sys_args_word(&args, "--nvme=%s:400GiB", test_folder());
        sys_run_well(&args, &process);
        json_t *const json = json_loads(process.outcome.out, 0, NULL);
        const json_t *const more = json_object_get(json_object_get(json, "with_more"), "host_memory");
        seconds[i] = i == 0 ? number(more, "seconds") : number(json, "predicted_mean_seconds");
        json_decref(json);
    }
    printf("advised %.4g s, planned %.4g s\n", seconds[0], seconds[1]);
    CHECK(seconds[1] > 0 && seconds[0] > 0.995 * seconds[1] && seconds[0] < 1.02 * seconds[1]);
}

/* With --persist-steps N, every Nth step also takes the time of writing the state. */
static void test_persist(const char *drive) {
    double written[3];
    for (unsigned i = 0; i < 3; i++) {
        char words[SYS_PATH_BYTES];
        const unsigned steps = i == 0 ? 1 : 4 * i;
        snprintf(words, sizeof words, "--persist-steps %u --optimizer-overlap held --nvme %s:64MiB", steps,
                 test_folder());
        json_t *const json = plan(words, drive);
        const double seconds = number(json, "predicted_seconds"), mean = number(json, "predicted_mean_seconds");
        CHECK(i == 0 ? mean == seconds : mean > seconds);
        written[i] = seconds + (mean - seconds) * steps;
        json_decref(json);
    }
    CHECK(written[0] > 0 && fabs(written[1] / written[0] - 1) < 1e-9 && fabs(written[2] / written[0] - 1) < 1e-9);
}

/* docs/planning.md has every key of the plan, and of what lies within one. */
static void check_documented(const json_t *json, const char *page, int depth) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)json, key, value) {
        char cell[64];
        snprintf(cell, sizeof cell, "`%s`", key);
        if (strstr(page, cell) == NULL) {
            printf("docs/planning.md does not name %s\n", key);
            test_failure_count++;
        }
        const bool by_lane = strstr(key, "_per_step") != NULL || strncmp(key, "predicted_", 10) == 0;
        const bool by_advice = strcmp(key, "with_more") == 0;
        if (depth == 0 && !by_lane && !by_advice) {
            check_documented(json_is_array(value) ? json_array_get(value, 0) : value, page, 1);
        }
    }
}

/* Budgets that are not given follow from the machine's memory. */
static void test_other_machine(void) {
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=%s", model_path);
    sys_args_add(&args, "--seq-len 32 --format json --from-scratch --profile docs/profiles/rtx4090-1-drive.json");
    sys_run_well(&args, &process);
    json_t *const json = json_loads(process.outcome.out, 0, NULL);
    const json_t *const budget = json_object_get(json, "budget_bytes");
    CHECK(json_integer_value(json_object_get(budget, "device")) == 22537568256 - (json_int_t)OX_CUDA_PROCESS_BYTES);
    CHECK(json_integer_value(json_object_get(budget, "host")) == 117440512000);
    char *page = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read("docs/planning.md", 1 << 20, &page, &bytes));
    check_documented(json, page, 0);
    free(page);
    json_decref(json);
}

/* Without --profile the user's own profile is used; $OFFLOAD_PROFILE comes before it, and "builtin" is a nominal
 * machine, which the plan says. */
static void test_standard_place(const char *slow) {
    const char *const folder = files_make_folder("conf");
    CHECK(setenv("XDG_CONFIG_HOME", folder, 1) == 0 && setenv("OFFLOAD_PROFILE", "builtin", 1) == 0);
    json_t *json = plan("", NULL);
    check_text(json, "machine", "nominal");
    CHECK(json_is_false(json_object_get(json, "profiled")));
    json_decref(json);
    CHECK(setenv("OFFLOAD_PROFILE", "", 1) == 0);
    files_make_folder("conf/offload");
    CHECK(rename(slow, test_path("conf/offload/machine.json")) == 0);
    json = plan("", NULL);
    check_text(json, "machine", "slow");
    json_decref(json);
    begin("plan", "--profile=/nowhere/machine.json");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && strstr(process.outcome.err, "/nowhere/machine.json") != NULL);
    /* Profiles that come with the program have names; a file of that name comes first. */
    begin("plan", "--profile=rtx4091-1-drive");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && sys_said(&process, "did you mean rtx4090-1-drive?"));
    begin("plan", "--profile=mine.json");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && sys_said(&process, "no profile of that name; the program comes with "
                                                       "a100-4-drives, cpu-2-cores, h100-x8-4-drives, "
                                                       "h100-x8-ethernet, h100-x8-infiniband, "
                                                       "h200-16-cores, h200-4-drives, rtx4090-1-drive"));
    static const char *const names[] = {"--profile=h200-4-drives", "--profile=h200-4-drives.json"};
    for (unsigned i = 0; i < 2; i++) {
        json = plan(names[i], NULL);
        check_text(json, "machine", "H200, 128 GB, four Gen4 drives");
        json_decref(json);
    }
    CHECK(setenv("OFFLOAD_PROFILE", "cpu-2-cores", 1) == 0);
    json = plan("", NULL);
    CHECK(json_is_true(json_object_get(json, "profiled")));
    json_decref(json);
    CHECK(setenv("OFFLOAD_PROFILE", "", 1) == 0);
}

/* Without any profile the machine is measured, which the plan says, and where that is kept. "builtin" is as it was
 * without a measurement. */
static void test_measured(void) {
    const char *const folder = files_make_folder("cache");
    CHECK(setenv("XDG_CACHE_HOME", folder, 1) == 0 && setenv("XDG_CONFIG_HOME", folder, 1) == 0);
    json_t *json = plan("", NULL);
    CHECK(json_is_true(json_object_get(json, "profiled")) && number(json_object_get(json, "measured"), "seconds") > 0);
    const bool kept = json_is_string(json_object_get(json_object_get(json, "measured"), "path"));
    CHECK(kept == (files_count("cache/offload", "machine-", ".json") == 1));
    json_decref(json);
    begin("plan", "");
    sys_run_well(&args, &process);
    /* A busy machine may leave a part unmeasured, which is then measured now. */
    CHECK(strstr(process.outcome.out, "measured this machine for") != NULL ||
          (kept && strstr(process.outcome.out, "using the measurement of 20") != NULL));
    CHECK(kept);
    CHECK(strstr(process.outcome.err, "is not kept") == NULL);
    json = plan("--profile builtin", NULL);
    check_text(json, "machine", "nominal");
    CHECK(json_is_false(json_object_get(json, "profiled")) && json_is_null(json_object_get(json, "measured")));
    json_decref(json);
}

/* Checks what the record of the run has for the profile, by its end. */
static void expect_recorded(const char *end) {
    char *const yaml = files_read("run/config.resolved.yaml", NULL);
    const char *const at = strstr(yaml, "\nprofile: \""), *const found = at != NULL ? strstr(at, end) : NULL;
    CHECK(found != NULL && strchr(at + 1, '\n') == found + strlen(end) - 1);
    free(yaml);
}

/* Every step's line has what the plan has; a profile that was given is in the record of the run, one of the
 * environment is not. */
static void test_run(const char *fast) {
    char line[8192];
    const char *run;
    json_t *const expected = plan("", fast);
    begin("train", "--max-steps 2");
    sys_args_word(&args, "--data=%s", text_path);
    run = test_path("run");
    sys_args_word(&args, "--output=%s", run);
    sys_args_word(&args, "--profile=%s", fast);
    sys_run_well(&args, &process);
    FILE *file = fopen(test_path("run/metrics.jsonl"), "r");
    CHECK(file != NULL);
    int steps = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        json_t *const json = json_loads(line, 0, NULL);
        const char *const type = json_string_value(json_object_get(json, "type"));
        if (type != NULL && strcmp(type, "step") == 0) {
            steps++;
            CHECK(number(json, "predicted_seconds") == number(expected, "predicted_seconds"));
        }
        json_decref(json);
    }
    CHECK(steps == 2);
    if (file != NULL) {
        fclose(file);
    }
    expect_recorded("/fast.json\"\n");
    static const char *const others[][2] = {{"--profile builtin", " \"builtin\"\n"}, {"", " \"\"\n"}};
    for (int i = 0; i < 2; i++) {
        begin("train", "--max-steps 2 --resume latest");
        sys_args_word(&args, "--data=%s", text_path);
        sys_args_word(&args, "--output=%s", run);
        sys_args_add(&args, others[i][0]);
        sys_run_well(&args, &process);
        expect_recorded(others[i][1]);
    }
    json_decref(expected);
}

/* Trains to `steps` with state on a drive of its own; `resume` "": from the start. */
static void train_to(const char *name, int steps, const char *profile, const char *resume) {
    sys_args_train(&args, model_path, text_path, name);
    sys_args_add(&args, "--seq-len 32 --batch-size 2 --gradient-accumulation-steps 2 --lr-scheduler-type constant");
    sys_args_word(&args, "--max-steps=%d", steps);
    sys_args_word(&args, "--profile=%s", profile);
    sys_args_drive(&args, test_pathf("%s-drive", name), "32MiB");
    sys_args_add(&args, resume);
    sys_run_well(&args, &process);
}

/* A run whose machine is another at the resume, by a measurement for example, goes on with the same bits. */
static void test_other_speeds(const char *fast, const char *drive) {
    train_to("straight", 4, fast, "");
    /* Nothing is used by more than all of it: the rate was measured wrongly. */
    const char *const out = process.outcome.out;
    CHECK(strstr(out, " G that were measured of products on this machine: other programs ran then") != NULL);
    CHECK(strstr(out, "utilisation") == NULL);
    train_to("turned", 2, fast, "");
    train_to("turned", 4, drive, "--resume-from-checkpoint latest");
    CHECK(strstr(process.outcome.err, "resumed at step 2") != NULL);
    CHECK(sys_same_checkpoint(test_path("straight/checkpoint-4"), test_path("turned/checkpoint-4")));
}

int main(void) {
    model_path = sys_write_model("llama");
    text_path = sys_write_text(20000);
    const char *const slow = write_profile("slow", 1e6, ""), *const fast = write_profile("fast", 1e7, "");
    const char *const drive =
        write_profile("drive", 1e12,
                      "{\"name\": \"slow\", \"read_bytes_per_second\": 1e6, \"write_bytes_per_second\": 1e6,"
                      " \"mix_bytes_per_second\": 1e6, \"latency_seconds\": 1e-6, \"flush_seconds\": 1e-6}");
    test_machines(slow, fast);
    test_more(slow, drive);
    test_advice_is_a_plan();
    test_persist(drive);
    test_choice();
    test_other_machine();
    test_run(fast);
    test_other_speeds(fast, drive);
    test_standard_place(slow);
    test_measured();
    return test_end();
}
