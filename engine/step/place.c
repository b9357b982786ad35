#include "engine/step/place.h"

#include "base/assert.h"
#include "base/file.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t node_of(const struct ox_nodes *nodes, int id) {
    uint32_t idx = 0;
    while (idx < nodes->count && (int)nodes->ids[idx] != id) {
        idx++;
    }
    return idx;
}

/* Whether all nodes have equally many GPUs. */
static bool spreads_gpus(const struct ox_nodes *nodes, const struct ox_place_case *given) {
    uint32_t counts[OX_NODES_MAX + 1] = {0};
    for (uint32_t i = 0; i < given->ranks; i++) {
        counts[node_of(nodes, given->gpu_nodes[i])]++;
    }
    bool even = counts[nodes->count] == 0;
    for (uint32_t i = 1; i < nodes->count; i++) {
        even = even && counts[i] == counts[0];
    }
    return even;
}

static void add_node(struct ox_nodes *out, const struct ox_nodes *nodes, uint32_t idx) {
    out->ids[out->count] = nodes->ids[idx];
    out->cpus[out->count++] = nodes->cpus[idx];
}

/* Adds the nodes that a rank has for itself or shares with equally many others; none where that does not come out
 * even. */
static void add_own(const struct ox_nodes *nodes, const struct ox_place_case *given, uint32_t idx,
                    struct ox_nodes *out) {
    const uint32_t count = nodes->count, each = count / given->ranks;
    if (given->gpu_nodes != NULL && spreads_gpus(nodes, given)) {
        add_node(out, nodes, node_of(nodes, given->gpu_nodes[idx]));
    } else if (given->gpu_nodes == NULL && given->ranks % count == 0) {
        add_node(out, nodes, idx % count);
    } else if (given->gpu_nodes == NULL && count % given->ranks == 0) {
        for (uint32_t i = 0; i < each; i++) {
            add_node(out, nodes, idx * each + i);
        }
    }
}

void ox_place_rank(const struct ox_nodes *nodes, const struct ox_place_case *given, uint32_t idx,
                   struct ox_rank_place *out) {
    OX_ASSERT(idx < given->ranks);
    out->threads.count = out->memory.count = 0;
    if (nodes->count < 2) {
        return;
    }
    if (given->ranks > 1) {
        add_own(nodes, given, idx, &out->threads);
    }
    out->memory = given->shared || out->threads.count == 0 ? *nodes : out->threads;
}

int ox_place_pci_node(const char *folder, const char *pci) {
    char path[OX_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    const size_t digits = strcspn(pci, ":"); /* of the domain: the kernel writes four */
    if (pci[digits] == '\0') {
        return -1;
    }
    const int used = snprintf(path, sizeof path, "%s/%s/numa_node", folder, pci + (digits > 4 ? digits - 4 : 0));
    for (size_t i = strlen(folder); used > 0 && i < sizeof path && path[i] != '\0'; i++) {
        path[i] = (char)tolower((unsigned char)path[i]);
    }
    if (used >= (int)sizeof path || !ox_path_exists(path) || ox_file_read(path, 4096, &text, &bytes) != OX_OK) {
        return -1;
    }
    const int node = bytes > 0 ? (int)strtol(text, NULL, 10) : -1;
    free(text);
    return node;
}

const char *ox_place_text(const struct ox_nodes *nodes, const struct ox_place_case *given,
                          char text[OX_PLACE_TEXT_BYTES]) {
    static _Thread_local struct ox_rank_place place; /* tens of kilobytes */
    text[0] = '\0';
    if (nodes->count < 2) {
        return text;
    }
    ox_place_rank(nodes, given, 0, &place);
    const uint32_t own = place.threads.count, memory = place.memory.count;
    snprintf(text, OX_PLACE_TEXT_BYTES, "%u memory nodes (NUMA): %s, memory %s%u of them", nodes->count,
             own == 0 ? "threads run anywhere" : given->gpu_nodes != NULL ? "each rank is on the node of its GPU"
             : own == 1 ? "ranks are on the nodes in turn" : "each rank has nodes of its own",
             memory == 1 ? "on " : "interleaved over ", memory);
    return text;
}
