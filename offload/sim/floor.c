#include "offload/sim/floor.h"

#include "base/assert.h"
#include "offload/sim/machine_profile.h"

#include <math.h>

enum { BF16 = 2, F32 = 4 };
/* A step that takes less than HIDDEN_AT times its compute counts as hidden. The search for the tokens that this needs
 * runs from HIDDEN_FIRST to HIDDEN_LAST, each time HIDDEN_AT times as many. */
#define HIDDEN_AT 1.05
#define HIDDEN_FIRST 1024.0
#define HIDDEN_LAST 4e6

/* Nothing to transfer takes no time, even at rate 0. */
static double seconds_for(double amount, double rate) {
    return amount > 0.0 ? amount / rate : 0.0;
}

static double drive_seconds(const struct ox_floor_box *box, double read, double written) {
    return seconds_for(read, box->nvme_read_rate) + seconds_for(written, box->nvme_write_rate);
}

/* N, and GPUs with memory of their own: a unified box is one device, however it is cut up. */
static double gpus_of(const struct ox_floor_box *box) {
    return box->unified ? 1.0 : fmax(box->gpus, 1.0);
}

static double largest(const double *values, unsigned count) {
    double most = values[0];
    for (unsigned i = 1; i < count; i++) {
        most = fmax(most, values[i]);
    }
    return most;
}

/* Batch shape: T_mu = min(T / N, q T_mu0), G = ceil(floor(T) / floor(T_mu)), A = 2 h L T, A_t = A / k,
 * D = 4 h T / (k N) for F, K = 4 P if there is a sum to keep: with more than one tile, or in ZeRO-Infinity's order. */
static void shape_batch(const struct ox_floor_case *given, double tiles, struct ox_floor *out) {
    const struct ox_floor_model *const model = &given->model;
    const double tokens = given->run.tokens;
    const bool vertical = given->run.schedule == OX_FLOOR_F;
    const double gpus = gpus_of(&given->box);
    out->micro_tokens = fmax(1.0, fmin(tokens / gpus, given->box.micro_factor * model->micro_tokens));
    out->micro_batches = fmax(1.0, ceil(floor(tokens) / floor(out->micro_tokens)));
    out->tiles = vertical ? tiles : out->micro_batches;
    out->checkpoint_bytes = BF16 * model->hidden * model->layers * tokens;
    out->alive_bytes = out->checkpoint_bytes / out->tiles;
    out->boundary_bytes = vertical ? 2 * BF16 * model->hidden * tokens / (out->tiles * gpus) : 0.0;
    out->boundary_spilled = !given->box.unified && out->boundary_bytes > 0.25 * given->box.gpu_bytes;
    if (out->boundary_spilled) {
        out->boundary_bytes = 0.0;
    }
    out->accumulator_bytes = out->tiles > 1.0 || given->run.schedule == OX_FLOOR_H ? F32 * model->params : 0.0;
}

/* Places greedily, in this order: the GPU's working set, activation checkpoints, gradient accumulator, hi, the rest of
 * the state. With y = P / L, W_gpu = 3 2 y + 2 4 y + 40 h T_mu + D + reserve: three bf16 layers, two fp32 layers,
 * working activations. */
static void place(const struct ox_floor_case *given, struct ox_floor *out) {
    const struct ox_floor_box *const box = &given->box;
    const double params = given->model.params, layer = params / given->model.layers;
    const double rest_bytes = given->run.state_bytes - BF16; /* X */
    const double usable = 0.95 * box->gpu_bytes, host = fmax(0.0, box->host_bytes - box->host_reserved_bytes);
    out->working_bytes = 3 * BF16 * layer + 2 * F32 * layer + 40.0 * given->model.hidden * out->micro_tokens +
                         out->boundary_bytes + box->gpu_reserved_bytes;
    out->fits = out->working_bytes < (box->unified ? host : usable);
    out->spare_gpu_bytes = box->unified ? 0.0 : gpus_of(box) * fmax(0.0, usable - out->working_bytes);
    const double free_host = box->unified ? fmax(0.0, host - out->working_bytes) : host;
    double left = out->spare_gpu_bytes + free_host; /* x */
    const double kept = fmin(out->alive_bytes, 0.5 * free_host);
    left -= kept;
    out->checkpoints_on_nvme = out->alive_bytes - kept;
    const double accumulator = out->accumulator_bytes;
    out->grad_share = accumulator > 0.0 ? fmin(1.0, fmax(0.0, left) / accumulator) : 1.0;
    left -= out->grad_share * accumulator;
    out->weight_share = fmin(1.0, fmax(0.0, left) / (BF16 * params));
    left -= out->weight_share * BF16 * params;
    out->state_share = fmin(1.0, fmax(0.0, left) / (rest_bytes * params));
    out->gpu_share = fmin(1.0, out->spare_gpu_bytes / ((rest_bytes + 2 * BF16) * params));
}

static void count_traffic(const struct ox_floor_case *given, struct ox_floor *out) {
    const enum ox_floor_schedule schedule = given->run.schedule;
    const double params = given->model.params, rest_bytes = given->run.state_bytes - BF16;
    const double streamed = params * (1.0 - out->gpu_share); /* P u */
    const double tiles = out->tiles, acts = out->checkpoint_bytes, spilled = out->boundary_spilled ? 1.0 : 0.0;
    struct ox_floor_traffic *const t = &out->traffic;
    if (!given->box.unified) {
        t->h2d = BF16 * streamed * 2.0 * tiles + acts + 2.0 * spilled * acts;
        t->d2h = BF16 * streamed * tiles + acts + spilled * acts;
    }
    /* Each GPU gets its slice of the sum from the others, and gives them theirs. What is gathered depends on what the
     * GPUs divide. */
    const double gpus = gpus_of(&given->box);
    t->peer = F32 * params * (gpus - 1.0) / gpus;
    t->weights_read = BF16 * params * (1.0 - out->weight_share) * 2.0 * tiles;
    /* ZeRO-Infinity also writes the last sum to NVMe. */
    const double sums = schedule == OX_FLOOR_H ? tiles : tiles - 1.0;
    t->grad_read = t->grad_written = F32 * params * (1.0 - out->grad_share) * sums;
    t->checkpoints = out->checkpoints_on_nvme * tiles;
    t->state_read = rest_bytes * params * (1.0 - out->state_share);
    t->state_written = t->state_read + BF16 * params * (1.0 - out->weight_share);
    t->nvme_read = t->weights_read + t->grad_read + t->state_read + t->checkpoints;
    t->nvme_written = t->grad_written + t->state_written + t->checkpoints;
    /* Adam reads the state and the bf16 gradient and writes the state; an accumulation reads a bf16 and an fp32
     * gradient and writes an fp32 one. */
    t->adam = (2.0 * given->run.state_bytes + BF16) * streamed;
    t->accumulate = 10.0 * streamed * fmax(0.0, tiles - 1.0) + (schedule == OX_FLOOR_H ? F32 * streamed : 0.0);
    t->dram = t->adam + t->accumulate + t->h2d + t->d2h + t->nvme_read + t->nvme_written;
}

static void take_time(const struct ox_floor_case *given, struct ox_floor *out) {
    const struct ox_floor_box *const box = &given->box;
    const struct ox_floor_traffic *const t = &out->traffic;
    const double gpus = gpus_of(box);
    out->seconds[OX_FLOOR_COMPUTE] = out->flop / (box->flops * gpus);
    out->seconds[OX_FLOOR_H2D] = t->h2d / (box->h2d_rate * gpus);
    out->seconds[OX_FLOOR_D2H] = t->d2h / (box->d2h_rate * gpus);
    out->seconds[OX_FLOOR_PEER] = t->peer / (box->peer_rate > 0.0 ? box->peer_rate : box->h2d_rate);
    out->seconds[OX_FLOOR_DRAM] = t->dram / box->dram_rate;
    out->seconds[OX_FLOOR_NVME] = drive_seconds(box, t->nvme_read, t->nvme_written);
    out->optimizer_seconds = fmax(drive_seconds(box, t->state_read, t->state_written), t->adam / box->dram_rate);
    const double passes[] = {
        out->seconds[OX_FLOOR_COMPUTE], out->seconds[OX_FLOOR_H2D], out->seconds[OX_FLOOR_D2H],
        drive_seconds(box, t->weights_read + t->grad_read + t->checkpoints, t->grad_written + t->checkpoints),
        (t->h2d + t->d2h + t->accumulate + t->weights_read) / box->dram_rate,
    };
    out->passes_seconds = largest(passes, sizeof passes / sizeof *passes);
}

static double step_seconds(enum ox_floor_schedule schedule, const struct ox_floor *out) {
    switch (schedule) {
    case OX_FLOOR_H:
        return out->passes_seconds + out->optimizer_seconds;
    case OX_FLOOR_HA: {
        /* b: backward and recomputation of the last micro-batch, which are 3 of its 4 parts. */
        const double last = 0.75 * out->passes_seconds / out->tiles;
        return out->passes_seconds - last + fmax(last, out->optimizer_seconds);
    }
    default:
        return largest(out->seconds, OX_FLOOR_RESOURCE_COUNT);
    }
}

static struct ox_floor with_tiles(const struct ox_floor_case *given, double tiles) {
    const struct ox_floor_model *const model = &given->model;
    const double passes = 3.0 + given->run.recompute; /* in units of one forward */
    struct ox_floor out = {.bound = OX_FLOOR_COMPUTE};
    shape_batch(given, tiles, &out);
    place(given, &out);
    out.flop = passes * given->run.tokens * (2.0 * model->params + 2.0 * model->layers * model->hidden * model->seq);
    count_traffic(given, &out);
    take_time(given, &out);
    out.step_seconds = step_seconds(given->run.schedule, &out);
    out.tokens_per_second = given->run.tokens / out.step_seconds;
    out.mfu = 3.0 / passes * out.flop / (given->box.flops * gpus_of(&given->box) * out.step_seconds);
    for (unsigned i = 1; i < OX_FLOOR_RESOURCE_COUNT; i++) {
        out.bound = out.seconds[i] > out.seconds[out.bound] ? (enum ox_floor_resource)i : out.bound;
    }
    out.hidden = out.step_seconds <= HIDDEN_AT * out.seconds[OX_FLOOR_COMPUTE];
    return out;
}

/* ---- public -------------------------------------------------------------------------------------------- */

const char *ox_floor_resource_name(enum ox_floor_resource resource) {
    static const char *const names[OX_FLOOR_RESOURCE_COUNT] = {"compute", "h2d", "d2h", "dram", "nvme", "peer"};
    OX_ASSERT((unsigned)resource < OX_FLOOR_RESOURCE_COUNT);
    return names[resource];
}

struct ox_floor ox_floor_of(const struct ox_floor_case *given) {
    const struct ox_floor_box *const box = &given->box;
    const struct ox_floor_model *const model = &given->model;
    OX_ASSERT((unsigned)given->run.schedule < OX_FLOOR_SCHEDULE_COUNT);
    OX_ASSERT(box->flops > 0.0 && box->h2d_rate > 0.0 && box->d2h_rate > 0.0 && box->dram_rate > 0.0);
    OX_ASSERT(model->params > 0.0 && model->layers > 0.0 && model->hidden > 0.0);
    OX_ASSERT(given->run.state_bytes > BF16 && given->run.tokens >= 1.0);
    OX_ASSERT(box->micro_factor * model->micro_tokens >= 1.0);
    if (given->run.schedule != OX_FLOOR_F || given->run.tiles > 0.0) {
        return with_tiles(given, given->run.tiles);
    }
    struct ox_floor best = with_tiles(given, 1.0);
    for (double tiles = 2.0; tiles <= 32.0 && given->run.tokens / tiles >= best.micro_tokens; tiles *= 2.0) {
        const struct ox_floor other = with_tiles(given, tiles);
        if (other.step_seconds < best.step_seconds) {
            best = other;
        }
    }
    return best;
}

double ox_floor_hidden_tokens(const struct ox_floor_case *given) {
    struct ox_floor_case tried = *given;
    for (tried.run.tokens = HIDDEN_FIRST; tried.run.tokens < HIDDEN_LAST; tried.run.tokens *= HIDDEN_AT) {
        if (ox_floor_of(&tried).hidden) {
            return tried.run.tokens;
        }
    }
    return INFINITY;
}

double ox_floor_speedup(const struct ox_floor_case *given) {
    struct ox_floor_case other = *given;
    other.run.schedule = OX_FLOOR_H;
    other.run.state_bytes = OX_FLOOR_S_F32_SEPARATE;
    return ox_floor_of(&other).step_seconds / ox_floor_of(given).step_seconds;
}

double ox_floor_tokens_for_weights(double flops, double rate) {
    return flops / (2.0 * rate);
}

double ox_floor_tokens_for_state(const struct ox_floor_box *box, double state_bytes) {
    return box->flops / 8.0 * drive_seconds(box, state_bytes + BF16, state_bytes);
}

double ox_floor_tokens_for_adam(const struct ox_floor_box *box, double state_bytes) {
    return box->flops / 8.0 * (2.0 * state_bytes + BF16) / box->dram_rate;
}

struct ox_floor_box ox_floor_box_of(const struct ox_machine *machine) {
    const struct ox_machine_drive drives = ox_machine_drives(machine);
    const bool gpu = machine->has_gpu;
    return (struct ox_floor_box){
        .flops = gpu ? machine->gpu.bf16_flops : fmax(machine->host.flops, machine->host.bf16_flops),
        .h2d_rate = gpu ? machine->gpu.h2d_rate : INFINITY,
        .d2h_rate = gpu ? machine->gpu.d2h_rate : INFINITY,
        .dram_rate = machine->host.dram_rate,
        .nvme_read_rate = drives.read_rate,
        .nvme_write_rate = drives.write_rate,
        .gpu_bytes = gpu ? (double)machine->gpu.memory_bytes : 0.0,
        .host_bytes = (double)machine->host.memory_bytes,
        .gpu_reserved_bytes = gpu ? OX_FLOOR_GPU_RESERVED : 0.0,
        .host_reserved_bytes = OX_FLOOR_HOST_RESERVED,
        .micro_factor = 1.0,
        .peer_rate = gpu ? machine->gpu.peer_rate : 0.0,
        .unified = !gpu,
    };
}
