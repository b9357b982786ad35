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
    const struct ox_engine_config *config; /* with its machine */
    const struct ox_engine_plan *plan;
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

/* Simulates the step of `input` and returns the simulator with the times of each task, which the caller closes. */
OX_MUST enum ox_status ox_predict_tasks(const struct ox_predict_input *input, struct ox_sim **out);

enum { OX_PREDICTION_TEXT_BYTES = 6144 };
/* Writes the prediction as a few lines for users. */
void ox_prediction_text(const struct ox_prediction *prediction, uint64_t tokens, char *text);

#ifdef __cplusplus
}
#endif
#endif
