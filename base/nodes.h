/* Memory nodes (NUMA): which of them this process may use, and memory kept on them. Threads are bound by
 * ox_pool_open_on. On a machine with one node all of this does nothing. */
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

/* The nodes that have processors this process may run on. */
struct ox_nodes {
    uint32_t count; /* at least 1 */
    uint32_t ids[OX_NODES_MAX];
    cpu_set_t cpus[OX_NODES_MAX]; /* of each, within the process's affinity */
};

/* Without libnuma's support in the kernel: one node with all processors. */
void ox_nodes_read(struct ox_nodes *out);

/* What will be done about it, in one sentence for people; `text` has OX_NODES_TEXT_BYTES. */
const char *ox_nodes_text(const struct ox_nodes *nodes, char *text);

/* Spreads the pages of [base, base + bytes) over the nodes, for what all threads read and write alike; or keeps them on
 * one, for what the threads of nodes->ids[node_idx] use. `base` is page aligned. Pages that were touched before
 * move. A refusal (containers may deny the call) costs speed and nothing else. */
OX_MUST enum ox_status ox_nodes_interleave(const struct ox_nodes *nodes, void *base, uint64_t bytes);
OX_MUST enum ox_status ox_nodes_bind(const struct ox_nodes *nodes, uint32_t node_idx, void *base, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
