/* The simulator executes a plan in virtual time. Like the runtime it keeps lanes in order, lets a task wait for its
 * dependencies, issues a limited number of tasks ahead and stops issuing at the norm; each task takes the time that the
 * machine needs for it. The search and predictions call it.
 *
 * A task uses several resources at a time. Alone it takes as long as its slowest part; tasks that compete for a
 * resource are slowed down alike until their demand fits its limit. Between two events all speeds are constant, so the
 * work is in proportion to the number of tasks. There is no clock and nothing random: the same plan and machine give
 * the same numbers. */
#ifndef OX_OFFLOAD_SIM_H
#define OX_OFFLOAD_SIM_H

#include "offload/sim/machine_profile.h"
#include "offload/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What tasks share. Each resource can be used for one second per second. The two directions of the drives, and of the
 * link between host and device, also have a limit together. */
enum ox_sim_resource {
    OX_SIM_GPU,
    OX_SIM_CORES, /* all cores of the host; if the CPU is the device, compute uses them too */
    OX_SIM_MEMORY,
    OX_SIM_NVME_READ, OX_SIM_NVME_WRITE,
    OX_SIM_H2D, OX_SIM_D2H,
    OX_SIM_PEER_IN, OX_SIM_PEER_OUT, /* between GPUs */
    OX_SIM_RESOURCE_COUNT
};
const char *ox_sim_resource_name(enum ox_sim_resource resource);

/* What a task needs, in seconds. `tail` is time of writes that may still be in flight when the task ends: they delay
 * the next task of its lane, and the end of the step. */
struct ox_sim_work {
    double latency; /* at its start, when it uses no resource */
    double seconds; /* after the latency, alone on the machine: at least each of `use` */
    double use[OX_SIM_RESOURCE_COUNT]; /* seconds for which it takes the whole resource */
    double unhidden; /* part of `seconds` on top of the drives' time, also when a tail is taken over */
    double tail;
};

/* How much two directions give together: `together`, in units of one direction alone, if the smaller one is at least
 * `balance` times the larger one; less if it is smaller. */
struct ox_sim_duplex {
    double together, balance;
};

struct ox_sim_limits {
    struct ox_sim_duplex nvme, link;
    uint32_t run_ahead_tasks; /* most tasks issued and not done; 0: no limit */
};

struct ox_sim_setup;

/* Which share of what a rank gets from the others of its group on an axis comes from other machines; *here: how many of
 * the group are on its own. Those that divide features are taken to lie closest, then those that divide micro-batches
 * or rows, then copies, then the coordinates of a pipeline, as a launcher can place them. */
double ox_sim_net_share(const struct ox_machine *machine, const struct ox_plan_input *input, enum ox_axis axis,
                        uint32_t *here);
/* What a task of lane LINK takes on GPUs before bytes move: two meetings of hosts, or a call that waits on its device.
 */
double ox_sim_call_latency(const struct ox_sim_setup *setup, const struct ox_task *task);
/* Seconds that the products of an update of whole matrices take on so many threads. */
double ox_sim_product_seconds(const struct ox_machine *machine, double flops, double threads);
/* Seconds of the update of one parameter on `threads` threads: the measured format with the nearest number of bytes,
 * scaled by bytes. */
double ox_sim_update_seconds(const struct ox_machine *machine, double bytes, double threads);

/* From the rates of each direction alone and from the sum of both at a time, with as many bytes each way. */
struct ox_sim_duplex ox_sim_duplex_of(double read_rate, double write_rate, double mix_rate);
/* Seconds of work that uses both directions and runs alone. */
double ox_sim_duplex_seconds(const struct ox_sim_duplex *duplex, double read_seconds, double write_seconds);

struct ox_sim_lane {
    double busy;
    double waited_for[OX_LANE_COUNT]; /* seconds with a task issued, by the lane of its last dependency */
    double unissued;                  /* seconds between tasks because the next one was not issued yet */
};

struct ox_sim_result {
    double seconds;
    double used[OX_SIM_RESOURCE_COUNT]; /* seconds of each resource */
    enum ox_sim_resource binding;       /* at its limit for longest; of a pair, the busier direction */
    double binding_share;               /* share of the step in which it was at its limit, alone or as a pair */
    struct ox_sim_lane lanes[OX_LANE_COUNT];
};

/* Seconds in which a lane waited with a task issued, which the runtime counts as a stall. */
double ox_sim_stalled(const struct ox_sim_lane *lane);

struct ox_sim;

/* Allocates memory for plans of up to `task_max` tasks; no later call allocates. Close with ox_sim_close(). */
OX_MUST enum ox_status ox_sim_open(uint32_t task_max, struct ox_sim **out);
void ox_sim_close(struct ox_sim **sim);

/* Returns what a task needs; called when it starts. */
typedef struct ox_sim_work ox_sim_work_fn(const void *context, const struct ox_plan *plan, uint32_t task_idx);

/* Runs the plan with what `work` returns for each task. The caller owns all arguments. */
void ox_sim_play(struct ox_sim *sim, const struct ox_plan *plan, const struct ox_sim_limits *limits,
                 ox_sim_work_fn *work, const void *context, struct ox_sim_result *out);

/* The list of one rank, and what its tasks need. */
struct ox_sim_list {
    const struct ox_plan *plan;
    struct ox_sim_limits limits;
    ox_sim_work_fn *work;
    const void *context;
};

/* Runs the lists of a pipeline together: of each coordinate, in order, one rank, which stands for the others. A
 * transfer starts when both ranks have come to it, and what all do together when all have. Each rank has resources of
 * its own. Returns the seconds of the step. The lists must be proven together. */
double ox_sim_play_pipe(struct ox_sim *const *sims, const struct ox_sim_list *lists, uint32_t count,
                        struct ox_sim_result *out);

/* When a task of the last plan began and ended, in seconds from the start of the step. */
double ox_sim_begin(const struct ox_sim *sim, uint32_t task_idx);
double ox_sim_end(const struct ox_sim *sim, uint32_t task_idx);

/* ---- on a machine (offload/sim/sim_work.c) ------------------------------------------------------- */

/* Ranks are alike, so one of them is simulated: it has its part of the machine (ox_machine_of_rank), and waits for the
 * others no longer than for its own bytes. */
struct ox_sim_setup {
    const struct ox_machine *machine; /* the whole of it */
    const struct ox_plan_input *input;
    uint32_t compute_threads, optimizer_threads; /* of each rank; 0: one per core that it has */
    uint32_t run_ahead_tasks;
    bool ordered; /* GPUs make the calls between them that they can in their own order (ox_plan_calls_on_device) */
    bool stays; /* neither this step nor the one before is committed (ox_plan_may_stay) */
    bool holds; /* neither of them speculates */
};

struct ox_sim_work ox_sim_task_work(const struct ox_sim_setup *setup, const struct ox_plan *plan, uint32_t task_idx);
struct ox_sim_limits ox_sim_limits_of(const struct ox_sim_setup *setup);

/* Seconds of a commit between steps, where state lives on the device (ox_plan_commits_between); else 0. */
double ox_sim_between_seconds(const struct ox_sim_setup *setup);

/* A lower bound of the step's seconds for any order of the plan's tasks: its fullest lane, or the resource that it
 * needs most. Takes a fraction of the time of simulating the step. `works`, one for each task, becomes what they
 * need. */
double ox_sim_least_seconds(const struct ox_sim_setup *setup, const struct ox_plan *plan, struct ox_sim_work *works);

/* Simulates the step of a pipeline: plans[i] and setups[i] are those of the first rank of coordinate i. Returns its
 * seconds; out[i] is what rank i did. */
enum { OX_SIM_PIPE_MAX = 64 }; /* coordinates */
double ox_sim_run_pipe(struct ox_sim *const *sims, const struct ox_plan *const *plans,
                       const struct ox_sim_setup *setups, uint32_t count, struct ox_sim_result *out);

/* Simulates the step of `plan` on the machine of `setup`. Of a pipeline it is one rank by itself, for which whatever it
 * waits for is there in time. */
void ox_sim_run(struct ox_sim *sim, const struct ox_plan *plan, const struct ox_sim_setup *setup,
                struct ox_sim_result *out);
/* The seconds that ox_sim_run finds, from what ox_sim_least_seconds has found that the tasks need; nothing else is
 * counted, which takes less time. */
double ox_sim_known_seconds(struct ox_sim *sim, const struct ox_plan *plan, const struct ox_sim_setup *setup,
                            const struct ox_sim_work *works);

#ifdef __cplusplus
}
#endif
#endif
