/* For tests of the operations of kernels/: labs (a device with a lane and its operations), buffers between canaries,
 * random numbers, tensors of either type, and comparison with references in double precision. */
#ifndef OX_TESTS_OPS_KIT_H
#define OX_TESTS_OPS_KIT_H

#include "kernels/ops.h"
#include "tests/kit/test.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- labs --------------------------------------------------------------------------------------- */

/* Five CPU devices (one thread, two, two under random delays, three, five), the CUDA plugin on the emulated runtime of
 * tests/simt, whose device memory is host memory, and the GPU of this machine twice, to see that it repeats its bits.
 * Without a GPU the last two are not there. */
enum { LAB_CPU_COUNT = 5, LAB_SIMT = LAB_CPU_COUNT, LAB_CUDA, LAB_CUDA_AGAIN, LAB_MAX };
extern int lab_count; /* LAB_CUDA or LAB_MAX, from labs_open on */

struct lab {
    struct ox_device *device;
    struct ox_lane *lane;
    struct ox_ops ops;
    struct ox_compute compute;
    bool emulated;
    enum ox_real products; /* to which a CPU rounds the inputs of GEMMs */
    uint64_t digest; /* hash of the outputs of the current case */
};

void labs_open(struct lab labs[LAB_MAX]);
/* Closes the labs and opens those of the CPU again, with GEMMs of this type; there are no others then. False, with
 * nothing done, where the CPU or its library cannot compute so. */
bool labs_change_products(struct lab labs[LAB_MAX], enum ox_real products);
/* Ends the program's cases: closes the labs, prints the errors and returns the exit status. */
int labs_end(struct lab labs[LAB_MAX]);
/* Opens one lab: on this CUDA plugin, or on the emulated one. */
void lab_open_cuda(struct lab *lab, const char *plugin);
void lab_open_simt(struct lab *lab);

/* Whether attention in this type is computed by our own kernels, and not by cuDNN in the cases that it takes. */
bool lab_owns_attention(const struct lab *lab, enum ox_real real);
/* Opens the labs of CUDA plugins again with the other implementation of attention in bfloat16: our own kernels on the
 * GPU, which has cuDNN if its library is there, and the emulated cuDNN on the emulation. */
void labs_change_attention(struct lab labs[LAB_MAX]);

/* False where a case of so many multiplications would take the emulation too long. */
bool lab_takes(const struct lab *lab, double work);
/* Sets the lab's type; false where the device does not compute in it (the CPU computes in float32 alone). To be called
 * before a case, because scratch sizes depend on it. */
bool lab_knows(struct lab *lab, enum ox_real real);
/* The value nearest to this one in the type. */
float real_nearest(enum ox_real real, float value);
/* Waits by the mark that the operations hand out. */
void lab_finish(struct lab *lab);
/* Adds an output to the case's digest. */
void lab_digest(struct lab *lab, const void *data, size_t bytes);
/* Ends a case that ran on all labs: every number of threads gave the same bits, with and without delays, and so did a
 * GPU twice; and all guarded buffers are checked and freed. */
void labs_end_case(struct lab labs[LAB_MAX]);

/* ---- guarded buffers ---------------------------------------------------------------------------- */

/* Bytes filled with NaN patterns between two canaries, until guards_end. The end is exact, so that a write of one
 * element too many shows. A GPU can use them at the host's addresses. */
void *guarded(size_t bytes);
float *floats(size_t count);
double *doubles(size_t count);
/* Checks all canaries and frees the buffers made since there were `keep` of them. */
extern int guard_count;
void guards_end(int keep);

/* ---- numbers ------------------------------------------------------------------------------------ */

void fill(float *out, size_t count, float value);
void fill_normal(float *out, size_t count, uint64_t stream, double scale);
float *random_floats(size_t count, uint64_t stream, double scale);
/* Replaces a fourth of the values by what goes wrong more often than normal ones: zeros of both signs, denormals, equal
 * values, and large ones, at which exp overflows, in the range of every type. */
void make_hard(float *values, size_t count, uint64_t stream);
double *widened(const float *in, size_t count);

/* ---- tensors of either type --------------------------------------------------------------------- */

void *reals(enum ox_real real, size_t count);
/* Values that the type holds exactly, so that a reference starts from the same numbers. */
float *random_reals(enum ox_real real, size_t count, uint64_t stream, double scale);
/* Copies floats to a tensor of the type, and a tensor to floats. */
void *reals_of(enum ox_real real, const float *values, size_t count);
float *floats_of(enum ox_real real, const void *tensor, size_t count);

/* ---- errors ------------------------------------------------------------------------------------- */

/* The largest difference relative to the largest reference; a NaN counts as infinite. */
double error_of(const float *got, const double *want, size_t count);
/* Checks an error and keeps the worst one of each quantity, which print_errors shows beside its tolerance. */
void check_error(const char *what, double error, double tolerance);
/* Checks the error of a tensor of that type; check_real_error has one tolerance for each type. */
void check_error_in(enum ox_real real, const char *what, double error, double tolerance);
void check_real_error(enum ox_real real, const char *what, double error, double f32, double bf16);
/* Checks a sum that an operation began, over the NaNs of a new buffer, against what it added to zeros: the same bits
 * but for the sign of a zero. A GPU's library may begin a sum by another algorithm. */
void check_begun(const struct lab *lab, const float *begun, const float *added, size_t count);
void print_errors(void);

typedef double loss_fn(const void *context, const double *x);
/* Difference of `gradient` from central differences of `loss` at x, relative to its largest element. */
double gradient_error(loss_fn *loss, const void *context, double *x, const double *gradient, size_t count);

#endif
