/* Finds options in the table, and sets their defaults. */
#include "engine/config/config.h"

#include "base/assert.h"

#include <string.h>

static bool same_name(const char *a, const char *b) {
    while (*a != '\0' && (*a == '_' ? '-' : *a) == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

const struct ox_option *ox_option_find_in(const char *name, unsigned commands) {
    uint32_t count = 0;
    const struct ox_option *const options = ox_options(&count);
    for (uint32_t i = 0; i < count; i++) {
        if ((options[i].commands & commands) != 0 &&
            (same_name(name, options[i].name) || (options[i].alias != NULL && same_name(name, options[i].alias)))) {
            return &options[i];
        }
    }
    return NULL;
}

const struct ox_option *ox_option_find(const char *name) {
    return ox_option_find_in(name, ~0u);
}

bool ox_option_is_list(const struct ox_option *option) {
    return option->type == OX_OPT_NVME || option->type == OX_OPT_DATA || option->type == OX_OPT_PATTERNS;
}

const char *ox_command_name(unsigned command) {
    static const struct {
        unsigned command;
        const char *name;
    } commands[] = {{OX_CMD_TRAIN, "train"},   {OX_CMD_PLAN, "plan"},     {OX_CMD_EVAL, "eval"},
                    {OX_CMD_INSPECT, "inspect"}, {OX_CMD_EXPORT, "export"}, {OX_CMD_DOCTOR, "doctor"},
                    {OX_CMD_BENCH, "bench"},     {OX_CMD_TOKENIZE, "tokenize"},
                    {OX_CMD_GENERATE, "generate"},  {OX_CMD_HELP, "help"},
                    {OX_CMD_TRACE, "trace"},     {OX_CMD_TOP, "top"},
                    {OX_CMD_STORE, "store"},     {OX_CMD_INIT, "init"},
                    {OX_CMD_COMPARE, "compare"}, {OX_CMD_MERGE, "merge"},
                    {OX_CMD_AVERAGE, "average"}, {OX_CMD_UNLOCK, "unlock"}};
    for (unsigned i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (commands[i].command == command) {
            return commands[i].name;
        }
    }
    return "";
}

void ox_config_init(struct ox_config *config) {
    uint32_t count = 0;
    const struct ox_option *const options = ox_options(&count);
    memset(config, 0, sizeof *config);
    for (uint32_t i = 0; i < count; i++) {
        if (options[i].default_text[0] == '\0') {
            continue;
        }
        const enum ox_status status =
            ox_config_set(config, &options[i], options[i].default_text, options[i].name);
        OX_ASSERT(status == OX_OK);
    }
    config->rows.seq_given = false;
}
