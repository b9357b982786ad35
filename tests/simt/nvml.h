/* The answers of the NVML made up in nvml.c, for the tests of what is made of them. A value that is unknown is answered
 * with "not supported". */
#ifndef OX_TESTS_SIMT_NVML_H
#define OX_TESTS_SIMT_NVML_H

#include "kernels/nvml.h"

enum { SIMT_NVML_GPUS_MAX = 4 };

struct simt_nvml {
    int init_result, count_result; /* nvmlReturn_t; 0: success */
    unsigned gpu_count;
    int handle_results[SIMT_NVML_GPUS_MAX];
    struct ox_nvml_gpu gpus[SIMT_NVML_GPUS_MAX];
    uint32_t open_count; /* starts less shutdowns */
    uint64_t growth_bytes; /* by which the first GPU's memory in use grows with every start */
    uint32_t growth_count;     /* processes that come then */
    uint64_t growth_own_bytes; /* what the first process takes more then, which is this one; 0: it has another number */
};

/* The library's one symbol of its own, "simt_nvml": to begin with, one GPU in good health, where the emulated CUDA has
 * its first device. */
extern struct simt_nvml simt_nvml;

#endif
