/* The cut of a model into groups of features (--tensor-groups): every product is computed group by group and sums over
 * groups are added in a tree, so that results depend on the number of groups alone, and not on who computes which.
 *
 * The dimensions of a family's rows say along which axis a tensor is cut: heads, columns of the MLP, vocabulary. Of
 * each stage every group has a unit with its parts of these tensors; what is not cut, such as norms and the biases of
 * sums over groups, lies in the stage's own unit. A matrix of a group is as compute reads it: [q | k | v] of its heads,
 * [gate | up] of its columns. For the files of this folder. */
#ifndef OX_ENGINE_GROUPS_H
#define OX_ENGINE_GROUPS_H

#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ox_family_row;

/* How a row's tensor is cut: along which of its dimensions, and the pieces that this is made of, each of which gives
 * every group a range; count 0: not at all. */
struct ox_row_cut {
    uint32_t axis, count;
    uint64_t pieces[3];
};
/* The cut of a row of the family's table, whose elements are those of `config`. */
struct ox_row_cut ox_row_cut_of(const struct ox_model_config *config, const struct ox_family_row *row);
/* How many tensors a unit has of it: that of a group its parts, which are one for each piece where rows are cut; the
 * unit of no group what is not cut, whole. */
uint32_t ox_row_cut_tensors(const struct ox_row_cut *cut, const struct ox_unit *unit);
/* Makes of a whole tensor the nth part that a group has of it; leaves one that is not cut. */
void ox_row_cut_take(const struct ox_row_cut *cut, uint32_t groups, uint32_t group, uint32_t nth,
                     struct ox_tensor *tensor);

#ifdef __cplusplus
}
#endif
#endif
