/* What tests of the whole program share: a tiny model and a text to train on, the program run with given words,
 * and what a run leaves behind, so that two runs can be compared byte by byte. The program is $OX_BIN, else
 * build/offload. */
#ifndef OX_TESTS_SYS_RUN_H
#define OX_TESTS_SYS_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/types.h>

enum { SYS_WORDS_MAX = 128, SYS_WORDS_BYTES = 16384, SYS_OUTPUT_BYTES = 1 << 18, SYS_PATH_BYTES = 512 };
enum { SYS_LIMITS_MAX = 2 };

/* ---- what a run needs ------------------------------------------------------------------------------ */

/* Writes a config.json for a tiny "llama" or "gpt2" model (tied), a llama that is "untied", a "deepseek" or a
 * "mixtral", the same bytes every time, and returns its path. */
const char *sys_write_model(const char *family);
/* Writes a text of about so many bytes, the same every time, and returns its path. */
const char *sys_write_text(size_t bytes);
/* Writes a folder "speaker" with the config.json of a tiny "llama" and a byte-level tokenizer with a chatml template,
 * and returns its path. Ids below 256 are bytes, then come "he", "the" and " the", which is all it merges, and the
 * special tokens. EOS is <|endoftext|>; no BOS is added, though <|startoftext|> is one. */
enum { SYS_EOS = 259, SYS_BOS, SYS_IM_START, SYS_IM_END, SYS_VOCAB };
const char *sys_write_speaker(void);

/* ---- the program ---------------------------------------------------------------------------------- */

struct terminal;

struct sys_args {
    char text[SYS_WORDS_BYTES];
    size_t used;
    char *words[SYS_WORDS_MAX + 1];
    int count;
    const char *out_path; /* where stdout goes; NULL: to outcome.out */
    const char *program;  /* NULL: offload; another ends with the test */
    bool leashed;         /* sys_args_leash */
    struct terminal *terminal; /* where stderr goes, whose slave this takes; NULL: to a pipe */
    struct sys_limit {
        int resource;
        rlim_t most;
    } limits[SYS_LIMITS_MAX];
    int limit_count;
};

/* The path of `offload`. */
const char *sys_program(void);
/* Makes the program one that runs beside the emulated CUDA plugin, which takes the place of a GPU's. Returns the
 * program used before, which sys_use() restores and frees. */
char *sys_use_emulated(void);
void sys_use(char *program);

/* `offload <command>`; `offload` alone where the command is "". */
void sys_args_begin(struct sys_args *args, const char *command);
/* `offload train` of a model on a text, with its output in the test's folder under this name. */
void sys_args_train(struct sys_args *args, const char *model, const char *data, const char *output);
/* Adds a drive of so many bytes ("32MiB") in the test's folder, whose folder is made where it is missing. */
void sys_args_drive(struct sys_args *args, const char *name, const char *bytes);
/* Puts weights, state and gradients on a drive of the run's own, 32 MiB of "OUTPUT-drive"; removes both folders. */
void sys_args_on_drive(struct sys_args *args, const char *output);
void sys_remove_run(const char *output);
/* Adds the words of a text, parted at spaces that no \ is before; then a single word that may hold spaces. */
void sys_args_add(struct sys_args *args, const char *words);
/* Limits the program, as ulimit does, but not the test: a thread of OpenBLAS that starts within a limit of memory tries
 * for ever, and each program that links the library has such threads. */
void sys_args_limit(struct sys_args *args, int resource, rlim_t most);
/* Lets the program go on only as the test reads what it says: after sys_await it stops at the second line from there,
 * so that what the test does next always meets it. For tests that read on, by sys_await or sys_wait. */
void sys_args_leash(struct sys_args *args);
__attribute__((format(printf, 2, 3))) void sys_args_word(struct sys_args *args, const char *format, ...);

struct sys_outcome {
    int exit_status; /* -1: it was ended by a signal */
    int signal_number;
    long peak_kib; /* resident memory at its fullest, as the kernel counted it */
    char out[SYS_OUTPUT_BYTES], err[SYS_OUTPUT_BYTES];
};

/* A program on its way; its stderr is read through a pipe, so that a test can wait for what it says. */
struct sys_process {
    pid_t pid;
    int err_fd; /* -1: closed */
    const char *out_path;
    bool keeps_out; /* out_path is the test's: it is not read and stays */
    size_t err_bytes;
    struct sys_outcome outcome;
};

void sys_start(const struct sys_args *args, struct sys_process *process);
/* Waits for more of stderr and adds it to outcome.err; false when that has ended. */
bool sys_read(struct sys_process *process);
/* Reads stderr until it has `words`; false when it ended without. */
bool sys_await(struct sys_process *process, const char *words);
/* Reads what is left and waits for the end: process->outcome is complete then. */
void sys_wait(struct sys_process *process);
/* Starts and waits. */
void sys_run(const struct sys_args *args, struct sys_process *process);
/* Starts and waits; a status other than 0 ends the test and prints what the program said. */
void sys_run_well(const struct sys_args *args, struct sys_process *process);
/* Starts on a leash, sends a signal where the program has said `words`, and waits for its end. */
void sys_interrupt(struct sys_args *args, struct sys_process *process, const char *words, int signal_number);
/* Whether an ended program has said these words on stderr. */
bool sys_said(const struct sys_process *process, const char *words);
/* Notes a failure, and prints how the program ended and what it said. */
void sys_complain(const struct sys_process *process, const char *what);

/* ---- what a run says ------------------------------------------------------------------------------ */

/* The lines of <folder>/metrics.jsonl whose "type" is this, each as it is written up to its timings: losses,
 * norms, rates and tokens. free() it; "" when there are none. */
char *sys_curve(const char *folder, const char *type);
/* Returns the part of a curve from the first line of this step on; "" when there is none. */
const char *sys_curve_from(const char *curve, unsigned step);
/* Returns a number of this step in a curve; NAN when there is none. */
double sys_metric(const char *curve, unsigned step, const char *key);
/* Returns the mean loss that `eval`, with these further words, finds for a model on data; NAN when it says none. */
double sys_eval_loss(const char *model, const char *data, const char *words);
/* Returns the number after the last occurrence of `words`, or `otherwise`. */
long sys_number_after(const char *text, const char *words, long otherwise);
/* True when the run in <folder> has a part of its optimizer state in memory and a part on drives, by its plan.txt. */
bool sys_splits_state(const char *folder);
/* True when both curves and the two files of both checkpoints are the same bytes; otherwise says what is not. */
bool sys_same_checkpoint(const char *a, const char *b);
bool sys_same_text(const char *what, const char *a, const char *b);
/* True when two runs in the test's folder have the same curves of steps and evaluations, and the same checkpoint of
 * this step; otherwise says what is not. */
bool sys_same_runs(const char *a, const char *b, unsigned steps);

#endif
