/* One transaction over several stores, its parts: the agreement on a step; prepare and commit, which leave the bytes of
 * a commit alone; what a store offers; going back to the commit before. Crashes: tests/fault/test_store_vote*.c. */
#include "base/file.h"
#include "tests/kit/files.h"
#include "tests/kit/store/store_kit.h"

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void refused(enum ox_status status, enum ox_status want, const char *words) {
    const bool right = status == want && strstr(ox_error_text(), words) != NULL;
    CHECK(right);
    if (!right) {
        printf("wanted %s \"%s\", got %s: %s\n", ox_status_name(want), words, ox_status_name(status), ox_error_text());
    }
}

/* ---- the agreement ----------------------------------------------------------------------------------- */

enum { EMPTY = -1, END = -2 }; /* in a list of points: no commit; the end */

static struct ox_store_offer offer_of(int newest, int older) {
    const int given[] = {newest, older};
    struct ox_store_offer offer = {.run_id = {1, 2}, .generations = 2};
    for (int i = 0; i < 2 && given[i] != END; i++) {
        offer.points[offer.point_count++] =
            (struct ox_store_point){.step = given[i] == EMPTY ? 0 : (uint64_t)given[i], .committed = given[i] != EMPTY};
    }
    return offer;
}

static bool contains(const struct ox_store_offer *offer, int point) {
    for (uint32_t i = 0; i < offer->point_count; i++) {
        const struct ox_store_point *const at = &offer->points[i];
        if (at->committed ? (int)at->step == point : point == EMPTY) {
            return true;
        }
    }
    return false;
}

/* All offers of three processes with steps below STEPS; the answer is looked up from the newest step down. */
static void every_agreement(void) {
    enum { STEPS = 4, KINDS_MAX = 32 };
    struct ox_store_offer kinds[KINDS_MAX];
    uint32_t kind_count = 0, agreed = 0;
    kinds[kind_count++] = offer_of(END, END);
    for (int newest = EMPTY; newest < STEPS; newest++) {
        for (int older = END; older < newest; older++) {
            kinds[kind_count++] = offer_of(newest, older);
        }
    }
    for (uint32_t i = 0; i < kind_count * kind_count * kind_count; i++) {
        const struct ox_store_offer offers[3] = {kinds[i % kind_count], kinds[i / kind_count % kind_count],
                                                 kinds[i / kind_count / kind_count]};
        bool lost = false;
        int want = STEPS - 1;
        for (uint32_t k = 0; k < 3; k++) {
            lost |= offers[k].point_count == 0;
        }
        for (; want > END; want--) {
            uint32_t have = 0;
            for (uint32_t k = 0; k < 3; k++) {
                have += contains(&offers[k], want) || (want == EMPTY && offers[k].point_count == 0);
                have -= lost && offers[k].point_count > 0 && offers[k].points[0].committed && want == EMPTY &&
                        contains(&offers[k], want);
            }
            if (have == 3) {
                break;
            }
        }
        struct ox_store_point point = {.step = 99};
        const enum ox_status status = ox_store_agree(offers, 3, &point);
        CHECK(status == (want == END ? OX_E_CORRUPT : OX_OK));
        CHECK(status != OX_OK || (want == EMPTY ? !point.committed && point.step == 0
                                                : point.committed && (int)point.step == want));
        agreed += status == OX_OK;
    }
    printf("%u of %u triples agree\n", agreed, kind_count * kind_count * kind_count);
    CHECK(agreed > 100);
}

static void agreement_texts(void) {
    struct ox_store_point point;
    struct ox_store_offer offers[3] = {offer_of(7, 6), offer_of(7, 6), offer_of(5, 4)};
    refused(ox_store_agree(offers, 3, &point), OX_E_CORRUPT,
            "process 0 holds step 7 and before it step 6, but process 2 holds step 5 and before it step 4");
    CHECK(strstr(ox_error_text(), "resume from a checkpoint") != NULL);
    offers[2] = offer_of(END, END);
    refused(ox_store_agree(offers, 3, &point), OX_E_CORRUPT, "but process 2 holds no store");
    offers[2] = offer_of(EMPTY, END);
    refused(ox_store_agree(offers, 3, &point), OX_E_CORRUPT, "but process 2 holds no commit");
    offers[2] = offer_of(7, 6);
    offers[2].run_id[1] = 3;
    refused(ox_store_agree(offers, 3, &point), OX_E_CONFIG,
            "process 0 has a store of run 00000000000000010000000000000002, process 2 one of run "
            "00000000000000010000000000000003");
    offers[2].run_id[0] = 4;
    refused(ox_store_agree(offers, 3, &point), OX_E_CONFIG, "process 2 one of run 00000000000000040000000000000003");
    offers[2] = offer_of(7, END);
    offers[2].generations = 1;
    refused(ox_store_agree(offers, 3, &point), OX_E_CONFIG,
            "process 2: its store has one generation (--store-generations 1) and cannot go back");
    CHECK(ox_store_agree(&offers[2], 1, &point) == OX_OK && point.committed && point.step == 7);
}

/* ---- prepare and commit -------------------------------------------------------------------------------- */

struct rig {
    struct kit kit;
    struct ox_io_backend *sim, *fault;
    struct ox_store *store;
    struct ox_store_port *port;
};

static void rig_open(struct rig *rig, uint32_t drive_count, uint32_t generations) {
    memset(rig, 0, sizeof *rig);
    REQUIRE_OK(ox_io_sim_open(9, &rig->sim));
    REQUIRE_OK(ox_io_fault_open(rig->sim, &rig->fault));
    kit_init(&rig->kit, rig->fault, "/sim", drive_count);
    rig->kit.config.generations = generations;
    REQUIRE_OK(ox_store_create(&rig->kit.config, &rig->store));
    REQUIRE_OK(ox_store_port_open(rig->store, &rig->port));
}

static void rig_pause(struct rig *rig) {
    ox_store_port_close(&rig->port);
    ox_store_close(&rig->store);
}

static enum ox_status rig_reopen(struct rig *rig, const struct ox_store_point *point) {
    rig_pause(rig);
    rig->kit.config.point = point;
    const enum ox_status status = ox_store_open(&rig->kit.config, &rig->store);
    rig->kit.config.point = NULL;
    if (status == OX_OK) {
        REQUIRE_OK(ox_store_port_open(rig->store, &rig->port));
    }
    return status;
}

static void rig_close(struct rig *rig) {
    rig_pause(rig);
    ox_io_fault_close(&rig->fault);
    ox_io_sim_close(&rig->sim);
}

static void expect_whole(struct rig *rig, uint64_t step) {
    bool wrong = false;
    REQUIRE_OK(kit_verify(rig->store, rig->port, step, &wrong));
    CHECK(!wrong);
}

/* Prepares `step`; its meta is the step, as that of kit_commit. */
static enum ox_status prepare(struct rig *rig, uint64_t step) {
    REQUIRE_OK(ox_store_begin(rig->store, step));
    REQUIRE_OK(kit_write(rig->store, rig->port, step, KIT_EXTENT_COUNT));
    return ox_store_prepare(rig->store, &step, sizeof step);
}

/* Checks what the closed store offers: `newest`, and `older` unless that is END. */
static void expect_offer(struct rig *rig, int newest, int older) {
    struct ox_store_offer offer;
    REQUIRE_OK(ox_store_look(&rig->kit.config, &offer));
    const struct ox_store_offer want = offer_of(newest, older);
    CHECK(offer.run_id[0] == rig->kit.config.run_id[0] && offer.run_id[1] == rig->kit.config.run_id[1]);
    CHECK(offer.generations == (rig->kit.config.generations == 1 ? 1 : 2) && offer.point_count == want.point_count);
    for (uint32_t i = 0; i < want.point_count; i++) {
        CHECK(offer.points[i].committed == want.points[i].committed && offer.points[i].step == want.points[i].step);
    }
}

/* On real files: a commit in two parts writes what one call writes. */
static void same_bytes(void) {
    char *data[2][2] = {{NULL}};
    size_t bytes[2][2];
    for (int two_parts = 0; two_parts < 2; two_parts++) {
        struct rig rig = {.store = NULL};
        kit_init(&rig.kit, ox_io_threads(), files_make_folder(two_parts ? "two" : "one"), 2);
        REQUIRE_OK(ox_store_create(&rig.kit.config, &rig.store));
        REQUIRE_OK(ox_store_port_open(rig.store, &rig.port));
        for (uint64_t step = 0; step < 5; step++) {
            if (two_parts) {
                REQUIRE_OK(prepare(&rig, step));
                REQUIRE_OK(ox_store_commit(rig.store, NULL, 0));
            } else {
                REQUIRE_OK(kit_commit(rig.store, rig.port, step));
            }
            if (step == 2) {
                REQUIRE_OK(rig_reopen(&rig, NULL));
            }
        }
        rig_pause(&rig);
        for (int i = 0; i < 2; i++) {
            const char *const path = test_pathf("%s/offload-store-%d.ox", two_parts ? "two" : "one", i);
            REQUIRE_OK(ox_file_read(path, 64 * OX_MIB, &data[two_parts][i], &bytes[two_parts][i]));
        }
    }
    for (int i = 0; i < 2; i++) {
        CHECK(bytes[0][i] > OX_MIB && bytes[0][i] == bytes[1][i] && memcmp(data[0][i], data[1][i], bytes[0][i]) == 0);
        free(data[0][i]);
        free(data[1][i]);
    }
}

/* What may follow a prepare: reads of both states, an abort, the end of the process, another attempt. */
static void after_prepare(void) {
    struct rig rig;
    rig_open(&rig, 2, 2);
    REQUIRE_OK(kit_commit(rig.store, rig.port, 1));
    struct ox_store_info before, prepared, after;
    ox_store_info(rig.store, &before);
    REQUIRE_OK(prepare(&rig, 2));
    ox_store_info(rig.store, &prepared);
    CHECK(prepared.step == 1 && prepared.flush_count - before.flush_count == 2);
    expect_whole(&rig, 1);
    ox_store_abort(rig.store);
    expect_whole(&rig, 1);
    REQUIRE_OK(prepare(&rig, 2));
    ox_store_abort(rig.store); /* as the end of the process, which leaves nothing else */
    REQUIRE_OK(rig_reopen(&rig, NULL));
    expect_whole(&rig, 1);
    REQUIRE_OK(prepare(&rig, 3));
    ox_store_info(rig.store, &before);
    REQUIRE_OK(ox_store_commit(rig.store, NULL, 0));
    ox_store_info(rig.store, &after);
    CHECK(after.write_bytes - before.write_bytes == 2 * 2 * 4096 && after.flush_count - before.flush_count == 2);
    CHECK(after.step == 3);
    expect_whole(&rig, 3);
    rig_close(&rig);
}

/* Each write and flush of a prepare fails: the transaction is aborted, the next one works. */
static void failed_prepare(void) {
    static const enum ox_fault_point points[] = {OX_FAULT_ON_WRITE, OX_FAULT_ON_FLUSH};
    for (uint64_t i = 0; i < 4; i++) {
        struct rig rig;
        rig_open(&rig, 2, 2);
        REQUIRE_OK(kit_commit(rig.store, rig.port, 1));
        REQUIRE_OK(ox_store_begin(rig.store, 2));
        REQUIRE_OK(kit_write(rig.store, rig.port, 2, KIT_EXTENT_COUNT));
        ox_io_fault_set(rig.fault, &(struct ox_fault_rule){OX_FAULT_EIO, points[i / 2], i % 2, false});
        refused(ox_store_prepare(rig.store, NULL, 0), OX_E_IO, "step 2 is not committed");
        ox_io_fault_set(rig.fault, NULL);
        expect_whole(&rig, 1);
        REQUIRE_OK(kit_commit(rig.store, rig.port, 2));
        expect_whole(&rig, 2);
        rig_close(&rig);
    }
}

/* ---- going back ---------------------------------------------------------------------------------------- */

static const struct ox_store_point empty, step_3 = {.step = 3, .committed = true},
                                          step_4 = {.step = 4, .committed = true};

static void offers(void) {
    struct rig rig;
    rig_open(&rig, 3, 2);
    rig_pause(&rig);
    expect_offer(&rig, EMPTY, END);
    for (int step = 0; step < 5; step++) {
        REQUIRE_OK(rig_reopen(&rig, NULL));
        REQUIRE_OK(kit_commit(rig.store, rig.port, (uint64_t)step));
        rig_pause(&rig);
        expect_offer(&rig, step, step - 1); /* EMPTY is before 0 */
        expect_offer(&rig, step, step - 1); /* looking changed nothing */
    }
    REQUIRE_OK(rig_reopen(&rig, &step_3));
    expect_whole(&rig, 3);
    rig_pause(&rig);
    expect_offer(&rig, 4, 3); /* nor did opening: the root is withdrawn by the next transaction */
    REQUIRE_OK(rig_reopen(&rig, &step_3));
    REQUIRE_OK(ox_store_begin(rig.store, 4));
    ox_store_abort(rig.store);
    rig_pause(&rig);
    expect_offer(&rig, 3, END); /* 2 was overwritten by 4 */
    refused(rig_reopen(&rig, &step_4), OX_E_CORRUPT, "holds step 3 and cannot go back to step 4");
    REQUIRE_OK(rig_reopen(&rig, &step_3));
    REQUIRE_OK(kit_commit(rig.store, rig.port, 4));
    expect_whole(&rig, 4);
    rig_pause(&rig);
    expect_offer(&rig, 4, 3);
    REQUIRE_OK(rig_reopen(&rig, &step_4));
    expect_whole(&rig, 4);
    refused(rig_reopen(&rig, &empty), OX_E_CORRUPT, "holds step 4 and cannot go back to no commit");
    rig_close(&rig);
}

/* The commit before, after the next transaction has overwritten a part of it; and the first commit of all. */
static void going_back(void) {
    struct rig rig;
    rig_open(&rig, 2, 2);
    REQUIRE_OK(kit_commit(rig.store, rig.port, 3));
    rig_pause(&rig);
    expect_offer(&rig, 3, EMPTY);
    REQUIRE_OK(rig_reopen(&rig, &empty));
    struct ox_store_info info;
    ox_store_info(rig.store, &info);
    CHECK(!info.committed);
    REQUIRE_OK(kit_commit(rig.store, rig.port, 2));
    expect_whole(&rig, 2);
    REQUIRE_OK(kit_commit(rig.store, rig.port, 3));
    REQUIRE_OK(kit_commit(rig.store, rig.port, 4));
    REQUIRE_OK(ox_store_begin(rig.store, 5));
    REQUIRE_OK(kit_write(rig.store, rig.port, 5, 1));
    ox_store_abort(rig.store);
    refused(rig_reopen(&rig, &step_3), OX_E_CORRUPT, "cannot go back to step 3, which is not intact");
    REQUIRE_OK(rig_reopen(&rig, &step_4));
    expect_whole(&rig, 4);
    REQUIRE_OK(prepare(&rig, 5));
    ox_store_abort(rig.store);
    refused(rig_reopen(&rig, &step_3), OX_E_CORRUPT, "holds step 4 and cannot go back to step 3;");
    REQUIRE_OK(rig_reopen(&rig, NULL));
    expect_whole(&rig, 4);
    rig_close(&rig);
}

/* The part of a process without any extent, on real files: it takes part in every commit. */
static void no_extents(void) {
    struct rig rig = {.store = NULL};
    const struct ox_store_point step_1 = {.step = 1, .committed = true};
    kit_init(&rig.kit, ox_io_threads(), files_make_folder("none"), 2);
    rig.kit.config.extent_count = 0;
    REQUIRE_OK(ox_store_create(&rig.kit.config, &rig.store));
    REQUIRE_OK(ox_store_port_open(rig.store, &rig.port));
    for (uint64_t step = 0; step < 3; step++) {
        REQUIRE_OK(ox_store_begin(rig.store, step));
        REQUIRE_OK(ox_store_prepare(rig.store, &step, sizeof step));
        REQUIRE_OK(ox_store_commit(rig.store, NULL, 0));
    }
    rig_pause(&rig);
    expect_offer(&rig, 2, 1);
    REQUIRE_OK(rig_reopen(&rig, NULL));
    expect_whole(&rig, 2);
    REQUIRE_OK(rig_reopen(&rig, &step_1));
    expect_whole(&rig, 1);
    REQUIRE_OK(kit_commit(rig.store, rig.port, 2));
    expect_whole(&rig, 2);
    rig_pause(&rig);
    rig.kit.config.extent_count = KIT_EXTENT_COUNT;
    refused(rig_reopen(&rig, NULL), OX_E_CONFIG, "");
}

/* The ring turns over while a store is opened again and again at the older step and never commits. */
static void many_starts(void) {
    struct rig rig;
    rig_open(&rig, 1, 2);
    REQUIRE_OK(kit_commit(rig.store, rig.port, 3));
    REQUIRE_OK(kit_commit(rig.store, rig.port, 4));
    for (int i = 0; i < 150; i++) {
        REQUIRE_OK(rig_reopen(&rig, &step_3));
        expect_whole(&rig, 3);
        REQUIRE_OK(ox_store_begin(rig.store, 4));
        ox_store_abort(rig.store);
    }
    REQUIRE_OK(kit_commit(rig.store, rig.port, 4));
    expect_whole(&rig, 4);
    rig_close(&rig);
}

static void one_generation(void) {
    struct rig rig;
    rig_open(&rig, 2, 1);
    refused(prepare(&rig, 1), OX_E_CONFIG, "the store has one generation (--store-generations 1)");
    const uint64_t meta = 1;
    REQUIRE_OK(ox_store_commit(rig.store, &meta, sizeof meta)); /* the transaction is as it was */
    expect_whole(&rig, 1);
    REQUIRE_OK(kit_commit(rig.store, rig.port, 2));
    rig_pause(&rig);
    expect_offer(&rig, 2, END);
    refused(rig_reopen(&rig, &step_3), OX_E_CORRUPT, "holds step 2 and cannot go back to step 3");
    rig_close(&rig);
}

/* ---- misuse -------------------------------------------------------------------------------------------- */

/* Runs one misuse in a process of its own, which must die at an assertion. */
static void dies(void (*misuse)(struct rig *rig)) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        struct rig rig;
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        CHECK(freopen("/dev/null", "w", stderr) != NULL);
        rig_open(&rig, 1, 2);
        misuse(&rig);
        _exit(0);
    }
    int how = 0;
    CHECK(child > 0 && waitpid(child, &how, 0) == child && WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT);
}

static void write_after_prepare(struct rig *rig) {
    REQUIRE_OK(prepare(rig, 1));
    (void)!kit_write(rig->store, rig->port, 1, 1);
}

static void prepare_twice(struct rig *rig) {
    REQUIRE_OK(prepare(rig, 1));
    (void)!ox_store_prepare(rig->store, NULL, 0);
}

static void other_meta(struct rig *rig) {
    REQUIRE_OK(prepare(rig, 1));
    (void)!ox_store_commit(rig->store, "x", 1);
}

static void prepare_too_early(struct rig *rig) {
    REQUIRE_OK(ox_store_begin(rig->store, 1));
    (void)!ox_store_prepare(rig->store, NULL, 0);
}

int main(void) {
    every_agreement();
    agreement_texts();
    same_bytes();
    after_prepare();
    failed_prepare();
    offers();
    going_back();
    no_extents();
    many_starts();
    one_generation();
    dies(write_after_prepare);
    dies(prepare_twice);
    dies(other_meta);
    dies(prepare_too_early);
    return test_end();
}
