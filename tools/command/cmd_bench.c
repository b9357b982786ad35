/* `offload bench`: the machine against its own limits. A limit that is missed shows in the figures and decides about
 * the exit status with --strict alone, because what else runs on a machine decides about its times. */
#include "tools/bench/bench_device.h"
#include "tools/command/cmd.h"

#include "base/file.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The profile is written at the end: what would be in its way then is found now. */
static enum ox_status check_output(const struct ox_config *config) {
    char folder[OX_CONFIG_TEXT_BYTES];
    if (config->output_dir[0] == '\0') {
        return OX_OK;
    }
    if (strcmp(config->what, "all") != 0) {
        return ox_fail(OX_E_CONFIG, "--output takes the profile of `offload bench all`; remove it");
    }
    if (ox_path_is_folder(config->output_dir)) {
        return ox_fail(OX_E_CONFIG, "--output: %s is a folder; name the file to write", config->output_dir);
    }
    snprintf(folder, sizeof folder, "%s", config->output_dir);
    char *const slash = strrchr(folder, '/');
    if (slash == NULL) {
        snprintf(folder, sizeof folder, ".");
    } else {
        slash[slash == folder] = '\0';
    }
    if (access(folder, W_OK | X_OK) != 0) {
        return ox_fail_errno(OX_E_CONFIG, errno, "--output: %s cannot be written to %s", config->output_dir, folder);
    }
    return OX_OK;
}

static enum ox_status run_all(struct ox_bench *bench) {
    bench->brief = true;
    enum ox_status status = OX_OK;
    if (bench->config->nvme_count == 0) {
        ox_bench_note(bench, "nvme: left out; name a folder on each drive with --nvme");
    } else {
        status = ox_bench_nvme(bench);
    }
    if (status == OX_OK) {
        status = ox_bench_adam(bench);
    }
    if (status == OX_OK) {
        status = ox_bench_copy(bench);
    }
    if (status == OX_OK) {
        status = ox_bench_gemm(bench);
    }
    if (status == OX_OK) {
        status = ox_bench_lane(bench);
    }
    if (status == OX_OK && bench->config->output_dir[0] != '\0') {
        status = ox_bench_profile_write(bench, bench->config->output_dir);
    }
    return status;
}

static enum ox_status run_part(struct ox_bench *bench) {
    static const struct {
        const char *name;
        enum ox_status (*run)(struct ox_bench *);
    } parts[] = {{"adam", ox_bench_adam}, {"nvme", ox_bench_nvme}, {"gemm", ox_bench_gemm}, {"copy", ox_bench_copy},
                 {"ops", ox_bench_ops}, {"all", run_all}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strcmp(bench->config->what, parts[i].name) == 0) {
            const enum ox_status status = parts[i].run == ox_bench_nvme ? OX_OK : ox_bench_gpu_open(bench);
            return status == OX_OK ? parts[i].run(bench) : status;
        }
    }
    return ox_fail(OX_E_CONFIG, "what to measure is missing; give one of adam, nvme, gemm, copy, ops, all");
}

static enum ox_status print_json(const struct ox_bench *bench) {
    json_t *const list = ox_bench_records_json(bench);
    char *const text = list == NULL ? NULL : json_dumps(list, JSON_INDENT(1) | JSON_REAL_PRECISION(7));
    json_decref(list);
    if (text == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory to write the figures");
    }
    puts(text);
    free(text);
    return OX_OK;
}

int ox_cmd_bench(const struct ox_config *config) {
    static struct ox_bench bench; /* tens of kilobytes */
    bench = (struct ox_bench){.config = config, .json = strcmp(config->format, "json") == 0};
    enum ox_status status = check_output(config);
    if (status == OX_OK) {
        status = run_part(&bench);
        ox_bench_gpu_close(&bench);
    }
    if (status == OX_OK && bench.json) {
        status = print_json(&bench);
    }
    if (status != OX_OK) {
        return ox_cmd_fail(status);
    }
    if (config->strict && bench.missed_count > 0) {
        fprintf(stderr, "offload: %" PRIu32 " of the figures are below their limits\n", bench.missed_count);
        return OX_EXIT_FAILED;
    }
    return OX_EXIT_OK;
}
