/* No bit depends on how units and gradients are numbered, except that the norm adds the square sums of units in the
 * order of their numbers. A model is built with its units in a drawn order, and its gradients reach the planner in
 * another: the planner plans, proves and simulates with these numbers, the engine runs by them, and the generator reads
 * its weights by them. */
#include "base/prng/prng.h"
#include "engine/generate/generate.h"
#include "offload/search/placement.h"
#include "tests/kit/plan/plan_model.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static uint64_t unit_seed, grad_seed;         /* of the drawn orders; 0: the numbers of every day */
static uint32_t numbers[GOLDEN_UNITS_MAX];    /* of the last model's units, in the order of forward */

/* ---- the two functions of the library that the linker replaces by those here (Makefile) ------------------ */

enum ox_status __real_ox_model_build(const struct ox_model_config *config, struct ox_model **out);
enum ox_status __wrap_ox_model_build(const struct ox_model_config *config, struct ox_model **out);
enum ox_status __real_ox_placement_choose(struct ox_plan_input *input, struct ox_shard_table *table,
                                          const struct ox_placement_request *request, const struct ox_sim_setup *setup,
                                          struct ox_plans *out);
enum ox_status __wrap_ox_placement_choose(struct ox_plan_input *input, struct ox_shard_table *table,
                                          const struct ox_placement_request *request, const struct ox_sim_setup *setup,
                                          struct ox_plans *out);

static void draw_numbers(uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        numbers[i] = i;
    }
    for (uint32_t i = count - 1; i > 0 && unit_seed != 0; i--) {
        const uint32_t k = (uint32_t)(ox_uniform(unit_seed, 23, i) * (i + 1)), kept = numbers[i];
        numbers[i] = numbers[k];
        numbers[k] = kept;
    }
}

enum ox_status __wrap_ox_model_build(const struct ox_model_config *config, struct ox_model **out) {
    const enum ox_status status = __real_ox_model_build(config, out);
    if (status != OX_OK) {
        return status;
    }
    struct ox_model *const model = *out;
    struct ox_unit units[GOLDEN_UNITS_MAX];
    CHECK(model->unit_count <= GOLDEN_UNITS_MAX);
    draw_numbers(model->unit_count);
    memcpy(units, model->units, model->unit_count * sizeof *units);
    for (uint32_t i = 0; i < model->unit_count; i++) { /* the library numbers units in the order of forward */
        CHECK(model->stages[i] == i);
        CHECK(units[i].own == i && units[i].next == OX_NO_UNIT);
        model->stages[i] = numbers[i];
        model->units[numbers[i]] = units[i];
        model->units[numbers[i]].own = numbers[i];
    }
    for (uint32_t i = 0; i < model->block_count; i++) {
        model->blocks[i] = numbers[model->blocks[i]];
    }
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        model->tensors[i].unit_idx = numbers[model->tensors[i].unit_idx];
    }
    model->embed_idx = numbers[model->embed_idx];
    model->head_idx = numbers[model->head_idx];
    model->table.unit_idx = numbers[model->table.unit_idx];
    return OX_OK;
}

enum ox_status __wrap_ox_placement_choose(struct ox_plan_input *input, struct ox_shard_table *table,
                                          const struct ox_placement_request *request, const struct ox_sim_setup *setup,
                                          struct ox_plans *out) {
    if (grad_seed != 0) {
        plan_model_shuffle_grads(&input->model, grad_seed);
    }
    return __real_ox_placement_choose(input, table, request, setup, out);
}

/* ---- training -------------------------------------------------------------------------------------------- */

/* Lists what is known of units in the order of forward. */
static void order_outcome(struct outcome *outcome, uint32_t unit_count) {
    const struct outcome given = *outcome;
    for (uint32_t i = 0; i < unit_count; i++) {
        outcome->grads[i] = given.grads[numbers[i]];
        outcome->weights[i] = given.weights[numbers[i]];
        outcome->moments[0][i] = given.moments[0][numbers[i]];
        outcome->moments[1][i] = given.moments[1][numbers[i]];
        outcome->elems[i] = given.elems[numbers[i]];
    }
}

/* Norms, whose sums have another order, may differ in their last bits. */
static void accept_norms(const struct outcome *expected, struct outcome *outcome) {
    for (size_t i = 0; i < FEW_STEPS; i++) {
        CHECK(fabs(outcome->norms[i] / expected->norms[i] - 1) < 1e-14);
    }
    memcpy(outcome->norms, expected->norms, sizeof outcome->norms);
}

/* Counts units that have not the number of their stage, and gradients that have not that of their unit. */
static uint32_t count_moved(const struct harness *harness) {
    const struct ox_plan_model *const model = &ox_engine_plan_of(harness->engine)->input.model;
    uint32_t count = 0;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        count += (model->units[i].grad_idx != i) + (model->units[i].stage_idx != i);
    }
    return count;
}

/* Trains at every placement. The norms of a case whose units are numbered anew may not clip. */
static void check_places(const struct golden *golden, const struct harness_run *run, bool units) {
    struct outcome expected, outcome;
    uint32_t moved_count = 0, place_count = 0;
    printf("%s, other numbers of %s\n", golden->folder, units ? "units and gradients" : "gradients");
    unit_seed = grad_seed = 0;
    golden_train(golden, run, &harness_in_memory, FEW_STEPS, &expected);
    for (const struct harness_place *place = harness_places; place->name != NULL; place++) {
        struct harness harness;
        place_count++;
        grad_seed = place_count;
        unit_seed = units ? place_count : 0;
        harness_open(run, place, &harness);
        moved_count += count_moved(&harness);
        golden_steps(&harness, golden, 0, FEW_STEPS, &outcome);
        outcome_read_weights(&harness, &outcome);
        order_outcome(&outcome, harness.model->unit_count);
        accept_norms(&expected, &outcome);
        outcome_check_same(place->name, &expected, &outcome);
        harness_close(&harness);
        outcome_close(&outcome);
    }
    CHECK(moved_count >= place_count); /* a drawn order may be the usual one, but rarely */
    outcome_close(&expected);
}

/* ---- generation ------------------------------------------------------------------------------------------- */

enum { TOKENS = 11 };

/* Copies the logits after a few tokens, with the weights in the requested home; false if no budget leads there. */
static bool generate(const struct golden *golden, enum ox_weights_home home, float *out) {
    int32_t ids[TOKENS];
    struct ox_hf_folder *folder = NULL;
    struct ox_generator *generator = NULL;
    const float *logits = NULL;
    struct ox_generator_config config = {
        .where = "the golden model", .threads = 1, .host_bytes = UINT64_MAX, .contexts = TOKENS, .chunk_rows = 4};
    REQUIRE_OK(ox_hf_open(golden->folder, true, &folder));
    config.folder = folder;
    REQUIRE_OK(ox_generator_open(&config, &generator));
    config.host_bytes = ox_generator_need(generator, home);
    ox_generator_close(&generator);
    REQUIRE_OK(ox_generator_open(&config, &generator));
    const bool found = ox_generator_home(generator) == home;
    for (int32_t i = 0; i < TOKENS; i++) {
        ids[i] = 3 * i + 1;
    }
    REQUIRE_OK(ox_generator_read(generator, ids, TOKENS, NULL, &logits));
    memcpy(out, logits, ox_hf_model(folder)->config.vocab * sizeof *out);
    ox_generator_close(&generator);
    ox_hf_close(&folder);
    return found;
}

static void check_generation(const struct golden *golden) {
    static float expected[4096], logits[4096];
    for (int home = 0; home < OX_WEIGHTS_HOME_COUNT; home++) {
        unit_seed = 0;
        const bool found = generate(golden, (enum ox_weights_home)home, expected);
        for (unit_seed = 1; found && unit_seed < 6; unit_seed++) {
            CHECK(generate(golden, (enum ox_weights_home)home, logits));
            CHECK(memcmp(expected, logits, sizeof logits) == 0);
        }
    }
}

static void check_family(const char *name, bool fp32, bool grad_bf16, bool units) {
    struct golden golden;
    golden_open(name, &golden);
    struct harness_run run = golden_run(&golden);
    run.dtype = fp32 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16;
    run.grad_bf16 = grad_bf16;
    check_places(&golden, &run, units);
    check_generation(&golden);
    golden_close(&golden);
}

int main(void) {
    check_family("llama_tied_gqa", true, false, false);
    check_family("llama_untied_odd", false, true, true); /* neither this nor the next is clipped */
    check_family("gpt2_b1", true, false, true);
    return test_end();
}
