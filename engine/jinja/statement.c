/* Owns the execution of statements; loops are in loop.c, macros in macro.c. */
#include "engine/jinja/ast_internal.h"

#include "base/assert.h"

/* ---- assignment ------------------------------------------------------------------------------------------------ */

static bool assign_tuple(struct run *run, struct scope *scope, const struct node *target, struct value value) {
    struct list *items = NULL;
    const struct node *part = target->as.items.first;
    if (!ox_ji_is_iterable(value)) {
        return ox_ji_fail(run, "cannot unpack non-iterable %s object", ox_ji_type_name(value));
    }
    if (!ox_ji_to_list(run, value, &items)) {
        return false;
    }
    if (items->count != target->as.items.count) {
        return ox_ji_fail(run, "%s values to unpack (expected %zu, got %zu)",
                          items->count > target->as.items.count ? "too many" : "not enough", target->as.items.count,
                          items->count);
    }
    for (size_t i = 0; part != NULL; part = part->next, i++) {
        if (!ox_ji_assign(run, scope, part, items->items[i])) {
            return false;
        }
    }
    return true;
}

static bool assign_attribute(struct run *run, struct scope *scope, const struct node *target, struct value value) {
    struct node name = {.kind = N_NAME, .place = target->place, .as.name = target->as.nsref.name};
    const struct value key = {.kind = V_STRING, .as.string = target->as.nsref.attribute};
    struct value object = MISSING;
    if (!ox_ji_evaluate(run, scope, &name, &object)) {
        return false;
    }
    if (object.kind != V_NAMESPACE) {
        return ox_ji_fail(run, "cannot assign attribute on non-namespace object");
    }
    if (key.as.string->bytes > 0 && key.as.string->data[0] == '_') {
        return ox_ji_fail(run, "Chat templates cannot store underscore-prefixed attributes on a namespace");
    }
    return ox_ji_dict_set(run, object.as.space->dict, key, value);
}

bool ox_ji_assign(struct run *run, struct scope *scope, const struct node *target, struct value value) {
    run->place = target->place;
    switch (target->kind) {
    case N_NAME:
        return ox_ji_bind(run, scope, target->as.name, value);
    case N_NSREF:
        return assign_attribute(run, scope, target, value);
    default: {
        OX_ASSERT(target->kind == N_TUPLE);
        if (!ox_ji_enter(run)) {
            return false;
        }
        const bool ok = assign_tuple(run, scope, target, value);
        run->depth--;
        return ok;
    }
    }
}

/* ---- statements ------------------------------------------------------------------------------------------------ */

static enum flow on(bool ok) {
    return ok ? FLOW_ON : FLOW_FAILED;
}

static enum flow execute_print(struct run *run, struct scope *scope, const struct node *node) {
    struct value value = MISSING;
    return on(ox_ji_evaluate(run, scope, node->as.operand, &value) && ox_ji_put_value(run, value));
}

static enum flow execute_if(struct run *run, struct scope *scope, const struct node *node) {
    for (const struct branch *branch = node->as.branches; branch != NULL; branch = branch->next) {
        struct value test = MISSING;
        bool truth = true;
        if (branch->test != NULL &&
            (!ox_ji_evaluate(run, scope, branch->test, &test) || !ox_ji_truth(run, test, &truth))) {
            return FLOW_FAILED;
        }
        if (truth) {
            return ox_ji_execute(run, scope, &branch->body);
        }
    }
    return FLOW_ON;
}

static enum flow execute_set(struct run *run, struct scope *scope, const struct node *node) {
    struct value value = MISSING;
    return on(ox_ji_evaluate(run, scope, node->as.set.value, &value) &&
              ox_ji_assign(run, scope, node->as.set.target, value));
}

/* The text of a body in a scope of its own, through a filter if there is one. A loop that the body leaves drops the
 * text. */
static enum flow execute_captured(struct run *run, struct scope *scope, const struct node *node) {
    struct scope *const inner = ox_ji_new_scope(run, scope, &node->as.block.uses);
    struct value text = MISSING;
    if (inner == NULL) {
        return FLOW_FAILED;
    }
    const struct capture capture = ox_ji_capture(run);
    const enum flow flow = ox_ji_execute(run, inner, &node->as.block.body);
    if (flow == FLOW_FAILED || !ox_ji_capture_end(run, capture, &text)) {
        return FLOW_FAILED;
    }
    if (flow != FLOW_ON) {
        return flow;
    }
    if (node->as.block.filter != NULL && !ox_ji_apply_filter(run, inner, node->as.block.filter, text, &text)) {
        return FLOW_FAILED;
    }
    return on(node->kind == N_FILTER_BLOCK ? ox_ji_put_value(run, text)
                                           : ox_ji_assign(run, scope, node->as.block.target, text));
}

static enum flow execute_with(struct run *run, struct scope *scope, const struct node *node) {
    struct scope *const inner = ox_ji_new_scope(run, scope, &node->as.with.uses);
    const struct node *value = node->as.with.values.first;
    if (inner == NULL) {
        return FLOW_FAILED;
    }
    for (const struct node *target = node->as.with.targets.first; target != NULL;
         target = target->next, value = value->next) {
        struct value item = MISSING;
        if (!ox_ji_evaluate(run, scope, value, &item) || !ox_ji_assign(run, inner, target, item)) {
            return FLOW_FAILED;
        }
    }
    const enum flow flow = ox_ji_execute(run, inner, &node->as.with.body);
    ox_ji_end_scope(run, inner);
    return flow;
}

static bool make_macro(struct run *run, struct scope *scope, const struct node *node, struct value *out) {
    struct macro *const macro = ox_ji_new(run, sizeof *macro);
    if (macro == NULL) {
        return false;
    }
    ox_ji_keep_scope(scope);
    *macro = (struct macro){.signature = node->as.macro.signature, .scope = scope};
    *out = (struct value){.kind = V_MACRO, .as.macro = macro};
    return true;
}

static enum flow execute_macro(struct run *run, struct scope *scope, const struct node *node) {
    struct value macro = MISSING;
    return on(make_macro(run, scope, node, &macro) &&
              ox_ji_bind(run, scope, node->as.macro.signature->name, macro));
}

/* {% call f(x) %}body{% endcall %}: f gets the body as the macro `caller`. */
static enum flow execute_call_block(struct run *run, struct scope *scope, const struct node *node) {
    const struct node *const call = node->as.macro.call;
    struct value function = MISSING, caller = MISSING, name = MISSING, text = MISSING;
    struct arguments given;
    if (!ox_ji_evaluate(run, scope, call->as.call.function, &function) || !make_macro(run, scope, node, &caller) ||
        !ox_ji_evaluate_arguments(run, scope, &call->as.call.arguments, &given)) {
        return FLOW_FAILED;
    }
    if (given.keywords == NULL && (given.keywords = ox_ji_new_dict(run)) == NULL) {
        return FLOW_FAILED;
    }
    run->place = call->place;
    return on(ox_ji_string_of(run, "caller", &name) && ox_ji_dict_set(run, given.keywords, name, caller) &&
              ox_ji_call(run, function, &given, &text) && ox_ji_put_value(run, text));
}

static enum flow execute_one(struct run *run, struct scope *scope, const struct node *node) {
    switch (node->kind) {
    case N_DATA:
        return on(ox_ji_put_string(run, node->as.constant.as.string));
    case N_PRINT:
        return execute_print(run, scope, node);
    case N_IF:
        return execute_if(run, scope, node);
    case N_FOR:
        return ox_ji_execute_loop(run, scope, node);
    case N_SET:
        return execute_set(run, scope, node);
    case N_SET_BLOCK:
    case N_FILTER_BLOCK:
        return execute_captured(run, scope, node);
    case N_MACRO:
        return execute_macro(run, scope, node);
    case N_CALL_BLOCK:
        return execute_call_block(run, scope, node);
    case N_GENERATION:
        return on(ox_ji_generation(run, scope, node));
    case N_WITH:
        return execute_with(run, scope, node);
    case N_BREAK:
        return FLOW_BREAK;
    case N_CONTINUE:
        return FLOW_CONTINUE;
    default:
        OX_ASSERT(false);
        return FLOW_FAILED;
    }
}

enum flow ox_ji_execute(struct run *run, struct scope *scope, const struct nodes *body) {
    enum flow flow = FLOW_ON;
    if (!ox_ji_enter(run)) {
        return FLOW_FAILED;
    }
    for (const struct node *node = body->first; flow == FLOW_ON && node != NULL; node = node->next) {
        run->place = node->place;
        flow = ox_ji_spend(run, 1) ? execute_one(run, scope, node) : FLOW_FAILED;
    }
    run->depth--;
    return flow;
}
