/* Unfavourable places: io_uring denied, little lockable memory, drives of 512 and of 4096 bytes, tmpfs, overlay. The
 * store runs in each of them and reports in one line what it cannot use. Cases that need root or a missing kernel
 * feature are listed as left out.
 *
 *     test_store_places [--sysctl]     also sets kernel.io_uring_disabled to 1 for a moment */
#include "tests/kit/store/store_kit.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_LEFT_OUT = 77, REGION_BYTES = 16 << 20, NOBODY = 65534, PATH_TEXT = 512 };

/* What is expected of a place; NULL and -1 leave it open. */
struct place {
    const char *name;
    bool (*enter)(const struct place *, char *folder); /* in the child; false: not possible here */
    int argument;
    const char *backend, *why; /* what the probe reports */
    int direct, align_bytes;
    int registered;
    const char *note; /* what the drive or the queue reports */
};

/* ---- ways in ------------------------------------------------------------------------------------------ */

static bool run_program(const char *const *args, char *line, size_t line_bytes) {
    int ends[2];
    if (pipe(ends) != 0) {
        return false;
    }
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        const int null = open("/dev/null", O_WRONLY);
        dup2(null, STDERR_FILENO);
        execvp(args[0], (char *const *)args);
        _exit(127);
    }
    close(ends[1]);
    const ssize_t len = line != NULL ? read(ends[0], line, line_bytes - 1) : 0;
    if (line != NULL) {
        line[len > 0 ? len : 0] = '\0';
        line[strcspn(line, "\n")] = '\0';
    }
    close(ends[0]);
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool enter_plain(const struct place *place, char *folder) {
    (void)place;
    (void)folder;
    return true;
}

static bool enter_denied(const struct place *place, char *folder) {
    (void)folder;
    const struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, SYS_io_uring_setup, 0, 2),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SYS_io_uring_register, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)place->argument),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = (struct sock_filter *)code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static bool become_nobody(const char *folder) {
    return geteuid() != 0 ||
           (chown(folder, NOBODY, NOBODY) == 0 && chmod(test_folder(), 0755) == 0 && setgid(NOBODY) == 0 &&
            setuid(NOBODY) == 0);
}

static bool enter_little_memlock(const struct place *place, char *folder) {
    const struct rlimit limit = {(rlim_t)place->argument, (rlim_t)place->argument};
    return setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && become_nobody(folder);
}

static bool enter_nobody(const struct place *place, char *folder) {
    (void)place;
    return become_nobody(folder);
}

/* Mounts that only this process sees, and that end with it. */
static bool own_mounts(void) {
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

static bool enter_tmpfs(const struct place *place, char *folder) {
    (void)place;
    return own_mounts() && mount("tmpfs", folder, "tmpfs", 0, "size=64m") == 0;
}

static bool enter_overlay(const struct place *place, char *folder) {
    (void)place;
    char lower[PATH_TEXT + 8], upper[PATH_TEXT + 8], inner[PATH_TEXT + 8], options[4 * PATH_TEXT];
    snprintf(lower, sizeof lower, "%s/lower", folder);
    snprintf(upper, sizeof upper, "%s/upper", folder);
    snprintf(inner, sizeof inner, "%s/work", folder);
    snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, inner);
    snprintf(folder + strlen(folder), PATH_TEXT - strlen(folder), "/merged");
    return mkdir(lower, 0755) == 0 && mkdir(upper, 0755) == 0 && mkdir(inner, 0755) == 0 && mkdir(folder, 0755) == 0 &&
           own_mounts() && mount("overlay", folder, "overlay", 0, options) == 0;
}

/* ext4 on a loop device with sectors of that size; the device goes with its last user. */
static bool enter_loop(const struct place *place, char *folder) {
    char image[PATH_TEXT + 8], sector[16], device[128];
    snprintf(image, sizeof image, "%s.img", folder);
    snprintf(sector, sizeof sector, "%d", place->argument);
    const int fd = open(image, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    const bool sized = fd >= 0 && ftruncate(fd, 96 << 20) == 0;
    if (fd >= 0) {
        close(fd);
    }
    if (!sized || !own_mounts() ||
        !run_program((const char *const[]){"losetup", "-f", "--show", "-b", sector, image, NULL}, device,
                     sizeof device)) {
        return false;
    }
    const bool mounted = run_program((const char *const[]){"mkfs.ext4", "-q", "-b", "4096", device, NULL}, NULL, 0) &&
                         mount(device, folder, "ext4", 0, NULL) == 0;
    return run_program((const char *const[]){"losetup", "-d", device, NULL}, NULL, 0) && mounted;
}

/* ---- what is done there ------------------------------------------------------------------------------- */

static void check_said(const struct place *place, const struct ox_io_backend *backend, const char *why,
                       const struct ox_drive_info *drive, const struct ox_io_queue_info *queue) {
    printf("%s: %s (%s); %s, alignment %u; buffers %sregistered%s%s%s%s\n", place->name, backend->name, why,
           drive->direct ? "direct I/O" : "page cache", drive->align_bytes, queue->registered_buffers ? "" : "not ",
           drive->note[0] != '\0' ? "; " : "", drive->note, queue->note[0] != '\0' ? "; " : "", queue->note);
    CHECK(place->backend == NULL || strcmp(backend->name, place->backend) == 0);
    CHECK(place->why == NULL || strstr(why, place->why) != NULL);
    CHECK(place->direct < 0 || drive->direct == (place->direct == 1));
    CHECK(place->align_bytes < 0 || drive->align_bytes == (uint32_t)place->align_bytes);
    CHECK(place->registered < 0 || queue->registered_buffers == (place->registered == 1));
    CHECK(place->note == NULL || strstr(drive->note, place->note) != NULL || strstr(queue->note, place->note) != NULL);
    CHECK(drive->direct == (drive->note[0] == '\0'));
}

/* If only io_uring is allowed, the store is refused with a reason, and nothing stays behind. */
static void insist(const struct kit *kit, const char *folder) {
    struct ox_store *store = NULL;
    struct kit other = *kit;
    other.config.backend = ox_io_uring();
    CHECK(ox_store_create(&other.config, &store) == OX_E_IO && store == NULL);
    CHECK(strstr(ox_error_text(), "io_uring cannot be used on this system") != NULL && !ox_store_exists(folder));
}

static void steps(const struct place *place, const char *folder) {
    struct kit kit;
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    struct ox_drive_info drive;
    struct ox_io_queue_info queue;
    char why[160];
    bool wrong = false;
    const struct ox_io_backend *const backend = ox_io_probe(why);
    kit_init(&kit, backend, folder, 1);
    if (backend != ox_io_uring()) {
        insist(&kit, folder);
    }
    REQUIRE_OK(ox_store_create(&kit.config, &store));
    for (uint64_t step = 1; step <= 4; step++) {
        unsigned char *const region = kit_buffer(REGION_BYTES);
        memset(region, 0, REGION_BYTES);
        REQUIRE_OK(ox_store_port_open(store, &port));
        ox_store_port_register(port, &(struct ox_io_region){region, REGION_BYTES}, 1);
        REQUIRE_OK(kit_commit(store, port, step));
        REQUIRE_OK(kit_verify(store, port, step, &wrong));
        CHECK(!wrong);
        /* And once from what was named. */
        const struct ox_store_op op = {.kind = OX_STORE_READ, .extent_idx = 0, .buffer = region};
        REQUIRE_OK(ox_store_run(port, &op, 1));
        CHECK(kit_matches(region, kit_extents[0].bytes, step, 0));
        ox_store_port_info(port, &queue);
        ox_store_port_close(&port);
        free(region);
        if (step % 2 == 0) {
            ox_store_close(&store);
            REQUIRE_OK(ox_store_open(&kit.config, &store));
        }
    }
    REQUIRE_OK(ox_store_drive_info(store, 0, &drive));
    check_said(place, backend, why, &drive, &queue);
    ox_store_close(&store);
    REQUIRE_OK(ox_store_remove(kit.folders, 1));
}

static uint32_t left_out;

static void visit(const struct place *place) {
    char folder[PATH_TEXT];
    static uint32_t number;
    snprintf(folder, sizeof folder, "%s/place-%u", test_folder(), number++);
    CHECK(mkdir(folder, 0755) == 0);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        if (!place->enter(place, folder)) {
            printf("%s: left out, cannot be had here (%s)\n", place->name, strerror(errno));
            fflush(stdout);
            _exit(EXIT_LEFT_OUT);
        }
        steps(place, folder);
        fflush(stdout);
        _exit(test_failure_count > 0);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    const bool out = WIFEXITED(status) && WEXITSTATUS(status) == EXIT_LEFT_OUT;
    CHECK(out || WEXITSTATUS(status) == 0);
    left_out += out;
}

static bool write_switch(const char *text) {
    const int fd = open("/proc/sys/kernel/io_uring_disabled", O_WRONLY | O_CLOEXEC);
    const bool done = fd >= 0 && write(fd, text, 1) == 1;
    if (fd >= 0) {
        close(fd);
    }
    return done;
}

int main(int argc, char **argv) {
    char why[160];
    const bool uring = ox_io_probe(why) == ox_io_uring();
    const char *const usual = uring ? "uring" : "threads";
    const struct place places[] = {
        {"a plain folder", enter_plain, 0, usual, NULL, -1, -1, uring, NULL},
        {"io_uring denied with EPERM", enter_denied, EPERM, "threads", "Operation not permitted", -1, -1, 0, NULL},
        {"io_uring denied with ENOSYS", enter_denied, ENOSYS, "threads", "Function not implemented", -1, -1, 0, NULL},
        {"64 KiB of locked memory", enter_little_memlock, 64 << 10, NULL, NULL, -1, -1, 0,
         uring ? "raise `ulimit -l`" : NULL},
        {"sectors of 512 bytes", enter_loop, 512, usual, NULL, 1, 512, -1, NULL},
        {"sectors of 4096 bytes", enter_loop, 4096, usual, NULL, 1, 4096, -1, NULL},
        {"tmpfs", enter_tmpfs, 0, usual, NULL, 0, 4096, -1, "page cache"},
        {"overlay", enter_overlay, 0, usual, NULL, -1, -1, -1, NULL},
    };
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
        visit(&places[i]);
    }
    if (argc == 2 && strcmp(argv[1], "--sysctl") == 0) {
        const struct place place = {"sysctl kernel.io_uring_disabled=1, not root", enter_nobody, 0, "threads",
                                    "Operation not permitted", -1, -1, 0, NULL};
        if (geteuid() == 0 && write_switch("1")) {
            visit(&place);
            CHECK(write_switch("0"));
        } else {
            printf("%s: left out\n", place.name);
        }
    }
    printf("%u places left out\n", left_out);
    return test_end();
}
