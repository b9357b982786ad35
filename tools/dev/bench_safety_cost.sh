#!/bin/sh
# Measures what checksums and the commit cost: times the optimizer's phase beside a build of the same sources whose
# checksums are constants and whose commit writes and flushes nothing (tests/bench/without_safety.patch; the program has
# no switch for that). Both processes stay alive and alternate round by round, so that other use of the drive affects
# both. Exit status 1 when the median of the rounds' ratios exceeds the limit.
#
#   tools/dev/bench_safety_cost.sh [-r ROUNDS] [-f FOLDER] [OPTION OF bench_optim...]
#
# Two stores, some 12 GB in all, use FOLDER (build/bench by default) while it runs.
set -u
. "$(dirname "$0")/script.sh"

limit=1.03
rounds=15
folder=build/bench
while getopts r:f: flag; do
    case $flag in
    r) rounds=$OPTARG ;;
    f) folder=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))

copy=build/without-safety
patch=tests/bench/without_safety.patch
program=build/tests/bench/bench_optim
make=${MAKE:-make}
jobs=${JOBS:-2}
unset MAKEFLAGS MAKELEVEL

# The copy keeps modification times and object files, so that only what the patch touches is compiled.
rm -rf "$copy"
"$make" -s -j"$jobs" "$program" >&2 && mkdir -p "$copy/build" "$copy/tests/bench" "$copy/tools/dev" "$folder" &&
    cp -Rp base nvme cpu_optim kernels offload engine Makefile "$copy/" && cp -p tools/dev/detect.sh "$copy/tools/dev/" &&
    cp -Rp tests/kit "$copy/tests/" && cp -p tests/bench/bench_optim.c "$copy/tests/bench/" &&
    cp -Rp build/obj build/config.mk "$copy/build/" || exit 2
if ! patch -d "$copy" -p1 -s -N <"$patch"; then
    echo "$patch no longer applies; create it again" >&2
    exit 2
fi
(cd "$copy" && "$make" -s -j"$jobs" "$program") >&2 || exit 2

scratch=$(mktemp -d "$folder/safety-XXXXXX") || exit 2
pids=
leave() {
    exec 3>&- 5>&-
    # shellcheck disable=SC2086
    [ -z "$pids" ] || kill $pids 2>/dev/null
    wait
    rm -rf "$scratch" "$copy"
}
trap leave EXIT
trap 'exit 130' INT TERM
trap '' PIPE
mkdir "$scratch/with" "$scratch/without" &&
    mkfifo "$scratch/with.in" "$scratch/with.out" "$scratch/without.in" "$scratch/without.out" || exit 2

"$program" --rounds stdin --folder "$scratch/with" "$@" <"$scratch/with.in" >"$scratch/with.out" &
pids=$!
exec 3>"$scratch/with.in" 4<"$scratch/with.out"
# The second process must not inherit the pipes of the first.
"$copy/$program" --rounds stdin --folder "$scratch/without" "$@" \
    <"$scratch/without.in" >"$scratch/without.out" 3>&- 4<&- &
pids="$pids $!"
exec 5>"$scratch/without.in" 6<"$scratch/without.out"

answer() { # word: reads the value that a program prints after it
    read -r word value || value=
    if [ "$word" != "$1" ] || [ -z "$value" ]; then
        echo "bench_optim ended early: $word $value" >&2
        exit 2
    fi
}

answer ready <&4
answer ready <&6
echo "$value parameters in $folder, $rounds rounds"
round=0
while [ "$round" -lt "$rounds" ]; do
    round=$((round + 1))
    echo >&3
    answer round <&4
    with=$value
    echo >&5
    answer round <&6
    echo "$with $value"
    printf 'round %d: with %.3f s, without %.3f s\n' "$round" "$with" "$value" >&2
done >"$scratch/seconds"

awk '{ printf "%s %s %.6f\n", $1, $2, $1 / $2 }' "$scratch/seconds" >"$scratch/rounds"

column() { # number: prints the column, sorted
    cut -d ' ' -f "$1" "$scratch/rounds" | sort -n
}
median() {
    awk '{ at[NR] = $1 } END { print NR % 2 ? at[(NR + 1) / 2] : (at[NR / 2] + at[NR / 2 + 1]) / 2 }'
}
ratio=$(column 3 | median)
printf 'with checksums and commit %.3f s, without %.3f s; ratio %.3f (%.3f to %.3f, limit %s)\n' \
    "$(column 1 | median)" "$(column 2 | median)" "$ratio" "$(column 3 | head -n 1)" \
    "$(column 3 | tail -n 1)" "$limit"
awk "BEGIN { exit !($ratio <= $limit) }"
