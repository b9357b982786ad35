/* What a training step costs at least: an analytic model of batch shape, placement, traffic by link and time by
 * resource, for three orders of work. Pure functions of doubles: no clock, no device, no memory. They bound what the
 * planner searches and are what a prediction is held against.
 *
 * The orders are those of ZeRO-Infinity (arXiv 2104.07857), of Ratel's optimizer inside backward (2403.06504), and of
 * GreedySnake's vertical walk (2512.17570), here in tiles. docs/planning.md does one example by hand; the letters
 * behind the fields are those of its formulas. Bytes, seconds, FLOP; rates per second. */
#ifndef OX_OFFLOAD_FLOOR_H
#define OX_OFFLOAD_FLOOR_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ox_floor_schedule {
    OX_FLOOR_H,  /* horizontal: a micro-batch after the other, the optimizer after backward  */
    OX_FLOOR_HA, /* horizontal, the optimizer inside the last backward                       */
    OX_FLOOR_F,  /* vertical in tiles, everything overlapped: what nothing can be faster than */
    OX_FLOOR_SCHEDULE_COUNT
};

/* In the order in which a tie is settled. */
enum ox_floor_resource {
    OX_FLOOR_COMPUTE, OX_FLOOR_H2D, OX_FLOOR_D2H, OX_FLOOR_DRAM, OX_FLOOR_NVME, OX_FLOOR_RESOURCE_COUNT
};
const char *ox_floor_resource_name(enum ox_floor_resource resource); /* "compute", "h2d", "d2h", "dram", "nvme" */

/* What is kept free: of the host for the system, of the GPU for its libraries. */
#define OX_FLOOR_HOST_RESERVED 16e9
#define OX_FLOOR_GPU_RESERVED 3e9

struct ox_floor_box {
    double flops;                                   /* C, sustained                                       */
    double h2d_rate, d2h_rate;                      /* B_up, B_dn                                         */
    double dram_rate;                               /* B_ram, reads and writes counted together           */
    double nvme_read_rate, nvme_write_rate;         /* N_r, N_w of all drives; one or the other at a time */
    double gpu_bytes, host_bytes;                   /* M_gpu, M_ram                                       */
    double gpu_reserved_bytes, host_reserved_bytes; /* OX_FLOOR_*_RESERVED                                */
    double micro_factor;                            /* q: micro-batches of this GPU against the model's   */
    bool unified; /* the device computes in host memory: nothing crosses a link, and working memory is the host's */
};

struct ox_floor_model {
    double params, layers, hidden, seq; /* P, L, h, s */
    double micro_tokens;                /* T_mu0      */
};

/* Stored bytes per parameter of the usual formats, S; 2 of them are the bf16 weight (hi), the others X. */
#define OX_FLOOR_S_F32_SEPARATE 14.0 /* bf16 copy; fp32 master, m, v               */
#define OX_FLOOR_S_F32_SPLIT 12.0    /* hi and lo are the fp32 master; fp32 m, v   */
#define OX_FLOOR_S_BF16 8.0          /* hi, lo; bf16 m, v                          */
#define OX_FLOOR_S_8BIT 5.06         /* hi, 8-bit lo; 8-bit m, v; scales           */

struct ox_floor_run {
    enum ox_floor_schedule schedule;
    double state_bytes; /* S                                                                             */
    double tokens;      /* T, of an optimizer step                                                       */
    double recompute;   /* r: 1 when backward recomputes blocks, 0 when it does not                      */
    double tiles;       /* k, for F; 0 takes the best. H and HA go micro-batch by micro-batch            */
};

struct ox_floor_traffic {
    double h2d, d2h;                   /* H2D, D2H                                                       */
    double weights_read;               /* R_hi                                                           */
    double grad_read, grad_written;    /* R_g, W_g: the accumulator                                      */
    double checkpoints;                /* A_sp: written once and read once                               */
    double state_read, state_written;  /* R_o, W_o                                                       */
    double nvme_read, nvme_written;    /* R, W: sums of the above                                        */
    double adam, accumulate;           /* D_adam, D_acc: of memory                                       */
    double dram;                       /* RAM: everything that crosses memory                            */
};

struct ox_floor {
    /* Batch shape. */
    double micro_tokens, micro_batches, tiles;  /* T_mu, G, k                                                */
    double checkpoint_bytes, alive_bytes;       /* A of a step, A_t at once                                  */
    double boundary_bytes, accumulator_bytes;   /* D, K                                                      */
    bool boundary_spilled;                      /* sigma: activations between layers do not stay on the GPU  */
    /* Placement. */
    double working_bytes, spare_gpu_bytes;      /* W_gpu, x_g                                                */
    bool fits;                                  /* reported; the figures do not depend on it                 */
    double checkpoints_on_nvme;                 /* a_nv, of one tile                                         */
    double grad_share, weight_share, state_share; /* c_g, c_h, c_s: what is not on NVMe                      */
    double gpu_share;                           /* rho: of parameters with all their state on the GPU        */
    /* Work and time. */
    double flop;                                /* FL                                                        */
    struct ox_floor_traffic traffic;
    double seconds[OX_FLOOR_RESOURCE_COUNT];    /* t_comp, t_h2d, t_d2h, t_dram, t_nvme                      */
    double optimizer_seconds, passes_seconds;   /* T_opt, T_fb                                               */
    double step_seconds;                        /* T_step. Of HA it can be less than its own t_nvme, and of H
                                                   and HA less than t_dram: their formulas do not make the
                                                   passes and the optimizer share what both use              */
    double tokens_per_second, mfu;
    enum ox_floor_resource bound;               /* the largest of `seconds`                                  */
    bool hidden;                                /* within 5 % of compute alone                               */
};

struct ox_floor_case {
    struct ox_floor_box box;
    struct ox_floor_model model;
    struct ox_floor_run run;
};

/* Sizes and rates are positive, or rates INFINITY where there is no such link and 0 where there is no drive; what then
 * has to go to a drive takes INFINITY. Tokens are 1 or more. */
struct ox_floor ox_floor_of(const struct ox_floor_case *given);

/* T*: the least tokens of a step from which I/O is hidden behind compute, within 5 %; INFINITY when 4 million are not
 * enough. The case's own tokens do not matter. */
double ox_floor_hidden_tokens(const struct ox_floor_case *given);

/* How many times as fast as ZeRO-Infinity's order, which keeps the master apart from the weights. */
double ox_floor_speedup(const struct ox_floor_case *given);

/* Three thresholds in tokens that need neither placement nor attention: weights (2 P bytes, twice, against 8 P T FLOP)
 * fetched at `rate` are hidden from so many tokens of a micro-batch; a state of which nothing is resident, and the
 * arithmetic of the optimizer in memory, from so many of a step. */
double ox_floor_tokens_for_weights(double flops, double rate);
double ox_floor_tokens_for_state(const struct ox_floor_box *box, double state_bytes);
double ox_floor_tokens_for_adam(const struct ox_floor_box *box, double state_bytes);

/* The box that a profile describes: of several drives the sum, of a machine without GPU the unified one. */
struct ox_machine;
struct ox_floor_box ox_floor_box_of(const struct ox_machine *machine);

#ifdef __cplusplus
}
#endif
#endif
