/* How much a run wears its drives: printed with the plan, and refused if it is a large share of their endurance. */
#include "engine/run/trainer_internal.h"

#include "nvme/wear.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A run that would use up more than this share of a drive needs --accept-wear. */
static const double share_max = 0.1;

/* Every how many steps the state is written. It counts as every step if only nominal rates say otherwise. */
static uint64_t persist_steps(const struct ox_trainer *trainer) {
    const bool known = trainer->prediction.profiled || strcmp(trainer->config.persist_steps, "auto") != 0;
    return known ? trainer->prediction.persist_steps : 1;
}

/* The share of all written bytes that the busiest drive gets; state and spool are divided by speed. */
static double largest_share(const struct ox_trainer *trainer) {
    const uint64_t *const speeds = trainer->engine_config.budget.drive_speeds;
    const uint32_t count = trainer->config.nvme_count;
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
        const struct ox_plan_input *const input = &ox_engine_plan_at(plan, i)->input;
        const uint32_t count = ox_engine_plan_at(plan, i)->train != NULL ? input->model.unit_count : 0;
        for (uint32_t unit_idx = 0; unit_idx < count; unit_idx++) {
            ox_plan_adam_traffic(input, unit_idx, (struct ox_adam_work){.updates = true, .stays = true}, traffic);
        }
    }
    return traffic[OX_LINK_NVME_WRITE][OX_TRAFFIC_WEIGHTS] + traffic[OX_LINK_NVME_WRITE][OX_TRAFFIC_STATE];
}

/* The wear of the busiest drive: every step writes gradients, activations and the state that lives on drives, and some
 * write all of the state. */
static struct ox_wear wear_of(const struct ox_trainer *trainer) {
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
        .step_count = trainer->max_steps,
        .rated_bytes = config->drive_endurance_bytes,
    };
}

const char *ox_trainer_wear_text(const struct ox_trainer *trainer, char *text) {
    char line[OX_WEAR_TEXT_BYTES], every[64] = "";
    const uint64_t steps = persist_steps(trainer);
    const struct ox_wear wear = wear_of(trainer);
    text[0] = '\0';
    if (wear.step_bytes > 0 && wear.step_count > 0) {
        if (steps > 1) {
            snprintf(every, sizeof every, ", all of the state every %" PRIu64 " steps,", steps);
        } else if (trainer->prediction.persist_steps > 1) {
            snprintf(every, sizeof every, ", were all of the state written every step,");
        }
        snprintf(text, OX_WEAR_LINE_BYTES, "wear: %s%s %s\n",
                 trainer->config.nvme_count == 1                       ? "the drive"
                 : trainer->engine_config.budget.drive_speeds == NULL ? "each drive" : "the fastest drive",
                 every, ox_wear_text(&wear, line));
    }
    return text;
}

enum ox_status ox_trainer_check_wear(const struct ox_trainer *trainer) {
    const struct ox_wear wear = wear_of(trainer);
    if (trainer->config.accept_wear || !ox_wear_exceeds(&wear, share_max)) {
        return OX_OK;
    }
    struct ox_wear_forecast forecast;
    ox_wear_forecast(&wear, &forecast);
    return ox_fail(OX_E_CONFIG, "this run would use up %.0f %% of what each drive is rated for (--drive-endurance): "
                   "give more host memory, fewer steps or more drives, or say --accept-wear", 100 * forecast.run_share);
}
