/* Owns the table of file forms that hold data but are not read here, and the guess at what a binary file is. */
#include "engine/data/foreign_files.h"

#include "base/bytes.h"
#include "base/file.h"
#include "engine/data/unpack.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SAMPLE_BYTES = 4096 };

/* The commands need no package where Python or a usual tool can do it alone. %1$s is the path of the file. */
#define CSV_BEGIN \
    "python3 -c \"import csv, json; [print(json.dumps(row)) for row in csv.DictReader(open('%1$s', newline='')"
#define CSV_END     ")]\" >rows.jsonl"
#define FRAME_BEGIN "python3 -c \"import pandas; pandas."
#define FRAME_END   "('%1$s').to_json('rows.jsonl', orient='records', lines=True)\" (it needs pandas and pyarrow)"

/* Puts the header of an llm.c token file before the bytes of a file: %2$d is its magic number, %3$d the version, %4$d
 * the bytes of a token. */
#define HEADER_COMMAND \
    "python3 -c \"import os, shutil, struct; i = open('%1$s', 'rb'); o = open('tokens.bin', 'wb'); o.write(" \
    "struct.pack('<3i', %2$d, %3$d, os.path.getsize('%1$s') // %4$d).ljust(1024, b'\\0')); " \
    "shutil.copyfileobj(i, o)\""
#define WIDE_COMMAND \
    "python3 -c \"import array, struct; t = array.array('q', open('%1$s', 'rb').read()); " \
    "o = open('tokens.bin', 'wb'); " \
    "o.write(struct.pack('<3i', 20240801, 7, len(t)).ljust(1024, b'\\0')); array.array('I', t).tofile(o)\""

struct form {
    const char *magic; /* "": known by its name alone */
    size_t magic_bytes;
    const char *ending; /* how names end, in lower case; NULL: known by its first bytes alone */
    const char *what, *command;
};

static const char no_command[] = "";

static const struct form forms[] = {
    {"", 0, ".gz", "named like a file of gzip, and none", "mv '%1$s' data.jsonl"},
    {"", 0, ".zst", "named like a file of zstd, and none", "mv '%1$s' data.jsonl"},
    {"BZh", 3, ".bz2", "compressed with bzip2", "bunzip2 -k '%1$s'"},
    {"", 0, ".xz", "named like a file of xz, and none", "mv '%1$s' data.jsonl"},
    {"PK\3\4", 4, ".zip", "a zip archive", "unzip '%1$s' -d data"},
    {"", 0, ".tar", "a tar archive", "mkdir data && tar -C data -xf '%1$s'"},
    {"PAR1", 4, ".parquet", "a parquet file", FRAME_BEGIN "read_parquet" FRAME_END},
    {"ARROW1", 6, ".feather", "an arrow file", FRAME_BEGIN "read_feather" FRAME_END},
    {"\xff\xff\xff\xff", 4, ".arrow", "an arrow stream",
     "python3 -c \"import pyarrow; pyarrow.ipc.open_stream('%1$s').read_pandas().to_json('rows.jsonl', "
     "orient='records', lines=True)\" (it needs pandas and pyarrow)"},
    {"\xff\xfe", 2, NULL, "UTF-16 text", "iconv -f UTF-16 -t UTF-8 '%1$s' >utf8-text"},
    {"\xfe\xff", 2, NULL, "UTF-16 text", "iconv -f UTF-16 -t UTF-8 '%1$s' >utf8-text"},
    {"\x93NUMPY", 6, ".npy", "a NumPy array",
     "python3 -c \"import numpy, struct; t = numpy.load('%1$s').ravel().astype('<u4'); open('tokens.bin', 'wb').write("
     "struct.pack('<3i', 20240801, 7, t.size).ljust(1024, b'\\0') + t.tobytes())\" (a token file; it needs numpy)"},
    {"\x89PNG", 4, ".png", "a picture", no_command},
    {"\xff\xd8\xff", 3, ".jpg", "a picture", no_command},
    {"GIF8", 4, ".gif", "a picture", no_command},
    {"\x7f" "ELF", 4, ".so", "a program", no_command},
    {"GGUF", 4, ".gguf", "a model for llama.cpp", no_command},
    {"SQLite format 3", 15, ".sqlite", "a database", "sqlite3 -json '%1$s' 'select * from TABLE' >rows.json"},
    {"\x89HDF", 4, ".h5", "an HDF5 file", no_command},
    {"", 0, ".safetensors", "weights of a model", no_command},
    {"", 0, ".pt", "an archive of PyTorch", no_command},
    {"", 0, ".pkl", "a pickle of Python", no_command},
    {"", 0, ".csv", "a table of comma-separated values", CSV_BEGIN CSV_END},
    {"", 0, ".tsv", "a table of tab-separated values", CSV_BEGIN ", delimiter='\\t'" CSV_END},
    {"", 0, ".xlsx", "a spreadsheet", FRAME_BEGIN "read_excel" FRAME_END},
    {"%PDF", 4, ".pdf", "a PDF file", "pdftotext '%1$s'"},
};

/* Files of models and runs, by their whole names. */
static const struct {
    const char *name, *what;
} own_files[] = {
    {"tokenizer.json", "the tokenizer of a model"},       {"tokenizer_config.json", "the settings of a tokenizer"},
    {"special_tokens_map.json", "a list of special tokens"}, {"added_tokens.json", "a list of added tokens"},
    {"vocab.json", "the vocabulary of a tokenizer"},      {"config.json", "the configuration of a model"},
    {"generation_config.json", "the settings of a model"}, {"model.safetensors.index.json", "an index of weights"},
    {"tokenizer.model", "the tokenizer of a model"},      {"chat_template.jinja", "the chat template of a model"},
    {"trainer_state.json", "the state of a run"},         {"run.json", "the identity of a run"},
    {"metrics.jsonl", "the record of a run"},
};

/* What a path is that is no data but a file of a model or run; NULL for another. */
static const char *find_own(const char *path) {
    const char *const slash = strrchr(path, '/'), *const name = slash != NULL ? slash + 1 : path;
    for (size_t i = 0; i < sizeof own_files / sizeof *own_files; i++) {
        if (strcmp(name, own_files[i].name) == 0) {
            return own_files[i].what;
        }
    }
    return NULL;
}

static bool ends_with(const char *path, const char *ending) {
    const size_t bytes = strlen(path), length = strlen(ending);
    return bytes > length && strcasecmp(path + bytes - length, ending) == 0;
}

/* The first bytes of a file. */
struct sample {
    unsigned char bytes[SAMPLE_BYTES];
    size_t count;
    uint64_t file_bytes;
    bool packed; /* these are bytes of what the file holds */
};

/* First bytes count more than names, because a name may be anything. */
static const struct form *find_form(const char *path, const struct sample *sample, bool by_name) {
    const unsigned count = sizeof forms / sizeof *forms;
    for (unsigned i = 0; i < count; i++) {
        const size_t bytes = forms[i].magic_bytes;
        if (bytes > 0 && bytes <= sample->count && memcmp(sample->bytes, forms[i].magic, bytes) == 0) {
            return &forms[i];
        }
    }
    for (unsigned i = 0; by_name && i < count; i++) {
        if (forms[i].ending != NULL && ends_with(path, forms[i].ending)) {
            return &forms[i];
        }
    }
    return NULL;
}

/* ---- token ids without a header ------------------------------------------------------------------------------ */

static uint64_t word_at(const struct sample *sample, size_t idx, unsigned bytes) {
    uint64_t word = 0;
    for (unsigned i = bytes; i-- > 0;) {
        word = word << 8 | sample->bytes[idx * bytes + i];
    }
    return word;
}

/* Whether the words of the sample may be token ids, of which many are small, because common tokens have small ids;
 * *largest of them. */
static bool may_be_ids(const struct sample *sample, unsigned bytes, uint64_t limit, uint64_t *largest) {
    const size_t count = sample->count / bytes;
    size_t small = 0;
    *largest = 0;
    for (size_t i = 0; i < count; i++) {
        const uint64_t word = word_at(sample, i, bytes);
        *largest = word > *largest ? word : *largest;
        small += word < 4096;
    }
    return count > 0 && sample->file_bytes % bytes == 0 && *largest < limit && 4 * small >= count;
}

/* The bytes of a token id; 0 where the file does not look like ids. */
static unsigned width_of_ids(const struct sample *sample, uint64_t *largest) {
    const uint64_t vocab_max = UINT64_C(1) << 19;
    uint64_t halves = 0;
    (void)may_be_ids(sample, 2, UINT64_MAX, &halves);
    if (may_be_ids(sample, 8, vocab_max, largest) && *largest > 0) {
        return 8;
    }
    /* Pairs of ids below 8, of two bytes each, would pass for one id of four. */
    if (may_be_ids(sample, 4, vocab_max, largest) && *largest > 0 && (halves >= 8 || *largest == halves)) {
        return 4;
    }
    return may_be_ids(sample, 2, 1 << 16, largest) ? 2 : 0;
}

static enum ox_status fail_ids(const char *path, const char *what, unsigned width) {
    const bool narrow = width == 2;
    char command[3 * OX_PATH_BYTES];
    if (width == 8) {
        snprintf(command, sizeof command, WIDE_COMMAND, path);
    } else {
        snprintf(command, sizeof command, HEADER_COMMAND, path, narrow ? 20240520 : 20240801, narrow ? 1 : 7,
                 (int)width);
    }
    return ox_fail(OX_E_CONFIG, "%s: %s; make a token file of it: %s", path, what, command);
}

/* ---- Megatron's pairs ---------------------------------------------------------------------------------------- */

/* A token's bytes by the code in an index; 0 for none. */
static unsigned width_by_code(unsigned code) {
    static const unsigned widths[] = {[1] = 1, [2] = 1, [3] = 2, [4] = 4, [5] = 8, [8] = 2};
    return code < sizeof widths / sizeof *widths ? widths[code] : 0;
}

/* Refuses the index or the data of a Megatron data set, whose data are ids without a header. */
static enum ox_status check_megatron(const char *path, const struct sample *sample) {
    static const char magic[] = "MMIDIDX\0"; /* two NULs; 8 bytes of version and one of the kind follow */
    char index[OX_PATH_BYTES], data[OX_PATH_BYTES], what[OX_PATH_BYTES + 96];
    struct sample *const other = calloc(1, sizeof *other);
    const size_t bytes = strlen(path), stem = bytes > 4 ? bytes - 4 : 0;
    const bool is_index = sample->count > 18 && memcmp(sample->bytes, magic, sizeof magic) == 0;
    enum ox_status status = other != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "%s: no memory to read it", path);
    snprintf(data, sizeof data, "%.*s.bin", (int)stem, path);
    snprintf(index, sizeof index, "%.*s.idx", (int)stem, path);
    if (status == OX_OK && !is_index && ends_with(path, ".bin") && ox_path_is_file(index)) {
        status = ox_file_read_start(index, (char *)other->bytes, sizeof other->bytes, &other->file_bytes);
    }
    const unsigned char *const found = is_index ? sample->bytes : status == OX_OK ? other->bytes : NULL;
    if (found != NULL && memcmp(found, magic, sizeof magic) == 0) {
        const unsigned width = width_by_code(found[17]);
        snprintf(what, sizeof what, "is the %s of a Megatron data set, token ids of %u bits without a header",
                 is_index ? "index" : "data", 8 * width);
        status = width > 1 ? fail_ids(data, what, width)
                           : ox_fail(OX_E_CONFIG, "%s: is the index of a Megatron data set of another kind than token "
                                     "ids", path);
    }
    free(other);
    return status;
}

/* ---- binary files -------------------------------------------------------------------------------------------- */

/* Whether all words of two bytes are letters, as in UTF-16 without a mark at its begin. */
static bool is_utf16(const struct sample *sample) {
    const size_t count = sample->file_bytes % 2 == 0 ? sample->count / 2 : 0;
    for (size_t i = 0; i < count; i++) {
        const uint64_t word = word_at(sample, i, 2);
        if (word > 0x7e || (word < ' ' && (word < '\t' || word > '\r'))) {
            return false;
        }
    }
    return count > 0;
}

static enum ox_status check_binary(const char *path, const struct sample *sample) {
    const unsigned char *const nul = memchr(sample->bytes, 0, sample->count);
    uint64_t largest = 0;
    char what[192];
    /* Rows with a NUL are refused where they are parsed, with their line. */
    const bool named = ends_with(path, ".jsonl") || ends_with(path, ".ndjson") || ends_with(path, ".json");
    const bool is_json = named && sample->count > 1 && (sample->bytes[0] == '{' || sample->bytes[0] == '[');
    if (nul == NULL || (is_json && sample->bytes[1] != 0)) {
        return OX_OK;
    }
    if (is_utf16(sample)) {
        return ox_fail(OX_E_CONFIG, "%s: is UTF-16 text, which is not read; make UTF-8 of it: iconv -f UTF-16LE -t "
                       "UTF-8 '%s' >utf8-text", path, path);
    }
    const unsigned width = width_of_ids(sample, &largest);
    if (width > 0) {
        snprintf(what, sizeof what, "is binary and looks like token ids of %u bits without a header, of which the "
                 "first %zu are up to %" PRIu64, 8 * width, sample->count / width, largest);
        return fail_ids(path, what, width);
    }
    return ox_fail(OX_E_CONFIG, "%s: is binary, with a NUL at byte %zu, and no text; keep it elsewhere, or take its "
                   "bytes for tokens with --data-format bytes", path, (size_t)(nul - sample->bytes));
}

/* Refuses what a compressed file holds and is no text. */
static enum ox_status check_packed(const char *path, const struct sample *sample, bool by_name) {
    char inner[OX_PATH_BYTES];
    snprintf(inner, sizeof inner, "%.*s", (int)ox_unpack_name_bytes(path), path);
    const struct form *const form = find_form(inner, sample, by_name);
    const bool binary = memchr(sample->bytes, 0, sample->count) != NULL;
    return form == NULL && !binary
               ? OX_OK
               : ox_fail(OX_E_CONFIG, "%s: is compressed and holds %s, which is not read; unpack it, and make JSON "
                         "lines or text of it", path, form != NULL ? form->what : "binary data");
}

enum ox_status ox_foreign_data_check(const char *path, bool by_name) {
    struct sample *const sample = calloc(1, sizeof *sample);
    char command[2 * OX_PATH_BYTES];
    if (sample == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to read it", path);
    }
    if (by_name && find_own(path) != NULL) {
        free(sample);
        return ox_fail(OX_E_CONFIG, "%s: is %s, and no text to train on; give --data texts, rows or a token file",
                       path, find_own(path));
    }
    bool all = false;
    enum ox_status status =
        ox_unpack_start(path, sample->bytes, sizeof sample->bytes, &sample->count, &all, &sample->packed);
    if (status != OX_OK || sample->packed) {
        OX_THEN(status, check_packed(path, sample, by_name));
        free(sample);
        return status;
    }
    status = ox_file_read_start(path, (char *)sample->bytes, sizeof sample->bytes, &sample->file_bytes);
    sample->count = (size_t)ox_min_u64(sample->file_bytes, sizeof sample->bytes);
    const struct form *const form = status == OX_OK ? find_form(path, sample, by_name) : NULL;
    if (form != NULL) {
        snprintf(command, sizeof command, form->command, path);
        status = form->command == no_command
                     ? ox_fail(OX_E_CONFIG, "%s: is %s, which is not read; keep it elsewhere", path, form->what)
                     : ox_fail(OX_E_CONFIG, "%s: is %s, which is not read; make JSON lines or text of it: %s", path,
                               form->what, command);
    }
    OX_THEN(status, check_megatron(path, sample));
    OX_THEN(status, check_binary(path, sample));
    free(sample);
    return status;
}
