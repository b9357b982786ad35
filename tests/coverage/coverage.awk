# Reads tests/coverage/untaken.txt, what gcov printed for each test, and the sources; prints what part of their lines
# and branches some test took, and each branch that none took and the list does not explain, with which it fails unless
# `partial` says that not all tests ran. Writes to `lines` which lines hold code, and what each test executes of them.
#
# In the list, a line with words alone is a reason; the lines below it, set in, have `file branches text-of-the-line`:
# in the file `*` stands for any letters, in the text `...`. `*` branches are any number, `3?` three that a test may take
# by chance, `*@2` those that are the second of their line, `*@2/2` if it has two. Each such line must explain something,
# except for those with `?`.
function trim(text) {
    gsub(/^[ \t]+|[ \t]+$/, "", text)
    return text
}
FNR == 1 {
    kind = FILENAME ~ /untaken\.txt$/ ? "list" : FILENAME ~ /gcov$/ ? "counts" : "source"
    in_assert = 0
}
function pattern(text, any) { # as an expression: all letters as they are, but for what stands for any
    gsub(/[][\\.^$*+?(){}|]/, "\\\\&", text)
    gsub(any, ".*", text)
    return "^" text "$"
}
kind == "list" && /^    / {
    list_file[++entries] = pattern($1, "\\\\[*]")
    match($0, /^ *[^ ]+ +[^ ]+/)
    list_text[entries] = pattern(trim(substr($0, RLENGTH + 1)), "\\\\[.]\\\\[.]\\\\[.]")
    split($2, part, "@")
    list_count[entries] = part[1] == "*" ? 1e9 : part[1] + 0
    by_chance[entries] = part[1] ~ /[?]$/
    split(part[2], part, "/")
    list_branch[entries] = part[1]
    list_of[entries] = part[2]
    list_line[entries] = FNR ": " trim($0)
}
kind == "list" { next }

kind == "counts" && /^test / {
    test = $2
    print >lines
    next
}
kind == "counts" && /^ *-: *0:Source:/ { file = substr($0, index($0, "Source:") + 7) }
kind == "counts" && /^ *([0-9]+\*?|#####|=====): *[0-9]+:/ {
    split($0, field, ":")
    at = file SUBSEP (field[2] + 0)
    ran = field[1] + 0 > 0
    if (!(at in is_line))
        print "line", file, field[2] + 0 >lines
    is_line[at] = 1
    if (ran)
        taken_lines[at] = 1
    if (ran && seen[at] != test) {
        seen[at] = test
        print file, field[2] + 0 >lines
    }
    next
}
kind == "counts" && /^branch/ {
    if ($2 + 1 > numbered[at]) # calls are numbered too
        numbered[at] = $2 + 1
    if (!((at, $2) in is_branch))
        is_branch[at, $2] = ++branches[at]
    if ($3 == "taken" && $4 + 0 > 0)
        taken[at, $2] = 1
}
kind == "counts" { next }

/OX_ASSERT\(/ { in_assert = 1 }
{
    text[FILENAME, FNR] = trim($0)
    if (in_assert)
        is_assert[FILENAME, FNR] = 1
    if (/;[ \t]*(\/\*.*)?$/)
        in_assert = 0
    at = FILENAME SUBSEP FNR
    if (!(FILENAME in known)) {
        known[FILENAME] = 1
        files[++file_count] = FILENAME
    }
    if (at in is_line && !(at in is_assert)) {
        line_sum[FILENAME]++
        line_taken[FILENAME] += at in taken_lines
        for (i = 0; i < numbered[at]; i++) {
            if (!((at, i) in is_branch))
                continue
            branch_sum[FILENAME]++
            if ((at, i) in taken)
                branch_taken[FILENAME]++
            else
                note(FILENAME, FNR)
        }
    }
}
# The entry of the list that explains one more branch of this line; 0 if none does.
function entry_of(name, line,    n) {
    for (n = 1; n <= entries; n++)
        if (used[n] < list_count[n] && (list_branch[n] == "" || list_branch[n] == is_branch[name, line, i]) &&
            (list_of[n] == "" || list_of[n] == branches[name, line]) && name ~ list_file[n] && text[name, line] ~ list_text[n])
            return n
    return 0
}
function note(name, line,    n) {
    n = entry_of(name, line)
    if (n > 0) {
        used[n]++
        branch_explained[name]++
    } else {
        left[++left_count] = sprintf("%s:%d: branch %d of %d: %s", name, line, is_branch[name, line, i], branches[name, line], text[name, line])
    }
}
function share(part, whole) {
    return whole > 0 ? sprintf("%5.1f %%", 100 * part / whole) : "    -  "
}
function row(name, prefix) {
    printf "%-40s %5d %s %7d %s %7d %7d\n", name, line_sum[prefix], share(line_taken[prefix], line_sum[prefix]), branch_sum[prefix],
        share(branch_taken[prefix], branch_sum[prefix]), branch_explained[prefix],
        branch_sum[prefix] - branch_taken[prefix] - branch_explained[prefix]
}
END {
    printf "%-40s %5s %7s %8s %7s %8s %7s\n", "", "lines", "run", "branches", "taken", "expl.", "left"
    for (i = 1; i <= file_count; i++) {
        name = files[i]
        folder = name
        sub(/\/[^\/]*$/, "/", folder)
        if (folder != last_folder) {
            if (last_folder != "")
                row(last_folder, last_folder)
            last_folder = folder
        }
        split(folder " all", sums, " ")
        for (s in sums) {
            line_sum[sums[s]] += line_sum[name]
            line_taken[sums[s]] += line_taken[name]
            branch_sum[sums[s]] += branch_sum[name]
            branch_taken[sums[s]] += branch_taken[name]
            branch_explained[sums[s]] += branch_explained[name]
        }
        row("    " name, name)
    }
    row(last_folder, last_folder)
    row("all", "all")
    for (i = 1; i <= left_count; i++)
        print left[i]
    for (n = 1; n <= entries; n++)
        if (!by_chance[n] && used[n] < (list_count[n] < 1e9 ? list_count[n] : 1)) {
            print "tests/coverage/untaken.txt:" list_line[n] ": taken, or not there"
            stale++
        }
    exit stale > 0 || (left_count > 0 && !partial)
}
