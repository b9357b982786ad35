/* Losses of routers as a user meets them: the same whatever the micro-batches of a step are, off unless asked for by a
 * flag or by config.json, and refused where they cannot be. */
#include "base/file.h"
#include "engine/hf/safetensors.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char config[] =
    "{\"model_type\":\"qwen3_moe\",\"vocab_size\":256,\"hidden_size\":32,\"intermediate_size\":40,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,"
    "\"num_experts\":6,\"num_experts_per_tok\":2,"
    "\"moe_intermediate_size\":20,\"tie_word_embeddings\":false,\"router_aux_loss_coef\":0.25%s}";
static const char common[] = "--max-seq-length 16 --max-steps 3 --compute-threads 1 --optimizer-threads 1 --host-mem "
                             "64MiB --eval-fraction 0 --learning-rate 1e-3";

static struct sys_args args;
static struct sys_process process;
static const char *text_path;

enum { STEPS = 3 };

static const char *write_config(const char *name, const char *more) {
    char text[1024];
    const int bytes = snprintf(text, sizeof text, config, more);
    REQUIRE_OK(ox_file_replace(test_path(name), text, (size_t)bytes));
    return test_path(name);
}

static void train(const char *model, const char *output, const char *more) {
    sys_args_train(&args, model, text_path, output);
    sys_args_add(&args, common);
    sys_args_add(&args, "--from-scratch");
    sys_args_add(&args, more);
}

/* A number of the last step. */
static double last(const char *output, const char *key) {
    char *text = NULL, *save = NULL;
    size_t bytes = 0;
    double value = NAN;
    REQUIRE_OK(ox_file_read(test_pathf("%s/metrics.jsonl", output), 1 << 20, &text, &bytes));
    for (char *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        json_t *const object = json_loads(line, 0, NULL);
        const char *const type = json_string_value(json_object_get(object, "type"));
        const json_t *const found = json_object_get(object, key);
        value = type != NULL && strcmp(type, "step") == 0 && found != NULL ? json_number_value(found) : value;
        json_decref(object);
    }
    free(text);
    return value;
}

/* Losses do not depend on how sequences are divided into micro-batches; other homes and ranks give the same bits. */
static void test_accumulation(const char *model) {
    static const char *const numbers[] = {"loss", "router_aux_loss", "router_z_loss", "experts_idle_share"};
    static const char losses[] = "--router-aux-loss-coef 0.5 --router-z-loss-coef 0.05";
    for (unsigned batch = 1; batch <= 4; batch *= 2) {
        train(model, test_pathf("batch-%u", batch), losses);
        sys_args_word(&args, "--batch-size=%u", batch);
        sys_args_word(&args, "--gradient-accumulation-steps=%u", 4 / batch);
        sys_run_well(&args, &process);
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers && batch > 1; i++) {
            char name[24];
            snprintf(name, sizeof name, "batch-%u", batch);
            const double one = last("batch-1", numbers[i]), several = last(name, numbers[i]);
            CHECK(fabs(one - several) <= 2e-6 * fabs(one));
        }
    }
    CHECK(strstr(process.outcome.err, "balance ") != NULL && strstr(process.outcome.err, "router z ") != NULL);
    static const char *const ways[] = {"--ranks 2", "--device-mem 32MiB --activation-tier host",
                                       "--weights-tier nvme --state-tier nvme"};
    train(model, "groups", losses);
    sys_args_add(&args, "--gradient-accumulation-steps 4 --sum-groups 2");
    sys_run_well(&args, &process);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        train(model, "way", losses);
        sys_args_add(&args, "--gradient-accumulation-steps 4 --sum-groups 2 --overwrite-output-dir");
        sys_args_add(&args, ways[i]);
        sys_args_drive(&args, "drive", "64MiB");
        sys_run_well(&args, &process);
        CHECK(sys_same_runs("groups", "way", STEPS));
    }
}

/* The page of a recording has a bar for each of the experts. */
static void test_page(const char *model) {
    train(model, "traced", "--trace on");
    sys_run_well(&args, &process);
    sys_args_begin(&args, "trace");
    sys_args_add(&args, "report");
    sys_args_add(&args, test_path("traced"));
    sys_args_word(&args, "--output=%s", test_path("traced.html"));
    sys_run_well(&args, &process);
    char *const page = files_read(test_path("traced.html"), NULL);
    unsigned bars = 0;
    const char *at = strstr(page, "<h2>Load of experts");
    while (at != NULL && (at = strstr(at + 1, "<title>expert ")) != NULL) {
        bars++;
    }
    CHECK(bars == 6);
    free(page);
}

/* config.json asks for the loss by output_router_logits, as transformers' trainers read it; a flag overrules it. */
static void test_asked(const char *model, const char *asking) {
    train(model, "plain", "");
    sys_run_well(&args, &process);
    train(model, "told", "--router-aux-loss-coef 0.25");
    sys_run_well(&args, &process);
    train(asking, "asked", "");
    sys_run_well(&args, &process);
    train(asking, "overruled", "--router-aux-loss-coef 0");
    sys_run_well(&args, &process);
    CHECK(last("told", "grad_norm") == last("asked", "grad_norm"));
    CHECK(last("plain", "grad_norm") == last("overruled", "grad_norm"));
    CHECK(last("plain", "grad_norm") != last("told", "grad_norm"));
}

static void test_refusals(const char *model) {
    static const struct {
        const char *more, *words;
    } cases[] = {
        {"--router-aux-loss-coef 0.1 --gradient-accumulation-steps 2 --tiles 2", "--tiles 2: a loss of routers"},
        {"--router-dtype model --dtype fp16", "--router-dtype model: with --dtype fp16"},
        {"--router-z-loss-coef -1", "router-z-loss-coef"},
        {"--router-bias-update-rate 0.1", "\"qwen3_moe\" have no bias of the choice"},
        {"--idle-experts skip --optimizer-overlap speculative", "--idle-experts skip needs to know how all tokens"},
        {"--idle-experts skip --speculative-units 1", "--speculative-units: --idle-experts skip needs to know"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        train(model, "refused", cases[i].more);
        sys_run(&args, &process);
        CHECK(process.outcome.exit_status != 0 && sys_said(&process, cases[i].words));
    }
    static const char *const of_mixtures[] = {"--router-z-loss-coef 0.1", "--router-dtype model",
                                               "--router-bias-update-rate 0.1", "--idle-experts skip"};
    for (size_t i = 0; i < sizeof of_mixtures / sizeof *of_mixtures; i++) {
        train(sys_write_model("llama"), "refused", of_mixtures[i]);
        sys_run(&args, &process);
        CHECK(process.outcome.exit_status != 0 && sys_said(&process, "has no mixture of experts"));
    }
}

/* Lion moves experts that no token chose. */
static void test_lion(const char *model) {
    static const char *const choices[] = {"--optimizer lion", "--optimizer lion --freeze *experts.*", ""};
    for (int i = 0; i < 3; i++) {
        train(model, plain_pathf("lion%d", i), choices[i]);
        sys_run_well(&args, &process);
        CHECK(sys_said(&process, "destroys experts that are seldom chosen") == (i == 0));
    }
}

enum { PADDED_EXPERTS = 12, PADDED_CHOSEN = 2, PADDED_STEPS = 2 };

/* What DeepSeek's rule makes of the biases, by the tokens that experts had in the steps of the only mixture; and that
 * these are those of the texts, without padding. */
static void expect_biases(const char *output, float biases[PADDED_EXPERTS]) {
    char *const text = files_read(test_pathf("%s/metrics.jsonl", output), NULL);
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        json_t *const object = json_loads(line, 0, NULL);
        const json_t *const tokens = json_object_get(json_object_get(object, "experts"), "tokens");
        json_int_t sum = 0;
        for (size_t e = 0; e < json_array_size(tokens); e++) {
            sum += json_integer_value(json_array_get(tokens, e));
        }
        for (size_t e = 0; e < json_array_size(tokens); e++) {
            const json_int_t above = json_integer_value(json_array_get(tokens, e)) * PADDED_EXPERTS - sum;
            biases[e] += above < 0 ? 0.01f : above > 0 ? -0.01f : 0.0f;
        }
        CHECK(tokens == NULL || sum == PADDED_CHOSEN * json_integer_value(json_object_get(object, "tokens")));
        json_decref(object);
    }
    free(text);
}

/* Padding is no token: not for biases that move, not for experts that count as idle. Sequences with more of it leave
 * the same of both, and what the rule says. */
static void test_padding(void) {
    static const char padded[] =
        "{\"model_type\":\"glm4_moe\",\"vocab_size\":%d,\"hidden_size\":64,\"intermediate_size\":40,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,"
        "\"n_routed_experts\":%d,\"num_experts_per_tok\":%d,\"n_group\":1,\"topk_group\":1,"
        "\"moe_intermediate_size\":32,\"n_shared_experts\":1,\"first_k_dense_replace\":1,"
        "\"tie_word_embeddings\":false}";
    static const char texts[] = "{\"text\":\"to b\"}\n{\"text\":\"or not\"}\n{\"text\":\"to be, t\"}\n"
                                "{\"text\":\"hat\"}\n";
    char config_text[1024];
    double idle = 0;
    snprintf(config_text, sizeof config_text, padded, SYS_VOCAB, PADDED_EXPERTS, PADDED_CHOSEN);
    const char *const model = files_write_text("padded.json", config_text);
    const char *const data = files_write_text("padded.jsonl", texts);
    const char *const speaker = sys_write_speaker();
    for (unsigned seq = 12; seq <= 48; seq *= 2) {
        const char *const output = plain_pathf("padded-%u", seq);
        float expected[PADDED_EXPERTS] = {0}, biases[PADDED_EXPERTS];
        sys_args_train(&args, model, data, output);
        sys_args_word(&args, "--tokenizer=%s", speaker);
        sys_args_word(&args, "--max-seq-length=%u", seq);
        sys_args_word(&args, "--max-steps=%d", PADDED_STEPS);
        sys_args_add(&args, "--from-scratch --packing pad --batch-size 2 --gradient-accumulation-steps 1 --host-mem "
                            "64MiB --eval-fraction 0 --router-bias-update-rate 0.01 --idle-experts skip");
        sys_run_well(&args, &process);
        struct ox_st_file *file;
        REQUIRE_OK(ox_st_open(test_pathf("%s/checkpoint-%d/model.safetensors", output, PADDED_STEPS), &file));
        const struct ox_st_entry *const entry = ox_st_find(file, "model.layers.1.mlp.gate.e_score_correction_bias");
        CHECK(entry != NULL && entry->count == PADDED_EXPERTS);
        REQUIRE_OK(ox_st_read_f32(file, entry, 0, PADDED_EXPERTS, biases));
        ox_st_close(&file);
        expect_biases(output, expected);
        CHECK(memcmp(biases, expected, sizeof biases) == 0);
        idle = seq == 12 ? last(output, "experts_idle_share") : idle;
        CHECK(idle > 0 && last(output, "experts_idle_share") == idle);
    }
}

/* A loss of routers that are all frozen is warned of. */
static void test_frozen_routers(const char *model) {
    static const char *const choices[] = {"--router-aux-loss-coef 0.1 --freeze *.mlp.gate.weight",
                                          "--router-z-loss-coef 0.1 --lora-r 2 --lora-target-modules q_proj",
                                          "--router-aux-loss-coef 0.1 --freeze *layers.0.mlp.gate.weight",
                                          "--freeze *.mlp.gate.weight"};
    for (int i = 0; i < 4; i++) {
        sys_args_begin(&args, "plan");
        sys_args_word(&args, "--model=%s", model);
        sys_args_add(&args, "--host-mem 64MiB --max-seq-length 16");
        sys_args_add(&args, choices[i]);
        sys_run_well(&args, &process);
        CHECK(sys_said(&process, "all routers are frozen, so that this loss moves only") == (i < 2));
    }
}

/* Trains to the end, and to a checkpoint from where another run goes on. */
static void check_resumed(const char *path, const char *whole, const char *parts, const char *more) {
    train(path, whole, more);
    sys_run_well(&args, &process);
    train(path, parts, "--save-steps 2 --save-total-limit 0");
    sys_args_add(&args, more);
    sys_run_well(&args, &process);
    sys_args_train(&args, path, text_path, parts);
    sys_args_add(&args, common);
    sys_args_add(&args, more);
    sys_args_word(&args, "--resume=%s", test_path(plain_pathf("%s/checkpoint-2", parts)));
    sys_run_well(&args, &process);
    char checkpoint[64];
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint-3", whole);
    CHECK(sys_same_checkpoint(checkpoint, plain_pathf("%s/checkpoint-3", parts)));
}

/* A bias that moves and experts that are skipped: of the whole step, wherever things are and however many ranks. */
static void test_routed(const char *path, const char *routed) {
    static const char *const ways[] = {"--ranks 2", "--device-mem 32MiB --activation-tier host",
                                       "--weights-tier nvme --state-tier nvme", "--optimizer-overlap held"};
    train(path, "even", routed);
    sys_args_add(&args, "--gradient-accumulation-steps 4 --sum-groups 2");
    sys_run_well(&args, &process);
    CHECK(last("even", "experts_idle_share") > 0);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        train(path, "way", routed);
        sys_args_add(&args, "--gradient-accumulation-steps 4 --sum-groups 2 --overwrite-output-dir");
        sys_args_add(&args, ways[i]);
        sys_args_drive(&args, "drive", "64MiB");
        sys_run_well(&args, &process);
        CHECK(sys_same_runs("even", "way", STEPS));
    }
}

/* A bias of the choice is saved, but is no parameter and has no state: all else is trained, saved and resumed. */
static void test_choice_bias(void) {
    static const char glm[] =
        "{\"model_type\":\"glm4_moe\",\"vocab_size\":256,\"hidden_size\":32,\"intermediate_size\":40,\"head_dim\":8,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"n_routed_experts\":64,"
        "\"num_experts_per_tok\":2,\"moe_intermediate_size\":20,\"n_shared_experts\":1,\"n_group\":1,\"topk_group\":1,"
        "\"first_k_dense_replace\":1,\"routed_scaling_factor\":1.5,\"norm_topk_prob\":true,"
        "\"tie_word_embeddings\":false}";
    const char *const path = test_path("glm.json");
    REQUIRE_OK(ox_file_replace(path, glm, strlen(glm)));
    static const char routed[] = "--router-bias-update-rate 0.05 --idle-experts skip";
    check_resumed(path, "whole", "parts", "");
    check_resumed(path, "whole-routed", "parts-routed", routed);
    CHECK(!sys_same_checkpoint("whole/checkpoint-3", "whole-routed/checkpoint-3"));
    test_routed(path, routed);
    train(path, "refused", "--router-bias-update-rate 0.1 --freeze layers.1");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status != 0 && sys_said(&process, "nothing else of the block"));
}

int main(void) {
    char plain[SYS_PATH_BYTES], asking[SYS_PATH_BYTES], text[SYS_PATH_BYTES];
    snprintf(plain, sizeof plain, "%s", write_config("plain.json", ""));
    snprintf(asking, sizeof asking, "%s", write_config("asking.json", ",\"output_router_logits\":true"));
    snprintf(text, sizeof text, "%s", sys_write_text(20000));
    text_path = text;
    test_accumulation(plain);
    test_page(plain);
    test_asked(plain, asking);
    test_refusals(plain);
    test_lion(plain);
    test_frozen_routers("tests/golden/qwen3_moe");
    test_choice_bias();
    test_padding();
    return test_end();
}
