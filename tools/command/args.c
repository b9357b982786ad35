/* Turns arguments into a configuration: defaults first, then the file of --config wherever it appears, then flags. */
#include "tools/command/cmd.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/name/name.h"
#include "engine/config/mesh_words.h"
#include "engine/config/reword.h"

#include <ctype.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { FLAG_BYTES = 96, OPTIONS_MAX = 256 };

struct arguments {
    const struct ox_command *command;
    char **argv;
    int argc, idx;
    struct ox_config *config;
    bool seen[OPTIONS_MAX]; /* by index in the option table */
    int positional_count; /* arguments without a flag, so far */
    const struct ox_option *last; /* the option that the last flag has set */
    bool unknown; /* the last flag is none of this command */
    unsigned unknown_count;
    char unknown_text[OX_ERROR_TEXT_BYTES]; /* what was said of the last of these */
};

static const char record_name[] = "config.resolved.yaml"; /* in a run's folder, its options */

/* Other names than ours that options were given by, by index in the option table; "": none. */
static char typed_names[OPTIONS_MAX][FLAG_BYTES];

/* An argument split into its parts: "--name=value" or "--name". */
struct flag {
    char name[FLAG_BYTES]; /* without dashes */
    const char *value;     /* after '=', or NULL */
};

/* Returns false when the argument is no flag. A name that is too long is cut, and is therefore unknown. */
static bool split_flag(const char *argument, struct flag *out) {
    if (argument[0] != '-' || argument[1] == '\0') {
        return false;
    }
    const char *const name = argument + (argument[1] == '-' ? 2 : 1);
    const char *const equals = strchr(name, '=');
    const int len = (int)(equals != NULL ? (size_t)(equals - name) : strlen(name));
    snprintf(out->name, sizeof out->name, "%.*s", len < FLAG_BYTES ? len : FLAG_BYTES - 1, name);
    out->value = equals != NULL ? equals + 1 : NULL;
    return true;
}

/* Length of a dash or of a quotation mark as word processors and web pages make them, at the beginning of `text`; 0 for
 * another letter. */
static size_t typographic(const char *text, bool dashes) {
    static const char *const letters[2][10] = {
        {"\u201c", "\u201d", "\u201e", "\u2018", "\u2019", "\u00ab", "\u00bb", "\u2033", "\u2039", "\u203a"},
        {"\u2010", "\u2011", "\u2012", "\u2013", "\u2014", "\u2015", "\u2212", "\ufe58", "\ufe63", "\uff0d"}};
    for (unsigned i = 0; i < 10; i++) {
        const size_t bytes = strlen(letters[dashes][i]);
        if (strncmp(text, letters[dashes][i], bytes) == 0) {
            return bytes;
        }
    }
    return 0;
}

/* Fails for an argument that begins with a dash which is none of ASCII, or with such a quotation mark. */
static enum ox_status check_typography(const char *argument) {
    const bool dash = typographic(argument, true) > 0;
    if (!dash && typographic(argument, false) == 0) {
        return OX_OK;
    }
    return ox_fail(OX_E_CONFIG, "'%s' begins with a %s that a word processor or a web page made; type %s", argument,
                   dash ? "dash" : "quotation mark", dash ? "two plain dashes (--)" : "a plain one, or none");
}

/* Whether the command takes a flag, given without its dashes. */
static bool takes(const struct arguments *a, const char *name) {
    const bool negated = strncmp(name, "no-", 3) == 0;
    return ox_option_find_in(name, a->command->mask) != NULL || strcmp(name, "config") == 0 ||
           (negated && ox_option_find_in(name + 3, a->command->mask) != NULL);
}

/* Whether an answer is of this command: what it tells to use exists here, and nothing is told of training where nothing
 * is trained. There an answer that is not for this command alone counts if it names flags, all of them its own. Flags
 * within backquotes are another command's. */
static bool applies(const struct arguments *a, const char *name, const char *answer) {
    const bool trains = (a->command->mask & (OX_CMD_TRAIN | OX_CMD_PLAN)) != 0;
    const bool own = answer != ox_foreign_answer(name, NULL, 0), use = strncmp(answer, "use --", 6) == 0;
    unsigned count = 0;
    bool quoted = false;
    for (const char *at = answer; *at != '\0'; at++) {
        char flag[FLAG_BYTES];
        quoted ^= *at == '`';
        if (strncmp(at, "--", 2) != 0) {
            continue;
        }
        snprintf(flag, sizeof flag, "%.*s", (int)strspn(at + 2, "abcdefghijklmnopqrstuvwxyz0123456789-"), at + 2);
        if (!quoted && !takes(a, flag)) {
            return own && !use;
        }
        at++;
        count++;
    }
    return trains || own || count > 0;
}

static enum ox_status fail_unknown(const struct arguments *a, const char *argument, const char *name) {
    const char *const command = a->command->name;
    const char *const answer = ox_foreign_answer(name, NULL, a->command->mask);
    char suggestion[OX_SUGGEST_BYTES];
    for (const char *at = name; *at != '\0'; at++) {
        if ((unsigned char)*at > 0x7e || *at == ' ') {
            return ox_fail(OX_E_CONFIG, "'%s' is not a flag: its name has a letter that is none of a-z, 0-9 and -; "
                           "type it anew", argument);
        }
    }
    const char *const colon = strchr(name, ':');
    char before[FLAG_BYTES];
    snprintf(before, sizeof before, "%.*s", (int)(colon != NULL ? colon - name : 0), name);
    if (name[0] == '\0') {
        return ox_fail(OX_E_CONFIG, "'%s' stands alone; write the name of a flag right after it, or remove it",
                       argument);
    }
    if (colon != NULL && ox_option_find_in(before, a->command->mask) != NULL) {
        return ox_fail(OX_E_CONFIG, "'%s' is not a flag; write --%s %s", argument, before, colon + 1);
    }
    if (strncmp(name, "no-", 3) == 0 && answer == NULL && ox_foreign_answer(name + 3, NULL, a->command->mask) != NULL) {
        return ox_fail(OX_E_CONFIG, "'%s': there is nothing to switch off; leave it out", argument);
    }
    if (strncmp(argument, "--", 2) != 0 && ox_option_find_in(name, a->command->mask) != NULL) {
        return ox_fail(OX_E_CONFIG, "'%s' has one dash; write -%s", argument, argument);
    }
    if (answer == NULL && strncmp(argument, "--", 2) != 0 && strlen(name) <= 3) {
        return ox_fail(OX_E_CONFIG, "'%s': flags are words here; `offload help %s` lists them", argument, command);
    }
    if (answer != NULL && applies(a, name, answer)) {
        return ox_fail(OX_E_CONFIG, "'%s': %s", argument, answer);
    }
    if (answer != NULL || ox_option_find(name) != NULL) {
        return ox_fail(OX_E_CONFIG, "`offload %s` does not take %s, nor anything like it; remove it", command,
                       argument);
    }
    if (ox_name_distance(name, "config") <= 2) { /* which is not in the table of options */
        return ox_fail(OX_E_CONFIG, "'%s' is not a flag of `offload %s`; did you mean '--config'?", argument, command);
    }
    if (ox_option_suggest(name, a->command->mask, true, suggestion)) {
        return ox_fail(OX_E_CONFIG, "'%s' is not a flag of `offload %s`; %s", argument, command, suggestion);
    }
    return ox_fail(OX_E_CONFIG, "'%s' is not a flag of `offload %s`; `offload help %s` lists them", argument,
                   command, command);
}

/* Finds the option of a flag; *negated is true for --no-<switch>. */
static enum ox_status find_option(struct arguments *a, const char *argument, const struct flag *flag,
                                  const struct ox_option **out, bool *negated) {
    const unsigned mask = a->command->mask;
    const bool long_form = strncmp(argument, "--", 2) == 0;
    const struct ox_option *option = long_form ? ox_option_find_in(flag->name, mask) : NULL;
    const struct ox_option *const other = long_form ? ox_option_find(flag->name) : NULL;
    if (option == NULL && other != NULL && other->in_eval != NULL && mask == OX_CMD_EVAL) {
        option = ox_option_find_in(other->in_eval, mask);
    }
    *negated = false;
    if (option == NULL && strncmp(argument, "--no", 4) == 0 && (argument[4] == '-' || argument[4] == '_')) {
        option = ox_option_find_in(flag->name + 3, mask);
        *negated = option != NULL && option->type == OX_OPT_BOOL;
        option = *negated ? option : NULL;
    }
    if (option == NULL && other != NULL && ox_foreign_answer(flag->name, NULL, mask) == NULL) {
        const char *const owner = ox_command_name(other->commands); /* "": several */
        return ox_fail(OX_E_CONFIG, "`offload %s` does not take --%s%s%s%s; remove it", a->command->name, other->name,
                       owner[0] != '\0' ? ", a flag of `offload " : "", owner, owner[0] != '\0' ? "`" : "");
    }
    if (option == NULL) {
        a->unknown = true;
        return fail_unknown(a, argument, flag->name);
    }
    *out = option;
    return OX_OK;
}

static unsigned index_of(const struct ox_option *option) {
    uint32_t count = 0;
    const ptrdiff_t at = option - ox_options(&count);
    OX_ASSERT(at >= 0 && at < OPTIONS_MAX);
    return (unsigned)at;
}

/* Keeps the name that an option was given by, unless it differs from ours by '_' alone. */
static void note_name(const struct ox_option *option, const char *typed, bool negated) {
    char *const name = typed_names[index_of(option)];
    snprintf(name, FLAG_BYTES, "%s", typed);
    for (char *at = name; *at != '\0'; at++) {
        *at = *at == '_' ? '-' : *at;
    }
    snprintf(name, FLAG_BYTES, "%s", negated || strcmp(name, option->name) == 0 ? "" : typed);
}

const char *ox_args_name_typed(const char *text, char out[OX_ERROR_TEXT_BYTES]) {
    uint32_t count = 0;
    const struct ox_option *const options = ox_options(&count);
    for (const char *at = strstr(text, "--"); at != NULL; at = strstr(at + 2, "--")) {
        const size_t bytes = strspn(at + 2, "abcdefghijklmnopqrstuvwxyz0123456789-");
        for (uint32_t i = 0; i < count; i++) {
            if (typed_names[i][0] != '\0' && strlen(options[i].name) == bytes &&
                strncmp(at + 2, options[i].name, bytes) == 0) {
                char typed[FLAG_BYTES + 2];
                snprintf(typed, sizeof typed, "--%.*s", FLAG_BYTES - 1, typed_names[i]);
                if (at == text) {
                    snprintf(out, OX_ERROR_TEXT_BYTES, "--%s (given as %s)%s", options[i].name, typed, at + 2 + bytes);
                } else {
                    snprintf(out, OX_ERROR_TEXT_BYTES, "%.900s; %s is --%s", text, typed, options[i].name);
                }
                return strstr(text, typed) != NULL ? text : out;
            }
        }
    }
    return text;
}

static enum ox_status mark_seen(struct arguments *a, const struct ox_option *option) {
    bool *const seen = &a->seen[index_of(option)];
    if (ox_option_is_list(option)) {
        if (!*seen) { /* flags replace the file's list */
            ox_config_clear_list(a->config, option);
        }
    } else if (*seen) {
        return ox_fail(OX_E_CONFIG, "--%s is given twice; give it once", option->name);
    }
    *seen = true;
    return OX_OK;
}

/* Whether an argument is a flag, and so no value: "-1" and "-" are values, and in prose so is "-x". */
static bool is_flag(const char *argument, bool prose) {
    const size_t dash = typographic(argument, true);
    return strncmp(argument, "--", 2) == 0 || (!prose && argument[0] == '-' && isalpha((unsigned char)argument[1])) ||
           (!prose && dash > 0 && (isalpha((unsigned char)argument[dash]) || typographic(argument + dash, true) > 0));
}

/* Returns the value after '=', else the next argument unless it is a flag, else NULL. */
static const char *take_value(struct arguments *a, const struct flag *flag, bool prose) {
    if (flag->value != NULL) {
        return flag->value;
    }
    if (a->idx + 1 < a->argc && !is_flag(a->argv[a->idx + 1], prose)) {
        a->idx++;
        return a->argv[a->idx];
    }
    return NULL;
}

/* Returns the argument after a switch if it reads as the switch's value; else NULL. */
static const char *stray_value(const struct arguments *a) {
    const char *const next = a->idx + 1 < a->argc ? a->argv[a->idx + 1] : "";
    static const char *const words[] = {"true", "false", "yes", "no", "on", "off", "1", "0"};
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcasecmp(next, words[i]) == 0) {
            return next;
        }
    }
    return NULL;
}

static bool is_true(const char *word) {
    return strcasecmp(word, "true") == 0 || strcasecmp(word, "yes") == 0 || strcasecmp(word, "on") == 0 ||
           strcmp(word, "1") == 0;
}

/* Takes a flag of another program whose value means what is done here anyway; false for any other. Without a value it
 * is a switch that is on. */
static bool take_done(struct arguments *a, const struct flag *flag) {
    const char *own = NULL, *const next = a->idx + 1 < a->argc ? a->argv[a->idx + 1] : "--";
    const bool apart = flag->value == NULL && !is_flag(next, false);
    const char *const value = flag->value != NULL ? flag->value : apart ? next : "true";
    const bool done = strncmp(a->argv[a->idx], "--", 2) == 0 && ox_option_find(flag->name) == NULL &&
                      ox_foreign_is_done(flag->name, value, &own) && own == NULL;
    a->idx += done && apart ? 1 : 0;
    return done;
}

static enum ox_status take_flag(struct arguments *a, const struct flag *flag) {
    const char *const argument = a->argv[a->idx];
    const struct ox_option *option = NULL;
    bool negated = false;
    if ((a->command->mask & (OX_CMD_TRAIN | OX_CMD_PLAN)) != 0 && take_done(a, flag)) {
        return OX_OK;
    }
    enum ox_status status = find_option(a, argument, flag, &option, &negated);
    if (status != OX_OK) {
        return status;
    }
    note_name(option, flag->name, negated);
    status = mark_seen(a, option);
    if (status != OX_OK) {
        return status;
    }
    const char *value = flag->value;
    if (option->type == OX_OPT_BOOL) {
        if (negated && value != NULL) {
            return ox_fail(OX_E_CONFIG, "'%s': --no-%s takes no value; remove it", argument, option->name);
        }
        const char *const stray = value == NULL ? stray_value(a) : NULL;
        if (stray != NULL && negated) {
            return ox_fail(OX_E_CONFIG, "'%s %s': --no-%s takes no value; write --%s%s", argument, stray, option->name,
                           is_true(stray) ? "no-" : "", option->name);
        }
        a->idx += stray != NULL ? 1 : 0; /* as the Trainer takes it */
        value = stray != NULL ? stray : negated ? "false" : value == NULL ? "true" : value;
    } else {
        value = take_value(a, flag, option->type == OX_OPT_PROSE);
    }
    char where[FLAG_BYTES];
    snprintf(where, sizeof where, "--%s", option->name);
    a->last = option;
    const char *const next = a->idx + 1 < a->argc ? a->argv[a->idx + 1] : "";
    if (value == NULL && option->type == OX_OPT_TEXT && next[0] == '-' && next[1] != '-') {
        return ox_fail(OX_E_CONFIG, "%s has no value; one that begins with a dash is written %s=%s", where, where,
                       next);
    }
    if (value == NULL && strcmp(option->name, "resume-from-checkpoint") == 0) {
        value = "latest"; /* as the Trainer's True */
    }
    if (strcmp(option->name, "max-steps") == 0 && value != NULL && strcmp(value, "-1") == 0) {
        return OX_OK; /* the Trainer's default, which leaves it to the epochs */
    }
    if (value == NULL) {
        return option->choices != NULL && option->placeholder == NULL
                   ? ox_fail(OX_E_CONFIG, "%s has no value; give one of %s after it", where, option->choices)
                   : ox_fail(OX_E_CONFIG, "%s has no value; give one after it", where);
    }
    if (value[0] == '\0' && strcmp(option->name, "resume-from-checkpoint") == 0) { /* would begin a run anew */
        return ox_fail(OX_E_CONFIG, "%s has no value; give latest or the folder of a checkpoint, or leave it out",
                       where);
    }
    if (value[0] == '\0' && strcmp(option->name, "freeze") == 0 && a->config->parts.freeze[0] == '\0') {
        return ox_fail(OX_E_CONFIG, "%s has no value, so nothing is frozen; name tensors, or leave it out", where);
    }
    if (value[0] == '=' && value != flag->value && option->type != OX_OPT_PROSE) {
        return ox_fail(OX_E_CONFIG, "%s: '%s' has a blank before its '='; write %s=VALUE or %s VALUE", where, value,
                       where, where);
    }
    if (option->type != OX_OPT_PROSE) {
        status = check_typography(value);
    }
    return status != OX_OK ? status : ox_config_set(a->config, option, value, where);
}

/* Appends the required flags that are not given yet, such as "--model PATH --output PATH". */
static void list_missing(const struct arguments *a, char *text, size_t bytes) {
    const char *names = a->command->required != NULL ? a->command->required : "";
    size_t used = 0;
    text[0] = '\0';
    for (char name[FLAG_BYTES]; *names != '\0'; names += strspn(names, " ")) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(names, " "), names);
        names += strcspn(names, " ");
        const struct ox_option *const option = ox_option_find_in(name, a->command->mask);
        uint32_t count = 0;
        if (!a->seen[option - ox_options(&count)]) {
            used += (size_t)snprintf(text + used, bytes - used, "%s--%s %s", used > 0 ? " " : "", option->name,
                                     option->placeholder != NULL ? option->placeholder : "PATH");
        }
    }
}

/* What a stray argument may be the value of, by what is there; "" if none is known to be missing. A run's folder is its
 * configuration, which is in no table. */
static const char *flag_of(struct arguments *a, const char *argument) {
    const bool is_run = ox_folder_has(argument, record_name);
    const bool is_adapter = ox_folder_has(argument, "adapter_config.json");
    const char *const names[] = {is_adapter || ox_folder_has(argument, "config.json") ? "model" : "",
                                 is_adapter || is_run ? "adapter" : "",
                                 ox_path_exists(argument) ? "data" : "prompt"};
    if (is_run && (a->command->mask & (OX_CMD_TRAIN | OX_CMD_PLAN)) != 0) {
        return "config";
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct ox_option *const option = ox_option_find_in(names[i], a->command->mask);
        if (option != NULL && !a->seen[index_of(option)]) {
            a->seen[index_of(option)] = true; /* so that it is not told to be missing */
            return option->name;
        }
    }
    return "";
}

/* Says which flag a stray argument wants. */
static enum ox_status fail_meant(struct arguments *a, const char *argument, const char *flag, bool after_another) {
    const char *const remark = after_another ? "is one too many" : "has no flag before it";
    char missing[256];
    list_missing(a, missing, sizeof missing);
    if (strcmp(flag, "config") == 0) {
        return ox_fail(OX_E_CONFIG, "'%s' %s; to go on with that run, write --config %s/%s --resume latest", argument,
                       remark, argument, record_name);
    }
    const bool is_text = strcmp(flag, "prompt") == 0;
    return ox_fail(OX_E_CONFIG, "'%s' %s; write --%s %s%s%s%s%s", argument, remark, flag, is_text ? "'" : "", argument,
                   is_text ? "'" : "", missing[0] != '\0' ? "; still missing: " : "", missing);
}

/* Fails for an argument that no flag takes, with what may have been meant. */
static enum ox_status fail_stray(struct arguments *a, const char *argument) {
    const char *const command = a->command->name, *const equals = strchr(argument, '=');
    const size_t length = strlen(argument);
    uint64_t bytes = 0;
    char missing[256], name[FLAG_BYTES];
    snprintf(name, sizeof name, "%.*s", (int)(equals != NULL ? equals - argument : 0), argument);
    list_missing(a, missing, sizeof missing);
    if (argument[0] == '\0') {
        return ox_fail(OX_E_CONFIG, "there is an empty argument, as of a variable of the shell that is not set; remove "
                                    "it");
    }
    if (strcmp(argument, "help") == 0) {
        return ox_fail(OX_E_CONFIG, "'help' is unexpected; `offload help %s` shows what it takes", command);
    }
    if (equals != NULL && ox_option_find_in(name, a->command->mask) != NULL) {
        return ox_fail(OX_E_CONFIG, "'%s' has no dashes; write --%s", argument, argument);
    }
    if (length > 5 && (strcmp(argument + length - 5, ".yaml") == 0 || strcmp(argument + length - 4, ".yml") == 0)) {
        return ox_fail(OX_E_CONFIG, "'%s' has no flag before it; write --config %s", argument, argument);
    }
    const bool after_drive = a->last != NULL && a->last->type == OX_OPT_NVME && a->config->memory.nvme_count > 0;
    if (after_drive && ox_size_parse(argument, &bytes)) {
        return ox_fail(OX_E_CONFIG, "'%s' has no flag before it; write --nvme %s:%s", argument,
                       a->config->memory.nvme[a->config->memory.nvme_count - 1].path, argument);
    }
    if (a->last != NULL && ox_option_is_list(a->last)) {
        return ox_fail(OX_E_CONFIG, "'%s' has no flag before it; write --%s before each of several", argument,
                       a->last->name);
    }
    if (equals != NULL) {
        return ox_fail(OX_E_CONFIG, "'%s' is unexpected; options are written as --NAME VALUE", argument);
    }
    if (a->command->positional[0] != NULL && strcmp(a->command->positional[0], "adapter") == 0) {
        return ox_fail(OX_E_CONFIG, "'%s' is one too many; `offload %s ADAPTER --model DIR` names both", argument,
                       command);
    }
    const char *const meant = flag_of(a, argument);
    if (meant[0] != '\0') {
        return fail_meant(a, argument, meant, a->command->positional[0] != NULL);
    }
    if (a->command->positional[0] != NULL) {
        return ox_fail(OX_E_CONFIG, "'%s' is one too many; `offload %s` takes one at a time", argument, command);
    }
    if (missing[0] != '\0') {
        return ox_fail(OX_E_CONFIG, "'%s' has no flag before it; still missing: %s", argument, missing);
    }
    if (a->last != NULL && a->last->type != OX_OPT_BOOL) {
        return ox_fail(OX_E_CONFIG, "'%s' has no flag before it; --%s takes one value", argument, a->last->name);
    }
    return ox_fail(OX_E_CONFIG, "'%s' is unexpected; `offload help %s` shows what it takes", argument, command);
}

/* The option that the next argument without a flag sets; NULL: none. A list that comes last takes all that follow. */
static const char *next_positional(const struct arguments *a) {
    const char *const *const names = a->command->positional;
    const char *const next = a->positional_count < OX_POSITIONALS_MAX ? names[a->positional_count] : NULL;
    const char *const last = a->positional_count > 0 ? names[a->positional_count - 1] : NULL;
    const bool more = next == NULL && last != NULL && ox_option_is_list(ox_option_find_in(last, a->command->mask));
    return more ? last : next;
}

/* Whether an argument in the place of a path is surely meant as something else: a setting, or a file of settings. */
static bool is_no_path(const struct arguments *a, const char *argument) {
    char name[FLAG_BYTES];
    const size_t length = strlen(argument), bytes = strcspn(argument, "=");
    snprintf(name, sizeof name, "%.*s", (int)(bytes < FLAG_BYTES ? bytes : 0), argument);
    return (argument[bytes] == '=' && ox_option_find_in(name, a->command->mask) != NULL) ||
           (a->command->mask == OX_CMD_EVAL && length > 5 && strcmp(argument + length - 5, ".yaml") == 0);
}

static enum ox_status take_positional(struct arguments *a) {
    const char *const argument = a->argv[a->idx];
    const char *const name = next_positional(a);
    enum ox_status status = check_typography(argument);
    if (status == OX_OK && a->last != NULL && strcmp(a->last->name, "train") == 0) { /* as a shell writes out *.txt */
        return ox_config_set(a->config, a->last, argument, "--train");
    }
    if (status != OX_OK || name == NULL) {
        return status != OX_OK ? status : fail_stray(a, argument);
    }
    const bool after_list = a->last != NULL && ox_option_is_list(a->last); /* as of `--data a b` */
    if (a->positional_count == 0 && (after_list || is_no_path(a, argument))) {
        return fail_stray(a, argument);
    }
    a->positional_count += a->positional_count == 0 || name != a->command->positional[a->positional_count - 1];
    const struct ox_option *const option = ox_option_find_in(name, a->command->mask);
    OX_ASSERT(option != NULL);
    status = mark_seen(a, option);
    const bool is_path = option->choices != NULL && (access(argument, F_OK) == 0 || strchr(argument, '/') != NULL);
    if (status == OX_OK && is_path && a->command->positional[1] != NULL) {
        const int bytes = (int)strcspn(option->choices, "|"); /* the first choice */
        return ox_fail(OX_E_CONFIG, "%s: '%s' is not one of %s; write `offload %s %.*s %s`", option->name, argument,
                       option->choices, a->command->name, bytes, option->choices, argument);
    }
    return status == OX_OK ? ox_config_set(a->config, option, argument, option->choices != NULL ? option->name : "PATH")
                           : status;
}

static bool is_config_flag(const struct flag *flag, const char *argument) {
    return strncmp(argument, "--", 2) == 0 && strcmp(flag->name, "config") == 0;
}

/* First pass: loads the file of --config. It skips no values, because a value never begins with "--". */
static enum ox_status load_config_file(struct arguments *a) {
    const char *path = NULL;
    for (a->idx = 0; a->idx < a->argc; a->idx++) {
        struct flag flag;
        if (!split_flag(a->argv[a->idx], &flag)) {
            continue;
        }
        if (is_config_flag(&flag, a->argv[a->idx])) {
            if (path != NULL) {
                return ox_fail(OX_E_CONFIG, "--config is given twice; give it once");
            }
            path = take_value(a, &flag, false);
            if (path == NULL || path[0] == '\0') {
                return ox_fail(OX_E_CONFIG, "--config has no value; give a YAML file after it");
            }
        }
    }
    if (path != NULL && ox_folder_has(path, record_name)) {
        return ox_fail(OX_E_CONFIG, "--config %s: is the folder of a run; give --config %s/%s", path, path,
                       record_name);
    }
    return path != NULL ? ox_config_load_yaml(a->config, path, a->command->mask) : OX_OK;
}

bool ox_args_want_help(int argc, char **argv) {
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return true;
        }
    }
    return false;
}

static bool is_seen(const struct arguments *a, const char *name) {
    uint32_t count = 0;
    return a->seen[ox_option_find_in(name, a->command->mask) - ox_options(&count)];
}

/* The sizes of a mesh that flags say replace those of the file: --mesh and one rank all of them, other ranks those that
 * --mesh auto chose, data ranks how many there are. */
static enum ox_status settle_mesh(const struct arguments *a) {
    struct ox_config_ranks *const ranks = &a->config->ranks;
    const char *option;
    uint64_t *size;
    if ((a->command->mask & (OX_CMD_TRAIN | OX_CMD_PLAN | OX_CMD_EVAL)) == 0) {
        return OX_OK;
    }
    const bool mesh = is_seen(a, "mesh"), count = is_seen(a, "ranks"), chosen = strcmp(ranks->mesh, "auto") == 0;
    const bool one = count && strtoul(ranks->count, NULL, 10) == 1, anew = mesh || one || (count && chosen);
    for (uint32_t i = 0; anew && (size = ox_mesh_given(ranks, i, &option)) != NULL; i++) {
        *size = is_seen(a, option + strlen("--")) ? *size : 0;
    }
    if (!count && (mesh || is_seen(a, "data-parallel-size"))) {
        snprintf(ranks->count, sizeof ranks->count, "1"); /* none: as many as the sizes make */
    } else if (one && !mesh) {
        ranks->mesh[0] = '\0';
    }
    struct ox_mesh_sizes said;
    char words[OX_MESH_SAID_BYTES];
    uint32_t made = 0;
    OX_TRY(ox_mesh_read(ranks, &said));
    if ((anew || is_seen(a, "pipeline-parallel-size")) && said.pipe <= 1 && !is_seen(a, "pipeline-schedule")) {
        ranks->pipeline_schedule = OX_PIPELINE_CHOICE_AUTO; /* that of the file had another pipeline */
    }
    if (one) {
        OX_TRY(ox_mesh_complete(ranks, 1, &said, &made));
        ox_mesh_say(ranks, words);
    }
    return made <= 1 ? OX_OK : ox_fail(OX_E_CONFIG, "--ranks 1: %s makes %" PRIu32 " ranks; leave out one of them",
                                       words, made);
}

/* A flag replaces what the file says, also where the file says it by the other of two names for one thing. */
static void drop_replaced(const struct arguments *a) {
    if ((a->command->mask & (OX_CMD_TRAIN | OX_CMD_PLAN)) == 0) {
        return;
    }
    const bool global = is_seen(a, "global-batch-size"), micro = is_seen(a, "gradient-accumulation-steps");
    if (global && !micro) {
        a->config->train.gradient_accumulation_steps = 0;
    } else if (micro && !global) {
        a->config->train.global_batch_size = 0;
    }
}

/* Data that the options of a run name, and no flag, is what that run trains on: `eval` measures what it is evaluated on
 * instead. */
static void pick_measured(const struct arguments *a) {
    struct ox_config *const config = a->config;
    if (a->command->mask != OX_CMD_EVAL || is_seen(a, "data") || config->files.output_dir[0] == '\0') {
        return;
    }
    struct ox_eval_sets sets;
    config->rows.as_run = true;
    if (ox_config_eval_sets(config->files.eval_data, &sets) == OX_OK && sets.count > 0) { /* else it is refused later */
        config->files.data_count = sets.count;
        for (uint32_t i = 0; i < sets.count; i++) {
            config->files.data[i].weight = 1;
            memcpy(config->files.data[i].path, sets.sets[i].path, sizeof sets.sets[i].path);
        }
    } else if (sets.count == 0) {
        config->rows.held_share = config->rows.eval_fraction;
    }
}

/* Keeps the answer to an unknown flag, and prints that to the one before: a line of flags of another program is
 * answered in one try. Steps over what seems to be its value. */
static void note_unknown(struct arguments *a, const struct flag *flag) {
    if (a->unknown_count++ > 0) {
        fprintf(stderr, "offload: %s\n", a->unknown_text);
    }
    snprintf(a->unknown_text, sizeof a->unknown_text, "%s", ox_error_text());
    (void)take_value(a, flag, false);
    a->unknown = false;
    a->last = NULL;
}

enum ox_status ox_args_parse(const struct ox_command *command, int argc, char **argv,
                             struct ox_config *config) {
    struct arguments a = {.command = command, .argc = argc, .argv = argv, .config = config};
    ox_config_init(config);
    enum ox_status status = command->mask != 0 ? load_config_file(&a) : OX_OK;
    for (a.idx = 0; status == OX_OK && a.idx < argc; a.idx++) {
        struct flag flag;
        if (!split_flag(argv[a.idx], &flag)) {
            status = take_positional(&a);
        } else if (command->mask != 0 && is_config_flag(&flag, argv[a.idx])) {
            (void)take_value(&a, &flag, false); /* loaded by the first pass */
        } else {
            status = take_flag(&a, &flag);
            if (a.unknown) {
                note_unknown(&a, &flag);
                status = OX_OK;
            }
        }
    }
    if (status == OX_OK && a.unknown_count > 0) {
        status = ox_fail(OX_E_CONFIG, "%s", a.unknown_text);
    } else if (a.unknown_count > 0) {
        fprintf(stderr, "offload: %s\n", a.unknown_text);
    }
    drop_replaced(&a);
    OX_THEN(status, ox_config_reword(config, settle_mesh(&a)));
    pick_measured(&a);
    return status;
}
