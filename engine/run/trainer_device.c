/* Decides which device a run computes on, and how much of its memory the run uses. */
#include "engine/run/trainer_internal.h"

#include "base/bytes.h"
#include "base/hash/hash.h"

#include <stdio.h>
#include <string.h>

/* Reads what the GPU reports about itself. The GPU is closed again, because the plan is made before the
 * engine opens. */
static enum ox_status look_at_gpu(struct ox_trainer *trainer) {
    struct ox_device *device = NULL;
    enum ox_status status = ox_cuda_device_open(&trainer->engine_config.cuda, &device);
    if (status == OX_OK) {
        status = ox_cuda_device_query(device, &trainer->gpu);
        ox_device_close(&device);
    }
    return status;
}

/* Takes the free memory, less a little that others may still take; it is recorded, so that a resumed run has
 * the same. */
static enum ox_status take_free_memory(struct ox_trainer *trainer) {
    const struct ox_cuda_device_info *const gpu = &trainer->gpu;
    const uint64_t spared = ox_max_u64(gpu->memory_bytes / 32, 64 * OX_MIB);
    const uint64_t free_bytes = gpu->free_bytes + OX_CUDA_WORKSPACE_BYTES;
    if (free_bytes <= spared + OX_CUDA_PROCESS_BYTES) {
        char have[OX_SIZE_TEXT_BYTES], all[OX_SIZE_TEXT_BYTES];
        return ox_fail(OX_E_DEVICE, "GPU: %s has %s of %s free, which is too little for a run; end what else uses it "
                       "(nvidia-smi shows it), or use --device cpu", gpu->name, ox_size_text(gpu->free_bytes, have),
                       ox_size_text(gpu->memory_bytes, all));
    }
    trainer->config.device_mem_bytes = (free_bytes - spared) / OX_MIB * OX_MIB;
    return OX_OK;
}

static enum ox_status set_memory(struct ox_trainer *trainer) {
    struct ox_plan_budget *const budget = &trainer->engine_config.budget;
    char have[OX_SIZE_TEXT_BYTES], need[OX_SIZE_TEXT_BYTES];
    const uint64_t bytes = trainer->config.device_mem_bytes;
    if (bytes <= OX_CUDA_PROCESS_BYTES) {
        return ox_fail(OX_E_CONFIG, "--device-mem %s: %s of a GPU's memory go to the driver, to code and to libraries; "
                       "give more, or --device cpu", ox_size_text(bytes, have),
                       ox_size_text(OX_CUDA_PROCESS_BYTES, need));
    }
    if (trainer->gpu.memory_bytes > 0 && bytes > trainer->gpu.memory_bytes) {
        return ox_fail(OX_E_CONFIG, "--device-mem %s: %s has %s; without the option a run takes what is free of it",
                       ox_size_text(bytes, have), trainer->gpu.name,
                       ox_size_text(trainer->gpu.memory_bytes, need));
    }
    budget->unified = false;
    budget->device_bytes = bytes - OX_CUDA_PROCESS_BYTES;
    budget->device_beside_bytes = OX_CUDA_PROCESS_BYTES;
    return OX_OK;
}

enum ox_status ox_trainer_pick_device(struct ox_trainer *trainer) {
    struct ox_config *const config = &trainer->config;
    struct ox_engine_config *const engine = &trainer->engine_config;
    const bool planned_elsewhere = config->plan_only && config->device == OX_DEVICE_CHOICE_CUDA &&
                                   config->device_mem_bytes > 0;
    enum ox_status status = OX_OK;
    if (config->device != OX_DEVICE_CHOICE_CPU && !planned_elsewhere) {
        status = look_at_gpu(trainer);
        status = status == OX_OK && config->device_mem_bytes == 0 ? take_free_memory(trainer) : status;
    }
    if (config->device == OX_DEVICE_CHOICE_AUTO) {
        if (status != OX_OK) {
            snprintf(trainer->no_gpu, sizeof trainer->no_gpu, "%s", ox_error_text());
            trainer->gpu = (struct ox_cuda_device_info){0};
        }
        config->device = status == OX_OK ? OX_DEVICE_CHOICE_CUDA : OX_DEVICE_CHOICE_CPU;
        status = OX_OK;
    }
    if (status != OX_OK || config->device == OX_DEVICE_CHOICE_CPU) {
        return status;
    }
    engine->device = OX_DEVICE_CUDA;
    return set_memory(trainer);
}

void ox_trainer_fit_machine(struct ox_trainer *trainer) {
    struct ox_machine *const machine = &trainer->machine;
    const bool on_gpu = trainer->engine_config.device == OX_DEVICE_CUDA;
    if (on_gpu && !machine->has_gpu) {
        const bool known = trainer->gpu.memory_bytes > 0;
        ox_machine_nominal_gpu(machine, &(struct ox_machine_gpu_facts){
            .name = known ? trainer->gpu.name : "nominal",
            .memory_bytes = known ? trainer->gpu.memory_bytes : trainer->config.device_mem_bytes,
            .capability = trainer->gpu.capability, .processor_count = trainer->gpu.processor_count});
    }
    machine->has_gpu = on_gpu;
}

/* Libraries choose algorithms by GPU and by their own version. The reason why cuDNN is missing changes no bit. */
uint64_t ox_trainer_gpu_hash(const struct ox_trainer *trainer, uint64_t seed) {
    const struct ox_cuda_device_info *const gpu = &trainer->gpu;
    const char *const attention = strncmp(gpu->attention, "cuDNN ", 6) == 0 ? gpu->attention : "";
    const uint64_t words[] = {seed, (uint64_t)trainer->engine_config.device, gpu->capability, gpu->processor_count,
                              gpu->blas_version, ox_hash64(attention, strlen(attention), 0)};
    return ox_hash_seed(words, sizeof words / sizeof *words);
}

const char *ox_trainer_device_text(const struct ox_trainer *trainer, char text[OX_DEVICE_LINE_BYTES]) {
    const struct ox_machine_gpu *const gpu = &trainer->machine.gpu;
    char size[OX_SIZE_TEXT_BYTES], own[OX_SIZE_TEXT_BYTES];
    if (trainer->engine_config.device == OX_DEVICE_CPU) {
        snprintf(text, OX_DEVICE_LINE_BYTES, "the CPU%s%s", trainer->no_gpu[0] != '\0' ? "; " : "", trainer->no_gpu);
        return text;
    }
    const bool seen = trainer->gpu.memory_bytes > 0;
    snprintf(text, OX_DEVICE_LINE_BYTES, "%.64s, %s%s; %s of that go to driver, code and libraries",
             seen ? trainer->gpu.name : gpu->name,
             ox_size_text(seen ? trainer->gpu.memory_bytes : gpu->memory_bytes, size),
             seen ? "" : ", which was not looked at", ox_size_text(OX_CUDA_PROCESS_BYTES, own));
    return text;
}
