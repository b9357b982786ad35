/* Lists the files of a folder, in an order that does not depend on the file system. data.c and documents.c use
 * it. */
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
    uint32_t link_count; /* links found in the folder, which are not listed */
};

/* Lists the regular files in the folder `path`, and with `recursive` those in its folders; a path that is not a folder
 * is listed itself. *out is overwritten, and empty on failure; free it with ox_files_free. More than a million files
 * are OX_E_CONFIG. */
OX_MUST enum ox_status ox_files_list(const char *path, bool recursive, struct ox_files *out);
void ox_files_free(struct ox_files *files);

#ifdef __cplusplus
}
#endif
#endif
