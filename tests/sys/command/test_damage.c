/* Every command that reads a checkpoint, with each file of it damaged by one bit at several places: the command refuses
 * it and names the file, or, where it does not use that file, prints what it prints of the whole checkpoint. Given a
 * run whose newest checkpoint lacks something, it does not take an older one. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *text_path;

#define OF_TEXT   " --max-seq-length 32 --compute-threads 1 --host-mem 32MiB"
#define OF_TRAIN  OF_TEXT " --optimizer-threads 1 --save-dtype bf16 --quiet"

enum { TEXT = 1, OUTPUT = 2, RUN = 4, REPORT = 8 /* what it prints is always the same */ };

static const struct command {
    const char *name, *words;
    const char *option; /* that names the checkpoint */
    unsigned needs;
    const char *passes_over; /* the files that it does not use, though it may refuse a damaged header */
} commands[] = {
    {"eval", OF_TEXT " --format json", "--model=", TEXT | REPORT, "optimizer"},
    {"generate", "--prompt the --max-new-tokens 5 --compute-threads 1", "--model=", REPORT, "optimizer"},
    {"generate", "--chat --prompt the --max-new-tokens 5 --compute-threads 1", "--model=", REPORT, "optimizer"},
    {"generate", "--prompt the --max-new-tokens 5 --compute-threads 1 --host-mem 400KiB", "--model=", REPORT,
     "optimizer"},
    {"export", "--save-dtype bf16", "--model=", OUTPUT, "optimizer"},
    {"export", "--save-dtype fp32", "--model=", OUTPUT, ""},
    {"train", OF_TRAIN " --max-steps 3", "--model=", TEXT | OUTPUT, "optimizer"},
    {"train", OF_TRAIN " --max-steps 3", "--resume=", TEXT | OUTPUT, ""},
    {"train", OF_TRAIN " --max-steps 3 --resume latest", NULL, TEXT | RUN, ""},
    {"tokenize", "--max-seq-length 32", "--model=", TEXT | REPORT, "safetensors"},
    {"plan", OF_TEXT, "--model=", OUTPUT, "safetensors"},
    {"inspect", "", "", 0, ""},
};
static const char *const files[] = {"config.json", "model.safetensors", "optimizer.safetensors", "tokenizer.json",
                                    "tokenizer_config.json", "generation_config.json", "trainer_state.json"};

/* Places in thousandths of the file. */
static const unsigned places[] = {1, 400, 999};

static const char *checkpoint = "run/checkpoint-2"; /* what commands are given */

static void make_run(const char *name, const char *words) {
    sys_args_train(&args, model_path, text_path, name);
    sys_args_add(&args, OF_TRAIN " --from-scratch --max-steps 2");
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
}

static void run(const struct command *command) {
    const bool resumes = strcmp(command->name, "train") == 0 &&
                         (command->option == NULL || strcmp(command->option, "--model=") != 0);
    files_remove_folder("out");
    sys_args_begin(&args, command->name);
    sys_args_add(&args, command->words);
    if (command->option != NULL) {
        sys_args_word(&args, "%s%s", command->option, test_path(checkpoint));
    }
    if (resumes) {
        sys_args_word(&args, "--model=%s", model_path);
    }
    if ((command->needs & TEXT) != 0) {
        sys_args_word(&args, "--data=%s", text_path);
    }
    if ((command->needs & (OUTPUT | RUN)) != 0) {
        sys_args_word(&args, "--output=%s", test_path((command->needs & RUN) != 0 ? "run" : "out"));
    }
    sys_run(&args, &process);
}

static void complain(const struct command *command, const char *file, unsigned place) {
    printf("%s %s%s, %s damaged at %u: status %d\n%s\n", command->name, command->words,
           command->option != NULL ? command->option : "", file, place, process.outcome.exit_status,
           process.outcome.err);
    test_failure_count++;
}

static void test_cell(const struct command *command, const char *file, const char *whole) {
    const char *const path = test_pathf("run/checkpoint-2/%s", file);
    /* A resume of the latest state takes the folder for none of its checkpoints, says why, and finds no other. */
    const int refusal = (command->needs & RUN) != 0 && strcmp(file, "trainer_state.json") == 0 ? 2 : 1;
    const bool reads = command->passes_over[0] == '\0' || strstr(file, command->passes_over) == NULL;
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
        const int64_t at = (int64_t)(files_size(path) * places[i] / 1000);
        files_flip(path, at);
        run(command);
        const struct sys_outcome *const outcome = &process.outcome;
        const bool refused = outcome->exit_status == refusal &&
                             (strstr(outcome->err, file) != NULL || strstr(outcome->out, file) != NULL);
        const bool same = outcome->exit_status == 0 &&
                          ((command->needs & REPORT) == 0 || strcmp(outcome->out, whole) == 0);
        if ((reads && !refused) || (!reads && !same && !refused)) {
            complain(command, file, places[i]);
        }
        CHECK(!refused || (command->needs & REPORT) == 0 || outcome->out[0] == '\0');
        CHECK(!reads || !files_exist("out/checkpoint-3"));
        CHECK(!reads || strcmp(command->name, "export") != 0 || !files_exist("out"));
        files_flip(path, at);
    }
}

static void test_command(const struct command *command) {
    static char whole[SYS_OUTPUT_BYTES];
    if ((command->needs & RUN) != 0) { /* its end would be a newer checkpoint */
        memcpy(whole, "", 1);
    } else {
        run(command);
        if (process.outcome.exit_status != 0) {
            complain(command, "nothing", 0);
        }
        memcpy(whole, process.outcome.out, sizeof whole);
    }
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++) {
        test_cell(command, files[i], whole);
    }
}

/* A digit of what only trainer_state.json knows: another number is as plausible as the right one. */
static void test_digits(void) {
    static const char *const keys[] = {"\"cursor\": ", "\"tokens_seen\": ", "\"seed\": \"", "\"branch\": \""};
    static const char *const file = "run/checkpoint-2/trainer_state.json";
    static const struct command *const resume = &commands[7];
    CHECK(strcmp(resume->option, "--resume=") == 0);
    for (unsigned i = 0; i < sizeof keys / sizeof *keys; i++) {
        char *const text = files_read(file, NULL);
        const char *const found = strstr(text, keys[i]);
        CHECK(found != NULL);
        const int64_t at = found != NULL ? found + strlen(keys[i]) - text : 0;
        const char right = text[at], wrong = (char)(right ^ 1);
        files_patch(file, at, &wrong, 1);
        run(resume);
        if (process.outcome.exit_status != 1 || !sys_said(&process, "state.json: does not match its checksum")) {
            complain(resume, keys[i], 0);
        }
        files_patch(file, at, &right, 1);
        free(text);
    }
}

/* Rounded weights do not pass for the exact ones when the file of those is gone. */
static void test_without_optimizer(void) {
    CHECK(rename(test_path("run/checkpoint-2/optimizer.safetensors"), test_path("away")) == 0);
    for (unsigned i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(commands[i].name, "export") == 0) {
            const bool exact = strstr(commands[i].words, "fp32") != NULL;
            run(&commands[i]);
            CHECK(process.outcome.exit_status == (exact ? 1 : 0) && files_exist("out") == !exact);
            CHECK(!exact || strstr(process.outcome.err, "the exact values of the weights are missing") != NULL);
        }
    }
}

/* A run whose newest checkpoint has lost a file, or the end of one: a command that is given the run names it, and what
 * could be taken instead, which is taken when it is named. */
static void test_run(void) {
    make_run("pair", "--save-steps 1");
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++) {
        const char *const path = test_pathf("pair/checkpoint-2/%s", files[i]);
        CHECK(rename(path, test_path("away")) == 0);
        for (unsigned cut = 0; cut < 2; cut++) {
            if (cut > 0) {
                files_write(path, "{\"a\": 1}", 8);
            }
            for (unsigned k = 0; k < sizeof commands / sizeof *commands; k++) {
                if (commands[k].option == NULL || strcmp(commands[k].option, "--resume=") == 0) {
                    continue;
                }
                checkpoint = "pair";
                run(&commands[k]);
                const struct sys_outcome *const outcome = &process.outcome;
                const bool named = strstr(outcome->err, path) != NULL || strstr(outcome->out, path) != NULL;
                const bool offered = k + 1 == sizeof commands / sizeof *commands ||
                                     sys_said(&process, "to take an older one, name it: ");
                if (outcome->exit_status != 1 || !named || !offered || files_exist("out")) {
                    complain(&commands[k], path, cut);
                }
                checkpoint = "pair/checkpoint-1";
                run(&commands[k]);
                CHECK(outcome->exit_status == 0);
            }
        }
        CHECK(rename(test_path("away"), path) == 0);
    }
    checkpoint = "run/checkpoint-2";
}

int main(void) {
    model_path = sys_write_speaker();
    text_path = sys_write_text(4000);
    files_write_text("speaker/generation_config.json", "{\"eos_token_id\": 259, \"do_sample\": false}\n");
    make_run("run", "");
    test_run();
    for (unsigned i = 0; i < sizeof commands / sizeof *commands; i++) {
        test_command(&commands[i]);
    }
    test_digits();
    test_without_optimizer();
    return test_end();
}
