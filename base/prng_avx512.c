#define OX_NORMALS ox_normals_avx512
#include "base/prng_body.inc"
