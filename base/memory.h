/* What memory this process may have: the machine's, and the limits of the control groups it runs in. */
#ifndef OX_BASE_MEMORY_H
#define OX_BASE_MEMORY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_memory {
    uint64_t total;     /* RAM; 0 = unknown                                              */
    uint64_t available; /* what new programs can have: free, or cache that can be dropped */
    uint64_t limit;     /* the least of the control groups'; UINT64_MAX = none            */
    uint64_t usable;    /* what this process can still take: available, within all limits */
};

/* Reads /proc and /sys/fs/cgroup below `root`, which is "" but for tests. */
void ox_memory_read(const char *root, struct ox_memory *out);

#ifdef __cplusplus
}
#endif
#endif
