/* Refusals in the words of who gave the options. */
#ifndef OX_CONFIG_REWORD_H
#define OX_CONFIG_REWORD_H

#include "base/status.h"
#include "engine/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is refused is named by the option that it has. Where the same was said by another one, the text of the failure
 * gets that: sizes of axes those of --mesh (--context-parallel-size 4 becomes cp=4), ranks that follow from sizes
 * these sizes, micro-batches of a step --global-batch-size. `said`: as the options were given. Returns `status`. */
enum ox_status ox_config_reword(const struct ox_config *said, enum ox_status status);

#ifdef __cplusplus
}
#endif
#endif
