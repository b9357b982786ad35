#!/bin/sh
# Runs a command while the kernel holds a drive to given rates, so that a figure does not depend on what a virtual drive
# or its neighbours happen to do, or to see a slower drive than the machine has.
#
#   tools/dev/hold_drive.sh FOLDER READ WRITE COMMAND...
#
# FOLDER lies on the drive; READ and WRITE are MB/s (10^6 bytes). Needs root and the block controller of cgroups, version
# 1 or 2. The kernel saves up what a drive leaves unused for a tenth of a second, so short bursts after a pause are
# faster; figures are good for work that keeps the drive busy. Ends with the command's status.
set -eu
. "$(dirname "$0")/script.sh"

[ $# -ge 4 ] || usage
folder=$1 read=${2}000000 write=${3}000000
shift 3
device=$(stat -c %d "$folder")
device=$((device >> 8 & 0xfff)):$((device & 0xff | device >> 12 & 0xfff00))
whole=$(cat "/sys/dev/block/$device/../dev" 2> /dev/null || true) # limits are those of whole drives
device=${whole:-$device}

root=$(awk '$3 == "cgroup" && $4 ~ /(^|,)blkio(,|$)/ { print $2; exit }' /proc/mounts)
version=1
if [ -z "$root" ]; then
    root=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts) version=2
    [ -n "$root" ] && echo +io > "$root/cgroup.subtree_control" || { echo "hold_drive: no block controller" >&2; exit 1; }
fi
group=$root/offload-hold.$$
mkdir "$group"
trap 'rmdir "$group"' EXIT
if [ "$version" = 1 ]; then
    echo "$device $read" > "$group/blkio.throttle.read_bps_device"
    echo "$device $write" > "$group/blkio.throttle.write_bps_device"
else
    echo "$device rbps=$read wbps=$write" > "$group/io.max"
fi
status=0
sh -c 'echo $$ > "$0/cgroup.procs" && exec "$@"' "$group" "$@" || status=$?
exit "$status"
