/* Turns arguments into a configuration: defaults first, then the file of --config wherever it appears, then flags. */
#include "tools/command/cmd.h"

#include "base/assert.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

enum { FLAG_BYTES = 96, OPTIONS_MAX = 160 };

struct arguments {
    const struct ox_command *command;
    char **argv;
    int argc, idx;
    struct ox_config *config;
    bool seen[OPTIONS_MAX]; /* by index in the option table */
    int positional_count; /* arguments without a flag, so far */
};

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

static enum ox_status fail_unknown(const struct arguments *a, const char *argument, const char *name) {
    const char *const command = a->command->name;
    const char *const answer = ox_foreign_answer(name, NULL);
    if (answer != NULL) {
        return ox_fail(OX_E_CONFIG, "'%s': %s", argument, answer);
    }
    const char *nearest = ox_option_suggest(name, a->command->mask);
    if (nearest == NULL && strncmp(name, "no-", 3) == 0) {
        nearest = ox_option_suggest(name + 3, a->command->mask);
    }
    if (nearest != NULL) {
        return ox_fail(OX_E_CONFIG, "'%s' is not a flag of `offload %s`; did you mean '--%s'?", argument,
                       command, nearest);
    }
    return ox_fail(OX_E_CONFIG, "'%s' is not a flag of `offload %s`; `offload help %s` lists them", argument,
                   command, command);
}

/* Finds the option of a flag; *negated is true for --no-<switch>. */
static enum ox_status find_option(const struct arguments *a, const char *argument, const struct flag *flag,
                                  const struct ox_option **out, bool *negated) {
    const struct ox_option *option = strncmp(argument, "--", 2) == 0 ? ox_option_find(flag->name) : NULL;
    *negated = false;
    if (option == NULL && strncmp(argument, "--no", 4) == 0 && (argument[4] == '-' || argument[4] == '_')) {
        option = ox_option_find(flag->name + 3);
        *negated = option != NULL && option->type == OX_OPT_BOOL;
        option = *negated ? option : NULL;
    }
    if (option == NULL) {
        return fail_unknown(a, argument, flag->name);
    }
    if (option->in_eval != NULL && a->command->mask == OX_CMD_EVAL) {
        option = ox_option_find(option->in_eval);
    }
    if ((option->commands & a->command->mask) == 0) {
        return ox_fail(OX_E_CONFIG, "`offload %s` does not take --%s; remove it", a->command->name,
                       option->name);
    }
    *out = option;
    return OX_OK;
}

static enum ox_status mark_seen(struct arguments *a, const struct ox_option *option) {
    uint32_t count = 0;
    const ptrdiff_t at = option - ox_options(&count);
    OX_ASSERT(at >= 0 && at < OPTIONS_MAX);
    bool *const seen = &a->seen[at];
    if (ox_option_is_list(option)) {
        if (!*seen) { /* flags replace the file's list */
            *(option->type == OX_OPT_NVME ? &a->config->nvme_count : &a->config->data_count) = 0;
        }
    } else if (*seen) {
        return ox_fail(OX_E_CONFIG, "--%s is given twice; give it once", option->name);
    }
    *seen = true;
    return OX_OK;
}

/* Returns the value after '=', else the next argument unless it is a flag ("-1" is a value), else NULL. */
static const char *take_value(struct arguments *a, const struct flag *flag) {
    if (flag->value != NULL) {
        return flag->value;
    }
    if (a->idx + 1 < a->argc && strncmp(a->argv[a->idx + 1], "--", 2) != 0) {
        a->idx++;
        return a->argv[a->idx];
    }
    return NULL;
}

/* Returns the argument after a switch if it reads as the switch's value, which must follow '=' here; else NULL. */
static const char *stray_value(const struct arguments *a) {
    const char *const next = a->idx + 1 < a->argc ? a->argv[a->idx + 1] : "";
    return strcasecmp(next, "true") == 0 || strcasecmp(next, "false") == 0 ? next : NULL;
}

static enum ox_status take_flag(struct arguments *a, const struct flag *flag) {
    const char *const argument = a->argv[a->idx];
    const struct ox_option *option = NULL;
    bool negated = false;
    enum ox_status status = find_option(a, argument, flag, &option, &negated);
    OX_TRY(status, mark_seen(a, option));
    if (status != OX_OK) {
        return status;
    }
    const char *value = flag->value;
    if (option->type == OX_OPT_BOOL) {
        if (negated && value != NULL) {
            return ox_fail(OX_E_CONFIG, "'%s': --no-%s takes no value; remove it", argument, option->name);
        }
        const char *const stray = value == NULL ? stray_value(a) : NULL;
        if (stray != NULL) {
            const bool on = (strcasecmp(stray, "true") == 0) != negated;
            return ox_fail(OX_E_CONFIG, "'%s %s': a switch has no value after it; write --%s%s", argument, stray,
                           on ? "" : "no-", option->name);
        }
        value = negated ? "false" : value == NULL ? "true" : value;
    } else {
        value = take_value(a, flag);
    }
    char where[FLAG_BYTES];
    snprintf(where, sizeof where, "--%s", option->name);
    if (value == NULL) {
        return ox_fail(OX_E_CONFIG, "%s has no value; give one after it", where);
    }
    return ox_config_set(a->config, option, value, where);
}

static enum ox_status take_positional(struct arguments *a) {
    const char *const argument = a->argv[a->idx];
    const char *const name =
        a->positional_count < OX_POSITIONALS_MAX ? a->command->positional[a->positional_count] : NULL;
    if (name == NULL) {
        return ox_fail(OX_E_CONFIG, "'%s' is unexpected; `offload help %s` shows what it takes", argument,
                       a->command->name);
    }
    a->positional_count++;
    const struct ox_option *const option = ox_option_find(name);
    OX_ASSERT(option != NULL);
    const enum ox_status status = mark_seen(a, option);
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
            path = take_value(a, &flag);
            if (path == NULL || path[0] == '\0') {
                return ox_fail(OX_E_CONFIG, "--config has no value; give a YAML file after it");
            }
        }
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
    return a->seen[ox_option_find(name) - ox_options(&count)];
}

/* A flag replaces what the file says, also where the file says it by the other of two names for one thing. */
static void drop_replaced(const struct arguments *a) {
    const bool global = is_seen(a, "global-batch-size"), micro = is_seen(a, "gradient-accumulation-steps");
    if (global && !micro) {
        a->config->gradient_accumulation_steps = 0;
    } else if (micro && !global) {
        a->config->global_batch_size = 0;
    }
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
            (void)take_value(&a, &flag); /* loaded by the first pass */
        } else {
            status = take_flag(&a, &flag);
        }
    }
    drop_replaced(&a);
    return status;
}
