/* What a training step costs at least: an analytic model of batch shape, placement, traffic by link and time by
 * resource, for three orders of work. It consists of pure functions of doubles: no clock, no device, no memory.
 * engine/run holds predictions against it.
 *
 * The orders are those of ZeRO-Infinity (arXiv 2104.07857), of Ratel's optimizer inside backward (2403.06504), and of
 * GreedySnake's vertical order (2512.17570), here in tiles. docs/planning.md works through one example by hand; the
 * letters behind the fields are those of its formulas. Units are bytes, seconds and FLOP; rates are per second. */
#ifndef OX_OFFLOAD_FLOOR_H
#define OX_OFFLOAD_FLOOR_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ox_floor_schedule {
    OX_FLOOR_H,  /* horizontal: one micro-batch after the other, the optimizer after backward */
    OX_FLOOR_HA, /* horizontal, the optimizer inside the last backward                       */
    OX_FLOOR_F,  /* vertical in tiles, everything overlapped: the lower bound */
    OX_FLOOR_SCHEDULE_COUNT
};

/* If several resources take equally long, the first of them is named as the bound. */
enum ox_floor_resource {
    OX_FLOOR_COMPUTE, OX_FLOOR_H2D, OX_FLOOR_D2H, OX_FLOOR_DRAM, OX_FLOOR_NVME, OX_FLOOR_PEER, OX_FLOOR_RESOURCE_COUNT
};
const char *ox_floor_resource_name(enum ox_floor_resource resource); /* "compute", "h2d" ... "nvme", "peer" */

/* Bytes that are kept free: on the host for the system, on the GPU for its libraries. */
#define OX_FLOOR_HOST_RESERVED 16e9
#define OX_FLOOR_GPU_RESERVED 3e9

struct ox_floor_box {
    double flops;                                   /* C, sustained                                       */
    double h2d_rate, d2h_rate;                      /* B_up, B_dn                                         */
    double dram_rate;                               /* B_ram, reads and writes counted together           */
    double nvme_read_rate, nvme_write_rate;         /* N_r, N_w of all drives; one or the other at a time */
    double gpu_bytes, host_bytes;                   /* M_gpu, M_ram                                       */
    double gpu_reserved_bytes, host_reserved_bytes; /* OX_FLOOR_*_RESERVED                                */
    double micro_factor;                            /* q: this GPU's micro-batch in units of the model's  */
    double gpus;                                    /* N: GPUs that do a step together; 0: one. C, B_up, B_dn, M_gpu
                                                       and q are of one of them, the rest is of all               */
    double peer_rate;                               /* B_p, one way between two GPUs; 0: as B_up          */
    /* The device computes in host memory: nothing crosses a link, and the working set takes host memory. */
    bool unified;
};

struct ox_floor_model {
    double params, layers, hidden, seq; /* P, L, h, s */
    double micro_tokens;                /* T_mu0      */
};

/* S: stored bytes per parameter in the usual formats. Two of these bytes are the bf16 weight (hi), the rest is X. */
#define OX_FLOOR_S_F32_SEPARATE 14.0 /* bf16 copy; fp32 master, m, v               */
#define OX_FLOOR_S_F32_SPLIT 12.0    /* hi and lo are the fp32 master; fp32 m, v   */
#define OX_FLOOR_S_BF16 8.0          /* hi, lo; bf16 m, v                          */
#define OX_FLOOR_S_8BIT 5.06         /* hi, 8-bit lo; 8-bit m, v; scales           */

struct ox_floor_run {
    enum ox_floor_schedule schedule;
    double state_bytes; /* S                                                                             */
    double tokens;      /* T: tokens of an optimizer step                                                */
    double recompute;   /* r: 1 when backward recomputes blocks, 0 when it does not                      */
    double tiles;       /* k, for F; 0 takes the best. H and HA have one per micro-batch                 */
};

struct ox_floor_traffic {
    double h2d, d2h;                   /* H2D, D2H: of all GPUs                                          */
    double peer;                       /* PEER: into each GPU and out of it                              */
    double weights_read;               /* R_hi                                                           */
    double grad_read, grad_written;    /* R_g, W_g: the accumulator                                      */
    double checkpoints;                /* A_sp: written once and read once                               */
    double state_read, state_written;  /* R_o, W_o                                                       */
    double nvme_read, nvme_written;    /* R, W: sums of the above                                        */
    double adam, accumulate;           /* D_adam, D_acc: memory traffic of each                          */
    double dram;                       /* RAM: everything that crosses memory                            */
};

struct ox_floor {
    /* Batch shape. */
    double micro_tokens, micro_batches, tiles;  /* T_mu, G, k                                                */
    double checkpoint_bytes, alive_bytes;       /* A of a step, A_t at a time                                */
    double boundary_bytes, accumulator_bytes;   /* D, K                                                      */
    bool boundary_spilled;                      /* sigma: activations between layers do not stay on the GPU  */
    /* Placement. */
    double working_bytes, spare_gpu_bytes;      /* W_gpu, x_g                                                */
    bool fits;                                  /* only reported: the other fields do not depend on it       */
    double checkpoints_on_nvme;                 /* a_nv: bytes of one tile                                   */
    double grad_share, weight_share, state_share; /* c_g, c_h, c_s: shares that are not on NVMe              */
    double gpu_share;                           /* rho: share of parameters with all their state on the GPU  */
    /* Work and time. */
    double flop;                                /* FL                                                        */
    struct ox_floor_traffic traffic;
    double seconds[OX_FLOOR_RESOURCE_COUNT];    /* t_comp, t_h2d, t_d2h, t_dram, t_nvme, t_peer              */
    double optimizer_seconds, passes_seconds;   /* T_opt, T_fb                                               */
    /* T_step. For HA it can be less than its own t_nvme, and for H and HA less than t_dram, because their formulas do
     * not make the passes and the optimizer share a resource. */
    double step_seconds;
    double tokens_per_second, mfu;
    enum ox_floor_resource bound;               /* the largest of `seconds`                                  */
    bool hidden;                                /* within 5 % of compute alone                               */
};

struct ox_floor_case {
    struct ox_floor_box box;
    struct ox_floor_model model;
    struct ox_floor_run run;
};

/* Computes the lower bound. Sizes and rates must be positive; a rate is INFINITY if there is no such link, and 0 if
 * there is no drive: traffic to a missing drive takes INFINITY. Tokens must be 1 or more. */
struct ox_floor ox_floor_of(const struct ox_floor_case *given);

/* T*: the smallest number of tokens of a step with which I/O is hidden behind compute, within 5 %; INFINITY when 4
 * million are not enough. The case's own tokens do not matter. */
double ox_floor_hidden_tokens(const struct ox_floor_case *given);

/* How many times as fast the case is as ZeRO-Infinity's order, which keeps the master apart from the weights. */
double ox_floor_speedup(const struct ox_floor_case *given);

/* Thresholds in tokens that depend on neither placement nor attention. The first counts tokens of a micro-batch: from
 * there on, fetching weights at `rate` (2 P bytes, twice, against 8 P T FLOP) is hidden. The other two count tokens of
 * a step: from there on, reading and writing a state that lives on drives alone, and the optimizer's memory traffic,
 * are hidden. */
double ox_floor_tokens_for_weights(double flops, double rate);
double ox_floor_tokens_for_state(const struct ox_floor_box *box, double state_bytes);
double ox_floor_tokens_for_adam(const struct ox_floor_box *box, double state_bytes);

/* The box that a profile describes: several drives are added up, and a machine without GPU is a unified box. */
struct ox_machine;
struct ox_floor_box ox_floor_box_of(const struct ox_machine *machine);

#ifdef __cplusplus
}
#endif
#endif
