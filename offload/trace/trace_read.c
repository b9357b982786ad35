/* Reads a trace: the header, then all whole records of the ring, in the order in which they were put. A running writer
 * may overwrite what is being read; a record that changes under the reader fails its checksum and is counted as
 * torn. */
#include "offload/trace/trace.h"

#include "base/bytes.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_BYTES_MAX = 1 << 30, WINDOW_RECORDS = 2048 };

struct reader {
    int fd;
    const char *path;
    uint64_t header_bytes, capacity;
    uint64_t places; /* records of the ring that the file has */
    bool torn;       /* the file ends inside a record */
};

/* The length that the header claims to have; ox_trace_header_decode() checks it. */
static uint64_t claimed_bytes(const unsigned char *front) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < 8; i++) {
        bytes |= (uint64_t)front[16 + i] << (8 * i);
    }
    return bytes;
}

static enum ox_status read_header(struct reader *reader, uint64_t file_bytes, struct ox_trace_header **head) {
    enum { FRONT_BYTES = 40 };
    unsigned char front[FRONT_BYTES];
    if (file_bytes < FRONT_BYTES) {
        return ox_fail(OX_E_CORRUPT, "%s: is not a trace, or one that has only just begun", reader->path);
    }
    enum ox_status status = ox_file_read_at(reader->fd, reader->path, front, sizeof front, 0);
    if (status != OX_OK) {
        return status;
    }
    /* A header that claims to be longer than the file is read as far as the file goes, and decoding refuses it. */
    const uint64_t bytes = ox_min_u64(ox_min_u64(ox_max_u64(claimed_bytes(front), FRONT_BYTES), file_bytes),
                                      HEADER_BYTES_MAX);
    unsigned char *const data = malloc(bytes);
    if (data == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to read it", reader->path);
    }
    status = ox_file_read_at(reader->fd, reader->path, data, bytes, 0);
    OX_THEN(status, ox_trace_header_decode(reader->path, data, bytes, head, &reader->capacity));
    free(data);
    reader->header_bytes = bytes;
    reader->torn = (file_bytes - bytes) % OX_TRACE_RECORD_BYTES != 0;
    reader->places = ox_min_u64((file_bytes - bytes) / OX_TRACE_RECORD_BYTES, reader->capacity);
    return status;
}

/* ---- records -------------------------------------------------------------------------------------- */

static bool is_sound(const struct ox_trace_header *head, const struct ox_trace_record *record) {
    const struct ox_trace_names *const names = head->names;
    if (record->plan >= OX_TRACE_PLAN_COUNT || record->traffic >= names[OX_TRACE_TRAFFIC].count ||
        record->span >= names[OX_TRACE_SPANS].count || record->lane >= names[OX_TRACE_LANES].count ||
        (record->link != OX_TRACE_NO_LINK && record->link >= names[OX_TRACE_LINKS].count)) {
        return false;
    }
    const bool of_plan = record->kind < names[OX_TRACE_TASKS].count &&
                         record->task_idx < head->plans[record->plan].task_count;
    const bool in_order = record->queued_ns <= record->started_ns && record->started_ns <= record->ended_ns;
    switch ((enum ox_trace_type)record->type) {
    case OX_TRACE_TASK:
        return of_plan && in_order;
    case OX_TRACE_PARTS:
        return of_plan;
    case OX_TRACE_END:
        return in_order;
    case OX_TRACE_BYTES:
    case OX_TRACE_PLANNED:
        return record->link != OX_TRACE_NO_LINK;
    case OX_TRACE_FLOW:
        return record->link != OX_TRACE_NO_LINK && in_order;
    }
    return false;
}

/* Decodes a record; false if this place of the ring holds no sound record that belongs there. */
static bool take(const struct reader *reader, const struct ox_trace_header *head, const unsigned char *bytes,
                 uint64_t place, struct ox_trace_record *out) {
    return ox_trace_record_decode(bytes, out) && out->seq % reader->capacity == place && is_sound(head, out);
}

static int by_seq(const void *a, const void *b) {
    const struct ox_trace_record *const left = a, *const right = b;
    return left->seq < right->seq ? -1 : left->seq > right->seq;
}

/* Reads places [first, first + count) of the ring and appends their records to `trace`. */
static enum ox_status read_places(const struct reader *reader, uint64_t first, uint64_t count, struct ox_trace *trace) {
    unsigned char *const window = malloc((size_t)WINDOW_RECORDS * OX_TRACE_RECORD_BYTES);
    if (window == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to read it", reader->path);
    }
    enum ox_status status = OX_OK;
    for (uint64_t done = 0; done < count && status == OX_OK;) {
        const uint64_t step = ox_min_u64(count - done, WINDOW_RECORDS);
        const uint64_t place = first + done;
        status = ox_file_read_at(reader->fd, reader->path, window, step * OX_TRACE_RECORD_BYTES,
                                 reader->header_bytes + place * OX_TRACE_RECORD_BYTES);
        for (uint64_t i = 0; i < step && status == OX_OK; i++) {
            const bool whole = take(reader, trace->head, window + i * OX_TRACE_RECORD_BYTES, place + i,
                                    &trace->records[trace->count]);
            trace->count += whole;
            trace->torn += !whole;
        }
        done += step;
    }
    free(window);
    return status;
}

static uint64_t seq_at(const struct reader *reader, const struct ox_trace_header *head, uint64_t place) {
    unsigned char bytes[OX_TRACE_RECORD_BYTES];
    struct ox_trace_record record;
    if (ox_file_read_at(reader->fd, reader->path, bytes, sizeof bytes,
                        reader->header_bytes + place * OX_TRACE_RECORD_BYTES) != OX_OK ||
        !take(reader, head, bytes, place, &record)) {
        return UINT64_MAX;
    }
    return record.seq;
}

/* The place after the newest record, by bisection: numbers rise up to it, and after it are one round older. If a record
 * is torn the result may be off, and fewer new records are found. */
static uint64_t find_end(const struct reader *reader, const struct ox_trace_header *head) {
    const uint64_t first = seq_at(reader, head, 0);
    uint64_t low = 0, high = reader->places; /* the end is in (low, high] */
    while (first != UINT64_MAX && high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        const uint64_t seq = seq_at(reader, head, middle);
        if (seq != UINT64_MAX && seq >= first) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return high;
}

static enum ox_status read_records(const struct reader *reader, uint64_t count_max, struct ox_trace *trace) {
    const bool all = count_max == 0 || count_max >= reader->places;
    const uint64_t count = all ? reader->places : count_max;
    /* One slot more: a torn record is decoded into it before it is rejected. */
    trace->records = malloc((count + 1) * sizeof *trace->records);
    if (trace->records == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for its records", reader->path);
    }
    enum ox_status status = OX_OK;
    if (all) {
        status = read_places(reader, 0, count, trace);
    } else {
        const uint64_t end = find_end(reader, trace->head);
        const uint64_t before = ox_min_u64(end, count);
        if (before < count) { /* the older part at the ring's end */
            status = read_places(reader, reader->places - (count - before), count - before, trace);
        }
        OX_THEN(status, read_places(reader, end - before, before, trace));
    }
    qsort(trace->records, trace->count, sizeof *trace->records, by_seq);
    trace->torn += reader->torn;
    trace->overwritten = trace->count > 0 ? trace->records[0].seq : 0;
    return status;
}

/* ---- opening -------------------------------------------------------------------------------------- */

static enum ox_status open_trace(struct reader *reader, uint64_t count_max, struct ox_trace *trace) {
    uint64_t bytes = 0;
    enum ox_status status = ox_file_open_input(reader->path, &reader->fd, &bytes);
    OX_THEN(status, read_header(reader, bytes, &trace->head));
    return status == OX_OK ? read_records(reader, count_max, trace) : status;
}

enum ox_status ox_trace_open(const char *path, uint64_t count_max, struct ox_trace **out) {
    char inside[OX_PATH_BYTES];
    *out = NULL;
    struct reader reader = {.fd = -1, .path = path};
    if (ox_path_is_folder(path)) {
        const enum ox_status status = ox_path_join(path, "trace.bin", inside);
        if (status != OX_OK) {
            return status;
        }
        if (!ox_path_exists(inside)) {
            return ox_fail(OX_E_CONFIG, "%s: holds no trace.bin; record one with `offload train --trace on`", path);
        }
        reader.path = inside;
    }
    struct ox_trace *trace = calloc(1, sizeof *trace);
    if (trace == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to read it", path);
    }
    const enum ox_status status = open_trace(&reader, count_max, trace);
    if (reader.fd >= 0) {
        close(reader.fd);
    }
    if (status != OX_OK) {
        ox_trace_close(&trace);
    }
    *out = trace;
    return status;
}

void ox_trace_close(struct ox_trace **trace_ptr) {
    struct ox_trace *const trace = *trace_ptr;
    if (trace == NULL) {
        return;
    }
    ox_trace_header_close(&trace->head);
    free(trace->records);
    free(trace);
    *trace_ptr = NULL;
}
