/* Runs beside each other: what each came to, where their options differ, and their curves. */
#ifndef OX_TOOLS_COMPARE_H
#define OX_TOOLS_COMPARE_H

#include "engine/config/config.h"
#include "engine/report/curves.h"

#include <jansson.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_COMPARE_RUNS_MAX = OX_CONFIG_DATA_MAX };

struct ox_compared_run {
    const char *path;  /* as it was given */
    const char *label; /* the end of the path, by which the runs can be told apart */
    struct ox_curves *curves;
    char **options;    /* its options as text, by their index in ox_options; NULL: the run has no record of them */
    double loss;       /* mean of the last tenth of its steps; NaN: no step has one */
    double tokens_per_second; /* of all steps together */
    const char *state; /* "running"; "ended", after all steps; "stopped", to go on; "cut off", without a last word */
    uint64_t max_steps; /* 0: not recorded */
};

struct ox_comparison {
    struct ox_compared_run *runs;
    uint32_t count;
};

/* Reads the runs; `paths` must outlive the result. A folder without metrics.jsonl is OX_E_CONFIG. */
OX_MUST enum ox_status ox_comparison_open(const char *const *paths, uint32_t count, struct ox_comparison *out);
void ox_comparison_close(struct ox_comparison *comparison);

/* Whether runs differ in the option: of those that have a record of them. */
bool ox_comparison_differs(const struct ox_comparison *comparison, uint32_t option_idx);
/* The letter by which a run is called in tables: a, b, c ... */
char ox_comparison_letter(uint32_t run_idx);
/* "12.4 k" of tokens, or "" of 0; `text` has OX_SIZE_TEXT_BYTES. */
const char *ox_comparison_tokens(double tokens, char *text);

/* Three forms of the result. Text has a plot of the losses; the page draws more, needs nothing but a browser, and is
 * one file. */
OX_MUST enum ox_status ox_comparison_text(const struct ox_comparison *comparison, FILE *out);
json_t *ox_comparison_json(const struct ox_comparison *comparison); /* NULL: no memory */
OX_MUST enum ox_status ox_comparison_page(const struct ox_comparison *comparison, FILE *out);

#ifdef __cplusplus
}
#endif
#endif
