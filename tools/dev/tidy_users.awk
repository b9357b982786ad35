# Checks who uses what. Reads all sources as pass 1, and as pass 2 READMEs and headers, of which it prints
#   sentences of a README with "used by"   that name a folder that includes nothing of this one, or leave one out that
#                                          does; `engine/` stands for all rooms of engine, `engine/{a,b}` for two
#   READMEs of rooms without such a sentence
#   sentences of a header's first comment with "used by" or "shared by" that name folders or files: the same of that
#                                          header alone
# Tests may use everything and are left out, except for files that a sentence names.
function folder_of(path) {
    return sub(/\/[^\/]*$/, "", path) ? path : "."
}
# Puts the names of a sentence into names[]; returns how many there are.
function names_of(text,    count, word, stem, parts, i, n) {
    split("", names)
    while (match(text, /[A-Za-z0-9_.-]+(\/[A-Za-z0-9_.-]+)*\/?({[a-z_,]+})?/)) {
        word = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        stem = word
        n = sub(/{.*/, "", stem) ? split(substr(word, length(stem) + 2, length(word) - length(stem) - 2), parts, ",") : 1
        for (i = 1; i <= n; i++) {
            word = stem (n > 1 ? parts[i] : "")
            sub(/[\/.]+$/, "", word)
            if ((word in room || word in top) && (is_page || word ~ /\//) || !is_page && word ~ /\.(c|cu)$/) {
                names[word] = 1
                count++
            }
        }
    }
    return count
}
function covers(name, folder) {
    return folder == name || index(folder, name "/") == 1
}
# `users` has the folders that use what the sentence is about.
function compare(users, what,    name, user, list, i, n, found) {
    n = split(users, list, " ")
    for (name in names) {
        found = 0
        for (i = 1; i <= n; i++)
            found += covers(name, list[i])
        if (!found)
            print FILENAME ":" FNR ": " name " includes nothing of " what
    }
    for (i = 1; i <= n; i++) {
        found = list[i] ~ /^tests\//
        for (name in names)
            found += covers(name, list[i])
        if (!found && !said[FILENAME, list[i]]++)
            print FILENAME ":" FNR ": leaves out " list[i] ", which includes " what
    }
}
# A header that names files is compared with files; otherwise with folders, its own too.
function finish_sentence(    name, in_files, own, resolved) {
    is_open = 0
    own = folder_of(FILENAME)
    sub(/\.( .*)?$/, "", sentence)
    if (is_page) {
        has_users = 1
        if (names_of(sentence) > 0 || users_of_room[own] == "" || sentence !~ /(^| )(every|all)( |$)/)
            compare(users_of_room[own], own)
        return
    }
    if (names_of(sentence) == 0)
        return
    split("", resolved)
    for (name in names)
        in_files += name ~ /\.(c|cu)$/
    if (!in_files) {
        compare(users_of_header[FILENAME], FILENAME)
        return
    }
    for (name in names)
        resolved[name ~ /\// ? name : own "/" name] = 1
    split("", names)
    for (name in resolved)
        names[name] = 1
    compare(files_of_header[FILENAME], FILENAME)
}
function finish_page() {
    if (page != "" && page in room && !has_users)
        print page "/README.md:1: does not say who uses it (\"Used by ...\")"
}
pass == 1 {
    if (FNR == 1) {
        from = folder_of(FILENAME)
        if (FILENAME !~ /^tests\//) {
            room[from] = 1
            top[substr(from, 1, index(from "/", "/") - 1)] = 1
        }
    }
    if (!/^[ \t]*#[ \t]*include[ \t]*"/)
        next
    included = $0
    sub(/^[^"]*"/, "", included)
    sub(/".*/, "", included)
    to = folder_of(included)
    if (to != from && from !~ /^tests\// && !seen[from, to]++)
        users_of_room[to] = users_of_room[to] " " from
    if (!seen[from, included]++)
        users_of_header[included] = users_of_header[included] " " from
    if (FILENAME ~ /\.(c|cu)$/)
        files_of_header[included] = files_of_header[included] " " FILENAME
    next
}
FNR == 1 {
    finish_page()
    is_page = FILENAME ~ /README\.md$/
    page = is_page ? folder_of(FILENAME) : ""
    has_users = is_open = was_end = 0
    in_first = 1
}
{
    if (!is_page && was_end)
        in_first = 0
    was_end = /\*\//
    line = $0
    sub(/^ \* /, "", line)
    sub(/ *\*\/ *$/, "", line)
    if (is_open)
        sentence = sentence " " line
    else if (in_first && match(" " line " ", is_page ? "[^a-z]([Uu]sed by |[Uu]sed $)" : "[^a-z]([Uu]sed|[Ss]hared)( by | $)")) {
        sentence = substr(line, RSTART + RLENGTH - 1)
        is_open = 1
    }
    if (is_open && (sentence ~ /\.( |$)/ || line == "" || was_end && !is_page))
        finish_sentence()
}
END { finish_page() }
