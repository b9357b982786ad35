#!/bin/sh
# Runs test programs, each in its own process with a time limit, and prints one line for each in order: how it ended, its
# time, and what it took of the processors.
#
#   tests/run.sh [-b BUILD_FOLDER] PROGRAM...
#
# A program passes with exit status 0, is skipped with 77, fails otherwise. JOBS (2) run at a time, and beside them, one
# after another, those that mostly wait: for limits of time, stopped processes and launchers; with JOBS=1 they wait their
# turn. TIMEOUT, at which a program counts as hung, is in seconds: 240, 1800 in a build with sanitizers, and 3600
# where OX_TEST_ALL=1 makes sweeps whole. Exit status 1 when one failed or none ran. The longest programs start first, so that
# at the end no processor waits for one.
set -u

run_one() { # results folder, index, program
    start=$(date +%s%N)
    timeout -k 5 "$TIMEOUT" "$3" >"$1/$2.out" 2>&1 </dev/null
    status=$?
    end=$(date +%s%N)
    # The second line that times prints is what the program and its processes took of processors.
    times >"$1/$2.times"
    processor=$(awk 'NR == 2 { gsub("s", ""); split($1, u, "m"); split($2, k, "m")
        printf "%d", 100 * (60 * (u[1] + k[1]) + u[2] + k[2]) }' "$1/$2.times")
    echo $(((end - start) / 10000000)) "$processor" >"$1/$2.time"
    # The status appears under its name only when all else is written.
    echo "$status" >"$1/$2.tmp" && mv "$1/$2.tmp" "$1/$2.status"
}

if [ "${1:-}" = --one ]; then
    run_one "$2" "$3" "$4"
    exit 0
fi
build=build
if [ "${1:-}" = -b ]; then
    build=$2
    shift 2
fi
limit=240
[ "${OX_TEST_ALL:-0}" != 1 ] || limit=3600
case $build in
*san-*) limit=1800 ;;
esac
TIMEOUT=${TIMEOUT:-$limit}
OX_BIN=${OX_BIN:-$build/offload}
OFFLOAD_PROFILE=${OFFLOAD_PROFILE-builtin} # measuring takes seconds, and predictions would depend on it
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE # kernels and blocks for another processor have other roundings
export TIMEOUT OX_BIN OFFLOAD_PROFILE

longest="sys/processes/test_kill_start_processes sys/processes/test_frozen sys/command/test_bad_inputs \
sys/processes/test_processes fault/test_run_power unit/offload/search/test_search sys/command/test_ranks_planned \
sys/command/test_check_gpu sys/train/test_cuda_run sys/train/test_budget sys/command/test_bench sys/train/test_ranks \
sys/train/test_resume golden/test_ranks sys/text/test_stories_cli unit/offload/search/test_search_forced \
unit/engine/measure/test_measure unit/engine/step/test_contexts unit/engine/step/test_pipe \
unit/engine/step/test_idle_uploads conform/test_comm_nccl unit/offload/sim/test_sim_work \
conform/test_ops_head golden/test_cuda unit/offload/plan/test_plan unit/offload/proof/test_plan_cases \
fault/test_run_twice sys/train/test_kill sys/train/test_kill_start conform/test_ops_linear sys/train/test_predict \
sys/train/test_kill_every_op conform/test_ops_attention fault/test_run_calls conform/test_comm golden/test_processes \
sys/processes/test_kill_processes sys/processes/test_kill_every_op_processes sys/train/test_kill_ranks \
sys/train/test_soak fault/test_run_faults fault/test_rank_faults fault/test_process_faults \
unit/offload/plan/test_plan_ranks sys/train/test_same_bits golden/test_golden golden/test_overlap"
# Of these a processor is busy for less than half of the time.
waiting="sys/processes/test_kill_start_processes sys/processes/test_frozen sys/command/test_bad_inputs \
unit/engine/measure/test_measure \
fault/test_run_power conform/test_comm_wire conform/test_comm conform/test_comm_nccl conform/test_comm_mpi \
sys/processes/test_kill_processes sys/train/test_soak golden/test_overlap"
IFS='
'
set -f
# shellcheck disable=SC2046 # a program a line
set -- $(printf '%s\n' "$@" | awk -v longest="$longest" '
    BEGIN { count = split(longest, names, " "); for (i = 1; i <= count; i++) rank[names[i]] = i }
    { name = $0; sub(/.*\/tests\//, "", name); print (name in rank ? rank[name] : count + 1) "\t" $0 }' |
    sort -s -n -k 1,1 | cut -f 2)
unset IFS
set +f

results=$(mktemp -d "${TMPDIR:-/tmp}/offload-tests-XXXXXX") || exit 2
runner='' waiter=''
finish() {
    [ -z "$runner" ] || kill "$runner" "$waiter" 2>/dev/null
    rm -rf "$results"
}
trap finish EXIT
trap 'exit 130' INT TERM

JOBS=${JOBS:-2}
index=0
: >"$results/list"
: >"$results/waiting"
for program in "$@"; do
    index=$((index + 1))
    list=$results/list
    case " $waiting " in
    *" ${program##*/tests/} "*) [ "$JOBS" -eq 1 ] || list=$results/waiting ;;
    esac
    printf '%s\n%s\n%s\n' "$results" "$index" "$program" >>"$list"
done
xargs -r -d '\n' -n 3 -P 1 sh "$0" --one <"$results/waiting" &
waiter=$!
xargs -r -d '\n' -n 3 -P "$JOBS" sh "$0" --one <"$results/list" &
runner=$!

passed=0 failed=0 skipped=0 index=0 total=0
for program in "$@"; do
    index=$((index + 1))
    while [ ! -f "$results/$index.status" ]; do
        kill -0 "$runner" 2>/dev/null || kill -0 "$waiter" 2>/dev/null || [ -f "$results/$index.status" ] || {
            echo "tests/run.sh: the runner ended before $program" >&2
            exit 1
        }
        sleep 0.05
    done
    read -r status <"$results/$index.status"
    read -r hundredths processor <"$results/$index.time"
    total=$((total + processor))
    case $status in
    0) verdict=PASS passed=$((passed + 1)) ;;
    77) verdict=SKIP skipped=$((skipped + 1)) ;;
    *) verdict=FAIL failed=$((failed + 1)) ;;
    esac
    name=${program#"$build"/}
    name=${name#tests/}
    printf '%s  %4d.%02d s %4d.%02d s  %s\n' "$verdict" $((hundredths / 100)) $((hundredths % 100)) \
        $((processor / 100)) $((processor % 100)) "$name"
    case $verdict in
    SKIP) grep -m 1 '^skipped: ' "$results/$index.out" | sed 's/^/      /' ;;
    FAIL)
        sed 's/^/      /' "$results/$index.out"
        case $status in
        124 | 137) echo "      ended by the time limit of $TIMEOUT s" ;;
        *) echo "      exit status $status" ;;
        esac
        ;;
    esac
done
runner=''
echo "$passed passed, $failed failed, $skipped skipped; $((total / 100)) s of processors"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
