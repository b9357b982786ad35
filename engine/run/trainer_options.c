/* Owns the record of a run's options, config.resolved.yaml: writes it so that it works from any folder, and says which
 * options differ from those of an earlier process. */
#include "engine/run/trainer_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/hash/hash.h"
#include "base/log.h"
#include "engine/config/mesh_words.h"
#include "engine/data/files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char record_name[] = "config.resolved.yaml";

/* ---- writing -------------------------------------------------------------------------------------------------- */

/* Makes a path (OX_CONFIG_TEXT_BYTES) absolute. Links stay, because a name behind one may have lost its ending. */
static void make_absolute(char *path, const char *folder) {
    char joined[OX_CONFIG_TEXT_BYTES];
    if (path[0] == '\0' || path[0] == '/') {
        return;
    }
    const char *const rest = strncmp(path, "./", 2) == 0 ? path + 2 : path;
    const bool here = strcmp(path, ".") == 0;
    const int bytes = snprintf(joined, sizeof joined, "%s%s%s", folder, here ? "" : "/", here ? "" : rest);
    if (folder[0] == '\0' || bytes < 0 || (size_t)bytes >= sizeof joined) {
        ox_log(OX_LOG_WARN, "%s records %s as it is, because its whole path is too long; resume in this folder",
               record_name, path);
        return;
    }
    memcpy(path, joined, (size_t)bytes + 1);
}

/* Makes the path of each set of --eval-data absolute. */
static void make_eval_absolute(char *text, size_t bytes, const char *folder) {
    struct ox_eval_sets *const sets = malloc(sizeof *sets);
    char *const whole = calloc(1, bytes);
    size_t used = 0;
    if (sets != NULL && whole != NULL && ox_config_eval_sets(text, sets) == OX_OK) {
        for (uint32_t i = 0; i < sets->count && used < bytes; i++) {
            struct ox_eval_set *const set = &sets->sets[i];
            make_absolute(set->path, folder);
            used += (size_t)snprintf(whole + used, bytes - used, "%s%s%s%s", i > 0 ? "," : "", set->name,
                                     set->name[0] != '\0' ? "=" : "", set->path);
        }
        if (used < bytes) {
            memcpy(text, whole, used + 1);
        } else {
            ox_log(OX_LOG_WARN, "%s records --eval-data as it is, because its whole paths are too long; resume in this "
                   "folder", record_name);
        }
    }
    free(sets);
    free(whole);
}

static void make_paths_absolute(struct ox_config *config) {
    char *const named[] = {config->rows.chat_template, config->files.profile}; /* files or names; a name is no file */
    char *const paths[] = {config->files.model, config->files.tokenizer, config->files.output_dir,
                           config->rows.data_cache};
    char folder[OX_PATH_BYTES];
    if (getcwd(folder, sizeof folder) == NULL) {
        folder[0] = '\0';
    }
    for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) {
        make_absolute(paths[i], folder);
    }
    for (unsigned i = 0; i < sizeof named / sizeof *named; i++) {
        if (access(named[i], F_OK) == 0) {
            make_absolute(named[i], folder);
        }
    }
    make_eval_absolute(config->files.eval_data, sizeof config->files.eval_data, folder);
    for (uint32_t i = 0; i < config->files.data_count; i++) {
        make_absolute(config->files.data[i].path, folder);
    }
    for (uint32_t i = 0; i < config->memory.nvme_count; i++) {
        make_absolute(config->memory.nvme[i].path, folder);
    }
}

enum ox_status ox_trainer_record_options(const struct ox_trainer *trainer) {
    struct ox_config *const config = malloc(sizeof *config);
    char path[OX_PATH_BYTES], *yaml = NULL;
    if (config == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory to write the configuration");
    }
    *config = trainer->config;
    config->files.overwrite_output_dir = config->files.from_scratch = config->tool.dry_run = config->tool.quiet =
        config->tool.verbose = false;
    config->files.resume_from_checkpoint[0] = '\0';
    if (strcmp(config->ranks.mesh, "auto") != 0) {
        config->ranks.mesh[0] = '\0'; /* each of its sizes is recorded */
    }
    /* A profile that was found is the machine's, not the run's. */
    memcpy(config->files.profile, config->files.given_profile, sizeof config->files.profile);
    config->memory.host_mem_bytes = trainer->given_host_bytes; /* what is free is found again at a resume */
    config->memory.device_mem_bytes = trainer->given_device_bytes;
    if (trainer->began_with[0] != '\0') {
        memcpy(config->files.model, trainer->began_with, sizeof config->files.model);
    }
    make_paths_absolute(config);
    enum ox_status status = ox_config_to_yaml(config, OX_CMD_TRAIN, &yaml);
    OX_THEN(status, ox_path_join(trainer->config.files.output_dir, record_name, path));
    OX_THEN(status, ox_file_replace(path, yaml, strlen(yaml)));
    free(yaml);
    free(config);
    return status;
}

/* ---- comparing ------------------------------------------------------------------------------------------------ */

enum { SHOWN_BYTES = 160, SHOWN_HEAD_BYTES = 40, SHOWN_TAIL_BYTES = 100 };

void ox_run_of_checkpoint(const char *checkpoint, char folder[OX_PATH_BYTES]) {
    char record[OX_PATH_BYTES];
    const size_t bytes = strlen(checkpoint);
    const char *const slash = strrchr(checkpoint, '/');
    const bool ends_so = slash != NULL && slash[1] == '\0';
    snprintf(folder, OX_PATH_BYTES, "%s/..", checkpoint);
    const bool beside = ox_path_join(folder, record_name, record) == OX_OK && ox_path_exists(record);
    if (!beside && !ends_so && bytes < OX_PATH_BYTES) { /* a link in the run, to where the checkpoint was moved */
        snprintf(folder, OX_PATH_BYTES, "%.*s", slash != NULL ? (int)(slash - checkpoint) : 1,
                 slash != NULL ? checkpoint : ".");
    }
}

/* Loads the record beside a checkpoint; for the store, whose `origin` is no path, that of the run's folder. */
static enum ox_status load_record(const struct ox_trainer *trainer, const char *origin, struct ox_config *out) {
    char path[OX_PATH_BYTES], folder[OX_PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", trainer->config.files.output_dir);
    if (ox_path_is_folder(origin)) {
        ox_run_of_checkpoint(origin, folder);
    }
    enum ox_status status = ox_path_join(folder, record_name, path);
    ox_config_init(out);
    OX_THEN(status, ox_config_load_yaml(out, path, OX_CMD_TRAIN));
    out->train.sum_groups = ox_max_u64(out->train.sum_groups, 1); /* runs of older versions had one group */
    out->train.tensor_groups = ox_max_u64(out->train.tensor_groups, 1);
    return status;
}

/* Loads the record of the run that is resumed; NULL if none is, or if it has no record. free() it. */
static struct ox_config *load_resumed(const struct ox_trainer *trainer) {
    const char *const resume = trainer->config.files.resume_from_checkpoint;
    struct ox_config *record = resume[0] == '\0' ? NULL : calloc(1, sizeof *record);
    if (record != NULL && load_record(trainer, resume, record) != OX_OK) {
        free(record);
        record = NULL;
    }
    return record;
}

struct ox_recorded ox_trainer_recorded(const struct ox_trainer *trainer) {
    struct ox_config *const record = load_resumed(trainer);
    struct ox_recorded recorded = {0};
    if (record != NULL) {
        recorded = (struct ox_recorded){.sum_groups = record->train.sum_groups,
                                        .tensor_groups = record->train.tensor_groups,
                                        .context_groups = record->train.context_groups,
                                        .context_mode = record->ranks.context_parallel_mode,
                                        .chunk_elems = record->place.chunk_elems,
                                        .store_generations =
                                            record->memory.nvme_count > 0 ? record->memory.store_generations : 0};
        snprintf(recorded.experts_per_unit, sizeof recorded.experts_per_unit, "%s", record->place.experts_per_unit);
    }
    free(record);
    return recorded;
}

/* What does not exist with groups of features, in words of options; NULL: all of the run does. */
static const char *not_cut(const struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    return trainer->input.eval_alone ? NULL
           : config->parts.share_layers[0] != '\0' ? "--share-layers"
           : config->optim.optimizer == OX_OPTIM_MUON ? "--optimizer muon, which updates whole matrices," : NULL;
}

/* Refuses what cannot be cut into so many groups of features, in the words that asked for them. */
static enum ox_status check_cut(const struct ox_trainer *trainer, uint32_t groups, uint32_t per_unit, bool by_ranks) {
    struct ox_model_config model = ox_hf_model(trainer->folder)->config;
    char said[48];
    snprintf(said, sizeof said, "--tensor-%s %" PRIu32, by_ranks ? "parallel-size" : "groups", groups);
    const char *const other = groups > 1 ? not_cut(trainer) : NULL;
    if (other != NULL) {
        return ox_fail(OX_E_CONFIG, "%s: does not exist with %s yet; leave one of them out", said, other);
    }
    model.tensor_groups = groups;
    model.mixture.per_unit = per_unit;
    const enum ox_status status = ox_model_check_groups(&model);
    return status == OX_OK ? OX_OK : ox_fail_in(status, "%s", said);
}

enum ox_status ox_trainer_group(struct ox_trainer *trainer) {
    struct ox_config *const config = &trainer->config;
    const struct ox_recorded recorded = ox_trainer_recorded(trainer);
    char *const text = config->place.experts_per_unit;
    if (strcmp(text, "auto") == 0 && recorded.experts_per_unit[0] != '\0') {
        memcpy(text, recorded.experts_per_unit, sizeof recorded.experts_per_unit);
    }
    const bool whole = strcmp(text, "all") == 0 || strcmp(text, "auto") == 0 || trainer->input.eval_alone;
    char *end = NULL;
    const unsigned long count = strtoul(text, &end, 10);
    if (!whole && (*end != '\0' || end == text || text[0] == '-' || count == 0)) {
        return ox_fail(OX_E_CONFIG, "--experts-per-unit: '%s' is neither auto nor all nor a number of experts", text);
    }
    struct ox_mesh_sizes sizes;
    OX_TRY(ox_mesh_read(&config->ranks, &sizes));
    uint32_t per_unit = whole ? 0 : (uint32_t)ox_min_u64(count, UINT32_MAX - 1);
    per_unit = trainer->input.eval_alone || strcmp(text, "auto") == 0 ? OX_EXPERTS_AUTO : per_unit;
    OX_TRY(ox_trainer_need_experts(&ox_hf_model(trainer->folder)->config,
                                   sizes.by_features ? sizes.tensor * sizes.expert : 1));
    trainer->any_tensor_groups = config->train.tensor_groups == 0 && recorded.tensor_groups == 0;
    const bool by_ranks = config->train.tensor_groups == 0 && recorded.tensor_groups == 0 && sizes.tensor > 1;
    if (config->train.tensor_groups == 0) { /* a resumed run keeps them */
        config->train.tensor_groups = by_ranks ? sizes.tensor : ox_max_u64(recorded.tensor_groups, 1);
    }
    OX_TRY(ox_trainer_group_experts(&ox_hf_model(trainer->folder)->config, sizes.expert, sizes.tensor,
                                    config->train.tensor_groups, &per_unit));
    if (sizes.expert > 1) { /* else the planner may choose */
        snprintf(text, sizeof config->place.experts_per_unit, "%" PRIu32, per_unit);
    }
    const uint32_t groups = (uint32_t)config->train.tensor_groups;
    per_unit = per_unit == OX_EXPERTS_AUTO ? 0 : per_unit;
    OX_TRY(check_cut(trainer, groups, per_unit, by_ranks));
    OX_TRY(check_cut(trainer, (uint32_t)ox_max_u64(sizes.tensor, 1), per_unit, true)); /* groups are a multiple */
    return ox_hf_regroup(trainer->folder, per_unit, groups);
}

enum ox_status ox_trainer_share_layers(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    const char *const text = config->parts.share_layers;
    const uint32_t layers = ox_hf_model(trainer->folder)->config.layers;
    const bool begins = config->files.resume_from_checkpoint[0] == '\0';
    char *end = NULL;
    if (text[0] == '\0' || trainer->input.eval_alone) {
        return OX_OK;
    }
    const unsigned long count = strcmp(text, "all") == 0 ? layers : strtoul(text, &end, 10);
    if ((end != NULL && (*end != '\0' || end == text || text[0] == '-')) || count < 1 || count > layers) {
        return ox_fail(OX_E_CONFIG, "--share-layers %s: give all, or how many layers in a row share their weights, "
                       "2 to %u", text, layers);
    }
    const char *const other = config->parts.lora_r > 0        ? "--lora-r"
                              : config->parts.adapter[0] != '\0' ? "--adapter"
                              : ox_trainer_routes(config);
    if (other != NULL) {
        return ox_fail(OX_E_CONFIG, "--share-layers: does not exist with %s yet; leave one of them out", other);
    }
    return ox_hf_share_layers(trainer->folder, (uint32_t)count, begins);
}

/* The stages of the last --kept-blocks, of which those of experts apart keep nothing. */
int32_t ox_trainer_kept_stages(const struct ox_config *config, const struct ox_model *model) {
    const bool is_auto = strcmp(config->place.kept_blocks, "auto") == 0;
    const uint64_t blocks = is_auto ? 0 : strtoull(config->place.kept_blocks, NULL, 10);
    int32_t count = 0, left = (int32_t)ox_min_u64(blocks, INT32_MAX);
    for (uint32_t i = model->stage_count; i-- > 0 && left > 0;) {
        const enum ox_unit_kind kind = model->units[model->stages[i]].kind;
        count += kind == OX_UNIT_BLOCK || kind == OX_UNIT_EXPERTS;
        left -= kind == OX_UNIT_BLOCK;
    }
    return is_auto ? -1 : count;
}

struct ox_mesh_sizes ox_trainer_recorded_mesh(const struct ox_trainer *trainer) {
    struct ox_config *const record = load_resumed(trainer);
    const struct ox_config_ranks none = {0}, *const said = record != NULL ? &record->ranks : &none;
    const uint64_t tensor = ox_max_u64(said->tensor_parallel_size, 1);
    const struct ox_mesh_sizes sizes = {
        .pipe = (uint32_t)ox_max_u64(said->pipeline_parallel_size, 1), .tensor = (uint32_t)tensor,
        .expert = (uint32_t)ox_max_u64(said->expert_parallel_size / tensor, 1), /* of the data ranks */
        .by_features = tensor > 1 && said->expert_parallel_size > 1};
    free(record);
    return sizes;
}

uint32_t ox_trainer_recorded_ranks(const struct ox_trainer *trainer, uint32_t processes) {
    struct ox_config *const record = load_resumed(trainer);
    const uint32_t ranks = record != NULL ? (uint32_t)strtoul(record->ranks.count, NULL, 10) : processes;
    free(record);
    return ranks > 1 ? ranks : processes;
}

/* ---- how units are kept ---------------------------------------------------------------------------------------- */

static enum ox_unit_format format_of_letter(char letter) {
    enum ox_unit_format format = OX_FORMAT_MASTER;
    for (uint32_t i = 0; i < OX_FORMAT_COUNT; i++) {
        format = ox_weight_format_of((enum ox_unit_format)i)->letter == letter ? (enum ox_unit_format)i : format;
    }
    return format;
}

/* Whether CAST makes weights of the whole master, which halves are then as good as. */
static bool casts_masters(const struct ox_trainer *trainer) {
    return trainer->config.train.dtype != OX_COMPUTE_BF16;
}

/* A hash of which unit each tensor is in, which depends on what is frozen. */
static uint64_t parts_hash(const struct ox_model *model) {
    uint64_t hash = 0;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        hash = ox_hash64(&model->tensors[i].unit_idx, sizeof model->tensors[i].unit_idx, hash);
    }
    return hash;
}

/* Writes a letter for each unit, and behind those of stages that are trained in part which tensors they have; "" if all
 * have masters, as in all runs of older versions. */
static void formats_text(const struct ox_model *model, char text[OX_FORMATS_BYTES]) {
    bool any = false;
    OX_ASSERT(model->unit_count + 17 < OX_FORMATS_BYTES);
    for (uint32_t i = 0; i < model->unit_count; i++) {
        text[i] = ox_weight_format_of(model->units[i].format)->letter;
        any |= model->units[i].format != OX_FORMAT_MASTER;
    }
    text[any ? model->unit_count : 0] = '\0';
    if (any && model->unit_count > model->own_count) {
        snprintf(text + model->unit_count, OX_FORMATS_BYTES - model->unit_count, ":%016" PRIx64, parts_hash(model));
    }
}

/* Gives the formats of the run that is gone on with to the units that are still frozen; to those of stages trained in
 * part only where they have the tensors that they had, because others may have been trained since. */
static enum ox_status take_formats(const struct ox_trainer *trainer, struct ox_model *model) {
    const char *const resume = trainer->config.files.resume_from_checkpoint;
    char folder[OX_PATH_BYTES];
    struct ox_run_identity *const identity = calloc(1, sizeof *identity); /* too large for the stack */
    if (identity == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the identity of a run");
    }
    snprintf(folder, sizeof folder, "%s", trainer->config.files.output_dir);
    if (strcmp(resume, "latest") != 0) {
        ox_run_of_checkpoint(resume, folder);
    }
    const bool known = ox_run_read_identity(folder, identity) == OX_OK; /* else masters hold all that may be there */
    const char *const mark = known ? strchr(identity->formats, ':') : NULL;
    const bool same_parts = mark != NULL && strtoull(mark + 1, NULL, 16) == parts_hash(model);
    const size_t written = known ? strlen(identity->formats) : 0;
    const struct ox_recorded recorded = ox_trainer_recorded(trainer);
    const bool regrouped = recorded.experts_per_unit[0] != '\0' &&
                           strcmp(recorded.experts_per_unit, trainer->config.place.experts_per_unit) != 0;
    const size_t count = same_parts ? written : regrouped ? 0 : ox_min_u64(written, model->own_count);
    for (uint32_t i = 0; i < model->unit_count && i < count; i++) {
        const enum ox_unit_format format = format_of_letter(identity->formats[i]);
        const bool fits = format != OX_FORMAT_Q8 && (format != OX_FORMAT_FP16 || casts_masters(trainer));
        model->units[i].format = fits && !model->units[i].trained ? format : OX_FORMAT_MASTER;
    }
    free(identity);
    return OX_OK;
}

enum ox_status ox_trainer_choose_formats(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    struct ox_model *const model = ox_hf_own_model(trainer->folder);
    const bool begins = config->files.resume_from_checkpoint[0] == '\0', q8 = config->parts.base_dtype == OX_BASE_Q8;
    char text[OX_FORMATS_BYTES] = "";
    enum ox_status status = OX_OK;
    if (!q8 && (model->trained_count == model->param_count || (begins && config->files.from_scratch))) {
        return OX_OK;
    }
    if (!begins) {
        status = take_formats(trainer, model);
    } else if (ox_hf_has_weights(trainer->folder) || config->tool.plan_only) {
        ox_hf_choose_formats(trainer->folder, casts_masters(trainer));
    }
    if (q8 && status == OX_OK) {
        status = ox_hf_choose_bytes(model);
    }
    formats_text(model, text);
    OX_THEN(status, ox_team_share(trainer->team, text, sizeof text, "how frozen weights are kept"));
    for (uint32_t i = 0; i < model->unit_count && status == OX_OK; i++) {
        model->units[i].format = i < strlen(text) ? format_of_letter(text[i]) : OX_FORMAT_MASTER;
    }
    return status;
}

bool ox_trainer_record_formats(struct ox_trainer *trainer) {
    char text[OX_FORMATS_BYTES] = "";
    formats_text(ox_hf_model(trainer->folder), text);
    const bool differs = strcmp(text, trainer->identity.formats) != 0;
    memcpy(trainer->identity.formats, text, sizeof text);
    return differs;
}

/* ---- what differs ---------------------------------------------------------------------------------------------- */

/* Writes a value to `shown` (SHOWN_BYTES): without the middle of a long one, because a line of the log is short. */
static const char *show(const char *value, char *shown) {
    const size_t bytes = strlen(value);
    if (bytes < SHOWN_HEAD_BYTES + SHOWN_TAIL_BYTES) {
        snprintf(shown, SHOWN_BYTES, "%s", bytes > 0 ? value : "none");
    } else {
        snprintf(shown, SHOWN_BYTES, "%.*s...%s", SHOWN_HEAD_BYTES, value, value + bytes - SHOWN_TAIL_BYTES);
    }
    return shown;
}

/* Appends "--seed 42, now 43" if the values differ. */
static void add_values(const char *name, const char *before, const char *now, char *text) {
    char shown[2][SHOWN_BYTES];
    const size_t used = strlen(text), room = OX_OPTIONS_LINE_BYTES - used;
    if (strcmp(before, now) == 0) {
        return;
    }
    const int bytes = snprintf(text + used, room, "%s--%s %s, now %s", used > 0 ? "; " : "", name,
                               show(before, shown[0]), show(now, shown[1]));
    if (bytes < 0 || (size_t)bytes >= room) {
        text[used] = '\0'; /* whole entries only */
    }
}

/* Appends one option if it differs. */
static void add_difference(const struct ox_config *now, const struct ox_config *before, const char *name, char *text) {
    char values[2][OX_CONFIG_TEXT_BYTES];
    const struct ox_option *const option = ox_option_find(name);
    if (option->type == OX_OPT_PROSE) {
        add_values(name, (const char *)before + option->offset, (const char *)now + option->offset, text);
        return;
    }
    ox_config_text(before, option, values[0]);
    ox_config_text(now, option, values[1]);
    add_values(name, values[0], values[1], text);
}

/* Appends the sources whose paths differ, or with `weights` those that have another weight. */
static void add_sources(const struct ox_config *now, const struct ox_config *before, bool weights, char *text) {
    for (uint32_t i = 0; i < now->files.data_count || i < before->files.data_count; i++) {
        const char *const old_path = i < before->files.data_count ? before->files.data[i].path : "";
        const char *const new_path = i < now->files.data_count ? now->files.data[i].path : "";
        if (!weights) {
            add_values("data", old_path, new_path, text);
        } else if (strcmp(old_path, new_path) == 0 && before->files.data[i].weight != now->files.data[i].weight) {
            char values[2][OX_CONFIG_TEXT_BYTES + 32];
            snprintf(values[0], sizeof values[0], "%s:%g", old_path, before->files.data[i].weight);
            snprintf(values[1], sizeof values[1], "%s:%g", new_path, now->files.data[i].weight);
            add_values("data", values[0], values[1], text);
        }
    }
}

/* Adds those of the options on which that of a run depends. Of --data the bits depend on the weights, of --eval-data on
 * whether it is given; both are told by their own functions. */
static void add_differences(const struct ox_config *now, const struct ox_config *before, enum ox_option_bears bears,
                            char *text) {
    uint32_t count = 0;
    const struct ox_option *const options = ox_options(&count);
    for (uint32_t i = 0; i < count; i++) {
        if (options[i].bears == bears && (options[i].commands & OX_CMD_TRAIN) != 0) {
            add_difference(now, before, options[i].name, text);
        }
    }
}

static void compare(const struct ox_config *now, const struct ox_config *before, bool data, char *text) {
    if (data) {
        add_sources(now, before, false, text);
        add_differences(now, before, OX_BEARS_TOKENS, text);
        return;
    }
    if ((now->files.eval_data[0] == '\0') != (before->files.eval_data[0] == '\0')) {
        add_values("eval-data", before->files.eval_data, now->files.eval_data,
                   text); /* else a part of --data is held out */
    }
    add_sources(now, before, true, text);
    add_differences(now, before, OX_BEARS_BITS, text);
}

const char *ox_trainer_options_text(const struct ox_trainer *trainer, const char *origin, bool data, char *text) {
    struct ox_config *const configs = malloc(2 * sizeof *configs);
    text[0] = '\0';
    if (configs != NULL && load_record(trainer, origin, &configs[0]) == OX_OK) {
        configs[1] = trainer->config;
        make_paths_absolute(&configs[1]); /* as in the record */
        compare(&configs[1], &configs[0], data, text);
    }
    free(configs);
    return text;
}

/* Adapters keep their rank, and what they add is multiplied by a number that follows from it and from these two:
 * another one would be another model. */
static enum ox_status check_scale(const struct ox_config *now, const struct ox_config *before, const char *origin) {
    if (now->parts.lora_r == 0 || before->parts.lora_r == 0 ||
        (now->parts.lora_r == before->parts.lora_r && now->parts.lora_alpha == before->parts.lora_alpha &&
         now->parts.use_rslora == before->parts.use_rslora)) {
        return OX_OK;
    }
    if (now->parts.lora_r != before->parts.lora_r) {
        return ox_fail(OX_E_CONFIG, "%.300s: its adapters have the rank %" PRIu64 ", and --lora-r is %" PRIu64 "; give "
                       "theirs, or begin a new run, with what `offload merge` makes of them as --model", origin,
                       before->parts.lora_r, now->parts.lora_r);
    }
    return ox_fail(OX_E_CONFIG, "%.300s: its adapters were trained with --lora-alpha %g %s; give these again, because "
                   "others multiply what has been learned", origin, before->parts.lora_alpha,
                   before->parts.use_rslora ? "--use-rslora" : "and no --use-rslora");
}

/* The frozen weights of a run keep their bits. */
static enum ox_status check_base(const struct ox_config *now, const struct ox_config *before, const char *origin) {
    if (now->parts.base_dtype == before->parts.base_dtype) {
        return OX_OK;
    }
    return ox_fail(OX_E_CONFIG, "%.300s: its frozen weights are kept %s; %s, or begin a new run", origin,
                   before->parts.base_dtype == OX_BASE_Q8 ? "in 8 bits" : "as their folder has them",
                   before->parts.base_dtype == OX_BASE_Q8 ? "give --base-dtype q8 again"
                                                          : "leave --base-dtype q8 out");
}

enum ox_status ox_trainer_look_at_model(struct ox_trainer *trainer, const char *origin) {
    struct ox_config *const configs = malloc(2 * sizeof *configs);
    enum ox_status status = OX_OK;
    if (configs != NULL && load_record(trainer, origin, &configs[0]) == OX_OK) {
        configs[1] = trainer->config;
        make_paths_absolute(&configs[1]); /* as in the record */
        const char *const before = configs[0].files.model, *const now = configs[1].files.model;
        memcpy(trainer->began_with, before, sizeof trainer->began_with);
        if (before[0] != '\0' && strcmp(before, now) != 0 && !ox_trainer_has_adapters(trainer) &&
            !ox_checkpoint_is_in(trainer->config.files.output_dir, now)) {
            ox_log(OX_LOG_WARN, "--model %.300s: the run began with %.300s, and goes on with its own weights; of this "
                   "folder it takes config.json and tokenizer alone; to begin with its weights, give another --output",
                   trainer->config.files.model, before);
        }
        status = check_scale(&configs[1], &configs[0], origin);
        OX_THEN(status, check_base(&configs[1], &configs[0], origin));
    }
    free(configs);
    return status;
}

enum ox_status ox_trainer_explain_store(const struct ox_trainer *trainer, const char *checkpoint,
                                        enum ox_status refusal) {
    static const char *const names[] = {"model", "optimizer", "moments", "chunk-elems", "experts-per-unit",
                                        "tensor-groups", "freeze", "lora-r", "lora-target-modules",
                                        "lora-target-parameters", "lora-modules-to-save", "lora-bias", "use-dora",
                                        "adapter", "base-dtype"};
    struct ox_config *const configs = malloc(2 * sizeof *configs);
    char text[OX_ERROR_TEXT_BYTES], differences[OX_OPTIONS_LINE_BYTES] = "";
    snprintf(text, sizeof text, "%s", ox_error_text());
    const char *const cause = strstr(text, OX_STORE_OF_ANOTHER);
    if (cause != NULL && configs != NULL && load_record(trainer, "", &configs[0]) == OX_OK) {
        configs[1] = trainer->config;
        make_paths_absolute(&configs[1]); /* as in the record */
        for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
            add_difference(&configs[1], &configs[0], names[i], differences);
        }
    }
    free(configs);
    const bool known = differences[0] != '\0', saved = checkpoint[0] != '\0';
    return cause == NULL ? ox_fail(refusal, "%s", text)
                         : ox_fail(refusal, "%.*s%s%s; give those of the run%s%s", (int)(cause - text), text,
                                   known ? "was made with other settings: " : OX_STORE_OF_ANOTHER, differences,
                                   saved ? ", or go on from a checkpoint: --resume-from-checkpoint " : "", checkpoint);
}

/* Warns of data that is given twice, and of data that is measured too. A folder may have a split of each, so of the
 * latter files alone are compared. */
void ox_trainer_warn_of_measured(const struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    const struct ox_eval_sets *const sets = &trainer->input.eval_sets;
    for (uint32_t i = 1; i < config->files.data_count; i++) {
        uint32_t k = 0;
        while (k < i && !ox_files_are_same(config->files.data[k].path, config->files.data[i].path)) {
            k++;
        }
        if (k < i) {
            ox_log(OX_LOG_WARN, "--data %s: is given twice, so an epoch has it twice; give it once, with :2 behind its "
                   "name if that is meant", config->files.data[i].path);
        }
    }
    for (uint32_t i = 0; i < sets->count; i++) {
        for (uint32_t k = 0; k < config->files.data_count; k++) {
            if (ox_path_is_file(config->files.data[k].path) &&
                ox_files_are_same(config->files.data[k].path, sets->sets[i].path)) {
                ox_log(OX_LOG_WARN, "--eval-data %s: is trained too (--data), so its loss tells little of other text; "
                       "give other text, or leave it out, so that --eval-fraction holds some of the data out",
                       sets->sets[i].path);
                break;
            }
        }
    }
}

enum ox_status ox_trainer_take_layout(struct ox_trainer *trainer) {
    const char *const resume = trainer->config.files.resume_from_checkpoint;
    const bool is_mixture = ox_hf_model(trainer->folder)->config.mixture.router.experts != 0;
    char path[OX_PATH_BYTES] = "";
    bool found = resume[0] != '\0' && is_mixture && !ox_hf_has_weight_files(trainer->config.files.model);
    if (found && strcmp(resume, "latest") == 0) {
        found = ox_checkpoint_find_latest(trainer->config.files.output_dir, path) == OX_OK && path[0] != '\0';
    } else if (found) {
        snprintf(path, sizeof path, "%s", resume);
    }
    return found ? ox_hf_take_layout(trainer->folder, path) : OX_OK;
}

static int32_t kept_blocks(const struct ox_config *config) {
    const uint64_t count = strtoull(config->place.kept_blocks, NULL, 10);
    return strcmp(config->place.kept_blocks, "auto") == 0 ? -1 : (int32_t)ox_min_u64(count, INT32_MAX);
}

enum ox_status ox_trainer_check_counts(const struct ox_config *config, const struct ox_model *model) {
    const uint32_t block_count = model->block_count;
    if (kept_blocks(config) > 0 && (uint32_t)kept_blocks(config) > block_count) {
        return ox_fail(OX_E_CONFIG, "--kept-blocks %s: the model has %u block%s; give 0 to %u, or auto",
                       config->place.kept_blocks, block_count, ox_plural(block_count), block_count);
    }
    if (config->place.device_state_units > model->unit_count) {
        return ox_fail(OX_E_CONFIG, "--device-state-units %" PRIu64 ": the model has %u units, which are the "
                       "embedding, its blocks and the head; give 1 to %u, or 0 to leave it to the planner",
                       config->place.device_state_units, model->unit_count, model->unit_count);
    }
    if (model->unit_count + 17 >= OX_FORMATS_BYTES) {
        return ox_fail(OX_E_CONFIG, "--experts-per-unit %s: makes %u units; give a larger number, so that there are at "
                       "most %d", config->place.experts_per_unit, model->unit_count, OX_FORMATS_BYTES - 18);
    }
    if (config->place.device_state_first && config->place.device_state_units == 0) {
        return ox_fail(OX_E_CONFIG, "--device-state-first: says which units --device-state-units counts; give that "
                       "too, or leave both to the planner");
    }
    return OX_OK;
}
