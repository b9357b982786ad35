# Reads stripped sources, after tidy_code.awk, and prints what is wrong with functions, according to `check`:
#   length   functions of more than 70 lines          params   ox_ functions of more than 6 parameters
#   alloc    malloc and friends outside functions that open something
# `prefix` is cut from the file names.

# The name before the first parenthesis that is no attribute, and the text of its parameters.
function take_apart(text,    depth, i, c) {
    gsub(/__attribute__[ \t]*\(\([^)]*(\([^)]*\))?[^)]*\)\)/, " ", text)
    gsub(/OX_PRINTF\([^)]*\)/, " ", text)
    name = ""
    params = 0
    if (!match(text, /[A-Za-z_][A-Za-z_0-9]*[ \t]*\(/))
        return
    name = substr(text, RSTART, RLENGTH - 1)
    gsub(/[ \t]/, "", name)
    text = substr(text, RSTART + RLENGTH)
    params = text ~ /^[ \t]*(void)?[ \t]*\)/ ? 0 : 1
    depth = 1
    for (i = 1; i <= length(text) && depth > 0; i++) {
        c = substr(text, i, 1)
        depth += (c == "(") - (c == ")")
        params += c == "," && depth == 1
    }
}
function complain(line, text) {
    print substr(FILENAME, length(prefix) + 1) ":" line ": " text
}
function finish_declaration(is_body) {
    take_apart(declaration)
    if (check == "params" && name ~ /^ox_/ && declaration !~ /^[ \t]*(static|typedef)/ && declaration !~ /=/ && params > 6)
        complain(start, name " takes " params " parameters; 6 are allowed, then a struct")
    in_function = is_body
    function_name = name
    function_start = start
}
function take(token) {
    if (token == "{") {
        if (depth == 0 && declaration ~ /\)[ \t]*$/ && declaration !~ /=/)
            finish_declaration(1)
        depth++
    } else if (token == "}") {
        depth--
        if (depth <= 0) {
            if (in_function && check == "length" && FNR - function_start + 1 > 70)
                complain(function_start, function_name " has " FNR - function_start + 1 " lines; 70 are allowed")
            if (in_function)
                declaration = ""
            in_function = 0
            depth = 0
        }
    } else if (depth == 0) {
        if (declaration ~ /\)[ \t]*$/)
            finish_declaration(0)
        declaration = ""
        in_function = 0
    }
}
function start_file() {
    depth = in_function = 0
    declaration = ""
}
{
    line = $0
    if (check == "alloc" && in_function && function_name !~ /open|create|init/ &&
        line ~ /(^|[^A-Za-z0-9_])(malloc|calloc|realloc|aligned_alloc|posix_memalign|strdup)[ \t]*\(/)
        complain(FNR, function_name " allocates; memory is taken when something opens, not in a step")
    while (match(line, /[{};]/)) {
        token = substr(line, RSTART, 1)
        if (depth == 0) {
            if (declaration ~ /^[ \t]*$/ && substr(line, 1, RSTART - 1) !~ /^[ \t]*$/)
                start = FNR
            declaration = declaration " " substr(line, 1, RSTART - 1)
        }
        line = substr(line, RSTART + 1)
        take(token)
    }
    if (depth == 0 && line !~ /^[ \t]*$/) {
        if (declaration ~ /^[ \t]*$/)
            start = FNR
        declaration = declaration " " line
    }
}
