/* Owns calls: macros, and the binding of arguments to the parameters of everything built in. */
#include "engine/jinja/ast_internal.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

/* ---- macros ---------------------------------------------------------------------------------------------------- */

/* Copies of the keywords, of which the parameters then take theirs. */
struct leftover {
    struct dict *keywords;
    size_t taken;
};

static bool take_keyword(struct run *run, struct leftover *leftover, struct value name, struct value *out) {
    *out = MISSING;
    if (leftover->keywords == NULL) {
        return true;
    }
    if (!ox_ji_dict_get(run, leftover->keywords, name, out)) {
        return false;
    }
    if (out->kind != V_MISSING) {
        leftover->taken++;
        return ox_ji_dict_set(run, leftover->keywords, name, MISSING);
    }
    return true;
}

static bool default_of(struct run *run, struct scope *scope, const struct signature *signature, size_t index,
                       struct value *out) {
    const size_t first = signature->parameters.count - signature->defaults.count;
    const struct node *value = signature->defaults.first;
    if (index < first) {
        return ox_ji_undefined_because(run, "a parameter was not provided", out);
    }
    for (size_t i = first; i < index; i++) {
        value = value->next;
    }
    return ox_ji_evaluate(run, scope, value, out);
}

/* Binds a word that the macro's body says, under the pointer that the parser gave it. */
static bool bind_word(struct run *run, struct scope *scope, const char *word, struct value value) {
    for (const struct name_link *link = run->jinja->names; link != NULL; link = link->next) {
        if (ox_ji_string_is(link->name, word)) {
            return ox_ji_bind(run, scope, link->name, value);
        }
    }
    return true;
}

static bool leftover_keywords(struct run *run, const struct leftover *leftover, struct value *out) {
    struct dict *const dict = ox_ji_new_dict(run);
    if (dict == NULL) {
        return false;
    }
    for (size_t i = 0; leftover->keywords != NULL && i < leftover->keywords->count; i++) {
        const struct entry *const entry = &leftover->keywords->entries[i];
        if (entry->item.kind != V_MISSING && !ox_ji_dict_set(run, dict, entry->key, entry->item)) {
            return false;
        }
    }
    *out = (struct value){.kind = V_DICT, .as.dict = dict};
    return true;
}

/* `caller`, `kwargs` and `varargs`, where the body says them. */
static bool bind_specials(struct run *run, const struct signature *signature, const struct arguments *given,
                          struct leftover *leftover, struct scope *scope) {
    struct value caller = MISSING, name = MISSING, kwargs = MISSING;
    const size_t count = signature->parameters.count;
    if (signature->uses_caller) {
        if (!ox_ji_string_of(run, "caller", &name) || !take_keyword(run, leftover, name, &caller) ||
            (caller.kind == V_MISSING && !ox_ji_undefined_because(run, "No caller defined", &caller)) ||
            !bind_word(run, scope, "caller", caller)) {
            return false;
        }
    }
    if (signature->uses_kwargs) {
        if (!leftover_keywords(run, leftover, &kwargs) || !bind_word(run, scope, "kwargs", kwargs)) {
            return false;
        }
    } else if (leftover->keywords != NULL && leftover->taken < leftover->keywords->count) {
        return ox_ji_fail(run, "the macro takes no such keyword argument");
    }
    if (!signature->uses_varargs) {
        return given->count <= count ||
               ox_ji_fail(run, "the macro takes not more than %zu argument(s)", count);
    }
    struct list *const varargs = ox_ji_new_list(run, 0);
    for (size_t i = count; varargs != NULL && i < given->count; i++) {
        if (!ox_ji_append(run, varargs, given->positional[i])) {
            return false;
        }
    }
    return varargs != NULL && bind_word(run, scope, "varargs", ox_ji_tuple(varargs));
}

static bool copy_keywords(struct run *run, const struct arguments *given, struct leftover *leftover) {
    if (given->keywords == NULL) {
        return true;
    }
    leftover->keywords = ox_ji_new_dict(run);
    for (size_t i = 0; leftover->keywords != NULL && i < given->keywords->count; i++) {
        const struct entry *const entry = &given->keywords->entries[i];
        if (!ox_ji_dict_set(run, leftover->keywords, entry->key, entry->item)) {
            return false;
        }
    }
    return leftover->keywords != NULL;
}

/* The arguments that were given first, because a default may read any parameter before its own. */
static bool bind_parameters(struct run *run, const struct signature *signature, const struct arguments *given,
                            struct scope *scope) {
    struct leftover leftover = {0};
    size_t index = 0;
    struct value *const values = ox_ji_new(run, (signature->parameters.count + 1) * sizeof *values);
    if (values == NULL || !copy_keywords(run, given, &leftover)) {
        return false;
    }
    for (const struct node *parameter = signature->parameters.first; parameter != NULL;
         parameter = parameter->next, index++) {
        const struct value name = {.kind = V_STRING, .as.string = parameter->as.name};
        values[index] = index < given->count ? given->positional[index] : MISSING;
        if (index >= given->count && !take_keyword(run, &leftover, name, &values[index])) {
            return false;
        }
    }
    if (!bind_specials(run, signature, given, &leftover, scope)) {
        return false;
    }
    index = 0;
    for (const struct node *parameter = signature->parameters.first; parameter != NULL;
         parameter = parameter->next, index++) {
        if ((values[index].kind == V_MISSING && !default_of(run, scope, signature, index, &values[index])) ||
            !ox_ji_bind(run, scope, parameter->as.name, values[index])) {
            return false;
        }
    }
    return true;
}

bool ox_ji_call_macro(struct run *run, const struct macro *macro, const struct arguments *given, struct value *out) {
    struct scope *const scope = ox_ji_new_scope(run, macro->scope, &macro->signature->uses);
    if (scope == NULL || !ox_ji_enter(run) || !bind_parameters(run, macro->signature, given, scope)) {
        return false;
    }
    const struct capture capture = ox_ji_capture(run);
    const bool ok = ox_ji_execute(run, scope, &macro->signature->body) == FLOW_ON &&
                    ox_ji_capture_end(run, capture, out);
    if (!scope->is_kept) {
        ox_ji_end_scope(run, scope);
    }
    run->depth--;
    return ok;
}

/* ---- {% generation %} ------------------------------------------------------------------------------------------ */

bool ox_ji_generation(struct run *run, struct scope *scope, const struct node *node) {
    const struct macro macro = {.signature = node->as.macro.signature, .scope = scope};
    const bool is_nested = run->capture_count > 0;
    const size_t begin = is_nested ? run->root_bytes : run->output_bytes;
    struct value text = MISSING;
    if (!ox_ji_call_macro(run, &macro, &(struct arguments){0}, &text) || !ox_ji_put_string(run, text.as.string)) {
        return false;
    }
    if (run->span_count == run->span_capacity) {
        const size_t capacity = run->span_capacity < 16 ? 16 : run->span_capacity * 2;
        const size_t bytes = capacity * sizeof *run->spans;
        struct ox_jinja_span *const spans =
            ox_ji_count_memory(&run->memory, bytes / 2) ? realloc(run->spans, bytes) : NULL;
        if (spans == NULL) {
            run->no_memory = !run->memory.refused;
            return ox_ji_fail(run, "no memory for another span");
        }
        run->spans = spans;
        run->span_capacity = capacity;
    }
    run->spans[run->span_count++] = (struct ox_jinja_span){
        .begin_byte = begin, .end_byte = begin + text.as.string->bytes, .is_nested = is_nested};
    return true;
}

/* ---- what is built in ------------------------------------------------------------------------------------------ */

/* The index of the parameter `name` in "a b c", or the count of parameters. */
static size_t find_parameter(const char *parameters, const struct string *name) {
    size_t index = 0;
    for (const char *at = parameters; *at != '\0'; index++) {
        const size_t bytes = strcspn(at, " ");
        if (name != NULL && bytes == name->bytes && memcmp(at, name->data, bytes) == 0) {
            return index;
        }
        at += bytes + (at[bytes] == ' ');
    }
    return index;
}

static bool bind_builtin(struct call *call) {
    struct run *const run = call->run;
    const struct builtin *const builtin = call->builtin;
    const size_t count = find_parameter(builtin->parameters, NULL);
    OX_ASSERT(count <= BUILTIN_ARGUMENTS_MAX);
    if (call->given->count > count) {
        return ox_ji_fail(run, "%s() takes at most %zu arguments (%zu given)", builtin->name, count,
                          call->given->count);
    }
    for (size_t i = 0; i < count; i++) {
        call->arguments[i] = i < call->given->count ? call->given->positional[i] : MISSING;
    }
    for (size_t i = 0; call->given->keywords != NULL && i < call->given->keywords->count; i++) {
        const struct entry *const entry = &call->given->keywords->entries[i];
        const size_t index = ox_ji_string_is(entry->key.as.string, "_")
                                 ? count
                                 : find_parameter(builtin->parameters, entry->key.as.string);
        if (index == count || call->arguments[index].kind != V_MISSING) {
            return ox_ji_fail(run, "%s() got an unexpected keyword argument", builtin->name);
        }
        call->arguments[index] = entry->item;
    }
    for (size_t i = 0; i < builtin->required; i++) {
        if (call->arguments[i].kind == V_MISSING) {
            return ox_ji_fail(run, "%s() misses a required argument", builtin->name);
        }
    }
    return true;
}

bool ox_ji_apply(struct run *run, const struct builtin *builtin, struct value self, const struct arguments *given,
                 struct value *out) {
    struct call call = {.run = run, .builtin = builtin, .self = self, .given = given, .out = out};
    const bool is_markup = self.kind == V_STRING && self.as.string->is_markup;
    if (builtin->apply == NULL) {
        return ox_ji_fail(run, "'%s' is not supported here", builtin->name);
    }
    if (is_markup && builtin->markup == MARKUP_REFUSED) {
        return ox_ji_fail(run, "%s() of a text that is marked as safe is not supported here", builtin->name);
    }
    if ((builtin->parameters[0] != '*' && !bind_builtin(&call)) || !ox_ji_enter(run)) {
        return false;
    }
    *out = MISSING;
    const bool ok = builtin->apply(&call);
    run->depth--;
    if (ok && is_markup && out->kind == V_STRING && (builtin->markup == MARKUP_KEPT) != out->as.string->is_markup &&
        out->as.string != self.as.string) {
        ((struct string *)out->as.string)->is_markup = builtin->markup == MARKUP_KEPT;
    }
    return ok;
}

static bool call_joiner(struct run *run, struct joiner *joiner, struct value *out) {
    if (!joiner->used) {
        joiner->used = true;
        return ox_ji_string_of(run, "", out);
    }
    *out = joiner->separator;
    return true;
}

bool ox_ji_call(struct run *run, struct value function, const struct arguments *given, struct value *out) {
    switch (function.kind) {
    case V_UNDEFINED:
        return ox_ji_fail_undefined(run, function.as.undefined);
    case V_MACRO:
        return ox_ji_call_macro(run, function.as.macro, given, out);
    case V_FUNCTION:
        return ox_ji_apply(run, function.as.function, MISSING, given, out);
    case V_METHOD:
        return ox_ji_apply(run, function.as.method->builtin, function.as.method->self, given, out);
    case V_LOOP:
        return given->count == 1 && given->keywords == NULL
                   ? ox_ji_recurse(run, function.as.loop, given->positional[0], out)
                   : ox_ji_fail(run, "loop() takes one argument");
    case V_JOINER:
        return given->count == 0 && given->keywords == NULL
                   ? call_joiner(run, function.as.joiner, out)
                   : ox_ji_fail(run, "a joiner takes no arguments");
    default:
        return ox_ji_fail(run, "'%s' object is not callable", ox_ji_type_name(function));
    }
}
