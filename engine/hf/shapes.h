/* Shapes of models: those of known models by name, and one chosen for a number of parameters. `offload init` writes
 * them as a config.json, `offload plan` takes a name in place of a folder. */
#ifndef OX_ENGINE_SHAPES_H
#define OX_ENGINE_SHAPES_H

#include "base/status.h"
#include "engine/model/model.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A known model's shape, without its weights. */
struct ox_known_shape {
    const char *name, *alias; /* as its publisher writes it, in lower case; a shorter name, or NULL */
    const char *family;       /* a model_type */
    uint32_t vocab, hidden, width, layers, heads, kv_heads;
    uint32_t head_dim; /* 0: hidden / heads */
    uint32_t contexts;
    double theta; /* 0: none */
    bool tied;
    const char *more; /* further keys of its config.json, as JSON; or NULL */
};
/* NULL for an unknown name; case does not matter. */
const struct ox_known_shape *ox_shape_find(const char *name);
/* The shape that an unknown name may mean: one whose name or alias has the same letters and digits, else the first that
 * has these in this order; or NULL. */
const struct ox_known_shape *ox_shape_near(const char *name);
/* Whether a name is of the kind of a shape's: OWN-9b, without a '/', for a shape whose name begins with OWN. */
bool ox_shape_is_kin(const char *name);
/* The `idx`-th shape, or NULL after the last. */
const struct ox_known_shape *ox_shape_at(uint32_t idx);
/* Writes all names, separated by ", ", and returns `text`. */
enum { OX_SHAPE_NAMES_BYTES = 1536 };
const char *ox_shape_names(char text[OX_SHAPE_NAMES_BYTES]);
/* Makes the shape's config.json; the caller owns *out. */
OX_MUST enum ox_status ox_shape_config(const struct ox_known_shape *shape, json_t **out);

/* What a shape is chosen for. */
struct ox_shape_request {
    uint64_t param_count;
    const char *family;         /* a model_type */
    uint32_t vocab, contexts;   /* rows of the table; the longest sequence */
    int64_t bos_id, eos_id;     /* -1: none */
};
enum { OX_SHAPE_REASONS_BYTES = 2048 };
/* Chooses width, depth, heads, the MLP's width, and whether the table is tied, so that a model has about so many
 * parameters: the nearest that fits the rules which `reasons` tells, one a line. A number that the table leaves no room
 * for, or for which there is no shape within a tenth, is OX_E_CONFIG. */
OX_MUST enum ox_status ox_shape_choose(const struct ox_shape_request *request, struct ox_model_config *out,
                                       char reasons[OX_SHAPE_REASONS_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
