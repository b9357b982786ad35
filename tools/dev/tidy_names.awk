# Reads the list of all files, the names that stand in code, the names that stand in any text, and then sources and
# pages. Prints names that nothing has, where nothing else would notice that it moved:
#   in comments and pages    files of sources; after "shared by", a name without a folder is of the same folder
#   in back quotes in pages  also other files, folders, programs and names with an underscore, of which ox_ names must
#                            stand in code. A star stands for anything; what has a part like <name> or NAME is no name.
function remember(path,    part) {
    known[path] = known[stem(path)] = 1
    part = path
    while (sub(/\/[^\/]*$/, "", part))
        known[part] = is_folder[part] = 1
    part = path
    while (sub(/^[^\/]*\//, "", part))
        known[part] = known[stem(part)] = 1
}
function stem(path) {
    sub(/\.[a-z]+$/, "", path)
    return path
}
function complain(name) {
    print FILENAME ":" FNR ": names " name ", which is not there"
}
function is_pattern_of_any(name,    path) {
    gsub(/\./, "[.]", name)
    gsub(/\*/, "[^/]*", name)
    for (path in known)
        if (path ~ "^" name "$")
            return 1
    return 0
}
# A path from the root, a program with a folder, or a file of a kind that the tree has.
function is_path(name,    top) {
    top = name
    sub(/\/.*/, "", top)
    return (top != name && top in is_folder) || name ~ /\/(test|bench)_[a-z0-9_*]+$/ ||
        name ~ /[a-z0-9_*]\.(c|h|cu|cuh|inc|awk|sh|py|js|css|patch)$/
}
# A name that is looked up wherever it stands.
function is_plain_source(name) {
    return name ~ /^[a-z0-9_\/]+\.(c|h|cu|cuh|inc|awk)$/
}
function check_quoted(text, is_line,    words, count, i, name) {
    count = split(text, words, /[^A-Za-z0-9_.\/*<>-]+/)
    for (i = 1; i <= count; i++) {
        name = words[i]
        sub(/^build\/tests\//, "tests/", name)
        sub(/[\/.]+$/, "", name)
        if (name ~ /[<>]|(^|\/)[A-Z]+(\/|$)|^-/ || is_plain_source(name))
            continue
        if (is_path(name)) {
            if (name ~ /\*/ ? !is_pattern_of_any(name) : !(name in known))
                complain(name)
        } else if (!is_line && name ~ /^[A-Za-z0-9][A-Za-z0-9_]*_[A-Za-z0-9_]*[A-Za-z0-9]$/) {
            if (name ~ /^ox_/ ? !(name in in_code) : !(name in in_text) && !(name in known))
                complain(name)
        }
    }
}
FILENAME == list {
    remember($0)
    next
}
FILENAME == code_names {
    in_code[$0] = 1
    next
}
FILENAME == text_names {
    in_text[$0] = 1
    next
}
FNR == 1 {
    folder = FILENAME
    sub(/[^\/]*$/, "", folder)
    is_page = FILENAME ~ /\.md$/
    shared = is_over = 0
}
# The words of docs/words.md that are retired are there to be gone.
/^## Retired words/ { is_over = 1 }
is_over || !is_page && !/\/\*|^[ \t]*\*|\/\// { next }
is_page {
    line = $0
    if (line ~ /^    /)
        check_quoted(line, 1)
    while (match(line, /`[^`]+`/)) {
        check_quoted(substr(line, RSTART + 1, RLENGTH - 2), 0)
        line = substr(line, RSTART + RLENGTH)
    }
}
{
    line = $0
    if (!is_page)
        sub(/^.*\/[*\/]/, "", line)
    shared = tolower(line) ~ /shared by/ || (shared && line !~ /\. /)
    while (match(line, /[A-Za-z0-9_.\/<>*{}-]*[a-z0-9_]\.(c|h|cu|cuh|inc|awk)/)) {
        name = substr(line, RSTART, RLENGTH)
        line = substr(line, RSTART + RLENGTH)
        if (line ~ /^[A-Za-z0-9_(-]/ || line ~ /^\.[a-z]/ || !is_plain_source(name))
            continue
        if (name == "llm.c") # another project
            continue
        if (!(name in known) || (shared && name !~ /\// && !((folder name) in known)))
            complain(name)
    }
}
