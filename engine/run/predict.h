/* Predicts the time of a plan's steps: the simulator's answer for a machine, beside the lower bound for any order of
 * work. The machine comes from a profile, or was measured in short (engine/measure/measure.h); else it is nominal, and
 * every text that shows results says so. */
#ifndef OX_ENGINE_PREDICT_H
#define OX_ENGINE_PREDICT_H

#include "engine/measure/measure.h"
#include "engine/step/engine.h"
#include "offload/sim/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes the machine of a profile, or without one ("") a nominal machine, with as many drives as the run has. */
OX_MUST enum ox_status ox_predict_machine(const char *profile, uint32_t drive_count, struct ox_machine *out);

struct ox_predict_input {
    bool step_alone; /* nothing beside the step: no evaluation, no lower bound */
    const struct ox_engine_config *config; /* with its machine */
    const struct ox_engine_plan *plan; /* that of the first rank, with the others' */
    uint32_t rank; /* whose part of a step is wanted; of a pipeline one rank of each coordinate is simulated with it */
    bool profiled; /* the machine comes from a profile */
    const struct ox_measured *measured; /* the machine was measured in short; else NULL. Outlives the prediction */
    uint64_t persist_steps; /* commit every how many steps, if the plan leaves the choice; 0: as it pays */
};

struct ox_prediction {
    bool profiled; /* or measured */
    const struct ox_measured *measured; /* or NULL */
    const struct ox_machine *machine; /* the configuration's */
    struct ox_sim_result step; /* the usual step */
    uint64_t persist_steps;    /* every how many steps one commits; 1: all */
    double persist_seconds;    /* time of a step that commits, if not all do */
    double mean_seconds;       /* mean time of a step, over those that commit and those that do not */
    double held_seconds;       /* the usual step in the held order; NaN if no unit is updated in backward */
    double eval_seconds;       /* time of an evaluation of as many tokens; NaN if there is no plan for it */
    double
        eval_after_step_seconds; /* time of one right after a step, which carries that step's update if steps overlap */
    double floor_seconds;      /* lower bound of a step; NaN if the formulas have no answer */
    double hidden_tokens; /* tokens per step from which compute alone is the bound; infinite if millions are too few */
};

OX_MUST enum ox_status ox_predict(const struct ox_predict_input *input, struct ox_prediction *out);

/* Ranks whose step was simulated together, and the simulator of each with the times of its tasks. */
struct ox_predicted_tasks {
    uint32_t count, own; /* own: which is that of the input's rank */
    uint32_t ranks[OX_SIM_PIPE_MAX];
    struct ox_sim *sims[OX_SIM_PIPE_MAX];
};
/* Simulates the step of `input`, of a pipeline with one rank of each other coordinate. The caller closes `out`, in any
 * case. */
OX_MUST enum ox_status ox_predict_tasks(const struct ox_predict_input *input, struct ox_predicted_tasks *out);
void ox_predicted_tasks_close(struct ox_predicted_tasks *tasks);

enum { OX_PREDICTION_TEXT_BYTES = 6144 };
/* Writes the prediction as a few lines for users. */
void ox_prediction_text(const struct ox_prediction *prediction, uint64_t tokens, char *text);

/* ---- how often a state in memory is persisted: trainer_save.c ---- */

/* So rarely that it costs a small share of the time, and no rarer: pure functions of measured times. No bit of a result
 * depends on them. */
enum { OX_PERSIST_STEPS_MAX = 100, OX_PERSIST_TIMES = 7, OX_PERSIST_TIMES_LEAST = 3 };

/* The smallest interval, at most OX_PERSIST_STEPS_MAX steps of `seconds` each, of whose time `extra` seconds are at
 * most 2 %. */
uint64_t ox_persist_interval(double extra, double seconds);

/* The latest measured times; all zero at first. */
struct ox_persist_times {
    double seconds[OX_PERSIST_TIMES]; /* times of steps that persist nothing */
    double extra[OX_PERSIST_TIMES];   /* what steps that persist took beyond the median of the others */
    uint32_t seconds_count, extra_count; /* numbers noted so far; both lists are rings */
};
/* Notes the time of a step; `persisted`: a commit was written within it. */
void ox_persist_note(struct ox_persist_times *times, bool persisted, double seconds);
/* The interval by the medians; 2 steps while either list has fewer than OX_PERSIST_TIMES_LEAST times. */
uint64_t ox_persist_auto(const struct ox_persist_times *times);

/* Whether a commit every `steps` steps is to be told, when every `told` (0: none) was told last: at first, and where a
 * crash may lose twice as much as was said. */
bool ox_persist_is_news(uint64_t steps, uint64_t told);

#ifdef __cplusplus
}
#endif
#endif
