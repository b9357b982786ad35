/* The option table, the one source of flags, YAML keys, defaults, help, manual page and shell completion. */
#include "engine/config/config.h"

#include "base/assert.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { RUN = OX_CMD_TRAIN | OX_CMD_PLAN, TEXTS = RUN | OX_CMD_EVAL | OX_CMD_TOKENIZE, NAME_BYTES_MAX = 64 };

static const char group_files[] = "Files";
static const char group_data[] = "Data";
static const char group_memory[] = "Memory";
static const char group_training[] = "Training";
static const char group_rate[] = "Learning rate";
static const char group_numbers[] = "Numbers";
static const char group_reports[] = "Reports and checkpoints";
static const char group_placement[] = "Placement: changes speed and traffic, never results";
static const char group_ranks[] = "Ranks";
static const char group_generation[] = "Generation";
static const char group_command[] = "Command";
static const char group_measuring[] = "Measuring";
static const char group_help[] = "Help";

/* Gives the sizeof of a member, as in `sizeof none->model`; it is never read. */
__attribute__((unused)) static const struct ox_config *const none;

static const struct ox_option options[] = {
    {.name = "model", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, model),
     .text_bytes = sizeof none->model, .group = group_files, .default_text = "",
     .commands = RUN | OX_CMD_EVAL | OX_CMD_INSPECT | OX_CMD_EXPORT | OX_CMD_TOKENIZE | OX_CMD_GENERATE |
                 OX_CMD_BENCH,
     .help = "model folder of Hugging Face files, or a config.json for a fresh start; bench: whose sizes are measured"},
    {.name = "data", .type = OX_OPT_DATA, .offset = offsetof(struct ox_config, data), .group = group_files,
     .default_text = "", .commands = RUN | OX_CMD_EVAL | OX_CMD_TOKENIZE,
     .help = "text, JSON lines, token file, or a folder of them; may be repeated; PATH:WEIGHT takes WEIGHT passes over "
             "it in an epoch"},
    {.name = "eval-data", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, eval_data),
     .text_bytes = sizeof none->eval_data, .group = group_files, .default_text = "", .commands = RUN,
     .in_eval = "data",
     .help = "text to evaluate on; default: the held-out end of --data"},
    {.name = "tokenizer", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, tokenizer),
     .text_bytes = sizeof none->tokenizer, .group = group_files, .default_text = "",
     .commands = RUN | OX_CMD_EVAL | OX_CMD_TOKENIZE | OX_CMD_GENERATE,
     .help = "folder with tokenizer.json, or the file; default: the model's own"},
    {.name = "output", .alias = "output-dir", .type = OX_OPT_TEXT,
     .offset = offsetof(struct ox_config, output_dir), .text_bytes = sizeof none->output_dir,
     .group = group_files, .default_text = "",
     .commands = RUN | OX_CMD_EXPORT | OX_CMD_TOKENIZE | OX_CMD_BENCH | OX_CMD_TRACE,
     .help = "folder for the results; tokenize, bench and trace: the file to write"},
    {.name = "from-scratch", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, from_scratch),
     .group = group_files, .default_text = "false", .commands = RUN,
     .help = "start from fresh weights even if the model folder has some"},
    {.name = "eval-fraction", .type = OX_OPT_DOUBLE, .offset = offsetof(struct ox_config, eval_fraction),
     .min = 0, .max = 0.5, .group = group_files, .default_text = "0.02", .commands = RUN,
     .help = "share of --data held out at its end for evaluation"},
    {.name = "resume-from-checkpoint", .alias = "resume", .placeholder = "latest|PATH", .type = OX_OPT_TEXT,
     .offset = offsetof(struct ox_config, resume_from_checkpoint),
     .text_bytes = sizeof none->resume_from_checkpoint, .group = group_files, .default_text = "",
     .commands = RUN, .help = "checkpoint to continue from: latest, or a folder"},
    {.name = "overwrite-output-dir", .type = OX_OPT_BOOL,
     .offset = offsetof(struct ox_config, overwrite_output_dir), .group = group_files, .default_text = "false",
     .commands = RUN, .help = "start over in a folder with a run: deletes its checkpoints and its store"},
    {.name = "data-format", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, data_format),
     .choices = "auto|text|jsonl|bytes|tokens", .group = group_data, .default_text = "auto", .commands = TEXTS,
     .help = "format of --data; auto: token files by their first bytes, rows by the ending .jsonl, .ndjson or .json, "
             "else text if the model has a tokenizer, and bytes if its vocabulary has 256"},
    {.name = "document-separator", .placeholder = "TEXT", .type = OX_OPT_TEXT,
     .offset = offsetof(struct ox_config, document_separator),
     .text_bytes = sizeof none->document_separator, .group = group_data, .default_text = "", .commands = TEXTS,
     .help = "text between the documents of a file, such as '<|endoftext|>' or '\\n\\n'; default: a file is one "
             "document"},
    {.name = "add-bos", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, add_bos),
     .choices = "auto|on|off", .group = group_data, .default_text = "auto", .commands = TEXTS,
     .help = "add BOS before every document; auto: as the tokenizer does, but not when eval reads plain text"},
    {.name = "add-eos", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, add_eos),
     .choices = "auto|on|off", .group = group_data, .default_text = "auto", .commands = TEXTS,
     .help = "add EOS after every document; auto: if the tokenizer has one, but not when eval reads plain text"},
    {.name = "chat-template", .placeholder = "FILE|NAME", .type = OX_OPT_TEXT,
     .offset = offsetof(struct ox_config, chat_template),
     .text_bytes = sizeof none->chat_template, .group = group_data, .default_text = "",
     .commands = TEXTS | OX_CMD_GENERATE,
     .help = "template of conversations: a file, a named template of the model, or a built-in one (chatml, llama2, "
             "llama3, mistral-v1, qwen2.5, qwen3, gemma ...); default: the model's own"},
    {.name = "chat-template-kwargs", .placeholder = "JSON", .type = OX_OPT_PROSE,
     .offset = offsetof(struct ox_config, chat_template_kwargs),
     .text_bytes = sizeof none->chat_template_kwargs, .group = group_data, .default_text = "",
     .commands = TEXTS | OX_CMD_GENERATE,
     .help = "variables of the chat template, such as '{\"enable_thinking\": false}'; those of a row precede"},
    {.name = "train-on", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, train_on),
     .choices = "all|last|prompts", .group = group_data, .default_text = "all", .commands = TEXTS,
     .help = "what of a conversation is trained; all: every assistant turn; last: the last one; prompts: everything"},
    {.name = "parse-special", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, parse_special),
     .group = group_data, .default_text = "false", .commands = TEXTS,
     .help = "turn special-token strings inside the texts of conversations into those tokens"},
    {.name = "column-messages", .placeholder = "KEY", .type = OX_OPT_TEXT,
     .offset = offsetof(struct ox_config, column_messages), .text_bytes = sizeof none->column_messages,
     .group = group_data, .default_text = "", .commands = TEXTS,
     .help = "key of the messages of a conversation; default: messages or conversations"},
    {.name = "column-prompt", .placeholder = "KEY", .type = OX_OPT_TEXT,
     .offset = offsetof(struct ox_config, column_prompt), .text_bytes = sizeof none->column_prompt,
     .group = group_data, .default_text = "", .commands = TEXTS,
     .help = "key of the prompt, a text or messages; default: prompt"},
    {.name = "column-completion", .placeholder = "KEY", .type = OX_OPT_TEXT,
     .offset = offsetof(struct ox_config, column_completion), .text_bytes = sizeof none->column_completion,
     .group = group_data, .default_text = "", .commands = TEXTS,
     .help = "key of the completion of a prompt; default: completion"},
    {.name = "column-instruction", .placeholder = "KEY", .type = OX_OPT_TEXT,
     .offset = offsetof(struct ox_config, column_instruction), .text_bytes = sizeof none->column_instruction,
     .group = group_data, .default_text = "", .commands = TEXTS,
     .help = "key of the instruction; default: instruction"},
    {.name = "column-input", .placeholder = "KEY", .type = OX_OPT_TEXT,
     .offset = offsetof(struct ox_config, column_input), .text_bytes = sizeof none->column_input,
     .group = group_data, .default_text = "", .commands = TEXTS,
     .help = "key of what an instruction is about; default: input or context"},
    {.name = "column-output", .placeholder = "KEY", .type = OX_OPT_TEXT,
     .offset = offsetof(struct ox_config, column_output), .text_bytes = sizeof none->column_output,
     .group = group_data, .default_text = "", .commands = TEXTS,
     .help = "key of the answer to an instruction; default: output or response"},
    {.name = "column-system", .placeholder = "KEY", .type = OX_OPT_TEXT,
     .offset = offsetof(struct ox_config, column_system), .text_bytes = sizeof none->column_system,
     .group = group_data, .default_text = "", .commands = TEXTS,
     .help = "key of the system message of a row; default: system"},
    {.name = "column-text", .placeholder = "KEY", .type = OX_OPT_TEXT,
     .offset = offsetof(struct ox_config, column_text), .text_bytes = sizeof none->column_text,
     .group = group_data, .default_text = "", .commands = TEXTS,
     .help = "key of the text of a row; default: text"},
    {.name = "column-tools", .placeholder = "KEY", .type = OX_OPT_TEXT,
     .offset = offsetof(struct ox_config, column_tools), .text_bytes = sizeof none->column_tools,
     .group = group_data, .default_text = "", .commands = TEXTS,
     .help = "key of the tools of a conversation; default: tools"},
    {.name = "column-role", .placeholder = "KEY", .type = OX_OPT_TEXT,
     .offset = offsetof(struct ox_config, column_role), .text_bytes = sizeof none->column_role,
     .group = group_data, .default_text = "", .commands = TEXTS,
     .help = "key of the role in a message; default: role or from"},
    {.name = "column-content", .placeholder = "KEY", .type = OX_OPT_TEXT,
     .offset = offsetof(struct ox_config, column_content), .text_bytes = sizeof none->column_content,
     .group = group_data, .default_text = "", .commands = TEXTS,
     .help = "key of the content in a message; default: content or value"},
    {.name = "packing", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, packing),
     .choices = "auto|stream|pack|pad", .group = group_data, .default_text = "auto", .commands = TEXTS,
     .help = "how documents fill sequences; stream: one after another, cut every --max-seq-length tokens; pack: whole "
             "documents side by side; pad: one document per sequence; auto: pack for conversations, else stream"},
    {.name = "document-mask", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, document_mask),
     .choices = "auto|on|off", .group = group_data, .default_text = "auto", .commands = TEXTS,
     .help = "on: attention and positions end with each document; off: a stream is one text; auto: on"},
    {.name = "overlong", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, overlong),
     .choices = "auto|split|truncate|drop", .group = group_data, .default_text = "auto", .commands = TEXTS,
     .help = "what to do with documents longer than --max-seq-length when packed or padded; auto: truncate "
             "conversations, split texts"},
    {.name = "data-cache", .placeholder = "FOLDER", .type = OX_OPT_TEXT,
     .offset = offsetof(struct ox_config, data_cache),
     .text_bytes = sizeof none->data_cache, .group = group_data, .default_text = "", .commands = TEXTS,
     .help = "folder for the tokens of texts, reused while nothing has changed; default for train: OUTPUT/cache"},
    {.name = "device", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, device), .choices = "auto|cpu|cuda",
     .group = group_memory, .default_text = "auto", .commands = RUN | OX_CMD_EVAL | OX_CMD_GENERATE | OX_CMD_BENCH,
     .help = "device that computes; auto: a GPU if there is one; for a plan with --profile, the GPU that it names"},
    {.name = "device-mem", .type = OX_OPT_SIZE, .offset = offsetof(struct ox_config, device_mem_bytes),
     .min = 0, .max = 0x1p62, .group = group_memory, .default_text = "0",
     .commands = RUN | OX_CMD_EVAL | OX_CMD_GENERATE,
     .help = "device memory to use, such as 20GiB; 0: what is free on the GPU; on the CPU, host memory is device "
             "memory"},
    {.name = "host-mem", .type = OX_OPT_SIZE, .offset = offsetof(struct ox_config, host_mem_bytes), .min = 0,
     .max = 0x1p62, .group = group_memory, .default_text = "0",
     .commands = RUN | OX_CMD_EVAL | OX_CMD_GENERATE | OX_CMD_TOKENIZE,
     .help = "host memory to use, such as 64GiB; 0: what is free, less a reserve"},
    {.name = "nvme", .type = OX_OPT_NVME, .offset = offsetof(struct ox_config, nvme), .group = group_memory,
     .default_text = "", .commands = RUN | OX_CMD_DOCTOR | OX_CMD_BENCH,
     .help = "folder on a drive and how much of it to use, such as /mnt/nvme0:400GiB; may be repeated"},
    {.name = "store-generations", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, store_generations), .min = 1,
     .max = 3, .group = group_memory, .default_text = "2", .commands = RUN,
     .help = "copies of the state on drives; 2: a crash goes back to the last commit; 1: half the space, but a crash "
             "goes back to the last checkpoint; 3: updates in backward of state on drives also in steps that "
             "--persist-steps leaves uncommitted"},
    {.name = "persist-steps", .placeholder = "auto|N", .type = OX_OPT_TEXT,
     .offset = offsetof(struct ox_config, persist_steps), .text_bytes = sizeof none->persist_steps,
     .group = group_memory, .default_text = "auto", .commands = RUN,
     .help = "commit every N steps: write what of the state lives in memory to the drives; a crash loses at most N "
             "steps; auto: as often as costs 2 % of the time"},
    {.name = "verify-memory", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, verify_memory),
     .group = group_memory, .default_text = "true", .commands = RUN,
     .help = "keep checksums of the weights and the state in host memory, and compare them in each update; changed "
             "memory ends the step, and the run goes back to the last commit"},
    {.name = "drive-endurance", .type = OX_OPT_SIZE, .offset = offsetof(struct ox_config, drive_endurance_bytes),
     .min = 0, .max = 0x1p62, .group = group_memory, .default_text = "0", .commands = RUN,
     .help = "bytes written that each drive is rated for, such as 600TB; the plan then shows the share that the run "
             "uses"},
    {.name = "accept-wear", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, accept_wear),
     .group = group_memory, .default_text = "false", .commands = RUN,
     .help = "run even if it uses more than a tenth of --drive-endurance"},
    {.name = "max-steps", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, max_steps), .min = 0,
     .max = 1e+12, .group = group_training, .default_text = "0", .commands = RUN,
     .help = "optimizer steps; 0: as many as --num-train-epochs needs"},
    {.name = "num-train-epochs", .alias = "epochs", .type = OX_OPT_DOUBLE,
     .offset = offsetof(struct ox_config, num_train_epochs), .min = 0, .max = 1000000,
     .group = group_training, .default_text = "1", .commands = RUN,
     .help = "passes over the data when --max-steps is 0; the last step of an epoch takes what is left of it"},
    {.name = "per-device-train-batch-size", .alias = "batch-size", .type = OX_OPT_U64,
     .offset = offsetof(struct ox_config, per_device_train_batch_size), .min = 1, .max = 65536,
     .group = group_training, .default_text = "1", .commands = RUN | OX_CMD_EVAL,
     .help = "sequences in a micro-batch"},
    {.name = "gradient-accumulation-steps", .type = OX_OPT_U64,
     .offset = offsetof(struct ox_config, gradient_accumulation_steps), .min = 0, .max = OX_MICRO_BATCHES_MAX,
     .group = group_training, .default_text = "0", .commands = RUN,
     .help = "micro-batches in a step, of all ranks together; 0: as many as --global-batch-size asks for, else 1"},
    {.name = "global-batch-size", .alias = "train-batch-size", .type = OX_OPT_U64,
     .offset = offsetof(struct ox_config, global_batch_size), .min = 0, .max = 0x1p36, .group = group_training,
     .default_text = "0", .commands = RUN,
     .help = "sequences in a step, of all ranks together: a multiple of --per-device-train-batch-size; 0: as "
             "--gradient-accumulation-steps says"},
    {.name = "sum-groups", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, sum_groups), .min = 0,
     .max = OX_MICRO_BATCHES_MAX, .group = group_training, .default_text = "0", .commands = RUN,
     .help = "groups of micro-batches whose gradients are summed apart and then joined in a fixed tree, so that up to "
             "as many ranks give the same bits; 0: as many as there are ranks"},
    {.name = "max-seq-length", .alias = "seq-len", .type = OX_OPT_U64,
     .offset = offsetof(struct ox_config, max_seq_length), .min = 1, .max = 16777216, .group = group_training,
     .default_text = "1024", .commands = TEXTS, .help = "tokens in a sequence, at most the model's context length"},
    {.name = "stride", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, stride), .min = 0, .max = 16777216,
     .group = group_training, .default_text = "0", .commands = OX_CMD_EVAL,
     .help = "start a window every N tokens; each counts only tokens that no earlier window counted; 0: "
             "--max-seq-length, so that every token but the first counts once"},
    {.name = "max-windows", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, max_windows), .min = 0,
     .max = 1e+12, .group = group_training, .default_text = "0", .commands = OX_CMD_EVAL | OX_CMD_TOKENIZE,
     .help = "use only the first N windows of every file; 0: all; tokenize --show: windows to print, 0: 1"},
    {.name = "bos-per-window", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, bos_per_window),
     .group = group_training, .default_text = "false", .commands = TEXTS,
     .help = "make every window of BOS and the next --max-seq-length tokens"},
    {.name = "max-grad-norm", .type = OX_OPT_DOUBLE, .offset = offsetof(struct ox_config, max_grad_norm),
     .min = 0, .max = 1e+30, .group = group_training, .default_text = "1", .commands = RUN,
     .help = "clip gradients to this global norm; 0: never"},
    {.name = "weight-decay", .type = OX_OPT_DOUBLE, .offset = offsetof(struct ox_config, weight_decay),
     .min = 0, .max = 1000, .group = group_training, .default_text = "0.1", .commands = RUN,
     .help = "decoupled weight decay of weight matrices"},
    {.name = "decay-embeddings", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, decay_embeddings),
     .group = group_training, .default_text = "true", .commands = RUN,
     .help = "apply weight decay to embeddings too, as the Trainer does"},
    {.name = "decay-all", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, decay_all),
     .group = group_training, .default_text = "false", .commands = RUN,
     .help = "apply weight decay to every parameter, norms and biases too"},
    {.name = "adam-beta1", .type = OX_OPT_DOUBLE, .offset = offsetof(struct ox_config, adam_beta1), .min = 0,
     .max = 1, .group = group_training, .default_text = "0.9", .commands = RUN,
     .help = "decay rate of the first moment; sgd: the momentum"},
    {.name = "adam-beta2", .type = OX_OPT_DOUBLE, .offset = offsetof(struct ox_config, adam_beta2), .min = 0,
     .max = 1, .group = group_training, .default_text = "0.95", .commands = RUN,
     .help = "decay rate of the second moment; lion: of its one moment"},
    {.name = "adam-epsilon", .type = OX_OPT_DOUBLE, .offset = offsetof(struct ox_config, adam_epsilon),
     .min = 0, .max = 1, .group = group_training, .default_text = "1e-8", .commands = RUN,
     .help = "term added to the square root of the second moment"},
    {.name = "seed", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, seed), .min = 0, .max = 0x1p64,
     .group = group_training, .default_text = "42", .commands = RUN | OX_CMD_TOKENIZE | OX_CMD_GENERATE,
     .help = "random seed of fresh weights, data order and sampling"},
    {.name = "data-order", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, data_order),
     .text_bytes = sizeof none->data_order, .choices = "shuffle|sequential", .group = group_training,
     .default_text = "shuffle", .commands = RUN | OX_CMD_TOKENIZE, .help = "order of the sequences in an epoch"},
    {.name = "max-nonfinite-steps", .type = OX_OPT_U64,
     .offset = offsetof(struct ox_config, max_nonfinite_steps), .min = 1, .max = 1000000,
     .group = group_training, .default_text = "10", .commands = RUN,
     .help = "steps in a row that may be skipped for NaN or Inf before the run stops"},
    {.name = "learning-rate", .alias = "lr", .type = OX_OPT_DOUBLE,
     .offset = offsetof(struct ox_config, learning_rate), .min = 0, .max = 100, .group = group_rate,
     .default_text = "0", .commands = RUN,
     .help = "peak learning rate; 0: 2e-5 where --model has weights, 1e-4 for fresh ones"},
    {.name = "lr-scheduler-type", .alias = "lr-schedule", .placeholder = "NAME", .type = OX_OPT_CHOICE,
     .offset = offsetof(struct ox_config, lr_scheduler_type), 
     .choices = "constant|linear|cosine|wsd|cosine_with_restarts|polynomial|constant_with_warmup|inverse_sqrt|"
                "cosine_with_min_lr|cosine_warmup_with_min_lr|warmup_stable_decay",
     .group = group_rate, .default_text = "linear", .commands = RUN,
     .help = "shape of the learning rate, by the Trainer's names: linear, cosine, cosine_with_restarts, polynomial, "
             "constant, constant_with_warmup, inverse_sqrt, cosine_with_min_lr, cosine_warmup_with_min_lr, "
             "warmup_stable_decay; wsd decays linearly"},
    {.name = "warmup-steps", .type = OX_OPT_I64, .offset = offsetof(struct ox_config, warmup_steps),
     .min = -1, .max = 1e+12, .group = group_rate, .default_text = "-1", .commands = RUN,
     .help = "steps over which the learning rate rises from 0: that of step s, counted from 0, is peak * s / N; -1: "
             "by --warmup-ratio, else 3 % of all where --model has weights"},
    {.name = "warmup-ratio", .type = OX_OPT_DOUBLE, .offset = offsetof(struct ox_config, warmup_ratio),
     .min = 0, .max = 1, .group = group_rate, .default_text = "0", .commands = RUN,
     .help = "--warmup-steps as a share of all steps"},
    {.name = "min-lr", .type = OX_OPT_DOUBLE, .offset = offsetof(struct ox_config, min_lr), .min = 0, .max = 100,
     .group = group_rate, .default_text = "0", .commands = RUN,
     .help = "final learning rate; 0: by --min-lr-ratio, and for polynomial 1e-7"},
    {.name = "min-lr-ratio", .type = OX_OPT_DOUBLE, .offset = offsetof(struct ox_config, min_lr_ratio),
     .min = 0, .max = 1, .group = group_rate, .default_text = "0", .commands = RUN,
     .help = "--min-lr as a share of --learning-rate"},
    {.name = "decay-steps", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, decay_steps), .min = 0,
     .max = 1e+12, .group = group_rate, .default_text = "0", .commands = RUN,
     .help = "wsd, warmup_stable_decay: steps of the final decay; 0: a tenth of all"},
    {.name = "lr-decay-type", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, lr_decay_type),
     .choices = "auto|linear|cosine|1-sqrt", .group = group_rate, .default_text = "auto", .commands = RUN,
     .help = "shape of the final decay; auto: linear for wsd, cosine for warmup_stable_decay"},
    {.name = "lr-num-cycles", .type = OX_OPT_DOUBLE, .offset = offsetof(struct ox_config, lr_num_cycles), .min = 0,
     .max = 1e+6, .group = group_rate, .default_text = "0", .commands = RUN,
     .help = "cosine_with_restarts: how often it starts at the peak; other cosines: waves; 0: 1 start, half a wave"},
    {.name = "lr-power", .type = OX_OPT_DOUBLE, .offset = offsetof(struct ox_config, lr_power), .min = 0, .max = 100,
     .group = group_rate, .default_text = "1", .commands = RUN, .help = "polynomial: the exponent"},
    {.name = "lr-timescale", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, lr_timescale), .min = 0,
     .max = 1e+12, .group = group_rate, .default_text = "0", .commands = RUN,
     .help = "inverse_sqrt: steps after the warmup in which the rate falls by the root of 2; 0: as many as the warmup, "
             "or 10000"},
    {.name = "dtype", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, dtype),
     .choices = "fp32|bf16", .group = group_numbers, .default_text = "fp32",
     .commands = RUN | OX_CMD_EVAL | OX_CMD_GENERATE,
     .help = "number format of forward and backward"},
    {.name = "grad-dtype", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, grad_dtype),
     .choices = "fp32|bf16", .group = group_numbers, .default_text = "fp32", .commands = RUN,
     .help = "number format in which finished gradients leave the device"},
    {.name = "own-attention", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, own_attention),
     .group = group_numbers, .default_text = "false", .commands = RUN | OX_CMD_EVAL,
     .help = "on a GPU, attention by this program's own kernels also where cuDNN is installed"},
    {.name = "optimizer", .alias = "optim", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, optimizer),
     .choices = OX_OPTIM_CHOICES, .group = group_numbers, .default_text = "adamw", .commands = RUN,
     .help = "optimizer; lion and sgd (with momentum) keep one moment, adamw two"},
    {.name = "moments", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, moments),
     .choices = OX_MOMENTS_CHOICES, .group = group_numbers, .default_text = "f32", .commands = RUN,
     .help = "number format of the optimizer's moments; with adamw a parameter takes 12, 8 or 5 bytes; q8 needs "
             "--dtype bf16"},
    {.name = "logging-steps", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, logging_steps),
     .min = 1, .max = 1e+12, .group = group_reports, .default_text = "1", .commands = RUN,
     .help = "steps between two log lines; a line has the mean loss since the last one"},
    {.name = "eval-steps", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, eval_steps), .min = 0,
     .max = 1e+12, .group = group_reports, .default_text = "500", .commands = RUN,
     .help = "steps between two evaluations; 0: only at the end"},
    {.name = "eval-windows", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, eval_windows),
     .min = 0, .max = 1e+12, .group = group_reports, .default_text = "32", .commands = RUN,
     .help = "sequences in one evaluation; 0: all"},
    {.name = "save-steps", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, save_steps), .min = 0,
     .max = 1e+12, .group = group_reports, .default_text = "500", .commands = RUN,
     .help = "steps between two checkpoints; 0: only at the end"},
    {.name = "save-total-limit", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, save_total_limit),
     .min = 0, .max = 1000000, .group = group_reports, .default_text = "0", .commands = RUN,
     .help = "newest checkpoints to keep; 0: all"},
    {.name = "save-dtype", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, save_dtype),
     .text_bytes = sizeof none->save_dtype, .choices = "fp32|bf16", .group = group_reports,
     .default_text = "fp32", .commands = RUN | OX_CMD_EXPORT,
     .help = "number format of the weights in saved model folders"},
    {.name = "save-wait-seconds", .type = OX_OPT_DOUBLE, .offset = offsetof(struct ox_config, save_wait_seconds),
     .min = 0, .max = 604800, .group = group_reports, .default_text = "604800", .commands = RUN,
     .help = "how long a failing last save is tried again while only memory has the state"},
    {.name = "trace", .placeholder = "off|on|N", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, trace),
     .text_bytes = sizeof none->trace, .group = group_reports, .default_text = "off", .commands = RUN,
     .help = "record every task into OUTPUT/trace.bin, for `offload trace`; N: only the first N steps"},
    {.name = "trace-bytes", .type = OX_OPT_SIZE, .offset = offsetof(struct ox_config, trace_bytes), .min = 0,
     .max = 0x1p40, .group = group_reports, .default_text = "64MiB", .commands = RUN,
     .help = "largest size of the recording; new records then replace the oldest"},
    {.name = "report-to", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, report_to),
     .choices = "none|tensorboard|prometheus|all", .group = group_reports, .default_text = "none", .commands = RUN,
     .help = "metrics files besides metrics.jsonl: an events file for TensorBoard, metrics.prom for Prometheus"},
    {.name = "stop-grace-seconds", .type = OX_OPT_DOUBLE,
     .offset = offsetof(struct ox_config, stop_grace_seconds), .min = 0, .max = 86400,
     .group = group_reports, .default_text = "30", .commands = RUN,
     .help = "seconds that a step may still take after the first INT or TERM"},
    {.name = "prompt", .type = OX_OPT_PROSE, .offset = offsetof(struct ox_config, prompt),
     .text_bytes = sizeof none->prompt, .group = group_generation, .default_text = "",
     .commands = OX_CMD_GENERATE, .help = "text for the model to continue"},
    {.name = "prompt-file", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, prompt_file),
     .text_bytes = sizeof none->prompt_file, .group = group_generation, .default_text = "",
     .commands = OX_CMD_GENERATE, .help = "file with the prompt"},
    {.name = "chat", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, chat), .group = group_generation,
     .default_text = "false", .commands = OX_CMD_GENERATE,
     .help = "put the prompt into the chat template, as a user message"},
    {.name = "system-prompt", .type = OX_OPT_PROSE, .offset = offsetof(struct ox_config, system_prompt),
     .text_bytes = sizeof none->system_prompt, .group = group_generation, .default_text = "",
     .commands = OX_CMD_GENERATE, .help = "with --chat: system message before the prompt"},
    {.name = "thinking", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, thinking),
     .group = group_generation, .default_text = "true", .commands = OX_CMD_GENERATE,
     .help = "with --chat: let the answer begin with reasoning; --no-thinking gives the chat template "
             "enable_thinking = false"},
    {.name = "max-new-tokens", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, max_new_tokens), .min = 0,
     .max = 16777216, .group = group_generation, .default_text = "128", .commands = OX_CMD_GENERATE,
     .help = "largest number of tokens to generate"},
    {.name = "temperature", .type = OX_OPT_DOUBLE, .offset = offsetof(struct ox_config, temperature), .min = 0,
     .max = 100, .group = group_generation, .default_text = "1", .commands = OX_CMD_GENERATE,
     .help = "divisor of the logits before sampling; 0: always the most likely token"},
    {.name = "top-k", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, top_k), .min = 0, .max = 1e+9,
     .group = group_generation, .default_text = "0", .commands = OX_CMD_GENERATE,
     .help = "sample among the K most likely tokens; 0: all"},
    {.name = "top-p", .type = OX_OPT_DOUBLE, .offset = offsetof(struct ox_config, top_p), .min = 0, .max = 1,
     .group = group_generation, .default_text = "1", .commands = OX_CMD_GENERATE,
     .help = "sample among the fewest tokens that together reach this probability"},
    {.name = "ignore-eos", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, ignore_eos),
     .group = group_generation, .default_text = "false", .commands = OX_CMD_GENERATE,
     .help = "continue after an end-of-text token"},
    {.name = "top-logits", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, top_logits), .min = 0,
     .max = 1e+6, .group = group_generation, .default_text = "0", .commands = OX_CMD_GENERATE,
     .help = "report the N largest logits after the prompt, with --format json"},
    {.name = "tiles", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, tiles), .min = 0,
     .max = 65536, .group = group_placement, .default_text = "0", .commands = RUN,
     .help = "groups of micro-batches in a step; each group passes through a unit before the next unit; 0: planned"},
    {.name = "prefetch-depth", .type = OX_OPT_I64, .offset = offsetof(struct ox_config, prefetch_depth),
     .min = -1, .max = 1024, .group = group_placement, .default_text = "-1", .commands = RUN | OX_CMD_EVAL,
     .help = "units whose weights are fetched ahead; -1: planned"},
    {.name = "optimizer-overlap", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, optimizer_overlap),
     .text_bytes = sizeof none->optimizer_overlap, .choices = "auto|off|held|speculative", .group = group_placement,
     .default_text = "auto", .commands = RUN,
     .help = "when weights are updated; off: after the gradient norm; held: during the forward of the next step; "
             "speculative: some units already during backward, and again if the norm is clipped"},
    {.name = "speculative-units", .type = OX_OPT_I64, .offset = offsetof(struct ox_config, speculative_units),
     .min = -1, .max = 1e+6, .group = group_placement, .default_text = "-1", .commands = RUN,
     .help = "so many units are updated during backward, the last ones or evenly spread as planned; -1: planned"},
    {.name = "device-state-units", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, device_state_units),
     .min = 0, .max = 1e+6, .group = group_placement, .default_text = "0", .commands = RUN,
     .help = "units, counted from the last, whose weights and optimizer state stay on the device and are updated "
             "there; 0: planned"},
    {.name = "device-state-first", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, device_state_first),
     .group = group_placement, .default_text = "false", .commands = RUN,
     .help = "count --device-state-units from the first unit instead"},
    {.name = "chunk-elems", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, chunk_elems),
     .min = 0, .max = 0x1p30, .group = group_placement, .default_text = "0", .commands = RUN | OX_CMD_EVAL,
     .help = "parameters in a chunk, a multiple of 2048; 0: 262144, or down to 65536 where several ranks divide the "
             "model more evenly then"},
    {.name = "weights-tier", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, weights_tier),
     .choices = "auto|device|host|nvme", .group = group_placement, .default_text = "auto",
     .commands = RUN | OX_CMD_EVAL, .help = "memory that the compute weights live in"},
    {.name = "state-tier", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, state_tier),
     .choices = "auto|device|host|nvme", .group = group_placement, .default_text = "auto", .commands = RUN,
     .help = "memory that the optimizer state lives in; device: the optimizer runs there too"},
    {.name = "grads-tier", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, grads_tier),
     .choices = "auto|device|host|nvme", .group = group_placement, .default_text = "auto", .commands = RUN,
     .help = "memory that finished gradients live in"},
    {.name = "activation-tier", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, activation_tier),
     .choices = "auto|device|host|nvme", .group = group_placement, .default_text = "auto", .commands = RUN,
     .help = "memory that activation checkpoints live in"},
    {.name = "kept-blocks", .placeholder = "auto|N", .type = OX_OPT_TEXT,
     .offset = offsetof(struct ox_config, kept_blocks), .text_bytes = sizeof none->kept_blocks,
     .group = group_placement, .default_text = "auto", .commands = RUN,
     .help = "blocks, counted from the last, that keep their activations for backward instead of recomputing them; "
             "auto: as many as save time"},
    {.name = "io-backend", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, io_backend),
     .text_bytes = sizeof none->io_backend, .choices = "auto|uring|threads", .group = group_placement,
     .default_text = "auto", .commands = RUN | OX_CMD_DOCTOR | OX_CMD_BENCH,
     .help = "how drives are read and written; auto: io_uring where it is allowed, else threads"},
    {.name = "queue-depth", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, queue_depth), .min = 1,
     .max = 1024, .group = group_placement, .default_text = "16", .commands = RUN | OX_CMD_BENCH,
     .help = "requests in flight per drive queue"},
    {.name = "compute-threads", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, compute_threads),
     .min = 0, .max = 4096, .group = group_placement, .default_text = "0",
     .commands = RUN | OX_CMD_EVAL | OX_CMD_GENERATE | OX_CMD_BENCH,
     .help = "threads of the CPU device, which its ranks share; 0: all cores"},
    {.name = "optimizer-threads", .type = OX_OPT_U64,
     .offset = offsetof(struct ox_config, optimizer_threads), .min = 0, .max = 4096,
     .group = group_placement, .default_text = "0", .commands = RUN | OX_CMD_BENCH,
     .help = "threads of the optimizer; 0: all cores, less two for each rank on a GPU"},
    {.name = "isa", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, isa),
     .text_bytes = sizeof none->isa, .choices = "auto|scalar|avx2|avx512|neon", .group = group_placement,
     .default_text = "auto", .commands = RUN | OX_CMD_BENCH,
     .help = "instruction set of the optimizer; all give the same bits"},
    {.name = "profile", .placeholder = "FILE|NAME", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, profile),
     .text_bytes = sizeof none->profile, .group = group_placement, .default_text = "", .commands = RUN,
     .help = "measured speeds of the machine, from `offload bench all --output FILE`, to predict the time of a step; a "
             "name such as rtx4090-1-drive: one that comes with the program; builtin: nominal rates; default: "
             "~/.config/offload/machine.json if it exists, else a measurement of at most 3 s, which is kept"},
    {.name = "chaos-seed", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, chaos_seed), .min = 0,
     .max = 0x1p64, .group = group_placement, .default_text = "0", .commands = RUN | OX_CMD_EVAL,
     .help = "delay every lane at random, to test ordering; 0: no delays"},
    {.name = "ranks", .placeholder = "auto|N", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, ranks),
     .text_bytes = sizeof none->ranks, .group = group_ranks, .default_text = "1", .commands = RUN | OX_CMD_EVAL,
     .help = "devices that do a step together, each with its part of the micro-batches; on the CPU device, groups of "
             "cores; auto: as many GPUs as there are and gain time"},
    {.name = "sharding", .alias = "sharding-strategy", .placeholder = "NAME", .type = OX_OPT_CHOICE,
     .offset = offsetof(struct ox_config, sharding),
     .choices = "auto|full_shard|shard_grad_op|zero1|zero2|zero3|no_shard|shared", .group = group_ranks,
     .default_text = "auto", .commands = RUN | OX_CMD_EVAL,
     .help = "what ranks divide: all (full_shard, zero3), all but weights within a step (shard_grad_op), gradients and "
             "state (zero2), state (zero1), nothing (no_shard); shared: one copy in host memory for all"},
    {.name = "reduction", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, reduction),
     .choices = "fixed|library", .group = group_ranks, .default_text = "fixed", .commands = RUN,
     .help = "who adds the gradients of ranks; fixed: in an order of its own, with the same bits at every number of "
             "ranks; library: NCCL or MPI, not reproducible"},
    {.name = "comm", .type = OX_OPT_CHOICE, .offset = offsetof(struct ox_config, comm),
     .choices = "auto|local|nccl", .group = group_ranks, .default_text = "auto", .commands = RUN | OX_CMD_EVAL,
     .help = "what carries memory of GPUs between ranks; local: copies by the GPUs; auto: NCCL if it is there and each "
             "rank has a GPU of its own. No bit depends on it"},
    {.name = "comm-timeout", .alias = "ddp-timeout", .type = OX_OPT_DURATION,
     .offset = offsetof(struct ox_config, comm_timeout_ns), .min = 1e9, .max = 604800e9, .group = group_ranks,
     .default_text = "10min", .commands = RUN | OX_CMD_EVAL,
     .help = "how long a rank waits for the others before the run ends with the names of those that are missing"},
    {.name = "action", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, action),
     .text_bytes = sizeof none->action, .choices = "report|export", .group = group_command, .default_text = "",
     .commands = OX_CMD_TRACE,
     .help = "report: a summary, and with --output a page; export: a file for another viewer. The word --action may "
             "be left out"},
    {.name = "run", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, run), .text_bytes = sizeof none->run,
     .group = group_command, .default_text = "", .commands = OX_CMD_TRACE | OX_CMD_TOP,
     .help = "folder of a run; trace: also its trace.bin. The word --run may be left out"},
    {.name = "once", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, once), .group = group_command,
     .default_text = "false", .commands = OX_CMD_TOP, .help = "print the state of the run once and exit"},
    {.name = "dry-run", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, dry_run),
     .group = group_command, .default_text = "false", .commands = OX_CMD_TRAIN,
     .help = "stop after the plan"},
    {.name = "quiet", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, quiet), .group = group_command,
     .default_text = "false",
     .commands = OX_CMD_TRAIN | OX_CMD_EVAL | OX_CMD_TOKENIZE | OX_CMD_EXPORT | OX_CMD_GENERATE | OX_CMD_BENCH |
                 OX_CMD_TRACE,
     .help = "print warnings, errors and the result alone; train: the line of the model folder"},
    {.name = "format", .placeholder = "text|json", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, format),
     .text_bytes = sizeof none->format, .choices = "text|json|chrome|perfetto", .group = group_command,
     .default_text = "text",
     .commands = OX_CMD_PLAN | OX_CMD_EVAL | OX_CMD_INSPECT | OX_CMD_EXPORT | OX_CMD_DOCTOR | OX_CMD_TOKENIZE |
                 OX_CMD_GENERATE | OX_CMD_BENCH | OX_CMD_TRACE,
     .help = "format of the report; trace export takes chrome or perfetto instead"},
    {.name = "jsonl", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, jsonl), .group = group_command,
     .default_text = "false", .commands = OX_CMD_TOKENIZE,
     .help = "read lines of {\"text\"} from --data or stdin, write lines of {\"ids\"}"},
    {.name = "show", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, show), .group = group_command,
     .default_text = "false", .commands = OX_CMD_TOKENIZE,
     .help = "print sequences as training would see them: tokens, masks, document borders"},
    {.name = "render", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, render), .group = group_command,
     .default_text = "false", .commands = OX_CMD_TOKENIZE,
     .help = "read conversations from --data or stdin, write lines of {\"rendered\"} or {\"error\"}: the model's own "
             "chat template, as transformers renders it"},
    {.name = "what", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, what), .text_bytes = sizeof none->what,
     .choices = "adam|nvme|gemm|copy|ops|comm|all", .group = group_measuring, .default_text = "",
     .commands = OX_CMD_BENCH,
     .help = "what to measure: the optimizer (adam), drives (nvme), GEMMs (gemm), memory copies (copy), operations of "
             "a step (ops), calls of ranks (comm); all: a short probe of the first four, about a minute. --what may "
             "be left out"},
    {.name = "state-format", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, state_format),
     .text_bytes = sizeof none->state_format, .choices = "all|f32|bf16|q8", .group = group_measuring,
     .default_text = "all", .commands = OX_CMD_BENCH, .help = "adam: number format of the optimizer's moments"},
    {.name = "rounds", .type = OX_OPT_U64, .offset = offsetof(struct ox_config, rounds), .min = 0, .max = 99,
     .group = group_measuring, .default_text = "0", .commands = OX_CMD_BENCH,
     .help = "measurements of each figure, of which the median counts; 0: 9 for adam and copy, 5 for gemm, 3 for nvme, "
             "2 or 3 for all"},
    {.name = "size", .type = OX_OPT_SIZE, .offset = offsetof(struct ox_config, size_bytes), .max = 0x1p60,
     .group = group_measuring, .default_text = "0", .commands = OX_CMD_BENCH,
     .help = "memory or file to measure with; 0: adam 1.6 GiB, gemm 104 MiB, copy 1 GiB, ops as needed, nvme a file of "
             "4 GiB"},
    {.name = "strict", .type = OX_OPT_BOOL, .offset = offsetof(struct ox_config, strict), .group = group_measuring,
     .default_text = "false", .commands = OX_CMD_BENCH | OX_CMD_DOCTOR,
     .help = "exit with 1 if a figure is below its limit; doctor: if a run could not use a drive or a limit"},
    {.name = "command", .placeholder = "COMMAND", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, topic),
     .text_bytes = sizeof none->topic, .group = group_help, .default_text = "", .commands = OX_CMD_HELP,
     .help = "command to explain; default: all. The word --command may be left out"},
    {.name = "as", .type = OX_OPT_TEXT, .offset = offsetof(struct ox_config, as), .text_bytes = sizeof none->as,
     .choices = "text|man|bash|zsh|fish|names", .group = group_help, .default_text = "text", .commands = OX_CMD_HELP,
     .help = "form of the help; man: a manual page; bash, zsh, fish: a completion script for the shell; names: the "
             "commands, one per line"},
};

enum { OPTION_COUNT = sizeof options / sizeof *options };

static char folded(char letter) {
    return letter == '_' ? '-' : (char)tolower((unsigned char)letter);
}

static bool same_name(const char *a, const char *b) {
    while (*a != '\0' && (*a == '_' ? '-' : *a) == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

const struct ox_option *ox_options(uint32_t *count) {
    *count = OPTION_COUNT;
    return options;
}

const struct ox_option *ox_option_find(const char *name) {
    for (unsigned i = 0; i < OPTION_COUNT; i++) {
        if (same_name(name, options[i].name) ||
            (options[i].alias != NULL && same_name(name, options[i].alias))) {
            return &options[i];
        }
    }
    return NULL;
}

bool ox_option_is_list(const struct ox_option *option) {
    return option->type == OX_OPT_NVME || option->type == OX_OPT_DATA;
}

const char *ox_command_name(unsigned command) {
    static const struct {
        unsigned command;
        const char *name;
    } commands[] = {{OX_CMD_TRAIN, "train"},   {OX_CMD_PLAN, "plan"},     {OX_CMD_EVAL, "eval"},
                    {OX_CMD_INSPECT, "inspect"}, {OX_CMD_EXPORT, "export"}, {OX_CMD_DOCTOR, "doctor"},
                    {OX_CMD_BENCH, "bench"},     {OX_CMD_TOKENIZE, "tokenize"},
                    {OX_CMD_GENERATE, "generate"},  {OX_CMD_HELP, "help"},
                    {OX_CMD_TRACE, "trace"},     {OX_CMD_TOP, "top"}};
    for (unsigned i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (commands[i].command == command) {
            return commands[i].name;
        }
    }
    return "";
}

unsigned ox_name_distance(const char *a, const char *b) {
    unsigned rows[3][NAME_BYTES_MAX + 1];
    char from[NAME_BYTES_MAX], to[NAME_BYTES_MAX]; /* folded */
    const size_t a_len = strlen(a), b_len = strlen(b);
    if (a_len > NAME_BYTES_MAX || b_len > NAME_BYTES_MAX) {
        return NAME_BYTES_MAX;
    }
    for (size_t i = 0; i < a_len; i++) {
        from[i] = folded(a[i]);
    }
    for (size_t j = 0; j < b_len; j++) {
        to[j] = folded(b[j]);
    }
    for (size_t j = 0; j <= b_len; j++) {
        rows[0][j] = (unsigned)j;
    }
    for (size_t i = 1; i <= a_len; i++) {
        unsigned *const row = rows[i % 3];
        const unsigned *const above = rows[(i + 2) % 3], *const above2 = rows[(i + 1) % 3];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= b_len; j++) {
            const bool equal = from[i - 1] == to[j - 1];
            unsigned best = above[j - 1] + (equal ? 0 : 1);
            best = above[j] + 1 < best ? above[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            const bool swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
            if (swapped && above2[j - 2] + 1 < best) {
                best = above2[j - 2] + 1;
            }
            row[j] = best;
        }
    }
    return rows[a_len % 3][b_len];
}

const char *ox_option_suggest(const char *name, unsigned commands) {
    const char *nearest = NULL;
    /* At most a third of the letters may be wrong; beyond that a suggestion is a guess. */
    const size_t name_len = strlen(name);
    unsigned nearest_distance = (unsigned)name_len / 3 + 1;
    for (unsigned i = 0; i < OPTION_COUNT; i++) {
        if ((options[i].commands & commands) == 0) {
            continue;
        }
        const char *const names[2] = {options[i].name, options[i].alias};
        for (unsigned k = 0; k < 2 && names[k] != NULL; k++) {
            const size_t len = strlen(names[k]), apart = len > name_len ? len - name_len : name_len - len;
            /* The distance is at least the difference of the lengths. */
            const unsigned distance = apart < nearest_distance ? ox_name_distance(name, names[k]) : nearest_distance;
            if (distance < nearest_distance) {
                nearest_distance = distance;
                nearest = names[k];
            }
        }
    }
    for (unsigned i = 0; nearest == NULL && name_len >= 4 && i < OPTION_COUNT; i++) {
        size_t same = 0;
        while (same < name_len && folded(name[same]) == options[i].name[same]) {
            same++;
        }
        if (same == name_len && (options[i].commands & commands) != 0) {
            nearest = options[i].name; /* `name` is the beginning of an option's name */
        }
    }
    return nearest;
}

void ox_config_init(struct ox_config *config) {
    memset(config, 0, sizeof *config);
    for (unsigned i = 0; i < OPTION_COUNT; i++) {
        if (options[i].default_text[0] == '\0') {
            continue;
        }
        const enum ox_status status =
            ox_config_set(config, &options[i], options[i].default_text, options[i].name);
        OX_ASSERT(status == OX_OK);
    }
}
