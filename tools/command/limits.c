/* What limits of the process (ulimit) mean for the program: an ordinary error, which names the limit. */
#include "tools/command/cmd.h"

#include "base/memory.h"

#include <jansson.h>
#include <signal.h>
#include <stdlib.h>

/* OpenBLAS starts its threads before main and asks this function of its own how many; the program's comes before it.
 * GEMMs are divided over the program's own threads, so more would only take memory; and where there is none (ulimit -v)
 * they would try for ever, and the process, which waits for them at its end, would never end. */
int openblas_num_threads_env(void);
int openblas_num_threads_env(void) {
    return 1;
}

void ox_cmd_mind_limits(void) {
    json_set_alloc_funcs(ox_memory_cap_malloc, free);
    signal(SIGXFSZ, SIG_IGN); /* a file beyond `ulimit -f` then shows as a write error */
}
