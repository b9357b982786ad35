/* Reads how much memory this process may use: the machine's, within the limits of its control groups. Placement of a
 * run, doctor and the benchmarks call it. */
#ifndef OX_BASE_MEMORY_H
#define OX_BASE_MEMORY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_memory {
    uint64_t total;     /* RAM; 0 = unknown                                              */
    uint64_t available; /* free for new programs, droppable caches included */
    uint64_t limit;     /* lowest limit of its control groups; UINT64_MAX: none */
    uint64_t usable;    /* this process can still allocate: available, within the limits */
};

/* Reads /proc and /sys/fs/cgroup below `root`, which is "" except in tests. */
void ox_memory_read(const char *root, struct ox_memory *out);

#ifdef __cplusplus
}
#endif
#endif
