/* `offload train`. */
#include "tools/command/cmd.h"
#include "tools/command/progress.h"
#include "tools/start/status_line.h"
#include "tools/start/signals.h"

#include "base/log.h"
#include "engine/hf/hf.h"
#include "engine/run/trainer.h"

#include <inttypes.h>

static void print_result(const struct ox_trainer *trainer) {
    if (ox_trainer_result(trainer)[0] != '\0') {
        printf("%s folder: %s\n", ox_hf_is_adapter(ox_trainer_result(trainer)) ? "adapter" : "model",
               ox_trainer_result(trainer));
    } else {
        printf("stopped before the first step: nothing was saved\n");
    }
}

/* Says after which step a run ended early, and how to go on; `signal_number` is 0 if a file or USR2 asked for it. */
static void tell_stop(const struct ox_trainer *trainer, const struct ox_config *config,
                      const struct ox_progress *progress, int signal_number) {
    const char *const by = signal_number == SIGINT    ? " by SIGINT"
                           : signal_number == SIGTERM ? " by SIGTERM"
                           : signal_number == SIGHUP  ? " by SIGHUP"
                                                      : "";
    const bool early = progress->step < progress->max_steps;
    if ((early || ox_trainer_lacks_eval(trainer)) && !ox_trainer_ended_early(trainer) &&
        ox_trainer_result(trainer)[0] != '\0') {
        const bool alone =
            config->save.save_only_model && (config->memory.nvme_count == 0 || config->memory.store_generations == 1);
        ox_log(OX_LOG_INFO, "stopped%s after step %" PRIu64 " of %" PRIu64 "%s; %s", by, progress->step,
               progress->max_steps, early ? "" : ", before its evaluation",
               alone ? "nothing has the optimizer's state (--save-only-model): a new run with this folder as --model "
                       "goes on from these weights" : "--resume-from-checkpoint latest goes on");
    }
}

/* Trains, with the plan on stderr, and prints the summary. *ended_by: the signal that ended the run, or 0. */
static enum ox_status train(struct ox_trainer *trainer, const struct ox_config *config, int *ended_by) {
    struct ox_progress progress = {.given_logging_steps = config->save.logging_steps, .quiet = config->tool.quiet};
    const struct ox_trainer_hooks hooks = ox_progress_hooks(&progress);
    enum ox_status status = ox_trainer_run(trainer, ox_signals_take(), &hooks, ended_by);
    ox_status_keep();
    if (status == OX_OK && !config->tool.quiet) {
        ox_progress_summary(&progress, trainer);
    }
    if (status == OX_OK) {
        print_result(trainer);
        fflush(stdout);
        tell_stop(trainer, config, &progress, *ended_by);
    }
    return status;
}

int ox_cmd_train(const struct ox_config *config) {
    struct ox_trainer *trainer = NULL;
    int ended_by = 0;
    enum ox_status status = ox_plan_open_run(config, &trainer);
    OX_THEN(status, config->tool.dry_run ? ox_plan_print_dry(trainer, config) : train(trainer, config, &ended_by));
    ended_by = config->tool.dry_run ? ox_signals_take()->stop : ended_by;
    const int exit_status = status == OX_OK && ended_by != 0 ? 128 + ended_by : ox_cmd_exit(status);
    ox_trainer_close(&trainer);
    return exit_status;
}
