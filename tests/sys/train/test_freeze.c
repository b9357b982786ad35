/* --freeze as a user meets it: frozen weights of a bf16 folder are kept in two bytes, with the bits of a run that keeps
 * them in four, in every home, on every number of ranks and in every --dtype, and so of an fp16 folder where compute
 * reads whole masters; checkpoints while training goes on; a run
 * that is killed or that has lost the folder it began with goes on; another --freeze at a resume is defined or refused.
 */
#include "base/file.h"
#include "engine/hf/hf.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 6 };

static const char common[] = "--batch-size 1 --gradient-accumulation-steps 4 --sum-groups 4 --max-seq-length 16 "
                             "--compute-threads 1 --optimizer-threads 1 --host-mem 64MiB "
                             "--eval-fraction 0 --save-total-limit 0 --learning-rate 1e-3";
static const char on_drive[] = "--weights-tier nvme --state-tier nvme";
/* A whole block below what is trained and one above; of the one between a matrix, and a part of one. */
static const char frozen[] = "--freeze layers.0 --freeze layers.2 --freeze model.layers.1.mlp.up_proj.weight"
                             " --freeze model.layers.1.mlp.down_proj.weight";

static struct sys_args args;
static struct sys_process process;
static const char *text_path;
static int steps = STEPS;

static void begin(const char *model, const char *output, const char *more) {
    sys_args_train(&args, model, text_path, output);
    sys_args_add(&args, common);
    sys_args_word(&args, "--max-steps=%d", steps);
    sys_args_add(&args, more);
}

static void export_model(const char *source, const char *target, const char *dtype) {
    sys_args_begin(&args, "export");
    sys_args_word(&args, "--model=%s", source);
    sys_args_word(&args, "--output=%s", target);
    sys_args_word(&args, "--save-dtype=%s", dtype);
    sys_run_well(&args, &process);
}

/* Folders "narrow" and "wide" with the same weights: bf16 numbers, in bf16 and in fp32; so "half" and "half-wide". */
static void make_models(void) {
    begin(sys_write_model("llama"), "first", "--from-scratch");
    sys_run_well(&args, &process);
    char source[OX_PATH_BYTES], narrow[OX_PATH_BYTES];
    snprintf(source, sizeof source, "%s", test_pathf("first/checkpoint-%d", STEPS));
    snprintf(narrow, sizeof narrow, "%s", test_path("narrow"));
    export_model(source, narrow, "bf16");
    export_model(narrow, test_path("wide"), "fp32");
    snprintf(narrow, sizeof narrow, "%s", test_path("half"));
    export_model(source, narrow, "fp16");
    export_model(narrow, test_path("half-wide"), "fp32");
}

static void run(const char *model, const char *output, const char *more, bool has_drive) {
    begin(test_path(model), output, more);
    sys_args_add(&args, frozen);
    if (has_drive) {
        sys_args_add(&args, on_drive);
        sys_args_drive(&args, plain_pathf("%s-drive", output), "32MiB");
    }
    sys_run_well(&args, &process);
}

static bool holds(const char *file, const char *words) {
    char *text = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read(test_path(file), 1 << 20, &text, &bytes));
    const bool found = strstr(text, words) != NULL;
    free(text);
    return found;
}

/* Frozen weights of two bytes give the bits of those of four, for each --dtype at several places. */
static void test_same_bits(void) {
    static const struct {
        const char *dtype, *narrow, *wide, *formats;
    } cases[] = {{"fp32", "narrow", "wide", "\"unit_formats\": \"-b-b-b:"},
                 {"bf16", "narrow", "wide", "\"unit_formats\": \"-b-b-b:"},
                 {"fp16", "narrow", "wide", "\"unit_formats\": \"-b-b-b:"},
                 {"fp16", "half", "half-wide", "\"unit_formats\": \"-h-h-h:"},
                 {"fp32", "half", "half-wide", "\"unit_formats\": \"-h-h-h:"}};
    static const struct {
        const char *words;
        bool has_drive;
    } places[] = {{"--device-mem 8MiB", false},
                  {"", true},
                  {"--device-mem 8MiB --ranks 2 --sharding full_shard", true},
                  {"--ranks 4", false},
                  {"--prefetch-depth 0 --tiles 2 --optimizer-overlap off", true}};
    char words[256];
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(words, sizeof words, "--save-dtype fp32 --dtype %s", cases[i].dtype);
        run(cases[i].wide, "wide-run", words, true);
        for (unsigned k = 0; k < sizeof places / sizeof *places; k++) {
            if (!test_takes(i * 5 + k, 5)) {
                continue;
            }
            snprintf(words, sizeof words, "--save-dtype fp32 --dtype %s %s", cases[i].dtype, places[k].words);
            run(cases[i].narrow, "narrow-run", words, places[k].has_drive);
            CHECK(sys_same_runs("wide-run", "narrow-run", STEPS));
            CHECK(holds("narrow-run/run.json", cases[i].formats));
            sys_remove_run("narrow-run");
        }
        CHECK(!holds("wide-run/run.json", "unit_formats"));
        sys_remove_run("wide-run");
    }
    run("half", "narrow-run", "--dtype bf16", false); /* compute reads hi alone, which is not the half */
    CHECK(!holds("narrow-run/run.json", "unit_formats"));
    sys_remove_run("narrow-run");
}

/* Saved in 16 bits, halves are the folder's to the bit, in fp16 without masters beside them; from there a run goes on,
 * also one that computes otherwise and has masters, and what is exported has the exact values. */
static void test_halves(void) {
    char checkpoint[OX_PATH_BYTES], exported[OX_PATH_BYTES];
    struct ox_st_file *narrow = NULL, *wide = NULL;
    const char *const words = "--dtype fp16 --save-dtype fp16 --save-steps 4";
    run("half", "narrow-run", words, true);
    run("half-wide", "wide-run", words, true);
    for (int step = 4; step <= STEPS; step += 2) {
        snprintf(exported, sizeof exported, "%s", test_pathf("narrow-run/checkpoint-%d/model.safetensors", step));
        CHECK(files_same(exported, test_pathf("wide-run/checkpoint-%d/model.safetensors", step)));
    }
    REQUIRE_OK(ox_st_open(test_pathf("narrow-run/checkpoint-%d/optimizer.safetensors", STEPS), &narrow));
    REQUIRE_OK(ox_st_open(test_pathf("wide-run/checkpoint-%d/optimizer.safetensors", STEPS), &wide));
    CHECK(ox_st_count(narrow) == ox_st_count(wide) - 2 * 9 - 1); /* nine tensors of a layer, and one */
    ox_st_close(&narrow);
    ox_st_close(&wide);
    snprintf(checkpoint, sizeof checkpoint, "%s", test_pathf("narrow-run/checkpoint-%d", STEPS));
    snprintf(exported, sizeof exported, "%s", test_path("exact"));
    export_model(checkpoint, exported, "fp32");
    export_model(test_pathf("wide-run/checkpoint-%d", STEPS), test_path("exact-wide"), "fp32");
    snprintf(exported, sizeof exported, "%s", test_path("exact/model.safetensors"));
    CHECK(files_same(exported, test_path("exact-wide/model.safetensors")));
    for (int way = 0; way < 2; way++) {
        static const char *const ways[] = {"--dtype fp16 --save-dtype bf16", "--dtype bf16 --save-dtype bf16"};
        for (int is_wide = 0; is_wide < 2; is_wide++) {
            steps = STEPS + 2;
            begin(test_path(is_wide ? "half-wide" : "half"), is_wide ? "wide-run" : "narrow-run", ways[way]);
            sys_args_add(&args, frozen);
            sys_args_word(&args, "--resume=%s",
                          test_path(is_wide ? "wide-run/checkpoint-4" : "narrow-run/checkpoint-4"));
            sys_run_well(&args, &process);
        }
        CHECK(sys_same_runs("wide-run", "narrow-run", STEPS + 2));
        CHECK(holds("narrow-run/run.json", "-h-h-h:") == (way == 0));
    }
    steps = STEPS;
    sys_remove_run("narrow-run");
    sys_remove_run("wide-run");
}

/* The number behind a path of keys in the plan of a model, as JSON. */
static double planned(const char *model, const char *more, const char *tier) {
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=%s", test_path(model));
    sys_args_add(&args, common);
    sys_args_add(&args, on_drive);
    sys_args_add(&args, more);
    sys_args_add(&args, "--format json");
    sys_args_drive(&args, "planned-drive", "32MiB");
    sys_run_well(&args, &process);
    json_t *const json = json_loads(process.outcome.out, 0, NULL);
    const double bytes = json_number_value(json_object_get(json_object_get(json, "peak_bytes"), tier));
    json_decref(json);
    return bytes;
}

/* Checkpoints in the middle of a run, of which the optimizer of the next step passes on what is trained; and what they
 * hold: saved in bf16, frozen weights need no masters. */
static void test_checkpoints(void) {
    run("narrow", "saved", "--save-steps 2 --save-dtype bf16", true);
    run("wide", "saved-wide", "--save-steps 2 --save-dtype bf16", true);
    CHECK(!sys_said(&process, "warning: no checkpoint"));
    for (int step = 2; step <= STEPS; step += 2) {
        char file[OX_PATH_BYTES];
        snprintf(file, sizeof file, "%s", test_pathf("saved/checkpoint-%d/model.safetensors", step));
        CHECK(files_same(file, test_pathf("saved-wide/checkpoint-%d/model.safetensors", step)));
    }
    struct ox_st_file *narrow = NULL, *wide = NULL;
    REQUIRE_OK(ox_st_open(test_pathf("saved/checkpoint-%d/optimizer.safetensors", STEPS), &narrow));
    REQUIRE_OK(ox_st_open(test_pathf("saved-wide/checkpoint-%d/optimizer.safetensors", STEPS), &wide));
    CHECK(ox_st_count(narrow) == ox_st_count(wide) - 2 * 9 - 1); /* nine tensors of a layer, and one */
    ox_st_close(&narrow);
    ox_st_close(&wide);
    char exported[OX_PATH_BYTES];
    snprintf(exported, sizeof exported, "%s", test_path("exported"));
    export_model(test_pathf("saved/checkpoint-%d", STEPS), exported, "fp32");
    export_model(test_pathf("saved-wide/checkpoint-%d", STEPS), test_path("exported-wide"), "fp32");
    snprintf(exported, sizeof exported, "%s", test_path("exported/model.safetensors"));
    CHECK(files_same(exported, test_path("exported-wide/model.safetensors")));
}

/* A run that is killed after some steps goes on from its store, one that is stopped from its checkpoint, to the bits of
 * one that was not, though the folder it began with is gone. */
static void test_resumes(void) {
    char gone[OX_PATH_BYTES], narrow[OX_PATH_BYTES];
    snprintf(gone, sizeof gone, "%s", test_path("gone"));
    snprintf(narrow, sizeof narrow, "%s", test_path("narrow"));
    run("narrow", "whole", "--save-dtype bf16", true);
    for (int has_drive = 0; has_drive <= 1; has_drive++) {
        files_copy_folder("narrow", gone);
        for (int part = 0; part < 3; part++) {
            begin(gone, "parts", part == 0 ? "--save-dtype bf16" : "--save-dtype bf16 --resume latest");
            sys_args_add(&args, frozen);
            if (has_drive) {
                sys_args_add(&args, on_drive);
                sys_args_drive(&args, "parts-drive", "32MiB");
            }
            if (part == 2) {
                sys_run_well(&args, &process);
                break;
            }
            sys_interrupt(&args, &process, part == 0 ? "\nstep 2/" : "\nstep 4/", has_drive ? SIGKILL : SIGUSR2);
            CHECK(unlink(test_path("gone/model.safetensors")) == 0 || part > 0);
        }
        CHECK(sys_same_runs("whole", "parts", STEPS));
        CHECK(holds("parts/run.json", "\"unit_formats\": \"-b-b-b:"));
        files_remove_folder(gone);
        sys_remove_run("parts");
    }
}

/* What is said of a run: the number of trained parameters, in its summary, its metrics and its checkpoint. After
 * test_checkpoints. */
static void test_told(void) {
    char *text = NULL;
    size_t bytes = 0;
    char words[64];
    sys_args_begin(&args, "inspect");
    sys_args_word(&args, "--model=%s", test_path("saved"));
    sys_args_add(&args, "--format json");
    sys_run_well(&args, &process);
    json_t *const json = json_loads(process.outcome.out, 0, NULL);
    const long all = (long)json_integer_value(json_object_get(json, "parameters"));
    const long trained = (long)json_integer_value(json_object_get(json, "trained_parameters"));
    json_decref(json);
    CHECK(all == 74832 && trained == all - 2 * 20832 - 2 * 48 * 96); /* two layers and two matrices */
    REQUIRE_OK(ox_file_read(test_path("saved/metrics.jsonl"), 1 << 20, &text, &bytes));
    CHECK(sys_number_after(text, "\"parameters\":", 0) == all);
    CHECK(sys_number_after(text, "\"trained_parameters\":", 0) == trained);
    free(text);
    run("narrow", "told", "", false);
    snprintf(words, sizeof words, "%ld of %ld parameters were trained, the others frozen", trained, all);
    CHECK(strstr(process.outcome.out, words) != NULL);
    CHECK(strstr(process.outcome.err, "23.95 k trained; frozen are 46.27 k of 2 bytes each, 4.608 k frozen ones are "
                                      "kept as the trained ones beside them") != NULL);
}

static void expect(int status, const char *says) {
    if (process.outcome.exit_status != status || !sys_said(&process, says)) {
        sys_complain(&process, says);
    }
}

static void resume(const char *from, const char *patterns) {
    begin(test_path("narrow"), "saved", on_drive);
    sys_args_drive(&args, "saved-drive", "32MiB");
    sys_args_add(&args, patterns);
    sys_args_word(&args, "--save-dtype=bf16");
    sys_args_word(&args, "--resume=%s", from);
    sys_run(&args, &process);
}

/* After test_checkpoints. */
static void test_other_patterns(void) {
    char checkpoint[OX_PATH_BYTES];
    snprintf(checkpoint, sizeof checkpoint, "%s", test_path("saved/checkpoint-4"));
    steps = STEPS + 2;
    resume("latest", "--freeze layers.0");
    expect(2, "was made with other settings: --freeze layers.0,layers.2,model.layers.1.mlp.up_proj.weight,"
              "model.layers.1.mlp.down_proj.weight, now "
              "layers.0;");
    resume(checkpoint, "--freeze layers.0");
    expect(2, "\"model.layers.1.mlp.up_proj.weight\" was frozen, so it has no moments to be trained with; give the "
              "run's --freeze, or begin a new run with this folder as --model");
    CHECK(files_exist("saved-drive/offload-store-0.ox")); /* it was refused before anything was removed */
    resume(checkpoint, "--freeze layers.* --freeze model.layers.*");
    expect(2, "--freeze layers.*: means no tensor of the model; the nearest is *.layers.*;");
    resume(checkpoint, "--freeze layers.1-3");
    expect(2, "--freeze layers.1-3: the model has layers 0 to 2");
    resume(checkpoint, "--freeze layers.0 --freeze layers.2 --freeze model.layers.1.mlp.*");
    expect(0, "was made with other training options: ");
    CHECK(holds("saved/run.json", "\"unit_formats\": \"-b-b--:")); /* so have other parts of one */
    snprintf(checkpoint, sizeof checkpoint, "%s", test_pathf("saved/checkpoint-%d", STEPS + 2));
    steps++;
    resume(checkpoint, "--freeze model.layers.* --freeze model.norm.weight");
    expect(0, "was made with other training options: ");
    CHECK(holds("saved/run.json", "\"unit_formats\": \"-b-b-\"")); /* layer 1 had been trained: it has a master */
}

/* A bias of 48 elements, half of whose last block would be frozen with the one behind it. */
static void test_shared_blocks(void) {
    const char *const path = test_path("biased.json");
    files_write_text(path, "{\"architectures\": [\"Qwen2ForCausalLM\"], \"model_type\": \"qwen2\", "
                           "\"vocab_size\": 256, \"hidden_size\": 48, \"intermediate_size\": 96, "
                           "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
                           "\"max_position_embeddings\": 64, \"hidden_act\": \"silu\"}\n");
    begin(path, "biased", "--from-scratch --freeze *.k_proj.bias");
    sys_run(&args, &process);
    expect(2, "--freeze: model.layers.0.self_attn.q_proj.bias and model.layers.0.self_attn.k_proj.bias share a block "
              "of 64 weights that is updated at once; mean both or neither");
    begin(path, "biased", "--from-scratch --freeze *.q_proj.bias --freeze *.k_proj.bias --freeze *.v_proj.bias");
    sys_run(&args, &process);
    expect(0, "");
}

int main(void) {
    text_path = sys_write_text(24000);
    make_models();
    test_same_bits();
    test_halves();
    const double wide = planned("wide", frozen, "nvme"), narrow = planned("narrow", frozen, "nvme");
    const double all = planned("narrow", "", "nvme");
    printf("on the drive: %.0f bytes with all trained, %.0f with two layers frozen, %.0f in bf16\n", all, wide, narrow);
    CHECK(narrow < wide && wide < all);
    const double part = planned("narrow", "--freeze *.down_proj.weight", "nvme");
    printf("%.0f bytes without a matrix of each layer\n", part);
    CHECK(all - part >= 3 * 96 * 48 * 20.0); /* 12 bytes in two generations become 2 */
    test_checkpoints();
    test_resumes();
    test_told();
    test_other_patterns();
    test_shared_blocks();
    return test_end();
}
