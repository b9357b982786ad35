/* The profile of the machine that a run or a plan is for: given, by its name, the user's own, or none. */
#ifndef OX_TOOLS_PROFILE_H
#define OX_TOOLS_PROFILE_H

#include "engine/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The configuration with what describes this machine: --profile (a file, or the name of a profile that comes with the
 * program), $OFFLOAD_PROFILE, the user's profile if there is one, else a measurement. *out is valid until the next
 * call. */
OX_MUST enum ox_status ox_profile_config(const struct ox_config *config, const struct ox_config **out);
/* Sets the memory budgets that are not given from the machine of --profile, as a plan for another machine needs. */
OX_MUST enum ox_status ox_profile_memory(struct ox_config *config);

#ifdef __cplusplus
}
#endif
#endif
