/* The forecast of wear: by hand for known numbers, and what is said when nothing is known. */
#include "nvme/store_impl.h"
#include "nvme/wear.h"
#include "tests/kit/store/store_kit.h"

#include <math.h>
#include <string.h>

static bool near(double have, double want) {
    return fabs(have - want) <= 1e-9 * fabs(want);
}

static void forecasts(void) {
    /* 7 G parameters at 14 bytes on a drive of 1200 TBW: about 12 thousand steps. */
    const struct ox_wear wear = {.step_bytes = UINT64_C(98000000000), .step_count = 600, .step_seconds = 43.2,
                                 .rated_bytes = UINT64_C(1200000000000000), .gone_bytes = UINT64_C(24000000000000)};
    struct ox_wear_forecast forecast;
    ox_wear_forecast(&wear, &forecast);
    CHECK(near(forecast.run_bytes, 58.8e12) && near(forecast.run_share, 0.049));
    CHECK(near(forecast.day_bytes, 196e12) && near(forecast.day_share, 196.0 / 1200.0));
    CHECK(near(forecast.step_share, 98e9 / 1200e12) && near(forecast.steps_left, 12000.0));
    CHECK(near(forecast.days_left, 6.0));
    CHECK(ox_wear_exceeds(&wear, 0.04) && !ox_wear_exceeds(&wear, 0.05));
    char text[OX_WEAR_TEXT_BYTES];
    CHECK(strcmp(ox_wear_text(&wear, text), "writes 98.0 GB per step, 58.8 TB in 600 steps: 4.9 % of its rated 1.2 PB, "
                                            "16.3 % per day, used up in 6 days at this rate") == 0);
}

static void unknowns(void) {
    struct ox_wear wear = {.step_bytes = 4096, .step_count = 10};
    struct ox_wear_forecast forecast;
    char text[OX_WEAR_TEXT_BYTES];
    ox_wear_forecast(&wear, &forecast);
    CHECK(forecast.run_bytes == 40960.0 && forecast.run_share == 0.0 && forecast.day_bytes == 0.0);
    CHECK(!ox_wear_exceeds(&wear, 0.0));
    CHECK(strcmp(ox_wear_text(&wear, text), "writes 4.1 kB per step, 41.0 kB in 10 steps") == 0);
    wear.rated_bytes = 4096 * 5;
    wear.gone_bytes = UINT64_MAX; /* worn out already */
    ox_wear_forecast(&wear, &forecast);
    CHECK(forecast.run_share == 2.0 && forecast.steps_left == 0.0 && ox_wear_exceeds(&wear, 1.0));
    wear = (struct ox_wear){.step_bytes = UINT64_MAX, .step_count = UINT64_MAX, .rated_bytes = 1, .step_seconds = 1e-9};
    ox_wear_forecast(&wear, &forecast);
    CHECK(isfinite(forecast.run_bytes) && isfinite(forecast.day_share) && forecast.run_share > 1e38);
    CHECK(strlen(ox_wear_text(&wear, text)) < OX_WEAR_TEXT_BYTES);
    wear = (struct ox_wear){.step_count = 10, .step_seconds = 1, .rated_bytes = 4096}; /* a step that writes nothing */
    ox_wear_forecast(&wear, &forecast);
    CHECK(forecast.run_bytes == 0.0 && forecast.steps_left == 0.0 && forecast.days_left == 0.0);
}

/* A commit writes the bytes that the store predicts, drive by drive. */
static void commits(void) {
    struct ox_io_backend *sim = NULL;
    struct kit kit;
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    struct ox_store_info before, after;
    REQUIRE_OK(ox_io_sim_open(1, &sim));
    kit_init(&kit, sim, "/sim", 3);
    kit.config.speeds = (const uint64_t[]){6, 3, 1};
    REQUIRE_OK(ox_store_create(&kit.config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    ox_store_info(store, &before);
    REQUIRE_OK(kit_commit(store, port, 1));
    ox_store_info(store, &after);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < 3; i++) {
        sum += ox_store_commit_bytes(store, i);
    }
    CHECK(after.write_bytes - before.write_bytes == after.commit_bytes && sum == after.commit_bytes);
    CHECK(ox_store_commit_bytes(store, 0) > ox_store_commit_bytes(store, 2));
    /* Created with speeds, opened with others or without: the state lies where it was. */
    for (int with = 1; with >= 0; with--) {
        ox_store_port_close(&port);
        ox_store_close(&store);
        bool wrong = false;
        kit.config.speeds = with == 1 ? (const uint64_t[]){1, 1, 9} : NULL;
        REQUIRE_OK(ox_store_open(&kit.config, &store));
        REQUIRE_OK(ox_store_port_open(store, &port));
        REQUIRE_OK(kit_verify(store, port, 1, &wrong));
        CHECK(!wrong);
    }
    ox_store_port_close(&port);
    ox_store_close(&store);
    ox_io_sim_close(&sim);
}

int main(void) {
    forecasts();
    unknowns();
    commits();
    return test_end();
}
