/* trace.bin: what is written is read back; cut at any byte and changed in any byte it is read as far as it is whole;
 * the ring forgets the oldest; what is dropped is counted. */
#include "base/file.h"
#include "base/log.h"
#include "offload/trace/trace.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TASKS = 6, BYTES_MAX = 1 << 18 };

static char path[OX_PATH_BYTES];
static unsigned warnings;

static void count_warning(void *context, enum ox_log_level level, const char *line) {
    (void)context;
    (void)line;
    warnings += level == OX_LOG_WARN;
}

static void add_name(struct ox_trace_names *names, const char *name) {
    snprintf(names->text[names->count++], OX_TRACE_NAME_BYTES, "%s", name);
}

/* Two lanes, three kinds, a plan of six tasks in a row and two buffers; no evaluation. */
static struct ox_trace_header *make_head(void) {
    struct ox_trace_header *const head = calloc(1, sizeof *head);
    struct ox_trace_plan *const plan = &head->plans[OX_TRACE_TRAIN];
    snprintf(head->title, sizeof head->title, "a model of nothing");
    head->epoch_unix_ns = 1234567890123456789;
    head->max_steps = 77;
    head->drive_count = 2;
    head->rated_bytes = UINT64_C(600000000000000);
    head->budget_bytes[1] = 1 << 20;
    add_name(&head->names[OX_TRACE_LANES], "compute");
    add_name(&head->names[OX_TRACE_LANES], "h2d");
    add_name(&head->names[OX_TRACE_TASKS], "forward");
    add_name(&head->names[OX_TRACE_TASKS], "upload");
    add_name(&head->names[OX_TRACE_TASKS], "backward");
    add_name(&head->names[OX_TRACE_LINKS], "h2d");
    add_name(&head->names[OX_TRACE_TRAFFIC], "weights");
    add_name(&head->names[OX_TRACE_BUFS], "weights");
    add_name(&head->names[OX_TRACE_TIERS], "device");
    add_name(&head->names[OX_TRACE_TIERS], "host");
    add_name(&head->names[OX_TRACE_SPANS], "step");
    add_name(&head->names[OX_TRACE_SPANS], "save");
    add_name(&head->names[OX_TRACE_PART_NAMES], "reads");
    add_name(&head->names[OX_TRACE_PART_NAMES], "update");
    plan->tasks = calloc(TASKS, sizeof *plan->tasks);
    plan->bufs = calloc(2, sizeof *plan->bufs);
    plan->task_count = TASKS;
    plan->buf_count = 2;
    plan->micro_batches = 1;
    plan->unit_count = 3;
    plan->traffic[0][0] = 4096;
    for (uint32_t i = 0; i < TASKS; i++) {
        plan->tasks[i] = (struct ox_trace_task){.kind = i % 3, .lane = i % 2, .unit_idx = i, .mb_idx = OX_NONE,
                                                .carried = i == 1, .bytes = i * 10, .predicted_seconds = 0.5 * i};
        plan->tasks[i].deps[1 - i % 2] = i;
    }
    plan->bufs[0] = (struct ox_trace_buf){.tier = 1, .resident = true, .bytes = 4096, .last_task_idx = TASKS - 1};
    plan->bufs[1] = (struct ox_trace_buf){.bytes = 8192, .offset = 4096, .first_task_idx = 1, .last_task_idx = 2};
    return head;
}

static struct ox_trace_record make_record(uint64_t i) {
    return (struct ox_trace_record){
        .type = OX_TRACE_TASK, .kind = i % 3, .lane = i % 2, .link = OX_TRACE_NO_LINK, .last = i % 5 == 0,
        .step = i / TASKS, .task_idx = (uint32_t)(i % TASKS), .unit_idx = (uint32_t)i, .mb_idx = OX_NONE,
        .bytes = i * i, .queued_ns = 10 * i, .started_ns = 10 * i + 3, .ended_ns = 10 * i + 8, .waited_ns = 2,
        .predicted_seconds = 0.25 * (double)i};
}

static bool same_record(const struct ox_trace_record *record, uint64_t i) {
    struct ox_trace_record expected = make_record(i);
    unsigned char a[OX_TRACE_RECORD_BYTES], b[OX_TRACE_RECORD_BYTES];
    expected.seq = i;
    ox_trace_record_encode(&expected, a);
    ox_trace_record_encode(record, b);
    return memcmp(a, b, sizeof a) == 0;
}

/* Parts lie where other records have their times, and neither reads the other's. */
static void test_parts(void) {
    const struct ox_trace_record parts = {.type = OX_TRACE_PARTS, .span = 1, .idle = true, .mb_idx = OX_NONE,
                                          .queued_ns = 99, .waited_ns = 99, .parts_ns = {1, 2, 3, UINT64_MAX}};
    unsigned char bytes[OX_TRACE_RECORD_BYTES];
    struct ox_trace_record read;
    ox_trace_record_encode(&parts, bytes);
    CHECK(ox_trace_record_decode(bytes, &read) && memcmp(read.parts_ns, parts.parts_ns, sizeof read.parts_ns) == 0);
    CHECK(read.queued_ns == 0 && read.waited_ns == 0 && read.span == 1 && read.idle && read.mb_idx == OX_NONE);
}

/* Writes `count` records and returns how many were dropped. */
static uint64_t write_trace(uint64_t count, uint64_t bytes_max) {
    struct ox_trace_header *head = make_head();
    struct ox_trace_writer *writer = NULL;
    REQUIRE_OK(ox_trace_writer_open(path, head, bytes_max, &writer));
    ox_trace_header_close(&head);
    for (uint64_t i = 0; i < count; i++) {
        const struct ox_trace_record record = make_record(i);
        ox_trace_writer_put(writer, &record);
        if (i % 100 == 99) {
            ox_trace_writer_flush(writer);
        }
    }
    const uint64_t dropped = ox_trace_writer_dropped(writer);
    ox_trace_writer_close(&writer);
    return dropped;
}

static void check_head(const struct ox_trace_header *head) {
    struct ox_trace_header *expected = make_head();
    const struct ox_trace_plan *const plan = &head->plans[OX_TRACE_TRAIN];
    CHECK(strcmp(head->title, expected->title) == 0 && head->max_steps == 77 && head->drive_count == 2);
    CHECK(head->epoch_unix_ns == expected->epoch_unix_ns && head->rated_bytes == expected->rated_bytes);
    CHECK(memcmp(head->names, expected->names, sizeof head->names) == 0);
    CHECK(memcmp(head->budget_bytes, expected->budget_bytes, sizeof head->budget_bytes) == 0);
    CHECK(plan->task_count == TASKS && plan->buf_count == 2 && plan->traffic[0][0] == 4096);
    CHECK(memcmp(plan->tasks, expected->plans[0].tasks, TASKS * sizeof *plan->tasks) == 0);
    CHECK(memcmp(plan->bufs, expected->plans[0].bufs, 2 * sizeof *plan->bufs) == 0);
    CHECK(head->plans[OX_TRACE_EVAL].task_count == 0);
    ox_trace_header_close(&expected);
}

static void test_round_trip(void) {
    CHECK(write_trace(250, BYTES_MAX) == 0);
    struct ox_trace *trace = NULL;
    REQUIRE_OK(ox_trace_open(test_folder(), 0, &trace));
    check_head(trace->head);
    CHECK(trace->count == 250 && trace->torn == 0 && trace->overwritten == 0);
    for (uint64_t i = 0; i < trace->count; i++) {
        CHECK(same_record(&trace->records[i], i));
    }
    ox_trace_close(&trace);
    ox_trace_close(&trace);
    REQUIRE_OK(ox_trace_open(path, 20, &trace));
    CHECK(trace->count == 20 && same_record(&trace->records[0], 230));
    ox_trace_close(&trace);
}

/* The newest records stay, in order, and the file keeps to its size. */
static void test_ring(void) {
    const uint64_t dropped = write_trace(7000, BYTES_MAX);
    struct stat info;
    CHECK(stat(path, &info) == 0 && info.st_size <= BYTES_MAX && info.st_size > BYTES_MAX - OX_TRACE_RECORD_BYTES);
    for (uint64_t count_max = 0; count_max < 4000; count_max = 2 * count_max + 1) {
        struct ox_trace *trace = NULL;
        REQUIRE_OK(ox_trace_open(path, count_max, &trace));
        CHECK(trace->count > 1000 || trace->count == count_max);
        CHECK(trace->torn == 0 && trace->overwritten == trace->records[0].seq);
        for (uint64_t i = 1; i < trace->count; i++) {
            CHECK(trace->records[i].seq == trace->records[i - 1].seq + 1);
        }
        CHECK(trace->records[trace->count - 1].seq == 6999 - dropped);
        ox_trace_close(&trace);
    }
}

/* A file that is cut anywhere gives every whole record, or an error where its head is not whole. */
static void test_cut(void) {
    write_trace(3, BYTES_MAX);
    struct stat info;
    CHECK(stat(path, &info) == 0);
    const size_t bytes = (size_t)info.st_size, head_bytes = bytes - 3 * OX_TRACE_RECORD_BYTES;
    for (size_t cut = bytes + 1; cut-- > 0;) {
        struct ox_trace *trace = NULL;
        CHECK(truncate(path, (off_t)cut) == 0);
        const enum ox_status status = ox_trace_open(path, 0, &trace);
        if (cut < head_bytes) {
            CHECK(status == OX_E_CORRUPT && trace == NULL);
            continue;
        }
        REQUIRE_OK(status);
        const size_t whole = (cut - head_bytes) / OX_TRACE_RECORD_BYTES;
        CHECK(trace->count == whole && trace->torn == ((cut - head_bytes) % OX_TRACE_RECORD_BYTES != 0));
        for (uint64_t i = 0; i < trace->count; i++) {
            CHECK(same_record(&trace->records[i], i));
        }
        ox_trace_close(&trace);
    }
}

/* Whole records that name what does not exist are left out and counted. */
static void test_hostile_records(void) {
    for (int fault = 0; fault < 8; fault++) {
        struct ox_trace_header *head = make_head();
        struct ox_trace_writer *writer = NULL;
        struct ox_trace *trace = NULL;
        struct ox_trace_record record = make_record(1);
        record.type = fault == 0 ? 0 : fault == 1 ? OX_TRACE_FLOW + 1 : fault == 2 ? OX_TRACE_FLOW
                      : fault == 3 ? OX_TRACE_PARTS : OX_TRACE_TASK;
        record.task_idx = fault == 3 || fault == 4 ? TASKS : 1;
        record.span = fault == 5 ? 2 : 0;
        record.lane = fault == 6 ? 2 : 1;
        record.started_ns = fault == 7 ? record.ended_ns + 1 : record.started_ns;
        REQUIRE_OK(ox_trace_writer_open(path, head, BYTES_MAX, &writer));
        ox_trace_writer_put(writer, &record);
        ox_trace_writer_close(&writer);
        REQUIRE_OK(ox_trace_open(path, 0, &trace));
        CHECK(trace->count == 0 && trace->torn == 1);
        ox_trace_close(&trace);
        ox_trace_header_close(&head);
    }
}

static void flip(int fd, size_t at) {
    unsigned char byte = 0;
    CHECK(pread(fd, &byte, 1, (off_t)at) == 1);
    byte ^= 0x10;
    CHECK(pwrite(fd, &byte, 1, (off_t)at) == 1);
}

/* Where any byte is changed, the head is refused, or the record is left out and counted. */
static void test_flips(void) {
    write_trace(3, BYTES_MAX);
    struct stat info;
    const int fd = open(path, O_RDWR);
    CHECK(fd >= 0 && fstat(fd, &info) == 0);
    const size_t bytes = (size_t)info.st_size, head_bytes = bytes - 3 * OX_TRACE_RECORD_BYTES;
    for (size_t at = 0; at < bytes; at++) {
        struct ox_trace *trace = NULL;
        flip(fd, at);
        const enum ox_status status = ox_trace_open(path, 0, &trace);
        flip(fd, at);
        CHECK(at >= head_bytes ? status == OX_OK : status == OX_E_CORRUPT);
        if (trace != NULL) {
            CHECK(trace->count == 2 && trace->torn == 1);
        }
        ox_trace_close(&trace);
    }
    close(fd);
}

/* Heads with a right checksum and wrong contents are refused. */
static void test_hostile_heads(void) {
    struct ox_trace_header *head = make_head();
    for (int fault = 0; fault < 6; fault++) {
        struct ox_trace_plan *const plan = &head->plans[OX_TRACE_TRAIN];
        const struct ox_trace_task task = plan->tasks[2];
        const struct ox_trace_buf buf = plan->bufs[1];
        unsigned char *bytes = NULL;
        uint64_t count = 0, capacity = 0;
        plan->tasks[2].kind = fault == 0 ? 3 : task.kind;
        plan->tasks[2].lane = fault == 1 ? 2 : task.lane;
        plan->tasks[2].deps[0] = fault == 2 ? 3 : task.deps[0]; /* on itself */
        plan->bufs[1].last_task_idx = fault == 3 ? TASKS : buf.last_task_idx;
        plan->bufs[1].tier = fault == 4 ? 2 : buf.tier;
        head->title[3] = fault == 5 ? '\033' : 'o';
        REQUIRE_OK(ox_trace_header_encode(head, &bytes, &count));
        ox_trace_header_seal(bytes, count, 1000);
        struct ox_trace_header *read = NULL;
        CHECK(ox_trace_header_decode("here", bytes, count, &read, &capacity) == OX_E_CORRUPT && read == NULL);
        plan->tasks[2] = task;
        plan->bufs[1] = buf;
        free(bytes);
    }
    ox_trace_header_close(&head);
}

/* Every record is in the file or counted as dropped, however fast they come. */
static void test_drops(void) {
    enum { COUNT = 60000 };
    warnings = 0;
    const uint64_t dropped = write_trace(COUNT, 32 << 20);
    struct ox_trace *trace = NULL;
    REQUIRE_OK(ox_trace_open(path, 0, &trace));
    CHECK(trace->count + dropped == COUNT);
    CHECK(warnings == (dropped > 0));
    ox_trace_close(&trace);
}

/* When the disk refuses writes, there is one warning then and one with the count at the end, and whole records are
 * read. */
static void test_full_disk(void) {
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 1 << 17;
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    warnings = 0;
    const uint64_t dropped = write_trace(30000, 32 << 20);
    setrlimit(RLIMIT_FSIZE, &old);
    struct ox_trace *trace = NULL;
    REQUIRE_OK(ox_trace_open(path, 0, &trace));
    CHECK(dropped > 0 && warnings == 2 && trace->count > 0 && trace->count < 1500);
    ox_trace_close(&trace);
}

static void test_refusals(void) {
    struct ox_trace_header *head = make_head();
    struct ox_trace_writer *writer = NULL;
    struct ox_trace *trace = NULL;
    char link[OX_PATH_BYTES];
    CHECK(ox_trace_writer_open(path, head, 90000, &writer) == OX_E_CONFIG && writer == NULL);
    REQUIRE_OK(ox_path_join(test_folder(), "link", link));
    CHECK(symlink(path, link) == 0);
    CHECK(ox_trace_writer_open(link, head, BYTES_MAX, &writer) == OX_E_CONFIG && writer == NULL);
    CHECK(ox_trace_writer_open("/dev/null", head, BYTES_MAX, &writer) == OX_E_CONFIG && writer == NULL);
    ox_trace_header_close(&head);
    CHECK(unlink(path) == 0 && ox_trace_open(test_folder(), 0, &trace) == OX_E_CONFIG && trace == NULL);
    CHECK(strstr(ox_error_text(), "--trace on") != NULL);
}

int main(void) {
    ox_log_set_sink(count_warning, NULL);
    REQUIRE_OK(ox_path_join(test_folder(), "trace.bin", path));
    test_parts();
    test_round_trip();
    test_ring();
    test_cut();
    test_flips();
    test_hostile_heads();
    test_hostile_records();
    test_drops();
    test_full_disk();
    test_refusals();
    return test_end();
}
