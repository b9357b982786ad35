#!/bin/sh
# Proves with fake compilers what tools/dev/detect.sh does for the CUDA toolkit and for compilers: a missing item that
# was requested is an error and leaves no file, a missing optional item is reported, a found item is written to the
# file.
set -u
tools=$(cd "$(dirname "$0")" && pwd) || exit 2
root=$(mktemp -d "${TMPDIR:-/tmp}/offload-detected-XXXXXX") || exit 2
trap 'rm -rf "$root"' EXIT
trap 'exit 130' INT TERM
failed=0
cases=0

# A compiler that succeeds and writes an output, one that fails, and a toolkit of each kind.
mkdir -p "$root/good/bin" "$root/good/include" "$root/good/lib64" "$root/old/bin" "$root/old/include"
cat >"$root/cc" <<'TEXT'
#!/bin/sh
[ "${1:-}" != -dumpfullversion ] || echo 1.2.3
[ "${1:-}" != --version ] || echo "release 99.1, V99.1.2"
while [ $# -gt 0 ]; do
    [ "$1" != -o ] || { : >"$2" && chmod +x "$2"; }
    shift
done
TEXT
cat >"$root/bad" <<'TEXT'
#!/bin/sh
[ "${1:-}" != --version ] || echo "release 11.4, V11.4.1"
[ "${1:-}" = --version ] || { echo "nvcc fatal: Unsupported gpu architecture 'compute_120'" >&2; exit 1; }
TEXT
cp "$root/cc" "$root/good/bin/nvcc"
cp "$root/bad" "$root/old/bin/nvcc"
chmod +x "$root/cc" "$root/bad" "$root/good/bin/nvcc" "$root/old/bin/nvcc"
: >"$root/good/include/cuda_runtime.h"
: >"$root/old/include/cuda_runtime.h"

detect() { # exit status, text in the output, line of the file or "", assignments
    cases=$((cases + 1))
    expected=$1 text=$2 line=$3
    shift 3
    : >"$root/config.mk"
    output=$(env -u NVCC -u CUDA_HOME CC="$root/cc" CXX="$root/cc" CUDA_ARCHS="80 120" "$@" \
        sh "$tools/detect.sh" "$root/config.mk" 2>&1)
    status=$?
    case $status:$output in
    "$expected":*"$text"*) right=1 ;;
    *) right=0 ;;
    esac
    if [ -n "$line" ]; then
        grep -qxF "$line" "$root/config.mk" || right=0
    elif [ -e "$root/config.mk" ]; then
        right=0
    fi
    if [ "$right" -eq 0 ]; then
        echo "detect_test: $*: status $status; expected $expected, \"$text\" and the line \"$line\":"
        echo "$output" | sed 's/^/  /'
        failed=$((failed + 1))
    fi
}

detect 1 'NVCC=/nonexistent/nvcc cannot be used: no such program' '' NVCC=/nonexistent/nvcc
detect 1 "cannot build a program: nvcc fatal: Unsupported gpu architecture 'compute_120'" '' NVCC="$root/old/bin/nvcc"
detect 0 "optional; nvcc 11.4 in $root/old cannot build a program" 'HAVE_CUDA := 0' CUDA_HOME="$root/old"
detect 0 "found    nvcc 99.1 in $root/good" "CUDA_HOME := $root/good" NVCC="$root/good/bin/nvcc"
detect 0 "found    nvcc 99.1 in $root/good" "CUDA_NVCC := $root/good/bin/nvcc" CUDA_HOME="$root/good"
detect 0 'the tests need it; Debian package g++' "DETECTED_FOR := $root/cc" CXX="$root/bad" CUDA_HOME="$root/good"
detect 1 'on Debian or Ubuntu `make deps` installs:' '' CC="$root/bad" CUDA_HOME="$root/good"
cases=$((cases + 1))
[ "$(CC="$root/cc" CXX="$root/bad" MPICC="$root/cc" sh "$tools/detect.sh" --missing)" = g++ ] || {
    echo "detect_test: --missing does not name g++"
    failed=$((failed + 1))
}
cases=$((cases + 1))
# A compiler that builds all but what is linked with oneDNN.
printf '#!/bin/sh\ncase "$*" in *-ldnnl*) exit 1 ;; esac\nexec "%s" "$@"\n' "$root/cc" >"$root/no_onednn"
chmod +x "$root/no_onednn"
output=$(CC="$root/no_onednn" CXX="$root/cc" sh "$tools/detect.sh" "$root/config.mk" 2>&1)
case $output in
*'oneDNN     missing  optional; --dtype bf16 on a CPU is faster with it; Debian package libdnnl-dev'*) ;;
*)
    echo "detect_test: a missing oneDNN is not reported: $output"
    failed=$((failed + 1))
    ;;
esac
cases=$((cases + 1))
missing=$(CC="$root/cc" CXX="$root/cc" MPICC="$root/bad" sh "$tools/detect.sh" --missing | tr '\n' ' ')
[ "$missing" = "libopenmpi-dev openmpi-bin " ] || {
    echo "detect_test: --missing does not name the packages of MPI: $missing"
    failed=$((failed + 1))
}
echo "detect_test: $cases cases, $failed wrong"
[ "$failed" -eq 0 ]
