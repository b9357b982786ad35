/* Wires between processes that are all this one: messages and transfers through memory, each late by a random time. */
#ifndef OX_TESTS_COMM_HUB_H
#define OX_TESTS_COMM_HUB_H

#include "kernels/comm/comm_wire.h"

struct comm_hub;

/* Opens `process_count` wires, which together own the hub. `delay_ns`: at most, for each message and transfer. */
struct comm_hub *comm_hub_open(uint32_t process_count, uint64_t seed, uint64_t delay_ns, struct ox_wire **wires);
/* The process has ended: its messages no longer leave, and the others learn so. If the test lets it go on, all others
 * have ended for it. */
void comm_hub_lose(struct comm_hub *hub, uint32_t process);
/* The process is stopped: no message leaves it or is taken, and nobody is told. */
void comm_hub_stop(struct comm_hub *hub, uint32_t process);

#endif
