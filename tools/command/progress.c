#include "tools/command/progress.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "tools/command/cmd.h"
#include "tools/start/status_line.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static uint64_t link_bytes(const uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT], int link) {
    uint64_t bytes = 0;
    for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
        bytes += traffic[link][kind];
    }
    return bytes;
}

static void on_planned(void *context, const char *text) {
    const struct ox_progress *const progress = context;
    if (!progress->quiet) {
        ox_status_say("%s\n", text);
    }
}

static void on_start(void *context, const struct ox_run_start *start) {
    struct ox_progress *const progress = context;
    const uint64_t step = start->state->step, max_steps = start->max_steps;
    progress->begin_ns = ox_clock_ns();
    progress->begin_step = progress->step = step;
    progress->max_steps = max_steps;
    progress->logging_steps = ox_config_steps(progress->given_logging_steps, max_steps);
    if (progress->quiet) {
        return;
    }
    if (step > max_steps) {
        ox_status_say("resumed at step %" PRIu64 " from %s: nothing left to do, the run ends at step %" PRIu64 "\n",
                      step, start->origin, max_steps);
    } else if (step > 0 && step == max_steps) {
        ox_status_say("resumed at step %" PRIu64 " of %" PRIu64 " from %s: nothing left to do\n", step, max_steps,
                      start->origin);
    } else if (step > 0) {
        ox_status_say("resumed at step %" PRIu64 " of %" PRIu64 " from %s: epoch %.4g, %" PRIu64 " step%s an epoch\n",
                      step, max_steps, start->origin, start->epoch, start->epoch_steps, ox_plural(start->epoch_steps));
    } else {
        ox_status_say("starting from %s: %" PRIu64 " step%s, %" PRIu64 " an epoch\n", start->origin, max_steps,
                      ox_plural(max_steps), start->epoch_steps);
    }
}

static void add_step(struct ox_progress_sums *sums, const struct ox_step_report *report) {
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            sums->traffic[link][kind] += report->result.traffic[link][kind];
        }
    }
    sums->steps++;
    sums->tokens += report->tokens;
    sums->batch_tokens += report->batch_tokens;
    sums->skipped += report->tokens > 0 && !report->result.finite;
    sums->overflowed += report->result.overflow && report->loss_scale > 0;
    sums->loss_scale = report->loss_scale;
    sums->empty += report->tokens == 0;
    sums->speculated += report->result.speculated;
    sums->undone += report->result.order == OX_UPDATES_SPECULATIVE && !report->result.speculated;
    const bool counts = report->tokens > 0 && report->result.finite;
    sums->loss += counts ? report->result.loss : 0;
    for (uint32_t i = 0; i < report->part_count && counts; i++) {
        sums->parts[i] += report->parts[i].value;
    }
    sums->seconds += report->wall_seconds;
    for (uint32_t i = 0; i < report->result.rank_count; i++) {
        sums->rank_count = report->result.rank_count;
        sums->busy_seconds += report->result.ranks[i].busy_seconds / sums->rank_count;
        sums->peer_wait_seconds += report->result.ranks[i].peer_wait_seconds / sums->rank_count;
    }
}

/* Writes the rates of the links that moved anything, " nvme_read 1.20 nvme_write 0.80 GB/s"; "" for none. */
static void link_rates(const struct ox_progress_sums *sums, double seconds, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        const uint64_t moved = link_bytes(sums->traffic, link);
        if (moved > 0 && used < bytes) {
            used += (size_t)snprintf(text + used, bytes - used, "%s%s %.2f", used > 0 ? " " : "",
                                     ox_link_name((enum ox_link)link), (double)moved / seconds * 1e-9);
        }
    }
    if (used > 0 && used < bytes) {
        snprintf(text + used, bytes - used, " GB/s");
    }
}

/* Shows a line for the steps since the last one that stays: means, but norm and rate of the last step, as the Trainer
 * does. */
static void show_line(struct ox_progress *progress, const struct ox_step_report *report, bool stays) {
    struct ox_progress_sums *const since = &progress->since;
    const double seconds = since->seconds > 0 ? since->seconds : 1;
    const uint64_t counted = since->steps - since->skipped - since->empty;
    const double loss = counted > 0 ? since->loss / (double)counted : report->result.loss;
    const double stalled = since->seconds > 0 ? 1 - since->busy_seconds / since->seconds : 0;
    const double per_step = (double)(ox_clock_ns() - progress->begin_ns) * 1e-9 /
                            (double)(report->step - progress->begin_step);
    char eta[OX_DURATION_TEXT_BYTES], links[128], each[48] = "", peers[48] = "";
    ox_duration_text(per_step * (double)(report->max_steps - report->step), eta);
    link_rates(since, seconds, links, sizeof links);
    if (since->rank_count > 1) {
        snprintf(each, sizeof each, ", %.0f a rank", (double)since->batch_tokens / seconds / since->rank_count);
        snprintf(peers, sizeof peers, ", for other ranks %.0f%%", 100 * since->peer_wait_seconds / seconds);
    }
    struct ox_status_line line = {.count = 0};
    ox_status_add(&line, 0, "step %" PRIu64 "/%" PRIu64, report->step, report->max_steps);
    ox_status_add(&line, 1, "loss %.4f", loss);
    for (uint32_t i = 0; i < report->part_count; i++) {
        if (!report->parts[i].aside) {
            ox_status_add(&line, 10, "%s %.4f", report->parts[i].name,
                          counted > 0 ? since->parts[i] / (double)counted : report->parts[i].value);
        }
    }
    ox_status_add(&line, 7, "norm %.3g", report->result.grad_norm);
    if (report->result.routers.layers > 0) {
        ox_status_add(&line, 10, "balance %.4g", report->result.routers.balance);
        ox_status_add(&line, 11, "router z %.4g", report->result.routers.z);
    }
    ox_status_add(&line, 6, "lr %.2e", report->learning_rate);
    ox_status_add(&line, 5, "epoch %.4g", report->epoch);
    ox_status_add(&line, 4, "%.0f ms", seconds * 1e3 / (double)since->steps);
    ox_status_add(&line, 3, "%.0f tok/s%s", (double)since->batch_tokens / seconds, each);
    ox_status_add(&line, 9, "%s", links);
    ox_status_add(&line, 8, "stall %.0f%%%s", 100 * fmax(0, stalled), peers);
    ox_status_add(&line, 2, "eta %s", eta);
    (stays ? ox_status_log : ox_status_show)(&line);
    *since = stays ? (struct ox_progress_sums){0} : *since;
}

/* Adds up each step, and prints a progress line every logging_steps; on a terminal one shows the steps between. */
static void on_step(void *context, const struct ox_step_report *report) {
    struct ox_progress *const progress = context;
    progress->step = report->step;
    add_step(&progress->all, report);
    add_step(&progress->since, report);
    const bool due = report->step % progress->logging_steps == 0 || report->step == report->max_steps;
    /* A step without targets has no line, because a warning was logged. */
    if ((due || ox_status_is_live()) && report->tokens > 0 && !progress->quiet) {
        show_line(progress, report, due);
    }
}

enum { MORE_BYTES = 256 };

/* What a line of an evaluation says beside its loss: the perplexity, or of preferences the means over their pairs. */
static void more_text(const struct ox_eval_report *report, const struct ox_report_part *parts, double loss,
                      char text[MORE_BYTES]) {
    size_t used = 0;
    if (report->part_count == 0) {
        snprintf(text, MORE_BYTES, "perplexity %.3f", exp(loss));
    }
    for (uint32_t i = 0; i < report->part_count && used < MORE_BYTES; i++) {
        if (!parts[i].aside) {
            used += (size_t)snprintf(text + used, MORE_BYTES - used, "%s%s %.4f", used > 0 ? " | " : "", parts[i].name,
                                     parts[i].value);
        }
    }
}

static void on_eval(void *context, const struct ox_eval_report *report) {
    struct ox_progress *const progress = context;
    progress->last_eval = *report;
    progress->eval_updates += report->with_update;
    for (int link = 0; link < OX_LINK_COUNT && report->with_update; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            progress->all.traffic[link][kind] += report->traffic[link][kind];
        }
    }
    if (!progress->quiet) {
        char more[MORE_BYTES];
        more_text(report, report->parts, report->loss, more);
        ox_status_say("eval at step %" PRIu64 " | loss %.4f | %s | epoch %.4g | %" PRIu64 " token%s\n", report->step,
                      report->loss, more, report->epoch, report->tokens, ox_plural(report->tokens));
        for (uint32_t i = 0; i < report->set_count; i++) {
            const struct ox_eval_set_report *const set = &report->sets[i];
            more_text(report, set->parts, set->loss, more);
            ox_status_say("  %s | loss %.4f | %s | %" PRIu64 " token%s\n", set->name, set->loss, more, set->tokens,
                          ox_plural(set->tokens));
        }
    }
}

static void on_saved(void *context, const char *path, const struct ox_save_report *report) {
    struct ox_progress *const progress = context;
    if (!progress->quiet) {
        ox_status_keep(); /* the step that a stop saves is not shown below it */
        ox_status_say("saved %s in %.1f s; training waited %.2f s\n", path, report->seconds, report->stall_seconds);
    }
}

struct ox_trainer_hooks ox_progress_hooks(struct ox_progress *progress) {
    return (struct ox_trainer_hooks){.context = progress, .planned = on_planned, .start = on_start, .step = on_step,
                                     .eval = on_eval, .saved = on_saved};
}

/* ---- results -------------------------------------------------------------------------------------- */

static void print_traffic(const struct ox_progress_sums *all, int link_count) {
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

/* What the run has used, beside what was planned, and how well it used the machine. */
static void print_use(const struct ox_progress_sums *all, const struct ox_trainer *trainer) {
    struct ox_run_use use;
    char peak[OX_SIZE_TEXT_BYTES], planned[OX_SIZE_TEXT_BYTES];
    ox_trainer_use(trainer, &use);
    if (use.host_peak_bytes > 0) {
        printf("memory of this process at its fullest: %s, planned at most %s\n",
               ox_size_text(use.host_peak_bytes, peak), ox_size_text(use.host_planned_bytes, planned));
    }
    if (use.drive_planned_bytes > 0) {
        printf("drives: %s read and %s written by this command\n", ox_size_text(use.drive_read_bytes, peak),
               ox_size_text(use.drive_written_bytes, planned));
    }
    if (use.save_count > 0) {
        printf("%" PRIu64 " checkpoint%s saved, for which training waited %.2f s\n", use.save_count,
               ox_plural(use.save_count), use.save_stall_seconds);
    }
    if (!isnan(use.energy.cpu) || !isnan(use.energy.gpu)) { /* of the whole machine */
        char cpu[64] = "", gpu[64] = "";
        if (!isnan(use.energy.cpu)) {
            snprintf(cpu, sizeof cpu, " CPU packages %.4g kJ", use.energy.cpu * 1e-3);
        }
        if (!isnan(use.energy.gpu)) {
            snprintf(gpu, sizeof gpu, "%s GPUs %.4g kJ", cpu[0] != '\0' ? "," : "", use.energy.gpu * 1e-3);
        }
        printf("energy of the machine in these steps:%s%s, %.4g J a token\n", cpu, gpu,
               ((isnan(use.energy.cpu) ? 0 : use.energy.cpu) + (isnan(use.energy.gpu) ? 0 : use.energy.gpu)) /
                   (double)(all->batch_tokens > 0 ? all->batch_tokens : 1));
    }
    const double reached = use.step_flops * (double)(all->steps - all->empty) / all->seconds;
    if (reached > use.machine_flops) {
        printf("model FLOP/s: %.4g G, more than the %.4g G that were measured of products on this machine: other "
               "programs ran then; measure again (offload bench gemm)\n", reached * 1e-9, use.machine_flops * 1e-9);
    } else if (!isnan(use.machine_flops) && reached > 0) {
        printf("model FLOP/s utilisation %.1f %%: %.4g of the %.4g GFLOP/s that products reach on this machine\n",
               100 * reached / use.machine_flops, reached * 1e-9, use.machine_flops * 1e-9);
    }
}

/* Whether the prediction came true. Nominal rates are not this machine's, and tell nothing. */
static void print_verdict(const struct ox_progress_sums *all, const struct ox_prediction *prediction) {
    const double took = all->seconds / (double)all->steps;
    char mean[OX_SIZE_TEXT_BYTES], predicted[OX_SIZE_TEXT_BYTES];
    if (prediction->profiled && prediction->mean_seconds > 0) {
        printf("a step took %s on average, %.2f times the %s that were predicted\n", ox_seconds_text(took, mean),
               took / prediction->mean_seconds, ox_seconds_text(prediction->mean_seconds, predicted));
    }
}

void ox_progress_summary(const struct ox_progress *progress, const struct ox_trainer *trainer) {
    const struct ox_progress_sums *const all = &progress->all;
    if (all->steps > 0) {
        const uint32_t units = ox_trainer_plan(trainer)->input.placement.speculative_units;
        printf("%" PRIu64 " step%s, %" PRIu64 " token%s (%" PRIu64 " trained) in %.1f s: %.0f tokens/s; compute busy "
               "%.0f%% of the time\n", all->steps, ox_plural(all->steps), all->batch_tokens,
               ox_plural(all->batch_tokens), all->tokens, all->seconds, (double)all->batch_tokens / all->seconds,
               100 * all->busy_seconds / all->seconds);
        print_verdict(all, ox_trainer_prediction(trainer));
        const struct ox_model *const model = ox_trainer_model(trainer);
        if (model->trained_count < model->param_count) {
            printf("%" PRIu64 " of %" PRIu64 " parameters were trained, the others frozen\n", model->trained_count,
                   model->param_count);
        }
        if (progress->eval_updates > 0) {
            printf("%" PRIu64 " update%s ran within evaluations: these seconds leave out their time, the table "
                   "counts their bytes\n", progress->eval_updates, ox_plural(progress->eval_updates));
        }
        if (all->skipped > all->overflowed) {
            printf("%" PRIu64 " step%s not finite and had no effect\n", all->skipped - all->overflowed,
                   all->skipped - all->overflowed == 1 ? " was" : "s were");
        }
        if (all->loss_scale > 0) {
            printf("%" PRIu64 " step%s overflowed in fp16 and had no effect; the last loss scale was %.6g\n",
                   all->overflowed, ox_plural(all->overflowed), all->loss_scale);
        }
        const char *const exchange = ox_trainer_inexact(trainer, UINT64_MAX);
        if (exchange != NULL) {
            printf("gradients travelled in %s: inexact\n", exchange);
        }
        if (all->empty > 0) {
            printf("%" PRIu64 " step%s no token to be trained on\n", all->empty,
                   all->empty == 1 ? " had" : "s had");
        }
        if (units > 0 && all->speculated < all->steps && all->steps >= OX_TRAINER_FEW_STEPS) {
            printf("weights were updated early, while gradients were still computed, for %" PRIu32 " unit%s in %" PRIu64
                   " of %" PRIu64 " steps; %" PRIu64 " did so in vain, because the gradient was clipped; %" PRIu64
                   " updated all in the next forward pass\n", units, units == 1 ? "" : "s", all->speculated, all->steps,
                   all->undone, all->steps - all->speculated - all->undone);
        }
        print_use(all, trainer);
        print_traffic(all, ox_plan_link_count(&ox_trainer_plan(trainer)->input));
    }
    const uint64_t bad_rows = ox_trainer_bad_rows(trainer);
    if (bad_rows > 0) {
        printf("%" PRIu64 " row%s left out, because %s cannot be used\n", bad_rows, bad_rows == 1 ? " was" : "s were",
               bad_rows == 1 ? "it" : "they");
    }
    if (progress->last_eval.tokens > 0) {
        char more[MORE_BYTES];
        more_text(&progress->last_eval, progress->last_eval.parts, progress->last_eval.loss, more);
        printf("held-out loss %.4f, %s%s at step %" PRIu64 "\n", progress->last_eval.loss, more,
               progress->last_eval.part_count == 0 ? " per token" : "", progress->last_eval.step);
    }
}
