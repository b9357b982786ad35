/* Identity of a run: resuming from a named checkpoint begins a branch that no crash undoes, a fork is a run of its own,
 * and no store, model or folder of another run is deleted or shared unasked. Also what a fault in the data leaves. */
#include "base/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/run/trainer_internal.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *text_path;

static void begin_with(const char *name, const char *model, const char *data) {
    sys_args_train(&args, model, data, name);
    sys_args_add(&args, "--max-seq-length 16 --compute-threads 1 --optimizer-threads 1 --host-mem 32MiB"
                        " --eval-windows 2 --lr-scheduler-type constant --chunk-elems 8192");
}

static void begin(const char *name, const char *words) {
    begin_with(name, model_path, text_path);
    sys_args_add(&args, words);
}

static void on_drive(const char *drive) {
    sys_args_drive(&args, drive, "32MiB");
}

static void resume(const char *checkpoint) {
    sys_args_word(&args, "--resume=%s", test_path(checkpoint));
}

static bool exists(const char *name) {
    return files_exist(name);
}

static void expect(int exit_status, const char *words) {
    if (process.outcome.exit_status != exit_status || strstr(process.outcome.err, words) == NULL) {
        printf("expected status %d and \"%s\", got %d:\n%s\n", exit_status, words, process.outcome.exit_status,
               process.outcome.err);
        test_failure_count++;
    }
}

static void run(int exit_status, const char *words) {
    sys_run(&args, &process);
    expect(exit_status, words);
}

static struct ox_run_state state_of(const char *name) {
    struct ox_run_state state = {0};
    REQUIRE_OK(ox_checkpoint_read_state(test_path(name), &state));
    return state;
}

static bool same_words(const uint64_t a[2], const uint64_t b[2]) {
    return memcmp(a, b, 2 * sizeof *a) == 0;
}

/* The signal is already pending when the program begins to accept signals, so its moment is exact. */
static void run_with_pending(int signal_number) {
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, signal_number);
    sigprocmask(SIG_BLOCK, &set, &old);
    sys_start(&args, &process);
    kill(process.pid, signal_number);
    sigprocmask(SIG_SETMASK, &old, NULL);
    sys_wait(&process);
}

/* Kernels of another core round otherwise: a resume tells of them, once. */
__attribute__((unused)) static void test_arithmetic(void) {
    CHECK(setenv("OPENBLAS_CORETYPE", "Sandybridge", 1) == 0);
    begin("run", "--max-steps 1");
    run(0, "step 1/1");
    begin("run", "--max-steps 1 --resume latest");
    run(0, "resumed at step 1");
    CHECK(strstr(process.outcome.err, "GEMMs are now") == NULL);
    CHECK(setenv("OPENBLAS_CORETYPE", "Haswell", 1) == 0);
    run(0, "resumed at step 1");
    const char *const line = strstr(process.outcome.err, "warning: GEMMs are now of OpenBLAS ");
    CHECK(line != NULL && strstr(line, "kernels Haswell, 1 thread, tiles by shape; other loops in ") != NULL &&
          strstr(line, ", and were of OpenBLAS ") != NULL &&
          strstr(line, "kernels Sandybridge, 1 thread, tiles ") != NULL);
    run(0, "resumed at step 1");
    CHECK(strstr(process.outcome.err, "GEMMs are now") == NULL);
    CHECK(unsetenv("OPENBLAS_CORETYPE") == 0);
    files_remove_folder("run");
}

/* A folder in which a search for libraries finds oneDNN damaged. */
static void hide_onednn(void) {
    files_make_folder("hidden");
    files_write("hidden/libdnnl.so.2", "", 0);
    files_write("hidden/libdnnl.so.3", "", 0);
    CHECK(setenv("LD_LIBRARY_PATH", test_path("hidden"), 1) == 0);
}

/* A run in bf16 goes on without oneDNN and with it, and says and records which library computes. */
static void test_onednn(void) {
    const char *library;
    const bool is_there = ox_cpu_has_products(OX_REAL_BF16, &library);
    hide_onednn();
    begin("run", "--max-steps 1 --dtype bf16");
    run(0, "compute in bf16 weights, fp32 sums (there is no libdnnl (oneDNN))");
    CHECK(unsetenv("LD_LIBRARY_PATH") == 0);
    CHECK(setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE", 1) == 0);
    begin("run", "--max-steps 1 --dtype bf16 --resume latest");
    run(0, "resumed at step 1");
    CHECK(strstr(process.outcome.err, "GEMMs are now") == NULL);
    CHECK(unsetenv("ONEDNN_MAX_CPU_ISA") == 0);
    run(0, "resumed at step 1");
    char line[256];
    snprintf(line, sizeof line, is_there ? "bf16, fp32 sums (%s)" : "bf16 weights, fp32 sums (%s)", library);
    expect(0, line);
    CHECK((strstr(process.outcome.err, "warning: GEMMs are now of oneDNN ") != NULL) == is_there);
    CHECK(strstr(process.outcome.err, "and were of OpenBLAS") == NULL); /* nothing else has changed */
    files_remove_folder("run");
    files_remove_folder("hidden");
}

/* ---- branches ---------------------------------------------------------------------------------------- */

/* Takes six steps, then resumes from the second by name; later resumes stay on that branch, though it is shorter. */
static void test_branch(bool with_drive) {
    char *text = NULL;
    size_t bytes = 0;
    begin("run", "--max-steps 6 --save-steps 2");
    if (with_drive) {
        on_drive("drive");
    }
    run(0, "step 6/6");
    const struct ox_run_state before = state_of("run/checkpoint-2");

    begin("run", "--max-steps 6 --learning-rate 1e-3");
    resume("run/checkpoint-2");
    if (with_drive) {
        on_drive("drive");
    }
    const char *drive, *kept;
    if (with_drive) {
        kept = test_path("kept-drive");
        drive = test_path("drive");
        files_copy_folder(drive, kept);
    }
    run_with_pending(SIGTERM); /* before any step of the new branch */
    expect(128 + SIGTERM, "");
    if (with_drive) { /* as if the process had ended before it removed the old store */
        files_remove_folder(drive);
        files_copy_folder(kept, drive);
    }
    const char *const latest = test_path("run/latest");
    REQUIRE_OK(ox_file_read(latest, 100, &text, &bytes));
    CHECK(strcmp(text, "checkpoint-2\n") == 0);
    free(text);
    begin("run", "--max-steps 6 --learning-rate 1e-3 --save-total-limit 1 --resume latest");
    if (with_drive) {
        on_drive("drive");
    }
    run_with_pending(SIGUSR2);
    expect(0, "resumed at step 2 of 6");
    CHECK(with_drive == (strstr(process.outcome.err, "the store belongs to a branch that the run has left") != NULL));
    CHECK(exists("run/checkpoint-3") && exists("run/checkpoint-4") && exists("run/checkpoint-6"));
    begin("run", "--max-steps 5 --learning-rate 1e-3 --resume latest");
    if (with_drive) {
        on_drive("drive");
    }
    run(0, "resumed at step 3 of 5");
    const struct ox_run_state after = state_of("run/checkpoint-5");
    CHECK(same_words(after.run_id, before.run_id) && after.branch != before.branch && after.branch != 0);
    /* A checkpoint of the old branch whose name is needed is renamed, not deleted. */
    begin("run", "--max-steps 6 --learning-rate 1e-3 --resume latest");
    if (with_drive) {
        on_drive("drive");
    }
    run(0, "resumed at step 5 of 6");
    CHECK(strstr(process.outcome.err, "checkpoint-6: is of another branch of this run; it was renamed to ") != NULL);
    CHECK(state_of("run/checkpoint-6").branch == after.branch);
    CHECK(state_of("run/checkpoint-6.old-1").branch == before.branch);
}

/* A fork is another run: neither run uses the store of the other. */
static void test_fork(void) {
    begin("fork", "--max-steps 7");
    resume("run/checkpoint-6");
    on_drive("fork-drive");
    run(0, "resumed at step 6 of 7");
    const struct ox_run_state run_state = state_of("run/checkpoint-6"), fork_state = state_of("fork/checkpoint-7");
    CHECK(!same_words(run_state.run_id, fork_state.run_id) && run_state.branch != fork_state.branch);
    begin("run", "--max-steps 7 --resume latest");
    on_drive("fork-drive");
    run(2, "fork-drive");
    begin("run", "--max-steps 7");
    resume("run/checkpoint-6");
    on_drive("fork-drive");
    CHECK(unlink(test_path("fork-drive/offload-store.finished")) == 0); /* as of a run that was stopped */
    run(2, "fork-drive: holds the store of another run; use another folder, or --overwrite-output-dir to delete it");
    CHECK(exists("fork-drive/offload-store-0.ox"));
    begin("fork", "--max-steps 8 --resume latest");
    on_drive("fork-drive");
    run(0, "resumed at step 7 of 8 from the store's last commit");
    /* Without its drives the run does not resume from a checkpoint by itself. */
    begin("fork", "--max-steps 8 --resume latest");
    run(2, "/fork-drive), but no --nvme is given; give them with --nvme, or name a checkpoint");
    CHECK(strstr(process.outcome.err, "checkpoint-N") == NULL);
    begin("fork", "--max-steps 8 --resume latest");
    on_drive("empty-drive");
    run(2, "the given ones hold no store");
    begin("run", "--max-steps 7 --overwrite-output-dir");
    resume("run/checkpoint-6");
    on_drive("fork-drive");
    run(0, "resumed at step 6 of 7");
}

/* ---- run.json ----------------------------------------------------------------------------------------- */

static void on_known_drive(const char *words) {
    begin("known", words);
    on_drive("known-drive");
}

/* Resumes and expects these words on stderr, the run that it was, and two equal copies of run.json. */
static void resume_known(unsigned step, const char *words, const char *id) {
    char number[64];
    snprintf(number, sizeof number, "--max-steps %u --resume latest", step);
    on_known_drive(number);
    run(0, words);
    CHECK(strstr(process.outcome.err, "resumed at step ") != NULL);
    CHECK(files_same("known/run.json", "known/run-copy.json"));
    char *const text = files_read("known/run.json", NULL);
    CHECK(strstr(text, id) != NULL);
    free(text);
}

/* Every bit of it: what is read is right, or the copy is read. */
static void test_each_bit(void) {
    size_t bytes = 0;
    char *const text = files_read("known/run.json", &bytes);
    struct ox_run_identity *const whole = calloc(1, sizeof *whole), *const found = calloc(1, sizeof *found);
    const char *const folder = test_path("known");
    REQUIRE_OK(ox_run_read_identity(folder, whole));
    CHECK(!whole->is_from_copy && !whole->is_outdated);
    unsigned wrong = 0;
    for (size_t i = 0; i < bytes * 8; i++) {
        text[i / 8] ^= (char)(1 << i % 8);
        files_write("known/run.json", text, bytes);
        const bool good = ox_run_read_identity(folder, found) == OX_OK && found->is_outdated;
        found->is_outdated = found->is_from_copy = false;
        wrong += !good || memcmp(found, whole, sizeof *whole) != 0;
        text[i / 8] ^= (char)(1 << i % 8);
    }
    CHECK(wrong == 0);
    files_write("known/run.json", text, bytes);
    free(whole);
    free(found);
    free(text);
}

static void test_run_json(void) {
    static const char copy_used[] = "known/run.json: is damaged or missing; its copy run-copy.json is used";
    char id[64];
    on_known_drive("--max-steps 2");
    run(0, "step 2/2");
    test_each_bit();
    char *const text = files_read("known/run.json", NULL);
    snprintf(id, sizeof id, "%.40s", strstr(text, "\"run_id\""));
    free(text);
    files_flip("known/run.json", 40);
    resume_known(3, copy_used, id);
    CHECK(unlink(test_path("known/run.json")) == 0);
    resume_known(4, copy_used, id);
    files_write_text("known/run-copy.json", "");
    resume_known(5, "resumed at step 4 of 5", id); /* the copy is written again without a word */
    /* Without both the run is found in its checkpoints, in its store, or not at all. */
    files_flip("known/run.json", 40);
    files_flip("known/run-copy.json", 60);
    resume_known(6, "the run is known from its store, and both are written again", id);
    CHECK(unlink(test_path("known/run.json")) == 0 && unlink(test_path("known/run-copy.json")) == 0);
    for (unsigned step = 2; step <= 6; step++) {
        files_remove_folder(test_pathf("known/checkpoint-%u", step));
    }
    resume_known(7, "the run is known from its store, and both are written again", id);
    files_flip("known/run.json", 40);
    files_flip("known/run-copy.json", 60);
    begin("stranger", "--max-steps 9"); /* its store does not make it this run */
    on_drive("stranger-drive");
    run(0, "step 9/9");
    begin("known", "--max-steps 8 --resume latest");
    on_drive("stranger-drive");
    run(2, "stranger-drive");
    files_remove_folder("known-drive");
    resume_known(8, "the run is known from its newest checkpoint, and both are written again", id);
    files_flip("known/run.json", 40);
    files_flip("known/run-copy.json", 60);
    files_remove_folder("known-drive");
    files_remove_folder("known/checkpoint-7");
    files_remove_folder("known/checkpoint-8");
    on_known_drive("--max-steps 9 --resume latest");
    run(1, "known: run.json and its copy are damaged, and no checkpoint and no store says which run this is; restore");
    begin("known", "--max-steps 9");
    run(2, "already holds a run");
}

/* ---- deletion, records, lock -------------------------------------------------------------------------- */

static void test_overwrite(void) {
    begin("over", "--max-steps 2");
    run(0, "step 2/2");
    const char *const model = test_path("over/checkpoint-2");
    begin_with("over", model, text_path);
    sys_args_add(&args, "--max-steps 2 --overwrite-output-dir");
    run(2, "checkpoint-2: lies in what --overwrite-output-dir would delete");
    const char *const link = test_path("link");
    CHECK(symlink(model, link) == 0);
    begin_with("over", link, text_path);
    sys_args_add(&args, "--max-steps 2 --overwrite-output-dir");
    run(2, "link: lies in what --overwrite-output-dir would delete");
    begin_with("over", model_path, test_path("over/metrics.jsonl"));
    sys_args_add(&args, "--max-steps 2 --data-format bytes --overwrite-output-dir");
    run(2, "metrics.jsonl: lies in what");
    /* What can be neither written nor removed is found before anything is. */
    CHECK(rename(test_path("over/metrics.jsonl"), test_path("metrics")) == 0);
    files_make_folder("over/metrics.jsonl");
    begin("over", "--max-steps 2 --overwrite-output-dir");
    run(2, "over/metrics.jsonl: is a folder, and a run has a file of that name; move it away");
    CHECK(exists("over/checkpoint-2/trainer_state.json") && exists("over/run.json"));
    files_remove_folder("over/metrics.jsonl");
    CHECK(rename(test_path("metrics"), test_path("over/metrics.jsonl")) == 0);
    /* Another program's checkpoint stays. */
    files_make_folder("over/checkpoint-9");
    files_write_text("over/checkpoint-9/weights", "");
    files_write_text("over/offload.stop", "");
    begin("over", "--max-steps 3 --overwrite-output-dir --from-scratch");
    run(0, "step 3/3"); /* a trigger file from before has no effect */
    CHECK(exists("over/checkpoint-9/weights") && !exists("over/checkpoint-2") && !exists("over/offload.stop"));
    /* A run begun with --overwrite-output-dir resumes without that flag. */
    sys_args_begin(&args, "train");
    const char *const path = test_path("over/config.resolved.yaml");
    sys_args_word(&args, "--config=%s", path);
    sys_args_add(&args, "--resume-from-checkpoint latest");
    run(0, "resumed at step 3 of 3");
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--config=%s", path);
    run(2, "already holds a run");
}

/* The record of a run's options is of those that it last went on with, also after a start that failed late. */
static void test_late_failure(void) {
    char *before = NULL, *after = NULL;
    size_t bytes[2] = {0, 0};
    const char *const path = test_path("late/config.resolved.yaml");
    begin("late", "--max-steps 2 --trace on");
    run(0, "step 2/2");
    REQUIRE_OK(ox_file_read(path, 1 << 16, &before, &bytes[0]));
    CHECK(unlink(test_path("late/trace.bin")) == 0 && symlink(text_path, test_path("late/trace.bin")) == 0);
    begin("late", "--max-steps 3 --trace on --adam-beta1 0.5 --resume latest");
    run(2, "late/trace.bin: is a link");
    REQUIRE_OK(ox_file_read(path, 1 << 16, &after, &bytes[1]));
    CHECK(bytes[0] == bytes[1] && memcmp(before, after, bytes[0]) == 0);
    free(before);
    free(after);
    CHECK(unlink(test_path("late/trace.bin")) == 0);
    run(0, "step 3/3");
    REQUIRE_OK(ox_file_read(path, 1 << 16, &after, &bytes[1]));
    CHECK(strstr(after, "max_steps: 3\n") != NULL && strstr(after, "adam_beta1: 0.5\n") != NULL);
    free(after);
}

/* What cannot be removed would act at every step, so it does not act, and one line says so. */
static void test_triggers(void) {
    static const char *const names[] = {"over/offload.save: is not acted upon", "over/offload.stop: is not acted upon"};
    files_make_folder("over/offload.save");
    files_make_folder("over/offload.stop");
    begin("over", "--max-steps 6 --resume latest");
    run(0, "step 6/6");
    for (int i = 0; i < 2; i++) {
        const char *const first = strstr(process.outcome.err, names[i]);
        CHECK(first != NULL && strstr(first + 1, names[i]) == NULL);
    }
    CHECK(exists("over/offload.save") && exists("over/offload.stop"));
}

static void test_lock(void) {
    static struct sys_process holder;
    files_make_folder("locked/checkpoint-5.tmp"); /* what a killed process left */
    files_write_text("locked/checkpoint-5.tmp/model.safetensors", "");
    begin("locked", "--max-steps 1000000 --logging-steps 1000000 --save-steps 0"); /* a checkpoint would be resumed */
    sys_start(&args, &holder);
    CHECK(sys_await(&holder, "starting from"));
    struct stat lines = {0}; /* before its first step the next one may find a start that was cut off */
    while (stat(test_path("locked/metrics.jsonl"), &lines) != 0 || lines.st_size == 0) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    CHECK(!exists("locked/checkpoint-5.tmp"));
    static const char *const words[] = {"--overwrite-output-dir", "--resume latest", ""};
    for (int i = 0; i < 3; i++) {
        begin("locked", words[i]);
        run(1, plain_pathf("locked: process %ld is training there", (long)holder.pid));
    }
    CHECK(exists("locked/run.json"));
    CHECK(kill(holder.pid, SIGTERM) == 0);
    sys_wait(&holder);
    CHECK(holder.outcome.exit_status == 128 + SIGTERM);
}

/* A signal during the loading of weights takes effect at once, and an aborted start leaves nothing behind. */
static void test_early_stop(void) {
    begin("early", "--max-steps 2");
    on_drive("early-drive");
    run_with_pending(SIGTERM);
    expect(128 + SIGTERM, "");
    CHECK(!exists("early") && !exists("early-drive/offload-store-0.ox"));
    begin("run", "--max-steps 9 --resume latest");
    on_drive("fork-drive"); /* test_fork has left the store of `run` there */
    run_with_pending(SIGTERM);
    expect(128 + SIGTERM, "");
    begin("run", "--max-steps 7 --resume latest");
    on_drive("fork-drive");
    run(0, "resumed at step 7 of 7 from the store's last commit");
}

/* ---- data --------------------------------------------------------------------------------------------- */

/* Writes an llm.c token file, 17 tokens for each step's window of 16; from token `bad` on ids exceed the vocabulary. */
static const char *write_tokens(const char *name, unsigned count, unsigned bad) {
    static unsigned char tokens[1024 + 2 * 256];
    const uint32_t head[] = {20240520, 1, count};
    memset(tokens, 0, sizeof tokens);
    memcpy(tokens, head, sizeof head);
    for (unsigned i = 0; i < count; i++) {
        tokens[1024 + 2 * i] = (unsigned char)i;
        tokens[1024 + 2 * i + 1] = i >= bad ? 3 : 0;
    }
    const char *const path = test_path(name);
    files_write(path, tokens, 1024 + 2 * (size_t)count);
    return path;
}

static void test_bad_data(void) {
    begin_with("bad", model_path, write_tokens("late.bin", 200, 100));
    sys_args_add(&args, "--data-order sequential --eval-fraction 0 --max-steps 12 --per-device-train-batch-size 1");
    run(1, "but the model knows 256 tokens");
    CHECK(exists("bad/checkpoint-6/trainer_state.json"));
    /* The last evaluation fails, but the trained weights are saved. */
    begin("bad-eval", "--max-steps 2");
    sys_args_word(&args, "--eval-data=%s", write_tokens("eval.bin", 64, 0));
    run(1, "but the model knows 256 tokens");
    CHECK(exists("bad-eval/checkpoint-2/trainer_state.json"));
    begin("none", "--max-steps 2");
    sys_args_word(&args, "--eval-data=%s", write_tokens("short.bin", 8, 8));
    run(2, "short.bin: 8 tokens are not one window");
    CHECK(!exists("none"));
    begin_with("small", model_path, write_tokens("small.bin", 40, 40));
    sys_args_add(&args, "--max-steps 2 --per-device-train-batch-size 1 --eval-fraction 0.1");
    run(0, "nothing is evaluated: --eval-fraction 0.1");
}

static const char *write_masked(void) {
    enum { COUNT = 65 };
    unsigned char file[1024 + 4 * COUNT + (COUNT + 7) / 8] = "BIN.TOK\n";
    const uint32_t head[] = {2, 4, COUNT, 256, 1, 0};
    memcpy(file + 8, head, sizeof head);
    unsigned char *const mask = file + 1024 + 4 * COUNT;
    memset(mask, 0xff, (COUNT + 7) / 8);
    for (unsigned i = 17; i <= 32; i++) { /* the targets of the second window */
        mask[i / 8] = (unsigned char)(mask[i / 8] & ~(1u << i % 8));
    }
    const char *const path = test_path("masked.bin");
    files_write(path, file, sizeof file);
    return path;
}

static void test_masked_step(void) {
    begin_with("masked", model_path, write_masked());
    sys_args_add(&args, "--data-order sequential --eval-fraction 0 --max-steps 4 --per-device-train-batch-size 1");
    run(0, "step 2 is skipped: its windows of ");
    CHECK(strstr(process.outcome.out, "1 step had no token to be trained on") != NULL);
    const struct ox_run_state state = state_of("masked/checkpoint-4");
    CHECK(state.optimizer_steps == 3 && state.cursor == 4 && state.tokens_seen == 48);
}

/* A run names its newest checkpoint as a model does, another model at a resume is named, and a checkpoint that was
 * moved away is the run's behind a link. */
static void test_models(void) {
    char other[OX_PATH_BYTES], moved[OX_PATH_BYTES];
    begin("named", "--max-steps 2");
    sys_run_well(&args, &process);
    begin_with("onward", test_path("named"), text_path);
    sys_args_add(&args, "--max-steps 1");
    run(0, "named: a run, of which ");
    CHECK(strstr(process.outcome.err, "named/checkpoint-2 is the newest checkpoint") != NULL);
    snprintf(other, sizeof other, "%s", test_path("other.json"));
    REQUIRE_OK(ox_file_copy(model_path, other));
    begin_with("named", other, text_path);
    sys_args_add(&args, "--max-steps 3 --resume latest");
    run(0, "other.json: the run began with ");
    begin_with("named", sys_write_model("gpt2"), text_path);
    sys_args_add(&args, "--max-steps 3 --resume latest");
    run(2, "named/checkpoint-3: has another model than the one in training: it lacks, in this shape, \"");
    begin("named", "--max-steps 5 --resume latest"); /* what it began with stays on record */
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "the run began with ") == NULL);
    snprintf(moved, sizeof moved, "%s", test_path("moved"));
    CHECK(rename(test_path("named/checkpoint-2"), moved) == 0);
    CHECK(symlink(moved, test_path("named/checkpoint-2")) == 0);
    begin("named", "--max-steps 6");
    resume("named/checkpoint-2");
    run(0, "--max-steps 5, now 6");
}

int main(void) {
    model_path = sys_write_model("llama");
    text_path = sys_write_text(8000);
#ifdef __x86_64__ /* with builds of OpenBLAS for several cores */
    test_arithmetic();
    test_onednn();
#endif
    test_branch(false);
    files_remove_folder("run");
    test_branch(true);
    test_fork();
    test_run_json();
    test_overwrite();
    test_late_failure();
    test_triggers();
    test_lock();
    test_early_stop();
    test_bad_data();
    test_masked_step();
    test_models();
    return test_end();
}
