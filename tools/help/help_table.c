/* How help, manual pages and completions walk the tables of commands and options. */
#include "tools/help/help.h"

#include <string.h>

/* Options that tools/command/args.c handles itself, so the option table lacks them. */
static const struct ox_option common[] = {
    {.name = "config", .placeholder = "FILE", .type = OX_OPT_TEXT, .group = "Common", .default_text = "",
     .commands = ~0u,
     .help = "YAML file whose keys are flag names; flags override it. train, plan and eval accept each other's keys, "
             "as in a run's config.resolved.yaml, and ignore those not listed"},
    {.name = "help", .type = OX_OPT_BOOL, .group = "Common", .default_text = "", .help = "print this list; also -h"},
};

enum { COMMON_COUNT = sizeof common / sizeof *common };

const struct ox_option *ox_help_option(const struct ox_command *command, uint32_t *idx) {
    uint32_t count = 0;
    const struct ox_option *const options = ox_options(&count);
    const unsigned mask = command != NULL ? command->mask : 0;
    while (*idx < 2 * count + COMMON_COUNT) {
        const uint32_t at = (*idx)++;
        const struct ox_option *const option = at < 2 * count ? &options[at % count] : &common[at - 2 * count];
        const bool leads = (option->usual & mask) != 0;
        if (leads == (at < count) && (command == NULL || (option->commands & mask) != 0 || option->commands == 0)) {
            return option;
        }
    }
    return NULL;
}

const char *ox_help_group(const struct ox_command *command, const struct ox_option *option) {
    return (option->usual & command->mask) != 0 ? "What most calls need" : option->group;
}

bool ox_help_negatable(const struct ox_option *option) {
    return option->type == OX_OPT_BOOL && option->default_text[0] != '\0';
}

const struct ox_option *ox_help_positional(const struct ox_command *command, int idx) {
    const char *const name = idx < OX_POSITIONALS_MAX ? command->positional[idx] : NULL;
    return name != NULL ? ox_option_find_in(name, command->mask) : NULL;
}

bool ox_help_is_positional(const struct ox_command *command, const struct ox_option *option) {
    for (int i = 0; i < OX_POSITIONALS_MAX; i++) {
        if (ox_help_positional(command, i) == option) {
            return true;
        }
    }
    return false;
}

bool ox_help_listed(const char *list, const char *name) {
    const size_t bytes = strlen(name);
    for (const char *at = list; at != NULL && *at != '\0'; at += strcspn(at, " "), at += strspn(at, " ")) {
        if (strncmp(at, name, bytes) == 0 && (at[bytes] == ' ' || at[bytes] == '\0')) {
            return true;
        }
    }
    return false;
}

const char *ox_help_placeholder(const struct ox_option *option) {
    if (option->placeholder != NULL || option->choices != NULL) {
        return option->placeholder != NULL ? option->placeholder : option->choices;
    }
    switch (option->type) {
    case OX_OPT_U64:
    case OX_OPT_I64:
        return "N";
    case OX_OPT_DOUBLE:
        return "X";
    case OX_OPT_STEPS:
        return "N|SHARE";
    case OX_OPT_SIZE:
        return "SIZE";
    case OX_OPT_DURATION:
        return "DURATION";
    case OX_OPT_NVME:
        return "PATH:SIZE";
    case OX_OPT_DATA:
        return "PATH[:WEIGHT]";
    case OX_OPT_PATTERNS:
        return "PATTERN";
    case OX_OPT_PROSE:
        return "TEXT";
    default:
        return "PATH";
    }
}
