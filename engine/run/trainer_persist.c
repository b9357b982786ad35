/* Decides how often a step is committed where it need not be every one: as the user says, or by measured times. The end
 * of a run commits in any case. */
#include "engine/run/trainer_internal.h"

#include "base/bytes.h"
#include "base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The share of all time that persisting may take. */
static const double SHARE_MAX = 0.02;

uint64_t ox_persist_interval(double extra, double seconds) {
    const double steps = ceil(extra / (SHARE_MAX * seconds));
    if (!(steps > 1)) { /* true for NaN as well */
        return 1;
    }
    return steps < OX_PERSIST_STEPS_MAX ? (uint64_t)steps : OX_PERSIST_STEPS_MAX;
}

/* The median of the `count` latest times in a ring, at least one; the lower one if there are two in the middle. */
static double median(const double ring[OX_PERSIST_TIMES], uint32_t count) {
    double sorted[OX_PERSIST_TIMES];
    const uint32_t held = count < OX_PERSIST_TIMES ? count : OX_PERSIST_TIMES;
    for (uint32_t i = 0; i < held; i++) {
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > ring[i]; at--) {
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = ring[i];
    }
    return sorted[(held - 1) / 2];
}

void ox_persist_note(struct ox_persist_times *times, bool persisted, double seconds) {
    if (!persisted) {
        times->seconds[times->seconds_count++ % OX_PERSIST_TIMES] = seconds;
    } else if (times->seconds_count > 0) {
        times->extra[times->extra_count++ % OX_PERSIST_TIMES] = seconds - median(times->seconds, times->seconds_count);
    }
}

uint64_t ox_persist_auto(const struct ox_persist_times *times) {
    if (times->seconds_count < OX_PERSIST_TIMES_LEAST || times->extra_count < OX_PERSIST_TIMES_LEAST) {
        return 2;
    }
    return ox_persist_interval(median(times->extra, times->extra_count), median(times->seconds, times->seconds_count));
}

bool ox_persist_is_news(uint64_t steps, uint64_t told) {
    return told == 0 || steps >= 2 * told;
}

/* ---- of a run -------------------------------------------------------------------------------------------------- */

/* --persist-steps as a number; 0: auto. */
static uint64_t requested(const struct ox_trainer *trainer) {
    return strtoull(trainer->config.memory.persist_steps, NULL, 10);
}

static bool may_stay(const struct ox_trainer *trainer) {
    return ox_plan_stays(&ox_trainer_plan(trainer)->input, requested(trainer));
}

/* Why every step is committed although --persist-steps asks for less. */
static const char *why_every_step(const struct ox_trainer *trainer) {
    return trainer->config.memory.nvme_count == 0 ? "there is no store without --nvme"
           : ox_trainer_plan(trainer)->input.placement.speculative_units > 0
               ? "updates in backward, without which no plan fits or for which an option asks, need a third slot on "
                 "the drives in a step that is not committed, unless memory keeps what they replace; give "
                 "--store-generations 3"
               : "part of the state lives on the drives, which have one slot for it (--store-generations 1)";
}

const char *ox_trainer_persist_text(const struct ox_trainer *trainer, char *text) {
    const uint64_t request = requested(trainer), steps = trainer->prediction.persist_steps;
    const uint64_t beside_bytes = ox_trainer_kept_bytes(trainer);
    char bytes[OX_SIZE_TEXT_BYTES], beside[128] = "";
    text[0] = '\0';
    if (may_stay(trainer)) {
        if (beside_bytes > 0 && steps > 1) {
            snprintf(beside, sizeof beside, "; the steps between write %s of the state, beside the last commit",
                     ox_size_text(beside_bytes, bytes));
        }
        snprintf(text, OX_PERSIST_LINE_BYTES, "persist: %s every %" PRIu64 " step%s%s: a crash loses at most as "
                 "many%s\n",
                 beside_bytes > 0 ? "a step is committed" : "the state lives in memory and is written to the drives",
                 steps, ox_plural(steps),
                 request > 0 ? "" : ", by prediction, then as often as costs 2 % of the measured time", beside);
    } else if (request > 1) {
        snprintf(text, OX_PERSIST_LINE_BYTES, "persist: --persist-steps %" PRIu64 " has no effect: %s\n", request,
                 why_every_step(trainer));
    }
    return text;
}

/* Says it once, and again only where a crash may lose twice as much as was said. */
static void tell(struct ox_trainer *trainer) {
    const uint64_t steps = trainer->persist.steps;
    if (!ox_persist_is_news(steps, trainer->persist.logged_steps)) {
        return;
    }
    trainer->persist.logged_steps = steps;
    if (steps == 1) {
        ox_log(OX_LOG_INFO, "the state is persisted every step: a crash loses at most one");
        return;
    }
    ox_log(OX_LOG_INFO, "the state is persisted every %" PRIu64 " steps%s: a crash loses at most %" PRIu64, steps,
           requested(trainer) > 0 ? "" : ", or more often, as its measured time allows", steps);
}

void ox_trainer_persist_start(struct ox_trainer *trainer) {
    const uint64_t request = requested(trainer);
    trainer->persist.last_step = trainer->state.step;
    if (may_stay(trainer)) {
        trainer->persist.steps = request > 0 ? request : ox_persist_auto(&trainer->persist.times);
        if (request > 0) {
            tell(trainer);
        }
        return;
    }
    char text[OX_PERSIST_LINE_BYTES];
    trainer->persist.steps = 1;
    ox_trainer_persist_text(trainer, text);
    text[strcspn(text, "\n")] = '\0';
    if (text[0] != '\0') {
        ox_log(OX_LOG_WARN, "%s", text + strlen("persist: "));
    }
}

bool ox_trainer_leaves_uncommitted(const struct ox_trainer *trainer, const struct ox_run_state *next) {
    const bool saved = ox_trainer_saves_at(trainer, next); /* the store may not be older than a checkpoint */
    return next->step < trainer->persist.last_step + trainer->persist.steps && !saved;
}

void ox_trainer_persist_note(struct ox_trainer *trainer, const struct ox_step_result *result, double seconds) {
    if (requested(trainer) > 0 || !may_stay(trainer)) {
        return;
    }
    ox_persist_note(&trainer->persist.times, result->committed, seconds);
    if (!result->committed || trainer->persist.times.extra_count < OX_PERSIST_TIMES_LEAST) {
        return;
    }
    trainer->persist.steps = ox_persist_auto(&trainer->persist.times);
    tell(trainer);
}

void ox_trainer_persist(struct ox_trainer *trainer) {
    if (trainer->is_torn || ox_engine_store(trainer->engine) == NULL || ox_trainer_finish_update(trainer) != OX_OK) {
        return; /* the save that follows reports the failure */
    }
    struct ox_commit_note note = {.state = trainer->state};
    const struct ox_commit_note *const last = &trainer->note;
    if (last->state.step == note.state.step && last->state.optimizer_steps == note.state.optimizer_steps) {
        note = *last; /* it has the line for metrics.jsonl */
        note.state = trainer->state;
    }
    if (ox_engine_persist(trainer->engine, &note, sizeof note) != OX_OK) {
        ox_log(OX_LOG_WARN, "step %" PRIu64 " is not in the store: %s", trainer->state.step, ox_error_text());
    }
}
