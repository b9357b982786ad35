/* The choice of a mesh: over data, pipe, tensor, context and expert ranks. Every mesh that can be is sketched
 * (engine/step/sketch.c); those that are likely to be the fastest are planned by a quick search and simulated; one that
 * cannot be faster than the best of these by its sketch is not. */
#ifndef OX_ENGINE_MESH_CHOICE_H
#define OX_ENGINE_MESH_CHOICE_H

#include "engine/step/engine.h"
#include "offload/sim/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What beside data ranks a mesh has: a pipeline in one of the orders of stages, one other axis, or several. Of two
 * kinds the later one has to gain 1 % over the earlier. */
enum ox_mesh_kind {
    OX_MESH_DATA,
    OX_MESH_PIPE, /* the first of the orders */
    OX_MESH_TENSOR = OX_MESH_PIPE + OX_PIPE_COUNT,
    OX_MESH_CONTEXT,
    OX_MESH_EXPERT,
    OX_MESH_SEVERAL,
    OX_MESH_KINDS
};
const char *ox_mesh_kind_name(uint32_t kind); /* "data", an order's name, "tensor", "context", "expert", "several" */

struct ox_mesh_tried {
    /* Sizes. `data`: of ranks with micro-batches of their own; 0: none; `expert`: of these, where others divide
     * features too, without them. */
    uint32_t data, pipe, tensor, context, expert;
    uint32_t chunks;                              /* runs of stages of a coordinate, where interleaved */
    enum ox_pipe_schedule schedule;
    enum ox_sharding sharding;
    enum ox_context_mode context_mode; /* where several modes may be, set when the mesh is planned */
    struct ox_engine_times sketch;
    bool planned;
    double seconds;               /* of a step, on average; infinite: there is no plan, or it was not looked for */
    enum ox_sim_resource binding; /* what is at its limit for longest, and for which share of the step */
    double binding_share;
};
/* As options have it: with those that divide features; 0 or 1 of these: none do. */
static inline uint32_t ox_mesh_expert_ranks(uint32_t expert, uint32_t tensor) {
    return expert <= 1 ? 1 : expert * (tensor > 1 ? tensor : 1);
}
const char *ox_context_mode_name(enum ox_context_mode mode); /* as --context-parallel-mode has it */
uint32_t ox_mesh_kind_of(const struct ox_mesh_tried *mesh);
/* Writes "dp=2,pp=4,tp=2": data and pipe always, the others where there are such ranks. Returns the text. */
enum { OX_MESH_SIZES_BYTES = 80 };
const char *ox_mesh_sizes_text(const struct ox_mesh_tried *mesh, char text[OX_MESH_SIZES_BYTES]);

/* What a choice asks of its caller. */
struct ox_mesh_ask {
    void *context;
    /* Makes the mesh that of the configuration which the next two use; OX_E_CONFIG with a text where it cannot be. */
    enum ox_status (*set)(void *context, const struct ox_mesh_tried *mesh, const struct ox_engine_config **config);
    /* Fills `shardings` (OX_SHARDING_COUNT) with the ways to divide what its ranks hold that are worth a plan, the
     * usual one first; returns how many. */
    uint32_t (*shardings)(void *context, enum ox_sharding *shardings);
    /* Plans the mesh quickly and predicts its steps, and more so where they are far from `beats` seconds, which the
     * best takes by now (0: none yet); OX_E_CONFIG: it has no plan. */
    enum ox_status (*time)(void *context, struct ox_mesh_tried *mesh, double beats);
    uint32_t ranks;
    uint32_t data, pipe, tensor, context_ranks, expert; /* sizes that are given; 0: any */
    bool orders[OX_PIPE_COUNT]; /* which orders of stages may be */
    uint32_t chunks;            /* of the interleaved one; 0: 2 or 4 */
};

enum { OX_MESH_WHY_BYTES = 256 };
struct ox_mesh_choice {
    struct ox_mesh_tried best[OX_MESH_KINDS]; /* of every kind the fastest; pipe 0: none can be */
    uint32_t taken;                           /* which of them */
    uint32_t listed, planned;                 /* how many meshes there were, and for how many a plan was looked for */
    char refused[3][OX_MESH_WHY_BYTES];       /* why a mesh had no tensor, context, expert ranks; "" */
};
/* Why none has ranks of a kind from OX_MESH_TENSOR to OX_MESH_EXPERT alone; "": some have, or none were asked for. */
const char *ox_mesh_why_none(const struct ox_mesh_choice *choice, uint32_t kind);

/* Leaves what was asked last set in the caller's configuration. OX_E_CONFIG: no mesh can be, with the text of the
 * last that was refused. Where no mesh has a plan, that of data ranks is taken, whose refusal the caller tells. */
OX_MUST enum ox_status ox_mesh_choose(const struct ox_mesh_ask *ask, struct ox_mesh_choice *out);

/* A line for the log: which mesh was taken, beside the best of every other kind, and why: what binds it, and the next
 * one. */
enum { OX_MESH_LINE_BYTES = 1400, OX_MESH_TABLE_BYTES = 1400 };
void ox_mesh_line(const struct ox_mesh_choice *choice, char text[OX_MESH_LINE_BYTES]);
/* Where the mesh that was taken has no plan, says of which mesh the refusal is. Returns `status`. */
enum ox_status ox_mesh_refuse(const struct ox_mesh_choice *choice, enum ox_status status);
/* A table of the best of every kind. */
void ox_mesh_table(const struct ox_mesh_choice *choice, char text[OX_MESH_TABLE_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
