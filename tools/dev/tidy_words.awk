# Reads docs/words.md, then texts, and prints each word that its table of retired words names. A word counts with its
# whole spelling: a longer one that contains it is another word.
FILENAME == words_page {
    if (/^## /)
        is_retired = /^## Retired words/
    if (is_retired && match($0, /^\| `[^`]+` \|/)) {
        word = substr($0, RSTART + 3, RLENGTH - 6)
        rest = substr($0, RSTART + RLENGTH)
        gsub(/^ +| *\|$/, "", rest)
        instead[word] = rest
    }
    next
}
{
    for (word in instead) {
        line = $0
        while ((at = index(line, word)) > 0) {
            before = at > 1 ? substr(line, at - 1, 1) : " "
            line = substr(line, at + length(word))
            if (before !~ /[A-Za-z0-9_]/ && line !~ /^[A-Za-z0-9_]/)
                print FILENAME ":" FNR ": " word " is retired; use " instead[word] " (docs/words.md)"
        }
    }
}
