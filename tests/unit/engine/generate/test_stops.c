/* Texts that end an answer: the list of --stop, where one is found, and what may be the beginning of one. */
#include "engine/generate/stops.h"
#include "tests/kit/test.h"

#include <string.h>

static struct ox_stop_texts stops;

static size_t find(const char *text) {
    return ox_stop_find(&stops, text, strlen(text));
}

static size_t pending(const char *text) {
    return ox_stop_pending(&stops, text, strlen(text));
}

int main(void) {
    REQUIRE_OK(ox_stop_texts_open("", &stops));
    CHECK(stops.count == 0 && find("anything") == 8 && pending("anything") == 0);
    ox_stop_texts_close(&stops);
    REQUIRE_OK(ox_stop_texts_open("User:,\\n\\n,a\\,b,\\\\,\\q,aab", &stops));
    CHECK(stops.count == 6 && stops.bytes[1] == 2 && memcmp(stops.texts[1], "\n\n", 2) == 0);
    CHECK(stops.bytes[2] == 3 && memcmp(stops.texts[2], "a,b", 3) == 0 && stops.bytes[3] == 1);
    CHECK(stops.bytes[4] == 2 && memcmp(stops.texts[4], "\\q", 2) == 0);
    CHECK(find("Well\n\nUser: x") == 4 && find("UserUser:") == 4 && find("User") == 4);
    CHECK(pending("one Us") == 2 && pending("one User") == 4 && pending("one\n") == 1 && pending("one") == 0);
    CHECK(pending("xaa") == 2 && pending("") == 0 && pending("ab\na,") == 2);
    ox_stop_texts_close(&stops);
    CHECK(ox_stop_texts_open("a,,b", &stops) == OX_E_CONFIG && stops.room == NULL);
    CHECK(ox_stop_texts_open("a,", &stops) == OX_OK || stops.room == NULL);
    ox_stop_texts_close(&stops);
    return test_end();
}
