/* Names of modules and parameters as PEFT has them, and which of them a configuration means. */
#include "base/assert.h"
#include "base/log.h"
#include "engine/family/families.h"
#include "engine/model/model.h"

#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = OX_TENSOR_NAME_BYTES, EXPERT_NAMES = 4 };

/* ---- names ---- */

bool ox_tensor_module(const struct ox_tensor *tensor, char out[NAME_BYTES]) {
    static const char end[] = ".weight";
    const size_t length = strlen(tensor->name), tail = sizeof end - 1;
    if (tensor->rank != 2 || length <= tail || strcmp(tensor->name + length - tail, end) != 0) {
        return false;
    }
    snprintf(out, NAME_BYTES, "%.*s", (int)(length - tail), tensor->name);
    return true;
}

/* Writes a name with one part in the place of another. */
static void replace(const char *name, const char *part, const char *by, char *out, size_t bytes) {
    const char *const at = part != NULL ? strstr(name, part) : NULL;
    const int front = (int)(at != NULL ? at - name : (ptrdiff_t)strlen(name));
    const int written = snprintf(out, bytes, "%.*s%s%s", front, name, at != NULL ? by : "",
                                 at != NULL ? at + strlen(part) : "");
    OX_ASSERT(written >= 0 && (size_t)written < bytes);
}

void ox_lora_name(const struct ox_model_config *config, const char *name, char *out, size_t bytes) {
    const char *const *const names = ox_family_find(config->family)->module_names;
    replace(name, names[0], names[1], out, bytes);
}

void ox_lora_name_in_files(const struct ox_model_config *config, const char *name, char *out, size_t bytes) {
    const char *const *const names = ox_family_find(config->family)->module_names;
    replace(name, names[1], names[0], out, bytes);
}

bool ox_lora_module(const struct ox_model_config *config, const struct ox_tensor *tensor, char out[NAME_BYTES]) {
    char module[NAME_BYTES];
    if (!ox_tensor_module(tensor, module)) {
        return false;
    }
    ox_lora_name(config, module, out, NAME_BYTES);
    return true;
}

/* granitemoe alone has a module in its router, "layer". */
static bool is_parameter(const struct ox_tensor *tensor) {
    return tensor->role == OX_ROLE_EXPERT_GATE_UP || tensor->role == OX_ROLE_EXPERT_DOWN ||
           (tensor->role == OX_ROLE_ROUTER && strstr(tensor->name, ".layer.") == NULL);
}

bool ox_lora_parameter(const struct ox_model_config *config, const struct ox_tensor *tensor, char out[NAME_BYTES]) {
    static const char experts[] = ".experts.";
    char name[NAME_BYTES];
    const char *const at = strstr(tensor->name, experts);
    if (!is_parameter(tensor)) {
        return false;
    }
    snprintf(name, sizeof name, "%s", tensor->name);
    if (at != NULL) { /* files may have a tensor for each expert, whose parameter is of all */
        snprintf(name, sizeof name, "%.*s%s%s", (int)(at - tensor->name), tensor->name, experts,
                 tensor->role == OX_ROLE_EXPERT_GATE_UP ? "gate_up_proj" : "down_proj");
    }
    ox_lora_name(config, name, out, NAME_BYTES);
    return true;
}

/* ---- what entries mean ---- */

/* As PEFT compares: the name itself, or its last parts. */
static bool names(const char *entry, size_t length, const char *module) {
    const size_t whole = strlen(module);
    return whole >= length && strncmp(module + whole - length, entry, length) == 0 &&
           (whole == length || module[whole - length - 1] == '.');
}

static bool is_all(const char *targets) {
    return strcmp(targets, "all-linear") == 0;
}

const char *ox_lora_next_target(const char **at, size_t *length) {
    const char *entry = *at + strspn(*at, ", ");
    *length = strcspn(entry, ",");
    *at = entry + *length;
    while (*length > 0 && entry[*length - 1] == ' ') {
        (*length)--;
    }
    return *length > 0 ? entry : NULL;
}

/* Whether a list has an entry that means a name. */
static bool any_names(const char *list, const char *name) {
    size_t length;
    for (const char *at = list, *entry; (entry = ox_lora_next_target(&at, &length)) != NULL;) {
        if (names(entry, length, name)) {
            return true;
        }
    }
    return false;
}

/* Which of the family's names of an expert's modules and its router is the last part of a name; -1: none. */
static int expert_name(const struct ox_model_config *config, const char *name, size_t length) {
    const char *const *const all = ox_family_find(config->family)->expert_names;
    char part[NAME_BYTES];
    snprintf(part, sizeof part, "%.*s", (int)length, name);
    const char *const dot = strrchr(part, '.'), *const last = dot == NULL ? part : dot + 1;
    for (int i = 0; all != NULL && i < EXPERT_NAMES; i++) {
        if (strcmp(all[i], last) == 0) {
            return i;
        }
    }
    return -1;
}

bool ox_lora_is_target(const struct ox_model_config *config, const struct ox_lora *lora,
                       const struct ox_tensor *tensor) {
    char name[NAME_BYTES];
    if (ox_lora_parameter(config, tensor, name)) {
        return any_names(lora->parameters, name);
    }
    if (ox_adapter_role(tensor->role) == OX_ROLE_COUNT || !ox_lora_module(config, tensor, name)) {
        return false;
    }
    const bool is_table = tensor->role == OX_ROLE_EMBED || tensor->role == OX_ROLE_HEAD;
    return is_all(lora->targets) ? expert_name(config, name, strlen(name)) < 0 && !is_table
                                 : any_names(lora->targets, name);
}

/* Adds a name to a list; false where that is full. */
static bool add_name(char list[OX_LORA_TARGETS_BYTES], const char *name, size_t length) {
    const size_t used = strlen(list);
    return (size_t)snprintf(list + used, OX_LORA_TARGETS_BYTES - used, "%s%.*s", used > 0 ? "," : "", (int)length,
                            name) < OX_LORA_TARGETS_BYTES - used;
}

static bool has_name(const char *list, const char *name) {
    size_t length;
    for (const char *at = list, *entry; (entry = ox_lora_next_target(&at, &length)) != NULL;) {
        if (length == strlen(name) && strncmp(entry, name, length) == 0) {
            return true;
        }
    }
    return false;
}

enum ox_status ox_lora_settle(const struct ox_model_config *config, struct ox_lora *lora) {
    static const char *const parameters[EXPERT_NAMES] = {"gate.weight", "gate_up_proj", "gate_up_proj", "down_proj"};
    const char *const *const old = ox_family_find(config->family)->expert_names;
    const bool all = is_all(lora->targets);
    char rest[OX_LORA_TARGETS_BYTES] = "";
    bool seen[EXPERT_NAMES] = {all, all, all, all}, fits = true;
    size_t length;
    if (old == NULL) {
        return OX_OK;
    }
    for (const char *at = lora->targets, *entry; !all && (entry = ox_lora_next_target(&at, &length)) != NULL;) {
        const int which = expert_name(config, entry, length);
        if (which >= 0) {
            seen[which] = true;
        } else {
            fits &= add_name(rest, entry, length);
        }
    }
    if (seen[1] != seen[2]) {
        return ox_fail(OX_E_CONFIG, "--lora-target-modules: names %s without %s, but they are one parameter of the "
                       "experts, as in PEFT; name both", old[seen[1] ? 1 : 2], old[seen[1] ? 2 : 1]);
    }
    for (int i = 0; i < EXPERT_NAMES; i++) {
        if (seen[i] && !has_name(lora->parameters, parameters[i])) {
            fits &= add_name(lora->parameters, parameters[i], strlen(parameters[i]));
        }
    }
    lora->doubled |= seen[1];
    if (!all) {
        memcpy(lora->targets, rest, sizeof rest);
    }
    return fits ? OX_OK : ox_fail(OX_E_CONFIG, "--lora-target-parameters: the list is too long; give at most %d bytes",
                                  OX_LORA_TARGETS_BYTES - 1);
}

/* ---- what is trained whole ---- */

static bool saves(const char *modules, const char *name) {
    size_t length;
    for (const char *at = modules, *entry; (entry = ox_lora_next_target(&at, &length)) != NULL;) {
        for (const char *end = strchr(name, '.'); end != NULL; end = strchr(end + 1, '.')) {
            if ((size_t)(end - name) >= length && strncmp(end - length, entry, length) == 0) {
                return true;
            }
        }
    }
    return false;
}

bool ox_lora_is_saved(const struct ox_model_config *config, const char *modules, const char *tensor_name) {
    char name[2 * NAME_BYTES];
    ox_lora_name(config, tensor_name, name, sizeof name);
    return saves(modules, tensor_name) || saves(modules, name);
}

bool ox_lora_unties(const struct ox_model *model, const struct ox_lora *lora) {
    const struct ox_unit *const embed = &model->units[model->embed_idx];
    bool means = saves(lora->modules_to_save, OX_HEAD_NAME) || ox_lora_means_head(lora);
    for (const struct ox_tensor *at = NULL; (at = ox_unit_next_tensor(model, embed, at)) != NULL;) {
        means |= at->role == OX_ROLE_EMBED && (saves(lora->modules_to_save, at->name) ||
                                               ox_lora_is_target(&model->config, lora, at));
    }
    return model->config.tied && means;
}

bool ox_lora_means_head(const struct ox_lora *lora) {
    char module[] = OX_HEAD_NAME;
    *strrchr(module, '.') = '\0';
    return any_names(lora->targets, module);
}
