/* The reference results of tests/golden/ (its README.md says what they are), and runs of the engine over
 * their batches. */
#ifndef OX_TESTS_GOLDEN_H
#define OX_TESTS_GOLDEN_H

#include "base/json.h"
#include "engine/hf/safetensors.h"
#include "tests/kit/run/harness.h"

enum { GOLDEN_STEPS = 10, GOLDEN_UNITS_MAX = 64 };

struct golden {
    char folder[256];
    json_t *json;
    struct ox_st_file *tensors;
    uint64_t seq, batch, micro_batches, stride, sample_above;
    /* A test may take the batches of all steps in other steps: with more or fewer micro_batches than the reference's
     * steps have, and beginning with another one than the first. */
    uint64_t stored_micro_batches, first_micro_batch;
    /* So many tokens behind each sequence of the reference, which no target counts: for sequences of another length. */
    uint64_t padding;
    double max_grad_norm, beta1, beta2, eps, weight_decay;
};

/* The names of all cases, those first that a test takes which takes a few. */
extern const char *const golden_cases[];
extern const size_t golden_case_count;
/* How many of them, from the first on, a sweep takes that tries one property with each: all in `make test-all`, and in
 * `make test` as many as have each kind of node (test_golden sees to that). */
size_t golden_taken_count(void);

void golden_open(const char *name, struct golden *out);
void golden_close(struct golden *golden);
/* In `make test-all` runs this program once more, with OpenBLAS's kernels for another processor, which cut products
 * otherwise: "Haswell" has those of AVX2. */
void golden_again(const char *core);
/* Returns one element of an array of numbers. */
double golden_number(const struct golden *golden, const char *key, size_t idx);
/* Returns the tensor "kind.name", or "kind" for an empty name, as stored; free() it. */
float *golden_tensor(const struct golden *golden, const char *kind, const char *name, uint64_t *count);
/* The engine's shape for this case, in float32. */
struct harness_run golden_run(const struct golden *golden);

/* What steps leave behind. */
struct outcome {
    double losses[GOLDEN_STEPS], norms[GOLDEN_STEPS];
    double router_losses[GOLDEN_STEPS][2]; /* balance, z; 0 without a mixture */
    float *logits;                  /* (batch * seq, vocab) of the first micro-batch of step 0; of process 0 alone */
    float *grads[GOLDEN_UNITS_MAX]; /* gradients of step 0 in fp32; NULL on a drive, and with several processes */
    float *weights[GOLDEN_UNITS_MAX];
    float *moments[2][GOLDEN_UNITS_MAX]; /* NULL where the optimizer does not have the second */
    uint64_t left_out[OX_LINK_COUNT]; /* bytes, over all steps */
    uint64_t logits_count, elems[GOLDEN_UNITS_MAX];
};

/* Fills the micro-batches of a step and returns the count of targets that count. Behind the last batch comes the first
 * again. */
uint64_t golden_fill(struct ox_engine *engine, const struct golden *golden, size_t step);
struct ox_step_input golden_input(const struct golden *golden, size_t step, uint64_t target_count);
/* Runs steps [first, past) and adds to `out`; what crossed links must be what the plan said. */
void golden_steps(struct harness *harness, const struct golden *golden, size_t first, size_t past,
                  struct outcome *out);
/* Runs `steps` steps of a fresh engine and reads its weights. */
void golden_train(const struct golden *golden, const struct harness_run *run,
                  const struct harness_place *place, size_t steps, struct outcome *out);
/* The summed loss of the first step's input, by an engine in memory that has not trained. */
double golden_evaluate(const struct golden *golden, const struct harness_run *run);
void outcome_read_weights(struct harness *harness, struct outcome *out);
void outcome_close(struct outcome *outcome);

/* Compares bit by bit and prints one line. */
void outcome_check_same(const char *what, const struct outcome *expected, const struct outcome *outcome);
/* Compares losses and norms of all steps with those of a run whose sums had another order: to 1e-5. */
void outcome_check_close(const char *what, const struct outcome *expected, const struct outcome *outcome);
/* Ends a run of golden_steps: its weights are read, all that it leaves is compared with what was expected, and the
 * engine and `outcome` are closed. */
void golden_end(struct harness *harness, const char *what, const struct outcome *expected, struct outcome *outcome);

/* Compares FEW_STEPS steps with those in memory at every placement, or at every `stride`-th, and a run that ends after
 * them and resumes from its store at another placement, for as many again. Each call takes others; `make test` takes a
 * fifth of them. */
enum { FEW_STEPS = 2 };
void golden_check_places(const struct golden *golden, const struct harness_run *run, const char *what, size_t stride);
void golden_check_reopened(const struct golden *golden, const struct harness_run *run, const char *what,
                           size_t stride);

/* Returns the largest error of all tensors "kind.name", whose units are given, each whole; of gradients relative to the
 * tensor's largest. */
double golden_compare_tensors(const struct golden *golden, const struct ox_model *model, const char *kind,
                              float *const *units);
/* Returns the largest error of the first micro-batch's logits against the tensor of this name. */
double golden_compare_logits(const struct golden *golden, const char *name, const struct outcome *outcome);

/* Errors that a device is allowed against the reference. */
struct golden_limits {
    double loss, logits, grads, norms;
};
extern const struct golden_limits golden_fp32_limits; /* for every device */
/* Reports how far so many steps of a run in float32, which `outcome` is, lie from the reference's. */
void golden_report_fp32(const struct golden *golden, const struct ox_model *model, const struct outcome *outcome,
                        size_t steps);
/* The same of a run in another format, with its tolerances. */
void golden_report_within(const struct golden *golden, const struct ox_model *model, const struct outcome *outcome,
                          size_t steps, const struct golden_limits *limits);
/* Takes the first step in bfloat16 and reports how far it lies from the reference's. The caller closes `outcome`. */
void golden_check_bf16(const struct golden *golden, const struct harness_run *run, const struct golden_limits *limits,
                       struct outcome *outcome);

/* Prints the measured error beside its tolerance and checks it. */
void golden_report(const char *what, double measured, double limit);

#endif
