#include "offload/plan/tier.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/log.h"

#include <stddef.h>

enum ox_status ox_tiers_open(struct ox_device *device, struct ox_pool *pool, const uint64_t bytes[OX_TIER_COUNT],
                             struct ox_tiers *out) {
    *out = (struct ox_tiers){.device = device, .device_bytes = bytes[OX_TIER_DEVICE]};
    enum ox_status status = ox_arena_open("host", bytes[OX_TIER_HOST], pool, &out->host);
    if (status == OX_OK && out->host.bytes > 0) {
        status = ox_device_host_pin(device, out->host.base, out->host.bytes);
        out->is_pinned = status == OX_OK;
    }
    if (status == OX_OK && out->device_bytes > 0) {
        status = ox_device_mem_open(device, out->device_bytes, &out->device_base);
    }
    if (status != OX_OK) {
        ox_tiers_close(out);
    }
    return status;
}

void ox_tiers_close(struct ox_tiers *tiers) {
    if (tiers->device_base != NULL) {
        ox_device_mem_close(tiers->device, tiers->device_base, tiers->device_bytes);
    }
    if (tiers->is_pinned && ox_device_host_unpin(tiers->device, tiers->host.base, tiers->host.bytes) != OX_OK) {
        ox_log(OX_LOG_WARN, "%s", ox_error_text()); /* the memory is released anyway */
    }
    ox_arena_close(&tiers->host);
    *tiers = (struct ox_tiers){0};
}

static struct ox_view view_buf(const struct ox_tiers *tiers, const struct ox_buf *buf) {
    const bool on_device = buf->tier == OX_TIER_DEVICE;
    OX_ASSERT(buf->tier != OX_TIER_NVME);
    OX_ASSERT(buf->offset + buf->bytes <= (on_device ? tiers->device_bytes : tiers->host.bytes));
    unsigned char *const base = on_device ? tiers->device_base : tiers->host.base;
    return (struct ox_view){.ptr = base + buf->offset, .bytes = buf->bytes, .tier = (enum ox_tier)buf->tier};
}

struct ox_view ox_tiers_nth_view_if(const struct ox_tiers *tiers, const struct ox_plan *plan,
                                    const struct ox_task *task, enum ox_use_role role, uint32_t nth) {
    const int use = ox_task_find_nth_use(task, role, nth);
    if (use < 0 || plan->bufs[task->uses[use].buf_idx].tier == OX_TIER_NVME) {
        return (struct ox_view){.tier = OX_TIER_NVME};
    }
    return view_buf(tiers, &plan->bufs[task->uses[use].buf_idx]);
}

struct ox_view ox_tiers_view_if(const struct ox_tiers *tiers, const struct ox_plan *plan,
                                const struct ox_task *task, enum ox_use_role role) {
    return ox_tiers_nth_view_if(tiers, plan, task, role, 0);
}

struct ox_view ox_tiers_view(const struct ox_tiers *tiers, const struct ox_plan *plan, const struct ox_task *task,
                               enum ox_use_role role) {
    const struct ox_view view = ox_tiers_view_if(tiers, plan, task, role);
    OX_ASSERT(view.ptr != NULL);
    return view;
}

struct ox_view ox_tiers_resident(const struct ox_tiers *tiers, const struct ox_plan *plan, uint32_t buf_idx) {
    OX_ASSERT(buf_idx < plan->buf_count && plan->bufs[buf_idx].resident);
    return view_buf(tiers, &plan->bufs[buf_idx]);
}

struct ox_view ox_tiers_scratch(const struct ox_tiers *tiers, const struct ox_plan *plan) {
    const uint64_t begin = plan->resident_bytes[OX_TIER_HOST];
    OX_ASSERT(begin <= tiers->host.bytes);
    return (struct ox_view){
        .ptr = tiers->host.base + begin, .bytes = tiers->host.bytes - begin, .tier = OX_TIER_HOST};
}
