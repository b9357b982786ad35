/* What an unknown name may mean. Names are compared word by word: letters may be wrong, words may be left out, but no
 * word may stand for another one, so that --freeze-embeddings never becomes --decay-embeddings. */
#include "engine/config/config.h"

#include "base/bytes.h"
#include "base/name/name.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { NAME_BYTES_MAX = 64, WORDS_MAX = 12, SUGGESTIONS_MAX = 4, LETTERS_MIN = 4 };

struct name {
    char letters[NAME_BYTES_MAX]; /* in small letters, each word ended by '\0' */
    const char *words[WORDS_MAX];
    unsigned count;
    char squeezed[NAME_BYTES_MAX]; /* all words as one */
};

/* Splits a name at its dashes; false if it is too long. */
static bool split(const char *text, struct name *out) {
    size_t used = 0, squeezed = 0;
    out->count = 0;
    if (strlen(text) >= NAME_BYTES_MAX) {
        return false;
    }
    for (; *text != '\0'; text++) {
        const bool begins = used == 0 || out->letters[used - 1] == '\0';
        if (ox_name_folded(*text) == '-') {
            out->letters[used] = '\0';
            used += !begins;
            continue;
        }
        if (begins && out->count == WORDS_MAX) {
            return false;
        }
        if (begins) {
            out->words[out->count++] = &out->letters[used];
        }
        out->letters[used++] = ox_name_folded(*text);
        out->squeezed[squeezed++] = ox_name_folded(*text);
    }
    out->letters[used] = '\0';
    out->squeezed[squeezed] = '\0';
    return out->count > 0;
}

/* Whether two words are one with wrong letters, or one cut short; *distance counts them. */
static bool similar(const char *a, const char *b, unsigned *distance) {
    const size_t a_len = strlen(a), b_len = strlen(b), longer = a_len > b_len ? a_len : b_len;
    const size_t shorter = a_len + b_len - longer;
    const unsigned most = longer < 3 ? 0 : longer < 6 ? 1 : 2;
    *distance = ox_name_distance(a, b);
    const bool is_cut = a_len <= b_len || longer <= 2 * shorter; /* "per" is not "perplexity" */
    if (*distance > most && shorter >= 3 && is_cut && strncmp(a, b, shorter) == 0) {
        *distance = 1;
    }
    return *distance <= most || *distance == 1;
}

/* Whether each word of `typed` is one of `own`, in any order; *distance counts wrong letters, and one for a word in
 * another place. */
static bool found_in(const struct name *typed, const struct name *own, unsigned *distance) {
    bool taken[WORDS_MAX] = {false};
    *distance = 0;
    for (unsigned i = 0; i < typed->count; i++) {
        unsigned best = NAME_BYTES_MAX, at = WORDS_MAX;
        for (unsigned k = 0; k < own->count; k++) {
            unsigned letters = 0;
            if (!taken[k] && similar(typed->words[i], own->words[k], &letters) && letters + (k != i) < best) {
                best = letters + (k != i);
                at = k;
            }
        }
        if (at == WORDS_MAX) {
            return false;
        }
        taken[at] = true;
        *distance += best;
    }
    return true;
}

/* How far an option's name is from the one that was typed: wrong letters, and WHOLE for words that were left out; FAR
 * if it is another name. */
enum { WHOLE = 1000, FAR = 1000000 };
static unsigned far_from(const struct name *typed, const char *text) {
    struct name own;
    unsigned distance = 0;
    if (!split(text, &own)) {
        return FAR;
    }
    const unsigned squeezed = ox_name_distance(typed->squeezed, own.squeezed);
    if (squeezed == 0 || (squeezed == 1 && strlen(own.squeezed) >= 8)) {
        return squeezed;
    }
    if (!found_in(typed, &own, &distance)) {
        return FAR;
    }
    return own.count == typed->count ? distance : strlen(typed->squeezed) < LETTERS_MIN ? FAR : WHOLE + distance;
}

/* The option of `commands` that is nearest; without one, those whose names have all words that were typed, unless they
 * are too many. */
static unsigned nearest(const char *text, unsigned commands, const char *out[SUGGESTIONS_MAX]) {
    struct name typed;
    const char *best = NULL;
    uint32_t option_count = 0;
    unsigned count = 0, best_distance = WHOLE;
    const struct ox_option *const options = ox_options(&option_count);
    for (uint32_t i = 0; split(text, &typed) && i < option_count; i++) {
        const unsigned alias = options[i].alias != NULL ? far_from(&typed, options[i].alias) : FAR;
        const unsigned name = far_from(&typed, options[i].name), distance = name <= alias ? name : alias;
        const char *const called = name <= alias ? options[i].name : options[i].alias;
        if ((options[i].commands & commands) == 0 || distance >= FAR) {
            continue;
        }
        if (distance < best_distance) {
            best_distance = distance;
            best = called;
        } else if (distance >= WHOLE && count <= SUGGESTIONS_MAX &&
                   (count == 0 || count > SUGGESTIONS_MAX || strcmp(out[count - 1], called) != 0)) {
            if (count < SUGGESTIONS_MAX) {
                out[count] = called;
            }
            count++;
        }
    }
    if (best != NULL) {
        out[0] = best;
        return 1;
    }
    return count <= SUGGESTIONS_MAX ? count : 0;
}

bool ox_option_suggest(const char *name, unsigned commands, bool flag, char text[OX_SUGGEST_BYTES]) {
    const char *names[SUGGESTIONS_MAX];
    const bool negated = flag && strncmp(name, "no", 2) == 0 && ox_name_folded(name[2]) == '-';
    unsigned count = nearest(name, commands, names);
    const char *prefix = flag ? "--" : "";
    if (count == 0 && negated && (count = nearest(name + 3, commands, names)) == 1) {
        prefix = ox_option_find_in(names[0], commands)->type == OX_OPT_BOOL ? "--no-" : "--";
    }
    int used = snprintf(text, OX_SUGGEST_BYTES, "did you mean ");
    for (unsigned i = 0; i < count; i++) {
        char own[NAME_BYTES_MAX];
        snprintf(own, sizeof own, "%s", names[i]);
        for (char *at = own; !flag && *at != '\0'; at++) {
            *at = *at == '-' ? '_' : *at; /* as YAML has it */
        }
        used += snprintf(text + used, OX_SUGGEST_BYTES - (size_t)used, "%s'%s%s'",
                         i == 0 ? "" : i + 1 < count ? ", " : " or ", prefix, own);
    }
    snprintf(text + used, OX_SUGGEST_BYTES - (size_t)used, "?");
    return count > 0;
}

/* ---- values ----------------------------------------------------------------------------------------- */

/* Reads a number as people write it: 1_000, 1,000, 0,5, 10 %, 2k, 1e-5 with a dash of a word processor, with a comma
 * behind. False for another text. */
static bool read_loosely(const char *text, double *value) {
    static const char *const dashes[] = {"\u2212", "\u2013", "\u2010", "\u2011"};
    char plain[NAME_BYTES_MAX];
    size_t used = 0;
    for (const char *at = text; *at != '\0'; at++) {
        const char *const rest = at + 1;
        const bool group = text[0] != '0' && strspn(rest, "0123456789") == 3 && strchr("_,.", rest[3]) != NULL;
        char letter = *at;
        for (unsigned i = 0; i < sizeof dashes / sizeof *dashes; i++) {
            if (strncmp(at, dashes[i], strlen(dashes[i])) == 0) {
                letter = '-';
                at += strlen(dashes[i]) - 1;
            }
        }
        if (used + 1 == sizeof plain) {
            return false;
        }
        if (letter == '_' || letter == ' ' || (letter == ',' && (*rest == '\0' || group))) {
            continue;
        }
        plain[used++] = letter == ',' ? '.' : letter;
    }
    plain[used] = '\0';
    char *end = NULL;
    *value = strtod(plain, &end);
    const double scale = strcmp(end, "%") == 0                            ? 0.01
                         : strcmp(end, "k") == 0 || strcmp(end, "K") == 0 ? 1e3
                         : strcmp(end, "m") == 0 || strcmp(end, "M") == 0 ? 1e6
                         : *end == '\0'                                   ? 1
                                                                          : 0;
    *value *= scale;
    return end != plain && scale != 0 && plain[strspn(plain, "+-.0123456789eE%kKmM")] == '\0';
}

const char *ox_value_hint(const struct ox_option *option, const char *text, char hint[OX_SUGGEST_BYTES]) {
    char choice[NAME_BYTES_MAX];
    double value = 0;
    uint64_t bytes = 0;
    const bool whole = option->type == OX_OPT_U64 || option->type == OX_OPT_I64;
    const bool numeric = whole || option->type == OX_OPT_DOUBLE || option->type == OX_OPT_STEPS;
    const char *const answer = ox_foreign_answer(option->name, text, option->commands);
    hint[0] = '\0';
    if (answer != NULL) {
        snprintf(hint, OX_SUGGEST_BYTES, "; %s", answer);
    } else if (numeric && strcasecmp(text, "auto") == 0) {
        return "; give one, or leave it out";
    } else if (numeric && read_loosely(text, &value) && value >= option->min && value <= option->max &&
        (!whole || (value == (double)(int64_t)value && value < 1e15))) {
        snprintf(hint, OX_SUGGEST_BYTES, "; write %.15g", value);
    } else if (option->type == OX_OPT_DOUBLE && strstr(option->name, "seconds") != NULL &&
               ox_duration_parse(text, &bytes)) {
        snprintf(hint, OX_SUGGEST_BYTES, "; write %.15g", (double)bytes / 1e9);
    } else if (option->type == OX_OPT_SIZE) {
        snprintf(choice, sizeof choice, "%sB", text);
        if (ox_size_parse(choice, &bytes)) {
            snprintf(hint, OX_SUGGEST_BYTES, "; write %s", choice);
        } else {
            snprintf(hint, OX_SUGGEST_BYTES, "; write it as 20GiB or 1.5TB%s",
                     strstr(option->help, "0: what is free") != NULL ? ", or 0 for what is free" : "");
        }
    } else if (option->choices != NULL && ox_name_nearest(option->choices, "|", text, choice)) {
        snprintf(hint, OX_SUGGEST_BYTES, "; did you mean %s?", choice);
    }
    return hint;
}
