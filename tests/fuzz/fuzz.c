/* Owns the files of an input, and how a broken promise ends the program. */
#include "tests/fuzz/fuzz.h"

#include "base/file.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const struct fuzz_target fuzz_targets[] = {
    {"cache", fuzz_cache, FUZZ_BYTES},
    {"chat", fuzz_chat, FUZZ_LINES},
    {"data", fuzz_data, FUZZ_BYTES},
    {"documents", fuzz_documents, FUZZ_LINES},
    {"hf", fuzz_hf, FUZZ_PARTS},
    {"jinja", fuzz_jinja, FUZZ_PARTS},
    {"manifest", fuzz_manifest, FUZZ_PARTS},
    {"model", fuzz_model, FUZZ_PARTS},
    {"safetensors", fuzz_safetensors, FUZZ_HEADER},
    {"tokenizer", fuzz_tokenizer, FUZZ_PARTS},
    {"yaml", fuzz_yaml, FUZZ_BYTES},
};
const size_t fuzz_target_count = sizeof fuzz_targets / sizeof *fuzz_targets;

bool fuzz_accepted;

void fuzz_broken(const char *condition, const char *file, int line) {
    fprintf(stderr, "%s:%d: broken promise: %s\n  last error: %s\n", file, line, condition, ox_error_text());
    abort();
}

void fuzz_check_failure(enum ox_status status, const char *where) {
    const char *const text = ox_error_text();
    FUZZ_CHECK(status > OX_OK && status < OX_STATUS_COUNT);
    FUZZ_CHECK(text[0] != '\0' && strlen(text) < OX_ERROR_TEXT_BYTES);
    FUZZ_CHECK(strstr(text, where) != NULL);
}

const char *fuzz_path(const char *name) {
    char path[OX_PATH_BYTES], folder[OX_PATH_BYTES];
    REQUIRE_OK(ox_path_join(test_folder(), name, path));
    memcpy(folder, path, sizeof folder);
    *strrchr(folder, '/') = '\0';
    REQUIRE_OK(ox_folder_make(folder));
    char *const copy = strdup(path);
    FUZZ_CHECK(copy != NULL);
    return copy;
}

void fuzz_write(const char *path, const void *data, size_t bytes) {
    /* Cut at its end instead of at its start, the file keeps its memory. */
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0);
    for (size_t done = 0; done < bytes;) {
        const ssize_t part = write(fd, (const char *)data + done, bytes - done);
        FUZZ_CHECK(part > 0);
        done += (size_t)part;
    }
    FUZZ_CHECK(ftruncate(fd, (off_t)bytes) == 0);
    close(fd);
}

void fuzz_remove(const char *path) {
    unlink(path);
}

void fuzz_split(const uint8_t *data, size_t bytes, struct fuzz_part *parts, size_t part_count) {
    static const char separator[] = FUZZ_SEPARATOR;
    const size_t separator_bytes = sizeof separator - 1;
    const char *text = (const char *)data;
    for (size_t i = 0; i < part_count; i++) {
        const char *const end =
            i + 1 < part_count && bytes > 0 ? memmem(text, bytes, separator, separator_bytes) : NULL;
        const size_t part = end != NULL ? (size_t)(end - text) : bytes;
        const size_t taken = end != NULL ? part + separator_bytes : bytes;
        parts[i] = (struct fuzz_part){text, part};
        text = bytes > 0 ? text + taken : text;
        bytes -= taken;
    }
}

void fuzz_write_part(const char *path, const struct fuzz_part *part) {
    if (part->bytes > 0) {
        fuzz_write(path, part->text, part->bytes);
    } else {
        fuzz_remove(path);
    }
}
