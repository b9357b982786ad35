/* The `offload` command: the table of subcommands, and how errors are printed. Results go to stdout, everything else to
 * stderr, without colour. */
#include "tools/command/cmd.h"
#include "tools/start/status_line.h"
#include "tools/start/launch.h"
#include "tools/start/limits.h"
#include "tools/start/signals.h"

#include "base/file.h"
#include "base/log.h"
#include "base/name/name.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WITH_TEMPLATES = OX_CMD_TRAIN | OX_CMD_PLAN | OX_CMD_EVAL | OX_CMD_TOKENIZE | OX_CMD_GENERATE };

static int run_version(const struct ox_config *config) {
    (void)config;
    printf("offload %s\n", OX_VERSION);
    return OX_EXIT_OK;
}

static const struct ox_command commands[] = {
    {.name = "train", .by_each = true, .mask = OX_CMD_TRAIN, .required = "model data output", .run = ox_cmd_train,
     .summary = "train or fine-tune a model"},
    {.name = "plan", .mask = OX_CMD_PLAN, .required = "model", .run = ox_cmd_plan,
     .summary = "show what fits the budget, where it lives and what moves; exit 2 when nothing fits"},
    {.name = "eval", .mask = OX_CMD_EVAL, .positional = {"model"}, .required = "model data",
     .run = ox_cmd_eval,
     .summary = "measure the perplexity of a model on a text"},
    {.name = "doctor", .by_each = true, .mask = OX_CMD_DOCTOR, .run = ox_cmd_doctor,
     .summary = "report what this machine offers and what limits it"},
    {.name = "bench", .by_each = true, .mask = OX_CMD_BENCH, .positional = {"what"}, .required = "what",
     .run = ox_cmd_bench, .summary = "measure this machine: optimizer, drives, GEMM, memory"},
    {.name = "export", .mask = OX_CMD_EXPORT, .positional = {"model"}, .required = "model output",
     .run = ox_cmd_export,
     .summary = "write the weights of a checkpoint or model folder as a Hugging Face folder"},
    {.name = "merge", .mask = OX_CMD_MERGE, .positional = {"adapter"}, .required = "adapter output",
     .run = ox_cmd_merge,
     .summary = "add a LoRA adapter to the weights of its model, as a Hugging Face folder"},
    {.name = "average", .mask = OX_CMD_AVERAGE, .positional = {"models"}, .required = "models output",
     .run = ox_cmd_average,
     .summary = "write the mean of the weights of several checkpoints as a Hugging Face folder"},
    {.name = "unlock", .mask = OX_CMD_UNLOCK, .positional = {"model"}, .required = "model output",
     .run = ox_cmd_unlock,
     .summary = "give layers that shared their weights (`offload train --share-layers`) each its own, as a "
                "checkpoint to go on from"},
    {.name = "inspect", .mask = OX_CMD_INSPECT, .positional = {"model"}, .required = "model",
     .run = ox_cmd_inspect,
     .summary = "describe a model, checkpoint or store and verify every checksum"},
    {.name = "tokenize", .mask = OX_CMD_TOKENIZE, .required = "model", .run = ox_cmd_tokenize,
     .summary = "turn a text into token ids"},
    {.name = "init", .mask = OX_CMD_INIT, .required = "output", .run = ox_cmd_init,
     .summary = "write the config.json of a new model of a wanted size, and say why it has this shape"},
    {.name = "generate", .mask = OX_CMD_GENERATE, .positional = {"model"}, .required = "model",
     .run = ox_cmd_generate,
     .summary = "generate text with a model, greedy or sampled"},
    {.name = "trace", .mask = OX_CMD_TRACE, .positional = {"action", "run"}, .required = "action run",
     .run = ox_cmd_trace, .summary = "show where the time and the bytes of a recorded run went"},
    {.name = "compare", .mask = OX_CMD_COMPARE, .positional = {"runs"}, .required = "runs", .run = ox_cmd_compare,
     .summary = "show runs beside each other: results, options that differ, curves"},
    {.name = "top", .by_each = true, .mask = OX_CMD_TOP, .positional = {"run"}, .required = "run", .run = ox_cmd_top,
     .summary = "watch a run while it works"},
    {.name = "store", .mask = OX_CMD_STORE, .positional = {"action", "run"}, .required = "action run",
     .run = ox_cmd_store, .summary = "remove what a run has left in a folder of `offload train --nvme`"},
    {.name = "version", .by_each = true, .run = run_version, .summary = "print the version of this program"},
    {.name = "help", .by_each = true, .mask = OX_CMD_HELP, .positional = {"command"}, .run = ox_cmd_help,
     .summary = "list the commands; `offload help COMMAND` lists its flags"},
    {.name = NULL},
};

/* Which process of how many this is; alone until a launcher is found. */
static struct ox_launch launch = {.count = 1};
static bool trains; /* processes that train together tell the first one why they fail, and it says so */

/* Prints one line without control characters, whatever a file name or a library put into the text. `names` says which
 * process it comes from, if there are several. */
static void print_line(const char *prefix, bool names, const char *text) {
    char line[OX_ERROR_TEXT_BYTES], process[48] = "";
    size_t used = 0;
    for (; *text != '\0' && used + 1 < sizeof line; text++) {
        line[used++] = (unsigned char)*text < 0x20 ? ' ' : *text;
    }
    line[used] = '\0';
    if (names && launch.count > 1) {
        snprintf(process, sizeof process, "process %u of %u: ", launch.idx, launch.count);
    }
    ox_status_say("%s%s%s\n", prefix, process, line);
}

/* The context is whether --quiet was given. Most warnings are about a machine, whose first process gives them. */
static void log_to_stderr(void *context, enum ox_log_level level, const char *line) {
    const bool *const quiet = context;
    if (level == OX_LOG_WARN && launch.local_idx == 0) {
        print_line("warning: ", true, line);
    } else if (level != OX_LOG_WARN && !*quiet) {
        print_line("", false, line);
    }
}

static const char *nearest_command(const char *name) {
    const char *nearest = NULL;
    unsigned best = (unsigned)strlen(name) / 3 + 1;
    for (const struct ox_command *command = commands; command->name != NULL; command++) {
        const unsigned distance = ox_name_distance(name, command->name);
        if (distance < best) {
            best = distance;
            nearest = command->name;
        }
    }
    return nearest;
}

/* SOURCE_DATE_EPOCH, where it is set, pins the date that chat templates print, in UTC; else it is now, in local
 * time. */
static enum ox_status read_clock(int64_t *clock_s) {
    const char *const text = getenv("SOURCE_DATE_EPOCH");
    char *end = NULL;
    struct tm parts;
    const time_t now = time(NULL);
    if (text == NULL) {
        *clock_s = localtime_r(&now, &parts) != NULL ? timegm(&parts) : now;
        return OX_OK;
    }
    errno = 0;
    *clock_s = strtoll(text, &end, 10);
    const time_t pinned = *clock_s;
    return errno == 0 && end != text && *end == '\0' && gmtime_r(&pinned, &parts) != NULL
               ? OX_OK
               : ox_fail(OX_E_CONFIG, "SOURCE_DATE_EPOCH is \"%.60s\"; it must be seconds since 1970", text);
}

static const char *variable_of(const char *name) {
    return getenv(name);
}

/* Several processes train together; each of them is given the same words. Any other command is one process, whatever
 * the environment says: shells, pods and containers keep such variables of something else. Only where the parent is a
 * launcher are there others with the same words: `is_spare` is set in all of them but the first, which works. */
static enum ox_status find_processes(const struct ox_command *command, bool *is_spare) {
    struct ox_launch found = launch;
    char path[64], *parent = NULL;
    size_t bytes = 0;
    enum ox_status status = ox_launch_read(variable_of, &found);
    if (command->mask != OX_CMD_TRAIN) {
        snprintf(path, sizeof path, "/proc/%ld/comm", (long)getppid());
        *is_spare = status == OX_OK && !command->by_each && found.idx > 0 &&
                    ox_file_read(path, 64, &parent, &bytes) == OX_OK && ox_launch_is_by(&found, parent);
        free(parent);
        found = *is_spare ? found : launch;
        status = OX_OK;
    }
    launch = status == OX_OK ? found : launch;
    return status;
}

/* The first process says what is wrong with the words, as they are usually the same: its launcher then ends the others
 * within this time, by a signal that `train` takes as a request. Where the words of this process alone are wrong, it
 * lives to say so. */
static enum ox_status leave_to_first(enum ox_status status, bool takes_signals) {
    enum { PATIENCE_S = 2 };
    nanosleep(&(struct timespec){.tv_sec = PATIENCE_S}, NULL);
    const int stop = takes_signals ? ox_signals_take()->stop : 0;
    if (stop != 0) {
        exit(128 + stop);
    }
    return status;
}

static int run_command(const struct ox_command *command, int argc, char **argv) {
    if (command->mask == OX_CMD_TRAIN) {
        ox_signals_take();
    } else {
        ox_signals_release();
    }
    if (ox_args_want_help(argc, argv)) {
        ox_help_print_command(stdout, command);
        return OX_EXIT_OK;
    }
    static struct ox_config config; /* tens of kilobytes */
    bool is_spare = false;
    enum ox_status status = find_processes(command, &is_spare);
    OX_THEN(status, ox_args_parse(command, argc, argv, &config));
    ox_log_set_sink(log_to_stderr, &config.tool.quiet);
    if (is_spare) {
        ox_log(OX_LOG_INFO, "process %u of %u: `offload %s` is one process; of those that %s has started the first one "
               "works, and this one ends", launch.idx, launch.count, command->name, launch.launcher);
        return OX_EXIT_OK;
    }
    if (status == OX_OK && command->mask != 0) {
        status = ox_config_validate(&config, command->mask);
    }
    config.ranks.processes = launch.count;
    if (status == OX_OK && (command->mask & WITH_TEMPLATES) != 0) {
        status = read_clock(&config.tool.clock_s);
    }
    const char *const temporary = getenv("TMPDIR");
    snprintf(config.files.temporary_folder, sizeof config.files.temporary_folder, "%s",
             temporary != NULL ? temporary : "/tmp");
    OX_THEN(status, ox_launch_meet(&launch));
    trains = command->mask == OX_CMD_TRAIN && status == OX_OK;
    if (launch.idx > 0) { /* the first process prints results */
        config.tool.quiet = true;
        status = status != OX_OK ? leave_to_first(status, command->mask == OX_CMD_TRAIN) : status;
        if (freopen("/dev/null", "w", stdout) == NULL) {
            return ox_cmd_exit(ox_fail_errno(OX_E_COMM, errno, "/dev/null: cannot be opened"));
        }
    }
    return status == OX_OK ? command->run(&config) : ox_cmd_exit(status);
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) {
        ox_help_print(stderr);
        return OX_EXIT_USAGE;
    }
    const char *const name = argv[1];
    const bool help = strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0;
    const bool version = strcmp(name, "--version") == 0 || strcmp(name, "-v") == 0 || strcmp(name, "-V") == 0;
    const struct ox_command *const command = ox_command_find(help ? "help" : version ? "version" : name);
    return command != NULL ? run_command(command, argc - 2, argv + 2) : ox_cmd_exit(ox_fail_command(name));
}

const struct ox_command *ox_commands(void) {
    return commands;
}

const struct ox_command *ox_command_find(const char *name) {
    for (const struct ox_command *command = commands; command->name != NULL; command++) {
        if (strcmp(name, command->name) == 0) {
            return command;
        }
    }
    return NULL;
}

enum ox_status ox_fail_command(const char *name) {
    const char *const nearest = nearest_command(name), *const answer = ox_foreign_command(name);
    const size_t length = strlen(name);
    if (answer != NULL) {
        return ox_fail(OX_E_CONFIG, "'%s' is not a command; %s", name, answer);
    }
    if (name[0] == '-') {
        return ox_fail(OX_E_CONFIG, "'%s' stands where a command does; write `offload train %s ...`, or see `offload "
                                    "help`", name, name);
    }
    if (length > 5 && (strcmp(name + length - 5, ".yaml") == 0 || strcmp(name + length - 4, ".yml") == 0)) {
        return ox_fail(OX_E_CONFIG, "'%s' is not a command; write `offload train --config %s`", name, name);
    }
    if (nearest != NULL) {
        return ox_fail(OX_E_CONFIG, "'%s' is not a command; did you mean `offload %s`?", name, nearest);
    }
    return ox_fail(OX_E_CONFIG, "'%s' is not a command; `offload help` lists them", name);
}

int ox_cmd_exit(enum ox_status status) {
    if (status == OX_OK) {
        return OX_EXIT_OK;
    }
    if (launch.idx == 0 || !trains || status == OX_E_COMM) {
        char text[OX_ERROR_TEXT_BYTES];
        print_line("offload: ", true, ox_args_name_typed(ox_error_text(), text));
    }
    return status == OX_E_CONFIG ? OX_EXIT_USAGE : OX_EXIT_FAILED;
}

int main(int argc, char **argv) {
    ox_signals_hold();
    static bool quiet; /* until the arguments are read */
    ox_log_set_sink(log_to_stderr, &quiet);
    const enum ox_status status = ox_limits_mind();
    const int exit_status = status == OX_OK ? dispatch(argc, argv) : ox_cmd_exit(status);
    /* A full disk or a closed pipe shows up at the latest here. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && exit_status == OX_EXIT_OK) {
        return ox_cmd_exit(ox_fail(OX_E_IO, "the results could not be written to stdout"));
    }
    return exit_status;
}
