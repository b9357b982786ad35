/* `offload top`: shows a run's progress from the files in its folder, without contacting its process. On a terminal it
 * redraws until q; elsewhere it prints after each step. */
#include "tools/command/cmd.h"

#include "base/bytes.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/report/curves.h"
#include "offload/trace/trace_stats.h"
#include "tools/trace/trace_page.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum {
    WINDOW_BYTES = 1 << 18,
    LINE_BYTES_MAX = 1 << 14,
    PARTS_MAX = 256,
    LOSSES_MAX = 60,
    BAR_CELLS = 24,
    REFRESH_MS = 1000,
    SILENT_SECONDS = 60,
    RECORDS_MAX = 1 << 15,
};

/* ---- reading the folder --------------------------------------------------------------------------- */

struct progress {
    const char *folder;
    enum ox_run_lock lock;
    uint64_t step, max_steps; /* 0: no step yet; 0: unknown */
    double age_seconds;       /* since the last line was written */
    double loss, grad_norm, learning_rate, seconds, tokens_per_second;
    double losses[LOSSES_MAX]; /* losses of the last steps, oldest */
    uint32_t loss_count;
    double step_seconds_sum;
    uint32_t step_seconds_count;
    json_t *last, *eval; /* the last line of a step and of an evaluation, or NULL */
    bool ended;          /* the last line is that of the end of a process */
    bool traced;         /* `analysis` holds the last whole step of the trace */
    uint64_t traced_step;
    struct ox_trace_analysis analysis;
    struct ox_trace *trace;
};

static double number(const json_t *line, const char *key) {
    const json_t *const value = json_object_get(line, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void add_line(struct progress *s, json_t *line) {
    const char *const type = json_string_value(json_object_get(line, "type"));
    const bool step = type != NULL && strcmp(type, "step") == 0, eval = type != NULL && strcmp(type, "eval") == 0;
    json_t **const place = step ? &s->last : &s->eval;
    s->ended = type != NULL && strcmp(type, "end") == 0;
    if (s->ended && json_is_integer(json_object_get(line, "max_steps"))) {
        s->max_steps = (uint64_t)json_integer_value(json_object_get(line, "max_steps"));
    }
    if (!step && !eval) {
        json_decref(line);
        return;
    }
    json_decref(*place);
    *place = line;
    if (eval) {
        return;
    }
    s->step = (uint64_t)json_integer_value(json_object_get(line, "step"));
    s->loss = number(line, "loss");
    s->grad_norm = number(line, "grad_norm");
    s->learning_rate = number(line, "learning_rate");
    s->seconds = number(line, "seconds");
    s->tokens_per_second = number(line, "tokens_per_second");
    if (s->loss_count == LOSSES_MAX) {
        memmove(s->losses, s->losses + 1, (LOSSES_MAX - 1) * sizeof *s->losses);
        s->loss_count--;
    }
    s->losses[s->loss_count++] = s->loss;
    if (isfinite(s->seconds)) {
        s->step_seconds_sum += s->seconds;
        s->step_seconds_count++;
    }
}

/* Reads the whole lines in the last part of the file; the first may be cut, and the last may still be being written. */
static void read_lines(struct progress *s, char *text, bool from_start) {
    char *at = text;
    if (!from_start) {
        at = strchr(text, '\n');
        at = at != NULL ? at + 1 : text + strlen(text);
    }
    for (char *end; (end = strchr(at, '\n')) != NULL; at = end + 1) {
        json_t *line = NULL;
        if (ox_json_parse_line("metrics.jsonl", at, (size_t)(end - at), &line) == OX_OK && json_is_object(line)) {
            add_line(s, line);
        } else {
            json_decref(line);
        }
    }
}

/* Finds the last evaluation before byte `end`, if the part that was read has none: part by part towards the front, the
 * parts overlapping by more than a line. */
static enum ox_status find_eval(struct progress *s, int fd, const char *path, char *text, uint64_t end) {
    static const char mark[] = "\n{\"type\":\"eval\"";
    enum ox_status status = OX_OK;
    for (int part = 0; part < PARTS_MAX && s->eval == NULL && end > 0 && status == OX_OK; part++) {
        const uint64_t from = end > WINDOW_BYTES ? end - WINDOW_BYTES : 0;
        status = ox_file_read_at(fd, path, text, end - from, from);
        text[status == OX_OK ? end - from : 0] = '\0';
        for (char *at = text, *next; (next = strstr(at, mark)) != NULL; at = next + 1) {
            char *const line_end = strchr(next + 1, '\n');
            json_t *line = NULL;
            if (line_end != NULL &&
                ox_json_parse_line("metrics.jsonl", next + 1, (size_t)(line_end - next - 1), &line) == OX_OK) {
                add_line(s, line);
            }
        }
        end = from > 0 ? from + LINE_BYTES_MAX : 0;
    }
    return status;
}

/* Reads the last part of metrics.jsonl, and how old it is. */
static enum ox_status read_metrics(struct progress *s) {
    char path[OX_PATH_BYTES];
    enum ox_status status = ox_path_join(s->folder, "metrics.jsonl", path);
    if (status != OX_OK) {
        return status;
    }
    if (!ox_path_exists(s->folder)) {
        return ox_fail(OX_E_CONFIG, "%s: does not exist; name the folder of a run", s->folder);
    }
    if (!ox_path_is_file(path)) {
        return ox_fail(OX_E_CONFIG, "%s: holds no metrics.jsonl; name the folder of a run, as `offload train --output "
                       "DIR` has it", s->folder);
    }
    uint64_t bytes = 0;
    int fd = -1;
    struct stat info;
    char *const text = malloc(WINDOW_BYTES + 1);
    if (text == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to read it", path);
    }
    status = ox_file_open_input(path, &fd, &bytes);
    const uint64_t from = bytes > WINDOW_BYTES ? bytes - WINDOW_BYTES : 0;
    OX_THEN(status, ox_file_read_at(fd, path, text, bytes - from, from));
    if (status == OX_OK) {
        text[bytes - from] = '\0';
        read_lines(s, text, from == 0);
        const bool ended = s->ended;
        if (s->eval == NULL && from > 0) {
            status = find_eval(s, fd, path, text, from + LINE_BYTES_MAX);
        }
        s->ended = ended;
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        s->age_seconds = fstat(fd, &info) == 0 ? (double)(now.tv_sec - info.st_mtim.tv_sec) +
                                                     1e-9 * (double)(now.tv_nsec - info.st_mtim.tv_nsec) : 0;
    }
    if (fd >= 0) {
        close(fd);
    }
    free(text);
    return status;
}

/* Analyzes the last whole step of the trace. A trace that is missing or unreadable is ignored. */
static void read_trace(struct progress *s) {
    char path[OX_PATH_BYTES];
    struct ox_trace_steps *steps = NULL;
    if (ox_path_join(s->folder, "trace.bin", path) != OX_OK || !ox_path_is_file(path) ||
        ox_trace_open(path, RECORDS_MAX, &s->trace) != OX_OK) {
        return;
    }
    s->max_steps = s->trace->head->max_steps;
    if (ox_trace_steps_open(s->trace, &steps) != OX_OK) {
        return;
    }
    for (uint32_t i = steps->count; i-- > 0 && !s->traced;) {
        const struct ox_trace_step *const step = &steps->steps[i];
        if (step->whole && step->span == OX_TRACE_SPAN_STEP &&
            ox_trace_analyze(s->trace->head, step, &s->analysis) == OX_OK) {
            s->traced = true;
            s->traced_step = step->step;
        }
    }
    ox_trace_steps_close(&steps);
}

/* Without a trace, takes the number of steps from the recorded configuration. */
static void read_max_steps(struct progress *s) {
    char path[OX_PATH_BYTES];
    struct ox_config *const config = calloc(1, sizeof *config);
    if (config == NULL) {
        return;
    }
    ox_config_init(config);
    if (ox_path_join(s->folder, "config.resolved.yaml", path) == OX_OK && ox_path_is_file(path) &&
        ox_config_load_yaml(config, path, OX_CMD_TRAIN) == OX_OK) {
        s->max_steps = config->train.max_steps;
    }
    free(config);
}

static void free_progress(struct progress *s) {
    json_decref(s->last);
    json_decref(s->eval);
    ox_trace_close(&s->trace);
}

static enum ox_status read_progress(const char *folder, struct progress *s) {
    *s = (struct progress){.folder = folder, .lock = ox_run_lock_of(folder)}; /* first: what is free writes no more */
    const enum ox_status status = read_metrics(s);
    if (status == OX_OK) {
        read_trace(s);
        if (s->max_steps == 0) {
            read_max_steps(s);
        }
    }
    return status;
}

/* ---- drawing ---------------------------------------------------------------------------------------- */

struct screen {
    FILE *out;
    bool blocks;     /* the terminal can show UTF-8 */
    const char *end; /* end of a line; on a terminal it also clears the rest of it */
};

static void put_bar(const struct screen *screen, double share) {
    const double cells = (share < 0 ? 0 : share > 1 ? 1 : share) * BAR_CELLS;
    for (int i = 0; i < BAR_CELLS; i++) {
        const bool full = cells >= i + 0.5;
        fputs(screen->blocks ? (full ? "█" : "░") : full ? "#" : ".", screen->out);
    }
}

/* Draws the losses, one cell per step. */
static void put_losses(const struct screen *screen, const struct progress *s) {
    static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char letters[] = "_.,-~=*#";
    double low = INFINITY, high = -INFINITY;
    for (uint32_t i = 0; i < s->loss_count; i++) {
        if (isfinite(s->losses[i])) {
            low = fmin(low, s->losses[i]);
            high = fmax(high, s->losses[i]);
        }
    }
    for (uint32_t i = 0; i < s->loss_count; i++) {
        const double height = high > low ? (s->losses[i] - low) / (high - low) : 0;
        const int level = isfinite(height) ? (int)(height * 7.999) : 7;
        if (screen->blocks) {
            fputs(blocks[level], screen->out);
        } else {
            fputc(letters[level], screen->out);
        }
    }
}

enum { NUMBER_BYTES = 48 };

/* Writes a number of a line into `text` (NUMBER_BYTES). Metrics have null for one that is not finite. */
static const char *number_text(const json_t *line, const char *key, int digits, char *text) {
    const json_t *const value = json_object_get(line, key);
    if (json_is_number(value)) {
        snprintf(text, NUMBER_BYTES, "%.*f", digits, json_number_value(value));
    } else {
        snprintf(text, NUMBER_BYTES, "%s", json_is_null(value) ? "not finite" : "not given");
    }
    return text;
}

static bool is_at_end(const struct progress *s) {
    return s->max_steps > 0 && s->step >= s->max_steps;
}

/* What happened to the run when its last line was written. */
static const char *state_text(const struct progress *s) {
    return s->lock == OX_RUN_HELD || (s->lock == OX_RUN_UNKNOWN && !s->ended) ? "updated"
           : !s->ended                                                     ? "not running: its last line came"
                                                                           : is_at_end(s) ? "ended" : "stopped";
}

static void put_top(const struct screen *screen, const struct progress *s) {
    char eta[OX_DURATION_TEXT_BYTES], age[OX_DURATION_TEXT_BYTES], time[OX_SIZE_TEXT_BYTES];
    const bool goes_on = strcmp(state_text(s), "updated") == 0;
    fprintf(screen->out, "%s  step %" PRIu64, s->folder, s->step);
    if (s->max_steps > 0) {
        const double mean = s->step_seconds_count > 0 ? s->step_seconds_sum / s->step_seconds_count : 0;
        const uint64_t left = s->max_steps > s->step ? s->max_steps - s->step : 0;
        ox_duration_text(mean * (double)left, eta);
        fprintf(screen->out, "/%" PRIu64 "  %.0f%%%s%s", s->max_steps,
                100.0 * (double)s->step / (double)s->max_steps, goes_on ? "  eta " : "", goes_on ? eta : "");
    }
    ox_duration_text(s->age_seconds, age);
    fprintf(screen->out, "  %s %s ago%s%s", state_text(s), age, screen->end, screen->end);
    fprintf(screen->out, "loss %.4f  norm %.3g  lr %.2e  %s a step  %.0f tokens/s%s", s->loss, s->grad_norm,
            s->learning_rate, isfinite(s->seconds) ? ox_seconds_text(s->seconds, time) : "?",
            s->tokens_per_second, screen->end);
    put_losses(screen, s);
    fputs(screen->end, screen->out);
    if (s->eval != NULL) {
        const bool pairs = json_object_get(s->eval, "eval_rewards/accuracies") != NULL;
        char loss[NUMBER_BYTES], more[NUMBER_BYTES];
        fprintf(screen->out, "eval at step %.0f: loss %s, %s %s%s", number(s->eval, "step"),
                number_text(s->eval, "eval_loss", 4, loss), pairs ? "rewards/accuracies" : "perplexity",
                number_text(s->eval, pairs ? "eval_rewards/accuracies" : "perplexity", 3, more), screen->end);
    }
}

static void put_lanes(const struct screen *screen, const struct progress *s) {
    const char *lane = NULL;
    json_t *value = NULL;
    json_t *const busy = json_object_get(s->last, "busy_seconds");
    const json_t *const stall = json_object_get(s->last, "stall_seconds");
    const size_t ranks = json_array_size(json_object_get(json_object_get(s->last, "ranks"), "busy_seconds"));
    const double seconds = s->seconds * (ranks > 1 ? (double)ranks : 1); /* of all ranks together */
    if (!(seconds > 0)) {
        return;
    }
    fprintf(screen->out, "%slanes work at the same time, so their shares of the step do not add up%s"
            "lane         busy %*swaits%s", screen->end, screen->end, BAR_CELLS + 4, "", screen->end);
    json_object_foreach(busy, lane, value) {
        const double works = json_number_value(value) / seconds, waits = number(stall, lane) / seconds;
        if (works > 0) {
            fprintf(screen->out, "%-11s ", lane);
            put_bar(screen, works);
            fprintf(screen->out, " %5.1f%%   %5.1f%%%s", 100 * works, 100 * waits, screen->end);
        }
    }
}

/* The share of the step that one of the arrays of numbers of all ranks has for rank `idx`. */
static double rank_share(const struct progress *s, const json_t *ranks, const char *key, size_t idx) {
    const json_t *const value = json_array_get(json_object_get(ranks, key), idx);
    return json_is_number(value) ? 100 * json_number_value(value) / s->seconds : NAN;
}

/* With several ranks, a line for each: the one for which the others wait waits least itself. */
static void put_ranks(const struct screen *screen, const struct progress *s) {
    const json_t *const ranks = json_object_get(s->last, "ranks");
    const json_t *const parts = json_object_get(ranks, "micro_batches");
    double all = 0;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        all += json_number_value(json_array_get(parts, i));
    }
    if (!(all > 0) || !(s->seconds > 0)) {
        return;
    }
    fprintf(screen->out, "%srank         computes  waits for its lanes  for other ranks  tokens/s%s", screen->end,
            screen->end);
    for (size_t i = 0; i < json_array_size(parts); i++) {
        fprintf(screen->out, "%-11zu %8.1f%%  %17.1f%%  %14.1f%%  %8.0f%s", i, rank_share(s, ranks, "busy_seconds", i),
                rank_share(s, ranks, "stall_seconds", i), rank_share(s, ranks, "peer_wait_seconds", i),
                s->tokens_per_second * json_number_value(json_array_get(parts, i)) / all, screen->end);
    }
}

static void put_links(const struct screen *screen, const struct progress *s) {
    const char *link = NULL, *kind = NULL;
    json_t *kinds = NULL, *value = NULL;
    bool first = true;
    json_object_foreach(json_object_get(s->last, "bytes"), link, kinds) {
        double bytes = 0;
        json_object_foreach(kinds, kind, value) {
            bytes += json_number_value(value);
        }
        if (bytes > 0 && s->seconds > 0) {
            char size[OX_SIZE_TEXT_BYTES];
            fprintf(screen->out, "%s%-11s %7.3f GB/s  %10s a step%s", first ? screen->end : "", link,
                    bytes / s->seconds * 1e-9, ox_size_text((uint64_t)bytes, size), screen->end);
            first = false;
        }
    }
}

/* Writes the parts of the step that causes have, in the words of the page. */
static void put_causes(const struct screen *screen, const struct progress *s, const uint64_t *ns) {
    bool first = true;
    for (uint32_t cause = 0; cause < OX_TRACE_CAUSE_COUNT; cause++) {
        const double part = 100.0 * (double)ns[cause] / (double)s->analysis.wall_ns;
        if (part >= 0.5) {
            fprintf(screen->out, "%s %s %.0f%%", first ? "" : ",", ox_page_cause(s->trace->head, cause), part);
            first = false;
        }
    }
}

static void put_chain(const struct screen *screen, const struct progress *s) {
    fprintf(screen->out, "%slongest chain of tasks in step %" PRIu64 ":", screen->end, s->traced_step);
    put_causes(screen, s, s->analysis.chain_ns);
    fprintf(screen->out, "%scompute waits for:", screen->end);
    put_causes(screen, s, s->analysis.held_ns[0]);
    fputs(screen->end, screen->out);
}

static void put_all(const struct screen *screen, const struct progress *s) {
    if (s->last == NULL) {
        fprintf(screen->out, "%s  no step yet%s%s", s->folder, s->lock == OX_RUN_FREE ? ", and not running" : "",
                screen->end);
        return;
    }
    put_top(screen, s);
    put_lanes(screen, s);
    put_ranks(screen, s);
    put_links(screen, s);
    if (s->traced && s->analysis.wall_ns > 0) {
        put_chain(screen, s);
    }
    fflush(screen->out);
}

/* ---- the terminal ----------------------------------------------------------------------------------- */

static volatile sig_atomic_t ended;

static void on_end(int signal_number) {
    ended = signal_number;
}

static void install(int signal_number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler};
    sigemptyset(&action.sa_mask);
    sigaction(signal_number, &action, NULL);
}

static void on_size(int signal_number) {
    (void)signal_number; /* it only wakes poll, so that the screen is redrawn */
}

/* Waits; returns true when q was pressed or the terminal is gone. */
static bool wait_for_key(bool keys, int milliseconds) {
    struct pollfd input = {.fd = keys ? STDIN_FILENO : -1, .events = POLLIN};
    if (poll(&input, 1, milliseconds) <= 0 || !keys) {
        return false;
    }
    char letter = 0;
    const ssize_t got = read(STDIN_FILENO, &letter, 1);
    return got == 0 || (got < 0 && errno != EINTR) || letter == 'q' || letter == 'Q';
}

/* Redraws until q or a signal, then restores the terminal. */
static enum ox_status run_terminal(const char *folder) {
    struct termios before;
    const bool keys = isatty(STDIN_FILENO) == 1 && tcgetattr(STDIN_FILENO, &before) == 0;
    const bool utf8 = setlocale(LC_CTYPE, "") != NULL && strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    const struct screen screen = {.out = stdout, .blocks = utf8, .end = "\033[K\n"};
    enum ox_status status = OX_OK;
    if (keys) {
        struct termios raw = before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    printf("\033[?1049h\033[?25l"); /* alternate screen, no cursor */
    for (bool quit = false; status == OX_OK && ended == 0 && !quit;) {
        struct progress progress;
        status = read_progress(folder, &progress);
        if (status == OX_OK) {
            printf("\033[H");
            put_all(&screen, &progress);
            printf("\033[K\nq quits\033[K\033[J");
            fflush(stdout);
        }
        free_progress(&progress);
        quit = status == OX_OK && wait_for_key(keys, REFRESH_MS);
    }
    printf("\033[?25h\033[?1049l");
    fflush(stdout);
    if (keys) {
        tcsetattr(STDIN_FILENO, TCSANOW, &before);
    }
    return status;
}

/* Prints after each step until the run has ended. */
static enum ox_status run_plain(const char *folder, bool once) {
    const struct screen screen = {.out = stdout, .end = "\n"};
    uint64_t printed = UINT64_MAX;
    double printed_eval = -1;
    for (bool more = true; more && ended == 0;) {
        struct progress progress;
        const enum ox_status status = read_progress(folder, &progress);
        if (status != OX_OK) {
            free_progress(&progress);
            return status;
        }
        const double eval = progress.eval != NULL ? number(progress.eval, "step") : -1;
        if (progress.step != printed || eval != printed_eval) {
            fputs(printed == UINT64_MAX ? "" : "\n", stdout);
            printed = progress.step;
            printed_eval = eval;
            put_all(&screen, &progress);
        }
        /* The last evaluation comes after the last step, unless the process was killed. */
        const bool over = is_at_end(&progress) && (progress.ended || progress.age_seconds > SILENT_SECONDS);
        more = !once && !ferror(stdout) && !over && progress.lock != OX_RUN_FREE;
        free_progress(&progress);
        if (more) {
            wait_for_key(false, REFRESH_MS);
        }
    }
    return OX_OK;
}

int ox_cmd_top(const struct ox_config *config) {
    if (config->files.run[0] == '\0') {
        return ox_cmd_exit(ox_fail(OX_E_CONFIG, "PATH is missing; name the folder of a run"));
    }
    if (config->tool.once) {
        return ox_cmd_exit(run_plain(config->files.run, true));
    }
    install(SIGINT, on_end);
    install(SIGTERM, on_end);
    install(SIGHUP, on_end);
    install(SIGWINCH, on_size);
    return ox_cmd_exit(isatty(STDOUT_FILENO) == 1 ? run_terminal(config->files.run)
                                                  : run_plain(config->files.run, false));
}
