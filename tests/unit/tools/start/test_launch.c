/* Which process of how many this one is, by what launchers set in the environment. */
#include "tools/start/launch.h"

#include "tests/kit/test.h"

#include <stdbool.h>
#include <string.h>

/* The environment of a case: "RANK=3 WORLD_SIZE=8". */
static const char *environment;

static const char *get(const char *name) {
    static char value[64];
    const size_t bytes = strlen(name);
    for (const char *at = environment; *at != '\0'; at += strcspn(at, " "), at += *at == ' ') {
        if (strncmp(at, name, bytes) == 0 && at[bytes] == '=') {
            snprintf(value, sizeof value, "%.*s", (int)strcspn(at + bytes + 1, " "), at + bytes + 1);
            return value;
        }
    }
    return NULL;
}

static const struct {
    const char *environment, *launcher; /* NULL: alone */
    uint32_t idx, count, local_idx, local_count;
} good[] = {
    {"", NULL, 0, 1, 0, 0},
    {"LOCAL_RANK=0 HOME=/root", NULL, 0, 1, 0, 0},
    /* as mpirun -np 2 of Open MPI 4.1.4 sets them */
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
     "PMIX_RANK=1",
     "mpirun", 1, 2, 1, 2},
    {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0", "mpirun", 0, 1, 0, 0},
    {"PMI_RANK=5 PMI_SIZE=8 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4", "mpirun", 5, 8, 1, 4},
    {"PMI_RANK=5 PMI_SIZE=8", "mpirun", 5, 8, 0, 0},
    {"SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1", "srun", 3, 4, 1, 0},
    {"SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0", NULL, 0, 1, 0, 0}, /* a batch script */
    {"RANK=7 WORLD_SIZE=8 LOCAL_RANK=3 LOCAL_WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1", "torchrun", 7, 8, 3, 4},
    /* srun --mpi=pmi2: both say the same */
    {"SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 PMI_RANK=3 PMI_SIZE=4", "mpirun", 3, 4, 0, 0},
    /* mpirun in an allocation starts one helper per machine with srun */
    {"OMPI_COMM_WORLD_RANK=6 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=4 "
     "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0", "mpirun", 6, 8, 2, 4},
    /* srun --ntasks-per-node=1 torchrun --nproc-per-node 4 */
    {"RANK=7 WORLD_SIZE=8 LOCAL_RANK=3 LOCAL_WORLD_SIZE=4 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2", "torchrun", 7, 8, 3,
     4},
};

static const struct {
    const char *environment, *words;
} bad[] = {
    {"RANK=8 WORLD_SIZE=8", "RANK is 8, but WORLD_SIZE is 8; numbers begin at 0"},
    {"RANK=0 WORLD_SIZE=0", "RANK is 0, but WORLD_SIZE is 0"},
    {"RANK=3", "RANK is set, but WORLD_SIZE is not; a launcher sets both"},
    {"WORLD_SIZE=8", "WORLD_SIZE is set, but RANK is not"},
    {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_SIZE is set, but OMPI_COMM_WORLD_RANK is not"},
    {"SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NUM_TASKS is set, but SLURM_PROCID is not"},
    {"RANK=x WORLD_SIZE=8", "RANK is \"x\"; it must be a number"},
    {"RANK=-1 WORLD_SIZE=8", "RANK is \"-1\"; it must be a number"},
    {"RANK= WORLD_SIZE=8", "RANK is \"\"; it must be a number"},
    {"RANK=0 WORLD_SIZE=99999999999", "WORLD_SIZE is \"99999999999\"; it must be a number"},
    {"RANK=1 WORLD_SIZE=8 LOCAL_RANK=4 LOCAL_WORLD_SIZE=4", "LOCAL_RANK is 4, but LOCAL_WORLD_SIZE is 4"},
    {"RANK=1 WORLD_SIZE=8 LOCAL_RANK=9", "LOCAL_RANK is 9, but WORLD_SIZE is 8"},
    {"RANK=0 WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8",
     "torchrun says that this is process 0 of 1 (RANK, WORLD_SIZE), mpirun that it is 3 of 8 (OMPI_COMM_WORLD_RANK, "
     "OMPI_COMM_WORLD_SIZE); start it with one of them"},
    {"RANK=2 WORLD_SIZE=8 PMI_RANK=3 PMI_SIZE=8", "torchrun says that this is process 2 of 8"},
    {"OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2", "srun that it is 1 of 2"},
};

/* Whose processes are those of the launcher that the variables name: a shell's are not. */
static void test_parents(void) {
    static const struct {
        const char *environment, *parent;
        bool is_by;
    } cases[] = {
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", "mpirun", true},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", "orterun", true},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", "prted", true},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", "bash", false},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", "slurmstepd", false},
        {"PMI_RANK=1 PMI_SIZE=2", "hydra_pmi_proxy", true},
        {"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=1", "slurmstepd", true},
        {"RANK=1 WORLD_SIZE=2", "torchrun", true},
        {"RANK=1 WORLD_SIZE=2", "sh", false},
        {"HOME=/root", "mpirun", false},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ox_launch launch;
        environment = cases[i].environment;
        REQUIRE_OK(ox_launch_read(get, &launch));
        CHECK(ox_launch_is_by(&launch, cases[i].parent) == cases[i].is_by);
    }
}

int main(void) {
    test_parents();
    for (unsigned i = 0; i < sizeof good / sizeof *good; i++) {
        struct ox_launch launch;
        environment = good[i].environment;
        REQUIRE_OK(ox_launch_read(get, &launch));
        const bool same_launcher = good[i].launcher == NULL
                                       ? launch.launcher == NULL
                                       : launch.launcher != NULL && strcmp(launch.launcher, good[i].launcher) == 0;
        if (!same_launcher || launch.idx != good[i].idx || launch.count != good[i].count ||
            launch.local_idx != good[i].local_idx || launch.local_count != good[i].local_count) {
            printf("\"%s\": %s, %u of %u, %u of %u here\n", environment,
                   launch.launcher != NULL ? launch.launcher : "alone", launch.idx, launch.count, launch.local_idx,
                   launch.local_count);
            test_failure_count++;
        }
    }
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ox_launch launch;
        environment = bad[i].environment;
        const enum ox_status status = ox_launch_read(get, &launch);
        if (status != OX_E_CONFIG || strstr(ox_error_text(), bad[i].words) == NULL) {
            printf("\"%s\": expected \"%s\", got %s: %s\n", environment, bad[i].words, ox_status_name(status),
                   ox_error_text());
            test_failure_count++;
        }
    }
    return test_end();
}
