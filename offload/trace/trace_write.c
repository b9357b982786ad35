/* Writes a trace with two buffers and a lane: one buffer fills while the other is being written. If both are full,
 * records are dropped, because a step must never wait for its recording. A lock guards everything but the file; a
 * caller holds it for as long as encoding 96 bytes takes. */
#include "offload/trace/trace.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/lane.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER_RECORDS = 4096, CAPACITY_MIN = 1000 };

struct ox_trace_writer {
    int fd;
    char path[OX_PATH_BYTES];
    uint64_t header_bytes, capacity;
    struct ox_lane *lane;
    pthread_mutex_t lock;
    unsigned char *buffers[2];
    int filling;            /* index of the buffer that is being filled */
    uint32_t fill;          /* records in that buffer */
    struct ox_mark writing; /* done when the other buffer is written */
    bool broken;            /* a write failed; nothing more is written */
    uint64_t seq, dropped;
};

struct write_job {
    const unsigned char *records;
    uint64_t seq;
    uint32_t count;
};

/* Runs on the lane: writes the records to the ring's places from `seq` on, in at most two pieces. */
static enum ox_status write_records(void *owner, const void *args) {
    const struct ox_trace_writer *const writer = owner;
    struct write_job job;
    memcpy(&job, args, sizeof job);
    while (job.count > 0) {
        const uint64_t place = job.seq % writer->capacity;
        const uint32_t count = (uint32_t)ox_min_u64(job.count, writer->capacity - place);
        const size_t bytes = (size_t)count * OX_TRACE_RECORD_BYTES;
        const uint64_t offset = writer->header_bytes + place * OX_TRACE_RECORD_BYTES;
        int interrupts = 0;
        for (size_t done = 0; done < bytes;) {
            const ssize_t written = pwrite(writer->fd, job.records + done, bytes - done, (off_t)(offset + done));
            if (ox_interrupted(written, &interrupts)) {
                continue;
            }
            if (written <= 0) {
                return ox_fail_errno(OX_E_IO, written < 0 ? errno : ENOSPC, "%s: cannot be written", writer->path);
            }
            done += (size_t)written;
        }
        job.records += bytes;
        job.seq += count;
        job.count -= count;
    }
    return OX_OK;
}

static void note_failure(struct ox_trace_writer *writer, enum ox_status status) {
    if (status != OX_OK && !writer->broken) {
        writer->broken = true;
        ox_log(OX_LOG_WARN, "%s; the run goes on without its trace", ox_error_text());
    }
}

static void flush(struct ox_trace_writer *writer) {
    if (writer->fill == 0 || writer->broken) {
        return;
    }
    bool done = false;
    note_failure(writer, ox_mark_poll(writer->writing, &done));
    if (!done || writer->broken) {
        return;
    }
    const struct write_job job = {.records = writer->buffers[writer->filling], .seq = writer->seq - writer->fill,
                                  .count = writer->fill};
    note_failure(writer, ox_host_lane_submit(writer->lane, write_records, &job, sizeof job, &writer->writing));
    writer->filling = 1 - writer->filling;
    writer->fill = 0;
}

void ox_trace_writer_flush(struct ox_trace_writer *writer) {
    pthread_mutex_lock(&writer->lock);
    flush(writer);
    pthread_mutex_unlock(&writer->lock);
}

void ox_trace_writer_put(struct ox_trace_writer *writer, const struct ox_trace_record *record) {
    pthread_mutex_lock(&writer->lock);
    if (writer->fill == BUFFER_RECORDS) {
        flush(writer);
    }
    if (writer->fill == BUFFER_RECORDS || writer->broken) {
        writer->dropped++;
    } else {
        struct ox_trace_record numbered = *record;
        numbered.seq = writer->seq++;
        ox_trace_record_encode(&numbered,
                               writer->buffers[writer->filling] + (size_t)writer->fill * OX_TRACE_RECORD_BYTES);
        writer->fill++;
    }
    pthread_mutex_unlock(&writer->lock);
}

uint64_t ox_trace_writer_dropped(struct ox_trace_writer *writer) {
    pthread_mutex_lock(&writer->lock);
    const uint64_t dropped = writer->dropped;
    pthread_mutex_unlock(&writer->lock);
    return dropped;
}

/* ---- opening -------------------------------------------------------------------------------------- */

/* O_NONBLOCK, because opening a FIFO of that name could wait for its other end. */
static enum ox_status open_file(struct ox_trace_writer *writer, const char *path) {
    struct stat info;
    snprintf(writer->path, sizeof writer->path, "%s", path);
    writer->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    if (writer->fd < 0 && errno == ELOOP) {
        return ox_fail(OX_E_CONFIG, "%s: is a link, and nothing is written through one; remove it", path);
    }
    if (writer->fd < 0 || fstat(writer->fd, &info) != 0) {
        return ox_fail_errno(OX_E_IO, errno, "%s: cannot open it for writing", path);
    }
    if (!S_ISREG(info.st_mode)) {
        return ox_fail(OX_E_CONFIG, "%s: is not a regular file; remove it", path);
    }
    return ftruncate(writer->fd, 0) == 0 ? OX_OK : ox_fail_errno(OX_E_IO, errno, "%s: cannot be emptied", path);
}

enum ox_status ox_trace_check_room(const struct ox_trace_header *head, uint64_t bytes_max) {
    unsigned char *bytes = NULL;
    uint64_t header_bytes = 0;
    char text[OX_SIZE_TEXT_BYTES];
    const enum ox_status status = ox_trace_header_encode(head, &bytes, &header_bytes);
    free(bytes);
    const uint64_t least = header_bytes + CAPACITY_MIN * OX_TRACE_RECORD_BYTES;
    return status == OX_OK && bytes_max < least
               ? ox_fail(OX_E_CONFIG, "--trace-bytes: the trace of this plan needs at least %s; give more",
                         ox_size_text(least + OX_MIB / 8, text))
               : status;
}

static enum ox_status write_header(struct ox_trace_writer *writer, const struct ox_trace_header *head,
                                 uint64_t bytes_max) {
    unsigned char *bytes = NULL;
    enum ox_status status = ox_trace_header_encode(head, &bytes, &writer->header_bytes);
    if (status != OX_OK) {
        return status;
    }
    writer->capacity = (bytes_max - writer->header_bytes) / OX_TRACE_RECORD_BYTES;
    ox_trace_header_seal(bytes, writer->header_bytes, writer->capacity);
    const ssize_t written = pwrite(writer->fd, bytes, writer->header_bytes, 0);
    free(bytes);
    if (written != (ssize_t)writer->header_bytes) {
        return ox_fail_errno(OX_E_IO, written < 0 ? errno : ENOSPC, "%s: cannot be written", writer->path);
    }
    return OX_OK;
}

enum ox_status ox_trace_writer_open(const char *path, const struct ox_trace_header *head, uint64_t bytes_max,
                                    struct ox_trace_writer **out) {
    *out = NULL;
    struct ox_trace_writer *writer = calloc(1, sizeof *writer);
    if (writer == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to write it", path);
    }
    writer->fd = -1;
    pthread_mutex_init(&writer->lock, NULL);
    enum ox_status status = ox_trace_check_room(head, bytes_max);
    for (int i = 0; i < 2 && status == OX_OK; i++) {
        writer->buffers[i] = malloc((size_t)BUFFER_RECORDS * OX_TRACE_RECORD_BYTES);
        status = writer->buffers[i] != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "%s: no memory to write it", path);
    }
    OX_THEN(status, open_file(writer, path));
    OX_THEN(status, write_header(writer, head, bytes_max));
    if (status == OX_OK) {
        const struct ox_host_lane_config lane = {.label = "trace", .owner = writer, .queue_len = 2};
        status = ox_host_lane_open(&lane, &writer->lane);
    }
    if (status != OX_OK) {
        ox_trace_writer_close(&writer);
    }
    *out = writer;
    return status;
}

void ox_trace_writer_close(struct ox_trace_writer **writer_ptr) {
    struct ox_trace_writer *const writer = *writer_ptr;
    if (writer == NULL) {
        return;
    }
    if (writer->lane != NULL) {
        note_failure(writer, ox_mark_join(writer->writing));
        ox_trace_writer_flush(writer);
        note_failure(writer, ox_lane_drain(writer->lane));
        ox_lane_close(&writer->lane);
    }
    if (writer->dropped > 0) {
        ox_log(OX_LOG_WARN, "%s: %" PRIu64 " record%s no room", writer->path, writer->dropped,
               writer->dropped == 1 ? " found" : "s found");
    }
    if (writer->fd >= 0) {
        close(writer->fd);
    }
    free(writer->buffers[0]);
    free(writer->buffers[1]);
    pthread_mutex_destroy(&writer->lock);
    free(writer);
    *writer_ptr = NULL;
}
