/* What help, manual pages and completions share: all three are written from the tables that the program reads its
 * arguments by, and so cannot tell of a flag that it does not take. */
#ifndef OX_TOOLS_HELP_H
#define OX_TOOLS_HELP_H

#include "tools/command/cmd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The options of a command in their order, --config and --help behind them; those of all commands for NULL. Begins at
 * *idx = 0 and moves it on; NULL behind the last. */
const struct ox_option *ox_help_option(const struct ox_command *command, uint32_t *idx);
/* What stands for the value: "N", "PATH", or the words that are allowed, "fp32|bf16". */
const char *ox_help_placeholder(const struct ox_option *option);
/* A switch that --no-<name> turns off. */
bool ox_help_negatable(const struct ox_option *option);
/* The option of the idx-th argument without a flag, from 0; NULL behind the last. */
const struct ox_option *ox_help_positional(const struct ox_command *command, int idx);
/* True when the option is among them. */
bool ox_help_is_positional(const struct ox_command *command, const struct ox_option *option);
/* True when `name` is among the words of a list parted by spaces, which may be NULL. */
bool ox_help_listed(const char *list, const char *name);

/* What a manual page says beyond the tables. Lists have a line for each item: a tag, a tab and its text. */
struct ox_page {
    const char *command;     /* "": of offload(1)                                            */
    const char *description; /* paragraphs, one on a line                                    */
    const char *done, *failed, *usage, *ended; /* by exit status; NULL: as of all, or none   */
    const char *files, *signals;               /* lists, or NULL                             */
    const char *examples;    /* a list: the command line, and what it does                   */
    const char *see_also;    /* commands, by spaces                                          */
};

/* NULL when nobody wrote one. */
const struct ox_page *ox_page_find(const char *command);

/* The manual page of a command, or offload(1) for NULL, in the man macros of roff. */
void ox_man_print(FILE *file, const struct ox_command *command);

/* What completes a command line in bash, zsh or fish. */
void ox_complete_bash(FILE *file);
void ox_complete_zsh(FILE *file);
void ox_complete_fish(FILE *file);

#ifdef __cplusplus
}
#endif
#endif
