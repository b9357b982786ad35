/* Bounds a run's host memory by what this process can use now. A budget beyond that would be reserved without an error,
 * and the kernel would kill the process when it is filled. */
#include "engine/run/host_memory.h"

#include "base/bytes.h"
#include "base/memory.h"
#include "engine/step/engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>

/* What oneDNN takes once it has run, and packs on a thread. */
enum { ONEDNN_MIB = 16, ONEDNN_THREAD_MIB = 3 };

/* What a limit that is named leaves beside what was counted, for what is opened later. */
enum { SPARE_BYTES = 8 << 20 };

uint64_t ox_fixed_overhead_bytes(uint64_t compute_threads, uint64_t optimizer_threads, uint64_t bf16_devices) {
    /* Measured: docs/measurements/2026-11-20-two-cores.md, "Resident memory beside the arenas". What the BLAS library
     * packs, at most 4096 rows at a time, grows with the device's threads. */
    const uint64_t bf16_bytes = bf16_devices * (OX_CPU_BF16_ROOM_BYTES + ONEDNN_MIB * OX_MIB) +
                                (bf16_devices > 0 ? compute_threads * ONEDNN_THREAD_MIB * OX_MIB : 0);
    return 20 * OX_MIB + compute_threads * 12 * OX_MIB + optimizer_threads * OX_MIB + bf16_bytes;
}

/* What budgets may take of `usable` bytes when the rest is left to the system and the page cache. */
static uint64_t spared(uint64_t usable, uint64_t beside_bytes) {
    return usable - ox_min_u64(usable, ox_max_u64(usable / 8, beside_bytes));
}

/* Memory of the devices of all ranks. */
static uint64_t devices_bytes(const struct ox_host_claim *claim) {
    const uint64_t ranks = ox_max_u64(claim->ranks, 1);
    return claim->device_bytes > UINT64_MAX / 2 / ranks ? UINT64_MAX / 2 : claim->device_bytes * ranks;
}

/* What this process can use for memory, when the claim's other addresses are taken. */
static void read_memory(const struct ox_host_claim *claim, struct ox_memory *out) {
    ox_memory_read("", out);
    const uint64_t left = out->addresses - ox_min_u64(out->addresses, claim->address_bytes);
    if (out->addresses != UINT64_MAX && left < out->usable) {
        out->usable = left;
        out->bound = out->addresses_bound;
    }
}

uint64_t ox_default_host_bytes(const struct ox_host_claim *claim) {
    struct ox_memory memory;
    read_memory(claim, &memory);
    const uint64_t left = memory.usable - ox_min_u64(memory.usable, claim->file_bytes);
    const uint64_t bytes = spared(left, claim->beside_bytes);
    return bytes - ox_min_u64(bytes, devices_bytes(claim));
}

static void name_budgets(const struct ox_host_claim *claim, char *text, size_t text_bytes) {
    char host[OX_SIZE_TEXT_BYTES], size[OX_SIZE_TEXT_BYTES], ranks[32] = "", device[sizeof size + sizeof ranks];
    if (claim->ranks > 1) {
        snprintf(ranks, sizeof ranks, " for each of %u ranks", claim->ranks);
    }
    ox_size_text(claim->host_bytes, host);
    snprintf(device, sizeof device, "%s%s", ox_size_text(claim->device_bytes, size), ranks);
    if (claim->device_bytes == 0) {
        snprintf(text, text_bytes, "--host-mem %s", host);
    } else if (claim->host_bytes == 0) {
        snprintf(text, text_bytes, "--device-mem %s, which on the CPU is host memory", device);
    } else {
        snprintf(text, text_bytes, "--device-mem %s and --host-mem %s, which on the CPU are both host memory", device,
                 host);
    }
}

enum { REMEDY_BYTES = 96 };

/* With a limit of the process's own: what to raise it to, in the unit of ulimit. */
static void name_limit(const struct ox_host_claim *claim, const struct ox_memory *memory, uint64_t needed,
                       char text[REMEDY_BYTES]) {
    const bool of_data = memory->bound == OX_MEMORY_DATA;
    struct rlimit limit = {0, 0};
    const bool known = getrlimit(of_data ? RLIMIT_DATA : RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    const uint64_t more = needed + claim->address_bytes - ox_min_u64(memory->addresses, needed + claim->address_bytes);
    const int used = snprintf(text, REMEDY_BYTES, "raise it with ulimit -%c", of_data ? 'd' : 'v');
    if (known) { /* a budget that was not given is counted as little as one can be */
        snprintf(text + used, REMEDY_BYTES - (size_t)used, " %" PRIu64,
                 ox_div_up((uint64_t)limit.rlim_cur + more + SPARE_BYTES, OX_MIB) * (OX_MIB / OX_KIB));
    }
}

enum ox_status ox_host_claim_check(const struct ox_host_claim *claim) {
    static const struct {
        const char *what, *remedy;
    } bounds[] = {
        [OX_MEMORY_MACHINE] = {"what the machine has free", "end programs that use memory"},
        [OX_MEMORY_GROUP] = {"the limit of its control group", "raise the memory limit of the container or service"},
        [OX_MEMORY_ADDRESSES] = {"its limit of address space", NULL},
        [OX_MEMORY_DATA] = {"its limit of data", NULL}};
    struct ox_memory memory;
    read_memory(claim, &memory);
    const uint64_t budgets = claim->host_bytes + devices_bytes(claim), wanted = budgets + claim->file_bytes;
    if (wanted == 0 || wanted + claim->beside_bytes <= memory.usable) {
        return OX_OK;
    }
    const bool together = claim->device_bytes > 0 && (claim->host_bytes > 0 || claim->ranks > 1);
    const uint64_t left = spared(memory.usable, claim->beside_bytes);
    const uint64_t most = (budgets > 0 ? left : left / 2) / OX_MIB * OX_MIB; /* automatic ones need some too */
    char names[160], usable[OX_SIZE_TEXT_BYTES], beside[OX_SIZE_TEXT_BYTES], enough[OX_SIZE_TEXT_BYTES];
    char given[80] = "nothing is left for a budget: ", limit[REMEDY_BYTES];
    const char *remedy = bounds[memory.bound].remedy;
    if (remedy == NULL) {
        name_limit(claim, &memory, wanted + claim->beside_bytes, limit);
        remedy = limit;
    }
    ox_size_text(memory.usable, usable);
    ox_size_text(claim->beside_bytes, beside);
    if (most > 0) {
        snprintf(given, sizeof given, "give at most %s%s, or ", ox_size_flag_text(most, enough),
                 together || (claim->file_bytes > 0 && budgets > 0) ? " together" : "");
    }
    if (claim->file_bytes > 0) {
        char files[OX_SIZE_TEXT_BYTES];
        return ox_fail(OX_E_CONFIG, "%s: memory, of which the run's files there take up to %s; this process can use %s "
                       "now (%s), its budgets take %s and it takes %s beside them; use a folder on a drive, or %s%s",
                       claim->files, ox_size_text(claim->file_bytes, files), usable, bounds[memory.bound].what,
                       budgets > 0 ? ox_size_text(budgets, names) : "the rest", beside, given, remedy);
    }
    name_budgets(claim, names, sizeof names);
    return ox_fail(OX_E_CONFIG, "%s: this process can use %s now (%s), and takes %s beside its budgets; %s%s", names,
                   usable, bounds[memory.bound].what, beside, given, remedy);
}

/* Memory of the process in all: its budgets and what it takes beside them. */
static uint64_t claimed_bytes(const struct ox_host_claim *claim) {
    const uint64_t host_bytes = claim->host_bytes > 0 ? claim->host_bytes : ox_default_host_bytes(claim);
    return ox_min_u64(host_bytes, UINT64_MAX / 4) + devices_bytes(claim) + claim->beside_bytes;
}

void ox_host_text_begin(const struct ox_host_claim *claim, uint32_t threads) {
    ox_memory_cap_begin(claimed_bytes(claim), threads);
}

enum ox_status ox_host_text_end(const struct ox_host_claim *claim, enum ox_status status) {
    ox_memory_cap_end();
    if (status != OX_E_NOMEM) {
        return status;
    }
    char text[OX_ERROR_TEXT_BYTES], size[OX_SIZE_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", ox_error_text());
    return ox_fail(OX_E_CONFIG, "%s, or raise --host-mem: texts and tokenizer take at most the %s that the run takes "
                   "later", text, ox_size_text(claimed_bytes(claim), size));
}
