/* Prints manual pages in the man macros of roff, from the option table and the prose of tools/help/man_text.c. */
#include "tools/help/help.h"

#include "base/assert.h"

#include <string.h>

/* Bounds from 1e9 on only catch typing errors, so they are not shown. */
static const double bound_max = 1e9;

/* ---- text ------------------------------------------------------------------------------------------- */

static void put_char(FILE *file, char letter) {
    static const struct {
        char letter;
        const char *roff;
    } escapes[] = {{'\\', "\\e"},   {'-', "\\-"},   {'\'', "\\(aq"}, {'`', "\\(ga"},
                   {'~', "\\(ti"}, {'^', "\\(ha"}, {'"', "\\(dq"}};
    for (unsigned i = 0; i < sizeof escapes / sizeof *escapes; i++) {
        if (escapes[i].letter == letter) {
            fputs(escapes[i].roff, file);
            return;
        }
    }
    fputc(letter, file);
}

static void put_span(FILE *file, const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        put_char(file, text[i]);
    }
}

static void put_literal(FILE *file, const char *text) {
    put_span(file, text, strlen(text));
}

static void put_bold(FILE *file, const char *text, size_t bytes) {
    fputs("\\fB", file);
    put_span(file, text, bytes);
    fputs("\\fR", file);
}

/* Prints prose with flags and back-quoted words in bold. "\&" keeps a line from being read as a roff request. */
static void put_prose(FILE *file, const char *text, size_t bytes) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    fputs("\\&", file);
    for (size_t i = 0; i < bytes;) {
        const char *const at = text + i;
        const char *const quote = *at == '`' ? memchr(at + 1, '`', bytes - i - 1) : NULL;
        const bool flag = bytes - i > 2 && strncmp(at, "--", 2) == 0 && at[2] >= 'a' && at[2] <= 'z' &&
                          (i == 0 || strchr(" (", at[-1]) != NULL);
        size_t taken = 1;
        if (quote != NULL) {
            taken = (size_t)(quote + 1 - at);
            put_bold(file, at + 1, taken - 2);
        } else if (flag) {
            taken = strspn(at, letters);
            taken = taken < bytes - i ? taken : bytes - i;
            put_bold(file, at, taken);
        } else {
            put_char(file, *at);
        }
        i += taken;
    }
    fputc('\n', file);
}

static void put_text(FILE *file, const char *text) {
    put_prose(file, text, strlen(text));
}

static void put_paragraphs(FILE *file, const char *text) {
    for (const char *at = text; *at != '\0';) {
        const size_t bytes = strcspn(at, "\n");
        fputs(at == text ? "" : ".PP\n", file);
        put_prose(file, at, bytes);
        at += bytes + (at[bytes] == '\n');
    }
}

static void put_item(FILE *file, const char *tag, size_t tag_bytes, const char *text, size_t bytes) {
    fputs(".TP\n", file);
    put_bold(file, tag, tag_bytes);
    fputc('\n', file);
    put_prose(file, text, bytes);
}

/* Prints a list of struct ox_help_page under its heading. */
static void put_list(FILE *file, const char *heading, const char *list) {
    if (list == NULL) {
        return;
    }
    fprintf(file, ".SH %s\n", heading);
    for (const char *at = list; *at != '\0';) {
        const size_t tag = strcspn(at, "\t"), line = strcspn(at, "\n");
        put_item(file, at, tag, at + tag + 1, line - tag - 1);
        at += line + (at[line] == '\n');
    }
}

/* ---- options ---------------------------------------------------------------------------------------- */

/* Writes default, bounds and alias as sentences. */
static void write_notes(const struct ox_option *option, char *text, size_t bytes) {
    const bool ranged = option->type == OX_OPT_U64 || option->type == OX_OPT_I64 || option->type == OX_OPT_DOUBLE ||
                        option->type == OX_OPT_STEPS;
    size_t used = 0;
    text[0] = '\0';
    if (ox_help_negatable(option)) {
        const bool on = strcmp(option->default_text, "true") == 0;
        used = (size_t)snprintf(text, bytes, "%s by default. ", on ? "On" : "Off");
    } else if (option->default_text[0] != '\0') {
        used = (size_t)snprintf(text, bytes, "Default: %s. ", option->default_text);
    }
    if (ranged && option->max < bound_max) {
        used += (size_t)snprintf(text + used, bytes - used, "From %.15g to %.15g. ", option->min, option->max);
    } else if (ranged && option->min > 0) {
        used += (size_t)snprintf(text + used, bytes - used, "At least %.15g. ", option->min);
    }
    if (option->alias != NULL) {
        used += (size_t)snprintf(text + used, bytes - used, "Also --%s. ", option->alias);
    }
    OX_ASSERT(used < bytes);
    text[used > 0 ? used - 1 : 0] = '\0';
}

static void put_flag(FILE *file, const char *prefix, const struct ox_option *option) {
    fputs("\\fB", file);
    put_literal(file, prefix);
    put_literal(file, option->name);
    fputs("\\fR", file);
}

static void put_value(FILE *file, const struct ox_option *option) {
    fputs("\\fI", file);
    put_literal(file, ox_help_placeholder(option));
    fputs("\\fR", file);
}

static void put_option(FILE *file, const struct ox_option *option) {
    char notes[256];
    fputs(".TP\n", file);
    put_flag(file, "--", option);
    if (ox_help_negatable(option)) {
        fputs(", ", file);
        put_flag(file, "--no-", option);
    } else if (option->type != OX_OPT_BOOL) {
        fputc(' ', file);
        put_value(file, option);
    }
    fputc('\n', file);
    put_text(file, option->help);
    write_notes(option, notes, sizeof notes);
    if (notes[0] != '\0') {
        fputs(".br\n", file);
        put_text(file, notes);
    }
}

static void put_options(FILE *file, const struct ox_command *command) {
    fputs(".SH OPTIONS\n", file);
    const char *group = "";
    uint32_t idx = 0;
    for (const struct ox_option *option; (option = ox_help_option(command, &idx)) != NULL;) {
        if (strcmp(group, ox_help_group(command, option)) != 0) {
            group = ox_help_group(command, option);
            fputs(".SS ", file);
            put_literal(file, group);
            fputc('\n', file);
        }
        put_option(file, option);
    }
}

/* ---- the other sections ----------------------------------------------------------------------------- */

/* Prints "offload" or "offload-train", in capitals for the title. */
static void put_name(FILE *file, const char *command, bool capitals) {
    const char *const parts[2] = {command[0] != '\0' ? "offload-" : "offload", command};
    for (unsigned k = 0; k < 2; k++) {
        for (const char *at = parts[k]; *at != '\0'; at++) {
            put_char(file, capitals && *at >= 'a' && *at <= 'z' ? (char)(*at - 'a' + 'A') : *at);
        }
    }
}

static void put_head(FILE *file, const char *command, const char *summary) {
    fputs(".TH ", file);
    put_name(file, command, true);
    fputs(" 1 \"\" \"offload " OX_VERSION "\" \"offload\"\n.nh\n.ad l\n.SH NAME\n", file);
    put_name(file, command, false);
    fputs(" \\- ", file);
    for (const char *at = summary; *at != '\0'; at++) {
        if (*at != '`') {
            put_char(file, *at);
        }
    }
    fputc('\n', file);
}

static void put_synopsis(FILE *file, const struct ox_command *command) {
    static const char rest[] = "[\\fB\\-\\-\\fIflag value\\fR ...]\n";
    if (command == NULL) {
        fprintf(file, ".SH SYNOPSIS\n\\fBoffload\\fR \\fICOMMAND\\fR\n%s", rest);
        return;
    }
    fprintf(file, ".SH SYNOPSIS\n\\fBoffload %s\\fR\n", command->name);
    const struct ox_option *positional;
    for (int i = 0; (positional = ox_help_positional(command, i)) != NULL; i++) {
        const bool required = ox_help_listed(command->required, positional->name);
        fputs(required ? "" : "[", file);
        put_value(file, positional);
        fputs(required ? "\n" : "]\n", file);
    }
    uint32_t idx = 0;
    for (const struct ox_option *option; (option = ox_help_option(command, &idx)) != NULL;) {
        if (!ox_help_is_positional(command, option) && ox_help_listed(command->required, option->name)) {
            put_flag(file, "--", option);
            fputc(' ', file);
            put_value(file, option);
            fputc('\n', file);
        }
    }
    fputs(command->mask != 0 ? rest : "", file);
}

static void put_commands(FILE *file) {
    fputs(".SH COMMANDS\n", file);
    for (const struct ox_command *command = ox_commands(); command->name != NULL; command++) {
        put_item(file, command->name, strlen(command->name), command->summary, strlen(command->summary));
    }
}

static void put_exits(FILE *file, const struct ox_help_page *page) {
    static const char usage[] = "wrong usage or configuration: the error names what is wrong, where, and the remedy";
    const struct {
        const char *tag, *text;
    } exits[] = {{"0", page != NULL && page->done != NULL ? page->done : "done"},
                 {"1", page != NULL && page->failed != NULL ? page->failed : "failure: I/O, damaged data, memory"},
                 {"2", page != NULL && page->usage != NULL ? page->usage : usage},
                 {"128+n", page != NULL ? page->ended : NULL}};
    fputs(".SH EXIT STATUS\n", file);
    for (unsigned i = 0; i < sizeof exits / sizeof *exits; i++) {
        if (exits[i].text != NULL) {
            put_item(file, exits[i].tag, strlen(exits[i].tag), exits[i].text, strlen(exits[i].text));
        }
    }
}

static void put_examples(FILE *file, const char *list) {
    if (list == NULL) {
        return;
    }
    fputs(".SH EXAMPLES\n", file);
    for (const char *at = list; *at != '\0';) {
        const size_t line = strcspn(at, "\n"), command = strcspn(at, "\t");
        fputs(at == list ? "" : ".PP\n", file);
        put_prose(file, at + command + 1, line - command - 1);
        fputs(".PP\n.RS 4\n.nf\n", file);
        put_span(file, at, command);
        fputs("\n.fi\n.RE\n", file);
        at += line + (at[line] == '\n');
    }
}

/* A command's page refers to offload(1) and to the pages it names; offload(1) refers to all. */
static void put_see_also(FILE *file, const struct ox_command *command, const struct ox_help_page *page) {
    fputs(command != NULL ? ".SH SEE ALSO\n\\fBoffload\\fR(1)" : ".SH SEE ALSO\n", file);
    for (const struct ox_command *other = ox_commands(); other->name != NULL; other++) {
        if (command == NULL || (page != NULL && ox_help_listed(page->see_also, other->name))) {
            fputs(command != NULL || other != ox_commands() ? ",\n\\fB" : "\\fB", file);
            put_name(file, other->name, false);
            fputs("\\fR(1)", file);
        }
    }
    fputc('\n', file);
}

void ox_man_print(FILE *file, const struct ox_command *command) {
    const char *const name = command != NULL ? command->name : "";
    const char *const summary =
        command != NULL ? command->summary : "train transformers whose state does not fit in device memory";
    const struct ox_help_page *const page = ox_page_find(name);
    put_head(file, name, summary);
    put_synopsis(file, command);
    fputs(".SH DESCRIPTION\n", file);
    put_paragraphs(file, page != NULL ? page->description : summary);
    if (command != NULL) {
        put_options(file, command);
    } else {
        put_commands(file);
    }
    put_exits(file, page);
    put_list(file, "FILES", page != NULL ? page->files : NULL);
    put_list(file, "SIGNALS", page != NULL ? page->signals : NULL);
    put_examples(file, page != NULL ? page->examples : NULL);
    put_see_also(file, command, page);
}
