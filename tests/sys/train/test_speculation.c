/* A run whose plan updates units within backward says so once and in its summary when clipping undoes that. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <string.h>

static struct sys_args args;
static struct sys_process process;

static unsigned count_of(const char *text, const char *words) {
    unsigned count = 0;
    for (const char *at = text; (at = strstr(at, words)) != NULL; at++) {
        count++;
    }
    return count;
}

static void train(const char *name, const char *words) {
    sys_args_train(&args, sys_write_model("llama"), sys_write_text(8000), name);
    sys_args_drive(&args, test_pathf("%s-drive", name), "32MiB");
    sys_args_add(&args, "--device-mem 4MiB --host-mem 4MiB --state-tier nvme --optimizer-overlap speculative"
                        " --max-seq-length 16 --compute-threads 1 --max-steps 20");
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
    files_remove_folder(test_pathf("%s-drive", name));
}

int main(void) {
    static const char notice[] =
        "the gradient norm was clipped in the last 8 steps (--max-grad-norm 0.001), so ";
    train("clipped", "--max-grad-norm 0.001");
    CHECK(count_of(process.outcome.err, notice) == 1);
    CHECK(strstr(process.outcome.err, "--optimizer-overlap held plans without this") != NULL);
    CHECK(strstr(process.outcome.out, "0 of 20 steps updated ") != NULL);
    char *const metrics = files_read("clipped/metrics.jsonl", NULL);
    CHECK(count_of(metrics, "\"speculated\":false") == 20);
    free(metrics);

    train("free", "--max-grad-norm 0");
    CHECK(strstr(process.outcome.err, "the gradient norm was clipped") == NULL);
    CHECK(strstr(process.outcome.out, " steps updated ") == NULL);
    char *const others = files_read("free/metrics.jsonl", NULL);
    CHECK(count_of(others, "\"speculated\":true") == 20);
    free(others);
    return test_end();
}
