/* metrics.jsonl: one JSON object per line, written at once, and synced when asked. Numbers read back to the same
 * bits. The trainer writes it. Logging never stops a run: a line that cannot be written is dropped and counted, with a
 * warning for the first and for the total. The file has only whole lines. */
#ifndef OX_ENGINE_METRICS_H
#define OX_ENGINE_METRICS_H

#include "engine/report/energy.h"
#include "engine/step/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A part of the loss, or what else a step measures, under its name in metrics.jsonl. */
enum { OX_REPORT_PARTS_MAX = 8 };
struct ox_report_part {
    const char *name; /* static; with '/' as others have it */
    double value;
    bool aside; /* in files alone, not in the log */
};

struct ox_step_report {
    uint64_t step, max_steps;
    double epoch;         /* how much of the data is taken, as the Trainer counts it: 1.5 is half of the second time */
    uint64_t epoch_steps; /* steps of an epoch, of which the last one may be partial */
    double learning_rate;
    uint64_t tokens;          /* targets that counted in this step                           */
    uint64_t tokens_seen;     /* targets that counted in the run                             */
    uint64_t batch_tokens;    /* all tokens of the step's sequences: what speed counts       */
    double wall_seconds;      /* reading data and the step; `result` has the step's own time */
    double predicted_seconds; /* predicted time of the step; NaN (none) is written as null   */
    double loss_scale;        /* factor of the loss; 0, which is not written: none           */
    struct ox_energy_used energy; /* of the step; NaN or 0, which is not written: not known */
    const char *exchange;         /* how gradients travelled inexactly; NULL, which is not written: exactly */
    struct ox_report_part parts[OX_REPORT_PARTS_MAX];
    uint32_t part_count;
    struct ox_step_result result;
};

/* What an early stop is measured by: the best value so far, which smaller improvements than the threshold do not move,
 * and how many evaluations in a row were no improvement on it. NaN: none yet. */
struct ox_early_stop {
    double best_loss;
    uint64_t stale_count;
};

/* The result of one of several evaluation sets. */
enum { OX_EVAL_REPORTS_MAX = 9 };
struct ox_eval_set_report {
    char name[32];
    double loss; /* as in struct ox_eval_report, and so are parts */
    uint64_t tokens;
    struct ox_report_part parts[OX_REPORT_PARTS_MAX];
};

struct ox_eval_report {
    uint64_t step;
    double epoch;      /* as in struct ox_step_report */
    double loss;       /* mean negative log-likelihood per token, natural logarithm; of preferences the loss per pair */
    double perplexity; /* NaN: of preferences */
    struct ox_report_part parts[OX_REPORT_PARTS_MAX];
    uint32_t part_count;
    double judged; /* what --metric-for-best-model names; written where it is not the loss */
    uint64_t tokens;
    double seconds; /* reading data and all batches, and the pending update of the last step if there was one */
    double predicted_seconds; /* predicted time of the evaluation; NaN (none) is written as null */
    bool with_update;         /* a pending update was part of it */
    struct ox_early_stop stop; /* with this evaluation; written where best_loss is a number */
    struct ox_eval_set_report sets[OX_EVAL_REPORTS_MAX]; /* sets that have names; loss and tokens above are of all */
    uint32_t set_count;
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
};

/* A checkpoint that is complete, which may be steps after its own. */
struct ox_save_report {
    uint64_t step, checkpoint_step; /* where the run is; what the checkpoint has */
    double seconds, stall_seconds;  /* from the begin of the save to its end; how long training has waited for it */
};

/* Totals of the process, for the line at the end of a run. */
struct ox_end_report {
    uint64_t step, max_steps; /* where the process ended, and where the run does */
    uint64_t retry_count;            /* steps repeated after a drive failed */
    uint64_t store_read_bytes, store_write_bytes; /* total traffic of the drives since the store was opened */
    uint32_t store_reread_count;     /* reads repeated after a bad checksum */
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]; /* bytes of a pending update finished after the last step */
    uint64_t host_peak_bytes, host_planned_bytes; /* memory of the process at its fullest, 0: not known; as planned */
    double step_flops, machine_flops; /* operations of a step; what the machine reaches in a second, NaN: not known */
    uint64_t parameters, trained_parameters;
    uint64_t save_count;
    double save_stall_seconds; /* how long training has waited for checkpoints */
    struct ox_energy_used energy; /* of all steps, as in struct ox_step_report */
};

struct ox_metrics;
/* Opens <folder>/metrics.jsonl for appending. It first cuts off an unfinished last line and the lines of steps after
 * `step`, which an earlier process wrote but never committed. Memory is bounded whatever the size of the file. */
OX_MUST enum ox_status ox_metrics_open(const char *folder, uint64_t step, struct ox_metrics **out);
/* Validates the file that ox_metrics_open would continue, without changing it; OX_OK if it is absent. */
OX_MUST enum ox_status ox_metrics_check(const char *folder);
/* The end of the file at open: the last step (0: none), and the last evaluation if it is not far before. */
struct ox_metrics_last {
    bool has_eval; /* else there is no evaluation, not even of step 0 */
    uint64_t step, eval_step;
    double eval_loss; /* what that is judged by */
    struct ox_early_stop stop; /* of that evaluation */
};
void ox_metrics_last(const struct ox_metrics *metrics, struct ox_metrics_last *out);
/* Append one line each. In a step, `seconds` is null if wall_seconds is NaN. */
void ox_metrics_step(struct ox_metrics *metrics, const struct ox_step_report *report);
void ox_metrics_eval(struct ox_metrics *metrics, const struct ox_eval_report *report);
void ox_metrics_save(struct ox_metrics *metrics, const struct ox_save_report *report);
void ox_metrics_end(struct ox_metrics *metrics, const struct ox_end_report *report);
/* Makes the lines written so far survive a power cut. A failure is a warning, once: logging never stops a run. */
void ox_metrics_sync(struct ox_metrics *metrics);
uint64_t ox_metrics_dropped(const struct ox_metrics *metrics);
void ox_metrics_close(struct ox_metrics **metrics);

#ifdef __cplusplus
}
#endif
#endif
