/* Reading protocol buffers, for tests of what writes them: shares nothing with base/protobuf.c. */
#ifndef OX_TESTS_PROTOBUF_H
#define OX_TESTS_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct test_field {
    uint32_t number, wire;     /* wire: 0 varint, 1 and 5 fixed, 2 bytes */
    uint64_t value;            /* with wire 0, 1 or 5 */
    const unsigned char *data; /* with wire 2 */
    size_t bytes;
};

/* Takes the field at *at and moves on; false at the end. Damage ends the test. */
bool test_field_next(const unsigned char **at, const unsigned char *end, struct test_field *out);
/* The first field of that number in a message; its absence ends the test. */
struct test_field test_field_get(const unsigned char *data, size_t bytes, uint32_t number);
bool test_field_has(const unsigned char *data, size_t bytes, uint32_t number);
bool test_field_is(const struct test_field *field, const char *text);
double test_field_double(const struct test_field *field);
float test_field_float(const struct test_field *field);

#endif
