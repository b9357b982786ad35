/* Rotary embedding: its frequencies, and how a config.json says them. */
#include "base/file.h"
#include "base/json.h"
#include "engine/family/families.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- frequencies ------------------------------------------------------------------------------- */

static double llama3_freq(const struct ox_rope_scaling *scaling, double freq) {
    const double wave = 2.0 * M_PI / freq;
    if (wave < scaling->original / scaling->high_factor) {
        return freq;
    }
    if (wave > scaling->original / scaling->low_factor) {
        return freq / scaling->factor;
    }
    const double kept =
        (scaling->original / wave - scaling->low_factor) / (scaling->high_factor - scaling->low_factor);
    return (1.0 - kept) * freq / scaling->factor + kept * freq;
}

/* YaRN (Peng et al., arXiv 2309.00071): the number of the pair that turns so often within the original positions. */
static double yarn_pair(const struct ox_model_config *config, double turns) {
    return config->rotary_dim * log(config->rope_scaling.original / (turns * 2.0 * M_PI)) /
           (2.0 * log(config->rope_theta));
}

/* Pairs below the ramp keep their frequency, those above it are stretched, those on it are mixed. */
static double yarn_freq(const struct ox_model_config *config, uint32_t pair, double freq) {
    const struct ox_rope_scaling *const scaling = &config->rope_scaling;
    double low = yarn_pair(config, scaling->fast), high = yarn_pair(config, scaling->slow);
    low = fmax(scaling->truncate ? floor(low) : low, 0.0);
    high = fmin(scaling->truncate ? ceil(high) : high, config->rotary_dim - 1.0);
    high += low == high ? 0.001 : 0.0;
    const double stretched = fmin(fmax((pair - low) / (high - low), 0.0), 1.0);
    return freq / scaling->factor * stretched + freq * (1.0 - stretched);
}

static double yarn_gain(double factor, double scale) {
    return factor <= 1.0 ? 1.0 : 0.1 * scale * log(factor) + 1.0;
}

/* What cosines and sines are multiplied by. */
static double attention_factor(const struct ox_model_config *config) {
    const struct ox_rope_scaling *const scaling = &config->rope_scaling;
    if (scaling->attention != 0.0) {
        return scaling->attention;
    }
    if (scaling->kind == OX_ROPE_YARN) {
        return scaling->mscale != 0.0 && scaling->mscale_all != 0.0
                   ? yarn_gain(scaling->factor, scaling->mscale) / yarn_gain(scaling->factor, scaling->mscale_all)
                   : yarn_gain(scaling->factor, 1.0);
    }
    return scaling->kind == OX_ROPE_LONG && scaling->factor > 1.0
               ? sqrt(1.0 + log(scaling->factor) / log(scaling->original)) : 1.0;
}

double ox_config_rope_score_scale(const struct ox_rope_scaling *scaling) {
    const bool scales = scaling->kind == OX_ROPE_YARN && scaling->mscale_all != 0.0;
    const double gain = scales ? yarn_gain(scaling->factor, scaling->mscale_all) : 1.0;
    return gain * gain;
}

uint32_t ox_model_rotations(const struct ox_model_config *config) {
    return !config->rope ? 0 : config->local_theta != 0.0 ? 2 : 1;
}

double ox_model_rope_inv_freq(const struct ox_model_config *config, uint32_t rotation, uint32_t positions,
                              double *inv_freq) {
    const struct ox_rope_scaling *const scaling = &config->rope_scaling;
    const double *const factors = positions > scaling->original ? scaling->long_factors : scaling->short_factors;
    for (uint32_t i = 0; i < config->rotary_dim / 2; i++) {
        const double theta = rotation == 0 ? config->rope_theta : config->local_theta;
        const double freq = 1.0 / pow(theta, 2.0 * i / config->rotary_dim);
        switch (rotation == 0 ? scaling->kind : OX_ROPE_DEFAULT) {
        case OX_ROPE_DEFAULT:
        case OX_ROPE_DYNAMIC: /* differs beyond the model's positions, which no run reaches */
            inv_freq[i] = freq;
            break;
        case OX_ROPE_LINEAR:
            inv_freq[i] = freq / scaling->factor;
            break;
        case OX_ROPE_LLAMA3:
            inv_freq[i] = llama3_freq(scaling, freq);
            break;
        case OX_ROPE_YARN:
            inv_freq[i] = yarn_freq(config, i, freq);
            break;
        case OX_ROPE_LONG:
            inv_freq[i] = freq / factors[i];
            break;
        }
    }
    return rotation == 0 ? attention_factor(config) : 1.0;
}

/* ---- config.json: keys -------------------------------------------------------------------------- */

static const char *const kind_names[] = {[OX_ROPE_DEFAULT] = "default", [OX_ROPE_LINEAR] = "linear",
                                         [OX_ROPE_DYNAMIC] = "dynamic", [OX_ROPE_LLAMA3] = "llama3",
                                         [OX_ROPE_YARN] = "yarn",       [OX_ROPE_LONG] = "longrope"};
enum { KINDS = sizeof kind_names / sizeof *kind_names, UNKNOWN = KINDS };

enum { LINEAR = 1 << OX_ROPE_LINEAR, DYNAMIC = 1 << OX_ROPE_DYNAMIC, LLAMA3 = 1 << OX_ROPE_LLAMA3,
       YARN = 1 << OX_ROPE_YARN, LONG = 1 << OX_ROPE_LONG };

/* A number of a rope object, the kinds that have it, and those that must have it. */
struct number_key {
    const char *name;
    size_t offset; /* of a double in struct ox_rope_scaling */
    unsigned kinds, required;
};
static const struct number_key number_keys[] = {
    {"factor", offsetof(struct ox_rope_scaling, factor), LINEAR | DYNAMIC | LLAMA3 | YARN | LONG,
     LINEAR | DYNAMIC | LLAMA3},
    {"low_freq_factor", offsetof(struct ox_rope_scaling, low_factor), LLAMA3, LLAMA3},
    {"high_freq_factor", offsetof(struct ox_rope_scaling, high_factor), LLAMA3, LLAMA3},
    {"beta_fast", offsetof(struct ox_rope_scaling, fast), YARN, 0},
    {"beta_slow", offsetof(struct ox_rope_scaling, slow), YARN, 0},
    {"attention_factor", offsetof(struct ox_rope_scaling, attention), YARN | LONG, 0},
    {"mscale", offsetof(struct ox_rope_scaling, mscale), YARN, 0},
    {"mscale_all_dim", offsetof(struct ox_rope_scaling, mscale_all), YARN, 0},
};
enum { NUMBER_KEYS = sizeof number_keys / sizeof *number_keys };
static const unsigned with_original = LLAMA3 | YARN | LONG;

static double *number_at(struct ox_rope_scaling *scaling, const struct number_key *key) {
    return (double *)((unsigned char *)scaling + key->offset);
}

static bool kind_has(unsigned kind, const char *name) {
    const unsigned bit = 1u << kind;
    for (size_t i = 0; i < NUMBER_KEYS; i++) {
        if ((number_keys[i].kinds & bit) != 0 && strcmp(number_keys[i].name, name) == 0) {
            return true;
        }
    }
    return ((with_original & bit) != 0 && strcmp(name, "original_max_position_embeddings") == 0) ||
           (bit == YARN && strcmp(name, "truncate") == 0) ||
           (bit == LONG && (strcmp(name, "short_factor") == 0 || strcmp(name, "long_factor") == 0));
}

/* Tells which kind an object describes: UNKNOWN if it has a key that its kind does not have, or is no object. */
static unsigned kind_of(const json_t *rope) {
    const json_t *type = json_object_get(rope, "rope_type");
    type = type != NULL ? type : json_object_get(rope, "type");
    const char *text = type == NULL ? "default" : json_is_string(type) ? json_string_value(type) : "";
    text = strcmp(text, "su") == 0 ? "longrope" : text; /* its first name */
    unsigned kind = 0;
    while (kind < KINDS && strcmp(kind_names[kind], text) != 0) {
        kind++;
    }
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)rope, name, value) {
        const bool is_type = strcmp(name, "rope_type") == 0 || strcmp(name, "type") == 0;
        const bool is_shared = strcmp(name, "rope_theta") == 0 || strcmp(name, "partial_rotary_factor") == 0;
        if (kind == UNKNOWN || !(is_type ? json_equal(value, type) : is_shared || kind_has(kind, name))) {
            return UNKNOWN;
        }
    }
    return json_is_object(rope) ? kind : UNKNOWN;
}

/* ---- config.json: reading ----------------------------------------------------------------------- */

static enum ox_status read_factors(const char *where, const json_t *rope, const char *key, double *out,
                                   uint32_t *count) {
    const json_t *const list = json_object_get(rope, key);
    const size_t size = json_array_size(list);
    bool good = json_is_array(list) && size > 0 && size <= OX_ROPE_FACTORS_MAX && (*count == 0 || *count == size);
    for (size_t i = 0; good && i < size; i++) {
        out[i] = json_number_value(json_array_get(list, i));
        good = isfinite(out[i]) && out[i] > 0.0;
    }
    *count = (uint32_t)size;
    return good ? OX_OK
                : ox_fail(OX_E_CONFIG, "%s: \"short_factor\" and \"long_factor\" must be lists of as many numbers "
                          "above 0, at most %d; \"%s\" is not", where, OX_ROPE_FACTORS_MAX, key);
}

/* What the library takes where a key is missing. */
static void set_defaults(const struct ox_model_config *config, struct ox_rope_scaling *scaling) {
    scaling->original = scaling->original != 0 ? scaling->original : config->contexts;
    if (scaling->factor == 0.0) {
        scaling->factor = (double)config->contexts / scaling->original;
    }
    scaling->fast = scaling->fast != 0.0 ? scaling->fast : 32.0;
    scaling->slow = scaling->slow != 0.0 ? scaling->slow : 1.0;
}

static enum ox_status read_scaling(const char *where, const json_t *rope, unsigned kind,
                                   struct ox_model_config *config) {
    struct ox_rope_scaling read = {.kind = (enum ox_rope_kind)kind, .truncate = true};
    char text[OX_JSON_EXCERPT_BYTES];
    uint64_t original = config->rope_scaling.original;
    enum ox_status status = OX_OK;
    for (size_t i = 0; i < NUMBER_KEYS; i++) {
        const struct number_key *const key = &number_keys[i];
        if ((key->kinds & 1u << kind) != 0) {
            OX_THEN(status, ox_json_get_double(where, rope, key->name, (key->required & 1u << kind) != 0,
                                               number_at(&read, key)));
        }
    }
    if ((with_original & 1u << kind) != 0) {
        OX_THEN(status, ox_json_get_u64(where, rope, "original_max_position_embeddings", kind == OX_ROPE_LLAMA3,
                                        &original));
    }
    if (kind == OX_ROPE_YARN) {
        if (status == OX_OK && json_object_get(rope, "factor") == NULL) { /* null: what the positions make it */
            status = ox_fail(OX_E_CONFIG, "%s: the key \"factor\" of yarn is missing", where);
        }
        OX_THEN(status, ox_json_get_bool(where, rope, "truncate", false, &read.truncate));
    }
    if (kind == OX_ROPE_LONG) {
        OX_THEN(status, read_factors(where, rope, "short_factor", read.short_factors, &read.factor_count));
        OX_THEN(status, read_factors(where, rope, "long_factor", read.long_factors, &read.factor_count));
    }
    const bool sized = original > 0 || (kind != OX_ROPE_LLAMA3);
    if (status == OX_OK && (!sized || original > UINT32_MAX ||
                            (read.factor == 0.0 && (kind == OX_ROPE_LINEAR || kind == OX_ROPE_LLAMA3)))) {
        status = ox_fail(OX_E_CONFIG, "%s: the rope scaling %s has a size that no model has", where,
                         ox_json_excerpt(rope, text));
    }
    if (status == OX_OK) {
        read.original = (uint32_t)original;
        config->rope_scaling = read;
    }
    return status;
}

/* Reads rope_parameters (v5) or rope_scaling (v4), which share their keys. */
static enum ox_status read_object(const char *where, const json_t *json, const char *key,
                                  struct ox_model_config *out) {
    const json_t *const rope = json_object_get(json, key);
    if (rope == NULL || json_is_null(rope)) {
        return OX_OK;
    }
    const unsigned kind = kind_of(rope);
    char inside[OX_PATH_BYTES], text[OX_JSON_EXCERPT_BYTES];
    snprintf(inside, sizeof inside, "%s: in \"%s\"", where, key);
    if (kind == UNKNOWN) {
        return ox_fail(OX_E_CONFIG,
                       "%s: \"%s\" is %s, which is not supported; the \"rope_type\" is \"default\", \"linear\", "
                       "\"dynamic\", \"llama3\", \"yarn\" or \"longrope\", each with its own keys alone",
                       where, key, ox_json_excerpt(rope, text));
    }
    double inner = 0.0, outer = 0.0, part = 0.0;
    enum ox_status status = ox_json_get_double(inside, rope, "rope_theta", false, &inner);
    OX_THEN(status, ox_json_get_double(inside, rope, "partial_rotary_factor", false, &part));
    if (status == OX_OK && kind != OX_ROPE_DEFAULT) {
        status = read_scaling(inside, rope, kind, out);
    }
    OX_THEN(status, ox_json_get_double(where, json, "rope_theta", false, &outer));
    if (status == OX_OK && inner != 0.0 && outer != 0.0 && inner != outer) {
        status = ox_fail(OX_E_CONFIG, "%s: \"rope_theta\" is %g, but %g inside \"%s\"; remove the wrong one",
                         where, outer, inner, key);
    }
    out->rope_theta = inner != 0.0 ? inner : out->rope_theta;
    out->rotary_part = part != 0.0 ? part : out->rotary_part;
    return status;
}

enum ox_status ox_config_read_rope(const char *where, const json_t *json, struct ox_model_config *out) {
    enum ox_status status = ox_json_get_double(where, json, "rope_theta", false, &out->rope_theta);
    OX_THEN(status, read_object(where, json, "rope_parameters", out));
    /* where a file has both, transformers takes the scaling from here */
    if (status == OX_OK && json_object_size(json_object_get(json, "rope_scaling")) > 0) {
        out->rope_scaling = (struct ox_rope_scaling){.original = out->rope_scaling.original};
    }
    OX_THEN(status, read_object(where, json, "rope_scaling", out));
    if (status == OX_OK && out->rope_scaling.kind != OX_ROPE_DEFAULT) {
        set_defaults(out, &out->rope_scaling);
    }
    return status;
}

/* ---- config.json: checking and writing ---------------------------------------------------------- */

enum ox_status ox_config_check_rope(const char *where, const struct ox_model_config *config) {
    const struct ox_rope_scaling *const scaling = &config->rope_scaling;
    if (config->rotary_dim % 2 != 0 || config->rotary_dim < 2 || config->rotary_dim > config->head_dim) {
        return ox_fail(OX_E_CONFIG, "%s: rotary embedding turns %u of the %u elements of a head; it needs an even "
                       "number of them", where, config->rotary_dim, config->head_dim);
    }
    if (!(config->rope_theta > 1.0 && isfinite(config->rope_theta))) {
        return ox_fail(OX_E_CONFIG, "%s: rope_theta is %g; it must be above 1", where, config->rope_theta);
    }
    if (scaling->kind == OX_ROPE_LLAMA3 && !(scaling->low_factor > 0.0 && scaling->high_factor > scaling->low_factor &&
                                             isfinite(scaling->high_factor))) {
        return ox_fail(OX_E_CONFIG, "%s: the rope scaling has low_freq_factor %g and high_freq_factor %g; 0 < low < "
                       "high",
                       where, scaling->low_factor, scaling->high_factor);
    }
    if (scaling->kind != OX_ROPE_DEFAULT && !(scaling->factor >= 1.0 && isfinite(scaling->factor) &&
                                              scaling->original > 0)) {
        return ox_fail(OX_E_CONFIG, "%s: the rope scaling has factor %g and original_max_position_embeddings %u; both "
                       "must be at least 1", where, scaling->factor, scaling->original);
    }
    if (scaling->kind == OX_ROPE_YARN && !(scaling->fast > scaling->slow && scaling->slow > 0.0 &&
                                           isfinite(scaling->fast) && scaling->attention >= 0.0 &&
                                           scaling->mscale >= 0.0 && scaling->mscale_all >= 0.0)) {
        return ox_fail(OX_E_CONFIG, "%s: the rope scaling has beta_slow %g and beta_fast %g; 0 < slow < fast, and no "
                       "other number of it is below 0", where, scaling->slow, scaling->fast);
    }
    if (scaling->kind == OX_ROPE_LONG && scaling->factor_count != config->rotary_dim / 2) {
        return ox_fail(OX_E_CONFIG, "%s: \"short_factor\" has %u numbers, but rotary embedding has %u pairs", where,
                       scaling->factor_count, config->rotary_dim / 2);
    }
    return OX_OK;
}

static bool set_factors(json_t *object, const char *key, const double *factors, uint32_t count) {
    json_t *const list = json_array();
    bool done = list != NULL;
    for (uint32_t i = 0; done && i < count; i++) {
        done = json_array_append_new(list, json_real(factors[i])) == 0;
    }
    return ox_config_put(object, key, list) && done;
}

/* The object that describes the rotary embedding, or NULL. */
static json_t *pack_scaling(const struct ox_model_config *config) {
    struct ox_rope_scaling scaling = config->rope_scaling;
    const unsigned bit = 1u << scaling.kind;
    json_t *const object = json_pack("{s:s}", "rope_type", kind_names[scaling.kind]);
    bool done = object != NULL;
    for (size_t i = 0; done && i < NUMBER_KEYS; i++) {
        const double value = *number_at(&scaling, &number_keys[i]);
        if ((number_keys[i].kinds & bit) != 0 && value != 0.0) {
            done = ox_config_put(object, number_keys[i].name, json_real(value));
        }
    }
    if (done && (with_original & bit) != 0) {
        done = ox_config_put(object, "original_max_position_embeddings", json_integer(scaling.original));
    }
    if (done && bit == YARN && !scaling.truncate) {
        done = ox_config_put(object, "truncate", json_false());
    }
    if (done && bit == LONG) {
        done = set_factors(object, "short_factor", scaling.short_factors, scaling.factor_count) &&
               set_factors(object, "long_factor", scaling.long_factors, scaling.factor_count);
    }
    if (!done) {
        json_decref(object);
        return NULL;
    }
    return object;
}

bool ox_config_write_rope(json_t *object, const struct ox_model_config *config) {
    const bool scaled = config->rope_scaling.kind != OX_ROPE_DEFAULT;
    const double theta = config->rope_theta;
    json_t *const parameters = pack_scaling(config);
    bool complete = ox_config_put(parameters, "rope_theta", json_real(theta));
    if (config->rotary_part != 1.0) {
        complete = complete && ox_config_put(parameters, "partial_rotary_factor", json_real(config->rotary_part)) &&
                   ox_config_put(object, "partial_rotary_factor", json_real(config->rotary_part));
    }
    /* Version 5 reads the first, or the last if that is not null; version 4 the last two. */
    return ox_config_put(object, "rope_parameters", parameters) && complete &&
           ox_config_put(object, "rope_theta", json_real(theta)) &&
           ox_config_put(object, "rope_scaling", scaled ? pack_scaling(config) : json_null());
}
