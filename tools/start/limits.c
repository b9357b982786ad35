/* What limits of the process (ulimit) mean for the program: an ordinary error, which names the limit. */
#include "tools/start/limits.h"

#include "base/memory.h"

#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

/* OpenBLAS starts its threads before main and asks this function of its own how many; the program's comes before it.
 * GEMMs are divided over the program's own threads, so more would only take memory; and where there is none (ulimit -v)
 * they would try for ever, and the process, which waits for them at its end, would never end. */
int openblas_num_threads_env(void);
int openblas_num_threads_env(void) {
    return 1;
}

/* Threads have stacks of the same size. */
enum { STACK_BYTES_MIN = 1 << 20 };

enum ox_status ox_limits_mind(void) {
    json_set_alloc_funcs(ox_memory_cap_malloc, free);
    signal(SIGXFSZ, SIG_IGN); /* a file beyond `ulimit -f` then shows as a write error */
    struct rlimit stack;
    if (getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur < STACK_BYTES_MIN) {
        return ox_fail(OX_E_CONFIG, "the stack may take %llu KiB, and 1024 KiB are needed; raise the limit (ulimit -s)",
                       (unsigned long long)stack.rlim_cur / 1024);
    }
    return OX_OK;
}
