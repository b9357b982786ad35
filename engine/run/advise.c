#include "engine/run/advise.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "engine/config/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MORE_HOST_BYTES (32 * OX_GIB)
#define MORE_DEVICE_BYTES (8 * OX_GIB)
/* Size of the drive that a run without drives is advised to add. */
#define FIRST_DRIVE_BYTES (UINT64_C(4) << 40)
/* A change of less than this share is not worth a line. */
static const double NOTABLE = 0.02;

/* A copy of the run's configuration in which one thing is changed, with the data that it points to. */
struct variant {
    struct ox_engine_config config;
    struct ox_machine machine;
    uint64_t drive_bytes[OX_STORE_DRIVES_MAX], drive_speeds[OX_MACHINE_DRIVES_MAX];
};

const char *ox_advice_name(enum ox_advice_kind kind) {
    static const char *const names[OX_ADVICE_COUNT] = {"drive", "host_memory", "device_memory", "tokens",
                                                       "ranks", "one_rank", "library_sums"};
    OX_ASSERT((unsigned)kind < OX_ADVICE_COUNT);
    return names[kind];
}

static bool add_drive(struct variant *v) {
    struct ox_plan_budget *const budget = &v->config.budget;
    const uint32_t count = v->config.nvme_count;
    if (count >= OX_STORE_DRIVES_MAX || (count > 0 && v->config.nvme_bytes == NULL)) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        v->drive_bytes[i] = v->config.nvme_bytes[i];
    }
    v->drive_bytes[count] = count > 0 ? v->drive_bytes[count - 1] : FIRST_DRIVE_BYTES;
    v->config.nvme_bytes = budget->drive_bytes = v->drive_bytes;
    budget->drive_paths = NULL;
    v->config.nvme_count = budget->drive_count = count + 1;
    budget->nvme_bytes += v->drive_bytes[count];
    ox_machine_fit_drives(&v->machine, count + 1);
    budget->drive_speeds = ox_machine_drive_speeds(&v->machine, v->drive_speeds) ? v->drive_speeds : NULL;
    return true;
}

/* Only GPUs are bought in numbers. The order of sums of the current plan stays possible. Copies stay as large. */
static bool double_ranks(struct ox_engine_config *config) {
    const uint32_t contexts = (uint32_t)ox_max_u64(config->contexts, 1);
    config->ranks = 2 * (uint32_t)ox_max_u64(1, config->ranks);
    config->copies *= config->copies > 1 ? 2 : 1;
    const uint64_t of_batch =
        config->ranks / ox_max_u64(config->pipe, 1) / ox_max_u64(config->tensors, 1) / contexts;
    config->sum_groups = (uint32_t)ox_max_u64(config->sum_groups, of_batch);
    return config->experts <= 1 && config->device == OX_DEVICE_CUDA && config->ranks <= OX_RANKS_MAX &&
           of_batch <= config->micro_batches && config->context_groups <= contexts;
}

/* NCCL takes nothing from host memory, which `shared` gathers from, and adds over all ranks at once, of which each has
 * all layers, rows, features and experts. */
static bool add_by_library(struct ox_engine_config *config) {
    const bool can = config->device == OX_DEVICE_CUDA && config->ranks > 1 && !config->library_sums &&
                     config->sharding != OX_SHARDING_SHARED && config->comm != OX_RANK_COMM_LOCAL &&
                     config->copies <= 1 && config->pipe <= 1 && config->context_groups <= 1 && config->tensors <= 1 &&
                     config->experts <= 1 && config->exchange == OX_EXCHANGE_FP32;
    config->library_sums = true;
    return can;
}

/* Changes one thing; returns false if that is not possible. */
static bool vary(struct variant *v, enum ox_advice_kind kind) {
    struct ox_plan_budget *const budget = &v->config.budget;
    switch (kind) {
    case OX_ADVICE_DRIVE:
        return add_drive(v);
    case OX_ADVICE_HOST:
        return ox_add_u64(budget->host_bytes, MORE_HOST_BYTES, &budget->host_bytes);
    case OX_ADVICE_DEVICE:
        return !budget->unified && ox_add_u64(budget->device_bytes, MORE_DEVICE_BYTES, &budget->device_bytes);
    case OX_ADVICE_RANKS:
        return double_ranks(&v->config);
    case OX_ADVICE_ONE_RANK:
        v->config.ranks = v->config.ranks > 1 ? 1 : 0;
        v->config.copies = 0;
        v->config.pipe = v->config.contexts = v->config.tensors = v->config.experts = 1;
        v->config.store_ranks = 0;
        /* a rank with several groups of rows has no experts that are units of their own */
        return v->config.ranks == 1 &&
               (v->config.context_groups <= 1 || v->config.model->config.mixture.per_unit == 0);
    case OX_ADVICE_LIBRARY:
        return add_by_library(&v->config);
    default:
        v->config.micro_batches *= 2;
        return v->config.micro_batches <= UINT32_MAX / 4;
    }
}

static enum ox_status ask(const struct ox_predict_input *input, const struct ox_prediction *now,
                          enum ox_advice_kind kind, struct ox_advice *out) {
    struct variant v = {.config = *input->config, .machine = *input->config->machine};
    v.config.request.rough = v.config.compares = true;
    v.config.machine = &v.machine;
    const bool falls_back = kind < OX_ADVICE_TOKENS; /* on the current plan, which still fits with more memory */
    if (!vary(&v, kind)) {
        return OX_OK;
    }
    if (kind == OX_ADVICE_HOST && input->plan->others == NULL && input->plan->spare_host) { /* the same search again */
        *out = (struct ox_advice){.known = true, .ranks = v.config.ranks, .sum_groups = v.config.sum_groups,
                                  .seconds = now->mean_seconds, .speedup = 1};
        return OX_OK;
    }
    struct ox_engine_plan *plan = NULL;
    struct ox_prediction then;
    enum ox_status status = ox_engine_plan_open(&v.config, &plan);
    const bool none = status == OX_E_CONFIG; /* more micro-batches than a plan can hold */
    if (status == OX_OK) {
        struct ox_predict_input varied = *input;
        varied.config = &v.config;
        varied.plan = plan;
        varied.step_alone = true;
        status = ox_predict(&varied, &then);
    }
    if (status == OX_OK) {
        const double tokens = (double)v.config.micro_batches / input->config->micro_batches;
        const bool as_now = falls_back && now->mean_seconds < then.mean_seconds;
        const double seconds = as_now ? now->mean_seconds : then.mean_seconds;
        *out = (struct ox_advice){.known = true, .ranks = v.config.ranks, .sum_groups = v.config.sum_groups,
                                  .seconds = seconds,
                                  .speedup = tokens * now->mean_seconds / seconds};
    }
    ox_engine_plan_close(&plan);
    return none ? OX_OK : status;
}

enum ox_status ox_advise(const struct ox_predict_input *input, const struct ox_prediction *now,
                         struct ox_advice out[OX_ADVICE_COUNT]) {
    enum ox_status status = OX_OK;
    for (int kind = 0; kind < OX_ADVICE_COUNT && status == OX_OK; kind++) {
        out[kind] = (struct ox_advice){.known = false};
        status = ask(input, now, (enum ox_advice_kind)kind, &out[kind]);
    }
    return status;
}

/* ---- without what is asked for --------------------------------------------------------------------------- */

/* Options of placement that a request has. */
static const char *const forced[] = {"--weights-tier", "--state-tier", "--grads-tier", "--activation-tier",
                                     "--kept-blocks", "--prefetch-depth", "--tiles", "--optimizer-overlap",
                                     "--device-state-units"};
enum { FORCED = sizeof forced / sizeof *forced };

/* Leaves the option to the planner; returns whether it was given. */
static bool release(struct ox_placement_request *request, int option) {
    const struct ox_placement_request before = *request;
    switch (option) {
    case 0:
        request->weights_tier = OX_TIER_COUNT;
        return before.weights_tier != OX_TIER_COUNT;
    case 1:
        request->state_tier = OX_TIER_COUNT;
        return before.state_tier != OX_TIER_COUNT;
    case 2:
        request->grad_tier = OX_TIER_COUNT;
        return before.grad_tier != OX_TIER_COUNT;
    case 3:
        request->act_tier = OX_TIER_COUNT;
        return before.act_tier != OX_TIER_COUNT;
    case 4:
        request->kept_units = -1;
        return before.kept_units != -1;
    case 5:
        request->prefetch_depth = -1;
        return before.prefetch_depth != -1;
    case 6:
        request->tiles = 0;
        return before.tiles != 0;
    case 7:
        request->overlap = request->speculative_units = -1;
        return before.overlap != -1 || before.speculative_units != -1;
    default:
        request->device_units = 0;
        return before.device_units != 0;
    }
}

static bool fits(struct ox_engine_config *config) {
    struct ox_engine_plan *plan = NULL;
    config->request.rough = config->compares = true;
    const bool does = ox_engine_plan_open(config, &plan) == OX_OK;
    ox_engine_plan_close(&plan);
    return does;
}

enum ox_status ox_advise_without(const struct ox_engine_config *config, enum ox_status refused) {
    char kept[OX_ERROR_TEXT_BYTES], names[160] = "";
    struct ox_engine_config all = *config;
    unsigned count = 0;
    size_t used = 0;
    if (refused == OX_OK) {
        return OX_OK;
    }
    snprintf(kept, sizeof kept, "%s", ox_error_text());
    for (int i = 0; i < FORCED && names[0] == '\0'; i++) {
        struct ox_engine_config one = *config;
        if (release(&one.request, i)) {
            (void)release(&all.request, i);
            count++;
            if (fits(&one)) {
                snprintf(names, sizeof names, ", or leave out %s", forced[i]);
            }
        }
    }
    const bool together = names[0] == '\0' && count > 1 && fits(&all);
    for (int i = 0; i < FORCED && together && used < sizeof names; i++) {
        struct ox_engine_config one = *config;
        if (release(&one.request, i)) {
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                     used == 0 ? ", or leave out " : " and ", forced[i]);
        }
    }
    return ox_fail(refused, "%s%s", kept, names);
}

enum { CHANGE_BYTES = 64 };

/* Writes the change in words. Fewer ranks keep the order of sums, and with it the bits, for which there is a flag. */
static const char *change_text(const struct ox_advice *advice, enum ox_advice_kind kind, char text[CHANGE_BYTES]) {
    static const char *const with[OX_ADVICE_COUNT] = {
        [OX_ADVICE_DRIVE] = "one more drive", [OX_ADVICE_HOST] = "32 GiB more host memory",
        [OX_ADVICE_DEVICE] = "8 GiB more device memory", [OX_ADVICE_TOKENS] = "twice the tokens a step",
        [OX_ADVICE_LIBRARY] = "--reduction library, not reproducible"};
    if (kind == OX_ADVICE_ONE_RANK && advice->sum_groups > 1) {
        snprintf(text, CHANGE_BYTES, "1 rank and --sum-groups %u", advice->sum_groups);
    } else if (with[kind] == NULL) {
        snprintf(text, CHANGE_BYTES, "%u rank%s", advice->ranks, ox_plural(advice->ranks));
    } else {
        snprintf(text, CHANGE_BYTES, "%s", with[kind]);
    }
    return text;
}

bool ox_advice_best_text(const struct ox_advice advice[OX_ADVICE_COUNT], char text[OX_ADVICE_LINE_BYTES]) {
    int best = -1;
    bool free_gains = false; /* gradients of more micro-batches cost nothing to buy */
    for (int kind = 0; kind < OX_ADVICE_COUNT; kind++) {
        const bool gains = advice[kind].known && advice[kind].speedup > 1 + NOTABLE;
        best = gains && (best < 0 || advice[kind].speedup > advice[best].speedup) ? kind : best;
        free_gains = free_gains || (gains && kind == OX_ADVICE_TOKENS);
    }
    size_t used = 0;
    text[0] = '\0';
    if (free_gains) {
        used = (size_t)snprintf(text, OX_ADVICE_LINE_BYTES,
                                "twice the tokens a step, by --gradient-accumulation-steps: %.2f times the tokens/s%s",
                                advice[OX_ADVICE_TOKENS].speedup,
                                best != OX_ADVICE_TOKENS ? "; " : "");
    }
    if (best >= 0 && best != OX_ADVICE_TOKENS) {
        char change[CHANGE_BYTES];
        snprintf(text + used, OX_ADVICE_LINE_BYTES - used, "%s: %.2f times%s",
                 change_text(&advice[best], (enum ox_advice_kind)best, change), advice[best].speedup,
                 free_gains ? "" : " the tokens/s");
    }
    return best >= 0;
}

void ox_advice_text(const struct ox_advice advice[OX_ADVICE_COUNT], char *text) {
    size_t used = 0;
    text[0] = '\0';
    for (int kind = 0; kind < OX_ADVICE_COUNT; kind++) {
        const struct ox_advice *const a = &advice[kind];
        const bool counts_ranks = kind == OX_ADVICE_RANKS || kind == OX_ADVICE_ONE_RANK;
        const bool notable = fabs(1 / a->speedup - 1) > NOTABLE;
        char time[OX_SIZE_TEXT_BYTES], change[CHANGE_BYTES];
        if (!a->known || (!notable && !counts_ranks) || used >= OX_ADVICE_TEXT_BYTES) {
            continue;
        }
        used += (size_t)snprintf(text + used, OX_ADVICE_TEXT_BYTES - used,
                                 "with %s: %s a step on average, %.2f times the tokens/s%s\n",
                                 change_text(a, (enum ox_advice_kind)kind, change), ox_seconds_text(a->seconds, time),
                                 a->speedup, !notable ? ", so the number of ranks gains nothing" : "");
    }
}
