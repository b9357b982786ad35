/* The function that libFuzzer calls: compiled once for each target, which FUZZ_TARGET names, and linked by clang alone.
 */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t bytes_max, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t bytes_max);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    return FUZZ_TARGET(data, bytes);
}

/* Every second change keeps the JSON of the input valid: changed byte by byte it seldom is. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t bytes_max, unsigned seed) {
    enum fuzz_form form = FUZZ_BYTES;
    for (size_t i = 0; i < fuzz_target_count; i++) {
        form = fuzz_targets[i].one == FUZZ_TARGET ? fuzz_targets[i].form : form;
    }
    const size_t changed = seed % 2 == 0 ? fuzz_mutate_json(form, data, bytes, bytes_max, seed / 2) : 0;
    return changed > 0 ? changed : LLVMFuzzerMutate(data, bytes, bytes_max);
}
