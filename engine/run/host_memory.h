/* Bounds a run's host memory by what this process can use now: the machine, its control groups, its own limits. Called
 * when a run, an evaluation or a generation opens. */
#ifndef OX_ENGINE_HOST_MEMORY_H
#define OX_ENGINE_HOST_MEMORY_H

#include "base/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a process is about to use of host memory. */
struct ox_host_claim {
    uint64_t host_bytes;   /* --host-mem; 0: automatic                                  */
    uint64_t device_bytes; /* --device-mem where the CPU computes; 0: automatic, or GPU */
    uint64_t beside_bytes; /* beside the budgets                                        */
    uint64_t address_bytes; /* addresses beside those of the memory, which only limits of the process count */
    uint32_t ranks;        /* that have device_bytes each; 0: one                       */
    uint64_t file_bytes;   /* that files may still take in folders that are memory      */
    const char *files;     /* these folders, in words for an error; file_bytes is 0: not used */
};

/* Refuses budgets beyond what this process can use now. */
OX_MUST enum ox_status ox_host_claim_check(const struct ox_host_claim *claim);

/* The default of --host-mem: 7/8 of what this process can use now, less the device memory of all
 * ranks. */
uint64_t ox_default_host_bytes(const struct ox_host_claim *claim);

/* Limits the process to the claim while texts become tokens, which is before the budgets are reserved, on so many
 * threads; and lifts that. The second returns `status`, or for a lack of memory OX_E_CONFIG with the limit. */
void ox_host_text_begin(const struct ox_host_claim *claim, uint32_t threads);
enum ox_status ox_host_text_end(const struct ox_host_claim *claim, enum ox_status status);

/* The most host memory that the process uses beside its arenas: code, libraries, thread stacks, the matrix library's
 * packing buffers per compute thread, plan and file headers; and what so many CPU devices that compute in bf16 add. It
 * is part of no budget, and printed at start. */
uint64_t ox_fixed_overhead_bytes(uint64_t compute_threads, uint64_t optimizer_threads, uint64_t bf16_devices);

#ifdef __cplusplus
}
#endif
#endif
