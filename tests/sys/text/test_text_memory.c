/* Texts and rows of hostile shapes become tokens within the memory that a run announces, measured from outside, or are
 * refused with file and place. What fits has the same tokens at every budget. */
#include "base/bytes.h"
#include "base/pool.h"
#include "engine/data/data.h"
#include "engine/run/host_memory.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

enum { TIGHT_MIB = 8, AMPLE_MIB = 2048 };

static const char *model_path;
static struct sys_process process;

/* A file of `count` copies of a text, between two others. */
static const char *write_copies(const char *name, const char *before, const char *text, size_t count,
                                const char *after) {
    const char *const path = test_path(name);
    FILE *const file = fopen(path, "w");
    CHECK(file != NULL);
    fputs(before, file);
    for (size_t i = 0; i < count; i++) {
        fputs(text, file);
    }
    fputs(after, file);
    CHECK(fclose(file) == 0);
    return path;
}

static void tokenize(const char *data, unsigned host_mib, const char *cache) {
    struct sys_args args;
    files_remove_folder(cache);
    sys_args_begin(&args, "tokenize");
    sys_args_word(&args, "--model=%s", model_path);
    sys_args_word(&args, "--data=%s", data);
    sys_args_word(&args, "--data-cache=%s", test_path(cache));
    sys_args_word(&args, "--host-mem=%uMiB", host_mib);
    sys_args_add(&args, "--max-seq-length 16");
    sys_run(&args, &process);
    const uint64_t peak = (uint64_t)process.outcome.peak_kib * OX_KIB;
    const uint64_t announced = host_mib * OX_MIB + ox_fixed_overhead_bytes(ox_processor_count(), 0, 0);
    printf("%-12s --host-mem %4u MiB: status %d, peak %6.1f of %6.1f MiB\n", strrchr(data, '/') + 1, host_mib,
           process.outcome.exit_status, (double)peak / (double)OX_MIB, (double)announced / (double)OX_MIB);
    CHECK(peak <= announced);
}

/* Refused, with the place and the remedy; with more memory it is taken. */
static void check_refused(const char *data, const char *place) {
    tokenize(data, TIGHT_MIB, "cache");
    const char *const err = process.outcome.err;
    if (process.outcome.exit_status != 2 || strstr(err, place) == NULL || strstr(err, "raise --host-mem") == NULL ||
        strncmp(err, "offload: ", 9) != 0) {
        printf("expected a refusal at '%s', got %d:\n%s\n", place, process.outcome.exit_status, err);
        test_failure_count++;
    }
    CHECK(!files_exist("cache"));
}

/* Both caches have the same tokens and documents. */
static bool same_tokens(const char *a, const char *b) {
    enum { COUNT = 1 << 20 };
    struct ox_data *data[2] = {NULL, NULL};
    int32_t *const ids = calloc(2 * (size_t)COUNT, sizeof *ids);
    REQUIRE_OK(ox_data_open(files_find(a, "", ".tokens"), OX_DATA_CACHE, &data[0]));
    REQUIRE_OK(ox_data_open(files_find(b, "", ".tokens"), OX_DATA_CACHE, &data[1]));
    const uint64_t total = ox_data_token_count(data[0]);
    bool same = total > 0 && total == ox_data_token_count(data[1]) &&
                ox_data_document_count(data[0]) == ox_data_document_count(data[1]);
    for (uint64_t at = 0; same && at < total; at += COUNT) {
        const uint64_t count = ox_min_u64(COUNT, total - at);
        for (int i = 0; i < 2; i++) {
            REQUIRE_OK(ox_data_read(data[i], at, count, SYS_VOCAB, ids + i * (size_t)COUNT, NULL));
        }
        same = memcmp(ids, ids + COUNT, count * sizeof *ids) == 0;
    }
    ox_data_close(&data[0]);
    ox_data_close(&data[1]);
    free(ids);
    return same;
}

/* Taken within the budget, with the same tokens as with any memory. */
static void check_taken(const char *data) {
    tokenize(data, TIGHT_MIB, "cache");
    CHECK(process.outcome.exit_status == 0);
    printf("%s", process.outcome.exit_status == 0 ? "" : process.outcome.err);
    tokenize(data, AMPLE_MIB, "ample");
    CHECK(process.outcome.exit_status == 0);
    CHECK(same_tokens("cache", "ample"));
}

static void write_rows(FILE *file, unsigned count, size_t bytes, bool array) {
    fputs(array ? "[" : "", file);
    for (unsigned i = 0; i < count; i++) {
        fprintf(file, "%s{\"text\": \"%u ", i > 0 && array ? ",\n" : "", i);
        for (size_t k = 0; k < bytes; k += 8) {
            fprintf(file, "word%03zu ", (k + i) % 1000);
        }
        fputs(array ? "\"}" : "\"}\n", file);
    }
    fputs(array ? "]\n" : "", file);
}

static const char *write_rows_file(const char *name, unsigned count, size_t bytes) {
    const char *const path = test_path(name);
    FILE *const file = fopen(path, "w");
    CHECK(file != NULL);
    write_rows(file, count, bytes, strstr(name, ".jsonl") == NULL);
    CHECK(fclose(file) == 0);
    return path;
}

int main(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    test_skip("a sanitizer's own memory is not the program's");
#endif
    model_path = sys_write_speaker();
    const size_t cores = ox_processor_count(), big = (cores + 2) * (12 << 20);
    check_refused(write_copies("lines.txt", "", "\n\n\n\n", big / 4, ""), "lines.txt: ");
    CHECK(strstr(process.outcome.err, "begins at byte 0 and has no place to cut it") != NULL);
    check_refused(write_copies("letters.txt", "", "aaaa", big / 4, ""), "letters.txt: ");
    check_refused(write_copies("late.txt", "One line.\n", "aaaa", big / 4, ""), "begins at byte ");
    check_refused(write_rows_file("row.jsonl", 1, big), "row.jsonl");
    static const char two_rows[] = "{\"text\": \"a\"}\n{\"text\": \"b\", \"more\": [";
    check_refused(write_copies("values.jsonl", two_rows, "1,", big / 16, "1]}\n"), "values.jsonl:2: ");
    static const char two_lines[] = "A line that ends.\nAnd another one, longer, that ends too.\n";
    check_taken(write_copies("text.txt", "", two_lines, big / 64, ""));
    static const char *const forms[] = {"rows.jsonl", "array.json"};
    for (unsigned i = 0; i < 2; i++) {
        if (test_takes(i, 2)) {
            check_taken(write_rows_file(forms[i], 24, 1 << 20));
        }
    }
    return test_end();
}
