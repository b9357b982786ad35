/* Pipelines: ranks that have layers of their own and pass activations to each other. No bit depends on how many there
 * are, on the order in which they do their stages, on where planes live, nor on what the ranks of a stage divide. */
#include "base/file.h"
#include "tests/kit/files.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/run/mixture.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUPS = 8, QUICK = 48 };

/* How ranks lie: data ranks for each coordinate of the pipeline. */
static const struct mesh {
    uint32_t pipe, data;
} meshes[] = {{2, 1}, {3, 1}, {4, 1}, {2, 2}, {2, 4}, {3, 2}, {4, 2}, {8, 1}};
enum { MESHES = sizeof meshes / sizeof *meshes };

static const struct order {
    enum ox_pipe_schedule schedule;
    uint32_t chunks;
    const char *name;
} orders[] = {{OX_PIPE_VERTICAL, 1, "vertical"},
              {OX_PIPE_GPIPE, 1, "gpipe"},
              {OX_PIPE_1F1B, 1, "1f1b"},
              {OX_PIPE_INTERLEAVED, 2, "interleaved"}};
enum { ORDERS = sizeof orders / sizeof *orders };

static const char *deep; /* a config.json to take in place of the golden model's folder; NULL: none */
static const struct mixture_case *mixture; /* how its routers are trained; NULL: as the golden model says */
static unsigned run_count;

static bool takes(void) {
    static unsigned asked;
    return test_takes(asked++, QUICK);
}

static struct harness_run run_of(const struct golden *golden, const struct mesh *mesh, const struct order *order) {
    struct harness_run run = golden_run(golden);
    run.model_folder = deep != NULL ? deep : run.model_folder;
    run.compute_threads = 1;
    run.sum_groups = GROUPS;
    run.ranks = mesh->pipe * mesh->data;
    run.pipe = mesh->pipe;
    run.schedule = order->schedule;
    run.pipe_chunks = order->chunks;
    run.comm_timeout_ns = UINT64_C(200000000000); /* what waits in a circle is named before the program is ended */
    if (mixture != NULL) {
        mixture_set(mixture, &run);
    }
    return run;
}

/* Whether each coordinate has as many runs of stages as the order asks for. */
static bool divides(const struct golden *golden, const struct mesh *mesh, const struct order *order) {
    const struct harness_run run = run_of(golden, mesh, order);
    struct ox_hf_folder *folder = NULL;
    REQUIRE_OK(ox_hf_open(run.model_folder, false, &folder));
    const struct ox_model *const model = ox_hf_model(folder);
    const uint32_t parts = model->block_count + 2; /* a block's experts are where it is */
    const bool can = parts >= mesh->pipe * order->chunks;
    ox_hf_close(&folder);
    return can;
}

static void check_run(const struct golden *golden, const struct mesh *mesh, const struct order *order,
                      const struct harness_place *place, const struct outcome *expected) {
    const struct harness_run run = run_of(golden, mesh, order);
    struct outcome outcome;
    char name[480];
    snprintf(name, sizeof name, "%s: pipe %u, data %u, %s, %s", run.model_folder, mesh->pipe, mesh->data, order->name,
             place->name);
    golden_train(golden, &run, place, FEW_STEPS, &outcome);
    outcome_check_same(name, expected, &outcome);
    outcome_close(&outcome);
    run_count++;
}

static void check(const char *name) {
    static const struct mesh one = {1, 1};
    struct golden golden;
    struct outcome expected;
    golden_open(name, &golden);
    golden.micro_batches = GROUPS;
    const struct harness_run alone = run_of(&golden, &one, &orders[0]);
    const double loss = golden_evaluate(&golden, &alone);
    golden_train(&golden, &alone, &harness_in_memory, FEW_STEPS, &expected);
    for (unsigned m = 0; m < MESHES; m++) {
        for (unsigned o = 0; o < ORDERS; o++) {
            if (!divides(&golden, &meshes[m], &orders[o])) {
                continue;
            }
            if (takes()) {
                const struct harness_run run = run_of(&golden, &meshes[m], &orders[o]);
                CHECK(golden_evaluate(&golden, &run) == loss);
                check_run(&golden, &meshes[m], &orders[o], &harness_in_memory, &expected);
            }
            for (unsigned p = 0; harness_places[p].name != NULL; p++) {
                if ((p + m + o) % 4 == 0 && takes()) {
                    struct harness_place place = harness_places[p];
                    place.chaos_seed = p % 3 == 0 ? p + 1 : 0; /* late lanes and calls, memory that is NaN before */
                    check_run(&golden, &meshes[m], &orders[o], &place, &expected);
                }
            }
        }
    }
    outcome_close(&expected);
    golden_close(&golden);
}

/* The least window with which the proof lets all lists end is one with which they do, in queues that hold no more than
 * it lets come; with one less the proof refuses the lists. Lanes and calls are late at random. */
static void check_window(const char *name, const struct mesh *mesh, const struct order *order) {
    static const struct mesh one = {1, 1};
    struct golden golden;
    struct outcome expected;
    golden_open(name, &golden);
    golden.micro_batches = GROUPS;
    const struct harness_run alone = run_of(&golden, &one, &orders[0]);
    golden_train(&golden, &alone, &harness_in_memory, FEW_STEPS, &expected);
    const struct harness_place *device = harness_places; /* the first with memory of its own and no drive */
    while (device->store || device->unified) {
        device++;
    }
    for (int k = 0; k < 2; k++) {
        struct harness_place place = k == 0 ? harness_in_memory : *device;
        struct harness_run run = run_of(&golden, mesh, order);
        struct outcome outcome;
        char what[480];
        for (run.window = 1; harness_try(&run, &place) != OX_OK && run.window < OX_RUN_AHEAD_TASKS; run.window++) {
            CHECK(strstr(ox_error_text(), "ranks wait for each other in a circle") != NULL);
        }
        place.chaos_seed = 5 + (uint64_t)k;
        snprintf(what, sizeof what, "%s: pipe %u, data %u, %s, %s, a window of %u", golden.folder, mesh->pipe,
                 mesh->data, order->name, place.name, run.window);
        golden_train(&golden, &run, &place, FEW_STEPS, &outcome);
        outcome_check_same(what, &expected, &outcome);
        outcome_close(&outcome);
        CHECK(run.window < OX_RUN_AHEAD_TASKS);
    }
    outcome_close(&expected);
    golden_close(&golden);
}

static void check_windows(void) {
    for (unsigned o = 0; o < ORDERS; o++) {
        for (unsigned m = 0; m < MESHES; m++) {
            struct golden golden;
            golden_open("olmo2", &golden);
            if (divides(&golden, &meshes[m], &orders[o]) && takes()) {
                check_window("olmo2", &meshes[m], &orders[o]);
            }
            golden_close(&golden);
        }
    }
    check_window("llama_tied_gqa", &meshes[0], &orders[0]);
}

/* A model of ten stages, so that eight ranks have some each; it has fresh weights. */
static void check_deep(void) {
    static const char layers[] = "\"num_hidden_layers\": ";
    char *text = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read("tests/golden/olmo2/config.json", 1 << 20, &text, &bytes));
    char *const at = strstr(text, layers);
    CHECK(at != NULL);
    at[strlen(layers)] = '8';
    deep = files_write_text("deep.json", text);
    check("olmo2");
    deep = NULL;
    free(text);
}

static void check_mixtures(void) {
    for (size_t i = 0; i < MIXTURE_CASES; i++) {
        mixture = &mixture_cases[i];
        deep = files_write_text(mixture->name, mixture->text);
        check("mixtral");
    }
    mixture = NULL;
    deep = NULL;
}

int main(void) {
    check_mixtures();
    if (test_all()) {
        check_deep();
    }
    check("llama_tied_gqa");
    check("olmo2");
    check("gpt2_small");
    check("qwen3");
    check_windows();
    printf("%u runs with the bits of one rank\n", run_count);
    return test_end();
}
