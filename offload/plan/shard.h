/* The shard table: what moves, how large it is, and where it lives between steps. It is built once from the units'
 * sizes and the placement, and never changes. Where several ranks divide the units, each has a table of its slices.
 * Only this file knows how a unit is cut into chunks and which extents of the store these use. Builder, search and
 * engine call it; the proof reads the table and states sizes itself. */
#ifndef OX_OFFLOAD_SHARD_H
#define OX_OFFLOAD_SHARD_H

#include "base/optim_format.h"
#include "base/status.h"
#include "nvme/store.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ox_tier { OX_TIER_DEVICE, OX_TIER_HOST, OX_TIER_NVME, OX_TIER_COUNT };
const char *ox_tier_name(enum ox_tier tier); /* "device", "host", "nvme" */

/* Size of the optimizer state in its format: bytes for each OX_GROUP_ELEMS elements. State in one piece is lo, padded
 * to OX_IO_ALIGN_BYTES, then the rest, padded to the same alignment. */
struct ox_state_sizes {
    uint32_t lo_per_group, rest_per_group;
};

/* Homes of one unit. Weights: `hi`, and also `lo` where it travels to compute and the state is elsewhere. State: lo
 * and the moments. Gradient: the finished sum between backward and update. */
struct ox_homes {
    enum ox_tier weights, state, grad;
};

/* A unit, or in the table of a rank the slice of a unit that the rank owns: whole chunks, possibly none. */
struct ox_shard {
    uint64_t elem_first; /* where the slice begins in its unit */
    uint64_t elem_count;
    uint32_t chunk_first, chunk_count; /* in the sequence of all chunks of the store */
    uint64_t chunk_elems; /* elements of a full chunk of the unit: the table's, or of a whole one all */
    bool whole; /* the unit is one chunk, which `owner` has of the ranks that divide it; `adder` adds its gradient of
                   several copies, of which each has an owner */
    uint32_t owner, adder;
    struct ox_homes homes;
    bool fixed; /* not trained: nothing rewrites it. Its state is lo, if it has one, and lives where its weights do */
    struct ox_state_sizes sizes; /* of its state: the table's, of a fixed unit those of lo alone, or smaller ones */
    uint32_t hi_per_group; /* bytes of hi for each OX_GROUP_ELEMS elements; a narrow unit has fewer than OX_HI_BYTES for
                              each. Several chunks of one are whole pages each, so they lie without gaps */
};

struct ox_shard_table {
    struct ox_shard *shards; /* one per unit; owned */
    uint32_t unit_count;
    uint32_t chunk_count; /* of the store: those of the whole model, also in the table of a rank */
    uint64_t chunk_elems; /* elements of a full chunk, a multiple of OX_GROUP_ELEMS; whole units have other chunks */
    struct ox_state_sizes sizes;
};

OX_MUST enum ox_status ox_shard_table_open(const uint64_t *unit_elems, uint32_t unit_count, uint64_t chunk_elems,
                                           struct ox_state_sizes sizes, struct ox_shard_table *out);
void ox_shard_table_close(struct ox_shard_table *table);
/* Makes a unit fixed. `lo_per_group`: bytes of its lo; 0 where its weights are bf16 numbers, of which hi has all. */
void ox_shard_fix(struct ox_shard_table *table, uint32_t unit_idx, uint32_t lo_per_group);
/* Makes a unit narrow, before any slice is made; OX_E_CONFIG if its chunks would not be whole pages. */
OX_MUST enum ox_status ox_shard_narrow(struct ox_shard_table *table, uint32_t unit_idx, uint32_t hi_per_group);
static inline bool ox_shard_is_narrow(const struct ox_shard *shard) {
    return shard->hi_per_group != OX_HI_BYTES * OX_GROUP_ELEMS;
}
/* Bytes of hi in front of element `first` of a unit or slice, where a chunk begins; and those of its first `count`
 * elements, which are whole pages. */
static inline uint64_t ox_shard_hi_offset(const struct ox_shard *shard, uint64_t first) {
    return first / OX_GROUP_ELEMS * shard->hi_per_group;
}
uint64_t ox_shard_hi_bytes(const struct ox_shard *shard, uint64_t count);

/* Makes units whole, those that are marked in `whole`, each at the rank that has least so far of the `holders` that
 * divide it. `pipe_of` (NULL: one group of holders has all) numbers the group that has each unit; `copies` of every
 * group take turns as adders. Before any slice is made. */
OX_MUST enum ox_status ox_shard_deal(struct ox_shard_table *table, const bool *whole, const uint32_t *pipe_of,
                                     uint32_t holders, uint32_t copies);

/* The slice of one unit, as below. */
void ox_shard_slice(const struct ox_shard *unit, uint32_t count, uint32_t idx, struct ox_shard *out);
/* The table of rank `idx` of `count`: of each unit of n chunks it owns those from idx * ceil(n / count) on, as many as
 * that or as there are, of a whole unit its owner the one chunk. Chunks keep their number in the whole model, so a
 * store does not depend on the number of ranks. Everywhere else in the table a slice is as a unit would be: its
 * elements begin at 0. Homes are copied. */
OX_MUST enum ox_status ox_shard_table_slice(const struct ox_shard_table *whole, uint32_t count, uint32_t idx,
                                            struct ox_shard_table *out);

/* Where the slice of rank `idx` of `count` begins in a unit, in chunks; for idx = count it is the unit's end. */
uint32_t ox_shard_first_chunk(const struct ox_shard_table *whole, uint32_t unit_idx, uint32_t count, uint32_t idx);

/* Where the slice of rank `idx` of `count` begins in a unit, in elements; for idx = count it is the unit's end.
 * `whole` is the table of whole units. */
uint64_t ox_shard_cut(const struct ox_shard_table *whole, uint32_t unit_idx, uint32_t count, uint32_t idx);

/* How many times its part, a `count`th of the model, the first of `count` ranks owns; no other owns more. */
double ox_shard_excess(const uint64_t *unit_elems, uint32_t unit_count, uint64_t chunk_elems, uint32_t count);
/* Elements of a chunk by which `count` ranks divide the model: OX_SHARD_CHUNK_ELEMS, halved until the first one owns at
 * most OX_SHARD_EXCESS_MAX times its part, or as near to that as halving brings it; no fewer than `least`. A new store
 * takes no fewer than OX_SHARD_CHUNK_LEAST, because each chunk costs time of its own, most of it on drives. */
enum { OX_SHARD_CHUNK_ELEMS = 262144, OX_SHARD_CHUNK_LEAST = 65536 };
#define OX_SHARD_EXCESS_MAX 1.05
uint64_t ox_shard_choose_chunk(const uint64_t *unit_elems, uint32_t unit_count, uint32_t count, uint64_t least);

/* Bytes of the state of `count` elements in one piece: all of it, and its front, which is lo with padding. */
uint64_t ox_shard_state_bytes(const struct ox_state_sizes *sizes, uint64_t count);
uint64_t ox_shard_lo_bytes(const struct ox_state_sizes *sizes, uint64_t count);
/* That of what the table has of a unit. */
uint64_t ox_shard_unit_state_bytes(const struct ox_shard_table *table, uint32_t unit_idx);
/* Bytes of the state of a unit or slice chunk by chunk, as in the store. */
uint64_t ox_shard_stored_bytes(const struct ox_shard_table *table, uint32_t unit_idx);
/* Bytes of hi and state per parameter, without padding: of a unit, and of all that are trained. */
double ox_shard_unit_bytes_per_elem(const struct ox_shard *shard);
double ox_shard_bytes_per_elem(const struct ox_shard_table *table);

/* Chunk `chunk_idx` of a unit or slice: elements [first, first + count) of its flat vector and its two extents: `hi`
 * alone, and the state with lo as the separately verified head. */
struct ox_chunk {
    uint64_t first, count;
    uint32_t hi_extent_idx, state_extent_idx;
};
struct ox_chunk ox_shard_chunk(const struct ox_shard_table *table, uint32_t unit_idx, uint32_t chunk_idx);

/* A chunk of `count` elements in a slot of memory: hi | state | one number for each element, of `number_bytes`. The
 * numbers are gradients in the optimizer's stream and fp32 values where chunks are loaded and saved. */
struct ox_chunk_layout {
    uint64_t hi_bytes, state_bytes, numbers_bytes;
    uint64_t state_offset, numbers_offset; /* bytes; hi is at 0 */
    uint64_t bytes;
};
struct ox_chunk_layout ox_shard_chunk_layout(const struct ox_state_sizes *sizes, uint64_t count, uint32_t number_bytes);

/* The extents of all chunks in order, 2 * chunk_count of them, for ox_store_create. The table of a rank fills in those
 * of its slices and leaves the others as they are. */
void ox_shard_extents(const struct ox_shard_table *table, struct ox_extent_spec *out);
/* Sums over the extents of all units or slices of the table; `extent_count` is that of the whole model. */
struct ox_store_sums ox_shard_extent_sums(const struct ox_shard_table *table);

#ifdef __cplusplus
}
#endif
#endif
