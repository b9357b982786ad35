#!/bin/sh
# Shows that the tests of the store and of the planner can fail: plants one bug at a time (tests/negative/*.patch) into a
# copy of what they are built from, and runs the tests that are to catch it. The patches that benchmarks plant
# (tests/bench/*.patch) count as bugs here. Exit status 1 when a bug is not caught, when a patch does not apply any
# more, or when a test fails without a bug.
#
#   tests/negative/negative_controls.sh [NAME...]     all by default
set -u
cd "$(dirname "$0")/../.." || exit 2

copy=build/negative
make=${MAKE:-make}
jobs=${JOBS:-2}
unset MAKEFLAGS MAKELEVEL
export OX_TEST_ALL=1
[ -f build/config.mk ] || "$make" --no-print-directory detect || exit 2

rm -rf "$copy"
mkdir -p "$copy/build" "$copy/kernels" "$copy/tests/kit/plan" "$copy/tests/kit/store" "$copy/tools/dev" || exit 2
cp -R base nvme offload Makefile "$copy/" && cp kernels/*.h "$copy/kernels/" && cp tests/kit/*.h "$copy/tests/kit/" &&
    cp tests/kit/plan/*.h "$copy/tests/kit/plan/" && cp tests/kit/store/*.h "$copy/tests/kit/store/" &&
    cp tools/dev/detect.sh "$copy/tools/dev/" && cp build/config.mk "$copy/build/" || exit 2
for part in test files calls store/store_kit store/io_sim store/io_fault plan/plan_sample plan/plan_model plan/plan_faults; do
    cp "tests/kit/$part.c" "$copy/tests/kit/$part.c" || exit 2
done
# The copy is as old as its parts, so that no rule asks for another detection.
touch "$copy/build/config.mk"

patch_of() { # name
    if [ -f "tests/bench/$1.patch" ]; then echo "tests/bench/$1.patch"; else echo "tests/negative/$1.patch"; fi
}

caught_by() { # patch
    sed -n 's/^Caught by: //p' "$1"
}

if [ $# -eq 0 ]; then
    for patch in tests/negative/*.patch tests/bench/*.patch; do
        set -- "$@" "$(basename "$patch" .patch)"
    done
fi
tests=$(for name in "$@"; do caught_by "$(patch_of "$name")"; done | tr ' ' '\n' | sort -u)
for test in $tests; do
    mkdir -p "$copy/tests/$(dirname "$test")"
    cp "tests/$test.c" "$copy/tests/$(dirname "$test")/" || exit 2
done

build() { # tests: builds them in the copy
    programs=
    for test in "$@"; do
        programs="$programs build/tests/$test"
    done
    # shellcheck disable=SC2086
    (cd "$copy" && "$make" -s -j"$jobs" $programs) >"$copy/log" 2>&1 || {
        cat "$copy/log"
        echo "negative controls: does not build" >&2
        exit 2
    }
}

run() { # test: its exit status
    timeout -k 5 1800 "$copy/build/tests/$1" >"$copy/log" 2>&1 </dev/null
}

failures=0
# shellcheck disable=SC2086
build $tests
for test in $tests; do
    run "$test"
    status=$?
    if [ "$status" -ne 0 ]; then
        tail -n 5 "$copy/log"
        echo "FAIL  $test fails without a planted bug (exit status $status)"
        failures=$((failures + 1))
    fi
done

for name in "$@"; do
    patch=$(patch_of "$name")
    if ! patch -d "$copy" -p1 -s -N <"$patch"; then
        echo "FAIL  $name: the patch does not apply; write it again"
        failures=$((failures + 1))
        continue
    fi
    tests=$(caught_by "$patch")
    # shellcheck disable=SC2086
    build $tests
    for test in $tests; do
        run "$test"
        status=$?
        case $status in
        0 | 77)
            echo "FAIL  $name: not noticed by $test (exit status $status)"
            failures=$((failures + 1))
            ;;
        *) echo "caught  $name by $test: $(grep -m 1 -E 'failed|assertion|OX_E_' "$copy/log" | cut -c 1-110)" ;;
        esac
    done
    patch -d "$copy" -p1 -s -R <"$patch" || exit 2
    find "$copy" -name '*.orig' -delete
done
[ "$failures" -eq 0 ] && echo "$# planted bugs, all caught"
[ "$failures" -eq 0 ]
