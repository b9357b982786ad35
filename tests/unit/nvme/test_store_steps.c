/* Reads that name a step: what a transaction has written is read before its commit, during it and after, while the
 * last commit can be read as well until the transaction's own takes its place. */
#include "tests/kit/store/store_kit.h"

#include <pthread.h>

/* Reads every extent as of `step`, and its head alone; false when something else comes. */
static bool reads(struct ox_store_port *port, uint64_t step, uint64_t holds) {
    bool right = true;
    void *const buffer = kit_buffer(KIT_BUFFER_BYTES);
    for (uint32_t i = 0; i < KIT_EXTENT_COUNT; i++) {
        const struct ox_extent_spec *const spec = &kit_extents[i];
        struct ox_store_op op = {.kind = OX_STORE_READ, .extent_idx = i, .buffer = buffer, .step = step};
        REQUIRE_OK(ox_store_run(port, &op, 1));
        right &= kit_matches(buffer, spec->bytes, holds, i);
        if (spec->head_bytes > 0) {
            op.kind = OX_STORE_READ_HEAD;
            REQUIRE_OK(ox_store_run(port, &op, 1));
            right &= kit_matches(buffer, spec->head_bytes, holds, i);
        }
    }
    free(buffer);
    return right;
}

static void before_and_after(uint32_t generations) {
    struct ox_io_backend *sim = NULL;
    struct kit kit;
    REQUIRE_OK(ox_io_sim_open(2, &sim));
    kit_init(&kit, sim, "/sim", 2);
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    kit.config.generations = generations;
    REQUIRE_OK(ox_store_create(&kit.config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    REQUIRE_OK(kit_commit(store, port, 1));
    CHECK(reads(port, 0, 1) && reads(port, 1, 1));
    REQUIRE_OK(ox_store_begin(store, 2));
    CHECK(reads(port, 0, 1) && reads(port, 1, 1));
    REQUIRE_OK(kit_write(store, port, 2, KIT_EXTENT_COUNT));
    CHECK(reads(port, 2, 2));
    CHECK(generations == 1 || (reads(port, 1, 1) && reads(port, 0, 1)));
    if (generations == 2) { /* written again: the last counts */
        REQUIRE_OK(kit_write(store, port, 7, KIT_EXTENT_COUNT));
        CHECK(reads(port, 2, 7) && reads(port, 1, 1));
        REQUIRE_OK(kit_write(store, port, 2, KIT_EXTENT_COUNT));
    }
    const uint64_t meta = 2;
    REQUIRE_OK(ox_store_commit(store, &meta, sizeof meta));
    CHECK(reads(port, 2, 2) && reads(port, 0, 2));
    ox_store_port_close(&port);
    ox_store_close(&store);
    REQUIRE_OK(ox_store_open(&kit.config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    CHECK(reads(port, 2, 2));
    ox_store_port_close(&port);
    ox_store_close(&store);
    ox_io_sim_close(&sim);
}

/* ---- a reader beside commits -------------------------------------------------------------------------- */

enum { STEPS = 60 };

struct reader {
    struct ox_store *store;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t step; /* to be read; 0 = wait */
    bool ended, wrong;
};

static void *reader_main(void *arg) {
    struct reader *const reader = arg;
    struct ox_store_port *port = NULL;
    REQUIRE_OK(ox_store_port_open(reader->store, &port));
    pthread_mutex_lock(&reader->mutex);
    while (!reader->ended) {
        const uint64_t step = reader->step;
        if (step == 0) {
            pthread_cond_wait(&reader->changed, &reader->mutex);
            continue;
        }
        pthread_mutex_unlock(&reader->mutex);
        const bool right = reads(port, step, step);
        pthread_mutex_lock(&reader->mutex);
        reader->wrong |= !right;
        reader->step = 0;
        pthread_cond_broadcast(&reader->changed);
    }
    pthread_mutex_unlock(&reader->mutex);
    ox_store_port_close(&port);
    return NULL;
}

static void reader_ask(struct reader *reader, uint64_t step, bool wait) {
    pthread_mutex_lock(&reader->mutex);
    reader->step = step == 0 ? reader->step : step;
    pthread_cond_broadcast(&reader->changed);
    while (wait && reader->step != 0) {
        pthread_cond_wait(&reader->changed, &reader->mutex);
    }
    pthread_mutex_unlock(&reader->mutex);
}

/* The reader asks for step N while N is committed; it has ended before step N + 1 ends, as the engine's plans have
 * it. */
static void beside_commits(void) {
    struct ox_io_backend *sim = NULL;
    struct kit kit;
    REQUIRE_OK(ox_io_sim_open(2, &sim));
    kit_init(&kit, sim, "/sim", 2);
    struct reader reader = {.step = 0};
    struct ox_store_port *port = NULL;
    pthread_t thread;
    kit.config.generations = 2;
    REQUIRE_OK(ox_store_create(&kit.config, &reader.store));
    REQUIRE_OK(ox_store_port_open(reader.store, &port));
    pthread_mutex_init(&reader.mutex, NULL);
    pthread_cond_init(&reader.changed, NULL);
    CHECK(pthread_create(&thread, NULL, reader_main, &reader) == 0);
    for (uint64_t step = 1; step <= STEPS; step++) {
        REQUIRE_OK(ox_store_begin(reader.store, step));
        REQUIRE_OK(kit_write(reader.store, port, step, KIT_EXTENT_COUNT));
        reader_ask(&reader, 0, true);
        reader_ask(&reader, step, false);
        REQUIRE_OK(ox_store_commit(reader.store, &step, sizeof step));
    }
    reader_ask(&reader, 0, true);
    pthread_mutex_lock(&reader.mutex);
    reader.ended = true;
    pthread_cond_broadcast(&reader.changed);
    pthread_mutex_unlock(&reader.mutex);
    pthread_join(thread, NULL);
    CHECK(!reader.wrong);
    pthread_cond_destroy(&reader.changed);
    pthread_mutex_destroy(&reader.mutex);
    ox_store_port_close(&port);
    ox_store_close(&reader.store);
    ox_io_sim_close(&sim);
}

int main(void) {
    before_and_after(2);
    before_and_after(1);
    beside_commits();
    return test_end();
}
