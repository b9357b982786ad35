/* Attention by cuDNN: keeps a plan per shape, and cuts operations into the slices that plans are made for. */
#include "kernels/cuda/cudnn.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cudnn_plan.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN_BYTES = 16, HEAD_DIM_GRAIN = 8 };

struct ox_cudnn {
    struct ox_cudnn_library *library;
    struct ox_cudnn_target target;
    /* A handle may be used by one thread at a time: plans are built and queued under the lock. */
    pthread_mutex_t lock;
    struct ox_cudnn_plan **plans;
    uint32_t plan_count;
};

static void describe_version(const struct ox_cudnn_library *library, struct ox_cudnn_words *words) {
    const unsigned long long version = ox_cudnn_library_version(library);
    snprintf(words->text, sizeof words->text, "cuDNN %llu.%llu.%llu", version / 10000, version / 100 % 100,
             version % 100);
}

void ox_cudnn_open(uint32_t capability, struct ox_cudnn **out, struct ox_cudnn_words *words) {
    *out = NULL;
    struct ox_cudnn *cudnn = calloc(1, sizeof *cudnn);
    if (cudnn == NULL) {
        snprintf(words->text, sizeof words->text, "no memory for cuDNN's plans");
        return;
    }
    pthread_mutex_init(&cudnn->lock, NULL);
    if (!ox_cudnn_library_open(&cudnn->library, words) ||
        !ox_cudnn_target_open(cudnn->library, capability, &cudnn->target, words)) {
        ox_cudnn_close(&cudnn);
        return;
    }
    describe_version(cudnn->library, words);
    *out = cudnn;
}

void ox_cudnn_close(struct ox_cudnn **cudnn) {
    if (*cudnn == NULL) {
        return;
    }
    for (uint32_t i = 0; i < (*cudnn)->plan_count; i++) {
        ox_cudnn_plan_close(&(*cudnn)->plans[i]);
    }
    free((*cudnn)->plans);
    ox_cudnn_target_close(&(*cudnn)->target);
    ox_cudnn_library_close(&(*cudnn)->library);
    pthread_mutex_destroy(&(*cudnn)->lock);
    free(*cudnn);
    *cudnn = NULL;
}

/* ---- plans by shape ----------------------------------------------------------------------------------- */

/* The window's length and the scale are passed as values with each call. */
static bool same(const struct ox_cudnn_case *a, const struct ox_cudnn_case *b) {
    const struct ox_attention_shape *const x = &a->shape, *const y = &b->shape;
    return a->backward == b->backward && x->batch == y->batch && x->seq == y->seq && x->heads == y->heads &&
           x->kv_heads == y->kv_heads && x->head_dim == y->head_dim &&
           ox_cudnn_has_window(x) == ox_cudnn_has_window(y);
}

static enum ox_status keep(struct ox_cudnn *cudnn, const struct ox_cudnn_case *of, struct ox_cudnn_plan **out) {
    struct ox_cudnn_plan **const plans =
        realloc(cudnn->plans, (cudnn->plan_count + (size_t)1) * sizeof *plans);
    if (plans == NULL) {
        return ox_fail(OX_E_NOMEM, "GPU: no memory for %u plans of attention", cudnn->plan_count + 1);
    }
    cudnn->plans = plans;
    const enum ox_status status = ox_cudnn_plan_open(&cudnn->target, of, true, out);
    if (status == OX_OK) {
        plans[cudnn->plan_count++] = *out;
    }
    return status;
}

static enum ox_status plan_of(struct ox_cudnn *cudnn, const struct ox_cudnn_case *of, struct ox_cudnn_plan **out) {
    for (uint32_t i = 0; i < cudnn->plan_count; i++) {
        if (same(&cudnn->plans[i]->of, of)) {
            *out = cudnn->plans[i];
            return OX_OK;
        }
    }
    return keep(cudnn, of, out);
}

/* False if the case is known not to be cuDNN's without asking. */
static bool case_of(const struct ox_attention_shape *shape, bool backward, uint64_t slice_bytes,
                    struct ox_cudnn_case *out) {
    struct ox_attention_slices slices;
    const bool is_cut = ox_attention_slices_of(shape, slice_bytes, &slices);
    *out = (struct ox_cudnn_case){.shape = *shape,
                                  .batch = backward ? slices.batch : shape->batch,
                                  .kv_heads = backward ? slices.kv_heads : shape->kv_heads,
                                  .sums_bytes = slices.sums_bytes,
                                  .workspace_max = backward ? slices.library_bytes : OX_ATTENTION_LIBRARY_BYTES,
                                  .backward = backward};
    return shape->cap == 0.0f && shape->seq > 1 && shape->head_dim % HEAD_DIM_GRAIN == 0 && (is_cut || !backward);
}

/* ---- operations --------------------------------------------------------------------------------------- */

/* A graph's single values, in host memory until the call returns. */
struct values {
    float scale, one, masked;
    int32_t window;
};

static struct values values_of(const struct ox_attention_shape *shape) {
    return (struct values){.scale = shape->scale, .one = 1.0f, .masked = -INFINITY,
                           .window = (int32_t)shape->window};
}

static void bring(struct ox_cudnn_call *call, struct values *values, const struct ox_cudnn_case *of) {
    call->at[OX_CUDNN_SCALE] = &values->scale;
    call->at[OX_CUDNN_MASKED] = &values->masked;
    call->at[OX_CUDNN_ONE] = of->backward ? &values->one : NULL;
    call->at[OX_CUDNN_WINDOW] = ox_cudnn_has_window(&of->shape) ? &values->window : NULL;
}

static void *bf16_at(const void *base, uint64_t count) {
    return (uint16_t *)(uintptr_t)base + count;
}

static bool aligned(const void *a, const void *b, const void *c, const void *d) {
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) & (ALIGN_BYTES - 1)) == 0;
}

enum ox_status ox_cudnn_attention_forward(const struct ox_cuda_queue *queue, const struct ox_op_attention_forward *op,
                                          bool *took) {
    struct ox_cudnn *const cudnn = queue->device->cudnn;
    const struct ox_attention_shape *const shape = &op->shape;
    struct ox_cudnn_case of;
    struct ox_cudnn_plan *plan = NULL;
    *took = false;
    if (cudnn == NULL || op->positions != NULL || !aligned(op->out, op->lse, op->qkv, op->scratch) ||
        !case_of(shape, false, cudnn->target.slice_bytes, &of)) {
        return OX_OK;
    }
    const uint64_t k_at = (uint64_t)shape->heads * shape->head_dim;
    const uint64_t v_at = k_at + (uint64_t)shape->kv_heads * shape->head_dim;
    struct values values = values_of(shape);
    struct ox_cudnn_call call = {
        .at = {[OX_CUDNN_Q] = bf16_at(op->qkv, 0), [OX_CUDNN_K] = bf16_at(op->qkv, k_at),
               [OX_CUDNN_V] = bf16_at(op->qkv, v_at), [OX_CUDNN_OUT] = op->out, [OX_CUDNN_LSE] = op->lse},
        .workspace = op->scratch, .stream = queue->stream};
    bring(&call, &values, &of);
    pthread_mutex_lock(&cudnn->lock);
    enum ox_status status = ox_cuda_check(cudaSetDevice(queue->device->idx), "choosing the device");
    OX_THEN(status, plan_of(cudnn, &of, &plan));
    if (status == OX_OK && plan->plan != NULL) {
        status = ox_cudnn_plan_run(plan, &call);
        *took = status == OX_OK;
    }
    pthread_mutex_unlock(&cudnn->lock);
    return status;
}

static bool fills(const struct ox_cuda_device *device, const struct ox_attention_shape *shape,
                  const struct ox_cudnn_case *of) {
    const struct ox_attention_slices slices = {.batch = of->batch, .kv_heads = of->kv_heads};
    return ox_attention_slices_fill(shape, &slices, (uint32_t)device->prop.multiProcessorCount);
}

/* The slice that begins at this sequence and this head of keys and values. */
static enum ox_status run_slice(const struct ox_cudnn_plan *plan, const struct ox_cuda_queue *queue,
                                const struct ox_op_attention_backward *op, uint32_t sequence, uint32_t kv_head) {
    const struct ox_attention_shape *const shape = &op->shape;
    const uint64_t dim = shape->head_dim, group = shape->heads / shape->kv_heads, row = (uint64_t)sequence * shape->seq;
    const uint64_t in = row * (shape->heads + 2 * (uint64_t)shape->kv_heads) * dim;
    const uint64_t out = (row * shape->heads + kv_head * group) * dim;
    const uint64_t q_at = in + kv_head * group * dim, k_at = in + (shape->heads + (uint64_t)kv_head) * dim;
    const uint64_t v_at = k_at + (uint64_t)shape->kv_heads * dim;
    struct values values = values_of(shape);
    struct ox_cudnn_call call = {
        .at = {[OX_CUDNN_Q] = bf16_at(op->qkv, q_at), [OX_CUDNN_K] = bf16_at(op->qkv, k_at),
               [OX_CUDNN_V] = bf16_at(op->qkv, v_at), [OX_CUDNN_OUT] = bf16_at(op->out, out),
               [OX_CUDNN_DOUT] = bf16_at(op->dout, out), [OX_CUDNN_DQ] = bf16_at(op->dqkv, q_at),
               [OX_CUDNN_DK] = bf16_at(op->dqkv, k_at), [OX_CUDNN_DV] = bf16_at(op->dqkv, v_at),
               [OX_CUDNN_LSE] = (float *)(uintptr_t)op->lse +
                                ((uint64_t)sequence * shape->heads + kv_head * group) * shape->seq,
               [OX_CUDNN_SUMS] = op->scratch},
        .workspace = (char *)op->scratch + plan->of.sums_bytes, .stream = queue->stream};
    bring(&call, &values, &plan->of);
    return ox_cudnn_plan_run(plan, &call);
}

enum ox_status ox_cudnn_attention_backward(const struct ox_cuda_queue *queue,
                                           const struct ox_op_attention_backward *op, bool *took) {
    struct ox_cudnn *const cudnn = queue->device->cudnn;
    const struct ox_attention_shape *const shape = &op->shape;
    struct ox_cudnn_case of;
    struct ox_cudnn_plan *plan = NULL;
    *took = false;
    if (cudnn == NULL || op->positions != NULL || !aligned(op->dqkv, op->dout, op->qkv, op->out) ||
        !aligned(op->scratch, NULL, NULL, NULL) || !case_of(shape, true, cudnn->target.slice_bytes, &of) ||
        !fills(queue->device, shape, &of)) {
        return OX_OK;
    }
    pthread_mutex_lock(&cudnn->lock);
    enum ox_status status = ox_cuda_check(cudaSetDevice(queue->device->idx), "choosing the device");
    OX_THEN(status, plan_of(cudnn, &of, &plan));
    const bool takes = status == OX_OK && plan->plan != NULL;
    for (uint32_t sequence = 0; takes && status == OX_OK && sequence < shape->batch; sequence += of.batch) {
        for (uint32_t head = 0; status == OX_OK && head < shape->kv_heads; head += of.kv_heads) {
            status = run_slice(plan, queue, op, sequence, head);
        }
    }
    pthread_mutex_unlock(&cudnn->lock);
    *took = takes && status == OX_OK;
    return status;
}

/* ---- without a GPU ------------------------------------------------------------------------------------ */

void ox_cudnn_ask(const struct ox_cudnn_question *question, struct ox_cudnn_answer *out) {
    struct ox_cudnn_library *library = NULL;
    struct ox_cudnn_target target = {0};
    struct ox_cudnn_case of;
    struct ox_cudnn_plan *plan = NULL;
    *out = (struct ox_cudnn_answer){.engine = -1};
    if (!ox_cudnn_library_open(&library, &out->words)) {
        return;
    }
    out->has_library = true;
    out->version = ox_cudnn_library_version(library);
    if (!case_of(&question->shape, question->backward, OX_ATTENTION_SLICE_BYTES, &of)) {
        snprintf(out->words.text, sizeof out->words.text, "cuDNN is not asked for this shape");
    } else if (ox_cudnn_target_describe(library, question->gpu, &target, &out->words)) {
        const enum ox_status status = ox_cudnn_plan_open(&target, &of, question->builds, &plan);
        if (status == OX_OK) {
            out->has_engine = plan->config != NULL;
            out->has_code = plan->has_code;
            out->engine = plan->engine;
            out->workspace_bytes = plan->workspace_bytes;
            out->words = plan->words;
        } else {
            snprintf(out->words.text, sizeof out->words.text, "%s", ox_error_text());
        }
        out->workspace_max = of.workspace_max;
    }
    ox_cudnn_plan_close(&plan);
    ox_cudnn_target_close(&target);
    ox_cudnn_library_close(&library);
}
