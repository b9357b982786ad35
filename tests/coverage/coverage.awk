# Reads tests/coverage/untaken.txt, what gcov printed for each test, and the sources; prints what part of their lines
# and branches some test took, and each branch that none took and the list does not explain. Writes to `lines` which
# lines hold code, and what each test executes of them.
#
# In the list, a line with words alone is a reason; the lines below it, set in, have `file branches text-of-the-line`.
function trim(text) {
    gsub(/^[ \t]+|[ \t]+$/, "", text)
    return text
}
FNR == 1 {
    kind = FILENAME ~ /untaken\.txt$/ ? "list" : FILENAME ~ /gcov$/ ? "counts" : "source"
    in_assert = 0
}
kind == "list" && /^    / {
    key = $1 SUBSEP trim(substr($0, index($0, $2) + length($2)))
    explained[key] = $2
    place[key] = FNR
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
function note(name, line,    key) {
    key = name SUBSEP text[name, line]
    if (untaken[key]++ == 0)
        first_line[key] = line
    if (untaken[key] <= explained[key]) {
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
    for (key in explained)
        if (!(key in untaken)) {
            split(key, part, SUBSEP)
            print "tests/coverage/untaken.txt:" place[key] ": taken, or not there: " part[1] ": " part[2]
            stale++
        }
    exit stale > 0
}
