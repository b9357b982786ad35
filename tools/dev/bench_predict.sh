#!/bin/sh
# Compares predicted with measured steps, as a new user sees them: without a profile, each time with a new measurement of
# this machine. Prints one line per run and, for each shape, the median of predicted / measured. The shapes are that of
# `make demo`, a wide model in host memory alone, and a deep one with all of its state on a drive.
#
#   tools/dev/bench_predict.sh [FOLDER]
#
# FOLDER (build/predict) holds the runs; its drive is the one that is measured. RUNS (5) per shape; the first STEPS_OUT
# (3) steps of a run do not count, because they meet memory and blocks that were never written. `--strict` as STRICT=1:
# exit status 1 when a median is off by more than 15 %. Quiet machines only; OPENBLAS_* variables are removed.
set -eu
cd "$(dirname "$0")/../.."
folder=${1:-build/predict} runs=${RUNS:-5} out=${STEPS_OUT:-3}
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
sized 2048 5632 2 16 > "$folder/wide.json"
sized 512 1408 10 8 > "$folder/deep.json"
cat Makefile docs/*.md README.md CHANGELOG.md > "$folder/text.txt"

# Prints predicted and median measured seconds of one run.
run() {
    name=$1
    shift
    rm -rf "$folder/cache" "$folder/run" "$folder"/nvme/*
    build/offload train --data "$folder/text.txt" --output "$folder/run" --from-scratch --eval-steps 0 "$@" \
        > "$folder/out.txt" 2> "$folder/err.txt" || { cat "$folder/err.txt" >&2; exit 1; }
    took=$(sed -n 's/.*measured this machine for \([^(]*\) (\(kept\|not kept\).*/\1, \2/p' "$folder/err.txt")
    grep '"type":"step"' "$folder/run/metrics.jsonl" | tail -n +$((out + 1)) |
        sed 's/.*"seconds":\([0-9.e+-]*\).*"predicted_seconds":\([0-9.e+-]*\).*/\1 \2/' | sort -g |
        awk -v name="$name" -v took="$took" '{ m[NR] = $1; p[NR] = $2 }
            END { s = (m[int((NR + 1) / 2)] + m[int(NR / 2) + 1]) / 2
                  printf "%-6s predicted %.3f s, measured %.3f s, ratio %.3f (%s)\n", name, p[1], s, p[1] / s, took }' |
        tee -a "$folder/results.txt"
}

: > "$folder/results.txt"
for i in $(seq "$runs"); do
    run demo --model tools/demo/model.json --device-mem 80MiB --host-mem 64MiB --nvme "$folder/nvme:320MiB" \
        --max-seq-length 128 --per-device-train-batch-size 4 --gradient-accumulation-steps 2 --max-steps 30
    run wide --model "$folder/wide.json" --host-mem 3GiB --max-seq-length 256 --per-device-train-batch-size 2 \
        --gradient-accumulation-steps 2 --max-steps 8
    run deep --model "$folder/deep.json" --host-mem 400MiB --nvme "$folder/nvme:3GiB" --weights-tier nvme \
        --state-tier nvme --grads-tier nvme --max-seq-length 128 --per-device-train-batch-size 2 \
        --gradient-accumulation-steps 2 --max-steps 12
done
bad=0
for name in demo wide deep; do
    median=$(sed -n "s/^$name .*ratio \([0-9.]*\).*/\1/p" "$folder/results.txt" | sort -g |
        awk '{ r[NR] = $1 } END { print (r[int((NR + 1) / 2)] + r[int(NR / 2) + 1]) / 2 }')
    echo "$name: median of $runs: predicted is $median of measured"
    awk -v r="$median" 'BEGIN { exit !(r < 0.85 || r > 1.15) }' && bad=1
done
[ "${STRICT:-0}" = 0 ] || exit "$bad"
