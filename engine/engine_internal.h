/* The engine's inside, shared by engine.c, planes.c, step.c, host_tasks.c and optim.c. */
#ifndef OX_ENGINE_ENGINE_INTERNAL_H
#define OX_ENGINE_ENGINE_INTERNAL_H

#include "engine/block.h"
#include "engine/engine.h"
#include "engine/optim_stream.h"
#include "engine/tracing.h"
#include "offload/tier.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_RUN_AHEAD_TASKS = 64, OX_CHAOS_NS_MAX = 300000 };

/* The planes of a unit that live in host memory; NULL where they do not. `weights_lo`: the copy of lo that
 * lies behind hi when the state is elsewhere. `state`: of all its elements in one piece. */
struct ox_resident {
    uint16_t *hi, *weights_lo;
    void *state;
};

/* What the step's tasks share; written by the issuing thread before, by the NORM task within the step. */
struct ox_step_state {
    const struct ox_step_input *input;
    const struct ox_plan *plan;
    float loss_scale;
    double loss, grad_norm, grad_scale;
    bool finite;
    struct ox_adam_hyper hyper;
};

struct ox_engine {
    struct ox_engine_config config;
    struct ox_engine_plan *plan;
    struct ox_shape shape;
    struct ox_device *device;
    struct ox_ops ops;
    struct ox_tiers tiers;
    struct ox_lane *lanes[OX_LANE_COUNT];
    struct ox_pool *optim_pool, *reduce_pool;
    struct ox_store *store;
    struct ox_store_port *read_port, *write_port; /* one per lane that transfers */
    struct ox_store_port *plane_port;             /* between steps */
    struct ox_stream *stream;                     /* NULL without a store */
    struct ox_mark *marks; /* per task of the larger plan */
    struct ox_tracing *tracing; /* NULL: nothing is recorded */
    bool loading;          /* between load_begin and load_commit: chunks go to the store too */
    uint64_t batch_bytes;
    struct ox_step_state step;
    float *tee_values; /* of a chunk, behind the stream's slots */
    struct ox_tee tee; /* chunk is NULL: none */
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]; /* by atomic access alone: all lanes count */
};

/* A task for a host lane; the lane's owner is the engine. */
struct ox_host_task {
    const struct ox_plan *plan;
    uint32_t task_idx;
};
enum ox_status ox_host_task_run(void *engine, const void *host_task);

/* Adds to the counters of what crossed a link; host-device copies of unified memory cross none. */
void ox_engine_count(struct ox_engine *engine, enum ox_link link, enum ox_traffic_kind kind, uint64_t bytes);

/* Host-resident planes of a unit. */
struct ox_resident ox_engine_resident(const struct ox_engine *engine, uint32_t unit_idx);

/* Bytes of an element's lo, and where the last plane of a layout ends: what is behind it is padding. */
static inline uint64_t ox_state_lo_width(struct ox_state_format format) {
    return format.moments == OX_MOMENTS_Q8 ? sizeof(uint8_t) : sizeof(uint16_t);
}
static inline uint64_t ox_state_end(struct ox_state_format format, const struct ox_state_layout *layout) {
    const uint64_t scales = layout->v_offset - layout->m_scale_offset;
    return layout->v_scale_offset + (ox_optim_has_v(format.kind) ? scales : 0);
}

/* A chunk's elements in a unit's host-resident state, to or from a state of the chunk alone. */
enum ox_state_way { OX_STATE_TO_CHUNK, OX_STATE_TO_UNIT };
void ox_state_copy(const struct ox_engine *engine, uint32_t unit_idx, const struct ox_chunk *chunk, void *chunk_state,
                   enum ox_state_way way);

/* The optimizer's stream, while the store is open. */
OX_MUST enum ox_status ox_optim_open(struct ox_engine *engine);
/* Updates one unit, chunk by chunk; its writes may be in flight when it returns, and reads of the unit after it. */
OX_MUST enum ox_status ox_optim_run(struct ox_engine *engine, const struct ox_plan *plan, const struct ox_task *task);
/* Waits for all transfers of the stream and empties it; the first failure wins. */
OX_MUST enum ox_status ox_optim_drain(struct ox_engine *engine);
/* The stream's slots in the plan's stage buffer. */
void ox_optim_set_slots(struct ox_engine *engine, const struct ox_plan *plan, const struct ox_task *task);

/* Pieces of a spooled gradient: the chunk grid of its unit. */
struct ox_grad_piece {
    uint64_t first, count;
};
uint32_t ox_grad_piece_count(const struct ox_engine *engine, uint32_t unit_idx);
struct ox_grad_piece ox_grad_piece(const struct ox_engine *engine, uint32_t unit_idx, uint32_t piece_idx);
/* Elements of a gradient unit (unit_count stands for the head's use of tied weights). */
uint64_t ox_grad_elems(const struct ox_engine *engine, uint32_t unit_idx);

#ifdef __cplusplus
}
#endif
#endif
