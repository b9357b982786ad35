#!/bin/sh
# Proves that every check of tools/dev/tidy.sh fires: plants one violation in a clean tree and expects its place; and
# that a tree which only looks guilty passes them all.
set -u
tools=$(cd "$(dirname "$0")" && pwd) || exit 2
root=$(mktemp -d "${TMPDIR:-/tmp}/offload-planted-XXXXXX") || exit 2
trap 'rm -rf "$root"' EXIT
trap 'exit 130' INT TERM
failed=0
planted=0

# What is allowed at the very edge, and what is banned but stands in comments, strings and member names.
clean_tree() {
    rm -rf "$root"
    mkdir -p "$root/base" "$root/kernels/cuda" "$root/offload" "$root/engine" "$root/tools" "$root/tests/unit"
    cat >"$root/base/good.h" <<'TEXT'
/* strcpy(a, b); getenv("X"); TO-DO; */
#ifndef GOOD_H
#define GOOD_H
#ifdef __cplusplus
extern "C" {
#endif
#define GOOD(x) ((x) + 1)
#define GOOD_TEXT "a"
struct good {
    int (*exit)(int a, int b, int c, int d, int e, int f, int g);
};
int ox_good(int a, int b, int c, int (*d)(int, int), int e, int f);
#ifdef __cplusplus
}
#endif
#endif
TEXT
    cat >"$root/engine/good.c" <<'TEXT'
#include "base/good.h"
// sprintf(a, "b"); printf("c"); exit(1);
static const char *const words[2][1] = {{"strcat(a, b) {"}, {"\" rand() }"}};
static const char quote = '"', brace = '{';
int ox_good(int a, int b, int c, int (*d)(int, int), int e, int f) {
    struct good s = {0};
    return s.exit == 0 ? a + b + c + d(e, f) + words[0][0][0] + quote + brace : 0;
}
TEXT
    { echo 'int ox_seventy(void) {'; i=2; while [ $i -lt 70 ]; do echo '    ;'; i=$((i + 1)); done; echo '}'; } \
        >>"$root/engine/good.c"
    printf '/* %0104d */\n' 0 >>"$root/engine/good.c"
    printf '/* %0102dé */\n' 0 >>"$root/engine/good.c"
    echo '#include "kernels/device.h"' >"$root/offload/good.c"
    echo '#include "base/good.h"' >"$root/kernels/device.h"
    echo 'int ox_same(void) { return 0; }' >"$root/kernels/cuda/adam.cu"
    printf 'NVCC_FLAGS_adam := -fmad=false\nobject:\n\tnvcc $(NVCC_FLAGS_$*)\n' >"$root/Makefile"
    printf 'void *ox_step_open(void) {\n    return malloc(1);\n}\n' >"$root/engine/step.c"
}

run_check() { # check, further options
    check=$1
    shift
    sh "$tools/tidy.sh" -c "$check" "$@" "$root" 2>&1
}

plant() { # check, file, text for printf, place that must be named
    clean_tree
    mkdir -p "$root/$(dirname "$2")"
    # shellcheck disable=SC2059 # the text is a format on purpose
    printf "$3" >>"$root/$2"
    planted=$((planted + 1))
    output=$(run_check "$1")
    status=$?
    case $status:$output in
    1:*"$4"*) ;;
    *)
        echo "tidy_test: $1 missed what was planted in $2 (status $status, expected $4):"
        echo "$output" | sed 's/^/  /'
        failed=$((failed + 1))
        ;;
    esac
}

repeat() { # line, count
    i=0
    while [ "$i" -lt "$2" ]; do
        printf '%s\\n' "$1"
        i=$((i + 1))
    done
}

clean_tree
for check in layers headers functions files columns params calls environment printing allocation statuses macros \
    mathflags marks; do
    output=$(run_check "$check") || {
        echo "tidy_test: $check complains about a clean tree:"
        echo "$output" | sed 's/^/  /'
        failed=$((failed + 1))
    }
done

plant layers base/bad.c '#include "nvme/io.h"\n' 'base/bad.c:1: base may not include nvme'
plant layers nvme/bad.c '#include "kernels/device.h"\n' 'nvme may not include kernels'
plant layers cpu_optim/bad.c '\n# include "engine/model/model.h"\n' 'cpu_optim/bad.c:2:'
plant layers offload/bad.c '#include "kernels/ops.h"\n' 'offload/bad.c:1: offload moves bytes'
plant layers offload/bad.c '#include "cpu_optim/adam.h"\n' 'offload may not include cpu_optim'
plant layers engine/bad.c '#include "tools/command/cmd.h"\n' 'engine may not include tools'
plant layers tools/bad.c '#include "tests/kit/test.h"\n' 'tools may not include tests'
plant layers engine/bad.c '#include "model.h"\n' 'not written from the root'
plant layers engine/bad.c '#include "../base/good.h"\n' 'not written from the root'
plant layers extra/bad.c '#include "base/good.h"\n' 'no place in the layers'
plant headers base/bad.h 'static inline uint64_t ox_f(void) { return 0; }\n' 'base/bad.h:1: does not compile alone as C11'
if echo 'int main() { return 0; }' | "${CXX:-g++}" -x c++ -fsyntax-only - 2>/dev/null; then
    plant headers base/bad.h 'struct bad { int class; };\n' 'base/bad.h:1: does not compile alone as C++17'
fi
plant functions engine/bad.c "static int bad(void)\\n{\\n$(repeat '    ;' 68)}\\n" 'engine/bad.c:1: bad has 71 lines'
plant functions engine/bad.c "OX_PRINTF(1, 2)\\nint ox_bad(int (*f)(int),\\n int b) {\\n$(repeat '    { }' 70)}\\n" \
    'engine/bad.c:1: ox_bad has 74 lines'
plant files engine/bad.c "$(repeat '/* */' 801)" 'engine/bad.c:801: the file has 801 lines'
plant columns engine/bad.c '/* %0115d */\n' 'engine/bad.c:1: the line has 121 columns'
plant columns engine/bad.c '\tint a;\n' 'engine/bad.c:1: a tab'
plant params engine/bad.h 'int ox_bad(int a, int b, int (*c)(int, int), int d, int e,\n int f, int g);\n' \
    'engine/bad.h:1: ox_bad takes 7 parameters'
plant params engine/bad.c 'int ox_bad(int a, int b, int c, int d, int e, int f, int g) {\n}\n' 'ox_bad takes 7'
for name in strcpy strcat sprintf vsprintf gets system popen atoi alloca rand; do
    plant calls engine/bad.c "int f(void) {\\n    return $name (0);\\n}\\n" 'engine/bad.c:2: a banned call'
    plant calls tests/unit/bad.c "int f(void) {\\n    return ($name(0));\\n}\\n" 'tests/unit/bad.c:2: a banned call'
done
plant calls engine/bad.c '#include <assert.h>\n' 'engine/bad.c:1: assert'
plant calls tests/unit/bad.c 'void f(void) { assert(0); }\n' 'tests/unit/bad.c:1: assert'
plant environment engine/bad.c 'const char *f(void) { return getenv("A"); }\n' 'engine/bad.c:1: the environment'
for name in exit _exit abort printf puts putchar perror; do
    plant printing engine/bad.c "void f(void) { $name(0); }\\n" 'engine/bad.c:1: only tools/'
done
plant printing nvme/bad.c '\nvoid f(void) { fprintf(stderr, "a"); }\n' 'nvme/bad.c:2: only tools/'
plant allocation engine/step_bad.c 'void *ox_step_run(void) {\n    return calloc(1, 1);\n}\n' \
    'engine/step_bad.c:2: ox_step_run allocates'
plant statuses engine/bad.c 'void f(void) { (void) ox_bad(1); }\n' 'engine/bad.c:1: a dropped status'
plant statuses tests/unit/bad.c 'void f(void) { (void)ox_folder_make("a"); }\n' 'tests/unit/bad.c:1: a dropped status'
plant macros engine/bad.h '#define BAD(x) (x)\n' 'engine/bad.h:1: a function-like macro'
plant mathflags Makefile 'CFLAGS += -ffast-math\n' 'Makefile:4: fast-math'
plant mathflags engine/bad.c '#pragma GCC optimize("O3")\n' 'engine/bad.c:1: fast-math'
plant mathflags build.mk 'NVFLAGS := --use_fast_math\n' 'build.mk:1: fast-math'
plant mathflags Makefile 'NVCC_FLAGS += -ftz=true\n' 'Makefile:4: fast-math'
plant mathflags build.mk 'NVCC_FLAGS := -prec-div=false\n' 'build.mk:1: fast-math'
plant mathflags kernels/cuda/planes.cu '\n' 'Makefile:1: kernels/cuda/planes.cu needs'
plant marks engine/bad.c '/* TO''DO: later */\n' 'engine/bad.c:1: unfinished'

clean_tree
echo 'int ox_fine(void); int bad_name(void); int ox_fine(void) { return 0; } int bad_name(void) { return 1; }' \
    >"$root/engine/bad.c"
planted=$((planted + 1))
if "${CC:-gcc}" -c -o "$root/bad.o" "$root/engine/bad.c" && ar rcs "$root/bad.a" "$root/bad.o"; then
    case $(run_check symbols -l "$root/bad.a") in
    *ox_fine*) failed=$((failed + 1)) && echo "tidy_test: symbols complains about ox_fine" ;;
    *'bad.o: exports bad_name'*) ;;
    *) failed=$((failed + 1)) && echo "tidy_test: symbols missed bad_name" ;;
    esac
else
    failed=$((failed + 1))
    echo "tidy_test: the planted library could not be built"
fi

echo "tidy_test: $planted planted violations, $failed checks wrong"
[ "$failed" -eq 0 ]
