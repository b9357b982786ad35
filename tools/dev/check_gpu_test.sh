#!/bin/sh
# Proves that tools/dev/check_gpu.sh runs on the emulated device and that each of its checks fails where it must, and
# that tools/dev/bench_gpu.sh measures steps there and writes its records.
set -u
cd "$(dirname "$0")/../.." || exit 2
root=$(mktemp -d "${TMPDIR:-/tmp}/offload-check-gpu-test-XXXXXX") || exit 2
trap 'rm -rf "$root"' EXIT
trap 'exit 130' INT TERM
failed=0 built=${OX_BUILD:-}

# Runs check_gpu.sh and expects an exit status, and a text in its output.
expect() { # status, words, then the arguments
    status=$1 words=$2
    shift 2
    rm -rf "$root/kept"
    sh tools/dev/check_gpu.sh --emulated --jobs 1 --keep "$root/kept" "$@" >"$root/out" 2>&1
    found=$?
    if [ "$found" -ne "$status" ] || ! grep -q -- "$words" "$root/out"; then
        echo "check_gpu.sh --emulated $*: exit status $found, expected $status and \"$words\":"
        sed 's/^/    /' "$root/out"
        failed=$((failed + 1))
    fi
}

expect 0 '^learn  *pass .*fp32: '
expect 0 '^learn  *pass .*own attention, fp32: ' --own-attention learn
grep -q '^own_attention: true' "$root/kept/learn-fp32/config.resolved.yaml" || {
    echo 'check_gpu.sh --own-attention: the run does not take it'
    failed=$((failed + 1))
}
expect 1 '^device  *FAIL .*the CPU' --plant device device
expect 1 '^bits  *FAIL' --plant bits bits
expect 1 '^resume  *FAIL' --plant resume resume
expect 1 '^memory  *FAIL .* of 1 MiB at most' --plant memory memory
expect 1 '^learn  *FAIL .*fp32: ' --plant learn learn
expect 1 '^conform  *FAIL' --plant conform conform
expect 1 '^golden  *FAIL' --plant golden golden
OX_BUILD=$root/empty
export OX_BUILD
expect 1 '^conform  *FAIL .*/test_ops_flat is not built' conform
[ -n "$built" ] && OX_BUILD=$built || unset OX_BUILD
expect 1 '^racecheck  *FAIL' --plant racecheck racecheck
expect 1 'bits  *FAIL' --plant bits device bits
expect 1 'resume  *pass' --at-once --plant bits bits resume
expect 2 'there is no check speed' speed
expect 2 'tools/dev/check_gpu.sh \[--emulated\]' --unknown
mkdir "$root/bench"
echo '{"name": "attention.gpu.forward.bf16", "value": 4e+14, "unit": "FLOP/s", "limit": null, "ratio": null}' \
    >"$root/bench/records.jsonl"
sh tools/dev/bench_gpu.sh --emulated --out "$root/bench" hbm >"$root/out" 2>&1
for name in seconds tokens of_floor of_prediction gpu_busy; do
    grep -q "^{\"name\": \"step.hbm-05b.$name\", \"value\": [0-9.e+-]*, \"unit\": \".*\", \"limit\": .*}\$" \
        "$root/bench/records.jsonl" && grep -q "^| .step.hbm-05b.$name. | " "$root/out" || {
        echo "bench_gpu.sh --emulated hbm: no record step.hbm-05b.$name"
        sed 's/^/    /' "$root/out"
        failed=$((failed + 1))
    }
done
grep -q '^{"name": "step.hbm-05b.tokens", .*"limit": [0-9]' "$root/bench/records.jsonl" || {
    echo 'bench_gpu.sh --emulated hbm: step.hbm-05b.tokens has no limit'
    failed=$((failed + 1))
}
for line in ', commit ' 'NVIDIA driver: for CUDA [0-9]' 'CUDA runtime: [0-9]' 'cuBLASLt: [0-9]' 'device: emulated' \
    'attention: own kernels'; do
    grep -q "^- .*$line" "$root/out" || { echo "bench_gpu.sh: the report has no line '$line'"; failed=$((failed + 1)); }
done
grep -q '^| .attention.gpu.forward.bf16. | 400000.0 GFLOP/s |' "$root/out" || {
    echo 'bench_gpu.sh: the report leaves out the rate of attention'
    failed=$((failed + 1))
}
[ "$failed" -eq 0 ] && echo "check_gpu.sh: 14 cases as expected"
