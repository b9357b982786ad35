/* What a run's last bits depend on beside its options: what computes, in run.json, and on a GPU the algorithm of every
 * GEMM, in gemms.txt. That file begins with a line about the GPU; each further line is a kind of GEMM, ": " and its
 * algorithm, as this and earlier processes of the run have used it on this GPU. */
#include "engine/run/trainer_internal.h"

#include "base/bytes.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)OX_ARITHMETIC_BYTES == (int)OX_CPU_GEMMS_BYTES, "run.json has room for the CPU's text");
_Static_assert((int)OX_ARITHMETIC_BYTES == (int)OX_CUDA_GEMMS_BYTES, "run.json has room for the GPU's text");

static const char as_before[] = "from here on the last digits may differ from a run that was never interrupted";

/* Each CPU core's kernels, and each GPU's, round in their own way. The CPU device's threads are always 1 (kernels/cpu),
 * so they change nothing. */
bool ox_trainer_record_arithmetic(struct ox_trainer *trainer) {
    const bool on_cpu = trainer->engine_config.device == OX_DEVICE_CPU;
    char *const before = trainer->identity.arithmetic;
    char now[OX_ARITHMETIC_BYTES];
    if (on_cpu) {
        ox_cpu_gemms_text(ox_engine_precision(&trainer->engine_config)->products, now);
    } else {
        ox_cuda_gemms_text(&trainer->gpu, now);
    }
    const bool differs = strcmp(before, now) != 0;
    const size_t now_bytes = strlen(now), before_bytes = strlen(before);
    const bool gained = now_bytes > before_bytes + 2 && strcmp(now + now_bytes - before_bytes, before) == 0;
    const bool lost = before_bytes > now_bytes + 2 && strcmp(before + before_bytes - now_bytes, now) == 0;
    if (!differs || before[0] == '\0' || !ox_trainer_leads(trainer)) {
        ; /* nothing to say */
    } else if (on_cpu && (gained || lost)) { /* the library for bf16 alone, as of another --dtype */
        ox_log(OX_LOG_WARN, "GEMMs are %s of %.*s: the last digits may differ", gained ? "now" : "no longer",
               (int)(gained ? now_bytes - before_bytes : before_bytes - now_bytes) - 2, gained ? now : before);
    } else {
        ox_log(OX_LOG_WARN, "GEMMs are now of %s, and were of %s: %s%s", now, before, as_before,
               on_cpu && strstr(before, "cuBLASLt") == NULL
                   ? "; OPENBLAS_CORETYPE and ONEDNN_MAX_CPU_ISA choose kernels" : "");
    }
    snprintf(before, sizeof now, "%s", now);
    return differs;
}

/* ---- gemms.txt -------------------------------------------------------------------------------------- */

enum { GEMMS_BYTES_MAX = 1 << 20 };

/* Length of a line without its end. */
static size_t line_length(const char *line) {
    return strcspn(line, "\n");
}

static const char *next_line(const char *line) {
    const size_t length = line_length(line);
    return line + length + (line[length] == '\n');
}

/* Length of what a line says of the GEMM, with the colon: up to it, all lines of the same kind agree. */
static size_t kind_length(const char *line) {
    const size_t length = line_length(line);
    const char *const colon = memchr(line, ':', length);
    return colon != NULL ? (size_t)(colon - line) + 1 : length;
}

/* The line of the same kind of GEMM as `line`; NULL without one. */
static const char *find_kind(const char *lines, const char *line) {
    const size_t length = kind_length(line);
    for (; *lines != '\0'; lines = next_line(lines)) {
        if (strncmp(lines, line, length) == 0) {
            return lines;
        }
    }
    return NULL;
}

/* The text of the file as an earlier process left it; "" without one, or, with a warning, where it cannot be read. The
 * caller frees it; NULL without memory. */
static char *read_before(const char *path) {
    char *text = NULL;
    size_t bytes = 0;
    if (ox_path_exists(path) && ox_file_read(path, GEMMS_BYTES_MAX, &text, &bytes) != OX_OK) {
        ox_log(OX_LOG_WARN, "%s; it is written anew, and algorithms are not compared", ox_error_text());
        text = NULL;
    }
    return text != NULL ? text : calloc(1, 1);
}

/* Whether a line of the same kind names another algorithm. */
static bool differs(const char *line, const char *before) {
    return line_length(before) != line_length(line) || strncmp(before, line, line_length(line)) != 0;
}

/* Tells of GEMMs that had another algorithm in `before`. */
static void compare(const char *now, const char *before) {
    char example[2 * OX_CUDA_GEMM_BYTES + 16] = "";
    uint32_t count = 0;
    for (const char *line = next_line(now); *line != '\0'; line = next_line(line)) {
        const char *const was = find_kind(before, line);
        if (was != NULL && differs(line, was) && count++ == 0) {
            const size_t kind = kind_length(was);
            snprintf(example, sizeof example, "%.*s, and was%.*s", (int)line_length(line), line,
                     (int)(line_length(was) - kind), was + kind);
        }
    }
    if (count > 0) {
        ox_log(OX_LOG_WARN, "the algorithm of %u GEMM%s has changed, such as that of %s; %s", count,
               ox_plural(count), example, as_before);
    }
}

/* The text of the file for this process alone. NULL without memory, as below. */
static char *write_own(const struct ox_trainer *trainer, uint32_t *count) {
    const uint32_t driver = trainer->gpu.driver_version;
    char line[OX_CUDA_GEMM_BYTES];
    char *text = NULL;
    size_t bytes = 0;
    FILE *const out = open_memstream(&text, &bytes);
    if (out == NULL) {
        return NULL;
    }
    fprintf(out, "%s; driver for CUDA %u.%u\n", trainer->identity.arithmetic, driver / 1000, driver % 1000 / 10);
    for (*count = 0; ox_engine_gemm_text(trainer->engine, *count, line); ++*count) {
        fprintf(out, "%s\n", line);
    }
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* Adds lines of `before` whose GEMMs this process has not come across, unless those are of another GPU or library. */
static char *add_before(const char *own, const char *before) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *const out = open_memstream(&text, &bytes);
    if (out == NULL) {
        return NULL;
    }
    fputs(own, out);
    const char *const first = differs(own, before) ? "" : next_line(before);
    for (const char *line = first; *line != '\0'; line = next_line(line)) {
        if (find_kind(own, line) == NULL) {
            fprintf(out, "%.*s\n", (int)line_length(line), line);
        }
    }
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static enum ox_status write_gemms(const struct ox_trainer *trainer, const char *own) {
    char path[OX_PATH_BYTES];
    OX_TRY(ox_path_join(trainer->config.files.output_dir, OX_GEMMS_NAME, path));
    char *const before = read_before(path);
    if (before != NULL) {
        compare(own, before);
    }
    char *const text = before != NULL ? add_before(own, before) : NULL;
    const enum ox_status written =
        text != NULL ? ox_file_replace(path, text, strlen(text)) : ox_fail(OX_E_NOMEM, "%s: no memory", path);
    free(text);
    free(before);
    return written;
}

void ox_trainer_record_gemms(struct ox_trainer *trainer) {
    char line[OX_CUDA_GEMM_BYTES];
    if (!ox_engine_gemm_text(trainer->engine, trainer->gemm_count, line)) {
        return;
    }
    char *const own = write_own(trainer, &trainer->gemm_count);
    const enum ox_status status =
        own != NULL ? write_gemms(trainer, own) : ox_fail(OX_E_NOMEM, "no memory for their names");
    if (status != OX_OK) {
        ox_log(OX_LOG_WARN, "the algorithms of GEMMs are not recorded: %s", ox_error_text());
    }
    free(own);
}
