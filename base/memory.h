/* Reads how much memory this process may use: the machine's, within the limits of its control groups and its own limits
 * (ulimit). Placement of a run, doctor and the benchmarks call it. */
#ifndef OX_BASE_MEMORY_H
#define OX_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ox_memory_bound {
    OX_MEMORY_MACHINE,    /* what the machine has free        */
    OX_MEMORY_GROUP,      /* a control group's limit          */
    OX_MEMORY_ADDRESSES,  /* RLIMIT_AS, set by `ulimit -v`    */
    OX_MEMORY_DATA,       /* RLIMIT_DATA, set by `ulimit -d`  */
};

struct ox_memory {
    uint64_t total;     /* RAM; 0 = unknown                                              */
    uint64_t available; /* free for new programs, droppable caches included */
    uint64_t limit;     /* lowest limit of its control groups; UINT64_MAX: none */
    uint64_t usable;    /* this process can still allocate: available, within the limits */
    enum ox_memory_bound bound; /* what makes `usable` as small as it is */
    /* What the process's own limits leave, which count addresses without memory too; UINT64_MAX: it has none. */
    uint64_t addresses;
    enum ox_memory_bound addresses_bound; /* ADDRESSES or DATA */
};

/* Reads /proc and /sys/fs/cgroup below `root`, which is "" except in tests. */
void ox_memory_read(const char *root, struct ox_memory *out);

/* The most memory that this process held at a time, since it began or the second was called, in bytes; 0: not known.
 * Not counted is what the process that started it held, which getrusage counts too. The second does nothing where the
 * kernel does not let it. */
uint64_t ox_memory_peak(void);
void ox_memory_forget_peak(void);

/* What files in this folder take memory for, in a word ("tmpfs", "zram" ...); NULL: they are on a drive, or that is not
 * known. Of a path that does not exist, the part that does counts. */
const char *ox_memory_of_files(const char *path);

/* Limits the memory of the whole process: from now on allocations fail that would take it beyond `bytes` resident, with
 * stacks of `threads` more threads, until the end. The kernel keeps the limit (RLIMIT_DATA), so it holds for whatever
 * allocates. Where it cannot be set, nothing is limited. Pairs do not nest. */
void ox_memory_cap_begin(uint64_t bytes, uint32_t threads);
/* Lifts the limit, and gives what is free in the heap back to the system. */
void ox_memory_cap_end(void);
/* malloc for jansson, which corrupts memory where the text that it gathers cannot grow: the limit is lifted instead,
 * and what it builds of the text fails from then on, until this thread calls the second, which sets the limit again and
 * returns whether it was lifted. */
void *ox_memory_cap_malloc(size_t bytes);
bool ox_memory_cap_exceeded(void);

#ifdef __cplusplus
}
#endif
#endif
