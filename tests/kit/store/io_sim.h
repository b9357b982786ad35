/* Backends in place of drives: a disk in memory with a volatile cache, and a decorator that injects faults. */
#ifndef OX_TESTS_IO_SIM_H
#define OX_TESTS_IO_SIM_H

#include "nvme/io.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens a simulated disk. Its files are kept by path and survive drive_close, so a store can be closed, lose power, and
 * be opened again. Deterministic: the same seed and calls give the same result. */
OX_MUST enum ox_status ox_io_sim_open(uint64_t seed, struct ox_io_backend **out);
void ox_io_sim_close(struct ox_io_backend **sim);

/* Cuts the power: each unflushed write is kept, torn by 512-byte sectors, or lost, by seed. All drives must be
 * closed. */
void ox_io_sim_power_cut(struct ox_io_backend *sim);

/* Flips one bit of a stored drive file; returns false when out of range. */
bool ox_io_sim_flip_bit(struct ox_io_backend *sim, const char *path, uint64_t byte, unsigned bit);

/* Kinds of faults. EIO and ENOSPC fail the call. After EAGAIN, EINTR and SHORT a transfer resumes, at most three times
 * as in the real backends, and then fails; other calls fail at once. TORN, LOST and MISDIRECT succeed silently, and a
 * flush then does nothing. STALL only takes time. Allocations and opens fail instead of succeeding silently. */
enum ox_fault_kind {
    OX_FAULT_EIO,
    OX_FAULT_ENOSPC,
    OX_FAULT_EAGAIN,
    OX_FAULT_EINTR,
    OX_FAULT_SHORT,     /* only the first half is moved */
    OX_FAULT_TORN,      /* every other sector is zero                       */
    OX_FAULT_LOST,      /* nothing is moved                                 */
    OX_FAULT_MISDIRECT, /* moved from or to a neighbouring place */
    OX_FAULT_STALL,
};
enum ox_fault_point {
    OX_FAULT_ON_READ,
    OX_FAULT_ON_WRITE,
    OX_FAULT_ON_FLUSH,
    OX_FAULT_ON_ALLOCATE,
    OX_FAULT_ON_OPEN
};
struct ox_fault_rule {
    enum ox_fault_kind kind;
    enum ox_fault_point point;
    uint64_t first_idx; /* hit this call of the point, counted from 0; each resumption of a transfer counts as a call */
    bool persistent;    /* hit all later calls too */
};

/* Wraps `inner`, which must outlive it. */
OX_MUST enum ox_status ox_io_fault_open(const struct ox_io_backend *inner, struct ox_io_backend **out);
void ox_io_fault_close(struct ox_io_backend **fault);
void ox_io_fault_set(struct ox_io_backend *fault, const struct ox_fault_rule *rule); /* NULL: no faults */
void ox_io_fault_set_stall(struct ox_io_backend *fault, uint64_t ns); /* duration of a stall, 20 ms by default */
/* Returns the calls of `point` since the last ox_io_fault_set, and how many were hit. */
void ox_io_fault_counts(const struct ox_io_backend *fault, enum ox_fault_point point, uint64_t *calls,
                        uint64_t *hits);

#ifdef __cplusplus
}
#endif
#endif
