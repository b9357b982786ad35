#include "tests/kit/draw.h"

#include <math.h>

static uint64_t random_state = 0x9e3779b97f4a7c15u;

uint32_t random_u32(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

float random_f32(void) {
    const float fraction = (float)(int32_t)random_u32() * 0x1p-31f;
    return ldexpf(fraction, -(int)(random_u32() % 40));
}
