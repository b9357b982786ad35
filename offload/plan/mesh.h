/* The mesh of ranks: where a rank lies on each axis, and with which ranks it shares what. Pure functions, and the only
 * place that turns the number of a rank into coordinates.
 *
 * Ranks are numbered along the first axis first, so that those which share most are neighbours: the ranks that divide
 * the units among them, then the copies of these, then those with other groups of features, then the coordinates of a
 * pipeline, each with units of its own. */
#ifndef OX_OFFLOAD_MESH_H
#define OX_OFFLOAD_MESH_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ox_axis {
    OX_AXIS_SHARD, /* ranks along it divide the units: each has a slice */
    OX_AXIS_COPY,  /* ranks along it have the same slices: copies */
    OX_AXIS_TENSOR, /* ranks along it have the same micro-batches and divide the groups of features of every stage */
    OX_AXIS_PIPE,  /* ranks along it have the same micro-batches and divide the stages: a pipeline */
    OX_AXIS_OF_RANKS_COUNT, /* every rank has a place on each of these, and no two have the same places */
    OX_AXIS_CONTEXT = OX_AXIS_OF_RANKS_COUNT, /* ranks of a coordinate of the pipeline along it have the same
                              micro-batches and divide the rows of every sequence, whatever they divide of units */
    OX_AXIS_EXPERT, /* ranks along it have micro-batches of their own and divide the experts of every layer: as many in
                       a row of those that divide the units */
    OX_AXIS_SLICE,  /* of those that divide the units, the ones that have the same experts: each has a slice of these */
    OX_AXIS_COUNT
};
const char *ox_axis_name(enum ox_axis axis); /* "shard", "copy", "tensor" ... */

struct ox_mesh {
    uint32_t size[OX_AXIS_OF_RANKS_COUNT]; /* at least 1 each */
    uint32_t contexts; /* a divisor of the ranks of a coordinate of the pipeline, of which the first so many have the
                          first rows, and so on; 0: 1 */
    uint32_t experts;  /* a divisor of those that divide the units; 0: 1 */
};

/* The ranks that differ from one another on an axis alone, or that share micro-batches: first, first + stride ..., of
 * which the asking one is number `idx`. */
struct ox_rank_group {
    uint32_t first, stride, count, idx;
};

/* How many ranks there are. */
uint32_t ox_mesh_count(const struct ox_mesh *mesh);
/* Where a rank lies on an axis. */
uint32_t ox_mesh_at(const struct ox_mesh *mesh, uint32_t rank, enum ox_axis axis);
/* The coordinate of the pipeline for which a rank speaks, as the first of those that divide features and else have the
 * same; UINT32_MAX: another one does. */
uint32_t ox_mesh_speaks_for(const struct ox_mesh *mesh, uint32_t rank);
/* The group of a rank on an axis. */
struct ox_rank_group ox_mesh_group(const struct ox_mesh *mesh, uint32_t rank, enum ox_axis axis);
/* Whether the groups of an axis have all ranks, so that there is one. */
bool ox_mesh_is_all(const struct ox_mesh *mesh, enum ox_axis axis);

/* Whether the asking rank is the first of its group: of copies, the one from which they are saved. */
static inline bool ox_rank_group_leads(const struct ox_rank_group *group) {
    return group->idx == 0;
}

static inline uint32_t ox_rank_group_member(const struct ox_rank_group *group, uint32_t idx) {
    return group->first + group->stride * idx;
}

#ifdef __cplusplus
}
#endif
#endif
