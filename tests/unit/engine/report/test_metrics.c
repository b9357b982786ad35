/* metrics.jsonl: what an earlier run left is cut to its commit, and a disk that refuses leaves whole lines. */
#include "base/file.h"
#include "engine/report/metrics.h"
#include "tests/kit/files.h"
#include "tests/kit/log.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[OX_PATH_BYTES];

static struct ox_metrics *open_at(uint64_t step) {
    struct ox_metrics *metrics = NULL;
    REQUIRE_OK(ox_metrics_open(test_folder(), step, &metrics));
    return metrics;
}

static void step_line(struct ox_metrics *metrics, uint64_t step) {
    struct ox_step_report report = {.step = step, .wall_seconds = 1};
    report.result.loss = 0.1 * (double)step;
    ox_metrics_step(metrics, &report);
}

static void eval_line(struct ox_metrics *metrics, uint64_t step) {
    const double loss = 0.5 * (double)step; /* at odd steps judged by another one */
    ox_metrics_eval(metrics, &(struct ox_eval_report){
        .step = step, .loss = step % 2 == 0 ? loss : 7, .judged = loss});
}

static void expect_last(const struct ox_metrics *metrics, uint64_t step, uint64_t eval_step) {
    struct ox_metrics_last last;
    ox_metrics_last(metrics, &last);
    CHECK(last.step == step && last.eval_step == eval_step);
    CHECK(last.eval_loss == 0.5 * (double)eval_step);
}

static off_t size_now(void) {
    struct stat info = {0};
    CHECK(stat(path, &info) == 0);
    return info.st_size;
}

static void append_text(const char *text) {
    FILE *const file = fopen(path, "a");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* Lines by their first letters of type and step, "s1 s2 e2"; a line that is no object shows as "?". */
static void expect_lines(const char *expected) {
    char *text = NULL, found[256] = "";
    size_t bytes = 0, used = 0;
    REQUIRE_OK(ox_file_read(path, 1 << 22, &text, &bytes));
    CHECK(bytes == 0 || text[bytes - 1] == '\n');
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        char type = '?';
        uint64_t step = 0;
        if (sscanf(line, "{\"type\":\"%c%*[a-z]\",\"step\":%" SCNu64, &type, &step) != 2 ||
            line[strlen(line) - 1] != '}') {
            type = '?';
        }
        used += (size_t)snprintf(found + used, sizeof found - used, "%s%c%" PRIu64, used > 0 ? " " : "", type, step);
    }
    if (strcmp(found, expected) != 0) {
        printf("expected %s, found %s\n", expected, found);
    }
    CHECK(strcmp(found, expected) == 0);
    free(text);
}

static void fill(uint64_t steps) {
    unlink(path);
    struct ox_metrics *metrics = open_at(0);
    expect_last(metrics, 0, 0);
    for (uint64_t step = 1; step <= steps; step++) {
        step_line(metrics, step);
        if (step % 2 == 0) {
            eval_line(metrics, step);
        }
    }
    CHECK(ox_metrics_dropped(metrics) == 0);
    ox_metrics_close(&metrics);
}

/* The line of a process's end stays after the last step, and is no step to resume from. */
static void test_end_line(void) {
    fill(2);
    struct ox_metrics *metrics = open_at(2);
    const struct ox_end_report report = {.step = 2, .max_steps = 4, .retry_count = 3, .store_read_bytes = 4096};
    ox_metrics_end(metrics, &report);
    ox_metrics_close(&metrics);
    metrics = open_at(2);
    expect_last(metrics, 2, 2);
    ox_metrics_close(&metrics);
    char *text = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read(path, 1 << 22, &text, &bytes));
    CHECK(strstr(text, "{\"type\":\"end\",\"step\":2,\"max_steps\":4,\"retries\":3,\"store_rereads\":0,"
                       "\"store_read_bytes\":4096,\"store_write_bytes\":0,\"settled_bytes\":{") != NULL);
    free(text);
    expect_lines("s1 s2 e2 e2");
}

/* Whether the last line of a step of `rank_count` ranks has `words`. */
static bool step_has(uint32_t rank_count, const char *words) {
    static const struct ox_rank_times times[] = {{3, 0.5, 0.25, 0.125, 0, 0}, {2, 0.75, 0, 0.0625, 0, 0}};
    struct ox_step_report report = {.step = 1, .wall_seconds = 1, .predicted_seconds = 1};
    report.result.rank_count = rank_count;
    report.result.ranks = times;
    unlink(path);
    struct ox_metrics *metrics = open_at(0);
    ox_metrics_step(metrics, &report);
    ox_metrics_close(&metrics);
    char *text = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read(path, 1 << 22, &text, &bytes));
    const bool found = strstr(text, words) != NULL;
    free(text);
    expect_lines("s1");
    return found;
}

/* Numbers of each rank are there if there are several. */
static void test_ranks(void) {
    CHECK(step_has(2, ",\"speculated\":false,\"order\":\"off\",\"ranks\":{\"micro_batches\":[3,2],"
                      "\"busy_seconds\":[0.5,0.75],\"stall_seconds\":[0.25,0.0],"
                      "\"peer_wait_seconds\":[0.125,0.0625]}}\n"));
    CHECK(step_has(1, ",\"speculated\":false,\"order\":\"off\"}\n"));
    CHECK(step_has(0, ",\"speculated\":false,\"order\":null}\n"));
}

static void test_cut(void) {
    static const struct {
        uint64_t step, eval_step;
        const char *lines;
    } cuts[] = {{9, 4, "s1 s2 e2 s3 s4 e4"}, {3, 2, "s1 s2 e2 s3"}, {2, 2, "s1 s2 e2"}, {0, 0, ""}};
    fill(4);
    append_text("{\"type\":\"step\",\"st");
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        struct ox_metrics *metrics = open_at(cuts[i].step);
        expect_last(metrics, cuts[i].step < 4 ? cuts[i].step : 4, cuts[i].eval_step);
        ox_metrics_close(&metrics);
        expect_lines(cuts[i].lines);
    }
    fill(3);
    struct ox_metrics *metrics = open_at(2);
    step_line(metrics, 7);
    ox_metrics_close(&metrics);
    expect_lines("s1 s2 e2 s7");
}

/* Lines longer than any of ours, with and without an end, and bytes that are no text. */
static void test_foreign_ends(void) {
    enum { LONG = 700000 };
    char *const text = malloc(LONG + 2);
    memset(text, ' ', LONG);
    memcpy(text + LONG, "\n", 2);
    text[0] = '{';
    for (int with_end = 0; with_end < 2; with_end++) {
        fill(2);
        const off_t before = size_now();
        text[LONG] = with_end ? '\n' : '\0';
        append_text(text);
        append_text(with_end ? "{\"type\":\"step\",\"step\":1} {}\n\n" : "");
        struct ox_metrics *metrics = open_at(5);
        expect_last(metrics, 2, 2);
        ox_metrics_close(&metrics);
        CHECK(size_now() == before);
    }
    unlink(path);
    text[LONG] = '\n';
    append_text(text);
    struct ox_metrics *metrics = open_at(5);
    ox_metrics_close(&metrics);
    CHECK(size_now() == 0);
    free(text);
}

/* Only the end is read: what comes before it, here a hole, may be larger than memory. */
static void test_large(void) {
    const off_t hole = (off_t)5 << 30;
    unlink(path);
    const int fd = open(path, O_WRONLY | O_CREAT, 0644);
    CHECK(fd >= 0);
    if (ftruncate(fd, hole) != 0) {
        close(fd);
        return; /* a file system without such files */
    }
    close(fd);
    append_text("\n{\"type\":\"step\",\"step\":8}\n");
    const off_t kept = size_now();
    append_text("{\"type\":\"step\",\"step\":9}\n");
    struct ox_metrics *metrics = open_at(8);
    expect_last(metrics, 8, 0);
    ox_metrics_close(&metrics);
    CHECK(size_now() == kept);
    unlink(path);
}

static void limit_size(rlim_t bytes) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = bytes;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

/* A limit on the size of files ends a line in its middle, as a full disk does. */
static void test_refused(void) {
    struct rlimit before;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    signal(SIGXFSZ, SIG_IGN);
    fill(1);
    struct ox_metrics *metrics = open_at(1);
    log_warnings = 0;
    limit_size((rlim_t)size_now() + 40);
    step_line(metrics, 2);
    step_line(metrics, 3);
    expect_lines("s1");
    CHECK(log_warnings == 1);
    limit_size(before.rlim_cur);
    step_line(metrics, 4);
    expect_lines("s1 s4");
    CHECK(ox_metrics_dropped(metrics) == 2);
    ox_metrics_close(&metrics);
    CHECK(log_warnings == 2);
}

static void test_no_file(void) {
    struct ox_metrics *metrics = NULL;
    unlink(path);
    CHECK(mkfifo(path, 0644) == 0);
    CHECK(ox_metrics_open(test_folder(), 0, &metrics) == OX_E_CONFIG && metrics == NULL);
    unlink(path);
    CHECK(mkdir(path, 0755) == 0);
    CHECK(ox_metrics_open(test_folder(), 0, &metrics) == OX_E_IO && metrics == NULL);
    CHECK(rmdir(path) == 0);
}

/* The check before a run makes no file, and keeps none open. */
static void test_check(void) {
    struct ox_metrics *metrics = NULL;
    const unsigned open_count = files_count("/proc/self/fd", "", "");
    unlink(path);
    CHECK(ox_metrics_check(test_folder()) == OX_OK && access(path, F_OK) != 0);
    CHECK(ox_metrics_check(test_path("none")) == OX_OK);
    CHECK(ox_metrics_open(test_path("none"), 0, &metrics) == OX_E_IO && metrics == NULL);
    fill(1);
    CHECK(ox_metrics_check(test_folder()) == OX_OK);
    unlink(path);
    CHECK(mkdir(path, 0755) == 0 && ox_metrics_check(test_folder()) == OX_E_IO && rmdir(path) == 0);
    CHECK(files_count("/proc/self/fd", "", "") == open_count);
}

int main(void) {
    log_count_warnings("metrics.jsonl");
    REQUIRE_OK(ox_path_join(test_folder(), "metrics.jsonl", path));
    test_end_line();
    test_ranks();
    test_cut();
    test_foreign_ends();
    test_large();
    test_refused();
    test_no_file();
    test_check();
    return test_end();
}
