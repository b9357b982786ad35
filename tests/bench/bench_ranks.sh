#!/bin/sh
# Compares two ranks with one rank that computes with two threads, and predicted with measured steps, in eight shapes and
# ways of dividing. Both runs of a pair have the same model, tokens and sum groups, so also the same losses, and take
# turns. Prints a line for each pair of runs, for each shape the median ratio of two ranks to one rank and of predicted to
# measured, and the medians over all shapes.
#
#   tests/bench/bench_ranks.sh [FOLDER]
#
# FOLDER (build/ranks) holds the runs; its drive is the one that is used. RUNS (3) pairs per shape; the first STEPS_OUT (2)
# steps of a run do not count. With LAUNCHER="mpirun -np 2 --bind-to none" the two ranks are two processes, and what needs
# their common memory is left out. Two processors are used. Quiet machines only; OPENBLAS_* variables are removed.
set -eu
cd "$(dirname "$0")/../.."
folder=${1:-build/ranks} runs=${RUNS:-3} out=${STEPS_OUT:-2} launcher=${LAUNCHER:-}
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE OFFLOAD_PROFILE
mkdir -p "$folder/nvme"
folder=$(cd "$folder" && pwd)
export XDG_CACHE_HOME="$folder/cache" XDG_CONFIG_HOME="$folder/config"

# The demo's model with other sizes: hidden width layers heads.
sized() {
    sed -e "s/\"hidden_size\": [0-9]*/\"hidden_size\": $1/" -e "s/\"intermediate_size\": [0-9]*/\"intermediate_size\": $2/" \
        -e "s/\"num_hidden_layers\": [0-9]*/\"num_hidden_layers\": $3/" \
        -e "s/\"num_\(attention\|key_value\)_heads\": [0-9]*/\"num_\1_heads\": $4/" tools/demo/model.json
}
sized 512 1408 8 8 > "$folder/deep.json"
sized 1024 2816 3 16 > "$folder/wide.json"
cat Makefile docs/*.md README.md CHANGELOG.md > "$folder/text.txt"

# Prints predicted and median measured seconds of one run, started by `start`.
run() {
    rm -rf "$folder/run" "$folder"/nvme/*
    $start build/offload train --data "$folder/text.txt" --output "$folder/run" --from-scratch --eval-steps 0 --sum-groups 2 \
        --gradient-accumulation-steps 4 --chunk-elems 65536 --compute-threads 2 --optimizer-threads 2 --max-steps 10 \
        "$@" > "$folder/out.txt" 2> "$folder/err.txt" || { cat "$folder/err.txt" >&2; exit 1; }
    grep '"type":"step"' "$folder/run/metrics.jsonl" | tail -n +$((out + 1)) |
        sed 's/.*"seconds":\([0-9.e+-]*\).*"predicted_seconds":\([0-9.e+-]*\).*/\1 \2/' | sort -g |
        awk '{ m[NR] = $1; p[NR] = $2 } END { print p[1], (m[int((NR + 1) / 2)] + m[int(NR / 2) + 1]) / 2 }'
}

median() {
    sort -g | awk '{ r[NR] = $1 } END { printf "%.3f", (r[int((NR + 1) / 2)] + r[int(NR / 2) + 1]) / 2 }'
}

# name, sharding, further words
pair() {
    name=$1 sharding=$2
    shift 2
    [ -z "$launcher" ] || [ "$sharding" != shared ] || return 0
    start=
    one=$(run --ranks 1 "$@")
    start=$launcher
    two=$(run --ranks 2 --sharding "$sharding" "$@")
    echo "$name $one $two" | awk '{ printf "%-24s one rank %.3f s (predicted %.3f), two ranks %.3f s (predicted %.3f), " \
        "ratios %.3f %.3f\n", $1, $3, $2, $5, $4, $5 / $3, $4 / $5 }' | tee -a "$folder/results.txt"
}

all() {
    for sharding in full_shard shard_grad_op zero2 no_shard; do
        pair "deep-$sharding" "$sharding" --model "$folder/deep.json" --host-mem 2GiB --max-seq-length 128 \
            --per-device-train-batch-size 4
    done
    pair wide-full_shard full_shard --model "$folder/wide.json" --host-mem 3GiB --max-seq-length 256 \
        --per-device-train-batch-size 2
    pair wide-zero2 zero2 --model "$folder/wide.json" --host-mem 3GiB --max-seq-length 256 \
        --per-device-train-batch-size 2
    pair two-memories-shared shared --model "$folder/deep.json" --device-mem 400MiB --host-mem 2GiB \
        --max-seq-length 128 --per-device-train-batch-size 4
    pair drive-full_shard full_shard --model "$folder/deep.json" --host-mem 800MiB --nvme "$folder/nvme:2GiB" \
        --state-tier nvme --max-seq-length 128 --per-device-train-batch-size 4
}

: > "$folder/results.txt"
for i in $(seq "$runs"); do
    all
done
for name in $(awk '{ print $1 }' "$folder/results.txt" | sort -u); do
    awk -v n="$name" '$1 == n { print $(NF - 1) }' "$folder/results.txt" | median > "$folder/ranks.txt"
    awk -v n="$name" '$1 == n { print $NF }' "$folder/results.txt" | median > "$folder/predicted.txt"
    echo "$name: median of $runs: two ranks take $(cat "$folder/ranks.txt") of one rank's step," \
        "predicted is $(cat "$folder/predicted.txt") of measured"
done
echo "all: two ranks take $(awk '{ print $(NF - 1) }' "$folder/results.txt" | median) of one rank's step," \
    "predicted is $(awk '{ print $NF }' "$folder/results.txt" | median) of measured"
