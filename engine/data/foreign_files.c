/* Owns the table of file forms that hold data but are not read here. */
#include "engine/data/foreign_files.h"

#include "base/bytes.h"
#include "base/file.h"
#include "engine/data/files.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MAGIC_BYTES = 8 };

/* The commands need no package where Python or a usual tool can do it alone. %1$s is the path of the file. */
#define CSV_BEGIN \
    "python3 -c \"import csv, json; [print(json.dumps(row)) for row in csv.DictReader(open('%1$s', newline='')"
#define CSV_END     ")]\" >rows.jsonl"
#define FRAME_BEGIN "python3 -c \"import pandas; pandas."
#define FRAME_END   "('%1$s').to_json('rows.jsonl', orient='records', lines=True)\" (it needs pandas and pyarrow)"

struct form {
    const char *magic; /* "": known by its name alone */
    size_t magic_bytes;
    const char *ending; /* how names end, in lower case; NULL: known by its first bytes alone */
    const char *what, *command;
};

/* An inner ending such as .csv.gz is met when the file is unpacked. */
static const struct form forms[] = {
    {"\x1f\x8b", 2, ".gz", "compressed with gzip", "gunzip -k '%1$s'"},
    {"\x28\xb5\x2f\xfd", 4, ".zst", "compressed with zstd", "zstd -d '%1$s'"},
    {"BZh", 3, ".bz2", "compressed with bzip2", "bunzip2 -k '%1$s'"},
    {"\xfd" "7zXZ", 5, ".xz", "compressed with xz", "unxz -k '%1$s'"},
    {"PK\3\4", 4, ".zip", "a zip archive", "unzip '%1$s' -d data"},
    {"", 0, ".tar", "a tar archive", "mkdir data && tar -C data -xf '%1$s'"},
    {"PAR1", 4, ".parquet", "a parquet file", FRAME_BEGIN "read_parquet" FRAME_END},
    {"ARROW1", 6, ".feather", "an arrow file", FRAME_BEGIN "read_feather" FRAME_END},
    {"\xff\xff\xff\xff", 4, ".arrow", "an arrow stream",
     "python3 -c \"import pyarrow; pyarrow.ipc.open_stream('%1$s').read_pandas().to_json('rows.jsonl', "
     "orient='records', lines=True)\" (it needs pandas and pyarrow)"},
    {"", 0, ".csv", "a table of comma-separated values", CSV_BEGIN CSV_END},
    {"", 0, ".tsv", "a table of tab-separated values", CSV_BEGIN ", delimiter='\\t'" CSV_END},
    {"", 0, ".xlsx", "a spreadsheet", FRAME_BEGIN "read_excel" FRAME_END},
    {"%PDF", 4, ".pdf", "a PDF file", "pdftotext '%1$s'"},
};

static bool ends_with(const char *path, const char *ending) {
    const size_t bytes = strlen(path), length = strlen(ending);
    return bytes > length && strcasecmp(path + bytes - length, ending) == 0;
}

/* First bytes count more than names, because a name may be anything. */
static const struct form *find_form(const char *path, const char start[MAGIC_BYTES], bool by_name) {
    const unsigned count = sizeof forms / sizeof *forms;
    for (unsigned i = 0; i < count; i++) {
        if (forms[i].magic_bytes > 0 && memcmp(start, forms[i].magic, forms[i].magic_bytes) == 0) {
            return &forms[i];
        }
    }
    for (unsigned i = 0; by_name && i < count; i++) {
        if (ends_with(path, forms[i].ending)) {
            return &forms[i];
        }
    }
    return NULL;
}

static enum ox_status check_file(const char *path, bool by_name) {
    char start[MAGIC_BYTES] = {0}, command[2 * OX_PATH_BYTES];
    uint64_t bytes = 0;
    const enum ox_status status = ox_file_read_start(path, start, sizeof start, &bytes);
    const struct form *const form = status == OX_OK ? find_form(path, start, by_name) : NULL;
    if (form == NULL) {
        return status;
    }
    snprintf(command, sizeof command, form->command, path);
    return ox_fail(OX_E_CONFIG, "%s: is %s, which is not read; make JSON lines or text of it: %s", path, form->what,
                   command);
}

enum ox_status ox_foreign_files_check(const char *path, bool by_name) {
    struct ox_files files;
    enum ox_status status = ox_files_list(path, true, &files);
    for (uint32_t i = 0; i < files.count && status == OX_OK; i++) {
        status = check_file(files.paths[i], by_name);
    }
    ox_files_free(&files);
    return status;
}
