/* What messages advise: every option that one names is one that the command takes which said it. Each message that a
 * test of the program meets is looked at, by sys_wait. */
#ifndef OX_TESTS_ADVICE_H
#define OX_TESTS_ADVICE_H

#include <stdbool.h>

enum { ADVICE_BYTES = 64 };

/* Writes to `option` the first option that `text`, what `offload WORDS...` has said, names and its command does not
 * take. Others may be named as those of another command, behind its name (`offload train --dpo`), or because `words` or
 * the files that they name have them. */
bool advice_find_foreign(const char *text, char *const *words, char option[ADVICE_BYTES]);

#endif
