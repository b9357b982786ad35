#include "base/file.h"
#include "tests/test.h"

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <dirent.h>
#include <signal.h>

static char path_a[OX_PATH_BYTES], path_b[OX_PATH_BYTES];

static const char *in_folder(const char *name, char *out) {
    REQUIRE_OK(ox_path_join(test_folder(), name, out));
    return out;
}

static int entries_of(const char *path) {
    int count = 0;
    DIR *const folder = opendir(path);
    while (folder != NULL && readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count - 2;
}

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
}

static void test_replace_and_copy(void) {
    in_folder("a", path_a);
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
    in_folder("b", path_b);
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
    REQUIRE_OK(ox_file_replace(in_folder(name, path_b), "long", 4));
    expect_content(path_b, "long");
    CHECK(unlink(path_b) == 0);
    CHECK(entries_of(test_folder()) == 2);
}

static void test_refusals(void) {
    char *data = NULL;
    size_t bytes = 0;
    CHECK(ox_file_read(in_folder("missing", path_b), 10, &data, &bytes) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), path_b) != NULL);
    CHECK(ox_file_read(test_folder(), 10, &data, &bytes) == OX_E_CONFIG);
    in_folder("fifo", path_b);
    CHECK(mkfifo(path_b, 0600) == 0);
    CHECK(ox_file_read(path_b, 10, &data, &bytes) == OX_E_CONFIG);
    CHECK(unlink(path_b) == 0);

    /* What cannot be replaced leaves no temporary file behind. */
    const int before = entries_of(test_folder());
    CHECK(mkdir(in_folder("taken", path_b), 0700) == 0);
    CHECK(ox_file_replace(path_b, "x", 1) != OX_OK);
    CHECK(ox_file_copy(path_a, path_b) != OX_OK);
    CHECK(entries_of(test_folder()) == before + 1);
    CHECK(rmdir(path_b) == 0);
    CHECK(ox_file_replace(in_folder("no/such", path_b), "x", 1) == OX_E_CONFIG);

    /* A link at the target's place is replaced, not written through. */
    in_folder("link", path_b);
    CHECK(symlink(path_a, path_b) == 0);
    REQUIRE_OK(ox_file_replace(path_a, "target", 6));
    REQUIRE_OK(ox_file_replace(path_b, "new", 3));
    expect_content(path_a, "target");
    expect_content(path_b, "new");
}

static void test_writer(void) {
    struct ox_file_writer writer;
    in_folder("stream", path_b);
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
    in_folder("huge", path_b);
    CHECK(ox_file_create(path_b, UINT64_C(1) << 60, &writer) != OX_OK);
    CHECK(!ox_path_is_file(path_b));
    /* A limit on the size of files acts like a full disk in mid-write. */
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {.rlim_cur = 4096, .rlim_max = RLIM_INFINITY}, old;
    CHECK(getrlimit(RLIMIT_FSIZE, &old) == 0);
    limit.rlim_max = old.rlim_max;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    char block[5000] = {0};
    const int before = entries_of(test_folder());
    CHECK(ox_file_replace(path_b, block, sizeof block) == OX_E_IO);
    CHECK(entries_of(test_folder()) == before);
    CHECK(setrlimit(RLIMIT_FSIZE, &old) == 0);
}

static void test_folders(void) {
    char deep[OX_PATH_BYTES], moved[OX_PATH_BYTES], file[OX_PATH_BYTES];
    in_folder("x/y/z/", deep);
    REQUIRE_OK(ox_folder_make(deep));
    REQUIRE_OK(ox_folder_make(deep));
    CHECK(ox_path_is_folder(deep));
    REQUIRE_OK(ox_path_join(deep, "f", file));
    REQUIRE_OK(ox_file_replace(file, "f", 1));
    CHECK(ox_folder_make(file) == OX_E_CONFIG);

    in_folder("x/moved", moved);
    REQUIRE_OK(ox_folder_commit(deep, moved));
    CHECK(!ox_path_is_folder(deep) && ox_path_is_folder(moved));
    REQUIRE_OK(ox_folder_make(deep));
    CHECK(ox_folder_commit(deep, moved) ==
          OX_E_CONFIG); /* never over an existing folder, even an empty one */
    CHECK(ox_path_is_folder(deep));

    /* A link inside is removed, what it points to stays; so does what a link in the place of the folder
     * names. */
    char outside[OX_PATH_BYTES], link[OX_PATH_BYTES];
    in_folder("outside", outside);
    REQUIRE_OK(ox_folder_make(outside));
    REQUIRE_OK(ox_path_join(outside, "kept", file));
    REQUIRE_OK(ox_file_replace(file, "kept", 4));
    in_folder("x/link", link);
    CHECK(symlink(outside, link) == 0);
    REQUIRE_OK(ox_folder_remove(in_folder("x", path_b)));
    CHECK(!ox_path_is_folder(path_b));
    expect_content(file, "kept");
    in_folder("link-to-folder", link);
    CHECK(symlink(outside, link) == 0);
    CHECK(ox_folder_remove(link) == OX_E_CONFIG);
    expect_content(file, "kept");
    REQUIRE_OK(ox_folder_remove(path_b)); /* gone already */

    uint64_t available = 0;
    REQUIRE_OK(ox_folder_free_bytes(test_folder(), &available));
    CHECK(available > 0);
    CHECK(ox_folder_free_bytes(path_b, &available) == OX_E_CONFIG);
}

int main(void) {
    test_paths();
    test_replace_and_copy();
    test_refusals();
    test_writer();
    test_folders();
    return test_end();
}
