/* Chooses the cuDNN engine for a graph: the first that cuDNN's heuristics name, that always gives the same bits and
 * that needs no more memory than granted. Nothing is measured, so that a shape always gets the same engine. */
#include "kernels/cuda/cudnn_plan.h"

#include "base/assert.h"

#include <cudnn_backend.h>
#include <stdio.h>
#include <stdlib.h>

enum { CONFIGS_MAX = 16, NOTES_MAX = CUDNN_NUMERICAL_NOTE_TYPE_COUNT };

static bool is_refusal(int status) {
    const int category = status / 1000 * 1000;
    return category == CUDNN_STATUS_BAD_PARAM || category == CUDNN_STATUS_NOT_SUPPORTED ||
           category == CUDNN_STATUS_INTERNAL_ERROR;
}

static void say(struct ox_cudnn_plan *plan, const char *why) {
    snprintf(plan->words.text, sizeof plan->words.text, "%s", why);
}

/* ---- one engine --------------------------------------------------------------------------------------- */

/* Not every engine whose sums depend on chance carries the note; the graph excludes the others. */
static bool keeps_bits(struct ox_cudnn_plan *plan, void *engine) {
    static const int notes_name[2] = {CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE};
    cudnnBackendNumericalNote_t notes[NOTES_MAX];
    const int64_t count = ox_cudnn_get(&plan->set, engine, notes_name, NOTES_MAX, notes);
    bool keeps = true;
    for (int64_t i = 0; i < count; i++) {
        keeps = keeps && notes[i] != CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC &&
                notes[i] != CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION &&
                notes[i] != CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
    }
    return keeps;
}

static bool fits(struct ox_cudnn_plan *plan, int64_t bytes) {
    plan->workspace_bytes = bytes < 0 ? 0 : (uint64_t)bytes;
    if (plan->workspace_bytes <= plan->of.workspace_max) {
        return true;
    }
    snprintf(plan->words.text, sizeof plan->words.text, "an engine wants %llu bytes of workspace and %llu are there",
             (unsigned long long)plan->workspace_bytes, (unsigned long long)plan->of.workspace_max);
    return false;
}

static enum ox_status build(struct ox_cudnn_plan *plan, void *config) {
    struct ox_cudnn_set *const set = &plan->set;
    void *handle = set->target->handle;
    int64_t bytes = 0;
    void *const made = ox_cudnn_make(set, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (handle != NULL) {
        ox_cudnn_put(set, made, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &handle);
    } else {
        ox_cudnn_put_descriptor(set, made, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, set->target->properties);
    }
    ox_cudnn_put_descriptor(set, made, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (set->status != CUDNN_STATUS_SUCCESS) {
        return OX_OK; /* the caller reports it */
    }
    const int status = ox_cudnn_try_finish(set, made, &plan->words);
    if (status == CUDNN_STATUS_SUCCESS) {
        plan->has_code = true;
        if (ox_cudnn_try_get(set, made, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, &bytes) != CUDNN_STATUS_SUCCESS) {
            say(plan, "a plan does not tell its workspace");
        } else if (fits(plan, bytes)) {
            plan->plan = made;
        }
        return OX_OK;
    }
    /* The code is compiled before a driver is asked to load it. */
    if (handle == NULL && status == CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER) {
        plan->has_code = true;
        return OX_OK;
    }
    return is_refusal(status) ? OX_OK
                              : ox_fail(OX_E_DEVICE, "GPU, cuDNN, building a plan of attention: %s", plan->words.text);
}

/* Takes the config if its engine will do. */
static enum ox_status consider(struct ox_cudnn_plan *plan, void *config, bool builds) {
    static const int engine_name[2] = {CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR};
    struct ox_cudnn_set *const set = &plan->set;
    int64_t bytes = 0;
    void *engine = ox_cudnn_make(set, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    if (ox_cudnn_get(set, config, engine_name, 1, &engine) != 1 || !keeps_bits(plan, engine) ||
        set->status != CUDNN_STATUS_SUCCESS) {
        say(plan, "an engine does not give the same bits always");
        return OX_OK;
    }
    if (ox_cudnn_try_get(set, config, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, &bytes) == CUDNN_STATUS_SUCCESS &&
        !fits(plan, bytes)) {
        return OX_OK;
    }
    const enum ox_status status = builds ? build(plan, config) : OX_OK;
    if (status == OX_OK && (!builds || plan->plan != NULL || (plan->has_code && set->target->handle == NULL))) {
        plan->config = config;
        plan->words.text[0] = '\0';
        if (ox_cudnn_try_get(set, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, &plan->engine) != CUDNN_STATUS_SUCCESS) {
            plan->engine = -1;
        }
    }
    return status;
}

/* ---- which engine ------------------------------------------------------------------------------------- */

/* On compute capability 10 the heuristics of these versions do not name the engine that sums the queries' gradient in a
 * kernel of its own, in a fixed order and without a matrix of queries by keys in memory. Its number and its settings
 * hold for these versions only. */
enum { ORDERED_ENGINE = 5, ORDERED_KERNEL = 31, ORDERED_STAGES = 2, ORDERED_FIRST = 91800, ORDERED_END = 92300 };

static void *choice(struct ox_cudnn_set *set, cudnnBackendKnobType_t knob, int64_t value) {
    void *const made = ox_cudnn_make(set, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    ox_cudnn_put(set, made, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, &knob);
    ox_cudnn_put(set, made, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, &value);
    ox_cudnn_finish(set, made);
    return made;
}

static enum ox_status consider_ordered(struct ox_cudnn_plan *plan, void *graph, bool builds) {
    static const int choices_name[2] = {CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR};
    struct ox_cudnn_set *const set = &plan->set;
    const int64_t number = ORDERED_ENGINE;
    void *const engine = ox_cudnn_make(set, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    ox_cudnn_put_descriptor(set, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
    ox_cudnn_put(set, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, &number);
    if (set->target->properties != NULL) {
        ox_cudnn_put_descriptor(set, engine, CUDNN_ATTR_ENGINE_DEVICEPROP, set->target->properties);
    }
    void *const choices[2] = {choice(set, CUDNN_KNOB_TYPE_KERNEL_CFG, ORDERED_KERNEL),
                              choice(set, CUDNN_KNOB_TYPE_STAGES, ORDERED_STAGES)};
    void *const config = ox_cudnn_make(set, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (set->status != CUDNN_STATUS_SUCCESS ||
        ox_cudnn_try_finish(set, engine, &plan->words) != CUDNN_STATUS_SUCCESS) {
        return OX_OK;
    }
    ox_cudnn_put_descriptor(set, config, CUDNN_ATTR_ENGINECFG_ENGINE, engine);
    ox_cudnn_put_all(set, config, choices_name, 2, choices);
    if (set->status != CUDNN_STATUS_SUCCESS ||
        ox_cudnn_try_finish(set, config, &plan->words) != CUDNN_STATUS_SUCCESS) {
        return OX_OK;
    }
    return consider(plan, config, builds);
}

static enum ox_status consider_named(struct ox_cudnn_plan *plan, void *graph, cudnnBackendHeurMode_t mode,
                                     bool builds) {
    static const int results_name[2] = {CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR};
    struct ox_cudnn_set *const set = &plan->set;
    void *configs[CONFIGS_MAX];
    void *const names = ox_cudnn_make(set, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    ox_cudnn_put_descriptor(set, names, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    ox_cudnn_put(set, names, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode);
    if (set->target->properties != NULL) {
        ox_cudnn_put_descriptor(set, names, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, set->target->properties);
    }
    for (int i = 0; i < CONFIGS_MAX; i++) {
        configs[i] = ox_cudnn_make(set, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    }
    if (set->status != CUDNN_STATUS_SUCCESS ||
        ox_cudnn_try_finish(set, names, &plan->words) != CUDNN_STATUS_SUCCESS) {
        return OX_OK;
    }
    const int64_t count = ox_cudnn_get(set, names, results_name, CONFIGS_MAX, configs);
    enum ox_status status = OX_OK;
    for (int64_t i = 0; i < count && status == OX_OK && plan->config == NULL; i++) {
        status = consider(plan, configs[i], builds);
    }
    return status;
}

static enum ox_status choose(struct ox_cudnn_plan *plan, void *graph, bool builds) {
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    const struct ox_cudnn_target *const target = plan->set.target;
    const uint64_t version = ox_cudnn_library_version(target->library);
    const bool is_ten = target->capability / 10 == 10;
    enum ox_status status = OX_OK;
    if (plan->of.backward && is_ten && version >= ORDERED_END) {
        say(plan, "which engine keeps its bits on this GPU is not known of so new a cuDNN");
        return OX_OK;
    }
    if (plan->of.backward && is_ten && version >= ORDERED_FIRST) {
        status = consider_ordered(plan, graph, builds);
    }
    for (size_t i = 0; i < sizeof modes / sizeof modes[0] && status == OX_OK && plan->config == NULL; i++) {
        status = consider_named(plan, graph, modes[i], builds);
    }
    return status;
}

/* ---- plans -------------------------------------------------------------------------------------------- */

enum ox_status ox_cudnn_plan_open(const struct ox_cudnn_target *target, const struct ox_cudnn_case *of, bool builds,
                                  struct ox_cudnn_plan **out) {
    *out = NULL;
    struct ox_cudnn_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL) {
        return ox_fail(OX_E_NOMEM, "GPU: no memory for a plan of attention");
    }
    plan->of = *of;
    plan->set.target = target;
    plan->engine = -1;
    say(plan, "no engine of cuDNN takes this shape");
    enum ox_status status = OX_OK;
    void *const graph = ox_cudnn_graph(&plan->set, of);
    if (plan->set.status == CUDNN_STATUS_SUCCESS) {
        status = choose(plan, graph, builds);
    }
    if (status == OX_OK && plan->set.status != CUDNN_STATUS_SUCCESS) {
        plan->words = plan->set.words;
        plan->config = plan->plan = NULL;
        if (!is_refusal(plan->set.status) ||
            plan->set.status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED) {
            status = ox_fail(OX_E_DEVICE, "GPU, cuDNN, describing attention: %s", plan->words.text);
        }
    }
    if (status != OX_OK) {
        ox_cudnn_plan_close(&plan);
    }
    *out = plan;
    return status;
}

void ox_cudnn_plan_close(struct ox_cudnn_plan **plan) {
    if (*plan != NULL) {
        ox_cudnn_set_close(&(*plan)->set);
        free(*plan);
        *plan = NULL;
    }
}

enum ox_status ox_cudnn_plan_run(const struct ox_cudnn_plan *plan, const struct ox_cudnn_call *call) {
    static const int ids_name[2] = {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64};
    static const int pointers_name[2] = {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR};
    int64_t ids[OX_CUDNN_TENSOR_END], count = 0;
    void *pointers[OX_CUDNN_TENSOR_END];
    OX_ASSERT(plan->plan != NULL);
    for (int id = OX_CUDNN_Q; id < OX_CUDNN_TENSOR_END; id++) {
        if (call->at[id] != NULL) {
            ids[count] = id;
            pointers[count++] = call->at[id];
        }
    }
    struct ox_cudnn_set set = {.target = plan->set.target};
    void *const pack = ox_cudnn_make(&set, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    ox_cudnn_put_all(&set, pack, ids_name, count, ids);
    ox_cudnn_put_all(&set, pack, pointers_name, count, pointers);
    ox_cudnn_put(&set, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &call->workspace);
    ox_cudnn_finish(&set, pack);
    const enum ox_status status =
        set.status == CUDNN_STATUS_SUCCESS
            ? ox_cudnn_execute(set.target, plan->plan, pack, call->stream)
            : ox_fail(OX_E_DEVICE, "GPU, cuDNN, naming the tensors of attention: %s", set.words.text);
    ox_cudnn_set_close(&set);
    return status;
}
