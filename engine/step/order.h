/* The order of updates in a run whose plan may update units in backward: speculative, or held for the next forward
 * while most norms are clipped. One plan has both orders, and each step is in one of them; no bit depends on it.
 *
 * A speculative update that the norm turns out to clip is made again, so the order pays as long as fewer than half of
 * the steps are clipped.
 *
 * The homes are those that are best for the speculative order. A plan for held steps alone could use the memory that
 * keeps what updates in backward replace, so held steps may take longer than they had to; prediction and proof are of
 * this plan in both orders, so what is said of them holds. Other homes would move the state at each change of order. */
#ifndef OX_ENGINE_STEP_ORDER_H
#define OX_ENGINE_STEP_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* More than MANY clipped steps among the last OX_ORDER_STEPS begin the held order; FEW or less end it. */
enum { OX_ORDER_STEPS = 8, OX_ORDER_MANY = 4, OX_ORDER_FEW = 1 };

struct ox_order {
    uint32_t clipped; /* a bit for each of the last steps, the newest in bit 0 */
    bool holds;
};

/* Before the first step: speculative, and undecided, as if half of the steps before had been clipped. So a run whose
 * first norm is clipped, as is common, repeats one update and not five. */
static inline struct ox_order ox_order_at_start(void) {
    return (struct ox_order){.clipped = (1u << OX_ORDER_MANY) - 1};
}

/* Notes how a step has ended; `clipped`: its updates in backward did not hold, or would not have. */
static inline void ox_order_note(struct ox_order *order, bool clipped) {
    order->clipped = (order->clipped << 1 | clipped) & ((1u << OX_ORDER_STEPS) - 1);
    const int count = __builtin_popcount(order->clipped);
    order->holds = order->holds ? count > OX_ORDER_FEW : count > OX_ORDER_MANY;
}

#ifdef __cplusplus
}
#endif
#endif
