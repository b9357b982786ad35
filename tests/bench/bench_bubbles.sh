#!/bin/sh
# Measures how long the ranks of a pipeline idle, from the traces of runs on the CPU, beside the formula of each schedule.
#
#   tests/bench/bench_bubbles.sh [FOLDER [RUNS]]
#
# Two ranks with one thread each train eight equal layers with 8 and with 4 micro-batches; RUNS (3) runs of each. Prints the
# idle time of all ranks over their work in the step of median length, the middle one of the runs, and what the formula has:
# (p - 1) / m with gpipe and 1f1b, (p - 1) / (v m) with interleaved, p (p - 1) / (S m) with vertical. `uneven`: by how much the
# rank that computes longest is above the mean, which is idle time that no schedule takes away. FOLDER (build/bubbles) holds
# the runs. Quiet machines with two cores or more, a few minutes. `STRICT=1`: exit status
# 1 where idle time without what is uneven differs from the formula by more than a tenth of it and one hundredth.
set -eu
cd "$(dirname "$0")/../.."
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
folder=${1:-build/bubbles} runs=${2:-3}
export OFFLOAD_PROFILE=builtin
mkdir -p "$folder"
sed -e 's/"hidden_size": [0-9]*/"hidden_size": 384/' -e 's/"intermediate_size": [0-9]*/"intermediate_size": 1056/' \
    -e 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 8/' \
    -e 's/"num_\(attention\|key_value\)_heads": [0-9]*/"num_\1_heads": 6/' \
    -e 's/\("tie_word_embeddings": \)true/\1false/' tools/demo/model.json > "$folder/model.json"
cat docs/*.md > "$folder/text.txt"

# Prints idle over work and what is uneven, of one run.
run() { # micro-batches, then options
    micro=$1
    shift
    rm -rf "$folder/run"
    build/offload train --model "$folder/model.json" --data "$folder/text.txt" --output "$folder/run" --from-scratch \
        --max-grad-norm 1e9 --eval-steps 0 --eval-windows 1 --save-steps 0 --max-steps 5 --host-mem 2GiB \
        --max-seq-length 128 --per-device-train-batch-size 1 --gradient-accumulation-steps "$micro" --ranks 2 --mesh pp=2 \
        --compute-threads 2 --trace on "$@" > "$folder/out.txt" 2>&1 || { cat "$folder/out.txt" >&2; exit 1; }
    build/offload trace report "$folder/run" --format json | awk '
        /"ranks":/ { inside = 1 }
        inside && /"seconds":/ && !step { gsub(/[^0-9.e+-]/, "", $2); step = $2 + 0 }
        inside && /"compute_seconds":/ { gsub(/[^0-9.e+-]/, "", $2); sum += $2; n++; most = $2 + 0 > most ? $2 + 0 : most }
        /"chain_seconds":/ { inside = 0 }
        END { printf "%.5f %.5f\n", n * step / sum - 1, n * most / sum - 1 }'
}

for micro in 8 4; do
    while read -r formula words; do
        i=0
        while [ "$i" -lt "$runs" ]; do
            # shellcheck disable=SC2086
            run "$micro" $words < /dev/null
            i=$((i + 1))
        done | sort -g | awk -v micro="$micro" -v formula="$formula" -v words="$words" '
            { idle[NR] = $1; uneven[NR] = $2 }
            END { m = int((NR + 1) / 2)
                  printf "%-52s m %d: idle %5.1f %% of the work, formula %5.1f %%, uneven %4.1f %%\n", words, micro, 100 * idle[m],
                         100 * formula / micro, 100 * uneven[m] }'
    done <<END
0.25 --pipeline-schedule vertical
1 --pipeline-schedule gpipe
1 --pipeline-schedule 1f1b
0.5 --pipeline-schedule interleaved --virtual-pipeline-size 2
END
done | tee "$folder/results.txt"
awk -v strict="${STRICT:-0}" '
    { for (i = 1; i <= NF; i++) { if ($i == "idle") idle = $(i + 1); if ($i == "formula") formula = $(i + 1)
                                  if ($i == "uneven") uneven = $(i + 1) }
      off = idle - uneven - formula; off = off < 0 ? -off : off; wrong += off > 0.1 * formula + 1 }
    END { printf "%d of %d differ by more than a tenth and one hundredth\n", wrong, NR; exit strict != 0 && wrong > 0 }' \
    "$folder/results.txt"
