/* Reads and writes a configuration as YAML: one flat mapping of option names to values. Other features of YAML are
 * refused, with the line, so that a file means what it looks like. */
#include "engine/config/foreign.h"

#include "base/assert.h"
#include "base/file.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

enum { YAML_BYTES_MAX = 1 << 20, OPTIONS_MAX = 256, WHERE_BYTES = OX_PATH_BYTES + 128, WEIGHT_BYTES = 32 };

struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one; owned */
    bool has_event;
    const char *path;
    struct ox_config *config;
    unsigned command;
    size_t line_of[OPTIONS_MAX]; /* the line where an option was set, by index in the table; 0: not set yet */
};

static size_t line_of(const struct reader *r) {
    return r->event.start_mark.line + 1;
}

/* Fails with a message that names the file and the line of the current event. */
OX_PRINTF(2, 3)
static enum ox_status fail_at(const struct reader *r, const char *fmt, ...) {
    char text[OX_ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return ox_fail(OX_E_CONFIG, "%s:%zu: %s", r->path, line_of(r), text);
}

static enum ox_status next_event(struct reader *r) {
    if (r->has_event) {
        yaml_event_delete(&r->event);
        r->has_event = false;
    }
    if (yaml_parser_parse(&r->parser, &r->event) == 0) {
        return ox_fail(OX_E_CONFIG, "%s:%zu: not YAML: %s", r->path, r->parser.problem_mark.line + 1,
                       r->parser.problem != NULL ? r->parser.problem : "out of memory");
    }
    r->has_event = true;
    return OX_OK;
}

/* Refuses a current event that is not a scalar without anchor and tag; `what` names in the error what is expected. */
static enum ox_status check_scalar(const struct reader *r, const char *what) {
    if (r->event.type == YAML_ALIAS_EVENT) {
        return fail_at(r, "aliases are not used here; write the value out");
    }
    if (r->event.type != YAML_SCALAR_EVENT) {
        return fail_at(r, "%s is expected here", what);
    }
    if (r->event.data.scalar.anchor != NULL || r->event.data.scalar.tag != NULL) {
        return fail_at(r, "anchors and tags are not used here; remove it");
    }
    const char *const text = (const char *)r->event.data.scalar.value;
    if (strlen(text) != r->event.data.scalar.length) {
        return fail_at(r, "the text has a NUL character; remove it");
    }
    return OX_OK;
}

/* The commands whose options a file for `command` may have. train, plan and eval accept each other's and use their own,
 * so that the record of a training run also serves plan and eval. */
static unsigned accepted_commands(unsigned command) {
    const unsigned run = OX_CMD_TRAIN | OX_CMD_PLAN | OX_CMD_EVAL;
    return (command & run) != 0 ? command | run : command;
}

static void to_snake(char *text) {
    for (; *text != '\0'; text++) {
        *text = *text == '-' ? '_' : *text;
    }
}

/* Finds the option that the current event names, and records its line. */
static enum ox_status take_key(struct reader *r, const struct ox_option **out) {
    enum ox_status status = check_scalar(r, "the name of an option");
    if (status != OX_OK) {
        return status;
    }
    const char *const key = (const char *)r->event.data.scalar.value;
    const struct ox_option *option = ox_option_find_in(key, r->command);
    option = option != NULL ? option : ox_option_find_in(key, accepted_commands(r->command));
    if (option == NULL) {
        char suggestion[OX_SUGGEST_BYTES];
        const char *const answer = ox_foreign_answer(key, NULL, r->command);
        return strncmp(key, "//", 2) == 0 ? fail_at(r, "'//' begins no comment in YAML; write # instead")
               : answer != NULL ? fail_at(r, "'%s': %s", key, answer)
               : ox_option_find(key) != NULL
                   ? fail_at(r, "`offload %s` does not take '%s'; remove it", ox_command_name(r->command), key)
               : ox_option_suggest(key, accepted_commands(r->command), false, suggestion)
                   ? fail_at(r, "'%s' is not an option; %s", key, suggestion)
                   : fail_at(r, "'%s' is not an option; `offload help %s` lists them", key,
                             ox_command_name(r->command));
    }
    uint32_t count = 0;
    const size_t idx = (size_t)(option - ox_options(&count));
    OX_ASSERT(idx < count && count <= OPTIONS_MAX);
    if (r->line_of[idx] != 0) {
        return fail_at(r, "'%s' was set already in line %zu; remove one", key, r->line_of[idx]);
    }
    r->line_of[idx] = line_of(r);
    *out = option;
    return OX_OK;
}

/* Earlier versions recorded sizes in bytes without a unit; none was less than a megabyte. */
static const char *with_unit(const struct ox_option *option, const char *text, char sized[OX_CONFIG_TEXT_BYTES + 32]) {
    enum { RECORDED_DIGITS = 7 };
    const char *const colon = option->type == OX_OPT_NVME ? strrchr(text, ':') : NULL;
    const char *const size = colon != NULL ? colon + 1 : text;
    const bool recorded = (option->type == OX_OPT_SIZE || colon != NULL) && strlen(size) >= RECORDED_DIGITS &&
                          size[strspn(size, "0123456789")] == '\0';
    if (!recorded || snprintf(sized, OX_CONFIG_TEXT_BYTES + 32, "%sB", text) >= OX_CONFIG_TEXT_BYTES + 32) {
        return text;
    }
    return sized;
}

static enum ox_status take_value(struct reader *r, const struct ox_option *option) {
    char name[64], where[WHERE_BYTES];
    snprintf(name, sizeof name, "%s", option->name);
    to_snake(name);
    snprintf(where, sizeof where, "%s:%zu: %s", r->path, line_of(r), name);
    enum ox_status status = check_scalar(r, "a single value");
    if (status != OX_OK) {
        return status;
    }
    const char *const text = (const char *)r->event.data.scalar.value;
    const bool plain = r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (plain && (text[0] == '\0' || strcmp(text, "~") == 0 || strcasecmp(text, "null") == 0 ||
                  (option->choices == NULL && strcmp(text, "None") == 0))) {
        return ox_fail(OX_E_CONFIG, "%s has no value; give one or remove the line", where);
    }
    char sized[OX_CONFIG_TEXT_BYTES + 32];
    return ox_config_set(r->config, option, with_unit(option, text, sized), where);
}

static enum ox_status take_list(struct reader *r, const struct ox_option *option) {
    /* The list in the file replaces the default list. */
    ox_config_clear_list(r->config, option);
    if (r->event.type != YAML_SEQUENCE_START_EVENT) {
        return take_value(r, option);
    }
    if (r->event.data.sequence_start.anchor != NULL || r->event.data.sequence_start.tag != NULL) {
        return fail_at(r, "anchors and tags are not used here; remove it");
    }
    enum ox_status status = next_event(r);
    while (status == OX_OK && r->event.type != YAML_SEQUENCE_END_EVENT) {
        status = take_value(r, option);
        OX_THEN(status, next_event(r));
    }
    return status;
}

/* Whether the value of a key that take_key has refused means what is done anyway; else the error is that of before. */
static enum ox_status take_done(struct reader *r, const char *key, enum ox_status refused) {
    char text[OX_ERROR_TEXT_BYTES];
    const char *own = NULL;
    snprintf(text, sizeof text, "%s", ox_error_text());
    const enum ox_status status = next_event(r);
    const bool scalar = status == OX_OK && r->event.type == YAML_SCALAR_EVENT;
    return scalar && ox_foreign_is_done(key, (const char *)r->event.data.scalar.value, &own) && own == NULL
               ? OX_OK : ox_fail(refused, "%s", text);
}

/* Reads the mapping that begins with the current event; on success the current event is its end. */
static enum ox_status take_mapping(struct reader *r) {
    if (r->event.data.mapping_start.anchor != NULL || r->event.data.mapping_start.tag != NULL) {
        return fail_at(r, "anchors and tags are not used here; remove it");
    }
    for (;;) {
        enum ox_status status = next_event(r);
        if (status != OX_OK || r->event.type == YAML_MAPPING_END_EVENT) {
            return status;
        }
        const struct ox_option *option = NULL;
        char key[64] = "";
        if (r->event.type == YAML_SCALAR_EVENT) {
            snprintf(key, sizeof key, "%s", (const char *)r->event.data.scalar.value);
        }
        status = take_key(r, &option);
        if (status != OX_OK && ox_option_find(key) == NULL) {
            OX_TRY(take_done(r, key, status));
            continue;
        }
        OX_THEN(status, next_event(r));
        OX_THEN(status, ox_option_is_list(option) ? take_list(r, option) : take_value(r, option));
        if (status != OX_OK) {
            return status;
        }
    }
}

/* Reads the file: one document that is a mapping, or nothing at all. */
static enum ox_status take_stream(struct reader *r) {
    bool seen = false;
    for (;;) {
        enum ox_status status = next_event(r);
        if (status != OX_OK || r->event.type == YAML_STREAM_END_EVENT) {
            return status;
        }
        switch (r->event.type) {
        case YAML_STREAM_START_EVENT:
        case YAML_DOCUMENT_END_EVENT:
            break;
        case YAML_DOCUMENT_START_EVENT:
            if (seen) {
                return fail_at(r, "a second document begins here; keep one per file");
            }
            seen = true;
            break;
        case YAML_MAPPING_START_EVENT:
            status = take_mapping(r);
            break;
        default:
            return fail_at(r, "lines of the form 'option: value' are expected");
        }
        if (status != OX_OK) {
            return status;
        }
    }
}

/* Returns the length of the character at `text` if YAML needs an escape for it, else 0. These are characters that YAML
 * reads as line breaks or does not allow: C1 controls, U+2028 and U+2029, the byte-order mark, U+FFFE and U+FFFF. */
static size_t escaped_bytes(const char *text, unsigned *cp) {
    const unsigned char *const t = (const unsigned char *)text;
    if (t[0] < 0x20 || t[0] == 0x7f) {
        *cp = t[0];
        return 1;
    }
    if (t[0] == 0xc2 && t[1] < 0xa0) {
        *cp = t[1];
        return 2;
    }
    if ((t[0] == 0xe2 && t[1] == 0x80 && (t[2] == 0xa8 || t[2] == 0xa9)) ||
        (t[0] == 0xef && ((t[1] == 0xbb && t[2] == 0xbf) || (t[1] == 0xbf && t[2] >= 0xbe)))) {
        *cp = (t[0] & 0xfu) << 12 | (t[1] & 0x3fu) << 6 | (t[2] & 0x3fu);
        return 3;
    }
    return 0;
}

/* Writes a double-quoted scalar, which can represent every text that ox_config_set accepts. */
static void write_quoted(FILE *file, const char *text) {
    unsigned cp = 0;
    fputc('"', file);
    for (; *text != '\0'; text++) {
        const size_t escaped = escaped_bytes(text, &cp);
        if (escaped > 0) {
            fprintf(file, "\\u%04x", cp);
            text += escaped - 1;
            continue;
        }
        if (*text == '"' || *text == '\\') {
            fputc('\\', file);
        }
        fputc(*text, file);
    }
    fputc('"', file);
}

/* Writes the shortest text without an exponent that reads back as the same weight. With 23 digits the smallest one
 * has 17 significant ones. */
static void write_weight(double value, char text[WEIGHT_BYTES]) {
    for (int digits = 0; digits <= 23; digits++) {
        snprintf(text, WEIGHT_BYTES, "%.*f", digits, value);
        if (strtod(text, NULL) == value) {
            return;
        }
    }
}

/* Writes a list as its option takes it. A path with a colon has its weight written, for its end may look like one. */
static void write_list(FILE *file, const struct ox_config *config, const struct ox_option *option, const char *name) {
    const bool drives = option->type == OX_OPT_NVME;
    const uint32_t count = drives ? config->memory.nvme_count : config->files.data_count;
    fprintf(file, "%s:%s\n", name, count == 0 ? " []" : "");
    for (uint32_t i = 0; i < count; i++) {
        char item[OX_CONFIG_TEXT_BYTES + 32], weight[WEIGHT_BYTES];
        if (drives && config->memory.nvme[i].bytes > 0) {
            snprintf(item, sizeof item, "%s:%" PRIu64 "B", config->memory.nvme[i].path, config->memory.nvme[i].bytes);
        } else if (!drives && (config->files.data[i].weight != 1 || strchr(config->files.data[i].path, ':') != NULL)) {
            write_weight(config->files.data[i].weight, weight);
            snprintf(item, sizeof item, "%s:%s", config->files.data[i].path, weight);
        } else {
            snprintf(item, sizeof item, "%s", drives ? config->memory.nvme[i].path : config->files.data[i].path);
        }
        fputs("  - ", file);
        write_quoted(file, item);
        fputc('\n', file);
    }
}

static void write_option(FILE *file, const struct ox_config *config, const struct ox_option *option) {
    char name[64], text[OX_CONFIG_TEXT_BYTES];
    snprintf(name, sizeof name, "%s", option->name);
    to_snake(name);
    if (ox_option_is_list(option) && option->type != OX_OPT_PATTERNS) {
        write_list(file, config, option, name);
        return;
    }
    ox_config_text(config, option, text);
    fprintf(file, "%s: ", name);
    if (option->type == OX_OPT_PROSE) {
        write_quoted(file, (const char *)config + option->offset);
    } else if (option->type == OX_OPT_PATTERNS || (option->type == OX_OPT_TEXT && option->choices == NULL)) {
        write_quoted(file, text);
    } else {
        fputs(text, file);
    }
    fputc('\n', file);
}

enum ox_status ox_config_load_yaml(struct ox_config *config, const char *path, unsigned command) {
    char *text = NULL;
    size_t bytes = 0;
    enum ox_status status = ox_file_read(path, YAML_BYTES_MAX, &text, &bytes);
    if (status != OX_OK) {
        return status;
    }
    status = ox_config_check_program(path, text, bytes, command, accepted_commands(command));
    if (status != OX_OK) {
        free(text);
        return status;
    }
    struct reader r = {.path = path, .config = config, .command = command};
    if (yaml_parser_initialize(&r.parser) == 0) {
        free(text);
        return ox_fail(OX_E_NOMEM, "%s: no memory to read it", path);
    }
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, bytes);
    status = take_stream(&r);
    if (r.has_event) {
        yaml_event_delete(&r.event);
    }
    yaml_parser_delete(&r.parser);
    free(text);
    return status;
}

enum ox_status ox_config_to_yaml(const struct ox_config *config, unsigned command, char **text) {
    char *buffer = NULL;
    size_t bytes = 0;
    FILE *const file = open_memstream(&buffer, &bytes);
    if (file == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory to write the configuration");
    }
    uint32_t count = 0;
    const struct ox_option *const options = ox_options(&count);
    const char *group = NULL;
    for (uint32_t i = 0; i < count; i++) {
        if ((options[i].commands & command) == 0) {
            continue;
        }
        if (group == NULL || strcmp(group, options[i].group) != 0) {
            fprintf(file, "%s# %s\n", group == NULL ? "" : "\n", options[i].group);
            group = options[i].group;
        }
        write_option(file, config, &options[i]);
    }
    const int failed = ferror(file);
    if (fclose(file) != 0 || failed || buffer == NULL) { /* a memory stream fails only without memory */
        free(buffer);
        return ox_fail(OX_E_NOMEM, "no memory to write the configuration");
    }
    *text = buffer;
    return OX_OK;
}
