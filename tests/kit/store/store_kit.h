/* What the store's tests share: a small geometry, contents that follow from (step, extent, place), and
 * transactions over all extents. */
#ifndef OX_TESTS_STORE_KIT_H
#define OX_TESTS_STORE_KIT_H

#include "base/bytes.h"
#include "tests/kit/store/io_sim.h"
#include "nvme/store.h"
#include "tests/kit/test.h"

enum { KIT_EXTENT_COUNT = 7, KIT_BUFFER_BYTES = 64 << 10 };

extern const struct ox_extent_spec kit_extents[KIT_EXTENT_COUNT];

struct kit {
    struct ox_store_config config;
    const char *folders[OX_STORE_DRIVES_MAX];
    uint64_t bytes_max[OX_STORE_DRIVES_MAX];
    uint64_t spool_bytes[2];
};

/* A store on a disk in memory, whose calls can be made to fail, and a port of it. */
struct kit_rig {
    struct kit kit;
    struct ox_io_backend *sim, *fault;
    struct ox_store *store;
    struct ox_store_port *port;
};
/* Makes the disk and the configuration, which the caller may change before the store is made, on the empty rig. */
void kit_rig_init(struct kit_rig *rig, uint64_t seed, uint32_t drive_count);
void kit_rig_create(struct kit_rig *rig);
void kit_rig_close(struct kit_rig *rig);
/* Closes the store and opens it again; `cuts`: the power is cut in between. */
void kit_rig_reopen(struct kit_rig *rig, bool cuts);
/* Checks that the store holds `step` in every word. */
void kit_rig_expect(struct kit_rig *rig, uint64_t step);

/* The argument of --count, else `usual`: the tests of the suite are small, and the same at any size. */
uint64_t kit_count(int argc, char **argv, uint64_t usual);
/* A configuration of so many drives in one folder; the caller changes it before the store is made. */
void kit_init(struct kit *kit, const struct ox_io_backend *backend, const char *folder, uint32_t drive_count);
/* Aligned for direct I/O; free() it. */
void *kit_buffer(uint64_t bytes);
/* What a step writes into an extent: one word, a whole buffer, and whether a buffer holds it. */
uint64_t kit_word(uint64_t step, uint32_t extent_idx, uint64_t idx);
void kit_fill(void *buffer, uint64_t bytes, uint64_t step, uint32_t extent_idx);
bool kit_matches(const void *buffer, uint64_t bytes, uint64_t step, uint32_t extent_idx);
/* Writes the first `count` extents of `step`, several at a time, and returns the first failure after
 * all have ended. */
OX_MUST enum ox_status kit_write(struct ox_store *store, struct ox_store_port *port, uint64_t step, uint32_t count);
/* Makes a whole transaction, and aborts it on failure. The meta blob is the step. */
OX_MUST enum ox_status kit_commit(struct ox_store *store, struct ox_store_port *port, uint64_t step);
/* Keeps `kept` steps, numbered right before `step`, and commits `step`. Each kept step reads every other extent as of
 * the step before, compares it, and writes it in its place, as a run does whose state lives partly on drives. Every
 * other commit is of a step that was kept itself. On failure the last commit alone is left. */
OX_MUST enum ox_status kit_commit_after(struct ox_store *store, struct ox_store_port *port, uint64_t step,
                                        uint32_t kept, bool *wrong);
/* Reads everything and compares every word with what `step` wrote; a mismatch that the store let pass is
 * reported through *wrong. */
OX_MUST enum ox_status kit_verify(struct ox_store *store, struct ox_store_port *port, uint64_t step, bool *wrong);
/* A transaction by two threads, each with a port of its own and every other extent: it is read and compared with what
 * step - 1 wrote, then written twice, the second time as `step`. With `spools`, each thread then also writes to the
 * spool of its index. Whatever fails in a thread is counted as a failure of the test. */
void kit_commit_by_two(struct ox_store *store, uint64_t step, bool spools);

#endif
