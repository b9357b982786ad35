/* trace.bin: what every task of a run did and when, as data. A header holds names, plans and sizes, so that a file can
 * be read without the program that wrote it. A ring of records of equal size follows, each with its own checksum; the
 * oldest records are overwritten. docs/trace-format.md lists the bytes.
 *
 * The writer, which engine/step calls, never waits for the disk: records for which it has no buffer are dropped and
 * counted. The reader, which tools/command calls, takes every whole record and counts the others, also while a run is
 * writing. */
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

/* ---- the header ------------------------------------------------------------------------------------ */

/* Limits of what a reader accepts, above those of any plan. */
enum {
    OX_TRACE_LANES_MAX = 16, OX_TRACE_NAMES_MAX = 64, OX_TRACE_NAME_BYTES = 24, OX_TRACE_LINKS_MAX = 8,
    OX_TRACE_KINDS_MAX = 8, OX_TRACE_TIERS_MAX = 4, OX_TRACE_BUFS_MAX = 16, OX_TRACE_TITLE_BYTES = 160,
    OX_TRACE_SPANS_MAX = 16, OX_TRACE_PARTS_MAX = 4, OX_TRACE_TASKS_MAX = 1 << 22,
};

enum ox_trace_table {
    OX_TRACE_LANES, OX_TRACE_TASKS, OX_TRACE_LINKS, OX_TRACE_TRAFFIC, OX_TRACE_BUFS, OX_TRACE_TIERS,
    OX_TRACE_SPANS, OX_TRACE_PART_NAMES, OX_TRACE_TABLE_COUNT
};

/* What a span of the run was for. Spans that have tasks do not overlap. */
enum ox_trace_span {
    OX_TRACE_SPAN_STEP,
    OX_TRACE_SPAN_EVAL,    /* evaluates one batch, after the step of its number                       */
    OX_TRACE_SPAN_UPDATE,  /* writes the pending update of a step without a next step, as before a save */
    OX_TRACE_SPAN_PERSIST, /* writes to drives the state that lived in memory only                    */
    OX_TRACE_SPAN_SAVE,    /* writes a checkpoint, possibly while steps go on                         */
    OX_TRACE_SPAN_COUNT
};

/* What an optimizer task spent its time on. */
enum ox_trace_part {
    OX_TRACE_PART_READS,  /* waited for a chunk from the drives */
    OX_TRACE_PART_WORK,
    OX_TRACE_PART_WRITES, /* waited for a slot: all held chunks that were being written */
    OX_TRACE_PART_COPIES, /* copied new planes to their homes in memory */
    OX_TRACE_PART_COUNT
};

struct ox_trace_names {
    uint32_t count;
    char text[OX_TRACE_NAMES_MAX][OX_TRACE_NAME_BYTES];
};

/* A task of a plan, with the fields of struct ox_task; `kind` is ox_task_word(). predicted_*: seconds from the start of
 * the step, 0 if nothing was predicted. */
struct ox_trace_task {
    uint8_t kind, lane;
    bool last;
    bool carried; /* belongs to the update of the previous step */
    uint8_t traffic; /* enum ox_traffic_kind of most of the bytes */
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
    uint64_t traffic[OX_TRACE_LINKS_MAX][OX_TRACE_KINDS_MAX]; /* bytes per step, by the plan's formula */
};

struct ox_trace_header {
    char title[OX_TRACE_TITLE_BYTES]; /* one line for people: model and step; then "; on " and the machine */
    uint64_t epoch_unix_ns;           /* wall-clock time at which the run's clock was 0 */
    uint64_t max_steps;               /* last step of the run; 0 = not known */
    uint64_t budget_bytes[OX_TRACE_TIERS_MAX];
    uint64_t rated_bytes;             /* endurance of each drive, by its maker; 0 = not known */
    uint32_t drive_count;
    uint32_t run_ahead;               /* most tasks issued and not done; 0 = no limit */
    bool unified;                     /* host memory is device memory */
    struct ox_trace_names names[OX_TRACE_TABLE_COUNT];
    struct ox_trace_plan plans[OX_TRACE_PLAN_COUNT];
};

/* Copies what a trace needs from the plans; the evaluation plans may be NULL. The caller frees the header with
 * ox_trace_header_close(), which takes NULL. */
OX_MUST enum ox_status ox_trace_header_open(const struct ox_plans *plans, const struct ox_plan_budget *budget,
                                          struct ox_trace_header **out);
void ox_trace_header_close(struct ox_trace_header **head);

/* Sets the predicted times of the training plan's tasks from the last run of `sim`, which must have been of that
 * plan. */
void ox_trace_header_predict(struct ox_trace_header *head, const struct ox_sim *sim);
bool ox_trace_is_predicted(const struct ox_trace_header *head);

/* ---- records -------------------------------------------------------------------------------------- */

enum ox_trace_type {
    OX_TRACE_TASK = 1, /* a task: queued by the issuing thread, started and ended by its lane        */
    OX_TRACE_END,      /* a span: when it started and ended; bytes: records dropped until then        */
    OX_TRACE_BYTES,    /* the bytes that crossed `link` as `traffic` in a span                        */
    OX_TRACE_PLANNED,  /* the bytes that should have crossed it, where the plan's `traffic` differs   */
    OX_TRACE_PARTS,    /* parts_ns of the previous record's task                                      */
    /* What the optimizer's chunks moved over `link` between started and ended; task_idx: number of chunks, waited_ns:
     * time with nothing in flight. */
    OX_TRACE_FLOW,
};

enum { OX_TRACE_NO_LINK = 255 };

struct ox_trace_record {
    uint64_t seq;      /* set by the writer, which counts from 0 without gaps */
    uint8_t type, plan, lane, kind;
    uint8_t link, traffic;
    bool last, failed;
    uint8_t span; /* enum ox_trace_span that the record belongs to */
    bool idle;    /* the task had nothing to do this time */
    uint64_t step;
    uint32_t task_idx, unit_idx, mb_idx;
    uint64_t bytes;
    uint64_t queued_ns, started_ns, ended_ns; /* by the run's clock */
    uint64_t waited_ns;        /* time between queued and started spent on marks of other lanes */
    double predicted_seconds;
    uint64_t parts_ns[OX_TRACE_PARTS_MAX]; /* only in OX_TRACE_PARTS, in place of the four times above */
};

enum { OX_TRACE_RECORD_BYTES = 96 };

void ox_trace_record_encode(const struct ox_trace_record *record, unsigned char bytes[OX_TRACE_RECORD_BYTES]);
/* False if the checksum does not match: the record is torn or was never written. */
bool ox_trace_record_decode(const unsigned char bytes[OX_TRACE_RECORD_BYTES], struct ox_trace_record *out);

/* Encodes the header; *byte_count is a multiple of OX_TRACE_RECORD_BYTES. The caller frees *bytes with free(). */
OX_MUST enum ox_status ox_trace_header_encode(const struct ox_trace_header *head, unsigned char **bytes,
                                            uint64_t *byte_count);
/* Sets the ring's capacity, in records, in an encoded header, and then the header's checksum. */
void ox_trace_header_seal(unsigned char *bytes, uint64_t byte_count, uint64_t capacity);
/* Decodes a header from untrusted bytes; `where` names them in errors. OX_E_CORRUPT if they are not a sound header. The
 * caller closes *out. */
OX_MUST enum ox_status ox_trace_header_decode(const char *where, const unsigned char *bytes, uint64_t byte_count,
                                            struct ox_trace_header **out, uint64_t *capacity);

/* ---- writing: offload/trace/trace_write.c ---------------------------------------------------------------- */

struct ox_trace_writer;

/* OX_E_CONFIG if a file of `bytes_max` bytes cannot hold the header and a thousand records. */
OX_MUST enum ox_status ox_trace_check_room(const struct ox_trace_header *head, uint64_t bytes_max);
/* Truncates or creates the file, which grows to at most `bytes_max` bytes. */
OX_MUST enum ox_status ox_trace_writer_open(const char *path, const struct ox_trace_header *head, uint64_t bytes_max,
                                            struct ox_trace_writer **out);
/* May be called on any thread; takes some tens of nanoseconds, more if it submits a full buffer for writing. */
void ox_trace_writer_put(struct ox_trace_writer *writer, const struct ox_trace_record *record);
/* Submits the buffered records for writing, or keeps them if the writer's lane is still busy. */
void ox_trace_writer_flush(struct ox_trace_writer *writer);
uint64_t ox_trace_writer_dropped(struct ox_trace_writer *writer);
/* Writes the rest and closes; one warning counts what could not be written. Takes NULL. */
void ox_trace_writer_close(struct ox_trace_writer **writer);

/* ---- reading -------------------------------------------------------------------------------------- */

struct ox_trace {
    struct ox_trace_header *head;
    struct ox_trace_record *records; /* in the order in which they were put */
    uint64_t count;
    uint64_t torn;       /* places of the ring that hold no whole record */
    uint64_t overwritten; /* older records that newer ones replaced */
};

/* Opens a trace.bin, or the one in a run's folder, and reads its newest `count_max` records, or all if that is 0. The
 * caller closes it with ox_trace_close(), which takes NULL. */
OX_MUST enum ox_status ox_trace_open(const char *path, uint64_t count_max, struct ox_trace **out);
void ox_trace_close(struct ox_trace **trace);

#ifdef __cplusplus
}
#endif
#endif
