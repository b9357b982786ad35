/* Status codes, and an error text per thread. Every folder uses them.
 *
 * A call that can fail in operation returns an ox_status and records a text that a user can act on. Joining a mark
 * (base/lane.h) carries both from the worker's thread to the joiner's. */
#ifndef OX_BASE_STATUS_H
#define OX_BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

enum ox_status {
    OX_OK = 0,
    OX_E_NOMEM,   /* a budget or an allocation was refused                     */
    OX_E_IO,      /* read, write or sync failed or came back short              */
    OX_E_CORRUPT, /* a checksum, header or size does not match                  */
    OX_E_MEMORY,  /* memory does not hold what was written to it                */
    OX_E_DEVICE,  /* the compute device failed                                  */
    OX_E_COMM,    /* a collective failed                                        */
    OX_E_CONFIG,  /* the request cannot be met as made; the text says why */
    OX_E_BUSY,    /* another process holds the resource */
    OX_E_ABORTED, /* skipped, because an earlier step failed */
    OX_STATUS_COUNT
};

#define OX_MUST __attribute__((warn_unused_result))
#define OX_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Makes a call, and keeps its status, unless `status` is a failure already: a list of calls keeps its first failure and
 * makes none of the calls after it. */
#define OX_THEN(status, call)    \
    do {                         \
        if ((status) == OX_OK) { \
            (status) = (call);   \
        }                        \
    } while (0)

/* Makes a call, and returns its status if it is a failure. */
#define OX_TRY(call)                           \
    do {                                       \
        const enum ox_status ox_try_ = (call); \
        if (ox_try_ != OX_OK) {                \
            return ox_try_;                    \
        }                                      \
    } while (0)

enum { OX_ERROR_TEXT_BYTES = 1024 };

/* Records a text for this thread and returns `status`, so that a failing function ends in `return ox_fail(OX_E_IO, "%s:
 * ...", path)`. The text is one sentence: thing, place, remedy. */
enum ox_status ox_fail(enum ox_status status, const char *fmt, ...) OX_PRINTF(2, 3);

/* As ox_fail, followed by ": <strerror(err)>" and the limit (ulimit) behind it, if there is one; `err` is a positive
 * errno. */
enum ox_status ox_fail_errno(enum ox_status status, int err, const char *fmt, ...) OX_PRINTF(3, 4);

/* Puts "<context>: " before this thread's last text and returns `status`. */
enum ox_status ox_fail_in(enum ox_status status, const char *fmt, ...) OX_PRINTF(2, 3);

/* This thread's last text; never NULL, valid until its next ox_fail. */
const char *ox_error_text(void);

/* Keeps the first failure of several steps, with its text: it is the useful cause, and later steps may record other
 * texts on this thread. Start from zeros. */
struct ox_first_failure {
    enum ox_status status;
    char text[OX_ERROR_TEXT_BYTES];
};

/* Keeps `status` and this thread's last text if it is the first failure. */
void ox_first_failure_note(struct ox_first_failure *first, enum ox_status status);
/* Returns the first failure and records its text again; OX_OK when there was none. */
OX_MUST enum ox_status ox_first_failure_result(const struct ox_first_failure *first);

/* Short upper-case name, "OX_E_IO"; never NULL. */
const char *ox_status_name(enum ox_status status);

#ifdef __cplusplus
}
#endif
#endif
