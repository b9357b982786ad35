/* The optimizer's stream over a store on a disk in memory: every chunk is updated once, in order, from the committed
 * planes. Whichever transfer fails, or wherever the lane stops, nothing is left behind and the next step works. */
#include "engine/step/stream/optim_stream.h"
#include "tests/kit/store/io_sim.h"
#include "tests/kit/test.h"

#include "base/bytes.h"

#include <string.h>

enum {
    PAGE = OX_IO_ALIGN_BYTES, STATE_BYTES = 2 * PAGE, SLOT_BYTES = STATE_BYTES + PAGE, UNIT_COUNT = 6, CHUNK_COUNT = 20,
    IN_MEMORY = 3, /* the unit whose state lives in memory */
};
static const uint32_t chunk_counts[UNIT_COUNT] = {1, 3, 2, 9, 4, 1};

struct rig {
    struct ox_io_backend *sim, *fault;
    struct ox_store *store;
    struct ox_stream *stream;
    _Alignas(PAGE) unsigned char slots[OX_STREAM_SLOTS_MAX * SLOT_BYTES];
    unsigned char memory[9 * STATE_BYTES]; /* state of the unit that lives in memory */
    uint64_t step;                         /* the step that will be committed */
    uint32_t begun;                        /* units begun; only the lane uses it, as all but the next two */
    uint32_t arrived, left;                /* chunks, by reader and by writer; read when the stream is empty */
};

static uint32_t first_chunk(uint32_t unit_idx) {
    uint32_t first = 0;
    for (uint32_t i = 0; i < unit_idx; i++) {
        first += chunk_counts[i];
    }
    return first;
}

/* The bytes that chunk `idx` of all holds after a step, in its state or its weights. */
static void fill(unsigned char *target, uint64_t bytes, uint32_t idx, uint64_t step) {
    for (uint64_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        const uint64_t word = step * 1000003 + idx * 1009 + i;
        memcpy(target + i, &word, sizeof word);
    }
}

static bool holds(const unsigned char *have, uint64_t bytes, uint32_t idx, uint64_t step) {
    unsigned char want[STATE_BYTES];
    fill(want, bytes, idx, step);
    return memcmp(have, want, bytes) == 0;
}

static unsigned char *memory_of(struct rig *rig, uint32_t chunk_idx) {
    return rig->memory + (size_t)chunk_idx * STATE_BYTES;
}

static void fill_memory(struct rig *rig, uint64_t step) {
    for (uint32_t i = 0; i < chunk_counts[IN_MEMORY]; i++) {
        fill(memory_of(rig, i), STATE_BYTES, first_chunk(IN_MEMORY) + i, step);
    }
}

/* ---- what the stream calls ------------------------------------------------------------------------------ */

static uint32_t idx_of(const struct ox_stream_chunk *chunk) {
    return first_chunk(chunk->run.unit_idx) + chunk->chunk_idx;
}

static uint32_t reads(void *owner, const struct ox_stream_chunk *chunk, struct ox_store_op *ops) {
    uint32_t count = 0;
    (void)owner;
    if (chunk->run.source.state == NULL) {
        ops[count++] = (struct ox_store_op){
            .kind = OX_STORE_READ, .extent_idx = 2 * idx_of(chunk), .buffer = chunk->slot};
    }
    ops[count++] = (struct ox_store_op){
        .kind = OX_STORE_READ, .extent_idx = 2 * idx_of(chunk) + 1, .buffer = chunk->slot + STATE_BYTES};
    return count;
}

static void arrived(void *owner, const struct ox_stream_chunk *chunk) {
    struct rig *const rig = owner;
    const uint32_t idx = idx_of(chunk);
    const unsigned char *const state =
        chunk->run.source.state == NULL ? chunk->slot : memory_of(rig, chunk->chunk_idx);
    CHECK(idx == rig->arrived++);
    CHECK(holds(state, STATE_BYTES, idx, rig->step - 1));
    CHECK(holds(chunk->slot + STATE_BYTES, PAGE, idx, rig->step - 1));
}

static void leaves(void *owner, const struct ox_stream_chunk *chunk) {
    struct rig *const rig = owner;
    CHECK(idx_of(chunk) == rig->left++);
    if (chunk->run.source.state != NULL) {
        memcpy(chunk->slot, memory_of(rig, chunk->chunk_idx), STATE_BYTES);
    }
}

static uint32_t writes(void *owner, const struct ox_stream_chunk *chunk, struct ox_store_op *ops) {
    (void)owner;
    for (uint32_t i = 0; i < 2; i++) {
        ops[i] = (struct ox_store_op){.kind = OX_STORE_WRITE, .extent_idx = 2 * idx_of(chunk) + i,
                                      .buffer = chunk->slot + (size_t)i * STATE_BYTES};
    }
    return 2;
}

/* ---- a step ---------------------------------------------------------------------------------------------- */

static struct ox_unit_run run_of(struct rig *rig, uint32_t unit_idx) {
    struct ox_unit_run run = {.unit_idx = unit_idx, .chunk_count = chunk_counts[unit_idx]};
    run.source.state = unit_idx == IN_MEMORY ? rig->memory : NULL;
    return run;
}

static enum ox_status run_unit(struct rig *rig, uint32_t unit_idx, uint32_t *chunks_left) {
    const bool whole = *chunks_left >= chunk_counts[unit_idx];
    const struct ox_unit_run run = run_of(rig, unit_idx);
    ox_stream_begin(rig->stream, &run);
    if (unit_idx + 1 < UNIT_COUNT && unit_idx % 4 != 1) { /* not always ahead */
        const struct ox_unit_run next = run_of(rig, unit_idx + 1);
        ox_stream_order_ahead(rig->stream, &next);
    }
    for (uint32_t i = 0; i < run.chunk_count && *chunks_left > 0; i++, (*chunks_left)--) {
        struct ox_stream_chunk chunk;
        const enum ox_status status = ox_stream_take(rig->stream, &chunk);
        if (status != OX_OK) {
            return status;
        }
        CHECK(chunk.run.unit_idx == unit_idx && chunk.chunk_idx == i);
        unsigned char *const state = run.source.state != NULL ? memory_of(rig, i) : chunk.slot;
        fill(state, STATE_BYTES, idx_of(&chunk), rig->step);
        fill(chunk.slot + STATE_BYTES, PAGE, idx_of(&chunk), rig->step);
        ox_stream_put(rig->stream);
    }
    if (run.source.state == NULL || !whole) {
        return OX_OK;
    }
    const enum ox_status status = ox_stream_wait_copies(rig->stream);
    memset(rig->memory, 0xff, sizeof rig->memory); /* the owner may change it now */
    return status;
}

/* Streams all units, or only that many chunks of them. */
static enum ox_status run_stream(struct rig *rig, uint32_t chunks) {
    enum ox_status status = OX_OK;
    rig->arrived = rig->left = 0;
    fill_memory(rig, rig->step - 1);
    for (uint32_t i = 0; i < UNIT_COUNT && status == OX_OK && chunks > 0; i++) {
        status = run_unit(rig, i, &chunks);
    }
    return status;
}

/* Begins, streams and commits; aborts the transaction after a failure or with fewer chunks. */
static enum ox_status run_step(struct rig *rig, uint32_t chunks) {
    struct ox_first_failure first = {0};
    REQUIRE_OK(ox_store_begin(rig->store, rig->step));
    ox_first_failure_note(&first, run_stream(rig, chunks));
    ox_first_failure_note(&first, ox_stream_drain(rig->stream));
    if (first.status == OX_OK && chunks >= CHUNK_COUNT) {
        CHECK(rig->arrived == CHUNK_COUNT && rig->left == CHUNK_COUNT);
        REQUIRE_OK(ox_store_commit(rig->store, NULL, 0));
        rig->step++;
    } else {
        ox_store_abort(rig->store);
    }
    return ox_first_failure_result(&first);
}

/* Step 0, without the stream. */
static void load(struct rig *rig) {
    struct ox_store_port *port = NULL;
    REQUIRE_OK(ox_store_port_open(rig->store, &port));
    REQUIRE_OK(ox_store_begin(rig->store, 0));
    for (uint32_t i = 0; i < CHUNK_COUNT; i++) {
        fill(rig->slots, STATE_BYTES, i, 0);
        fill(rig->slots + STATE_BYTES, PAGE, i, 0);
        const struct ox_store_op ops[] = {
            {.kind = OX_STORE_WRITE, .extent_idx = 2 * i, .buffer = rig->slots},
            {.kind = OX_STORE_WRITE, .extent_idx = 2 * i + 1, .buffer = rig->slots + STATE_BYTES},
        };
        REQUIRE_OK(ox_store_run(port, ops, 2));
    }
    REQUIRE_OK(ox_store_commit(rig->store, NULL, 0));
    ox_store_port_close(&port);
    rig->step = 1;
}

static void rig_open(struct rig *rig, uint32_t slot_count, uint32_t generations, uint64_t chaos_seed) {
    static const struct ox_stream_calls calls = {
        .reads = reads, .arrived = arrived, .leaves = leaves, .writes = writes};
    static const char *const folders[] = {"/sim/a", "/sim/b"};
    static const uint64_t bytes_max[] = {8 * OX_MIB, 8 * OX_MIB};
    struct ox_extent_spec extents[2 * CHUNK_COUNT];
    memset(rig, 0, sizeof *rig);
    for (uint32_t i = 0; i < CHUNK_COUNT; i++) {
        extents[2 * i] = (struct ox_extent_spec){.bytes = STATE_BYTES, .head_bytes = PAGE};
        extents[2 * i + 1] = (struct ox_extent_spec){.bytes = PAGE};
    }
    REQUIRE_OK(ox_io_sim_open(1, &rig->sim));
    REQUIRE_OK(ox_io_fault_open(rig->sim, &rig->fault));
    const struct ox_store_config store = {
        .backend = rig->fault, .folders = folders, .bytes_max = bytes_max, .drive_count = 2, .extents = extents,
        .extent_count = 2 * CHUNK_COUNT, .run_id = {1, 2}, .queue_depth = 4, .generations = generations};
    REQUIRE_OK(ox_store_create(&store, &rig->store));
    load(rig);
    const struct ox_stream_config config = {
        .store = rig->store, .calls = &calls, .owner = rig, .chaos_seed = chaos_seed, .chaos_ns_max = 50000};
    REQUIRE_OK(ox_stream_open(&config, &rig->stream));
    ox_stream_register(rig->stream, &(struct ox_io_region){rig->slots, sizeof rig->slots});
    ox_stream_set_slots(rig->stream, rig->slots, SLOT_BYTES, slot_count);
}

static void rig_close(struct rig *rig) {
    ox_stream_close(&rig->stream);
    ox_store_close(&rig->store);
    ox_io_fault_close(&rig->fault);
    ox_io_sim_close(&rig->sim);
}

/* ---- tests ------------------------------------------------------------------------------------------------ */

static void test_steps(uint32_t slot_count, uint32_t generations, uint64_t chaos_seed) {
    static struct rig rig;
    struct ox_stream_stats stats;
    rig_open(&rig, slot_count, generations, chaos_seed);
    for (uint32_t i = 0; i < 3; i++) {
        REQUIRE_OK(run_step(&rig, CHUNK_COUNT));
    }
    ox_stream_stats(rig.stream, &stats);
    CHECK(stats.chunk_count == 3 * CHUNK_COUNT && stats.reader_busy_ns > 0 && stats.writer_busy_ns > 0);
    rig_close(&rig);
}

/* Each transfer of a step fails in turn; the same step then succeeds as if nothing had happened. */
static void test_faults(uint32_t slot_count, enum ox_fault_point point, enum ox_fault_kind kind, bool persistent) {
    static struct rig rig;
    const enum ox_status want = kind == OX_FAULT_MISDIRECT ? OX_E_CORRUPT : OX_E_IO;
    const uint32_t call_count = point == OX_FAULT_ON_READ ? 2 * CHUNK_COUNT - chunk_counts[IN_MEMORY] : 2 * CHUNK_COUNT;
    rig_open(&rig, slot_count, 2, 0);
    for (uint32_t i = 0; i < call_count; i++) {
        ox_io_fault_set(rig.fault, &(struct ox_fault_rule){kind, point, i, persistent});
        const enum ox_status status = run_step(&rig, CHUNK_COUNT);
        CHECK(status == want && strlen(ox_error_text()) > 20);
        ox_io_fault_set(rig.fault, NULL);
        REQUIRE_OK(run_step(&rig, CHUNK_COUNT));
    }
    rig_close(&rig);
}

/* The lane stops after each number of chunks while others are in flight; in the end the stream is closed like that. */
static void test_given_up(uint32_t slot_count, uint64_t chaos_seed) {
    static struct rig rig;
    rig_open(&rig, slot_count, 2, chaos_seed);
    for (uint32_t chunks = 1; chunks < CHUNK_COUNT; chunks++) {
        REQUIRE_OK(run_step(&rig, chunks));
        REQUIRE_OK(run_step(&rig, CHUNK_COUNT));
    }
    REQUIRE_OK(ox_store_begin(rig.store, rig.step));
    REQUIRE_OK(run_stream(&rig, 4));
    ox_stream_close(&rig.stream);
    ox_store_abort(rig.store);
    rig_close(&rig);
}

int main(void) {
    static const uint32_t slot_counts[] = {1, 2, 3, OX_STREAM_SLOTS_MAX};
    for (uint32_t i = 0; i < sizeof slot_counts / sizeof *slot_counts; i++) {
        for (uint64_t seed = 0; seed < 4; seed++) {
            test_steps(slot_counts[i], 2, seed);
            test_steps(slot_counts[i], 1, seed);
        }
        test_faults(slot_counts[i], OX_FAULT_ON_READ, OX_FAULT_EIO, false);
        test_faults(slot_counts[i], OX_FAULT_ON_READ, OX_FAULT_MISDIRECT, true);
        test_faults(slot_counts[i], OX_FAULT_ON_WRITE, OX_FAULT_EIO, false);
        test_faults(slot_counts[i], OX_FAULT_ON_WRITE, OX_FAULT_ENOSPC, true);
        test_given_up(slot_counts[i], i);
    }
    return test_end();
}
