/* The products of Muon on avx2 vectors. */
#if defined(__x86_64__)
#include "cpu_optim/muon_product.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define OX_MUON_TILE 16
#define OX_MUON_ROWS 6
#define OX_MUON_PRODUCT ox_muon_product_avx2
#include "cpu_optim/muon_body.inc"
#endif
