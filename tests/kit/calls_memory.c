#include "tests/kit/calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>

/* clang links its sanitizers into the program, so that their allocator cannot be taken over. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KEEPS_ALLOCATOR
#endif
#endif

#ifdef KEEPS_ALLOCATOR
bool calls_memory_spare_json(void) {
    return false;
}
#else
typedef void *allocate_one(size_t);
typedef void *allocate_many(size_t, size_t);
typedef void *allocate_again(void *, size_t);
typedef int allocate_aligned(void **, size_t, size_t);
static allocate_one *real_malloc;
static allocate_many *real_calloc;
static allocate_again *real_realloc;
static allocate_aligned *real_aligned;

static void find_allocator(void) {
    real_malloc = (allocate_one *)dlsym(RTLD_NEXT, "malloc");
    real_calloc = (allocate_many *)dlsym(RTLD_NEXT, "calloc");
    real_realloc = (allocate_again *)dlsym(RTLD_NEXT, "realloc");
    real_aligned = (allocate_aligned *)dlsym(RTLD_NEXT, "posix_memalign");
}

bool calls_memory_spare_json(void) {
    find_allocator();
    json_set_alloc_funcs(real_malloc, free);
    return true;
}

static void *no_memory(void) {
    errno = ENOMEM;
    return NULL;
}

void *malloc(size_t bytes) {
    if (real_malloc == NULL) {
        find_allocator();
    }
    return calls_hit(CALL_MEMORY) ? no_memory() : real_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
    if (real_calloc == NULL) {
        find_allocator();
    }
    return calls_hit(CALL_MEMORY) ? no_memory() : real_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes) {
    if (real_realloc == NULL) {
        find_allocator();
    }
    return calls_hit(CALL_MEMORY) ? no_memory() : real_realloc(old, bytes);
}

int posix_memalign(void **out, size_t multiple, size_t bytes) {
    if (real_aligned == NULL) {
        find_allocator();
    }
    return calls_hit(CALL_MEMORY) ? ENOMEM : real_aligned(out, multiple, bytes);
}
#endif
