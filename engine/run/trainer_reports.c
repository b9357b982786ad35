/* What a run reports besides its log: metrics.jsonl always, a trace and files for other programs on request. */
#include "engine/run/trainer_internal.h"

#include "base/bytes.h"
#include "base/log.h"
#include "base/memory.h"
#include "engine/step/tracing.h"
#include "offload/trace/trace.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool wants(const struct ox_config *config, enum ox_report_choice choice) {
    return config->save.report_to == choice || config->save.report_to == OX_REPORT_ALL;
}

static bool traces(const struct ox_config *config) {
    return strcmp(config->save.trace, "off") != 0;
}

enum ox_status ox_trainer_check_trace(const struct ox_trainer *trainer) {
    const struct ox_engine_plan *const plan = ox_trainer_plan(trainer);
    struct ox_trace_header *head = NULL;
    if (!traces(&trainer->config)) {
        return OX_OK;
    }
    enum ox_status status = ox_trace_header_open(
        &(struct ox_plans){.train = plan->train, .eval = plan->eval, .eval_after_step = plan->eval_after_step},
        &plan->input.budget, &head);
    OX_THEN(status, ox_trace_check_room(head, trainer->config.save.trace_bytes));
    ox_trace_header_close(&head);
    return status;
}

/* Predicts the times of tasks for a trace. Predictions from nominal rates are not recorded beside measured times. */
static enum ox_status predict_tasks(struct ox_trainer *trainer, struct ox_predicted_tasks *out) {
    const struct ox_predict_input input = ox_trainer_predict_input(trainer);
    return trainer->prediction.profiled ? ox_predict_tasks(&input, out) : OX_OK;
}

enum ox_status ox_trainer_predict_tasks(const struct ox_trainer *trainer, uint32_t rank,
                                        struct ox_predicted_tasks *out) {
    struct ox_predict_input input = ox_trainer_predict_input(trainer);
    input.rank = rank;
    return ox_predict_tasks(&input, out);
}

static enum ox_status open_trace(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const struct ox_model *const model = ox_trainer_model(trainer);
    char path[OX_PATH_BYTES], title[OX_TRACE_TITLE_BYTES], params[OX_SIZE_TEXT_BYTES], cpu[OX_CPU_NAME_BYTES];
    struct ox_predicted_tasks predicted = {.count = 0};
    if (trainer->state.step >= trainer->max_steps) {
        return OX_OK; /* no step follows: what an earlier process recorded stays */
    }
    enum ox_status status = ox_path_join(config->files.output_dir, "trace.bin", path);
    if (status == OX_OK && ox_trainer_leads(trainer) && trainer->state.step > 0 && ox_path_is_file(path)) {
        ox_log(OX_LOG_INFO, "%s: begins anew after step %" PRIu64 "; what was recorded before is replaced", path,
               trainer->state.step);
    }
    OX_THEN(status, predict_tasks(trainer, &predicted));
    ox_cpu_name(cpu);
    snprintf(title, sizeof title, "%s, %s parameters, %s; %u x %u tokens, %u micro-batch%s; on %.64s",
             model->config.family, ox_count_text((double)model->param_count, params),
             ox_real_name(ox_engine_precision(engine)->products), engine->batch, engine->seq, engine->micro_batches,
             ox_plural_es(engine->micro_batches),
             trainer->gpu.name[0] != '\0' ? trainer->gpu.name : cpu);
    if (status == OX_OK) {
        status = ox_engine_trace(trainer->engine, &(struct ox_tracing_config){
            .path = path, .title = title, .bytes_max = config->save.trace_bytes,
            .steps_max = strtoull(config->save.trace, NULL, 10), /* 0 for "on" */
            .max_steps = trainer->max_steps, .rated_bytes = config->memory.drive_endurance_bytes,
            .predicted = predicted.count > 0 ? predicted.sims[predicted.own] : NULL});
    }
    ox_predicted_tasks_close(&predicted);
    return status;
}

enum ox_status ox_trainer_open_reports(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    if (!ox_trainer_leads(trainer)) {
        return traces(config) ? open_trace(trainer) : OX_OK;
    }
    trainer->reports.energy = ox_energy_open(NULL, trainer->engine_config.device == OX_DEVICE_CUDA);
    trainer->reports.used = ox_energy_read(trainer->reports.energy);
    enum ox_status status = ox_metrics_open(config->files.output_dir, trainer->state.step, &trainer->reports.metrics);
    if (status == OX_OK && wants(config, OX_REPORT_TENSORBOARD)) {
        status = ox_tensorboard_open(config->files.output_dir, trainer->state.step, &trainer->reports.tensorboard);
    }
    if (status == OX_OK && wants(config, OX_REPORT_PROMETHEUS)) {
        status = ox_prometheus_open(config->files.output_dir, &trainer->reports.prometheus);
    }
    return status == OX_OK && traces(config) ? open_trace(trainer) : status;
}

enum ox_status ox_trainer_rewind_reports(struct ox_trainer *trainer) {
    const char *const folder = trainer->config.files.output_dir;
    const bool has_board = trainer->reports.tensorboard != NULL;
    if (!ox_trainer_leads(trainer)) {
        return OX_OK;
    }
    ox_metrics_close(&trainer->reports.metrics);
    ox_tensorboard_close(&trainer->reports.tensorboard);
    if (has_board && ox_tensorboard_open(folder, trainer->state.step, &trainer->reports.tensorboard) != OX_OK) {
        ox_log(OX_LOG_WARN, "%s; the run goes on without it", ox_error_text());
    }
    return ox_metrics_open(folder, trainer->state.step, &trainer->reports.metrics);
}

const char *ox_trainer_inexact(const struct ox_trainer *trainer, uint64_t step) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    return engine->exchange != OX_EXCHANGE_FP32 ? ox_exchange_dtype_name(engine->exchange)
           : engine->low_rank.rank > 0 && step > engine->low_rank.start_step ? "low rank (PowerSGD)" : NULL;
}

void ox_trainer_report_step(struct ox_trainer *trainer, struct ox_step_report *report) {
    if (!ox_trainer_leads(trainer)) {
        return;
    }
    ox_trainer_record_gemms(trainer);
    const struct ox_energy_used now = ox_energy_read(trainer->reports.energy), before = trainer->reports.used;
    report->energy = (struct ox_energy_used){.cpu = now.cpu - before.cpu, .gpu = now.gpu - before.gpu};
    trainer->reports.used = now;
    report->exchange = ox_trainer_inexact(trainer, report->step);
    ox_metrics_step(trainer->reports.metrics, report);
    ox_tensorboard_step(trainer->reports.tensorboard, report);
    ox_prometheus_step(trainer->reports.prometheus, report);
}

void ox_trainer_report_eval(struct ox_trainer *trainer, const struct ox_eval_report *report) {
    struct ox_metrics_last last;
    if (!ox_trainer_leads(trainer)) {
        return;
    }
    ox_trainer_record_gemms(trainer);
    ox_metrics_last(trainer->reports.metrics, &last);
    if (last.has_eval && last.eval_step == report->step) {
        return; /* a resumed run that had finished has the line already */
    }
    ox_metrics_eval(trainer->reports.metrics, report);
    ox_tensorboard_eval(trainer->reports.tensorboard, report);
    ox_prometheus_eval(trainer->reports.prometheus, report);
}

void ox_trainer_report_save(struct ox_trainer *trainer, const struct ox_save_report *report) {
    if (trainer->reports.metrics != NULL) {
        ox_metrics_save(trainer->reports.metrics, report);
    }
}

/* ---- what a run has used ----------------------------------------------------------------------------- */

/* What of a stage's backward counts: the products of gradients that are wanted, without what is computed again. The
 * head has both or, with a frozen table, one; its own pass may walk its logits twice. */
static double backward_flops(const struct ox_plan_stage *stage) {
    if (stage->kind == OX_PLAN_BLOCK) {
        return stage->backward_kept.work.gemm_flops + 2 * stage->forward.work.attention_flops;
    }
    const struct ox_plan_stage_unit *const table = &stage->units[stage->unit_count - 1];
    return (table->grad_idx != OX_NONE ? 2 : 1) * stage->forward.work.gemm_flops;
}

/* The operations of the products of a step: of forward, and of backward, which has twice as many where all is trained.
 * This is how the utilisation of a model is counted. */
static double step_flops(const struct ox_engine_plan *plan) {
    const struct ox_plan_model *const model = &plan->input.model;
    const uint32_t first_back = ox_plan_first_back(model);
    double flops = 0;
    for (uint32_t i = 0; i < model->stage_count; i++) {
        const struct ox_plan_stage *const stage = &model->stages[i];
        flops += stage->forward.work.gemm_flops + stage->forward.work.attention_flops;
        flops += i < first_back ? 0 : backward_flops(stage);
    }
    return flops * plan->input.ranks.micro_batches;
}

void ox_trainer_use(const struct ox_trainer *trainer, struct ox_run_use *out) {
    const struct ox_engine_plan *const plan = ox_trainer_plan(trainer);
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const struct ox_machine *const machine = &trainer->machine;
    *out = (struct ox_run_use){.step_flops = step_flops(plan), .machine_flops = NAN,
                               .save_count = trainer->saving.count,
                               .save_stall_seconds = trainer->saving.stall_seconds,
                               .energy = trainer->reports.used};
    out->host_peak_bytes = ox_memory_peak();
    out->host_planned_bytes = ox_engine_plan_all_bytes(plan, OX_TIER_HOST) +
                              ox_trainer_beside_bytes(engine, ox_max_u64(engine->ranks, 1));
    if (engine->device == OX_DEVICE_CPU) { /* whose memory is host memory too */
        out->host_planned_bytes += ox_engine_plan_all_bytes(plan, OX_TIER_DEVICE);
    }
    out->drive_planned_bytes = ox_engine_plan_all_bytes(plan, OX_TIER_NVME);
    const struct ox_store *const store = ox_engine_store(trainer->engine);
    if (store != NULL) {
        struct ox_store_info info;
        ox_store_info(store, &info);
        out->drive_read_bytes = info.read_bytes;
        out->drive_written_bytes = info.write_bytes;
    }
    if (trainer->prediction.profiled) {
        const bool narrow = ox_engine_precision(engine)->products != OX_REAL_F32;
        out->machine_flops = machine->has_gpu ? machine->gpu.bf16_flops * ox_plan_rank_count(&plan->input)
                             : narrow ? fmax(machine->host.flops, machine->host.bf16_flops) : machine->host.flops;
    }
}

static void report_end(struct ox_trainer *trainer) {
    struct ox_end_report report = {.step = trainer->state.step, .max_steps = trainer->max_steps,
                                   .retry_count = trainer->retry_count};
    const struct ox_store *const store = ox_engine_store(trainer->engine);
    if (store != NULL) {
        struct ox_store_info info;
        ox_store_info(store, &info);
        report.store_read_bytes = info.read_bytes;
        report.store_write_bytes = info.write_bytes;
        report.store_reread_count = info.retry_count;
    }
    struct ox_run_use use;
    ox_trainer_use(trainer, &use);
    report.host_peak_bytes = use.host_peak_bytes;
    report.host_planned_bytes = use.host_planned_bytes;
    report.step_flops = use.step_flops;
    report.machine_flops = use.machine_flops;
    report.save_count = use.save_count;
    report.save_stall_seconds = use.save_stall_seconds;
    report.energy = use.energy;
    report.parameters = ox_trainer_model(trainer)->param_count;
    report.trained_parameters = ox_trainer_model(trainer)->trained_count;
    ox_engine_finished_traffic(trainer->engine, report.traffic);
    ox_metrics_end(trainer->reports.metrics, &report);
}

void ox_trainer_sync_reports(struct ox_trainer *trainer) {
    if (trainer->reports.metrics != NULL) {
        ox_metrics_sync(trainer->reports.metrics);
    }
}

void ox_trainer_close_reports(struct ox_trainer *trainer) {
    if (trainer->reports.metrics != NULL && trainer->engine != NULL && trainer->stepped) {
        report_end(trainer);
    }
    ox_trainer_sync_reports(trainer);
    ox_metrics_close(&trainer->reports.metrics);
    ox_tensorboard_close(&trainer->reports.tensorboard);
    ox_prometheus_close(&trainer->reports.prometheus);
    ox_energy_close(&trainer->reports.energy);
}
