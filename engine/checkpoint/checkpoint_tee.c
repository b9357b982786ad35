/* Saves a checkpoint while training goes on. The optimizer of the next step passes on every chunk before it updates it,
 * and a thread of the checkpoint completes the save when all chunks are written. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/lane.h"
#include "engine/checkpoint/checkpoint_internal.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct ox_checkpoint_tee {
    struct ox_engine *engine;
    struct ox_lane *lane; /* runs ox_checkpoint_end and nothing else */
    pthread_mutex_t lock; /* guards all below, because chunks come on a thread of the engine */
    struct ox_checkpoint_job job; /* belongs to the lane once `ending` */
    struct ox_first_failure failure;      /* the first failure of writing chunks */
    uint64_t writing_ns;
    bool ending;
    struct ox_mark end;
};

static enum ox_status run_end(void *owner, const void *args) {
    struct ox_checkpoint_tee *const tee = owner;
    (void)args;
    return ox_checkpoint_end(&tee->job);
}

/* Starts the end of the save if no chunk is missing. The caller holds the lock. */
static void end_if_complete(struct ox_checkpoint_tee *tee) {
    const struct ox_checkpoint_files *const files = tee->job.files;
    if (tee->ending || tee->failure.status != OX_OK || (files != NULL && ox_checkpoint_files_missing(files) > 0)) {
        return;
    }
    const int no_args = 0;
    ox_first_failure_note(&tee->failure, ox_host_lane_submit(tee->lane, run_end, &no_args, sizeof no_args, &tee->end));
    tee->ending = tee->failure.status == OX_OK;
}

static void take_chunk(void *context, uint32_t unit_idx, uint32_t chunk_idx, const struct ox_chunk_view *view) {
    struct ox_checkpoint_tee *const tee = context;
    pthread_mutex_lock(&tee->lock);
    if (!tee->ending && tee->failure.status == OX_OK) {
        const uint64_t begin_ns = ox_clock_ns();
        ox_first_failure_note(&tee->failure, ox_checkpoint_files_chunk(tee->job.files, unit_idx, chunk_idx, view));
        end_if_complete(tee);
        tee->writing_ns += ox_clock_ns() - begin_ns;
    }
    pthread_mutex_unlock(&tee->lock);
}

/* ---- public ------------------------------------------------------------------------------------------ */

enum ox_status ox_checkpoint_tee_open(struct ox_engine *engine, const struct ox_run_state *state,
                                      const struct ox_checkpoint_save *save, struct ox_checkpoint_tee **out) {
    *out = NULL;
    struct ox_checkpoint_tee *const tee = calloc(1, sizeof *tee);
    if (tee == NULL) {
        return ox_fail(OX_E_NOMEM, "checkpoint: no memory to write it while training goes on");
    }
    tee->engine = engine;
    pthread_mutex_init(&tee->lock, NULL);
    const struct ox_host_lane_config config = {.label = "checkpoint", .owner = tee, .queue_len = 1};
    enum ox_status status = ox_host_lane_open(&config, &tee->lane);
    OX_TRY(status, ox_checkpoint_begin(engine, state, save, &tee->job));
    if (status != OX_OK) {
        ox_lane_close(&tee->lane);
        pthread_mutex_destroy(&tee->lock);
        free(tee);
        return status;
    }
    pthread_mutex_lock(&tee->lock);
    end_if_complete(tee); /* at once, if the checkpoint exists already */
    pthread_mutex_unlock(&tee->lock);
    const struct ox_tee hook = {.chunk = take_chunk, .context = tee};
    ox_engine_tee(engine, &hook);
    *out = tee;
    return OX_OK;
}

bool ox_checkpoint_tee_ready(struct ox_checkpoint_tee *tee) {
    pthread_mutex_lock(&tee->lock);
    const bool ending = tee->ending;
    bool ready = tee->failure.status != OX_OK;
    pthread_mutex_unlock(&tee->lock);
    /* ox_checkpoint_tee_close returns the result. */
    return ending ? ox_mark_poll(tee->end, &ready) != OX_OK || ready : ready;
}

void ox_checkpoint_tee_fill(struct ox_checkpoint_tee *tee) {
    pthread_mutex_lock(&tee->lock);
    if (!tee->ending && tee->failure.status == OX_OK) {
        ox_first_failure_note(&tee->failure, ox_checkpoint_files_fill(tee->job.files, tee->engine));
        end_if_complete(tee);
    }
    pthread_mutex_unlock(&tee->lock);
}

enum ox_status ox_checkpoint_tee_close(struct ox_checkpoint_tee **tee_ptr, double *seconds) {
    struct ox_checkpoint_tee *const tee = *tee_ptr;
    *tee_ptr = NULL;
    ox_engine_tee(tee->engine, NULL);
    enum ox_status status = tee->ending ? ox_mark_join(tee->end) : ox_first_failure_result(&tee->failure);
    if (!tee->ending) {
        OX_TRY(status, ox_fail(OX_E_ABORTED, "%s: given up, because %" PRIu64 " chunks of the state are missing",
                               tee->job.path, ox_checkpoint_files_missing(tee->job.files)));
        status = ox_checkpoint_drop(&tee->job, status);
    }
    *seconds = (double)tee->writing_ns * 1e-9;
    ox_lane_close(&tee->lane);
    pthread_mutex_destroy(&tee->lock);
    free(tee);
    return status;
}
