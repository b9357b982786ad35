/* One transaction over two stores on disks in memory, with a scripted vote. Each process dies, and loses power or not,
 * at every write and flush of a run: alone, or both at once; each of these fails once; every message of the vote is
 * lost; roots, tables and data are damaged. Afterwards both agree on one step, no older than the last that both have
 * committed, which both hold in every word; the next transactions work, also where the recovery itself is cut.
 *
 *     test_store_vote [--count SEEDS] */
#include "nvme/store_impl.h"
#include "tests/kit/files.h"
#include "tests/kit/store/store_kit.h"

#include <string.h>

#ifdef __SANITIZE_ADDRESS__
enum { STRIDE_USUAL = 13, QUICK = 1 };
#else
enum { STRIDE_USUAL = 1, QUICK = 5 };
#endif
enum { SIDES = 2, SEEDS_USUAL = 1, STEPS = 2, FIRST_STEPS = 2 };
static const uint64_t NEVER = UINT64_MAX;

static const struct ox_extent_spec extents[] = {{8192, 4096}, {4096, 0}, {12288, 4096}};

/* A process: fault[0] fails writes and fault[1] flushes once it is dead, over its own disk. */
struct side {
    struct kit kit;
    struct ox_io_backend *sim, *faults[2], backend;
    struct ox_store *store;
    struct ox_store_port *port;
    uint64_t die_at, op_count; /* writes and flushes of this life */
    bool lives_on;             /* only that operation fails, and the process notices */
};

struct pair {
    struct side sides[SIDES];
    uint64_t done_step, tried_step; /* the last step that both have committed; the last that was begun */
};

/* One life of both processes, from their start to their end. */
struct script {
    uint64_t die_at[SIDES]; /* write or flush, from 0; NEVER */
    bool lives_on;
    unsigned lost;          /* messages of the first step: bit 2 * round + receiver; rounds are prepared, committed */
    bool cuts[SIDES];       /* at the end, its power is cut */
    uint32_t steps;
};

static struct {
    uint64_t lives, commits, went_back, kept, refused;
} tally;

static struct side *now; /* the process that acts */
static const struct ox_io_backend *inner;

/* ---- a process that dies ------------------------------------------------------------------------------- */

static void count_op(enum ox_fault_point point) {
    if (now->op_count++ != now->die_at) {
        return;
    }
    for (uint32_t i = 0; i < 2; i++) {
        const enum ox_fault_point here = i == 0 ? OX_FAULT_ON_WRITE : OX_FAULT_ON_FLUSH;
        if (here == point || !now->lives_on) {
            ox_io_fault_set(now->faults[i], &(struct ox_fault_rule){OX_FAULT_EIO, here, 0, !now->lives_on});
        }
    }
}

static enum ox_status counted_flush(struct ox_drive *drive) {
    count_op(OX_FAULT_ON_FLUSH);
    return inner->drive_flush(drive);
}

static enum ox_status counted_submit(struct ox_io_queue *queue, uint32_t drive_idx, const struct ox_io_req *req) {
    if (req->kind == OX_IO_WRITE) {
        count_op(OX_FAULT_ON_WRITE);
    }
    return inner->queue_submit(queue, drive_idx, req);
}

static void side_open(struct side *side, uint64_t seed, uint32_t drive_count) {
    *side = (struct side){.die_at = NEVER};
    REQUIRE_OK(ox_io_sim_open(seed, &side->sim));
    REQUIRE_OK(ox_io_fault_open(side->sim, &side->faults[1]));
    REQUIRE_OK(ox_io_fault_open(side->faults[1], &side->faults[0]));
    inner = side->faults[0];
    side->backend = *side->faults[0];
    side->backend.drive_flush = counted_flush;
    side->backend.queue_submit = counted_submit;
    kit_init(&side->kit, &side->backend, "/sim", drive_count);
    side->kit.config.extents = extents;
    side->kit.config.extent_count = sizeof extents / sizeof *extents;
    now = side;
    REQUIRE_OK(ox_store_create(&side->kit.config, &side->store));
    ox_store_close(&side->store);
}

static void side_start(struct side *side, uint64_t die_at, bool lives_on) {
    now = side;
    side->die_at = die_at;
    side->lives_on = lives_on;
    side->op_count = 0;
}

static void side_end(struct side *side, bool cut) {
    now = side;
    ox_store_port_close(&side->port);
    ox_store_close(&side->store);
    ox_io_fault_set(side->faults[0], NULL);
    ox_io_fault_set(side->faults[1], NULL);
    if (cut) {
        ox_io_sim_power_cut(side->sim);
    }
}

static void pair_open(struct pair *pair, uint64_t seed, uint32_t drive_count) {
    *pair = (struct pair){.done_step = 0};
    for (uint32_t i = 0; i < SIDES; i++) {
        side_open(&pair->sides[i], seed * SIDES + i, drive_count);
    }
}

static void pair_close(struct pair *pair) {
    for (uint32_t i = 0; i < SIDES; i++) {
        ox_io_fault_close(&pair->sides[i].faults[0]);
        ox_io_fault_close(&pair->sides[i].faults[1]);
        ox_io_sim_close(&pair->sides[i].sim);
    }
}

/* ---- a life ---------------------------------------------------------------------------------------------- */

/* Looks, agrees; the point may be newer than what both have reported. */
static enum ox_status agree(struct pair *pair, struct ox_store_point *point) {
    struct ox_store_offer offers[SIDES];
    for (uint32_t i = 0; i < SIDES; i++) {
        now = &pair->sides[i];
        REQUIRE_OK(ox_store_look(&now->kit.config, &offers[i]));
        const struct ox_store_point *const newest = &offers[i].points[0], *const older = &offers[i].points[1];
        CHECK(offers[i].point_count == 1 || (newest->committed && (!older->committed || older->step < newest->step)));
    }
    const enum ox_status status = ox_store_agree(offers, SIDES, point);
    for (uint32_t i = 0; i < SIDES && status == OX_OK; i++) {
        tally.went_back += offers[i].points[0].committed && offers[i].points[0].step != point->step;
    }
    return status;
}

static enum ox_status open_at(struct side *side, const struct ox_store_point *point) {
    now = side;
    side->kit.config.point = point;
    enum ox_status status = ox_store_open(&side->kit.config, &side->store);
    side->kit.config.point = NULL;
    if (status == OX_OK) {
        status = ox_store_port_open(side->store, &side->port);
    }
    bool wrong = false;
    if (status == OX_OK && point->committed) {
        status = kit_verify(side->store, side->port, point->step, &wrong);
    }
    CHECK(!wrong);
    return status;
}

/* Starts both processes; the state is that of one step. */
static void start(struct pair *pair, const struct script *script) {
    struct ox_store_point point;
    for (uint32_t i = 0; i < SIDES; i++) {
        side_start(&pair->sides[i], script->die_at[i], script->lives_on);
    }
    REQUIRE_OK(agree(pair, &point));
    CHECK(point.step >= pair->done_step && point.step <= pair->tried_step);
    CHECK(point.committed || pair->done_step == 0);
    tally.kept += point.step > pair->done_step;
    pair->done_step = point.step;
    pair->tried_step = point.step;
    for (uint32_t i = 0; i < SIDES; i++) {
        REQUIRE_OK(open_at(&pair->sides[i], &point));
    }
}

static bool is_heard(const struct script *script, bool first, uint32_t round, uint32_t receiver) {
    return !first || (script->lost >> (2 * round + receiver) & 1) == 0;
}

static bool prepares(struct side *side, uint64_t step) {
    now = side;
    enum ox_status status = ox_store_begin(side->store, step);
    if (status != OX_OK) {
        return false;
    }
    status = kit_write(side->store, side->port, step, side->kit.config.extent_count);
    if (status != OX_OK) {
        ox_store_abort(side->store);
        return false;
    }
    return ox_store_prepare(side->store, &step, sizeof step) == OX_OK;
}

/* Takes a step by the vote; returns whether both may go on. */
static bool take_step(struct pair *pair, const struct script *script, bool first) {
    const uint64_t step = ++pair->tried_step;
    bool prepared[SIDES], committed[SIDES] = {false};
    for (uint32_t i = 0; i < SIDES; i++) {
        prepared[i] = prepares(&pair->sides[i], step);
    }
    for (uint32_t i = 0; i < SIDES; i++) {
        now = &pair->sides[i];
        if (prepared[i] && prepared[1 - i] && is_heard(script, first, 0, i)) {
            committed[i] = ox_store_commit(now->store, NULL, 0) == OX_OK;
        } else {
            ox_store_abort(now->store);
        }
    }
    if (!committed[0] || !committed[1]) {
        return false;
    }
    pair->done_step = step;
    tally.commits++;
    return is_heard(script, first, 1, 0) && is_heard(script, first, 1, 1);
}

static void live(struct pair *pair, const struct script *script) {
    start(pair, script);
    bool goes_on = true;
    for (uint32_t i = 0; i < script->steps && goes_on; i++) {
        goes_on = take_step(pair, script, i == 0);
    }
    for (uint32_t i = 0; i < SIDES; i++) {
        side_end(&pair->sides[i], script->cuts[i]);
    }
    tally.lives++;
}

static const struct script quiet = {.die_at = {UINT64_MAX, UINT64_MAX}, .steps = STEPS};

/* Two quiet lives: all steps are committed, and found again. */
static void live_on(struct pair *pair) {
    for (int i = 0; i < 2; i++) {
        live(pair, &quiet);
        CHECK(pair->done_step == pair->tried_step);
    }
}

/* ---- sweeps ---------------------------------------------------------------------------------------------- */

static void begin(struct pair *pair, uint64_t seed, uint32_t drive_count, uint32_t first_steps) {
    struct script first = quiet;
    first.steps = first_steps;
    pair_open(pair, seed, drive_count);
    live(pair, &first);
}

/* How many writes and flushes a process makes in a quiet life. */
static uint64_t ops_of_life(uint32_t drive_count, uint32_t first_steps) {
    struct pair pair;
    begin(&pair, 1, drive_count, first_steps);
    live(&pair, &quiet);
    const uint64_t count = pair.sides[0].op_count;
    CHECK(count == pair.sides[1].op_count && count > 10);
    pair_close(&pair);
    return count;
}

/* Both die, each at its own operation, NEVER after the last; then one or both in the recovery. */
static void deaths_at(uint64_t seed, uint32_t drive_count, uint32_t first_steps, const uint64_t die_at[SIDES]) {
    struct pair pair;
    const uint64_t mix = seed + 5 * die_at[0] + 7 * die_at[1];
    struct script script = {.die_at = {die_at[0], die_at[1]}, .steps = STEPS};
    for (uint32_t i = 0; i < SIDES; i++) {
        script.cuts[i] = (mix >> i & 1) == 0; /* else the process is killed, and what it wrote is there */
    }
    begin(&pair, seed * 1000 + die_at[0] * 64 + die_at[1], drive_count, first_steps);
    live(&pair, &script);
    script.die_at[mix % SIDES] = mix % 17;
    script.die_at[1 - mix % SIDES] = mix % 3 == 0 ? mix % 13 : NEVER;
    live(&pair, &script);
    live_on(&pair);
    pair_close(&pair);
}

/* An operation of one side fails once: the step is committed on both or on none. */
static void failure_at(uint32_t drive_count, uint32_t first_steps, uint32_t idx, uint64_t at) {
    struct pair pair;
    struct script script = quiet;
    script.lives_on = true;
    script.die_at[idx] = at;
    begin(&pair, at, drive_count, first_steps);
    live(&pair, &script);
    live_on(&pair);
    pair_close(&pair);
}

static void deaths(uint64_t seeds, uint64_t stride) {
    for (uint32_t drive_count = 1; drive_count <= 3; drive_count++) {
        for (uint32_t first_steps = 0; first_steps <= FIRST_STEPS; first_steps += FIRST_STEPS) {
            const uint64_t ops = ops_of_life(drive_count, first_steps);
            for (uint64_t at = 0; at <= SIDES * ops; at++) {
                failure_at(drive_count, first_steps, at % SIDES, at / SIDES);
            }
            for (uint64_t seed = 0; seed < seeds; seed++) {
                for (uint64_t at = seed % stride; at <= ops; at += stride) {
                    deaths_at(seed, drive_count, first_steps, (uint64_t[]){at, NEVER});
                    deaths_at(seed, drive_count, first_steps, (uint64_t[]){NEVER, at});
                    for (uint64_t other = seed % 3; other <= ops; other += 3) {
                        deaths_at(seed, drive_count, first_steps, (uint64_t[]){at, other});
                    }
                }
            }
        }
    }
}

/* Every set of lost messages, alone and with a power cut of either side or of both. A step is kept if both were told to
 * commit it; if one was, that one goes back. */
static void lost_messages(void) {
    const uint64_t kept = tally.kept;
    for (uint32_t i = 0; i < 16 * 4 * 3; i++) {
        struct pair pair;
        struct script script = quiet;
        script.lost = i % 16;
        script.cuts[0] = (i / 16 & 1) != 0;
        script.cuts[1] = (i / 16 & 2) != 0;
        const unsigned unheard = script.lost & 3;
        const uint64_t steps = unheard != 0 ? 0 : script.lost != 0 ? 1 : STEPS;
        begin(&pair, i, 1 + i / 64, 0);
        for (uint64_t life = 1; life <= 3; life++) { /* the first time it is the first step of all */
            const uint64_t went_back = tally.went_back;
            live(&pair, &script);
            CHECK(pair.done_step == life * steps);
            CHECK(tally.went_back - went_back == (life > 1 && (unheard == 1 || unheard == 2)));
        }
        live_on(&pair);
        pair_close(&pair);
    }
    CHECK(tally.kept == kept);
}

/* ---- damage ---------------------------------------------------------------------------------------------- */

enum what { ROOT, TABLE, DATA };
enum copies { ONE, ALL_BUT_ONE, ALL };
enum { AHEAD, BEHIND, SPOTS_MAX = 512 }; /* process 0 has committed steps 3 and 4, process 1 only 3 */

/* With `words` NULL both go on from step 3. */
static const struct damage {
    uint32_t side;
    enum what what;
    uint64_t step;
    const char *words; /* of the refusal where all copies are damaged */
} damages[] = {
    {AHEAD, ROOT, 4, NULL},
    {AHEAD, TABLE, 4, NULL},
    {AHEAD, DATA, 4, NULL},
    {AHEAD, ROOT, 3, "process 0 holds step 4, but process 1 holds step 3: they have no step in common"},
    {AHEAD, TABLE, 3, "process 0 holds step 4, but process 1 holds step 3: they have no step in common"},
    {AHEAD, DATA, 3, "holds step 4 and cannot go back to step 3, which is not intact"},
    {BEHIND, ROOT, 3, "no generation of the store is intact"},
    {BEHIND, TABLE, 3, "no generation of the store is intact"},
    {BEHIND, DATA, 3, "extent 1"},
};

struct spot {
    uint32_t drive_idx;
    uint64_t offset;
};

static void read_root(struct side *side, struct spot spot, struct ox_store_root *root) {
    struct ox_store *const store = side->store;
    REQUIRE_OK(ox_store_transfer(store, OX_IO_READ, spot.drive_idx, spot.offset, root, sizeof *root));
}

/* Lists the copies of a root, or of its table; or the block of an extent, which has none. */
static uint32_t find_spots(struct side *side, const struct damage *damage, struct spot spots[SPOTS_MAX]) {
    struct ox_store_root *const root = kit_buffer(sizeof *root);
    uint32_t count = 0, generation = 2;
    now = side;
    REQUIRE_OK(ox_store_open(&side->kit.config, &side->store));
    const struct ox_store_layout *const layout = &side->store->layout;
    for (uint32_t i = 0; i < layout->drive_count * OX_STORE_REGION_COUNT * OX_STORE_RING_LEN; i++) {
        const struct spot spot = {.drive_idx = i / OX_STORE_RING_LEN / OX_STORE_REGION_COUNT,
                                  .offset = (uint64_t)(i / OX_STORE_RING_LEN % OX_STORE_REGION_COUNT) *
                                                OX_STORE_REGION_STRIDE +
                                            (1 + i % OX_STORE_RING_LEN) * (uint64_t)OX_STORE_BLOCK_BYTES};
        read_root(side, spot, root);
        if (root->magic == OX_STORE_ROOT_MAGIC && root->committed && root->step == damage->step) {
            generation = root->generation;
            spots[count] = spot;
            count += damage->what == ROOT;
        }
    }
    CHECK(generation < 2 || damage->what == ROOT);
    for (uint32_t i = 0; i < layout->drive_count && damage->what == TABLE; i++) {
        spots[count++] = (struct spot){.drive_idx = i, .offset = layout->table_offset[generation]};
    }
    if (damage->what == DATA) {
        spots[count++] = (struct spot){.drive_idx = layout->places[1].drive_idx,
                                       .offset = ox_store_slot_offset(side->store, 1, generation)};
    }
    ox_store_close(&side->store);
    free(root);
    return count;
}

static void do_damage(struct side *side, const struct damage *damage, enum copies copies) {
    struct spot spots[SPOTS_MAX];
    const uint32_t found = find_spots(side, damage, spots);
    CHECK(found > 0);
    for (uint32_t i = 0; i < (copies == ONE ? 1 : copies == ALL ? found : found - 1); i++) {
        const char *const path = test_pathf("/sim/offload-store-%u.ox", spots[i].drive_idx);
        CHECK(ox_io_sim_flip_bit(side->sim, path, spots[i].offset + 24, 3));
    }
}

/* Starts both; the first refusal is the status. */
static enum ox_status try_start(struct pair *pair) {
    struct ox_store_offer offers[SIDES];
    struct ox_store_point point = {.step = 0};
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < SIDES && status == OX_OK; i++) {
        now = &pair->sides[i];
        status = ox_store_look(&now->kit.config, &offers[i]);
    }
    OX_THEN(status, ox_store_agree(offers, SIDES, &point));
    CHECK(status != OX_OK || (point.committed && point.step == 3));
    for (uint32_t i = 0; i < SIDES && status == OX_OK; i++) {
        status = open_at(&pair->sides[i], &point);
    }
    for (uint32_t i = 0; i < SIDES; i++) {
        side_end(&pair->sides[i], false);
    }
    return status;
}

static void damage_one(uint32_t drive_count, const struct damage *damage, enum copies copies) {
    struct pair pair;
    struct script split = quiet;
    split.lost = 1 << BEHIND;
    begin(&pair, drive_count, drive_count, 3);
    live(&pair, &split);
    do_damage(&pair.sides[damage->side], damage, copies);
    const bool refused = copies == ALL && damage->words != NULL;
    const enum ox_status status = try_start(&pair);
    const bool right = refused ? status == OX_E_CORRUPT && strstr(ox_error_text(), damage->words) != NULL
                               : status == OX_OK;
    if (!right) {
        printf("%u drives, side %u, part %d of step %llu, copies %d: %s: %s\n", drive_count, damage->side,
               (int)damage->what, (unsigned long long)damage->step, (int)copies, ox_status_name(status),
               ox_error_text());
    }
    CHECK(right);
    tally.refused += refused;
    if (!refused) {
        live_on(&pair);
    }
    pair_close(&pair);
}

/* The next transaction wipes the withdrawn root from every ring, also if it is aborted. */
static void withdrawn(uint32_t drive_count) {
    static const struct damage root_4 = {.side = AHEAD, .what = ROOT, .step = 4};
    struct spot spots[SPOTS_MAX];
    struct pair pair;
    struct script split = quiet;
    begin(&pair, 1, drive_count, 3);
    split.lost = 1 << BEHIND;
    live(&pair, &split);
    split.lost = 1 << AHEAD | 1 << BEHIND;
    CHECK(find_spots(&pair.sides[AHEAD], &root_4, spots) == drive_count * OX_STORE_REGION_COUNT);
    live(&pair, &split);
    CHECK(find_spots(&pair.sides[AHEAD], &root_4, spots) == 0);
    pair_close(&pair);
}

static void damage_all(void) {
    for (uint32_t drive_count = 1; drive_count <= 3; drive_count++) {
        withdrawn(drive_count);
        for (uint32_t i = 0; i < sizeof damages / sizeof *damages; i++) {
            for (int copies = ONE; copies <= ALL; copies++) {
                const bool lonely = damages[i].what == DATA || (damages[i].what == TABLE && drive_count == 1);
                if (copies == ALL || !lonely) {
                    damage_one(drive_count, &damages[i], (enum copies)copies);
                }
            }
        }
    }
}

int main(int argc, char **argv) {
    const uint64_t seeds = kit_count(argc, argv, SEEDS_USUAL);
#ifdef __SANITIZE_THREAD__
    test_skip("it has one thread");
#endif
    deaths(seeds, seeds > SEEDS_USUAL ? 1 : STRIDE_USUAL * test_stride(QUICK));
    printf("%llu lives, %llu steps committed by both; %llu times a store went back, %llu times an unfinished step was "
           "kept\n", (unsigned long long)tally.lives, (unsigned long long)tally.commits,
           (unsigned long long)tally.went_back, (unsigned long long)tally.kept);
    CHECK(tally.went_back > seeds && tally.kept > 0);
    lost_messages();
    damage_all();
    printf("%llu damaged pairs refused\n", (unsigned long long)tally.refused);
    return test_end();
}
