#include "tests/kit/protobuf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((noreturn)) static void damaged(const char *why) {
    printf("protocol buffer: %s\n", why);
    exit(1);
}

static uint64_t varint(const unsigned char **at, const unsigned char *end) {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (*at == end) {
            damaged("ends within a number");
        }
        const unsigned char byte = *(*at)++;
        value |= shift < 64 ? (uint64_t)(byte & 0x7f) << shift : 0;
        if (byte < 0x80) {
            return value;
        }
    }
    damaged("a number of more than ten bytes");
}

bool test_field_next(const unsigned char **at, const unsigned char *end, struct test_field *out) {
    if (*at == end) {
        return false;
    }
    const uint64_t key = varint(at, end);
    *out = (struct test_field){.number = (uint32_t)(key >> 3), .wire = key & 7};
    if (out->number == 0) {
        damaged("a field without a number");
    }
    if (out->wire == 0) {
        out->value = varint(at, end);
        return true;
    }
    if (out->wire == 2) {
        out->bytes = varint(at, end);
    } else if (out->wire == 1 || out->wire == 5) {
        out->bytes = out->wire == 1 ? 8 : 4;
    } else {
        damaged("an unknown wire type");
    }
    if (out->bytes > (size_t)(end - *at)) {
        damaged("ends within a field");
    }
    out->data = *at;
    *at += out->bytes;
    for (size_t i = 0; out->wire != 2 && i < out->bytes; i++) {
        out->value |= (uint64_t)out->data[i] << (8 * i);
    }
    return true;
}

static bool find(const unsigned char *data, size_t bytes, uint32_t number, struct test_field *out) {
    for (const unsigned char *at = data; test_field_next(&at, data + bytes, out);) {
        if (out->number == number) {
            return true;
        }
    }
    return false;
}

bool test_field_has(const unsigned char *data, size_t bytes, uint32_t number) {
    struct test_field field;
    return find(data, bytes, number, &field);
}

struct test_field test_field_get(const unsigned char *data, size_t bytes, uint32_t number) {
    struct test_field field;
    if (!find(data, bytes, number, &field)) {
        printf("field %u: ", number);
        damaged("missing");
    }
    return field;
}

bool test_field_is(const struct test_field *field, const char *text) {
    return field->wire == 2 && field->bytes == strlen(text) && memcmp(field->data, text, field->bytes) == 0;
}

double test_field_double(const struct test_field *field) {
    double value;
    memcpy(&value, &field->value, sizeof value);
    return value;
}

float test_field_float(const struct test_field *field) {
    const uint32_t bits = (uint32_t)field->value;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
