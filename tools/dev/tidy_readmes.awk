# Reads README.md files and then a list of files. Prints each file of the list that the README of its folder does not
# name (in back quotes, or in a list indented by four spaces), each folder without a README, and each folder of more
# than 30 files. A folder of tests need not have a README: that of its kind of tests says what is in it.
function folder_of(path) {
    return path ~ /\// ? substr(path, 1, length(path) - length(name_of(path)) - 1) : "."
}
function name_of(path) {
    sub(/.*\//, "", path)
    return path
}
FILENAME ~ /README\.md$/ {
    here = folder_of(FILENAME)
    has[here] = 1
    if ($0 ~ /^    /) {
        count_of_words = split($0, words, " ")
        for (i = 1; i <= count_of_words; i++)
            named[here "/" words[i]] = 1
    }
    line = $0
    while (match(line, /`[^`]+`/)) {
        named[here "/" substr(line, RSTART + 1, RLENGTH - 2)] = 1
        line = substr(line, RSTART + RLENGTH)
    }
    next
}
{
    here = folder_of($0)
    if (++count[here] == 31)
        print here ":1: more than 30 files in one folder"
}
!/^tests\// {
    if (!has[here] && !said[here]++)
        print here "/README.md:1: is missing: a folder of sources says what is in it"
    if (has[here] && !named[$0])
        print here "/README.md:1: does not name `" name_of($0) "`"
    if (here == "engine" || here == "offload" || here == "tools")
        print $0 ":1: lies beside the rooms of " here ", not in one"
}
