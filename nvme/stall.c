/* Warns of a silent drive and gives it up. */
#include "nvme/stall.h"

#include "base/bytes.h"
#include "base/log.h"

enum { WARN_MS = 10 * 1000, FAIL_MS = 600 * 1000 };
#define MS_NS    UINT64_C(1000000)
#define TICK_MAX (1000 * MS_NS)

struct ox_stall_limits ox_stall_limits(uint32_t warn_ms, uint32_t fail_ms) {
    return (struct ox_stall_limits){
        .warn_ns = (warn_ms > 0 ? warn_ms : WARN_MS) * MS_NS,
        .fail_ns = (fail_ms > 0 ? fail_ms : FAIL_MS) * MS_NS,
    };
}

uint64_t ox_stall_tick_ns(const struct ox_stall_limits *limits) {
    return ox_min_u64(TICK_MAX, ox_min_u64(limits->warn_ns, limits->fail_ns) / 4 + 1);
}

static double seconds(uint64_t ns) {
    return (double)ns / 1e9;
}

enum ox_status ox_stall_check(struct ox_stall *stall, const struct ox_stall_limits *limits,
                              const struct ox_stall_op *op) {
    if (op->age_ns >= limits->fail_ns) {
        return ox_fail(OX_E_IO, "%s: %s has not completed in %.1f s, so the drive is given up; check `dmesg`, end this "
                       "process, and resume when the drive responds", op->path, op->what, seconds(op->age_ns));
    }
    if (op->age_ns < limits->warn_ns) {
        stall->next_ns = 0;
        return OX_OK;
    }
    if (op->age_ns >= stall->next_ns) {
        ox_log(OX_LOG_WARN, "%s: %s has not completed in %.1f s; the drive or its driver hangs, check `dmesg`; "
               "waiting until %.0f s", op->path, op->what, seconds(op->age_ns), seconds(limits->fail_ns));
        stall->next_ns = 2 * op->age_ns;
    }
    return OX_OK;
}

void ox_stall_report(const struct ox_stall_limits *limits, const struct ox_stall_op *op) {
    if (op->age_ns >= limits->warn_ns) {
        ox_log(OX_LOG_WARN, "%s: %s took %.1f s; the drive or its driver hung, check `dmesg`", op->path, op->what,
               seconds(op->age_ns));
    }
}
