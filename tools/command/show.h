/* Shows training data for `offload tokenize --show` and `--data-cache`. */
#ifndef OX_TOOLS_SHOW_H
#define OX_TOOLS_SHOW_H

#include "engine/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Tokenizes --data as training would, prints sequences with --show, and prints totals. */
OX_MUST enum ox_status ox_show(const struct ox_config *config);

#ifdef __cplusplus
}
#endif
#endif
