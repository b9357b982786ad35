#include "tests/kit/comm/process_threads.h"

#include "kernels/comm/comm_wire.h"
#include "tests/kit/comm/comm_hub.h"
#include "tests/kit/test.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

static _Thread_local uint32_t own_idx;
static uint32_t process_count = 1;
static pthread_barrier_t barrier; /* of all processes: they open endpoints together */
static struct ox_wire *wires[OX_TEAM_MAX];
static struct comm_hub *hubs[2]; /* of the team, and of the ranks that were opened last */
process_watch_fn *process_watch;

uint32_t process_idx(void) {
    return own_idx;
}

enum ox_status __wrap_ox_comm_mpi_world(const char *plugin_path, uint32_t *process, uint32_t *count);
enum ox_status __wrap_ox_comm_mpi_open(const char *plugin_path, const struct ox_comm_local_config *config,
                                       struct ox_comm **out);
enum ox_status __wrap_ox_comm_split(struct ox_comm *comm, const struct ox_comm_group_of *group, struct ox_comm **out);
/* Weak, because the programs that link this without taking over the call have no such name. */
enum ox_status __real_ox_comm_split(struct ox_comm *comm, const struct ox_comm_group_of *group, struct ox_comm **out)
    __attribute__((weak));

enum ox_status __wrap_ox_comm_mpi_world(const char *plugin_path, uint32_t *process, uint32_t *count) {
    (void)plugin_path;
    *process = own_idx;
    *count = process_count;
    return OX_OK;
}

enum ox_status __wrap_ox_comm_mpi_open(const char *plugin_path, const struct ox_comm_local_config *config,
                                       struct ox_comm **out) {
    (void)plugin_path;
    pthread_barrier_wait(&barrier);
    if (own_idx == 0) {
        struct comm_hub **const hub = &hubs[hubs[0] == NULL ? 0 : 1];
        *hub = comm_hub_open(process_count, 0, 0, wires);
    }
    pthread_barrier_wait(&barrier);
    const enum ox_status status = ox_comm_wire_open(wires[own_idx], config, out);
    for (uint32_t i = 0; i < config->count && status == OX_OK && process_watch != NULL; i++) {
        out[i] = process_watch(out[i], NULL, PROCESS_WHOLE);
    }
    return status;
}

/* Groups are opened by the endpoint beneath the one that watches it. */
enum ox_status __wrap_ox_comm_split(struct ox_comm *comm, const struct ox_comm_group_of *group, struct ox_comm **out) {
    const enum ox_status status = __real_ox_comm_split(comm->inner != NULL ? comm->inner : comm, group, out);
    if (status == OX_OK && process_watch != NULL) {
        *out = process_watch(*out, comm, group->split);
    }
    return status;
}

void process_lose(uint32_t idx) {
    for (int i = 0; i < 2; i++) {
        if (hubs[i] != NULL) {
            comm_hub_lose(hubs[i], idx);
        }
    }
}

struct process {
    pthread_t thread;
    uint32_t idx;
    process_fn *fn;
    void *arg;
};

static void *run(void *context) {
    const struct process *const process = context;
    struct ox_team *team = NULL;
    own_idx = process->idx;
    REQUIRE_OK(ox_team_open(0, &team));
    process->fn(team, process->arg);
    ox_team_close(&team);
    return NULL;
}

void processes_run(uint32_t count, process_fn *fn, void *arg) {
    struct process processes[OX_COMM_RANKS_MAX];
    process_count = count;
    CHECK(count <= OX_COMM_RANKS_MAX && pthread_barrier_init(&barrier, NULL, count) == 0);
    for (uint32_t i = 0; i < count; i++) {
        processes[i] = (struct process){.idx = i, .fn = fn, .arg = arg};
        CHECK(pthread_create(&processes[i].thread, NULL, run, &processes[i]) == 0);
    }
    for (uint32_t i = 0; i < count; i++) {
        CHECK(pthread_join(processes[i].thread, NULL) == 0);
    }
    pthread_barrier_destroy(&barrier);
    process_count = 1;
    hubs[0] = hubs[1] = NULL;
}
