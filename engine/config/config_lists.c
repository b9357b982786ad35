/* Options that may be given more than once. */
#include "engine/config/config.h"

#include <stdio.h>
#include <string.h>

enum ox_status ox_config_add_patterns(char *patterns, const struct ox_option *option, const char *text,
                                      const char *where) {
    const size_t bytes = strlen(patterns);
    if (text[0] == '\0') {
        return OX_OK;
    }
    const int added = snprintf(patterns + bytes, option->text_bytes - bytes, "%s%s", bytes > 0 ? "," : "", text);
    return (size_t)added < option->text_bytes - bytes
               ? OX_OK
               : ox_fail(OX_E_CONFIG, "%s: more patterns than %zu characters; write shorter ones, with *", where,
                         option->text_bytes);
}

void ox_config_clear_list(struct ox_config *config, const struct ox_option *option) {
    if (option->type == OX_OPT_PATTERNS) {
        *((char *)config + option->offset) = '\0';
    } else {
        *(option->type == OX_OPT_NVME ? &config->memory.nvme_count : &config->files.data_count) = 0;
    }
}
