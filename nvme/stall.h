/* Decides when a silent drive is warned of and given up: it warns, again at twice the age each time, and then fails. It
 * has no thread; ports and the store call it while they wait. Private to nvme/. */
#ifndef OX_NVME_STALL_H
#define OX_NVME_STALL_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The ages at which to warn and to fail. */
struct ox_stall_limits {
    uint64_t warn_ns, fail_ns;
};

/* Returns the limits; 0 means the default of 10 s and 10 minutes. */
struct ox_stall_limits ox_stall_limits(uint32_t warn_ms, uint32_t fail_ms);

/* Returns how long a caller may wait at a time without delaying a warning much. */
uint64_t ox_stall_tick_ns(const struct ox_stall_limits *limits);

/* The state of one drive; start from zeros. */
struct ox_stall {
    uint64_t next_ns; /* age of the next warning; 0: none since the drive last answered */
};

/* The oldest operation in flight: its age, and a text like "a read of 4096 bytes at 0 (extent 3)". */
struct ox_stall_op {
    const char *path, *what;
    uint64_t age_ns;
};

/* Returns OX_OK, after a warning if due; OX_E_IO with a text when the drive must be given up. */
OX_MUST enum ox_status ox_stall_check(struct ox_stall *stall, const struct ox_stall_limits *limits,
                                      const struct ox_stall_op *op);

/* Warns after a call that took too long but could not be watched. */
void ox_stall_report(const struct ox_stall_limits *limits, const struct ox_stall_op *op);

#ifdef __cplusplus
}
#endif
#endif
