/* What the products of an update by whole matrices take (cpu_optim/muon.h), whose sums have one order. */
#include "offload/sim/sim.h"

/* Share of the rate of a library's GEMMs that they reach: of the processor's 0.45 to 0.58 for matrices of a thousand
 * rows and more, on Zen 5 with AVX-512. A GPU adds and multiplies in two instructions where GEMMs need one; what it
 * reaches of the half that remains is an estimate. */
static const double OWN_PRODUCTS = 0.5, OWN_PRODUCTS_GPU = 0.35;

double ox_sim_product_seconds(const struct ox_machine *machine, double flops, double threads) {
    return machine->has_gpu ? flops / (OWN_PRODUCTS_GPU * machine->gpu.fp32_flops)
                            : flops / (OWN_PRODUCTS * machine->host.core_flops * threads);
}
