/* The status line on terminals of several widths, and on one whose width changes: it fits, messages stand above it, and
 * nothing of it is left behind. */
#include "tests/kit/terminal.h"
#include "tests/kit/test.h"
#include "tools/start/status_line.h"

#include <string.h>
#include <unistd.h>

static struct terminal terminal;
static char rows[TERMINAL_TEXT_BYTES];

static void show(unsigned step) {
    struct ox_status_line line = {.count = 0};
    ox_status_add(&line, 0, "step %u/200", step);
    ox_status_add(&line, 1, "loss 4.1460");
    ox_status_add(&line, 4, "norm 2.92");
    ox_status_add(&line, 5, "%s", "");
    ox_status_add(&line, 3, "nvme_read 0.42 nvme_write 0.17 GB/s");
    ox_status_add(&line, 2, "eta 41s");
    ox_status_show(&line);
}

static void expect(const char *what, const char *wanted) {
    terminal_take(&terminal);
    if (strcmp(terminal_rows(&terminal, rows), wanted) != 0) {
        printf("%s: the terminal has\n%sand should have\n%s", what, rows, wanted);
        test_failure_count++;
    }
}

static void begin(unsigned columns) {
    terminal_open(&terminal, columns);
    CHECK(dup2(terminal.slave, STDERR_FILENO) == STDERR_FILENO);
}

static void end(void) {
    ox_status_clear();
    terminal_close(&terminal);
}

static void test_widths(void) {
    static const struct {
        unsigned columns;
        const char *text;
    } cases[] = {
        {200, "step 7/200 | loss 4.1460 | norm 2.92 | nvme_read 0.42 nvme_write 0.17 GB/s | eta 41s\n"},
        {86, "step 7/200 | loss 4.1460 | norm 2.92 | nvme_read 0.42 nvme_write 0.17 GB/s | eta 41s\n"},
        {85, "step 7/200 | loss 4.1460 | nvme_read 0.42 nvme_write 0.17 GB/s | eta 41s\n"},
        {73, "step 7/200 | loss 4.1460 | eta 41s\n"},
        {36, "step 7/200 | loss 4.1460 | eta 41s\n"},
        {35, "step 7/200 | loss 4.1460\n"},
        {12, "step 7/200\n"},
        {9, "step 7/\n"},
        {2, "\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(cases[i].columns);
        show(6);
        show(7);
        expect(test_failure_count == 0 ? "widths" : cases[i].text, cases[i].text);
        end();
    }
}

static void test_messages(void) {
    begin(40);
    ox_status_say("starting\n");
    show(1);
    ox_status_say("saved run/checkpoint-1, whose path is longer than the terminal is wide\n");
    expect("a message", "starting\nsaved run/checkpoint-1, whose path is\n    longer than the terminal is wide\n"
                        "step 1/200 | loss 4.1460 | eta 41s\n");
    show(2);
    ox_status_clear();
    ox_status_say("eval\n");
    show(3);
    ox_status_keep();
    ox_status_say("done\n");
    expect("the end", "starting\nsaved run/checkpoint-1, whose path is\n    longer than the terminal is wide\neval\n"
                      "step 3/200 | loss 4.1460 | eta 41s\ndone\n\n");
    end();
}

/* Lines that stay come above the one that is shown, in their order with messages. */
static void test_lines_stay(void) {
    struct ox_status_line line = {.count = 0};
    ox_status_add(&line, 0, "step 2/200");
    begin(40);
    show(1);
    ox_status_log(&line);
    show(3);
    ox_status_say("saved\n");
    expect("lines", "step 2/200\nsaved\nstep 3/200 | loss 4.1460 | eta 41s\n");
    end();
}

static void test_resize(void) {
    static const unsigned widths[] = {40, 100, 20, 13, 200, 12, 87, 39};
    begin(100);
    ox_status_say("before\n");
    show(1);
    terminal_take(&terminal);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        terminal_resize(&terminal, widths[i]);
        if (i % 2 == 0) {
            show(2);
        } else {
            ox_status_say("m\n");
        }
        terminal_take(&terminal);
    }
    terminal_resize(&terminal, 24);
    ox_status_keep();
    expect("other widths", "before\nm\nm\nm\nm\nstep 2/200\n\n");
    end();
}

static void test_wide(void) {
    struct ox_status_line line = {.count = 0};
    begin(14);
    ox_status_add(&line, 0, "%s", "語語e\u0301語語語語語\n\x01語");
    ox_status_show(&line);
    expect("wide letters", "語語e語語語\n"); /* 5 * 2 + 1 columns; the terminal of the kit drops accents */
    line.parts[0].text[0] = (char)0xff;
    ox_status_show(&line);
    CHECK(terminal.cell <= 12);
    end();
}

/* Files and dumb terminals get whole lines. */
static void test_plain(void) {
    begin(20);
    setenv("TERM", "dumb", 1);
    show(1);
    ox_status_say("saved\n");
    ox_status_keep();
    setenv("TERM", "xterm", 1);
    terminal_resize(&terminal, 200);
    expect("no live terminal",
           "step 1/200 | loss 4.1460 | norm 2.92 | nvme_read 0.42 nvme_write 0.17 GB/s | eta 41s\nsaved\n\n");
    end();
}

int main(void) {
    setenv("TERM", "xterm", 1);
    test_widths();
    test_messages();
    test_lines_stay();
    test_resize();
    test_wide();
    test_plain();
    return test_end();
}
