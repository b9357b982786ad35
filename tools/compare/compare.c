#include "tools/compare/compare.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LOSS_SHARE = 10 }; /* the loss of a run is that of its last tenth */

/* Options of where a run is and how it was called, in which runs differ by nature. */
static const char *const places[] = {"output", "resume-from-checkpoint", "overwrite-output-dir", "data-cache"};

/* ---- options -------------------------------------------------------------------------------------------- */

/* The folders of drives, or the sources of data, as one text; free() it. */
static char *list_text(const struct ox_config *config, const struct ox_option *option) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *const out = open_memstream(&text, &bytes);
    if (out == NULL) {
        return NULL;
    }
    if (option->type == OX_OPT_NVME) {
        for (uint32_t i = 0; i < config->memory.nvme_count; i++) {
            fprintf(out, "%s%s", i > 0 ? ", " : "", config->memory.nvme[i].path);
        }
    } else {
        for (uint32_t i = 0; i < config->files.data_count; i++) {
            fprintf(out, "%s%s", i > 0 ? ", " : "", config->files.data[i].path);
            if (config->files.data[i].weight != 1) {
                fprintf(out, ":%g", config->files.data[i].weight);
            }
        }
    }
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static void close_options(char ***options) {
    uint32_t count = 0;
    ox_options(&count);
    for (uint32_t i = 0; *options != NULL && i < count; i++) {
        free((*options)[i]);
    }
    free(*options);
    *options = NULL;
}

static enum ox_status text_options(const struct ox_config *config, char ***out) {
    char text[OX_CONFIG_TEXT_BYTES];
    uint32_t count = 0;
    const struct ox_option *const options = ox_options(&count);
    bool good = (*out = calloc(count, sizeof **out)) != NULL;
    for (uint32_t i = 0; good && i < count; i++) {
        if ((options[i].commands & OX_CMD_TRAIN) == 0) {
            continue;
        }
        ox_config_text(config, &options[i], text);
        const bool is_list = ox_option_is_list(&options[i]) && options[i].type != OX_OPT_PATTERNS;
        (*out)[i] = is_list ? list_text(config, &options[i]) : strdup(text);
        good = (*out)[i] != NULL;
    }
    if (!good) {
        close_options(out);
        return ox_fail(OX_E_NOMEM, "no memory for the options of a run");
    }
    return OX_OK;
}

/* Reads the record of a run's options. One that is missing, or that this version does not understand, is left out. */
static enum ox_status read_options(const char *run, char ***out, uint64_t *max_steps) {
    char path[OX_PATH_BYTES];
    struct ox_config *const config = malloc(sizeof *config);
    if (config == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the options of a run");
    }
    enum ox_status status = ox_path_join(run, "config.resolved.yaml", path);
    ox_config_init(config);
    if (status == OX_OK && ox_path_is_file(path)) {
        if (ox_config_load_yaml(config, path, OX_CMD_TRAIN) == OX_OK) {
            status = text_options(config, out);
            *max_steps = config->train.max_steps;
        } else {
            ox_log(OX_LOG_WARN, "the options of %s are left out: %s", run, ox_error_text());
        }
    }
    free(config);
    return status;
}

bool ox_comparison_differs(const struct ox_comparison *comparison, uint32_t option_idx) {
    const char *first = NULL;
    uint32_t count = 0;
    const struct ox_option *const options = ox_options(&count);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (strcmp(options[option_idx].name, places[i]) == 0) {
            return false;
        }
    }
    for (uint32_t i = 0; i < comparison->count; i++) {
        const char *const text = comparison->runs[i].options != NULL ? comparison->runs[i].options[option_idx] : NULL;
        if (text != NULL && first != NULL && strcmp(text, first) != 0) {
            return true;
        }
        first = first != NULL ? first : text;
    }
    return false;
}

/* ---- runs ----------------------------------------------------------------------------------------------- */

static void sum_up(struct ox_compared_run *run) {
    const struct ox_curves *const curves = run->curves;
    double loss = 0, steps = 0, time = 0, speeds = 0; /* time: of a token of each step */
    for (uint32_t i = 0; i < curves->count; i++) {
        const struct ox_curve_point *const point = &curves->points[i];
        const bool late = i >= curves->count - ox_div_up(curves->count, LOSS_SHARE);
        const double of_loss = late ? point->counts[OX_CURVE_LOSS] : 0;
        const double of_speed = point->counts[OX_CURVE_TOKENS_PER_SECOND];
        loss += of_loss > 0 ? of_loss * point->values[OX_CURVE_LOSS] : 0;
        const double rate = point->values[OX_CURVE_TOKENS_PER_SECOND];
        time += of_speed > 0 && rate > 0 ? of_speed / rate : 0;
        steps += of_loss;
        speeds += of_speed;
    }
    run->loss = steps > 0 ? loss / steps : NAN;
    run->tokens_per_second = time > 0 ? speeds / time : NAN;
}

/* What a run does, whose lock was looked at before its lines were read. */
static const char *state_of(const struct ox_compared_run *run, enum ox_run_lock lock) {
    const struct ox_curves *const curves = run->curves;
    const double step = curves->count > 0 ? curves->points[curves->count - 1].step : 0;
    return lock == OX_RUN_HELD ? "running"
           : !curves->ended    ? lock == OX_RUN_FREE ? "cut off" : "unknown"
           : (run->max_steps > 0 && step >= (double)run->max_steps) ||
                     (curves->max_steps > 0 && step >= curves->max_steps) ? "ended" : "stopped";
}

/* Sets labels to the ends of the paths, as many of their parts as tell them apart. */
static void label(struct ox_comparison *comparison) {
    bool again = true;
    for (uint32_t i = 0; i < comparison->count; i++) {
        const char *const path = comparison->runs[i].path;
        const char *at = path + strlen(path);
        while (at > path && at[-1] == '/') { /* a slash at the end parts nothing */
            at--;
        }
        while (at > path && at[-1] != '/') {
            at--;
        }
        comparison->runs[i].label = at;
    }
    for (int depth = 0; again && depth < 64; depth++) {
        bool twins[OX_COMPARE_RUNS_MAX] = {false};
        again = false;
        for (uint32_t i = 0; i < comparison->count; i++) {
            for (uint32_t j = 0; j < comparison->count; j++) {
                twins[i] = twins[i] || (i != j && strcmp(comparison->runs[i].label, comparison->runs[j].label) == 0);
            }
        }
        for (uint32_t i = 0; i < comparison->count; i++) {
            struct ox_compared_run *const run = &comparison->runs[i];
            if (twins[i] && run->label > run->path) {
                again = true;
                run->label--;
                while (run->label > run->path && run->label[-1] != '/') {
                    run->label--;
                }
            }
        }
    }
}

enum ox_status ox_comparison_open(const char *const *paths, uint32_t count, struct ox_comparison *out) {
    OX_ASSERT(count <= OX_COMPARE_RUNS_MAX);
    *out = (struct ox_comparison){.runs = calloc(count, sizeof *out->runs)};
    enum ox_status status = out->runs != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "no memory to compare runs");
    for (uint32_t i = 0; status == OX_OK && i < count; i++) {
        struct ox_compared_run *const run = &out->runs[out->count++];
        run->path = paths[i];
        const enum ox_run_lock lock = ox_run_lock_of(paths[i]);
        status = ox_curves_read(paths[i], &run->curves);
        OX_THEN(status, read_options(paths[i], &run->options, &run->max_steps));
        if (status == OX_OK) {
            sum_up(run);
            run->state = state_of(run, lock);
        }
    }
    if (status != OX_OK) {
        ox_comparison_close(out);
        return status;
    }
    label(out);
    return OX_OK;
}

void ox_comparison_close(struct ox_comparison *comparison) {
    for (uint32_t i = 0; i < comparison->count; i++) {
        free(comparison->runs[i].curves);
        close_options(&comparison->runs[i].options);
    }
    free(comparison->runs);
    *comparison = (struct ox_comparison){0};
}

char ox_comparison_letter(uint32_t run_idx) {
    return (char)('a' + run_idx);
}

const char *ox_comparison_tokens(double tokens, char *text) {
    text[0] = '\0';
    return tokens > 0 ? ox_count_text(tokens, text) : text;
}

/* ---- as JSON ----------------------------------------------------------------------------------------------- */

static json_t *points_json(const struct ox_curves *curves) {
    json_t *const columns = json_object();
    json_t *const step = json_array(), *const tokens = json_array(), *const seconds = json_array();
    for (uint32_t i = 0; i < curves->count; i++) {
        json_array_append_new(step, ox_json_number(curves->points[i].step));
        json_array_append_new(tokens, ox_json_number(curves->points[i].tokens));
        json_array_append_new(seconds, ox_json_number(curves->points[i].seconds));
    }
    json_object_set_new(columns, "step", step);
    json_object_set_new(columns, "tokens", tokens);
    json_object_set_new(columns, "seconds", seconds);
    for (int value = 0; value < OX_CURVE_COUNT; value++) {
        json_t *const column = json_array();
        for (uint32_t i = 0; i < curves->count; i++) {
            json_array_append_new(column, ox_json_number(curves->points[i].values[value]));
        }
        json_object_set_new(columns, ox_curve_name((enum ox_curve)value), column);
    }
    return columns;
}

static json_t *eval_json(const struct ox_curve_eval *eval) {
    return json_pack("{s:o, s:o, s:o, s:o}", "step", ox_json_number(eval->step), "tokens", ox_json_number(eval->tokens),
                     "seconds", ox_json_number(eval->seconds), "eval_loss", ox_json_number(eval->loss));
}

static json_t *evals_json(const struct ox_curves *curves) {
    json_t *const array = json_array();
    for (uint32_t i = 0; i < curves->eval_count; i++) {
        json_array_append_new(array, eval_json(&curves->evals[i]));
    }
    return array;
}

/* Options in which the runs differ. */
static json_t *options_json(const struct ox_comparison *comparison, const struct ox_compared_run *run) {
    uint32_t count = 0;
    const struct ox_option *const options = ox_options(&count);
    if (run->options == NULL) {
        return json_null();
    }
    json_t *const object = json_object();
    for (uint32_t i = 0; i < count; i++) {
        if (run->options[i] != NULL && ox_comparison_differs(comparison, i)) {
            json_object_set_new(object, options[i].name, ox_json_text(run->options[i]));
        }
    }
    return object;
}

json_t *ox_comparison_json(const struct ox_comparison *comparison) {
    json_t *const runs = json_array();
    for (uint32_t i = 0; i < comparison->count; i++) {
        const struct ox_compared_run *const run = &comparison->runs[i];
        const struct ox_curves *const curves = run->curves;
        json_array_append_new(runs, json_pack("{s:o, s:o, s:s, s:I, s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:o}", "run",
            ox_json_text(run->path), "label", ox_json_text(run->label), "state", run->state, "max_steps",
            (json_int_t)run->max_steps, "loss", ox_json_number(run->loss),
            "tokens_per_second", ox_json_number(run->tokens_per_second), "skipped_steps",
            (json_int_t)curves->skipped_steps, "steps_per_point", ox_json_number((double)curves->steps_each),
            "best_eval", isnan(curves->best.loss) ? json_null() : eval_json(&curves->best),
            "evals", evals_json(curves), "points", points_json(curves), "options", options_json(comparison, run)));
    }
    return json_pack("{s:o}", "runs", runs);
}
