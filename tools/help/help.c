/* `offload help` and the help of each command, generated from the tables of commands and options. */
#include "tools/help/help.h"

#include <string.h>

enum { NAME_COLUMN = 2, HELP_COLUMN = 38, LINE_COLUMNS = 100 };

/* Prints the words of `text` between HELP_COLUMN and LINE_COLUMNS; `column` is the cursor's current column. */
static void print_wrapped(FILE *file, int column, const char *text) {
    if (column >= HELP_COLUMN) {
        fputc('\n', file);
        column = 0;
    }
    fprintf(file, "%*s", HELP_COLUMN - column, "");
    column = HELP_COLUMN;
    while (*text != '\0') {
        const int len = (int)strcspn(text, " ");
        if (column > HELP_COLUMN && column + 1 + len > LINE_COLUMNS) {
            fprintf(file, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        }
        column += fprintf(file, "%s%.*s", column > HELP_COLUMN ? " " : "", len, text);
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
    print_wrapped(file, column, text);
}

static void print_options(FILE *file, const struct ox_command *command) {
    const char *group = "";
    uint32_t idx = 0;
    for (const struct ox_option *option; (option = ox_help_option(command, &idx)) != NULL;) {
        if (strcmp(group, option->group) != 0) {
            group = option->group;
            fprintf(file, "\n%s\n", group);
        }
        print_option(file, option);
    }
}

/* "offload export PATH --output PATH [--flag value ...]" */
static void print_usage(FILE *file, const struct ox_command *command) {
    fprintf(file, "offload %s", command->name);
    const struct ox_option *positional;
    for (int i = 0; (positional = ox_help_positional(command, i)) != NULL; i++) {
        const bool required = ox_help_listed(command->required, positional->name);
        fprintf(file, required ? " %s" : " [%s]", ox_help_placeholder(positional));
    }
    uint32_t idx = 0;
    for (const struct ox_option *option; (option = ox_help_option(command, &idx)) != NULL;) {
        if (!ox_help_is_positional(command, option) && ox_help_listed(command->required, option->name)) {
            fprintf(file, " --%s %s", option->name, ox_help_placeholder(option));
        }
    }
    fputs(command->mask != 0 ? " [--flag value ...]\n" : "\n", file);
}

void ox_help_print(FILE *file) {
    fputs("offload trains transformers whose state does not fit in device memory: it uses device memory, host\n"
          "memory and NVMe drives as one memory with three speeds.\n\n"
          "Usage: offload COMMAND [--flag value ...]\n\n",
          file);
    for (const struct ox_command *command = ox_commands(); command->name != NULL; command++) {
        fprintf(file, "  offload %-9s %s\n", command->name, command->summary);
    }
    fputs("\nExit status: 0 done, 1 failure, 2 wrong usage or configuration or no plan that fits, 128+n ended by\n"
          "signal n.\n",
          file);
}

void ox_help_print_command(FILE *file, const struct ox_command *command) {
    fprintf(file, "offload %s: %s\n\nUsage: ", command->name, command->summary);
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
    const struct ox_command *const command = ox_command_find(config->topic);
    if (config->topic[0] != '\0' && command == NULL) {
        return ox_cmd_exit(ox_fail_command(config->topic));
    }
    if (strcmp(config->as, "man") == 0) {
        ox_man_print(stdout, command);
        return OX_EXIT_OK;
    }
    if (command != NULL && strcmp(config->as, "text") != 0) {
        return ox_cmd_exit(ox_fail(OX_E_CONFIG, "--as %s covers all commands; remove '%s'", config->as,
                                   config->topic));
    }
    if (command != NULL) {
        ox_help_print_command(stdout, command);
    }
    for (unsigned i = 0; command == NULL && i < sizeof forms / sizeof *forms; i++) {
        if (strcmp(config->as, forms[i].as) == 0) {
            forms[i].print(stdout);
        }
    }
    return OX_EXIT_OK;
}
