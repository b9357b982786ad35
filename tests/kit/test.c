#include "tests/kit/test.h"

#include "base/file.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int test_failure_count;

unsigned test_seed(int argc, char **argv) {
    const bool given = argc == 3 && strcmp(argv[1], "--seed") == 0;
    const unsigned seed = given ? (unsigned)strtoul(argv[2], NULL, 10) : (unsigned)(time(NULL) / 86400);
    printf("a sample, by seed %u%s\n", seed, given ? "" : " of the day (--seed)");
    return seed;
}

static unsigned asked_for(void) {
    const char *const all = getenv("OX_TEST_ALL");
    return all != NULL ? (unsigned)strtoul(all, NULL, 10) : 0;
}

bool test_all(void) {
    return asked_for() > 0;
}

bool test_deep(void) {
    return asked_for() > 1;
}

unsigned test_stride(unsigned quick) {
    return test_all() ? 1 : quick;
}

static unsigned of_name(void) {
    unsigned sum = 0;
    for (const char *c = program_invocation_short_name; *c != '\0'; c++) {
        sum = sum * 31 + (unsigned char)*c;
    }
    return sum;
}

unsigned test_first(unsigned quick) {
    static _Atomic unsigned asked;
    return (of_name() + asked++) % test_stride(quick);
}

bool test_takes(unsigned item, unsigned quick) {
    return (of_name() + item) % test_stride(quick) == 0;
}

int test_end(void) {
    if (test_failure_count > 0) {
        printf("%d checks failed\n", test_failure_count);
    }
    return test_failure_count > 0 ? 1 : 0;
}

void test_skip(const char *why) {
    printf("skipped: %s\n", why);
    exit(77);
}

static char folder[256];

static void remove_folder(void) {
    if (ox_folder_remove(folder) != OX_OK) {
        printf("%s: left behind: %s\n", folder, ox_error_text());
    }
}

const char *test_folder(void) {
    if (folder[0] == '\0') {
        const char *const root = getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp";
        snprintf(folder, sizeof folder, "%s/offload-test-XXXXXX", root);
        if (mkdtemp(folder) == NULL) {
            printf("cannot make a folder in %s\n", root);
            exit(1);
        }
        atexit(remove_folder);
    }
    return folder;
}

const char *test_data_folder(void) {
    const char *const path = getenv("OX_TEST_DATA") != NULL ? getenv("OX_TEST_DATA") : "../shared/data";
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode) ? path : NULL;
}

void test_build_path(const char *file, char out[PATH_MAX]) {
    const ssize_t length = readlink("/proc/self/exe", out, PATH_MAX - 64);
    out[length < 0 ? 0 : length] = '\0';
    char *tests = strstr(out, "/tests/");
    for (char *next = tests; next != NULL; next = strstr(tests + 1, "/tests/")) {
        tests = next;
    }
    if (tests == NULL) {
        printf("this program does not lie in build/tests, so it finds no %s\n", file);
        exit(1);
    }
    snprintf(tests, 64, "/%s", file);
}
