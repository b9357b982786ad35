/* The page of `offload trace report` in a browser: its script runs without errors, draws, and follows the keys. Skipped
 * where there is no Chromium. */
#include "tests/kit/files.h"
#include "tests/kit/run/browser.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

/* Colours of the timeline are counted, to distinguish an empty one from a drawn one. */
static const char behind[] =
    "  const lanes = document.getElementById('lanes');\n"
    "  const press = (key) => lanes.dispatchEvent(new KeyboardEvent('keydown', { key, cancelable: true }));\n"
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
    "          done();\n"
    "        });\n"
    "      });\n"
    "    });\n"
    "  });\n";

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

static void check_page(const char *browser, const char *copy, bool dark) {
    static const char *const expected[] = {"drawn=true", "memory=true", "zoomed=true", "moved=true", "selected=true",
                                           "next=true", "none=true", "whole=true", "insides=true", "spans=true",
                                           "tables=true", "faults=[]", "ranks=true", NULL};
    char *const found = browser_open(browser, copy, 1400, dark);
    browser_check(found, dark ? "dark" : "light", expected);
    CHECK(found != NULL && strstr(found, "memory=false") == NULL);
    CHECK(found != NULL && strstr(found, dark ? "dark=true" : "dark=false") != NULL);
    free(found);
}

int main(void) {
    const char *const browser = browser_find();
    const char *const copy = test_path("instrumented.html");
    browser_instrument(make_page("page.html", ""), behind, copy);
    check_page(browser, copy, false);
    check_page(browser, copy, true);
    browser_instrument(make_page("ranks.html", "--ranks 2"), behind, copy);
    check_page(browser, copy, false);
    return test_end();
}
