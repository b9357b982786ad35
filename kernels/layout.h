/* What sizes and bits of an operation depend on beside its shapes. */
#ifndef OX_KERNELS_LAYOUT_H
#define OX_KERNELS_LAYOUT_H

#include "base/planes.h"
#include "kernels/device.h"

#include <stdint.h>

/* Layout of a weight matrix: [out, in] as torch.nn.Linear, or [in, out] as GPT-2's Conv1D. */
enum ox_weight_layout { OX_WEIGHT_OUT_IN, OX_WEIGHT_IN_OUT };

/* What computes, as far as sizes and bits depend on it. */
struct ox_compute {
    enum ox_device_kind device;
    enum ox_real real;
    uint32_t threads; /* threads of the CPU device's compute lane; unused on a GPU */
};

#endif
