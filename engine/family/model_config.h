/* A model's configuration: what a config.json says, and the names of what its tensors and units do. */
#ifndef OX_ENGINE_MODEL_CONFIG_H
#define OX_ENGINE_MODEL_CONFIG_H

#include "base/status.h"
#include "kernels/ops.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_LAYERS_MAX = 1 << 14 };

/* Some of a model's layers. */
struct ox_layers {
    uint64_t bits[OX_LAYERS_MAX / 64];
};
static inline bool ox_layers_has(const struct ox_layers *layers, uint32_t layer) {
    return layer < OX_LAYERS_MAX && (layers->bits[layer / 64] >> layer % 64 & 1) != 0;
}
/* Adds layers `first` to `last` - 1. */
void ox_layers_add(struct ox_layers *layers, uint32_t first, uint32_t last);
/* The first of `count` layers that is in the set; `count` where none is. */
uint32_t ox_layers_first(const struct ox_layers *layers, uint32_t count);
/* Whether the set is a model's last layers, from the first one in it on; none is that too. */
bool ox_layers_are_last(const struct ox_layers *layers, uint32_t count);

/* What a tensor does; forward and backward ask for tensors by role. A role that a family lacks has no tensor. Roles
 * made of several file tensors (q, k, v; gate, up) lie one after the other without padding, so that they are one
 * matrix. */
enum ox_role {
    OX_ROLE_EMBED,      /* (vocab, hidden) */
    OX_ROLE_POSITION,   /* (contexts, hidden) */
    OX_ROLE_NORM1, OX_ROLE_NORM1_BIAS, /* before attention (hidden) */
    OX_ROLE_QKV, OX_ROLE_QKV_BIAS,     /* ((heads + 2 kv_heads) * head_dim, hidden) or its transpose */
    OX_ROLE_Q_A_NORM, OX_ROLE_KV_A_NORM, /* of latent attention: (q rank), (kv rank); QKV then makes what they norm */
    OX_ROLE_Q_B, OX_ROLE_Q_B_BIAS,       /* (heads * (rest + rotated), q rank) */
    OX_ROLE_KV_B, OX_ROLE_KV_B_BIAS,     /* (heads * (rest + value), kv rank) */
    OX_ROLE_Q_NORM, OX_ROLE_K_NORM,    /* before the rotation: (head_dim) for each head, or of all heads as one */
    OX_ROLE_OUT, OX_ROLE_OUT_BIAS,     /* (hidden, heads * head_dim) */
    OX_ROLE_POST1, OX_ROLE_POST1_BIAS, /* behind attention, before its result is added */
    OX_ROLE_NORM2, OX_ROLE_NORM2_BIAS, /* before the MLP */
    OX_ROLE_GATE_UP, OX_ROLE_GATE_UP_BIAS, /* (2 width, hidden) as [gate; up], or (width, hidden): up alone */
    OX_ROLE_DOWN, OX_ROLE_DOWN_BIAS,       /* (hidden, width) */
    OX_ROLE_POST2, OX_ROLE_POST2_BIAS,     /* behind the MLP */
    OX_ROLE_SINKS,                         /* (heads): of attention */
    OX_ROLE_ROUTER, OX_ROLE_ROUTER_BIAS,   /* (experts, hidden) */
    OX_ROLE_CHOICE_BIAS,                   /* (experts, OX_LIMBS): chooses, but does not weigh; never trained */
    OX_ROLE_EXPERT_GATE_UP, OX_ROLE_EXPERT_GATE_UP_BIAS, /* of all experts: (experts, 2 expert width, hidden) */
    OX_ROLE_EXPERT_DOWN, OX_ROLE_EXPERT_DOWN_BIAS,       /* (experts, hidden, expert width) */
    OX_ROLE_SHARED_GATE_UP, OX_ROLE_SHARED_GATE_UP_BIAS, /* an expert of all tokens: (2 shared width, hidden) */
    OX_ROLE_SHARED_DOWN, OX_ROLE_SHARED_DOWN_BIAS,       /* (hidden, shared width) */
    OX_ROLE_SHARED_GATE, OX_ROLE_SHARED_GATE_BIAS,       /* (1, hidden): how much of it a token gets */
    OX_ROLE_FINAL_NORM, OX_ROLE_FINAL_NORM_BIAS,
    OX_ROLE_HEAD, /* (vocab, hidden); absent when tied: the head then uses OX_ROLE_EMBED */
    /* Low-rank adapters, in a unit beside the stage's own: A (r, in) and B (out, r) of each file tensor. Of the
     * embedding, whose inputs are tokens, A is (r, vocab) and B (hidden, r). */
    OX_ROLE_HEAD_A, OX_ROLE_HEAD_B, OX_ROLE_EMBED_A, OX_ROLE_EMBED_B,
    OX_ROLE_QKV_A, OX_ROLE_QKV_B, OX_ROLE_Q_B_A, OX_ROLE_Q_B_B, OX_ROLE_KV_B_A, OX_ROLE_KV_B_B,
    OX_ROLE_OUT_A, OX_ROLE_OUT_B,
    OX_ROLE_GATE_UP_A, OX_ROLE_GATE_UP_B, OX_ROLE_DOWN_A, OX_ROLE_DOWN_B,
    OX_ROLE_SHARED_GATE_UP_A, OX_ROLE_SHARED_GATE_UP_B, OX_ROLE_SHARED_DOWN_A, OX_ROLE_SHARED_DOWN_B,
    OX_ROLE_ROUTER_A, OX_ROLE_ROUTER_B, OX_ROLE_SHARED_GATE_A, OX_ROLE_SHARED_GATE_B,
    /* of all experts as one: A (experts * r, in), and B (out, r * experts) whose columns have the expert last */
    OX_ROLE_EXPERT_GATE_UP_A, OX_ROLE_EXPERT_GATE_UP_B, OX_ROLE_EXPERT_DOWN_A, OX_ROLE_EXPERT_DOWN_B,
    /* magnitudes (out) of rows, in the order of the A above */
    OX_ROLE_QKV_M, OX_ROLE_Q_B_M, OX_ROLE_KV_B_M, OX_ROLE_OUT_M, OX_ROLE_GATE_UP_M, OX_ROLE_DOWN_M,
    OX_ROLE_SHARED_GATE_UP_M, OX_ROLE_SHARED_DOWN_M,
    OX_ROLE_COUNT
};

/* UNIFORM: within 1/sqrt of the last extent. NORMAL_ONE: with a deviation of 1. */
enum ox_init_kind {
    OX_INIT_NORMAL, OX_INIT_NORMAL_RESIDUAL, OX_INIT_NORMAL_ONE, OX_INIT_ZERO, OX_INIT_ONE, OX_INIT_UNIFORM
};

/* How rotary frequencies are scaled to reach more positions than a model was first trained on, as in transformers'
 * modeling_rope_utils.py; rope.c has the formulas. */
enum ox_rope_kind {
    OX_ROPE_DEFAULT, /* not at all */
    OX_ROPE_LINEAR,  /* all by `factor` */
    OX_ROPE_DYNAMIC, /* by the length of a text, beyond the model's positions alone */
    OX_ROPE_LLAMA3,  /* wavelengths above original / low_factor by `factor`, none below original / high_factor */
    OX_ROPE_YARN,    /* pairs that turn fewer than `slow` times in `original` positions, none above `fast` times */
    OX_ROPE_LONG,    /* every pair by a number of its own; other numbers beyond `original` positions */
};
enum { OX_ROPE_FACTORS_MAX = 256 };
struct ox_rope_scaling {
    enum ox_rope_kind kind;
    double factor;
    double low_factor, high_factor;
    double fast, slow;
    double attention;          /* cosines and sines are multiplied by it; 0: by what follows from the rest */
    double mscale, mscale_all; /* of YARN, for that; 0: not given */
    bool truncate;             /* YARN: pairs are counted whole */
    uint32_t original;         /* positions that the model was first trained on */
    uint32_t factor_count;
    double short_factors[OX_ROPE_FACTORS_MAX], long_factors[OX_ROPE_FACTORS_MAX]; /* LONG: (factor_count) */
};

/* Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, 2.1): keys and values of all heads come from one narrow
 * vector of a token, and so may queries. A part of every key is rotated, the same for all heads. Attention itself is
 * that of other models, with head_dim elements a head: [rotated, rest] of queries and keys, and values, each filled up
 * with zeros. */
struct ox_latent {
    uint32_t kv_rank; /* 0: the model has ordinary attention */
    uint32_t q_rank;  /* 0: queries come from the block's input */
    uint32_t rotated, rest, value; /* elements of a head */
};
/* Elements of a query, or of a key. */
static inline uint32_t ox_latent_query(const struct ox_latent *latent) {
    return latent->rotated + latent->rest;
}

/* A mixture of experts in the place of a block's MLP. */
struct ox_mixture {
    struct ox_router router; /* experts: 0: the model has none */
    double balance;  /* the balance loss's factor in config.json, router_aux_loss_coef */
    bool asks_balance; /* which asks for that loss, by output_router_logits */
    struct ox_gate gate;
    enum ox_weight_layout layout; /* of the matrices of experts */
    uint32_t width;          /* of an expert */
    uint32_t shared_width;   /* of an expert that every row has; 0: none */
    struct ox_layers dense;  /* layers with an MLP instead */
    bool mxfp4; /* files may have the matrices of experts in MXFP4, which has their input last */
    bool packed; /* files have one tensor of all experts where others have one for each; they say so, not config.json */
    uint32_t per_unit; /* so many experts of a block are a unit of their own; 0: all are in their block's. No key of
                          config.json, and no bit of a result depends on it */
};

/* Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685) beside matrices that stay as they are, as PEFT defines them: a
 * matrix W computes W x + scale * B (A x). */
enum { OX_LORA_TARGETS_BYTES = 1024, OX_LORA_R_MAX = 4096, OX_LORA_ALPHA = 8, OX_LORA_ALPHA_MAX = 1000000 };
/* The name of a head in files, which says of a model in training that it is not tied. */
#define OX_HEAD_NAME "lm_head.weight"

/* Which biases of the model are trained beside adapters: none, all, or those of modules that have one. */
enum ox_lora_bias { OX_LORA_BIAS_NONE, OX_LORA_BIAS_ALL, OX_LORA_BIAS_LORA_ONLY };
struct ox_lora {
    uint32_t r;    /* 0: the model has none */
    double alpha;
    bool rslora;   /* scale is alpha / sqrt(r), not alpha / r */
    double dropout; /* share of an adapter's input that is zero in training */
    char targets[OX_LORA_TARGETS_BYTES]; /* names of modules, with commas between, or "all-linear"; "": the family's, or
                                            with parameters none */
    char parameters[OX_LORA_TARGETS_BYTES]; /* of a mixture: names of parameters of all experts, or of a router */
    bool dora;    /* modules have magnitudes, and their adapters give directions (arXiv 2402.09353) */
    bool doubled; /* the experts' gate and up, which are one parameter, have twice r and twice alpha */
    bool one_for_both; /* of an adapter's file: PEFT trains one for a tied table and its head (ensure_weight_tying) */
    enum ox_lora_bias bias;
    char modules_to_save[OX_LORA_TARGETS_BYTES]; /* names of modules that are trained whole, with commas between */
};
float ox_lora_scale(const struct ox_lora *lora, enum ox_role adapter);

struct ox_model_config {
    char family[32]; /* model_type: "llama", "gpt2" ... */
    uint32_t vocab, hidden, layers, heads, kv_heads, head_dim, width /* MLP */, contexts;
    enum ox_norm_kind norm;
    enum ox_activation act;
    enum ox_weight_layout layout; /* layout of a block's matrices */
    float norm_eps;
    float gain_offset; /* a norm's gain is its tensor plus this */
    bool rope;          /* else learned positions */
    double rope_theta;
    double rotary_part;  /* share of a head's elements, the first ones, that are rotated */
    uint32_t rotary_dim; /* the elements that this makes */
    struct ox_rope_scaling rope_scaling;
    double local_theta;   /* rotation of the layers in `windowed`, which nothing scales; 0: as in the others */
    bool rope_neighbours; /* pairs (2i, 2i + 1) are rotated, not (i, i + d/2) */
    uint32_t window;      /* attention window of the layers in `windowed`; 0: none */
    struct ox_layers windowed, unrotated; /* layers with the window, and layers without rotary embedding */
    struct ox_latent latent;
    struct ox_mixture mixture;
    double clip_qkv; /* queries, keys and values are clamped to +- that; 0: not */
    bool parallel;        /* attention and MLP read one normed input, and both are added to the block's */
    /* Factors; 0: none. */
    double embed_scale;     /* of embeddings */
    bool embed_scale_rounds; /* to the type of the weights */
    double residual_scale;  /* of what a half adds */
    double attention_scale; /* of scores, instead of 1/sqrt(head_dim) */
    double attention_cap;   /* scores s become cap * tanh(s / cap) */
    double logit_scale, logit_cap; /* logits, likewise */
    bool tied;
    bool attention_bias, mlp_bias, norm_bias, out_bias, qk_norm;
    double init_range;  /* standard deviation of a fresh normal tensor */
    int64_t bos_id, eos_id; /* -1: none */
    struct ox_lora lora;    /* no key of config.json */
    uint32_t shared_layers; /* so many blocks in succession share one's weights; 0: each has its own. No such key */
    bool whole_matrices;    /* no key of config.json: Muon updates matrices of blocks (struct ox_unit) */
    uint32_t tensor_groups; /* features are computed in so many groups; 0: 1. No key of config.json */
};

/* Whether the layer has a mixture of experts. */
static inline bool ox_layer_is_sparse(const struct ox_model_config *config, uint32_t layer) {
    return config->mixture.router.experts != 0 && !ox_layers_has(&config->mixture.dense, layer);
}

/* Whether a role is one that each expert of a mixture has by itself, and an expert's elements in it; 0: it is none. */
static inline bool ox_role_is_of_expert(enum ox_role role) {
    return role >= OX_ROLE_EXPERT_GATE_UP && role <= OX_ROLE_EXPERT_DOWN_BIAS;
}
static inline uint64_t ox_expert_elems(const struct ox_model_config *config, enum ox_role role) {
    const uint64_t gate_up = 2 * (uint64_t)config->mixture.width, hidden = config->hidden;
    return role == OX_ROLE_EXPERT_GATE_UP        ? gate_up * hidden
           : role == OX_ROLE_EXPERT_GATE_UP_BIAS ? gate_up
           : role == OX_ROLE_EXPERT_DOWN         ? config->mixture.width * hidden
           : role == OX_ROLE_EXPERT_DOWN_BIAS    ? hidden
                                                 : 0;
}

enum ox_unit_kind { OX_UNIT_EMBED, OX_UNIT_BLOCK, OX_UNIT_HEAD, OX_UNIT_BESIDE /* another unit of its stage */,
                    OX_UNIT_EXPERTS /* some of a block's */ };

/* Reads a config.json of transformers v4 or v5. Whatever it asks for and the engine does not do (an unknown model_type
 * or rope_type, another activation, dropout of attention, quantised weights) is OX_E_CONFIG with key and value. gpt2's
 * dropout, which all published folders ask for, and unknown keys are warnings in the log. `where` names the source in
 * errors. */
OX_MUST enum ox_status ox_model_config_parse(const char *where, const json_t *json,
                                             struct ox_model_config *out);

/* Finds the text model in a config.json of several parts, such as text and pictures: *out is its own config.json, which
 * the caller owns; NULL where there are no parts. OX_E_CONFIG where the text model is not supported, or where nothing
 * is known about the whole. */
OX_MUST enum ox_status ox_text_config(const char *where, const json_t *json, json_t **out);
/* Writes the text model's own name of a tensor of such a folder; false if it is of another part. */
bool ox_text_tensor_name(const char *name, char *out, size_t bytes);

/* OX_E_CONFIG unless the sizes are those of a model: none zero, none absurd, heads shared evenly. */
OX_MUST enum ox_status ox_model_config_check(const char *where, const struct ox_model_config *config);

/* Makes a config.json that transformers loads (both dtype and torch_dtype, architectures, every size); unknown keys of
 * `original` (may be NULL) are carried over. The caller owns the result. */
OX_MUST enum ox_status ox_model_config_json(const struct ox_model_config *config, const json_t *original,
                                            const char *dtype, json_t **out);

/* How many rotations a model has: none, one, or another one for its layers with a window. */
uint32_t ox_model_rotations(const struct ox_model_config *config);
/* Writes the rotary_dim / 2 inverse frequencies of a rotation for a run whose sequences have at most so many positions.
 * Returns what cosines and sines are multiplied by. */
double ox_model_rope_inv_freq(const struct ox_model_config *config, uint32_t rotation, uint32_t positions,
                              double *inv_freq);

#ifdef __cplusplus
}
#endif
#endif
