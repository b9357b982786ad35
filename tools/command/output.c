/* What several subcommands share: the model that they read, and how they print results. */
#include "tools/command/cmd.h"

#include "base/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/run/trainer.h"

#include <inttypes.h>
#include <string.h>

enum ox_status ox_cmd_model(const char *model, char *path) {
    char config[OX_PATH_BYTES], newest[OX_PATH_BYTES];
    const enum ox_status status = ox_path_join(model, "config.json", config);
    if (status != OX_OK) {
        return status;
    }
    const bool is_model = ox_path_is_file(config) || !ox_path_is_folder(model);
    const enum ox_status newer = is_model ? OX_E_CONFIG : ox_checkpoint_find_newest(model, newest);
    if (newer != OX_OK && newer != OX_E_CONFIG) {
        return ox_fail_in(newer, "--model %s", model);
    }
    if (!is_model && newer != OX_OK && ox_run_exists(model)) {
        return ox_fail(OX_E_CONFIG, "--model %s: is a run without a complete checkpoint; let it save one, or name a "
                       "model folder", model);
    }
    const int bytes = snprintf(path, OX_CONFIG_TEXT_BYTES, "%s", newer == OX_OK ? newest : model);
    return bytes < OX_CONFIG_TEXT_BYTES ? OX_OK : ox_fail(OX_E_CONFIG, "--model %s: the path is too long", model);
}

enum ox_status ox_print_json(FILE *out, json_t *json, size_t flags, const char *what) {
    const int written = json == NULL ? -1 : json_dumpf(json, out, flags);
    json_decref(json);
    fputc('\n', out);
    return written < 0 || ferror(out) ? ox_fail(OX_E_IO, "%s could not be written", what) : OX_OK;
}

const char *ox_duration_text(double seconds, char *text) {
    const uint64_t whole = seconds > 0 ? (uint64_t)(seconds + 0.5) : 0;
    if (whole >= 3600) {
        snprintf(text, OX_DURATION_TEXT_BYTES, "%" PRIu64 "h%02" PRIu64 "m", whole / 3600, whole / 60 % 60);
    } else if (whole >= 60) {
        snprintf(text, OX_DURATION_TEXT_BYTES, "%" PRIu64 "m%02" PRIu64 "s", whole / 60, whole % 60);
    } else {
        snprintf(text, OX_DURATION_TEXT_BYTES, "%" PRIu64 "s", whole);
    }
    return text;
}
