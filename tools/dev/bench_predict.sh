#!/bin/sh
# Compares predicted with measured steps, as a new user sees them: without a profile, each time with a new measurement of
# this machine. Runs 32 configurations and prints for each the median of predicted / measured over its runs, then the
# median and the worst distance from 1.
#
#   tools/dev/bench_predict.sh [FOLDER [FIRST LAST]]
#
# With `MESHES=1` it runs 18 others: two ranks on the CPU, what they divide and the orders of a pipeline's stages.
#
# FOLDER (build/predict) holds the runs; its drive is the one that is measured. Results of one run per configuration are
# added to FOLDER/results.txt, and all in that file count; FIRST and LAST pick configurations by number, so that short
# quiet windows suffice. The first STEPS_OUT (3) steps of a run do not count, because they meet memory and blocks that were
# never written. No step is clipped: the norms of fresh weights would clip all, and a step whose updates in backward are
# taken back is longer than predicted, which the run says. `STRICT=1`: exit status 1 when the median is above 3 % or the
# worst above 10 %. Quiet machines only; OPENBLAS_* variables are removed.
set -eu
cd "$(dirname "$0")/../.."
folder=${1:-build/predict} first=${2:-1} last=${3:-32} out=${STEPS_OUT:-3} meshes=${MESHES:-0}
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
sized 640 1728 2 10 > "$folder/demo.json"   # 10 M parameters
sized 512 1408 10 8 > "$folder/deep.json"   # 32 M
sized 768 2048 8 12 > "$folder/middle.json" # 57 M
sized 2048 5632 2 16 > "$folder/wide.json"  # 103 M
sized 384 1056 6 6 | sed 's/\("tie_word_embeddings": \)true/\1false/' > "$folder/mesh.json" # a head of its own
rm -rf "$folder/mixture"
build/offload init --params 16M --like qwen3_moe --vocab-size 256 --output "$folder/mixture" > "$folder/out.txt"
cp "$folder/mixture/config.json" "$folder/mixture.json"
cat Makefile docs/*.md README.md CHANGELOG.md > "$folder/text.txt"

# Configurations: model, sequences, tokens, micro-batches, steps that count, host memory, then other flags. DRIVE stands for
# a folder on the drive, and OUT for weights, state and gradients there.
cases() {
    cat <<END
demo 4 128 2 12 2GiB
demo 4 128 2 12 2GiB --dtype bf16
demo 1 512 2 12 2GiB --kept-blocks 0
demo 2 128 8 6 2GiB --tiles 2
deep 2 128 2 6 2GiB
deep 4 256 1 6 2GiB --dtype bf16
deep 1 512 1 6 2GiB --kept-blocks 0
deep 1 512 2 6 2GiB --optimizer-overlap held
middle 1 512 1 5 3GiB
middle 2 256 2 4 3GiB --dtype bf16
middle 2 256 2 4 3GiB --dtype bf16 --kept-blocks 0
middle 1 256 2 5 3GiB --optimizer-overlap off
wide 2 256 2 4 3GiB
wide 2 256 2 4 3GiB --dtype bf16
demo 4 128 2 12 2GiB --ranks 2
deep 2 256 2 5 2GiB --ranks 2 --dtype bf16
middle 1 256 2 4 3GiB --ranks 2
deep 2 128 2 5 500MiB DRIVE OUT --ranks 2
deep 2 128 2 8 400MiB DRIVE OUT
deep 2 128 2 8 400MiB DRIVE OUT --optimizer-overlap off
deep 2 128 2 8 400MiB DRIVE OUT --optimizer-overlap held
deep 4 128 2 6 500MiB DRIVE OUT --dtype bf16
deep 1 64 1 10 400MiB DRIVE OUT
middle 1 256 2 5 600MiB DRIVE OUT
middle 1 64 1 6 600MiB DRIVE OUT --dtype bf16
wide 1 256 2 4 3GiB DRIVE --state-tier nvme
demo 4 128 2 24 64MiB DRIVE --device-mem 80MiB
demo 4 128 2 24 64MiB DRIVE --device-mem 80MiB --persist-steps 1
middle 4 64 1 12 300MiB DRIVE --device-mem 160MiB
middle 4 64 1 6 300MiB DRIVE --device-mem 160MiB --persist-steps 1
middle 4 128 2 8 300MiB DRIVE --device-mem 200MiB --dtype bf16
middle 4 64 1 12 420MiB DRIVE --device-mem 160MiB --store-generations 3
END
}

# The same of meshes.
mesh_cases() {
    cat <<END
mesh 2 128 4 8 2GiB --ranks 2 --sharding full_shard
mesh 2 128 4 8 2GiB --ranks 2 --sharding shard_grad_op
mesh 2 128 4 8 2GiB --ranks 2 --sharding zero2
mesh 2 128 4 8 2GiB --ranks 2 --sharding no_shard
mesh 2 128 4 8 2GiB --ranks 2 --mesh pp=2
mesh 2 128 4 8 2GiB --ranks 2 --mesh pp=2 --pipeline-schedule gpipe
mesh 2 128 4 8 2GiB --ranks 2 --mesh pp=2 --pipeline-schedule 1f1b
mesh 2 128 4 8 2GiB --ranks 2 --mesh pp=2 --pipeline-schedule interleaved --virtual-pipeline-size 2
mesh 2 128 8 6 2GiB --ranks 2 --mesh pp=2 --tiles 2
mesh 2 128 4 8 2GiB --ranks 2 --mesh pp=2 --dtype bf16
mesh 2 128 4 6 400MiB DRIVE OUT --ranks 2 --sharding full_shard
mesh 2 128 4 6 400MiB DRIVE OUT --ranks 2 --mesh pp=2
mesh 2 128 4 8 2GiB --ranks 2 --mesh tp=2
mesh 1 512 2 8 2GiB --ranks 2 --mesh cp=2 --context-parallel-mode gather
mesh 1 512 2 8 2GiB --ranks 2 --mesh cp=2 --context-parallel-mode ulysses
mesh 1 512 2 8 2GiB --ranks 2 --mesh cp=2 --context-parallel-mode ring
mixture 2 128 4 8 2GiB --ranks 2 --mesh dp=2
mixture 2 128 4 8 2GiB --ranks 2 --mesh ep=2
END
}

# Prints predicted and median measured seconds of one run.
run() {
    number=$1 model=$2 batch=$3 seq=$4 micro=$5 steps=$6 memory=$7 words=
    shift 7
    for word; do
        case $word in
        DRIVE) words="$words --nvme $folder/nvme:3GiB" ;;
        OUT) words="$words --weights-tier nvme --state-tier nvme --grads-tier nvme" ;;
        *) words="$words $word" ;;
        esac
    done
    rm -rf "$folder/cache" "$folder/run" "$folder"/nvme/*
    # shellcheck disable=SC2086
    build/offload train --model "$folder/$model.json" --data "$folder/text.txt" --output "$folder/run" --from-scratch \
        --max-grad-norm 1e9 --eval-steps 0 --eval-windows 1 --save-steps 0 --max-steps $((steps + out)) --host-mem "$memory" \
        --max-seq-length "$seq" --per-device-train-batch-size "$batch" --gradient-accumulation-steps "$micro" $words \
        > "$folder/out.txt" 2> "$folder/err.txt" || { cat "$folder/err.txt" >&2; exit 1; }
    took=$(sed -n 's/.*measured this machine for \([^(]*\) (\(kept\|not kept\).*/\1, \2/p' "$folder/err.txt")
    grep '"type":"step"' "$folder/run/metrics.jsonl" | tail -n +$((out + 1)) |
        sed 's/.*"seconds":\([0-9.e+-]*\).*"predicted_seconds":\([0-9.e+-]*\).*/\1 \2/' | sort -g |
        awk -v name="$number: $model $batch x $seq x $micro, $memory${*:+ $*}" -v took="$took" '{ m[NR] = $1; p[NR] = $2 }
            END { s = (m[int((NR + 1) / 2)] + m[int(NR / 2) + 1]) / 2
                  printf "%s: predicted %.3f s, measured %.3f s, ratio %.3f (%s)\n", name, p[1], s, p[1] / s, took }' |
        tee -a "$folder/results.txt"
}

number=0
if [ "$meshes" != 0 ]; then mesh_cases; else cases; fi | while read -r line; do
    number=$((number + 1))
    [ "$number" -ge "$first" ] && [ "$number" -le "$last" ] || continue
    # shellcheck disable=SC2086
    run "$number" $line < /dev/null
done
sed -n 's/^\([0-9]*\): .*ratio \([0-9.]*\).*/\1 \2/p' "$folder/results.txt" | sort -k1,1n -k2,2g |
    awk 'function close_case() { if (n) print (r[int((n + 1) / 2)] + r[int(n / 2) + 1]) / 2 }
        $1 != at { close_case(); at = $1; n = 0 } { r[++n] = $2 } END { close_case() }' |
    awk '{ print $1 < 1 ? 1 - $1 : $1 - 1 }' | sort -g |
    awk -v strict="${STRICT:-0}" '{ e[NR] = $1 }
        END { middle = (e[int((NR + 1) / 2)] + e[int(NR / 2) + 1]) / 2
              printf "%d configurations: median error %.1f %%, worst %.1f %%\n", NR, 100 * middle, 100 * e[NR]
              exit strict != 0 && (middle > 0.03 || e[NR] > 0.10) }'
