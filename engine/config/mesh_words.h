/* What the options of a mesh say together: --ranks, --mesh, --data-parallel-size, --pipeline-parallel-size,
 * --context-parallel-size, --tensor-parallel-size, --expert-parallel-size. */
#ifndef OX_CONFIG_MESH_WORDS_H
#define OX_CONFIG_MESH_WORDS_H

#include "base/status.h"
#include "engine/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ox_mesh_sizes {
    uint32_t data, pipe, context, tensor; /* 0: not said */
    uint32_t expert;     /* of the data ranks, those that divide experts; 0: not said */
    bool by_features;    /* experts are asked to be divided, and the ranks that divide features do first: expert is what
                            they leave to data ranks, which with these are as many as were asked for */
    bool chosen;         /* --mesh auto: the planner chooses what is not said */
};

/* Reads the sizes; does not look at --ranks. Ranks that divide features divide the experts of a layer too, so of those
 * that are to divide experts they are a divisor. OX_E_CONFIG with thing, place and remedy. */
OX_MUST enum ox_status ox_mesh_read(const struct ox_config_ranks *said, struct ox_mesh_sizes *out);

/* Completes the sizes for a run of so many processes, and sets *ranks to what they make together: --ranks N where that
 * is over 1, else as many as there are processes if the sizes divide them. A pipe, a context, a tensor or an expert
 * that is left out is 1, and data takes what remains; it is a multiple of those that divide experts. Where no size was
 * said, *ranks is 0, which leaves --ranks as it is. */
OX_MUST enum ox_status ox_mesh_complete(const struct ox_config_ranks *said, uint32_t processes,
                                        struct ox_mesh_sizes *sizes, uint32_t *ranks);

/* Writes how the sizes were said: by --mesh, by an option for each, or both; "": not at all. */
enum { OX_MESH_SAID_BYTES = 320 };
_Static_assert((int)OX_MESH_SAID_BYTES > OX_CONFIG_MESH_BYTES + 5 * 38, "the words of all five axes have room");
void ox_mesh_say(const struct ox_config_ranks *said, char text[OX_MESH_SAID_BYTES]);

/* The size that the nth axis has by its option, 0: none, and that option with its dashes; NULL behind the last axis. */
uint64_t *ox_mesh_given(struct ox_config_ranks *said, uint32_t nth, const char **option);

/* Where text begins with the option of an axis whose size --mesh said, and no option: the name that --mesh has for it,
 * and the length of the option; else NULL. */
const char *ox_mesh_axis_of(const struct ox_config_ranks *said, const char *text, size_t *length);

#ifdef __cplusplus
}
#endif
#endif
