# Read before an awk script that looks for functions in stripped sources: leaves out preprocessor lines and what stands
# in #ifdef __cplusplus. Calls start_file(), which that script defines, at the start of each file.
FNR == 1 {
    skipping = continued = 0
    start_file()
}
/^[ \t]*#[ \t]*ifdef[ \t]+__cplusplus/ { skipping = 1 }
skipping {
    if ($0 ~ /^[ \t]*#[ \t]*endif/)
        skipping = 0
    next
}
continued || /^[ \t]*#/ {
    continued = $0 ~ /\\$/
    next
}
