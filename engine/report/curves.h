/* What metrics.jsonl tells of a run over its steps, in bounded memory whatever the length of the run: where it has more
 * than OX_CURVE_POINTS_MAX steps, a point is the mean of several. */
#ifndef OX_ENGINE_CURVES_H
#define OX_ENGINE_CURVES_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_CURVE_POINTS_MAX = 600, OX_CURVE_EXPERTS_MAX = 1024 };

enum ox_curve {
    OX_CURVE_LOSS, OX_CURVE_GRAD_NORM, OX_CURVE_LEARNING_RATE, OX_CURVE_TOKENS_PER_SECOND, OX_CURVE_EXPERTS_IDLE,
    OX_CURVE_EXPERTS_BUSIEST, OX_CURVE_COUNT
};

/* Steps that succeed each other. `step`, `tokens` (trained so far) and `seconds` (of steps and evaluations so far, all
 * processes of the run together) are those after the last of them. A value that no step has is NaN. */
struct ox_curve_point {
    double step, tokens, seconds;
    double values[OX_CURVE_COUNT];
    uint32_t counts[OX_CURVE_COUNT]; /* steps that have the value */
};

struct ox_curve_eval {
    double step, tokens, seconds, loss;
};

struct ox_curves {
    struct ox_curve_point points[OX_CURVE_POINTS_MAX];
    struct ox_curve_eval evals[OX_CURVE_POINTS_MAX]; /* in the order of steps, the last one at the end */
    struct ox_curve_eval best;                       /* the first with the smallest loss; step 0 and NaN: none */
    uint32_t count, eval_count;
    uint64_t steps_each; /* steps of a point, but of the last one */
    uint64_t steps_in_last;
    uint64_t skipped_steps; /* whose loss or gradient was not finite */
    uint64_t early_steps, repeated_steps; /* with updates in backward; those that clipped, and made them again */
    uint64_t held_steps;                  /* all of whose updates waited for the next forward */
    double steps_per_epoch; /* 0: not known */
    double expert_tokens[OX_CURVE_EXPERTS_MAX]; /* of a mixture: by expert over all layers, of the last step read */
    uint32_t expert_count;                      /* 0: no mixture, or one with more experts than that */
    bool ended;             /* the last line is that of the end of a process */
    double max_steps;       /* at which the run ends, by that line; NaN: it does not say */
};

/* Whether a process trains in a run's folder, as its lock says; UNKNOWN where the file system has none. Asking holds
 * the lock for a moment, which a start waits for. Ask before reading: what is free writes no more. */
enum ox_run_lock { OX_RUN_UNKNOWN, OX_RUN_FREE, OX_RUN_HELD };
enum ox_run_lock ox_run_lock_of(const char *folder);

/* The name of a value in metrics.jsonl, as "grad_norm". */
const char *ox_curve_name(enum ox_curve curve);

/* Reads <folder>/metrics.jsonl; `folder` may be a file of a run's folder, too. Other lines are skipped.
 * OX_E_CONFIG: there is no such file. free() the result. */
OX_MUST enum ox_status ox_curves_read(const char *folder, struct ox_curves **out);

#ifdef __cplusplus
}
#endif
#endif
