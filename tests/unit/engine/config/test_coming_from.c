/* docs/coming-from.md names every key of DeepSpeed and FSDP, and options and values that exist here; a configuration
 * with a key of theirs is answered. */
#include "engine/config/config.h"

#include "base/file.h"
#include "base/log.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 96 };

static const char name_letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";

/* Copies the letters at `at` that belong to a name; returns how many there are. */
static size_t take_word(const char *at, const char *letters, char word[WORD_BYTES]) {
    const size_t bytes = strspn(at, letters);
    snprintf(word, WORD_BYTES, "%.*s", (int)bytes, at);
    return bytes;
}

/* Checks the options that a text between backticks names: "--nvme PATH:SIZE", "--sharding zero2". */
static unsigned check_options(const char *text) {
    static struct ox_config config;
    unsigned count = 0;
    for (const char *at = strstr(text, "--"); at != NULL; at = strstr(at, "--"), count++) {
        char name[WORD_BYTES], value[WORD_BYTES] = "";
        at += 2;
        at += take_word(at, name_letters, name);
        const struct ox_option *const option = ox_option_find_in(name, OX_CMD_TRAIN);
        if (option == NULL) {
            printf("`%s`: --%s is no option of train\n", text, name);
            test_failure_count++;
            continue;
        }
        if (*at == ' ' && at[1] != '-' && take_word(at + 1, name_letters, value) > 0) {
            ox_config_init(&config); /* a value in small letters or digits is meant as it is */
            REQUIRE_OK(ox_config_set(&config, option, value, text));
        }
    }
    return count;
}

/* Whether the page has the key as a word of its own between backticks, or as the end of one with a dot. */
static bool has_key(const char *page, const char *key) {
    const size_t bytes = strlen(key);
    for (const char *at = strstr(page, key); at != NULL; at = strstr(at + 1, key)) {
        if ((at[-1] == '`' || at[-1] == '.') && strchr("`.=", at[bytes]) != NULL) {
            return true;
        }
    }
    return false;
}

/* Every key of `object`, and of the mappings in it, is on the page. */
static void check_complete(const char *page, const json_t *object) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        if (!has_key(page, key)) {
            printf("the page does not have %s\n", key);
            test_failure_count++;
        }
        check_complete(page, value);
    }
}

/* Checks a key of another program; one that is nested answers for the mapping that it is in. */
static unsigned check_key(const char *text) {
    char key[WORD_BYTES];
    const size_t bytes = take_word(text, name_letters, key);
    if (bytes == 0 || (text[bytes] != '\0' && text[bytes] != '.')) {
        return 0; /* no key */
    }
    if (ox_option_find(key) == NULL && ox_foreign_answer(key, NULL, OX_CMD_TRAIN) == NULL) {
        printf("`%s`: a configuration with it gets no answer\n", text);
        test_failure_count++;
    }
    return 1;
}

/* Every name that another program has is an option, or is answered. Letters are answered together; so are members of an
 * adapter's configuration that are plain words, where they stand in a file. */
static void check_flags(void) {
    static const char *const plain[] = {"bias",       "help",           "commands", "positional", "training_script",
                                        "training_script_args"};
    json_t *const programs = json_load_file("tests/golden/foreign_flags.json", 0, NULL), *names, *name;
    const char *program;
    size_t idx, count = 0;
    json_object_foreach(programs, program, names) {
        json_array_foreach(names, idx, name) {
            const char *const text = json_string_value(name);
            bool known = strlen(text) <= 2 || ox_option_find(text) != NULL ||
                         ox_foreign_answer(text, NULL, OX_CMD_TRAIN) != NULL;
            for (unsigned i = 0; i < sizeof plain / sizeof *plain; i++) {
                known = known || strcmp(text, plain[i]) == 0;
            }
            if (!known) {
                printf("%s of %s gets no answer\n", text, program);
                test_failure_count++;
            }
            count++;
        }
    }
    json_decref(programs);
    CHECK(count > 1300);
}

/* ---- whole files ------------------------------------------------------------------------------------ */

static char lines[1 << 16]; /* of the log */

static void take_line(void *context, enum ox_log_level level, const char *line) {
    (void)context;
    (void)level;
    const size_t used = strlen(lines);
    snprintf(lines + used, sizeof lines - used, "%s\n", line);
}

/* Gives a file to --config of train: it must be refused with these words, after lines with each of `said`. */
static void refuse_file(const char *text, const char *words, const char *const *said) {
    static struct ox_config config;
    lines[0] = '\0';
    ox_config_init(&config);
    ox_log_set_sink(take_line, NULL);
    const enum ox_status status = ox_config_load_yaml(&config, files_write_text("file", text), OX_CMD_TRAIN);
    ox_log_set_sink(NULL, NULL);
    if (status != OX_E_CONFIG || strstr(ox_error_text(), words) == NULL) {
        printf("expected '%s', got %s\n", words, ox_error_text());
        test_failure_count++;
    }
    for (; *said != NULL; said++) {
        if (strstr(lines, *said) == NULL) {
            printf("'%s' is not in:\n%s\n", *said, lines);
            test_failure_count++;
        }
    }
}

static void test_files(void) {
    static const char *const deepspeed[] = {
        "train_micro_batch_size_per_gpu: 4               --per-device-train-batch-size 4\n",
        "gradient_accumulation_steps: 8                  --gradient-accumulation-steps 8, times the number of ranks\n",
        "zero_optimization.stage: 3                      --sharding zero3\n",
        "zero_optimization.offload_optimizer.nvme_path: /d  --nvme /d:SIZE\n", "fp16.enabled: false",
        "optimizer.params.lr: 1e-5                       --learning-rate 1e-5\n",
        "train_batch_size: auto                          is taken from elsewhere there; --global-batch-size says it "
        "here\n",
        "as flags: --per-device-train-batch-size 4 --gradient-accumulation-steps 8 --sharding zero3 --nvme /d:SIZE "
        "--learning-rate 1e-5\n", NULL};
    static const char *const axolotl[] = {
        "base_model: a/b                                 use --model FOLDER; nothing is downloaded\n",
        "datasets.path: c/d                              use --data PATH;",
        "adapter: lora                                   is a folder here; --lora-r N begins a fresh adapter\n",
        "lora_target_modules: [q, ...]",
        "optimizer: adamw_8bit                           use adamw with --moments q8\n",
        "seed:                                           asks for nothing; leave it out\n",
        "evals_per_epoch: 4                              --eval-steps 0.083333: 4 an epoch, 3 epochs\n",
        "saves_per_epoch: 1                              --save-steps 0.333333: 1 an epoch, 3 epochs\n",
        "as flags: --model FOLDER --data PATH --lora-target-modules q --optimizer adamw --moments q8 "
        "--per-device-train-batch-size 2 --eval-steps 0.083333 --save-steps 0.333333 --num-train-epochs 3\n",
        "its defaults of what it leaves out, where ours are others: --weight-decay 0 --adam-beta2 0.999\n", NULL};
    static const char *const trainer[] = {
        "eval_strategy: epoch                            --eval-strategy epoch, the same\n",
        "as flags: --model FOLDER --num-train-epochs 2 --eval-strategy epoch --dtype bf16 --moments bf16\n",
        "ours are others: --weight-decay 0 --adam-beta2 0.999 --per-device-train-batch-size 8 --learning-rate 5e-5\n",
        NULL};
    static const char *const several[] = {"  learnin_rate: 1", "did you mean 'learning_rate'?", "  bf16: True",
                                          "--dtype bf16\n", NULL};
    static const char *const sections[] = {
        "training.lr: 1e-5                               --learning-rate 1e-5, the same\n",
        "training.report_to: wandb                       use tensorboard: nothing is sent anywhere",
        "as flags: --learning-rate 1e-5\n", NULL};
    static const char *const none[] = {NULL};
    refuse_file("{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": 4, "
                "\"gradient_accumulation_steps\": 8, \"fp16\": {\"enabled\": false}, "
                "\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\", "
                "\"nvme_path\": \"/d\"}}, \"optimizer\": {\"params\": {\"lr\": 1e-5}}}",
                "is a configuration of DeepSpeed", deepspeed);
    refuse_file("base_model: a/b\ndatasets:\n  - path: c/d\n    type: alpaca\nadapter: lora\n"
                "lora_target_modules:\n  - q\n  - k\noptimizer: adamw_8bit\nmicro_batch_size: 2\nseed:\n"
                "evals_per_epoch: 4\nsaves_per_epoch: 1\nnum_epochs: 3\n", "is a configuration of axolotl", axolotl);
    refuse_file("model_name_or_path: a/b\nfinetuning_type: full\nnum_train_epochs: 2\neval_strategy: epoch\n"
                "pure_bf16: true\n", "is a configuration of LLaMA-Factory", trainer);
    refuse_file("learnin_rate: 1\nbf16: True\nseed: 1\n", "2 keys are not options of `offload train`", several);
    refuse_file("{\"architectures\": [\"L\"], \"hidden_size\": 1}", "is the config.json of a model; give it", none);
    refuse_file("model: m\ntraining:\n  lr: 1e-5\n  report_to: [wandb]\n", "2 keys are not options", sections);
    refuse_file("{\"model\": {\"vocab\": {\"a\": 1, \"b\": 2}}, \"pre_tokenizer\": null}", "is a tokenizer.json", none);
    refuse_file("{ // c\n\"model\": \"m\"}", "'//' begins no comment in YAML", none);
    refuse_file("{\"peft_type\": \"LORA\", \"r\": 8}", "is the adapter_config.json of an adapter", none);
    refuse_file("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n", "a configuration of Accelerate",
                none);
}

/* A file with every key of a program: all lines have an answer. */
static void check_whole(const char *program, const json_t *keys, const char *words) {
    static const char *const none[] = {NULL};
    char *const text = json_dumps(keys, 0);
    refuse_file(text, words, none);
    if (strstr(lines, "is not known here") != NULL || strstr(lines, "did you mean") != NULL) {
        printf("%s has keys without an answer:\n%s\n", program, lines);
        test_failure_count++;
    }
    free(text);
}

/* Calls `check` with each text between backticks; returns the sum of its results. */
static unsigned each_code(char *text, unsigned (*check)(const char *)) {
    unsigned count = 0;
    for (char *at = strchr(text, '`'); at != NULL; at = strchr(at + 1, '`')) {
        char *const end = strchr(at + 1, '`');
        CHECK(end != NULL);
        if (end == NULL) {
            break;
        }
        *end = '\0';
        count += check(at + 1);
        at = end;
    }
    return count;
}

int main(void) {
    char *page = NULL, *save = NULL;
    size_t bytes = 0;
    unsigned option_count = 0, key_count = 0;
    bool has_keys = false;
    REQUIRE_OK(ox_file_read("docs/coming-from.md", 1 << 20, &page, &bytes));
    json_t *const programs = json_load_file("tests/golden/foreign_keys.json", 0, NULL), *keys;
    const char *name;
    CHECK(json_object_size(programs) == 3);
    json_object_foreach(programs, name, keys) {
        check_complete(page, keys);
        if (strcmp(name, "fsdp") != 0) { /* arguments of a function, never a file */
            check_whole(name, keys, strcmp(name, "deepspeed") == 0 ? "DeepSpeed" : "are not options");
        }
    }
    json_decref(programs);
    check_flags();
    test_files();
    for (char *line = strtok_r(page, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        char *const cell = line[0] == '|' ? strrchr(line, '|') : NULL; /* the end of the row */
        if (line[0] == '#') {
            has_keys = strstr(line, "Beside it") != NULL || strstr(line, "Accelerate") != NULL;
        }
        if (cell == NULL) {
            option_count += each_code(line, check_options);
            continue;
        }
        *cell = '\0';
        char *const last = strrchr(line, '|');
        CHECK(last != NULL && last > line);
        option_count += each_code(last, check_options);
        *last = '\0';
        char *const second = strchr(line + 1, '|');
        if (second != NULL) {
            *second = '\0';
        }
        key_count += has_keys ? each_code(line, check_key) : 0;
    }
    free(page);
    printf("%u options, %u keys\n", option_count, key_count);
    CHECK(option_count > 60 && key_count > 40);
    return test_end();
}
