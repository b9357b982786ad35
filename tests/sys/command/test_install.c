/* `make install` and `make uninstall`, into an empty root. */
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    const char *const program = getenv("OX_BIN");
    if (program != NULL && strcmp(program, "build/offload") != 0) {
        test_skip("another build than build/ is tested");
    }
    execlp("sh", "sh", "tools/dev/install_test.sh", (char *)NULL);
    printf("sh cannot be run\n");
    return 1;
}
