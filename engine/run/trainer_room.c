/* What a run takes of file systems: room for checkpoints, memory where files are memory, and how much it wears drives.
 * Told with the plan, and refused if it is too much. Also the place of a last save that the run's folder does not
 * take. */
#include "engine/run/trainer_internal.h"

#include "base/bytes.h"
#include "base/log.h"
#include "base/memory.h"
#include "engine/data/files.h"
#include "nvme/wear.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static enum ox_status size_of_one(const struct ox_trainer *trainer, bool weights_alone, uint64_t *bytes) {
    return ox_checkpoint_bytes(ox_trainer_model(trainer), trainer->engine_config.state,
                               ox_dtype_of_word(trainer->config.save.save_dtype),
                               weights_alone || trainer->config.save.save_only_model, bytes);
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

/* What the drives of the profile hold beside the store, where the plan is for another machine and they are known. */
static uint64_t profile_bytes(const struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    struct ox_machine machine;
    uint64_t sum = 0;
    if (!ox_trainer_is_elsewhere(trainer) ||
        ox_predict_machine(config->files.profile, (uint32_t)ox_max_u64(config->memory.nvme_count, 1), &machine) !=
            OX_OK) {
        return UINT64_MAX; /* which the prediction says */
    }
    for (uint32_t i = 0; i < machine.drive_count; i++) {
        if (machine.drives[i].capacity_bytes == 0) {
            return UINT64_MAX;
        }
        sum += machine.drives[i].capacity_bytes;
    }
    const struct ox_engine_plan *const plan = ox_trainer_plan(trainer);
    const uint64_t store = plan->train != NULL ? ox_engine_plan_all_bytes(plan, OX_TIER_NVME) : 0;
    return sum - ox_min_u64(sum, store);
}

void ox_trainer_room(const struct ox_trainer *trainer, struct ox_checkpoint_room *out) {
    const struct ox_config *const config = &trainer->config;
    const struct ox_trainer_left left = ox_trainer_left(trainer);
    const uint64_t limit = config->save.save_total_limit;
    const uint64_t end = left.end > 0 ? left.end : config->train.max_steps; /* as far as it is known */
    const uint64_t every = ox_trainer_save_every(trainer, end);
    char folder[OX_PATH_BYTES];
    *out = (struct ox_checkpoint_room){.free_bytes = UINT64_MAX, .profile_bytes = profile_bytes(trainer)};
    uint64_t weights_bytes = 0;
    if (size_of_one(trainer, false, &out->each_bytes) != OX_OK || size_of_one(trainer, true, &weights_bytes) != OX_OK) {
        out->each_bytes = weights_bytes = 0;
    }
    out->written = end <= left.from ? 0 : every == 0 ? 1 : end / every - left.from / every + (end % every > 0);
    out->kept = limit > 0 && (limit < out->written || end == 0) ? limit : out->written;
    /* The oldest one is deleted when a new one is complete. */
    const uint64_t most = out->kept + (limit > 0 && out->kept < out->written);
    /* So do those that keep the optimizer's state. */
    const uint64_t states = config->save.save_optimizer_limit > 0
                                ? ox_min_u64(most, config->save.save_optimizer_limit + 1) : most;
    out->most_bytes = (uint64_t)((double)states * (double)out->each_bytes +
                                 (double)(most - states) * (double)weights_bytes);
    existing_folder(config->files.output_dir, folder);
    if (config->files.output_dir[0] == '\0' || ox_folder_free_bytes(folder, &out->free_bytes) != OX_OK) {
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
    if (room.profile_bytes < room.most_bytes && room.each_bytes > 0) {
        used += snprintf(text + used, OX_ROOM_LINE_BYTES - (size_t)used, "; the drives of the profile hold %s beside "
                         "the store, which is enough for %" PRIu64 ": keep fewer with --save-total-limit",
                         ox_size_text(room.profile_bytes, free_text),
                         (room.profile_bytes - ox_min_u64(room.profile_bytes, OX_CHECKPOINT_BESIDE_BYTES)) /
                             room.each_bytes);
    }
    snprintf(text + used, OX_ROOM_LINE_BYTES - (size_t)used, "\n");
    return text;
}

enum ox_status ox_trainer_check_room(const struct ox_trainer *trainer) {
    uint64_t bytes = 0;
    char folder[OX_PATH_BYTES];
    existing_folder(trainer->config.files.output_dir, folder);
    const enum ox_status status = size_of_one(trainer, false, &bytes);
    return status == OX_OK ? ox_checkpoint_check_space(folder, bytes) : status;
}

/* ---- files that are memory ----------------------------------------------------------------------------------- */

/* What the file takes already. */
static uint64_t held_bytes(const char *folder, const char *name) {
    char path[OX_PATH_BYTES];
    struct stat info;
    return ox_path_join(folder, name, path) == OX_OK && stat(path, &info) == 0 ? (uint64_t)info.st_blocks * 512 : 0;
}

/* Adds a folder to what the run's files take of memory. */
static void add_files(struct ox_trainer *trainer, const char *flag, const char *folder, uint64_t bytes,
                      uint64_t *sum) {
    const char *const kind = ox_memory_of_files(folder);
    char *const text = trainer->memory_files;
    const size_t used = strlen(text), room = sizeof trainer->memory_files;
    if (kind != NULL && bytes > 0) {
        snprintf(text + used, room - used, "%s%s %.100s (%s)", used > 0 ? ", " : "", flag, folder, kind);
        *sum = ox_min_u64(UINT64_MAX / 8, *sum + bytes);
    }
}

/* About what the tokens of --data take: as much as the texts. Files of tokens or bytes are read where they are. */
static uint64_t cache_bytes(const struct ox_config *config) {
    const bool is_text = config->rows.data_format != OX_FORMAT_TOKENS && config->rows.data_format != OX_FORMAT_BYTES;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < config->files.data_count && is_text; i++) {
        struct ox_files files = {0};
        const bool listed = ox_files_list(config->files.data[i].path, &files) == OX_OK; /* else its error comes soon */
        for (uint32_t k = 0; k < files.count && listed; k++) {
            const char *const ending = strrchr(files.paths[k], '.');
            struct stat info;
            const bool tokens = ending != NULL && strcasecmp(ending, ".bin") == 0;
            sum += !tokens && stat(files.paths[k], &info) == 0 && S_ISREG(info.st_mode) ? (uint64_t)info.st_size : 0;
        }
        ox_files_free(&files);
    }
    return sum;
}

uint64_t ox_trainer_memory_files(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    struct ox_checkpoint_room room;
    uint64_t sum = 0;
    trainer->memory_files[0] = '\0';
    for (uint32_t i = 0; i < config->memory.nvme_count; i++) { /* of all processes of this machine */
        char name[64];
        snprintf(name, sizeof name, "offload-store-%u.ox", i);
        const uint64_t held = held_bytes(trainer->drives.folders[i], name) * ox_team_per_machine(trainer->team);
        const uint64_t bytes = config->memory.nvme[i].bytes;
        add_files(trainer, "--nvme", config->memory.nvme[i].path, bytes - ox_min_u64(bytes, held), &sum);
    }
    if (config->files.output_dir[0] != '\0' && ox_trainer_leads(trainer)) {
        ox_trainer_room(trainer, &room);
        const bool fresh = config->files.resume_from_checkpoint[0] == '\0'; /* else others are there already */
        add_files(trainer, "--output", config->files.output_dir,
                  fresh ? ox_max_u64(room.most_bytes, room.each_bytes) : room.each_bytes, &sum);
    }
    const bool own = config->rows.data_cache[0] != '\0';
    const char *const cache = own ? config->rows.data_cache : config->files.output_dir;
    if (cache[0] != '\0' && ox_trainer_leads(trainer) && ox_memory_of_files(cache) != NULL) {
        add_files(trainer, own ? "--data-cache" : "the token cache in", cache, cache_bytes(config), &sum);
    }
    return sum;
}

/* ---- wear ------------------------------------------------------------------------------------------------------ */

/* A run that would use up more than this share of a drive needs --accept-wear. */
static const double share_max = 0.1;

/* Every how many steps the state is written. It counts as every step if only nominal rates say otherwise. */
static uint64_t persist_steps(const struct ox_trainer *trainer) {
    const bool known = trainer->prediction.profiled || strcmp(trainer->config.memory.persist_steps, "auto") != 0;
    return known ? trainer->prediction.persist_steps : 1;
}

/* The share of all written bytes that the busiest drive gets; state and spool are divided by speed. */
static double largest_share(const struct ox_trainer *trainer) {
    const uint64_t *const speeds = trainer->engine_config.budget.drive_speeds;
    const uint32_t count = trainer->config.memory.nvme_count;
    double most = 1, sum = count > 0 ? count : 1;
    for (uint32_t i = 0; i < count && speeds != NULL; i++) {
        most = fmax(i > 0 ? most : 0, (double)speeds[i]);
        sum = (i > 0 ? sum : 0) + (double)speeds[i];
    }
    return most / sum;
}

uint64_t ox_trainer_kept_bytes(const struct ox_trainer *trainer) {
    const struct ox_engine_plan *const plan = ox_trainer_plan(trainer);
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT] = {{0}};
    for (uint32_t i = 0; i < ox_plan_rank_count(&plan->input); i++) {
        const struct ox_engine_plan *const at = ox_engine_plan_at(plan, i);
        const uint32_t count = at->train != NULL ? at->train->unit_count : 0;
        for (uint32_t unit_idx = 0; unit_idx < count; unit_idx++) {
            ox_plan_adam_traffic(at->train, &at->input, unit_idx,
                                 (struct ox_adam_work){.updates = true, .stays = true}, traffic);
        }
    }
    return traffic[OX_LINK_NVME_WRITE][OX_TRAFFIC_WEIGHTS] + traffic[OX_LINK_NVME_WRITE][OX_TRAFFIC_STATE];
}

/* The wear of the busiest drive: every step writes gradients, activations and the state that lives on drives, and some
 * write all of the state. */
static struct ox_wear wear_of(const struct ox_trainer *trainer, uint64_t step_count) {
    const struct ox_config *const config = &trainer->config;
    const struct ox_engine_plan *const plan = ox_trainer_plan(trainer);
    const uint64_t steps = persist_steps(trainer), kept = steps > 1 ? ox_trainer_kept_bytes(trainer) : 0;
    uint64_t state = 0, others = 0;
    for (uint32_t i = 0; i < ox_plan_rank_count(&plan->input); i++) {
        const struct ox_plan *const train = ox_engine_plan_at(plan, i)->train;
        for (int kind = 0; train != NULL && kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            const bool of_state = kind == OX_TRAFFIC_WEIGHTS || kind == OX_TRAFFIC_STATE;
            *(of_state ? &state : &others) += train->traffic[OX_LINK_NVME_WRITE][kind];
        }
    }
    const uint64_t bytes = others + kept + (state - kept) / steps;
    return (struct ox_wear){
        .step_bytes = (uint64_t)((double)bytes * largest_share(trainer)),
        .step_count = step_count,
        .rated_bytes = config->memory.drive_endurance_bytes > 0 ? config->memory.drive_endurance_bytes
                                                                : trainer->machine.drives[0].endurance_bytes, /* or 0 */
    };
}

const char *ox_trainer_wear_text(const struct ox_trainer *trainer, char *text) {
    char line[OX_WEAR_TEXT_BYTES], every[64] = "";
    const uint64_t steps = persist_steps(trainer);
    const struct ox_wear wear = wear_of(trainer, ox_trainer_left(trainer).steps);
    text[0] = '\0';
    if (wear.step_bytes > 0 && wear.step_count > 0) {
        if (steps > 1) {
            snprintf(every, sizeof every, ", all of the state every %" PRIu64 " steps,", steps);
        } else if (trainer->prediction.persist_steps > 1) {
            snprintf(every, sizeof every, ", were all of the state written every step,");
        }
        snprintf(text, OX_WEAR_LINE_BYTES, "wear: %s%s %s\n",
                 trainer->config.memory.nvme_count == 1                       ? "the drive"
                 : trainer->engine_config.budget.drive_speeds == NULL ? "each drive" : "the fastest drive",
                 every, ox_wear_text(&wear, line));
    }
    return text;
}

enum ox_status ox_trainer_check_wear(const struct ox_trainer *trainer) {
    struct ox_wear wear = wear_of(trainer, ox_trainer_left(trainer).steps); /* what is written is written */
    wear.rated_bytes =
        trainer->config.memory.drive_endurance_bytes; /* what a profile says is told, and not refused by */
    if (trainer->config.memory.accept_wear || !ox_wear_exceeds(&wear, share_max)) {
        return OX_OK;
    }
    struct ox_wear_forecast forecast;
    ox_wear_forecast(&wear, &forecast);
    return ox_fail(OX_E_CONFIG, "this run would use up %.0f %% of what each drive is rated for (--drive-endurance): "
                   "give more host memory, fewer steps or more drives, or say --accept-wear", 100 * forecast.run_share);
}

/* ---- folders that anyone may write to ---------------------------------------------------------------------- */

/* Looks at a folder, or at the one in which it will be made. Where the sticky bit is set, others can neither remove nor
 * rename what is not theirs. */
static void look_at(const char *flag, const char *path) {
    char folder[OX_PATH_BYTES];
    struct stat info;
    const size_t existing = ox_path_existing(path);
    snprintf(folder, sizeof folder, "%.*s", (int)existing, existing > 0 ? path : ".");
    if (stat(folder[0] != '\0' ? folder : ".", &info) == 0 && (info.st_mode & S_IWOTH) != 0 &&
        (info.st_mode & S_ISVTX) == 0) {
        ox_log(OX_LOG_WARN, "%s %s: anyone on this machine may write to %s and replace what the run keeps there; "
               "`chmod o-w %s` ends that", flag, path, folder[0] != '\0' ? folder : "the working folder",
               folder[0] != '\0' ? folder : ".");
    }
}

void ox_trainer_warn_open_folders(const struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    if (ox_trainer_leads(trainer)) {
        look_at("--output", config->files.output_dir);
    }
    for (uint32_t i = 0; i < config->memory.nvme_count; i++) {
        look_at("--nvme", config->memory.nvme[i].path);
    }
}

/* ---- elsewhere ----------------------------------------------------------------------------------------- */

enum { PLACES = 2, NAMES = 100 };

/* Whether what is written there stays in memory, which the run has not counted. The run's own file system may. */
static bool is_memory(const char *folder, const char *output_dir) {
    struct stat here, own;
    const bool same = stat(folder, &here) == 0 && stat(output_dir, &own) == 0 && here.st_dev == own.st_dev;
    return !same && ox_memory_of_files(folder) != NULL;
}

/* Writes the folder that holds `path` to `folder`, and returns its name there. */
static const char *split(const char *path, char *folder) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') {
        end--;
    }
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') {
        begin--;
    }
    snprintf(folder, OX_PATH_BYTES, "%.*s", begin == 0 ? 1 : (int)begin, begin == 0 ? "." : path);
    return path + begin;
}

/* Writes place `idx` for a checkpoint to `path`, a name that nothing has yet; false if it cannot take one. */
static bool place_at(const struct ox_trainer *trainer, int idx, char *path) {
    const char *const output = trainer->config.files.output_dir, *const temporary =
                                                                     trainer->config.files.temporary_folder;
    char folder[OX_PATH_BYTES];
    const char *const name = split(output, folder);
    uint64_t bytes = 0;
    if (idx > 0) {
        snprintf(folder, sizeof folder, "%s", temporary);
    }
    const bool sized = ox_checkpoint_bytes(ox_trainer_model(trainer), trainer->engine_config.state,
                                           OX_DTYPE_F32, false, &bytes) == OX_OK;
    if (!sized || access(folder, W_OK | X_OK) != 0 || is_memory(folder, output) ||
        ox_checkpoint_check_space(folder, bytes) != OX_OK) {
        return false;
    }
    for (int i = 1; i <= NAMES; i++) {
        char number[16] = "";
        if (i > 1) {
            snprintf(number, sizeof number, "-%d", i);
        }
        const int length = snprintf(path, OX_PATH_BYTES, "%s/%.*s.rescue%s", folder, (int)strcspn(name, "/"), name,
                                    number);
        if (length >= OX_PATH_BYTES) {
            return false;
        }
        struct stat info;
        if (lstat(path, &info) != 0 && errno == ENOENT) {
            return true;
        }
    }
    return false;
}

bool ox_trainer_find_elsewhere(const struct ox_trainer *trainer, char *path) {
    for (int i = 0; i < PLACES && trainer->team == NULL; i++) {
        if (place_at(trainer, i, path)) {
            return true;
        }
    }
    return false;
}

enum ox_status ox_trainer_save_elsewhere(struct ox_trainer *trainer, const struct ox_checkpoint_save *how, char *path) {
    enum ox_status status = ox_fail(OX_E_IO, "there is no other place");
    for (int i = 0; i < PLACES && trainer->team == NULL && status != OX_OK; i++) {
        struct ox_checkpoint_save there = *how;
        char folder[OX_PATH_BYTES], name[64];
        there.output_dir = folder;
        if (!place_at(trainer, i, folder) || mkdir(folder, 0777) != 0) {
            continue;
        }
        snprintf(name, sizeof name, "checkpoint-%" PRIu64, trainer->state.step);
        status = ox_path_join(folder, name, path);
        OX_THEN(status, ox_checkpoint_write(trainer->engine, &trainer->state, &there));
        if (status != OX_OK) {
            ox_log(OX_LOG_WARN, "%s: takes no checkpoint either: %s", folder, ox_error_text());
            rmdir(folder);
        }
    }
    return status;
}

uint64_t ox_trainer_beside_bytes(const struct ox_engine_config *engine, uint64_t ranks) {
    const char *library;
    const bool is_muon = engine->state.kind == OX_OPTIM_MUON;
    const uint64_t muon =
        is_muon ? ox_muon_bytes(engine->model, engine->device, OX_TIER_HOST) * ox_max_u64(ranks, 1) : 0;
    if (engine->device != OX_DEVICE_CPU) {
        /* the planner may still take fewer ranks, whose optimizers have more threads */
        const uint32_t threads = ox_engine_optimizer_share(engine, engine->optimizer_threads, 1);
        return ox_fixed_overhead_bytes(0, ox_max_u64(threads, ranks), 0) + OX_CUDA_HOST_BYTES + muon;
    }
    const enum ox_real products = ox_engine_precision(engine)->products;
    const bool takes_room = products != OX_REAL_F32 && ox_cpu_has_products(products, &library);
    return ox_fixed_overhead_bytes(engine->compute_threads, engine->optimizer_threads, takes_room ? ranks : 0) + muon;
}
