/* Chooses which files of --data are read, and as what: looks at names and first bytes, and leaves out of a folder what
 * is no data, or not asked for. */
#include "engine/data/corpus_internal.h"

#include "base/bytes.h"
#include "base/log.h"
#include "engine/data/foreign_files.h"
#include "engine/data/unpack.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- names --------------------------------------------------------------------------------------------------- */

enum { NAME_WORDS = 16, WORD_BYTES = 24 };

/* The words of a name, in lower case, without endings, numbers and versions behind the last. */
struct words {
    char list[NAME_WORDS][WORD_BYTES];
    size_t count;
};

static bool is_any(const char *word, const char *const *list) {
    for (; *list != NULL && strcmp(word, *list) != 0; list++) {
    }
    return *list != NULL;
}

static bool is_number(const char *word) {
    word += *word == 'v';
    return word[strspn(word, "0123456789")] == '\0';
}

static void split_name(const char *name, size_t bytes, struct words *out) {
    static const char *const endings[] = {"jsonl", "ndjson", "json", "txt",    "text", "md",      "gz",    "zst",
                                          "bz2",   "xz",     "zip",  "tar",    "csv",  "tsv",     "arrow", "parquet",
                                          "bin",   "idx",    "npy",  "tokens", "of",   NULL};
    size_t used = 0;
    out->count = 0;
    for (size_t i = 0; i <= bytes && out->count < NAME_WORDS; i++) {
        const char c = i < bytes ? name[i] : '.';
        if (strchr("-_.", c) == NULL && used + 1 < WORD_BYTES) {
            out->list[out->count][used++] = (char)(c >= 'A' && c <= 'Z' ? c + 'a' - 'A' : c);
        } else if (used > 0 && strchr("-_.", c) != NULL) {
            out->list[out->count++][used] = '\0';
            used = 0;
        }
    }
    while (out->count > 1 && (is_any(out->list[out->count - 1], endings) || is_number(out->list[out->count - 1]))) {
        out->count--;
    }
}

/* Whether a file or folder is called like a part of a data set that is not for training: test.jsonl, val,
 * dev-v2.0.json, foo-test-00000-of-00001.jsonl. */
static bool is_split_name(const char *name, size_t bytes) {
    static const char *const splits[] = {"test",    "testing", "testset", "val",  "valid",      "validation", "valset",
                                         "dev",     "devset",  "eval",    "evaluation", "evalset", "heldout", "holdout",
                                         NULL};
    static const char *const training[] = {"train", "training", NULL};
    struct words words;
    split_name(name, bytes, &words);
    for (size_t i = 0; i < words.count; i++) {
        if (is_any(words.list[i], training)) {
            return false;
        }
    }
    return words.count > 0 && (is_any(words.list[words.count - 1], splits) ||
                               (words.count <= 2 && is_any(words.list[0], splits)));
}

static bool is_split(const char *path) {
    bool is = false;
    for (const char *name = path; !is && *name != '\0'; name += strspn(name, "/")) {
        const size_t bytes = strcspn(name, "/");
        is = is_split_name(name, bytes);
        name += bytes;
    }
    return is;
}

static const char *name_of(const char *path) {
    const char *const slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Whether a file tells of the data. */
static bool is_about(const char *path) {
    static const char *const stems[] = {"readme",    "license",      "licence",      "copying",      "notice",
                                        "citation",  "changelog",    "datacard",     "dataset_card", "croissant",
                                        "contributing", "requirements", NULL};
    static const char *const names[] = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json",
                                        "metadata.json",     "checksums.txt",      "md5sums",           "sha256sums",
                                        NULL};
    char name[64] = "";
    const char *const given = name_of(path);
    for (size_t i = 0; i + 1 < sizeof name && given[i] != '\0'; i++) {
        name[i] = (char)(given[i] >= 'A' && given[i] <= 'Z' ? given[i] + 'a' - 'A' : given[i]);
    }
    if (is_any(name, names)) {
        return true;
    }
    name[strcspn(name, ".")] = '\0';
    return is_any(name, stems) || (strncmp(given, "README", 6) == 0) || strncmp(given, "LICEN", 5) == 0;
}

/* Whether the path ends so, and is longer; of a compressed file the name before the ending of compression counts. */
static bool ends_inside(const char *path, const char *ending) {
    const size_t bytes = ox_unpack_name_bytes(path), length = strlen(ending);
    return bytes > length && strncmp(path + bytes - length, ending, length) == 0;
}

static bool ends_like_rows(const char *path) {
    return ends_inside(path, ".jsonl") || ends_inside(path, ".ndjson") || ends_inside(path, ".json");
}

/* ---- leaving out --------------------------------------------------------------------------------------------- */

static const char *ending_of(const char *path) {
    const char *const name = name_of(path), *const dot = strrchr(name, '.');
    return dot != NULL && dot > name ? dot : "";
}

/* A README.md among other .md files is a text like them. */
static bool is_one_of_many(const struct ox_files *files, uint32_t idx) {
    const char *const ending = ending_of(files->paths[idx]);
    bool is = false;
    for (uint32_t i = 0; i < files->count && strcmp(ending, ".md") == 0 && !is; i++) {
        is = !is_about(files->paths[i]) && strcmp(ending_of(files->paths[i]), ending) == 0;
    }
    return is;
}

static void leave_about(struct ox_files *files, enum ox_left *reasons) {
    for (uint32_t i = 0; i < files->count; i++) {
        reasons[i] = is_about(files->paths[i]) && !is_one_of_many(files, i) ? OX_LEFT_ABOUT : OX_LEFT_COUNT;
    }
    ox_files_leave(files, reasons);
}

/* Training leaves out test and validation splits; an evaluation takes them alone, where there are any. */
static void leave_splits(struct ox_files *files, bool evaluates, enum ox_left *reasons) {
    bool any = false;
    for (uint32_t i = 0; i < files->count; i++) {
        const bool is = is_split(ox_files_name(files, i));
        reasons[i] = is == evaluates ? OX_LEFT_COUNT : evaluates ? OX_LEFT_REST : OX_LEFT_SPLIT;
        any = any || is;
    }
    if (any) {
        ox_files_leave(files, reasons);
    }
}

/* Refuses a folder of which everything is left out; one that is empty is refused where it is read. */
static enum ox_status check_left(const struct ox_files *files) {
    static const enum ox_left order[] = {OX_LEFT_SPLIT, OX_LEFT_ABOUT, OX_LEFT_HIDDEN, OX_LEFT_LINK};
    static const char *const whys[] = {"looks like a test or validation split", "tells of data and holds none",
                                       "has a name that begins with . or _", "is a symbolic link"};
    for (size_t i = 0; files->count == 0 && i < sizeof order / sizeof *order; i++) {
        if (files->left[order[i]].count > 0) {
            return ox_fail(OX_E_CONFIG, "%s: nothing in it is read: what %s is left out (%s); name a file itself to "
                           "read it", files->root, whys[i], files->left[order[i]].names);
        }
    }
    return OX_OK;
}

void ox_inputs_say_left(const struct ox_files *files) {
    static const struct {
        enum ox_left reason;
        enum ox_log_level level;
        const char *why;
    } whys[] = {
        {OX_LEFT_HIDDEN, OX_LOG_INFO, "names that begin with . or _"},
        {OX_LEFT_ABOUT, OX_LOG_INFO, "no data, by their names"},
        {OX_LEFT_FORMAT, OX_LOG_WARN, "another format than the rows beside them"},
        {OX_LEFT_SPLIT, OX_LOG_WARN, "a test or validation split, by their names; to train on them too, name them with "
                                     "--data"},
        {OX_LEFT_REST, OX_LOG_WARN, "beside a test or validation split, which is evaluated; name them to evaluate "
                                    "them"},
    };
    const uint32_t links = files->left[OX_LEFT_LINK].count;
    for (size_t i = 0; i < sizeof whys / sizeof *whys; i++) {
        const struct ox_files_left *const left = &files->left[whys[i].reason];
        if (left->count > 0) {
            ox_log(whys[i].level, "%s: left out: %s (%" PRIu32 " in all: %s)", files->root, left->names, left->count,
                   whys[i].why);
        }
    }
    if (links > 0) {
        ox_log(OX_LOG_WARN, "%s: %" PRIu32 " symbolic link%s in the folder %s left out", files->root, links,
               ox_plural(links), links == 1 ? "is" : "are");
    }
}

/* ---- formats ------------------------------------------------------------------------------------------------- */

/* How surely a file holds rows. */
enum rows { ROWS_NO, ROWS_ONE_OBJECT, ROWS_YES };

/* Looks into a .json, which holds rows if it has a list or several lines of objects; one object may be metadata. */
static enum rows rows_in(const char *start, size_t bytes, bool is_all) {
    static const char blanks[] = " \t\r\n\xef\xbb\xbf";
    size_t at = 0;
    while (at < bytes && start[at] != '\0' && strchr(blanks, start[at]) != NULL) {
        at++;
    }
    if (at == bytes || start[at] != '{') {
        return ROWS_YES;
    }
    const char *const newline = memchr(start + at, '\n', bytes - at);
    size_t next = newline != NULL ? (size_t)(newline - start) : bytes;
    size_t last = next;
    while (last > at && strchr(blanks, start[last - 1]) != NULL && start[last - 1] != '\0') {
        last--;
    }
    while (next < bytes && start[next] != '\0' && strchr(blanks, start[next]) != NULL) {
        next++;
    }
    if (newline == NULL) {
        return is_all ? ROWS_ONE_OBJECT : ROWS_YES;
    }
    return start[last - 1] == '}' && next < bytes && start[next] == '{' ? ROWS_YES : ROWS_ONE_OBJECT;
}

static enum ox_status find_rows(const char *path, enum rows *rows) {
    enum { START_BYTES = 4096 };
    char start[START_BYTES];
    size_t bytes = 0;
    bool is_all = false;
    *rows = ends_like_rows(path) ? ROWS_YES : ROWS_NO;
    if (!ends_inside(path, ".json")) {
        return OX_OK;
    }
    const enum ox_status status = ox_unpack_start(path, start, sizeof start, &bytes, &is_all, NULL);
    if (status == OX_OK) {
        *rows = rows_in(start, bytes, is_all);
    }
    return status;
}

/* Leaves out of a folder all files but those that hold rows at least so surely. */
static void leave_others(struct ox_files *files, const enum rows *rows, enum rows least, enum ox_left *reasons) {
    for (uint32_t i = 0; i < files->count; i++) {
        reasons[i] = rows[i] >= least ? OX_LEFT_COUNT : OX_LEFT_FORMAT;
    }
    ox_files_leave(files, reasons);
}

/* Whether a folder holds rows, beside which files of other formats are left out. A .json of one object among others may
 * be rows or not. */
static enum ox_status choose_rows(struct ox_files *files, bool asked, enum ox_left *reasons, bool *are_rows) {
    enum rows *const rows = calloc((size_t)files->count + 1, sizeof *rows);
    uint32_t counts[ROWS_YES + 1] = {0}, first[ROWS_YES + 1] = {0};
    enum ox_status status = rows != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "%s: no memory to list the files", files->root);
    for (uint32_t i = files->count; i-- > 0 && status == OX_OK;) {
        status = find_rows(files->paths[i], &rows[i]);
        counts[rows[i]]++;
        first[rows[i]] = i;
    }
    const bool any = counts[ROWS_YES] + counts[ROWS_ONE_OBJECT] > 0;
    const bool is_open = !asked && any && counts[ROWS_YES] == 0 && counts[ROWS_NO] > 0;
    *are_rows = asked || any;
    if (status == OX_OK && asked && files->is_folder && !any) {
        status = ox_fail(OX_E_CONFIG, "%s: has no files that end in .jsonl, .ndjson or .json and hold rows",
                         files->root);
    } else if (status == OX_OK && is_open) {
        status = ox_fail(OX_E_CONFIG,
                         "%s: has another format than %s; keep rows and texts in separate folders, or choose with "
                         "--data-format which to read",
                         files->paths[first[ROWS_NO]], files->paths[first[ROWS_ONE_OBJECT]]);
    } else if (status == OX_OK && *are_rows && files->is_folder) {
        leave_others(files, rows, asked || counts[ROWS_YES] == 0 ? ROWS_ONE_OBJECT : ROWS_YES, reasons);
    }
    free(rows);
    return status;
}

static enum ox_status check_foreign(const struct ox_files *files, bool by_name) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < files->count && status == OX_OK; i++) {
        status = ox_foreign_data_check(files->paths[i], by_name);
    }
    return status;
}

/* Bytes as tokens are those of the files, so compressed ones would not be those that are meant. */
static enum ox_status check_unpacked(const struct ox_files *files) {
    enum ox_status status = OX_OK;
    char start[1];
    for (uint32_t i = 0; i < files->count && status == OX_OK; i++) {
        size_t got = 0;
        bool all, packed = false;
        status = ox_unpack_start(files->paths[i], start, sizeof start, &got, &all, &packed);
        if (status == OX_OK && packed) {
            status = ox_fail(OX_E_CONFIG, "%s: is compressed, and its bytes would be the tokens; unpack it, or name a "
                             "tokenizer with --tokenizer", files->paths[i]);
        }
    }
    return status;
}

static enum ox_status choose_format(const struct ox_corpus_config *config, struct ox_inputs *out,
                                    enum ox_left *reasons) {
    const bool is_auto = config->format == OX_CORPUS_AUTO;
    bool rows = config->format == OX_CORPUS_ROWS;
    enum ox_status status = OX_OK;
    out->format = config->format;
    out->kind = OX_DATA_BYTES;
    if (is_auto || config->format == OX_CORPUS_TOKENS) {
        status = ox_data_kind_of_files(&out->files, &out->kind);
    }
    if (config->format == OX_CORPUS_TOKENS && status == OX_OK && out->kind == OX_DATA_BYTES) {
        return ox_fail(OX_E_CONFIG,
                       "%s: has no tokens in a known format (llm.c, llmq, this program's); make them with offload "
                       "tokenize, or read it as text",
                       config->path);
    }
    if (status != OX_OK || out->kind != OX_DATA_BYTES || config->format == OX_CORPUS_BYTES) {
        out->format = is_auto && status == OX_OK ? OX_CORPUS_TOKENS : out->format;
        return status;
    }
    if (is_auto || rows) {
        status = choose_rows(&out->files, rows, reasons, &rows);
    }
    OX_THEN(status, check_foreign(&out->files, is_auto));
    if (is_auto) {
        out->format = rows ? OX_CORPUS_ROWS : config->tokenizer[0] != '\0' ? OX_CORPUS_TEXT : OX_CORPUS_BYTES;
    }
    if (status == OX_OK && is_auto && out->format == OX_CORPUS_BYTES) {
        status = check_unpacked(&out->files);
    }
    return status;
}

/* ---- public -------------------------------------------------------------------------------------------------- */

enum ox_status ox_inputs_open(const struct ox_corpus_config *config, struct ox_inputs *out) {
    *out = (struct ox_inputs){0};
    enum ox_status status = ox_files_list(config->path, &out->files);
    if (status != OX_OK) {
        return status;
    }
    enum ox_left *const reasons = calloc((size_t)out->files.count + 1, sizeof *reasons);
    if (reasons == NULL) {
        status = ox_fail(OX_E_NOMEM, "%s: no memory to list the files", config->path);
    } else if (out->files.is_folder) {
        leave_about(&out->files, reasons);
        leave_splits(&out->files, config->evaluates, reasons);
        status = check_left(&out->files);
    }
    OX_THEN(status, choose_format(config, out, reasons));
    free(reasons);
    if (status != OX_OK) {
        ox_inputs_close(out);
    }
    return status;
}

void ox_inputs_close(struct ox_inputs *inputs) {
    ox_files_free(&inputs->files);
}
