#!/bin/sh
# Runs full optimizer steps of a model far larger than its memory limit: fresh weights of a Llama shape, all parameters
# trained, inside a limit that the kernel enforces (a memory control group without swap; needs root). Prints for each
# step the predicted and the measured time and the drive's traffic, and at the end the peak memory that the kernel saw.
#
#     tools/dev/scale.sh [-f FOLDER] [-n STEPS] [-t TOKENS] [-p PROFILE] [-m MODE] [-c NORM] CASE
#
#     2b-f32    1.69 billion parameters, moments in fp32, one generation, in 3 GiB: 24 GB on the drive
#     3b-bf16   3.43 billion parameters, moments in bf16, two generations, in 4 GiB: 55 GB
#     3b-f32    3.43 billion parameters, moments in fp32, one generation, in 4 GiB: 48 GB
#     7b-q8     6.74 billion parameters, eight-bit moments, one generation, in 6 GiB: 48 GB
#
# PROFILE comes from `offload bench all --output PROFILE`; without it predictions use nominal rates. MODE is a value of
# --optimizer-overlap. NORM is --max-grad-norm, 0 (no clipping) by default: fresh weights start with norms near 100, so
# every step would be clipped, unlike most steps of a long run. The run is killed after its last step and writes no
# checkpoint; but it wants room for one, 12 bytes a parameter, before it begins.
set -eu
folder=build/scale steps=4 tokens=256 profile= mode=auto clip=0 offload=${OX_BIN:-build/offload}
while getopts f:n:t:p:m:c: option; do
    case $option in
    f) folder=$OPTARG ;;
    n) steps=$OPTARG ;;
    t) tokens=$OPTARG ;;
    p) profile=$OPTARG ;;
    m) mode=$OPTARG ;;
    c) clip=$OPTARG ;;
    *) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
here=$(dirname "$0")
case ${1:-} in
2b-f32) model=2b moments=f32 generations=1 limit=3072 host=2880 drive=30 ;;
3b-bf16) model=3b moments=bf16 generations=2 limit=4096 host=3840 drive=60 ;;
3b-f32) model=3b moments=f32 generations=1 limit=4096 host=3840 drive=60 ;;
7b-q8) model=7b moments=q8 generations=1 limit=6144 host=5888 drive=60 ;;
*) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac

# Creates a control group, of the version that the machine has, and sets group, limit_file and peak_file.
make_group() {
    if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
        group=/sys/fs/cgroup/offload-scale
        echo +memory > /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
        limit_file=memory.max peak_file=memory.peak
    else
        group=/sys/fs/cgroup/memory/offload-scale
        limit_file=memory.limit_in_bytes peak_file=memory.max_usage_in_bytes
    fi
    rmdir "$group" 2>/dev/null || true
    mkdir "$group" && echo $((limit * 1048576)) > "$group/$limit_file" || {
        echo "scale: cannot make a memory control group at $group; run as root" >&2
        exit 1
    }
}

[ "$(awk '/^SwapTotal/ { print $2 }' /proc/meminfo)" = 0 ] || echo "scale: this machine has swap, which the limit does not cover" >&2
make_group
mkdir -p "$folder/drive"
find . -name '*.[ch]' -type f -size +20k -exec cat {} + > "$folder/text.txt"
rm -f "$folder/drive"/offload-store-*.ox
rm -rf "$folder/run"
pid=
finish() {
    [ -z "$pid" ] || kill -9 "$pid" 2>/dev/null || true
    [ -z "$pid" ] || wait "$pid" 2>/dev/null || true
    rm -f "$folder/drive"/offload-store-*.ox
    rmdir "$group" 2>/dev/null || true
}
trap finish EXIT
trap 'exit 130' INT TERM

sh -c 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"' sh "$group" \
    "$offload" train --model "$here/scale/$model.json" --from-scratch --data "$folder/text.txt" --data-format bytes \
    --output "$folder/run" --dtype bf16 --grad-dtype bf16 --moments "$moments" --store-generations "$generations" \
    --host-mem "${host}MiB" --nvme "$folder/drive:${drive}GiB" --max-seq-length "$tokens" \
    --per-device-train-batch-size 1 --gradient-accumulation-steps 1 --max-steps $((steps + 1)) --eval-fraction 0 \
    --eval-steps 0 --save-steps 0 --max-grad-norm "$clip" --optimizer-overlap "$mode" ${profile:+--profile "$profile"} > "$folder/log.txt" 2>&1 &
pid=$!
metrics=$folder/run/metrics.jsonl
while kill -0 "$pid" 2>/dev/null && [ "$(grep -c '"type":"step"' "$metrics" 2>/dev/null || true)" != "$steps" ]; do
    sleep 1
done
if ! kill -0 "$pid" 2>/dev/null; then
    tail -5 "$folder/log.txt" >&2
    echo "scale: the run ended before its $steps steps; see $folder/log.txt" >&2
    exit 1
fi
resident=$(awk '/^VmHWM/ { print $2 }' "/proc/$pid/status")
peak=$(cat "$group/$peak_file")

# Print the lines about shape, memory and prediction, then the steps.
sed -n '/^model:/p; /^optimizer:/p; /^step:/p; /^update:/p; /^  total/p; /^  budget/p; /^predicted:/p; /^  binding:/p' \
    "$folder/log.txt"
awk -v gigabyte=1000000000 '
function number(key,   text) {
    if (!match($0, "\"" key "\":[-+0-9.e]+")) return 0
    text = substr($0, RSTART, RLENGTH); sub(/.*:/, "", text); return text + 0
}
function sum(key,   text, parts, n, i, total) {
    if (!match($0, "\"" key "\":[{][^}]*}")) return 0
    text = substr($0, RSTART, RLENGTH); n = split(text, parts, ":")
    for (i = 2; i <= n; i++) total += parts[i] + 0
    return total
}
/"type":"step"/ {
    if (++count == 1) printf "%5s %9s %10s %9s %9s %9s %7s %9s\n", "step", "seconds", "predicted", "read GB", "wrote GB",
                             "GB/s", "compute", "loss"
    seconds = number("seconds"); read = sum("nvme_read") / gigabyte; wrote = sum("nvme_write") / gigabyte
    printf "%5d %9.1f %10.1f %9.2f %9.2f %9.2f %6.0f%% %9.4f\n", number("step"), seconds, number("predicted_seconds"),
           read, wrote, (read + wrote) / seconds, 100 * number("compute") / seconds, number("loss")
}' "$metrics"
awk -v resident="$resident" -v peak="$peak" -v limit="$limit" 'BEGIN {
    printf "peak resident memory %.0f MiB; peak of the group with page cache %.0f MiB of %d MiB\n", resident / 1024,
           peak / 1048576, limit }'
