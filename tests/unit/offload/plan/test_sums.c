/* The fixed order of sums: for every small step and number of ranks the stacks of the ranks and the top of the tree
 * give the bits of two sums that are written in other ways, and never need more slots than they say. */
#include "offload/plan/sums.h"
#include "base/assert.h"
#include "base/prng/prng.h"
#include "tests/kit/test.h"

#include <string.h>

enum { MB_MAX = 40, RANKS_MAX = 12, SLOTS_MAX = 16 };

/* Numbers of very different size, so that another order gives other bits. */
static void draw(float values[MB_MAX], uint64_t seed) {
    for (uint32_t i = 0; i < MB_MAX; i++) {
        const double wide = ox_uniform(seed, 1, 2 * i), small = ox_uniform(seed, 1, 2 * i + 1);
        values[i] = (float)((small - 0.5) * (double)(UINT64_C(1) << (unsigned)(wide * 30)));
    }
}

/* The sum of leaf `leaf`, from zero. */
static float leaf_sum(const float *values, uint32_t micro_batches, uint32_t groups, uint32_t leaf) {
    float sum = 0;
    for (uint32_t i = 0; i < micro_batches; i++) {
        if (i * groups / micro_batches == leaf) {
            sum += values[i];
        }
    }
    return sum;
}

/* As the definition says: a node splits at the largest power of two below its number of leaves. */
static float split_sum(const float *leaves, uint32_t count) {
    uint32_t left = 1;
    while (2 * left < count) {
        left *= 2;
    }
    return count == 1 ? leaves[0] : split_sum(leaves, left) + split_sum(leaves + left, count - left);
}

/* Level by level: neighbours are added in pairs, and an odd one waits for the next level. */
static float paired_sum(const float *leaves, uint32_t count) {
    float level[MB_MAX];
    memcpy(level, leaves, count * sizeof *level);
    for (; count > 1; count = (count + 1) / 2) {
        for (uint32_t i = 0; i < count; i += 2) {
            level[i / 2] = i + 1 < count ? level[i] + level[i + 1] : level[i];
        }
    }
    return level[0];
}

/* Sums the micro-batches of a rank in its slots; returns how many parts are left in them. */
static uint32_t run_rank(const struct ox_sums *sums, const float *values, float slots[SLOTS_MAX]) {
    const uint32_t first = ox_sums_first(sums), count = ox_sums_count(sums);
    uint32_t occupied = 0, most = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t slot = ox_sums_slot(sums, i);
        CHECK(slot < SLOTS_MAX && slot == occupied - !ox_sums_begins_leaf(sums, i));
        slots[slot] = (ox_sums_begins_leaf(sums, i) ? 0 : slots[slot]) + values[first + i];
        occupied = slot + 1;
        most = occupied > most ? occupied : most;
        CHECK(ox_sums_slots(sums, 0, i + 1) == most);
        CHECK(ox_sums_ends_leaf(sums, i) || ox_sums_folds(sums, i) == 0);
        for (uint32_t folds = ox_sums_folds(sums, i); folds > 0; folds--, occupied--) {
            OX_ASSERT(occupied >= 2);
            slots[occupied - 2] += slots[occupied - 1];
        }
        CHECK(ox_sums_occupied(sums, i + 1) == occupied);
        CHECK(ox_sums_slots(sums, i + 1, i + 1) == occupied);
    }
    return occupied;
}

/* Lets each rank sum its parts, puts all parts to their places and adds them there. */
static float run_ranks(uint32_t micro_batches, uint32_t groups, uint32_t ranks, const float *values) {
    float all[MB_MAX];
    bool taken[MB_MAX] = {false};
    uint32_t top[MB_MAX], stacked = 0, leaf = 0, first = 0, rounds = 0, part_count = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const struct ox_sums sums = {.micro_batches = micro_batches, .groups = groups, .ranks = ranks, .rank = rank};
        float slots[SLOTS_MAX];
        CHECK(ox_sums_leaves(&sums).first == leaf && ox_sums_first(&sums) == first);
        first += ox_sums_count(&sums);
        const uint32_t parts = run_rank(&sums, values, slots);
        CHECK(parts == ox_sums_part_count(&sums) && parts > 0);
        for (uint32_t i = 0; i < parts; i++) {
            const struct ox_sum_node part = ox_sums_part(&sums, i);
            CHECK(part.first == leaf && part.past > leaf);
            leaf = part.past;
            const uint32_t place = ox_sums_place(&sums, rank, i);
            CHECK(place < ox_sums_parts(&sums) && !taken[place]);
            CHECK(i > 0 || place == rank); /* first parts come first, so that the sum of all lies where rank 0's was */
            taken[place] = true;
            all[place] = slots[i];
            top[stacked++] = place;
            for (uint32_t folds = ox_sums_top_folds(&sums, part); folds > 0; folds--, stacked--) {
                OX_ASSERT(stacked >= 2);
                all[top[stacked - 2]] += all[top[stacked - 1]];
            }
            CHECK(ox_sums_givers(&sums, i) > 0 && ox_sums_givers(&sums, ox_sums_rounds(&sums)) == 0);
        }
        rounds = parts > rounds ? parts : rounds;
        part_count += parts;
        CHECK(rank + 1 < ranks || (ox_sums_rounds(&sums) == rounds && ox_sums_parts(&sums) == part_count));
        CHECK(leaf == ox_sums_leaves(&sums).past);
    }
    CHECK(leaf == groups && first == micro_batches && stacked == 1);
    return all[0];
}

/* Lets the ranks of each copy add their parts at their places, and then the copies the nodes that are left. */
static float run_copies(uint32_t micro_batches, uint32_t groups, uint32_t ranks, uint32_t copies, const float *values) {
    const uint32_t holders = ranks / copies;
    float nodes[MB_MAX];
    uint32_t top[MB_MAX], stacked = 0;
    for (uint32_t copy = 0; copy < copies; copy++) {
        const struct ox_sums over = {.micro_batches = micro_batches, .groups = groups, .ranks = copies, .rank = copy};
        struct ox_sums sums = {.micro_batches = micro_batches, .groups = groups, .ranks = ranks,
                               .span_first = copy * holders, .span_count = holders};
        float parts[MB_MAX];
        uint32_t stack[MB_MAX], depth = 0;
        for (sums.rank = sums.span_first; sums.rank < ox_sums_span_past(&sums); sums.rank++) {
            float slots[SLOTS_MAX];
            const uint32_t count = run_rank(&sums, values, slots);
            for (uint32_t i = 0; i < count; i++) {
                const struct ox_sum_node part = ox_sums_part(&sums, i);
                stack[depth] = ox_sums_place(&sums, sums.rank, i);
                CHECK(stack[depth] < ox_sums_parts(&sums));
                CHECK(ox_sums_place_of(&sums, part.first) == stack[depth]);
                parts[stack[depth++]] = slots[i];
                for (uint32_t folds = ox_sums_top_folds(&sums, part); folds > 0; folds--, depth--) {
                    OX_ASSERT(depth >= 2);
                    parts[stack[depth - 2]] += parts[stack[depth - 1]];
                }
            }
        }
        CHECK(depth == ox_sums_nodes(&sums) && depth == ox_sums_part_count(&over));
        for (uint32_t i = 0; i < depth; i++) {
            const struct ox_sum_node node = ox_sums_part(&over, i);
            const uint32_t place = ox_sums_place(&over, copy, i);
            CHECK(ox_sums_place_of(&sums, node.first) == stack[i]);
            nodes[place] = parts[stack[i]];
            top[stacked++] = place;
            for (uint32_t folds = ox_sums_top_folds(&over, node); folds > 0; folds--, stacked--) {
                nodes[top[stacked - 2]] += nodes[top[stacked - 1]];
            }
        }
    }
    CHECK(stacked == 1);
    return nodes[0];
}

static bool same_bits(float a, float b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

static void test_ranks(void) {
    uint32_t compared = 0, differ_from_chain = 0;
    for (uint32_t micro_batches = 1; micro_batches <= MB_MAX; micro_batches += micro_batches < 20 ? 1 : 5) {
        for (uint32_t groups = 1; groups <= micro_batches; groups++) {
            float values[MB_MAX], leaves[MB_MAX];
            draw(values, 100 * micro_batches + groups);
            for (uint32_t i = 0; i < groups; i++) {
                leaves[i] = leaf_sum(values, micro_batches, groups, i);
            }
            const float expected = split_sum(leaves, groups);
            CHECK(same_bits(expected, paired_sum(leaves, groups)));
            differ_from_chain += !same_bits(expected, leaf_sum(values, micro_batches, 1, 0));
            for (uint32_t ranks = 1; ranks <= groups && ranks <= RANKS_MAX; ranks++, compared++) {
                CHECK(same_bits(expected, run_ranks(micro_batches, groups, ranks, values)));
                for (uint32_t copies = 1; copies <= ranks; copies++) {
                    CHECK(ranks % copies != 0 ||
                          same_bits(expected, run_copies(micro_batches, groups, ranks, copies, values)));
                }
            }
        }
    }
    printf("fixed sums: %u steps with the bits of the tree; %u sums have other bits than a chain\n", compared,
           differ_from_chain);
    CHECK(differ_from_chain > 100);
}

/* Seven leaves on three ranks by hand: the tree is ((0 1)(2 3))((4 5) 6), and the ranks have 3, 2 and 2 leaves. */
static void test_by_hand(void) {
    static const struct {
        struct ox_sum_node leaves;
        uint32_t folds;
    } parts[3][2] = {{{{0, 2}, 0}, {{2, 3}, 0}}, {{{3, 4}, 2}, {{4, 5}, 0}}, {{{5, 6}, 1}, {{6, 7}, 2}}};
    for (uint32_t rank = 0; rank < 3; rank++) {
        const struct ox_sums sums = {.micro_batches = 14, .groups = 7, .ranks = 3, .rank = rank};
        CHECK(ox_sums_part_count(&sums) == 2 && ox_sums_count(&sums) == (rank == 0 ? 6 : 4));
        for (uint32_t i = 0; i < 2; i++) {
            const struct ox_sum_node part = ox_sums_part(&sums, i);
            CHECK(part.first == parts[rank][i].leaves.first && part.past == parts[rank][i].leaves.past);
            CHECK(ox_sums_top_folds(&sums, part) == parts[rank][i].folds);
        }
    }
    /* the second half of eight leaves: ((4 5)(6 7)), a part of its own */
    const struct ox_sums half = {.micro_batches = 16, .groups = 8, .ranks = 2, .rank = 1};
    CHECK(ox_sums_part_count(&half) == 1 && ox_sums_slots(&half, 0, 8) == 3);
    CHECK(ox_sums_slot(&half, 2) == 1 && ox_sums_slot(&half, 4) == 1 && ox_sums_slot(&half, 6) == 2);
    CHECK(ox_sums_folds(&half, 3) == 1 && ox_sums_folds(&half, 5) == 0 && ox_sums_folds(&half, 7) == 2);
}

int main(void) {
    test_by_hand();
    test_ranks();
    return test_end();
}
