/* What someone sees on a terminal: the line of a run fits it, messages stand above, and nothing is left behind when it
 * gets another width. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/terminal.h"
#include "tests/kit/test.h"

#include <string.h>

static struct sys_args args;
static struct sys_process process;
static struct terminal terminal;
static char rows[TERMINAL_TEXT_BYTES];

static unsigned count_of(const char *text, const char *words) {
    unsigned count = 0;
    for (const char *at = text; (at = strstr(at, words)) != NULL; at++) {
        count++;
    }
    return count;
}

/* Runs on a terminal to the end; where the program has said `words`, the terminal gets another width. */
static void run(unsigned columns, const char *words, unsigned then) {
    terminal_open(&terminal, columns);
    args.terminal = &terminal;
    sys_start(&args, &process);
    if (words != NULL) {
        CHECK(sys_await(&process, words));
        terminal_put(&terminal, process.outcome.err, process.err_bytes);
        process.err_bytes = 0;
        process.outcome.err[0] = '\0';
        terminal_resize(&terminal, then);
    }
    sys_wait(&process);
    terminal_put(&terminal, process.outcome.err, process.err_bytes);
    terminal_rows(&terminal, rows);
    terminal_close(&terminal);
    CHECK(process.outcome.exit_status == 0);
}

static void expect(bool holds, const char *what) {
    if (!holds) {
        printf("%s; the terminal has\n%s", what, rows);
        test_failure_count++;
    }
}

static void test_train(const char *model, const char *text, unsigned columns, const char *words, unsigned then) {
    sys_args_train(&args, model, text, "run");
    sys_args_add(&args, "--max-steps 30 --max-seq-length 16 --batch-size 1 --eval-windows 2 --eval-steps 7 --save-steps"
                        " 11 --logging-steps 10 --compute-threads 1 --optimizer-threads 1");
    run(columns, words, then);
    const char *const line = strstr(rows, "\nstep 30/30");
    /* What was on its way when the width changed is drawn for the old one, and may stay. */
    const unsigned most = words != NULL ? 6 : 5;
    expect(strstr(rows, "\nstep 10/30") != NULL && strstr(rows, "\nstep 20/30") != NULL &&
           count_of(rows, "\nstep ") <= most,
           "the lines of --logging-steps are left, and those of steps that were saved");
    expect(line != NULL && count_of(line, "\nsaved ") == 1,
           "the last of them above the message of the last checkpoint");
    expect(line != NULL && strcspn(line + 1, "\n") < then, "it fits");
    expect(count_of(rows, "\neval at step ") == 5 && count_of(rows, "eval at step ") == 5, "evaluations begin a row");
    expect(count_of(rows, "\nsaved ") == 3 && count_of(rows, "saved ") == 3, "so do messages of checkpoints");
    files_remove_folder("run");
}

/* An evaluation shows how far it is, and leaves its results alone. */
static void test_eval(const char *model, const char *text) {
    sys_args_train(&args, model, text, "run");
    sys_args_add(&args, "--max-steps 1 --max-seq-length 16 --batch-size 1 --save-steps 1 --compute-threads 1");
    sys_run_well(&args, &process);
    for (int live = 0; live < 2; live++) {
        sys_args_begin(&args, "eval");
        sys_args_word(&args, "--model=%s", test_path("run/checkpoint-1"));
        sys_args_word(&args, "--eval-data=%s", text);
        sys_args_add(&args, "--max-seq-length 16 --batch-size 4 --compute-threads 1");
        if (live) {
            run(40, NULL, 40);
            expect(strstr(rows, "window ") == NULL, "no line of the evaluation is left");
        } else {
            sys_run_well(&args, &process);
        }
        CHECK((strstr(process.outcome.err, "window 4/") != NULL) == live);
        CHECK(strstr(process.outcome.out, " tokens predicted, ") != NULL);
    }
    files_remove_folder("run");
}

int main(void) {
    const char *const model = sys_write_model("llama"), *const text = sys_write_text(4096);
    test_train(model, text, 80, NULL, 80);
    test_train(model, text, 40, NULL, 40);
    test_train(model, text, 100, "step 3/30", 30);
    test_eval(model, text);
    return test_end();
}
