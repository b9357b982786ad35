/* `offload eval`: perplexity of a model folder on texts. */
#include "tools/command/cmd.h"

#include "engine/run/trainer.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

struct seen {
    bool json;
    bool several; /* sources: each has a line of its own */
    json_t *files;
};

/* Non-finite numbers have no form in JSON; null stands for them. */
static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *source_json(const struct ox_eval_source *source) {
    const struct ox_eval_report *const report = &source->report;
    return json_pack("{s:o, s:o, s:I, s:I}", "mean_nll", number(report->loss), "perplexity",
                     number(report->perplexity), "tokens", (json_int_t)report->tokens, "windows",
                     (json_int_t)source->windows);
}

static void print_source(const struct ox_eval_source *source, bool named) {
    const struct ox_eval_report *const report = &source->report;
    printf("%s%sloss %.6f | perplexity %.4f | %" PRIu64 " tokens | %" PRIu64 " windows | %.1f s\n",
           named ? source->path : "", named ? ": " : "", report->loss, report->perplexity, report->tokens,
           source->windows, report->seconds);
}

static void on_source(void *context, const struct ox_eval_source *source) {
    struct seen *const seen = context;
    if (!seen->several) {
        return;
    }
    if (!seen->json) {
        print_source(source, true);
        return;
    }
    json_t *const file = source_json(source);
    json_object_set_new(file, "path", json_string(source->path));
    json_array_append_new(seen->files, file);
}

static enum ox_status print_json(const struct ox_eval_source *total, json_t *files) {
    json_t *const json = source_json(total);
    if (json_array_size(files) > 0) {
        json_object_set(json, "files", files);
    }
    const int written = json == NULL ? -1 : json_dumpf(json, stdout, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(json);
    printf("\n");
    return written < 0 ? ox_fail(OX_E_IO, "the result could not be written to stdout") : OX_OK;
}

int ox_cmd_eval(const struct ox_config *config) {
    struct seen seen = {.json = strcmp(config->format, "json") == 0,
                        .several = config->data_count > 1,
                        .files = json_array()};
    struct ox_eval_source total;
    enum ox_status status = ox_evaluate(config, on_source, &seen, &total);
    if (status == OX_OK && seen.json) {
        status = print_json(&total, seen.files);
    } else if (status == OX_OK) {
        print_source(&total, seen.several);
    }
    json_decref(seen.files);
    return status == OX_OK ? OX_EXIT_OK : ox_cmd_fail(status);
}
