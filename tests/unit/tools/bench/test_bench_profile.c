/* The profile of a machine with a GPU, from records that are made up: each rate comes from the record that is named for
 * it, and a machine of which a record is missing has no such rate. */
#include "offload/sim/machine_profile.h"
#include "tests/kit/test.h"
#include "tools/bench/bench_device.h"

#include "base/file.h"

static const struct {
    const char *name;
    double value;
} records[] = {
    {"gemm.all.threads_1", 1e11}, {"copy.read.threads_1", 3e10}, {"adam.adamw.f32.grad_f32.time", 0.4},
    {"lane.task", 9e-6}, {"gemm.packed", 0.01}, {"gemm.gpu.block.f32", 5e13}, {"gemm.gpu.block.bf16", 6e14},
    {"copy.gpu.h2d", 5e10},
    {"copy.gpu.d2h", 5.1e10}, {"copy.gpu.duplex", 7e10}, {"copy.gpu.memory", 4e12},
    {"attention.gpu.forward.bf16", 4e14}, {"attention.gpu.backward.bf16", 3e14},
    {"attention.gpu.forward.mha.bf16", 4.4e14}, {"attention.gpu.backward.mha.bf16", 3.3e14},
};

/* Writes the profile from the records but the last `missing`, and reads it. */
static void write_and_read(uint32_t missing, struct ox_machine *out) {
    static struct ox_bench bench;
    static struct ox_config config;
    char path[OX_PATH_BYTES];
    struct ox_bench_device gpu = {.facts = {.name = "a card", .memory_bytes = UINT64_C(80) << 30}};
    ox_config_init(&config);
    config.place.compute_threads = config.place.optimizer_threads = 1;
    config.tool.quiet = true;
    bench = (struct ox_bench){.config = &config, .json = true, .gpu = &gpu};
    for (uint32_t i = 0; i < sizeof records / sizeof *records - missing; i++) {
        ox_bench_add(&bench, &(struct ox_bench_figure){.value = records[i].value, .unit = ""}, "%s", records[i].name);
    }
    REQUIRE_OK(ox_path_join(test_folder(), "machine.json", path));
    REQUIRE_OK(ox_bench_profile_write(&bench, path));
    REQUIRE_OK(ox_machine_load(path, out));
}

int main(void) {
    static struct ox_machine machine;
    const struct ox_machine_gpu *const gpu = &machine.gpu;
    write_and_read(0, &machine);
    CHECK(machine.has_gpu && gpu->fp32_flops == 5e13 && gpu->bf16_flops == 6e14 && gpu->memory_rate == 4e12);
    CHECK(gpu->h2d_rate == 5e10 && gpu->d2h_rate == 5.1e10 && gpu->duplex_rate == 7e10);
    CHECK(machine.host.packed_bytes_per_flop == 0.01); /* of a model's sizes */
    CHECK(gpu->attention_flops == 4e14 && gpu->attention_backward_flops == 3e14);
    CHECK(gpu->mha_attention_flops == 4.4e14 && gpu->mha_attention_backward_flops == 3.3e14);
    write_and_read(2, &machine);
    CHECK(gpu->attention_backward_flops == 3e14 && gpu->mha_attention_flops == 0);
    CHECK(gpu->mha_attention_backward_flops == 0);
    return test_end();
}
