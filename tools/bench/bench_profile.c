/* Writes the machine profile from the records of `offload bench all`, in the form of offload/sim/machine_profile.h, and
 * adds all records under "measured". */
#include "tools/bench/bench_device.h"
#include "tools/doctor/doctor.h"

#include "base/log.h"
#include "base/memory.h"
#include "cpu_optim/optim.h"
#include "offload/sim/machine_profile.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double OTHERS_SHARE_MAX = 0.1;

/* Returns an item of `offload doctor`. */
static const char *item(const struct ox_doctor *doctor, const char *name) {
    for (uint32_t i = 0; i < doctor->count; i++) {
        if (strcmp(doctor->items[i].name, name) == 0) {
            return doctor->items[i].value;
        }
    }
    return "unknown";
}

static json_t *machine_json(const struct ox_doctor *doctor) {
    return json_pack("{s:s?, s:s?, s:s?, s:s?, s:s?}", "cpu", item(doctor, "CPU"), "cpus", item(doctor, "CPUs"),
                     "memory", item(doctor, "RAM"), "openblas", item(doctor, "OpenBLAS core"), "kernel",
                     item(doctor, "kernel"));
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
        json_array_append_new(list, json_pack("{s:s, s:s, s:b, s:I}", "path", drive->path, "backend", drive->backend,
                                              "direct", drive->direct, "bytes", (json_int_t)drive->bytes));
    }
    return list;
}

/* One object for each thread count that has figures "<part>.<key>.threads_<n>". */
static json_t *threads_json(const struct ox_bench *bench, const char *part, const char *const *keys, unsigned count) {
    json_t *const list = json_array();
    uint32_t counts[OX_BENCH_THREAD_COUNTS_MAX];
    const uint32_t lines = ox_bench_thread_counts(ox_bench_threads(bench->config->place.compute_threads), counts);
    for (uint32_t i = 0; i < lines && list != NULL; i++) {
        if (ox_bench_value(bench, "%s.%s.threads_%" PRIu32, part, keys[0], counts[i]) == 0.0) {
            continue;
        }
        json_t *const line = json_pack("{s:I}", "threads", (json_int_t)counts[i]);
        for (unsigned k = 0; k < count; k++) {
            const double rate = ox_bench_value(bench, "%s.%s.threads_%" PRIu32, part, keys[k], counts[i]);
            if (rate > 0.0) {
                json_object_set_new(line, keys[k], json_real(rate));
            }
        }
        json_array_append_new(list, line);
    }
    return list;
}

/* Builds "measured": the records and facts that the profile came from. NULL without memory. */
static json_t *measured_json(const struct ox_bench *bench, const struct ox_doctor *doctor, enum ox_isa isa) {
    static const char *const copies[] = {"read", "write", "copy"};
    static const char *const gemms[] = {"all", "qkv", "projection", "gate_up", "up", "down", "head", "input_grad",
                                        "weight_grad", "scores"};
    json_t *const measured = json_object();
    int failed = json_object_set_new(measured, "date", date_json());
    failed |= json_object_set_new(measured, "machine", machine_json(doctor));
    failed |= json_object_set_new(measured, "isa", json_string(ox_isa_name(isa)));
    failed |= json_object_set_new(measured, "drives", drives_json(bench));
    failed |= json_object_set_new(measured, "copy", threads_json(bench, "copy", copies, 3));
    failed |= json_object_set_new(measured, "gemm", threads_json(bench, "gemm", gemms, sizeof gemms / sizeof *gemms));
    failed |= json_object_set_new(measured, "records", ox_bench_records_json(bench));
    if (failed) {
        json_decref(measured);
        return NULL;
    }
    return measured;
}

/* ---- the values ------------------------------------------------------------------------------------------ */

/* Returns a value measured with all threads, or with the most that OpenBLAS supports. */
static double of_most_threads(const struct ox_bench *bench, const char *what) {
    uint32_t counts[OX_BENCH_THREAD_COUNTS_MAX];
    double value = 0.0;
    for (uint32_t i = ox_bench_thread_counts(ox_bench_threads(bench->config->place.compute_threads), counts); i > 0;
         i--) {
        value = value > 0.0 ? value : ox_bench_value(bench, "%s.threads_%" PRIu32, what, counts[i - 1]);
    }
    return value;
}

static void fill_adam(const struct ox_bench *bench, struct ox_machine_adam *out) {
    out->threads = ox_bench_threads(bench->config->place.optimizer_threads);
    for (unsigned i = 0; i < OX_MOMENTS_COUNT; i++) {
        out->seconds[i] =
            1e-9 * ox_bench_value(bench, "adam.adamw.%s.grad_f32.time", ox_moments_name(i));
    }
}

/* Returns the most bytes per second that any loop moved. The optimizer may beat a plain copy: it writes lines that it
 * has read, while a copy makes the memory fetch lines that it overwrites. So do the loops that it is compared with,
 * which go on where it begins a chunk. */
static double dram_rate(const struct ox_bench *bench) {
    double most = fmax(of_most_threads(bench, "copy.read"), of_most_threads(bench, "copy.copy"));
    for (unsigned i = 0; i < OX_MOMENTS_COUNT; i++) {
        const char *const moments = ox_moments_name(i);
        most = fmax(most, ox_bench_value(bench, "adam.adamw.%s.grad_f32.rate", moments));
        most = fmax(most, ox_bench_value(bench, "adam.adamw.%s.grad_f32.plain_loop", moments));
    }
    return most;
}

static void fill_host(const struct ox_bench *bench, struct ox_machine_host *out) {
    struct ox_memory memory;
    ox_memory_read("", &memory);
    out->memory_bytes = memory.limit < memory.total ? memory.limit : memory.total;
    out->cores = ox_bench_threads(bench->config->place.compute_threads);
    out->dram_rate = dram_rate(bench);
    out->core_flops = ox_bench_value(bench, "gemm.all.threads_1");
    out->flops = of_most_threads(bench, "gemm.all");
    out->bf16_flops = of_most_threads(bench, "gemm.bf16");
    out->packed_bytes_per_flop = ox_bench_value(bench, "gemm.packed");
    fill_adam(bench, &out->adam);
}

/* Less of a link than this, which copies from GPU to GPU take from others, is the measurement's own noise. */
static const double LINK_SHARE_LEAST = 0.05;

static void fill_gpu(const struct ox_bench *bench, struct ox_machine_gpu *out) {
    snprintf(out->name, sizeof out->name, "%.127s", bench->gpu->facts.name);
    out->memory_bytes = bench->gpu->facts.memory_bytes;
    const uint32_t count = ox_bench_gpu_count(); /* which are taken to be alike */
    out->count = count > 1 ? count : 0;
    out->links_rate = ox_bench_value(bench, "copy.gpus.links");
    out->peer_rate = ox_bench_value(bench, "copy.gpus.peer");
    const double share = ox_bench_value(bench, "copy.gpus.peer_of_links");
    out->peer_of_links = share >= LINK_SHARE_LEAST ? share : 0;
    out->fp32_flops = ox_bench_value(bench, "gemm.gpu.block.f32");
    out->bf16_flops = fmax(ox_bench_value(bench, "gemm.gpu.block.bf16"), out->fp32_flops);
    out->attention_flops = ox_bench_value(bench, "attention.gpu.forward.bf16");
    out->attention_backward_flops = ox_bench_value(bench, "attention.gpu.backward.bf16");
    out->mha_attention_flops = ox_bench_value(bench, "attention.gpu.forward.mha.bf16");
    out->mha_attention_backward_flops = ox_bench_value(bench, "attention.gpu.backward.mha.bf16");
    out->h2d_rate = ox_bench_value(bench, "copy.gpu.h2d");
    out->d2h_rate = ox_bench_value(bench, "copy.gpu.d2h");
    out->duplex_rate = ox_bench_value(bench, "copy.gpu.duplex");
    out->memory_rate = ox_bench_value(bench, "copy.gpu.memory");
}

static void fill_drive(const struct ox_bench *bench, uint32_t idx, struct ox_machine_drive *out) {
    const struct ox_bench_drive *const drive = &bench->drives[idx];
    snprintf(out->name, sizeof out->name, "nvme%" PRIu32, idx);
    out->read_rate = ox_bench_value(bench, "nvme%" PRIu32 ".read.%s", idx, drive->backend);
    out->write_rate = ox_bench_value(bench, "nvme%" PRIu32 ".write.%s", idx, drive->backend);
    out->mix_rate = ox_bench_value(bench, "nvme%" PRIu32 ".mix.%s", idx, drive->backend);
    out->read_core_seconds = 1e-9 * ox_bench_value(bench, "nvme%" PRIu32 ".read.%s.core", idx, drive->backend);
    out->write_core_seconds = 1e-9 * ox_bench_value(bench, "nvme%" PRIu32 ".write.%s.core", idx, drive->backend);
    out->latency_seconds = ox_bench_value(bench, "nvme%" PRIu32 ".latency.%s", idx, drive->backend);
    out->flush_seconds = ox_bench_value(bench, "nvme%" PRIu32 ".flush.%s", idx, drive->backend);
}

/* Warns when other processes were busy, because they make the profile too slow. For drives the kernel's own threads
 * count as others. */
static void warn_if_busy(const struct ox_bench *bench, const char *path) {
    static const char *const parts[] = {"nvme0", "adam", "copy", "gemm"};
    double most = 0.0;
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
        most = fmax(most, ox_bench_value(bench, "%s.other_processes", parts[i]));
    }
    if (most > OTHERS_SHARE_MAX) {
        ox_log(OX_LOG_WARN, "%s: other processes used %.0f %% of the processors during a measurement, so predictions "
               "from it will be too slow; measure again when the machine is idle", path, 100.0 * most);
    }
}

enum ox_status ox_bench_profile_write(const struct ox_bench *bench, const char *path) {
    static struct ox_machine machine; /* tens of kilobytes */
    static struct ox_doctor doctor;   /* half a megabyte */
    enum ox_isa isa = OX_ISA_SCALAR;
    OX_TRY(ox_isa_pick(bench->config->place.isa, &isa));
    memset(&machine, 0, sizeof machine);
    memset(&doctor, 0, sizeof doctor);
    ox_doctor_machine(&doctor);
    snprintf(machine.name, sizeof machine.name, "%s", item(&doctor, "CPU"));
    snprintf(machine.source, sizeof machine.source, "measured by `offload bench all`");
    fill_host(bench, &machine.host);
    machine.has_gpu = bench->gpu != NULL;
    if (machine.has_gpu) {
        fill_gpu(bench, &machine.gpu);
    }
    machine.drive_count = bench->drive_count;
    for (uint32_t i = 0; i < bench->drive_count; i++) {
        fill_drive(bench, i, &machine.drives[i]);
    }
    machine.task_seconds = ox_bench_value(bench, "lane.task");
    ox_bench_comm_fill(bench, &machine);
    warn_if_busy(bench, path);
    json_t *const measured = measured_json(bench, &doctor, isa);
    return measured == NULL ? ox_fail(OX_E_NOMEM, "%s: the profile could not be built: no memory, or a name in it is "
                                      "not UTF-8", path)
                            : ox_machine_save(path, &machine, measured);
}
