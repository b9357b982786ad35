/* One rank of NCCL: a communicator that does not block, and a stream of its own. */
#include "kernels/comm/nccl/nccl.h"

#include "base/assert.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/comm/nccl/library.h"

#include <stdlib.h>
#include <string.h>

struct ox_nccl {
    const struct ox_cuda_device *device;
    const struct ox_nccl_library *library;
    ncclComm_t comm;
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

static void nccl_close(struct ox_nccl *self) {
    const bool chosen = choose(self) == OX_OK;
    if (self->comm != NULL) {
        (void)self->library->abort(self->comm);
    }
    if (chosen && self->stream != NULL) {
        (void)cudaStreamSynchronize(self->stream); /* the event's record may still be on it */
        (void)cudaStreamDestroy(self->stream);
    }
    if (chosen && self->end != NULL) {
        (void)cudaEventDestroy(self->end);
    }
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

static enum ox_status part_begin(struct ox_nccl *self, const struct ox_nccl_part *part) {
    const struct ox_nccl_library *const library = self->library;
    const int peer = (int)part->peer;
    switch (part->kind) {
    case OX_NCCL_SENDS:
        return check(self, library->send(part->source, part->bytes, ncclInt8, peer, self->comm, self->stream),
                     "sending");
    case OX_NCCL_RECEIVES:
        return check(self, library->recv(part->target, part->bytes, ncclInt8, peer, self->comm, self->stream),
                     "receiving");
    case OX_NCCL_REDUCES: break;
    }
    return check(self, library->reduce(part->source, part->target, part->bytes / sizeof(float), ncclFloat32, ncclSum,
                                       peer, self->comm, self->stream), "adding");
}

static enum ox_status nccl_begin(struct ox_nccl *self, const struct ox_nccl_work *work) {
    const struct ox_nccl_library *const library = self->library;
    enum ox_status status = choose(self);
    self->recorded = false;
    if (status == OX_OK && work->equal_bytes > 0) {
        return work->reduces
                   ? check(self, library->reduce_scatter(work->source, work->target, work->equal_bytes / sizeof(float),
                                                         ncclFloat32, ncclSum, self->comm, self->stream),
                           "adding")
                   : check(self, library->all_gather(work->source, work->target, work->equal_bytes, ncclInt8,
                                                     self->comm, self->stream), "gathering");
    }
    OX_THEN(status, check(self, library->group_start(), "beginning a group"));
    if (status != OX_OK) {
        return status;
    }
    struct ox_first_failure first = {0};
    for (uint32_t i = 0; i < work->part_count; i++) {
        ox_first_failure_note(&first, part_begin(self, &work->parts[i]));
    }
    ox_first_failure_note(&first, check(self, library->group_end(), "ending a group"));
    return ox_first_failure_result(&first);
}

/* The library puts work on the stream in its own time, and the event goes behind it. */
static enum ox_status nccl_poll(struct ox_nccl *self, bool *done) {
    ncclResult_t state = ncclSuccess;
    *done = false;
    enum ox_status status = choose(self);
    OX_THEN(status, check(self, self->library->async_error(self->comm, &state), "asking for errors"));
    OX_THEN(status, check(self, state, "moving bytes"));
    if (status != OX_OK || state == ncclInProgress) {
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
    .close = nccl_close,
};

const struct ox_nccl_ops *ox_cuda_nccl_ops(void) {
    return &nccl_ops;
}
