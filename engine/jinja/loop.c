/* Owns for loops and the variable `loop`. */
#include "engine/jinja/ast_internal.h"

#include "base/assert.h"

#include <string.h>

/* ---- the items ------------------------------------------------------------------------------------------------- */

/* What `for x in items if test` iterates over: each test runs when its item is asked for, because the body may change
 * what it reads. */
struct filtered {
    const struct node *node;
    struct scope *scope;
};

static bool next_filtered(struct run *run, struct iterator *iterator, struct value *out) {
    const struct filtered *const filtered = iterator->detail;
    for (;;) {
        struct scope *const scope = ox_ji_new_scope(run, filtered->scope, &filtered->node->as.loop.test_uses);
        struct value test = MISSING;
        bool truth = false;
        if (scope == NULL || !ox_ji_next(run, iterator->inner, out)) {
            return false;
        }
        if (out->kind == V_MISSING) {
            return true;
        }
        if (!ox_ji_assign(run, scope, filtered->node->as.loop.target, *out) ||
            !ox_ji_evaluate(run, scope, filtered->node->as.loop.test, &test) || !ox_ji_truth(run, test, &truth)) {
            return false;
        }
        ox_ji_end_scope(run, scope);
        if (truth) {
            return true;
        }
    }
}

static bool start(struct run *run, struct loop *loop) {
    if (!ox_ji_iterate(run, loop->iterable, &loop->iterator)) {
        return false;
    }
    if (loop->node->as.loop.test == NULL) {
        return true;
    }
    struct filtered *const filtered = ox_ji_new(run, sizeof *filtered);
    struct iterator *const iterator = ox_ji_new_iterator(run, next_filtered);
    if (filtered == NULL || iterator == NULL) {
        return false;
    }
    ox_ji_keep_scope(loop->scope);
    *filtered = (struct filtered){.node = loop->node, .scope = loop->scope};
    iterator->inner = loop->iterator;
    iterator->detail = filtered;
    loop->iterator = iterator;
    loop->iterable = (struct value){.kind = V_ITERATOR, .as.iterator = iterator};
    return true;
}

static bool peek(struct run *run, struct loop *loop) {
    if (loop->after.kind == V_MISSING && !loop->is_at_end) {
        if (!ox_ji_next(run, loop->iterator, &loop->after)) {
            return false;
        }
        loop->is_at_end = loop->after.kind == V_MISSING;
    }
    return true;
}

static bool advance(struct run *run, struct loop *loop, bool *more) {
    if (!peek(run, loop)) {
        return false;
    }
    *more = !loop->is_at_end;
    if (!*more) {
        return true;
    }
    loop->index0++;
    loop->before = loop->current;
    loop->current = loop->after;
    loop->after = MISSING;
    return true;
}

bool ox_ji_measure(struct run *run, struct loop *loop) {
    struct list *rest = NULL;
    if (loop->length >= 0) {
        return true;
    }
    if (ox_ji_has_length(loop->iterable)) {
        return ox_ji_length(run, loop->iterable, &loop->length);
    }
    const struct value iterator = {.kind = V_ITERATOR, .as.iterator = loop->iterator};
    if (!ox_ji_to_list(run, iterator, &rest) || !ox_ji_iterate(run, ox_ji_list(rest), &loop->iterator)) {
        return false;
    }
    loop->length = (int64_t)rest->count + loop->index0 + 1 + (loop->after.kind != V_MISSING);
    return true;
}

/* ---- loop.name ------------------------------------------------------------------------------------------------- */

static bool neighbour(struct run *run, struct loop *loop, bool next, struct value *out) {
    if (next && !peek(run, loop)) {
        return false;
    }
    if (next ? loop->is_at_end : loop->index0 == 0) {
        return ox_ji_undefined_because(run, next ? "there is no next item" : "there is no previous item", out);
    }
    *out = next ? loop->after : loop->before;
    return true;
}

static bool from_end(struct run *run, struct loop *loop, int64_t before, struct value *out) {
    if (!ox_ji_measure(run, loop)) {
        return false;
    }
    *out = ox_ji_int(loop->length - before);
    return true;
}

bool ox_ji_loop_attribute(struct run *run, struct loop *loop, const struct string *name, struct value *out) {
    static const char *const names[] = {"index", "index0", "first", "last", "length", "revindex", "revindex0",
                                        "previtem", "nextitem", "depth", "depth0"};
    size_t which = 0;
    while (which < sizeof names / sizeof *names && !ox_ji_string_is(name, names[which])) {
        which++;
    }
    switch (which) {
    case 0:
    case 1:
        *out = ox_ji_int(loop->index0 + (which == 0));
        return true;
    case 2:
        *out = ox_ji_bool(loop->index0 == 0);
        return true;
    case 3:
        if (!peek(run, loop)) {
            return false;
        }
        *out = ox_ji_bool(loop->is_at_end);
        return true;
    case 4:
        return from_end(run, loop, 0, out);
    case 5:
    case 6:
        return from_end(run, loop, loop->index0 + (which == 6), out);
    case 7:
    case 8:
        return neighbour(run, loop, which == 8, out);
    case 9:
    case 10:
        *out = ox_ji_int((int64_t)loop->depth0 + (which == 9));
        return true;
    default: {
        const struct builtin *const builtin = ox_ji_find_method(V_LOOP, name);
        struct method *const method = builtin == NULL ? NULL : ox_ji_new(run, sizeof *method);
        if (method != NULL) {
            *method = (struct method){.builtin = builtin, .self = {.kind = V_LOOP, .as.loop = loop}};
            *out = (struct value){.kind = V_METHOD, .as.method = method};
        }
        return builtin == NULL || method != NULL;
    }
    }
}

/* ---- running --------------------------------------------------------------------------------------------------- */

static enum flow run_body(struct run *run, struct loop *loop) {
    const struct node *const node = loop->node;
    struct scope *const scope = ox_ji_new_scope(run, loop->scope, &node->as.loop.uses);
    const struct value self = {.kind = V_LOOP, .as.loop = loop};
    if (scope == NULL || !ox_ji_assign(run, scope, node->as.loop.target, loop->current) ||
        !ox_ji_bind(run, scope, node->as.loop.word, self)) {
        return FLOW_FAILED;
    }
    const enum flow flow = ox_ji_execute(run, scope, &node->as.loop.body);
    ox_ji_end_scope(run, scope);
    return flow;
}

/* The else of a loop runs unless the body ran to its end at least once: as in jinja2, after a break or continue in
 * every iteration too. */
static enum flow run_loop(struct run *run, struct loop *loop) {
    bool more = false, completed = false;
    if (!start(run, loop)) {
        return FLOW_FAILED;
    }
    for (;;) {
        if (!advance(run, loop, &more)) {
            return FLOW_FAILED;
        }
        if (!more) {
            break;
        }
        const enum flow flow = run_body(run, loop);
        if (flow == FLOW_FAILED) {
            return flow;
        }
        if (flow == FLOW_BREAK) {
            break;
        }
        completed = completed || flow == FLOW_ON;
    }
    if (completed || loop->node->as.loop.otherwise.count == 0) {
        return FLOW_ON;
    }
    struct scope *const scope = ox_ji_new_scope(run, loop->scope, &loop->node->as.loop.otherwise_uses);
    return scope == NULL ? FLOW_FAILED : ox_ji_execute(run, scope, &loop->node->as.loop.otherwise);
}

static struct loop *new_loop(struct run *run, const struct node *node, struct scope *scope, struct value iterable) {
    struct loop *const loop = ox_ji_new(run, sizeof *loop);
    if (loop != NULL) {
        *loop = (struct loop){.node = node, .scope = scope, .iterable = iterable, .index0 = -1, .length = -1};
    }
    return loop;
}

enum flow ox_ji_execute_loop(struct run *run, struct scope *scope, const struct node *node) {
    struct value iterable = MISSING, text = MISSING;
    if (!ox_ji_evaluate(run, scope, node->as.loop.iterable, &iterable)) {
        return FLOW_FAILED;
    }
    run->place = node->place;
    struct loop *const loop = new_loop(run, node, scope, iterable);
    if (loop == NULL) {
        return FLOW_FAILED;
    }
    if (!node->as.loop.is_recursive) {
        return run_loop(run, loop);
    }
    /* A recursive loop is a function that returns its text. */
    ox_ji_keep_scope(scope);
    const struct capture capture = ox_ji_capture(run);
    const enum flow flow = run_loop(run, loop);
    if (flow == FLOW_FAILED || !ox_ji_capture_end(run, capture, &text) ||
        !ox_ji_put_string(run, text.as.string)) {
        return FLOW_FAILED;
    }
    return flow;
}

bool ox_ji_recurse(struct run *run, struct loop *outer, struct value iterable, struct value *out) {
    if (!outer->node->as.loop.is_recursive) {
        return ox_ji_fail(run, "The loop must have the 'recursive' marker to be called recursively.");
    }
    struct loop *const loop = new_loop(run, outer->node, outer->scope, iterable);
    if (loop == NULL || !ox_ji_enter(run)) {
        return false;
    }
    loop->depth0 = outer->depth0 + 1;
    const struct capture capture = ox_ji_capture(run);
    const bool ok = run_loop(run, loop) != FLOW_FAILED && ox_ji_capture_end(run, capture, out);
    run->depth--;
    return ok;
}
