/* Sizes of a mesh from words; each contradiction names both words and a way out. */
#include "engine/config/mesh_words.h"

#include "base/bytes.h"
#include "base/name/name.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 24, SAID_BYTES = 160 };

/* Axes by their names. */
static const struct axis {
    const char *name, *long_name;
    size_t at; /* in struct ox_mesh_sizes */
} axes[] = {
    {"dp", "data", offsetof(struct ox_mesh_sizes, data)},
    {"pp", "pipe", offsetof(struct ox_mesh_sizes, pipe)},
    {"cp", "context", offsetof(struct ox_mesh_sizes, context)},
    {"tp", "tensor", offsetof(struct ox_mesh_sizes, tensor)},
    {"ep", "expert", offsetof(struct ox_mesh_sizes, expert)},
};
enum { AXES = sizeof axes / sizeof *axes };

static enum ox_status find_axis(const char *word, const struct axis **out) {
    unsigned nearest = UINT32_MAX;
    const char *name = axes[0].name;
    for (int i = 0; i < AXES; i++) {
        if (strcmp(word, axes[i].name) == 0 || strcmp(word, axes[i].long_name) == 0) {
            *out = &axes[i];
            return OX_OK;
        }
        const unsigned by_short = ox_name_distance(word, axes[i].name);
        const unsigned by_long = ox_name_distance(word, axes[i].long_name);
        const unsigned distance = by_short < by_long ? by_short : by_long;
        if (distance < nearest) {
            nearest = distance;
            name = by_short <= by_long ? axes[i].name : axes[i].long_name;
        }
    }
    return ox_fail(OX_E_CONFIG, "--mesh %s=...: there is no such axis; did you mean %s? Axes are dp (data), pp "
                   "(pipe), cp (context), tp (tensor) and ep (expert)", word, name);
}

/* Reads "dp=2" and sets the axis. */
static enum ox_status read_axis(const char *text, struct ox_mesh_sizes *out) {
    char word[WORD_BYTES];
    const char *const equals = strchr(text, '=');
    const size_t length = equals == NULL ? strlen(text) : (size_t)(equals - text);
    snprintf(word, sizeof word, "%.*s", (int)ox_min_u64(length, sizeof word - 1), text);
    if (equals == NULL || length == 0 || length >= sizeof word) {
        return ox_fail(OX_E_CONFIG, "--mesh: '%s' is no size of an axis; write auto, or sizes as in dp=2,pp=4", text);
    }
    const struct axis *axis = NULL;
    OX_TRY(find_axis(word, &axis));
    char *end = NULL;
    const unsigned long size = strtoul(equals + 1, &end, 10);
    if (equals[1] < '0' || equals[1] > '9' || *end != '\0' || size == 0 || size > OX_PLAN_RANKS_MAX) {
        return ox_fail(OX_E_CONFIG, "--mesh %s: '%s' is no size; give a number from 1 to %d", word, equals + 1,
                       (int)OX_PLAN_RANKS_MAX);
    }
    uint32_t *const at = (uint32_t *)((char *)out + axis->at);
    if (*at != 0) {
        return ox_fail(OX_E_CONFIG, "--mesh: %s is there twice; give each axis once", axis->name);
    }
    *at = (uint32_t)size;
    return OX_OK;
}

static enum ox_status read_sizes(const char *text, struct ox_mesh_sizes *out) {
    char copy[OX_CONFIG_MESH_BYTES];
    snprintf(copy, sizeof copy, "%s", text);
    enum ox_status status = OX_OK;
    for (char *next = copy; next != NULL && status == OX_OK;) {
        char *const word = next;
        next = strchr(word, ',');
        if (next != NULL) {
            *next++ = '\0';
        }
        status = read_axis(word, out);
    }
    return status;
}

/* Joins what an option of its own says with what --mesh does. */
static enum ox_status join(const char *option, const char *axis, uint64_t given, uint32_t *size) {
    if (given != 0 && *size != 0 && given != *size) {
        return ox_fail(OX_E_CONFIG, "--%s %" PRIu64 ": --mesh has %s=%" PRIu32 "; leave out one of them", option, given,
                       axis, *size);
    }
    *size = given != 0 ? (uint32_t)given : *size;
    return OX_OK;
}

/* Each of the ranks that divide features has experts of its own, which data ranks divide further. */
static enum ox_status fold_experts(struct ox_mesh_sizes *sizes) {
    if (sizes->tensor <= 1 || sizes->expert <= 1) {
        return OX_OK;
    }
    if (sizes->expert % sizes->tensor != 0) {
        return ox_fail(OX_E_CONFIG, "--expert-parallel-size %" PRIu32 ": the %" PRIu32 " ranks that divide features "
                       "(--tensor-parallel-size) divide the experts of a layer too, and each has as many of them; give "
                       "%" PRIu32 ", or %" PRIu32 " for data ranks beside them, or leave it out", sizes->expert,
                       sizes->tensor, sizes->tensor, 2 * sizes->tensor);
    }
    sizes->by_features = true;
    sizes->expert /= sizes->tensor;
    return OX_OK;
}

enum ox_status ox_mesh_read(const struct ox_config_ranks *said, struct ox_mesh_sizes *out) {
    *out = (struct ox_mesh_sizes){.chosen = strcmp(said->mesh, "auto") == 0};
    if (said->mesh[0] != '\0' && !out->chosen) {
        OX_TRY(read_sizes(said->mesh, out));
    }
    OX_TRY(join("data-parallel-size", "dp", said->data_parallel_size, &out->data));
    OX_TRY(join("context-parallel-size", "cp", said->context_parallel_size, &out->context));
    OX_TRY(join("tensor-parallel-size", "tp", said->tensor_parallel_size, &out->tensor));
    OX_TRY(join("expert-parallel-size", "ep", said->expert_parallel_size, &out->expert));
    OX_TRY(join("pipeline-parallel-size", "pp", said->pipeline_parallel_size, &out->pipe));
    return fold_experts(out);
}

/* How the user said the sizes, for messages: by --mesh, or by an option for each. */
static void say(const struct ox_config_ranks *said, const struct ox_mesh_sizes *sizes, char text[SAID_BYTES]) {
    const struct {
        const char *option;
        uint32_t size;
    } words[] = {{"data", sizes->data}, {"pipeline", sizes->pipe}, {"context", sizes->context},
                 {"tensor", sizes->tensor}, {"expert", sizes->expert}};
    int used = 0;
    if (said->mesh[0] != '\0' && strcmp(said->mesh, "auto") != 0) {
        snprintf(text, SAID_BYTES, "--mesh %.*s", SAID_BYTES - 8, said->mesh);
        return;
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (words[i].size != 0) {
            used += snprintf(text + used, SAID_BYTES - (size_t)used, "%s--%s-parallel-size %" PRIu32,
                             used > 0 ? " and " : "", words[i].option, words[i].size);
        }
    }
}

/* How many ranks the sizes that are known make. */
static uint64_t made_of(const struct ox_mesh_sizes *sizes) {
    const uint64_t data = sizes->data != 0 ? sizes->data : sizes->expert; /* which divides data ranks */
    return ox_max_u64(data, 1) * ox_max_u64(sizes->pipe, 1) * ox_max_u64(sizes->context, 1) *
           ox_max_u64(sizes->tensor, 1);
}

static enum ox_status check_product(const struct ox_config_ranks *said, const struct ox_mesh_sizes *sizes,
                                    uint64_t ranks) {
    const uint64_t made = made_of(sizes);
    char words[SAID_BYTES];
    say(said, sizes, words);
    if (sizes->data != 0 && sizes->pipe != 0 && made != ranks) {
        return ox_fail(OX_E_CONFIG, "%s: makes %" PRIu64 " ranks, --ranks says %" PRIu64 "; leave out --ranks, or let "
                       "dp take the rest with --mesh pp=%" PRIu32, words, made, ranks, sizes->pipe);
    }
    return ranks % made == 0 ? OX_OK
                             : ox_fail(OX_E_CONFIG, "%s: %" PRIu64 " ranks cannot be divided by it; give --ranks %"
                                       PRIu64, words, ranks, ox_max_u64(ranks / made, 1) * made);
}

enum ox_status ox_mesh_complete(const struct ox_config_ranks *said, uint32_t processes, struct ox_mesh_sizes *sizes,
                                uint32_t *ranks) {
    *ranks = 0;
    if (sizes->data == 0 && sizes->pipe == 0 && sizes->context == 0 && sizes->tensor == 0 &&
        sizes->expert == 0) {
        return OX_OK;
    }
    if (strcmp(said->count, "auto") == 0 && !sizes->chosen) {
        char words[SAID_BYTES];
        say(said, sizes, words);
        return ox_fail(OX_E_CONFIG, "--ranks auto: %s follows from a number of ranks; give --ranks N, or leave it out",
                       words);
    }
    const uint64_t given = strtoull(said->count, NULL, 10);
    const uint64_t made = made_of(sizes);
    const bool whole = sizes->data != 0 && (sizes->pipe != 0 || !sizes->chosen);
    const uint64_t all = given > 1 ? given : whole || processes % made != 0 ? made : processes;
    if (sizes->pipe == 0 && !sizes->chosen) {
        sizes->pipe = 1; /* an axis that is left out; data takes what remains */
    }
    OX_TRY(check_product(said, sizes, all));
    sizes->context = (uint32_t)ox_max_u64(sizes->context, 1); /* the planner does not choose these */
    sizes->tensor = (uint32_t)ox_max_u64(sizes->tensor, 1);
    const uint32_t left = (uint32_t)(all / sizes->context / sizes->tensor); /* for the others */
    sizes->data = sizes->data != 0 ? sizes->data : left / (uint32_t)ox_max_u64(sizes->pipe, 1);
    sizes->pipe = sizes->pipe != 0 ? sizes->pipe : left / sizes->data;
    *ranks = (uint32_t)all;
    const uint32_t of_data = sizes->data * sizes->context; /* ranks with other rows */
    if (sizes->expert > 1 && of_data % sizes->expert != 0) {
        const uint32_t folds = sizes->by_features ? sizes->tensor : 1;
        return ox_fail(OX_E_CONFIG, "--expert-parallel-size %" PRIu32 ": does not divide the %" PRIu32 " ranks that "
                       "divide micro-batches%s%s; use a divisor of them, or dp=%" PRIu32, folds * sizes->expert,
                       folds * of_data, sizes->context > 1 ? " and rows" : "", folds > 1 ? " and features" : "",
                       (uint32_t)ox_align_up(sizes->data, sizes->expert));
    }
    return OX_OK;
}
