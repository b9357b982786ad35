/* How fast a drive is driven: sequential writes and reads, the optimizer's mix (of each chunk of 256 Ki parameters the
 * 10 bytes of lo, m, v and the 2 of hi are read, and as much written), and whole steps of the store, against fio
 * (io_uring, O_DIRECT, same file, block sizes and depth; and at its best, as the engine: file and buffers registered,
 * memory in huge pages, no change to the data between writes).
 *
 *     bench_nvme [--json] [--folder build/bench] [--size 4GiB] [--depth 16] [--block 512KiB]
 *                [--rounds 3] [--no-store]
 *
 * Both backends and fio take turns, so that what else uses the drive slows all; the median counts, of the rates and
 * of the ratios of each round. With much else on the processors the figures mean little. Exits 1 when a ratio is below
 * its limit; without fio the engine's figures stand alone. The size should exceed the drive's caches. */
#include "base/arena.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "nvme/io.h"
#include "nvme/store.h"
#include "tests/test.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS_MAX = 32, DEPTH_MAX = 256, STATE_BYTES = 2560 << 10, HI_BYTES = 512 << 10, STAGES = 8 };
#define RATIO_LIMIT 0.95

enum work { WORK_WRITE, WORK_READ, WORK_MIX, WORK_STEP, WORK_COUNT };
static const char *const work_names[WORK_COUNT] = {"write", "read", "mix", "step of the store"};
static const char *const work_keys[WORK_COUNT] = {"write", "read", "mix", "step"};

enum driver { DRIVER_URING, DRIVER_THREADS, DRIVER_FIO, DRIVER_COUNT };
static const char *const driver_names[DRIVER_COUNT] = {"uring", "threads", "fio"};

struct options {
    bool json, no_store;
    const char *folder;
    uint64_t bytes, block;
    uint32_t depth, rounds;
};

/* Bytes per second by round. */
static double rates[WORK_COUNT][DRIVER_COUNT][ROUNDS_MAX];
static bool present[DRIVER_COUNT];
static char drive_path[OX_PATH_BYTES];

/* ---- the engine ------------------------------------------------------------------------------------ */

/* What the n-th request of a work is. */
struct sequence {
    enum work work;
    const struct options *options;
    uint64_t at[2]; /* where reads and writes have come to; they have a half each in the mix */
    uint64_t count, sent_bytes;
};

static bool sequence_next(struct sequence *sequence, struct ox_io_req *req) {
    const struct options *const options = sequence->options;
    if (sequence->sent_bytes >= options->bytes) {
        return false;
    }
    uint64_t bytes = options->block, end = options->bytes;
    req->kind = sequence->work == WORK_READ ? OX_IO_READ : OX_IO_WRITE;
    if (sequence->work == WORK_MIX) {
        req->kind = sequence->count % 4 < 2 ? OX_IO_READ : OX_IO_WRITE;
        bytes = sequence->count % 2 == 0 ? STATE_BYTES : HI_BYTES;
        end = options->bytes / 2;
    }
    uint64_t *const at = &sequence->at[req->kind];
    *at = *at + bytes <= end ? *at : 0;
    req->offset = *at + (sequence->work == WORK_MIX && req->kind == OX_IO_WRITE ? end : 0);
    req->bytes = (uint32_t)bytes;
    *at += bytes;
    sequence->sent_bytes += bytes;
    sequence->count++;
    return true;
}

struct rig {
    const struct ox_io_backend *backend;
    struct ox_drive *drive;
    struct ox_io_queue *queue;
    struct ox_arena arena; /* memory as the engine's: depth buffers */
    uint64_t buffer_bytes;
};

static uint64_t buffer_bytes_of(enum work work, const struct options *options) {
    return work == WORK_MIX ? STATE_BYTES : options->block;
}

static void rig_open(const struct ox_io_backend *backend, enum work work, const struct options *options,
                     enum ox_drive_mode mode, struct rig *rig) {
    rig->backend = backend;
    rig->buffer_bytes = buffer_bytes_of(work, options);
    REQUIRE_OK(ox_arena_open("buffers", options->depth * rig->buffer_bytes, &rig->arena));
    memset(rig->arena.base, 0x5a, rig->arena.bytes);
    REQUIRE_OK(backend->drive_open(backend, drive_path, mode, &rig->drive));
    if (mode == OX_DRIVE_CREATE) {
        REQUIRE_OK(backend->drive_allocate(rig->drive, options->bytes));
    }
    REQUIRE_OK(backend->queue_open(backend, &rig->drive, 1, options->depth, &rig->queue));
    const struct ox_io_region region = {rig->arena.base, rig->arena.bytes};
    backend->queue_register(rig->queue, &region, 1);
}

static void rig_close(struct rig *rig) {
    rig->backend->queue_close(rig->queue);
    rig->backend->drive_close(rig->drive);
    ox_arena_close(&rig->arena);
}

static double run_requests(struct rig *rig, enum work work, const struct options *options) {
    struct sequence sequence = {.work = work, .options = options};
    uint32_t free_buffers[DEPTH_MAX], free_count = options->depth, in_flight = 0;
    for (uint32_t i = 0; i < options->depth; i++) {
        free_buffers[i] = i;
    }
    const uint64_t begin_ns = ox_clock_ns();
    for (bool more = true; more || in_flight > 0;) {
        struct ox_io_req req;
        while (free_count > 0 && (more = sequence_next(&sequence, &req))) {
            req.tag = free_buffers[--free_count];
            req.buffer = rig->arena.base + req.tag * rig->buffer_bytes;
            REQUIRE_OK(rig->backend->queue_submit(rig->queue, 0, &req));
            in_flight++;
        }
        bool ready = true;
        while (ready && in_flight > 0) { /* all that have ended, so that as many go out together */
            struct ox_io_done done;
            REQUIRE_OK(rig->backend->queue_reap(rig->queue, &done));
            if (done.status != OX_OK) {
                printf("%s\n", done.text);
                exit(1);
            }
            free_buffers[free_count++] = (uint32_t)done.tag;
            in_flight--;
            if (in_flight > 0) {
                REQUIRE_OK(rig->backend->queue_wait(rig->queue, 0, &ready));
            }
        }
    }
    return (double)sequence.sent_bytes / ((double)(ox_clock_ns() - begin_ns) * 1e-9);
}

/* ---- steps of the store ------------------------------------------------------------------------------ */

struct step {
    struct ox_store *store;
    struct ox_store_port *port;
    struct ox_arena stages;
    uint32_t chunk_count;
    uint64_t number;
};

static void stage_submit(struct step *step, uint32_t stage, uint32_t chunk, bool write) {
    unsigned char *const base = step->stages.base + (uint64_t)stage * (STATE_BYTES + HI_BYTES);
    for (uint32_t i = 0; i < 2; i++) {
        REQUIRE_OK(ox_store_submit(step->port, &(struct ox_store_op){
            .kind = write ? OX_STORE_WRITE : OX_STORE_READ, .extent_idx = 2 * chunk + i,
            .buffer = base + (i == 1 ? STATE_BYTES : 0), .tag = stage * 2 + write}));
    }
}

/* Chunks stream through the stages as in the optimizer, without its arithmetic. */
static double step_run(struct step *step) {
    uint32_t chunk_of[STAGES], left[STAGES] = {0}, begun = 0, ended = 0;
    const uint64_t begin_ns = ox_clock_ns();
    REQUIRE_OK(ox_store_begin(step->store, ++step->number));
    for (; begun < STAGES && begun < step->chunk_count; begun++) {
        chunk_of[begun] = begun;
        left[begun] = 2;
        stage_submit(step, begun, begun, false);
    }
    while (ended < step->chunk_count) {
        uint64_t tag = 0;
        REQUIRE_OK(ox_store_reap(step->port, &tag));
        const uint32_t stage = (uint32_t)tag / 2;
        if (--left[stage] > 0) {
            continue;
        }
        if (tag % 2 == 0) {
            left[stage] = 2;
            stage_submit(step, stage, chunk_of[stage], true);
            continue;
        }
        ended++;
        if (begun < step->chunk_count) {
            chunk_of[stage] = begun;
            left[stage] = 2;
            stage_submit(step, stage, begun++, false);
        }
    }
    REQUIRE_OK(ox_store_commit(step->store, NULL, 0));
    const double bytes = 2.0 * step->chunk_count * (STATE_BYTES + HI_BYTES);
    return bytes / ((double)(ox_clock_ns() - begin_ns) * 1e-9);
}

static void step_open(const struct ox_io_backend *backend, const struct options *options, bool create,
                      struct step *step) {
    memset(step, 0, sizeof *step);
    step->chunk_count = (uint32_t)(options->bytes / 2 / (STATE_BYTES + HI_BYTES));
    struct ox_extent_spec *const extents = calloc(2 * (size_t)step->chunk_count, sizeof *extents);
    for (uint32_t i = 0; i < 2 * step->chunk_count; i++) {
        extents[i].bytes = i % 2 == 0 ? STATE_BYTES : HI_BYTES;
    }
    const uint64_t bytes_max = options->bytes + 16 * OX_MIB;
    const struct ox_store_config config = {.backend = backend, .folders = &options->folder, .bytes_max = &bytes_max,
                                           .drive_count = 1, .extents = extents,
                                           .extent_count = 2 * step->chunk_count, .run_id = {1, 2},
                                           .queue_depth = options->depth};
    REQUIRE_OK(create ? ox_store_create(&config, &step->store) : ox_store_open(&config, &step->store));
    free(extents);
    REQUIRE_OK(ox_store_port_open(step->store, &step->port));
    const uint64_t stage_bytes = (uint64_t)STAGES * (STATE_BYTES + HI_BYTES);
    REQUIRE_OK(ox_arena_open("stages", stage_bytes, &step->stages));
    memset(step->stages.base, 0x5a, stage_bytes);
    ox_store_port_register(step->port, &(struct ox_io_region){step->stages.base, stage_bytes}, 1);
    struct ox_store_info info;
    ox_store_info(step->store, &info);
    step->number = info.step;
}

static void step_close(struct step *step) {
    ox_store_port_close(&step->port);
    ox_store_close(&step->store);
    ox_arena_close(&step->stages);
}

/* Both generations are written once, so that no later step meets blocks that never were. */
static void step_create(const struct ox_io_backend *backend, const struct options *options) {
    struct step step;
    step_open(backend, options, true, &step);
    for (uint32_t pass = 0; pass < 2; pass++) {
        REQUIRE_OK(ox_store_begin(step.store, ++step.number));
        for (uint32_t i = 0; i < 2 * step.chunk_count; i++) {
            const struct ox_store_op op = {.kind = OX_STORE_WRITE, .extent_idx = i, .buffer = step.stages.base};
            REQUIRE_OK(ox_store_run(step.port, &op, 1));
        }
        REQUIRE_OK(ox_store_commit(step.store, NULL, 0));
    }
    step_close(&step);
}

/* ---- fio ------------------------------------------------------------------------------------------- */

static char fio_report[OX_PATH_BYTES];

static bool run_fio_program(const char *const *args) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const int null = open("/dev/null", O_RDWR);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 1); /* huge pages, as the engine has */
        execvp("fio", (char *const *)args);
        _exit(127);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static double fio_sum(const json_t *job, const char *key) {
    double bytes = 0.0;
    for (int i = 0; i < 2; i++) {
        const json_t *const way = json_object_get(job, i == 0 ? "read" : "write");
        bytes += json_number_value(json_object_get(way, key));
    }
    return bytes;
}

/* 0 when fio fails or is missing. */
static double run_fio(enum work work, const struct options *options) {
    char path[OX_PATH_BYTES + 16], size[48], depth[48], block[96], output[OX_PATH_BYTES + 16];
    snprintf(path, sizeof path, "--filename=%s", drive_path);
    snprintf(size, sizeof size, "--size=%" PRIu64, options->bytes);
    snprintf(depth, sizeof depth, "--iodepth=%u", options->depth);
    snprintf(output, sizeof output, "--output=%s", fio_report);
    snprintf(block, sizeof block, "--bs=%" PRIu64, options->block);
    if (work == WORK_MIX) {
        snprintf(block, sizeof block, "--bssplit=%dk/50:%dk/50", STATE_BYTES >> 10, HI_BYTES >> 10);
    }
    const char *const args[] = {"fio", "--name=bench", path, size, depth, block, output, "--output-format=json",
                          work == WORK_READ ? "--rw=read" : work == WORK_WRITE ? "--rw=write" : "--rw=rw",
                          "--direct=1", "--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1",
                                "--scramble_buffers=0", "--fallocate=none", "--allow_file_create=0", NULL};
    json_t *root = NULL;
    if (!run_fio_program(args) || ox_json_load(fio_report, 1 << 20, &root) != OX_OK) {
        return 0.0;
    }
    const json_t *const job = json_array_get(json_object_get(root, "jobs"), 0);
    const double bytes = fio_sum(job, "io_bytes"), ms = json_number_value(json_object_get(job, "job_runtime"));
    json_decref(root);
    return ms > 0.0 ? bytes / (ms * 1e-3) : 0.0;
}

/* ---- who else was there ------------------------------------------------------------------------------ */

/* Processor seconds of this process and of fio. */
static double own_seconds(void) {
    double seconds = 0.0;
    for (int i = 0; i < 2; i++) {
        struct rusage usage;
        getrusage(i == 0 ? RUSAGE_SELF : RUSAGE_CHILDREN, &usage);
        seconds += (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                   1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    }
    return seconds;
}

/* Busy processor seconds of the machine, without what interrupts took; 0 when the kernel does not tell. */
static double machine_seconds(void) {
    unsigned long long user = 0, nice_time = 0, system_time = 0;
    FILE *const stat = fopen("/proc/stat", "re");
    if (stat == NULL || fscanf(stat, "cpu %llu %llu %llu", &user, &nice_time, &system_time) != 3) {
        user = nice_time = system_time = 0;
    }
    if (stat != NULL) {
        fclose(stat);
    }
    return (double)(user + nice_time + system_time) / (double)sysconf(_SC_CLK_TCK);
}

/* ---- the whole ------------------------------------------------------------------------------------- */

static void round_run(const struct options *options, uint32_t round) {
    const struct ox_io_backend *const backends[] = {ox_io_uring(), ox_io_threads()};
    for (int work = 0; work < WORK_STEP; work++) {
        /* Who goes first changes, because the drive may be slower after much was written. */
        for (uint32_t turn = 0; turn < DRIVER_COUNT; turn++) {
            const enum driver driver = (enum driver)((turn + round) % DRIVER_COUNT);
            if (driver == DRIVER_FIO && present[DRIVER_FIO]) {
                rates[work][DRIVER_FIO][round] = run_fio((enum work)work, options);
            } else if (driver != DRIVER_FIO && present[driver]) {
                struct rig rig;
                rig_open(backends[driver], (enum work)work, options, OX_DRIVE_OPEN, &rig);
                rates[work][driver][round] = run_requests(&rig, (enum work)work, options);
                rig_close(&rig);
            }
        }
    }
    for (int driver = 0; driver < DRIVER_FIO && !options->no_store; driver++) {
        if (present[driver]) {
            struct step step;
            step_open(backends[driver], options, false, &step);
            rates[WORK_STEP][driver][round] = step_run(&step);
            step_close(&step);
        }
    }
}

static int by_value(const void *a, const void *b) {
    const double one = *(const double *)a, two = *(const double *)b;
    return one < two ? -1 : one > two;
}

static double median(const double *values, uint32_t count) {
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, count * sizeof *values);
    qsort(sorted, count, sizeof *sorted, by_value);
    return count % 2 == 1 ? sorted[count / 2] : 0.5 * (sorted[count / 2 - 1] + sorted[count / 2]);
}

/* Of the rounds, each by itself: what slows the machine for a while then slows both sides. */
static double median_ratio(const double *rate, const double *reference, uint32_t count) {
    double ratios[ROUNDS_MAX];
    for (uint32_t i = 0; i < count; i++) {
        ratios[i] = reference[i] > 0.0 ? rate[i] / reference[i] : 0.0;
    }
    return median(ratios, count);
}

/* A step is compared with fio's mix, for information: it also verifies, hashes and flushes. For machines fio's rate is
 * the limit. */
static bool report(const struct options *options, double others) {
    bool good = true;
    unsigned count = 0;
    for (int work = 0; work < WORK_COUNT; work++) {
        for (int driver = 0; driver < DRIVER_COUNT; driver++) {
            const double rate = median(rates[work][driver], options->rounds);
            const double *const references = rates[work == WORK_STEP ? WORK_MIX : work][DRIVER_FIO];
            const double reference = median(references, options->rounds);
            const bool judged = driver != DRIVER_FIO && work != WORK_STEP && reference > 0.0;
            if (rate <= 0.0) {
                continue;
            }
            const double ratio = median_ratio(rates[work][driver], references, options->rounds);
            good = good && (!judged || ratio >= RATIO_LIMIT);
            if (options->json) {
                printf("%s{\"name\":\"nvme.%s.%s\",\"value\":%.0f,\"unit\":\"B/s\",", count++ == 0 ? "[" : ",\n ",
                       work_keys[work], driver_names[driver], rate);
                driver != DRIVER_FIO && reference > 0.0 ? printf("\"limit\":%.0f,\"ratio\":%.4f}", reference, ratio)
                                                        : printf("\"limit\":null,\"ratio\":null}");
            } else {
                printf("%-18s %-8s %7.3f GB/s", work_names[work], driver_names[driver], rate * 1e-9);
                if (driver != DRIVER_FIO && reference > 0.0) {
                    printf("   %.3f of fio%s%s", ratio, work == WORK_STEP ? "'s mix" : "",
                           !judged ? "" : ratio >= RATIO_LIMIT ? " (limit 0.95)" : " BELOW the limit 0.95");
                }
                printf("\n");
            }
        }
    }
    if (options->json) {
        printf(",\n {\"name\":\"nvme.other_processes\",\"value\":%.4f,\"unit\":\"1\",\"limit\":null,"
               "\"ratio\":null}]\n", others);
    } else {
        printf("other processes took %.0f %% of the processors' time\n", 100.0 * others);
    }
    return good;
}

static void usage(const char *program) {
    fprintf(stderr, "usage: %s [--json] [--folder FOLDER] [--size 4GiB] [--depth 1..%d] [--block 512KiB] "
            "[--rounds 1..%d] [--no-store]\n", program, DEPTH_MAX, ROUNDS_MAX);
    exit(2);
}

static struct options parse(int argc, char **argv) {
    struct options options = {.folder = "build/bench", .bytes = 4 * OX_GIB, .block = HI_BYTES, .depth = 16,
                              .rounds = 3};
    bool good = true;
    for (int i = 1; i < argc && good; i++) {
        const char *const value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--json") == 0 || strcmp(argv[i], "--no-store") == 0) {
            *(argv[i][2] == 'j' ? &options.json : &options.no_store) = true;
            continue;
        }
        i++;
        if (strcmp(argv[i - 1], "--folder") == 0) {
            options.folder = value;
        } else if (strcmp(argv[i - 1], "--size") == 0) {
            good = ox_size_parse(value, &options.bytes);
        } else if (strcmp(argv[i - 1], "--block") == 0) {
            good = ox_size_parse(value, &options.block);
        } else if (strcmp(argv[i - 1], "--depth") == 0) {
            options.depth = (uint32_t)strtoul(value, NULL, 10);
        } else if (strcmp(argv[i - 1], "--rounds") == 0) {
            options.rounds = (uint32_t)strtoul(value, NULL, 10);
        } else {
            good = false;
        }
    }
    options.bytes -= options.bytes % (2 * (uint64_t)(STATE_BYTES + HI_BYTES));
    if (!good || options.bytes < 64 * OX_MIB || options.block == 0 || options.block > OX_IO_REQ_BYTES_MAX ||
        options.block % OX_IO_ALIGN_BYTES != 0 || options.depth - 1 >= DEPTH_MAX || options.rounds - 1 >= ROUNDS_MAX) {
        usage(argv[0]);
    }
    return options;
}

/* Says what is measured, and what cannot be. */
static void announce(const struct options *options, const char *why, const struct rig *rig) {
    struct ox_drive_info info;
    struct ox_io_queue_info queue;
    char size[OX_SIZE_TEXT_BYTES], block[OX_SIZE_TEXT_BYTES];
    rig->backend->drive_info(rig->drive, &info);
    rig->backend->queue_info(rig->queue, &queue);
    FILE *const out = options->json ? stderr : stdout;
    fprintf(out, "%s: %s in blocks of %s, depth %u, median of %u; %s%s; %s; buffers %sregistered%s%s\n", info.path,
            ox_size_text(options->bytes, size), ox_size_text(options->block, block), options->depth, options->rounds,
            info.direct ? "direct I/O" : "NOT direct I/O: ", info.note, why, queue.registered_buffers ? "" : "not ",
            queue.note[0] != '\0' ? ": " : "", queue.note);
    if (!present[DRIVER_FIO]) {
        fprintf(out, "fio is not here, so there is nothing to compare with: apt-get install -y fio\n");
    }
}

int main(int argc, char **argv) {
    const struct options options = parse(argc, argv);
    char why[160];
    struct rig rig;
    REQUIRE_OK(ox_folder_make(options.folder));
    REQUIRE_OK(ox_path_join(options.folder, "bench-nvme.dat", drive_path));
    REQUIRE_OK(ox_path_join(options.folder, "bench-fio.json", fio_report));
    unlink(drive_path);
    present[DRIVER_THREADS] = true;
    present[DRIVER_URING] = ox_io_probe(why) == ox_io_uring();
    present[DRIVER_FIO] = run_fio_program((const char *const[]){"fio", "--version", NULL});
    rig_open(present[DRIVER_URING] ? ox_io_uring() : ox_io_threads(), WORK_WRITE, &options,
             OX_DRIVE_CREATE, &rig);
    announce(&options, why, &rig);
    (void)run_requests(&rig, WORK_WRITE, &options); /* blocks that never were written are slower the first time */
    rig_close(&rig);
    if (!options.no_store) {
        REQUIRE_OK(ox_store_remove(&options.folder, 1));
        step_create(ox_io_threads(), &options);
    }
    const double own = own_seconds(), machine = machine_seconds();
    const uint64_t begin_ns = ox_clock_ns();
    for (uint32_t i = 0; i < options.rounds; i++) {
        round_run(&options, i);
    }
    const double available = (double)(ox_clock_ns() - begin_ns) * 1e-9 * (double)sysconf(_SC_NPROCESSORS_ONLN);
    const double others = ((machine_seconds() - machine) - (own_seconds() - own)) / available;
    const bool good = report(&options, others > 0.0 ? others : 0.0);
    unlink(drive_path);
    unlink(fio_report);
    if (!options.no_store) {
        REQUIRE_OK(ox_store_remove(&options.folder, 1));
    }
    return good ? 0 : 1;
}
