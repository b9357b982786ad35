/* Between the program and the MPI plugin, liboffload_mpi.so. */
#ifndef OX_KERNELS_COMM_MPI_PLUGIN_H
#define OX_KERNELS_COMM_MPI_PLUGIN_H

#include "kernels/comm/comm_wire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raise it whenever anything that crosses the border or goes between processes changes. */
enum { OX_MPI_PLUGIN_VERSION = 2 };

/* The plugin's only symbol of its own, "ox_mpi_plugin". It takes everything of base/ from the program. */
struct ox_mpi_plugin {
    uint32_t version;    /* OX_MPI_PLUGIN_VERSION when the plugin was built */
    uint32_t wire_bytes; /* sizeof struct ox_wire_ops */
    enum ox_status (*world)(uint32_t *process, uint32_t *process_count);
    /* All processes open together, each with the same number of ranks. */
    enum ox_status (*open)(uint32_t ranks, uint32_t limit_ms, struct ox_wire **out);
};

#ifdef __cplusplus
}
#endif
#endif
