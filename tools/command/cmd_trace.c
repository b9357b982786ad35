/* `offload trace`: prints a recorded run as a summary, writes it as a page, and exports it for other viewers. */
#include "tools/command/cmd.h"

#include "base/file.h"
#include "base/log.h"
#include "offload/trace/trace_export.h"
#include "tools/trace/trace_report.h"

#include <stdlib.h>
#include <string.h>

static enum ox_status write_page(const void *report, FILE *out) {
    return ox_trace_report_page(report, out);
}

static enum ox_status run_report(const struct ox_config *config) {
    struct ox_trace_report report;
    const bool json = strcmp(config->tool.format, "json") == 0;
    if (!json && strcmp(config->tool.format, "text") != 0) {
        return ox_fail(OX_E_CONFIG, "--format %s is for `offload trace export`; use text or json", config->tool.format);
    }
    enum ox_status status = ox_trace_report_open(config->files.run, &report);
    if (status != OX_OK) {
        return status;
    }
    if (config->files.output_dir[0] != '\0') {
        status = ox_cmd_write_file(config->files.output_dir, write_page, &report);
    }
    OX_THEN(status, json ? ox_print_json(stdout, ox_trace_report_json(&report),
                                         JSON_INDENT(2) | JSON_REAL_PRECISION(9), "the report")
                         : ox_trace_report_text(&report, stdout));
    if (status == OX_OK && config->files.output_dir[0] != '\0') {
        ox_log(OX_LOG_INFO, "wrote the page %s", config->files.output_dir);
    }
    ox_trace_report_close(&report);
    return status;
}

struct recording {
    struct ox_trace *trace;
    struct ox_trace_steps *steps;
};

static enum ox_status write_chrome(const void *recording, FILE *out) {
    const struct recording *const r = recording;
    return ox_trace_write_chrome(r->trace, r->steps, out);
}

static enum ox_status write_perfetto(const void *recording, FILE *out) {
    const struct recording *const r = recording;
    return ox_trace_write_perfetto(r->trace, r->steps, out);
}

static enum ox_status run_export(const struct ox_config *config) {
    const bool chrome = strcmp(config->tool.format, "chrome") == 0;
    if (strcmp(config->tool.format, "json") == 0) {
        return ox_fail(OX_E_CONFIG, "--format json is for `offload trace report`; use perfetto or chrome");
    }
    if (config->files.output_dir[0] == '\0') {
        return ox_fail(OX_E_CONFIG, "--output is missing; name the file to write");
    }
    struct recording recording = {0};
    enum ox_status status = ox_trace_open(config->files.run, 0, &recording.trace);
    OX_THEN(status, ox_trace_steps_open(recording.trace, &recording.steps));
    OX_THEN(status, ox_cmd_write_file(config->files.output_dir, chrome ? write_chrome : write_perfetto, &recording));
    if (status == OX_OK) {
        ox_log(OX_LOG_INFO, "wrote %llu records to %s; open it in %s", (unsigned long long)recording.trace->count,
               config->files.output_dir,
               chrome ? "chrome://tracing or another viewer of that format" : "ui.perfetto.dev");
    }
    ox_trace_steps_close(&recording.steps);
    ox_trace_close(&recording.trace);
    return status;
}

int ox_cmd_trace(const struct ox_config *config) {
    if (config->tool.action[0] == '\0') {
        return ox_cmd_exit(ox_fail(OX_E_CONFIG, "report|export is missing; run `offload trace report PATH` or `offload "
                                   "trace export PATH --output FILE`"));
    }
    if (config->files.run[0] == '\0') {
        return ox_cmd_exit(ox_fail(OX_E_CONFIG, "PATH is missing; name the folder of a run, or its trace.bin"));
    }
    return ox_cmd_exit(strcmp(config->tool.action, "report") == 0 ? run_report(config) : run_export(config));
}
