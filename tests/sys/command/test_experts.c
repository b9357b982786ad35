/* --experts-per-unit as a user meets it: the same run however experts are grouped, at other homes, with other ranks,
 * killed or not; a store keeps its groups, a checkpoint goes on with others; what cannot be is refused. */
#include "engine/hf/safetensors.h"
#include "tests/kit/files.h"
#include "tests/kit/run/mixture.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZES                                                                                                    \
    "\"vocab_size\":256,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"                   \
    "\"num_key_value_heads\":2,\"tie_word_embeddings\":false,"

static const char config[] =
    "{\"model_type\":\"qwen3_moe\",\"vocab_size\":256,\"hidden_size\":64,\"intermediate_size\":40,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,"
    "\"num_experts\":6,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,\"tie_word_embeddings\":false}";
static const char common[] = "--max-seq-length 16 --compute-threads 1 --optimizer-threads 1 "
                             "--host-mem 64MiB --eval-fraction 0 --learning-rate 1e-3 --gradient-accumulation-steps 2 "
                             "--sum-groups 2 --moments bf16";

static struct sys_args args;
static struct sys_process process;
static const char *text_path, *model;

enum { STEPS = 6 };

/* Trains the model, which has weights or is fresh. */
static void train_model(const char *of, const char *output, const char *more) {
    const bool fresh = strstr(of, ".json") != NULL && strstr(more, "--resume") == NULL;
    sys_args_train(&args, of, text_path, output);
    sys_args_add(&args, common);
    sys_args_word(&args, "--max-steps=%u", STEPS);
    sys_args_add(&args, fresh ? "--from-scratch" : "");
    sys_args_add(&args, more);
}

static void train(const char *output, const char *more) {
    train_model(model, output, more);
}

static bool same_runs(const char *a, const char *b) {
    return mixture_same_runs(a, b, STEPS);
}

static void test_same_bits(void) {
    static const char *const ways[] = {
        "--experts-per-unit 2", "--experts-per-unit 4 --ranks 2",
        "--experts-per-unit 1 --device-mem 32MiB --activation-tier host --optimizer-overlap off",
        "--experts-per-unit 3 --weights-tier nvme --state-tier nvme --grads-tier nvme --activation-tier nvme",
        "--experts-per-unit 5 --state-tier nvme --optimizer-overlap speculative --tiles 2",
        "--experts-per-unit 6 --ranks 2 --sharding full_shard --kept-blocks 1"};
    train("all", "--experts-per-unit all");
    sys_run_well(&args, &process);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        train("way", "--overwrite-output-dir");
        sys_args_add(&args, ways[i]);
        sys_args_drive(&args, "drive", "64MiB");
        sys_run_well(&args, &process);
        CHECK(same_runs("all", "way"));
    }
}

/* Frozen matrices of experts leave units of their groups; blocks that lose nothing else stay whole. Few tokens leave
 * experts idle. */
static void test_frozen(void) {
    static const char *const frozen[] = {"--freeze=*.experts.*", "--idle-experts=skip --freeze=*.experts.*.down_proj*",
                                         "--idle-experts=skip --freeze=*.experts.1.*,*.experts.*.up_proj*,"
                                         "*.experts.*.gate_proj*,*.self_attn.*"};
    for (size_t i = 0; i < 2 * (sizeof frozen / sizeof *frozen); i++) {
        sys_args_train(&args, model, text_path, i % 2 == 0 ? "whole" : "apart");
        sys_args_add(&args, "--from-scratch --overwrite-output-dir --max-seq-length 3 --per-device-train-batch-size 1 "
                            "--gradient-accumulation-steps 1 --compute-threads 1 --optimizer-threads 1 "
                            "--host-mem 64MiB --eval-fraction 0 --learning-rate 1e-2");
        sys_args_word(&args, "--max-steps=%u", STEPS);
        sys_args_add(&args, i % 2 == 0 ? "--experts-per-unit all" : i == 1 ? "--experts-per-unit 4"
                                                                           : "--experts-per-unit 2");
        sys_args_add(&args, frozen[i / 2]);
        sys_run_well(&args, &process);
        CHECK(i % 2 == 0 || same_runs("whole", "apart"));
    }
}

/* A run that is killed after its first steps, and one that goes on from a checkpoint with other groups. */
static void test_resumes(void) {
    static const char of_drives[] = "--weights-tier nvme --state-tier nvme --save-steps 3";
    train("killed", "--experts-per-unit 2");
    sys_args_add(&args, of_drives);
    sys_args_drive(&args, "killed-drive", "64MiB");
    sys_args_leash(&args);
    sys_start(&args, &process);
    CHECK(sys_await(&process, "step 4/"));
    kill(process.pid, SIGKILL);
    sys_wait(&process);
    train("killed", "--experts-per-unit 4 --resume-from-checkpoint latest");
    sys_args_add(&args, of_drives);
    sys_args_drive(&args, "killed-drive", "64MiB");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status != 0 && sys_said(&process, "--experts-per-unit 2, now 4"));
    train("killed", "--resume-from-checkpoint latest"); /* which has the groups of the store */
    sys_args_add(&args, of_drives);
    sys_args_drive(&args, "killed-drive", "64MiB");
    sys_run_well(&args, &process);
    CHECK(same_runs("all", "killed"));
    train("killed", "--experts-per-unit 4 --resume-from-checkpoint latest");
    sys_args_add(&args, of_drives);
    sys_args_drive(&args, "killed-drive", "64MiB");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status != 0 && sys_said(&process, "go on from a checkpoint"));
    train("kept", "--experts-per-unit 2"); /* a kill may come before checkpoint-3 is whole */
    sys_args_add(&args, of_drives);
    sys_args_drive(&args, "kept-drive", "64MiB");
    sys_run_well(&args, &process);
    train("kept", "--experts-per-unit all --resume-from-checkpoint");
    sys_args_add(&args, test_path("kept/checkpoint-3"));
    sys_args_add(&args, of_drives);
    sys_args_drive(&args, "kept-drive", "64MiB");
    sys_run_well(&args, &process);
    CHECK(same_runs("all", "kept"));
}

/* Folders with one tensor of all experts, of which each group has a part: what is saved has that tensor whole, in the
 * weights and in the optimizer's file, so that a checkpoint goes on with other groups. */
static void test_packed(void) {
    static const struct {
        const char *name, *text, *groups[3];
        bool mxfp4;
    } cases[] = {
        {"packed", "{\"model_type\":\"mixtral\"," SIZES "\"intermediate_size\":32,\"num_local_experts\":6,"
                   "\"num_experts_per_tok\":2}", {"1", "4", "5"}, false},
        {"mxfp4", "{\"model_type\":\"gpt_oss\"," SIZES "\"head_dim\":16,\"intermediate_size\":64,"
                  "\"num_local_experts\":64,\"num_experts_per_tok\":2,\"sliding_window\":5}",
                  {"32", "64", "32"}, true},
        {"granite", "{\"model_type\":\"granitemoe\"," SIZES "\"intermediate_size\":32,\"num_local_experts\":6,"
                    "\"num_experts_per_tok\":2,\"residual_multiplier\":0.3}", {"2", "all", "3"}, false},
    };
    static const char whole[] = "model.layers.0.mlp.experts.gate_up_proj";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const path = files_write_text(test_pathf("%s.json", cases[i].name), cases[i].text);
        const char *const of = mixture_write(cases[i].name, path, cases[i].mxfp4);
        train_model(of, "packed-whole", "--overwrite-output-dir --experts-per-unit all --save-steps 3");
        sys_run_well(&args, &process);
        train_model(of, "packed-apart", "--overwrite-output-dir --state-tier nvme");
        sys_args_word(&args, "--experts-per-unit=%s", cases[i].groups[0]);
        sys_args_drive(&args, "drive", "128MiB");
        sys_args_leash(&args);
        sys_start(&args, &process);
        CHECK(sys_await(&process, "step 4/"));
        kill(process.pid, SIGKILL);
        sys_wait(&process);
        train_model(of, "packed-apart", "--resume-from-checkpoint latest --state-tier nvme");
        sys_args_drive(&args, "drive", "128MiB");
        sys_run_well(&args, &process);
        CHECK(same_runs("packed-whole", "packed-apart"));
        for (size_t k = 1; k < 3; k++) { /* other groups, and other ranks */
            train_model(of, "packed-whole", "--resume-from-checkpoint");
            sys_args_add(&args, test_path("packed-whole/checkpoint-3"));
            sys_args_add(&args, k == 2 ? "--ranks 2 --save-steps 3" : "--save-steps 3");
            sys_args_word(&args, "--experts-per-unit=%s", cases[i].groups[k]);
            sys_run_well(&args, &process);
            CHECK(same_runs("packed-whole", "packed-apart"));
        }
        struct ox_st_file *file;
        REQUIRE_OK(ox_st_open(test_pathf("packed-apart/checkpoint-%d/model.safetensors", STEPS), &file));
        const struct ox_st_entry *const entry = ox_st_find(file, whole);
        CHECK(strcmp(cases[i].name, "granite") == 0 || (entry != NULL && entry->rank == 3));
        ox_st_close(&file);
    }
}

/* The shape of gpt-oss-20b, but for its layers. */
static const char gpt_oss[] =
    "{\"model_type\": \"gpt_oss\", \"vocab_size\": 201088, \"hidden_size\": 2880, \"intermediate_size\": 2880,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"head_dim\": 64,"
    " \"num_local_experts\": 64, \"num_experts_per_tok\": 4, \"sliding_window\": 128,"
    " \"max_position_embeddings\": 131072, \"tie_word_embeddings\": false}";

static void test_refusals(void) {
    static const char *const cases[][2] = {
        {"--experts-per-unit 7", "a layer has 6 experts; give 1 to 6, or all"},
        {"--experts-per-unit few", "'few' is neither auto nor all nor a number"},
        {"--experts-per-unit 0", "'0' is neither"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        train("refused", cases[i][0]);
        sys_run(&args, &process);
        CHECK(process.outcome.exit_status != 0 && sys_said(&process, cases[i][1]));
    }
    sys_args_train(&args, sys_write_model("llama"), text_path, "refused");
    sys_args_add(&args, common);
    sys_args_add(&args, "--from-scratch --max-steps 1 --experts-per-unit 2");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status != 0 && sys_said(&process, "has no mixture of experts; leave it out"));
    static const char *const small[][3] = { /* layers with fewer experts than fill whole elements; gpt-oss */
        {"tests/golden/mixtral_packed", "--experts-per-unit 2",
         "no whole number of 2048 elements in each tensor, which is what checksums and norms are over; give all"},
        {"tests/golden/qwen3_moe", "--expert-parallel-size 2",
         "--expert-parallel-size 2: 4 experts of a layer, which a rank would have, have no whole number of 2048 "
         "elements in each tensor, which is what checksums and norms are over; use 1"},
        {NULL, "--experts-per-unit 4", "are over; give a multiple of 32, or all"}};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        const char *const shape = small[i][0] != NULL ? small[i][0] : files_write_text("gpt-oss.json", gpt_oss);
        sys_args_train(&args, shape, text_path, "refused");
        sys_args_add(&args, "--from-scratch --max-seq-length 16 --max-steps 1");
        sys_args_add(&args, small[i][1]);
        sys_run(&args, &process);
        CHECK(process.outcome.exit_status == 2 && sys_said(&process, small[i][2]));
    }
}

#define LARGE(experts, chosen, width)                                                                                 \
    "{\"model_type\":\"glm4_moe\",\"vocab_size\":256,\"hidden_size\":2048,\"intermediate_size\":2048,"                \
    "\"num_hidden_layers\":2,\"num_attention_heads\":16,\"num_key_value_heads\":4,\"head_dim\":128,"                  \
    "\"n_routed_experts\":" #experts ",\"num_experts_per_tok\":" #chosen ",\"n_group\":1,\"topk_group\":1,"           \
    "\"moe_intermediate_size\":" #width ",\"n_shared_experts\":1,\"first_k_dense_replace\":1,"                        \
    "\"tie_word_embeddings\":false}"
static const char large[] = LARGE(16, 4, 4096), of_one[] = LARGE(4, 2, 24576);

/* Plans a large mixture, and returns the seconds of a step; NAN where it does not fit. `per_unit` becomes how many
 * experts are a unit, 0: all with their blocks. */
static double plan_seconds(const char *of, const char *device_mem, const char *words, json_int_t *per_unit) {
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=%s", files_write_text("large.json", of));
    sys_args_word(&args, "--data=%s", text_path);
    sys_args_add(&args, "--from-scratch --max-steps 1 --max-seq-length 1024 --device cuda --host-mem 60GiB "
                        "--format json");
    sys_args_word(&args, "--profile=%s", strstr(words, "--ranks") != NULL ? "rtx4090-x4-4-drives" : "rtx4090-1-drive");
    sys_args_add(&args, "--device-mem");
    sys_args_add(&args, device_mem);
    sys_args_add(&args, words);
    sys_run(&args, &process);
    json_t *const json = json_loads(process.outcome.out, 0, NULL);
    const json_t *const experts = json_object_get(json, "experts_per_unit");
    const bool fits = json_is_true(json_object_get(json_object_get(json, "verdict"), "fits"));
    const double seconds = fits ? json_number_value(json_object_get(json, "predicted_seconds")) : (double)NAN;
    CHECK(json_is_integer(experts) || json_is_string(experts) || !fits);
    *per_unit = json_integer_value(experts);
    json_decref(json);
    return seconds;
}

/* Where blocks do not fit whole, auto takes groups, and where they do none: what it takes is the plan of that number,
 * and no other is faster by more than the 1 % that it goes on for. */
static void test_auto(void) {
    json_int_t chosen, given;
    CHECK(isnan(plan_seconds(large, "2GiB", "--experts-per-unit all", &given)));
    const double small = plan_seconds(large, "2GiB", "", &chosen);
    const double large_device = plan_seconds(large, "23GiB", "", &given);
    CHECK(small > 0 && chosen > 0 && large_device > 0 && given == 0);
    const char *const number = plain_pathf("--experts-per-unit %d", (int)chosen);
    CHECK(plan_seconds(large, "2GiB", number, &given) == small && given == chosen);
    CHECK(plan_seconds(large, "23GiB", "--experts-per-unit 4", &given) > 0.99 * large_device && given == 4);
    CHECK(plan_seconds(large, "2GiB", "--experts-per-unit 4", &given) > 0.99 * small);
}

/* Where no groups fit, the refusal names what the smallest need, and that suffices. */
static void test_auto_refused(void) {
    json_int_t given;
    CHECK(isnan(plan_seconds(large, "1GiB", "--experts-per-unit all", &given)));
    const long whole = sys_number_after(process.outcome.err, "nearest that fits: --device-mem ", 0);
    CHECK(isnan(plan_seconds(large, "1GiB", "", &given)));
    const long grouped = sys_number_after(process.outcome.err, "nearest that fits: --device-mem ", 0);
    printf("device memory in MiB: %ld with all experts in a unit, %ld in groups\n", whole, grouped);
    CHECK(grouped > 1024 && 2 * grouped < 3 * whole / 2);
    CHECK(plan_seconds(large, plain_pathf("%ldMiB", grouped), "", &given) > 0 && given > 0);
}

/* --experts-per-unit auto takes fewer experts a unit also where tensor ranks divide features, so that a model fits that
 * does not with all experts of a group in one unit. A group with one expert of a layer has nothing to halve: the plan
 * is refused, and the search for groups ends. */
static void test_auto_features(void) {
    static const char words[] = "--ranks 2 --tensor-parallel-size 2";
    json_int_t chosen, given;
    CHECK(isnan(plan_seconds(large, "2GiB", plain_pathf("%s --experts-per-unit all", words), &given)));
    CHECK(plan_seconds(large, "2GiB", words, &chosen) > 0 && chosen > 0 && chosen < 8);
    CHECK(isnan(plan_seconds(of_one, "1GiB", "--ranks 4 --tensor-parallel-size 4", &given)));
    CHECK(sys_said(&process, "does not fit"));
}

/* One rank cannot have several groups of rows beside experts that are units of their own, and is not advised. */
static void test_advice(void) {
    json_int_t given;
    for (int contexts = 1; contexts <= 2; contexts++) {
        const char *const mesh = plain_pathf("--ranks 2 --mesh dp=%d,cp=%d,ep=2 --global-batch-size 2", 3 - contexts,
                                             contexts);
        CHECK(plan_seconds(large, "23GiB", mesh, &given) > 0 && given > 0);
        CHECK((strstr(process.outcome.out, "\"one_rank\": null") != NULL) == (contexts > 1));
    }
}

/* A bias of the choice moves with its block's unit, so that groups which leave nothing trained in that are none. */
static void test_bias(void) {
    const char *const path = files_write_text("large.json", large);
    for (int i = 0; i < 2; i++) {
        sys_args_begin(&args, "plan");
        sys_args_word(&args, "--model=%s", path);
        sys_args_word(&args, "--data=%s", text_path);
        sys_args_word(&args, "--freeze=all-but *.experts.*");
        sys_args_add(&args, "--from-scratch --max-steps 1 --max-seq-length 1024 --device cuda --device-mem 2GiB "
                            "--host-mem 60GiB --profile rtx4090-1-drive --router-bias-update-rate 0.01");
        sys_args_add(&args, i == 0 ? "--experts-per-unit 2" : "");
        sys_run(&args, &process);
        CHECK(process.outcome.exit_status != 0);
        CHECK(sys_said(&process, i == 0 ? "give --experts-per-unit all" : "does not fit"));
    }
}

int main(void) {
    text_path = sys_write_text(20000);
    model = files_write_text("experts.json", config);
    test_same_bits();
    test_frozen();
    test_resumes();
    test_packed();
    test_refusals();
    test_bias();
    test_auto();
    test_auto_refused();
    test_auto_features();
    test_advice();
    return test_end();
}
