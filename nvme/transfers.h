/* A transfer queue: submits the operations of one port in groups and keeps their first failure. The optimizer's stream,
 * its chunks, ox_store_run and `offload bench nvme` use it.
 *
 * A group is what is waited for together, such as the planes of a chunk in one slot of memory. ox_transfers_submit
 * returns at once while the port has room, so a caller keeps the drives busy by submitting ahead. After the first
 * failure nothing more is submitted and every call returns that failure; operations in flight must still be taken or
 * waited for, because the drives own their memory until then. ox_transfers_drain waits for everything and forgets the
 * failure.
 *
 * A queue has one user at a time, as its port does, and is the port's only user while operations are in flight. It owns
 * nothing and needs no closing. */
#ifndef OX_NVME_TRANSFERS_H
#define OX_NVME_TRANSFERS_H

#include "nvme/store.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_TRANSFER_GROUPS_MAX = 32 };

/* Start from zeros, with a port. */
struct ox_transfers {
    struct ox_store_port *port;
    struct ox_first_failure first;
    uint32_t in_flight[OX_TRANSFER_GROUPS_MAX]; /* operations in flight of each group */
};

/* Submits the operations as part of the group; ignores their tags. Waits only while the port is full. */
OX_MUST enum ox_status ox_transfers_submit(struct ox_transfers *transfers, uint32_t group,
                                           const struct ox_store_op *ops, uint32_t op_count);
/* Reaps one operation and sets its group; waits about max_ns at most and returns false when none has ended. Requires
 * one in flight. A failure is kept for ox_transfers_status. */
bool ox_transfers_take(struct ox_transfers *transfers, uint64_t max_ns, uint32_t *group);
/* Returns the first failure since the queue was last drained. */
OX_MUST enum ox_status ox_transfers_status(const struct ox_transfers *transfers);
/* Waits until nothing of the group is in flight; a failure is kept. */
void ox_transfers_wait(struct ox_transfers *transfers, uint32_t group);
/* Waits until nothing is in flight; returns the first failure and forgets it. */
OX_MUST enum ox_status ox_transfers_drain(struct ox_transfers *transfers);

#ifdef __cplusplus
}
#endif
#endif
