/* The hash is that of the library, whichever vectors this processor has, at any length and alignment. */
#include "base/hash/hash.h"
#include "base/hash/hash_isa.h"
#include "base/isa.h"
#include "tests/kit/test.h"

#include <xxhash.h>

enum { BYTES = 5000, OFFSETS = 5 };

typedef uint64_t hash_fn(const void *data, size_t bytes, uint64_t seed);

static unsigned char data[BYTES + OFFSETS];

static void check(const char *name, hash_fn *hash) {
    uint32_t wrong = 0;
    for (size_t offset = 0; offset < OFFSETS; offset++) {
        for (size_t bytes = 0; bytes <= BYTES; bytes += bytes < 600 ? 1 : 37) {
            const uint64_t seed = bytes % 3 == 0 ? 0 : bytes * UINT64_C(0x9e3779b97f4a7c15);
            wrong += hash(data + offset, bytes, seed) != XXH3_64bits_withSeed(data + offset, bytes, seed);
        }
    }
    printf("%s: %u of all lengths and offsets differ\n", name, wrong);
    CHECK(wrong == 0);
}

int main(void) {
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (unsigned char)(i * 167 + i / 251);
    }
    check("chosen", ox_hash64);
#ifdef __x86_64__
    if (ox_cpu_has_avx2()) {
        check("avx2", ox_hash64_avx2);
    }
    if (ox_cpu_has_avx512()) {
        check("avx512", ox_hash64_avx512);
    }
#endif
    CHECK(ox_hash64("", 0, 0) == UINT64_C(0x2d06800538d394c2)); /* from the xxHash specification */
    return test_end();
}
