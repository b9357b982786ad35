/* Writes protocol buffers into memory that grows, for TensorBoard event files and traces. To nest a message, write it
 * into its own ox_protobuf and add that as a field. */
#ifndef OX_BASE_PROTOBUF_H
#define OX_BASE_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A message being written; start from zeros. */
struct ox_protobuf {
    unsigned char *data;
    size_t bytes, room;
    bool failed; /* out of memory: fields added since are lost */
};

void ox_protobuf_varint(struct ox_protobuf *message, uint32_t field, uint64_t value);
void ox_protobuf_double(struct ox_protobuf *message, uint32_t field, double value);
void ox_protobuf_float(struct ox_protobuf *message, uint32_t field, float value);
void ox_protobuf_text(struct ox_protobuf *message, uint32_t field, const char *text);
/* Adds `inner` as a field and empties it for reuse. */
void ox_protobuf_message(struct ox_protobuf *message, uint32_t field, struct ox_protobuf *inner);
void ox_protobuf_clear(struct ox_protobuf *message);
void ox_protobuf_free(struct ox_protobuf *message);

#ifdef __cplusplus
}
#endif
#endif
