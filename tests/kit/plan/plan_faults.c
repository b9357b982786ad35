#include "tests/kit/plan/plan_faults.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "offload/proof/proof.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

/* Takes one dependency away, or moves a buffer onto another; the checker must object whenever the result is
 * wrong. Removing a dependency that another path implies is no fault, so objections are counted. */
void plan_faults_deps(const struct plan_sample *s, struct ox_plan *plan, uint64_t seed, uint64_t *objected) {
    uint64_t counter = 1000;
    for (int i = 0; i < 30; i++) {
        struct ox_task *const task = &plan->tasks[plan_sample_number(seed, &counter, plan->task_count)];
        uint32_t *const dep = &task->deps[plan_sample_number(seed, &counter, OX_LANE_COUNT)];
        const uint32_t kept = *dep;
        *dep = 0;
        *objected += kept != 0 && ox_proof_check(plan, &s->in) != OX_OK;
        *dep = kept;
    }
    const uint32_t self = (uint32_t)plan_sample_number(seed, &counter, plan->task_count);
    uint32_t *const dep = &plan->tasks[self].deps[(plan->tasks[self].lane + 1) % OX_LANE_COUNT];
    const uint32_t kept = *dep;
    *dep = self + 2; /* on a later task */
    CHECK(ox_proof_check(plan, &s->in) != OX_OK);
    *dep = kept;
    plan->peak_bytes[OX_TIER_HOST] += s->in.budget.host_bytes;
    CHECK(ox_proof_check(plan, &s->in) != OX_OK);
    plan->peak_bytes[OX_TIER_HOST] -= s->in.budget.host_bytes;
    struct ox_buf *const small = &plan->bufs[plan->norm_buf];
    const uint64_t offset = small->offset;
    small->offset = plan->bufs[plan->batch_host_buf].offset;
    CHECK(ox_proof_check(plan, &s->in) != OX_OK);
    small->offset = offset;
    REQUIRE_OK(ox_proof_check(plan, &s->in));
}

/* The plan with one task changed must be refused; then the task is put back. */
void plan_faults_refuse_task(const struct plan_sample *s, struct ox_plan *plan, uint32_t task_idx,
                             const struct ox_task *changed, struct plan_faults *tally) {
    const struct ox_task kept = plan->tasks[task_idx];
    plan->tasks[task_idx] = *changed;
    tally->made++;
    if (ox_proof_check(plan, &s->in) == OX_OK) {
        printf("accepted: task %u (%s, unit %d, micro-batch %d) changed\n", task_idx,
               ox_task_name(&kept), (int)kept.unit_idx, (int)kept.mb_idx);
    } else {
        tally->found++;
    }
    plan->tasks[task_idx] = kept;
}

void plan_faults_drop_use(struct ox_task *task, uint32_t use_idx) {
    task->use_count--;
    memmove(&task->uses[use_idx], &task->uses[use_idx + 1], (task->use_count - use_idx) * sizeof *task->uses);
}

/* Draws one of the tasks of this sort; OX_NONE when the plan has none. */
static uint32_t draw_task(const struct ox_plan *plan, uint32_t word, uint64_t seed, uint64_t *counter) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        count += ox_task_word(&plan->tasks[i]) == word;
    }
    uint32_t nth = count == 0 ? 0 : (uint32_t)plan_sample_number(seed, counter, count);
    for (uint32_t i = 0; i < plan->task_count && count > 0; i++) {
        if (ox_task_word(&plan->tasks[i]) == word && nth-- == 0) {
            return i;
        }
    }
    return OX_NONE;
}

/* Draws another buffer of the same sort in the same tier; OX_NONE when there is none. */
static uint32_t draw_sibling(const struct ox_plan *plan, uint32_t buf_idx, uint64_t seed, uint64_t *counter) {
    const uint32_t from = (uint32_t)plan_sample_number(seed, counter, plan->buf_count);
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        const uint32_t at = (from + i) % plan->buf_count;
        if (at != buf_idx && plan->bufs[at].kind == plan->bufs[buf_idx].kind &&
            plan->bufs[at].tier == plan->bufs[buf_idx].tier) {
            return at;
        }
    }
    return OX_NONE;
}

/* Whether only one buffer can serve in the role. Weights and activations may have a second copy that does as well. */
static bool is_unique(uint8_t role) {
    return role == OX_USE_GRAD || role == OX_USE_STATE || role == OX_USE_NORM ||
           role == OX_USE_LOSS || role == OX_USE_KEPT;
}

/* Changes one task of every sort: without its uses, with one use less, with one use turned around or on another buffer,
 * and of another unit or micro-batch. Each change makes the step mean something else. */
void plan_faults_effects(const struct plan_sample *s, struct ox_plan *plan, uint64_t seed, struct plan_faults *tally) {
    uint64_t counter = 5000;
    for (uint32_t word = 0; word < OX_TASK_WORD_COUNT; word++) {
        const uint32_t at = draw_task(plan, word, seed, &counter);
        if (at == OX_NONE) {
            continue;
        }
        const struct ox_task kept = plan->tasks[at];
        struct ox_task changed = kept;
        changed.use_count = 0;
        plan_faults_refuse_task(s, plan, at, &changed, tally);
        const uint32_t use_idx = (uint32_t)plan_sample_number(seed, &counter, kept.use_count);
        changed = kept;
        plan_faults_drop_use(&changed, use_idx);
        plan_faults_refuse_task(s, plan, at, &changed, tally);
        changed = kept;
        changed.uses[use_idx].read = !changed.uses[use_idx].read;
        plan_faults_refuse_task(s, plan, at, &changed, tally);
        for (uint32_t i = 0; i < kept.use_count; i++) {
            const uint32_t sibling = draw_sibling(plan, kept.uses[i].buf_idx, seed, &counter);
            changed = kept;
            changed.uses[i].buf_idx = sibling;
            if (is_unique(kept.uses[i].role) && sibling != OX_NONE) {
                plan_faults_refuse_task(s, plan, at, &changed, tally);
            }
            changed = kept;
            changed.uses[i].nth++;
            plan_faults_refuse_task(s, plan, at, &changed, tally);
        }
        changed = kept;
        changed.unit_idx = kept.unit_idx == 0 ? 1 : kept.unit_idx - 1;
        plan_faults_refuse_task(s, plan, at, &changed, tally);
        changed = kept;
        changed.stage_idx = kept.stage_idx == 0 ? 1 : kept.stage_idx - 1;
        plan_faults_refuse_task(s, plan, at, &changed, tally);
        changed = kept;
        changed.grad_idx = kept.grad_idx == 0 ? 1 : kept.grad_idx - 1;
        plan_faults_refuse_task(s, plan, at, &changed, tally);
        changed = kept;
        changed.mb_idx = kept.mb_idx == 0 ? 1 : kept.mb_idx - 1;
        plan_faults_refuse_task(s, plan, at, &changed, tally);
        changed = kept;
        changed.slot = kept.slot == 0 ? 1 : kept.slot - 1;
        plan_faults_refuse_task(s, plan, at, &changed, tally);
        changed = kept;
        changed.carried = !kept.carried;
        plan_faults_refuse_task(s, plan, at, &changed, tally);
        changed = kept;
        changed.phase ^= 1;
        plan_faults_refuse_task(s, plan, at, &changed, tally);
        changed = kept;
        changed.pass ^= 2; /* forward for backward */
        plan_faults_refuse_task(s, plan, at, &changed, tally);
        for (uint8_t move = 0; move < OX_MOVE_COUNT && kept.kind == OX_TASK_MOVE; move++) {
            changed = kept;
            changed.move = move;
            if (move != kept.move) {
                plan_faults_refuse_task(s, plan, at, &changed, tally);
            }
        }
    }
}

/* Removes a task from the list; tasks that waited for it wait for the one before it in its lane. */
void plan_faults_take_out(struct ox_plan *plan, uint32_t task_idx) {
    const uint8_t lane = plan->tasks[task_idx].lane;
    uint32_t before = task_idx;
    while (before > 0 && plan->tasks[before - 1].lane != lane) {
        before--;
    }
    plan->task_count--;
    for (uint32_t i = task_idx; i < plan->task_count; i++) {
        plan->tasks[i] = plan->tasks[i + 1];
        for (int j = 0; j < OX_LANE_COUNT; j++) {
            uint32_t *const dep = &plan->tasks[i].deps[j];
            *dep = *dep == task_idx + 1 ? before : *dep - (*dep > task_idx);
        }
    }
}

/* Removes one whole task of each sort. */
void plan_faults_drop_tasks(const struct plan_sample *s, struct ox_plan *plan, uint64_t seed,
                            struct plan_faults *tally) {
    uint64_t counter = 9000;
    for (uint32_t word = 0; word < OX_TASK_WORD_COUNT; word++) {
        const uint32_t at = draw_task(plan, word, seed, &counter);
        if (at == OX_NONE) {
            continue;
        }
        const uint32_t count = plan->task_count;
        struct ox_task *const kept = malloc(count * sizeof *kept);
        CHECK(kept != NULL);
        if (kept == NULL) {
            return;
        }
        memcpy(kept, plan->tasks, count * sizeof *kept);
        plan_faults_take_out(plan, at);
        tally->made++;
        if (ox_proof_check(plan, &s->in) == OX_OK) {
            printf("accepted: task %u (%s) missing\n", at, ox_task_word_name(word));
        } else {
            tally->found++;
        }
        memcpy(plan->tasks, kept, count * sizeof *kept);
        plan->task_count = count;
        free(kept);
    }
}

/* A size that is not exact must be refused; then it is put back. */
void plan_faults_refuse_size(const struct plan_sample *s, struct ox_plan *plan, uint64_t *size, uint64_t wrong,
                             struct plan_faults *tally) {
    const uint64_t kept = *size;
    *size = wrong;
    tally->made++;
    if (ox_proof_check(plan, &s->in) == OX_OK) {
        printf("accepted: %llu bytes instead of %llu\n", (unsigned long long)wrong, (unsigned long long)kept);
    } else {
        tally->found++;
    }
    *size = kept;
}

/* Plants wrong sizes of buffers: a page short, a page too large, weights without lo, a stream that lacks a slot. */
void plan_faults_buffers(const struct plan_sample *s, struct ox_plan *plan, struct plan_faults *tally) {
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        struct ox_buf *const buf = &plan->bufs[i];
        const uint64_t bytes = buf->bytes;
        if (buf->first_task_idx == OX_NONE && !buf->resident) {
            continue;
        }
        plan_faults_refuse_size(s, plan, &buf->bytes, bytes - OX_IO_ALIGN_BYTES, tally);
        plan_faults_refuse_size(s, plan, &buf->bytes, bytes + OX_IO_ALIGN_BYTES, tally);
        if (buf->kind == OX_BUF_WEIGHTS && s->in.model.precision->lo_travels) {
            const uint64_t hi_bytes = s->table.shards[buf->unit_idx].elem_count * 2;
            if (bytes > hi_bytes) {
                plan_faults_refuse_size(s, plan, &buf->bytes, hi_bytes, tally);
            }
        }
        if (buf->kind == OX_BUF_STREAM) {
            plan_faults_refuse_size(s, plan, &buf->bytes, bytes - ox_plan_stream_slot_bytes(&s->in), tally);
        }
    }
}

/* Plants wrong extents of the spool, wrong sums of the plan, and wrong bytes of tasks. */
void plan_faults_sums(const struct plan_sample *s, struct ox_plan *plan, struct plan_faults *tally) {
    for (uint32_t i = 0; i < plan->spool_count; i++) {
        const uint64_t bytes = plan->spool_bytes[i];
        plan_faults_refuse_size(s, plan, &plan->spool_bytes[i], bytes + OX_IO_ALIGN_BYTES, tally);
        if (bytes > 0) {
            plan_faults_refuse_size(s, plan, &plan->spool_bytes[i], bytes - OX_IO_ALIGN_BYTES, tally);
        }
    }
    for (int tier = 0; tier < OX_TIER_COUNT; tier++) {
        uint64_t *const peak = &plan->peak_bytes[tier], *const resident = &plan->resident_bytes[tier];
        plan_faults_refuse_size(s, plan, peak, *peak + OX_IO_ALIGN_BYTES, tally);
        plan_faults_refuse_size(s, plan, peak, *peak - OX_IO_ALIGN_BYTES, tally);
        plan_faults_refuse_size(s, plan, resident, *resident + OX_IO_ALIGN_BYTES, tally);
        plan_faults_refuse_size(s, plan, resident, *resident - OX_IO_ALIGN_BYTES, tally);
    }
    plan_faults_refuse_size(s, plan, &plan->stored_weight_bytes, plan->stored_weight_bytes + 1, tally);
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            plan_faults_refuse_size(s, plan, &plan->traffic[link][kind], plan->traffic[link][kind] + 1, tally);
        }
    }
    for (uint32_t i = 0; i < plan->task_count; i += 1 + plan->task_count / 50) {
        plan_faults_refuse_size(s, plan, &plan->tasks[i].bytes, plan->tasks[i].bytes + 1, tally);
    }
}

enum ox_status plan_faults_check_ranks(struct ox_plan *const *plans, const struct ox_plan_input *inputs,
                                       uint32_t count) {
    enum { RANKS_MAX = 16 };
    const struct ox_plan *all[RANKS_MAX];
    const struct ox_plan_input *of[RANKS_MAX];
    OX_ASSERT(count <= RANKS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        all[i] = plans[i];
        of[i] = &inputs[i];
    }
    return ox_proof_check_ranks(all, of, count);
}
