/* The configuration of a command: one struct, and one option table behind flags, YAML keys, help, manual page and shell
 * completion. tools/command fills it from flags and files; engine/run and the commands read it. Options have the names
 * of Hugging Face's TrainingArguments wherever there is one. */
#ifndef OX_ENGINE_CONFIG_H
#define OX_ENGINE_CONFIG_H

#include "base/optim_format.h"
#include "base/planes.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_MICRO_BATCHES_MAX = 1048576 }; /* in a step */
enum { OX_RANKS_MAX = 64, OX_PLAN_RANKS_MAX = 1024 }; /* of a run, and of any group of ranks; of a plan */
enum { OX_CONFIG_TEXT_BYTES = 1024, OX_CONFIG_PROSE_BYTES = 16384, OX_CONFIG_NVME_MAX = 16, OX_CONFIG_DATA_MAX = 16 };

struct ox_nvme_budget {
    char path[OX_CONFIG_TEXT_BYTES];
    uint64_t bytes;
};

/* The smallest weight other than 0. Smaller ones would need an exponent, which reads as part of the path. */
#define OX_CONFIG_WEIGHT_MIN 1e-6

struct ox_data_choice {
    char path[OX_CONFIG_TEXT_BYTES];
    double weight; /* passes over it in an epoch */
};

/* What --eval-data names: one path, or several as "name=path,name=path". */
enum { OX_EVAL_SETS_MAX = 8, OX_EVAL_NAME_BYTES = 32 };
struct ox_eval_set {
    char name[OX_EVAL_NAME_BYTES]; /* "": the only one, without a name */
    char path[OX_CONFIG_TEXT_BYTES];
};
struct ox_eval_sets {
    uint32_t count;
    struct ox_eval_set sets[OX_EVAL_SETS_MAX];
};

enum ox_tier_choice { OX_TIER_CHOICE_AUTO, OX_TIER_CHOICE_DEVICE, OX_TIER_CHOICE_HOST, OX_TIER_CHOICE_NVME };
enum ox_device_choice { OX_DEVICE_CHOICE_AUTO, OX_DEVICE_CHOICE_CPU, OX_DEVICE_CHOICE_CUDA };
enum ox_data_format { OX_FORMAT_AUTO, OX_FORMAT_TEXT, OX_FORMAT_JSONL, OX_FORMAT_BYTES, OX_FORMAT_TOKENS };
enum ox_auto_choice { OX_CHOICE_AUTO, OX_CHOICE_ON, OX_CHOICE_OFF };
enum ox_eval_strategy { OX_EVAL_BY_STEPS, OX_EVAL_BY_EPOCH, OX_EVAL_NEVER };
enum ox_save_strategy { OX_SAVE_BY_STEPS, OX_SAVE_BY_EPOCH, OX_SAVE_BEST, OX_SAVE_LAST };
enum ox_train_on_choice { OX_TRAIN_ALL, OX_TRAIN_LAST, OX_TRAIN_PROMPTS };
enum ox_idle_experts { OX_IDLE_ZEROS /* a gradient of zeros */, OX_IDLE_SKIP };
enum ox_router_dtype { OX_ROUTER_FP32, OX_ROUTER_MODEL };
enum ox_packing_choice { OX_PACKING_AUTO, OX_PACKING_STREAM, OX_PACKING_PACK, OX_PACKING_PAD };
enum ox_overlong_choice { OX_LONG_AUTO, OX_LONG_SPLIT, OX_LONG_TRUNCATE, OX_LONG_DROP };
enum ox_report_choice { OX_REPORT_NONE, OX_REPORT_TENSORBOARD, OX_REPORT_PROMETHEUS, OX_REPORT_ALL };
/* Runs record the number of their schedule, so new ones go to the end. */
enum ox_lr_schedule {
    OX_LR_CONSTANT, OX_LR_LINEAR, OX_LR_COSINE, OX_LR_WSD, OX_LR_COSINE_WITH_RESTARTS, OX_LR_POLYNOMIAL,
    OX_LR_CONSTANT_WITH_WARMUP, OX_LR_INVERSE_SQRT, OX_LR_COSINE_WITH_MIN_LR, OX_LR_COSINE_WARMUP_WITH_MIN_LR,
    OX_LR_WARMUP_STABLE_DECAY,
};
enum ox_sharding_choice {
    OX_SHARDING_CHOICE_AUTO, OX_SHARDING_CHOICE_FULL_SHARD, OX_SHARDING_CHOICE_SHARD_GRAD_OP, OX_SHARDING_CHOICE_ZERO1,
    OX_SHARDING_CHOICE_ZERO2, OX_SHARDING_CHOICE_ZERO3, OX_SHARDING_CHOICE_NO_SHARD, OX_SHARDING_CHOICE_SHARED,
    OX_SHARDING_CHOICE_HYBRID_SHARD, OX_SHARDING_CHOICE_HYBRID_SHARD_ZERO2,
};
enum { OX_CONFIG_MESH_BYTES = 64 };
enum ox_pipeline_choice { /* as enum ox_pipe_schedule, behind auto */
    OX_PIPELINE_CHOICE_AUTO, OX_PIPELINE_CHOICE_VERTICAL, OX_PIPELINE_CHOICE_GPIPE, OX_PIPELINE_CHOICE_1F1B,
    OX_PIPELINE_CHOICE_INTERLEAVED,
};
enum ox_reduction_choice { OX_REDUCTION_FIXED, OX_REDUCTION_LIBRARY };
enum ox_comm_choice { OX_COMM_CHOICE_AUTO, OX_COMM_CHOICE_LOCAL, OX_COMM_CHOICE_NCCL };
enum ox_resize_choice { OX_RESIZE_OFF, OX_RESIZE_MEAN, OX_RESIZE_FRESH };
enum ox_mixture_choice { OX_MIXTURE_PASSES, OX_MIXTURE_TOKENS };
enum ox_word_rules { OX_WORDS_GPT2, OX_WORDS_LLAMA3, OX_WORDS_QWEN2 }; /* as enum ox_bpe_words */
enum ox_dpo_loss { OX_DPO_SIGMOID, OX_DPO_IPO, OX_DPO_ROBUST, OX_DPO_HINGE }; /* as enum ox_pair_loss */
enum ox_lr_decay { OX_DECAY_AUTO, OX_DECAY_LINEAR, OX_DECAY_COSINE, OX_DECAY_1_SQRT };

/* Paths: what is read, and where results go. */
struct ox_config_files {
    char model[OX_CONFIG_TEXT_BYTES];      /* folder, or a config.json for a fresh start */
    struct ox_data_choice data[OX_CONFIG_DATA_MAX]; /* --data PATH[:WEIGHT], repeated */
    uint32_t data_count;
    char eval_data[OX_CONFIG_TEXT_BYTES];  /* "": the held-out end of `data` */
    char tokenizer[OX_CONFIG_TEXT_BYTES];  /* folder or tokenizer.json; "": the model's */
    char output_dir[OX_CONFIG_TEXT_BYTES]; /* --output, --output-dir */
    enum ox_resize_choice resize_embeddings; /* rows for tokens that the tokenizer has and the model has not */
    bool from_scratch;                     /* fresh weights even if the folder has some */
    bool overwrite_output_dir;             /* delete the files and the store of a run in output_dir */
    char resume_from_checkpoint[OX_CONFIG_TEXT_BYTES]; /* "" | "latest" | folder */
    char picture[OX_CONFIG_TEXT_BYTES]; /* file for a drawing of the plan; "": none */
    char profile[OX_CONFIG_TEXT_BYTES]; /* file of the machine's speeds, for predictions; "": none */
    /* Not options: whether a run without a profile measures this machine, and where that is kept ("": nowhere). */
    bool measure;
    char measure_folder[OX_CONFIG_TEXT_BYTES];
    char temporary_folder[OX_CONFIG_TEXT_BYTES]; /* not an option: that of the system, for a last resort; "": none */
    char given_profile[OX_CONFIG_TEXT_BYTES]; /* not an option: --profile as it was given, for the record of the run */
    char run[OX_CONFIG_TEXT_BYTES]; /* the folder of a run, or a file in it */
};

/* How text becomes rows, and how much of them is held out. */
struct ox_config_rows {
    double eval_fraction;                  /* share of `data` that is held out at its end */
    double held_share; /* not an option: of `eval`, the eval_fraction of the run whose held-out rows are measured; 0:
                          all rows are */
    bool as_run; /* not an option: of `eval`, whether the data are measured as the run of the options measures them */
    enum ox_data_format data_format;
    char document_separator[256];  /* with escapes such as \n; "": a file is one document */
    enum ox_auto_choice add_bos, add_eos;
    char chat_template[OX_CONFIG_TEXT_BYTES]; /* file or name; "": the model's own */
    char chat_template_kwargs[OX_CONFIG_PROSE_BYTES]; /* a JSON object; "": none */
    enum ox_train_on_choice train_on;
    bool parse_special;            /* also in the texts of chats */
    /* names of the keys of rows and messages; "": the usual ones */
    char column_messages[64], column_prompt[64], column_completion[64], column_instruction[64], column_input[64],
        column_output[64], column_system[64], column_text[64], column_tools[64], column_role[64], column_content[64];
    enum ox_packing_choice packing;
    uint64_t skip_bad_rows; /* rows of each of `data` that may be left out because they cannot be used */
    enum ox_mixture_choice mixture; /* what the weights of `data` mean */
    enum ox_auto_choice document_mask;
    enum ox_overlong_choice overlong;
    char data_cache[OX_CONFIG_TEXT_BYTES]; /* folder; "": OUTPUT/cache for train, else no cache */
    uint64_t max_seq_length;
    bool seq_given; /* not an option: --max-seq-length is given, by a flag or in a file */
    char data_order[16];   /* shuffle | sequential */
};

/* Devices and how much of each kind of memory and drive a command may take. */
struct ox_config_memory {
    enum ox_device_choice device;
    uint64_t device_mem_bytes; /* 0: what is free on the GPU; on the CPU, host memory is device memory */
    uint64_t host_mem_bytes;   /* 0: what the machine has free, less a reserve */
    struct ox_nvme_budget nvme[OX_CONFIG_NVME_MAX]; /* --nvme PATH:SIZE, repeated */
    uint32_t nvme_count;
    uint64_t store_generations; /* 1: a crash goes back to the last checkpoint; 2; 3; 0: 2 or 3 */
    char persist_steps[24];     /* auto | count: steps between writes of a state in memory to the drives */
    uint64_t drive_endurance_bytes; /* bytes written that each drive is rated for; 0: unknown */
    bool accept_wear;
    bool verify_memory; /* compare state in memory with checksums */
    char io_backend[16];     /* auto | uring | threads */
    uint64_t queue_depth;    /* requests in flight per drive queue */
};

/* How long to train, on batches of which size, in which number format. */
struct ox_config_train {
    uint64_t max_steps;
    double num_train_epochs; /* used when max_steps is 0 */
    uint64_t per_device_train_batch_size; /* sequences per micro-batch */
    uint64_t gradient_accumulation_steps; /* micro-batches per step, of all ranks; 0: not validated yet */
    bool as_sequences; /* not an option: --global-batch-size said them */
    uint64_t global_batch_size; /* sequences per step, another way to say that; 0 after ox_config_validate */
    uint64_t context_groups; /* of rows of every sequence, each summed by itself; 0: ranks that divide them */
    uint64_t sum_groups; /* of micro-batches, each of which is summed by itself; 0: the number of ranks */
    uint64_t tensor_groups; /* of features, each of which is computed by itself; 0: as in the run resumed, or 1 */
    uint64_t seed;
    enum ox_compute_dtype dtype;     /* --dtype fp32|bf16|fp16 */
    enum ox_compute_dtype grad_dtype; /* --grad-dtype: format in which finished gradients leave the device */
    uint64_t max_nonfinite_steps; /* skipped steps in a row before the run stops */
    uint64_t max_time_ns;      /* of this process, after which the run saves and ends; 0: no limit */
    double stop_grace_seconds;
    double save_wait_seconds; /* how long a last save is tried again if only memory has the state */
};

/* What frozen weights are kept in: as the folder has them, or in eight bits (base/optim_format.h). */
enum ox_base_dtype { OX_BASE_SAME, OX_BASE_Q8 };

/* What of a model is trained, and with which adapters. */
struct ox_config_parts {
    char freeze[OX_CONFIG_TEXT_BYTES];
    char share_layers[24]; /* "": no layers share their weights; all | count: so many in succession do */
    char group[OX_CONFIG_TEXT_BYTES];
    uint64_t lora_r; /* 0: no fresh adapters */
    double lora_alpha;
    double lora_dropout;
    bool use_rslora;
    char lora_target_modules[OX_CONFIG_TEXT_BYTES], adapter[OX_CONFIG_TEXT_BYTES];
    char lora_target_parameters[OX_CONFIG_TEXT_BYTES], lora_modules_to_save[OX_CONFIG_TEXT_BYTES];
    bool use_dora;
    uint32_t lora_bias; /* enum ox_lora_bias of engine/family */
    uint32_t base_dtype; /* enum ox_base_dtype */
};

/* What is added up to the loss, and by what it is scaled. */
struct ox_config_loss {
    double label_smoothing_factor, z_loss_coef, neftune_noise_alpha;
    bool dpo; /* rows are preferences, and batches and windows are counted in pairs */
    enum ox_dpo_loss dpo_loss;
    double dpo_beta, dpo_label_smoothing, dpo_sft_coef;
    double router_aux_loss_coef; /* factor of the balance loss of routers; -1: as config.json says */
    double router_z_loss_coef;
    enum ox_router_dtype router_dtype;
    double loss_scale;            /* fp16: factor of the loss; 0: found by overflows, from 2^initial_scale_power on */
    uint64_t initial_scale_power;
    uint64_t loss_scale_window;   /* steps in a row without overflow after which the scale doubles */
};

/* The update and the schedule of its rate. */
struct ox_config_optim {
    double learning_rate; /* 0: by whether weights are given */
    double ema_decay; /* of averages of the weights; 0: none */
    bool use_ema;     /* read them instead of the weights */
    double weight_decay, adam_beta1, adam_beta2, adam_epsilon, max_grad_norm;
    double muon_momentum;
    bool muon_nesterov;
    uint64_t muon_ns_steps;
    uint32_t muon_adjust_lr_fn; /* enum ox_muon_ratio of cpu_optim */
    double router_bias_update_rate; /* by which the bias of a choice moves after a step; 0: it stays */
    enum ox_idle_experts idle_experts;
    bool decay_embeddings;
    enum ox_lr_schedule lr_scheduler_type;
    double warmup_steps; /* whole; -1: by warmup_ratio, or by whether weights are given */
    double warmup_ratio;
    double min_lr, min_lr_ratio; /* final rate, and the same as a share of learning_rate; both 0: the schedule's own */
    uint64_t decay_steps;  /* wsd, warmup_stable_decay: length of the final decay; 0: a tenth of max_steps */
    enum ox_lr_decay lr_decay_type; /* their shape of it */
    double lr_num_cycles;  /* cosine: waves; cosine_with_restarts: starts; 0: the schedule's own */
    double lr_power;       /* polynomial: its exponent */
    uint64_t lr_timescale; /* inverse_sqrt; 0: the warmup, or 10000 without one */
    bool decay_all;
    enum ox_optim_kind optimizer;
    enum ox_moments moments;      /* --moments: number format of the optimizer's moments */
};

/* What a run evaluates, reports and saves, and when. */
struct ox_config_save {
    double logging_steps, save_steps, eval_steps; /* whole, or a share of all steps until ox_config_count_steps */
    uint64_t eval_windows;
    uint64_t save_total_limit; /* 0: keep all */
    bool save_only_model;          /* checkpoints without the optimizer's state */
    uint64_t save_optimizer_limit; /* newest checkpoints that keep it; 0: all */
    enum ox_eval_strategy eval_strategy;
    enum ox_save_strategy save_strategy;
    double eval_delay;         /* steps, or epochs where evaluations are by epoch, before the first one */
    bool eval_ema; /* of averages too */
    bool eval_on_start;        /* before the first step of a run */
    char metric_for_best_model[64]; /* eval_loss, eval_perplexity or eval_NAME_loss; "eval_" may be missing */
    enum ox_auto_choice greater_is_better; /* on is refused: every metric is a loss or grows with one */
    bool load_best_model_at_end; /* the run's result is its best checkpoint */
    uint64_t early_stopping_patience; /* evaluations without an improvement at which the run ends; 0: none do */
    double early_stopping_threshold;  /* an improvement is greater than this */
    char trace[24];       /* off | on | steps to record */
    uint64_t trace_bytes; /* largest size of trace.bin */
    enum ox_report_choice report_to;
    char save_dtype[8];        /* auto | bf16 | fp16 | fp32: format of saved weights */
};

/* Placement: changes speed and traffic, never bits. */
struct ox_config_place {
    uint64_t tiles;          /* 0: planned */
    int64_t prefetch_depth;  /* -1: planned */
    uint64_t chunk_elems;    /* parameters per chunk */
    char optimizer_overlap[16];  /* auto, off, held, speculative */
    int64_t speculative_units;   /* -1: planned */
    enum ox_tier_choice activation_tier; /* activation checkpoints */
    char kept_blocks[24];    /* auto | count: blocks that keep their activations for backward */
    char experts_per_unit[24]; /* auto | all | count: experts of a block that are a unit of their own */
    enum ox_tier_choice weights_tier, state_tier, grads_tier; /* homes; auto: the nearest with room */
    uint64_t device_state_units; /* 0: planned */
    bool device_state_first;
    bool own_attention; /* on a GPU: by our own kernels, also where cuDNN is installed */
    uint64_t optimizer_threads; /* 0: all cores, less two for each rank on a GPU */
    uint64_t compute_threads;   /* 0: all cores */
    char isa[16];            /* auto | scalar | avx2 | avx512 | neon, for the optimizer */
    uint64_t chaos_seed;     /* for tests: random delays on every lane; 0: none */
};

/* Devices that do a step together. No bit depends on them. */
struct ox_config_ranks {
    uint32_t processes; /* not an option: how many a launcher has started; 0: 1 */
    char count[24];          /* auto | count: devices that do a step together */
    enum ox_sharding_choice sharding;   /* what they divide */
    uint64_t shard_size; /* of hybrid sharding: ranks of a copy; 0: those of a machine */
    char mesh[OX_CONFIG_MESH_BYTES];   /* "" | auto | sizes as in dp=2,pp=4 */
    uint64_t data_parallel_size, pipeline_parallel_size; /* 0: as --mesh or --ranks say */
    uint64_t context_parallel_size, tensor_parallel_size, expert_parallel_size; /* 0: as --mesh says, or 1 */
    int context_parallel_mode; /* auto, gather, ulysses, ring, and these by other names */
    enum ox_pipeline_choice pipeline_schedule;
    uint64_t virtual_pipeline_size; /* runs of stages of each rank, where the schedule is interleaved */
    enum ox_reduction_choice reduction; /* who adds their gradients */
    enum ox_exchange_dtype exchange_dtype; /* in what sums travel between them: the same words in the same order */
    uint64_t powersgd_rank, powersgd_start_step; /* columns of the matrices that processes exchange; 0: they exchange
                                                    sums */
    double powersgd_min_rate;
    bool powersgd_warm_start;
    enum ox_comm_choice comm; /* what carries memory of GPUs */
    uint64_t comm_timeout_ns; /* how long a rank waits for the others */
    bool comm_debug; /* hosts agree about each call of NCCL before it begins */
};

/* Windows of an evaluation. */
struct ox_config_eval {
    uint64_t stride, max_windows; /* stride 0: --max-seq-length; max_windows 0: all */
    bool bos_per_window;
    char reference[OX_CONFIG_TEXT_BYTES]; /* the model that preferences are measured against */
};

/* What `generate` writes. */
struct ox_config_write {
    char prompt[OX_CONFIG_PROSE_BYTES], system_prompt[OX_CONFIG_PROSE_BYTES];
    bool prompt_given; /* not an option: --prompt is given, perhaps empty */
    char prompt_file[OX_CONFIG_TEXT_BYTES];
    bool chat, ignore_eos;
    bool thinking; /* false: the prompt ends with an empty reasoning, if the template has one */
    uint64_t max_new_tokens, top_k, top_logits;
    double temperature, top_p, repetition_penalty;
    char stop[OX_CONFIG_TEXT_BYTES]; /* as for ox_stop_texts_open */
    uint64_t num_return_sequences;
};

/* What `tokenize` and `init` make. */
struct ox_config_vocab {
    bool jsonl;      /* tokenize: JSON lines in and out */
    bool show;       /* tokenize: print sequences for a person to check */
    bool render;     /* tokenize: print conversations as the chat template writes them */
    /* tokenize --train */
    bool train_tokenizer; /* `data` was given by --train */
    uint64_t vocab_size, min_frequency; /* vocab_size 0: not given */
    char special_tokens[OX_CONFIG_TEXT_BYTES];
    enum ox_word_rules word_rules; /* --pre-tokenizer */
    /* init */
    char params[24]; /* "100M"; "": those of the shape that `like` names */
    char like[40];   /* a model_type, or the name of a shape */
};

/* What `bench` and `doctor` measure. */
struct ox_config_bench {
    char what[8];    /* adam | nvme | gemm | copy | ops | comm | all; "": not given */
    char state_format[8]; /* all | f32 | bf16 | q8 */
    uint64_t rounds, size_bytes; /* 0: the default of each measurement */
    bool strict;     /* a missed limit fails the command */
};

/* How a command behaves and prints. */
struct ox_config_tool {
    int unlock_moments; /* enum ox_unlock_moments */
    int64_t clock_s; /* not an option: what a clock that shows local time read when the command began, in seconds since
                        it read the beginning of 1970. Chat templates print it */
    bool dry_run;
    bool plan_only;  /* not an option: the command plans without a run, perhaps for another machine */
    bool quiet;      /* warnings, errors and the result alone */
    bool verbose;    /* a plan says how many tasks and buffers it has */
    char format[12]; /* text | json; trace export: chrome | perfetto */
    char action[8];  /* report | export: what to do with a trace; "": not given */
    bool once;       /* top: print the state once and exit */
    bool are_runs;        /* not an option: `data` are the runs of `compare` */
    bool are_models;      /* not an option: `data` are what `average` averages */
    /* help */
    char topic[32]; /* a command; "": all of them */
    char as[8];     /* text | man | bash | zsh | fish | names */
};

/* Everything that the options of a command say, each part for those who read it. */
struct ox_config {
    struct ox_config_files files;
    struct ox_config_rows rows;
    struct ox_config_memory memory;
    struct ox_config_train train;
    struct ox_config_parts parts;
    struct ox_config_loss loss;
    struct ox_config_optim optim;
    struct ox_config_save save;
    struct ox_config_place place;
    struct ox_config_ranks ranks;
    struct ox_config_eval eval;
    struct ox_config_write write;
    struct ox_config_vocab vocab;
    struct ox_config_bench bench;
    struct ox_config_tool tool;
};

enum ox_option_type {
    OX_OPT_TEXT,   /* char[text_bytes] */
    OX_OPT_U64, OX_OPT_I64, OX_OPT_DOUBLE, OX_OPT_BOOL,
    OX_OPT_STEPS,  /* a double: whole steps, or below 1 a share of all steps, as the Trainer has it */
    OX_OPT_SIZE,   /* bytes, "20GiB" */
    OX_OPT_DURATION, /* nanoseconds, "10min"; its range too */
    OX_OPT_CHOICE, /* an enum (int), by the position of the name in `choices` */
    OX_OPT_NVME,   /* PATH:SIZE, repeatable */
    OX_OPT_DATA,   /* PATH or PATH:WEIGHT, repeatable */
    OX_OPT_PROSE,  /* char[text_bytes]: any UTF-8, with line ends */
    OX_OPT_PATTERNS, /* char[text_bytes]: comma-separated, repeatable; a list in YAML */
};

/* The commands, as bits of ox_option.commands. */
enum {
    OX_CMD_TRAIN = 1 << 0, OX_CMD_PLAN = 1 << 1, OX_CMD_EVAL = 1 << 2, OX_CMD_INSPECT = 1 << 3,
    OX_CMD_EXPORT = 1 << 4, OX_CMD_DOCTOR = 1 << 5, OX_CMD_BENCH = 1 << 6, OX_CMD_TOKENIZE = 1 << 7,
    OX_CMD_GENERATE = 1 << 8, OX_CMD_HELP = 1 << 9, OX_CMD_TRACE = 1 << 10, OX_CMD_TOP = 1 << 11,
    OX_CMD_STORE = 1 << 12, OX_CMD_INIT = 1 << 13, OX_CMD_COMPARE = 1 << 14,
    OX_CMD_MERGE = 1 << 15, OX_CMD_AVERAGE = 1 << 16, OX_CMD_UNLOCK = 1 << 17,
};

/* What of a run depends on an option, so that a resume with another value is reported. */
enum ox_option_bears { OX_BEARS_NOTHING, OX_BEARS_BITS, OX_BEARS_TOKENS /* which tokens are made of the data */ };

struct ox_option {
    const char *name; /* kebab-case; YAML keys and flags also accept snake_case */
    const char *alias; /* second name or NULL */
    enum ox_option_type type;
    size_t offset, text_bytes; /* where the member of struct ox_config lies; its bytes if it is a text */
    double min, max;           /* range of a number, inclusive */
    const char *choices;       /* "fp32|bf16", or NULL; values match in any case, '-' as '_' */
    const char *placeholder;   /* name of the value in help; NULL: named by its type */
    const char *group;         /* heading in help */
    const char *help;          /* one line */
    const char *default_text;
    unsigned commands;
    const char *in_eval; /* the option that the flag stands for in `eval`, which does not take this one; or NULL */
    unsigned usual; /* the commands whose help begins with it */
    enum ox_option_bears bears;
};

/* The option table, of *count options in the order of help. An option that means something else, or takes other values,
 * in another command has several entries there, of one member and no command in common. */
const struct ox_option *ox_options(uint32_t *count);
/* Finds an option by name or alias, with '_' equal to '-': the first entry of that name that one of `commands` has;
 * NULL for an unknown name. */
const struct ox_option *ox_option_find_in(const char *name, unsigned commands);
/* Finds an option that any command has. */
const struct ox_option *ox_option_find(const char *name);
/* The name of a command, such as "train" for OX_CMD_TRAIN; "" if `command` is not exactly one. */
const char *ox_command_name(unsigned command);
/* Writes "did you mean '--a' or '--b'?" with the options of `commands` that an unknown name may mean, as flags or,
 * without `flag`, as keys of YAML. False if it may mean none or too many. */
enum { OX_SUGGEST_BYTES = 320 };
bool ox_option_suggest(const char *name, unsigned commands, bool flag, char text[OX_SUGGEST_BYTES]);
/* What may have been meant by a text that is no value of the option, such as "; write 1000" or "; did you mean
 * cosine?"; "" if nothing is near. */
const char *ox_value_hint(const struct ox_option *option, const char *text, char hint[OX_SUGGEST_BYTES]);

/* What to use in place of a flag of another program that does not exist in `commands` (`value` is NULL), or of a value
 * that an option does not have; NULL for a name that is not known either. The answer follows the name and a colon. */
const char *ox_foreign_answer(const char *name, const char *value, unsigned commands);
/* Whether a value of another program's name means what is done here anyway. *own: for an option of ours, the word of
 * ours that the value means, else NULL. */
bool ox_foreign_is_done(const char *name, const char *value, const char **own);
/* What to use in place of a command that does not exist; NULL for a name that is not known. */
const char *ox_foreign_command(const char *name);

bool ox_option_is_list(const struct ox_option *option);
/* Adds patterns, with commas between them, to those that an option has. */
OX_MUST enum ox_status ox_config_add_patterns(char *patterns, const struct ox_option *option, const char *text,
                                              const char *where);
/* Makes a list empty. */
void ox_config_clear_list(struct ox_config *config, const struct ox_option *option);

/* Refuses an address such as s3://bucket, which would become folders of that name. */
OX_MUST enum ox_status ox_config_check_local(const char *where, const char *path);

/* Sets every option to its default. */
void ox_config_init(struct ox_config *config);
/* Writes an option's value as text that ox_config_set reads back; empty for lists (nvme and data) and
 * prose. `text` has room for OX_CONFIG_TEXT_BYTES. */
void ox_config_text(const struct ox_config *config, const struct ox_option *option, char *text);
/* Sets an option from text; a list gets one more item. A value that does not fit is OX_E_CONFIG, and the message begins
 * with `where`, the source of the text ("--learning-rate", "run.yaml:12: learning_rate"). */
OX_MUST enum ox_status ox_config_set(struct ox_config *config, const struct ox_option *option,
                                     const char *text, const char *where);
/* The steps that an option of type OX_OPT_STEPS means: a share of all is rounded up, as by the Trainer. */
uint64_t ox_config_steps(double given, uint64_t total_steps);
/* Turns such shares into steps. */
void ox_config_count_steps(struct ox_config *config, uint64_t total_steps);
/* Divides --eval-data. What exists as a file or folder, or has no name before an '=', is one path. Names are letters,
 * digits and '_', each given once. "" is no set. */
OX_MUST enum ox_status ox_config_eval_sets(const char *text, struct ox_eval_sets *out);
/* Checks the options against each other, and sets gradient_accumulation_steps where another option says it. Options of
 * the command that are missing or contradict each other are OX_E_CONFIG, with the remedy. */
OX_MUST enum ox_status ox_config_validate(struct ox_config *config, unsigned command);
/* Checks that warmup and decay fit into --max-steps. ox_config_validate does that but for a resume, whose state decides
 * whether there is a step left. */
OX_MUST enum ox_status ox_config_check_warmup(const struct ox_config *config);
/* Sets options from a YAML file, a flat mapping of option names. An unknown key is OX_E_CONFIG with its line and a
 * suggestion. TRAIN, PLAN and EVAL also accept each other's keys, so that config.resolved.yaml serves all three. */
OX_MUST enum ox_status ox_config_load_yaml(struct ox_config *config, const char *path, unsigned command);
/* Writes the options of `command` as YAML that ox_config_load_yaml reads back to the same values. The caller frees
 * *text with free(). */
OX_MUST enum ox_status ox_config_to_yaml(const struct ox_config *config, unsigned command, char **text);

#ifdef __cplusplus
}
#endif
#endif
