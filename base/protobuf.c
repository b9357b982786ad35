#include "base/protobuf.h"

#include <stdlib.h>
#include <string.h>

enum wire { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5, VARINT_BYTES_MAX = 10 };

/* Returns room for `bytes` more, or NULL. */
static unsigned char *extend(struct ox_protobuf *message, size_t bytes) {
    if (message->failed) {
        return NULL;
    }
    if (message->room - message->bytes < bytes) {
        const size_t room = 2 * (message->bytes + bytes) + 64;
        unsigned char *const larger = realloc(message->data, room);
        message->failed = larger == NULL;
        if (message->failed) {
            return NULL;
        }
        message->data = larger;
        message->room = room;
    }
    unsigned char *const at = message->data + message->bytes;
    message->bytes += bytes;
    return at;
}

static void put_varint(struct ox_protobuf *message, uint64_t value) {
    unsigned char text[VARINT_BYTES_MAX];
    size_t used = 0;
    for (; value >= 0x80; value >>= 7) {
        text[used++] = (unsigned char)(value | 0x80);
    }
    text[used++] = (unsigned char)value;
    unsigned char *const at = extend(message, used);
    if (at != NULL) {
        memcpy(at, text, used);
    }
}

static void put_key(struct ox_protobuf *message, uint32_t field, enum wire wire) {
    put_varint(message, (uint64_t)field << 3 | (uint64_t)wire);
}

static void put_fixed(struct ox_protobuf *message, uint64_t value, unsigned bytes) {
    unsigned char *const at = extend(message, bytes);
    for (unsigned i = 0; at != NULL && i < bytes; i++) {
        at[i] = (unsigned char)(value >> (8 * i));
    }
}

void ox_protobuf_varint(struct ox_protobuf *message, uint32_t field, uint64_t value) {
    put_key(message, field, WIRE_VARINT);
    put_varint(message, value);
}

static void add_fixed64(struct ox_protobuf *message, uint32_t field, uint64_t value) {
    put_key(message, field, WIRE_FIXED64);
    put_fixed(message, value, 8);
}

void ox_protobuf_double(struct ox_protobuf *message, uint32_t field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_fixed64(message, field, bits);
}

void ox_protobuf_float(struct ox_protobuf *message, uint32_t field, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(message, field, WIRE_FIXED32);
    put_fixed(message, bits, 4);
}

static void add_bytes(struct ox_protobuf *message, uint32_t field, const void *data, size_t bytes) {
    put_key(message, field, WIRE_BYTES);
    put_varint(message, bytes);
    unsigned char *const at = extend(message, bytes);
    if (at != NULL && bytes > 0) {
        memcpy(at, data, bytes);
    }
}

void ox_protobuf_text(struct ox_protobuf *message, uint32_t field, const char *text) {
    add_bytes(message, field, text, strlen(text));
}

void ox_protobuf_message(struct ox_protobuf *message, uint32_t field, struct ox_protobuf *inner) {
    add_bytes(message, field, inner->data, inner->bytes);
    message->failed = message->failed || inner->failed;
    ox_protobuf_clear(inner);
}

void ox_protobuf_clear(struct ox_protobuf *message) {
    message->bytes = 0;
    message->failed = false;
}

void ox_protobuf_free(struct ox_protobuf *message) {
    free(message->data);
    *message = (struct ox_protobuf){0};
}
