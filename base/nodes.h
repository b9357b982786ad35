/* Memory nodes (NUMA): which of them this process may use, and where memory is placed. ox_pool_open_on binds threads.
 * On a machine with one node all of this does nothing. No run uses it yet: its tests alone call it. */
#ifndef OX_BASE_NODES_H
#define OX_BASE_NODES_H

#include "base/status.h"

#include <sched.h>
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

#ifdef __cplusplus
}
#endif
#endif
