/* When a run saves, and what a failed save means for it. */
#include "engine/trainer_internal.h"

#include "base/clock.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const uint64_t SHARD_BYTES_MAX = UINT64_C(5000000000); /* as huggingface_hub writes them */

enum ox_status ox_trainer_save(struct ox_trainer *trainer) {
    if (trainer->saved_step == trainer->state.step + 1) {
        return OX_OK;
    }
    const struct ox_config *const config = &trainer->config;
    const uint64_t begin_ns = ox_clock_ns();
    const struct ox_checkpoint_save how = {
        .output_dir = config->output_dir,
        /* A model is saved with the tokenizer that it was trained with. */
        .source_model = config->tokenizer[0] != '\0' ? config->tokenizer
                        : ox_path_is_folder(config->model) ? config->model : "",
        .original_config = ox_hf_config(trainer->folder),
        .weights_dtype = strcmp(config->save_dtype, "bf16") == 0 ? OX_DTYPE_BF16 : OX_DTYPE_F32,
        .shard_bytes_max = SHARD_BYTES_MAX,
        .total_limit = config->save_total_limit,
    };
    const enum ox_status status = ox_checkpoint_write(trainer->engine, &trainer->state, &how);
    trainer->save_failed = status != OX_OK;
    if (status != OX_OK) {
        return status;
    }
    trainer->saved_step = trainer->state.step + 1;
    char name[64];
    snprintf(name, sizeof name, "checkpoint-%" PRIu64, trainer->state.step);
    if (ox_path_join(config->output_dir, name, trainer->result) != OX_OK) {
        trainer->result[0] = '\0';
    }
    if (trainer->hooks->saved != NULL) {
        trainer->hooks->saved(trainer->hooks->context, trainer->result, (double)(ox_clock_ns() - begin_ns) * 1e-9);
    }
    return OX_OK;
}

void ox_trainer_save_on_the_way(struct ox_trainer *trainer) {
    if (ox_trainer_save(trainer) != OX_OK) {
        ox_log(OX_LOG_WARN, "no checkpoint at step %" PRIu64 ": %s", trainer->state.step, ox_error_text());
        trainer->save_failed = false; /* the end tries again */
    }
}

enum ox_status ox_trainer_save_and_fail(struct ox_trainer *trainer, enum ox_status failure) {
    char text[OX_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", ox_error_text());
    if (trainer->stepped && !trainer->is_torn && !trainer->save_failed) {
        ox_trainer_save_on_the_way(trainer);
    }
    return ox_fail(failure, "%s", text);
}
