# Prints every fault that can be planted into the sources of the command line, one a line: file, line, kind and the
# changed line, parted by tabs. Each changes one condition, constant or status; asserts, messages and comments stay.
function mask(line,    out, token, rest) { # strings and comments become underscores, at the same places
    out = ""
    while (line != "") {
        if (in_comment) {
            rest = index(line, "*/")
            rest = rest == 0 ? length(line) : rest + 1
            in_comment = substr(line, rest - 1, 2) != "*/"
            out = out blank(rest)
            line = substr(line, rest + 1)
            continue
        }
        if (!match(line, /\/\*|\/\/|"([^"\\]|\\.)*"|'([^'\\]|\\.)*'/))
            return out line
        token = substr(line, RSTART, RLENGTH)
        out = out substr(line, 1, RSTART - 1)
        line = substr(line, RSTART + RLENGTH)
        if (token == "//")
            return out
        out = out blank(RLENGTH)
        in_comment = token == "/*"
    }
    return out
}
function blank(count,    out) {
    out = sprintf("%" count "s", "")
    gsub(/ /, "_", out)
    return out
}
function plant(kind, at, length_of, with) {
    print FILENAME "\t" FNR "\t" kind "\t" substr($0, 1, at - 1) with substr($0, at + length_of)
}
# Every occurrence of `from` becomes `to`, one fault each.
function each(kind, from, to,    at, start) {
    start = 1
    while ((at = index(substr(code, start), from)) > 0) {
        at += start - 1
        plant(kind, at, length(from), to)
        start = at + length(from)
    }
}
function closing(at,    depth, c) { # the place of the parenthesis that closes the one at `at`; 0 beyond the line
    depth = 0
    for (; at <= length(code); at++) {
        c = substr(code, at, 1)
        depth += (c == "(") - (c == ")")
        if (depth == 0)
            return at
    }
    return 0
}
function negate(word,    at, end) {
    at = index(code, word)
    if (at == 0 || (end = closing(at + length(word) - 1)) == 0)
        return
    at += length(word)
    plant("negate", at, end - at, "!(" substr($0, at, end - at) ")")
}
function numbers(    at, start, number) { # constants beside a comparison, sum or assignment
    start = 1
    while (match(substr(code, start), /( (<|>|<=|>=|==|!=|\+|-|=) )[0-9]+[;) ,]/)) {
        at = start + RSTART - 1
        match(substr(code, at), /[0-9]+/)
        number = substr(code, at + RSTART - 1, RLENGTH)
        plant("constant", at + RSTART - 1, RLENGTH, number + 1)
        start = at + RSTART - 1 + RLENGTH
    }
}
FNR == 1 { in_comment = in_assert = in_body = 0 }
{ code = mask($0) }
/^[a-z].*\) \{$/ || /^ .*\) \{$/ { in_body = 1 }
/^}/ { in_body = 0 }
!in_body || /^[ \t]*#/ { next }
code ~ /OX_ASSERT\(/ { in_assert = 1 }
in_assert {
    in_assert = code !~ /;[ \t_]*$/
    next
}
{
    sub(/[ \t]+$/, "", code)
    each("relation", " < ", " <= ")
    each("relation", " <= ", " < ")
    each("relation", " > ", " >= ")
    each("relation", " >= ", " > ")
    each("relation", " == ", " != ")
    each("relation", " != ", " == ")
    each("logic", " && ", " || ")
    each("logic", " || ", " && ")
    if (code ~ / (&&|\|\|)$/)
        plant("logic", length(code) - 1, 2, code ~ /&&$/ ? "||" : "&&")
    negate("if (")
    negate("while (")
    numbers()
    each("constant", "return true;", "return false;")
    each("constant", "return false;", "return true;")
    each("constant", " = true;", " = false;")
    each("constant", " = false;", " = true;")
    if (match(code, /return (ox_fail.*|status);$/))
        plant("status", RSTART, RLENGTH, "return ((void)(" substr($0, RSTART + 7, RLENGTH - 8) "), OX_OK);")
    else if (match(code, /return ox_.*\);$/))
        plant("status", RSTART, RLENGTH, "return ((void)(" substr($0, RSTART + 7, RLENGTH - 8) "), 0);")
    if (code !~ /enum ox_status/ && match(code, /(OX_THEN\(.*\)|(^|[ >.])status = .*);$/) && closing(index(code, "(")) > 0)
        plant("dropped", RSTART, RLENGTH, " ;")
}
