/* The cut of a model into groups of features: every element of every file's tensor is in one part, with the value that
 * it has without a cut. */
#include "base/json.h"
#include "engine/model/model.h"
#include "engine/model/units.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEED = 3 };

static struct ox_model_config config_of(const char *name, uint32_t groups) {
    char path[256];
    json_t *json = NULL;
    struct ox_model_config config;
    snprintf(path, sizeof path, "tests/golden/%s/config.json", name);
    REQUIRE_OK(ox_json_load(path, 1 << 20, &json));
    REQUIRE_OK(ox_model_config_parse(path, json, &config));
    json_decref(json);
    config.tensor_groups = groups;
    return config;
}

/* Every element of a tensor is in one part, which finds it again, and begins with the same value. */
static void check_tensor(const struct ox_model *whole, const struct ox_model *cut, uint32_t idx) {
    const struct ox_tensor *const tensor = &whole->tensors[idx];
    const int64_t first = ox_model_find_tensor(cut, tensor->name);
    unsigned char *const seen = calloc(tensor->count, 1);
    float *const values = malloc(tensor->count * sizeof *values), *const part_values = malloc(tensor->count * 4);
    CHECK(first >= 0 && seen != NULL && values != NULL && part_values != NULL);
    ox_model_init_values(whole, tensor, SEED, 0, tensor->count, values);
    for (uint32_t i = (uint32_t)first; i != OX_NO_TENSOR; i = cut->tensors[i].next_part) {
        const struct ox_tensor *const part = &cut->tensors[i];
        CHECK(strcmp(part->name, tensor->name) == 0 && part->role == tensor->role && part->decay == tensor->decay);
        CHECK(ox_tensor_whole_count(part) == tensor->count);
        CHECK(memcmp(part->whole, tensor->shape, sizeof part->whole) == 0);
        ox_model_init_values(cut, part, SEED, 0, part->count, part_values);
        for (uint64_t k = 0; k < part->count; k++) {
            const uint64_t at = ox_tensor_in_files(part, k);
            uint64_t idx_there = 0, together = 0;
            CHECK(at < tensor->count && seen[at]++ == 0);
            CHECK(part_values[k] == values[at] && ox_model_init_value(cut, part, SEED, k) == values[at]);
            CHECK(ox_model_part_at(cut, (uint32_t)first, at, &idx_there, &together) == i && idx_there == k);
            CHECK(together == ox_tensor_together(part, k, part->count - k));
            CHECK(together == 1 || ox_tensor_in_files(part, k + 1) == at + 1);
        }
    }
    for (uint64_t k = 0; k < tensor->count; k++) {
        CHECK(seen[k] == 1);
    }
    free(part_values);
    free(values);
    free(seen);
}

/* A group's unit has its parts alone, whole OX_GROUP_ELEMS; what is not cut is in the stage's own unit. */
static void check_units(const struct ox_model *model, uint32_t groups) {
    for (uint32_t s = 0; s < model->stage_count; s++) {
        const struct ox_unit *units[OX_MODEL_STAGE_UNITS_MAX];
        const uint32_t count = ox_model_stage_units(model, &model->units[model->stages[s]], units);
        uint32_t next = 0;
        for (uint32_t i = 0; i < count; i++) {
            CHECK(units[i]->own == model->stages[s] && units[i]->elem_count % OX_GROUP_ELEMS == 0);
            CHECK(units[i]->group == (units[i]->group == OX_NO_GROUP ? OX_NO_GROUP : next % groups));
            next += units[i]->group != OX_NO_GROUP;
            for (uint32_t k = 0; k < i; k++) {
                CHECK(units[k]->stream != units[i]->stream);
            }
        }
        const bool is_adapted = model->config.lora.r > 0 && units[0]->kind == OX_UNIT_BLOCK;
        CHECK(next == (model->config.tied && s + 1 == model->stage_count ? 0 : is_adapted ? 2 * groups : groups));
    }
    for (uint32_t g = 0; g < groups; g++) {
        const struct ox_unit *const unit = &model->units[ox_model_table_unit(model, g)];
        CHECK(unit->group == g && unit->role_offset[model->config.tied ? OX_ROLE_EMBED : OX_ROLE_HEAD] == 0);
    }
}

static void check_cut(const char *name, uint32_t groups, const char *targets) {
    struct ox_model_config one = config_of(name, 0), several = config_of(name, groups);
    struct ox_model *whole = NULL, *cut = NULL;
    if (targets != NULL) {
        one.lora = (struct ox_lora){.r = 3, .alpha = 3.0, .bias = OX_LORA_BIAS_ALL};
        snprintf(one.lora.targets, sizeof one.lora.targets, "%s", targets);
        several.lora = one.lora;
    }
    REQUIRE_OK(ox_model_build(&one, &whole));
    REQUIRE_OK(ox_model_build(&several, &cut));
    CHECK(cut->param_count == whole->param_count && cut->saved_count == whole->saved_count);
    CHECK(cut->trained_count == whole->trained_count);
    for (uint32_t i = 0; i < whole->saved_count; i++) {
        CHECK(strcmp(whole->tensors[whole->saved[i]].name, cut->tensors[cut->saved[i]].name) == 0);
        CHECK(cut->tensors[cut->saved[i]].part_first == 0);
    }
    for (uint32_t i = 0; i < whole->tensor_count; i++) {
        check_tensor(whole, cut, i);
    }
    check_units(cut, groups);
    /* freezing by parts and back keeps the units */
    const uint32_t unit_count = cut->unit_count;
    cut->tensors[cut->tensor_count - 1].trained = false;
    ox_model_settle_trained(cut);
    CHECK(cut->unit_count == unit_count && cut->trained_count < whole->trained_count);
    cut->tensors[cut->tensor_count - 1].trained = true;
    ox_model_settle_trained(cut);
    CHECK(cut->unit_count == unit_count && cut->trained_count == whole->trained_count);
    ox_model_close(&cut);
    ox_model_close(&whole);
}

static void check_refused(const char *name, uint32_t groups, const char *text) {
    const struct ox_model_config config = config_of(name, groups);
    struct ox_model *model = NULL;
    CHECK(ox_model_build(&config, &model) == OX_E_CONFIG && model == NULL);
    if (strstr(ox_error_text(), text) == NULL) {
        printf("%s\n", ox_error_text());
        CHECK(false);
    }
}

/* One group is a model without a cut, to the last offset. */
static void check_one(const char *name) {
    const struct ox_model_config none = config_of(name, 0), one = config_of(name, 1);
    struct ox_model *a = NULL, *b = NULL;
    REQUIRE_OK(ox_model_build(&none, &a));
    REQUIRE_OK(ox_model_build(&one, &b));
    CHECK(a->tensor_count == b->tensor_count && a->unit_count == b->unit_count);
    CHECK(memcmp(a->tensors, b->tensors, a->tensor_count * sizeof *a->tensors) == 0);
    ox_model_close(&b);
    ox_model_close(&a);
}

/* What lies between halves is divided among ranks: of R rows each has room for R / t, up to whole rows of each group,
 * and what passes a block is a t-th of it. */
static void check_rows(const char *name, uint32_t groups, uint32_t rows) {
    const struct ox_model_config config = config_of(name, groups);
    struct ox_model *model = NULL;
    REQUIRE_OK(ox_model_build(&config, &model));
    const struct ox_unit *const unit = ox_model_stage_unit(model, 1);
    const struct ox_shape one = {.model = model, .batch = 1, .seq = rows, .rows = rows, .compute = {.threads = 1}};
    const uint64_t whole = ox_unit_ends(&one, unit).in_bytes;
    for (uint32_t tensors = 2; tensors <= groups; tensors *= 2) {
        struct ox_shape shape = one;
        shape.features = (struct ox_feature_share){.count = groups / tensors, .ranks = tensors};
        const struct ox_unit_ends ends = ox_unit_ends(&shape, unit);
        const uint64_t each = (rows + groups - 1) / groups * (groups / tensors);
        CHECK(whole == (uint64_t)rows * config.hidden * sizeof(float));
        CHECK(ends.in_bytes == each * config.hidden * sizeof(float) && ends.out_bytes == ends.in_bytes);
        CHECK(rows % groups != 0 || ends.in_bytes * tensors == whole);
        REQUIRE_OK(ox_units_check(&shape));
    }
    ox_model_close(&model);
}

int main(void) {
    check_rows("eight_qwen3", 8, 64);
    check_rows("eight_gpt2", 4, 30);
    check_rows("gemma2", 2, 3);
    check_rows("four_qwen2_moe", 4, 13);
    check_rows("gpt_oss", 2, 12);
    static const struct {
        const char *name;
        uint32_t groups;
    } cuts[] = {{"eight_qwen3", 2}, {"eight_qwen3", 8}, {"eight_gpt2", 4}, {"gpt2_small", 3}, {"phi3_long", 2},
                {"llama_bias", 2}, {"cohere2", 2}, {"gemma2", 2}, {"four_mixtral", 2}, {"four_qwen2_moe", 4},
                {"gpt_oss", 2}, {"router_bias", 2}};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        check_cut(cuts[i].name, cuts[i].groups, NULL);
    }
    check_cut("eight_qwen3", 8, "all-linear");
    check_cut("eight_gpt2", 4, "c_attn,attn.c_proj,mlp.c_proj");
    check_cut("phi3_long", 2, "qkv_proj,gate_up_proj,down_proj");
    check_cut("four_qwen2_moe", 4, "q_proj,o_proj,shared_expert.up_proj,shared_expert.down_proj");
    check_one("eight_qwen3");
    check_refused("llama_tied_gqa", 3, "2 key/value heads cannot be cut into 3 groups of features; use 1 or 2");
    check_refused("qwen3", 8, "4 attention heads cannot be cut into 8 groups of features; use 1 or 2");
    check_refused("eight_qwen3", 16, "16 groups of features: at most 8; use 1, 2, 4 or 8");
    check_refused("mixtral", 2, "5 experts of a layer cannot be cut into 2 groups of features; use 1");
    check_refused("deepseek_v3", 2, "has latent attention, which cannot be cut into 2 groups of features; use 1");
    check_refused("olmo2", 2, "has norms over all heads of queries and of keys, which cannot be cut");
    return test_end();
}
