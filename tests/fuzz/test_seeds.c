/* Every fuzz target with its committed seeds, without clang: a seed named good-* is opened to its end, one named bad-*
 * is not. With arguments, TARGET FILE..., it runs that target alone on those files, or on all files of a folder. */
#include "tests/fuzz/fuzz.h"

#include "base/file.h"
#include "tests/kit/test.h"

#include <dirent.h>
#include <string.h>

enum { SEED_BYTES_MAX = 16 << 20 };

static size_t seed_count;

static void run_file(const struct fuzz_target *target, const char *path) {
    char *text = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read(path, SEED_BYTES_MAX, &text, &bytes));
    /* A copy of exactly that size, so that a sanitizer sees reads beyond it. */
    uint8_t *const data = malloc(bytes + (bytes == 0));
    FUZZ_CHECK(data != NULL);
    memcpy(data, text, bytes);
    free(text);
    printf("%s\n", path);
    fflush(stdout); /* the last line names the input that ends the program */
    CHECK(target->one(data, bytes) == 0);
    const char *const name = strrchr(path, '/') + 1;
    if ((strncmp(name, "good-", 5) == 0 && !fuzz_accepted) || (strncmp(name, "bad-", 4) == 0 && fuzz_accepted)) {
        printf("  is %s: %s\n", fuzz_accepted ? "accepted" : "refused", ox_error_text());
        test_failure_count++;
    }
    free(data);
    seed_count++;
}

static void run_folder(const struct fuzz_target *target, const char *path) {
    struct dirent **list = NULL;
    const int count = scandir(path, &list, NULL, alphasort);
    CHECK(count >= 0);
    for (int i = 0; i < count; i++) {
        char file[OX_PATH_BYTES];
        REQUIRE_OK(ox_path_join(path, list[i]->d_name, file));
        if (ox_path_is_file(file)) {
            run_file(target, file);
        }
        free(list[i]);
    }
    free(list);
}

static int run_arguments(int argc, char **argv) {
    for (size_t i = 0; i < fuzz_target_count; i++) {
        for (int j = 2; j < argc && strcmp(fuzz_targets[i].name, argv[1]) == 0; j++) {
            if (ox_path_is_folder(argv[j])) {
                run_folder(&fuzz_targets[i], argv[j]);
            } else {
                run_file(&fuzz_targets[i], argv[j]);
            }
        }
    }
    CHECK(seed_count > 0);
    return test_end();
}

int main(int argc, char **argv) {
    if (argc > 2) {
        return run_arguments(argc, argv);
    }
    for (size_t i = 0; i < fuzz_target_count; i++) {
        char path[OX_PATH_BYTES];
        seed_count = 0;
        REQUIRE_OK(ox_path_join("tests/fuzz/seeds", fuzz_targets[i].name, path));
        run_folder(&fuzz_targets[i], path);
        CHECK(seed_count > 3);
        fuzz_targets[i].one((const uint8_t *)"", 0);
    }
    return test_end();
}
