/* Status codes and the error text that travels with them.
 *
 * Every call that can fail in operation returns an ox_status; the text that a user can act on lies
 * beside it, per thread, and crosses to another thread when a mark is joined (base/lane.h). */
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
    OX_E_DEVICE,  /* the compute device failed                                  */
    OX_E_COMM,    /* a collective failed                                        */
    OX_E_CONFIG,  /* the request cannot be met as it was made; the text says why */
    OX_E_BUSY,    /* another process holds it                                   */
    OX_E_ABORTED, /* not tried, because something before it failed              */
    OX_STATUS_COUNT
};

#define OX_MUST __attribute__((warn_unused_result))
#define OX_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

enum { OX_ERROR_TEXT_BYTES = 1024 };

/* Records `status` and a text for this thread and returns `status`, so that a failing function
 * ends in `return ox_fail(OX_E_IO, "%s: ...", path)`. One sentence: thing, place, remedy. */
enum ox_status ox_fail(enum ox_status status, const char *fmt, ...) OX_PRINTF(2, 3);

/* As ox_fail, with ": <strerror(err)>" at the end; `err` is a positive errno. */
enum ox_status ox_fail_errno(enum ox_status status, int err, const char *fmt, ...) OX_PRINTF(3, 4);

/* Puts "<context>: " before the text recorded last and returns `status` unchanged. */
enum ox_status ox_fail_in(enum ox_status status, const char *fmt, ...) OX_PRINTF(2, 3);

/* The text recorded last on this thread; never NULL, valid until the next ox_fail here. */
const char *ox_error_text(void);

/* The first failure of several attempts, with its text: what came first is the useful cause, and later work on this
 * thread may record other texts meanwhile. Start from zeros. */
struct ox_first {
    enum ox_status status;
    char text[OX_ERROR_TEXT_BYTES];
};

/* Keeps `status` and the text recorded last, when it is a failure and the first. */
void ox_first_note(struct ox_first *first, enum ox_status status);
/* The first failure, its text recorded again; OX_OK when there was none. */
OX_MUST enum ox_status ox_first_result(const struct ox_first *first);

/* Short upper-case name, "OX_E_IO"; never NULL. */
const char *ox_status_name(enum ox_status status);

#ifdef __cplusplus
}
#endif
#endif
