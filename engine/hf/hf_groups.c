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

/* What one --group says; NAN: nothing. */
struct group {
    char pattern[OX_CONFIG_TEXT_BYTES];
    double rate_share, weight_decay;
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
    double value = 0;
    if (strncmp(setting, rate, strlen(rate)) == 0) {
        const char *const text = setting + strlen(rate);
        if (read_number(text, "x", &value)) {
            group->rate_share = value;
            return OX_OK;
        }
        if (read_number(text, "", &value)) {
            group->rate_share = value / learning_rate;
            return OX_OK;
        }
        return ox_fail(OX_E_CONFIG, "--group %s: '%s' is no learning rate; write lr=1e-5, or lr=0.1x for a tenth of "
                       "--learning-rate", group->pattern, text);
    }
    if (strncmp(setting, decay, strlen(decay)) == 0) {
        return read_number(setting + strlen(decay), "", &group->weight_decay)
                   ? OX_OK
                   : ox_fail(OX_E_CONFIG, "--group %s: '%s' is no weight decay; write weight_decay=0.1",
                             group->pattern, setting + strlen(decay));
    }
    return ox_fail(OX_E_CONFIG, "--group %s: '%s' is neither lr=... nor weight_decay=...", group->pattern, setting);
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

/* Gives the tensors that the group means what it says, and logs that. */
static enum ox_status apply(struct ox_model *model, const struct group *group, double learning_rate) {
    uint64_t found = 0, trained = 0, count = 0;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        struct ox_tensor *const tensor = &model->tensors[i];
        if (!ox_hf_means(model, group->pattern, tensor)) {
            continue;
        }
        found++;
        if (!tensor->trained) {
            continue;
        }
        struct ox_tensor_group *const own = &tensor->group;
        *own = own->given ? *own : (struct ox_tensor_group){true, 1, (double)NAN};
        own->rate_share = isnan(group->rate_share) ? own->rate_share : group->rate_share;
        own->weight_decay = isnan(group->weight_decay) ? own->weight_decay : group->weight_decay;
        trained++;
        count += tensor->count;
    }
    if (found == 0) {
        return ox_hf_refuse_pattern(model, "--group", group->pattern);
    }
    if (trained == 0) {
        return ox_fail(OX_E_CONFIG, "--group %s: all that it means is frozen; leave it out, or freeze less",
                       group->pattern);
    }
    char params[OX_SIZE_TEXT_BYTES], rate[64] = "", decay[64] = "";
    if (!isnan(group->rate_share)) {
        snprintf(rate, sizeof rate, ", peak learning rate %.4g", group->rate_share * learning_rate);
    }
    if (!isnan(group->weight_decay)) {
        snprintf(decay, sizeof decay, ", weight decay %.4g", group->weight_decay);
    }
    ox_log(OX_LOG_INFO, "group %s: %" PRIu64 " tensor%s, %s parameters%s%s", group->pattern, trained,
           ox_plural(trained), ox_count_text((double)count, params), rate, decay);
    return OX_OK;
}

enum ox_status ox_hf_group(struct ox_model *model, const char *groups, double learning_rate) {
    enum ox_status status = OX_OK;
    for (const char *at = groups + strspn(groups, " ,"); *at != '\0' && status == OX_OK;) {
        struct group group;
        status = read_group(&at, learning_rate, &group);
        OX_THEN(status, apply(model, &group, learning_rate));
    }
    return status == OX_OK ? ox_hf_check_blocks(model, "--group") : status;
}
