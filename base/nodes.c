/* All calls of libnuma. */
#include "base/nodes.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <stdio.h>
#include <string.h>

enum { NODE_ID_MAX = 1023, WORD_BITS = 8 * sizeof(unsigned long) };

struct node_mask {
    unsigned long words[(NODE_ID_MAX + 1) / WORD_BITS];
};

static void mask_add(struct node_mask *mask, uint32_t id) {
    OX_ASSERT(id <= NODE_ID_MAX);
    mask->words[id / WORD_BITS] |= 1ul << id % WORD_BITS;
}

static void use_single_node(const cpu_set_t *allowed, struct ox_nodes *out) {
    out->count = 1;
    out->ids[0] = 0;
    out->cpus[0] = *allowed;
}

void ox_nodes_read(struct ox_nodes *out) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    memset(out, 0, sizeof *out);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || numa_available() < 0) {
        use_single_node(&allowed, out);
        return;
    }
    struct bitmask *const cpus = numa_allocate_cpumask();
    for (int id = 0; id <= numa_max_node() && out->count < OX_NODES_MAX; id++) {
        if (cpus == NULL || numa_node_to_cpus(id, cpus) != 0) {
            continue;
        }
        cpu_set_t *const set = &out->cpus[out->count];
        CPU_ZERO(set);
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
            if (CPU_ISSET(cpu, &allowed) && numa_bitmask_isbitset(cpus, (unsigned)cpu)) {
                CPU_SET(cpu, set);
            }
        }
        if (CPU_COUNT(set) > 0) {
            out->ids[out->count++] = (uint32_t)id;
        }
    }
    if (cpus != NULL) {
        numa_free_cpumask(cpus);
    }
    if (out->count == 0) {
        use_single_node(&allowed, out);
    }
}

const char *ox_nodes_text(const struct ox_nodes *nodes, char *text) {
    if (nodes->count == 1) {
        snprintf(text, OX_NODES_TEXT_BYTES, "one memory node (NUMA): threads run on any processor, memory is placed "
                 "by first touch");
    } else {
        snprintf(text, OX_NODES_TEXT_BYTES, "%u memory nodes (NUMA): optimizer threads are bound to them in equal "
                 "shares, memory is interleaved over them", nodes->count);
    }
    return text;
}

/* Applies one memory policy. The kernel reads one bit less of the mask than the length passed, hence + 2. */
static enum ox_status place(int mode, const struct node_mask *mask, const char *what, void *base, uint64_t bytes) {
    OX_ASSERT((uintptr_t)base % OX_IO_ALIGN_BYTES == 0);
    if (bytes > 0 && mbind(base, bytes, mode, mask->words, NODE_ID_MAX + 2, MPOL_MF_MOVE) != 0) {
        char size[OX_SIZE_TEXT_BYTES];
        return ox_fail_errno(OX_E_CONFIG, errno, "memory nodes (NUMA): cannot %s %s of memory; start under numactl, "
                             "or accept slower memory", what, ox_size_text(bytes, size));
    }
    return OX_OK;
}

enum ox_status ox_nodes_interleave(const struct ox_nodes *nodes, void *base, uint64_t bytes) {
    struct node_mask mask = {0};
    if (nodes->count < 2) {
        return OX_OK;
    }
    for (uint32_t i = 0; i < nodes->count; i++) {
        mask_add(&mask, nodes->ids[i]);
    }
    return place(MPOL_INTERLEAVE, &mask, "interleave", base, bytes);
}

enum ox_status ox_nodes_bind(const struct ox_nodes *nodes, uint32_t node_idx, void *base, uint64_t bytes) {
    struct node_mask mask = {0};
    OX_ASSERT(node_idx < nodes->count);
    if (nodes->count < 2) {
        return OX_OK;
    }
    mask_add(&mask, nodes->ids[node_idx]);
    return place(MPOL_PREFERRED, &mask, "bind", base, bytes);
}

/* ---- threads that start --------------------------------------------------------------------------------- */

static enum ox_status prefer(const struct ox_nodes *memory, struct ox_nodes_before *before) {
    struct node_mask mask = {0};
    int mode = MPOL_DEFAULT;
    if (memory->count == 0 || get_mempolicy(&mode, NULL, 0, NULL, 0) != 0 || mode != MPOL_DEFAULT) {
        return OX_OK;
    }
    for (uint32_t i = 0; i < memory->count; i++) {
        mask_add(&mask, memory->ids[i]);
    }
    if (set_mempolicy(memory->count == 1 ? MPOL_PREFERRED : MPOL_INTERLEAVE, mask.words, NODE_ID_MAX + 2) != 0) {
        return ox_fail_errno(OX_E_CONFIG, errno, "memory nodes (NUMA): memory cannot be placed; start under numactl, "
                             "or accept slower memory");
    }
    before->placed = true;
    return OX_OK;
}

enum ox_status ox_nodes_enter(const struct ox_nodes *threads, const struct ox_nodes *memory,
                              struct ox_nodes_before *before) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    *before = (struct ox_nodes_before){0};
    for (uint32_t i = 0; i < threads->count; i++) {
        CPU_OR(&cpus, &cpus, &threads->cpus[i]);
    }
    if (threads->count > 0) {
        before->bound = sched_getaffinity(0, sizeof before->cpus, &before->cpus) == 0 &&
                        sched_setaffinity(0, sizeof cpus, &cpus) == 0;
        if (!before->bound) {
            return ox_fail_errno(OX_E_CONFIG, errno, "memory nodes (NUMA): threads cannot be bound to a node; start "
                                 "under numactl, or accept slower memory");
        }
    }
    return prefer(memory, before);
}

void ox_nodes_leave(const struct ox_nodes_before *before) {
    if (before->placed) {
        (void)set_mempolicy(MPOL_DEFAULT, NULL, 0);
    }
    if (before->bound) {
        (void)sched_setaffinity(0, sizeof before->cpus, &before->cpus);
    }
}
