/* NVIDIA driver, GPUs and NCCL, asked through their libraries where these exist; nothing is linked. */
#include "tools/doctor.h"

#include "base/bytes.h"

#include <dlfcn.h>
#include <string.h>

enum { GPUS_SHOWN_MAX = 16 };

/* The part of the CUDA driver interface that is asked. */
struct driver {
    int (*init)(unsigned flags);
    int (*version)(int *version);
    int (*count)(int *count);
    int (*get)(int *device, int ordinal);
    int (*name)(char *name, int name_bytes, int device);
    int (*memory)(size_t *bytes, int device);
    int (*attribute)(int *value, int attribute, int device);
};

enum { ATTRIBUTE_CC_MAJOR = 75, ATTRIBUTE_CC_MINOR = 76 }; /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_* */

/* Copies the address into a function pointer without a cast that ISO C lacks; false when absent. */
static bool load(void *library, const char *symbol, void *function) {
    void *const address = dlsym(library, symbol);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

static bool load_driver(void *library, struct driver *driver) {
    return load(library, "cuInit", &driver->init) && load(library, "cuDriverGetVersion", &driver->version) &&
           load(library, "cuDeviceGetCount", &driver->count) && load(library, "cuDeviceGet", &driver->get) &&
           load(library, "cuDeviceGetName", &driver->name) &&
           load(library, "cuDeviceTotalMem_v2", &driver->memory) &&
           load(library, "cuDeviceGetAttribute", &driver->attribute);
}

static void report_gpu(struct ox_doctor *doctor, const struct driver *driver, int ordinal) {
    char name[128] = "unknown", memory[OX_SIZE_TEXT_BYTES];
    int device = 0, major = 0, minor = 0;
    size_t bytes = 0;
    if (driver->get(&device, ordinal) != 0 || driver->name(name, sizeof name, device) != 0 ||
        driver->memory(&bytes, device) != 0 || driver->attribute(&major, ATTRIBUTE_CC_MAJOR, device) != 0 ||
        driver->attribute(&minor, ATTRIBUTE_CC_MINOR, device) != 0) {
        ox_doctor_add(doctor, "GPU", "number %d does not answer", ordinal);
        ox_doctor_warn(doctor, "look at nvidia-smi and the kernel log", "GPU %d does not answer", ordinal);
        return;
    }
    ox_doctor_add(doctor, "GPU", "%s, %s, compute capability %d.%d", name, ox_size_text(bytes, memory), major,
                  minor);
}

static void report_gpus(struct ox_doctor *doctor) {
    void *const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    struct driver driver;
    if (library == NULL) {
        ox_doctor_add(doctor, "GPU", "none: no libcuda.so.1; the CPU is the device");
        return;
    }
    int count = 0, version = 0;
    if (!load_driver(library, &driver) || driver.init(0) != 0 || driver.count(&count) != 0 || count == 0) {
        ox_doctor_add(doctor, "GPU", "none: the driver library finds no device; the CPU is the device");
        dlclose(library);
        return;
    }
    if (driver.version(&version) == 0) {
        ox_doctor_add(doctor, "CUDA of the driver", "%d.%d", version / 1000, version % 1000 / 10);
    }
    for (int i = 0; i < count && i < GPUS_SHOWN_MAX; i++) {
        report_gpu(doctor, &driver, i);
    }
    dlclose(library);
}

static void report_driver_version(struct ox_doctor *doctor) {
    void *const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        return; /* without it the GPU line says all there is */
    }
    int (*init)(void);
    int (*shutdown_)(void);
    int (*driver_version)(char *text, unsigned text_bytes);
    char text[96];
    if (load(library, "nvmlInit_v2", &init) && load(library, "nvmlShutdown", &shutdown_) &&
        load(library, "nvmlSystemGetDriverVersion", &driver_version) && init() == 0) {
        if (driver_version(text, sizeof text) == 0) {
            ox_doctor_add(doctor, "NVIDIA driver", "%s", text);
        }
        shutdown_();
    }
    dlclose(library);
}

static void report_nccl(struct ox_doctor *doctor) {
    void *const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    int (*get_version)(int *version);
    int version = 0;
    if (library == NULL || !load(library, "ncclGetVersion", &get_version) || get_version(&version) != 0) {
        ox_doctor_add(doctor, "NCCL", "none; one GPU works without it");
    } else {
        ox_doctor_add(doctor, "NCCL", "%d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
    }
    if (library != NULL) {
        dlclose(library);
    }
}

void ox_doctor_gpu(struct ox_doctor *doctor) {
    doctor->group = "GPU";
    report_gpus(doctor);
    report_driver_version(doctor);
    report_nccl(doctor);
}
