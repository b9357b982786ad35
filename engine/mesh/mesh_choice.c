#include "engine/mesh/mesh_choice.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Meshes that are listed at most, and planned: of those that are likely to be the fastest so many, and of each kind
 * one. */
enum { LISTED_MAX = 8192, PLANNED_MAX = 6 };
/* Another axis, or another kind, has to take less than this share of the time. */
static const double GAINS = 0.99;
/* A mesh that is likely to take longer than this many times the best is not planned. */
static const double NEAR = 1.5;

struct list {
    const struct ox_mesh_ask *ask;
    struct ox_mesh_choice *out;
    struct ox_mesh_tried *meshes;
    uint32_t count;
    struct ox_mesh_tried refused; /* the last that cannot be, whose text is the error's; pipe 0: none was tried */
};

uint32_t ox_mesh_kind_of(const struct ox_mesh_tried *mesh) {
    const uint32_t axes = (mesh->pipe > 1) + (mesh->tensor > 1) + (mesh->context > 1) + (mesh->expert > 1);
    return axes > 1            ? OX_MESH_SEVERAL
           : mesh->pipe > 1    ? OX_MESH_PIPE + (uint32_t)mesh->schedule
           : mesh->tensor > 1  ? OX_MESH_TENSOR
           : mesh->context > 1 ? OX_MESH_CONTEXT
           : mesh->expert > 1  ? OX_MESH_EXPERT : OX_MESH_DATA;
}

/* ---- the list ------------------------------------------------------------------------------------- */

/* Adds a mesh with what its sketch says, in one order of stages. */
static enum ox_status add(struct list *list, const struct ox_engine_sketch *sketch,
                          const struct ox_engine_config *config, const struct ox_mesh_tried *mesh) {
    struct ox_engine_config varied = *config;
    struct ox_mesh_tried *const to = &list->meshes[list->count];
    OX_ASSERT(list->count < LISTED_MAX);
    varied.schedule = mesh->schedule;
    varied.pipe_chunks = mesh->chunks;
    varied.sharding = mesh->sharding;
    *to = *mesh;
    const enum ox_status status = ox_engine_sketch_times(sketch, &varied, &to->sketch);
    list->count += status == OX_OK;
    list->refused = status == OX_OK ? list->refused : *mesh; /* more runs of stages than there are */
    return status == OX_E_CONFIG ? OX_OK : status;
}

/* Adds a mesh in every order of stages that it may have. */
static enum ox_status add_orders(struct list *list, const struct ox_engine_sketch *sketch,
                                 const struct ox_engine_config *config, struct ox_mesh_tried mesh) {
    const struct ox_mesh_ask *const ask = list->ask;
    enum ox_status status = OX_OK;
    for (int order = 0; order < OX_PIPE_COUNT && status == OX_OK; order++) {
        const bool runs = order == OX_PIPE_INTERLEAVED, any = runs && ask->chunks < 2;
        const uint32_t first = !runs ? 1 : any ? 2 : ask->chunks, most = any ? 4 : first;
        mesh.schedule = (enum ox_pipe_schedule)order;
        for (uint32_t chunks = first; chunks <= most && ask->orders[order] && status == OX_OK; chunks *= 2) {
            mesh.chunks = chunks;
            status = add(list, sketch, config, &mesh);
        }
        if (mesh.pipe == 1) {
            break;
        }
    }
    return status;
}

/* Notes why there are no ranks on an axis, if this was it: the last reason, which is that with most of them. */
static void note_refusal(struct list *list, const struct ox_mesh_tried *mesh) {
    const uint32_t sizes[] = {mesh->tensor, mesh->context, mesh->expert};
    const uint32_t kind = ox_mesh_kind_of(mesh);
    list->refused = *mesh;
    for (int i = 0; i < 3; i++) {
        if (sizes[i] > 1 && kind != OX_MESH_SEVERAL) {
            snprintf(list->out->refused[i], OX_MESH_WHY_BYTES, "%s", ox_error_text());
        }
    }
}

static enum ox_status add_mesh(struct list *list, struct ox_mesh_tried mesh) {
    const struct ox_engine_config *config = NULL;
    struct ox_engine_sketch *sketch = NULL;
    enum ox_sharding shardings[OX_SHARDING_COUNT];
    enum ox_status status = list->ask->set(list->ask->context, &mesh, &config);
    OX_THEN(status, ox_engine_sketch_open(config, &sketch));
    if (status == OX_E_CONFIG) {
        note_refusal(list, &mesh);
        return OX_OK;
    }
    const uint32_t ways = status == OX_OK ? list->ask->shardings(list->ask->context, shardings) : 0;
    for (uint32_t i = 0; i < ways && status == OX_OK; i++) {
        mesh.sharding = shardings[i];
        status = add_orders(list, sketch, config, mesh);
    }
    ox_engine_sketch_close(&sketch);
    return status;
}

/* The sizes of an axis to look at: the one that is given, or 1 to `most`. */
struct sizes {
    uint32_t first, last;
};

static struct sizes sizes_of(uint32_t given, uint32_t most) {
    return given > 0 ? (struct sizes){given, given} : (struct sizes){1, most};
}

/* Lists every mesh: sizes of tensor, context and expert ranks that are not given are powers of two. */
static enum ox_status list_meshes(struct list *list) {
    const struct ox_mesh_ask *const ask = list->ask;
    const struct sizes tensors = sizes_of(ask->tensor, OX_TENSOR_GROUPS_MAX);
    const struct sizes experts = sizes_of(ask->expert, OX_TENSOR_GROUPS_MAX);
    const struct sizes contexts = sizes_of(ask->context_ranks, OX_SIM_PIPE_MAX);
    const struct sizes pipes = sizes_of(ask->pipe, OX_SIM_PIPE_MAX);
    enum ox_status status = OX_OK;
    for (uint32_t tensor = tensors.first; tensor <= tensors.last; tensor *= 2) {
        for (uint32_t expert = experts.first; expert <= experts.last; expert *= 2) {
            for (uint32_t context = contexts.first; context <= contexts.last; context *= 2) {
                for (uint32_t pipe = pipes.first; pipe <= pipes.last && status == OX_OK; pipe++) {
                    const uint32_t rest = ask->ranks / tensor / context / pipe;
                    /* of ranks that divide features data ranks divide the experts where both are given */
                    const bool apart = tensor == 1 || expert == 1 || (ask->tensor > 0 && ask->expert > 0);
                    const bool fits = rest > 0 && rest * tensor * context * pipe == ask->ranks && rest % expert == 0;
                    if (apart && fits && (ask->data == 0 || ask->data == rest)) {
                        status = add_mesh(list, (struct ox_mesh_tried){
                            .data = rest, .pipe = pipe, .tensor = tensor, .context = context, .expert = expert,
                            .chunks = 1, .seconds = (double)INFINITY});
                    }
                }
            }
        }
    }
    return status;
}

/* ---- the choice ------------------------------------------------------------------------------------- */

static int by_likely(const void *a, const void *b) {
    const struct ox_mesh_tried *const one = a, *const other = b;
    const double d = one->sketch.likely - other->sketch.likely;
    return d < 0 ? -1 : d > 0;
}

static enum ox_status plan(struct list *list, struct ox_mesh_tried *mesh, double best) {
    const struct ox_engine_config *config = NULL;
    enum ox_status status = list->ask->set(list->ask->context, mesh, &config);
    OX_THEN(status, list->ask->time(list->ask->context, mesh, isfinite(best) ? best : 0));
    mesh->planned = true;
    list->out->planned++;
    if (status != OX_OK) {
        mesh->seconds = (double)INFINITY;
    }
    return status == OX_E_CONFIG ? OX_OK : status;
}

/* Which of two of a kind is told: the fastest, or where none has a plan, the one that might be. */
static bool leads(const struct ox_mesh_tried *mesh, const struct ox_mesh_tried *other) {
    return other->pipe == 0 || mesh->seconds < other->seconds ||
           (isinf(other->seconds) && isinf(mesh->seconds) && other->planned && !mesh->planned &&
            mesh->sketch.least < other->sketch.least);
}

/* Takes the first kind, and each later one that gains enough. */
static void take(struct list *list) {
    struct ox_mesh_choice *const out = list->out;
    for (uint32_t i = 0; i < list->count; i++) {
        struct ox_mesh_tried *const best = &out->best[ox_mesh_kind_of(&list->meshes[i])];
        *best = leads(&list->meshes[i], best) ? list->meshes[i] : *best;
    }
    out->taken = 0;
    double seconds = INFINITY;
    for (uint32_t kind = 0; kind < OX_MESH_KINDS; kind++) {
        const struct ox_mesh_tried *const best = &out->best[kind];
        if (best->pipe > 0 && best->seconds < GAINS * seconds) {
            out->taken = kind;
            seconds = best->seconds;
        }
    }
    while (out->best[out->taken].pipe == 0 && out->taken + 1 < OX_MESH_KINDS) {
        out->taken++; /* nothing fits: the first that can be */
    }
}

static bool same_sizes(const struct ox_mesh_tried *a, const struct ox_mesh_tried *b) {
    return a->data == b->data && a->pipe == b->pipe && a->tensor == b->tensor && a->context == b->context &&
           a->expert == b->expert;
}

/* Plans the likely ones; then of each kind one that might be faster than the best, and of each order and length of a
 * pipeline, because what a sketch leaves out differs by these most; then the best in other orders and modes; then,
 * where nothing has a plan, whatever has. */
static enum ox_status plan_likely(struct list *list) {
    enum { LIKELY, EACH_KIND, EACH_LENGTH, AS_BEST, ANY, ROUNDS };
    bool known[OX_MESH_KINDS] = {false}, known_length[OX_PIPE_COUNT][OX_SIM_PIPE_MAX + 1] = {{false}};
    const struct ox_mesh_tried *fastest = NULL;
    enum ox_status status = OX_OK;
    qsort(list->meshes, list->count, sizeof *list->meshes, by_likely);
    const double first = list->count > 0 ? list->meshes[0].sketch.likely : 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < list->count && status == OX_OK; i++) {
            struct ox_mesh_tried *const mesh = &list->meshes[i];
            const uint32_t kind = ox_mesh_kind_of(mesh);
            const double best = fastest != NULL ? fastest->seconds : (double)INFINITY;
            const bool likely = mesh->sketch.likely < best;
            const bool due = round == LIKELY ? list->out->planned < PLANNED_MAX && mesh->sketch.likely < NEAR * first
                             : round == EACH_KIND   ? !known[kind] && likely
                             : round == EACH_LENGTH ? !known_length[mesh->schedule][mesh->pipe] && likely
                             : round == AS_BEST     ? fastest != NULL && likely && same_sizes(mesh, fastest)
                                                    : fastest == NULL;
            if (due && !mesh->planned && mesh->sketch.least < best) {
                status = plan(list, mesh, best);
                fastest = mesh->seconds < best ? mesh : fastest;
                known[kind] |= isfinite(mesh->seconds);
                known_length[mesh->schedule][mesh->pipe] |= isfinite(mesh->seconds);
            }
        }
    }
    return status;
}

/* Refuses all meshes. */
static enum ox_status fail_all(const struct list *list) {
    char sizes[OX_MESH_SIZES_BYTES];
    return list->refused.pipe == 0
               ? ox_fail(OX_E_CONFIG, "--mesh auto: no mesh of %" PRIu32 " ranks has the sizes and the order of stages "
                         "that are given; leave one of them out", list->ask->ranks)
               : ox_fail_in(OX_E_CONFIG, "--mesh auto: no mesh of %" PRIu32 " ranks can be, the last of them %s",
                            list->ask->ranks, ox_mesh_sizes_text(&list->refused, sizes));
}

enum ox_status ox_mesh_choose(const struct ox_mesh_ask *ask, struct ox_mesh_choice *out) {
    struct list list = {.ask = ask, .out = out, .meshes = calloc(LISTED_MAX, sizeof *list.meshes)};
    *out = (struct ox_mesh_choice){0};
    for (uint32_t kind = 0; kind < OX_MESH_KINDS; kind++) {
        out->best[kind].seconds = (double)INFINITY;
    }
    if (list.meshes == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory to compare meshes");
    }
    enum ox_status status = list_meshes(&list);
    out->listed = list.count;
    if (status == OX_OK && list.count == 0) {
        status = fail_all(&list);
    }
    OX_THEN(status, plan_likely(&list));
    if (status == OX_OK) {
        take(&list);
    }
    free(list.meshes);
    return status;
}
