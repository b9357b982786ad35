#include "engine/report/experts.h"
#include "engine/report/metrics.h"

#include "base/bytes.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EVAL_BYTES = 1 << 26 }; /* so far back the newest evaluation is looked for: some 65,000 lines */
enum { WINDOW_BYTES = 1 << 18 }; /* about a hundred times the longest line */

static const char log_name[] = "metrics.jsonl", judged_key[] = "judged_loss";

struct ox_metrics {
    int fd;
    bool torn;       /* an unfinished line follows `length` */
    bool unsynced;   /* a sync has failed, and a warning said so */
    uint64_t length; /* bytes of all whole lines */
    uint64_t dropped;
    char path[OX_PATH_BYTES];
    struct ox_metrics_last last;
};

static void drop_line(struct ox_metrics *metrics, const char *why) {
    if (metrics->dropped++ == 0) {
        ox_log(OX_LOG_WARN, "%s: a line could not be written: %s; the run goes on without it", metrics->path, why);
    }
}

/* Cuts off an unfinished line that a failed write left, so that the next line does not continue it. */
static bool cut_torn(struct ox_metrics *metrics) {
    metrics->torn = metrics->torn && ftruncate(metrics->fd, (off_t)metrics->length) != 0;
    return !metrics->torn;
}

/* Writes a line with one call if the disk has room, so that a crash leaves at most the last line unfinished. */
static bool append(struct ox_metrics *metrics, const char *text, size_t bytes) {
    if (!cut_torn(metrics)) {
        return false;
    }
    int interrupts = 0;
    for (size_t done = 0; done < bytes;) {
        const ssize_t written = write(metrics->fd, text + done, bytes - done);
        if (ox_interrupted(written, &interrupts)) {
            continue;
        }
        if (written <= 0) {
            const int err = written < 0 ? errno : ENOSPC;
            metrics->torn = done > 0;
            cut_torn(metrics);
            errno = err;
            return false;
        }
        done += (size_t)written;
    }
    metrics->length += bytes;
    return true;
}

static void write_line(struct ox_metrics *metrics, json_t *object) {
    char *const text = object == NULL ? NULL : json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(object);
    if (text == NULL) {
        drop_line(metrics, "no memory");
        return;
    }
    const size_t bytes = strlen(text);
    text[bytes] = '\n'; /* replaces the NUL */
    if (!append(metrics, text, bytes + 1)) {
        drop_line(metrics, strerror(errno));
    }
    free(text);
}

static json_t *traffic_json(const uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]) {
    json_t *const links = json_object();
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        json_t *const kinds = json_object();
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            if (traffic[link][kind] > 0) {
                json_object_set_new(kinds, ox_traffic_name((enum ox_traffic_kind)kind),
                                    json_integer((json_int_t)traffic[link][kind]));
            }
        }
        if (link < OX_LINK_OF_ONE_COUNT || json_object_size(kinds) > 0) {
            json_object_set_new(links, ox_link_name((enum ox_link)link), kinds);
        } else {
            json_decref(kinds);
        }
    }
    return links;
}

/* What the plan moves and the step did not need, by link. */
static json_t *left_out_json(const uint64_t left_out[OX_LINK_COUNT]) {
    json_t *const links = json_object();
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        if (left_out[link] > 0) {
            json_object_set_new(links, ox_link_name((enum ox_link)link), json_integer((json_int_t)left_out[link]));
        }
    }
    return links;
}

static json_t *lanes_json(const double seconds[OX_LANE_COUNT]) {
    json_t *const lanes = json_object();
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        if (i < OX_LANE_OF_ONE_COUNT || seconds[i] > 0) {
            json_object_set_new(lanes, ox_lane_name((enum ox_lane_id)i), ox_json_number(seconds[i]));
        }
    }
    return lanes;
}

enum rank_number { RANK_MICRO_BATCHES, RANK_BUSY, RANK_STALL, RANK_PEER_WAIT };

/* One number of every rank. */
static json_t *ranks_json(const struct ox_step_result *result, enum rank_number number) {
    json_t *const array = json_array();
    for (uint32_t i = 0; i < result->rank_count; i++) {
        const struct ox_rank_times *const rank = &result->ranks[i];
        json_array_append_new(array, number == RANK_MICRO_BATCHES ? json_integer(rank->micro_batches)
                                     : number == RANK_BUSY        ? ox_json_number(rank->busy_seconds)
                                     : number == RANK_STALL       ? ox_json_number(rank->wait_seconds)
                                                                  : ox_json_number(rank->peer_wait_seconds));
    }
    return array;
}

/* With one rank the line is as it was before there were others. */
static json_t *with_ranks(json_t *line, const struct ox_step_result *result) {
    if (line != NULL && result->rank_count > 1) {
        json_object_set_new(line, "ranks", json_pack("{s:o, s:o, s:o, s:o}",
            "micro_batches", ranks_json(result, RANK_MICRO_BATCHES), "busy_seconds", ranks_json(result, RANK_BUSY),
            "stall_seconds", ranks_json(result, RANK_STALL), "peer_wait_seconds",
            ranks_json(result, RANK_PEER_WAIT)));
    }
    return line;
}

/* As --optimizer-overlap names it; NULL where nothing is known of the step. */
static const char *order_name(const struct ox_step_result *result) {
    static const char *const names[OX_UPDATE_ORDERS] = {
        [OX_UPDATES_AFTER] = "off", [OX_UPDATES_HELD] = "held", [OX_UPDATES_SPECULATIVE] = "speculative"};
    return result->rank_count == 0 ? NULL : names[result->order];
}

/* Adds how experts were used: by expert over all layers, and of each layer how many no token chose. */
static void add_experts(json_t *line, const struct ox_step_result *result) {
    const struct ox_router_report *const report = &result->routers;
    struct ox_expert_use use;
    if (line == NULL || report->layers == 0) {
        return;
    }
    ox_expert_use_of(report, &use);
    json_object_set_new(line, "router_aux_loss", ox_json_number(report->balance));
    json_object_set_new(line, "router_z_loss", ox_json_number(report->z));
    json_object_set_new(line, "experts_idle_share", ox_json_number(use.idle_share));
    json_object_set_new(line, "experts_busiest", ox_json_number(use.busiest));
    json_t *const loads = json_array(), *const idle = json_array();
    for (uint32_t e = 0; e < report->experts; e++) {
        json_array_append_new(loads, json_integer((json_int_t)ox_expert_load(report, OX_ALL_LAYERS, e)));
    }
    for (uint32_t layer = 0; layer < report->layers; layer++) {
        uint32_t count = 0;
        for (uint32_t e = 0; e < report->experts; e++) {
            count += ox_expert_load(report, layer, e) == 0;
        }
        json_array_append_new(idle, json_integer(count));
    }
    json_object_set_new(line, "experts", json_pack("{s:o, s:o, s:i, s:i, s:o}", "tokens", loads, "idle", idle,
                                                   "busiest_layer", (int)use.layer, "busiest_expert", (int)use.expert,
                                                   "left_out_bytes", left_out_json(result->left_out)));
}

/* Adds what is known of the energy; NaN is not. */
static void add_energy(json_t *line, const struct ox_energy_used *energy) {
    if (line != NULL && energy->cpu > 0) {
        json_object_set_new(line, "cpu_joules", ox_json_number(energy->cpu));
    }
    if (line != NULL && energy->gpu > 0) {
        json_object_set_new(line, "gpu_joules", ox_json_number(energy->gpu));
    }
}

void ox_metrics_step(struct ox_metrics *metrics, const struct ox_step_report *report) {
    const struct ox_step_result *const result = &report->result;
    const double rate = report->wall_seconds > 0 ? (double)report->batch_tokens / report->wall_seconds : 0;
    metrics->last.step = report->step;
    json_t *const line = with_ranks(json_pack(
        "{s:s, s:I, s:o, s:I, s:o, s:o, s:o, s:o, s:b, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:s?}", "type",
        "step", "step", (json_int_t)report->step, "epoch", ox_json_number(report->epoch), "steps_per_epoch",
        (json_int_t)report->epoch_steps, "loss", ox_json_number(result->loss), "grad_norm",
        ox_json_number(result->grad_norm), "grad_scale", ox_json_number(result->grad_scale), "learning_rate",
        ox_json_number(report->learning_rate),
        "skipped", !result->finite, "tokens", (json_int_t)report->tokens, "tokens_seen",
        (json_int_t)report->tokens_seen, "seconds", ox_json_number(report->wall_seconds), "predicted_seconds",
        ox_json_number(report->predicted_seconds), "tokens_per_second", ox_json_number(rate), "busy_seconds",
        lanes_json(result->lane_busy_seconds), "stall_seconds", lanes_json(result->lane_wait_seconds), "bytes",
        traffic_json(result->traffic), "speculated", result->speculated, "order", order_name(result)), result);
    if (line != NULL && report->loss_scale > 0) {
        json_object_set_new(line, "loss_scale", ox_json_number(report->loss_scale));
    }
    if (line != NULL && report->exchange != NULL) {
        json_object_set_new(line, "inexact_exchange", json_string(report->exchange));
    }
    for (uint32_t i = 0; line != NULL && i < report->part_count; i++) {
        json_object_set_new(line, report->parts[i].name, ox_json_number(report->parts[i].value));
    }
    add_experts(line, result);
    add_energy(line, &report->energy);
    write_line(metrics, line);
}

void ox_metrics_eval(struct ox_metrics *metrics, const struct ox_eval_report *report) {
    metrics->last.has_eval = true;
    metrics->last.eval_step = report->step;
    metrics->last.eval_loss = report->judged;
    metrics->last.stop = report->stop;
    json_t *const line = json_pack(
        "{s:s, s:I, s:o, s:o, s:o, s:I, s:o, s:o, s:b, s:o}", "type", "eval", "step", (json_int_t)report->step, "epoch",
        ox_json_number(report->epoch), "eval_loss", ox_json_number(report->loss), "perplexity",
        ox_json_number(report->perplexity), "tokens", (json_int_t)report->tokens, "seconds",
        ox_json_number(report->seconds), "predicted_seconds",
        ox_json_number(report->predicted_seconds), "with_update", report->with_update, "bytes",
        traffic_json(report->traffic));
    if (line != NULL && memcmp(&report->judged, &report->loss, sizeof report->loss) != 0) {
        json_object_set_new(line, judged_key, ox_json_number(report->judged));
    }
    if (line != NULL && !isnan(report->stop.best_loss)) {
        json_object_set_new(line, "early_stopping", json_pack("{s:o, s:I}", "best_loss",
            ox_json_number(report->stop.best_loss), "stale_count", (json_int_t)report->stop.stale_count));
    }
    for (uint32_t i = 0; i < report->part_count && line != NULL; i++) {
        char key[64];
        snprintf(key, sizeof key, "eval_%s", report->parts[i].name);
        json_object_set_new(line, key, ox_json_number(report->parts[i].value));
    }
    for (uint32_t i = 0; i < report->set_count && line != NULL; i++) {
        char key[96];
        for (uint32_t k = 0; k < report->part_count; k++) {
            snprintf(key, sizeof key, "eval_%s_%s", report->sets[i].name, report->parts[k].name);
            json_object_set_new(line, key, ox_json_number(report->sets[i].parts[k].value));
        }
        snprintf(key, sizeof key, "eval_%s_loss", report->sets[i].name);
        json_object_set_new(line, key, ox_json_number(report->sets[i].loss));
        snprintf(key, sizeof key, "eval_%s_tokens", report->sets[i].name);
        json_object_set_new(line, key, json_integer((json_int_t)report->sets[i].tokens));
    }
    write_line(metrics, line);
}

void ox_metrics_save(struct ox_metrics *metrics, const struct ox_save_report *report) {
    /* `step` is where the run is: lines are in the order of their steps. */
    write_line(metrics, json_pack("{s:s, s:I, s:I, s:o, s:o}", "type", "save", "step", (json_int_t)report->step,
                                  "checkpoint_step", (json_int_t)report->checkpoint_step, "seconds",
                                  ox_json_number(report->seconds), "stall_seconds",
                                  ox_json_number(report->stall_seconds)));
}

void ox_metrics_end(struct ox_metrics *metrics, const struct ox_end_report *report) {
    json_t *const line = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:o, s:o, s:I, s:I, s:I, s:o}", "type", "end", "step",
        (json_int_t)report->step, "max_steps", (json_int_t)report->max_steps, "retries",
        (json_int_t)report->retry_count, "store_rereads", (json_int_t)report->store_reread_count, "store_read_bytes",
        (json_int_t)report->store_read_bytes, "store_write_bytes", (json_int_t)report->store_write_bytes,
        "settled_bytes", traffic_json(report->traffic), "host_peak_bytes", (json_int_t)report->host_peak_bytes,
        "host_planned_bytes", (json_int_t)report->host_planned_bytes, "step_flops", ox_json_number(report->step_flops),
        "machine_flops_per_second", ox_json_number(report->machine_flops), "parameters",
        (json_int_t)report->parameters, "trained_parameters", (json_int_t)report->trained_parameters, "saves",
        (json_int_t)report->save_count, "save_stall_seconds", ox_json_number(report->save_stall_seconds));
    add_energy(line, &report->energy);
    write_line(metrics, line);
}

void ox_metrics_last(const struct ox_metrics *metrics, struct ox_metrics_last *out) {
    *out = metrics->last;
}

void ox_metrics_sync(struct ox_metrics *metrics) {
    if (fsync(metrics->fd) != 0 && !metrics->unsynced) {
        metrics->unsynced = true;
        ox_log(OX_LOG_WARN, "%s: cannot be synced: %s; a power cut may take its last lines", metrics->path,
               strerror(errno));
    }
}

uint64_t ox_metrics_dropped(const struct ox_metrics *metrics) {
    return metrics->dropped;
}

/* ---- opening ------------------------------------------------------------------------------------- */

/* Whether the line is complete, of this format, and of a step up to `step_max`. Since lines come in reverse, such a
 * line goes into `last` unless that already has a later one. */
static bool take_line(const char *line, size_t bytes, uint64_t step_max, struct ox_metrics_last *last) {
    json_t *object = NULL;
    uint64_t step = 0;
    const char *type = NULL;
    if (ox_json_parse(log_name, line, bytes, &object) != OX_OK) {
        return false;
    }
    const bool taken = ox_json_get_u64(log_name, object, "step", true, &step) == OX_OK && step <= step_max &&
                       ox_json_get_string(log_name, object, "type", true, &type) == OX_OK;
    if (taken && strcmp(type, "step") == 0) {
        last->step = last->step == 0 ? step : last->step;
    } else if (taken && strcmp(type, "eval") == 0 && !last->has_eval) {
        const json_t *const judged = json_object_get(object, judged_key);
        const json_t *const loss = judged != NULL ? judged : json_object_get(object, "eval_loss");
        last->has_eval = true;
        last->eval_step = step;
        last->eval_loss = json_is_number(loss) ? json_number_value(loss) : NAN;
        const json_t *const stop = json_object_get(object, "early_stopping");
        const json_t *const best = json_object_get(stop, "best_loss");
        last->stop.best_loss = json_is_number(best) ? json_number_value(best) : NAN;
        const json_int_t stale = json_integer_value(json_object_get(stop, "stale_count"));
        last->stop.stale_count = stale > 0 ? (uint64_t)stale : 0;
    }
    json_decref(object);
    return taken;
}

/* A part of the file in memory; it moves towards the beginning of the file. */
struct window {
    int fd;
    const char *path;
    char *data;
    uint64_t first;
    size_t bytes;
};

/* Finds the start of the line that ends at `past`. For a line longer than the window it is the start of the window,
 * which find_cut recognizes as no whole line. */
static enum ox_status line_start(struct window *window, uint64_t past, uint64_t *start) {
    for (;;) {
        const size_t left = past > window->first ? (size_t)(past - window->first) : 0;
        const char *const newline = left > 1 ? memrchr(window->data, '\n', left - 1) : NULL;
        if (newline != NULL || (left > 0 && (window->first == 0 || left == WINDOW_BYTES))) {
            *start = newline != NULL ? window->first + (uint64_t)(newline - window->data) + 1 : window->first;
            return OX_OK;
        }
        window->bytes = (size_t)ox_min_u64(WINDOW_BYTES, past);
        window->first = past - window->bytes;
        const enum ox_status status =
            ox_file_read_at(window->fd, window->path, window->data, window->bytes, window->first);
        if (status != OX_OK) {
            return status;
        }
    }
}

/* Goes back from the end, line by line, to the last line of a step up to `step`; lines are in the order of their steps.
 * *kept is the length of the file up to there. Goes on until `last` is known, but not far for an evaluation. */
static enum ox_status find_cut(struct window *window, uint64_t bytes, uint64_t step, uint64_t *kept,
                               struct ox_metrics_last *last) {
    *kept = 0;
    for (uint64_t past = bytes; past > 0 && (last->step == 0 || (!last->has_eval && bytes - past < EVAL_BYTES));) {
        uint64_t start = 0;
        const enum ox_status status = line_start(window, past, &start);
        if (status != OX_OK) {
            return status;
        }
        const char *const line = window->data + (start - window->first);
        const size_t length = (size_t)(past - start);
        const bool whole = line[length - 1] == '\n' && (start == 0 || start > window->first);
        if (whole && take_line(line, length - 1, step, last) && *kept == 0) {
            *kept = past;
        }
        past = start;
    }
    return OX_OK;
}

/* Cuts off the lines of steps after `step` and an unfinished line. It truncates the file in place: this only removes
 * the end of a log, and if a crash prevents it, the next start does it again. */
static enum ox_status trim(struct ox_metrics *metrics, uint64_t step) {
    struct stat info;
    if (fstat(metrics->fd, &info) != 0) {
        return ox_fail_errno(OX_E_IO, errno, "%s: cannot be examined", metrics->path);
    }
    struct window window = {.fd = metrics->fd, .path = metrics->path, .data = malloc(WINDOW_BYTES),
                            .first = UINT64_MAX};
    if (window.data == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to read it", metrics->path);
    }
    enum ox_status status = find_cut(&window, (uint64_t)info.st_size, step, &metrics->length, &metrics->last);
    free(window.data);
    if (status == OX_OK && metrics->length < (uint64_t)info.st_size &&
        (ftruncate(metrics->fd, (off_t)metrics->length) != 0 || fsync(metrics->fd) != 0)) {
        status = ox_fail_errno(OX_E_IO, errno, "%s: lines after step %" PRIu64 " cannot be cut off", metrics->path,
                               step);
    }
    return status;
}

/* Opens the file for appending. With O_CREAT in `flags` it is made; else *fd is -1 where there is none. */
static enum ox_status open_log(const char *path, int flags, int *fd) {
    struct stat info;
    /* O_NONBLOCK, because opening a FIFO of that name would wait for a reader. */
    *fd = open(path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | flags, 0644);
    if (*fd < 0) {
        return errno == ELOOP
                   ? ox_fail(OX_E_CONFIG, "%s: is a symbolic link, which is not written through; remove it", path)
               : errno == ENOENT && flags == 0 ? OX_OK
               : ox_fail_errno(OX_E_IO, errno, "%s: cannot open it for appending", path);
    }
    return fstat(*fd, &info) == 0 && S_ISREG(info.st_mode)
               ? OX_OK : ox_fail(OX_E_CONFIG, "%s: is not a regular file; remove it", path);
}

enum ox_status ox_metrics_check(const char *folder) {
    char path[OX_PATH_BYTES];
    int fd = -1;
    enum ox_status status = ox_path_join(folder, log_name, path);
    OX_THEN(status, open_log(path, 0, &fd));
    if (fd >= 0) {
        close(fd);
    }
    return status;
}

enum ox_status ox_metrics_open(const char *folder, uint64_t step, struct ox_metrics **out) {
    *out = NULL;
    struct ox_metrics *metrics = calloc(1, sizeof *metrics);
    if (metrics == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for its metrics.jsonl", folder);
    }
    metrics->fd = -1;
    metrics->last.stop.best_loss = (double)NAN;
    enum ox_status status = ox_path_join(folder, log_name, metrics->path);
    OX_THEN(status, open_log(metrics->path, O_CREAT, &metrics->fd));
    OX_THEN(status, trim(metrics, step));
    if (status != OX_OK) {
        ox_metrics_close(&metrics);
        return status;
    }
    *out = metrics;
    return OX_OK;
}

void ox_metrics_close(struct ox_metrics **metrics_ptr) {
    struct ox_metrics *const metrics = *metrics_ptr;
    if (metrics == NULL) {
        return;
    }
    const uint64_t dropped = ox_metrics_dropped(metrics);
    if (dropped > 0) {
        ox_log(OX_LOG_WARN, "%s: %" PRIu64 " line%s could not be written", metrics->path, dropped,
               ox_plural(dropped));
    }
    if (metrics->fd >= 0) {
        close(metrics->fd);
    }
    free(metrics);
    *metrics_ptr = NULL;
}
