/* The simulator: the second executor of a plan, in virtual time. It takes the tasks as the runtime does (lanes are
 * FIFO, a task waits for its dependencies, issue runs ahead by so many tasks and stops at the norm) and gives each the
 * time that the machine needs for it.
 *
 * A task uses several resources at once. Alone it takes as long as its slowest part; with others it is slowed down as
 * much as they are, until what they use together is what the machine has. Between two events all speeds are constant,
 * so a step takes as many turns as tasks start and end. There is no clock and nothing random in it: the same plan and
 * machine give the same numbers. */
#ifndef OX_OFFLOAD_SIM_H
#define OX_OFFLOAD_SIM_H

#include "offload/sim/machine_profile.h"
#include "offload/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What tasks share. Each can be used for one second a second; the two directions of drives, and of the link between
 * host and device, have a limit together as well. */
enum ox_sim_resource {
    OX_SIM_GPU,
    OX_SIM_CORES, /* all of the host's: where the CPU is the device, its compute too */
    OX_SIM_MEMORY,
    OX_SIM_NVME_READ, OX_SIM_NVME_WRITE,
    OX_SIM_H2D, OX_SIM_D2H,
    OX_SIM_RESOURCE_COUNT
};
const char *ox_sim_resource_name(enum ox_sim_resource resource);

/* What a task needs. `tail` are seconds of writes that may be in flight when it ends: they delay the next task of its
 * lane, and the step. */
struct ox_sim_work {
    double latency; /* seconds at first, in which it uses nothing */
    double seconds; /* of the rest, alone on the machine: at least each of `use` */
    double use[OX_SIM_RESOURCE_COUNT]; /* seconds of the whole resource */
    double unhidden; /* of `seconds`, those that come on top of what the drives need, with a tail taken over as well */
    double tail;
};

/* How much two directions give together: both at `together` when neither is less than `balance` of the other. */
struct ox_sim_duplex {
    double together, balance;
};

struct ox_sim_limits {
    struct ox_sim_duplex nvme, link;
    uint32_t run_ahead_tasks; /* that may be issued and not done; 0: no limit */
};

/* From the rates of one direction alone and from that of both at a time, as many bytes each way. */
struct ox_sim_duplex ox_sim_duplex_of(double read_rate, double write_rate, double mix_rate);
/* Seconds alone of work that uses both directions. */
double ox_sim_duplex_seconds(const struct ox_sim_duplex *duplex, double read_seconds, double write_seconds);

struct ox_sim_lane {
    double busy;
    double waited_for[OX_LANE_COUNT]; /* with a task issued: for the last of its dependencies, by their lane */
    double unissued;                  /* between its tasks, because the next one was not issued yet */
};

struct ox_sim_result {
    double seconds;
    double used[OX_SIM_RESOURCE_COUNT]; /* seconds of each resource */
    enum ox_sim_resource binding;       /* the one that was busy longest; of a pair, its busier direction */
    double binding_share;               /* of the step in which it was at its limit, a pair's together */
    struct ox_sim_lane lanes[OX_LANE_COUNT];
};

/* Seconds in which a lane with a task issued waited: what the runtime counts as a stall. */
double ox_sim_stalled(const struct ox_sim_lane *lane);

struct ox_sim;

/* Reserves room for plans of up to `task_max` tasks; nothing after it allocates. */
OX_MUST enum ox_status ox_sim_open(uint32_t task_max, struct ox_sim **out);
void ox_sim_close(struct ox_sim **sim);

/* What each task needs, asked when it starts. */
typedef struct ox_sim_work ox_sim_work_fn(const void *context, const struct ox_plan *plan, uint32_t task_idx);

/* Runs the plan with the works that `work` tells. */
void ox_sim_play(struct ox_sim *sim, const struct ox_plan *plan, const struct ox_sim_limits *limits,
                 ox_sim_work_fn *work, const void *context, struct ox_sim_result *out);

/* Of the last plan: when a task began and ended, in seconds of the step. */
double ox_sim_begin(const struct ox_sim *sim, uint32_t task_idx);
double ox_sim_end(const struct ox_sim *sim, uint32_t task_idx);

/* ---- on a machine (offload/sim/sim_work.c) ------------------------------------------------------- */

struct ox_sim_setup {
    const struct ox_machine *machine;
    const struct ox_plan_input *input;
    uint32_t compute_threads, optimizer_threads; /* 0: as many as the machine has cores */
    uint32_t run_ahead_tasks;
    bool in_memory; /* a step whose update is not written (ox_plan_may_stay_in_memory) */
};

struct ox_sim_work ox_sim_task_work(const struct ox_sim_setup *setup, const struct ox_plan *plan, uint32_t task_idx);
struct ox_sim_limits ox_sim_limits_of(const struct ox_sim_setup *setup);

/* Seconds that no order of the plan's tasks goes below: of its fullest lane, and of the resource it needs most. A
 * fraction of the work of simulating it. */
double ox_sim_least_seconds(const struct ox_sim_setup *setup, const struct ox_plan *plan);

/* The step that `plan` makes on that machine. */
void ox_sim_run(struct ox_sim *sim, const struct ox_plan *plan, const struct ox_sim_setup *setup,
                struct ox_sim_result *out);

#ifdef __cplusplus
}
#endif
#endif
