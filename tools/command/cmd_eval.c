/* `offload eval`: measures the perplexity of a model folder on texts. */
#include "tools/command/cmd.h"

#include "base/bytes.h"
#include "base/json.h"
#include "engine/run/trainer.h"

#include <inttypes.h>
#include <string.h>

struct output {
    bool json;
    bool several; /* sources: each has a line of its own, unless --quiet */
    bool quiet;
    json_t *files;
};

static json_t *source_json(const struct ox_eval_source *source) {
    const struct ox_eval_report *const report = &source->report;
    return json_pack("{s:o, s:o, s:I, s:I}", "mean_nll", ox_json_number(report->loss), "perplexity",
                     ox_json_number(report->perplexity), "tokens", (json_int_t)report->tokens, "windows",
                     (json_int_t)source->windows);
}

static void print_source(const struct ox_eval_source *source, bool named) {
    const struct ox_eval_report *const report = &source->report;
    printf("%s%sloss %.6f | perplexity %.4f | %" PRIu64 " token%s | %" PRIu64 " window%s | %.1f s\n",
           named ? source->path : "", named ? ": " : "", report->loss, report->perplexity, report->tokens,
           ox_plural(report->tokens), source->windows, ox_plural(source->windows), report->seconds);
}

static void on_source(void *context, const struct ox_eval_source *source) {
    struct output *const output = context;
    if (!output->several) {
        return;
    }
    if (!output->json) {
        if (!output->quiet) {
            print_source(source, true);
        }
        return;
    }
    json_t *const file = source_json(source);
    json_object_set_new(file, "path", json_string(source->path));
    json_array_append_new(output->files, file);
}

static enum ox_status print_json(const struct ox_eval_source *total, json_t *files) {
    json_t *const json = source_json(total);
    if (json_array_size(files) > 0) {
        json_object_set(json, "files", files);
    }
    return ox_print_json(stdout, json, JSON_COMPACT | JSON_REAL_PRECISION(17), "the result");
}

int ox_cmd_eval(const struct ox_config *config) {
    struct output output = {.json = strcmp(config->format, "json") == 0,
                            .several = config->data_count > 1,
                            .quiet = config->quiet,
                            .files = json_array()};
    struct ox_eval_source total;
    enum ox_status status = ox_evaluate(config, on_source, &output, &total);
    if (status == OX_OK && output.json) {
        status = print_json(&total, output.files);
    } else if (status == OX_OK) {
        print_source(&total, output.several);
    }
    json_decref(output.files);
    return ox_cmd_exit(status);
}
