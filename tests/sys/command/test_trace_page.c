/* The page of `offload trace report` in a browser: its script runs without errors, draws, and follows the keys. Skipped
 * where there is no Chromium. A copy of the page gets a script of the test's behind its own, which presses keys and
 * writes what it found into the document; the browser prints that. */
#include "base/file.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE_BYTES_MAX = 1 << 26 };

/* Frames come by the clock, because a browser without a screen may make none. */
static const char before[] = "<script>window.faults = [];\n"
    "window.requestAnimationFrame = (then) => setTimeout(then, 1);\n"
    "window.onerror = (text) => { window.faults.push(text); };\n"
    "console.error = (text) => { window.faults.push(text); };</script>\n";

/* Colours of the timeline are counted, to distinguish an empty one from a drawn one. */
static const char behind[] = "<script>\n"
    "(() => {\n"
    "  const found = [], lanes = document.getElementById('lanes');\n"
    "  const text = (id) => document.getElementById(id).textContent;\n"
    "  const press = (key) => lanes.dispatchEvent(new KeyboardEvent('keydown', { key, cancelable: true }));\n"
    "  const say = (name, value) => found.push(name + '=' + value);\n"
    "  const later = (then) => setTimeout(then, 50);\n"
    "  const colours = (canvas) => new Set(new Uint32Array(\n"
    "    canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size;\n"
    "  later(() => {\n"
    "    say('drawn', colours(lanes) > 8);\n"
    "    const data = JSON.parse(text('data'));\n"
    "    say('ranks', document.querySelectorAll('table.ranks tbody tr.typical').length === "
    "(data.ranks.length > 1 ? 1 : 0) && Math.max(...data.plan.lane) >= data.lanes.length * (data.ranks.length - 1));\n"
    "    document.querySelectorAll('canvas[data-tier]').forEach((c) => say('memory', colours(c) > 4));\n"
    "    const whole = text('range');\n"
    "    press('+');\n"
    "    later(() => {\n"
    "      say('zoomed', text('range') !== whole);\n"
    "      const zoomed = text('range');\n"
    "      press('ArrowRight');\n"
    "      later(() => {\n"
    "        say('moved', text('range') !== zoomed);\n"
    "        press('0'); press('n'); press('ArrowDown'); press('ArrowUp');\n"
    "        const task = text('task');\n"
    "        say('selected', task.includes('depends on') && task.includes('issued at'));\n"
    "        press('n');\n"
    "        say('next', text('task') !== task);\n"
    "        press('Enter'); press('Escape'); press('0'); press(']'); press('[');\n"
    "        say('none', text('task').startsWith('Select a task'));\n"
    "        later(() => {\n"
    "          say('whole', text('range') === whole || document.querySelectorAll('#steps button').length > 1);\n"
    "          say('dark', getComputedStyle(document.body).backgroundColor !== 'rgb(247, 247, 245)');\n"
    "          const flows = JSON.parse(text('data')).steps.some((s) => s.flows.length > 0 &&\n"
    "            Object.keys(s.parts).length > 0 && s.flows.every((f) => f[1] <= f[2] && f[4] > 0));\n"
    "          say('insides', flows && document.querySelectorAll('tr.part').length > 0);\n"
    "          say('spans', document.querySelectorAll('table.run tbody tr').length > 2);\n"
    "          say('tables', document.querySelectorAll('tbody tr').length > 20);\n"
    "          say('faults', JSON.stringify(window.faults));\n"
    "          const result = document.createElement('pre');\n"
    "          result.textContent = '[found ' + found.join(' ') + ']';\n"
    "          document.body.append(result);\n"
    "        });\n"
    "      });\n"
    "    });\n"
    "  });\n"
    "})();\n"
    "</script>\n";

static const char *find_browser(void) {
    static const char *const paths[] = {"/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"};
    for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) {
        if (access(paths[i], X_OK) == 0) {
            return paths[i];
        }
    }
    return NULL;
}

static struct sys_process process;

static const char *make_page(const char *name, const char *words) {
    struct sys_args args;
    const char *const model = sys_write_model("llama");
    const char *const text = sys_write_text(20000);
    const char *const drive = files_make_folder("drive");
    sys_args_begin(&args, "train");
    sys_args_add(&args, "--max-steps 4 --max-seq-length 32 --gradient-accumulation-steps 2 --device-mem 64MiB "
                        "--host-mem 128MiB --chunk-elems 2048 --state-tier nvme --compute-threads 1 "
                        "--optimizer-threads 1 --eval-steps 0 --eval-windows 4 --save-steps 0 --trace on "
                        "--overwrite-output-dir");
    sys_args_add(&args, words);
    sys_args_word(&args, "--model=%s", model);
    sys_args_word(&args, "--data=%s", text);
    sys_args_word(&args, "--nvme=%s:64MiB", drive);
    const char *const run = test_path("run");
    sys_args_word(&args, "--output=%s", run);
    sys_run_well(&args, &process);
    sys_args_begin(&args, "trace");
    sys_args_word(&args, "report");
    sys_args_word(&args, "%s", run);
    const char *const path = test_path(name);
    sys_args_word(&args, "--output=%s", path);
    sys_run_well(&args, &process);
    return path;
}

/* The page with the test's scripts about its own. */
static void instrument(const char *path, const char *copy) {
    char *html = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read(path, PAGE_BYTES_MAX, &html, &bytes));
    char *const body = strstr(html, "<body>"), *const end = strstr(html, "</body>");
    FILE *const out = fopen(copy, "w");
    CHECK(body != NULL && end != NULL && out != NULL);
    if (body == NULL || end == NULL || out == NULL) {
        exit(test_end());
    }
    const size_t front = (size_t)(body - html) + 6;
    fwrite(html, 1, front, out);
    fputs(before, out);
    fwrite(html + front, 1, (size_t)(end - html) - front, out);
    fputs(behind, out);
    fputs(end, out);
    CHECK(fclose(out) == 0);
    free(html);
}

/* What the browser's document holds after the scripts, into `path`; it may take half a minute. */
static void browse(const char *browser, const char *page, bool dark, const char *path) {
    char profile[SYS_PATH_BYTES + 32], url[SYS_PATH_BYTES + 8];
    snprintf(profile, sizeof profile, "--user-data-dir=%s", test_path("profile"));
    snprintf(url, sizeof url, "file://%s", page);
    const char *const argv[] = {browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,900",
                                dark ? "--blink-settings=preferredColorScheme=0"
                                     : "--blink-settings=preferredColorScheme=1",
                                "--virtual-time-budget=5000", profile, "--dump-dom", url, NULL};
    const pid_t child = fork();
    if (child == 0) {
        const int out = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), silent = open("/dev/null", O_WRONLY);
        if (out >= 0 && silent >= 0 && dup2(out, STDOUT_FILENO) >= 0 && dup2(silent, STDERR_FILENO) >= 0) {
            execv(browser, (char *const *)argv);
        }
        _exit(126);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
}

static void check_page(const char *browser, const char *page, bool dark) {
    static const char *const expected[] = {"drawn=true", "memory=true", "zoomed=true", "moved=true", "selected=true",
                                           "next=true", "none=true", "whole=true", "insides=true", "spans=true",
                                           "tables=true", "faults=[]", "ranks=true"};
    char *dom = NULL;
    size_t bytes = 0;
    const char *const path = test_path("dom.html");
    browse(browser, page, dark, path);
    REQUIRE_OK(ox_file_read(path, PAGE_BYTES_MAX, &dom, &bytes));
    const char *const found = strstr(dom, "<pre>[found ");
    if (bytes == 0) {
        test_skip("the browser does not run here");
    }
    CHECK(found != NULL);
    for (unsigned i = 0; found != NULL && i < sizeof expected / sizeof *expected; i++) {
        if (strstr(found, expected[i]) == NULL) {
            printf("%s mode: expected %s in %.400s\n", dark ? "dark" : "light", expected[i], found);
            test_failure_count++;
        }
    }
    CHECK(found != NULL && strstr(found, "memory=false") == NULL);
    CHECK(found != NULL && strstr(found, dark ? "dark=true" : "dark=false") != NULL);
    free(dom);
}

int main(void) {
    const char *const browser = find_browser();
    if (browser == NULL) {
        test_skip("there is no Chromium");
    }
    const char *const copy = test_path("instrumented.html");
    instrument(make_page("page.html", ""), copy);
    check_page(browser, copy, false);
    check_page(browser, copy, true);
    instrument(make_page("ranks.html", "--ranks 2"), copy);
    check_page(browser, copy, false);
    return test_end();
}
