/* `offload bench` at sizes too small to say anything about a machine: records and profile have their fields, nothing
 * stays on the drive however it ends, and impossible requests are refused before anything is written. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include "kernels/device.h"
#include "offload/sim/machine_profile.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static struct sys_args args;
static struct sys_process process;
static const char *drive;

static void begin(const char *words) {
    sys_args_begin(&args, "bench");
    sys_args_add(&args, words);
}

/* ---- records ------------------------------------------------------------------------------------------- */

/* What the program printed as JSON; json_decref() it. */
static json_t *parse(const char *text) {
    json_error_t error;
    json_t *const json = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (json == NULL) {
        printf("not JSON: %s: %.300s\n", error.text, text);
        exit(1);
    }
    return json;
}

/* Counts the limits that were missed. */
static unsigned check_records(const json_t *records) {
    unsigned missed = 0;
    CHECK(json_is_array(records) && json_array_size(records) > 0);
    for (size_t i = 0; i < json_array_size(records); i++) {
        const json_t *const record = json_array_get(records, i);
        const char *const unit = json_string_value(json_object_get(record, "unit"));
        const json_t *const value = json_object_get(record, "value"), *const limit = json_object_get(record, "limit"),
                     *const ratio = json_object_get(record, "ratio");
        CHECK(json_object_size(record) == 5 && json_is_string(json_object_get(record, "name")) && unit != NULL);
        CHECK(json_is_number(value) && json_number_value(value) >= 0.0 && isfinite(json_number_value(value)));
        CHECK(json_is_null(limit) ? json_is_null(ratio) : json_number_value(limit) > 0.0 && json_is_number(ratio));
        CHECK(unit == NULL || strstr(unit, "/s") == NULL || json_number_value(value) > 0.0);
        missed += unit != NULL && strcmp(unit, "1") == 0 && json_is_number(ratio) && json_number_value(ratio) < 1.0;
    }
    return missed;
}

static double value_of(const json_t *records, const char *name) {
    for (size_t i = 0; i < json_array_size(records); i++) {
        const json_t *const record = json_array_get(records, i);
        const char *const found = json_string_value(json_object_get(record, "name"));
        if (found != NULL && strcmp(found, name) == 0) {
            return json_number_value(json_object_get(record, "value"));
        }
    }
    printf("no record '%s'\n", name);
    test_failure_count++;
    return 0.0;
}

/* What is printed has seven digits. */
static bool near(double a, double b) {
    return fabs(a - b) <= 1e-6 * fabs(b);
}

/* The status depends on the figures only with --strict; on a busy machine both are possible. */
static void test_adam(void) {
    for (int strict = 0; strict < 2; strict++) {
        begin("adam --size 2MiB --rounds 1 --format json");
        sys_args_add(&args, strict ? "--strict" : "");
        sys_run(&args, &process);
        json_t *const records = parse(process.outcome.out);
        const unsigned missed = check_records(records);
        CHECK(process.outcome.exit_status == (strict && missed > 0 ? 1 : 0));
        const char *const below = missed == 1 ? "is below its limit" : "are below their limits";
        CHECK((strstr(process.outcome.err, below) != NULL) == (strict && missed > 0));
        CHECK(value_of(records, "adam.adamw.f32.grad_f32.bytes") == 28.0);
        CHECK(value_of(records, "adam.adamw.f32.grad_bf16.of_plain_loop") > 0.0);
        CHECK(value_of(records, "adam.lion.q8.grad_f32.rate") > 0.0);
        CHECK(value_of(records, "adam.three_passes.grad_f32.by_one") > 0.0);
        CHECK(value_of(records, "adam.other_processes") <= 1.0);
        json_decref(records);
    }
    begin("adam --size 2MiB --rounds 1 --state-format bf16 --isa scalar --optimizer-threads 3");
    sys_run_well(&args, &process);
    static const char first[] = "adam: 0.1 million parameters, 3 threads, scalar, median of 1 rounds\n";
    CHECK(strncmp(process.outcome.out, first, strlen(first)) == 0);
    CHECK(strstr(process.outcome.out, "adam.adamw.bf16.grad_f32.rate ") != NULL);
    CHECK(strstr(process.outcome.out, ".f32.") == NULL && strstr(process.outcome.out, ".q8.") == NULL);
    CHECK(strstr(process.outcome.out, "three_passes") == NULL && process.outcome.err[0] == '\0');
}

static void test_threads(void) {
    begin("copy --size 64KiB --rounds 2 --compute-threads 3 --format json");
    sys_run_well(&args, &process);
    json_t *records = parse(process.outcome.out);
    CHECK(check_records(records) == 0);
    CHECK(json_array_size(records) == 3 * 3 + 1); /* 1, 2 and 3 threads */
    CHECK(value_of(records, "copy.read.threads_1") > 0.0 && value_of(records, "copy.copy.threads_3") > 0.0);
    json_decref(records);
    begin("gemm --size 256KiB --rounds 1 --compute-threads 1 --format json");
    sys_run_well(&args, &process);
    records = parse(process.outcome.out);
    CHECK(check_records(records) == 0);
    const char *library = NULL;
    const bool bf16 = ox_cpu_has_products(OX_REAL_BF16, &library);
    CHECK(json_array_size(records) == (bf16 ? 10 + 1 + 1 + 1 : 10 + 1 + 1));
    CHECK(value_of(records, "gemm.qkv.threads_1") > 0.0 && value_of(records, "gemm.gate_up.threads_1") > 0.0);
    CHECK(!bf16 || value_of(records, "gemm.bf16.threads_1") > 0.0);
    CHECK(value_of(records, "gemm.up.threads_1") > 0.0 && value_of(records, "gemm.all.threads_1") > 0.0);
    json_decref(records);
}

/* ---- a GPU --------------------------------------------------------------------------------------------- */

/* The values from the emulation mean nothing, but that each exists, and which the profile takes, can be checked. */
static void test_gpu(void) {
    static const char *const expected[] = {
        "copy.h2d.kib_16", "copy.duplex.kib_256", "copy.gpu.d2h", "gemm.gpu.head.backward.f32",
        "gemm.gpu.gate_up.forward.f32.of_best_of_1", "gemm.gpu.projection.forward.bf16.of_best_of_1",
        "gemm.gpu.qkv.backward.bf16", "gemm.gpu.qkv_gqa.forward.bf16", "gemm.gpu.block.bf16",
        "ops.linear_backward.projection.bf16", "attention.gpu.backward.bf16",
        "attention.gpu.forward.mha.bf16",
        "ops.copy", "ops.linear_backward.f32", "ops.rms_backward.f32.of_copy",
        "ops.attention_backward.dim_64.f32", "ops.head.f32", "ops.adam.q8", "adam.gpu.bf16.times_cpu"};
    static const char *const parts[] = {"copy --size 1MiB", "gemm --size 3MiB", "ops --size 3MiB", "adam --size 2MiB"};
    const unsigned products = 1; /* they take seconds on fibers: in `make test` those of a model, below, are enough */
    char *const before = sys_use_emulated();
    bool found[sizeof expected / sizeof *expected] = {false};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (i == products && !test_all()) {
            continue;
        }
        begin(parts[i]);
        sys_args_add(&args, "--device cuda --rounds 1 --format json --compute-threads 1 --optimizer-threads 1");
        sys_run_well(&args, &process);
        json_t *const records = parse(process.outcome.out);
        (void)check_records(records);
        json_decref(records);
        for (unsigned k = 0; k < sizeof expected / sizeof *expected; k++) {
            char name[128];
            snprintf(name, sizeof name, "\"%s\"", expected[k]);
            found[k] |= strstr(process.outcome.out, name) != NULL;
        }
        CHECK(strstr(process.outcome.err, "GPU: emulated, ") != NULL);
    }
    for (unsigned k = 0; k < sizeof expected / sizeof *expected; k++) {
        const bool of_products = strncmp(expected[k], "gemm", 4) == 0 || strncmp(expected[k], "attention", 9) == 0;
        if (!found[k] && (test_all() || !of_products)) {
            printf("no record %s\n", expected[k]);
            test_failure_count++;
        }
    }
    sys_use(before);
}

/* Several GPUs are measured at once, and what one takes from another is named by whether it passes through the host. */
static void test_gpus(void) {
    char *const before = sys_use_emulated();
    setenv("OX_SIMT_DEVICES", "3", 1);
    for (int peers = 0; peers < 2; peers++) {
        setenv("OX_SIMT_PEERS", peers ? "1" : "0", 1);
        begin("copy --size 256KiB --device cuda --rounds 1 --format json --compute-threads 1");
        sys_run_well(&args, &process);
        json_t *const records = parse(process.outcome.out);
        (void)check_records(records);
        CHECK(value_of(records, "copy.gpus.links") > 0.0);
        CHECK(value_of(records, peers ? "copy.gpus.peer" : "copy.gpus.through_host") > 0.0);
        const double share = value_of(records, peers ? "copy.gpus.peer_of_links" : "copy.gpus.through_host_of_links");
        CHECK(share >= 0.0 && share <= 1.0);
        CHECK((strstr(process.outcome.out, "copy.gpus.peer") != NULL) == (peers != 0));
        CHECK(strstr(process.outcome.err, "copy: 3 GPUs, pinned memory") != NULL);
        json_decref(records);
    }
    unsetenv("OX_SIMT_PEERS");
    unsetenv("OX_SIMT_DEVICES");
    sys_use(before);
}

/* ---- a model's sizes ----------------------------------------------------------------------------------- */

static const char *const model_text =
    "{\"model_type\": \"llama\", \"vocab_size\": 128, \"hidden_size\": 64, \"intermediate_size\": 96,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"head_dim\": 16,"
    " \"max_position_embeddings\": 64, \"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-5}";

/* Bytes that a product of (m, k) by (k, n) packs, and its operations. */
static void add_product(double m, double n, double k, double repeats, double sums[2]) {
    sums[0] += repeats * (12 * n * k + 12 * m * k + 4 * m * n);
    sums[1] += repeats * 2 * m * n * k;
}

static void test_model(void) {
    static const char *const names[] = {"qkv", "projection", "gate_up", "down", "head", "scores", "input_grad"};
    const char *const path = files_write_text("model.json", model_text);
    begin("gemm --rounds 1 --compute-threads 1 --device cpu --format json");
    sys_args_word(&args, "--model=%s", path);
    sys_run_well(&args, &process);
    json_t *records = parse(process.outcome.out);
    CHECK(check_records(records) == 0);
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];
        snprintf(name, sizeof name, "gemm.%s.threads_1", names[i]);
        CHECK(value_of(records, name) > 0.0);
    }
    CHECK(strstr(process.outcome.out, "gemm.up.") == NULL && strstr(process.outcome.out, "gemm.qkv_gqa.") == NULL);
    double sums[2] = {0, 0};
    add_product(512, 12 * 16, 64, 1, sums);   /* q, k and v */
    add_product(512, 64, 8 * 16, 1, sums);    /* attention's output */
    add_product(512, 2 * 96, 64, 1, sums);    /* gate and up */
    add_product(512, 64, 96, 1, sums);        /* down */
    add_product(512, 64, 2 * 96, 1, sums);    /* the gradients of gate and up */
    add_product(2 * 96, 64, 512, 1, sums);
    add_product(128, 64, 16, 8 * 512 / 128, sums); /* scores of 8 heads */
    CHECK(near(value_of(records, "gemm.packed"), sums[0] / sums[1]));
    json_decref(records);
    begin("ops --rounds 1 --compute-threads 1 --device cpu --format json");
    sys_args_word(&args, "--model=%s", path);
    sys_run_well(&args, &process);
    records = parse(process.outcome.out);
    CHECK(value_of(records, "ops.attention_backward.model.f32") > 0.0 && value_of(records, "ops.head.f32") > 0.0);
    CHECK(value_of(records, "ops.linear_forward.qkv.f32") > 0.0 && strstr(process.outcome.out, ".dim_64") == NULL);
    CHECK(strstr(process.outcome.err, "ops: 512 rows in sequences of 64, hidden 64, 8 heads of 16 with 2 of keys, "
                                      "width 96, vocabulary 128") != NULL);
    json_decref(records);
}

/* The rate of attention that the profile takes is that of the model's kind of heads alone. */
static void test_model_on_gpu(void) {
    const char *const path = files_write_text("model.json", model_text);
    static const char *const parts[] = {"gemm", "ops"};
    char *const before = sys_use_emulated();
    for (unsigned i = 0; i < 2; i++) {
        begin(parts[i]);
        sys_args_add(&args, "--size 1MiB --rounds 1 --compute-threads 1 --device cuda --format json");
        sys_args_word(&args, "--model=%s", path);
        sys_run_well(&args, &process);
        json_t *const records = parse(process.outcome.out);
        (void)check_records(records);
        CHECK(value_of(records, "gemm.gpu.qkv.forward.bf16") > 0.0 && value_of(records, "gemm.gpu.block.f32") > 0.0);
        CHECK(value_of(records, i == 0 ? "attention.gpu.backward.bf16" : "ops.attention_forward.model.bf16") > 0.0);
        CHECK(strstr(process.outcome.out, ".mha") == NULL && strstr(process.outcome.out, "qkv_gqa") == NULL);
        json_decref(records);
    }
    sys_use(before);
}

/* ---- drives -------------------------------------------------------------------------------------------- */

static void test_nvme(void) {
    char file[2 * SYS_PATH_BYTES];
    snprintf(file, sizeof file, "%s/offload-bench.tmp", drive);
    files_make_folder(file); /* what a killed run left */
    files_write_text("drive/offload-bench.tmp/drive.dat", "old");
    begin("nvme --size 13MiB --rounds 1 --queue-depth 3 --io-backend threads --format json");
    sys_args_word(&args, "--nvme=%s", drive);
    sys_run_well(&args, &process);
    json_t *records = parse(process.outcome.out);
    (void)check_records(records);
    CHECK(value_of(records, "nvme0.write.threads") > 0.0 && value_of(records, "nvme0.step.threads") > 0.0);
    CHECK(strstr(process.outcome.out, "uring") == NULL);
    CHECK(strstr(process.outcome.err, "12.0 MiB in blocks of 512 KiB, depth 3, median of 1 rounds") != NULL);
    CHECK(files_count(drive, "", "") == 0);
    json_decref(records);
    /* Without a size of its own the file fits the allowance: two files and 16 MiB. */
    begin("nvme --rounds 1");
    sys_args_word(&args, "--nvme=%s:30MiB", drive);
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.out, "6.00 MiB in blocks of") != NULL);
    CHECK(files_count(drive, "", "") == 0);
}

/* Without fio there are figures, no ratios, and the way to get it. */
static void test_without_fio(void) {
    char *const before = strdup(getenv("PATH"));
    setenv("PATH", drive, 1);
    begin("nvme --size 6MiB --rounds 1 --format json");
    sys_args_word(&args, "--nvme=%s", drive);
    sys_run_well(&args, &process);
    setenv("PATH", before, 1);
    free(before);
    json_t *const records = parse(process.outcome.out);
    CHECK(check_records(records) == 0 && value_of(records, "nvme0.read.threads") > 0.0);
    CHECK(strstr(process.outcome.out, "fio") == NULL && strstr(process.outcome.out, "\"limit\": null") != NULL);
    CHECK(strstr(process.outcome.err, "apt-get install -y fio") != NULL);
    CHECK(files_count(drive, "", "") == 0);
    json_decref(records);
}

static void test_interrupted(int signal_number) {
    begin("nvme --size 48MiB --rounds 99 --format json");
    sys_args_word(&args, "--nvme=%s", drive);
    sys_start(&args, &process);
    CHECK(sys_await(&process, "nvme0: ")); /* its file exists */
    CHECK(files_count(drive, "", "") == 1);
    CHECK(kill(process.pid, signal_number) == 0);
    sys_wait(&process);
    CHECK(process.outcome.exit_status == 128 + signal_number && process.outcome.out[0] == '\0');
    CHECK(files_count(drive, "", "") == 0);
}

static void test_profile(void) {
    const char *const path = test_path("profile.json");
    begin("all --size 12MiB --rounds 1 --format json --compute-threads 2");
    sys_args_word(&args, "--nvme=%s", drive);
    sys_args_word(&args, "--output=%s", path);
    sys_run_well(&args, &process);
    json_t *const records = parse(process.outcome.out);
    (void)check_records(records);
    static struct ox_machine machine;
    REQUIRE_OK(ox_machine_load(path, &machine));
    CHECK(!machine.has_gpu && machine.drive_count == 1 && machine.host.cores == 2 && machine.name[0] != '\0');
    CHECK(machine.drives[0].read_rate > 0.0 && machine.drives[0].latency_seconds > 0.0 && machine.task_seconds > 0.0);
    CHECK(near(machine.host.flops, value_of(records, "gemm.all.threads_2")));
    CHECK(near(machine.host.core_flops, value_of(records, "gemm.all.threads_1")));
    const char *library = NULL;
    const bool in_bf16 = ox_cpu_has_products(OX_REAL_BF16, &library);
    CHECK(in_bf16 ? near(machine.host.bf16_flops, value_of(records, "gemm.bf16.threads_2"))
                  : machine.host.bf16_flops == 0);
    CHECK(near(machine.host.adam.seconds[OX_MOMENTS_F32], 1e-9 * value_of(records, "adam.adamw.f32.grad_f32.time")));
    CHECK(machine.host.adam.seconds[OX_MOMENTS_Q8] > 0.0);
    CHECK(machine.comm_count == 1 && machine.comm[0].ranks == 2);
    CHECK(near(machine.comm[0].gather_rate, value_of(records, "comm.gather.ranks_2.12288KiB")));
    CHECK(near(machine.comm[0].exchange_rate, value_of(records, "comm.exchange.ranks_2.12288KiB")));
    CHECK(near(machine.comm[0].meet_seconds, value_of(records, "comm.meet.ranks_2")));
    CHECK(machine.host.dram_rate >= (1.0 - 1e-6) * value_of(records, "copy.read.threads_2"));
    json_error_t error;
    json_t *const profile = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    const json_t *const measured = json_object_get(profile, "measured");
    CHECK(json_string_length(json_object_get(measured, "date")) == strlen("2000-01-01T00:00:00Z"));
    const json_t *const parts = json_object_get(measured, "machine");
    CHECK(json_is_string(json_object_get(parts, "cpu")) && json_is_string(json_object_get(parts, "kernel")));
    const json_t *const first = json_array_get(json_object_get(measured, "drives"), 0);
    const char *const found = json_string_value(json_object_get(first, "path"));
    CHECK(found != NULL && strcmp(found, drive) == 0 && json_is_string(json_object_get(measured, "isa")));
    CHECK(json_array_size(json_object_get(measured, "copy")) == 2);
    const json_t *const gemm = json_array_get(json_object_get(measured, "gemm"), 0);
    CHECK(json_integer_value(json_object_get(gemm, "threads")) == 1);
    CHECK(near(json_number_value(json_object_get(gemm, "all")), value_of(records, "gemm.all.threads_1")));
    CHECK(json_array_size(json_object_get(measured, "records")) == json_array_size(records));
    CHECK(files_count(drive, "", "") == 0);
    json_decref(profile);
    json_decref(records);
}

/* ---- refusals ------------------------------------------------------------------------------------------ */

/* One line on stderr with `expected`, nothing on stdout, nothing on the drive. */
static void refused(const char *words, const char *nvme, int exit_status, const char *expected) {
    begin(words);
    if (nvme != NULL) {
        sys_args_word(&args, "--nvme=%s", nvme);
    }
    sys_run(&args, &process);
    const struct sys_outcome *const outcome = &process.outcome;
    const char *const newline = strchr(outcome->err, '\n');
    if (outcome->exit_status != exit_status || outcome->out[0] != '\0' || newline == NULL || newline[1] != '\0' ||
        strncmp(outcome->err, "offload: ", 9) != 0 || strstr(outcome->err, expected) == NULL) {
        printf("bench %s: expected status %d and '%s', got %d: %s%s\n", words, exit_status, expected,
               outcome->exit_status, outcome->out, outcome->err);
        test_failure_count++;
    }
    CHECK(files_count(drive, "", "") == 0);
}

static void test_refusals(void) {
    char path[2 * SYS_PATH_BYTES];
    refused("", NULL, 2, "give one of adam, nvme, gemm, copy, ops, comm, all");
    refused("adamw", NULL, 2, "what: 'adamw' is not one of adam, nvme, gemm, copy, ops, comm, all");
    refused("adam copy", NULL, 2, "'copy' is one too many");
    refused("nvme", NULL, 2, "--nvme is missing; name a folder");
    refused("nvme", "/nonexistent", 2, "--nvme: /nonexistent is not a folder");
    refused("nvme", "/proc", 2, "--nvme: cannot write to /proc");
    refused("nvme --size 4MiB", drive, 2, "--size: 4194304 bytes are too few to measure a drive");
    refused("nvme --size 8000TiB --format json", drive, 2, " are free; give a smaller --size");
    snprintf(path, sizeof path, "%s:20MiB", drive);
    refused("nvme --size 12MiB", path, 2, "the measurement needs 40.0 MiB of");
    refused("nvme", path, 2, "but is allowed only 20.0 MiB");
    refused("adam --size 100B", NULL, 2, "--size: 100 bytes are too few");
    refused("adam --size 800TiB", NULL, 1, "is available; give a smaller --size");
#if defined(__x86_64__)
    refused("adam --isa neon --size 1MiB", NULL, 2, "--isa neon: this machine lacks these instructions");
#else
    refused("adam --isa avx2 --size 1MiB", NULL, 2, "--isa avx2: this machine lacks these instructions");
#endif
    refused("copy --model x", NULL, 2, "--model is for the sizes of `offload bench gemm`, `ops` and `all`");
    refused("gemm --model /nonexistent", NULL, 2, "/nonexistent");
    refused("gemm --size 1B", NULL, 2, "--size: 1 bytes are too few");
    refused("comm --size 1B", NULL, 2, "--size: 1 bytes are too few");
    refused("copy --size 1B", NULL, 2, "--size: 1 bytes are too few");
    refused("adam --output x.json", NULL, 2, "--output is for the profile of `offload bench all`");
    refused("all --output /nonexistent/x.json", NULL, 2, "cannot be written to /nonexistent");
    snprintf(path, sizeof path, "all --output %s", drive);
    refused(path, NULL, 2, "is a folder; name the file to write");
}

/* Another benchmark on the same drive is not disturbed. */
static void test_busy(void) {
    char path[2 * SYS_PATH_BYTES];
    snprintf(path, sizeof path, "%s/offload-bench.tmp", drive);
    files_make_folder(path);
    const int fd = open(path, O_RDONLY | O_DIRECTORY);
    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
    begin("nvme --size 6MiB");
    sys_args_word(&args, "--nvme=%s", drive);
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 1 && strstr(process.outcome.err, "another `offload bench`") != NULL);
    CHECK(files_count(drive, "", "") == 1);
    close(fd);
    CHECK(rmdir(path) == 0);
}

/* Each kind of call has a rate beside that of plain copies. */
static void test_comm(void) {
    static const char *const names[] = {"comm.gather.ranks_2.1024KiB", "comm.exchange.ranks_2.1024KiB",
                                        "comm.pair.ranks_2.1024KiB", "comm.meet.ranks_2"};
    begin("comm --size 1MiB --rounds 1 --compute-threads 2 --format json");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 0);
    json_t *const records = parse(process.outcome.out);
    check_records(records);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CHECK(value_of(records, names[i]) > 0.0);
    }
    json_decref(records);
}

int main(void) {
    drive = files_make_folder("drive");
    test_adam();
    test_threads();
    test_comm();
    test_gpu();
    test_model();
    test_gpus();
    test_model_on_gpu();
    test_nvme();
    test_without_fio();
    test_interrupted(SIGINT);
    test_interrupted(SIGTERM);
    test_profile();
    test_refusals();
    test_busy();
    return test_end();
}
