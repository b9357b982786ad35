/* Low-rank adapters of a folder's model, for hf.c. */
#ifndef OX_ENGINE_HF_INTERNAL_H
#define OX_ENGINE_HF_INTERNAL_H

#include "engine/hf/hf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the values of adapters come from: the file of an adapter, or a seed. */
struct ox_hf_adapter {
    const struct ox_st_file *file;     /* its folder closes it; NULL: fresh */
    const struct ox_st_entry **entries; /* by tensor, from the model's saved_first on */
    char *path;                        /* of the adapter's folder */
    uint64_t seed;
    struct ox_model *merged;  /* the adapted model, where the folder's is that of the base alone, with all added */
    uint32_t cached;          /* the tensor whose A and B these are; OX_NO_TENSOR: none */
    float *a, *b;
};
void ox_hf_adapter_close(struct ox_hf_adapter **adapter);

/* Reads values of an adapter's tensor of `model`, as ox_hf_read does. */
OX_MUST enum ox_status ox_hf_adapter_read(const struct ox_hf_adapter *adapter, const struct ox_model *model,
                                          uint32_t tensor_idx, uint64_t first, uint64_t count, float *out);
/* Adds scale * B A to values of a matrix of the base, where it has an adapter. */
OX_MUST enum ox_status ox_hf_adapter_add(struct ox_hf_adapter *adapter, uint32_t tensor_idx, uint64_t first,
                                         uint64_t count, float *inout);

/* The base that an adapter's folder names, as a path; OX_E_CONFIG where that is no folder here. */
OX_MUST enum ox_status ox_hf_adapter_base(const char *folder, char *path);
/* Reads adapter_config.json; OX_E_CONFIG names a key that asks for what does not exist here. Targets are those of the
 * tensors in the file. */
OX_MUST enum ox_status ox_hf_adapter_config(const char *folder, const struct ox_st_file *file, struct ox_lora *out);
/* Compares the base with that of base_model.json, where an adapter's folder has one. */
OX_MUST enum ox_status ox_hf_adapter_check_base(const char *folder, const struct ox_hf_folder *base);
/* The files that describe an adapter beside its weights: adapter_config.json and base_model.json. */
OX_MUST enum ox_status ox_hf_adapter_describe(const char *folder, const struct ox_model *model, const char *base,
                                              uint64_t base_hash);

#ifdef __cplusplus
}
#endif
#endif
