/* The choices of a placement that are a number or a switch, each a row: its field, and its key in `plan --format json`,
 * or NULL where that shows what follows from it. Structs, requests, comparisons and reports are made of the rows. */
#ifndef OX_OFFLOAD_CHOICES_H
#define OX_OFFLOAD_CHOICES_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OX_NUMBER_ROWS(X)                                                                                          \
    /* k: groups of micro-batches that pass the units together. */                                                 \
    X(tiles, "tiles")                                                                                              \
    /* How many units ahead of compute planes are transferred; 0: none. */                                         \
    X(prefetch_depth, "prefetch_depth")                                                                            \
    /* Chunks in flight in the optimizer's stream. */                                                              \
    X(stream_slots, "stream_slots")                                                                                \
    /* Units that are updated in the step's own backward, where steps overlap (struct ox_placement). */            \
    X(speculative_units, "speculative_units")                                                                      \
    /* The last blocks, whose backward comes first, do not recompute: for every micro-batch their input and what   \
       backward needs from their forward stays in compute memory until backward has used it. A block that can keep \
       nothing recomputes in any case. */                                                                          \
    X(kept_units, "kept_blocks")

/* Of a switch a request says 0, 1 or, automatic, -1. */
#define OX_SWITCH_ROWS(X)                                                                                          \
    /* Those units are spread evenly over all, so that both passes have updates beside them from end to end. */    \
    X(speculative_spread, "speculative_spread")                                                                    \
    /* Units whose planes all live in memory, state on the host, save what a speculative update replaces in host   \
       memory, and need no drive for it. */                                                                        \
    X(saves_replaced, NULL)                                                                                        \
    /* Of such units those whose rules say `goes_ahead` update hi alone then and save no more; their state follows \
       in the next step, before its backward has the unit's gradient. */                                           \
    X(weights_ahead, NULL)                                                                                         \
    /* The device makes the square sums of finished gradients that leave it, before they leave. */                 \
    X(device_sums, "device_sums")                                                                                  \
    /* Gradients that leave a device with memory of its own take turns between two places there, so that the next  \
       unit's backward does not wait until they have left. */                                                      \
    X(grads_alternate, "grads_alternate")

#define OX_NUMBER_FIELD(field, key) uint32_t field;
#define OX_SWITCH_FIELD(field, key) bool field;
#define OX_SWITCH_REQUEST(field, key) int32_t field;
#define OX_NUMBER_ROW(field, key) {key, (uint16_t)offsetof(struct ox_placement, field), false},
#define OX_SWITCH_ROW(field, key) {key, (uint16_t)offsetof(struct ox_placement, field), true},
#define OX_SWITCH_AUTOMATIC(field, key) .field = -1,

/* The rows as data. */
struct ox_choice_row {
    const char *key;
    uint16_t offset; /* in struct ox_placement */
    bool is_switch;
};
enum { OX_CHOICE_ROW_COUNT = 10 };
extern const struct ox_choice_row ox_choice_rows[OX_CHOICE_ROW_COUNT];

struct ox_placement;
uint32_t ox_choice_value(const struct ox_placement *placement, const struct ox_choice_row *row);

#ifdef __cplusplus
}
#endif
#endif
