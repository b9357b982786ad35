/* Meshes of ranks: every pair of ranks of every mesh of up to 64 ranks. */
#include "offload/plan/mesh.h"
#include "tests/kit/test.h"

enum { RANKS_MAX = 64 };

static bool has(const struct ox_rank_group *group, uint32_t rank) {
    for (uint32_t i = 0; i < group->count; i++) {
        if (ox_rank_group_member(group, i) == rank) {
            return true;
        }
    }
    return false;
}

/* Two ranks share a group of an axis if they lie at the same place on all others. */
static void check_pair(const struct ox_mesh *mesh, uint32_t a, uint32_t b) {
    bool same = true;
    for (int axis = 0; axis < OX_AXIS_OF_RANKS_COUNT; axis++) {
        const struct ox_rank_group group = ox_mesh_group(mesh, a, (enum ox_axis)axis);
        bool alike = true;
        for (int other = 0; other < OX_AXIS_OF_RANKS_COUNT; other++) {
            alike = alike && (other == axis || ox_mesh_at(mesh, a, (enum ox_axis)other) ==
                                                   ox_mesh_at(mesh, b, (enum ox_axis)other));
        }
        CHECK(has(&group, b) == alike);
        same = same && ox_mesh_at(mesh, a, (enum ox_axis)axis) == ox_mesh_at(mesh, b, (enum ox_axis)axis);
    }
    CHECK(same == (a == b)); /* coordinates are all there once */
}

static void check_rank(const struct ox_mesh *mesh, uint32_t rank) {
    for (int i = 0; i < OX_AXIS_OF_RANKS_COUNT; i++) {
        const enum ox_axis axis = (enum ox_axis)i;
        const struct ox_rank_group group = ox_mesh_group(mesh, rank, axis);
        CHECK(group.count == mesh->size[axis] && group.idx == ox_mesh_at(mesh, rank, axis));
        CHECK(ox_rank_group_member(&group, group.idx) == rank);
        CHECK(ox_mesh_is_all(mesh, axis) == (group.count == ox_mesh_count(mesh)));
    }
}

/* Ranks of one coordinate of the pipeline divide the rows of the same micro-batches: the first so many have the first
 * rows. */
static void check_contexts(struct ox_mesh mesh) {
    const uint32_t of_data = mesh.size[OX_AXIS_SHARD] * mesh.size[OX_AXIS_COPY], count = ox_mesh_count(&mesh);
    for (mesh.contexts = 1; mesh.contexts <= of_data; mesh.contexts++) {
        const uint32_t apart = of_data / mesh.contexts;
        for (uint32_t rank = 0; rank < count && of_data % mesh.contexts == 0; rank++) {
            const struct ox_rank_group group = ox_mesh_group(&mesh, rank, OX_AXIS_CONTEXT);
            CHECK(group.count == mesh.contexts && group.idx == rank % of_data / apart);
            CHECK(ox_rank_group_member(&group, group.idx) == rank);
            for (uint32_t other = 0; other < count; other++) {
                CHECK(has(&group, other) == (other / of_data == rank / of_data && other % apart == rank % apart));
            }
        }
    }
}

static void check_mesh(const struct ox_mesh *mesh) {
    const uint32_t count = ox_mesh_count(mesh);
    if (count <= RANKS_MAX / 2) {
        check_contexts(*mesh);
    }
    for (uint32_t a = 0; a < count; a++) {
        check_rank(mesh, a);
        for (uint32_t b = 0; b < count; b++) {
            check_pair(mesh, a, b);
        }
    }
}

/* Four ranks on each of two machines: those of a machine divide the model, and each machine has a copy. Twice as many,
 * as two coordinates of a pipeline, have the second coordinate behind all ranks of the first. */
static void check_by_hand(void) {
    const struct ox_mesh mesh = {.size = {[OX_AXIS_SHARD] = 4, [OX_AXIS_COPY] = 2, [OX_AXIS_TENSOR] = 1,
                                          [OX_AXIS_PIPE] = 2}};
    const struct ox_rank_group pipe = ox_mesh_group(&mesh, 14, OX_AXIS_PIPE);
    CHECK(pipe.first == 6 && pipe.stride == 8 && pipe.count == 2 && pipe.idx == 1);
    const struct ox_rank_group slices = ox_mesh_group(&mesh, 6, OX_AXIS_SHARD);
    const struct ox_rank_group copies = ox_mesh_group(&mesh, 6, OX_AXIS_COPY);
    CHECK(slices.first == 4 && slices.stride == 1 && slices.count == 4 && slices.idx == 2);
    CHECK(copies.first == 2 && copies.stride == 4 && copies.count == 2 && copies.idx == 1);
    /* two of these machines have half of the features each, and two more such the second half of the stages */
    const struct ox_mesh cut = {.size = {[OX_AXIS_SHARD] = 4, [OX_AXIS_COPY] = 1, [OX_AXIS_TENSOR] = 2,
                                         [OX_AXIS_PIPE] = 2}};
    const struct ox_rank_group tensor = ox_mesh_group(&cut, 14, OX_AXIS_TENSOR);
    CHECK(tensor.first == 10 && tensor.stride == 4 && tensor.count == 2 && tensor.idx == 1);
}

int main(void) {
    for (uint32_t shards = 1; shards <= RANKS_MAX; shards++) {
        for (uint32_t copies = 1; shards * copies <= RANKS_MAX; copies++) {
            for (uint32_t apart = 1; shards * copies * apart <= RANKS_MAX; apart *= 2) {
                for (uint32_t pipe = 1; pipe <= apart; pipe *= 2) { /* and the rest divides groups of features */
                    check_mesh(&(struct ox_mesh){.size = {[OX_AXIS_SHARD] = shards, [OX_AXIS_COPY] = copies,
                                                          [OX_AXIS_TENSOR] = apart / pipe, [OX_AXIS_PIPE] = pipe}});
                }
            }
        }
    }
    check_by_hand();
    return test_end();
}
