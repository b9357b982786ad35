/* Walks the text of a failure and puts each option that was not given into the words that said it. */
#include "engine/config/reword.h"

#include "engine/config/mesh_words.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char ranks_word[] = "--ranks ", micro_word[] = "--gradient-accumulation-steps ", number[] = "0123456789N";

static bool begins(const char *text, const char *word) {
    return strncmp(text, word, strlen(word)) == 0;
}

/* Writes for the option that `at` begins with the words that said it, where they are others; returns the length of
 * what they replace, else 0. */
static size_t reword_at(const struct ox_config *said, const char *at, bool first, char *out, size_t bytes) {
    size_t length = 0;
    const char *const axis = ox_mesh_axis_of(&said->ranks, at, &length);
    if (axis != NULL) {
        const size_t digits = at[length] == ' ' ? strspn(at + length + 1, number) : 0;
        const bool of_size = digits > 0 && at[length + 1 + digits] == ':';
        snprintf(out, bytes, digits == 0 ? "%s of --mesh" : of_size ? "--mesh %s=" : "%s=", axis);
        return length + (digits > 0);
    }
    if (first && begins(at, ranks_word)) {
        char words[OX_MESH_SAID_BYTES];
        char *end = NULL;
        const unsigned long long ranks = strtoull(at + strlen(ranks_word), &end, 10);
        ox_mesh_say(&said->ranks, words);
        const bool follows = words[0] != '\0' && ranks != strtoull(said->ranks.count, NULL, 10);
        snprintf(out, bytes, "%s (%llu ranks)", words, ranks);
        return follows ? (size_t)(end - at) : 0;
    }
    if (said->train.as_sequences && begins(at, micro_word)) {
        char *end = NULL;
        const unsigned long long count = strtoull(at + strlen(micro_word), &end, 10);
        snprintf(out, bytes, "--global-batch-size %llu", count * said->train.per_device_train_batch_size);
        return count > 0 ? (size_t)(end - at) : 0;
    }
    return 0;
}

enum ox_status ox_config_reword(const struct ox_config *said, enum ox_status status) {
    char before[OX_ERROR_TEXT_BYTES], after[OX_ERROR_TEXT_BYTES];
    size_t used = 0;
    if (status != OX_E_CONFIG) {
        return status;
    }
    snprintf(before, sizeof before, "%s", ox_error_text());
    for (const char *at = before; *at != '\0' && used + 1 < sizeof after;) {
        char words[OX_MESH_SAID_BYTES + 32] = "";
        const size_t length = begins(at, "--") ? reword_at(said, at, at == before, words, sizeof words) : 0;
        used += (size_t)snprintf(after + used, sizeof after - used, "%.*s%s", length == 0, at, length > 0 ? words : "");
        at += length > 0 ? length : 1;
    }
    return ox_fail(status, "%s", after);
}
