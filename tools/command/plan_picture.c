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

/* Sets a rank to draw; its times are the caller's to free. */
static enum ox_status set_rank(const struct ox_trainer *trainer, uint32_t idx, struct ox_picture_rank *out) {
    const struct ox_engine_plan *const plan = ox_engine_plan_at(ox_trainer_plan(trainer), idx);
    const uint32_t count = plan->train->task_count;
    double *const times = malloc(2 * (size_t)count * sizeof *times);
    *out = (struct ox_picture_rank){.idx = idx, .input = &plan->input, .plan = plan->train, .begin = times,
                                    .end = times + count};
    return times != NULL ? ox_trainer_task_times(trainer, idx, times, times + count)
                         : ox_fail(OX_E_NOMEM, "no memory to draw the plan");
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
        status = set_rank(trainer, i, &ranks[i]);
    }
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
