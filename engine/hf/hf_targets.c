/* What --lora-target-modules and --lora-target-parameters mean in a model, and what they leave. */
#include "engine/hf/hf_internal.h"

#include "base/bytes.h"
#include "base/log.h"
#include "base/name/name.h"
#include "engine/config/config.h"
#include "engine/hf/hf_pattern.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NAMES_BYTES = 512 };

/* The last part of a module's name: "q_proj". */
static const char *last_part(const char *module) {
    const char *const dot = strrchr(module, '.');
    return dot == NULL ? module : dot + 1;
}

const char *ox_hf_last_parts(const char *module) {
    const char *part = last_part(module);
    while (part - 1 > module && *(part - 2) != '.') { /* the part before the last */
        part--;
    }
    return part > module + 1 ? part - 1 : module;
}

bool ox_hf_lists(const char *names, const char *name) {
    size_t length;
    const char *entry;
    for (const char *at = names; (entry = ox_lora_next_target(&at, &length)) != NULL;) {
        if (length == strlen(name) && strncmp(entry, name, length) == 0) {
            return true;
        }
    }
    return false;
}

/* A list of names, and the one of them that is nearest to what was wanted. */
struct nearest {
    const char *wanted;
    char *text, *name;
    unsigned distance;
    size_t end;
};

static void consider(struct nearest *list, const char *name) {
    const unsigned distance = ox_name_distance(list->wanted, name);
    if (list->end < NAMES_BYTES) {
        list->end += (size_t)snprintf(list->text + list->end, NAMES_BYTES - list->end, "%s%s",
                                      list->end == 0 ? "" : ", ", name);
    }
    if (distance < list->distance) {
        list->distance = distance;
        snprintf(list->name, OX_TENSOR_NAME_BYTES, "%s", name);
    }
}

/* Lists the last parts of the modules that can be adapted, and finds the nearest to a name. */
static void list_modules(const struct ox_model *model, const char *wanted, char text[NAMES_BYTES],
                         char nearest[OX_TENSOR_NAME_BYTES]) {
    struct nearest list = {.wanted = wanted, .text = text, .name = nearest, .distance = UINT32_MAX};
    text[0] = nearest[0] = '\0';
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        char module[OX_TENSOR_NAME_BYTES];
        const bool is_parameter = ox_lora_parameter(&model->config, &model->tensors[i], module);
        if (ox_adapter_role(model->tensors[i].role) != OX_ROLE_COUNT && !is_parameter &&
            ox_lora_module(&model->config, &model->tensors[i], module) && !ox_hf_lists(text, last_part(module))) {
            consider(&list, last_part(module));
        }
    }
    if (model->config.tied) { /* its head is the table */
        consider(&list, "lm_head");
    }
}

/* Whether a target names the weights of a tensor, of which experts may have all in one. */
static bool names_tensor(const char *targets, const struct ox_tensor *tensor) {
    static const char end[] = ".weight";
    char module[OX_TENSOR_NAME_BYTES];
    const size_t length = strlen(tensor->name), tail = sizeof end - 1;
    const bool ends = length > tail && strcmp(tensor->name + length - tail, end) == 0;
    snprintf(module, sizeof module, "%.*s", (int)(length - (ends ? tail : 0)), tensor->name);
    return tensor->rank >= 2 && (ox_hf_lists(targets, module) || ox_hf_lists(targets, last_part(module)) ||
                                 ox_hf_lists(targets, ox_hf_last_parts(module)));
}

void ox_hf_say_uncovered(const struct ox_model *model) {
    const struct ox_lora *const lora = &model->config.lora;
    uint64_t covered = 0, left = 0;
    const struct ox_tensor *first = NULL;
    for (uint32_t i = 0; i < model->adapter_first; i++) {
        const struct ox_tensor *const tensor = &model->tensors[i];
        const bool is_target = ox_lora_is_target(&model->config, lora, tensor);
        const bool is_left = !is_target && names_tensor(lora->targets, tensor);
        covered += is_target;
        left += is_left;
        first = is_left && first == NULL ? tensor : first;
    }
    if (left > 0) {
        ox_log(OX_LOG_WARN, "--lora-target-modules %s: adapts %" PRIu64 " module%s, and leaves %" PRIu64
               " tensors of the name as they are, such as %s: experts are adapted by --lora-target-parameters, "
               "positions are not", lora->targets, covered, ox_plural(covered), left, first->name);
    }
}

/* Lists the last parts of the parameters that can be adapted. */
static void list_parameters(const struct ox_model *model, char text[NAMES_BYTES]) {
    size_t end = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < model->tensor_count && end < NAMES_BYTES; i++) {
        char name[OX_TENSOR_NAME_BYTES], with[OX_TENSOR_NAME_BYTES];
        if (!ox_lora_parameter(&model->config, &model->tensors[i], name)) {
            continue;
        }
        snprintf(with, sizeof with, "%s", ox_hf_last_parts(name));
        if (!ox_hf_lists(text, with)) {
            end += (size_t)snprintf(text + end, NAMES_BYTES - end, "%s%s", end == 0 ? "" : ", ", with);
        }
    }
}

static enum ox_status refuse_parameter(const struct ox_model *model, const char *wanted) {
    char listed[NAMES_BYTES];
    list_parameters(model, listed);
    return ox_fail(OX_E_CONFIG, "--lora-target-parameters %s: the model has no such parameter%s%s; other matrices are "
                   "named by --lora-target-modules", wanted, listed[0] != '\0' ? ". It has " : "", listed);
}

/* Says why a name adapts nothing. */
static enum ox_status refuse_target(const struct ox_model *model, const char *wanted) {
    char listed[NAMES_BYTES], nearest[OX_TENSOR_NAME_BYTES];
    list_modules(model, wanted, listed, nearest);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        if (names_tensor(wanted, &model->tensors[i])) {
            return ox_fail(OX_E_CONFIG, "--lora-target-modules %s: positions have no adapters, and experts have "
                           "theirs by --lora-target-parameters; of this model take some of %s", wanted,
                           listed);
        }
    }
    return ox_fail(OX_E_CONFIG, "--lora-target-modules %s: the model has no such module; did you mean %s? It has %s; "
                   "all-linear takes all", wanted, nearest, listed);
}

/* Whether any tensor is meant by one entry. */
static bool means_any(const struct ox_model *model, const struct ox_lora *one) {
    bool found = false;
    for (uint32_t i = 0; i < model->tensor_count && !found; i++) {
        found = ox_lora_is_target(&model->config, one, &model->tensors[i]);
    }
    return found;
}

/* Refuses magnitudes where there are none: of parameters, as in PEFT, of routers and gates, beside dropout and trained
 * biases. */
static enum ox_status check_dora(const struct ox_model *model, const struct ox_lora *lora) {
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct ox_tensor *const tensor = &model->tensors[i];
        const enum ox_role a = ox_adapter_role(tensor->role);
        if (ox_lora_is_target(&model->config, lora, tensor) && ox_magnitude_role(a) == OX_ROLE_COUNT) {
            return ox_fail(OX_E_CONFIG, "--use-dora: \"%s\" can have no magnitudes; adapt linear modules alone, by "
                           "--lora-target-modules such as q_proj,v_proj", tensor->name);
        }
    }
    return lora->dropout == 0.0 && lora->bias == OX_LORA_BIAS_NONE
               ? OX_OK
               : ox_fail(OX_E_CONFIG, "--use-dora: does not go together with %s here; leave one of them out",
                         lora->dropout != 0.0 ? "--lora-dropout" : "--lora-bias");
}

enum ox_status ox_hf_check_targets(const struct ox_model *model, const struct ox_lora *lora) {
    size_t length;
    const char *entry;
    for (const char *at = lora->targets; (entry = ox_lora_next_target(&at, &length)) != NULL;) {
        struct ox_lora one = {0};
        snprintf(one.targets, sizeof one.targets, "%.*s", (int)length, entry);
        if (!means_any(model, &one)) {
            return refuse_target(model, one.targets);
        }
    }
    for (const char *at = lora->parameters; (entry = ox_lora_next_target(&at, &length)) != NULL;) {
        struct ox_lora one = {0};
        snprintf(one.parameters, sizeof one.parameters, "%.*s", (int)length, entry);
        if (!means_any(model, &one)) {
            return refuse_parameter(model, one.parameters);
        }
    }
    if (lora->dora) {
        OX_TRY(check_dora(model, lora));
    }
    return lora->parameters[0] == '\0' || lora->dropout == 0.0
               ? OX_OK
               : ox_fail(OX_E_CONFIG, "--lora-dropout: adapters of parameters (%s) have none, as in PEFT; leave it "
                         "out, or adapt modules alone", lora->parameters);
}
