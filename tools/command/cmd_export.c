/* `offload export`, `offload merge` and `offload average`: write the weights of a checkpoint or model folder, with an
 * adapter added, or the mean of several, as a Hugging Face folder. `offload unlock`: a checkpoint whose layers no
 * longer share their weights. */
#include "tools/command/cmd.h"

#include "base/bytes.h"
#include "base/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/hf/hf.h"
#include "engine/run/trainer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The shard size of transformers. */
static const uint64_t shard_bytes_max = UINT64_C(5000000000);

/* `adapter`: that was added to the source, or "". */
static enum ox_status report(const struct ox_config *config, const char *source, const char *adapter,
                             enum ox_dtype dtype) {
    struct ox_hf_folder *folder = NULL;
    OX_TRY(ox_hf_open(config->files.output_dir, true, &folder));
    const struct ox_model *const model = ox_hf_model(folder);
    const uint64_t bytes = ox_hf_bytes(model, dtype);
    if (strcmp(config->tool.format, "json") == 0) {
        json_t *const object =
            json_pack("{s:s, s:s, s:s, s:s, s:I, s:I}", "source", source, "path", config->files.output_dir,
                      "family", model->config.family, "dtype", ox_dtype_name(dtype), "parameters",
                      (json_int_t)model->param_count, "bytes", (json_int_t)bytes);
        char *const text = object != NULL ? json_dumps(object, JSON_INDENT(2)) : NULL;
        puts(text != NULL ? text : "{}");
        free(text);
        json_decref(object);
    } else {
        char text[OX_SIZE_TEXT_BYTES];
        printf("%s: %s, %" PRIu64 " parameters as %s, %s, from %s%s%s\n", config->files.output_dir,
               model->config.family, model->param_count, ox_dtype_name(dtype), ox_size_text(bytes, text),
               source, adapter[0] != '\0' ? " with the adapter " : "", adapter);
    }
    ox_hf_close(&folder);
    return OX_OK;
}

/* Writes `model` with the weights of `adapter` ("": none, or the model is one). */
static enum ox_status write_model(const struct ox_config *config, const char *model, const char *adapter,
                                  bool merges) {
    char source[OX_CONFIG_TEXT_BYTES], found[OX_CONFIG_TEXT_BYTES] = "";
    enum ox_dtype dtype = ox_dtype_of_word(config->save.save_dtype);
    enum ox_status status = ox_run_find_model(model, source);
    OX_THEN(status, ox_hf_check_file(source, true));
    if (status == OX_OK && adapter[0] != '\0') {
        status = ox_run_find_adapter(adapter, found);
    }
    const char *const last = found[0] != '\0' ? found : source;
    if (status == OX_OK && merges && !ox_hf_is_adapter(last)) {
        status = ox_fail(OX_E_CONFIG, "%s: holds no adapter (adapter_config.json); give the folder of one, from PEFT "
                         "or `offload train --lora-r`", last);
    }
    if (status == OX_OK && strcmp(config->save.save_dtype, "auto") == 0) {
        status = ox_export_dtype(source, &dtype);
    }
    OX_THEN(status, ox_export_folder(source, found[0] != '\0' ? found : NULL, config->optim.use_ema,
                                     config->files.output_dir, dtype, shard_bytes_max));
    return status == OX_OK ? report(config, source, found, dtype) : status;
}

int ox_cmd_export(const struct ox_config *config) {
    return ox_cmd_exit(write_model(config, config->files.model, config->parts.adapter, false));
}

int ox_cmd_merge(const struct ox_config *config) {
    if (config->files.model[0] == '\0' && config->parts.adapter[0] == '\0') {
        return ox_cmd_exit(ox_fail(OX_E_CONFIG, "DIR is missing; give the folder of an adapter, from PEFT or a run"));
    }
    const bool named = config->files.model[0] != '\0'; /* else the adapter names its model */
    const char *const model = named ? config->files.model : config->parts.adapter;
    return ox_cmd_exit(write_model(config, model, named ? config->parts.adapter : "", true));
}

/* ---- unlock ------------------------------------------------------------------------------------------- */

static enum ox_status unlock(const struct ox_config *config) {
    char source[OX_CONFIG_TEXT_BYTES];
    uint32_t layers = 0;
    OX_TRY(ox_run_find_model(config->files.model, source));
    OX_TRY(ox_checkpoint_unlock(source, config->files.output_dir, (enum ox_unlock_moments)config->tool.unlock_moments,
                                &layers));
    static const char *const words[] = {"scaled", "copied", "zero"};
    if (strcmp(config->tool.format, "json") == 0) {
        json_t *const object = json_pack("{s:s, s:s, s:I, s:s}", "source", source, "path", config->files.output_dir,
                                         "layers", (json_int_t)layers, "moments", words[config->tool.unlock_moments]);
        char *const text = object != NULL ? json_dumps(object, JSON_INDENT(2)) : NULL;
        puts(text != NULL ? text : "{}");
        free(text);
        json_decref(object);
    } else {
        printf("%s: each layer has its own weights, moments %s, from %s, where %" PRIu32 " in a row shared them; go on "
               "with --resume-from-checkpoint %s, without --share-layers\n", config->files.output_dir,
               words[config->tool.unlock_moments], source, layers, config->files.output_dir);
    }
    return OX_OK;
}

int ox_cmd_unlock(const struct ox_config *config) {
    return ox_cmd_exit(unlock(config));
}

/* ---- average ------------------------------------------------------------------------------------------ */

/* Paths of all that is averaged; the folder of a run stands for its checkpoints. */
struct sources {
    char (*paths)[OX_PATH_BYTES];
    uint32_t count;
};

static enum ox_status add_source(struct sources *sources, const char *path) {
    char (*const longer)[OX_PATH_BYTES] = realloc(sources->paths, (sources->count + (size_t)1) * sizeof *longer);
    if (longer == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for its name", path);
    }
    sources->paths = longer;
    snprintf(longer[sources->count++], sizeof *longer, "%s", path);
    return OX_OK;
}

static enum ox_status add_sources(struct sources *sources, const struct ox_data_choice *choice) {
    char (*checkpoints)[OX_PATH_BYTES] = NULL;
    uint32_t count = 0;
    if (choice->weight != 1) {
        return ox_fail(OX_E_CONFIG, "%s: the mean is plain, without weights; leave it out", choice->path);
    }
    if (ox_folder_has(choice->path, "config.json") || ox_hf_is_adapter(choice->path) ||
        !ox_path_is_folder(choice->path)) {
        return add_source(sources, choice->path); /* what is no folder, or an adapter, is refused where it is opened */
    }
    enum ox_status status = ox_checkpoint_list(choice->path, &checkpoints, &count);
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        status = add_source(sources, checkpoints[i]);
    }
    if (status == OX_OK && count == 0) {
        status = ox_fail(OX_E_CONFIG, "%s: holds neither a model nor a checkpoint", choice->path);
    }
    free(checkpoints);
    return status;
}

static enum ox_status average(const struct ox_config *config, struct sources *sources) {
    const char *paths[4096];
    enum ox_dtype dtype = ox_dtype_of_word(config->save.save_dtype);
    if (sources->count < 2 || sources->count > sizeof paths / sizeof *paths) {
        return ox_fail(OX_E_CONFIG, "%s: %s; give two or more checkpoints, or the folder of a run that has kept some "
                       "(`offload train --save-total-limit N`)", sources->paths[0],
                       sources->count < 2 ? "is alone, and a mean is of several" : "are too many");
    }
    for (uint32_t i = 0; i < sources->count; i++) {
        paths[i] = sources->paths[i];
        for (uint32_t k = 0; k < i; k++) {
            if (strcmp(paths[i], paths[k]) == 0) {
                return ox_fail(OX_E_CONFIG, "%s: is given twice; give each folder once", paths[i]);
            }
        }
    }
    enum ox_status status = strcmp(config->save.save_dtype, "auto") == 0 ? ox_export_dtype(paths[0], &dtype) : OX_OK;
    OX_THEN(status, ox_export_mean(paths, sources->count, config->files.output_dir, dtype, shard_bytes_max));
    char text[OX_PATH_BYTES + 64];
    snprintf(text, sizeof text, "the mean of %" PRIu32 " folders, %.900s to %.900s", sources->count, paths[0],
             paths[sources->count - 1]);
    return status == OX_OK ? report(config, text, "", dtype) : status;
}

int ox_cmd_average(const struct ox_config *config) {
    struct sources sources = {0};
    enum ox_status status = config->files.data_count > 0 && config->files.output_dir[0] != '\0'
                                ? OX_OK
                                : ox_fail(OX_E_CONFIG, "%s is missing: `offload average CHECKPOINT CHECKPOINT "
                                          "--output DIR`, or `offload average RUN --output DIR`",
                                          config->files.data_count > 0 ? "--output" : "PATH");
    for (uint32_t i = 0; i < config->files.data_count && status == OX_OK; i++) {
        status = add_sources(&sources, &config->files.data[i]);
    }
    OX_THEN(status, average(config, &sources));
    free(sources.paths);
    return ox_cmd_exit(status);
}
