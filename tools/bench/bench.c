/* Records and their printing, medians of ratios, thread counts. */
#include "tools/bench/bench.h"

#include "base/assert.h"
#include "base/pool.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- records ------------------------------------------------------------------------------------------- */

static bool is_missed(const struct ox_bench_figure *figure) {
    return figure->limit > 0.0 && strcmp(figure->unit, OX_BENCH_SHARE) == 0 && figure->ratio < 1.0;
}

/* Prints rates in G (1e9) per second and times in microseconds. */
static void print_record(const struct ox_bench_record *record) {
    const struct ox_bench_figure *const figure = &record->figure;
    const bool rate = strstr(figure->unit, "/s") != NULL, time = strcmp(figure->unit, "s") == 0;
    const double by = rate ? 1e-9 : time ? 1e6 : 1.0;
    const int width = figure->limit > 0.0 ? 8 : 0;
    printf("%-42s %9.3f %s%-*s", record->name, figure->value * by, rate ? "G" : time ? "u" : " ", width, figure->unit);
    if (figure->limit > 0.0) {
        printf(" limit %8.3f  ratio %.3f%s", figure->limit * by, figure->ratio, is_missed(figure) ? "  BELOW" : "");
    }
    printf("\n");
    fflush(stdout); /* show it at once: the next figure may take a minute */
}

void ox_bench_add(struct ox_bench *bench, const struct ox_bench_figure *figure, const char *fmt, ...) {
    OX_ASSERT(bench->record_count < OX_BENCH_RECORDS_MAX);
    struct ox_bench_record *const record = &bench->records[bench->record_count++];
    va_list args;
    va_start(args, fmt);
    vsnprintf(record->name, sizeof record->name, fmt, args);
    va_end(args);
    record->figure = *figure;
    if (figure->limit > 0.0 && figure->ratio == 0.0) {
        record->figure.ratio = figure->value / figure->limit;
    }
    bench->missed_count += is_missed(&record->figure);
    if (!bench->json) {
        print_record(record);
    }
}

double ox_bench_value(const struct ox_bench *bench, const char *fmt, ...) {
    char name[OX_BENCH_NAME_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    for (uint32_t i = 0; i < bench->record_count; i++) {
        if (strcmp(bench->records[i].name, name) == 0) {
            return bench->records[i].figure.value;
        }
    }
    return 0.0;
}

void ox_bench_note(const struct ox_bench *bench, const char *fmt, ...) {
    FILE *const out = bench->json ? stderr : stdout;
    if (bench->config->tool.quiet) {
        return;
    }
    va_list args;
    va_start(args, fmt);
    vfprintf(out, fmt, args);
    va_end(args);
    fputc('\n', out);
    fflush(out);
}

json_t *ox_bench_records_json(const struct ox_bench *bench) {
    json_t *const list = json_array();
    int failed = list == NULL;
    for (uint32_t i = 0; i < bench->record_count; i++) {
        const struct ox_bench_figure *const figure = &bench->records[i].figure;
        const bool limited = figure->limit > 0.0;
        failed |= json_array_append_new(list, json_pack(
            "{s:s, s:f, s:s, s:o, s:o}", "name", bench->records[i].name, "value", figure->value, "unit", figure->unit,
            "limit", limited ? json_real(figure->limit) : json_null(), "ratio",
            limited ? json_real(figure->ratio) : json_null()));
    }
    if (failed) {
        json_decref(list);
        return NULL;
    }
    return list;
}

/* ---- medians of ratios ------------------------------------------------------------------------------------------- */

double ox_bench_median_ratio(const double *a, const double *b, uint32_t count) {
    double ratios[OX_BENCH_ROUNDS_MAX];
    OX_ASSERT(count > 0 && count <= OX_BENCH_ROUNDS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        ratios[i] = b[i] > 0.0 ? a[i] / b[i] : 0.0;
    }
    return ox_probe_median(ratios, count);
}

/* ---- rounds, threads, memory ----------------------------------------------------------------------------- */

uint32_t ox_bench_rounds(const struct ox_bench *bench, uint32_t full, uint32_t brief) {
    return bench->config->bench.rounds != 0 ? (uint32_t)bench->config->bench.rounds : bench->brief ? brief : full;
}

uint32_t ox_bench_threads(uint64_t request) {
    return request != 0 ? (uint32_t)request : ox_processor_count();
}

uint32_t ox_bench_thread_counts(uint32_t all, uint32_t counts[OX_BENCH_THREAD_COUNTS_MAX]) {
    uint32_t count = 0;
    for (uint32_t threads = 1; threads < all && count < OX_BENCH_THREAD_COUNTS_MAX - 1; threads *= 2) {
        counts[count++] = threads;
    }
    counts[count++] = all;
    return count;
}

enum ox_status ox_bench_arena_open(const char *label, uint64_t bytes, struct ox_arena *out) {
    return ox_probe_arena_open(label, bytes, OX_BENCH_SMALLER, out);
}

void ox_bench_add_load(const struct ox_probe_load *load, struct ox_bench *bench, const char *part) {
    ox_bench_add(bench, &(struct ox_bench_figure){.value = ox_probe_load_end(load), .unit = OX_BENCH_SHARE},
                 "%s.other_processes", part);
}
