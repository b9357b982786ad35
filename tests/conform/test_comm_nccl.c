/* Communication between ranks through the emulated NCCL: the cases of every backend, with memory of emulated GPUs. */
#include "tests/kit/comm/comm_cases.h"
#include "tests/kit/device/simt_kit.h"

#include <string.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { RANKS_MOST = 2 };
#else
enum { RANKS_MOST = 4 };
#endif

static const struct simt *simt;

struct opening {
    struct ox_comm *control;
    struct ox_comm_nccl_config config;
    struct ox_comm *out;
    enum ox_status status;
};

static void *open_main(void *context) {
    struct opening *const opening = context;
    opening->status = ox_comm_nccl_open(opening->control, &opening->config, &opening->out);
    return NULL;
}

/* Each rank opens in a thread of its own. */
static void open_nccl(struct comm_world *world, const struct ox_comm_limits *limits) {
    struct opening openings[OX_COMM_RANKS_MAX];
    pthread_t threads[OX_COMM_RANKS_MAX];
    struct ox_comm *controls[OX_COMM_RANKS_MAX];
    const struct ox_comm_local_config config = {.count = world->count, .limits = *limits};
    REQUIRE_OK(ox_comm_local_open(&config, controls));
    for (uint32_t r = 0; r < world->count; r++) {
        openings[r] = (struct opening){.control = controls[r],
                                       .config = {.device = world->devices[r], .limits = *limits}};
        REQUIRE_OK(ox_cuda_nccl(world->devices[r], &openings[r].config.library));
        pthread_create(&threads[r], NULL, open_main, &openings[r]);
    }
    for (uint32_t r = 0; r < world->count; r++) {
        pthread_join(threads[r], NULL);
        CHECK(openings[r].status == OX_OK);
        world->comms[r] = openings[r].out;
    }
}

static void open_over(struct comm_rank *rank, struct ox_comm **group) {
    struct ox_comm_nccl_config config = {.device = rank->world->devices[rank->rank], .limits = {.fail_ms = 30000}};
    struct ox_comm *over = NULL;
    REQUIRE_OK(ox_cuda_nccl(config.device, &config.library));
    REQUIRE_OK(ox_comm_nccl_open(*group, &config, &over));
    *group = over;
}

static void open_pairs(struct comm_rank *rank, struct ox_comm **group) {
    struct ox_comm_nccl_config config = {.device = rank->world->devices[rank->rank], .limits = {.fail_ms = 30000}};
    struct ox_comm *over = NULL;
    REQUIRE_OK(ox_cuda_nccl(config.device, &config.library));
    REQUIRE_OK(ox_comm_nccl_pairs_open(*group, &config, &over));
    *group = over;
}

/* `on_lanes`: memory of devices goes by calls that are put on a lane of the device, and watched. */
static void run(uint32_t count, bool on_lanes) {
    struct comm_world world;
    memset(&world, 0, sizeof world);
    world.name = on_lanes ? "nccl on lanes" : "nccl";
    world.count = world.local = count;
    world.open = open_nccl;
    world.over = open_over;
    world.over_transfers = open_pairs;
    world.adds = true;
    for (uint32_t r = 0; r < count; r++) {
        const struct ox_cuda_config config = {.plugin_path = simt->kit.plugin};
        REQUIRE_OK(ox_cuda_device_open(&config, &world.devices[r]));
        if (on_lanes) {
            REQUIRE_OK(ox_device_lane_open(world.devices[r], "calls", &world.lanes[r]));
        }
    }
    comm_cases_calls(&world);
    comm_cases_random(&world, test_all() ? 40 : 15, count);
    comm_cases_failures(&world);
    comm_cases_groups(&world);
    comm_cases_faults(&world, 3);
    for (uint32_t r = 0; r < count; r++) {
        ox_lane_close(&world.lanes[r]);
        ox_device_close(&world.devices[r]);
    }
}

int main(void) {
    simt = simt_open();
    simt->set_delay(1, 50000);
    for (uint32_t count = 1; count <= RANKS_MOST; count++) {
        if (count < 2 || count > 3 || test_takes(count, 2)) { /* two ranks or three in `make test` */
            run(count, false);
        }
        if (count == 2 || test_all()) {
            run(count, true);
        }
    }
    CHECK(simt->device_bytes() == 0);
    return test_end();
}
