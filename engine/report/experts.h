/* How a run uses the experts of its mixtures: numbers for reports, and warnings of experts that die or take over. */
#ifndef OX_ENGINE_EXPERTS_H
#define OX_ENGINE_EXPERTS_H

#include "engine/step/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How the experts were used in one step, over all layers with a mixture. */
struct ox_expert_use {
    double idle_share; /* experts that no token chose, of all */
    double busiest;    /* the highest load of an expert, in even loads of its layer (1: as even as can be) */
    uint32_t layer, expert; /* which one that is; layers with a mixture are counted from 0 */
};
/* The report has layers, and rows that count in each. */
void ox_expert_use_of(const struct ox_router_report *report, struct ox_expert_use *out);
/* Tokens of the step that chose the expert, in a layer, or for OX_ALL_LAYERS in all. */
enum { OX_ALL_LAYERS = UINT32_MAX };
double ox_expert_load(const struct ox_router_report *report, uint32_t layer, uint32_t expert);

/* Tokens that each expert of a layer would get if all got as many. */
double ox_expert_even_load(const struct ox_router_report *report, uint32_t layer);

/* An expert is dead where it gets none of the tokens of which an even share were OX_DEAD_TOKENS; it has taken over
 * where it gets at least OX_TAKEN_EVEN even loads, or OX_TAKEN_SHARE of all tokens, for OX_TAKEN_STEPS in a row. */
enum { OX_DEAD_TOKENS = 500, OX_TAKEN_EVEN = 8, OX_TAKEN_STEPS = 20 };
#define OX_TAKEN_SHARE 0.95

struct ox_expert_watch;
/* Follows a step; the first one with a mixture opens `*watch`, which begins as NULL. Warns in the log, each time that
 * the number of dead experts, or of those that took over, has doubled; what helps depends on `balance`, the factor of
 * the balance loss. Without memory nothing is watched. */
void ox_expert_watch_step(struct ox_expert_watch **watch, uint64_t step, const struct ox_router_report *report,
                          double balance);
/* How many there are. */
uint32_t ox_expert_watch_dead(const struct ox_expert_watch *watch);
uint32_t ox_expert_watch_taken(const struct ox_expert_watch *watch);
void ox_expert_watch_close(struct ox_expert_watch **watch);

#ifdef __cplusplus
}
#endif
#endif
