/* The report of `offload doctor`: items in groups, each with at most one warning and its remedy. */
#ifndef OX_TOOLS_DOCTOR_H
#define OX_TOOLS_DOCTOR_H

#include "engine/config/config.h"
#include "kernels/nvml.h"

#include <sched.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_DOCTOR_ITEMS_MAX = 320, OX_DOCTOR_TEXT_BYTES = 512, OX_DOCTOR_GPUS_MAX = 16 };

struct ox_doctor_item {
    const char *group, *name;
    char value[OX_DOCTOR_TEXT_BYTES];
    char warning[OX_DOCTOR_TEXT_BYTES]; /* "": none */
    char remedy[OX_DOCTOR_TEXT_BYTES];
};

struct ox_doctor {
    struct ox_doctor_item items[OX_DOCTOR_ITEMS_MAX];
    uint32_t count;
    const char *group; /* of the items that follow */
    char gpu_groups[OX_DOCTOR_GPUS_MAX][24];
};

void ox_doctor_add(struct ox_doctor *doctor, const char *name, const char *fmt, ...) OX_PRINTF(3, 4);
/* A warning about the item added last. */
void ox_doctor_warn(struct ox_doctor *doctor, const char *remedy, const char *fmt, ...) OX_PRINTF(3, 4);

/* First line of a small file of /proc or /sys, without the newline; false when it cannot be read. */
bool ox_doctor_read(const char *path, char *text, size_t text_bytes);

/* CPUs as ranges, "0-3,8". */
void ox_doctor_cpus_text(const cpu_set_t *set, char *text, size_t text_bytes);

void ox_doctor_machine(struct ox_doctor *doctor);                               /* CPU, memory, kernel */
void ox_doctor_drives(struct ox_doctor *doctor, const struct ox_config *config); /* I/O and drives */

/* Where the driver's library and the plugin are taken from; NULL: where a run takes them from. */
struct ox_doctor_gpu_paths {
    const char *nvml, *plugin;
};
/* Driver, plugin, libraries, GPUs; one item that says why, where there is no GPU. */
void ox_doctor_gpu(struct ox_doctor *doctor, const struct ox_doctor_gpu_paths *paths);
/* What NVML says of one GPU, in items of the group set. */
void ox_doctor_gpu_state(struct ox_doctor *doctor, const struct ox_nvml_gpu *gpu);

#ifdef __cplusplus
}
#endif
#endif
