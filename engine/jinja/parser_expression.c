/* Owns expressions: tokens to a tree. Each function parses what binds tighter than the one above it in the grammar of
 * jinja2/parser.py, from bottom to top of this file. */
#include "engine/jinja/ast_internal.h"

#include <string.h>

static bool parse_unary(struct parser *parser, bool with_filter, struct node **out);
static bool parse_postfix(struct parser *parser, struct node **node);
static bool parse_or(struct parser *parser, struct node **out);

/* ---- literals -------------------------------------------------------------------------------------------------- */

static bool make_constant(struct parser *parser, const struct token *token, struct value value, struct node **out) {
    *out = ox_ji_new_node(parser, N_CONSTANT, token);
    if (*out != NULL) {
        (*out)->as.constant = value;
    }
    return *out != NULL;
}

/* Strings that follow each other are one. */
static bool parse_string(struct parser *parser, struct node **out) {
    const struct token *const first = parser->token;
    struct value text = MISSING;
    if (!ox_ji_string_at(parser->run, first->text, first->bytes, &text)) {
        return false;
    }
    for (parser->token++; parser->token->kind == T_STRING; parser->token++) {
        struct value more = MISSING;
        if (!ox_ji_string_at(parser->run, parser->token->text, parser->token->bytes, &more) ||
            !ox_ji_concat(parser->run, text.as.string, more.as.string, &text)) {
            return false;
        }
    }
    return make_constant(parser, first, text, out);
}

/* Notes for the macros around that they use `caller`, `kwargs` or `varargs`. */
static void note_specials(struct parser *parser, const struct string *name) {
    const bool caller = ox_ji_string_is(name, "caller"), kwargs = ox_ji_string_is(name, "kwargs");
    const bool varargs = ox_ji_string_is(name, "varargs"), any = caller || kwargs || varargs;
    for (struct signature_link *link = any ? parser->signatures : NULL; link != NULL; link = link->outer) {
        link->signature->uses_caller |= caller;
        link->signature->uses_kwargs |= kwargs;
        link->signature->uses_varargs |= varargs;
    }
}

static bool parse_name(struct parser *parser, unsigned rules, struct node **out) {
    static const struct {
        const char *word;
        struct value value;
    } words[] = {{"true", {.kind = V_BOOL, .as.truth = true}},  {"True", {.kind = V_BOOL, .as.truth = true}},
                 {"false", {.kind = V_BOOL}},                   {"False", {.kind = V_BOOL}},
                 {"none", {.kind = V_NONE}},                    {"None", {.kind = V_NONE}}};
    const struct token *const token = parser->token;
    const struct string *name = NULL;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (ox_ji_skip_word(parser, words[i].word)) {
            return make_constant(parser, token, words[i].value, out);
        }
    }
    if (!ox_ji_expect_name(parser, &name)) {
        return false;
    }
    *out = ox_ji_new_node(parser, N_NAME, token);
    if (*out == NULL) {
        return false;
    }
    if ((rules & TUPLE_NAMESPACE) != 0 && ox_ji_skip_operator(parser, ".")) {
        (*out)->kind = N_NSREF;
        (*out)->as.nsref.name = name;
        return ox_ji_expect_name(parser, &(*out)->as.nsref.attribute);
    }
    (*out)->as.name = name;
    if ((rules & TUPLE_TARGET) != 0) {
        return true;
    }
    note_specials(parser, name);
    return ox_ji_note_use(parser, name, false);
}

static bool parse_list(struct parser *parser, struct node **out) {
    *out = ox_ji_new_node(parser, N_LIST, parser->token++);
    if (*out == NULL) {
        return false;
    }
    while (!ox_ji_skip_operator(parser, "]")) {
        struct node *item = NULL;
        if ((*out)->as.items.count > 0) {
            if (!ox_ji_expect_operator(parser, ",")) {
                return false;
            }
            if (ox_ji_skip_operator(parser, "]")) {
                break;
            }
        }
        if (!ox_ji_parse_expression(parser, &item)) {
            return false;
        }
        ox_ji_add_node(&(*out)->as.items, item);
    }
    return true;
}

static bool parse_dict(struct parser *parser, struct node **out) {
    *out = ox_ji_new_node(parser, N_DICT, parser->token++);
    if (*out == NULL) {
        return false;
    }
    while (!ox_ji_skip_operator(parser, "}")) {
        struct node *key = NULL, *value = NULL;
        if ((*out)->as.items.count > 0) {
            if (!ox_ji_expect_operator(parser, ",")) {
                return false;
            }
            if (ox_ji_skip_operator(parser, "}")) {
                break;
            }
        }
        if (!ox_ji_parse_expression(parser, &key) || !ox_ji_expect_operator(parser, ":") ||
            !ox_ji_parse_expression(parser, &value)) {
            return false;
        }
        ox_ji_add_node(&(*out)->as.items, key);
        ox_ji_add_node(&(*out)->as.items, value);
    }
    return true;
}

static bool parse_primary(struct parser *parser, unsigned rules, struct node **out) {
    const struct token *const token = parser->token;
    switch (token->kind) {
    case T_NAME:
        return parse_name(parser, rules, out);
    case T_STRING:
        return parse_string(parser, out);
    case T_INTEGER:
    case T_FLOAT:
        parser->token++;
        return make_constant(parser, token, token->number, out);
    default:
        break;
    }
    if (ox_ji_skip_operator(parser, "(")) {
        return ox_ji_parse_tuple(parser, TUPLE_PARENTHESES, out) && ox_ji_expect_operator(parser, ")");
    }
    if (ox_ji_is_operator(token, "[")) {
        return parse_list(parser, out);
    }
    if (ox_ji_is_operator(token, "{")) {
        return parse_dict(parser, out);
    }
    return token->kind == T_OPERATOR ? ox_ji_parse_failed(parser, "unexpected '%s'", token->symbol)
                                     : ox_ji_parse_failed(parser, "expected an expression");
}

/* ---- tuples ---------------------------------------------------------------------------------------------------- */

static bool ends_tuple(const struct parser *parser, unsigned rules) {
    const struct token *const token = parser->token;
    return token->kind == T_VARIABLE_END || token->kind == T_BLOCK_END || ox_ji_is_operator(token, ")") ||
           ((rules & TUPLE_TARGET) != 0 && (rules & TUPLE_NAMESPACE) == 0 && ox_ji_is_word(token, "in")) ||
           ((rules & TUPLE_RECURSIVE) != 0 && ox_ji_is_word(token, "recursive"));
}

static bool parse_tuple_item(struct parser *parser, unsigned rules, struct node **out) {
    if ((rules & TUPLE_TARGET) != 0) {
        return parse_primary(parser, rules, out);
    }
    return (rules & TUPLE_NO_CONDITION) != 0 ? parse_or(parser, out) : ox_ji_parse_expression(parser, out);
}

static bool parse_tuple_items(struct parser *parser, unsigned rules, struct node **out) {
    struct node *const tuple = ox_ji_new_node(parser, N_TUPLE, parser->token);
    bool is_tuple = false;
    if (tuple == NULL) {
        return false;
    }
    while (!ends_tuple(parser, rules)) {
        struct node *item = NULL;
        if (!parse_tuple_item(parser, rules, &item)) {
            return false;
        }
        ox_ji_add_node(&tuple->as.items, item);
        if (!ox_ji_skip_operator(parser, ",")) {
            break;
        }
        is_tuple = true;
    }
    if (!is_tuple && tuple->as.items.count == 0 && (rules & TUPLE_PARENTHESES) == 0) {
        return ox_ji_parse_failed(parser, "Expected an expression");
    }
    *out = !is_tuple && tuple->as.items.count == 1 ? tuple->as.items.first : tuple;
    return true;
}

bool ox_ji_parse_tuple(struct parser *parser, unsigned rules, struct node **out) {
    if (!ox_ji_enter(parser->run)) {
        parser->run->place = parser->token->place;
        return false;
    }
    const bool ok = parse_tuple_items(parser, rules, out);
    parser->run->depth--;
    return ok;
}

/* ---- calls, subscripts, filters, tests -------------------------------------------------------------------------- */

static bool add_keyword(struct parser *parser, struct call_arguments *arguments, struct keyword **last) {
    struct keyword *const keyword = ox_ji_new(parser->run, sizeof *keyword);
    if (keyword == NULL || !ox_ji_expect_name(parser, &keyword->name)) {
        return false;
    }
    parser->token++; /* = */
    for (const struct keyword *other = arguments->keywords; other != NULL; other = other->next) {
        if (other->name == keyword->name) {
            return ox_ji_parse_failed(parser, "keyword argument repeated");
        }
    }
    if (arguments->keywords == NULL) {
        arguments->keywords = keyword;
    } else {
        (*last)->next = keyword;
    }
    *last = keyword;
    arguments->keyword_count++;
    return ox_ji_parse_expression(parser, &keyword->value);
}

static bool parse_argument(struct parser *parser, struct call_arguments *arguments, struct keyword **last) {
    struct node *value = NULL;
    if (ox_ji_skip_operator(parser, "*")) {
        return arguments->more_positional == NULL && arguments->more_keywords == NULL
                   ? ox_ji_parse_expression(parser, &arguments->more_positional)
                   : ox_ji_parse_failed(parser, "invalid syntax for function call expression");
    }
    if (arguments->more_keywords != NULL) {
        return ox_ji_parse_failed(parser, "invalid syntax for function call expression");
    }
    if (ox_ji_skip_operator(parser, "**")) {
        return ox_ji_parse_expression(parser, &arguments->more_keywords);
    }
    if (parser->token->kind == T_NAME && ox_ji_is_operator(parser->token + 1, "=")) {
        return add_keyword(parser, arguments, last);
    }
    if (arguments->more_positional != NULL || arguments->keyword_count > 0) {
        return ox_ji_parse_failed(parser, "invalid syntax for function call expression");
    }
    if (!ox_ji_parse_expression(parser, &value)) {
        return false;
    }
    ox_ji_add_node(&arguments->positional, value);
    return true;
}

static bool parse_arguments(struct parser *parser, struct call_arguments *arguments) {
    struct keyword *last = NULL;
    bool is_first = true;
    if (!ox_ji_expect_operator(parser, "(")) {
        return false;
    }
    while (!ox_ji_skip_operator(parser, ")")) {
        if (!is_first) {
            if (!ox_ji_expect_operator(parser, ",")) {
                return false;
            }
            if (ox_ji_skip_operator(parser, ")")) {
                break;
            }
        }
        is_first = false;
        if (!parse_argument(parser, arguments, &last)) {
            return false;
        }
    }
    return true;
}

static bool parse_call(struct parser *parser, struct node **node) {
    struct node *const call = ox_ji_new_node(parser, N_CALL, parser->token);
    if (call == NULL) {
        return false;
    }
    call->as.call.function = *node;
    *node = call;
    return parse_arguments(parser, &call->as.call.arguments);
}

static bool ends_subscript(const struct parser *parser) {
    return ox_ji_is_operator(parser->token, "]") || ox_ji_is_operator(parser->token, ",") ||
           ox_ji_is_operator(parser->token, ":");
}

/* An index, or a slice begin:end:step of which every part may be left out. */
static bool parse_index(struct parser *parser, struct node **out) {
    struct node *const slice = ox_ji_new_node(parser, N_SLICE, parser->token);
    if (slice == NULL ||
        (!ox_ji_is_operator(parser->token, ":") && !ox_ji_parse_expression(parser, &slice->as.slice[0]))) {
        return false;
    }
    if (!ox_ji_skip_operator(parser, ":")) {
        *out = slice->as.slice[0];
        return true;
    }
    *out = slice;
    if (!ends_subscript(parser) && !ox_ji_parse_expression(parser, &slice->as.slice[1])) {
        return false;
    }
    return !ox_ji_skip_operator(parser, ":") || ends_subscript(parser) ||
           ox_ji_parse_expression(parser, &slice->as.slice[2]);
}

static bool parse_attribute(struct parser *parser, struct node *get) {
    const struct token *const token = parser->token;
    struct value key = MISSING;
    if (token->kind != T_NAME && token->kind != T_INTEGER) {
        return ox_ji_parse_failed(parser, "expected name or number");
    }
    get->kind = token->kind == T_NAME ? N_GETATTR : N_GETITEM;
    if (token->kind == T_INTEGER) {
        key = token->number;
    } else if (!ox_ji_string_at(parser->run, token->text, token->bytes, &key)) {
        return false;
    }
    parser->token++;
    return make_constant(parser, token, key, &get->as.get.key);
}

static bool parse_subscript(struct parser *parser, struct node **node) {
    struct node *const get = ox_ji_new_node(parser, N_GETITEM, parser->token);
    if (get == NULL) {
        return false;
    }
    get->as.get.object = *node;
    *node = get;
    if (ox_ji_skip_operator(parser, ".")) {
        return parse_attribute(parser, get);
    }
    parser->token++; /* [ */
    if (!parse_index(parser, &get->as.get.key)) {
        return false;
    }
    return ox_ji_is_operator(parser->token, ",")
               ? ox_ji_parse_failed(parser, "several subscripts are not supported here")
               : ox_ji_expect_operator(parser, "]");
}

static bool parse_postfix(struct parser *parser, struct node **node) {
    for (;;) {
        bool ok = true;
        if (ox_ji_is_operator(parser->token, ".") || ox_ji_is_operator(parser->token, "[")) {
            ok = parse_subscript(parser, node);
        } else if (ox_ji_is_operator(parser->token, "(")) {
            ok = parse_call(parser, node);
        } else {
            return true;
        }
        if (!ok) {
            return false;
        }
    }
}

/* The name of a filter or test, and what it means. An unknown one fails at the end of the template; below an if, and in
 * `a if b else c`, it fails when it is reached. */
static bool parse_applied(struct parser *parser, struct node *node, bool is_filter) {
    const struct token *const token = parser->token;
    if (!ox_ji_expect_name(parser, &node->as.apply.name)) {
        return false;
    }
    if (ox_ji_is_operator(parser->token, ".")) {
        return ox_ji_parse_failed(parser, "a dot in the name of a filter or test is not supported here");
    }
    node->as.apply.builtin = is_filter ? ox_ji_find_filter(node->as.apply.name) : ox_ji_find_test(node->as.apply.name);
    if (node->as.apply.builtin == NULL && !parser->is_soft && parser->unknown == NULL) {
        parser->unknown = token;
    }
    return true;
}

bool ox_ji_parse_filters(struct parser *parser, struct node *subject, bool inline_start, struct node **out) {
    *out = subject;
    while (inline_start || ox_ji_skip_operator(parser, "|")) {
        struct node *const filter = ox_ji_new_node(parser, N_FILTER, parser->token);
        inline_start = false;
        if (filter == NULL || !parse_applied(parser, filter, true) ||
            (ox_ji_is_operator(parser->token, "(") && !parse_arguments(parser, &filter->as.apply.arguments))) {
            return false;
        }
        filter->as.apply.subject = *out;
        *out = filter;
    }
    return true;
}

/* Whether the argument of a test follows without parentheses: `x is divisibleby 3`. */
static bool has_bare_argument(const struct parser *parser) {
    const struct token *const token = parser->token;
    if (token->kind == T_NAME) {
        return !ox_ji_is_word(token, "else") && !ox_ji_is_word(token, "or") && !ox_ji_is_word(token, "and");
    }
    return token->kind == T_STRING || token->kind == T_INTEGER || token->kind == T_FLOAT ||
           ox_ji_is_operator(token, "[") || ox_ji_is_operator(token, "{");
}

static bool parse_test(struct parser *parser, struct node **node) {
    const struct token *const token = parser->token++;
    const bool negated = ox_ji_skip_word(parser, "not");
    struct node *const test = ox_ji_new_node(parser, N_TEST, token);
    if (test == NULL || !parse_applied(parser, test, false)) {
        return false;
    }
    test->as.apply.subject = *node;
    *node = test;
    if (ox_ji_is_operator(parser->token, "(")) {
        if (!parse_arguments(parser, &test->as.apply.arguments)) {
            return false;
        }
    } else if (has_bare_argument(parser)) {
        struct node *argument = NULL;
        if (ox_ji_is_word(parser->token, "is")) {
            return ox_ji_parse_failed(parser, "You cannot chain multiple tests with is");
        }
        if (!parse_primary(parser, 0, &argument) || !parse_postfix(parser, &argument)) {
            return false;
        }
        ox_ji_add_node(&test->as.apply.arguments.positional, argument);
    }
    if (negated) {
        *node = ox_ji_new_node(parser, N_NOT, token);
        if (*node == NULL) {
            return false;
        }
        (*node)->as.operand = test;
    }
    return true;
}

static bool parse_filter_expression(struct parser *parser, struct node **node) {
    for (;;) {
        bool ok = true;
        if (ox_ji_is_operator(parser->token, "|")) {
            ok = ox_ji_parse_filters(parser, *node, false, node);
        } else if (ox_ji_is_word(parser->token, "is")) {
            ok = parse_test(parser, node);
        } else if (ox_ji_is_operator(parser->token, "(")) {
            ok = parse_call(parser, node);
        } else {
            return true;
        }
        if (!ok) {
            return false;
        }
    }
}

/* ---- operators ------------------------------------------------------------------------------------------------- */

static bool parse_signed(struct parser *parser, struct node **out) {
    *out = ox_ji_new_node(parser, ox_ji_is_operator(parser->token, "-") ? N_NEGATE : N_PLUS, parser->token);
    if (*out == NULL || !ox_ji_enter(parser->run)) {
        return false;
    }
    parser->token++;
    const bool ok = parse_unary(parser, false, &(*out)->as.operand);
    parser->run->depth--;
    return ok;
}

static bool parse_unary(struct parser *parser, bool with_filter, struct node **out) {
    const bool is_signed = ox_ji_is_operator(parser->token, "-") || ox_ji_is_operator(parser->token, "+");
    return (is_signed ? parse_signed(parser, out) : parse_primary(parser, 0, out)) && parse_postfix(parser, out) &&
           (!with_filter || parse_filter_expression(parser, out));
}

/* The operators of one level, which bind from left to right. */
struct level {
    const char *operators[5];
    char codes[5];
};

static char operator_of(const struct parser *parser, const struct level *level) {
    for (size_t i = 0; level->operators[i] != NULL; i++) {
        if (ox_ji_is_operator(parser->token, level->operators[i])) {
            return level->codes[i];
        }
    }
    return '\0';
}

static bool parse_level(struct parser *parser, const struct level *level,
                        bool (*parse_operand)(struct parser *, struct node **), struct node **out) {
    if (!parse_operand(parser, out)) {
        return false;
    }
    for (char code; (code = operator_of(parser, level)) != '\0';) {
        struct node *const node = ox_ji_new_node(parser, N_BINARY, parser->token);
        parser->token++;
        if (node == NULL || !parse_operand(parser, &node->as.binary.right)) {
            return false;
        }
        node->as.binary.left = *out;
        node->as.binary.symbol = code;
        *out = node;
    }
    return true;
}

static bool parse_operand(struct parser *parser, struct node **out) {
    return parse_unary(parser, true, out);
}

static bool parse_power(struct parser *parser, struct node **out) {
    static const struct level level = {{"**"}, {'^'}};
    return parse_level(parser, &level, parse_operand, out);
}

static bool parse_product(struct parser *parser, struct node **out) {
    static const struct level level = {{"*", "/", "//", "%"}, {'*', '/', '\\', '%'}};
    return parse_level(parser, &level, parse_power, out);
}

static bool parse_concat(struct parser *parser, struct node **out) {
    if (!parse_product(parser, out)) {
        return false;
    }
    if (!ox_ji_is_operator(parser->token, "~")) {
        return true;
    }
    struct node *const node = ox_ji_new_node(parser, N_CONCAT, parser->token);
    if (node == NULL) {
        return false;
    }
    ox_ji_add_node(&node->as.items, *out);
    while (ox_ji_skip_operator(parser, "~")) {
        if (!parse_product(parser, out)) {
            return false;
        }
        ox_ji_add_node(&node->as.items, *out);
    }
    *out = node;
    return true;
}

static bool parse_sum(struct parser *parser, struct node **out) {
    static const struct level level = {{"+", "-"}, {'+', '-'}};
    return parse_level(parser, &level, parse_concat, out);
}

/* Reads a comparison operator into *kind; false where there is none. */
static bool read_comparison(struct parser *parser, enum comparison_kind *kind) {
    static const char *const operators[] = {[C_EQ] = "==", [C_NE] = "!=", [C_LT] = "<",
                                            [C_LE] = "<=", [C_GT] = ">",  [C_GE] = ">="};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (ox_ji_skip_operator(parser, operators[i])) {
            *kind = (enum comparison_kind)i;
            return true;
        }
    }
    if (ox_ji_skip_word(parser, "in")) {
        *kind = C_IN;
        return true;
    }
    if (ox_ji_is_word(parser->token, "not") && ox_ji_is_word(parser->token + 1, "in")) {
        parser->token += 2;
        *kind = C_NOT_IN;
        return true;
    }
    return false;
}

static bool parse_compare(struct parser *parser, struct node **out) {
    const struct token *const token = parser->token;
    struct node *first = NULL;
    struct comparison **link = NULL;
    enum comparison_kind kind = C_EQ;
    if (!parse_sum(parser, &first)) {
        return false;
    }
    *out = first;
    while (read_comparison(parser, &kind)) {
        if (link == NULL) {
            *out = ox_ji_new_node(parser, N_COMPARE, token);
            if (*out == NULL) {
                return false;
            }
            (*out)->as.compare.first = first;
            link = &(*out)->as.compare.rest;
        }
        struct comparison *const comparison = ox_ji_new(parser->run, sizeof *comparison);
        if (comparison == NULL || !parse_sum(parser, &comparison->operand)) {
            return false;
        }
        comparison->kind = kind;
        *link = comparison;
        link = &comparison->next;
    }
    return true;
}

static bool parse_not(struct parser *parser, struct node **out) {
    if (!ox_ji_is_word(parser->token, "not")) {
        return parse_compare(parser, out);
    }
    *out = ox_ji_new_node(parser, N_NOT, parser->token);
    if (*out == NULL || !ox_ji_enter(parser->run)) {
        return false;
    }
    parser->token++;
    const bool ok = parse_not(parser, &(*out)->as.operand);
    parser->run->depth--;
    return ok;
}

static bool parse_logic(struct parser *parser, const char *word, struct node **out) {
    const bool is_and = word[0] == 'a';
    if (!(is_and ? parse_not(parser, out) : parse_logic(parser, "and", out))) {
        return false;
    }
    while (ox_ji_is_word(parser->token, word)) {
        struct node *const node = ox_ji_new_node(parser, is_and ? N_AND : N_OR, parser->token);
        parser->token++;
        if (node == NULL || !(is_and ? parse_not(parser, &node->as.binary.right)
                                     : parse_logic(parser, "and", &node->as.binary.right))) {
            return false;
        }
        node->as.binary.left = *out;
        *out = node;
    }
    return true;
}

static bool parse_or(struct parser *parser, struct node **out) {
    return parse_logic(parser, "or", out);
}

static bool parse_condition(struct parser *parser, struct node **out) {
    const struct token *const unknown = parser->unknown;
    if (!parse_or(parser, out)) {
        return false;
    }
    while (ox_ji_is_word(parser->token, "if")) {
        struct node *const node = ox_ji_new_node(parser, N_CONDITION, parser->token);
        parser->token++;
        if (node == NULL || !parse_or(parser, &node->as.condition.test) ||
            (ox_ji_skip_word(parser, "else") && !ox_ji_parse_expression(parser, &node->as.condition.otherwise))) {
            return false;
        }
        node->as.condition.then = *out;
        *out = node;
        parser->unknown = unknown;
    }
    return true;
}

bool ox_ji_parse_expression(struct parser *parser, struct node **out) {
    if (!ox_ji_enter(parser->run)) {
        return false;
    }
    const bool ok = parse_condition(parser, out);
    parser->run->depth--;
    return ok;
}
