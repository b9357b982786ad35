/* Owns the report of `offload doctor`: items in groups, each with at most one warning and its remedy. tools/command
 * prints it; `offload bench` puts facts from it into a machine profile. */
#ifndef OX_TOOLS_DOCTOR_H
#define OX_TOOLS_DOCTOR_H

#include "base/memory.h"
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
    char warning[OX_DOCTOR_TEXT_BYTES]; /* "": no warning */
    char remedy[OX_DOCTOR_TEXT_BYTES];
    bool unusable; /* a run with these options would be refused, or fail */
};

struct ox_doctor {
    struct ox_doctor_item items[OX_DOCTOR_ITEMS_MAX];
    uint32_t count;
    const char *group; /* group of the items added from now on */
    char gpu_groups[OX_DOCTOR_GPUS_MAX][24];
};

void ox_doctor_add(struct ox_doctor *doctor, const char *name, const char *fmt, ...) OX_PRINTF(3, 4);
/* Adds a warning to the item added last; a second warning for the same item is dropped. */
void ox_doctor_warn(struct ox_doctor *doctor, const char *remedy, const char *fmt, ...) OX_PRINTF(3, 4);

/* As ox_doctor_warn, of something that a run cannot use. */
void ox_doctor_refuse(struct ox_doctor *doctor, const char *remedy, const char *fmt, ...) OX_PRINTF(3, 4);

/* Reads the first line of a small file of /proc or /sys, without its newline; false when that fails. */
bool ox_doctor_read(const char *path, char *text, size_t text_bytes);

/* Writes CPUs as ranges, "0-3,8". */
void ox_doctor_cpus_text(const cpu_set_t *set, char *text, size_t text_bytes);

void ox_doctor_machine(struct ox_doctor *doctor);                               /* CPU, memory, kernel */
void ox_doctor_memory(struct ox_doctor *doctor, const struct ox_memory *memory); /* RAM and the limits of it */
void ox_doctor_drives(struct ox_doctor *doctor, const struct ox_config *config); /* I/O and drives */

/* Paths of the driver's library and of the plugin, for tests; NULL: where a run finds them. */
struct ox_doctor_gpu_paths {
    const char *nvml, *plugin;
};
/* Adds driver, plugin, libraries and GPUs; without a GPU, one item that says why. */
void ox_doctor_gpu(struct ox_doctor *doctor, const struct ox_doctor_gpu_paths *paths);
/* Adds what NVML reports of one GPU to the current group. */
void ox_doctor_gpu_state(struct ox_doctor *doctor, const struct ox_nvml_gpu *gpu);

#ifdef __cplusplus
}
#endif
#endif
