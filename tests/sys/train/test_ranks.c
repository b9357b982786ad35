/* One training divided among ranks in every way: losses, norms, rates and the final files are the same bytes as those
 * of one rank, also where a run goes on with another number of ranks. With OX_TEST_ALL set it tries every combination,
 * else every other one, and fewer under sanitizers. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

static const char common_words[] =
    "--global-batch-size 8 --batch-size 1 --max-seq-length 16"
    " --learning-rate 3e-3 --max-grad-norm 0.5 --data-order shuffle"
    " --eval-windows 12 --save-steps 0 --compute-threads 1 --chunk-elems 2048 --seed 11";

struct family {
    const char *name, *model, *words;
};
static const struct family families[] = {
    {"llama in fp32", "llama", "--dtype fp32"},
    {"gpt2 in bf16, gradients too", "gpt2", "--dtype bf16 --grad-dtype bf16"},
    {"llama in bf16, moments of eight bits", "llama", "--dtype bf16 --moments q8"},
};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { FAMILY_COUNT = 1, STRIDE = 6 };
#else
enum { FAMILY_COUNT = sizeof families / sizeof *families, STRIDE = 2 };
#endif

struct place {
    const char *name, *words;
    int drives;
};
static const struct place places[] = {
    {"one memory", "", 0},
    {"two memories", "--device-mem 8MiB --host-mem 64MiB", 0},
    {"all on drives", "--device-mem 8MiB --host-mem 64MiB --weights-tier nvme --state-tier nvme --grads-tier nvme"
     " --activation-tier nvme --tiles 1", 2},
    {"one memory and a drive, late lanes", "--state-tier nvme --chaos-seed 7", 1},
};
enum { PLACE_COUNT = sizeof places / sizeof *places };

static const char *const shardings[] = {"full_shard", "shard_grad_op", "zero2", "zero1", "shared"};
enum { SHARDING_COUNT = sizeof shardings / sizeof *shardings };
static const int counts[] = {2, 3, 4, 8};
enum { COUNT_COUNT = sizeof counts / sizeof *counts };

static struct sys_args args;
static struct sys_process process;
static const char *text_path;
static int run_count;
static bool all; /* every combination: 60 runs; else every other one */

static void begin(const struct family *family, const char *output, bool fresh) {
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s", sys_write_model(family->model));
    sys_args_word(&args, "--data=%s", text_path);
    sys_args_word(&args, "--output=%s", output);
    sys_args_add(&args, common_words);
    sys_args_add(&args, family->words);
    sys_args_add(&args, fresh ? "--from-scratch --sum-groups 8" : "--resume latest");
}

static void add_drives(int count) {
    for (int i = 0; i < count; i++) {
        sys_args_word(&args, "--nvme");
        sys_args_word(&args, "%s:32MiB", files_make_folder(test_pathf("drive-%d", i)));
    }
}

static void remove_drives(int count) {
    for (int i = 0; i < count; i++) {
        files_remove_folder(test_pathf("drive-%d", i));
    }
}

struct result {
    char *steps, *evals;
};

static struct result read_result(const char *folder) {
    return (struct result){sys_curve(folder, "step"), sys_curve(folder, "eval")};
}

static void drop(struct result *result) {
    free(result->steps);
    free(result->evals);
}

/* Compares a run with that of one rank. */
static void compare(const char *what, const char *folder, const struct result *expected) {
    struct result result = read_result(folder);
    const bool same = sys_same_text("losses", expected->steps, result.steps) &&
                      sys_same_text("evaluations", expected->evals, result.evals) &&
                      sys_same_checkpoint(test_path("one/checkpoint-50"), test_pathf("%s/checkpoint-50", folder));
    if (!same) {
        printf("    %s: not the bits of one rank\n", what);
        test_failure_count++;
    }
    drop(&result);
}

static void try_ranks(const struct family *family, int ranks, const char *sharding, const struct place *place,
                      const struct result *expected) {
    char what[160];
    snprintf(what, sizeof what, "%d ranks, %s, %s", ranks, sharding, place->name);
    begin(family, test_path("ranks"), true);
    sys_args_add(&args, place->words);
    sys_args_add(&args, "--max-steps 50 --eval-steps 20 --lr-scheduler-type cosine --warmup-steps 4");
    sys_args_word(&args, "--ranks=%d", ranks);
    sys_args_word(&args, "--sharding=%s", sharding);
    add_drives(place->drives);
    sys_run(&args, &process);
    remove_drives(place->drives);
    if (process.outcome.exit_status != 0) {
        printf("    %s: ended with %d\n%s\n", what, process.outcome.exit_status, process.outcome.err);
        test_failure_count++;
        return;
    }
    compare(what, test_path("ranks"), expected);
    files_remove_folder(test_path("ranks"));
    run_count++;
}

/* A run on a drive that goes on with another number of ranks every ten steps, and keeps the groups of its beginning. */
static void change_ranks(const struct family *family) {
    static const int ranks[] = {1, 4, 2, 3, 8};
    begin(family, test_path("one"), true);
    sys_args_add(&args, "--max-steps 50 --eval-steps 10 --lr-scheduler-type constant");
    sys_run_well(&args, &process);
    struct result expected = read_result(test_path("one"));
    for (int i = 0; i < 5; i++) {
        begin(family, test_path("ranks"), i == 0);
        sys_args_word(&args, "--ranks=%d", ranks[i]);
        sys_args_word(&args, "--max-steps=%d", 10 * (i + 1));
        sys_args_add(&args, "--state-tier nvme --eval-steps 10 --lr-scheduler-type constant");
        add_drives(1);
        sys_run_well(&args, &process);
    }
    remove_drives(1);
    compare("ranks 1, 4, 2, 3, 8 in turn", test_path("ranks"), &expected);
    files_remove_folder(test_path("ranks"));
    files_remove_folder(test_path("one"));
    drop(&expected);
}

static void run_family(const struct family *family, int first) {
    printf("%s\n", family->name);
    begin(family, test_path("one"), true);
    sys_args_add(&args, "--max-steps 50 --eval-steps 20 --lr-scheduler-type cosine --warmup-steps 4");
    sys_run_well(&args, &process);
    struct result expected = read_result(test_path("one"));
    CHECK(strstr(expected.steps, "\"grad_scale\":0.") != NULL);
    for (int i = 0; i < COUNT_COUNT; i++) {
        for (int k = 0; k < SHARDING_COUNT; k++) {
            if ((i + k) % STRIDE != 0 && !all) {
                continue;
            }
            try_ranks(family, counts[i], shardings[k], &places[(first + i + k) % PLACE_COUNT], &expected);
        }
    }
    drop(&expected);
    files_remove_folder(test_path("one"));
    change_ranks(family);
}

int main(void) {
    all = getenv("OX_TEST_ALL") != NULL;
    text_path = sys_write_text(40000);
    for (int i = 0; i < FAMILY_COUNT; i++) {
        run_family(&families[i], i);
    }
    printf("%d runs with the bits of one rank\n", run_count);
    return test_end();
}
