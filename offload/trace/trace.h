/* trace.bin: what every task of a run did and when, as data. A head tells names, plans and sizes, so that a file is
 * read without the program that wrote it; behind it lies a ring of records of one size, each with its own check, of
 * which the oldest are overwritten. docs/trace-format.md has the bytes.
 *
 * The writer never waits for the disk: what it has no room for is dropped and counted. The reader takes whatever is
 * whole and counts what is not, also while the writer is at work. */
#ifndef OX_OFFLOAD_TRACE_H
#define OX_OFFLOAD_TRACE_H

#include "base/status.h"
#include "offload/plan/plan.h"
#include "offload/sim/sim.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the head ------------------------------------------------------------------------------------- */

/* Limits of what a reader takes, above what any plan has. */
enum {
    OX_TRACE_LANES_MAX = 16, OX_TRACE_NAMES_MAX = 64, OX_TRACE_NAME_BYTES = 24, OX_TRACE_LINKS_MAX = 8,
    OX_TRACE_KINDS_MAX = 8, OX_TRACE_TIERS_MAX = 4, OX_TRACE_BUFS_MAX = 16, OX_TRACE_TITLE_BYTES = 160,
    OX_TRACE_SPANS_MAX = 16, OX_TRACE_PARTS_MAX = 4, OX_TRACE_TASKS_MAX = 1 << 22,
};

enum ox_trace_table {
    OX_TRACE_LANES, OX_TRACE_TASKS, OX_TRACE_LINKS, OX_TRACE_TRAFFIC, OX_TRACE_BUFS, OX_TRACE_TIERS,
    OX_TRACE_SPANS, OX_TRACE_PART_NAMES, OX_TRACE_TABLE_COUNT
};

/* What a stretch of the run was for. Those that have tasks do not overlap. */
enum ox_trace_span {
    OX_TRACE_SPAN_STEP,
    OX_TRACE_SPAN_EVAL,    /* of one batch, after the step of its number                              */
    OX_TRACE_SPAN_UPDATE,  /* the pending update of a step, where no step follows: before a save, say */
    OX_TRACE_SPAN_PERSIST, /* what lived in memory alone goes to the drives                           */
    OX_TRACE_SPAN_SAVE,    /* a checkpoint, which may be written while steps go on                    */
    OX_TRACE_SPAN_COUNT
};

/* What the time of a task of the optimizer was. */
enum ox_trace_part {
    OX_TRACE_PART_READS,  /* a chunk had not come from the drives yet                              */
    OX_TRACE_PART_WORK,
    OX_TRACE_PART_WRITES, /* none had been asked for: all slots held chunks that were being written */
    OX_TRACE_PART_COPIES, /* new planes went to where they live in memory                          */
    OX_TRACE_PART_COUNT
};

struct ox_trace_names {
    uint32_t count;
    char text[OX_TRACE_NAMES_MAX][OX_TRACE_NAME_BYTES];
};

/* A task of a plan, as struct ox_task has it; predicted_*: within the step, 0 where nothing was predicted. */
struct ox_trace_task {
    uint8_t kind, lane;
    bool last;
    bool carried; /* of the update of the step before */
    uint8_t traffic; /* of the bytes, mainly */
    uint32_t unit_idx, mb_idx;
    uint64_t bytes;
    uint32_t deps[OX_TRACE_LANES_MAX];
    double predicted_begin, predicted_seconds;
};

struct ox_trace_buf {
    uint8_t kind, tier;
    bool resident;
    uint32_t unit_idx, first_task_idx, last_task_idx;
    uint64_t bytes, offset;
};

enum { OX_TRACE_TRAIN, OX_TRACE_EVAL, OX_TRACE_EVAL_AFTER_STEP, OX_TRACE_PLAN_COUNT };

struct ox_trace_plan {
    uint32_t task_count, buf_count, micro_batches, unit_count;
    struct ox_trace_task *tasks;
    struct ox_trace_buf *bufs;
    uint64_t peak_bytes[OX_TRACE_TIERS_MAX];
    uint64_t traffic[OX_TRACE_LINKS_MAX][OX_TRACE_KINDS_MAX]; /* per step, as the plan's formula has it */
};

struct ox_trace_header {
    char title[OX_TRACE_TITLE_BYTES]; /* one line for people: model and step */
    uint64_t epoch_unix_ns;           /* wall time of the run's clock at 0 */
    uint64_t max_steps;               /* of the run; 0 = not known */
    uint64_t budget_bytes[OX_TRACE_TIERS_MAX];
    uint64_t rated_bytes;             /* of each drive, by its maker; 0 = not known */
    uint32_t drive_count;
    uint32_t run_ahead;               /* tasks that may be issued and not done; 0 = no limit */
    bool unified;                     /* host memory is device memory */
    struct ox_trace_names names[OX_TRACE_TABLE_COUNT];
    struct ox_trace_plan plans[OX_TRACE_PLAN_COUNT];
};

/* Copies what a trace needs of the plans; those of evaluation may be NULL. ox_trace_header_close frees it. */
OX_MUST enum ox_status ox_trace_header_open(const struct ox_plans *plans, const struct ox_plan_budget *budget,
                                          struct ox_trace_header **out);
void ox_trace_header_close(struct ox_trace_header **head);

/* Gives the tasks of training the times that `sim` found when it ran that plan last. */
void ox_trace_header_predict(struct ox_trace_header *head, const struct ox_sim *sim);
bool ox_trace_is_predicted(const struct ox_trace_header *head);

/* ---- records -------------------------------------------------------------------------------------- */

enum ox_trace_type {
    OX_TRACE_TASK = 1, /* a task: queued by the issuing thread, started and ended by its lane        */
    OX_TRACE_END,      /* of a span: when it started and ended; bytes: records dropped until then     */
    OX_TRACE_BYTES,    /* of a span: what did cross `link` as `traffic`                               */
    OX_TRACE_PLANNED,  /* of a span: what should have, where that is not what the plan's `traffic` says */
    OX_TRACE_PARTS,    /* of the task of the record before: parts_ns                                  */
    OX_TRACE_FLOW,     /* what the optimizer's chunks moved over `link` between started and ended; task_idx:
                          chunks, waited_ns: nothing was in flight                                    */
};

enum { OX_TRACE_NO_LINK = 255 };

/* What the bytes of such a task are, mainly. */
enum ox_traffic_kind ox_trace_traffic_of(enum ox_task_kind kind);

struct ox_trace_record {
    uint64_t seq;      /* set by the writer: numbered from 0, without gaps */
    uint8_t type, plan, lane, kind;
    uint8_t link, traffic;
    bool last, failed;
    uint8_t span; /* that it belongs to */
    bool idle;    /* a task that had nothing to do this time */
    uint64_t step;
    uint32_t task_idx, unit_idx, mb_idx;
    uint64_t bytes;
    uint64_t queued_ns, started_ns, ended_ns; /* of the run's clock */
    uint64_t waited_ns;        /* between queued and started, for marks of other lanes */
    double predicted_seconds;
    uint64_t parts_ns[OX_TRACE_PARTS_MAX]; /* of OX_TRACE_PARTS alone, which has none of the four times above */
};

enum { OX_TRACE_RECORD_BYTES = 96 };

void ox_trace_record_encode(const struct ox_trace_record *record, unsigned char bytes[OX_TRACE_RECORD_BYTES]);
/* False when the check does not match: torn, or never written. */
bool ox_trace_record_decode(const unsigned char bytes[OX_TRACE_RECORD_BYTES], struct ox_trace_record *out);

/* The head as bytes, a multiple of OX_TRACE_RECORD_BYTES; free() them. */
OX_MUST enum ox_status ox_trace_header_encode(const struct ox_trace_header *head, unsigned char **bytes,
                                            uint64_t *byte_count);
/* Sets the number of places of the ring in an encoded head, and with it the head's check. */
void ox_trace_header_seal(unsigned char *bytes, uint64_t byte_count, uint64_t capacity);
/* Reads `bytes`, which may be hostile; `where` names them in errors. */
OX_MUST enum ox_status ox_trace_header_decode(const char *where, const unsigned char *bytes, uint64_t byte_count,
                                            struct ox_trace_header **out, uint64_t *capacity);

/* ---- writing: offload/trace/trace_write.c ---------------------------------------------------------------- */

struct ox_trace_writer;

/* OX_E_CONFIG when a file of so many bytes cannot hold the head and a thousand records. */
OX_MUST enum ox_status ox_trace_check_room(const struct ox_trace_header *head, uint64_t bytes_max);
/* Begins the file anew; it grows to at most `bytes_max`. */
OX_MUST enum ox_status ox_trace_writer_open(const char *path, const struct ox_trace_header *head, uint64_t bytes_max,
                                            struct ox_trace_writer **out);
/* On any thread; takes some tens of nanoseconds, but when it hands a full buffer on. */
void ox_trace_writer_put(struct ox_trace_writer *writer, const struct ox_trace_record *record);
/* Hands what was put to the disk's thread; keeps it when that one is still busy. */
void ox_trace_writer_flush(struct ox_trace_writer *writer);
uint64_t ox_trace_writer_dropped(struct ox_trace_writer *writer);
/* Writes the rest and closes; what could not be written is told by one warning. Takes NULL. */
void ox_trace_writer_close(struct ox_trace_writer **writer);

/* ---- reading -------------------------------------------------------------------------------------- */

struct ox_trace {
    struct ox_trace_header *head;
    struct ox_trace_record *records; /* in the order they were put */
    uint64_t count;
    uint64_t torn;       /* places that hold something else than a whole record */
    uint64_t overwritten; /* older records that gave way */
};

/* A trace.bin, or the one in a run's folder: its newest `count_max` records, or all with 0. */
OX_MUST enum ox_status ox_trace_open(const char *path, uint64_t count_max, struct ox_trace **out);
void ox_trace_close(struct ox_trace **trace);

#ifdef __cplusplus
}
#endif
#endif
