#include "tests/kit/files.h"
#include "tests/kit/run/tiny_run.h"

#include "base/file.h"
#include "base/log.h"
#include "engine/run/trainer_internal.h"
#include "kernels/cpu/cpu.h"
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Its units have one chunk; those of the wide one have two, so that two processes have a part of each. */
#define CONFIG(hidden, intermediate)                                                                               \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 256,"                  \
    " \"hidden_size\": " #hidden ", \"intermediate_size\": " #intermediate ", \"num_hidden_layers\": 1,"           \
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"max_position_embeddings\": 16,"                    \
    " \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"tie_word_embeddings\": true, \"hidden_act\": \"silu\"}\n"
static const char config_json[] = CONFIG(8, 16), wide_config_json[] = CONFIG(16, 64);
/* Eight experts have a chunk in each of their tensors, so that they can be units. */
static const char mixture_json[] =
    "{\"architectures\": [\"Glm4MoeForCausalLM\"], \"model_type\": \"glm4_moe\", \"vocab_size\": 256,"
    " \"hidden_size\": 16, \"intermediate_size\": 16, \"num_hidden_layers\": 1, \"num_attention_heads\": 2,"
    " \"num_key_value_heads\": 1, \"head_dim\": 8, \"max_position_embeddings\": 16, \"rms_norm_eps\": 1e-5,"
    " \"rope_theta\": 10000.0, \"tie_word_embeddings\": true, \"hidden_act\": \"silu\", \"n_routed_experts\": 16,"
    " \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 16, \"n_shared_experts\": 1, \"n_group\": 1,"
    " \"topk_group\": 1, \"first_k_dense_replace\": 0}\n";

/* Everything lives on the drive, and every unit passes through each lane that there is. */
static const char *const options[][2] = {
    {"gradient-accumulation-steps", "2"}, {"batch-size", "1"}, {"max-seq-length", "8"}, {"learning-rate", "3e-2"},
    {"max-grad-norm", "0.5"}, {"eval-windows", "1"}, {"eval-steps", "2"},
    {"compute-threads", "1"}, {"optimizer-threads", "1"}, {"chunk-elems", "2048"}, {"device-mem", "2MiB"},
    {"host-mem", "2MiB"}, {"weights-tier", "nvme"}, {"state-tier", "nvme"}, {"grads-tier", "nvme"}, {"tiles", "1"},
    {"save-dtype", "bf16"}, {"queue-depth", "4"}, {"data-format", "bytes"},
};
/* What is planned for such a run, which a search among all placements takes two thirds of a short process to find. */
static const char *const planned[][2] = {
    {"speculative-units", "1"}, {"device-state-units", "0"}, {"prefetch-depth", "2"}, {"activation-tier", "host"},
    {"kept-blocks", "0"}, {NULL, NULL},
};
enum { OPTION_COUNT = sizeof options / sizeof *options };
enum { SHARED_ALIGN = 1 << 16, SHARED_BYTES = 1 << 22, HANG_SECONDS = 200 };

struct tiny_counts tiny_counts;

static const char *model_path, *text_path;
static char memory_root[] = "/dev/shm/offload-tiny-XXXXXX";
static const char *root;
static const char *const (*more_options)[2];
static const char *const *expected_warnings;
static unsigned drive_count = 1, lost_max = 1;
static bool is_mixture;
static enum sys_mpi_loss loss = SYS_MPI_END_AT_ONCE;

static const char *in_root(const char *name) {
    return test_pathf("%s/%s", root, name);
}

static const char *drive_of(const char *name, unsigned idx) {
    return test_pathf("%s/%s-drive%s", root, name, idx == 0 ? "" : "-2");
}

void tiny_single_thread(char **argv) {
    static const char name[] = "OPENBLAS_NUM_THREADS";
    const char *const value = getenv(name);
    if ((value == NULL || strcmp(value, "1") != 0) && setenv(name, "1", 1) == 0) {
        execv("/proc/self/exe", argv); /* where that fails, it only takes longer */
    }
}

/* How a process of several learns which run it belongs to: "FOLDER ROOT NAME BACKEND START DISTURBED", where the
 * first is the test's folder. */
static const char variable[] = "TINY_PROCESS";
static unsigned process_count; /* 0: each run is one process, forked from the test */
static struct tiny_told *processes_told; /* shared */
static int shared_fd = -1; /* of a file that processes share; -1: forked processes share memory */

void *tiny_shared(size_t bytes) {
    static off_t used;
    void *const memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (shared_fd < 0 ? MAP_ANONYMOUS : 0),
                              shared_fd, shared_fd < 0 ? 0 : used);
    if (memory == MAP_FAILED) {
        printf("no memory to share\n");
        exit(1);
    }
    used += (off_t)((bytes + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN);
    return memory;
}

/* ---- within the new process ------------------------------------------------------------------------- */

static void set_option(struct ox_config *config, const char *name, const char *value) {
    REQUIRE_OK(ox_config_set(config, ox_option_find(name), value, name));
}

static const char *checkpoint_of(const char *name) {
    return test_pathf("%s/%s/checkpoint-%d", root, name, TINY_SAVED_STEP);
}

static void fill_config(struct ox_config *config, const char *name, const char *io_backend, enum tiny_start start) {
    char steps[16];
    ox_config_init(config);
    set_option(config, "model", model_path);
    set_option(config, "data", text_path);
    set_option(config, "output", in_root(name));
    for (unsigned i = 0; i < drive_count; i++) {
        set_option(config, "nvme", test_pathf("%s:16MiB", drive_of(name, i)));
    }
    snprintf(steps, sizeof steps, "%d", TINY_STEPS);
    set_option(config, "max-steps", steps);
    snprintf(steps, sizeof steps, "%d", TINY_SAVED_STEP);
    set_option(config, "save-steps", steps);
    set_option(config, "io-backend", io_backend);
    for (unsigned i = 0; i < OPTION_COUNT; i++) {
        set_option(config, options[i][0], options[i][1]);
    }
    const char *const(*const more)[2] = more_options != NULL ? more_options : planned;
    for (unsigned i = 0; more != NULL && more[i][0] != NULL; i++) {
        set_option(config, more[i][0], more[i][1]);
    }
    config->ranks.processes = getenv(variable) != NULL ? process_count : 1;
    config->files.overwrite_output_dir = start == TINY_OVERWRITE;
    const char *const origin = start == TINY_RESUME       ? "latest"
                               : start == TINY_BRANCH     ? checkpoint_of(name)
                               : start == TINY_BRANCH_NEW ? checkpoint_of("undisturbed") : "";
    snprintf(config->files.resume_from_checkpoint, sizeof config->files.resume_from_checkpoint, "%s", origin);
    REQUIRE_OK(ox_config_validate(config, OX_CMD_TRAIN));
}

static void on_log(void *context, enum ox_log_level level, const char *line) {
    struct tiny_told *const told = context;
    bool expected = strstr(line, "degraded: goes through the page cache") != NULL ||
                    strstr(line, "--store-generations 1: the store is rewritten in place") != NULL ||
                    strstr(line, "is withdrawn, because another process has not committed it") != NULL;
    for (const char *const *words = expected_warnings; words != NULL && *words != NULL; words++) {
        expected = expected || strstr(line, *words) != NULL;
    }
    if (level == OX_LOG_WARN && !expected && atomic_fetch_add(&told->warnings, 1) == 0) {
        snprintf(told->warning, sizeof told->warning, "%s", line);
    }
}

static void on_start(void *context, const struct ox_run_start *start) {
    struct tiny_told *const told = context;
    atomic_store(&told->begin_step, start->state->step);
    atomic_store(&told->step, start->state->step);
    atomic_store(&told->began, 1);
}

static void (*step_hook)(uint64_t step);
static struct ox_trainer *running;

struct ox_engine *tiny_engine(void) {
    return running->engine;
}

static void on_step(void *context, const struct ox_step_report *report) {
    struct tiny_told *const told = context;
    atomic_store(&told->step, report->step);
    if (step_hook != NULL) {
        step_hook(report->step);
    }
}

static void on_saved(void *context, const char *path, const struct ox_save_report *report) {
    struct tiny_told *const told = context;
    (void)path;
    atomic_store(&told->saved_step, report->checkpoint_step);
}

static enum ox_status train(const struct ox_config *config, const struct tiny_seam *seam, struct tiny_told *told) {
    static const struct ox_trainer_events nothing;
    const struct ox_trainer_events *const events = seam != NULL && seam->events != NULL ? seam->events : &nothing;
    const struct ox_trainer_hooks hooks = {.context = told, .start = on_start, .step = on_step, .saved = on_saved};
    struct ox_trainer *trainer = NULL;
    int ended_by = 0;
    enum ox_status status = ox_trainer_open(config, &trainer);
    if (status == OX_OK) {
        if (seam != NULL) {
            trainer->engine_config.io = seam->begin != NULL ? seam->begin(trainer->engine_config.io)
                                                            : trainer->engine_config.io;
            step_hook = seam->step;
            running = trainer;
        }
        status = ox_trainer_run(trainer, events, &hooks, &ended_by);
    }
    told->status = status;
    snprintf(told->text, sizeof told->text, "%s", status != OX_OK ? ox_error_text() : "");
    ox_trainer_close(&trainer);
    if (seam != NULL && seam->end != NULL) {
        seam->end();
    }
    return status;
}

static enum ox_status run_here(const char *name, const char *io_backend, enum tiny_start start,
                               const struct tiny_seam *seam, struct tiny_told *told) {
    static struct ox_config config;
    for (unsigned i = 0; i < drive_count; i++) {
        files_make_folder(drive_of(name, i));
    }
    fill_config(&config, name, io_backend, start);
    ox_log_set_sink(on_log, told);
    return train(&config, seam, told);
}

/* ---- several processes -------------------------------------------------------------------------------- */

void tiny_set_processes(unsigned count) {
    const char *const words = getenv(variable);
    const char *const path = words == NULL ? test_path("shared")
                                           : plain_pathf("%.*s/shared", (int)strcspn(words, " "), words);
    process_count = count;
    shared_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (shared_fd < 0 || ftruncate(shared_fd, SHARED_BYTES) != 0) {
        printf("%s: cannot be shared\n", path);
        exit(1);
    }
    processes_told = tiny_shared(count * sizeof *processes_told);
}

unsigned tiny_process_idx(void) {
    const char *const idx = getenv("OMPI_COMM_WORLD_RANK");
    return idx != NULL ? (unsigned)strtoul(idx, NULL, 10) : 0;
}

void tiny_process(const struct tiny_seam *seam) {
    char folder[SYS_PATH_BYTES], name[32], io_backend[32], disturbed_root[SYS_PATH_BYTES];
    int start = 0, disturbed = 0;
    const char *const words = getenv(variable);
    if (words == NULL) {
        return;
    }
    if (sscanf(words, "%511s %511s %31s %31s %d %d", folder, disturbed_root, name, io_backend, &start,
               &disturbed) != 6) {
        exit(1);
    }
    root = disturbed_root;
    model_path = test_pathf("%s/tiny.json", folder);
    text_path = test_pathf("%s/text.txt", folder);
    const enum ox_status status = run_here(name, io_backend, (enum tiny_start)start, disturbed != 0 ? seam : NULL,
                                           &processes_told[tiny_process_idx()]);
    exit(status == OX_OK ? 0 : 3);
}

/* The first process speaks for all, but a warning of another counts. */
static enum tiny_end run_processes(const char *name, const char *io_backend, enum tiny_start start,
                                   const struct tiny_seam *seam, struct tiny_told *told) {
    static struct sys_args each, all;
    static struct sys_process process;
    memset(processes_told, 0, process_count * sizeof *processes_told);
    if (setenv(variable, plain_pathf("%s %s %s %s %d %d", test_folder(), root, name, io_backend, (int)start,
                                     seam != NULL), 1) != 0) {
        exit(1);
    }
    sys_args_begin(&each, "");
    each.program = "/proc/self/exe";
    sys_mpi_begin(&all, process_count, &each, loss);
    alarm(HANG_SECONDS); /* ends this program, and mpirun with it */
    sys_run(&all, &process);
    alarm(0);
    unsetenv(variable);
    *told = processes_told[0];
    for (unsigned i = 1; i < process_count; i++) {
        if (processes_told[i].warnings > 0 && told->warnings++ == 0) {
            snprintf(told->warning, sizeof told->warning, "%s", processes_told[i].warning);
        }
    }
    const int status = process.outcome.exit_status;
    if (status != 0 && status != 3 && status != 128 + SIGKILL) {
        printf("the run ended with status %d: %s\n%s%s\n", status, told->text, process.outcome.out,
               process.outcome.err);
        exit(1);
    }
    return status == 0 ? TINY_DONE : status == 3 ? TINY_FAILED : TINY_KILLED;
}

/* ---- one process --------------------------------------------------------------------------------------- */

static enum tiny_end run_as(const char *name, const char *io_backend, enum tiny_start start,
                            const struct tiny_seam *seam, struct tiny_told *told) {
    if (process_count > 0 && strcmp(name, "undisturbed") != 0) {
        return run_processes(name, io_backend, start, seam, told);
    }
    memset(told, 0, sizeof *told);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const enum ox_status status = run_here(name, io_backend, start, seam, told);
        fflush(stdout);
        _exit(status == OX_OK ? 0 : 3);
    }
    int how = 0;
    if (child < 0 || waitpid(child, &how, 0) != child) {
        printf("a process cannot be started\n");
        exit(1);
    }
    if (WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL) {
        return TINY_KILLED;
    }
    if (!WIFEXITED(how) || (WEXITSTATUS(how) != 0 && WEXITSTATUS(how) != 3)) {
        printf("the run ended with status %d: %s\n", how, told->text);
        test_failure_count++;
        exit(1);
    }
    return WEXITSTATUS(how) == 0 ? TINY_DONE : TINY_FAILED;
}

const char *tiny_folder(void) {
    return in_root("disturbed");
}

const char *tiny_undisturbed(void) {
    return in_root("undisturbed");
}

enum tiny_end tiny_run(const char *io_backend, enum tiny_start start, const struct tiny_seam *seam,
                       struct tiny_told *told) {
    return run_as("disturbed", io_backend, start, seam, told);
}

static void remove_run(const char *name) {
    files_remove_folder(in_root(name));
    files_remove_folder(drive_of(name, 0));
    files_remove_folder(drive_of(name, 1));
}

static void remove_memory(void) {
    root = memory_root;
    remove_run("undisturbed");
    remove_run("disturbed");
    rmdir(memory_root);
}

void tiny_set_options(const char *const (*more)[2]) {
    more_options = more;
}

void tiny_expect_warnings(const char *const *words) {
    expected_warnings = words;
}

void tiny_set_lost_max(unsigned steps) {
    lost_max = steps;
}

void tiny_set_mixture(bool mixture) {
    is_mixture = mixture;
}

void tiny_set_loss(enum sys_mpi_loss when_lost) {
    loss = when_lost;
}

void tiny_set_drives(unsigned count) {
    drive_count = count;
}

const char *tiny_drive(unsigned idx) {
    return drive_of("disturbed", idx);
}

const char *tiny_write_text(void) {
    text_path = sys_write_text(2000);
    return text_path;
}

void tiny_begin(enum tiny_place place) {
    static struct tiny_told *told;
    if (told == NULL) {
        told = tiny_shared(sizeof *told);
        (void)tiny_write_text();
        ox_cpu_gemm_cuts_freely(); /* tried once here; it would take half of the time of each forked run */
    }
    model_path = files_write_text("tiny.json", is_mixture          ? mixture_json
                                               : process_count > 0 ? wide_config_json : config_json);
    if (place == TINY_IN_MEMORY && root != memory_root && mkdtemp(memory_root) != NULL) {
        root = memory_root;
        atexit(remove_memory);
    }
    root = place == TINY_ON_DRIVE || root == NULL ? test_folder() : root;
    if (run_as("undisturbed", "threads", TINY_OVERWRITE, NULL, told) != TINY_DONE) {
        printf("the undisturbed run: %s\n", told->text);
        exit(1);
    }
}

/* ---- what is left ------------------------------------------------------------------------------------ */

/* True when every line of `some` is in `all`, in the same order. */
static bool is_part(const char *some, const char *all) {
    while (*some != '\0') {
        const size_t length = strcspn(some, "\n") + 1;
        while (*all != '\0' && strncmp(some, all, length) != 0) {
            all += strcspn(all, "\n") + 1;
        }
        if (*all == '\0') {
            return false;
        }
        some += length;
        all += length;
    }
    return true;
}

/* `lines_lost`: metrics.jsonl may lack lines; `save_lost`: the pending checkpoint may be missing. */
static bool same_end(bool lines_lost, bool save_lost) {
    static const char *const types[] = {"step", "eval"};
    static const int steps[] = {TINY_SAVED_STEP, TINY_STEPS};
    bool same = true;
    for (int i = 0; i < 2; i++) {
        const char *const left = test_pathf("%s/undisturbed/checkpoint-%d", root, steps[i]);
        const char *const right = test_pathf("%s/disturbed/checkpoint-%d", root, steps[i]);
        same = (i == 0 && save_lost && !files_exist(right)) || (sys_same_checkpoint(left, right) && same);
        char *const expected = sys_curve(in_root("undisturbed"), types[i]);
        char *const curve = sys_curve(in_root("disturbed"), types[i]);
        same = (lines_lost ? is_part(curve, expected) : sys_same_text(types[i], expected, curve)) && same;
        free(expected);
        free(curve);
    }
    return same;
}

static void complain(const char *what, const char *why, const struct tiny_told *before, const struct tiny_told *told) {
    printf("%s: %s: told of step %llu and checkpoint %llu; went on at step %llu; %s; %s; %s\n", what, why,
           (unsigned long long)before->step, (unsigned long long)before->saved_step,
           (unsigned long long)told->begin_step, before->text, told->text, told->warning);
    test_failure_count++;
}

bool tiny_end_well(const char *io_backend, const struct tiny_told *before, const char *what) {
    static struct tiny_told *told;
    const int failures = test_failure_count;
    told = told != NULL ? told : tiny_shared(sizeof *told);
    enum tiny_end end = run_as("disturbed", io_backend, TINY_RESUME, NULL, told);
    if (end == TINY_FAILED && before->began == 0 && strstr(told->text, "holds no run") != NULL) {
        /* There is no folder yet, or a start that failed by itself has taken back what it made. */
        end = run_as("disturbed", io_backend, TINY_FRESH, NULL, told);
        tiny_counts.started_over++;
    } else {
        tiny_counts.resumed++;
        tiny_counts.steps_lost += before->step > told->begin_step;
        tiny_counts.commits_untold += before->step < told->begin_step;
    }
    /* The next step fills a pending checkpoint; once that step is committed without it, the checkpoint cannot be made.
     */
    const bool left_behind = before->saved_step < TINY_SAVED_STEP && told->begin_step > TINY_SAVED_STEP;
    if (end != TINY_DONE) {
        complain(what, "cannot go on", before, told);
    } else if (told->begin_step + lost_max < before->step || told->begin_step > before->step + 1 ||
               told->begin_step < before->begin_step || told->begin_step < before->saved_step) {
        complain(what, "went on elsewhere", before, told);
    } else if (told->warnings > 0) {
        complain(what, "a warning", before, told);
    } else if (!same_end(before->warnings > 0, before->warnings > 0 || left_behind)) {
        complain(what, "other bits", before, told);
    } else if (files_count(tiny_folder(), "", ".tmp") > 0) {
        complain(what, "a temporary file", before, told);
    }
    remove_run("disturbed");
    return test_failure_count == failures;
}
