/* Owns the evaluation of expressions. */
#include "engine/jinja/ast_internal.h"

#include "base/assert.h"

#include <string.h>

/* ---- variables ------------------------------------------------------------------------------------------------- */

struct scope *ox_ji_new_scope(struct run *run, struct scope *outer, const struct name_uses *uses) {
    struct scope *scope = run->spare_scopes;
    if (scope != NULL) {
        run->spare_scopes = scope->outer;
    } else {
        scope = ox_ji_new(run, sizeof *scope);
    }
    if (scope != NULL) {
        *scope = (struct scope){.outer = outer, .uses = uses};
    }
    return scope;
}

void ox_ji_keep_scope(struct scope *scope) {
    for (; scope != NULL && !scope->is_kept; scope = scope->outer) {
        scope->is_kept = true;
    }
}

void ox_ji_end_scope(struct run *run, struct scope *scope) {
    if (scope->is_kept) {
        scope->is_over = true;
        return;
    }
    struct binding **last = &scope->bindings;
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = run->spare_bindings;
    run->spare_bindings = scope->bindings;
    scope->bindings = NULL;
    scope->outer = run->spare_scopes;
    run->spare_scopes = scope;
}

bool ox_ji_bind(struct run *run, struct scope *scope, const struct string *name, struct value value) {
    for (struct binding *binding = scope->bindings; binding != NULL; binding = binding->next) {
        if (binding->name == name) {
            binding->value = value;
            return true;
        }
    }
    struct binding *binding = run->spare_bindings;
    if (binding != NULL) {
        run->spare_bindings = binding->next;
    } else {
        binding = ox_ji_new(run, sizeof *binding);
    }
    if (binding == NULL) {
        return false;
    }
    *binding = (struct binding){.name = name, .value = value, .next = scope->bindings};
    scope->bindings = binding;
    return true;
}

/* Whether the outermost scope that names a variable sets it later on, so that there is none before: as jinja2, which
 * decides for a whole scope where a name comes from. */
static bool is_hidden(const struct run *run, const struct scope *scope, const struct string *name, uint64_t *seen) {
    bool hidden = false;
    for (; run->jinja->hides && scope != NULL; scope = scope->outer) {
        for (const struct name_use *use = scope->uses->first; use != NULL; use = use->next) {
            ++*seen;
            if (use->name == name) {
                hidden = use->hides;
                break;
            }
        }
    }
    return hidden;
}

/* A step stands for so many names that a variable is compared with. */
enum { NAMES_A_STEP = 64 };

static bool look_up(struct run *run, const struct scope *inner, const struct string *name, struct value *out) {
    uint64_t seen = 0;
    for (const struct scope *scope = inner; scope != NULL; scope = scope->outer) {
        for (const struct binding *binding = scope->bindings; binding != NULL; binding = binding->next) {
            seen++;
            if (binding->name == name) {
                *out = binding->value;
                if (!ox_ji_spend(run, seen / NAMES_A_STEP)) {
                    return false;
                }
                /* In jinja2 the macro would find the variable of another item, or a marker. */
                return !scope->is_over ||
                       ox_ji_fail(run, "'%.*s' of a loop that went on, read by a macro of that loop, is not supported",
                                  (int)name->bytes, name->data);
            }
        }
    }
    const struct value key = {.kind = V_STRING, .as.string = name};
    if (is_hidden(run, inner, name, &seen)) {
        return ox_ji_undefined(run, NULL, key, out);
    }
    if (!ox_ji_spend(run, seen / NAMES_A_STEP) || !ox_ji_dict_get(run, run->variables, key, out)) {
        return false;
    }
    if (out->kind != V_MISSING) {
        return true;
    }
    if (run->jinja->reads_self && ox_ji_string_is(name, "self")) {
        *out = (struct value){.kind = V_SELF};
        return true;
    }
    const struct builtin *const function = ox_ji_find_function(name);
    if (function != NULL) {
        *out = (struct value){.kind = V_FUNCTION, .as.function = function};
        return true;
    }
    return ox_ji_undefined(run, NULL, key, out);
}

/* ---- arguments ------------------------------------------------------------------------------------------------- */

static bool evaluate_positional(struct run *run, struct scope *scope, const struct call_arguments *arguments,
                                struct arguments *out) {
    struct list *const list = ox_ji_new_list(run, arguments->positional.count);
    if (list == NULL) {
        return false;
    }
    for (const struct node *node = arguments->positional.first; node != NULL; node = node->next) {
        struct value value = MISSING;
        if (!ox_ji_evaluate(run, scope, node, &value) || !ox_ji_append(run, list, value)) {
            return false;
        }
    }
    if (arguments->more_positional != NULL) {
        struct value more = MISSING;
        struct list *items = NULL;
        if (!ox_ji_evaluate(run, scope, arguments->more_positional, &more) || !ox_ji_to_list(run, more, &items)) {
            return false;
        }
        for (size_t i = 0; i < items->count; i++) {
            if (!ox_ji_append(run, list, items->items[i])) {
                return false;
            }
        }
    }
    out->positional = list->items;
    out->count = list->count;
    return true;
}

static bool evaluate_keywords(struct run *run, struct scope *scope, const struct call_arguments *arguments,
                              struct arguments *out) {
    if (arguments->keywords == NULL && arguments->more_keywords == NULL) {
        return true;
    }
    out->keywords = ox_ji_new_dict(run);
    if (out->keywords == NULL) {
        return false;
    }
    for (const struct keyword *keyword = arguments->keywords; keyword != NULL; keyword = keyword->next) {
        const struct value name = {.kind = V_STRING, .as.string = keyword->name};
        struct value value = MISSING;
        if (!ox_ji_evaluate(run, scope, keyword->value, &value) ||
            !ox_ji_dict_set(run, out->keywords, name, value)) {
            return false;
        }
    }
    struct value more = MISSING;
    if (arguments->more_keywords == NULL) {
        return true;
    }
    if (!ox_ji_evaluate(run, scope, arguments->more_keywords, &more)) {
        return false;
    }
    if (more.kind != V_DICT) {
        return ox_ji_fail(run, "argument after ** must be a mapping, not %s", ox_ji_type_name(more));
    }
    for (size_t i = 0; i < more.as.dict->count; i++) {
        const struct entry *const entry = &more.as.dict->entries[i];
        struct value earlier = MISSING;
        if (entry->key.kind != V_STRING) {
            return ox_ji_fail(run, "keywords must be strings");
        }
        if (!ox_ji_dict_get(run, out->keywords, entry->key, &earlier)) {
            return false;
        }
        if (earlier.kind != V_MISSING) {
            return ox_ji_fail(run, "got multiple values for a keyword argument");
        }
        if (!ox_ji_dict_set(run, out->keywords, entry->key, entry->item)) {
            return false;
        }
    }
    return true;
}

bool ox_ji_evaluate_arguments(struct run *run, struct scope *scope, const struct call_arguments *arguments,
                              struct arguments *out) {
    *out = (struct arguments){0};
    return evaluate_positional(run, scope, arguments, out) && evaluate_keywords(run, scope, arguments, out);
}

/* ---- the kinds of expressions ---------------------------------------------------------------------------------- */

static bool evaluate_items(struct run *run, struct scope *scope, const struct node *node, struct value *out) {
    struct list *const list = ox_ji_new_list(run, node->as.items.count);
    if (list == NULL) {
        return false;
    }
    for (const struct node *item = node->as.items.first; item != NULL; item = item->next) {
        struct value value = MISSING;
        if (!ox_ji_evaluate(run, scope, item, &value) || !ox_ji_append(run, list, value)) {
            return false;
        }
    }
    *out = node->kind == N_TUPLE ? ox_ji_tuple(list) : ox_ji_list(list);
    return true;
}

static bool evaluate_dict(struct run *run, struct scope *scope, const struct node *node, struct value *out) {
    struct dict *const dict = ox_ji_new_dict(run);
    if (dict == NULL) {
        return false;
    }
    for (const struct node *item = node->as.items.first; item != NULL; item = item->next->next) {
        struct value key = MISSING, value = MISSING;
        if (!ox_ji_evaluate(run, scope, item, &key) || !ox_ji_evaluate(run, scope, item->next, &value) ||
            !ox_ji_dict_set(run, dict, key, value)) {
            return false;
        }
    }
    *out = (struct value){.kind = V_DICT, .as.dict = dict};
    return true;
}

static bool evaluate_concat(struct run *run, struct scope *scope, const struct node *node, struct value *out) {
    struct value items = MISSING;
    struct value text = MISSING;
    if (!evaluate_items(run, scope, node, &items)) {
        return false;
    }
    for (size_t i = 0; i < items.as.list->count; i++) {
        struct value part = MISSING;
        if (!ox_ji_to_string(run, items.as.list->items[i], &part)) {
            return false;
        }
        if (i == 0) {
            text = part;
        } else if (!ox_ji_concat(run, text.as.string, part.as.string, &text)) {
            return false;
        }
    }
    if (items.as.list->count == 0) {
        return ox_ji_string_of(run, "", out);
    }
    *out = text; /* one part alone cannot come from `~`; a print statement writes it, markup or not */
    return true;
}

static bool evaluate_slice(struct run *run, struct scope *scope, const struct node *node, struct value *out) {
    struct value object = MISSING;
    struct value parts[3] = {NONE, NONE, NONE};
    if (!ox_ji_evaluate(run, scope, node->as.get.object, &object)) {
        return false;
    }
    for (size_t i = 0; i < 3; i++) {
        const struct node *const part = node->as.get.key->as.slice[i];
        if (part != NULL && !ox_ji_evaluate(run, scope, part, &parts[i])) {
            return false;
        }
    }
    run->place = node->place;
    return ox_ji_slice(run, object, parts, out);
}

static bool evaluate_get(struct run *run, struct scope *scope, const struct node *node, struct value *out) {
    struct value object = MISSING, key = MISSING;
    if (node->as.get.key->kind == N_SLICE) {
        return evaluate_slice(run, scope, node, out);
    }
    if (!ox_ji_evaluate(run, scope, node->as.get.object, &object) ||
        !ox_ji_evaluate(run, scope, node->as.get.key, &key)) {
        return false;
    }
    run->place = node->place;
    return node->kind == N_GETATTR ? ox_ji_getattr(run, object, key, out) : ox_ji_getitem(run, object, key, out);
}

static bool evaluate_call(struct run *run, struct scope *scope, const struct node *node, struct value *out) {
    struct value function = MISSING;
    struct arguments given;
    if (!ox_ji_evaluate(run, scope, node->as.call.function, &function) ||
        !ox_ji_evaluate_arguments(run, scope, &node->as.call.arguments, &given)) {
        return false;
    }
    run->place = node->place;
    return ox_ji_call(run, function, &given, out);
}

static bool apply(struct run *run, struct scope *scope, const struct node *node, struct value subject,
                  struct value *out) {
    struct arguments given;
    if (!ox_ji_evaluate_arguments(run, scope, &node->as.apply.arguments, &given)) {
        return false;
    }
    run->place = node->place;
    if (node->as.apply.builtin == NULL) {
        const struct string *const name = node->as.apply.name;
        return ox_ji_fail(run, "No %s named '%.*s' found.", node->kind == N_FILTER ? "filter" : "test",
                          name->bytes > 60 ? 60 : (int)name->bytes, name->data);
    }
    return ox_ji_apply(run, node->as.apply.builtin, subject, &given, out);
}

bool ox_ji_apply_filter(struct run *run, struct scope *scope, const struct node *filter, struct value subject,
                        struct value *out) {
    struct value inner = subject;
    if (filter->as.apply.subject != NULL) {
        if (!ox_ji_enter(run) || !ox_ji_apply_filter(run, scope, filter->as.apply.subject, subject, &inner)) {
            return false;
        }
        run->depth--;
    }
    return apply(run, scope, filter, inner, out);
}

static bool evaluate_applied(struct run *run, struct scope *scope, const struct node *node, struct value *out) {
    struct value subject = MISSING;
    return ox_ji_evaluate(run, scope, node->as.apply.subject, &subject) && apply(run, scope, node, subject, out);
}

static bool evaluate_not(struct run *run, struct scope *scope, const struct node *node, struct value *out) {
    struct value value = MISSING;
    bool truth = false;
    if (!ox_ji_evaluate(run, scope, node->as.operand, &value) || !ox_ji_truth(run, value, &truth)) {
        return false;
    }
    *out = ox_ji_bool(!truth);
    return true;
}

static bool evaluate_binary(struct run *run, struct scope *scope, const struct node *node, struct value *out) {
    struct value left = MISSING, right = MISSING;
    if (!ox_ji_evaluate(run, scope, node->as.binary.left, &left) ||
        !ox_ji_evaluate(run, scope, node->as.binary.right, &right)) {
        return false;
    }
    run->place = node->place;
    return ox_ji_binary(run, node->as.binary.symbol, left, right, out);
}

static bool evaluate_logic(struct run *run, struct scope *scope, const struct node *node, struct value *out) {
    bool truth = false;
    if (!ox_ji_evaluate(run, scope, node->as.binary.left, out) || !ox_ji_truth(run, *out, &truth)) {
        return false;
    }
    return truth != (node->kind == N_AND) || ox_ji_evaluate(run, scope, node->as.binary.right, out);
}

static bool compare(struct run *run, enum comparison_kind kind, struct value left, struct value right, bool *out) {
    static const char *const names[] = {[C_LT] = "<", [C_LE] = "<=", [C_GT] = ">", [C_GE] = ">="};
    int order = 0;
    switch (kind) {
    case C_EQ:
        return ox_ji_equal(run, left, right, out);
    case C_NE:
        if (!ox_ji_equal(run, left, right, out)) {
            return false;
        }
        *out = !*out;
        return true;
    case C_IN:
    case C_NOT_IN:
        if (!ox_ji_contains(run, right, left, out)) {
            return false;
        }
        *out = *out == (kind == C_IN);
        return true;
    default:
        if (!ox_ji_order(run, left, right, names[kind], &order)) {
            return false;
        }
        *out = order != UNORDERED && (kind == C_LT   ? order < 0
                                      : kind == C_LE ? order <= 0
                                      : kind == C_GT ? order > 0
                                                     : order >= 0);
        return true;
    }
}

/* a < b < c compares each with the next, and ends at the first that does not hold. */
static bool evaluate_compare(struct run *run, struct scope *scope, const struct node *node, struct value *out) {
    struct value left = MISSING;
    bool holds = true;
    if (!ox_ji_evaluate(run, scope, node->as.compare.first, &left)) {
        return false;
    }
    for (const struct comparison *next = node->as.compare.rest; holds && next != NULL; next = next->next) {
        struct value right = MISSING;
        if (!ox_ji_evaluate(run, scope, next->operand, &right)) {
            return false;
        }
        run->place = node->place;
        if (!compare(run, next->kind, left, right, &holds)) {
            return false;
        }
        left = right;
    }
    *out = ox_ji_bool(holds);
    return true;
}

static bool evaluate_condition(struct run *run, struct scope *scope, const struct node *node, struct value *out) {
    struct value test = MISSING;
    bool truth = false;
    if (!ox_ji_evaluate(run, scope, node->as.condition.test, &test) || !ox_ji_truth(run, test, &truth)) {
        return false;
    }
    if (truth) {
        return ox_ji_evaluate(run, scope, node->as.condition.then, out);
    }
    return node->as.condition.otherwise != NULL
               ? ox_ji_evaluate(run, scope, node->as.condition.otherwise, out)
               : ox_ji_undefined_because(run, "an inline if was false and has no else", out);
}

static bool evaluate_sign(struct run *run, struct scope *scope, const struct node *node, struct value *out) {
    struct value value = MISSING;
    if (!ox_ji_evaluate(run, scope, node->as.operand, &value)) {
        return false;
    }
    run->place = node->place;
    return ox_ji_negate(run, value, node->kind == N_PLUS, out);
}

static bool evaluate_node(struct run *run, struct scope *scope, const struct node *node, struct value *out) {
    switch (node->kind) {
    case N_CONSTANT:
        *out = node->as.constant;
        return true;
    case N_NAME:
        return look_up(run, scope, node->as.name, out);
    case N_TUPLE:
    case N_LIST:
        return evaluate_items(run, scope, node, out);
    case N_DICT:
        return evaluate_dict(run, scope, node, out);
    case N_GETATTR:
    case N_GETITEM:
        return evaluate_get(run, scope, node, out);
    case N_CALL:
        return evaluate_call(run, scope, node, out);
    case N_FILTER:
    case N_TEST:
        return evaluate_applied(run, scope, node, out);
    case N_NOT:
        return evaluate_not(run, scope, node, out);
    case N_NEGATE:
    case N_PLUS:
        return evaluate_sign(run, scope, node, out);
    case N_BINARY:
        return evaluate_binary(run, scope, node, out);
    case N_CONCAT:
        return evaluate_concat(run, scope, node, out);
    case N_COMPARE:
        return evaluate_compare(run, scope, node, out);
    case N_AND:
    case N_OR:
        return evaluate_logic(run, scope, node, out);
    case N_CONDITION:
        return evaluate_condition(run, scope, node, out);
    default:
        OX_ASSERT(false);
        return false;
    }
}

bool ox_ji_evaluate(struct run *run, struct scope *scope, const struct node *node, struct value *out) {
    run->place = node->place;
    if (!ox_ji_spend(run, 1) || !ox_ji_enter(run)) {
        return false;
    }
    const bool ok = evaluate_node(run, scope, node, out);
    run->depth--;
    return ok;
}
