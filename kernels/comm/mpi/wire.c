/* MPI as a wire: the plugin liboffload_mpi.so, alone linked with the MPI library, so that one program starts on
 * machines with and without it. Non-blocking calls alone: a peer that dies must not hold this process forever. */
#include "base/clock.h"
#include "kernels/comm/mpi/plugin.h"

#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    VERSION_MIN = 3,
    TAG_EVENT = 0,
    POSTS_MAX = 256,        /* messages under way; more wait for the first */
    PART_BYTES = 1 << 30,   /* MPI counts in int */
    STAMP_BYTES = 64,
};

/* What a process says of itself when a wire is opened. */
struct greeting {
    uint32_t plugin_version, ranks;
    int32_t pid;
    uint32_t zero;
    char host[STAMP_BYTES];      /* for messages */
    char pid_space[STAMP_BYTES]; /* processes with the same one see each other by pid */
};

struct post {
    MPI_Request request;
    unsigned char *data;
};

struct wire {
    struct ox_wire base;
    MPI_Comm events, data;
    struct greeting own, *peers;
    struct post posts[POSTS_MAX]; /* a ring */
    uint32_t post_first, post_count;
    bool dropped; /* a transfer */
    MPI_Request incoming;
    unsigned char buffer[OX_WIRE_MESSAGE_BYTES];
    char name[OX_WIRE_NAME_BYTES];
};

struct ox_wire_request {
    uint32_t part_count;
    int *counts; /* of a sum, in elements, for the library as long as it runs; else NULL */
    MPI_Request parts[];
};

static struct wire *wire_of(struct ox_wire *wire) {
    return (struct wire *)wire;
}

static enum ox_status check(int result, const char *what) {
    if (result == MPI_SUCCESS) {
        return OX_OK;
    }
    char text[MPI_MAX_ERROR_STRING] = "";
    int len = 0;
    MPI_Error_string(result, text, &len);
    return ox_fail(OX_E_COMM, "MPI: %s: %s", what, text);
}

/* Waits for a request with a limit of its own, because a process may never come. */
static enum ox_status finish(MPI_Request *request, const char *what, uint32_t limit_ms) {
    const uint64_t limit_ns = ox_clock_ns() + (uint64_t)limit_ms * 1000000;
    int done = 0;
    for (;;) {
        const enum ox_status status = check(MPI_Test(request, &done, MPI_STATUS_IGNORE), what);
        if (status != OX_OK || done != 0) {
            return status;
        }
        if (ox_clock_ns() > limit_ns) {
            return ox_fail(OX_E_COMM, "MPI: %s has waited %u s for the other processes; look at their last lines", what,
                           limit_ms / 1000);
        }
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
}

/* ---- the library: once per process ------------------------------------------------------------------ */

static enum { FRESH, READY, REFUSED } library;
static char refusal[OX_ERROR_TEXT_BYTES];
static bool unclean; /* a wire was closed without its peers, so MPI_Finalize could wait for ever */
static atomic_uint open_count; /* wires, each with a thread that calls the library until it is closed */

static void finalize(void) {
    int ended = 0;
    MPI_Finalized(&ended);
    if (!unclean && atomic_load(&open_count) == 0 && ended == 0) {
        MPI_Finalize();
    }
}

static void refuse(const char *text) {
    library = REFUSED;
    snprintf(refusal, sizeof refusal, "%s", text);
}

static void start(void) {
    int version = 0, minor = 0, begun = 0, given = MPI_THREAD_SINGLE;
    char text[OX_ERROR_TEXT_BYTES];
    MPI_Get_version(&version, &minor);
    if (version < VERSION_MIN) {
        snprintf(text, sizeof text, "MPI: the library has version %d.%d of the standard, and %d is needed; install "
                 "Open MPI 2 or MPICH 3, or later ones", version, minor, VERSION_MIN);
        refuse(text);
        return;
    }
    MPI_Initialized(&begun);
    const int result = begun != 0 ? MPI_Query_thread(&given)
                                  : MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &given);
    if (result != MPI_SUCCESS || given < MPI_THREAD_MULTIPLE) {
        refuse("MPI: the library cannot be called from several threads; install one with MPI_THREAD_MULTIPLE, as Open "
               "MPI of the distribution is");
        return;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    atexit(finalize);
    library = READY;
}

static enum ox_status started(void) {
    if (library == FRESH) {
        start();
    }
    return library == READY ? OX_OK : ox_fail(OX_E_COMM, "%s", refusal);
}

static enum ox_status plugin_world(uint32_t *process, uint32_t *process_count) {
    const enum ox_status status = started();
    int rank = 0, size = 1;
    if (status == OX_OK) {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
    }
    *process = (uint32_t)rank;
    *process_count = (uint32_t)size;
    return status;
}

/* ---- messages --------------------------------------------------------------------------------------- */

/* Frees messages that have left, in order. */
static enum ox_status posts_reap(struct wire *self) {
    while (self->post_count > 0) {
        struct post *const post = &self->posts[self->post_first];
        int done = 0;
        const enum ox_status status = check(MPI_Test(&post->request, &done, MPI_STATUS_IGNORE), "sending a message");
        if (status != OX_OK || done == 0) {
            return status;
        }
        free(post->data);
        self->post_first = (self->post_first + 1) % POSTS_MAX;
        self->post_count--;
    }
    return OX_OK;
}

static enum ox_status mpi_post(struct ox_wire *wire, uint32_t process, const void *message, uint32_t bytes) {
    struct wire *const self = wire_of(wire);
    enum ox_status status = posts_reap(self);
    const uint64_t limit_ns = ox_clock_ns() + UINT64_C(10000000000);
    while (status == OX_OK && self->post_count == POSTS_MAX) {
        status = ox_clock_ns() > limit_ns ? ox_fail(OX_E_COMM, "MPI: messages do not leave this process")
                                          : posts_reap(self);
    }
    unsigned char *const data = malloc(bytes);
    if (status == OX_OK && data == NULL) {
        status = ox_fail(OX_E_NOMEM, "MPI: no memory for a message of %u bytes", bytes);
    }
    if (status != OX_OK) {
        free(data);
        return status;
    }
    memcpy(data, message, bytes);
    struct post *const post = &self->posts[(self->post_first + self->post_count) % POSTS_MAX];
    post->data = data;
    self->post_count++;
    return check(MPI_Isend(data, (int)bytes, MPI_BYTE, (int)process, TAG_EVENT, self->events, &post->request),
                 "sending a message");
}

static enum ox_status listen_on(struct wire *self) {
    return check(MPI_Irecv(self->buffer, (int)sizeof self->buffer, MPI_BYTE, MPI_ANY_SOURCE, TAG_EVENT, self->events,
                           &self->incoming), "receiving a message");
}

static enum ox_status mpi_poll(struct ox_wire *wire, uint32_t *process, void *message, uint32_t *bytes) {
    struct wire *const self = wire_of(wire);
    MPI_Status about;
    int done = 0, count = 0;
    *bytes = 0;
    enum ox_status status = posts_reap(self);
    OX_THEN(status, check(MPI_Test(&self->incoming, &done, &about), "receiving a message"));
    if (status == OX_OK && done != 0) {
        MPI_Get_count(&about, MPI_BYTE, &count);
        *process = (uint32_t)about.MPI_SOURCE;
        *bytes = (uint32_t)count;
        memcpy(message, self->buffer, *bytes);
        status = listen_on(self);
    }
    return status;
}

static bool mpi_sending(struct ox_wire *wire) {
    struct wire *const self = wire_of(wire);
    return posts_reap(self) == OX_OK && self->post_count > 0;
}

/* ---- transfers -------------------------------------------------------------------------------------- */

static enum ox_status mpi_begin(struct ox_wire *wire, const struct ox_wire_transfer *transfer,
                                struct ox_wire_request **out) {
    struct wire *const self = wire_of(wire);
    const uint32_t part_count = (uint32_t)((transfer->bytes + PART_BYTES - 1) / PART_BYTES);
    struct ox_wire_request *const request = malloc(sizeof *request + part_count * sizeof request->parts[0]);
    enum ox_status status = OX_OK;
    if (request == NULL) {
        return ox_fail(OX_E_NOMEM, "MPI: no memory for a transfer");
    }
    request->part_count = part_count;
    request->counts = NULL;
    for (uint32_t i = 0; i < part_count; i++) {
        unsigned char *const at = (unsigned char *)transfer->at + (uint64_t)i * PART_BYTES;
        const uint64_t rest = transfer->bytes - (uint64_t)i * PART_BYTES;
        const int bytes = (int)(rest < PART_BYTES ? rest : PART_BYTES), tag = (int)transfer->tag;
        const int peer = (int)transfer->process;
        request->parts[i] = MPI_REQUEST_NULL;
        OX_THEN(status, check(transfer->sends ? MPI_Isend(at, bytes, MPI_BYTE, peer, tag, self->data,
                                                          &request->parts[i])
                                              : MPI_Irecv(at, bytes, MPI_BYTE, peer, tag, self->data,
                                                          &request->parts[i]), "a transfer"));
    }
    *out = request; /* also on failure: what has begun must be dropped */
    return status;
}

/* One collective call, which the library moves along whenever it is asked for anything. */
static enum ox_status mpi_sum(struct ox_wire *wire, const struct ox_wire_sum *sum, struct ox_wire_request **out) {
    struct wire *const self = wire_of(wire);
    struct ox_wire_request *const request = malloc(sizeof *request + sizeof request->parts[0]);
    int *const counts = malloc(wire->process_count * sizeof *counts);
    if (request == NULL || counts == NULL) {
        free(request);
        free(counts);
        return ox_fail(OX_E_NOMEM, "MPI: no memory for a sum");
    }
    for (uint32_t p = 0; p < wire->process_count; p++) {
        counts[p] = (int)sum->counts[p];
    }
    *request = (struct ox_wire_request){.part_count = 1, .counts = counts};
    request->parts[0] = MPI_REQUEST_NULL;
    *out = request;
    return check(MPI_Ireduce_scatter(sum->source, sum->target, counts, MPI_FLOAT, MPI_SUM, self->data,
                                     &request->parts[0]), "a sum");
}

static enum ox_status mpi_test(struct ox_wire *wire, struct ox_wire_request *request, bool *done) {
    int ended = 0;
    (void)wire;
    const enum ox_status status = check(MPI_Testall((int)request->part_count, request->parts, &ended,
                                                    MPI_STATUSES_IGNORE), "a transfer");
    *done = ended != 0 || status != OX_OK;
    if (*done) {
        free(request->counts);
        free(request);
    }
    return status;
}

static void mpi_drop(struct ox_wire *wire, struct ox_wire_request *request) {
    wire_of(wire)->dropped = true;
    unclean = true;
    if (request->counts != NULL) {
        return; /* a collective call cannot be taken back, so the library may look at it later */
    }
    for (uint32_t i = 0; i < request->part_count; i++) {
        if (request->parts[i] != MPI_REQUEST_NULL) {
            MPI_Cancel(&request->parts[i]);
            MPI_Request_free(&request->parts[i]);
        }
    }
    free(request);
}

/* ---- processes -------------------------------------------------------------------------------------- */

/* The library says nothing, and its launcher ends the others in time. On one machine the pid tells at once. */
static bool mpi_lost(struct ox_wire *wire, uint32_t process) {
    struct wire *const self = wire_of(wire);
    const struct greeting *const peer = &self->peers[process], *const own = &self->peers[wire->process];
    if (own->pid_space[0] == '\0' || strcmp(peer->pid_space, own->pid_space) != 0) {
        return false;
    }
    char path[64], state = '?';
    snprintf(path, sizeof path, "/proc/%d/stat", peer->pid);
    FILE *const file = fopen(path, "re");
    if (file == NULL) {
        return kill(peer->pid, 0) != 0;
    }
    const bool read = fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
    fclose(file);
    return read && (state == 'Z' || state == 'X');
}

static const char *mpi_name(struct ox_wire *wire, uint32_t process) {
    struct wire *const self = wire_of(wire);
    snprintf(self->name, sizeof self->name, "process %u (pid %d on %.*s)", process, self->peers[process].pid,
             STAMP_BYTES - 1, self->peers[process].host);
    return self->name;
}

/* ---- the gate --------------------------------------------------------------------------------------- */

/* When a wire is closed that has given transfers up, the program frees their memory. The library may still move their
 * bytes whenever it is called, for another wire too, so from then on it is not called any more. The other processes
 * learn that this one ends when it has. */
static pthread_rwlock_t gate = PTHREAD_RWLOCK_INITIALIZER;
static bool retired; /* guarded by `gate` */

/* Every call of `enter` is followed by one of `leave`; the library may be called in between if it returns true. */
static bool enter(void) {
    pthread_rwlock_rdlock(&gate);
    return !retired;
}

static enum ox_status leave(enum ox_status status) {
    pthread_rwlock_unlock(&gate);
    return status;
}

static enum ox_status refused(void) {
    return ox_fail(OX_E_COMM, "MPI: it is not called any more, because transfers were given up; start the run again");
}

static enum ox_status gate_post(struct ox_wire *wire, uint32_t process, const void *message, uint32_t bytes) {
    return leave(enter() ? mpi_post(wire, process, message, bytes) : OX_OK);
}

static enum ox_status gate_poll(struct ox_wire *wire, uint32_t *process, void *message, uint32_t *bytes) {
    *bytes = 0;
    return leave(enter() ? mpi_poll(wire, process, message, bytes) : OX_OK);
}

static bool gate_sending(struct ox_wire *wire) {
    const bool sending = enter() && mpi_sending(wire);
    leave(OX_OK);
    return sending;
}

static enum ox_status gate_begin(struct ox_wire *wire, const struct ox_wire_transfer *transfer,
                                 struct ox_wire_request **out) {
    return leave(enter() ? mpi_begin(wire, transfer, out) : refused());
}

static enum ox_status gate_sum(struct ox_wire *wire, const struct ox_wire_sum *sum, struct ox_wire_request **out) {
    return leave(enter() ? mpi_sum(wire, sum, out) : refused());
}

static enum ox_status gate_test(struct ox_wire *wire, struct ox_wire_request *request, bool *done) {
    *done = true;
    return leave(enter() ? mpi_test(wire, request, done) : refused());
}

static void gate_drop(struct ox_wire *wire, struct ox_wire_request *request) {
    if (enter()) {
        mpi_drop(wire, request);
    }
    leave(OX_OK);
}

static void end_calls(struct wire *self, bool clean) {
    if (self->incoming != MPI_REQUEST_NULL) {
        MPI_Cancel(&self->incoming);
        MPI_Wait(&self->incoming, MPI_STATUS_IGNORE);
    }
    clean = clean && !mpi_sending(&self->base);
    if (clean) {
        MPI_Comm_free(&self->events);
        MPI_Comm_free(&self->data);
    } else {
        unclean = unclean || self->base.process_count > 1;
    }
    for (uint32_t i = 0; i < self->post_count; i++) {
        struct post *const post = &self->posts[(self->post_first + i) % POSTS_MAX];
        MPI_Request_free(&post->request); /* its data must stay */
    }
}

static void gate_close(struct ox_wire *wire, bool clean) {
    struct wire *const self = wire_of(wire);
    pthread_rwlock_wrlock(&gate);
    retired = retired || self->dropped;
    if (!retired) {
        end_calls(self, clean);
        free(self->peers);
        free(self);
    } /* otherwise the library keeps what it receives into */
    pthread_rwlock_unlock(&gate);
    atomic_fetch_sub(&open_count, 1);
}

static const struct ox_wire_ops mpi_ops = {
    .post = gate_post,
    .poll = gate_poll,
    .sending = gate_sending,
    .begin = gate_begin,
    .sum = gate_sum,
    .test = gate_test,
    .drop = gate_drop,
    .lost = mpi_lost,
    .name = mpi_name,
    .close = gate_close,
};

/* ---- open ------------------------------------------------------------------------------------------- */

static void greet(struct greeting *out, uint32_t ranks) {
    char boot[STAMP_BYTES / 2] = "", space[STAMP_BYTES / 2] = "";
    memset(out, 0, sizeof *out);
    out->plugin_version = OX_MPI_PLUGIN_VERSION;
    out->ranks = ranks;
    out->pid = (int32_t)getpid();
    gethostname(out->host, sizeof out->host - 1);
    FILE *const file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file != NULL) {
        const bool known = fscanf(file, "%31s", boot) == 1 &&
                           readlink("/proc/self/ns/pid", space, sizeof space - 1) > 0;
        fclose(file);
        if (known) {
            snprintf(out->pid_space, sizeof out->pid_space, "%s %s", boot, space);
        }
    }
}

static enum ox_status meet_peers(struct wire *self, uint32_t ranks, uint32_t limit_ms) {
    const int bytes = sizeof self->own;
    MPI_Request request = MPI_REQUEST_NULL;
    greet(&self->own, ranks);
    enum ox_status status = check(MPI_Iallgather(&self->own, bytes, MPI_BYTE, self->peers, bytes, MPI_BYTE,
                                                 self->events, &request), "greeting");
    OX_THEN(status, finish(&request, "the start of all processes", limit_ms));
    for (uint32_t p = 0; p < self->base.process_count && status == OX_OK; p++) {
        if (self->peers[p].plugin_version != OX_MPI_PLUGIN_VERSION) {
            status = ox_fail(OX_E_CONFIG, "MPI: %s runs another version of offload; start all with the same",
                             mpi_name(&self->base, p));
        } else if (self->peers[p].ranks != self->peers[0].ranks) {
            status = ox_fail(OX_E_CONFIG, "MPI: %s has %u ranks and process 0 has %u; start all with the same --ranks",
                             mpi_name(&self->base, p), self->peers[p].ranks, self->peers[0].ranks);
        }
    }
    return status;
}

static enum ox_status plugin_open(uint32_t ranks, uint32_t limit_ms, struct ox_wire **out) {
    uint32_t process = 0, process_count = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    *out = NULL;
    enum ox_status status = plugin_world(&process, &process_count);
    if (status != OX_OK) {
        return status;
    }
    struct wire *const self = calloc(1, sizeof *self);
    struct greeting *const peers = calloc(process_count, sizeof *peers);
    if (self == NULL || peers == NULL) {
        free(self);
        free(peers);
        return ox_fail(OX_E_NOMEM, "MPI: no memory for %u processes", process_count);
    }
    self->base = (struct ox_wire){.ops = &mpi_ops, .label = "mpi", .process = process, .process_count = process_count};
    atomic_fetch_add(&open_count, 1);
    self->peers = peers;
    self->events = self->data = MPI_COMM_NULL;
    self->incoming = MPI_REQUEST_NULL;
    status = check(MPI_Comm_idup(MPI_COMM_WORLD, &self->events, &request), "opening");
    OX_THEN(status, finish(&request, "the start of all processes", limit_ms));
    OX_THEN(status, check(MPI_Comm_idup(MPI_COMM_WORLD, &self->data, &request), "opening"));
    OX_THEN(status, finish(&request, "the start of all processes", limit_ms));
    OX_THEN(status, meet_peers(self, ranks, limit_ms));
    if (status == OX_OK) {
        MPI_Comm_set_errhandler(self->events, MPI_ERRORS_RETURN);
        MPI_Comm_set_errhandler(self->data, MPI_ERRORS_RETURN);
    }
    OX_THEN(status, listen_on(self));
    if (status == OX_E_CONFIG) { /* all processes find it alike */
        gate_close(&self->base, true);
        return status;
    }
    if (status != OX_OK) {
        unclean = true;
        return status; /* `self` stays, because a request that has not ended writes to it */
    }
    *out = &self->base;
    return OX_OK;
}

extern const struct ox_mpi_plugin ox_mpi_plugin;
const struct ox_mpi_plugin ox_mpi_plugin = {
    .version = OX_MPI_PLUGIN_VERSION,
    .wire_bytes = sizeof(struct ox_wire_ops),
    .world = plugin_world,
    .open = plugin_open,
};
