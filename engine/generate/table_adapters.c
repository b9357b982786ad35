/* Adapters of the embedding's table and of the head's, in memory. */
#include "engine/generate/table_adapters.h"

#include "base/bytes.h"
#include "base/planes.h"

#include <string.h>

enum { PIECE_ELEMS = 1 << 11 };

/* The unit with the adapter, and its number in the stage; OX_NO_UNIT: there is none. */
static uint32_t find_unit(const struct ox_model *model, enum ox_table_adapter which, uint32_t *nth) {
    const enum ox_role a = which == OX_EMBED_ADAPTER ? OX_ROLE_EMBED_A : OX_ROLE_HEAD_A;
    uint32_t unit_idx = which == OX_EMBED_ADAPTER ? model->embed_idx : model->head_idx;
    for (*nth = 0; unit_idx != OX_NO_UNIT && model->units[unit_idx].role_offset[a] == UINT64_MAX; ++*nth) {
        unit_idx = model->units[unit_idx].next;
    }
    return unit_idx;
}

static uint64_t elems_of(const struct ox_model *model, enum ox_table_adapter which) {
    uint32_t nth;
    const uint32_t unit_idx = find_unit(model, which, &nth);
    return unit_idx == OX_NO_UNIT ? 0 : model->units[unit_idx].elem_count;
}

void ox_table_adapters_carve(const struct ox_shape *shape, struct ox_bump *carve, struct ox_table_adapters *out) {
    out->model = shape->model;
    for (int which = 0; which < OX_TABLE_ADAPTERS; which++) {
        const uint64_t elems = elems_of(shape->model, (enum ox_table_adapter)which);
        out->hi[which] = ox_bump_alloc(carve, elems * sizeof(uint16_t));
        out->lo[which] = ox_bump_alloc(carve, elems * sizeof(uint16_t));
    }
    const uint64_t embed = ox_embed_adapter_bytes(shape);
    out->ids = ox_bump_alloc(carve, embed > 0 ? shape->rows * sizeof *out->ids : 0);
    out->work = ox_bump_alloc(carve, ox_max_u64(embed, ox_head_adapter_bytes(shape)));
}

enum ox_status ox_table_adapters_load(const struct ox_table_adapters *adapters, ox_adapter_read_fn *read,
                                      ox_adapter_copy_fn *copy, const void *context) {
    uint16_t hi[PIECE_ELEMS], lo[PIECE_ELEMS];
    float values[PIECE_ELEMS];
    enum ox_status status = OX_OK;
    for (int which = 0; which < OX_TABLE_ADAPTERS; which++) {
        uint32_t nth;
        const uint32_t unit_idx = find_unit(adapters->model, (enum ox_table_adapter)which, &nth);
        const uint64_t elems = elems_of(adapters->model, (enum ox_table_adapter)which);
        for (uint64_t at = 0, count; at < elems && status == OX_OK; at += count) {
            count = ox_min_u64(PIECE_ELEMS, elems - at);
            memset(values, 0, sizeof values);
            status = read(context, unit_idx, at, count, values);
            for (uint64_t i = 0; i < count; i++) {
                hi[i] = ox_plane_hi(values[i]);
                lo[i] = ox_plane_lo(values[i]);
            }
            OX_THEN(status, copy(context, adapters->hi[which] + at, hi, count * sizeof *hi));
            OX_THEN(status, copy(context, adapters->lo[which] + at, lo, count * sizeof *lo));
        }
    }
    return status;
}

struct ox_unit_job ox_table_adapters_job(const struct ox_table_adapters *adapters, const struct ox_run *run,
                                         const struct ox_shape *shape, enum ox_table_adapter which) {
    const struct ox_model *const model = adapters->model;
    struct ox_unit_job job = {.run = *run, .shape = shape, .work = adapters->work, .ids = adapters->ids,
                              .unit = &model->units[which == OX_EMBED_ADAPTER ? model->embed_idx : model->head_idx]};
    uint32_t nth;
    if (find_unit(model, which, &nth) != OX_NO_UNIT) {
        job.planes[nth] = (struct ox_planes){.hi = adapters->hi[which], .lo = adapters->lo[which]};
    }
    return job;
}
