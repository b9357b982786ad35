#!/bin/sh
# Shows that `make install` writes a program that runs, and that `make uninstall` leaves no file behind.
set -eu
cd "$(dirname "$0")/../.."
root=$(mktemp -d "${TMPDIR:-/tmp}/offload-install-XXXXXX")
trap 'rm -rf "$root"' EXIT
trap 'exit 130' INT TERM

run_make() {
    ${MAKE:-make} --no-print-directory "$1" DESTDIR="$root" PREFIX=/usr >"$root.log" 2>&1 || {
        cat "$root.log"
        exit 1
    }
    rm -f "$root.log"
}

run_make install
for file in bin/offload share/man/man1/offload-train.1 share/bash-completion/completions/offload \
    share/offload/profiles/rtx4090-1-drive.json; do
    [ -s "$root/usr/$file" ] || { echo "make install did not write $file"; exit 1; }
done
"$root/usr/bin/offload" version >/dev/null
"$root/usr/bin/offload" plan --model none --profile nameless 2>&1 | grep -q 'comes with .*rtx4090-1-drive' ||
    { echo "the installed profiles are not found by name"; exit 1; }
run_make uninstall
left=$(find "$root" -type f)
[ -z "$left" ] || { echo "make uninstall left: $left"; exit 1; }
