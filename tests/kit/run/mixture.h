/* Folders of mixtures of experts whose files have one tensor of all experts of a layer. */
#ifndef OX_TESTS_MIXTURE_H
#define OX_TESTS_MIXTURE_H

#include <stdbool.h>

/* Writes a folder below the test's with the weights of a fresh model of a config.json, and returns its path. With
 * `mxfp4` the weights of gpt_oss's experts are MXFP4, at random. */
const char *mixture_write(const char *name, const char *config_path, bool mxfp4);

#endif
