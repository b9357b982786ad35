/* Kinds of adapters as a user meets them: of a mixture's experts and router, in both orientations. Each has the same
 * bits in memory, in other homes and on ranks, goes on to them when it is killed and when it is stopped, and merged it
 * has the loss that it has beside its model. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 5 };

static const char common[] = "--batch-size 1 --gradient-accumulation-steps 4 --sum-groups 4 --max-seq-length 16 "
                             "--compute-threads 1 --optimizer-threads 1 --host-mem 64MiB --max-steps 5 "
                             "--eval-fraction 0.1 --save-total-limit 0 --learning-rate 1e-2 --save-steps 2";

#define SIZES                                                                                                    \
    "\"vocab_size\":256,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"head_dim\":8,"      \
    "\"num_key_value_heads\":2,\"num_experts_per_tok\":2,\"tie_word_embeddings\":false,\"intermediate_size\":32,"
static const char mixtral[] = "{\"model_type\":\"mixtral\"," SIZES "\"num_local_experts\":5}";
static const char gpt_oss[] = "{\"model_type\":\"gpt_oss\"," SIZES
                              "\"num_local_experts\":4,\"rope_parameters\":{\"rope_type\":\"default\","
                              "\"rope_theta\":10000.0},\"sliding_window\":8,\"max_position_embeddings\":64}";
static const char shared[] = "{\"model_type\":\"qwen2_moe\"," SIZES
                             "\"num_experts\":4,\"moe_intermediate_size\":16,\"shared_expert_intermediate_size\":20}";

static const char biased[] = "{\"model_type\":\"qwen2\"," SIZES "\"rms_norm_eps\":1e-6}";

static const struct kind {
    const char *name, *config, *words, *says;
} kinds[] = {
    {"mixtral", mixtral, "--lora-r 3 --lora-target-modules all-linear", ""},
    {"gpt_oss", gpt_oss,
     "--lora-r 2 --lora-target-modules q_proj --lora-target-parameters "
     "mlp.experts.gate_up_proj,mlp.experts.down_proj,router.weight --dtype bf16", ""},
    {"shared", shared,
     "--lora-r 2 --lora-target-modules shared_expert.down_proj,shared_expert_gate,o_proj --lora-target-parameters "
     "experts.down_proj --use-rslora", ""},
    {"dora", biased, "--lora-r 3 --lora-target-modules all-linear --use-dora", ""},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static struct sys_args args;
static struct sys_process process;
static const char *text_path;

static void begin(const char *model, const char *output, const char *words, const char *more) {
    sys_args_train(&args, model, text_path, output);
    sys_args_add(&args, common);
    sys_args_add(&args, words);
    sys_args_add(&args, more);
}

/* The folder "base": a model in bf16. */
static void make_base(const struct kind *kind) {
    const char *const config = test_pathf("%s.json", kind->name);
    files_write_text(config, kind->config);
    begin(config, "first", "", "--from-scratch");
    sys_run_well(&args, &process);
    sys_args_begin(&args, "export");
    sys_args_word(&args, "--model=%s", test_pathf("first/checkpoint-%d", STEPS));
    sys_args_word(&args, "--output=%s", test_path("base"));
    sys_args_add(&args, "--save-dtype bf16");
    sys_run_well(&args, &process);
}

static void compare(const struct kind *kind, const char *output, const char *place) {
    if (!sys_same_runs("memory", output, STEPS)) {
        printf("%s: %s\n", kind->name, place);
        CHECK(!"other bits");
    }
    sys_remove_run(output);
}

static void check_places(const struct kind *kind) {
    static const struct {
        const char *words;
        bool has_drive;
    } places[] = {{"--ranks 2 --sharding full_shard", true},
                  {"--ranks 4", false},
                  {"--prefetch-depth 0 --tiles 2 --optimizer-overlap off --kept-blocks 0", true}};
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
        if (!test_takes((unsigned)(kind - kinds) + i, 2)) {
            continue;
        }
        begin(test_path("base"), "place", kind->words, places[i].words);
        if (places[i].has_drive) {
            sys_args_on_drive(&args, "place");
        }
        sys_run_well(&args, &process);
        compare(kind, "place", places[i].words);
    }
}

static void check_resumes(const struct kind *kind) {
    for (int has_drive = 0; has_drive <= 1; has_drive++) {
        for (int part = 0; part < 2; part++) {
            begin(test_path("base"), "parts", kind->words, part == 0 ? "" : "--resume latest");
            if (has_drive) {
                sys_args_on_drive(&args, "parts");
            }
            if (part == 1) {
                sys_run_well(&args, &process);
                break;
            }
            sys_interrupt(&args, &process, "\nstep 3/", has_drive ? SIGKILL : SIGUSR2);
        }
        compare(kind, "parts", has_drive ? "killed" : "stopped");
    }
}

static double eval_loss(const char *model) {
    return sys_eval_loss(model, text_path, "--max-seq-length 16 --host-mem 64MiB --dtype fp32");
}

static void check_merged(void) {
    char memory[SYS_PATH_BYTES], merged[SYS_PATH_BYTES];
    snprintf(memory, sizeof memory, "%s", test_path("memory"));
    snprintf(merged, sizeof merged, "%s", test_path("merged"));
    sys_args_begin(&args, "merge");
    sys_args_word(&args, "%s", memory);
    sys_args_word(&args, "--output=%s", merged);
    sys_args_add(&args, "--save-dtype fp32");
    sys_run_well(&args, &process);
    const double before = eval_loss(test_path("base")), beside = eval_loss(memory), after = eval_loss(merged);
    printf("loss %.6f; with the adapter %.6f, merged %.6f\n", before, beside, after);
    CHECK(fabs(beside - before) > 1e-3 && fabs(after - beside) < 2e-3);
    files_remove_folder("merged");
}

static void check_kind(const struct kind *kind) {
    make_base(kind);
    begin(test_path("base"), "memory", kind->words, "");
    sys_run_well(&args, &process);
    CHECK(sys_said(&process, kind->says));
    check_places(kind);
    check_resumes(kind);
    check_merged();
    sys_remove_run("memory");
    sys_remove_run("first");
    files_remove_folder("base");
}

static void refuse(const char *words, const char *says) {
    begin(test_path("base"), "none", words, "");
    sys_run(&args, &process);
    if (process.outcome.exit_status != 2 || !sys_said(&process, says)) {
        sys_complain(&process, says);
    }
}

static void test_refusals(void) {
    make_base(&kinds[0]);
    refuse("--lora-r 2 --lora-target-modules w1,w2", "names w1 without w3, but they are one parameter");
    refuse("--lora-r 2 --lora-target-modules all-linear --lora-dropout 0.1", "--lora-dropout: adapters of parameters");
    refuse("--lora-r 2 --lora-target-parameters experts.gate",
           "It has gate.weight, experts.gate_up_proj, experts.down_proj; ");
    refuse("--lora-r 2 --lora-target-modules all-linear --experts-per-unit 2", "give --experts-per-unit all");
    refuse("--lora-r 2 --lora-target-modules all-linear --use-dora", "can have no magnitudes");
    refuse("--lora-r 2 --lora-target-modules q_proj --use-dora --lora-dropout 0.1",
           "does not go together with --lora-dropout");
    refuse("--use-dora", "--use-dora: there is no adapter without a rank");
    refuse("--lora-target-parameters gate.weight", "--lora-target-parameters: there is no adapter without a rank");
    sys_args_train(&args, test_path("base"), text_path, "rate");
    sys_args_add(&args, "--lora-r 2 --max-seq-length 16 --host-mem 64MiB --max-steps 1 --eval-fraction 0");
    sys_run_well(&args, &process);
    CHECK(sys_said(&process, "adapters usually need 1e-4 to 2e-4: give --learning-rate"));
}

int main(void) {
    text_path = sys_write_text(24000);
    for (unsigned i = 0; i < KINDS; i++) {
        check_kind(&kinds[i]);
    }
    test_refusals();
    return test_end();
}
