#!/bin/sh
# Installs the Debian packages that the build needs and this machine lacks, and those that are named, such as a browser
# for a test of CI; asks for root only then.
set -u
cd "$(dirname "$0")/../.." || exit 2

missing=$(sh tools/dev/detect.sh --missing | tr '\n' ' ') || exit 1
command -v make >/dev/null 2>&1 || missing="make $missing"
for package in "$@"; do
    dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
missing=${missing% }
if [ -z "$missing" ]; then
    exit 0
fi
echo "  DEPS    $missing"
if ! command -v apt-get >/dev/null 2>&1; then
    echo "offload: this system has no apt-get; install the equivalents of these Debian packages: $missing" >&2
    exit 1
fi
as_root=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "offload: installing needs root and there is no sudo; run as root: apt-get install $missing" >&2
        exit 1
    fi
    as_root=sudo
fi

# Package lists may be absent (as in fresh containers) or stale, so they are updated first.
$as_root apt-get update -qq || echo "offload: apt-get update failed; trying with the existing lists" >&2
# shellcheck disable=SC2086 # the packages are a list
if ! $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; then
    echo "offload: apt-get could not install: $missing" >&2
    exit 1
fi
left=$(sh tools/dev/detect.sh --missing | tr '\n' ' ')
if [ -n "${left% }" ]; then
    echo "offload: still unusable after the installation: $left" >&2
    exit 1
fi
