#!/bin/sh
# Packs a bundle with the emulated plugin, unpacks it elsewhere, and runs the first part there: with the libraries of the
# bundle and nothing of the tree that built it. Shows too that an incomplete build is refused.
set -u
cd "$(dirname "$0")/../../.." || exit 2
git rev-parse -q --verify HEAD >/dev/null 2>&1 || { echo 'bundle.sh: not tried without a repository'; exit 0; }
root=$(mktemp -d "${TMPDIR:-/tmp}/offload-gpu-bundle-test-XXXXXX") || exit 2
trap 'rm -rf "$root"' EXIT
trap 'exit 130' INT TERM
fail() {
    echo "bundle.sh: $*"
    sed 's/^/    /' "$root/log"
    exit 1
}

XZ_OPT=-0 sh tools/dev/gpu/bundle.sh --emulated "$root/bundle.tar.xz" >"$root/log" 2>&1 || fail 'it packs nothing'
grep -q "bundle.tar.xz: $(wc -c <"$root/bundle.tar.xz") bytes, [1-9][0-9]* unpacked; " "$root/log" ||
    fail 'the size is not told'
XZ_OPT=-0 sh tools/dev/gpu/bundle.sh --emulated --built "$root/built.tar.xz" >"$root/log" 2>&1 || fail 'it packs no build'
tar -tJf "$root/built.tar.xz" >"$root/log" && grep -q '^\./build/offload$' "$root/log" && ! grep -q /tools/ "$root/log" ||
    fail 'a bundle of what is built has other files'
mkdir "$root/there" && tar -xJf "$root/bundle.tar.xz" -C "$root/there" || fail 'the archive does not unpack'
cd "$root/there/offload-gpu" || fail 'the archive has no folder offload-gpu'
env -u OX_BUILD -u OX_BIN sh tools/dev/gpu/first.sh --emulated --out "$root/out" machine >"$root/log" 2>&1 ||
    fail 'the first part fails where it was unpacked'
grep -q '^device  *pass' "$root/out/machine.txt" || fail 'no step was computed'
env -u OX_BUILD -u OX_BIN sh tools/dev/gpu/first.sh --emulated --out "$root/out" learn hbm >"$root/log" 2>&1 ||
    fail 'nothing is learned, or steps are not measured where it was unpacked'
grep -q '^learn  *pass .*own attention, ' "$root/out/learn.txt" || fail 'nothing is learned by our own attention'
grep -q "^- .*, commit $(cut -c 1-12 commit)\$" "$root/out/hbm.txt" || fail 'the report does not name the commit'
for library in $(ls build/lib); do
    LD_LIBRARY_PATH=$PWD/build/lib ldd build/offload | grep -q "=> $PWD/build/lib/$library " || fail "$library is not used"
done
sh tools/dev/gpu/first.sh --emulated --out "$root/out" nothing >"$root/log" 2>&1 && fail 'an unknown part is accepted'
cd "$OLDPWD" || exit 2
OX_BUILD=$root/out sh tools/dev/gpu/bundle.sh --emulated "$root/none.tar.xz" >"$root/log" 2>&1 &&
    fail 'a build without programs is packed'
grep -q 'does not exist; build it first' "$root/log" && [ ! -e "$root/none.tar.xz" ] || fail 'a wrong refusal'
echo 'bundle.sh: packed, unpacked and run'
