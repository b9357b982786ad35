/* Offsets by size, where offsets by time leave gaps: the largest buffers first, each at the lowest place that no buffer
 * has at the same time. Where that leaves gaps too, those that came to lie too high go first, and other orders are
 * tried. Placed buffers are found by when they begin and about how long they live, so that placing one takes as long as
 * there are buffers beside it, not as long as there are buffers. */
#include "offload/plan/internal.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

/* A way to pack is an order, and how often what lay too high then goes first. */
enum { LIFTS = 3, LEVELS = 31 };
/* Up to so many buffers all that were placed are looked at, which is faster than to find those beside. */
enum { SCANNED_MAX = 600 };
/* Steps after which no other way is tried: about as much work as building a plan of 20,000 tasks; those of one way,
 * where more means that thousands of buffers are there at a time; and those of one way while measuring. */
static const uint64_t STEPS_WAYS = 400000, STEPS_MAX = 60000000, STEPS_MEASURING = 4000000;

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

static int by_rank(const void *a, const void *b) {
    const struct ox_pack_item *const x = a, *const y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static int (*const orders[])(const void *a, const void *b) = {by_class, by_size, by_span, by_volume};
enum { ORDERS = sizeof orders / sizeof *orders };


/* A placed item, where they are kept in order of address. */
struct placed {
    uint64_t begin, end;
    uint32_t first, freed;
};

/* An arena while it is packed. Placed items are in lists by level, which is the power of two of how long they live, and
 * by when they begin, in spans of twice that. */
struct packing {
    struct ox_pack_item *items;
    uint32_t count, events;
    uint32_t *heads, at[LEVELS], levels[LEVELS]; /* per level: its first list, and the items in its lists */
    uint64_t *beside;                            /* begin and end of what lies beside an item */
    uint64_t steps, steps_least; /* taken so far, and to place all: five for each pair that lives at the same time */
    struct placed placed[SCANNED_MAX];
};

static uint32_t level_of(const struct ox_pack_item *item) {
    return 31 - (uint32_t)__builtin_clz(span_of(item) | 1);
}

static void clear_lists(struct packing *p) {
    uint32_t lists = 0;
    for (uint32_t level = 0; level < LEVELS; level++) {
        p->at[level] = lists;
        p->levels[level] = 0;
        lists += p->events >> (level + 1) > 0 ? (p->events >> (level + 1)) + 1 : 1;
    }
    OX_ASSERT(lists <= p->events + OX_PACK_HEADS_MORE / 2);
    memset(p->heads, 0, lists * sizeof *p->heads);
}

/* Lists what has been placed and lives beside the item; returns how many. */
static uint32_t list_beside(struct packing *p, const struct ox_pack_item *item) {
    uint32_t count = 0;
    for (uint32_t level = 0; level < LEVELS; level++) {
        const uint32_t longest = 2u << level, first = item->first > longest ? item->first - longest : 0;
        for (uint32_t list = first >> (level + 1); p->levels[level] > 0 && list <= item->freed >> (level + 1); list++) {
            for (uint32_t i = p->heads[p->at[level] + list]; i != 0; i = p->items[i - 1].next) {
                const struct ox_pack_item *const other = &p->items[i - 1];
                if (other->first <= item->freed && item->first <= other->freed) {
                    p->beside[2 * count] = other->begin;
                    p->beside[2 * count++ + 1] = other->begin + other->bytes;
                }
                p->steps++;
            }
            p->steps++;
        }
    }
    return count;
}

/* Places the item at the lowest address at which it lies beside none of the placed ones that live at the same time. */
static void place_beside(struct packing *p, uint32_t idx) {
    struct ox_pack_item *const item = &p->items[idx];
    const uint32_t count = list_beside(p, item), level = level_of(item);
    uint64_t at = 0;
    ox_plan_sort(p->beside, count, 2);
    p->steps += 4 * (uint64_t)count;
    for (uint32_t i = 0; i < count && p->beside[2 * i] < at + item->bytes; i++) {
        at = ox_max_u64(at, p->beside[2 * i + 1]);
    }
    uint32_t *const head = &p->heads[p->at[level] + (item->first >> (level + 1))];
    item->begin = at;
    item->next = *head;
    *head = idx + 1;
    p->levels[level]++;
}

/* Places the item as place_beside does, where all items that were placed before are kept in order of address. */
static void place_among(struct packing *p, uint32_t idx) {
    struct ox_pack_item *const item = &p->items[idx];
    struct placed *const placed = p->placed;
    uint64_t at = 0;
    uint32_t past = 0;
    for (; past < idx; past++) {
        if (placed[past].first <= item->freed && item->first <= placed[past].freed) {
            if (placed[past].begin >= at + item->bytes) {
                break;
            }
            at = ox_max_u64(at, placed[past].end);
        }
    }
    p->steps += past;
    while (past > 0 && placed[past - 1].begin > at) {
        past--;
    }
    memmove(placed + past + 1, placed + past, (idx - past) * sizeof *placed);
    placed[past] = (struct placed){.begin = at, .end = at + item->bytes, .first = item->first, .freed = item->freed};
    item->begin = at;
}

/* Places the items as they are; returns where they end, or `most` once that is as much, or takes too many steps, which
 * often is known before. */
static uint64_t place_all(struct packing *p, uint64_t most, uint64_t steps_max) {
    uint64_t end = 0;
    p->steps = 0;
    if (p->steps_least > steps_max) {
        return most;
    }
    clear_lists(p);
    for (uint32_t i = 0; i < p->count && end < most; i++) {
        (p->count <= SCANNED_MAX ? place_among : place_beside)(p, i);
        end = p->steps > steps_max ? most : ox_max_u64(end, p->items[i].begin + p->items[i].bytes);
    }
    return ox_min_u64(end, most);
}

/* Puts what ends above `enough` first, all else as it was; false if there is none. */
static bool lift(struct packing *p, uint64_t enough) {
    bool any = false;
    for (uint32_t i = 0; i < p->count; i++) {
        const bool high = p->items[i].begin + p->items[i].bytes > enough;
        p->items[i].rank = high ? i : p->count + i;
        any = any || high;
    }
    qsort(p->items, p->count, sizeof *p->items, by_rank);
    return any;
}

static void list_items(struct ox_plan_full *full, enum ox_tier tier, struct packing *out) {
    const struct ox_plan_scratch *const scratch = &full->scratch;
    const uint32_t *const events = scratch->events[tier], event_count = scratch->event_count[tier];
    out->items = scratch->items;
    out->events = event_count;
    out->heads = scratch->heads;
    out->beside = scratch->packed + full->plan.buf_cap;
    out->count = 0;
    uint64_t pairs = 0, alive = 0;
    for (uint32_t i = 0; i < event_count; i++) {
        const uint32_t buf_idx = events[i] / 2;
        const uint64_t bytes = full->plan.bufs[buf_idx].bytes;
        if ((events[i] & 1) == 0) {
            pairs += alive++;
            scratch->items[out->count++] = (struct ox_pack_item){.bytes = bytes, .first = i, .freed = event_count,
                                                                 .buf_idx = buf_idx, .size_class = class_of(bytes)};
        } else {
            alive--;
            scratch->items[scratch->nth[buf_idx]].freed = i;
        }
    }
    out->steps_least = out->count > SCANNED_MAX ? 5 * pairs : 0;
}

static void keep(const struct packing *p, uint64_t *packed) {
    for (uint32_t i = 0; i < p->count; i++) {
        packed[p->items[i].buf_idx] = p->items[i].begin;
    }
}

/* Tries one way after the other, as far as that is worth, or the one that is known to be best. */
static void pack(struct packing *p, struct ox_arena_known *known, uint64_t enough, uint64_t most, uint64_t *packed) {
    const bool again = known->packed && known->enough == enough;
    const uint32_t order_first = again ? known->way / LIFTS : 0, lifts = again ? known->way % LIFTS : LIFTS - 1;
    uint64_t steps = 0;
    bool goes_on = true;
    if (!again) {
        known->packed_end = most;
        known->enough = enough;
    }
    for (uint32_t order = order_first; order < (again ? order_first + 1 : ORDERS) && goes_on; order++) {
        qsort(p->items, p->count, sizeof *p->items, orders[order]);
        for (uint32_t lifted = 0; lifted <= lifts && goes_on && (lifted == 0 || lift(p, enough)); lifted++) {
            const uint64_t end = place_all(p, UINT64_MAX, STEPS_MAX);
            steps += p->steps;
            if (end < known->packed_end || (again && lifted == lifts)) {
                known->packed_end = end;
                known->way = (uint8_t)(order * LIFTS + lifted);
                keep(p, packed);
            }
            goes_on = end < UINT64_MAX && (again || (known->packed_end > enough && steps < STEPS_WAYS));
        }
    }
    known->packed = true;
}

uint64_t ox_plan_pack(struct ox_plan_full *full, enum ox_tier tier, struct ox_arena_known *known, uint64_t enough,
                      uint64_t most, enum ox_plan_finished finished) {
    struct packing p;
    const bool complete = finished == OX_PLAN_COMPLETE;
    if (!complete && known->measured && (finished == OX_PLAN_MEASURED || known->measured_end >= most)) {
        return known->measured_end;
    }
    if (complete && known->packed && known->enough == enough && known->packed_end >= most) {
        return most;
    }
    list_items(full, tier, &p);
    if (complete) {
        pack(&p, known, enough, most, full->scratch.packed);
        return known->packed_end;
    }
    qsort(p.items, p.count, sizeof *p.items, orders[0]);
    known->measured_end = place_all(&p, most, STEPS_MEASURING);
    known->measured = true;
    if (finished == OX_PLAN_ORDERED) {
        keep(&p, full->scratch.packed);
    }
    return known->measured_end;
}
