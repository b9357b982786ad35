#include "offload/plan/mesh.h"

#include "base/assert.h"

const char *ox_axis_name(enum ox_axis axis) {
    static const char *const names[OX_AXIS_COUNT] = {
        [OX_AXIS_SHARD] = "shard", [OX_AXIS_COPY] = "copy", [OX_AXIS_TENSOR] = "tensor",
        [OX_AXIS_PIPE] = "pipe", [OX_AXIS_CONTEXT] = "context", [OX_AXIS_EXPERT] = "expert",
        [OX_AXIS_SLICE] = "slice"};
    OX_ASSERT((unsigned)axis < OX_AXIS_COUNT);
    return names[axis];
}

uint32_t ox_mesh_count(const struct ox_mesh *mesh) {
    uint32_t count = 1;
    for (int i = 0; i < OX_AXIS_OF_RANKS_COUNT; i++) {
        OX_ASSERT(mesh->size[i] > 0);
        count *= mesh->size[i];
    }
    return count;
}

/* How far apart neighbours on an axis are. */
static uint32_t stride_of(const struct ox_mesh *mesh, enum ox_axis axis) {
    uint32_t stride = 1;
    if (axis == OX_AXIS_CONTEXT) {
        const uint32_t of_data = mesh->size[OX_AXIS_SHARD] * mesh->size[OX_AXIS_COPY];
        OX_ASSERT(mesh->contexts == 0 || of_data % mesh->contexts == 0);
        return mesh->contexts > 0 ? of_data / mesh->contexts : of_data;
    }
    if (axis == OX_AXIS_EXPERT || axis == OX_AXIS_SLICE) {
        OX_ASSERT(mesh->experts == 0 || mesh->size[OX_AXIS_SHARD] % mesh->experts == 0);
        return axis == OX_AXIS_SLICE && mesh->experts > 0 ? mesh->experts : 1;
    }
    for (int i = 0; i < (int)axis; i++) {
        stride *= mesh->size[i];
    }
    return stride;
}

/* How many ranks there are along it. */
static uint32_t size_of(const struct ox_mesh *mesh, enum ox_axis axis) {
    const uint32_t slices = mesh->experts > 1 ? mesh->size[OX_AXIS_SHARD] / mesh->experts : 1;
    const uint32_t folded = axis == OX_AXIS_CONTEXT ? mesh->contexts : axis == OX_AXIS_EXPERT ? mesh->experts : slices;
    return axis < OX_AXIS_OF_RANKS_COUNT ? mesh->size[axis] : folded > 0 ? folded : 1;
}

uint32_t ox_mesh_at(const struct ox_mesh *mesh, uint32_t rank, enum ox_axis axis) {
    OX_ASSERT(rank < ox_mesh_count(mesh));
    return rank / stride_of(mesh, axis) % size_of(mesh, axis);
}

uint32_t ox_mesh_speaks_for(const struct ox_mesh *mesh, uint32_t rank) {
    return ox_mesh_at(mesh, rank, OX_AXIS_TENSOR) == 0 ? ox_mesh_at(mesh, rank, OX_AXIS_PIPE) : UINT32_MAX;
}

struct ox_rank_group ox_mesh_group(const struct ox_mesh *mesh, uint32_t rank, enum ox_axis axis) {
    const uint32_t stride = stride_of(mesh, axis), at = ox_mesh_at(mesh, rank, axis);
    return (struct ox_rank_group){
        .first = rank - at * stride, .stride = stride, .count = size_of(mesh, axis), .idx = at};
}

bool ox_mesh_is_all(const struct ox_mesh *mesh, enum ox_axis axis) {
    return size_of(mesh, axis) == ox_mesh_count(mesh);
}
