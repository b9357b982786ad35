/* The command as users see it: exit statuses, one-line errors, help, and what goes to which stream. The
 * program is $OX_BIN, else build/offload. */
#include "base/file.h"
#include "engine/config/config.h"
#include "engine/data/data.h"
#include "engine/text/tokenizer.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sys_args args;
static struct sys_process process;
static const struct sys_outcome *const last = &process.outcome;

/* stdout goes to a file, which is not read; NULL: to last->out. */
static void run_into(const char *line, const char *out_path) {
    sys_args_begin(&args, line);
    args.out_path = out_path;
    sys_run(&args, &process);
}

static void run(const char *line) {
    run_into(line, NULL);
}

/* Expects exit status 2, nothing on stdout, one line "offload: ..." with `words` on stderr. */
/* Flags of other programs are all answered in one try, a line each. */
static void test_several_foreign(void) {
    static const char *const cases[][4] = {
        {"train --fp16_full_eval --num_beams 3 --group_by_length True --epochs x", "offload: '--fp16_full_eval': use",
         "\noffload: '--group_by_length': does not exist", "\noffload: --num-train-epochs"},
        {"train --frobnicate 3 --gizmo=4", "offload: '--frobnicate' is not a flag", "\noffload: '--gizmo=4'", ""}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        run(cases[i][0]);
        for (int k = 1; k < 4; k++) {
            if (last->exit_status != 2 || strstr(last->err, cases[i][k]) == NULL) {
                printf("offload %s: expected status 2 and '%s', got %d:\n%s\n", cases[i][0], cases[i][k],
                       last->exit_status, last->err);
                test_failure_count++;
            }
        }
    }
}

static void refused(const char *line, const char *words) {
    run(line);
    const char *const newline = strchr(last->err, '\n');
    const bool one_line = newline != NULL && newline[1] == '\0';
    if (last->exit_status != 2 || last->out[0] != '\0' || !one_line || strncmp(last->err, "offload: ", 9) != 0 ||
        strstr(last->err, words) == NULL) {
        printf("offload %s: expected status 2 and '%s', got %d:\n%s%s\n", line, words, last->exit_status,
               last->out, last->err);
        test_failure_count++;
    }
}

/* Expects exit status 0, `words` on stdout, nothing on stderr. */
static void answers(const char *line, const char *words) {
    run(line);
    if (last->exit_status != 0 || last->err[0] != '\0' || strstr(last->out, words) == NULL) {
        printf("offload %s: expected '%s', got %d:\n%s%s\n", line, words, last->exit_status, last->out,
               last->err);
        test_failure_count++;
    }
}

static void test_usage(void) {
    run("");
    CHECK(last->exit_status == 2 && last->out[0] == '\0' && strstr(last->err, "Usage: offload") != NULL);
    refused("docter", "'docter' is not a command; did you mean `offload doctor`?");
    refused("zzzzzzzzzzz", "`offload help` lists them");
    refused("help docter", "did you mean `offload doctor`?");
    refused("help doctor version", "'version' is one too many");
    refused("doctor --formt json", "did you mean '--format'?");
    refused("doctor --zzzzzzzz", "`offload help doctor` lists them");
    refused("doctor -format json", "'-format' has one dash; write --format");
    refused("doctor --seed 1", "`offload doctor` does not take --seed");
    refused("doctor --format", "--format has no value");
    refused("doctor --format --nvme /tmp", "--format has no value");
    refused("doctor --format yaml", "--format: 'yaml' is not one of text, json");
    refused("doctor --format json --format text", "--format is given twice");
    refused("doctor extra", "'extra' is unexpected");
    refused("doctor --config /nonexistent.yaml", "/nonexistent.yaml");
    refused("doctor --config", "--config has no value");
    refused("version --format json", "`offload version` does not take --format");
    refused("version extra", "'extra' is unexpected");
    refused("export m --format gguf", "--format: 'gguf' is not one of text, json; llama.cpp's convert_hf_to_gguf.py");
    refused("train --report-to tensorboard,prometheus", "is not one of none, tensorboard, prometheus, all; use all");
    refused("train --report-to wandb", "wandb by the script in docs/watching.md");
    refused("trace report r --format gguf", "--format: 'gguf' is not one of text, json, chrome, perfetto");
}

static void test_short_flags(void) {
    answers("-v", "offload ");
    answers("-V", "offload ");
    answers("-h", "Usage: offload COMMAND");
}

static void test_run_resumed(void) {
    char words[512];
    files_make_folder("rr/checkpoint-1");
    files_write_text("rr/run.json", "{}");
    snprintf(words, sizeof words, "train --model m --data d --output o --resume %s", test_path("rr"));
    refused(words, "/rr: is the folder of a run; to go on with it, give --config ");
    /* The folder says what the options were, also one of its checkpoints. */
    files_write_text("rr/config.resolved.yaml", "");
    snprintf(words, sizeof words, "train --resume %s", test_path("rr"));
    refused(words, "--model is missing; --config ");
    snprintf(words, sizeof words, "train --resume %s/", test_path("rr/checkpoint-1"));
    refused(words, "rr/checkpoint-1//../config.resolved.yaml has the options of the run");
}

static void test_values_missing(void) {
    refused("train --dtype", "--dtype has no value; give one of fp32|bf16|fp16 after it");
    refused("train --no-from-scratch 1", "--no-from-scratch takes no value; write --no-from-scratch");
    refused("train --freeze=", "--freeze has no value, so nothing is frozen; name tensors, or leave it out");
    refused("train -x", "'-x': flags are words here; `offload help train` lists them");
}

/* Commands, flags and ways to write them that people bring from elsewhere: what to write instead. */
static void test_foreign_words(void) {
    static const struct {
        const char *line, *text;
    } cases[] = {
        {"finetune --model m", "'finetune' is not a command; use `offload train`"},
        {"fine-tune", "use `offload train`"},
        {"sft", "use `offload train`"},
        {"pretrain", "use `offload train`"},
        {"run", "use `offload train`"},
        {"chat", "use `offload generate --chat`"},
        {"infer", "use `offload generate`"},
        {"merge-lora", "use `offload merge ADAPTER --output DIR`, which adds an adapter to its model"},
        {"unmerge", "an adapter and its model stay as they are"},
        {"evaluate", "use `offload eval`"},
        {"serve", "does not exist: nothing is served; `offload export` writes a folder"},
        {"convert", "use `offload export`"},
        {"download", "does not exist: nothing is downloaded"},
        {"dpo", "use `offload train --dpo`"},
        {"info", "use `offload inspect`"},
        {"run.yaml", "write `offload train --config run.yaml`"},
        {"--model m", "'--model' stands where a command does; write `offload train --model ...`"},
        {"trian", "did you mean `offload train`?"},
        {"generate --model m --max_tokens 5", "'--max_tokens': use --max-new-tokens N"},
        {"eval --model m --data d --max_samples 5", "use --max-windows N, in sequences"},
        {"inspect m --bf16", "`offload inspect` does not take --bf16, nor anything like it; remove it"},
        {"generate -m m", "'-m': use --model FOLDER"},
        {"eval --early_stopping_patience 3", "`offload eval` does not take --early-stopping-patience; remove it"},
        {"top --gradient_checkpointing r", "`offload top` does not take --gradient_checkpointing, nor"},
        {"generate --num_beams 4", "does not exist: --temperature 0 is greedy, else tokens are drawn"},
        {"eval --threads 4", "use --compute-threads N"},
        {"eval --load_in_4bit", "weights are read as they are; leave it out"},
        {"generate --model m -o x", "'-o': is stdout: write `offload generate ... > FILE`"},
        {"generate --model -o x", "--model has no value; one that begins with a dash is written --model=-o"},
        {"generate -model m", "'-model' has one dash; write --model"},
        {"generate --model =m", "--model: '=m' has a blank before its '='; write --model=VALUE or --model VALUE"},
        {"generate model=m", "'model=m' has no dashes; write --model=m"},
        {"generate m hello", "'hello' is one too many; write --prompt 'hello'"},
        {"generate m --model n", "--model is given twice; give it once"},
        {"eval m", "--data is missing"},
        {"eval run.yaml", "'run.yaml' has no flag before it; write --config run.yaml"},
        {"train --max_steps -1 --resume", "--model is missing"},
        {"generate \u2014model m", "begins with a dash that a word processor or a web page made; type two plain"},
        {"generate --model \u201cm\u201d", "begins with a quotation mark that a word processor or a web page made"},
        {"generate --mod\u00a0el m", "its name has a letter that is none of a-z, 0-9 and -; type it anew"},
        {"train model data.jsonl", "'model' has no flag before it; still missing: --model PATH --data PATH --output"},
        {"train run.yml", "'run.yml' has no flag before it; write --config run.yml"},
        {"train --data d --nvme /tmp 4GiB", "'4GiB' has no flag before it; write --nvme /tmp:4GiB"},
        {"train --lr:1", "'--lr:1' is not a flag; write --lr 1"},
        {"train --epochs three", "--num-train-epochs (given as --epochs): 'three' is not a number"},
        {"train --batch-size 0", "--per-device-train-batch-size (given as --batch-size): 0 is out of range"},
        {"train --num_train_epochs x", "offload: --num-train-epochs: 'x' is not a number"},
        {"train --no-bf16", "there is nothing to switch off; leave it out"},
        {"train --", "'--' stands alone"},
        {"inspect a b", "'b' is one too many; `offload inspect` takes one at a time"},
        {"trace /tmp", "write `offload trace report /tmp`"},
        {"eval --lora x", "--adapter DIR takes an adapter as it is"},
        {"export m --output o --quantize q4", "weights are written in fp32, bf16 or fp16 (--save-dtype)"},
        {"train help", "`offload help train` shows what it takes"},
        {"train --data a b", "'b' has no flag before it; write --data before each of several"},
        {"plan --model m --max-steps=5 10", "'10' has no flag before it; --max-steps takes one value"},
        {"train trainer.max_steps=5", "'trainer.max_steps=5' is unexpected; options are written as --NAME VALUE"},
        {"train -j4", "'-j4': flags are words here"},
        {"train --confg a.yaml", "did you mean '--config'?"},
        {"train --resume=", "--resume-from-checkpoint has no value; give latest or the folder of a checkpoint"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        refused(cases[i].line, cases[i].text);
    }
    answers("help train", "What most calls need\n  --model PATH");
}

/* What may have been meant, where a flag, a name or a path is not there. */
static void test_meant(void) {
    static const struct {
        const char *line, *text;
    } cases[] = {
        {"train tests/golden/qwen3 --output o", "has no flag before it; write --model tests/golden/qwen3; still "
                                               "missing: --data PATH"},
        {"train --model m README.md", "'README.md' has no flag before it; write --data README.md; still missing: "
                                      "--output PATH"},
        {"train --num_beams 4", "`offload train` does not take --num_beams, nor anything like it; remove it"},
        {"train --model tests/golden/qwen3 --output o --data REDME.md",
         "there is no such file or folder; did you mean README.md?"},
        {"generate --model tests/goldn/qwen3 --prompt a", "did you mean tests/golden/qwen3?"},
        {"plan --model llama-9b", "or to `offload plan` the name of a shape: gpt2, gpt2-medium"},
        {"plan --model Qwen/Qwen3-4B", "then --model Qwen3-4B; `offload plan --model qwen3-4b` needs no files"},
        {"tokenize --data README.md", "--model is missing; give a folder of Hugging Face files, or --tokenizer"},
        {"init --like llama-9b --output o", "llama-2-7b, llama-2-13b"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        refused(cases[i].line, cases[i].text);
    }
}

/* With --strict a drive that no run could use fails the command, after the report; without, it is only a warning. */
static void test_doctor_strict(void) {
    answers("doctor --nvme /nonexistent", "drive              /nonexistent: unusable");
    answers("doctor --strict --nvme /var/tmp:1MiB", "Drives");
    run("doctor --strict --nvme /nonexistent --nvme /proc");
    CHECK(last->exit_status == 1);
    CHECK(strstr(last->out, "  UNUSABLE drive: /nonexistent: is not a folder: No such") != NULL);
    CHECK(strstr(last->err, "offload: --strict: 2 things are unusable for a run: drive: /nonexistent: is not") ==
          last->err);
    run("doctor --strict --nvme /var/tmp:1000TiB");
    CHECK(last->exit_status == 1 && strstr(last->err, "/var/tmp has ") != NULL &&
          strstr(last->err, " free, less than the 1000 TiB of --nvme; make room") != NULL);
    run("doctor --format json --nvme /nonexistent");
    CHECK(last->exit_status == 0 && strstr(last->out, "\"unusable\": true") != NULL);
}

/* Help fits COLUMNS where no terminal says how wide it is, except a word that is longer. */
static void help_fits(const char *line, const char *columns, size_t expected) {
    setenv("COLUMNS", columns, 1);
    answers(line, "offload");
    for (const char *at = last->out; *at != '\0';) {
        const size_t len = strcspn(at, "\n");
        CHECK(len <= expected || memchr(at + 38, ' ', len - 38) == NULL);
        at += len + (at[len] == '\n');
    }
    unsetenv("COLUMNS");
}

static void test_help(void) {
    help_fits("help train", "72", 72);
    help_fits("help train", "zero", 80);
    help_fits("help", "300", 100);
    help_fits("help plan", "5", 60);
    answers("help", "offload doctor");
    answers("--help", "offload doctor");
    answers("help doctor", "--nvme PATH[:SIZE]");
    answers("doctor --help", "--nvme PATH[:SIZE]");
    answers("doctor --zzz -h", "--config FILE");
    CHECK(strstr(last->out, "--learning-rate") == NULL);
    answers("version", "offload ");
    answers("--version", "offload ");
}

/* True when the JSON report on stdout has an item of this name whose value begins with `value`. */
static bool reports(const char *name, const char *value) {
    json_error_t error;
    json_t *const report = json_loads(last->out, JSON_REJECT_DUPLICATES, &error);
    CHECK(json_is_array(report));
    bool found = false;
    for (size_t i = 0; i < json_array_size(report); i++) {
        const json_t *const item = json_array_get(report, i);
        const char *const item_name = json_string_value(json_object_get(item, "name"));
        const char *const item_value = json_string_value(json_object_get(item, "value"));
        CHECK(item_name != NULL && item_value != NULL && json_object_get(item, "group") != NULL);
        CHECK((json_object_get(item, "warning") == NULL) == (json_object_get(item, "remedy") == NULL));
        found = found || (item_name != NULL && item_value != NULL && strcmp(item_name, name) == 0 &&
                          strncmp(item_value, value, strlen(value)) == 0);
    }
    json_decref(report);
    return found;
}

static void test_doctor(void) {
    answers("doctor", "OpenBLAS core");
    answers("doctor --format=json --nvme /nonexistent", "\"kernel\"");
    CHECK(reports("drive", "/nonexistent: unusable"));
    CHECK(reports("RAM", ""));
    CHECK(!reports("this folder", ""));

    /* Settings come from defaults, then the file, wherever --config is on the line, then flags. */
    char line[2048];
    const char *const yaml = files_write_text("run.yaml", "format: json\nnvme:\n  - /from-file\n");
    snprintf(line, sizeof line, "doctor --config %s", yaml);
    answers(line, "\"kernel\"");
    CHECK(reports("drive", "/from-file"));
    snprintf(line, sizeof line, "doctor --nvme /from-flag --config=%s", yaml);
    answers(line, "\"kernel\"");
    CHECK(reports("drive", "/from-flag"));
    CHECK(!reports("drive", "/from-file"));
    snprintf(line, sizeof line, "doctor --format text --config %s", yaml);
    answers(line, "Processor\n");
    snprintf(line, sizeof line, "doctor --config %s --config %s", yaml, yaml);
    refused(line, "--config is given twice");

    setenv("OPENBLAS_CORETYPE", "Haswell", 1);
    answers("doctor", "remedy: unset OPENBLAS_CORETYPE");
    unsetenv("OPENBLAS_CORETYPE");
}

/* Results that cannot be written are an error. */
static void test_full_stdout(void) {
    if (access("/dev/full", W_OK) == 0) {
        run_into("version", "/dev/full");
        CHECK(last->exit_status == 1 && strstr(last->err, "could not be written") != NULL);
    }
}

/* Runs a line as process `idx` of two that mpirun has started; the answer on stderr must be `says`. */
static void run_process(const char *line, const char *idx, const char *says) {
    setenv("OMPI_COMM_WORLD_RANK", idx, 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", idx, 1);
    run(line);
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("OMPI_COMM_WORLD_LOCAL_RANK");
    if (last->exit_status != 2 || last->out[0] != '\0' || strcmp(last->err, says) != 0) {
        printf("process %s: offload %s: expected \"%s\", got %d:\n%s%s\n", idx, line, says, last->exit_status,
               last->out, last->err);
        test_failure_count++;
    }
}

/* Every command but train is one process, whatever pods, containers and other programs have left in the environment:
 * it prints its result, or its error without the name of a process. */
static void test_left_over(void) {
    static const char *const left_over[][3] = {{"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1"},
                                               {"RANK=x", "LOCAL_RANK=7", NULL},
                                               {"WORLD_SIZE=4", NULL, NULL},
                                               {"OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4", NULL},
                                               {"PMI_RANK=1", "PMI_SIZE=0", NULL},
                                               {"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_LOCALID=1"}};
    static const char *const lines[] = {"plan --model /nonexistent", "eval --model /nonexistent --data d",
                                        "inspect /nonexistent", "export /nonexistent --output o",
                                        "generate --model /nonexistent", "tokenize --model /nonexistent --data d"};
    for (unsigned i = 0; i < sizeof left_over / sizeof *left_over; i++) {
        char names[3][64];
        for (int k = 0; k < 3 && left_over[i][k] != NULL; k++) {
            snprintf(names[k], sizeof names[k], "%s", left_over[i][k]);
            *strchr(names[k], '=') = '\0';
            setenv(names[k], strchr(left_over[i][k], '=') + 1, 1);
        }
        for (unsigned k = 0; k < sizeof lines / sizeof *lines; k++) {
            refused(lines[k], "offload: ");
            CHECK(strstr(last->err, "/nonexistent") != NULL && strstr(last->err, "process ") == NULL);
        }
        answers("doctor", "OpenBLAS core");
        answers("help plan", "--model");
        for (int k = 0; k < 3 && left_over[i][k] != NULL; k++) {
            unsetenv(names[k]);
        }
    }
}

/* Where mpirun has started several processes of a command that is one, the first one works; the others say so. */
static void test_one_of_several(void) {
    static struct sys_args each, all;
    sys_args_begin(&each, "tokenize");
    sys_args_add(&each, "--model tests/golden/tokenizers/qwen.json --data tests/golden/README.md");
    sys_args_word(&each, "--output=%s", test_path("once.bin"));
    sys_mpi_begin(&all, 3, &each, SYS_MPI_END_OTHERS);
    sys_run_well(&all, &process);
    const char *const first = strstr(process.outcome.out, " tokens | ");
    CHECK(first != NULL && strstr(first + 1, " tokens | ") == NULL);
    CHECK(sys_said(&process, "process 1 of 3: `offload tokenize` is one process; of those that mpirun has started the "
                             "first one works") && sys_said(&process, "process 2 of 3: "));
}

/* The first of several processes speaks; a failure of another names it. */
static void test_processes(void) {
    static const char train[] = "train --model m --data d --output o --max-steps 1";
    sys_mpi_allow_leaks();
    run_process("train --bogus", "0", "offload: process 0 of 2: '--bogus' is not a flag of `offload train`; `offload "
                                      "help train` lists them\n");
    run_process("train --bogus", "1", "offload: process 1 of 2: '--bogus' is not a flag of `offload train`; `offload "
                                      "help train` lists them\n"); /* where the first one has not ended it */
    if (sys_mpi_missing() == NULL) {
        static const char left_over[] =
            "say that mpirun has started 2 processes that train together, but MPI knows of 1; start them with mpirun "
            "-np 2, or with srun --mpi=pmix; if these variables are left over in this shell or container, and this "
            "process is alone: `unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK "
            "OMPI_COMM_WORLD_LOCAL_SIZE`\n";
        for (int i = 0; i < 2; i++) { /* each says so, because there may be no other one */
            char idx[] = {(char)('0' + i), '\0'}, says[640];
            snprintf(says, sizeof says, "offload: process %d of 2: OMPI_COMM_WORLD_RANK=%d and OMPI_COMM_WORLD_SIZE=2 "
                     "%s", i, i, left_over);
            run_process(train, idx, says);
        }
    }
    if (sys_mpi_missing() == NULL) {
        test_one_of_several();
    }
    setenv("RANK", "0", 1);
    refused("train --model m --data d --output o", "RANK is set, but WORLD_SIZE is not; a launcher sets both; where "
            "none has started this, `unset RANK` first");
    unsetenv("RANK");
    test_left_over();
}

/* What has no flag is named as the usage line names it. */
static void test_missing(void) {
    static const char *const cases[][2] = {
        {"eval", "PATH is missing; give a folder"}, {"export", "PATH is missing"}, {"generate", "PATH is missing"},
        {"inspect", "PATH is missing"}, {"top", "PATH is missing"}, {"average", "PATH is missing"},
        {"compare", "RUN is missing"}, {"merge --output o", "DIR is missing"}, {"store", "remove is missing"},
        {"store remove", "PATH is missing"}, {"trace", "report|export is missing"},
        {"trace report", "PATH is missing"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        refused(cases[i][0], cases[i][1]);
    }
}

static void test_tokenize(void) {
    refused("tokenize", "--model is missing");
    refused("tokenize --model tests/golden/tokenizers/qwen.json", "--data is missing");
    refused("tokenize --model /nonexistent --data x", "/nonexistent");
    refused("tokenize --model tests/golden/tokenizers/qwen.json --jsonl --data /nonexistent", "/nonexistent");
    answers("tokenize --model tests/golden/tokenizers/qwen.json --data tests/golden/README.md --quiet",
            " tokens | ");
    answers("tokenize --model tests/golden/tokenizers/qwen.json --data tests/golden/README.md --quiet --format json",
            "\"tokens\":");
    refused("tokenize --model tests/golden/tokenizers --data x --render", "no chat template");
    refused("tokenize --model tests/golden/chat/chatml --data /nonexistent --render", "/nonexistent");
    answers("tokenize --model tests/golden/chat/chatml --data tests/golden/chat/rendered.jsonl --render",
            "{\"rendered\":\"<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n\"}\n{\"error\":\"line ");
    answers("tokenize --model tests/golden/tokenizers/qwen.json --data tests/golden/chat/rendered.jsonl --render "
            "--chat-template gemma", "{\"rendered\":\"<start_of_turn>user\\nHi<end_of_turn>\\n");
    refused("tokenize --model tests/golden/chat/chatml --data x --render --chat-template klingon", "klingon");
    answers("tokenize --model tests/golden/tokenizers/llama3.json --jsonl --data tests/golden/tokenizers/llama3.jsonl",
            "{\"ids\":[]}\n{\"ids\":[");
}

/* Ids get BOS and EOS only where they are asked for and the text has not got them. What training would add is said of a
 * token file, which it takes as it is. One file is read. */
static void test_added_ends(void) {
    static const char words[] = "tokenize --model tests/golden/chat/chatml";
    const char *const rows = files_write_text("ends.jsonl", "{\"text\":\"a\"}\n{\"text\":\"a<|im_end|>\"}\n");
    const char *const text = files_write_text("ends.txt", "a"), *const file = test_path("ends.bin");
    answers(plain_pathf("%s --jsonl --data %s", words, rows), "{\"ids\":[64]}\n{\"ids\":[64,422]}\n");
    answers(plain_pathf("%s --jsonl --data %s --add-eos on", words, rows),
            "{\"ids\":[64,422]}\n{\"ids\":[64,422]}\n");
    refused(plain_pathf("%s --jsonl --data %s --add-bos on", words, rows), "no BOS token to add to a text");
    refused(plain_pathf("%s --data %s --data %s --output %s", words, text, rows, file),
            "--output reads one file, and 2 are given");
    run(plain_pathf("%s --data %s --output %s", words, text, file));
    CHECK(last->exit_status == 0 &&
          strstr(last->err, "ends.bin: has no EOS, which training adds to a text, but not to a token file; for the "
                            "same tokens give --add-eos on, else off") != NULL);
    answers(plain_pathf("%s --data %s --output %s --add-eos off", words, text, file), "1 token |");
    answers(plain_pathf("%s --data %s --output %s --add-eos on", words, text, file), "2 tokens |");
}

/* A token file holds the ids of the text, is recognized by its first bytes, and is refused where it cannot
 * be written. */
static void test_token_file(void) {
    static const char tokenizer_path[] = "tests/golden/tokenizers/qwen.json", text_path[] = "tests/golden/README.md";
    char line[1024];
    const char *const path = test_path("tokens.bin");
    snprintf(line, sizeof line, "tokenize --model %s --data %s --output %s", tokenizer_path, text_path, path);
    answers(line, " tokens | ");
    struct ox_tokenizer *tokenizer = NULL;
    struct ox_encoder *encoder = NULL;
    struct ox_data *data = NULL;
    struct ox_ids ids = {0};
    char *text = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read(text_path, 1 << 20, &text, &bytes));
    REQUIRE_OK(ox_tokenizer_open(tokenizer_path, &tokenizer));
    REQUIRE_OK(ox_encoder_open(tokenizer, &encoder));
    REQUIRE_OK(ox_encode(encoder, text, bytes, true, false, &ids));
    REQUIRE_OK(ox_data_open(path, OX_DATA_AUTO, &data));
    CHECK(ox_data_kind_of(data) == OX_DATA_LLMQ && ox_data_token_count(data) == ids.count && ids.count > 100);
    int32_t *const found = calloc(ids.count, sizeof *found);
    REQUIRE_OK(ox_data_read(data, 0, ids.count, ox_tokenizer_vocab_count(tokenizer), found, NULL));
    CHECK(memcmp(found, ids.ids, ids.count * sizeof *found) == 0);
    snprintf(line, sizeof line, "tokenize --model %s --data %s --output %s/none/t.bin", tokenizer_path, text_path,
             test_folder());
    run_into(line, "/dev/null");
    CHECK(last->exit_status != 0 && strstr(last->err, "/none/") != NULL);
    free(found);
    free(text);
    ox_ids_free(&ids);
    ox_data_close(&data);
    ox_encoder_close(&encoder);
    ox_tokenizer_close(&tokenizer);
}

int main(void) {
    test_several_foreign();
    test_usage();
    test_short_flags();
    test_run_resumed();
    test_foreign_words();
    test_meant();
    test_values_missing();
    test_doctor_strict();
    test_help();
    test_doctor();
    test_processes();
    test_missing();
    test_tokenize();
    test_token_file();
    test_added_ends();
    test_full_stdout();
    return test_end();
}
