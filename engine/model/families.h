/* What the engine knows about a model family: how its config.json is read and written, and which tensors its files
 * hold. A new family is one entry of the table in engine/model/families.c. */
#ifndef OX_ENGINE_FAMILIES_H
#define OX_ENGINE_FAMILIES_H

#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A dimension of a tensor, derived from the configuration. */
enum ox_dim {
    OX_DIM_NONE, /* second dimension of a vector */
    OX_DIM_VOCAB,
    OX_DIM_CONTEXTS,
    OX_DIM_HIDDEN,
    OX_DIM_WIDTH,
    OX_DIM_HEAD, /* head_dim */
    OX_DIM_Q,   /* heads * head_dim */
    OX_DIM_KV,  /* kv_heads * head_dim */
    OX_DIM_QKV, /* Q + 2 KV */
    OX_DIM_GATE_UP, /* 2 WIDTH */
};

/* One tensor of the files, in the order of its unit's flat vector. Neighbours of one role lie together without padding,
 * so that they are one matrix. */
struct ox_family_row {
    enum ox_unit_kind unit;
    enum ox_role role;
    const char *name; /* without the family's prefix; %u is the layer */
    bool bare;        /* written without the prefix */
    enum ox_dim shape[2];
    bool (*when)(const struct ox_model_config *); /* NULL: always there */
    enum ox_init_kind init;
};

/* A key of config.json that may have one value alone, because any other changes what the model computes. Missing and
 * null mean that value. */
enum ox_fixed_key_kind {
    OX_FIXED_MISSING,
    OX_FIXED_FALSE,
    OX_FIXED_TRUE,
    OX_FIXED_NUMBER,
    OX_FIXED_NUMBERS, /* a list in which each is `number` */
    OX_FIXED_TEXT,
};
struct ox_fixed_key {
    const char *key;
    enum ox_fixed_key_kind kind;
    double number;
    const char *texts[2];
    const char *remedy; /* where leaving the key out is none; else NULL */
};

struct ox_family {
    const char *model_type;
    const char *architecture; /* name of the model with its head */
    const char *base_model;   /* name of the model without it */
    const char *prefix;       /* front of tensor names as written; files may leave it out */
    const struct ox_family_row *rows; /* ends with a row without a name */
    const char *const *ignored; /* names without prefix that are in files and carry no weight; ends with NULL */
    bool tied_by_default;       /* meaning of a missing tie_word_embeddings */
    const struct ox_fixed_key *fixed_keys; /* ends with a row without a key */
    const char *const *keys; /* other keys that `parse` reads or that have no effect; ends with NULL */
    /* Reads the family's own keys; `out` already holds what all families share. */
    enum ox_status (*parse)(const char *where, const json_t *json, struct ox_model_config *out);
    /* Writes the same keys; false when memory is short. */
    bool (*write)(const struct ox_model_config *config, bool has_original, json_t *out);
};

/* NULL for an unknown family. */
const struct ox_family *ox_family_find(const char *model_type);
/* Writes "gpt2, llama ..." for errors and returns `text`. */
enum { OX_FAMILY_NAMES_BYTES = 512 };
const char *ox_family_names(char text[OX_FAMILY_NAMES_BYTES]);

/* Helpers for the parse and write functions. */
struct ox_size_key {
    const char *key;
    bool required;
    uint32_t *value;
};
OX_MUST enum ox_status ox_config_read_sizes(const char *where, const json_t *json,
                                            const struct ox_size_key *keys, uint32_t count);
bool ox_config_write_sizes(json_t *object, const struct ox_size_key *keys, uint32_t count);
OX_MUST enum ox_status ox_config_read_float(const char *where, const json_t *json, const char *key,
                                            float *value);
/* Rotary embedding: rope.c. Reads rope_theta and rope_scaling of transformers v4, or rope_parameters of v5, after the
 * number of positions; refuses a rope_type that the engine does not compute. */
OX_MUST enum ox_status ox_config_read_rope(const char *where, const json_t *json, struct ox_model_config *out);
bool ox_config_write_rope(json_t *object, const struct ox_model_config *config);
/* Refuses numbers with which there are no frequencies. */
OX_MUST enum ox_status ox_config_check_rope(const char *where, const struct ox_model_config *config);
/* The double nearest to the shortest decimal fraction that is this float: 1e-5f becomes 1e-5. */
double ox_shortest_double(float value);

#ifdef __cplusplus
}
#endif
#endif
