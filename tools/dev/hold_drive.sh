#!/bin/sh
# Runs a command while the kernel holds a drive to given rates, so that a figure does not depend on what a virtual drive
# or its neighbours happen to do, or to see a slower drive than the machine has.
#
#   tools/dev/hold_drive.sh FOLDER READ WRITE COMMAND...
#
# FOLDER lies on the drive; READ and WRITE are whole MB/s (10^6 bytes) above 0. Relative paths are those of the root of
# the sources. Needs root and the block controller of cgroups: version 1, which holds direct I/O alone, or 2, which was
# not tried. The kernel saves up what a drive leaves unused for a tenth of a second, so short bursts after a pause are
# faster; figures are good for work that keeps the drive busy. Ends with the command's status; INT and TERM end that.
set -eu
. "$(dirname "$0")/script.sh"

fail() {
    echo "hold_drive: $1" >&2
    exit 1
}

[ $# -ge 4 ] || usage
folder=$1
for rate in "$2" "$3"; do
    case $rate in
    '' | 0* | *[!0-9]*) fail "'$rate' is no rate: give whole MB/s above 0" ;;
    esac
done
read=${2}000000 write=${3}000000
shift 3
device=$(stat -c %d "$folder") || exit 1
device=$((device >> 8 & 0xfff)):$((device & 0xff | device >> 12 & 0xfff00))
[ -e "/sys/dev/block/$device" ] || fail "$folder is on no block device ($device)"
whole=$(cat "/sys/dev/block/$device/../dev" 2> /dev/null || true) # limits are those of whole drives
device=${whole:-$device}

root=$(awk '$3 == "cgroup" && $4 ~ /(^|,)blkio(,|$)/ { print $2; exit }' /proc/mounts)
version=1
if [ -z "$root" ]; then
    root=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts) version=2
    [ -n "$root" ] || fail "there is no block controller of cgroups"
    echo +io > "$root/cgroup.subtree_control" || fail "$root/cgroup.subtree_control does not take +io"
fi
group=$root/offload-hold.$$
mkdir "$group" || fail "$group cannot be made; root is needed"
child=

# What the command has started may take a moment to end.
leave() {
    tries=0
    until rmdir "$group" 2> /dev/null || [ $((tries += 1)) -gt 20 ]; do
        sleep 0.1
    done
    [ ! -d "$group" ] || echo "hold_drive: $group stays: processes of the command still run in it" >&2
}
trap leave EXIT
trap '[ -z "$child" ] || kill -TERM "$child" 2> /dev/null' INT TERM HUP

limits() {
    if [ "$version" = 1 ]; then
        echo "$device $read" > "$group/blkio.throttle.read_bps_device" &&
            echo "$device $write" > "$group/blkio.throttle.write_bps_device"
    else
        echo "$device rbps=$read wbps=$write" > "$group/io.max"
    fi
}
limits || fail "the kernel does not hold $device to these rates"
sh -c 'echo $$ > "$0/cgroup.procs" && exec "$@"' "$group" "$@" &
child=$!
status=0
wait "$child" || status=$?
while kill -0 "$child" 2> /dev/null; do # a signal has ended the first wait
    status=0
    wait "$child" || status=$?
done
exit "$status"
