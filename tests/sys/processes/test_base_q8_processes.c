/* --base-dtype q8 over processes: adapters beside a base in eight bits, and blocks that are frozen, have the bits of
 * one process, in memory and on drives, in pipelines too; runs go on with other numbers of processes and ranks, and
 * after a process was killed. */
#include "base/clock.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { STEPS = 6, HANG_SECONDS = 200 };

static const char common[] = "--global-batch-size 4 --batch-size 1 --sum-groups 4 --max-seq-length 16 --host-mem 64MiB "
                             "--compute-threads 1 --optimizer-threads 1 --chunk-elems 65536 --eval-windows 4 "
                             "--eval-steps 2 --save-steps 2 --save-total-limit 0 --learning-rate 1e-2 "
                             "--lr-scheduler-type constant --base-dtype q8";
static const char *const kinds[] = {
    "--dtype bf16 --lora-r 3 --lora-alpha 6 --lora-target-modules all-linear",
    "--lora-r 2 --lora-target-modules v_proj,embed_tokens,lm_head",
    "--save-dtype bf16 --freeze layers.0 --freeze layers.2"};
enum { KINDS = sizeof kinds / sizeof *kinds };

static struct sys_args args, launched;
static struct sys_process process;
static const char *text_path;

static void begin(const char *output, const char *kind, int steps, const char *more, bool has_drive) {
    sys_args_train(&args, test_path("first/checkpoint-1"), text_path, output);
    sys_args_add(&args, common);
    sys_args_add(&args, kind);
    sys_args_word(&args, "--max-steps=%d", steps);
    sys_args_add(&args, more);
    if (has_drive) {
        sys_args_on_drive(&args, output);
    }
}

/* 0 processes: one, without mpirun. */
static void start(unsigned processes) {
    alarm(HANG_SECONDS);
    if (processes > 0) {
        sys_mpi_begin(&launched, processes, &args, SYS_MPI_END_OTHERS);
    }
    sys_start(processes > 0 ? &launched : &args, &process);
}

static void run(unsigned processes) {
    start(processes);
    sys_wait(&process);
    alarm(0);
    if (process.outcome.exit_status != 0) {
        sys_complain(&process, "a run of processes");
    }
}

/* The folder "first": a model whose blocks are 2.25 chunks each. */
static void make_base(void) {
    const char *const path = test_path("wide.json");
    files_write_text(path, "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 256,"
                           " \"hidden_size\": 128, \"intermediate_size\": 256, \"num_hidden_layers\": 3,"
                           " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 64,"
                           " \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"tie_word_embeddings\": true,"
                           " \"hidden_act\": \"silu\"}\n");
    sys_args_train(&args, path, text_path, "first");
    sys_args_add(&args, "--global-batch-size 4 --batch-size 1 --max-seq-length 16 --max-steps 1 --eval-steps 0 "
                        "--save-dtype bf16");
    sys_run_well(&args, &process);
}

static void test_same_bits(int kind) {
    static const struct {
        unsigned processes;
        const char *words;
        bool has_drive;
    } places[] = {{2, "--sharding full_shard", true},
                  {2, "--ranks 4 --sharding shard_grad_op", false},
                  {2, "--mesh pp=2", true},
                  {2, "--mesh dp=2,pp=2 --pipeline-schedule 1f1b", false},
                  {4, "--sharding zero2 --device-mem 16MiB", true}};
    enum { PLACES = sizeof places / sizeof *places };
    for (unsigned k = 0; k < PLACES; k++) {
        if (test_takes((unsigned)kind * PLACES + k, 5)) {
            begin("place", kinds[kind], STEPS, places[k].words, places[k].has_drive);
            run(places[k].processes);
            CHECK(sys_same_runs("whole", "place", STEPS));
            sys_remove_run("place");
        }
    }
}

/* From the checkpoints of other numbers of processes and ranks. */
static void test_resumes(int kind) {
    static const struct {
        unsigned processes;
        const char *words;
    } parts[] = {{2, "--sharding full_shard"}, {0, "--resume latest"}, {2, "--resume latest --mesh pp=2"}};
    for (int i = 0; i < 3; i++) {
        begin("parts", kinds[kind], 2 * (i + 1), parts[i].words, false);
        run(parts[i].processes);
    }
    CHECK(sys_same_runs("whole", "parts", STEPS));
    sys_remove_run("parts");
}

/* The second of two processes is killed; both go on from their stores. */
static void test_killed(int kind) {
    struct sys_mpi_run team = {0};
    begin("killed", kinds[kind], STEPS, "--sharding full_shard --comm-timeout 4", true);
    start(2);
    CHECK(sys_mpi_find(&process, 2, &team) && sys_await(&process, "\nstep 3/"));
    kill(team.pids[1], SIGKILL);
    sys_mpi_wait(&process, &team, ox_clock_ns());
    alarm(0);
    CHECK(process.outcome.exit_status != 0);
    begin("killed", kinds[kind], STEPS, "--sharding full_shard --resume latest", true);
    run(2);
    CHECK(sys_same_runs("whole", "killed", STEPS));
    sys_remove_run("killed");
}

static void on_alarm(int signal_number) {
    static const char text[] = "the program hangs\n";
    (void)signal_number;
    kill(process.pid, SIGTERM); /* mpirun ends what it has started */
    _exit(write(STDOUT_FILENO, text, sizeof text - 1) > 0 ? 1 : 2);
}

int main(void) {
    sys_mpi_require();
    signal(SIGALRM, on_alarm);
    text_path = sys_write_text(24000);
    make_base();
    for (int kind = 0; kind < KINDS; kind++) {
        begin("whole", kinds[kind], STEPS, "", false);
        run(0);
        test_same_bits(kind);
        if (test_takes((unsigned)kind, 2)) {
            test_resumes(kind);
        } else {
            test_killed(kind);
        }
        if (test_all()) {
            test_resumes(kind);
            test_killed(kind);
        }
        sys_remove_run("whole");
    }
    return test_end();
}
