/* Quick measurements: what is kept and taken from the file, what makes them be done anew, and what they leave on a
 * drive that is slow, full or refuses. Drives are the threads backend with a hook at each request. */
#include "base/bytes.h"
#include "base/clock.h"
#include "engine/measure/measure_internal.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <string.h>
#include <time.h>

static const struct ox_model_config model = {
    .vocab = 256, .hidden = 64, .layers = 2, .heads = 2, .kv_heads = 1, .head_dim = 32, .width = 128, .contexts = 64,
    .norm = OX_NORM_RMS, .act = OX_ACTIVATION_SWIGLU, .layout = OX_WEIGHT_OUT_IN};

enum { NO_OTHERS = 2 }; /* more than all processors: any measurement is kept */
/* No clock may decide, so that there is time for all parts, an hour; and where the limit is tested. */
static const uint64_t PLENTY_NS = UINT64_C(3600000000000), SHORT_NS = UINT64_C(600000000);

static struct ox_measure_input input_of(const char *folder) {
    return (struct ox_measure_input){.model = &model, .batch = 2, .seq = 32, .compute_threads = 1,
                                     .optimizer_threads = 1, .isa = ox_isa_best(), .queue_depth = 8,
                                     .folder = folder, .limit_ns = PLENTY_NS, .others_most = NO_OTHERS,
                                     .update_bytes = 8 * OX_MIB};
}

static struct ox_machine machine;

static struct ox_measured measure(const struct ox_measure_input *input) {
    struct ox_measured measured;
    ox_machine_nominal(2, &machine);
    ox_machine_fit_drives(&machine, input->drive_count);
    ox_measure_machine(input, &machine, &measured);
    return measured;
}

/* ---- the file ----------------------------------------------------------------------------------------- */

static void test_kept(void) {
    struct ox_measure_input input = input_of(test_path("cache/offload"));
    input.update_bytes = 0; /* as large as in a run */
    const struct ox_measured first = measure(&input);
    const struct ox_machine fresh = machine;
    CHECK(first.seconds > 0 && strlen(first.day) == 10 && first.notes[0] == '\0' && files_exist(first.path));
    CHECK(strncmp(first.path, input.folder, strlen(input.folder)) == 0 && machine.host.packed_bytes_per_flop > 0);
    const struct ox_measured second = measure(&input);
    CHECK(second.seconds == 0 && strcmp(second.path, first.path) == 0 && second.notes[0] == '\0');
    CHECK(memcmp(&fresh.host, &machine.host, sizeof fresh.host) == 0 && fresh.task_seconds == machine.task_seconds);
    input.batch = 3; /* a shape that is not there yet: the rest is */
    const struct ox_measured third = measure(&input);
    CHECK(third.seconds > 0 && fresh.task_seconds == machine.task_seconds && fresh.host.dram_rate ==
          machine.host.dram_rate);
    CHECK(measure(&input).seconds == 0);
    input.batch = 2;
    CHECK(measure(&input).seconds == 0);
}

/* The other format of moments is measured beside fp32, which gives the rate of memory. */
static void test_formats(void) {
    struct ox_measure_input input = input_of(test_path("cache/formats"));
    input.state = (struct ox_state_format){OX_OPTIM_LION, OX_MOMENTS_BF16, false};
    measure(&input);
    CHECK(machine.host.adam.seconds[OX_MOMENTS_F32] > 0 && machine.host.adam.seconds[OX_MOMENTS_BF16] > 0);
    input.on_gpu = true;
    input.compute_threads = 2; /* nothing of compute is asked for */
    CHECK(measure(&input).seconds == 0 && machine.host.packed_bytes_per_flop == 0);
}

static void test_spoilt(void) {
    const struct ox_measure_input input = input_of(test_path("cache/spoilt"));
    struct ox_measured measured = measure(&input);
    const char *const path = plain_pathf("%s", measured.path);
    files_write_text(path, "{\"offload_measurement\": 1, \"mach");
    measured = measure(&input);
    CHECK(measured.seconds > 0 && strstr(measured.notes, path) != NULL);
    CHECK(strstr(measured.notes, "written anew") != NULL);
    CHECK(measure(&input).seconds == 0);
    files_replace_text(path, "\"machine\": \"", "\"machine\": \"another ");
    measured = measure(&input);
    CHECK(measured.seconds > 0 && strstr(measured.notes, "another machine") != NULL);
    CHECK(measure(&input).seconds == 0);
    files_replace_text(path, "\"gemm_flops_per_second\": ", "\"gemm_flops_per_second\": 1e99, \"old\": ");
    measured = measure(&input);
    CHECK(measured.seconds > 0 && strstr(measured.notes, "measured anew") != NULL && machine.host.flops < 1e20);
    CHECK(measure(&input).seconds == 0);
    files_replace_text(path, "\"gemm_flops_per_second\"", "\"gone\"");
    CHECK(measure(&input).seconds > 0 && measure(&input).seconds == 0);
}

/* A first turn whose time is over runs one layer alone, so that attention has the rate of GEMMs; the second one has
 * time for all items and adds them. */
static void test_turns(void) {
    const struct ox_measure_input input = input_of("");
    struct ox_measure_turns *turns = NULL;
    struct ox_measure_compute first, both;
    REQUIRE_OK(ox_measure_turns_open(&input, &turns));
    REQUIRE_OK(ox_measure_turn(turns, ox_clock_ns()));
    ox_measure_turns_result(turns, &first);
    REQUIRE_OK(ox_measure_turn(turns, ox_clock_ns() + PLENTY_NS));
    ox_measure_turns_result(turns, &both);
    ox_measure_turns_close(&turns);
    CHECK(turns == NULL && first.gemm_flops > 0 && first.attention_flops == first.gemm_flops);
    CHECK(both.gemm_flops > 0 && both.attention_flops != both.gemm_flops);
}

/* The rate of a run in bf16 is that of bf16 where the CPU computes in it, measured or kept. */
static void test_bf16(void) {
    struct ox_measure_input input = input_of(test_path("cache/bf16"));
    const char *library = NULL;
    input.products = OX_REAL_BF16;
    for (int i = 0; i < 2; i++) {
        CHECK((measure(&input).seconds > 0) == (i == 0));
        CHECK(machine.host.bf16_flops == (ox_cpu_has_products(OX_REAL_BF16, &library) ? machine.host.flops : 0));
    }
}

/* A folder that cannot be made, as in a home that is read-only; no folder; and a busy machine, whose figures are kept
 * with a mark for the day. */
static void test_not_kept(void) {
    struct ox_measure_input input = input_of(plain_pathf("%s/offload", files_write_text("file", "no folder")));
    struct ox_measured measured = measure(&input);
    CHECK(measured.seconds > 0 && measured.path[0] == '\0' && strstr(measured.notes, "is not kept") != NULL);
    CHECK(measured.day[0] != '\0' && machine.host.packed_bytes_per_flop > 0);
    input.folder = "";
    measured = measure(&input);
    CHECK(measured.seconds > 0 && measured.path[0] == '\0' && measured.notes[0] == '\0');
    input.folder = test_path("cache/busy");
    input.others_most = -1;
    measured = measure(&input);
    CHECK(measured.seconds > 0 && measured.path[0] != '\0' && measured.busy && measured.notes[0] == '\0');
    const double others = measured.others;
    const char *const path = plain_pathf("%s", measured.path);
    measured = measure(&input); /* it serves for the day, and says what it is */
    CHECK(measured.seconds == 0 && measured.busy && measured.others == others && others > 0);
    files_replace_text(path, plain_pathf("\"day\": \"%s\"", measured.day), "\"day\": \"2020-01-01\"");
    measured = measure(&input);
    CHECK(measured.seconds > 0 && measured.busy && measured.again);
    input.others_most = NO_OTHERS; /* a quiet machine is measured anew, once */
    measured = measure(&input);
    CHECK(measured.seconds > 0 && !measured.busy && measured.again);
    measured = measure(&input);
    CHECK(measured.seconds == 0 && !measured.busy && !measured.again);
}

/* ---- drives ------------------------------------------------------------------------------------------- */

static struct {
    struct ox_io_backend backend;
    const char *folder;
    uint32_t count;    /* requests sent */
    uint32_t seen;     /* names in the folder at a request */
    uint64_t delay_ns; /* of each */
} hook;

static enum ox_status hooked_submit(struct ox_io_queue *queue, uint32_t drive_idx, const struct ox_io_req *req) {
    const struct timespec delay = {.tv_nsec = (long)hook.delay_ns};
    nanosleep(&delay, NULL);
    hook.count++;
    hook.seen += files_count(hook.folder, "", "");
    return ox_io_threads()->queue_submit(queue, drive_idx, req);
}

static enum ox_status full(struct ox_drive *drive, uint64_t bytes) {
    (void)drive;
    (void)bytes;
    return ox_fail(OX_E_CONFIG, "the file system has no room");
}

static struct ox_measured measure_drive(const char *name, uint64_t bytes, uint64_t delay_ns) {
    struct ox_measure_input input = input_of("");
    input.limit_ns = delay_ns > 0 ? SHORT_NS : PLENTY_NS;
    input.on_gpu = true; /* compute is not measured, which leaves more time */
    hook.backend = hook.backend.name == NULL ? *ox_io_threads() : hook.backend;
    hook.backend.queue_submit = hooked_submit;
    hook.folder = files_make_folder(name);
    hook.count = hook.seen = 0;
    hook.delay_ns = delay_ns;
    input.io = &hook.backend;
    input.drive_folders = &hook.folder;
    input.drive_bytes = &bytes;
    input.drive_count = 1;
    return measure(&input);
}

/* The file has no name at any request, so however the process ends nothing of it stays. */
static void test_drive(void) {
    const uint64_t bytes = UINT64_C(64) << 20;
    struct ox_measured measured = measure_drive("drive", bytes, 0);
    CHECK(measured.notes[0] == '\0' && strcmp(machine.drives[0].name, "nvme0") == 0 && hook.count > 3);
    CHECK(hook.seen == 0 && files_count(hook.folder, "", "") == 0);
    measured = measure_drive("drive", 1 << 20, 0);
    CHECK(strstr(measured.notes, "too little") != NULL && strcmp(machine.drives[0].name, "nominal") == 0);
    CHECK(hook.count == 0 && measured.day[0] != '\0');
    hook.backend.drive_allocate = full;
    measured = measure_drive("drive", bytes, 0);
    CHECK(strstr(measured.notes, "no room") != NULL && strcmp(machine.drives[0].name, "nominal") == 0);
    CHECK(hook.count == 0 && files_count(hook.folder, "", "") == 0);
    hook.backend.drive_allocate = ox_io_threads()->drive_allocate;
}

/* Measures a drive that takes at least so long for each request, which may send so many. On a machine that is busy the
 * parts before it may leave it no time; then it says so. */
static void measure_slow(uint64_t delay_ns, uint32_t most) {
    const struct ox_measured measured = measure_drive("slow", UINT64_C(1) << 30, delay_ns);
    CHECK(hook.count <= most && (hook.count > 0 || strstr(measured.notes, "so the machine is busy") != NULL));
}

/* A drive's third of 600 ms is over after 20 requests of 10 ms, apart from one of each work that has to run; a drive
 * that takes 60 ms is known by one. */
static void test_slow(void) {
    measure_slow(10000000, 20 + 8 + 1);
    measure_slow(60000000, 1);
}

/* A model whose layers would take minutes and hundreds of gigabytes is measured smaller. */
static void test_large(void) {
    static const struct ox_model_config large = {
        .vocab = 128000, .hidden = 16384, .layers = 120, .heads = 128, .kv_heads = 8, .head_dim = 128, .width = 53248,
        .contexts = 131072, .norm = OX_NORM_RMS, .act = OX_ACTIVATION_SWIGLU, .layout = OX_WEIGHT_OUT_IN};
    struct ox_measure_input input = input_of("");
    input.model = &large;
    input.batch = 16;
    input.seq = 131072;
    input.limit_ns = SHORT_NS;
    CHECK(measure(&input).seconds > 0 && machine.host.flops > 0);
}

int main(void) {
    test_kept();
    test_formats();
    test_spoilt();
    test_turns();
    test_bf16();
    test_not_kept();
    test_drive();
    test_slow();
    test_large();
    return test_end();
}
