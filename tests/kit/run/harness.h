/* What tests of the whole engine share: an engine opened at a placement of the test's choice, weights from a
 * model folder, and everything that a few steps leave behind, so that two runs can be compared bit by bit. */
#ifndef OX_TESTS_HARNESS_H
#define OX_TESTS_HARNESS_H

#include "engine/step/engine.h"
#include "engine/hf/hf.h"

#include <stdbool.h>
#include <stdint.h>

/* Where things live. No bit may depend on it. */
struct harness_place {
    const char *name;
    bool unified;
    bool store;
    struct ox_placement_request request; /* tiles beyond the micro-batches are brought down to them */
    uint64_t chunk_elems;
    uint32_t drives; /* with a store */
    uint32_t generations; /* of the store; 0: 2 */
    uint32_t optimizer_threads;
    bool tight;                     /* budgets a quarter above the least that any plan needs */
    bool uring;                     /* the backend the machine offers first, else threads */
    const struct ox_io_backend *io; /* not NULL: this one */
    uint64_t chaos_seed;
};

/* All in memory, one tile, no store: what other placements are compared with. */
extern const struct harness_place harness_in_memory;
/* Placements of every sort; ends with a name of NULL. */
extern const struct harness_place harness_places[];

struct harness_run {
    const char *model_folder; /* or a config.json alone: fresh weights */
    uint32_t batch, seq, micro_batches;
    uint32_t sum_groups; /* 0 = 1 */
    uint32_t ranks;      /* of all processes; 0 = 1 */
    struct ox_team *team; /* NULL: one process */
    enum ox_sharding sharding;
    uint32_t copies;     /* of the model; 0: 1 */
    uint32_t context_groups, contexts; /* of rows of a sequence, and ranks that divide them; 0: 1 */
    enum ox_context_mode context_mode; /* and how */
    uint32_t pipe;       /* coordinates of a pipeline; 0: 1 */
    enum ox_pipe_schedule schedule;
    uint32_t pipe_chunks; /* runs of stages of each, where interleaved */
    uint32_t window;      /* as in struct ox_engine_config */
    uint64_t comm_timeout_ns; /* 0: ten minutes */
    uint32_t compute_threads; /* 0 = 1 */
    enum ox_compute_dtype dtype;
    bool grad_bf16, decay_all;
    bool trusts_memory; /* planes in memory are not verified */
    const char *cuda_plugin; /* NULL: on the CPU */
    uint32_t cuda_count;     /* GPUs for the ranks; 0: one for all */
    enum ox_rank_comm comm;
    bool comm_debug;
    bool library_sums;
    enum ox_exchange_dtype exchange;
    struct ox_low_rank_config low_rank;
    struct ox_state_format state; /* zero: AdamW in fp32 */
    double router_balance, router_z; /* factors of the losses of routers */
    double router_bias_rate;
    bool skips_idle;
    const json_t *frozen;         /* names of tensors that are not trained; NULL: none */
    struct ox_objective objective; /* zeros: cross-entropy */
    const json_t *groups;         /* by names of tensors: share of the rate, decay or null; NULL: none */
    uint32_t experts_per_unit;    /* 0: experts are in their blocks' units */
    uint32_t tensor_groups, tensors; /* of features, and ranks that divide them; 0: 1 */
    uint32_t experts;                /* ranks that divide experts; 0: 1 */
    const char *adapter;          /* folder of an adapter, within the model's; NULL: none */
    const struct ox_lora *lora;   /* fresh adapters; NULL: none */
    bool base_q8;                 /* frozen blocks are kept in eight bits, and chunks are as large as these need */
    uint32_t share_layers;        /* so many in a row share their weights; 0: none do */
};

struct harness {
    struct harness_run run;
    struct ox_hf_folder *folder;
    struct ox_engine *engine;
    const struct ox_model *model;
    char store_paths[4][256];
    const char *folders[4];
    uint64_t bytes[4];
    uint32_t persist_steps; /* golden_steps commits every so many, the others stay in memory; 0: all */
};

/* Opens the folder and an engine with its weights, moments zero, as step 0 of a store. Ends the program on
 * failure. The result must not move. */
void harness_open(const struct harness_run *run, const struct harness_place *place, struct harness *out);
void harness_close(struct harness *harness);
/* Opens and closes an engine without weights; returns what came of it, with its text. */
enum ox_status harness_try(const struct harness_run *run, const struct harness_place *place);

/* Exchanges the first weight of a unit in memory with *hi. */
void harness_exchange(struct harness *harness, uint32_t unit_idx, uint16_t *hi);
/* Closes the engine and opens another on the same store; `place` cuts and counts drives as the one before. */
void harness_reopen(const struct harness_run *run, const struct harness_place *place,
                    struct harness *harness);
/* The first closes the engine and opens another whose store is still closed; the second opens that store, and returns
 * what ox_engine_store_open says. */
void harness_open_again(const struct harness_run *run, const struct harness_place *place, struct harness *harness);
enum ox_status harness_store_open(struct harness *harness);

/* Reads a plane of a unit as fp32 (of the master: the weights), elem_count values, of all processes; free() it. NULL
 * where the optimizer does not have the plane. */
float *harness_read_unit(struct harness *harness, uint32_t unit_idx, enum ox_plane plane);

/* Difference of measured values from expected ones; expected ones that are NaN are not compared. */
struct harness_error {
    double largest;   /* difference */
    double magnitude; /* largest expected value */
    uint64_t compared;
};
void harness_compare(struct harness_error *error, const float *measured, uint64_t stride,
                     const float *expected, uint64_t count);

/* Loads weights that follow from their place alone, as step 0; for measurements, where no value matters. */
void harness_load_pattern(struct ox_engine *engine, const struct ox_model *model);

#endif
