/* A whole training run of a few steps on a tiny model, in a process of its own, for tests that cut it short. It uses
 * ox_trainer as `offload train` does, with every plane on the drive. A run that is resumed must end with the bits of an
 * undisturbed one. */
#ifndef OX_TESTS_TINY_RUN_H
#define OX_TESTS_TINY_RUN_H

#include "base/status.h"
#include "engine/run/trainer.h"
#include "nvme/io.h"
#include "tests/kit/run/sys_mpi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { TINY_STEPS = 3, TINY_SAVED_STEP = 2 };

/* TINY_BRANCH continues from the checkpoint of TINY_SAVED_STEP, TINY_BRANCH_NEW from that of the undisturbed run. */
enum tiny_start { TINY_FRESH, TINY_OVERWRITE, TINY_RESUME, TINY_BRANCH, TINY_BRANCH_NEW };
enum tiny_end { TINY_DONE, TINY_FAILED, TINY_KILLED };

/* What a process reports about its run, in memory that outlives the process. */
struct tiny_told {
    _Atomic uint64_t began;      /* 1 once the run has begun or resumed */
    _Atomic uint64_t begin_step; /* its step at that time */
    _Atomic uint64_t step;       /* the last step reported */
    _Atomic uint64_t saved_step; /* the step of the last checkpoint reported */
    _Atomic uint64_t warnings;   /* without those that the test provokes */
    char warning[OX_ERROR_TEXT_BYTES]; /* the first one */
    enum ox_status status;
    char text[OX_ERROR_TEXT_BYTES];
};

/* What a test puts between the run and the kernel; called in the new process. */
struct tiny_seam {
    /* The trainer is open, nothing written; or NULL. */
    const struct ox_io_backend *(*begin)(const struct ox_io_backend *inner);
    void (*end)(void); /* when the run has ended by itself; or NULL */
    struct ox_trainer_events *events; /* requests to the run from outside; or NULL */
    void (*step)(uint64_t step);      /* called with each reported step; or NULL */
};
/* The engine of the run, within these calls. */
struct ox_engine;
struct ox_engine *tiny_engine(void);

/* First of all: starts the program anew where the matrix library would have threads of its own, which spin while they
 * wait, in every one of many short processes. */
void tiny_single_thread(char **argv);

/* Where runs lie from here on: in memory where the machine has /dev/shm, which is fast and enough for what a killed
 * process leaves, or below the test's folder, on a drive that has requests under way. Makes the run that others are
 * compared with. */
enum tiny_place { TINY_IN_MEMORY, TINY_ON_DRIVE };
void tiny_begin(enum tiny_place place);
/* Options of all runs from here on, in place of the usual ones or beside them; ends with a name of NULL. Before
 * tiny_begin, which can be called again. */
void tiny_set_options(const char *const (*more)[2]);
/* Warnings with one of these words, up to NULL, are not counted from here on. */
void tiny_expect_warnings(const char *const *words);
/* How many reported steps a kill may lose from here on; 1 at first. */
void tiny_set_lost_max(unsigned steps);
/* Whether the model of all runs is a mixture of 16 experts, eight of which can be a unit; before tiny_begin. */
void tiny_set_mixture(bool mixture);
/* How many drives all runs have from here on, up to 2; before tiny_begin, which can be called again. */
void tiny_set_drives(unsigned count);
/* The folder of the run's drive `idx`. */
const char *tiny_drive(unsigned idx);
/* Writes the text that is trained on, as tiny_begin does, and gives its path. */
const char *tiny_write_text(void);
/* Memory that the processes of runs share with the test, zeroed; never given back. */
void *tiny_shared(size_t bytes);

/* Runs as several processes, which mpirun starts, but for the run that others are compared with. Each is this program
 * anew. So main calls tiny_set_processes first, then tiny_shared in the same order as always, then tiny_process, which
 * does not return in such a process. */
void tiny_set_processes(unsigned count);
void tiny_process(const struct tiny_seam *seam);
/* What becomes of the others from here on if one is killed; SYS_MPI_END_AT_ONCE at first. */
void tiny_set_loss(enum sys_mpi_loss when_lost);
/* Which of them this process is; 0 where there is one. */
unsigned tiny_process_idx(void);
/* Where the run's folder is: what lies below it begins with this and a slash. */
const char *tiny_folder(void);
/* The folder of the run that others are compared with. */
const char *tiny_undisturbed(void);
/* Runs to the end, or to where it is cut short. */
enum tiny_end tiny_run(const char *io_backend, enum tiny_start start, const struct tiny_seam *seam,
                       struct tiny_told *told);
/* Continues what the run `before` has left, without disturbance: resumes it, or starts it where no folder was made.
 * Checks that no reported checkpoint is lost and no more reported steps than allowed, and that the end is that of the
 * undisturbed run. A pending checkpoint or a line of metrics.jsonl may be missing if `before` warned of it; so may a
 * pending checkpoint that was not reported when the next step was committed. Then removes the run. False when a check
 * failed; `what` is printed then. */
bool tiny_end_well(const char *io_backend, const struct tiny_told *before, const char *what);
/* Totals over all calls of tiny_end_well. */
struct tiny_counts {
    uint64_t resumed, started_over, steps_lost, commits_untold;
};
extern struct tiny_counts tiny_counts;

#endif
