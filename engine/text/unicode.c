/* Character classes of Unicode as of a version. The table is made from the files of the Unicode consortium. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/tokenizer_internal.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/unicode_table.inc"

enum {
    run_count = sizeof runs / sizeof *runs,
    category_count = sizeof category_names / sizeof *category_names,
    script_count = sizeof script_names / sizeof *script_names,
    new_script_count = sizeof new_scripts / sizeof *new_scripts,
};

static uint32_t first_of(size_t run) {
    return runs[run] >> 11;
}

static uint32_t last_of(size_t run) {
    return run + 1 < run_count ? first_of(run + 1) - 1 : 0x10ffff;
}

static unsigned since_of(size_t run) {
    return runs[run] & 63;
}

static size_t find_run(uint32_t cp) {
    size_t low = 0;
    for (size_t high = run_count; high - low > 1;) {
        const size_t middle = (low + high) / 2;
        *(first_of(middle) <= cp ? &low : &high) = middle;
    }
    return low;
}

/* The two letters of a run's general category; a character newer than `version` is unassigned. */
static const char *category_of(size_t run, unsigned version) {
    return since_of(run) > version ? "Cn" : category_names[runs[run] >> 6 & 31];
}

const char *ox_unicode_category(uint32_t cp, unsigned version) {
    return category_of(find_run(cp), version);
}

bool ox_unicode_is_newer(uint32_t cp, unsigned version) {
    return since_of(find_run(cp)) > version;
}

bool ox_unicode_is_space(uint32_t cp) {
    if (cp < 0x80) {
        return cp == ' ' || (cp >= '\t' && cp <= '\r');
    }
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool ox_unicode_is_letter(uint32_t cp) {
    return ox_unicode_category(cp, OX_UNICODE_REGEX)[0] == 'L';
}

bool ox_unicode_is_word(uint32_t cp) {
    const char *const category = ox_unicode_category(cp, OX_UNICODE_REGEX);
    if (strchr("LM", category[0]) != NULL || strcmp(category, "Nd") == 0 || strcmp(category, "Nl") == 0 ||
        strcmp(category, "Pc") == 0) {
        return true;
    }
    /* Joiners, and circled and squared letters, which are symbols by category but alphabetic by property. */
    return cp == 0x200c || cp == 0x200d || (cp >= 0x24b6 && cp <= 0x24e9) || (cp >= 0x1f130 && cp <= 0x1f149) ||
           (cp >= 0x1f150 && cp <= 0x1f169) || (cp >= 0x1f170 && cp <= 0x1f189);
}

/* ---- classes of expressions ----------------------------------------------------------------------------------- */

static unsigned pcre2_version(void) {
    char text[64] = "";
    (void)pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, text);
    return (unsigned)strtoul(text, NULL, 10);
}

/* Whether a character that came with `since` is in one of the tables and not in the other. */
static bool differs(unsigned since, unsigned version, unsigned other) {
    return (since > version) != (since > other);
}

void ox_unicode_compare(unsigned version, struct ox_unicode_differences *out) {
    *out = (struct ox_unicode_differences){.version = version, .other = pcre2_version()};
    for (size_t run = 0; run < run_count; run++) {
        for (uint32_t page = first_of(run) >> 8;
             differs(since_of(run), version, out->other) && page <= last_of(run) >> 8; page++) {
            out->pages[page / 64] |= UINT64_C(1) << page % 64;
        }
    }
}

bool ox_unicode_differs(const struct ox_unicode_differences *from, const char *text, size_t bytes) {
    for (size_t pos = 0; pos < bytes;) {
        if ((unsigned char)text[pos] < 0x80) {
            pos++;
            continue;
        }
        const uint32_t cp = ox_utf8_next(text, &pos);
        const uint32_t page = cp >> 8;
        if ((from->pages[page / 64] >> page % 64 & 1) != 0 &&
            differs(since_of(find_run(cp)), from->version, from->other)) {
            return true;
        }
    }
    return false;
}

static enum ox_status put_range(struct ox_text *out, uint32_t first, uint32_t last) {
    char item[32];
    const int length = snprintf(item, sizeof item, "\\x{%x}-\\x{%x}", (unsigned)first, (unsigned)last);
    return ox_text_append(out, item, (size_t)length);
}

bool ox_unicode_is_category(const char *name) {
    bool found = false;
    for (size_t i = 0; i < category_count && !found; i++) {
        found = strcmp(name, category_names[i]) == 0 || (name[0] == category_names[i][0] && name[1] == '\0');
    }
    return found;
}

/* Whether a run belongs to a class. UTF-8 has no surrogates (Cs), and an expression cannot name them. */
static bool belongs(size_t run, const char *name, bool negated, unsigned version) {
    const char *const category = category_of(run, version);
    return (strncmp(category, name, strlen(name)) == 0) != negated && strcmp(category, "Cs") != 0;
}

static enum ox_status put_category(const char *name, bool negated, unsigned version, struct ox_text *out) {
    enum ox_status status = OX_OK;
    for (size_t run = 0; run < run_count && status == OX_OK; run++) {
        const size_t first = run;
        while (run < run_count && belongs(run, name, negated, version)) {
            run++;
        }
        if (run > first) {
            status = put_range(out, first_of(first), last_of(run - 1));
        }
    }
    return status;
}

/* From PCRE2 10.40 on, a script without "sc:" would include the characters that it shares with others. A script only
 * grows, so those that PCRE2 lacks complete its own table. */
static enum ox_status put_script(size_t script, unsigned version, struct ox_text *out) {
    char name[48];
    const unsigned known = pcre2_version();
    const char *const exact = PCRE2_MINOR >= 40 ? "sc:" : "";
    const int length = snprintf(name, sizeof name, "\\p{%s%s}", exact, script_names[script]);
    enum ox_status status = ox_text_append(out, name, (size_t)length);
    for (size_t i = 0; i < new_script_count && status == OX_OK; i++) {
        const unsigned since = since_of(find_run(new_scripts[i].first));
        if (new_scripts[i].script == script && since > known && since <= version) {
            status = put_range(out, new_scripts[i].first, new_scripts[i].last);
        }
    }
    return status;
}

enum ox_status ox_unicode_put_property(const char *name, bool negated, unsigned version, struct ox_text *out) {
    if (ox_unicode_is_category(name)) {
        return put_category(name, negated, version, out);
    }
    for (size_t i = 0; i < script_count && !negated && pcre2_version() <= version; i++) {
        if (strcmp(name, script_names[i]) == 0) {
            return put_script(i, version, out);
        }
    }
    return ox_fail(OX_E_CONFIG, "the property \"%.60s\" is not known", name);
}
