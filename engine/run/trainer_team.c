/* What the processes of a run decide alike: they compare what they were started with, take the first one's view of the
 * machine and of the clock, and do what is asked of any of them. */
#include "engine/run/trainer_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/hash/hash.h"
#include "base/log.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

bool ox_trainer_leads(const struct ox_trainer *trainer) {
    return ox_team_leads(trainer->team);
}

enum ox_status ox_trainer_agree(const struct ox_trainer *trainer, enum ox_status status, const char *what) {
    ox_team_abort(trainer->team, status);
    return status == OX_OK ? ox_team_agree(trainer->team, OX_TEAM_RUN, OX_OK, what) : status;
}

enum ox_status ox_trainer_any(const struct ox_trainer *trainer, bool mine, const char *what, bool *out) {
    bool all[OX_TEAM_MAX] = {false};
    const enum ox_status status = ox_team_gather(trainer->team, OX_TEAM_RUN, &mine, sizeof mine, all, what);
    *out = false;
    for (uint32_t i = 0; i < ox_team_count(trainer->team); i++) {
        *out = *out || all[i];
    }
    return status;
}

/* ---- what processes are started with -------------------------------------------------------------------- */

/* Whether each process may have its own. */
static bool is_own(const char *line) {
    static const char *const names[] = {"quiet:", "profile:"};
    bool own = false;
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        own = own || strncmp(line, names[i], strlen(names[i])) == 0;
    }
    return own;
}

/* Where the lines of two processes' options differ, as "seed: 1" of this one, or "data: - a.txt" of a list; "" if they
 * do not. */
static void find_difference(const char *mine, const char *other, char *text, size_t text_bytes) {
    const char *key = mine;
    text[0] = '\0';
    while (*mine != '\0' || *other != '\0') {
        const size_t bytes = strcspn(mine, "\n"), other_bytes = strcspn(other, "\n");
        key = *mine != ' ' ? mine : key;
        if (!is_own(mine) && (bytes != other_bytes || memcmp(mine, other, bytes) != 0)) {
            const size_t key_bytes = key != mine ? strcspn(key, "\n") : 0, indent = key != mine ? 1 : 0;
            snprintf(text, text_bytes, "%.*s%.*s", (int)key_bytes, key, (int)ox_min_u64(bytes - indent, 100),
                     mine + indent);
            return;
        }
        mine += bytes + (mine[bytes] == '\n');
        other += other_bytes + (other[other_bytes] == '\n');
    }
}

enum { OPTIONS_BYTES = 32 << 10 };

/* Refuses a process with other options, and names the first. */
static enum ox_status compare_options(struct ox_trainer *trainer) {
    struct ox_team *const team = trainer->team;
    char *yaml = NULL, *const all = calloc(ox_team_count(team), OPTIONS_BYTES), *const mine = calloc(1, OPTIONS_BYTES);
    enum ox_status status = all != NULL && mine != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "no memory to compare options");
    OX_THEN(status, ox_config_to_yaml(&trainer->config, OX_CMD_TRAIN, &yaml));
    if (status == OX_OK) {
        snprintf(mine, OPTIONS_BYTES, "%s", yaml);
        status = ox_team_gather(team, OX_TEAM_RUN, mine, OPTIONS_BYTES, all, "the options of all processes");
    }
    for (uint32_t i = 1; i < ox_team_count(team) && status == OX_OK; i++) {
        char mine_line[128], first_line[128];
        find_difference(all + (size_t)i * OPTIONS_BYTES, all, mine_line, sizeof mine_line);
        find_difference(all, all + (size_t)i * OPTIONS_BYTES, first_line, sizeof first_line);
        if (strcmp(mine_line, first_line) != 0) {
            status = ox_fail(OX_E_CONFIG, "process %u was started with \"%s\" and process 0 with \"%s\"; start all "
                             "processes with the same options", i, mine_line, first_line);
        }
    }
    free(yaml);
    free(mine);
    free(all);
    return status;
}

enum ox_status ox_trainer_join(struct ox_trainer *trainer) {
    const uint32_t expected = (uint32_t)ox_max_u64(trainer->config.ranks.processes, 1);
    if (expected == 1 || trainer->config.tool.plan_only) {
        return OX_OK;
    }
    enum ox_status status = ox_team_open(trainer->config.ranks.comm_timeout_ns, &trainer->team);
    if (status == OX_OK && ox_team_count(trainer->team) != expected) {
        status = ox_fail(OX_E_CONFIG, "the launcher says that it has started %u processes, and MPI knows of %u; start "
                         "them with mpirun, or with srun --mpi=pmix", expected, ox_team_count(trainer->team));
    }
    OX_THEN(status, compare_options(trainer));
    OX_THEN(status, ox_team_share(trainer->team, &trainer->config.tool.clock_s, sizeof trainer->config.tool.clock_s,
                                  "the date"));
    return status;
}

/* What must be equal where a run begins; the options already are. */
struct facts {
    uint64_t data, numerics, plan, max_steps;
};

/* Hash of all that a plan's tasks follow from. */
static uint64_t plan_hash(const struct ox_engine_plan *plan) {
    uint64_t hash = 0;
    for (uint32_t i = 0; i < ox_plan_rank_count(&plan->input); i++) {
        const struct ox_plan *const train = ox_engine_plan_at(plan, i)->train;
        const uint64_t words[] = {hash, train->task_count, train->peak_bytes[OX_TIER_DEVICE],
                                  train->peak_bytes[OX_TIER_HOST], train->peak_bytes[OX_TIER_NVME], train->spool_count};
        hash = ox_hash_seed(words, sizeof words / sizeof *words);
    }
    return hash;
}

enum ox_status ox_trainer_compare(const struct ox_trainer *trainer) {
    struct ox_team *const team = trainer->team;
    struct facts all[OX_TEAM_MAX];
    if (team == NULL) {
        return OX_OK;
    }
    const struct facts mine = {.data = trainer->state.data_fingerprint, .numerics = trainer->state.numerics_hash,
                               .plan = plan_hash(trainer->plan), .max_steps = trainer->max_steps};
    enum ox_status status = ox_team_gather(team, OX_TEAM_RUN, &mine, sizeof mine, all, "what all processes begin with");
    for (uint32_t i = 1; i < ox_team_count(team) && status == OX_OK; i++) {
        const char *const what = all[i].data != all[0].data           ? "data"
                                 : all[i].numerics != all[0].numerics ? "model or version"
                                 : all[i].max_steps != all[0].max_steps ? "number of steps"
                                 : all[i].plan != all[0].plan           ? "plan" : NULL;
        if (what != NULL) {
            status = ox_fail(OX_E_CONFIG, "process %u has another %s than process 0; give all processes the same "
                             "files", i, what);
        }
    }
    return status;
}

/* ---- what the first one decides ------------------------------------------------------------------------- */

enum ox_status ox_trainer_in_turn(struct ox_trainer *trainer, enum ox_status (*fn)(struct ox_trainer *),
                                  const char *what) {
    enum ox_status status = ox_trainer_leads(trainer) ? fn(trainer) : OX_OK;
    if (trainer->team == NULL) {
        return status;
    }
    status = ox_trainer_agree(trainer, status, what);
    return status == OX_OK && !ox_trainer_leads(trainer) ? fn(trainer) : status;
}

enum ox_status ox_trainer_share_machine(struct ox_trainer *trainer) {
    return ox_team_share(trainer->team, &trainer->machine, sizeof trainer->machine, "the machine");
}

/* A folder of another machine may show what was just written only after a while. */
enum ox_status ox_trainer_check_shared(const struct ox_trainer *trainer) {
    enum { TRIES = 50, TRY_NS = 200000000 };
    const char *const folder = trainer->config.files.output_dir;
    bool same = ox_trainer_leads(trainer);
    for (int i = 0; i < TRIES && !same; i++) {
        struct ox_run_identity found;
        same = ox_run_exists(folder) && ox_run_read_identity(folder, &found) == OX_OK &&
               memcmp(found.run_id, trainer->identity.run_id, sizeof found.run_id) == 0;
        if (!same) {
            nanosleep(&(struct timespec){.tv_nsec = TRY_NS}, NULL);
        }
    }
    return ox_trainer_agree(trainer, same ? OX_OK
                             : ox_fail(OX_E_CONFIG, "--output %s: is not the folder in which process 0 has begun the "
                                       "run; give one that all processes share", folder), "the run's folder");
}

/* ---- what is asked of any of them ------------------------------------------------------------------------ */

enum ox_status ox_trainer_agree_asked(struct ox_trainer *trainer, struct ox_asked *asked) {
    struct ox_team *const team = trainer->team;
    struct {
        struct ox_asked asked;
        uint64_t persist_steps;
    } mine = {.asked = *asked, .persist_steps = trainer->persist.steps}, all[OX_TEAM_MAX];
    if (team == NULL) {
        return OX_OK;
    }
    const enum ox_status status =
        ox_team_gather(team, OX_TEAM_STEP, &mine, sizeof mine, all, "what is due after a step");
    for (uint32_t i = 0; i < ox_team_count(team) && status == OX_OK; i++) {
        asked->save = asked->save || all[i].asked.save;
        asked->finish = asked->finish || all[i].asked.finish;
        asked->stop = asked->stop != 0 ? asked->stop : all[i].asked.stop;
    }
    if (status == OX_OK) {
        trainer->persist.steps = all[0].persist_steps;
    }
    return status;
}

enum ox_status ox_trainer_agree_stop(const struct ox_trainer *trainer, int *stop) {
    int all[OX_TEAM_MAX] = {0};
    const enum ox_status status =
        ox_team_gather(trainer->team, OX_TEAM_RUN, stop, sizeof *stop, all, "a request to stop");
    for (uint32_t i = 0; i < ox_team_count(trainer->team) && status == OX_OK; i++) {
        *stop = *stop != 0 ? *stop : all[i];
    }
    return status;
}

/* ---- stores of another number of processes --------------------------------------------------------------- */

/* How many processes the stores in folders of this name belong to; 0 if it is no such name. */
static uint32_t processes_of(const char *name) {
    unsigned idx = 0, count = 0;
    char same[64];
    if (sscanf(name, "process-%u-of-%u", &idx, &count) != 2) {
        return 0;
    }
    snprintf(same, sizeof same, "process-%u-of-%u", idx, count);
    return strcmp(same, name) == 0 ? count : 0;
}

/* Removes the store in a folder, and the folder itself if it was made for the store. */
static enum ox_status remove_store(const char *folder, bool made) {
    enum ox_status status = ox_store_remove(&folder, 1);
    OX_THEN(status, ox_run_forget_finished(folder));
    if (status == OX_OK && made && rmdir(folder) != 0) {
        ox_log(OX_LOG_WARN, "%s: stays behind, because it is not empty", folder);
    }
    return status;
}

/* Looks into one folder of --nvme. */
static enum ox_status look_in(const struct ox_trainer *trainer, const char *base, bool remove, uint32_t *processes) {
    const uint64_t *const run_id = trainer->identity.run_id;
    const uint32_t own = ox_team_count(trainer->team);
    enum ox_status status = OX_OK;
    if (own > 1 && ox_store_owner(base, run_id) == OX_STORE_OWNER_SAME) {
        *processes = 1;
        status = remove ? remove_store(base, false) : OX_OK;
    }
    DIR *const folder = opendir(base);
    for (const char *name = ""; folder != NULL && status == OX_OK && name != NULL;) {
        char path[OX_PATH_BYTES];
        status = ox_folder_next(folder, base, &name);
        const uint32_t count = status == OX_OK && name != NULL ? processes_of(name) : 0;
        if (count == 0 || count == own || ox_path_join(base, name, path) != OX_OK ||
            ox_path_refuse_link(path) != OX_OK || ox_store_owner(path, run_id) != OX_STORE_OWNER_SAME) {
            continue;
        }
        *processes = count;
        status = remove ? remove_store(path, true) : OX_OK;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return status;
}

/* Finds stores of the run that are those of another number of processes, and removes them if `remove` says so. */
static enum ox_status look_for_others(const struct ox_trainer *trainer, bool remove, uint32_t *processes) {
    enum ox_status status = OX_OK;
    *processes = 0;
    for (uint32_t i = 0; i < trainer->config.memory.nvme_count && status == OX_OK; i++) {
        status = look_in(trainer, trainer->config.memory.nvme[i].path, remove, processes);
    }
    return status;
}

uint32_t ox_run_other_processes(const struct ox_trainer *trainer) {
    uint32_t processes = 0;
    return look_for_others(trainer, false, &processes) == OX_OK ? processes : 0;
}

enum ox_status ox_run_remove_others(const struct ox_trainer *trainer) {
    uint32_t processes = 0;
    const bool first = ox_team_idx_on_machine(trainer->team) == 0;
    const enum ox_status status = first ? look_for_others(trainer, true, &processes) : OX_OK;
    if (status == OX_OK && processes > 0) {
        ox_log(OX_LOG_INFO, "the stores of %u process%s are removed: the run goes on with %u", processes,
               ox_plural_es(processes), ox_team_count(trainer->team));
    }
    return status;
}
