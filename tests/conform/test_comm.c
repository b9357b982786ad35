/* Communication between ranks: the same cases on every backend that needs no other program: threads of one process
 * with memory of the host, with CPU devices, and with emulated GPUs, plain and with random delays. */
#include "kernels/device.h"
#include "tests/kit/comm/comm_cases.h"
#include "tests/kit/device/simt_kit.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SLOWED = 1 };
#else
enum { SLOWED = 0 };
#endif

static void open_local(struct comm_world *world, const struct ox_comm_limits *limits) {
    const struct ox_comm_local_config config = {
        .count = world->count, .devices = world->devices[0] != NULL ? world->devices : NULL, .limits = *limits};
    REQUIRE_OK(ox_comm_local_open(&config, world->comms));
}

static void open_chaos(struct comm_world *world, const struct ox_comm_limits *limits) {
    open_local(world, limits);
    for (uint32_t r = 0; r < world->count; r++) {
        struct ox_comm *const inner = world->comms[r];
        REQUIRE_OK(ox_comm_chaos_open(inner, 1 + world->count, 200000, &world->comms[r]));
    }
}

static struct comm_world world_of(const char *name, uint32_t count) {
    struct comm_world world;
    memset(&world, 0, sizeof world);
    world.name = name;
    world.count = world.local = count;
    world.open = open_local;
    return world;
}

/* ---- pieces beyond 4 GiB ---------------------------------------------------------------------------- */

#define PIECE (UINT64_C(4096) << 20)
enum { TILE = 64 << 20, TAIL = 4096 };

/* Memory of a whole vector: tiles that all lie on the same memory, and behind each piece a tail of its own. */
struct overlay {
    unsigned char *at;
};

static struct overlay overlay_open(void) {
    struct overlay overlay = {0};
    const int fd = memfd_create("tile", 0);
    CHECK(fd >= 0 && ftruncate(fd, TILE) == 0);
    overlay.at = mmap(NULL, 2 * (PIECE + TAIL), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                      0);
    CHECK(overlay.at != MAP_FAILED);
    for (int piece = 0; piece < 2; piece++) {
        unsigned char *const at = overlay.at + (uint64_t)piece * (PIECE + TAIL);
        for (uint64_t i = 0; i < PIECE; i += TILE) {
            CHECK(mmap(at + i, TILE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
        }
        memset(at + PIECE, 0, TAIL);
    }
    close(fd);
    return overlay;
}

static void gather_large(struct comm_rank *rank) {
    const uint64_t cuts[] = {0, PIECE + TAIL, 2 * (PIECE + TAIL)};
    const struct overlay all = overlay_open();
    unsigned char *const mine = all.at + cuts[rank->rank];
    memset(mine, (int)rank->rank + 1, TILE);
    memset(mine + PIECE, (int)rank->rank + 11, TAIL);
    REQUIRE_OK(ox_comm_gather(rank->comm, &(struct ox_comm_gather){
        .source = mine, .target = all.at, .cuts = cuts, .on_host = true, .what = "large pieces"}));
    int wrong = 0;
    for (uint32_t r = 0; r < 2; r++) {
        for (int i = 0; i < TAIL; i++) {
            wrong += all.at[cuts[r] + PIECE + (uint64_t)i] != r + 11;
        }
    }
    CHECK(wrong == 0 && (all.at[0] == 1 || all.at[0] == 2));
    struct ox_comm_stats stats;
    ox_comm_stats(rank->comm, OX_COMM_GATHER, &stats);
    CHECK(stats.in_bytes == PIECE + TAIL && stats.out_bytes == PIECE + TAIL);
    munmap(all.at, 2 * (PIECE + TAIL));
}

static void test_large(void) {
    struct comm_world world = world_of("local", 2);
    comm_world_open(&world, 0, 0);
    comm_each(&world, gather_large, NULL, NULL);
    comm_world_close(&world);
}

/* ---- with devices ----------------------------------------------------------------------------------- */

static void run_with_devices(struct comm_world *world) {
    comm_cases_calls(world);
    comm_cases_random(world, 40, 3);
    comm_cases_failures(world);
    comm_cases_groups(world);
    for (uint32_t r = 0; r < world->count; r++) {
        ox_device_close(&world->devices[r]);
    }
}

static void test_cpu_devices(uint32_t count) {
    struct comm_world world = world_of("local, CPU devices", count);
    for (uint32_t r = 0; r < count; r++) {
        const struct ox_cpu_device_config config = {.thread_count = 1, .chaos_seed = r + 1, .chaos_ns_max = 100000};
        REQUIRE_OK(ox_cpu_device_open(&config, &world.devices[r]));
    }
    run_with_devices(&world);
}

/* Several ranks on one device each, of one GPU. */
static void test_gpus(const struct cuda_kit *kit, uint32_t count) {
    struct comm_world world = world_of(kit->name, count);
    for (uint32_t r = 0; r < count; r++) {
        REQUIRE_OK(ox_cuda_device_open(&(struct ox_cuda_config){.plugin_path = kit->plugin}, &world.devices[r]));
    }
    run_with_devices(&world);
}

int main(void) {
    static const uint32_t counts[] = {1, 2, 3, 4, 8};
    for (uint32_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct comm_world world = world_of("local", counts[i]);
        comm_cases_calls(&world);
        comm_cases_random(&world, SLOWED ? 100 : 600 / test_stride(4), counts[i]);
        comm_cases_failures(&world);
        comm_cases_groups(&world);
        comm_cases_faults(&world, 12 / test_stride(2));
        world.open = open_chaos;
        world.name = "local, with delays";
        comm_cases_random(&world, SLOWED ? 20 : 60, counts[i]);
        comm_cases_faults(&world, 4);
    }
    test_cpu_devices(3);
    const struct simt *const simt = simt_open();
    simt->set_delay(1, 100000);
    test_gpus(&simt->kit, 2);
    CHECK(simt->device_bytes() == 0);
    struct cuda_kit kit;
    if (cuda_kit_real(&kit)) {
        test_gpus(&kit, 2);
    }
    if (!SLOWED) {
        test_large();
    }
    return test_end();
}
