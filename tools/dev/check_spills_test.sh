#!/bin/sh
# Proves that tools/dev/check_spills.sh fires: on reports in the form of ptxas with a planted spill and, if NVCC names
# the compiler, on the report of a kernel that must spill.
set -u
tools=$(cd "$(dirname "$0")" && pwd) || exit 2
root=$(mktemp -d "${TMPDIR:-/tmp}/offload-spilled-XXXXXX") || exit 2
trap 'rm -rf "$root"' EXIT
trap 'exit 130' INT TERM
failed=0
cases=0

# Runs the check on $root/x.ptxas and expects an exit status and a text.
expect() { # exit status, text
    cases=$((cases + 1))
    output=$(sh "$tools/check_spills.sh" "$root/x.ptxas" 2>&1)
    status=$?
    case $status:$output in
    "$1":*"$2"*) ;;
    *)
        echo "check_spills_test: status $status; expected $1 and \"$2\":"
        echo "$output" | sed 's/^/  /'
        failed=$((failed + 1))
        ;;
    esac
}

report() { # spill stores, spill loads
    cat <<TEXT
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z5firstPf' for 'sm_80'
ptxas info    : Function properties for _Z5firstPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Compiling entry function '_Z6secondPf' for 'sm_90'
ptxas info    : Function properties for _Z6secondPf
    16 bytes stack frame, $1 bytes spill stores, $2 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers
TEXT
}

report 0 0 >"$root/x.ptxas"
expect 0 '2 kernels over all architectures, at most 255 registers, 0 wrong'
expect 0 'sm_80          40    1024      0       0  first'
report 8 0 >"$root/x.ptxas"
expect 1 'x.cu: second: 8 bytes of spill stores and 0 of loads for sm_90'
report 0 12 >"$root/x.ptxas"
expect 1 'x.cu: second: 0 bytes of spill stores and 12 of loads for sm_90'
report 0 0 | grep -v 'spill' >"$root/x.ptxas"
expect 1 'ptxas did not report spills'
: >"$root/x.ptxas"
expect 1 'names no kernel'
rm "$root/x.ptxas"
expect 1 'the report of ptxas is missing'

if [ -n "${NVCC:-}" ]; then
    cat >"$root/x.cu" <<'TEXT'
__global__ void __launch_bounds__(1024) planted(float *x, int n) {
    float v[96];
#pragma unroll
    for (int i = 0; i < 96; i++) v[i] = x[i * n + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 96; i++) x[(95 - i) * n + threadIdx.x] = v[i] * v[95 - i];
}
TEXT
    if "$NVCC" -O3 -arch=sm_90 -Xptxas -v -c -o "$root/x.o" "$root/x.cu" 2>"$root/x.ptxas"; then
        expect 1 'x.cu: planted'
    else
        cat "$root/x.ptxas"
        failed=$((failed + 1))
    fi
fi
echo "check_spills_test: $cases cases, $failed wrong"
[ "$failed" -eq 0 ]
