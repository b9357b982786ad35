#include "tests/kit/log.h"

#include "base/log.h"

#include <stdint.h>
#include <string.h>

atomic_int log_warnings;

static void count(void *context, enum ox_log_level level, const char *line) {
    const char *const words = context;
    log_warnings += level == OX_LOG_WARN && (words == NULL || strstr(line, words) != NULL);
}

void log_count_warnings(const char *words) {
    ox_log_set_sink(count, (void *)(uintptr_t)words);
}
