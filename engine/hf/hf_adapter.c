/* Low-rank adapters as PEFT saves them: adapter_config.json and adapter_model.safetensors, what of them exists here,
 * and how they are merged. */
#include "engine/hf/hf_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/hash/hash.h"
#include "base/hash/listed.h"
#include "base/json.h"
#include "base/planes.h"
#include "engine/hf/hf_pattern.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JSON_BYTES_MAX = 16 << 20, HASH_ELEMS = 256, HASH_PLACES = 3 };

void ox_hf_adapter_close(struct ox_hf_adapter **adapter) {
    if (*adapter != NULL) {
        ox_model_close(&(*adapter)->merged);
        free((*adapter)->entries);
        free((*adapter)->path);
        free((*adapter)->a);
        free((*adapter)->b);
        free((*adapter)->lengths);
        free((*adapter)->parts);
        free((*adapter)->joined);
        free(*adapter);
        *adapter = NULL;
    }
}

/* ---- values ---- */

enum ox_status ox_hf_adapter_read(const struct ox_hf_adapter *adapter, const struct ox_model *model,
                                  uint32_t tensor_idx, uint64_t first, uint64_t count, float *out) {
    const struct ox_tensor *const tensor = &model->tensors[tensor_idx];
    const struct ox_st_entry *const entry = adapter->file != NULL ? adapter->entries[tensor->saved_idx] : NULL;
    enum ox_status status = OX_OK;
    if (entry != NULL) {
        for (uint64_t here; count > 0 && status == OX_OK; first += here, out += here, count -= here) {
            here = ox_tensor_together(tensor, first, count);
            status = ox_st_read_f32(adapter->file, entry, ox_tensor_in_files(tensor, first), here, out);
        }
        return status;
    }
    if (adapter->file != NULL) {
        return ox_hf_read_experts((struct ox_hf_adapter *)adapter, model, tensor_idx, first, count, out);
    }
    ox_model_init_values(model, &model->tensors[tensor_idx], adapter->seed, first, count, out);
    return OX_OK;
}

/* ---- adapter_config.json ---- */

bool ox_hf_is_adapter(const char *folder) {
    return ox_folder_has(folder, "adapter_config.json") && !ox_hf_has_weight_files(folder);
}

static enum ox_status load_config(const char *folder, char path[OX_PATH_BYTES], json_t **out) {
    OX_TRY(ox_path_join(folder, "adapter_config.json", path));
    return ox_json_load(path, JSON_BYTES_MAX, out);
}

enum ox_status ox_hf_adapter_base(const char *folder, char *path) {
    char where[OX_PATH_BYTES];
    json_t *json = NULL;
    const char *base = NULL;
    enum ox_status status = load_config(folder, where, &json);
    OX_THEN(status, ox_json_get_string(where, json, "base_model_name_or_path", false, &base));
    if (status == OX_OK && (base == NULL || !ox_path_is_folder(base))) {
        status = ox_fail(OX_E_CONFIG, "%.300s: is an adapter of %.200s, which is no folder here; name the model that "
                         "it belongs to, and the adapter: --model FOLDER --adapter %.200s", folder,
                         base != NULL ? base : "a model that it does not name", folder);
    }
    if (status == OX_OK) {
        snprintf(path, OX_PATH_BYTES, "%s", base);
    }
    json_decref(json);
    return status;
}

/* Whether a value says that something is not used. */
static bool is_nothing(const json_t *value) {
    return value == NULL || json_is_null(value) || json_is_false(value) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

/* Keys that are read, or that do not change what a trained adapter computes. */
static const char *const known_keys[] = {
    "peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "base_model_name_or_path", "peft_version",
    "task_type", "inference_mode", "revision", "fan_in_fan_out", "auto_mapping", "megatron_core", "qalora_group_size",
    "layers_pattern", "exclude_modules", "lora_dropout", "ensure_weight_tying", "runtime_config", "modules_to_save",
    "bias", "target_parameters", "rank_pattern", "alpha_pattern", "use_dora"};

static bool is_known(const char *key) {
    for (size_t i = 0; i < sizeof known_keys / sizeof *known_keys; i++) {
        if (strcmp(known_keys[i], key) == 0) {
            return true;
        }
    }
    return false;
}

/* Refuses what PEFT has and this program has not. */
static enum ox_status check_keys(const char *where, const json_t *json) {
    const char *key;
    json_t *value;
    const char *const type = json_string_value(json_object_get(json, "peft_type"));
    if (type == NULL || strcmp(type, "LORA") != 0) {
        return ox_fail(OX_E_CONFIG, "%s: \"peft_type\" is %s; only LORA adapters can be read", where,
                       type != NULL ? type : "missing");
    }
    json_object_foreach((json_t *)json, key, value) {
        const char *const text_value = json_is_string(value) ? json_string_value(value) : "";
        const bool plain = strcmp(key, "init_lora_weights") == 0
                               ? json_is_boolean(value) || strcmp(text_value, "gaussian") == 0
                               : is_nothing(value);
        if (!is_known(key) && !plain) {
            char text[OX_JSON_EXCERPT_BYTES];
            return ox_fail(OX_E_CONFIG, "%s: \"%.60s\" is %s, which does not exist here; merge the adapter with PEFT "
                           "(merge_and_unload), or train one without it", where, key, ox_json_excerpt(value, text));
        }
    }
    return OX_OK;
}

/* Whether the A of a module in a file is of a parameter of the list: of experts, or of the module's "weight". */
static bool is_of_parameter(const struct ox_lora *lora, const char *module) {
    static const char *const wrapped[] = {".experts", ".base_layer"};
    bool is = false;
    size_t length;
    for (size_t i = 0; i < 2; i++) {
        const size_t tail = strlen(wrapped[i]), whole = strlen(module);
        is |= whole > tail && strcmp(module + whole - tail, wrapped[i]) == 0;
    }
    for (const char *at = lora->parameters, *entry; (entry = ox_lora_next_target(&at, &length)) != NULL;) {
        char name[OX_LORA_TARGETS_BYTES], weight[300];
        snprintf(name, sizeof name, ".%.*s", (int)length, entry);
        snprintf(weight, sizeof weight, ".%s.weight", module);
        const size_t tail = strlen(name), whole = strlen(weight);
        is |= whole >= tail && strcmp(weight + whole - tail, name) == 0;
    }
    return is;
}

/* The modules whose A the file has, as names that end like them: "self_attn.q_proj". */
static void collect_targets(const struct ox_st_file *file, struct ox_lora *lora) {
    static const char *const ends[] = {".lora_A.weight", ".lora_embedding_A"};
    static const char front[] = "base_model.model.";
    char *const targets = lora->targets;
    size_t used = 0;
    targets[0] = '\0';
    for (uint32_t i = 0; i < 2 * ox_st_count(file); i++) {
        char name[256];
        snprintf(name, sizeof name, "%s", ox_st_entry(file, i / 2)->name);
        const size_t length = strlen(name), tail = strlen(ends[i % 2]);
        if (length <= tail || strcmp(name + length - tail, ends[i % 2]) != 0) {
            continue;
        }
        name[length - tail] = '\0';
        const bool prefixed = strncmp(name, front, sizeof front - 1) == 0;
        const char *part = ox_hf_last_parts(prefixed ? name + sizeof front - 1 : name);
        const size_t digits = strspn(part, "0123456789");
        part += digits > 0 && part[digits] == '.' ? digits + 1 : 0; /* a module of one expert: all have it */
        if (!is_of_parameter(lora, name) && !ox_hf_lists(targets, part) && used < OX_LORA_TARGETS_BYTES) {
            used += (size_t)snprintf(targets + used, OX_LORA_TARGETS_BYTES - used, "%s%s", used == 0 ? "" : ",", part);
        }
    }
}

/* What PEFT writes for the experts' gate and up as one parameter. */
static const char doubled_pattern[] = ".*\\.gate_up_proj";

/* Reads rank_pattern and alpha_pattern, of which that is all that exists here. */
static enum ox_status read_patterns(const char *where, const json_t *json, struct ox_lora *out) {
    const char *const names[] = {"rank_pattern", "alpha_pattern"};
    const double values[] = {2.0 * out->r, 2.0 * out->alpha};
    bool has[2];
    for (int i = 0; i < 2; i++) {
        const json_t *const patterns = json_object_get(json, names[i]);
        const json_t *const one = json_object_get(patterns, doubled_pattern);
        has[i] = one != NULL;
        if (!is_nothing(patterns) && (json_object_size(patterns) != 1 || json_number_value(one) != values[i])) {
            char text[OX_JSON_EXCERPT_BYTES];
            return ox_fail(OX_E_CONFIG, "%s: \"%s\" is %s, which does not exist here; merge the adapter with PEFT "
                           "(merge_and_unload), or train one without it", where, names[i],
                           ox_json_excerpt(patterns, text));
        }
    }
    if (has[0] != has[1]) {
        return ox_fail(OX_E_CONFIG, "%s: has \"%s\" without \"%s\"; the rank and alpha of the experts' gate and up "
                       "are doubled together", where, names[has[0] ? 0 : 1], names[has[0] ? 1 : 0]);
    }
    out->doubled = has[0];
    return OX_OK;
}

enum ox_status ox_hf_adapter_config(const char *folder, const struct ox_st_file *file, struct ox_lora *out) {
    char where[OX_PATH_BYTES];
    json_t *json = NULL;
    uint64_t r = 0;
    *out = (struct ox_lora){0};
    enum ox_status status = load_config(folder, where, &json);
    OX_THEN(status, check_keys(where, json));
    OX_THEN(status, ox_json_get_u64(where, json, "r", true, &r));
    OX_THEN(status, ox_json_get_double(where, json, "lora_alpha", true, &out->alpha));
    OX_THEN(status, ox_json_get_bool(where, json, "use_rslora", false, &out->rslora));
    OX_THEN(status, ox_json_get_bool(where, json, "use_dora", false, &out->dora));
    OX_THEN(status, ox_json_get_double(where, json, "lora_dropout", false, &out->dropout));
    OX_THEN(status, ox_json_get_bool(where, json, "ensure_weight_tying", false, &out->one_for_both));
    OX_THEN(status, ox_hf_read_saved(where, json, out));
    OX_THEN(status, ox_hf_read_names(where, json, "target_parameters", out->parameters));
    if (status == OX_OK && (r == 0 || r > OX_LORA_R_MAX)) {
        status = ox_fail(OX_E_CONFIG, "%s: \"r\" is %" PRIu64 "; ranks are 1 to %d", where, r, OX_LORA_R_MAX);
    }
    if (status == OX_OK && !(fabs(out->alpha) <= OX_LORA_ALPHA_MAX)) {
        status = ox_fail(OX_E_CONFIG, "%s: \"lora_alpha\" is %g; give at most %d", where, out->alpha,
                         OX_LORA_ALPHA_MAX);
    }
    if (status == OX_OK) {
        out->r = (uint32_t)r;
        collect_targets(file, out);
        status = read_patterns(where, json, out);
    }
    if (status == OX_OK && !(out->dropout >= 0.0 && out->dropout <= 0.99)) {
        status = ox_fail(OX_E_CONFIG, "%s: \"lora_dropout\" is %g; give 0 to 0.99", where, out->dropout);
    }
    json_decref(json);
    return status;
}

/* ---- the base ---- */

/* A tensor and where it would be with all experts in their blocks' units: in which unit, and where in that. */
struct base_place {
    uint32_t stream, tensor_idx;
    uint64_t place;
};

static int compare_places(const void *a, const void *b) {
    const struct base_place *const x = a, *const y = b;
    return x->stream != y->stream ? (x->stream < y->stream ? -1 : 1)
           : x->place != y->place ? (x->place < y->place ? -1 : 1)
           : x->tensor_idx < y->tensor_idx ? -1 : x->tensor_idx > y->tensor_idx;
}

/* Lists the base's tensors in an order that does not depend on how experts are grouped, or features: units of a stage
 * that is cut have streams so many apart, and its rows are in the order of places. Of parts the first, for all. */
static uint32_t list_base(const struct ox_model *model, struct base_place *out) {
    const bool is_cut = ox_model_groups(&model->config) > 1;
    const uint32_t apart = model->config.layers + 2;
    uint32_t listed = 0;
    for (uint32_t i = 0; i < model->adapter_first; i++) {
        const struct ox_tensor *const tensor = &model->tensors[i];
        if (tensor->part_first == 0) {
            const uint32_t stream = model->units[tensor->unit_idx].stream;
            out[listed++] = is_cut ? (struct base_place){stream % apart, i, tensor->row}
                                   : (struct base_place){stream, i, tensor->place};
        }
    }
    qsort(out, listed, sizeof *out, compare_places);
    return listed;
}

/* Adds a tensor of the files to the hash. */
static enum ox_status hash_tensor(const struct ox_hf_folder *folder, uint32_t tensor_idx, uint64_t *hash) {
    const struct ox_model *const model = ox_hf_model(folder);
    const struct ox_tensor *const tensor = &model->tensors[tensor_idx];
    const uint64_t count = ox_tensor_whole_count(tensor), part = ox_min_u64(count, HASH_ELEMS);
    const bool is_cut = ox_model_groups(&model->config) > 1;
    const uint64_t shape[] = {tensor->whole[0], tensor->whole[1], tensor->whole[2]};
    float values[HASH_ELEMS];
    enum ox_status status = OX_OK;
    *hash = ox_hash64(tensor->name, strlen(tensor->name), *hash);
    *hash = ox_hash64(shape, sizeof shape, *hash);
    for (uint64_t k = 0; k < HASH_PLACES && status == OX_OK; k++) {
        const uint64_t first = (count - part) / (HASH_PLACES - 1) * k;
        status = is_cut ? ox_hf_read_whole(folder, tensor_idx, first, part, values)
                        : ox_hf_read_base(folder, tensor_idx, first, part, values);
        *hash = ox_hash64(values, part * sizeof *values, *hash);
    }
    return status;
}

enum ox_status ox_hf_base_hash(const struct ox_hf_folder *folder, uint64_t *out) {
    const struct ox_model *const model = ox_hf_model(folder);
    struct base_place *const places = calloc((size_t)model->tensor_count + 1, sizeof *places);
    enum ox_status status = places != NULL ? OX_OK : ox_hf_fail_memory(folder->path);
    const uint32_t count = places != NULL && ox_hf_has_weights(folder) ? list_base(model, places) : 0;
    *out = 0;
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        status = hash_tensor(folder, places[i].tensor_idx, out);
    }
    free(places);
    return status;
}

static const char base_file[] = "base_model.json";

enum ox_status ox_hf_adapter_check_base(const char *folder, const struct ox_hf_folder *base) {
    char path[OX_PATH_BYTES];
    json_t *json = NULL;
    uint64_t hash = 0, wanted = 0;
    if (!ox_folder_has(folder, base_file)) { /* PEFT's */
        return OX_OK;
    }
    enum ox_status status = ox_path_join(folder, base_file, path);
    OX_THEN(status, ox_json_load(path, JSON_BYTES_MAX, &json));
    OX_THEN(status, ox_json_get_hex(path, json, "hash", 1, &wanted));
    OX_THEN(status, ox_hf_base_hash(base, &hash));
    if (status == OX_OK && wanted != 0 && wanted != hash) {
        status = ox_fail(OX_E_CONFIG, "%.300s: the adapter was trained beside other weights than %.300s has now; name "
                         "the model that it began with by --model, and the adapter by --adapter", folder,
                         ox_hf_base_path(base));
    }
    json_decref(json);
    return status;
}

/* The names for "target_modules": those of the configuration, or the last parts of all modules. */
static json_t *target_names(const struct ox_model *model) {
    json_t *const names = json_array();
    for (uint32_t i = model->adapter_first; i < model->tensor_count && names != NULL; i++) {
        const struct ox_tensor *const base = &model->tensors[model->tensors[i].base_idx];
        char module[OX_TENSOR_NAME_BYTES];
        size_t k = 0;
        if (ox_lora_parameter(&model->config, base, module) || !ox_lora_module(&model->config, base, module)) {
            continue;
        }
        const char *const part = ox_hf_last_parts(module);
        while (k < json_array_size(names) && strcmp(json_string_value(json_array_get(names, k)), part) != 0) {
            k++;
        }
        if (k == json_array_size(names) && json_array_append_new(names, json_string(part)) != 0) {
            break;
        }
    }
    return names;
}

static json_t *number(double value) {
    return value == (double)(int64_t)value ? json_integer((json_int_t)value) : json_real(value);
}

/* The value that the experts' gate and up have in place of the others'. */
static json_t *pattern(const struct ox_lora *lora, double value) {
    return lora->doubled ? json_pack("{s:o}", doubled_pattern, number(value)) : json_object();
}

enum ox_status ox_hf_adapter_describe(const char *folder, const struct ox_model *model, const char *base,
                                      uint64_t base_hash) {
    const struct ox_lora *const lora = &model->config.lora;
    char path[OX_PATH_BYTES];
    char *const real = realpath(base, NULL);
    snprintf(path, sizeof path, "%s", real != NULL ? real : base);
    free(real);
    json_t *const config = json_pack(
        "{s:s, s:s, s:s, s:I, s:o, s:f, s:o, s:s, s:b, s:b, s:b, s:b, s:b, s:o, s:o, s:o, s:o}", "peft_type", "LORA",
        "task_type", "CAUSAL_LM", "base_model_name_or_path", path, "r", (json_int_t)lora->r, "lora_alpha",
        number(lora->alpha),
        "lora_dropout", lora->dropout, "target_modules", target_names(model), "bias",
        ox_hf_bias_name(lora->bias), "use_rslora", lora->rslora, "use_dora", lora->dora, "fan_in_fan_out",
        model->config.layout == OX_WEIGHT_IN_OUT, "inference_mode", true, "init_lora_weights", true, "modules_to_save",
        ox_hf_names(lora->modules_to_save), "target_parameters", ox_hf_names(lora->parameters), "rank_pattern",
        pattern(lora, 2.0 * lora->r), "alpha_pattern", pattern(lora, 2.0 * lora->alpha));
    json_t *const origin = json_pack("{s:s, s:o}", "path", path, "hash", ox_json_hex(&base_hash, 1));
    enum ox_status status = config != NULL && origin != NULL
                                ? ox_hf_write_json(folder, "adapter_config.json", config)
                                : ox_fail(OX_E_NOMEM, "%s: no memory to describe the adapter", folder);
    OX_THEN(status, ox_hf_write_json(folder, base_file, origin));
    json_decref(config);
    json_decref(origin);
    return status;
}

/* ---- a folder with adapters ---- */

/* Makes the model anew with the adapters, whose tensors come after all others. */
static enum ox_status adapt(struct ox_hf_folder *folder, const struct ox_lora *asked) {
    struct ox_model *model = NULL;
    struct ox_lora settled = *asked;
    const struct ox_lora *const lora = &settled;
    OX_ASSERT(folder->adapter == NULL && folder->means == NULL && folder->model->config.lora.r == 0);
    enum ox_status status = ox_lora_settle(&folder->model->config, &settled);
    settled.one_for_both &= ox_lora_unties(folder->model, lora);
    OX_THEN(status, ox_lora_unties(folder->model, lora) ? ox_hf_untie(folder) : OX_OK);
    OX_THEN(status, ox_hf_check_targets(folder->model, lora));
    OX_THEN(status, ox_hf_check_saved(folder->model, lora->modules_to_save));
    if (status != OX_OK) {
        return status;
    }
    struct ox_model_config config = folder->model->config;
    config.lora = *lora;
    status = ox_model_build(&config, &model);
    folder->adapter = status == OX_OK ? calloc(1, sizeof *folder->adapter) : NULL;
    if (status == OX_OK && folder->adapter == NULL) {
        status = ox_hf_fail_memory(folder->path);
    }
    if (status != OX_OK) {
        ox_model_close(&model);
        return status;
    }
    OX_ASSERT(model->adapter_first == folder->model->tensor_count);
    if (folder->mxfp4 != NULL) {
        struct ox_mxfp4_source *const longer = realloc(folder->mxfp4, model->tensor_count * sizeof *longer);
        if (longer == NULL) {
            ox_model_close(&model);
            return ox_hf_fail_memory(folder->path);
        }
        memset(longer + model->adapter_first, 0, (model->tensor_count - model->adapter_first) * sizeof *longer);
        folder->mxfp4 = longer;
    }
    folder->adapter->cached = OX_NO_TENSOR;
    ox_model_close(&folder->model);
    folder->model = model;
    return ox_hf_check_blocks(model, lora->modules_to_save[0] != '\0' ? "--lora-modules-to-save" : "--lora-bias");
}

enum ox_status ox_hf_adapt(struct ox_hf_folder *folder, const struct ox_lora *lora, uint64_t seed) {
    if (folder->adapter != NULL) {
        return ox_fail(OX_E_CONFIG, "--lora-r: %s is an adapter already, with the rank %" PRIu32 "; leave --lora-r out "
                       "to train it further", folder->adapter->path, folder->model->config.lora.r);
    }
    OX_TRY(adapt(folder, lora));
    folder->adapter->seed = seed;
    ox_hf_say_uncovered(folder->model);
    return OX_OK;
}

/* Refuses an adapter of another rank than its configuration has, or of a model of another shape. */
static enum ox_status check_shape(const struct ox_hf_folder *folder, const struct ox_hf_place *place,
                                  const struct ox_tensor *tensor) {
    char expects[OX_PATH_BYTES];
    const bool of_table = tensor->role == OX_ROLE_EMBED_A || tensor->role == OX_ROLE_EMBED_B;
    const bool is_a = of_table ? tensor->role == OX_ROLE_EMBED_A
                               : strstr(tensor->name, ".lora_A.") != NULL; /* [r, inputs]; B is [outputs, r] */
    const bool is_b = of_table ? !is_a : strstr(tensor->name, ".lora_B.") != NULL; /* else one that is trained whole */
    const uint32_t rank_at = is_a ? 0 : 1;
    const bool of_rank = !(is_a || is_b) || (place->entry->rank == 2 &&
                                             place->entry->shape[rank_at] == tensor->whole[rank_at]);
    snprintf(expects, sizeof expects, "%s %.300s", of_rank ? "the model" : "\"r\" of adapter_config.json in",
             of_rank ? folder->path : folder->adapter->path);
    return ox_hf_check_shape(place, tensor->rank, tensor->whole, expects,
                             of_rank ? "name the model that the adapter was trained with by --model"
                                     : "use the adapter_config.json that was saved with the adapter");
}

/* Finds the tensors of the adapters in their file. */
static enum ox_status place_adapters(struct ox_hf_folder *folder, const struct ox_st_file *file) {
    const struct ox_model *const model = folder->model;
    const uint32_t count = model->saved_count;
    struct ox_hf_adapter *const adapter = folder->adapter;
    adapter->entries = calloc(count, sizeof *adapter->entries);
    if (adapter->entries == NULL) {
        return ox_hf_fail_memory(folder->path);
    }
    adapter->file = file;
    for (uint32_t i = 0; i < ox_st_count(file); i++) {
        const struct ox_hf_place place = {file, ox_st_entry(file, i)};
        char renamed[2 * OX_HF_NAME_BYTES];
        bool taken = false;
        OX_TRY(ox_hf_take_expert(folder, place.entry, &taken));
        OX_TRY(taken ? OX_OK : ox_hf_take_table(folder, &place, &taken));
        if (taken) {
            continue;
        }
        const bool fits = strlen(place.entry->name) < OX_HF_NAME_BYTES;
        if (fits) { /* a router's, of transformers 4 */
            ox_lora_name(&model->config, place.entry->name, renamed, sizeof renamed);
        }
        const int64_t idx = fits ? ox_hf_find_saved(model, renamed) : -1;
        if (idx < 0) {
            return ox_fail(OX_E_CONFIG, "%s: tensor \"%s\" is of no module of the model %s that can have an adapter, "
                           "nor of \"modules_to_save\" or \"bias\"", ox_st_path(file), place.entry->name, folder->path);
        }
        adapter->entries[model->tensors[idx].saved_idx] = place.entry;
        OX_TRY(check_shape(folder, &place, &model->tensors[idx]));
    }
    for (uint32_t i = 0; i < count; i++) {
        if (adapter->entries[i] == NULL && !ox_hf_has_experts(adapter, model, model->saved[i])) {
            char name[OX_HF_NAME_BYTES];
            ox_hf_file_name(model, &model->tensors[model->saved[i]], name);
            return ox_fail(OX_E_CONFIG, "%s: lacks \"%s\"; adapters of some layers alone are not supported",
                           ox_st_path(file), name);
        }
    }
    return OX_OK;
}

enum ox_status ox_hf_load_adapter(struct ox_hf_folder *folder, const char *path) {
    char file_path[OX_PATH_BYTES];
    struct ox_lora lora;
    if (folder->adapter != NULL) {
        return ox_fail(OX_E_CONFIG, "--adapter %s: %s is an adapter itself; name the model that it belongs to with "
                       "--model", path, folder->adapter->path);
    }
    if (!ox_hf_is_adapter(path)) {
        return ox_fail(OX_E_CONFIG, "--adapter %s: is no adapter, which has adapter_config.json and no weights of a "
                       "model; a model is named by --model", path);
    }
    OX_TRY(ox_listed_verify_small(path));
    OX_TRY(ox_path_join(path, "adapter_model.safetensors", file_path));
    if (!ox_path_exists(file_path)) {
        return ox_fail(OX_E_CONFIG, "%s: holds no adapter_model.safetensors; save the adapter again with a newer PEFT",
                       path);
    }
    const uint32_t nth = folder->file_count;
    enum ox_status status = ox_hf_open_file(folder, path, "adapter_model.safetensors");
    OX_THEN(status, ox_hf_adapter_config(path, status == OX_OK ? folder->files[nth] : NULL, &lora));
    OX_THEN(status, adapt(folder, &lora));
    if (status == OX_OK && (folder->adapter->path = strdup(path)) == NULL) {
        status = ox_hf_fail_memory(path);
    }
    OX_THEN(status, place_adapters(folder, folder->files[nth]));
    if (status == OX_OK && folder->places != NULL) {
        status = ox_hf_adapter_check_base(path, folder);
    }
    return status;
}

enum ox_status ox_hf_open_adapter(const char *base, const char *adapter, bool weights, struct ox_hf_folder **out) {
    OX_TRY(ox_hf_open(base, weights, out));
    const enum ox_status status = ox_hf_load_adapter(*out, adapter);
    if (status != OX_OK) {
        ox_hf_close(out);
    }
    return status;
}

enum ox_status ox_hf_merge(struct ox_hf_folder *folder) {
    struct ox_model_config config = folder->model->config;
    struct ox_model *base = NULL;
    if (folder->adapter == NULL || folder->adapter->merged != NULL) {
        return OX_OK;
    }
    config.lora = (struct ox_lora){0};
    OX_TRY(ox_model_build(&config, &base));
    folder->adapter->merged = folder->model;
    folder->model = base;
    return OX_OK;
}

const char *ox_hf_base_path(const struct ox_hf_folder *folder) {
    return folder->path;
}

const char *ox_hf_adapter_path(const struct ox_hf_folder *folder) {
    return folder->adapter != NULL ? folder->adapter->path : NULL;
}
