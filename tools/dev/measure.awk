# Reads stripped sources (tidy_strip.awk), after tidy_code.awk, and prints for each function its lines and the deepest
# nesting of its control statements (if, for, while, do, switch; an else adds none): "<lines> <nesting> <file>:<line>".
function finish() {
    print FNR - start + 1, deepest, substr(FILENAME, length(prefix) + 1) ":" start
}
function start_file() {
    depth = in_function = 0
    text = ""
}
{
    line = $0
    while (match(line, /[{};]/)) {
        token = substr(line, RSTART, 1)
        before = substr(line, 1, RSTART - 1)
        line = substr(line, RSTART + 1)
        if (text ~ /^[ \t]*$/ && before !~ /^[ \t]*$/)
            first = FNR
        text = text " " before
        if (token == "{") {
            depth++
            control[depth] = in_function && (text ~ /(^|[^A-Za-z0-9_])(if|for|while|switch)[ \t]*\(/ ||
                text ~ /(^|[^A-Za-z0-9_])(do|else)[ \t]*$/)
            if (!in_function && depth == 1 && text ~ /\)[ \t]*$/ && text !~ /=/) {
                in_function = 1
                start = first
                deepest = nesting = 0
            } else if (control[depth]) {
                nesting++
                deepest = nesting > deepest ? nesting : deepest
            }
        } else if (token == "}") {
            if (control[depth])
                nesting--
            depth--
            if (depth <= 0) {
                if (in_function)
                    finish()
                depth = in_function = 0
            }
        } else if (open_parentheses(text) > 0) {
            text = text ";"
            continue
        }
        text = ""
    }
    if (text ~ /^[ \t]*$/ && line !~ /^[ \t]*$/)
        first = FNR
    text = text " " line
}
# A semicolon within the parentheses of a `for` ends no statement.
function open_parentheses(words,    i, c, open) {
    for (i = 1; i <= length(words); i++) {
        c = substr(words, i, 1)
        open += (c == "(") - (c == ")")
    }
    return open
}
