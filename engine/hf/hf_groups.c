/* --group: tensors with a learning rate or a weight decay of their own. */
#include "base/bytes.h"
#include "base/log.h"
#include "engine/config/config.h"
#include "engine/hf/hf_pattern.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What one --group says; NAN: nothing; and what it means of what is trained. */
struct group {
    char pattern[OX_CONFIG_TEXT_BYTES];
    double rate_share, weight_decay;
    uint64_t tensors, params;
};

/* Reads a number that `end` follows at once; false for anything else. */
static bool read_number(const char *text, const char *end, double *out) {
    char *past = NULL;
    *out = strtod(text, &past);
    return past != text && strcmp(past, end) == 0 && isfinite(*out) && *out >= 0;
}

/* Reads KEY=VALUE into the group. A rate is one of its own, or a factor of the run's. */
static enum ox_status read_setting(const char *setting, double learning_rate, struct group *group) {
    static const char rate[] = "lr=", decay[] = "weight_decay=";
    const bool is_rate = strncmp(setting, rate, strlen(rate)) == 0;
    const bool is_decay = strncmp(setting, decay, strlen(decay)) == 0;
    const char *const text = setting + strcspn(setting, "=") + 1;
    double *const own = is_rate ? &group->rate_share : &group->weight_decay;
    double value = 0;
    if (!is_rate && !is_decay) {
        return ox_fail(OX_E_CONFIG, "--group %s: '%s' is neither lr=... nor weight_decay=...", group->pattern, setting);
    }
    if (!isnan(*own)) {
        return ox_fail(OX_E_CONFIG, "--group %s: %s is given twice; give it once", group->pattern,
                       is_rate ? "lr" : "weight_decay");
    }
    if (is_rate && read_number(text, "x", &value)) {
        *own = value;
    } else if (read_number(text, "", &value)) {
        *own = is_rate ? value / learning_rate : value;
    } else {
        return is_rate ? ox_fail(OX_E_CONFIG, "--group %s: '%s' is no learning rate; write lr=1e-5, or lr=0.1x for a "
                                 "tenth of --learning-rate", group->pattern, text)
                       : ox_fail(OX_E_CONFIG, "--group %s: '%s' is no weight decay; write weight_decay=0.1",
                                 group->pattern, text);
    }
    return OX_OK;
}

/* Cuts the item that begins at *at out of a list with commas, and goes behind it. */
static void take_item(const char **at, char item[OX_CONFIG_TEXT_BYTES]) {
    const char *from = *at + strspn(*at, " ,");
    const size_t len = strcspn(from, ",");
    snprintf(item, OX_CONFIG_TEXT_BYTES, "%.*s", (int)len, from);
    *at = from + len + strspn(from + len, " ,");
}

/* Reads the group that begins at *at, with the settings after it, which have no colon. */
static enum ox_status read_group(const char **at, double learning_rate, struct group *group) {
    char item[OX_CONFIG_TEXT_BYTES];
    take_item(at, item);
    char *const colon = strchr(item, ':');
    *group = (struct group){.rate_share = (double)NAN, .weight_decay = (double)NAN};
    if (colon == NULL || colon == item) {
        return ox_fail(OX_E_CONFIG, "--group %s: is not of the form PATTERN:lr=...,weight_decay=...", item);
    }
    *colon = '\0';
    snprintf(group->pattern, sizeof group->pattern, "%s", item);
    enum ox_status status = read_setting(colon + 1, learning_rate, group);
    while (status == OX_OK && **at != '\0' && memchr(*at, ':', strcspn(*at, ",")) == NULL) {
        take_item(at, item);
        status = read_setting(item, learning_rate, group);
    }
    return status;
}

/* Which group decides on each tensor, by key; and how many tensors each group decides on. */
enum key { RATE, DECAY, KEYS };
struct deciding {
    uint32_t *by[KEYS], *count[KEYS];
};

static void decide(struct deciding *deciding, enum key key, uint32_t tensor_idx, uint32_t group_idx, double value,
                   double *own) {
    uint32_t *const by = &deciding->by[key][tensor_idx];
    if (!isnan(value)) {
        *own = value;
        deciding->count[key][*by]--; /* of group 0, which is none, nobody asks */
        deciding->count[key][group_idx]++;
        *by = group_idx;
    }
}

/* Gives the tensors that the group means what it says. */
static enum ox_status apply(struct ox_model *model, struct group *group, uint32_t group_idx,
                            struct deciding *deciding) {
    const char *pattern = group->pattern;
    const bool excepts = ox_hf_excepts(&pattern);
    uint64_t found = 0, named = 0;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        struct ox_tensor *const tensor = &model->tensors[i];
        const bool is_named = ox_hf_means(model, pattern, tensor);
        named += is_named;
        found += is_named != excepts;
        if (is_named == excepts || !tensor->trained) {
            continue;
        }
        struct ox_tensor_group *const own = &tensor->group;
        *own = own->given ? *own : (struct ox_tensor_group){true, 1, (double)NAN};
        decide(deciding, RATE, i, group_idx, group->rate_share, &own->rate_share);
        decide(deciding, DECAY, i, group_idx, group->weight_decay, &own->weight_decay);
        group->tensors++;
        group->params += tensor->count;
    }
    if (named == 0) {
        return ox_hf_refuse_pattern(model, "--group", pattern);
    }
    if (group->tensors == 0) {
        return ox_fail(OX_E_CONFIG, "--group %s: %s less", group->pattern,
                       found == 0 ? "means no tensor; leave it out, or except"
                                  : "all that it means is frozen; leave it out, or freeze");
    }
    return OX_OK;
}

static void log_group(const struct group *group, double learning_rate) {
    char params[OX_SIZE_TEXT_BYTES], rate[64] = "", decay[64] = "";
    if (!isnan(group->rate_share)) {
        snprintf(rate, sizeof rate, ", peak learning rate %.4g", group->rate_share * learning_rate);
    }
    if (!isnan(group->weight_decay)) {
        snprintf(decay, sizeof decay, ", weight decay %.4g", group->weight_decay);
    }
    ox_log(OX_LOG_INFO, "group %s: %" PRIu64 " tensor%s, %s parameters%s%s", group->pattern, group->tensors,
           ox_plural(group->tensors), ox_count_text((double)group->params, params), rate, decay);
}

/* Refuses a group of whose rate or decay later groups leave nothing. */
static enum ox_status check_heard(const struct group *group, uint32_t group_idx, const struct deciding *deciding) {
    const double values[KEYS] = {group->rate_share, group->weight_decay};
    for (int key = 0; key < KEYS; key++) {
        if (!isnan(values[key]) && deciding->count[key][group_idx] == 0) {
            return ox_fail(OX_E_CONFIG, "--group %s: later groups decide the %s of all that it means; leave it out, or "
                           "put it behind them", group->pattern, key == RATE ? "lr" : "weight_decay");
        }
    }
    return OX_OK;
}

static enum ox_status read_all(struct ox_model *model, const char *groups, double learning_rate, struct group *list,
                               struct deciding *deciding) {
    enum ox_status status = OX_OK;
    uint32_t count = 1; /* the first is none */
    for (const char *at = groups + strspn(groups, " ,"); *at != '\0' && status == OX_OK; count++) {
        status = read_group(&at, learning_rate, &list[count]);
        OX_THEN(status, apply(model, &list[count], count, deciding));
    }
    for (uint32_t i = 1; i < count && status == OX_OK; i++) {
        status = check_heard(&list[i], i, deciding);
    }
    for (uint32_t i = 1; i < count && status == OX_OK; i++) {
        log_group(&list[i], learning_rate);
    }
    return status;
}

enum ox_status ox_hf_group(struct ox_model *model, const char *groups, double learning_rate) {
    struct deciding deciding = {{NULL}, {NULL}};
    uint32_t most = 2;
    for (const char *at = groups; *at != '\0'; at++) {
        most += *at == ',';
    }
    struct group *const list = calloc(most, sizeof *list);
    bool all = list != NULL;
    for (int key = 0; key < KEYS; key++) {
        deciding.by[key] = calloc(model->tensor_count, sizeof *deciding.by[key]);
        deciding.count[key] = calloc(most, sizeof *deciding.count[key]);
        all = all && deciding.by[key] != NULL && deciding.count[key] != NULL;
    }
    const enum ox_status status = all ? read_all(model, groups, learning_rate, list, &deciding)
                                      : ox_fail(OX_E_NOMEM, "--group: no memory for the list of groups");
    for (int key = 0; key < KEYS; key++) {
        free(deciding.by[key]);
        free(deciding.count[key]);
    }
    free(list);
    return status == OX_OK ? ox_hf_check_blocks(model, "--group") : status;
}
