/* Mixtures of experts: folders whose files have one tensor of all experts of a layer, and what runs with other groups
 * of experts leave behind. */
#ifndef OX_TESTS_MIXTURE_H
#define OX_TESTS_MIXTURE_H

#include <stdbool.h>

/* Writes a folder below the test's with the weights of a fresh model of a config.json, and returns its path. With
 * `mxfp4` the weights of gpt_oss's experts are MXFP4, at random. */
const char *mixture_write(const char *name, const char *config_path, bool mxfp4);

/* True when two runs in the test's folder have the same curve of steps and the same tensors in their checkpoints of
 * this step, which lie in another order where experts are grouped otherwise; else says what is not. */
bool mixture_same_runs(const char *a, const char *b, unsigned steps);

#endif
