/* Windows of attention: which layers of a model have one, and how config.json says so. */
#include "base/file.h"
#include "base/json.h"
#include "engine/family/decoder.h"

#include <string.h>

const char *const ox_window_keys[] = {"sliding_window", "layer_types", NULL};

enum ox_status ox_read_window(const char *where, const json_t *json, uint32_t *window) {
    const json_t *const value = json_object_get(json, "sliding_window");
    const struct ox_size_key key = {"sliding_window", false, window};
    *window = ox_when_missing(json, "sliding_window", 4096);
    const enum ox_status status = ox_config_read_sizes(where, json, &key, 1);
    if (status == OX_OK && *window == 0 && !json_is_null(value)) {
        return ox_fail(OX_E_CONFIG, "%s: \"sliding_window\" is 0, so that no token would see any; null means none",
                       where);
    }
    return status;
}

enum ox_status ox_read_layer_types(const char *where, const json_t *json, struct ox_model_config *out) {
    const json_t *const types = json_object_get(json, "layer_types");
    char text[OX_JSON_EXCERPT_BYTES];
    bool known = json_is_array(types) && json_array_size(types) == out->layers && out->layers <= OX_LAYERS_MAX;
    if (types == NULL || json_is_null(types)) {
        return OX_OK;
    }
    out->windowed = (struct ox_layers){{0}};
    for (uint32_t i = 0; known && i < out->layers; i++) {
        const char *const type = json_string_value(json_array_get(types, i));
        const bool sliding = type != NULL && strcmp(type, "sliding_attention") == 0;
        ox_layers_add(&out->windowed, i, sliding ? i + 1 : i);
        known = sliding || (type != NULL && strcmp(type, "full_attention") == 0);
    }
    if (!known) {
        return ox_fail(OX_E_CONFIG,
                       "%s: \"layer_types\" is %s, which is not supported; it must be left out or name, for each "
                       "of the %u layers, \"full_attention\" or \"sliding_attention\"",
                       where, ox_json_excerpt(types, text), out->layers);
    }
    if (ox_layers_first(&out->windowed, out->layers) < out->layers && out->window == 0) {
        return ox_fail(OX_E_CONFIG, "%s: \"layer_types\" has \"sliding_attention\", but there is no window: set "
                       "\"use_sliding_window\" and \"sliding_window\"", where);
    }
    return OX_OK;
}

void ox_settle_windows(struct ox_model_config *out) {
    if (out->window == 0 || ox_layers_first(&out->windowed, out->layers) == out->layers) {
        out->windowed = (struct ox_layers){{0}};
        out->window = 0;
    }
}

bool ox_write_layer_types(const struct ox_model_config *config, json_t *out) {
    json_t *const types = json_array();
    bool done = types != NULL;
    for (uint32_t i = 0; done && i < config->layers; i++) {
        const bool sliding = ox_layers_has(&config->windowed, i);
        done = json_array_append_new(types, json_string(sliding ? "sliding_attention" : "full_attention")) == 0;
    }
    return ox_config_put(out, "layer_types", types) && done;
}

bool ox_write_window(const struct ox_model_config *config, json_t *out) {
    return ox_config_put(out, "sliding_window", config->window != 0 ? json_integer(config->window) : json_null());
}

enum ox_status ox_read_turns(const char *where, const json_t *json, const char *key, uint32_t missing,
                             struct ox_model_config *out) {
    uint32_t interval = missing;
    const struct ox_size_key size = {key, false, &interval};
    enum ox_status status = ox_read_window(where, json, &out->window);
    const json_t *const types = json_object_get(json, "layer_types");
    if (key != NULL && (types == NULL || json_is_null(types))) { /* where there are types, the number has no effect */
        OX_THEN(status, ox_config_read_sizes(where, json, &size, 1));
    }
    if (status == OX_OK && (interval == 0 || out->window == 0)) {
        return ox_fail(OX_E_CONFIG, "%s: \"%s\" is missing or 0, but layers have windows by turns", where,
                       interval == 0 ? key : "sliding_window");
    }
    for (uint32_t i = 0; status == OX_OK && i < out->layers; i++) {
        ox_layers_add(&out->windowed, i, (i + 1) % interval != 0 ? i + 1 : i);
    }
    OX_THEN(status, ox_read_layer_types(where, json, out));
    return status;
}

bool ox_write_turns(const struct ox_model_config *config, json_t *out) {
    return ox_config_put(out, "sliding_window", json_integer(config->window)) && ox_write_layer_types(config, out);
}
