#!/bin/sh
# Plants faults by machine into the store, checkpoints, the proof and the executor, one at a time, and runs the tests
# that execute the changed line, quick and narrow ones first, until one fails.
#
#   make mutants [n=200] [seed=1] [files="nvme/store.c"]
#   sh tests/coverage/mutate.sh [-n COUNT] [-s SEED] [-j JOBS] [-t SECONDS] [-a] [-c] [FILE...]
#
# Which test executes which line is known from `make coverage`, which comes first. mutate.awk lists the faults; the seed
# draws COUNT of them (0: all). A test that hangs has noticed. No test starts later than SECONDS (60) after the first of
# a mutant. A mutant with the machine code of the original, or one that does not compile, is drawn again; those of
# equivalent.txt are not planted. Exit status 1 when less than 0.95 of the mutants are noticed.
#
# -a plants again what survived last time, such as after tests were added. -c plants nothing instead: then each test has
# to pass, and one that fails would count mutants that it did not notice.
set -u
cd "$(dirname "$0")/../.." || exit 2
export LC_ALL=C

count=200 seed=1 jobs=2 seconds=60 control= again=/dev/null
while getopts acn:s:j:t: option; do
    case $option in
    a) again=build/mutants.survived ;;
    c) control=1 ;;
    n) count=$OPTARG ;;
    s) seed=$OPTARG ;;
    j) jobs=$OPTARG ;;
    t) seconds=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- nvme/io_drive.c nvme/io_uring.c nvme/io_threads.c nvme/store*.c nvme/transfers.c \
    engine/checkpoint/*.c offload/proof/*.c engine/model/schedule_check.c \
    engine/step/executor/step.c engine/step/executor/host_tasks.c engine/step/update/optim.c engine/step/stream/optim_stream.c \
    engine/step/pending/overlap.c engine/step/link/link.c engine/step/planes/chunks.c engine/step/engine_store.c engine/step/rank.c

make=${MAKE:-make}
lines=build/coverage/lines
out=build/mutants
unset MAKEFLAGS MAKELEVEL
export OX_TEST_ALL=1 # as in make coverage
[ -f "$lines" ] && [ -f build/liboffload.a ] || {
    echo "mutate: run make all tests, and make coverage, first" >&2
    exit 2
}
for file in "$@"; do
    [ -f "$file" ] && [ "$file" -ot "$lines" ] && [ "$file" -ot build/liboffload.a ] || {
        echo "mutate: $file is not there, or is newer than the build or the coverage: run make all tests coverage" >&2
        exit 2
    }
done

rm -rf "$out"
mkdir -p "$out" || exit 2
# A fault is known by its file, its kind, its changed line and how many like it are above, wherever that is by now.
awk -f tests/coverage/mutate.awk "$@" | awk -F '\t' -v seed="$seed" -v again="$again" '
    function trim(text) { gsub(/^[ \t]+|[ \t]+$/, "", text); return text }
    BEGIN { srand(seed) }
    FILENAME ~ /equivalent.txt$/ { if (/^    /) listed[$0 = trim($0)] = 1; next }
    FILENAME != "-" { wanted[$1, $3, $4, trim($5)] = 1; next }
    { drawn = rand(); nth = above[$1, $3, trim($4)]++ }
    !(($1 ": " trim($4)) in listed) && (again == "/dev/null" || ($1, $3, nth, trim($4)) in wanted) {
        printf "%.9f\t%s\t%s\t%s\t%s\t%s\n", drawn, $1, $2, $3, nth, $4
    }' tests/coverage/equivalent.txt "$again" - | sort -n | cut -f 2- >"$out/drawn"

# What is built there is as old as here, so that make compiles a changed file alone. Tests look for plugins beside it.
copy_tree() { # folder
    mkdir -p "$1/build"
    # shellcheck disable=SC2046
    tar -cf - --exclude=./build --exclude=./.git . | tar -xf - -C "$1" &&
        cp -a build/obj build/config.mk build/liboffload.a build/offload $(ls -d build/*.so build/emulated build/fake 2>/dev/null) "$1/build/" &&
        find "$1/build" -name '*.[oa]' -exec strip -g -p {} +
}

# Faults mean a warning here and there; less is optimised, because compiling takes longer than most tests.
compile() { "$make" -s WARN="-w -O1 -g0" cuda=0 "$@"; }

# What a test leaves behind when it fails, such as a program that it started.
end_left() { # mark
    for left in $(grep -lsz "^OX_MUTANT=$1\$" /proc/[0-9]*/environ | cut -d / -f 3); do
        kill -9 "$left" 2>/dev/null
    done
}

# The programs that execute line $line of $file, or the line that its statement counts for, and pass, each with its
# milliseconds. Those in a folder of the same name come first, then those that are over soon and execute little else.
tests_of() {
    awk -v file="$file" -v line="$line" '
        NR == FNR { if ($1 == "line" && $2 == file && $3 <= line && $3 > at) at = $3; next }
        $1 == "test" { name = $2; ms[name] = $4 == 0 ? $3 : 0; next }
        { executed[name]++ }
        $1 == file && $2 == at && ms[name] > 0 { found[name] = 1 }
        END {
            folder = file
            sub(/\/[^\/]*$/, "", folder)
            for (name in found)
                print index(name, "/" folder "/") == 0, ms[name] * executed[name], ms[name], name
        }' "$lines" "$lines" | sort -k 1,1n -k 2,2n | cut -d " " -f 3-
}

# Whether the mutant has the machine code of the original, which is compiled once more, as the mutant is.
same_code() {
    [ -f "$copy/build/same/$object" ] || {
        mkdir -p "$copy/build/same/$(dirname "$object")" && cp "$copy/$object" "$copy/build/same/new.o" &&
            cp "$copy/$file" "$copy/build/same/new.c" && cp "$file" "$copy/$file" &&
            (cd "$copy" && compile "$object") >"$copy/log" 2>&1 &&
            mv "$copy/$object" "$copy/build/same/$object" && cp "$copy/build/same/new.c" "$copy/$file" && cp "$copy/build/same/new.o" "$copy/$object"
    }
    cmp -s "$copy/$object" "$copy/build/same/$object"
}

# Plants $text as line $line of $file in $copy, and prints what became of it.
verdict() {
    object=build/obj/${file%.c}.o
    [ -z "$control" ] || text=$(sed -n "${line}p" "$file")
    TEXT=$text awk -v line="$line" 'NR == line { $0 = ENVIRON["TEXT"] } { print }' "$file" >"$copy/$file"
    (cd "$copy" && compile "$object") >"$copy/log" 2>&1 || {
        echo "unbuilt"
        return
    }
    if [ -z "$control" ] && same_code; then
        echo "same"
        return
    fi
    tests_of >"$copy/tests.list"
    end=$(($(date +%s) + seconds))
    ran=0
    while read -r ms name && [ "$(date +%s)" -lt "$end" ]; do
        ran=$((ran + 1))
        program=build/tests/$name
        (cd "$copy" && compile "$program" $(case $name in sys/*) echo build/offload build/emulated/offload ;; esac)) >"$copy/log" 2>&1 || {
            echo "unbuilt"
            return
        }
        mkdir -p "$copy/tmp"
        (cd "$copy" && ulimit -c 0 && ulimit -f 8388608 && OX_MUTANT=$mark TMPDIR=$PWD/tmp OX_BIN=build/offload OFFLOAD_PROFILE=builtin \
            timeout -k 5 $((ms / 200 + 15)) "$program" >log 2>&1 </dev/null)
        status=$?
        end_left "$mark"
        rm -rf "$copy/tmp" "$copy/$program"
        case $status in
        0 | 77) ;;
        *)
            echo "noticed	$name	$status"
            return
            ;;
        esac
    done <"$copy/tests.list"
    echo "survived	$ran of $(wc -l <"$copy/tests.list") tests"
}

worker() { # index: plants every $jobs-th of the drawn ones, until it has its part of the count
    copy=$out/$1
    mark=$$-$1
    copy_tree "$copy"
    judged=0
    awk -v idx="$1" -v jobs="$jobs" 'NR % jobs == idx' "$out/drawn" >"$copy/drawn"
    tab=$(printf '\t')
    while IFS=$tab read -r file line kind nth text && [ "$judged" -lt "$2" ]; do
        found=$(verdict)
        cp -p "$file" "$copy/$file" && cp -p "build/obj/${file%.c}.o" "$copy/build/obj/${file%.c}.o"
        rm -f "$copy/build/liboffload.a"
        case $found in
        noticed* | survived*) judged=$((judged + 1)) ;;
        esac
        printf '%s\t%s\t%s\t%s\t%s\n' "$found" "$file" "$line" "$kind" "$text" >>"$out/results"
        case $found in
        survived*)
            printf '%s:%s: %s: %s (%s)\n' "$file" "$line" "$kind" "$text" "$found"
            printf '%s\t%s\t%s\t%s\t%s\n' "$file" "$line" "$kind" "$nth" "$text" >>"$out.survived"
            ;;
        esac
    done <"$copy/drawn"
    rm -rf "$copy"
}

workers=
trap '[ -z "$workers" ] || kill $workers 2>/dev/null; rm -rf "$out"/[0-9]*' EXIT
trap 'exit 130' INT TERM
[ "$count" -gt 0 ] || count=$(wc -l <"$out/drawn")
: >"$out/results"
: >"$out.survived"
i=0
while [ "$i" -lt "$jobs" ]; do
    worker "$i" $(((count + jobs - 1 - i) / jobs)) &
    workers="$workers $!"
    i=$((i + 1))
done
wait
workers=
awk -F '\t' -v control="$control" '
    { file = $(NF - 3); seen[$1]++ }
    $1 == "noticed" || $1 == "survived" { planted[file]++; noticed[file] += $1 == "noticed" }
    END {
        for (file in planted) {
            printf "%-40s %4d planted, %4d noticed\n", file, planted[file], noticed[file] | "sort"
            all += planted[file]; all_noticed += noticed[file]
        }
        close("sort")
        printf "%d mutants, %d noticed, %.3f; %d had the code of the original, %d did not compile\n", all, all_noticed, all ? all_noticed / all : 0,
            seen["same"], seen["unbuilt"]
        exit all == 0 || (control ? all_noticed > 0 : all_noticed < 0.95 * all)
    }' "$out/results"
