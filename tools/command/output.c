/* How subcommands print results. */
#include "tools/command/cmd.h"

#include "base/file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum ox_status ox_print_json(FILE *out, json_t *json, size_t flags, const char *what) {
    const int written = json == NULL ? -1 : json_dumpf(json, out, flags);
    json_decref(json);
    fputc('\n', out);
    return written < 0 || ferror(out) ? ox_fail(OX_E_IO, "%s could not be written", what) : OX_OK;
}

enum ox_status ox_cmd_write_file(const char *path, ox_write_fn *write, const void *what) {
    char *data = NULL;
    size_t bytes = 0;
    FILE *const out = open_memstream(&data, &bytes);
    if (out == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to write it", path);
    }
    enum ox_status status = write(what, out);
    if (fclose(out) != 0 && status == OX_OK) {
        status = ox_fail(OX_E_NOMEM, "%s: no memory to write it", path);
    }
    OX_THEN(status, ox_file_replace(path, data, bytes));
    free(data);
    return status;
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
