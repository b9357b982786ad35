#include "tests/kit/plan/step_case.h"

#include "base/bytes.h"
#include "tests/kit/plan/plan_choice.h"
#include "tests/kit/test.h"

#include <stdio.h>

enum { CHUNK_ELEMS = 262144 };

void step_case_open(const struct step_case *c, struct step_run *out) {
    char path[128];
    const uint32_t heads = c->hidden / 128;
    const struct ox_model_config model = {
        .family = "llama", .vocab = c->vocab, .hidden = c->hidden, .layers = c->layers, .heads = heads,
        .kv_heads = c->kv_heads > 0 ? c->kv_heads : heads, .head_dim = 128, .width = c->width, .contexts = c->seq,
        .norm = OX_NORM_RMS, .act = OX_ACTIVATION_SWIGLU, .layout = OX_WEIGHT_OUT_IN, .norm_eps = 1e-5f, .rope = true,
        .rope_theta = 10000.0, .rotary_part = 1.0, .rotary_dim = 128, .init_range = 0.02, .bos_id = -1, .eos_id = -1};
    snprintf(path, sizeof path, "docs/profiles/%s.json", c->profile);
    REQUIRE_OK(ox_machine_load(path, &out->machine));
    ox_machine_fit_drives(&out->machine, c->drives);
    REQUIRE_OK(ox_model_build(&model, &out->model));
    for (uint32_t i = 0; i < STEP_CASE_DRIVES_MAX; i++) {
        out->drive_bytes[i] = UINT64_C(4) << 40;
    }
    out->config = (struct ox_engine_config){
        .model = out->model, .batch = c->batch, .seq = c->seq, .micro_batches = c->micro_batches, 
        .dtype = c->fp32 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16,
        .grad_bf16 = !c->fp32, .state = {.kind = OX_OPTIM_ADAMW, .moments = c->moments},
        .compute_threads = out->machine.host.cores, .optimizer_threads = out->machine.host.cores,
        .budget = {.unified = c->device_gib == 0, .device_bytes = c->device_gib * OX_GIB,
                   .host_bytes = c->host_gib * OX_GIB, .nvme_bytes = c->drives * out->drive_bytes[0],
                   .drive_count = c->drives, .drive_bytes = c->drives > 0 ? out->drive_bytes : NULL},
        .request = plan_choice_automatic, .machine = &out->machine, .chunk_elems = CHUNK_ELEMS,
        .nvme_bytes = out->drive_bytes, .nvme_count = c->drives, .queue_depth = 16, .isa = ox_isa_best()};
}

double step_case_seconds(struct step_run *run, const struct ox_placement_request *request, bool tells) {
    struct ox_engine_plan *plan = NULL;
    struct ox_sim_setup setup;
    double seconds = 0;
    run->config.request = *request;
    if (ox_engine_plan_open(&run->config, &plan) == OX_OK) {
        ox_engine_sim_setup(&run->config, &plan->input, &setup);
        seconds = plan_choice_seconds(plan->train, &setup);
        if (tells) {
            printf("    %.5g s: ", seconds);
            plan_choice_print(&plan->input);
        }
    }
    ox_engine_plan_close(&plan);
    return seconds;
}
