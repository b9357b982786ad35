#include "base/status.h"

#include "base/assert.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static _Thread_local char error_text[OX_ERROR_TEXT_BYTES];

enum ox_status ox_fail(enum ox_status status, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    char text[OX_ERROR_TEXT_BYTES]; /* the arguments may point into error_text */
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    memcpy(error_text, text, sizeof text);
    return status;
}

/* Whether the process's addresses are limited, of which a thread takes some. */
static bool has_addresses(void) {
    struct rlimit limit;
    return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

/* Names the limit that a user can raise. */
static const char *limit_of(enum ox_status status, int err) {
    switch (err) {
    case EFBIG:
        return " (the file system's limit, or that of `ulimit -f`)";
    case EMFILE:
        return " (the limit of `ulimit -n`)";
    case EAGAIN: /* of a thread; elsewhere it means that a call may be tried again */
        return status != OX_E_NOMEM ? ""
               : has_addresses()    ? " (the limit of `ulimit -u` or `ulimit -v`, or of processes in the control group)"
                                    : " (the limit of `ulimit -u`, or of processes in the control group)";
    default:
        return "";
    }
}

enum ox_status ox_fail_errno(enum ox_status status, int err, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    char text[OX_ERROR_TEXT_BYTES];
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return ox_fail(status, "%s: %s%s", text, strerror(err), limit_of(status, err));
}

enum ox_status ox_fail_in(enum ox_status status, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    char context[OX_ERROR_TEXT_BYTES];
    vsnprintf(context, sizeof context, fmt, args);
    va_end(args);
    return ox_fail(status, "%s: %s", context, error_text);
}

void ox_first_failure_note(struct ox_first_failure *first, enum ox_status status) {
    if (status != OX_OK && first->status == OX_OK) {
        first->status = status;
        memcpy(first->text, error_text, sizeof first->text);
    }
}

enum ox_status ox_first_failure_result(const struct ox_first_failure *first) {
    return first->status == OX_OK ? OX_OK : ox_fail(first->status, "%s", first->text);
}

const char *ox_error_text(void) {
    return error_text;
}

const char *ox_status_name(enum ox_status status) {
    static const char *const names[OX_STATUS_COUNT] = {
        "OX_OK",     "OX_E_NOMEM", "OX_E_IO",   "OX_E_CORRUPT", "OX_E_MEMORY",
        "OX_E_DEVICE", "OX_E_COMM", "OX_E_CONFIG", "OX_E_BUSY", "OX_E_ABORTED",
    };
    return (unsigned)status < OX_STATUS_COUNT ? names[status] : "OX_E_UNKNOWN";
}

void ox_assert_failed(const char *condition, const char *file, int line) {
    fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, condition);
    abort();
}
