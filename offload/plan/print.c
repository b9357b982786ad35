/* A plan as text for users: where bytes live, what crosses links, and which lane does what. */
#include "offload/plan/cases.h"

#include "base/bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool lives_at(const struct ox_buf *buf, uint32_t task_idx) {
    return buf->resident || (buf->first_task_idx != OX_NONE && buf->first_task_idx <= task_idx &&
                             task_idx <= buf->last_task_idx);
}

void ox_plan_ledger(const struct ox_plan *plan, struct ox_ledger *out) {
    *out = (struct ox_ledger){0};
    for (int tier = 0; tier < OX_TIER_NVME; tier++) {
        const uint32_t at = plan->fullest_task[tier];
        uint64_t sum = 0;
        for (uint32_t i = 0; i < plan->buf_count; i++) {
            const struct ox_buf *const buf = &plan->bufs[i];
            if (buf->tier == tier && lives_at(buf, at)) {
                out->bytes[tier][buf->kind] += buf->bytes;
                sum += buf->bytes;
            }
        }
        out->turns[tier] = plan->live_bytes[tier] - sum;
        out->unused[tier] = plan->peak_bytes[tier] - plan->live_bytes[tier];
    }
    const uint64_t generations = plan->resident_bytes[OX_TIER_NVME];
    out->bytes[OX_TIER_NVME][OX_BUF_WEIGHTS] = plan->stored_weight_bytes;
    out->bytes[OX_TIER_NVME][OX_BUF_STATE] = generations - out->bytes[OX_TIER_NVME][OX_BUF_WEIGHTS];
    out->unused[OX_TIER_NVME] = plan->peak_bytes[OX_TIER_NVME] - generations;
    for (uint32_t i = 0; i < plan->spool_count; i++) {
        const enum ox_buf_kind kind = i < plan->grad_count ? OX_BUF_GRAD : OX_BUF_ACT;
        out->bytes[OX_TIER_NVME][kind] += plan->spool_bytes[i];
        out->unused[OX_TIER_NVME] -= plan->spool_bytes[i];
    }
}

static void print_size(FILE *out, uint64_t bytes) {
    char text[OX_SIZE_TEXT_BYTES];
    fprintf(out, "%12s", bytes == 0 ? "-" : ox_size_text(bytes, text));
}

static void print_row(FILE *out, const char *name, const uint64_t *bytes, bool unified) {
    fprintf(out, "  %-18s", name);
    for (int tier = unified ? OX_TIER_HOST : OX_TIER_DEVICE; tier < OX_TIER_COUNT; tier++) {
        print_size(out, bytes[tier]);
    }
    fprintf(out, "\n");
}

static void print_ledger(FILE *out, const struct ox_plan *plan, const struct ox_plan_input *in) {
    const bool unified = in->budget.unified;
    struct ox_ledger ledger;
    ox_plan_ledger(plan, &ledger);
    fprintf(out, "memory at its fullest%s%12s%12s\n", unified ? "" : "      device", "host", "nvme");
    for (int kind = 0; kind < OX_BUF_KIND_COUNT; kind++) {
        const uint64_t row[OX_TIER_COUNT] = {ledger.bytes[0][kind], ledger.bytes[1][kind], ledger.bytes[2][kind]};
        if (row[0] + row[1] + row[2] > 0) {
            print_row(out, ox_buf_name((enum ox_buf_kind)kind), row, unified);
        }
    }
    if (ledger.turns[OX_TIER_DEVICE] + ledger.turns[OX_TIER_HOST] > 0) {
        print_row(out, "taking turns", ledger.turns, unified);
    }
    print_row(out, "gaps", ledger.unused, unified);
    print_row(out, "total", plan->peak_bytes, unified);
    const uint64_t budget[OX_TIER_COUNT] = {in->budget.device_bytes, in->budget.host_bytes, in->budget.nvme_bytes};
    print_row(out, "budget", budget, unified);
}

static void print_homes(FILE *out, const struct ox_plan_input *in) {
    uint32_t counts[3][OX_TIER_COUNT] = {{0}};
    for (uint32_t i = 0; i < in->table->unit_count; i++) {
        const struct ox_homes *const homes = &in->table->shards[i].homes;
        counts[0][homes->weights]++;
        counts[1][homes->state] += !in->table->shards[i].fixed; /* those have neither */
        counts[2][homes->grad] += !in->table->shards[i].fixed;
    }
    static const char *const names[] = {"weights", "optimizer state", "gradients"};
    fprintf(out, "\nhomes between tasks (units)");
    for (int tier = in->budget.unified ? OX_TIER_HOST : OX_TIER_DEVICE; tier < OX_TIER_COUNT; tier++) {
        fprintf(out, "%8s", ox_tier_name((enum ox_tier)tier));
    }
    fprintf(out, "\n");
    for (int i = 0; i < 3; i++) {
        fprintf(out, "  %-25s", names[i]);
        for (int tier = in->budget.unified ? OX_TIER_HOST : OX_TIER_DEVICE; tier < OX_TIER_COUNT; tier++) {
            fprintf(out, "%8u", counts[i][tier]);
        }
        fprintf(out, "\n");
    }
}

static uint64_t all_traffic(const struct ox_plan *plan) {
    uint64_t sum = 0;
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            sum += plan->traffic[link][kind];
        }
    }
    return sum;
}

static void print_traffic(FILE *out, const struct ox_plan *plan, const struct ox_plan_input *in) {
    const int link_count = ox_plan_link_count(in);
    if (all_traffic(plan) == 0) {
        fprintf(out, "\ntraffic per step: none, all of it stays where it is\n");
        return;
    }
    fprintf(out, "\ntraffic per step    ");
    for (int link = 0; link < link_count; link++) {
        fprintf(out, "%12s", ox_link_name((enum ox_link)link));
    }
    fprintf(out, "\n");
    uint64_t totals[OX_LINK_COUNT] = {0};
    for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
        uint64_t sum = 0;
        for (int link = 0; link < link_count; link++) {
            sum += plan->traffic[link][kind];
            totals[link] += plan->traffic[link][kind];
        }
        if (sum == 0) {
            continue;
        }
        fprintf(out, "  %-18s", ox_traffic_name((enum ox_traffic_kind)kind));
        for (int link = 0; link < link_count; link++) {
            print_size(out, plan->traffic[link][kind]);
        }
        fprintf(out, "\n");
    }
    fprintf(out, "  %-18s", "total");
    for (int link = 0; link < link_count; link++) {
        print_size(out, totals[link]);
    }
    fprintf(out, "\n");
}

static void print_lanes(FILE *out, const struct ox_plan *plan) {
    uint32_t counts[OX_LANE_COUNT] = {0};
    for (uint32_t i = 0; i < plan->task_count; i++) {
        counts[plan->tasks[i].lane]++;
    }
    fprintf(out, "\ntasks per lane (%u in all):", plan->task_count);
    for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
        if (counts[lane] > 0) {
            fprintf(out, " %s %u,", ox_lane_name((enum ox_lane_id)lane), counts[lane]);
        }
    }
    fprintf(out, " from %u buffers\n", plan->buf_count);
}

/* Prints the facts without which the task does not work, such as "if commit-due". */
static void print_facts(FILE *out, const struct ox_task *task) {
    const uint32_t facts = task->when & ~(uint32_t)OX_FACT_OWN_WORK;
    const char *word = "  if";
    for (uint32_t fact = 1; fact <= facts; fact *= 2) {
        if ((facts & fact) != 0) {
            fprintf(out, "%s %s", word, ox_fact_name((enum ox_fact)fact));
            word = ",";
        }
    }
}

static void print_tasks(FILE *out, const struct ox_plan *plan) {
    fprintf(out, "\n  task lane        what        unit   mb        bytes  after\n");
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const struct ox_task *const task = &plan->tasks[i];
        fprintf(out, "%6u %-11s %-10s%s", i, ox_lane_name((enum ox_lane_id)task->lane),
                ox_task_name(task), task->carried ? "'" : " ");
        const uint32_t number = ox_task_number(task);
        fprintf(out, number == OX_NONE ? "    -" : "%5d", (int)number);
        fprintf(out, task->mb_idx == OX_NONE ? "    -" : "%5d", (int)task->mb_idx);
        print_size(out, task->bytes);
        fprintf(out, " ");
        for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
            if (task->deps[lane] != 0) {
                fprintf(out, " %u", task->deps[lane] - 1);
            }
        }
        print_facts(out, task);
        fprintf(out, "\n");
    }
}

static void print_kept(FILE *out, const struct ox_plan_input *input) {
    if (input->placement.kept_units > 0) {
        fprintf(out, "\nactivations kept: of the last %u of %u block%s, whose backward recomputes nothing",
                input->placement.kept_units, ox_plan_block_count(&input->model),
                ox_plural(ox_plan_block_count(&input->model)));
    }
}

/* Prints what copies exchange in low rank, beside what their sums would take: to this rank in one direction. */
static void print_low_rank(FILE *out, const struct ox_plan_input *input) {
    const uint32_t copies = ox_plan_copies(input);
    double sent = 0, whole = 0, kept = 0;
    char text[3][OX_SIZE_TEXT_BYTES];
    if (input->ranks.low_rank == NULL || input->model.eval_only) {
        return;
    }
    for (uint32_t i = 0; i < input->model.grad_count; i++) {
        const double sums = 8.0 * (copies - 1) / copies * (double)ox_plan_grad_slice(input, i);
        const struct ox_low_rank_sizes sizes = ox_low_rank_sizes(input, i);
        const uint64_t floats = sizes.p + sizes.q + sizes.raw;
        const bool used = ox_low_rank_used(input, i);
        whole += sums;
        sent += used ? 4.0 * (copies - 1) * (double)floats : sums;
        kept += used ? 8.0 * (double)ox_low_rank_kept(&sizes) : 0;
    }
    fprintf(out, "; copies exchange gradients in rank %u (PowerSGD): inexact\nrank %u gets %s a step from other copies "
            "instead of %s, %.3g times less, and keeps %s for it", input->ranks.low_rank->rank, input->ranks.idx,
            ox_size_text((uint64_t)sent, text[0]), ox_size_text((uint64_t)whole, text[1]), whole / sent,
            ox_size_text((uint64_t)kept, text[2]));
}

/* Prints which rank the plan is for, and how much of the model that rank has. */
static void print_rank(FILE *out, const struct ox_plan_input *input) {
    uint64_t own = 0, whole = 0;
    for (uint32_t i = 0; i < input->model.unit_count; i++) {
        own += input->table->shards[i].elem_count;
        whole += input->model.units[i].elem_count;
    }
    if (ox_plan_rank_count(input) > 1) {
        char text[2][OX_SIZE_TEXT_BYTES], copies[96] = "";
        if (input->ranks.copies > 1 && input->ranks.sharding != OX_SHARDING_NONE) {
            snprintf(copies, sizeof copies, " within each of %u copies of the model", input->ranks.copies);
        }
        fprintf(out, "\nrank %u of %u, %s%s: it has %s of %s parameters, and %u of %u micro-batch%s, summed in %u "
                "group%s%s%s", input->ranks.idx, input->ranks.count, ox_sharding_name(input->ranks.sharding), copies,
                ox_count_text((double)own, text[0]), ox_count_text((double)whole, text[1]),
                input->model.micro_batches, input->ranks.micro_batches, ox_plural_es(input->ranks.micro_batches),
                ox_plan_sum_groups(input),
                ox_plural(ox_plan_sum_groups(input)),
                input->ranks.library_sums ? "; the library adds those of ranks: not reproducible" : "",
                input->ranks.exchange == OX_EXCHANGE_BF16 ? "; sums travel in bf16: inexact"
                : input->ranks.exchange == OX_EXCHANGE_Q8 ? "; sums travel in 8 bits: inexact" : "");
        print_low_rank(out, input);
    }
}

/* Prints which stages a coordinate of a pipeline computes, the first few of many. */
static void print_stages(FILE *out, const struct ox_plan_input *input, uint32_t at) {
    enum { SHOWN = 8 };
    uint32_t count = 0;
    for (uint32_t i = 0; i < input->model.stage_count; i++) {
        if (ox_plan_stage_owner(input, i) == at && count++ < SHOWN) {
            fprintf(out, "%s%u", count == 1 ? "" : ", ", i);
        }
    }
    if (count > SHOWN) {
        fprintf(out, " and %u more", count - SHOWN);
    }
}

/* Prints how a pipeline divides the stages. */
static void print_pipe(FILE *out, const struct ox_plan_input *input) {
    const uint32_t pipe = ox_plan_pipe(input), of_data = ox_plan_data_ranks(input), tensors = ox_plan_tensors(input);
    if (tensors > 1) {
        fprintf(out, "\ngroups of features: %u over %u ranks, of which each has %u of every layer, and 1/%u of the "
                "rows between them", input->ranks.tensor_groups, tensors, input->ranks.tensor_groups / tensors,
                tensors);
    }
    if (ox_plan_experts(input) > 1) {
        fprintf(out, "\nexperts: of every layer over %u ranks; rows go to the rank that has their expert and back, and "
                "their bytes here are the most that there can be", ox_plan_experts(input) * tensors);
    }
    if (pipe == 1) {
        return;
    }
    fprintf(out, "\npipeline: %u stages over %u ranks", input->model.stage_count, pipe);
    if (of_data > 1) {
        fprintf(out, ", each of which is %u that divide the micro-batches", of_data);
    }
    fprintf(out, "; %s", ox_pipe_schedule_name(input->placement.schedule));
    for (uint32_t at = 0; at < pipe; at++) {
        fprintf(out, at == 0 ? "; stages " : " | ");
        print_stages(out, input, at);
    }
}

/* Prints what a part of a model exchanges with the parts before and after it. */
static void print_part(FILE *out, const struct ox_plan_model *model) {
    char text[OX_SIZE_TEXT_BYTES];
    if (ox_plan_has_outside_input(model)) {
        fprintf(out, "\npart of a model: per micro-batch %s of activations arrive from the part before",
                ox_size_text(model->stages[0].input_bytes, text));
    }
    if (ox_plan_has_outside_output(model)) {
        fprintf(out, "\npart of a model: per micro-batch %s of activations leave for the part after",
                ox_size_text(model->stages[model->stage_count - 1].output_bytes, text));
    }
}

static void print_speculative(FILE *out, const struct ox_plan *plan, const struct ox_plan_input *input,
                              const struct ox_unit_counts *counts) {
    const struct ox_placement *const placement = &input->placement;
    if (placement->speculative_units == 0) {
        return;
    }
    fprintf(out, "; of %s%u of %u units%s in backward, and again should the norm be clipped",
            placement->speculative_spread ? "" : "the last ", placement->speculative_units, plan->unit_count,
            placement->speculative_spread ? ", evenly spread," : "");
    if (counts->saved > counts->ahead) {
        fprintf(out, ", for which memory keeps what that replaces in %u of them",
                counts->saved - counts->ahead);
    }
    if (counts->ahead > 0) {
        fprintf(out, ", for which memory keeps the weights that this replaces in %u of them, ahead of their state",
                counts->ahead);
    }
}

enum ox_status ox_plan_text(const struct ox_plan *plan, const struct ox_plan_input *input, enum ox_plan_detail detail,
                            char **text) {
    size_t bytes = 0;
    *text = NULL;
    FILE *const out = open_memstream(text, &bytes);
    if (out == NULL) {
        return ox_fail(OX_E_NOMEM, "plan: no memory for its text");
    }
    const struct ox_placement *const placement = &input->placement;
    const enum ox_tier act_tier = input->budget.unified && placement->act_tier == OX_TIER_DEVICE
                                      ? OX_TIER_HOST : placement->act_tier;
    fprintf(out, "step: %u micro-batch%s in %u tile%s, prefetch %u, activation checkpoints on %s\n",
            plan->micro_batches, ox_plural_es(plan->micro_batches), placement->tiles,
            ox_plural(placement->tiles), placement->prefetch_depth, ox_tier_name(act_tier));
    fprintf(out, "update: %s", placement->overlap ? "within the next step's forward" : "after the norm");
    const struct ox_unit_counts counts = ox_plan_count_units(plan);
    print_speculative(out, plan, input, &counts);
    if (counts.on_device > 0) {
        fprintf(out, "; of the %s %u of %u units on the device", counts.device_first ? "first" : "last",
                counts.on_device, plan->unit_count);
    }
    fprintf(out, "%s%s", placement->device_sums ? "; square sums made on the device" : "",
            placement->grads_alternate ? "; two places for gradients that leave the device" : "");
    if (input->budget.nvme_bytes > 0 && ox_plan_generations(&input->budget) == 3) {
        fprintf(out, "; three generations on drives, so that such steps may stay uncommitted");
    }
    print_kept(out, input);
    print_part(out, &input->model);
    print_pipe(out, input);
    print_rank(out, input);
    fprintf(out, "\n\n");
    print_ledger(out, plan, input);
    print_homes(out, input);
    print_traffic(out, plan, input);
    if (detail >= OX_PLAN_LANES) {
        print_lanes(out, plan);
    }
    if (detail >= OX_PLAN_TASKS) {
        print_tasks(out, plan);
    }
    if (fclose(out) != 0) {
        free(*text);
        *text = NULL;
        return ox_fail(OX_E_NOMEM, "plan: no memory for its text");
    }
    return OX_OK;
}
