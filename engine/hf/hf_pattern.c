/* Patterns by which options name tensors. */
#include "engine/hf/hf_pattern.h"

#include "base/name/name.h"
#include "base/optim_format.h"
#include "engine/config/config.h"

#include <ctype.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether `pattern` names a range of layers, as in layers.0-15 or layers.3. */
static bool layers_of(const char *pattern, uint64_t *first, uint64_t *last) {
    static const char prefix[] = "layers.";
    char *end = NULL;
    if (strncmp(pattern, prefix, sizeof prefix - 1) != 0 || !isdigit((unsigned char)pattern[sizeof prefix - 1])) {
        return false;
    }
    *first = *last = strtoull(pattern + sizeof prefix - 1, &end, 10);
    if (*end == '-' && isdigit((unsigned char)end[1])) {
        *last = strtoull(end + 1, &end, 10);
    }
    return *end == '\0' && *first <= *last;
}

bool ox_hf_means(const struct ox_model *model, const char *pattern, const struct ox_tensor *tensor) {
    const uint32_t own_idx = model->units[tensor->unit_idx].own;
    const enum ox_unit_kind kind = model->units[own_idx].kind;
    const bool shared = model->config.tied && tensor->role == OX_ROLE_EMBED;
    uint64_t first = 0, last = 0;
    if (strcmp(pattern, "embed") == 0) {
        return kind == OX_UNIT_EMBED;
    }
    if (strcmp(pattern, "head") == 0) {
        return kind == OX_UNIT_HEAD || shared;
    }
    if (layers_of(pattern, &first, &last)) {
        return (kind == OX_UNIT_BLOCK || kind == OX_UNIT_EXPERTS) && last < model->block_count &&
               tensor->layer >= first && tensor->layer <= last;
    }
    return fnmatch(pattern, tensor->name, 0) == 0 || (shared && fnmatch(pattern, "lm_head.weight", 0) == 0);
}

bool ox_hf_excepts(const char **pattern) {
    static const char word[] = "all-but ";
    const bool excepts = strncmp(*pattern, word, sizeof word - 1) == 0;
    *pattern += excepts ? sizeof word - 1 : 0;
    *pattern += strspn(*pattern, " ");
    return excepts;
}

/* ---- what a pattern that means nothing may mean ---- */

enum { PARTS_MAX = 16 };

/* A pattern without * and . at its ends, and the nearest text found so far. */
struct nearest {
    char wanted[OX_CONFIG_TEXT_BYTES], text[OX_TENSOR_NAME_BYTES + 8];
    bool wild;
    unsigned distance;
};

static void offer(struct nearest *nearest, const char *part, const char *text) {
    const size_t have = strlen(part), want = strlen(nearest->wanted);
    const size_t apart = have > want ? have - want : want - have; /* the least that the distance can be */
    const unsigned distance = apart < nearest->distance ? ox_name_distance(nearest->wanted, part) : UINT_MAX;
    if (distance < nearest->distance) {
        nearest->distance = distance;
        snprintf(nearest->text, sizeof nearest->text, "%s", text);
    }
}

/* Offers each run of parts of a name: all of them, then shorter ones, which need a * where the name goes on. Where the
 * pattern has a *, numbers of layers are one too. */
static void offer_parts(struct nearest *nearest, const char *name) {
    char own[OX_TENSOR_NAME_BYTES], text[OX_TENSOR_NAME_BYTES + 8];
    size_t starts[PARTS_MAX + 1], used = 0;
    unsigned count = 0;
    for (const char *at = name; *at != '\0' && count < PARTS_MAX;) {
        const size_t len = strcspn(at, ".");
        starts[count++] = used;
        used += (size_t)snprintf(own + used, sizeof own - used, "%.*s.", nearest->wild && isdigit((unsigned char)*at)
                                 ? 1 : (int)len, nearest->wild && isdigit((unsigned char)*at) ? "*" : at);
        at += len + (at[len] == '.');
    }
    starts[count] = used;
    for (unsigned parts = count; parts > 0; parts--) {
        for (unsigned first = 0; first + parts <= count; first++) {
            char part[OX_TENSOR_NAME_BYTES];
            snprintf(part, sizeof part, "%.*s", (int)(starts[first + parts] - starts[first] - 1), own + starts[first]);
            snprintf(text, sizeof text, "%s%s%s", first > 0 ? "*." : "", part, first + parts < count ? ".*" : "");
            offer(nearest, part, text);
        }
    }
}

/* Offers the words of patterns, and for letters before a number the layers of that number. */
static void offer_words(struct nearest *nearest) {
    static const char *const words[] = {"embed", "head", "embeddings", "embedding", "lm_head"};
    char layers[OX_CONFIG_TEXT_BYTES + 8];
    const char *const number = nearest->wanted + strcspn(nearest->wanted, "0123456789");
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        offer(nearest, words[i], words[i < 2 ? i : i == 4 ? 1 : 0]);
    }
    if (number > nearest->wanted && *number != '\0' && number[strspn(number, "0123456789-")] == '\0') {
        snprintf(layers, sizeof layers, "layers.%s", number);
        offer(nearest, layers, layers);
    }
}

/* Whether the pattern names layers that no model has: beyond its last, or backwards. */
static bool asks_for_layers(const char *pattern, uint64_t *first, uint64_t *last) {
    *first = *last = 0;
    const char *const dash = strchr(pattern, '-');
    return layers_of(pattern, first, last) || (*first > *last && dash != NULL && isdigit((unsigned char)dash[1]));
}

enum ox_status ox_hf_refuse_pattern(const struct ox_model *model, const char *option, const char *pattern) {
    struct nearest nearest = {.distance = UINT_MAX, .wild = strpbrk(pattern, "*?[") != NULL};
    const char *const from = pattern + strspn(pattern, "*.");
    size_t len = strlen(from);
    uint64_t first = 0, last = 0;
    if (asks_for_layers(pattern, &first, &last)) {
        return first > last ? ox_fail(OX_E_CONFIG, "%s %s: the range goes backwards; write layers.%" PRIu64 "-%" PRIu64,
                                      option, pattern, last, first)
                            : ox_fail(OX_E_CONFIG, "%s %s: the model has layers 0 to %u", option, pattern,
                                      model->block_count - 1);
    }
    while (len > 0 && strchr("*.", from[len - 1]) != NULL) {
        len--;
    }
    snprintf(nearest.wanted, sizeof nearest.wanted, "%.*s", (int)len, from);
    offer_words(&nearest);
    for (uint32_t i = 0; i < model->tensor_count && nearest.distance > 0; i++) {
        offer_parts(&nearest, model->tensors[i].name);
    }
    return ox_fail(OX_E_CONFIG, "%s %s: means no tensor of the model; the nearest is %s; embed, head, layers.N-M and * "
                   "work too, `all-but PATTERN` means the others, commas part patterns, and `offload inspect` lists "
                   "all names", option, pattern, nearest.text);
}

enum ox_status ox_hf_check_blocks(const struct ox_model *model, const char *option) {
    for (uint32_t i = 1; i < model->tensor_count; i++) {
        const struct ox_tensor *const before = &model->tensors[i - 1], *const at = &model->tensors[i];
        const bool together =
            before->unit_idx == at->unit_idx && before->role == at->role && before->layer == at->layer;
        const bool alike = before->trained == at->trained && ox_tensor_same_group(before, at);
        if (together && !alike && at->offset % OX_Q8_BLOCK != 0) {
            return ox_fail(OX_E_CONFIG, "%s: %s and %s share a block of %d weights that is updated at once; mean both "
                           "or neither", option, before->name, at->name, (int)OX_Q8_BLOCK);
        }
    }
    return ox_model_check_shared(model, option);
}
