#!/bin/sh
# Which lines and branches of the store, the proofs of plans and lists, checkpoints and recovery the tests take:
#
#   make coverage [tests="store plan"]      runs the tests of these parts (or those with a word in their name)
#   sh tests/coverage/coverage.sh -r             reports once more what the last run counted
#
# The sources are compiled as they are written (-O0), so that a branch is a condition of the text: `a && b` has four. A
# line that an OX_ASSERT stands on is left out, because what it denies is a mistake in the program. OX_THEN counts as the
# `if` that it is. A process that is killed leaves no counts. tests/coverage/untaken.txt explains branches that no test
# takes. This fails where a test fails, an explanation is out of date or, of all tests, a branch is left without one.
#
# build/coverage/lines has what each test executes, for tests/coverage/mutate.sh.
set -u
cd "$(dirname "$0")/../.." || exit 2
export LC_ALL=C
export OX_TEST_ALL=1 # branches that a whole sweep takes alone count too

build=build/coverage
counts=$build/counts
parts='nvme/io_drive.c nvme/io_threads.c nvme/io_uring.c nvme/st*.c nvme/transfers.c nvme/wear.c offload/proof/*.c engine/model/schedule_check.c engine/checkpoint/*.c engine/step/engine_store.c engine/step/pending/overlap.c
    engine/run/trainer_remains.c engine/run/trainer_save.c
    engine/run/trainer_start.c'

count() { # program: runs it, and keeps what it counted apart
    name=${1#"$build"/tests/}
    to=$counts/$name
    mkdir -p "$to"
    start=$(date +%s%N)
    # The counters' path is that of the object, below the prefix.
    GCOV_PREFIX=$PWD/$to GCOV_PREFIX_STRIP=$(pwd | tr -cd / | wc -c) OX_BIN=$build/offload OFFLOAD_PROFILE=builtin \
        timeout -k 5 "${TIMEOUT:-1800}" "$1" >"$to/log" 2>&1 </dev/null
    status=$?
    echo $((($(date +%s%N) - start) / 1000000)) "$status" >"$to/result"
    case $status in
    0 | 77) ;;
    *)
        tail -n 3 "$to/log"
        echo "FAIL  $name (exit status $status)"
        ;;
    esac
}

if [ "${1:-}" = --one ]; then
    count "$2"
    exit 0
fi

if [ "${1:-}" != -r ]; then
    rm -rf "$counts"
    mkdir -p "$counts"
    echo "${PARTIAL:-}" >"$build/partial"
    printf '%s\n' "$@" | xargs -d '\n' -n 1 -P "${JOBS:-2}" sh "$0" --one | tee "$build/failed"
fi

# gcov reads an object's notes beside its counters.
find "$counts" -name result | while read -r done; do
    to=${done%/result}
    echo "test ${to#"$counts"/} $(cat "$done")"
    find "$to" -name '*.gcda' | while read -r data; do
        object=${data#"$to"/}
        ln -sf "$PWD/${object%.gcda}.gcno" "${data%.gcda}.gcno"
        gcov -t -b -c "$data" 2>/dev/null
    done
done >"$build/gcov"
# shellcheck disable=SC2086
awk -v lines="$build/lines" -v partial="$(cat "$build/partial")" -f tests/coverage/coverage.awk tests/coverage/untaken.txt "$build/gcov" $(ls $parts) || exit 1
[ ! -s "$build/failed" ]
