/* Measures the parts that no earlier run measured, within a limit, and puts all of them into a machine. */
#include "engine/measure/measure.h"

#include "engine/measure/measure_internal.h"
#include "engine/measure/probe.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/pool.h"

#include <cblas.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/statfs.h>
#include <sys/utsname.h>
#include <time.h>

enum { TASKS = 500, TASK_ROUNDS = 5 };
/* Shares of the limit. Compute has two turns, one before all other parts and one after them. */
static const double COMPUTE_SHARE = 3.0 / 12, MEMORY_SHARE = 3.0 / 12, DRIVES_SHARE = 4.0 / 12,
                    COMPUTE_AGAIN_SHARE = 2.0 / 12;
static const uint64_t APART_NS = UINT64_C(1000000000);

static const double LEAST_MARK = 0.001; /* of a part that is marked */
static const long LOOK_NS = 200000000;  /* how long the load is looked at before a part is measured anew */

struct measuring {
    const struct ox_measure_input *input;
    struct ox_machine *machine;
    struct ox_measured *out;
    struct ox_measure_kept kept;
    char today[OX_MEASURE_DAY_BYTES];
    uint64_t begin_ns;
    bool measured, took; /* something was measured now; something was taken from the file */
    bool hurried;        /* compute had one turn */
    bool looked, quiet;  /* the load was looked at; others took no more than they may */
    struct ox_measure_turns *compute; /* has had its first turn, until then; NULL: it is kept, or not measured */
    uint64_t compute_end_ns;
};

OX_PRINTF(2, 3) static void add_note(struct ox_measured *out, const char *fmt, ...) {
    const size_t used = strlen(out->notes);
    va_list args;
    va_start(args, fmt);
    const int length = vsnprintf(out->notes + used, sizeof out->notes - used, fmt, args);
    va_end(args);
    if (length > 0 && used + (size_t)length + 1 < sizeof out->notes) {
        memcpy(out->notes + used + (size_t)length, "\n", 2);
    }
}

/* ---- what a measurement is of ------------------------------------------------------------------------- */

void ox_cpu_name(char *name) {
    char line[256];
    struct utsname system;
    snprintf(name, OX_CPU_NAME_BYTES, "%s", uname(&system) == 0 ? system.machine : "CPU");
    FILE *const info = fopen("/proc/cpuinfo", "re");
    while (info != NULL && fgets(line, sizeof line, info) != NULL) {
        const char *const colon = strchr(line, ':');
        if (strncmp(line, "model name", strlen("model name")) == 0 && colon != NULL) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(name, OX_CPU_NAME_BYTES, "%.80s", colon + 1 + strspn(colon + 1, " "));
            break;
        }
    }
    if (info != NULL) {
        fclose(info);
    }
}

static void machine_text(const char *cpu, char text[OX_MEASURE_KEY_BYTES]) {
    char size[OX_SIZE_TEXT_BYTES];
    struct ox_memory memory;
    ox_memory_read("", &memory);
    snprintf(text, OX_MEASURE_KEY_BYTES, "%s, %" PRIu32 " cores, %s, %s kernels of %.80s", cpu, ox_processor_count(),
             ox_size_text(memory.total, size), openblas_get_corename(), openblas_get_config());
}

static bool computes_in_bf16(const struct ox_measure_input *input, const char **library) {
    return input->products == OX_REAL_BF16 && ox_cpu_has_products(input->products, library);
}

static void compute_key(const struct ox_measure_input *input, char key[OX_MEASURE_KEY_BYTES]) {
    const struct ox_model_config *const model = input->model;
    const char *library = NULL;
    const bool bf16 = computes_in_bf16(input, &library), halves = input->products == OX_REAL_F16;
    snprintf(key, OX_MEASURE_KEY_BYTES,
             "compute in two turns: %u x %u tokens, %u layers, hidden %u, heads %u/%u x %u, width %u, vocabulary %u, "
             "window %u, kind %d.%d; %u threads%s%.64s", input->batch, input->seq, model->layers, model->hidden,
             model->heads, model->kv_heads, model->head_dim, model->width, model->vocab,
             ox_layers_has(&model->windowed, 0) ? model->window : 0, (int)model->act, (int)model->layout,
             input->compute_threads, bf16 || halves ? "; " : "", bf16 ? library : halves ? "fp16" : "");
}

/* A drive is known by its file system, which the folders in it share. */
static void drive_key(const struct ox_measure_input *input, uint32_t drive_idx, char key[OX_MEASURE_KEY_BYTES]) {
    struct statfs system;
    uint32_t id[2] = {0, 0};
    memset(&system, 0, sizeof system);
    if (statfs(input->drive_folders[drive_idx], &system) == 0) {
        memcpy(id, &system.f_fsid, sizeof id);
    }
    snprintf(key, OX_MEASURE_KEY_BYTES, "drive: file system %08x%08x, kind %lx, %llu blocks; %s, depth %u", id[0],
             id[1], (unsigned long)system.f_type, (unsigned long long)system.f_blocks, input->io->name,
             input->queue_depth);
}

/* ---- parts ---------------------------------------------------------------------------------------------- */

/* Whether others leave the machine alone now; looked at once. */
static bool is_quiet(struct measuring *m) {
    if (!m->looked) {
        struct ox_probe_load load;
        ox_probe_load_begin(&load);
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        m->looked = true;
        m->quiet = ox_probe_load_end(&load) <= m->input->others_most;
        m->begin_ns += LOOK_NS; /* the limit is of measuring */
    }
    return m->quiet;
}

/* Takes a part that is kept; false if it is to be measured. One of a busy machine serves for the day, unless that is
 * quiet now. */
static bool take_kept(struct measuring *m, const char *key, struct ox_measure_value *values, uint32_t count) {
    char day[OX_MEASURE_DAY_BYTES];
    double others = 0;
    if (!ox_measure_kept_get(&m->kept, key, values, count, day, &others)) {
        return false;
    }
    if (others > 0 && (strcmp(day, m->today) != 0 || is_quiet(m))) {
        m->out->again = true;
        return false;
    }
    m->took = true;
    m->out->busy = m->out->busy || others > 0;
    m->out->others = fmax(m->out->others, others);
    if (m->out->day[0] == '\0' || strcmp(day, m->out->day) < 0) {
        snprintf(m->out->day, sizeof m->out->day, "%s", day);
    }
    return true;
}

static void put(struct measuring *m, const char *key, const struct ox_measure_value *values, uint32_t count) {
    m->measured = true;
    if (m->out->day[0] == '\0') {
        snprintf(m->out->day, sizeof m->out->day, "%s", m->today);
    }
    ox_measure_kept_put(&m->kept, key, values, count, m->today);
}

/* Sets the time at which a part with this share of the limit ends; fails if the limit leaves it less than half. */
static enum ox_status begin_part(const struct measuring *m, double share, uint64_t *end_ns) {
    const uint64_t now_ns = ox_clock_ns(), share_ns = (uint64_t)(share * (double)m->input->limit_ns);
    *end_ns = ox_min_u64(now_ns + share_ns, m->begin_ns + m->input->limit_ns);
    return *end_ns >= now_ns + share_ns / 2
               ? OX_OK : ox_fail(OX_E_BUSY, "the parts before it took all the time, so the machine is busy");
}

/* ---- compute -------------------------------------------------------------------------------------------- */

enum { COMPUTE_VALUES = 3 };
static const struct ox_measure_value compute_values[COMPUTE_VALUES] = {
    {"gemm_flops_per_second", 0}, {"packed_bytes_per_flop", 0}, {"attention_flops_per_second", 0}};

/* Rates of GEMMs are those of the run's threads; a machine has them for one core and for all. */
static void use_compute(struct measuring *m, const struct ox_measure_value values[COMPUTE_VALUES]) {
    struct ox_machine_host *const host = &m->machine->host;
    const double threads = fmin(m->input->compute_threads, host->cores), all = host->cores / threads;
    const char *library = NULL;
    host->core_flops = values[0].value / threads;
    host->flops = values[0].value * all;
    host->bf16_flops = computes_in_bf16(m->input, &library) ? host->flops : 0;
    host->packed_bytes_per_flop = values[1].value;
    host->attention_flops = values[2].value * all;
}

static void begin_compute(struct measuring *m) {
    struct ox_measure_value values[COMPUTE_VALUES];
    char key[OX_MEASURE_KEY_BYTES];
    memcpy(values, compute_values, sizeof values);
    compute_key(m->input, key);
    if (take_kept(m, key, values, COMPUTE_VALUES)) {
        use_compute(m, values);
        return;
    }
    uint64_t end_ns = 0;
    enum ox_status status = begin_part(m, COMPUTE_SHARE, &end_ns);
    OX_THEN(status, ox_measure_turns_open(m->input, &m->compute));
    OX_THEN(status, ox_measure_turn(m->compute, end_ns));
    m->compute_end_ns = ox_clock_ns();
    if (status != OX_OK) {
        add_note(m->out, "compute is not measured, its rates are nominal: %s", ox_error_text());
        ox_measure_turns_close(&m->compute);
    }
}

/* Waits until the first turn is a second ago, or a third of the limit. */
static void keep_apart(const struct measuring *m) {
    const uint64_t apart_ns = ox_min_u64(m->input->limit_ns / 3, APART_NS), now_ns = ox_clock_ns();
    const uint64_t until_ns = m->compute_end_ns + apart_ns, wait_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    const struct timespec wait = {.tv_sec = (time_t)(wait_ns / 1000000000), .tv_nsec = (long)(wait_ns % 1000000000)};
    nanosleep(&wait, NULL); /* a shorter wait does no harm */
}

/* The second turn. Where it finds no time or memory the first one counts alone, as on a busy machine. */
static void end_compute(struct measuring *m) {
    struct ox_measure_value values[COMPUTE_VALUES];
    struct ox_measure_compute found;
    char key[OX_MEASURE_KEY_BYTES];
    uint64_t end_ns = 0;
    if (m->compute == NULL) {
        return;
    }
    keep_apart(m);
    enum ox_status status = begin_part(m, COMPUTE_AGAIN_SHARE, &end_ns);
    OX_THEN(status, ox_measure_turn(m->compute, end_ns));
    ox_measure_turns_result(m->compute, &found);
    ox_measure_turns_close(&m->compute);
    memcpy(values, compute_values, sizeof values);
    values[0].value = found.gemm_flops;
    values[1].value = found.packed_bytes_per_flop;
    values[2].value = found.attention_flops;
    if (status != OX_OK) {
        add_note(m->out, "compute is measured in one turn instead of two: %s", ox_error_text());
        m->hurried = true;
    }
    compute_key(m->input, key);
    put(m, key, values, COMPUTE_VALUES);
    use_compute(m, values);
}

/* ---- memory, tasks, drives ------------------------------------------------------------------------------- */

static bool update_seconds(struct measuring *m, struct ox_state_format format, double share, double *seconds) {
    struct ox_measure_value value = {"seconds_per_param", 0};
    char key[OX_MEASURE_KEY_BYTES];
    snprintf(key, sizeof key, "update: %s, moments in %s, %s; %" PRIu32 " threads", ox_optim_kind_name(format.kind),
             ox_moments_name(format.moments), ox_isa_name(m->input->isa), m->input->optimizer_threads);
    if (!take_kept(m, key, &value, 1)) {
        uint64_t end_ns = 0;
        enum ox_status status = begin_part(m, share, &end_ns);
        OX_THEN(status, ox_measure_update(m->input, format, end_ns, &value.value));
        if (status != OX_OK) {
            add_note(m->out, "memory is not measured, its rates are nominal: %s", ox_error_text());
            return false;
        }
        put(m, key, &value, 1);
    }
    *seconds = value.value;
    return true;
}

static double update_bytes(struct ox_state_format format) {
    const struct ox_update_traffic traffic = ox_update_traffic_of(format, OX_GRAD_F32);
    return traffic.read + traffic.written;
}

/* AdamW in fp32 reaches the rate of memory. An optimizer with fewer planes is stored as AdamW would take by its bytes,
 * which is how the simulator reads it. */
static void measure_memory(struct measuring *m) {
    struct ox_machine_host *const host = &m->machine->host;
    const struct ox_state_format plain = {OX_OPTIM_ADAMW, OX_MOMENTS_F32, false}, own = m->input->state;
    const bool other = own.kind != plain.kind || own.moments != plain.moments;
    double seconds = 0;
    if (!update_seconds(m, plain, other ? MEMORY_SHARE / 2 : MEMORY_SHARE, &seconds)) {
        return;
    }
    host->dram_rate = update_bytes(plain) / seconds;
    host->adam = (struct ox_machine_adam){.threads = m->input->optimizer_threads, .seconds = {seconds}};
    if (other && update_seconds(m, own, MEMORY_SHARE / 2, &seconds)) {
        const struct ox_state_format same = {OX_OPTIM_ADAMW, own.moments, false};
        host->adam.seconds[own.moments] = seconds * update_bytes(same) / update_bytes(own);
    }
}

static void measure_task(struct measuring *m) {
    struct ox_measure_value value = {"seconds", 0};
    if (!take_kept(m, "task", &value, 1)) {
        if (ox_probe_task_seconds(TASKS, TASK_ROUNDS, &value.value) != OX_OK) {
            return;
        }
        put(m, "task", &value, 1);
    }
    m->machine->task_seconds = value.value;
}

static void measure_drive(struct measuring *m, uint32_t drive_idx) {
    struct ox_machine_drive found = m->machine->drives[drive_idx];
    struct {
        const char *name;
        double *value;
    } fields[] = {{"read_bytes_per_second", &found.read_rate}, {"write_bytes_per_second", &found.write_rate},
                  {"mix_bytes_per_second", &found.mix_rate}, {"latency_seconds", &found.latency_seconds},
                  {"flush_seconds", &found.flush_seconds}, {"read_core_seconds_per_byte", &found.read_core_seconds},
                  {"write_core_seconds_per_byte", &found.write_core_seconds}};
    enum { COUNT = sizeof fields / sizeof *fields };
    struct ox_measure_value values[COUNT];
    char key[OX_MEASURE_KEY_BYTES];
    for (unsigned i = 0; i < COUNT; i++) {
        values[i] = (struct ox_measure_value){fields[i].name, 0};
    }
    drive_key(m->input, drive_idx, key);
    if (take_kept(m, key, values, COUNT)) {
        for (unsigned i = 0; i < COUNT; i++) {
            *fields[i].value = values[i].value;
        }
    } else {
        uint64_t end_ns = 0;
        enum ox_status status = begin_part(m, DRIVES_SHARE / m->input->drive_count, &end_ns);
        OX_THEN(status, ox_measure_drive(m->input, drive_idx, end_ns, &found));
        if (status != OX_OK) {
            add_note(m->out, "a drive is not measured, its rates are nominal: %s", ox_error_text());
            return;
        }
        for (unsigned i = 0; i < COUNT; i++) {
            values[i].value = fmax(*fields[i].value, 1e-15); /* a time below the clock's resolution */
        }
        put(m, key, values, COUNT);
    }
    snprintf(found.name, sizeof found.name, "nvme%" PRIu32, drive_idx);
    m->machine->drives[drive_idx] = found;
}

/* The most important part comes first. */
static void measure_parts(struct measuring *m) {
    if (!m->input->on_gpu) {
        begin_compute(m);
    }
    measure_memory(m);
    measure_task(m);
    for (uint32_t i = 0; i < m->input->drive_count; i++) {
        measure_drive(m, i);
    }
    end_compute(m);
}

/* ---- all of it ------------------------------------------------------------------------------------------ */

static void today(char *day) {
    const time_t now = time(NULL);
    struct tm date;
    snprintf(day, OX_MEASURE_DAY_BYTES, "1970-01-01");
    if (gmtime_r(&now, &date) != NULL) {
        strftime(day, OX_MEASURE_DAY_BYTES, "%Y-%m-%d", &date);
    }
}

/* Measures, and once more if something that was kept is not what a machine has. */
static void measure_well(struct measuring *m) {
    const struct ox_machine nominal = *m->machine;
    measure_parts(m);
    if (m->took && ox_machine_check("measurement", m->machine) != OX_OK) {
        add_note(m->out, "%s; it is measured anew", ox_error_text());
        *m->machine = nominal;
        json_object_clear(m->kept.parts);
        m->begin_ns = ox_clock_ns();
        measure_parts(m);
    }
    if (ox_machine_check("measurement", m->machine) != OX_OK) {
        add_note(m->out, "%s; rates are nominal", ox_error_text());
        *m->machine = nominal;
        m->kept.path[0] = m->out->day[0] = '\0';
    }
}

/* Keeps what was measured now, with a mark where others slowed it. */
static void keep(struct measuring *m, double others) {
    if (m->measured && (m->hurried || others > m->input->others_most)) {
        m->out->busy = true;
        m->out->others = fmax(m->out->others, fmax(others, LEAST_MARK));
        ox_measure_kept_mark(&m->kept, fmax(others, LEAST_MARK));
    }
    if (ox_measure_kept_save(&m->kept) != OX_OK) {
        add_note(m->out, "this measurement is not kept: %s", ox_error_text());
        m->kept.path[0] = '\0';
    }
}

void ox_measure_machine(const struct ox_measure_input *input, struct ox_machine *machine, struct ox_measured *out) {
    char cpu[OX_CPU_NAME_BYTES], text[OX_MEASURE_KEY_BYTES], note[512];
    struct measuring m = {.input = input, .machine = machine, .out = out, .begin_ns = ox_clock_ns()};
    struct ox_probe_load load;
    OX_ASSERT(machine->drive_count == input->drive_count);
    memset(out, 0, sizeof *out);
    ox_cpu_name(cpu);
    today(m.today);
    machine_text(cpu, text);
    ox_measure_kept_open(input->folder, text, &m.kept, note, sizeof note);
    if (note[0] != '\0') {
        add_note(out, "%s", note);
    }
    ox_probe_load_begin(&load);
    measure_well(&m);
    out->seconds = m.measured ? (double)(ox_clock_ns() - m.begin_ns) * 1e-9 : 0;
    keep(&m, m.measured ? ox_probe_load_end(&load) : 0);
    snprintf(machine->name, sizeof machine->name, "%s", cpu);
    snprintf(machine->source, sizeof machine->source, "measured in short by a run");
    snprintf(out->path, sizeof out->path, "%s", m.kept.path);
    ox_measure_kept_close(&m.kept);
    ox_memory_forget_peak(); /* all of it is given back before a run reserves its own */
}
