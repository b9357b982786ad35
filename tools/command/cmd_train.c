/* `offload train` and `offload plan`. */
#include "tools/command/cmd.h"
#include "tools/command/plan.h"
#include "tools/command/signals.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/run/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the progress line ---------------------------------------------------------------------------- */

/* Sums over steps. */
struct sums {
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    uint64_t steps, tokens, batch_tokens, skipped, empty, speculated;
    double loss; /* sum over steps neither skipped nor empty */
    double seconds, busy_seconds, peer_wait_seconds; /* the last two: means of the ranks */
    uint32_t rank_count;
};

struct progress {
    uint64_t begin_ns, begin_step, logging_steps;
    uint64_t step, max_steps; /* where the run is; 0 of 0 before it starts */
    bool terminal, open_line, quiet;
    struct sums all;       /* this process, with the traffic of updates done by evaluations */
    struct sums since;     /* steps since the last line */
    uint64_t eval_updates; /* steps whose update ran within an evaluation */
    struct ox_eval_report last_eval;
};

static void end_line(struct progress *progress) {
    if (progress->open_line) {
        fprintf(stderr, "\n");
        progress->open_line = false;
    }
}

static uint64_t link_bytes(const uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT], int link) {
    uint64_t bytes = 0;
    for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
        bytes += traffic[link][kind];
    }
    return bytes;
}

static void on_planned(void *context, const char *text) {
    const struct progress *const progress = context;
    if (!progress->quiet) {
        fprintf(stderr, "%s\n", text);
    }
}

static void on_start(void *context, const struct ox_run_state *state, uint64_t max_steps, const char *origin) {
    struct progress *const progress = context;
    progress->begin_ns = ox_clock_ns();
    progress->begin_step = progress->step = state->step;
    progress->max_steps = max_steps;
    if (progress->quiet) {
        return;
    }
    if (state->step > max_steps) {
        fprintf(stderr, "resumed at step %" PRIu64 " from %s: nothing left to do, the run ends at step %" PRIu64 "\n",
                state->step, origin, max_steps);
    } else if (state->step > 0) {
        fprintf(stderr, "resumed at step %" PRIu64 " of %" PRIu64 " from %s%s\n", state->step, max_steps, origin,
                state->step == max_steps ? ": nothing left to do" : "");
    } else {
        fprintf(stderr, "starting from %s: %" PRIu64 " step%s\n", origin, max_steps, ox_plural(max_steps));
    }
}

static void add_step(struct sums *sums, const struct ox_step_report *report) {
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            sums->traffic[link][kind] += report->result.traffic[link][kind];
        }
    }
    sums->steps++;
    sums->tokens += report->tokens;
    sums->batch_tokens += report->batch_tokens;
    sums->skipped += report->tokens > 0 && !report->result.finite;
    sums->empty += report->tokens == 0;
    sums->speculated += report->result.speculated;
    sums->loss += report->tokens > 0 && report->result.finite ? report->result.loss : 0;
    sums->seconds += report->wall_seconds;
    for (uint32_t i = 0; i < report->result.rank_count; i++) {
        sums->rank_count = report->result.rank_count;
        sums->busy_seconds += report->result.ranks[i].busy_seconds / sums->rank_count;
        sums->peer_wait_seconds += report->result.ranks[i].peer_wait_seconds / sums->rank_count;
    }
}

/* Prints a line for the steps since the last one: means, but norm and rate of the last step, as the Trainer does. */
static void print_line(struct progress *progress, const struct ox_step_report *report) {
    const struct sums *const since = &progress->since;
    const uint64_t counted = since->steps - since->skipped - since->empty;
    const double loss = counted > 0 ? since->loss / (double)counted : report->result.loss;
    const double stalled = since->seconds > 0 ? 1 - since->busy_seconds / since->seconds : 0;
    char eta[OX_DURATION_TEXT_BYTES], links[128] = "", each[48] = "", peers[48] = "";
    const double elapsed = (double)(ox_clock_ns() - progress->begin_ns) * 1e-9;
    const double per_step = elapsed / (double)(report->step - progress->begin_step);
    ox_duration_text(per_step * (double)(report->max_steps - report->step), eta);
    const double wall = since->seconds > 0 ? since->seconds : 1;
    size_t used = 0;
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        const uint64_t bytes = link_bytes(since->traffic, link);
        if (bytes > 0 && used < sizeof links) {
            used += (size_t)snprintf(links + used, sizeof links - used, " %s %.2f",
                                     ox_link_name((enum ox_link)link), (double)bytes / wall * 1e-9);
        }
    }
    if (since->rank_count > 1) {
        snprintf(each, sizeof each, ", %.0f a rank", (double)since->batch_tokens / wall / since->rank_count);
        snprintf(peers, sizeof peers, ", for other ranks %.0f%%", 100 * since->peer_wait_seconds / wall);
    }
    fprintf(stderr, "%sstep %" PRIu64 "/%" PRIu64 " | loss %.4f | norm %.3g | lr %.2e | %.0f ms | %.0f tok/s%s |%s%s "
            "stall %.0f%%%s | eta %s", progress->terminal ? "\r\033[K" : "", report->step, report->max_steps,
            loss, report->result.grad_norm, report->learning_rate, since->seconds * 1e3 / (double)since->steps,
            (double)since->batch_tokens / wall, each, links, used > 0 ? " GB/s |" : "", 100 * fmax(0, stalled), peers,
            eta);
    progress->since = (struct sums){0};
    progress->open_line = progress->terminal;
    if (!progress->terminal) {
        fprintf(stderr, "\n");
    }
}

/* Adds up each step, and prints a progress line every logging_steps. */
static void on_step(void *context, const struct ox_step_report *report) {
    struct progress *const progress = context;
    progress->step = report->step;
    add_step(&progress->all, report);
    add_step(&progress->since, report);
    const bool due = report->step % progress->logging_steps == 0 || report->step == report->max_steps;
    /* A step without targets has no line, because a warning was logged. */
    if (due && report->tokens > 0 && !progress->quiet) {
        print_line(progress, report);
    }
}

static void on_eval(void *context, const struct ox_eval_report *report) {
    struct progress *const progress = context;
    end_line(progress);
    progress->last_eval = *report;
    progress->eval_updates += report->with_update;
    for (int link = 0; link < OX_LINK_COUNT && report->with_update; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            progress->all.traffic[link][kind] += report->traffic[link][kind];
        }
    }
    if (!progress->quiet) {
        fprintf(stderr, "eval at step %" PRIu64 " | loss %.4f | perplexity %.3f | %" PRIu64 " token%s\n", report->step,
                report->loss, report->perplexity, report->tokens, ox_plural(report->tokens));
    }
}

static void on_saved(void *context, const char *path, double seconds) {
    struct progress *const progress = context;
    end_line(progress);
    if (!progress->quiet) {
        fprintf(stderr, "saved %s in %.1f s\n", path, seconds);
    }
}

/* ---- results -------------------------------------------------------------------------------------- */

static void print_traffic(const struct sums *all, int link_count) {
    uint64_t total = 0;
    for (int link = 0; link < link_count; link++) {
        total += link_bytes(all->traffic, link);
    }
    if (total == 0) {
        return;
    }
    printf("traffic per step, measured (MiB)\n  %-12s", "");
    for (int link = 0; link < link_count; link++) {
        printf("%12s", ox_link_name((enum ox_link)link));
    }
    printf("\n");
    const double steps = all->steps > 0 ? (double)all->steps : 1;
    for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
        uint64_t sum = 0;
        for (int link = 0; link < link_count; link++) {
            sum += all->traffic[link][kind];
        }
        if (sum == 0) {
            continue;
        }
        printf("  %-12s", ox_traffic_name((enum ox_traffic_kind)kind));
        for (int link = 0; link < link_count; link++) {
            printf("%12.2f", (double)all->traffic[link][kind] / steps / (double)OX_MIB);
        }
        printf("\n");
    }
}

static void print_result(const struct ox_trainer *trainer) {
    if (ox_trainer_result(trainer)[0] != '\0') {
        printf("model folder: %s\n", ox_trainer_result(trainer));
    } else {
        printf("stopped before the first step: nothing was saved\n");
    }
}

static void print_summary(const struct ox_trainer *trainer, const struct progress *progress) {
    const struct sums *const all = &progress->all;
    if (all->steps > 0) {
        const uint32_t units = ox_trainer_plan(trainer)->input.placement.speculative_units;
        printf("%" PRIu64 " step%s, %" PRIu64 " token%s (%" PRIu64 " trained) in %.1f s: %.0f tokens/s; compute busy "
               "%.0f%% of the time\n", all->steps, ox_plural(all->steps), all->batch_tokens,
               ox_plural(all->batch_tokens), all->tokens, all->seconds, (double)all->batch_tokens / all->seconds,
               100 * all->busy_seconds / all->seconds);
        if (progress->eval_updates > 0) {
            printf("%" PRIu64 " update%s ran within evaluations: these seconds leave out their time, the table "
                   "counts their bytes\n", progress->eval_updates, ox_plural(progress->eval_updates));
        }
        if (all->skipped > 0) {
            printf("%" PRIu64 " step%s not finite and had no effect\n", all->skipped,
                   all->skipped == 1 ? " was" : "s were");
        }
        if (all->empty > 0) {
            printf("%" PRIu64 " step%s no token to be trained on\n", all->empty,
                   all->empty == 1 ? " had" : "s had");
        }
        if (units > 0 && all->speculated < all->steps) {
            printf("%" PRIu64 " of %" PRIu64 " steps updated %" PRIu32 " units in backward, as planned; the "
                   "norm of the others was clipped, so these units were updated again in the next forward\n",
                   all->speculated, all->steps, units);
        }
        print_traffic(all, ox_plan_link_count(&ox_trainer_plan(trainer)->input));
    }
    if (progress->last_eval.tokens > 0) {
        printf("held-out loss %.4f, perplexity %.3f per token\n", progress->last_eval.loss,
               progress->last_eval.perplexity);
    }
}

/* ---- the run ---------------------------------------------------------------------------------------- */

/* Says after which step a run ended early, and how to go on; `signal_number` is 0 if a file or USR2 asked for it. */
static void tell_stop(const struct ox_trainer *trainer, const struct progress *progress, int signal_number) {
    const char *const by = signal_number == SIGINT    ? " by SIGINT"
                           : signal_number == SIGTERM ? " by SIGTERM"
                           : signal_number == SIGHUP  ? " by SIGHUP"
                                                      : "";
    if (progress->step < progress->max_steps && ox_trainer_result(trainer)[0] != '\0') {
        ox_log(OX_LOG_INFO, "stopped%s after step %" PRIu64 " of %" PRIu64 "; --resume-from-checkpoint latest goes on",
               by, progress->step, progress->max_steps);
    }
}

/* Trains, with the plan on stderr, and prints the summary. *ended_by: the signal that ended the run, or 0. */
static enum ox_status train(struct ox_trainer *trainer, const struct ox_config *config, int *ended_by) {
    struct progress progress = {.terminal = isatty(STDERR_FILENO) == 1, .logging_steps = config->logging_steps,
                                .quiet = config->quiet};
    const struct ox_trainer_hooks hooks = {
        .context = &progress, .planned = on_planned, .start = on_start, .step = on_step, .eval = on_eval,
        .saved = on_saved};
    enum ox_status status = ox_trainer_run(trainer, ox_signals_take(), &hooks, ended_by);
    end_line(&progress);
    if (status == OX_OK && !config->quiet) {
        print_summary(trainer, &progress);
    }
    if (status == OX_OK) {
        print_result(trainer);
        fflush(stdout);
        tell_stop(trainer, &progress, *ended_by);
    }
    return status;
}

int ox_cmd_train(const struct ox_config *config) {
    struct ox_trainer *trainer = NULL;
    int ended_by = 0;
    enum ox_status status = ox_plan_open_run(config, &trainer);
    OX_TRY(status, config->dry_run ? ox_plan_print_dry(trainer, config) : train(trainer, config, &ended_by));
    ended_by = config->dry_run ? ox_signals_take()->stop : ended_by;
    const int exit_status = status == OX_OK && ended_by != 0 ? 128 + ended_by : ox_cmd_exit(status);
    ox_trainer_close(&trainer);
    return exit_status;
}
