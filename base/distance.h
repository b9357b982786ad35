/* How far names are from each other, for messages that say what an unknown one may mean. */
#ifndef OX_BASE_DISTANCE_H
#define OX_BASE_DISTANCE_H

#ifdef __cplusplus
extern "C" {
#endif

/* The number of edits that turn one name into the other: insertions, deletions, replacements, swaps of neighbours; '_'
 * is '-', and letters have no case. 64 for names that are longer than that. */
unsigned ox_name_distance(const char *a, const char *b);

#ifdef __cplusplus
}
#endif
#endif
