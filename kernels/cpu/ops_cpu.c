/* Queues operations on lanes of the CPU device: a job holds a copy of the argument struct, takes the device's pool,
 * runs the operation and adds its time to its group. */
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
    const enum ox_status status = ox_cpu_narrow_status(device->cpu.narrow);
    pthread_mutex_unlock(&device->turn);
    pthread_mutex_lock(&device->seconds_lock);
    device->seconds.seconds[job->group] += 1e-9 * (double)(end_ns - begin_ns);
    pthread_mutex_unlock(&device->seconds_lock);
    return status;
}

/* This device computes in float32 alone. */
static bool is_f32(const struct ox_op_row *row, const void *args) {
    enum ox_real real = OX_REAL_F32;
    if (row->real_offset != OX_OP_NO_REAL) {
        memcpy(&real, (const unsigned char *)args + row->real_offset, sizeof real);
    }
    return real == OX_REAL_F32;
}

static enum ox_status queue(struct ox_lane *lane, const struct ox_op_row *row, ox_op_fn *function, const void *args) {
    struct op_job job = {.run = (ox_cpu_fn *)function, .group = row->group};
    OX_ASSERT(row->args_bytes <= sizeof job.args && is_f32(row, args));
    memcpy(job.args, args, row->args_bytes);
    return ox_host_lane_submit(lane, run_op, &job, offsetof(struct op_job, args) + row->args_bytes, NULL);
}

struct ox_pool *ox_cpu_pool(const struct ox_cpu *cpu) {
    return cpu->pool;
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
        .queue = queue,
        .mark = mark,
        .functions = {OX_OP_MODEL_LIST(OX_OP_FUNCTION, cpu)},
    };
}

void ox_ops_cpu_take_seconds(struct ox_device *device, struct ox_ops_seconds *out) {
    struct ox_cpu_device *const cpu = (struct ox_cpu_device *)device;
    pthread_mutex_lock(&cpu->seconds_lock);
    *out = cpu->seconds;
    memset(&cpu->seconds, 0, sizeof cpu->seconds);
    pthread_mutex_unlock(&cpu->seconds_lock);
}
