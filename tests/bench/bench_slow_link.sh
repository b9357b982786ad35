#!/bin/sh
# What processes exchange on a slow link: step times of two processes with whole sums, sums in fewer bits and PowerSGD,
# as ratios, interleaved; and with -c curves of the same ways on a text.
#
#     sh tests/bench/bench_slow_link.sh [-o OFFLOAD] [-m MODEL] [-r RATE] [-n ROUNDS] [-c STEPS] TEXT
#
# The link is that of a network namespace of its own, whose loopback takes RATE (of tc, such as 1gbit) for both
# directions together. Needs root, ip, tc, unshare and mpirun; python3 for the sums.
set -eu
offload=build/offload model='' rate=1gbit rounds=3 curve=0
while getopts o:m:r:n:c: option; do
    case $option in
    o) offload=$OPTARG ;; m) model=$OPTARG ;; r) rate=$OPTARG ;; n) rounds=$OPTARG ;; c) curve=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
text=$1
offload=$(realpath "$offload")
work=$(mktemp -d "${TMPDIR:-/tmp}/slow-link-XXXXXX")
trap 'rm -rf "$work"' EXIT
[ -n "$model" ] || { "$offload" init --like llama --params 8M --vocab-size 256 --output "$work/model" >/dev/null && model=$work/model; }

# way STEPS OUTPUT words...
way() {
    steps=$1 output=$2
    shift 2
    rm -rf "$output"
    unshare -n sh -c 'ip link set lo mtu 1500 up; [ "$0" = none ] || tc qdisc add dev lo root tbf rate "$0" burst 256kb latency 1s
        exec "$@"' "$shaped" mpirun -q --oversubscribe --bind-to none --allow-run-as-root --mca btl tcp,self --mca pml ob1 \
        --mca btl_tcp_if_include lo -np 2 "$offload" train --model "$model" --data "$text" --output "$output" \
        --from-scratch --batch-size 1 --global-batch-size "$batch" --max-seq-length 128 --dtype fp32 --compute-threads 1 \
        --learning-rate 1e-3 --sharding no_shard --save-steps 0 --eval-steps 0 --seed 7 --max-steps "$steps" "$@" >"$output.log" 2>&1 ||
        { tail -5 "$output.log" >&2; exit 1; }
}

each() { # function that gets a name and words
    "$1" exact
    "$1" bf16 --exchange-dtype bf16
    "$1" q8 --exchange-dtype q8
    "$1" powersgd-1 --powersgd-rank 1 --powersgd-start-step "$start"
    "$1" powersgd-4 --powersgd-rank 4 --powersgd-start-step "$start"
}

timed() { name=$1; shift; way 6 "$work/$name-$round" "$@"; }
learned() { name=$1; shift; way "$curve" "$work/curve-$name" "$@"; }

batch=2 start=0 round=1
while [ "$round" -le "$rounds" ]; do
    shaped=$rate
    each timed
    round=$((round + 1))
done
if [ "$curve" -gt 0 ]; then
    shaped=none batch=8 start=$((curve / 10))
    each learned
fi
python3 - "$work" "$rounds" "$curve" "$rate" <<'END'
import json, statistics, sys
work, rounds, curve, rate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
WAYS = ["exact", "bf16", "q8", "powersgd-1", "powersgd-4"]

def steps(path):
    return [j for j in map(json.loads, open(path + "/metrics.jsonl")) if j["type"] == "step"]

print(f"two processes, {rate}: seconds of a step (median of {rounds} rounds of 5), and how many times exact takes")
base = None
for way in WAYS:
    runs = [steps(f"{work}/{way}-{i}")[1:] for i in range(1, rounds + 1)]
    times = [j["seconds"] for run in runs for j in run]
    sent = runs[0][-1].get("bytes", {})
    median = statistics.median(times)
    base = base or median
    print(f"  {way:12} {median:8.3f} s  {base / median:6.2f}  {min(times):.3f} to {max(times):.3f}")
if curve:
    at = [curve // 10, curve // 4, curve // 2, curve]
    print("loss at steps, mean of the 10 before: " + ", ".join(map(str, at)))
    for way in WAYS:
        losses = [j["loss"] for j in steps(f"{work}/curve-{way}")]
        print(f"  {way:12} " + "  ".join(f"{statistics.mean(losses[max(0, i - 10):i]):.4f}" for i in at))
END
