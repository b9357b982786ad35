/* Prints completion scripts for bash, zsh and fish, from the tables of commands and options. An option's choices or its
 * placeholder decide what completes its value: words in small letters are offered as they are, names in capitals such
 * as PATH mean a kind of thing. */
#include "tools/help/help.h"

#include "base/assert.h"

#include <string.h>

enum kind { KIND_NONE, KIND_PATH, KIND_FOLDER, KIND_COMMAND };

enum { WORDS_BYTES = 256 };

struct value {
    enum kind kind;
    char words[WORDS_BYTES]; /* separated by spaces */
};

static struct value value_of(const struct ox_option *option) {
    static const struct {
        const char *name;
        enum kind kind;
    } kinds[] = {{"PATH", KIND_PATH},     {"FILE", KIND_PATH},       {"PATH[:WEIGHT]", KIND_PATH},
                 {"FOLDER", KIND_FOLDER}, {"PATH:SIZE", KIND_FOLDER},
                 {"PATH[:SIZE]", KIND_FOLDER}, {"COMMAND", KIND_COMMAND}};
    struct value value = {0};
    const char *at = option->type == OX_OPT_CHOICE ? option->choices : ox_help_placeholder(option);
    for (size_t used = 0, bytes; *at != '\0'; at += bytes + (at[bytes] == '|')) {
        bytes = strcspn(at, "|");
        if (*at < 'A' || *at > 'Z') {
            used += (size_t)snprintf(value.words + used, sizeof value.words - used, "%s%.*s", used > 0 ? " " : "",
                                     (int)bytes, at);
            OX_ASSERT(used < sizeof value.words);
        }
        for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            if (strlen(kinds[i].name) == bytes && strncmp(kinds[i].name, at, bytes) == 0) {
                value.kind = kinds[i].kind;
            }
        }
    }
    return value;
}

static void put_commands(FILE *file) {
    for (const struct ox_command *command = ox_commands(); command->name != NULL; command++) {
        fprintf(file, "%s%s", command != ox_commands() ? " " : "", command->name);
    }
}

/* Prints text inside single quotes: replaces each quote by `quote` and puts a backslash before each letter of
 * `marked`. */
static void put_quoted(FILE *file, const char *text, const char *quote, const char *marked) {
    for (; *text != '\0'; text++) {
        if (*text == '\'') {
            fputs(quote, file);
        } else {
            fprintf(file, "%s%c", strchr(marked, *text) != NULL ? "\\" : "", *text);
        }
    }
}

/* ---- bash ------------------------------------------------------------------------------------------- */

/* Prints a command's case: its flags, their aliases, and how its switches are turned off. */
static void put_bash_command(FILE *file, const struct ox_command *command) {
    static const char *const variables[3] = {"flags", "others", "negated"};
    fprintf(file, "    %s)\n", command->name);
    for (unsigned k = 0; k < 3; k++) {
        fprintf(file, "        %s='", variables[k]);
        uint32_t idx = 0;
        for (const struct ox_option *option; (option = ox_help_option(command, &idx)) != NULL;) {
            if (k == 0) {
                fprintf(file, " --%s", option->name);
            } else if (k == 1 && option->alias != NULL) {
                fprintf(file, " --%s", option->alias);
            } else if (k == 2 && ox_help_negatable(option)) {
                fprintf(file, " --no-%s", option->name);
            }
        }
        fputs(" '\n", file);
    }
    const struct ox_option *const positional = ox_help_positional(command, 0);
    fprintf(file, "        first=%s%s\n        ;;\n", positional != NULL ? "--" : "''",
            positional != NULL ? positional->name : "");
}

/* Prints what a command and its flag are compared with: the command matters where the flag has several entries. */
static void put_bash_pattern(FILE *file, const struct ox_option *option, const char *name) {
    uint32_t count = 0;
    const struct ox_option *const options = ox_options(&count);
    bool alone = true;
    for (uint32_t i = 0; i < count; i++) {
        alone = alone && (&options[i] == option || strcmp(options[i].name, option->name) != 0);
    }
    const char *between = "";
    for (const struct ox_command *command = ox_commands(); !alone && command->name != NULL; command++) {
        if ((option->commands & command->mask) != 0) {
            fprintf(file, "%s'%s --%s'", between, command->name, name);
            between = " | ";
        }
    }
    if (alone) {
        fprintf(file, "*' --%s'", name);
    }
}

static void put_bash_value(FILE *file, const struct ox_option *option) {
    static const char *const kinds[] = {"none", "path", "folder", "none"};
    if (option->type == OX_OPT_BOOL) {
        return;
    }
    const struct value value = value_of(option);
    fputs("    ", file);
    put_bash_pattern(file, option, option->name);
    if (option->alias != NULL) {
        fputs(" | ", file);
        put_bash_pattern(file, option, option->alias);
    }
    fprintf(file, ") kind=%s words='%s", kinds[value.kind], value.words);
    if (value.kind == KIND_COMMAND) {
        put_commands(file);
    }
    fputs("' ;;\n", file);
}

static void put_bash_values(FILE *file) {
    uint32_t idx = 0;
    fputs("# What completes the value of a command's flag: sets kind and words; kind stays empty for a flag without "
          "one.\n"
          "_offload_value() {\n    kind='' words=''\n    case \"$1 $2\" in\n", file);
    for (const struct ox_option *option; (option = ox_help_option(NULL, &idx)) != NULL;) {
        put_bash_value(file, option);
    }
    fputs("    esac\n}\n\n", file);
}

static void put_bash_flags(FILE *file) {
    fputs("# The flags of a command; first is the flag that an argument without one sets.\n"
          "_offload_flags() {\n    flags='' others='' negated='' first=''\n    case $1 in\n", file);
    for (const struct ox_command *command = ox_commands(); command->name != NULL; command++) {
        put_bash_command(file, command);
    }
    fputs("    esac\n}\n\n", file);
}

static void put_bash_lists(FILE *file) {
    uint32_t idx = 0;
    fputs("            case ${COMP_WORDS[i]} in\n", file);
    for (const struct ox_option *option; (option = ox_help_option(NULL, &idx)) != NULL;) {
        if (ox_option_is_list(option) && option == ox_option_find(option->name)) {
            fprintf(file, "            --%s) ;; # may be repeated\n", option->name);
        }
    }
    fputs("            *) flags=${flags/\" ${COMP_WORDS[i]} \"/ } ;;\n            esac\n", file);
}

void ox_complete_bash(FILE *file) {
    fputs("# bash completion of offload " OX_VERSION ", written by `offload help --as bash`.\n\n", file);
    put_bash_values(file);
    put_bash_flags(file);
    fputs("_offload() {\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
          "    local kind words flags others negated first i\n"
          "    COMPREPLY=()\n"
          "    if ((COMP_CWORD == 1)); then\n"
          "        mapfile -t COMPREPLY < <(compgen -W '", file);
    put_commands(file);
    fputs(" --help --version' -- \"$cur\")\n"
          "        return\n"
          "    fi\n"
          "    # COMP_WORDS has \"=\" and \":\" as words of their own.\n"
          "    if [[ $cur == : || $prev == : ]]; then\n"
          "        return\n"
          "    elif [[ $cur == = ]]; then\n"
          "        cur=''\n"
          "    elif [[ $prev == = ]]; then\n"
          "        prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
          "    fi\n"
          "    _offload_flags \"${COMP_WORDS[1]}\"\n"
          "    _offload_value \"${COMP_WORDS[1]}\" \"$prev\"\n"
          "    if [[ -z $kind && -n $first && $cur != -* ]]; then\n"
          "        _offload_value \"${COMP_WORDS[1]}\" \"$first\"\n"
          "    fi\n"
          "    if [[ -z $kind ]]; then\n"
          "        for ((i = 2; i < COMP_CWORD; i++)); do\n", file);
    put_bash_lists(file);
    fputs("        done\n"
          "        if [[ $cur == --no* ]]; then\n"
          "            flags+=$negated\n"
          "        fi\n"
          "        words=$flags\n"
          "        if [[ -z $(compgen -W \"$flags\" -- \"$cur\") ]]; then\n"
          "            words=$others\n"
          "        fi\n"
          "    fi\n"
          "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
          "    # compopt fails outside of a completion, which is how tests call this.\n"
          "    if [[ $kind == path ]]; then\n"
          "        mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- \"$cur\")\n"
          "        compopt -o filenames 2>/dev/null\n"
          "    elif [[ $kind == folder ]]; then\n"
          "        mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -d -- \"$cur\")\n"
          "        compopt -o filenames -o nospace 2>/dev/null\n"
          "    fi\n"
          "} &&\n"
          "    complete -F _offload offload\n", file);
}

/* ---- zsh -------------------------------------------------------------------------------------------- */

static void put_zsh_help(FILE *file, const struct ox_option *option) {
    fputc('[', file);
    put_quoted(file, option->help, "'\\''", "[]:\\");
    fputc(']', file);
}

/* Prints ":name:action", zsh's description of a value. */
static void put_zsh_value(FILE *file, const struct ox_option *option) {
    static const char *const actions[] = {" ", "_files", "_files -/", "_offload_commands"};
    const struct value value = value_of(option);
    fputc(':', file);
    put_quoted(file, option->name, "", ":\\");
    if (value.words[0] == '\0') {
        fprintf(file, ":%s", actions[value.kind]);
    } else if (value.kind == KIND_NONE) {
        fprintf(file, ":(%s)", value.words);
    } else {
        fprintf(file, ":{compadd -- %s; %s}", value.words, actions[value.kind]);
    }
}

static void put_zsh_option(FILE *file, const struct ox_option *option) {
    const char *const names[2] = {option->name, option->alias};
    if (ox_help_negatable(option)) {
        fprintf(file, " \\\n            '(--no-%s)--%s", option->name, option->name);
        put_zsh_help(file, option);
        fprintf(file, "' \\\n            '(--%s)--no-%s'", option->name, option->name);
        return;
    }
    for (unsigned k = 0; k < 2 && names[k] != NULL; k++) {
        fputs(" \\\n            '", file);
        if (ox_option_is_list(option)) {
            fputc('*', file);
        } else if (option->alias != NULL) {
            fprintf(file, "(--%s)", names[1 - k]);
        }
        fprintf(file, "--%s%s", names[k], option->type != OX_OPT_BOOL ? "=" : "");
        put_zsh_help(file, option);
        if (option->type != OX_OPT_BOOL) {
            put_zsh_value(file, option);
        }
        fputc('\'', file);
    }
}

static void put_zsh_command(FILE *file, const struct ox_command *command) {
    fprintf(file, "    %s)\n        _arguments", command->name);
    uint32_t idx = 0;
    for (const struct ox_option *option; (option = ox_help_option(command, &idx)) != NULL;) {
        put_zsh_option(file, option);
    }
    const struct ox_option *positional;
    for (int i = 0; (positional = ox_help_positional(command, i)) != NULL; i++) {
        fprintf(file, " \\\n            '%d", i + 1);
        put_zsh_value(file, positional);
        fputc('\'', file);
    }
    fputs("\n        ;;\n", file);
}

void ox_complete_zsh(FILE *file) {
    fputs("#compdef offload\n"
          "# zsh completion of offload " OX_VERSION ", written by `offload help --as zsh`.\n\n"
          "_offload_commands() {\n"
          "    local -a commands\n"
          "    commands=(\n", file);
    for (const struct ox_command *command = ox_commands(); command->name != NULL; command++) {
        fprintf(file, "        '%s:", command->name);
        put_quoted(file, command->summary, "'\\''", ":\\");
        fputs("'\n", file);
    }
    fputs("    )\n"
          "    _describe -t commands command commands\n"
          "}\n\n"
          "_offload() {\n"
          "    if ((CURRENT == 2)); then\n"
          "        _offload_commands\n"
          "        return\n"
          "    fi\n"
          "    shift words\n"
          "    ((CURRENT--))\n"
          "    case $words[1] in\n", file);
    for (const struct ox_command *command = ox_commands(); command->name != NULL; command++) {
        put_zsh_command(file, command);
    }
    fputs("    esac\n"
          "}\n\n"
          "_offload \"$@\"\n", file);
}

/* ---- fish ------------------------------------------------------------------------------------------- */

static void put_fish_value(FILE *file, const struct ox_option *option) {
    const struct value value = value_of(option);
    if (value.kind == KIND_PATH) {
        fputs(" -r -F", file);
    } else {
        fputs(" -x", file);
    }
    if (value.words[0] != '\0' || value.kind == KIND_FOLDER || value.kind == KIND_COMMAND) {
        fprintf(file, " -a '%s%s", value.words, value.kind == KIND_FOLDER ? "(__fish_complete_directories)" : "");
        if (value.kind == KIND_COMMAND) {
            put_commands(file);
        }
        fputc('\'', file);
    }
}

static void put_fish_condition(FILE *file, const struct ox_option *option) {
    fputs("complete -c offload -n '__offload_is", file);
    for (const struct ox_command *command = ox_commands(); command->name != NULL; command++) {
        if ((option->commands & command->mask) != 0 || option->commands == 0) {
            fprintf(file, " %s", command->name);
        }
    }
    fputc('\'', file);
}

static void put_fish_option(FILE *file, const struct ox_option *option) {
    put_fish_condition(file, option);
    fprintf(file, " -l %s", option->name);
    if (option->alias != NULL) {
        fprintf(file, " -l %s", option->alias);
    }
    if (option->type != OX_OPT_BOOL) {
        put_fish_value(file, option);
    }
    fputs(" -d '", file);
    put_quoted(file, option->help, "\\'", "\\");
    fputs("'\n", file);
    if (ox_help_negatable(option)) {
        put_fish_condition(file, option);
        fprintf(file, " -l no-%s\n", option->name);
    }
}

static void put_fish_positional(FILE *file, const struct ox_command *command) {
    const struct ox_option *positional;
    for (int i = 0; (positional = ox_help_positional(command, i)) != NULL; i++) {
        const struct value value = value_of(positional);
        fprintf(file, "complete -c offload -n '__offload_is %s'", command->name);
        fputs(value.kind == KIND_PATH ? " -F" : " -f -a '", file);
        if (value.kind != KIND_PATH) {
            fputs(value.words, file);
            if (value.kind == KIND_COMMAND) {
                put_commands(file);
            }
            fputc('\'', file);
        }
        fputc('\n', file);
    }
}

void ox_complete_fish(FILE *file) {
    uint32_t idx = 0;
    fputs("# fish completion of offload " OX_VERSION ", written by `offload help --as fish`.\n\n"
          "function __offload_is\n"
          "    set -l words (commandline -opc)\n"
          "    set -q words[2]\n"
          "    and contains -- $words[2] $argv\n"
          "end\n\n"
          "function __offload_bare\n"
          "    set -l words (commandline -opc)\n"
          "    not set -q words[2]\n"
          "end\n\n"
          "complete -c offload -f\n"
          "complete -c offload -n __offload_bare -l version -d 'print the version of this program'\n", file);
    for (const struct ox_command *command = ox_commands(); command->name != NULL; command++) {
        fprintf(file, "complete -c offload -n __offload_bare -a %s -d '", command->name);
        put_quoted(file, command->summary, "\\'", "\\");
        fputs("'\n", file);
        put_fish_positional(file, command);
    }
    for (const struct ox_option *option; (option = ox_help_option(NULL, &idx)) != NULL;) {
        put_fish_option(file, option);
    }
}
