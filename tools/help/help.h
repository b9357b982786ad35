/* Shared by help, manual pages and completions. All three are generated from the option table that parses the
 * arguments, so they list exactly the flags that a command takes. */
#ifndef OX_TOOLS_HELP_H
#define OX_TOOLS_HELP_H

#include "tools/command/cmd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Walks the options of a command, those that most calls need first, or of all commands for NULL, in table order; then
 * --config and --help. Start with *idx = 0; returns NULL after the last. */
const struct ox_option *ox_help_option(const struct ox_command *command, uint32_t *idx);
/* The heading that an option stands under in the help of a command. */
const char *ox_help_group(const struct ox_command *command, const struct ox_option *option);
/* The text shown for an option's value: "N", "PATH", or the allowed words, "fp32|bf16". */
const char *ox_help_placeholder(const struct ox_option *option);
/* True for a switch that --no-<name> turns off. */
bool ox_help_negatable(const struct ox_option *option);
/* The option that the idx-th argument without a flag sets, from 0; NULL after the last. */
const struct ox_option *ox_help_positional(const struct ox_command *command, int idx);
/* True when an argument without a flag sets `option`. */
bool ox_help_is_positional(const struct ox_command *command, const struct ox_option *option);
/* True when `name` is one of the words in `list`, which are separated by spaces; `list` may be NULL. */
bool ox_help_listed(const char *list, const char *name);

/* The prose of a manual page. A list has one line per item: a tag, a tab and its text. */
struct ox_help_page {
    const char *command;     /* "": the page offload(1) */
    const char *description; /* one paragraph per line */
    const char *done, *failed, *usage, *ended; /* by exit status; NULL: default text, for ended none */
    const char *files, *signals;               /* lists, or NULL                             */
    const char *examples;    /* a list: the command line, then what it shows */
    const char *see_also;    /* commands, separated by spaces */
};

/* Returns NULL for a command without a page. */
const struct ox_help_page *ox_page_find(const char *command);

/* Prints the manual page of a command, or offload(1) for NULL, in the man macros of roff. */
void ox_man_print(FILE *file, const struct ox_command *command);

/* Print a completion script for the shell. */
void ox_complete_bash(FILE *file);
void ox_complete_zsh(FILE *file);
void ox_complete_fish(FILE *file);

#ifdef __cplusplus
}
#endif
#endif
