/* Limits of the process (ulimit). */
#ifndef OX_TOOLS_LIMITS_H
#define OX_TOOLS_LIMITS_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes limits of the process ordinary errors; called once, before all that takes memory. OX_E_CONFIG where the stack
 * is too small for anything. */
OX_MUST enum ox_status ox_limits_mind(void);

#ifdef __cplusplus
}
#endif
#endif
