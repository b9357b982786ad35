/* One rank of NCCL: a communicator that does not block, a stream of its own, and work on lanes of the device. */
#include "kernels/comm/nccl/nccl.h"

#include "base/assert.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/comm/nccl/library.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct ox_nccl {
    const struct ox_cuda_device *device;
    const struct ox_nccl_library *library;
    /* The feeder of a lane, whoever watches it and whoever ends it call the library for one communicator. */
    pthread_mutex_t lock;
    ncclComm_t comm; /* NULL: stopped */
    cudaStream_t stream;
    cudaEvent_t end;
    bool opening;  /* no work yet */
    bool recorded; /* `end` is behind the work */
};

static enum ox_status check(const struct ox_nccl *self, ncclResult_t result, const char *what) {
    if (result == ncclSuccess || result == ncclInProgress) {
        return OX_OK;
    }
    return ox_fail(OX_E_COMM, "NCCL: %s: %s", what, self->library->error_string(result));
}

static enum ox_status choose(const struct ox_nccl *self) {
    return ox_cuda_check(cudaSetDevice(self->device->idx), "choosing the device");
}

static enum ox_status nccl_id(unsigned char out[OX_NCCL_ID_BYTES]) {
    OX_STATIC_ASSERT(sizeof(ncclUniqueId) == OX_NCCL_ID_BYTES, "an identifier of NCCL");
    struct ox_nccl self = {.comm = NULL};
    ncclUniqueId id;
    enum ox_status status = ox_nccl_library_open(&self.library);
    OX_THEN(status, check(&self, self.library->unique_id(&id), "making an identifier"));
    if (status == OX_OK) {
        memcpy(out, &id, sizeof id);
    }
    return status;
}

/* The library ends its kernels on whatever streams they are. */
static void nccl_stop(struct ox_nccl *self) {
    pthread_mutex_lock(&self->lock);
    if (self->comm != NULL && choose(self) == OX_OK) {
        (void)self->library->abort(self->comm);
        self->comm = NULL;
    }
    pthread_mutex_unlock(&self->lock);
}

static void nccl_close(struct ox_nccl *self) {
    const bool chosen = choose(self) == OX_OK;
    nccl_stop(self);
    if (chosen && self->stream != NULL) {
        (void)cudaStreamSynchronize(self->stream); /* the event's record may still be on it */
        (void)cudaStreamDestroy(self->stream);
    }
    if (chosen && self->end != NULL) {
        (void)cudaEventDestroy(self->end);
    }
    pthread_mutex_destroy(&self->lock);
    free(self);
}

static enum ox_status nccl_open(struct ox_device *device, const unsigned char id[OX_NCCL_ID_BYTES], uint32_t rank,
                                uint32_t count, struct ox_nccl **out) {
    struct ox_nccl *const self = calloc(1, sizeof *self);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId unique;
    *out = NULL;
    if (self == NULL) {
        return ox_fail(OX_E_NOMEM, "NCCL: no memory for the state of a rank");
    }
    memcpy(&unique, id, sizeof unique);
    config.blocking = 0;
    self->device = (const struct ox_cuda_device *)device;
    self->opening = true;
    pthread_mutex_init(&self->lock, NULL);
    enum ox_status status = ox_nccl_library_open(&self->library);
    OX_THEN(status, choose(self));
    OX_THEN(status, ox_cuda_check(cudaStreamCreateWithFlags(&self->stream, cudaStreamNonBlocking), "opening a stream"));
    OX_THEN(status, ox_cuda_check(cudaEventCreateWithFlags(&self->end, cudaEventDisableTiming), "opening an event"));
    OX_THEN(status, check(self, self->library->init(&self->comm, (int)count, unique, (int)rank, &config), "opening"));
    if (status != OX_OK) {
        nccl_close(self);
        return status;
    }
    *out = self;
    return OX_OK;
}

static enum ox_status part_begin(struct ox_nccl *self, cudaStream_t stream, const struct ox_nccl_part *part) {
    const struct ox_nccl_library *const library = self->library;
    const int peer = (int)part->peer;
    switch (part->kind) {
    case OX_NCCL_SENDS:
        return check(self, library->send(part->source, part->bytes, ncclInt8, peer, self->comm, stream), "sending");
    case OX_NCCL_RECEIVES:
        return check(self, library->recv(part->target, part->bytes, ncclInt8, peer, self->comm, stream), "receiving");
    case OX_NCCL_REDUCES: break;
    }
    return check(self, library->reduce(part->source, part->target, part->bytes / sizeof(float), ncclFloat32, ncclSum,
                                       peer, self->comm, stream), "adding");
}

static enum ox_status stopped(void) {
    return ox_fail(OX_E_ABORTED, "NCCL: stopped after a failure");
}

/* Under the lock, as the next one. */
static enum ox_status put(struct ox_nccl *self, cudaStream_t stream, const struct ox_nccl_work *work) {
    const struct ox_nccl_library *const library = self->library;
    enum ox_status status = choose(self);
    if (self->comm == NULL) {
        return stopped();
    }
    if (status == OX_OK && work->equal_bytes > 0) {
        return work->reduces
                   ? check(self, library->reduce_scatter(work->source, work->target, work->equal_bytes / sizeof(float),
                                                         ncclFloat32, ncclSum, self->comm, stream), "adding")
                   : check(self, library->all_gather(work->source, work->target, work->equal_bytes, ncclInt8,
                                                     self->comm, stream), "gathering");
    }
    OX_THEN(status, check(self, library->group_start(), "beginning a group"));
    if (status != OX_OK) {
        return status;
    }
    struct ox_first_failure first = {0};
    for (uint32_t i = 0; i < work->part_count; i++) {
        ox_first_failure_note(&first, part_begin(self, stream, &work->parts[i]));
    }
    ox_first_failure_note(&first, check(self, library->group_end(), "ending a group"));
    return ox_first_failure_result(&first);
}

/* *settled: the library has put on streams what it was given, in its own time. */
static enum ox_status look(struct ox_nccl *self, bool *settled) {
    ncclResult_t state = ncclSuccess;
    *settled = false;
    if (self->comm == NULL) {
        return stopped();
    }
    enum ox_status status = choose(self);
    OX_THEN(status, check(self, self->library->async_error(self->comm, &state), "asking for errors"));
    OX_THEN(status, check(self, state, "moving bytes"));
    *settled = status == OX_OK && state != ncclInProgress;
    return status;
}

static enum ox_status look_once(struct ox_nccl *self, bool *settled) {
    pthread_mutex_lock(&self->lock);
    const enum ox_status status = look(self, settled);
    pthread_mutex_unlock(&self->lock);
    return status;
}

static enum ox_status nccl_begin(struct ox_nccl *self, const struct ox_nccl_work *work) {
    self->recorded = false;
    pthread_mutex_lock(&self->lock);
    const enum ox_status status = put(self, self->stream, work);
    pthread_mutex_unlock(&self->lock);
    return status;
}

/* ---- on lanes ------------------------------------------------------------------------------------------ */

struct queued {
    struct ox_nccl *self;
    const struct ox_nccl_work *work;
};

/* On the lane's feeder. What it puts on the stream next has to come behind the library's work, so it waits until that
 * is there; a peer that has not come to its first call may delay this, which is why `stop` ends it. */
static enum ox_status run_queued(const struct ox_cuda_queue *queue, const void *args) {
    enum { LOOK_NS = 1000, LOOK_NS_MOST = 100000 };
    const struct queued *const job = args;
    bool settled = false;
    pthread_mutex_lock(&job->self->lock);
    enum ox_status status = put(job->self, queue->stream, job->work);
    OX_THEN(status, look(job->self, &settled));
    pthread_mutex_unlock(&job->self->lock);
    for (long ns = LOOK_NS; status == OX_OK && !settled; ns = ns < LOOK_NS_MOST ? 2 * ns : ns) {
        nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
        status = look_once(job->self, &settled);
    }
    return status;
}

static enum ox_status nccl_queue(struct ox_nccl *self, struct ox_lane *lane, const struct ox_nccl_work *work) {
    const struct queued job = {.self = self, .work = work};
    return ox_cuda_lane_submit(lane, &(struct ox_cuda_work){.run = run_queued, .name = "nccl"}, &job, sizeof job);
}

static enum ox_status nccl_check(struct ox_nccl *self) {
    bool settled = false;
    return look_once(self, &settled);
}

/* The library puts work on the stream in its own time, and the event goes behind it. */
static enum ox_status nccl_poll(struct ox_nccl *self, bool *done) {
    bool settled = false;
    *done = false;
    enum ox_status status = look_once(self, &settled);
    if (status != OX_OK || !settled) {
        return status;
    }
    if (self->opening) {
        self->opening = false;
        *done = true;
        return OX_OK;
    }
    if (!self->recorded) {
        self->recorded = true;
        status = ox_cuda_check(cudaEventRecord(self->end, self->stream), "marking a stream");
    }
    const cudaError_t ended = status == OX_OK ? cudaEventQuery(self->end) : cudaSuccess;
    if (status == OX_OK && ended != cudaErrorNotReady) {
        *done = ended == cudaSuccess;
        status = ox_cuda_check(ended, "moving bytes between GPUs");
    }
    return status;
}

static const struct ox_nccl_ops nccl_ops = {
    .id = nccl_id,
    .open = nccl_open,
    .begin = nccl_begin,
    .poll = nccl_poll,
    .queue = nccl_queue,
    .check = nccl_check,
    .stop = nccl_stop,
    .close = nccl_close,
};

const struct ox_nccl_ops *ox_cuda_nccl_ops(void) {
    return &nccl_ops;
}
