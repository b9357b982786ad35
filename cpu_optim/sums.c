/* Sums over the bits of planes, in a pass of their own. The updates add up the same on their way. */
#include "cpu_optim/variants.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <string.h>

/* Sums the elements of a plane; zeros fill the last word. */
static uint64_t sum_plane(const void *plane, uint64_t first, uint64_t count, uint64_t elem_bytes) {
    const unsigned char *const bytes = plane;
    const uint64_t len = count * elem_bytes, idx = first * elem_bytes / OX_SUM_WORD_BYTES;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < len / OX_SUM_WORD_BYTES; i++) {
        uint64_t word;
        memcpy(&word, bytes + i * OX_SUM_WORD_BYTES, sizeof word);
        sum += word * ox_sum_factor(idx + i);
    }
    const uint64_t whole = len / OX_SUM_WORD_BYTES;
    uint64_t last = 0;
    memcpy(&last, bytes + whole * OX_SUM_WORD_BYTES, len % OX_SUM_WORD_BYTES);
    return sum + last * ox_sum_factor(idx + whole);
}

static uint64_t sum_moment(enum ox_moments moments, const void *plane, const uint8_t *scales, uint64_t first,
                           uint64_t count) {
    uint64_t sum = sum_plane(plane, first, count, ox_moment_bytes(moments));
    for (uint64_t i = 0; i < ox_div_up(count, OX_Q8_BLOCK) && scales != NULL; i++) {
        sum += ox_sum_of_scale(scales[i], first / OX_Q8_BLOCK + i);
    }
    return sum;
}

void ox_plane_sums_take(enum ox_moments moments, const uint16_t *hi, const struct ox_state_planes *planes,
                        uint64_t first, uint64_t count, struct ox_plane_sums *sums) {
    OX_ASSERT(count == 0 || first % OX_Q8_BLOCK == 0);
    if (count > 0) {
        sums->hi += sum_plane(hi, first, count, OX_HI_BYTES);
        sums->lo += sum_plane(planes->lo, first, count, ox_lo_bytes(moments));
        sums->m += sum_moment(moments, planes->m, planes->m_scale, first, count);
        sums->v += planes->v == NULL ? 0 : sum_moment(moments, planes->v, planes->v_scale, first, count);
        sums->average += planes->average == NULL ? 0 : sum_plane(planes->average, first, count, sizeof(float));
    }
}

uint64_t ox_lo_sum(enum ox_moments moments, const void *lo, uint64_t first, uint64_t count) {
    OX_ASSERT(count == 0 || first % OX_Q8_BLOCK == 0);
    return count == 0 ? 0 : sum_plane(lo, first, count, ox_lo_bytes(moments));
}

uint64_t ox_average_sum(const struct ox_update_span *span) {
    return span->count == 0 ? 0 : sum_plane(span->state.average, span->first, span->count, sizeof(float));
}
