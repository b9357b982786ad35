/* `offload plan --ranks N`: what several GPUs gain for a model of 8 billion parameters, or of a quarter of its layers
 * where the number does not matter, what they divide by the planner's choice, and the budget that is named where N
 * ranks do not fit. No GPU is needed: the plan is for one. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#define CONFIG(layers)                                                                                              \
    "{\"model_type\": \"llama\", \"vocab_size\": 128256, \"hidden_size\": 4096, \"intermediate_size\": 14336,"        \
    " \"num_hidden_layers\": " #layers ", \"num_attention_heads\": 32, \"num_key_value_heads\": 8,"                  \
    " \"max_position_embeddings\": 8192, \"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-5}"
static const char other_batch[] = "--host-mem 400GiB --profile docs/profiles/rtx4090-4-drives.json "
                                  "--max-seq-length 4096";
static const char in_memory[] = "--host-mem 400GiB --profile docs/profiles/rtx4090-4-drives.json "
                                "--max-seq-length 4096 --global-batch-size 32";

static struct sys_args args;
static struct sys_process process;
static const char *config_path, *whole_path, *part_path;

static void run(const char *words, const char *more) {
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=%s", config_path);
    sys_args_add(&args, "--device cuda --device-mem 24GiB --dtype bf16 --max-steps 9");
    sys_args_add(&args, words);
    sys_args_add(&args, more);
    sys_run(&args, &process);
}

static json_t *plan(const char *words, const char *more) {
    run(words, more);
    json_t *const json = json_loads(process.outcome.out, 0, NULL);
    if (process.outcome.exit_status != 0 || json == NULL) {
        printf("%s %s: status %d\n%s%s\n", words, more, process.outcome.exit_status, process.outcome.out,
               process.outcome.err);
        exit(1);
    }
    return json;
}

static double number(const json_t *json, const char *key) {
    return json_number_value(json_object_get(json, key));
}

/* Where compute is the bound four GPUs are almost four times as fast, and each plan says what the others would give. */
static void test_gain(void) {
    static const char words[] = "--host-mem 400GiB --profile docs/profiles/a100-4-drives.json --max-seq-length 4096 "
                                "--global-batch-size 32"; /* whose GPUs reach each other */
    json_t *const one = plan(words, "--format json");
    json_t *const four = plan(words, "--format json --ranks 4");
    const double seconds = number(one, "predicted_mean_seconds"), divided = number(four, "predicted_mean_seconds");
    const json_t *const more = json_object_get(one, "with_more"), *const less = json_object_get(four, "with_more");
    printf("one GPU %.2f s, four %.2f s\n", seconds, divided);
    CHECK(divided < 0.3 * seconds && divided > 0.25 * seconds);
    CHECK(number(json_object_get(more, "ranks"), "speedup") > 1.8 && json_is_null(json_object_get(more, "one_rank")));
    CHECK(fabs(number(json_object_get(less, "one_rank"), "seconds") / seconds - 1) < 0.05);
    CHECK(number(json_object_get(less, "ranks"), "speedup") > 1.8);
    CHECK(json_object_get(one, "ranks") == NULL && number(json_object_get(four, "ranks"), "count") == 4);
    CHECK(number(json_object_get(four, "ranks"), "sum_groups") == 4);
    const double own = number(json_object_get(four, "peak_bytes"), "host");
    const double all = number(json_object_get(json_object_get(four, "ranks"), "peak_bytes"), "host");
    printf("host memory: rank 0 %.0f bytes, all %.0f\n", own, all);
    CHECK(all > 3.9 * own && all <= 4 * own);
    json_decref(one);
    json_decref(four);
}

/* The plan says what the sums of NCCL would gain, and names them where it has them. */
static void test_library(void) {
    json_t *const fixed = plan(in_memory, "--format json --ranks 4 --sum-groups 32 --sharding full_shard");
    json_t *const library = plan(in_memory, "--format json --ranks 4 --reduction library");
    const json_t *const gain = json_object_get(json_object_get(fixed, "with_more"), "library_sums");
    const double seconds = number(library, "predicted_mean_seconds");
    printf("sums of the library: %.2f s, fixed ones %.2f s\n", seconds, number(fixed, "predicted_mean_seconds"));
    CHECK(number(gain, "speedup") > 1.02 && fabs(number(gain, "seconds") / seconds - 1) < 0.02);
    CHECK(json_is_false(json_object_get(json_object_get(fixed, "ranks"), "library_sums")));
    CHECK(json_is_true(json_object_get(json_object_get(library, "ranks"), "library_sums")));
    CHECK(json_is_null(json_object_get(json_object_get(library, "with_more"), "library_sums")));
    json_decref(fixed);
    json_decref(library);
    run(in_memory, "--ranks 4 --reduction library");
    CHECK(strstr(process.outcome.out, "the library adds those of ranks: not reproducible") != NULL);
    run(in_memory, "--ranks 4 --reduction library --sharding shared");
    CHECK(process.outcome.exit_status == 2 && strstr(process.outcome.err, "--sharding shared leaves out") != NULL);
}

/* Flags replace the sizes of a file: --mesh all of them, and so does one rank; ranks those that were chosen. */
static void test_replaced(void) {
    static const char sized[] = "ranks: \"8\"\npipeline_parallel_size: 4\npipeline_schedule: 1f1b\n";
    static const char *const cases[][2] = {
        {"--mesh dp=2", sized}, {"--ranks 1", sized}, {"--data-parallel-size 2 --pipeline-parallel-size 1", sized},
        {"--ranks 2 --pipeline-parallel-size 1", "mesh: auto\nranks: \"8\"\npipeline_parallel_size: 4\n"
         "tensor_parallel_size: 2\ncontext_parallel_size: 1\nexpert_parallel_size: 1\n"}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        char more[512];
        snprintf(more, sizeof more, "--format json --config %s %s", files_write_text("ranks.yaml", cases[i][1]),
                 cases[i][0]);
        json_t *const json = plan(in_memory, more);
        const json_t *const ranks = json_object_get(json, "ranks");
        CHECK(i == 1 ? ranks == NULL : number(ranks, "count") == 2 && number(ranks, "pipeline") == 1);
        json_decref(json);
    }
}

/* What no pipeline can be is refused with what could. The model has 10 stages, of 8 layers. */
static void test_refusals(void) {
    static const struct {
        const char *words, *text;
    } refused[] = {
        {"--mesh dp=2,pp=3 --ranks 8", "--mesh dp=2,pp=3: makes 6 ranks, --ranks says 8; leave out --ranks"},
        {"--mesh pp=2,pq=2", "--mesh pq=...: there is no such axis; did you mean pp?"},
        {"--pipeline-parallel-size 12", "--pipeline-parallel-size 12: the model has 10 stages"},
        {"--pipeline-schedule 1f1b", "--pipeline-schedule: there is no pipeline; add --pipeline-parallel-size N"},
        {"--mesh pp=2 --tiles 2 --pipeline-schedule gpipe", "--tiles 2: --pipeline-schedule gpipe passes each "
         "micro-batch on by itself; leave out --tiles, or use vertical"},
        {"--mesh pp=2 --sharding shared", "--sharding shared: devices take the slices of all ranks, and those "
         "of a pipeline"},
        {"--mesh dp=2,pp=2 --reduction library", "--reduction library: adds over all ranks at once, and those "
         "of a pipeline"},
        {"--mesh dp=2,pp=12", "--mesh pp=12: the model has 10 stages that can be divided; use at most 10"},
        {"--mesh pp=2 --pipeline-schedule interleaved --virtual-pipeline-size 9", "--virtual-pipeline-size 9: the "
         "model has 10 stages that can be divided, and 18 runs of stages are asked for; use at most 5"},
        {"--mesh dp=64,pp=1", "--mesh dp=64: a step has 32 micro-batches, which leaves ranks without work; give dp=32, "
         "or --global-batch-size 64"},
        {"--mesh dp=32,pp=2 --global-batch-size 16", "--mesh dp=32: a step has 16 micro-batches"},
        {"--mesh dp=32,pp=2 --gradient-accumulation-steps 16", "give dp=16, or --gradient-accumulation-steps 32"},
        {"--tensor-parallel-size 2 --ranks 128", "64 data ranks: a step has 32 micro-batches, which leaves ranks "
         "without work; give --ranks 64, or --global-batch-size 64"},
        {"--mesh dp=64,pp=64", "--mesh dp=64,pp=64 (4096 ranks): a run has at most 64 ranks"},
        {"--mesh dp=2 --ranks 1", "--ranks 1: --mesh dp=2 makes 2 ranks; leave out one of them"},
        {"--mesh cp=3", "--mesh cp=3: 4096 tokens of --max-seq-length cannot be cut into 6 equal parts"},
        {"--mesh cp=2,dp=3", "--mesh cp=2: each group of rows sums a power of two of --sum-groups, and there are 3"},
        {"--ranks 2 --context-parallel-mode ring", "--context-parallel-mode ring: no ranks divide rows; add "
         "--context-parallel-size N, or leave it out"},
        {"--mesh tp=3 --tensor-groups 2", "--mesh tp=3: 32 attention heads cannot be cut into 3 groups of features"},
        {"--mesh auto --ranks 2 --data-parallel-size 2 --pipeline-schedule gpipe", "--mesh auto: no mesh of 2 ranks "
         "has the sizes and the order of stages that are given; leave one of them out"},
        {"--mesh auto --ranks 12 --pipeline-parallel-size 12", "the last of them dp=1,pp=12 x 2: "
         "--pipeline-parallel-size 12: the model has 10 stages"},
        {"--ranks auto --pipeline-parallel-size 2", "--ranks auto: --pipeline-parallel-size 2 follows from a "
         "number of ranks"},
    };
    for (unsigned i = 0; i < sizeof refused / sizeof *refused; i++) {
        const bool other = strstr(refused[i].words, "--global") != NULL || strstr(refused[i].words, "-steps") != NULL;
        run(other ? other_batch : in_memory, refused[i].words);
        if (process.outcome.exit_status != 2 || strstr(process.outcome.err, refused[i].text) == NULL) {
            sys_complain(&process, refused[i].text);
        }
    }
}

/* What a plan says of a mesh. */
static void test_meshes(void) {
    json_t *const json = plan(in_memory, "--format json --mesh dp=2,pp=2");
    const json_t *const ranks = json_object_get(json, "ranks");
    CHECK(number(ranks, "count") == 4 && number(ranks, "pipeline") == 2);
    CHECK(strcmp(json_string_value(json_object_get(ranks, "schedule")), "vertical") == 0);
    CHECK(number(ranks, "data") == 2 && number(ranks, "own_micro_batches") == 16);
    CHECK(number(ranks, "own_parameters") > 0 && number(ranks, "own_parameters") < number(json, "parameters"));
    CHECK(json_is_null(json_object_get(ranks, "context_mode")) && number(ranks, "powersgd_rank") == 0);
    const json_t *const stages = json_object_get(ranks, "stages");
    CHECK(json_array_size(stages) == 2 &&
          json_array_size(json_array_get(stages, 0)) + json_array_size(json_array_get(stages, 1)) == 10);
    json_decref(json);
    run(in_memory, "--context-parallel-size 2 --context-parallel-mode ring");
    CHECK(strstr(process.outcome.out, "rows of every sequence: 2 groups over 2 ranks, which see keys and values of "
                                      "others by ring\n") != NULL);
    run(in_memory, "--mesh pp=4 --virtual-pipeline-size 3 --powersgd-start-step 5");
    CHECK(sys_said(&process, "--virtual-pipeline-size: does nothing without --pipeline-schedule interleaved"));
    CHECK(sys_said(&process, "--powersgd-start-step: does nothing without --powersgd-rank"));
    CHECK(strstr(process.outcome.out, "pipeline: 10 stages over 4 ranks; vertical; stages ") != NULL);
}

/* Plans have more ranks than a run can have, in groups that a run could have. */
static void test_many(void) {
    static const char many[] = "--host-mem 8TiB --profile docs/profiles/rtx4090-4-drives.json --max-seq-length 256 "
                               "--global-batch-size 512";
    static const struct {
        const char *words, *text;
    } refused[] = {
        {"--ranks 96 --sharding full_shard", "--ranks 96: 96 ranks would divide the same layers, and at most 64 do "
         "that together; give --sharding hybrid_shard --shard-size 48, or --mesh with a pipeline"},
        {"--ranks 128 --sharding no_shard", "128 ranks would have a copy of the model each"},
        {"--ranks 2048", "--ranks: '2048' is neither auto nor a number of ranks, 1 to 1024"},
    };
    for (unsigned i = 0; i < sizeof refused / sizeof *refused; i++) {
        run(many, refused[i].words);
        if (process.outcome.exit_status != 2 || strstr(process.outcome.err, refused[i].text) == NULL) {
            sys_complain(&process, refused[i].text);
        }
    }
    json_t *const pipe = plan(many, "--format json --mesh dp=16,pp=8 --sharding full_shard");
    json_t *const copies = plan(many, "--format json --ranks 256 --sharding hybrid_shard --shard-size 32");
    printf("128 ranks in a mesh %.3f s, 256 in 8 copies %.3f s\n", number(pipe, "predicted_mean_seconds"),
           number(copies, "predicted_mean_seconds"));
    CHECK(number(json_object_get(pipe, "ranks"), "count") == 128 &&
          number(json_object_get(copies, "ranks"), "count") == 256 &&
          number(json_object_get(copies, "ranks"), "copies") == 8);
    json_decref(pipe);
    json_decref(copies);
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s", config_path);
    sys_args_word(&args, "--data=%s", config_path);
    sys_args_add(&args, "--from-scratch --output many --device cpu --compute-threads 1 --ranks 128 "
                 "--global-batch-size 128 --sharding hybrid_shard --shard-size 16");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 &&
          strstr(process.outcome.err, "--ranks 128: a run has at most 64 ranks; `offload plan` goes to 1024") != NULL);
}

/* The pass with the most phases: adapters of attention and of a shared expert, with norms, over 2 tensor ranks and a
 * ring of as many as there may be. */
static void test_phases(void) {
    const char *const whole = config_path;
    config_path = files_write_text(
        "mixture.json", "{\"model_type\": \"qwen2_moe\", \"vocab_size\": 256, \"hidden_size\": 64, "
        "\"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 16, "
        "\"num_key_value_heads\": 16, \"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, "
        "\"shared_expert_intermediate_size\": 32, \"decoder_sparse_step\": 1, \"norm_topk_prob\": true, "
        "\"max_position_embeddings\": 2048, \"tie_word_embeddings\": false}");
    run("--host-mem 8GiB --profile docs/profiles/rtx4090-4-drives.json --max-seq-length 64 --batch-size 1 "
        "--gradient-accumulation-steps 1 --ranks 32 --mesh cp=16,tp=2 --context-parallel-mode ring --kept-blocks 0",
        "--sharding full_shard --lora-r 4 --lora-target-modules q_proj,k_proj,v_proj,o_proj,shared_expert.gate_proj,"
        "shared_expert.up_proj,shared_expert.down_proj --lora-modules-to-save input_layernorm,post_attention_layernorm,"
        "shared_expert_gate");
    if (process.outcome.exit_status != 0) {
        sys_complain(&process, "a pass of many phases");
    }
    config_path = whole;
}

/* Copies of the model are planned, and what does not divide is refused before anything is reserved. */
static void test_copies(void) {
    static const struct {
        const char *words, *text;
    } refused[] = {
        {"--ranks 4 --sharding hybrid_shard", "--sharding hybrid_shard: keeps a copy on each machine, and this is one; "
         "give --shard-size"},
        {"--ranks 4 --sharding hybrid_shard --shard-size 3", "--shard-size 3: 4 ranks cannot be divided into groups of "
         "as many; use 1, 2 or 4"},
        {"--ranks 4 --shard-size 2", "--shard-size 2: says how many ranks divide a copy"},
        {"--ranks auto --sharding hybrid_shard_zero2 --shard-size 2", "--ranks auto: how many copies --sharding "
         "hybrid_shard_zero2 makes"},
        {"--ranks 4 --sharding hybrid_shard --shard-size 2 --reduction library", "--reduction library: adds over all "
         "ranks at once"},
    };
    for (unsigned i = 0; i < sizeof refused / sizeof *refused; i++) {
        run(in_memory, refused[i].words);
        CHECK(process.outcome.exit_status == 2 && strstr(process.outcome.err, refused[i].text) != NULL);
    }
    json_t *const json = plan(in_memory, "--format json --ranks 4 --sharding hybrid_shard --shard-size 2");
    json_t *const full = plan(in_memory, "--format json --ranks 4 --sharding full_shard");
    const double all = number(json_object_get(json_object_get(json, "ranks"), "peak_bytes"), "host");
    CHECK(number(json_object_get(json, "ranks"), "copies") == 2);
    CHECK(all > number(json_object_get(json_object_get(full, "ranks"), "peak_bytes"), "host"));
    json_decref(json);
    json_decref(full);
    run(in_memory, "--ranks 4 --sharding hybrid_shard --shard-size 2 --nvme /tmp:1TiB"); /* a process for each copy */
    CHECK(process.outcome.exit_status == 0);
    CHECK(strstr(process.outcome.err, "planned for a process for each copy, as mpirun -np 2 starts them") != NULL);
    run(in_memory, "--mesh dp=4,pp=2 --sharding hybrid_shard --shard-size 2 --nvme /tmp:1TiB");
    CHECK(strstr(process.outcome.err, "as mpirun -np 4 starts them") != NULL); /* two for each coordinate */
    /* With no_shard each rank of data has a copy of the model: 4 ranks of which two divide features make two copies,
     * which fit here where four would not, so that --sharding auto compares no_shard too. */
    run("--host-mem 20GiB --profile docs/profiles/rtx4090-4-drives.json --max-seq-length 512 --global-batch-size 4",
        "--ranks 4 --tensor-parallel-size 2");
    CHECK(process.outcome.exit_status == 0 && strstr(process.outcome.err, ", no_shard ") != NULL);
}

/* --sharding auto is as fast as the best of what it chooses from. */
static void test_choice(void) {
    static const char *const shardings[] = {"full_shard", "shard_grad_op", "zero2", "shared"};
    json_t *json = plan(in_memory, "--format json --ranks 2");
    const double chosen = number(json, "predicted_mean_seconds");
    CHECK(json_string_value(json_object_get(json_object_get(json, "ranks"), "sharding")) != NULL);
    double least = INFINITY, taken = INFINITY;
    size_t idx;
    json_t *tried;
    json_array_foreach(json_object_get(json, "shardings"), idx, tried) { /* what was compared, with the reason */
        const json_t *const at = json_object_get(tried, "step_seconds");
        least = json_is_null(at) ? least : fmin(least, json_number_value(at));
        taken = json_is_true(json_object_get(tried, "taken")) ? json_number_value(at) : taken;
        CHECK(json_string_value(json_object_get(tried, "sharding")) != NULL && number(tried, "binding_share") <= 1);
    }
    CHECK(idx >= 4 && 0.99 * taken <= least);
    json_decref(json);
    for (unsigned i = 0; i < sizeof shardings / sizeof *shardings; i++) {
        char words[64];
        if (!test_takes(i, 4)) {
            continue;
        }
        snprintf(words, sizeof words, "--format json --ranks 2 --sharding %s", shardings[i]);
        json = plan(in_memory, words);
        const double seconds = number(json, "predicted_mean_seconds");
        printf("%s: %.2f s, chosen %.2f s\n", shardings[i], seconds, chosen);
        CHECK(chosen < seconds * 1.0102);
        const char *const name = json_string_value(json_object_get(json_object_get(json, "ranks"), "sharding"));
        CHECK(name != NULL && strcmp(name, shardings[i]) == 0);
        json_decref(json);
    }
}

/* Each rank has its part of the optimizer's threads, whole ones, as in a run. Twice the threads shorten a step, of
 * which most updates are hidden, by a few per cent. */
static void test_threads(void) {
    double seconds[3];
    for (int i = 0; i < 3; i++) {
        char words[80];
        snprintf(words, sizeof words, "--format json --ranks 4 --sharding full_shard --optimizer-threads %d", 6 + i);
        json_t *const json = plan(in_memory, words);
        seconds[i] = number(json, "predicted_mean_seconds");
        json_decref(json);
    }
    printf("4 ranks with 6, 7 and 8 threads: %.2f, %.2f, %.2f s\n", seconds[0], seconds[1], seconds[2]);
    CHECK(seconds[0] == seconds[1] && seconds[2] < 0.96 * seconds[1]);
}

/* Without --optimizer-threads each of four ranks leaves two of its four cores to its lanes, and the plan says so. */
static void test_lane_cores(void) {
    json_t *const left = plan(in_memory, "--format json --ranks 4 --sharding full_shard");
    json_t *const given = plan(in_memory, "--format json --ranks 4 --sharding full_shard --optimizer-threads 8");
    CHECK(number(left, "predicted_mean_seconds") == number(given, "predicted_mean_seconds"));
    json_decref(left);
    json_decref(given);
    run(in_memory, "--ranks 4 --sharding full_shard");
    CHECK(strstr(process.outcome.out, "; the optimizer leaves 8 of 16 cores to the ranks' lanes\n") != NULL);
    run(in_memory, "");
    CHECK(strstr(process.outcome.out, "; the optimizer leaves 2 of 16 cores to its lanes\n") != NULL);
}

/* Where drives are the bound and memory of more GPUs is not used, these gain nothing, which the plan says. */
static void test_no_gain(void) {
    char words[SYS_PATH_BYTES + 256];
    snprintf(words, sizeof words, "--host-mem 24GiB --nvme %s:300GiB --accept-wear --profile "
             "docs/profiles/rtx4090-1-drive.json --max-seq-length 2048 --global-batch-size 4 --state-tier nvme "
             "--weights-tier nvme --grads-tier nvme", files_make_folder("drive"));
    run(words, "--ranks 2");
    CHECK(process.outcome.exit_status == 0);
    CHECK(strstr(process.outcome.out, "with 4 ranks: ") != NULL);
    CHECK(strstr(process.outcome.out, "with 1 rank and --sum-groups 2: ") != NULL);
    CHECK(strstr(process.outcome.out, "so the number of ranks gains nothing\n") != NULL);
    CHECK(strstr(process.outcome.out, "rank 0 of 2, ") != NULL);
    CHECK(strstr(process.outcome.out, "memory of all 2 ranks together: device ") != NULL);
}

/* The refusal names the memory of all ranks together, and that fits. */
static void test_refusal(void) {
    static const char words[] = "--profile docs/profiles/rtx4090-4-drives.json --max-seq-length 1024 "
                                "--global-batch-size 4 --ranks 4 --sharding full_shard";
    char enough[96];
    run(words, "--host-mem 2GiB");
    const char *const advice = strstr(process.outcome.err, "nearest that fits: --host-mem ");
    CHECK(process.outcome.exit_status == 2 && advice != NULL && strstr(process.outcome.err, "of 2.00 GiB;") != NULL);
    if (advice != NULL) {
        const char *const flag = strstr(advice, "--host-mem ");
        snprintf(enough, sizeof enough, "--format json %.*s", (int)(strcspn(flag + 11, ", \n") + 11), flag);
        printf("%s\n", enough);
        json_decref(plan(words, enough));
    }
}

/* --ranks auto counts the GPUs of a profile of another machine, and takes fewer where more gain nothing. */
static void test_auto(void) {
    static const struct {
        int count;
        double drive_rate; /* 0: as it is */
        const char *words;
        uint32_t ranks;
    } cases[] = {
        {0, 0, "--sharding full_shard", 1}, {4, 0, "--sharding full_shard", 4}, {3, 0, "--sharding full_shard", 3},
        {4, 0, "--sharding full_shard --sum-groups 2", 2}, {64, 0, "--sharding full_shard --global-batch-size 5", 2},
        {4, 1e8, "--sharding full_shard --state-tier nvme --nvme drive:200GiB --persist-steps 1", 1},
    };
    json_t *const profile = json_load_file("docs/profiles/rtx4090-4-drives.json", 0, NULL);
    CHECK(profile != NULL);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!test_takes(i, 6)) {
            continue;
        }
        json_t *const machine = json_deep_copy(profile), *drive = NULL;
        size_t idx = 0;
        if (cases[i].count > 0) {
            json_object_set_new(json_object_get(machine, "gpu"), "count", json_integer(cases[i].count));
        }
        json_array_foreach(json_object_get(machine, "drives"), idx, drive) {
            if (cases[i].drive_rate > 0) {
                json_object_set_new(drive, "read_bytes_per_second", json_real(cases[i].drive_rate));
                json_object_set_new(drive, "write_bytes_per_second", json_real(cases[i].drive_rate));
                json_object_set_new(drive, "mix_bytes_per_second", json_real(cases[i].drive_rate));
            }
        }
        char *const text = json_dumps(machine, 0);
        char more[1200];
        snprintf(more, sizeof more,
                 "--host-mem 400GiB --profile %s --max-seq-length 4096 --ranks auto --format json %s%s",
                 files_write_text("machine.json", text), cases[i].words,
                 strstr(cases[i].words, "--global") != NULL ? "" :
                 test_all() ? " --global-batch-size 32" : " --global-batch-size 8");
        json_t *const json = plan("", more);
        const json_t *const several = json_object_get(json, "ranks");
        const uint32_t ranks = several == NULL ? 1 : (uint32_t)number(several, "count");
        CHECK((cases[i].count == 64) ==
              sys_said(&process, "--ranks auto: at most 5 of the 64 GPUs, because a step has 5 micro-batches"));
        if (ranks != cases[i].ranks) {
            printf("%d GPUs, %s: %u ranks, expected %u\n", cases[i].count, cases[i].words, ranks, cases[i].ranks);
            test_failure_count++;
        }
        free(text);
        json_decref(json);
        json_decref(machine);
    }
    json_decref(profile);
}

int main(void) {
    /* A plan takes seconds: make test takes one of those below. */
    static const struct {
        void (*run)(void);
        bool whole;
    } tests[] = {{test_gain, true}, {test_library, true}, {test_threads, true}, {test_lane_cores, false},
                 {test_no_gain, true}, {test_refusal, true}, {test_copies, false}, {test_meshes, false},
                 {test_many, false}, {test_replaced, false}};
    whole_path = files_write_text("8b.json", CONFIG(32));
    config_path = part_path = files_write_text("2b.json", CONFIG(8));
    test_refusals();
    test_auto();
    config_path = test_all() ? whole_path : part_path;
    test_choice();
    test_phases();
    for (unsigned i = 0; i < sizeof tests / sizeof *tests; i++) {
        config_path = tests[i].whole ? whole_path : part_path;
        if (test_takes(i, 9)) {
            tests[i].run();
        }
    }
    return test_end();
}
