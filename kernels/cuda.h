/* The CUDA device. Its code is in a plugin, liboffload_cuda.so, which is opened at run time, so that one program starts
 * on machines with and without a driver. If it cannot be used, one sentence says why. */
#ifndef OX_KERNELS_CUDA_H
#define OX_KERNELS_CUDA_H

#include "kernels/comm/nccl/nccl.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_cuda_config {
    const char *plugin_path; /* NULL: beside the program, then in ../lib/offload, then where the loader looks */
    uint32_t device_idx;
    bool own_attention; /* never use cuDNN for attention, even if it is here: for comparison and for its benchmark */
};

/* OX_E_DEVICE if there is no plugin, no driver, no such device, if the driver or the plugin is too old, or if the
 * plugin has no code for the device. */
OX_MUST enum ox_status ox_cuda_device_open(const struct ox_cuda_config *config, struct ox_device **out);

/* Lets copies on `device` go straight to and from the memory of `peer`, another device of this process, and sets *out
 * to whether they do. Where the hardware or the driver refuses that (GeForce), such copies work too, but pass through
 * host memory. The same again changes nothing. Any thread. */
OX_MUST enum ox_status ox_cuda_device_reach(struct ox_device *device, struct ox_device *peer, bool *out);

/* Fills the whole table for lanes of that device. */
void ox_ops_init_cuda(struct ox_device *device, struct ox_ops *ops);

/* What the plugin is and what it finds on this machine. No device is opened for it. */
struct ox_cuda_plugin_info {
    const char *path;         /* where the loader found it */
    char built_for[128];      /* "sm_80 sm_90 compute_90": machine code per GPU, and PTX for later GPUs */
    uint32_t driver_version;  /* 13020 stands for 13.2; 0: there is no driver */
    uint32_t runtime_version; /* likewise */
    uint32_t device_count;
    char why_none[512];    /* a sentence, if device_count is 0 */
    uint32_t blas_version; /* version of cuBLASLt, 130200 for 13.2.0; 0: see why_no_blas */
    char why_no_blas[512];
};
/* `plugin_path` as above. OX_E_DEVICE if no plugin opens; a machine without devices is no failure. */
OX_MUST enum ox_status ox_cuda_plugin_query(const char *plugin_path, struct ox_cuda_plugin_info *out);

enum { OX_CUDA_PCI_TEXT_BYTES = 32 };

/* What a GPU is, for `doctor` and reports. */
struct ox_cuda_device_info {
    char name[256];
    uint64_t memory_bytes, free_bytes;
    uint32_t capability; /* 90 stands for 9.0 */
    uint32_t processor_count;
    uint32_t driver_version, runtime_version; /* 13020 stands for 13.2 */
    uint32_t blas_version;                    /* version of cuBLASLt: 130200 stands for 13.2.0 */
    char pci[OX_CUDA_PCI_TEXT_BYTES];         /* "00000000:41:00.0", as NVML writes it */
    char attention[192]; /* in bfloat16: "cuDNN 9.19.0", or "own kernels: " and the reason */
};

/* What endpoints of NCCL are opened with (kernels/comm/comm.h). OX_E_COMM with what to install where the plugin was
 * built without it; whether there is a library shows when a rank opens. */
OX_MUST enum ox_status ox_cuda_nccl(struct ox_device *device, const struct ox_nccl_ops **out);
OX_MUST enum ox_status ox_cuda_device_query(struct ox_device *device, struct ox_cuda_device_info *out);

/* Opens a device for a moment and queries it. *process_bytes is the memory of the GPU that a process takes beyond what
 * it asks for: what opening took, by NVML, which alone can be asked before there is a context, with OX_CUDA_LATER_BYTES
 * for what is loaded later. Where the driver tells this process's own part, that; else what all use more than before.
 * OX_CUDA_PROCESS_BYTES where NVML does not answer, where processes came or went meanwhile or others' use changed so
 * much that the difference says nothing, and in a process that had opened the device before. */
OX_MUST enum ox_status ox_cuda_device_look(const struct ox_cuda_config *config, struct ox_cuda_device_info *out,
                                           uint64_t *process_bytes);

/* The memory of a GPU that ox_cuda_device_look has found; one that is only planned for has no memory_bytes. */
struct ox_cuda_memory {
    const struct ox_cuda_device_info *gpu;
    uint64_t process_bytes;
};
/* The default of --device-mem: what is free, less a little that others may still take. OX_E_DEVICE where that is too
 * little for a process. The second refuses with OX_E_CONFIG what leaves nothing beside the process's own part, or is
 * more than the GPU has. */
OX_MUST enum ox_status ox_cuda_memory_free(const struct ox_cuda_memory *memory, uint64_t *device_mem_bytes);
OX_MUST enum ox_status ox_cuda_memory_check(const struct ox_cuda_memory *memory, uint64_t device_mem_bytes);

/* Compares the algorithms chosen for a linear layer's GEMMs with all that cuBLASLt offers for them, each timed alone on
 * the device; results are sums over the GEMMs. One of the two operations is NULL. Their tensors are overwritten. */
struct ox_cuda_search {
    uint32_t rounds;  /* per algorithm; set by the caller */
    uint32_t offered; /* algorithms offered; the largest number for one GEMM */
    double taken_seconds, best_seconds;
};
OX_MUST enum ox_status ox_cuda_linear_search(struct ox_device *device, const struct ox_op_linear_forward *forward,
                                             const struct ox_op_linear_backward *backward,
                                             struct ox_cuda_search *search);

/* Writes to `text` the kind of GEMM number `idx`, from 0, that the device has come across, and after ": " the algorithm
 * that cuBLASLt computes it with. False if there were not as many. */
enum { OX_CUDA_GEMM_BYTES = 512 };
bool ox_cuda_gemm_text(struct ox_device *device, uint32_t idx, char text[OX_CUDA_GEMM_BYTES]);

/* Names a GPU and the libraries on it, with all that the last bits of a run depend on. */
enum { OX_CUDA_GEMMS_BYTES = 256 };
void ox_cuda_gemms_text(const struct ox_cuda_device_info *gpu, char text[OX_CUDA_GEMMS_BYTES]);

/* For the scratch sizes of ops.h, where the CPU has threads: sums over rows are taken over this many groups of rows. */
enum { OX_CUDA_ROW_GROUPS = 256 };
/* Queries per block in attention's bfloat16 kernels. */
enum { OX_CUDA_ATTENTION_ROWS = 128 };

/* Where attention of queries to one chunk of keys has in its scratch, in bytes from its beginning: what the kernels
 * need of each query (behind which all lies), and outputs, logs of sums and positions of this chunk alone, until they
 * are put together with those before. Sections begin at multiples of 256. */
struct ox_cuda_chunk_room {
    uint64_t out, lse, positions, bytes;
};
static inline struct ox_cuda_chunk_room ox_cuda_chunk_room_of(const struct ox_attention_shape *shape,
                                                              enum ox_real real) {
    const uint64_t queries = (uint64_t)shape->batch * shape->seq, rows = queries * shape->heads;
    const uint64_t blocks = (shape->seq + OX_CUDA_ATTENTION_ROWS - 1) / OX_CUDA_ATTENTION_ROWS;
    const uint64_t facts = (uint64_t)shape->batch * shape->heads * blocks * OX_CUDA_ATTENTION_ROWS * 2 * sizeof(float);
    struct ox_cuda_chunk_room room;
    room.out = (facts + 255) / 256 * 256;
    room.lse = (room.out + rows * shape->head_dim * ox_real_bytes(real) + 255) / 256 * 256;
    room.positions = (room.lse + rows * sizeof(float) + 255) / 256 * 256;
    room.bytes = room.positions + queries * sizeof(int32_t);
    return room;
}

/* Device memory that opening the device takes; all that a process takes beyond what it asks for, with the driver's
 * context, code and libraries; and the part of this that comes after the opening, because code is loaded when it is
 * first used. Plans count the second, unless it was measured; `make check-gpu` compares it with a real GPU. */
enum {
    OX_CUDA_WORKSPACE_BYTES = 32 << 20,
    OX_CUDA_PROCESS_BYTES = 768 << 20,
    OX_CUDA_LATER_BYTES = 256 << 20
};

/* Host memory that driver and libraries take in the process; plans count it, `make check-gpu` compares it. */
enum { OX_CUDA_HOST_BYTES = 1 << 30 };

/* ---- between the program and the plugin ------------------------------------------------------------- */

/* Raise it whenever anything that crosses the border changes, device.h, ops.h and base/lane.h included. */
enum { OX_CUDA_PLUGIN_VERSION = 30 };

/* The plugin's only symbol of its own, "ox_cuda_plugin". The plugin takes everything of base/ from the program. */
struct ox_cuda_plugin {
    uint32_t version;                 /* OX_CUDA_PLUGIN_VERSION when the plugin was built */
    uint32_t ops_bytes, device_bytes; /* sizeof struct ox_ops, struct ox_device_ops */
    const struct ox_device_ops *device_ops; /* operations of every device that it opens */
    enum ox_status (*device_open)(const struct ox_cuda_config *, struct ox_device **);
    void (*ops_init)(struct ox_ops *);
    enum ox_status (*facts)(struct ox_device *, struct ox_cuda_device_info *);
    void (*about)(struct ox_cuda_plugin_info *); /* all but the path */
    enum ox_status (*reach)(struct ox_device *, struct ox_device *, bool *);
    bool (*gemm_text)(struct ox_device *, uint32_t idx, char text[OX_CUDA_GEMM_BYTES]);
    enum ox_status (*linear_search)(struct ox_device *, const struct ox_op_linear_forward *,
                                    const struct ox_op_linear_backward *, struct ox_cuda_search *);
    const struct ox_nccl_ops *(*nccl)(void); /* returns NULL where it was built without NCCL */
};

#ifdef __cplusplus
}
#endif
#endif
