/* What each task of a plan needs from a machine: bytes and operations over the rates of its profile. The kinds of task
 * are those that engine/step/executor/ and engine/step/update/ run; a change there needs its counterpart here. */
#include "offload/sim/sim.h"
#include "offload/plan/cases.h"

#include "base/assert.h"
#include "base/bytes.h"

/* One core's memory rate is its share of all, but at least this, which one core of a machine with many cores still
 * reaches. Checksums, copies and sums on one thread run at this rate, because memory limits them. */
static const double CORE_RATE_LEAST = 12e9;
/* Shares of the memory rate. A plain copy also reads the cache lines that it overwrites: COPY_SHARE holds for copying
 * loops and packing. COLD_SHARE holds for joining planes and clearing gradients, whose memory is no longer
 * cached. */
static const double COPY_SHARE = 0.72, COLD_SHARE = 0.48;
/* GEMMs in a step, between other work, reach this share of their rate alone, fitted to whole steps: in fp32, and in
 * bf16, where they take less time, so that waiting for memory is a larger part of it;
 * docs/measurements/archive.md. */
static const double GEMM_SHARE = 0.96, GEMM_SHARE_BF16 = 0.92;
/* Attention's GEMMs are short, with exponentials between them, and reach this share of the rate of large GEMMs. */
static const double ATTENTION_SHARE = 0.82;
/* The GEMM rate of a profile includes packing of the operands, which the work of a plan counts separately. This is the
 * packing in bytes per operation at the shape for which `offload bench gemm` takes most of its time: 512 rows, 2048 by
 * 5632. */
static const double PACKED_BYTES_PER_FLOP = 6.0 / 512 + 6.0 / 5632 + 2.0 / 2048;
/* Seconds of a core per byte of drive I/O. First the kernel's share, where the profile has none: between values
 * measured for io_uring on a virtual NVMe drive. Then the share of the engine's own threads apart from hashing, which
 * wake each other and poll for completions: by the processor time of steps on that drive. Beside compute that uses all
 * cores it is more, because compute waits for its thread on that core. */
static const double KERNEL_SECONDS_PER_BYTE = 1e-11, ENGINE_SECONDS_PER_BYTE = 4e-11,
                    ENGINE_SECONDS_PER_BYTE_BESIDE_COMPUTE = 1.6e-10;
/* A drive sometimes waits for a thread that has no core yet: this share of the time for which its threads need all
 * cores is not hidden behind it. Fitted with two cores, to a virtual drive and to the same drive held to 0.5, 1 and 1.5
 * GB/s (docs/measurements/2026-11-27-unhidden.md). */
static const double UNHIDDEN_SHARE = 0.5;
/* If compute leaves no core free, a thread that wakes up waits for the time slice of another one: the lane of reads
 * once per task, the lane of writes, which hashes first, twice. */
static const double SLICE_SECONDS = 0.75e-3;
/* Time to take one operation from the compute lane and distribute it over threads that are awake. */
static const double OPERATION_SECONDS = 4e-6;

/* Nominal values for a GPU, until one is measured. The time from the end of one operation until all multiprocessors
 * work on the next; the rate of attention, if the profile has none, as a share of the GEMM rate, for libraries in
 * bfloat16 and for plain arithmetic in float32; and operations per byte of memory, if the profile has no memory rate,
 * which is about the same for the last three generations. */
static const double LAUNCH_SECONDS = 3e-6;
static const double GPU_ATTENTION_SHARE = 0.6, GPU_ATTENTION_SHARE_FP32 = 0.15, GPU_FLOPS_PER_BYTE = 150;

/* What all tasks of a plan have in common. */
struct basis {
    const struct ox_sim_setup *setup;
    struct ox_machine machine; /* what the rank has of it */
    struct ox_machine_drive drive; /* all drives together */
    struct ox_sim_limits limits;
    struct ox_step_case usual; /* what is simulated: the usual step, or one like it that stays uncommitted or holds */
    bool between;              /* commits come between steps */
};

struct pricing {
    const struct ox_sim_setup *setup;
    const struct ox_machine *machine;
    const struct ox_plan *plan;
    const struct ox_task *task;
    const struct ox_machine_drive *drive;
    const struct ox_sim_limits *limits;
    const struct basis *basis;
    double cores, core_rate;
    bool on_gpu; /* compute runs on a GPU; else the CPU is the device, even with its own memory budget */
};

static double min(double a, double b) {
    return a < b ? a : b;
}

static double max(double a, double b) {
    return a > b ? a : b;
}

static double threads_of(const struct pricing *p, uint32_t requested) {
    return requested == 0 ? p->cores : min(requested, p->cores);
}

/* The rate at which the compute threads copy. */
static double compute_copy_rate(const struct pricing *p) {
    return COPY_SHARE * min(p->machine->host.dram_rate, threads_of(p, p->setup->compute_threads) * p->core_rate);
}

/* GEMM operations per second of the CPU device without packing, which a measured rate includes and a plan counts
 * separately. A part of the time is left in any case; less in bf16, whose packing takes less than is counted. */
static double cpu_flops(const struct pricing *p, enum ox_real products) {
    const bool bf16 = products == OX_REAL_BF16;
    const struct ox_machine_host *const host = &p->machine->host;
    const double threads = threads_of(p, p->setup->compute_threads);
    const double fp32 = threads >= p->cores ? host->flops : min(host->core_flops * threads, host->flops);
    const double flops = bf16 && host->bf16_flops > 0 ? GEMM_SHARE_BF16 * host->bf16_flops * threads / p->cores
                                                      : GEMM_SHARE * fp32;
    const double packed = host->packed_bytes_per_flop > 0 ? host->packed_bytes_per_flop : PACKED_BYTES_PER_FLOP;
    const double packing = packed / compute_copy_rate(p);
    return 1 / max(1 / flops - packing, (bf16 ? 0.1 : 0.5) / flops);
}

/* GEMM operations per second of the device; for the CPU without packing. */
static double flops_of(const struct pricing *p) {
    const enum ox_real products = p->setup->input->model.precision->products;
    return !p->on_gpu                ? cpu_flops(p, products)
           : products == OX_REAL_F32 ? p->machine->gpu.fp32_flops
                                     : p->machine->gpu.bf16_flops;
}

/* Attention's operations per second on the CPU, which computes it in fp32. */
static double attention_rate(const struct pricing *p) {
    const double known = p->machine->host.attention_flops;
    return known > 0 ? known * threads_of(p, p->setup->compute_threads) / p->cores
                     : cpu_flops(p, OX_REAL_F32) * ATTENTION_SHARE;
}

static double gpu_memory_rate(const struct pricing *p) {
    const struct ox_machine_gpu *const gpu = &p->machine->gpu;
    return gpu->memory_rate > 0 ? gpu->memory_rate : gpu->bf16_flops / GPU_FLOPS_PER_BYTE;
}

/* Seconds of attention on the GPU, by the rates of the model's kind of heads; where the profile lacks them, by those of
 * the other kind. */
static double gpu_attention_seconds(const struct pricing *p, const struct ox_plan_work *given) {
    const struct ox_machine_gpu *const gpu = &p->machine->gpu;
    const double rates[2][2] = {{gpu->mha_attention_flops, gpu->mha_attention_backward_flops},
                                {gpu->attention_flops, gpu->attention_backward_flops}};
    const bool grouped = p->setup->input->model.grouped;
    const double *const own = rates[grouped], *const other = rates[!grouped];
    const double forward = own[0] > 0 ? own[0] : other[0] > 0 ? other[0] : gpu->bf16_flops * GPU_ATTENTION_SHARE;
    const double backward = own[1] > 0 ? own[1] : own[0] > 0 ? own[0] : other[1] > 0 ? other[1] : forward;
    return p->setup->input->model.precision->products == OX_REAL_F32
               ? (given->attention_flops + given->attention_backward_flops) /
                     (gpu->fp32_flops * GPU_ATTENTION_SHARE_FP32)
               : given->attention_flops / forward + given->attention_backward_flops / backward;
}

/* ---- pieces --------------------------------------------------------------------------------------- */

/* Adds `seconds` in which `threads` cores are busy. */
static void use_cores(const struct pricing *p, struct ox_sim_work *work, double seconds, double threads) {
    work->use[OX_SIM_CORES] += seconds * threads / p->cores;
}

static void use_memory(const struct pricing *p, struct ox_sim_work *work, double bytes) {
    work->use[OX_SIM_MEMORY] += bytes / p->machine->host.dram_rate;
}

/* Makes the task take at least as long as each of its resources needs. */
static struct ox_sim_work finish(const struct pricing *p, struct ox_sim_work work) {
    for (int r = 0; r < OX_SIM_RESOURCE_COUNT; r++) {
        work.seconds = max(work.seconds, work.use[r]);
    }
    work.seconds = max(work.seconds, ox_sim_duplex_seconds(&p->limits->nvme, work.use[OX_SIM_NVME_READ],
                                                           work.use[OX_SIM_NVME_WRITE]));
    work.seconds = max(work.seconds,
                       ox_sim_duplex_seconds(&p->limits->link, work.use[OX_SIM_H2D], work.use[OX_SIM_D2H]));
    return work;
}

static struct ox_sim_work new_work(const struct pricing *p) {
    return (struct ox_sim_work){.latency = p->machine->task_seconds};
}

/* ---- compute -------------------------------------------------------------------------------------- */

/* A GPU loads operands while it multiplies; between GEMMs its memory is the limit. */
static struct ox_sim_work compute_on_gpu(const struct pricing *p, const struct ox_plan_work *given) {
    struct ox_sim_work work = new_work(p);
    const double memory_rate = gpu_memory_rate(p);
    work.latency += given->ops * LAUNCH_SECONDS;
    work.use[OX_SIM_GPU] = max(given->gemm_flops / flops_of(p), given->gemm_bytes / memory_rate) +
                           gpu_attention_seconds(p, given) + given->bytes / memory_rate;
    return finish(p, work);
}

static struct ox_sim_work compute(const struct pricing *p, const struct ox_plan_work *given) {
    if (p->on_gpu) {
        return compute_on_gpu(p, given);
    }
    struct ox_sim_work work = new_work(p);
    const double threads = threads_of(p, p->setup->compute_threads);
    work.latency += given->ops * OPERATION_SECONDS;
    const double attention = given->attention_flops + given->attention_backward_flops;
    work.seconds = given->gemm_flops / flops_of(p) + attention / attention_rate(p);
    work.seconds += given->bytes / compute_copy_rate(p);
    use_cores(p, &work, work.seconds, threads);
    use_memory(p, &work, given->bytes);
    return finish(p, work);
}

/* A pass over memory that is in no cache any more, which slows down a CPU but not a GPU. */
static double cold_bytes(const struct pricing *p, double bytes) {
    return bytes * (p->on_gpu ? 1 : COPY_SHARE / COLD_SHARE);
}

static struct ox_sim_work compute_bytes(const struct pricing *p, double bytes) {
    return compute(p, &(struct ox_plan_work){.bytes = cold_bytes(p, bytes), .ops = 1});
}

static const struct ox_plan_unit *unit_of(const struct pricing *p) {
    return &p->setup->input->model.units[p->task->unit_idx];
}

static const struct ox_plan_stage *stage_of(const struct pricing *p) {
    return &p->setup->input->model.stages[p->task->stage_idx];
}

/* Bytes of the sums that a pass of the task's stage adds to. */
static double sum_bytes(const struct pricing *p) {
    const struct ox_plan_stage *const stage = stage_of(p);
    uint64_t elems = 0;
    for (uint32_t nth = 0; nth < stage->unit_count; nth++) {
        const uint32_t grad_idx = stage->units[nth].grad_idx;
        const bool has = grad_idx != OX_NONE && ox_plan_has_group(p->setup->input, stage->units[nth].unit_idx);
        elems += has ? p->setup->input->model.grads[grad_idx].elem_count : 0;
    }
    return (double)elems * sizeof(float);
}

/* The pass that begins sums does not read them on a GPU; on the CPU a GEMM reads what it has just cleared. An
 * embedding, which adds rows to its table, clears that first. */
static struct ox_plan_work begin_sums(const struct pricing *p, struct ox_plan_work work) {
    if (stage_of(p)->kind == OX_PLAN_EMBEDDING) {
        work.bytes += cold_bytes(p, sum_bytes(p));
        work.ops++;
    } else if (p->on_gpu) {
        work.gemm_bytes = max(0, work.gemm_bytes - sum_bytes(p));
    }
    return work;
}

/* What the task's phase takes of the work of its pass. */
static struct ox_plan_work of_phase(const struct pricing *p, const struct ox_plan_pass *pass,
                                    struct ox_plan_work work) {
    const uint32_t phase = p->task->phase;
    const double from = phase > 0 ? pass->cuts[phase - 1].share : 0;
    const double share = (phase < pass->cut_count ? pass->cuts[phase].share : 1) - from;
    return (struct ox_plan_work){.gemm_flops = work.gemm_flops * share, .bytes = work.bytes * share,
                                 .attention_flops = work.attention_flops * share,
                                 .attention_backward_flops = work.attention_backward_flops * share,
                                 .gemm_bytes = work.gemm_bytes * share,
                                 .ops = (uint32_t)(work.ops * share + 0.5)};
}

/* A pass for which the model gives no work takes the time of submitting a task. */
static struct ox_sim_work run_pass(const struct pricing *p, const struct ox_plan_pass *pass) {
    struct ox_plan_work given = pass->work;
    const bool known = given.ops > 0 || given.bytes > 0 || given.gemm_flops > 0 || given.attention_flops > 0 ||
                       given.attention_backward_flops > 0;
    given = p->task->begins ? begin_sums(p, given) : given;
    given = pass->cut_count > 0 ? of_phase(p, pass, given) : given;
    return known ? compute(p, &given) : new_work(p);
}

static double unit_elems(const struct pricing *p) {
    return (double)unit_of(p)->elem_count;
}

/* Elements of what the rank has of the unit. */
static double own_elems(const struct pricing *p) {
    return (double)p->setup->input->table->shards[p->task->unit_idx].elem_count;
}

/* Elements of what the rank has of the finished gradient, and how many additions the rank makes of the parts of all. */
static double grad_slice(const struct pricing *p) {
    return (double)ox_plan_grad_slice(p->setup->input, p->task->grad_idx);
}

static double added_elems(const struct pricing *p) {
    const enum ox_axis axis = (enum ox_axis)p->task->axis;
    const struct ox_sums sums = ox_plan_sums_along(p->setup->input, axis);
    return (double)(ox_sums_parts(&sums) - ox_sums_nodes(&sums)) *
           (double)ox_plan_grad_cut(p->setup->input, p->task->grad_idx, axis);
}

static double grad_elems(const struct pricing *p) {
    return (double)p->setup->input->model.grads[p->task->grad_idx].elem_count;
}

/* Elements of the gradients of other uses of the unit's weights that a task adds; 0 if there is none. In turn GRAD_ADD
 * adds one sum, and REDUCE nothing. */
static double addend_elems(const struct pricing *p) {
    const struct ox_plan_grad *const grads = p->setup->input->model.grads;
    const uint32_t first = unit_of(p)->grad_idx;
    if (grads[first].in_turn) {
        return p->task->kind == OX_TASK_GRAD_ADD ? (double)ox_plan_grad_slice(p->setup->input, first) : 0;
    }
    double elems = 0;
    for (uint32_t i = grads[first].addend; i != OX_NONE; i = grads[i].addend) {
        elems += (double)ox_plan_grad_slice(p->setup->input, i);
    }
    return elems;
}

/* ---- copies --------------------------------------------------------------------------------------- */

/* A copy within unified memory counts no traffic, so its bytes are taken from its target buffer, or from its source if
 * it leaves for another part of the model. Between two memories a copy without counted bytes is skipped in most steps
 * and takes no transfer time. */
static double moved_bytes(const struct pricing *p) {
    const int target = ox_task_find_use(p->task, OX_USE_TARGET);
    const int use = target >= 0 ? target : ox_task_find_use(p->task, OX_USE_SOURCE);
    const bool counted = !p->setup->input->budget.unified || p->task->bytes > 0;
    return (double)(counted ? p->task->bytes : p->plan->bufs[p->task->uses[use].buf_idx].bytes);
}

static struct ox_sim_work copy(const struct pricing *p) {
    struct ox_sim_work work = new_work(p);
    const double bytes = moved_bytes(p);
    if (!p->on_gpu) { /* one thread reads and writes */
        work.seconds = 2 * bytes / p->core_rate;
        use_cores(p, &work, work.seconds, 1);
        use_memory(p, &work, 2 * bytes);
        return finish(p, work);
    }
    const bool up = p->task->lane == OX_LANE_H2D;
    work.use[up ? OX_SIM_H2D : OX_SIM_D2H] = bytes / (up ? p->machine->gpu.h2d_rate : p->machine->gpu.d2h_rate);
    use_memory(p, &work, bytes);
    return finish(p, work);
}

/* Whether all get the same, so that each brings it to its neighbours; a sum has as many bytes as an exchange, and a
 * pass to add each. */
static bool is_gather(const struct pricing *p) {
    const bool divides = p->task->move == OX_MOVE_ROWS &&
                         ox_plan_task_cut(p->setup->input, p->task)->kind != OX_CUT_GATHER;
    return p->task->move != OX_MOVE_SUM && !divides &&
           (p->task->move != OX_MOVE_GRAD || p->task->last); /* ox_task_word */
}

/* Ranks on the CPU: the lane's thread takes each rank's part from memory, its own too, at the rate that as many ranks
 * were measured to reach at once, or at its share of the memory's. */
static struct ox_sim_work exchange_on_host(const struct pricing *p, const struct ox_peer_bytes *bytes) {
    struct ox_sim_work work = new_work(p);
    const double ranks = p->task->move == OX_MOVE_LOSSES
                             ? ox_plan_rank_count(p->setup->input)
                             : ox_plan_group(p->setup->input, (enum ox_axis)p->task->axis).count;
    const struct ox_machine_comm *const known = ox_machine_comm_of(p->machine, ox_plan_rank_count(p->setup->input));
    const bool adds = p->task->move == OX_MOVE_SUM, gathers = is_gather(p);
    const double added = adds ? 3 * (double)bytes->in : ox_low_rank_memory_bytes(p->setup->input, p->task);
    const double taken = (double)bytes->in * ranks / (ranks - 1), copied = 2 * ((double)bytes->up + taken);
    work.latency *= 2; /* all ranks meet before and after */
    work.seconds = copied / p->core_rate;
    if (known != NULL) { /* a measured exchange copied the own part too, a gather did not */
        const double share = min(1, known->ranks / (double)ox_plan_rank_count(p->setup->input));
        work.latency = p->machine->task_seconds + 2 * known->meet_seconds;
        work.seconds = 2 * (double)bytes->up / p->core_rate +
                       (gathers ? taken / known->gather_rate : (double)bytes->in / known->exchange_rate) / share;
    }
    work.seconds += added / p->core_rate;
    use_cores(p, &work, work.seconds, 1);
    use_memory(p, &work, copied + added);
    return finish(p, work);
}

/* What a rank takes from others and gives to them. Between machines it crosses the network, a gather once for all of
 * a machine. GPUs with peer access do so over links of their own. Without it the bytes go down the host's link of
 * the giver into host memory and up that of the taker, so that copies to and from the host wait for them. */
static struct ox_sim_work exchange(const struct pricing *p) {
    struct ox_sim_work work = new_work(p);
    const struct ox_peer_bytes bytes = ox_plan_peer_bytes(p->plan, p->setup->input, p->task);
    if (!p->on_gpu) {
        return exchange_on_host(p, &bytes);
    }
    work.latency = ox_sim_call_latency(p->setup, p->task);
    const struct ox_machine_gpu *const gpu = &p->machine->gpu;
    work.use[OX_SIM_H2D] = (double)bytes.up / gpu->h2d_rate;
    use_memory(p, &work, (double)bytes.up);
    uint32_t here = 1;
    const double share = ox_sim_net_share(p->setup->machine, p->setup->input, (enum ox_axis)p->task->axis, &here);
    const double far = share > 0 ? share / (is_gather(p) ? here : 1) / gpu->net_rate : 0, near = 1 - share;
    work.latency += share > 0 ? gpu->net_latency : 0;
    const bool peers = gpu->peer_rate > 0;
    const double taking = (double)bytes.in * near / (peers ? gpu->peer_rate : gpu->h2d_rate);
    const double giving = (double)bytes.out * near / (peers ? gpu->peer_rate : gpu->d2h_rate);
    work.use[OX_SIM_PEER_IN] = max((double)bytes.in * far, peers ? taking : 0);
    work.use[OX_SIM_PEER_OUT] = max((double)bytes.out * far, peers ? giving : 0);
    work.use[OX_SIM_H2D] += taking * (peers ? gpu->peer_of_links : 1);
    work.use[OX_SIM_D2H] += giving * (peers ? gpu->peer_of_links : 1);
    if (!peers) {
        use_memory(p, &work, ((double)bytes.in + (double)bytes.out) * near);
    }
    return finish(p, work);
}

/* Whether what arrives for a stage stays in host memory, where the sender brings it. */
static bool lands_on_host(const struct pricing *p) {
    const int target = ox_task_find_use(p->task, OX_USE_TARGET);
    return target >= 0 ? p->plan->bufs[p->task->uses[target].buf_idx].tier == OX_TIER_HOST
                       : p->task->move == OX_MOVE_OUTSIDE_ACT && p->plan->kind == OX_PLAN_TRAIN &&
                             p->setup->input->placement.act_tier != OX_TIER_DEVICE;
}

/* What a rank of a pipeline gives or takes. On the CPU the taker copies. A GPU brings what is to stay in host memory
 * down its own link; the rest goes from GPU to GPU, or without peer access down one link and up the other. */
static struct ox_sim_work pass_on(const struct pricing *p) {
    struct ox_sim_work work = new_work(p);
    const struct ox_machine_gpu *const gpu = &p->machine->gpu;
    const double bytes = (double)p->task->bytes, seconds = gpu->peer_rate > 0 ? bytes / gpu->peer_rate : 0;
    const bool takes = p->task->lane == OX_LANE_LINK_IN;
    work.latency *= 2; /* both meet before and after */
    if (!p->on_gpu) {
        const struct ox_machine_comm *const known = ox_machine_comm_of(p->machine, ox_plan_rank_count(p->setup->input));
        work.seconds = known != NULL && known->pair_rate > 0 ? bytes / known->pair_rate : 2 * bytes / p->core_rate;
        if (takes) {
            use_cores(p, &work, work.seconds, 1);
            use_memory(p, &work, 2 * bytes);
        }
        return finish(p, work);
    }
    uint32_t here = 1; /* coordinates on a machine, of which one in as many passes on over the network */
    const bool far = ox_sim_net_share(p->setup->machine, p->setup->input, OX_AXIS_PIPE, &here) > 0;
    work.latency += far ? gpu->net_latency / here : 0;
    work.use[takes ? OX_SIM_PEER_IN : OX_SIM_PEER_OUT] = far ? bytes / gpu->net_rate / here : 0;
    if (lands_on_host(p)) {
        work.seconds = bytes / gpu->d2h_rate;
        work.use[OX_SIM_D2H] = takes ? 0 : work.seconds;
    } else if (gpu->peer_rate > 0) {
        work.use[takes ? OX_SIM_PEER_IN : OX_SIM_PEER_OUT] += seconds;
        work.use[takes ? OX_SIM_H2D : OX_SIM_D2H] += seconds * gpu->peer_of_links;
    } else {
        work.seconds = bytes / gpu->d2h_rate + bytes / gpu->h2d_rate;
        work.use[takes ? OX_SIM_H2D : OX_SIM_D2H] = bytes / (takes ? gpu->h2d_rate : gpu->d2h_rate);
    }
    if (lands_on_host(p) ? !takes : gpu->peer_rate <= 0) {
        use_memory(p, &work, bytes);
    }
    return finish(p, work);
}

/* ---- drives --------------------------------------------------------------------------------------- */

/* The share of the cores that compute may hold while the task runs. */
static double crowding(const struct pricing *p) {
    const bool beside_compute = p->task->lane != OX_LANE_ADAM || p->setup->input->placement.overlap;
    return beside_compute && !p->on_gpu ? threads_of(p, p->setup->compute_threads) / p->cores : 0;
}

/* Adds the core time of moving bytes to and from drives, apart from hashing. */
static void use_cores_to_move(const struct pricing *p, struct ox_sim_work *work, double read, double written) {
    const double reading = p->drive->read_core_seconds, writing = p->drive->write_core_seconds;
    const double engine = ENGINE_SECONDS_PER_BYTE +
                          crowding(p) * (ENGINE_SECONDS_PER_BYTE_BESIDE_COMPUTE - ENGINE_SECONDS_PER_BYTE);
    use_cores(p, work, (read + written) * engine, 1);
    use_cores(p, work, read * (reading > 0 ? reading : KERNEL_SECONDS_PER_BYTE), 1);
    use_cores(p, work, written * (writing > 0 ? writing : KERNEL_SECONDS_PER_BYTE), 1);
}

/* Adds the time for which drives wait for a core. The cores' time for an update, `updating`, counts only beside
 * compute, with which it then takes turns. */
static struct ox_sim_work add_unhidden(const struct pricing *p, struct ox_sim_work work, double updating) {
    work.unhidden = UNHIDDEN_SHARE * max(work.use[OX_SIM_CORES] - (1 - crowding(p)) * updating, 0);
    work.seconds += work.unhidden;
    return work;
}

/* A read or write of drives: the lane's thread verifies or hashes one request while the next ones are in flight. */
static struct ox_sim_work transfer(const struct pricing *p, bool write) {
    struct ox_sim_work work = new_work(p);
    const double bytes = (double)p->task->bytes;
    work.latency += p->drive->latency_seconds + (crowding(p) >= 1 ? (write ? 2 : 1) * SLICE_SECONDS : 0);
    work.seconds = bytes / p->core_rate;
    work.use[write ? OX_SIM_NVME_WRITE : OX_SIM_NVME_READ] =
        bytes / (write ? p->drive->write_rate : p->drive->read_rate);
    use_cores(p, &work, work.seconds, 1);
    use_cores_to_move(p, &work, write ? 0 : bytes, write ? bytes : 0);
    use_memory(p, &work, 2 * bytes);
    return add_unhidden(p, finish(p, work), 0);
}

/* ---- the optimizer -------------------------------------------------------------------------------- */

/* Bytes that a unit's update reads from drives and writes to them. */
struct stream {
    double read, written, copied; /* copied: between homes in memory and slots */
    double chunks;
};

static struct stream stream_of(const struct pricing *p) {
    const struct ox_plan_input *const in = p->setup->input;
    const struct ox_shard *const shard = &in->table->shards[p->task->unit_idx];
    const bool speculative = in->placement.overlap && !p->task->carried;
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT] = {{0}};
    const struct ox_adam_work work = {
        .updates = true, .grad_at_rest = !speculative, .stays = p->setup->stays || p->basis->between};
    ox_plan_adam_traffic(p->plan, in, p->task->unit_idx, work, traffic);
    struct stream stream = {.chunks = shard->chunk_count};
    for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
        stream.read += (double)traffic[OX_LINK_NVME_READ][kind];
        stream.written += (double)traffic[OX_LINK_NVME_WRITE][kind];
    }
    if (shard->homes.state != OX_TIER_NVME) {
        stream.copied += (double)traffic[OX_LINK_NVME_WRITE][OX_TRAFFIC_STATE];
    }
    if (shard->homes.weights != OX_TIER_NVME) {
        stream.copied += (double)traffic[OX_LINK_NVME_WRITE][OX_TRAFFIC_WEIGHTS];
    }
    if (ox_task_find_use(p->task, OX_USE_TARGET) >= 0) { /* the new weights go to the forward that runs next */
        stream.copied += (double)ox_plan_weight_bytes(in, p->task->unit_idx);
    }
    return stream;
}

static enum ox_due due_of(const struct pricing *p) {
    return ox_case_due(p->basis->usual, p->plan, p->task->unit_idx);
}

/* A drive reaches its rates with many requests at a time, each of which takes longer than alone, by up to this
 * factor. Measured on a virtual NVMe drive: with slots for 8 chunks the optimizer's mix is a tenth slower than with 32;
 * with one slot it takes as long as read, update and write one after the other. */
static const double BESIDE_OTHERS = 6;

/* Seconds that a unit takes because of its slots: a chunk holds its slot from its read to the end of its write, so the
 * time of all chunks is divided by the number of slots. */
static double held_seconds(const struct pricing *p, const struct stream *stream, double working) {
    const double slots = p->setup->input->placement.stream_slots;
    const double moving = stream->read / p->drive->read_rate + stream->written / p->drive->write_rate;
    return slots <= 0 ? 0 : (working + moving * min(slots, BESIDE_OTHERS)) / slots;
}

/* How much longer an update takes that saves what it replaces, or makes hi alone and saves that, by `offload bench
 * adam` (with_saved, weights_alone) on two cores. */
static const double SAVING = 1.75, AHEAD = 0.93;

/* What of the planes an update replaces it also saves. */
enum saving { SAVES_NOTHING, SAVES_ALL, SAVES_HI };

static enum saving saving_of(const struct pricing *p) {
    const bool speculative = ox_task_find_use(p->task, OX_USE_REPLACED) >= 0 && !p->task->carried;
    return !speculative ? SAVES_NOTHING : p->plan->rules[p->task->unit_idx].goes_ahead ? SAVES_HI : SAVES_ALL;
}

/* Bytes of a parameter's planes in the task's unit. */
static double unit_planes(const struct pricing *p) {
    return ox_shard_unit_bytes_per_elem(&p->setup->input->table->shards[p->task->unit_idx]);
}

/* Products that an update makes of whole matrices: on a GPU the matrices go there and back, else `threads` compute. */
static double add_products(const struct pricing *p, double threads, struct ox_sim_work *work) {
    const struct ox_plan_input *const in = p->setup->input;
    const double elems = (double)in->table->shards[p->task->unit_idx].elem_count;
    const struct ox_plan_unit *const unit = &in->model.units[p->task->unit_idx];
    const double flops = unit->update_flops * elems / (double)unit->elem_count; /* all, or none */
    const double seconds = ox_sim_product_seconds(p->machine, flops, threads);
    if (!p->on_gpu || flops <= 0) {
        use_cores(p, work, seconds, threads);
        return seconds;
    }
    const struct ox_machine_gpu *const gpu = &p->machine->gpu;
    work->use[OX_SIM_GPU] += seconds;
    work->use[OX_SIM_H2D] += elems * sizeof(float) / gpu->h2d_rate;
    work->use[OX_SIM_D2H] += elems * sizeof(float) / gpu->d2h_rate;
    return seconds + elems * sizeof(float) * (1 / gpu->h2d_rate + 1 / gpu->d2h_rate);
}

/* Bytes of a parameter that an update moves through memory. */
static double update_bytes(const struct pricing *p, enum saving saving) {
    const struct ox_plan_input *const in = p->setup->input;
    const double planes = unit_planes(p), grad = in->model.grad_bf16 ? 2 : 4;
    return saving == SAVES_HI ? planes + grad + 2 * OX_HI_BYTES : (saving == SAVES_ALL ? 3 : 2) * planes + grad;
}

/* The update of a unit from and to drives, as a pipeline over chunks: reads and writes are in flight while one thread
 * verifies, the lane (with others) updates, and a third thread gathers and hashes. Nothing overlaps the update of the
 * last chunk; the reads of the next unit follow without a gap. */
static struct ox_sim_work adam(const struct pricing *p) {
    const struct ox_plan_input *const in = p->setup->input;
    const struct stream stream = stream_of(p);
    const double elems = (double)in->table->shards[p->task->unit_idx].elem_count;
    const double threads = threads_of(p, p->setup->optimizer_threads);
    const double planes = 2 * unit_planes(p) + (in->model.grad_bf16 ? 2 : 4);
    const enum saving saving = saving_of(p);
    const struct ox_homes *const homes = &in->table->shards[p->task->unit_idx].homes;
    const bool copies_lo = in->model.precision->lo_travels && homes->state == OX_TIER_NVME &&
                           homes->weights != OX_TIER_NVME;
    const double lo_copy = copies_lo ? elems * OX_LO_BYTES : 0;
    const double elementwise = elems * ox_sim_update_seconds(p->machine, planes, threads) *
                               (saving == SAVES_ALL ? SAVING : saving == SAVES_HI ? AHEAD : 1);
    const double verifying = stream.read / p->core_rate;
    const double hashing = (stream.written + 2 * (stream.copied + lo_copy)) / p->core_rate;
    struct ox_sim_work work = new_work(p);
    const double updating = elementwise + add_products(p, threads, &work);
    use_cores(p, &work, elementwise, threads);
    use_cores(p, &work, verifying + hashing, 1);
    use_cores_to_move(p, &work, stream.read, stream.written);
    use_memory(p, &work,
               elems * update_bytes(p, saving) + 2 * (stream.read + stream.written + stream.copied + lo_copy));
    if (stream.read > 0) {
        work.use[OX_SIM_NVME_READ] = stream.read / p->drive->read_rate;
        work.latency += p->drive->latency_seconds;
    }
    if (stream.written > 0) {
        const double slots = min(in->placement.stream_slots, stream.chunks) / stream.chunks;
        work.tail = slots * stream.written / p->drive->write_rate;
        work.use[OX_SIM_NVME_WRITE] = (1 - slots) * stream.written / p->drive->write_rate;
    }
    work.seconds = max(updating, max(verifying, hashing));
    if (stream.read + stream.written > 0) {
        work.seconds = max(work.seconds, held_seconds(p, &stream, updating + verifying + hashing));
    }
    work = finish(p, work);
    work.seconds += stream.read > 0 ? updating / stream.chunks : 0;
    return stream.read + stream.written > 0 ? add_unhidden(p, work, updating * threads / p->cores) : work;
}

/* An update of a unit that lives on the device. For the CPU device the host's optimizer rates hold. */
static struct ox_sim_work device_adam(const struct pricing *p) {
    const struct ox_plan_input *const in = p->setup->input;
    const double planes = 2 * unit_planes(p) + (in->model.grad_bf16 ? 2 : 4);
    if (p->on_gpu) {
        return compute(p, &(struct ox_plan_work){.bytes = own_elems(p) * planes, .ops = 1});
    }
    struct ox_sim_work work = new_work(p);
    const double threads = threads_of(p, p->setup->compute_threads);
    work.seconds = own_elems(p) * ox_sim_update_seconds(p->machine, planes, threads);
    use_cores(p, &work, work.seconds, threads);
    use_memory(p, &work, own_elems(p) * planes);
    return finish(p, work);
}

/* A commit flushes twice: data and tables, then the root. */
static struct ox_sim_work commit(const struct pricing *p) {
    struct ox_sim_work work = new_work(p);
    work.latency += 2 * (p->drive->flush_seconds + p->drive->latency_seconds) + p->task->bytes / p->drive->write_rate;
    return work;
}

/* Sums of squares on one thread. If the weights are used several times, the other gradients are added first. */
static struct ox_sim_work reduce(const struct pricing *p) {
    struct ox_sim_work work = new_work(p);
    const struct ox_plan_model *const model = &p->setup->input->model;
    const double width = model->grad_bf16 ? 2 : 4;
    const double bytes = own_elems(p) * width + addend_elems(p) * (12 + (6 - width));
    work.seconds = bytes / p->core_rate;
    use_cores(p, &work, work.seconds, 1);
    use_memory(p, &work, bytes);
    return finish(p, work);
}

/* ---- all of them ---------------------------------------------------------------------------------- */

/* Whether the block keeps activations, so that its backward repeats no forward. */
static bool keeps(const struct pricing *p) {
    return ox_task_find_use(p->task, OX_USE_KEPT) >= 0;
}

static struct ox_sim_work price(const struct pricing *p) {
    const struct ox_plan_model *const model = &p->setup->input->model;
    const bool on_device = p->task->lane == OX_LANE_COMPUTE;
    const bool idle = !ox_task_works(p->task, p->basis->usual.facts, due_of(p));
    if (idle && !(p->task->carried && ox_task_updates_on_host(p->task))) { /* such an update, not due, is a read */
        return new_work(p);
    }
    switch ((enum ox_task_kind)p->task->kind) {
    case OX_TASK_FORWARD:
        return run_pass(p, keeps(p) ? &stage_of(p)->forward_kept : &stage_of(p)->forward);
    case OX_TASK_BACKWARD:
        return run_pass(p, keeps(p) ? &stage_of(p)->backward_kept : &stage_of(p)->backward);
    case OX_TASK_HEAD:
        return run_pass(p, p->plan->kind == OX_PLAN_TRAIN ? &stage_of(p)->backward : &stage_of(p)->forward);
    case OX_TASK_CAST:
        return compute_bytes(p, (double)ox_plan_whole_weight_bytes(p->setup->input, p->task->unit_idx) +
                                    unit_elems(p) * p->plan->rules[p->task->unit_idx].cast_bytes);
    case OX_TASK_GRAD_FOLD:
        return compute_bytes(p, grad_elems(p) * 12);
    case OX_TASK_SUM_PARTS:
        return compute_bytes(p, added_elems(p) * 12);
    case OX_TASK_NARROW:
    case OX_TASK_WIDEN:
        return compute_bytes(p, (double)ox_plan_recode(p->setup->input, p->task).elems * 6);
    case OX_TASK_GRAD_PACK:
        return compute_bytes(p, grad_slice(p) * 6);
    case OX_TASK_GRAD_ADD:
        return compute_bytes(p, addend_elems(p) * 12);
    case OX_TASK_REDUCE:
        return on_device ? compute_bytes(p, own_elems(p) * (model->grad_bf16 ? 2 : 4)) : reduce(p);
    case OX_TASK_UPDATE:
        return on_device ? device_adam(p) : ox_task_has_due(p->task, due_of(p)) ? adam(p) : transfer(p, false);
    case OX_TASK_MOVE:
        return p->task->lane == OX_LANE_LINK ? exchange(p)
               : p->task->peer != OX_NONE    ? pass_on(p)
               : p->task->lane == OX_LANE_NVME_READ || p->task->lane == OX_LANE_NVME_WRITE
                   ? transfer(p, p->task->lane == OX_LANE_NVME_WRITE) : copy(p);
    case OX_TASK_COMMIT:
        return commit(p);
    default:
        return new_work(p);
    }
}

/* Works out once what all tasks of a plan ask for; both of the last go over all units. */
static void make_basis(const struct ox_sim_setup *setup, enum ox_plan_kind kind, struct basis *out) {
    out->setup = setup;
    out->usual = ox_usual_case(setup->input, kind,
                               (struct ox_step_ways){.stays = setup->stays, .holds = setup->holds});
    out->between = ox_plan_commits_between(setup->input);
    ox_machine_of_rank(setup->machine, ox_plan_rank_count(setup->input), &out->machine);
    out->drive = ox_machine_drives(&out->machine);
    const struct ox_machine_gpu *const gpu = &out->machine.gpu;
    out->limits = (struct ox_sim_limits){
        .nvme = ox_sim_duplex_of(out->drive.read_rate, out->drive.write_rate, out->drive.mix_rate),
        .link = ox_sim_duplex_of(gpu->h2d_rate, gpu->d2h_rate, gpu->duplex_rate),
        .run_ahead_tasks = setup->run_ahead_tasks,
    };
}

struct ox_sim_limits ox_sim_limits_of(const struct ox_sim_setup *setup) {
    struct basis basis;
    make_basis(setup, OX_PLAN_TRAIN, &basis);
    return basis.limits;
}

static struct ox_sim_work work_of(const void *context, const struct ox_plan *plan, uint32_t task_idx) {
    const struct basis *const basis = context;
    const struct ox_sim_setup *const setup = basis->setup;
    const struct ox_machine_host *const host = &basis->machine.host;
    struct pricing p = {.setup = setup, .machine = &basis->machine, .plan = plan, .task = &plan->tasks[task_idx],
                        .drive = &basis->drive, .limits = &basis->limits, .basis = basis, .cores = host->cores,
                        .on_gpu = setup->machine->has_gpu && !setup->input->budget.unified};
    p.core_rate = max(host->dram_rate / p.cores, min(host->dram_rate, CORE_RATE_LEAST));
    return price(&p);
}

struct ox_sim_work ox_sim_task_work(const struct ox_sim_setup *setup, const struct ox_plan *plan, uint32_t task_idx) {
    struct basis basis;
    make_basis(setup, plan->kind, &basis);
    return work_of(&basis, plan, task_idx);
}

double ox_sim_between_seconds(const struct ox_sim_setup *setup) {
    const struct ox_plan_input *const in = setup->input;
    struct basis basis;
    make_basis(setup, OX_PLAN_TRAIN, &basis);
    double written = 0, down = 0;
    for (uint32_t i = 0; i < in->table->unit_count && basis.between; i++) {
        const struct ox_on_drives there = ox_plan_unit_rules(in, i).on_drives;
        const struct ox_homes *const homes = &in->table->shards[i].homes;
        const double hi = (double)in->table->shards[i].elem_count * OX_HI_BYTES;
        const double state = (double)ox_shard_stored_bytes(in->table, i);
        if (in->model.units[i].trained) {
            written += (there.hi ? 0 : hi) + (there.state ? 0 : state);
            down += (homes->weights == OX_TIER_DEVICE ? hi : 0) + (homes->state == OX_TIER_DEVICE ? state : 0);
        }
    }
    if (written == 0) {
        return 0;
    }
    const double copies = setup->machine->has_gpu ? down / basis.machine.gpu.d2h_rate : 0;
    return max(written / basis.drive.write_rate, copies) +
           2 * (basis.drive.flush_seconds + basis.drive.latency_seconds);
}

/* Seconds of a pair whose directions are always in the best balance. */
static double pair_seconds(const struct ox_sim_duplex *duplex, double a, double b) {
    return max(max(a, b), (a + b) / max(duplex->together, 1));
}

double ox_sim_least_seconds(const struct ox_sim_setup *setup, const struct ox_plan *plan, struct ox_sim_work *works) {
    struct basis basis;
    make_basis(setup, plan->kind, &basis);
    double lanes[OX_LANE_COUNT] = {0}, used[OX_SIM_RESOURCE_COUNT] = {0}, least = 0;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const struct ox_sim_work work = works[i] = work_of(&basis, plan, i);
        lanes[plan->tasks[i].lane] += work.latency + work.seconds;
        for (int r = 0; r < OX_SIM_RESOURCE_COUNT; r++) {
            used[r] += work.use[r];
        }
        used[OX_SIM_NVME_WRITE] += work.tail;
    }
    for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
        least = max(least, lanes[lane]);
    }
    for (int r = 0; r < OX_SIM_RESOURCE_COUNT; r++) {
        least = max(least, used[r]);
    }
    least = max(least, pair_seconds(&basis.limits.nvme, used[OX_SIM_NVME_READ], used[OX_SIM_NVME_WRITE]));
    return max(least, pair_seconds(&basis.limits.link, used[OX_SIM_H2D], used[OX_SIM_D2H]));
}

double ox_sim_run_pipe(struct ox_sim *const *sims, const struct ox_plan *const *plans,
                       const struct ox_sim_setup *setups, uint32_t count, struct ox_sim_result *out) {
    struct basis bases[OX_SIM_PIPE_MAX];
    struct ox_sim_list lists[OX_SIM_PIPE_MAX];
    OX_ASSERT(count <= OX_SIM_PIPE_MAX);
    for (uint32_t i = 0; i < count; i++) {
        make_basis(&setups[i], plans[i]->kind, &bases[i]);
        lists[i] = (struct ox_sim_list){plans[i], bases[i].limits, work_of, &bases[i]};
    }
    return ox_sim_play_pipe(sims, lists, count, out);
}

void ox_sim_run(struct ox_sim *sim, const struct ox_plan *plan, const struct ox_sim_setup *setup,
                struct ox_sim_result *out) {
    struct basis basis;
    make_basis(setup, plan->kind, &basis);
    ox_sim_play(sim, plan, &basis.limits, work_of, &basis, out);
}
