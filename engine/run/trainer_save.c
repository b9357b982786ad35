/* Decides when a run saves, and what a failed save means for it. */
#include "engine/run/trainer_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/step/tracing.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const uint64_t SHARD_BYTES_MAX = UINT64_C(5000000000); /* as huggingface_hub writes them */

static struct ox_checkpoint_save how_to_save(const struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    return (struct ox_checkpoint_save){
        .output_dir = config->output_dir,
        /* A model is saved with the tokenizer that it was trained with. */
        .source_model = config->tokenizer[0] != '\0' ? config->tokenizer
                        : ox_path_is_folder(config->model) ? config->model : "",
        .tokenizer_file = config->tokenizer[0] != '\0' && !ox_path_is_folder(config->tokenizer) ? config->tokenizer
                                                                                                : NULL,
        .original_config = ox_hf_config(trainer->folder),
        .weights_dtype = strcmp(config->save_dtype, "bf16") == 0 ? OX_DTYPE_BF16 : OX_DTYPE_F32,
        .shard_bytes_max = SHARD_BYTES_MAX,
        .total_limit = config->save_total_limit,
    };
}

static double seconds_since(uint64_t begin_ns) {
    return (double)(ox_clock_ns() - begin_ns) * 1e-9;
}

static bool is_saved(const struct ox_trainer *trainer) {
    return trainer->saving.last_step == trainer->state.step + 1;
}

static void report_saved(struct ox_trainer *trainer, uint64_t step, double seconds) {
    char name[64];
    trainer->saving.last_step = step + 1;
    snprintf(name, sizeof name, "checkpoint-%" PRIu64, step);
    if (ox_path_join(trainer->config.output_dir, name, trainer->result) != OX_OK) {
        trainer->result[0] = '\0';
    }
    ox_trainer_sync_reports(trainer); /* the lines up to a checkpoint are as safe as it is */
    if (trainer->hooks->saved != NULL) {
        trainer->hooks->saved(trainer->hooks->context, trainer->result, seconds);
    }
}

static void report_not_saved(uint64_t step) {
    ox_log(OX_LOG_WARN, "no checkpoint at step %" PRIu64 ": %s", step, ox_error_text());
}

static void close_tee(struct ox_trainer *trainer, uint64_t begin_ns) {
    double written = 0;
    const enum ox_status status = ox_checkpoint_tee_close(&trainer->saving.tee, &written);
    ox_engine_trace_span(trainer->engine, OX_TRACE_SPAN_SAVE, trainer->saving.tee_state.step,
                         trainer->saving.tee_begin_ns);
    if (status == OX_OK) {
        report_saved(trainer, trainer->saving.tee_state.step,
                     trainer->saving.tee_seconds + written + seconds_since(begin_ns));
    } else {
        report_not_saved(trainer->saving.tee_state.step);
    }
}

void ox_trainer_save_poll(struct ox_trainer *trainer) {
    if (trainer->saving.tee != NULL && ox_checkpoint_tee_ready(trainer->saving.tee)) {
        close_tee(trainer, ox_clock_ns());
    }
}

enum ox_status ox_trainer_finish_update(struct ox_trainer *trainer) {
    const enum ox_status status = ox_engine_finish_update(trainer->engine);
    trainer->is_torn = trainer->is_torn || status != OX_OK;
    return status;
}

bool ox_trainer_save_waits(const struct ox_trainer *trainer) {
    return trainer->saving.tee != NULL || ox_engine_store(trainer->engine) == NULL ||
           trainer->config.store_generations == 1;
}

/* Finishes a checkpoint that is being written: waits for the drive, or abandons it if chunks are missing that the
 * engine no longer has. No step is in flight. */
static void finish_checkpoint(struct ox_trainer *trainer) {
    if (trainer->saving.tee == NULL) {
        return;
    }
    const uint64_t begin_ns = ox_clock_ns();
    /* If steps overlap, the update that shows the planes to the checkpoint may still be pending. */
    const bool finished = !trainer->is_torn && ox_trainer_finish_update(trainer) == OX_OK;
    if (finished && trainer->state.optimizer_steps == trainer->saving.tee_state.optimizer_steps) {
        ox_checkpoint_tee_fill(trainer->saving.tee); /* no step has changed the state since then */
    }
    close_tee(trainer, begin_ns);
}

static enum ox_status save(struct ox_trainer *trainer) {
    const uint64_t begin_ns = ox_clock_ns();
    /* If this fails, the engine is at an earlier step than trainer->state. */
    enum ox_status status = ox_trainer_finish_update(trainer);
    if (status != OX_OK) {
        return status;
    }
    finish_checkpoint(trainer);
    if (is_saved(trainer)) {
        return OX_OK;
    }
    const struct ox_checkpoint_save how = how_to_save(trainer);
    status = ox_checkpoint_write(trainer->engine, &trainer->state, &how);
    trainer->saving.failed = status != OX_OK;
    ox_engine_trace_span(trainer->engine, OX_TRACE_SPAN_SAVE, trainer->state.step, begin_ns);
    if (status == OX_OK) {
        report_saved(trainer, trainer->state.step, seconds_since(begin_ns));
    }
    return status;
}

enum ox_status ox_trainer_save(struct ox_trainer *trainer) {
    ox_trainer_persist(trainer);
    enum ox_status status = save(trainer);
    if (status != OX_OK && ox_trainer_await_room(trainer)) {
        status = save(trainer);
    }
    return status == OX_OK || trainer->is_torn ? status : ox_trainer_fail_unsaved(trainer, status);
}

void ox_trainer_save_or_warn(struct ox_trainer *trainer) {
    if (save(trainer) != OX_OK) {
        report_not_saved(trainer->state.step);
        trainer->saving.failed = false; /* the end of the run tries again */
    }
}

void ox_trainer_save_behind(struct ox_trainer *trainer) {
    /* An interrupted step destroys a store of one generation, so a checkpoint must be complete before it. */
    if (ox_engine_store(trainer->engine) == NULL || trainer->config.store_generations == 1) {
        ox_trainer_save_or_warn(trainer);
        return;
    }
    finish_checkpoint(trainer);
    if (is_saved(trainer)) {
        return;
    }
    const uint64_t begin_ns = ox_clock_ns();
    const struct ox_checkpoint_save how = how_to_save(trainer);
    trainer->saving.tee_state = trainer->state;
    trainer->saving.tee_begin_ns = begin_ns;
    if (ox_checkpoint_tee_open(trainer->engine, &trainer->state, &how, &trainer->saving.tee) != OX_OK) {
        report_not_saved(trainer->state.step);
    }
    trainer->saving.tee_seconds = seconds_since(begin_ns);
}

enum ox_status ox_trainer_save_and_fail(struct ox_trainer *trainer, enum ox_status failure) {
    char text[OX_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", ox_error_text());
    if (trainer->team != NULL) { /* the others may not know yet, and cannot save without this process */
        ox_team_abort(trainer->team, failure);
        trainer->is_torn = true;
    }
    if (trainer->stepped) {
        ox_trainer_persist(trainer);
    }
    finish_checkpoint(trainer);
    if (trainer->stepped && !trainer->is_torn && !trainer->saving.failed) {
        ox_trainer_save_or_warn(trainer);
    }
    return ox_fail(failure, "%s", text);
}
