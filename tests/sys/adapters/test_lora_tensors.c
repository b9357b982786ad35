/* --lora-r beside --tensor-groups: ranks that divide features, as threads and as processes, have the bytes of one rank
 * with as many groups, in every file of a checkpoint, also where a run goes on with others; folders are those of a run
 * without groups; what is refused. */
#include "base/file.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 6, QUICK = 3 };

static const char common[] = "--batch-size 1 --gradient-accumulation-steps 4 --sum-groups 4 --max-seq-length 16 "
                             "--compute-threads 1 --optimizer-threads 1 --host-mem 64MiB --eval-fraction 0.1 "
                             "--eval-steps 2 --save-total-limit 0 --learning-rate 1e-2 --save-steps 2 "
                             "--lr-scheduler-type constant";
static const struct kind {
    const char *model, *words;
} kinds[] = {
    {"llama", "--dtype fp32 --lora-r 3 --lora-alpha 6 --lora-target-modules all-linear --lora-dropout 0.2"},
    {"gpt2", "--dtype bf16 --lora-r 4 --lora-target-modules c_attn,attn.c_proj,c_fc,mlp.c_proj --lora-bias all "
             "--lora-modules-to-save ln_1 --use-rslora"},
};

static struct sys_args args;
static struct sys_process process;
static const char *text_path;

static void begin_steps(const struct kind *kind, const char *output, unsigned steps, const char *more) {
    sys_args_train(&args, test_path("base"), text_path, output);
    sys_args_add(&args, common);
    sys_args_word(&args, "--max-steps=%u", steps);
    sys_args_add(&args, kind->words);
    sys_args_add(&args, more);
}

static void begin(const struct kind *kind, const char *output, const char *more) {
    begin_steps(kind, output, STEPS, more);
}

/* The folder "base": a model of the family with weights. */
static void make_base(const struct kind *kind) {
    sys_args_train(&args, sys_write_model(kind->model), text_path, "first");
    sys_args_add(&args, common);
    sys_args_add(&args, "--from-scratch --max-steps 2");
    sys_run_well(&args, &process);
    const char *const source = test_path("first/checkpoint-2");
    sys_args_begin(&args, "export");
    sys_args_word(&args, "--model=%s", source);
    sys_args_word(&args, "--output=%s", test_path("base"));
    sys_args_add(&args, "--save-dtype bf16");
    sys_run_well(&args, &process);
    sys_remove_run("first");
}

/* As so many processes; as one where none can be started. */
static void run(unsigned processes) {
    static struct sys_args launched;
    if (processes > 1 && sys_mpi_missing() == NULL) {
        sys_mpi_begin(&launched, processes, &args, SYS_MPI_END_OTHERS);
        sys_run_well(&launched, &process);
    } else {
        sys_run_well(&args, &process);
    }
}

/* After "whole", which one rank has made with two groups. */
static void check_meshes(const struct kind *kind, unsigned first) {
    static const struct {
        const char *words;
        unsigned processes;
        bool has_drive;
    } meshes[] = {
        {"--tensor-parallel-size 2", 1, false},
        {"--tensor-parallel-size 2", 2, true},
        {"--mesh dp=2,tp=2 --sharding full_shard --device-mem 8MiB", 1, true},
        {"--mesh tp=2,pp=2 --kept-blocks 0", 1, false},
        {"--tensor-groups 2 --ranks 2 --prefetch-depth 0 --tiles 2", 1, true},
        {"--mesh dp=2,tp=2 --sharding no_shard --kept-blocks 2", 2, false},
    };
    for (unsigned i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        if (test_takes(first + i, QUICK)) {
            begin(kind, "place", meshes[i].words);
            if (meshes[i].has_drive) {
                sys_args_on_drive(&args, "place");
            }
            run(meshes[i].processes);
            if (!sys_same_runs("whole", "place", STEPS)) {
                sys_complain(&process, meshes[i].words);
            }
            sys_remove_run("place");
        }
    }
}

/* A run that goes on with other ranks after each third. */
static void check_resumes(const struct kind *kind) {
    static const char *const parts[] = {"--tensor-parallel-size 2", "--resume latest --ranks 1",
                                        "--resume latest --mesh dp=2,tp=2"};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
        begin_steps(kind, "parts", 2 * (i + 1), parts[i]);
        sys_run_well(&args, &process);
    }
    CHECK(sys_same_runs("whole", "parts", STEPS));
    begin_steps(kind, "parts", STEPS + 2, "--resume latest --tensor-groups 1"); /* from a checkpoint with any cut */
    sys_run_well(&args, &process);
    sys_remove_run("parts");
}

static double eval_loss(const char *model, const char *more) {
    return sys_eval_loss(model, text_path, plain_pathf("--max-seq-length 16 --host-mem 64MiB --dtype fp32 %s", more));
}

/* The folder is one of no groups: it is evaluated, merged and gone on with as any. */
static void check_folder(const struct kind *kind) {
    char whole[OX_PATH_BYTES], merged[OX_PATH_BYTES];
    snprintf(whole, sizeof whole, "%s", test_path("whole"));
    snprintf(merged, sizeof merged, "%s", test_path("merged"));
    sys_args_begin(&args, "merge");
    sys_args_word(&args, "%s", whole);
    sys_args_word(&args, "--output=%s", merged);
    sys_args_add(&args, "--save-dtype fp32");
    sys_run_well(&args, &process);
    const double base = eval_loss(test_path("base"), ""), beside = eval_loss(whole, ""), after = eval_loss(merged, "");
    printf("%s: loss %.6f; with the adapter %.6f, merged %.6f\n", kind->model, base, beside, after);
    CHECK(fabs(beside - base) > 1e-3 && fabs(after - beside) < 1e-5);
    CHECK(fabs(eval_loss(whole, "--tensor-parallel-size 2") - beside) < 1e-5);
    for (unsigned tensors = 1; tensors <= 2; tensors++) {
        sys_args_train(&args, test_path("base"), text_path, tensors == 1 ? "one" : "two");
        sys_args_add(&args, common);
        sys_args_word(&args, "--max-steps=%d", STEPS);
        sys_args_word(&args, "--adapter=%s", whole);
        sys_args_word(&args, "--tensor-parallel-size=%u", tensors);
        sys_args_add(&args, "--tensor-groups 2");
        sys_run_well(&args, &process);
    }
    CHECK(sys_same_runs("one", "two", STEPS));
    sys_remove_run("one");
    sys_remove_run("two");
    sys_remove_run("merged");
}

static uint64_t crossing(const char *words) {
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=%s", test_path("base"));
    sys_args_word(&args, "--data=%s", text_path);
    sys_args_add(&args, "--dtype fp32 --global-batch-size 2 --batch-size 2 --max-seq-length 16 --format json "
                        "--tensor-parallel-size 2 --lora-r 3 --lora-target-modules all-linear");
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
    json_t *const plan = json_loads(process.outcome.out, 0, NULL);
    const json_t *const of_peers = json_object_get(json_object_get(plan, "bytes_per_step"), "peer_in");
    const json_int_t bytes = json_integer_value(json_object_get(of_peers, "activations"));
    json_decref(plan);
    return (uint64_t)bytes;
}

/* What crosses is what docs/ranks.md says, as test_tensors.c has it of a model without adapters. Here the embedding and
 * norms are not trained: it has no backward, the first block no gradient of its input, and norms have none to give. */
static void check_plan(void) {
    enum { ROWS = 32, HIDDEN = 48, BLOCKS = 3, TENSORS = 2, E = 4, R = 3 };
    const uint64_t unit = E * ROWS * HIDDEN / TENSORS; /* t - 1 is 1 */
    const uint64_t gathers = 5 * R * ROWS * E / TENSORS, exchanges = 2 * R * ROWS * 4 / TENSORS; /* forward */
    const uint64_t back = (5 * R * 4 + 2 * R * E) * ROWS / TENSORS;
    const uint64_t halves = 4 * TENSORS * 7 * R * HIDDEN / TENSORS;
    const uint64_t again = crossing("--kept-blocks 0"), kept = crossing("--kept-blocks 3");
    printf("%llu bytes cross, with kept activations %llu\n", (unsigned long long)again, (unsigned long long)kept);
    const uint64_t block = gathers + exchanges + back + halves, rest = 2 * unit + 16 * ROWS;
    CHECK(again == BLOCKS * (11 * unit + gathers + exchanges + block) + rest);
    CHECK(kept == BLOCKS * (8 * unit + block) + rest);
}

/* Preferences, whose reference is the model without its adapters. */
static void check_preferences(void) {
    static const char *const meshes[] = {"--tensor-groups 2", "--tensor-parallel-size 2", "--mesh dp=2,tp=2"};
    for (unsigned i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        sys_args_train(&args, "tests/golden/dpo", "tests/golden/dpo/texts.jsonl", i == 0 ? "one" : "two");
        sys_args_add(&args, "--dpo --max-seq-length 47 --batch-size 2 --gradient-accumulation-steps 2 --sum-groups 2 "
                            "--compute-threads 1 --max-steps 3 --learning-rate 1e-2 --eval-steps 0 --save-steps 3 "
                            "--lora-r 3 --lora-target-modules all-linear");
        sys_args_add(&args, meshes[i]);
        sys_run_well(&args, &process);
        if (i > 0) {
            CHECK(sys_same_runs("one", "two", 3));
            sys_remove_run("two");
        }
    }
    sys_remove_run("one");
}

static void check_refusals(void) {
    static const char *const cases[][3] = { /* words, what they are refused by, and the model; NULL: the base */
        {"--tensor-groups 2 --lora-r 4 --use-dora", "--use-dora: adapters with magnitudes cannot be cut into 2 groups "
                                                    "of features yet"},
        {"--mesh tp=2 --lora-r 4 --lora-target-modules q_proj,embed_tokens",
         "the adapter of \"model.embed_tokens.weight\" cannot be cut into 2 groups of features yet (--tensor-groups, "
         "tp of --mesh); adapt matrices of attention, of the MLP or of a shared expert alone, by --lora-target-modules "
         "such as q_proj,v_proj, or use 1 group"},
        {"--tensor-parallel-size 2 --lora-r 4 --lora-target-modules lm_head",
         "the adapter of \"lm_head.weight\" cannot"},
        {"--mesh dp=2,tp=2,ep=4 --lora-r 4 --lora-target-parameters mlp.experts.down_proj",
         "the adapter of \"model.layers.0.block_sparse_moe.experts.0.w2.weight\" cannot",
         "tests/golden/four_mixtral"},
        {"--adapter tests/golden/lora_dora/adapter --tensor-groups 2",
         "--use-dora: adapters with magnitudes cannot be cut into 2 groups of features yet", "tests/golden/lora_dora"},
        {"--adapter tests/golden/lora_dora/adapter --context-groups 2", "--context-groups 2: does not exist with the "
         "use_dora of the adapter (in its adapter_config.json) yet", "tests/golden/lora_dora"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sys_args_train(&args, cases[i][2] != NULL ? cases[i][2] : test_path("base"), text_path, "refused");
        sys_args_add(&args, common);
        sys_args_add(&args, "--max-steps 2");
        sys_args_add(&args, cases[i][0]);
        sys_run(&args, &process);
        if (process.outcome.exit_status != 2 || !sys_said(&process, cases[i][1])) {
            sys_complain(&process, cases[i][1]);
        }
    }
}

int main(void) {
    text_path = sys_write_text(24000);
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        make_base(&kinds[i]);
        begin(&kinds[i], "whole", "--tensor-groups 2");
        sys_run_well(&args, &process);
        check_meshes(&kinds[i], i);
        if (i == 0) {
            check_resumes(&kinds[i]);
            check_folder(&kinds[i]);
            check_plan();
            check_preferences();
            check_refusals();
        }
        sys_remove_run("whole");
        sys_remove_run("base");
    }
    return test_end();
}
