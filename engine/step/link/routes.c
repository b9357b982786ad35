/* How many rows each member has for the experts of which other: the thread that exchanges them reads it from what all
 * have gathered. On a GPU that is device memory, of which it takes a copy. */
#include "engine/step/link/link.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <stdlib.h>

enum { PAGE_BYTES = 4096 };

/* Offsets of one member's rows, by expert, of those that a stage has: at most all, and where the last one ends. */
static uint64_t member_bytes(const struct ox_rank *rank) {
    return (rank->config.model->config.mixture.router.experts + 1) * sizeof(int32_t);
}

enum ox_status ox_link_open_routes(struct ox_rank *rank) {
    const uint32_t members = ox_plan_group(&rank->plan->input, OX_AXIS_EXPERT).count;
    if (ox_engine_on_cpu(&rank->config) || members <= 1) {
        return OX_OK;
    }
    rank->routes_bytes = ox_align_up(members * member_bytes(rank), PAGE_BYTES);
    rank->routes = aligned_alloc(PAGE_BYTES, rank->routes_bytes);
    if (rank->routes == NULL) {
        return ox_fail(OX_E_NOMEM, "engine: no memory for the routes of experts");
    }
    enum ox_status status = ox_device_host_pin(rank->device, rank->routes, rank->routes_bytes);
    if (status != OX_OK) {
        free(rank->routes);
        rank->routes = NULL;
        return status;
    }
    return ox_device_lane_open(rank->device, "link.routes", &rank->routes_lane);
}

void ox_link_close_routes(struct ox_rank *rank) {
    ox_lane_close(&rank->routes_lane);
    if (rank->routes != NULL) {
        const enum ox_status status = ox_device_host_unpin(rank->device, rank->routes, rank->routes_bytes);
        (void)status; /* the device is about to be closed */
        free(rank->routes);
        rank->routes = NULL;
    }
}

enum ox_status ox_link_read_routes(struct ox_rank *rank, const struct ox_plan_rounds *rounds, uint32_t members,
                                   const unsigned char *room, struct ox_link_routes *out) {
    const uint32_t begin = rank->shape.features.first * rounds->apart + rounds->first;
    const unsigned char *const first = room + rounds->routes + rounds->offsets + begin * sizeof(int32_t);
    *out = (struct ox_link_routes){.at = first, .apart = rounds->routes_bytes};
    if (ox_engine_on_cpu(&rank->config)) {
        return OX_OK;
    }
    *out = (struct ox_link_routes){.at = rank->routes, .apart = member_bytes(rank)};
    struct ox_mark done = {0};
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < members && status == OX_OK; i++) {
        const struct ox_copy copy = {.target = rank->routes + i * out->apart,
                                     .source = first + i * rounds->routes_bytes,
                                     .bytes = ((rounds->ranges - 1) * rounds->apart + members * rounds->each + 1) *
                                              sizeof(int32_t)};
        OX_ASSERT(copy.bytes <= out->apart);
        status = ox_device_lane_copy(rank->device, rank->routes_lane, &copy, &done);
    }
    OX_THEN(status, ox_mark_join(done));
    if (status != OX_OK) {
        struct ox_first_failure failure = {0};
        ox_first_failure_note(&failure, status);
        ox_first_failure_note(&failure, ox_lane_drain(rank->routes_lane));
        ox_lane_reset(rank->routes_lane);
        status = ox_first_failure_result(&failure);
    }
    return status;
}
