#!/bin/sh
# The first half hour on a GPU, in the unpacked archive of `make gpu-bundle` or in a tree that is built; docs/gpu.md says
# how long each part takes and what it is for.
#
#   tools/dev/gpu/first.sh [--emulated] [--out FOLDER] [PART...]
#
#     machine   driver, memory, processors, limits, what doctor finds; the program computes a step on the GPU
#     check     conformance, golden tests, bits over placements and resuming, memory
#     learn     a run learns, and once more with our own attention instead of cuDNN's
#     rates     the card and the operations on it: bench_gpu.sh machine ops
#     hbm       whole steps in the GPU's memory
#     offload   whole steps with state in host memory
#     sanitize  compute-sanitizer's memcheck and racecheck
#
# Without PART it runs all, in this order. Each part writes FOLDER/PART.txt (build/gpu-first) and leaves its runs and
# logs below FOLDER. Exit status 1 when one failed. --emulated runs them at toy sizes with the plugin of tests/simt.
set -u
below=/..
. "$(dirname "$0")/../script.sh"

emulated= out=${OX_BUILD:-build}/gpu-first parts=
while [ $# -gt 0 ]; do
    case $1 in
    --emulated) emulated=--emulated ;;
    --out) out=${2:?}; shift ;;
    machine | check | learn | rates | hbm | offload | sanitize) parts="$parts $1" ;;
    *) usage ;;
    esac
    shift
done
[ -n "$parts" ] || parts='machine check learn rates hbm offload sanitize'
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
program=${OX_BUILD:-build}/${emulated:+emulated/}offload

# The plugin opens NVIDIA's libraries by name; wheels of Python keep them where the loader does not look.
folder_of() { # a file's name; prints nothing where the loader finds it, and where nobody has it
    ldconfig -p 2>/dev/null | grep -q "^[[:space:]]*$1 " ||
        find / \( -path /proc -o -path /sys \) -prune -o -name "$1" -print 2>/dev/null | sed 's|/[^/]*$||' | head -n 1
}
path=${OX_BUILD:-build}/lib
case $path in
/*) ;;
*) path=$PWD/$path ;;
esac
[ -z "${LD_LIBRARY_PATH:-}" ] || path=$path:$LD_LIBRARY_PATH
if [ -z "$emulated" ]; then
    for library in "$(grep -ao 'libcublasLt\.so\.[0-9]*' "${OX_BUILD:-build}/liboffload_cuda.so" | head -n 1)" \
        libcudnn.so.9; do
        folder=$(folder_of "$library")
        path=$path${folder:+:$folder}
    done
fi
export LD_LIBRARY_PATH="$path"

check_gpu() { # the part's name, then checks
    name=$1
    shift
    sh tools/dev/check_gpu.sh $emulated --keep "$out/$name" "$@"
}
bench_gpu() {
    sh tools/dev/bench_gpu.sh $emulated --out "$out/bench" "$@"
}

part_machine() {
    cat commit 2>/dev/null || git rev-parse HEAD
    nvidia-smi 2>&1 || echo 'no nvidia-smi'
    free -g
    echo "processors $(nproc), locked memory $(ulimit -l) KiB, libraries in $LD_LIBRARY_PATH"
    "$program" doctor
    check_gpu machine device
}
part_check() {
    check_gpu check --at-once conform golden bits resume memory
}
part_learn() {
    check_gpu learn learn
    learned=$?
    check_gpu learn-own --own-attention learn && return "$learned"
}
part_rates() {
    bench_gpu machine ops
}
part_hbm() {
    bench_gpu hbm
}
part_offload() {
    bench_gpu offload
}
part_sanitize() {
    check_gpu sanitize memcheck racecheck
}

failed=
for part in $parts; do
    begin=$(date +%s)
    { "part_$part"; echo "$?" >"$out/$part.status"; } 2>&1 | tee "$out/$part.txt"
    status=$(cat "$out/$part.status") && rm -f "$out/$part.status"
    echo "$part: exit status $status after $(($(date +%s) - begin)) s" | tee -a "$out/$part.txt"
    [ "$status" -eq 0 ] || failed="$failed $part"
done
[ -z "$failed" ] || echo "failed:$failed; logs are in $out"
[ -z "$failed" ]
