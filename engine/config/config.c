/* Sets the values of a configuration from text, by the option table, and checks them against each other. */
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

/* Where on and off are among the choices, other words for them are too. */
static int chosen_idx(const char *choices, const char *text) {
    const int idx = choice_idx(choices, text), value = switch_value(text);
    return idx >= 0 || value < 0 ? idx : choice_idx(choices, value == 1 ? "on" : "off");
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
        const int idx = chosen_idx(option->choices, text);
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
    if (answer != NULL) {
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
    const bool wears = option->offset == offsetof(struct ox_config, drive_endurance_bytes); /* rated in TB written */
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

/* An address such as s3://bucket would become folders of that name. */
static enum ox_status check_local(const char *where, const char *path) {
    return strstr(path, "://") == NULL ? OX_OK : ox_fail(OX_E_CONFIG, "%s: '%s' is an address, and this program reads "
                                                         "and writes files alone; copy or mount it", where, path);
}

/* Adds a drive PATH:SIZE, or PATH alone (0 bytes) for commands that only examine the drive. Validation later refuses a
 * missing size for commands that need one. */
static enum ox_status add_nvme(struct ox_config *config, const char *text, const char *where) {
    if (config->nvme_count == OX_CONFIG_NVME_MAX) {
        return ox_fail(OX_E_CONFIG, "%s: more than %d drives are given; remove some", where, OX_CONFIG_NVME_MAX);
    }
    OX_TRY(check_local(where, text));
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
    config->nvme[config->nvme_count++] = drive;
    return OX_OK;
}


/* Adds a source PATH or PATH:WEIGHT. A text that is the name of an existing file is a path as a whole. */
static enum ox_status add_data(struct ox_config *config, const char *text, const char *where) {
    if (config->data_count == OX_CONFIG_DATA_MAX) {
        return ox_fail(OX_E_CONFIG, "%s: more than %d sources are given; put files into one folder", where,
                       OX_CONFIG_DATA_MAX);
    }
    OX_TRY(check_local(where, text));
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
    config->data[config->data_count++] = choice;
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

/* ---- cross-checks ----------------------------------------------------------------------------------- */

/* Whether `path`, which need not exist, is the folder or is inside it, after resolving links. */
static bool is_inside(const char *folder, const char *path) {
    char *const outer = realpath(folder, NULL);
    char *inner = realpath(path, NULL);
    char part[OX_CONFIG_TEXT_BYTES];
    bool inside = false;
    snprintf(part, sizeof part, "%s", path);
    while (inner == NULL && part[0] != '\0') { /* resolve the nearest parent that exists */
        char *const slash = strrchr(part, '/');
        *(slash != NULL ? slash : part) = '\0';
        inner = realpath(part[0] != '\0' ? part : slash != NULL ? "/" : ".", NULL);
    }
    if (inner != NULL && outer != NULL) {
        const size_t bytes = strlen(outer);
        inside = strncmp(outer, inner, bytes) == 0 && (inner[bytes] == '\0' || inner[bytes] == '/');
    }
    free(inner);
    free(outer);
    return inside;
}

/* Fails for a missing option. A resumed run has recorded its own, so the error names that file. */
static enum ox_status fail_missing(const struct ox_config *c, const char *name, const char *remedy) {
    static const char record[] = "config.resolved.yaml";
    char path[OX_CONFIG_TEXT_BYTES + sizeof record];
    snprintf(path, sizeof path, "%s/%s", c->output_dir, record);
    const bool recorded = c->resume_from_checkpoint[0] != '\0' && c->output_dir[0] != '\0' && access(path, R_OK) == 0;
    return recorded ? ox_fail(OX_E_CONFIG, "--%s is missing; --config %s has the options of the run", name, path)
                    : ox_fail(OX_E_CONFIG, "--%s is missing; %s", name, remedy);
}

static enum ox_status check_tokenizer_training(const struct ox_config *c) {
    return !c->train_tokenizer
               ? ox_fail(OX_E_CONFIG, "--train is missing; give the texts to train a tokenizer on")
           : c->vocab_size == 0
               ? ox_fail(OX_E_CONFIG, "--vocab-size is missing; give the number of tokens, such as 32000")
           : c->output_dir[0] == '\0' ? ox_fail(OX_E_CONFIG, "--output is missing; name a folder for tokenizer.json")
                                      : OX_OK;
}

static enum ox_status check_paths(const struct ox_config *c, unsigned command) {
    OX_TRY(check_local("--output", c->output_dir));
    OX_TRY(strncmp(c->model, "http", 4) == 0 ? OX_OK : check_local("--model", c->model)); /* pages of a hub: later */
    const unsigned train = OX_CMD_TRAIN, eval = OX_CMD_EVAL, export_ = OX_CMD_EXPORT | OX_CMD_MERGE;
    const unsigned needs_model = train | eval | OX_CMD_EXPORT | OX_CMD_PLAN | OX_CMD_INSPECT | OX_CMD_TOKENIZE |
                                 OX_CMD_GENERATE;
    if (command == OX_CMD_TOKENIZE && (c->train_tokenizer || c->vocab_size > 0)) {
        return check_tokenizer_training(c);
    }
    if (c->model[0] == '\0' && (command & needs_model) != 0) {
        return fail_missing(c, "model", "give a folder of Hugging Face files");
    }
    if (c->data_count == 0 && (command & (train | eval)) != 0) {
        return fail_missing(c, "data", "give a text or token file, or a folder of them");
    }
    if (c->output_dir[0] == '\0' && (command & (train | export_ | OX_CMD_INIT)) != 0) {
        return ox_fail(OX_E_CONFIG, "--output is missing; name a folder for the results");
    }
    if ((command & (train | export_ | OX_CMD_PLAN)) != 0 && c->output_dir[0] != '\0' &&
        (strcmp(c->output_dir, c->model) == 0 || is_inside(c->model, c->output_dir))) {
        return ox_fail(OX_E_CONFIG, "--output: %s is the --model folder or inside it; name a folder outside of it",
                       c->output_dir);
    }
    if (c->from_scratch && c->resume_from_checkpoint[0] != '\0') {
        return ox_fail(OX_E_CONFIG,
                       "--from-scratch and --resume-from-checkpoint contradict each other: a resume goes on with the "
                       "run's own weights; leave out --from-scratch");
    }
    if (c->overwrite_output_dir && strcmp(c->resume_from_checkpoint, "latest") == 0 && (command & train) != 0) {
        return ox_fail(OX_E_CONFIG, "--overwrite-output-dir would delete the run that --resume-from-checkpoint latest "
                                    "continues; add --no-overwrite-output-dir");
    }
    return OX_OK;
}

/* Whether two paths are the same folder; different paths can only match if the folder exists. */
static bool same_folder(const char *a, const char *b) {
    struct stat first, second;
    return strcmp(a, b) == 0 || (stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
                                 first.st_ino == second.st_ino);
}

static enum ox_status check_memory(const struct ox_config *c, unsigned command) {
    const bool sized = (command & (OX_CMD_TRAIN | OX_CMD_PLAN | OX_CMD_EVAL)) != 0;
    for (uint32_t i = 0; i < c->nvme_count; i++) {
        if (sized && c->nvme[i].bytes == 0) {
            return ox_fail(OX_E_CONFIG, "--nvme: %s has no size; write it as %s:400GiB", c->nvme[i].path,
                           c->nvme[i].path);
        }
        for (uint32_t k = 0; k < i; k++) {
            if (same_folder(c->nvme[i].path, c->nvme[k].path)) {
                return ox_fail(OX_E_CONFIG, "--nvme: %s is given twice; give each drive once",
                               c->nvme[i].path);
            }
        }
    }
    const struct {
        const char *flag;
        enum ox_tier_choice choice;
    } homes[] = {{"--weights-tier", c->weights_tier},
                 {"--state-tier", c->state_tier},
                 {"--grads-tier", c->grads_tier},
                 {"--activation-tier", c->activation_tier}};
    for (unsigned i = 0; i < sizeof homes / sizeof *homes; i++) {
        if (sized && homes[i].choice == OX_TIER_CHOICE_NVME && c->nvme_count == 0) {
            return command == OX_CMD_EVAL
                       ? ox_fail(OX_E_CONFIG, "%s nvme: evaluation uses no drives; use device or host",
                                 homes[i].flag)
                       : ox_fail(OX_E_CONFIG, "%s nvme needs a drive; add --nvme PATH:SIZE", homes[i].flag);
        }
    }
    if (c->chunk_elems % OX_GROUP_ELEMS != 0) {
        return ox_fail(OX_E_CONFIG, "--chunk-elems: %" PRIu64 " is not a multiple of %d", c->chunk_elems,
                       OX_GROUP_ELEMS);
    }
    return OX_OK;
}

static enum ox_status check_optimizer(const struct ox_config *c, unsigned command) {
    const bool optimizes = (command & (OX_CMD_TRAIN | OX_CMD_PLAN)) != 0;
    if (optimizes && c->moments == OX_MOMENTS_Q8 && c->dtype != OX_COMPUTE_BF16) {
        return ox_fail(OX_E_CONFIG, "--moments q8 keeps 24 bits of a weight, but --dtype %s computes with 32; use "
                       "--moments bf16, or --dtype bf16", c->dtype == OX_COMPUTE_FP32 ? "fp32" : "fp16");
    }
    if (optimizes && c->dtype != OX_COMPUTE_FP16 &&
        (c->loss_scale > 0 || c->initial_scale_power != 16 || c->loss_scale_window != 2000)) {
        return ox_fail(OX_E_CONFIG, "%s: only --dtype fp16 scales the loss; leave it out, or use that",
                       c->loss_scale > 0 ? "--loss-scale" : c->initial_scale_power != 16 ? "--initial-scale-power"
                                                                                        : "--loss-scale-window");
    }
    const struct {
        const char *flag;
        double beta;
    } betas[] = {{"--adam-beta1", c->adam_beta1}, {"--adam-beta2", c->adam_beta2}};
    for (unsigned i = 0; i < 2; i++) {
        /* The comparison is in fp32, as the optimizer computes. With a beta of 1 the weights would never change. */
        if ((float)betas[i].beta >= 1.0f) {
            return ox_fail(OX_E_CONFIG, "%s: %.17g must be less than 1", betas[i].flag, betas[i].beta);
        }
    }
    if ((float)c->adam_epsilon <= 0.0f) {
        return ox_fail(OX_E_CONFIG, "--adam-epsilon: %.17g must be more than 0 in single precision",
                       c->adam_epsilon);
    }
    return OX_OK;
}

/* Refuses options of the learning rate that its schedule does not read, or that contradict each other. */
static enum ox_status check_rate(const struct ox_config *c) {
    enum {
        COSINES = 1 << OX_LR_COSINE | 1 << OX_LR_COSINE_WITH_MIN_LR | 1 << OX_LR_COSINE_WARMUP_WITH_MIN_LR,
        STABLE = 1 << OX_LR_WSD | 1 << OX_LR_WARMUP_STABLE_DECAY,
        LEVEL = 1 << OX_LR_CONSTANT | 1 << OX_LR_CONSTANT_WITH_WARMUP | 1 << OX_LR_INVERSE_SQRT,
    };
    const struct {
        const char *flag, *instead;
        bool given;
        unsigned types; /* the schedules that read it, as bits */
    } uses[] = {
        {"--warmup-steps", "constant_with_warmup", c->warmup_steps > 0, ~(1u << OX_LR_CONSTANT)},
        {"--warmup-ratio", "constant_with_warmup", c->warmup_ratio > 0, ~(1u << OX_LR_CONSTANT)},
        {"--min-lr", "linear", c->min_lr > 0, ~(unsigned)LEVEL},
        {"--min-lr-ratio", "linear", c->min_lr_ratio > 0, ~(unsigned)LEVEL},
        {"--decay-steps", "wsd", c->decay_steps > 0, STABLE},
        {"--lr-decay-type", "wsd", c->lr_decay_type != OX_DECAY_AUTO, STABLE},
        {"--lr-num-cycles", "cosine_with_restarts", c->lr_num_cycles > 0,
         COSINES | STABLE | 1 << OX_LR_COSINE_WITH_RESTARTS},
        {"--lr-power", "polynomial", c->lr_power != 1.0, 1 << OX_LR_POLYNOMIAL},
        {"--lr-timescale", "inverse_sqrt", c->lr_timescale > 0, 1 << OX_LR_INVERSE_SQRT},
    };
    char type[OX_CONFIG_TEXT_BYTES];
    ox_config_text(c, ox_option_find("lr-scheduler-type"), type);
    for (unsigned i = 0; i < sizeof uses / sizeof *uses; i++) {
        if (uses[i].given && (uses[i].types & 1u << c->lr_scheduler_type) == 0) {
            return ox_fail(OX_E_CONFIG, "%s does not apply to --lr-scheduler-type %s; remove it, or use %s",
                           uses[i].flag, type, uses[i].instead);
        }
    }
    if (c->min_lr > 0 && c->min_lr_ratio > 0) {
        return ox_fail(OX_E_CONFIG, "--min-lr and --min-lr-ratio are both given; give one of them");
    }
    if (c->learning_rate > 0 && c->min_lr > c->learning_rate) {
        return ox_fail(OX_E_CONFIG, "--min-lr %g is above --learning-rate %g; give a smaller one", c->min_lr,
                       c->learning_rate);
    }
    if ((c->lr_scheduler_type == OX_LR_COSINE_WITH_MIN_LR ||
         c->lr_scheduler_type == OX_LR_COSINE_WARMUP_WITH_MIN_LR) && c->min_lr == 0 && c->min_lr_ratio == 0) {
        return ox_fail(OX_E_CONFIG, "--lr-scheduler-type %s needs a final rate; add --min-lr or --min-lr-ratio", type);
    }
    return OX_OK;
}

/* Sets the micro-batches of a step, which --global-batch-size may say as a number of sequences. Runs record the
 * micro-batches alone, so that both ways to say it are equal at a resume. */
static enum ox_status set_micro_batches(struct ox_config *c) {
    const uint64_t global = c->global_batch_size, batch = c->per_device_train_batch_size, count = global / batch;
    if (global == 0) {
        c->gradient_accumulation_steps = ox_max_u64(c->gradient_accumulation_steps, 1);
        return OX_OK;
    }
    if (global % batch != 0) {
        char below[48] = "";
        if (count > 0) {
            snprintf(below, sizeof below, "%" PRIu64 " or ", count * batch);
        }
        return ox_fail(OX_E_CONFIG, "--global-batch-size: %" PRIu64 " is not a multiple of "
                       "--per-device-train-batch-size %" PRIu64 "; give %s%" PRIu64, global, batch, below,
                       (count + 1) * batch);
    }
    if (count > OX_MICRO_BATCHES_MAX) {
        return ox_fail(OX_E_CONFIG, "--global-batch-size: %" PRIu64 " is more than %d micro-batches of "
                       "--per-device-train-batch-size %" PRIu64 "; give at most %" PRIu64, global,
                       OX_MICRO_BATCHES_MAX, batch, OX_MICRO_BATCHES_MAX * batch);
    }
    if (c->gradient_accumulation_steps > 0 && c->gradient_accumulation_steps != count) {
        return ox_fail(OX_E_CONFIG, "--global-batch-size %" PRIu64 " is %" PRIu64 " micro-batch%s of "
                       "--per-device-train-batch-size %" PRIu64 ", but --gradient-accumulation-steps asks for %" PRIu64
                       "; leave one of them out", global, count, ox_plural_es(count), batch,
                       c->gradient_accumulation_steps);
    }
    c->gradient_accumulation_steps = count;
    c->global_batch_size = 0;
    return OX_OK;
}

enum ox_status ox_config_check_warmup(const struct ox_config *c) {
    const uint64_t warmup = c->warmup_steps > 0 ? (uint64_t)c->warmup_steps : 0;
    if (c->max_steps == 0 || warmup + c->decay_steps <= c->max_steps) {
        return OX_OK;
    }
    return warmup > 0 && c->decay_steps > 0
               ? ox_fail(OX_E_CONFIG, "--warmup-steps %" PRIu64 " and --decay-steps %" PRIu64
                         " together exceed --max-steps %" PRIu64 "; reduce one of them",
                         warmup, c->decay_steps, c->max_steps)
               : ox_fail(OX_E_CONFIG, "--%s-steps %" PRIu64 " exceeds --max-steps %" PRIu64 "; give at most that",
                         warmup > 0 ? "warmup" : "decay", warmup + c->decay_steps, c->max_steps);
}

static enum ox_status check_schedule(const struct ox_config *c) {
    if (c->max_steps == 0 && c->num_train_epochs == 0.0) {
        return ox_fail(OX_E_CONFIG, "--max-steps and --num-train-epochs are both 0; give one of them");
    }
    if (c->warmup_steps > 0 && c->warmup_ratio > 0.0) {
        return ox_fail(OX_E_CONFIG, "--warmup-steps and --warmup-ratio are both given; give one of them");
    }
    enum ox_status status = check_rate(c);
    OX_THEN(status, c->resume_from_checkpoint[0] == '\0' ? ox_config_check_warmup(c) : OX_OK);
    if (status != OX_OK) {
        return status;
    }
    if (c->sum_groups > c->gradient_accumulation_steps) {
        return ox_fail(OX_E_CONFIG, "--sum-groups: %" PRIu64 " exceeds --gradient-accumulation-steps %" PRIu64
                       ", the number of micro-batches; give at most that",
                       c->sum_groups, c->gradient_accumulation_steps);
    }
    if (c->tiles > c->gradient_accumulation_steps) {
        return ox_fail(OX_E_CONFIG,
                       "--tiles: %" PRIu64 " exceeds --gradient-accumulation-steps %" PRIu64
                       ", the number of micro-batches; give at most that",
                       c->tiles, c->gradient_accumulation_steps);
    }
    return OX_OK;
}

static bool is_count(const char *text) {
    return text[0] != '\0' && text[0] != '0' && strlen(text) < 16 && text[strspn(text, "0123456789")] == '\0';
}

static enum ox_status check_kept(const struct ox_config *c) {
    if (!is_count(c->kept_blocks) && strcmp(c->kept_blocks, "0") != 0 && strcmp(c->kept_blocks, "auto") != 0) {
        return ox_fail(OX_E_CONFIG, "--kept-blocks: '%s' is neither auto nor a number of blocks", c->kept_blocks);
    }
    return OX_OK;
}

static enum ox_status check_ranks(const struct ox_config *c) {
    if (strcmp(c->ranks, "auto") != 0 && (!is_count(c->ranks) || strtoull(c->ranks, NULL, 10) > OX_RANKS_MAX)) {
        return ox_fail(OX_E_CONFIG, "--ranks: '%s' is neither auto nor a number of ranks, 1 to %d", c->ranks,
                       OX_RANKS_MAX);
    }
    return OX_OK;
}

static enum ox_status check_persist(const struct ox_config *c) {
    const bool speculative = strcmp(c->optimizer_overlap, "speculative") == 0 || c->speculative_units > 0;
    if (!is_count(c->persist_steps) && strcmp(c->persist_steps, "auto") != 0) {
        return ox_fail(OX_E_CONFIG, "--persist-steps: '%s' is neither auto nor a number of steps", c->persist_steps);
    }
    if (speculative && c->nvme_count > 0 && c->store_generations == 1) {
        return ox_fail(OX_E_CONFIG, "--store-generations 1: requested updates in backward need a second slot on the "
                       "drives; use --store-generations 2, or --optimizer-overlap held without --speculative-units");
    }
    return OX_OK;
}

static enum ox_status check_reports(const struct ox_config *c) {
    if (!is_count(c->trace) && strcmp(c->trace, "on") != 0 && strcmp(c->trace, "off") != 0) {
        return ox_fail(OX_E_CONFIG, "--trace: '%s' is none of off, on or a number of steps", c->trace);
    }
    return OX_OK;
}

/* ---- public ----------------------------------------------------------------------------------------- */

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
    config->seq_given |= value == (void *)&config->max_seq_length;
    config->train_tokenizer |= option->type == OX_OPT_DATA && strcmp(option->name, "train") == 0;
    if (text[0] == '\0' && option->type != OX_OPT_TEXT && option->type != OX_OPT_PROSE &&
        option->type != OX_OPT_PATTERNS) {
        return ox_fail(OX_E_CONFIG, "%s has no value; give one", where);
    }
    switch (option->type) {
    case OX_OPT_TEXT:
    case OX_OPT_PROSE:
        return set_text(value, option, text, where);
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
        const int idx = chosen_idx(option->choices, text);
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

/* A share of all steps for the warmup is what --warmup-ratio says. */
static void set_warmup(struct ox_config *c) {
    if (c->warmup_steps > 0 && c->warmup_steps < 1) {
        c->warmup_ratio = c->warmup_steps;
        c->warmup_steps = -1;
    }
}

enum ox_status ox_config_validate(struct ox_config *config, unsigned command) {
    struct ox_eval_sets sets;
    enum ox_status status = ox_config_eval_sets(config->eval_data, &sets);
    OX_THEN(status, check_paths(config, command));
    OX_THEN(status, set_micro_batches(config));
    OX_THEN(status, check_memory(config, command));
    OX_THEN(status, check_optimizer(config, command));
    OX_THEN(status, check_schedule(config));
    OX_THEN(status, check_persist(config));
    OX_THEN(status, check_kept(config));
    OX_THEN(status, check_ranks(config));
    OX_THEN(status, check_reports(config));
    if (status == OX_OK) {
        set_warmup(config);
    }
    return status;
}
