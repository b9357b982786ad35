/* What a plan's steps will take: the simulator's answer for a machine, beside the floor that no order of work can go
 * below. The machine is that of a profile, or without one a nominal machine, which is said wherever it is shown. */
#ifndef OX_ENGINE_PREDICT_H
#define OX_ENGINE_PREDICT_H

#include "engine/step/engine.h"
#include "offload/sim/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The machine of a profile, or without one ("") a nominal one; with one drive for each of the run's. */
OX_MUST enum ox_status ox_predict_machine(const char *profile, uint32_t drive_count, struct ox_machine *out);

struct ox_predict_input {
    const struct ox_engine_config *config; /* with its machine */
    const struct ox_engine_plan *plan;
    bool profiled; /* the machine is that of a profile */
    uint64_t persist_steps; /* every so many, where the plan leaves the choice; 0: as it pays */
};

struct ox_prediction {
    bool profiled;
    const struct ox_machine *machine; /* the configuration's */
    struct ox_sim_result step; /* as most are */
    uint64_t persist_steps;    /* 1: all are committed */
    double persist_seconds;    /* of a step that commits, where not all do */
    double mean_seconds;       /* of a step, those that commit and those that do not */
    double eval_seconds;       /* of an evaluation of as many tokens; not a number where there is no plan of it */
    double eval_after_step_seconds; /* the first one after a step, with the update of that step where steps overlap */
    double floor_seconds;      /* not a number where the formulas have no answer */
    double hidden_tokens;      /* of a step, from which the floor is compute's; infinite when millions are too few */
};

OX_MUST enum ox_status ox_predict(const struct ox_predict_input *input, struct ox_prediction *out);

/* Simulates the step of `input` and hands over the simulator, which has the times of each task; close it. */
OX_MUST enum ox_status ox_predict_tasks(const struct ox_predict_input *input, struct ox_sim **out);

enum { OX_PREDICTION_TEXT_BYTES = 1280 };
/* A few lines for people. */
void ox_prediction_text(const struct ox_prediction *prediction, uint64_t tokens, char *text);

#ifdef __cplusplus
}
#endif
#endif
