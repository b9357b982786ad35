#!/bin/sh
# Proves, on sources and reports of a few lines, that mutate.awk plants the faults that it promises and no others, and that
# coverage.awk counts branches.
set -u
tools=$(cd "$(dirname "$0")" && pwd) || exit 2
root=$(mktemp -d "${TMPDIR:-/tmp}/offload-mutated-XXXXXX") || exit 2
trap 'rm -rf "$root"' EXIT
trap 'exit 130' INT TERM
failed=0

expect() { # what, expected file, found file
    diff "$2" "$3" >"$root/diff" || {
        echo "mutate_test: $1: expected (<), found (>):"
        cat "$root/diff"
        failed=$((failed + 1))
    }
}

mkdir -p "$root/tests/coverage"
cat >"$root/a.c" <<'TEXT'
#include "a < b.h"
enum { SIZE = 3 };
static int f(int a, int b) { return a < b; }
static enum ox_status g(int a, int *b) {
    OX_ASSERT(a < 1 &&
              b != NULL);
    if (a < 2 && b != NULL) { /* a < 3 */
        puts("a < 4 && \" c == d");
        return ox_fail(OX_E_IO, "no");
    }
    enum ox_status status = h(a + 1);
    OX_THEN(status, h(a));
    while (p->b > 0)
        status = ox_h(a);
    return status;
}
TEXT
cat >"$root/expected" <<'TEXT'
4 7 relation     if (a <= 2 && b != NULL) { /* a < 3 */
4 7 relation     if (a < 2 && b == NULL) { /* a < 3 */
4 7 logic     if (a < 2 || b != NULL) { /* a < 3 */
4 7 negate     if (!(a < 2 && b != NULL)) { /* a < 3 */
4 7 constant     if (a < 3 && b != NULL) { /* a < 3 */
4 9 status         return ((void)(ox_fail(OX_E_IO, "no")), OX_OK);
4 11 constant     enum ox_status status = h(a + 2);
4 12 dropped      ;
4 13 relation     while (p->b >= 0)
4 13 negate     while (!(p->b > 0))
4 13 constant     while (p->b > 1)
4 14 dropped         ;
4 15 status     return ((void)(status), OX_OK);
TEXT
(cd "$root" && awk -f "$tools/mutate.awk" a.c | awk -F '\t' '{ print NF, $2, $3, $4 }') >"$root/found"
expect "faults" "$root/expected" "$root/found"

cat >"$root/gcov" <<'TEXT'
test one 12 0
        -:    0:Source:a.c
        2:    5:    OX_ASSERT(a < 1 &&
branch  0 taken 2 (fallthrough)
branch  1 taken 0
        2:    7:    if (a < 2 && b != NULL) {
branch  0 taken 2 (fallthrough)
branch  1 taken 0
branch  2 taken 0 (fallthrough)
branch  3 taken 2
    #####:    9:        return ox_fail(OX_E_IO, "no");
call    0 never executed
       2:    13:    while (p->b > 0)
call    0 returned 2
branch  1 taken 2
branch  2 never executed
test two 34 0
        -:    0:Source:a.c
        1:    7:    if (a < 2 && b != NULL) {
branch  0 taken 0 (fallthrough)
branch  1 taken 1
branch  2 never executed
branch  3 never executed
TEXT
cat >"$root/tests/coverage/untaken.txt" <<'TEXT'
Nobody sees this.
    a.c 1 while (p->b > 0)
Nobody sees that.
    a.c 1 while (p->b > 7)
    *.c * while ... 7)
    a.c 2? while (...)
TEXT
cat >"$root/expected" <<'TEXT'
all 3 66.7 6 66.7 1 1
a.c:7: branch 3 of 4: if (a < 2 && b != NULL) { /* a < 3 */
tests/coverage/untaken.txt:4: a.c 1 while (p->b > 7): taken, or not there
tests/coverage/untaken.txt:5: *.c * while ... 7): taken, or not there
1
TEXT
count_branches() { # more options of awk
    (cd "$root" && awk -v lines=lines "$@" -f "$tools/coverage.awk" tests/coverage/untaken.txt gcov a.c
        echo $?) | awk '$1 == "all" { print $1, $2, $3, $5, $6, $8, $9 } /:/ || NF == 1'
}
count_branches >"$root/found"
expect "branches" "$root/expected" "$root/found"
cat >"$root/tests/coverage/untaken.txt" <<'TEXT'
Nobody sees these.
    *.c * while (...)
TEXT
printf 'all 3 66.7 6 66.7 1 1\na.c:7: branch 3 of 4: if (a < 2 && b != NULL) { /* a < 3 */\n%d\n' 1 >"$root/expected"
count_branches >"$root/found"
expect "a branch that is left" "$root/expected" "$root/found"
printf '    a*.c 1@2 if (a ...\n    a.c 1@3/2 if (a ...\n    a*.c 1@3/4 if (a < 2 && ... */\n' >>"$root/tests/coverage/untaken.txt"
cat >"$root/expected" <<'TEXT'
all 3 66.7 6 66.7 2 0
tests/coverage/untaken.txt:3: a*.c 1@2 if (a ...: taken, or not there
tests/coverage/untaken.txt:4: a.c 1@3/2 if (a ...: taken, or not there
1
TEXT
count_branches >"$root/found"
expect "branches that are explained" "$root/expected" "$root/found"
[ "$failed" -eq 0 ] || exit 1
echo "mutate: the lists of faults and of branches are as they should be"
