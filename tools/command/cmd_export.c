/* `offload export`: writes the weights of a checkpoint or model folder as a Hugging Face folder. */
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

int ox_cmd_export(const struct ox_config *config) {
    char source[OX_CONFIG_TEXT_BYTES], found[OX_CONFIG_TEXT_BYTES];
    const char *adapter = NULL;
    enum ox_dtype dtype = ox_dtype_of_word(config->save_dtype);
    enum ox_status status = ox_run_find_model(config->model, source);
    OX_THEN(status, ox_hf_check_file(source, true));
    if (status == OX_OK && config->adapter[0] != '\0') {
        status = ox_run_find_model(config->adapter, found);
        adapter = found;
    }
    if (status == OX_OK && strcmp(config->save_dtype, "auto") == 0) {
        status = ox_export_dtype(source, &dtype);
    }
    OX_THEN(status, ox_export_folder(source, adapter, config->output_dir, dtype, shard_bytes_max));
    OX_THEN(status, report(config, source, dtype));
    return ox_cmd_exit(status);
}
