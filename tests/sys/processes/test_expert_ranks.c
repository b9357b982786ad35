/* One training of mixtures whose experts are divided among ranks in many ways, as threads and as processes: losses,
 * norms, rates and the final files are the same bytes as those of one rank, also where a run goes on with other ranks;
 * what a plan says of them; how many bytes cross, which is what the router has chosen; what is refused. */
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/run/ranks.inc"

#include <jansson.h>
#include <unistd.h>

enum { QUICK = 7, HANG_SECONDS = 300 };

#include "tests/kit/run/ranks_processes.inc"

static const struct mesh {
    unsigned processes; /* 0: threads */
    const char *words;
    bool in_memory; /* copies of the state, which a store of one process does not have */
} meshes[] = {
    {0, "--expert-parallel-size 2", false},
    {2, "--expert-parallel-size 2", false},
    {0, "--expert-parallel-size 4 --sharding shard_grad_op", false},
    {0, "--mesh ep=2,pp=2", false},
    {2, "--mesh dp=4,ep=4 --sharding zero2", false},
    {0, "--mesh dp=4,ep=2", false},
    {0, "--mesh dp=4,ep=2 --sharding hybrid_shard", true},
    {2, "--mesh dp=2,ep=2,pp=2 --pipeline-schedule 1f1b", false},
    {4, "--expert-model-parallel-size 4", false},
    {2, "--mesh dp=4,ep=2 --sharding hybrid_shard", true},
    {2, "--mesh dp=4,ep=2 --sharding shard_grad_op", false},
    {0, "--mesh dp=4,ep=2,pp=2 --sharding zero2", false},
};
enum { MESHES = sizeof meshes / sizeof *meshes };
static const struct family experts_families[] = {
    {"mixtral in fp32", "mixtral", "--dtype fp32 --experts-per-unit 2"},
    {"mixtral in bf16, with a balance loss", "mixtral",
     "--dtype bf16 --grad-dtype bf16 --router-aux-loss-coef 0.02 --experts-per-unit 1"},
    {"deepseek_v3, whose choice moves", "deepseek",
     "--dtype fp32 --router-bias-update-rate 0.01 --experts-per-unit 4"},
    {"mixtral, in documents, idle experts left", "mixtral",
     "--dtype fp32 --moments bf16 --packing pack --idle-experts skip --experts-per-unit 1"},
    {"gpt_oss, whose experts have biases", "gpt_oss", "--dtype bf16 --experts-per-unit 32"},
    {"mixtral by Muon, in part frozen", "mixtral",
     "--dtype bf16 --optimizer muon --moments bf16 --freeze *.w2.weight --experts-per-unit 2"}};
enum { FAMILIES_HERE = sizeof experts_families / sizeof *experts_families };

/* Too large for the devices and drives of other places. */
static bool is_large(const struct family *family) {
    return strcmp(family->model, "gpt_oss") == 0;
}

static void try_mesh(const struct family *family, const struct mesh *mesh, int place_idx,
                     const struct result *expected) {
    const int count = is_large(family) ? 1 : mesh->in_memory ? IN_MEMORY_COUNT : PLACE_COUNT;
    const struct place *const place = &places[place_idx % count];
    begin_ranks(family, 0, place->words);
    sys_args_add(&args, mesh->words);
    add_drives(place->drives);
    run_mesh(mesh->processes);
    end_ranks(plain_pathf("%s: %u processes, %s", family->name, mesh->processes, mesh->words), place, expected);
}

/* What cannot be is refused by its words, with a way out. */
static void check_refusals(void) {
    static const char *const cases[][2] = {
        {"--expert-parallel-size 3",
         "8 experts of a layer are divided by a power of two of ranks, at most 8; use 2, 4 or 8"},
        {"--expert-parallel-size 16", "at most 8; use 2, 4 or 8"},
        {"--expert-parallel-size 4 --experts-per-unit 4",
         "--experts-per-unit 4: each of 4 ranks (--expert-parallel-size) needs as many units of the 8 experts of a "
         "layer; give 2, or a divisor of it"},
        {"--expert-parallel-size 4 --experts-per-unit all", "--experts-per-unit all: each of 4 ranks"},
        {"--mesh dp=2,ep=4", "--mesh ep=4: does not divide the 2 ranks that divide micro-batches"},
        {"--mesh dp=4,ep=2 --sharding hybrid_shard --shard-size 1", "--shard-size 1: a copy has all experts, which 2 "
         "ranks divide (ep of --mesh); use a multiple of 2"},
        {"--expert-parallel-size 2 --experts-per-unit 1 --freeze *.experts.0.*", "some ranks would train other parts"},
        {"--expert-parallel-size 2 --sharding no_shard", "--sharding no_shard: ranks that divide experts"},
        {"--expert-parallel-size 2 --lora-r 2 --lora-target-parameters experts.gate_up_proj,experts.down_proj",
         "give --experts-per-unit all, and no --expert-parallel-size, or adapt other modules"},
        {"--ep-size 2", "use --expert-parallel-size N"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct family family = {"mixtral", "mixtral", "--dtype fp32"};
        check_refused(&family, fresh, cases[i][0], cases[i][1]);
    }
    const struct family some = {"mixtral", "mixtral", "--dtype fp32"};
    check_refused(&some, "--from-scratch", "--expert-parallel-size 2 --sum-groups 6",
                  "--sum-groups 6: with --expert-parallel-size each of 2 ranks sums as many");
    check_refused(&some, "--from-scratch", "--mesh dp=6,ep=2", "give --global-batch-size 12");
    const struct family dense = {"llama", "llama", "--dtype fp32"};
    check_refused(&dense, fresh, "--expert-parallel-size 2", "the model (model_type \"llama\") has no experts");
}

/* ---- bytes --------------------------------------------------------------------------------------------- */

enum { HIDDEN = 32, ROWS = 16, LAYERS = 3, EXPERTS = 8, CHOSEN = 2 };

/* The bytes of rows to experts of other ranks in the first step of a run of `batches` micro-batches, of all ranks; and
 * how often each expert was chosen. */
static uint64_t first_step(const char *model, const char *words, unsigned batches, uint64_t tokens[EXPERTS]) {
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s", model);
    sys_args_word(&args, "--data=%s", text_path);
    sys_args_word(&args, "--output=%s", test_path("bytes"));
    sys_args_word(&args, "--global-batch-size=%u", batches);
    sys_args_add(&args, "--from-scratch --dtype fp32 --batch-size 1 --max-steps 1 --save-steps 0 --seed 11 "
                        "--data-order sequential --experts-per-unit 1 --kept-blocks 0 --compute-threads 1");
    sys_args_word(&args, "--max-seq-length=%d", ROWS);
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
    size_t size;
    char *const text = files_read("bytes/metrics.jsonl", &size);
    uint64_t crossed = 0;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        json_t *const step = json_loads(line, 0, NULL);
        const json_t *const of_experts = json_object_get(json_object_get(step, "experts"), "tokens");
        const bool is_step = of_experts != NULL;
        const json_t *const out = is_step ? json_object_get(json_object_get(step, "bytes"), "peer_out") : NULL;
        for (size_t i = 0; i < json_array_size(of_experts) && i < EXPERTS; i++) {
            tokens[i] = (uint64_t)json_integer_value(json_array_get(of_experts, i));
        }
        crossed += (uint64_t)json_integer_value(json_object_get(out, "tokens"));
        json_decref(step);
    }
    free(text);
    files_remove_folder(test_path("bytes"));
    return crossed;
}

/* What the plan says that can cross at most, in and out of a rank. */
static uint64_t planned(const char *model, const char *words, unsigned batches) {
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=%s", model);
    sys_args_word(&args, "--data=%s", text_path);
    sys_args_word(&args, "--global-batch-size=%u", batches);
    sys_args_word(&args, "--max-seq-length=%d", ROWS);
    sys_args_add(&args, "--from-scratch --dtype fp32 --batch-size 1 --experts-per-unit 1 --kept-blocks 0 --format json "
                        "--compute-threads 1");
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
    json_t *const plan = json_loads(process.outcome.out, 0, NULL);
    const json_t *const peers = json_object_get(json_object_get(plan, "bytes_per_step"), "peer_in");
    const char *const said = strstr(words, "ep=");
    const json_t *const ranks = json_object_get(json_object_get(plan, "ranks"), "expert");
    CHECK(said == NULL || json_integer_value(ranks) == strtol(said + 3, NULL, 10));
    const uint64_t bytes = (uint64_t)json_integer_value(json_object_get(peers, "tokens"));
    json_decref(plan);
    return bytes;
}

static const char *write_mixture(const char *name, int experts, int chosen, const char *more) {
    return files_write_text(name, plain_pathf(
        "{\"model_type\": \"mixtral\", \"vocab_size\": 256, \"hidden_size\": %d, \"intermediate_size\": 64, "
        "\"num_hidden_layers\": %d, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"max_position_embeddings\": 64, \"num_local_experts\": %d, \"num_experts_per_tok\": %d%s}",
        HIDDEN, LAYERS, experts, chosen, more));
}

/* Two data ranks, of each of which two ranks divide features: those that have the same groups of features exchange rows
 * of these groups' experts alone, of which each has half, in turn. So as many pairs cross as between two ranks without
 * groups, and of a rank's rows at most one for each expert of its groups that is another's. */
static void check_folded_bytes(const char *model) {
    static const char words[] = "--mesh dp=2,tp=2,ep=4";
    const uint64_t row = 5 * 4 * HIDDEN;
    uint64_t first[EXPERTS] = {0}, all_tokens[EXPERTS] = {0}, crossing = 0;
    CHECK(first_step(model, "--ranks 1 --tensor-groups 2", 1, first) == 0);
    const uint64_t bytes = first_step(model, words, 2, all_tokens);
    for (int e = 0; e < EXPERTS; e++) { /* of a group's experts in turn, too, as it has an even number */
        crossing += e % 2 == 1 ? first[e] : all_tokens[e] - first[e];
    }
    const uint64_t most = planned(model, words, 2);
    printf("over 4 ranks %llu pairs cross, %llu bytes of at most %llu\n", (unsigned long long)crossing,
           (unsigned long long)bytes, (unsigned long long)(4 * most));
    CHECK(bytes == row * crossing && bytes > 0 && bytes < 4 * most);
    CHECK(most == row * LAYERS * ROWS * EXPERTS / 2 / 2);
}

/* A row crosses forward and back, and in backward with its gradient, of which one comes back: five times its bytes, for
 * each pair whose expert is another rank's. Two ranks have a sequence and half of the experts each; what one rank says
 * of the first sequence alone tells whose rows are whose. */
static void check_bytes(void) {
    const uint64_t row = 5 * 4 * HIDDEN;
    const char *const model = write_mixture("some.json", EXPERTS, CHOSEN, ", \"initializer_range\": 0.3");
    uint64_t first[EXPERTS] = {0}, all_tokens[EXPERTS] = {0}, crossing = 0;
    CHECK(first_step(model, "--ranks 1", 1, first) == 0);
    const uint64_t bytes = first_step(model, "--expert-parallel-size 2", 2, all_tokens);
    for (int e = 0; e < EXPERTS; e++) { /* experts in turn: unit e is that of rank e % 2 */
        crossing += e % 2 == 1 ? first[e] : all_tokens[e] - first[e];
    }
    const uint64_t most = planned(model, "--expert-parallel-size 2", 2);
    printf("%llu pairs cross, %llu bytes of at most %llu\n", (unsigned long long)crossing, (unsigned long long)bytes,
           (unsigned long long)(2 * most));
    CHECK(bytes == row * crossing && bytes > 0 && bytes < 2 * most);
    CHECK(most == row * LAYERS * ROWS * EXPERTS / 2); /* each row for every expert of the other, one in each unit */

    check_folded_bytes(model);
    /* Where every expert takes every row, the bound is what crosses. */
    const char *const every = write_mixture("every.json", 4, 4, "");
    CHECK(first_step(every, "--expert-parallel-size 4", 4, all_tokens) ==
          4 * planned(every, "--expert-parallel-size 4", 4));
    /* Where all logits are alike the first expert takes all rows: three ranks of four have none. */
    const char *const one = write_mixture("one.json", EXPERTS, 1, ", \"initializer_range\": 0.0");
    const uint64_t of_one = first_step(one, "--expert-parallel-size 4", 4, all_tokens);
    CHECK(all_tokens[0] == 4 * LAYERS * ROWS && of_one == row * 3 * LAYERS * ROWS);
}

/* Processes that have other experts go on from a checkpoint, which has whole tensors. */
static void go_on_from_checkpoints(const struct family *family, const struct mesh parts[3]) {
    struct result expected = run_one(family, 3 * part_steps(), constant_words);
    for (int i = 0; i < 3; i++) {
        begin(family, test_path("ranks"), i == 0 ? fresh : "--sum-groups 8");
        if (i > 0) {
            sys_args_word(&args, "--resume-from-checkpoint=%s/checkpoint-%d", test_path("ranks"), i * part_steps());
        }
        sys_args_add(&args, parts[i].words);
        sys_args_word(&args, "--max-steps=%d", (i + 1) * part_steps());
        sys_args_add(&args, constant_words);
        run_mesh(parts[i].processes);
        if (process.outcome.exit_status != 0) {
            printf("%s: ended with %d\n%s\n", parts[i].words, process.outcome.exit_status, process.outcome.err);
            test_failure_count++;
        }
    }
    compare("processes with other experts, from checkpoints", test_path("ranks"), &expected);
    files_remove_folder(test_path("ranks"));
    end_one(&expected);
}

/* Whether a family is run on a mesh: large ones, and meshes of more than four ranks, in the whole suite alone. */
static bool takes(int family, int mesh) {
    enum { SMALL_MESHES = 4 };
    return test_takes((unsigned)(mesh + family), QUICK) && (mesh < SMALL_MESHES || test_all());
}

int main(void) {
    text_path = sys_write_text(40000);
    all = test_deep();
    check_refusals();
    check_bytes();
    for (int f = 0; f < FAMILIES_HERE; f++) {
        if (is_large(&experts_families[f]) && !test_all()) {
            continue; /* unit/engine/step/test_expert_ranks has experts with biases too */
        }
        bool any = all;
        for (int i = 0; i < MESHES; i++) {
            any = any || takes(f, i);
        }
        if (!any) {
            continue;
        }
        struct result expected = run_one(&experts_families[f], run_steps(), cosine_words);
        for (int i = 0; i < MESHES; i++) {
            if (all || takes(f, i)) {
                try_mesh(&experts_families[f], &meshes[i], i + f, &expected);
            }
        }
        end_one(&expected);
    }
    static const char *const ranks[5] = {"--expert-parallel-size 2", "--mesh dp=4,ep=2", "--expert-parallel-size 4",
                                         "--ranks 1", "--mesh ep=2,pp=2"};
    change_ranks(&experts_families[0], "", ranks);
    go_on_from_stores(&experts_families[0], "", "--mesh dp=4,ep=2 --state-tier nvme", /* slices in two stores */
                      "--expert-parallel-size 1: the stores of the run's 2 processes are divided by 2 expert ranks; "
                      "give --expert-parallel-size 2");
    /* 2 processes, of which 2 ranks each have slices of the same, then 4 with a fourth each, then one */
    static const struct mesh parts[3] = {{2, "--mesh dp=4,ep=2", true}, {4, "--expert-parallel-size 4", true},
                                         {0, "--ranks 1", true}};
    go_on_from_checkpoints(&experts_families[0], parts);
    /* ranks that divide features and experts, then experts of groups of features alone, then features */
    static const struct family cut = {"mixtral in groups of features", "mixtral",
                                      "--dtype fp32 --tensor-groups 2 --experts-per-unit 1"};
    static const struct mesh folded[3] = {{2, "--mesh dp=2,tp=2,ep=4", true}, {0, "--mesh dp=4,ep=4", true},
                                          {2, "--mesh dp=2,tp=2,ep=2", true}};
    go_on_from_checkpoints(&cut, folded);
    printf("%d runs have the bytes of one rank\n", run_count);
    CHECK(run_count > 0);
    return test_end();
}
