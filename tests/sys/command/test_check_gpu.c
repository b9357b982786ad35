/* `make check-gpu` itself, on the emulated device: all of its checks pass there, and each fails where it must. Then the
 * archive of `make gpu-bundle`, with the emulated plugin: it works where it is unpacked. */
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    const char *const program = getenv("OX_BIN") != NULL ? getenv("OX_BIN") : "build/offload";
    const char *const slash = strrchr(program, '/');
    char build[512];
    snprintf(build, sizeof build, "%.*s", slash == NULL ? 1 : (int)(slash - program), slash == NULL ? "." : program);
    if (strstr(build, "/san-") != NULL) {
        test_skip("it runs the program some thirty times; without sanitizers that is enough");
    }
    setenv("OX_BUILD", build, 1);
    execlp("sh", "sh", "-c", "sh tools/dev/check_gpu_test.sh && sh tools/dev/gpu/bundle_test.sh", (char *)NULL);
    printf("sh cannot be run\n");
    return 1;
}
