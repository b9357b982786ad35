/* Adapters of a model's two tables while it generates: small beside the tables, they stay in the memory that computes.
 * For the files of this folder. */
#ifndef OX_ENGINE_TABLE_ADAPTERS_H
#define OX_ENGINE_TABLE_ADAPTERS_H

#include "base/arena.h"
#include "engine/model/units.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ox_table_adapter { OX_EMBED_ADAPTER, OX_HEAD_ADAPTER, OX_TABLE_ADAPTERS };
struct ox_table_adapters {
    const struct ox_model *model;
    uint16_t *hi[OX_TABLE_ADAPTERS], *lo[OX_TABLE_ADAPTERS]; /* planes of the units that have them */
    int32_t *ids; /* (rows): the tokens, where the embedding's table has an adapter */
    void *work;   /* where products lie */
};

/* Takes the memory that they need for the shape's rows. */
void ox_table_adapters_carve(const struct ox_shape *shape, struct ox_bump *carve, struct ox_table_adapters *out);
/* Fills it: `read` gives values of a unit, zeros between tensors staying as they are; `copy` brings bytes there. */
typedef enum ox_status ox_adapter_read_fn(const void *context, uint32_t unit_idx, uint64_t first, uint64_t count,
                                          float *out);
typedef enum ox_status ox_adapter_copy_fn(const void *context, void *target, const void *source, uint64_t bytes);
OX_MUST enum ox_status ox_table_adapters_load(const struct ox_table_adapters *adapters, ox_adapter_read_fn *read,
                                              ox_adapter_copy_fn *copy, const void *context);
/* The job for ox_embed_adapt or ox_head_adapt, whose run goes on from *run. */
struct ox_unit_job ox_table_adapters_job(const struct ox_table_adapters *adapters, const struct ox_run *run,
                                         const struct ox_shape *shape, enum ox_table_adapter which);

#ifdef __cplusplus
}
#endif
#endif
