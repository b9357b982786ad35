/* Opening oneDNN leaves the thread on all of its processors, also where the environment lets OpenMP bind threads. */
#include "kernels/device.h"
#include "tests/kit/test.h"

#include <sched.h>
#include <stdlib.h>

int main(void) {
    cpu_set_t before, after;
    const char *text = "";
    CHECK(setenv("OMP_PROC_BIND", "true", 1) == 0 && setenv("OMP_PLACES", "threads", 1) == 0);
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    if (!ox_cpu_has_products(OX_REAL_BF16, &text)) {
        test_skip(text);
    }
    CHECK(sched_getaffinity(0, sizeof after, &after) == 0);
    CHECK(CPU_EQUAL(&before, &after));
    return test_end();
}
