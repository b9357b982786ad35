/* The table of known shapes. */
#include "engine/hf/shapes.h"

#include "base/json.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char llama31_rope[] =
    "{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
    "\"original_max_position_embeddings\":8192}}";
static const char llama32_rope[] =
    "{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
    "\"original_max_position_embeddings\":8192}}";
static const char phi3_more[] =
    "{\"sliding_window\":2047,\"original_max_position_embeddings\":4096,\"pad_token_id\":32000}";
static const char phi4_more[] = "{\"original_max_position_embeddings\":16384,\"pad_token_id\":100349}";

/* Mixtures of experts: how many, how many a token gets, how wide one is. */
static const char mixtral_more[] = "{\"num_local_experts\":8,\"num_experts_per_tok\":2}";
static const char olmoe_more[] = "{\"num_experts\":64,\"num_experts_per_tok\":8}";
static const char qwen15_moe_more[] = "{\"num_experts\":60,\"num_experts_per_tok\":4,\"moe_intermediate_size\":1408,"
                                      "\"shared_expert_intermediate_size\":5632}";
static const char qwen3_30b_more[] = "{\"num_experts\":128,\"num_experts_per_tok\":8,\"moe_intermediate_size\":768,"
                                     "\"norm_topk_prob\":true}";
static const char qwen3_235b_more[] = "{\"num_experts\":128,\"num_experts_per_tok\":8,\"moe_intermediate_size\":1536,"
                                      "\"norm_topk_prob\":true}";
static const char glm45_air_more[] =
    "{\"n_routed_experts\":128,\"num_experts_per_tok\":8,\"moe_intermediate_size\":1408,\"n_shared_experts\":1,"
    "\"first_k_dense_replace\":1,\"attention_bias\":true,\"partial_rotary_factor\":0.5}";
static const char glm45_more[] =
    "{\"n_routed_experts\":160,\"num_experts_per_tok\":8,\"moe_intermediate_size\":1536,\"n_shared_experts\":1,"
    "\"first_k_dense_replace\":3,\"attention_bias\":true,\"use_qk_norm\":true,\"routed_scaling_factor\":2.5,"
    "\"partial_rotary_factor\":0.5}";
static const char gpt_oss_20b_more[] = "{\"num_local_experts\":32,\"num_experts_per_tok\":4}";
static const char gpt_oss_120b_more[] = "{\"num_local_experts\":128,\"num_experts_per_tok\":4}";

/* Name, alias, family; tokens, width, MLP, layers, heads, heads of keys and values, elements of a head (0: width /
 * heads), positions, theta of the rotary embedding, a tied table; further keys. */
static const struct ox_known_shape shapes[] = {
    {"gpt2", "gpt2-124m", "gpt2", 50257, 768, 0, 12, 12, 12, 0, 1024, 0, true, NULL},
    {"gpt2-medium", "gpt2-355m", "gpt2", 50257, 1024, 0, 24, 16, 16, 0, 1024, 0, true, NULL},
    {"gpt2-large", "gpt2-774m", "gpt2", 50257, 1280, 0, 36, 20, 20, 0, 1024, 0, true, NULL},
    {"gpt2-xl", "gpt2-1.5b", "gpt2", 50257, 1600, 0, 48, 25, 25, 0, 1024, 0, true, NULL},
    {"llama-2-7b", "llama-7b", "llama", 32000, 4096, 11008, 32, 32, 32, 0, 4096, 1e4, false, NULL},
    {"llama-2-13b", "llama-13b", "llama", 32000, 5120, 13824, 40, 40, 40, 0, 4096, 1e4, false, NULL},
    {"llama-2-70b", NULL, "llama", 32000, 8192, 28672, 80, 64, 8, 0, 4096, 1e4, false, NULL},
    {"llama-3-8b", NULL, "llama", 128256, 4096, 14336, 32, 32, 8, 0, 8192, 5e5, false, NULL},
    {"llama-3.1-8b", "llama-8b", "llama", 128256, 4096, 14336, 32, 32, 8, 0, 131072, 5e5, false, llama31_rope},
    {"llama-3.1-70b", "llama-70b", "llama", 128256, 8192, 28672, 80, 64, 8, 0, 131072, 5e5, false, llama31_rope},
    {"llama-3.1-405b", "llama-405b", "llama", 128256, 16384, 53248, 126, 128, 8, 0, 131072, 5e5, false, llama31_rope},
    {"llama-3.2-1b", "llama-1b", "llama", 128256, 2048, 8192, 16, 32, 8, 64, 131072, 5e5, true, llama32_rope},
    {"llama-3.2-3b", "llama-3b", "llama", 128256, 3072, 8192, 28, 24, 8, 128, 131072, 5e5, true, llama32_rope},
    {"tinyllama-1.1b", "tinyllama", "llama", 32000, 2048, 5632, 22, 32, 4, 0, 2048, 1e4, false, NULL},
    {"smollm2-135m", NULL, "llama", 49152, 576, 1536, 30, 9, 3, 0, 8192, 1e5, true, NULL},
    {"smollm2-360m", NULL, "llama", 49152, 960, 2560, 32, 15, 5, 0, 8192, 1e5, true, NULL},
    {"smollm2-1.7b", NULL, "llama", 49152, 2048, 8192, 24, 32, 32, 0, 8192, 1.3e5, true, NULL},
    {"mistral-7b", NULL, "mistral", 32768, 4096, 14336, 32, 32, 8, 0, 32768, 1e6, false, NULL},
    {"mistral-nemo-12b", "mistral-12b", "mistral", 131072, 5120, 14336, 40, 32, 8, 128, 131072, 1e6, false, NULL},
    {"qwen2.5-0.5b", NULL, "qwen2", 151936, 896, 4864, 24, 14, 2, 0, 32768, 1e6, true, NULL},
    {"qwen2.5-1.5b", NULL, "qwen2", 151936, 1536, 8960, 28, 12, 2, 0, 32768, 1e6, true, NULL},
    {"qwen2.5-3b", NULL, "qwen2", 151936, 2048, 11008, 36, 16, 2, 0, 32768, 1e6, true, NULL},
    {"qwen2.5-7b", NULL, "qwen2", 152064, 3584, 18944, 28, 28, 4, 0, 32768, 1e6, false, NULL},
    {"qwen2.5-14b", NULL, "qwen2", 152064, 5120, 13824, 48, 40, 8, 0, 32768, 1e6, false, NULL},
    {"qwen2.5-32b", NULL, "qwen2", 152064, 5120, 27648, 64, 40, 8, 0, 32768, 1e6, false, NULL},
    {"qwen2.5-72b", NULL, "qwen2", 152064, 8192, 29568, 80, 64, 8, 0, 32768, 1e6, false, NULL},
    {"qwen3-0.6b", NULL, "qwen3", 151936, 1024, 3072, 28, 16, 8, 128, 40960, 1e6, true, NULL},
    {"qwen3-1.7b", NULL, "qwen3", 151936, 2048, 6144, 28, 16, 8, 128, 40960, 1e6, true, NULL},
    {"qwen3-4b", NULL, "qwen3", 151936, 2560, 9728, 36, 32, 8, 128, 40960, 1e6, true, NULL},
    {"qwen3-8b", NULL, "qwen3", 151936, 4096, 12288, 36, 32, 8, 128, 40960, 1e6, false, NULL},
    {"qwen3-14b", NULL, "qwen3", 151936, 5120, 17408, 40, 40, 8, 128, 40960, 1e6, false, NULL},
    {"qwen3-32b", NULL, "qwen3", 151936, 5120, 25600, 64, 64, 8, 128, 40960, 1e6, false, NULL},
    {"phi-3-mini", "phi-3-mini-4k", "phi3", 32064, 3072, 8192, 32, 32, 32, 0, 4096, 1e4, false, phi3_more},
    {"phi-4", "phi-4-14b", "phi3", 100352, 5120, 17920, 40, 40, 10, 0, 16384, 2.5e5, false, phi4_more},
    {"mixtral-8x7b", NULL, "mixtral", 32000, 4096, 14336, 32, 32, 8, 0, 32768, 1e6, false, mixtral_more},
    {"mixtral-8x22b", NULL, "mixtral", 32000, 6144, 16384, 56, 48, 8, 0, 65536, 1e6, false, mixtral_more},
    {"olmoe-1b-7b", "olmoe-7b", "olmoe", 50304, 2048, 1024, 16, 16, 16, 0, 4096, 1e4, false, olmoe_more},
    {"qwen1.5-moe-a2.7b", NULL, "qwen2_moe", 151936, 2048, 5632, 24, 16, 16, 0, 8192, 1e6, false, qwen15_moe_more},
    {"qwen3-30b-a3b", "qwen3-30b", "qwen3_moe", 151936, 2048, 6144, 48, 32, 4, 128, 40960, 1e6, false, qwen3_30b_more},
    {"qwen3-235b-a22b", "qwen3-235b", "qwen3_moe", 151936, 4096, 12288, 94, 64, 4, 128, 40960, 1e6, false,
     qwen3_235b_more},
    {"glm-4.5-air", NULL, "glm4_moe", 151552, 4096, 10944, 46, 96, 8, 128, 131072, 1e6, false, glm45_air_more},
    {"glm-4.5", NULL, "glm4_moe", 151552, 5120, 12288, 92, 96, 8, 128, 131072, 1e6, false, glm45_more},
    {"gpt-oss-20b", NULL, "gpt_oss", 201088, 2880, 2880, 24, 64, 8, 64, 131072, 1.5e5, false, gpt_oss_20b_more},
    {"gpt-oss-120b", NULL, "gpt_oss", 201088, 2880, 2880, 36, 64, 8, 64, 131072, 1.5e5, false, gpt_oss_120b_more},
    {"smollm3-3b", NULL, "smollm3", 128256, 2048, 11008, 36, 16, 4, 0, 65536, 5e6, true, NULL},
};

enum { SHAPE_COUNT = sizeof shapes / sizeof *shapes };

const struct ox_known_shape *ox_shape_at(uint32_t idx) {
    return idx < SHAPE_COUNT ? &shapes[idx] : NULL;
}

const struct ox_known_shape *ox_shape_find(const char *name) {
    for (unsigned i = 0; i < SHAPE_COUNT; i++) {
        if (strcasecmp(name, shapes[i].name) == 0 ||
            (shapes[i].alias != NULL && strcasecmp(name, shapes[i].alias) == 0)) {
            return &shapes[i];
        }
    }
    return NULL;
}

/* Whether a text has the letters and digits of `name` in their order; a letter that begins `name` begins the text. */
static bool has_letters(const char *text, const char *name) {
    bool good = tolower((unsigned char)name[0]) == text[0];
    for (; *name != '\0' && good; name++) {
        if (isalnum((unsigned char)*name)) {
            text = strchr(text, tolower((unsigned char)*name));
            good = text != NULL;
            text += good;
        }
    }
    return good;
}

/* Whether two names have the same letters and digits, whatever stands between these. */
static bool same_words(const char *a, const char *b) {
    for (;; a++, b++) {
        while (*a != '\0' && !isalnum((unsigned char)*a)) {
            a++;
        }
        while (*b != '\0' && !isalnum((unsigned char)*b)) {
            b++;
        }
        if (*a == '\0' || tolower((unsigned char)*a) != tolower((unsigned char)*b)) {
            return *a == *b;
        }
    }
}

const struct ox_known_shape *ox_shape_near(const char *name) {
    for (unsigned i = 0; i < SHAPE_COUNT; i++) {
        if (same_words(shapes[i].name, name) || (shapes[i].alias != NULL && same_words(shapes[i].alias, name))) {
            return &shapes[i];
        }
    }
    for (unsigned i = 0; i < SHAPE_COUNT && strlen(name) >= 4; i++) {
        if (has_letters(shapes[i].name, name)) {
            return &shapes[i];
        }
    }
    return NULL;
}

bool ox_shape_is_kin(const char *name) {
    const size_t stem = strcspn(name, "-0123456789./");
    bool is = false;
    for (unsigned i = 0; i < SHAPE_COUNT && !is && stem >= 3 && strchr(name, '/') == NULL; i++) {
        is = strncasecmp(shapes[i].name, name, stem) == 0 && strcspn(shapes[i].name, "-0123456789.") == stem;
    }
    return is;
}

const char *ox_shape_names(char text[OX_SHAPE_NAMES_BYTES]) {
    size_t used = 0;
    for (unsigned i = 0; i < SHAPE_COUNT && used < OX_SHAPE_NAMES_BYTES; i++) {
        used += (size_t)snprintf(text + used, OX_SHAPE_NAMES_BYTES - used, "%s%s", i > 0 ? ", " : "", shapes[i].name);
    }
    return text;
}

/* A family of Qwen, and smollm3, has another epsilon than the others. */
static double epsilon_of(const char *family) {
    return strncmp(family, "qwen", 4) == 0 || strcmp(family, "smollm3") == 0 ? 1e-6 : 1e-5;
}

enum ox_status ox_shape_config(const struct ox_known_shape *s, json_t **out) {
    const bool is_gpt2 = strcmp(s->family, "gpt2") == 0;
    json_t *more = NULL;
    json_t *const json =
        is_gpt2 ? json_pack("{s:s, s:i, s:i, s:i, s:i, s:i}", "model_type", s->family, "vocab_size", (int)s->vocab,
                            "n_positions", (int)s->contexts, "n_embd", (int)s->hidden, "n_layer", (int)s->layers,
                            "n_head", (int)s->heads)
                : json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:b}", "model_type", s->family,
                            "vocab_size", (int)s->vocab, "max_position_embeddings", (int)s->contexts, "hidden_size",
                            (int)s->hidden, "intermediate_size", (int)s->width, "num_hidden_layers", (int)s->layers,
                            "num_attention_heads", (int)s->heads, "num_key_value_heads", (int)s->kv_heads,
                            "rms_norm_eps", epsilon_of(s->family), "tie_word_embeddings", s->tied);
    bool done = json != NULL;
    done = done && (is_gpt2 || s->theta == 0 || json_object_set_new(json, "rope_theta", json_real(s->theta)) == 0);
    done = done && (s->head_dim == 0 || json_object_set_new(json, "head_dim", json_integer(s->head_dim)) == 0);
    enum ox_status status = done ? OX_OK : ox_fail(OX_E_NOMEM, "%s: no memory for its shape", s->name);
    if (status == OX_OK && s->more != NULL) {
        status = ox_json_parse(s->name, s->more, strlen(s->more), &more);
    }
    if (status == OX_OK && json_object_update(json, more) != 0 && more != NULL) {
        status = ox_fail(OX_E_NOMEM, "%s: no memory for its shape", s->name);
    }
    json_decref(more);
    if (status != OX_OK) {
        json_decref(json);
        return status;
    }
    *out = json;
    return OX_OK;
}
