/* The CUDA plugins that tests run: the one on the emulated runtime of tests/simt, which is always there, and the real
 * one where there is a GPU. */
#ifndef OX_TESTS_CUDA_KIT_H
#define OX_TESTS_CUDA_KIT_H

#include "kernels/cuda.h"
#include "tests/kit/test.h"

#include <limits.h>
#include <stdbool.h>

struct cuda_kit {
    const char *name;
    char plugin[PATH_MAX];
};

void cuda_kit_emulated(struct cuda_kit *kit);
/* False where there is no GPU, with a printed line that says why: a failure where $OX_REQUIRE_GPU is set. */
bool cuda_kit_real(struct cuda_kit *kit);

#endif
