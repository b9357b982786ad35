#include "kernels/cpu/cpu.h"

static uint32_t stride_of(uint32_t stride, uint32_t count) {
    return stride == 0 ? count : stride;
}

void ox_cpu_linear_forward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_linear_forward *const op = args;
    const bool out_in = op->layout == OX_WEIGHT_OUT_IN;
    ox_cpu_gemm(cpu, &(struct ox_gemm){
                         .c = op->out,
                         .a = op->in,
                         .b = op->weight,
                         .residual = op->residual,
                         .bias = op->bias,
                         .m = op->rows,
                         .n = op->out_count,
                         .k = op->in_count,
                         .a_stride = stride_of(op->in_stride, op->in_count),
                         .b_stride = out_in ? op->in_count : op->out_count,
                         .c_stride = stride_of(op->out_stride, op->out_count),
                         .b_transposed = out_in,
                         .scale = op->scale,
                     });
}

static void weight_gradient(const struct ox_cpu *cpu, const struct ox_op_linear_backward *op) {
    const bool out_in = op->layout == OX_WEIGHT_OUT_IN;
    const uint32_t in_stride = stride_of(op->in_stride, op->in_count);
    const uint32_t out_stride = stride_of(op->out_stride, op->out_count);
    ox_cpu_gemm(cpu, &(struct ox_gemm){
                         .c = op->dweight,
                         .a = out_in ? op->dout : op->in,
                         .b = out_in ? op->in : op->dout,
                         .m = out_in ? op->out_count : op->in_count,
                         .n = out_in ? op->in_count : op->out_count,
                         .k = op->rows,
                         .a_stride = out_in ? out_stride : in_stride,
                         .b_stride = out_in ? in_stride : out_stride,
                         .c_stride = out_in ? op->in_count : op->out_count,
                         .a_transposed = true,
                         .beta = op->begins ? 0.0f : 1.0f,
                         .scale = op->scale,
                     });
}

void ox_cpu_linear_backward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_linear_backward *const op = args;
    const bool out_in = op->layout == OX_WEIGHT_OUT_IN;
    if (op->din != NULL) {
        ox_cpu_gemm(cpu, &(struct ox_gemm){
                             .c = op->din,
                             .a = op->dout,
                             .b = op->weight,
                             .residual = op->residual,
                             .m = op->rows,
                             .n = op->in_count,
                             .k = op->out_count,
                             .a_stride = stride_of(op->out_stride, op->out_count),
                             .b_stride = out_in ? op->in_count : op->out_count,
                             .c_stride = stride_of(op->in_stride, op->in_count),
                             .b_transposed = !out_in,
                             .scale = op->scale,
                         });
    }
    if (op->dweight != NULL) {
        weight_gradient(cpu, op);
    }
    if (op->dbias != NULL) {
        ox_cpu_column_sums(cpu, op);
    }
}
