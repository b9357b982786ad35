/* Low-rank adapters of a model: a unit beside each block's own, with A and B of the modules that are adapted. For the
 * files of this folder. */
#ifndef OX_ENGINE_ADAPTER_H
#define OX_ENGINE_ADAPTER_H

#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Adds the adapters of config.lora to a model whose other units are there, and makes them alone trained, with what that
 * names beside them. `usual`: the modules of a configuration that names none; NULL: the family has no usual ones.
 * OX_E_CONFIG for names that the model lacks, or that cannot be adapted; the caller closes the model then. */
OX_MUST enum ox_status ox_model_add_adapters(struct ox_model *model, const char *usual);

/* The value of a fresh A from a uniform number, as torch's kaiming_uniform_ with a = sqrt(5), which PEFT calls, bounds
 * it. */
float ox_adapter_init_value(const struct ox_tensor *tensor, double uniform);

#ifdef __cplusplus
}
#endif
#endif
