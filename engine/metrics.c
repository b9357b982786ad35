#include "engine/metrics.h"

#include "base/assert.h"
#include "base/file.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ox_metrics {
    int fd;
    uint64_t dropped;
    struct ox_metrics_last last;
};

double ox_step_stall_share(const struct ox_step_report *report) {
    if (report->wall_seconds <= 0) {
        return 0;
    }
    const double share = 1 - report->result.lane_busy_seconds[OX_LANE_COMPUTE] / report->wall_seconds;
    return share < 0 ? 0 : share;
}

/* Non-finite numbers have no form in JSON; null stands for them. */
static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

/* One write call per line, so that a crash leaves at most the last line unfinished. */
static void write_line(struct ox_metrics *metrics, json_t *object) {
    char *const text = object == NULL ? NULL : json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(object);
    if (text == NULL) {
        metrics->dropped++;
        return;
    }
    const size_t bytes = strlen(text);
    text[bytes] = '\n'; /* in place of the terminator */
    ssize_t written = 0;
    do {
        written = write(metrics->fd, text, bytes + 1);
    } while (written < 0 && errno == EINTR);
    metrics->dropped += written != (ssize_t)bytes + 1;
    free(text);
}

static json_t *traffic_json(const struct ox_step_result *result) {
    json_t *const links = json_object();
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        json_t *const kinds = json_object();
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            if (result->traffic[link][kind] > 0) {
                json_object_set_new(kinds, ox_traffic_name((enum ox_traffic_kind)kind),
                                    json_integer((json_int_t)result->traffic[link][kind]));
            }
        }
        json_object_set_new(links, ox_link_name((enum ox_link)link), kinds);
    }
    return links;
}

static json_t *lanes_json(const double seconds[OX_LANE_COUNT]) {
    json_t *const lanes = json_object();
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        json_object_set_new(lanes, ox_lane_name((enum ox_lane_id)i), number(seconds[i]));
    }
    return lanes;
}

void ox_metrics_step(struct ox_metrics *metrics, const struct ox_step_report *report) {
    const struct ox_step_result *const result = &report->result;
    const double rate = report->wall_seconds > 0 ? (double)report->tokens / report->wall_seconds : 0;
    metrics->last.step = report->step;
    write_line(metrics, json_pack(
        "{s:s, s:I, s:o, s:o, s:o, s:o, s:b, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "type", "step", "step",
        (json_int_t)report->step, "loss", number(result->loss), "grad_norm", number(result->grad_norm), "grad_scale",
        number(result->grad_scale), "learning_rate", number(report->learning_rate), "skipped", !result->finite,
        "tokens", (json_int_t)report->tokens, "tokens_seen", (json_int_t)report->tokens_seen, "seconds",
        number(report->wall_seconds), "tokens_per_second", number(rate), "busy_seconds",
        lanes_json(result->lane_busy_seconds), "stall_seconds", lanes_json(result->lane_wait_seconds), "bytes",
        traffic_json(result)));
}

void ox_metrics_eval(struct ox_metrics *metrics, const struct ox_eval_report *report) {
    metrics->last.eval_step = report->step;
    metrics->last.eval_loss = report->loss;
    write_line(metrics, json_pack("{s:s, s:I, s:o, s:o, s:I, s:o}", "type", "eval", "step",
                                  (json_int_t)report->step, "eval_loss", number(report->loss), "perplexity",
                                  number(report->perplexity), "tokens", (json_int_t)report->tokens, "seconds",
                                  number(report->seconds)));
}

void ox_metrics_last(const struct ox_metrics *metrics, struct ox_metrics_last *out) {
    *out = metrics->last;
}

uint64_t ox_metrics_dropped(const struct ox_metrics *metrics) {
    return metrics->dropped;
}

/* ---- opening ------------------------------------------------------------------------------------- */

/* True for a complete line of ours that speaks of a step up to `step_max`; `last` then takes it in. */
static bool take_line(const char *line, size_t bytes, uint64_t step_max, struct ox_metrics_last *last) {
    static const char name[] = "metrics.jsonl";
    json_t *object = NULL;
    uint64_t step = 0;
    const char *type = NULL;
    if (ox_json_parse(name, line, bytes, &object) != OX_OK) {
        return false;
    }
    const bool taken = ox_json_get_u64(name, object, "step", true, &step) == OX_OK && step <= step_max &&
                       ox_json_get_string(name, object, "type", true, &type) == OX_OK;
    if (taken && strcmp(type, "step") == 0) {
        last->step = step;
    } else if (taken && strcmp(type, "eval") == 0) {
        const json_t *const loss = json_object_get(object, "eval_loss");
        last->eval_step = step;
        last->eval_loss = json_is_number(loss) ? json_number_value(loss) : NAN;
    }
    json_decref(object);
    return taken;
}

/* Keeps the lines of steps up to `step`. */
static enum ox_status trim(const char *path, uint64_t step, struct ox_metrics_last *last) {
    char *data = NULL;
    size_t bytes = 0;
    const enum ox_status status = ox_file_read(path, (size_t)1 << 32, &data, &bytes);
    if (status != OX_OK) {
        return status;
    }
    size_t kept = 0, at = 0;
    while (at < bytes) {
        const char *const end = memchr(data + at, '\n', bytes - at);
        if (end == NULL) {
            break; /* an unfinished last line */
        }
        const size_t length = (size_t)(end - (data + at)) + 1;
        if (take_line(data + at, length - 1, step, last)) {
            memmove(data + kept, data + at, length);
            kept += length;
        }
        at += length;
    }
    const enum ox_status replaced = kept == bytes ? OX_OK : ox_file_replace(path, data, kept);
    free(data);
    return replaced;
}

enum ox_status ox_metrics_open(const char *folder, uint64_t step, struct ox_metrics **out) {
    *out = NULL;
    char path[OX_PATH_BYTES];
    struct ox_metrics_last last = {0};
    enum ox_status status = ox_path_join(folder, "metrics.jsonl", path);
    if (status == OX_OK && ox_path_is_file(path)) {
        status = trim(path, step, &last);
    }
    if (status != OX_OK) {
        return status;
    }
    struct ox_metrics *const metrics = calloc(1, sizeof *metrics);
    if (metrics == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory", path);
    }
    metrics->last = last;
    metrics->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (metrics->fd < 0) {
        const int err = errno;
        free(metrics);
        return ox_fail_errno(OX_E_IO, err, "%s: cannot open it for appending", path);
    }
    *out = metrics;
    return OX_OK;
}

void ox_metrics_close(struct ox_metrics **metrics) {
    if (*metrics == NULL) {
        return;
    }
    close((*metrics)->fd);
    free(*metrics);
    *metrics = NULL;
}
