/* Mixtures of experts: folders whose files have one tensor of all experts of a layer, and what runs with other groups
 * of experts leave behind. */
#ifndef OX_TESTS_MIXTURE_H
#define OX_TESTS_MIXTURE_H

#include "tests/kit/run/harness.h"

#include <stdbool.h>
#include <stdint.h>

/* Writes a folder below the test's with the weights of a fresh model of a config.json, and returns its path. With
 * `mxfp4` the weights of gpt_oss's experts are MXFP4, at random. */
const char *mixture_write(const char *name, const char *config_path, bool mxfp4);

/* True when two runs in the test's folder have the same curve of steps and the same tensors in their checkpoints of
 * this step, which lie in another order where experts are grouped otherwise; else says what is not. */
bool mixture_same_runs(const char *a, const char *b, unsigned steps);

/* Models with routers, whose reports come together from all ranks: losses of routers, which one pass of the whole step
 * defines; updates by the routing of the step; groups of experts with homes of their own. */
struct mixture_case {
    const char *name, *text; /* of a config.json */
    double balance, z, bias_rate;
    bool skips_idle;
    uint32_t per_unit;
};
enum { MIXTURE_CASES = 3 };
extern const struct mixture_case mixture_cases[MIXTURE_CASES];
void mixture_set(const struct mixture_case *mixture, struct harness_run *run);

#endif
