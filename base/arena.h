/* An arena: one reservation of exact size, page aligned, given out by offset. Its pages are touched
 * at open, so that a machine without the memory fails before work is done. */
#ifndef OX_BASE_ARENA_H
#define OX_BASE_ARENA_H

#include "base/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_arena {
    unsigned char *base;
    uint64_t bytes;
};

/* `label` names the arena in errors. Huge pages are asked for; a refusal of them is no error. */
OX_MUST enum ox_status ox_arena_open(const char *label, uint64_t bytes, struct ox_arena *out);
void ox_arena_close(struct ox_arena *arena);

/* Memory given out piece by piece, each on a border of 64 bytes. */
struct ox_carve {
    unsigned char *base; /* NULL: only measure */
    uint64_t bytes;      /* so far */
};
/* NULL while only measuring. */
void *ox_carve_take(struct ox_carve *carve, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
