/* Calls by which a test controls and queries the emulated runtime; tests/kit/device/simt_kit.h finds them in the
 * plugin. */
#ifndef OX_TESTS_SIMT_SIMT_H
#define OX_TESTS_SIMT_SIMT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Faults to plant. The n-th call from now on that puts work on a stream fails and puts none there, as a launch of
 * wrong shape would; 0 = none. */
void simt_fail_after(uint64_t calls);
/* The n-th piece of work that a stream begins from now on breaks the device, as a wrong address would: neither it nor
 * what comes later runs, and every call says so; 0 = none, and the device is whole again. */
void simt_break_after(uint64_t pieces);

/* Multiprocessors that each device says it has. */
enum { SIMT_PROCESSORS = 2 };

/* Devices that there are to be, and the driver's version; 1 and 13000 without this call. */
void simt_set_machine(int device_count, int driver_version);
/* The device's capability (90 for 9.0), and the host memory that it lets be pinned; without these calls 90 and all. */
void simt_set_capability(int capability);
void simt_set_pinnable(size_t bytes);
/* Whether registered memory has one address on both sides; it has without this call. */
void simt_set_host_pointer(bool same);
/* Whether there is a cuBLASLt for the devices that are opened from now on; there is without this call. */
void simt_set_blas(bool present);
/* Whether there is an NCCL for the ranks that open from now on; there is without this call. */
void simt_set_nccl(bool present);
/* How often a rank of NCCL has put work on a stream, since the plugin was opened. */
uint64_t simt_nccl_calls(void);

/* The order in which fibers of a block run is drawn from it; 0 = ascending. */
void simt_set_seed(uint64_t seed);
/* Each piece of work of a stream begins after a pause of up to ns_max, drawn by seed; 0 = none. */
void simt_set_delay(uint64_t seed, uint64_t ns_max);

/* From now on device memory can be touched only while some stream runs a piece of work, so that a host that reads it
 * as if it were its own dies, and says where. Costs two calls of the kernel per piece. Only while no stream runs. */
void simt_guard(bool on);

/* Counts since the plugin was opened. */
struct simt_counts {
    uint64_t queued;      /* calls that put work on a stream, failed ones included */
    uint64_t run;         /* pieces of work that streams began */
    uint64_t event_waits; /* waits for an event, by threads that do nothing else */
    uint64_t stalls;      /* other calls that wait for the device, or may */
    uint64_t pageable;    /* copies from or to memory of the host that is not registered, which wait as well */
    uint64_t made;        /* streams and events made */
};
void simt_count(struct simt_counts *out);
/* Bytes of device memory in use. */
size_t simt_device_bytes(void);

#ifdef __cplusplus
}
#endif
#endif
