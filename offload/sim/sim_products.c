/* What an update takes: a parameter of its moments, and products of whole matrices (cpu_optim/muon.h), whose sums have
 * one order. */
#include "offload/sim/sim.h"

/* Share of the rate of a library's GEMMs that they reach: of the processor's 0.45 to 0.58 for matrices of a thousand
 * rows and more, on Zen 5 with AVX-512. A GPU adds and multiplies in two instructions where GEMMs need one; what it
 * reaches of the half that remains is an estimate. */
static const double OWN_PRODUCTS = 0.5, OWN_PRODUCTS_GPU = 0.35;

double ox_sim_product_seconds(const struct ox_machine *machine, double flops, double threads) {
    return machine->has_gpu ? flops / (OWN_PRODUCTS_GPU * machine->gpu.fp32_flops)
                            : flops / (OWN_PRODUCTS * machine->host.core_flops * threads);
}

double ox_sim_update_seconds(const struct ox_machine *machine, double bytes, double threads) {
    static const double known_bytes[OX_MOMENTS_COUNT] = {28, 20, 14.06};
    const struct ox_machine_adam *const adam = &machine->host.adam;
    double seconds = 0, nearest = 0;
    for (int i = 0; i < OX_MOMENTS_COUNT; i++) {
        const double off = bytes > known_bytes[i] ? bytes - known_bytes[i] : known_bytes[i] - bytes;
        if (adam->seconds[i] > 0 && (seconds == 0 || off < nearest)) {
            nearest = off;
            seconds = adam->seconds[i] * bytes / known_bytes[i];
        }
    }
    if (seconds > 0 && adam->threads > threads) {
        seconds *= adam->threads / threads;
    }
    return seconds > bytes / machine->host.dram_rate ? seconds : bytes / machine->host.dram_rate;
}
