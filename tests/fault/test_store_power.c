/* Power cuts by seed on a disk in memory: after each, every word of what is recovered is that of one step,
 * and that step is no older than the last commit that was reported done. The same loop over a drive that lies
 * about its flushes must lose something, else it could not have found anything in the first place.
 *
 * With one generation the same holds, but a store that was cut within a step may also be refused, with that step's
 * number.
 *
 *     test_store_power [--count CUTS] */
#include "tests/kit/store/store_kit.h"

#include "base/prng/prng.h"

#include <string.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { CUTS_USUAL = 450 };
#else
enum { CUTS_USUAL = 4500 };
#endif
enum { CUTS_PER_SEED = 3, STEPS_MAX = 4, CONTROL_SEEDS = 200 };

static const struct ox_extent_spec extents[] = {{8192, 4096}, {4096, 0}, {20480, 4096}, {4096, 4096}};

struct tally {
    uint64_t cuts, commits, crashed_inside, forward, lost, corrupt;
    uint64_t refused, kept; /* one generation, cut within a step: refused; or whole as before that step */
};

struct run {
    struct kit kit;
    struct ox_io_backend *sim, *lying, *fault; /* fault over lying over sim */
    uint64_t seed, draw_count;
    uint64_t done_step; /* the last one reported as committed */
    uint64_t next_step;
    bool keeps; /* some steps are kept before a commit */
    bool wrong; /* a kept step was not read as it was written */
    bool inside; /* the last cut came within a step, which was next_step - 1 */
    struct tally *tally;
};

static uint32_t draw(struct run *run, uint32_t below) {
    uint32_t words[4];
    ox_philox(run->seed, 77, run->draw_count++, words);
    return words[0] % below;
}

/* Takes steps until something fails or all steps are done. */
static void work(struct run *run) {
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    run->inside = false;
    if (ox_store_open(&run->kit.config, &store) != OX_OK) {
        return;
    }
    enum ox_status status = ox_store_port_open(store, &port);
    const uint32_t steps = 1 + draw(run, STEPS_MAX);
    for (uint32_t i = 0; i < steps && status == OX_OK; i++) {
        const uint32_t kept = run->keeps ? draw(run, 3) : 0;
        const uint64_t step = run->next_step + kept;
        run->next_step = step + 1;
        status = kept > 0 ? kit_commit_after(store, port, step, kept, &run->wrong) : kit_commit(store, port, step);
        if (status == OX_OK) {
            run->done_step = step;
            run->tally->commits++;
        }
    }
    run->inside = status != OX_OK;
    run->tally->crashed_inside += run->inside;
    ox_store_port_close(&port);
    ox_store_close(&store);
}

/* From a point that the seed chooses, every write or every flush fails, as if the process were dead. */
static void arm(struct run *run) {
    const bool on_flush = draw(run, 4) == 0;
    const struct ox_fault_rule rule = {.kind = OX_FAULT_EIO,
                                       .point = on_flush ? OX_FAULT_ON_FLUSH : OX_FAULT_ON_WRITE,
                                       .first_idx = draw(run, on_flush ? 20 : 80),
                                       .persistent = true};
    ox_io_fault_set(run->fault, &rule);
}

/* Returns whether the store says correctly that there is nothing to recover. */
static bool refuses(const struct run *run, enum ox_status status) {
    char words[128];
    snprintf(words, sizeof words, "one generation (--store-generations 1) and was being rewritten at step %llu ",
             (unsigned long long)(run->next_step - 1));
    return status == OX_E_CORRUPT && run->kit.config.generations == 1 && run->inside &&
           strstr(ox_error_text(), words) != NULL;
}

/* Recovers, and checks that the promise was kept. Returns false if the store cannot be used any more. */
static bool recover(struct run *run) {
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    struct ox_store_info info;
    enum ox_status status = ox_store_open(&run->kit.config, &store);
    bool wrong = false;
    memset(&info, 0, sizeof info);
    if (refuses(run, status)) {
        run->tally->cuts++;
        run->tally->refused++;
        return false;
    }
    if (status == OX_OK) {
        ox_store_info(store, &info);
        status = ox_store_port_open(store, &port);
    }
    if (status == OX_OK && info.committed) {
        status = kit_verify(store, port, info.step, &wrong);
    }
    ox_store_port_close(&port);
    ox_store_close(&store);
    run->tally->cuts++;
    run->tally->corrupt += status != OX_OK || wrong || run->wrong;
    run->tally->lost += status == OX_OK && info.step < run->done_step;
    run->tally->forward += status == OX_OK && info.step > run->done_step;
    run->tally->kept += status == OX_OK && run->inside && info.step == run->done_step;
    CHECK(status != OX_OK || info.step < run->next_step);
    run->done_step = info.step;
    run->next_step = ox_max_u64(run->next_step, info.step + 1);
    return true;
}

static void run_seed(uint64_t seed, uint32_t generations, bool lying, struct tally *tally) {
    struct run run = {.seed = seed, .next_step = 1, .tally = tally, .keeps = generations >= 2 && seed % 2 == 1};
    struct ox_store *store = NULL;
    REQUIRE_OK(ox_io_sim_open(seed, &run.sim));
    REQUIRE_OK(ox_io_fault_open(run.sim, &run.lying));
    REQUIRE_OK(ox_io_fault_open(run.lying, &run.fault));
    kit_init(&run.kit, run.fault, "/sim", 1 + (uint32_t)(seed % 3));
    run.kit.config.extents = extents;
    run.kit.config.extent_count = sizeof extents / sizeof *extents;
    run.kit.config.generations = generations;
    REQUIRE_OK(ox_store_create(&run.kit.config, &store));
    ox_store_close(&store);
    const uint64_t before = tally->lost + tally->corrupt;
    for (int i = 0; i < CUTS_PER_SEED; i++) {
        if (lying) {
            ox_io_fault_set(run.lying, &(struct ox_fault_rule){OX_FAULT_LOST, OX_FAULT_ON_FLUSH, 0, true});
        }
        arm(&run);
        work(&run);
        ox_io_fault_set(run.fault, NULL);
        ox_io_fault_set(run.lying, NULL);
        ox_io_sim_power_cut(run.sim);
        if (!recover(&run)) {
            break;
        }
        if (tally->lost + tally->corrupt > before) {
            if (!lying) {
                printf("seed %llu, cut %d: %s\n", (unsigned long long)seed, i, ox_error_text());
            }
            break;
        }
    }
    ox_io_fault_close(&run.fault);
    ox_io_fault_close(&run.lying);
    ox_io_sim_close(&run.sim);
}

/* One drive skips a flush of the second step; the next one fails, so that the cut falls right there. */
static void control(uint32_t generations, uint64_t flush_idx, struct tally *tally) {
    for (uint64_t seed = 0; seed < CONTROL_SEEDS; seed++) {
        struct run run = {.seed = seed, .next_step = 1, .tally = tally};
        struct ox_store *store = NULL;
        REQUIRE_OK(ox_io_sim_open(seed, &run.sim));
        REQUIRE_OK(ox_io_fault_open(run.sim, &run.lying));
        REQUIRE_OK(ox_io_fault_open(run.lying, &run.fault));
        kit_init(&run.kit, run.fault, "/sim", 1);
        run.kit.config.generations = generations;
        REQUIRE_OK(ox_store_create(&run.kit.config, &store));
        struct ox_store_port *port = NULL;
        REQUIRE_OK(ox_store_port_open(store, &port));
        REQUIRE_OK(kit_commit(store, port, run.next_step++));
        run.done_step = 1;
        ox_io_fault_set(run.lying, &(struct ox_fault_rule){OX_FAULT_LOST, OX_FAULT_ON_FLUSH, flush_idx, false});
        ox_io_fault_set(run.fault, &(struct ox_fault_rule){OX_FAULT_EIO, OX_FAULT_ON_FLUSH, flush_idx + 1, true});
        CHECK(kit_commit(store, port, run.next_step++) == OX_E_IO);
        ox_store_port_close(&port);
        ox_store_close(&store);
        ox_io_fault_set(run.fault, NULL);
        ox_io_fault_set(run.lying, NULL);
        ox_io_sim_power_cut(run.sim);
        run.inside = true;
        (void)recover(&run);
        ox_io_fault_close(&run.fault);
        ox_io_fault_close(&run.lying);
        ox_io_sim_close(&run.sim);
    }
}

static void print_tally(const char *what, const struct tally *tally) {
    printf("%s: %llu cuts, %llu commits, %llu crashes inside a step; %llu steps lost, %llu states damaged, "
           "%llu one ahead, %llu refused, %llu as before the step\n",
           what, (unsigned long long)tally->cuts, (unsigned long long)tally->commits,
           (unsigned long long)tally->crashed_inside, (unsigned long long)tally->lost,
           (unsigned long long)tally->corrupt, (unsigned long long)tally->forward,
           (unsigned long long)tally->refused, (unsigned long long)tally->kept);
}

static void several_generations(uint32_t generations, uint64_t seeds) {
    struct tally honest = {0}, no_flush = {0}, late_data = {0};
    for (uint64_t seed = 0; seed < seeds; seed++) {
        run_seed(seed, generations, false, &honest);
    }
    print_tally(generations == 2 ? "two generations, honest drive" : "three generations, honest drive", &honest);
    CHECK(honest.lost == 0 && honest.corrupt == 0 && honest.refused == 0);
    CHECK(honest.cuts == seeds * CUTS_PER_SEED && honest.commits > seeds && honest.crashed_inside > seeds);
    for (uint64_t seed = 0; seed < CONTROL_SEEDS; seed++) {
        run_seed(seed, generations, true, &no_flush);
    }
    print_tally("control, flushes skipped", &no_flush);
    CHECK(no_flush.lost + no_flush.corrupt > CONTROL_SEEDS / 4);
    control(generations, 0, &late_data);
    print_tally("control, root before data", &late_data);
    CHECK(late_data.corrupt > 0);
}

static void one_generation(uint64_t seeds) {
    struct tally honest = {0}, no_flush = {0}, late_mark = {0}, late_data = {0};
    for (uint64_t seed = 0; seed < seeds; seed++) {
        run_seed(seed, 1, false, &honest);
    }
    print_tally("one generation, honest drive", &honest);
    CHECK(honest.lost == 0 && honest.corrupt == 0);
    CHECK(honest.cuts > seeds && honest.commits > seeds && honest.refused > seeds / 4 && honest.kept > seeds / 16);
    for (uint64_t seed = 0; seed < CONTROL_SEEDS; seed++) {
        run_seed(seed, 1, true, &no_flush);
    }
    print_tally("one generation, control, flushes skipped", &no_flush);
    CHECK(no_flush.lost + no_flush.corrupt > CONTROL_SEEDS / 4);
    control(1, 0, &late_mark);
    print_tally("one generation, control, data before mark", &late_mark);
    CHECK(late_mark.corrupt > 0);
    control(1, 1, &late_data);
    print_tally("one generation, control, root before data", &late_data);
    CHECK(late_data.corrupt > 0);
}

int main(int argc, char **argv) {
    const uint64_t seeds = ox_div_up(kit_count(argc, argv, CUTS_USUAL), CUTS_PER_SEED);
    several_generations(2, seeds);
    several_generations(3, seeds / 2);
    one_generation(seeds);
    return test_end();
}
