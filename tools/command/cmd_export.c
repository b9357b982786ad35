/* `offload export` and `offload merge`: write the weights of a checkpoint or model folder, with an adapter added, as a
 * Hugging Face folder. */
#include "tools/command/cmd.h"

#include "base/bytes.h"
#include "base/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/run/trainer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The shard size of transformers. */
static const uint64_t shard_bytes_max = UINT64_C(5000000000);

static enum ox_status report(const struct ox_config *config, const char *source, enum ox_dtype dtype) {
    struct ox_hf_folder *folder = NULL;
    OX_TRY(ox_hf_open(config->output_dir, true, &folder));
    const struct ox_model *const model = ox_hf_model(folder);
    const uint64_t bytes = ox_hf_bytes(model, dtype);
    if (strcmp(config->format, "json") == 0) {
        json_t *const object =
            json_pack("{s:s, s:s, s:s, s:s, s:I, s:I}", "source", source, "path", config->output_dir,
                      "family", model->config.family, "dtype", ox_dtype_name(dtype), "parameters",
                      (json_int_t)model->param_count, "bytes", (json_int_t)bytes);
        char *const text = object != NULL ? json_dumps(object, JSON_INDENT(2)) : NULL;
        puts(text != NULL ? text : "{}");
        free(text);
        json_decref(object);
    } else {
        char text[OX_SIZE_TEXT_BYTES];
        printf("%s: %s, %" PRIu64 " parameters as %s, %s, from %s\n", config->output_dir,
               model->config.family, model->param_count, ox_dtype_name(dtype), ox_size_text(bytes, text),
               source);
    }
    ox_hf_close(&folder);
    return OX_OK;
}

/* Writes `model` with the weights of `adapter` ("": none, or the model is one). */
static enum ox_status write_model(const struct ox_config *config, const char *model, const char *adapter,
                                  bool merges) {
    char source[OX_CONFIG_TEXT_BYTES], found[OX_CONFIG_TEXT_BYTES] = "";
    enum ox_dtype dtype = ox_dtype_of_word(config->save_dtype);
    enum ox_status status = ox_run_find_model(model, source);
    OX_THEN(status, ox_hf_check_file(source, true));
    if (status == OX_OK && adapter[0] != '\0') {
        status = ox_run_find_model(adapter, found);
    }
    const char *const last = found[0] != '\0' ? found : source;
    if (status == OX_OK && merges && !ox_hf_is_adapter(last)) {
        status = ox_fail(OX_E_CONFIG, "%s: holds no adapter (adapter_config.json); give the folder of one, from PEFT "
                         "or a run with --lora-r", last);
    }
    if (status == OX_OK && strcmp(config->save_dtype, "auto") == 0) {
        status = ox_export_dtype(source, &dtype);
    }
    OX_THEN(status, ox_export_folder(source, found[0] != '\0' ? found : NULL, config->output_dir, dtype,
                                     shard_bytes_max));
    return status == OX_OK ? report(config, source, dtype) : status;
}

int ox_cmd_export(const struct ox_config *config) {
    return ox_cmd_exit(write_model(config, config->model, config->adapter, false));
}

int ox_cmd_merge(const struct ox_config *config) {
    if (config->model[0] == '\0' && config->adapter[0] == '\0') {
        return ox_cmd_exit(ox_fail(OX_E_CONFIG, "--adapter is missing; give the folder of one, from PEFT or a run"));
    }
    const bool named = config->model[0] != '\0'; /* else the adapter names its model */
    const char *const model = named ? config->model : config->adapter;
    return ox_cmd_exit(write_model(config, model, named ? config->adapter : "", true));
}
