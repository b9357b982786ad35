/* Plans as `plan` and `train` print them, and the profiles of the machines that they are made for. */
#ifndef OX_TOOLS_PLAN_H
#define OX_TOOLS_PLAN_H

#include "tools/command/cmd.h"

#include "engine/run/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The configuration with what describes this machine: --profile (a file, or the name of a profile that comes with the
 * program), $OFFLOAD_PROFILE, the user's profile if there is one, else a measurement. *out is valid until the next
 * call. */
OX_MUST enum ox_status ox_profile_config(const struct ox_config *config, const struct ox_config **out);
/* Sets the memory budgets that are not given from the machine of --profile, as a plan for another machine needs. */
OX_MUST enum ox_status ox_profile_memory(struct ox_config *config);

/* Opens the run. When the budget is too small, it prints the nearest plan before the error. */
OX_MUST enum ox_status ox_plan_open_run(const struct ox_config *config, struct ox_trainer **trainer);
/* Prints what `train --dry-run` shows: the configuration and the plan. */
OX_MUST enum ox_status ox_plan_print_dry(const struct ox_trainer *trainer, const struct ox_config *config);

#ifdef __cplusplus
}
#endif
#endif
