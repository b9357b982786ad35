/* The program on the CUDA device, here the emulated plugin beside a copy of the program: what `--device` takes and
 * records, the same bits for every budget and for a resumed run, generated text, and the messages where there is no
 * device. */
#include "base/file.h"
#include "tests/kit/device/cuda_kit.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STEPS = 3, LINE = SYS_PATH_BYTES + 64 };

static const char common_words[] =
    "--max-steps 3 --gradient-accumulation-steps 2 --batch-size 1 --max-seq-length 12"
    " --learning-rate 3e-3 --max-grad-norm 0.5 --eval-steps 3 --eval-windows 2 --host-mem 16MiB --compute-threads 1"
    " --optimizer-threads 1 --chunk-elems 4096";

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *text_path;

/* A copy of the program in a folder of its own, with the plugin or without. */
static const char *place_program(const char *name, bool plugin) {
    char file[PATH_MAX];
    struct cuda_kit kit;
    files_make_folder(name);
    test_build_path("offload", file);
    const char *const path = test_pathf("%s/offload", name);
    files_copy_folder(file, path); /* one file */
    cuda_kit_emulated(&kit);
    CHECK(!plugin || symlink(kit.plugin, test_pathf("%s/liboffload_cuda.so", name)) == 0);
    return path;
}

static void begin(const char *name, const char *words, bool drive) {
    sys_args_train(&args, model_path, text_path, name);
    sys_args_add(&args, common_words);
    sys_args_add(&args, words);
    if (strstr(words, "--resume") == NULL) {
        sys_args_add(&args, "--from-scratch");
    }
    if (drive) {
        sys_args_drive(&args, test_pathf("%s-drive", name), "32MiB");
    }
}

static char *curve_of(const char *name) {
    return sys_curve(test_path(name), "step");
}

static void check_same(const char *a, const char *b) {
    char *const curves[2] = {curve_of(a), curve_of(b)};
    CHECK(sys_same_text(b, curves[0], curves[1]));
    free(curves[0]);
    free(curves[1]);
    CHECK(sys_same_checkpoint(test_pathf("%s/checkpoint-%d", a, STEPS), test_pathf("%s/checkpoint-%d", b, STEPS)));
}

static bool has(const char *path, const char *words) {
    char *text = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read(path, 1 << 20, &text, &bytes));
    const bool found = strstr(text, words) != NULL;
    free(text);
    return found;
}

/* `auto` finds the device, says which it is and records it; the numbers are those of the CPU but for rounding. */
static void test_auto(void) {
    begin("auto", "--dtype fp32", false);
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "device: emulated") != NULL);
    const char *const config = test_pathf("%s/config.resolved.yaml", test_path("auto"));
    CHECK(has(config, "\ndevice: cuda\n"));
    begin("cpu", "--dtype fp32 --device cpu", false);
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "device: the CPU") != NULL);
    char *const on_device = curve_of("auto"), *const on_cpu = curve_of("cpu");
    for (unsigned step = 1; step <= STEPS; step++) {
        const double a = sys_metric(on_device, step, "loss"), b = sys_metric(on_cpu, step, "loss");
        printf("step %u: loss %.7f on the device, %.7f on the CPU\n", step, a, b);
        CHECK(fabs(a - b) < 2e-6);
    }
    free(on_device);
    free(on_cpu);
}

static void test_same_bits(void) {
    static const struct {
        const char *name, *words;
        bool drive;
    } places[] = {
        {"device", "--state-tier device --optimizer-overlap off", false},
        {"small", "--device-mem 769MiB --prefetch-depth 0 --tiles 2 --weights-tier host --kept-blocks 0", false},
        {"drive", "--device-mem 770MiB --weights-tier nvme --state-tier nvme --grads-tier nvme --activation-tier nvme "
                  "--optimizer-overlap speculative", true},
        {"chaos", "--chaos-seed 3 --tiles 2 --optimizer-overlap held", false},
    };
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
        if (!test_takes(i, 2)) {
            continue;
        }
        begin(places[i].name, places[i].words, places[i].drive);
        sys_args_add(&args, "--dtype fp32");
        sys_run_well(&args, &process);
        check_same("auto", places[i].name);
    }
}

/* From the checkpoint of the second step, in another budget; then on another device. */
static void test_resume(void) {
    begin("resumed", "--dtype fp32 --save-steps 2", false);
    sys_run_well(&args, &process);
    begin("resumed", "--dtype fp32 --save-steps 2 --resume-from-checkpoint", false);
    sys_args_word(&args, "%s/checkpoint-2", test_path("resumed"));
    sys_args_add(&args, "--device-mem 1GiB --state-tier host");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "was made with other") == NULL);
    check_same("auto", "resumed");
    begin("resumed", "--dtype fp32 --save-steps 2 --device cpu --resume-from-checkpoint", false);
    sys_args_word(&args, "%s/checkpoint-2", test_path("resumed"));
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "was made with other training options") != NULL);
}

/* The GPU iterates, with the same bits from every home; the numbers are those of the CPU but for rounding. */
static void test_muon(void) {
    static const struct {
        const char *name, *words;
        bool drive;
    } places[] = {
        {"muon-small", "--device-mem 770MiB --optimizer-overlap off --isa scalar", false},
        {"muon-drive", "--state-tier nvme --optimizer-overlap speculative", true},
    };
    setenv("OX_SIMT_RANGES", test_path("ranges.txt"), 1);
    begin("muon", "--dtype fp32 --optimizer muon", false);
    sys_run_well(&args, &process);
    unsetenv("OX_SIMT_RANGES");
    CHECK(has(test_path("ranges.txt"), "\nmuon: newton_schulz\n"));
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
        if (!test_takes(i, 2)) {
            continue;
        }
        begin(places[i].name, places[i].words, places[i].drive);
        sys_args_add(&args, "--dtype fp32 --optimizer muon");
        sys_run_well(&args, &process);
        check_same("muon", places[i].name);
    }
    begin("muon-cpu", "--dtype fp32 --device cpu --optimizer muon", false);
    sys_run_well(&args, &process);
    char *const on_device = curve_of("muon"), *const on_cpu = curve_of("muon-cpu");
    const double a = sys_metric(on_device, STEPS, "loss"), b = sys_metric(on_cpu, STEPS, "loss");
    printf("muon: loss %.7f on the device, %.7f on the CPU\n", a, b);
    CHECK(fabs(a - b) < 2e-5);
    free(on_device);
    free(on_cpu);
}

static unsigned lines_of(const char *path) {
    char *text = NULL;
    size_t bytes = 0;
    unsigned count = 0;
    REQUIRE_OK(ox_file_read(path, 1 << 20, &text, &bytes));
    for (const char *at = strchr(text, '\n'); at != NULL; at = strchr(at + 1, '\n')) {
        count++;
    }
    free(text);
    return count;
}

/* Goes on from the second step of the run "recorded", and returns how often it warns of GEMMs. */
static unsigned warnings_of(const char *words) {
    unsigned count = 0;
    begin("recorded", "--dtype fp32 --save-steps 2 --device-mem 1GiB --resume-from-checkpoint", false);
    sys_args_word(&args, "%s/checkpoint-2", test_path("recorded"));
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
    for (const char *at = process.outcome.err; (at = strstr(at, " GEMM")) != NULL; at++) {
        count++;
    }
    return count;
}

/* A run names the GPU, the libraries and the algorithm of each kind of GEMM, and a resume tells of others. */
static void test_record(void) {
    static const char gpu[] = "cuBLASLt 13.0.0 on emulated (compute capability 9.0, 2 processors), attention of own "
                              "kernels, CUDA runtime 13.0";
    begin("recorded", "--dtype fp32 --save-steps 2", false);
    sys_run_well(&args, &process);
    const char *const run = test_path("recorded/run.json"), *const gemms = test_path("recorded/gemms.txt");
    CHECK(has(run, gpu) && has(gemms, gpu) && has(gemms, "; driver for CUDA 13.0\n"));
    CHECK(has(gemms, "\n12 x 256 x 48, f32 to f32, rows of a 48, of b 48 transposed, of c 256, aligned to 16: "
                     "algorithm 1, tile 0, stages 0, parts of k 0, reduction 0, swizzle 0, option 0, inner shape 0, "
                     "cluster 0, workspace 0\n"));
    const unsigned lines = lines_of(gemms);
    CHECK(warnings_of("") == 0 && lines_of(gemms) == lines);
    FILE *const file = fopen(gemms, "a"); /* a GEMM that only an earlier process had */
    CHECK(file != NULL && fputs("1 x 2 x 3, f32 to f32: algorithm 5\n", file) >= 0 && fclose(file) == 0);
    CHECK(warnings_of("") == 0 && lines_of(gemms) == lines + 1 && has(gemms, "\n1 x 2 x 3, f32 to f32: algorithm 5\n"));
    setenv("OX_SIMT_ALGORITHM", "7", 1);
    CHECK(warnings_of("") == 1 && strstr(process.outcome.err, "GEMMs has changed, such as that of 12 x ") != NULL &&
          strstr(process.outcome.err, ": algorithm 7, tile 0") != NULL &&
          strstr(process.outcome.err, ", and was algorithm 1, tile 0") != NULL);
    CHECK(warnings_of("") == 0);
    setenv("OX_SIMT_BLAS_VERSION", "130102", 1);
    CHECK(warnings_of("") == 1 && strstr(process.outcome.err, "GEMMs are now of cuBLASLt 13.1.2 on ") != NULL &&
          strstr(process.outcome.err, ", and were of cuBLASLt 13.0.0 on ") != NULL);
    CHECK(has(run, "cuBLASLt 13.1.2") && has(gemms, "cuBLASLt 13.1.2") && lines_of(gemms) == lines);
    unsetenv("OX_SIMT_BLAS_VERSION");
    unsetenv("OX_SIMT_ALGORITHM");
    begin("recorded", "--dtype fp32 --device cpu --overwrite-output-dir", false);
    sys_run_well(&args, &process);
    CHECK(!files_exist("recorded/gemms.txt"));
}

/* A profiler sees each task by the trace's label, on the device's lanes with its operations, and on the host's. */
static void test_ranges(void) {
    static const char *const seen[] = {
        "\ncompute: forward unit 1, batch 0 > linear_forward\n",
        "\ncompute: backward unit 2, batch 1 > linear_backward\n",
        "\nh2d: upload unit 1 > copy\n",
        "\nadam: adam unit 2\n",
        "\nnvme.read: read unit 1\n",
        "\nnvme.write: ",
    };
    setenv("OX_SIMT_RANGES", test_path("ranges.txt"), 1);
    begin("ranges", "--dtype fp32 --device-mem 770MiB --weights-tier nvme --state-tier nvme --grads-tier nvme "
                    "--activation-tier nvme --tiles 2 --kept-blocks 0", true);
    sys_run_well(&args, &process);
    unsetenv("OX_SIMT_RANGES");
    for (unsigned i = 0; i < sizeof seen / sizeof *seen; i++) {
        if (!has(test_path("ranges.txt"), seen[i])) {
            printf("ranges.txt has no %s\n", seen[i]);
            test_failure_count++;
        }
    }
    CHECK(!has(test_path("ranges.txt"), " > forward ") && !has(test_path("ranges.txt"), " > upload "));
}

/* One line and an exit status of its own; nothing is begun. */
static void check_refused(const char *name, const char *words, int status, const char *said) {
    begin(name, words, false);
    sys_args_add(&args, "--quiet");
    sys_run(&args, &process);
    const char *const newline = strchr(process.outcome.err, '\n');
    const bool good = process.outcome.exit_status == status && strstr(process.outcome.err, said) != NULL &&
                      newline != NULL && newline[1] == '\0' && !files_exist(name);
    if (!good) {
        printf("%s: exit status %d, expected %d and \"%s\" in one line:\n%s", words, process.outcome.exit_status,
               status, said, process.outcome.err);
    }
    CHECK(good);
}

/* The mean time of a step on so many ranks ("auto"); *count becomes their number. */
static double planned(const char *ranks, bool drive, unsigned *count) {
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=%s", model_path);
    sys_args_word(&args, "--ranks=%s", ranks);
    sys_args_add(&args, "--max-steps 3 --max-seq-length 16 --global-batch-size 8 --host-mem 16MiB --profile builtin "
                        "--sharding full_shard --format json");
    if (drive) {
        sys_args_drive(&args, "auto-drive", "64MiB");
        sys_args_add(&args, "--persist-steps 1 --state-tier nvme --optimizer-overlap off --accept-wear");
    }
    sys_run_well(&args, &process);
    json_t *const json = json_loads(process.outcome.out, 0, NULL);
    const json_t *const several = json_object_get(json, "ranks");
    const double seconds = json_number_value(json_object_get(json, "predicted_mean_seconds"));
    *count = several != NULL ? (unsigned)json_integer_value(json_object_get(several, "count")) : 1;
    json_decref(json);
    return seconds;
}

/* --ranks auto takes no more of four GPUs than gain 2 %, which drives prevent. */
static unsigned check_auto_ranks(bool drive) {
    static const char *const numbers[] = {"4", "2", "1"};
    double fastest = INFINITY;
    unsigned best = 0, count = 0;
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const double seconds = planned(numbers[i], drive, &count);
        printf("%s rank(s): %.3g s\n", numbers[i], seconds);
        CHECK(count == strtoul(numbers[i], NULL, 10) && seconds > 0);
        best = seconds < 1.02 * fastest ? count : best;
        fastest = fmin(fastest, seconds);
    }
    planned("auto", drive, &count);
    printf("auto: %u\n", count);
    CHECK(count == best);
    return count;
}

static void test_auto_ranks(void) {
    unsigned count = 0;
    setenv("OX_SIMT_DEVICES", "4", 1);
    const unsigned gaining = check_auto_ranks(false), bound = check_auto_ranks(true);
    CHECK(gaining == 4 && bound < 4);
    unsetenv("OX_SIMT_DEVICES");
    planned("auto", false, &count);
    CHECK(count == 1);
}

/* Each rank has a GPU of its own: two ranks need the second one, with which they leave what one rank leaves. */
static void test_ranks(void) {
    setenv("OX_SIMT_DEVICES", "2", 1);
    begin("single", "--dtype fp32 --sum-groups 2", false);
    sys_run_well(&args, &process);
    begin("pair", "--dtype fp32 --sum-groups 2 --ranks 2", false);
    sys_run_well(&args, &process);
    check_same("single", "pair");
    setenv("OX_SIMT_LOST_DEVICE", "1", 1);
    begin("lost", "--dtype fp32 --sum-groups 2 --ranks 2", false);
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 1);
    CHECK(strstr(process.outcome.err, "offload: rank 1: GPU, choosing the device: ") != NULL);
    begin("first", "--dtype fp32 --sum-groups 2 --ranks 1", false);
    sys_run_well(&args, &process);
    check_same("single", "first");
    unsetenv("OX_SIMT_LOST_DEVICE");
    unsetenv("OX_SIMT_DEVICES");
}

/* The ids that the checkpoint of a run continues a prompt with; json_decref() them. */
static json_t *generated(const char *words) {
    sys_args_begin(&args, "generate");
    sys_args_word(&args, "--model=%s", test_path("auto"));
    sys_args_add(&args, "--prompt abc --temperature 0 --max-new-tokens 9 --dtype fp32 --format json");
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
    json_t *const json = json_loads(process.outcome.out, 0, NULL);
    json_t *const ids = json_incref(json_object_get(json, "ids"));
    CHECK(json_array_size(ids) == 12);
    json_decref(json);
    return ids;
}

static void check_generate_refused(const char *words, int status, const char *said) {
    sys_args_begin(&args, "generate");
    sys_args_word(&args, "--model=%s", test_path("auto"));
    sys_args_add(&args, "--prompt abc --max-new-tokens 2");
    sys_args_add(&args, words);
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == status && process.outcome.out[0] == '\0');
    CHECK(strstr(process.outcome.err, said) != NULL);
}

/* The most likely tokens are those of the CPU, wherever the weights live; without a device `auto` is the CPU. */
static void test_generate(const char *lonely_program) {
    json_t *const expected = generated("--device cpu");
    static const char *const words[] = {"", "--device cuda --device-mem 769MiB"};
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        json_t *const ids = generated(words[i]);
        CHECK(json_equal(ids, expected));
        json_decref(ids);
    }
    check_generate_refused("--device cuda --device-mem 512MiB", 2, "go to the driver");
    check_generate_refused("--device cuda --device-mem 786440KiB", 2, "give --device-mem 7");
    check_generate_refused("--device cpu --device-mem 1GiB", 2, "takes host memory alone");
    check_generate_refused("--device cuda --host-mem 1MiB", 2, "--host-mem");
    setenv("OX_BIN", lonely_program, 1);
    json_t *const alone = generated("");
    CHECK(json_equal(alone, expected));
    check_generate_refused("--device cuda", 1, "GPU: ");
    json_decref(alone);
    json_decref(expected);
}

/* The mean loss that `eval` finds on the text with the run's newest checkpoint. */
static double evaluated(const char *words) {
    sys_args_begin(&args, "eval");
    sys_args_word(&args, "--model=%s", test_path("auto"));
    sys_args_word(&args, "--data=%s", text_path);
    sys_args_add(&args, "--seq-len 12 --max-windows 24 --dtype fp32 --format json");
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
    json_t *const json = json_loads(process.outcome.out, 0, NULL);
    CHECK(json_integer_value(json_object_get(json, "tokens")) == 24 * 12);
    const double loss = json_number_value(json_object_get(json, "mean_nll"));
    json_decref(json);
    return loss;
}

/* The device's loss is the CPU's but for rounding, and the same where a smaller budget streams the weights. */
static void test_eval(void) {
    const double on_cpu = evaluated("--device cpu"), on_device = evaluated("--device cuda");
    printf("eval: loss %.9f on the device, %.9f on the CPU\n", on_device, on_cpu);
    CHECK(on_cpu > 1.0 && fabs(on_device - on_cpu) < 2e-6);
    CHECK(on_device != on_cpu); /* otherwise the CPU may have computed both */
    CHECK(evaluated("--device cuda --device-mem 769MiB --weights-tier host") == on_device);
}

int main(void) {
    const char *const program = place_program("with", true), *const lonely_program = place_program("without", false);
    model_path = sys_write_model("llama");
    text_path = sys_write_text(6000);
    setenv("OX_BIN", program, 1);
    test_auto();
    test_same_bits();
    test_muon();
    test_resume();
    test_record();
    test_ranges();
    test_auto_ranks();
    test_ranks();
    check_refused("little", "--device cuda --device-mem 512MiB", 2, "go to the driver");
    check_refused("short", "--device cuda --device-mem 786500KiB", 2,
                  "nearest that fits: --device-mem 769MiB, or give a drive");
    check_refused("much", "--device cuda --device-mem 900GiB", 2, "has 1.00 GiB");
    check_refused("many", "--device cuda --ranks 2", 2, "--ranks 2: there is 1 GPU; take at most 1 rank");
    test_eval();
    test_generate(lonely_program);
    check_refused("lonely", "--device cuda", 1, "GPU: ");
    begin("alone", "--dtype fp32", false);
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "device: the CPU; GPU: ") != NULL);
    check_same("cpu", "alone");
    return test_end();
}
