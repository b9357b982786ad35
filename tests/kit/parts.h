/* A sweep in parts: OX_TEST_PART=I/N takes the Ith of N of them, so that they can be run apart and on several machines.
 * `make test-all` without it runs the parts as processes side by side, each of which has folders of its own. */
#ifndef OX_TESTS_PARTS_H
#define OX_TESTS_PARTS_H

#include <stdbool.h>

struct test_part {
    unsigned idx, count;
};

/* Returns true with the part that this process takes: of one, in `make test`. Else it has run the program again for
 * each of `count` parts, noted a failure for each that failed, and returns false. Call it before anything is opened. */
bool parts_begin(unsigned count, char **argv, struct test_part *out);

#endif
