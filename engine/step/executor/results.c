/* What a step has done: bytes over links, and seconds of lanes, from counters at its beginning and now. */
#include "engine/step/executor/executor.h"
#include "engine/step/link/link.h"

#include <string.h>

static void read_traffic(const struct ox_rank *rank, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]) {
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            out[link][kind] = __atomic_load_n(&rank->traffic.crossed[link][kind], __ATOMIC_SEQ_CST);
        }
    }
}

/* How long calls have waited for other ranks since the rank was opened. */
static uint64_t peer_wait_ns(const struct ox_rank *rank) {
    uint64_t wait_ns = 0;
    for (int axis = -1; axis < OX_AXIS_COUNT && rank->comm != NULL; axis++) { /* with all, and with each group */
        for (int call = 0; call < OX_COMM_CALL_COUNT && (axis < 0 || ox_link_has_group(rank, axis)); call++) {
            struct ox_comm_stats stats;
            ox_comm_stats(axis < 0 ? rank->comm : rank->along[axis], (enum ox_comm_call)call, &stats);
            wait_ns += stats.wait_ns;
        }
    }
    return wait_ns;
}

static void lane_stats(const struct ox_rank *rank, uint32_t lane, struct ox_lane_stats *out) {
    *out = (struct ox_lane_stats){0};
    if (rank->lanes[lane] != NULL) {
        ox_lane_stats(rank->lanes[lane], out);
    }
}

void ox_rank_begin_counting(struct ox_rank *rank) {
    read_traffic(rank, rank->before.traffic);
    for (uint32_t i = 0; i < rank->lane_count; i++) {
        lane_stats(rank, i, &rank->before.lanes[i]);
    }
    rank->before.peer_wait_ns = peer_wait_ns(rank);
}

void ox_rank_add_traffic(const struct ox_rank *rank, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]) {
    uint64_t now[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    read_traffic(rank, now);
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            out[link][kind] += now[link][kind] - rank->before.traffic[link][kind];
        }
    }
}

void ox_rank_times(const struct ox_rank *rank, struct ox_rank_times *out) {
    const struct ox_lane_stats *const before = &rank->before.lanes[OX_LANE_COMPUTE];
    struct ox_lane_stats now;
    ox_lane_stats(rank->lanes[OX_LANE_COMPUTE], &now);
    *out = (struct ox_rank_times){.micro_batches = rank->config.micro_batches,
                                  .busy_seconds = (double)(now.busy_ns - before->busy_ns) * 1e-9,
                                  .wait_seconds = (double)(now.wait_ns - before->wait_ns) * 1e-9,
                                  .host_calls = rank->step.link_calls[0],
                                  .device_calls = rank->step.link_calls[1],
                                  .peer_wait_seconds =
                                      (double)(peer_wait_ns(rank) - rank->before.peer_wait_ns) * 1e-9};
}

void ox_rank_add_result(struct ox_rank *rank, struct ox_step_result *out) {
    uint64_t planned[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    struct ox_rank_traffic *const traffic = &rank->traffic;
    for (uint32_t i = 0; i < rank->lane_count; i++) {
        struct ox_lane_stats now;
        lane_stats(rank, i, &now);
        out->lane_busy_seconds[i] += (double)(now.busy_ns - rank->before.lanes[i].busy_ns) * 1e-9;
        out->lane_wait_seconds[i] += (double)(now.wait_ns - rank->before.lanes[i].wait_ns) * 1e-9;
    }
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        out->left_out[link] += rank->step.left_out[link];
    }
    ox_rank_planned(rank, planned);
    ox_rank_add_traffic(rank, out->traffic);
    ox_traffic_add(traffic->finished, out->traffic);
    ox_traffic_add(planned, out->planned);
    ox_traffic_add(traffic->finished_planned, out->planned);
    memset(traffic->finished, 0, sizeof traffic->finished);
    memset(traffic->finished_planned, 0, sizeof traffic->finished_planned);
}
