/* --optimizer muon as a user meets it: the same bits in every home and after kills and resumes; what it refuses. The
 * update itself is tests/conform/test_muon.c. */
#include "tests/kit/files.h"
#include "tests/kit/run/mixture.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <string.h>

enum { STEPS = 6 };

static const char common[] = "--batch-size 1 --gradient-accumulation-steps 4 --sum-groups 4 --max-seq-length 16 "
                             "--compute-threads 1 "
                             "--host-mem 128MiB --max-steps 6 --eval-fraction 0.1 --save-total-limit 0 --save-steps 2 "
                             "--learning-rate 1e-2 --optimizer muon";

static struct sys_args args;
static struct sys_process process;
static const char *text_path, *model_path;

static void begin(const char *output, const char *more) {
    sys_args_train(&args, model_path, text_path, output);
    sys_args_add(&args, common);
    sys_args_add(&args, strstr(more, "--resume") == NULL ? "--from-scratch" : "");
    sys_args_add(&args, more);
}

static void test_same_bits(const char *dtype) {
    static const struct {
        const char *words;
        bool has_drive;
    } places[] = {{"--optimizer-threads 3", true},
                  {"--optimizer-threads 1 --tiles 2 --prefetch-depth 0", true},
                  {"--optimizer-threads 2 --optimizer-overlap off --no-verify-memory", false},
                  {"--optimizer-threads 1 --optimizer-overlap speculative --device-mem 8MiB --isa scalar", true},
                  {"--chunk-elems 2048", true},
                  {"--ranks 2 --sharding full_shard --optimizer-threads 2", true},
                  {"--ranks 3 --sharding shard_grad_op --chunk-elems 2048", false},
                  {"--ranks 2 --sharding no_shard", false},
                  {"--ranks 4 --sharding hybrid_shard --shard-size 2", false},
                  {"--ranks 2 --pipeline-parallel-size 2", true},
                  {"--ranks 4 --pipeline-parallel-size 2 --optimizer-overlap speculative", false}};
    begin("memory", dtype);
    sys_run_well(&args, &process);
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
        if (!test_takes(i + (dtype[0] == '\0'), 3)) {
            continue;
        }
        begin("place", dtype);
        sys_args_add(&args, places[i].words);
        if (places[i].has_drive) {
            sys_args_on_drive(&args, "place");
        }
        sys_run_well(&args, &process);
        CHECK(sys_same_runs("memory", "place", STEPS));
        sys_remove_run("place");
    }
    begin("other", dtype);
    sys_args_add(&args, "--muon-ns-steps 3");
    sys_run_well(&args, &process);
    CHECK(!sys_same_runs("memory", "other", STEPS));
    sys_remove_run("other");
}

/* Matrices of experts, apart from their block or in it; those that no row chose stay. Biases of the choice move. */
static void test_mixture(void) {
    static const char *const places[] = {"--experts-per-unit 4", "--experts-per-unit 8 --ranks 2 --sharding full_shard",
                                         "--experts-per-unit all --ranks 4 --sharding shard_grad_op"};
    static const char mixture[] = "--idle-experts skip --router-bias-update-rate 0.01";
    const char *const dense = model_path;
    model_path = sys_write_model("deepseek");
    begin("memory", mixture);
    sys_args_add(&args, "--experts-per-unit all");
    sys_run_well(&args, &process);
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
        begin("place", mixture);
        sys_args_add(&args, places[i]);
        if (i % 2 == 0) {
            sys_args_on_drive(&args, "place");
        }
        sys_run_well(&args, &process);
        CHECK(mixture_same_runs("memory", "place", STEPS));
        sys_remove_run("place");
    }
    sys_remove_run("memory");
    model_path = dense;
}

/* The plan says 8 bytes of state and weights for matrices, and what Newton-Schulz takes. */
static void test_plan(void) {
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=%s", model_path);
    sys_args_add(&args, "--optimizer muon --host-mem 64MiB --batch-size 1 --max-seq-length 16");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.out, "8.93 bytes per parameter with the weight\nnewton-schulz: ") != NULL);
}

/* After test_same_bits: a run that is killed goes on from its store, one that is stopped from its checkpoint. */
static void test_resumes(void) {
    static const struct {
        const char *words[3]; /* of each part of the run */
        bool has_drive;
    } rows[] = {{{"", "", ""}, false},
                {{"", "", ""}, true},
                {{"--ranks 2", "--ranks 3 --sharding shard_grad_op", "--ranks 2 --pipeline-parallel-size 2"}, true},
                {{"--ranks 4 --sharding hybrid_shard --shard-size 2", "--ranks 2", ""}, false}};
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int part = 0; part < 3; part++) {
            begin("parts", part == 0 ? "" : "--resume latest");
            sys_args_add(&args, rows[i].words[part]);
            if (rows[i].has_drive) {
                sys_args_on_drive(&args, "parts");
            }
            if (part == 2) {
                sys_run_well(&args, &process);
                break;
            }
            sys_interrupt(&args, &process, part == 0 ? "\nstep 2/" : "\nstep 4/",
                          rows[i].has_drive ? SIGKILL : SIGUSR2);
        }
        CHECK(sys_same_runs("memory", "parts", STEPS));
        sys_remove_run("parts");
    }
}

static void test_refused(void) {
    static const struct {
        const char *words, *says;
    } rows[] = {{"--moments q8 --dtype bf16", "--moments q8: --optimizer muon has moments in f32 or bf16"},
                {"--state-tier device", "matrices are updated by the processor"},
                {"--freeze layers.0-2", "no matrix of a block is trained"}};
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        begin("none", rows[i].words);
        sys_run(&args, &process);
        if (process.outcome.exit_status != 2 || !sys_said(&process, rows[i].says)) {
            sys_complain(&process, rows[i].says);
        }
    }
}

int main(void) {
    text_path = sys_write_text(24000);
    model_path = sys_write_model("llama");
    test_mixture();
    test_plan();
    test_same_bits("--dtype bf16 --moments bf16");
    sys_remove_run("memory");
    test_same_bits("");
    test_resumes();
    test_refused();
    return test_end();
}
