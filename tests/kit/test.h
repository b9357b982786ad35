/* Included by every test program. A program exits with 0 (pass), 1 (fail) or 77 (skipped, with the reason on stdout). A
 * failed CHECK prints its place and continues; test_end gives the exit status. */
#ifndef OX_TESTS_TEST_H
#define OX_TESTS_TEST_H

#include "base/status.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

extern int test_failure_count;

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);                  \
            test_failure_count++;                                                           \
        }                                                                                   \
    } while (0)

/* For calls without whose success the test makes no sense: prints the error and exits. */
#define REQUIRE_OK(call)                                                                    \
    do {                                                                                    \
        const enum ox_status test_status_ = (call);                                         \
        if (test_status_ != OX_OK) {                                                        \
            printf("%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call,                        \
                   ox_status_name(test_status_), ox_error_text());                          \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

/* Prints how many checks failed and returns the program's exit status. */
int test_end(void);
/* Ends the program as skipped. */
__attribute__((noreturn)) void test_skip(const char *why);
/* A fresh empty folder under the system's temporary folder ($TMPDIR), removed at exit; static storage. */
const char *test_folder(void);
/* The folder of real models and texts: $OX_TEST_DATA, else ../shared/data; NULL where it is absent. */
const char *test_data_folder(void);
/* What decides a sample: the number after --seed, else the day, so that the days take all in turn. It is printed. */
unsigned test_seed(int argc, char **argv);
/* Sweeps over every operation, call or placement take one of `quick` in `make test` and each in `make test-all`, which
 * sets $OX_TEST_ALL (tests/README.md): the step of such a sweep, and where it starts, below test_stride(quick). The
 * start follows from the program's name and how often it was asked for, so that neither programs nor the sweeps of one
 * take the same items. */
bool test_all(void);
/* OX_TEST_ALL=2: sweeps that take hours, by hand. */
bool test_deep(void);
unsigned test_stride(unsigned quick);
unsigned test_first(unsigned quick);
/* Tells whether a sweep takes an item, in any order: each, or the one of `quick` that the program's name gives. */
bool test_takes(unsigned item, unsigned quick);
/* Writes the path of `file` in the build folder that this program, build/tests/..., belongs to. */
void test_build_path(const char *file, char out[PATH_MAX]);

#endif
