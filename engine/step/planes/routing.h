/* What the routers of a whole step, over all micro-batches and ranks, say about experts: which no token has chosen, so
 * that their update is left out, and whose bias of the choice moves. A fact of the step: it does not depend on
 * placement, tiles or ranks. */
#ifndef OX_ENGINE_STEP_ROUTING_H
#define OX_ENGINE_STEP_ROUTING_H

#include "engine/step/planes/planes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes room for it, where the configuration asks for either. */
OX_MUST enum ox_status ox_routing_open(struct ox_rank *rank);
void ox_routing_close(struct ox_rank *rank);
/* Adds up what the reports of all micro-batches have of loads (struct ox_route_load_layout, one mixture behind
 * another): `count` doubles from `first` on, in the order of micro-batches. `out` may be where the first report has
 * them. */
void ox_routing_loads(const struct ox_rank *rank, const double *reports, uint32_t first, uint32_t count, double *out);
/* Notes what the reports of all micro-batches say: before the step's updates begin. */
void ox_routing_decide(struct ox_rank *rank, const double *reports);
/* What the routers did in the last step, of all ranks; once after each. */
void ox_rank_report_routers(const struct ox_rank *rank, struct ox_router_report *out);
/* The step's update is pending: so is what it does to experts. */
void ox_routing_keep(struct ox_rank *rank);
/* What is noted of the step that runs, or of the one whose update is pending; NULL: nothing. */
const uint8_t *ox_routing_of(const struct ox_rank *rank, bool pending);

/* A part of a role's range in which all experts are updated, or none is. */
struct ox_routed_part {
    struct ox_range range;
    bool idle;
};
/* Goes to the next part of where a walk is, the first after a *part of zeros; `routed`: of the step whose update it is,
 * NULL: nothing is noted. */
bool ox_routing_next(const struct ox_rank *rank, uint32_t unit_idx, const uint8_t *routed,
                     const struct ox_role_walk *walk, struct ox_routed_part *part);

/* How some biases of a unit move: those from the unit's element `first` on, where the caller lets `shift.plane` point.
 * `next` is the expert behind them. */
struct ox_routed_shift {
    uint64_t first;
    uint32_t next;
    struct ox_op_limbs_shift shift;
};
/* Goes to the next biases that lie within a range of the unit's elements, the first after an *at of zeros. */
bool ox_routing_shift(const struct ox_rank *rank, uint32_t unit_idx, const uint8_t *routed, struct ox_range within,
                      struct ox_routed_shift *at);

#ifdef __cplusplus
}
#endif
#endif
