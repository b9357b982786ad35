/* The store on real files: extents of many requests, refusals that leave nothing, removal. */
#include "nvme/store_impl.h"
#include "tests/kit/files.h"
#include "tests/kit/store/store_kit.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct ox_extent_spec large[] = {
    {9 << 20, 5 << 20}, {4096, 0}, {(4 << 20) + 4096, 4096}, {1 << 20, 0}};

static void many_requests(const struct ox_io_backend *backend) {
    struct kit kit;
    kit_init(&kit, backend, test_folder(), 3);
    kit.config.extents = large;
    kit.config.extent_count = sizeof large / sizeof *large;
    kit.config.queue_depth = 2; /* fewer than one extent has requests */
    for (uint32_t i = 0; i < 3; i++) {
        kit.bytes_max[i] = 32 * OX_MIB;
    }
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    bool wrong = false;
    CHECK(!ox_store_exists(test_folder()));
    REQUIRE_OK(ox_store_create(&kit.config, &store));
    CHECK(ox_store_exists(test_folder()));
    REQUIRE_OK(ox_store_port_open(store, &port));
    for (uint64_t step = 1; step <= 3; step++) {
        REQUIRE_OK(kit_commit(store, port, step));
        REQUIRE_OK(kit_verify(store, port, step, &wrong));
        CHECK(!wrong);
    }
    CHECK(ox_store_in_flight(port) == 0);
    ox_store_port_close(&port);
    ox_store_close(&store);
    REQUIRE_OK(ox_store_open(&kit.config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    REQUIRE_OK(kit_verify(store, port, 3, &wrong));
    CHECK(!wrong);
    struct ox_store_info info;
    ox_store_info(store, &info);
    struct stat file;
    uint64_t file_bytes = 0;
    for (uint32_t i = 0; i < 3; i++) {
        struct ox_drive_info drive;
        REQUIRE_OK(ox_store_drive_info(store, i, &drive));
        CHECK(stat(drive.path, &file) == 0 && (uint64_t)file.st_size == drive.bytes);
        CHECK((uint64_t)file.st_blocks * 512 >= drive.bytes); /* no hole that could meet a full disk */
        file_bytes += drive.bytes;
    }
    CHECK(file_bytes == info.file_bytes);
    ox_store_port_close(&port);
    ox_store_close(&store);
    REQUIRE_OK(ox_store_remove(kit.folders, 3));
    REQUIRE_OK(ox_store_remove(kit.folders, 3));
    CHECK(files_count(test_folder(), "", "") == 0);
}

static void refusals(void) {
    struct kit kit;
    kit_init(&kit, ox_io_threads(), test_folder(), 2);
    struct ox_store *store = NULL;
    /* The user allows fewer bytes than needed. */
    kit.bytes_max[0] = kit.bytes_max[1] = OX_MIB;
    CHECK(ox_store_create(&kit.config, &store) == OX_E_CONFIG && store == NULL &&
          files_count(test_folder(), "", "") == 0);
    /* The file system has fewer bytes than needed. The first file would fit; it must be removed again. */
    uint64_t vast[2] = {4096, UINT64_C(1) << 55};
    kit_init(&kit, ox_io_threads(), test_folder(), 2);
    kit.bytes_max[1] = UINT64_C(1) << 56;
    kit.config.spool_bytes = vast;
    kit.config.spool_count = 2;
    CHECK(ox_store_create(&kit.config, &store) != OX_OK && store == NULL && files_count(test_folder(), "", "") == 0);
    CHECK(strstr(ox_error_text(), "offload-store-1.ox") != NULL);
    /* A file of the user's own under the name of the second drive stays, and nothing else does. */
    kit_init(&kit, ox_io_threads(), test_folder(), 2);
    char path[600];
    snprintf(path, sizeof path, "%s/offload-store-1.ox", test_folder());
    FILE *const file = fopen(path, "w");
    CHECK(file != NULL && fputs("not a store", file) >= 0 && fclose(file) == 0);
    CHECK(ox_store_create(&kit.config, &store) == OX_E_CONFIG && store == NULL &&
          files_count(test_folder(), "", "") == 1);
    unlink(path);
    CHECK(ox_store_open(&kit.config, &store) == OX_E_CONFIG && store == NULL &&
          files_count(test_folder(), "", "") == 0);
    /* Not a store, and too short to be one. */
    kit.config.drive_count = 1;
    snprintf(path, sizeof path, "%s/offload-store-0.ox", test_folder());
    CHECK((fclose(fopen(path, "w")), chmod(path, 0600)) == 0 && truncate(path, 4096) == 0);
    CHECK(ox_store_open(&kit.config, &store) == OX_E_CORRUPT);
    CHECK(truncate(path, 4 << 20) == 0);
    CHECK(ox_store_open(&kit.config, &store) == OX_E_CORRUPT);
    CHECK(strstr(ox_error_text(), "not a store") != NULL);
    unlink(path);
    CHECK(symlink("/etc/passwd", path) == 0);
    CHECK(ox_store_remove(kit.folders, 1) == OX_E_CONFIG && ox_store_exists(test_folder()));
    unlink(path);
}

/* Opened as `inspect` does, which takes the list of extents from the first drive that has it. */
static void lists(void) {
    static const char zeros[4096];
    struct kit kit;
    struct ox_store *store = NULL;
    kit_init(&kit, ox_io_threads(), test_folder(), 2);
    REQUIRE_OK(ox_store_create(&kit.config, &store));
    ox_store_close(&store);
    kit.config.extents = NULL;
    kit.config.bytes_max = NULL;
    kit.config.spool_count = 0;
    files_patch("offload-store-0.ox", OX_STORE_GEOMETRY_OFFSET, zeros, sizeof zeros);
    REQUIRE_OK(ox_store_open(&kit.config, &store));
    ox_store_close(&store);
    files_patch("offload-store-1.ox", OX_STORE_GEOMETRY_OFFSET, zeros, sizeof zeros);
    CHECK(ox_store_open(&kit.config, &store) == OX_E_CORRUPT && store == NULL);
    CHECK(strstr(ox_error_text(), "the list of extents is damaged; resume from a checkpoint") != NULL);
    CHECK(truncate(test_path("offload-store-1.ox"), OX_STORE_GEOMETRY_OFFSET) == 0);
    CHECK(ox_store_open(&kit.config, &store) == OX_E_CORRUPT && store == NULL);
    CHECK(strstr(ox_error_text(), "the list of extents is damaged; resume from a checkpoint") != NULL);
    REQUIRE_OK(ox_store_remove(kit.folders, 2));
}

int main(void) {
    many_requests(ox_io_threads());
    char why[160];
    if (ox_io_probe(why) == ox_io_uring()) {
        many_requests(ox_io_uring());
    } else {
        printf("uring: skipped: %s\n", why);
    }
    refusals();
    lists();
    return test_end();
}
