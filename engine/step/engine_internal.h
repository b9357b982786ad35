/* Shared by the files of the facade (averages.c, describe.c, engine.c, engine_store.c, plans.c, rank.c, residuals.c,
 * sketch.c): the ranks of a process as one. */
#ifndef OX_ENGINE_STEP_ENGINE_INTERNAL_H
#define OX_ENGINE_STEP_ENGINE_INTERNAL_H

#include "engine/step/rank/rank.h"

#include "base/pool.h"
#include "engine/step/team.h"

#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A rank of this process. */
struct ox_seat {
    struct ox_engine *engine;
    struct ox_rank *rank;
    struct ox_step_input input;
    struct ox_first_failure failure; /* of the last call */
};

struct ox_engine {
    struct ox_engine_config config;
    struct ox_engine_plan *plan;
    struct ox_store *store;  /* of the ranks of this process; NULL: none */
    struct ox_pool *threads; /* one for each seat; NULL with one */
    struct ox_tee tee;
    pthread_mutex_t tee_lock; /* one rank at a time calls it */
    bool averaged; /* memory has averages in the place of weights, which the last commit has */
    bool failed; /* since the last step that succeeded, so ranks may have to be made ready */
    uint64_t averaged_step; /* after which residuals were replaced by their mean; 0: none */
    bool store_lost; /* there was one, and after a failure it did not open again */
    uint32_t rank_total; /* of all processes */
    uint32_t rank_first; /* the rank of the first seat */
    struct ox_rank_times times[OX_COMM_RANKS_MAX]; /* of the last step, by rank */
    unsigned char *shares; /* room for what each process has done in a step */
    uint32_t seat_count;
    struct ox_seat seats[];
};

static inline struct ox_rank *ox_first_rank(const struct ox_engine *engine) {
    return engine->seats[0].rank;
}

/* ---- plans: describe.c, plans.c ---- */

/* What is known before a placement is chosen: the input and the table of the first rank. The caller closes *out. */
OX_MUST enum ox_status ox_engine_describe(const struct ox_engine_config *config, struct ox_engine_plan **out);
/* How many of the step's micro-batches the rank of the input has: those of its sum groups. */
uint32_t ox_plan_own_micro_batches(const struct ox_plan_input *input);

/* ---- opening and closing: rank.c ---- */

/* Reserves all that the rank's plans need. `config` has the rank's part of threads and micro-batches. `plan` and
 * `whole`, the table of whole units, outlive the rank. */
OX_MUST enum ox_status ox_rank_open(const struct ox_engine_config *config, const struct ox_engine_plan *plan,
                                    const struct ox_shard_table *whole, struct ox_rank **out);
void ox_rank_close(struct ox_rank **rank);
/* Opens the rank's ports and its optimizer's stream. The store outlives the rank. */
OX_MUST enum ox_status ox_rank_connect_store(struct ox_rank *rank, struct ox_store *store);
void ox_rank_disconnect_store(struct ox_rank *rank);
/* A rank of an engine, for tests. */
struct ox_rank *ox_engine_rank(const struct ox_engine *engine, uint32_t idx);

/* ---- all ranks of a process ---- */

/* What each rank does at once with the others. */
typedef enum ox_status ox_seat_fn(struct ox_seat *seat, void *context);

/* Lets the ranks of this process do this, and returns their first failure. */
OX_MUST enum ox_status ox_engine_here(struct ox_engine *engine, ox_seat_fn *fn, void *context);
/* Lets all ranks of all processes do this, and returns the same status on all of them: the first failure of any. */
OX_MUST enum ox_status ox_engine_all(struct ox_engine *engine, ox_seat_fn *fn, void *context, const char *what);

/* Whether the rank of a plan is one of those that have the first copy of the model. */
bool ox_rank_of_first_copy(const struct ox_plan_input *input);
/* Lists the matrices of all units that are trained, in the order of units, where copies exchange their gradients in low
 * rank (residuals.c). */
OX_MUST enum ox_status ox_engine_low_rank_open(const struct ox_engine_config *config, struct ox_engine_plan *plan);

/* ---- engine_store.c ---- */

/* After a failure brings the stores of all processes to the same commit, because one may have committed a step and
 * another not. Does nothing where there is one process, or no store. If it fails, the engine has no store any more. */
OX_MUST enum ox_status ox_engine_store_realign(struct ox_engine *engine);
/* Fails if that has failed before: without its store the engine can neither take a step nor go back. */
OX_MUST enum ox_status ox_engine_check_store(const struct ox_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
