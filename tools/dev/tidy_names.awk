# Reads the list of all files and then texts, and prints each name of a source in their comments that no file has, where
# nothing else would notice that it moved. After "shared by", a name without a folder is of the same folder.
FILENAME == list {
    path = $0
    known[path] = 1
    while (sub(/^[^\/]*\//, "", path))
        known[path] = 1
    next
}
FNR == 1 {
    folder = FILENAME
    sub(/[^\/]*$/, "", folder)
    is_page = FILENAME ~ /\.md$/
    shared = 0
}
!is_page && !/\/\*|^[ \t]*\*|\/\// { next }
{
    line = $0
    if (!is_page)
        sub(/^.*\/[*\/]/, "", line)
    shared = tolower(line) ~ /shared by/ || (shared && line !~ /\. /)
    while (match(line, /[A-Za-z0-9_.\/<>*{}-]*[a-z0-9_]\.(c|h|cu|cuh|inc|awk)/)) {
        name = substr(line, RSTART, RLENGTH)
        line = substr(line, RSTART + RLENGTH)
        if (line ~ /^[A-Za-z0-9_(-]/ || line ~ /^\.[a-z]/ || name !~ /^[a-z0-9_\/]+\.[a-z]+$/ || name == "llm.c")
            continue
        if (!(name in known) || (shared && name !~ /\// && !((folder name) in known)))
            print FILENAME ":" FNR ": names " name ", which is not there"
    }
}
