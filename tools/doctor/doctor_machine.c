/* Reports CPU, OpenBLAS, memory and kernel of this machine, with the limits that a run would meet. */
#include "tools/doctor/doctor.h"

#include "base/bytes.h"
#include "base/memory.h"
#include "cpu_optim/optim.h"
#include "kernels/device.h"

#include <cblas.h>
#include <numa.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Reads the value of "key : value" from a file of such lines; false when absent. */
static bool read_field(const char *path, const char *key, char *out, size_t out_bytes) {
    FILE *const file = fopen(path, "r");
    if (file == NULL) {
        return false;
    }
    char line[4096];
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        const size_t len = strlen(key);
        if (strncmp(line, key, len) == 0 && strchr(" \t:", line[len]) != NULL) {
            const char *const value = line + len + strspn(line + len, " \t:");
            snprintf(out, out_bytes, "%.*s", (int)strcspn(value, "\n"), value);
            found = true;
        }
    }
    fclose(file);
    return found;
}

/* The widest vectors that an OpenBLAS core name implies. */
static enum ox_isa core_isa(const char *core) {
    static const char *const avx512[] = {"SkylakeX", "Cooperlake", "Sapphirerapids"};
    static const char *const avx2[] = {"Haswell", "Zen", "Excavator"};
    for (unsigned i = 0; i < 3; i++) {
        if (strcasecmp(core, avx512[i]) == 0) {
            return OX_ISA_AVX512;
        }
        if (strcasecmp(core, avx2[i]) == 0) {
            return OX_ISA_AVX2;
        }
    }
    return OX_ISA_SCALAR;
}

static void report_blas(struct ox_doctor *doctor) {
    const char *const core = openblas_get_corename();
    const int threads = openblas_get_num_threads();
    ox_doctor_add(doctor, "OpenBLAS core", "%s, up to %d thread%s", core, threads, ox_plural((uint64_t)threads));
    const char *const forced = getenv("OPENBLAS_CORETYPE"), *const cache = getenv("OPENBLAS_L2_SIZE");
    const enum ox_isa isa = ox_isa_best();
    if (forced != NULL) {
        ox_doctor_warn(doctor, "unset OPENBLAS_CORETYPE",
                       "OPENBLAS_CORETYPE=%s overrides the detection of the CPU", forced);
    }
    if (cache != NULL) {
        ox_doctor_warn(doctor, "unset OPENBLAS_L2_SIZE", "OPENBLAS_L2_SIZE=%s overrides the CPU's cache size",
                       cache);
    }
    if ((isa == OX_ISA_AVX2 || isa == OX_ISA_AVX512) && core_isa(core) < isa) {
        ox_doctor_warn(doctor, "install a newer OpenBLAS that supports this CPU",
                       "OpenBLAS uses its %s kernels, but the CPU has %s", core, ox_isa_name(isa));
    }
    ox_doctor_add(doctor, "OpenBLAS build", "%s", openblas_get_config());
    if (openblas_get_parallel() == 0) {
        ox_doctor_warn(doctor, "install libopenblas0-pthread", "this build of OpenBLAS uses one thread");
    }
}

/* oneDNN is asked for where the CPU has AVX-512 BF16 or AMX, which only it uses here. */
static void report_onednn(struct ox_doctor *doctor) {
    char flags[4096] = "";
    const char *library;
    if (ox_cpu_has_products(OX_REAL_BF16, &library)) {
        ox_doctor_add(doctor, "GEMMs in bf16", "%s", library);
    } else if (read_field("/proc/cpuinfo", "flags", flags, sizeof flags) &&
               (strstr(flags, "avx512_bf16") != NULL || strstr(flags, "amx_bf16") != NULL)) {
        ox_doctor_warn(doctor, "install libdnnl (the package libdnnl3 or libdnnl2), and leave ONEDNN_MAX_CPU_ISA unset",
                       "--dtype bf16 computes in fp32, which is slower on this CPU: %s", library);
    } else {
        ox_doctor_add(doctor, "GEMMs in bf16", "none, --dtype bf16 computes in fp32: %s", library);
    }
}

/* Writes the affinity mask as ranges, "0-3,8", and returns its number of CPUs. */
static int affinity_text(char *text, size_t text_bytes) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        snprintf(text, text_bytes, "unknown");
        return 0;
    }
    ox_doctor_cpus_text(&set, text, text_bytes);
    return CPU_COUNT(&set);
}

static void report_cpu(struct ox_doctor *doctor) {
    char model[OX_DOCTOR_TEXT_BYTES] = "unknown", mask[128], quota[64];
    if (!read_field("/proc/cpuinfo", "model name", model, sizeof model)) {
        struct utsname name;
        snprintf(model, sizeof model, "%s", uname(&name) == 0 ? name.machine : "unknown");
    }
    ox_doctor_add(doctor, "CPU", "%s", model);
    ox_doctor_add(doctor, "optimizer ISA", "%s", ox_isa_name(ox_isa_best()));
    if (ox_isa_best() == OX_ISA_SCALAR) {
        ox_doctor_warn(doctor, "use a machine with AVX2, AVX-512 or NEON",
                       "the optimizer runs its scalar code, which is several times slower");
    }
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    const int usable = affinity_text(mask, sizeof mask);
    ox_doctor_add(doctor, "CPUs", "%ld online, %d usable (%s)", online, usable, mask);
    if (usable > 0 && usable < online) {
        ox_doctor_warn(doctor, "start without taskset, numactl or a CPU limit of the container",
                       "the affinity mask allows only %d of %ld CPUs", usable, online);
    }
    long allowed_us = 0, period_us = 0;
    if (ox_doctor_read("/sys/fs/cgroup/cpu.max", quota, sizeof quota) &&
        sscanf(quota, "%ld %ld", &allowed_us, &period_us) == 2 && period_us > 0) {
        ox_doctor_add(doctor, "CPU quota", "%.1f CPUs (cgroup)", (double)allowed_us / (double)period_us);
        if (allowed_us < usable * period_us) {
            ox_doctor_warn(doctor, "raise the container's CPU limit, or pass --compute-threads",
                           "the quota is smaller than the number of usable CPUs; threads will be throttled");
        }
    }
}

/* Less than the smallest run takes. */
static const uint64_t memory_bytes_min = 64 * OX_MIB;

/* A limit of control groups covers all programs of the group; runs keep to it by themselves. */
static void report_group(struct ox_doctor *doctor, const struct ox_memory *memory) {
    char limit[OX_SIZE_TEXT_BYTES], left[OX_SIZE_TEXT_BYTES], total[OX_SIZE_TEXT_BYTES], remedy[OX_DOCTOR_TEXT_BYTES];
    if (memory->limit >= memory->total) {
        ox_doctor_add(doctor, "control group", "no limit below the RAM");
        return;
    }
    ox_size_text(memory->limit, limit);
    ox_size_text(memory->usable, left);
    ox_doctor_add(doctor, "control group", "%s for all programs of this container, service or job; %s left", limit,
                  left);
    snprintf(remedy, sizeof remedy,
             "nothing if %s suffice: a run without --host-mem keeps below them, and a larger --host-mem is refused. "
             "For more, raise the limit (docker --memory, systemd MemoryMax, Slurm --mem)", left);
    ox_doctor_warn(doctor, remedy,
                   "programs here can use %s of the %s of RAM; beyond that the kernel kills one of them", limit,
                   ox_size_text(memory->total, total));
}

static void report_limits(struct ox_doctor *doctor, const struct ox_memory *memory) {
    static const struct {
        const char *name, *remedy;
        int resource;
    } limits[] = {{"address space", "ulimit -v unlimited", RLIMIT_AS}, {"data", "ulimit -d unlimited", RLIMIT_DATA},
                  {"file size", "ulimit -f unlimited", RLIMIT_FSIZE}};
    char text[OX_SIZE_TEXT_BYTES];
    for (unsigned i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct rlimit limit = {0};
        if (getrlimit(limits[i].resource, &limit) == 0 && limit.rlim_cur < memory->total) {
            ox_doctor_add(doctor, limits[i].name, "%s", ox_size_text(limit.rlim_cur, text));
            if (limit.rlim_cur < memory_bytes_min) {
                ox_doctor_refuse(doctor, limits[i].remedy, "%s are less than the smallest run needs", text);
            } else {
                ox_doctor_warn(doctor, limits[i].remedy, "the limit of this shell is less than the RAM");
            }
        }
    }
}

void ox_doctor_memory(struct ox_doctor *doctor, const struct ox_memory *memory) {
    char total[OX_SIZE_TEXT_BYTES], left[OX_SIZE_TEXT_BYTES];
    doctor->group = "Memory";
    ox_doctor_add(doctor, "RAM", "%s, %s available", ox_size_text(memory->total, total),
                  ox_size_text(memory->available, left));
    if (memory->usable < memory_bytes_min) {
        ox_doctor_refuse(doctor, "end other programs, or raise the limits named below",
                         "this process can use %s, less than the smallest run needs",
                         ox_size_text(memory->usable, left));
    }
    report_group(doctor, memory);
    report_limits(doctor, memory);
}

static void report_pinning(struct ox_doctor *doctor, const struct ox_memory *memory) {
    char limit_text[OX_SIZE_TEXT_BYTES];
    struct rlimit lock = {0};
    if (getrlimit(RLIMIT_MEMLOCK, &lock) != 0 || lock.rlim_cur == RLIM_INFINITY) {
        ox_doctor_add(doctor, "locked memory", "unlimited");
    } else {
        ox_doctor_add(doctor, "locked memory", "%s", ox_size_text(lock.rlim_cur, limit_text));
        if (lock.rlim_cur < memory->total / 2) {
            ox_doctor_warn(doctor, "ulimit -l unlimited, or LimitMEMLOCK=infinity in the service",
                           "at most %s can be pinned; I/O buffers may go unregistered", limit_text);
        }
    }
    char mode[64], huge[64] = "0";
    read_field("/proc/meminfo", "HugePages_Total", huge, sizeof huge);
    if (!ox_doctor_read("/sys/kernel/mm/transparent_hugepage/enabled", mode, sizeof mode)) {
        snprintf(mode, sizeof mode, "unavailable");
    }
    ox_doctor_add(doctor, "huge pages", "transparent: %s; reserved: %s", mode, huge);
    if (strstr(mode, "[never]") != NULL) {
        ox_doctor_warn(doctor, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
                       "transparent huge pages are off; address translation of large buffers costs more");
    }
}

static void report_numa(struct ox_doctor *doctor) {
    if (numa_available() < 0) {
        ox_doctor_add(doctor, "NUMA", "not available; treated as one node");
        return;
    }
    char sizes[160] = "", size[OX_SIZE_TEXT_BYTES];
    size_t used = 0;
    for (int node = 0; node <= numa_max_node() && used + 48 < sizeof sizes; node++) {
        const long long bytes = numa_node_size64(node, NULL);
        if (bytes > 0) {
            used += (size_t)snprintf(sizes + used, sizeof sizes - used, "%snode %d %s", used > 0 ? ", " : "",
                                     node, ox_size_text((uint64_t)bytes, size));
        }
    }
    ox_doctor_add(doctor, "NUMA", "%d node%s: %s", numa_num_configured_nodes(),
                  ox_plural(numa_num_configured_nodes()), sizes);
}

static void report_kernel(struct ox_doctor *doctor) {
    struct utsname name;
    int major = 0, minor = 0;
    if (uname(&name) != 0) {
        return;
    }
    ox_doctor_add(doctor, "kernel", "%s %s", name.sysname, name.release);
    if (sscanf(name.release, "%d.%d", &major, &minor) == 2 && (major < 5 || (major == 5 && minor < 15))) {
        ox_doctor_warn(doctor, "update to Linux 5.15 or newer", "Linux %d.%d is older than 5.15", major,
                       minor);
    }
}

void ox_doctor_machine(struct ox_doctor *doctor) {
    doctor->group = "Processor";
    report_cpu(doctor);
    report_blas(doctor);
    report_onednn(doctor);
    struct ox_memory memory;
    ox_memory_read("", &memory);
    ox_doctor_memory(doctor, &memory);
    report_pinning(doctor, &memory);
    report_numa(doctor);
    doctor->group = "Kernel";
    report_kernel(doctor);
}
