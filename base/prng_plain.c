#define OX_NORMALS ox_normals_plain
#include "base/prng_body.inc"
