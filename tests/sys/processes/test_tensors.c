/* One training whose features are cut into groups, divided among ranks in many ways, as threads and as processes:
 * losses, norms, rates and the final files are the same bytes as those of one rank, also where a run goes on with other
 * ranks; what a plan says of them; what is refused. */
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/run/ranks.inc"

#include <jansson.h>
#include <unistd.h>

enum { QUICK = 9, HANG_SECONDS = 300 };

#include "tests/kit/run/ranks_processes.inc"

static const struct mesh {
    unsigned processes; /* 0: threads */
    const char *words;
    bool in_memory; /* copies of the state, which a store of one process does not have */
} meshes[] = {
    {0, "--tensor-parallel-size 2", false},
    {2, "--tensor-parallel-size 2", false},
    {0, "--mesh dp=2,tp=2", false},
    {0, "--mesh tp=2,pp=2", false},
    {2, "--mesh dp=2,tp=2 --sharding zero2", false},
    {0, "--ranks 8 --mesh tp=2 --sharding hybrid_shard --shard-size 2", true},
    {0, "--mesh dp=2,tp=2 --sharding no_shard", true},
    {2, "--mesh tp=2,pp=2 --pipeline-schedule gpipe", false},
    {0, "--mesh dp=3,tp=2 --sharding shard_grad_op --kept-blocks 2", false},
};
enum { MESHES = sizeof meshes / sizeof *meshes };
static const struct family tensors_families[] = {
    {"llama in fp32", "llama", "--dtype fp32"},
    {"gpt2 in bf16, documents packed", "gpt2", "--dtype bf16 --grad-dtype bf16 --packing pack"},
    {"llama in fp16, with steps that overflow", "llama",
     "--dtype fp16 --initial-scale-power 26 --loss-scale-window 9"},
    {"a head of its own, with noise and smoothing", "untied",
     "--dtype fp32 --neftune-noise-alpha 5 --label-smoothing-factor 0.1 --z-loss-coef 1e-3"}};
enum { TENSORS_FAMILIES = sizeof tensors_families / sizeof *tensors_families };

static void try_mesh(const struct family *family, const struct mesh *mesh, int place_idx,
                     const struct result *expected) {
    const struct place *const place = &places[place_idx % (mesh->in_memory ? IN_MEMORY_COUNT : PLACE_COUNT)];
    begin_ranks(family, 0, place->words);
    sys_args_add(&args, "--tensor-groups 2");
    sys_args_add(&args, mesh->words);
    add_drives(place->drives);
    run_mesh(mesh->processes);
    end_ranks(plain_pathf("%u processes, %s", mesh->processes, mesh->words), place, expected);
}

/* What cannot be is refused by its words, with a way out. */
static void check_refusals(void) {
    static const char *const cases[][2] = {
        {"--tensor-parallel-size 4", "--tensor-parallel-size 4: 2 key/value heads cannot be cut into 4 groups of "
                                     "features; use 1 or 2"},
        {"--tensor-parallel-size 8", "--tensor-parallel-size 8: "},
        {"--tensor-parallel-size 3", "4 attention heads cannot be cut into 3 groups of features; use 1 or 2"},
        {"--tensor-parallel-size 16", "at most 8; use 1 or 2"},
        {"--tensor-model-parallel-size 2 --tensor-groups 1",
         "2 ranks that divide features (--tensor-parallel-size) need a group each, and --tensor-groups is 1; for a new "
         "run give --tensor-groups 2"},
        {"--mesh cp=2,tp=2 --context-groups 4", "with tp of --mesh each rank has one; give cp=4"},
        {"--tensor-parallel-size 2 --optimizer muon", "--tensor-parallel-size 2: does not exist with --optimizer muon, "
                                                      "which updates whole matrices, yet; leave one of them out"},
        {"--mesh dp=2,tp=2 --reduction library", "those of tp of --mesh have other weights"},
        {"--tp-size 2", "use --tensor-parallel-size N"},
        {"--sequence-parallel", "is a part of --tensor-parallel-size"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_refused(&tensors_families[0], fresh, cases[i][0], cases[i][1]);
    }
}

/* Bytes of a plan for so many ranks: what a rank holds, and what its passes bring from others. */
struct planned {
    uint64_t held, crossing;
};

static void run_plan(const char *words, const char *format) {
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=%s", sys_write_model("untied"));
    sys_args_word(&args, "--data=%s", text_path);
    sys_args_add(&args, "--from-scratch --dtype fp32 --global-batch-size 2 --batch-size 2 --max-seq-length 16 "
                        "--tensor-groups 2 --format");
    sys_args_add(&args, format);
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
}

static struct planned plan_of(const char *words) {
    run_plan(words, "json");
    json_t *const plan = json_loads(process.outcome.out, 0, NULL);
    const json_t *const of_peers = json_object_get(json_object_get(plan, "bytes_per_step"), "peer_in");
    const struct planned planned = {
        .held = (uint64_t)json_integer_value(json_object_get(json_object_get(plan, "peak_bytes"), "host")),
        .crossing = (uint64_t)json_integer_value(json_object_get(of_peers, "activations"))};
    CHECK(plan != NULL && planned.held > 0);
    json_decref(plan);
    return planned;
}

/* What crosses is what docs/ranks.md says. Of z = R h elements of a micro-batch, with y = (t - 1) / t and e bytes of an
 * activation: in each block 6 gathers of e z y and 5 exchanges of 4 z y, with kept activations 4 and 4; a gather and
 * an exchange for the head, and both of e for the embedding; 16 R (t - 1) for the statistics of the vocabulary, and
 * 4 G h y for the gradient of each norm. */
static void check_plan(void) {
    enum { ROWS = 32, HIDDEN = 32, BLOCKS = 3, TENSORS = 2 };
    const struct planned one = plan_of("--ranks 1 --kept-blocks 0");
    const struct planned two = plan_of("--tensor-parallel-size 2 --kept-blocks 0");
    const struct planned kept = plan_of("--tensor-parallel-size 2 --kept-blocks 3");
    const uint64_t unit = 4 * ROWS * HIDDEN * (TENSORS - 1) / TENSORS; /* e is 4 too */
    const uint64_t gains = (2 * BLOCKS + 1) * 4 * TENSORS * HIDDEN * (TENSORS - 1) / TENSORS;
    const uint64_t rest = 4 * unit + 16 * ROWS * (TENSORS - 1) + gains;
    printf("a rank of one holds %llu bytes, of two %llu; %llu bytes cross, with kept activations %llu\n",
           (unsigned long long)one.held, (unsigned long long)two.held, (unsigned long long)two.crossing,
           (unsigned long long)kept.crossing);
    CHECK(one.crossing == 0);
    CHECK(two.crossing == BLOCKS * (6 + 5) * unit + rest);
    CHECK(kept.crossing == BLOCKS * (4 + 4) * unit + rest);
    CHECK(two.held < one.held);
    run_plan("--tensor-parallel-size 2", "text");
    CHECK(strstr(process.outcome.out, "groups of features: 2 over 2 ranks, of which each has 1 of every layer, and 1/2 "
                                      "of the rows between them"));
}

int main(void) {
    text_path = sys_write_text(40000);
    all = test_deep();
    check_refusals();
    check_plan();
    for (int f = 0; f < TENSORS_FAMILIES; f++) {
        bool any = all;
        for (int i = 0; i < MESHES; i++) {
            any = any || test_takes((unsigned)(i + f), QUICK);
        }
        if (!any) {
            continue;
        }
        struct result expected = run_one(&tensors_families[f], run_steps(),
                                         plain_pathf("--tensor-groups 2 %s", cosine_words));
        for (int i = 0; i < MESHES; i++) {
            if (all || test_takes((unsigned)(i + f), QUICK)) {
                try_mesh(&tensors_families[f], &meshes[i], i + f, &expected);
            }
        }
        end_one(&expected);
    }
    static const char *const ranks[5] = {"--tensor-parallel-size 2", "--ranks 1", "--mesh dp=2,tp=2", "--mesh dp=2",
                                         "--mesh tp=2,pp=2"};
    change_ranks(&tensors_families[0], "--tensor-groups 2", ranks);
    go_on_from_stores(&tensors_families[0], "--tensor-groups 2", "--tensor-parallel-size 2 --state-tier nvme",
                      "--tensor-parallel-size 1: the stores of the run's 2 processes are divided by 2 tensor ranks; "
                      "give --tensor-parallel-size 2");
    static const char *const with_rows[5] = {"--mesh cp=2,tp=2 --tensor-groups 2 --context-groups 2", "--ranks 1",
                                             "--mesh cp=2,tp=2,pp=2 --context-parallel-mode ulysses",
                                             "--cp-size 2 --cp-comm-type a2a", "--mesh dp=2,cp=2,tp=2"};
    change_ranks(&tensors_families[1], "--tensor-groups 2 --context-groups 2", with_rows);
    static const struct family mixture = {"mixtral with losses of routers", "mixtral",
                                          "--dtype fp32 --router-aux-loss-coef 0.02"};
    static const char *const with_experts[5] = {"--mesh tp=2,ep=2", "--ranks 1", "--mesh tp=2,pp=2", "--mesh dp=2",
                                                "--mesh dp=2,tp=2,ep=2"};
    change_ranks(&mixture, "--tensor-groups 2", with_experts);
    printf("%d runs have the bytes of one rank\n", run_count);
    CHECK(run_count > 3);
    return test_end();
}
