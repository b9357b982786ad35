/* A run whose plan updates units within backward goes over to the held order while most norms are clipped, and back: it
 * says so once for each, keeps its bits and its budget, and can be killed in either order. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 70 };

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *text_path;

static unsigned count_of(const char *text, const char *words) {
    unsigned count = 0;
    for (const char *at = text; (at = strstr(at, words)) != NULL; at++) {
        count++;
    }
    return count;
}

/* ---- always clipped, and never ------------------------------------------------------------------------- */

static void train(const char *name, const char *words) {
    sys_args_train(&args, model_path, sys_write_text(8000), name);
    sys_args_drive(&args, test_pathf("%s-drive", name), "32MiB");
    sys_args_add(&args, "--device-mem 4MiB --host-mem 4MiB --state-tier nvme --optimizer-overlap speculative"
                        " --max-seq-length 16 --compute-threads 1");
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
    files_remove_folder(test_pathf("%s-drive", name));
}

static void check_one_order(void) {
    static const char notice[] = "from step 2 on weights are updated in the next forward pass, none of them early: "
                                 "most gradients were clipped lately (--max-grad-norm 0.001)";
    train("clipped", "--max-grad-norm 0.001 --max-steps 20");
    CHECK(count_of(process.outcome.err, notice) == 1 && sys_said(&process, " while most norms are clipped: "));
    CHECK(strstr(process.outcome.out, " in 0 of 20 steps; 1 did so in vain, because the gradient was clipped; "
                                      "19 updated all ") != NULL);
    char *const metrics = files_read("clipped/metrics.jsonl", NULL);
    CHECK(count_of(metrics, "\"speculated\":false") == 20);
    CHECK(count_of(metrics, "\"order\":\"speculative\"") == 1 && count_of(metrics, "\"order\":\"held\"") == 19);
    free(metrics);

    train("free", "--max-grad-norm 0 --max-steps 20");
    CHECK(strstr(process.outcome.err, "from step ") == NULL && strstr(process.outcome.out, "updated early") == NULL);
    char *const others = files_read("free/metrics.jsonl", NULL);
    CHECK(count_of(others, "\"speculated\":true") == 20 && count_of(others, "\"order\":\"speculative\"") == 20);
    free(others);

    /* A run that ends before the order matters tells nothing of it. */
    train("few", "--max-grad-norm 0.001 --max-steps 7");
    CHECK(strstr(process.outcome.err, "from step ") == NULL && strstr(process.outcome.out, "updated early") == NULL);
}

/* ---- from one order to the other ------------------------------------------------------------------------ */

/* Letters that repeat, whose norm falls as they are learned, and then others, whose norm is large. */
static const char *write_text(void) {
    static char text[2301];
    uint32_t word = 1;
    for (size_t i = 0; i + 1 < sizeof text; i++) {
        word = word * 1664525u + 1013904223u;
        text[i] = i < 1800 ? "ab"[i % 2] : (char)('a' + (word >> 16) % 26);
    }
    return files_write_text("changes.txt", text);
}

struct place {
    const char *words;
    bool drive;
    long mib; /* its budgets of memory; 0: not measured */
};

static void begin(const char *name, const struct place *place, const char *more) {
    sys_args_train(&args, model_path, text_path, name);
    if (place->drive) {
        sys_args_drive(&args, test_pathf("%s-drive", name), "48MiB");
    }
    sys_args_add(&args, "--max-seq-length 16 --batch-size 1 --gradient-accumulation-steps 2 --learning-rate 3e-3"
                        " --lr-scheduler-type constant --max-grad-norm 1.5 --data-order sequential --eval-fraction 0"
                        " --compute-threads 1");
    sys_args_word(&args, "--max-steps=%d", STEPS);
    sys_args_add(&args, place->words);
    sys_args_add(&args, more);
}

static void end(const char *name, const struct place *place) {
    if (!sys_same_runs("expected", name, STEPS)) {
        sys_complain(&process, place->words);
    }
    files_remove_folder(name);
    if (place->drive) {
        files_remove_folder(test_pathf("%s-drive", name));
    }
}

/* The letters of the orders of all steps: s speculative, u undone because the norm was clipped, h held. */
static void read_orders(const char *name, char orders[STEPS + 1]) {
    char *const metrics = files_read(test_pathf("%s/metrics.jsonl", name), NULL);
    size_t count = 0;
    for (const char *at = metrics; (at = strstr(at, "\"speculated\":")) != NULL && count < STEPS; at++) {
        const bool speculated = strncmp(at, "\"speculated\":true", 17) == 0;
        const char *const order = strstr(at, "\"order\":\"");
        orders[count++] = order == NULL ? '?' : speculated ? 's' : order[9] == 's' ? 'u' : order[9];
    }
    orders[count] = '\0';
    free(metrics);
}

static void check_switch(const struct place *place) {
    char orders[STEPS + 1];
    begin("switches", place, "");
    sys_run_well(&args, &process);
    read_orders("switches", orders);
    if (strlen(orders) != STEPS || strncmp(orders, "uhhh", 4) != 0 || strstr(orders, "hhss") == NULL ||
        strstr(orders, "ssuuuuuhh") == NULL) {
        printf("%s: %s\n", place->words, orders);
        test_failure_count++;
    }
    CHECK(count_of(process.outcome.err, " on weights are updated in the next forward pass, ") == 1);
    CHECK(count_of(process.outcome.err, " updated early again, while gradients are still computed, because few ") == 1);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* whose own memory is not the program's */
    if (place->mib > 0) {
        const long beside = sys_number_after(process.outcome.err, "beside the arenas the process takes up to ", -1);
        CHECK(beside > 0 && process.outcome.peak_kib <= (place->mib + beside + 1) * 1024);
    }
#endif
    end("switches", place);
}

/* Killed in the held order, in the speculative one, and while updates are undone; resumed each time. */
static void check_killed(const struct place *place) {
    static const char *const seen[] = {"\nstep 12/", "\nstep 48/", "\nstep 60/"};
    for (unsigned i = 0; i <= sizeof seen / sizeof *seen; i++) {
        begin("killed", place, i > 0 ? "--resume latest" : "");
        if (i == sizeof seen / sizeof *seen) {
            sys_run_well(&args, &process);
            break;
        }
        sys_args_leash(&args);
        sys_start(&args, &process);
        CHECK(sys_await(&process, seen[i]));
        kill(process.pid, SIGKILL);
        sys_wait(&process);
        CHECK(process.outcome.signal_number == SIGKILL);
    }
    end("killed", place);
}

int main(void) {
    static const struct place plain = {"--optimizer-overlap off", false, 0};
    static const struct place places[] = {
        {"--optimizer-overlap speculative --device-mem 4MiB --host-mem 4MiB --state-tier nvme", true, 8},
        {"--optimizer-overlap speculative --host-mem 16MiB --state-tier host --persist-steps 4 --store-generations 3",
         true, 16},
        {"--optimizer-overlap speculative --device-mem 4MiB --host-mem 16MiB", false, 20},
    };
    model_path = sys_write_model("llama");
    check_one_order();
    text_path = write_text();
    begin("expected", &plain, "");
    sys_run_well(&args, &process);
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
        check_switch(&places[i]);
    }
    check_killed(&places[0]);
    check_killed(&places[1]);
    return test_end();
}
