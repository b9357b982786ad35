/* Measures, within seconds, what a prediction needs to know of this machine and no profile says.
 *
 *   part      what runs                                                                      share of the limit
 *   compute   the linear layers of a block and of the head, forward and backward, at the run's own micro-batch,
 *             and attention, both on the threads of the CPU device; not if a GPU computes          3/12 + 2/12
 *   memory    the optimizer's update in fp32 and in the run's format, over planes larger than caches;
 *             the time to pass a task to a lane                                                         3/12
 *   drives    for each: writes, reads, the optimizer's mix, latency and flush, past the page cache      4/12
 *
 * Compute has two turns, before all other parts and after them, a second apart at least; for each layer the faster one
 * counts. On a shared machine a second may come in which everything takes twice as long.
 *
 * All parts together end at the limit: layers that would take longer are measured smaller, and once the time of a part
 * is over it begins no further layer and sends no further request. Only what was already begun, one request or one
 * layer, can exceed it.
 *
 * Drives are measured through a file without a name in their folder, which the kernel removes however the process ends.
 * It takes at most a quarter of what the drive may use and of what is free.
 *
 * Parts are kept in one file per machine and folder, each with its day and under what it depends on: the machine
 * (processor, cores, memory, OpenBLAS and its kernels), and shapes and threads, or the drive's file system. So a run
 * measures only what no earlier run did. What was measured while other programs used more than a tenth of the
 * processors is kept with a mark, and so is compute that had one turn: it serves while the machine is busy, for the
 * day, and is measured anew where the machine is quiet at the start, or on another day. A file that is damaged, of
 * another machine or has values that no machine has is written anew, with a notice.
 *
 * Nothing here fails a run: what cannot be measured stays nominal, and `notes` says so. No bit of a result depends on
 * any of it. */
#ifndef OX_ENGINE_MEASURE_H
#define OX_ENGINE_MEASURE_H

#include "base/file.h"
#include "cpu_optim/optim.h"
#include "engine/model/model.h"
#include "nvme/io.h"
#include "offload/sim/machine_profile.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OX_MEASURE_LIMIT_NS UINT64_C(3000000000)
#define OX_MEASURE_OTHERS_MOST 0.1

struct ox_measure_input {
    const struct ox_model_config *model;
    uint32_t batch, seq;
    bool on_gpu; /* compute is not measured */
    enum ox_real products; /* inputs of GEMMs, where the CPU device has them */
    uint32_t compute_threads, optimizer_threads;
    struct ox_state_format state;
    uint64_t update_bytes; /* of planes that the optimizer's update is timed on; 0: twice the last cache */
    enum ox_isa isa;
    const char *const *drive_folders;
    const uint64_t *drive_bytes; /* that the run may use of each */
    uint32_t drive_count;
    const struct ox_io_backend *io; /* required with drives */
    uint32_t queue_depth;
    const char *folder; /* where measurements are kept, made if missing; "": nowhere */
    uint64_t limit_ns;
    double others_most; /* what others may use of the processors, as a share, for a measurement without a mark */
};

enum { OX_MEASURE_DAY_BYTES = 16, OX_MEASURE_NOTES_BYTES = 1024 };
struct ox_measured {
    double seconds;                 /* that measuring took now; 0: all of it was kept */
    char day[OX_MEASURE_DAY_BYTES]; /* when the oldest part in use was measured, as 2026-11-22 */
    char path[OX_PATH_BYTES];       /* the file that keeps it; "": it is not kept */
    bool busy;     /* a part in use was measured while other programs used `others` of the processors, or in a hurry */
    double others;
    bool again; /* a part that others had slowed was measured anew now */
    char notes[OX_MEASURE_NOTES_BYTES]; /* lines: what is nominal, what is not kept, and why; "": nothing to say */
};

/* The name of the processor, or of its kind, to `name` (OX_CPU_NAME_BYTES). */
enum { OX_CPU_NAME_BYTES = 96 };
void ox_cpu_name(char *name);
/* Puts measured values into `machine`, which has one drive for each of the input and is nominal or a profile. */
void ox_measure_machine(const struct ox_measure_input *input, struct ox_machine *machine, struct ox_measured *out);

#ifdef __cplusplus
}
#endif
#endif
