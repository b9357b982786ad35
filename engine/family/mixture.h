/* What families with a mixture of experts share: keys of config.json and groups of tensors. For the files of this
 * folder. */
#ifndef OX_ENGINE_MIXTURE_H
#define OX_ENGINE_MIXTURE_H

#include "engine/family/decoder.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Keys that families may have, and what they mean where they are missing. */
struct ox_mixture_keys {
    const char *experts; /* the name under which a new file has their number; others that transformers takes are read */
    uint32_t experts_missing, chosen_missing;
    const char *width;      /* of an expert */
    uint32_t width_missing; /* 0: the key is required */
    double balance_missing; /* of router_aux_loss_coef */
};

extern const char *const ox_mixture_key_names[]; /* that the readers below read, or that have no effect */
/* What would add noise. For a family's fixed keys. */
#define OX_MIXTURE_FIXED_KEYS                                                                                          \
    {.key = "router_jitter_noise", .kind = OX_FIXED_NUMBER, .number = 0.0}

/* Reads the numbers of experts and of those that a token gets, an expert's width, and the
 * balance loss that is asked for. The router is a softmax over all
 * experts, whose expert is a swiglu. */
OX_MUST enum ox_status ox_read_mixture(const char *where, const json_t *json, const struct ox_mixture_keys *keys,
                                       struct ox_model_config *out);
bool ox_write_mixture(const struct ox_mixture_keys *keys, const struct ox_model_config *config, json_t *out);
/* Reads which layers have an MLP instead: those in mlp_only_layers, and all but every decoder_sparse_step-th. */
OX_MUST enum ox_status ox_read_dense_layers(const char *where, const json_t *json, struct ox_model_config *out);
bool ox_write_dense_layers(const struct ox_model_config *config, json_t *out);

/* The names of a router and of the modules of an expert that most families have (struct ox_family.expert_names). */
extern const char *const ox_expert_names[];

/* A router and its experts: mlp.gate, mlp.experts. In files these are tensors of each expert, or of all. */
extern const struct ox_family_row ox_rows_mixture[];
/* The same, whose files with tensors of each expert name them as mixtral's: block_sparse_moe.experts.0.w1. */
extern const struct ox_family_row ox_rows_mixture_w123[];
extern const struct ox_family_row ox_rows_shared_expert[]; /* mlp.shared_expert, mlp.shared_expert_gate */
/* As ox_rows_mixture, with the router in F32 whatever the other tensors are; and with a bias of
 * the choice, also in F32. */
extern const struct ox_family_row ox_rows_mixture_fp32[], ox_rows_mixture_chosen[];
extern const struct ox_family_row ox_rows_shared_experts[]; /* mlp.shared_experts: as one, without a gate */

#ifdef __cplusplus
}
#endif
#endif
