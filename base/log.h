/* Log lines go to one sink, set by the program; without a sink they are dropped. */
#ifndef OX_BASE_LOG_H
#define OX_BASE_LOG_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ox_log_level { OX_LOG_INFO, OX_LOG_WARN };

/* Called with one line without a newline, from any thread, one call at a time. */
typedef void ox_log_sink(void *context, enum ox_log_level level, const char *line);

void ox_log_set_sink(ox_log_sink *sink, void *context);
void ox_log(enum ox_log_level level, const char *fmt, ...) OX_PRINTF(2, 3);

#ifdef __cplusplus
}
#endif
#endif
