#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static ox_log_sink *log_sink;
static void *log_context;

void ox_log_set_sink(ox_log_sink *sink, void *context) {
    pthread_mutex_lock(&log_lock);
    log_sink = sink;
    log_context = context;
    pthread_mutex_unlock(&log_lock);
}

void ox_log(enum ox_log_level level, const char *fmt, ...) {
    char line[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    pthread_mutex_lock(&log_lock);
    if (log_sink != NULL) {
        log_sink(log_context, level, line);
    }
    pthread_mutex_unlock(&log_lock);
}
