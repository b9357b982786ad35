/* Every key of every family's config.json, left out and changed: what changes the logits of transformers is refused or
 * computed, and what does not is not taken for something else. tests/golden/make/golden_config_keys.py says which is
 * which. */
#include "base/file.h"
#include "base/json.h"
#include "engine/family/model_config.h"
#include "tests/kit/log.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>

/* Keys that change no logits of these models in transformers, and that say something else to us: of ties, what is
 * trained and saved; of gpt2's positions by their other name, nothing. */
static const char *const spoken[] = {"tie_word_embeddings", "max_position_embeddings"};

enum { PAIRS_MAX = 128, POSITIONS = 28 };

/* What logits depend on. */
struct computed {
    struct ox_model_config config;
    double frequencies[PAIRS_MAX], gain;
};

static enum ox_status parse(const json_t *json, struct computed *out) {
    struct ox_model_config *const config = &out->config;
    memset(out, 0, sizeof *out);
    const enum ox_status status = ox_model_config_parse("config.json", json, config);
    if (status == OX_OK && config->rope) {
        CHECK(config->rotary_dim / 2 <= PAIRS_MAX);
        out->gain = ox_model_rope_inv_freq(config, 0, POSITIONS, out->frequencies);
        config->rope_theta = 0.0; /* which has another name for the same frequencies */
        config->rope_scaling = (struct ox_rope_scaling){.kind = OX_ROPE_DEFAULT};
        config->contexts = 0;
    }
    config->init_range = 0.0;
    config->mixture.balance = 0.0; /* of a loss beside that of the logits */
    config->mixture.asks_balance = false;
    config->bos_id = config->eos_id = 0;
    return status;
}

static json_t *changed(const json_t *base, const json_t *row) {
    json_t *const json = json_deep_copy(base);
    const char *key;
    json_t *value;
    size_t i;
    json_object_foreach(json_object_get(row, "set"), key, value) {
        CHECK(json_object_set(json, key, value) == 0);
    }
    json_array_foreach(json_object_get(row, "without"), i, value) {
        CHECK(json_object_del(json, json_string_value(value)) == 0);
    }
    return json;
}

static bool is_spoken(const json_t *row) {
    const char *const without = json_string_value(json_array_get(json_object_get(row, "without"), 0));
    bool is = false;
    for (size_t i = 0; i < sizeof spoken / sizeof *spoken; i++) {
        is |= json_object_get(json_object_get(row, "set"), spoken[i]) != NULL ||
              (without != NULL && strcmp(without, spoken[i]) == 0);
    }
    return is;
}

static void check_row(const json_t *base, const json_t *row, uint32_t counts[3]) {
    static struct computed before, after;
    const char *const effect = json_string_value(json_object_get(row, "effect"));
    json_t *const json = changed(base, row);
    REQUIRE_OK(parse(base, &before));
    const bool refused = parse(json, &after) != OX_OK;
    const bool same = !refused && memcmp(&before, &after, sizeof before) == 0;
    const bool changes = strcmp(effect, "changed") == 0 || strcmp(effect, "shapes") == 0;
    const bool right = strcmp(effect, "error") == 0 || refused || (changes ? !same : same) || is_spoken(row);
    if (!right) {
        char *const text = json_dumps(row, JSON_COMPACT);
        printf("%s: taken for %s\n", text, same ? "the same model" : "another model");
        free(text);
    }
    CHECK(right);
    counts[refused ? 0 : same ? 1 : 2]++;
    json_decref(json);
}

int main(void) {
    json_t *rows = NULL, *base = NULL;
    const char *of = "";
    uint32_t counts[3] = {0};
    REQUIRE_OK(ox_json_load("tests/golden/config_keys.json", 8 << 20, &rows));
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *const row = json_array_get(rows, i);
        const char *const name = json_string_value(json_object_get(row, "case"));
        if (strcmp(name, of) != 0) {
            char path[OX_PATH_BYTES];
            snprintf(path, sizeof path, "tests/golden/%s/config.json", name);
            json_decref(base);
            base = NULL;
            REQUIRE_OK(ox_json_load(path, 1 << 20, &base));
            of = name;
        }
        check_row(base, row, counts);
    }
    printf("of %zu files %u are refused, %u are the same model, %u another one\n", json_array_size(rows), counts[0],
           counts[1], counts[2]);
    CHECK(json_array_size(rows) > 1000);
    json_decref(base);
    json_decref(rows);
    return test_end();
}
