/* One sink for log lines, set by the program; without a sink lines are dropped. Every folder writes to it. */
#ifndef OX_BASE_LOG_H
#define OX_BASE_LOG_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ox_log_level { OX_LOG_INFO, OX_LOG_WARN };

/* Receives one line without its newline. Calls may come from any thread, one at a time. */
typedef void ox_log_sink(void *context, enum ox_log_level level, const char *line);

void ox_log_set_sink(ox_log_sink *sink, void *context);
void ox_log(enum ox_log_level level, const char *fmt, ...) OX_PRINTF(2, 3);

#ifdef __cplusplus
}
#endif
#endif
