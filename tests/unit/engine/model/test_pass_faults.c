/* Faults planted by machine into schedules are refused, or change no bit; what passes compute are the gradients. */
#include "base/json.h"
#include "base/planes.h"
#include "base/prng/prng.h"
#include "engine/model/pieces.h"
#include "engine/model/schedule.h"
#include "kernels/device.h"
#include "tests/kit/draw.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/engine/model/passes.inc"

/* ---- faults planted by machine ---- */

/* A small unit on the CPU, and what its passes compute. */
struct bench {
    struct ox_model *model;
    uint32_t unit_idx;
    uint16_t *hi; /* weights of an embedding or a head, and the table of either */
    float *grads_table;
    size_t table_elems;
    struct ox_shape shape;
    struct ox_device *device;
    struct ox_lane *lane;
    struct ox_ops ops;
    float *weights, *grads, *x, *y, *dx, *cos_table, *sin_table;
    int32_t *positions;
    unsigned char *work, *kept;
    size_t rows_bytes, block_elems, elems, /* of the block's own unit, and with that of its adapters */
         work_bytes, kept_bytes;
};

static void *room(size_t bytes) {
    void *const memory = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (memory == NULL) {
        exit(1);
    }
    return memory;
}

static float *floats(size_t count, uint64_t stream) {
    float *const values = room(count * sizeof *values);
    ox_normals(7, stream, 0, count, 0.3, values);
    return values;
}

static const struct ox_unit *unit_of(const struct bench *b) {
    return &b->model->units[b->unit_idx];
}

static void make_pass(const struct bench *b, enum ox_pass pass, struct ox_schedule *out) {
    struct ox_list list;
    ox_unit_list(&b->shape, unit_of(b), &list);
    ox_schedule_make(&list, pass, out);
}

static uint32_t unit_idx_of(const struct ox_model *model, enum ox_unit_kind kind) {
    return kind == OX_UNIT_EMBED ? model->embed_idx : kind == OX_UNIT_HEAD ? model->head_idx : model->blocks[0];
}

static void bench_open(struct bench *b, const char *text, enum ox_unit_kind kind) {
    const struct ox_cpu_device_config config = {.thread_count = 1};
    *b = (struct bench){.model = model_of(text)};
    b->unit_idx = unit_idx_of(b->model, kind);
    const struct ox_model_config *const c = &b->model->config;
    b->shape = shape_of(b->model, 2, 5, OX_DEVICE_CPU, OX_REAL_F32);
    b->shape.compute.threads = 1;
    REQUIRE_OK(ox_cpu_device_open(&config, &b->device));
    REQUIRE_OK(ox_device_lane_open(b->device, "compute", &b->lane));
    ox_ops_init_cpu(&b->ops);
    b->elems = b->block_elems = unit_of(b)->elem_count;
    b->elems += unit_of(b)->next == OX_NO_UNIT ? 0 : b->model->units[unit_of(b)->next].elem_count;
    b->rows_bytes = b->shape.rows * c->hidden * sizeof(float);
    for (int pass = 0; pass < 4; pass++) {
        const size_t bytes = ox_unit_work_bytes(&b->shape, &b->model->units[b->unit_idx], (enum ox_pass)pass);
        b->work_bytes = bytes > b->work_bytes ? bytes : b->work_bytes;
    }
    b->kept_bytes = ox_unit_kept_bytes(&b->shape, &b->model->units[b->unit_idx]);
    b->weights = floats(b->elems, 1);
    b->grads = floats(b->elems, 2);
    b->x = floats(b->rows_bytes / 4, 3);
    b->y = floats(b->rows_bytes / 4, 4);
    b->dx = floats(b->rows_bytes / 4, 5);
    b->cos_table = floats(64 * c->head_dim / 2, 6);
    b->sin_table = floats(64 * c->head_dim / 2, 7);
    b->positions = room(b->shape.rows * sizeof *b->positions);
    for (uint32_t i = 0; i < b->shape.rows; i++) {
        b->positions[i] = (int32_t)(i % b->shape.seq);
    }
    b->table_elems = (size_t)c->vocab * c->hidden;
    const size_t planes = b->elems > b->table_elems ? b->elems : b->table_elems;
    b->hi = room(planes * sizeof *b->hi);
    for (size_t i = 0; i < planes; i++) {
        b->hi[i] = ox_bf16_from_f32((float)(i % 23) / 16.0f - 0.7f);
    }
    b->grads_table = room(b->table_elems * sizeof *b->grads_table);
    b->work = room(b->work_bytes);
    b->kept = room(b->kept_bytes);
}

static void bench_close(struct bench *b) {
    void *const memory[] = {b->weights, b->grads, b->x, b->y, b->dx, b->cos_table, b->sin_table, b->positions,
                            b->work, b->kept, b->hi, b->grads_table};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
        free(memory[i]);
    }
    ox_lane_close(&b->lane);
    ox_device_close(&b->device);
    ox_model_close(&b->model);
}

static void run_to(struct bench *b, const struct ox_schedule *schedule, float *y) {
    const struct ox_planes beside = {.hi = b->hi + b->block_elems};
    const struct ox_head_args head = {.tables = {{.hi = b->hi}}, .grads_tables = {b->grads_table}, .adapter = beside,
                                      .grads_adapter = b->grads + b->block_elems,
                                      .loss_sum = (double *)y, .loss_scale = 0.5f};
    struct ox_unit_job job = {.run = {.ops = &b->ops, .lane = b->lane}, .shape = &b->shape,
                              .unit = unit_of(b), .planes = {{.hi = b->hi}, beside}, .head = &head, .ids = b->positions,
                              .targets = b->positions, .positions = b->positions, .cos_table = b->cos_table,
                              .sin_table = b->sin_table};
    void *const x = unit_of(b)->kind == OX_UNIT_EMBED ? (void *)b->positions : b->x;
    void *const bases[OX_MEMORY_COUNT] = {[OX_MEMORY_X] = x, [OX_MEMORY_Y] = y, [OX_MEMORY_DX] = b->dx,
                           [OX_MEMORY_WORK] = b->work, [OX_MEMORY_KEPT] = b->kept};
    memset(b->work, 0xff, b->work_bytes); /* numbers that are none */
    float *const own = block_of(b->model)->trained ? b->grads : NULL;
    const struct ox_stage_weights weights = {{b->weights, b->weights + b->block_elems},
                                             {own, b->grads + b->block_elems}};
    ox_schedule_run(schedule, &job, &weights, bases, OX_SCHEDULE_ALL_PHASES);
    REQUIRE_OK(job.run.status);
    REQUIRE_OK(ox_lane_drain(b->lane));
}

static void run(struct bench *b, const struct ox_schedule *schedule) {
    run_to(b, schedule, b->y);
}

static uint64_t hash_of(const void *at, size_t bytes, uint64_t hash) {
    for (size_t k = 0; k < bytes; k++) {
        hash = (hash ^ ((const unsigned char *)at)[k]) * 1099511628211u;
    }
    return hash;
}

/* Runs a forward pass whose output lies where its input does, and hashes that. */
static uint64_t over_input(struct bench *b, const struct ox_schedule *schedule) {
    ox_normals(7, 3, 0, b->rows_bytes / 4, 0.3, b->x);
    memset(b->kept, 0xff, b->kept_bytes);
    run_to(b, schedule, b->x);
    return hash_of(b->x, b->rows_bytes, 1469598103934665603u);
}

/* Runs `mutant` in the place of its pass, with what belongs before and after it, and hashes all results. */
static uint64_t results(struct bench *b, const struct ox_schedule *proper, const struct ox_schedule *mutant) {
    const size_t count = b->rows_bytes / 4;
    const bool kept = mutant->pass == OX_PASS_FORWARD_KEPT || mutant->pass == OX_PASS_BACKWARD_KEPT;
    const int first = kept ? OX_PASS_FORWARD_KEPT : OX_PASS_FORWARD;
    const int second = kept ? OX_PASS_BACKWARD_KEPT : OX_PASS_BACKWARD;
    ox_normals(7, 2, 0, b->elems, 0.3, b->grads);
    ox_normals(7, 3, 0, count, 0.3, b->x);
    ox_normals(7, 5, 0, count, 0.3, b->dx);
    memset(b->y, 0, b->rows_bytes); /* a loss is added to */
    memset(b->grads_table, 0, b->table_elems * sizeof *b->grads_table);
    memset(b->kept, 0xff, b->kept_bytes);
    run(b, first == (int)mutant->pass ? mutant : &proper[first]);
    run(b, second == (int)mutant->pass ? mutant : &proper[second]);
    uint64_t hash = 1469598103934665603u;
    const struct {
        const void *at;
        size_t bytes;
    } parts[] = {{b->y, b->rows_bytes}, {b->dx, unit_of(b)->gives_dx ? b->rows_bytes : 0}, /* else nothing's */
                 {b->x, b->rows_bytes}, {b->grads, b->elems * 4}, {b->grads_table, b->table_elems * 4}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        hash = hash_of(parts[i].at, parts[i].bytes, hash);
    }
    return hash;
}

/* Another of `count` numbers, if there is another. */
static uint32_t other(uint32_t value, uint32_t count) {
    return count < 2 ? value : (value + 1 + random_u32() % (count - 1)) % count;
}

enum { FAULT_COUNT = 14 };
static const char *const fault_names[FAULT_COUNT] = {
    "two steps in the other order", "a step is missing", "a step runs twice", "another gradient comes in",
    "another gradient goes out", "another gradient is added", "another scratch", "a value lies elsewhere",
    "a value lies in another memory", "a value has another home", "backward for forward",
    "another gradient of weights", "weights' gradient begins or adds", "less memory than is used"};

static void plant(struct ox_schedule *s, int fault) {
    const uint32_t i = random_u32() % s->step_count, v = 1 + random_u32() % (s->list.value_count - 1);
    struct ox_schedule_step *const step = &s->steps[i];
    const uint32_t home = s->list.values[v].home;
    switch (fault) {
    case 0: {
        const uint32_t k = other(i, s->step_count);
        const struct ox_schedule_step kept = *step;
        *step = s->steps[k];
        s->steps[k] = kept;
        break;
    }
    case 1:
        memmove(step, step + 1, (s->step_count - i - 1) * sizeof *step);
        s->step_count--;
        break;
    case 2:
        memmove(step + 1, step, (s->step_count - i) * sizeof *step);
        s->step_count++;
        break;
    case 3:
        step->dout = other(step->dout, s->list.value_count);
        break;
    case 4:
        step->din = other(step->din, s->list.value_count);
        break;
    case 5:
        step->dresidual = other(step->dresidual, s->list.value_count);
        break;
    case 6:
        step->scratch = other(step->scratch, s->list.value_count);
        break;
    case 7:
        s->places[home].offset = random_u32() % (s->work_bytes / 64 + 1) * 64;
        break;
    case 8:
        s->places[home].memory = (enum ox_pass_memory)other(s->places[home].memory, OX_MEMORY_KEPT + 1);
        break;
    case 9:
        s->list.values[v].home = 1 + other(home - 1, s->list.value_count - 1);
        break;
    case 10:
        step->backward = !step->backward;
        break;
    case 11:
        step->dweights = other(step->dweights, s->list.value_count);
        break;
    case 12:
        step->adds_weights = !step->adds_weights;
        break;
    default:
        s->work_bytes -= 64;
        break;
    }
}

/* A mutant that is accepted must compute the same bits, or it counts as missed. A schedule that asks for less memory
 * than it uses computes them too, in a room that is larger than it says. */
static void test_faults(const char *text, enum ox_unit_kind kind) {
    static struct ox_schedule proper[4], mutant;
    struct bench b;
    uint64_t right[4];
    uint32_t refused[FAULT_COUNT] = {0}, harmless = 0, missed = 0;
    bench_open(&b, text, kind);
    for (int pass = 0; pass < 4; pass++) {
        make_pass(&b, (enum ox_pass)pass, &proper[pass]);
    }
    for (int pass = 0; pass < 4; pass++) {
        right[pass] = has_pass(unit_of(&b), pass) ? results(&b, proper, &proper[pass]) : right[0];
    }
    CHECK(right[OX_PASS_FORWARD] == right[OX_PASS_BACKWARD]);
    CHECK(right[OX_PASS_FORWARD] == right[OX_PASS_FORWARD_KEPT]);
    for (int n = 0; n < 4000; n++) {
        const int pass = n % 4, fault = n / 4 % FAULT_COUNT;
        mutant = proper[pass];
        if (!has_pass(unit_of(&b), pass) || (fault == FAULT_COUNT - 1 && mutant.work_bytes == 0)) {
            continue;
        }
        plant(&mutant, fault);
        if (ox_schedule_check(&mutant) != OX_OK) {
            refused[fault]++;
        } else if (fault != FAULT_COUNT - 1 && results(&b, proper, &mutant) == right[pass]) {
            harmless++;
        } else {
            printf("missed in pass %d: %s\n", pass, fault_names[fault]);
            missed++;
        }
    }
    uint32_t sum = 0;
    for (int fault = 0; fault < FAULT_COUNT; fault++) {
        const bool has_none = (b.work_bytes == 0 && (fault == 7 || fault == FAULT_COUNT - 1)) ||
                              (proper[0].step_count == 1 && fault == 0);
        CHECK(refused[fault] > 0 || has_none);
        sum += refused[fault];
    }
    printf("%u faults refused, %u change no bit, %u missed\n", sum, harmless, missed);
    CHECK(missed == 0);
    bench_close(&b);
}

/* ---- every number of a schedule, one after the other ---- */

/* The idx-th number of a value in a schedule: of its steps, its homes, the gradient that it begins with; NULL behind
 * the last. */
static uint32_t *number_of(struct ox_schedule *s, uint32_t idx) {
    const uint32_t in_steps = 5 * s->step_count;
    if (idx < in_steps) {
        struct ox_schedule_step *const step = &s->steps[idx / 5];
        uint32_t *const fields[] = {&step->dout, &step->din, &step->dresidual, &step->dweights, &step->scratch};
        return fields[idx % 5];
    }
    const uint32_t v = idx - in_steps + 1;
    return v < s->list.value_count ? &s->list.values[v].home : v == s->list.value_count ? &s->dx : NULL;
}

/* A mutant that is accepted computes the same bits, also where the caller's output lies over its input. */
static void judge(struct bench *b, const struct ox_schedule *proper, const struct ox_schedule *mutant, uint64_t right,
                  const char *what) {
    const bool accepted = ox_schedule_check(mutant) == OX_OK;
    const bool over = !ox_pass_is_backward(mutant->pass) && unit_of(b)->kind == OX_UNIT_BLOCK;
    if (accepted && (results(b, proper, mutant) != right ||
                     (over && over_input(b, mutant) != over_input(b, &proper[mutant->pass])))) {
        printf("missed in pass %d: %s\n", (int)mutant->pass, what);
        CHECK(!"a fault is missed");
    }
}

static void every_number(struct bench *b, const struct ox_schedule *proper, struct ox_schedule *mutant,
                         uint64_t right) {
    uint32_t *at;
    for (uint32_t idx = 0; (at = number_of(mutant, idx)) != NULL; idx++) {
        const bool stray = idx < 5 * mutant->step_count && idx % 5 < 4 && !mutant->steps[idx / 5].backward;
        const uint32_t kept = *at;
        for (uint32_t value = 0; value <= mutant->list.value_count; value++) {
            *at = value;
            if (value != kept) {
                CHECK(!stray || ox_schedule_check(mutant) != OX_OK); /* a forward step has no gradients */
                judge(b, proper, mutant, right, "another number");
            }
        }
        *at = kept;
    }
}

static void every_place(struct bench *b, const struct ox_schedule *proper, struct ox_schedule *mutant,
                        uint64_t right) {
    const uint32_t count = mutant->list.value_count;
    for (uint32_t v = 1; v < count; v++) {
        struct ox_place *const place = &mutant->places[v];
        const struct ox_place kept = *place;
        for (uint32_t k = 1; k < count && mutant->list.values[v].home == v; k++) {
            for (int memory = 0; memory <= OX_MEMORY_KEPT; memory++) {
                *place = (struct ox_place){(enum ox_pass_memory)memory, proper[mutant->pass].places[k].offset};
                judge(b, proper, mutant, right, "another place");
            }
        }
        *place = kept;
    }
}

/* A gradient that is handed on before the last step that adds to it has run, which adds all the same. */
static void every_early_use(struct bench *b, const struct ox_schedule *proper, struct ox_schedule *mutant,
                            uint64_t right) {
    const struct ox_schedule *const whole = &proper[mutant->pass];
    for (uint32_t i = 0; i < whole->step_count; i++) {
        const struct ox_schedule_step adds = whole->steps[i];
        for (uint32_t k = i + 1; adds.backward && adds.dresidual != OX_NO_VALUE && k < whole->step_count; k++) {
            if (whole->list.nodes[whole->steps[k].node_idx].out == whole->list.nodes[adds.node_idx].in) {
                *mutant = *whole;
                memmove(&mutant->steps[i], &mutant->steps[i + 1], (k - i) * sizeof adds);
                mutant->steps[k - 1].dout = adds.dresidual;
                mutant->steps[k] = adds;
                judge(b, proper, mutant, right, "a gradient that is not whole");
            }
        }
    }
    *mutant = *whole;
}

/* What computes the same bits, but breaks what others rely on, is refused too. */
static void every_breach(const struct ox_schedule *proper, struct ox_schedule *mutant) {
    const struct ox_schedule *const whole = &proper[mutant->pass];
    for (uint32_t k = 0; ox_pass_is_backward(mutant->pass) && k < whole->list.node_count; k++) {
        const struct ox_node *const node = &whole->list.nodes[k];
        const bool trains = ox_node_row_of(node)->weight_count > 0 && ox_list_trains(&whole->list, node->role);
        const int past = OX_ROLE_COUNT + 1 - (int)ox_node_row_of(node)->weight_count; /* all its roles are some */
        for (int role = 0; trains && role < past; role++) {
            mutant->list.nodes[k].role = (enum ox_role)role;
            const bool is_same = role == (int)node->role || role + 1 == (int)node->role; /* a bias may be it too */
            CHECK(is_same || ox_schedule_check(mutant) != OX_OK); /* a tensor without its addition */
        }
        mutant->list.nodes[k].role = node->role;
    }
    for (uint32_t i = 0; i < whole->step_count; i++) {
        struct ox_schedule_step *const step = &mutant->steps[i];
        const struct ox_node *const node = &whole->list.nodes[step->node_idx];
        const uint32_t sized[] = {step->din, step->dweights, step->scratch};
        for (int k = 0; k < 3; k++) {
            mutant->list.values[sized[k]].bytes += 64;
            CHECK(sized[k] == OX_NO_VALUE || ox_schedule_check(mutant) != OX_OK); /* a size that nobody asks for */
            mutant->list.values[sized[k]].bytes -= 64;
        }
        mutant->absent[node->out] = true;
        CHECK(step->backward || ox_schedule_check(mutant) != OX_OK); /* what a step makes is said not to be there */
        mutant->absent[node->out] = false;
        for (uint32_t k = 0; k <= whole->list.node_count; k++) {
            step->node_idx = k;
            CHECK(k == whole->steps[i].node_idx || ox_schedule_check(mutant) != OX_OK); /* the step of another node */
        }
        step->node_idx = whole->steps[i].node_idx;
    }
    for (uint32_t v = 1; v < whole->list.value_count; v++) {
        if (whole->lives[v].last > whole->lives[v].first && whole->places[v].memory == OX_MEMORY_WORK) {
            mutant->places[v].offset += 4;
            CHECK(ox_schedule_check(mutant) != OX_OK); /* not aligned */
            mutant->places[v].offset -= 4;
        }
    }
    if (ox_pass_is_kept(whole->pass) && whole->kept_bytes > 0) {
        mutant->kept_bytes -= 64;
        CHECK(ox_schedule_check(mutant) != OX_OK);
        mutant->kept_bytes += 64;
        mutant->needed[whole->list.in] = true;
        CHECK(ox_schedule_check(mutant) != OX_OK); /* the input is the caller's, and not kept */
    }
}

static void test_every_fault(const char *text, enum ox_unit_kind kind) {
    static struct ox_schedule proper[4], mutant;
    struct bench b;
    bench_open(&b, text, kind);
    for (int pass = 0; pass < 4; pass++) {
        make_pass(&b, (enum ox_pass)pass, &proper[pass]);
    }
    for (int pass = 0; pass < 4; pass++) {
        if (has_pass(unit_of(&b), pass)) {
            const uint64_t right = results(&b, proper, &proper[pass]);
            mutant = proper[pass];
            every_number(&b, proper, &mutant, right);
            every_place(&b, proper, &mutant, right);
            every_early_use(&b, proper, &mutant, right);
            every_breach(proper, &mutant);
        }
    }
    bench_close(&b);
}

/* Where one matrix alone is trained, and nothing before the block, backward begins there: what the proof demands of
 * every node follows from the way on which it depends on that matrix. */
static void test_parts(const char *text) {
    static struct ox_schedule schedule;
    struct bench b;
    bench_open(&b, text, OX_UNIT_BLOCK);
    struct ox_unit *const unit = &b.model->units[b.model->blocks[0]];
    const struct ox_unit whole = *unit;
    unit->gives_dx = false;
    for (int role = 0; role < OX_ROLE_COUNT; role++) {
        memset(unit->role_trained, 0, sizeof unit->role_trained);
        unit->role_trained[role] = true;
        for (int pass = OX_PASS_FORWARD; whole.role_trained[role] && pass <= OX_PASS_BACKWARD_KEPT; pass++) {
            make(&b.shape, (enum ox_pass)pass, &schedule);
            REQUIRE_OK(ox_schedule_check(&schedule));
        }
    }
    *unit = whole;
    bench_close(&b);
}

/* ---- gradients ---- */

static double product_of(const float *a, const float *b, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

/* The loss is the product of the output with a tensor; moves `at` along `way` both ways. */
static double slope_of(struct bench *b, const struct ox_schedule *forward, float *at, const float *way, size_t count,
                       const float *dy) {
    static const float step = 4e-3f;
    double loss[2];
    for (int side = 0; side < 2; side++) {
        const float by = side == 0 ? step : -step;
        for (size_t i = 0; i < count; i++) {
            at[i] += by * way[i];
        }
        run(b, forward);
        loss[side] = product_of(b->y, dy, b->rows_bytes / 4);
        for (size_t i = 0; i < count; i++) {
            at[i] -= by * way[i];
        }
    }
    return (loss[0] - loss[1]) / (2.0 * (double)step);
}

/* Gradients of the input and of the weights against differences of the loss along two directions. */
static void test_gradients(const char *text) {
    static struct ox_schedule forward, backward;
    struct bench b;
    bench_open(&b, text, OX_UNIT_BLOCK);
    const size_t count = b.rows_bytes / 4;
    float *const dy = floats(count, 11), *const along_x = floats(count, 12), *const along_weights = floats(b.elems, 13);
    if (!block_of(b.model)->trained) {
        memset(along_weights, 0, b.block_elems * sizeof *along_weights);
    }
    make(&b.shape, OX_PASS_FORWARD, &forward);
    make(&b.shape, OX_PASS_BACKWARD, &backward);
    const double by_x = slope_of(&b, &forward, b.x, along_x, count, dy);
    const double by_weights = slope_of(&b, &forward, b.weights, along_weights, b.elems, dy);
    memcpy(b.dx, dy, b.rows_bytes);
    memset(b.grads, 0, b.elems * sizeof *b.grads);
    run(&b, &backward);
    const double x = product_of(b.dx, along_x, count), weights = product_of(b.grads, along_weights, b.elems);
    printf("%.40s...: slopes %.5f %.5f, by differences %.5f %.5f\n", text, x, weights, by_x, by_weights);
    CHECK(fabs(x - by_x) < 5e-3 * (1.0 + fabs(by_x)));
    CHECK(fabs(weights - by_weights) < 5e-3 * (1.0 + fabs(by_weights)));
    free(dy);
    free(along_x);
    free(along_weights);
    bench_close(&b);
}

int main(void) {
    test_faults(llama_small, OX_UNIT_BLOCK);
    test_faults(qwen3_small, OX_UNIT_BLOCK);
    test_faults(gpt2_small, OX_UNIT_BLOCK);
    test_faults(mixture, OX_UNIT_BLOCK);
    test_faults(mixture_clamped, OX_UNIT_BLOCK);
    test_faults(mixture_biased, OX_UNIT_BLOCK);
    test_faults(mixture_shared, OX_UNIT_BLOCK);
    test_faults(latent_narrow, OX_UNIT_BLOCK);
    test_faults(llama_small, OX_UNIT_HEAD);
    test_faults(gpt2_small, OX_UNIT_HEAD);
    test_faults(gemma3_small, OX_UNIT_EMBED);
    test_faults(gpt2_small, OX_UNIT_EMBED);
    test_faults(adapted_tables, OX_UNIT_HEAD);
    test_faults(adapted_tables, OX_UNIT_EMBED);
    test_every_fault(llama_small, OX_UNIT_BLOCK);
    test_every_fault(gpt2_small, OX_UNIT_BLOCK);
    test_every_fault(mixture_shared, OX_UNIT_BLOCK);
    test_every_fault(llama_small, OX_UNIT_HEAD);
    test_every_fault(gemma3_small, OX_UNIT_EMBED);
    test_every_fault(adapted_tables, OX_UNIT_HEAD);
    test_every_fault(adapted_tables, OX_UNIT_EMBED);
    test_parts(qwen3_small);
    test_parts(mixture);
    test_parts(mixture_biased);
    test_parts(mixture_shared);
    test_parts(cohere2_small);
    test_parts(latent_narrow);
    test_gradients(qwen3_small);
    test_gradients(mixture);
    test_gradients(mixture_clamped);
    test_gradients(mixture_biased);
    test_gradients(mixture_shared);
    test_gradients(latent_whole);
    test_faults(olmo2_small, OX_UNIT_BLOCK);
    test_faults(gemma3_small, OX_UNIT_BLOCK);
    test_faults(granite_small, OX_UNIT_BLOCK);
    test_faults(cohere2_small, OX_UNIT_BLOCK);
    for (int i = 0; i < ADAPTED_COUNT; i++) {
        test_faults(adapted[i].text, OX_UNIT_BLOCK);
        if (adapted[i].text != adapted_first && adapted[i].text != adapted_dora) { /* whose lengths have no gradient */
            test_gradients(adapted[i].text);
        }
    }
    return test_end();
}
