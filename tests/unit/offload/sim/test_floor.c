/* The analytic model against the published table and vectors it was specified with, and what has to hold of it for
 * any machine. */
#include "offload/sim/floor.h"
#include "offload/sim/machine_profile.h"
#include "tests/kit/test.h"

#include "base/prng/prng.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { COLUMN_COUNT = 5, LINE_BYTES = 160 };

#define GB 1e9

/* ---- the published boxes and models --------------------------------------------------------------------- */

enum box { GAMER_1, GAMER_4, H200_4, A100, BOX_COUNT };

static const struct ox_floor_box boxes[BOX_COUNT] = {
    [GAMER_1] = {.flops = 140e12, .h2d_rate = 26.8 * GB, .d2h_rate = 26.8 * GB, .dram_rate = 67 * GB,
                 .nvme_read_rate = 6.5 * GB, .nvme_write_rate = 4 * GB, .gpu_bytes = 24 * GB, .host_bytes = 128 * GB,
                 .gpu_reserved_bytes = OX_FLOOR_GPU_RESERVED, .host_reserved_bytes = OX_FLOOR_HOST_RESERVED,
                 .micro_factor = 1.0},
    [GAMER_4] = {.flops = 140e12, .h2d_rate = 26.8 * GB, .d2h_rate = 26.8 * GB, .dram_rate = 67 * GB,
                 .nvme_read_rate = 26 * GB, .nvme_write_rate = 16 * GB, .gpu_bytes = 24 * GB, .host_bytes = 128 * GB,
                 .gpu_reserved_bytes = OX_FLOOR_GPU_RESERVED, .host_reserved_bytes = OX_FLOOR_HOST_RESERVED,
                 .micro_factor = 1.0},
    [H200_4] = {.flops = 600e12, .h2d_rate = 53.5 * GB, .d2h_rate = 53.5 * GB, .dram_rate = 120 * GB,
                .nvme_read_rate = 26 * GB, .nvme_write_rate = 16 * GB, .gpu_bytes = 141 * GB, .host_bytes = 128 * GB,
                .gpu_reserved_bytes = OX_FLOOR_GPU_RESERVED, .host_reserved_bytes = OX_FLOOR_HOST_RESERVED,
                .micro_factor = 4.0},
    [A100] = {.flops = 218e12, .h2d_rate = 26.8 * GB, .d2h_rate = 26.8 * GB, .dram_rate = 120 * GB,
              .nvme_read_rate = 10 * GB, .nvme_write_rate = 5 * GB, .gpu_bytes = 80 * GB, .host_bytes = 128 * GB,
              .gpu_reserved_bytes = OX_FLOOR_GPU_RESERVED, .host_reserved_bytes = OX_FLOOR_HOST_RESERVED,
              .micro_factor = 2.5},
};

enum model { M7, M13, M70, M100, MODEL_COUNT };

static const struct ox_floor_model models[MODEL_COUNT] = {
    [M7] = {.params = 6.7e9, .layers = 32, .hidden = 4096, .seq = 4096, .micro_tokens = 32768},
    [M13] = {.params = 13e9, .layers = 40, .hidden = 5120, .seq = 4096, .micro_tokens = 32768},
    [M70] = {.params = 70e9, .layers = 80, .hidden = 8192, .seq = 4096, .micro_tokens = 16384},
    [M100] = {.params = 100e9, .layers = 96, .hidden = 9216, .seq = 4096, .micro_tokens = 16384},
};

static struct ox_floor_case a_case(enum box box, enum model model, enum ox_floor_schedule schedule, double state_bytes,
                                   double tokens) {
    return (struct ox_floor_case){
        .box = boxes[box], .model = models[model],
        .run = {.schedule = schedule, .state_bytes = state_bytes, .tokens = tokens, .recompute = 1.0}};
}

/* The columns of the table: H and HA with the master apart, the floor in three formats. */
static const struct {
    enum ox_floor_schedule schedule;
    double state_bytes;
} columns[COLUMN_COUNT] = {
    {OX_FLOOR_H, OX_FLOOR_S_F32_SEPARATE}, {OX_FLOOR_HA, OX_FLOOR_S_F32_SEPARATE}, {OX_FLOOR_F, OX_FLOOR_S_F32_SPLIT},
    {OX_FLOOR_F, OX_FLOOR_S_BF16}, {OX_FLOOR_F, OX_FLOOR_S_8BIT},
};

static struct ox_floor_case column_case(enum box box, enum model model, unsigned column, double tokens) {
    return a_case(box, model, columns[column].schedule, columns[column].state_bytes, tokens);
}

/* ---- the published table -------------------------------------------------------------------------------- */

/* Tokens per second at 16384 and 65536 tokens, * where not hidden; T* in units of 1024; bytes written at 65536. */
static const struct row {
    enum box box;
    enum model model;
    const char *at_16k, *at_64k, *hidden_from, *written;
} rows[] = {
    {GAMER_1, M7, "1747* / 2418 / 2418 / 2418 / 2418", "2201* / 2418 / 2418 / 2418 / 2418", "132 / 8 / 6 / 4 / 3",
     "6 / 6 / 0 / 0 / 0"},
    {GAMER_1, M13, "272* / 557* / 1036* / 1265 / 1265", "636* / 784* / 1265 / 1265 / 1265", "1303 / 800 / 21 / 5 / 4",
     "127 / 127 / 64 / 12 / 0"},
    {GAMER_1, M70, "33* / 45* / 53* / 83* / 145*", "77* / 94* / 192* / 241 / 241", "inf / inf / 81 / 50 / 28",
     "1729 / 1542 / 814 / 534 / 328"},
    {GAMER_1, M100, "23* / 30* / 35* / 53* / 87*", "51* / 63* / 129* / 169 / 169", "inf / inf / 85 / 55 / 34",
     "2668 / 2351 / 1204 / 804 / 510"},
    {GAMER_4, M7, "1747* / 2418 / 2418 / 2418 / 2418", "2201* / 2418 / 2418 / 2418 / 2418", "132 / 8 / 6 / 4 / 3",
     "6 / 6 / 0 / 0 / 0"},
    {GAMER_4, M13, "662* / 1265 / 1265 / 1265 / 1265", "1014* / 1265 / 1265 / 1265 / 1265", "316 / 10 / 8 / 5 / 4",
     "127 / 127 / 64 / 12 / 0"},
    {GAMER_4, M70, "101* / 156* / 212* / 241 / 241", "179* / 208* / 241 / 241 / 241", "445 / 214 / 18 / 11 / 6",
     "1729 / 1542 / 814 / 534 / 328"},
    {GAMER_4, M100, "71* / 107* / 140* / 169 / 169", "126* / 146* / 169 / 169 / 169", "445 / 214 / 19 / 12 / 7",
     "2668 / 2351 / 1204 / 804 / 510"},
    {H200_4, M7, "10364 / 10364 / 10364 / 10364 / 10364", "10364 / 10364 / 10364 / 10364 / 10364", "1 / 1 / 1 / 1 / 1",
     "0 / 0 / 0 / 0 / 0"},
    {H200_4, M13, "3766* / 5420 / 5420 / 5420 / 5420", "4171* / 5420 / 5420 / 5420 / 5420", "800 / 9 / 6 / 1 / 1",
     "36 / 0 / 0 / 0 / 0"},
    {H200_4, M70, "146* / 199* / 255* / 455* / 1032", "417* / 660* / 903* / 1032 / 1032", "1925 / 1021 / 73 / 39 / 15",
     "1137 / 857 / 719 / 439 / 233"},
    {H200_4, M100, "96* / 129* / 161* / 266* / 513*", "292* / 446* / 572* / 724 / 724", "1925 / 1021 / 81 / 50 / 24",
     "1712 / 1312 / 1114 / 714 / 420"},
    {A100, M7, "3294* / 3765 / 3765 / 3765 / 3765", "3610 / 3765 / 3765 / 3765 / 3765", "55 / 3 / 2 / 1 / 1",
     "0 / 0 / 0 / 0 / 0"},
    {A100, M13, "598* / 1969 / 1969 / 1969 / 1969", "1067* / 1969 / 1969 / 1969 / 1969", "1241 / 6 / 4 / 2 / 1",
     "94 / 42 / 17 / 0 / 0"},
    {A100, M70, "47* / 63* / 79* / 132* / 262*", "144* / 168* / 279* / 375 / 375", "2122 / 1508 / 89 / 52 / 24",
     "1307 / 1144 / 769 / 489 / 283"},
    {A100, M100, "32* / 42* / 50* / 80* / 139*", "99* / 118* / 182* / 263 / 263", "2122 / 1508 / 93 / 60 / 34",
     "2005 / 1705 / 1163 / 763 / 469"},
};

enum quantity { RATE_16K, RATE_64K, HIDDEN_FROM, WRITTEN };

static void print_cell(const struct row *row, unsigned column, enum quantity quantity, char *out, size_t room) {
    const struct ox_floor_case given = column_case(row->box, row->model, column, quantity == RATE_16K ? 16384 : 65536);
    const struct ox_floor floor = ox_floor_of(&given);
    switch (quantity) {
    case HIDDEN_FROM:
        snprintf(out, room, "%.0f", ox_floor_hidden_tokens(&given) / 1024);
        break;
    case WRITTEN:
        snprintf(out, room, "%.0f", floor.traffic.nvme_written / GB);
        break;
    default:
        snprintf(out, room, "%.0f%s", floor.tokens_per_second, floor.hidden ? "" : "*");
    }
}

static void check_line(const struct row *row, enum quantity quantity, const char *expected) {
    char line[LINE_BYTES] = "";
    for (unsigned column = 0; column < COLUMN_COUNT; column++) {
        char cell[32];
        print_cell(row, column, quantity, cell, sizeof cell);
        snprintf(line + strlen(line), sizeof line - strlen(line), "%s%s", column > 0 ? " / " : "", cell);
    }
    if (strcmp(line, expected) != 0) {
        printf("box %d, model %d, quantity %d: %s, published %s\n", (int)row->box, (int)row->model, (int)quantity, line,
               expected);
        test_failure_count++;
    }
}

static void test_table(void) {
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_line(&rows[i], RATE_16K, rows[i].at_16k);
        check_line(&rows[i], RATE_64K, rows[i].at_64k);
        check_line(&rows[i], HIDDEN_FROM, rows[i].hidden_from);
        check_line(&rows[i], WRITTEN, rows[i].written);
    }
}

/* ---- the published vectors ------------------------------------------------------------------------------ */

static void near(const char *what, double value, double expected, double tolerance) {
    if (!(fabs(value - expected) <= tolerance * fabs(expected))) {
        printf("%s: %.9g, published %.9g\n", what, value, expected);
        test_failure_count++;
    }
}

/* In the order of the publication; bytes in GB. Shares and bytes that are exactly 0 or 1 are held exactly. */
static const struct vector {
    const char *name;
    enum box box;
    enum model model;
    double tokens;
    enum ox_floor_schedule schedule;
    double state_bytes, forced_tiles;
    double micro_batches, tiles;
    bool spilled;
    double working, weight_share, state_share, grad_share, gpu_share, on_nvme;
    double h2d, d2h, read, written, dram;
    double seconds[OX_FLOOR_RESOURCE_COUNT];
    double optimizer, step, rate;
    enum ox_floor_resource bound;
    double mfu;
} vectors[] = {
    {"V1", GAMER_1, M70, 65536, OX_FLOOR_H, 14, 0, 4, 4, false, 20.61871, 0, 0, 0.3310945, 0.001947581, 0, 1203.718,
     644.8087, 2709.174, 1729.174, 10758.15, {272.1967, 44.91485, 24.06003, 160.5694, 849.0896}, 374.2308, 849.0896,
     77.18385, OX_FLOOR_NVME, 0.2404311},
    {"V2", GAMER_1, M70, 65536, OX_FLOOR_HA, 14, 0, 4, 4, false, 20.61871, 0, 0, 0.3310945, 0.001947581, 0, 1203.718,
     644.8087, 2521.881, 1541.881, 10104.11, {272.1967, 44.91485, 24.06003, 150.8076, 773.4518}, 374.2308, 698.5979,
     93.81077, OX_FLOOR_NVME, 0.2922246},
    {"V3", GAMER_1, M70, 65536, OX_FLOOR_F, 12, 0, 4, 1, false, 22.76619, 0.4002415, 0, 1, 3.449718e-05, 29.89935,
     365.8897, 225.8945, 897.8317, 813.8655, 4123.419, {272.1967, 13.6526, 8.4289, 61.54356, 341.5943}, 303.6839,
     341.5943, 191.8533, OX_FLOOR_NVME, 0.5976314},
    {"V4", GAMER_1, M70, 65536, OX_FLOOR_F, 5.06, 0, 4, 1, false, 22.76619, 0.4002415, 0, 1, 6.8408e-05, 29.89935,
     365.8802, 225.8898, 412.0317, 328.0655, 2180.209, {272.1967, 13.65225, 8.428723, 32.54044, 145.4059}, 107.4954,
     272.1967, 240.7671, OX_FLOOR_COMPUTE, 0.75},
    {"V5", GAMER_1, M70, 65536, OX_FLOOR_F, 12, 4, 4, 4, false, 21.15558, 0, 0, 0.3291771, 0.00167798, 0, 1204.02,
     644.9597, 2383.491, 1403.491, 9549.385, {272.1967, 44.92612, 24.06566, 142.5281, 717.5638}, 317.6923, 717.5638,
     91.33125, OX_FLOOR_NVME, 0.2845009},
    {"V6", GAMER_1, M70, 262144, OX_FLOOR_F, 12, 0, 16, 1, true, 20.61871, 0.4155806, 0, 1, 0.002225807, 287.5974,
     1310.169, 826.8832, 1151.235, 1069.416, 6173.652, {1088.787, 48.8869, 30.85385, 92.14406, 444.4671}, 303.147,
     1088.787, 240.7671, OX_FLOOR_COMPUTE, 0.75},
    {"V7", A100, M70, 262144, OX_FLOOR_HA, 14, 0, 7, 7, false, 28.67177, 0, 0, 0.3937246, 0.04225735, 0, 2220.773,
     1282.185, 3818.543, 1998.543, 15353.82, {699.2208, 82.86466, 47.84273, 127.9485, 781.5628}, 280, 904.3043,
     289.8847, OX_FLOOR_NVME, 0.5799106},
    {"V8", H200_4, M13, 16384, OX_FLOOR_F, 12, 0, 1, 1, false, 11.24099, 1, 1, 1, 0.6742253, 0, 23.65117, 15.18103, 0,
     0, 148.944, {3.023145, 0.4420779, 0.2837575, 1.2412, 0}, 0.9175986, 3.023145, 5419.521, OX_FLOOR_COMPUTE, 0.75},
    {"V9", GAMER_1, M7, 65536, OX_FLOOR_H, 14, 0, 2, 2, false, 11.29996, 1, 0.9292302, 1, 0.1072765, 0, 65.02985,
     41.10486, 5.689894, 5.689894, 380.6894, {27.10146, 2.426487, 1.533763, 5.681931, 2.297842}, 2.67817, 29.77963,
     2200.699, OX_FLOOR_COMPUTE, 0.6825503},
    {"V10", GAMER_1, M70, 8192, OX_FLOOR_F, 12, 0, 1, 1, false, 18.20279, 0.7561414, 0, 1, 0.004691031, 0, 289.4239,
     150.0807, 768.2804, 734.1402, 3753.388, {34.02458, 10.7994, 5.600025, 56.02071, 44.242}, 42.8195, 56.02071,
     146.2316, OX_FLOOR_DRAM, 0.4555179},
};

static struct ox_floor_case vector_case(const struct vector *vector) {
    struct ox_floor_case given =
        a_case(vector->box, vector->model, vector->schedule, vector->state_bytes, vector->tokens);
    given.run.tiles = vector->forced_tiles;
    if (strcmp(vector->name, "V10") == 0) { /* eight Gen5 drives */
        given.box.nvme_read_rate = 48 * GB;
        given.box.nvme_write_rate = 26 * GB;
    }
    return given;
}

static void test_vectors(void) {
    for (unsigned i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        const struct vector *const v = &vectors[i];
        const struct ox_floor_case given = vector_case(v);
        const struct ox_floor f = ox_floor_of(&given);
        const struct {
            const char *what;
            double value, expected;
        } pairs[] = {
            {"G", f.micro_batches, v->micro_batches}, {"k", f.tiles, v->tiles},
            {"W_gpu", f.working_bytes / GB, v->working},
            {"c_h", f.weight_share, v->weight_share}, {"c_s", f.state_share, v->state_share},
            {"c_g", f.grad_share, v->grad_share}, {"rho", f.gpu_share, v->gpu_share},
            {"a_nv", f.checkpoints_on_nvme / GB, v->on_nvme}, {"H2D", f.traffic.h2d / GB, v->h2d},
            {"D2H", f.traffic.d2h / GB, v->d2h}, {"R", f.traffic.nvme_read / GB, v->read},
            {"W", f.traffic.nvme_written / GB, v->written}, {"RAM", f.traffic.dram / GB, v->dram},
            {"t_comp", f.seconds[OX_FLOOR_COMPUTE], v->seconds[OX_FLOOR_COMPUTE]},
            {"t_h2d", f.seconds[OX_FLOOR_H2D], v->seconds[OX_FLOOR_H2D]},
            {"t_d2h", f.seconds[OX_FLOOR_D2H], v->seconds[OX_FLOOR_D2H]},
            {"t_dram", f.seconds[OX_FLOOR_DRAM], v->seconds[OX_FLOOR_DRAM]},
            {"t_nvme", f.seconds[OX_FLOOR_NVME], v->seconds[OX_FLOOR_NVME]},
            {"T_opt", f.optimizer_seconds, v->optimizer}, {"T_step", f.step_seconds, v->step},
            {"rate", f.tokens_per_second, v->rate}, {"mfu", f.mfu, v->mfu},
        };
        for (unsigned p = 0; p < sizeof pairs / sizeof *pairs; p++) {
            char what[32];
            snprintf(what, sizeof what, "%s %s", v->name, pairs[p].what);
            near(what, pairs[p].value, pairs[p].expected, 1e-6);
        }
        CHECK(f.boundary_spilled == v->spilled && f.bound == v->bound);
    }
}

/* ---- thresholds and claims ------------------------------------------------------------------------------ */

static void test_thresholds(void) {
    const struct {
        double value, expected;
    } pairs[] = {
        {ox_floor_tokens_for_weights(boxes[GAMER_1].flops, boxes[GAMER_1].h2d_rate), 2612},
        {ox_floor_tokens_for_weights(boxes[A100].flops, boxes[A100].h2d_rate), 4067},
        {ox_floor_tokens_for_weights(boxes[H200_4].flops, boxes[H200_4].h2d_rate), 5607},
        {ox_floor_tokens_for_weights(boxes[GAMER_1].flops, boxes[GAMER_1].nvme_read_rate), 10769},
        {ox_floor_tokens_for_weights(boxes[GAMER_4].flops, boxes[GAMER_4].nvme_read_rate), 2692},
        {ox_floor_tokens_for_weights(boxes[H200_4].flops, boxes[H200_4].nvme_read_rate), 11538},
        {ox_floor_tokens_for_state(&boxes[GAMER_1], OX_FLOOR_S_F32_SPLIT), 90192},
        {ox_floor_tokens_for_state(&boxes[GAMER_4], OX_FLOOR_S_F32_SPLIT), 22548},
        {ox_floor_tokens_for_state(&boxes[H200_4], OX_FLOOR_S_F32_SPLIT), 96635},
        {ox_floor_tokens_for_adam(&boxes[GAMER_1], OX_FLOOR_S_F32_SPLIT), 6791},
        {ox_floor_tokens_for_adam(&boxes[H200_4], OX_FLOOR_S_F32_SPLIT), 16250},
    };
    for (unsigned i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        CHECK(round(pairs[i].value) == pairs[i].expected);
    }
    const double split = ox_floor_tokens_for_state(&boxes[GAMER_1], OX_FLOOR_S_F32_SPLIT);
    CHECK(round(100 * ox_floor_tokens_for_state(&boxes[GAMER_1], OX_FLOOR_S_BF16) / split) == 69);
    CHECK(round(100 * ox_floor_tokens_for_state(&boxes[GAMER_1], OX_FLOOR_S_8BIT) / split) == 46);
}

/* 70B at 65536 tokens against ZeRO-Infinity's order, and what a drive that takes 2400 TB lasts. */
static void test_claims(void) {
    static const double speedups[BOX_COUNT] = {[GAMER_1] = 2.5, [GAMER_4] = 1.34, [H200_4] = 2.2, [A100] = 1.9};
    for (unsigned box = 0; box < BOX_COUNT; box++) {
        const struct ox_floor_case given = column_case(box, M70, 2, 65536);
        CHECK(fabs(ox_floor_speedup(&given) - speedups[box]) < (box == GAMER_4 ? 0.005 : 0.05));
    }
    static const struct {
        unsigned column;
        double steps, million_tokens;
    } lives[] = {{0, 1388, 91}, {2, 2949, 193}, {4, 7316, 479}};
    for (unsigned i = 0; i < sizeof lives / sizeof *lives; i++) {
        const struct ox_floor_case given = column_case(GAMER_1, M70, lives[i].column, 65536);
        const double steps = 2400e12 / ox_floor_of(&given).traffic.nvme_written;
        CHECK(round(steps) == lives[i].steps && round(steps * 65536e-6) == lives[i].million_tokens);
    }
    /* Checkpoints of a tile that go to four drives cost 0.13 ms a token, computing it 4.2 ms. */
    const struct ox_floor_case given = column_case(GAMER_4, M70, 2, 65536);
    const struct ox_floor floor = ox_floor_of(&given);
    const double bytes = floor.checkpoint_bytes / 65536;
    CHECK(round(1e5 * bytes * (1 / given.box.nvme_read_rate + 1 / given.box.nvme_write_rate)) == 13);
    CHECK(round(1e4 * floor.seconds[OX_FLOOR_COMPUTE] / 65536) == 42);
    CHECK(round(floor.checkpoint_bytes / GB) == 86);
}

/* With nothing resident a vertical step reads S + 2 and writes S bytes a parameter and moves 58 in memory; beside that
 * are the checkpoints, over the link and to the drive and back. */
static void test_nothing_resident(void) {
    struct ox_floor_case given = column_case(GAMER_1, M70, 2, 16384);
    given.box.host_bytes = given.box.host_reserved_bytes;
    given.box.gpu_bytes = 20 * GB;
    const struct ox_floor floor = ox_floor_of(&given);
    const double params = given.model.params, acts = floor.checkpoint_bytes;
    CHECK(!floor.fits && floor.tiles == 1.0 && !floor.boundary_spilled);
    CHECK(floor.weight_share == 0.0 && floor.state_share == 0.0 && floor.gpu_share == 0.0);
    near("R", floor.traffic.nvme_read, 14 * params + acts, 1e-12);
    near("W", floor.traffic.nvme_written, 12 * params + acts, 1e-12);
    near("RAM", floor.traffic.dram, 58 * params + 2 * acts + 2 * floor.checkpoints_on_nvme, 1e-12);
}

/* The example that docs/planning.md does by hand, to the digits it shows. */
static void test_example(void) {
    struct ox_floor_case given = column_case(GAMER_1, M13, 2, 16384);
    const struct ox_floor floor = ox_floor_of(&given);
    const struct {
        const char *what;
        double value;
        const char *shown;
    } lines[] = {
        {"A", floor.checkpoint_bytes / GB, "6.711"}, {"D", floor.boundary_bytes / GB, "0.336"},
        {"W_gpu", floor.working_bytes / GB, "11.241"}, {"x_g", floor.spare_gpu_bytes / GB, "11.559"},
        {"c_h", floor.weight_share, "1.000"}, {"c_s", floor.state_share, "0.699"}, {"rho", floor.gpu_share, "0.064"},
        {"FL", floor.flop / 1e15, "1.814"}, {"H2D", floor.traffic.h2d / GB, "55.408"},
        {"D2H", floor.traffic.d2h / GB, "31.060"}, {"R_o", floor.traffic.state_read / GB, "39.152"},
        {"W_o", floor.traffic.state_written / GB, "39.152"}, {"D_adam", floor.traffic.adam / GB, "316.533"},
        {"RAM", floor.traffic.dram / GB, "481.305"}, {"t_comp", floor.seconds[OX_FLOOR_COMPUTE], "12.956"},
        {"t_h2d", floor.seconds[OX_FLOOR_H2D], "2.067"}, {"t_d2h", floor.seconds[OX_FLOOR_D2H], "1.159"},
        {"t_dram", floor.seconds[OX_FLOOR_DRAM], "7.184"}, {"t_nvme", floor.seconds[OX_FLOOR_NVME], "15.811"},
        {"T_step", floor.step_seconds, "15.811"}, {"rate", floor.tokens_per_second, "1036.219"},
    };
    for (unsigned i = 0; i < sizeof lines / sizeof *lines; i++) {
        char text[32];
        snprintf(text, sizeof text, "%.3f", lines[i].value);
        if (strcmp(text, lines[i].shown) != 0) {
            printf("example: %s is %s, the page says %s\n", lines[i].what, text, lines[i].shown);
            test_failure_count++;
        }
    }
    CHECK(floor.bound == OX_FLOOR_NVME && !floor.hidden && floor.tiles == 1.0);
    CHECK(round(ox_floor_hidden_tokens(&given) / 1024) == 21 && round(10 * ox_floor_speedup(&given)) == 38);
    given.run.state_bytes = OX_FLOOR_S_BF16;
    const struct ox_floor narrow = ox_floor_of(&given);
    CHECK(narrow.state_share == 1.0 && round(narrow.tokens_per_second) == 1265);
    given.run = column_case(GAMER_1, M13, 0, 16384).run; /* ZeRO-Infinity's order */
    const struct ox_floor horizontal = ox_floor_of(&given);
    CHECK(round(horizontal.step_seconds) == 60 && round(horizontal.tokens_per_second) == 272);
    given.run = column_case(GAMER_1, M13, 2, 16384).run;
    given.box.nvme_read_rate *= 2; /* a second drive */
    given.box.nvme_write_rate *= 2;
    const struct ox_floor two = ox_floor_of(&given);
    CHECK(two.bound == OX_FLOOR_COMPUTE && two.hidden && round(two.tokens_per_second) == 1265);
}

/* ---- what holds of any machine -------------------------------------------------------------------------- */

enum { SEED = 5, RANDOM_CASES = 20000 };

struct draw {
    uint64_t stream, next;
};

static double unit(struct draw *draw) {
    return ox_uniform(SEED, draw->stream, draw->next++);
}

static double drawn(struct draw *draw, double least, double most) {
    return least * pow(most / least, unit(draw));
}

static struct ox_floor_case random_case(struct draw *draw) {
    static const double formats[] = {OX_FLOOR_S_F32_SEPARATE, OX_FLOOR_S_F32_SPLIT, OX_FLOOR_S_BF16, OX_FLOOR_S_8BIT};
    const double hidden = floor(drawn(draw, 256, 16384)), layers = floor(drawn(draw, 2, 128));
    struct ox_floor_case given = {
        .box = {.flops = drawn(draw, 1e11, 1e15), .h2d_rate = drawn(draw, 2 * GB, 400 * GB),
                .d2h_rate = drawn(draw, 2 * GB, 400 * GB), .dram_rate = drawn(draw, 10 * GB, 1000 * GB),
                .nvme_read_rate = drawn(draw, 0.3 * GB, 60 * GB), .nvme_write_rate = drawn(draw, 0.3 * GB, 60 * GB),
                .gpu_bytes = drawn(draw, 6 * GB, 200 * GB), .host_bytes = drawn(draw, 16 * GB, 2000 * GB),
                .gpu_reserved_bytes = OX_FLOOR_GPU_RESERVED, .host_reserved_bytes = OX_FLOOR_HOST_RESERVED,
                .micro_factor = drawn(draw, 0.25, 4), .unified = unit(draw) < 0.2},
        .model = {.params = 13.0 * layers * hidden * hidden, .layers = layers, .hidden = hidden, .seq = 4096,
                  .micro_tokens = floor(drawn(draw, 512, 65536))},
        .run = {.schedule = (enum ox_floor_schedule)(3 * unit(draw)),
                .state_bytes = formats[(unsigned)(4 * unit(draw))], .tokens = floor(drawn(draw, 1, 4e6)),
                .recompute = unit(draw) < 0.5 ? 1.0 : 0.0}};
    given.box.gpus = floor(9.0 * unit(draw));
    return given;
}

static bool in_unit(double share) {
    return share >= 0.0 && share <= 1.0;
}

static bool no_more(double a, double b) {
    return a <= b * (1.0 + 1e-12);
}

static void check_bounds(const struct ox_floor_case *given, const struct ox_floor *f) {
    CHECK(f->micro_batches >= 1.0 && f->micro_tokens <= given->run.tokens);
    CHECK(f->tiles >= 1.0 && (given->run.schedule == OX_FLOOR_F ? f->tiles <= 32.0 : f->tiles == f->micro_batches));
    CHECK(f->tiles == 1.0 || given->run.schedule != OX_FLOOR_F || given->run.tokens / f->tiles >= f->micro_tokens);
    CHECK(in_unit(f->weight_share) && in_unit(f->state_share) && in_unit(f->grad_share) && in_unit(f->gpu_share));
    CHECK(f->checkpoints_on_nvme >= 0.0 && f->checkpoints_on_nvme <= f->alive_bytes && f->spare_gpu_bytes >= 0.0);
    const struct ox_floor_traffic *const t = &f->traffic;
    near("R", t->nvme_read, t->weights_read + t->grad_read + t->state_read + t->checkpoints, 1e-15);
    near("W", t->nvme_written, t->grad_written + t->state_written + t->checkpoints, 1e-15);
    CHECK(!given->box.unified || (t->h2d == 0.0 && t->d2h == 0.0));
    double most = 0.0;
    for (unsigned i = 0; i < OX_FLOOR_RESOURCE_COUNT; i++) {
        CHECK(f->seconds[i] >= 0.0);
        most = fmax(most, f->seconds[i]);
    }
    CHECK(f->seconds[f->bound] == most && no_more(f->seconds[OX_FLOOR_COMPUTE], f->step_seconds));
    CHECK(no_more(f->passes_seconds, f->step_seconds) && no_more(f->mfu, 1.0));
    CHECK(given->run.schedule != OX_FLOOR_F || f->step_seconds == most);
    CHECK(given->run.schedule != OX_FLOOR_H || no_more(f->seconds[OX_FLOOR_NVME], f->step_seconds));
}

/* A faster part, or more memory of the host, makes no step slower. */
static void check_monotone(const struct ox_floor_case *given, double seconds) {
    for (unsigned part = 0; part < 7; part++) {
        struct ox_floor_case better = *given;
        double *const parts[] = {&better.box.flops, &better.box.h2d_rate, &better.box.d2h_rate, &better.box.dram_rate,
                                 &better.box.nvme_read_rate, &better.box.nvme_write_rate, &better.box.host_bytes};
        *parts[part] *= 1.5;
        const double then = ox_floor_of(&better).step_seconds;
        if (!no_more(then, seconds)) {
            printf("part %u: %.9g s, faster %.9g s\n", part, seconds, then);
            test_failure_count++;
        }
    }
}

/* Twice the rates and half the work units are the same machine: a time is FLOP over FLOP/s and bytes over bytes/s. */
static void check_units(const struct ox_floor_case *given, const struct ox_floor *f) {
    struct ox_floor_case doubled = *given;
    double *const rates[] = {&doubled.box.flops, &doubled.box.h2d_rate, &doubled.box.d2h_rate, &doubled.box.dram_rate,
                             &doubled.box.nvme_read_rate, &doubled.box.nvme_write_rate};
    for (unsigned i = 0; i < sizeof rates / sizeof *rates; i++) {
        *rates[i] *= 2.0;
    }
    const struct ox_floor twice = ox_floor_of(&doubled);
    CHECK(twice.step_seconds == 0.5 * f->step_seconds && twice.mfu == f->mfu && twice.bound == f->bound);
    CHECK(twice.traffic.dram == f->traffic.dram && twice.tiles == f->tiles);
}

/* No number of tiles is better than the one that was chosen; of equal ones it is the least. */
static void check_best(const struct ox_floor_case *given) {
    struct ox_floor_case tried = *given;
    tried.run.schedule = OX_FLOOR_F;
    tried.run.tiles = 0.0;
    const struct ox_floor best = ox_floor_of(&tried);
    for (double tiles = 1.0; tiles <= 32.0; tiles *= 2.0) {
        tried.run.tiles = tiles;
        const struct ox_floor other = ox_floor_of(&tried);
        if (tiles == 1.0 || given->run.tokens / tiles >= best.micro_tokens) {
            CHECK(best.step_seconds < other.step_seconds ||
                  (best.step_seconds == other.step_seconds && best.tiles <= tiles));
        }
    }
}

static void test_properties(void) {
    for (unsigned i = 0; i < RANDOM_CASES && test_failure_count == 0; i++) {
        struct draw draw = {.stream = i};
        const struct ox_floor_case given = random_case(&draw);
        const struct ox_floor f = ox_floor_of(&given);
        check_bounds(&given, &f);
        check_monotone(&given, f.step_seconds);
        check_units(&given, &f);
        check_best(&given);
    }
}

/* What an order takes at least: its formula, or its busiest resource where the formula has that at work twice at a
 * time. The vertical order keeps activations on the GPU where others keep state, which is worth less than a
 * hundredth. */
static double least_seconds(const struct ox_floor_case *given) {
    const struct ox_floor floor = ox_floor_of(given);
    return fmax(floor.step_seconds, floor.seconds[floor.bound]);
}

static void test_floor_is_below(void) {
    for (unsigned i = 0; i < BOX_COUNT * MODEL_COUNT * COLUMN_COUNT; i++) {
        for (double tokens = 1024; tokens < 4e6; tokens *= 1.7) {
            struct ox_floor_case given =
                column_case(i % BOX_COUNT, i / BOX_COUNT % MODEL_COUNT, i / BOX_COUNT / MODEL_COUNT, tokens);
            double seconds[OX_FLOOR_SCHEDULE_COUNT];
            for (unsigned schedule = 0; schedule < OX_FLOOR_SCHEDULE_COUNT; schedule++) {
                given.run.schedule = (enum ox_floor_schedule)schedule;
                seconds[schedule] = least_seconds(&given);
            }
            CHECK(seconds[OX_FLOOR_F] <= 1.01 * seconds[OX_FLOOR_HA] &&
                  no_more(seconds[OX_FLOOR_HA], seconds[OX_FLOOR_H]));
        }
    }
}

/* A machine without drives takes forever where something has to go to one, and is as fast as any where nothing has. */
/* Four GPUs compute four times as fast and have a link each, but the drive is no faster. They exchange slices of the
 * gradient: 4 bytes of 13e9 parameters, of which each has a quarter, at 26.8 GB/s. Their memory is too small to keep
 * anything. */
static void test_gpus(void) {
    struct ox_floor_case given = column_case(GAMER_1, M13, 2, 16384);
    given.box.gpu_bytes = 8 * GB;
    const struct ox_floor one = ox_floor_of(&given);
    given.box.gpus = 4;
    const struct ox_floor four = ox_floor_of(&given);
    near("compute", four.seconds[OX_FLOOR_COMPUTE], one.seconds[OX_FLOOR_COMPUTE] / 4, 1e-12);
    near("h2d", four.seconds[OX_FLOOR_H2D], one.seconds[OX_FLOOR_H2D] / 4, 1e-12);
    near("peer", four.seconds[OX_FLOOR_PEER], 39e9 / 26.8e9, 1e-12);
    CHECK(one.seconds[OX_FLOOR_PEER] == 0 && four.seconds[OX_FLOOR_NVME] == one.seconds[OX_FLOOR_NVME]);
    CHECK(four.step_seconds == one.step_seconds && four.bound == OX_FLOOR_NVME && four.mfu == one.mfu / 4);
    given.box.peer_rate = 1e9;
    CHECK(ox_floor_of(&given).bound == OX_FLOOR_PEER && ox_floor_of(&given).step_seconds == 39);
    given.box.unified = true; /* one memory: cut into ranks it is the same machine */
    CHECK(ox_floor_of(&given).seconds[OX_FLOOR_PEER] == 0);
}

static void test_no_drive(void) {
    struct ox_floor_case large = column_case(GAMER_1, M70, 2, 65536), small = column_case(GAMER_1, M7, 2, 65536);
    const double seconds = ox_floor_of(&small).step_seconds;
    large.box.nvme_read_rate = large.box.nvme_write_rate = small.box.nvme_read_rate = small.box.nvme_write_rate = 0.0;
    CHECK(isinf(ox_floor_of(&large).step_seconds) && ox_floor_of(&large).bound == OX_FLOOR_NVME);
    CHECK(isinf(ox_floor_hidden_tokens(&large)) && ox_floor_of(&small).step_seconds == seconds);
}

static void test_box_of_profile(void) {
    struct ox_machine machine = {
        .has_gpu = true,
        .gpu = {.memory_bytes = 24000000000, .bf16_flops = 140e12, .h2d_rate = 26.8e9, .d2h_rate = 26e9},
        .host = {.memory_bytes = 128000000000, .dram_rate = 67e9, .flops = 1e12},
        .drives = {{.read_rate = 6.5e9, .write_rate = 4e9, .mix_rate = 5e9},
                   {.read_rate = 6.5e9, .write_rate = 4e9, .mix_rate = 5e9}},
        .drive_count = 2};
    const struct ox_floor_box box = ox_floor_box_of(&machine);
    CHECK(box.flops == 140e12 && box.h2d_rate == 26.8e9 && box.d2h_rate == 26e9 && box.dram_rate == 67e9);
    CHECK(box.nvme_read_rate == 13e9 && box.nvme_write_rate == 8e9 && box.gpu_bytes == 24e9);
    CHECK(box.host_bytes == 128e9 && box.micro_factor == 1.0 && !box.unified);
    machine.has_gpu = false;
    const struct ox_floor_box without = ox_floor_box_of(&machine);
    CHECK(without.unified && without.flops == 1e12 && isinf(without.h2d_rate) && without.gpu_bytes == 0.0);
    CHECK(strcmp(ox_floor_resource_name(OX_FLOOR_NVME), "nvme") == 0);
}

/* The committed profiles of these boxes describe them; how many micro-batches a GPU takes is the run's. The RTX 4090 of
 * the examples has the rate of GEMMs that its profile had before it was compared with published runs. */
static void test_committed_profiles(void) {
    static const char *const paths[BOX_COUNT] = {
        [GAMER_1] = "docs/profiles/rtx4090-1-drive.json", [GAMER_4] = "docs/profiles/rtx4090-4-drives.json",
        [H200_4] = "docs/profiles/h200-4-drives.json", [A100] = "docs/profiles/a100-4-drives.json"};
    for (unsigned i = 0; i < BOX_COUNT; i++) {
        static struct ox_machine machine;
        REQUIRE_OK(ox_machine_load(paths[i], &machine));
        const struct ox_floor_box box = ox_floor_box_of(&machine), *const known = &boxes[i];
        CHECK(box.flops == (i == GAMER_1 || i == GAMER_4 ? 160e12 : known->flops));
        CHECK(box.h2d_rate == known->h2d_rate && box.d2h_rate == known->d2h_rate);
        CHECK(box.dram_rate == known->dram_rate && box.nvme_read_rate == known->nvme_read_rate);
        CHECK(box.nvme_write_rate == known->nvme_write_rate);
        /* The examples take the size that cards and modules are named by; they report up to 8 % more. */
        CHECK(box.gpu_bytes >= known->gpu_bytes && box.gpu_bytes < 1.08 * known->gpu_bytes);
        CHECK(box.host_bytes >= known->host_bytes && box.host_bytes < 1.08 * known->host_bytes && !box.unified);
    }
}

int main(void) {
    test_table();
    test_vectors();
    test_thresholds();
    test_claims();
    test_nothing_resident();
    test_example();
    test_properties();
    test_floor_is_below();
    test_gpus();
    test_no_drive();
    test_box_of_profile();
    test_committed_profiles();
    return test_end();
}
