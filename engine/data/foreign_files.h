/* Recognises files of data in forms that are not read here, such as tables, compressed files and token ids without a
 * header, and says which command makes rows, text or a token file of them. corpus_inputs.c refuses them before anything
 * is tokenized; `offload inspect` names them. */
#ifndef OX_ENGINE_FOREIGN_FILES_H
#define OX_ENGINE_FOREIGN_FILES_H

#include "base/status.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Refuses a file with OX_E_CONFIG and the command that converts it: by its first bytes, with `by_name` also by the
 * ending of its name, and where there is a NUL in its first 4 KiB. */
OX_MUST enum ox_status ox_foreign_data_check(const char *path, bool by_name);

#ifdef __cplusplus
}
#endif
#endif
