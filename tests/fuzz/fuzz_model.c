/* A config.json: what parses builds a model whose tensors lie in their units and are found by name, and is written as
 * a config.json that means the same. */
#include "tests/fuzz/fuzz.h"

#include "base/json.h"
#include "engine/model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS_MAX = 40, HEAD_DIM_MAX = 4096 };

static const char where[] = "config.json";

static bool same_config(const struct ox_model_config *a, const struct ox_model_config *b) {
    const struct ox_rope_scaling *const rope = &a->rope_scaling, *const other = &b->rope_scaling;
    return strcmp(a->family, b->family) == 0 && a->vocab == b->vocab && a->hidden == b->hidden &&
           a->layers == b->layers && a->heads == b->heads && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
           a->width == b->width && a->contexts == b->contexts && a->norm == b->norm && a->act == b->act &&
           a->layout == b->layout && a->norm_eps == b->norm_eps && a->rope == b->rope &&
           a->rope_theta == b->rope_theta && a->rotary_dim == b->rotary_dim &&
           memcmp(rope, other, sizeof *rope) == 0 && a->local_theta == b->local_theta &&
           a->gain_offset == b->gain_offset && a->embed_scale == b->embed_scale &&
           a->residual_scale == b->residual_scale && a->attention_scale == b->attention_scale &&
           a->attention_cap == b->attention_cap && a->logit_cap == b->logit_cap &&
           fabs(a->logit_scale - b->logit_scale) <= 1e-15 * fabs(a->logit_scale) && /* written as its inverse */
           a->window == b->window &&
           memcmp(&a->windowed, &b->windowed, sizeof a->windowed) == 0 &&
           memcmp(&a->unrotated, &b->unrotated, sizeof a->unrotated) == 0 && a->tied == b->tied &&
           a->attention_bias == b->attention_bias && a->mlp_bias == b->mlp_bias && a->norm_bias == b->norm_bias &&
           a->out_bias == b->out_bias && a->init_range == b->init_range && a->bos_id == b->bos_id &&
           a->eos_id == b->eos_id;
}

static void check_written(const struct ox_model_config *config, const json_t *original) {
    struct ox_model_config again;
    json_t *json = NULL;
    FUZZ_CHECK(ox_model_config_json(config, original, "bfloat16", &json) == OX_OK);
    char *const text = json_dumps(json, 0);
    json_decref(json);
    FUZZ_CHECK(text != NULL && ox_json_parse(where, text, strlen(text), &json) == OX_OK);
    FUZZ_CHECK(ox_model_config_parse(where, json, &again) == OX_OK);
    FUZZ_CHECK(same_config(config, &again));
    json_decref(json);
    free(text);
}

static void check_tensors(const struct ox_model *model) {
    uint64_t params = 0;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        const struct ox_unit *const unit = &model->units[i];
        uint64_t end = 0;
        for (uint32_t j = 0; j < unit->tensor_count; j++) {
            const struct ox_tensor *const tensor = &model->tensors[unit->tensor_first + j];
            FUZZ_CHECK(tensor->unit_idx == i && tensor->offset >= end && tensor->count > 0);
            const uint64_t depth = tensor->rank == 3 ? tensor->shape[2] : 1;
            FUZZ_CHECK(tensor->shape[0] * tensor->shape[1] * depth == tensor->count);
            FUZZ_CHECK(ox_model_find_tensor(model, tensor->name) == (int64_t)(unit->tensor_first + j));
            FUZZ_CHECK(isfinite(ox_model_init_value(model, tensor, i, tensor->count - 1)));
            end = tensor->offset + tensor->count;
            params += tensor->limbs ? 0 : tensor->count; /* limbs are no parameters */
        }
        FUZZ_CHECK(end <= unit->elem_count && unit->elem_count % OX_GROUP_ELEMS == 0);
    }
    FUZZ_CHECK(params == model->param_count);
}

static void check_config(const struct ox_model_config *config, const json_t *json) {
    static double inv_freq[HEAD_DIM_MAX / 2];
    struct ox_model *model = NULL;
    check_written(config, NULL);
    check_written(config, json);
    if (config->rope) {
        FUZZ_CHECK(ox_model_rope_inv_freq(config, 0, config->contexts, inv_freq) > 0.0);
    }
    if (config->layers > LAYERS_MAX) {
        return; /* more of the same, slowly */
    }
    const enum ox_status status = ox_model_build(config, &model);
    if (status != OX_OK) {
        FUZZ_CHECK(model == NULL && status == OX_E_CONFIG && strstr(ox_error_text(), "parameters") != NULL);
        return;
    }
    check_tensors(model);
    ox_model_close(&model);
}

int fuzz_model(const uint8_t *data, size_t bytes) {
    json_t *json = NULL;
    struct ox_model_config config;
    enum ox_status status = ox_json_parse(where, (const char *)data, bytes, &json);
    if (status == OX_OK) {
        status = ox_model_config_parse(where, json, &config);
    }
    fuzz_accepted = status == OX_OK;
    if (status == OX_OK) {
        check_config(&config, json);
    } else {
        fuzz_check_failure(status, where);
    }
    json_decref(json);
    return 0;
}
