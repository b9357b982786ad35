/* The optimizer's stream: the chunks of one unit after another pass three threads, in slots.
 *
 *     reader   requests what a chunk needs from the store, verifies it, and passes the chunk on
 *     lane     takes the chunk, updates it, and puts it
 *     writer   gathers the planes that live in memory, hashes, writes, and frees the slot
 *
 * So a drive reads and writes while the two threads compute checksums and the lane does nothing but update. Chunks keep
 * their order; slots are freed in any order, each when its writes have ended. The next unit may be ordered while one
 * is being updated, so that its reads follow without a gap. Nothing is allocated once the stream is open.
 *
 * The owner of the stream decides what a chunk reads and writes, by callbacks. The first failure stops the stream:
 * chunks that have not begun do not begin, and every call returns the failure until ox_stream_drain. */
#ifndef OX_ENGINE_OPTIM_STREAM_H
#define OX_ENGINE_OPTIM_STREAM_H

#include "cpu_optim/optim.h"
#include "nvme/store.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_STREAM_SLOTS_MAX = 32, OX_STREAM_OPS_MAX = 4 };

/* The update of one unit as data. Pointers are to the unit's first element. */
struct ox_unit_run {
    uint32_t unit_idx, chunk_count;
    const struct ox_optim_hyper *hyper;
    const uint8_t *routed; /* as in struct ox_update_args */
    uint64_t base_step; /* the step whose planes it begins with */
    bool stays;         /* it is not committed: what lives in memory is not written */
    /* Where a plane is updated; NULL: in the slot, into which it was read from the store. `hi` may be a downloaded copy
     * of a unit that lives on the device. */
    struct {
        uint16_t *hi;
        void *state;
        const unsigned char *grad; /* read only */
    } source;
    /* Take what the update replaces, of a unit whose planes all live in memory; NULL: it is not saved. */
    struct {
        uint16_t *hi;
        void *state;
    } replaced;
    bool weights_only; /* it makes hi alone, and saves that alone */
    bool follows;      /* it makes the state after that; `source.hi` is then what was saved */
    /* Further copies of the new planes; NULL: none. */
    struct {
        uint16_t *hi, *lo; /* lo: the copy behind hi that compute reads */
        void *state;
        unsigned char *planes; /* where forward reads them: all of hi, and all of lo behind it if it reads that */
    } target;
};

/* A chunk in its slot; struct ox_chunk_layout of offload/plan/shard.h says where its planes and gradient lie. */
struct ox_stream_chunk {
    struct ox_unit_run run;
    uint32_t chunk_idx;
    unsigned char *slot;
};

/* What the stream calls; no member may be NULL. */
struct ox_stream_calls {
    /* Called on the reader's thread: fills in the chunk's reads, at most OX_STREAM_OPS_MAX, and returns how many. The
     * stream sets the tags. The unit may not have begun yet, so planes in memory may not be touched. */
    uint32_t (*reads)(void *owner, const struct ox_stream_chunk *chunk, struct ox_store_op *ops);
    /* Called there too, chunk by chunk: all reads have ended, the unit has begun, and the update waits for
     * the return. */
    void (*arrived)(void *owner, const struct ox_stream_chunk *chunk);
    /* Called on the writer's thread, in order, before ox_stream_wait_copies returns: copies between memory and slot. */
    void (*leaves)(void *owner, const struct ox_stream_chunk *chunk);
    /* Called there too: fills in the writes and returns how many, which may be none. */
    uint32_t (*writes)(void *owner, const struct ox_stream_chunk *chunk, struct ox_store_op *ops);
};

struct ox_stream_config {
    struct ox_store *store; /* outlives the stream */
    const struct ox_stream_calls *calls;
    void *owner;
    uint64_t chaos_seed;   /* not 0: both threads pause at random, up to chaos_ns_max at a time */
    uint64_t chaos_ns_max;
};

struct ox_stream;
OX_MUST enum ox_status ox_stream_open(const struct ox_stream_config *config, struct ox_stream **out);
/* Closes the stream; waits for what is in flight. */
void ox_stream_close(struct ox_stream **stream);

/* Registers the memory of the slots with both ports, before the first unit; ox_store_port_register says what
 * it costs. */
void ox_stream_register(struct ox_stream *stream, const struct ox_io_region *region);
/* Sets the slots, while the stream is empty. */
void ox_stream_set_slots(struct ox_stream *stream, unsigned char *base, uint64_t slot_bytes, uint32_t slot_count);

/* ---- on the lane's thread ---------------------------------------------------------------------------- */

/* Begins a unit, whose memory may be read from now on. Orders it, or takes the order that was made ahead. */
void ox_stream_begin(struct ox_stream *stream, const struct ox_unit_run *run);
/* Orders the unit after the one that has begun, so that its reads may start. */
void ox_stream_order_ahead(struct ox_stream *stream, const struct ox_unit_run *run);
/* Waits for the next chunk of the unit that has begun, and takes it until it is put. */
OX_MUST enum ox_status ox_stream_take(struct ox_stream *stream, struct ox_stream_chunk *out);
void ox_stream_put(struct ox_stream *stream);
/* Waits until every chunk that was put is copied to its slot; its writes may still be in flight. */
OX_MUST enum ox_status ox_stream_wait_copies(struct ox_stream *stream);

/* Waits until nothing is in flight, and empties the stream: chunks that were put are written, unless something failed;
 * chunks that were not taken are dropped. Returns the first failure and forgets it. May be called on any thread, while
 * the lane's thread is in none of the calls above. */
OX_MUST enum ox_status ox_stream_drain(struct ox_stream *stream);

/* What the lane has waited for since the stream was opened. Read on the lane's thread. */
struct ox_stream_waits {
    uint64_t read_ns;  /* a chunk whose read was in flight or queued                               */
    uint64_t write_ns; /* a chunk whose read could not start: all slots held chunks being written  */
    uint64_t copy_ns;  /* copies to memory at the end of its task                                  */
};
void ox_stream_waits(const struct ox_stream *stream, struct ox_stream_waits *out);

/* The end of all reads of a chunk, or of all its writes. */
struct ox_stream_transfer {
    const struct ox_stream_chunk *chunk;
    bool write;
    uint64_t busy_since_ns, end_ns; /* since when the thread has had transfers in flight without a gap; now */
};
/* Called on the reader's and on the writer's thread while the stream is locked, so it must be quick. */
typedef void ox_stream_observer(void *context, const struct ox_stream_transfer *transfer);
/* Sets the observer while the stream is empty; NULL removes it. */
void ox_stream_observe(struct ox_stream *stream, ox_stream_observer *observer, void *context);

/* Sums since the stream was opened. */
struct ox_stream_stats {
    uint64_t read_wait_ns; /* the lane waited for a chunk that was not there yet                  */
    uint64_t slot_wait_ns; /* a chunk could have been read, but no slot was free                  */
    uint64_t copy_wait_ns; /* the lane waited for copies to memory at the end of its task        */
    uint64_t reader_busy_ns, writer_busy_ns; /* their processor time: checksums, copies, submitting */
    uint64_t chunk_count;
};
void ox_stream_stats(struct ox_stream *stream, struct ox_stream_stats *out);

#ifdef __cplusplus
}
#endif
#endif
