/* Sets the values of a configuration from text, and writes them as text, by the option table. */
#include "engine/config/config.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utf8proc.h>

static void *member(struct ox_config *config, const struct ox_option *option) {
    return (unsigned char *)config + option->offset;
}

static const void *member_of(const struct ox_config *config, const struct ox_option *option) {
    return (const unsigned char *)config + option->offset;
}

static bool same_letters(const char *a, const char *b, size_t len) {
    for (size_t i = 0; i < len; i++) {
        const char other = b[i] == '-' ? '_' : (char)tolower((unsigned char)b[i]);
        if ((a[i] == '-' ? '_' : a[i]) != other) {
            return false;
        }
    }
    return true;
}

/* Position of `text` in "a|b|c", in any case and with '-' for '_', because other programs write FULL_SHARD; or -1. */
static int choice_idx(const char *choices, const char *text) {
    const size_t text_len = strlen(text);
    int idx = 0;
    for (const char *at = choices;; idx++) {
        const size_t len = strcspn(at, "|");
        if (len == text_len && same_letters(at, text, len)) {
            return idx;
        }
        if (at[len] == '\0') {
            return -1;
        }
        at += len + 1;
    }
}

/* The value of a word for a switch, in any case, as YAML and command lines have them; -1 for another word. */
static int switch_value(const char *text) {
    static const char *const words[2][5] = {{"false", "no", "off", "n", "0"}, {"true", "yes", "on", "y", "1"}};
    for (int value = 0; value < 2; value++) {
        for (unsigned i = 0; i < 5; i++) {
            if (strcasecmp(text, words[value][i]) == 0) {
                return value;
            }
        }
    }
    return -1;
}

/* Where on and off are among the choices, other words for them are too, and another program's word for one. */
static int chosen_idx(const struct ox_option *option, const char *text) {
    const char *const choices = option->choices, *own = NULL;
    const int idx = choice_idx(choices, text), value = switch_value(text);
    return idx < 0 && ox_foreign_is_done(option->name, text, &own) && own != NULL ? choice_idx(choices, own)
           : idx >= 0 || value < 0 ? idx : choice_idx(choices, value == 1 ? "on" : "off");
}

static enum ox_status fail_choice(const struct ox_option *option, const char *text, const char *where) {
    char list[256];
    size_t used = 0;
    for (const char *at = option->choices; *at != '\0' && used + 3 < sizeof list; at++) {
        list[used++] = *at == '|' ? ',' : *at;
        if (*at == '|') {
            list[used++] = ' ';
        }
    }
    list[used] = '\0';
    char hint[OX_SUGGEST_BYTES];
    return ox_fail(OX_E_CONFIG, "%s: '%s' is not one of %s%s", where, text, list, ox_value_hint(option, text, hint));
}

/* Whether the text is UTF-8 and, with `plain`, has no control characters, since it goes to the YAML record of the
 * run. */
static bool is_text(const char *text, bool plain) {
    const utf8proc_uint8_t *at = (const utf8proc_uint8_t *)text;
    utf8proc_ssize_t left = (utf8proc_ssize_t)strlen(text);
    while (left > 0) {
        utf8proc_int32_t code = 0;
        const utf8proc_ssize_t bytes = utf8proc_iterate(at, left, &code);
        if (bytes <= 0 || (plain && (code < 0x20 || (code >= 0x7f && code < 0xa0)))) {
            return false;
        }
        at += bytes;
        left -= bytes;
    }
    return true;
}

static void choice_text(const char *choices, int value, char *text) {
    const char *at = choices;
    for (int idx = 0; idx < value; idx++) {
        at += strcspn(at, "|") + 1;
    }
    snprintf(text, OX_CONFIG_TEXT_BYTES, "%.*s", (int)strcspn(at, "|"), at);
}

static enum ox_status set_text(char *out, const struct ox_option *option, const char *text,
                               const char *where) {
    char choice[OX_CONFIG_TEXT_BYTES];
    if (option->choices != NULL) {
        const int idx = chosen_idx(option, text);
        if (idx < 0) {
            return fail_choice(option, text, where);
        }
        choice_text(option->choices, idx, choice);
        text = choice;
    }
    const bool switched = option->placeholder != NULL && strncmp(option->placeholder, "off|on|", 7) == 0;
    if (switched && isalpha((unsigned char)*text)) {
        const int value = switch_value(text);
        text = value < 0 ? text : value == 1 ? "on" : "off";
    }
    const char *const answer = option->choices == NULL ? ox_foreign_answer(option->name, text, option->commands) : NULL;
    if (answer != NULL && access(text, F_OK) != 0) { /* what is there is meant, whatever its name */
        return ox_fail(OX_E_CONFIG, "%s: '%s': %s", where, text, answer);
    }
    const bool is_prose = option->type == OX_OPT_PROSE; /* any UTF-8, with line ends */
    const size_t bytes = strlen(text) + 1;
    if (bytes > option->text_bytes) {
        return ox_fail(OX_E_CONFIG, "%s: a text of %zu bytes is too long; at most %zu fit", where, bytes - 1,
                       option->text_bytes - 1);
    }
    if (!is_text(text, !is_prose)) {
        return ox_fail(OX_E_CONFIG, "%s: the text is not UTF-8%s", where,
                       is_prose ? "" : " or holds control characters; use another name");
    }
    memcpy(out, text, bytes);
    return OX_OK;
}

static enum ox_status fail_range(const struct ox_option *option, const char *text, const char *where) {
    if (option->type == OX_OPT_U64 && option->max >= 0x1p64) { /* any number of 64 bits */
        return ox_fail(OX_E_CONFIG, "%s: %s is out of range; give %.15g to %" PRIu64, where, text, option->min,
                       UINT64_MAX);
    }
    return ox_fail(OX_E_CONFIG, "%s: %s is out of range; give %.15g to %.15g", where, text, option->min,
                   option->max);
}

static enum ox_status set_u64(uint64_t *out, const struct ox_option *option, const char *text,
                              const char *where) {
    const char *const digits = text[0] == '-' ? text + 1 : text;
    if (digits[0] == '\0' || digits[strspn(digits, "0123456789")] != '\0') {
        char hint[OX_SUGGEST_BYTES];
        return ox_fail(OX_E_CONFIG, "%s: '%s' is not a whole number%s", where, text, ox_value_hint(option, text, hint));
    }
    errno = 0;
    const unsigned long long value = strtoull(digits, NULL, 10);
    if (digits != text || errno == ERANGE || (double)value < option->min || (double)value > option->max) {
        return fail_range(option, text, where);
    }
    *out = value;
    return OX_OK;
}

static enum ox_status set_i64(int64_t *out, const struct ox_option *option, const char *text,
                              const char *where) {
    const char *const digits = text[0] == '-' ? text + 1 : text;
    if (digits[0] == '\0' || digits[strspn(digits, "0123456789")] != '\0') {
        char hint[OX_SUGGEST_BYTES];
        return ox_fail(OX_E_CONFIG, "%s: '%s' is not a whole number%s", where, text, ox_value_hint(option, text, hint));
    }
    errno = 0;
    const long long value = strtoll(text, NULL, 10);
    if (errno == ERANGE || (double)value < option->min || (double)value > option->max) {
        return fail_range(option, text, where);
    }
    *out = value;
    return OX_OK;
}

static enum ox_status set_double(double *out, const struct ox_option *option, const char *text,
                                 const char *where) {
    char *end = NULL;
    const double value = strtod(text, &end);
    /* Refuse hexadecimal, "nan" and leading blanks, which strtod accepts. */
    if (end == text || *end != '\0' || text[strspn(text, "+-.0123456789eE")] != '\0') {
        char hint[OX_SUGGEST_BYTES];
        return ox_fail(OX_E_CONFIG, "%s: '%s' is not a number%s", where, text, ox_value_hint(option, text, hint));
    }
    if (!(value >= option->min && value <= option->max)) {
        return fail_range(option, text, where);
    }
    *out = value;
    return OX_OK;
}

static enum ox_status set_steps(double *out, const struct ox_option *option, const char *text, const char *where) {
    double value = 0;
    struct ox_option any = *option;
    any.min = fmin(option->min, 0);
    const enum ox_status status = set_double(&value, &any, text, where);
    const bool whole = value == floor(value), is_share = value > 0 && value < 1;
    if (status == OX_OK && !is_share && (!whole || value < option->min)) {
        return whole ? fail_range(option, text, where)
                     : ox_fail(OX_E_CONFIG, "%s: %s is neither whole steps nor, below 1, a share of all", where, text);
    }
    *out = status == OX_OK ? value : *out;
    return status;
}

static enum ox_status set_bool(bool *out, const char *text, const char *where) {
    const int value = switch_value(text);
    if (value < 0) {
        return ox_fail(OX_E_CONFIG, "%s: '%s' is neither true nor false; write one of them", where, text);
    }
    *out = value == 1;
    return OX_OK;
}

/* Refuses a size without a unit, which one person means as GiB and another as bytes. `before` is what stands before it
 * in the option's value. */
static enum ox_status check_unit(bool wears, const char *before, const char *text, uint64_t bytes,
                                 const char *where) {
    enum { GIB_MOST = 1 << 12, MIB_MOST = 1 << 24 };
    const size_t digits = strspn(text, "0123456789.");
    return bytes == 0 || text[digits] != '\0'
               ? OX_OK
               : ox_fail(OX_E_CONFIG, "%s: %s has no unit; did you mean %s%s%s?", where, text, before, text,
                         wears && bytes <= MIB_MOST ? "TB"
                         : bytes <= GIB_MOST        ? "GiB"
                         : bytes <= MIB_MOST        ? "MiB" : "B");
}

static enum ox_status set_size(uint64_t *out, const struct ox_option *option, const char *text,
                               const char *where) {
    uint64_t bytes = 0;
    if (!ox_size_parse(text, &bytes)) {
        char hint[OX_SUGGEST_BYTES];
        return ox_fail(OX_E_CONFIG, "%s: '%s' is not a size%s", where, text, ox_value_hint(option, text, hint));
    }
    if ((double)bytes > option->max) {
        return fail_range(option, text, where);
    }
    const bool wears =
        option->offset == offsetof(struct ox_config, memory.drive_endurance_bytes); /* rated in TB written */
    const enum ox_status status = check_unit(wears, "", text, bytes, where);
    *out = status == OX_OK ? bytes : *out;
    return status;
}

static enum ox_status set_duration(uint64_t *out, const struct ox_option *option, const char *text,
                                   const char *where) {
    char least[OX_SIZE_TEXT_BYTES], most[OX_SIZE_TEXT_BYTES];
    uint64_t ns = 0;
    if (!ox_duration_parse(text, &ns)) {
        return ox_fail(OX_E_CONFIG, "%s: '%s' is not a time; write it as 90s or 10min", where, text);
    }
    if ((double)ns < option->min || (double)ns > option->max) {
        return ox_fail(OX_E_CONFIG, "%s: %s is out of range; give %s to %s", where, text,
                       ox_duration_flag_text((uint64_t)option->min, least),
                       ox_duration_flag_text((uint64_t)option->max, most));
    }
    *out = ns;
    return OX_OK;
}

/* Adds a drive PATH:SIZE, or PATH alone (0 bytes) for commands that only examine the drive. Validation later refuses a
 * missing size for commands that need one. */
static enum ox_status add_nvme(struct ox_config *config, const char *text, const char *where) {
    if (config->memory.nvme_count == OX_CONFIG_NVME_MAX) {
        return ox_fail(OX_E_CONFIG, "%s: more than %d drives are given; remove some", where, OX_CONFIG_NVME_MAX);
    }
    OX_TRY(ox_config_check_local(where, text));
    const char *const colon = strrchr(text, ':');
    const size_t path_len = colon != NULL ? (size_t)(colon - text) : strlen(text);
    struct ox_nvme_budget drive = {.bytes = 0};
    if (strchr(text, ',') != NULL && strchr(text, ',') > strchr(text, ':')) {
        return ox_fail(OX_E_CONFIG, "%s: '%s' is more than one drive; give --nvme before each", where, text);
    }
    const char *mark = text + strlen(text); /* where the size begins that another sign than a colon parts */
    while (mark > text && strchr("=, ;@:", mark[-1]) == NULL) {
        mark--;
    }
    if (mark > text + 1 && mark[-1] != ':' && ox_size_parse(mark, &drive.bytes) && drive.bytes > 0) {
        return ox_fail(OX_E_CONFIG, "%s: '%s' has no colon before the size; write it as %.*s:%s", where, text,
                       (int)(mark - 1 - text), text, mark);
    }
    if (colon == NULL && ox_size_parse(text, &drive.bytes)) {
        return ox_fail(OX_E_CONFIG, "%s: '%s' names no folder; write it as /mnt/nvme0:%s", where, text, text);
    }
    if (colon != NULL && (!ox_size_parse(colon + 1, &drive.bytes) || drive.bytes == 0)) {
        return ox_fail(OX_E_CONFIG, "%s: '%s' does not end in a size; write it as /mnt/nvme0:400GiB", where,
                       text);
    }
    if (path_len == 0) {
        return ox_fail(OX_E_CONFIG, "%s: '%s' names no folder; write it as /mnt/nvme0:400GiB", where, text);
    }
    if (path_len >= sizeof drive.path || !is_text(text, true)) {
        return ox_fail(OX_E_CONFIG, "%s: the folder is not UTF-8 text of at most %zu bytes; use another name",
                       where, sizeof drive.path - 1);
    }
    memcpy(drive.path, text, path_len);
    if (colon != NULL) {
        char before[OX_CONFIG_TEXT_BYTES + 1];
        snprintf(before, sizeof before, "%s:", drive.path);
        const enum ox_status status = check_unit(false, before, colon + 1, drive.bytes, where);
        if (status != OX_OK) {
            return status;
        }
    }
    config->memory.nvme[config->memory.nvme_count++] = drive;
    return OX_OK;
}


/* Adds a source PATH or PATH:WEIGHT. A text that is the name of an existing file is a path as a whole. */
static enum ox_status add_data(struct ox_config *config, const char *text, const char *where) {
    if (config->files.data_count == OX_CONFIG_DATA_MAX) {
        return ox_fail(OX_E_CONFIG, "%s: more than %d sources are given; put files into one folder", where,
                       OX_CONFIG_DATA_MAX);
    }
    OX_TRY(ox_config_check_local(where, text));
    struct ox_data_choice choice = {.weight = 1};
    const char *const colon = strrchr(text, ':');
    size_t path_len = strlen(text);
    char *end = NULL;
    const bool weighted = colon != NULL && colon > text && colon[1] != '\0' &&
                          colon[1 + strspn(colon + 1, "0123456789.")] == '\0' && access(text, F_OK) != 0;
    if (weighted) {
        choice.weight = strtod(colon + 1, &end);
        path_len = (size_t)(colon - text);
        if (*end != '\0' || !(choice.weight <= 1e6) || (choice.weight > 0 && choice.weight < OX_CONFIG_WEIGHT_MIN)) {
            return ox_fail(OX_E_CONFIG, "%s: '%s' is not a weight; give 0, or 0.000001 to 1000000", where, colon + 1);
        }
    }
    if (path_len == 0 || path_len >= sizeof choice.path || !is_text(text, true)) {
        return ox_fail(OX_E_CONFIG,
                       "%s: the path is not UTF-8 text of 1 to %zu bytes without control characters", where,
                       sizeof choice.path - 1);
    }
    memcpy(choice.path, text, path_len);
    config->files.data[config->files.data_count++] = choice;
    return OX_OK;
}

/* Writes a size in the largest unit that divides it, so that it reads back exactly. */
static void size_text(uint64_t bytes, char *text) {
    static const struct {
        uint64_t unit;
        const char *name;
    } units[] = {{UINT64_C(1) << 40, "TiB"}, {OX_GIB, "GiB"}, {OX_MIB, "MiB"}, {OX_KIB, "KiB"}};
    for (unsigned i = 0; i < sizeof units / sizeof *units; i++) {
        if (bytes != 0 && bytes % units[i].unit == 0) {
            snprintf(text, OX_SIZE_TEXT_BYTES, "%" PRIu64 "%s", bytes / units[i].unit, units[i].name);
            return;
        }
    }
    snprintf(text, OX_SIZE_TEXT_BYTES, "%" PRIu64 "%s", bytes, bytes == 0 ? "" : "B");
}

/* Writes the shortest text that reads back as the same bits, and a whole number as one: 60, not 6e+01. */
static void double_text(double value, char *text) {
    if (fabs(value) < 1e15 && value == floor(value)) {
        snprintf(text, OX_CONFIG_TEXT_BYTES, "%.0f", value);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, OX_CONFIG_TEXT_BYTES, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            return;
        }
    }
}

/* ---- public ----------------------------------------------------------------------------------------- */

enum ox_status ox_config_check_local(const char *where, const char *path) {
    return strstr(path, "://") == NULL ? OX_OK : ox_fail(OX_E_CONFIG, "%s: '%s' is an address, and this program reads "
                                                         "and writes files alone; copy or mount it", where, path);
}

void ox_config_text(const struct ox_config *config, const struct ox_option *option, char *text) {
    const void *const value = member_of(config, option);
    text[0] = '\0';
    switch (option->type) {
    case OX_OPT_TEXT:
    case OX_OPT_PATTERNS:
        snprintf(text, OX_CONFIG_TEXT_BYTES, "%s", (const char *)value);
        break;
    case OX_OPT_U64:
        snprintf(text, OX_CONFIG_TEXT_BYTES, "%" PRIu64, *(const uint64_t *)value);
        break;
    case OX_OPT_I64:
        snprintf(text, OX_CONFIG_TEXT_BYTES, "%" PRId64, *(const int64_t *)value);
        break;
    case OX_OPT_DOUBLE:
    case OX_OPT_STEPS:
        double_text(*(const double *)value, text);
        break;
    case OX_OPT_BOOL:
        snprintf(text, OX_CONFIG_TEXT_BYTES, "%s", *(const bool *)value ? "true" : "false");
        break;
    case OX_OPT_SIZE:
        size_text(*(const uint64_t *)value, text);
        break;
    case OX_OPT_DURATION:
        ox_duration_flag_text(*(const uint64_t *)value, text);
        break;
    case OX_OPT_CHOICE:
        choice_text(option->choices, *(const int *)value, text);
        break;
    case OX_OPT_NVME:
    case OX_OPT_DATA:
    case OX_OPT_PROSE:
        break;
    }
}

enum ox_status ox_config_set(struct ox_config *config, const struct ox_option *option, const char *text,
                             const char *where) {
    void *const value = member(config, option);
    config->rows.seq_given |= value == (void *)&config->rows.max_seq_length;
    config->vocab.train_tokenizer |= option->type == OX_OPT_DATA && strcmp(option->name, "train") == 0;
    if (text[0] == '\0' && option->type != OX_OPT_TEXT && option->type != OX_OPT_PROSE &&
        option->type != OX_OPT_PATTERNS) {
        return ox_fail(OX_E_CONFIG, "%s has no value; give one", where);
    }
    switch (option->type) {
    case OX_OPT_TEXT:
    case OX_OPT_PROSE: {
        const enum ox_status status = set_text(value, option, text, where);
        config->write.prompt_given |= status == OX_OK && value == (void *)config->write.prompt;
        return status;
    }
    case OX_OPT_PATTERNS:
        return ox_config_add_patterns(value, option, text, where);
    case OX_OPT_U64:
        return set_u64(value, option, text, where);
    case OX_OPT_I64:
        return set_i64(value, option, text, where);
    case OX_OPT_DOUBLE:
        return set_double(value, option, text, where);
    case OX_OPT_STEPS:
        return set_steps(value, option, text, where);
    case OX_OPT_BOOL:
        return set_bool(value, text, where);
    case OX_OPT_SIZE:
        return set_size(value, option, text, where);
    case OX_OPT_DURATION:
        return set_duration(value, option, text, where);
    case OX_OPT_CHOICE: {
        const int idx = chosen_idx(option, text);
        if (idx < 0) {
            return fail_choice(option, text, where);
        }
        *(int *)value = idx; /* gcc and clang give an enum without negative values the size of int */
        return OX_OK;
    }
    case OX_OPT_NVME:
        return add_nvme(config, text, where);
    case OX_OPT_DATA:
        return add_data(config, text, where);
    }
    OX_ASSERT(!"option type");
    return OX_E_CONFIG;
}
