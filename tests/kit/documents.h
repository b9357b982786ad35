/* Opens the documents of a path, as training does that reads all files of a folder. */
#ifndef OX_TEST_DOCUMENTS_H
#define OX_TEST_DOCUMENTS_H

#include "engine/data/documents.h"

static inline enum ox_status documents_open(const char *path, const struct ox_documents_config *config,
                                            struct ox_documents **out) {
    struct ox_files files;
    enum ox_status status = ox_files_list(path, &files);
    OX_THEN(status, ox_documents_open(&files, config, out));
    ox_files_free(&files);
    return status;
}

#endif
