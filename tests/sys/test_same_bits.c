/* The same run under placements of every sort: losses, norms, rates and the final files are the same bytes. */
#include "tests/sys_run.h"
#include "tests/test.h"

#include <string.h>

struct place {
    const char *name;
    const char *words; /* for the program */
    int drives;
    const char *sign; /* what the printed plan says when the placement is the one meant; NULL: nothing */
    int rank; /* groups try the placements up to a rank of theirs */
};

/* The first is what the others are compared with. */
static const struct place places[] = {
    {"one memory", "", 0, "1 tile, ", 1},
    {"one memory, another layout",
     "--tiles 4 --prefetch-depth 0 --optimizer-threads 3 --chunk-elems 2048", 0, "4 tiles",
     2},
    {"large device memory", "--device-mem 32MiB --host-mem 32MiB --optimizer-threads 1", 0, NULL, 1},
    {"small device memory", "--device-mem 720KiB --host-mem 8MiB --prefetch-depth 1", 0, "prefetch 1", 2},
    {"all on drives, small chunks",
     "--device-mem 4MiB --host-mem 4MiB --weights-tier nvme --state-tier nvme --grads-tier nvme"
     " --activation-tier nvme --chunk-elems 4096 --tiles 1",
     1, "1 tile, ", 0},
    {"all on drives, two tiles, three ahead",
     "--device-mem 4MiB --host-mem 4MiB --weights-tier nvme --state-tier nvme --grads-tier nvme"
     " --activation-tier nvme --chunk-elems 6144 --tiles 2 --prefetch-depth 3",
     2, "2 tiles, prefetch 3", 2},
    {"all on drives, threads, a tile for each micro-batch",
     "--device-mem 4MiB --host-mem 4MiB --weights-tier nvme --state-tier nvme --grads-tier nvme"
     " --chunk-elems 2048 --tiles 4 --prefetch-depth 0 --io-backend threads --queue-depth 1",
     2, "4 tiles, prefetch 0", 2},
    {"one memory and drives, io_uring",
     "--io-backend uring --activation-tier nvme --state-tier nvme --queue-depth 1", 1,
     "activation checkpoints on nvme", 3},
    {"activations on the device", "--device-mem 4MiB --host-mem 4MiB --activation-tier device --weights-tier host", 0,
     "activation checkpoints on device", 2},
    {"activations on the host", "--device-mem 4MiB --host-mem 4MiB --activation-tier host --state-tier nvme", 1,
     "activation checkpoints on host", 1},
    {"scalar optimizer", "--isa scalar --optimizer-threads 2 --chunk-elems 4096", 0, NULL, 3},
    {"optimizer with avx2", "--isa avx2 --device-mem 4MiB --weights-tier nvme --prefetch-depth 1", 1, NULL, 3},
    {"chaos on drives",
     "--chaos-seed 5 --device-mem 4MiB --host-mem 4MiB --weights-tier nvme --state-tier nvme --grads-tier nvme"
     " --activation-tier nvme --chunk-elems 4096 --tiles 2 --prefetch-depth 1 --io-backend threads",
     2, "2 tiles, prefetch 1", 0},
    {"chaos in memory", "--chaos-seed 9 --device-mem 4MiB --host-mem 8MiB --tiles 2 --weights-tier host", 0, "2 tiles",
     3},
};

enum { PLACE_COUNT = sizeof places / sizeof *places };

struct group {
    const char *name, *family, *words;
    int rank;
};

/* The threads that compute count among the numerics: each group has its own number. */
static const struct group groups[] = {
    {"llama in fp32", "llama", "--dtype fp32 --compute-threads 1", 3},
    {"gpt2 in fp32", "gpt2", "--dtype fp32 --compute-threads 1", 2},
    {"llama in bf16", "llama", "--dtype bf16 --compute-threads 1", 2},
    {"gpt2 in bf16", "gpt2", "--dtype bf16 --compute-threads 1 --save-dtype bf16", 3},
    {"llama in bf16 with bf16 gradients", "llama", "--dtype bf16 --grad-dtype bf16 --compute-threads 2", 1},
    {"gpt2 in fp32 with bf16 gradients", "gpt2", "--dtype fp32 --grad-dtype bf16 --compute-threads 1", 1},
    {"llama in bf16 with q8 moments", "llama", "--dtype bf16 --moments q8 --compute-threads 1 --save-dtype bf16", 1},
    {"gpt2 in fp32 with bf16 moments", "gpt2", "--dtype fp32 --moments bf16 --compute-threads 1", 0},
    {"lion with a q8 moment", "gpt2", "--dtype bf16 --optimizer lion --moments q8 --compute-threads 1", 0},
    {"sgd in fp32", "llama", "--optim sgd --compute-threads 1", 0},
};

static const char common_words[] =
    "--from-scratch --max-steps 20 --gradient-accumulation-steps 4 --batch-size 2 --max-seq-length 24"
    " --learning-rate 3e-3 --lr-scheduler-type cosine --warmup-steps 4 --max-grad-norm 0.5 --data-order shuffle"
    " --eval-steps 8 --eval-windows 12 --save-steps 0";

static struct sys_args args;
static struct sys_process process;
static char text_path[SYS_PATH_BYTES];

static void train(const struct group *group, const struct place *place, const char *seed, const char *output) {
    char model[SYS_PATH_BYTES], folder[SYS_PATH_BYTES];
    sys_write_model(group->family, model);
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s", model);
    sys_args_word(&args, "--data=%s", text_path);
    sys_args_word(&args, "--output=%s", output);
    sys_args_word(&args, "--seed=%s", seed);
    sys_args_add(&args, common_words);
    sys_args_add(&args, group->words);
    sys_args_add(&args, place->words);
    for (int i = 0; i < place->drives; i++) {
        sys_make_folder(sys_path(folder, "drive-%d", i));
        sys_args_word(&args, "--nvme");
        sys_args_word(&args, "%s:32MiB", folder);
    }
    sys_run(&args, &process);
    for (int i = 0; i < place->drives; i++) {
        sys_remove_folder(sys_path(folder, "drive-%d", i));
    }
}

/* What this machine cannot do is left out and said. */
static bool unavailable(const struct place *place) {
    static const char *const reasons[] = {"--isa", "io_uring"};
    for (int i = 0; i < 2 && process.outcome.exit_status != 0; i++) {
        if (strstr(process.outcome.err, reasons[i]) != NULL) {
            printf("left out: %s: %s", place->name, process.outcome.err);
            return true;
        }
    }
    return false;
}

static void report(const struct place *place, const char *what) {
    printf("    %s: %s: %d\n%s\n", place->name, what, process.outcome.exit_status, process.outcome.err);
    test_failure_count++;
}

struct result {
    char folder[SYS_PATH_BYTES], checkpoint[SYS_PATH_BYTES + 32];
    char *steps, *evals;
};

static void take(struct result *result, const char *name) {
    sys_path(result->folder, "%s", name);
    snprintf(result->checkpoint, sizeof result->checkpoint, "%s/checkpoint-20", result->folder);
}

static void read_curves(struct result *result) {
    result->steps = sys_curve(result->folder, "step");
    result->evals = sys_curve(result->folder, "eval");
}

static void drop(struct result *result) {
    free(result->steps);
    free(result->evals);
    sys_remove_folder(result->folder);
}

static void try_place(const struct group *group, const struct place *place, const struct result *expected) {
    struct result result;
    take(&result, "other");
    train(group, place, "11", result.folder);
    if (unavailable(place)) {
        return;
    }
    if (process.outcome.exit_status != 0) {
        report(place, "was expected to train, ended with");
        exit(1);
    }
    if (place->sign != NULL && strstr(process.outcome.err, place->sign) == NULL) {
        report(place, "the plan is not the one meant");
    }
    read_curves(&result);
    const bool same = sys_same_text("losses", expected->steps, result.steps) &&
                      sys_same_text("evaluations", expected->evals, result.evals) &&
                      sys_same_checkpoint(expected->checkpoint, result.checkpoint);
    if (!same) {
        printf("    %s: not the bits of \"%s\"\n", place->name, places[0].name);
        test_failure_count++;
    }
    drop(&result);
}

static unsigned lines_of(const char *text) {
    unsigned count = 0;
    for (; *text != '\0'; text++) {
        count += *text == '\n';
    }
    return count;
}

static void run_group(const struct group *group, bool with_control) {
    struct result expected, other;
    take(&expected, "expected");
    train(group, &places[0], "11", expected.folder);
    if (process.outcome.exit_status != 0) {
        report(&places[0], "was expected to train, ended with");
        exit(1);
    }
    read_curves(&expected);
    /* The run is worth comparing: all steps are there, clipping is at work, evaluations at 8, 16 and the end. */
    CHECK(lines_of(expected.steps) == 20);
    CHECK(lines_of(expected.evals) == 3);
    CHECK(strstr(expected.steps, "\"grad_scale\":0.") != NULL);
    for (unsigned i = 1; i < PLACE_COUNT; i++) {
        if (places[i].rank <= group->rank) {
            try_place(group, &places[i], &expected);
        }
    }
    if (with_control) {
        take(&other, "other");
        train(group, &places[0], "12", other.folder);
        read_curves(&other);
        printf("with another seed, as it must be: ");
        CHECK(!sys_same_text("losses", expected.steps, other.steps));
        CHECK(!sys_same_checkpoint(expected.checkpoint, other.checkpoint));
        drop(&other);
    }
    drop(&expected);
}

int main(void) {
    sys_write_text(40000, text_path);
    for (unsigned i = 0; i < sizeof groups / sizeof *groups; i++) {
        printf("%s\n", groups[i].name);
        run_group(&groups[i], i == 0);
    }
    return test_end();
}
