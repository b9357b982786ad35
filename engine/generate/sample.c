/* Samples a token. A heap gives the most likely tokens one by one, so the vocabulary need not be sorted. */
#include "engine/generate/sample.h"

#include "base/assert.h"
#include "base/prng/prng.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t stream = 0x746f6b656e; /* random stream of sampling, separate from those of weights and data */

struct ox_sampler {
    struct ox_sampling sampling;
    uint32_t vocab;
    struct ox_logit *heap; /* (vocab) */
    bool *seen;            /* (vocab) */
    float *penalized;      /* (vocab): logits of which those of seen tokens are smaller */
    double *weights;       /* (vocab): unnormalized probabilities, in the order in which the draw adds them up */
};

/* ---- heap: the largest on top ---------------------------------------------------------------------- */

static bool comes_first(struct ox_logit a, struct ox_logit b) {
    return a.value > b.value || (a.value == b.value && a.id < b.id);
}

static void sink(struct ox_logit *heap, uint32_t count, uint32_t at) {
    const struct ox_logit moving = heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count) {
            break;
        }
        child += child + 1 < count && comes_first(heap[child + 1], heap[child]);
        if (!comes_first(heap[child], moving)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

static void heap_fill(struct ox_sampler *sampler, const float *logits) {
    for (uint32_t i = 0; i < sampler->vocab; i++) {
        sampler->heap[i] = (struct ox_logit){.value = logits[i], .id = (int32_t)i};
    }
    for (uint32_t i = sampler->vocab / 2; i-- > 0;) {
        sink(sampler->heap, sampler->vocab, i);
    }
}

/* Pops the largest of `count` logits and stores it just after the shrunk heap, so that the popped ones end up in
 * ascending order at the end of the array. */
static struct ox_logit heap_pop(struct ox_logit *heap, uint32_t count) {
    const struct ox_logit top = heap[0];
    heap[0] = heap[count - 1];
    heap[count - 1] = top;
    sink(heap, count - 1, 0);
    return top;
}

/* ---- one token -------------------------------------------------------------------------------------- */

static enum ox_status find_largest(const struct ox_sampler *sampler, const float *logits, uint64_t position,
                                   uint32_t *out) {
    uint32_t largest = 0;
    for (uint32_t i = 0; i < sampler->vocab; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY) {
            return ox_fail(OX_E_CORRUPT,
                           "position %llu: the logit of token %u is not finite: the model's weights are broken or too "
                           "large for --dtype; examine them with `offload inspect`",
                           (unsigned long long)position, i);
        }
        largest = logits[i] > logits[largest] ? i : largest;
    }
    if (logits[largest] == -INFINITY) {
        return ox_fail(OX_E_CORRUPT, "position %llu: no token has a probability above 0; examine the model's weights "
                       "with `offload inspect`", (unsigned long long)position);
    }
    *out = largest;
    return OX_OK;
}

/* The index of the weight that `point`, in [0, total), falls on. Rounding cannot move it past the last weight
 * above 0. */
static uint32_t index_of_point(const double *weights, uint32_t count, double point) {
    uint32_t last = 0;
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        sum += weights[i];
        if (point < sum) {
            return i;
        }
        last = weights[i] > 0 ? i : last;
    }
    return last;
}

static double weight_of(const struct ox_sampler *sampler, float logit, float largest) {
    return exp(((double)logit - (double)largest) / sampler->sampling.temperature);
}

/* Draws among the top_k largest logits (0: all), cut off where their probability reaches the share top_p. */
static int32_t draw_top(struct ox_sampler *sampler, const float *logits, float largest, double chance) {
    const struct ox_sampling *const sampling = &sampler->sampling;
    const uint32_t vocab = sampler->vocab;
    const bool all = sampling->top_k == 0 || sampling->top_k >= vocab;
    const uint32_t limit = all ? vocab : (uint32_t)sampling->top_k;
    double total = 0, reached = 0;
    uint32_t taken = 0;
    heap_fill(sampler, logits);
    if (all) { /* sum the whole heap without popping it */
        for (uint32_t i = 0; i < vocab; i++) {
            total += weight_of(sampler, logits[i], largest);
        }
    }
    for (; taken < limit && !(all && taken > 0 && reached >= sampling->top_p * total); taken++) {
        const struct ox_logit top = heap_pop(sampler->heap, vocab - taken);
        sampler->weights[taken] = weight_of(sampler, top.value, largest);
        reached += sampler->weights[taken];
    }
    if (!all) {
        uint32_t kept = 1;
        double sum = sampler->weights[0];
        for (; kept < taken && sum < sampling->top_p * reached; kept++) {
            sum += sampler->weights[kept];
        }
        taken = kept;
        reached = sum;
    }
    const uint32_t at = index_of_point(sampler->weights, taken, chance * reached);
    return sampler->heap[vocab - 1 - at].id;
}

static int32_t draw_any(struct ox_sampler *sampler, const float *logits, float largest, double chance) {
    double total = 0;
    for (uint32_t i = 0; i < sampler->vocab; i++) {
        sampler->weights[i] = weight_of(sampler, logits[i], largest);
        total += sampler->weights[i];
    }
    return (int32_t)index_of_point(sampler->weights, sampler->vocab, chance * total);
}

/* Makes seen tokens less likely, as RepetitionPenaltyLogitsProcessor of transformers does, in float32. */
static const float *penalize(struct ox_sampler *sampler, const float *logits) {
    const float penalty = (float)sampler->sampling.repetition_penalty;
    if (sampler->sampling.repetition_penalty == 1) {
        return logits;
    }
    for (uint32_t i = 0; i < sampler->vocab; i++) {
        sampler->penalized[i] = !sampler->seen[i] ? logits[i]
                                : logits[i] < 0   ? logits[i] * penalty : logits[i] / penalty;
    }
    return sampler->penalized;
}

void ox_sampler_see(struct ox_sampler *sampler, int32_t id) {
    if (id >= 0 && (uint32_t)id < sampler->vocab) {
        sampler->seen[id] = true;
    }
}

void ox_sampler_forget(struct ox_sampler *sampler) {
    memset(sampler->seen, 0, sampler->vocab * sizeof *sampler->seen);
}

void ox_sampler_seed(struct ox_sampler *sampler, uint64_t seed) {
    sampler->sampling.seed = seed;
}

enum ox_status ox_sampler_next(struct ox_sampler *sampler, const float *given, uint64_t position, int32_t *id) {
    const struct ox_sampling *const sampling = &sampler->sampling;
    const float *const logits = penalize(sampler, given);
    uint32_t largest = 0;
    OX_TRY(find_largest(sampler, logits, position, &largest));
    const double chance = ox_uniform(sampling->seed, stream, position);
    if (sampling->temperature == 0) {
        *id = (int32_t)largest;
    } else if (sampling->top_k == 0 && sampling->top_p == 1) {
        *id = draw_any(sampler, logits, logits[largest], chance);
    } else {
        *id = draw_top(sampler, logits, logits[largest], chance);
    }
    return OX_OK;
}

void ox_sampler_top(struct ox_sampler *sampler, const float *logits, uint64_t count, struct ox_logit *out) {
    OX_ASSERT(count <= sampler->vocab);
    heap_fill(sampler, logits);
    for (uint32_t i = 0; i < count; i++) {
        out[i] = heap_pop(sampler->heap, sampler->vocab - i);
    }
}

/* ---- open and close ---------------------------------------------------------------------------------- */

enum ox_status ox_sampler_open(const struct ox_sampling *sampling, uint32_t vocab, struct ox_sampler **out) {
    OX_ASSERT(vocab > 0 && vocab <= INT32_MAX && sampling->temperature >= 0 && sampling->top_p >= 0 &&
              sampling->top_p <= 1 && sampling->repetition_penalty > 0);
    struct ox_sampler *sampler = calloc(1, sizeof *sampler);
    if (sampler != NULL) {
        sampler->sampling = *sampling;
        sampler->vocab = vocab;
        sampler->heap = malloc(vocab * sizeof *sampler->heap);
        sampler->weights = malloc(vocab * sizeof *sampler->weights);
        sampler->seen = calloc(vocab, sizeof *sampler->seen);
        sampler->penalized = malloc(vocab * sizeof *sampler->penalized);
    }
    if (sampler == NULL || sampler->heap == NULL || sampler->weights == NULL || sampler->seen == NULL ||
        sampler->penalized == NULL) {
        ox_sampler_close(&sampler);
        return ox_fail(OX_E_NOMEM, "no memory to sample among %u tokens", vocab);
    }
    *out = sampler;
    return OX_OK;
}

void ox_sampler_close(struct ox_sampler **sampler) {
    if (*sampler == NULL) {
        return;
    }
    free((*sampler)->heap);
    free((*sampler)->weights);
    free((*sampler)->seen);
    free((*sampler)->penalized);
    free(*sampler);
    *sampler = NULL;
}
