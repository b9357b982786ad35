/* Functions of libcudnn.so.9, and descriptors made with them. */
#include "kernels/cuda/cudnn_plan.h"

#include "base/assert.h"

#include <cudnn_backend.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first version with deterministic gradients on compute capability 10.0. */
enum { VERSION_LEAST = 91800, VERSION_END = 100000, REASON_BYTES = 1024 };

struct ox_cudnn_library {
    void *file;
    size_t (*version)(void);
    void (*last_error)(char *message, size_t bytes);
    const char *(*status_name)(cudnnStatus_t);
    cudnnStatus_t (*create)(cudnnHandle_t *);
    cudnnStatus_t (*destroy)(cudnnHandle_t);
    cudnnStatus_t (*set_stream)(cudnnHandle_t, cudaStream_t);
    cudnnStatus_t (*descriptor_create)(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t *);
    cudnnStatus_t (*descriptor_destroy)(cudnnBackendDescriptor_t);
    cudnnStatus_t (*finalize)(cudnnBackendDescriptor_t);
    cudnnStatus_t (*set)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t,
                         const void *);
    cudnnStatus_t (*get)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t,
                         int64_t *, void *);
    cudnnStatus_t (*execute)(cudnnHandle_t, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack);
};

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
    {"cudnnGetVersion", offsetof(struct ox_cudnn_library, version)},
    {"cudnnGetLastErrorString", offsetof(struct ox_cudnn_library, last_error)},
    {"cudnnGetErrorString", offsetof(struct ox_cudnn_library, status_name)},
    {"cudnnCreate", offsetof(struct ox_cudnn_library, create)},
    {"cudnnDestroy", offsetof(struct ox_cudnn_library, destroy)},
    {"cudnnSetStream", offsetof(struct ox_cudnn_library, set_stream)},
    {"cudnnBackendCreateDescriptor", offsetof(struct ox_cudnn_library, descriptor_create)},
    {"cudnnBackendDestroyDescriptor", offsetof(struct ox_cudnn_library, descriptor_destroy)},
    {"cudnnBackendFinalize", offsetof(struct ox_cudnn_library, finalize)},
    {"cudnnBackendSetAttribute", offsetof(struct ox_cudnn_library, set)},
    {"cudnnBackendGetAttribute", offsetof(struct ox_cudnn_library, get)},
    {"cudnnBackendExecute", offsetof(struct ox_cudnn_library, execute)},
};

/* ---- opening ----------------------------------------------------------------------------------------- */

static bool find_functions(struct ox_cudnn_library *library, struct ox_cudnn_words *words) {
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *const found = dlsym(library->file, functions[i].name);
        if (found == NULL) {
            snprintf(words->text, sizeof words->text, "libcudnn.so.9 has no function %s", functions[i].name);
            return false;
        }
        memcpy((char *)library + functions[i].offset, &found, sizeof found);
    }
    const size_t version = library->version();
    if (version < VERSION_LEAST || version >= VERSION_END) {
        snprintf(words->text, sizeof words->text, "cuDNN %zu.%zu.%zu is here, and 9.18 or a later 9 is needed",
                 version / 10000, version / 100 % 100, version % 100);
        return false;
    }
    return true;
}

bool ox_cudnn_library_open(struct ox_cudnn_library **out, struct ox_cudnn_words *words) {
    *out = NULL;
    struct ox_cudnn_library *library = calloc(1, sizeof *library);
    if (library == NULL) {
        snprintf(words->text, sizeof words->text, "no memory for the functions of cuDNN");
        return false;
    }
    /* The library is never unloaded: a CUDA library that is unloaded takes along what the driver knows of it. */
    library->file = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library->file == NULL) {
        const char *const why = dlerror();
        snprintf(words->text, sizeof words->text, "%s", why == NULL ? "libcudnn.so.9 does not open" : why);
    } else if (find_functions(library, words)) {
        *out = library;
        return true;
    }
    ox_cudnn_library_close(&library);
    return false;
}

void ox_cudnn_library_close(struct ox_cudnn_library **library) {
    if (*library != NULL && (*library)->file != NULL) {
        dlclose((*library)->file);
    }
    free(*library);
    *library = NULL;
}

uint64_t ox_cudnn_library_version(const struct ox_cudnn_library *library) {
    return library->version();
}

/* Writes the status and the first line of the library's message about it. */
static void explain(const struct ox_cudnn_library *library, cudnnStatus_t status, struct ox_cudnn_words *words) {
    char reason[REASON_BYTES] = "";
    library->last_error(reason, sizeof reason);
    reason[sizeof reason - 1] = '\0';
    reason[strcspn(reason, "\n")] = '\0';
    snprintf(words->text, sizeof words->text, "%s: %s", library->status_name(status), reason);
}

/* ---- where plans run --------------------------------------------------------------------------------- */

bool ox_cudnn_target_open(const struct ox_cudnn_library *library, uint32_t capability, struct ox_cudnn_target *out,
                          struct ox_cudnn_words *words) {
    cudnnHandle_t handle = NULL;
    *out = (struct ox_cudnn_target){.library = library, .slice_bytes = OX_ATTENTION_SLICE_BYTES,
                                    .capability = capability};
    const cudnnStatus_t status = library->create(&handle);
    if (status != CUDNN_STATUS_SUCCESS) {
        explain(library, status, words);
        return false;
    }
    out->handle = handle;
    return true;
}

bool ox_cudnn_target_describe(const struct ox_cudnn_library *library, const char *gpu, struct ox_cudnn_target *out,
                              struct ox_cudnn_words *words) {
    static const char version[] = "\"deviceVer\":";
    static const int name_type[2] = {CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR};
    const char *const found = strstr(gpu, version);
    *out = (struct ox_cudnn_target){.library = library, .slice_bytes = OX_ATTENTION_SLICE_BYTES};
    out->capability = found == NULL ? 0 : (uint32_t)(strtoul(found + sizeof version - 1, NULL, 10) / 10);
    struct ox_cudnn_set set = {.target = out};
    void *const properties = ox_cudnn_make(&set, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    ox_cudnn_put_all(&set, properties, name_type, (int64_t)strlen(gpu), gpu);
    ox_cudnn_finish(&set, properties);
    if (set.status != CUDNN_STATUS_SUCCESS) {
        *words = set.words;
        ox_cudnn_set_close(&set);
        return false;
    }
    out->properties = properties; /* owned by the target from here on */
    free(set.owned);
    return true;
}

void ox_cudnn_target_close(struct ox_cudnn_target *target) {
    if (target->handle != NULL) {
        target->library->destroy(target->handle);
    }
    if (target->properties != NULL) {
        target->library->descriptor_destroy(target->properties);
    }
    *target = (struct ox_cudnn_target){0};
}

/* ---- descriptors ------------------------------------------------------------------------------------- */

static void note(struct ox_cudnn_set *set, cudnnStatus_t status) {
    if (status != CUDNN_STATUS_SUCCESS && set->status == CUDNN_STATUS_SUCCESS) {
        set->status = (int)status;
        explain(set->target->library, status, &set->words);
    }
}

static bool has_room(struct ox_cudnn_set *set) {
    if (set->owned_count < set->owned_room) {
        return true;
    }
    const uint32_t room = set->owned_room == 0 ? 64 : 2 * set->owned_room;
    void **const owned = realloc(set->owned, room * sizeof *owned);
    if (owned == NULL) {
        set->status = CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
        snprintf(set->words.text, sizeof set->words.text, "no memory for %u descriptors", room);
        return false;
    }
    set->owned = owned;
    set->owned_room = room;
    return true;
}

void *ox_cudnn_make(struct ox_cudnn_set *set, int descriptor_type) {
    cudnnBackendDescriptor_t made = NULL;
    if (set->status != CUDNN_STATUS_SUCCESS || !has_room(set)) {
        return NULL;
    }
    note(set, set->target->library->descriptor_create((cudnnBackendDescriptorType_t)descriptor_type, &made));
    if (set->status != CUDNN_STATUS_SUCCESS) {
        return NULL;
    }
    set->owned[set->owned_count++] = made;
    return made;
}

void ox_cudnn_put_all(struct ox_cudnn_set *set, void *descriptor, const int name_type[2], int64_t count,
                      const void *values) {
    if (set->status == CUDNN_STATUS_SUCCESS) {
        note(set, set->target->library->set(descriptor, (cudnnBackendAttributeName_t)name_type[0],
                                            (cudnnBackendAttributeType_t)name_type[1], count, values));
    }
}

void ox_cudnn_put(struct ox_cudnn_set *set, void *descriptor, int name, int type, const void *value) {
    ox_cudnn_put_all(set, descriptor, (const int[2]){name, type}, 1, value);
}

void ox_cudnn_put_descriptor(struct ox_cudnn_set *set, void *descriptor, int name, void *value) {
    ox_cudnn_put(set, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &value);
}

void ox_cudnn_finish(struct ox_cudnn_set *set, void *descriptor) {
    if (set->status == CUDNN_STATUS_SUCCESS) {
        note(set, set->target->library->finalize(descriptor));
    }
}

int64_t ox_cudnn_get(struct ox_cudnn_set *set, void *descriptor, const int name_type[2], int64_t room, void *values) {
    int64_t count = 0;
    if (set->status == CUDNN_STATUS_SUCCESS) {
        note(set, set->target->library->get(descriptor, (cudnnBackendAttributeName_t)name_type[0],
                                            (cudnnBackendAttributeType_t)name_type[1], room, &count, values));
    }
    return set->status != CUDNN_STATUS_SUCCESS ? 0 : count < room ? count : room;
}

int ox_cudnn_try_finish(struct ox_cudnn_set *set, void *descriptor, struct ox_cudnn_words *words) {
    OX_ASSERT(set->status == CUDNN_STATUS_SUCCESS);
    const cudnnStatus_t status = set->target->library->finalize(descriptor);
    if (status != CUDNN_STATUS_SUCCESS) {
        explain(set->target->library, status, words);
    }
    return (int)status;
}

int ox_cudnn_try_get(struct ox_cudnn_set *set, void *descriptor, int name, int64_t *value) {
    int64_t count = 0;
    OX_ASSERT(set->status == CUDNN_STATUS_SUCCESS);
    return (int)set->target->library->get(descriptor, (cudnnBackendAttributeName_t)name, CUDNN_TYPE_INT64, 1, &count,
                                          value);
}

void ox_cudnn_set_close(struct ox_cudnn_set *set) {
    while (set->owned_count > 0) {
        set->target->library->descriptor_destroy(set->owned[--set->owned_count]);
    }
    free(set->owned);
    set->owned = NULL;
    set->owned_room = 0;
}

/* ---- running ----------------------------------------------------------------------------------------- */

enum ox_status ox_cudnn_execute(const struct ox_cudnn_target *target, void *plan, void *pack, void *stream) {
    const struct ox_cudnn_library *const library = target->library;
    cudnnStatus_t status = library->set_stream(target->handle, stream);
    if (status == CUDNN_STATUS_SUCCESS) {
        status = library->execute(target->handle, plan, pack);
    }
    if (status == CUDNN_STATUS_SUCCESS) {
        return OX_OK;
    }
    struct ox_cudnn_words words;
    explain(library, status, &words);
    return ox_fail(OX_E_DEVICE, "GPU, cuDNN, attention: %s", words.text);
}
