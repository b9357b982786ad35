#include "tests/kit/run/advice.h"

#include "engine/config/config.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
/* These options are of `hf download` and srun, or stand in no table. */
static const char *const others[] = {"--local-dir", "--mpi", "--config"};

static unsigned command_of(const char *word, size_t bytes) {
    for (unsigned bit = 1; bit != 0; bit <<= 1) {
        const char *const name = ox_command_name(bit);
        if (bytes > 0 && strlen(name) == bytes && strncmp(name, word, bytes) == 0) {
            return bit;
        }
    }
    return 0;
}

/* Copies a text with '-' for '_'. */
static void fold(const char *text, char *out, size_t bytes) {
    snprintf(out, bytes, "%s", text);
    for (; *out != '\0'; out++) {
        *out = *out == '_' ? '-' : *out;
    }
}

static bool in_words(const char *option, char *const *words) {
    char wanted[ADVICE_BYTES], word[256];
    bool found = false;
    fold(option, wanted, sizeof wanted);
    for (int i = 1; words[i] != NULL && !found; i++) {
        fold(words[i], word, sizeof word);
        found = strstr(word, wanted) != NULL;
    }
    return found;
}

static bool takes(unsigned command, const char *option) {
    bool known = ox_option_find_in(option + 2, command) != NULL ||
                 (strncmp(option, "--no-", 5) == 0 && ox_option_find_in(option + 5, command) != NULL);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        known = known || strcmp(option, others[i]) == 0;
    }
    return known;
}

/* Whether an option begins at `at`: "the run's --x" is another command's by what is said before it. */
static bool begins_option(const char *text, const char *at) {
    const bool inside = at > text && isgraph((unsigned char)at[-1]) && strchr("(`'\"", at[-1]) == NULL;
    const bool of_run = at - text >= 3 && strncmp(at - 3, "'s ", 3) == 0;
    return strncmp(at, "--", 2) == 0 && islower((unsigned char)at[2]) && !inside && !of_run;
}

bool advice_find_foreign(const char *text, char *const *words, char option[ADVICE_BYTES]) {
    static const char begin[] = "offload ";
    const unsigned own = words[1] != NULL ? command_of(words[1], strlen(words[1])) : 0;
    unsigned command = own;
    for (const char *at = text; own != 0 && *at != '\0'; at++) {
        const bool quotes = *at == '`' && strncmp(at + 1, begin, sizeof begin - 1) != 0;
        if (strncmp(at, begin, sizeof begin - 1) == 0) { /* what follows is a command's, to the end of its clause */
            const unsigned named = command_of(at + sizeof begin - 1, strspn(at + sizeof begin - 1, letters));
            command = named != 0 ? named : command;
        } else if (*at == '\n' || *at == ';' || quotes) {
            command = own;
        }
        if (begins_option(text, at)) {
            const int bytes = 2 + (int)strcspn(at + 2, " ,;:.()`'\"=\n");
            snprintf(option, ADVICE_BYTES, "%.*s", bytes, at);
            if (command != 0 && !takes(command, option) && !in_words(option, words)) {
                return true;
            }
        }
    }
    return false;
}
