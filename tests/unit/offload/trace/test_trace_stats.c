/* What is made of a trace: who waited for whom, the longest chain and what the memory held, of a step small enough to
 * be worked out by hand; and the same step as other viewers get it, read back by readers of their own. */
#include "base/json.h"
#include "offload/trace/trace_export.h"
#include "tests/kit/protobuf.h"
#include "tests/kit/test.h"

#include <string.h>

enum { COMPUTE, H2D, ADAM, LANES };
enum { UPLOAD, FORWARD, NORM, UPDATE };
enum { TASKS = 6, BEGIN = 1000 };

/* Times from BEGIN. The update waits for the norm, before which it is not issued. */
static const struct {
    uint8_t kind, lane;
    int dep; /* -1: none */
    uint64_t queued, started, ended;
} given[TASKS] = {
    {UPLOAD, H2D, -1, 0, 1, 10},   {FORWARD, COMPUTE, 0, 2, 12, 30}, {UPLOAD, H2D, -1, 3, 11, 25},
    {FORWARD, COMPUTE, 2, 4, 30, 50}, {NORM, COMPUTE, 3, 5, 51, 55},  {UPDATE, ADAM, 3, 58, 60, 90},
};

static struct ox_trace_header head;
static struct ox_trace_task tasks[TASKS];
static struct ox_trace_buf bufs[3];
static struct ox_trace_record records[TASKS * 5 + 16];
static struct ox_trace trace = {.head = &head, .records = records};

static void add_name(enum ox_trace_table table, const char *name) {
    struct ox_trace_names *const names = &head.names[table];
    snprintf(names->text[names->count++], OX_TRACE_NAME_BYTES, "%s", name);
}

static void make_head(void) {
    static const char *const lanes[] = {"compute", "h2d", "adam"};
    static const char *const kinds[] = {"upload", "forward", "norm", "adam"};
    for (int i = 0; i < LANES; i++) {
        add_name(OX_TRACE_LANES, lanes[i]);
    }
    for (int i = 0; i < 4; i++) {
        add_name(OX_TRACE_TASKS, kinds[i]);
    }
    add_name(OX_TRACE_LINKS, "h2d");
    add_name(OX_TRACE_TRAFFIC, "weights");
    add_name(OX_TRACE_BUFS, "weights");
    add_name(OX_TRACE_BUFS, "work");
    add_name(OX_TRACE_TIERS, "device");
    add_name(OX_TRACE_SPANS, "step");
    add_name(OX_TRACE_PART_NAMES, "drive reads");
    add_name(OX_TRACE_PART_NAMES, "update");
    snprintf(head.title, sizeof head.title, "a \"model\" \\");
    for (uint32_t i = 0; i < TASKS; i++) {
        tasks[i] = (struct ox_trace_task){.kind = given[i].kind, .lane = given[i].lane, .unit_idx = i,
                                          .mb_idx = OX_NONE, .predicted_begin = i * 1e-8, .predicted_seconds = 1e-8};
        if (given[i].dep >= 0) {
            tasks[i].deps[given[given[i].dep].lane] = (uint32_t)given[i].dep + 1;
        }
    }
    bufs[0] = (struct ox_trace_buf){.bytes = 100, .resident = true, .last_task_idx = TASKS - 1};
    bufs[1] = (struct ox_trace_buf){.bytes = 50, .kind = 1, .first_task_idx = 0, .last_task_idx = 1};
    bufs[2] = (struct ox_trace_buf){.bytes = 70, .kind = 1, .first_task_idx = 2, .last_task_idx = 3};
    head.plans[OX_TRACE_TRAIN] = (struct ox_trace_plan){.task_count = TASKS, .buf_count = 3, .tasks = tasks,
                                                        .bufs = bufs, .peak_bytes = {256}};
}

static void put(struct ox_trace_record record) {
    record.seq = trace.count;
    records[trace.count++] = record;
}

/* Records step `number`: its first `count` tasks, later by `offset`. The step takes 95 + `longer`. */
static void put_step(uint64_t number, uint64_t offset, uint32_t count, uint64_t longer) {
    for (uint32_t i = 0; i < count; i++) {
        put((struct ox_trace_record){
            .type = OX_TRACE_TASK, .lane = given[i].lane, .kind = given[i].kind, .link = OX_TRACE_NO_LINK,
            .step = number, .task_idx = i, .unit_idx = i, .mb_idx = OX_NONE, .bytes = i, .predicted_seconds = 1e-8,
            .queued_ns = BEGIN + offset + given[i].queued, .started_ns = BEGIN + offset + given[i].started,
            .ended_ns = BEGIN + offset + given[i].ended});
    }
    if (count == TASKS && number == 9) {
        put((struct ox_trace_record){.type = OX_TRACE_PARTS, .step = number, .lane = ADAM, .kind = UPDATE,
                                     .task_idx = TASKS - 1, .parts_ns = {20, 10}});
        put((struct ox_trace_record){.type = OX_TRACE_FLOW, .step = number, .lane = ADAM, .bytes = 77,
                                     .queued_ns = BEGIN + offset + 60, .started_ns = BEGIN + offset + 60,
                                     .ended_ns = BEGIN + offset + 80});
        put((struct ox_trace_record){.type = OX_TRACE_FLOW, .step = number + 1, /* whose end was lost */
                                     .queued_ns = BEGIN + offset + 80, .started_ns = BEGIN + offset + 80,
                                     .ended_ns = BEGIN + offset + 81});
    }
    put((struct ox_trace_record){.type = OX_TRACE_BYTES, .step = number, .bytes = 4096});
    put((struct ox_trace_record){.type = OX_TRACE_END, .step = number, .link = OX_TRACE_NO_LINK,
                                 .started_ns = BEGIN + offset, .ended_ns = BEGIN + offset + 95 + longer});
}

static void check_analysis(const struct ox_trace_step *step) {
    struct ox_trace_analysis a;
    REQUIRE_OK(ox_trace_analyze(&head, step, &a));
    CHECK(a.wall_ns == 95 && a.busy_ns[COMPUTE] == 42 && a.busy_ns[H2D] == 23 && a.busy_ns[ADAM] == 30);
    CHECK(a.held_ns[COMPUTE][H2D] == 9 && a.held_ns[COMPUTE][OX_TRACE_CAUSE_START] == 4);
    CHECK(a.held_ns[COMPUTE][OX_TRACE_CAUSE_DONE] == 40 && a.held_ns[COMPUTE][OX_TRACE_CAUSE_ISSUE] == 0);
    CHECK(a.held_ns[ADAM][COMPUTE] == 42 && a.held_ns[ADAM][H2D] == 9 && a.held_ns[ADAM][OX_TRACE_CAUSE_ISSUE] == 3);
    CHECK(a.held_ns[ADAM][OX_TRACE_CAUSE_START] == 6 && a.held_ns[ADAM][OX_TRACE_CAUSE_DONE] == 5);
    for (int lane = 0; lane < LANES; lane++) { /* a row is the step */
        uint64_t sum = a.busy_ns[lane];
        for (int cause = 0; cause < OX_TRACE_CAUSE_COUNT; cause++) {
            sum += a.held_ns[lane][cause];
        }
        CHECK(sum == 95);
    }
    CHECK(a.chain_ns[ADAM] == 30 && a.chain_ns[COMPUTE] == 42 && a.chain_ns[H2D] == 9);
    CHECK(a.chain_ns[OX_TRACE_CAUSE_ISSUE] == 3 && a.chain_ns[OX_TRACE_CAUSE_START] == 6);
    CHECK(a.chain_ns[OX_TRACE_CAUSE_DONE] == 5);
    CHECK(a.chain_kind_ns[UPLOAD] == 9 && a.chain_kind_ns[FORWARD] == 38 && a.chain_kind_ns[NORM] == 4);
    CHECK(a.kind_ns[UPLOAD] == 23 && a.kind_count[UPLOAD] == 2 && a.kind_bytes[UPLOAD] == 2);
    CHECK(a.predicted_seconds > 5.9e-8 && a.predicted_seconds < 6.1e-8 && a.kind_predicted[NORM] == 1e-8);
}

/* Here the update is known to have waited for its reads for two thirds of its time. */
static void check_parts(const struct ox_trace_step *step) {
    struct ox_trace_analysis a;
    REQUIRE_OK(ox_trace_analyze(&head, step, &a));
    CHECK(a.busy_ns[ADAM] == 10 && a.held_ns[ADAM][OX_TRACE_CAUSE_PART] == 20 && a.held_ns[ADAM][COMPUTE] == 42);
    CHECK(a.chain_ns[ADAM] == 10 && a.chain_ns[OX_TRACE_CAUSE_PART] == 20 && a.chain_kind_ns[UPDATE] == 10);
    CHECK(a.kind_part_ns[UPDATE][0] == 20 && a.kind_part_ns[UPDATE][1] == 10 && a.kind_ns[UPDATE] == 30);
    CHECK(step->flow_count == 1 && step->flows[0]->bytes == 77);
    CHECK(strcmp(ox_trace_cause_name(&head, OX_TRACE_CAUSE_PART), "drive reads") == 0);
}

/* With one task ahead, each is issued when the one before has ended; all time held up still has a cause. */
static void check_run_ahead(const struct ox_trace_step *step) {
    struct ox_trace_analysis a;
    uint64_t sum = 0;
    head.run_ahead = 1;
    REQUIRE_OK(ox_trace_analyze(&head, step, &a));
    head.run_ahead = 0;
    for (int cause = 0; cause < OX_TRACE_CAUSE_COUNT; cause++) {
        sum += a.held_ns[ADAM][cause];
    }
    CHECK(sum == 65 && a.held_ns[ADAM][COMPUTE] == 42);
}

static void check_memory(const struct ox_trace_step *step) {
    static const uint64_t expected[][3] = {{0, 100, 0}, {1, 100, 50}, {11, 100, 120}, {30, 100, 70}, {50, 100, 0}};
    struct ox_trace_moment *moments = NULL;
    uint32_t count = 0;
    REQUIRE_OK(ox_trace_memory(&head, step, 0, &moments, &count));
    CHECK(count == 5);
    for (uint32_t i = 0; i < count && i < 5; i++) {
        CHECK(moments[i].ns == expected[i][0] && moments[i].bytes[0] == expected[i][1] &&
              moments[i].bytes[1] == expected[i][2]);
    }
    free(moments);
}

static void check_steps(const struct ox_trace_steps *steps) {
    CHECK(steps->count == 3 && steps->whole_count == 2 && steps->typical_idx == 1);
    CHECK(!steps->steps[0].whole && steps->steps[0].task_count == 3);
    CHECK(steps->steps[1].whole && steps->steps[1].step == 8 && steps->steps[1].bytes[0][0] == 4096);
    CHECK(steps->steps[2].tasks[5] != NULL && steps->steps[2].tasks[5]->started_ns == BEGIN + 260);
}

/* The step of median length is another one when steps count that moved less, as a run's first does. */
static void check_typical(void) {
    struct ox_trace_steps *steps = NULL;
    trace.count = 0;
    for (uint32_t i = 0; i < 4; i++) {
        static const uint64_t longer[] = {1, 3, 2, 0}; /* the first is of median length among four */
        if (i == 0) {
            put((struct ox_trace_record){.type = OX_TRACE_PLANNED, .step = 1, .bytes = 1});
        }
        put_step(i + 1, i * 100, TASKS, longer[i]);
    }
    REQUIRE_OK(ox_trace_steps_open(&trace, &steps));
    CHECK(steps->whole_count == 4 && steps->typical_idx == 2);
    ox_trace_steps_close(&steps);
    trace.count = 0;
    put_step(1, 0, TASKS, 9);
    put((struct ox_trace_record){.type = OX_TRACE_PLANNED, .step = 2, .bytes = 1});
    put_step(2, 200, TASKS, 0);
    REQUIRE_OK(ox_trace_steps_open(&trace, &steps));
    CHECK(steps->typical_idx == 1); /* the newest, as neither is usual */
    ox_trace_steps_close(&steps);
}

/* ---- viewers ---------------------------------------------------------------------------------------- */

static char *exported(enum ox_status (*write)(const struct ox_trace *, const struct ox_trace_steps *, FILE *),
                      const struct ox_trace_steps *steps, size_t *bytes) {
    char *data = NULL;
    FILE *const out = open_memstream(&data, bytes);
    REQUIRE_OK(write(&trace, steps, out));
    fclose(out);
    return data;
}

static void check_chrome(const struct ox_trace_steps *steps) {
    size_t bytes = 0, idx = 0;
    char *const text = exported(ox_trace_write_chrome, steps, &bytes);
    json_t *json = NULL, *event = NULL;
    unsigned slices = 0, counters = 0, updates = 0, parts = 0;
    REQUIRE_OK(ox_json_parse("chrome", text, bytes, &json));
    json_array_foreach(json_object_get(json, "traceEvents"), idx, event) {
        const char *const phase = json_string_value(json_object_get(event, "ph"));
        const char *const name = json_string_value(json_object_get(event, "name"));
        slices += strcmp(phase, "X") == 0;
        counters += strcmp(phase, "C") == 0;
        if (strcmp(name, "adam unit 5") == 0) {
            updates++;
            CHECK(json_integer_value(json_object_get(event, "tid")) == ADAM);
            CHECK(json_number_value(json_object_get(event, "dur")) == 0.03);
            parts += json_number_value(json_object_get(json_object_get(event, "args"), "drive reads_us")) == 0.02;
        }
        if (strcmp(name, "process_name") == 0) {
            const json_t *const args = json_object_get(event, "args");
            CHECK(strcmp(json_string_value(json_object_get(args, "name")), head.title) == 0);
        }
    }
    CHECK(slices == 3 + 6 + 6 + 3 + 2 && counters > 5 && updates == 2 && parts == 1);
    json_decref(json);
    free(text);
}

enum { TRACKS_MAX = 256 };

struct track {
    char name[64];
    uint64_t last_ns;
    int depth;
    unsigned slices, counters;
};

static void take_descriptor(const struct test_field *packet, struct track *tracks) {
    const struct test_field descriptor = test_field_get(packet->data, packet->bytes, 60);
    const struct test_field uuid = test_field_get(descriptor.data, descriptor.bytes, 1);
    struct test_field name;
    if (test_field_has(descriptor.data, descriptor.bytes, 3)) { /* the process */
        const struct test_field process = test_field_get(descriptor.data, descriptor.bytes, 3);
        name = test_field_get(process.data, process.bytes, 6);
    } else {
        name = test_field_get(descriptor.data, descriptor.bytes, 2);
        CHECK(tracks[test_field_get(descriptor.data, descriptor.bytes, 5).value].name[0] != '\0'); /* its parent */
    }
    CHECK(uuid.value < TRACKS_MAX && name.bytes < sizeof tracks->name);
    memcpy(tracks[uuid.value].name, name.data, name.bytes);
}

/* Slices begin and end in turn, in the order of time; every event is of a track that was described. */
static void take_event(const struct test_field *packet, struct track *tracks) {
    const struct test_field event = test_field_get(packet->data, packet->bytes, 11);
    const uint64_t ns = test_field_get(packet->data, packet->bytes, 8).value;
    const uint64_t type = test_field_get(event.data, event.bytes, 9).value;
    struct track *const track = &tracks[test_field_get(event.data, event.bytes, 11).value];
    CHECK(track->name[0] != '\0' && ns >= track->last_ns);
    track->last_ns = ns;
    track->depth += type == 1 ? 1 : type == 2 ? -1 : 0;
    track->slices += type == 1;
    track->counters += type == 4;
    CHECK((type == 4 || track->depth == (type == 1)) && test_field_has(event.data, event.bytes, 23) == (type == 1));
    if (type == 1 && strcmp(track->name, "adam") == 0) {
        const struct test_field name = test_field_get(event.data, event.bytes, 23);
        const struct test_field note = test_field_get(event.data, event.bytes, 4);
        const struct test_field key = test_field_get(note.data, note.bytes, 10);
        CHECK(test_field_is(&name, "adam unit 5") && (ns - BEGIN) % 100 == 60);
        CHECK(test_field_is(&key, "step") && test_field_get(note.data, note.bytes, 3).value >= 8);
    }
}

static const struct track *find_track(const struct track *tracks, const char *name) {
    for (int i = 0; i < TRACKS_MAX; i++) {
        if (strcmp(tracks[i].name, name) == 0) {
            return &tracks[i];
        }
    }
    printf("no track '%s'\n", name);
    exit(1);
}

static void check_perfetto(const struct ox_trace_steps *steps) {
    static struct track tracks[TRACKS_MAX];
    size_t bytes = 0;
    char *const data = exported(ox_trace_write_perfetto, steps, &bytes);
    const unsigned char *at = (const unsigned char *)data;
    const unsigned char *const end = at + bytes;
    for (struct test_field packet; test_field_next(&at, end, &packet);) {
        CHECK(packet.number == 1 && packet.wire == 2);
        CHECK(test_field_get(packet.data, packet.bytes, 10).value == 1);
        if (test_field_has(packet.data, packet.bytes, 60)) {
            take_descriptor(&packet, tracks);
        } else {
            take_event(&packet, tracks);
        }
    }
    CHECK(find_track(tracks, head.title)->slices == 0 && find_track(tracks, "step")->slices == 3);
    CHECK(find_track(tracks, "compute")->slices == 7 && find_track(tracks, "adam")->slices == 2);
    CHECK(find_track(tracks, "compute, predicted")->slices == 7 && find_track(tracks, "optimizer's h2d")->slices == 2);
    CHECK(find_track(tracks, "device memory")->counters >= 10);
    for (int i = 0; i < TRACKS_MAX; i++) {
        CHECK(tracks[i].depth == 0);
    }
    free(data);
}

int main(void) {
    struct ox_trace_steps *steps = NULL;
    make_head();
    put_step(7, 0, 3, 0); /* its end was dropped */
    put_step(8, 100, TASKS, 0);
    put_step(9, 200, TASKS, 4);
    REQUIRE_OK(ox_trace_steps_open(&trace, &steps));
    check_steps(steps);
    check_analysis(&steps->steps[1]);
    check_run_ahead(&steps->steps[1]);
    check_parts(&steps->steps[2]);
    check_memory(&steps->steps[1]);
    check_chrome(steps);
    check_perfetto(steps);
    ox_trace_steps_close(&steps);
    check_typical();
    return test_end();
}
