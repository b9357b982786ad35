#!/bin/sh
# Checks on this machine's GPU what the CUDA device promises: builds, runs each check, and prints one table. Exit status
# 1 when a check failed.
#
#   tools/dev/check_gpu.sh [--emulated] [--at-once] [--jobs N] [--keep FOLDER] [--own-attention] [--plant CHECK]
#                          [CHECK...]
#
#     build      the program, the plugin and the tests build
#     device     the program finds the GPU and computes on it
#     conform    every operation agrees with the CPU and with references in double, on the GPU
#     golden     losses and gradients agree with PyTorch's, and bits over placements, on the GPU
#     bits       runs in three budgets save the same weights and state, byte by byte
#     resume     a run resumed in its middle saves the same bytes as an uninterrupted one
#     memory     the process's GPU memory stays within --device-mem
#     learn      over two hundred steps from fresh weights the loss falls, and starts as on the CPU
#     memcheck   compute-sanitizer finds nothing in steps of a tiny model, nor in the conformance of attention
#     racecheck  compute-sanitizer finds no race in shared memory, in the same
#
# --emulated runs the same checks at toy sizes with the plugin of tests/simt, which is how tools/dev/check_gpu_test.sh
# tests this script; checks that need hardware or a sanitizer are skipped. --plant shows one check a fault that it must
# refuse. --own-attention lets no run use cuDNN. --at-once runs conform, golden, bits, resume and learn beside each other,
# in a GPU and cores that one of them leaves idle: a third of the time. --keep names the folder for runs and logs; without
# it they are removed after success.
set -u
. "$(dirname "$0")/script.sh"

emulated=0 at_once=0 jobs=$(nproc) keep= plant= wanted= attention=
while [ $# -gt 0 ]; do
    case $1 in
    --emulated) emulated=1 ;;
    --at-once) at_once=1 ;;
    --jobs) jobs=${2:?}; shift ;;
    --keep) keep=${2:?}; shift ;;
    --plant) plant=${2:?}; shift ;;
    --own-attention) attention=--own-attention ;;
    -*) usage ;;
    *) wanted="$wanted $1" ;;
    esac
    shift
done
all='build device conform golden bits resume memory learn memcheck racecheck'
for check in $wanted $plant; do
    case " $all " in
    *" $check "*) ;;
    *) echo "check-gpu: there is no check $check; the checks are: $all" >&2; exit 2 ;;
    esac
done
[ -n "$wanted" ] || wanted=$all

build=${OX_BUILD:-build}
if [ -n "$keep" ]; then
    mkdir -p "$keep" && work=$(cd "$keep" && pwd) || exit 2
else
    work=$(mktemp -d "${TMPDIR:-/tmp}/offload-check-gpu-XXXXXX") || exit 2
fi
finish() {
    [ -n "$keep" ] || [ "${failed:-1}" -ne 0 ] || rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

# ---- sizes -------------------------------------------------------------------------------------------

# Each step has batch * micro * length tokens.
if [ "$emulated" -eq 1 ]; then
    program=$build/emulated/offload dtypes=fp32 limit=60
    hidden=32 width=48 layers=2 heads=1 length=12 batch=1 micro=2
    short=2 saved=1 steps=6 same_steps=2 peak_steps=16 fall=0.9 rate=1e-2 small=769MiB large=900MiB
    conform=$build/tests/conform/test_ops_flat
else
    program=$build/offload dtypes='fp32 bf16' limit=150
    hidden=512 width=1408 layers=6 heads=8 length=256 batch=4 micro=2
    short=6 saved=3 steps=200 same_steps=5 peak_steps=20 fall=0.8 rate=1e-3 small=1GiB large=3GiB
    conform=$(ls tests/conform/test_ops_*.c tests/conform/test_device.c | sed "s|^\(.*\)\.c$|$build/\1|")
fi
fp32_tolerance=1e-3 bf16_tolerance=5e-2

say() { # sets the result that the table shows for this check
    printf '%s\n' "$*" >"$work/$check.result"
}
planted() {
    [ "$plant" = "$check" ]
}

write_inputs() {
    cat >"$work/config.json" <<TEXT
{"model_type": "llama", "hidden_size": $hidden, "intermediate_size": $width, "num_hidden_layers": $layers,
 "num_attention_heads": $heads, "num_key_value_heads": $heads, "vocab_size": 256, "max_position_embeddings": $length,
 "rms_norm_eps": 1e-5, "tie_word_embeddings": true}
TEXT
    # The same text for ever, because what few steps learn depends on it. The generator is Park and Miller's.
    awk 'BEGIN {
        count = split("a plan of the step is data and each task of it waits for what it needs before it runs so that " \
                      "no byte is late while memory on three tiers holds weights gradients and state", words, " ")
        for (seed = 1; i < 120000; i++) {
            seed = seed * 16807 % 2147483647
            printf "%s%s", words[seed % count + 1], i % 11 == 10 ? ".\n" : " "
        }
    }' >"$work/text.txt"
}

# Trains: the run's name, then more arguments. Prints the last lines of a failed run. Uses the variables seed, rate and
# batch, and `by`, the command that runs the program.
by="timeout -k 5 $limit" seed=1
train() {
    name=$1
    shift
    mkdir -p "$work/$name-drive"
    $by "$program" train --model "$work/config.json" --data "$work/text.txt" --data-format bytes \
        --output "$work/$name" --max-seq-length "$length" --batch-size "$batch" --gradient-accumulation-steps "$micro" \
        --learning-rate "$rate" --lr-scheduler-type constant --warmup-steps 0 --eval-fraction 0 --eval-steps 0 \
        --seed "$seed" --host-mem 1GiB $attention "$@" >"$work/$name.run.log" 2>&1
    status=$?
    [ "$status" -eq 0 ] || { echo "$name: exit status $status"; tail -n 5 "$work/$name.run.log"; }
    return "$status"
}

# Prints "step loss" for each step of a run.
losses() {
    sed -n 's/^{"type":"step","step":\([0-9]*\),.*"loss":\([^,]*\),.*/\1 \2/p' "$work/$1/metrics.jsonl"
}

same_run() { # two runs, the step of their last save
    for file in model.safetensors optimizer.safetensors; do
        cmp "$work/$1/checkpoint-$3/$file" "$work/$2/checkpoint-$3/$file" || return 1
    done
    losses "$1" >"$work/$1.losses" && losses "$2" >"$work/$2.losses"
    [ -s "$work/$1.losses" ] && cmp "$work/$1.losses" "$work/$2.losses"
}

# ---- the checks -----------------------------------------------------------------------------------------

check_build() {
    if [ "$emulated" -eq 1 ]; then
        [ -x "$program" ] || { echo "$program does not exist; build it with \`make tests\`"; return 1; }
        say "not built here: $program"
        return 77
    fi
    "${MAKE:-make}" -j"$jobs" all tests cuda=1 || return 1
    say "with $(sed -n 's/^CUDA_NVCC := *//p' "$build/config.mk")"
}

check_device() {
    device=cuda
    planted && device=cpu
    train device --from-scratch --device $device --dtype fp32 --max-steps 1 --save-steps 0 || return 1
    found=$(sed -n 's/^device: //p' "$work/device/plan.txt" | head -n 1)
    say "$found"
    case $found in
    *'the CPU'* | '') echo "the run was not on a GPU: $found"; return 1 ;;
    esac
}

# Each program prints the GPU it ran on; a conformance check that met only the emulation must not pass here.
run_on_gpu() {
    folder=$work/$check
    mkdir -p "$folder"
    for path in $1; do
        [ -x "$path" ] || { say "$path is not built"; return 1; }
    done
    require=1
    [ "$emulated" -eq 0 ] || require=
    for path in $1; do
        printf '%s\n%s\n' "$path" "$folder/$(basename "$path").log"
    done | env OX_BIN="$program" ${require:+OX_REQUIRE_GPU=1} xargs -d '\n' -n 2 -P "$jobs" sh -c \
        'timeout -k 5 "$0" "$1" >"$2" 2>&1 </dev/null; status=$?; [ $status -eq 77 ] || [ $status -eq 0 ] ||
            { echo "ended by exit status $status" >>"$2"; exit 1; }' "$limit"
    status=$?
    bad=$(grep -l 'ended by exit status' "$folder"/*.log)
    count=$(ls "$folder"/*.log | wc -l)
    seen=$(grep -lE '^ *on [^ ]' "$folder"/*.log | wc -l)
    say "$count programs, $seen of them report running on the GPU"
    # shellcheck disable=SC2086 # names of files, which have no spaces
    [ "$status" -eq 0 ] || { tail -n 5 $bad; echo "$(echo "$bad" | wc -l) of $count failed"; return 1; }
    [ "$emulated" -eq 1 ] || [ "$seen" -gt 0 ] || { echo 'none of them used the GPU'; return 1; }
}

check_conform() {
    planted && conform=/bin/false
    run_on_gpu "$conform"
}

check_golden() {
    program_of_it=$build/tests/golden/test_cuda
    planted && program_of_it=/bin/false
    if [ "$emulated" -eq 1 ] && ! planted; then
        say 'part of make test'
        return 77
    fi
    run_on_gpu "$program_of_it"
}

check_bits() {
    for dtype in $dtypes; do
        common="--from-scratch --device cuda --dtype $dtype --max-steps $short --save-steps 0"
        train "large-$dtype" $common --device-mem "$large" || return 1
        planted && seed=2
        train "small-$dtype" $common --device-mem "$small" --weights-tier host --state-tier host --grads-tier host \
            --activation-tier host --tiles 2 --kept-blocks 0 --prefetch-depth 0 || return 1
        train "drive-$dtype" $common --device-mem "$small" --nvme "$work/drive-$dtype-drive:2GiB" --weights-tier nvme \
            --state-tier nvme --grads-tier nvme --activation-tier nvme --tiles "$micro" || return 1
        same_run "large-$dtype" "small-$dtype" "$short" && same_run "large-$dtype" "drive-$dtype" "$short" || return 1
    done
    say "$dtypes: $short steps in three budgets, $(du -k "$work/large-fp32/checkpoint-$short/model.safetensors" |
        cut -f 1) KiB of weights alike"
}

check_resume() {
    common="--device cuda --dtype fp32 --max-steps $short --save-steps $saved"
    train whole --from-scratch $common || return 1
    planted && seed=3
    train parted --from-scratch $common || return 1
    rm -rf "$work/parted/checkpoint-$short"
    train parted $common --device-mem "$small" --state-tier host \
        --resume-from-checkpoint "$work/parted/checkpoint-$saved" || return 1
    for file in model.safetensors optimizer.safetensors; do
        cmp "$work/whole/checkpoint-$short/$file" "$work/parted/checkpoint-$short/$file" || return 1
    done
    say "from step $saved of $short, in another budget"
}

# Prints the MiB in use on the first GPU; under emulation, where device memory is host memory, those of the process.
used_mib() {
    if [ "$emulated" -eq 1 ]; then
        awk '/^VmRSS/ { print int($2 / 1024) }' "/proc/$1/status" 2>/dev/null || echo 0
    else
        nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i 0
    fi
}

mib() {
    case $1 in
    *GiB) echo $((${1%GiB} * 1024)) ;;
    *) echo "${1%MiB}" ;;
    esac
}

check_memory() {
    [ "$emulated" -eq 1 ] || command -v nvidia-smi >/dev/null || { say 'no nvidia-smi'; return 77; }
    allowed=$(mib "$small") before=0 most=0
    [ "$emulated" -eq 1 ] || before=$(used_mib 0)
    planted && allowed=1
    batch=$((batch * 2)) by=exec # run in the background without timeout, so that $! is the program itself
    train peak --from-scratch --device cuda --dtype fp32 --max-steps "$peak_steps" --save-steps 0 \
        --device-mem "$small" &
    running=$!
    trap 'kill "$running" 2>/dev/null; exit 130' INT TERM
    while kill -0 "$running" 2>/dev/null; do
        now=$(used_mib "$running")
        [ "${now:-0}" -le "$most" ] || most=$now
        sleep 0.05
    done
    wait "$running" || { tail -n 5 "$work/peak.run.log"; return 1; }
    say "$((most - before)) of $allowed MiB at most, $before MiB were in use before"
    [ "$most" -gt "$before" ] || { echo 'no use of memory was seen'; return 1; }
    [ $((most - before)) -le "$allowed" ]
}

check_learn() {
    planted && rate=0
    results=${attention:+own attention, }
    for dtype in $dtypes; do
        [ "$dtype" = fp32 ] && tolerance=$fp32_tolerance || tolerance=$bf16_tolerance
        common="--from-scratch --dtype $dtype --save-steps 0"
        train "learn-$dtype" $common --device cuda --max-steps "$steps" || return 1
        train "cpu-$dtype" $common --device cpu --max-steps "$same_steps" || return 1
        losses "learn-$dtype" >"$work/gpu.losses"
        losses "cpu-$dtype" >"$work/cpu.losses"
        results="$results$(awk -v tolerance="$tolerance" -v fall="$fall" -v dtype="$dtype" -v wanted="$steps" '
            NR == FNR { cpu[$1] = $2; count++; next }
            { steps++; if (steps == 1) first = $2; last = $2 }
            ($1 in cpu) { seen++; d = $2 - cpu[$1]; if (d < 0) d = -d; if (d > worst) worst = d }
            END { printf "%s: %.4f to %.4f in %d steps, from the CPU by %.2g of %g; ", dtype, first, last, steps, worst,
                         tolerance
                  exit !(steps == wanted && seen == count && count > 0 && last < fall * first && worst <= tolerance) }' \
            "$work/cpu.losses" "$work/gpu.losses")"
        status=$?
        say "$results"
        [ "$status" -eq 0 ] || { echo "not learned: $results"; return 1; }
    done
}

# Runs the program under compute-sanitizer, in bfloat16 once more with our own attention, and the conformance of attention.
# Kernels of libraries are left out by parts of their names, which none of ours has; and calls whose failure libraries
# expect do not count.
libraries='cublas cudnn cutlass gemm nvjet xmma'
sanitize() { # tool, more options for it
    planted && { echo 'planted'; return 1; }
    [ "$emulated" -eq 0 ] || { say 'needs a GPU'; return 77; }
    tool=$(command -v compute-sanitizer || ls "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" 2>/dev/null)
    [ -n "$tool" ] || { say 'no compute-sanitizer'; return 77; }
    tiny="$work/tiny-$1" instrument=$1
    shift
    mkdir -p "$tiny"
    leave_out=--kernel-name-exclude
    "$tool" --help | grep -q -- "$leave_out" || leave_out=--kernel-regex-exclude # its name before 2024
    for library in $libraries; do
        set -- "$@" "$leave_out" "kns=$library"
    done
    sed "s/\"hidden_size\": [0-9]*, \"intermediate_size\": [0-9]*, \"num_hidden_layers\": [0-9]*/\"hidden_size\": $hidden, \"intermediate_size\": 256, \"num_hidden_layers\": 1/" \
        "$work/config.json" >"$tiny/config.json"
    for run in $dtypes 'bf16 --own-attention'; do
        # shellcheck disable=SC2086 # a run is a type, and perhaps an option
        timeout -k 5 "$limit" "$tool" --tool "$instrument" "$@" --error-exitcode 9 "$program" train --model "$tiny/config.json" \
            --data "$work/text.txt" --data-format bytes --output "$tiny/$(echo "$run" | tr -d ' ')" --from-scratch \
            --device cuda --dtype $run --max-seq-length 64 --batch-size 1 --gradient-accumulation-steps 2 --max-steps 2 \
            --eval-fraction 0 --eval-steps 0 --save-steps 0 --host-mem 1GiB || return 1
    done
    cases=$build/tests/conform/test_ops_attention
    [ -x "$cases" ] || { say "$cases is not built"; return 1; }
    OX_REQUIRE_GPU=1 timeout -k 5 "$limit" "$tool" --tool "$instrument" "$@" --error-exitcode 9 "$cases" || return 1
    say "$dtypes and own attention: two steps of one block; conformance of attention"
}

check_memcheck() {
    sanitize memcheck --report-api-errors no
}

check_racecheck() {
    sanitize racecheck --racecheck-detect-level error
}

# ---- running them ---------------------------------------------------------------------------------------

failed=0
write_inputs

# Runs a check, and leaves its exit status and tenths of seconds.
run_check() {
    begin=$(date +%s%N)
    ("check_$check") >"$work/$check.log" 2>&1
    echo "$? $((($(date +%s%N) - begin) / 100000000))" >"$work/$check.ended"
}

report() {
    read -r status tenths <"$work/$check.ended"
    case $status in
    0) verdict=pass ;;
    77) verdict=skip ;;
    *) verdict=FAIL failed=$((failed + 1)) ;;
    esac
    result=$(cat "$work/$check.result" 2>/dev/null)
    printf '%-10s %s %4d.%d s  %s\n' "$check" "$verdict" $((tenths / 10)) $((tenths % 10)) "$result"
    [ "$verdict" != FAIL ] || tail -n 15 "$work/$check.log" | sed 's/^/    /'
}

is_wanted() {
    case " $wanted " in
    *" $check "*) return 0 ;;
    *) return 1 ;;
    esac
}

# Of those that run at once none may be one that the others need, or that looks at the memory in use.
together='conform golden bits resume learn'
for check in $together; do
    [ "$at_once" -eq 0 ] || ! is_wanted || run_check &
done
wait
for check in $all; do
    is_wanted || continue
    case "$at_once $together " in
    1*" $check "*) ;;
    *) run_check ;;
    esac
    report
done
[ "$failed" -eq 0 ] || echo "$failed checks failed; logs and runs are in $work"
[ "$failed" -eq 0 ]
