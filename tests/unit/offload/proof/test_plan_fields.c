/* Every field of a plan is the builder's word, which the proof does not take: with any one of them wrong, in the plan,
 * a buffer, a task, or what the ranks of a step agree on, the proof refuses. A field whose value means nothing where it
 * stands is named below, with the reason. */
#include "base/bytes.h"
#include "offload/proof/proof.h"
#include "tests/kit/plan/plan_sample.h"
#include "tests/kit/test.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 40, EACH = 8 /* buffers, and tasks, of a plan */ };

struct field {
    const char *name;
    size_t offset, bytes;
    bool is_flag;
};

#define FIELD(type, member) {#member, offsetof(struct type, member), sizeof(((struct type *)0)->member), false}
#define FLAG(type, member) {#member, offsetof(struct type, member), sizeof(bool), true}

static const struct field plan_fields[] = {
    FIELD(ox_plan, kind),           FIELD(ox_plan, micro_batches),  FIELD(ox_plan, unit_count),
    FIELD(ox_plan, grad_count),     FIELD(ox_plan, stored_weight_bytes), FIELD(ox_plan, loss_buf),
    FIELD(ox_plan, loss_host_buf),  FIELD(ox_plan, norm_buf),       FIELD(ox_plan, const_buf),
    FIELD(ox_plan, stream_buf),     FIELD(ox_plan, counts_buf),     FIELD(ox_plan, nonfinite_buf),
    FIELD(ox_plan, written_buf),    FIELD(ox_plan, batch_host_buf), FIELD(ox_plan, spool_count),
    FIELD(ox_plan, stage_count)};

static const struct field buf_fields[] = {
    FIELD(ox_buf, bytes),    FIELD(ox_buf, offset),   FIELD(ox_buf, first_task_idx), FIELD(ox_buf, last_task_idx),
    FIELD(ox_buf, unit_idx), FIELD(ox_buf, stage_idx), FIELD(ox_buf, grad_idx), FIELD(ox_buf, kind),
    FIELD(ox_buf, tier),
    FLAG(ox_buf, resident)};

static const struct field task_fields[] = {
    FIELD(ox_task, kind),   FIELD(ox_task, lane),      FIELD(ox_task, move),
    FIELD(ox_task, axis),   FLAG(ox_task, last),
    FLAG(ox_task, carried), FLAG(ox_task, begins), FIELD(ox_task, use_count), FIELD(ox_task, unit_idx),
    FIELD(ox_task, stage_idx),
    FIELD(ox_task, grad_idx), FIELD(ox_task, mb_idx),  FIELD(ox_task, slot),     FIELD(ox_task, bytes),
    FIELD(ox_task, asks_stage), FIELD(ox_task, asks), FIELD(ox_task, mb_first), FIELD(ox_task, mb_past)};

static const struct field use_fields[] = {FIELD(ox_use, buf_idx), FIELD(ox_use, role), FIELD(ox_use, nth),
                                          FLAG(ox_use, read), FLAG(ox_use, write)};

static uint64_t made, found;

/* ---- what means nothing where it stands -------------------------------------------------------------- */

/* Buffers that the executor knows by name matter to plans with a task that uses them. */
static bool is_used(const struct ox_plan *plan, uint64_t buf_idx) {
    bool used = false;
    for (uint32_t i = 0; i < plan->task_count && !used; i++) {
        for (uint32_t nth = 0; nth < plan->tasks[i].use_count && !used; nth++) {
            used = plan->tasks[i].uses[nth].buf_idx == buf_idx;
        }
    }
    return used;
}

static bool is_idle_of_plan(const struct plan_sample *s, const struct ox_plan *plan, const char *field,
                            uint64_t kept, uint64_t value) {
    const bool evaluates = plan->kind != OX_PLAN_TRAIN; /* without overlap no step has anything pending */
    const bool by_name = strcmp(field, "stream_buf") == 0 || strcmp(field, "counts_buf") == 0 ||
                         strcmp(field, "nonfinite_buf") == 0 || strcmp(field, "written_buf") == 0;
    const bool is_kind = strcmp(field, "kind") == 0;
    return (is_kind && evaluates && !s->in.placement.overlap && value == OX_PLAN_EVAL_AFTER_STEP) ||
           (by_name && !is_used(plan, kept));
}

/* When a buffer is first and last used is for people, who also read what a buffer that does not stay belongs to. What
 * lies on drives has no place in memory. Whose a gradient is that an evaluation does not touch is found where its plan
 * is compared with that of the step. */
static bool is_idle_of_buf(const struct ox_plan *plan, const struct ox_buf *buf, const char *field, uint64_t kept) {
    const bool is_grad = buf->kind == OX_BUF_GRAD;
    return strcmp(field, "first_task_idx") == 0 || strcmp(field, "last_task_idx") == 0 ||
           (strcmp(field, "unit_idx") == 0 && (!buf->resident || kept == OX_NONE || is_grad)) ||
           strcmp(field, "stage_idx") == 0 || /* activations do not stay */
           (strcmp(field, "grad_idx") == 0 &&
            (!buf->resident || !is_grad || !is_used(plan, (uint64_t)(buf - plan->bufs)))) ||
           (buf->tier == OX_TIER_NVME && (strcmp(field, "offset") == 0 || strcmp(field, "resident") == 0));
}

static bool is_idle_of_task(const struct ox_task *task, const char *field) {
    return (strcmp(field, "move") == 0 && task->kind != OX_TASK_MOVE) ||
           (strcmp(field, "last") == 0 && (task->kind != OX_TASK_MOVE || task->grad_idx == OX_NONE));
}

/* Another copy of the same may do as well; test_plan.c knows which of them do not. */
static bool is_idle_of_use(const struct ox_plan *plan, const char *field, uint64_t kept, uint64_t value) {
    return strcmp(field, "buf_idx") == 0 && value < plan->buf_count && plan->bufs[value].kind == plan->bufs[kept].kind;
}

/* ---- faults ------------------------------------------------------------------------------------------ */

struct record {
    enum { PLAN, BUF, TASK, USE } what;
    const void *at; /* in `plan` */
    const struct field *fields;
    size_t field_count;
};

static bool is_idle(const struct plan_sample *s, const struct ox_plan *plan, const struct record *record,
                    const char *field, uint64_t kept, uint64_t value) {
    return record->what == PLAN   ? is_idle_of_plan(s, plan, field, kept, value)
           : record->what == BUF  ? is_idle_of_buf(plan, record->at, field, kept)
           : record->what == TASK ? is_idle_of_task(record->at, field)
                                  : is_idle_of_use(plan, field, kept, value);
}

static void refuse(const struct plan_sample *s, const struct ox_plan *plan, const struct record *record,
                   const struct field *field, uint64_t kept, uint64_t value) {
    made++;
    const enum ox_status status = ox_proof_check(plan, &s->in);
    CHECK(status == OX_OK || status == OX_E_CONFIG); /* no want of memory: a wrong count is seen before it is used */
    if (status != OX_OK) {
        found++;
    } else if (is_idle(s, plan, record, field->name, kept, value)) {
        made--;
    } else {
        static const char *const names[] = {"the plan", "a buffer", "a task", "a use"};
        printf("accepted: %s of %s is %llu, not %llu\n", field->name, names[record->what], (unsigned long long)value,
               (unsigned long long)kept);
    }
}

/* Each field of the record gets each wrong value in turn. */
static void change(const struct plan_sample *s, struct ox_plan *plan, const struct record *record) {
    for (size_t i = 0; i < record->field_count; i++) {
        const struct field *const field = &record->fields[i];
        char *const at = (char *)record->at + field->offset;
        const uint64_t ones = UINT64_MAX >> (64 - 8 * field->bytes);
        uint64_t kept = 0;
        memcpy(&kept, at, field->bytes); /* little-endian, as every machine that this program runs on */
        const uint64_t values[] = {kept == 0, kept + 1, kept - 1, 0, ones, ones - 1};
        for (size_t nth = 0; nth < (field->is_flag ? 1 : sizeof values / sizeof *values); nth++) {
            const uint64_t value = values[nth] & ones;
            if (value != kept) {
                memcpy(at, &value, field->bytes);
                refuse(s, plan, record, field, kept, value);
                memcpy(at, &kept, field->bytes);
            }
        }
    }
}

#define RECORD(what, at, list) {what, at, list, sizeof list / sizeof *list}

static void change_all(const struct plan_sample *s, struct ox_plan *plan, uint64_t seed) {
    uint64_t counter = 9000;
    change(s, plan, &(struct record)RECORD(PLAN, plan, plan_fields));
    for (int i = 0; i < EACH; i++) {
        struct ox_buf *const buf = &plan->bufs[plan_sample_number(seed, &counter, plan->buf_count)];
        struct ox_task *const task = &plan->tasks[plan_sample_number(seed, &counter, plan->task_count)];
        change(s, plan, &(struct record)RECORD(BUF, buf, buf_fields));
        change(s, plan, &(struct record)RECORD(TASK, task, task_fields));
        if (task->use_count > 0) {
            struct ox_use *const use = &task->uses[plan_sample_number(seed, &counter, task->use_count)];
            change(s, plan, &(struct record)RECORD(USE, use, use_fields));
        }
    }
    struct ox_use *const use = &plan->tasks[0].uses[0];
    const uint32_t kept = use->buf_idx;
    use->buf_idx = plan->buf_count; /* the first that does not exist is not read */
    CHECK(ox_proof_check(plan, &s->in) != OX_OK && strstr(ox_error_text(), "a buffer that does not exist") != NULL);
    use->buf_idx = kept;
    REQUIRE_OK(ox_proof_check(plan, &s->in));
}

/* Counts the refusals that say `reason`. Some changes are refused for what follows from them, which is seen first. */
static void count_reason(const struct plan_sample *s, const struct ox_plan *plan, const char *reason, uint64_t *count) {
    CHECK(ox_proof_check(plan, &s->in) == OX_E_CONFIG);
    *count += strstr(ox_error_text(), reason) != NULL;
}

/* Counts that the proof allocates by and indexes the input's lists by are compared before that. */
static void change_counts(const struct plan_sample *s, struct ox_plan *plan) {
    uint32_t *const counts[] = {&plan->unit_count, &plan->stage_count, &plan->grad_count, &plan->micro_batches};
    for (size_t i = 0; i < 2 * sizeof counts / sizeof *counts; i++) {
        uint32_t *const count = counts[i / 2];
        const uint32_t kept = *count;
        uint64_t refused = 0;
        *count = i % 2 == 0 ? UINT32_MAX : kept + 1;
        count_reason(s, plan, "gradients and", &refused);
        CHECK(refused == 1);
        *count = kept;
    }
}

static uint64_t homes_changed, wrong_homes, wrong_updates, late_counts;

/* A plan for other homes than its input has, and an update of the host on the device. */
static void change_places(const struct plan_sample *s, struct ox_plan *plan) {
    for (uint32_t i = 0; i < plan->unit_count; i++) {
        struct ox_homes *const homes = &s->table.shards[i].homes;
        const struct ox_homes kept = *homes;
        if (kept.weights == kept.state && kept.state == kept.grad && kept.state != OX_TIER_NVME) {
            const uint8_t tier = kept.state == OX_TIER_HOST ? OX_TIER_DEVICE : OX_TIER_HOST;
            *homes = (struct ox_homes){tier, tier, tier};
            count_reason(s, plan, "resident buffers are not what the homes say", &wrong_homes);
            CHECK(strstr(ox_error_text(), "at task") == NULL); /* it is seen before the tasks are followed */
            homes_changed++;
            *homes = kept;
        }
    }
    for (uint32_t i = 0; i < plan->task_count; i++) {
        struct ox_task *const task = &plan->tasks[i];
        if (task->kind == OX_TASK_UPDATE && task->lane == OX_LANE_ADAM) {
            task->lane = OX_LANE_COMPUTE;
            count_reason(s, plan, "updates on the device what lives elsewhere", &wrong_updates);
            task->lane = OX_LANE_ADAM;
        }
    }
}

/* ---- what comes too late ------------------------------------------------------------------------------ */

/* Lets a task change places with the next one, unless the next one waits for it. */
static bool swap_next(struct ox_plan *plan, uint32_t task_idx) {
    struct ox_task *const task = &plan->tasks[task_idx], kept = *task;
    if (task[1].deps[kept.lane] == task_idx + 1) {
        return false;
    }
    task[0] = task[1];
    task[1] = kept;
    for (uint32_t i = task_idx; i < plan->task_count; i++) {
        for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
            uint32_t *const dep = &plan->tasks[i].deps[lane];
            *dep = *dep == task_idx + 1 ? task_idx + 2 : *dep == task_idx + 2 ? task_idx + 1 : *dep;
        }
    }
    return true;
}

/* Moves the copy of the carried counts behind the norm, with which a step that is not finite ends: a step that is
 * finite would still end as it should. */
static void delay_counts(const struct plan_sample *s, struct ox_plan *plan, uint64_t *refused) {
    struct ox_task *const kept = malloc(plan->task_count * sizeof *kept);
    uint32_t at = 0;
    CHECK(kept != NULL);
    if (kept == NULL) {
        return;
    }
    memcpy(kept, plan->tasks, plan->task_count * sizeof *kept);
    while (at < plan->task_count && plan->tasks[at].move != OX_MOVE_NONFINITE) {
        at++;
    }
    const bool carries = at < plan->task_count && plan->tasks[at].carried;
    while (carries && plan->tasks[at].kind != OX_TASK_NORM && swap_next(plan, at)) {
        at += plan->tasks[at].kind != OX_TASK_NORM;
    }
    if (carries) {
        count_reason(s, plan, "leaves the update of the step before open where the step is not finite", refused);
    }
    memcpy(plan->tasks, kept, plan->task_count * sizeof *kept);
    free(kept);
}

/* ---- a step and the evaluation that follows ---------------------------------------------------------- */

static void refuse_pair(const struct ox_plans *plans, const char *what) {
    made++;
    if (ox_proof_check_pair(plans->train, plans->eval) != OX_OK) {
        found++;
    } else {
        printf("accepted: an evaluation with %s\n", what);
    }
}

static void change_pair(const struct ox_plans *plans) {
    struct ox_plan *const eval = plans->eval, *const train = plans->train;
    static const struct field fields[] = {FIELD(ox_plan, unit_count), FIELD(ox_plan, micro_batches),
                                          FIELD(ox_plan, const_buf), FIELD(ox_plan, batch_host_buf),
                                          FIELD(ox_plan, spool_count)};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        uint32_t *const at = (uint32_t *)((char *)eval + fields[i].offset), kept = *at;
        *at = OX_NONE;
        refuse_pair(plans, fields[i].name);
        *at = kept;
    }
    uint64_t *const offsets[] = {&eval->bufs[eval->const_buf].offset, &eval->bufs[eval->batch_host_buf].offset};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        *offsets[i] += OX_IO_ALIGN_BYTES;
        refuse_pair(plans, "constants or batches elsewhere");
        *offsets[i] -= OX_IO_ALIGN_BYTES;
    }
    for (uint32_t i = 0; i < train->buf_count; i++) {
        struct ox_buf *const buf = &train->bufs[i];
        const bool is_home = buf->kind == OX_BUF_WEIGHTS || buf->kind == OX_BUF_STATE || buf->kind == OX_BUF_GRAD;
        if (is_home && buf->resident && buf->tier != OX_TIER_NVME) {
            buf->offset += OX_IO_ALIGN_BYTES;
            refuse_pair(plans, "a home that is elsewhere in the step");
            buf->offset -= OX_IO_ALIGN_BYTES;
        }
    }
    for (uint32_t i = 0; i < eval->spool_count; i++) {
        const uint64_t kept = eval->spool_bytes[i];
        eval->spool_bytes[i] = train->spool_bytes[i] + OX_IO_ALIGN_BYTES;
        refuse_pair(plans, "a spool extent of another size");
        eval->spool_bytes[i] = kept;
    }
    REQUIRE_OK(ox_proof_check_pair(train, eval));
}

int main(void) {
    for (uint64_t seed = 1; seed <= SAMPLES; seed++) {
        static struct plan_sample s;
        struct ox_plans plans = {0};
        plan_sample_draw(&s, seed);
        if (ox_placement_choose(&s.in, &s.table, &s.request, &s.setup, &plans) == OX_OK) {
            change_all(&s, plans.train, seed);
            change_all(&s, plans.eval, seed);
            change_places(&s, plans.train);
            change_counts(&s, plans.train);
            delay_counts(&s, plans.train, &late_counts);
            change_pair(&plans);
            if (plans.eval_after_step != NULL) {
                change_all(&s, plans.eval_after_step, seed);
            }
        }
        ox_plans_close(&plans);
        ox_shard_table_close(&s.table);
    }
    printf("%llu of %llu wrong fields refused\n", (unsigned long long)found, (unsigned long long)made);
    printf("%llu of %llu plans for other homes, %llu updates elsewhere, %llu counts that come late\n",
           (unsigned long long)wrong_homes, (unsigned long long)homes_changed, (unsigned long long)wrong_updates,
           (unsigned long long)late_counts);
    CHECK(found == made && made > 10000 && wrong_homes > 10 && wrong_updates > 0 && late_counts > 0);
    return test_end();
}
