/* --lora-r as a user meets it: the same bits in every home, on every number of ranks and in every --dtype; runs that
 * are killed or stopped go on to them; checkpoints are adapters, which other runs go on with and which export merges; a
 * model that has changed since is refused. All with adapters alone, and with modules that are trained whole. */
#include "base/file.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 6 };

static const char common[] = "--batch-size 1 --gradient-accumulation-steps 4 --sum-groups 4 --max-seq-length 16 "
                             "--compute-threads 1 --optimizer-threads 1 --host-mem 64MiB --max-steps 6 "
                             "--eval-fraction 0.1 --save-total-limit 0 --learning-rate 1e-2 --save-steps 2";
static const char scale[] = "--lora-r 3 --lora-alpha 6";
static const char *modules = "--lora-target-modules all-linear";

static struct sys_args args;
static struct sys_process process;
static const char *text_path;

static void begin(const char *model, const char *output, const char *more) {
    sys_args_train(&args, model, text_path, output);
    sys_args_add(&args, common);
    sys_args_add(&args, more);
}

static void run(const char *output, const char *more, bool has_drive) {
    begin(test_path("base"), output, more);
    if (has_drive) {
        sys_args_on_drive(&args, output);
    }
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.out, "adapter folder: ") != NULL);
}

static void run_adapted(const char *output, const char *more, bool has_drive) {
    char words[512];
    snprintf(words, sizeof words, "%s %s %s", scale, modules, more);
    run(output, words, has_drive);
}

static void export_model(const char *source, const char *target, const char *dtype) {
    sys_args_begin(&args, "export");
    sys_args_word(&args, "--model=%s", source);
    sys_args_word(&args, "--output=%s", target);
    sys_args_word(&args, "--save-dtype=%s", dtype);
    sys_run_well(&args, &process);
}

/* The folder "base": a model in bf16. */
static void make_base(const char *family) {
    char source[OX_PATH_BYTES];
    begin(sys_write_model(family), "first", "--from-scratch");
    sys_run_well(&args, &process);
    snprintf(source, sizeof source, "%s", test_pathf("first/checkpoint-%d", STEPS));
    export_model(source, test_path("base"), "bf16");
}

static void test_same_bits(void) {
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    static const struct {
        const char *words;
        bool has_drive;
    } places[] = {{"", true},
                  {"--device-mem 8MiB --ranks 2 --sharding full_shard", true},
                  {"--ranks 4", false},
                  {"--mesh pp=2", true},
                  {"--prefetch-depth 0 --tiles 2 --optimizer-overlap off", true}};
    char words[256];
    for (unsigned i = 0; i < 3; i++) {
        snprintf(words, sizeof words, "--dtype %s", dtypes[i]);
        run_adapted("memory", words, false);
        for (unsigned k = 0; k < sizeof places / sizeof *places; k++) {
            if (!test_takes(i * 5 + k, 5)) {
                continue;
            }
            snprintf(words, sizeof words, "--dtype %s %s", dtypes[i], places[k].words);
            run_adapted("place", words, places[k].has_drive);
            CHECK(sys_same_runs("memory", "place", STEPS));
            sys_remove_run("place");
        }
        sys_remove_run("memory");
    }
}

/* Dropout has the same masks everywhere, and none in evaluations. */
static void test_dropout(void) {
    static const char *const places[] = {"--ranks 4", "--prefetch-depth 0 --tiles 2 --optimizer-overlap off",
                                         "--device-mem 8MiB --ranks 2 --sharding full_shard", "--kept-blocks 0"};
    char words[256];
    run_adapted("memory", "", false);
    run_adapted("dropped", "--lora-dropout 0.3", false);
    char *const all = sys_curve(test_path("memory"), "step"), *const some = sys_curve(test_path("dropped"), "step");
    CHECK(sys_metric(all, 1, "loss") == sys_metric(some, 1, "loss")); /* B is zero */
    CHECK(sys_metric(all, 3, "loss") != sys_metric(some, 3, "loss"));
    free(all);
    free(some);
    for (unsigned k = 0; k < sizeof places / sizeof *places; k++) {
        snprintf(words, sizeof words, "--lora-dropout 0.3 %s", places[k]);
        run_adapted("place", words, k % 2 == 0);
        CHECK(sys_same_runs("dropped", "place", STEPS));
        sys_remove_run("place");
    }
    const char *const config = test_pathf("dropped/checkpoint-%d/adapter_config.json", STEPS);
    json_t *const json = json_load_file(config, 0, NULL);
    CHECK(json_real_value(json_object_get(json, "lora_dropout")) == 0.3);
    json_decref(json);
    sys_remove_run("memory");
    sys_remove_run("dropped");
}

/* A run that is killed goes on from its store, one that is stopped from its checkpoint. */
static void test_resumes(void) {
    run_adapted("whole", "", true);
    for (int has_drive = 0; has_drive <= 1; has_drive++) {
        for (int part = 0; part < 3; part++) {
            begin(test_path("base"), "parts", part == 0 ? "" : "--resume latest");
            sys_args_add(&args, scale);
            sys_args_add(&args, modules);
            if (has_drive) {
                sys_args_on_drive(&args, "parts");
            }
            if (part == 2) {
                sys_run_well(&args, &process);
                break;
            }
            sys_interrupt(&args, &process, part == 0 ? "\nstep 2/" : "\nstep 4/", has_drive ? SIGKILL : SIGUSR2);
        }
        CHECK(sys_same_runs("whole", "parts", STEPS));
        begin(test_path("base"), "parts", "--resume latest --lora-r 3 --lora-alpha 12");
        sys_args_add(&args, modules);
        if (has_drive) {
            sys_args_on_drive(&args, "parts");
        }
        sys_run(&args, &process);
        if (process.outcome.exit_status != 2) {
            sys_complain(&process, "adapters with another scale");
        }
        CHECK(strstr(process.outcome.err, "its adapters were trained with --lora-alpha 6 and no --use-rslora") != NULL);
        if (has_drive) {
            begin(test_path("base"), "parts", "--resume latest --lora-r 4 --lora-alpha 6");
            sys_args_add(&args, modules);
            sys_args_on_drive(&args, "parts");
            sys_run(&args, &process);
            CHECK(process.outcome.exit_status == 2 &&
                  sys_said(&process, "was made with other settings: --lora-r 3, now 4; give those of the run"));
        }
        sys_remove_run("parts");
    }
}

static double eval_loss(const char *model, const char *adapter) {
    char words[OX_PATH_BYTES + 128];
    snprintf(words, sizeof words, "--max-seq-length 16 --host-mem 64MiB --dtype fp32 %s%s",
             adapter != NULL ? "--adapter " : "", adapter != NULL ? adapter : "");
    return sys_eval_loss(model, text_path, words);
}

/* After test_resumes. */
static void test_uses(void) {
    char base[OX_PATH_BYTES], whole[OX_PATH_BYTES], merged[OX_PATH_BYTES];
    snprintf(base, sizeof base, "%s", test_path("base"));
    snprintf(whole, sizeof whole, "%s", test_path("whole"));
    snprintf(merged, sizeof merged, "%s", test_path("merged"));
    CHECK(!files_exist(test_pathf("whole/checkpoint-%d/model.safetensors", STEPS)));
    export_model(whole, merged, "fp32");
    const double before = eval_loss(base, NULL), beside = eval_loss(base, whole), alone = eval_loss(whole, NULL);
    const double after = eval_loss(merged, NULL);
    printf("loss %.6f; with the adapter %.6f, merged %.6f\n", before, beside, after);
    CHECK(beside == alone && fabs(beside - before) > 1e-3 && fabs(after - beside) < 1e-5);
    /* `merge` writes what `export` does, whether the adapter names its model or is given one. */
    for (int with_model = 0; with_model < 2; with_model++) {
        char again[OX_PATH_BYTES];
        snprintf(again, sizeof again, "%s", test_pathf("merged-%d", with_model));
        sys_args_begin(&args, "merge");
        sys_args_word(&args, "%s", whole);
        sys_args_word(&args, "--output=%s", again);
        sys_args_add(&args, "--save-dtype fp32");
        if (with_model) {
            sys_args_word(&args, "--model=%s", base);
        }
        sys_run_well(&args, &process);
        CHECK(files_same_folders(merged, again));
    }
    /* Going on with an adapter, by its own name or beside its model, is the same. */
    run("beside", plain_pathf("--adapter %s", whole), false);
    begin(whole, "named", "");
    sys_run_well(&args, &process);
    CHECK(sys_same_runs("beside", "named", STEPS));
}

static void refuse(const char *says) {
    sys_run(&args, &process);
    if (process.outcome.exit_status != 2 || !sys_said(&process, says)) {
        sys_complain(&process, says);
    }
}

/* After test_uses. */
static void test_merges_adapters_alone(void) {
    sys_args_begin(&args, "merge");
    sys_args_word(&args, "%s", test_path("base"));
    sys_args_word(&args, "--output=%s", test_path("nothing"));
    refuse("holds no adapter (adapter_config.json)");
    CHECK(!files_exist("nothing"));
}

/* What is trained whole is saved with the adapters, and nothing else of the model. */
static void test_whole_modules(void) {
    static const char *const made[] = {"first", "base", "whole", "merged", "merged-0", "merged-1", "beside", "named"};
    for (unsigned i = 0; i < sizeof made / sizeof *made; i++) {
        sys_remove_run(made[i]);
    }
    make_base("gpt2");
    modules = "--lora-target-modules c_attn,mlp.c_proj --lora-modules-to-save lm_head,wte,ln_1 --lora-bias all";
    test_same_bits();
    test_resumes();
    CHECK(files_size(test_pathf("whole/checkpoint-%d/adapter_model.safetensors", STEPS)) >
          2 * 48 * 256 * sizeof(float)); /* two tables that were one */
    begin(test_path("base"), "whole", scale);
    sys_args_add(&args, "--lora-target-modules c_attn,mlp.c_proj --lora-modules-to-save lm_head,wte,ln_f");
    sys_args_word(&args, "--resume=%s", test_pathf("whole/checkpoint-%d", STEPS - 2));
    refuse("was not trained; give the run's --lora-target-modules, --lora-target-parameters, "
           "--lora-modules-to-save and --lora-bias");
    begin(test_path("base"), "whole", scale);
    sys_args_add(&args, "--lora-target-modules c_attn,mlp.c_proj --lora-modules-to-save lm_head,wte --lora-bias all");
    sys_args_word(&args, "--resume=%s", test_pathf("whole/checkpoint-%d", STEPS - 2));
    refuse("was trained beside its adapters; give the run's --lora-modules-to-save and --lora-bias again");
    begin(test_path("base"), "none", "--lora-modules-to-save lm_head");
    refuse("--lora-modules-to-save: there is no adapter without a rank; add --lora-r N");
    begin(test_path("base"), "none", "--lora-r 3 --lora-modules-to-save lm_haed");
    refuse("--lora-modules-to-save lm_haed: the model has no module whose name ends so");
    test_uses();
}

/* After test_uses. Another model in the place of the base: an older checkpoint of the same run. */
static void test_changed_base(void) {
    char whole[OX_PATH_BYTES], file[OX_PATH_BYTES], source[OX_PATH_BYTES];
    snprintf(whole, sizeof whole, "%s", test_path("whole"));
    begin(sys_write_model("llama"), "fresh", scale);
    sys_args_add(&args, "--from-scratch");
    refuse("has no weights for adapters to be trained beside");
    begin(whole, "twice", scale);
    refuse("is an adapter already, with the rank 3");
    begin(test_path("base"), "none", "--lora-alpha 16");
    refuse("--lora-alpha: there is no adapter without a rank; add --lora-r N");
    begin(test_path("base"), "none", "--use-rslora");
    refuse("--use-rslora: there is no adapter without a rank; add --lora-r N");
    begin(test_path("base"), "none", "--lora-alpha 16");
    sys_args_word(&args, "--adapter=%s", whole);
    refuse("--lora-alpha: the folder of --adapter says it; leave it out");
    begin(test_path("base"), "whole", "");
    sys_args_word(&args, "--resume=%s", test_pathf("whole/checkpoint-%d", STEPS - 2));
    sys_args_on_drive(&args, "whole");
    refuse("is a checkpoint of adapters; give the run's --lora-r or --adapter again");
    begin(test_path("base"), "whole", "--lora-r 4 --lora-alpha 6 --lora-target-modules all-linear");
    sys_args_word(&args, "--resume=%s", test_pathf("whole/checkpoint-%d", STEPS - 2));
    refuse("its adapters have the rank 3, and --lora-r is 4; give theirs");
    begin(test_path("base"), "whole", "--lora-r 3 --lora-alpha 6 --lora-target-modules q_proj");
    sys_args_word(&args, "--resume=%s", test_pathf("whole/checkpoint-%d", STEPS - 2));
    refuse("not both have, in the same shape, \"model.layers.0.self_attn.k_proj.lora_A.weight\"");
    snprintf(source, sizeof source, "%s", test_path("first/checkpoint-2"));
    export_model(source, test_path("older"), "bf16");
    snprintf(file, sizeof file, "%s", test_path("older/model.safetensors"));
    REQUIRE_OK(ox_file_copy(file, test_path("base/model.safetensors")));
    begin(whole, "changed", "");
    refuse("was trained beside other weights than");
    begin(test_path("base"), "whole", scale);
    sys_args_add(&args, modules);
    sys_args_word(&args, "--resume=%s", test_pathf("whole/checkpoint-%d", STEPS - 2));
    sys_args_on_drive(&args, "whole");
    refuse("was trained beside other weights than");
}

int main(void) {
    text_path = sys_write_text(24000);
    make_base("llama");
    test_same_bits();
    test_dropout();
    test_resumes();
    test_uses();
    test_merges_adapters_alone();
    test_changed_base();
    test_whole_modules();
    return test_end();
}
