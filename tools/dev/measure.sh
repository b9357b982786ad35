#!/bin/sh
# Prints the shape of a tree in figures: functions, files per folder, exported symbols, comments, lines, commits.
#
#   tools/dev/measure.sh [-C TREE] [REVISION]
#
# Product code is counted without tables that a script writes. -C measures another checkout. Symbols are those of
# build/liboffload.a, where the tree is built. Commits are those since REVISION.
set -u
LC_ALL=C
export LC_ALL
tools=$(cd "$(dirname "$0")" && pwd) || exit 2
tree=$tools/../..
while getopts C: flag; do
    case $flag in
    C) tree=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
cd "$tree" || exit 2
scratch=$(mktemp -d "${TMPDIR:-/tmp}/offload-measure-XXXXXX") || exit 2
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

git ls-files base nvme cpu_optim kernels offload engine tools >"$scratch/all"
grep -E '\.(c|h|cu|cuh|inc)$' "$scratch/all" | xargs grep -L '^/\* Made by ' >"$scratch/product"
sed 's|/[^/]*$||' "$scratch/product" | sort -u | while read -r folder; do mkdir -p "$scratch/code/$folder"; done
xargs awk -v out="$scratch/code" -f "$tools/tidy_strip.awk" <"$scratch/product"
sed "s|^|$scratch/code/|" "$scratch/product" |
    xargs awk -v prefix="$scratch/code/" -f "$tools/tidy_code.awk" -f "$tools/measure.awk" | sort -n >"$scratch/functions"
awk '{ lines[NR] = $1; deep += $2 >= 4 }
    function at(share) { i = int(NR * share); return lines[i < 1 ? 1 : i] }
    END { print "functions                        " NR
        print "  lines p50 p90 p99 max          " at(.5), at(.9), at(.99), lines[NR]
        print "  control nesting of 4 and more  " deep + 0 }' "$scratch/functions"

git ls-files | grep -E '\.(c|h|cu|cuh|inc|sh|awk|py)$' | sed 's|/[^/]*$||' | sort | uniq -c | sort -rn |
    awk 'NR == 1 { print "files per folder, most           " $1 " (" $2 ")" }
        $1 > 30 { over = over " " $2 }
        END { print "  folders over 30               " (over == "" ? " none" : over) }'

echo "comments that open with Of, The same, Those, So many, Who"
printf '                                 '
xargs cat <"$scratch/product" | grep -ciE '/\*[[:space:]]+(of|the same|those|so many|who)[[:space:],]'
echo "lines of product code            $(xargs cat <"$scratch/product" | wc -l)"
printf '  without blank lines, comments  '
sed "s|^|$scratch/code/|" "$scratch/product" | xargs cat | grep -cE '[^[:space:]]'

library=build/liboffload.a
if [ -f "$library" ]; then
    # Objects carry their folders in build/obj; a symbol used outside the room of its object counts as shared.
    find build/obj/base build/obj/nvme build/obj/cpu_optim build/obj/kernels build/obj/offload build/obj/engine \
        build/obj/tools -name '*.o' | while read -r object; do
        source=${object#build/obj/}
        [ -f "${source%.o}.c" ] || continue
        "${NM:-nm}" -g "$object" | awk -v room="${source%/*}" '
            NF == 3 && $2 != "U" && $3 !~ /^__/ { print "D", room, $3 }
            NF == 2 && $1 == "U" && $2 ~ /^ox_/ { print "U", room, $2 }'
    done >"$scratch/symbols"
    awk '
        $1 == "D" && $3 ~ /^ox_/ { home[$3] = $2 }
        $1 == "U" { used[$3] = used[$3] " " $2 " " }
        function top(room) { sub(/\/.*/, "", room); return room }
        END {
            for (symbol in home) {
                room = home[symbol]
                all[room]++
                n = split(used[symbol], users, " ")
                outside = abroad = 0
                for (i = 1; i <= n; i++) {
                    outside = outside || users[i] != room
                    abroad = abroad || top(users[i]) != top(room)
                }
                outside_of[room] += outside
                abroad_of[room] += abroad
            }
            for (room in all)
                printf "  %-22s %4d %8d %8d\n", room, all[room], outside_of[room], abroad_of[room]
        }' "$scratch/symbols" | sort >"$scratch/rooms"
    echo "exported symbols        defined  outside  outside"
    echo "                                the room  folder"
    cat "$scratch/rooms"
    awk '$1 ~ /^engine/ { a += $2; b += $3; c += $4 }
        END { printf "  %-22s %4d %8d %8d\n", "engine, all rooms", a, b, c }' "$scratch/rooms"
fi

if [ $# -gt 0 ]; then
    git log --format=%s "$1..HEAD" | awk '{ all++; over += length($0) > 72 }
        END { print "commits since '"$1"'            " all + 0; print "  subjects over 72               " over + 0 }'
fi
