/* Every I/O backend passes the same cases: uring, threads, sim, and fault without rules over threads. */
#include "base/bytes.h"
#include "nvme/io_drive.h"
#include "tests/kit/store/io_sim.h"
#include "tests/kit/store/store_kit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DRIVE_BYTES = 12 << 20, DEPTH = 8 };

static char path_text[512];

static const char *path_of(const struct ox_io_backend *backend, const char *name) {
    snprintf(path_text, sizeof path_text, "%s/%s-%s", test_folder(), backend->name, name);
    return path_text;
}

static struct ox_drive *drive_make(const struct ox_io_backend *backend, const char *name) {
    struct ox_drive *drive = NULL;
    REQUIRE_OK(backend->drive_open(backend, path_of(backend, name), OX_DRIVE_CREATE, &drive));
    REQUIRE_OK(backend->drive_allocate(drive, DRIVE_BYTES));
    return drive;
}

/* Moves [0, bytes) of every buffer in pieces of `piece`, keeping the queue as full as it may be. */
static void move_all(const struct ox_io_backend *backend, struct ox_io_queue *queue, enum ox_io_kind kind,
                     unsigned char *buffer, uint32_t piece) {
    uint32_t sent = 0, reaped = 0;
    const uint32_t count = DRIVE_BYTES / piece;
    uint64_t tag_sum = 0;
    while (reaped < count) {
        if (sent < count && sent - reaped < DEPTH) {
            const struct ox_io_req req = {.kind = kind,
                                          .buffer = buffer + (uint64_t)sent * piece,
                                          .offset = (uint64_t)sent * piece,
                                          .bytes = piece,
                                          .tag = UINT64_C(1) << 40 | sent};
            REQUIRE_OK(backend->queue_submit(queue, 0, &req));
            sent++;
            continue;
        }
        struct ox_io_done done;
        REQUIRE_OK(backend->queue_reap(queue, &done));
        CHECK(done.status == OX_OK && done.text[0] == '\0');
        tag_sum += done.tag;
        reaped++;
    }
    CHECK(tag_sum == count * (UINT64_C(1) << 40) + (uint64_t)count * (count - 1) / 2);
}

/* Half of the memory is named beforehand, so that requests lie inside, outside and across its end; or none of it. */
static void transfers(const struct ox_io_backend *backend, bool registered) {
    struct ox_drive *drive = drive_make(backend, "transfers");
    struct ox_drive_info info;
    backend->drive_info(drive, &info);
    CHECK(info.bytes == DRIVE_BYTES && info.align_bytes <= OX_IO_ALIGN_BYTES && info.align_bytes > 0);
    CHECK(strstr(info.path, "transfers") != NULL);
    CHECK(info.direct == (info.note[0] == '\0'));
    struct ox_io_queue *queue = NULL;
    REQUIRE_OK(backend->queue_open(backend, &drive, 1, DEPTH, &queue));
    unsigned char *const out = kit_buffer(DRIVE_BYTES);
    unsigned char *const in = kit_buffer(DRIVE_BYTES);
    if (registered) {
        const struct ox_io_region regions[] = {{out, DRIVE_BYTES / 2}, {in, DRIVE_BYTES / 2 - 4096}};
        backend->queue_register(queue, regions, 2);
    }
    const uint32_t pieces[] = {OX_IO_REQ_BYTES_MAX, 64 << 10, 4096, 1 << 20};
    for (unsigned i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        kit_fill(out, DRIVE_BYTES, i, 0);
        memset(in, 0, DRIVE_BYTES);
        move_all(backend, queue, OX_IO_WRITE, out, pieces[i]);
        REQUIRE_OK(backend->drive_flush(drive));
        move_all(backend, queue, OX_IO_READ, in, pieces[(i + 1) % 4]);
        CHECK(memcmp(in, out, DRIVE_BYTES) == 0);
    }
    struct ox_io_queue_info queue_info;
    backend->queue_info(queue, &queue_info);
    printf("%s: direct %d, align %u, registered files %d, buffers %d%s%s\n", backend->name, info.direct,
           info.align_bytes, queue_info.registered_files, queue_info.registered_buffers,
           queue_info.note[0] != '\0' ? ", " : "", queue_info.note);
    CHECK(backend != ox_io_uring() || queue_info.registered_buffers == registered || queue_info.note[0] != '\0');
    CHECK(queue_info.registered_files == (backend == ox_io_uring() && strstr(queue_info.note, "files") == NULL));
    backend->queue_close(queue);
    backend->drive_close(drive);

    /* Written data is there after a close; a second creation is refused. */
    struct ox_drive *again = NULL;
    CHECK(backend->drive_open(backend, path_of(backend, "transfers"), OX_DRIVE_CREATE, &again) ==
          OX_E_CONFIG);
    REQUIRE_OK(backend->drive_open(backend, path_of(backend, "transfers"), OX_DRIVE_OPEN, &again));
    REQUIRE_OK(backend->queue_open(backend, &again, 1, DEPTH, &queue));
    memset(in, 0, DRIVE_BYTES);
    move_all(backend, queue, OX_IO_READ, in, 1 << 20);
    CHECK(memcmp(in, out, DRIVE_BYTES) == 0);
    backend->queue_close(queue);
    backend->drive_close(again);
    free(in);
    free(out);
    REQUIRE_OK(backend->drive_remove(backend, path_of(backend, "transfers")));
    REQUIRE_OK(backend->drive_remove(backend, path_of(backend, "transfers")));
    CHECK(backend->drive_open(backend, path_of(backend, "transfers"), OX_DRIVE_OPEN, &again) == OX_E_CONFIG);
}

/* Two drives on one queue do not mix. */
static void two_drives(const struct ox_io_backend *backend) {
    struct ox_drive *drives[2] = {drive_make(backend, "one"), drive_make(backend, "two")};
    struct ox_io_queue *queue = NULL;
    REQUIRE_OK(backend->queue_open(backend, drives, 2, 2, &queue));
    unsigned char *const data = kit_buffer(2 * 4096);
    struct ox_io_done done;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < 2; i++) {
            if (pass == 0) {
                kit_fill(data + i * 4096, 4096, 7, i);
            }
            const struct ox_io_req req = {.kind = pass == 0 ? OX_IO_WRITE : OX_IO_READ,
                                          .buffer = data + i * 4096,
                                          .offset = 8192,
                                          .bytes = 4096,
                                          .tag = i};
            REQUIRE_OK(backend->queue_submit(queue, i, &req));
        }
        for (uint32_t i = 0; i < 2; i++) {
            REQUIRE_OK(backend->queue_reap(queue, &done));
            CHECK(done.status == OX_OK);
        }
        for (uint32_t i = 0; i < 2 && pass == 1; i++) {
            CHECK(kit_matches(data + i * 4096, 4096, 7, i));
        }
        memset(data, 0, 2 * 4096);
    }
    backend->queue_close(queue);
    backend->drive_close(drives[0]);
    backend->drive_close(drives[1]);
    free(data);
}

/* Waiting ends with the time or a completion, and loses none. */
static void waiting(const struct ox_io_backend *backend) {
    struct ox_drive *drives[2] = {drive_make(backend, "wait-one"), drive_make(backend, "wait-two")};
    struct ox_io_queue *queue = NULL;
    REQUIRE_OK(backend->queue_open(backend, drives, 2, DEPTH, &queue));
    unsigned char *const data = kit_buffer(2 * DEPTH * 4096);
    kit_fill(data, 2 * DEPTH * 4096, 1, 0);
    uint64_t tags = 0;
    for (uint32_t i = 0; i < 2 * DEPTH; i++) { /* the depth is that of each drive */
        const struct ox_io_req req = {
            .kind = OX_IO_WRITE, .buffer = data + i * 4096, .offset = i * 4096, .bytes = 4096, .tag = i};
        REQUIRE_OK(backend->queue_submit(queue, i % 2, &req));
    }
    backend->queue_kick(queue);
    for (uint32_t i = 0; i < 2 * DEPTH; i++) {
        bool ready = false;
        while (!ready) {
            REQUIRE_OK(backend->queue_wait(queue, i % 2 == 0 ? 0 : 1000 * 1000, &ready));
        }
        struct ox_io_done done;
        REQUIRE_OK(backend->queue_reap(queue, &done));
        CHECK(done.status == OX_OK && (tags >> done.tag & 1) == 0);
        tags |= UINT64_C(1) << done.tag;
    }
    CHECK(tags == (UINT64_C(1) << 2 * DEPTH) - 1);
    backend->queue_close(queue);
    backend->drive_close(drives[0]);
    backend->drive_close(drives[1]);
    free(data);
}

/* In a child, which must die of the assertion. */
static void unaligned_is_asserted(const struct ox_io_backend *backend) {
    struct ox_drive *drive = drive_make(backend, "unaligned");
    unsigned char *const data = kit_buffer(8192);
    const struct ox_io_req wrong[] = {
        {.kind = OX_IO_READ, .buffer = data + 512, .offset = 0, .bytes = 4096},
        {.kind = OX_IO_READ, .buffer = data, .offset = 512, .bytes = 4096},
        {.kind = OX_IO_READ, .buffer = data, .offset = 0, .bytes = 4000},
        {.kind = OX_IO_READ, .buffer = data, .offset = DRIVE_BYTES, .bytes = 4096},
        {.kind = OX_IO_READ, .buffer = data, .offset = 0, .bytes = 0},
    };
    fflush(stdout);
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const pid_t child = fork();
        if (child == 0) {
            freopen("/dev/null", "w", stderr);
            signal(SIGABRT, SIG_DFL);
            struct ox_io_queue *queue = NULL;
            if (backend->queue_open(backend, &drive, 1, 2, &queue) == OX_OK) {
                (void)backend->queue_submit(queue, 0, &wrong[i]);
            }
            _exit(0);
        }
        int status = 0;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
    backend->drive_close(drive);
    free(data);
}

/* ---- real files only ------------------------------------------------------------------------------ */

/* Children, at once, since each waits a while before it gives up. */
static pid_t try_second_open(const struct ox_io_backend *backend, enum ox_drive_mode mode) {
    const pid_t child = fork();
    if (child == 0) {
        struct ox_drive *drive = NULL;
        const enum ox_status status = backend->drive_open(backend, path_of(backend, "lock"), mode, &drive);
        char holder[32];
        snprintf(holder, sizeof holder, "process %ld;", (long)getppid());
        const bool named =
            strstr(ox_error_text(), holder) != NULL || strstr(ox_error_text(), "another process") != NULL;
        if (status != OX_E_BUSY || !named) {
            printf("%s: second open gave %s: %s\n", backend->name, ox_status_name(status), ox_error_text());
            fflush(stdout);
            _exit(1);
        }
        _exit(0);
    }
    return child;
}

static void lock_is_exclusive(const struct ox_io_backend *const *backends, uint32_t count) {
    struct ox_drive *drives[4];
    pid_t children[4];
    fflush(stdout);
    for (uint32_t i = 0; i < count; i++) {
        drives[i] = drive_make(backends[i], "lock");
        children[i] = try_second_open(backends[i], OX_DRIVE_OPEN);
    }
    for (uint32_t i = 0; i < count; i++) {
        int status = 0;
        CHECK(waitpid(children[i], &status, 0) == children[i]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        backends[i]->drive_close(drives[i]);
        struct ox_drive *again = NULL;
        REQUIRE_OK(backends[i]->drive_open(backends[i], path_of(backends[i], "lock"), OX_DRIVE_OPEN, &again));
        backends[i]->drive_close(again);
    }
}

static void refused(const struct ox_io_backend *backend, const char *path, enum ox_drive_mode mode,
                    const char *word) {
    struct ox_drive *drive = NULL;
    const enum ox_status status = backend->drive_open(backend, path, mode, &drive);
    CHECK(status == OX_E_CONFIG);
    CHECK(drive == NULL);
    CHECK(strstr(ox_error_text(), word) != NULL);
    CHECK(strstr(ox_error_text(), path) != NULL);
}

static void wrong_files(const struct ox_io_backend *backend) {
    char real[600], odd[600];
    snprintf(real, sizeof real, "%s", path_of(backend, "real"));
    snprintf(odd, sizeof odd, "%s", path_of(backend, "odd"));
    backend->drive_close(drive_make(backend, "real"));
    struct stat info;
    CHECK(stat(real, &info) == 0 && (info.st_mode & 0777) == 0600 && info.st_size == DRIVE_BYTES);

    CHECK(symlink(real, odd) == 0);
    refused(backend, odd, OX_DRIVE_OPEN, "symbolic link");
    refused(backend, odd, OX_DRIVE_CREATE, "symbolic link");
    unlink(odd);
    CHECK(mkdir(odd, 0700) == 0);
    refused(backend, odd, OX_DRIVE_OPEN, "not a regular file");
    rmdir(odd);
    CHECK(mkfifo(odd, 0600) == 0);
    refused(backend, odd, OX_DRIVE_CREATE, "not a regular file");
    unlink(odd);
    CHECK(chmod(real, 0602) == 0);
    refused(backend, real, OX_DRIVE_OPEN, "any user may write");
    CHECK(chmod(real, 0600) == 0);
    refused(backend, real, OX_DRIVE_CREATE, "exists already");
    refused(backend, odd, OX_DRIVE_OPEN, "No such file");
    CHECK(stat(odd, &info) != 0);

    struct ox_drive *drive = NULL;
    REQUIRE_OK(backend->drive_open(backend, odd, OX_DRIVE_CREATE, &drive));
    CHECK(backend->drive_allocate(drive, UINT64_C(1) << 60) != OX_OK);
    REQUIRE_OK(backend->drive_allocate(drive, 8192));
    REQUIRE_OK(backend->drive_allocate(drive, 4096));
    backend->drive_close(drive);
    CHECK(stat(odd, &info) == 0 && info.st_size == 4096);
}

static enum ox_status move_one(const struct ox_io_backend *backend, struct ox_drive *drive, enum ox_io_kind kind,
                               void *buffer, struct ox_io_done *done) {
    struct ox_io_queue *queue = NULL;
    const struct ox_io_req req = {.kind = kind, .buffer = buffer, .bytes = 65536, .tag = 9};
    REQUIRE_OK(backend->queue_open(backend, &drive, 1, 1, &queue));
    REQUIRE_OK(backend->queue_submit(queue, 0, &req));
    REQUIRE_OK(backend->queue_reap(queue, done));
    backend->queue_close(queue);
    CHECK(done->tag == 9);
    return done->status;
}

/* The kernel itself gives less than was asked: of a file that another process cut, and beyond a limit of writing. */
static void kernel_gives_less(const struct ox_io_backend *backend) {
    struct ox_drive *drive = drive_make(backend, "less");
    unsigned char *const data = kit_buffer(65536);
    struct ox_io_done done;
    memset(data, 1, 65536);
    CHECK(truncate(path_of(backend, "less"), 40960) == 0);
    CHECK(move_one(backend, drive, OX_IO_READ, data, &done) == OX_E_IO);
    CHECK(strstr(done.text, "remains short") != NULL && strstr(done.text, "less") != NULL);
    CHECK(truncate(path_of(backend, "less"), DRIVE_BYTES) == 0);
    REQUIRE_OK(move_one(backend, drive, OX_IO_READ, data, &done));
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit limit = {32768, 32768};
        signal(SIGXFSZ, SIG_IGN);
        CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        CHECK(move_one(backend, drive, OX_IO_WRITE, data, &done) == OX_E_IO);
        CHECK(strstr(done.text, "File too large") != NULL || strstr(done.text, "remains short") != NULL);
        _exit(test_failure_count > 0); /* nothing is printed, because standard output may be a file */
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    backend->drive_close(drive);
    free(data);
}

/* Memory that the kernel does not take beforehand, because part of it may not be touched, is not registered on any
 * drive; transfers of the rest work. */
static void memory_not_taken(const struct ox_io_backend *backend) {
    struct ox_drive *drive = drive_make(backend, "memory");
    struct ox_io_queue *queue = NULL;
    struct ox_io_queue_info info;
    unsigned char *const data = kit_buffer(DRIVE_BYTES);
    void *const closed = mmap(NULL, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(closed != MAP_FAILED);
    REQUIRE_OK(backend->queue_open(backend, &drive, 1, DEPTH, &queue));
    const struct ox_io_region regions[] = {{data, DRIVE_BYTES}, {closed, 65536}};
    backend->queue_register(queue, regions, 2);
    backend->queue_info(queue, &info);
    CHECK(!info.registered_buffers);
    CHECK(backend != ox_io_uring() || strstr(info.note, "buffers not registered: ") != NULL);
    move_all(backend, queue, OX_IO_WRITE, data, 1 << 20);
    backend->queue_close(queue);
    backend->drive_close(drive);
    munmap(closed, 65536);
    free(data);
}

/* Short and failed transfers as results: the kernel does not give them at will. */
static void short_transfers(void) {
    const char *const path = "/some/drive";
    struct ox_io_done done;
    struct ox_io_progress progress = {.req = {.kind = OX_IO_READ, .bytes = 65536, .tag = 5}};
    CHECK(!ox_io_advance(&progress, path, 10000, &done) && progress.done_bytes == 8192);
    CHECK(!ox_io_advance(&progress, path, -EINTR, &done) && progress.done_bytes == 8192);
    CHECK(!ox_io_advance(&progress, path, 4095, &done) && progress.done_bytes == 8192);
    CHECK(ox_io_advance(&progress, path, 65536 - 8192, &done) && done.status == OX_OK && done.tag == 5);
    progress = (struct ox_io_progress){.req = {.kind = OX_IO_WRITE, .bytes = 8192, .tag = 6}};
    for (int i = 0; i < OX_IO_RESUMES_MAX; i++) {
        CHECK(!ox_io_advance(&progress, path, 0, &done));
    }
    CHECK(ox_io_advance(&progress, path, 0, &done) && done.status == OX_E_IO && done.tag == 6);
    CHECK(strstr(done.text, "short") != NULL);
    progress = (struct ox_io_progress){.req = {.kind = OX_IO_WRITE, .bytes = 8192}};
    CHECK(ox_io_advance(&progress, path, -EIO, &done) && done.status == OX_E_IO);
    CHECK(strstr(done.text, "Input/output error") != NULL && strstr(done.text, path) != NULL);
}

int main(void) {
    char why[160];
    const struct ox_io_backend *files[2] = {ox_io_threads()};
    uint32_t file_count = 1;
    CHECK(ox_io_by_name("threads") == ox_io_threads() && ox_io_by_name("uring") == ox_io_uring());
    CHECK(ox_io_by_name("auto") != NULL && ox_io_by_name("mmap") == NULL);
    if (ox_io_probe(why) == ox_io_uring()) {
        files[file_count++] = ox_io_uring();
    } else {
        printf("uring: skipped: %s\n", why);
    }
    struct ox_io_backend *sim = NULL, *fault = NULL;
    REQUIRE_OK(ox_io_sim_open(1, &sim));
    REQUIRE_OK(ox_io_fault_open(ox_io_threads(), &fault));
    const struct ox_io_backend *const all[] = {sim, fault, files[0], files[1]};
    for (uint32_t i = 0; i < 2 + file_count; i++) {
        transfers(all[i], false);
        transfers(all[i], true);
        two_drives(all[i]);
        waiting(all[i]);
        unaligned_is_asserted(all[i]);
    }
    for (uint32_t i = 0; i < file_count; i++) {
        wrong_files(files[i]);
        kernel_gives_less(files[i]);
        memory_not_taken(files[i]);
    }
    short_transfers();
    lock_is_exclusive(files, file_count);
    ox_io_fault_close(&fault);
    ox_io_sim_close(&sim);
    return test_end();
}
