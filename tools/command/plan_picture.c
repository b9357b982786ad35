/* `offload plan --picture`: what the page needs of the run. */
#include "tools/command/cmd.h"

#include "base/bytes.h"
#include "engine/run/trainer.h"
#include "tools/picture/picture.h"

#include <inttypes.h>
#include <stdlib.h>

static enum ox_status write_page(const void *picture, FILE *out) {
    return ox_picture_write(picture, out);
}

/* Sets the times of a rank's tasks, which are the caller's to free. */
static enum ox_status set_times(struct ox_picture_rank *rank, const struct ox_sim *sim) {
    const uint32_t count = rank->plan->task_count;
    double *const times = malloc(2 * (size_t)count * sizeof *times);
    if (times == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory to draw the plan");
    }
    for (uint32_t i = 0; i < count; i++) {
        times[i] = ox_sim_begin(sim, i);
        times[count + i] = ox_sim_end(sim, i);
    }
    rank->begin = times;
    rank->end = times + count;
    return OX_OK;
}

/* Simulates a rank, and sets its times and those of all that are simulated with it; adds how many they are. */
static enum ox_status simulate(const struct ox_trainer *trainer, uint32_t idx, struct ox_picture_rank *ranks,
                               uint32_t *count) {
    struct ox_predicted_tasks tasks;
    enum ox_status status = ox_trainer_predict_tasks(trainer, idx, &tasks);
    for (uint32_t i = 0; i < tasks.count && status == OX_OK; i++) {
        if (ranks[tasks.ranks[i]].begin == NULL) {
            status = set_times(&ranks[tasks.ranks[i]], tasks.sims[i]);
            (*count)++;
        }
    }
    ox_predicted_tasks_close(&tasks);
    return status;
}

/* Simulates the ranks that are drawn: not those that do the same as one before, which is most of them. */
static enum ox_status simulate_drawn(const struct ox_trainer *trainer, struct ox_picture_rank *ranks, uint32_t count) {
    enum ox_status status = OX_OK;
    uint32_t drawn = 0;
    for (uint32_t i = 0; i < count && drawn < OX_PICTURE_DRAWN && status == OX_OK; i++) {
        bool shown = ranks[i].begin != NULL;
        for (uint32_t k = 0; k < i && !shown; k++) {
            shown = ranks[k].begin != NULL && ox_picture_same_list(ranks[k].plan, ranks[i].plan);
        }
        status = shown ? OX_OK : simulate(trainer, i, ranks, &drawn);
    }
    return status;
}

enum ox_status ox_plan_draw(const struct ox_trainer *trainer, const char *path) {
    const struct ox_engine_plan *const plan = ox_trainer_plan(trainer);
    const struct ox_model *const model = ox_trainer_model(trainer);
    const struct ox_prediction *const prediction = ox_trainer_prediction(trainer);
    const uint32_t count = ox_plan_rank_count(&plan->input);
    struct ox_picture_rank *const ranks = calloc(count, sizeof *ranks);
    char title[256], params[OX_SIZE_TEXT_BYTES];
    enum ox_status status = ranks != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "no memory to draw the plan");
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        const struct ox_engine_plan *const at = ox_engine_plan_at(plan, i);
        ranks[i] = (struct ox_picture_rank){.idx = i, .input = &at->input, .plan = at->train};
    }
    OX_THEN(status, simulate_drawn(trainer, ranks, count));
    snprintf(title, sizeof title, "%s, %s parameters", model->config.family,
             ox_count_text((double)model->param_count, params));
    const struct ox_picture picture = {.title = title, .machine = prediction->machine->name, .model = model,
                                       .ranks = ranks, .rank_count = count, .seconds = prediction->step.seconds};
    OX_THEN(status, ox_cmd_write_file(path, write_page, &picture));
    for (uint32_t i = 0; ranks != NULL && i < count; i++) {
        free((void *)(uintptr_t)ranks[i].begin);
    }
    free(ranks);
    return status;
}
