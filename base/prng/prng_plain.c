#define OX_NORMALS ox_normals_plain
#include "base/prng/prng_body.inc"
