/* Where a rank's threads run and its memory lies on a machine with several memory nodes (NUMA). With one node nothing
 * is placed. No result depends on it. */
#ifndef OX_ENGINE_PLACE_H
#define OX_ENGINE_PLACE_H

#include "base/nodes.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A count of 0 stands for anywhere, as without memory nodes. */
struct ox_rank_place {
    struct ox_nodes threads;
    struct ox_nodes memory; /* interleaved over these nodes */
};

struct ox_place_case {
    uint32_t ranks;       /* of this machine */
    const int *gpu_nodes; /* for each rank the node of its GPU, -1 if that is not known; NULL: ranks are on the CPU */
    bool shared;          /* all ranks read the memory of each */
};

/* Places rank `idx`. A rank with a GPU is placed on the GPU's node, if all nodes have equally many of them: else cores
 * of a node without GPUs would idle. Ranks on the CPU take nodes in turn, or equal parts of the nodes where there are
 * more of these. Where neither comes out even, and for one rank, threads run anywhere and memory is interleaved over
 * all. */
void ox_place_rank(const struct ox_nodes *nodes, const struct ox_place_case *given, uint32_t idx,
                   struct ox_rank_place *out);

/* The node of a PCI device ("00000000:41:00.0") by the kernel's list in `folder`, "/sys/bus/pci/devices"; -1: not
 * known. */
int ox_place_pci_node(const char *folder, const char *pci);

enum { OX_PLACE_TEXT_BYTES = 160 };
/* Writes to `text` how the ranks of a machine are placed, and returns it; "" with one node. */
const char *ox_place_text(const struct ox_nodes *nodes, const struct ox_place_case *given,
                          char text[OX_PLACE_TEXT_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
