/* The demo's reference: perplexity per byte of a bigram model, counted on the training part of a text and measured on
 * its held-out end, split as `offload train` splits it. Usage: bigram FILE HELD_OUT_FRACTION */
#include "engine/data/data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SYMBOLS = 256, PIECE = 65536 };

static double counts[SYMBOLS][SYMBOLS];

struct walk {
    const struct ox_data *data;
    uint64_t first, past;
};

/* Calls `pair` for each pair of neighbouring tokens in the range. */
static int each_pair(struct walk walk, void (*pair)(int32_t before, int32_t after, double *sum), double *sum) {
    static int32_t tokens[PIECE];
    for (uint64_t at = walk.first; at + 1 < walk.past; at += PIECE - 1) {
        const uint64_t count = walk.past - at < PIECE ? walk.past - at : PIECE;
        if (ox_data_read(walk.data, at, count, SYMBOLS, tokens, NULL) != OX_OK) {
            return 1;
        }
        for (uint64_t i = 1; i < count; i++) {
            pair(tokens[i - 1], tokens[i], sum);
        }
    }
    return 0;
}

static void count_pair(int32_t before, int32_t after, double *sum) {
    counts[before][after] += 1;
    *sum += 1;
}

/* Adds 0.1 to every count, so that no pair is impossible. */
static void score_pair(int32_t before, int32_t after, double *sum) {
    double total = 0;
    for (int i = 0; i < SYMBOLS; i++) {
        total += counts[before][i] + 0.1;
    }
    *sum -= log((counts[before][after] + 0.1) / total);
}

int main(int argc, char **argv) {
    struct ox_data *data = NULL;
    if (argc != 3 || ox_data_open(argv[1], OX_DATA_BYTES, &data) != OX_OK) {
        fprintf(stderr, "bigram: %s\n", argc == 3 ? ox_error_text() : "usage: bigram FILE HELD_OUT_FRACTION");
        return 1;
    }
    const uint64_t all = ox_data_token_count(data);
    const uint64_t held = (uint64_t)((double)all * strtod(argv[2], NULL));
    double pairs = 0, nll = 0;
    const int failed = each_pair((struct walk){data, 0, all - held}, count_pair, &pairs) ||
                       each_pair((struct walk){data, all - held, all}, score_pair, &nll);
    ox_data_close(&data);
    if (failed || held < 2) {
        fprintf(stderr, "bigram: %s\n", failed ? ox_error_text() : "nothing is held out");
        return 1;
    }
    printf("%.3f\n", exp(nll / (double)(held - 1)));
    return 0;
}
