/* The configuration of a run: one struct, one option table behind flags, YAML keys and help.
 * Names are those of Hugging Face TrainingArguments wherever one exists. */
#ifndef OX_ENGINE_CONFIG_H
#define OX_ENGINE_CONFIG_H

#include "base/optim_format.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_CONFIG_TEXT_BYTES = 1024, OX_CONFIG_PROSE_BYTES = 16384, OX_CONFIG_NVME_MAX = 16, OX_CONFIG_DATA_MAX = 16 };

struct ox_nvme_budget {
    char path[OX_CONFIG_TEXT_BYTES];
    uint64_t bytes;
};

/* Smaller weights could not be written without an exponent, which would be read as part of the path. */
#define OX_CONFIG_WEIGHT_MIN 1e-6

struct ox_data_choice {
    char path[OX_CONFIG_TEXT_BYTES];
    double weight; /* passes over it in an epoch */
};

enum ox_compute_dtype { OX_COMPUTE_FP32, OX_COMPUTE_BF16 };
enum ox_tier_choice { OX_TIER_CHOICE_AUTO, OX_TIER_CHOICE_DEVICE, OX_TIER_CHOICE_HOST, OX_TIER_CHOICE_NVME };
enum ox_device_choice { OX_DEVICE_CHOICE_AUTO, OX_DEVICE_CHOICE_CPU, OX_DEVICE_CHOICE_CUDA };
enum ox_data_format { OX_FORMAT_AUTO, OX_FORMAT_TEXT, OX_FORMAT_JSONL, OX_FORMAT_BYTES, OX_FORMAT_TOKENS };
enum ox_auto_choice { OX_CHOICE_AUTO, OX_CHOICE_ON, OX_CHOICE_OFF };
enum ox_packing_choice { OX_PACKING_AUTO, OX_PACKING_STREAM, OX_PACKING_PACK, OX_PACKING_PAD };
enum ox_overlong_choice { OX_LONG_AUTO, OX_LONG_SPLIT, OX_LONG_TRUNCATE, OX_LONG_DROP };
enum ox_report_choice { OX_REPORT_NONE, OX_REPORT_TENSORBOARD, OX_REPORT_PROMETHEUS, OX_REPORT_ALL };
enum ox_lr_schedule { OX_LR_CONSTANT, OX_LR_LINEAR, OX_LR_COSINE, OX_LR_WSD };

struct ox_config {
    /* what */
    char model[OX_CONFIG_TEXT_BYTES];      /* folder, or a config.json for a fresh start */
    struct ox_data_choice data[OX_CONFIG_DATA_MAX]; /* --data PATH[:WEIGHT], repeated */
    uint32_t data_count;
    char eval_data[OX_CONFIG_TEXT_BYTES];  /* "" = the held-out end of `data` */
    char tokenizer[OX_CONFIG_TEXT_BYTES];  /* folder or tokenizer.json; "" = the model's */
    char output_dir[OX_CONFIG_TEXT_BYTES]; /* --output, --output-dir */
    bool from_scratch;                     /* fresh weights even if the folder has some */
    double eval_fraction;                  /* of `data`, held out at its end */
    bool overwrite_output_dir;             /* start over where a run is: its files and store are deleted */
    /* how text becomes rows */
    enum ox_data_format data_format;
    char document_separator[256];  /* with \n and the like written out; "" = a file is a document */
    enum ox_auto_choice add_bos, add_eos;
    char chat_template[32];        /* "" = told by the model's own */
    bool parse_special;            /* in the texts of chats too */
    enum ox_packing_choice packing;
    enum ox_auto_choice document_mask;
    enum ox_overlong_choice overlong;
    char data_cache[OX_CONFIG_TEXT_BYTES]; /* folder; "" = OUTPUT/cache, or nothing kept */
    /* how much memory */
    enum ox_device_choice device;
    uint64_t device_mem_bytes; /* 0 = of a GPU what is free; of the CPU: host memory is device memory */
    uint64_t host_mem_bytes;   /* 0 = what the machine has free, less a reserve */
    struct ox_nvme_budget nvme[OX_CONFIG_NVME_MAX]; /* --nvme PATH:SIZE, repeated */
    uint32_t nvme_count;
    uint64_t store_generations; /* 2, or 1: half the room, and no step survives a crash within the next */
    char persist_steps[24];     /* auto | count: how often a state in memory goes to the drives */
    uint64_t drive_endurance_bytes; /* what each drive is rated for; 0 = not known */
    bool accept_wear;
    /* training */
    uint64_t max_steps;
    double num_train_epochs; /* used when max_steps is 0 */
    uint64_t per_device_train_batch_size; /* sequences per micro-batch */
    uint64_t gradient_accumulation_steps; /* micro-batches per step */
    uint64_t max_seq_length;
    double learning_rate, weight_decay, adam_beta1, adam_beta2, adam_epsilon, max_grad_norm;
    bool decay_embeddings;
    enum ox_lr_schedule lr_scheduler_type;
    uint64_t warmup_steps;
    double warmup_ratio;
    double min_lr_ratio;   /* floor of linear, cosine and wsd, as a share of learning_rate */
    uint64_t decay_steps;  /* wsd: length of the final decay; 0 = a tenth of max_steps */
    uint64_t seed;
    bool decay_all;
    char data_order[16];   /* shuffle | sequential */
    enum ox_compute_dtype dtype;     /* --dtype fp32|bf16 */
    enum ox_compute_dtype grad_dtype; /* --grad-dtype: how a finished gradient leaves the device */
    enum ox_optim_kind optimizer;
    enum ox_moments moments; /* --moments: how the optimizer's moments are kept */
    uint64_t max_nonfinite_steps; /* in a row, before the run stops */
    /* reporting and saving */
    uint64_t logging_steps, save_steps, eval_steps, eval_windows;
    uint64_t save_total_limit; /* 0 = keep all */
    char trace[24];       /* off | on | steps to record */
    uint64_t trace_bytes; /* of trace.bin */
    enum ox_report_choice report_to;
    char save_dtype[8];        /* bf16 | fp32: of the exported weights */
    char resume_from_checkpoint[OX_CONFIG_TEXT_BYTES]; /* "" | "latest" | folder */
    double stop_grace_seconds;
    /* placement: changes speed and traffic, never bits */
    uint64_t tiles;          /* 0 = planner's choice */
    int64_t prefetch_depth;  /* -1 = planner's choice */
    uint64_t chunk_elems;    /* parameters per chunk */
    char optimizer_overlap[16];  /* auto, off, held, speculative */
    int64_t speculative_units;   /* -1: planned */
    enum ox_tier_choice activation_tier; /* activation checkpoints */
    char kept_blocks[24];    /* auto | count: of blocks that keep their activations for backward */
    enum ox_tier_choice weights_tier, state_tier, grads_tier; /* homes; auto = what fits, nearest first */
    uint64_t device_state_units; /* 0 = planner's choice */
    char io_backend[16];     /* auto | uring | threads */
    uint64_t optimizer_threads; /* 0 = all cores */
    uint64_t compute_threads;   /* 0 = all cores; a matter of numerics */
    char isa[16];            /* auto | scalar | avx2 | avx512 | neon: of the optimizer */
    uint64_t chaos_seed;     /* for tests: random delays on every lane */
    char profile[OX_CONFIG_TEXT_BYTES]; /* of the machine, for predictions; "" = nominal rates */
    uint64_t queue_depth;    /* requests in flight per drive queue */
    /* evaluation */
    uint64_t stride, max_windows; /* 0 = --max-seq-length; 0 = all */
    bool bos_per_window;
    /* generation */
    char prompt[OX_CONFIG_PROSE_BYTES], system_prompt[OX_CONFIG_PROSE_BYTES];
    char prompt_file[OX_CONFIG_TEXT_BYTES];
    bool chat, ignore_eos;
    bool thinking; /* false: the answer begins behind an empty reasoning, where the template has one */
    uint64_t max_new_tokens, top_k, top_logits;
    double temperature, top_p;
    /* command behaviour */
    bool dry_run;
    bool plan_only;  /* no option: the command makes a plan and no run, perhaps for another machine */
    char format[12]; /* text | json; of an exported trace chrome | perfetto */
    char action[8];  /* report | export: what to do with a trace; "" = not given */
    char run[OX_CONFIG_TEXT_BYTES]; /* the folder of a run, or a file of it */
    bool once;       /* look once and end */
    bool jsonl;     /* lines in, lines out */
    bool show;      /* rows for a person to check */
    /* measuring */
    char what[8];    /* adam | nvme | gemm | copy | all; "" = not given */
    char state_format[8]; /* all | f32 | bf16 | q8 */
    uint64_t rounds, size_bytes; /* 0 = as the measurement likes */
    bool strict;     /* a missed limit fails the command */
    /* help */
    char topic[32]; /* a command; "" = all of them */
    char as[8];     /* text | man | bash | zsh | fish | names */
};

enum ox_option_type {
    OX_OPT_TEXT,   /* char[text_bytes] */
    OX_OPT_U64, OX_OPT_I64, OX_OPT_DOUBLE, OX_OPT_BOOL,
    OX_OPT_SIZE,   /* bytes, "20GiB" */
    OX_OPT_CHOICE, /* an enum (int) by its names in `choices` */
    OX_OPT_NVME,   /* PATH:SIZE, repeatable */
    OX_OPT_DATA,   /* PATH or PATH:WEIGHT, repeatable */
    OX_OPT_PROSE,  /* char[text_bytes]: any UTF-8, line ends too */
};

/* Which commands take an option. */
enum {
    OX_CMD_TRAIN = 1 << 0, OX_CMD_PLAN = 1 << 1, OX_CMD_EVAL = 1 << 2, OX_CMD_INSPECT = 1 << 3,
    OX_CMD_EXPORT = 1 << 4, OX_CMD_DOCTOR = 1 << 5, OX_CMD_BENCH = 1 << 6, OX_CMD_TOKENIZE = 1 << 7,
    OX_CMD_GENERATE = 1 << 8, OX_CMD_HELP = 1 << 9, OX_CMD_TRACE = 1 << 10, OX_CMD_TOP = 1 << 11,
};

struct ox_option {
    const char *name; /* kebab-case; YAML keys and flags also accept snake_case */
    const char *alias; /* second name or NULL */
    enum ox_option_type type;
    size_t offset, text_bytes; /* in struct ox_config */
    double min, max;           /* of numbers; inclusive */
    const char *choices;       /* "fp32|bf16", or NULL */
    const char *placeholder;   /* what help calls the value, or NULL: by its type */
    const char *group;         /* heading in help */
    const char *help;          /* one line */
    const char *default_text;
    unsigned commands;
};

const struct ox_option *ox_options(uint32_t *count);
/* By name or alias, '_' equal to '-'; NULL when unknown. */
const struct ox_option *ox_option_find(const char *name);
/* Edits that turn one name into the other: insertions, deletions, replacements, swaps of neighbours. */
unsigned ox_name_distance(const char *a, const char *b);
/* The name of the one command in `commands`, "train"; "" when it is not one. */
const char *ox_command_name(unsigned command);
/* The closest option name to an unknown one, for "did you mean", or NULL. Among those of `commands`. */
const char *ox_option_suggest(const char *name, unsigned commands);

bool ox_option_is_list(const struct ox_option *option);

void ox_config_init(struct ox_config *config); /* the defaults, parsed from default_text */
/* An option's value as ox_config_set reads it; empty for lists (config->nvme, config->data) and prose. `text`
 * has OX_CONFIG_TEXT_BYTES. */
void ox_config_text(const struct ox_config *config, const struct ox_option *option, char *text);
/* `where` names the source ("--learning-rate", "run.yaml:12: learning_rate") in errors. */
OX_MUST enum ox_status ox_config_set(struct ox_config *config, const struct ox_option *option,
                                     const char *text, const char *where);
/* Cross-checks: what contradicts, is missing or out of range, named with its remedy. */
OX_MUST enum ox_status ox_config_validate(const struct ox_config *config, unsigned command);
/* YAML file (libyaml): a flat mapping of option names; unknown keys are errors with line and suggestion. TRAIN, PLAN
 * and EVAL take all keys of a run, each other's too, so that config.resolved.yaml serves all three. */
OX_MUST enum ox_status ox_config_load_yaml(struct ox_config *config, const char *path, unsigned command);
/* The resolved configuration as YAML that ox_config_load_yaml reads back to the same values. free() it. */
OX_MUST enum ox_status ox_config_to_yaml(const struct ox_config *config, unsigned command, char **text);

#ifdef __cplusplus
}
#endif
#endif
