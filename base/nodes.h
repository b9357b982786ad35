/* Memory nodes (NUMA): which of them this process may use, and where memory is placed. ox_pool_open_on binds threads.
 * On a machine with one node all of this does nothing. A run places its ranks with ox_nodes_enter
 * (engine/step/place.h); tests alone call the other functions that place or bind. */
#ifndef OX_BASE_NODES_H
#define OX_BASE_NODES_H

#include "base/status.h"

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_NODES_MAX = 64, OX_NODES_TEXT_BYTES = 160 };

/* The nodes with processors that this process may run on. */
struct ox_nodes {
    uint32_t count; /* at least 1 */
    uint32_t ids[OX_NODES_MAX];
    cpu_set_t cpus[OX_NODES_MAX]; /* per node: its processors that this process may run on */
};

/* Reads the nodes; without NUMA support in the kernel, one node with all processors. */
void ox_nodes_read(struct ox_nodes *out);

/* Writes to `text` (OX_NODES_TEXT_BYTES) how threads and memory will be placed, and returns `text`. */
const char *ox_nodes_text(const struct ox_nodes *nodes, char *text);

/* Places the pages of [base, base + bytes), moving those already touched. Interleave spreads them over all nodes, for
 * memory that all threads use alike; bind keeps them on nodes->ids[node_idx], for memory that its threads use. `base`
 * is page aligned. A failure, common in containers, costs speed only. */
OX_MUST enum ox_status ox_nodes_interleave(const struct ox_nodes *nodes, void *base, uint64_t bytes);
OX_MUST enum ox_status ox_nodes_bind(const struct ox_nodes *nodes, uint32_t node_idx, void *base, uint64_t bytes);

/* Lets the calling thread, and all threads that it starts until ox_nodes_leave, run on the processors of `threads` and
 * take memory from the nodes of `memory`, in turn if there are several. A count of 0 changes nothing. The policy of
 * memory stays what it is in a process that was started with one, as by numactl. After a failure, common in containers,
 * what the kernel allowed is in force until ox_nodes_leave. */
struct ox_nodes_before {
    cpu_set_t cpus;
    bool bound, placed;
};
OX_MUST enum ox_status ox_nodes_enter(const struct ox_nodes *threads, const struct ox_nodes *memory,
                                      struct ox_nodes_before *before);
void ox_nodes_leave(const struct ox_nodes_before *before);

#ifdef __cplusplus
}
#endif
#endif
