/* The product of matrices that Muon is made of, once per instruction set: muon_body.inc. For the files of this
 * folder. */
#ifndef OX_CPU_OPTIM_MUON_PRODUCT_H
#define OX_CPU_OPTIM_MUON_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_muon_product {
    float *out;
    const float *a, *b, *d; /* d NULL: nothing is added */
    uint64_t inner, cols;
    float alpha, beta;
    bool symmetric; /* out is square and equals its transpose: what is below the diagonal is left out */
};

void ox_muon_product_scalar(const struct ox_muon_product *product, uint64_t begin, uint64_t end);
void ox_muon_product_avx2(const struct ox_muon_product *product, uint64_t begin, uint64_t end);
void ox_muon_product_avx512(const struct ox_muon_product *product, uint64_t begin, uint64_t end);

#ifdef __cplusplus
}
#endif
#endif
