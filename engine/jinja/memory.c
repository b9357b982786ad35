/* Owns the memory of a template and of a rendering: regions of chunks, freed as a whole. */
#include "engine/jinja/value_internal.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 64 << 10, ALIGN_BYTES = 16 };

struct chunk {
    struct chunk *older;
    _Alignas(ALIGN_BYTES) char data[];
};

bool ox_ji_count_memory(struct memory *memory, size_t bytes) {
    if (bytes > memory->bytes_max || memory->bytes > memory->bytes_max - bytes) {
        memory->refused = true;
        return false;
    }
    memory->bytes += bytes;
    return true;
}

static bool add_chunk(struct memory *memory, struct region *region, size_t bytes) {
    size_t size = sizeof(struct chunk) + CHUNK_BYTES;
    if (bytes > CHUNK_BYTES / 4) {
        if (bytes > SIZE_MAX / 4) {
            return false;
        }
        /* Room to grow: a text that is extended again and again is then copied only now and then. */
        size = sizeof(struct chunk) + 2 * bytes;
    }
    if (!ox_ji_count_memory(memory, size)) {
        return false;
    }
    struct chunk *const chunk = malloc(size);
    if (chunk == NULL) {
        return false;
    }
    chunk->older = region->chunks;
    region->chunks = chunk;
    region->next = chunk->data;
    region->end = (char *)chunk + size;
    return true;
}

void *ox_ji_take(struct memory *memory, size_t bytes) {
    struct region *const region = &memory->objects;
    if (bytes > SIZE_MAX / 4) {
        return NULL;
    }
    bytes = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    if ((size_t)(region->end - region->next) < bytes && !add_chunk(memory, region, bytes)) {
        return NULL;
    }
    void *const out = region->next;
    region->next += bytes;
    memset(out, 0, bytes);
    return out;
}

char *ox_ji_take_text(struct memory *memory, const char *before, size_t before_bytes, size_t bytes) {
    struct region *const region = &memory->texts;
    const bool continues =
        before != NULL && before + before_bytes == region->next && (size_t)(region->end - region->next) >= bytes;
    if (!continues && (size_t)(region->end - region->next) < before_bytes + bytes &&
        !add_chunk(memory, region, before_bytes + bytes)) {
        return NULL;
    }
    char *const out = region->next;
    region->next += continues ? bytes : before_bytes + bytes;
    if (!continues && before_bytes > 0) {
        memcpy(out, before, before_bytes);
    }
    return continues ? out : out + before_bytes;
}

static void free_region(struct region *region) {
    while (region->chunks != NULL) {
        struct chunk *const chunk = region->chunks;
        region->chunks = chunk->older;
        free(chunk);
    }
    *region = (struct region){0};
}

void ox_ji_free_memory(struct memory *memory) {
    free_region(&memory->objects);
    free_region(&memory->texts);
    memory->bytes = 0;
}
