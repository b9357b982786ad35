/* Ranks on GPUs of the emulated runtime that divide rows of sequences, features and experts, and the layers beside
 * them: the bits are those of one rank on such a GPU with the same cuts, whether the devices copy, several ranks on one
 * GPU, or NCCL carries everything between GPUs of their own. */
#include "tests/kit/device/simt_kit.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>

enum { DRIVER = 13000 };

static const struct mesh_case {
    const char *name;
    uint32_t row_groups, features, per_unit; /* cuts; experts of a unit */
    uint32_t contexts, tensors, experts, data, pipe;
    enum ox_compute_dtype dtype;
    bool more; /* in `make test-all` alone */
    enum ox_context_mode mode;
} cases[] = {
    {"gpt2_b1", 2, 1, 0, 2, 1, 1, 1, 1, OX_COMPUTE_FP32, false, OX_CONTEXT_GATHER},
    {"gpt2_b1", 4, 1, 0, 2, 1, 1, 1, 1, OX_COMPUTE_BF16, false, OX_CONTEXT_ULYSSES},
    {"gpt2_b1", 1, 2, 0, 1, 2, 1, 1, 1, OX_COMPUTE_BF16, false, OX_CONTEXT_GATHER},
    {"four_mixtral", 1, 1, 1, 1, 1, 2, 1, 1, OX_COMPUTE_FP32, false, OX_CONTEXT_GATHER},
    {"llama_tied_gqa", 2, 1, 0, 2, 1, 1, 1, 1, OX_COMPUTE_BF16, false, OX_CONTEXT_RING},
    {"llama_tied_gqa", 2, 1, 0, 2, 1, 1, 1, 1, OX_COMPUTE_BF16, true, OX_CONTEXT_GATHER},
    {"llama_tied_gqa", 3, 1, 0, 3, 1, 1, 1, 1, OX_COMPUTE_FP32, true, OX_CONTEXT_RING},
    {"gpt2_b1", 4, 1, 0, 4, 1, 1, 1, 1, OX_COMPUTE_FP16, true, OX_CONTEXT_RING},
    {"gpt2_b1", 2, 1, 0, 2, 1, 1, 1, 2, OX_COMPUTE_BF16, true, OX_CONTEXT_RING},
    {"llama_tied_gqa", 1, 2, 0, 1, 2, 1, 1, 1, OX_COMPUTE_BF16, true, OX_CONTEXT_GATHER},
    {"gpt2_b1", 1, 2, 0, 1, 2, 1, 1, 1, OX_COMPUTE_FP32, true, OX_CONTEXT_GATHER},
    {"four_mixtral", 1, 1, 1, 1, 1, 4, 1, 1, OX_COMPUTE_BF16, true, OX_CONTEXT_GATHER},
    {"gpt2_b1", 2, 2, 0, 2, 2, 1, 1, 1, OX_COMPUTE_BF16, true, OX_CONTEXT_GATHER},
    {"gpt2_b1", 2, 2, 0, 2, 2, 1, 1, 1, OX_COMPUTE_BF16, true, OX_CONTEXT_RING},
    {"gpt2_b1", 4, 1, 0, 2, 1, 1, 1, 1, OX_COMPUTE_BF16, true, OX_CONTEXT_GATHER},
    {"gpt2_b1", 2, 1, 0, 2, 1, 1, 2, 1, OX_COMPUTE_FP16, true, OX_CONTEXT_GATHER},
    {"gpt2_b1", 1, 2, 0, 1, 2, 1, 1, 2, OX_COMPUTE_FP32, true, OX_CONTEXT_GATHER},
    {"gpt2_b1", 2, 1, 0, 2, 1, 1, 1, 2, OX_COMPUTE_BF16, true, OX_CONTEXT_GATHER},
    {"eight_gpt2", 1, 4, 0, 1, 4, 1, 1, 1, OX_COMPUTE_FP16, true, OX_CONTEXT_GATHER},
    {"four_mixtral", 1, 1, 2, 1, 1, 2, 1, 2, OX_COMPUTE_FP16, true, OX_CONTEXT_GATHER},
    {"four_qwen2_moe", 1, 2, 0, 1, 2, 1, 1, 1, OX_COMPUTE_BF16, false, OX_CONTEXT_GATHER},
    {"lora_llama", 1, 2, 0, 1, 2, 1, 1, 1, OX_COMPUTE_BF16, false, OX_CONTEXT_GATHER},
    {"lora_phi3", 1, 2, 0, 1, 2, 1, 1, 1, OX_COMPUTE_BF16, true, OX_CONTEXT_GATHER},
    {"lora_biases", 1, 3, 0, 1, 3, 1, 1, 1, OX_COMPUTE_FP32, true, OX_CONTEXT_GATHER},
    {"lora_llama", 2, 2, 0, 2, 2, 1, 1, 1, OX_COMPUTE_FP16, true, OX_CONTEXT_RING},
    {"four_qwen2_moe", 2, 4, 0, 2, 2, 1, 1, 1, OX_COMPUTE_FP32, true, OX_CONTEXT_RING},
    {"gpt_oss", 1, 2, 0, 1, 2, 1, 1, 2, OX_COMPUTE_FP16, true, OX_CONTEXT_GATHER},
    {"four_mixtral", 1, 2, 1, 1, 2, 2, 1, 1, OX_COMPUTE_BF16, false, OX_CONTEXT_GATHER},
    {"four_mixtral", 1, 2, 1, 1, 1, 2, 1, 1, OX_COMPUTE_FP32, true, OX_CONTEXT_GATHER},
};

static struct harness_run run_of(const struct simt *simt, const struct golden *golden, const struct mesh_case *c) {
    struct harness_run run = golden_run(golden);
    run.cuda_plugin = simt->kit.plugin;
    run.dtype = c->dtype;
    run.context_groups = c->row_groups;
    run.context_mode = c->mode;
    run.tensor_groups = c->features;
    run.experts_per_unit = c->per_unit;
    run.sum_groups = 4;
    run.comm_timeout_ns = UINT64_C(200000000000); /* what waits in a circle is named before the program is ended */
    return run;
}

/* Trains on the mesh: on one GPU, or with NCCL on as many as there are ranks. */
static void check_mesh(const struct simt *simt, const struct golden *golden, const struct mesh_case *c, bool nccl,
                       const struct outcome *expected) {
    struct harness_run run = run_of(simt, golden, c);
    struct harness_place place = harness_in_memory;
    struct outcome outcome;
    char what[160];
    run.contexts = c->contexts;
    run.tensors = c->tensors;
    run.experts = c->experts;
    run.pipe = c->pipe;
    run.ranks = c->contexts * c->tensors * c->experts * c->data * c->pipe;
    run.cuda_count = nccl ? run.ranks : 0;
    place.chaos_seed = nccl ? 0 : 1; /* late lanes and calls, memory that is NaN before */
    place.request.kept_units = nccl ? 1 : 0;
    simt->set_machine(nccl ? (int)run.ranks : 1, DRIVER);
    simt->set_nccl(nccl);
    const uint64_t before = simt->nccl_calls();
    golden_train(golden, &run, &place, FEW_STEPS, &outcome);
    CHECK((simt->nccl_calls() > before) == nccl);
    snprintf(what, sizeof what, "%s, type %d: %u row groups, %u of features over %u GPU%s, %u by %u, experts by %u, "
             "pipe %u", c->name, (int)c->dtype, c->row_groups, c->features, nccl ? run.ranks : 1, nccl ? "s" : "",
             c->contexts, c->tensors, c->experts, c->pipe);
    outcome_check_same(what, expected, &outcome);
    outcome_close(&outcome);
    simt->set_machine(1, DRIVER);
}

int main(void) {
    const struct simt *const simt = simt_open();
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct mesh_case *const c = &cases[i];
        struct golden golden;
        struct outcome expected;
        if (c->more && !test_all()) {
            continue;
        }
        golden_open(c->name, &golden);
        golden.padding = (2 * c->row_groups - golden.seq % (2 * c->row_groups)) % (2 * c->row_groups);
        golden.micro_batches = 4;
        const struct harness_run alone = run_of(simt, &golden, c);
        golden_train(&golden, &alone, &harness_in_memory, FEW_STEPS, &expected);
        for (int nccl = 0; nccl <= 1; nccl++) {
            if (test_all() || nccl == (int)(i % 2)) {
                check_mesh(simt, &golden, c, nccl == 1, &expected);
            }
        }
        outcome_close(&expected);
        golden_close(&golden);
    }
    return test_end();
}
