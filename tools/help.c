/* Help, written from the tables of commands and options. */
#include "tools/cmd.h"

#include <string.h>

enum { NAME_COLUMN = 2, HELP_COLUMN = 38, LINE_COLUMNS = 100 };

static const char *placeholder(const struct ox_option *option) {
    if (option->placeholder != NULL || option->choices != NULL) {
        return option->placeholder != NULL ? option->placeholder : option->choices;
    }
    switch (option->type) {
    case OX_OPT_U64:
    case OX_OPT_I64:
        return "N";
    case OX_OPT_DOUBLE:
        return "X";
    case OX_OPT_SIZE:
        return "SIZE";
    case OX_OPT_NVME:
        return "PATH:SIZE";
    case OX_OPT_DATA:
        return "PATH[:WEIGHT]";
    case OX_OPT_PROSE:
        return "TEXT";
    default:
        return "PATH";
    }
}

/* Words from HELP_COLUMN to LINE_COLUMNS; `column` is where the line stands. */
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
        column += fprintf(file, "--[no-]%s", option->name);
    } else {
        column += fprintf(file, "--%s %s", option->name, placeholder(option));
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

static void print_options(FILE *file, unsigned mask) {
    uint32_t count = 0;
    const struct ox_option *const options = ox_options(&count);
    const char *group = "";
    for (uint32_t i = 0; i < count; i++) {
        if ((options[i].commands & mask) == 0) {
            continue;
        }
        if (strcmp(group, options[i].group) != 0) {
            group = options[i].group;
            fprintf(file, "\n%s\n", group);
        }
        print_option(file, &options[i]);
    }
    fprintf(file, "\n  --config FILE");
    print_wrapped(file, 15, "YAML file of the same names; flags override it. train, plan and eval also take each "
                            "other's keys, as in a run's config.resolved.yaml, and use those listed here");
}

void ox_help_print(FILE *file) {
    fputs("offload trains transformers whose state does not fit the device: device memory, host memory and\n"
          "NVMe drives are used as one memory with three speeds.\n\n"
          "Usage: offload COMMAND [--flag value ...]\n\n",
          file);
    uint32_t count = 0;
    const struct ox_command *const commands = ox_commands(&count);
    for (uint32_t i = 0; i < count; i++) {
        fprintf(file, "  offload %-9s %s\n", commands[i].name, commands[i].summary);
    }
    fprintf(file, "  offload %-9s %s\n", "help", "this text; `offload help COMMAND` lists its flags");
    fputs("\nExit status: 0 done, 1 failure, 2 usage, configuration or no plan that fits, 128+n after signal "
          "n.\n",
          file);
}

void ox_help_print_command(FILE *file, const struct ox_command *command) {
    const struct ox_option *const positional =
        command->positional != NULL ? ox_option_find(command->positional) : NULL;
    fprintf(file, "offload %s: %s\n\nUsage: offload %s%s%s%s\n", command->name, command->summary, command->name,
            positional != NULL ? " " : "", positional != NULL ? placeholder(positional) : "",
            command->mask != 0 ? " [--flag value ...]" : "");
    if (command->mask != 0) {
        print_options(file, command->mask);
    }
}
