/* Adapters of the embedding's table and of the head as a user meets them: the same bits in every home, on every number
 * of ranks, in pipelines and in every --dtype, also of a model whose head is its table; runs that are killed or stopped
 * go on to them; what is merged computes what the adapter did beside its base, and has two tables; adapters that PEFT
 * made go on. */
#include "base/file.h"
#include "base/json.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 6 };

static const char common[] = "--batch-size 1 --gradient-accumulation-steps 4 --sum-groups 4 --max-seq-length 16 "
                             "--compute-threads 1 --optimizer-threads 1 --host-mem 64MiB --max-steps 6 "
                             "--eval-fraction 0.1 --save-total-limit 0 --learning-rate 1e-2 --save-steps 2";
static const char both[] = "--lora-r 3 --lora-alpha 6 --lora-target-modules q_proj,embed_tokens,lm_head";

static struct sys_args args;
static struct sys_process process;
static const char *text_path;

static void begin(const char *model, const char *output, const char *words, const char *more, bool has_drive) {
    sys_args_train(&args, model, text_path, output);
    sys_args_add(&args, common);
    sys_args_add(&args, words);
    sys_args_add(&args, more);
    if (has_drive) {
        sys_args_on_drive(&args, output);
    }
}

static void run(const char *output, const char *words, const char *more, bool has_drive) {
    begin(test_path("base"), output, words, more, has_drive);
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.out, "adapter folder: ") != NULL);
}

static void export_model(const char *command, const char *source, const char *target, const char *dtype) {
    sys_args_begin(&args, command);
    sys_args_word(&args, "--model=%s", source);
    sys_args_word(&args, "--output=%s", target);
    sys_args_word(&args, "--save-dtype=%s", dtype);
    sys_run_well(&args, &process);
}

/* The folder "base": a model in bf16. */
static void make_base(const char *family) {
    sys_remove_run("first");
    sys_remove_run("base");
    begin(sys_write_model(family), "first", "", "--from-scratch", false);
    sys_run_well(&args, &process);
    export_model("export", test_pathf("first/checkpoint-%d", STEPS), test_path("base"), "bf16");
}

static void test_same_bits(const char *words) {
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    static const struct {
        const char *words;
        bool has_drive;
    } places[] = {{"", true},
                  {"--device-mem 8MiB --ranks 2 --sharding full_shard", true},
                  {"--ranks 4 --sharding shard_grad_op", false},
                  {"--mesh pp=2 --pipeline-schedule 1f1b", true},
                  {"--mesh pp=2 --pipeline-schedule gpipe", false},
                  {"--mesh dp=2,pp=2", false},
                  {"--prefetch-depth 0 --tiles 2 --optimizer-overlap off", true}};
    enum { PLACES = sizeof places / sizeof *places };
    char more[256];
    for (unsigned i = 0; i < 3; i++) {
        snprintf(more, sizeof more, "--dtype %s", dtypes[i]);
        run("memory", words, more, false);
        for (unsigned k = 0; k < PLACES; k++) {
            if (!test_takes(i * PLACES + k, 5)) {
                continue;
            }
            snprintf(more, sizeof more, "--dtype %s %s", dtypes[i], places[k].words);
            run("place", words, more, places[k].has_drive);
            CHECK(sys_same_runs("memory", "place", STEPS));
            sys_remove_run("place");
        }
        sys_remove_run("memory");
    }
}

/* Ranks that divide the rows of sequences, whose heads and embeddings have a sum of each group of rows. */
static void test_contexts(void) {
    static const char *const places[] = {"--mesh cp=2", "--mesh dp=2,cp=2"};
    run("memory", both, "--context-groups 2", false);
    for (unsigned k = 0; k < 2; k++) {
        if (test_takes(k, 2)) {
            run("place", both, places[k], k == 0);
            CHECK(sys_same_runs("memory", "place", STEPS));
            sys_remove_run("place");
        }
    }
    sys_remove_run("memory");
}

/* A run that is killed goes on from its store, one that is stopped from its checkpoint, on another number of ranks. */
static void test_resumes(void) {
    run("whole", both, "", true);
    for (int has_drive = 0; has_drive <= 1; has_drive++) {
        for (int part = 0; part < 3; part++) {
            begin(test_path("base"), "parts", both, part == 0 ? "" : "--resume latest", has_drive);
            sys_args_add(&args, !has_drive && part == 1 ? "--ranks 2" : "");
            if (part == 2) {
                sys_run_well(&args, &process);
                break;
            }
            sys_interrupt(&args, &process, part == 0 ? "\nstep 2/" : "\nstep 4/", has_drive ? SIGKILL : SIGUSR2);
        }
        CHECK(sys_same_runs("whole", "parts", STEPS));
        sys_remove_run("parts");
    }
}

static double eval_loss(const char *model, const char *adapter) {
    char words[OX_PATH_BYTES + 128];
    snprintf(words, sizeof words, "--max-seq-length 16 --host-mem 64MiB --dtype fp32 %s%s",
             adapter != NULL ? "--adapter " : "", adapter != NULL ? adapter : "");
    return sys_eval_loss(model, text_path, words);
}

/* After test_resumes: the base of a tied model stays as it was, and what is merged of it has two tables. */
static void test_merged(bool tied) {
    char base[OX_PATH_BYTES], whole[OX_PATH_BYTES], merged[OX_PATH_BYTES];
    json_t *json = NULL;
    snprintf(base, sizeof base, "%s", test_path("base"));
    snprintf(whole, sizeof whole, "%s", test_path("whole"));
    snprintf(merged, sizeof merged, "%s", test_path("merged"));
    sys_remove_run("merged");
    sys_args_begin(&args, "merge");
    sys_args_word(&args, "%s", whole);
    sys_args_word(&args, "--output=%s", merged);
    sys_args_add(&args, "--save-dtype fp32");
    sys_run_well(&args, &process);
    const double before = eval_loss(base, NULL), beside = eval_loss(base, whole), after = eval_loss(merged, NULL);
    printf("loss %.6f; with the adapter %.6f, merged %.6f\n", before, beside, after);
    CHECK(beside == eval_loss(whole, NULL) && fabs(beside - before) > 1e-3);
    CHECK(fabs(after - beside) < 5e-4); /* what is added to the table is rounded to bf16, as the base is */
    REQUIRE_OK(ox_json_load(test_path("merged/config.json"), 1 << 20, &json));
    CHECK(json_is_false(json_object_get(json, "tie_word_embeddings")));
    json_decref(json);
    REQUIRE_OK(ox_json_load(test_path("base/config.json"), 1 << 20, &json));
    CHECK(json_is_true(json_object_get(json, "tie_word_embeddings")) == tied);
    json_decref(json);
    begin(whole, "named", "", "", false); /* goes on with it */
    sys_run_well(&args, &process);
    run("beside", "", plain_pathf("--adapter %s", whole), false);
    CHECK(sys_same_runs("beside", "named", STEPS));
    sys_remove_run("named");
    sys_remove_run("beside");
    sys_remove_run("whole");
}

static void refuse(const char *says) {
    sys_run(&args, &process);
    if (process.outcome.exit_status != 2 || !sys_said(&process, says)) {
        sys_complain(&process, says);
    }
}

/* An adapter as PEFT saves it, with copies of the tables, and one that PEFT would train for both as one. */
static void test_of_peft(void) {
    char folder[OX_PATH_BYTES];
    json_t *json = NULL;
    snprintf(folder, sizeof folder, "%s", test_path("peft"));
    REQUIRE_OK(ox_folder_make(folder));
    REQUIRE_OK(ox_file_copy("tests/golden/lora_tables/adapter/adapter_model.safetensors",
                            test_path("peft/adapter_model.safetensors")));
    REQUIRE_OK(ox_json_load("tests/golden/lora_tables/adapter/adapter_config.json", 1 << 20, &json));
    CHECK(json_object_set_new(json, "ensure_weight_tying", json_true()) == 0);
    CHECK(json_dump_file(json, test_path("peft/adapter_config.json"), 0) == 0);
    json_decref(json);
    begin("tests/golden/lora_tables", "none", "--from-scratch", plain_pathf("--adapter %s", folder), false);
    refuse("trains one adapter for the table and the head, which cannot be done here");
    begin(test_path("base"), "none", both, "--use-dora", false);
    refuse("can have no magnitudes");
}

int main(void) {
    text_path = sys_write_text(24000);
    make_base("untied");
    test_same_bits(both);
    test_contexts();
    test_resumes();
    test_merged(false);
    make_base("llama");
    test_same_bits("--lora-r 3 --lora-alpha 6 --lora-target-modules embed_tokens,o_proj");
    test_same_bits("--lora-r 2 --lora-alpha 6 --lora-target-modules lm_head --lora-dropout 0.2 "
                   "--lora-modules-to-save input_layernorm");
    test_resumes();
    test_merged(true);
    test_of_peft();
    return test_end();
}
