/* A page in a browser without a screen: a copy of it gets a script of the test's behind its own, which writes what it
 * found into the document, and the browser prints that. */
#ifndef OX_TESTS_BROWSER_H
#define OX_TESTS_BROWSER_H

#include <stdbool.h>

/* The program of a Chromium; ends the test as skipped where there is none. */
const char *browser_find(void);
/* Writes the copy. `script` is run behind the page's own scripts; it has `say(name, value)`, and calls `done()` when it
 * has said all. Errors of scripts are said as `faults`, a JSON array. */
void browser_instrument(const char *page, const char *script, const char *copy);
/* Opens the copy in a window of this width, light or dark, and returns what was said, "[found name=value ...]"; free()
 * it. NULL, with a failure noted: nothing was said. It may take half a minute. */
char *browser_open(const char *browser, const char *copy, unsigned width, bool dark);
/* Notes a failure for each of the texts, up to NULL, that was not said. */
void browser_check(const char *found, const char *what, const char *const *expected);

#endif
