/* The table of operations: every row is whole, both devices have a function for it, and `offload bench ops` measures
 * it. */
#include "base/lane.h"
#include "engine/step/update/ops_optim.h"
#include "kernels/cuda.h"
#include "tests/kit/device/simt_kit.h"
#include "tests/kit/test.h"
#include "tools/bench/bench_ops.h"

#include <string.h>

static void test_rows(void) {
    for (int i = 0; i < OX_OP_COUNT; i++) {
        const struct ox_op_row *const row = &ox_op_rows[i];
        CHECK(row->name != NULL && row->args_bytes > 0 && row->group < OX_OPS_GROUP_COUNT);
        CHECK(row->args_bytes <= OX_JOB_ARGS_BYTES - 16); /* beside what both devices put before it */
        CHECK(row->real_offset == OX_OP_NO_REAL || row->real_offset + sizeof(enum ox_real) <= row->args_bytes);
        for (int k = 0; k < i; k++) {
            CHECK(strcmp(row->name, ox_op_rows[k].name) != 0);
        }
    }
}

static void test_functions(void) {
    struct ox_ops cpu, cuda;
    const struct simt *const simt = simt_open();
    ox_ops_init_cpu(&cpu);
    CHECK(cpu.functions[OX_OP_adam] == NULL && cpu.functions[OX_OP_square_sums] == NULL);
    ox_ops_optim_init_cpu(&cpu);
    simt->plugin->ops_init(&cuda);
    for (int i = 0; i < OX_OP_COUNT; i++) {
        CHECK(cpu.functions[i] != NULL && cuda.functions[i] != NULL);
    }
}

/* rope_table runs once per model: it is not measured. */
static void test_measured(void) {
    uint32_t count = 0, measured[OX_OP_COUNT] = {0};
    const struct ox_bench_op *const all = ox_bench_ops_all(&count);
    for (uint32_t i = 0; i < count; i++) {
        measured[all[i].op]++;
        for (uint32_t k = 0; k < i; k++) {
            CHECK(strcmp(ox_bench_op_name(&all[i]), ox_bench_op_name(&all[k])) != 0);
        }
    }
    for (int i = 0; i < OX_OP_COUNT; i++) {
        CHECK((measured[i] > 0) == (i != OX_OP_rope_table));
    }
}

int main(void) {
    test_rows();
    test_functions();
    test_measured();
    return test_end();
}
