/* The memory promise, measured from outside: the kernel's figure for the most resident memory, over loading, training,
 * evaluation and saving, against the budget and the overhead that the plan announces. The model's state is more than
 * ten times the smallest budget. What does not fit is refused, and the message names a budget that suffices. */
#include "base/bytes.h"
#include "base/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/run/trainer.h"
#include "kernels/device.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum {
    DEEP_LAYERS = 24,
    DEEP_PARAMS_MIN = 14000000,
    STATE_BYTES_PER_PARAM = 12,
    TIGHT_MIB = 14,
    SHARD_BYTES = 10 << 20,
};

/* How much more one process may use beside its arenas than another, if only the model's depth or the home of its state
 * differs: file headers, the plan's tasks, the drive's queues. */
static const uint64_t DRIFT_BYTES = 8 * OX_MIB;

static const char common[] = "--max-seq-length 16 --chunk-elems 32768 --compute-threads 1";
static const char training[] = "--optimizer-threads 1"; /* of a plan and of the run it is for */
static const char *text_path;
static struct sys_process process;

static const char *write_model(const char *name, unsigned layers) {
    char text[512];
    snprintf(text, sizeof text,
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 256,"
        " \"hidden_size\": 256, \"intermediate_size\": 512, \"num_hidden_layers\": %u, \"num_attention_heads\": 4,"
        " \"num_key_value_heads\": 2, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5,"
        " \"rope_theta\": 10000.0, \"tie_word_embeddings\": true, \"hidden_act\": \"silu\"}\n", layers);
    return files_write_text(test_pathf("%s.json", name), text);
}

/* ---- what a plan says ------------------------------------------------------------------------------ */

/* One run: the model, its memory, and the arguments for the budget. */
struct budget_case {
    const char *name, *model, *memory, *more;
    bool drive, bf16;
    uint64_t memory_bytes; /* host and device together */
};

static void add_words(struct sys_args *args, const struct budget_case *c) {
    sys_args_word(args, "--model=%s", c->model);
    sys_args_word(args, "--data=%s", text_path);
    sys_args_add(args, common);
    sys_args_add(args, c->memory);
    if (c->drive) {
        const char *folder;
        folder = files_make_folder(test_pathf("drive-%s", c->name));
        sys_args_word(args, "--nvme=%s:2GiB", folder);
    }
}

/* Bytes of the arenas in this case's plan. */
static uint64_t planned_bytes(const struct budget_case *c) {
    struct sys_args args;
    sys_args_begin(&args, "plan");
    sys_args_add(&args, "--format json");
    add_words(&args, c);
    sys_args_add(&args, training);
    if (c->more != NULL) { /* how long the run is decides how long is searched */
        sys_args_add(&args, c->more);
    }
    sys_run_well(&args, &process);
    json_error_t error;
    json_t *const plan = json_loads(process.outcome.out, JSON_REJECT_DUPLICATES, &error);
    json_int_t device = 0, host = 0, device_given = 0, host_given = 0;
    int feasible = 0;
    CHECK(json_unpack(plan, "{s:b, s:{s:I, s:I}, s:{s:I, s:I}}", "feasible", &feasible, "peak_bytes", "device", &device,
                      "host", &host, "budget_bytes", "device", &device_given, "host", &host_given) == 0);
    CHECK(feasible != 0 && host <= host_given && device <= device_given);
    CHECK((uint64_t)(host_given + device_given) == c->memory_bytes);
    json_decref(plan);
    return (uint64_t)(host + device);
}

static uint64_t announced_bytes(const struct budget_case *c) {
    const char *library;
    return ox_fixed_overhead_bytes(1, 1, c->bf16 && ox_cpu_has_products(OX_REAL_BF16, &library));
}

/* ---- measured against it ---------------------------------------------------------------------------- */

static uint64_t last_overhead(const struct budget_case *c, uint64_t arena_bytes) {
    const uint64_t peak = (uint64_t)process.outcome.peak_kib * OX_KIB;
    const uint64_t announced = announced_bytes(c);
    const uint64_t overhead = peak > arena_bytes ? peak - arena_bytes : 0;
    printf("%-10s budget %4llu MiB  arenas %6.1f  peak %6.1f  beside the arenas %5.1f of %5.1f announced\n", c->name,
           (unsigned long long)(c->memory_bytes / OX_MIB), (double)arena_bytes / (double)OX_MIB,
           (double)peak / (double)OX_MIB, (double)overhead / (double)OX_MIB, (double)announced / (double)OX_MIB);
    CHECK(peak > 0 && peak <= c->memory_bytes + announced);
    return overhead;
}

/* Trains in this budget, evaluates and saves; returns the bytes used beside the arenas. */
static uint64_t measure_train(const struct budget_case *c) {
    const uint64_t arena_bytes = planned_bytes(c);
    struct sys_args args;
    sys_args_begin(&args, "train");
    add_words(&args, c);
    sys_args_add(&args, training);
    sys_args_add(&args, "--eval-windows 2");
    sys_args_add(&args, c->more);
    sys_args_word(&args, "--output=%s", test_pathf("run-%s", c->name));
    sys_run_well(&args, &process);
    char announced[OX_SIZE_TEXT_BYTES], line[128];
    snprintf(line, sizeof line, "beside the arenas the process takes up to %s",
             ox_size_text(announced_bytes(c), announced));
    CHECK(strstr(process.outcome.err, line) != NULL);
    CHECK(strstr(process.outcome.err, "eval at step") != NULL);
    const char *const most = strstr(process.outcome.out, "planned at most ");
    char unit[8] = "";
    double planned = 0;
    CHECK(most != NULL && sscanf(most, "planned at most %lf %3[A-Za-z]", &planned, unit) == 2);
    /* Device memory of the CPU too. A run that goes on keeps choices of its store, so its plan may be a bit smaller. */
    const double expected = (double)(arena_bytes + announced_bytes(c)) / (double)OX_MIB;
    CHECK(strcmp(unit, "MiB") == 0 && planned > expected - 1 && planned < expected + 1);
    return last_overhead(c, arena_bytes);
}

static void test_training(const char *deep, const char *flat, const char *sharded) {
    struct budget_case c = {.name = "flat", .model = flat, .memory = "--host-mem 14MiB", .drive = true,
                            .more = "--max-steps 2", .memory_bytes = TIGHT_MIB * OX_MIB};
    const uint64_t base = measure_train(&c);

    /* State of ten times the budget: nothing beside the arenas may grow with it. */
    CHECK((uint64_t)DEEP_PARAMS_MIN * STATE_BYTES_PER_PARAM >= 10 * TIGHT_MIB * OX_MIB);
    c.name = "tight";
    c.model = deep;
    c.more = "--max-steps 2 --save-steps 1";
    CHECK(measure_train(&c) <= base + DRIFT_BYTES);

    /* Weights from many files, three tiers. */
    const char *const checkpoint = test_path("run-tight/checkpoint-2");
    REQUIRE_OK(ox_export_folder(checkpoint, NULL, false, sharded, OX_DTYPE_F32, SHARD_BYTES));
    c = (struct budget_case){.name = "sharded", .model = sharded, .memory = "--device-mem 8MiB --host-mem 6MiB",
                             .drive = true, .more = "--max-steps 1", .memory_bytes = 14 * OX_MIB};
    CHECK(measure_train(&c) <= base + DRIFT_BYTES);

    /* Moments and weights of a checkpoint, some with their home in memory. */
    char more[SYS_PATH_BYTES + 64];
    snprintf(more, sizeof more, "--max-steps 3 --resume-from-checkpoint %s", checkpoint);
    c = (struct budget_case){.name = "resumed", .model = deep, .memory = "--host-mem 64MiB", .drive = true,
                             .more = more, .memory_bytes = 64 * OX_MIB};
    CHECK(measure_train(&c) <= base + DRIFT_BYTES);
    CHECK(strstr(process.outcome.err, "resumed at step 2") != NULL);

    /* All in memory, two arenas, from one file. */
    c = (struct budget_case){.name = "memory", .model = checkpoint, .memory = "--device-mem 80MiB --host-mem 240MiB",
                             .more = "--max-steps 1", .memory_bytes = 320 * OX_MIB};
    CHECK(measure_train(&c) <= base + DRIFT_BYTES);
}

/* The bytes of a tier that the plan for these arguments needs. */
static uint64_t peak_of(const char *model, const char *memory, const char *words, const char *tier) {
    struct sys_args args;
    sys_args_begin(&args, "plan");
    sys_args_add(&args, "--format json --dtype bf16");
    sys_args_word(&args, "--model=%s", model);
    sys_args_add(&args, common);
    sys_args_add(&args, memory);
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
    json_error_t error;
    json_t *const plan = json_loads(process.outcome.out, JSON_REJECT_DUPLICATES, &error);
    const json_t *const bytes = json_object_get(json_object_get(plan, "peak_bytes"), tier);
    const uint64_t peak = (uint64_t)json_integer_value(bytes);
    json_decref(plan);
    return peak;
}

/* Narrower formats free as many bytes as their sizes say, twice on drives with two generations and once in memory; and
 * a run with that smaller budget stays within it. */
static void test_formats(const char *deep) {
    static const struct {
        const char *words;
        double bytes_per_param;
    } formats[] = {{"--moments f32", 12}, {"--moments bf16", 8}, {"--moments q8", 5.03125},
                   {"--optimizer lion --moments f32", 8}, {"--optimizer sgd --moments q8", 4.015625}};
    char drive[SYS_PATH_BYTES + 64];
    snprintf(drive, sizeof drive, "--host-mem 32MiB --tiles 1 --weights-tier nvme --state-tier nvme --grads-tier nvme "
             "--activation-tier nvme --store-generations 2 --nvme=%s:2GiB", test_folder());
    uint64_t widest[2] = {0, 0};
    for (unsigned i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (i > 0 && !test_takes(i, 2)) {
            continue;
        }
        const uint64_t stored = peak_of(deep, drive, formats[i].words, "nvme");
        const uint64_t held = peak_of(deep, "--host-mem 1GiB", formats[i].words, "host");
        widest[0] = i == 0 ? stored : widest[0];
        widest[1] = i == 0 ? held : widest[1];
        const double freed = (12 - formats[i].bytes_per_param) * DEEP_PARAMS_MIN;
        printf("%-32s nvme %6.1f MiB, host %6.1f MiB\n", formats[i].words, (double)stored / (double)OX_MIB,
               (double)held / (double)OX_MIB);
        CHECK((double)(widest[0] - stored) >= 2 * freed && (double)(widest[0] - stored) <= 2.2 * freed);
        CHECK((double)(widest[1] - held) >= freed && (double)(widest[1] - held) <= 1.1 * freed);
    }
    const uint64_t memory_mib = ox_div_up(peak_of(deep, "--host-mem 1GiB", "--moments q8", "host"), OX_MIB);
    char memory[128];
    CHECK(memory_mib * OX_MIB < (uint64_t)DEEP_PARAMS_MIN * STATE_BYTES_PER_PARAM);
    snprintf(memory, sizeof memory, "--dtype bf16 --moments q8 --host-mem %lluMiB", (unsigned long long)memory_mib);
    const struct budget_case c = {.name = "q8", .model = deep, .memory = memory, .more = "--max-steps 1", .bf16 = true,
                                  .memory_bytes = memory_mib * OX_MIB};
    (void)measure_train(&c);
}

static void test_eval(const char *sharded) {
    const struct budget_case c = {.name = "eval", .model = sharded, .memory = "--host-mem 72MiB",
                                  .memory_bytes = 72 * OX_MIB};
    struct sys_args args;
    sys_args_begin(&args, "eval");
    sys_args_add(&args, "--max-windows 2");
    add_words(&args, &c);
    sys_run_well(&args, &process);
    (void)last_overhead(&c, c.memory_bytes);
}

/* ---- refusals --------------------------------------------------------------------------------------- */

/* The number of MiB after `words` in the error. */
static long advised(const char *words) {
    return sys_number_after(process.outcome.err, words, -1);
}

static void run_plan(const char *model, const char *memory, const char *drive) {
    struct sys_args args;
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=%s", model);
    sys_args_add(&args, common);
    sys_args_add(&args, memory);
    if (drive[0] != '\0') {
        sys_args_word(&args, "--nvme=%s:%s", test_folder(), drive);
    }
    sys_run(&args, &process);
}

/* Expects exit status 2, the nearest plan on stdout, and one line of error that names the lack and the remedy. */
static void check_refused(const char *model, const char *memory, const char *drive, const char *words) {
    run_plan(model, memory, drive);
    const char *const newline = strchr(process.outcome.err, '\n');
    if (process.outcome.exit_status != 2 || newline == NULL || newline[1] != '\0' ||
        strncmp(process.outcome.err, "offload: does not fit", 21) != 0 ||
        strstr(process.outcome.err, words) == NULL || strstr(process.outcome.out, "over the budget") == NULL) {
        printf("plan %s --nvme %s: expected a refusal with '%s', got %d:\n%s%s\n", memory, drive, words,
               process.outcome.exit_status, process.outcome.out, process.outcome.err);
        test_failure_count++;
    }
}

static void test_refusals(const char *deep, const char *flat) {
    char memory[128], drive[64];
    check_refused(flat, "--host-mem 1MiB", "", "or give a drive with --nvme PATH:SIZE");
    const long host = advised("nearest that fits: --host-mem ");
    snprintf(memory, sizeof memory, "--host-mem %ldMiB", host - 1);
    check_refused(flat, memory, "", "nearest that fits");
    snprintf(memory, sizeof memory, "--host-mem %ldMiB", host);
    run_plan(flat, memory, "");
    CHECK(host > 1 && process.outcome.exit_status == 0);

    check_refused(deep, "--device-mem 1MiB --host-mem 1MiB", "1MiB", "the smallest plan needs device ");
    const long device = advised("--device-mem "), rest = advised("--host-mem ");
    const long store = advised(plain_pathf("--nvme %s:", test_folder()));
    CHECK(strstr(process.outcome.err, "--host-mem 1MiB") == NULL && strstr(process.outcome.err, "PATH:") == NULL);
    snprintf(memory, sizeof memory, "--device-mem %ldMiB --host-mem %ldMiB", device, rest);
    snprintf(drive, sizeof drive, "%ldMiB", store - 2);
    check_refused(deep, memory, drive, "nvme");
    snprintf(drive, sizeof drive, "%ldMiB", store);
    run_plan(deep, memory, drive);
    CHECK(device > 1 && rest > 1 && store > 2 && process.outcome.exit_status == 0);

    /* The advice holds for the run too, the store's own tables included. */
    struct sys_args args;
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s", deep);
    sys_args_word(&args, "--data=%s", text_path);
    const char *output = test_path("run-advised");
    sys_args_word(&args, "--output=%s", output);
    sys_args_word(&args, "--nvme=%s:%s", test_folder(), drive);
    sys_args_add(&args, common);
    sys_args_add(&args, memory);
    sys_args_add(&args, "--max-steps 1");
    sys_run_well(&args, &process);

    /* What does not fit is refused before anything is made. */
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s", deep);
    sys_args_word(&args, "--data=%s", text_path);
    output = test_path("run-refused");
    sys_args_word(&args, "--output=%s", output);
    sys_args_add(&args, "--host-mem 1MiB");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && strstr(process.outcome.err, "offload: does not fit") != NULL);
    CHECK(!files_exist(output));
}

/* ---- what this process may use now ------------------------------------------------------------------- */

static void begin_train(struct sys_args *args, const char *model, const char *name, const char *more) {
    sys_args_train(args, model, text_path, name);
    sys_args_add(args, "--max-seq-length 16 --compute-threads 1 --optimizer-threads 1 --eval-windows 0");
    sys_args_add(args, more);
}

/* Expects exit status 2 and one line of error with both words. */
static void expect_refusal(const struct sys_args *args, const char *what, const char *remedy) {
    sys_run(args, &process);
    if (process.outcome.exit_status != 2 || strstr(process.outcome.err, what) == NULL ||
        strstr(process.outcome.err, remedy) == NULL) {
        printf("expected a refusal with '%s' and '%s', got %d:\n%s\n", what, remedy, process.outcome.exit_status,
               process.outcome.err);
        test_failure_count++;
    }
}

/* A budget beyond what is free is refused at the start and at a resume: else the kernel would kill the run when it
 * fills the arenas. An automatic budget is not recorded as a number, so a resumed run finds its own. */
static void test_more_than_there_is(const char *flat) {
    struct sys_args args;
    begin_train(&args, flat, "run-huge", "--max-steps 1 --host-mem 1000TiB");
    expect_refusal(&args, "--host-mem 1000 TiB: this process can use ", "; give at most ");
    begin_train(&args, flat, "run-huge", "--max-steps 1 --device-mem 1000TiB");
    expect_refusal(&args, "--device-mem 1000 TiB, which on the CPU is host memory: ", "; give at most ");
    begin_train(&args, flat, "run-huge", "--max-steps 1 --ranks 2 --global-batch-size 4 --device-mem 600TiB");
    expect_refusal(&args, "--device-mem 600 TiB for each of 2 ranks, which on the CPU is host memory: ",
                   " together, or ");
    CHECK(!files_exist("run-huge"));

    begin_train(&args, flat, "run-auto", "--max-steps 1");
    sys_run_well(&args, &process);
    char *const yaml = files_read("run-auto/config.resolved.yaml", NULL);
    CHECK(strstr(yaml, "\nhost_mem: 0\n") != NULL && strstr(yaml, "\ndevice_mem: 0\n") != NULL);
    free(yaml);

    /* A limit of its address space stands for a smaller machine. */
    begin_train(&args, flat, "run-auto", "--max-steps 2 --resume latest --host-mem 2GiB");
    sys_args_limit(&args, RLIMIT_AS, OX_GIB);
    expect_refusal(&args, "(its limit of address space)", "raise it with ulimit -v");
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--config=%s", test_path("run-auto/config.resolved.yaml"));
    sys_args_add(&args, "--max-steps 2 --resume latest");
    sys_args_limit(&args, RLIMIT_AS, OX_GIB);
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "resumed at step 1 of 2") != NULL);
}

int main(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    test_skip("a sanitizer's own memory is not the program's");
#endif
    const char *const deep = write_model("deep", DEEP_LAYERS), *const flat = write_model("flat", 1);
    const char *const sharded = test_path("sharded");
    text_path = sys_write_text(20000);
    test_training(deep, flat, sharded);
    test_formats(deep);
    test_eval(sharded);
    test_refusals(deep, flat);
    test_more_than_there_is(flat);
    return test_end();
}
