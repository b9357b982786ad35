/* Faults that tests plant in proven plans. The checker must refuse each of them; then the plan is as before. */
#ifndef OX_TESTS_PLAN_FAULTS_H
#define OX_TESTS_PLAN_FAULTS_H

#include "tests/kit/plan/plan_sample.h"

/* How many faults were planted and how many of these the checker found. */
struct plan_faults {
    uint64_t made, found;
};

/* Takes dependencies away and moves a buffer onto another. `objected` counts those whose absence the checker refuses:
 * removing a dependency that another path implies is no fault. */
void plan_faults_deps(const struct plan_sample *s, struct ox_plan *plan, uint64_t seed, uint64_t *objected);
/* Changes one task of every sort so that the step means something else. */
void plan_faults_effects(const struct plan_sample *s, struct ox_plan *plan, uint64_t seed, struct plan_faults *tally);
/* Removes one whole task of every sort. */
void plan_faults_drop_tasks(const struct plan_sample *s, struct ox_plan *plan, uint64_t seed,
                            struct plan_faults *tally);
/* Plants wrong sizes of buffers, and wrong sums of the plan. */
void plan_faults_buffers(const struct plan_sample *s, struct ox_plan *plan, struct plan_faults *tally);
void plan_faults_sums(const struct plan_sample *s, struct ox_plan *plan, struct plan_faults *tally);

/* One fault: the plan with this task changed, or with this size wrong, must be refused. */
void plan_faults_refuse_task(const struct plan_sample *s, struct ox_plan *plan, uint32_t task_idx,
                             const struct ox_task *changed, struct plan_faults *tally);
void plan_faults_refuse_size(const struct plan_sample *s, struct ox_plan *plan, uint64_t *size, uint64_t wrong,
                             struct plan_faults *tally);
/* Removes a use from a task; a task from the list, where tasks that waited for it wait for the one before it in its
 * lane. */
void plan_faults_take_out(struct ox_plan *plan, uint32_t task_idx);
void plan_faults_drop_use(struct ox_task *task, uint32_t use_idx);

/* Whether the checker takes the plans of all ranks of a step together; at most 16. */
enum ox_status plan_faults_check_ranks(struct ox_plan *const *plans, const struct ox_plan_input *inputs,
                                       uint32_t count);

#endif
