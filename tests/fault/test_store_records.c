/* Headers and roots of a store that are whole and wrong: each field in turn is changed and the record sealed again, as
 * by a file of another run, by another version of the program, or by a mistake of this one. No checksum can tell. A
 * wrong header is refused by name; a wrong root counts as none, so that the commit before is found, never other
 * data. */
#include "nvme/store_impl.h"
#include "tests/kit/files.h"
#include "tests/kit/store/store_kit.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

enum { DRIVES = 2, LAST_STEP = 5, COPIES = DRIVES * OX_STORE_REGION_COUNT };

struct field {
    const char *name;
    size_t offset;
};

#define IDENTITY(member) {#member, offsetof(struct ox_store_identity, member)}
#define ROOT(member) {#member, offsetof(struct ox_store_root, member)}

static struct kit kit;
static uint64_t newest; /* the number of the newest root */

/* ---- the records ------------------------------------------------------------------------------------- */

union block {
    struct ox_store_identity identity;
    struct ox_store_root root;
    unsigned char bytes[OX_STORE_BLOCK_BYTES];
};

/* Copy `idx` of the record in this block of a region. */
static void move_block(bool writes, uint32_t idx, uint64_t block_idx, union block *block) {
    char name[32];
    snprintf(name, sizeof name, "offload-store-%u.ox", idx / OX_STORE_REGION_COUNT);
    const off_t at = (off_t)(idx % OX_STORE_REGION_COUNT * (uint64_t)OX_STORE_REGION_STRIDE +
                             block_idx * OX_STORE_BLOCK_BYTES);
    const int fd = open(test_path(name), O_RDWR | O_CLOEXEC);
    const ssize_t moved = writes ? pwrite(fd, block, sizeof *block, at) : pread(fd, block, sizeof *block, at);
    CHECK(moved == (ssize_t)sizeof *block && close(fd) == 0);
}

static uint64_t root_block(uint64_t seq) {
    return 1 + seq % OX_STORE_RING_LEN;
}

/* Inverts a bit of the field in the copies of `which`, bit by bit one of COPIES; the same call undoes it. */
static void invert(uint64_t block_idx, const struct field *field, unsigned which) {
    for (uint32_t i = 0; i < COPIES; i++) {
        union block block;
        if ((which >> i & 1) != 0) {
            move_block(false, i, block_idx, &block);
            block.bytes[field->offset] ^= 2;
            ox_store_block_seal(&block);
            move_block(true, i, block_idx, &block);
        }
    }
}

/* ---- what a start makes of them ---------------------------------------------------------------------- */

/* Opens the store and reads all of it: the step, or 0 where it is refused. */
static uint64_t opened(const struct ox_store_config *config) {
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    struct ox_store_info info = {0};
    bool wrong = false;
    if (ox_store_open(config, &store) != OX_OK) {
        CHECK(strstr(ox_error_text(), "offload-store-") != NULL);
        return 0;
    }
    REQUIRE_OK(ox_store_port_open(store, &port));
    ox_store_info(store, &info);
    REQUIRE_OK(kit_verify(store, port, info.step, &wrong));
    CHECK(!wrong);
    ox_store_port_close(&port);
    ox_store_close(&store);
    return info.step;
}

static void expect(const char *name, unsigned which, uint64_t step) {
    const uint64_t found = opened(&kit.config);
    if (found != step) {
        printf("%s, copies %#x: step %llu and not %llu\n", name, which, (unsigned long long)found,
               (unsigned long long)step);
    }
    CHECK(found == step);
}

/* ---- cases ------------------------------------------------------------------------------------------- */

/* Where all headers agree, the number of extents is that of the list, whose hash they have, and two bytes more room
 * place nothing elsewhere. */
static bool is_idle(const struct field *field) {
    return strcmp(field->name, "extent_count") == 0 || strcmp(field->name, "bytes_max") == 0;
}

static void test_headers(void) {
    static const struct field fields[] = {IDENTITY(magic),       IDENTITY(version),       IDENTITY(drive_idx),
                                          IDENTITY(drive_count), IDENTITY(extent_count),  IDENTITY(run_id[0]),
                                          IDENTITY(run_id[1]),   IDENTITY(config_hash),   IDENTITY(geometry_hash),
                                          IDENTITY(bytes_max),   IDENTITY(speeds),        IDENTITY(generations)};
    static const unsigned drives[] = {0x3, 0xc, 0xf}; /* both copies of the first drive, of the second, of both */
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        for (size_t j = 0; j < sizeof drives / sizeof *drives; j++) {
            invert(0, &fields[i], drives[j]);
            expect(fields[i].name, drives[j], drives[j] == 0xf && is_idle(&fields[i]) ? LAST_STEP : 0);
            invert(0, &fields[i], drives[j]);
        }
    }
    invert(0, &fields[0], 0x3); /* the header of the other drive is not taken for the first one's */
    CHECK(opened(&kit.config) == 0 && strstr(ox_error_text(), "offload-store-0.ox: not a store, or both") != NULL);
    invert(0, &fields[0], 0x3);
    expect("all as they were", 0, LAST_STEP);
}

/* Without a list to compare with, that of the files has to be theirs. */
static void test_inspection(void) {
    static const struct field fields[] = {IDENTITY(extent_count), IDENTITY(geometry_hash), IDENTITY(version)};
    struct ox_store_config config = kit.config;
    config.extents = NULL;
    CHECK(opened(&config) == LAST_STEP);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        invert(0, &fields[i], 0xf);
        CHECK(opened(&config) == 0);
        invert(0, &fields[i], 0xf);
    }
    const struct field vast = {"extent_count", offsetof(struct ox_store_identity, extent_count) + 3};
    invert(0, &vast, 0xf); /* 2^25 extents more than the file can list */
    CHECK(opened(&config) == 0 && strstr(ox_error_text(), "the list of extents is damaged") != NULL);
    invert(0, &vast, 0xf);
}

static void test_roots(void) {
    static const struct field fields[] = {ROOT(magic),         ROOT(version),     ROOT(run_id[0]), ROOT(run_id[1]),
                                          ROOT(config_hash),   ROOT(geometry_hash), ROOT(seq),     ROOT(parent_hash),
                                          ROOT(step),          ROOT(attempt),     ROOT(table_hash), ROOT(generation)};
    const struct field meta = {"meta_bytes", offsetof(struct ox_store_root, meta_bytes) + 2};
    for (size_t i = 0; i <= sizeof fields / sizeof *fields; i++) {
        const struct field *const field = i < sizeof fields / sizeof *fields ? &fields[i] : &meta;
        for (unsigned which = 1; which <= 0xf; which = 2 * which + 1) { /* one copy, two, three, all */
            invert(root_block(newest), field, which);
            expect(field->name, which, which == 0xf ? LAST_STEP - 1 : LAST_STEP);
            invert(root_block(newest), field, which);
        }
    }
    expect("all as they were", 0, LAST_STEP);
}

/* A number that nothing checks: how often a root was written once more. The one with the larger counts. */
static void test_session(void) {
    static const struct field session = ROOT(session);
    for (unsigned which = 1; which <= 0xf; which = 2 * which + 1) {
        invert(root_block(newest), &session, which);
        expect("session", which, LAST_STEP);
        invert(root_block(newest), &session, which);
    }
}

/* Rejected roots are wiped before the next commit, so that none of them can come back. */
static void test_wiped(void) {
    static const struct field table = ROOT(table_hash);
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    invert(root_block(newest), &table, 0xf);
    REQUIRE_OK(ox_store_open(&kit.config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    REQUIRE_OK(kit_commit(store, port, LAST_STEP));
    ox_store_port_close(&port);
    ox_store_close(&store);
    invert(root_block(newest), &table, 0xf); /* seals whatever is there now */
    expect("a rejected root that was sealed again", 0xf, LAST_STEP);
}

int main(void) {
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    kit_init(&kit, ox_io_threads(), test_folder(), DRIVES);
    REQUIRE_OK(ox_store_create(&kit.config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    for (uint64_t step = 1; step <= LAST_STEP; step++) {
        REQUIRE_OK(kit_commit(store, port, step));
    }
    newest = store->root->seq;
    ox_store_port_close(&port);
    ox_store_close(&store);
    test_headers();
    test_inspection();
    test_roots();
    test_session();
    test_wiped();
    return test_end();
}
