# Read by scripts of this folder that run the program: they start in the root of the sources, and without what would
# change the sums of OpenBLAS. Scripts of a folder within this one set below=/.. before.
cd "$(dirname "$0")/../..${below:-}" || exit 2
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE

# Prints the comment at the head of the script and ends it.
usage() {
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
