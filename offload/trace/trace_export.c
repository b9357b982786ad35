#include "offload/trace/trace_export.h"

#include "base/protobuf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A task's label, such as "forward unit 3, batch 1"; `text` has LABEL_BYTES. */
enum { LABEL_BYTES = 80 };
static const char *label_of(const struct ox_trace_header *head, const struct ox_trace_record *record, char *text) {
    int used = snprintf(text, LABEL_BYTES, "%s", head->names[OX_TRACE_TASKS].text[record->kind]);
    if (record->unit_idx != OX_NONE) {
        used += snprintf(text + used, LABEL_BYTES - (size_t)used, " unit %" PRIu32, record->unit_idx);
    }
    if (record->mb_idx != OX_NONE) {
        snprintf(text + used, LABEL_BYTES - (size_t)used, ", batch %" PRIu32, record->mb_idx);
    }
    return text;
}

static const char *plan_name(uint8_t plan) {
    return plan == OX_TRACE_TRAIN ? "train" : "eval";
}

/* A span's label, such as "step 7" or "evaluation after step 7". */
static const char *span_label(const struct ox_trace_header *head, const struct ox_trace_record *record, char *text) {
    const char *const name = head->names[OX_TRACE_SPANS].text[record->span];
    snprintf(text, LABEL_BYTES, record->span == OX_TRACE_SPAN_STEP ? "%s %" PRIu64 : "%s after step %" PRIu64,
             name, record->step);
    return text;
}

/* The name of the track that shows what the optimizer's chunks moved over a link. */
static const char *flow_track(const struct ox_trace_header *head, uint32_t link, char *text) {
    snprintf(text, LABEL_BYTES, "optimizer's %s", head->names[OX_TRACE_LINKS].text[link]);
    return text;
}

/* The parts record of a task, which directly follows the task's record; NULL if there is none. */
static const struct ox_trace_record *parts_of(const struct ox_trace *trace, uint64_t idx) {
    const struct ox_trace_record *const next = &trace->records[idx + 1];
    return idx + 1 < trace->count && next->type == OX_TRACE_PARTS && next->task_idx == trace->records[idx].task_idx
               ? next : NULL;
}

static enum ox_status finish(FILE *out) {
    return ferror(out) ? ox_fail(OX_E_IO, "trace: the file could not be written") : OX_OK;
}

/* ---- Chrome ---------------------------------------------------------------------------------------- */

enum { PID = 1, TID_SPANS = 1000, TID_FLOWS = 2000 };

/* Names of a head hold no control characters; quotes and backslashes are escaped. */
static void print_string(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            fputc('\\', out);
        }
        fputc(*text, out);
    }
    fputc('"', out);
}

static void print_thread(FILE *out, uint32_t tid, const char *name, uint32_t order) {
    fprintf(out, "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%u,\"args\":{\"name\":", PID, tid);
    print_string(out, name);
    fprintf(out, "}},\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%d,\"tid\":%u,"
            "\"args\":{\"sort_index\":%u}},\n", PID, tid, order);
}

static void print_slice(FILE *out, unsigned tid, const struct ox_trace_record *record, const char *name) {
    fprintf(out, "{\"ph\":\"X\",\"pid\":%d,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"%s\",\"name\":", PID, tid,
            (double)record->started_ns * 1e-3, (double)(record->ended_ns - record->started_ns) * 1e-3,
            plan_name(record->plan));
    print_string(out, name);
}

static void print_task(FILE *out, const struct ox_trace *trace, uint64_t idx) {
    char label[LABEL_BYTES];
    const struct ox_trace_record *const record = &trace->records[idx], *const parts = parts_of(trace, idx);
    const struct ox_trace_names *const names = &trace->head->names[OX_TRACE_PART_NAMES];
    print_slice(out, record->lane, record, label_of(trace->head, record, label));
    fprintf(out, ",\"args\":{\"step\":%" PRIu64 ",\"task\":%" PRIu32 ",\"bytes\":%" PRIu64 ",\"queued_us\":%.3f,"
            "\"waited_us\":%.3f,\"predicted_us\":%.3f", record->step, record->task_idx, record->bytes,
            (double)record->queued_ns * 1e-3, (double)record->waited_ns * 1e-3, record->predicted_seconds * 1e6);
    for (uint32_t i = 0; i < names->count && parts != NULL; i++) {
        fprintf(out, ",\"%s_us\":%.3f", names->text[i], (double)parts->parts_ns[i] * 1e-3);
    }
    fprintf(out, "}},\n");
}

static void print_record(FILE *out, const struct ox_trace *trace, uint64_t idx) {
    char label[LABEL_BYTES];
    const struct ox_trace_record *const record = &trace->records[idx];
    switch ((enum ox_trace_type)record->type) {
    case OX_TRACE_TASK:
        print_task(out, trace, idx);
        break;
    case OX_TRACE_END:
        print_slice(out, (unsigned)TID_SPANS + record->span, record, span_label(trace->head, record, label));
        fprintf(out, ",\"args\":{\"dropped\":%" PRIu64 "}},\n", record->bytes);
        break;
    case OX_TRACE_FLOW:
        snprintf(label, sizeof label, "unit %" PRIu32, record->unit_idx);
        print_slice(out, (unsigned)TID_FLOWS + record->link, record, label);
        fprintf(out, ",\"args\":{\"step\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"chunks\":%" PRIu32
                ",\"idle_us\":%.3f}},\n",
                record->step, record->bytes, record->task_idx, (double)record->waited_ns * 1e-3);
        break;
    default:
        break;
    }
}

static enum ox_status print_memory(FILE *out, const struct ox_trace_header *head, const struct ox_trace_step *step) {
    const struct ox_trace_names *const tiers = &head->names[OX_TRACE_TIERS], *const bufs = &head->names[OX_TRACE_BUFS];
    for (uint32_t tier = 0; tier < tiers->count; tier++) {
        struct ox_trace_moment *moments = NULL;
        uint32_t count = 0;
        const enum ox_status status = ox_trace_memory(head, step, tier, &moments, &count);
        if (status != OX_OK) {
            return status;
        }
        for (uint32_t i = 0; i < count && head->plans[step->plan].peak_bytes[tier] > 0; i++) {
            fprintf(out, "{\"ph\":\"C\",\"pid\":%d,\"ts\":%.3f,\"name\":\"%s bytes\",\"args\":{", PID,
                    (double)(step->begin_ns + moments[i].ns) * 1e-3, tiers->text[tier]);
            for (uint32_t kind = 0; kind < bufs->count; kind++) {
                fprintf(out, "%s\"%s\":%" PRIu64, kind > 0 ? "," : "", bufs->text[kind], moments[i].bytes[kind]);
            }
            fprintf(out, "}},\n");
        }
        free(moments);
    }
    return OX_OK;
}

static void print_threads(FILE *out, const struct ox_trace_header *head) {
    const struct ox_trace_names *const lanes = &head->names[OX_TRACE_LANES];
    const struct ox_trace_names *const spans = &head->names[OX_TRACE_SPANS];
    char name[LABEL_BYTES];
    for (uint32_t i = 0; i < spans->count; i++) {
        print_thread(out, (unsigned)TID_SPANS + i, spans->text[i], i);
    }
    for (uint32_t i = 0; i < lanes->count; i++) {
        print_thread(out, i, lanes->text[i], spans->count + i);
    }
    for (uint32_t i = 0; i < head->names[OX_TRACE_LINKS].count; i++) {
        print_thread(out, (unsigned)TID_FLOWS + i, flow_track(head, i, name), spans->count + lanes->count + i);
    }
}

enum ox_status ox_trace_write_chrome(const struct ox_trace *trace, const struct ox_trace_steps *steps, FILE *out) {
    fprintf(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    print_threads(out, trace->head);
    for (uint64_t i = 0; i < trace->count; i++) {
        print_record(out, trace, i);
    }
    for (uint32_t i = 0; i < steps->count; i++) {
        const enum ox_status status = print_memory(out, trace->head, &steps->steps[i]);
        if (status != OX_OK) {
            return status;
        }
    }
    fprintf(out, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":", PID);
    print_string(out, trace->head->title);
    fprintf(out, "}}\n]}\n");
    return finish(out);
}

/* ---- Perfetto -------------------------------------------------------------------------------------- */

/* Field numbers and values of perfetto.protos. */
enum { TRACE_PACKET = 1, PACKET_TIMESTAMP = 8, PACKET_SEQUENCE = 10, PACKET_EVENT = 11, PACKET_DESCRIPTOR = 60 };
enum { TRACK_UUID = 1, TRACK_NAME = 2, TRACK_PROCESS = 3, TRACK_PARENT = 5, TRACK_COUNTER = 8 };
enum { PROCESS_PID = 1, PROCESS_NAME = 6, COUNTER_UNIT = 3, UNIT_BYTES = 3 };
enum { EVENT_ANNOTATION = 4, EVENT_TYPE = 9, EVENT_TRACK = 11, EVENT_CATEGORY = 22, EVENT_NAME = 23,
       EVENT_COUNTER = 30 };
enum { TYPE_BEGIN = 1, TYPE_END = 2, TYPE_COUNTER = 4 };
enum { NOTE_UINT = 3, NOTE_DOUBLE = 5, NOTE_NAME = 10 };
enum { UUID_PROCESS = 1, UUID_LANES = 16, UUID_PREDICTED = 64, UUID_MEMORY = 128, UUID_SPANS = 160, UUID_FLOWS = 192 };

struct perfetto {
    FILE *out;
    struct ox_protobuf trace, packet, inner, note; /* kept between events to reuse their memory */
    bool failed;
};

static void write_packet(struct perfetto *p) {
    ox_protobuf_varint(&p->packet, PACKET_SEQUENCE, 1);
    ox_protobuf_message(&p->trace, TRACE_PACKET, &p->packet);
    p->failed = p->failed || p->trace.failed ||
                fwrite(p->trace.data, 1, p->trace.bytes, p->out) != p->trace.bytes;
    ox_protobuf_clear(&p->trace);
}

static void describe(struct perfetto *p, uint64_t uuid, const char *name, bool counter) {
    ox_protobuf_varint(&p->inner, TRACK_UUID, uuid);
    if (uuid == UUID_PROCESS) {
        ox_protobuf_varint(&p->note, PROCESS_PID, PID);
        ox_protobuf_text(&p->note, PROCESS_NAME, name);
        ox_protobuf_message(&p->inner, TRACK_PROCESS, &p->note);
    } else {
        ox_protobuf_text(&p->inner, TRACK_NAME, name);
        ox_protobuf_varint(&p->inner, TRACK_PARENT, UUID_PROCESS);
    }
    if (counter) {
        ox_protobuf_varint(&p->note, COUNTER_UNIT, UNIT_BYTES);
        ox_protobuf_message(&p->inner, TRACK_COUNTER, &p->note);
    }
    ox_protobuf_message(&p->packet, PACKET_DESCRIPTOR, &p->inner);
    write_packet(p);
}

static void event(struct perfetto *p, uint64_t ns, uint64_t track, unsigned type) {
    ox_protobuf_varint(&p->packet, PACKET_TIMESTAMP, ns);
    ox_protobuf_varint(&p->inner, EVENT_TYPE, type);
    ox_protobuf_varint(&p->inner, EVENT_TRACK, track);
}

static void send_event(struct perfetto *p) {
    ox_protobuf_message(&p->packet, PACKET_EVENT, &p->inner);
    write_packet(p);
}

static void note(struct perfetto *p, const char *name, uint64_t value) {
    ox_protobuf_text(&p->note, NOTE_NAME, name);
    ox_protobuf_varint(&p->note, NOTE_UINT, value);
    ox_protobuf_message(&p->inner, EVENT_ANNOTATION, &p->note);
}

/* Opens the slice of a record; notes may follow. */
static void open_slice(struct perfetto *p, const struct ox_trace_record *record, uint64_t track, const char *name) {
    event(p, record->started_ns, track, TYPE_BEGIN);
    ox_protobuf_text(&p->inner, EVENT_NAME, name);
    ox_protobuf_text(&p->inner, EVENT_CATEGORY, plan_name(record->plan));
}

static void close_slice(struct perfetto *p, uint64_t ended_ns, uint64_t track) {
    send_event(p);
    event(p, ended_ns, track, TYPE_END);
    send_event(p);
}

static void task_slice(struct perfetto *p, const struct ox_trace *trace, uint64_t idx) {
    char label[LABEL_BYTES];
    const struct ox_trace_header *const head = trace->head;
    const struct ox_trace_record *const record = &trace->records[idx], *const parts = parts_of(trace, idx);
    const struct ox_trace_names *const names = &head->names[OX_TRACE_PART_NAMES];
    open_slice(p, record, UUID_LANES + record->lane, label_of(head, record, label));
    note(p, "step", record->step);
    note(p, "task", record->task_idx);
    note(p, "bytes", record->bytes);
    note(p, "queued_ns", record->queued_ns);
    note(p, "waited_ns", record->waited_ns);
    if (record->predicted_seconds > 0) {
        ox_protobuf_text(&p->note, NOTE_NAME, "predicted_seconds");
        ox_protobuf_double(&p->note, NOTE_DOUBLE, record->predicted_seconds);
        ox_protobuf_message(&p->inner, EVENT_ANNOTATION, &p->note);
    }
    for (uint32_t i = 0; i < names->count && parts != NULL; i++) {
        snprintf(label, sizeof label, "%s_ns", names->text[i]);
        note(p, label, parts->parts_ns[i]);
    }
    close_slice(p, record->ended_ns, UUID_LANES + record->lane);
}

static void span_slice(struct perfetto *p, const struct ox_trace_header *head, const struct ox_trace_record *record) {
    char label[LABEL_BYTES];
    open_slice(p, record, (uint64_t)UUID_SPANS + record->span, span_label(head, record, label));
    note(p, "dropped", record->bytes);
    close_slice(p, record->ended_ns, (uint64_t)UUID_SPANS + record->span);
}

static void flow_slice(struct perfetto *p, const struct ox_trace_record *record) {
    char label[LABEL_BYTES];
    snprintf(label, sizeof label, "unit %" PRIu32, record->unit_idx);
    open_slice(p, record, (uint64_t)UUID_FLOWS + record->link, label);
    note(p, "step", record->step);
    note(p, "bytes", record->bytes);
    note(p, "chunks", record->task_idx);
    note(p, "idle_ns", record->waited_ns);
    close_slice(p, record->ended_ns, (uint64_t)UUID_FLOWS + record->link);
}

static enum ox_status memory_counters(struct perfetto *p, const struct ox_trace_header *head,
                                      const struct ox_trace_step *step) {
    for (uint32_t tier = 0; tier < head->names[OX_TRACE_TIERS].count; tier++) {
        struct ox_trace_moment *moments = NULL;
        uint32_t count = 0;
        const enum ox_status status = ox_trace_memory(head, step, tier, &moments, &count);
        if (status != OX_OK) {
            return status;
        }
        for (uint32_t i = 0; i < count && head->plans[step->plan].peak_bytes[tier] > 0; i++) {
            uint64_t sum = 0;
            for (uint32_t kind = 0; kind < head->names[OX_TRACE_BUFS].count; kind++) {
                sum += moments[i].bytes[kind];
            }
            event(p, step->begin_ns + moments[i].ns, UUID_MEMORY + tier, TYPE_COUNTER);
            ox_protobuf_varint(&p->inner, EVENT_COUNTER, sum);
            send_event(p);
        }
        free(moments);
    }
    return OX_OK;
}

/* Adds the predicted tasks on tracks of their own, to compare with the recorded ones. */
static void predicted_slices(struct perfetto *p, const struct ox_trace_header *head, const struct ox_trace_step *step) {
    const struct ox_trace_plan *const plan = &head->plans[step->plan];
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const struct ox_trace_task *const task = &plan->tasks[i];
        if (step->tasks[i] == NULL || task->predicted_seconds <= 0) {
            continue;
        }
        char label[LABEL_BYTES];
        const uint64_t begin_ns = step->begin_ns + (uint64_t)(task->predicted_begin * 1e9);
        event(p, begin_ns, UUID_PREDICTED + task->lane, TYPE_BEGIN);
        ox_protobuf_text(&p->inner, EVENT_NAME, label_of(head, step->tasks[i], label));
        ox_protobuf_text(&p->inner, EVENT_CATEGORY, "predicted");
        close_slice(p, begin_ns + (uint64_t)(task->predicted_seconds * 1e9), UUID_PREDICTED + task->lane);
    }
}

static void describe_tracks(struct perfetto *p, const struct ox_trace_header *head) {
    const struct ox_trace_names *const lanes = &head->names[OX_TRACE_LANES];
    const struct ox_trace_names *const tiers = &head->names[OX_TRACE_TIERS];
    char name[LABEL_BYTES];
    describe(p, UUID_PROCESS, head->title[0] != '\0' ? head->title : "offload", false);
    for (uint32_t i = 0; i < head->names[OX_TRACE_SPANS].count; i++) {
        describe(p, UUID_SPANS + i, head->names[OX_TRACE_SPANS].text[i], false);
    }
    for (uint32_t i = 0; i < head->names[OX_TRACE_LINKS].count; i++) {
        describe(p, UUID_FLOWS + i, flow_track(head, i, name), false);
    }
    for (uint32_t i = 0; i < lanes->count; i++) {
        describe(p, UUID_LANES + i, lanes->text[i], false);
    }
    for (uint32_t i = 0; i < lanes->count && ox_trace_is_predicted(head); i++) {
        snprintf(name, sizeof name, "%s, predicted", lanes->text[i]);
        describe(p, UUID_PREDICTED + i, name, false);
    }
    for (uint32_t i = 0; i < tiers->count; i++) {
        snprintf(name, sizeof name, "%s memory", tiers->text[i]);
        describe(p, UUID_MEMORY + i, name, true);
    }
}

enum ox_status ox_trace_write_perfetto(const struct ox_trace *trace, const struct ox_trace_steps *steps, FILE *out) {
    struct perfetto p = {.out = out};
    enum ox_status status = OX_OK;
    describe_tracks(&p, trace->head);
    for (uint64_t i = 0; i < trace->count; i++) {
        if (trace->records[i].type == OX_TRACE_TASK) {
            task_slice(&p, trace, i);
        } else if (trace->records[i].type == OX_TRACE_END) {
            span_slice(&p, trace->head, &trace->records[i]);
        } else if (trace->records[i].type == OX_TRACE_FLOW) {
            flow_slice(&p, &trace->records[i]);
        }
    }
    for (uint32_t i = 0; i < steps->count && status == OX_OK; i++) {
        status = memory_counters(&p, trace->head, &steps->steps[i]);
        if (ox_trace_is_predicted(trace->head)) {
            predicted_slices(&p, trace->head, &steps->steps[i]);
        }
    }
    if (status == OX_OK && p.failed) {
        status = ox_fail(OX_E_IO, "trace: the file could not be written");
    }
    ox_protobuf_free(&p.trace);
    ox_protobuf_free(&p.packet);
    ox_protobuf_free(&p.inner);
    ox_protobuf_free(&p.note);
    return status == OX_OK ? finish(out) : status;
}
