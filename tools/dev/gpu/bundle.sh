#!/bin/sh
# Packs what checks and measurements need on a machine that has a GPU, its driver, cuBLASLt and cuDNN, but no network,
# compiler or headers: the sources, stripped programs and tests, the plugin, and the libraries that they are linked to.
#
#   tools/dev/gpu/bundle.sh [--emulated] [--built] OUTPUT.tar.xz
#
# The sources are those of the last commit; the rest is what the build holds, which has to be complete. The C and C++
# libraries are left out, because the machine's are the ones that its driver and cuDNN need. --built packs no sources: to
# unpack in a checkout of the same commit, where less may travel than the tensors of the golden tests take. --emulated
# packs no CUDA plugin: only first.sh --emulated works there, which is how tools/dev/gpu/bundle_test.sh tests both scripts.
set -eu
below=/..
. "$(dirname "$0")/../script.sh"

limit=60000000 emulated=0 sources=1
[ "${1:-}" != --emulated ] || { emulated=1; shift; }
[ "${1:-}" != --built ] || { sources=0 limit=20000000; shift; }
[ $# -eq 1 ] || usage
case $1 in
-*) usage ;;
esac
build=${OX_BUILD:-build}
work=$(mktemp -d "${TMPDIR:-/tmp}/offload-gpu-bundle-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

folder=offload-gpu
[ "$sources" -eq 1 ] || folder=.
top=$work/tree/$folder
mkdir -p "$top/build/lib" "$top/build/emulated" "$top/build/tests/conform" "$top/build/tests/golden"
# The emulated device is not compared with the reference, whose tensors are most of the sources.
[ "$sources" -eq 0 ] ||
    git archive HEAD -- . $([ "$emulated" -eq 0 ] || echo ':(exclude)tests/golden') | tar -x -C "$top"
git rev-parse HEAD >"$top/commit"
plugin=liboffload_cuda.so operations=$(cd "$build" && ls tests/conform/test_ops_*[a-z]) || true
[ "$emulated" -eq 0 ] || { plugin='' operations=tests/conform/test_ops_flat; } # all are packed alike
for program in offload $plugin liboffload_simt.so tests/golden/test_cuda tests/conform/test_device $operations; do
    [ -f "$build/$program" ] || { echo "gpu-bundle: $build/$program does not exist; build it first" >&2; exit 1; }
    strip -o "$top/build/$program" "$build/$program"
done
ln "$top/build/offload" "$top/build/emulated/offload"
ln -s ../liboffload_simt.so "$top/build/emulated/liboffload_cuda.so"

ldd "$build/offload" >"$work/needed"
if grep 'not found' "$work/needed" >&2; then
    echo "gpu-bundle: $build/offload needs libraries that are not here" >&2
    exit 1
fi
awk '$3 ~ /^\// && $1 !~ /^(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux.*)\.so/ { print $3 }' \
    "$work/needed" | while read -r library; do
    cp -L "$library" "$top/build/lib/"
done

unpacked=$(du -s --apparent-size -B 1 "$top" | cut -f 1)
tar -C "$work/tree" -cJf "$work/bundle" "$folder"
bytes=$(wc -c <"$work/bundle")
if [ "$emulated" -eq 0 ] && [ "$bytes" -gt "$limit" ]; then
    echo "gpu-bundle: the archive has $bytes bytes, more than $limit" >&2
    exit 1
fi
mkdir -p "$(dirname "$1")"
mv "$work/bundle" "$1.part" && mv "$1.part" "$1"
echo "$1: $bytes bytes, $unpacked unpacked; unpack it and run $folder/tools/dev/gpu/first.sh (docs/gpu.md)"
