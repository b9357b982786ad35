/* Groups of experts beside what else a run may have: adapters, averages, fp16, losses of routers, experts that are left
 * out, biases that move, frozen parts; as ranks, as processes, at other homes, killed and gone on with. Every run ends
 * with the bits of the one whose experts are in their blocks' units.
 *
 * With OX_TEST_ALL=1 each kind of run in each way, otherwise in two of them. */
#include "tests/kit/files.h"
#include "tests/kit/run/mixture.h"
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define SIZES                                                                                                    \
    "\"vocab_size\":256,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"head_dim\":16,"     \
    "\"num_key_value_heads\":2,\"num_experts_per_tok\":2,\"tie_word_embeddings\":false,"

static const char plain[] = "{\"model_type\":\"qwen3_moe\"," SIZES
                            "\"intermediate_size\":40,\"num_experts\":6,\"moe_intermediate_size\":32}";
static const char packed[] =
    "{\"model_type\":\"mixtral\"," SIZES "\"intermediate_size\":32,\"num_local_experts\":6}";
static const char chosen[] = "{\"model_type\":\"glm4_moe\"," SIZES
                             "\"intermediate_size\":40,\"n_routed_experts\":6,\"n_group\":1,\"topk_group\":1,"
                             "\"moe_intermediate_size\":32,\"n_shared_experts\":1,\"first_k_dense_replace\":1}";

static const struct kind {
    const char *name, *config, *words;
    bool folder; /* with weights, in one tensor of all experts */
} kinds[] = {
    {"lora", packed, "--lora-r 4 --lora-target-modules q_proj,v_proj --learning-rate 1e-2", true},
    {"averages", plain, "--ema-decay 0.9 --moments bf16", false},
    {"fp16", packed, "--dtype fp16 --loss-scale 1024", true},
    {"losses", plain, "--dtype bf16 --router-aux-loss-coef 0.01 --router-z-loss-coef 0.001 --moments q8", false},
    {"idle", plain, "--idle-experts skip --max-seq-length 2 --ema-decay 0.9", false},
    {"bias", chosen, "--router-bias-update-rate 0.01", false},
    {"frozen", packed, "--freeze=*.gate.weight,*.experts.down_proj,layers.1", true},
    {"much", chosen, "--router-bias-update-rate 0.01 --idle-experts skip --max-seq-length 2 --ema-decay 0.9 "
                     "--dtype bf16 --freeze=*.self_attn.*,*.experts.*.up_proj*,*.experts.*.gate_proj*", false},
};

enum way { KILLED, OVER, RANKS, COPIES, PROCESSES, SMALL, PIPES, WAYS };
static const char *const way_words[WAYS] = {
    [KILLED] = "--experts-per-unit 2 --state-tier nvme --weights-tier nvme --persist-steps 1",
    [OVER] = "--experts-per-unit 3 --expert-parallel-size 2",
    [RANKS] = "--experts-per-unit 1 --ranks 2 --state-tier nvme",
    [COPIES] = "--experts-per-unit 4 --ranks 4 --sharding hybrid_shard --shard-size 2",
    [PROCESSES] = "--experts-per-unit 3 --ranks 2",
    [SMALL] = "--experts-per-unit 5 --device-mem 32MiB --activation-tier host --optimizer-overlap off",
    [PIPES] = "--experts-per-unit 2 --mesh pp=2",
};

enum { STEPS = 6, HANG_SECONDS = 200 };
static struct sys_args args, launched;
static struct sys_process process;
static const char *text_path;

static void begin(const struct kind *kind, const char *of, const char *output, const char *more) {
    sys_args_train(&args, of, text_path, output);
    sys_args_add(&args, kind->folder || strstr(more, "--resume") != NULL ? "" : "--from-scratch");
    sys_args_add(&args, strstr(kind->words, "--max-seq-length") == NULL ? "--max-seq-length 16" : "");
    sys_args_add(&args, "--compute-threads 1 --optimizer-threads 1 --host-mem 64MiB --eval-fraction 0 "
                        "--gradient-accumulation-steps 4 --per-device-train-batch-size 1 --sum-groups 4");
    sys_args_word(&args, "--max-steps=%d", STEPS);
    sys_args_add(&args, kind->words);
    sys_args_add(&args, more);
}

static void end_after_kill(const struct kind *kind, const char *of) {
    sys_args_leash(&args);
    sys_start(&args, &process);
    CHECK(sys_await(&process, "step 4/"));
    kill(process.pid, SIGKILL);
    sys_wait(&process);
    begin(kind, of, "apart", "--resume-from-checkpoint latest");
    sys_args_add(&args, way_words[KILLED]);
    sys_args_drive(&args, "drive", "64MiB");
    sys_run_well(&args, &process);
}

static void check(const struct kind *kind, const char *of, enum way way) {
    files_remove_folder("apart");
    begin(kind, of, "apart", way_words[way]);
    if (strstr(way_words[way], "nvme") != NULL) {
        files_remove_folder("drive");
        sys_args_drive(&args, "drive", "64MiB");
    }
    if (way == KILLED) {
        end_after_kill(kind, of);
    } else if (way == PROCESSES) {
        sys_mpi_begin(&launched, 2, &args, SYS_MPI_END_OTHERS);
        sys_run_well(&launched, &process);
    } else {
        sys_run_well(&args, &process);
    }
    const char *const base = test_pathf("whole/checkpoint-%d/base_model.json", STEPS); /* names the base's weights */
    CHECK(!files_exist(base) || files_same(base, test_pathf("apart/checkpoint-%d/base_model.json", STEPS)));
    if (!mixture_same_runs("whole", "apart", STEPS)) {
        sys_complain(&process, plain_pathf("%s: %s changes the run", kind->name, way_words[way]));
    }
}

/* The sum of the shares of idle experts over the steps of the run without groups. */
static double idle_share(void) {
    static const char key[] = "\"experts_idle_share\":";
    char *const text = files_read("whole/metrics.jsonl", NULL);
    double share = 0;
    for (const char *at = text; (at = strstr(at, key)) != NULL;) {
        at += strlen(key);
        share += strtod(at, NULL);
    }
    free(text);
    return share;
}

int main(void) {
    const bool processes = sys_mpi_missing() == NULL;
    text_path = sys_write_text(20000);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const struct kind *const kind = &kinds[i];
        const char *of = files_write_text(test_pathf("%s.json", kind->name), kind->config);
        of = kind->folder ? mixture_write(kind->name, of, false) : of;
        begin(kind, of, "whole", "--overwrite-output-dir --experts-per-unit all");
        sys_run_well(&args, &process);
        CHECK(strstr(kind->words, "skip") == NULL || idle_share() > 0.0);
        for (unsigned k = 0; k < (test_all() ? WAYS : 2); k++) {
            const enum way way = (enum way)((2 * i + k) % WAYS);
            if (way != PROCESSES || processes) {
                check(kind, of, way);
            }
        }
    }
    return test_end();
}
