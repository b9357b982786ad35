/* Files: paths, whole-file writes that are atomic, copies, folders made, removed, swept and committed, and what is
 * refused. */
#include "base/file.h"
#include "base/log.h"
#include "tests/kit/files.h"
#include "tests/kit/log.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *path_a, *path_b;

static void expect_content(const char *path, const char *text) {
    char *data = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read(path, 1 << 20, &data, &bytes));
    CHECK(bytes == strlen(text) && strcmp(data, text) == 0);
    free(data);
}

static void test_paths(void) {
    char out[OX_PATH_BYTES], longest[OX_PATH_BYTES];
    REQUIRE_OK(ox_path_join("a", "b", out));
    CHECK(strcmp(out, "a/b") == 0);
    REQUIRE_OK(ox_path_join("/", "b", out));
    CHECK(strcmp(out, "/b") == 0);
    REQUIRE_OK(ox_path_join("", "b", out));
    CHECK(strcmp(out, "b") == 0);
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    CHECK(ox_path_join("a", longest, out) == OX_E_CONFIG);
    struct ox_file_writer writer;
    char *const longer = malloc(OX_PATH_BYTES + 10);
    memset(longer, 'x', OX_PATH_BYTES + 9);
    longer[OX_PATH_BYTES + 9] = '\0';
    CHECK(ox_file_create(longer, 0, &writer) == OX_E_CONFIG && writer.fd == -1);
    CHECK(strstr(ox_error_text(), "the path is longer than 4095 bytes") != NULL);
    CHECK(ox_file_replace(longer, "x", 1) == OX_E_CONFIG && ox_file_replace("", "x", 1) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "a path of 0 bytes cannot be used") != NULL);
    CHECK(ox_folder_commit(longer, "a") == OX_E_CONFIG && ox_folder_make("") == OX_E_CONFIG);
    path_a = test_path("nowhere");
    CHECK(ox_folder_sync(path_a) == OX_E_CONFIG);
    free(longer);
}

/* A name without a folder is one in the folder where the program is. */
static void test_bare_names(void) {
    char before[OX_PATH_BYTES];
    CHECK(getcwd(before, sizeof before) != NULL && chdir(test_folder()) == 0);
    REQUIRE_OK(ox_file_replace("bare", "here", 4));
    CHECK(chdir(before) == 0);
    path_a = test_path("bare");
    expect_content(path_a, "here");
    CHECK(unlink(path_a) == 0);
}

/* Names of temporary files that others left are stepped over; where no name is free, that is said. */
static void test_taken_names(void) {
    enum { NAME_COUNT = 150 };
    char name[64], path[OX_PATH_BYTES];
    int refused = 0;
    const char *const folder = test_path("names");
    REQUIRE_OK(ox_folder_make(folder));
    for (int i = 0; i < NAME_COUNT; i++) { /* the program counts from 0 */
        snprintf(name, sizeof name, ".offload-%ld-%d.tmp", (long)getpid(), i);
        REQUIRE_OK(ox_path_join(folder, name, path));
        const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        CHECK(fd >= 0 && close(fd) == 0);
    }
    REQUIRE_OK(ox_path_join(folder, "file", path));
    for (int i = 0; i < 2 && !ox_path_exists(path); i++) {
        const enum ox_status status = ox_file_replace(path, "x", 1);
        CHECK(status == OX_OK || (status == OX_E_IO && strstr(ox_error_text(), "no free temporary name") != NULL));
        refused += status != OX_OK;
    }
    CHECK(refused == 1);
    expect_content(path, "x");
    CHECK(files_count(folder, "", "") == NAME_COUNT + 1);
    REQUIRE_OK(ox_folder_remove(folder));
}

static void test_replace_and_copy(void) {
    path_a = test_path("a");
    REQUIRE_OK(ox_file_replace(path_a, "one", 3));
    expect_content(path_a, "one");
    REQUIRE_OK(ox_file_replace(path_a, "second", 6));
    expect_content(path_a, "second");
    REQUIRE_OK(ox_file_replace(path_a, "", 0));
    expect_content(path_a, "");

    char *const large = malloc((3 << 20) + 17), *copy = NULL;
    size_t bytes = 0;
    for (size_t i = 0; i < (3 << 20) + 17; i++) {
        large[i] = (char)(i * 7 + (i >> 12));
    }
    REQUIRE_OK(ox_file_replace(path_a, large, (3 << 20) + 17));
    path_b = test_path("b");
    REQUIRE_OK(ox_file_copy(path_a, path_b));
    REQUIRE_OK(ox_file_read(path_b, (3 << 20) + 17, &copy, &bytes));
    CHECK(bytes == (3 << 20) + 17 && memcmp(copy, large, bytes) == 0);
    free(copy);
    CHECK(ox_file_read(path_b, (3 << 20) + 16, &copy, &bytes) == OX_E_CONFIG);
    free(large);

    /* A name as long as the file system allows leaves no room for a suffix. */
    char name[256];
    memset(name, 'n', 255);
    name[255] = '\0';
    path_b = test_path(name);
    REQUIRE_OK(ox_file_replace(path_b, "long", 4));
    expect_content(path_b, "long");
    CHECK(unlink(path_b) == 0);
    CHECK(files_count(test_folder(), "", "") == 2);
}

/* Written as root, a device in the place of a result would be gone for the whole machine. */
static void test_devices_stay(void) {
    struct stat info;
    const char *const pipe = test_path("pipe-that-stays");
    CHECK(mkfifo(pipe, 0600) == 0);
    CHECK(ox_file_replace(pipe, "one", 3) == OX_E_CONFIG && strstr(ox_error_text(), "is a FIFO") != NULL);
    CHECK(ox_file_replace_unsynced(pipe, "one", 3) == OX_E_CONFIG);
    CHECK(lstat(pipe, &info) == 0 && S_ISFIFO(info.st_mode));
    CHECK(ox_file_replace("/dev/full", "one", 3) == OX_E_CONFIG && strstr(ox_error_text(), "is a device") != NULL);
    CHECK(unlink(pipe) == 0);
}

static void test_refusals(void) {
    char *data = NULL;
    size_t bytes = 0;
    path_b = test_path("missing");
    CHECK(ox_file_copy(path_b, path_a) == OX_E_CONFIG);
    path_b = test_path("no/such");
    CHECK(ox_file_copy(path_a, path_b) == OX_E_CONFIG);
    path_b = test_path("missing");
    CHECK(ox_file_read(path_b, 10, &data, &bytes) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), path_b) != NULL);
    CHECK(ox_file_read(test_folder(), 10, &data, &bytes) == OX_E_CONFIG);
    path_b = test_path("fifo");
    CHECK(mkfifo(path_b, 0600) == 0);
    CHECK(ox_file_read(path_b, 10, &data, &bytes) == OX_E_CONFIG);
    CHECK(unlink(path_b) == 0);

    /* A failed replacement leaves no temporary file behind. */
    const unsigned before = files_count(test_folder(), "", "");
    path_b = test_path("taken");
    CHECK(mkdir(path_b, 0700) == 0);
    CHECK(ox_file_replace(path_b, "x", 1) != OX_OK);
    CHECK(ox_file_copy(path_a, path_b) != OX_OK);
    CHECK(files_count(test_folder(), "", "") == before + 1);
    CHECK(rmdir(path_b) == 0);
    path_b = test_path("no/such");
    CHECK(ox_file_replace(path_b, "x", 1) == OX_E_CONFIG);

    /* A link at the target's place is replaced, not written through. */
    path_b = test_path("link");
    CHECK(symlink(path_a, path_b) == 0);
    REQUIRE_OK(ox_file_replace(path_a, "target", 6));
    REQUIRE_OK(ox_file_replace(path_b, "new", 3));
    expect_content(path_a, "target");
    expect_content(path_b, "new");
}

static void test_writer(void) {
    struct ox_file_writer writer;
    path_b = test_path("stream");
    REQUIRE_OK(ox_file_create(path_b, 8192, &writer));
    REQUIRE_OK(ox_file_write(&writer, "end", 3, 8189));
    REQUIRE_OK(ox_file_write(&writer, "start", 5, 0));
    CHECK(writer.bytes_written == 8);
    REQUIRE_OK(ox_file_finish(&writer));
    struct stat info;
    CHECK(stat(path_b, &info) == 0 && info.st_size == 8192);
    CHECK(ox_file_create(path_b, 0, &writer) == OX_E_CONFIG); /* never over an existing file */
    ox_file_discard(&writer);
    CHECK(ox_path_is_file(path_b));

    char text[6];
    const int fd = open(path_b, O_RDONLY);
    REQUIRE_OK(ox_file_read_at(fd, path_b, text, 3, 8189));
    CHECK(memcmp(text, "end", 3) == 0);
    CHECK(ox_file_read_at(fd, path_b, text, 6, 8189) == OX_E_CORRUPT);
    close(fd);

    /* More than any disk has: refused with both figures, and nothing is left. */
    path_b = test_path("huge");
    CHECK(ox_file_create(path_b, UINT64_MAX, &writer) == OX_E_CONFIG && !ox_path_is_file(path_b));
    CHECK(strstr(ox_error_text(), "bytes cannot exist") != NULL);
    CHECK(ox_file_create(path_b, UINT64_C(1) << 60, &writer) != OX_OK);
    CHECK(!ox_path_is_file(path_b));
    /* A limit on the size of files acts like a full disk in mid-write. */
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {.rlim_cur = 4096, .rlim_max = RLIM_INFINITY}, old;
    CHECK(getrlimit(RLIMIT_FSIZE, &old) == 0);
    limit.rlim_max = old.rlim_max;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    char block[5000] = {0};
    const unsigned before = files_count(test_folder(), "", "");
    CHECK(ox_file_replace(path_b, block, sizeof block) == OX_E_IO);
    CHECK(ox_file_copy("/proc/self/exe", path_b) == OX_E_IO);
    CHECK(files_count(test_folder(), "", "") == before);
    CHECK(setrlimit(RLIMIT_FSIZE, &old) == 0);
}

static void test_folders(void) {
    char file[OX_PATH_BYTES];
    const char *deep = test_path("x/y/z/");
    REQUIRE_OK(ox_folder_make(deep));
    REQUIRE_OK(ox_folder_make(deep));
    CHECK(ox_path_is_folder(deep));
    REQUIRE_OK(ox_path_join(deep, "f", file));
    REQUIRE_OK(ox_file_replace(file, "f", 1));
    CHECK(ox_folder_make(file) == OX_E_CONFIG);

    const char *const moved = test_path("x/moved");
    REQUIRE_OK(ox_folder_commit(deep, moved));
    CHECK(!ox_path_is_folder(deep) && ox_path_is_folder(moved));
    REQUIRE_OK(ox_folder_make(deep));
    CHECK(ox_folder_commit(deep, moved) ==
          OX_E_CONFIG); /* never over an existing folder, even an empty one */
    CHECK(ox_path_is_folder(deep));

    /* A link inside is removed and its target stays; so does the target of a link in place of the folder. */
    const char *link;
    const char *const outside = test_path("outside");
    REQUIRE_OK(ox_folder_make(outside));
    REQUIRE_OK(ox_path_join(outside, "kept", file));
    REQUIRE_OK(ox_file_replace(file, "kept", 4));
    link = test_path("x/link");
    CHECK(symlink(outside, link) == 0);
    path_b = test_path("x");
    REQUIRE_OK(ox_folder_remove(path_b));
    CHECK(!ox_path_is_folder(path_b));
    expect_content(file, "kept");
    link = test_path("link-to-folder");
    CHECK(symlink(outside, link) == 0);
    CHECK(ox_folder_remove(link) == OX_E_CONFIG);
    expect_content(file, "kept");
    REQUIRE_OK(ox_folder_remove(path_b)); /* gone already */

    /* Deeper than is removed: refused, and it stays. */
    char levels[512] = "levels";
    for (size_t i = 0; i < 201; i++) {
        memcpy(levels + strlen(levels), "/d", 3);
    }
    deep = test_path(levels);
    REQUIRE_OK(ox_folder_make(deep));
    CHECK(ox_folder_remove(test_path("levels")) == OX_E_CONFIG && ox_path_is_folder(deep));
    CHECK(strstr(ox_error_text(), "levels: cannot list a folder in it: Too many levels") != NULL);
    REQUIRE_OK(ox_folder_remove(test_path("levels/d/d")));
    REQUIRE_OK(ox_folder_remove(test_path("levels")));

    uint64_t available = 0;
    REQUIRE_OK(ox_folder_free_bytes(test_folder(), &available));
    CHECK(available > 0);
    CHECK(ox_folder_free_bytes(path_b, &available) == OX_E_CONFIG);
}

/* Folders made for nothing are removed again, and nothing else. */
static void test_unmake(void) {
    size_t existing = 0;
    const char *const there = test_path("unmade");
    REQUIRE_OK(ox_folder_make(there));
    const char *const deep = test_path("unmade/a//b/c/");
    REQUIRE_OK(ox_folder_make_undoable(deep, &existing));
    CHECK(ox_path_is_folder(deep) && existing == strlen(there));
    ox_folder_unmake(deep, existing);
    CHECK(ox_path_is_folder(there) && files_count(there, "", "") == 0);
    REQUIRE_OK(ox_folder_make_undoable(deep, &existing));
    const char *const other = test_path("unmade/a/file");
    REQUIRE_OK(ox_file_replace(other, "x", 1));
    ox_folder_unmake(deep, existing);
    CHECK(ox_path_is_file(other) && !ox_path_exists(test_path("unmade/a/b")));
    REQUIRE_OK(ox_folder_make_undoable(there, &existing));
    ox_folder_unmake(there, existing);
    CHECK(ox_path_is_folder(there)); /* it was there before */
    REQUIRE_OK(ox_folder_remove(there));
}

/* Files left by a killed process are removed; files that only look like them stay. */
static void test_sweep(void) {
    static const char *const names[] = {".offload-12-0.tmp", ".offload-12-7.tmp", ".offload-012-0.tmp",
                                        ".offload-1.tmp",    ".offload-1-2.tmp2", ".offload-x-1.tmp",
                                        "offload-1-2.tmp",   ".offload-1-2"};
    char name[64];
    const char *const folder = test_path("swept");
    REQUIRE_OK(ox_folder_make(folder));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(name, sizeof name, "swept/%s", names[i]);
        REQUIRE_OK(ox_file_replace(test_path(name), "x", 1));
    }
    ox_folder_sweep(folder);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(name, sizeof name, "swept/%s", names[i]);
        CHECK(ox_path_exists(test_path(name)) == (i >= 2));
    }
    ox_folder_sweep(test_path("swept/nothing"));
    /* In a folder that others use: by age, and by the process. One that has ended and been waited for has no number. */
    const time_t now = time(NULL);
    const pid_t ended = fork();
    if (ended == 0) {
        _exit(0);
    }
    CHECK(ended > 0 && waitpid(ended, NULL, 0) == ended);
    const struct {
        pid_t pid;
        time_t age;
        bool stays;
    } shared[] = {{getpid(), 0, true}, {getpid(), 3600, true}, {getpid(), 100000, false}, {ended, 0, true},
                  {ended, 3600, false}};
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        const struct timespec then[2] = {{.tv_sec = now - shared[i].age}, {.tv_sec = now - shared[i].age}};
        snprintf(name, sizeof name, "swept/.offload-%ld-%zu.tmp", (long)shared[i].pid, i);
        REQUIRE_OK(ox_file_replace(test_path(name), "x", 1));
        CHECK(utimensat(AT_FDCWD, test_path(name), then, 0) == 0);
        ox_folder_sweep_shared(folder);
        CHECK(ox_path_exists(test_path(name)) == shared[i].stays);
    }
    REQUIRE_OK(ox_folder_remove(folder));
}

static void refused_input(const char *path, const char *words) {
    int fd = -1;
    uint64_t bytes = 0;
    CHECK(ox_file_open_input(path, &fd, &bytes) == OX_E_CONFIG && fd == -1);
    if (strstr(ox_error_text(), words) == NULL) {
        printf("expected '%s', got: %s\n", words, ox_error_text());
        test_failure_count++;
    }
}

static void test_inputs(void) {
    int fd = -1;
    uint64_t bytes = 0;
    path_a = test_path("input");
    REQUIRE_OK(ox_file_replace(path_a, "12345", 5));
    path_b = test_path("input-link");
    CHECK(symlink("input", path_b) == 0);
    REQUIRE_OK(ox_file_open_input(path_b, &fd, &bytes));
    CHECK(fd >= 0 && bytes == 5);
    close(fd);
    path_b = test_path("lost");
    CHECK(symlink("nowhere", path_b) == 0 && ox_path_exists(path_b) && !ox_path_is_file(path_b));
    refused_input(path_b, "lost: is a link to nowhere, which does not exist");
    path_b = test_path("pipe");
    CHECK(mkfifo(path_b, 0600) == 0);
    refused_input(path_b, "pipe: is a FIFO; only regular files are read");
    refused_input("/dev/null", "/dev/null: is a device; only regular files are read");
    refused_input(test_folder(), "is a folder; only regular files are read");
    path_b = test_path("absent");
    refused_input(path_b, "absent: cannot open: No such file");
    CHECK(!ox_path_exists(path_b));
    /* A file where a folder should be made, and a link that leads to none. */
    path_b = test_path("input/below");
    CHECK(ox_folder_make(path_b) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "input: is a file where a folder is needed") != NULL);
    path_b = test_path("lost");
    CHECK(ox_folder_make(path_b) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "lost: is a link, but not to a folder") != NULL);
}

static void announced(const char *path, mode_t mode, const char *announced_path, int expected) {
    log_warnings = 0;
    CHECK(chmod(path, mode) == 0);
    ox_path_warn_shared(announced_path);
    if (log_warnings != expected) {
        printf("%s with mode %o: %d warnings\n", path, mode, log_warnings);
        test_failure_count++;
    }
}

static void test_shared(void) {
    log_count_warnings("any user of this machine can change it");
    const char *const folder = test_path("shared");
    REQUIRE_OK(ox_folder_make(folder));
    const char *const file = test_path("shared/file");
    REQUIRE_OK(ox_file_replace(file, "x", 1));
    const char *const other = test_path("shared/other");
    REQUIRE_OK(ox_file_replace(other, "x", 1));
    announced(file, 0644, file, 0);
    announced(file, 0664, folder, 0);
    announced(folder, 01777, folder, 0); /* sticky: other users may add files, but not replace existing ones */
    announced(folder, 01777, file, 0);
    announced(folder, 0777, file, 1);
    announced(folder, 0777, file, 0); /* once */
    announced(folder, 0777, folder, 1);
    announced(folder, 0700, other, 0);
    announced(other, 0666, other, 1);
    announced(other, 0666, "/nonexistent", 0);
    ox_path_warn_shared("/dev/null");
    CHECK(log_warnings == 0);
    ox_log_set_sink(NULL, NULL);
}

int main(void) {
    test_taken_names();
    test_paths();
    test_bare_names();
    test_replace_and_copy();
    test_devices_stay();
    test_refusals();
    test_writer();
    test_folders();
    test_unmake();
    test_sweep();
    test_inputs();
    test_shared();
    return test_end();
}
