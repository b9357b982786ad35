/* Stores, run folders, checkpoints and traces that earlier versions of the program have written, one sample for each
 * change of a format (tests/golden/formats): each is opened, and training goes on from it along the curve that the
 * earlier program itself went on to, or it is refused by name and left as it was. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#define FORMATS "tests/golden/formats"

enum { TAKEN_STEPS = 3, STEPS = 5 };

static const struct sample {
    const char *name; /* the commit whose program wrote it */
    unsigned state, run_json, trace; /* versions; 0: none */
} samples[] = {
    {"88fa99f", 1, 1, 0},
    {"26c342e", 2, 2, 0},
    {"31cec24", 3, 2, 1},
    {"1889d38", 4, 2, 2},
    {"c9f566d", 4, 3, 2},
    {"675dad0", 4, 4, 2},
};
enum { SAMPLE_COUNT = sizeof samples / sizeof *samples };

enum { STATE_OLDEST = 2, TRACE_ONLY = 2 }; /* what is still read */

static struct sys_args args;
static struct sys_process process;
static char root[SYS_PATH_BYTES];

static const char *source(const char *name) {
    return plain_pathf("%s/" FORMATS "/%s", root, name);
}

static void complain(const struct sample *sample, const char *what) {
    printf("%s: %s: exit status %d\n", sample->name, what, process.outcome.exit_status);
    for (int i = 0; i < args.count; i++) {
        printf("%s ", args.words[i]);
    }
    printf("\n%s%s\n", process.outcome.out, process.outcome.err);
    test_failure_count++;
}

/* ---- samples ------------------------------------------------------------------------------------------------- */

/* Writes a file anew from what it held besides zeros: its size, then offset, length and bytes of each piece. */
static void unpack(const char *packed, const char *path) {
    size_t bytes = 0;
    char *const data = files_read(packed, &bytes);
    uint64_t size = 0;
    memcpy(&size, data, sizeof size);
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    bool done = file >= 0 && ftruncate(file, (off_t)size) == 0;
    for (size_t at = sizeof size; done && at < bytes;) {
        uint32_t piece[2];
        memcpy(piece, data + at, sizeof piece);
        at += sizeof piece;
        done = pwrite(file, data + at, piece[1], piece[0]) == (ssize_t)piece[1];
        at += piece[1];
    }
    if (!done || close(file) != 0) {
        printf("%s: cannot be unpacked to %s\n", packed, path);
        exit(1);
    }
    free(data);
}

/* Lays the sample out as its program left it. */
static void lay_out(const struct sample *sample) {
    static const char *const names[] = {"run.json", "config.resolved.yaml", "metrics.jsonl", "latest"};
    files_remove_folder("run");
    files_remove_folder("drive");
    files_make_folder("run");
    files_make_folder("drive");
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        size_t bytes = 0;
        char *const data = files_read(source(plain_pathf("%s/%s", sample->name, names[i])), &bytes);
        files_write(test_pathf("run/%s", names[i]), data, bytes);
        free(data);
    }
    files_copy_folder(source(plain_pathf("%s/checkpoint-3", sample->name)), test_path("run/checkpoint-3"));
    unpack(source(plain_pathf("%s/store", sample->name)), test_path("drive/offload-store-0.ox"));
    if (sample->trace > 0) {
        unpack(source(plain_pathf("%s/trace", sample->name)), test_path("run/trace.bin"));
    }
}

/* ---- commands -------------------------------------------------------------------------------------------------- */

static void run(const char *command, const char *word) {
    sys_args_begin(&args, command);
    sys_args_word(&args, "%s", word);
    sys_run(&args, &process);
}

/* Trains up to STEPS with the options that the sample's own program has recorded. */
static void train(const char *output, const char *origin, const char *drive) {
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--config=%s", test_path("run/config.resolved.yaml"));
    sys_args_word(&args, "--model=%s", source("config.json"));
    sys_args_word(&args, "--data=%s", source("text"));
    sys_args_word(&args, "--output=%s", test_path(output));
    sys_args_word(&args, "--resume=%s", origin);
    sys_args_word(&args, "--max-steps=%d", STEPS);
    sys_args_add(&args, "--host-mem 512MiB"); /* old records have what was free on the machine that made them */
    sys_args_drive(&args, drive, "4MiB");
    sys_run(&args, &process);
}

/* Compares what was trained with what the sample's own program trained in one go. */
static void compare(const struct sample *sample, const char *output) {
    size_t bytes = 0;
    char *const expected = files_read(source(plain_pathf("%s/whole.jsonl", sample->name)), &bytes);
    char *const curve = sys_curve(test_path(output), "step");
    for (unsigned step = TAKEN_STEPS + 1; step <= STEPS; step++) {
        const double wanted = sys_metric(expected, step, "loss"), found = sys_metric(curve, step, "loss");
        if (!(fabs(found - wanted) <= 1e-4 * wanted)) { /* matrix libraries differ by machine */
            printf("step %u: loss %.9g, expected %.9g\n", step, found, wanted);
            complain(sample, "goes on elsewhere");
        }
    }
    free(curve);
    free(expected);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void test_store(const struct sample *sample) {
    run("inspect", test_path("drive"));
    if (process.outcome.exit_status != 0 || strstr(process.outcome.out, "step") == NULL) {
        complain(sample, "the store is not inspected");
    }
}

static void test_train(const struct sample *sample, const char *output, const char *origin, const char *drive) {
    char words[64];
    lay_out(sample);
    train(output, origin, drive);
    if (sample->state >= STATE_OLDEST) {
        if (process.outcome.exit_status != 0 || !sys_said(&process, "resumed at step 3 of 5")) {
            complain(sample, "cannot go on");
            return;
        }
        compare(sample, output);
        return;
    }
    snprintf(words, sizeof words, "version %u", sample->state);
    if (process.outcome.exit_status == 0 || !sys_said(&process, words)) {
        complain(sample, "is not refused by its version");
    }
    test_store(sample);
    CHECK(files_same_folders(source(plain_pathf("%s/checkpoint-3", sample->name)), test_path("run/checkpoint-3")));
}

static void test_checkpoint(const struct sample *sample) {
    static const char *const commands[] = {"inspect", "eval", "export"};
    for (unsigned i = 0; i < sizeof commands / sizeof *commands; i++) {
        sys_args_begin(&args, commands[i]);
        sys_args_add(&args, i == 1 ? "--model" : "");
        sys_args_word(&args, "%s", test_path("run/checkpoint-3"));
        if (i == 1) {
            sys_args_word(&args, "--data=%s", source("text"));
            sys_args_add(&args, "--data-format bytes --seq-len 8");
        } else if (i == 2) {
            sys_args_word(&args, "--output=%s", test_pathf("exported-%s", sample->name));
        }
        sys_run(&args, &process);
        if (process.outcome.exit_status != 0) {
            complain(sample, "a checkpoint that cannot be used");
        }
    }
}

static void test_trace(const struct sample *sample) {
    run("trace report", test_path("run"));
    if (sample->trace != TRACE_ONLY ? process.outcome.exit_status == 0 || !sys_said(&process, "is a trace of version 1")
                                    : process.outcome.exit_status != 0) {
        complain(sample, "its trace");
    }
}

/* A token cache is data too: it is read as the file of tokens that it is. */
static void test_cache(void) {
    files_make_folder("model");
    files_copy_folder(source("config.json"), test_path("model/config.json"));
    files_replace_text("model/config.json", "\"vocab_size\": 16", "\"vocab_size\": 131");
    unpack(source("cache-1"), test_path("old.tokens"));
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=%s", test_path("model/config.json"));
    sys_args_word(&args, "--data=%s", test_path("old.tokens"));
    sys_args_add(&args, "--max-seq-length 8 --eval-fraction 0");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 0 && sys_said(&process, "1 document in 25 sequences of 8 tokens"));
}

/* Profiles of version 1 are refused; one of version 2 is what the plan is for. */
static void test_profiles(void) {
    for (int version = 1; version <= 2; version++) {
        sys_args_begin(&args, "plan");
        sys_args_word(&args, "--model=%s", source("config.json"));
        sys_args_word(&args, "--data=%s", source("text"));
        sys_args_word(&args, "--profile=%s", source(plain_pathf("profile-%d.json", version)));
        sys_args_add(&args, "--data-format bytes --max-seq-length 8 --eval-fraction 0");
        sys_run(&args, &process);
        const bool is_refused = process.outcome.exit_status == 2 && sys_said(&process, "is a profile of format 1");
        CHECK(version == 1 ? is_refused : process.outcome.exit_status == 0);
        if (test_failure_count > 0) {
            printf("%s\n", process.outcome.err);
        }
    }
}

int main(void) {
    if (getcwd(root, sizeof root) == NULL) {
        test_skip("the working folder has no path");
    }
    for (int i = 0; i < SAMPLE_COUNT; i++) {
        const struct sample *const sample = &samples[i];
        lay_out(sample);
        test_store(sample);
        test_checkpoint(sample);
        if (sample->trace > 0) {
            test_trace(sample);
        }
        test_train(sample, "run", "latest", "drive");
        test_train(sample, "other", test_path("run/checkpoint-3"), "other-drive");
        files_remove_folder("other");
        files_remove_folder("other-drive");
    }
    test_cache();
    test_profiles();
    return test_end();
}
