/* What the files of the `offload` command share. Only this folder prints, exits and reads argv. */
#ifndef OX_TOOLS_CMD_H
#define OX_TOOLS_CMD_H

#include "engine/config/config.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OX_VERSION "0.1.0"

/* Exit statuses; after a signal that saved it is 128 + the signal. */
enum { OX_EXIT_OK = 0, OX_EXIT_FAILED = 1, OX_EXIT_USAGE = 2 };

enum { OX_POSITIONALS_MAX = 2 };

/* One subcommand. The configuration has been read and validated for `mask` before `run` is called. */
struct ox_command {
    const char *name;
    unsigned mask;          /* its bit of OX_CMD_*; 0: it takes no options              */
    const char *positional[OX_POSITIONALS_MAX]; /* options that arguments without a flag set, in order; or NULL */
    const char *required;   /* options that the synopsis shows, parted by spaces; or NULL */
    const char *summary;    /* one line                                                 */
    int (*run)(const struct ox_config *config); /* returns the exit status             */
};

const struct ox_command *ox_commands(uint32_t *count);
/* NULL when unknown. */
const struct ox_command *ox_command_find(const char *name);

/* Reads argv[0..argc) into `config`: defaults, then the file of --config, then flags. */
OX_MUST enum ox_status ox_args_parse(const struct ox_command *command, int argc, char **argv,
                                     struct ox_config *config);
/* True when -h or --help is among the arguments. */
bool ox_args_want_help(int argc, char **argv);

void ox_help_print(FILE *file);
void ox_help_print_command(FILE *file, const struct ox_command *command);

/* Records that there is no such command, with the nearest one. */
OX_MUST enum ox_status ox_fail_command(const char *name);
/* Prints "offload: <what ox_fail recorded>" as one line on stderr and returns the exit status: 2 for
 * OX_E_CONFIG, which the user can mend, else 1. */
int ox_cmd_fail(enum ox_status status);

/* tools/command/cmd_<name>.c and tools/help/help.c */
int ox_cmd_train(const struct ox_config *config);
int ox_cmd_plan(const struct ox_config *config);
int ox_cmd_eval(const struct ox_config *config);
int ox_cmd_inspect(const struct ox_config *config);
int ox_cmd_export(const struct ox_config *config);
int ox_cmd_doctor(const struct ox_config *config);
int ox_cmd_tokenize(const struct ox_config *config);
int ox_cmd_generate(const struct ox_config *config);
int ox_cmd_bench(const struct ox_config *config);
int ox_cmd_trace(const struct ox_config *config);
int ox_cmd_top(const struct ox_config *config);
int ox_cmd_help(const struct ox_config *config);

#ifdef __cplusplus
}
#endif
#endif
