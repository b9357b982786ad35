/* `offload compare`: what runs came to, where their options differ, and the page in a browser: curves along steps,
 * tokens and time, boxes that hide a run, at the widths of a telephone and of a screen. */
#include "base/json.h"
#include "tests/kit/files.h"
#include "tests/kit/run/browser.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static struct sys_args args;
static struct sys_process process;

static void run(const char *output, const char *more) {
    sys_args_train(&args, sys_write_model("llama"), sys_write_text(4000), output);
    sys_args_add(&args, "--max-seq-length 32 --max-steps 30 --eval-fraction 0.2 --eval-steps 6 --save-steps 0");
    sys_args_add(&args, more);
    sys_run_well(&args, &process);
}

static void compare(const char *words) {
    sys_args_begin(&args, "compare");
    sys_args_word(&args, "%s", test_path("a/run"));
    sys_args_word(&args, "%s", test_path("b/run"));
    sys_args_word(&args, "%s", test_path("slow"));
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
}

static void test_text(void) {
    compare("");
    const char *const out = process.outcome.out;
    CHECK(strstr(out, "a  a/run ") != NULL && strstr(out, "b  b/run ") != NULL && strstr(out, "c  slow ") != NULL);
    CHECK(strstr(out, "  learning-rate\n    a  0.003\n    b  0.003\n    c  0.0001\n") != NULL);
    CHECK(strstr(out, "  ended\nb  b/run ") != NULL);
    if (strstr(out, "    b  layers.0,layers.1\n") == NULL) {
        sys_complain(&process, out);
    }
    CHECK(strstr(out, "  seed\n") != NULL && strstr(out, "max-seq-length") == NULL);
    CHECK(strstr(out, "  output\n") == NULL && strstr(out, "loss of training, mean of each column") != NULL);
}

static void test_json(void) {
    json_t *json = NULL;
    compare("--format json");
    REQUIRE_OK(ox_json_parse("compare", process.outcome.out, strlen(process.outcome.out), &json));
    const json_t *const first = json_array_get(json_object_get(json, "runs"), 0);
    char *const evals = sys_curve(test_path("a/run"), "eval"), *const steps = sys_curve(test_path("a/run"), "step");
    const json_t *const best = json_object_get(first, "best_eval");
    double least = INFINITY, last = 0;
    for (unsigned step = 6; step <= 30; step += 6) {
        least = fmin(least, sys_metric(evals, step, "eval_loss"));
    }
    for (unsigned step = 28; step <= 30; step++) {
        last += sys_metric(steps, step, "loss") / 3;
    }
    CHECK(fabs(json_number_value(json_object_get(best, "eval_loss")) - least) < 1e-6);
    CHECK(fabs(json_number_value(json_object_get(first, "loss")) - last) < 1e-6);
    CHECK(json_array_size(json_object_get(json_object_get(first, "points"), "loss")) == 30);
    CHECK(json_array_size(json_object_get(first, "evals")) == 5);
    free(evals);
    free(steps);
    json_decref(json);
}

static const char script[] =
    "  const charts = () => [...document.querySelectorAll('.chart')];\n"
    "  const lines = (key) => document.querySelectorAll('.chart[data-value=\"' + key + '\"] path.line');\n"
    "  const drawn = (path) => (path.getAttribute('d').match(/L/g) || []).length;\n"
    "  say('charts', charts().length);\n"
    "  say('loss', [...lines('loss')].map(drawn).join(','));\n"
    "  say('evals', [...lines('eval_loss')].map(drawn).join(','));\n"
    "  say('narrow', document.documentElement.scrollWidth <= window.innerWidth);\n"
    "  say('columns', new Set(charts().map((c) => Math.round(c.getBoundingClientRect().left))).size);\n"
    "  const before = lines('loss')[0].getAttribute('d');\n"
    "  const controls = document.getElementById('controls');\n"
    "  const change = (input) => input.dispatchEvent(new Event('input', { bubbles: true }));\n"
    "  controls.elements.smoothing.value = 0.9; change(controls.elements.smoothing);\n"
    "  say('smoothed', lines('loss')[0].getAttribute('d') !== before);\n"
    "  controls.elements.along.value = 'seconds'; change(controls.elements.along[2]);\n"
    "  say('along', [...document.querySelectorAll('.chart text')].some((t) => / (s|min|h)$/.test(t.textContent)));\n"
    "  controls.elements.log.checked = true; change(controls.elements.log);\n"
    "  say('log', drawn(lines('loss')[0]) > 20);\n"
    "  const box = document.querySelector('input[data-run=\"1\"]');\n"
    "  box.checked = false; box.dispatchEvent(new Event('change', { bubbles: true }));\n"
    "  say('hidden', lines('loss').length);\n"
    "  const root = document.querySelector('.chart svg'), rect = root.getBoundingClientRect();\n"
    "  const place = { clientX: rect.left + rect.width / 3, clientY: rect.top };\n"
    "  root.dispatchEvent(new PointerEvent('pointermove', place));\n"
    "  say('tip', document.querySelector('.tip').textContent.includes('slow at'));\n"
    "  say('options', document.querySelectorAll('table.options tbody tr').length > 1);\n"
    "  say('dark', getComputedStyle(document.body).backgroundColor !== 'rgb(247, 247, 245)');\n"
    "  done();\n";

static void test_page(void) {
    const char *const browser = browser_find();
    char words[SYS_PATH_BYTES + 16];
    snprintf(words, sizeof words, "--output %s", test_path("page.html"));
    compare(words);
    static const char *const wide[] = {"charts=5", "loss=29,29,29", "evals=4,4,4", "narrow=true", "columns=2",
                                       "smoothed=true", "along=true", "log=true", "hidden=2", "tip=true",
                                       "options=true", "dark=false", "faults=[]", NULL};
    static const char *const narrow[] = {"charts=5", "narrow=true", "columns=1", "hidden=2", "dark=true", "faults=[]",
                                         NULL};
    browser_instrument(test_path("page.html"), script, test_path("instrumented.html"));
    char *found = browser_open(browser, test_path("instrumented.html"), 1400, false);
    browser_check(found, "wide", wide);
    free(found);
    found = browser_open(browser, test_path("instrumented.html"), 500, true);
    browser_check(found, "narrow", narrow);
    free(found);
}

static void check_state(const char *run, const char *state) {
    json_t *json = NULL;
    sys_args_begin(&args, "compare");
    sys_args_word(&args, "%s", test_path(run));
    sys_args_word(&args, "%s", test_path("slow"));
    sys_run_well(&args, &process);
    const char *const line = strstr(process.outcome.out, "\na  ");
    CHECK(line != NULL && strstr(line, state) != NULL && strstr(line, state) < strchr(line + 1, '\n'));
    sys_args_add(&args, "--format json");
    sys_run_well(&args, &process);
    REQUIRE_OK(ox_json_parse("compare", process.outcome.out, strlen(process.outcome.out), &json));
    const json_t *const first = json_array_get(json_object_get(json, "runs"), 0);
    CHECK(strncmp(json_string_value(json_object_get(first, "state")), state, strcspn(state, " ")) == 0);
    CHECK(json_integer_value(json_object_get(first, "max_steps")) == 1000000);
    json_decref(json);
}

/* A run that goes on is told from one that was stopped, and from one that was killed and says nothing. */
static void test_states(void) {
    static struct sys_process trainer;
    static const int ends[] = {SIGKILL, SIGINT};
    static const char *const states[] = {"cut off at ", "stopped at "}, *const names[] = {"killed", "stopped"};
    for (int i = 0; i < 2; i++) {
        sys_args_train(&args, sys_write_model("llama"), sys_write_text(4000), names[i]);
        sys_args_add(&args, "--max-seq-length 32 --max-steps 1000000 --eval-fraction 0 --save-steps 0");
        sys_args_leash(&args);
        sys_start(&args, &trainer);
        CHECK(sys_await(&trainer, "\nstep 2/"));
        check_state(names[i], "running at ");
        kill(trainer.pid, ends[i]);
        sys_wait(&trainer);
        check_state(names[i], states[i]);
    }
}

int main(void) {
    files_make_folder("a");
    files_make_folder("b");
    run("a/run", "--learning-rate 0.003 --seed 1");
    run("b/run", "--learning-rate 0.003 --seed 2 --freeze layers.0 --freeze layers.1");
    run("slow", "--learning-rate 0.0001 --seed 1");
    test_text();
    test_json();
    test_page();
    test_states();
    return test_end();
}
