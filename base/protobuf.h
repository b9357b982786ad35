/* Writing protocol buffers: the four wire types, into memory that grows. A message inside another one is written
 * into an ox_protobuf of its own and then added as a field. */
#ifndef OX_BASE_PROTOBUF_H
#define OX_BASE_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Start from zeros. */
struct ox_protobuf {
    unsigned char *data;
    size_t bytes, room;
    bool failed; /* no memory: what was added since is lost */
};

void ox_protobuf_varint(struct ox_protobuf *message, uint32_t field, uint64_t value);
void ox_protobuf_fixed64(struct ox_protobuf *message, uint32_t field, uint64_t value);
void ox_protobuf_double(struct ox_protobuf *message, uint32_t field, double value);
void ox_protobuf_float(struct ox_protobuf *message, uint32_t field, float value);
void ox_protobuf_bytes(struct ox_protobuf *message, uint32_t field, const void *data, size_t bytes);
void ox_protobuf_text(struct ox_protobuf *message, uint32_t field, const char *text);
/* Adds `inner` as a field and empties it, so that it can be used for the next one. */
void ox_protobuf_message(struct ox_protobuf *message, uint32_t field, struct ox_protobuf *inner);
void ox_protobuf_clear(struct ox_protobuf *message);
void ox_protobuf_free(struct ox_protobuf *message);

#ifdef __cplusplus
}
#endif
#endif
