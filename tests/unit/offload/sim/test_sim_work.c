/* Real plans of random models, budgets and machines, simulated: what their tasks need of a machine is what the plan
 * says it moves, and the step keeps to the bounds that follow from it. */
#include "base/bytes.h"
#include "tests/kit/plan/plan_choice.h"
#include "tests/kit/plan/plan_sample.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

enum { UNITS_MAX = 10, SAMPLES = 60 };

static void draw_sample(struct plan_sample *s, uint64_t seed) {
    uint64_t counter = 0, total = 0;
    memset(s, 0, sizeof *s);
    struct ox_plan_model *const model = &s->in.model;
    struct ox_plan_work works[2][UNITS_MAX];
    const uint32_t unit_count = 2 + (uint32_t)plan_sample_even(seed, &counter, 0, UNITS_MAX - 1);
    for (uint32_t i = 0; i < unit_count; i++) {
        s->elems[i] = OX_GROUP_ELEMS * (uint64_t)plan_sample_even(seed, &counter, 1, 60);
        total += s->elems[i] * 16;
        for (int backward = 0; backward < 2; backward++) {
            works[backward][i] = (struct ox_plan_work){
                .gemm_flops = plan_sample_even(seed, &counter, 0, 1e9),
                .attention_flops = plan_sample_even(seed, &counter, 0, 1e8),
                .bytes = plan_sample_even(seed, &counter, 0, 1e7), .ops = 9};
        }
    }
    const bool is_part = seed % 4 == 3, tied = plan_sample_even(seed, &counter, 0, 2) < 1 && !is_part;
    const struct plan_model_sizes sizes = {
        .without_embedding = is_part && seed % 3 != 0, .without_head = is_part && seed % 3 != 1,
        .tied_elems = tied ? s->elems[0] : 0, .act_bytes = 40000,
        .forward_bytes = 100000, .backward_bytes = 100000, .head_bytes = 100000, .head_eval_bytes = 100000};
    plan_model_make(&s->model, s->elems, unit_count, &sizes, model);
    for (uint32_t i = 0; i < unit_count; i++) {
        s->model.stages[i].forward.work = works[0][i];
        s->model.stages[i].backward.work = works[1][i];
    }
    if (seed % 2 == 1) {
        plan_model_vary(&s->model, model, s->elems, seed);
    }
    model->micro_batches = 1 + (uint32_t)plan_sample_even(seed, &counter, 0, 5);
    s->in.ranks.sum_groups = 1 + (uint32_t)(seed % model->micro_batches);
    model->batch_bytes = 1200;
    const bool fp32 = plan_sample_even(seed, &counter, 0, 2) < 1;
    model->grad_bf16 = plan_sample_even(seed, &counter, 0, 2) < 1;
    const bool on_cpu = !fp32 && plan_sample_even(seed, &counter, 0, 2) < 1;
    model->precision = ox_precision_of(fp32 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16, on_cpu);
    s->in.budget = (struct ox_plan_budget){
        .unified = plan_sample_even(seed, &counter, 0, 2) < 1,
        .host_bytes = 3000000 + (uint64_t)plan_sample_even(seed, &counter, 0, 2) * total, .nvme_bytes = 200 * total};
    s->in.budget.device_bytes = s->in.budget.unified ? 0 : 3000000 + 2 * total;
    plan_sample_machine(seed, &counter, &s->machine);
    REQUIRE_OK(ox_shard_table_open(s->elems, model->unit_count, OX_GROUP_ELEMS * 8,
                                   (struct ox_state_sizes){4096, 16384}, &s->table));
}

/* The drives are busy for the bytes that the plan counts, at the machine's rates, in both directions. */
static void check_drives(const struct plan_sample *s, const struct ox_plan *plan, const struct ox_sim_result *result) {
    double bytes[2] = {0, 0};
    for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
        bytes[0] += (double)plan->traffic[OX_LINK_NVME_READ][kind];
        bytes[1] += (double)plan->traffic[OX_LINK_NVME_WRITE][kind];
    }
    const double read = bytes[0] / s->machine.drives[0].read_rate, write = bytes[1] / s->machine.drives[0].write_rate;
    CHECK(fabs(result->used[OX_SIM_NVME_READ] - read) <= 1e-9 * (1 + read));
    CHECK(fabs(result->used[OX_SIM_NVME_WRITE] - write) <= 1e-9 * (1 + write));
}

/* On a GPU the link is busy for the bytes that the plan counts, those of other parts of the model included. Within one
 * memory each exchange with another part is a copy. */
static void check_exchanges(const struct plan_sample *s, const struct ox_plan *plan, const struct ox_sim_setup *setup,
                            const struct ox_sim_result *result) {
    const bool gpu = s->machine.has_gpu && !s->in.budget.unified;
    double up = 0, down = 0;
    for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
        up += (double)plan->traffic[OX_LINK_H2D][kind] / s->machine.gpu.h2d_rate;
        down += (double)plan->traffic[OX_LINK_D2H][kind] / s->machine.gpu.d2h_rate;
    }
    CHECK(!gpu || fabs(result->used[OX_SIM_H2D] - up) <= 1e-9 * (1 + up));
    CHECK(!gpu || fabs(result->used[OX_SIM_D2H] - down) <= 1e-9 * (1 + down));
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const struct ox_task *const task = &plan->tasks[i];
        if (task->kind == OX_TASK_MOVE && (task->move == OX_MOVE_OUTSIDE_ACT || task->move == OX_MOVE_OUTSIDE_DX)) {
            CHECK(ox_sim_task_work(setup, plan, i).seconds > 0);
        }
    }
}

static void check_bounds(const struct plan_sample *s, const struct ox_plan *plan, const struct ox_sim_setup *setup,
                         const struct ox_sim_result *result) {
    double sum = 0, flops = 0;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const struct ox_sim_work work = ox_sim_task_work(setup, plan, i);
        sum += work.latency + work.seconds + work.tail;
        for (int r = 0; r < OX_SIM_RESOURCE_COUNT; r++) {
            CHECK(work.use[r] >= 0 && work.use[r] <= work.seconds * (1 + 1e-12));
        }
        const uint32_t kind = plan->tasks[i].kind, stage_idx = plan->tasks[i].stage_idx;
        const bool backward = kind == OX_TASK_BACKWARD || kind == OX_TASK_HEAD;
        flops += kind == OX_TASK_FORWARD ? s->model.stages[stage_idx].forward.work.gemm_flops : 0;
        flops += backward ? s->model.stages[stage_idx].backward.work.gemm_flops : 0;
    }
    const bool gpu = s->machine.has_gpu && !s->in.budget.unified;
    /* The CPU's rate in the profile includes packing, which takes half of the time at most: without it, the rate is at
     * most twice as high. */
    const bool fp32 = s->in.model.precision->products == OX_REAL_F32;
    const double rate = !gpu ? 2 * s->machine.host.flops : fp32 ? s->machine.gpu.fp32_flops : s->machine.gpu.bf16_flops;
    CHECK(result->seconds >= flops / rate * (1 - 1e-9));
    for (int r = 0; r < OX_SIM_RESOURCE_COUNT; r++) {
        CHECK(result->used[r] <= result->seconds * (1 + 1e-9));
    }
    CHECK((result->used[OX_SIM_GPU] > 0) == gpu);
    if (ox_sim_limits_of(setup).nvme.together >= 1) {
        CHECK(result->seconds <= sum * (1 + 1e-9));
    }
}

/* A machine that is twice as fast in everything needs half the time. */
static void check_scale(struct plan_sample *s, struct ox_sim *sim, const struct ox_plan *plan,
                        const struct ox_sim_setup *setup, double before) {
    struct ox_machine *const m = &s->machine;
    double *const rates[] = {&m->gpu.bf16_flops, &m->gpu.fp32_flops, &m->gpu.h2d_rate, &m->gpu.d2h_rate,
                             &m->gpu.duplex_rate, &m->host.dram_rate, &m->host.core_flops, &m->host.flops,
                             &m->drives[0].read_rate, &m->drives[0].write_rate, &m->drives[0].mix_rate};
    double *const times[] = {&m->host.adam.seconds[0], &m->drives[0].latency_seconds, &m->drives[0].flush_seconds,
                             &m->task_seconds};
    for (unsigned i = 0; i < sizeof rates / sizeof *rates; i++) {
        *rates[i] *= 2;
    }
    for (unsigned i = 0; i < sizeof times / sizeof *times; i++) {
        *times[i] /= 2;
    }
    struct ox_sim_result result;
    ox_sim_run(sim, plan, setup, &result);
    CHECK(result.seconds < before && result.seconds > before * 0.49);
}

/* Where bytes take more of a core's time, the use of all cores grows by just that, and the step gets no shorter. */
static void check_cores(struct plan_sample *s, struct ox_sim *sim, const struct ox_plan *plan,
                        const struct ox_sim_setup *setup) {
    struct ox_machine_drive *const drive = &s->machine.drives[0];
    struct ox_sim_result cheap, dear;
    double bytes[2] = {0, 0};
    for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
        bytes[0] += (double)plan->traffic[OX_LINK_NVME_READ][kind];
        bytes[1] += (double)plan->traffic[OX_LINK_NVME_WRITE][kind];
    }
    drive->read_core_seconds = drive->write_core_seconds = 1e-12;
    ox_sim_run(sim, plan, setup, &cheap);
    drive->read_core_seconds = 3e-11;
    drive->write_core_seconds = 5e-11;
    ox_sim_run(sim, plan, setup, &dear);
    const double more = (bytes[0] * 2.9e-11 + bytes[1] * 4.9e-11) / s->machine.host.cores;
    CHECK(fabs(dear.used[OX_SIM_CORES] - cheap.used[OX_SIM_CORES] - more) <= 1e-9 * (1 + more));
    CHECK(dear.seconds >= cheap.seconds * 0.99); /* a pipeline may happen to fall into place better */
    drive->read_core_seconds = drive->write_core_seconds = 0;
}

/* Where steps do not speculate, nothing is updated in backward, and each unit once in the next forward; where they do,
 * the other way round. Returns how many units that are. */
static uint32_t check_held(const struct ox_plan *plan, const struct ox_sim_setup *setup) {
    struct ox_sim_setup held = *setup;
    held.holds = true;
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const struct ox_task *const task = &plan->tasks[i];
        if (ox_task_updates_on_host(task) && plan->rules[task->unit_idx].speculative &&
            !plan->rules[task->unit_idx].goes_ahead) {
            const struct ox_sim_work with = ox_sim_task_work(setup, plan, i);
            const struct ox_sim_work without = ox_sim_task_work(&held, plan, i);
            CHECK(task->carried ? without.use[OX_SIM_CORES] > with.use[OX_SIM_CORES] : with.use[OX_SIM_CORES] > 0);
            CHECK(task->carried || without.seconds == 0);
            count += !task->carried;
        }
    }
    return count;
}

static void run_sample(uint64_t seed, uint32_t *fit, uint32_t *after_steps, uint32_t *speculative) {
    static struct plan_sample s;
    draw_sample(&s, seed);
    struct ox_placement_request request = plan_choice_automatic;
    request.overlap = (int32_t)(seed % 2);
    struct ox_plans plans = {0};
    const struct ox_sim_setup setup = {.machine = &s.machine, .input = &s.in, .run_ahead_tasks = 64};
    if (ox_placement_choose(&s.in, &s.table, &request, &setup, &plans) == OX_OK) {
        struct ox_sim *sim = NULL;
        struct ox_sim_result result, other, after_step;
        const struct ox_plan *const train = plans.train;
        REQUIRE_OK(ox_sim_open(train->task_cap > plans.eval->task_cap ? train->task_cap : plans.eval->task_cap, &sim));
        ox_sim_run(sim, plans.eval, &setup, &other);
        CHECK(other.seconds > 0 && other.used[OX_SIM_NVME_WRITE] == 0);
        ox_sim_run(sim, train, &setup, &result);
        check_drives(&s, train, &result);
        check_exchanges(&s, train, &setup, &result);
        check_bounds(&s, train, &setup, &result);
        CHECK(other.seconds < result.seconds);
        if (plans.eval_after_step != NULL) {
            ox_sim_run(sim, plans.eval_after_step, &setup, &after_step);
            /* Planes come with the update, beside those that are read: that can be quicker. */
            CHECK(after_step.seconds >= other.seconds * 0.95);
            CHECK(after_step.seconds < result.seconds * 1.1); /* a part of the same work, perhaps in a worse order */
            (*after_steps)++;
        }
        check_cores(&s, sim, train, &setup);
        *speculative += check_held(train, &setup);
        check_scale(&s, sim, train, &setup, result.seconds);
        ox_sim_close(&sim);
        (*fit)++;
    }
    ox_plans_close(&plans);
    ox_shard_table_close(&s.table);
}

/* An update on the device takes as long as its planes take to cross the device's memory: on a GPU at the rate of that
 * memory, or, where it is not known, at one that follows from its GEMMs; on the CPU as long as the optimizer takes on
 * the threads of compute. */
static void check_device_updates(uint64_t seed, bool has_gpu) {
    static struct plan_sample s;
    draw_sample(&s, seed);
    s.machine.has_gpu = has_gpu;
    s.in.budget = (struct ox_plan_budget){.device_bytes = UINT64_C(1) << 32, .host_bytes = UINT64_C(1) << 32};
    const struct ox_placement_request request = {.tiles = 1, .prefetch_depth = 1, .act_tier = OX_TIER_DEVICE,
                                           .weights_tier = OX_TIER_COUNT, .state_tier = OX_TIER_DEVICE,
                                           .grad_tier = OX_TIER_COUNT, .overlap = (int32_t)(seed % 2)};
    struct ox_plans plans = {0};
    const struct ox_sim_setup setup = {.machine = &s.machine, .input = &s.in};
    REQUIRE_OK(ox_placement_choose(&s.in, &s.table, &request, &setup, &plans));
    uint32_t updates = 0;
    for (uint32_t i = 0; i < plans.train->task_count; i++) {
        const struct ox_task *const task = &plans.train->tasks[i];
        if (task->kind != OX_TASK_UPDATE || task->lane != OX_LANE_COMPUTE) {
            continue;
        }
        const double elems = (double)s.elems[task->unit_idx];
        const double bytes = elems * (2 * 12 + (s.in.model.grad_bf16 ? 2 : 4));
        s.machine.gpu.memory_rate = 0;
        const struct ox_sim_work unknown = ox_sim_task_work(&setup, plans.train, i);
        s.machine.gpu.memory_rate = 1e13;
        const struct ox_sim_work own = ox_sim_task_work(&setup, plans.train, i);
        if (has_gpu) {
            CHECK(fabs(unknown.use[OX_SIM_GPU] * s.machine.gpu.bf16_flops / 150 / bytes - 1) < 1e-9);
            CHECK(fabs(own.use[OX_SIM_GPU] * 1e13 / bytes - 1) < 1e-9 && own.use[OX_SIM_MEMORY] == 0);
        } else {
            CHECK(own.seconds == unknown.seconds && own.use[OX_SIM_CORES] > 0 && own.use[OX_SIM_GPU] == 0);
            CHECK(own.seconds >= bytes / s.machine.host.dram_rate * (1 - 1e-9));
        }
        updates++;
    }
    CHECK(updates == s.in.model.unit_count);
    ox_plans_close(&plans);
    ox_shard_table_close(&s.table);
}

/* Drives wait for half of the time for which their threads need all cores: beside a GPU that of the update does not
 * count, and twice the cores halve it; beside compute on all cores of the CPU it is half of all that the task needs. */
static uint32_t check_unhidden(uint64_t seed, bool has_gpu) {
    static struct plan_sample s;
    draw_sample(&s, seed);
    s.machine.has_gpu = has_gpu;
    s.machine.host.cores = 16;
    s.in.budget = (struct ox_plan_budget){.unified = !has_gpu, .device_bytes = has_gpu ? UINT64_C(1) << 32 : 0,
                                          .host_bytes = UINT64_C(1) << 32, .nvme_bytes = UINT64_C(1) << 36};
    struct ox_placement_request request = plan_choice_automatic;
    request.state_tier = OX_TIER_NVME;
    request.overlap = 1;
    struct ox_plans plans = {0};
    const struct ox_sim_setup setup = {.machine = &s.machine, .input = &s.in};
    uint32_t compared = 0;
    REQUIRE_OK(ox_placement_choose(&s.in, &s.table, &request, &setup, &plans));
    for (uint32_t i = 0; i < plans.train->task_count; i++) {
        s.machine.host.cores = 16;
        s.machine.host.dram_rate = 16e9;
        const struct ox_sim_work work = ox_sim_task_work(&setup, plans.train, i);
        s.machine.host.cores = 32;
        s.machine.host.dram_rate = 32e9;
        const struct ox_sim_work other = ox_sim_task_work(&setup, plans.train, i);
        CHECK(work.unhidden >= 0 && work.unhidden <= 0.5 * work.use[OX_SIM_CORES] * (1 + 1e-9));
        if (work.unhidden > 0 && has_gpu) {
            CHECK(fabs(2 * other.unhidden / work.unhidden - 1) < 1e-6);
            CHECK(!ox_task_updates_on_host(&plans.train->tasks[i]) ||
                  work.unhidden < 0.5 * work.use[OX_SIM_CORES] * (1 - 1e-3));
        } else if (work.unhidden > 0) {
            CHECK(fabs(2 * work.unhidden / work.use[OX_SIM_CORES] - 1) < 1e-9);
        }
        compared += work.unhidden > 0;
    }
    ox_plans_close(&plans);
    ox_shard_table_close(&s.table);
    return compared;
}

/* Attention at 3e9 operations forward and 5e9 backward takes the rates of the model's kind of heads, or those of the
 * other kind where these are all that is known. */
static void check_heads(const struct ox_sim_setup *setup, struct plan_sample *s, const struct ox_plan *plan,
                        uint32_t task_idx) {
    static const struct {
        double forward, backward, mha_forward, mha_backward;
        double seconds[2]; /* of a model whose heads have keys of their own, and of one whose heads share them */
    } cases[] = {
        {2e12, 1e12, 4e12, 3e12, {3e9 / 4e12 + 5e9 / 3e12, 3e9 / 2e12 + 5e9 / 1e12}},
        {2e12, 1e12, 4e12, 0, {8e9 / 4e12, 3e9 / 2e12 + 5e9 / 1e12}},
        {2e12, 0, 4e12, 3e12, {3e9 / 4e12 + 5e9 / 3e12, 8e9 / 2e12}},
        {0, 0, 4e12, 3e12, {3e9 / 4e12 + 5e9 / 3e12, 3e9 / 4e12 + 5e9 / 3e12}},
        {2e12, 1e12, 0, 0, {3e9 / 2e12 + 5e9 / 1e12, 3e9 / 2e12 + 5e9 / 1e12}},
        {2e12, 0, 0, 3e12, {3e9 / 2e12 + 5e9 / 3e12, 8e9 / 2e12}},
    };
    struct ox_machine_gpu *const gpu = &s->machine.gpu;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        gpu->attention_flops = cases[i].forward;
        gpu->attention_backward_flops = cases[i].backward;
        gpu->mha_attention_flops = cases[i].mha_forward;
        gpu->mha_attention_backward_flops = cases[i].mha_backward;
        for (int grouped = 0; grouped < 2; grouped++) {
            s->in.model.grouped = grouped;
            const double seconds = ox_sim_task_work(setup, plan, task_idx).use[OX_SIM_GPU];
            CHECK(fabs(seconds / cases[i].seconds[grouped] - 1) < 1e-9);
        }
    }
    gpu->attention_flops = gpu->attention_backward_flops = 0;
    gpu->mha_attention_flops = gpu->mha_attention_backward_flops = 0;
}

/* On a GPU attention has its own rates, forward and backward; one alone is that of both. */
static void check_attention(uint64_t seed) {
    static struct plan_sample s;
    draw_sample(&s, seed);
    s.machine.has_gpu = true;
    s.in.model.precision = ox_precision_of(OX_COMPUTE_BF16, s.in.model.precision->cast_bytes > 0);
    s.in.budget = (struct ox_plan_budget){.device_bytes = UINT64_C(1) << 32, .host_bytes = UINT64_C(1) << 32};
    s.in.model.micro_batches = 2;
    s.in.ranks.sum_groups = 1;
    const struct ox_plan_work work = {.attention_flops = 3e9, .attention_backward_flops = 5e9};
    for (uint32_t i = 0; i < s.in.model.stage_count; i++) {
        s.model.stages[i].backward.work = s.model.stages[i].backward_kept.work = work;
    }
    struct ox_plans plans = {0};
    const struct ox_sim_setup setup = {.machine = &s.machine, .input = &s.in};
    REQUIRE_OK(ox_placement_choose(&s.in, &s.table, &plan_choice_automatic, &setup, &plans));
    uint32_t compared = 0;
    for (uint32_t i = 0; i < plans.train->task_count; i++) {
        struct ox_machine_gpu *const gpu = &s.machine.gpu;
        const struct ox_task *const task = &plans.train->tasks[i];
        if (task->kind != OX_TASK_BACKWARD || task->begins) { /* an embedding also clears its gradient */
            continue;
        }
        const double nominal = 8e9 / (0.6 * gpu->bf16_flops);
        CHECK(fabs(ox_sim_task_work(&setup, plans.train, i).use[OX_SIM_GPU] / nominal - 1) < 1e-9);
        gpu->attention_flops = 2e12;
        CHECK(fabs(ox_sim_task_work(&setup, plans.train, i).use[OX_SIM_GPU] / (8e9 / 2e12) - 1) < 1e-9);
        gpu->attention_backward_flops = 1e12;
        CHECK(fabs(ox_sim_task_work(&setup, plans.train, i).use[OX_SIM_GPU] / (3e9 / 2e12 + 5e9 / 1e12) - 1) < 1e-9);
        gpu->attention_flops = gpu->attention_backward_flops = 0;
        check_heads(&setup, &s, plans.train, i);
        compared++;
    }
    CHECK(compared > 0);
    ox_plans_close(&plans);
    ox_shard_table_close(&s.table);
}

/* On the CPU, GEMMs of a model in bf16 run at their own rate where it is known, those in fp32 and attention do not. */
static void check_bf16(uint64_t seed) {
    static struct plan_sample s;
    draw_sample(&s, seed);
    s.machine.has_gpu = false;
    s.machine.host.packed_bytes_per_flop = 1e-12;
    s.machine.host.core_flops = s.machine.host.flops / s.machine.host.cores;
    s.in.model.precision = ox_precision_of(seed % 2 == 0 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16, true);
    s.in.budget = (struct ox_plan_budget){.unified = true, .host_bytes = UINT64_C(1) << 32};
    struct ox_plans plans = {0};
    const struct ox_sim_setup setup = {.machine = &s.machine, .input = &s.in};
    REQUIRE_OK(ox_placement_choose(&s.in, &s.table, &plan_choice_automatic, &setup, &plans));
    /* Seconds of an operation in fp32, at 0.96 of its rate, less those in bf16, at 0.92 of twice that rate. */
    const double less = (1 / 0.96 - 0.5 / 0.92) / s.machine.host.flops;
    uint32_t compared = 0;
    for (uint32_t i = 0; i < plans.train->task_count; i++) {
        if (plans.train->tasks[i].kind != OX_TASK_FORWARD) {
            continue;
        }
        const struct ox_plan_work *const given = &s.model.stages[plans.train->tasks[i].stage_idx].forward.work;
        s.machine.host.bf16_flops = 0;
        const double before = ox_sim_task_work(&setup, plans.train, i).seconds;
        s.machine.host.bf16_flops = 2 * s.machine.host.flops;
        const double after = ox_sim_task_work(&setup, plans.train, i).seconds;
        CHECK(fabs(before - after - (seed % 2 == 0 ? 0 : less * given->gemm_flops)) <= 1e-6 * before);
        compared++;
    }
    CHECK(compared > 0);
    ox_plans_close(&plans);
    ox_shard_table_close(&s.table);
}

/* The GPU reads the sums that a micro-batch adds to, but not those that it begins; an embedding clears its own. */
static void check_sums(uint64_t seed) {
    static struct plan_sample s;
    draw_sample(&s, seed);
    s.machine.has_gpu = true;
    s.machine.gpu.memory_rate = 1e12;
    s.in.model.micro_batches = 3;
    s.in.ranks.sum_groups = 1 + (uint32_t)(seed % 3);
    s.in.budget = (struct ox_plan_budget){.device_bytes = UINT64_C(1) << 32, .host_bytes = UINT64_C(1) << 32};
    for (uint32_t i = 0; i < s.in.model.stage_count; i++) {
        s.model.stages[i].backward.work = s.model.stages[i].backward_kept.work =
            (struct ox_plan_work){.bytes = 1, .gemm_bytes = 1e9};
    }
    struct ox_plans plans = {0};
    const struct ox_sim_setup setup = {.machine = &s.machine, .input = &s.in};
    REQUIRE_OK(ox_placement_choose(&s.in, &s.table, &plan_choice_automatic, &setup, &plans));
    uint32_t begun = 0, added = 0;
    for (uint32_t i = 0; i < plans.train->task_count; i++) {
        const struct ox_task *const task = &plans.train->tasks[i];
        if (task->kind != OX_TASK_BACKWARD && task->kind != OX_TASK_HEAD) {
            CHECK(!task->begins);
            continue;
        }
        const struct ox_plan_stage *const stage = &s.model.stages[task->stage_idx];
        double sums = 0;
        for (uint32_t k = 0; k < stage->unit_count; k++) {
            sums += 4.0 * (double)s.in.model.grads[stage->units[k].grad_idx].elem_count;
        }
        const double more = !task->begins ? 0 : stage->kind == OX_PLAN_EMBEDDING ? sums : -sums;
        const double used = ox_sim_task_work(&setup, plans.train, i).use[OX_SIM_GPU];
        CHECK(fabs(used * 1e12 / (1 + 1e9 + more) - 1) < 1e-9);
        *(task->begins ? &begun : &added) += 1;
    }
    CHECK(begun == s.in.ranks.sum_groups * s.in.model.stage_count);
    CHECK(added == (3 - s.in.ranks.sum_groups) * s.in.model.stage_count);
    ox_plans_close(&plans);
    ox_shard_table_close(&s.table);
}

/* Draws a sample for the second of four ranks; `whole` gets the table of whole units. */
static void draw_rank(struct plan_sample *s, uint64_t seed, struct ox_shard_table *whole) {
    draw_sample(s, seed);
    *whole = s->table;
    REQUIRE_OK(ox_shard_table_slice(whole, 4, 1, &s->table));
    s->in.ranks = (struct ox_plan_ranks){.count = 4, .idx = 1, .sum_groups = 4,
                                         .micro_batches = 4 * s->in.model.micro_batches};
}

/* One of four ranks takes and gives what the plan counts, at the rate between GPUs, and has a quarter of the drives. */
static uint32_t check_ranks(uint64_t seed) {
    static struct plan_sample s;
    struct ox_shard_table whole;
    draw_rank(&s, seed, &whole);
    s.in.model.eval_only = true;
    s.machine.gpu.peer_rate = 7e9;
    struct ox_plans plans = {0};
    const struct ox_sim_setup setup = {.machine = &s.machine, .input = &s.in, .run_ahead_tasks = 64};
    const bool fits = ox_placement_choose(&s.in, &s.table, &plan_choice_automatic, &setup, &plans) == OX_OK;
    if (fits) {
        const struct ox_plan *const eval = plans.eval;
        struct ox_sim *sim = NULL;
        struct ox_sim_result result;
        REQUIRE_OK(ox_sim_open(eval->task_cap, &sim));
        ox_sim_run(sim, eval, &setup, &result);
        const bool gpu = s.machine.has_gpu && !s.in.budget.unified;
        const uint64_t *const from = eval->traffic[OX_LINK_PEER_IN], *const to = eval->traffic[OX_LINK_PEER_OUT];
        const double in = gpu ? (double)(from[OX_TRAFFIC_WEIGHTS] + from[OX_TRAFFIC_OTHER]) / 7e9 : 0;
        const double out = gpu ? (double)(to[OX_TRAFFIC_WEIGHTS] + to[OX_TRAFFIC_OTHER]) / 7e9 : 0;
        const double read = (double)eval->traffic[OX_LINK_NVME_READ][OX_TRAFFIC_WEIGHTS];
        CHECK(fabs(result.used[OX_SIM_PEER_IN] - in) <= 1e-9 * (1 + in));
        CHECK(fabs(result.used[OX_SIM_PEER_OUT] - out) <= 1e-9 * (1 + out));
        CHECK(fabs(result.used[OX_SIM_NVME_READ] - read / (s.machine.drives[0].read_rate / 4)) <= 1e-9 * (1 + read));
        CHECK(result.lanes[OX_LANE_LINK].busy > 0);
        ox_sim_close(&sim);
    }
    ox_plans_close(&plans);
    ox_shard_table_close(&s.table);
    ox_shard_table_close(&whole);
    return fits;
}

/* Without peer access what a rank gives goes down its link and what it takes comes up, once each through host memory;
 * with it the link and the memory are free. Returns how many transfers were compared. */
static uint32_t check_no_peers(uint64_t seed) {
    static struct plan_sample s;
    struct ox_shard_table whole;
    draw_rank(&s, seed, &whole);
    struct ox_plans plans = {0};
    uint32_t compared = 0;
    const struct ox_sim_setup setup = {.machine = &s.machine, .input = &s.in, .run_ahead_tasks = 64};
    const bool fits = ox_placement_choose(&s.in, &s.table, &plan_choice_automatic, &setup, &plans) == OX_OK;
    for (uint32_t i = 0; fits && s.machine.has_gpu && !s.in.budget.unified && i < plans.train->task_count; i++) {
        if (plans.train->tasks[i].lane != OX_LANE_LINK) {
            continue;
        }
        const struct ox_peer_bytes bytes = ox_plan_peer_bytes(plans.train, &s.in, &plans.train->tasks[i]);
        s.machine.gpu.peer_rate = 7e9;
        const struct ox_sim_work with = ox_sim_task_work(&setup, plans.train, i);
        const struct ox_sim_setup in_order = {.machine = &s.machine, .input = &s.in, .run_ahead_tasks = 64,
                                              .ordered = true};
        const struct ox_sim_work ordered = ox_sim_task_work(&in_order, plans.train, i);
        const enum ox_move move = (enum ox_move)plans.train->tasks[i].move; /* of the host: norms and losses */
        CHECK(fabs(with.latency - 2 * s.machine.task_seconds) <= 1e-15 && ordered.seconds == with.seconds);
        CHECK(move == OX_MOVE_PARTIALS || move == OX_MOVE_LOSSES ? ordered.latency == with.latency
                                                                 : ordered.latency == 1e-5);
        s.machine.gpu.peer_of_links = 0.5; /* half of the time is taken from the links' too */
        const struct ox_sim_work shared = ox_sim_task_work(&setup, plans.train, i);
        CHECK(fabs(shared.use[OX_SIM_H2D] - with.use[OX_SIM_H2D] - (double)bytes.in / 14e9) <= 1e-12);
        CHECK(fabs(shared.use[OX_SIM_D2H] - with.use[OX_SIM_D2H] - (double)bytes.out / 14e9) <= 1e-12);
        s.machine.gpu.peer_of_links = 0;
        s.machine.gpu.peer_rate = 0;
        const struct ox_sim_work without = ox_sim_task_work(&setup, plans.train, i);
        const double up = (double)bytes.in / s.machine.gpu.h2d_rate, down = (double)bytes.out / s.machine.gpu.d2h_rate;
        const double moved = without.use[OX_SIM_MEMORY] - with.use[OX_SIM_MEMORY];
        CHECK(without.use[OX_SIM_PEER_IN] == 0 && without.use[OX_SIM_PEER_OUT] == 0);
        CHECK(fabs(without.use[OX_SIM_H2D] - with.use[OX_SIM_H2D] - up) <= 1e-9 * (1 + up));
        CHECK(fabs(without.use[OX_SIM_D2H] - with.use[OX_SIM_D2H] - down) <= 1e-9 * (1 + down));
        CHECK(fabs(moved - (double)(bytes.in + bytes.out) / (s.machine.host.dram_rate / 4)) <= 1e-9 * (1 + moved));
        CHECK(without.seconds + 1e-12 >= up && without.seconds + 1e-12 >= down);
        compared += bytes.in > 0;
    }
    ox_plans_close(&plans);
    ox_shard_table_close(&s.table);
    ox_shard_table_close(&whole);
    return compared;
}

/* Transfers between ranks on the CPU take the rates of the profile: a gather with the own part, an exchange without,
 * and two meetings each. More ranks than were measured share what those reached. Returns how many were compared. */
static uint32_t check_measured_comm(uint64_t seed) {
    static struct plan_sample s;
    struct ox_shard_table whole;
    draw_rank(&s, seed, &whole);
    s.in.budget.unified = true;
    s.machine.has_gpu = false;
    s.machine.comm_count = 1;
    s.machine.comm[0] = (struct ox_machine_comm){.ranks = 2, .gather_rate = 4e6, .exchange_rate = 1e6,
                                                 .meet_seconds = 1e-3};
    struct ox_plans plans = {0};
    uint32_t compared = 0;
    const struct ox_sim_setup setup = {.machine = &s.machine, .input = &s.in, .run_ahead_tasks = 64};
    const bool fits = ox_placement_choose(&s.in, &s.table, &plan_choice_automatic, &setup, &plans) == OX_OK;
    for (uint32_t i = 0; fits && i < plans.train->task_count; i++) {
        const struct ox_task *const task = &plans.train->tasks[i];
        if (task->lane != OX_LANE_LINK) {
            continue;
        }
        const struct ox_sim_work work = ox_sim_task_work(&setup, plans.train, i);
        const double in = (double)ox_plan_peer_bytes(plans.train, &s.in, task).in;
        const bool exchange = strcmp(ox_task_word_name(ox_task_word(task)), "exchange") == 0;
        const double seconds = (exchange ? in / 1e6 : in * 4 / 3 / 4e6) * 2; /* four ranks at the rate of two */
        CHECK(fabs(work.seconds - seconds) <= 1e-9 * (1 + seconds));
        CHECK(fabs(work.latency - s.machine.task_seconds - 2e-3) < 1e-12);
        compared += in > 0;
    }
    ox_plans_close(&plans);
    ox_shard_table_close(&s.table);
    ox_shard_table_close(&whole);
    return compared;
}

int main(void) {
    uint32_t fit = 0, after_steps = 0, speculative = 0, of_ranks = 0, compared = 0, kept_waiting = 0, without_peers = 0;
    const uint32_t quick = test_stride(6), samples = SAMPLES / quick;
    for (uint64_t seed = 0; seed < 30 / quick; seed++) {
        of_ranks += check_ranks(seed);
        compared += check_measured_comm(seed);
        without_peers += check_no_peers(seed);
    }
    for (uint64_t seed = 0; seed < 6; seed++) {
        check_device_updates(seed, seed % 3 != 0);
        check_attention(seed);
        check_sums(seed);
        check_bf16(seed);
        kept_waiting += check_unhidden(seed, seed % 2 == 0);
    }
    for (uint64_t seed = 0; seed < samples; seed++) {
        run_sample(seed, &fit, &after_steps, &speculative);
    }
    printf("%u of %u plans fit, %u overlap, with %u updates in backward\n", fit, samples, after_steps, speculative);
    CHECK(speculative > 10 / quick);
    CHECK(kept_waiting > 10 && compared > (quick == 1 ? 100 : 10) && without_peers > (quick == 1 ? 100 : 10));
    CHECK(of_ranks > 15 / quick && fit > samples / 2 && after_steps > 0);
    return test_end();
}
