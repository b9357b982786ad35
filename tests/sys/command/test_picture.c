/* `offload plan --picture`: the parts that ranks hold add up to the model, and the boxes of a lane come one after the
 * other within the step. */
#include "base/file.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct sys_args args;
static struct sys_process process;

static char *draw(const char *words) {
    char *page = NULL;
    size_t bytes = 0;
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model");
    sys_args_word(&args, "%s", sys_write_model("llama"));
    sys_args_add(&args, "--device cpu --max-seq-length 32 --gradient-accumulation-steps 4 --compute-threads 1");
    sys_args_add(&args, "--picture");
    sys_args_word(&args, "%s", test_path("plan.html"));
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
    REQUIRE_OK(ox_file_read(test_path("plan.html"), 1 << 26, &page, &bytes));
    return page;
}

static unsigned count_of(const char *text, const char *past, const char *words) {
    unsigned count = 0;
    for (const char *at = strstr(text, words); at != NULL && at < past; at = strstr(at + 1, words)) {
        count++;
    }
    return count;
}

/* Rows of units: of each the ranks have the whole between them. */
static void check_holders(const char *page, unsigned ranks) {
    const char *row = strstr(page, "<tbody>");
    const char *const past = strstr(row, "</tbody>");
    unsigned rows = 0;
    for (row = strstr(row, "<tr>"); row != NULL && row < past; row = strstr(row + 1, "<tr>")) {
        const char *const end = strstr(row, "</tr>");
        double share = 0;
        for (const char *at = strstr(row, "<span>"); at != NULL && at < end; at = strstr(at + 1, "<span>")) {
            share += strtod(at + strlen("<span>"), NULL);
        }
        share += 100.0 * (count_of(row, end, "title=\"weights: ") - count_of(row, end, "<span>")); /* a whole unit */
        CHECK(fabs(share - 100) < 1);
        CHECK(count_of(row, end, "title=\"weights: ") == count_of(row, end, "title=\"gradient: "));
        rows++;
    }
    CHECK(rows >= 3 && strstr(page, "<tr><th>embedding</th>") != NULL && strstr(page, "<tr><th>head</th>") != NULL);
    CHECK(count_of(page, past, "<th class=\"text\">rank ") == ranks);
}

static void check_boxes(const char *page) {
    const double left = 96, right = 1200;
    double past = 0, lane = -1;
    unsigned boxes = 0, lanes = 0;
    for (const char *at = strstr(page, "<rect x="); at != NULL; at = strstr(at + 1, "<rect x=")) {
        double x = 0, y = 0, width = 0;
        CHECK(sscanf(at, "<rect x=\"%lf\" y=\"%lf\" width=\"%lf\"", &x, &y, &width) == 3);
        CHECK(x >= left - 0.01 && x + width <= right + 0.35);
        CHECK(y > lane || (y == lane && x >= past - 0.35));
        lanes += y != lane;
        lane = y;
        past = x + width;
        boxes++;
    }
    CHECK(boxes > 20 && lanes == count_of(page, page + strlen(page), "<rect class=\"lane\""));
}

static void test_pages(void) {
    char *page = draw("");
    check_holders(page, 1);
    check_boxes(page);
    CHECK(strstr(page, "<script") == NULL && strstr(page, "forward") != NULL);
    free(page);
    page = draw("--ranks 3 --sharding full_shard");
    check_holders(page, 3);
    check_boxes(page);
    CHECK(strstr(page, "on 3 ranks of ") != NULL && strstr(page, "<tr><th>peer_in</th><td title=\"") != NULL);
    free(page);
}

/* How many neighbours among the stages have different ranks, by the plan's line on the pipeline. */
static unsigned borders_of(const char *plan) {
    int owners[16], owner = 0;
    unsigned stages = 0, borders = 0;
    const char *at = strstr(plan, "pipeline: ");
    CHECK(at != NULL && (at = strstr(at, "; stages ")) != NULL);
    for (at += strlen("; stages "); *at != '\n'; at++) {
        owner += *at == '|';
        if (*at >= '0' && *at <= '9') {
            owners[strtoul(at, NULL, 10)] = owner;
            stages++;
        }
    }
    for (unsigned i = 1; i < stages; i++) {
        borders += owners[i] != owners[i - 1];
    }
    return borders;
}

/* Between ranks of a pipeline each transfer has a line: there and back, for each micro-batch and border. */
static void test_pipeline(void) {
    char *const page = draw("--mesh pp=2");
    const unsigned borders = borders_of(process.outcome.out);
    CHECK(borders > 0 && count_of(page, page + strlen(page), "class=\"transfer\"") == borders * 4 * 2);
    check_boxes(page);
    free(page);
}

/* Each of two ranks has whole experts that the other has not; what crosses of tokens is told as a bound. */
static void check_experts(const char *mesh, const char *row_begin, bool tokens) {
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=%s", sys_write_model("mixtral"));
    sys_args_word(&args, "--picture=%s", test_path("page.html"));
    sys_args_add(&args, "--device cpu --from-scratch --max-seq-length 16 --global-batch-size 2 --batch-size 1 "
                        "--compute-threads 1");
    sys_args_add(&args, mesh);
    sys_run_well(&args, &process);
    char *const page = files_read("page.html", NULL);
    const char *const row = strstr(page, row_begin);
    CHECK(row != NULL && count_of(row, strstr(row, "</tr>"), "<td class=\"home\"></td>") == 1);
    CHECK((strstr(page, "as many as the router chooses") != NULL && strstr(page, "tokens ") != NULL) == tokens);
    free(page);
}

static void test_nowhere(void) {
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model");
    sys_args_word(&args, "%s", sys_write_model("llama"));
    sys_args_add(&args, "--device cpu --picture /nowhere/at/all.html");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status != 0 && strstr(process.outcome.err, "/nowhere/at") != NULL);
}

int main(void) {
    test_pages();
    test_pipeline();
    check_experts("--expert-parallel-size 2", "<tr><th>experts 0 to 3 of block 0", true);
    check_experts("--mesh tp=2,ep=2", "<tr><th>group 1 of blocks, experts 4 to 7", false);
    test_nowhere();
    return test_end();
}
