/* The profile of a machine: what `offload bench all` measured, as one JSON file. docs/usage.md names its fields. */
#include "tools/bench.h"
#include "tools/doctor.h"

#include "base/file.h"
#include "cpu_optim/optim.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PROFILE_VERSION = 1 };

/* What `offload doctor` says of the machine. */
static const char *item(const struct ox_doctor *doctor, const char *name) {
    for (uint32_t i = 0; i < doctor->count; i++) {
        if (strcmp(doctor->items[i].name, name) == 0) {
            return doctor->items[i].value;
        }
    }
    return "unknown";
}

static json_t *machine_json(void) {
    struct ox_doctor *const doctor = calloc(1, sizeof *doctor);
    if (doctor == NULL) {
        return NULL;
    }
    ox_doctor_machine(doctor);
    json_t *const machine = json_pack("{s:s?, s:s?, s:s?, s:s?, s:s?}", "cpu", item(doctor, "CPU"), "cpus",
                                      item(doctor, "CPUs"), "memory", item(doctor, "RAM"), "openblas",
                                      item(doctor, "OpenBLAS core"), "kernel", item(doctor, "kernel"));
    free(doctor);
    return machine;
}

static json_t *date_json(void) {
    const time_t now = time(NULL);
    struct tm parts;
    char text[32] = "";
    if (gmtime_r(&now, &parts) != NULL) {
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    }
    return json_string(text);
}

static json_t *drives_json(const struct ox_bench *bench) {
    json_t *const list = json_array();
    for (uint32_t i = 0; i < bench->drive_count && list != NULL; i++) {
        const struct ox_bench_drive *const drive = &bench->drives[i];
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:b, s:I, s:f, s:f, s:f}", "path", drive->path, "backend", drive->backend,
                            "direct", drive->direct, "bytes", (json_int_t)drive->bytes,
                            "read", ox_bench_value(bench, "nvme%" PRIu32 ".read.%s", i, drive->backend),
                            "write", ox_bench_value(bench, "nvme%" PRIu32 ".write.%s", i, drive->backend),
                            "mix", ox_bench_value(bench, "nvme%" PRIu32 ".mix.%s", i, drive->backend)));
    }
    return list;
}

/* The formats that were measured. */
static json_t *adam_json(const struct ox_bench *bench, enum ox_isa isa) {
    json_t *const adam = json_pack("{s:s, s:I}", "isa", ox_isa_name(isa), "threads",
                                   (json_int_t)ox_bench_threads(bench->config->optimizer_threads));
    for (unsigned moments = 0; moments < OX_MOMENTS_COUNT && adam != NULL; moments++) {
        const double rate = ox_bench_value(bench, "adam.adamw.%s.grad_f32.rate", ox_moments_name(moments));
        if (rate > 0.0) {
            json_object_set_new(adam, ox_moments_name(moments), json_real(rate));
        }
    }
    return adam;
}

/* One object for each number of threads that has figures of its own: "<part>.<key>.threads_<n>". */
static json_t *threads_json(const struct ox_bench *bench, const char *part, const char *const *keys, unsigned count) {
    json_t *const list = json_array();
    uint32_t counts[OX_BENCH_THREAD_COUNTS_MAX];
    const uint32_t lines = ox_bench_thread_counts(ox_bench_threads(bench->config->compute_threads), counts);
    for (uint32_t i = 0; i < lines && list != NULL; i++) {
        if (ox_bench_value(bench, "%s.%s.threads_%" PRIu32, part, keys[0], counts[i]) == 0.0) {
            continue;
        }
        json_t *const line = json_pack("{s:I}", "threads", (json_int_t)counts[i]);
        for (unsigned k = 0; k < count; k++) {
            const double rate = ox_bench_value(bench, "%s.%s.threads_%" PRIu32, part, keys[k], counts[i]);
            json_object_set_new(line, keys[k], json_real(rate));
        }
        json_array_append_new(list, line);
    }
    return list;
}

enum ox_status ox_bench_profile_write(const struct ox_bench *bench, const char *path) {
    static const char *const copies[] = {"read", "write", "copy"};
    static const char *const products[] = {"all", "projection", "up", "down", "input_grad", "weight_grad", "scores"};
    enum ox_isa isa = OX_ISA_SCALAR;
    const enum ox_status status = ox_bench_isa(bench->config, &isa);
    if (status != OX_OK) {
        return status;
    }
    json_t *const profile = json_object();
    int failed = json_object_set_new(profile, "offload_profile", json_integer(PROFILE_VERSION));
    failed |= json_object_set_new(profile, "date", date_json());
    failed |= json_object_set_new(profile, "machine", machine_json());
    failed |= json_object_set_new(profile, "drives", drives_json(bench));
    failed |= json_object_set_new(profile, "adam", adam_json(bench, isa));
    failed |= json_object_set_new(profile, "copy", threads_json(bench, "copy", copies, 3));
    failed |= json_object_set_new(profile, "gemm", threads_json(bench, "gemm", products, 7));
    failed |= json_object_set_new(profile, "records", ox_bench_records_json(bench));
    char *const text = failed ? NULL : json_dumps(profile, JSON_INDENT(2) | JSON_REAL_PRECISION(7));
    json_decref(profile);
    if (text == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: the profile could not be put together: no memory, or a name in it is not UTF-8",
                       path);
    }
    const enum ox_status written = ox_file_replace(path, text, strlen(text));
    free(text);
    return written;
}
