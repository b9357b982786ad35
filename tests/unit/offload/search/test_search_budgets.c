/* Budgets: what a refusal names fits, and a twentieth less of it does not; and no step takes longer than one with less
 * memory. Steps of Llama shapes on the machines of docs/profiles. With a number as argument that ladder alone is
 * followed, with its choices. */
#include "base/bytes.h"
#include "tests/kit/plan/plan_choice.h"
#include "tests/kit/plan/step_case.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

static void open_case(const struct step_case *c, struct step_run *run) {
    step_case_open(c, run);
    run->config.device = c->device_gib > 0 ? OX_DEVICE_CUDA : run->config.device;
    run->config.budget.device_bytes -= c->device_gib > 0 ? OX_CUDA_PROCESS_BYTES : 0;
}

/* ---- what a refusal names ---------------------------------------------------------------------------------- */

/* Each is short of one memory or of two. */
static const struct step_case short_cases[] = {
    {"rtx4090-1-drive", 4096, 32, 14336, 128256, 8, 1, 4096, 8, false, OX_MOMENTS_F32, 22, 20, 0},
    {"a100-4-drives", 2048, 22, 5632, 32000, 4, 1, 1024, 16, false, OX_MOMENTS_F32, 4, 6, 0},
    {"rtx5090-1-drive", 3072, 28, 8192, 128256, 8, 2, 2048, 4, true, OX_MOMENTS_F32, 3, 2, 0},
    {"h100-x8-4-drives", 5120, 48, 13824, 152064, 8, 1, 4096, 4, false, OX_MOMENTS_BF16, 6, 100, 0},
    {"cpu-2-cores", 2048, 16, 8192, 128256, 8, 1, 512, 2, true, OX_MOMENTS_F32, 0, 6, 0},
    {"rtx4090-4-drives", 2560, 36, 9728, 151936, 4, 4, 1024, 8, false, OX_MOMENTS_Q8, 3, 64, 4},
};

/* The bytes of a size that was printed as an option's value; `given` where there is none. */
static uint64_t named(const char *option, uint64_t given) {
    char *unit = NULL;
    const char *const nearest = strstr(ox_error_text(), "nearest that fits:");
    const char *const at = nearest == NULL ? NULL : strstr(nearest, option);
    const double number = at == NULL ? 0 : strtod(at + strlen(option), &unit);
    return at == NULL ? given : (uint64_t)(number * (double)(unit[0] == 'M' ? OX_MIB : UINT64_C(1) << 30));
}

static void check_named(const struct step_case *c) {
    struct step_run run;
    struct ox_plan_budget *const budget = &run.config.budget;
    open_case(c, &run);
    CHECK(step_case_seconds(&run, &plan_choice_automatic, false) == 0);
    printf("%s\n", ox_error_text());
    uint64_t *const bytes[] = {&budget->device_bytes, &budget->host_bytes};
    const uint64_t given[] = {*bytes[0], *bytes[1]};
    *bytes[0] = named(" --device-mem ", given[0]);
    *bytes[1] = named(" --host-mem ", given[1]);
    const uint64_t enough[] = {*bytes[0], *bytes[1]};
    CHECK(enough[0] > given[0] || enough[1] > given[1]);
    CHECK(step_case_seconds(&run, &plan_choice_automatic, false) > 0);
    for (int tier = 0; tier < 2; tier++) {
        if (enough[tier] > given[tier]) {
            *bytes[tier] = enough[tier] - enough[tier] / 20;
            CHECK(step_case_seconds(&run, &plan_choice_automatic, false) == 0);
            *bytes[tier] = enough[tier];
        }
    }
    ox_model_close(&run.model);
}

/* ---- more memory ------------------------------------------------------------------------------------------- */

enum { RUNGS = 6 };
#define LIMIT 1.005

/* GiB on each rung of the device's memory, or of the host's. */
static const struct ladder {
    struct step_case of;
    bool host;
    uint32_t gib[RUNGS];
} ladders[] = {
    {{"rtx4090-1-drive", 4096, 32, 14336, 128256, 8, 2, 4096, 2, false, OX_MOMENTS_F32, 22, 48, 1}, false,
     {19, 20, 21, 22, 23, 24}},
    {{"rtx4090-1-drive", 4096, 32, 14336, 128256, 8, 1, 4096, 8, false, OX_MOMENTS_F32, 22, 48, 1}, true,
     {40, 44, 48, 56, 64, 80}},
    {{"rtx5090-1-drive", 3072, 28, 8192, 128256, 8, 4, 2048, 4, false, OX_MOMENTS_F32, 20, 32, 1}, false,
     {16, 18, 20, 22, 24, 28}},
    {{"a100-4-drives", 5120, 48, 13824, 152064, 8, 1, 4096, 8, false, OX_MOMENTS_F32, 70, 200, 4}, true,
     {128, 160, 192, 224, 256, 320}},
};

static void check_ladder(const struct ladder *ladder, bool tells) {
    double least = 0;
    for (uint32_t i = 0; i < RUNGS; i += tells ? 1 : test_stride(3)) {
        struct step_case c = ladder->of;
        struct step_run run;
        *(ladder->host ? &c.host_gib : &c.device_gib) = ladder->gib[i];
        open_case(&c, &run);
        const double seconds = step_case_seconds(&run, &plan_choice_automatic, tells);
        printf("%s, %s %u GiB: %.4f s\n", c.profile, ladder->host ? "host" : "device", ladder->gib[i], seconds);
        CHECK(seconds > 0 && (least == 0 || seconds <= LIMIT * least));
        least = least == 0 || seconds < least ? seconds : least;
        ox_model_close(&run.model);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    const unsigned cases = sizeof short_cases / sizeof *short_cases, count = sizeof ladders / sizeof *ladders;
    for (unsigned i = 0; i < cases && argc == 1; i++) {
        if (test_takes(i, 3)) {
            check_named(&short_cases[i]);
        }
    }
    for (unsigned i = 0; i < count; i++) {
        if (argc > 1 ? i == strtoul(argv[1], NULL, 10) : test_takes(i, 4)) {
            check_ladder(&ladders[i], argc > 1);
        }
    }
    return test_end();
}
