/* Checks the values of a configuration against each other. */
#include "engine/config/config.h"

#include "base/bytes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether `path`, which need not exist, is the folder or is inside it, after resolving links. */
static bool is_inside(const char *folder, const char *path) {
    char *const outer = realpath(folder, NULL);
    char *inner = realpath(path, NULL);
    char part[OX_CONFIG_TEXT_BYTES];
    bool inside = false;
    snprintf(part, sizeof part, "%s", path);
    while (inner == NULL && part[0] != '\0') { /* resolve the nearest parent that exists */
        char *const slash = strrchr(part, '/');
        *(slash != NULL ? slash : part) = '\0';
        inner = realpath(part[0] != '\0' ? part : slash != NULL ? "/" : ".", NULL);
    }
    if (inner != NULL && outer != NULL) {
        const size_t bytes = strlen(outer);
        inside = strncmp(outer, inner, bytes) == 0 && (inner[bytes] == '\0' || inner[bytes] == '/');
    }
    free(inner);
    free(outer);
    return inside;
}

/* Fails for a missing option, named as the usage line of its command does. A resumed run has recorded its own, so the
 * error names that file: in the run's folder, which may be named by --output, or in place of a checkpoint, or holds the
 * checkpoint. */
static enum ox_status fail_missing(const struct ox_config *c, const char *what, const char *remedy) {
    const char *const resume = c->files.resume_from_checkpoint;
    const struct {
        const char *folder, *format;
    } places[] = {{c->files.output_dir, "%s/config.resolved.yaml"}, {resume, "%s/config.resolved.yaml"},
                  {resume, "%s/../config.resolved.yaml"}};
    char path[OX_CONFIG_TEXT_BYTES + 32];
    bool recorded = false;
    for (size_t i = 0; i < sizeof places / sizeof *places && resume[0] != '\0' && !recorded; i++) {
        snprintf(path, sizeof path, places[i].format, places[i].folder);
        recorded = places[i].folder[0] != '\0' && access(path, R_OK) == 0;
    }
    return recorded ? ox_fail(OX_E_CONFIG, "%s is missing; --config %s has the options of the run", what, path)
                    : ox_fail(OX_E_CONFIG, "%s is missing; %s", what, remedy);
}

static enum ox_status check_tokenizer_training(const struct ox_config *c) {
    return !c->vocab.train_tokenizer
               ? ox_fail(OX_E_CONFIG, "--train is missing; give the texts to train a tokenizer on")
           : c->vocab.vocab_size == 0
               ? ox_fail(OX_E_CONFIG, "--vocab-size is missing; give the number of tokens, such as 32000")
           : c->files.output_dir[0] == '\0'
               ? ox_fail(OX_E_CONFIG, "--output is missing; name a folder for tokenizer.json")
               : OX_OK;
}

static enum ox_status check_paths(const struct ox_config *c, unsigned command) {
    OX_TRY(ox_config_check_local("--output", c->files.output_dir));
    if (strncmp(c->files.model, "http", 4) != 0) { /* pages of a hub: later */
        OX_TRY(ox_config_check_local("--model", c->files.model));
    }
    const unsigned train = OX_CMD_TRAIN, eval = OX_CMD_EVAL, export_ = OX_CMD_EXPORT | OX_CMD_MERGE | OX_CMD_UNLOCK;
    const unsigned needs_model = train | eval | OX_CMD_EXPORT | OX_CMD_PLAN | OX_CMD_INSPECT | OX_CMD_TOKENIZE |
                                 OX_CMD_GENERATE | OX_CMD_UNLOCK;
    if (command == OX_CMD_TOKENIZE && (c->vocab.train_tokenizer || c->vocab.vocab_size > 0)) {
        return check_tokenizer_training(c);
    }
    const bool is_told = command == OX_CMD_TOKENIZE && c->files.tokenizer[0] != '\0';
    if (c->files.model[0] == '\0' && (command & needs_model) != 0 && !is_told) {
        const bool by_place = (command & (eval | OX_CMD_EXPORT | OX_CMD_INSPECT | OX_CMD_GENERATE)) != 0;
        return fail_missing(c, by_place ? "PATH" : "--model",
                            command == OX_CMD_TOKENIZE ? "give a folder of Hugging Face files, or --tokenizer"
                                                       : "give a folder of Hugging Face files");
    }
    if (c->files.data_count == 0 && (command & (train | eval)) != 0) {
        return fail_missing(c, "--data", "give a text or token file, or a folder of them");
    }
    if (c->files.output_dir[0] == '\0' && (command & (train | export_ | OX_CMD_INIT)) != 0) {
        return ox_fail(OX_E_CONFIG, "--output is missing; name a folder for the results");
    }
    if ((command & (train | export_ | OX_CMD_PLAN)) != 0 && c->files.output_dir[0] != '\0' &&
        (strcmp(c->files.output_dir, c->files.model) == 0 || is_inside(c->files.model, c->files.output_dir))) {
        return ox_fail(OX_E_CONFIG, "--output: %s is the --model folder or inside it; name a folder outside of it",
                       c->files.output_dir);
    }
    if (c->files.from_scratch && c->files.resume_from_checkpoint[0] != '\0') {
        return ox_fail(OX_E_CONFIG,
                       "--from-scratch and --resume-from-checkpoint contradict each other: a resume goes on with the "
                       "run's own weights; leave out --from-scratch");
    }
    if (c->files.overwrite_output_dir && strcmp(c->files.resume_from_checkpoint, "latest") == 0 &&
        (command & train) != 0) {
        return ox_fail(OX_E_CONFIG, "--overwrite-output-dir would delete the run that --resume-from-checkpoint latest "
                                    "continues; add --no-overwrite-output-dir");
    }
    return OX_OK;
}

/* Whether two paths are the same folder; different paths can only match if the folder exists. */
static bool same_folder(const char *a, const char *b) {
    struct stat first, second;
    return strcmp(a, b) == 0 || (stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
                                 first.st_ino == second.st_ino);
}

static enum ox_status check_memory(const struct ox_config *c, unsigned command) {
    const bool sized = (command & (OX_CMD_TRAIN | OX_CMD_PLAN | OX_CMD_EVAL)) != 0;
    for (uint32_t i = 0; i < c->memory.nvme_count; i++) {
        if (sized && c->memory.nvme[i].bytes == 0) {
            return ox_fail(OX_E_CONFIG, "--nvme: %s has no size; write it as %s:400GiB", c->memory.nvme[i].path,
                           c->memory.nvme[i].path);
        }
        for (uint32_t k = 0; k < i; k++) {
            if (same_folder(c->memory.nvme[i].path, c->memory.nvme[k].path)) {
                return ox_fail(OX_E_CONFIG, "--nvme: %s is given twice; give each drive once",
                               c->memory.nvme[i].path);
            }
        }
    }
    const struct {
        const char *flag;
        enum ox_tier_choice choice;
    } homes[] = {{"--weights-tier", c->place.weights_tier},
                 {"--state-tier", c->place.state_tier},
                 {"--grads-tier", c->place.grads_tier},
                 {"--activation-tier", c->place.activation_tier}};
    for (unsigned i = 0; i < sizeof homes / sizeof *homes; i++) {
        if (sized && homes[i].choice == OX_TIER_CHOICE_NVME && c->memory.nvme_count == 0) {
            return command == OX_CMD_EVAL
                       ? ox_fail(OX_E_CONFIG, "%s nvme: evaluation uses no drives; use device or host",
                                 homes[i].flag)
                       : ox_fail(OX_E_CONFIG, "%s nvme needs a drive; add --nvme PATH:SIZE", homes[i].flag);
        }
    }
    if (c->place.chunk_elems % OX_GROUP_ELEMS != 0) {
        return ox_fail(OX_E_CONFIG, "--chunk-elems: %" PRIu64 " is not a multiple of %d", c->place.chunk_elems,
                       OX_GROUP_ELEMS);
    }
    return OX_OK;
}

static enum ox_status check_optimizer(const struct ox_config *c, unsigned command) {
    const bool optimizes = (command & (OX_CMD_TRAIN | OX_CMD_PLAN)) != 0;
    if (optimizes && c->optim.moments == OX_MOMENTS_Q8 && c->train.dtype != OX_COMPUTE_BF16) {
        return ox_fail(OX_E_CONFIG, "--moments q8 keeps 24 bits of a weight, but --dtype %s computes with 32; use "
                       "--moments bf16, or --dtype bf16", c->train.dtype == OX_COMPUTE_FP32 ? "fp32" : "fp16");
    }
    if (optimizes && c->train.dtype != OX_COMPUTE_FP16 &&
        (c->loss.loss_scale > 0 || c->loss.initial_scale_power != 16 || c->loss.loss_scale_window != 2000)) {
        return ox_fail(OX_E_CONFIG, "%s: only --dtype fp16 scales the loss; leave it out, or use that",
                       c->loss.loss_scale > 0              ? "--loss-scale"
                       : c->loss.initial_scale_power != 16 ? "--initial-scale-power"
                                                           : "--loss-scale-window");
    }
    if (c->save.eval_ema && c->optim.ema_decay == 0) {
        return ox_fail(OX_E_CONFIG, "--eval-ema: there are no averages; add --ema-decay, such as 0.999");
    }
    if (optimizes && c->optim.optimizer == OX_OPTIM_MUON && c->optim.moments == OX_MOMENTS_Q8) {
        return ox_fail(OX_E_CONFIG, "--moments %s: --optimizer muon has moments in f32 or bf16; use bf16",
                       ox_moments_name(c->optim.moments));
    }
    const struct {
        const char *flag;
        double beta;
    } betas[] = {{"--adam-beta1", c->optim.adam_beta1}, {"--adam-beta2", c->optim.adam_beta2}};
    for (unsigned i = 0; i < 2; i++) {
        /* The comparison is in fp32, as the optimizer computes. With a beta of 1 the weights would never change. */
        if ((float)betas[i].beta >= 1.0f) {
            return ox_fail(OX_E_CONFIG, "%s: %.17g must be less than 1", betas[i].flag, betas[i].beta);
        }
    }
    if ((float)c->optim.adam_epsilon <= 0.0f) {
        return ox_fail(OX_E_CONFIG, "--adam-epsilon: %.17g must be more than 0 in single precision",
                       c->optim.adam_epsilon);
    }
    return OX_OK;
}

/* Refuses options of the learning rate that its schedule does not read, or that contradict each other. */
static enum ox_status check_rate(const struct ox_config *c) {
    enum {
        COSINES = 1 << OX_LR_COSINE | 1 << OX_LR_COSINE_WITH_MIN_LR | 1 << OX_LR_COSINE_WARMUP_WITH_MIN_LR,
        STABLE = 1 << OX_LR_WSD | 1 << OX_LR_WARMUP_STABLE_DECAY,
        LEVEL = 1 << OX_LR_CONSTANT | 1 << OX_LR_CONSTANT_WITH_WARMUP | 1 << OX_LR_INVERSE_SQRT,
    };
    const struct {
        const char *flag, *instead;
        bool given;
        unsigned types; /* the schedules that read it, as bits */
    } uses[] = {
        {"--warmup-steps", "constant_with_warmup", c->optim.warmup_steps > 0, ~(1u << OX_LR_CONSTANT)},
        {"--warmup-ratio", "constant_with_warmup", c->optim.warmup_ratio > 0, ~(1u << OX_LR_CONSTANT)},
        {"--min-lr", "linear", c->optim.min_lr > 0, ~(unsigned)LEVEL},
        {"--min-lr-ratio", "linear", c->optim.min_lr_ratio > 0, ~(unsigned)LEVEL},
        {"--decay-steps", "wsd", c->optim.decay_steps > 0, STABLE},
        {"--lr-decay-type", "wsd", c->optim.lr_decay_type != OX_DECAY_AUTO, STABLE},
        {"--lr-num-cycles", "cosine_with_restarts", c->optim.lr_num_cycles > 0,
         COSINES | STABLE | 1 << OX_LR_COSINE_WITH_RESTARTS},
        {"--lr-power", "polynomial", c->optim.lr_power != 1.0, 1 << OX_LR_POLYNOMIAL},
        {"--lr-timescale", "inverse_sqrt", c->optim.lr_timescale > 0, 1 << OX_LR_INVERSE_SQRT},
    };
    char type[OX_CONFIG_TEXT_BYTES];
    ox_config_text(c, ox_option_find("lr-scheduler-type"), type);
    for (unsigned i = 0; i < sizeof uses / sizeof *uses; i++) {
        if (uses[i].given && (uses[i].types & 1u << c->optim.lr_scheduler_type) == 0) {
            return ox_fail(OX_E_CONFIG, "%s does not apply to --lr-scheduler-type %s; remove it, or use %s",
                           uses[i].flag, type, uses[i].instead);
        }
    }
    if (c->optim.min_lr > 0 && c->optim.min_lr_ratio > 0) {
        return ox_fail(OX_E_CONFIG, "--min-lr and --min-lr-ratio are both given; give one of them");
    }
    if (c->optim.learning_rate > 0 && c->optim.min_lr > c->optim.learning_rate) {
        return ox_fail(OX_E_CONFIG, "--min-lr %g is above --learning-rate %g; give a smaller one", c->optim.min_lr,
                       c->optim.learning_rate);
    }
    if ((c->optim.lr_scheduler_type == OX_LR_COSINE_WITH_MIN_LR ||
         c->optim.lr_scheduler_type == OX_LR_COSINE_WARMUP_WITH_MIN_LR) &&
        c->optim.min_lr == 0 && c->optim.min_lr_ratio == 0) {
        return ox_fail(OX_E_CONFIG, "--lr-scheduler-type %s needs a final rate; add --min-lr or --min-lr-ratio", type);
    }
    return OX_OK;
}

/* Sets the micro-batches of a step, which --global-batch-size may say as a number of sequences. Runs record the
 * micro-batches alone, so that both ways to say it are equal at a resume. */
static enum ox_status set_micro_batches(struct ox_config *c) {
    const uint64_t global = c->train.global_batch_size, batch = c->train.per_device_train_batch_size,
                   count = global / batch;
    if (global == 0) {
        c->train.gradient_accumulation_steps = ox_max_u64(c->train.gradient_accumulation_steps, 1);
        return OX_OK;
    }
    if (global % batch != 0) {
        char below[48] = "";
        if (count > 0) {
            snprintf(below, sizeof below, "%" PRIu64 " or ", count * batch);
        }
        return ox_fail(OX_E_CONFIG, "--global-batch-size: %" PRIu64 " is not a multiple of "
                       "--per-device-train-batch-size %" PRIu64 "; give %s%" PRIu64, global, batch, below,
                       (count + 1) * batch);
    }
    if (count > OX_MICRO_BATCHES_MAX) {
        return ox_fail(OX_E_CONFIG, "--global-batch-size: %" PRIu64 " is more than %d micro-batches of "
                       "--per-device-train-batch-size %" PRIu64 "; give at most %" PRIu64, global,
                       OX_MICRO_BATCHES_MAX, batch, OX_MICRO_BATCHES_MAX * batch);
    }
    if (c->train.gradient_accumulation_steps > 0 && c->train.gradient_accumulation_steps != count) {
        return ox_fail(OX_E_CONFIG, "--global-batch-size %" PRIu64 " is %" PRIu64 " micro-batch%s of "
                       "--per-device-train-batch-size %" PRIu64 ", but --gradient-accumulation-steps asks for %" PRIu64
                       "; leave one of them out", global, count, ox_plural_es(count), batch,
                       c->train.gradient_accumulation_steps);
    }
    c->train.gradient_accumulation_steps = count;
    c->train.global_batch_size = 0;
    c->train.as_sequences = true;
    return OX_OK;
}

enum ox_status ox_config_check_warmup(const struct ox_config *c) {
    const uint64_t warmup = c->optim.warmup_steps > 0 ? (uint64_t)c->optim.warmup_steps : 0;
    if (c->train.max_steps == 0 || warmup + c->optim.decay_steps <= c->train.max_steps) {
        return OX_OK;
    }
    return warmup > 0 && c->optim.decay_steps > 0
               ? ox_fail(OX_E_CONFIG, "--warmup-steps %" PRIu64 " and --decay-steps %" PRIu64
                         " together exceed --max-steps %" PRIu64 "; reduce one of them",
                         warmup, c->optim.decay_steps, c->train.max_steps)
               : ox_fail(OX_E_CONFIG, "--%s-steps %" PRIu64 " exceeds --max-steps %" PRIu64 "; give at most that",
                         warmup > 0 ? "warmup" : "decay", warmup + c->optim.decay_steps, c->train.max_steps);
}

static enum ox_status check_schedule(const struct ox_config *c) {
    if (c->train.max_steps == 0 && c->train.num_train_epochs == 0.0) {
        return ox_fail(OX_E_CONFIG, "--max-steps and --num-train-epochs are both 0; give one of them");
    }
    if (c->optim.warmup_steps > 0 && c->optim.warmup_ratio > 0.0) {
        return ox_fail(OX_E_CONFIG, "--warmup-steps and --warmup-ratio are both given; give one of them");
    }
    enum ox_status status = check_rate(c);
    OX_THEN(status, c->files.resume_from_checkpoint[0] == '\0' ? ox_config_check_warmup(c) : OX_OK);
    if (status != OX_OK) {
        return status;
    }
    if (c->train.sum_groups > c->train.gradient_accumulation_steps) {
        return ox_fail(OX_E_CONFIG, "--sum-groups: %" PRIu64 " exceeds --gradient-accumulation-steps %" PRIu64
                       ", the number of micro-batches; give at most that",
                       c->train.sum_groups, c->train.gradient_accumulation_steps);
    }
    if (c->place.tiles > c->train.gradient_accumulation_steps) {
        return ox_fail(OX_E_CONFIG,
                       "--tiles: %" PRIu64 " exceeds --gradient-accumulation-steps %" PRIu64
                       ", the number of micro-batches; give at most that",
                       c->place.tiles, c->train.gradient_accumulation_steps);
    }
    return OX_OK;
}

static bool is_count(const char *text) {
    return text[0] != '\0' && text[0] != '0' && strlen(text) < 16 && text[strspn(text, "0123456789")] == '\0';
}

static enum ox_status check_kept(const struct ox_config_place *place) {
    if (!is_count(place->kept_blocks) && strcmp(place->kept_blocks, "0") != 0 &&
        strcmp(place->kept_blocks, "auto") != 0) {
        return ox_fail(OX_E_CONFIG, "--kept-blocks: '%s' is neither auto nor a number of blocks", place->kept_blocks);
    }
    return OX_OK;
}

static enum ox_status check_ranks(const struct ox_config_ranks *ranks) {
    if (strcmp(ranks->count, "auto") != 0 &&
        (!is_count(ranks->count) || strtoull(ranks->count, NULL, 10) > OX_PLAN_RANKS_MAX)) {
        return ox_fail(OX_E_CONFIG, "--ranks: '%s' is neither auto nor a number of ranks, 1 to %d", ranks->count,
                       OX_PLAN_RANKS_MAX);
    }
    return OX_OK;
}

static enum ox_status check_persist(const struct ox_config *c) {
    const bool speculative = strcmp(c->place.optimizer_overlap, "speculative") == 0 || c->place.speculative_units > 0;
    if (!is_count(c->memory.persist_steps) && strcmp(c->memory.persist_steps, "auto") != 0) {
        return ox_fail(OX_E_CONFIG, "--persist-steps: '%s' is neither auto nor a number of steps",
                       c->memory.persist_steps);
    }
    if (speculative && c->memory.nvme_count > 0 && c->memory.store_generations == 1) {
        return ox_fail(OX_E_CONFIG, "--store-generations 1: requested updates in backward need a second slot on the "
                       "drives; use --store-generations 2, or --optimizer-overlap held without --speculative-units");
    }
    return OX_OK;
}

static enum ox_status check_reports(const struct ox_config_save *save) {
    if (!is_count(save->trace) && strcmp(save->trace, "on") != 0 && strcmp(save->trace, "off") != 0) {
        return ox_fail(OX_E_CONFIG, "--trace: '%s' is none of off, on or a number of steps", save->trace);
    }
    return OX_OK;
}

/* A share of all steps for the warmup is what --warmup-ratio says. */
static void set_warmup(struct ox_config *c) {
    if (c->optim.warmup_steps > 0 && c->optim.warmup_steps < 1) {
        c->optim.warmup_ratio = c->optim.warmup_steps;
        c->optim.warmup_steps = -1;
    }
}

enum ox_status ox_config_validate(struct ox_config *config, unsigned command) {
    struct ox_eval_sets sets;
    enum ox_status status = ox_config_eval_sets(config->files.eval_data, &sets);
    OX_THEN(status, check_paths(config, command));
    OX_THEN(status, set_micro_batches(config));
    OX_THEN(status, check_memory(config, command));
    OX_THEN(status, check_optimizer(config, command));
    OX_THEN(status, check_schedule(config));
    OX_THEN(status, check_persist(config));
    OX_THEN(status, check_kept(&config->place));
    OX_THEN(status, check_ranks(&config->ranks));
    OX_THEN(status, check_reports(&config->save));
    if (status == OX_OK) {
        set_warmup(config);
    }
    return status;
}
