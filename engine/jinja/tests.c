/* Owns the table of tests: what may follow `is`, or be named in select and reject. */
#include "engine/jinja/ast_internal.h"

#include <math.h>
#include <string.h>

static bool answer(struct call *call, bool truth) {
    *call->out = ox_ji_bool(truth);
    return true;
}

static bool is_kind(struct call *call) {
    const enum value_kind kind = call->self.kind;
    const char *const name = call->builtin->name;
    if (strcmp(name, "defined") == 0) {
        return answer(call, kind != V_UNDEFINED);
    }
    if (strcmp(name, "number") == 0) {
        return answer(call, kind == V_BOOL || kind == V_INT || kind == V_FLOAT);
    }
    static const struct {
        const char *name;
        enum value_kind kind;
    } kinds[] = {{"undefined", V_UNDEFINED}, {"none", V_NONE},     {"boolean", V_BOOL}, {"integer", V_INT},
                 {"float", V_FLOAT},         {"string", V_STRING}, {"mapping", V_DICT}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(name, kinds[i].name) == 0) {
            return answer(call, kind == kinds[i].kind);
        }
    }
    const bool truth = kind == V_BOOL && call->self.as.truth;
    return answer(call, strcmp(name, "true") == 0 ? truth : kind == V_BOOL && !truth);
}

static bool is_sequence(struct call *call) {
    return answer(call, ox_ji_has_length(call->self) && call->self.kind != V_VIEW);
}

static bool is_iterable(struct call *call) {
    return answer(call, ox_ji_is_iterable(call->self));
}

static bool is_callable(struct call *call) {
    const enum value_kind kind = call->self.kind;
    return answer(call, kind == V_MACRO || kind == V_FUNCTION || kind == V_METHOD || kind == V_LOOP ||
                            kind == V_JOINER || kind == V_UNDEFINED);
}

static bool is_escaped(struct call *call) {
    return answer(call, call->self.kind == V_STRING && call->self.as.string->is_markup);
}

/* odd, even, divisibleby: the rest of a division. */
static bool has_rest(struct call *call) {
    const char *const name = call->builtin->name;
    const struct value by = name[0] == 'd' ? call->arguments[0] : ox_ji_int(2);
    struct value rest = MISSING;
    bool same = false;
    if (!ox_ji_binary(call->run, '%', call->self, by, &rest) ||
        !ox_ji_equal(call->run, rest, ox_ji_int(name[0] == 'o'), &same)) {
        return false;
    }
    return answer(call, same);
}

static bool has_case(struct call *call) {
    struct value text = MISSING;
    return ox_ji_to_string(call->run, call->self, &text) &&
           answer(call, ox_ji_classify(text.as.string, call->builtin->name[0] == 'u' ? "isupper" : "islower"));
}

static bool is_in(struct call *call) {
    bool found = false;
    return ox_ji_contains(call->run, call->arguments[0], call->self, &found) && answer(call, found);
}

static bool is_same(struct call *call) {
    const struct value a = call->self, b = call->arguments[0];
    if (a.kind != b.kind) {
        return answer(call, false);
    }
    switch (a.kind) {
    case V_NONE:
        return answer(call, true);
    case V_BOOL:
        return answer(call, a.as.truth == b.as.truth);
    case V_INT:
    case V_FLOAT:
    case V_STRING:
    case V_TUPLE:
    case V_METHOD: /* whether Python keeps equal ones as one object is not known */
        return ox_ji_fail(call->run, "sameas of two objects of type '%s' is not supported here", ox_ji_type_name(a));
    default:
        return answer(call, a.as.list == b.as.list);
    }
}

/* The six comparisons under all their names. */
static bool compares(struct call *call) {
    const char *const name = call->builtin->name;
    const bool equality = strcmp(name, "==") == 0 || strcmp(name, "!=") == 0 || name[0] == 'e' || name[0] == 'n';
    int order = 0;
    bool same = false;
    if (equality) {
        const bool negated = name[0] == '!' || name[0] == 'n';
        return ox_ji_equal(call->run, call->self, call->arguments[0], &same) && answer(call, same != negated);
    }
    const bool less = name[0] == '<' || name[0] == 'l';
    const bool or_equal = strcmp(name, "<=") == 0 || strcmp(name, ">=") == 0 || strcmp(name, "le") == 0 ||
                          strcmp(name, "ge") == 0;
    if (!ox_ji_order(call->run, call->self, call->arguments[0], less ? or_equal ? "<=" : "<" : or_equal ? ">=" : ">",
                     &order)) {
        return false;
    }
    return answer(call, order != UNORDERED && ((or_equal && order == 0) || (less ? order < 0 : order > 0)));
}

static bool names_builtin(struct call *call) {
    if (call->self.kind == V_LIST || call->self.kind == V_DICT) {
        return ox_ji_fail(call->run, "unhashable type: '%s'", ox_ji_type_name(call->self));
    }
    if (call->self.kind != V_STRING) {
        return answer(call, false);
    }
    return answer(call, (call->builtin->name[0] == 'f' ? ox_ji_find_filter(call->self.as.string)
                                                       : ox_ji_find_test(call->self.as.string)) != NULL);
}

static const struct builtin tests[] = {
    {"!=", compares, "_", 1, 0, MARKUP_PLAIN, false},
    {"<", compares, "_", 1, 0, MARKUP_PLAIN, false},
    {"<=", compares, "_", 1, 0, MARKUP_PLAIN, false},
    {"==", compares, "_", 1, 0, MARKUP_PLAIN, false},
    {">", compares, "_", 1, 0, MARKUP_PLAIN, false},
    {">=", compares, "_", 1, 0, MARKUP_PLAIN, false},
    {"boolean", is_kind, "", 0, 0, MARKUP_PLAIN, false},
    {"callable", is_callable, "", 0, 0, MARKUP_PLAIN, false},
    {"defined", is_kind, "", 0, 0, MARKUP_PLAIN, false},
    {"divisibleby", has_rest, "num", 1, 0, MARKUP_PLAIN, false},
    {"eq", compares, "_", 1, 0, MARKUP_PLAIN, false},
    {"equalto", compares, "_", 1, 0, MARKUP_PLAIN, false},
    {"escaped", is_escaped, "", 0, 0, MARKUP_PLAIN, false},
    {"even", has_rest, "", 0, 0, MARKUP_PLAIN, false},
    {"false", is_kind, "", 0, 0, MARKUP_PLAIN, false},
    {"filter", names_builtin, "", 0, 0, MARKUP_PLAIN, false},
    {"float", is_kind, "", 0, 0, MARKUP_PLAIN, false},
    {"ge", compares, "_", 1, 0, MARKUP_PLAIN, false},
    {"greaterthan", compares, "_", 1, 0, MARKUP_PLAIN, false},
    {"gt", compares, "_", 1, 0, MARKUP_PLAIN, false},
    {"in", is_in, "seq", 1, 0, MARKUP_PLAIN, false},
    {"integer", is_kind, "", 0, 0, MARKUP_PLAIN, false},
    {"iterable", is_iterable, "", 0, 0, MARKUP_PLAIN, false},
    {"le", compares, "_", 1, 0, MARKUP_PLAIN, false},
    {"lessthan", compares, "_", 1, 0, MARKUP_PLAIN, false},
    {"lower", has_case, "", 0, 0, MARKUP_PLAIN, false},
    {"lt", compares, "_", 1, 0, MARKUP_PLAIN, false},
    {"mapping", is_kind, "", 0, 0, MARKUP_PLAIN, false},
    {"ne", compares, "_", 1, 0, MARKUP_PLAIN, false},
    {"none", is_kind, "", 0, 0, MARKUP_PLAIN, false},
    {"number", is_kind, "", 0, 0, MARKUP_PLAIN, false},
    {"odd", has_rest, "", 0, 0, MARKUP_PLAIN, false},
    {"sameas", is_same, "other", 1, 0, MARKUP_PLAIN, false},
    {"sequence", is_sequence, "", 0, 0, MARKUP_PLAIN, false},
    {"string", is_kind, "", 0, 0, MARKUP_PLAIN, false},
    {"test", names_builtin, "", 0, 0, MARKUP_PLAIN, false},
    {"true", is_kind, "", 0, 0, MARKUP_PLAIN, false},
    {"undefined", is_kind, "", 0, 0, MARKUP_PLAIN, false},
    {"upper", has_case, "", 0, 0, MARKUP_PLAIN, false},
};

const struct builtin *ox_ji_find_test(const struct string *name) {
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (ox_ji_string_is(name, tests[i].name)) {
            return &tests[i];
        }
    }
    return NULL;
}
