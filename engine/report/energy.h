/* Energy that the machine counts: of CPU packages by RAPL, as Linux shows it to those who may read it, and of GPUs by
 * NVML. A run adds up what its steps take. Counters are of the whole machine, with other programs. */
#ifndef OX_ENGINE_ENERGY_H
#define OX_ENGINE_ENERGY_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Joules; NaN where there is no counter that can be read. */
struct ox_energy_used {
    double cpu, gpu;
};

struct ox_energy;
/* Begins to count. `powercap` is the folder of RAPL's zones, NULL that of Linux; with `gpus` those of NVML count too.
 * NULL if nothing can be read, or there is no memory: energy is then not reported. */
struct ox_energy *ox_energy_open(const char *powercap, bool gpus);
void ox_energy_close(struct ox_energy **energy);
/* What was used since the opening, or by now where a counter can no longer be read. Counters of packages go round:
 * call it more often than that, which takes minutes. NULL has used NaN. */
struct ox_energy_used ox_energy_read(struct ox_energy *energy);

#ifdef __cplusplus
}
#endif
#endif
