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
    struct ox_first_failure failure; /* the first failure of writing chunks, likewise */
    uint64_t writing_ns;
    bool ending;
    struct ox_mark end;
};

static enum ox_status end(struct ox_checkpoint_tee *tee) {
    return ox_checkpoint_end(&tee->job, OX_TEAM_SAVE, ox_first_failure_result(&tee->failure));
}

static enum ox_status run_end(void *owner, const void *args) {
    (void)args;
    return end(owner);
}

/* Starts the end of the save if no chunk of this process is missing, or one could not be written: the lane then waits
 * for the other processes, while this one trains on. The caller holds the lock. */
static void end_if_done(struct ox_checkpoint_tee *tee) {
    const struct ox_checkpoint_files *const files = tee->job.files;
    const bool failed = tee->failure.status != OX_OK;
    if (tee->ending || (!failed && files != NULL && ox_checkpoint_files_missing(files) > 0)) {
        return;
    }
    const int no_args = 0;
    const enum ox_status status = ox_host_lane_submit(tee->lane, run_end, &no_args, sizeof no_args, &tee->end);
    ox_first_failure_note(&tee->failure, status);
    tee->ending = status == OX_OK;
}

static void take_chunk(void *context, uint32_t unit_idx, uint32_t chunk_idx, const struct ox_chunk_view *view) {
    struct ox_checkpoint_tee *const tee = context;
    pthread_mutex_lock(&tee->lock);
    if (!tee->ending && tee->failure.status == OX_OK) {
        const uint64_t begin_ns = ox_clock_ns();
        ox_first_failure_note(&tee->failure, ox_checkpoint_files_chunk(tee->job.files, unit_idx, chunk_idx, view));
        end_if_done(tee);
        tee->writing_ns += ox_clock_ns() - begin_ns;
    }
    pthread_mutex_unlock(&tee->lock);
}

static enum ox_status open_thread(struct ox_checkpoint_tee **out) {
    struct ox_checkpoint_tee *const tee = *out = calloc(1, sizeof *tee);
    if (tee == NULL) {
        return ox_fail(OX_E_NOMEM, "checkpoint: no memory to write it while training goes on");
    }
    pthread_mutex_init(&tee->lock, NULL);
    const struct ox_host_lane_config config = {.label = "checkpoint", .owner = tee, .queue_len = 1};
    return ox_host_lane_open(&config, &tee->lane);
}

static void close_thread(struct ox_checkpoint_tee **tee) {
    if (*tee != NULL) {
        ox_lane_close(&(*tee)->lane);
        pthread_mutex_destroy(&(*tee)->lock);
        free(*tee);
        *tee = NULL;
    }
}

/* ---- public ------------------------------------------------------------------------------------------ */

enum ox_status ox_checkpoint_tee_open(struct ox_engine *engine, const struct ox_run_state *state,
                                      const struct ox_checkpoint_save *save, struct ox_checkpoint_tee **out) {
    *out = NULL;
    struct ox_checkpoint_tee *tee = NULL;
    enum ox_status status = open_thread(&tee);
    status = ox_team_agree(ox_engine_config_of(engine)->team, OX_TEAM_RUN, status, "the thread of a checkpoint");
    OX_THEN(status, ox_checkpoint_begin(engine, state, save, &tee->job));
    if (status != OX_OK) {
        close_thread(&tee);
        return status;
    }
    tee->engine = engine;
    pthread_mutex_lock(&tee->lock);
    if (tee->job.files != NULL) { /* no optimizer passes on what is frozen */
        ox_first_failure_note(&tee->failure, ox_checkpoint_files_fill(tee->job.files, engine, true));
    }
    end_if_done(tee); /* at once, if the checkpoint exists already or this process has no chunk */
    pthread_mutex_unlock(&tee->lock);
    const struct ox_tee hook = {.chunk = take_chunk, .context = tee};
    ox_engine_tee(engine, &hook);
    *out = tee;
    return OX_OK;
}

bool ox_checkpoint_tee_ready(struct ox_checkpoint_tee *tee) {
    pthread_mutex_lock(&tee->lock);
    const bool ending = tee->ending;
    pthread_mutex_unlock(&tee->lock);
    bool ready = false;
    /* A failure is returned by ox_checkpoint_tee_close. */
    ready = ending && (ox_mark_poll(tee->end, &ready) != OX_OK || ready);
    /* Where the first process is ready, the threads of the others are about to be, whatever their trainers do. */
    return ox_team_share(tee->job.team, &ready, sizeof ready, "whether a checkpoint is ready") != OX_OK || ready;
}

void ox_checkpoint_tee_fill(struct ox_checkpoint_tee *tee) {
    pthread_mutex_lock(&tee->lock);
    if (!tee->ending && tee->failure.status == OX_OK) {
        ox_first_failure_note(&tee->failure, ox_checkpoint_files_fill(tee->job.files, tee->engine, false));
        end_if_done(tee);
    }
    pthread_mutex_unlock(&tee->lock);
}

enum ox_status ox_checkpoint_tee_close(struct ox_checkpoint_tee **tee_ptr, double *seconds) {
    struct ox_checkpoint_tee *const tee = *tee_ptr;
    ox_engine_tee(tee->engine, NULL);
    if (!tee->ending && tee->failure.status == OX_OK) {
        ox_first_failure_note(&tee->failure,
                              ox_fail(OX_E_ABORTED, "%s: given up, because %" PRIu64 " chunks of the state are missing",
                                      tee->job.path, ox_checkpoint_files_missing(tee->job.files)));
    }
    const enum ox_status status = tee->ending ? ox_mark_join(tee->end) : end(tee);
    *seconds = (double)tee->writing_ns * 1e-9;
    close_thread(tee_ptr);
    return status;
}
