/* Declarations that the files of this folder share; no other folder includes this. */
#ifndef OX_OFFLOAD_PLAN_INTERNAL_H
#define OX_OFFLOAD_PLAN_INTERNAL_H

#include "base/assert.h"
#include "offload/plan/plan.h"
#include "offload/plan/rules.h"
#include "offload/plan/schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Per buffer while building: the tasks that used it last, from which the next use gets its dependencies. */
struct ox_buf_track {
    uint32_t written_by;                 /* 1 + task index; 0 = not written yet               */
    uint32_t read_by[OX_LANE_COUNT];     /* 1 + task index, since that write                  */
    uint32_t used_by[OX_LANE_COUNT];     /* 1 + task index of the last use of any role        */
    uint8_t written_lane;                /* lane of that task                                 */
};

/* How a micro-batch is summed (offload/plan/sums.h), and how many slots are occupied before it. */
struct ox_mb_sum {
    uint32_t slot, folds, occupied;
    bool begins;
};

/* A part of an arena, and the buffer that has it or had it last; neighbours are linked. Adjacent free segments form a
 * run: its first and last segment point to each other, and runs are linked by their first segments. */
struct ox_segment {
    uint64_t begin, end;
    uint32_t buf_idx;
    uint32_t prev, next;
    uint32_t run_other; /* at each end of a run: the other end; OX_NONE = in use */
    uint32_t run_prev, run_next;
};

/* A buffer that gets its offset by size (offload/plan/pack.c). It has its space from one event of its arena to
 * another. */
struct ox_pack_item {
    uint64_t bytes, begin;
    uint32_t first, freed, buf_idx;
    uint32_t size_class, rank;
    uint32_t next; /* of those placed: 1 + the next one that begins and lives alike; 0: none */
};

/* What was worked out before about an arena whose buffers begin and end to live in one order (offload/plan/lives.c):
 * where it ends with offsets by time, by size as measured, and by size as it is then packed, in which way. */
enum { OX_ARENAS_KNOWN = 2048 };
struct ox_arena_known {
    uint64_t key, end, measured_end, packed_end;
    uint64_t enough; /* for which that way was looked for */
    uint8_t way;
    bool timed, measured, packed; /* which of these ends are known */
};

/* What arrives from another rank of the pipeline: the input of a stage, or its gradient, or what the head's rank has
 * summed of a gradient. */
enum ox_build_arrives { OX_ARRIVES_ACT, OX_ARRIVES_DX, OX_ARRIVES_GRAD };
struct ox_build_arrival {
    uint32_t stage_idx, mb_idx;
    enum ox_build_arrives what;
    uint32_t nth; /* GRAD: of which of the head's stage units */
};

/* Where host memory has the rows of a visit's stages that may have none: the buffer, 1 + the task after which it does
 * (0: it does not), and the micro-batch behind the last. */
struct ox_build_routes {
    uint32_t buf_idx, task, mb_past;
};

/* Scratch of the builder, allocated with the plan. */
struct ox_plan_scratch {
    struct ox_buf_track *tracks; /* buf_cap */
    /* Lives of the buffers that get their place by them: those in an arena that are not resident. */
    uint32_t *begun, begun_count; /* these buffers, in the order of their first use */
    uint32_t *ends, *next_end;    /* per task, and per buffer: the first and the next one that ends with a task */
    uint8_t *last_use;            /* per buffer: its use in the last task that has it */
    bool *turns;                  /* per buffer: it keeps its space behind that task (offload/plan/lives.c) */
    uint32_t *nth;                /* per buffer: how many of its arena began before it */
    /* Per arena, in order: 2 x buffer where it takes its space, and 1 more where it gives it back. */
    uint32_t *events[OX_TIER_NVME], event_count[OX_TIER_NVME];
    struct ox_arena_known *known[OX_TIER_NVME]; /* OX_ARENAS_KNOWN, by key */
    struct ox_mb_sum *mb_sums; /* micro_batches + 1 */
    struct ox_segment *segments; /* buf_cap + 2: each buffer adds at most one */
    uint32_t *segment_of; /* per buffer: its place in the arena while it lives, or OX_NONE */
    uint64_t *packed;     /* per buffer: its offset behind the resident part, where its arena is packed; then room for
                             two addresses of each buffer */
    struct ox_pack_item *items; /* buf_cap */
    uint32_t *heads;            /* 2 x buf_cap + OX_PACK_HEADS_MORE: lists of items, then who had a part last */
    uint32_t *weights_home, *state_home, *replaced; /* per unit: resident buffers, or OX_NONE */
    uint32_t *grad_home, *grad_spool;    /* per gradient */
    uint32_t *residual;   /* per gradient: what its exchanges of low rank keep, or OX_NONE */
    uint32_t *grad_live;  /* per gradient: its accumulator              */
    uint32_t *grad_speculative; /* per gradient: finished, for an optimizer in backward or on the device */
    uint32_t *partials;   /* per unit: square sums of its gradient, on the device */
    bool *keeps;          /* per stage: a block that keeps what its backward needs */
    uint32_t *fetched;    /* per unit: planes that were read from the drives last, where compute takes them */
    uint32_t *gathered;   /* per unit: the whole unit, gathered last or to be gathered there, or OX_NONE */
    uint32_t (*weights_at)[OX_STAGE_UNITS_MAX]; /* per visit: planes of its stage units where compute reads */
    uint32_t *act;        /* (stage_count, micro_batches): activation checkpoints */
    uint32_t *act_spool;  /* (stage_count, micro_batches): those on NVMe          */
    uint32_t *kept;       /* (stage_count, micro_batches): kept activations       */
    struct ox_build_routes *routes; /* (stage_count, micro_batches): by the first micro-batch of the visit */
    uint32_t *x, *dx, *batch; /* per micro-batch                       */
    struct ox_pipe_room room;
    struct ox_pipe_visit *visits; /* visit_cap: those of the rank; of all coordinates while times are followed */
    uint32_t visit_cap;
    bool of_pipe;
    /* A pipeline's rank follows when stages begin and end, lists what arrives in order, and notes for each (stage,
     * micro-batch) the buffer in which it did. */
    struct ox_pipe_times times;
    struct ox_build_arrival *arrivals;
    uint32_t *arrived, *arrived_dx;
};

struct ox_plan_full {
    struct ox_plan plan; /* first: the public part */
    struct ox_plan_scratch scratch; /* a shrunk plan has only the homes of weights, state and gradients */
    uint64_t memory_bytes;
};

/* Whether lo travels to compute with the unit's hi. */
static inline bool ox_plan_lo_travels(const struct ox_plan_input *input, uint32_t unit_idx) {
    return input->model.precision->lo_travels &&
           (input->model.eval_only ? !ox_shard_is_narrow(&input->table->shards[unit_idx])
                                   : input->table->shards[unit_idx].sizes.lo_per_group > 0);
}

/* Notes where buffers begin and end to live, from a task whose uses are complete: while it is made, because a list is
 * many times as large as what is noted. */
void ox_plan_follow_lives(struct ox_plan_full *full, uint32_t task_idx, const struct ox_placement *placement);

/* What an arena's buffers need at a time. */
struct ox_arena_lives {
    uint64_t key;       /* a hash of the order in which they take and give back their space, and of their sizes */
    uint64_t live_most; /* bytes in use at most */
};
/* Lists the events of each arena, once all tasks are followed, and notes the task at which it is fullest. */
void ox_plan_list_lives(struct ox_plan_full *full, struct ox_arena_lives out[OX_TIER_NVME]);

/* Turns uses into dependencies, gives every buffer its offset, and adds the dependencies that reused space
 * requires. Fills peak_bytes. MEASURED: peaks alone, and those no better than by time where that is far below the
 * budget, or where no offsets would fit it. ORDERED: dependencies as well, by the offsets that were measured. */
enum ox_plan_finished { OX_PLAN_MEASURED, OX_PLAN_ORDERED, OX_PLAN_COMPLETE };
void ox_plan_finish(struct ox_plan_full *full, const struct ox_plan_budget *budget, enum ox_plan_finished finished);

/* Gives the buffers of a tier offsets by size, in scratch.packed unless MEASURED, and returns where they end; `most`
 * if that is not less. It tries other ways as long as that is more than `enough`, where the plan is COMPLETE: else
 * it finds at most more. */
enum { OX_PACK_HEADS_MORE = 128 };
uint64_t ox_plan_pack(struct ox_plan_full *full, enum ox_tier tier, struct ox_arena_known *known, uint64_t enough,
                      uint64_t most, enum ox_plan_finished finished);

/* Sorts records of one or two numbers by the first of them: few, or nearly in order or against it, for which a call for
 * each comparison would take most of the time. Steps shrink by 2.2, after Gonnet, which takes half as long as halving
 * them. `width` is a constant. */
static inline void ox_plan_sort(uint64_t *records, uint32_t count, uint32_t width) {
    for (uint32_t gap = count; gap > 1;) {
        gap = gap < 3 ? 1 : gap * 5 / 11;
        for (uint32_t i = gap; i < count; i++) {
            const uint64_t first = records[width * i], last = records[width * i + width - 1];
            uint32_t k = i;
            for (; k >= gap && records[width * (k - gap)] > first; k -= gap) {
                records[width * k] = records[width * (k - gap)];
                records[width * k + width - 1] = records[width * (k - gap) + width - 1];
            }
            records[width * k] = first;
            records[width * k + width - 1] = last;
        }
    }
}

#ifdef __cplusplus
}
#endif
#endif
