/* Watches how long a drive has given nothing: warns, again at twice the age each time, and says when to give up.
 * Driven by whoever waits; has no thread. Private to nvme/. */
#ifndef OX_NVME_STALL_H
#define OX_NVME_STALL_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* When to warn and when to fail, both in nanoseconds. */
struct ox_stall_limits {
    uint64_t warn_ns, fail_ns;
};

/* Zero is the default: 10 s and 10 minutes. */
struct ox_stall_limits ox_stall_limits(uint32_t warn_ms, uint32_t fail_ms);

/* How long to wait at a time, so that a warning is not late by much. */
uint64_t ox_stall_tick_ns(const struct ox_stall_limits *limits);

/* Of one drive, from zeros. */
struct ox_stall {
    uint64_t next_ns; /* the age of the next warning; 0: none was given since the drive last gave something */
};

/* The oldest operation in flight: its age, and words like "a read of 4096 bytes at 0 (extent 3)". */
struct ox_stall_op {
    const char *path, *what;
    uint64_t age_ns;
};

/* OX_OK, with a warning or without; OX_E_IO with a text when the drive is to be given up. */
OX_MUST enum ox_status ox_stall_check(struct ox_stall *stall, const struct ox_stall_limits *limits,
                                      const struct ox_stall_op *op);

/* For a call that could not be watched: warns afterwards when it took too long. */
void ox_stall_report(const struct ox_stall_limits *limits, const struct ox_stall_op *op);

#ifdef __cplusplus
}
#endif
#endif
