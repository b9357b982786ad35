/* What of an exchange crosses between machines, and what a call between GPUs takes beside its bytes. */
#include "offload/sim/sim.h"

#include "base/bytes.h"
#include "offload/plan/rules.h"

/* Nominal, until it is measured: from the inputs of a call of NCCL until its first bytes arrive within a machine. */
static const double CALL_SECONDS = 1e-5;

double ox_sim_call_latency(const struct ox_sim_setup *setup, const struct ox_task *task) {
    return setup->ordered && ox_plan_calls_on_device(setup->input, task) ? CALL_SECONDS
                                                                         : 2 * setup->machine->task_seconds;
}

double ox_sim_net_share(const struct ox_machine *machine, const struct ox_plan_input *input, enum ox_axis axis,
                        uint32_t *here) {
    const struct ox_mesh mesh = ox_plan_mesh_of(&input->ranks);
    const uint32_t all = ox_mesh_count(&mesh), on = ox_machine_ranks(machine, all);
    const uint32_t count = ox_plan_group(input, axis).count, *const size = mesh.size;
    const uint32_t of_copy = size[OX_AXIS_TENSOR] * size[OX_AXIS_SHARD];
    const uint32_t inner = axis == OX_AXIS_TENSOR ? 1
                           : axis == OX_AXIS_PIPE ? of_copy * size[OX_AXIS_COPY]
                           : axis == OX_AXIS_COPY ? of_copy : size[OX_AXIS_TENSOR];
    *here = (uint32_t)ox_min_u64(ox_max_u64(on / inner, 1), count);
    return on >= all || *here >= count ? 0 : (double)(count - *here) / (count - 1);
}
