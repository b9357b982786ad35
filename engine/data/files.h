/* The files of a folder, in an order that does not depend on the file system. */
#ifndef OX_ENGINE_FILES_H
#define OX_ENGINE_FILES_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_files {
    char **paths; /* sorted by their bytes */
    uint32_t count, capacity;
    uint32_t link_count; /* links in the folder, which are left out */
};

/* `path` itself where it is no folder; else the regular files in it, with `recursive` those of its folders too. *out is
 * overwritten, and empty on failure. */
OX_MUST enum ox_status ox_files_list(const char *path, bool recursive, struct ox_files *out);
void ox_files_free(struct ox_files *files);

#ifdef __cplusplus
}
#endif
#endif
