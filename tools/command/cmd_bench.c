/* `offload bench`: measures the machine against its own limits. A figure below its limit is printed, but changes the
 * exit status only with --strict, because other programs on the machine change the times. */
#include "tools/bench/bench_device.h"
#include "tools/command/cmd.h"

#include "base/file.h"
#include "engine/hf/hf.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

/* Checks that the profile can be written, before minutes of measuring. */
static enum ox_status check_output(const struct ox_config *config) {
    char folder[OX_CONFIG_TEXT_BYTES];
    if (config->files.output_dir[0] == '\0') {
        return OX_OK;
    }
    if (strcmp(config->bench.what, "all") != 0) {
        return ox_fail(OX_E_CONFIG, "--output is for the profile of `offload bench all`; remove it");
    }
    if (ox_path_is_folder(config->files.output_dir)) {
        return ox_fail(OX_E_CONFIG, "--output: %s is a folder; name the file to write", config->files.output_dir);
    }
    snprintf(folder, sizeof folder, "%s", config->files.output_dir);
    char *const slash = strrchr(folder, '/');
    if (slash == NULL) {
        snprintf(folder, sizeof folder, ".");
    } else {
        slash[slash == folder] = '\0';
    }
    if (access(folder, W_OK | X_OK) != 0) {
        return ox_fail_errno(OX_E_CONFIG, errno, "--output: %s cannot be written to %s", config->files.output_dir,
                             folder);
    }
    return OX_OK;
}

/* Sets the sizes that GEMMs and operations are measured at to those of --model. */
static enum ox_status use_model(struct ox_bench *bench) {
    const char *const path = bench->config->files.model, *const what = bench->config->bench.what;
    struct ox_hf_folder *folder = NULL;
    if (path[0] == '\0') {
        return OX_OK;
    }
    if (strcmp(what, "gemm") != 0 && strcmp(what, "ops") != 0 && strcmp(what, "all") != 0) {
        return ox_fail(OX_E_CONFIG, "--model is for the sizes of `offload bench gemm`, `ops` and `all`; remove it");
    }
    OX_TRY(ox_hf_open(path, false, &folder));
    const struct ox_model_config model = ox_hf_model(folder)->config;
    ox_hf_close(&folder);
    if (model.head_dim > OX_BENCH_HEAD_DIM_MAX || model.head_dim % 2 != 0) {
        return ox_fail(OX_E_CONFIG, "--model %s: heads of %" PRIu32 " cannot be measured; even ones of at most %d can",
                       path, model.head_dim, OX_BENCH_HEAD_DIM_MAX);
    }
    bench->model = (struct ox_bench_shape){
        .seq = model.contexts, .hidden = model.hidden, .width = model.width, .vocab = model.vocab,
        .heads = model.heads, .kv_heads = model.kv_heads, .head_dim = model.head_dim,
        .gated = ox_activation_is_gated(model.act), .transposed = model.layout == OX_WEIGHT_IN_OUT};
    return OX_OK;
}

static enum ox_status run_all(struct ox_bench *bench) {
    static enum ox_status (*const parts[])(struct ox_bench *) = {ox_bench_nvme, ox_bench_adam, ox_bench_copy,
                                                                 ox_bench_gemm, ox_bench_lane, ox_bench_comm};
    enum ox_status status = OX_OK;
    bench->brief = true;
    for (unsigned i = 0; status == OX_OK && i < sizeof parts / sizeof *parts; i++) {
        if (parts[i] == ox_bench_nvme && bench->config->memory.nvme_count == 0) {
            ox_bench_note(bench, "nvme: skipped; name a folder on each drive with --nvme");
        } else {
            status = parts[i](bench);
        }
    }
    return status == OX_OK && bench->config->files.output_dir[0] != '\0'
               ? ox_bench_profile_write(bench, bench->config->files.output_dir)
               : status;
}

static enum ox_status run_part(struct ox_bench *bench) {
    static const struct {
        const char *name;
        enum ox_status (*run)(struct ox_bench *);
    } parts[] = {{"adam", ox_bench_adam}, {"nvme", ox_bench_nvme}, {"gemm", ox_bench_gemm}, {"copy", ox_bench_copy},
                 {"ops", ox_bench_ops}, {"comm", ox_bench_comm}, {"all", run_all}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strcmp(bench->config->bench.what, parts[i].name) == 0) {
            const enum ox_status status = parts[i].run == ox_bench_nvme ? OX_OK : ox_bench_gpu_open(bench);
            return status == OX_OK ? parts[i].run(bench) : status;
        }
    }
    return ox_fail(OX_E_CONFIG, "what to measure is missing; give one of adam, nvme, gemm, copy, ops, comm, all");
}

int ox_cmd_bench(const struct ox_config *config) {
    static struct ox_bench bench; /* tens of kilobytes */
    bench = (struct ox_bench){.config = config, .json = strcmp(config->tool.format, "json") == 0};
    enum ox_status status = check_output(config);
    OX_THEN(status, use_model(&bench));
    if (status == OX_OK) {
        status = run_part(&bench);
        ox_bench_gpu_close(&bench);
    }
    if (status == OX_OK && bench.json) {
        status = ox_print_json(stdout, ox_bench_records_json(&bench), JSON_INDENT(1) | JSON_REAL_PRECISION(7),
                               "the figures");
    }
    if (status != OX_OK) {
        return ox_cmd_exit(status);
    }
    if (config->bench.strict && bench.missed_count > 0) {
        fprintf(stderr, "offload: %" PRIu32 " figure%s below %s\n", bench.missed_count,
                bench.missed_count == 1 ? " is" : "s are", bench.missed_count == 1 ? "its limit" : "their limits");
        return OX_EXIT_FAILED;
    }
    return OX_EXIT_OK;
}
