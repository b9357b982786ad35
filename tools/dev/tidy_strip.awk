# Writes each file of the command line to `out`/<file> with comments gone and strings emptied, line for line, so
# that the other checks see code alone.
function strip(line,    text, token, rest, closed) {
    text = ""
    while (line != "") {
        if (in_comment) {
            rest = index(line, "*/")
            if (rest == 0)
                return text
            in_comment = 0
            text = text " "
            line = substr(line, rest + 2)
            continue
        }
        if (!match(line, /["']|\/\*|\/\//))
            return text line
        text = text substr(line, 1, RSTART - 1)
        token = substr(line, RSTART, RLENGTH)
        line = substr(line, RSTART + RLENGTH)
        if (token == "//")
            return text
        if (token == "/*") {
            in_comment = 1
            continue
        }
        text = text token token
        closed = token == "'" ? match(line, "^([^\\\\']|\\\\.)*'") : match(line, "^([^\\\\\"]|\\\\.)*\"")
        if (!closed)
            return text
        line = substr(line, RLENGTH + 1)
    }
    return text
}
FNR == 1 {
    if (target != "")
        close(target)
    target = out "/" FILENAME
    in_comment = 0
}
{ print strip($0) > target }
