#include "tests/kit/run/browser.h"

#include "base/file.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE_BYTES_MAX = 1 << 26 };

/* Frames come by the clock, because a browser without a screen may make none. */
static const char before[] = "<script>window.faults = [];\n"
    "window.requestAnimationFrame = (then) => setTimeout(then, 1);\n"
    "window.onerror = (text) => { window.faults.push(text); };\n"
    "console.error = (text) => { window.faults.push(text); };</script>\n";
static const char helpers[] = "<script>\n(() => {\n"
    "  const found = [];\n"
    "  const text = (id) => document.getElementById(id).textContent;\n"
    "  const say = (name, value) => found.push(name + '=' + value);\n"
    "  const later = (then) => setTimeout(then, 50);\n"
    "  const done = () => {\n"
    "    say('faults', JSON.stringify(window.faults));\n"
    "    const result = document.createElement('pre');\n"
    "    result.textContent = '[found ' + found.join(' ') + ']';\n"
    "    document.body.append(result);\n"
    "  };\n";
static const char past[] = "})();\n</script>\n";

const char *browser_find(void) {
    static const char *const paths[] = {"/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"};
    for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) {
        if (access(paths[i], X_OK) == 0) {
            return paths[i];
        }
    }
    test_skip("there is no Chromium");
    return NULL;
}

void browser_instrument(const char *page, const char *script, const char *copy) {
    char *html = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read(page, PAGE_BYTES_MAX, &html, &bytes));
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
    fputs(helpers, out);
    fputs(script, out);
    fputs(past, out);
    fputs(end, out);
    CHECK(fclose(out) == 0);
    free(html);
}

/* Writes what the browser's document holds after the scripts to `path`. */
static void browse(const char *browser, const char *page, unsigned width, bool dark, const char *path) {
    char profile[SYS_PATH_BYTES + 32], url[SYS_PATH_BYTES + 8], window[48];
    snprintf(profile, sizeof profile, "--user-data-dir=%s", test_path("profile"));
    snprintf(url, sizeof url, "file://%s", page);
    snprintf(window, sizeof window, "--window-size=%u,900", width);
    const char *const argv[] = {browser, "--headless=new", "--no-sandbox", "--disable-gpu", window,
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

char *browser_open(const char *browser, const char *copy, unsigned width, bool dark) {
    char *dom = NULL;
    size_t bytes = 0;
    const char *const path = test_path("dom.html");
    browse(browser, copy, width, dark, path);
    REQUIRE_OK(ox_file_read(path, PAGE_BYTES_MAX, &dom, &bytes));
    if (bytes == 0) {
        test_skip("the browser does not run here");
    }
    const char *const found = strstr(dom, "<pre>[found ");
    CHECK(found != NULL);
    char *const said = found != NULL ? strdup(found + 5) : NULL;
    free(dom);
    return said;
}

void browser_check(const char *found, const char *what, const char *const *expected) {
    for (; found != NULL && *expected != NULL; expected++) {
        if (strstr(found, *expected) == NULL) {
            printf("%s: expected %s in %.400s\n", what, *expected, found);
            test_failure_count++;
        }
    }
}
