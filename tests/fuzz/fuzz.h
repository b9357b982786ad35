/* Shared by the fuzz targets. A target takes any bytes as the files that a user gets from elsewhere, opens them, and
 * ends the program when a promise of the reader does not hold. libFuzzer calls it through entry.c; test_seeds.c calls
 * it with the committed seeds, without clang. */
#ifndef OX_TESTS_FUZZ_FUZZ_H
#define OX_TESTS_FUZZ_FUZZ_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns 0, whether or not the input was opened. */
typedef int fuzz_one(const uint8_t *data, size_t bytes);

fuzz_one fuzz_cache, fuzz_chat, fuzz_data, fuzz_documents, fuzz_hf, fuzz_jinja, fuzz_manifest, fuzz_model,
    fuzz_safetensors, fuzz_tokenizer, fuzz_yaml;

/* Where an input holds JSON: in its parts, in its lines, or behind the length of a safetensors header. */
enum fuzz_form { FUZZ_BYTES, FUZZ_PARTS, FUZZ_LINES, FUZZ_HEADER };

struct fuzz_target {
    const char *name;
    fuzz_one *one;
    enum fuzz_form form;
};
extern const struct fuzz_target fuzz_targets[];
extern const size_t fuzz_target_count;

/* Whether the last input was opened to its end; set by the target. */
extern bool fuzz_accepted;

#define FUZZ_CHECK(condition) ((condition) ? (void)0 : fuzz_broken(#condition, __FILE__, __LINE__))
__attribute__((noreturn, cold)) void fuzz_broken(const char *condition, const char *file, int line);

/* Every failure has a status and a text that contains `where`. */
void fuzz_check_failure(enum ox_status status, const char *where);

/* `name` in the folder of this process, which exists, as do the folders in `name`. Memory of the program. */
const char *fuzz_path(const char *name);
void fuzz_write(const char *path, const void *data, size_t bytes);
void fuzz_remove(const char *path);

/* Several files in one input: parts with a line "%%" between them. */
#define FUZZ_SEPARATOR "\n%%\n"
struct fuzz_part {
    const char *text; /* not terminated by NUL */
    size_t bytes;
};
/* Splits an input into part_count parts: the last takes all the rest, and missing ones are empty. */
void fuzz_split(const uint8_t *data, size_t bytes, struct fuzz_part *parts, size_t part_count);
/* Writes the part as the file, or removes the file where the part is empty. */
void fuzz_write_part(const char *path, const struct fuzz_part *part);

/* Changes one text of JSON in the input so that it stays JSON (mutate.c). Returns the new size; 0 when there is none to
 * change, or no room. */
size_t fuzz_mutate_json(enum fuzz_form form, uint8_t *data, size_t bytes, size_t bytes_max, unsigned seed);

#endif
