/* Sizes of a mesh from words; each contradiction names both words and a way out. */
#include "engine/config/mesh_words.h"

#include "base/bytes.h"
#include "base/name/name.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 24, SAID_BYTES = 128 };

/* Axes by their names; those without a place do not exist here. */
static const struct axis {
    const char *name, *long_name;
    bool is_pipe, exists;
} axes[] = {
    {"dp", "data", false, true}, {"pp", "pipe", true, true}, {"tp", "tensor", false, false},
    {"cp", "context", false, false}, {"ep", "expert", false, false},
};
enum { AXES = sizeof axes / sizeof *axes };

static enum ox_status find_axis(const char *word, const struct axis **out) {
    unsigned nearest = UINT32_MAX;
    const char *name = axes[0].name;
    for (int i = 0; i < AXES; i++) {
        if (strcmp(word, axes[i].name) == 0 || strcmp(word, axes[i].long_name) == 0) {
            *out = &axes[i];
            return axes[i].exists ? OX_OK
                                  : ox_fail(OX_E_CONFIG, "--mesh %s=...: %s parallelism does not exist here; use dp "
                                            "and pp, as in --mesh dp=2,pp=4", word, axes[i].long_name);
        }
        const unsigned by_short = ox_name_distance(word, axes[i].name);
        const unsigned by_long = ox_name_distance(word, axes[i].long_name);
        const unsigned distance = by_short < by_long ? by_short : by_long;
        if (axes[i].exists && distance < nearest) {
            nearest = distance;
            name = by_short <= by_long ? axes[i].name : axes[i].long_name;
        }
    }
    return ox_fail(OX_E_CONFIG, "--mesh %s=...: there is no such axis; did you mean %s? Axes are dp (data) and pp "
                   "(pipe)", word, name);
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
    if (equals[1] < '0' || equals[1] > '9' || *end != '\0' || size == 0 || size > OX_RANKS_MAX) {
        return ox_fail(OX_E_CONFIG, "--mesh %s: '%s' is no size; give a number from 1 to %d", word, equals + 1,
                       (int)OX_RANKS_MAX);
    }
    uint32_t *const at = axis->is_pipe ? &out->pipe : &out->data;
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

enum ox_status ox_mesh_read(const struct ox_config_ranks *said, struct ox_mesh_sizes *out) {
    *out = (struct ox_mesh_sizes){.chosen = strcmp(said->mesh, "auto") == 0};
    if (said->mesh[0] != '\0' && !out->chosen) {
        OX_TRY(read_sizes(said->mesh, out));
    }
    OX_TRY(join("data-parallel-size", "dp", said->data_parallel_size, &out->data));
    return join("pipeline-parallel-size", "pp", said->pipeline_parallel_size, &out->pipe);
}

/* How the user said a size, for messages. */
static void say(const struct ox_config_ranks *said, const struct ox_mesh_sizes *sizes, char text[SAID_BYTES]) {
    const bool both = sizes->data != 0 && sizes->pipe != 0;
    if (said->mesh[0] != '\0' && strcmp(said->mesh, "auto") != 0) {
        snprintf(text, SAID_BYTES, "--mesh %.*s", SAID_BYTES - 8, said->mesh);
    } else if (both) {
        snprintf(text, SAID_BYTES, "--data-parallel-size %" PRIu32 " and --pipeline-parallel-size %" PRIu32,
                 sizes->data, sizes->pipe);
    } else {
        snprintf(text, SAID_BYTES, "--%s-parallel-size %" PRIu32, sizes->pipe != 0 ? "pipeline" : "data",
                 sizes->pipe != 0 ? sizes->pipe : sizes->data);
    }
}

static enum ox_status check_product(const struct ox_config_ranks *said, const struct ox_mesh_sizes *sizes,
                                    uint64_t ranks) {
    const uint64_t made = (uint64_t)ox_max_u64(sizes->data, 1) * ox_max_u64(sizes->pipe, 1);
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
    if (sizes->data == 0 && sizes->pipe == 0) {
        return OX_OK;
    }
    if (strcmp(said->count, "auto") == 0 && !sizes->chosen) {
        char words[SAID_BYTES];
        say(said, sizes, words);
        return ox_fail(OX_E_CONFIG, "--ranks auto: %s follows from a number of ranks; give --ranks N, or leave it out",
                       words);
    }
    const uint64_t given = strtoull(said->count, NULL, 10);
    const uint64_t made = (uint64_t)ox_max_u64(sizes->data, 1) * ox_max_u64(sizes->pipe, 1);
    const bool whole = sizes->data != 0 && (sizes->pipe != 0 || !sizes->chosen);
    const uint64_t all = given > 1 ? given : whole || processes % made != 0 ? made : processes;
    if (sizes->pipe == 0 && !sizes->chosen) {
        sizes->pipe = 1; /* an axis that is left out; data takes what remains */
    }
    OX_TRY(check_product(said, sizes, all));
    sizes->data = sizes->data != 0 ? sizes->data : (uint32_t)(all / sizes->pipe);
    sizes->pipe = sizes->pipe != 0 ? sizes->pipe : (uint32_t)(all / sizes->data);
    *ranks = (uint32_t)all;
    return OX_OK;
}
