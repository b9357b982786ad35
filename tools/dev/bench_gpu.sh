#!/bin/sh
# Measures a GPU and the engine on it, each figure with its limit from the same machine and folder.
#
#   tools/dev/bench_gpu.sh [--emulated] [--out FOLDER] [--nvme FOLDER] [--steps N] [--cases "CASE..."] [PART...]
#
#     machine   offload bench all: link, memory, GEMMs and optimizer of this machine; its profile
#     ops       offload bench ops: each operation against its floor, linear layers against the best of cuBLASLt
#     hbm       whole steps of 0.5, 1.4 and 6.7 billion parameters, entirely in GPU memory
#     offload   6.7 and 4.0 billion, 24 GiB of the GPU, fp32 state in host memory, 32k tokens per step; before these
#               Llama 3.1 8B with sequences of 1,024, 8k and 32k tokens per step
#     nvme      1.4 billion, weights and state on the drive of --nvme
#     largest   the most layers of an 8192-wide model that trains with 24 GiB, 100 GiB and 50 GiB of drive
#     peers     PyTorch at the same shapes: in GPU memory, and FSDP2 and ZeRO-3 with offload to the host
#
# Without PART it runs all but the last two, in this order; --cases picks some of their cases (hbm-14b, offload-8b-32k:
# as records name them), of which peers takes those that it has. Each part fits in ten minutes and uses what earlier parts
# left in FOLDER (build/bench-gpu). Records are lines of JSON in FOLDER/records.jsonl; a table of the GPU's records comes
# last. A step's time is the median of the steps after the second. Models have fresh weights, whose gradients are far
# above the usual limit: it is set so high that updates go ahead, as in a run that has settled. Each run is killed after
# its last step, because its final save is not needed; there must be room for one of the weights. Idle is the part of a
# step in which the compute lane runs nothing on the GPU, by events on its stream, as in a trace. --emulated uses toy
# sizes and the plugin of tests/simt: its figures are meaningless and only show that the script runs.
set -u
. "$(dirname "$0")/script.sh"

build=${OX_BUILD:-build}
emulated=0 out=$build/bench-gpu nvme= steps=6 cases= parts=
while [ $# -gt 0 ]; do
    case $1 in
    --emulated) emulated=1 ;;
    --out) out=${2:?}; shift ;;
    --nvme) nvme=${2:?}; shift ;;
    --steps) steps=${2:?}; shift ;;
    --cases) cases=${2:?}; shift ;;
    machine | ops | hbm | offload | nvme | largest | peers) parts="$parts $1" ;;
    *) usage ;;
    esac
    shift
done
[ -n "$parts" ] || parts='machine ops hbm offload nvme'
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
[ -n "$nvme" ] || nvme=$out
program=$build/offload size= dtype=bf16 seq=4096 limit=240
[ "$emulated" -eq 0 ] || {
    program=$build/emulated/offload size='--size 6MiB --rounds 1' dtype=fp32 seq=16 limit=60 steps=3
}
records=$out/records.jsonl
pid=
finish() {
    [ -z "$pid" ] || kill -9 "$pid" 2>/dev/null
    rm -rf "$nvme/offload-bench-gpu"
}
trap finish EXIT
trap 'exit 130' INT TERM

note() {
    echo "bench-gpu: $*" >&2
}

# ---- records -----------------------------------------------------------------------------------------------

# Writes a record, replacing an older one of the same name. Limit 0: no limit.
record() { # name, value, unit, limit
    touch "$records"
    grep -v "^{\"name\": \"$1\"," "$records" >"$records.new"
    awk -v name="$1" -v value="$2" -v unit="$3" -v limit="${4:-0}" 'BEGIN {
        printf "{\"name\": \"%s\", \"value\": %.7g, \"unit\": \"%s\", ", name, value, unit
        if (limit > 0) printf "\"limit\": %.7g, \"ratio\": %.7g}\n", limit, value / limit
        else printf "\"limit\": null, \"ratio\": null}\n" }' >>"$records.new"
    mv "$records.new" "$records"
}
value_of() { # name; prints nothing without such a record
    sed -n "s/^{\"name\": \"$1\", \"value\": \([^,]*\),.*/\1/p" "$records" 2>/dev/null | tail -n 1
}
share() { # name, dividend, divisor, limit; records nothing unless both numbers exist
    [ -z "$2" ] || [ -z "$3" ] || record "$1" "$(awk -v a="$2" -v b="$3" 'BEGIN { print a / b }')" 1 "${4:-0}"
}

# Adds the records of a command's JSON output.
take_json() {
    tr -d '\n' <"$1" | sed 's/ *{ *"name"/\n{"name"/g; s/" *: */": /g; s/, *"/, "/g; s/ *}/}/g' |
        sed -n 's/^\({"name".*}\).*/\1/p' >"$out/taken"
    while read -r line; do
        name=$(printf '%s' "$line" | sed 's/^{"name": "\([^"]*\)".*/\1/')
        grep -v "^{\"name\": \"$name\"," "$records" >"$records.new" 2>/dev/null
        printf '%s\n' "$line" >>"$records.new"
        mv "$records.new" "$records"
    done <"$out/taken"
    [ -s "$out/taken" ]
}

# ---- models ------------------------------------------------------------------------------------------------

model() { # name
    vocab=32000
    case $1 in
    05b) shape='1280 3456 20 20 20' ;;
    14b) shape='2048 5632 24 16 16' ;;
    40b) shape='4096 11008 18 32 32' ;;
    67b) shape='4096 11008 32 32 32' ;;
    8b) shape='4096 14336 32 32 8' vocab=128256 ;;
    wide*) shape="8192 22016 ${1#wide} 64 64" ;;
    esac
    [ "$emulated" -eq 0 ] || vocab=256
    [ "$emulated" -eq 0 ] || case $1 in
    wide*) shape="64 96 ${1#wide} 2 2" ;;
    *) shape='32 48 2 1 1' ;;
    esac
    set -- "$1" $shape
    cat >"$out/$1.json" <<TEXT
{"model_type": "llama", "hidden_size": $2, "intermediate_size": $3, "num_hidden_layers": $4,
 "num_attention_heads": $5, "num_key_value_heads": $6, "vocab_size": $vocab, "max_position_embeddings": $seq,
 "rms_norm_eps": 1e-5, "tie_word_embeddings": false}
TEXT
}

text() {
    [ -s "$out/text.txt" ] || find . -name '*.[ch]' -type f -exec cat {} + >"$out/text.txt"
}

is_wanted() { # case
    case " ${cases:-$1} " in
    *" $1 "*) return 0 ;;
    *) return 1 ;;
    esac
}

# Runs `steps` steps of a case and adds its records. The words give memory and homes.
run_case() { # case, model, batch, micro-batches, then words
    is_wanted "$1" || return 0
    case=$1 batch=$3 micro=$4
    model "$2"
    config=$out/$2.json
    shift 4
    text
    rm -rf "$out/run-$case"
    profile=
    [ ! -f "$out/machine.json" ] || profile="--profile $out/machine.json"
    note "$case: $batch x $seq tokens, $micro micro-batches per step; $*"
    "$program" train --model "$config" --from-scratch --data "$out/text.txt" --data-format bytes \
        --output "$out/run-$case" --device cuda --dtype $dtype --grad-dtype $dtype --max-seq-length "$seq" \
        --per-device-train-batch-size "$batch" --gradient-accumulation-steps "$micro" --max-steps $((steps + 1)) \
        --eval-fraction 0 --eval-steps 0 --save-steps 0 --save-only-model --max-grad-norm 1e6 --trace on $profile "$@" \
        >"$out/run-$case.log" 2>&1 &
    pid=$!
    begin=$(date +%s) metrics=$out/run-$case/metrics.jsonl done=0
    while kill -0 "$pid" 2>/dev/null && [ "$done" -lt "$steps" ] && [ $(($(date +%s) - begin)) -lt "$limit" ]; do
        sleep 0.3
        done=$(grep -c '"type":"step"' "$metrics" 2>/dev/null || true)
        done=${done:-0}
    done
    kill -9 "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
    pid=
    if [ "$done" -lt 3 ]; then
        note "$case: only $done steps within $limit s: $(tail -n 1 "$out/run-$case.log")"
        return 1
    fi
    case_records
}

case_records() {
    floor=$(awk '/^  lower bound / { print $3 * ($4 ~ /^us/ ? 1e-6 : $4 ~ /^ms/ ? 1e-3 : 1); exit }' \
        "$out/run-$case/plan.txt")
    awk '
    function number(key,   text) {
        if (!match($0, "\"" key "\":[-+0-9.e]+")) return 0
        text = substr($0, RSTART, RLENGTH); sub(/.*:/, "", text); return text + 0
    }
    /"type":"step"/ && ++count > 2 {
        seconds = number("seconds"); busy = number("compute")
        print seconds, number("predicted_seconds"), 1 - busy / seconds, number("tokens")
    }' "$metrics" | sort -n >"$out/steps"
    middle=$((($(wc -l <"$out/steps") + 1) / 2))
    set -- $(sed -n "${middle}p" "$out/steps")
    tokens=$(awk -v t="$4" -v s="$1" 'BEGIN { print t / s }')
    record "step.$case.seconds" "$1" s
    record "step.$case.tokens" "$tokens" tokens/s "$(awk -v t="$4" -v s="${floor:-0}" 'BEGIN { print (s > 0 ? t / s : 0) }')"
    case $case in
    offload*) of_floor=0.90 busy=0.95 ;;
    *) of_floor=0 busy=0 ;;
    esac
    share "step.$case.of_floor" "$floor" "$1" $of_floor
    share "step.$case.of_prediction" "$2" "$1"
    record "step.$case.gpu_busy" "$(awk -v idle="$3" 'BEGIN { print 1 - idle }')" 1 $busy
    "$program" trace report "$out/run-$case" --format json >"$out/run-$case.trace.json" 2>/dev/null ||
        note "$case: the trace could not be read"
}

# ---- parts -------------------------------------------------------------------------------------------------

part_machine() {
    timeout -k 5 $((2 * limit)) "$program" bench all --device cuda --nvme "$nvme" --output "$out/machine.json" \
        --format json $size >"$out/machine.log" || return 1
    take_json "$out/machine.log"
}

part_ops() {
    timeout -k 5 $((2 * limit)) "$program" bench ops --device cuda --format json $size >"$out/ops.log" || return 1
    take_json "$out/ops.log"
}

part_hbm() {
    failed_here=0
    for each in 05b 14b 67b; do
        run_case "hbm-$each" $each 2 2 --state-tier device --weights-tier device --kept-blocks auto || failed_here=1
        [ "$emulated" -eq 0 ] || break
    done
    return $failed_here
}

part_offload() {
    near=24GiB far=110GiB
    [ "$emulated" -eq 0 ] || near=800MiB far=64MiB
    failed_here=0 long=$seq
    [ "$emulated" -eq 1 ] || seq=1024
    run_case offload-8b-8k 8b 8 1 --device-mem $near --host-mem $far --state-tier host || failed_here=1
    run_case offload-8b-32k 8b 8 4 --device-mem $near --host-mem $far --state-tier host || failed_here=1
    seq=$long
    for each in 67b 40b; do
        run_case "offload-$each" $each 2 4 --device-mem $near --host-mem $far --state-tier host || failed_here=1
        [ "$emulated" -eq 0 ] || break
    done
    return $failed_here
}

part_nvme() {
    near=24GiB far=16GiB room=40GiB
    [ "$emulated" -eq 0 ] || near=800MiB far=64MiB room=64MiB
    mkdir -p "$nvme/offload-bench-gpu"
    run_case nvme-14b 14b 2 4 --device-mem $near --host-mem $far --nvme "$nvme/offload-bench-gpu:$room" \
        --weights-tier nvme --state-tier nvme
    status=$?
    rm -rf "$nvme/offload-bench-gpu"
    return $status
}

# Finds the largest model by bisection over plans, which need no memory, then runs steps of it.
part_largest() {
    near=24GiB far=100GiB room=50GiB fits=1 not=128
    [ "$emulated" -eq 0 ] || near=770MiB far=8MiB room=8MiB
    mkdir -p "$nvme/offload-bench-gpu"
    words="--device-mem $near --host-mem $far --nvme $nvme/offload-bench-gpu:$room --moments q8 --store-generations 1"
    [ "$emulated" -eq 0 ] || words="--device-mem $near --host-mem $far"
    text
    while [ $((not - fits)) -gt 1 ]; do
        middle=$(((fits + not) / 2))
        model "wide$middle"
        if "$program" plan --model "$out/wide$middle.json" --from-scratch --data "$out/text.txt" --data-format bytes \
            --device cuda --dtype $dtype --grad-dtype $dtype --max-seq-length "$seq" --per-device-train-batch-size 1 \
            --gradient-accumulation-steps 1 --max-steps 4 --eval-fraction 0 $words >"$out/plan.log" 2>&1; then
            fits=$middle
        else
            not=$middle
        fi
        rm -f "$out/wide$middle.json"
    done
    keep=$steps
    steps=3
    run_case largest "wide$fits" 1 1 $words
    status=$?
    steps=$keep
    rm -rf "$nvme/offload-bench-gpu"
    [ "$status" -ne 0 ] || record step.largest.parameters "$(awk '/^model: / {
            print $3 * ($4 == "k" ? 1e3 : $4 == "M" ? 1e6 : $4 == "B" ? 1e9 : 1); exit }' \
        "$out/run-largest/plan.txt")" parameters
    return $status
}

peer() { # record, mode, model, batch, micro-batches, more words
    is_wanted "${1%.*}" || return 0
    name=$1 mode=$2 device=cuda
    model "$3"
    [ "$emulated" -eq 0 ] || device=cpu
    line=$(python3 tools/dev/peers/bench_gpu_peers.py --config "$out/$3.json" --mode "$mode" --batch "$4" --micro "$5" \
        --seq "$seq" --steps "$steps" --device $device --limit "$limit" ${6:-} | tail -n 1)
    tokens=$(printf '%s' "$line" | sed -n 's/.*"value": \([^,]*\),.*/\1/p')
    [ -n "$tokens" ] && record "peer.$name" "$tokens" tokens/s
}

part_peers() {
    python3 -c 'import torch' 2>/dev/null || { note 'peers: skipped: python3 has no torch'; return 0; }
    for each in 05b 14b 67b; do
        peer "hbm-$each.torch" hbm $each 2 2
        share "step.hbm-$each.of_torch" "$(value_of "step.hbm-$each.tokens")" "$(value_of "peer.hbm-$each.torch")" 0.95
        [ "$emulated" -eq 0 ] || break
    done
    each=40b # FSDP2 keeps 16 bytes per parameter in pinned memory, and ZeRO-3 more
    [ "$emulated" -eq 1 ] || [ "$(awk '/^MemTotal/ { print int($2 / 1048576) }' /proc/meminfo)" -lt 160 ] || each=67b
    peer "offload-$each.fsdp2" fsdp2 $each 2 4 --recompute
    peer "offload-$each.zero3" deepspeed $each 2 4 --recompute
    for rival in fsdp2 zero3; do
        share "step.offload-$each.by_$rival" "$(value_of "step.offload-$each.tokens")" \
            "$(value_of "peer.offload-$each.$rival")" 1.3
    done
}

# ---- the report ----------------------------------------------------------------------------------------------

# What figures depend on: the sources, the libraries and the GPU.
origin() {
    commit=$(cat commit 2>/dev/null || git rev-parse HEAD 2>/dev/null || echo unknown) # an unpacked bundle has the file
    printf -- '- %s, commit %.12s\n' "$(date -u +%Y-%m-%d)" "$commit"
    "$program" doctor 2>/dev/null |
        sed -n 's/^  \(NVIDIA driver\|CUDA runtime\|cuBLASLt\|device\|attention\)  *\(.*\)/- \1: \2/p'
}

report() {
    echo
    origin
    echo
    grep -E '^{"name": "(step|peer|ops|gemm.gpu|attention.gpu|copy.gpu|copy.(h2d|d2h|duplex)|adam.gpu)' "$records" \
        >"$out/shown"
    echo '| Figure | Value | Limit | Ratio |'
    echo '|---|---|---|---|'
    awk '
    function of(key,   text) {
        if (!match($0, "\"" key "\": [^,}]*")) return ""
        text = substr($0, RSTART, RLENGTH); sub(/^[^:]*: /, "", text); gsub(/"/, "", text); return text
    }
    function shown(value, unit) {
        if (value == "null") return ""
        if (unit ~ /^(B|FLOP)\/s$/) return sprintf("%.1f G%s", value / 1e9, unit)
        return sprintf("%.4g%s", value, unit == "1" ? "" : " " unit)
    }
    { unit = of("unit"); ratio = of("ratio")
      printf "| `%s` | %s | %s | %s%s |\n", of("name"), shown(of("value"), unit), shown(of("limit"), unit),
             ratio == "null" ? "" : sprintf("%.3f", ratio), unit == "1" && ratio != "null" && ratio < 1 ? " below" : "" }
    ' "$out/shown"
}

failed=0
for part in $parts; do
    begin=$(date +%s)
    "part_$part" || { failed=1; note "$part: failed"; }
    note "$part: $(($(date +%s) - begin)) s"
done
report
exit $failed
