/* Shared by the files that choose a placement; not for others. */
#ifndef OX_OFFLOAD_PLACEMENT_INTERNAL_H
#define OX_OFFLOAD_PLACEMENT_INTERNAL_H

#include "offload/plan/plan.h"
#include "offload/sim/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which units come home first where not all of them can: those that forward begins with, those that backward begins
 * with, some everywhere, so that no part of the step has all the transfers, or both ends before the others, because
 * they are the largest and so are the buffers in which they travel. */
enum ox_ranking { OX_RANK_FIRST, OX_RANK_LAST, OX_RANK_SPREAD, OX_RANK_ENDS, OX_RANKING_COUNT };

enum ox_plane_of_unit { OX_PLANE_WEIGHTS, OX_PLANE_GRAD, OX_PLANE_STATE, OX_PLANE_COUNT };

/* A placement, and how the room that it leaves is given to planes. */
struct ox_candidate {
    struct ox_placement placement;
    uint8_t order;   /* of planes that come home to the host: index into ox_candidate_orders */
    uint8_t ranking; /* enum ox_ranking */
    bool device_weights; /* room on the device is given to weights */
    bool credit;         /* more is given than there is, where what comes home frees the rest */
    uint32_t away[OX_PLANE_COUNT]; /* units of which a plane stays where it is farthest, though there were room */
    uint32_t device_units; /* so many of the last units have their state there, and all else of them */
};

/* Planes by letter: weights, gradients, state. The first one is by transfers saved per byte: weights are read twice a
 * tile, gradients written and read, state read. A plane that is not named stays where it is farthest. */
enum { OX_CANDIDATE_ORDERS = 16 };
extern const char *const ox_candidate_orders[OX_CANDIDATE_ORDERS];

/* A candidate and what came of it. */
struct ox_tried {
    struct ox_candidate asked, made;
    bool fits;
    bool heeds;     /* steps stay in memory where they could, and where it is said how many do */
    double seconds; /* simulated, or the least it can be where that is too long already */
};

enum { OX_TRIED_MAX = 4096, OX_TRIED_PLACES = 4 * OX_TRIED_MAX, OX_STARTS_MAX = 48, OX_CUTS_MAX = 64 };

/* Whether the drives hold a store with these spool extents. */
struct ox_newline_cut {
    uint64_t hash;
    bool fits;
};

struct ox_search {
    struct ox_plan_input *in;
    struct ox_shard_table *table;
    const struct ox_placement_request *request;
    struct ox_sim_setup setup; /* of the step that most are with the homes as they are */
    struct ox_sim *sim;
    struct ox_plans plans;        /* ox_search_plan() builds what is wanted */
    struct ox_built_table *built; /* what is known of plans */
    bool crowded;   /* steps would stay in memory, had a late update the room: what is taken where nothing else fits */
    bool with_eval; /* those of evaluation are built too, and have to fit */
    struct ox_extent_spec *extents;      /* of the store, when the drives' allowances are known */
    bool extents_listed;
    struct ox_homes *homes, *best_homes; /* per unit */
    struct ox_tried best;
    struct ox_placement nearest; /* of those that do not fit */
    uint64_t nearest_short;      /* bytes over budget, all tiers together */
    uint64_t effort;             /* tasks built and simulated so far */
    struct ox_tried tried[OX_TRIED_MAX];
    uint32_t tried_count;
    uint16_t tried_at[OX_TRIED_PLACES]; /* by hash: 1 + index; 0 = none */
    struct ox_newline_cut cuts[OX_CUTS_MAX];
    uint32_t cut_count;
};

/* ---- plans (offload/search/placement_built.c) --------------------------------------------------------- */

/* Nothing else than placement and homes may change between two plans of a search. */
struct ox_built_table;
OX_MUST enum ox_status ox_built_open(uint32_t unit_count, struct ox_built_table **out);
void ox_built_close(struct ox_built_table **table);

/* Whether there is a plan of the evaluation that follows a step. */
bool ox_search_overlaps(const struct ox_search *s);
/* Turns to the plans with placement and homes as they are; the questions below are about these. */
void ox_search_build(struct ox_search *s);
void ox_search_build_eval(struct ox_search *s);
uint64_t ox_search_need(const struct ox_search *s, enum ox_tier tier);
uint64_t ox_search_spool_key(const struct ox_search *s); /* of what the drives spool */
/* Seconds of a step: what it cannot go below, and simulated. */
double ox_search_least_seconds(struct ox_search *s);
double ox_search_seconds(struct ox_search *s);
/* The plan itself, as long as placement and homes have not changed. */
const struct ox_plan *ox_search_plan(struct ox_search *s, enum ox_plan_kind kind);

/* ---- candidates (offload/search/placement_fill.c) ----------------------------------------------------- */

/* Every plane in its farthest home, but for those of the last units that live on the device. */
void ox_search_farthest_homes(struct ox_search *s, uint32_t device_units);
uint64_t ox_search_budget(const struct ox_search *s, enum ox_tier tier);
uint64_t ox_search_over_all(const struct ox_search *s);
OX_MUST enum ox_status ox_search_check_drives(struct ox_search *s);

/* Sets homes and builds the plan of training; false when it does not fit, which is noted if nothing came nearer. After
 * that, for the few candidates that are worth it, those of evaluation too, which seldom ask for more: then less comes
 * home. */
bool ox_search_fit_train(struct ox_search *s, const struct ox_candidate *candidate);
bool ox_search_fit_eval(struct ox_search *s, const struct ox_candidate *candidate);

/* The tier that a request means where host and device are one memory, which is also where no unit is apart from
 * others. */
enum ox_tier ox_search_requested(enum ox_tier tier, bool unified);
uint32_t ox_search_requested_device_units(const struct ox_search *s);

/* ---- what may be chosen (offload/search/placement_choices.c) ------------------------------------------ */

/* Chunks in flight in the optimizer's stream: so many that a drive is busy while others are checked and updated. */
enum { OX_SLOTS_DEEP = 32, OX_SLOTS_MIDDLE = 8, OX_SLOTS_SHALLOW = 3 };

/* In this order they are changed one at a time; the last is there only where ox_choice_device_units says so. */
enum ox_choice {
    OX_CHOICE_OVERLAP, OX_CHOICE_ORDER, OX_CHOICE_RANKING, OX_CHOICE_DEVICE_WEIGHTS, OX_CHOICE_CREDIT, OX_CHOICE_KEPT,
    OX_CHOICE_EARLY, OX_CHOICE_DEPTH, OX_CHOICE_SLOTS, OX_CHOICE_SLOTS_FINE, OX_CHOICE_TILES, OX_CHOICE_ACT_TIER,
    OX_CHOICE_AWAY, OX_CHOICE_DEVICE_UNITS, OX_CHOICE_COUNT
};
enum { OX_CHOICES_MAX = 128 };
struct ox_choices {
    struct ox_candidate at[OX_CHOICES_MAX];
    uint32_t count;
};

/* Adds candidates that differ from `from` in one thing alone; `from` itself may be among them. What is requested is not
 * changed. */
typedef void ox_choice_fn(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out);
extern ox_choice_fn *const ox_choice_fns[OX_CHOICE_COUNT];

bool ox_candidate_same(const struct ox_candidate *a, const struct ox_candidate *b);
uint64_t ox_candidate_hash(const struct ox_candidate *candidate); /* of those that are the same the same */
/* With what decides nothing in it as in a plain one: where all units live on the device, no plane comes home. */
struct ox_candidate ox_candidate_plain(const struct ox_search *s, struct ox_candidate candidate);

/* Whether request and budget allow it. */
bool ox_choice_act_tier(const struct ox_search *s, enum ox_tier tier);
bool ox_choice_overlap(const struct ox_search *s, bool overlap);
bool ox_choice_device_weights(const struct ox_search *s);
bool ox_choice_device_units(const struct ox_search *s);
/* How many of the last units are updated in backward, at so many of OX_CHOICE_QUARTERS: what the update replaces must
 * stay on the drives. */
enum { OX_CHOICE_QUARTERS = 4 };
uint32_t ox_choice_speculative_units(const struct ox_search *s, uint32_t quarters);

/* How many blocks may keep what their backward needs at most; where that is requested, how many do. */
uint32_t ox_choice_kept_units(const struct ox_search *s);

/* ---- the search (offload/search/placement_search.c) --------------------------------------------------- */

/* Leaves the best in `best` and `best_homes`, where any fits. */
void ox_search_run(struct ox_search *s);

#ifdef __cplusplus
}
#endif
#endif
