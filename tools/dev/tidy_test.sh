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
    mkdir -p "$root/base" "$root/kernels/cuda" "$root/offload/plan" "$root/engine/step" "$root/engine/run" \
        "$root/tests/unit/engine/run"
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
    cat >"$root/engine/step/good.c" <<'TEXT'
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
        >>"$root/engine/step/good.c"
    printf '/* %0104d */\n' 0 >>"$root/engine/step/good.c"
    printf '/* %0102dé */\n' 0 >>"$root/engine/step/good.c"
    echo '#include "kernels/device.h"' >"$root/offload/plan/good.c"
    echo '#include "base/good.h"' >"$root/kernels/device.h"
    echo 'int ox_same(void) { return 0; }' >"$root/kernels/cuda/adam.cu"
    echo 'int main(void) { return 0; }' >"$root/tests/unit/engine/run/test_good.c"
    printf 'NVCC_FLAGS_adam := -fmad=false\nobject:\n\tnvcc $(NVCC_FLAGS_$*)\n' >"$root/Makefile"
    printf 'void *ox_step_open(void) {\n    return malloc(1);\n}\n' >"$root/engine/step/step.c"
    mkdir -p "$root/docs"
    cat >"$root/docs/good.md" <<'TEXT'
`base/good.h`, `base/`, `engine/*/good.c`, `build/tests/unit/engine/run/test_good --list`, `test_good`, `run/test_good`, `build/liboffload.a`, `good.*`, `.c`, `base/<name>.h`,
`base/NAME/x.h`, `ox_good(1)`, `ox_good_*`, `GOOD_TEXT`, `NVCC_FLAGS_adam`, `llm.c`, `--no_flag`, ox_gone_unquoted
    $ cat base/good.h ox_gone_output
TEXT
    for folder in base kernels kernels/cuda offload/plan engine/step; do
        (cd "$root/$folder" && printf '`%s`\n' *.* >README.md && echo 'Used by all.' >>README.md)
    done
    echo '`test_good`, `test_*.inc`' >"$root/tests/unit/README.md"
    echo >"$root/tests/unit/engine/run/test_rows.inc"
    mkdir -p "$root/tests/golden/formats/old" && echo >"$root/tests/golden/formats/old/run.json"
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
for check in layers readmes users headers functions files columns params calls environment printing allocation statuses macros \
    mathflags marks words names mesh places; do
    output=$(run_check "$check") || {
        echo "tidy_test: $check complains about a clean tree:"
        echo "$output" | sed 's/^/  /'
        failed=$((failed + 1))
    }
done

plant_include() { # file, header, what is said
    plant layers "$1" "\\n#include \"$2\"\\n" "$1:2: $3"
}
plant_include base/bad.c nvme/io.h 'base may not include nvme'
plant_include base/hash/bad.c base/prng/prng.h 'base/hash may not include base/prng'
plant_include base/prng/bad.c base/file.h 'base/prng may not include base/file.h'
plant_include nvme/bad.c kernels/device.h 'nvme may not include kernels'
plant_include cpu_optim/bad.c engine/model/model.h 'cpu_optim may not include engine/model'
plant_include kernels/bad.c kernels/cpu/vector.h 'kernels may not include kernels/cpu/vector.h'
plant_include kernels/cpu/bad.c kernels/cuda/cudnn.h 'kernels/cpu may not include kernels/cuda'
plant_include kernels/cuda/bad.cu cpu_optim/optim.h 'kernels/cuda may not include cpu_optim'
plant_include offload/plan/bad.c kernels/ops.h 'offload/plan may not include kernels/ops.h'
plant_include offload/proof/bad.c offload/plan/tier.h 'offload/proof may not include offload/plan/tier.h'
plant_include offload/proof/bad.c offload/plan/internal.h "offload/proof may not include offload/plan/internal.h"
plant_include offload/sim/bad.c offload/search/placement_internal.h 'offload/sim may not include offload/search'
plant_include offload/search/bad.c offload/plan/internal.h 'offload/plan/internal.h is private to offload/plan'
plant_include offload/trace/bad.c engine/step/engine.h 'offload/trace may not include engine/step'
plant_include engine/text/bad.c engine/data/data.h 'engine/text may not include engine/data'
plant_include engine/config/bad.c nvme/io.h 'engine/config may not include nvme'
plant_include engine/model/bad.c engine/hf/hf.h 'engine/model may not include engine/hf'
plant_include engine/data/bad.c engine/text/tokenizer_internal.h "engine/text/tokenizer_internal.h is private"
plant_include engine/hf/bad.c engine/step/engine.h 'engine/hf may not include engine/step'
plant_include engine/step/bad.c engine/run/trainer.h 'engine/step may not include engine/run'
plant_include engine/report/bad.c engine/data/data.h 'engine/report may not include engine/data'
plant_include engine/checkpoint/bad.c engine/step/rank_internal.h "engine/step/rank_internal.h is private"
plant_include engine/generate/bad.c engine/step/engine.h 'engine/generate may not include engine/step'
plant_include engine/run/bad.c engine/generate/generate.h 'engine/run may not include engine/generate'
plant_include tools/doctor/bad.c tools/command/cmd.h 'tools/doctor may not include tools/command'
plant_include tools/bench/bad.c tools/command/cmd.h 'tools/bench may not include tools/command'
plant_include tools/command/bad.c nvme/store_impl.h 'nvme/store_impl.h is private to nvme'
plant_include tools/help/bad.c engine/run/trainer.h 'tools/help may not include engine/run'
plant_include tools/demo/bad.c engine/text/tokenizer.h 'tools/demo may not include engine/text'
plant_include tests/kit/bad.c tests/unit/engine/run/x.h 'tests/kit may not include tests/unit/engine/run'
plant_include tests/kit/bad.c tests/kit/run/x.h 'tests/kit may not include tests/kit/run'
plant_include tests/kit/run/bad.c tests/kit/device/x.h 'tests/kit/run may not include tests/kit/device'
plant_include tests/sys/train/bad.c tests/golden/x.h 'tests/sys/train may not include tests/golden'
plant_include engine/run/bad.c tests/kit/test.h 'engine/run may not include tests/kit'
plant_include engine/run/bad.c model.h '"model.h" is not written from the root'
plant_include engine/run/bad.c ../base/good.h '"../base/good.h" is not written from the root'
plant edges tools/demo/bad.c 'int a;\n' 'tools/demo may include engine/data, and does not'
for pair in 'layers base/a.h base/b.h' 'edges tools/demo/a.c engine/data/a.h'; do
    # shellcheck disable=SC2086 # three words: a check, and two files of which each includes the other
    set -- $pair
    clean_tree
    mkdir -p "$root/${2%/*}" "$root/${3%/*}"
    echo "#include \"$3\"" >"$root/$2"
    echo "#include \"$2\"" >"$root/$3"
    planted=$((planted + 1))
    case $1:$(run_check "$1") in
    layers:*'.h:1: includes base/'*', which includes it'*) ;;
    layers:* | edges:*tools/demo*) failed=$((failed + 1)) && echo "tidy_test: $1 is wrong about $2, which includes $3" ;;
    esac
done
for folder in engine tools/extra extra tests/sys tests/unit tests/unit/engine tests/unit/offload; do
    plant layers "$folder/bad.c" '#include "base/good.h"\n' "$folder/bad.c:1: the folder $folder is no room"
done
plant readmes engine/step/bad.c 'int a;\n' 'engine/step/README.md:1: does not name `bad.c`'
plant readmes tests/unit/engine/run/bad.c 'int a;\n' 'tests/unit/README.md:1: does not name `bad.c` of tests/unit/engine/run'
plant readmes tests/extra/bad.c 'int a;\n' 'tests/extra/README.md:1: is missing'
plant readmes tools/extra/bad.sh 'true\n' 'tools/extra/README.md:1: is missing'
plant readmes engine/bad.c 'int a;\n' 'engine/bad.c:1: lies beside the rooms of engine'
for folder in base tests/unit/base; do
    clean_tree
    mkdir -p "$root/$folder"
    i=0
    while [ $i -lt 31 ]; do
        i=$((i + 1))
        echo 'int a;' >"$root/$folder/many$i.c"
        echo "\`many$i.c\`" >>"$root/$folder/README.md"
    done
    planted=$((planted + 1))
    case $(run_check readmes) in
    *"$folder:1: more than 30 files"*) ;;
    *) failed=$((failed + 1)) && echo "tidy_test: readmes missed a folder of more than 30 files in $folder" ;;
    esac
done
plant users engine/step/README.md 'Used\nby `kernels/`.\n' 'kernels includes nothing of engine/step'
plant users kernels/README.md 'Used by `kernels/{cuda,cpu}`.\n' 'kernels/cuda includes nothing of kernels'
plant users kernels/README.md 'Used by `engine/step`.\n' 'leaves out offload/plan, which includes kernels'
plant users tools/demo/README.md 'Used by `base`.\n' 'base includes nothing of tools/demo'
plant users engine/step/bad.h '/* Shared by step.c. */\n' 'engine/step/step.c includes nothing of engine/step/bad.h'
plant headers base/bad.h 'static inline uint64_t ox_f(void) { return 0; }\n' 'base/bad.h:1: does not compile alone as C11'
if echo 'int main() { return 0; }' | "${CXX:-g++}" -x c++ -fsyntax-only - 2>/dev/null; then
    plant headers base/bad.h 'struct bad { int class; };\n' 'base/bad.h:1: does not compile alone as C++17'
fi
plant tags engine/run/bad.h 'struct good {\n    int a;\n};\n' 'good, as base/good.h does; rename one'
plant functions engine/run/bad.c "static int bad(void)\\n{\\n$(repeat '    ;' 68)}\\n" 'engine/run/bad.c:1: bad has 71 lines'
plant functions engine/run/bad.c "OX_PRINTF(1, 2)\\nint ox_bad(int (*f)(int),\\n int b) {\\n$(repeat '    { }' 70)}\\n" \
    'engine/run/bad.c:1: ox_bad has 74 lines'
plant files engine/run/bad.c "$(repeat '/* */' 801)" 'engine/run/bad.c:801: the file has 801 lines'
plant columns engine/run/bad.c '/* %0115d */\n' 'engine/run/bad.c:1: the line has 121 columns'
plant columns engine/run/bad.c '\tint a;\n' 'engine/run/bad.c:1: a tab'
plant params engine/run/bad.h 'int ox_bad(int a, int b, int (*c)(int, int), int d, int e,\n int f, int g);\n' \
    'engine/run/bad.h:1: ox_bad takes 7 parameters'
plant params engine/run/bad.c 'int ox_bad(int a, int b, int c, int d, int e, int f, int g) {\n}\n' 'ox_bad takes 7'
for name in strcpy strcat sprintf vsprintf gets system popen atoi alloca rand; do
    plant calls engine/run/bad.c "int f(void) {\\n    return $name (0);\\n}\\n" 'engine/run/bad.c:2: a banned call'
    plant calls tests/unit/engine/run/bad.c "int f(void) {\\n    return ($name(0));\\n}\\n" 'tests/unit/engine/run/bad.c:2: a banned call'
done
plant calls engine/run/bad.c '#include <assert.h>\n' 'engine/run/bad.c:1: assert'
plant calls tests/unit/engine/run/bad.c 'void f(void) { assert(0); }\n' 'tests/unit/engine/run/bad.c:1: assert'
plant environment engine/run/bad.c 'const char *f(void) { return getenv("A"); }\n' 'engine/run/bad.c:1: the environment'
for name in exit _exit abort printf puts putchar perror; do
    plant printing engine/run/bad.c "void f(void) { $name(0); }\\n" 'engine/run/bad.c:1: only tools/'
done
plant printing nvme/bad.c '\nvoid f(void) { fprintf(stderr, "a"); }\n' 'nvme/bad.c:2: only tools/'
plant allocation engine/step/bad.c 'void *ox_step_run(void) {\n    return calloc(1, 1);\n}\n' \
    'engine/step/bad.c:2: ox_step_run allocates'
plant statuses engine/run/bad.c 'void f(void) { (void) ox_bad(1); }\n' 'engine/run/bad.c:1: a dropped status'
plant statuses tests/unit/engine/run/bad.c 'void f(void) { (void)ox_folder_make("a"); }\n' 'tests/unit/engine/run/bad.c:1: a dropped status'
plant macros engine/run/bad.h '#define BAD(x) (x)\n' 'engine/run/bad.h:1: a function-like macro'
plant mathflags Makefile 'CFLAGS += -ffast-math\n' 'Makefile:4: fast-math'
plant mathflags engine/run/bad.c '#pragma GCC optimize("O3")\n' 'engine/run/bad.c:1: fast-math'
plant mathflags build.mk 'NVFLAGS := --use_fast_math\n' 'build.mk:1: fast-math'
plant mathflags Makefile 'NVCC_FLAGS += -ftz=true\n' 'Makefile:4: fast-math'
plant mathflags build.mk 'NVCC_FLAGS := -prec-div=false\n' 'build.mk:1: fast-math'
plant mathflags kernels/cuda/planes.cu '\n' 'Makefile:1: kernels/cuda/planes.cu needs'
plant marks engine/run/bad.c '/* TO''DO: later */\n' 'engine/run/bad.c:1: unfinished'
for code in 'input->ranks.idx %% 2' 'input->ranks.idx == 0' 'at / e->in->ranks.idx' 'ox_mesh_at(mesh, 1, 0)' \
    'ox_plan_group(input, 1).idx == 0'; do
    plant mesh offload/plan/bad.c "\\nint x = $code;\\n" 'offload/plan/bad.c:2: compares where a rank lies'
done
for file in x/notes.md extra/good.c core note.txt .env .ci; do
    plant places "$file" 'a\n' "$file:1: the top of the tree has no such place"
done
for file in run.json config.resolved.yaml metrics.jsonl plan.txt trainer_state.json gemms.txt; do
    plant places "tests/golden/$file" 'a\n' "tests/golden/$file:1: is written by a run"
done

plant patches tests/negative/bad.patch 'A bug.\n--- a/base/gone.c\n+++ b/base/gone.c\n@@ -1,1 +1,1 @@\n-int a;\n+int b;\n' 'tests/negative/bad.patch:1: no longer applies'
plant names engine/step/bad.h '/* Shared by good.c\n * and gone.c. */\n' 'engine/step/bad.h:2: names gone.c'
plant names engine/step/bad.h '/* Shared by step.c and adam.cu. */\n' 'engine/step/bad.h:1: names adam.cu'
plant names engine/README.md 'see `run/gone.c`\n' 'engine/README.md:1: names run/gone.c'
plant names docs/bad.md 'see gone.c\n' 'docs/bad.md:1: names gone.c'
plant names docs/bad.md '\n`base/gone_*.c`\n' 'docs/bad.md:2: names base/gone_*.c'
plant names docs/bad.md '`sh gone.sh`\n' 'docs/bad.md:1: names gone.sh'
plant names docs/bad.md '`base/gone/`\n' 'docs/bad.md:1: names base/gone,'
plant names docs/bad.md '`build/tests/gone --list`\n' 'docs/bad.md:1: names tests/gone,'
plant names docs/bad.md '    base/gone 1\n' 'docs/bad.md:1: names base/gone,'
plant names docs/bad.md '`ox_gone(1)`\n' 'docs/bad.md:1: names ox_gone,'
plant names base/README.md '`OX_GONE`\n' 'names OX_GONE,'
plant names docs/bad.md '`run/test_gone`\n' 'docs/bad.md:1: names run/test_gone,'
plant names docs/bad.md '`test_gone`\n' 'docs/bad.md:1: names test_gone,'

plant_word() { # file, line of it, what is said
    clean_tree
    mkdir -p "$root/docs" "$root/$(dirname "$1")"
    printf '%s\n' '| `hold` | view |' '## Retired words' '| `leased` | viewed |' '| `task.old` | carried |' >"$root/docs/words.md"
    printf '/* unleased leased_by */\n%s\n' "$2" >>"$root/$1"
    planted=$((planted + 1))
    output=$(run_check words)
    case $?:$output in
    1:*"$1:2: $3"*'tidy words: 1'*) ;;
    *) failed=$((failed + 1)) && echo "tidy_test: words missed '$2' in $1: $output" ;;
    esac
}
plant_word engine/run/bad.c 'int leased = hold;' 'leased is retired; use viewed'
plant_word engine/run/bad.c '/* it is leased. */' 'leased is retired'
plant_word engine/run/bad.c 'f("leased");' 'leased is retired'
plant_word docs/bad.md 'a leased view' 'leased is retired'
plant_word tools/dev/bad.sh 'echo leased' 'leased is retired'
plant_word engine/run/bad.c 'if (task.old) {' 'task.old is retired; use carried'

clean_tree
echo 'int ox_fine(void); int bad_name(void); int ox_fine(void) { return 0; } int bad_name(void) { return 1; }' \
    >"$root/engine/run/bad.c"
echo 'int ox_twice(void); int ox_twice(void) { return 0; }' | tee "$root/one.c" >"$root/two.c"
planted=$((planted + 2))
if (cd "$root" && "${CC:-gcc}" -c engine/run/bad.c one.c two.c && ar rcs bad.a bad.o one.o two.o); then
    output=$(run_check symbols -l "$root/bad.a")
    for expected in 'bad.o: exports bad_name' 'two.o: defines ox_twice, as one.o does' 'tidy symbols: 2'; do
        case $output in
        *"$expected"*) ;;
        *) failed=$((failed + 1)) && echo "tidy_test: symbols: expected '$expected': $output" ;;
        esac
    done
else
    failed=$((failed + 1))
    echo "tidy_test: the planted library could not be built"
fi

echo "tidy_test: $planted planted violations, $failed checks wrong"
[ "$failed" -eq 0 ]
