/* The optimizer's stream: the chunks of one unit after another pass three threads, in slots.
 *
 *     reader   asks the store for what a chunk needs, verifies what came, passes the chunk on
 *     lane     takes it, updates it, puts it
 *     writer   gathers what lies in memory, hashes, writes, and gives the slot back
 *
 * So a drive reads and writes while checksums are made on either side and the lane does nothing but update. Chunks keep
 * their order; a slot is free again when its writes are out, in any order. The unit after the one in work may be
 * ordered already: then its reads follow without a gap. Nothing is allocated once the stream is open.
 *
 * What a chunk needs and what becomes of it is its owner's, who is called. The first failure ends all: chunks that have
 * not begun do not begin, and every call returns it until ox_stream_drain. */
#ifndef OX_ENGINE_OPTIM_STREAM_H
#define OX_ENGINE_OPTIM_STREAM_H

#include "cpu_optim/optim.h"
#include "nvme/store.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_STREAM_SLOTS_MAX = 32, OX_STREAM_OPS_MAX = 4 };

/* One unit's way through the optimizer, as data; pointers are the whole unit's. */
struct ox_unit_run {
    uint32_t unit_idx, chunk_count;
    const struct ox_optim_hyper *hyper;
    uint64_t base_step; /* of the planes that it begins with */
    bool in_memory;     /* where all its planes are: nothing is written */
    /* Where a plane is updated; NULL: in the slot, where it came to from the store. `hi` may be a downloaded copy
     * of a unit that lives on the device. */
    struct {
        uint16_t *hi;
        void *state;
        const unsigned char *grad; /* read only */
    } source;
    /* What gets a copy besides the store; NULL: nothing. */
    struct {
        uint16_t *hi, *lo; /* lo is compute's own, behind hi */
        void *state;
        unsigned char *planes; /* where forward wants them: all of hi, and in fp32 all of lo behind it */
    } target;
};

/* A chunk in its slot; struct ox_chunk_layout of offload/plan/shard.h says where its planes and gradient lie. */
struct ox_stream_chunk {
    struct ox_unit_run run;
    uint32_t chunk_idx;
    unsigned char *slot;
};

/* Nothing may be NULL. */
struct ox_stream_calls {
    /* On the reader's thread: the chunk's reads, at most OX_STREAM_OPS_MAX, and how many; tags are the stream's. The
     * unit may not have begun: memory is not touched. */
    uint32_t (*reads)(void *owner, const struct ox_stream_chunk *chunk, struct ox_store_op *ops);
    /* There too, in order: all reads are in, the unit has begun, and the chunk is not updated before this returns. */
    void (*arrived)(void *owner, const struct ox_stream_chunk *chunk);
    /* On the writer's thread, in order, before ox_stream_wait_copies returns: copies between memory and the slot. */
    void (*leaves)(void *owner, const struct ox_stream_chunk *chunk);
    /* There too: the writes, which may be none. */
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
/* Waits for what is in flight. */
void ox_stream_close(struct ox_stream **stream);

/* Before the first unit: where the slots will lie, for both ports; ox_store_port_register says what it costs. */
void ox_stream_register(struct ox_stream *stream, const struct ox_io_region *region);
/* While the stream is empty. */
void ox_stream_set_slots(struct ox_stream *stream, unsigned char *base, uint64_t slot_bytes, uint32_t slot_count);

/* ---- on the lane's thread ---------------------------------------------------------------------------- */

/* The unit's memory may be read from now on. Orders it, unless that was done ahead; then `run` is what was ordered. */
void ox_stream_begin(struct ox_stream *stream, const struct ox_unit_run *run);
/* The unit after the one that has begun: its reads may be asked for. */
void ox_stream_order_ahead(struct ox_stream *stream, const struct ox_unit_run *run);
/* Waits for the next chunk of the unit that has begun. It stays taken until it is put. */
OX_MUST enum ox_status ox_stream_take(struct ox_stream *stream, struct ox_stream_chunk *out);
void ox_stream_put(struct ox_stream *stream);
/* Waits until every chunk that was put has left memory, though its writes may be in flight. */
OX_MUST enum ox_status ox_stream_wait_copies(struct ox_stream *stream);

/* Waits until nothing is in flight, and empties the stream: what was put is written, unless something failed; what was
 * not taken is given up. Returns the first failure and forgets it. On any thread, while the lane's is not within the
 * calls above. */
OX_MUST enum ox_status ox_stream_drain(struct ox_stream *stream);

/* On the lane's thread: what it has waited for since the stream was opened. */
struct ox_stream_waits {
    uint64_t read_ns;  /* a chunk that was on its way, or the turn of its read                     */
    uint64_t write_ns; /* a chunk that could not be asked for: all slots held chunks being written */
    uint64_t copy_ns;  /* copies to memory that its task ends with                                 */
};
void ox_stream_waits(const struct ox_stream *stream, struct ox_stream_waits *out);

/* A chunk's reads are all in, or its writes all out. */
struct ox_stream_transfer {
    const struct ox_stream_chunk *chunk;
    bool write;
    uint64_t busy_since_ns, end_ns; /* since then its thread has had transfers in flight all the time; now */
};
/* Called on the reader's and the writer's thread with the stream's lock, so it must be quick. */
typedef void ox_stream_observer(void *context, const struct ox_stream_transfer *transfer);
/* While the stream is empty; NULL ends it. */
void ox_stream_observe(struct ox_stream *stream, ox_stream_observer *observer, void *context);

/* Since the stream was opened. */
struct ox_stream_stats {
    uint64_t read_wait_ns; /* the lane waited for a chunk that was not there yet                  */
    uint64_t slot_wait_ns; /* a chunk was to be read, and no slot was free                        */
    uint64_t copy_wait_ns; /* the lane waited for copies to memory that its task ends with       */
    uint64_t reader_busy_ns, writer_busy_ns; /* of their processors: checksums, copies, submitting */
    uint64_t chunk_count;
};
void ox_stream_stats(struct ox_stream *stream, struct ox_stream_stats *out);

#ifdef __cplusplus
}
#endif
#endif
