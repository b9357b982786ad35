/* Defines the optimizers' terms for every folder: kinds, state formats, names, bytes per parameter, the layout of a
 * state's planes, and the numbers of an update. base/optim_element.h defines what an update computes.
 *
 *              hi  lo   m          v          bytes per parameter
 *   f32         2   2   4          4          12       8 with one moment
 *   bf16        2   2   2          2           8       6
 *   q8          2   1   1 + 1/64   1 + 1/64    5.03    4.02
 *
 * A state with averages has 4 bytes more, behind all others: a running mean of the masters in fp32. */
#ifndef OX_BASE_OPTIM_FORMAT_H
#define OX_BASE_OPTIM_FORMAT_H

#include "base/planes.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Parameters come in whole groups: a unit has a whole number of groups, a chunk starts at a group, and a partial sum of
 * squares covers one. A group's hi plane and its gradient are whole blocks of OX_IO_ALIGN_BYTES. */
enum { OX_GROUP_ELEMS = 2048 };

/* ---- rows ------------------------------------------------------------------------------------------- */

/* One row per optimizer: its constant, its name in options and files, and whether it has a second moment. Files store
 * the numbers, so a new row goes last. Muon is AdamW but for whole matrices (cpu_optim/muon.h), whose state is laid out
 * as that of SGD. */
#define OX_OPTIM_ROWS(ROW)             \
    ROW(OX_OPTIM_ADAMW, "adamw", true) \
    ROW(OX_OPTIM_LION, "lion", false)  \
    ROW(OX_OPTIM_SGD, "sgd", false)  \
    ROW(OX_OPTIM_MUON, "muon", true)

/* One row per format of the moments: its constant, its name, bytes per element of m or v, bytes per element of lo, and
 * the elements that share a one-byte scale (0: no scales). */
#define OX_MOMENTS_ROWS(ROW)                        \
    ROW(OX_MOMENTS_F32, "f32", 4, OX_LO_BYTES, 0)   \
    ROW(OX_MOMENTS_BF16, "bf16", 2, OX_LO_BYTES, 0) \
    ROW(OX_MOMENTS_Q8, "q8", 1, 1, OX_Q8_BLOCK)

enum { OX_Q8_BLOCK = 64 };

#define OX_ROW_CONSTANT(constant, ...) constant,
#define OX_ROW_CHOICE(constant, name, ...) "|" name
enum ox_optim_kind { OX_OPTIM_ROWS(OX_ROW_CONSTANT) OX_OPTIM_KIND_COUNT };
enum ox_moments { OX_MOMENTS_ROWS(OX_ROW_CONSTANT) OX_MOMENTS_COUNT };

/* "adamw|lion|sgd" and "f32|bf16|q8", as constant expressions. */
#define OX_OPTIM_CHOICES (&(OX_OPTIM_ROWS(OX_ROW_CHOICE))[1])
#define OX_MOMENTS_CHOICES (&(OX_MOMENTS_ROWS(OX_ROW_CHOICE))[1])

const char *ox_optim_kind_name(enum ox_optim_kind kind);
const char *ox_moments_name(enum ox_moments moments);

/* Inline, so that loops compiled once per format can branch on them at compile time. */
#define OX_CASE_HAS_V(constant, name, has_v) case constant: return has_v;
#define OX_CASE_MOMENT_BYTES(constant, name, moment, lo, block) case constant: return moment;
#define OX_CASE_LO_BYTES(constant, name, moment, lo, block) case constant: return lo;
#define OX_CASE_BLOCK_ELEMS(constant, name, moment, lo, block) case constant: return block;
static inline OX_ON_DEVICE_TOO bool ox_optim_has_v(enum ox_optim_kind kind) {
    switch (kind) { OX_OPTIM_ROWS(OX_CASE_HAS_V) default: return false; }
}
static inline OX_ON_DEVICE_TOO uint32_t ox_moment_bytes(enum ox_moments moments) {
    switch (moments) { OX_MOMENTS_ROWS(OX_CASE_MOMENT_BYTES) default: return 0; }
}
static inline OX_ON_DEVICE_TOO uint32_t ox_lo_bytes(enum ox_moments moments) {
    switch (moments) { OX_MOMENTS_ROWS(OX_CASE_LO_BYTES) default: return 0; }
}
/* Returns the elements that share a scale; 0 for a format without scales. */
static inline OX_ON_DEVICE_TOO uint32_t ox_scale_block_elems(enum ox_moments moments) {
    switch (moments) { OX_MOMENTS_ROWS(OX_CASE_BLOCK_ELEMS) default: return 0; }
}

enum ox_grad_dtype { OX_GRAD_F32, OX_GRAD_BF16 };
static inline uint64_t ox_grad_bytes(enum ox_grad_dtype dtype) {
    return dtype == OX_GRAD_BF16 ? sizeof(uint16_t) : sizeof(float);
}

/* ---- layout of a state ------------------------------------------------------------------------------ */

struct ox_state_format {
    enum ox_optim_kind kind;
    enum ox_moments moments;
    bool averages;
};

/* Offsets of the planes of `count` elements in one piece of memory, [lo | m | v | averages]; a plane's scales follow
 * its codes. Plane v is empty for a kind without it, scales and averages are for a format without them. */
struct ox_state_layout {
    uint64_t lo_bytes; /* with the padding after lo */
    uint64_t m_offset, m_scale_offset;
    uint64_t v_offset, v_scale_offset;
    uint64_t average_offset;
    uint64_t end;   /* end of the last plane; the rest is padding */
    uint64_t bytes;
};
/* `count` is a multiple of OX_GROUP_ELEMS. lo_bytes and bytes are multiples of OX_IO_ALIGN_BYTES. */
struct ox_state_layout ox_state_layout_of(struct ox_state_format format, uint64_t count);

/* Pointers to the state of consecutive elements. Zero bytes are zero moments in every format. */
struct ox_state_planes {
    void *lo;                   /* uint16_t; q8: uint8_t */
    void *m, *v;                /* float, bfloat16 or codes; v is NULL for a kind without it */
    uint8_t *m_scale, *v_scale; /* one per OX_Q8_BLOCK elements; NULL for a format without scales */
    float *average;             /* NULL for a format without averages */
};
/* Returns the planes from element `begin` on, in a piece laid out for `count` elements; with scales, `begin` is a
 * multiple of their block. */
struct ox_state_planes ox_state_planes_at(struct ox_state_format format, void *state, uint64_t count, uint64_t begin);
/* Returns the planes `begin` elements further on. */
struct ox_state_planes ox_state_planes_skip(enum ox_moments moments, struct ox_state_planes planes, uint64_t begin);

/* ---- the numbers of an update ----------------------------------------------------------------------- */

struct ox_optim_settings {
    double learning_rate, beta1, beta2, eps, weight_decay, grad_scale;
    double average_decay; /* of averages, where the format has them */
    uint64_t step; /* t, from 1 */
    uint64_t seed; /* seeds the random rounding */
};

/* The numbers that an update uses, derived from the settings in double and rounded once. */
struct ox_optim_hyper {
    float beta1, beta2, eps, learning_rate;
    float one_minus_beta1, one_minus_beta2;
    float m_scale, v_scale; /* 1/(1 - beta1^t), 1/(1 - beta2^t) */
    float decay_factor;     /* 1 - learning_rate * weight_decay, for elements with decay */
    float grad_scale;       /* clip coefficient; 1 without clipping */
    float average_share;    /* how much of a new master its average takes: all of the first one, as torch does */
    uint64_t seed, step;
    double rate, weight_decay; /* as the settings have them, for ox_optim_hyper_own */
};
void ox_optim_hyper_init(const struct ox_optim_settings *settings, struct ox_optim_hyper *out);
/* The numbers for parameters with `rate_share` times the learning rate, and a weight decay of their own (NAN: that of
 * the settings). */
struct ox_optim_hyper ox_optim_hyper_own(const struct ox_optim_hyper *hyper, double rate_share, double weight_decay);

/* Derives the keys of one step's random rounding for the parameters that `stream` names (base/optim_element.h). */
void ox_noise_keys(const struct ox_optim_hyper *hyper, uint32_t stream, uint32_t keys[2]);

/* ---- kept weights ---- */

/* How the weights of a unit are kept: in every home, on the drives and on the way to compute. One table, whose rows
 * shards, checkpoints and kernels read; and the eight-bit format. */

/* What is trained has its master; of a frozen unit the format is chosen when a run begins. */
enum ox_unit_format {
    OX_FORMAT_MASTER, /* both planes: the fp32 master */
    OX_FORMAT_BF16,   /* hi alone: the weights are bf16 numbers, whose lo would be zeros */
    OX_FORMAT_FP16,   /* halves in place of hi: of a block whose weights CAST makes of the whole master */
    OX_FORMAT_Q8,     /* groups of eight-bit numbers in place of hi, rounded: of a block, as CAST alone reads them */
    OX_FORMAT_COUNT
};

struct ox_weight_format {
    char letter; /* in run.json */
    uint16_t hi_per_group, lo_per_group; /* bytes for OX_GROUP_ELEMS weights of hi, or of what is in its place; of lo */
    bool hi_is_bf16;
    enum ox_real exact; /* the narrowest type of a file that has all of its numbers */
};

/* Eight-bit weights: a group is OX_GROUP_ELEMS numbers in blocks of 32. In front of it lie the scales of its blocks,
 * bf16 numbers; behind them a signed byte for each number. A number is its byte times the scale of its block. The scale
 * is the block's largest magnitude over 127, rounded to bf16, so a byte is at most 127 and a number is off by half a
 * scale at most, within rounding of float32. Where the scale would be less than 2^-126 all numbers become zero: they
 * are less than 1.6e-36. Numbers that were packed have 15 significant bits, and packed again they are the same bits. */
enum {
    OX_BASE8_BLOCK = 32,
    OX_BASE8_SCALES_BYTES = OX_GROUP_ELEMS / OX_BASE8_BLOCK * 2,
    OX_BASE8_GROUP_BYTES = OX_BASE8_SCALES_BYTES + OX_GROUP_ELEMS
};

static inline const struct ox_weight_format *ox_weight_format_of(enum ox_unit_format format) {
    static const struct ox_weight_format rows[OX_FORMAT_COUNT] = {
        {'-', OX_HI_BYTES * OX_GROUP_ELEMS, OX_LO_BYTES * OX_GROUP_ELEMS, true, OX_REAL_F32},
        {'b', OX_HI_BYTES * OX_GROUP_ELEMS, 0, true, OX_REAL_BF16},
        {'h', OX_HI_BYTES * OX_GROUP_ELEMS, 0, false, OX_REAL_F16},
        {'q', OX_BASE8_GROUP_BYTES, 0, false, OX_REAL_F32},
    };
    return &rows[format];
}

/* Packs a group. Returns how many of its numbers are not finite, or too large to come back as finite numbers. */
static inline uint64_t ox_base8_pack(const float in[OX_GROUP_ELEMS], unsigned char group[OX_BASE8_GROUP_BYTES]) {
    uint64_t bad_count = 0;
    for (uint32_t block = 0; block < OX_GROUP_ELEMS / OX_BASE8_BLOCK; block++) {
        const float *const numbers = in + (uint64_t)block * OX_BASE8_BLOCK;
        float most = 0.0f;
        for (uint32_t i = 0; i < OX_BASE8_BLOCK; i++) {
            const float size = ox_f32_from_bits(ox_f32_bits(numbers[i]) & 0x7fffffffu);
            bad_count += !(size < 0x1.fcp127f); /* also a NaN */
            most = size > most ? size : most;
        }
        const float quotient = most / 127.0f;
        const uint16_t scale = quotient < 0x1p-126f ? 0 : ox_bf16_from_f32(quotient);
        const float step = ox_bf16_to_f32(scale);
        memcpy(group + 2 * block, &scale, sizeof scale);
        for (uint32_t i = 0; i < OX_BASE8_BLOCK; i++) {
            const float units = step > 0.0f ? numbers[i] / step : 0.0f;
            const float nearest = units + 0x1.8p23f - 0x1.8p23f; /* to even, as float32 rounds */
            group[OX_BASE8_SCALES_BYTES + block * OX_BASE8_BLOCK + i] =
                nearest >= -127.0f && nearest <= 127.0f ? (unsigned char)(signed char)nearest : 0;
        }
    }
    return bad_count;
}

/* Number `i` of a block whose first byte is at `bytes`. */
static inline OX_ON_DEVICE_TOO float ox_base8_number(unsigned char byte, uint16_t scale) {
    return (float)(signed char)byte * ox_bf16_to_f32(scale);
}

/* Unpacks the numbers of a block of a group. */
static inline void ox_base8_unpack(const unsigned char group[OX_BASE8_GROUP_BYTES], uint32_t block,
                                   float out[OX_BASE8_BLOCK]) {
    uint16_t scale;
    memcpy(&scale, group + 2 * block, sizeof scale);
    for (uint32_t i = 0; i < OX_BASE8_BLOCK; i++) {
        out[i] = ox_base8_number(group[OX_BASE8_SCALES_BYTES + block * OX_BASE8_BLOCK + i], scale);
    }
}

#ifdef __cplusplus
}
#endif
#endif
