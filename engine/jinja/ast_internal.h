/* A template as a tree, and the tables of what its names mean. The parser makes the tree; rendering only reads it. */
#ifndef OX_ENGINE_JINJA_AST_H
#define OX_ENGINE_JINJA_AST_H

#include "engine/jinja/value_internal.h"

/* ---- tokens (lexer.c) ------------------------------------------------------------------------------------------ */

enum token_kind {
    T_END,
    T_DATA, /* text outside of tags */
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_VARIABLE_BEGIN,
    T_VARIABLE_END,
    T_NAME,
    T_STRING,
    T_INTEGER,
    T_FLOAT,
    T_OPERATOR,
};

struct token {
    enum token_kind kind;
    struct place place;
    const char *text; /* in the template; of a string, its bytes after the escapes */
    size_t bytes;
    char symbol[3];    /* T_OPERATOR: NUL-terminated */
    struct value number; /* T_INTEGER, T_FLOAT */
};

/* Makes all tokens of a template whose line ends are "\n" only. The last one is T_END. */
bool ox_ji_lex(struct run *run, const char *source, size_t bytes, struct token **tokens, size_t *count);

/* ---- the tree -------------------------------------------------------------------------------------------------- */

enum node_kind {
    /* expressions */
    N_CONSTANT,
    N_NAME,
    N_TUPLE,
    N_LIST,
    N_DICT,
    N_GETATTR,
    N_GETITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    N_NOT,
    N_NEGATE,
    N_PLUS,
    N_BINARY,
    N_CONCAT,
    N_COMPARE,
    N_AND,
    N_OR,
    N_CONDITION,
    N_NSREF, /* namespace.attribute as the target of set */
    /* statements */
    N_DATA,
    N_PRINT,
    N_IF,
    N_FOR,
    N_SET,
    N_SET_BLOCK,
    N_MACRO,
    N_CALL_BLOCK,
    N_FILTER_BLOCK,
    N_GENERATION,
    N_WITH,
    N_BREAK,
    N_CONTINUE,
};

struct nodes { /* linked by node.next */
    struct node *first, *last;
    size_t count;
};

struct keyword {
    const struct string *name;
    struct node *value;
    struct keyword *next;
};
struct call_arguments {
    struct nodes positional;
    struct keyword *keywords;
    size_t keyword_count;
    struct node *more_positional, *more_keywords; /* *args, **kwargs */
};

/* The names that a scope's body reads or sets, in the order of the first use of each. A name that is set before it is
 * read, and not below an if, hides the caller's variable of that name from the beginning of the scope on. */
struct name_use {
    const struct string *name;
    bool hides;
    struct name_use *next;
};
struct name_uses {
    struct name_use *first;
};

/* A macro's parameters and body; a call block and its caller are one too. */
struct signature {
    const struct string *name; /* NULL for a call block */
    struct nodes parameters;   /* N_NAME */
    struct nodes defaults;     /* the last parameters' */
    struct nodes body;
    struct name_uses uses;
    bool uses_caller, uses_kwargs, uses_varargs;
};

struct node {
    enum node_kind kind;
    struct place place;
    struct node *next;
    union {
        struct value constant;     /* N_CONSTANT, N_DATA */
        const struct string *name; /* N_NAME: interned, so that equal names have equal pointers */
        struct nodes items;        /* N_TUPLE, N_LIST, N_CONCAT; N_DICT: key, value, key, value ... */
        struct {
            struct node *object, *key; /* N_GETATTR: the key is a constant */
        } get;
        struct node *slice[3]; /* begin, end, step; NULL where left out */
        struct {
            struct node *function;
            struct call_arguments arguments;
        } call;
        struct {
            struct node *subject; /* NULL: the text of a filter block or of a set block */
            const struct builtin *builtin;
            const struct string *name;
            struct call_arguments arguments;
        } apply; /* N_FILTER, N_TEST */
        struct node *operand; /* N_NOT, N_NEGATE, N_PLUS, N_PRINT */
        struct {
            struct node *left, *right;
            char symbol; /* N_BINARY: + - * / % ^ (power) and \ (//) */
        } binary;          /* N_BINARY, N_AND, N_OR */
        struct {
            struct node *first;
            struct comparison *rest;
        } compare;
        struct {
            struct node *test, *then, *otherwise; /* otherwise: NULL for none */
        } condition;
        struct {
            const struct string *name, *attribute;
        } nsref;
        struct branch *branches; /* N_IF; the last one has no test if there is an else */
        struct {
            struct node *target, *iterable, *test;
            struct nodes body, otherwise;
            struct name_uses uses, test_uses, otherwise_uses;
            const struct string *word; /* "loop", interned */
            bool is_recursive;
        } loop;
        struct {
            struct node *target, *value;
        } set;
        struct {
            struct node *target, *filter; /* filter: NULL for none */
            struct nodes body;
            struct name_uses uses;
        } block; /* N_SET_BLOCK, N_FILTER_BLOCK */
        struct {
            struct signature *signature;
            struct node *call; /* N_CALL_BLOCK */
        } macro;               /* N_MACRO, N_CALL_BLOCK, N_GENERATION */
        struct {
            struct nodes targets, values, body;
            struct name_uses uses;
        } with;
    } as;
};

enum comparison_kind { C_EQ, C_NE, C_LT, C_LE, C_GT, C_GE, C_IN, C_NOT_IN };
struct comparison {
    enum comparison_kind kind;
    struct node *operand;
    struct comparison *next;
};

struct branch {
    struct node *test;
    struct nodes body;
    struct branch *next;
};

/* ---- parsing (parser.c, parser_expression.c) -------------------------------------------------------------------- */

/* Every name that the template spells, once. */
struct name_link {
    const struct string *name;
    struct name_link *next;
};

struct parser {
    struct run *run; /* its memory holds the tree */
    const struct token *token;
    struct name_link *names;
    struct name_uses *uses; /* in the scope around the current place */
    uint32_t branch_depth;  /* ifs around the current place, within that scope */
    bool hides;             /* some name of the template hides */
    bool sets_self;         /* a target or parameter so far is the name `self` */
    bool reads_self;        /* some expression reads `self` and no target or parameter before it sets it */
    struct signature_link *signatures; /* the macros around the current place, the innermost first */
    bool is_soft;                      /* below an if: an unknown filter fails only when it is reached */
    const struct token *unknown;       /* the first filter or test that is unknown elsewhere */
    bool marks_generation;
    uint32_t loop_depth; /* for loops around the current place, within the current macro */
    uint32_t for_depth;  /* for loops around the current place */
};
struct signature_link {
    struct signature *signature;
    struct signature_link *outer;
};

bool ox_ji_parse(struct parser *parser, struct nodes *body, struct name_uses *uses);
/* Notes that the current scope reads or sets a name. */
bool ox_ji_note_use(struct parser *parser, const struct string *name, bool sets);

/* What an expression may be made of. */
enum tuple_rule {
    TUPLE_PLAIN = 0,
    TUPLE_TARGET = 1,       /* names and literals only, up to `in` */
    TUPLE_NAMESPACE = 2,    /* with ns.attribute */
    TUPLE_NO_CONDITION = 4, /* without `a if b else c` */
    TUPLE_PARENTHESES = 8,  /* may be empty */
    TUPLE_RECURSIVE = 16,   /* ends before the word recursive */
};
bool ox_ji_parse_tuple(struct parser *parser, unsigned rules, struct node **out);
bool ox_ji_parse_expression(struct parser *parser, struct node **out);
bool ox_ji_parse_filters(struct parser *parser, struct node *subject, bool inline_start, struct node **out);
bool ox_ji_parse_failed(struct parser *parser, const char *format, ...) OX_PRINTF(2, 3);
struct node *ox_ji_new_node(struct parser *parser, enum node_kind kind, const struct token *token);
void ox_ji_add_node(struct nodes *nodes, struct node *node);
const struct string *ox_ji_intern(struct parser *parser, const char *text, size_t bytes);
bool ox_ji_is_word(const struct token *token, const char *word);         /* a name of this spelling */
bool ox_ji_is_operator(const struct token *token, const char *symbol);
bool ox_ji_skip_operator(struct parser *parser, const char *symbol);
bool ox_ji_skip_word(struct parser *parser, const char *word);
bool ox_ji_expect_operator(struct parser *parser, const char *symbol);
bool ox_ji_expect_name(struct parser *parser, const struct string **out);

/* ---- what names mean (filters.c, tests.c, methods.c, functions.c) ------------------------------------------------ */

enum { BUILTIN_ARGUMENTS_MAX = 6 };

struct arguments {
    struct value *positional;
    size_t count;
    struct dict *keywords; /* NULL for none */
};

/* One call of a filter, test, method or function. */
struct call {
    struct run *run;
    const struct builtin *builtin;
    struct value self;                            /* the subject; MISSING for a function */
    struct value arguments[BUILTIN_ARGUMENTS_MAX]; /* by parameter; MISSING where none was given */
    const struct arguments *given;                /* as they stand in the template */
    struct value *out;
};
/* What applying to a string that is markup gives. */
enum markup_rule { MARKUP_PLAIN, MARKUP_KEPT, MARKUP_REFUSED };
struct builtin {
    const char *name;
    bool (*apply)(struct call *call); /* NULL: Python has it, this interpreter does not */
    const char *parameters;           /* "width first blank": names in order, "_" where Python takes no keyword; "*":
                                       * any arguments, which `apply` finds in call->given */
    uint32_t required;                /* how many of them must be given */
    uint32_t owners;                  /* a method: the kinds of value that have it, as bits */
    enum markup_rule markup;
    bool is_unsafe; /* a method: it changes its object, so the sandbox denies it */
};
const struct builtin *ox_ji_find_filter(const struct string *name);
const struct builtin *ox_ji_find_test(const struct string *name);
const struct builtin *ox_ji_find_method(enum value_kind owner, const struct string *name);
const struct builtin *ox_ji_find_function(const struct string *name);
/* Binds arguments to parameters and applies. */
bool ox_ji_apply(struct run *run, const struct builtin *builtin, struct value self, const struct arguments *given,
                 struct value *out);

/* str.format(), and the operator %. */
bool ox_ji_format(struct run *run, const struct string *format, const struct arguments *given, struct value *out);
bool ox_ji_percent(struct run *run, const struct string *format, struct value values, struct value *out);

/* ---- evaluation (expression.c, statement.c, loop.c, macro.c) --------------------------------------------------- */

/* Variables of one block; the names are interned. */
struct scope {
    struct scope *outer;
    struct binding *bindings;
    const struct name_uses *uses;
    bool is_kept; /* something refers to it that may outlive its block; then to each outer one too */
    bool is_over; /* it is kept, and its loop went on to the next item or its `with` ended */
};
struct binding {
    const struct string *name;
    struct value value;
    struct binding *next;
};
struct macro {
    const struct signature *signature;
    struct scope *scope; /* where it was defined */
};
struct method {
    const struct builtin *builtin;
    struct value self;
};
/* The state of a for loop, which is the variable `loop`. */
struct loop {
    const struct node *node;
    struct scope *scope; /* around the loop, for recursion */
    struct value iterable;
    struct iterator *iterator;
    int64_t index0, length; /* length: -1 before it is known */
    uint32_t depth0;
    struct value before, current, after; /* after: MISSING, unless it was asked for ahead */
    bool is_at_end;                      /* what comes after was asked for, and there is nothing */
    struct value changed;
};

/* How a list of statements ended. */
enum flow { FLOW_FAILED, FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

bool ox_ji_evaluate(struct run *run, struct scope *scope, const struct node *node, struct value *out);
bool ox_ji_evaluate_arguments(struct run *run, struct scope *scope, const struct call_arguments *arguments,
                              struct arguments *out);
bool ox_ji_apply_filter(struct run *run, struct scope *scope, const struct node *filter, struct value subject,
                        struct value *out); /* a chain whose innermost subject is NULL gets `subject` */
enum flow ox_ji_execute(struct run *run, struct scope *scope, const struct nodes *body);
enum flow ox_ji_execute_loop(struct run *run, struct scope *scope, const struct node *node);
bool ox_ji_recurse(struct run *run, struct loop *loop, struct value iterable, struct value *out); /* loop(iterable) */
bool ox_ji_loop_attribute(struct run *run, struct loop *loop, const struct string *name, struct value *out);
bool ox_ji_call(struct run *run, struct value function, const struct arguments *given, struct value *out);
bool ox_ji_call_macro(struct run *run, const struct macro *macro, const struct arguments *given, struct value *out);
struct scope *ox_ji_new_scope(struct run *run, struct scope *outer, const struct name_uses *uses);
/* Says that a value refers to a scope from now on: a macro, or a loop that evaluates something later. */
void ox_ji_keep_scope(struct scope *scope);
/* Ends a scope whose block has run. Unless it is kept, its memory serves the next one: nested loops over all messages
 * would else take memory with the square of their number. */
void ox_ji_end_scope(struct run *run, struct scope *scope);
bool ox_ji_bind(struct run *run, struct scope *scope, const struct string *name, struct value value);
bool ox_ji_assign(struct run *run, struct scope *scope, const struct node *target, struct value value);
bool ox_ji_generation(struct run *run, struct scope *scope, const struct node *node);

struct ox_jinja {
    struct memory memory;
    struct nodes body;
    struct name_uses uses;
    const struct name_link *names;
    bool marks_generation, hides, reads_self;
};

#endif
