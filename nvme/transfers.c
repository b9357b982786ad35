#include "nvme/transfers.h"

#include "nvme/store_impl.h"

static const uint64_t FOREVER = UINT64_MAX;

bool ox_transfers_take(struct ox_transfers *transfers, uint64_t max_ns, uint32_t *group) {
    uint64_t tag = 0;
    if (max_ns != FOREVER && !ox_store_wait(transfers->port, max_ns)) {
        return false;
    }
    ox_first_failure_note(&transfers->first, ox_store_reap(transfers->port, &tag));
    OX_ASSERT(tag < OX_TRANSFER_GROUPS_MAX && transfers->in_flight[tag] > 0);
    transfers->in_flight[tag]--;
    *group = (uint32_t)tag;
    return true;
}

enum ox_status ox_transfers_status(const struct ox_transfers *transfers) {
    return ox_first_failure_result(&transfers->first);
}

/* Submits reads to the kernel together, after the last is queued, but each write at once, because hashing the next one
 * takes time. */
enum ox_status ox_transfers_submit(struct ox_transfers *transfers, uint32_t group, const struct ox_store_op *ops,
                                   uint32_t op_count) {
    uint32_t taken = 0;
    OX_ASSERT(group < OX_TRANSFER_GROUPS_MAX);
    for (uint32_t i = 0; i < op_count && transfers->first.status == OX_OK; i++) {
        struct ox_store_op op = ops[i];
        op.tag = group;
        while (ox_store_in_flight(transfers->port) == OX_STORE_OPS_MAX) {
            ox_transfers_take(transfers, FOREVER, &taken);
        }
        if (transfers->first.status == OX_OK) {
            const enum ox_status status = ox_store_queue(transfers->port, &op);
            ox_first_failure_note(&transfers->first, status);
            transfers->in_flight[group] += status == OX_OK;
        }
        if (op.kind == OX_STORE_WRITE || op.kind == OX_STORE_SPOOL_WRITE) {
            ox_store_kick(transfers->port);
        }
    }
    ox_store_kick(transfers->port);
    return ox_transfers_status(transfers);
}

void ox_transfers_wait(struct ox_transfers *transfers, uint32_t group) {
    uint32_t taken = 0;
    OX_ASSERT(group < OX_TRANSFER_GROUPS_MAX);
    while (transfers->in_flight[group] > 0) {
        ox_transfers_take(transfers, FOREVER, &taken);
    }
}

enum ox_status ox_transfers_drain(struct ox_transfers *transfers) {
    uint32_t taken = 0;
    while (ox_store_in_flight(transfers->port) > 0) {
        ox_transfers_take(transfers, FOREVER, &taken);
    }
    const enum ox_status status = ox_transfers_status(transfers);
    transfers->first = (struct ox_first_failure){0};
    return status;
}

enum ox_status ox_store_run(struct ox_store_port *port, const struct ox_store_op *ops, uint32_t op_count) {
    struct ox_transfers transfers = {.port = port};
    struct ox_first_failure first = {0};
    OX_ASSERT(ox_store_in_flight(port) == 0);
    ox_first_failure_note(&first, ox_transfers_submit(&transfers, 0, ops, op_count));
    ox_first_failure_note(&first, ox_transfers_drain(&transfers));
    return ox_first_failure_result(&first);
}
