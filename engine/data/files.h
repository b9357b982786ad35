/* Lists the files of a folder, in an order that does not depend on the file system, and notes which are left out.
 * corpus_inputs.c chooses among them; data.c and documents.c read them. */
#ifndef OX_ENGINE_FILES_H
#define OX_ENGINE_FILES_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Why something in a folder is left out. */
enum ox_left {
    OX_LEFT_LINK,   /* it is a symbolic link                                          */
    OX_LEFT_HIDDEN, /* its name begins with . or _                                    */
    OX_LEFT_ABOUT,  /* it is about the data: a README, a licence, metadata            */
    OX_LEFT_FORMAT, /* it has another format than the rows beside it                  */
    OX_LEFT_SPLIT,  /* it looks like a test or validation split, and is not asked for */
    OX_LEFT_REST,   /* it is beside such a split, which is asked for                  */
    OX_LEFT_COUNT,
};

struct ox_files {
    char *root; /* the path that was listed */
    bool is_folder;
    char **paths; /* sorted by their bytes */
    uint32_t count;
    struct ox_files_left {
        uint32_t count;
        char names[160]; /* "a, b and more": the first ones, relative to the root */
    } left[OX_LEFT_COUNT];
};

/* Lists the regular files in the folder `path` and in its folders, but for links and names that begin with . or _;
 * a path that is not a folder is listed itself. *out is overwritten, and empty on failure; free it with ox_files_free.
 * More than a million files are OX_E_CONFIG. */
OX_MUST enum ox_status ox_files_list(const char *path, struct ox_files *out);
/* The path of file `idx`, relative to the root. */
const char *ox_files_name(const struct ox_files *files, uint32_t idx);
/* Leaves out the files whose reason, one for each, is not OX_LEFT_COUNT. */
void ox_files_leave(struct ox_files *files, const enum ox_left *reasons);
void ox_files_free(struct ox_files *files);
/* Whether both paths lead to the same file or folder, which is there. */
bool ox_files_are_same(const char *a, const char *b);

#ifdef __cplusplus
}
#endif
#endif
