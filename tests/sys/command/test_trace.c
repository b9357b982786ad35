/* Recording: a run with --trace and --report-to leaves its files and the same numbers as one without, and `offload
 * trace` and `offload top` show it, in text and on a terminal. */
#include "base/file.h"
#include "base/json.h"
#include "offload/trace/trace_stats.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <poll.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

enum { STEPS = 5, FILE_BYTES_MAX = 1 << 26 };

static struct sys_process process;
static const char *model, *text, *drive;

/* Each kind of buffer has a colour of its own on the page. */
static void check_colours(const char *html) {
    static const char key[] = "\"bufColors\":";
    const char *const at = strstr(html, key);
    json_t *const colours = at == NULL ? NULL : json_loads(at + strlen(key), JSON_DISABLE_EOF_CHECK, NULL);
    CHECK(json_array_size(colours) > 5);
    for (size_t i = 0; i < json_array_size(colours); i++) {
        for (size_t k = 0; k < i; k++) {
            CHECK(!json_equal(json_array_get(colours, i), json_array_get(colours, k)));
        }
    }
    json_decref(colours);
}

static void train(const char *folder, unsigned steps, const char *words) {
    struct sys_args args;
    sys_args_begin(&args, "train");
    sys_args_add(&args, strstr(words, "--ranks") != NULL ? "" : "--tiles 2");
    sys_args_add(&args, "--max-seq-length 32 --batch-size 2 --gradient-accumulation-steps 2 "
                        "--device-mem 64MiB --host-mem 128MiB --chunk-elems 2048 --weights-tier nvme --state-tier nvme "
                        "--compute-threads 1 --optimizer-threads 1 --eval-windows 4 --save-steps 0");
    sys_args_word(&args, "--model");
    sys_args_word(&args, "%s", model);
    sys_args_word(&args, "--data");
    sys_args_word(&args, "%s", text);
    sys_args_word(&args, "--nvme");
    sys_args_word(&args, "%s:64MiB", drive);
    sys_args_word(&args, "--output");
    sys_args_word(&args, "%s", folder);
    sys_args_word(&args, "--max-steps");
    sys_args_word(&args, "%u", steps);
    sys_args_add(&args, strstr(words, "--resume") != NULL ? "" : "--overwrite-output-dir");
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
}

static void tell(const char *command, const char *words) {
    struct sys_args args;
    sys_args_begin(&args, command);
    sys_args_add(&args, words);
    sys_run(&args, &process);
}

static void told(const char *words) {
    if (process.outcome.exit_status != 0 || strstr(process.outcome.out, words) == NULL) {
        printf("expected '%s', got status %d: %s%s\n", words, process.outcome.exit_status, process.outcome.out,
               process.outcome.err);
        test_failure_count++;
    }
}

static void refused(const char *command, const char *words, const char *expected) {
    tell(command, words);
    if (process.outcome.exit_status != 2 || strstr(process.outcome.err, expected) == NULL) {
        printf("offload %s %s: expected status 2 and '%s', got %d: %s\n", command, words, expected,
               process.outcome.exit_status, process.outcome.err);
        test_failure_count++;
    }
}

/* ---- what is recorded --------------------------------------------------------------------------------- */

static void check_task(const struct ox_trace *trace, const struct ox_trace_step *step, uint32_t task_idx) {
    const struct ox_trace_task *const planned = &trace->head->plans[step->plan].tasks[task_idx];
    const struct ox_trace_record *const task = step->tasks[task_idx], *const parts = step->parts[task_idx];
    CHECK(task->queued_ns >= step->begin_ns && task->ended_ns <= step->end_ns);
    CHECK(task->kind == planned->kind && task->bytes == (task->idle ? 0 : planned->bytes));
    for (uint32_t lane = 0; lane < OX_LANE_COUNT; lane++) {
        const uint32_t dep = planned->deps[lane];
        CHECK(dep == 0 || step->tasks[dep - 1] == NULL || step->tasks[dep - 1]->ended_ns <= task->started_ns);
    }
    const char *const name = trace->head->names[OX_TRACE_TASKS].text[planned->kind];
    const bool of_stream = strcmp(name, "adam") == 0 || strcmp(name, "written") == 0 || strcmp(name, "commit") == 0;
    CHECK((parts != NULL) == (!task->idle && of_stream));
    uint64_t sum = 0;
    for (int i = 0; i < OX_TRACE_PART_COUNT && parts != NULL; i++) {
        sum += parts->parts_ns[i];
    }
    CHECK(parts == NULL || sum == task->ended_ns - task->started_ns);
}

/* Tasks in an order that the plan's dependencies allow, bytes as the plan has them. All that the optimizer moves over
 * the drives' links is in the flows, which do not overlap. */
static void check_step(const struct ox_trace *trace, const struct ox_trace_step *step) {
    uint64_t flows[OX_LINK_COUNT] = {0}, past_ns[OX_LINK_COUNT] = {0}, tasks[OX_LINK_COUNT] = {0};
    for (uint32_t k = 0; k < trace->head->plans[step->plan].task_count; k++) {
        if (step->tasks[k] != NULL) {
            check_task(trace, step, k);
            tasks[step->tasks[k]->link % OX_LINK_COUNT] +=
                step->tasks[k]->link == OX_TRACE_NO_LINK ? 0 : step->tasks[k]->bytes;
        }
    }
    for (uint32_t i = 0; i < step->flow_count; i++) {
        const struct ox_trace_record *const flow = step->flows[i];
        CHECK(flow->started_ns >= past_ns[flow->link] && flow->ended_ns <= step->end_ns);
        CHECK(flow->waited_ns <= flow->ended_ns - flow->started_ns && flow->task_idx > 0);
        flows[flow->link] += flow->bytes;
        past_ns[flow->link] = flow->ended_ns;
    }
    for (int link = OX_LINK_NVME_READ; link <= OX_LINK_NVME_WRITE; link++) {
        uint64_t crossed = 0;
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            crossed += step->bytes[link][kind];
        }
        CHECK(flows[link] + tasks[link] == crossed);
    }
}

/* Every task of every step once, and what lies between the steps. */
static void check_recording(const char *folder, bool overlaps) {
    struct ox_trace *trace = NULL;
    struct ox_trace_steps *steps = NULL;
    uint32_t after_steps = 0;
    REQUIRE_OK(ox_trace_open(folder, 0, &trace));
    REQUIRE_OK(ox_trace_steps_open(trace, &steps));
    CHECK(trace->torn == 0 && trace->overwritten == 0 && trace->head->max_steps == STEPS);
    CHECK(steps->whole_count == STEPS);
    uint32_t spans[OX_TRACE_SPAN_COUNT] = {0};
    for (uint32_t i = 0; i < steps->count; i++) {
        const struct ox_trace_step *const step = &steps->steps[i];
        spans[step->span]++;
        CHECK(step->whole == (step->span <= OX_TRACE_SPAN_UPDATE) && step->dropped == 0);
        if (step->whole) {
            check_step(trace, step);
        }
        CHECK(memcmp(step->bytes, step->planned, sizeof step->bytes) == 0);
        after_steps += step->plan == OX_TRACE_EVAL_AFTER_STEP;
    }
    /* Evaluations follow each step, the last one beside the save; overlapping steps finish the last update then. */
    CHECK(spans[OX_TRACE_SPAN_EVAL] > 0 && spans[OX_TRACE_SPAN_SAVE] == 1);
    CHECK(spans[OX_TRACE_SPAN_UPDATE] == (overlaps ? 1 : 0) && after_steps == (overlaps ? STEPS - 1 : 0));
    ox_trace_steps_close(&steps);
    ox_trace_close(&trace);
}

static void test_recording(const char *run) {
    const char *const plain = test_path("plain");
    train(plain, STEPS, "--eval-steps 0");
    char *const curve = sys_curve(plain, "step");
    CHECK(!files_exist("plain/trace.bin") && !files_exist("plain/metrics.prom"));
    train(run, STEPS, "--trace on --report-to all --eval-steps 1");
    char *const traced = sys_curve(run, "step");
    CHECK(sys_same_text("losses with and without a trace", curve, traced));
    check_recording(run, true);
    CHECK(files_count(run, "events.out.tfevents.", "") == 1 && files_count(run, "metrics.prom", "") == 1);
    CHECK(files_count(run, ".offload-", "") == 0);
    train(run, STEPS, "--eval-steps 0"); /* starting over removes what the earlier run has left */
    CHECK(files_count(run, "events.out.tfevents.", "") == 0 && files_count(run, "trace.bin", "") == 0);
    train(run, STEPS, "--eval-steps 0 --trace 2");
    struct ox_trace *trace = NULL;
    struct ox_trace_steps *steps = NULL;
    REQUIRE_OK(ox_trace_open(run, 0, &trace));
    REQUIRE_OK(ox_trace_steps_open(trace, &steps));
    CHECK(steps->count == 2 && steps->whole_count == 2 && steps->steps[1].step == 2);
    ox_trace_steps_close(&steps);
    ox_trace_close(&trace);
    free(curve);
    free(traced);
}

/* A report of either rank's file shows both on one axis: no clock is moved, because both are of one machine, and none
 * waits for itself. The page has the lanes of both. */
static void check_joint(const char *path, json_int_t shown) {
    char words[SYS_PATH_BYTES * 3], *html = NULL, title[32];
    json_t *json = NULL;
    size_t bytes = 0;
    const char *const page = test_path("ranks.html");
    snprintf(words, sizeof words, "report %s --output %s", path, page);
    tell("trace", words);
    told("\n  rank 0 ");
    told("\n  rank 1 ");
    told("\n  together ");
    CHECK(strstr(process.outcome.out, "clocks") == NULL);
    REQUIRE_OK(ox_file_read(page, FILE_BYTES_MAX, &html, &bytes));
    CHECK(strstr(html, "Which rank waited for which") != NULL && strstr(html, "\"ranks\":[0,1]") != NULL);
    free(html);
    snprintf(words, sizeof words, "report %s --format json", path);
    tell("trace", words);
    REQUIRE_OK(ox_json_parse("report", process.outcome.out, strlen(process.outcome.out), &json));
    snprintf(title, sizeof title, "rank %d of 2, ", (int)shown);
    CHECK(strncmp(json_string_value(json_object_get(json, "title")), title, strlen(title)) == 0);
    const json_t *const ranks = json_object_get(json, "ranks");
    const json_t *const each = json_object_get(ranks, "each");
    CHECK(json_array_size(each) == 2 && json_integer_value(json_object_get(ranks, "count")) == 2);
    CHECK(json_real_value(json_object_get(ranks, "clocks_moved_seconds")) == 0);
    for (size_t i = 0; i < json_array_size(each); i++) {
        const json_t *const rank = json_array_get(each, i), *const waited = json_object_get(rank, "waited_seconds");
        CHECK(json_real_value(json_object_get(waited, i == 0 ? "0" : "1")) == 0);
        CHECK(json_integer_value(json_object_get(rank, "received_bytes")) > 0);
        CHECK(json_real_value(json_object_get(rank, "compute_seconds")) > 0);
    }
    json_decref(json);
}

/* Each rank has a file, in which every task of every step is found. */
static void test_ranks(const char *run) {
    train(run, STEPS, "--eval-steps 1 --trace on --ranks 2 --sharding full_shard");
    check_recording(test_pathf("%s/trace.bin", "run"), true);
    check_recording(test_pathf("%s/trace-1.bin", "run"), true);
    check_joint(run, 0);
    check_joint(test_pathf("%s/trace-1.bin", "run"), 1);
    train(run, STEPS, "--eval-steps 0");
    CHECK(files_count(run, "trace", ".bin") == 0);
}

/* A ring that holds little more than one step keeps the newest steps. */
static void test_small_ring(const char *run) {
    struct ox_trace *trace = NULL;
    struct ox_trace_steps *steps = NULL;
    train(run, 40, "--eval-steps 0 --trace on --trace-bytes 160KiB");
    REQUIRE_OK(ox_trace_open(run, 0, &trace));
    REQUIRE_OK(ox_trace_steps_open(trace, &steps));
    CHECK(trace->overwritten > 0 && steps->whole_count > 0 && steps->whole_count < 40);
    CHECK(steps->steps[steps->count - 1].step == 40);
    ox_trace_steps_close(&steps);
    ox_trace_close(&trace);
}

/* A trace that is cut off anywhere still has all whole steps before the cut. */
static void check_cut(const char *path, uint64_t bytes, uint32_t *whole_count) {
    struct ox_trace *trace = NULL;
    struct ox_trace_steps *steps = NULL;
    static struct ox_trace_analysis analysis;
    CHECK(truncate(path, (off_t)bytes) == 0);
    REQUIRE_OK(ox_trace_open(path, 0, &trace));
    REQUIRE_OK(ox_trace_steps_open(trace, &steps));
    CHECK(trace->torn <= 1 && steps->whole_count <= *whole_count);
    for (uint32_t i = 0; i < steps->count; i++) {
        REQUIRE_OK(ox_trace_analyze(trace->head, &steps->steps[i], &analysis));
    }
    *whole_count = steps->whole_count;
    ox_trace_steps_close(&steps);
    ox_trace_close(&trace);
}

static void test_cut(const char *run) {
    char words[SYS_PATH_BYTES * 3];
    char *data = NULL;
    size_t bytes = 0;
    struct ox_trace *trace = NULL;
    const char *const path = test_pathf("%s/trace.bin", run);
    REQUIRE_OK(ox_file_read(path, FILE_BYTES_MAX, &data, &bytes));
    REQUIRE_OK(ox_trace_open(path, 0, &trace));
    const uint64_t head_bytes = bytes - trace->count * OX_TRACE_RECORD_BYTES;
    ox_trace_close(&trace);
    const char *const cut = test_path("cut.bin");
    FILE *const out = fopen(cut, "w");
    CHECK(out != NULL && fwrite(data, 1, bytes, out) == bytes && fclose(out) == 0);
    free(data);
    uint32_t whole_count = STEPS;
    bool reported = false;
    for (uint64_t at = bytes; at > bytes - 3 * OX_TRACE_RECORD_BYTES; at--) {
        check_cut(cut, at, &whole_count);
    }
    for (uint64_t at = bytes - 4 * OX_TRACE_RECORD_BYTES; at > head_bytes + 5000; at -= 4999) {
        check_cut(cut, at, &whole_count);
        if (whole_count == 2 && !reported) {
            snprintf(words, sizeof words, "report %s --output %s", cut, test_path("cut.html"));
            tell("trace", words);
            told("2 whole steps");
            reported = true;
        }
    }
    CHECK(whole_count == 0 && reported);
}

/* ---- what is told ------------------------------------------------------------------------------------- */

static void test_report(const char *run) {
    char words[SYS_PATH_BYTES * 3], *html = NULL;
    json_t *json = NULL;
    size_t bytes = 0;
    snprintf(words, sizeof words, "report %s", run);
    tell("trace", words);
    told("5 whole steps");
    told("longest chain");
    CHECK(strstr(process.outcome.out, "differs") == NULL);
    const char *const page = test_path("page.html");
    snprintf(words, sizeof words, "report %s --format json --output %s", run, page);
    tell("trace", words);
    told("\"typical_step\"");
    REQUIRE_OK(ox_json_parse("report", process.outcome.out, strlen(process.outcome.out), &json));
    CHECK(json_array_size(json_object_get(json, "steps")) == STEPS);
    json_decref(json);
    REQUIRE_OK(ox_file_read(page, FILE_BYTES_MAX, &html, &bytes));
    CHECK(strncmp(html, "<!doctype html>", 15) == 0 && strstr(html, "</html>") != NULL);
    CHECK(strstr(html, "http://") == NULL && strstr(html, "https://") == NULL && strstr(html, " src=") == NULL);
    CHECK(strstr(html, "differs</td>") == NULL && strstr(html, "<th>nvme.read</th>") != NULL);
    CHECK(strstr(html, "is bound by") != NULL && strstr(html, "<th>evaluation</th>") != NULL);
    check_colours(html);
    free(html);
}

/* The lines of metrics.jsonl say what steps and evaluations wrote to drives. */
static double written_by_metrics(void) {
    char *const lines = files_read("persisted/metrics.jsonl", NULL);
    double bytes = 0;
    for (char *save = NULL, *line = strtok_r(lines, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        json_t *const json = json_loads(line, 0, NULL), *value;
        const json_t *const all = json_object_get(json, "bytes");
        const char *kind;
        json_object_foreach(json_object_get(all, "nvme_write"), kind, value) {
            bytes += json_number_value(value);
        }
        json_decref(json);
    }
    free(lines);
    return bytes;
}

/* A state in memory is written by few steps, not by the one of median length: the run wears its drives even so. Batches
 * of an evaluation are one evaluation. The page says what the run is, and draws its loss. */
static void test_persisted(void) {
    char words[SYS_PATH_BYTES * 3];
    struct sys_args args;
    json_t *json = NULL;
    const char *const run = test_path("persisted"), *const page = test_path("persisted.html");
    sys_args_train(&args, model, text, "persisted");
    sys_args_add(&args, "--max-steps 9 --max-seq-length 16 --batch-size 1 --host-mem 64MiB --state-tier host"
                        " --persist-steps 4 --eval-steps 4 --eval-windows 5 --save-steps 0 --compute-threads 1"
                        " --optimizer-threads 1 --trace on");
    sys_args_drive(&args, "persisted-drive", "64MiB");
    sys_run_well(&args, &process);
    snprintf(words, sizeof words, "report %s --output %s", run, page);
    tell("trace", words);
    told("persisted, recorded 20");
    told("  evaluation             3 ");
    told("of 15 batches in all\n");
    snprintf(words, sizeof words, "report %s --format json", run);
    tell("trace", words);
    REQUIRE_OK(ox_json_parse("report", process.outcome.out, strlen(process.outcome.out), &json));
    const double each = json_number_value(json_object_get(json, "drive_bytes_per_step"));
    CHECK(each > 0 && each >= floor(written_by_metrics() / 9));
    json_decref(json);
    char *const html = files_read("persisted.html", NULL);
    CHECK(strstr(html, "<h1>persisted, recorded 20") != NULL && strstr(html, "<svg class=\"loss\"") != NULL);
    CHECK(strstr(html, "makes weights in the format of compute, of their planes") != NULL);
    CHECK(strstr(html, "<th>h2d</th><th>planned</th>") == NULL);
    free(html);
}

static void test_export(const char *run) {
    char words[SYS_PATH_BYTES * 3];
    json_t *json = NULL;
    const char *file = test_path("chrome.json");
    snprintf(words, sizeof words, "export %s/trace.bin --format chrome --output %s", run, file);
    tell("trace", words);
    told("");
    REQUIRE_OK(ox_json_load(file, FILE_BYTES_MAX, &json));
    CHECK(json_array_size(json_object_get(json, "traceEvents")) > 100);
    json_decref(json);
    file = test_path("run.perfetto-trace");
    snprintf(words, sizeof words, "export %s --output %s", run, file);
    tell("trace", words);
    told("");
    CHECK(files_exist(file));
}

static void test_refusals(const char *run) {
    char words[SYS_PATH_BYTES * 2];
    const char *const empty = files_make_folder("empty");
    refused("trace", "", "report|export is missing");
    refused("trace", "report", "PATH is missing");
    refused("trace", "look", "report");
    refused("top", "", "PATH is missing");
    snprintf(words, sizeof words, "report %s", empty);
    refused("trace", words, "--trace on");
    snprintf(words, sizeof words, "%s --once", empty);
    refused("top", words, "metrics.jsonl");
    snprintf(words, sizeof words, "export %s", run);
    refused("trace", words, "--output is missing");
    snprintf(words, sizeof words, "report %s --format chrome", run);
    refused("trace", words, "trace export");
    refused("plan", "--model x --format perfetto", "'perfetto' is not one of text, json");
    refused("train", "--model x --data y --output z --trace often", "off, on or a number of steps");
}

/* ---- top ---------------------------------------------------------------------------------------------- */

static void test_top(const char *run) {
    char words[SYS_PATH_BYTES * 2];
    snprintf(words, sizeof words, "%s --once", run);
    tell("top", words);
    told("step 5/5");
    told("eval at step 5: loss ");
    CHECK(strstr(process.outcome.out, "nan") == NULL); /* the line that ends the run is no evaluation */
    told("nvme_read");
    told("longest chain of tasks in step 5");
    told("compute waits for:");
    told(" ended ");
    CHECK(strstr(process.outcome.out, " eta ") == NULL && strstr(process.outcome.out, "updated") == NULL);
    CHECK(strstr(process.outcome.out, " done ") == NULL && strstr(process.outcome.out, " start ") == NULL);
    CHECK(strchr(process.outcome.out, '\033') == NULL);
    tell("top", run); /* not a terminal: it ends with the run */
    told("step 5/5");
    told("eval at step 5: loss ");
}

/* The last evaluation is shown however many steps follow it, and a loss that is not finite by that name. */
static void test_top_far(void) {
    static char lines[1 << 20];
    char words[SYS_PATH_BYTES * 2];
    static const char *const losses[][2] = {{"2.5", "loss 2.5000, perplexity 12.000"},
                                            {"null", "loss not finite, perplexity 12.000"},
                                            {"\"2.5\"", "loss not given, perplexity 12.000"}};
    files_make_folder("far");
    for (int i = 0; i < 3; i++) {
        size_t used = (size_t)snprintf(lines, sizeof lines, "{\"type\":\"step\",\"step\":1,\"loss\":3}\n"
                                       "{\"type\":\"eval\",\"step\":1,\"eval_loss\":%s,\"perplexity\":12}\n",
                                       losses[i][0]);
        for (unsigned step = 2; used + 128 < sizeof lines; step++) {
            used += (size_t)snprintf(lines + used, sizeof lines - used,
                                     "{\"type\":\"step\",\"step\":%u,\"loss\":3}\n", step);
        }
        files_write_text("far/metrics.jsonl", lines);
        snprintf(words, sizeof words, "%s --once", test_path("far"));
        tell("top", words);
        told("eval at step 1: ");
        told(losses[i][1]);
    }
}

/* A run is said to go on, to have been stopped or not to run by its lock and its last line. */
static void test_top_states(void) {
    static const char step[] = "{\"type\":\"step\",\"step\":1,\"loss\":3,\"seconds\":1}\n";
    char words[SYS_PATH_BYTES * 2];
    const char *const folder = files_make_folder("states");
    files_write_text("states/metrics.jsonl", step);
    files_write_text("states/config.resolved.yaml", "max-steps: 9\n");
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
    snprintf(words, sizeof words, "%s --once", folder);
    tell("top", words);
    told("step 1/9  11%  eta 8s  updated ");
    CHECK(close(fd) == 0);
    tell("top", folder); /* and it ends */
    told("step 1/9  11%  not running: its last line came ");
    char both[512];
    snprintf(both, sizeof both, "%s{\"type\":\"end\",\"step\":1}\n", step);
    files_write_text("states/metrics.jsonl", both);
    tell("top", folder);
    told("step 1/9  11%  stopped ");
}

/* Lanes of several ranks are shares of the time of all; each rank has a line of its own. */
static void test_top_ranks(void) {
    char words[SYS_PATH_BYTES * 2];
    files_make_folder("ranks");
    files_write_text("ranks/metrics.jsonl",
                     "{\"type\":\"step\",\"step\":1,\"loss\":3,\"seconds\":2,\"tokens_per_second\":100,"
                     "\"busy_seconds\":{\"compute\":3},\"stall_seconds\":{\"compute\":0.4},"
                     "\"bytes\":{\"peer_in\":{\"grads\":4e9}},"
                     "\"ranks\":{\"micro_batches\":[3,1],\"busy_seconds\":[2,1],\"stall_seconds\":[0,0.4],"
                     "\"peer_wait_seconds\":[0,1]}}\n");
    snprintf(words, sizeof words, "%s --once", test_path("ranks"));
    tell("top", words);
    told(" 75.0%    10.0%\n");
    told("rank         computes  waits for its lanes  for other ranks  tokens/s\n"
         "0              100.0%                0.0%             0.0%        75\n"
         "1               50.0%               20.0%            50.0%        25\n");
    told("peer_in       2.000 GB/s");
}

/* Reads what the terminal shows until it has `words`; returns false if it closes or shows nothing more. */
static bool await(int terminal, const char *words, char *seen, size_t room) {
    size_t used = strlen(seen);
    struct pollfd input = {.fd = terminal, .events = POLLIN};
    while (strstr(seen, words) == NULL) {
        if (used + 1 >= room || poll(&input, 1, 20000) <= 0) {
            return false;
        }
        const ssize_t got = read(terminal, seen + used, room - used - 1);
        if (got <= 0) {
            return false;
        }
        used += (size_t)got;
        seen[used] = '\0';
    }
    return true;
}

static void test_terminal(const char *run, bool by_signal) {
    static char seen[1 << 16];
    struct termios before, after;
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    CHECK(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    const int inner = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    CHECK(inner >= 0 && tcgetattr(inner, &before) == 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(inner, STDIN_FILENO);
        dup2(inner, STDOUT_FILENO);
        const char *const program = getenv("OX_BIN") != NULL ? getenv("OX_BIN") : "build/offload";
        execl(program, "offload", "top", run, (char *)NULL);
        _exit(126);
    }
    seen[0] = '\0';
    CHECK(await(terminal, "q quits", seen, sizeof seen) && strstr(seen, "step 5/5") != NULL);
    CHECK(strstr(seen, "\033[?1049h") != NULL);
    CHECK(by_signal ? kill(child, SIGTERM) == 0 : write(terminal, "q", 1) == 1);
    CHECK(await(terminal, "\033[?1049l", seen, sizeof seen));
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(tcgetattr(inner, &after) == 0 && after.c_lflag == before.c_lflag);
    close(inner);
    close(terminal);
}

/* Updates in backward that clipping undoes are no part of the prediction, and the report says so. */
static void test_clipped(const char *run) {
    for (int i = 0; i < 2; i++) {
        train(run, STEPS, plain_pathf("--trace on --profile cpu-2-cores --optimizer-overlap speculative "
                                      "--speculative-units 1 --max-grad-norm %s", i == 0 ? "1e-4" : "0"));
        tell("trace", plain_pathf("report %s", run));
        told(", predicted ");
        const char *const late = strstr(process.outcome.out, "for a step whose updates in backward hold; in 5 steps");
        CHECK((late != NULL) == (i == 0));
    }
}

int main(void) {
    model = sys_write_model("llama");
    text = sys_write_text(20000);
    drive = files_make_folder("drive");
    const char *const run = test_path("run");
    test_recording(run);
    test_ranks(run);
    test_small_ring(run);
    train(run, STEPS, "--eval-steps 0 --trace on");
    test_report(run);
    test_clipped(run);
    train(run, STEPS, "--eval-steps 0 --trace on");
    test_persisted();
    test_export(run);
    test_cut(run);
    test_refusals(run);
    test_top_far();
    test_top_ranks();
    test_top_states();
    test_top(run);
    test_terminal(run, false);
    test_terminal(run, true);
    train(run, STEPS + 1, "--eval-steps 0 --trace on --resume latest");
    CHECK(sys_said(&process, "run/trace.bin: begins anew after step 5; what was recorded before is replaced"));
    /* Where no step follows, what was recorded stays. */
    files_write_text("run/trace.bin", "as it was");
    train(run, STEPS + 1, "--eval-steps 0 --trace on --resume latest");
    CHECK(!sys_said(&process, "begins anew"));
    size_t bytes = 0;
    char *const kept = files_read("run/trace.bin", &bytes);
    CHECK(bytes == 9 && memcmp(kept, "as it was", bytes) == 0);
    free(kept);
    return test_end();
}
