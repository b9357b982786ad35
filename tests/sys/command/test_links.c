/* Links that somebody has planted: in the place of each name that a run makes in its folder, on its drives and in its
 * cache, and of what other commands write, lies a link to a file, to a folder, or to nothing. What it leads to stays as
 * it is, and the command succeeds or ends in an error of its own. The names are those that an undisturbed run leaves,
 * and those that are gone by its end. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/test.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAMES_MAX = 64, NAME_BYTES = 256 };
static struct sys_args args, launched;
static struct sys_process process;
static const char *model_path, *text_path, *trained;
static unsigned planted, refused;

#define OF_RUN " --max-steps 2 --save-steps 1 --max-seq-length 32 --batch-size 1 --global-batch-size 2 --from-scratch" \
    " --compute-threads 1 --optimizer-threads 1 --host-mem 64MiB --save-dtype bf16 --trace on --report-to all" \
    " --save-wait-seconds 0 --quiet"

static void run_train(void) {
    sys_args_train(&args, model_path, text_path, "place/out");
    sys_args_add(&args, OF_RUN);
    sys_args_word(&args, "--data-cache=%s", files_make_folder("place/tokens"));
    sys_args_drive(&args, "place/drive", "64MiB");
    sys_run(&args, &process);
}

static void run_train_cached(void) {
    sys_args_train(&args, model_path, text_path, "place/out");
    sys_args_add(&args, OF_RUN);
    sys_run(&args, &process);
}

static void run_processes(void) {
    sys_args_train(&args, model_path, text_path, "place/out");
    sys_args_add(&args, OF_RUN);
    sys_args_drive(&args, "place/drive", "64MiB");
    sys_mpi_begin(&launched, 2, &args, SYS_MPI_END_AT_ONCE);
    sys_run(&launched, &process);
}

static void run_export(void) {
    sys_args_begin(&args, "export");
    sys_args_word(&args, "--model=%s", test_path(trained));
    sys_args_word(&args, "--output=%s", test_path("place/model"));
    sys_run(&args, &process);
}

static void run_page(void) {
    sys_args_begin(&args, "trace");
    sys_args_word(&args, "report");
    sys_args_word(&args, "%s", test_path(trained));
    sys_args_word(&args, "--output=%s", test_path("place/page.html"));
    sys_run(&args, &process);
}

static void run_events(void) {
    sys_args_begin(&args, "trace");
    sys_args_word(&args, "export");
    sys_args_word(&args, "%s", test_path(trained));
    sys_args_word(&args, "--output=%s", test_path("place/events.json"));
    sys_run(&args, &process);
}

static void run_tokenize(void) {
    sys_args_begin(&args, "tokenize");
    sys_args_word(&args, "--model=%s", model_path);
    sys_args_word(&args, "--data=%s", text_path);
    sys_args_word(&args, "--output=%s", test_path("place/tokens.bin"));
    sys_run(&args, &process);
}

static void run_bench(void) {
    files_make_folder("place/drive");
    sys_args_begin(&args, "bench");
    sys_args_word(&args, "nvme");
    sys_args_word(&args, "--nvme=%s:64MiB", test_path("place/drive"));
    sys_args_add(&args, "--size 16MiB --rounds 1");
    sys_run(&args, &process);
}

static const struct command {
    const char *name;
    void (*run)(void);
    const char *also[6]; /* names that are gone when it has ended */
} commands[] = {
    {"a run with a drive", run_train,
     {"out/checkpoint-1.tmp", "out/checkpoint-2.tmp", "out/offload.stop", "out/offload.save", "out/gemms.txt"}},
    {"a run that caches beside itself", run_train_cached, {NULL}},
    {"a run of two processes", run_processes, {"drive/process-0-of-4", "drive/process-1-of-4"}},
    {"export", run_export, {"model.tmp"}},
    {"a report of a trace", run_page, {NULL}},
    {"events of a trace", run_events, {NULL}},
    {"tokenize", run_tokenize, {NULL}},
    {"bench", run_bench, {"drive/offload-bench.tmp"}},
};

static struct {
    char names[NAMES_MAX][NAME_BYTES];
    unsigned count;
} seen;

static void add(const char *name) {
    CHECK(seen.count < NAMES_MAX);
    snprintf(seen.names[seen.count++ % NAMES_MAX], NAME_BYTES, "%s", name);
}

/* Adds all names below place/, but for those in a checkpoint, which is filled under another name. */
static void look(const char *below) {
    DIR *const folder = opendir(test_pathf("place/%s", below));
    const struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        const char *const name = plain_pathf("%s%s%s", below, below[0] != '\0' ? "/" : "", entry->d_name);
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        const bool given = strcmp(name, "out") == 0 || strcmp(name, "drive") == 0 || strcmp(name, "tokens") == 0;
        if (!given) { /* links that a user gives are followed */
            add(name);
        }
        if (strncmp(entry->d_name, "checkpoint-", 11) != 0 && strcmp(name, "model") != 0) {
            look(name);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
}

enum to { TO_FILE, TO_FOLDER, TO_NOTHING, TO_COUNT };
static const char *const targets[TO_COUNT] = {"victim/file", "victim/folder", "victim/nothing"};

static void make_victim(void) {
    files_remove_folder("victim");
    files_make_folder("victim/folder");
    files_write_text("victim/file", "precious");
}

static bool is_untouched(void) {
    char *const text = files_read("victim/file", NULL);
    struct stat info;
    const bool same = strcmp(text, "precious") == 0 && files_count("victim", "", "") == 2 &&
                      files_count("victim/folder", "", "") == 0 &&
                      lstat(test_path("victim/folder"), &info) == 0 && S_ISDIR(info.st_mode);
    free(text);
    return same;
}

static void plant(const char *name, enum to to) {
    char path[SYS_PATH_BYTES];
    files_remove_folder("place");
    snprintf(path, sizeof path, "place/%s", name);
    *strrchr(path, '/') = '\0';
    files_make_folder(path);
    snprintf(path, sizeof path, "place/%s", name);
    if (symlink(test_path(targets[to]), test_path(path)) != 0) {
        printf("%s: no link can be made\n", name);
        exit(1);
    }
    planted++;
}

static void test_command(const struct command *command) {
    files_remove_folder("place");
    files_make_folder("place");
    command->run();
    if (process.outcome.exit_status != 0) {
        sys_complain(&process, command->name);
        return;
    }
    seen.count = 0;
    look("");
    printf("%s: %u names\n", command->name, seen.count);
    for (unsigned i = 0; i < 6 && command->also[i] != NULL; i++) {
        add(command->also[i]);
    }
    for (unsigned i = 0; i < seen.count; i++) {
        for (enum to to = TO_FILE; to < TO_COUNT; to++) {
            if (!test_takes(i + (unsigned)to, TO_COUNT)) {
                continue;
            }
            make_victim();
            plant(seen.names[i], to);
            command->run();
            const int status = process.outcome.exit_status;
            const bool told = status == 0 || ((status == 1 || status == 2) && sys_said(&process, "offload: "));
            refused += status != 0;
            if (!told || !is_untouched()) {
                sys_complain(&process, plain_pathf("%s, with %s a link to %s", command->name, seen.names[i],
                                                   targets[to]));
            }
        }
    }
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    model_path = sys_write_speaker();
    text_path = sys_write_text(4000);
    files_make_folder("place");
    run_train();
    CHECK(rename(test_path("place/out"), test_path("trained")) == 0);
    trained = "trained";
    for (unsigned i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (commands[i].run == run_processes && sys_mpi_missing() != NULL) {
            printf("%s: not tried: %s\n", commands[i].name, sys_mpi_missing());
            continue;
        }
        test_command(&commands[i]);
    }
    printf("%u links planted, %u commands refused\n", planted, refused);
    CHECK(planted > 40 && refused > 5);
    return test_end();
}
