/* Queues operations on lanes of the CPU device: the argument struct is copied into a job, which takes
 * the device's pool, runs the operation and adds its time to its group. */
#include "base/assert.h"
#include "base/clock.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

struct op_job {
    ox_cpu_fn *run;
    enum ox_op_group group;
    _Alignas(16) unsigned char args[OX_JOB_ARGS_BYTES - 16];
};
_Static_assert(sizeof(struct op_job) == OX_JOB_ARGS_BYTES, "a job's arguments are one lane slot");

static enum ox_status run_op(void *owner, const void *args) {
    struct ox_cpu_device *const device = owner;
    const struct op_job *const job = args;
    pthread_mutex_lock(&device->turn);
    const uint64_t begin_ns = ox_clock_ns();
    job->run(&device->cpu, job->args);
    const uint64_t end_ns = ox_clock_ns();
    pthread_mutex_unlock(&device->turn);
    pthread_mutex_lock(&device->seconds_lock);
    device->seconds.seconds[job->group] += 1e-9 * (double)(end_ns - begin_ns);
    pthread_mutex_unlock(&device->seconds_lock);
    return OX_OK;
}

static enum ox_status submit(struct ox_lane *lane, ox_cpu_fn *run, enum ox_op_group group,
                             const void *args, size_t bytes) {
    struct op_job job = {.run = run, .group = group};
    OX_ASSERT(bytes <= sizeof job.args);
    memcpy(job.args, args, bytes);
    return ox_host_lane_submit(lane, run_op, &job, offsetof(struct op_job, args) + bytes, NULL);
}

static enum ox_status zero(struct ox_lane *lane, const struct ox_op_zero *op) {
    return submit(lane, ox_cpu_zero, OX_OPS_OTHER, op, sizeof *op);
}

static enum ox_status planes_join(struct ox_lane *lane, const struct ox_op_planes_join *op) {
    return submit(lane, ox_cpu_planes_join, OX_OPS_OTHER, op, sizeof *op);
}

static enum ox_status add(struct ox_lane *lane, const struct ox_op_add *op) {
    return submit(lane, ox_cpu_add, OX_OPS_OTHER, op, sizeof *op);
}

static enum ox_status bf16_pack(struct ox_lane *lane, const struct ox_op_bf16_pack *op) {
    return submit(lane, ox_cpu_bf16_pack, OX_OPS_OTHER, op, sizeof *op);
}

static enum ox_status embed_forward(struct ox_lane *lane, const struct ox_op_embed_forward *op) {
    OX_ASSERT(op->real == OX_REAL_F32);
    return submit(lane, ox_cpu_embed_forward, OX_OPS_OTHER, op, sizeof *op);
}

static enum ox_status embed_backward(struct ox_lane *lane, const struct ox_op_embed_backward *op) {
    OX_ASSERT(op->real == OX_REAL_F32);
    return submit(lane, ox_cpu_embed_backward, OX_OPS_OTHER, op, sizeof *op);
}

static enum ox_status norm_forward(struct ox_lane *lane, const struct ox_op_norm_forward *op) {
    OX_ASSERT(op->real == OX_REAL_F32);
    return submit(lane, ox_cpu_norm_forward, OX_OPS_NORM, op, sizeof *op);
}

static enum ox_status norm_backward(struct ox_lane *lane, const struct ox_op_norm_backward *op) {
    OX_ASSERT(op->real == OX_REAL_F32);
    return submit(lane, ox_cpu_norm_backward, OX_OPS_NORM, op, sizeof *op);
}

static enum ox_status head_norm_forward(struct ox_lane *lane, const struct ox_op_head_norm_forward *op) {
    OX_ASSERT(op->real == OX_REAL_F32);
    OX_ASSERT((uint64_t)op->heads * op->head_dim <= op->row_stride);
    return submit(lane, ox_cpu_head_norm_forward, OX_OPS_NORM, op, sizeof *op);
}

static enum ox_status head_norm_backward(struct ox_lane *lane, const struct ox_op_head_norm_backward *op) {
    OX_ASSERT(op->real == OX_REAL_F32);
    OX_ASSERT((uint64_t)op->heads * op->head_dim <= op->row_stride);
    return submit(lane, ox_cpu_head_norm_backward, OX_OPS_NORM, op, sizeof *op);
}

static enum ox_status linear_forward(struct ox_lane *lane, const struct ox_op_linear_forward *op) {
    OX_ASSERT(op->real == OX_REAL_F32);
    return submit(lane, ox_cpu_linear_forward, OX_OPS_MATMUL, op, sizeof *op);
}

static enum ox_status linear_backward(struct ox_lane *lane, const struct ox_op_linear_backward *op) {
    OX_ASSERT(op->real == OX_REAL_F32);
    return submit(lane, ox_cpu_linear_backward, OX_OPS_MATMUL, op, sizeof *op);
}

static enum ox_status rope(struct ox_lane *lane, const struct ox_op_rope *op) {
    OX_ASSERT(op->real == OX_REAL_F32);
    OX_ASSERT(op->head_dim % 2 == 0);
    return submit(lane, ox_cpu_rope, OX_OPS_OTHER, op, sizeof *op);
}

/* The frequencies are the caller's only until this returns, so it waits; it runs once per model. */
static enum ox_status rope_table(struct ox_lane *lane, const struct ox_op_rope_table *op) {
    const enum ox_status status = submit(lane, ox_cpu_rope_table, OX_OPS_OTHER, op, sizeof *op);
    return status == OX_OK ? ox_lane_drain(lane) : status;
}

static enum ox_status act_forward(struct ox_lane *lane, const struct ox_op_act_forward *op) {
    OX_ASSERT(op->real == OX_REAL_F32);
    return submit(lane, ox_cpu_act_forward, OX_OPS_ACT, op, sizeof *op);
}

static enum ox_status act_backward(struct ox_lane *lane, const struct ox_op_act_backward *op) {
    OX_ASSERT(op->real == OX_REAL_F32);
    return submit(lane, ox_cpu_act_backward, OX_OPS_ACT, op, sizeof *op);
}

static void check_attention(const struct ox_attention_shape *shape) {
    OX_ASSERT(shape->kv_heads > 0 && shape->heads % shape->kv_heads == 0 && shape->scale > 0.0f);
}

static enum ox_status attention_forward(struct ox_lane *lane, const struct ox_op_attention_forward *op) {
    OX_ASSERT(op->real == OX_REAL_F32);
    check_attention(&op->shape);
    return submit(lane, ox_cpu_attention_forward, OX_OPS_ATTENTION, op, sizeof *op);
}

static enum ox_status attention_backward(struct ox_lane *lane,
                                         const struct ox_op_attention_backward *op) {
    OX_ASSERT(op->real == OX_REAL_F32);
    check_attention(&op->shape);
    return submit(lane, ox_cpu_attention_backward, OX_OPS_ATTENTION, op, sizeof *op);
}

static enum ox_status attention_cached(struct ox_lane *lane, const struct ox_op_attention_cached *op) {
    OX_ASSERT(op->real == OX_REAL_F32);
    OX_ASSERT(op->kv_heads > 0 && op->heads % op->kv_heads == 0 && op->scale > 0.0f && op->rows > 0);
    return submit(lane, ox_cpu_attention_cached, OX_OPS_ATTENTION, op, sizeof *op);
}

static enum ox_status head(struct ox_lane *lane, const struct ox_op_head *op) {
    OX_ASSERT(op->real == OX_REAL_F32);
    return submit(lane, ox_cpu_head, OX_OPS_HEAD, op, sizeof *op);
}

struct other_op {
    ox_ops_cpu_fn *run;
    _Alignas(16) unsigned char args[OX_OPS_CPU_ARGS_BYTES];
};

static void run_other(const struct ox_cpu *cpu, const void *args) {
    const struct other_op *const other = args;
    other->run(cpu->pool, other->args);
}

enum ox_status ox_ops_cpu_submit(struct ox_lane *lane, ox_ops_cpu_fn *run, const void *args, size_t bytes) {
    struct other_op other = {.run = run};
    OX_ASSERT(bytes <= sizeof other.args);
    memcpy(other.args, args, bytes);
    return submit(lane, run_other, OX_OPS_OTHER, &other, sizeof other);
}

static enum ox_status nothing(void *owner, const void *args) {
    (void)owner;
    (void)args;
    return OX_OK;
}

static enum ox_status mark(struct ox_lane *lane, struct ox_mark *out) {
    return ox_host_lane_submit(lane, nothing, NULL, 0, out);
}

void ox_ops_init_cpu(struct ox_ops *ops) {
    *ops = (struct ox_ops){
        .name = "cpu",
        .zero = zero,
        .planes_join = planes_join,
        .add = add,
        .bf16_pack = bf16_pack,
        .embed_forward = embed_forward,
        .embed_backward = embed_backward,
        .norm_forward = norm_forward,
        .norm_backward = norm_backward,
        .head_norm_forward = head_norm_forward,
        .head_norm_backward = head_norm_backward,
        .linear_forward = linear_forward,
        .linear_backward = linear_backward,
        .rope = rope,
        .rope_table = rope_table,
        .act_forward = act_forward,
        .act_backward = act_backward,
        .attention_forward = attention_forward,
        .attention_backward = attention_backward,
        .attention_cached = attention_cached,
        .head = head,
        .mark = mark,
    };
}

void ox_ops_cpu_take_seconds(struct ox_device *device, struct ox_ops_seconds *out) {
    struct ox_cpu_device *const cpu = (struct ox_cpu_device *)device;
    pthread_mutex_lock(&cpu->seconds_lock);
    *out = cpu->seconds;
    memset(&cpu->seconds, 0, sizeof cpu->seconds);
    pthread_mutex_unlock(&cpu->seconds_lock);
}
