/* The proof stands on its own: this program is linked from its objects, base/ and the names of tasks and buffers that
 * messages use, without the library, so that it would not link if the proof called anything of the builder's. What it
 * says of sizes is compared with numbers that were worked out by hand. */
#include "base/bytes.h"
#include "offload/proof/proof.h"
#include "offload/proof/sizes.h"
#include "tests/kit/plan/plan_model.h"
#include "tests/kit/test.h"

#include <string.h>

enum { UNITS = 3, GROUP = OX_GROUP_ELEMS };

/* Three units of 5, 3 and 1 groups of 2048 elements, chunks of 2 groups, a state with 16-bit lo and fp32 moments. */
struct sample {
    uint64_t elems[UNITS];
    struct plan_model model;
    struct ox_shard shards[UNITS];
    struct ox_shard_table table;
    struct ox_plan_input in;
};

static void make_sample(struct sample *s) {
    memset(s, 0, sizeof *s);
    static const uint64_t groups[UNITS] = {5, 3, 1};
    for (int i = 0; i < UNITS; i++) {
        s->elems[i] = groups[i] * GROUP;
        s->shards[i] = (struct ox_shard){.elem_count = s->elems[i],
                                         .homes = {OX_TIER_HOST, OX_TIER_NVME, OX_TIER_NVME}};
    }
    s->table = (struct ox_shard_table){.shards = s->shards, .unit_count = UNITS, .chunk_elems = 2 * GROUP,
                                       .sizes = {.lo_per_group = 4096, .rest_per_group = 16384}};
    for (int i = 0; i < UNITS; i++) {
        s->shards[i].sizes = s->table.sizes;
        s->shards[i].chunk_elems = s->table.chunk_elems;
        s->shards[i].hi_per_group = 2 * GROUP;
    }
    s->in.table = &s->table;
    s->in.model = (struct ox_plan_model){.micro_batches = 2, .precision = ox_precision_of(OX_COMPUTE_FP32, true),
                                          .grad_bf16 = true};
    plan_model_make(&s->model, s->elems, UNITS,
                    &(struct plan_model_sizes){.act_bytes = 5000, .kept_bytes = 1000, .tied_elems = s->elems[0]},
                    &s->in.model);
    s->in.budget.nvme_bytes = OX_GIB;
    s->in.placement = (struct ox_placement){.tiles = 1, .stream_slots = 3, .kept_units = 1};
}

static void test_planes(void) {
    static struct sample s; /* more than a stack has */
    make_sample(&s);
    CHECK(ox_proof_planes_bytes(&s.in, 1) == 3 * 2048 * 4); /* hi and lo */
    CHECK(ox_proof_weights_home_bytes(&s.in, 1) == 24576 && !ox_proof_lo_in_state(&s.in, 1));
    s.shards[1].homes.state = OX_TIER_HOST;
    CHECK(ox_proof_weights_home_bytes(&s.in, 1) == 12288 && ox_proof_lo_in_state(&s.in, 1));
    s.in.model.eval_only = true;
    CHECK(ox_proof_weights_home_bytes(&s.in, 1) == 24576);
    s.in.model.precision = ox_precision_of(OX_COMPUTE_BF16, true);
    CHECK(ox_proof_planes_bytes(&s.in, 1) == 12288 && ox_proof_weights_home_bytes(&s.in, 1) == 12288);
}

/* Three chunks, of 2, 2 and 1 groups, go to two ranks as two and one, to four as one, one, one and none. */
static void test_parts(void) {
    static const struct {
        uint32_t ranks, idx;
        uint64_t first, count;
    } parts[] = {{1, 0, 0, 5}, {2, 0, 0, 4}, {2, 1, 4, 1}, {4, 1, 2, 2}, {4, 2, 4, 1}, {4, 3, 5, 0}};
    static struct sample s; /* more than a stack has */
    make_sample(&s);
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
        s.in.ranks = (struct ox_plan_ranks){.count = parts[i].ranks, .idx = parts[i].idx};
        const struct ox_proof_part part = ox_proof_part_of(&s.in, 0, parts[i].idx);
        CHECK(part.first == parts[i].first * GROUP && part.count == parts[i].count * GROUP);
        CHECK(ox_proof_planes_bytes(&s.in, 0) == parts[i].count * 8192 && ox_proof_whole_bytes(&s.in, 0) == 40960);
        CHECK(ox_proof_divides(&s.in, 0) == (parts[i].ranks > 1));
    }
    s.in.ranks = (struct ox_plan_ranks){.count = 2, .idx = 1, .sharding = OX_SHARDING_NONE};
    CHECK(ox_proof_own_elems(&s.in, 0) == 5 * GROUP && !ox_proof_divides(&s.in, 0));
}

static void test_state(void) {
    static struct sample s; /* more than a stack has */
    make_sample(&s);
    CHECK(ox_proof_state_bytes(&s.in, 0) == 5 * 20480 && ox_proof_stored_state_bytes(&s.in, 0) == 102400);
    s.table.sizes = s.shards[0].sizes = (struct ox_state_sizes){.lo_per_group = 2048, .rest_per_group = 2080};
    CHECK(ox_proof_state_bytes(&s.in, 0) == 12288 + 12288);          /* 10240 and 10400, in pages */
    CHECK(ox_proof_stored_state_bytes(&s.in, 0) == 3 * 4096 + 5 * 4096); /* chunks of 2, 2 and 1 groups */
}

/* A narrow unit: bytes of its groups in whole pages, no lo beside them, and a cast where compute reads hi of others. */
static void test_narrow(void) {
    static struct sample s; /* more than a stack has */
    make_sample(&s);
    CHECK(ox_proof_hi_bytes(&s.in, 0, 5 * GROUP) == 5 * 4096 && !ox_proof_is_narrow(&s.in, 0));
    s.shards[0].hi_per_group = 2176;
    CHECK(ox_proof_hi_bytes(&s.in, 0, 5 * GROUP) == 3 * 4096 && ox_proof_is_narrow(&s.in, 0)); /* 10880 */
    s.in.model.precision = ox_precision_of(OX_COMPUTE_BF16, false);
    CHECK(ox_proof_cast_bytes(&s.in, 0) == 2 && ox_proof_cast_bytes(&s.in, 1) == 0);
    s.in.model.precision = ox_precision_of(OX_COMPUTE_BF16, true);
    CHECK(ox_proof_cast_bytes(&s.in, 0) == 4 && ox_proof_cast_bytes(&s.in, 1) == 4);
}

static void test_gradients(void) {
    static struct sample s; /* more than a stack has */
    make_sample(&s);
    CHECK(!ox_proof_packs(&s.in, 0) && ox_proof_packs(&s.in, 1) && !ox_proof_packs(&s.in, UNITS));
    CHECK(ox_proof_grad_home_bytes(&s.in, 0) == 40960 && ox_proof_reduced_bytes(&s.in, 0) == 20480);
    CHECK(ox_proof_grad_home_bytes(&s.in, 1) == 12288 && ox_proof_grad_home_bytes(&s.in, UNITS) == 40960);
    s.in.placement.tiles = 2; /* partial sums travel */
    CHECK(ox_proof_grad_home_bytes(&s.in, 1) == 24576);
    s.shards[0].homes = s.shards[1].homes = (struct ox_homes){OX_TIER_DEVICE, OX_TIER_DEVICE, OX_TIER_DEVICE};
    CHECK(ox_proof_grad_home_bytes(&s.in, 1) == 12288 && ox_proof_packs(&s.in, 0));
    CHECK(ox_proof_partials_bytes(&s.in, 0) == 40);
}

static void test_chunks(void) {
    static struct sample s; /* more than a stack has */
    make_sample(&s);
    /* hi, state and gradient of a chunk of 4096 elements; three of them, and the chunk in fp32 */
    CHECK(ox_proof_stream_bytes(&s.in) == 3 * (8192 + 8192 + 32768 + 8192) + 16384);
    CHECK(ox_proof_scratch_bytes(&s.in) == 8192 + 8192 + 32768 + 16384);
    s.table.chunk_elems = 1000 * GROUP; /* larger than any unit */
    for (int i = 0; i < UNITS; i++) {
        s.shards[i].chunk_elems = s.table.chunk_elems;
    }
    CHECK(ox_proof_scratch_bytes(&s.in) == 20480 + 20480 + 81920 + 40960);
    CHECK(ox_proof_keeps(&s.in, OX_PLAN_TRAIN, 1) && !ox_proof_keeps(&s.in, OX_PLAN_TRAIN, 2));
    CHECK(!ox_proof_keeps(&s.in, OX_PLAN_EVAL, 1) && !ox_proof_keeps(&s.in, OX_PLAN_TRAIN, 0));
    s.model.stages[1].kept_bytes = 0;
    CHECK(!ox_proof_keeps(&s.in, OX_PLAN_TRAIN, 1));
}

/* A list without tasks is no step. */
static void test_refusal(void) {
    static struct sample s; /* more than a stack has */
    make_sample(&s);
    const struct ox_plan plan = {.unit_count = UNITS, .grad_count = UNITS + 1, .micro_batches = 2};
    CHECK(ox_proof_check(&plan, &s.in) == OX_E_CONFIG);
}

int main(void) {
    test_planes();
    test_parts();
    test_state();
    test_narrow();
    test_gradients();
    test_chunks();
    test_refusal();
    return test_end();
}
