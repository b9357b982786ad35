/* Encodes and decodes the bytes of trace.bin, and makes a header from plans. Numbers are little endian on every
 * machine. */
#include "offload/trace/trace.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/hash/hash.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const unsigned char magic[8] = {'O', 'X', 'T', 'R', 'A', 'C', 'E', '\n'};
enum { VERSION = 2 };

/* Offsets in the header's fixed front: magic, version, record size, header size, capacity, checksum. */
enum { AT_VERSION = 8, AT_RECORD_BYTES = 12, AT_HEAD_BYTES = 16, AT_CAPACITY = 24, AT_CHECK = 32, FRONT_BYTES = 40 };

/* ---- words ---------------------------------------------------------------------------------------- */

static inline void store(unsigned char *at, uint64_t value, unsigned bytes) {
    const uint64_t little = htole64(value);
    memcpy(at, &little, bytes);
}

static uint64_t fetch(const unsigned char *at, unsigned bytes) {
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++) {
        value |= (uint64_t)at[i] << (8 * i);
    }
    return value;
}

static uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double of_bits(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* One set of functions measures (`to` is NULL), encodes (`to`) and decodes (`from`), so that the three cannot
 * differ. */
struct walk {
    unsigned char *to;
    const unsigned char *from;
    uint64_t at, end;
    bool bad; /* decoding ran past the end, or met an impossible value */
};

static uint64_t word(struct walk *walk, uint64_t value, unsigned bytes) {
    if (walk->from != NULL) {
        if (walk->end - walk->at < bytes) {
            walk->bad = true;
            return 0;
        }
        value = fetch(walk->from + walk->at, bytes);
    } else if (walk->to != NULL) {
        store(walk->to + walk->at, value, bytes);
    }
    walk->at += bytes;
    return value;
}

static void word64(struct walk *walk, uint64_t *value) {
    *value = word(walk, *value, 8);
}

static void word32(struct walk *walk, uint32_t *value) {
    *value = (uint32_t)word(walk, *value, 4);
}

static void word8(struct walk *walk, uint8_t *value) {
    *value = (uint8_t)word(walk, *value, 1);
}

static void flag(struct walk *walk, bool *value) {
    *value = word(walk, *value, 1) != 0;
}

static void number(struct walk *walk, double *value) {
    *value = of_bits(word(walk, bits_of(*value), 8));
}

/* Checks only when decoding: what is written comes from this program, what is read may be anything. */
static void refuse_if(struct walk *walk, bool bad) {
    walk->bad = walk->bad || (bad && walk->from != NULL);
}

/* A count, which must not exceed `count_max`. */
static void counted(struct walk *walk, uint32_t *count, uint32_t count_max) {
    word32(walk, count);
    if (*count > count_max) {
        walk->bad = true;
        *count = 0;
    }
}

/* A string as its length and bytes. Control characters are refused, because a printed string must not steer a terminal,
 * and NUL would end it. */
static void text(struct walk *walk, char *value, uint32_t room) {
    uint32_t length = (uint32_t)strlen(value);
    counted(walk, &length, room - 1);
    for (uint32_t i = 0; i < length && !walk->bad; i++) {
        const unsigned char letter = (unsigned char)word(walk, (unsigned char)value[i], 1);
        refuse_if(walk, letter < 0x20 || letter == 0x7f);
        value[i] = (char)letter;
    }
    value[walk->bad ? 0 : length] = '\0';
}

/* ---- the header ---------------------------------------------------------------------------------- */

static void walk_names(struct walk *walk, struct ox_trace_header *head) {
    static const uint32_t counts[OX_TRACE_TABLE_COUNT] = {
        [OX_TRACE_LANES] = OX_TRACE_LANES_MAX, [OX_TRACE_TASKS] = OX_TRACE_NAMES_MAX,
        [OX_TRACE_LINKS] = OX_TRACE_LINKS_MAX, [OX_TRACE_TRAFFIC] = OX_TRACE_KINDS_MAX,
        [OX_TRACE_BUFS] = OX_TRACE_BUFS_MAX,   [OX_TRACE_TIERS] = OX_TRACE_TIERS_MAX,
        [OX_TRACE_SPANS] = OX_TRACE_SPANS_MAX, [OX_TRACE_PART_NAMES] = OX_TRACE_PARTS_MAX};
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.- ";
    for (int table = 0; table < OX_TRACE_TABLE_COUNT; table++) {
        struct ox_trace_names *const names = &head->names[table];
        counted(walk, &names->count, counts[table]);
        refuse_if(walk, names->count == 0);
        for (uint32_t i = 0; i < names->count; i++) {
            text(walk, names->text[i], OX_TRACE_NAME_BYTES);
            refuse_if(walk, names->text[i][strspn(names->text[i], letters)] != '\0');
        }
    }
}

static void walk_task(struct walk *walk, const struct ox_trace_header *head, struct ox_trace_task *task) {
    word8(walk, &task->kind);
    word8(walk, &task->lane);
    flag(walk, &task->last);
    flag(walk, &task->carried);
    word8(walk, &task->traffic);
    word32(walk, &task->unit_idx);
    word32(walk, &task->mb_idx);
    word64(walk, &task->bytes);
    for (uint32_t i = 0; i < head->names[OX_TRACE_LANES].count; i++) {
        word32(walk, &task->deps[i]);
    }
    number(walk, &task->predicted_begin);
    number(walk, &task->predicted_seconds);
    refuse_if(walk, task->kind >= head->names[OX_TRACE_TASKS].count ||
                        task->lane >= head->names[OX_TRACE_LANES].count ||
                        task->traffic >= head->names[OX_TRACE_TRAFFIC].count);
}

static void walk_buf(struct walk *walk, const struct ox_trace_header *head, struct ox_trace_buf *buf) {
    word8(walk, &buf->kind);
    word8(walk, &buf->tier);
    flag(walk, &buf->resident);
    word32(walk, &buf->unit_idx);
    word32(walk, &buf->first_task_idx);
    word32(walk, &buf->last_task_idx);
    word64(walk, &buf->bytes);
    word64(walk, &buf->offset);
    refuse_if(walk, buf->kind >= head->names[OX_TRACE_BUFS].count ||
                        buf->tier >= head->names[OX_TRACE_TIERS].count);
}

/* Allocates the tasks and buffers that the header claims, if the remaining bytes can hold that many. */
static bool make_room(struct walk *walk, struct ox_trace_plan *plan) {
    enum { TASK_BYTES_MIN = 37, BUF_BYTES = 31 };
    if (walk->from == NULL) {
        return true;
    }
    const uint64_t least = (uint64_t)plan->task_count * TASK_BYTES_MIN + (uint64_t)plan->buf_count * BUF_BYTES;
    if (walk->bad || least > walk->end - walk->at) {
        walk->bad = true;
        return false;
    }
    plan->tasks = calloc(plan->task_count + 1u, sizeof *plan->tasks);
    plan->bufs = calloc(plan->buf_count + 1u, sizeof *plan->bufs);
    return plan->tasks != NULL && plan->bufs != NULL;
}

/* False if there is no memory. */
static bool walk_plan(struct walk *walk, const struct ox_trace_header *head, struct ox_trace_plan *plan) {
    counted(walk, &plan->task_count, OX_TRACE_TASKS_MAX);
    counted(walk, &plan->buf_count, OX_TRACE_TASKS_MAX);
    word32(walk, &plan->micro_batches);
    word32(walk, &plan->unit_count);
    for (uint32_t i = 0; i < head->names[OX_TRACE_TIERS].count; i++) {
        word64(walk, &plan->peak_bytes[i]);
    }
    for (uint32_t link = 0; link < head->names[OX_TRACE_LINKS].count; link++) {
        for (uint32_t kind = 0; kind < head->names[OX_TRACE_TRAFFIC].count; kind++) {
            word64(walk, &plan->traffic[link][kind]);
        }
    }
    if (!make_room(walk, plan)) {
        return walk->bad;
    }
    for (uint32_t i = 0; i < plan->task_count && !walk->bad; i++) {
        walk_task(walk, head, &plan->tasks[i]);
        for (uint32_t lane = 0; lane < OX_TRACE_LANES_MAX; lane++) {
            refuse_if(walk, plan->tasks[i].deps[lane] > i);
        }
    }
    for (uint32_t i = 0; i < plan->buf_count && !walk->bad; i++) {
        walk_buf(walk, head, &plan->bufs[i]);
        refuse_if(walk, plan->bufs[i].first_task_idx >= plan->task_count ||
                            plan->bufs[i].last_task_idx >= plan->task_count);
    }
    return true;
}

static bool walk_head(struct walk *walk, struct ox_trace_header *head) {
    walk->at = FRONT_BYTES;
    word64(walk, &head->epoch_unix_ns);
    word64(walk, &head->max_steps);
    word64(walk, &head->rated_bytes);
    word32(walk, &head->drive_count);
    word32(walk, &head->run_ahead);
    flag(walk, &head->unified);
    text(walk, head->title, OX_TRACE_TITLE_BYTES);
    walk_names(walk, head);
    for (uint32_t i = 0; i < head->names[OX_TRACE_TIERS].count; i++) {
        word64(walk, &head->budget_bytes[i]);
    }
    for (int i = 0; i < OX_TRACE_PLAN_COUNT && !walk->bad; i++) {
        if (!walk_plan(walk, head, &head->plans[i])) {
            return false;
        }
    }
    return true;
}

static uint64_t head_check(const unsigned char *bytes, uint64_t byte_count) {
    return ox_hash64(bytes + FRONT_BYTES, byte_count - FRONT_BYTES, ox_hash64(bytes, AT_CHECK, VERSION));
}

enum ox_status ox_trace_header_encode(const struct ox_trace_header *head, unsigned char **bytes, uint64_t *byte_count) {
    struct ox_trace_header *const same = (struct ox_trace_header *)(uintptr_t)head; /* only decoding changes it */
    struct walk walk = {0};
    OX_ASSERT(walk_head(&walk, same));
    *byte_count = ox_align_up(walk.at, OX_TRACE_RECORD_BYTES);
    *bytes = calloc(1, *byte_count);
    if (*bytes == NULL) {
        return ox_fail(OX_E_NOMEM, "trace: no memory for its head");
    }
    walk = (struct walk){.to = *bytes};
    OX_ASSERT(walk_head(&walk, same));
    OX_ASSERT(walk.at <= *byte_count && !walk.bad);
    memcpy(*bytes, magic, sizeof magic);
    store(*bytes + AT_VERSION, VERSION, 4);
    store(*bytes + AT_RECORD_BYTES, OX_TRACE_RECORD_BYTES, 4);
    store(*bytes + AT_HEAD_BYTES, *byte_count, 8);
    return OX_OK;
}

void ox_trace_header_seal(unsigned char *bytes, uint64_t byte_count, uint64_t capacity) {
    store(bytes + AT_CAPACITY, capacity, 8);
    store(bytes + AT_CHECK, head_check(bytes, byte_count), 8);
}

enum ox_status ox_trace_header_decode(const char *where, const unsigned char *bytes, uint64_t byte_count,
                                    struct ox_trace_header **out, uint64_t *capacity) {
    *out = NULL;
    if (byte_count < FRONT_BYTES || memcmp(bytes, magic, sizeof magic) != 0) {
        return ox_fail(OX_E_CORRUPT, "%s: is not a trace", where);
    }
    const uint32_t version = (uint32_t)fetch(bytes + AT_VERSION, 4);
    if (version != VERSION || fetch(bytes + AT_RECORD_BYTES, 4) != OX_TRACE_RECORD_BYTES) {
        return ox_fail(OX_E_CORRUPT, "%s: is a trace of version %u, this program reads %d", where, version, VERSION);
    }
    const uint64_t head_bytes = fetch(bytes + AT_HEAD_BYTES, 8);
    *capacity = fetch(bytes + AT_CAPACITY, 8);
    if (head_bytes < FRONT_BYTES || head_bytes > byte_count || *capacity == 0 ||
        fetch(bytes + AT_CHECK, 8) != head_check(bytes, head_bytes)) {
        return ox_fail(OX_E_CORRUPT, "%s: the head of the trace is damaged or unfinished", where);
    }
    struct ox_trace_header *head = calloc(1, sizeof *head);
    struct walk walk = {.from = bytes, .end = head_bytes};
    if (head == NULL || !walk_head(&walk, head)) {
        ox_trace_header_close(&head);
        return ox_fail(OX_E_NOMEM, "%s: no memory to read it", where);
    }
    if (walk.bad) {
        ox_trace_header_close(&head);
        return ox_fail(OX_E_CORRUPT, "%s: the head of the trace contradicts itself", where);
    }
    *out = head;
    return OX_OK;
}

/* ---- records -------------------------------------------------------------------------------------- */

/* Returns the nth time of a record, or the nth part where a record has parts. */
static uint64_t *time_of(struct ox_trace_record *record, unsigned nth) {
    uint64_t *const times[OX_TRACE_PARTS_MAX] = {&record->queued_ns, &record->started_ns, &record->ended_ns,
                                                 &record->waited_ns};
    return record->type == OX_TRACE_PARTS ? &record->parts_ns[nth] : times[nth];
}

static void walk_record(struct walk *walk, struct ox_trace_record *record) {
    walk->at = 8; /* after the checksum */
    word64(walk, &record->seq);
    word8(walk, &record->type);
    word8(walk, &record->plan);
    word8(walk, &record->lane);
    word8(walk, &record->kind);
    word8(walk, &record->link);
    word8(walk, &record->traffic);
    flag(walk, &record->last);
    flag(walk, &record->failed);
    word64(walk, &record->step);
    word32(walk, &record->task_idx);
    word32(walk, &record->unit_idx);
    word32(walk, &record->mb_idx);
    word8(walk, &record->span);
    flag(walk, &record->idle);
    word(walk, 0, 2);
    word64(walk, &record->bytes);
    for (unsigned i = 0; i < OX_TRACE_PARTS_MAX; i++) {
        word64(walk, time_of(record, i));
    }
    number(walk, &record->predicted_seconds);
    OX_ASSERT(walk->at == OX_TRACE_RECORD_BYTES);
}

static uint64_t record_check(const unsigned char *bytes) {
    return ox_hash64(bytes + 8, OX_TRACE_RECORD_BYTES - 8, VERSION);
}

/* Encodes what walk_record() does, but without its branches, because this runs for every task of a run. */
void ox_trace_record_encode(const struct ox_trace_record *record, unsigned char bytes[OX_TRACE_RECORD_BYTES]) {
    const uint64_t what = (uint64_t)record->type | (uint64_t)record->plan << 8 | (uint64_t)record->lane << 16 |
                          (uint64_t)record->kind << 24 | (uint64_t)record->link << 32 |
                          (uint64_t)record->traffic << 40 | (uint64_t)record->last << 48 |
                          (uint64_t)record->failed << 56;
    const bool parts = record->type == OX_TRACE_PARTS;
    const uint64_t words[] = {
        record->seq, what, record->step, (uint64_t)record->task_idx | (uint64_t)record->unit_idx << 32,
        (uint64_t)record->mb_idx | (uint64_t)record->span << 32 | (uint64_t)record->idle << 40, record->bytes,
        parts ? record->parts_ns[0] : record->queued_ns, parts ? record->parts_ns[1] : record->started_ns,
        parts ? record->parts_ns[2] : record->ended_ns, parts ? record->parts_ns[3] : record->waited_ns,
        bits_of(record->predicted_seconds)};
    _Static_assert(sizeof words + 8 == OX_TRACE_RECORD_BYTES, "a check and its words are a record");
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        store(bytes + 8 + 8 * (size_t)i, words[i], 8);
    }
    store(bytes, record_check(bytes), 8);
}

bool ox_trace_record_decode(const unsigned char bytes[OX_TRACE_RECORD_BYTES], struct ox_trace_record *out) {
    struct walk walk = {.from = bytes, .end = OX_TRACE_RECORD_BYTES};
    *out = (struct ox_trace_record){0};
    if (fetch(bytes, 8) != record_check(bytes)) {
        return false;
    }
    walk_record(&walk, out);
    return true;
}

/* ---- from plans ----------------------------------------------------------------------------------- */

/* Copies a plan, which may be NULL; false if there is no memory. */
static bool take_plan(const struct ox_plan *plan, struct ox_trace_plan *out) {
    if (plan == NULL) {
        return true;
    }
    out->tasks = calloc(plan->task_count + 1u, sizeof *out->tasks);
    out->bufs = calloc(plan->buf_count + 1u, sizeof *out->bufs);
    if (out->tasks == NULL || out->bufs == NULL) {
        return false;
    }
    out->task_count = plan->task_count;
    out->buf_count = plan->buf_count;
    out->micro_batches = plan->micro_batches;
    out->unit_count = plan->unit_count;
    memcpy(out->peak_bytes, plan->peak_bytes, sizeof plan->peak_bytes);
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        memcpy(out->traffic[link], plan->traffic[link], sizeof plan->traffic[link]);
    }
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const struct ox_task *const task = &plan->tasks[i];
        out->tasks[i] = (struct ox_trace_task){
            .kind = (uint8_t)ox_task_word(task), .lane = task->lane, .last = task->last, .carried = task->carried,
            .unit_idx = ox_task_number(task), .mb_idx = task->mb_idx, .bytes = task->bytes,
            .traffic = (uint8_t)ox_task_traffic(task)};
        memcpy(out->tasks[i].deps, task->deps, sizeof task->deps);
    }
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        const struct ox_buf *const buf = &plan->bufs[i];
        out->bufs[i] = (struct ox_trace_buf){
            .kind = buf->kind, .tier = buf->tier, .resident = buf->resident, .unit_idx = ox_buf_number(buf),
            .first_task_idx = (uint32_t)ox_min_u64(buf->first_task_idx, plan->task_count - 1),
            .last_task_idx = (uint32_t)ox_min_u64(buf->last_task_idx, plan->task_count - 1),
            .bytes = buf->bytes, .offset = buf->offset};
    }
    return true;
}

static void add_name(struct ox_trace_names *names, const char *name) {
    OX_ASSERT(names->count < OX_TRACE_NAMES_MAX && strlen(name) < OX_TRACE_NAME_BYTES);
    snprintf(names->text[names->count++], OX_TRACE_NAME_BYTES, "%s", name);
}

static void take_names(struct ox_trace_names *names) {
    static const char *const spans[OX_TRACE_SPAN_COUNT] = {
        [OX_TRACE_SPAN_STEP] = "step",       [OX_TRACE_SPAN_EVAL] = "evaluation", [OX_TRACE_SPAN_UPDATE] = "update",
        [OX_TRACE_SPAN_PERSIST] = "persist", [OX_TRACE_SPAN_SAVE] = "save"};
    static const char *const parts[OX_TRACE_PART_COUNT] = {
        [OX_TRACE_PART_READS] = "drive reads",   [OX_TRACE_PART_WORK] = "work",
        [OX_TRACE_PART_WRITES] = "drive writes", [OX_TRACE_PART_COPIES] = "copies"};
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        add_name(&names[OX_TRACE_LANES], ox_lane_name((enum ox_lane_id)i));
    }
    for (uint32_t i = 0; i < OX_TASK_WORD_COUNT; i++) {
        add_name(&names[OX_TRACE_TASKS], ox_task_word_name(i));
    }
    for (int i = 0; i < OX_LINK_COUNT; i++) {
        add_name(&names[OX_TRACE_LINKS], ox_link_name((enum ox_link)i));
    }
    for (int i = 0; i < OX_TRAFFIC_KIND_COUNT; i++) {
        add_name(&names[OX_TRACE_TRAFFIC], ox_traffic_name((enum ox_traffic_kind)i));
    }
    for (int i = 0; i < OX_BUF_KIND_COUNT; i++) {
        add_name(&names[OX_TRACE_BUFS], ox_buf_name((enum ox_buf_kind)i));
    }
    for (int i = 0; i < OX_TIER_COUNT; i++) {
        add_name(&names[OX_TRACE_TIERS], ox_tier_name((enum ox_tier)i));
    }
    for (int i = 0; i < OX_TRACE_SPAN_COUNT; i++) {
        add_name(&names[OX_TRACE_SPANS], spans[i]);
    }
    for (int i = 0; i < OX_TRACE_PART_COUNT; i++) {
        add_name(&names[OX_TRACE_PART_NAMES], parts[i]);
    }
}

enum ox_status ox_trace_header_open(const struct ox_plans *plans, const struct ox_plan_budget *budget,
                                  struct ox_trace_header **out) {
    _Static_assert((int)OX_LANE_COUNT <= (int)OX_TRACE_LANES_MAX && (int)OX_LINK_COUNT <= (int)OX_TRACE_LINKS_MAX &&
                   (int)OX_TRAFFIC_KIND_COUNT <= (int)OX_TRACE_KINDS_MAX &&
                   (int)OX_TIER_COUNT <= (int)OX_TRACE_TIERS_MAX && (int)OX_BUF_KIND_COUNT <= (int)OX_TRACE_BUFS_MAX &&
                   (int)OX_TASK_WORD_COUNT <= (int)OX_TRACE_NAMES_MAX &&
                   (int)OX_TRACE_SPAN_COUNT <= (int)OX_TRACE_SPANS_MAX &&
                   (int)OX_TRACE_PART_COUNT <= (int)OX_TRACE_PARTS_MAX,
                   "a plan fits a trace");
    *out = NULL;
    struct ox_trace_header *head = calloc(1, sizeof *head);
    if (head == NULL || !take_plan(plans->train, &head->plans[OX_TRACE_TRAIN]) ||
        !take_plan(plans->eval, &head->plans[OX_TRACE_EVAL]) ||
        !take_plan(plans->eval_after_step, &head->plans[OX_TRACE_EVAL_AFTER_STEP])) {
        ox_trace_header_close(&head);
        return ox_fail(OX_E_NOMEM, "trace: no memory for its plans");
    }
    take_names(head->names);
    head->unified = budget->unified;
    head->budget_bytes[OX_TIER_DEVICE] = budget->device_bytes;
    head->budget_bytes[OX_TIER_HOST] = budget->host_bytes;
    head->budget_bytes[OX_TIER_NVME] = budget->nvme_bytes;
    head->drive_count = budget->drive_count;
    *out = head;
    return OX_OK;
}

void ox_trace_header_predict(struct ox_trace_header *head, const struct ox_sim *sim) {
    struct ox_trace_plan *const plan = &head->plans[OX_TRACE_TRAIN];
    for (uint32_t i = 0; i < plan->task_count; i++) {
        plan->tasks[i].predicted_begin = ox_sim_begin(sim, i);
        plan->tasks[i].predicted_seconds = ox_sim_end(sim, i) - ox_sim_begin(sim, i);
    }
}

bool ox_trace_is_predicted(const struct ox_trace_header *head) {
    const struct ox_trace_plan *const plan = &head->plans[OX_TRACE_TRAIN];
    for (uint32_t i = 0; i < plan->task_count; i++) {
        if (plan->tasks[i].predicted_seconds > 0) {
            return true;
        }
    }
    return false;
}

void ox_trace_header_close(struct ox_trace_header **head_ptr) {
    struct ox_trace_header *const head = *head_ptr;
    if (head == NULL) {
        return;
    }
    for (int i = 0; i < OX_TRACE_PLAN_COUNT; i++) {
        free(head->plans[i].tasks);
        free(head->plans[i].bufs);
    }
    free(head);
    *head_ptr = NULL;
}
