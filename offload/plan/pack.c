/* Offsets by size, where offsets by time leave gaps: the largest buffers first, each at the lowest place that no buffer
 * has at the same time. Each buffer is compared with all that were placed before, so a plan of many is not packed. */
#include "offload/plan/internal.h"

#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

/* The most buffers that are packed: more would take longer than building the plan. */
enum { PACKED_MAX = 600 };

/* Sizes in steps of an eighth of a power of two or less: buffers of nearly one size take each other's place. */
static uint32_t class_of(uint64_t bytes) {
    uint32_t log = 0;
    for (uint64_t rest = bytes; rest > 1; rest >>= 1) {
        log++;
    }
    return 16 * log + (uint32_t)(log >= 4 ? bytes >> (log - 4) & 15 : 0);
}

static uint32_t span_of(const struct ox_pack_item *item) {
    return item->freed - item->first;
}

static int by_first(const struct ox_pack_item *x, const struct ox_pack_item *y) {
    return x->first != y->first ? (x->first < y->first ? -1 : 1) : x->buf_idx < y->buf_idx ? -1 : 1;
}

/* The orders that are tried: by class of size and then how long a buffer lives; by size; by how long; by both. */
static int by_class(const void *a, const void *b) {
    const struct ox_pack_item *const x = a, *const y = b;
    return x->size_class != y->size_class ? (x->size_class > y->size_class ? -1 : 1)
           : span_of(x) != span_of(y)     ? (span_of(x) > span_of(y) ? -1 : 1) : by_first(x, y);
}

static int by_size(const void *a, const void *b) {
    const struct ox_pack_item *const x = a, *const y = b;
    return x->bytes != y->bytes ? (x->bytes > y->bytes ? -1 : 1) : by_first(x, y);
}

static int by_span(const void *a, const void *b) {
    const struct ox_pack_item *const x = a, *const y = b;
    return span_of(x) != span_of(y) ? (span_of(x) > span_of(y) ? -1 : 1) : by_size(a, b);
}

static int by_volume(const void *a, const void *b) {
    const struct ox_pack_item *const x = a, *const y = b;
    const double volumes[] = {(double)x->bytes * span_of(x), (double)y->bytes * span_of(y)};
    return volumes[0] != volumes[1] ? (volumes[0] > volumes[1] ? -1 : 1) : by_first(x, y);
}

static int (*const orders[OX_PACK_ORDERS])(const void *a, const void *b) = {by_class, by_size, by_span, by_volume};

/* A placed buffer; they are kept in order of address. */
struct placed {
    uint64_t begin, end;
    uint32_t first, freed;
};

/* Places the item at the lowest address at which it lies beside none of the placed ones that live at the same time. */
static void place_item(struct placed *placed, uint32_t count, struct ox_pack_item *item) {
    uint64_t at = 0;
    uint32_t past = 0;
    for (; past < count; past++) {
        if (placed[past].first <= item->freed && item->first <= placed[past].freed) {
            if (placed[past].begin >= at + item->bytes) {
                break;
            }
            at = ox_max_u64(at, placed[past].end);
        }
    }
    while (past > 0 && placed[past - 1].begin > at) {
        past--;
    }
    memmove(placed + past + 1, placed + past, (count - past) * sizeof *placed);
    placed[past] = (struct placed){.begin = at, .end = at + item->bytes, .first = item->first, .freed = item->freed};
    item->begin = at;
}

/* Places the items in this order; returns where they end, or, once that is `most` or more, where those so far do. */
static uint64_t place_in(struct ox_pack_item *items, uint32_t count, int order, uint64_t most) {
    struct placed placed[PACKED_MAX];
    uint64_t end = 0;
    qsort(items, count, sizeof *items, orders[order]);
    for (uint32_t i = 0; i < count && end < most; i++) {
        place_item(placed, i, &items[i]);
        end = ox_max_u64(end, items[i].begin + items[i].bytes);
    }
    return end;
}

/* Lists the buffers of a tier, if they are not too many; returns their number. */
static uint32_t list_items(struct ox_plan_full *full, enum ox_tier tier) {
    const struct ox_plan_scratch *const scratch = &full->scratch;
    const uint32_t *const events = scratch->events[tier], event_count = scratch->event_count[tier];
    uint32_t count = 0;
    for (uint32_t i = 0; i < event_count && count <= PACKED_MAX; i++) {
        const uint32_t buf_idx = events[i] / 2;
        const uint64_t bytes = full->plan.bufs[buf_idx].bytes;
        if ((events[i] & 1) == 0) {
            scratch->items[count++] = (struct ox_pack_item){.bytes = bytes, .first = i, .freed = event_count,
                                                            .buf_idx = buf_idx, .size_class = class_of(bytes)};
        } else {
            scratch->items[scratch->nth[buf_idx]].freed = i;
        }
    }
    return count;
}

uint64_t ox_plan_pack(struct ox_plan_full *full, enum ox_tier tier, struct ox_arena_known *known, uint64_t enough,
                      uint64_t most, bool measuring) {
    struct ox_pack_item *const items = full->scratch.items;
    const uint32_t count = !measuring || known->tried == 0 ? list_items(full, tier) : 0;
    uint64_t least = most;
    int best = -1, placed = -1;
    for (int order = 0; order < (measuring ? 1 : OX_PACK_ORDERS) && count <= PACKED_MAX && least > enough; order++) {
        if (known->tried == (uint32_t)order) {
            known->packed_end[known->tried++] = place_in(items, count, order, least);
            placed = order;
        }
        if (known->packed_end[order] < least) {
            least = known->packed_end[order];
            best = order;
        }
    }
    if (!measuring && best >= 0) {
        if (best != placed) {
            (void)place_in(items, count, best, most);
        }
        for (uint32_t i = 0; i < count; i++) {
            full->scratch.packed[items[i].buf_idx] = items[i].begin;
        }
    }
    return least;
}
