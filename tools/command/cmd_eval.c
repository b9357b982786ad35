/* `offload eval`: measures the perplexity of a model folder on texts. */
#include "tools/command/cmd.h"
#include "tools/start/status_line.h"

#include "base/bytes.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/data/files.h"
#include "engine/run/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct output {
    bool json;
    bool several; /* sources: each has a line of its own, unless --quiet */
    bool quiet;
    const char *model; /* the folder that is measured */
    json_t *files;
};

/* The share of the source's tokens that were predicted. */
static double coverage(const struct ox_eval_source *source) {
    return (double)source->report.tokens / (double)source->data_tokens;
}

static json_t *source_json(const struct ox_eval_source *source) {
    const struct ox_eval_report *const report = &source->report;
    if (report->part_count > 0) { /* of preferences */
        json_t *const json = json_pack("{s:o, s:I, s:I, s:I}", "loss", ox_json_number(report->loss), "pairs",
                                       (json_int_t)source->windows, "tokens", (json_int_t)report->tokens, "data_tokens",
                                       (json_int_t)source->data_tokens);
        for (uint32_t i = 0; i < report->part_count; i++) {
            json_object_set_new(json, report->parts[i].name, ox_json_number(report->parts[i].value));
        }
        return json;
    }
    return json_pack("{s:o, s:o, s:I, s:I, s:f, s:I}", "mean_nll", ox_json_number(report->loss), "perplexity",
                     ox_json_number(report->perplexity), "tokens", (json_int_t)report->tokens,
                     "data_tokens", (json_int_t)source->data_tokens, "coverage", coverage(source), "windows",
                     (json_int_t)source->windows);
}

static void print_pairs(const struct ox_eval_source *source, bool named, const char *model) {
    const struct ox_eval_report *const report = &source->report;
    printf("%s%sloss %.6f", named ? source->path : "", named ? ": " : "", report->loss);
    for (uint32_t i = 0; i < report->part_count; i++) {
        printf(" | %s %.6g", report->parts[i].name, report->parts[i].value);
    }
    printf(" | %" PRIu64 " pair%s | %.1f s%s%s\n", source->windows, ox_plural(source->windows), report->seconds,
           model != NULL ? " | model " : "", model != NULL ? model : "");
    fflush(stdout);
}

/* Prints a line; `model` is NULL but in the last one. `adapter` is "" without one. */
static void print_source(const struct ox_eval_source *source, bool named, const char *model, const char *adapter) {
    const struct ox_eval_report *const report = &source->report;
    ox_status_clear();
    if (report->part_count > 0) {
        print_pairs(source, named, model);
        return;
    }
    printf("%s%sloss %.6f | perplexity %.4f | %" PRIu64 " of %" PRIu64 " tokens predicted, %.4g %% | %" PRIu64
           " window%s | %.1f s%s%s%s%s\n", named ? source->path : "", named ? ": " : "", report->loss,
           report->perplexity, report->tokens, source->data_tokens, 100 * coverage(source), source->windows,
           ox_plural(source->windows), report->seconds, model != NULL ? " | model " : "", model != NULL ? model : "",
           adapter[0] != '\0' ? " with the adapter " : "", adapter);
    fflush(stdout); /* before the line of the next source */
}

/* Only for people who wait: a file would have a line for each batch. */
static void on_went(void *context, const struct ox_eval_source *source) {
    const struct output *const output = context;
    const double left = source->report.seconds / (double)source->windows_done *
                        (double)(source->windows - source->windows_done);
    char time[OX_DURATION_TEXT_BYTES];
    if (output->quiet || !ox_status_is_live()) {
        return;
    }
    struct ox_status_line line = {.count = 0};
    ox_status_add(&line, 0, "window %" PRIu64 "/%" PRIu64, source->windows_done, source->windows);
    ox_status_add(&line, 2, "loss %.4f", source->report.loss);
    ox_status_add(&line, 1, "eta %s", ox_duration_text(left, time));
    ox_status_add(&line, 3, "%s", source->path);
    ox_status_show(&line);
}

static void on_source(void *context, const struct ox_eval_source *source) {
    struct output *const output = context;
    if (!output->several) {
        return;
    }
    if (!output->json) {
        if (!output->quiet) {
            print_source(source, true, NULL, "");
        }
        return;
    }
    json_t *const file = source_json(source);
    json_object_set_new(file, "path", json_string(source->path));
    json_array_append_new(output->files, file);
}

static enum ox_status print_json(const struct ox_eval_source *total, const struct output *output) {
    json_t *const json = source_json(total);
    json_object_set_new(json, "model", ox_json_text(output->model));
    if (json_array_size(output->files) > 0) {
        json_object_set(json, "files", output->files);
    }
    return ox_print_json(stdout, json, JSON_COMPACT | JSON_REAL_PRECISION(17), "the result");
}

/* The options of a run name the model that it began with, not what it has trained: warns if that is measured. */
static void warn_of_untrained(const struct ox_config *config) {
    static struct ox_config record; /* tens of kilobytes */
    char path[OX_PATH_BYTES], newest[OX_PATH_BYTES];
    ox_config_init(&record);
    if (config->files.output_dir[0] != '\0' &&
        ox_path_join(config->files.output_dir, "config.resolved.yaml", path) == OX_OK && ox_path_is_file(path) &&
        ox_config_load_yaml(&record, path, OX_CMD_EVAL) == OX_OK &&
        strcmp(record.files.model, config->files.model) == 0 &&
        ox_checkpoint_find_latest(config->files.output_dir, newest) == OX_OK) {
        ox_log(OX_LOG_WARN, "%s is the model that the run began with; to measure what it has trained, add --model %s",
               config->files.model, newest);
    }
}

/* Warns of data that the run of the checkpoint has trained on, all of which is measured. */
static void warn_of_trained(const struct ox_config *config) {
    static struct ox_config record; /* tens of kilobytes */
    char run[OX_PATH_BYTES], path[OX_PATH_BYTES];
    ox_config_init(&record);
    snprintf(run, sizeof run, "%s/..", config->files.model);
    if (config->rows.held_share > 0 || ox_path_join(run, "config.resolved.yaml", path) != OX_OK ||
        !ox_path_is_file(path) || ox_config_load_yaml(&record, path, OX_CMD_EVAL) != OX_OK) {
        return;
    }
    for (uint32_t i = 0; i < config->files.data_count; i++) {
        for (uint32_t k = 0; k < record.files.data_count; k++) {
            if (ox_files_are_same(config->files.data[i].path, record.files.data[k].path)) {
                ox_log(OX_LOG_WARN, "%s: the run of this model was trained on it, so the loss tells little of other "
                       "text; give other --data, or the run's --config, with which its held-out rows are measured",
                       config->files.data[i].path);
                break;
            }
        }
    }
}

/* Without --reference, preferences are measured against the model that the run of the checkpoint began with. */
static enum ox_status find_reference(struct ox_config *config) {
    static struct ox_config record; /* tens of kilobytes */
    char run[OX_PATH_BYTES], path[OX_PATH_BYTES];
    if (!config->loss.dpo || config->eval.reference[0] != '\0') {
        return config->loss.dpo || config->eval.reference[0] == '\0'
                   ? OX_OK : ox_fail(OX_E_CONFIG, "--reference: is what preferences are measured against; add --dpo");
    }
    ox_config_init(&record);
    snprintf(run, sizeof run, "%s/..", config->files.model);
    const bool found = ox_path_join(run, "config.resolved.yaml", path) == OX_OK && ox_path_is_file(path) &&
                       ox_config_load_yaml(&record, path, OX_CMD_EVAL) == OX_OK;
    if (!found || record.parts.adapter[0] != '\0') {
        return ox_fail(OX_E_CONFIG, "--dpo: answers are compared with those of a reference, and %s; give --reference "
                       "DIR, the model that training began with", found ? "the run of this checkpoint began with an "
                       "adapter, which no folder holds with its model" : "this is no checkpoint in a run's folder");
    }
    snprintf(config->eval.reference, sizeof config->eval.reference, "%s", record.files.model);
    ox_log(OX_LOG_INFO, "reference: %s, which the run began with", config->eval.reference);
    return OX_OK;
}

int ox_cmd_eval(const struct ox_config *given) {
    static struct ox_config own; /* tens of kilobytes */
    own = *given;
    const struct ox_config *const config = &own;
    struct output output = {.json = strcmp(config->tool.format, "json") == 0,
                            .several = config->files.data_count > 1,
                            .quiet = config->tool.quiet,
                            .model = config->files.model,
                            .files = json_array()};
    struct ox_eval_source total;
    enum ox_status status = ox_run_find_model(given->files.model, own.files.model);
    OX_THEN(status, find_reference(&own));
    if (status == OX_OK) {
        warn_of_untrained(config);
        warn_of_trained(config);
        status = ox_evaluate(config, &(struct ox_eval_hooks){.context = &output, .went = on_went, .seen = on_source},
                             &total);
    }
    ox_status_clear();
    if (status == OX_OK && output.json) {
        status = print_json(&total, &output);
    } else if (status == OX_OK) {
        print_source(&total, output.several, output.model, config->parts.adapter);
    }
    json_decref(output.files);
    return ox_cmd_exit(status);
}
