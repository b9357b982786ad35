/* Rows of preferences: both answers of a pair stay neighbours in every order, epoch and mixture, and are left out
 * together; a border never divides them. And the file of what the reference says of them. */
#include "base/file.h"
#include "base/hash/hash.h"
#include "base/prng/prng.h"
#include "engine/data/reference.h"
#include "engine/data/token_cache.h"
#include "engine/data/windows.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

enum { PAIRS = 2500, SEQ = 8, VOCAB = 1 << 20, SOURCES = 2 }; /* more documents than a group of packing has */

/* What an answer is: the id of its first token tells source, pair and side. */
struct answer {
    uint32_t count, first_trained;
};
static struct answer answers[SOURCES][2 * PAIRS];
static struct ox_data *data[SOURCES];
static uint64_t draws;

static uint32_t draw(uint32_t below) {
    return (uint32_t)(ox_uniform(5, 1, draws++) * below);
}

static int32_t id_of(uint32_t source, uint32_t document) {
    return (int32_t)(1 + source * 4 * PAIRS + document);
}

static void write_pairs(uint32_t source, const char *name) {
    struct ox_cache_writer *writer = NULL;
    const struct ox_cache_header header = {.vocab = VOCAB, .is_chat = 1 | OX_CACHE_PAIRS};
    REQUIRE_OK(ox_cache_create(test_path(name), test_folder(), &writer));
    for (uint32_t i = 0; i < 2 * PAIRS; i++) {
        struct answer *const answer = &answers[source][i];
        int32_t ids[32];
        uint8_t trained[32];
        answer->count = 2 + draw(14);
        answer->first_trained = 1 + draw(answer->count - 1);
        for (uint32_t k = 0; k < answer->count; k++) {
            ids[k] = id_of(source, i);
            trained[k] = k >= answer->first_trained;
        }
        REQUIRE_OK(ox_cache_add(writer, true, ids, trained, answer->count));
    }
    REQUIRE_OK(ox_cache_commit(&writer, &header, NULL));
    REQUIRE_OK(ox_data_open(test_path(name), OX_DATA_AUTO, &data[source]));
    CHECK(ox_data_is_pairs(data[source]) && ox_data_is_chat(data[source]) && !ox_data_has_conversations(data[source]));
}

/* Whether an answer has a target in its sequence. */
static bool fits(uint32_t source, uint32_t document, enum ox_overlong overlong) {
    const struct answer *const answer = &answers[source][document];
    return answer->first_trained <= SEQ && (overlong != OX_OVERLONG_DROP || answer->count <= SEQ + 1);
}

static uint32_t count_usable(uint32_t source, enum ox_overlong overlong) {
    uint32_t count = 0;
    for (uint32_t k = 0; k < PAIRS; k++) {
        count += fits(source, 2 * k, overlong) && fits(source, 2 * k + 1, overlong);
    }
    return count;
}

static int32_t row_at(struct ox_windows *windows, uint64_t cursor) {
    int32_t words[3 * SEQ];
    uint64_t targets = 0;
    REQUIRE_OK(ox_windows_fill(windows, cursor, (struct ox_window_row){words, words + SEQ, words + 2 * SEQ}, &targets));
    CHECK(targets > 0);
    return words[0];
}

/* All rows of some epochs, of two sources or of one. */
static void check_rows(enum ox_window_order order, enum ox_overlong overlong, double weight, uint32_t source_count) {
    static int32_t at_place[SOURCES * 2 * PAIRS];
    struct ox_windows *windows = NULL;
    struct ox_windows_counts counts;
    struct ox_window_source sources[SOURCES];
    for (uint32_t i = 0; i < SOURCES; i++) {
        sources[i] = (struct ox_window_source){.data = data[i], .weight = i == 0 ? weight : 1,
                                               .token_count = ox_data_token_count(data[i])};
    }
    memset(at_place, 0, sizeof at_place);
    REQUIRE_OK(ox_windows_open(&(struct ox_windows_config){
        .sources = sources, .source_count = source_count, .seq = SEQ, .vocab = VOCAB, .packing = OX_PACK_PAD,
        .overlong = overlong, .document_mask = true, .drop_untrained = true, .pairs = true, .bos = -1, .order = order,
        .seed = 9}, &windows));
    ox_windows_counts(windows, &counts);
    uint64_t usable = 0, rows = 0;
    for (uint32_t i = 0; i < source_count; i++) {
        const uint64_t pairs = count_usable(i, overlong);
        usable += 2 * pairs;
        rows += 2 * (uint64_t)llround((i == 0 ? weight : 1) * (double)pairs);
    }
    CHECK(counts.all_rows == usable && counts.rows == rows);
    uint64_t seen = 0;
    for (uint64_t cursor = 0; cursor < 3 * rows; cursor += 2) {
        const int32_t chosen = row_at(windows, cursor), rejected = row_at(windows, cursor + 1);
        const uint32_t document = (uint32_t)(chosen - 1) % (4 * PAIRS), source = (uint32_t)(chosen - 1) / (4 * PAIRS);
        const uint64_t place = ox_windows_place(windows, cursor);
        CHECK(document % 2 == 0 && rejected == chosen + 1);
        CHECK(fits(source, document, overlong) && fits(source, document + 1, overlong));
        CHECK(place % 2 == 0 && place < counts.all_rows && ox_windows_place(windows, cursor + 1) == place + 1);
        CHECK(at_place[place] == 0 || at_place[place] == chosen); /* a place has one row in every epoch */
        seen += 2 * (at_place[place] == 0);
        at_place[place] = chosen;
    }
    CHECK(seen == usable); /* three epochs reach all, also where one takes half of a source */
    ox_windows_close(&windows);
}

static void check_split(void) {
    for (double share = 0.0001; share < 0.9; share *= 3) {
        uint64_t token = 0, begins[2 * PAIRS], document = 0;
        REQUIRE_OK(ox_windows_split(data[0], share, true, &token));
        REQUIRE_OK(ox_data_documents(data[0], 0, 2 * PAIRS, begins));
        while (document < 2 * PAIRS && begins[document] < token) {
            document++;
        }
        CHECK(document % 2 == 0 && (document == 2 * PAIRS || begins[document] == token));
    }
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static struct ox_reference reference_of(uint64_t run, uint64_t weights, uint64_t second) {
    struct ox_reference out = {.run_id = {run, 2}, .weights = weights, .part_count = 2,
                               .parts = {{.fingerprint = 11, .rows = 3}, {.fingerprint = second, .rows = 2}}};
    REQUIRE_OK(ox_reference_open(&out));
    return out;
}

static bool loads(uint64_t run, uint64_t weights, uint64_t second, const double *want) {
    struct ox_reference reference = reference_of(run, weights, second);
    bool found = false;
    REQUIRE_OK(ox_reference_load(&reference, test_path("reference.bin"), &found));
    for (int i = 0; i < 5; i++) {
        const double value = i < 3 ? reference.parts[0].values[i] : reference.parts[1].values[i - 3];
        CHECK(isnan(want[i]) ? isnan(value) : value == want[i]);
    }
    ox_reference_close(&reference);
    return found;
}

static void check_file(void) {
    const double all[] = {-1.5, NAN, -3, -4, -5}, half[] = {-1.5, NAN, -3, NAN, NAN};
    const double none[] = {NAN, NAN, NAN, NAN, NAN};
    CHECK(!loads(1, 7, 12, none)); /* there is none yet */
    struct ox_reference reference = reference_of(1, 7, 12);
    memcpy(reference.parts[0].values, all, 3 * sizeof *all);
    memcpy(reference.parts[1].values, all + 3, 2 * sizeof *all);
    REQUIRE_OK(ox_reference_save(&reference, test_path("reference.bin")));
    ox_reference_close(&reference);
    CHECK(loads(1, 0, 12, all));  /* the same run */
    CHECK(loads(9, 7, 12, all));  /* the same weights */
    CHECK(!loads(9, 8, 12, none) && !loads(9, 0, 12, none));
    CHECK(loads(1, 7, 13, half)); /* other rows of one part */
    size_t bytes = 0;
    char *const text = files_read("reference.bin", &bytes);
    struct ox_reference other = reference_of(1, 7, 12);
    for (size_t i = 0; i < bytes; i++) { /* no flipped bit passes */
        bool found = false;
        text[i] = (char)(text[i] ^ 1 << i % 8);
        files_write("reference.bin", text, bytes);
        CHECK(ox_reference_load(&other, test_path("reference.bin"), &found) == OX_E_CORRUPT);
        text[i] = (char)(text[i] ^ 1 << i % 8);
    }
    for (size_t i = 0; i < bytes; i += 7) {
        bool found = false;
        files_write("reference.bin", text, i);
        CHECK(ox_reference_load(&other, test_path("reference.bin"), &found) == OX_E_CORRUPT);
    }
    ox_reference_close(&other);
    free(text);
}

/* A file with a right sum whose list of parts reaches into that sum, so that nothing is left for their values. */
static void check_short_file(void) {
    struct ox_reference other = reference_of(1, 7, 12), none = {.run_id = {1, 2}, .weights = 7, .part_count = 2};
    size_t bytes = 0;
    bool found = false;
    uint64_t sum = 1;
    REQUIRE_OK(ox_reference_open(&none));
    REQUIRE_OK(ox_reference_save(&none, test_path("reference.bin")));
    ox_reference_close(&none);
    char *const text = files_read("reference.bin", &bytes);
    char *const rows = text + bytes - 2 * sizeof sum, *const end = rows + sizeof sum - 1; /* of the last part */
    for (uint64_t print = 0; (sum & 0xff) != 0; print++) { /* so that the number of its rows stays 0 */
        memcpy(rows - sizeof print, &print, sizeof print);
        sum = ox_hash64(text, (size_t)(end - text), 0);
    }
    memcpy(end, &sum, sizeof sum);
    files_write("reference.bin", text, bytes - 1);
    CHECK(ox_reference_load(&other, test_path("reference.bin"), &found) == OX_E_CORRUPT);
    ox_reference_close(&other);
    free(text);
}

int main(void) {
    write_pairs(0, "first");
    write_pairs(1, "second");
    CHECK(count_usable(0, OX_OVERLONG_TRUNCATE) < PAIRS);
    CHECK(count_usable(0, OX_OVERLONG_DROP) < count_usable(0, OX_OVERLONG_TRUNCATE));
    check_rows(OX_WINDOWS_SEQUENTIAL, OX_OVERLONG_TRUNCATE, 1, 1);
    check_rows(OX_WINDOWS_SHUFFLE, OX_OVERLONG_TRUNCATE, 1, 1);
    check_rows(OX_WINDOWS_SHUFFLE, OX_OVERLONG_DROP, 0.5, SOURCES);
    check_rows(OX_WINDOWS_SEQUENTIAL, OX_OVERLONG_DROP, 2.25, SOURCES);
    check_split();
    check_file();
    check_short_file();
    for (int i = 0; i < SOURCES; i++) {
        ox_data_close(&data[i]);
    }
    return test_end();
}
