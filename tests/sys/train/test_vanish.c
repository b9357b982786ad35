/* Files of a run that vanish while it goes on: its store, a drive's folder, its own folder, deleted, moved or replaced.
 * The run notices at its next commit or save, says so, saves what only it still reaches, and ends with an error;
 * `latest` then leads to the weights of the undisturbed run. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 24, SEEN = 3 };

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *text_path;

static void begin(const char *name, const char *words, bool drives) {
    sys_args_train(&args, model_path, text_path, name);
    sys_args_add(&args, "--gradient-accumulation-steps 2 --batch-size 1 --max-seq-length 16 --learning-rate 3e-3"
                        " --eval-windows 0 --eval-steps 0 --save-steps 0 --compute-threads 1 --optimizer-threads 1"
                        " --chunk-elems 8192");
    sys_args_word(&args, "--max-steps=%d", STEPS);
    sys_args_add(&args, words);
    for (int i = 0; drives && i < 2; i++) {
        sys_args_drive(&args, test_pathf("drive-%d", i), "16MiB");
    }
}

static const char *of(const char *name) {
    return test_path(name);
}

/* ---- what happens to the files ----------------------------------------------------------------------- */

static void delete_store(void) {
    CHECK(unlink(of("drive-1/offload-store-1.ox")) == 0);
}

static void move_store(void) {
    CHECK(rename(of("drive-0/offload-store-0.ox"), of("elsewhere")) == 0);
}

static void replace_store(void) {
    files_write_text("other", "something else");
    CHECK(rename(of("other"), of("drive-0/offload-store-0.ox")) == 0);
}

static void move_drive(void) {
    CHECK(rename(of("drive-0"), of("elsewhere")) == 0);
}

static void delete_folder(void) {
    files_remove_folder("run");
}

static void move_folder(void) {
    CHECK(rename(of("run"), of("moved")) == 0);
}

static void replace_folder(void) {
    files_remove_folder("run");
    files_make_folder("run");
}

static void delete_all(void) {
    delete_store();
    delete_folder();
}

/* ---- runs --------------------------------------------------------------------------------------------- */

/* In the place of the last checkpoint, and of what becomes that. */
static void put_file(void) {
    files_write_text("run/checkpoint-24", "something else");
}

static void put_unfinished(void) {
    files_write_text("run/checkpoint-24.tmp", "something else");
}

struct what {
    void (*happens)(void);
    const char *name, *says;
    const char *output; /* where the run is afterwards; NULL: saved elsewhere, or with drives nowhere */
    bool needs_drives;
};

static const struct what whats[] = {
    {delete_store, "a store deleted", "offload-store-1.ox: was deleted while it was in use", "run", true},
    {move_store, "a store moved", "offload-store-0.ox: was moved away while it was in use", "run", true},
    {replace_store, "a store replaced", "offload-store-0.ox: was replaced while it was in use", "run", true},
    {move_drive, "a drive's folder moved", "offload-store-0.ox: was moved away while it was in use", "run", true},
    {delete_folder, "the folder deleted", "the run's folder was deleted while the run was going on", "run", false},
    {move_folder, "the folder moved", "the run's folder was moved to ", "moved", false},
    {replace_folder, "the folder replaced", "its place is taken: nothing more is saved there", NULL, false},
    {delete_all, "store and folder deleted", " deleted while ", "run", true},
};

static void complain(const char *name, const char *why) {
    printf("%s: %s: status %d\n%s\n", name, why, process.outcome.exit_status, process.outcome.err);
    test_failure_count++;
}

static void remove_all(void) {
    static const char *const names[] = {"run", "run.rescue", "moved", "drive-0", "drive-1"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        files_remove_folder(names[i]);
    }
    if (files_exist("elsewhere") && unlink(of("elsewhere")) != 0) {
        files_remove_folder("elsewhere");
    }
}

/* `commits`: the most steps until the next commit. */
static void check(const struct what *what, const char *words, bool drives, int commits) {
    int status = 0;
    begin("run", words, drives);
    sys_args_leash(&args);
    sys_start(&args, &process);
    CHECK(sys_await(&process, "\nstep 3/"));
    kill(process.pid, SIGSTOP);
    CHECK(waitpid(process.pid, &status, WUNTRACED) == process.pid && WIFSTOPPED(status));
    what->happens();
    kill(process.pid, SIGCONT);
    sys_wait(&process);
    const long step = sys_number_after(process.outcome.err, "\nstep ", -1);
    if (process.outcome.exit_status != 1 || strstr(process.outcome.err, what->says) == NULL) {
        complain(what->name, "not noticed");
    } else if (step >= STEPS || step < SEEN) {
        complain(what->name, "noticed late");
    }
    (void)commits;
    if (what->output == NULL && drives) {
        CHECK(files_count("run", "", "") == 0 && !files_exist("run.rescue"));
        remove_all();
        return;
    }
    begin(what->output == NULL ? "run" : what->output, words, drives);
    if (what->output == NULL) {
        CHECK(strstr(process.outcome.err, "run.rescue/checkpoint-") != NULL);
        sys_args_word(&args, "--resume=%s", files_find("run.rescue", "checkpoint-", ""));
    } else {
        sys_args_add(&args, "--resume latest");
    }
    sys_run(&args, &process);
    if (process.outcome.exit_status != 0 ||
        !sys_same_checkpoint(test_pathf("expected/checkpoint-%d", STEPS),
                             test_pathf("%s/checkpoint-%d", what->output == NULL ? "run" : what->output, STEPS))) {
        complain(what->name, "not the same in the end");
    }
    if (sys_number_after(process.outcome.err, "resumed at step ", -1) < SEEN - commits) {
        complain(what->name, "began too early");
    }
    remove_all();
}

/* Something comes into the place of the last checkpoint while the run goes on. A file is renamed, and said to be only
 * when it is; what is in the way of the checkpoint's own files is not waited for: the state is saved elsewhere. */
static void check_place(void (*happens)(void), int exit_status, const char *says, const char *saved) {
    int status = 0;
    begin("run", "", false);
    sys_args_leash(&args);
    sys_start(&args, &process);
    CHECK(sys_await(&process, "\nstep 3/"));
    kill(process.pid, SIGSTOP);
    CHECK(waitpid(process.pid, &status, WUNTRACED) == process.pid && WIFSTOPPED(status));
    happens();
    kill(process.pid, SIGCONT);
    sys_wait(&process);
    const char *const text = strstr(process.outcome.err, says);
    if (process.outcome.exit_status != exit_status || text == NULL || strstr(text, "is tried again") != NULL) {
        complain(says, "not as expected");
    }
    CHECK(sys_same_checkpoint(test_pathf("expected/checkpoint-%d", STEPS), test_path(saved)));
    if (exit_status == 0) { /* the next run in that folder is told before it begins */
        CHECK(files_exist("run/checkpoint-24.old-1"));
        files_write_text("run/checkpoint-99", "");
        begin("run", "--overwrite-output-dir", false);
        sys_run(&args, &process);
        CHECK(process.outcome.exit_status == 2 && sys_said(&process, "run/checkpoint-99: is no folder"));
    }
    remove_all();
}

int main(void) {
    static const struct {
        const char *words;
        bool drives;
        int commits;
    } runs[] = {{"--persist-steps 1", true, 1}, {"--persist-steps 1 --state-tier nvme", true, 2},
                {"--persist-steps 5", true, 5}, {"", false, 0}};
    model_path = sys_write_model("llama");
    text_path = sys_write_text(20000);
    begin("expected", "", false);
    sys_run_well(&args, &process);
    check_place(put_file, 0, "checkpoint-24: is not a complete checkpoint; it was renamed to ", "run/checkpoint-24");
    check_place(put_unfinished, 1, " is saved in ", "run.rescue/checkpoint-24");
    for (unsigned run = 0; run < sizeof runs / sizeof *runs; run++) {
        for (unsigned i = 0; i < sizeof whats / sizeof *whats && test_failure_count < 5; i++) {
            if ((runs[run].drives || !whats[i].needs_drives) && test_takes(run + i, 2)) {
                check(&whats[i], runs[run].words, runs[run].drives, runs[run].commits);
            }
        }
    }
    return test_end();
}
