/* `offload compare`: runs beside each other, as text, as JSON, and as a page. */
#include "tools/command/cmd.h"

#include "base/log.h"
#include "tools/compare/compare.h"

#include <string.h>

static enum ox_status write_page(const void *comparison, FILE *out) {
    return ox_comparison_page(comparison, out);
}

static enum ox_status compare(const struct ox_config *config) {
    const char *paths[OX_CONFIG_DATA_MAX];
    struct ox_comparison comparison;
    for (uint32_t i = 0; i < config->files.data_count; i++) {
        paths[i] = config->files.data[i].path;
        if (config->files.data[i].weight != 1) {
            return ox_fail(OX_E_CONFIG, "%s: a run has no weight; leave it out", paths[i]);
        }
    }
    enum ox_status status = ox_comparison_open(paths, config->files.data_count, &comparison);
    if (status != OX_OK) {
        return status;
    }
    if (config->files.output_dir[0] != '\0') {
        status = ox_cmd_write_file(config->files.output_dir, write_page, &comparison);
    }
    OX_THEN(status, strcmp(config->tool.format, "json") == 0
                        ? ox_print_json(stdout, ox_comparison_json(&comparison),
                                        JSON_INDENT(2) | JSON_REAL_PRECISION(9), "the comparison")
                        : ox_comparison_text(&comparison, stdout));
    if (status == OX_OK && config->files.output_dir[0] != '\0') {
        ox_log(OX_LOG_INFO, "wrote the page %s", config->files.output_dir);
    }
    ox_comparison_close(&comparison);
    return status;
}

int ox_cmd_compare(const struct ox_config *config) {
    const bool named = config->files.data_count > 0;
    return ox_cmd_exit(named ? compare(config) : ox_fail(OX_E_CONFIG, "RUN is missing; name the folders of runs: "
                                                         "`offload compare RUN RUN --output page.html`"));
}
