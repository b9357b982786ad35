/* Sizes: reading, printing and arithmetic. */
#include "base/bytes.h"
#include "tests/kit/test.h"

#include <string.h>

static void test_parse(void) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"512", 512},
        {"512B", 512},
        {"20GiB", 20 * OX_GIB},
        {"20 GiB", 20 * OX_GIB},
        {"1.5GB", 1500000000},
        {"1.5GiB", 3 * OX_GIB / 2},
        {"4096KiB", 4 * OX_MIB},
        {"4096kib", 4 * OX_MIB},
        {"2G", 2 * OX_GIB},
        {"2g", 2 * OX_GIB},
        {"2K", 2048},
        {"2kB", 2000},
        {"3M", 3 * OX_MIB},
        {"3MB", 3000000},
        {"1T", OX_KIB * OX_GIB},
        {"1TB", 1000000000000},
        {".5KiB", 512},
    };
    for (unsigned i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t bytes = 77;
        CHECK(ox_size_parse(good[i].text, &bytes) && bytes == good[i].bytes);
    }
    static const char *const bad[] = {
        "",      "-1", "+1",  " 1",  "GiB",   "1XB",           "1GiBx", "1 G iB", "1..5G",
        "1,5GB", ".",  "nan", "inf", "1e400", "9999999999TiB", "1GiB ", "1GIBB",  "1e3junk"};
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t bytes = 0;
        if (ox_size_parse(bad[i], &bytes)) {
            printf("\"%s\" was read as %llu\n", bad[i], (unsigned long long)bytes);
            CHECK(false);
        }
    }
}

static void test_duration(void) {
    static const struct {
        const char *text;
        uint64_t ns;
        const char *again;
    } good[] = {
        {"90", 90000000000, "90s"},  {"90 s", 90000000000, "90s"}, {"10min", 600000000000, "10min"},
        {"10m", 600000000000, "10min"}, {"1.5H", 5400000000000, "90min"}, {"24h", 86400000000000, "24h"},
        {"250ms", 250000000, "250ms"}, {"0.1s", 100000000, "100ms"}, {"7us", 7000, "7us"}, {"1ns", 1, "1ns"},
        {"120sec", 120000000000, "2min"}, {"0", 0, "0h"},
    };
    for (unsigned i = 0; i < sizeof good / sizeof *good; i++) {
        char text[OX_SIZE_TEXT_BYTES];
        uint64_t ns = 77, back = 78;
        CHECK(ox_duration_parse(good[i].text, &ns) && ns == good[i].ns);
        CHECK(strcmp(ox_duration_flag_text(ns, text), good[i].again) == 0);
        CHECK(ox_duration_parse(text, &back) && back == ns);
    }
    static const char *const bad[] = {"", "-1s", "s", "1 minute", "10:00", "1h30m", "nan", "1e400", "9999999999h"};
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t ns = 0;
        CHECK(!ox_duration_parse(bad[i], &ns));
    }
}

static void test_text(void) {
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {1023, "1023 B"},
        {1024, "1.00 KiB"},
        {1536, "1.50 KiB"},
        {20 * OX_GIB, "20.0 GiB"},
        {123 * OX_MIB, "123 MiB"},
        {OX_KIB * OX_GIB, "1.00 TiB"},
        {OX_MIB * OX_GIB, "1.00 PiB"},
        {UINT64_MAX, "16384 PiB"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[OX_SIZE_TEXT_BYTES];
        CHECK(strcmp(ox_size_text(cases[i].bytes, text), cases[i].text) == 0);
    }
    for (uint64_t bytes = OX_KIB; bytes <= 1000 * OX_GIB; bytes *= 10) { /* what is printed can be read */
        char text[OX_SIZE_TEXT_BYTES];
        uint64_t back = 0;
        CHECK(ox_size_parse(ox_size_text(bytes, text), &back));
        const uint64_t error = back > bytes ? back - bytes : bytes - back;
        CHECK(error <= bytes / 100);
    }
}

/* No exponents, no endless digits, and a size for a flag is never too small. */
static void test_readable_numbers(void) {
    char text[OX_SIZE_TEXT_BYTES];
    CHECK(strcmp(ox_count_text(320, text), "320") == 0);
    CHECK(strcmp(ox_count_text(10080000, text), "10.08 M") == 0);
    CHECK(strcmp(ox_count_text(6738420000, text), "6.738 B") == 0);
    CHECK(strcmp(ox_count_text(999999, text), "1.000 M") == 0);
    CHECK(strcmp(ox_count_text(5e15, text), "5000 T") == 0);
    CHECK(strcmp(ox_seconds_text(1130, text), "1130 s") == 0);
    CHECK(strcmp(ox_seconds_text(4.2, text), "4.20 s") == 0);
    CHECK(strcmp(ox_seconds_text(0.46, text), "460 ms") == 0);
    CHECK(strcmp(ox_seconds_text(3e-6, text), "3 us") == 0);
    CHECK(strcmp(ox_size_flag_text(900 * OX_MIB, text), "900MiB") == 0);
    CHECK(strcmp(ox_size_flag_text(1, text), "1MiB") == 0);
    CHECK(strcmp(ox_size_flag_text(UINT64_C(1079387) * OX_MIB, text), "1054.1GiB") == 0);
    for (uint64_t bytes = OX_MIB + 1; bytes < OX_MIB * OX_GIB; bytes = bytes * 3 + 1) {
        uint64_t back = 0;
        CHECK(ox_size_parse(ox_size_flag_text(bytes, text), &back));
        CHECK(back >= bytes && (back - bytes <= OX_MIB || back - bytes <= bytes / 100));
    }
}

static void test_arithmetic(void) {
    uint64_t out = 0;
    CHECK(ox_align_up(0, 4096) == 0 && ox_align_up(1, 4096) == 4096 && ox_align_up(4096, 4096) == 4096);
    CHECK(ox_align_up(10, 3) == 12);
    CHECK(ox_div_up(0, 7) == 0 && ox_div_up(7, 7) == 1 && ox_div_up(8, 7) == 2);
    CHECK(ox_min_u64(1, 2) == 1 && ox_max_u64(1, 2) == 2);
    CHECK(ox_mul_u64(UINT32_MAX, UINT32_MAX, &out) && out == (uint64_t)UINT32_MAX * UINT32_MAX);
    CHECK(!ox_mul_u64(UINT64_MAX, 2, &out));
    CHECK(ox_add_u64(UINT64_MAX - 1, 1, &out) && out == UINT64_MAX);
    CHECK(!ox_add_u64(UINT64_MAX, 1, &out));
}

int main(void) {
    test_parse();
    test_duration();
    test_text();
    test_readable_numbers();
    test_arithmetic();
    return test_end();
}
