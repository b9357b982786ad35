/* What the files of offload/search share; no other folder includes this. */
#ifndef OX_OFFLOAD_PLACEMENT_INTERNAL_H
#define OX_OFFLOAD_PLACEMENT_INTERNAL_H

#include "offload/search/placement.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which units' planes are brought nearer first when there is not room for all: the units that forward begins with, the
 * units that backward begins with, units spread evenly, so that no part of the step has all the transfers, or both ends
 * first, because the first and the last unit and their transfer buffers are the largest. */
enum ox_ranking { OX_RANK_FIRST, OX_RANK_LAST, OX_RANK_SPREAD, OX_RANK_ENDS, OX_RANKING_COUNT };

/* Planes by letter: w weights, g gradients, s state. A plane that is not named stays in its farthest home. The first
 * order is by transfers saved per byte: weights are read twice a tile, gradients are written and read, state is
 * read. */
enum { OX_CANDIDATE_ORDERS = 16 };
extern const char *const ox_candidate_orders[OX_CANDIDATE_ORDERS];

/* A candidate and its outcome. */
struct ox_tried {
    struct ox_candidate asked, made;
    bool fits;
    bool honors;    /* steps stay in memory if they could, or the user asked for it; ranks above speed */
    bool settled;   /* simulated, and evaluation fits too, or not; else what `seconds` says was too long already */
    double seconds; /* of a step; a lower bound, where that was enough */
};

enum { OX_TRIED_MAX = 12288, OX_TRIED_PLACES = 4 * OX_TRIED_MAX, OX_STARTS_MAX = 48,
       OX_DRIVES_ANSWERS_MAX = 64 };

/* A known answer: whether the drives hold the store with these spool extents. */
struct ox_drives_answer {
    uint64_t hash;
    bool fits;
};

struct ox_search {
    struct ox_plan_input *in;
    struct ox_shard_table *table;
    const struct ox_placement_request *request;
    struct ox_sim_setup setup; /* simulates the usual step; `stays` follows the homes of the moment */
    struct ox_sim *sim;
    struct ox_sim_work *works; /* what the tasks need of the plan whose bound was found last */
    struct ox_plans plans;        /* memory for plans; ox_search_plan() builds into it */
    struct ox_built_table *built; /* known sizes and times of plans */
    /* Steps could stay in memory, but the carried update lacks the memory: taken only if nothing else fits. */
    bool crowded;
    bool host_short; /* a plan came near the host's budget, or a plane did not fit what it left */
    bool with_eval; /* evaluation plans are built too, and have to fit */
    struct ox_extent_spec *extents;      /* extents of the store; used when each drive's allowance is known */
    uint32_t extent_count;               /* of the rank's slices; 0: not listed yet */
    struct ox_homes *homes, *best_homes; /* per unit */
    struct ox_tried best;
    struct ox_placement nearest; /* the candidate's that exceeds the budgets least, if none fits */
    uint64_t nearest_short;      /* bytes by which `nearest` exceeds the budgets, summed over tiers */
    uint32_t tiers_begun;        /* homes of checkpoints that starts were made with */
    uint32_t held;               /* bits by enum ox_choice: choices that a climb must not change */
    bool begun;                  /* all starts were tried */
    bool seldom;                 /* choices were forced: what is left to try seldom gains */
    bool first;                  /* ends with the first candidate that fits */
    uint64_t effort, effort_max; /* spent so far and at most, in tasks built; a simulated task counts as several */
    uint64_t effort_gained;      /* when all starts were tried, or, if that was later, the best was found */
    struct ox_tried tried[OX_TRIED_MAX];
    uint32_t tried_count;
    uint16_t tried_at[OX_TRIED_PLACES]; /* hash table: 1 + index into `tried`; 0 = free */
    struct ox_drives_answer drives_answers[OX_DRIVES_ANSWERS_MAX];
    uint32_t drives_answer_count;
};

/* ---- the nearest budget that fits (offload/search/placement_nearest.c) -------------------------------- */

/* Lowers those of the budgets `named` that are above the given ones as far as a search still finds a plan, to within a
 * hundredth, and leaves that plan's placement, homes and generations. `named` has whole MiB; nothing changes where no
 * search finds what is named. Within a limit of effort, in a few seconds for large models. */
OX_MUST enum ox_status ox_search_tighten(struct ox_search *s, uint64_t named[OX_TIER_COUNT]);

/* ---- plans (offload/search/placement_built.c) --------------------------------------------------------- */

/* Known plans of one search, keyed by placement and homes: nothing else of the input may change during the search. The
 * caller owns the table. */
struct ox_built_table;
OX_MUST enum ox_status ox_built_open(uint32_t unit_count, struct ox_built_table **out);
void ox_built_close(struct ox_built_table **table);

/* Whether a separate plan is needed for an evaluation right after a step, because an update is still pending then. */
bool ox_search_overlaps(const struct ox_search *s);
/* Selects the plans for the current placement and homes; the functions below answer for these. */
void ox_search_build(struct ox_search *s);
void ox_search_build_eval(struct ox_search *s);
uint64_t ox_search_need(const struct ox_search *s, enum ox_tier tier);
uint64_t ox_search_spool_key(const struct ox_search *s); /* hash of the spooled sizes */
/* Seconds of a step: a lower bound, and simulated. */
double ox_search_least_seconds(struct ox_search *s);
double ox_search_seconds(struct ox_search *s);
/* The plan itself, with dependencies. The search owns it; it is valid until placement or homes change. */
const struct ox_plan *ox_search_plan(struct ox_search *s, enum ox_plan_kind kind);

/* ---- candidates (offload/search/placement_fill.c) ----------------------------------------------------- */

/* Puts every plane in its farthest home, except for `device_units` units, which live on the device: the first or the
 * last ones. */
void ox_search_farthest_homes(struct ox_search *s, uint32_t device_units, bool device_first);
uint64_t ox_search_budget(const struct ox_search *s, enum ox_tier tier);
uint64_t ox_search_over_all(struct ox_search *s);
OX_MUST enum ox_status ox_search_check_drives(struct ox_search *s);

/* Whether the device cannot hold even what needs no plan to be counted: the units that live there, and activations.
 * Most candidates that do not fit are far from it, and building their plans would take most of a search. */
bool ox_search_is_hopeless(struct ox_search *s, const struct ox_candidate *candidate);
/* Whether host and device together cannot hold the state of all units, and there is no drive. */
bool ox_search_cannot_fit(const struct ox_search *s);
/* Sets homes and builds the training plan. Returns false if it does not fit, and keeps it in `nearest` if no other came
 * nearer. ox_search_fit_eval() checks the evaluation plans too: for the few candidates that are worth it, because these
 * plans seldom need more memory. If they do, fewer planes are moved nearer. */
bool ox_search_fit_train(struct ox_search *s, const struct ox_candidate *candidate);
bool ox_search_fit_eval(struct ox_search *s, const struct ox_candidate *candidate);

/* The tier that a request means: on unified memory, device means host, and no units can live on the device. */
enum ox_tier ox_search_requested(enum ox_tier tier, bool unified);
uint32_t ox_search_requested_device_units(const struct ox_search *s);

/* ---- what may be chosen (offload/search/placement_choices.c) ------------------------------------------ */

/* Slots of the optimizer's stream, which is chunks in flight: enough to keep a drive busy while other chunks are
 * verified and updated. */
enum { OX_SLOTS_DEEP = 32, OX_SLOTS_MIDDLE = 8, OX_SLOTS_SHALLOW = 3 };

/* The order in which the search changes one choice at a time; the last two are tried only if ox_choice_device_units()
 * allows them. */
enum ox_choice {
    OX_CHOICE_OVERLAP, OX_CHOICE_ORDER, OX_CHOICE_RANKING, OX_CHOICE_DEVICE_WEIGHTS, OX_CHOICE_CREDIT, OX_CHOICE_KEPT,
    OX_CHOICE_SPECULATIVE, OX_CHOICE_SPREAD, OX_CHOICE_AHEAD, OX_CHOICE_DEPTH, OX_CHOICE_SLOTS, OX_CHOICE_SLOTS_FINE,
    OX_CHOICE_TILES, OX_CHOICE_ACT_TIER, OX_CHOICE_AWAY, OX_CHOICE_DEVICE_SUMS, OX_CHOICE_GRADS_ALTERNATE,
    OX_CHOICE_GENERATIONS, OX_CHOICE_DEVICE_UNITS, OX_CHOICE_DEVICE_FIRST, OX_CHOICE_COUNT
};
enum { OX_CHOICES_MAX = 128 };
struct ox_choices {
    struct ox_candidate at[OX_CHOICES_MAX];
    uint32_t count;
};

/* Adds candidates that differ from `from` in one choice only; `from` itself may be among them. What the user requested
 * is not changed. */
typedef void ox_choice_fn(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out);
extern ox_choice_fn *const ox_choice_fns[OX_CHOICE_COUNT];

bool ox_candidate_same(const struct ox_candidate *a, const struct ox_candidate *b);
uint64_t ox_candidate_hash(const struct ox_candidate *candidate); /* equal for candidates that are the same */
/* The candidate with every field that has no effect at its default: if all units live on the device, no plane is moved
 * nearer. */
struct ox_candidate ox_candidate_plain(const struct ox_search *s, struct ox_candidate candidate);

/* Whether request and budget allow this value of the choice. */
bool ox_choice_act_tier(const struct ox_search *s, enum ox_tier tier);
bool ox_choice_overlap(const struct ox_search *s, bool overlap);
bool ox_choice_device_weights(const struct ox_search *s);
/* Whether the request asks for updates in backward. */
bool ox_request_speculates(const struct ox_placement_request *request);
bool ox_choice_device_units(const struct ox_search *s);
/* How many units are updated in backward, speculatively, when that is `quarters` of OX_CHOICE_QUARTERS of
 * all units; 0 if neither drives nor memory may keep what such an update replaces. */
enum { OX_CHOICE_QUARTERS = 4 };
uint32_t ox_choice_speculative_units(const struct ox_search *s, uint32_t quarters);

/* The largest number of blocks that may keep activations; if the user requested a number, that number. */
uint32_t ox_choice_kept_units(const struct ox_search *s);

/* ---- the search (offload/search/placement_search.c) --------------------------------------------------- */

/* Leaves the fastest candidate that fits in `best` and `best_homes`; `best.fits` is false if none fits. */
void ox_search_run(struct ox_search *s);

#ifdef __cplusplus
}
#endif
#endif
