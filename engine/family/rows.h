/* Groups of tensors that families are put together of. Each ends with a row without a name. For the files of this
 * folder. */
#ifndef OX_ENGINE_ROWS_H
#define OX_ENGINE_ROWS_H

#include "engine/family/families.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const struct ox_family_row ox_rows_embedding[];
extern const struct ox_family_row ox_rows_norm1[];    /* before attention, as input_layernorm */
extern const struct ox_family_row ox_rows_qkv[];      /* three tensors, each with a bias if the configuration says so */
extern const struct ox_family_row ox_rows_qkv_one[];  /* one tensor */
extern const struct ox_family_row ox_rows_qk_norm[];  /* per head */
extern const struct ox_family_row ox_rows_qk_norm_all[]; /* of all heads as one */
extern const struct ox_family_row ox_rows_out[];      /* with a bias if the configuration says so */
extern const struct ox_family_row ox_rows_post1[];    /* behind attention, as post_attention_layernorm */
extern const struct ox_family_row ox_rows_norm2[];    /* before the MLP, as post_attention_layernorm */
extern const struct ox_family_row ox_rows_norm2_own[]; /* before the MLP, as pre_feedforward_layernorm */
extern const struct ox_family_row ox_rows_gate_up[];  /* two tensors, each with a bias if the configuration says so */
extern const struct ox_family_row ox_rows_gate_up_one[];
extern const struct ox_family_row ox_rows_down[];     /* with a bias if the configuration says so */
extern const struct ox_family_row ox_rows_post2[];    /* behind the MLP, as post_feedforward_layernorm */
extern const struct ox_family_row ox_rows_final_norm[];
extern const struct ox_family_row ox_rows_table[];    /* the head's, which is none where it is tied */

#ifdef __cplusplus
}
#endif
#endif
