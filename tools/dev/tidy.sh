#!/bin/sh
# Checks of the source text. Prints each violation as file:line: reason, and exits 1 when there is one.
#
#   tools/dev/tidy.sh [-l LIBRARY] [-c CHECK] [ROOT]
#
# -l names the built library, whose symbols are checked too; -c runs one check alone.
set -u
LC_ALL=C
export LC_ALL

tools=$(cd "$(dirname "$0")" && pwd) || exit 2
library=
only=
while getopts l:c: flag; do
    case $flag in
    l) library=$OPTARG ;;
    c) only=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
case $library in
'' | /*) ;;
*) library=$(pwd)/$library ;;
esac
cd "${1:-$tools/../..}" || exit 2

CC=${CC:-gcc}
CXX=${CXX:-g++}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/offload-tidy-XXXXXX") || exit 2
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

# Tracked files; all files where there is no repository (an unpacked archive, the planted trees of tidy_test.sh).
if ! { [ -e .git ] && git ls-files >"$scratch/all" 2>/dev/null; }; then
    find . -type f ! -path './build/*' ! -path './.git/*' | sed 's|^\./||' | sort >"$scratch/all"
fi
while read -r file; do
    [ ! -f "$file" ] || printf '%s\n' "$file"
done <"$scratch/all" >"$scratch/present"
grep -E '\.(c|h|cu|cuh)$' "$scratch/present" >"$scratch/sources"
grep -E '\.h$' "$scratch/present" >"$scratch/headers"
grep -E '(\.(c|h|cu|cuh|sh|awk|mk|py)|(^|/)Makefile|^\.ci/run)$' "$scratch/present" |
    grep -vE '^tools/dev/tidy' >"$scratch/texts"
sed 's|/[^/]*$||' "$scratch/sources" | sort -u | while read -r folder; do
    [ -f "$folder" ] || mkdir -p "$scratch/code/$folder"
done
mkdir -p "$scratch/code"
xargs awk -v out="$scratch/code" -f "$tools/tidy_strip.awk" <"$scratch/sources"
sed "s|^|$scratch/code/|" "$scratch/sources" >"$scratch/stripped"

# Lines of stripped sources that match $1, among files that match $2 and not $3, with the reason $4.
code_lines() {
    grep -E "$2" "$scratch/sources" | grep -vE "$3" | sed "s|^|$scratch/code/|" |
        xargs -r grep -nE "$1" /dev/null | sed "s|^$scratch/code/\([^:]*:[0-9]*\):.*|\1: $4|"
}

# A call of one of the names in $1; a member of that name is none.
calls() {
    printf '(^|[^A-Za-z0-9_.>])(%s)[[:space:]]*\\(' "$1"
}

check_layers() {
    # shellcheck disable=SC2046 # no path of the tree has a space
    awk -f "$tools/tidy_layers.awk" $(cat "$scratch/sources")
}

check_edges() {
    # shellcheck disable=SC2046 # no path of the tree has a space
    awk -v check=edges -f "$tools/tidy_layers.awk" $(cat "$scratch/sources")
}

check_readmes() {
    grep -E '\.(c|h|cu|cuh|inc|sh|awk|py|css|js|patch|dict)$' "$scratch/present" >"$scratch/listed"
    # shellcheck disable=SC2046 # no path of the tree has a space
    awk -f "$tools/tidy_readmes.awk" $(grep -E '/README\.md$' "$scratch/present") "$scratch/listed"
}

check_users() {
    # shellcheck disable=SC2046 # no path of the tree has a space
    awk -f "$tools/tidy_users.awk" pass=1 $(cat "$scratch/sources") pass=2 \
        $(grep -E '/README\.md$' "$scratch/present") $(grep -v '^tests/' "$scratch/headers")
}

check_headers() {
    have_cxx=1
    echo 'int main() { return 0; }' >"$scratch/probe.cc"
    "$CXX" -std=c++17 -fsyntax-only "$scratch/probe.cc" 2>/dev/null || have_cxx=0
    [ "$have_cxx" -eq 1 ] || echo "  (no C++ compiler $CXX: headers are checked as C11 alone)" >&2
    while read -r header; do
        echo "#include \"$header\"" >"$scratch/unit.c"
        "$CC" -std=c11 -D_GNU_SOURCE -I. -Itests/simt -Wall -Wextra -Werror -fsyntax-only "$scratch/unit.c" 2>"$scratch/log" ||
            echo "$header:1: does not compile alone as C11: $(grep -m 1 error "$scratch/log")"
        case $have_cxx$header in
        1base/* | 1kernels/*) ;;
        *) continue ;; # what is C++ includes no other header
        esac
        cp "$scratch/unit.c" "$scratch/unit.cc"
        "$CXX" -std=c++17 -D_GNU_SOURCE -I. -Itests/simt -Wall -Werror -fsyntax-only "$scratch/unit.cc" 2>"$scratch/log" ||
            echo "$header:1: does not compile alone as C++17: $(grep -m 1 error "$scratch/log")"
    done <"$scratch/headers"
}

# No file may ever include both headers, and a reader may take one for the other.
check_tags() {
    grep -v '/tests/' "$scratch/stripped" | grep '\.h$' | xargs -r awk -v prefix="$scratch/code/" '
        /^(struct|enum|union) [a-z0-9_]+ \{/ {
            file = substr(FILENAME, length(prefix) + 1)
            if ($2 in owner)
                print file ":" FNR ": defines " $2 ", as " owner[$2] " does; rename one"
            owner[$2] = file
        }'
}

# Looks at the functions of the stripped files of the input.
shape() { # check
    xargs -r awk -v check="$1" -v prefix="$scratch/code/" -f "$tools/tidy_code.awk" -f "$tools/tidy_shape.awk"
}

check_functions() {
    shape length <"$scratch/stripped"
}

check_files() {
    while read -r file; do
        lines=$(wc -l <"$file")
        [ "$lines" -le 800 ] || echo "$file:801: the file has $((lines)) lines; 800 are allowed"
    done <"$scratch/sources"
}

# Columns are characters: continuation bytes of UTF-8 do not count.
check_columns() {
    xargs awk '{
        gsub(/[\200-\277]/, "")
        if (length($0) > 120)
            print FILENAME ":" FNR ": the line has " length($0) " columns; 120 are allowed"
        if ($0 ~ /\t/ && FILENAME !~ /Makefile$/)
            print FILENAME ":" FNR ": a tab; four spaces are used"
    }' <"$scratch/sources"
}

check_params() {
    shape params <"$scratch/stripped"
}

check_symbols() {
    [ -n "$library" ] || return 0
    # Of two definitions the linker takes one without a word, when nothing else needs the other's object.
    "${NM:-nm}" -g --defined-only "$library" | awk '
        /:$/ { object = $0; next }
        NF >= 3 && $3 !~ /^ox_/ { print object " exports " $3 "; make it static or name it ox_" $3 }
        NF >= 3 && $2 !~ /^[VvWw]$/ && $3 in owner { print object " defines " $3 ", as " owner[$3] " does; rename one" }
        NF >= 3 { owner[$3] = substr(object, 1, length(object) - 1) }'
}

check_calls() {
    code_lines "$(calls 'strcpy|strcat|sprintf|vsprintf|gets|system|popen|atoi|atol|atof|alloca|rand|strtok_r')" \
        . '^tests/|^$' 'a banned call (strcpy strcat sprintf gets system atoi alloca rand and kin)'
    code_lines "$(calls 'strcpy|strcat|sprintf|vsprintf|gets|system|popen|atoi|alloca|rand')" \
        '^tests/' '^$' 'a banned call (strcpy strcat sprintf gets system atoi alloca rand and kin)'
    code_lines "$(calls 'assert')|#[[:space:]]*include[[:space:]]*<assert\\.h>" \
        . '^$' 'assert vanishes in some builds; OX_ASSERT stays'
}

check_environment() {
    code_lines "$(calls 'getenv|secure_getenv|setenv|putenv')" . '^(tools|tests)/' \
        'the environment is read in tools/ alone; a run follows from its configuration'
}

check_printing() {
    code_lines "$(calls 'exit|_exit|quick_exit|abort|printf|vprintf|puts|putchar|perror')|(^|[^A-Za-z0-9_])(stdout|stderr)([^A-Za-z0-9_]|\$)" \
        . '^(tools|tests)/|^base/status\.c$' 'only tools/ prints and exits; return a status instead'
}

# What runs within a step; engine.c and recorder.c open what a step uses.
check_allocation() {
    grep -E '^(engine/step/|offload/plan/tier)[a-z_/]*\.c$' "$scratch/sources" | grep -vE '/(engine|engine_store|rank|describe|plans|sketch|team|recorder)\.c$' |
        sed "s|^|$scratch/code/|" | shape alloc
}

check_statuses() {
    code_lines '\(void\)[[:space:]]*ox_[a-z0-9_]+[[:space:]]*\(' . '^tests/' 'a dropped status; handle it'
    # Tests may record an error text on purpose.
    code_lines '\(void\)[[:space:]]*ox_([a-eg-z0-9_][a-z0-9_]*|f[b-z0-9_][a-z0-9_]*)[[:space:]]*\(' '^tests/' '^$' \
        'a dropped status; handle it'
}

check_macros() {
    code_lines '^[[:space:]]*#[[:space:]]*define[[:space:]]+[A-Za-z_0-9]+\(' . '^(base|tests)/|^kernels/ops\.h$|^offload/plan/choices\.h$|^engine/config/options\.c$' \
        'a function-like macro outside base/; write a function'
}

check_mathflags() {
    xargs grep -nE -e '-ffast-math|-Ofast|-use_fast_math|-funsafe-math-optimizations|-ffinite-math-only|-fassociative-math|-freciprocal-math|-ffp-contract=(fast|on)|-ftz=true|-prec-(div|sqrt)=false|FP_CONTRACT[[:space:]]+ON|pragma[[:space:]]+GCC[[:space:]]+optimize' \
        /dev/null <"$scratch/texts" | sed 's|^\([^:]*:[0-9]*\):.*|\1: fast-math would change the bits|'
    # nvcc fuses multiplications and additions unless it is told not to.
    for stem in adam planes; do
        if [ -f "kernels/cuda/$stem.cu" ] && ! { grep -qE "^NVCC_FLAGS_${stem}[[:space:]]*:?=.*-fmad=false" Makefile &&
            grep -qF '$(NVCC_FLAGS_$*)' Makefile; }; then
            echo "Makefile:1: kernels/cuda/$stem.cu needs NVCC_FLAGS_$stem with -fmad=false: its bits are the CPU's"
        fi
    done
}

check_marks() {
    xargs grep -nwE 'TODO|FIXME|XXX|HACK' /dev/null <"$scratch/texts" |
        sed 's|^\([^:]*:[0-9]*\):.*|\1: unfinished work is not committed; finish it or write it into the plans|'
}

# Records of the past keep the words of their time.
check_words() {
    [ -f docs/words.md ] || return 0
    grep -E '(\.(c|h|cu|cuh|inc|sh|awk|mk|py|js|css|md|patch)|(^|/)Makefile|^\.ci/run)$' "$scratch/present" |
        grep -vE '^(CHANGELOG\.md|docs/words\.md|docs/measurements/.*|tests/golden/[^m].*|tools/dev/tidy_test\.sh)$' |
        xargs awk -v words_page=docs/words.md -f "$tools/tidy_words.awk" docs/words.md
}

# Names are looked up in data too, because there are names of tensors and of keys. Records of the past may name what is
# gone.
check_names() {
    xargs cat <"$scratch/stripped" | grep -aoE '[A-Za-z0-9_]+' | sort -u >"$scratch/code_names"
    grep -E '(\.(c|h|cu|cuh|inc|sh|awk|mk|py|js|css|json|yaml)|(^|/)Makefile)$' "$scratch/present" |
        xargs cat | grep -aoE '[A-Za-z0-9_]+' | sort -u >"$scratch/text_names"
    grep -E '(\.(c|h|cu|cuh|inc)|README\.md|^docs/[^/]*\.md)$' "$scratch/present" | grep -vE '^tests/golden/.*/' |
        xargs awk -v list="$scratch/present" -v code_names="$scratch/code_names" -v text_names="$scratch/text_names" \
            -f "$tools/tidy_names.awk" "$scratch/present" "$scratch/code_names" "$scratch/text_names"
}

# Where a rank lies on the mesh is known to few files (docs/extending.md): the others ask for groups, of which they are
# a member like all, and for slices. The proof works out coordinates by itself.
check_mesh() {
    number='(ranks(\.|->)idx|rank->idx)'
    compares='(%|/|==|!=|<|>)'
    code_lines "$number[[:space:]]+$compares|[[:space:]]$compares[[:space:]]+([a-z_]+(->|\\.))*$number|ox_mesh_at[[:space:]]*\\(|ox_plan_group\\([^)]*\\)\\.idx[[:space:]]*[=!]=" \
        '^(offload|engine)/' \
        '^(offload/plan/(mesh|plan|sums)\.[ch]|offload/proof/(sizes|sums|ranks)\.[ch]|engine/step/rank\.c)$' \
        'compares where a rank lies; only the files that docs/extending.md names do'
}

# What a command leaves in the folder it is started in is not committed: neither a new name at the top nor the files of
# a run anywhere but where runs of former formats are kept for tests.
check_places() {
    grep -vE '^((base|cpu_optim|docs|engine|kernels|nvme|offload|tests|tools|\.ci)/|(CHANGELOG\.md|LICENSE|Makefile|README\.md|\.clang-format|\.gitignore)$)' \
        "$scratch/present" | sed 's|$|:1: the top of the tree has no such place|'
    grep -E '(^|/)(run\.json|config\.resolved\.yaml|metrics\.jsonl|plan\.txt|trainer_state\.json|gemms\.txt)$' "$scratch/present" |
        grep -v '^tests/golden/formats/' | sed 's|$|:1: is written by a run|'
}

# Bugs that are planted by hand alone: `make negative`, `make bench-safety`.
check_patches() {
    command -v patch >/dev/null || { echo "tidy: no patch program: planted bugs are not checked" >&2 && return 0; }
    grep -E '^tests/.*\.patch$' "$scratch/present" | while read -r file; do
        patch --dry-run -p1 -s -N <"$file" >"$scratch/patched" 2>&1 ||
            echo "$file:1: no longer applies: $(tail -n 1 "$scratch/patched")"
    done
}

checks="layers edges readmes users headers tags functions files columns params symbols calls environment printing allocation statuses macros \
mathflags marks words names mesh places patches"
sum=0
for check in ${only:-$checks}; do
    "check_$check" >"$scratch/found"
    count=$(wc -l <"$scratch/found")
    if [ "$count" -gt 0 ]; then
        sed 's/^/  /' "$scratch/found"
        echo "tidy $check: $((count))"
    fi
    sum=$((sum + count))
done
echo "tidy: $sum violations in $(wc -l <"$scratch/sources" | tr -d ' ') files"
[ "$sum" -eq 0 ]
