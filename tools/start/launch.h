/* What the launcher of this process (torchrun, mpirun, srun) says about it: which of how many it is. */
#ifndef OX_TOOLS_LAUNCH_H
#define OX_TOOLS_LAUNCH_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_launch {
    const char *launcher;  /* its name; NULL: none, the process is alone */
    uint32_t idx, count;   /* this process among all of the job; 0 of 1 if it is alone */
    uint32_t local_idx;    /* among those of this machine */
    uint32_t local_count;  /* how many this machine has; 0: the launcher does not say */
    const char *names[4];  /* of its variables: number, count, number and count on this machine; the last may be NULL */
};

/* Returns the value of an environment variable, or NULL. */
typedef const char *ox_launch_get(const char *name);

/* Reads the variables of all launchers. Where one starts another, the inner one counts. Values that are no numbers, and
 * launchers that contradict each other, are OX_E_CONFIG with the names of the variables. */
OX_MUST enum ox_status ox_launch_read(ox_launch_get *get, struct ox_launch *out);

/* Whether `parent`, the program that started this process, starts those of that launcher: then its variables are no
 * leftovers of a shell or a container. */
bool ox_launch_is_by(const struct ox_launch *launch, const char *parent);

/* Refuses several processes that cannot reach each other, and names the variables that say that there are several,
 * because shells and containers keep those of something else. Each process says so itself, as there may be no other. */
OX_MUST enum ox_status ox_launch_meet(const struct ox_launch *launch);

#ifdef __cplusplus
}
#endif
#endif
