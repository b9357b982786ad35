/* What the engine knows about a model family: how its config.json is read and written, and which tensors its files
 * hold. A family is one struct in a file of its kin, which the table in engine/family/families.c names. */
#ifndef OX_ENGINE_FAMILIES_H
#define OX_ENGINE_FAMILIES_H

#include "engine/family/model_config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A dimension of a tensor, derived from the configuration. */
enum ox_dim {
    OX_DIM_NONE, /* a dimension that the tensor lacks */
    OX_DIM_VOCAB,
    OX_DIM_CONTEXTS,
    OX_DIM_HIDDEN,
    OX_DIM_WIDTH,
    OX_DIM_HEAD, /* head_dim */
    OX_DIM_HEADS, /* their number */
    OX_DIM_Q,   /* heads * head_dim */
    OX_DIM_KV,  /* kv_heads * head_dim */
    OX_DIM_QKV, /* Q + 2 KV */
    OX_DIM_QUERIES, /* of latent attention: of all heads; likewise keys with values, and values */
    OX_DIM_KEYS_VALUES,
    OX_DIM_VALUES,
    OX_DIM_Q_RANK,
    OX_DIM_KV_RANK,
    OX_DIM_KV_RANK_ROTATED, /* KV_RANK + the rotated part of a key */
    OX_DIM_GATE_UP, /* 2 WIDTH */
    OX_DIM_ONE,
    OX_DIM_EXPERTS,
    OX_DIM_EXPERT_WIDTH,
    OX_DIM_EXPERT_GATE_UP, /* 2 EXPERT_WIDTH */
    OX_DIM_SHARED_WIDTH,
    OX_DIM_LIMBS, /* OX_LIMBS, of which files have the sums */
};

/* One tensor of the files, in the order of its unit's flat vector. Neighbours of one role lie together without padding,
 * so that they are one matrix. Rows of an MLP's roles are there in dense layers alone, those of a mixture's in sparse
 * ones. Neighbours of one role that stand for every expert are repeated together, expert by expert. */
struct ox_family_row {
    enum ox_unit_kind unit;
    enum ox_role role;
    const char *name; /* without the family's prefix; the first %u is the layer, the second the expert */
    bool bare;        /* written without the prefix */
    enum ox_dim shape[3];
    bool each_expert; /* one tensor for every expert */
    bool fp32;        /* files have it in F32, whatever the others are in */
    bool fixed;       /* never trained */
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

/* A key of config.json whose value goes into a member of struct ox_model_config, and back. */
enum ox_value_key_kind {
    OX_KEY_FLAG,         /* a bool */
    OX_KEY_NUMBER,       /* a double */
    OX_KEY_INVERSE,      /* a double, which becomes one divided by the number */
    OX_KEY_INVERSE_ROOT, /* a double, which becomes one divided by the number's root; the number is an integer */
};
struct ox_value_key {
    const char *key;
    enum ox_value_key_kind kind;
    size_t offset;  /* of the member */
    double missing; /* what a missing key means; null means 0: nothing of that */
};

/* What a family's keys mean where they are missing; zeros mean what ox_decoder_parse says. */
struct ox_family_defaults {
    uint32_t vocab, heads, contexts, kv_heads, head_dim; /* vocab, heads: 0: the key must be there */
    float norm_eps;
    double rope_theta;
};

struct ox_family {
    const char *model_type;
    const char *architecture; /* name of the model with its head */
    const char *base_model;   /* name of the model without it */
    const char *prefix;       /* front of tensor names as written; files may leave it out */
    const struct ox_family_row *const *rows; /* groups, each of which ends with a row without a name; ends with NULL */
    const char *const *ignored; /* names without prefix that are in files and carry no weight; ends with NULL */
    const char *lora_targets;   /* the modules that PEFT adapts if none are named; NULL: none */
    /* What transformers 5, and so PEFT, calls a part of the names in files: that, and its own; NULL: nothing. And the
     * old names of modules that are parameters of all experts there: router, gate, up, down; NULL: PEFT takes names as
     * they are. */
    const char *module_names[2];
    const char *const *expert_names;
    bool layers_beyond; /* files may have layers behind the last, which predict more tokens and are left out */
    bool tied_by_default;       /* meaning of a missing tie_word_embeddings */
    /* what it computes without a key that says so */
    enum ox_norm_kind norm;
    enum ox_activation act;
    float gain_offset;
    bool parallel, rope_neighbours;
    bool head_dim_is_derived; /* the key is written only if it does not follow from the other sizes */
    struct ox_family_defaults defaults;
    const struct ox_fixed_key *fixed_keys; /* ends with a row without a key; or NULL */
    const char *const *keys[4]; /* groups of other keys that are read or have no effect; each ends with NULL */
    const struct ox_value_key *values; /* ends with a row without a key; or NULL */
    /* Reads the family's own keys; `out` already holds what all families share. */
    enum ox_status (*parse)(const char *where, const json_t *json, const struct ox_family *family,
                            struct ox_model_config *out);
    /* Writes the same keys; false when memory is short. */
    bool (*write)(const struct ox_family *family, const struct ox_model_config *config, bool has_original, json_t *out);
};

extern const struct ox_family ox_family_cohere2, ox_family_deepseek_v2, ox_family_deepseek_v3, ox_family_exaone4,
    ox_family_gemma2, ox_family_gemma3, ox_family_glm4_moe, ox_family_gpt2, ox_family_gpt_oss, ox_family_granite,
    ox_family_granitemoe, ox_family_llama, ox_family_mistral, ox_family_mixtral, ox_family_olmo2, ox_family_olmo3,
    ox_family_olmoe, ox_family_phi3, ox_family_qwen2, ox_family_qwen2_moe, ox_family_qwen3, ox_family_qwen3_moe,
    ox_family_smollm3;

/* Row `idx` of a family's tensors, in the order of its units' vectors; NULL behind the last. */
const struct ox_family_row *ox_family_row_at(const struct ox_family *family, uint32_t idx);

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
/* What YaRN multiplies a score by where a model's own attention asks for that, by mscale_all_dim. */
double ox_config_rope_score_scale(const struct ox_rope_scaling *scaling);
/* Refuses numbers with which there are no frequencies. */
OX_MUST enum ox_status ox_config_check_rope(const char *where, const struct ox_model_config *config);
/* False when memory is short. */
bool ox_config_put(json_t *object, const char *key, json_t *value);
/* The double nearest to the shortest decimal fraction that is this float: 1e-5f becomes 1e-5. */
double ox_shortest_double(float value);

#ifdef __cplusplus
}
#endif
#endif
