/* What llama and its kin share: keys of config.json, and how they are read and written. For the files of this
 * folder. */
#ifndef OX_ENGINE_DECODER_H
#define OX_ENGINE_DECODER_H

#include "engine/family/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const char *const ox_decoder_ignored[]; /* frequencies of old files */
extern const char *const ox_decoder_keys[];    /* that ox_decoder_parse reads */
extern const char *const ox_window_keys[];     /* that the readers of windows below read */
extern const struct ox_value_key ox_decoder_biases[]; /* attention_bias, mlp_bias */

/* Reads what all of them share. It may be a family's `parse`. */
OX_MUST enum ox_status ox_decoder_parse(const char *where, const json_t *json, const struct ox_family *family,
                                        struct ox_model_config *out);
bool ox_decoder_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                      json_t *out);

/* The value that transformers takes for a missing key. For null it derives the size, which 0 stands for here. */
uint32_t ox_when_missing(const json_t *json, const char *key, uint32_t value);

/* ---- windows of attention: windows.c ---- */

/* Reads sliding_window. A missing key means 4096 in transformers, null means no window. */
OX_MUST enum ox_status ox_read_window(const char *where, const json_t *json, uint32_t *window);
/* Reads layer_types, if it is there: per layer, whether it has the window. */
OX_MUST enum ox_status ox_read_layer_types(const char *where, const json_t *json, struct ox_model_config *out);
/* A window that no layer has is none, and the other way round. */
void ox_settle_windows(struct ox_model_config *out);
/* Reads the window and the layers that have one: all but every so many-th, or as layer_types says. `key` names that
 * number, which is `missing` where there is none; or NULL. */
OX_MUST enum ox_status ox_read_turns(const char *where, const json_t *json, const char *key, uint32_t missing,
                                     struct ox_model_config *out);
/* Writes both. */
bool ox_write_turns(const struct ox_model_config *config, json_t *out);
bool ox_write_layer_types(const struct ox_model_config *config, json_t *out);
bool ox_write_window(const struct ox_model_config *config, json_t *out);

#ifdef __cplusplus
}
#endif
#endif
