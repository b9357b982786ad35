/* Folders of adapters without a tokenizer, as PEFT saves them, named by --model: every command takes that of the model
 * that they name. Adapters of another rank or another model, and target names that experts have too, are told of. */
#include "base/file.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

static const char common[] = "--batch-size 1 --max-seq-length 16 --compute-threads 1 --optimizer-threads 1 "
                             "--host-mem 64MiB --max-steps 2 --eval-fraction 0.1 --learning-rate 1e-2";
static struct sys_args args;
static struct sys_process process;
static const char *text_path, *base, *peft, *told; /* the model; its adapter alone; the same with another template */

static void train(const char *model, const char *output, const char *more) {
    sys_args_train(&args, model, text_path, output);
    sys_args_add(&args, common);
    sys_args_add(&args, more);
    sys_run_well(&args, &process);
}

static void refuse(const char *says) {
    sys_run(&args, &process);
    if (process.outcome.exit_status != 2 || !sys_said(&process, says)) {
        sys_complain(&process, says);
    }
}

static void copy(const char *from, const char *to, const char *name) {
    REQUIRE_OK(ox_file_copy(plain_pathf("%s/%s", from, name), plain_pathf("%s/%s", to, name)));
}

static void make_folders(void) {
    char adapter[SYS_PATH_BYTES];
    train(sys_write_speaker(), "first", "--from-scratch");
    base = strdup(test_path("first/checkpoint-2"));
    train(base, "adapted", "--lora-r 3 --lora-target-modules all-linear");
    snprintf(adapter, sizeof adapter, "%s", test_path("adapted/checkpoint-2"));
    peft = strdup(files_make_folder("peft"));
    told = strdup(files_make_folder("told"));
    copy(adapter, peft, "adapter_config.json");
    copy(adapter, peft, "adapter_model.safetensors");
    copy(peft, told, "adapter_config.json");
    copy(peft, told, "adapter_model.safetensors");
    copy(base, told, "tokenizer.json");
    files_write_text("told/chat_template.jinja", "{{ messages[0]['content'] }} tells ");
}

/* What a command prints with these words, which the caller frees. */
static char *said(const char *command, const char *model, const char *adapter, const char *more) {
    sys_args_begin(&args, command);
    sys_args_word(&args, "--model=%s", model);
    sys_args_add(&args, more);
    if (adapter != NULL) {
        sys_args_word(&args, "--adapter=%s", adapter);
    }
    sys_run_well(&args, &process);
    return strdup(process.outcome.out);
}

static void check_same(const char *command, const char *more, bool adapts) {
    char *const named = said(command, peft, NULL, more);
    char *const beside = said(command, base, adapts ? peft : NULL, more);
    if (strcmp(named, beside) != 0) {
        printf("%s: with the adapter's name\n%s... and beside its model\n%s\n", command, named, beside);
        test_failure_count++;
    }
    free(named);
    free(beside);
}

static void test_tokenizer_of_base(void) {
    char words[SYS_PATH_BYTES + 128];
    snprintf(words, sizeof words, "--data %s --jsonl", test_path("rows.jsonl"));
    files_write_text("rows.jsonl", "{\"text\": \"the theme\"}\n");
    check_same("tokenize", words, false);
    snprintf(words, sizeof words, "--data %s --render", test_path("chats.jsonl"));
    files_write_text("chats.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"the\"}]}\n");
    check_same("tokenize", words, false);
    check_same("generate", "--chat --prompt the --max-new-tokens 4 --temperature 0", true);
    CHECK(sys_eval_loss(peft, text_path, "--max-seq-length 16 --host-mem 64MiB") ==
          sys_eval_loss(base, text_path, plain_pathf("--max-seq-length 16 --host-mem 64MiB --adapter %s", peft)));
    train(peft, "again", "");
    CHECK(files_exist(test_path("again/checkpoint-2/tokenizer.json")));
    CHECK(files_exist(test_path("again/checkpoint-2/adapter_model.safetensors")));
}

/* Training and evaluation beside a model take the adapter's own template, and a checkpoint keeps it. */
static void test_own_template_trained(void) {
    char words[SYS_PATH_BYTES + 128];
    snprintf(words, sizeof words, "--data %s --max-seq-length 64 --host-mem 64MiB", test_path("talks.jsonl"));
    files_write_text("talks.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"the\"}, "
                                    "{\"role\": \"assistant\", \"content\": \"theme\"}]}\n");
    const double own = sys_eval_loss(told, test_path("talks.jsonl"), "--max-seq-length 64 --train-on prompts");
    const double beside = sys_eval_loss(base, test_path("talks.jsonl"),
                                        plain_pathf("--max-seq-length 64 --train-on prompts --adapter %s", told));
    CHECK(own == beside);
    sys_args_train(&args, base, test_path("talks.jsonl"), "retold");
    sys_args_add(&args, "--max-seq-length 64 --host-mem 64MiB --max-steps 1 --eval-fraction 0 --train-on prompts");
    sys_args_word(&args, "--adapter=%s", told);
    sys_run_well(&args, &process);
    size_t bytes = 0;
    char *const kept = files_read("retold/checkpoint-1/chat_template.jinja", &bytes);
    CHECK(kept != NULL && strstr(kept, " tells ") != NULL);
    free(kept);
}

/* An adapter's own template decides, whether its model is named or not. */
static void test_own_template(void) {
    static const char more[] = "--chat --prompt the --max-new-tokens 1 --temperature 0 --format json";
    char *const own = said("generate", told, NULL, more), *const beside = said("generate", base, told, more);
    char *const plain = said("generate", base, peft, more);
    char *const measured = said("eval", base, peft, plain_pathf("--data %s --max-seq-length 16", text_path));
    CHECK(strstr(measured, " with the adapter ") != NULL && strstr(measured, "peft\n") != NULL);
    free(measured);
    const char *const ids = strstr(own, "\"ids\""), *const other = strstr(plain, "\"ids\"");
    CHECK(ids != NULL && other != NULL && strstr(beside, "\"ids\"") != NULL);
    CHECK(ids != NULL && strncmp(ids, strstr(beside, "\"ids\""), strcspn(ids, "]")) == 0);
    CHECK(ids != NULL && other != NULL && strncmp(ids, other, strcspn(ids, "]")) != 0);
    free(own);
    free(beside);
    free(plain);
}

static void test_shapes(void) {
    sys_args_begin(&args, "eval");
    sys_args_word(&args, "--model=%s", sys_write_model("llama"));
    sys_args_word(&args, "--adapter=%s", peft);
    sys_args_word(&args, "--data=%s", text_path);
    sys_args_add(&args, "--max-seq-length 16");
    refuse("peft/adapter_model.safetensors: tensor \"base_model.model.model.layers.0.self_attn.q_proj.lora_");
    CHECK(sys_said(&process, "but the model "));
    CHECK(sys_said(&process, "name the model that the adapter was trained with"));
    CHECK(!sys_said(&process, "config.json"));
    files_replace_text("peft/adapter_config.json", "\"r\": 3", "\"r\": 5");
    sys_args_begin(&args, "eval");
    sys_args_word(&args, "--model=%s", peft);
    sys_args_word(&args, "--data=%s", text_path);
    sys_args_add(&args, "--max-seq-length 16");
    refuse("peft/adapter_model.safetensors: tensor \"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight\" "
           "has the shape [3, ");
    CHECK(sys_said(&process, "but \"r\" of adapter_config.json in ") && sys_said(&process, "/peft expects [5, "));
}

static void plan(const char *model, const char *targets) {
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=tests/golden/%s", model);
    sys_args_word(&args, "--lora-target-modules=%s", targets);
    sys_args_add(&args, "--lora-r 2 --host-mem 64MiB --max-seq-length 16");
}

/* Dense layers and shared experts have modules of a name that experts have too. */
static void test_experts_left(void) {
    plan("qwen2_moe", "down_proj");
    sys_run_well(&args, &process);
    CHECK(sys_said(&process, "--lora-target-modules down_proj: adapts 4 modules, and leaves 12 tensors of the name as "
                             "they are, such as model.layers.1.mlp.experts.0.down_proj.weight"));
    plan("qwen2_moe", "q_proj");
    sys_run_well(&args, &process);
    CHECK(!sys_said(&process, "leaves"));
    plan("gpt_oss", "down_proj");
    refuse("experts have theirs by --lora-target-parameters");
    plan("mixtral", "all-linear");
    sys_run_well(&args, &process);
    CHECK(!sys_said(&process, "leaves"));
}

/* How often stderr has a text. */
static unsigned times(const char *text) {
    unsigned count = 0;
    for (const char *at = process.outcome.err; (at = strstr(at, text)) != NULL; at++) {
        count++;
    }
    return count;
}

/* What is said of a folder is said once, though an export asks for its format before it reads it. */
static void test_said_once(void) {
    char adapted[SYS_PATH_BYTES];
    sys_args_begin(&args, "export");
    sys_args_add(&args, "tests/golden/gpt_oss_mxfp4");
    sys_args_word(&args, "--output=%s", test_path("plain"));
    sys_run_well(&args, &process);
    CHECK(times("MXFP4") == 1);
    sys_args_train(&args, "tests/golden/gpt_oss_mxfp4", "tests/golden/gpt_oss_mxfp4/tokens.bytes", "mxfp4");
    sys_args_add(&args, common);
    sys_args_add(&args, "--data-format bytes --lora-r 2 --lora-target-modules q_proj");
    sys_run_well(&args, &process);
    CHECK(times("MXFP4") == 1);
    snprintf(adapted, sizeof adapted, "%s", test_path("mxfp4"));
    sys_args_begin(&args, "merge");
    sys_args_word(&args, "%s", adapted);
    sys_args_word(&args, "--output=%s", test_path("merged"));
    sys_run_well(&args, &process);
    CHECK(times("MXFP4") == 1);
    sys_args_begin(&args, "average");
    sys_args_word(&args, "%s", test_path("plain"));
    sys_args_word(&args, "%s", test_path("plain"));
    sys_args_word(&args, "--output=%s", test_path("mean"));
    refuse("plain: is given twice; give each folder once");
}

int main(void) {
    text_path = sys_write_text(24000);
    make_folders();
    test_tokenizer_of_base();
    test_own_template();
    test_own_template_trained();
    test_experts_left();
    test_shapes();
    test_said_once();
    return test_end();
}
