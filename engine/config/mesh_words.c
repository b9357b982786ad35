/* Sizes of a mesh from words; each contradiction names both words and a way out. */
#include "engine/config/mesh_words.h"

#include "base/bytes.h"
#include "base/name/name.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 24 };

/* Axes by their names, and by the option that each has. */
static const struct axis {
    const char *name, *long_name, *option;
    size_t at, given; /* in struct ox_mesh_sizes, uint32_t; in struct ox_config_ranks, uint64_t: what the option says */
} axes[] = {
    {"dp", "data", "--data-parallel-size", offsetof(struct ox_mesh_sizes, data),
     offsetof(struct ox_config_ranks, data_parallel_size)},
    {"pp", "pipe", "--pipeline-parallel-size", offsetof(struct ox_mesh_sizes, pipe),
     offsetof(struct ox_config_ranks, pipeline_parallel_size)},
    {"cp", "context", "--context-parallel-size", offsetof(struct ox_mesh_sizes, context),
     offsetof(struct ox_config_ranks, context_parallel_size)},
    {"tp", "tensor", "--tensor-parallel-size", offsetof(struct ox_mesh_sizes, tensor),
     offsetof(struct ox_config_ranks, tensor_parallel_size)},
    {"ep", "expert", "--expert-parallel-size", offsetof(struct ox_mesh_sizes, expert),
     offsetof(struct ox_config_ranks, expert_parallel_size)},
};
enum { AXES = sizeof axes / sizeof *axes };

static uint32_t *size_of(const struct axis *axis, struct ox_mesh_sizes *sizes) {
    return (uint32_t *)((char *)sizes + axis->at);
}

static uint64_t given_of(const struct axis *axis, const struct ox_config_ranks *said) {
    return *(const uint64_t *)((const char *)said + axis->given);
}

/* Whether --mesh has sizes. */
static bool has_sizes(const struct ox_config_ranks *said) {
    return said->mesh[0] != '\0' && strcmp(said->mesh, "auto") != 0;
}

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
    uint32_t *const at = size_of(axis, out);
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

/* Joins what the option of an axis says with what --mesh does. */
static enum ox_status join(const struct axis *axis, uint64_t given, uint32_t *size) {
    if (given != 0 && *size != 0 && given != *size) {
        return ox_fail(OX_E_CONFIG, "%s %" PRIu64 ": --mesh has %s=%" PRIu32 "; leave out one of them", axis->option,
                       given, axis->name, *size);
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
    OX_TRY(has_sizes(said) ? read_sizes(said->mesh, out) : OX_OK);
    for (int i = 0; i < AXES; i++) {
        OX_TRY(join(&axes[i], given_of(&axes[i], said), size_of(&axes[i], out)));
    }
    return fold_experts(out);
}

void ox_mesh_say(const struct ox_config_ranks *said, char text[OX_MESH_SAID_BYTES]) {
    size_t used = 0;
    uint64_t least = has_sizes(said); /* sizes of 1 are left out where others are not */
    text[0] = '\0';
    if (has_sizes(said)) {
        used = (size_t)snprintf(text, OX_MESH_SAID_BYTES, "--mesh %s", said->mesh);
    }
    for (int i = 0; i < AXES; i++) {
        least = given_of(&axes[i], said) > 1 ? 1 : least;
    }
    for (int i = 0; i < AXES; i++) {
        const uint64_t given = given_of(&axes[i], said);
        if (given > least) {
            used += (size_t)snprintf(text + used, OX_MESH_SAID_BYTES - used, "%s%s %" PRIu64,
                                     used > 0 ? " and " : "", axes[i].option, given);
        }
    }
}

uint64_t *ox_mesh_given(struct ox_config_ranks *said, uint32_t nth, const char **option) {
    if (nth >= AXES) {
        return NULL;
    }
    *option = axes[nth].option;
    return (uint64_t *)((char *)said + axes[nth].given);
}

const char *ox_mesh_axis_of(const struct ox_config_ranks *said, const char *text, size_t *length) {
    struct ox_mesh_sizes sizes = {0};
    if (!has_sizes(said) || read_sizes(said->mesh, &sizes) != OX_OK) {
        return NULL;
    }
    for (int i = 0; i < AXES; i++) {
        *length = strlen(axes[i].option);
        if (strncmp(text, axes[i].option, *length) == 0) {
            return *size_of(&axes[i], &sizes) > 0 && given_of(&axes[i], said) == 0 ? axes[i].name : NULL;
        }
    }
    return NULL;
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
    char words[OX_MESH_SAID_BYTES], fewer[64] = "";
    ox_mesh_say(said, words);
    if (sizes->data != 0 && sizes->pipe != 0 && made != ranks) {
        const uint64_t others = made / sizes->data;
        if (ranks % others == 0) {
            snprintf(fewer, sizeof fewer, ", or give --data-parallel-size %" PRIu64, ranks / others);
        }
        return ox_fail(OX_E_CONFIG, "%s: makes %" PRIu64 " ranks, --ranks says %" PRIu64 "; leave out --ranks%s",
                       words, made, ranks, fewer);
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
        char words[OX_MESH_SAID_BYTES];
        ox_mesh_say(said, words);
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
                       "divide micro-batches%s%s; use a divisor of them, or --data-parallel-size %" PRIu32,
                       folds * sizes->expert, folds * of_data, sizes->context > 1 ? " and rows" : "",
                       folds > 1 ? " and features" : "", (uint32_t)ox_align_up(sizes->data, sizes->expert));
    }
    return OX_OK;
}
