#!/bin/sh
# Fuzzes the readers of files with clang's libFuzzer, one target after another.
#
#   tests/fuzz/fuzz.sh [-c] [TARGET...]     targets are the names of tests/fuzz/fuzz_*.c; all without one
#
# RUNS (200000) inputs are tried of each, or as many as FUZZ_SECONDS allow. What they find lies in build/fuzz/:
# corpus/TARGET/ grows from call to call, found/TARGET-* are the inputs that ended a target, log/TARGET.log is what
# libFuzzer said, and counts has a line for each run: the target, the commit, the inputs tried. Exit status 1 when a
# target ended. -c measures instead which lines of the readers are reached: by seeds and corpora, and by tests of them
# too; lines.txt and unreached.txt in build/fuzz-coverage/ say which are not.
set -u
LC_ALL=C
export LC_ALL

coverage=0
if [ "${1:-}" = -c ]; then
    coverage=1
    shift
fi
cd "$(dirname "$0")/../.." || exit 2
FUZZ_SECONDS=${FUZZ_SECONDS:-0}
[ "$FUZZ_SECONDS" = 0 ] && RUNS=${RUNS:-200000} || RUNS=${RUNS:--1}
MAKE=${MAKE:-make}
clang=${CLANG:-}
for one in $clang clang clang-19 clang-18 clang-17 clang-16 clang-15 clang-14; do
    if command -v "$one" >/dev/null; then
        clang=$one
        break
    fi
done
if ! echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d != 0 && n == 0; }' |
    "${clang:-clang}" -fsanitize=fuzzer -x c -o /dev/null - 2>/dev/null; then
    echo "make fuzz needs clang with libFuzzer: apt-get install clang llvm (and libclang-rt-VERSION-dev, where it is" \
        "a package of its own)" >&2
    exit 2
fi

known=$(cd tests/fuzz && ls fuzz_*.c | sed 's/^fuzz_//; s/\.c$//')
for target in "$@"; do
    echo "$known" | grep -qxF "$target" || {
        echo "tests/fuzz/fuzz.sh: '$target' is no target; there are:" $known >&2
        exit 2
    }
done
targets=${*:-$known}

scratch=$(mktemp -d /dev/shm/offload-fuzz-XXXXXX 2>/dev/null || mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

build() { # folder, compiler, sanitizers, programs
    folder=$1 compiler=$2 sanitizers=$3
    shift 3
    mkdir -p "$folder"
    "$MAKE" --no-print-directory -j2 B="$folder" CONFIG="$folder/config.mk" CC="$compiler" san="$sanitizers" \
        WARN=-Wall "$@" >"$folder/build.log" 2>&1 || {
        tail -n 30 "$folder/build.log" >&2
        exit 1
    }
}

# The longest input that is tried: what a target needs to say all it can say, and no more, because long ones are slow.
length_of() {
    case $1 in
    hf) echo 8192 ;;
    tokenizer) echo 4608 ;;
    data) echo 3584 ;;
    *) echo 4096 ;;
    esac
}

fuzz() { # target
    mkdir -p "build/fuzz/corpus/$1" build/fuzz/found build/fuzz/log
    dictionary=
    [ ! -f "tests/fuzz/$1.dict" ] || dictionary=-dict=tests/fuzz/$1.dict
    ASAN_OPTIONS=quarantine_size_mb=16:detect_leaks=${LEAKS:-1} TMPDIR=$scratch \
        "build/fuzz/fuzz_$1" -runs="$RUNS" -max_total_time="$FUZZ_SECONDS" -max_len="$(length_of "$1")" -timeout=60 -rss_limit_mb=3072 \
        -print_final_stats=1 $dictionary -artifact_prefix="build/fuzz/found/$1-" "build/fuzz/corpus/$1" \
        "tests/fuzz/seeds/$1" >"build/fuzz/log/$1.log" 2>&1
    status=$?
    executed=$(sed -n 's/^stat::number_of_executed_units: //p' "build/fuzz/log/$1.log" | tail -n 1)
    echo "$1 $(git describe --always --dirty 2>/dev/null || echo unknown) ${executed:-0}" >>build/fuzz/counts
    printf '%-12s %9s executions, %6s a second, %5s inputs in the corpus, %9s executions so far: %s\n' \
        "$1" "${executed:-0}" \
        "$(sed -n 's/^stat::average_exec_per_sec: *//p' "build/fuzz/log/$1.log" | tail -n 1)" \
        "$(ls "build/fuzz/corpus/$1" | wc -l)" \
        "$(awk -v target="$1" '$1 == target { sum += $3 } END { printf "%.0f", sum }' build/fuzz/counts)" \
        "$(case $status in 0) echo "nothing found" ;; 72) echo interrupted ;; *) echo FOUND ;; esac)"
    [ "$status" -ne 72 ] || exit 130 # libFuzzer's status when a signal ended it; by then it has said how far it came
    [ "$status" -eq 0 ] || {
        failed=1
        grep -E 'broken promise|last error|ERROR|SUMMARY|assertion|Test unit written' "build/fuzz/log/$1.log" |
            sed 's/^/    /'
    }
}

# The files whose lines are counted.
readers='base/json.c base/file.c engine/hf/safetensors.c engine/hf/hf.c engine/model/model.c engine/family/*.c
engine/text/*.c engine/data/data.c engine/data/files.c engine/data/documents*.c
engine/data/token_cache.c engine/config/config.c engine/config/config_yaml.c engine/checkpoint/checkpoint_manifest.c'

# The tests of what a target reads; test_reader_faults lets memory and calls on files fail under each of them.
tests_of() {
    case $1 in
    cache) set -- engine/data/token_cache engine/data/corpus ;;
    data | documents) set -- "engine/data/$1" ;;
    hf) set -- engine/hf/hf base/file base/json ;;
    safetensors) set -- engine/hf/safetensors ;;
    manifest) set -- engine/checkpoint/checkpoint ;;
    model) set -- engine/model/model ;;
    yaml) set -- engine/config/config ;;
    *) set -- "engine/text/$1" ;;
    esac
    for test in "$@"; do
        echo "unit/${test%/*}/test_${test##*/}"
    done
}

# Why lines are not reached, by the text of each run of them and the line before: what the system must refuse, memory
# or a call on files, is counted apart, and so is a status of another function that is only passed on.
count_lines='
function text_of(line) { sub(/^[^|]*\|[^|]*\|/, "", line); return line }
function end_run(    why, i) {
    if (run == "") return
    why = run ~ /NOMEM|no memory|fail_memory/ ? "memory" \
        : run ~ /_errno\(|fail_path|fail_space|OX_E_IO|EINTR|errno|fstat|statvfs|getrandom/ ? "system" \
        : only_passed ? "passed on" : "other"
    for (i = 1; i <= run_count; i++) {
        unreached[name, why]++
        print name ":" run_line[i] ": " why ": " run_text[i] >LIST
    }
    run = ""
}
FNR == 1 { end_run(); pass++; name = "" }
/^\/.*:$/ { end_run(); name = substr($0, length(ROOT) + 2); sub(/:$/, "", name); before = ""; next }
/^ *[0-9]+\| *[0-9]/ {
    split($0, part, "|")
    text = text_of($0)
    if (pass == 1) { fuzz_lines[name]++; fuzz_reached[name] += part[2] + 0 != 0; next }
    if (!(name in lines)) order[++count] = name
    lines[name]++
    if (part[2] + 0 != 0) { end_run(); reached[name]++; before = text; next }
    if (run == "") { run = before; run_count = 0; only_passed = 1 }
    run = run "\n" text
    run_line[++run_count] = part[1] + 0
    run_text[run_count] = text
    if (text !~ /^ *(return status;|goto fail;|break;|free\([a-z_]*\);|close\(\*?[a-z_]*\);|\}( else .*)?)$/ &&
        text !~ /^ *[a-z_]+_(close|discard|free)\(.*\);$/) only_passed = 0
}
function row(label, all, fuzz, both, memory, system_, passed, other) {
    printf "%-32s %6d %8.1f %% %8.1f %% %7d %7d %7d %7d\n", label, all, 100 * fuzz / all, 100 * both / all, memory,
        system_, passed, other
}
END {
    end_run()
    printf "%-32s %6s %10s %10s %31s\n%-32s %6s %10s %10s %7s %7s %7s %7s\n", "", "", "seeds,", "and",
        "not reached, for want of", "file", "lines", "corpora", "tests", "memory", "system", "either", "other"
    for (i = 1; i <= count; i++) {
        n = order[i]
        row(n, lines[n], fuzz_reached[n], reached[n], unreached[n, "memory"], unreached[n, "system"],
            unreached[n, "passed on"], unreached[n, "other"])
        all += lines[n]; fuzz += fuzz_reached[n]; both += reached[n]; memory += unreached[n, "memory"]
        system_ += unreached[n, "system"]; passed += unreached[n, "passed on"]; other += unreached[n, "other"]
    }
    row("all", all, fuzz, both, memory, system_, passed, other)
}'

measure() { # tests
    tool=$(command -v "llvm-profdata${clang#clang}") && cov=$(command -v "llvm-cov${clang#clang}") || {
        echo "the coverage is read by llvm-profdata and llvm-cov: apt-get install llvm" >&2
        exit 2
    }
    folder=build/fuzz-coverage
    for target in $targets; do
        mkdir -p "build/fuzz/corpus/$target"
        LLVM_PROFILE_FILE=$scratch/fuzz-$target.profraw TMPDIR=$scratch "$folder/tests/fuzz/test_seeds" \
            "$target" "tests/fuzz/seeds/$target" "build/fuzz/corpus/$target" >"$scratch/$target.log" 2>&1 || {
            failed=1
            echo "$target:" "$(tail -n 3 "$scratch/$target.log")"
        }
    done
    objects=
    for test in "$@"; do
        objects="$objects -object $folder/tests/$test"
        LLVM_PROFILE_FILE=$scratch/test-%m-%p.profraw TMPDIR=$scratch "$folder/tests/$test" >"$scratch/test.log" 2>&1 || {
            failed=1
            echo "$test:" "$(tail -n 3 "$scratch/test.log")"
        }
    done
    "$tool" merge -o "$scratch/fuzz" "$scratch"/fuzz-*.profraw &&
        "$tool" merge -o "$scratch/both" "$scratch/fuzz" "$scratch"/test-*.profraw &&
        "$cov" show "$folder/tests/fuzz/test_seeds" -instr-profile="$scratch/fuzz" $readers >"$scratch/fuzz.txt" &&
        "$cov" show "$folder/tests/fuzz/test_seeds" $objects -instr-profile="$scratch/both" $readers \
            >"$folder/lines.txt" || exit 1
    awk -v ROOT="$PWD" -v LIST="$folder/unreached.txt" "$count_lines" "$scratch/fuzz.txt" "$folder/lines.txt"
}

failed=0
if [ "$coverage" -eq 1 ]; then
    mkdir -p build/fuzz-coverage
    # Without noreturn: behind a call that does not return this clang counts the lines after an assertion wrongly.
    printf '#!/bin/sh\nexec %s -fprofile-instr-generate -fcoverage-mapping -Dnoreturn=cold "$@"\n' "$clang" \
        >build/fuzz-coverage/cc
    chmod +x build/fuzz-coverage/cc
    tests="$(for target in $targets; do tests_of "$target"; done) fault/test_reader_faults"
    build build/fuzz-coverage "$PWD/build/fuzz-coverage/cc" '' build/fuzz-coverage/tests/fuzz/test_seeds \
        $(echo $tests | tr ' ' '\n' | sed 's|^|build/fuzz-coverage/tests/|')
    measure $tests
    exit "$failed"
fi
build build/fuzz "$clang" fuzzer-no-link,address,undefined \
    $(echo "$targets" | tr ' ' '\n' | sed 's|^|build/fuzz/fuzz_|')
trap : INT TERM # so that an interrupted run is counted too
for target in $targets; do
    fuzz "$target"
done
exit "$failed"
