/* What the ranks of a mesh divide, chosen by the simulator: every division that these ranks can have is planned and
 * its steps are predicted. */
#include "engine/run/trainer_internal.h"

#include "base/log.h"

#include <math.h>
#include <stdio.h>

/* Makes the plan and predicts its steps. */
enum ox_status ox_trainer_try_division(struct ox_trainer *trainer, const struct ox_division *division,
                                       struct ox_prediction *prediction) {
    trainer->engine_config.sharding = division->sharding;
    trainer->engine_config.copies = division->copies;
    prediction->mean_seconds = 0;
    enum ox_status status = ox_engine_plan_open(&trainer->engine_config, &trainer->plan);
    if (status == OX_OK) {
        const struct ox_predict_input input = ox_trainer_predict_input(trainer);
        status = ox_predict(&input, prediction);
    }
    return status;
}

enum ox_status ox_trainer_time_sharding(struct ox_trainer *trainer, enum ox_sharding sharding, double *seconds) {
    const struct ox_division division = {.sharding = sharding, .copies = trainer->engine_config.copies};
    struct ox_prediction prediction;
    const enum ox_status status = ox_trainer_try_division(trainer, &division, &prediction);
    *seconds = status == OX_OK ? prediction.mean_seconds : 0;
    return status;
}

/* Whether weights and state of so many copies, 12 bytes a parameter, may find room in the memory of all ranks. */
static bool may_fit(const struct ox_trainer *trainer, uint32_t copies) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const struct ox_plan_budget *const budget = &engine->budget;
    const double room = (double)budget->host_bytes +
                        (budget->unified ? 0 : (double)budget->device_bytes * engine->ranks);
    double elems = 0;
    for (uint32_t i = 0; i < engine->model->unit_count; i++) {
        elems += (double)engine->model->units[i].elem_count;
    }
    return 12 * elems * copies <= room;
}

/* How many copies ranks may make beside one: one on each machine, or two. 0: they may not, because a store has one
 * copy, the library adds over all ranks, or sums that are rounded would be rounded in another place. */
static uint32_t copies_of(const struct ox_trainer *trainer) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const uint32_t of_data = engine->ranks / engine->pipe, machines = ox_trainer_machines(trainer);
    const uint32_t copies = machines > 1 ? machines : 2;
    const bool exact = engine->exchange == OX_EXCHANGE_FP32 && !engine->library_sums;
    return exact && trainer->config.memory.nvme_count == 0 && of_data % copies == 0 && of_data / copies > 1 &&
                   may_fit(trainer, copies)
               ? copies : 0;
}

uint32_t ox_trainer_divisions(const struct ox_trainer *trainer, struct ox_division out[OX_DIVISIONS_MAX]) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const uint32_t copies = copies_of(trainer), of_data = engine->ranks / engine->pipe;
    /* What lies in host memory once is one process's, of ranks that have the same layers, and NCCL takes nothing from
     * there. */
    const bool shares = trainer->team == NULL && engine->comm != OX_RANK_COMM_NCCL && engine->pipe == 1;
    const bool whole = engine->exchange == OX_EXCHANGE_FP32 && trainer->config.memory.nvme_count == 0 &&
                       may_fit(trainer, of_data);
    const struct {
        struct ox_division division;
        bool may;
    } all[OX_DIVISIONS_MAX] = {
        {{"full_shard", OX_SHARDING_FULL, 0, true}, true},
        {{"shard_grad_op", OX_SHARDING_STEP, 0, false}, true},
        {{"zero2", OX_SHARDING_GRAD, 0, true}, true},
        {{"shared", OX_SHARDING_SHARED, 0, true}, shares},
        {{"hybrid_shard", OX_SHARDING_FULL, copies, false}, copies > 0},
        {{"hybrid_shard_zero2", OX_SHARDING_STEP, copies, false}, copies > 0},
        {{"no_shard", OX_SHARDING_NONE, 0, false}, whole},
    };
    uint32_t count = 0;
    for (int i = 0; i < OX_DIVISIONS_MAX; i++) {
        if (all[i].may) {
            out[count++] = all[i].division;
        }
    }
    return count;
}

/* What was predicted for a division; INFINITY: it has no plan. */
struct tried {
    double seconds, binding_share;
    enum ox_sim_resource binding;
};

/* Says which was taken, beside all others, and why: what binds it, and what binds the next one. */
static void tell(const struct ox_division *divisions, const struct tried *tried, uint32_t count, uint32_t best) {
    char text[512], why[256] = "";
    uint32_t next = best;
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < count && used < sizeof text; i++) {
        const char *const between = i == 0 ? "" : ", ";
        used += (size_t)(isfinite(tried[i].seconds)
                             ? snprintf(text + used, sizeof text - used, "%s%s %.3g s", between, divisions[i].name,
                                        tried[i].seconds)
                             : snprintf(text + used, sizeof text - used, "%s%s has no plan", between,
                                        divisions[i].name));
        next = i != best && isfinite(tried[i].seconds) && (next == best || tried[i].seconds < tried[next].seconds)
                   ? i : next;
    }
    if (next != best) {
        snprintf(why, sizeof why, "; %s has %s at its limit for %.0f %% of a step, %s has %s for %.0f %% of one %.2f "
                 "times as long", divisions[best].name, ox_sim_resource_name(tried[best].binding),
                 100 * tried[best].binding_share, divisions[next].name, ox_sim_resource_name(tried[next].binding),
                 100 * tried[next].binding_share, tried[next].seconds / tried[best].seconds);
    }
    ox_log(OX_LOG_INFO, "--sharding auto: takes %s, by the predicted time of a step: %s%s", divisions[best].name, text,
           why);
}

/* Compares what ranks may divide by the simulator, from the choice that takes the least memory on; another one has to
 * gain 1 %. If nothing fits, the refusal is that of the first. */
enum ox_status ox_trainer_choose_sharding(struct ox_trainer *trainer) {
    struct ox_engine_config *const engine = &trainer->engine_config;
    struct ox_division divisions[OX_DIVISIONS_MAX];
    struct tried tried[OX_DIVISIONS_MAX] = {{.seconds = (double)INFINITY}};
    const uint32_t count = ox_trainer_divisions(trainer, divisions);
    uint32_t best = 0;
    engine->request.rough = true;
    for (uint32_t i = 0; i < count; i++) {
        struct ox_prediction prediction;
        const enum ox_status status = ox_trainer_try_division(trainer, &divisions[i], &prediction);
        ox_engine_plan_close(&trainer->plan);
        if (status != OX_OK && status != OX_E_CONFIG) {
            return status;
        }
        tried[i] = (struct tried){.seconds = (double)INFINITY};
        if (status == OX_OK) {
            tried[i] = (struct tried){prediction.mean_seconds, prediction.step.binding_share, prediction.step.binding};
        }
        best = tried[i].seconds < 0.99 * tried[best].seconds ? i : best;
    }
    engine->sharding = divisions[best].sharding;
    engine->copies = divisions[best].copies;
    engine->request.rough = false;
    if (isfinite(tried[best].seconds)) {
        tell(divisions, tried, count, best);
    }
    return ox_engine_plan_open(engine, &trainer->plan);
}
