#!/bin/sh
# Reads the reports of ptxas -v on the CUDA kernels and fails where a kernel spills registers to memory.
#
#   tools/dev/check_spills.sh [-q] REPORT...
#
# Prints a table of kernels; with -q only violations and the total. A report without kernels also fails, because it
# would otherwise pass for the wrong reason.
set -u
LC_ALL=C
export LC_ALL

quiet=0
if [ "${1:-}" = -q ]; then
    quiet=1
    shift
fi
[ $# -gt 0 ] || { echo "usage: tools/dev/check_spills.sh [-q] REPORT..." >&2; exit 2; }

# Kernels that may spill, one per line: parts of the demangled name with commas between, "sm_90" or "*", bytes, reason.
allowed() {
    cat <<'LIST'
attention_mma_forward_kernel,128,1> * 160 with a cap of scores: tanhf beside all scores and outputs of a wide head
attention_mma_forward_kernel,128,2> sm_80 68 queries that are a part of sequences: where keys lie, beside the same
attention_mma_dkv_kernel,64,2> sm_120 24 queries that are a part of sequences: where they lie among the keys
LIST
}

scratch=$(mktemp -d "${TMPDIR:-/tmp}/offload-spills-XXXXXX") || exit 2
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

# Writes one line per kernel and architecture: file, architecture, registers, shared bytes, stack, stores, loads, name.
for report in "$@"; do
    [ -f "$report" ] || { echo "$report: the report of ptxas is missing; build the plugin again" >&2; exit 1; }
    awk -v file="$(basename "$report" .ptxas)" '
        function number_before(word,    at) {
            at = match($0, "[0-9]+ " word)
            return at ? substr($0, RSTART) + 0 : 0
        }
        /Compiling entry function/ { split($0, part, "\047"); name = part[2]; arch = part[4]; stack = stores = loads = -1 }
        /Function properties for/ { of = $NF }
        /bytes stack frame/ && of == name {
            stack = number_before("bytes stack frame")
            stores = number_before("bytes spill stores")
            loads = number_before("bytes spill loads")
        }
        /Used [0-9]+ registers/ {
            match($0, /Used [0-9]+/)
            print file, arch, substr($0, RSTART + 5, RLENGTH - 5), number_before("bytes smem"), stack, stores, loads, name
        }' "$report" >"$scratch/one"
    if [ ! -s "$scratch/one" ]; then
        echo "$report: names no kernel; check that nvcc gets -Xptxas -v" >&2
        exit 1
    fi
    cat "$scratch/one" >>"$scratch/rows"
done

# Demangles names and drops their parameters; without c++filt they stay mangled.
if command -v c++filt >/dev/null 2>&1; then
    c++filt <"$scratch/rows" >"$scratch/named"
else
    cp "$scratch/rows" "$scratch/named"
fi
allowed >"$scratch/allowed"
awk -v quiet="$quiet" -v listed="$scratch/allowed" '
    BEGIN {
        while ((getline line < listed) > 0) {
            split(line, part, " ")
            allow[++allow_count] = part[1]; allow_arch[allow_count] = part[2]; allow_bytes[allow_count] = part[3] + 0
        }
        if (!quiet)
            printf "%-12s %-7s %9s %7s %6s %7s  %s\n", "file", "arch", "registers", "smem", "stack", "spills", "kernel"
    }
    function is_listed(name, i,    parts, k, n) {
        n = split(allow[i], parts, ",")
        for (k = 1; k <= n; k++)
            if (!index(name, parts[k]))
                return 0
        return 1
    }
    {
        name = $0
        for (i = 0; i < 7; i++)
            sub(/^[^ ]+ /, "", name)
        sub(/^void /, "", name)
        sub(/\(anonymous namespace\)::/, "", name)
        sub(/\(.*/, "", name)
        spills = $6 + $7
        row = sprintf("%-12s %-7s %9d %7d %6d %7d  %s", $1, $2, $3, $4, $5, spills, name)
        if (!quiet)
            print row
        count++
        most = $3 > most ? $3 : most
        if ($6 < 0) {
            print "  " $1 ".cu: " name ": ptxas did not report spills for " $2
            bad++
        }
        if (spills <= 0)
            next
        for (i = 1; i <= allow_count; i++)
            if (is_listed(name, i) && (allow_arch[i] == "*" || allow_arch[i] == $2) && spills <= allow_bytes[i])
                next
        print "  " $1 ".cu: " name ": " $6 " bytes of spill stores and " $7 " of loads for " $2 \
              "; give it fewer live values or a smaller block, or list it in tools/dev/check_spills.sh with the reason"
        bad++
    }
    END {
        printf "check_spills: %d kernels over all architectures, at most %d registers, %d wrong\n", count, most, bad
        exit bad > 0
    }' "$scratch/named"
