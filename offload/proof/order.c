/* The proof of a plan, from the task list alone. This half is about order and space; offload/proof/effects.c shows that
 * the result is a training step.
 *
 * "a before b" means: a has ended when b starts, whatever the lanes' speeds. It holds between consecutive tasks of
 * a lane and along dependencies. For every task the checker knows, per lane, the latest task that is before
 * it; as lanes are FIFO this vector decides any pair (vector clocks: Fidge 1988, Mattern 1989). */
#include "base/bytes.h"
#include "offload/proof/proof_internal.h"
#include "offload/proof/sizes.h"

#include <stdlib.h>
#include <string.h>

struct clock {
    uint32_t past[OX_LANE_COUNT]; /* tasks of that lane with index < past are over */
};

/* First and last use of a buffer in each lane, as 1 + task index; 0 = none. */
struct span {
    uint32_t first[OX_LANE_COUNT], last[OX_LANE_COUNT];
    uint32_t written_by;
    uint32_t read_by[OX_LANE_COUNT]; /* since that write */
};

struct checker {
    const struct ox_plan *plan;
    const struct ox_plan_input *in;
    struct clock *clocks; /* per task */
    struct span *spans;   /* per buffer */
    uint32_t *order;      /* buffers of one arena by first use, resident ones first */
    uint32_t *next_mb;    /* per stage: forward, then backward */
};

enum ox_status ox_proof_fault(const struct ox_plan *plan, uint32_t task_idx, const char *what) {
    const struct ox_task *const task = &plan->tasks[task_idx];
    return ox_fail(OX_E_CONFIG, "plan is wrong at task %u (%s, unit %d, micro-batch %d): %s; please report this",
                   task_idx, ox_task_name(task), (int)ox_task_number(task),
                   (int)task->mb_idx, what);
}

static bool before(const struct checker *c, uint32_t a, uint32_t b) {
    return c->clocks[b].past[c->plan->tasks[a].lane] > a;
}

static void merge(struct clock *into, const struct clock *from) {
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        into->past[i] = from->past[i] > into->past[i] ? from->past[i] : into->past[i];
    }
}

/* Checks that the plan and every buffer are of a known kind, and each buffer in a known tier. */
static enum ox_status check_kinds(const struct ox_plan *plan) {
    if ((unsigned)plan->kind > OX_PLAN_EVAL_AFTER_STEP) {
        return ox_fail(OX_E_CONFIG, "plan is wrong: it is of an unknown kind; please report this");
    }
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        const struct ox_buf *const buf = &plan->bufs[i];
        if (buf->kind >= OX_BUF_KIND_COUNT || buf->tier >= OX_TIER_COUNT) {
            return ox_fail(OX_E_CONFIG, "plan is wrong: buffer %u is of no known kind or tier; please report this", i);
        }
    }
    return OX_OK;
}

/* Checks that every dependency is on an earlier task. As lanes are FIFO, there can then be no deadlock. */
static enum ox_status check_order(struct checker *c) {
    const struct ox_plan *const plan = c->plan;
    uint32_t last_of_lane[OX_LANE_COUNT] = {0}; /* 1 + task index */
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const struct ox_task *const task = &plan->tasks[i];
        if (task->kind >= OX_TASK_KIND_COUNT || task->lane >= OX_LANE_COUNT || task->move >= OX_MOVE_COUNT) {
            return ox_fail(OX_E_CONFIG, "plan is wrong at task %u: unknown kind or lane; please report this", i);
        }
        struct clock *const clock = &c->clocks[i];
        memset(clock, 0, sizeof *clock);
        for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
            const uint32_t dep = lane == task->lane ? last_of_lane[lane] : task->deps[lane];
            if (dep == 0) {
                continue;
            }
            if (dep > i || plan->tasks[dep - 1].lane != lane) {
                return ox_proof_fault(plan, i, "depends on a task that is not before it in its lane");
            }
            merge(clock, &c->clocks[dep - 1]);
            clock->past[lane] = clock->past[lane] > dep ? clock->past[lane] : dep;
        }
        last_of_lane[task->lane] = i + 1;
    }
    return OX_OK;
}

/* Whether the buffer brings its content from the step before; other resident buffers only keep their place. */
static bool is_carried(const struct ox_plan *plan, uint32_t buf_idx) {
    const struct ox_buf *const buf = &plan->bufs[buf_idx];
    const bool gradient = buf->kind == OX_BUF_GRAD && plan->written_buf != OX_NONE; /* for the carried update */
    return buf->resident && (buf->kind == OX_BUF_WEIGHTS || buf->kind == OX_BUF_STATE || gradient ||
                             buf->kind == OX_BUF_RESIDUAL ||
                             buf->kind == OX_BUF_REPLACED || /* for a state that follows its weights */
                             buf_idx == plan->const_buf || buf_idx == plan->batch_host_buf);
}

static enum ox_status check_use(struct checker *c, uint32_t task_idx, const struct ox_use *use) {
    const struct ox_plan *const plan = c->plan;
    if (use->buf_idx >= plan->buf_count) {
        return ox_proof_fault(plan, task_idx, "uses a buffer that does not exist");
    }
    struct span *const span = &c->spans[use->buf_idx];
    const uint8_t lane = plan->tasks[task_idx].lane;
    if (span->written_by == 0 && use->read && !is_carried(plan, use->buf_idx)) {
        return ox_proof_fault(plan, task_idx, "reads a buffer that nothing has filled");
    }
    if (span->written_by != 0 && span->written_by - 1 != task_idx && !before(c, span->written_by - 1, task_idx)) {
        return ox_proof_fault(plan, task_idx, "uses a buffer that may not have arrived");
    }
    for (int i = 0; use->write && i < OX_LANE_COUNT; i++) {
        if (span->read_by[i] != 0 && span->read_by[i] - 1 != task_idx && !before(c, span->read_by[i] - 1, task_idx)) {
            return ox_proof_fault(plan, task_idx, "overwrites a buffer that may still be read");
        }
        span->read_by[i] = 0;
    }
    if (use->write) {
        span->written_by = task_idx + 1;
    } else {
        span->read_by[lane] = task_idx + 1;
    }
    span->first[lane] = span->first[lane] == 0 ? task_idx + 1 : span->first[lane];
    span->last[lane] = task_idx + 1;
    return OX_OK;
}

static enum ox_status check_uses(struct checker *c) {
    for (uint32_t i = 0; i < c->plan->task_count; i++) {
        const struct ox_task *const task = &c->plan->tasks[i];
        if (task->use_count > OX_TASK_USES_MAX) {
            return ox_proof_fault(c->plan, i, "has too many uses");
        }
        for (int j = 0; j < task->use_count; j++) {
            const enum ox_status status = check_use(c, i, &task->uses[j]);
            if (status != OX_OK) {
                return status;
            }
        }
    }
    return OX_OK;
}

/* ---- space ------------------------------------------------------------------------------------ */

static uint32_t first_use(const struct span *span) {
    uint32_t first = UINT32_MAX;
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        if (span->first[i] != 0 && span->first[i] - 1 < first) {
            first = span->first[i] - 1;
        }
    }
    return first;
}

/* Checks two buffers that share bytes: all uses of the earlier must be over before the first of the later. */
static enum ox_status check_pair(const struct checker *c, uint32_t a, uint32_t b) {
    const uint32_t a_first = first_use(&c->spans[a]), b_first = first_use(&c->spans[b]);
    if (c->plan->bufs[a].resident || c->plan->bufs[b].resident) {
        return ox_proof_fault(c->plan, a_first == UINT32_MAX ? (b_first == UINT32_MAX ? 0 : b_first) : a_first,
                     "shares bytes with a buffer that must survive the step");
    }
    if (a_first == UINT32_MAX || b_first == UINT32_MAX) {
        return OX_OK;
    }
    const struct span *const early = &c->spans[a_first < b_first ? a : b];
    const struct span *const late = &c->spans[a_first < b_first ? b : a];
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        for (int j = 0; j < OX_LANE_COUNT; j++) {
            if (early->last[i] != 0 && late->first[j] != 0 && !before(c, early->last[i] - 1, late->first[j] - 1)) {
                return ox_proof_fault(c->plan, late->first[j] - 1, "takes space that may still be in use");
            }
        }
    }
    return OX_OK;
}

/* An arena cut into cells at every begin and end of a buffer. `owners`: the buffer that had each cell last. */
struct cells {
    uint64_t *begins;
    uint32_t *owners;
    uint32_t count;
};

static int by_value(const void *a, const void *b) {
    const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

static int by_first_use(const void *a, const void *b, void *context) {
    const struct checker *const c = context;
    const uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    const bool left_stays = c->plan->bufs[left].resident, right_stays = c->plan->bufs[right].resident;
    const uint32_t left_first = left_stays ? 0 : first_use(&c->spans[left]);
    const uint32_t right_first = right_stays ? 0 : first_use(&c->spans[right]);
    return left_stays != right_stays ? right_stays - left_stays
                                     : left_first < right_first ? -1 : left_first > right_first;
}

static uint32_t cell_at(const struct cells *cells, uint64_t offset) {
    uint32_t low = 0, past = cells->count;
    while (past - low > 1) {
        const uint32_t middle = low + (past - low) / 2;
        *(cells->begins[middle] <= offset ? &low : &past) = middle;
    }
    return low;
}

/* Buffers take their bytes in the order of their first use, each from the last owner. "All uses are over before the
 * first use of the next" is transitive, so checking each pair of successive owners proves all pairs. */
static enum ox_status check_owners(struct checker *c, const struct cells *cells, uint32_t count) {
    memset(cells->owners, 0xff, cells->count * sizeof *cells->owners); /* OX_NONE */
    for (uint32_t i = 0; i < count; i++) {
        const struct ox_buf *const buf = &c->plan->bufs[c->order[i]];
        uint32_t checked = OX_NONE;
        for (uint32_t j = cell_at(cells, buf->offset);
             j < cells->count && cells->begins[j] < buf->offset + buf->bytes; j++) {
            const uint32_t owner = cells->owners[j];
            cells->owners[j] = c->order[i];
            const enum ox_status status = owner == OX_NONE || owner == checked ? OX_OK
                                                                              : check_pair(c, owner, c->order[i]);
            if (status != OX_OK) {
                return status;
            }
            checked = owner;
        }
    }
    return OX_OK;
}

static enum ox_status check_space(struct checker *c, uint32_t count) {
    struct cells cells = {.begins = calloc(2 * (size_t)count + 1, sizeof *cells.begins),
                          .owners = calloc(2 * (size_t)count + 1, sizeof *cells.owners)};
    enum ox_status status = OX_OK;
    if (cells.begins == NULL || cells.owners == NULL) {
        status = ox_fail(OX_E_NOMEM, "plan checker: no memory for %u buffers", count);
        goto fail;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct ox_buf *const buf = &c->plan->bufs[c->order[i]];
        cells.begins[2 * i] = buf->offset;
        cells.begins[2 * i + 1] = buf->offset + buf->bytes;
    }
    qsort(cells.begins, 2 * (size_t)count, sizeof *cells.begins, by_value);
    for (uint32_t i = 0; i < 2 * count; i++) {
        if (cells.count == 0 || cells.begins[cells.count - 1] != cells.begins[i]) {
            cells.begins[cells.count++] = cells.begins[i];
        }
    }
    qsort_r(c->order, count, sizeof *c->order, by_first_use, c);
    status = check_owners(c, &cells, count);
fail:
    free(cells.owners);
    free(cells.begins);
    return status;
}

/* Checks that an arena is exactly as large as its content: resident buffers at the front, behind them the other buffers
 * of a step, and between steps the scratch of the host. */
static enum ox_status check_peak(const struct checker *c, enum ox_tier tier, uint64_t end, uint64_t resident) {
    const struct ox_plan *const plan = c->plan;
    const uint64_t with_scratch = tier == OX_TIER_HOST ? resident + ox_proof_scratch_bytes(c->in) : 0;
    const uint64_t peak = ox_max_u64(end, with_scratch);
    if (plan->peak_bytes[tier] != peak || plan->resident_bytes[tier] != resident) {
        return ox_fail(OX_E_CONFIG, "plan is wrong: it states %llu bytes of %s memory and %llu between steps, and "
                       "needs %llu and %llu; please report this", (unsigned long long)plan->peak_bytes[tier],
                       ox_tier_name(tier), (unsigned long long)plan->resident_bytes[tier], (unsigned long long)peak,
                       (unsigned long long)resident);
    }
    return OX_OK;
}

static enum ox_status check_arena(struct checker *c, enum ox_tier tier, uint64_t budget_bytes) {
    const struct ox_plan *const plan = c->plan;
    char need[OX_SIZE_TEXT_BYTES], have[OX_SIZE_TEXT_BYTES];
    if (plan->peak_bytes[tier] > budget_bytes) {
        return ox_fail(OX_E_CONFIG, "plan needs %s of %s memory, the budget is %s",
                       ox_size_text(plan->peak_bytes[tier], need), ox_tier_name(tier),
                       ox_size_text(budget_bytes, have));
    }
    uint32_t count = 0;
    uint64_t end = 0, resident = 0;
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        const struct ox_buf *const buf = &plan->bufs[i];
        if (buf->tier != tier || (first_use(&c->spans[i]) == UINT32_MAX && !buf->resident)) {
            continue;
        }
        const uint64_t past = buf->resident ? plan->resident_bytes[tier] : plan->peak_bytes[tier];
        if (buf->offset % OX_IO_ALIGN_BYTES != 0 || buf->offset + buf->bytes > past) {
            return ox_fail(OX_E_CONFIG, "plan is wrong: buffer %u (%s) lies outside the %s arena; please report this",
                           i, ox_buf_name((enum ox_buf_kind)buf->kind), ox_tier_name(tier));
        }
        end = ox_max_u64(end, buf->offset + buf->bytes);
        resident += buf->resident ? buf->bytes : 0;
        c->order[count++] = i;
    }
    const enum ox_status status = check_peak(c, tier, end, resident);
    return status == OX_OK ? check_space(c, count) : status;
}

/* ---- work ------------------------------------------------------------------------------------- */

/* How many updates and norms the list has had so far. Carried updates follow the order of forward. So do the step's own
 * updates, which come after the norm; if steps overlap, they come before it, in the order of backward. */
struct update_order {
    uint32_t carried_count, own_count, norm_count;
    uint32_t late_count; /* of states that follow their weights */
    uint32_t own_place; /* of the last own update */
};

/* How many units the rank updates that forward meets before this one. */
static uint32_t place_of(const struct checker *c, uint32_t unit_idx) {
    const struct ox_plan_unit *const units = c->in->model.units;
    uint32_t place = 0;
    for (uint32_t i = 0; i < c->plan->unit_count; i++) {
        place += ox_proof_updates(c->in, i) && units[i].update_idx < units[unit_idx].update_idx;
    }
    return place;
}

static bool update_in_order(const struct checker *c, const struct ox_task *task, struct update_order *order) {
    order->norm_count += task->kind == OX_TASK_NORM;
    if (task->kind != OX_TASK_UPDATE) {
        return true;
    }
    if (task->unit_idx >= c->plan->unit_count) {
        return false;
    }
    const uint32_t place = place_of(c, task->unit_idx);
    if ((task->when & OX_FACT_STATE_DUE) != 0) {
        order->late_count++;
        return task->carried && order->norm_count == 0;
    }
    if (task->carried) {
        return place == order->carried_count++ && order->norm_count == 0;
    }
    const uint32_t nth = order->own_count++, before = order->own_place;
    order->own_place = place;
    return c->in->placement.overlap ? (nth == 0 || place < before) && order->norm_count == 0
                                    : place == nth && order->norm_count == 1;
}

static enum ox_status check_update_counts(const struct checker *c, const struct update_order *order) {
    const struct ox_plan *const plan = c->plan;
    const bool train = plan->kind == OX_PLAN_TRAIN, overlap = c->in->placement.overlap;
    const uint32_t all = ox_proof_update_count(c->in), carried = overlap && plan->kind != OX_PLAN_EVAL ? all : 0;
    uint32_t own = train && !overlap ? all : 0;
    uint32_t late = 0;
    for (uint32_t i = 0; i < plan->unit_count && overlap; i++) {
        own += train && ox_proof_holds(c->in, i) && ox_proof_is_speculative(c->in, i);
        late += carried > 0 && ox_proof_holds(c->in, i) && ox_proof_goes_ahead(c->in, i);
    }
    if (order->carried_count != carried || order->own_count != own || order->late_count != late ||
        order->norm_count != train) {
        return ox_fail(OX_E_CONFIG, "plan is wrong: of %u units it updates %u for the step before, the state of %u "
                       "more, and %u for this one; please report this", plan->unit_count, order->carried_count,
                       order->late_count, order->own_count);
    }
    return OX_OK;
}

/* Checks that every stage meets every micro-batch once, in ascending order, because gradients are summed in that order
 * in every placement. */
static enum ox_status check_work(struct checker *c) {
    const struct ox_plan *const plan = c->plan;
    struct update_order order = {0};
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const struct ox_task *const task = &plan->tasks[i];
        const bool backward = task->kind == OX_TASK_BACKWARD;
        if (backward || task->kind == OX_TASK_FORWARD || task->kind == OX_TASK_HEAD) {
            if (task->stage_idx >= plan->stage_count) {
                return ox_proof_fault(plan, i, "names a stage that does not exist");
            }
            uint32_t *const next = &c->next_mb[task->stage_idx + (backward ? plan->stage_count : 0)];
            *next += task->phase == 0; /* of the others, effects.c shows that they follow */
            if (task->mb_idx + 1 != *next) {
                return ox_proof_fault(plan, i, "meets its micro-batches out of order");
            }
        }
        if (!update_in_order(c, task, &order)) {
            return ox_proof_fault(plan, i, "updates a unit out of order or before the norm is known");
        }
    }
    const uint32_t first_back = ox_proof_first_back(c->in);
    for (uint32_t i = 0; i < 2 * plan->stage_count; i++) {
        const bool backward = i >= plan->stage_count;
        const enum ox_plan_stage_kind kind = c->in->model.stages[i % plan->stage_count].kind;
        const bool back = plan->kind == OX_PLAN_TRAIN && kind != OX_PLAN_HEAD &&
                          i % plan->stage_count >= first_back;
        const bool expected = ox_proof_computes(c->in, i % plan->stage_count) && (!backward || back);
        if (c->next_mb[i] != (expected ? plan->micro_batches : 0)) {
            return ox_fail(OX_E_CONFIG, "plan is wrong: stage %u has %u of %u micro-batches %s; please report this",
                           i % plan->stage_count, c->next_mb[i], plan->micro_batches,
                           backward ? "backward" : "forward");
        }
    }
    return check_update_counts(c, &order);
}

static const char *generations_text(uint32_t generations) {
    return generations == 1 ? "one generation" : generations == 2 ? "two generations" : "three generations";
}

static enum ox_status check_all(struct checker *c) {
    const struct ox_plan_budget *const budget = &c->in->budget;
    enum ox_status status = check_kinds(c->plan);
    OX_THEN(status, check_order(c));
    OX_THEN(status, check_uses(c));
    OX_THEN(status, check_arena(c, OX_TIER_DEVICE, budget->unified ? 0 : budget->device_bytes));
    OX_THEN(status, check_arena(c, OX_TIER_HOST, budget->host_bytes));
    if (status == OX_OK && c->plan->peak_bytes[OX_TIER_NVME] > budget->nvme_bytes) {
        char need[OX_SIZE_TEXT_BYTES], have[OX_SIZE_TEXT_BYTES];
        status = ox_fail(OX_E_CONFIG, "plan needs %s of NVMe (%s of the state, and the spool), the budget is %s",
                         ox_size_text(c->plan->peak_bytes[OX_TIER_NVME], need),
                         generations_text(ox_proof_generations(c->in)),
                         ox_size_text(budget->nvme_bytes, have));
    }
    OX_THEN(status, check_work(c));
    OX_THEN(status, ox_proof_check_sizes(c->plan, c->in));
    return status == OX_OK ? ox_proof_check_effects(c->plan, c->in) : status;
}

/* ---- two plans of one input --------------------------------------------------------------------- */

static bool has_resident(const struct ox_plan *plan, const struct ox_buf *wanted) {
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        const struct ox_buf *const buf = &plan->bufs[i];
        if (buf->resident && buf->kind == wanted->kind && buf->tier == wanted->tier &&
            buf->unit_idx == wanted->unit_idx && buf->stage_idx == wanted->stage_idx &&
            buf->grad_idx == wanted->grad_idx && buf->bytes == wanted->bytes && buf->offset == wanted->offset) {
            return true;
        }
    }
    return false;
}

static bool same_offset(const struct ox_plan *a, uint32_t a_idx, const struct ox_plan *b, uint32_t b_idx) {
    return a_idx < a->buf_count && b_idx < b->buf_count && a->bufs[a_idx].offset == b->bufs[b_idx].offset;
}

static bool is_kept(const struct ox_plan *plan, uint32_t buf_idx) {
    const struct ox_buf *const buf = &plan->bufs[buf_idx];
    return buf->resident && buf->tier != OX_TIER_NVME &&
           (buf->kind == OX_BUF_WEIGHTS || buf->kind == OX_BUF_STATE || buf->kind == OX_BUF_GRAD ||
            buf_idx == plan->const_buf || buf_idx == plan->batch_host_buf);
}

enum ox_status ox_proof_check_pair(const struct ox_plan *train, const struct ox_plan *eval) {
    bool alike = train->unit_count == eval->unit_count && train->micro_batches == eval->micro_batches &&
                 train->spool_count == eval->spool_count &&
                 same_offset(train, train->const_buf, eval, eval->const_buf) &&
                 same_offset(train, train->batch_host_buf, eval, eval->batch_host_buf);
    for (uint32_t i = 0; i < eval->buf_count && alike; i++) {
        alike = !eval->bufs[i].resident || eval->bufs[i].tier == OX_TIER_NVME || has_resident(train, &eval->bufs[i]);
    }
    for (uint32_t i = 0; i < train->buf_count && alike; i++) {
        alike = !is_kept(train, i) || has_resident(eval, &train->bufs[i]);
    }
    for (uint32_t i = 0; i < train->spool_count && alike; i++) {
        alike = eval->spool_bytes[i] == 0 || eval->spool_bytes[i] == train->spool_bytes[i];
    }
    return alike ? OX_OK : ox_fail(OX_E_CONFIG, "plan is wrong: evaluation does not find what training leaves; please "
                                   "report this");
}

/* ---- all of it ---------------------------------------------------------------------------------- */

/* Comes first, because the other checks allocate by these counts and index the input's lists by them. */
static enum ox_status check_counts(const struct ox_plan *plan, const struct ox_plan_model *model) {
    const bool same = plan->unit_count == model->unit_count && plan->stage_count == model->stage_count &&
                      plan->grad_count == model->grad_count && plan->micro_batches == model->micro_batches;
    return same ? OX_OK : ox_fail(OX_E_CONFIG, "plan is wrong: it has %u units, %u stages, %u gradients and %u "
                                  "micro-batches, and the model %u, %u, %u and %u; please report this",
                                  plan->unit_count, plan->stage_count, plan->grad_count, plan->micro_batches,
                                  model->unit_count, model->stage_count, model->grad_count, model->micro_batches);
}

enum ox_status ox_proof_check(const struct ox_plan *plan, const struct ox_plan_input *input) {
    const enum ox_status counts = check_counts(plan, &input->model);
    if (counts != OX_OK) {
        return counts;
    }
    struct checker c = {.plan = plan, .in = input};
    c.clocks = calloc(plan->task_count + 1u, sizeof *c.clocks);
    c.spans = calloc(plan->buf_count + 1u, sizeof *c.spans);
    c.order = calloc(plan->buf_count + 1u, sizeof *c.order);
    c.next_mb = calloc(2 * (size_t)plan->stage_count, sizeof *c.next_mb);
    const enum ox_status status =
        c.clocks == NULL || c.spans == NULL || c.order == NULL || c.next_mb == NULL
            ? ox_fail(OX_E_NOMEM, "plan checker: no memory for %u tasks", plan->task_count)
            : check_all(&c);
    free(c.next_mb);
    free(c.order);
    free(c.spans);
    free(c.clocks);
    return status;
}
