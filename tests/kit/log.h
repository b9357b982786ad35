/* Warnings of the log, counted instead of printed. */
#ifndef OX_TESTS_LOG_H
#define OX_TESTS_LOG_H

#include <stdatomic.h>

extern atomic_int log_warnings;
/* Counts from here on; only warnings that contain `words`, unless they are NULL. */
void log_count_warnings(const char *words);

#endif
