/* A wire between processes: ordered messages and transfers, neither of which blocks. MPI is one (kernels/comm/mpi);
 * tests have one within a process. All calls but the opening come from one thread at a time. */
#ifndef OX_KERNELS_COMM_COMM_WIRE_H
#define OX_KERNELS_COMM_COMM_WIRE_H

#include "kernels/comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_WIRE_MESSAGE_BYTES = OX_COMM_MEET_BYTES + 1024, OX_WIRE_NAME_BYTES = 128 };

struct ox_wire;
struct ox_wire_request;

/* Bytes that go from one process to another, or come from it. Transfers of one tag between two processes match in the
 * order in which they begin; sizes are equal on both sides. */
struct ox_wire_transfer {
    uint32_t process;
    uint32_t tag; /* below 2^15 */
    bool sends;
    void *at;
    uint64_t bytes;
};

/* A sum of a vector of each process, piece p of which goes to process p; pieces lie one behind another. In whatever
 * order the wire adds. All processes begin their sums in the same order. */
struct ox_wire_sum {
    const float *source;
    float *target;          /* this process's piece, apart from `source` */
    const uint64_t *counts; /* elements of each piece, below 2^31 in all */
};

struct ox_wire_ops {
    /* Sends a copy of a message of up to OX_WIRE_MESSAGE_BYTES. */
    enum ox_status (*post)(struct ox_wire *, uint32_t process, const void *message, uint32_t bytes);
    /* Takes the next message that has come, of *bytes bytes; 0: none has. Moves transfers and messages along. */
    enum ox_status (*poll)(struct ox_wire *, uint32_t *process, void *message, uint32_t *bytes);
    /* True while messages that were posted have not left. */
    bool (*sending)(struct ox_wire *);
    enum ox_status (*begin)(struct ox_wire *, const struct ox_wire_transfer *, struct ox_wire_request **out);
    /* Its memory is the wire's until the request is done, and for ever if it is dropped. */
    enum ox_status (*sum)(struct ox_wire *, const struct ox_wire_sum *, struct ox_wire_request **out);
    /* Sets *done, and then has freed the request. */
    enum ox_status (*test)(struct ox_wire *, struct ox_wire_request *, bool *done);
    /* Gives a request up whose process is lost. */
    void (*drop)(struct ox_wire *, struct ox_wire_request *);
    /* True when the process is known to have ended. */
    bool (*lost)(struct ox_wire *, uint32_t process);
    /* Names a process in messages: "process 1 (pid 4242 on box7)". */
    const char *(*name)(struct ox_wire *, uint32_t process);
    /* `clean`: all processes close, and none has ended before. */
    void (*close)(struct ox_wire *, bool clean);
};

struct ox_wire {
    const struct ox_wire_ops *ops;
    const char *label; /* "mpi"; static storage */
    uint32_t process, process_count;
};

/* Opens the endpoints of this process's ranks: config->count of them, as many as every other process has. Rank r lives
 * in process r / config->count. Takes the wire over, also on failure. */
OX_MUST enum ox_status ox_comm_wire_open(struct ox_wire *wire, const struct ox_comm_local_config *config,
                                         struct ox_comm **out);

#ifdef __cplusplus
}
#endif
#endif
