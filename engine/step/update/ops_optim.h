/* The operations of kernels/ops.h that cpu_optim computes for the CPU device. They are here because no lower room may
 * include both folders. */
#ifndef OX_ENGINE_OPS_OPTIM_H
#define OX_ENGINE_OPS_OPTIM_H

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills the entries that ox_ops_init_cpu leaves. */
void ox_ops_optim_init_cpu(struct ox_ops *ops);

#ifdef __cplusplus
}
#endif
#endif
