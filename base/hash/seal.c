/* The hash of a text of the object, which is the same for every object that equals it. */
#include "base/hash/seal.h"

#include "base/hash/hash.h"

#include <stdlib.h>
#include <string.h>

static const char key[] = "checksum";

/* The text of an object, with the bits of its real numbers in place of their digits, which versions of the library
 * write differently. Objects within it have no real numbers. NULL without memory. */
static char *text_of(const json_t *object) {
    json_t *const copy = json_object();
    bool failed = copy == NULL || json_object_update(copy, (json_t *)object) != 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value) {
        const double real = json_real_value(value);
        uint64_t bits;
        memcpy(&bits, &real, sizeof bits);
        failed = failed || (json_is_real(value) && json_object_set_new(copy, name, ox_json_hex(&bits, 1)) != 0);
    }
    char *const text = failed ? NULL : json_dumps(copy, JSON_INDENT(1));
    json_decref(copy);
    return text;
}

static bool hash_of(const json_t *object, uint64_t *hash) {
    char *const text = text_of(object);
    *hash = text != NULL ? ox_hash64(text, strlen(text), 0) : 0;
    free(text);
    return text != NULL;
}

bool ox_seal_add(json_t *object) {
    uint64_t hash = 0;
    return hash_of(object, &hash) && json_object_set_new(object, key, ox_json_hex(&hash, 1)) == 0;
}

enum ox_status ox_seal_check(const char *where, json_t *object, bool required) {
    uint64_t expected = 0, found = 0;
    if (!required && json_object_get(object, key) == NULL) {
        return OX_OK;
    }
    OX_TRY(ox_json_get_hex(where, object, key, 1, &expected));
    json_object_del(object, key);
    if (!hash_of(object, &found)) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for its checksum", where);
    }
    return found == expected
               ? OX_OK : ox_fail(OX_E_CORRUPT, "%s: does not match its checksum: it is damaged, or was edited", where);
}
