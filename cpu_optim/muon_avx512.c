/* The products of Muon on avx512 vectors. */
#if defined(__x86_64__)
#include "cpu_optim/muon_product.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define OX_MUON_TILE 64
#define OX_MUON_ROWS 4
#define OX_MUON_PRODUCT ox_muon_product_avx512
#include "cpu_optim/muon_body.inc"
#endif
