#define OX_NORMALS ox_normals_avx2
#include "base/prng/prng_body.inc"
