/* For tests of the CUDA plugin on the emulated runtime: the calls that it has beside those of a plugin, by the names of
 * tests/simt/simt.h. */
#ifndef OX_TESTS_SIMT_KIT_H
#define OX_TESTS_SIMT_KIT_H

#include "tests/kit/device/cuda_kit.h"
#include "tests/simt/simt.h"

struct simt {
    struct cuda_kit kit;
    struct ox_cuda_plugin *plugin;
    void (*fail_after)(uint64_t calls);
    void (*break_after)(uint64_t pieces);
    void (*set_machine)(int device_count, int driver_version);
    void (*set_capability)(int capability);
    void (*set_pinnable)(size_t bytes);
    void (*set_host_pointer)(bool same);
    void (*set_nccl)(bool present);
    uint64_t (*nccl_calls)(void);
    void (*set_seed)(uint64_t seed);
    void (*set_delay)(uint64_t seed, uint64_t ns_max);
    void (*guard)(bool on);
    void (*count)(struct simt_counts *out);
    size_t (*device_bytes)(void);
    bool *cudnn_is_there;      /* from the next device on that opens */
    unsigned *cudnn_run_count; /* how often a plan of cuDNN was queued */
};

/* Loads the plugin, which stays; ends the program on failure. */
const struct simt *simt_open(void);

#endif
