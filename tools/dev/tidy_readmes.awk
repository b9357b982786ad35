# Reads README.md files and then a list of files. Prints each file of the list that no README names, each folder of
# sources without a README, and each folder of more than 30 files.
#
# A README names a file in back quotes or in a list indented by four spaces; a star stands for anything. A folder of
# tests may be described by the README of a folder above it, where the name of a program needs no ending.
function folder_of(path) {
    return path ~ /\// ? substr(path, 1, length(path) - length(name_of(path)) - 1) : "."
}
function name_of(path) {
    sub(/.*\//, "", path)
    return path
}
function add_name(folder, name) {
    if (name !~ /\*/) {
        named[folder "/" name] = 1
        return
    }
    gsub(/\./, "[.]", name)
    gsub(/\*/, "[^/]*", name)
    patterns[folder] = patterns[folder] " " name
}
function is_named(folder, name,    list, i, n) {
    if ((folder "/" name) in named)
        return 1
    n = split(patterns[folder], list, " ")
    for (i = 1; i <= n; i++)
        if (name ~ "^" list[i] "$")
            return 1
    return 0
}
FILENAME ~ /README\.md$/ {
    here = folder_of(FILENAME)
    has[here] = 1
    if ($0 ~ /^    /) {
        count_of_words = split($0, words, " ")
        for (i = 1; i <= count_of_words; i++)
            add_name(here, words[i])
    }
    line = $0
    while (match(line, /`[^`]+`/)) {
        add_name(here, substr(line, RSTART + 1, RLENGTH - 2))
        line = substr(line, RSTART + RLENGTH)
    }
    next
}
{
    here = page = folder_of($0)
    is_test = $0 ~ /^tests\//
    if (++count[here] == 31)
        print here ":1: more than 30 files in one folder"
    if (here == "engine" || here == "offload" || here == "tools")
        print $0 ":1: lies beside the rooms of " here ", not in one"
    while (is_test && !has[page] && page ~ /\//)
        page = folder_of(page)
    if (!has[page]) {
        if (!said[here]++)
            print here "/README.md:1: is missing: a folder of sources says what is in it"
        next
    }
    name = name_of($0)
    stem = name
    sub(/\.[a-z]+$/, "", stem)
    if (!is_named(page, name) && !(is_test && is_named(page, stem)))
        print page "/README.md:1: does not name `" name "`" (page == here ? "" : " of " here)
}
