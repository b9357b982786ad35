#define OX_NORMALS ox_normals_avx512
#include "base/prng/prng_body.inc"
