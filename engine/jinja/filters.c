/* Owns the table of filters. What each does is in filters_text.c, filters_number.c, filters_sequence.c and
 * filters_pick.c. */
#include "engine/jinja/ast_internal.h"

#define F(name) ox_ji_filter_##name

/* In alphabetical order. An entry without a function is a filter of jinja2 that is refused here. */
static const struct builtin filters[] = {
    {"abs", F(abs), "", 0, 0, MARKUP_PLAIN, false},
    {"attr", F(attr), "name", 1, 0, MARKUP_PLAIN, false},
    {"batch", F(batch), "linecount fill_with", 1, 0, MARKUP_PLAIN, false},
    {"capitalize", F(capitalize), "", 0, 0, MARKUP_KEPT, false},
    {"center", F(center), "width", 0, 0, MARKUP_KEPT, false},
    {"count", F(length), "", 0, 0, MARKUP_PLAIN, false},
    {"d", F(default), "default_value boolean", 0, 0, MARKUP_PLAIN, false},
    {"default", F(default), "default_value boolean", 0, 0, MARKUP_PLAIN, false},
    {"dictsort", F(dictsort), "case_sensitive by reverse", 0, 0, MARKUP_PLAIN, false},
    {"e", F(escape), "", 0, 0, MARKUP_KEPT, false},
    {"escape", F(escape), "", 0, 0, MARKUP_KEPT, false},
    {"filesizeformat", F(filesizeformat), "binary", 0, 0, MARKUP_PLAIN, false},
    {"first", F(first), "", 0, 0, MARKUP_REFUSED, false},
    {"float", F(float), "default", 0, 0, MARKUP_PLAIN, false},
    {"forceescape", F(forceescape), "", 0, 0, MARKUP_KEPT, false},
    {"format", F(format), "*", 0, 0, MARKUP_REFUSED, false},
    {"groupby", F(groupby), "attribute default case_sensitive", 1, 0, MARKUP_REFUSED, false},
    {"indent", F(indent), "width first blank", 0, 0, MARKUP_REFUSED, false},
    {"int", F(int), "default base", 0, 0, MARKUP_PLAIN, false},
    {"items", F(items), "", 0, 0, MARKUP_PLAIN, false},
    {"join", F(join), "d attribute", 0, 0, MARKUP_PLAIN, false},
    {"last", F(last), "", 0, 0, MARKUP_REFUSED, false},
    {"length", F(length), "", 0, 0, MARKUP_PLAIN, false},
    {"list", F(list), "", 0, 0, MARKUP_REFUSED, false},
    {"lower", F(lower), "", 0, 0, MARKUP_KEPT, false},
    {"map", F(map), "*", 0, 0, MARKUP_REFUSED, false},
    {"max", F(max), "case_sensitive attribute", 0, 0, MARKUP_REFUSED, false},
    {"min", F(min), "case_sensitive attribute", 0, 0, MARKUP_REFUSED, false},
    {"pprint", NULL, "*", 0, 0, MARKUP_PLAIN, false},
    {"random", NULL, "*", 0, 0, MARKUP_PLAIN, false},
    {"reject", F(reject), "*", 0, 0, MARKUP_REFUSED, false},
    {"rejectattr", F(rejectattr), "*", 0, 0, MARKUP_REFUSED, false},
    {"replace", F(replace), "old new count", 2, 0, MARKUP_PLAIN, false},
    {"reverse", F(reverse), "", 0, 0, MARKUP_REFUSED, false},
    {"round", F(round), "precision method", 0, 0, MARKUP_PLAIN, false},
    {"safe", F(safe), "", 0, 0, MARKUP_KEPT, false},
    {"select", F(select), "*", 0, 0, MARKUP_REFUSED, false},
    {"selectattr", F(selectattr), "*", 0, 0, MARKUP_REFUSED, false},
    {"slice", F(slice), "slices fill_with", 1, 0, MARKUP_REFUSED, false},
    {"sort", F(sort), "reverse case_sensitive attribute", 0, 0, MARKUP_REFUSED, false},
    {"string", F(string), "", 0, 0, MARKUP_KEPT, false},
    {"striptags", NULL, "*", 0, 0, MARKUP_PLAIN, false},
    {"sum", F(sum), "attribute start", 0, 0, MARKUP_REFUSED, false},
    {"title", F(title), "", 0, 0, MARKUP_PLAIN, false},
    {"tojson", F(tojson), "ensure_ascii indent separators sort_keys", 0, 0, MARKUP_PLAIN, false},
    {"trim", F(trim), "chars", 0, 0, MARKUP_KEPT, false},
    {"truncate", F(truncate), "length killwords end leeway", 0, 0, MARKUP_REFUSED, false},
    {"unique", F(unique), "case_sensitive attribute", 0, 0, MARKUP_REFUSED, false},
    {"upper", F(upper), "", 0, 0, MARKUP_KEPT, false},
    {"urlencode", F(urlencode), "", 0, 0, MARKUP_PLAIN, false},
    {"urlize", NULL, "*", 0, 0, MARKUP_PLAIN, false},
    {"wordcount", F(wordcount), "", 0, 0, MARKUP_PLAIN, false},
    {"wordwrap", NULL, "*", 0, 0, MARKUP_PLAIN, false},
    {"xmlattr", NULL, "*", 0, 0, MARKUP_PLAIN, false},
};

const struct builtin *ox_ji_find_filter(const struct string *name) {
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++) {
        if (ox_ji_string_is(name, filters[i].name)) {
            return &filters[i];
        }
    }
    return NULL;
}
