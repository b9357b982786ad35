/* Recognises files of data in forms that are not read here, such as tables and compressed files, and says which command
 * makes rows of them. corpus.c refuses them before anything is tokenized; `offload inspect` names them. */
#ifndef OX_ENGINE_FOREIGN_FILES_H
#define OX_ENGINE_FOREIGN_FILES_H

#include "base/status.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Refuses `path`, or a file in that folder or its folders, with OX_E_CONFIG and the command that converts it: by the
 * first bytes of the file, and with `by_name` also by the ending of its name. */
OX_MUST enum ox_status ox_foreign_files_check(const char *path, bool by_name);

#ifdef __cplusplus
}
#endif
#endif
