/* The schedule of a pipeline: the owner map, the sweeps of each coordinate, and when what one coordinate makes can
 * reach another. The functions are pure, but for those that take memory and give it back. The builder walks sweeps and
 * knows no schedule by name. */
#ifndef OX_OFFLOAD_SCHEDULE_H
#define OX_OFFLOAD_SCHEDULE_H

#include "offload/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Micro-batches [mb_first, mb_past) pass the rank's own stages [stage_first, stage_past), all of them one stage before
 * the next: in ascending order of stages forward, in descending order backward. Stages are numbered among the own. */
struct ox_sweep {
    uint32_t mb_first, mb_past, stage_first, stage_past;
    bool backward;
};

enum { OX_PIPE_MAX = 64 }; /* coordinates */

/* Runs of a coordinate are own stages that follow each other in the model: [run_first[i], run_first[i + 1]) of the
 * own. */
struct ox_pipe_shape {
    enum ox_pipe_schedule schedule;
    uint32_t pipe, at; /* coordinates, and this one */
    uint32_t micro_batches, tiles;
    uint32_t run_count;
    const uint32_t *run_first; /* run_count + 1 */
    bool train; /* else forward alone */
    bool pools; /* no backward may begin before every forward has ended */
};
/* Writes the sweeps of a coordinate and returns how many there are: at most two for each micro-batch and run. */
uint32_t ox_pipe_sweeps(const struct ox_pipe_shape *shape, struct ox_sweep *out);
/* How many micro-batches pass a run before the next one, where INTERLEAVED; 0: they do not divide evenly. */
uint32_t ox_pipe_group(uint32_t pipe, uint32_t micro_batches);

/* What a coordinate does with some micro-batches at one of its stages. */
struct ox_pipe_visit {
    uint32_t stage_idx, mb_first, mb_past;
    bool backward;
};
/* Memory for sweeps and runs. */
struct ox_pipe_room {
    struct ox_sweep *sweeps;  /* two for each micro-batch and stage of the model */
    uint32_t *stages, *runs;  /* one for each stage of the model, and one more */
};
/* Writes the visits of a coordinate, in order, and returns how many there are: at most two for each micro-batch and
 * stage. */
uint32_t ox_pipe_visits(const struct ox_plan_input *input, uint32_t at, bool train, const struct ox_pipe_room *room,
                        struct ox_pipe_visit *out);

/* Operations of a pass of a stage, and the most of any. */
double ox_pipe_flops(const struct ox_plan_work *work);
double ox_pipe_most_flops(const struct ox_plan_model *model);

/* When each micro-batch begins at each stage and ends there, if every coordinate works without waiting for more than
 * what it computes with, and transfers take no time. Times are in parts of a block's work; ox_pipe_entry
 * numbers them. */
struct ox_pipe_times {
    uint64_t *begin, *end;
    uint64_t last; /* the end of the step */
    uint64_t idle; /* sum over coordinates until then */
};
static inline uint64_t ox_pipe_entry(const struct ox_plan_model *model, uint32_t stage_idx, uint32_t mb_idx,
                                     bool backward) {
    return ((uint64_t)(backward ? model->stage_count : 0) + stage_idx) * model->micro_batches + mb_idx;
}
/* False: coordinates wait for each other in a circle. `visits` has room for those of all coordinates. */
bool ox_pipe_time(const struct ox_plan_input *input, bool train, const struct ox_pipe_room *room,
                  struct ox_pipe_visit *visits, struct ox_pipe_times *out);

/* Memory in which schedules of a model are followed apart from a plan. */
struct ox_pipe_trial {
    struct ox_pipe_room room;
    struct ox_pipe_visit *visits;
    struct ox_pipe_times times;
};
/* OX_E_NOMEM; close the trial in any case. */
OX_MUST enum ox_status ox_pipe_trial_open(const struct ox_plan_model *model, struct ox_pipe_trial *out);
void ox_pipe_trial_close(struct ox_pipe_trial *trial);

/* Writes an owner map that divides the work evenly: the coordinate of each unit. The model has its micro-batches. */
OX_MUST enum ox_status ox_pipe_owners(const struct ox_plan_model *model, uint32_t pipe, enum ox_pipe_schedule schedule,
                                      uint32_t chunks, uint32_t *out);
/* Refuses what no pipeline can do, with the way out: OX_E_CONFIG. */
OX_MUST enum ox_status ox_pipe_check(const struct ox_plan_model *model, const struct ox_plan_ranks *ranks,
                                     const struct ox_placement *placement);

#ifdef __cplusplus
}
#endif
#endif
