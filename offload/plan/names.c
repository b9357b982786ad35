/* Names of lanes, tasks, buffers, links and tiers: data alone, which the proof may use for its messages. */
#include "offload/plan/cases.h"

#include "base/assert.h"

const char *ox_lane_name(enum ox_lane_id lane) {
    static const char *const names[OX_LANE_COUNT] = {"compute",    "h2d",    "d2h", "nvme.read",
                                                     "nvme.write", "reduce", "adam"};
    OX_ASSERT((unsigned)lane < OX_LANE_COUNT);
    return names[lane];
}

const char *ox_task_name(enum ox_task_kind kind) {
    static const char *const names[OX_TASK_KIND_COUNT] = {
        "batch",     "read",      "upload",     "join",      "forward",   "head",      "backward", "act-save",
        "act-write", "act-read",  "act-load",   "grad-zero", "grad-add",  "grad-pack", "grad-save",
        "grad-write", "grad-read", "grad-load", "reduce",    "dev-reduce", "norm-save", "norm",    "begin",
        "download",  "adam",      "refresh",    "dev-adam",  "nonfinite",   "loss",      "written",  "commit"};
    OX_ASSERT((unsigned)kind < OX_TASK_KIND_COUNT);
    return names[kind];
}

const char *ox_buf_name(enum ox_buf_kind kind) {
    static const char *const names[OX_BUF_KIND_COUNT] = {"weights",     "optimizer state",  "gradients",
                                                         "activations", "kept activations", "fp32 weights",
                                                         "workspace",   "tokens",           "optimizer stream",
                                                         "small"};
    OX_ASSERT((unsigned)kind < OX_BUF_KIND_COUNT);
    return names[kind];
}

const char *ox_link_name(enum ox_link link) {
    static const char *const names[OX_LINK_COUNT] = {"nvme_read", "nvme_write", "h2d", "d2h"};
    OX_ASSERT((unsigned)link < OX_LINK_COUNT);
    return names[link];
}

const char *ox_traffic_name(enum ox_traffic_kind kind) {
    static const char *const names[OX_TRAFFIC_KIND_COUNT] = {"weights", "state", "grads", "activations",
                                                             "other"};
    OX_ASSERT((unsigned)kind < OX_TRAFFIC_KIND_COUNT);
    return names[kind];
}

const char *ox_fact_name(enum ox_fact fact) {
    static const char *const names[] = {"own-work",   "speculates",  "commits", "begin-due", "commit-due",
                                        "counts-due", "from-memory", "due",     "wanted"};
    const int idx = __builtin_ctz(fact);
    OX_ASSERT(fact != 0 && (unsigned)idx < sizeof names / sizeof *names);
    return names[idx];
}

const char *ox_tier_name(enum ox_tier tier) {
    static const char *const names[OX_TIER_COUNT] = {"device", "host", "nvme"};
    OX_ASSERT((unsigned)tier < OX_TIER_COUNT);
    return names[tier];
}
