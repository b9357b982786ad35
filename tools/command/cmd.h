/* Shared by the files of the `offload` command: the table of subcommands, arguments, help, errors and output. Only
 * tools/ prints, exits and reads argv. */
#ifndef OX_TOOLS_CMD_H
#define OX_TOOLS_CMD_H

#include "engine/config/config.h"

#include <jansson.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OX_VERSION "0.1.0"

/* Exit statuses. A run that saved its state after a signal exits with 128 + the signal. */
enum { OX_EXIT_OK = 0, OX_EXIT_FAILED = 1, OX_EXIT_USAGE = 2 };

enum { OX_POSITIONALS_MAX = 2 };

/* One subcommand. `run` gets a configuration that was read and validated for `mask`. */
struct ox_command {
    const char *name;
    unsigned mask;          /* its bit of OX_CMD_*; 0: takes no options */
    const char *positional[OX_POSITIONALS_MAX]; /* options set by arguments without a flag, in order; or NULL */
    const char *required;   /* options shown in the synopsis, separated by spaces; or NULL */
    const char *summary;    /* one line                                                 */
    bool by_each;           /* of several processes each runs it; else the first one does */
    int (*run)(const struct ox_config *config); /* returns an exit status              */
};

/* The table of subcommands, in the order of help; its last row has no name. */
const struct ox_command *ox_commands(void);
/* Returns NULL for an unknown command. */
const struct ox_command *ox_command_find(const char *name);

/* Reads argv[0..argc) into `config`: defaults, then the file of --config, then flags. */
OX_MUST enum ox_status ox_args_parse(const struct ox_command *command, int argc, char **argv,
                                     struct ox_config *config);
/* The text of an error, in `out` with the name by which its first option was given, where that is another than ours. */
const char *ox_args_name_typed(const char *text, char out[OX_ERROR_TEXT_BYTES]);
/* True when -h or --help is among the arguments. */
bool ox_args_want_help(int argc, char **argv);

void ox_help_print(FILE *file);
void ox_help_print_command(FILE *file, const struct ox_command *command);

/* Fails for an unknown command and suggests the most similar one. */
OX_MUST enum ox_status ox_fail_command(const char *name);
/* Returns the exit status: 0 for OX_OK, 2 for OX_E_CONFIG, which the user can fix, else 1. After a failure it prints
 * "offload: <the error text>" as one line on stderr. */
int ox_cmd_exit(enum ox_status status);

/* Writes `json`, which it takes over, and a newline to `out`; `flags` are jansson's. NULL means that building it ran
 * out of memory. `what` names the result in the error. */
OX_MUST enum ox_status ox_print_json(FILE *out, json_t *json, size_t flags, const char *what);
/* Writes what `write` prints as a whole file, or nothing. */
typedef enum ox_status ox_write_fn(const void *what, FILE *out);
OX_MUST enum ox_status ox_cmd_write_file(const char *path, ox_write_fn *write, const void *what);
/* Writes "2h05m", "3m20s" or "12s" to `text` (OX_DURATION_TEXT_BYTES) and returns it. */
enum { OX_DURATION_TEXT_BYTES = 32 };
const char *ox_duration_text(double seconds, char *text);

/* In cmd_plan.c. */
struct ox_trainer;
/* Opens the run. When the budget is too small, it prints the nearest plan before the error. */
OX_MUST enum ox_status ox_plan_open_run(const struct ox_config *config, struct ox_trainer **trainer);
/* Prints what `train --dry-run` shows: the configuration and the plan. */
OX_MUST enum ox_status ox_plan_print_dry(const struct ox_trainer *trainer, const struct ox_config *config);
/* In plan_picture.c: writes the page of --picture. */
OX_MUST enum ox_status ox_plan_draw(const struct ox_trainer *trainer, const char *path);

/* In show.c: tokenizes --data as training would, prints sequences with --show, and prints totals. */
OX_MUST enum ox_status ox_show(const struct ox_config *config);

/* In train_tokenizer.c: trains a tokenizer on --train and writes it into --output. */
OX_MUST enum ox_status ox_train_tokenizer(const struct ox_config *config);

/* In tools/command/cmd_<name>.c and tools/help/help.c. */
int ox_cmd_train(const struct ox_config *config);
int ox_cmd_plan(const struct ox_config *config);
int ox_cmd_eval(const struct ox_config *config);
int ox_cmd_inspect(const struct ox_config *config);
int ox_cmd_export(const struct ox_config *config);
int ox_cmd_average(const struct ox_config *config);
int ox_cmd_merge(const struct ox_config *config);
int ox_cmd_unlock(const struct ox_config *config);
int ox_cmd_doctor(const struct ox_config *config);
int ox_cmd_tokenize(const struct ox_config *config);
int ox_cmd_init(const struct ox_config *config);
int ox_cmd_generate(const struct ox_config *config);
int ox_cmd_bench(const struct ox_config *config);
int ox_cmd_trace(const struct ox_config *config);
int ox_cmd_compare(const struct ox_config *config);
int ox_cmd_store(const struct ox_config *config);
int ox_cmd_top(const struct ox_config *config);
int ox_cmd_help(const struct ox_config *config);

#ifdef __cplusplus
}
#endif
#endif
