/* System calls taken over by the test program: a rule says which call goes wrong, how, and which of its occurrences;
 * every call is counted. A program linked with calls.c calls these functions in place of the C library's, and so do its
 * shared libraries; the Makefile lists these programs (CALLS_P). calls_memory.c does the same for allocations, in
 * programs that ask for it (MEMORY_P). Calls made inside the C library itself (fopen) are not seen. */
#ifndef OX_TESTS_CALLS_H
#define OX_TESTS_CALLS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum call {
    CALL_OPEN,
    CALL_OPEN_UNNAMED, /* open with O_TMPFILE */
    CALL_CLOSE,
    CALL_STAT, /* stat, lstat, fstat */
    CALL_LIST, /* readdir */
    CALL_READ, /* read, pread */
    CALL_WRITE,
    CALL_SYNC,  /* fsync */
    CALL_FLUSH, /* fdatasync */
    CALL_RENAME,
    CALL_RENAME_NEW, /* renameat2 */
    CALL_ALLOCATE,
    CALL_TRUNCATE,
    CALL_LOCK,   /* flock; unlocking is not counted and never fails */
    CALL_MAKE,   /* mkdir */
    CALL_REMOVE, /* unlink, unlinkat, rmdir */
    CALL_SPACE,  /* statvfs */
    CALL_RANDOM, /* getrandom */
    CALL_MEMORY, /* malloc, calloc, realloc, posix_memalign: with calls_memory.c */
    CALL_COUNT
};
extern const char *const call_names[CALL_COUNT];

enum call_fault {
    CALL_FAILS,       /* answers rule.error without doing anything; a descriptor is closed even so */
    CALL_IS_SHORT,    /* a transfer moves half of what it was asked for; all other calls answer rule.error */
    CALL_STALLS,      /* does its work 200 us late */
    CALL_DIES_BEFORE, /* SIGKILL before the call: rule.idx counts all calls that change a file or a folder */
    CALL_DIES_WITHIN, /* SIGKILL with half of it written: rule.idx counts writes */
    CALL_DIES_AFTER   /* SIGKILL after the call: rule.idx as in CALL_DIES_BEFORE */
};

struct call_rule {
    enum call call;
    enum call_fault fault;
    int error;       /* errno of the answer; 0: a transfer answers 0 bytes */
    uint64_t idx;    /* the first occurrence that goes wrong, from 0 */
    bool persistent; /* so does every later one */
    /* Half a transfer is rounded down to a multiple of this (0 = 1); where nothing is left, it answers rule.error. */
    size_t multiple;
};

struct calls_seen {
    _Atomic uint64_t calls[CALL_COUNT], changes; /* changes: calls that change a file or a folder */
    _Atomic uint64_t hits;                       /* calls that went wrong */
    _Atomic uint64_t folder_syncs;
    _Atomic uint64_t repeated_syncs; /* syncs of a file after one that failed, with nothing written between them */
    _Atomic uint64_t direct_reads;   /* past the page cache, while calls_options.flipped_byte is set */
};
/* Static memory, or what the test puts here: memory that forked processes share. */
extern struct calls_seen *calls_seen;

struct calls_options {
    bool (*picks)(const char *path); /* only calls on these paths, and on descriptors opened by them; NULL: all */
    bool skips_sync;                 /* fsync succeeds at once: nothing in the test outlives the machine */
    bool refuses_direct;             /* fcntl cannot set O_DIRECT */
    bool refuses_allocate;           /* fallocate is not known, as on some file systems */
    int flipped_byte;                /* a read past the page cache inverts a bit of this byte of its block; 0: none */
};
extern struct calls_options calls_options;

/* Takes the rule and zeroes *calls_seen. */
void calls_set(const struct call_rule *rule);
/* Calls are counted and go wrong between calls_arm(true) and calls_arm(false). */
void calls_arm(bool armed);

/* For calls_memory.c: counts a call; true when it has to fail, with errno set. */
bool calls_hit(enum call call);
/* Gives the JSON library an allocator that never fails: jansson 2.14 damages the heap when one does. False where
 * this build's allocator cannot be taken over, so that nothing is counted. */
bool calls_memory_spare_json(void);

#endif
