/* Names files that `offload inspect` does not describe. */
#ifndef OX_TOOLS_INSPECT_OTHER_H
#define OX_TOOLS_INSPECT_OTHER_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Refuses a file that is known to be something else than weights or a description of a model, and names the command
 * that is for it. */
OX_MUST enum ox_status ox_inspect_refuse_other(const char *path);

#ifdef __cplusplus
}
#endif
#endif
