/* A plan as text: what it comes to, then the model, the step, its memory and its time. */
#include "engine/run/trainer_internal.h"

#include "base/bytes.h"
#include "base/log.h"
#include "base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static uint64_t plans_memory_bytes(const struct ox_engine_plan *plan) {
    uint64_t bytes = 0;
    for (uint32_t rank = 0; rank < ox_plan_rank_count(&plan->input); rank++) {
        const struct ox_engine_plan *const own = ox_engine_plan_at(plan, rank);
        const struct ox_plan *const plans[] = {own->train, own->eval, own->eval_after_step};
        for (unsigned i = 0; i < sizeof plans / sizeof *plans; i++) {
            bytes += plans[i] == NULL ? 0 : ox_plan_memory_bytes(plans[i]);
        }
    }
    return bytes;
}

enum { UNEVEN_LINE_BYTES = 192, RANKS_LINE_BYTES = 320 + UNEVEN_LINE_BYTES };

/* Writes a line on ranks of which the first has much more than its part of the model, and what divides it better; ""
 * where that is not so. */
static void uneven_text(const struct ox_engine_plan *plan, char text[UNEVEN_LINE_BYTES]) {
    const uint32_t ranks = ox_plan_holders(&plan->input), units = plan->table.unit_count;
    const uint64_t better = ox_shard_choose_chunk(plan->unit_elems, units, ranks, OX_GROUP_ELEMS);
    const double excess = ox_shard_excess(plan->unit_elems, units, plan->table.chunk_elems, ranks);
    const double least = ox_shard_excess(plan->unit_elems, units, better, ranks);
    text[0] = '\0';
    if (ranks > 1 && excess > OX_SHARD_EXCESS_MAX && least < excess) {
        snprintf(text, UNEVEN_LINE_BYTES, "rank 0 has %.2f times its part of the model, and the others wait for its "
                 "update; a new run with --chunk-elems %" PRIu64 " would bring that to %.2f\n", excess, better, least);
    }
}

/* Says what all ranks take together, where there are several: the ledger is of the first one. Other lines say how
 * they divide rows, and where they do not divide the model evenly. */
static const char *all_ranks_text(const struct ox_trainer *trainer, char text[RANKS_LINE_BYTES]) {
    const struct ox_engine_plan *const plan = ox_trainer_plan(trainer);
    const uint32_t ranks = ox_plan_rank_count(&plan->input), contexts = ox_plan_contexts(&plan->input);
    const char *before = " ";
    text[0] = '\0';
    if (ranks == 1) {
        return text;
    }
    int used = contexts == 1 ? 0 : snprintf(
        text, RANKS_LINE_BYTES, "rows of every sequence: %u groups over %u ranks, which see keys and values of others "
        "by %s\n", ox_plan_row_groups(&plan->input), contexts, ox_context_mode_name(ox_trainer_context_mode(trainer)));
    used += snprintf(text + used, RANKS_LINE_BYTES - (size_t)used, "memory of all %u ranks together:", ranks);
    for (int tier = plan->input.budget.unified ? OX_TIER_HOST : OX_TIER_DEVICE; tier < OX_TIER_COUNT; tier++) {
        const uint64_t bytes = ox_engine_plan_all_bytes(plan, (enum ox_tier)tier);
        char size[OX_SIZE_TEXT_BYTES];
        if (bytes > 0) {
            used += snprintf(text + used, RANKS_LINE_BYTES - (size_t)used, "%s%s %s", before,
                             ox_tier_name((enum ox_tier)tier), ox_size_text(bytes, size));
            before = ", ";
        }
    }
    used += snprintf(text + used, RANKS_LINE_BYTES - (size_t)used, "; above is what rank 0 takes\n");
    uneven_text(plan, text + used);
    return text;
}

enum { EVAL_LINE_BYTES = 160 };

/* Says what evaluation needs beyond the ledger, which is for a step; seldom anything. */
static const char *eval_memory_text(const struct ox_engine_plan *plan, char text[EVAL_LINE_BYTES]) {
    int used = 0;
    text[0] = '\0';
    for (int tier = 0; tier < OX_TIER_NVME; tier++) {
        const uint64_t bytes = ox_engine_plan_peak_bytes(plan, (enum ox_tier)tier);
        char size[OX_SIZE_TEXT_BYTES];
        if (bytes > plan->train->peak_bytes[tier]) {
            used += snprintf(text + used, EVAL_LINE_BYTES - (size_t)used, "evaluation takes up to %s of %s memory\n",
                             ox_size_text(bytes, size), ox_tier_name((enum ox_tier)tier));
        }
    }
    return text;
}

enum { DEVICE_LINE_BYTES = 384 };

/* Describes in words what the run computes on. */
static const char *device_text(const struct ox_trainer *trainer, char text[DEVICE_LINE_BYTES]) {
    const struct ox_machine_gpu *const gpu = &trainer->machine.gpu;
    const struct ox_engine_config *const engine = &trainer->engine_config;
    char size[OX_SIZE_TEXT_BYTES], own[OX_SIZE_TEXT_BYTES];
    if (engine->device == OX_DEVICE_CPU) {
        snprintf(text, DEVICE_LINE_BYTES, "the CPU%s%s", trainer->no_gpu[0] != '\0' ? "; " : "", trainer->no_gpu);
        return text;
    }
    const bool seen = trainer->gpu.memory_bytes > 0;
    const uint32_t cores = trainer->machine.host.cores;
    const uint32_t threads =
        engine->ranks * ox_engine_optimizer_share(engine, engine->machine_optimizer_threads, engine->ranks);
    const int used = snprintf(text, DEVICE_LINE_BYTES, "%.64s, %s%s; %s of that go to driver, code and libraries",
                              seen ? trainer->gpu.name : gpu->name,
                              ox_size_text(seen ? trainer->gpu.memory_bytes : gpu->memory_bytes, size),
                              seen ? "" : ", which was not looked at", ox_size_text(trainer->gpu_process_bytes, own));
    if (engine->lane_cores > 0 && threads < cores) {
        snprintf(text + used, DEVICE_LINE_BYTES - (size_t)used, "; the optimizer leaves %u of %u cores to %s lanes",
                 cores - threads, cores, engine->ranks > 1 ? "the ranks'" : "its");
    }
    return text;
}

enum { COMPUTE_LINE_BYTES = 256 };

/* How many experts a layer has, and how many of them are a unit; or into how many groups of features the model is cut,
 * and which experts are units of their own then; "" without either. */
enum { EXPERTS_BYTES = 128 };
static const char *experts_text(const struct ox_model_config *config, char text[EXPERTS_BYTES]) {
    const struct ox_mixture *const mixture = &config->mixture;
    char apart[EXPERTS_BYTES / 2] = "with their blocks";
    if (mixture->per_unit > 0) {
        snprintf(apart, sizeof apart, "%u in a unit (--experts-per-unit)", mixture->per_unit);
    }
    const uint32_t experts = mixture->router.experts;
    if (ox_model_groups(config) > 1) {
        const int used = mixture->per_unit > 0 ? snprintf(text, EXPERTS_BYTES, ", %u experts, %s", experts, apart) : 0;
        snprintf(text + used, EXPERTS_BYTES - (size_t)used, ", in %u groups of features (--tensor-groups)",
                 ox_model_groups(config));
        return text;
    }
    snprintf(text, EXPERTS_BYTES, experts > 0 ? ", %u experts, %s" : "", experts, apart);
    return text;
}

/* Says in which format the run computes, and on the CPU what computes in bf16, or why nothing does. */
static const char *compute_text(const struct ox_engine_config *engine, char text[COMPUTE_LINE_BYTES]) {
    const char *library = "";
    const struct ox_precision *const precision = ox_engine_precision(engine);
    const char *const products = ox_real_name(precision->products), *const sums = ox_real_name(precision->sums);
    if (precision->products == precision->sums) {
        return products;
    }
    const bool there = engine->device != OX_DEVICE_CPU || ox_cpu_has_products(precision->products, &library);
    const int used = snprintf(text, COMPUTE_LINE_BYTES, "%s%s, %s sums", products, there ? "" : " weights", sums);
    if (engine->device == OX_DEVICE_CPU) {
        snprintf(text + used, COMPUTE_LINE_BYTES - (size_t)used, " (%s)", library);
    }
    return text;
}

/* Whether the number of steps is known only when the state that is resumed is read, which was not seen yet. */
static bool counts_what_is_left(const struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    return config->train.max_steps == 0 && config->files.resume_from_checkpoint[0] != '\0' &&
           trainer->state.run_id[0] == 0 && trainer->left_off.run_id[0] == 0;
}

enum { STEPS_LINE_BYTES = 160 };

/* Says how many steps the run has, or has left, as far as that is known. */
static const char *steps_text(const struct ox_trainer *trainer, char text[STEPS_LINE_BYTES]) {
    const uint64_t each = ox_trainer_epoch_steps(trainer);
    const struct ox_trainer_left left = ox_trainer_left(trainer);
    int used = 0;
    if (counts_what_is_left(trainer)) {
        snprintf(text, STEPS_LINE_BYTES, "what is left of %.6g epoch%s", trainer->config.train.num_train_epochs,
                 trainer->config.train.num_train_epochs == 1 ? "" : "s");
        return text;
    }
    if (left.end == 0) {
        snprintf(text, STEPS_LINE_BYTES, "%sas many steps as the text gives", left.seen ? "what is left of " : "");
        return text;
    }
    if (left.steps == 0) {
        snprintf(text, STEPS_LINE_BYTES, "nothing is left: step %" PRIu64 " is done, and the run ends at step %" PRIu64,
                 left.from, left.end);
        return text;
    }
    used = snprintf(text, STEPS_LINE_BYTES, "%" PRIu64 " step%s", left.steps, ox_plural(left.steps));
    if (left.seen) {
        used += snprintf(text + used, STEPS_LINE_BYTES - (size_t)used, " left, after step %" PRIu64 " of %" PRIu64,
                         left.from, left.end);
    }
    if (each > 0) { /* the schedule counts steps of one size, where those of the run have changed it */
        snprintf(text + used, STEPS_LINE_BYTES - (size_t)used, ", %.4g epoch%s of %" PRIu64 " step%s",
                 (double)trainer->schedule.total / (double)each, trainer->schedule.total == each ? "" : "s", each,
                 ox_plural(each));
    }
    return text;
}

/* ---- what train would refuse --------------------------------------------------------------------------- */

bool ox_trainer_is_elsewhere(const struct ox_trainer *trainer) {
    return trainer->config.files.given_profile[0] != '\0' &&
           trainer->config.files.profile[0] != '\0'; /* not nominal rates */
}

/* Notes a failure of a check, if it is one. */
static void note(struct ox_trainer *trainer, enum ox_status status) {
    const size_t used = strlen(trainer->refusals), room = sizeof trainer->refusals - used;
    if (status != OX_OK) {
        snprintf(trainer->refusals + used, room, "train would refuse this %s: %s\n",
                 ox_trainer_is_elsewhere(trainer) ? "on that machine" : "here", ox_error_text());
    }
}

static enum ox_status compare(const char *flag, uint64_t given, const char *of, uint64_t has) {
    char text[2][OX_SIZE_TEXT_BYTES];
    if (given <= has || has == 0) {
        return OX_OK;
    }
    ox_size_text(given, text[0]);
    if (strcmp(text[0], ox_size_text(has, text[1])) == 0) { /* a card of 24 GB has 24564 MiB */
        return ox_fail(OX_E_CONFIG, "%s %s: is %" PRIu64 " MiB more than the %" PRIu64 " MiB of %s", flag, text[0],
                       ox_div_up(given - has, OX_MIB), has / OX_MIB, of);
    }
    return ox_fail(OX_E_CONFIG, "%s %s: is more than the %s of %s", flag, text[0], text[1], of);
}

/* Compares budgets with the machine of the profile. */
static void compare_machine(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    struct ox_machine machine;
    if (ox_predict_machine(config->files.profile, (uint32_t)ox_max_u64(config->memory.nvme_count, 1), &machine) !=
        OX_OK) {
        return; /* which the prediction says */
    }
    const bool cuda = trainer->engine_config.device == OX_DEVICE_CUDA;
    const uint64_t ranks = ox_max_u64(trainer->engine_config.ranks, 1);
    const uint64_t on_host = config->memory.host_mem_bytes + (cuda ? 0 : ranks * config->memory.device_mem_bytes);
    note(trainer, compare(cuda || config->memory.device_mem_bytes == 0 ? "--host-mem"
                                                                     : "--host-mem and --device-mem together,",
                          on_host, machine.name, machine.host.memory_bytes));
    if (cuda && machine.has_gpu) {
        note(trainer,
             compare("--device-mem", config->memory.device_mem_bytes, machine.gpu.name, machine.gpu.memory_bytes));
        const uint64_t gpus = ox_max_u64(machine.gpu.count, 1) * ox_max_u64(machine.gpu.machines, 1);
        note(trainer, ranks <= gpus ? OX_OK
                                    : ox_fail(OX_E_CONFIG, "--ranks %" PRIu64 ": each takes a GPU, and %s has %" PRIu64,
                                              ranks, machine.name, gpus));
    }
    for (uint32_t i = 0; i < config->memory.nvme_count && i < machine.drive_count; i++) {
        const char *const kind = ox_memory_of_files(config->memory.nvme[i].path);
        if (kind != NULL) {
            ox_log(OX_LOG_WARN, "--nvme %s: files there are memory (%s), no drive", config->memory.nvme[i].path, kind);
        }
        char flag[OX_CONFIG_TEXT_BYTES + 16];
        snprintf(flag, sizeof flag, "--nvme %s", config->memory.nvme[i].path);
        note(trainer, compare(flag, config->memory.nvme[i].bytes, machine.name, machine.drives[i].capacity_bytes));
    }
}

enum ox_status ox_trainer_note_refusals(struct ox_trainer *trainer) {
    trainer->refusals[0] = '\0';
    if (ox_trainer_is_elsewhere(trainer)) {
        compare_machine(trainer);
        return OX_OK;
    }
    struct ox_host_claim claim = trainer->claim;
    claim.host_bytes = trainer->given_host_bytes;
    note(trainer, ox_host_claim_check(&claim));
    note(trainer, ox_trainer_check_places(trainer));
    return OX_OK;
}

/* Whether an earlier folder of --nvme is on the same file system as folder `idx`, whose room it shares. */
static bool shares_room(const struct ox_config *config, uint32_t idx) {
    struct stat own, other;
    bool shares = false;
    for (uint32_t i = 0; i < idx && stat(config->memory.nvme[idx].path, &own) == 0; i++) {
        shares = shares || (stat(config->memory.nvme[i].path, &other) == 0 && other.st_dev == own.st_dev);
    }
    return shares;
}

enum ox_status ox_trainer_check_drive_space(const struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    const uint64_t needed =
        ox_engine_plan_all_bytes(ox_trainer_plan(trainer), OX_TIER_NVME) / ox_trainer_machines(trainer);
    uint64_t sum = 0, free_bytes[OX_CONFIG_NVME_MAX] = {0};
    char text[3][OX_SIZE_TEXT_BYTES];
    for (uint32_t i = 0; i < config->memory.nvme_count; i++) {
        if (ox_store_exists(trainer->drives.folders[i]) ||
            ox_folder_free_bytes(config->memory.nvme[i].path, &free_bytes[i]) != OX_OK) {
            return OX_OK; /* or a folder that is refused already */
        }
        sum += shares_room(config, i) ? 0 : ox_min_u64(free_bytes[i], UINT64_MAX / 2 - sum);
    }
    for (uint32_t i = 0; i < config->memory.nvme_count && needed <= sum; i++) {
        if (config->memory.nvme[i].bytes > free_bytes[i]) {
            ox_log(OX_LOG_WARN, "--nvme %s: %s are given, and %s are free there; the plan takes %s of all drives",
                   config->memory.nvme[i].path, ox_size_text(config->memory.nvme[i].bytes, text[0]),
                   ox_size_text(free_bytes[i], text[1]), ox_size_text(needed, text[2]));
        }
    }
    return config->memory.nvme_count == 0 || needed <= sum
               ? OX_OK
               : ox_fail(OX_E_CONFIG,
                         "--nvme %s%s: the store takes %s, and %s are free there; make room, or give "
                         "another drive",
                         config->memory.nvme[0].path, config->memory.nvme_count > 1 ? " and the others" : "",
                         ox_size_text(needed, text[0]), ox_size_text(sum, text[1]));
}

enum ox_status ox_trainer_check_later(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    const bool fresh = config->files.resume_from_checkpoint[0] == '\0' && !config->files.overwrite_output_dir;
    const bool elsewhere = ox_trainer_is_elsewhere(trainer);
    const bool saves = fresh && config->files.output_dir[0] != '\0' && ox_trainer_leads(trainer) && !elsewhere;
    enum ox_status (*const checks[])(const struct ox_trainer *) = {ox_trainer_check_wear, ox_trainer_check_trace,
                                                                  ox_trainer_check_drive_space, ox_trainer_check_room};
    const unsigned count = saves ? 4 : elsewhere ? 2 : 3;
    for (unsigned i = 0; i < count; i++) {
        const enum ox_status status = checks[i](trainer);
        if (status != OX_OK && !config->tool.plan_only) {
            return status;
        }
        note(trainer, status);
    }
    return OX_OK;
}

/* ---- the verdict --------------------------------------------------------------------------------------- */

/* Writes "3 d 04 h", "2 h 05 min", "12 min" or seconds. */
static const char *long_text(double seconds, char text[OX_SIZE_TEXT_BYTES]) {
    const unsigned minutes = (unsigned)fmin(seconds / 60 + 0.5, 1e9);
    if (minutes >= 48 * 60) {
        snprintf(text, OX_SIZE_TEXT_BYTES, "%u d %02u h", minutes / 1440, minutes / 60 % 24);
    } else if (minutes >= 60) {
        snprintf(text, OX_SIZE_TEXT_BYTES, "%u h %02u min", minutes / 60, minutes % 60);
    } else if (minutes >= 3) {
        snprintf(text, OX_SIZE_TEXT_BYTES, "%u min", minutes);
    } else {
        ox_seconds_text(seconds, text);
    }
    return text;
}

/* The rows of an evaluation, as far as the data is known, and those of a step. */
static uint64_t eval_rows(const struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    const uint64_t limit = ox_trainer_unit(config) * config->save.eval_windows;
    struct ox_windows_counts counts = {.rows = 0};
    if (trainer->input.eval != NULL) {
        ox_windows_counts(trainer->input.eval, &counts);
    }
    uint64_t rows = limit > 0 ? ox_min_u64(limit, counts.rows) : counts.rows;
    for (uint32_t i = 1; i < trainer->input.eval_sets.count && trainer->input.eval_more[i] != NULL; i++) {
        ox_windows_counts(trainer->input.eval_more[i], &counts);
        rows += limit > 0 ? ox_min_u64(limit, counts.rows) : counts.rows;
    }
    return config->save.eval_strategy == OX_EVAL_NEVER ? 0 : rows;
}

static uint64_t step_rows(const struct ox_config *config) {
    return ox_trainer_unit(config) * config->train.per_device_train_batch_size *
           config->train.gradient_accumulation_steps;
}

/* Seconds of all evaluations that are left. */
static double evals_seconds(const struct ox_trainer *trainer) {
    const uint64_t rows = eval_rows(trainer);
    const struct ox_trainer_left left = ox_trainer_left(trainer);
    const uint64_t every = ox_trainer_eval_every(trainer, left.end);
    const uint64_t times = left.steps == 0 ? 0 : every > 0 ? ox_div_up(left.end, every) - left.from / every : 1;
    const double each = trainer->prediction.eval_seconds;
    return rows == 0 || isnan(each) ? 0 : each * (double)ox_div_up(rows, step_rows(&trainer->config)) * (double)times;
}

/* The rows that the reference of preferences is yet to be asked about, at most; 0 for a run that goes on. */
static uint64_t reference_rows(const struct ox_trainer *trainer) {
    struct ox_windows_counts counts;
    const struct ox_trainer_left left = ox_trainer_left(trainer);
    if (!trainer->config.loss.dpo || trainer->input.train == NULL || left.from > 0) {
        return 0;
    }
    ox_windows_counts(trainer->input.train, &counts);
    return ox_min_u64(counts.all_rows, left.end * step_rows(&trainer->config)) + eval_rows(trainer);
}

static double reference_seconds(const struct ox_trainer *trainer) {
    const double each = trainer->prediction.eval_seconds;
    return isnan(each) ? 0 : each * (double)ox_div_up(reference_rows(trainer), step_rows(&trainer->config));
}

/* A line about the pass over these rows, with what it takes: a number for each row, and the file that is written. */
static const char *reference_text(const struct ox_trainer *trainer, char text[EVAL_LINE_BYTES]) {
    const uint64_t rows = reference_rows(trainer);
    char bytes[OX_SIZE_TEXT_BYTES], seconds[OX_SIZE_TEXT_BYTES];
    text[0] = '\0';
    if (rows > 0) {
        snprintf(text, EVAL_LINE_BYTES, "reference: log-probabilities of %" PRIu64 " pairs, once before the first "
                 "step, %s; %s of host memory\n", rows / 2, long_text(reference_seconds(trainer), seconds),
                 ox_size_text(rows * 2 * sizeof(double), bytes));
    }
    return text;
}

void ox_trainer_verdict(const struct ox_trainer *trainer, struct ox_verdict *out) {
    const struct ox_engine_plan *const plan = ox_trainer_plan(trainer);
    const struct ox_plan_budget *const budget = &trainer->engine_config.budget;
    const uint64_t given[OX_TIER_COUNT] = {budget->device_bytes, budget->host_bytes, budget->nvme_bytes};
    const struct ox_trainer_left left = ox_trainer_left(trainer);
    *out = (struct ox_verdict){.fits = !trainer->is_over, .refusals = trainer->refusals, .steps = left.end,
                               .from_step = left.from, .epoch_steps = ox_trainer_epoch_steps(trainer),
                               .total_seconds = NAN};
    for (int tier = 0; tier < OX_TIER_COUNT; tier++) {
        const bool shared = tier == OX_TIER_DEVICE; /* each rank has one */
        out->used_bytes[tier] = shared ? ox_engine_plan_peak_bytes(plan, (enum ox_tier)tier)
                                       : ox_engine_plan_all_bytes(plan, (enum ox_tier)tier);
        out->given_bytes[tier] = given[tier];
    }
    out->drive_bytes = ox_align_up(out->used_bytes[OX_TIER_NVME], OX_MIB);
    if (left.end > 0 && !counts_what_is_left(trainer)) {
        out->total_seconds = (double)left.steps * trainer->prediction.mean_seconds + evals_seconds(trainer) +
                             reference_seconds(trainer);
    }
}

/* Says how long the run takes and when it ends if it begins now, where the number of steps is known. */
static void put_time(FILE *out, const struct ox_trainer *trainer, const struct ox_verdict *verdict) {
    char steps[STEPS_LINE_BYTES], time_text[OX_SIZE_TEXT_BYTES], end_text[32] = "";
    const time_t end = trainer->config.tool.clock_s + (time_t)fmin(verdict->total_seconds, 1e11);
    struct tm parts;
    fprintf(out, "  the run       %s", steps_text(trainer, steps));
    if (verdict->total_seconds > 0) { /* NaN: not known */
        fprintf(out, "; %s", long_text(verdict->total_seconds, time_text));
        if (trainer->config.tool.clock_s > 0 && gmtime_r(&end, &parts) != NULL &&
            strftime(end_text, sizeof end_text, "%Y-%m-%d %H:%M", &parts) > 0) {
            fprintf(out, ", until %s if it begins now", end_text);
        }
        fprintf(out, "; saving comes on top");
    }
    fprintf(out, "\n");
}

static void put_memory(FILE *out, const struct ox_trainer *trainer, const struct ox_verdict *verdict) {
    const bool unified = trainer->engine_config.budget.unified;
    const char *before = "  memory       ";
    char used[OX_SIZE_TEXT_BYTES], given[OX_SIZE_TEXT_BYTES];
    for (int tier = unified ? OX_TIER_HOST : OX_TIER_DEVICE; tier < OX_TIER_COUNT; tier++) {
        if (verdict->given_bytes[tier] > 0) {
            const bool each = tier == OX_TIER_DEVICE && trainer->engine_config.ranks > 1;
            fprintf(out, "%s %s %s of %s%s", before, ox_tier_name((enum ox_tier)tier),
                    ox_size_text(verdict->used_bytes[tier], used), ox_size_text(verdict->given_bytes[tier], given),
                    each ? " a rank" : "");
            before = ",";
        }
    }
    ox_size_text(ox_trainer_beside_bytes(&trainer->engine_config, ox_max_u64(trainer->engine_config.ranks, 1)), used);
    fprintf(out, "; the process takes up to %s beside that\n", used);
}

/* About what stores of all ranks take where gradients do not wait there: both generations of weights and state. */
static uint64_t whole_store_bytes(const struct ox_trainer *trainer) {
    const struct ox_engine_plan *const plan = ox_trainer_plan(trainer);
    const double elems = (double)ox_trainer_model(trainer)->param_count;
    const double bytes = elems * ox_shard_bytes_per_elem(&plan->whole) *
                         ox_plan_generations(&trainer->engine_config.budget);
    return ox_align_up((uint64_t)bytes + ox_store_fixed_bytes(2 * plan->whole.chunk_count), OX_MIB);
}

/* Says what to buy: the stores, and what checkpoints come to. */
static void put_space(FILE *out, const struct ox_trainer *trainer, const struct ox_verdict *verdict) {
    struct ox_checkpoint_room room;
    char size[OX_SIZE_TEXT_BYTES], most[OX_SIZE_TEXT_BYTES];
    ox_trainer_room(trainer, &room);
    fprintf(out, "  space         ");
    if (verdict->drive_bytes > 0) {
        fprintf(out, "%s on drives (--nvme), ", ox_size_text(verdict->drive_bytes, size));
    } else {
        fprintf(out, "a store on drives, if you give --nvme, takes %s, ",
                ox_size_text(whole_store_bytes(trainer), size));
    }
    fprintf(out, "%s a checkpoint", ox_size_text(room.each_bytes, size));
    if (room.written > 0) {
        fprintf(out, ", %s for the %" PRIu64 " that %s kept", ox_size_text(room.most_bytes, most), room.kept,
                room.kept == 1 ? "is" : "are");
    }
    if (room.profile_bytes < room.most_bytes) {
        fprintf(out, ", more than the %s that the profile's drives hold beside the store (--save-total-limit)",
                ox_size_text(room.profile_bytes, most));
    }
    fprintf(out, "; a save needs %s free beside that", ox_size_text(OX_CHECKPOINT_BESIDE_BYTES, size));
    fprintf(out, "\n");
}

/* Names the one change that makes the run fit, or the one that speeds it up most, as the advice has it; without one
 * what the step waits for. */
static void put_help(FILE *out, const struct ox_trainer *trainer, const struct ox_advice *advice) {
    const struct ox_sim_result *const step = &trainer->prediction.step;
    char best[OX_ADVICE_LINE_BYTES] = "";
    if (trainer->is_over) {
        fprintf(out, "  to fit        %s\n", trainer->nearest);
    } else if (advice != NULL && ox_advice_best_text(advice, best)) {
        fprintf(out, "  helps most    %s\n", best);
    } else {
        fprintf(out, "  limited by    %s, for %.0f %% of a step; %s\n", ox_sim_resource_name(step->binding),
                100 * step->binding_share, advice != NULL ? "nothing that was tried gains 2 %"
                                                          : "`offload plan` with these options tries what would help");
    }
}

enum { FROZEN_BYTES = 160 };

/* What a plan comes to, in six lines, and what keeps the run from starting here. */
static enum ox_status verdict_text(const struct ox_trainer *trainer, const struct ox_advice *advice, char **text) {
    struct ox_verdict verdict;
    size_t bytes = 0;
    FILE *const out = open_memstream(text, &bytes);
    if (out == NULL) {
        return ox_fail(OX_E_NOMEM, "plan: no memory for its text");
    }
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const double tokens = (double)engine->batch * engine->seq * engine->micro_batches;
    const struct ox_measured *const measured = trainer->prediction.measured;
    char params[OX_SIZE_TEXT_BYTES], seconds[OX_SIZE_TEXT_BYTES];
    ox_trainer_verdict(trainer, &verdict);
    const struct ox_model *const model = ox_trainer_model(trainer);
    char trained[OX_SIZE_TEXT_BYTES + 32] = "";
    if (model->trained_count < model->param_count) {
        snprintf(trained, sizeof trained, ", %s trained", ox_count_text((double)model->trained_count, params));
    }
    fprintf(out, "verdict: %s, %s parameters%s of %.4g bytes each\n",
            !verdict.fits                ? "it does not fit"
            : verdict.refusals[0] != '\0' ? "it fits, but would not start here" : "it fits",
            ox_count_text((double)model->param_count, params), trained,
            ox_shard_bytes_per_elem(&ox_trainer_plan(trainer)->whole));
    fprintf(out, "  a step        %s, %.*f tokens/s, by %s\n",
            ox_seconds_text(trainer->prediction.mean_seconds, seconds),
            tokens / trainer->prediction.mean_seconds < 100 ? 2 : 0, tokens / trainer->prediction.mean_seconds,
            measured != NULL && measured->busy ? "what this machine did beside other programs: it may be off"
            : measured != NULL             ? "what this machine was measured to do"
            : trainer->prediction.profiled ? "the profile of a machine" : "nominal rates, not this machine's");
    put_time(out, trainer, &verdict);
    put_memory(out, trainer, &verdict);
    put_space(out, trainer, &verdict);
    put_help(out, trainer, advice);
    fputs(verdict.refusals, out);
    if (fclose(out) != 0) {
        free(*text);
        *text = NULL;
        return ox_fail(OX_E_NOMEM, "plan: no memory for its text");
    }
    return OX_OK;
}

/* What --freeze leaves to train; "" for all. Of the others only weights are kept, once, except in units that are
 * trained in part, which are kept whole. */
static const char *trained_text(const struct ox_model *model, const struct ox_shard_table *table,
                                char text[FROZEN_BYTES]) {
    uint64_t frozen = 0, bytes = 0;
    char trained_count[OX_SIZE_TEXT_BYTES], count[OX_SIZE_TEXT_BYTES], beside[FROZEN_BYTES] = "";
    text[0] = '\0';
    for (uint32_t i = 0; i < model->unit_count; i++) {
        const struct ox_unit *const unit = &model->units[i];
        frozen += unit->trained ? 0 : unit->param_count;
        const struct ox_shard *const shard = &table->shards[i];
        bytes += unit->trained
                     ? 0 : unit->param_count * (shard->hi_per_group + shard->sizes.lo_per_group) / OX_GROUP_ELEMS;
    }
    const uint64_t partly = model->param_count - model->trained_count - frozen;
    if (model->trained_count == model->param_count) {
        return text;
    }
    if (partly > 0) {
        snprintf(beside, sizeof beside, "%s%s frozen ones are kept as the trained ones beside them",
                 frozen > 0 ? ", " : "; ", ox_count_text((double)partly, count));
    }
    int at = snprintf(text, FROZEN_BYTES, " (%s trained", ox_count_text((double)model->trained_count, trained_count));
    if (frozen > 0) {
        at += snprintf(text + at, FROZEN_BYTES - (size_t)at, "; frozen are %s of %.3g bytes each",
                       ox_count_text((double)frozen, count), (double)bytes / (double)frozen);
    }
    snprintf(text + at, FROZEN_BYTES - (size_t)at, "%s)", beside);
    return text;
}

/* What Muon computes in a step beside moving the state; "" with another optimizer. */
static const char *products_text(const struct ox_trainer *trainer, char text[STEPS_LINE_BYTES]) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const uint32_t own = ox_engine_optimizer_share(engine, engine->machine_optimizer_threads, engine->ranks);
    const uint32_t threads = own > 0 ? own * engine->ranks : trainer->machine.host.cores;
    const bool on_gpu = trainer->machine.has_gpu;
    char seconds[OX_SIZE_TEXT_BYTES];
    double flops = 0;
    for (uint32_t i = 0; i < engine->model->unit_count; i++) {
        flops += ox_muon_unit_flops(engine, i);
    }
    text[0] = '\0';
    if (flops > 0 && (on_gpu || trainer->machine.host.core_flops > 0)) {
        snprintf(text, STEPS_LINE_BYTES, "newton-schulz: %.3g GFLOP a step, about %s of ", flops * 1e-9,
                 ox_seconds_text(ox_sim_product_seconds(&trainer->machine, flops, threads), seconds));
        const size_t at = strlen(text);
        snprintf(text + at, STEPS_LINE_BYTES - at, on_gpu ? "a GPU\n" : "%u threads\n", threads);
    }
    return text;
}

enum ox_status ox_trainer_plan_text(const struct ox_trainer *trainer, enum ox_plan_detail detail,
                                    const struct ox_advice *advice, char **text) {
    const struct ox_engine_plan *const plan = ox_trainer_plan(trainer);
    const struct ox_model *const model = ox_trainer_model(trainer);
    const struct ox_engine_config *const engine = &trainer->engine_config;
    char *body = NULL, *verdict = NULL;
    *text = NULL;
    enum ox_status status = verdict_text(trainer, advice, &verdict);
    OX_THEN(status, ox_plan_text(plan->train, &plan->input, detail, &body));
    if (status != OX_OK) {
        free(verdict);
        return status;
    }
    char prediction[OX_PREDICTION_TEXT_BYTES], reference[EVAL_LINE_BYTES], meshes[OX_MESH_TABLE_BYTES] = "";
    if (ox_trainer_meshes(trainer) != NULL) {
        ox_mesh_table(&trainer->mesh_choice, meshes);
    }
    ox_prediction_text(&trainer->prediction, (uint64_t)engine->batch * engine->seq * engine->micro_batches, prediction);
    char overhead[OX_SIZE_TEXT_BYTES], tables[OX_SIZE_TEXT_BYTES], wear[OX_WEAR_LINE_BYTES];
    char persist[OX_PERSIST_LINE_BYTES], eval_memory[EVAL_LINE_BYTES], room[OX_ROOM_LINE_BYTES];
    ox_size_text(ox_trainer_beside_bytes(engine, ox_max_u64(engine->ranks, 1)), overhead);
    ox_size_text(plans_memory_bytes(plan), tables);
    char all_ranks[RANKS_LINE_BYTES], compute[COMPUTE_LINE_BYTES];
    char params[OX_SIZE_TEXT_BYTES], device[DEVICE_LINE_BYTES], steps[STEPS_LINE_BYTES], products[STEPS_LINE_BYTES];
    steps_text(trainer, steps);
    char trained[FROZEN_BYTES], experts[EXPERTS_BYTES];
    const int length = asprintf(text,
        "%s\n"
        "model: %s, %s parameters%s, %u layer%s, hidden %u, vocabulary %u%s; compute in %s\n"
        "device: %s\n"
        "optimizer: %s, moments in %s%s, %.4g bytes per parameter with the weight\n%s"
        "batch: %u x %u tokens, %u micro-batch%s a step, %s\n%s"
        "%s%s%s%sbeside the arenas the process takes up to %s (code, libraries, packing buffers) and %s for the plan\n"
        "%s%s%s%s",
        verdict, model->config.family, ox_count_text((double)model->param_count, params),
        trained_text(model, &plan->table, trained), model->config.layers,
        ox_plural(model->config.layers), model->config.hidden, model->config.vocab,
        experts_text(&model->config, experts), compute_text(engine, compute),
        device_text(trainer, device),
        ox_optim_kind_name(engine->state.kind), ox_moments_name(engine->state.moments),
        engine->state.averages ? ", averages of the weights in f32" : "", ox_shard_bytes_per_elem(&plan->whole),
        products_text(trainer, products), engine->batch, engine->seq,
        engine->micro_batches, ox_plural_es(engine->micro_batches), steps, body,
        meshes, all_ranks_text(trainer, all_ranks),
        eval_memory_text(plan, eval_memory), reference_text(trainer, reference),
        overhead, tables, prediction,
        ox_trainer_persist_text(trainer, persist), ox_trainer_wear_text(trainer, wear),
        ox_trainer_room_text(trainer, room));
    free(verdict);
    free(body);
    return length < 0 ? ox_fail(OX_E_NOMEM, "plan: no memory for its text") : OX_OK;
}
