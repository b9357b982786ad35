/* Writes the metrics in the text format of Prometheus. Every step replaces the file by renaming, so that a collector
 * never sees half of it. */
#include "engine/report/experts.h"
#include "engine/report/scalars.h"

#include "base/file.h"
#include "base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ox_prometheus {
    char path[OX_PATH_BYTES];
    uint64_t steps_skipped;
    double busy_seconds[OX_LANE_COUNT], stall_seconds[OX_LANE_COUNT]; /* since this process began */
    uint64_t bytes[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    struct ox_step_report last;
    struct ox_expert_use use; /* of the last step */
    struct ox_eval_report eval; /* the last evaluation; tokens 0: none yet */
    bool broken;
};

static void heading(FILE *out, const char *name, const char *type, const char *help) {
    fprintf(out, "# HELP offload_%s %s\n# TYPE offload_%s %s\n", name, help, name, type);
}

static void print_number(FILE *out, double value) {
    if (isnan(value)) {
        fprintf(out, "NaN\n");
    } else if (isinf(value)) {
        fprintf(out, "%cInf\n", value > 0 ? '+' : '-');
    } else {
        fprintf(out, "%.17g\n", value);
    }
}

static void gauge(FILE *out, const char *name, double value, const char *help) {
    heading(out, name, "gauge", help);
    fprintf(out, "offload_%s ", name);
    print_number(out, value);
}

/* Parts of a loss; a name has '_' for the '/' of a part. */
static void print_parts(FILE *out, const char *prefix, const struct ox_report_part *parts, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        char name[96];
        snprintf(name, sizeof name, "%s%s", prefix, parts[i].name);
        for (char *at = name; *at != '\0'; at++) {
            *at = (char)(*at == '/' ? '_' : *at);
        }
        gauge(out, name, parts[i].value, "A part of the loss, or of preferences a mean over the pairs.");
    }
}

static void counter(FILE *out, const char *name, uint64_t value, const char *help) {
    heading(out, name, "counter", help);
    fprintf(out, "offload_%s %" PRIu64 "\n", name, value);
}

static void by_lane(FILE *out, const char *name, const double seconds[OX_LANE_COUNT], const char *help) {
    heading(out, name, "counter", help);
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        if (i < OX_LANE_OF_ONE_COUNT || seconds[i] > 0) {
            fprintf(out, "offload_%s{lane=\"%s\"} ", name, ox_lane_name((enum ox_lane_id)i));
            print_number(out, seconds[i]);
        }
    }
}

/* Where there are several ranks, what each did in the last step. */
static void print_ranks(FILE *out, const struct ox_step_result *result) {
    static const struct {
        const char *name, *help;
    } gauges[] = {{"rank_busy_seconds", "Time in which a rank computed in the last step."},
                  {"rank_stall_seconds", "Time in which its compute lane waited for its others."},
                  {"rank_peer_wait_seconds", "Time in which its calls waited for other ranks."}};
    for (unsigned k = 0; k < sizeof gauges / sizeof *gauges && result->rank_count > 1; k++) {
        heading(out, gauges[k].name, "gauge", gauges[k].help);
        for (uint32_t i = 0; i < result->rank_count; i++) {
            const struct ox_rank_times *const rank = &result->ranks[i];
            fprintf(out, "offload_%s{rank=\"%u\"} ", gauges[k].name, i);
            print_number(out, k == 0 ? rank->busy_seconds : k == 1 ? rank->wait_seconds : rank->peer_wait_seconds);
        }
    }
}

static void print_all(FILE *out, const struct ox_prometheus *p) {
    const struct ox_step_report *const last = &p->last;
    const double wall = last->wall_seconds;
    counter(out, "steps_total", last->step, "Steps of the run.");
    counter(out, "tokens_total", last->tokens_seen, "Tokens trained on in the run.");
    counter(out, "steps_skipped_total", p->steps_skipped, "Steps of this process that changed nothing: not finite, or "
            "without targets.");
    gauge(out, "max_steps", (double)last->max_steps, "Steps at which the run ends.");
    gauge(out, "epoch", last->epoch, "How often the data was taken; a fraction within an epoch.");
    gauge(out, "steps_per_epoch", (double)last->epoch_steps, "Steps of an epoch.");
    gauge(out, "loss", last->result.loss, "Mean loss per token of the last step.");
    gauge(out, "grad_norm", last->result.grad_norm, "Gradient norm of the last step, before clipping.");
    gauge(out, "learning_rate", last->learning_rate, "Learning rate of the last step.");
    print_parts(out, "", last->parts, last->part_count);
    if (last->loss_scale > 0) {
        gauge(out, "loss_scale", last->loss_scale, "Factor of the loss in the last step.");
    }
    if (last->result.routers.layers > 0) {
        gauge(out, "router_aux_loss", last->result.routers.balance, "Balance loss of routers, without its factor.");
        gauge(out, "router_z_loss", last->result.routers.z, "Z loss of routers, without its factor.");
        gauge(out, "experts_idle_share", p->use.idle_share, "Share of experts that no token of the last step chose.");
        gauge(out, "experts_busiest", p->use.busiest, "Highest load of an expert in the last step, in even loads.");
    }
    gauge(out, "step_seconds", wall, "Time of the last step.");
    gauge(out, "tokens_per_second", wall > 0 ? (double)last->batch_tokens / wall : NAN, "Speed of the last step.");
    by_lane(out, "lane_busy_seconds_total", p->busy_seconds, "Time in which a lane worked, in this process.");
    by_lane(out, "lane_stall_seconds_total", p->stall_seconds, "Time in which a lane waited for others.");
    heading(out, "link_bytes_total", "counter", "Bytes that crossed a link, in this process.");
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            if (link < OX_LINK_OF_ONE_COUNT || p->bytes[link][kind] > 0) {
                fprintf(out, "offload_link_bytes_total{link=\"%s\",kind=\"%s\"} %" PRIu64 "\n",
                        ox_link_name((enum ox_link)link), ox_traffic_name((enum ox_traffic_kind)kind),
                        p->bytes[link][kind]);
            }
        }
    }
    print_ranks(out, &last->result);
    if (p->eval.tokens > 0) {
        gauge(out, "eval_loss", p->eval.loss, "Mean loss per token of the last evaluation.");
        print_parts(out, "eval_", p->eval.parts, p->eval.part_count);
        for (uint32_t i = 0; i < p->eval.set_count; i++) {
            char name[64];
            snprintf(name, sizeof name, "eval_%s_", p->eval.sets[i].name);
            print_parts(out, name, p->eval.sets[i].parts, p->eval.part_count);
            snprintf(name, sizeof name, "eval_%s_loss", p->eval.sets[i].name);
            gauge(out, name, p->eval.sets[i].loss, "Mean loss per token of one of the evaluation sets.");
        }
        gauge(out, "eval_step", (double)p->eval.step, "Step of the last evaluation.");
    }
}

static void replace(struct ox_prometheus *p) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *const out = open_memstream(&text, &bytes);
    enum ox_status status = OX_OK;
    if (out == NULL) {
        status = ox_fail(OX_E_NOMEM, "%s: no memory for its text", p->path);
    } else {
        print_all(out, p);
        status = fclose(out) == 0 ? ox_file_replace_unsynced(p->path, text, bytes)
                                  : ox_fail(OX_E_NOMEM, "%s: no memory for its text", p->path);
    }
    free(text);
    if (status != OX_OK) {
        p->broken = true;
        ox_log(OX_LOG_WARN, "%s; the run goes on without it", ox_error_text());
    }
}

static void add_bytes(struct ox_prometheus *p, const uint64_t bytes[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]) {
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            p->bytes[link][kind] += bytes[link][kind];
        }
    }
}

void ox_prometheus_step(struct ox_prometheus *p, const struct ox_step_report *report) {
    if (p == NULL || p->broken) {
        return;
    }
    p->last = *report;
    if (report->result.routers.layers > 0) {
        ox_expert_use_of(&report->result.routers, &p->use);
    }
    p->steps_skipped += !report->result.finite;
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        p->busy_seconds[i] += report->result.lane_busy_seconds[i];
        p->stall_seconds[i] += report->result.lane_wait_seconds[i];
    }
    add_bytes(p, report->result.traffic);
    replace(p);
}

void ox_prometheus_eval(struct ox_prometheus *p, const struct ox_eval_report *report) {
    if (p == NULL || p->broken) {
        return;
    }
    p->eval = *report;
    add_bytes(p, report->traffic);
    if (p->last.step > 0) {
        replace(p);
    }
}

enum ox_status ox_prometheus_open(const char *folder, struct ox_prometheus **out) {
    *out = NULL;
    struct ox_prometheus *const p = calloc(1, sizeof *p);
    if (p == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for its metrics.prom", folder);
    }
    const enum ox_status status = ox_path_join(folder, "metrics.prom", p->path);
    if (status != OX_OK) {
        free(p);
        return status;
    }
    *out = p;
    return OX_OK;
}

void ox_prometheus_close(struct ox_prometheus **p) {
    free(*p);
    *p = NULL;
}
