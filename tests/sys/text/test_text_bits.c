/* Training on text under every kind of placement, interruption and cache: the same bits each time, a cache
 * that is used when it may be and made again when it may not, and nothing left behind. */
#include "base/file.h"
#include "base/prng/prng.h"
#include "engine/data/files.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 14, LINE = SYS_PATH_BYTES + 64, CHATS = 16, LARGE_BYTES = 40 << 20 };

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *chats_path, *text_path;
static const char *expected_checkpoint;
static char *expected_steps, *expected_evals;

static bool said(const char *words) {
    return strstr(process.outcome.err, words) != NULL;
}

/* Conversations of one to three turns with texts of 4 to 27 letters. */
static void write_chats(void) {
    static char text[1 << 16];
    size_t used = 0;
    for (unsigned i = 0; i < CHATS; i++) {
        uint32_t words[4];
        ox_philox(3, 4, i, words);
        used += (size_t)snprintf(text + used, sizeof text - used, "{\"messages\":[");
        for (unsigned turn = 0; turn <= words[0] % 3; turn++) {
            used += (size_t)snprintf(text + used, sizeof text - used,
                                     "%s{\"role\":\"user\",\"content\":\"%.*s\"},"
                                     "{\"role\":\"assistant\",\"content\":\"%.*s %u\"}",
                                     turn > 0 ? "," : "", 4 + (int)(words[1] >> turn) % 24,
                                     "what is it that the lane waits for", 4 + (int)(words[2] >> turn) % 20,
                                     "the chunk that the drive keeps", words[3] >> turn & 15);
        }
        used += (size_t)snprintf(text + used, sizeof text - used, "]}\n");
    }
    chats_path = files_write_text("chats.jsonl", text);
}

/* ---- the same bits ---------------------------------------------------------------------------------- */

/* A mixture of conversations and lines of text, packed, over more than one epoch. */
static void begin(const char *name, const char *words, int drives) {
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s", model_path);
    sys_args_word(&args, "--data=%s:1.5", chats_path);
    sys_args_word(&args, "--data=%s:0.5", text_path);
    sys_args_word(&args, "--output=%s", test_path(name));
    sys_args_add(&args, "--document-separator \\n --max-seq-length 160 --batch-size 2 --max-steps 14"
                        " --gradient-accumulation-steps 2 --learning-rate 3e-3 --eval-steps 6"
                        " --compute-threads 1 --chunk-elems 4096");
    sys_args_add(&args, strstr(words, "--eval-fraction") == NULL ? "--eval-fraction 0.2" : "");
    sys_args_add(&args, words);
    for (int i = 0; i < drives; i++) {
        sys_args_drive(&args, test_pathf("%s-drive", name), "32MiB");
    }
}

static void begin_fresh(const char *name, const char *words, int drives) {
    begin(name, words, drives);
    sys_args_add(&args, "--from-scratch");
}

static void remove_run(const char *name) {
    files_remove_folder(name);
    files_remove_folder(test_pathf("%s-drive", name));
}

/* Checks that from step `from` on the run equals the undisturbed one. */
static bool is_expected(const char *name, unsigned from) {
    const char *const folder = test_path(name);
    const char *const checkpoint = test_pathf("%s/checkpoint-%d", folder, STEPS);
    char *const steps = sys_curve(folder, "step"), *const evals = sys_curve(folder, "eval");
    const char *const first = sys_curve_from(steps, from), *const last = sys_curve_from(evals, STEPS);
    const bool same = sys_same_text("losses", sys_curve_from(expected_steps, from), first) &&
                      sys_same_text("evaluations", sys_curve_from(expected_evals, STEPS), last) && *last != '\0' &&
                      sys_same_checkpoint(expected_checkpoint, checkpoint);
    free(steps);
    free(evals);
    return same;
}

static void compare(const char *name, unsigned from) {
    if (!is_expected(name, from)) {
        printf("    in %s, from step %u on\n%s\n", name, from, process.outcome.err);
        test_failure_count++;
    }
}

static void make_expected(void) {
    begin_fresh("expected", "--optimizer-threads 1 --save-steps 0", 0);
    sys_run_well(&args, &process);
    const char *const folder = test_path("expected");
    expected_checkpoint = test_pathf("%s/checkpoint-%d", folder, STEPS);
    expected_steps = sys_curve(folder, "step");
    expected_evals = sys_curve(folder, "eval");
    /* The comparison is meaningful: rows hold several documents, steps differ in targets, and an epoch ends during
     * the run. */
    const char *const training = strstr(process.outcome.err, "training: ");
    const long documents = training != NULL ? strtol(training + 10, NULL, 10) : 0,
               rows = sys_number_after(process.outcome.err, " documents in ", 0);
    CHECK(documents > rows && rows > 8 && rows < 4 * STEPS);
    CHECK(sys_metric(expected_steps, 1, "tokens") != sys_metric(expected_steps, 2, "tokens"));
    CHECK(sys_metric(expected_steps, STEPS, "loss") < sys_metric(expected_steps, 1, "loss"));
}

static const char on_drives[] = "--device-mem 8MiB --host-mem 8MiB --weights-tier nvme --state-tier nvme"
                                " --grads-tier nvme --activation-tier nvme";

static void test_placements(void) {
    static const char *const words[] = {"--optimizer-threads 2 --tiles 2 --prefetch-depth 0",
                                        "--device-mem 16MiB --host-mem 32MiB --optimizer-threads 2",
                                        "--device-mem 8MiB --tiles 2 --activation-tier host --weights-tier host"};
    for (int i = 0; i < 4; i++) {
        begin_fresh("place", i < 3 ? words[i] : on_drives, i / 3);
        sys_args_add(&args, "--save-steps 0");
        sys_run_well(&args, &process);
        CHECK(said("tokenized in"));
        compare("place", 1);
        remove_run("place");
    }
    begin_fresh("place", "--seed 8 --save-steps 0", 0);
    sys_run_well(&args, &process);
    printf("with another seed, as it must be: ");
    CHECK(!is_expected("place", 1));
    remove_run("place");
}

/* Cached tokens, and tokens made during the run, on more threads and on fewer. */
static void test_caches(void) {
    const char *const cache = test_path("shared-cache");
    for (int i = 0; i < 3; i++) {
        begin_fresh("cached", i == 2 ? on_drives : "--save-steps 0", i / 2);
        sys_args_word(&args, "--data-cache=%s", cache);
        sys_run_well(&args, &process);
        CHECK(said("tokenized in") == (i == 0) && said("from the cache") == (i > 0));
        compare("cached", 1);
        remove_run("cached");
    }
    files_remove_folder(cache);
}

static const char other_options[] = "was made with other training options",
                  other_data[] = "the data has changed since";

/* Killed after its fifth step, the run resumes within packed rows of both sources. */
static void test_kills(void) {
    for (int drives = 0; drives < 2; drives++) {
        static const char *const again[] = {"--save-steps 3 --tiles 2 --optimizer-threads 2 --resume latest",
                                            "--device-mem 8MiB --weights-tier nvme --resume latest"};
        begin_fresh("killed", drives > 0 ? on_drives : "--save-steps 1", drives);
        sys_start(&args, &process);
        CHECK(sys_await(&process, "step 6/14"));
        kill(process.pid, SIGKILL);
        sys_wait(&process);
        begin("killed", again[drives], drives);
        sys_run_well(&args, &process);
        const long step = sys_number_after(process.outcome.err, "resumed at step ", -1);
        CHECK(step >= 5 && step <= STEPS);
        CHECK(said("from the cache") && !said("tokenized in"));
        CHECK(!said(other_options) && !said(other_data));
        compare("killed", (unsigned)step + 1);
        remove_run("killed");
    }
}

/* An option that changes later rows is reported. */
static void test_changes(void) {
    static const struct {
        const char *words, *sign, *named;
    } changes[] = {
        {"", NULL, ""},
        {"--tiles 2 --optimizer-threads 2", NULL, ""},
        {"--packing stream", other_options, ": --packing auto, now stream; from here on"},
        {"--overlong split", other_options, ": --overlong auto, now split; from here on"},
        {"--seed 8", other_options, ": --seed 42, now 8; from here on"},
        {"--eval-fraction 0.1", other_options, ": --eval-fraction 0.2, now 0.1; from here on"},
        {"--eval-data ", other_options, ": --eval-data none, now "},
        {"--add-eos off", other_data, ": --add-eos auto, now off; the run goes on at window"},
        {"--add-bos on", other_data, ": --add-bos auto, now on; the run goes on at window"},
        {"--train-on last", other_data, ": --train-on all, now last; the run goes on at window"},
        {"--chat-template-kwargs {\"a\":1} --parse-special", other_data,
         ": --chat-template-kwargs none, now {\"a\":1}; --parse-special false, now true; the run goes on at window"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const bool eval = strcmp(changes[i].words, "--eval-data ") == 0;
        begin("changed", eval ? "" : changes[i].words, 0);
        sys_args_word(&args, "--resume=%s", expected_checkpoint);
        if (eval) {
            sys_args_word(&args, "--eval-data=%s", text_path);
        }
        sys_run_well(&args, &process);
        const bool options = changes[i].sign == other_options, data = changes[i].sign == other_data;
        if (said(other_options) != options || said(other_data) != data || !said(changes[i].named)) {
            printf("resumed with \"%s\":\n%s\n", changes[i].words, process.outcome.err);
            test_failure_count++;
        }
        remove_run("changed");
    }
}

/* ---- when a cache is used --------------------------------------------------------------------------- */

/* Evaluates with a cache; returns the output, which the caller frees, and whether text was tokenized. */
static char *evaluate(const char *checkpoint, const char *words) {
    sys_args_begin(&args, "eval");
    sys_args_word(&args, "--model=%s", checkpoint);
    sys_args_word(&args, "--data=%s", text_path);
    sys_args_word(&args, "--data-cache=%s", test_path("eval-cache"));
    sys_args_add(&args, "--seq-len 32 --compute-threads 1 --format json");
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
    return strdup(process.outcome.out);
}

/* Evaluates the folder "model", and sets *answer to the new output. */
static void expect(const char *words, bool tokenized, bool same, char **answer) {
    char *const now = evaluate(test_path("model"), words);
    if (said("tokenized in") != tokenized || said("from the cache") == tokenized ||
        (strcmp(now, *answer) == 0) != same) {
        printf("expected %s and %s figures, with \"%s\":\n%s%s%s", tokenized ? "tokenized" : "cached",
               same ? "the same" : "other", words, *answer, now, process.outcome.err);
        test_failure_count++;
    }
    free(*answer);
    *answer = now;
}

static void test_reuse(void) {
    const char *const tokenizer = "model/tokenizer_config.json";
    char *answer = strdup("");
    files_copy_folder(expected_checkpoint, "model");
    CHECK(unlink(test_path("model/trainer_state.json")) == 0); /* a checkpoint's files may not change */
    expect("", true, false, &answer);
    expect("", false, true, &answer);
    /* Another time of change alone changes nothing; other bytes of the same number do. */
    files_replace_text(text_path, "times.", "times.");
    expect("", false, true, &answer);
    files_replace_text(text_path, "times.", "TIMES.");
    expect("", true, false, &answer);
    files_replace_text(text_path, "TIMES.", "times.");
    expect("", true, false, &answer);
    /* Options that change ids lead to another cache, so the earlier one still exists. */
    expect("--add-bos on", true, false, &answer);
    expect("--document-separator \\n", true, false, &answer);
    expect("--add-bos on", false, false, &answer);
    expect("", false, false, &answer);
    files_replace_text(tokenizer, "\"<|startoftext|>\"", "\"<|endoftext|>\"  ");
    expect("--add-bos on", true, false, &answer);
    files_replace_text(tokenizer, "\"<|endoftext|>\"  ", "\"<|startoftext|>\"");
    expect("--add-bos on", false, false, &answer);
    files_remove_folder("eval-cache");
    free(answer);
}

static void test_damage(void) {
    static const long offsets[] = {8, 40, 16000, 16384 + 500, -500};
    enum { OFFSETS = sizeof offsets / sizeof *offsets };
    char *answer = strdup("");
    expect("", true, false, &answer);
    const char *const path = files_find("eval-cache", "", ".tokens");
    /* A cache that is damaged in its header, tokens or documents, or truncated, is made again. */
    for (int i = 0; i <= OFFSETS; i++) {
        if (i < OFFSETS) {
            files_flip(path, offsets[i]);
        } else {
            CHECK(truncate(path, 16384) == 0);
        }
        expect("", true, true, &answer);
        CHECK(said("the token cache is damaged and will be made again"));
        expect("", false, true, &answer);
    }
    free(answer);
}

/* ---- stopped ---------------------------------------------------------------------------------------- */

static void write_large(const char *path, size_t bytes) {
    FILE *const file = fopen(path, "w");
    for (size_t written = 0, i = 0; file != NULL && written < bytes; i++) {
        const int line = fprintf(file, "Line %zu says that the drive keeps chunk %zu and lane %zu waits.\n", i,
                                 i * 7919, i * 104729 % 1000);
        written += line > 0 ? (size_t)line : bytes;
    }
    CHECK(file != NULL && fclose(file) == 0);
}

static bool holds_file(const char *folder) {
    struct ox_files files;
    if (!files_exist(folder)) {
        return false;
    }
    REQUIRE_OK(ox_files_list(folder, &files));
    const bool holds = files.count + files.left[OX_LEFT_HIDDEN].count > 0;
    ox_files_free(&files);
    return holds;
}

static void begin_large(const char *path, const char *output) {
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s", model_path);
    sys_args_word(&args, "--data=%s", path);
    sys_args_word(&args, "--output=%s", output);
    sys_args_add(&args, "--from-scratch --max-seq-length 32 --compute-threads 1 --max-steps 2");
}

/* After INT while a large text is tokenized the program ends, and leaves nothing that disturbs the next start. Nor does
 * a process that is killed. */
static void test_stops(void) {
    static const int signals[] = {SIGINT, SIGTERM, SIGKILL};
    const char *const path = test_path("large.txt");
    const char *const output = test_path("stopped");
    const char *const cache = test_path("stopped/cache");
    write_large(path, LARGE_BYTES);
    for (int i = 0; i < 3; i++) {
        begin_large(path, output);
        sys_start(&args, &process);
        while (!holds_file(cache) && kill(process.pid, 0) == 0) {
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
        kill(process.pid, signals[i]);
        sys_wait(&process);
        if (i < 2) {
            CHECK(process.outcome.exit_status == 128 + signals[i]);
            CHECK(!said("; tokenized in"));
            CHECK(strcmp(process.outcome.out, "stopped before the first step: nothing was saved\n") == 0);
            CHECK(!holds_file(cache));
        } else {
            CHECK(process.outcome.signal_number == SIGKILL);
        }
    }
    write_large(path, 100000);
    begin_large(path, output);
    sys_run_well(&args, &process);
    CHECK(said("tokenized in"));
    /* The file of the killed process is removed; the cache and a note on its text exist. */
    struct ox_files files;
    REQUIRE_OK(ox_files_list(cache, &files));
    CHECK(files.left[OX_LEFT_HIDDEN].count == 0);
    CHECK(files.count == 1 || files.count == 2);
    ox_files_free(&files);
    files_remove_folder(output);
}

int main(void) {
    model_path = sys_write_speaker();
    text_path = sys_write_text(4000);
    write_chats();
    make_expected();
    test_placements();
    test_caches();
    test_kills();
    test_changes();
    test_reuse();
    test_damage();
    test_stops();
    free(expected_steps);
    free(expected_evals);
    return test_end();
}
