#!/bin/sh
# Finds the compilers and libraries of this machine by compiling and linking a probe for each item.
#
#   tools/dev/detect.sh build/config.mk   prints one line per item and writes the file that the Makefile reads;
#                                         fails and leaves no file when a required item is missing
#   tools/dev/detect.sh --missing         prints the Debian packages of missing items that building and testing need
set -u

CC=${CC:-gcc}
CXX=${CXX:-g++}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/offload-detect-XXXXXX") || exit 2
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

quiet=0
output=
case ${1:-} in
--missing) quiet=1 ;;
-* | '') echo "usage: tools/dev/detect.sh OUTPUT | --missing" >&2; exit 2 ;;
*) output=$1 ;;
esac
missing=
wanted=

say() { # item, state, detail
    [ "$quiet" -eq 1 ] || printf '  %-10s %-8s %s\n' "$1" "$2" "$3"
}

config() {
    printf '%s\n' "$1" >>"$scratch/config.mk"
}

# Compiles and links a C program from stdin with the given flags.
links() {
    cat >"$scratch/probe.c"
    "$CC" -D_GNU_SOURCE -o "$scratch/probe" "$scratch/probe.c" "$@" >"$scratch/log" 2>&1
}

# Prints the version from the library's .pc file, without needing pkg-config.
pc_version() { # library, name of the .pc file
    folder=$(dirname "$("$CC" -print-file-name="lib$1.so" 2>/dev/null)")
    for file in "$folder/pkgconfig/$2.pc" "/usr/share/pkgconfig/$2.pc" "/usr/local/lib/pkgconfig/$2.pc"; do
        if [ -f "$file" ]; then
            stated=$(sed -n 's/^Version:[[:space:]]*//p' "$file" | head -n 1)
            case $stated in
            *'${version}'*) sed -n 's/^version=[[:space:]]*//p' "$file" | head -n 1 ;;
            *) printf '%s\n' "$stated" ;;
            esac
            return
        fi
    done
    echo "unknown version"
}

required() { # item, library, .pc name, Debian package, header, expression
    if printf '#include <stdio.h>\n%s\nint main(void) { return %s; }\n' "$5" "$6" | links "-l$2"; then
        say "$1" found "$(pc_version "$2" "$3")"
    else
        say "$1" missing "required; Debian package $4"
        missing="$missing $4"
    fi
}

compiler() {
    if printf '#include <stdio.h>\nint main(void) { return 0; }\n' | links; then
        say compiler found "$CC $("$CC" -dumpfullversion 2>/dev/null || "$CC" -dumpversion)"
    else
        say compiler missing "$CC cannot build a program; Debian packages gcc libc6-dev"
        missing="$missing gcc libc6-dev"
    fi
}

# The program needs no C++ compiler; the tests use one to run the sources of the CUDA plugin on an emulation.
cxx() {
    echo 'int main() { return 0; }' >"$scratch/probe.cc"
    if "$CXX" -std=c++17 -o "$scratch/probe" "$scratch/probe.cc" >"$scratch/log" 2>&1; then
        say C++ found "$CXX $("$CXX" -dumpfullversion 2>/dev/null || "$CXX" -dumpversion)"
    else
        say C++ missing "the tests need it; Debian package g++"
        wanted="$wanted g++"
    fi
}

libraries() {
    required liburing uring liburing liburing-dev '#include <liburing.h>' \
        'io_uring_queue_init(1, (struct io_uring *)0, 0)'
    required libnuma numa numa libnuma-dev '#include <numa.h>' 'numa_available()'
    required OpenBLAS openblas openblas libopenblas-dev '#include <cblas.h>' \
        '(cblas_sgemm != 0) + openblas_get_num_threads()'
    required jansson jansson jansson libjansson-dev '#include <jansson.h>' 'json_object() != NULL'
    required libyaml yaml yaml-0.1 libyaml-dev '#include <yaml.h>' 'yaml_get_version_string() != NULL'
    required PCRE2 pcre2-8 libpcre2-8 libpcre2-dev \
        '#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>' 'pcre2_config(PCRE2_CONFIG_JIT, NULL)'
    required utf8proc utf8proc libutf8proc libutf8proc-dev '#include <utf8proc.h>' 'utf8proc_version() != NULL'
    required xxHash xxhash libxxhash libxxhash-dev '#include <xxhash.h>' '(int)XXH3_64bits("", 0)'
    required zlib z zlib zlib1g-dev '#include <zlib.h>' 'zlibVersion() != NULL'
    required zstd zstd libzstd libzstd-dev '#include <zstd.h>' '(int)ZSTD_versionNumber()'
    required liblzma lzma liblzma liblzma-dev '#include <lzma.h>' '(int)lzma_version_number()'
}

# Finds the toolkit's folder. The distribution's, NVIDIA's installer and the pip wheels all have nvcc in bin/, headers
# in include/ and libraries in lib64/ or lib/ of one folder. Only links to nvcc itself are followed.
cuda_home() { # nvcc
    for nvcc in "$1" "$(readlink -f "$1")"; do
        home=$(dirname "$(dirname "$nvcc")")
        [ ! -f "$home/include/cuda_runtime.h" ] || break
    done
}

cuda_missing() { # reason; fails when NVCC was given
    config "HAVE_CUDA := 0"
    if [ -n "${NVCC:-}" ]; then
        say CUDA missing "$1"
        echo "offload: NVCC=$NVCC cannot be used: $1; correct it, or unset it to build without CUDA" >&2
        rm -f "$output"
        exit 1
    fi
    say CUDA missing "optional; $1"
}

# The probe is compiled for every architecture of the plugin, so that an outdated toolkit is detected here instead of by
# a failing build.
cuda() {
    if [ -n "${NVCC:-}" ]; then
        nvcc=$(command -v "$NVCC") || nvcc=
        [ -n "$nvcc" ] || cuda_missing "no such program"
    else
        for nvcc in "${CUDA_HOME:-/nowhere}/bin/nvcc" /usr/local/cuda/bin/nvcc "$(command -v nvcc)"; do
            [ ! -x "$nvcc" ] || break
        done
    fi
    if [ ! -x "$nvcc" ]; then
        cuda_missing "no nvcc in CUDA_HOME, /usr/local/cuda or PATH"
        return
    fi
    cuda_home "$nvcc"
    lib=$home/lib64
    [ -d "$lib" ] || lib=$home/lib
    gencode=
    for arch in ${CUDA_ARCHS:-}; do gencode="$gencode -gencode arch=compute_$arch,code=sm_$arch"; done
    cat >"$scratch/probe.cu" <<'PROBE'
#include <cuda_runtime.h>
#include <cublasLt.h>
__global__ void probe(int *p) { *p = 1; }
int main() { probe<<<1, 1>>>(nullptr); return cudaDeviceSynchronize() + (int)cublasLtGetVersion(); }
PROBE
    version=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    rm -f "$scratch/probe"
    # shellcheck disable=SC2086 # the flags are a list
    if "$nvcc" $gencode -I"$home/include" -L"$lib" -o "$scratch/probe" "$scratch/probe.cu" -lcublasLt \
        >"$scratch/log" 2>&1 && [ -x "$scratch/probe" ]; then
        say CUDA found "nvcc $version in $home"
        config "HAVE_CUDA := 1"
        config "CUDA_NVCC := $nvcc"
        config "CUDA_HOME := $home"
        config "CUDA_LIB := $lib"
        cuda_flags="-I$home/include -L$lib"
    else
        cuda_missing "nvcc ${version:-of unknown version} in $home cannot build a program: $(grep -m 1 -iE \
            'error|fatal|not found|cannot|unsupported' "$scratch/log")"
    fi
}

# Looks for headers only: the library is opened at run time and may be absent here.
cudnn() {
    # shellcheck disable=SC2086 # the flags are a list
    if printf '#include <cudnn_backend.h>\nint main(void) { return CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR; }\n' |
        links $cuda_flags; then
        version=$(printf '#include <cudnn_version.h>\nversion CUDNN_MAJOR.CUDNN_MINOR.CUDNN_PATCHLEVEL\n' \
            >"$scratch/v.c" && "$CC" $cuda_flags -E -P "$scratch/v.c" 2>/dev/null | sed -n 's/^version //p' | tr -d ' ')
        say cuDNN found "headers of $version"
        config "HAVE_CUDNN := 1"
    else
        say cuDNN missing "optional; attention uses the project's own kernels"
        config "HAVE_CUDNN := 0"
    fi
}

nccl() {
    # shellcheck disable=SC2086 # the flags are a list
    if printf '#include <stdio.h>\n#include <nccl.h>\nint main(void) {
        int version; printf("%%d.%%d.%%d\\n", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
        return (int)ncclGetVersion(&version); }\n' |
        links $cuda_flags -lnccl -Wl,--allow-shlib-undefined; then
        version=$(printf '#include <nccl.h>\nversion NCCL_MAJOR.NCCL_MINOR.NCCL_PATCH\n' >"$scratch/v.c" &&
            "$CC" $cuda_flags -E -P "$scratch/v.c" 2>/dev/null | sed -n 's/^version //p' | tr -d ' ')
        say NCCL found "$version"
        config "HAVE_NCCL := 1"
    else
        say NCCL missing "optional; a single GPU works without it"
        config "HAVE_NCCL := 0"
    fi
}

mpi() {
    mpicc=$(command -v "${MPICC:-mpicc}") || mpicc=
    printf '#include <mpi.h>\nint main(int c, char **v) { return MPI_Init(&c, &v); }\n' >"$scratch/mpi.c"
    if [ -n "$mpicc" ] && "$mpicc" -o "$scratch/probe" "$scratch/mpi.c" >"$scratch/log" 2>&1; then
        say MPI found "$mpicc, MPI standard $(printf '#include <mpi.h>\nversion MPI_VERSION.MPI_SUBVERSION\n' \
            >"$scratch/v.c" && "$mpicc" -E -P "$scratch/v.c" | sed -n 's/^version //p' | tr -d ' ')"
        config "HAVE_MPI := 1"
        config "MPICC := $mpicc"
    else
        say MPI missing "optional; one process works without it, and the tests want it; Debian package libopenmpi-dev"
        wanted="$wanted libopenmpi-dev openmpi-bin"
        config "HAVE_MPI := 0"
    fi
}

# Opened at run time; the program is built without it.
onednn() {
    if printf 'void *dnnl_version(void);\nint main(void) { return dnnl_version() == 0; }\n' | links -ldnnl; then
        say oneDNN found "$(printf '#include <oneapi/dnnl/dnnl_version.h>\nversion %s\n' \
            DNNL_VERSION_MAJOR.DNNL_VERSION_MINOR.DNNL_VERSION_PATCH >"$scratch/v.c" &&
            "$CC" -E -P "$scratch/v.c" 2>/dev/null | sed -n 's/^version //p' | tr -d ' ')"
    else
        say oneDNN missing "optional; --dtype bf16 on a CPU is faster with it; Debian package libdnnl-dev"
        [ "$(uname -m)" != x86_64 ] || wanted="$wanted libdnnl-dev"
    fi
}

config "# Written by tools/dev/detect.sh; make detect writes it again."
config "DETECTED_FOR := $CC${NVCC:+ $NVCC}"
compiler
cxx
case $missing in
'') libraries ;;
*) missing="$missing liburing-dev libnuma-dev libopenblas-dev libjansson-dev libyaml-dev libpcre2-dev \
libutf8proc-dev libxxhash-dev zlib1g-dev libzstd-dev liblzma-dev" ;;
esac
if [ "$quiet" -eq 1 ]; then
    mpi
    onednn
    for package in $missing $wanted; do echo "$package"; done
    exit 0
fi
cuda_flags=
cuda
cudnn
nccl
mpi
onednn
if [ -n "$missing" ]; then
    rm -f "$output"
    echo "offload needs the missing items above; on Debian or Ubuntu \`make deps\` installs:$missing" >&2
    exit 1
fi
mkdir -p "$(dirname "$output")" && mv "$scratch/config.mk" "$output"
