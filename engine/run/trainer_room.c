/* Room for checkpoints: told with the plan, and refused at the start if the first one does not fit. */
#include "engine/run/trainer_internal.h"

#include "base/bytes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static enum ox_status size_of_one(const struct ox_trainer *trainer, uint64_t *bytes) {
    return ox_checkpoint_bytes(ox_trainer_model(trainer), trainer->engine_config.state.kind,
                               strcmp(trainer->config.save_dtype, "bf16") == 0 ? OX_DTYPE_BF16 : OX_DTYPE_F32, bytes);
}

/* Finds the folder that exists of the output folder's path: its file system is the one that checkpoints fill. */
static void existing_folder(const char *output_dir, char *path) {
    snprintf(path, OX_PATH_BYTES, "%s", output_dir);
    while (!ox_path_is_folder(path)) {
        char *const slash = strrchr(path, '/');
        if (slash == NULL || slash == path) {
            snprintf(path, OX_PATH_BYTES, "%s", slash == NULL ? "." : "/");
            return;
        }
        *slash = '\0';
    }
}

void ox_trainer_room(const struct ox_trainer *trainer, struct ox_checkpoint_room *out) {
    const struct ox_config *const config = &trainer->config;
    const uint64_t every = (uint64_t)config->save_steps, limit = config->save_total_limit, steps = trainer->max_steps;
    char folder[OX_PATH_BYTES];
    *out = (struct ox_checkpoint_room){.free_bytes = UINT64_MAX};
    if (size_of_one(trainer, &out->each_bytes) != OX_OK) {
        out->each_bytes = 0;
    }
    out->written = steps == 0 ? 0 : every == 0 ? 1 : steps / every + (steps % every > 0);
    out->kept = limit > 0 && (limit < out->written || steps == 0) ? limit : out->written;
    /* The oldest one is deleted when a new one is complete. */
    const uint64_t most = out->kept + (limit > 0 && out->kept < out->written);
    out->most_bytes = (uint64_t)((double)most * (double)out->each_bytes);
    existing_folder(config->output_dir, folder);
    if (config->output_dir[0] == '\0' || ox_folder_free_bytes(folder, &out->free_bytes) != OX_OK) {
        out->free_bytes = UINT64_MAX;
    }
}

const char *ox_trainer_room_text(const struct ox_trainer *trainer, char *text) {
    struct ox_checkpoint_room room;
    char each[OX_SIZE_TEXT_BYTES], most[OX_SIZE_TEXT_BYTES], free_text[OX_SIZE_TEXT_BYTES];
    ox_trainer_room(trainer, &room);
    int used = snprintf(text, OX_ROOM_LINE_BYTES, "checkpoints: %s each", ox_size_text(room.each_bytes, each));
    if (room.written > 0) {
        used += snprintf(text + used, OX_ROOM_LINE_BYTES - (size_t)used, ", %" PRIu64 " written, %" PRIu64
                         " kept, at most %s", room.written, room.kept, ox_size_text(room.most_bytes, most));
    }
    if (room.free_bytes < UINT64_MAX) {
        const uint64_t usable = room.free_bytes - ox_min_u64(room.free_bytes, OX_CHECKPOINT_BESIDE_BYTES);
        used += snprintf(text + used, OX_ROOM_LINE_BYTES - (size_t)used, "; %s free",
                         ox_size_text(room.free_bytes, free_text));
        if (room.most_bytes > usable && room.each_bytes > 0) {
            used += snprintf(text + used, OX_ROOM_LINE_BYTES - (size_t)used, ", which is enough for %" PRIu64
                             ": make room%s", usable / room.each_bytes,
                             room.kept > 1 ? ", or keep fewer with --save-total-limit" : "");
        }
    }
    snprintf(text + used, OX_ROOM_LINE_BYTES - (size_t)used, "\n");
    return text;
}

enum ox_status ox_trainer_check_room(const struct ox_trainer *trainer) {
    uint64_t bytes = 0;
    char folder[OX_PATH_BYTES];
    existing_folder(trainer->config.output_dir, folder);
    const enum ox_status status = size_of_one(trainer, &bytes);
    return status == OX_OK ? ox_checkpoint_check_space(folder, bytes) : status;
}
