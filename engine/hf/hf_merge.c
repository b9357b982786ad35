/* Adapters merged into the matrices of their base, as PEFT's merge_and_unload does. */
#include "engine/hf/hf_internal.h"

#include "base/bytes.h"
#include "base/planes.h"

#include <math.h>
#include <stdlib.h>

enum { PIECE_ELEMS = 1 << 14 };

/* The A, the B or the magnitudes of a matrix of the base, of an expert's those of all; NULL: it has none. */
static const struct ox_tensor *find_part(const struct ox_model *model, uint32_t tensor_idx, uint32_t nth) {
    const struct ox_tensor *const tensor = &model->tensors[tensor_idx];
    uint32_t seen = 0;
    for (uint32_t i = model->adapter_first; i < model->tensor_count; i++) {
        const uint32_t base_idx = model->tensors[i].base_idx;
        const struct ox_tensor *const base = &model->tensors[base_idx];
        const bool of_all = ox_role_is_of_expert(tensor->role) && base->role == tensor->role &&
                            base->unit_idx == tensor->unit_idx;
        if ((base_idx == tensor_idx || of_all) && seen++ == nth) {
            return &model->tensors[i];
        }
    }
    return NULL;
}

static enum ox_status cache(struct ox_hf_adapter *adapter, uint32_t base_idx, const struct ox_tensor *a,
                            const struct ox_tensor *b) {
    const struct ox_model *const model = adapter->merged;
    adapter->cached = OX_NO_TENSOR;
    free(adapter->a);
    free(adapter->b);
    free(adapter->lengths);
    adapter->lengths = NULL;
    adapter->a = malloc(a->count * sizeof(float));
    adapter->b = malloc(b->count * sizeof(float));
    if (adapter->a == NULL || adapter->b == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory to merge the adapter of \"%s\"", model->tensors[base_idx].name);
    }
    OX_TRY(ox_hf_adapter_read(adapter, model, (uint32_t)(a - model->tensors), 0, a->count, adapter->a));
    OX_TRY(ox_hf_adapter_read(adapter, model, (uint32_t)(b - model->tensors), 0, b->count, adapter->b));
    adapter->cached = base_idx;
    return OX_OK;
}

/* Where a matrix lies: its sizes, of how many experts it is, and the element of all that a tensor begins with. */
struct matrix {
    uint64_t r, in, out, experts, begin;
    bool out_in;
};

static struct matrix matrix_of(const struct ox_model *model, const struct ox_tensor *tensor, const struct ox_tensor *a,
                               const struct ox_tensor *b) {
    const bool of_all = ox_role_is_of_expert(tensor->role);
    struct matrix m = {.in = a->shape[1], .out = b->shape[0], .experts = 1, .r = a->shape[0],
                       .out_in = tensor->role >= OX_ROLE_ROUTER || model->config.layout == OX_WEIGHT_OUT_IN};
    m.out_in &= tensor->role != OX_ROLE_EMBED; /* its inputs are tokens, a row each */
    if (of_all) {
        m.experts = model->config.mixture.router.experts;
        m.r /= m.experts;
        m.out_in = model->config.mixture.layout == OX_WEIGHT_OUT_IN;
        m.begin = tensor->offset - model->units[tensor->unit_idx].role_offset[tensor->role];
    }
    return m;
}

static float rounded(float value, enum ox_dtype to) {
    return to == OX_DTYPE_BF16   ? ox_bf16_to_f32(ox_bf16_from_f32(value))
           : to == OX_DTYPE_F16 ? ox_f16_to_f32(ox_f16_from_f32(value))
                                : value;
}

/* The output of an element of a matrix. */
static uint64_t output_of(const struct matrix *m, uint64_t element) {
    const uint64_t of = element % (m->in * m->out);
    return m->out_in ? of / m->in : of % m->out;
}

/* Adds scale * B A; `to`: what each product is rounded to. */
static void add_product(const struct ox_hf_adapter *adapter, const struct matrix *m, float scale, enum ox_dtype to,
                        uint64_t first, uint64_t count, float *inout) {
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t at = m->begin + first + i, expert = at / (m->in * m->out), of = at % (m->in * m->out);
        const uint64_t o = output_of(m, at), k = m->out_in ? of % m->in : of / m->out;
        const float *const b_row = adapter->b + o * m->r * m->experts + expert;
        const float *const a_col = adapter->a + expert * m->r * m->in + k;
        double sum = 0.0;
        for (uint64_t j = 0; j < m->r; j++) {
            sum += (double)b_row[j * m->experts] * (double)a_col[j * m->in];
        }
        inout[i] += rounded((float)sum * scale, to);
    }
}

/* ---- magnitudes ---- */

/* The lengths of the rows of a matrix of the base; with an adapter those of the sum. */
static enum ox_status measure(const struct ox_hf_folder *folder, uint32_t tensor_idx, const struct matrix *m,
                              const struct ox_hf_adapter *adapter, float scale, double *lengths) {
    float *const piece = malloc(PIECE_ELEMS * sizeof *piece);
    enum ox_status status = piece != NULL ? OX_OK : ox_hf_fail_memory(folder->path);
    for (uint64_t first = 0, count; first < m->in * m->out && status == OX_OK; first += count) {
        count = ox_min_u64(PIECE_ELEMS, m->in * m->out - first);
        status = ox_hf_read_base(folder, tensor_idx, first, count, piece);
        if (status == OX_OK && adapter != NULL) {
            add_product(adapter, m, scale, OX_DTYPE_F32, first, count, piece);
        }
        for (uint64_t i = 0; i < count && status == OX_OK; i++) {
            lengths[output_of(m, first + i)] += (double)piece[i] * (double)piece[i];
        }
    }
    for (uint64_t o = 0; o < m->out; o++) {
        lengths[o] = sqrt(lengths[o]);
    }
    free(piece);
    return status;
}

enum ox_status ox_hf_fresh_magnitudes(const struct ox_hf_folder *folder, const struct ox_tensor *magnitudes,
                                      uint64_t first, uint64_t count, float *out) {
    const struct ox_model *const model = folder->model;
    const struct ox_tensor *const base = &model->tensors[magnitudes->base_idx];
    const struct ox_tensor *const a = find_part(model, magnitudes->base_idx, 0);
    const struct ox_tensor *const b = find_part(model, magnitudes->base_idx, 1);
    const struct matrix m = matrix_of(model, base, a, b);
    double *const lengths = calloc(m.out, sizeof *lengths);
    enum ox_status status = lengths != NULL ? OX_OK : ox_hf_fail_memory(folder->path);
    OX_THEN(status, measure(folder, magnitudes->base_idx, &m, NULL, 0.0f, lengths));
    for (uint64_t i = 0; i < count && status == OX_OK; i++) {
        out[i] = (float)lengths[first + i];
    }
    free(lengths);
    return status;
}

/* Keeps, of a matrix with magnitudes, what its rows are multiplied by. */
static enum ox_status find_factors(const struct ox_hf_folder *folder, uint32_t tensor_idx, const struct matrix *m,
                                   float scale) {
    struct ox_hf_adapter *const adapter = folder->adapter;
    const struct ox_tensor *const magnitudes = find_part(adapter->merged, tensor_idx, 2);
    if (magnitudes == NULL) {
        return OX_OK;
    }
    float *const values = malloc(m->out * sizeof *values);
    adapter->lengths = calloc(m->out, sizeof *adapter->lengths);
    enum ox_status status = values != NULL && adapter->lengths != NULL ? OX_OK : ox_hf_fail_memory(folder->path);
    const uint32_t idx = (uint32_t)(magnitudes - adapter->merged->tensors);
    OX_THEN(status, ox_hf_adapter_read(adapter, adapter->merged, idx, 0, m->out, values));
    OX_THEN(status, measure(folder, tensor_idx, m, adapter, scale, adapter->lengths));
    for (uint64_t o = 0; o < m->out && status == OX_OK; o++) {
        adapter->lengths[o] = (double)(values[o] / (float)adapter->lengths[o]);
    }
    free(values);
    return status;
}

/* ---- the sum ---- */

/* PEFT multiplies B A in float32, scales it, and adds it to W; what W is stored in rounds the sum once. Of a parameter
 * and of an embedding it rounds both the product and the sum. */
enum ox_status ox_hf_adapter_add(const struct ox_hf_folder *folder, uint32_t tensor_idx, enum ox_dtype stored,
                                 uint64_t first, uint64_t count, float *inout) {
    struct ox_hf_adapter *const adapter = folder->adapter;
    const struct ox_model *const model = adapter->merged;
    const struct ox_tensor *const a = find_part(model, tensor_idx, 0);
    const struct ox_tensor *const b = find_part(model, tensor_idx, 1);
    if (a == NULL || count == 0) {
        return OX_OK;
    }
    char name[OX_TENSOR_NAME_BYTES];
    const bool twice = ox_lora_parameter(&model->config, &model->tensors[tensor_idx], name) ||
                       model->tensors[tensor_idx].role == OX_ROLE_EMBED;
    const struct matrix m = matrix_of(model, &model->tensors[tensor_idx], a, b);
    const float scale = ox_lora_scale(&model->config.lora, a->role);
    const uint32_t base_idx = a->base_idx;
    if (adapter->cached != base_idx) {
        OX_TRY(cache(adapter, base_idx, a, b));
        OX_TRY(find_factors(folder, tensor_idx, &m, scale));
    }
    add_product(adapter, &m, scale, twice ? stored : OX_DTYPE_F32, first, count, inout);
    for (uint64_t i = 0; i < count && adapter->lengths != NULL; i++) {
        inout[i] *= (float)adapter->lengths[output_of(&m, first + i)];
    }
    return OX_OK;
}
