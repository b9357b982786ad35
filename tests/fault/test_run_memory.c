/* A bit of the state in memory changes in a whole tiny run. With a store the run goes back to the last commit, tells of
 * it, and ends with the bits of an undisturbed one; where memory keeps changing it ends with an error, and the next
 * process reaches these bits. Without a store it ends with an error, and no checkpoint has what changed. */
#include "engine/step/engine_internal.h"
#include "tests/kit/files.h"
#include "tests/kit/run/tiny_run.h"
#include "tests/kit/test.h"

#include <string.h>

static struct tiny_told *told; /* shared */
static uint64_t flip_step; /* after which a bit changes */
static uint64_t flips_max, flip_count;

/* Flips a bit of the second moment in the embedding, of which the element is any. */
static void on_step(uint64_t step) {
    if (step < flip_step || flip_count == flips_max) {
        return;
    }
    struct ox_rank *const rank = ox_engine_rank(tiny_engine(), 0);
    const struct ox_resident at = ox_rank_resident(rank, 0);
    const uint64_t elems = rank->plan->table.shards[0].elem_count;
    unsigned char *const v = ox_state_planes_at(rank->config.state, at.state, elems, 100 + step).v;
    v[1] ^= 1;
    flip_count++;
}

static const struct tiny_seam seam = {.step = on_step};

static enum tiny_end run_flipped(uint64_t step, uint64_t count) {
    flip_step = step;
    flips_max = count;
    flip_count = 0;
    return tiny_run("threads", TINY_FRESH, &seam, told);
}

static void check_with_store(const char *persist_steps) {
    const char *const options[][2] = {{"weights-tier", "host"}, {"state-tier", "host"}, {"grads-tier", "host"},
                                      {"persist-steps", persist_steps}, {NULL, NULL}};
    char what[64];
    tiny_set_options(options);
    tiny_begin(TINY_IN_MEMORY);
    for (uint64_t step = 1; step < TINY_STEPS; step++) {
        snprintf(what, sizeof what, "--persist-steps %s, changed after step %llu", persist_steps,
                 (unsigned long long)step);
        CHECK(run_flipped(step, 1) == TINY_DONE);
        CHECK(told->warnings > 0 && strstr(told->warning, "memory has changed by itself: rank 0, unit 0, chunk 0: the "
                                                          "second moments") != NULL);
        CHECK(strstr(told->warning, "going on from step") != NULL);
        CHECK(tiny_end_well("threads", told, what));
    }
    CHECK(run_flipped(1, 100) == TINY_FAILED);
    CHECK(told->status == OX_E_MEMORY && strstr(told->text, "--resume-from-checkpoint latest") != NULL);
    CHECK(tiny_end_well("threads", told, "changed after every step"));
}

/* A store of one generation cannot be gone back to within the process, but it has what the next one goes on from. */
static void check_one_generation(void) {
    static const char *const options[][2] = {{"weights-tier", "host"}, {"state-tier", "host"}, {"grads-tier", "host"},
                                             {"persist-steps", "100"}, {"store-generations", "1"}, {NULL, NULL}};
    tiny_set_options(options);
    CHECK(run_flipped(1, 1) == TINY_FAILED);
    CHECK(told->status == OX_E_MEMORY && strstr(told->text, "--resume-from-checkpoint latest") != NULL);
    CHECK(tiny_end_well("threads", told, "one generation"));
}

static void check_without_store(void) {
    static const char *const options[][2] = {{"weights-tier", "host"}, {"state-tier", "host"}, {"grads-tier", "host"},
                                             {"optimizer-overlap", "off"}, {NULL, NULL}};
    tiny_set_drives(0);
    tiny_set_options(options);
    CHECK(run_flipped(1, 1) == TINY_FAILED);
    CHECK(told->status == OX_E_MEMORY && strstr(told->text, "start again, since nothing is saved yet") != NULL);
    CHECK(told->saved_step == 0);
    files_remove_folder(tiny_folder());
    CHECK(run_flipped(2, 1) == TINY_FAILED); /* found by the checkpoint of that step already */
    CHECK(told->saved_step == 0 && strstr(told->warning, "no checkpoint at step 2: memory has changed") != NULL);
    files_remove_folder(tiny_folder());
    CHECK(run_flipped(TINY_STEPS, 1) == TINY_FAILED); /* found by the last checkpoint */
    CHECK(told->status == OX_E_MEMORY && told->saved_step == TINY_SAVED_STEP);
    CHECK(strstr(told->text, "the newest checkpoint is") != NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    tiny_single_thread(argv);
    told = tiny_shared(sizeof *told);
    check_with_store("100");
    check_with_store("1");
    check_one_generation();
    check_without_store();
    return test_end();
}
