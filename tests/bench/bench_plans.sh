#!/bin/sh
# Compares what two builds of the program plan: for drawn requests the predicted seconds of a step on average, and the
# processor seconds of the whole command, with its advice.
#
#   tests/bench/bench_plans.sh PROGRAM BEFORE [COUNT [SEED]]
#
# Draws COUNT (40) requests by SEED (1): a shape by name, a machine of docs/profiles, its memory, a drive or none, ranks and
# micro-batches. Prints for each the step as PROGRAM plans it by that of BEFORE, the most that a line of advice differs, and
# the processor seconds of both; then the worst, the mean and the sums. A request that fits in one alone counts as the worst.
set -eu
program=$1 before=$2 count=${3:-40} seed=${4:-1}
cd "$(dirname "$0")/../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# One request a line: options of `offload plan`.
draw() {
    awk -v count="$count" -v seed="$seed" -v drives="$scratch" '
        function pick(list, names) { return names[1 + int(rand() * split(list, names, " "))] }
        BEGIN {
            srand(seed)
            for (i = 0; i < count; i++) {
                split(pick("rtx4090-1-drive:24:128:1 rtx4090-4-drives:24:256:1 a100-4-drives:80:512:1 h200-4-drives:141:1024:4 " \
                           "rtx4090-x4-4-drives:24:512:4 h100-x8-4-drives:80:1024:8 rtx5090-1-drive:32:96:1"), machine, ":")
                ranks = rand() < 0.6 ? 1 : 2 ^ int(rand() * (1 + log(machine[4]) / log(2)) + 1e-9)
                device = int(machine[2] * (0.5 + 0.4 * rand()))
                host = int(machine[3] * (0.2 + 0.5 * rand()))
                micro = ranks * 2 ^ int(rand() * 5)
                printf "--model %s --profile docs/profiles/%s.json --device cuda --dtype bf16 --device-mem %dGiB --host-mem %dGiB --ranks %d " \
                       "--max-seq-length %d --gradient-accumulation-steps %d%s\n",
                       pick("llama-3.1-8b qwen2.5-7b qwen2.5-14b qwen2.5-32b llama-3.2-3b llama-3.2-1b llama-70b"),
                       machine[1], device, host, ranks, pick("1024 2048 4096"), micro,
                       rand() < 0.8 ? " --nvme " drives ":2TiB" : ""
            }
        }'
}

# The step, each line of advice, and the processor seconds.
plan() { # program options...
    one=$1
    shift
    { /usr/bin/time -f '%U' -o "$scratch/time" "$one" plan --format json "$@" >"$scratch/json" 2>/dev/null; } || :
    tr -d '\n' <"$scratch/json" | awk -v seconds="$(tail -n 1 "$scratch/time")" '
        function of(name) {
            return match($0, "\"" name "\": *[0-9.e+-]+") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0 : 0
        }
        {
            step = of("predicted_mean_seconds")
            rest = substr($0, index($0, "\"with_more\""))
            n = split(rest, parts, "\"speedup\": *")
            for (i = 2; i <= n; i++)
                advice = advice " " step / (parts[i] + 0) # the time a step, for as many tokens
        }
        END { print seconds + 0, step + 0 advice }'
}

draw >"$scratch/requests"
while read -r request; do
    # shellcheck disable=SC2086
    a=$(plan "$program" $request) b=$(plan "$before" $request)
    printf '%s|%s|%s\n' "$a" "$b" "$request"
done <"$scratch/requests" | awk -F'|' '
    {
        n = split($1, a, " ")
        split($2, b, " ")
        sum_a += a[1]
        sum_b += b[1]
        ratio = a[2] > 0 && b[2] > 0 ? a[2] / b[2] : a[2] == b[2] ? 0 : 9
        advice = 1
        for (i = 3; i <= n; i++)
            advice = b[i] > 0 && a[i] / b[i] > advice ? a[i] / b[i] : advice
        fit += ratio > 0
        sum += ratio
        worst = ratio > worst ? ratio : worst
        worst_advice = ratio > 0 && advice > worst_advice ? advice : worst_advice
        sub(/--nvme [^ ]*/, "--nvme", $3)
        printf "%7.4f advice %7.4f  %6.2f s %6.2f s  %s\n", ratio, advice, a[1], b[1], $3
        fflush()
    }
    END {
        printf "%d of %d fit; step by that of before: mean %.4f, worst %.4f; advice worst %.4f; processor %.1f s, before %.1f s\n",
               fit, NR, fit ? sum / fit : 0, worst, worst_advice, sum_a, sum_b
    }'
