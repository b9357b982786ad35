/* Times the optimizer's update over planes that no cache holds, in one loop over all of them, which is what memory
 * gives. A run goes chunk by chunk, and its threads meet behind each: the more there are, the more a run takes than
 * this says, on 16 cores 1.8 times as long. `offload bench adam` goes chunk by chunk, and so do profiles that it
 * wrote. */
#include "engine/measure/measure_internal.h"
#include "engine/measure/probe.h"
#include "engine/measure/rig.h"

#include "base/bytes.h"
#include "base/clock.h"

#include <string.h>
#include <unistd.h>

enum { ROUNDS_MAX = 9 };
static const uint64_t BYTES_LEAST = UINT64_C(64) << 20, BYTES_MOST = UINT64_C(1) << 30;

/* As many parameters as make their planes twice the size of the last cache, or as large as was asked for. */
static uint64_t params_of(struct ox_state_format format, uint64_t asked) {
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    const uint64_t large = ox_min_u64(ox_max_u64(2 * (uint64_t)(cache > 0 ? cache : 0), BYTES_LEAST), BYTES_MOST);
    const uint64_t bytes = asked > 0 ? asked : large;
    const uint64_t each = ox_state_layout_of(format, OX_GROUP_ELEMS).bytes / OX_GROUP_ELEMS + 6;
    return bytes / each / OX_GROUP_ELEMS * OX_GROUP_ELEMS;
}

enum ox_status ox_measure_update(const struct ox_measure_input *input, struct ox_state_format format,
                                 uint64_t end_ns, double *seconds) {
    const struct ox_optim_settings settings = {.learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
                                              .weight_decay = 0.01, .grad_scale = 0.5, .step = 100};
    const uint64_t now_ns = ox_clock_ns(), left_ns = end_ns > now_ns ? end_ns - now_ns : 1;
    uint64_t params = params_of(format, input->update_bytes);
    const uint64_t bytes = 6 * params + ox_state_layout_of(format, params).bytes + 4096;
    double all[ROUNDS_MAX];
    struct ox_measure_rig rig;
    enum ox_status status = ox_measure_rig_open(input->optimizer_threads, OX_REAL_F32, &(struct ox_probe_room){
        .bytes = bytes, .least = OX_MIB, .end_ns = now_ns + left_ns * 2 / 3}, &rig);
    if (status == OX_OK && rig.arena.bytes < bytes / 3) {
        ox_measure_rig_close(&rig);
        status = ox_fail(OX_E_BUSY, "the machine gives memory too slowly; try again when it is less busy, or measure "
                         "with `offload bench all --output FILE` and give --profile FILE");
    }
    if (status != OX_OK) {
        return status;
    }
    params = rig.arena.bytes >= bytes ? params : params / 3 / OX_GROUP_ELEMS * OX_GROUP_ELEMS;
    const uint64_t state_bytes = ox_state_layout_of(format, params).bytes;
    struct ox_bump room = {.base = rig.arena.base};
    uint64_t *const nonfinite = ox_bump_alloc(&room, sizeof *nonfinite);
    struct ox_op_adam op = {.hi = ox_bump_alloc(&room, 2 * params), .grad = ox_bump_alloc(&room, 4 * params),
                            .state = ox_bump_alloc(&room, state_bytes), .nonfinite = nonfinite, .elem_count = params,
                            .count = params, .format = format, .isa = input->isa, .decay = true};
    ox_optim_hyper_init(&settings, &op.hyper);
    memset(op.state, 0, state_bytes);
    uint32_t count = 0;
    double ignored = 0;
    OX_THEN(status, ox_measure_rig_time(&rig, OX_OP_adam, &op, &ignored));
    while (count < ROUNDS_MAX && status == OX_OK && (count == 0 || ox_clock_ns() < end_ns)) {
        all[count] = 0;
        status = ox_measure_rig_time(&rig, OX_OP_adam, &op, &all[count++]);
    }
    if (status == OX_OK) {
        *seconds = ox_probe_median(all, count) / (double)params;
    }
    ox_measure_rig_close(&rig);
    return status;
}
