#include "tests/kit/parts.h"

#include "tests/kit/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const char variable[] = "OX_TEST_PART";

static void run_part(unsigned idx, unsigned count, char **argv) {
    char text[32];
    snprintf(text, sizeof text, "%u/%u", idx + 1, count);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        setenv(variable, text, 1);
        execv("/proc/self/exe", argv);
        _exit(126);
    }
    CHECK(child > 0);
}

bool parts_begin(unsigned count, char **argv, struct test_part *out) {
    const char *const asked = getenv(variable);
    *out = (struct test_part){.count = 1};
    if (asked != NULL) {
        const bool known = sscanf(asked, "%u/%u", &out->idx, &out->count) == 2 && out->idx >= 1 &&
                           out->idx <= out->count;
        CHECK(known);
        out->idx--;
        return known;
    }
    if (!test_all()) {
        return true;
    }
    for (unsigned i = 0; i < count; i++) {
        run_part(i, count, argv);
    }
    for (int how = 0; wait(&how) > 0;) {
        CHECK(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    }
    return false;
}
