/* `offload help` and the help of each command, generated from the tables of commands and options. */
#include "tools/help/help.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { NAME_COLUMN = 2, USAGE_COLUMN = 7, COMMAND_COLUMN = 20, HELP_COLUMN = 38 };
enum { COLUMNS_MIN = 60, COLUMNS_USUAL = 80, COLUMNS_MAX = 100 };

/* The width to write in: the terminal's, else what COLUMNS says. Longer lines than COLUMNS_MAX are hard to read. */
static int line_columns(FILE *file) {
    struct winsize size = {.ws_col = 0};
    const char *const variable = getenv("COLUMNS");
    long columns = ioctl(fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col
                   : variable != NULL                                             ? strtol(variable, NULL, 10)
                                                                                  : COLUMNS_USUAL;
    columns = columns <= 0 ? COLUMNS_USUAL : columns < COLUMNS_MIN ? COLUMNS_MIN : columns;
    return columns > COLUMNS_MAX ? COLUMNS_MAX : (int)columns;
}

/* Prints the words of `text` from column `indent` on; `column` is the cursor's current column. */
static void print_wrapped(FILE *file, int column, int indent, const char *text) {
    const int columns = line_columns(file);
    if (column > 0 && column >= indent) {
        fputc('\n', file);
        column = 0;
    }
    fprintf(file, "%*s", indent - column, "");
    column = indent;
    while (*text != '\0') {
        const int len = (int)strcspn(text, " ");
        if (column > indent && column + 1 + len > columns) {
            fprintf(file, "\n%*s", indent, "");
            column = indent;
        }
        column += fprintf(file, "%s%.*s", column > indent ? " " : "", len, text);
        text += len + (text[len] == ' ' ? 1 : 0);
    }
    fputc('\n', file);
}

static void print_option(FILE *file, const struct ox_option *option) {
    int column = fprintf(file, "%*s", NAME_COLUMN, "");
    if (option->type == OX_OPT_BOOL) {
        column += fprintf(file, "--%s%s", ox_help_negatable(option) ? "[no-]" : "", option->name);
    } else {
        column += fprintf(file, "--%s %s", option->name, ox_help_placeholder(option));
    }
    char text[512];
    int used = snprintf(text, sizeof text, "%s", option->help);
    if (option->default_text[0] != '\0') {
        used += snprintf(text + used, sizeof text - (size_t)used, " (%s)", option->default_text);
    }
    if (option->alias != NULL) {
        snprintf(text + used, sizeof text - (size_t)used, "; also --%s", option->alias);
    }
    print_wrapped(file, column, HELP_COLUMN, text);
}

static void print_options(FILE *file, const struct ox_command *command) {
    const char *group = "";
    uint32_t idx = 0;
    for (const struct ox_option *option; (option = ox_help_option(command, &idx)) != NULL;) {
        if (strcmp(group, ox_help_group(command, option)) != 0) {
            group = ox_help_group(command, option);
            fprintf(file, "\n%s\n", group);
        }
        print_option(file, option);
    }
}

/* "Usage: offload export PATH --output PATH [--flag value ...]" */
static void print_usage(FILE *file, const struct ox_command *command) {
    char text[512];
    size_t used = (size_t)snprintf(text, sizeof text, "offload %s", command->name);
    const struct ox_option *positional;
    for (int i = 0; (positional = ox_help_positional(command, i)) != NULL; i++) {
        const bool required = ox_help_listed(command->required, positional->name);
        used += (size_t)snprintf(text + used, sizeof text - used, required ? " %s" : " [%s]",
                                 ox_help_placeholder(positional));
    }
    uint32_t idx = 0;
    for (const struct ox_option *option; (option = ox_help_option(command, &idx)) != NULL;) {
        if (!ox_help_is_positional(command, option) && ox_help_listed(command->required, option->name)) {
            used += (size_t)snprintf(text + used, sizeof text - used, " --%s %s", option->name,
                                     ox_help_placeholder(option));
        }
    }
    snprintf(text + used, sizeof text - used, command->mask != 0 ? " [--flag value ...]" : "");
    fputc('\n', file);
    print_wrapped(file, fprintf(file, "Usage:"), USAGE_COLUMN, text);
}

void ox_help_print(FILE *file) {
    print_wrapped(file, 0, 0,
                  "offload trains transformers whose state does not fit in device memory: it uses device memory, host "
                  "memory and NVMe drives as one memory with three speeds.");
    fputs("\nUsage: offload COMMAND [--flag value ...]\n\n", file);
    for (const struct ox_command *command = ox_commands(); command->name != NULL; command++) {
        print_wrapped(file, fprintf(file, "  offload %-9s", command->name), COMMAND_COLUMN, command->summary);
    }
    fputc('\n', file);
    print_wrapped(file, 0, 0,
                  "Exit status: 0 done, 1 failure, 2 wrong usage or configuration or no plan that fits, 128+n ended by "
                  "signal n.");
}

void ox_help_print_command(FILE *file, const struct ox_command *command) {
    char title[256];
    snprintf(title, sizeof title, "offload %s: %s", command->name, command->summary);
    print_wrapped(file, 0, 0, title);
    print_usage(file, command);
    print_options(file, command);
}

static void print_names(FILE *file) {
    for (const struct ox_command *command = ox_commands(); command->name != NULL; command++) {
        fprintf(file, "%s\n", command->name);
    }
}

int ox_cmd_help(const struct ox_config *config) {
    static const struct {
        const char *as;
        void (*print)(FILE *file);
    } forms[] = {{"bash", ox_complete_bash}, {"zsh", ox_complete_zsh}, {"fish", ox_complete_fish},
                 {"names", print_names},     {"text", ox_help_print}};
    const struct ox_command *const command = ox_command_find(config->tool.topic);
    if (config->tool.topic[0] != '\0' && command == NULL) {
        return ox_cmd_exit(ox_fail_command(config->tool.topic));
    }
    if (strcmp(config->tool.as, "man") == 0) {
        ox_man_print(stdout, command);
        return OX_EXIT_OK;
    }
    if (command != NULL && strcmp(config->tool.as, "text") != 0) {
        return ox_cmd_exit(ox_fail(OX_E_CONFIG, "--as %s covers all commands; remove '%s'", config->tool.as,
                                   config->tool.topic));
    }
    if (command != NULL) {
        ox_help_print_command(stdout, command);
    }
    for (unsigned i = 0; command == NULL && i < sizeof forms / sizeof *forms; i++) {
        if (strcmp(config->tool.as, forms[i].as) == 0) {
            forms[i].print(stdout);
        }
    }
    return OX_EXIT_OK;
}
