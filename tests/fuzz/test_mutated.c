/* Every fuzz target with changed seeds, without clang and its search: INPUTS of each target, and a tenth of them in
 * `make test`, each day others.
 *
 *     test_mutated [--seconds N] [--seed S] [TARGET [INPUT]]: tries one target for so long; or one input, by its number
 */
#include "tests/fuzz/fuzz.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/prng/prng.h"
#include "tests/kit/test.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { HANG_SECONDS = 300 };
#else
enum { HANG_SECONDS = 200 };
#endif
enum { INPUTS = 5000, QUICK = 10 };
enum { SEEDS_MAX = 256, INPUT_BYTES_MAX = 8192, CHANGES_MAX = 4 };

static struct seed {
    char *text;
    size_t bytes;
} seeds[SEEDS_MAX];
static size_t seed_count;
static uint64_t number; /* of all inputs of this seed */
static uint8_t input[INPUT_BYTES_MAX];
static size_t input_bytes;
static char now[128]; /* what is tried, for the handler of signals */

static void load_seeds(const struct fuzz_target *target) {
    char folder[OX_PATH_BYTES], file[OX_PATH_BYTES];
    struct dirent **list = NULL;
    REQUIRE_OK(ox_path_join("tests/fuzz/seeds", target->name, folder));
    const int count = scandir(folder, &list, NULL, alphasort);
    CHECK(count > 2);
    while (seed_count > 0) {
        free(seeds[--seed_count].text);
    }
    for (int i = 0; i < count; i++) {
        REQUIRE_OK(ox_path_join(folder, list[i]->d_name, file));
        struct seed *const seed = &seeds[seed_count];
        if (ox_path_is_file(file) && seed_count < SEEDS_MAX) {
            REQUIRE_OK(ox_file_read(file, 16 << 20, &seed->text, &seed->bytes));
            if (seed->bytes <= INPUT_BYTES_MAX) {
                seed_count++;
            } else {
                free(seed->text);
            }
        }
        free(list[i]);
    }
    free(list);
    CHECK(seed_count > 0);
}

/* ---- inputs: each follows from the seed, the target and its own number --------------------------------- */

struct draw {
    uint64_t input, turn;
};

static uint32_t draw(struct draw *from, size_t below) {
    uint32_t words[4];
    ox_philox(number, from->input, from->turn++, words);
    return below == 0 ? 0 : words[0] % (uint32_t)below;
}

/* Takes `cut` bytes away at a place and puts others there, as far as there is room. */
static void replace(size_t at, size_t cut, const void *bytes, size_t count) {
    if (input_bytes - cut + count <= INPUT_BYTES_MAX) {
        memmove(input + at + count, input + at + cut, input_bytes - at - cut);
        memcpy(input + at, bytes, count);
        input_bytes += count - cut;
    }
}

static void change_bytes(struct draw *from) {
    static const uint8_t borders[] = {0, 1, 0x7f, 0x80, 0xff, '\n', '"', '{', '}', '[', ']', ',', '%', '\\', '0', '-'};
    uint8_t piece[64];
    const size_t at = draw(from, input_bytes), left = input_bytes - at;
    const size_t count = left == 0 ? 0 : 1 + draw(from, left < sizeof piece ? left : sizeof piece);
    const struct seed *const other = &seeds[draw(from, seed_count)];
    const size_t there = draw(from, other->bytes), theirs = other->bytes - there;
    switch (draw(from, 6)) {
    case 0: replace(at, left > 0, &(uint8_t){(uint8_t)(input[at] ^ 1u << draw(from, 8))}, left > 0); break;
    case 1: replace(at, left > 0, &borders[draw(from, sizeof borders)], 1); break;
    case 2: replace(at, 0, &borders[draw(from, sizeof borders)], 1); break;
    case 3: replace(at, count, "", 0); break;
    case 4:
        memcpy(piece, input + at, count);
        replace(draw(from, input_bytes + 1), 0, piece, count);
        break;
    default: replace(at, count, other->text + there, theirs < sizeof piece ? theirs : sizeof piece);
    }
}

static void make_input(const struct fuzz_target *target, uint64_t idx) {
    struct draw from = {.input = idx};
    const struct seed *const seed = &seeds[draw(&from, seed_count)];
    memcpy(input, seed->text, seed->bytes);
    input_bytes = seed->bytes;
    const uint32_t changes = 1 + draw(&from, CHANGES_MAX);
    for (uint32_t i = 0; i < changes; i++) {
        const unsigned json = draw(&from, UINT32_MAX);
        const size_t changed =
            json % 2 == 0 ? fuzz_mutate_json(target->form, input, input_bytes, INPUT_BYTES_MAX, json / 2) : 0;
        if (changed > 0) {
            input_bytes = changed;
        } else {
            change_bytes(&from);
        }
    }
}

/* ---- trying ----------------------------------------------------------------------------------------------- */

static void on_signal(int signal_number) {
    signal(signal_number, SIG_DFL);
    if (write(STDOUT_FILENO, now, strlen(now)) >= 0) {
        raise(signal_number);
    }
}

static void try_input(const struct fuzz_target *target, uint64_t seed, uint64_t idx) {
    snprintf(now, sizeof now, "ended by: test_mutated --seed %llu %s %llu\n", (unsigned long long)seed, target->name,
             (unsigned long long)idx);
    make_input(target, idx);
    uint8_t *const data = malloc(input_bytes + (input_bytes == 0)); /* a sanitizer sees what lies behind it */
    FUZZ_CHECK(data != NULL);
    memcpy(data, input, input_bytes);
    alarm(HANG_SECONDS);
    CHECK(target->one(data, input_bytes) == 0);
    alarm(0);
    free(data);
}

static void try_target(size_t target_idx, uint64_t seed, uint64_t seconds, const char *one) {
    const struct fuzz_target *const target = &fuzz_targets[target_idx];
    const uint64_t end_ns = ox_clock_ns() + seconds * 1000000000, inputs = INPUTS / test_stride(QUICK);
    uint64_t count = 0, accepted = 0;
    load_seeds(target);
    number = seed * 64 + target_idx;
    if (one != NULL) {
        try_input(target, seed, strtoull(one, NULL, 10));
        return;
    }
    while (count == 0 || (seconds > 0 ? ox_clock_ns() < end_ns : count < inputs)) {
        try_input(target, seed, count++);
        accepted += fuzz_accepted;
    }
    printf("%-12s %7llu inputs, %llu of them opened\n", target->name, (unsigned long long)count,
           (unsigned long long)accepted);
}

int main(int argc, char **argv) {
    uint64_t seed = (uint64_t)time(NULL) / 86400, seconds = 0;
    int first = 1;
    for (; first + 1 < argc && strncmp(argv[first], "--", 2) == 0; first += 2) {
        *(strcmp(argv[first], "--seed") == 0 ? &seed : &seconds) = strtoull(argv[first + 1], NULL, 10);
    }
    const int ends[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGALRM};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        signal(ends[i], on_signal);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("seed %llu\n", (unsigned long long)seed);
    size_t tried = 0;
    for (size_t i = 0; i < fuzz_target_count; i++) {
        if (first == argc || strcmp(argv[first], fuzz_targets[i].name) == 0) {
            try_target(i, seed, seconds, first + 1 < argc ? argv[first + 1] : NULL);
            tried++;
        }
    }
    CHECK(tried > 0);
    return test_end();
}
