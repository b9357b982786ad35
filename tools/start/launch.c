/* Reads the environment that launchers set. Everything follows from one table. */
#include "tools/start/launch.h"

#include "kernels/comm/comm.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT_MAX = 1 << 20, NO_NUMBER = -1 };

/* The variables of a launcher, from the inner ones to the outer ones: mpirun starts its processes through srun where it
 * can, and both may start a torchrun per machine. */
static const struct source {
    const char *launcher, *idx, *count, *local_idx, *local_count; /* local_count may be NULL */
    const char *parents[5]; /* how the names of programs begin that start its processes */
} sources[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", {"torchrun", "pt_elastic"}},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", {"mpirun", "mpiexec", "orte", "prte"}},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {"hydra_", "mpirun", "mpiexec"}},
    /* SLURM_NTASKS is also set in a batch script, which is one process. */
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, {"slurmstepd"}},
};
enum { SOURCE_COUNT = sizeof sources / sizeof *sources };

/* Reads a variable; NO_NUMBER if it is not set. */
static enum ox_status read_number(ox_launch_get *get, const char *name, int64_t *out) {
    const char *const text = name != NULL ? get(name) : NULL;
    *out = NO_NUMBER;
    if (text == NULL) {
        return OX_OK;
    }
    const bool digits = text[0] != '\0' && text[strspn(text, "0123456789")] == '\0' && strlen(text) < 8;
    *out = digits ? strtoll(text, NULL, 10) : NO_NUMBER;
    return *out >= 0 && *out <= COUNT_MAX ? OX_OK
                                          : ox_fail(OX_E_CONFIG, "%s is \"%.40s\"; it must be a number up to %d, as a "
                                                    "launcher sets it, or not be set (`unset %s`)", name, text,
                                                    COUNT_MAX, name);
}

static enum ox_status check_below(const char *idx_name, int64_t idx, const char *count_name, int64_t count) {
    return count == NO_NUMBER || idx < count
               ? OX_OK
               : ox_fail(OX_E_CONFIG, "%s is %lld, but %s is %lld; numbers begin at 0", idx_name, (long long)idx,
                         count_name, (long long)count);
}

/* Sets out->launcher to NULL if the launcher has not set its variables. */
static enum ox_status read_source(ox_launch_get *get, const struct source *source, struct ox_launch *out) {
    int64_t idx = 0, count = 0, local_idx = 0, local_count = 0;
    *out = (struct ox_launch){.count = 1};
    /* Slurm sets the number of a process in a batch script too; a launcher is there where there is a count. */
    const bool counted = get(source->count) != NULL;
    if (!counted && (get(source->idx) == NULL || strcmp(source->launcher, "srun") == 0)) {
        return OX_OK;
    }
    enum ox_status status = read_number(get, source->idx, &idx);
    OX_THEN(status, read_number(get, source->count, &count));
    OX_THEN(status, read_number(get, source->local_idx, &local_idx));
    OX_THEN(status, read_number(get, source->local_count, &local_count));
    if (status == OX_OK && (idx == NO_NUMBER || count == NO_NUMBER)) {
        const char *const set = idx == NO_NUMBER ? source->count : source->idx;
        return ox_fail(OX_E_CONFIG, "%s is set, but %s is not; a launcher sets both; where none has started this, "
                       "`unset %s` first", set, idx == NO_NUMBER ? source->idx : source->count, set);
    }
    OX_THEN(status, check_below(source->idx, idx, source->count, count));
    OX_THEN(status, check_below(source->local_idx, local_idx, source->local_count, local_count));
    OX_THEN(status, check_below(source->local_idx, local_idx, source->count, count));
    if (status == OX_OK) {
        *out = (struct ox_launch){.launcher = source->launcher, .idx = (uint32_t)idx, .count = (uint32_t)count,
                                  .local_idx = local_idx == NO_NUMBER ? 0 : (uint32_t)local_idx,
                                  .local_count = local_count == NO_NUMBER ? 0 : (uint32_t)local_count,
                                  .names = {source->idx, source->count, source->local_idx, source->local_count}};
    }
    return status;
}

/* An outer launcher has as many processes, and then this one has its number in both, or it has started an inner one for
 * each group of them. */
static bool can_be_outer(const struct ox_launch *outer, const struct ox_launch *inner) {
    return outer->count == inner->count ? outer->idx == inner->idx
                                        : inner->count > outer->count && inner->count % outer->count == 0;
}

enum ox_status ox_launch_read(ox_launch_get *get, struct ox_launch *out) {
    enum ox_status status = OX_OK;
    const struct source *inner = NULL;
    *out = (struct ox_launch){.count = 1};
    for (unsigned i = 0; status == OX_OK && i < SOURCE_COUNT; i++) {
        struct ox_launch launch;
        status = read_source(get, &sources[i], &launch);
        if (status != OX_OK || launch.launcher == NULL) {
            continue;
        }
        if (inner == NULL) {
            inner = &sources[i];
            *out = launch;
        } else if (!can_be_outer(&launch, out)) {
            status = ox_fail(OX_E_CONFIG, "%s says that this is process %u of %u (%s, %s), %s that it is %u of %u (%s, "
                             "%s); start it with one of them, or unset the variables of the other", out->launcher,
                             out->idx, out->count, inner->idx, inner->count, launch.launcher, launch.idx, launch.count,
                             sources[i].idx, sources[i].count);
        }
    }
    return status;
}

bool ox_launch_is_by(const struct ox_launch *launch, const char *parent) {
    for (unsigned i = 0; launch->launcher != NULL && i < SOURCE_COUNT; i++) {
        const struct source *const source = &sources[i];
        for (unsigned k = 0; strcmp(source->idx, launch->names[0]) == 0 && source->parents[k] != NULL; k++) {
            if (strncmp(parent, source->parents[k], strlen(source->parents[k])) == 0) {
                return true;
            }
        }
    }
    return false;
}

enum ox_status ox_launch_meet(const struct ox_launch *launch) {
    char unset[160] = "", why[OX_ERROR_TEXT_BYTES];
    uint32_t process = 0, count = 1;
    const enum ox_status status = launch->count > 1 ? ox_comm_mpi_world(NULL, &process, &count) : OX_OK;
    if (status == OX_OK && count == launch->count) {
        return OX_OK;
    }
    if (status == OX_OK) {
        snprintf(why, sizeof why, "MPI knows of %u", count);
    } else {
        snprintf(why, sizeof why, "there is no MPI (%s)", ox_error_text());
    }
    size_t used = 0;
    for (unsigned i = 0; i < sizeof launch->names / sizeof *launch->names && launch->names[i] != NULL; i++) {
        used += (size_t)snprintf(unset + used, sizeof unset - used, " %s", launch->names[i]);
    }
    return ox_fail(OX_E_CONFIG, "%s=%u and %s=%u say that %s has started %u processes that train together, but %s; "
                   "start them with mpirun -np %u, or with srun --mpi=pmix; if these variables are left over in this "
                   "shell or container, and this process is alone: `unset%s`", launch->names[0], launch->idx,
                   launch->names[1], launch->count, launch->launcher, launch->count, why, launch->count, unset);
}
