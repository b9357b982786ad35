/* Owns statements: tokens to a tree. The grammar is that of jinja2/parser.py. */
#include "engine/jinja/ast_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- helpers --------------------------------------------------------------------------------------------------- */

bool ox_ji_parse_failed(struct parser *parser, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    parser->run->place = parser->token->place;
    return ox_ji_fail(parser->run, "%s", text);
}

struct node *ox_ji_new_node(struct parser *parser, enum node_kind kind, const struct token *token) {
    struct node *const node = ox_ji_spend(parser->run, 1) ? ox_ji_new(parser->run, sizeof *node) : NULL;
    if (node != NULL) {
        node->kind = kind;
        node->place = token->place;
    }
    return node;
}

void ox_ji_add_node(struct nodes *nodes, struct node *node) {
    if (nodes->last == NULL) {
        nodes->first = node;
    } else {
        nodes->last->next = node;
    }
    nodes->last = node;
    nodes->count++;
}

/* Names are looked for one after the other; published templates spell up to 107. */
enum { NAMES_MAX = 1000, PARAMETERS_MAX = 255 };

const struct string *ox_ji_intern(struct parser *parser, const char *text, size_t bytes) {
    uint32_t count = 0;
    for (const struct name_link *link = parser->names; link != NULL; link = link->next, count++) {
        if (link->name->bytes == bytes && memcmp(link->name->data, text, bytes) == 0) {
            return ox_ji_spend(parser->run, count / 64) ? link->name : NULL;
        }
    }
    if (count == NAMES_MAX &&
        !ox_ji_parse_failed(parser, "more than %d different names in a template are not supported", NAMES_MAX)) {
        return NULL;
    }
    struct name_link *const link = ox_ji_new(parser->run, sizeof *link);
    struct value name = MISSING;
    if (link == NULL || !ox_ji_string_at(parser->run, text, bytes, &name)) {
        return NULL;
    }
    *link = (struct name_link){.name = name.as.string, .next = parser->names};
    parser->names = link;
    return link->name;
}

bool ox_ji_is_word(const struct token *token, const char *word) {
    return token->kind == T_NAME && token->bytes == strlen(word) && memcmp(token->text, word, token->bytes) == 0;
}

bool ox_ji_is_operator(const struct token *token, const char *symbol) {
    return token->kind == T_OPERATOR && strcmp(token->symbol, symbol) == 0;
}

bool ox_ji_skip_operator(struct parser *parser, const char *symbol) {
    const bool is = ox_ji_is_operator(parser->token, symbol);
    parser->token += is;
    return is;
}

bool ox_ji_skip_word(struct parser *parser, const char *word) {
    const bool is = ox_ji_is_word(parser->token, word);
    parser->token += is;
    return is;
}

bool ox_ji_expect_operator(struct parser *parser, const char *symbol) {
    return ox_ji_skip_operator(parser, symbol) || ox_ji_parse_failed(parser, "expected '%s'", symbol);
}

bool ox_ji_expect_name(struct parser *parser, const struct string **out) {
    if (parser->token->kind != T_NAME) {
        return ox_ji_parse_failed(parser, "expected a name");
    }
    *out = ox_ji_intern(parser, parser->token->text, parser->token->bytes);
    parser->token++;
    return *out != NULL;
}

bool ox_ji_note_use(struct parser *parser, const struct string *name, bool sets) {
    struct name_use **link = &parser->uses->first;
    for (; *link != NULL; link = &(*link)->next) {
        if ((*link)->name == name) {
            return true;
        }
    }
    struct name_use *const use = ox_ji_new(parser->run, sizeof *use);
    if (use == NULL) {
        return false;
    }
    *use = (struct name_use){.name = name, .hides = sets && parser->branch_depth == 0};
    parser->hides = parser->hides || use->hides;
    parser->reads_self = parser->reads_self || (!sets && !parser->sets_self && ox_ji_string_is(name, "self"));
    *link = use;
    return true;
}

static bool expect_block_end(struct parser *parser) {
    if (parser->token->kind != T_BLOCK_END) {
        return ox_ji_parse_failed(parser, "expected the end of the statement, \"%%}\"");
    }
    parser->token++;
    return true;
}

/* ---- bodies ---------------------------------------------------------------------------------------------------- */

static bool parse_statement(struct parser *parser, struct nodes *body);

static bool ends_body(const struct parser *parser, const char *const *ends) {
    for (size_t i = 0; ends != NULL && ends[i] != NULL; i++) {
        if (ox_ji_is_word(parser->token, ends[i])) {
            return true;
        }
    }
    return false;
}

static bool parse_data(struct parser *parser, struct nodes *body) {
    struct node *const node = ox_ji_new_node(parser, N_DATA, parser->token);
    if (node == NULL || !ox_ji_string_at(parser->run, parser->token->text, parser->token->bytes, &node->as.constant)) {
        return false;
    }
    parser->token++;
    ox_ji_add_node(body, node);
    return true;
}

static bool parse_print(struct parser *parser, struct nodes *body) {
    struct node *const node = ox_ji_new_node(parser, N_PRINT, parser->token);
    parser->token++;
    if (node == NULL || !ox_ji_parse_tuple(parser, TUPLE_PLAIN, &node->as.operand)) {
        return false;
    }
    if (parser->token->kind != T_VARIABLE_END) {
        return ox_ji_parse_failed(parser, "expected the end of the print statement, \"}}\"");
    }
    parser->token++;
    ox_ji_add_node(body, node);
    return true;
}

/* Parses up to a tag that begins with one of `ends`, or to the end of the template where `ends` is NULL. The current
 * token is then that word. */
static bool parse_until(struct parser *parser, const char *const *ends, struct nodes *body) {
    for (;;) {
        bool ok = true;
        switch (parser->token->kind) {
        case T_DATA:
            ok = parse_data(parser, body);
            break;
        case T_VARIABLE_BEGIN:
            ok = parse_print(parser, body);
            break;
        case T_BLOCK_BEGIN:
            parser->token++;
            if (ends_body(parser, ends)) {
                return true;
            }
            ok = parse_statement(parser, body) && expect_block_end(parser);
            break;
        default:
            return ends == NULL || ox_ji_parse_failed(parser, "Unexpected end of template; expected %s", ends[0]);
        }
        if (!ok) {
            return false;
        }
    }
}

/* The body of a statement: after its "%}" up to the word of `ends`. */
static bool parse_body(struct parser *parser, const char *const *ends, struct nodes *body) {
    ox_ji_skip_operator(parser, ":");
    if (!ox_ji_enter(parser->run)) {
        return false;
    }
    const bool ok = expect_block_end(parser) && parse_until(parser, ends, body);
    parser->run->depth--;
    return ok;
}

/* The scope around the current place, while an inner one is parsed. */
struct outer_scope {
    struct name_uses *uses;
    uint32_t branch_depth;
    bool is_soft;
};

static struct outer_scope enter_scope(struct parser *parser, struct name_uses *uses) {
    const struct outer_scope outer = {parser->uses, parser->branch_depth, parser->is_soft};
    parser->uses = uses;
    parser->branch_depth = 0;
    parser->is_soft = false; /* unknown filters fail at once again */
    return outer;
}

static void leave_scope(struct parser *parser, struct outer_scope outer) {
    parser->uses = outer.uses;
    parser->branch_depth = outer.branch_depth;
    parser->is_soft = outer.is_soft;
}

/* A body with a scope of its own that ends with `end`, which is skipped. */
static bool parse_own_body(struct parser *parser, const char *end, struct nodes *body, struct name_uses *uses) {
    const char *const ends[] = {end, NULL};
    const struct outer_scope outer = enter_scope(parser, uses);
    const bool ok = parse_body(parser, ends, body);
    leave_scope(parser, outer);
    parser->token += ok;
    return ok;
}

/* Notes the names of a target, which the current scope sets. */
static bool note_target(struct parser *parser, const struct node *target) {
    if (target->kind == N_NSREF) {
        return ox_ji_note_use(parser, target->as.nsref.name, false);
    }
    if (target->kind == N_NAME) {
        return ox_ji_note_use(parser, target->as.name, true);
    }
    bool ok = true;
    for (const struct node *item = target->as.items.first; ok && item != NULL; item = item->next) {
        ok = note_target(parser, item);
    }
    return ok;
}

/* ---- targets --------------------------------------------------------------------------------------------------- */

static void note_self(struct parser *parser, const struct node *target) {
    parser->sets_self = parser->sets_self || (target->kind == N_NAME && ox_ji_string_is(target->as.name, "self"));
}

static bool check_target(struct parser *parser, const struct node *target) {
    if (target->kind == N_TUPLE) {
        for (const struct node *item = target->as.items.first; item != NULL; item = item->next) {
            if (!check_target(parser, item)) {
                return false;
            }
        }
        return true;
    }
    if (target->kind == N_NAME && parser->for_depth > 0 && ox_ji_string_is(target->as.name, "loop")) {
        return ox_ji_parse_failed(parser, "can't assign to the variable loop in a for loop");
    }
    note_self(parser, target);
    return target->kind == N_NAME || target->kind == N_NSREF || ox_ji_parse_failed(parser, "can't assign to this");
}

/* What is assigned to. */
static bool parse_target(struct parser *parser, unsigned rules, struct node **out) {
    return ox_ji_parse_tuple(parser, rules | TUPLE_TARGET, out) && check_target(parser, *out);
}

/* ---- statements ------------------------------------------------------------------------------------------------ */

static bool parse_branches(struct parser *parser, struct branch **link) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    bool has_test = true;
    for (;; has_test = !ox_ji_is_word(parser->token - 1, "else")) {
        struct branch *const branch = ox_ji_new(parser->run, sizeof *branch);
        if (branch == NULL || (has_test && !ox_ji_parse_tuple(parser, TUPLE_NO_CONDITION, &branch->test)) ||
            !parse_body(parser, has_test ? ends : last, &branch->body)) {
            return false;
        }
        *link = branch;
        link = &branch->next;
        parser->token++;
        if (ox_ji_is_word(parser->token - 1, "endif")) {
            return true;
        }
    }
}

static bool parse_if(struct parser *parser, struct node *node) {
    const bool was_soft = parser->is_soft;
    parser->is_soft = true;
    parser->branch_depth++;
    const bool ok = parse_branches(parser, &node->as.branches);
    parser->branch_depth--;
    parser->is_soft = was_soft;
    return ok;
}

static bool parse_loop(struct parser *parser, struct node *node) {
    static const char *const ends[] = {"else", "endfor", NULL};
    node->as.loop.word = ox_ji_intern(parser, "loop", 4);
    if (node->as.loop.word == NULL || !parse_target(parser, 0, &node->as.loop.target)) {
        return false;
    }
    if (!ox_ji_skip_word(parser, "in")) {
        return ox_ji_parse_failed(parser, "expected 'in'");
    }
    if (!ox_ji_parse_tuple(parser, TUPLE_NO_CONDITION | TUPLE_RECURSIVE, &node->as.loop.iterable)) {
        return false;
    }
    if (ox_ji_skip_word(parser, "if")) {
        const struct outer_scope around = enter_scope(parser, &node->as.loop.test_uses);
        const bool ok = ox_ji_parse_expression(parser, &node->as.loop.test);
        leave_scope(parser, around);
        if (!ok) {
            return false;
        }
    }
    node->as.loop.is_recursive = ox_ji_skip_word(parser, "recursive");
    const struct outer_scope outer = enter_scope(parser, &node->as.loop.uses);
    parser->loop_depth++;
    const bool ok = parse_body(parser, ends, &node->as.loop.body);
    parser->loop_depth--;
    leave_scope(parser, outer);
    if (!ok) {
        return false;
    }
    parser->token++;
    return ox_ji_is_word(parser->token - 1, "endfor") ||
           parse_own_body(parser, "endfor", &node->as.loop.otherwise, &node->as.loop.otherwise_uses);
}

static bool parse_for(struct parser *parser, struct node *node) {
    parser->for_depth++;
    const bool ok = parse_loop(parser, node);
    parser->for_depth--;
    return ok;
}

static bool parse_set(struct parser *parser, struct node *node) {
    struct node *target = NULL;
    if (!parse_target(parser, TUPLE_NAMESPACE, &target)) {
        return false;
    }
    if (ox_ji_skip_operator(parser, "=")) {
        node->as.set.target = target;
        return ox_ji_parse_tuple(parser, TUPLE_PLAIN, &node->as.set.value) && note_target(parser, target);
    }
    node->kind = N_SET_BLOCK;
    node->as.block.target = target;
    return note_target(parser, target) && ox_ji_parse_filters(parser, NULL, false, &node->as.block.filter) &&
           parse_own_body(parser, "endset", &node->as.block.body, &node->as.block.uses);
}

static bool parse_filter_block(struct parser *parser, struct node *node) {
    return ox_ji_parse_filters(parser, NULL, true, &node->as.block.filter) &&
           parse_own_body(parser, "endfilter", &node->as.block.body, &node->as.block.uses);
}

/* The body of a macro or of a call block, in which break and continue mean no loop around it. */
static bool parse_macro_body(struct parser *parser, struct signature *signature, const char *end) {
    struct signature_link link = {.signature = signature, .outer = parser->signatures};
    const uint32_t loop_depth = parser->loop_depth;
    parser->signatures = &link;
    parser->loop_depth = 0;
    const bool ok = parse_own_body(parser, end, &signature->body, &signature->uses);
    parser->signatures = link.outer;
    parser->loop_depth = loop_depth;
    return ok;
}

static bool parse_parameters(struct parser *parser, struct signature *signature) {
    if (!ox_ji_expect_operator(parser, "(")) {
        return false;
    }
    while (!ox_ji_skip_operator(parser, ")")) {
        if (signature->parameters.count > 0 && !ox_ji_expect_operator(parser, ",")) {
            return false;
        }
        if (signature->parameters.count == PARAMETERS_MAX) {
            return ox_ji_parse_failed(parser, "more than %d parameters are not supported here", PARAMETERS_MAX);
        }
        struct node *const name = ox_ji_new_node(parser, N_NAME, parser->token);
        if (name == NULL || !ox_ji_expect_name(parser, &name->as.name)) {
            return false;
        }
        note_self(parser, name);
        struct node *value = NULL;
        if (ox_ji_skip_operator(parser, "=")) {
            if (!ox_ji_parse_expression(parser, &value)) {
                return false;
            }
            ox_ji_add_node(&signature->defaults, value);
        } else if (signature->defaults.count > 0) {
            return ox_ji_parse_failed(parser, "non-default argument follows default argument");
        }
        ox_ji_add_node(&signature->parameters, name);
    }
    return true;
}

/* Defaults are evaluated in the scope of the body. */
static bool parse_signature(struct parser *parser, struct signature *signature) {
    const struct outer_scope outer = enter_scope(parser, &signature->uses);
    const bool ok = parse_parameters(parser, signature);
    leave_scope(parser, outer);
    return ok;
}

static bool parse_macro(struct parser *parser, struct node *node) {
    struct signature *const signature = ox_ji_new(parser->run, sizeof *signature);
    node->as.macro.signature = signature;
    return signature != NULL && ox_ji_expect_name(parser, &signature->name) &&
           ox_ji_note_use(parser, signature->name, true) &&
           parse_signature(parser, signature) && parse_macro_body(parser, signature, "endmacro");
}

static bool parse_call_block(struct parser *parser, struct node *node) {
    struct signature *const signature = ox_ji_new(parser->run, sizeof *signature);
    node->as.macro.signature = signature;
    if (signature == NULL ||
        (ox_ji_is_operator(parser->token, "(") && !parse_signature(parser, signature)) ||
        !ox_ji_parse_expression(parser, &node->as.macro.call)) {
        return false;
    }
    return node->as.macro.call->kind == N_CALL ? parse_macro_body(parser, signature, "endcall")
                                               : ox_ji_parse_failed(parser, "expected call");
}

static bool parse_generation(struct parser *parser, struct node *node) {
    struct signature *const signature = ox_ji_new(parser->run, sizeof *signature);
    node->as.macro.signature = signature;
    parser->marks_generation = true;
    return signature != NULL && parse_macro_body(parser, signature, "endgeneration");
}

static bool parse_with(struct parser *parser, struct node *node) {
    while (parser->token->kind != T_BLOCK_END) {
        struct node *target = NULL, *value = NULL;
        if ((node->as.with.targets.count > 0 && !ox_ji_expect_operator(parser, ",")) ||
            !ox_ji_parse_tuple(parser, TUPLE_TARGET, &target) || !check_target(parser, target) ||
            !ox_ji_expect_operator(parser, "=") || !ox_ji_parse_expression(parser, &value)) {
            return false;
        }
        ox_ji_add_node(&node->as.with.targets, target);
        ox_ji_add_node(&node->as.with.values, value);
    }
    return parse_own_body(parser, "endwith", &node->as.with.body, &node->as.with.uses);
}

static bool parse_print_statement(struct parser *parser, struct node *node) {
    struct nodes values = {0};
    node->kind = N_CONCAT;
    while (parser->token->kind != T_BLOCK_END) {
        struct node *value = NULL;
        if ((values.count > 0 && !ox_ji_expect_operator(parser, ",")) || !ox_ji_parse_expression(parser, &value)) {
            return false;
        }
        ox_ji_add_node(&values, value);
    }
    struct node *const text = ox_ji_new_node(parser, N_CONCAT, parser->token);
    if (text == NULL) {
        return false;
    }
    text->as.items = values;
    node->kind = N_PRINT;
    node->as.operand = text;
    return true;
}

static bool parse_loop_control(struct parser *parser, struct node *node) {
    return parser->loop_depth > 0 ||
           ox_ji_parse_failed(parser, "'%s' outside loop", node->kind == N_BREAK ? "break" : "continue");
}

static const struct {
    const char *word;
    enum node_kind kind;
    bool (*parse)(struct parser *parser, struct node *node);
} statements[] = {
    {"if", N_IF, parse_if},
    {"for", N_FOR, parse_for},
    {"set", N_SET, parse_set},
    {"macro", N_MACRO, parse_macro},
    {"call", N_CALL_BLOCK, parse_call_block},
    {"filter", N_FILTER_BLOCK, parse_filter_block},
    {"generation", N_GENERATION, parse_generation},
    {"with", N_WITH, parse_with},
    {"print", N_PRINT, parse_print_statement},
    {"break", N_BREAK, parse_loop_control},
    {"continue", N_CONTINUE, parse_loop_control},
};

static bool parse_statement(struct parser *parser, struct nodes *body) {
    if (parser->token->kind != T_NAME) {
        return ox_ji_parse_failed(parser, "tag name expected");
    }
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (ox_ji_is_word(parser->token, statements[i].word)) {
            struct node *const node = ox_ji_new_node(parser, statements[i].kind, parser->token);
            if (node == NULL) {
                return false;
            }
            parser->token++;
            ox_ji_add_node(body, node);
            return statements[i].parse(parser, node);
        }
    }
    return ox_ji_parse_failed(parser, "unknown or unsupported tag '%.*s'",
                              parser->token->bytes > 60 ? 60 : (int)parser->token->bytes, parser->token->text);
}

bool ox_ji_parse(struct parser *parser, struct nodes *body, struct name_uses *uses) {
    parser->uses = uses;
    if (!parse_until(parser, NULL, body)) {
        return false;
    }
    parser->token = parser->unknown != NULL ? parser->unknown : parser->token;
    return parser->unknown == NULL ||
           ox_ji_parse_failed(parser, "No filter or test named '%.*s'.",
                              parser->token->bytes > 60 ? 60 : (int)parser->token->bytes, parser->token->text);
}
