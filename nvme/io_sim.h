/* Backends for tests: a disk in memory with a volatile cache, and a decorator that injects faults. */
#ifndef OX_NVME_IO_SIM_H
#define OX_NVME_IO_SIM_H

#include "nvme/io.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Drive files live in the sim by path and survive drive_close, so that a store can be closed, its power
 * cut, and opened again. Deterministic: same seed, same calls, same result. */
OX_MUST enum ox_status ox_io_sim_open(uint64_t seed, struct ox_io_backend **out);
void ox_io_sim_close(struct ox_io_backend **sim);

/* Each write that no flush has covered is kept whole, torn by 512-byte sectors, or lost, by seed.
 * All drives must be closed. */
void ox_io_sim_power_cut(struct ox_io_backend *sim);

/* Flips one bit of a stored drive file; false when out of range. */
bool ox_io_sim_flip_bit(struct ox_io_backend *sim, const char *path, uint64_t byte, unsigned bit);

/* The first two fail the call. The next three are results after which a transfer goes on, at most three times, as with
 * the real backends; hit more often it fails, and any other call fails at once. TORN, LOST and MISDIRECT succeed in
 * silence, also for a flush, which then does nothing; STALL only takes its time. An allocation or an open is never
 * lost in silence, it fails. */
enum ox_fault_kind {
    OX_FAULT_EIO,
    OX_FAULT_ENOSPC,
    OX_FAULT_EAGAIN,
    OX_FAULT_EINTR,
    OX_FAULT_SHORT,     /* the first half is moved                          */
    OX_FAULT_TORN,      /* every other sector is zero                       */
    OX_FAULT_LOST,      /* nothing is moved                                 */
    OX_FAULT_MISDIRECT, /* moved from or to the neighbour of the right place */
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
    uint64_t first_idx; /* the n-th call of that point, from 0, is hit; a transfer that goes on is a call each time */
    bool persistent;    /* and all later ones */
};

/* Wraps `inner`, which must outlive it. */
OX_MUST enum ox_status ox_io_fault_open(const struct ox_io_backend *inner, struct ox_io_backend **out);
void ox_io_fault_close(struct ox_io_backend **fault);
void ox_io_fault_set(struct ox_io_backend *fault, const struct ox_fault_rule *rule); /* NULL: none */
void ox_io_fault_set_stall(struct ox_io_backend *fault, uint64_t ns); /* how long one is; 20 ms at first */
/* Calls of `point` seen since the last set, and how many of them were hit. */
void ox_io_fault_counts(const struct ox_io_backend *fault, enum ox_fault_point point, uint64_t *calls,
                        uint64_t *hits);

#ifdef __cplusplus
}
#endif
#endif
