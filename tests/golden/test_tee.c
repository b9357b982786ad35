/* A tee sees the planes of the last commit during a step, every chunk once and in order, wherever they live; and it
 * does not change the step. */
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <string.h>

enum { STEPS = 3, VIEWS_MAX = 2 * 512 };

/* A chunk as the tee saw it. */
struct seen {
    uint32_t unit_idx, chunk_idx;
    uint64_t first, count, hash;
};

struct seeing {
    struct seen list[VIEWS_MAX];
    uint32_t count;
};

static uint64_t add(uint64_t hash, const void *data, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i++) {
        hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(1099511628211);
    }
    return hash;
}

/* Records the planes as bytes and, converted in the view's scratch, as numbers. */
static uint64_t hash_view(const struct ox_chunk_view *view) {
    uint64_t hash = add(1, view->hi, view->count * OX_HI_BYTES);
    hash = add(hash, view->state.lo, view->state_bytes);
    for (enum ox_plane plane = OX_PLANE_MASTER; plane < OX_PLANE_COUNT; plane++) {
        if (ox_plane_exists(view->format, plane)) {
            ox_chunk_values_get(view, plane);
            hash = add(hash, view->values, view->count * sizeof *view->values);
        }
    }
    return hash;
}

static void see(void *context, uint32_t unit_idx, uint32_t chunk_idx, const struct ox_chunk_view *view) {
    struct seeing *const seeing = context;
    if (seeing->count < VIEWS_MAX) {
        seeing->list[seeing->count] = (struct seen){.unit_idx = unit_idx, .chunk_idx = chunk_idx, .first = view->first,
                                                    .count = view->count, .hash = hash_view(view)};
    }
    seeing->count++;
}

static void see_between_steps(struct harness *harness, struct seeing *out) {
    out->count = 0;
    for (uint32_t unit_idx = 0; unit_idx < harness->model->unit_count; unit_idx++) {
        for (uint32_t i = 0; i < ox_engine_chunk_count(harness->engine, unit_idx); i++) {
            struct ox_chunk_view view;
            REQUIRE_OK(ox_engine_chunk_get(harness->engine, unit_idx, i, &view));
            see(out, unit_idx, i, &view);
        }
    }
}

static int by_chunk(const void *a, const void *b) {
    const struct seen *const left = a, *const right = b;
    const bool same_unit = left->unit_idx == right->unit_idx;
    const uint32_t x = same_unit ? left->chunk_idx : left->unit_idx, y = same_unit ? right->chunk_idx : right->unit_idx;
    return x < y ? -1 : x > y;
}

/* Chunks come in order and once each; chunks of repeated speculative updates come twice, with the same content. */
static void put_in_order(struct seeing *have) {
    uint32_t count = 0;
    qsort(have->list, have->count, sizeof *have->list, by_chunk);
    for (uint32_t i = 0; i < have->count; i++) {
        if (count > 0 && by_chunk(&have->list[count - 1], &have->list[i]) == 0) {
            CHECK(have->list[count - 1].hash == have->list[i].hash);
        } else {
            have->list[count++] = have->list[i];
        }
    }
    have->count = count;
}

static void check_same(const struct seeing *want, struct seeing *have) {
    CHECK(have->count <= VIEWS_MAX);
    put_in_order(have);
    CHECK(want->count > 0 && want->count <= VIEWS_MAX && have->count == want->count);
    for (uint32_t i = 0; i < want->count && have->count == want->count; i++) {
        const struct seen *const a = &want->list[i], *const b = &have->list[i];
        CHECK(a->unit_idx == b->unit_idx && a->chunk_idx == b->chunk_idx && a->first == b->first &&
              a->count == b->count && a->hash == b->hash);
    }
}

static void check_place(const struct golden *golden, struct ox_state_format state, const struct harness_place *place) {
    static struct seeing want, have;
    struct harness_run run = golden_run(golden);
    struct harness harness;
    struct outcome expected, outcome;
    run.state = state;
    run.dtype = state.moments != OX_MOMENTS_Q8 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16;
    golden_train(golden, &run, &harness_in_memory, STEPS, &expected);
    harness_open(&run, place, &harness);
    const bool between = ox_plan_commits_between(&ox_engine_plan_of(harness.engine)->input);
    golden_steps(&harness, golden, 0, 1, &outcome);
    REQUIRE_OK(ox_engine_finish_update(harness.engine));
    see_between_steps(&harness, &want);
    have.count = 0;
    ox_engine_tee(harness.engine, &(struct ox_tee){.chunk = see, .context = &have});
    golden_steps(&harness, golden, 1, 2, &outcome);
    REQUIRE_OK(ox_engine_finish_update(harness.engine));
    ox_engine_tee(harness.engine, NULL);
    if (place->store && !between) { /* no update passes on what lives on the device */
        check_same(&want, &have);
    } else {
        CHECK(have.count < want.count);
    }
    const uint32_t count = have.count;
    golden_steps(&harness, golden, 2, STEPS, &outcome);
    CHECK(have.count == count);
    golden_end(&harness, place->name, &expected, &outcome);
    outcome_close(&expected);
}

int main(void) {
    struct golden golden;
    golden_open("llama_tied_gqa", &golden);
    for (const struct harness_place *place = harness_places; place->name != NULL; place++) {
        if (test_takes((unsigned)(place - harness_places), 3)) {
            check_place(&golden, (struct ox_state_format){OX_OPTIM_ADAMW, OX_MOMENTS_F32, false}, place);
        }
    }
    struct harness_place chaos = harness_places[2];
    chaos.chaos_seed = 3;
    check_place(&golden, (struct ox_state_format){OX_OPTIM_ADAMW, OX_MOMENTS_Q8, false}, &chaos);
    golden_close(&golden);
    return test_end();
}
