/* Agreement between the processes of a run: meetings of their main threads over MPI, apart from those of the ranks. */
#include "engine/step/team.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "kernels/comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* COMM_FAIL_MS: how long a process whose ranks could not reach the others waits for them to say so too. */
enum { WARN_MS = 600 * 1000, LIMIT_MS = 600 * 1000, COMM_FAIL_MS = 30 * 1000 };
enum { SUMS_AT_ONCE = OX_COMM_MEET_BYTES / sizeof(uint64_t) };

_Static_assert((int)OX_TEAM_MAX == (int)OX_COMM_RANKS_MAX, "each process has at least a rank");

struct ox_team {
    struct ox_comm *comm;
    uint32_t per_machine, idx_on_machine;
    struct ox_comm_limits step_limits;
    unsigned char *all[OX_TEAM_CHANNEL_COUNT]; /* what all processes have said, by channel */
};

/* ---- meetings ----------------------------------------------------------------------------------------- */

/* A comm names its ranks, and here they are processes; some of its texts name the process already. */
static enum ox_status name_process(enum ox_status status) {
    const char *const text = ox_error_text(), *const colon = strstr(text, ": ");
    char rest[OX_ERROR_TEXT_BYTES];
    if (status == OX_OK || strncmp(text, "rank ", 5) != 0) {
        return status;
    }
    const bool named = colon != NULL && strncmp(colon + 2, "process ", 8) == 0;
    snprintf(rest, sizeof rest, "%s", named ? colon + 2 + 8 : text + 5);
    return ox_fail(status, "process %s", rest);
}

static enum ox_status meet(struct ox_team *team, const struct ox_comm_meet *call) {
    struct ox_comm_meet limited = *call;
    if (call->channel == OX_TEAM_STEP && call->limits == NULL) {
        limited.limits = &team->step_limits;
    }
    return name_process(ox_comm_meet(team->comm, &limited));
}

enum ox_status ox_team_gather(struct ox_team *team, enum ox_team_channel channel, const void *mine, uint32_t size,
                              void *all, const char *what) {
    if (team == NULL) {
        memcpy(all, mine, size);
        return OX_OK;
    }
    return meet(team, &(struct ox_comm_meet){
        .channel = channel, .mine = mine, .mine_bytes = size, .slot_bytes = size, .all = all, .what = what});
}

enum ox_status ox_team_share(struct ox_team *team, void *bytes, uint32_t size, const char *what) {
    if (team == NULL) {
        return OX_OK;
    }
    unsigned char *const all = team->all[OX_TEAM_RUN];
    const enum ox_status status = meet(team, &(struct ox_comm_meet){
        .channel = OX_TEAM_RUN, .mine = bytes, .mine_bytes = ox_team_leads(team) ? size : 0, .slot_bytes = size,
        .all = all, .what = what});
    if (status == OX_OK) {
        memcpy(bytes, all, size);
    }
    return status;
}

enum ox_status ox_team_sum(struct ox_team *team, enum ox_team_channel channel, uint64_t *numbers, uint32_t count,
                           const char *what) {
    enum ox_status status = OX_OK;
    for (uint32_t first = 0; team != NULL && first < count && status == OX_OK; first += SUMS_AT_ONCE) {
        const uint32_t part = (uint32_t)ox_min_u64(SUMS_AT_ONCE, count - first);
        const uint32_t bytes = part * (uint32_t)sizeof *numbers;
        const uint64_t *const all = (const uint64_t *)(const void *)team->all[channel];
        status = meet(team, &(struct ox_comm_meet){
            .channel = channel, .mine = numbers + first, .mine_bytes = bytes, .slot_bytes = bytes,
            .all = team->all[channel], .what = what});
        for (uint32_t i = 0; i < part && status == OX_OK; i++) {
            numbers[first + i] = 0;
            for (uint32_t k = 0; k < team->comm->count; k++) {
                numbers[first + i] += all[k * part + i];
            }
        }
    }
    return status;
}

/* What a process says of a call that all have made. */
struct verdict {
    uint32_t status;
    char text[OX_ERROR_TEXT_BYTES];
};

/* Returns the process whose failure counts, or `count`. */
static uint32_t find_failure(const struct verdict *all, uint32_t count) {
    uint32_t found = count;
    for (uint32_t i = 0; i < count; i++) {
        const bool aborted = all[i].status == OX_E_ABORTED;
        if (all[i].status != OX_OK && (found == count || (all[found].status == OX_E_ABORTED && !aborted))) {
            found = i;
        }
    }
    return found;
}

enum ox_status ox_team_agree(struct ox_team *team, enum ox_team_channel channel, enum ox_status status,
                             const char *what) {
    if (team == NULL) {
        return status;
    }
    const uint32_t count = team->comm->count;
    struct ox_comm_limits soon = team->step_limits;
    soon.fail_ms = (uint32_t)ox_min_u64(soon.fail_ms, COMM_FAIL_MS);
    struct verdict mine = {.status = (uint32_t)status};
    snprintf(mine.text, sizeof mine.text, "%s", status == OX_OK ? "" : ox_error_text());
    struct verdict *const all = (struct verdict *)(void *)team->all[channel];
    const enum ox_status met = meet(team, &(struct ox_comm_meet){
        .channel = channel, .mine = &mine, .mine_bytes = sizeof mine, .slot_bytes = sizeof mine, .all = all,
        .what = what, .limits = status == OX_E_COMM ? &soon : NULL});
    const uint32_t found = met == OX_OK ? find_failure(all, count) : count;
    enum ox_status agreed = met;
    if (met != OX_OK && status == OX_E_COMM) {
        agreed = ox_fail(status, "%s", mine.text); /* what came first */
    } else if (found < count && (found == team->comm->rank || strncmp(all[found].text, "process ", 8) == 0)) {
        agreed = ox_fail((enum ox_status)all[found].status, "%s", all[found].text);
    } else if (found < count) {
        agreed = ox_fail((enum ox_status)all[found].status, "process %u: %s", found, all[found].text);
    }
    return agreed;
}

void ox_team_abort(struct ox_team *team, enum ox_status status) {
    if (team != NULL && status != OX_OK) {
        char text[OX_ERROR_TEXT_BYTES];
        snprintf(text, sizeof text, "%s", ox_error_text());
        ox_comm_abort(team->comm, status, text);
        ox_fail(status, "%s", text);
    }
}

/* ---- opening ------------------------------------------------------------------------------------------- */

/* Two processes run on one machine if these are equal: containers of a machine share what its kernel drew when it
 * started, and have names of their own. */
struct place {
    char boot[64], host[64];
};

static void find_place(struct place *out) {
    memset(out, 0, sizeof *out);
    FILE *const file = fopen("/proc/sys/kernel/random/boot_id", "re");
    const bool read = file != NULL && fgets(out->boot, sizeof out->boot, file) != NULL;
    if (file != NULL) {
        fclose(file);
    }
    if (!read) {
        gethostname(out->host, sizeof out->host - 1);
    }
}

static enum ox_status count_on_machines(struct ox_team *team) {
    struct place own, all[OX_COMM_RANKS_MAX];
    find_place(&own);
    const enum ox_status status =
        ox_team_gather(team, OX_TEAM_RUN, &own, sizeof own, all, "the machines of all processes");
    for (uint32_t i = 0; i < team->comm->count && status == OX_OK; i++) {
        uint32_t count = 0;
        for (uint32_t k = 0; k < team->comm->count; k++) {
            count += memcmp(&all[i], &all[k], sizeof own) == 0;
        }
        team->per_machine = (uint32_t)ox_max_u64(team->per_machine, count);
        team->idx_on_machine += i < team->comm->rank && memcmp(&all[i], &own, sizeof own) == 0;
    }
    return status;
}

enum ox_status ox_team_open(uint64_t limit_ns, struct ox_team **out) {
    uint32_t process = 0, process_count = 0;
    *out = NULL;
    enum ox_status status = ox_comm_mpi_world(NULL, &process, &process_count);
    if (status != OX_OK || process_count == 1) {
        return status;
    }
    struct ox_team *team = calloc(1, sizeof *team);
    if (team == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory to join the other processes");
    }
    const uint32_t limit_ms = limit_ns == 0 ? LIMIT_MS : (uint32_t)ox_min_u64(limit_ns / 1000000, UINT32_MAX);
    const struct ox_comm_local_config config = {
        .count = 1, .limits = {.warn_ms = WARN_MS, .fail_ms = UINT32_MAX}, .silent_ms = limit_ms};
    team->step_limits.fail_ms = limit_ms;
    for (int i = 0; i < OX_TEAM_CHANNEL_COUNT; i++) {
        team->all[i] = calloc(process_count, OX_COMM_MEET_BYTES);
        status = team->all[i] != NULL ? status : ox_fail(OX_E_NOMEM, "no memory to join the other processes");
    }
    OX_THEN(status, name_process(ox_comm_mpi_open(NULL, &config, &team->comm)));
    OX_THEN(status, count_on_machines(team));
    if (status != OX_OK) {
        ox_team_close(&team);
    }
    *out = team;
    return status;
}

void ox_team_close(struct ox_team **team) {
    if (*team != NULL) {
        ox_comm_close(&(*team)->comm);
        for (int i = 0; i < OX_TEAM_CHANNEL_COUNT; i++) {
            free((*team)->all[i]);
        }
        free(*team);
        *team = NULL;
    }
}

uint32_t ox_team_idx(const struct ox_team *team) {
    return team == NULL ? 0 : team->comm->rank;
}

uint32_t ox_team_count(const struct ox_team *team) {
    return team == NULL ? 1 : team->comm->count;
}

uint32_t ox_team_per_machine(const struct ox_team *team) {
    return team == NULL ? 1 : team->per_machine;
}

uint32_t ox_team_idx_on_machine(const struct ox_team *team) {
    return team == NULL ? 0 : team->idx_on_machine;
}
