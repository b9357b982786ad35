/* Which step several stores can all be opened at. */
#include "nvme/store_impl.h"

#include <inttypes.h>
#include <stdio.h>

void ox_store_point_text(const struct ox_store_point *point, char text[OX_STORE_POINT_TEXT_BYTES]) {
    if (point->committed) {
        snprintf(text, OX_STORE_POINT_TEXT_BYTES, "step %" PRIu64, point->step);
    } else {
        snprintf(text, OX_STORE_POINT_TEXT_BYTES, "no commit");
    }
}

/* Writes "process 2 has steps 7 and 6". */
static void offer_text(const struct ox_store_offer *offers, uint32_t idx, char text[OX_STORE_OFFER_TEXT_BYTES]) {
    const struct ox_store_offer *const offer = &offers[idx];
    char one[OX_STORE_POINT_TEXT_BYTES], other[OX_STORE_POINT_TEXT_BYTES];
    ox_store_point_text(&offer->points[0], one);
    ox_store_point_text(&offer->points[1], other);
    snprintf(text, OX_STORE_OFFER_TEXT_BYTES, "process %u holds %s%s%s", idx,
             offer->point_count == 0 ? "no store" : one, offer->point_count > 1 ? " and before it " : "",
             offer->point_count > 1 ? other : "");
}

static bool is_older(const struct ox_store_point *a, const struct ox_store_point *b) {
    return a->committed != b->committed ? !a->committed : a->step < b->step;
}

/* Looks at the offer's newest `depth` points. */
static bool offers_point(const struct ox_store_offer *offer, const struct ox_store_point *point, uint32_t depth) {
    for (uint32_t i = 0; i < offer->point_count && i < depth; i++) {
        if (offer->points[i].committed == point->committed && offer->points[i].step == point->step) {
            return true;
        }
    }
    return offer->point_count == 0 && !point->committed;
}

/* Returns the first process that does not offer point `at` of process `last`, or `count`. Nobody goes back for a
 * process without a store: all stores existed before the first commit, so that one was lost. */
static uint32_t first_without(const struct ox_store_offer *offers, uint32_t count, uint32_t last, uint32_t at) {
    const uint32_t depth = offers[last].point_count == 0 ? 1 : 2;
    uint32_t idx = 0;
    while (idx < count && offers_point(&offers[idx], &offers[last].points[at], depth)) {
        idx++;
    }
    return idx;
}

static enum ox_status check_offers(const struct ox_store_offer *offers, uint32_t count) {
    const struct ox_store_offer *first = NULL; /* of those that have a store */
    for (uint32_t i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "process %u: its store", i);
        if (offers[i].point_count == 0) {
            continue;
        }
        first = first == NULL ? &offers[i] : first;
        if (offers[i].run_id[0] != first->run_id[0] || offers[i].run_id[1] != first->run_id[1]) {
            return ox_fail(OX_E_CONFIG,
                           "process %u has a store of run %016" PRIx64 "%016" PRIx64 ", process %u one of run "
                           "%016" PRIx64 "%016" PRIx64 "; give every process its drives of one run",
                           (uint32_t)(first - offers), first->run_id[0], first->run_id[1], i, offers[i].run_id[0],
                           offers[i].run_id[1]);
        }
        if (count > 1 && offers[i].generations == 1) {
            return ox_fail(OX_E_CONFIG, OX_STORE_SINGLE_TEXT, name);
        }
    }
    return OX_OK;
}

enum ox_status ox_store_agree(const struct ox_store_offer *offers, uint32_t count, struct ox_store_point *out) {
    OX_ASSERT(count > 0);
    OX_TRY(check_offers(offers, count));
    uint32_t last = 0; /* the process whose newest point is oldest, which is the most that all can take */
    for (uint32_t i = 1; i < count; i++) {
        const bool lost = offers[i].point_count == 0 && offers[last].point_count > 0;
        if (is_older(&offers[i].points[0], &offers[last].points[0]) || (lost && !offers[last].points[0].committed)) {
            last = i;
        }
    }
    uint32_t other = count;
    for (uint32_t i = 0; i == 0 || i < offers[last].point_count; i++) {
        const uint32_t without = first_without(offers, count, last, i);
        if (without == count) {
            *out = offers[last].points[i];
            return OX_OK;
        }
        other = i == 0 ? without : other;
    }
    char one[OX_STORE_OFFER_TEXT_BYTES], two[OX_STORE_OFFER_TEXT_BYTES];
    offer_text(offers, other, one);
    offer_text(offers, last, two);
    return ox_fail(OX_E_CORRUPT, "%s, but %s: they have no step in common; give every process its own drives of the "
                                 "run, or resume from a checkpoint", one, two);
}
