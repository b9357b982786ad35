/* A page that draws a plan: which rank holds what, what crosses which link in a step, and what every lane does when, by
 * the simulator. All of it follows from the plan, so it is there before anything runs. */
#ifndef OX_TOOLS_PICTURE_H
#define OX_TOOLS_PICTURE_H

#include "engine/model/model.h"
#include "offload/plan/plan.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A rank that is drawn. All pointers stay the caller's. */
struct ox_picture_rank {
    uint32_t idx;
    const struct ox_plan_input *input;
    const struct ox_plan *plan;
    const double *begin, *end; /* of each task, in seconds from the start of the step; NULL: it is not drawn */
};

struct ox_picture {
    const char *title, *machine;
    const struct ox_model *model;
    const struct ox_picture_rank *ranks; /* every rank, in order */
    uint32_t rank_count;
    double seconds; /* of the usual step */
};

/* Writes the page as one HTML file without scripts. Ranks beyond the sixteenth have no column, and of ranks that do the
 * same with other micro-batches the first is drawn. OX_E_NOMEM. */
OX_MUST enum ox_status ox_picture_write(const struct ox_picture *picture, FILE *out);

/* Whether two ranks have the same list, so that one of them shows what both do. At most OX_PICTURE_DRAWN are drawn. */
bool ox_picture_same_list(const struct ox_plan *a, const struct ox_plan *b);
enum { OX_PICTURE_DRAWN = 16 };

/* ---- for picture.c (picture_lanes.c) ---- */

/* Writes what the lanes of the ranks do, and what goes from one to another. */
OX_MUST enum ox_status ox_picture_lanes(const struct ox_picture *picture, FILE *out);

#ifdef __cplusplus
}
#endif
#endif
