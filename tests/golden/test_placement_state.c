/* No bit depends on where a state lies or how it is cut, whichever optimizer made it and in whichever format it is
 * kept: random roundings and the scales of eight-bit moments included. And a format does change bits. */
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <string.h>

static struct harness_run run_of(const struct golden *golden, enum ox_optim_kind kind, enum ox_moments moments) {
    struct harness_run run = golden_run(golden);
    run.dtype = moments != OX_MOMENTS_Q8 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16;
    run.state = (struct ox_state_format){kind, moments, false};
    return run;
}

/* Another optimizer gives other weights and another format other moments, from the same gradient; q8 alone rounds the
 * weights that it begins with. */
static void check_differences(const struct golden *golden) {
    struct outcome outcomes[OX_OPTIM_MUON * OX_MOMENTS_COUNT]; /* Muon, the last, is no update by element */
    const int count = sizeof outcomes / sizeof *outcomes;
    for (int i = 0; i < count; i++) {
        struct harness_run run =
            run_of(golden, (enum ox_optim_kind)(i / OX_MOMENTS_COUNT), (enum ox_moments)(i % OX_MOMENTS_COUNT));
        run.dtype = OX_COMPUTE_BF16;
        golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &outcomes[i]);
    }
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < i; k++) {
            const struct outcome *const a = &outcomes[i], *const b = &outcomes[k];
            const bool same_start = (i % OX_MOMENTS_COUNT == OX_MOMENTS_Q8) == (k % OX_MOMENTS_COUNT == OX_MOMENTS_Q8);
            CHECK(!same_start || (a->losses[0] == b->losses[0] && a->norms[0] == b->norms[0]));
            CHECK(memcmp(a->weights[1], b->weights[1], a->elems[1] * sizeof *a->weights[1]) != 0);
            CHECK(memcmp(a->moments[0][1], b->moments[0][1], a->elems[1] * sizeof *a->moments[0][1]) != 0);
        }
        CHECK((outcomes[i].moments[1][0] != NULL) == (i / OX_MOMENTS_COUNT == OX_OPTIM_ADAMW));
    }
    for (int i = 0; i < count; i++) {
        outcome_close(&outcomes[i]);
    }
}

int main(void) {
    struct golden tied, untied, learned, below, groups, adapters, terms;
    golden_open("lora_llama", &adapters);
    golden_open("frozen_below", &below);
    golden_open("groups", &groups);
    golden_open("loss_terms", &terms);
    golden_open("llama_tied_gqa", &tied);
    golden_open("llama_untied_odd", &untied);
    golden_open("gpt2_small", &learned);
    check_differences(&untied);
    struct harness_run run = run_of(&tied, OX_OPTIM_ADAMW, OX_MOMENTS_Q8);
    golden_check_places(&tied, &run, "adamw with q8 moments", 3);
    run = run_of(&untied, OX_OPTIM_ADAMW, OX_MOMENTS_BF16);
    golden_check_places(&untied, &run, "adamw with bf16 moments", 3);
    run = run_of(&learned, OX_OPTIM_LION, OX_MOMENTS_F32);
    golden_check_places(&learned, &run, "lion with an f32 moment", 3);
    run = run_of(&untied, OX_OPTIM_LION, OX_MOMENTS_Q8);
    run.grad_bf16 = true;
    golden_check_places(&untied, &run, "lion with a q8 moment and gradients in bf16", 3);
    run = run_of(&learned, OX_OPTIM_SGD, OX_MOMENTS_BF16);
    golden_check_places(&learned, &run, "sgd with a bf16 moment", 3);
    run = run_of(&below, OX_OPTIM_ADAMW, OX_MOMENTS_Q8);
    golden_check_places(&below, &run, "adamw with q8 moments", 3);
    golden_check_reopened(&below, &run, "adamw with q8 moments", 2);
    run = run_of(&groups, OX_OPTIM_ADAMW, OX_MOMENTS_BF16);
    golden_check_places(&groups, &run, "groups of adamw with bf16 moments", 4);
    run = run_of(&adapters, OX_OPTIM_ADAMW, OX_MOMENTS_F32);
    golden_check_places(&adapters, &run, "adapters", 3);
    golden_check_reopened(&adapters, &run, "adapters", 3);
    run = run_of(&terms, OX_OPTIM_ADAMW, OX_MOMENTS_F32);
    golden_check_places(&terms, &run, "smoothing, z-loss and noise", 4);
    run = run_of(&untied, OX_OPTIM_ADAMW, OX_MOMENTS_Q8);
    golden_check_reopened(&untied, &run, "adamw with q8 moments", 2);
    run = run_of(&tied, OX_OPTIM_LION, OX_MOMENTS_BF16);
    golden_check_reopened(&tied, &run, "lion with a bf16 moment", 2);
    golden_close(&learned);
    golden_close(&untied);
    golden_close(&tied);
    golden_close(&below);
    golden_close(&groups);
    golden_close(&adapters);
    golden_close(&terms);
    return test_end();
}
