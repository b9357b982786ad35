/* Each pair of ways to divide a training, in the order of docs/strategies.md: the run of both has the bytes of one
 * rank, or where exchanges are inexact those of the run that decides them; as threads and as processes. Pairs that do
 * not exist are refused by their words. */
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/run/ranks.inc"

#include <unistd.h>

enum { QUICK = 40, HANG_SECONDS = 900 };

#include "tests/kit/run/ranks_processes.inc"

enum model { LLAMA, GPT2, MIXTURE, WHOLE_MIXTURE };
static const struct family models[] = {
    [LLAMA] = {"llama", "llama", "--dtype fp32"},
    [GPT2] = {"gpt2", "gpt2", "--dtype bf16 --grad-dtype bf16"},
    [MIXTURE] = {"mixtral", "mixtral", "--dtype fp32 --experts-per-unit 2"},
    [WHOLE_MIXTURE] = {"mixtral in whole blocks", "mixtral",
                       "--dtype fp32 --router-aux-loss-coef 0.02 --router-z-loss-coef 1e-3"},
};

/* How a run is started: by threads, or by so many processes. */
struct mesh {
    unsigned processes; /* 0: threads; none: the row ends */
    const char *words;
};
enum { MESHES = 4 };


/* A pair: words of all its runs, which decide bits; what they are compared with; the runs, each at another place. */
static const struct pair {
    const char *name;
    enum model model;
    const char *cuts;
    struct mesh alone;
    struct mesh meshes[MESHES];
    bool in_memory; /* copies of the state, which a store of one process does not have */
} pairs[] = {
    {"data, pipeline", GPT2, "", {0, "--ranks 1"},
     {{0, "--mesh dp=2,pp=2"}, {2, "--mesh dp=2,pp=2 --pipeline-schedule 1f1b"},
      {0, "--mesh dp=4,pp=2 --sharding zero2"}, {4, "--mesh dp=4,pp=2 --pipeline-schedule gpipe"}}, false},
    {"data, context", GPT2, "--context-groups 2", {0, "--ranks 1"},
     {{0, "--mesh dp=2,cp=2"}, {2, "--mesh dp=2,cp=2 --sharding shard_grad_op"}, {0, "--mesh dp=4,cp=2"},
      {4, "--mesh dp=4,cp=2"}}, false},
    {"data, tensor", GPT2, "--tensor-groups 2", {0, "--ranks 1"},
     {{0, "--mesh dp=2,tp=2"}, {2, "--mesh dp=2,tp=2"}, {0, "--mesh dp=4,tp=2 --sharding shard_grad_op"},
      {4, "--mesh dp=4,tp=2"}}, false},
    {"data, experts", MIXTURE, "", {0, "--ranks 1"},
     {{0, "--expert-parallel-size 2"}, {2, "--expert-parallel-size 4 --sharding zero2"},
      {4, "--expert-parallel-size 4"}}, false},
    {"data, shared layers", LLAMA, "--share-layers all", {0, "--ranks 1"}, {{0, "--ranks 2"}, {2, "--ranks 4"}}, false},
    {"copies, pipeline", LLAMA, "", {0, "--ranks 1"},
     {{0, "--mesh dp=2,pp=2 --sharding hybrid_shard --shard-size 1"},
      {2, "--mesh dp=4,pp=2 --sharding hybrid_shard_zero2 --shard-size 2"}}, true},
    {"copies, context", LLAMA, "--context-groups 2", {0, "--ranks 1"},
     {{0, "--mesh cp=2 --sharding hybrid_shard --shard-size 1"},
      {2, "--mesh dp=2,cp=2 --sharding hybrid_shard --shard-size 2"}}, true},
    {"copies, tensor", LLAMA, "--tensor-groups 2", {0, "--ranks 1"},
     {{0, "--mesh dp=2,tp=2 --sharding hybrid_shard --shard-size 1"},
      {2, "--mesh dp=4,tp=2 --sharding hybrid_shard --shard-size 2"}}, true},
    {"copies, experts", MIXTURE, "", {0, "--ranks 1"},
     {{0, "--mesh dp=4,ep=2 --sharding hybrid_shard"}, {2, "--mesh dp=4,ep=2 --sharding hybrid_shard"}}, true},
    {"slices, experts", MIXTURE, "", {0, "--ranks 1"}, {{0, "--mesh dp=4,ep=2"}, {2, "--mesh dp=4,ep=2"}}, true},
    {"copies, shared layers", LLAMA, "--share-layers all", {0, "--ranks 1"},
     {{0, "--ranks 4 --sharding hybrid_shard --shard-size 2"}, {2, "--ranks 4 --sharding hybrid_shard --shard-size 2"}},
     true},
    {"pipeline, context", LLAMA, "--context-groups 2", {0, "--ranks 1"},
     {{0, "--mesh cp=2,pp=2"}, {2, "--mesh cp=2,pp=2 --pipeline-schedule gpipe"}, {0, "--mesh dp=2,cp=2,pp=2"},
      {4, "--mesh dp=2,cp=2,pp=2"}}, false},
    {"pipeline, tensor", LLAMA, "--tensor-groups 2", {0, "--ranks 1"},
     {{0, "--mesh tp=2,pp=2"}, {2, "--mesh tp=2,pp=2 --pipeline-schedule 1f1b"}, {0, "--mesh dp=2,tp=2,pp=2"},
      {4, "--mesh dp=2,tp=2,pp=2"}}, false},
    {"pipeline, experts", MIXTURE, "", {0, "--ranks 1"},
     {{0, "--mesh ep=2,pp=2"}, {2, "--mesh ep=2,pp=2 --pipeline-schedule gpipe"}, {4, "--mesh ep=4,pp=2"}}, false},
    {"experts, shared layers", MIXTURE, "--share-layers all", {0, "--ranks 1"},
     {{0, "--expert-parallel-size 2"}, {2, "--expert-parallel-size 2"}}, false},
    {"pipeline, shared layers", LLAMA, "--share-layers all", {0, "--ranks 1"},
     {{0, "--pipeline-parallel-size 2"}, {2, "--pipeline-parallel-size 2"}}, false},
    {"context, tensor", LLAMA, "--context-groups 2 --tensor-groups 2", {0, "--ranks 1"},
     {{0, "--mesh cp=2,tp=2"}, {2, "--mesh cp=2,tp=2"}, {0, "--mesh dp=2,cp=2,tp=2"}, {4, "--mesh cp=2,tp=2,pp=2"}},
     false},
    {"ring, tensor", LLAMA, "--context-groups 2 --tensor-groups 2 --context-parallel-mode ring", {0, "--ranks 1"},
     {{0, "--mesh cp=2,tp=2"}, {2, "--mesh cp=2,tp=2"}, {4, "--mesh cp=2,tp=2,pp=2"}}, false},
    {"context, experts", MIXTURE, "--context-groups 2", {0, "--context-parallel-size 2"},
     {{0, "--mesh cp=2,ep=2"}, {2, "--mesh dp=2,cp=2,ep=2"}, {4, "--mesh dp=2,cp=2,ep=4"}}, false},
    {"tensor, experts", WHOLE_MIXTURE, "--tensor-groups 2", {0, "--ranks 1"},
     {{0, "--mesh tp=2,ep=2 --experts-per-unit 2"}, {2, "--mesh dp=2,tp=2,ep=2"},
      {0, "--mesh dp=4,tp=2,ep=2 --sharding shard_grad_op --kept-blocks 1"}, {4, "--mesh dp=2,tp=2,ep=2,pp=2"}}, false},
    {"tensor, experts over data ranks", WHOLE_MIXTURE, "--tensor-groups 2", {0, "--ranks 1"},
     {{2, "--mesh dp=2,tp=2,ep=4 --experts-per-unit 1"}, {0, "--mesh dp=4,tp=2,ep=8"},
      {0, "--mesh dp=4,tp=2,ep=4 --sharding shard_grad_op"}, {4, "--mesh dp=2,tp=2,ep=4,pp=2"}}, false},
    {"tensor, experts, frozen", WHOLE_MIXTURE, "--tensor-groups 2 --freeze *self_attn*,*gate*,*norm*", {0, "--ranks 1"},
     {{0, "--mesh dp=2,tp=2,ep=4"}, {2, "--mesh tp=2,pp=2 --experts-per-unit 2"}, {0, "--experts-per-unit 1"}}, false},
    {"tensor, experts, one frozen", WHOLE_MIXTURE, "--tensor-groups 2 --freeze *experts.1.*", {0, "--ranks 1"},
     {{0, "--experts-per-unit 1"}, {2, "--mesh dp=2,tp=2,ep=4"}}, false},
    {"pipeline, experts, frozen", WHOLE_MIXTURE, "--freeze *self_attn*,*gate*,*norm* --experts-per-unit 2",
     {0, "--ranks 1"}, {{0, "--mesh pp=2"}, {2, "--mesh ep=2,pp=2"}}, false},
    {"groups of features, experts", WHOLE_MIXTURE, "--tensor-groups 2", {0, "--ranks 1"},
     {{0, "--expert-parallel-size 2 --experts-per-unit 1"}, {2, "--mesh dp=4,ep=4"}}, false},
    {"copies, tensor, experts", WHOLE_MIXTURE, "--tensor-groups 2", {0, "--ranks 1"},
     {{0, "--mesh dp=4,tp=2,ep=4 --sharding hybrid_shard"}}, true},
    {"tensor, experts, context", WHOLE_MIXTURE, "--tensor-groups 2 --context-groups 2", {0, "--ranks 1"},
     {{0, "--mesh cp=2,tp=2,ep=2"}, {2, "--mesh dp=2,cp=2,tp=2,ep=2"}, {0, "--mesh cp=2,tp=2,ep=4"}}, false},
    {"all axes at once", WHOLE_MIXTURE, "--tensor-groups 2 --context-groups 2", {0, "--ranks 1"},
     {{0, "--mesh dp=4,cp=2,tp=2,pp=2,ep=4 --sharding hybrid_shard --shard-size 4"},
      {2, "--mesh dp=4,cp=2,tp=2,pp=2,ep=4 --sharding hybrid_shard --shard-size 4"}}, true},
    {"context, shared layers", LLAMA, "--context-groups 2 --share-layers all", {0, "--ranks 1"},
     {{0, "--context-parallel-size 2"}, {2, "--context-parallel-size 2"}}, false},
    /* Sums that ranks round: their bits are those of as many data ranks. */
    {"data, narrow exchange", LLAMA, "--exchange-dtype q8", {0, "--ranks 2"},
     {{2, "--ranks 2"}, {0, "--ranks 2 --sharding zero2"}}, false},
    {"copies, narrow exchange", LLAMA, "--exchange-dtype bf16", {0, "--ranks 4 --sharding hybrid_shard --shard-size 2"},
     {{2, "--ranks 4 --sharding hybrid_shard --shard-size 2"},
      {4, "--ranks 4 --sharding hybrid_shard_zero2 --shard-size 2"}}, true},
    {"pipeline, narrow exchange", LLAMA, "--exchange-dtype q8", {0, "--ranks 2"},
     {{0, "--mesh dp=2,pp=2"}, {2, "--mesh dp=2,pp=2"}}, false},
    {"tensor, narrow exchange", LLAMA, "--tensor-groups 2 --exchange-dtype q8", {0, "--ranks 2"},
     {{0, "--mesh dp=2,tp=2"}, {2, "--mesh dp=2,tp=2"}}, false},
    {"experts, narrow exchange", MIXTURE, "--exchange-dtype q8", {0, "--expert-parallel-size 2"},
     {{0, "--mesh ep=2,pp=2"}, {2, "--expert-parallel-size 2"}}, false},
    {"shared layers, narrow exchange", LLAMA, "--share-layers all --exchange-dtype q8", {0, "--ranks 2"},
     {{2, "--ranks 2"}}, false},
    {"copies, low rank", LLAMA, "--powersgd-rank 2 --powersgd-start-step 2 --powersgd-min-rate 1.1",
     {2, "--ranks 4 --sharding hybrid_shard --shard-size 2"}, {{2, "--ranks 4 --kept-blocks 1"}}, true},
    {"pipeline, low rank", LLAMA, "--powersgd-rank 2 --powersgd-start-step 2 --powersgd-min-rate 1.1",
     {2, "--ranks 2"}, {{4, "--mesh dp=2,pp=2"}}, true},
    {"context, low rank", LLAMA,
     "--context-groups 2 --powersgd-rank 2 --powersgd-start-step 2 --powersgd-min-rate 1.1",
     {2, "--mesh dp=2,cp=2"}, {{2, "--mesh dp=2,cp=2 --kept-blocks 1"}}, true},
    {"shared layers, low rank", LLAMA,
     "--share-layers all --powersgd-rank 2 --powersgd-start-step 2 --powersgd-min-rate 1.1", {2, "--ranks 2"},
     {{2, "--ranks 2 --kept-blocks 1"}}, true},
};
enum { PAIRS = sizeof pairs / sizeof *pairs };

/* Pairs that are refused, and in which words. */
static const struct refusal {
    enum model model;
    unsigned processes; /* 0: threads */
    const char *words, *says;
} refusals[] = {
    {LLAMA, 0, "--mesh dp=2,cp=2 --exchange-dtype q8", "does not exist with --exchange-dtype yet"},
    {WHOLE_MIXTURE, 0, "--mesh tp=2,ep=2 --experts-per-unit 3", "--mesh tp=2: --experts-per-unit 3: each of 2 "
     "groups of features has 4 experts of a layer; give a divisor of these, or all"},
    {WHOLE_MIXTURE, 2, "--mesh dp=2,tp=2,ep=3", "--mesh ep=3: the 2 ranks that divide features "
     "(tp of --mesh) divide the experts of a layer too, and each has as many of them; give 2, or 4 for data "
     "ranks beside them, or leave it out"},
    {WHOLE_MIXTURE, 0, "--mesh dp=2,tp=2,ep=8", "--mesh ep=8: does not divide the 4 ranks that divide "
     "micro-batches and features; use a divisor of them, or dp=4"},
    {WHOLE_MIXTURE, 0, "--mesh dp=8,tp=2,ep=16", "--mesh ep=16: 4 experts of a layer in each of 2 groups "
     "of features are divided by a power of two of ranks, at most 16; use 2, 4 or 8"},
    {MIXTURE, 0, "--mesh dp=4,tp=2,ep=8", "--experts-per-unit 2: each of 4 ranks (ep of --mesh) needs as "
     "many units of the 4 experts of a layer in each of 2 groups of features; give 1, or a divisor of it"},
    {WHOLE_MIXTURE, 0, "--mesh tp=2 --experts-per-unit 1 --freeze *experts.1.*",
     "--mesh tp=2: of layer 0 some ranks would train other parts of their experts than others"},
    {WHOLE_MIXTURE, 0, "--mesh dp=2,tp=2,ep=4 --sharding no_shard", "--sharding no_shard: ranks that divide experts "
     "(ep=4)"},
    {LLAMA, 0, "--mesh dp=2,tp=2,ep=4", "--mesh ep=4: the model (model_type \"llama\") has no experts"},
    {LLAMA, 0, "--mesh tp=2,ep=2", "--mesh ep=2: the model (model_type \"llama\") has no experts"},
    {LLAMA, 0, "--tensor-parallel-size 2 --share-layers all",
     "--tensor-parallel-size 2: does not exist with --share-layers yet; leave one of them out"},
    {LLAMA, 0, "--tensor-groups 2 --share-layers all", "--tensor-groups 2: does not exist with --share-layers yet"},
    {LLAMA, 0, "--ranks 2 --powersgd-rank 2", "needs several processes; within one, sums are exact"},
    {LLAMA, 2, "--mesh dp=2,tp=2 --powersgd-rank 2", "does not exist with ranks that divide features "
     "(tp of --mesh) yet"},
    {LLAMA, 2, "--mesh dp=2,pp=2 --powersgd-rank 2", "needs several processes with the same layers; within one"},
    {MIXTURE, 2, "--expert-parallel-size 2 --powersgd-rank 2",
     "--powersgd-rank 2: does not exist with --expert-parallel-size yet"},
    {LLAMA, 2, "--ranks 2 --powersgd-rank 2 --exchange-dtype q8",
     "--powersgd-rank 2: does not exist with --exchange-dtype yet"},
};
enum { REFUSALS = sizeof refusals / sizeof *refusals };

/* Adds what is the run's own, and runs it. */
static void go(const struct mesh *mesh, const struct place *place) {
    sys_args_add(&args, mesh->words);
    sys_args_add(&args, place->words);
    add_drives(place->drives);
    run_mesh(mesh->processes);
}

static struct result run_alone(const struct pair *pair) {
    begin(&models[pair->model], test_path("one"), fresh);
    sys_args_word(&args, "--max-steps=%d", run_steps());
    sys_args_add(&args, cosine_words);
    sys_args_add(&args, pair->cuts);
    go(&pair->alone, &places[0]);
    if (process.outcome.exit_status != 0) {
        printf("%s alone: ended with %d\n%s\n", pair->name, process.outcome.exit_status, process.outcome.err);
        test_failure_count++;
    }
    return read_result(test_path("one"), run_steps());
}

static bool takes(unsigned pair, unsigned mesh) {
    return all || test_takes(MESHES * pair + 5 * mesh, QUICK);
}

static void check_pair(unsigned idx) {
    const struct pair *const pair = &pairs[idx];
    struct result expected = {0};
    for (unsigned m = 0; m < MESHES && pair->meshes[m].words != NULL; m++) {
        const struct mesh *const mesh = &pair->meshes[m];
        const struct place *const place = &places[(idx + m) % (pair->in_memory ? IN_MEMORY_COUNT : PLACE_COUNT)];
        if (!takes(idx, m)) {
            continue;
        }
        if (expected.steps == NULL) {
            expected = run_alone(pair);
        }
        begin_ranks(&models[pair->model], 0, pair->cuts);
        go(mesh, place);
        end_ranks(plain_pathf("%s: %u processes, %s", pair->name, mesh->processes, mesh->words), place, &expected);
    }
    if (expected.steps != NULL) {
        end_one(&expected);
    }
}

static void check_refusal(const struct refusal *of) {
    begin(&models[of->model], test_path("refused"), fresh);
    sys_args_add(&args, "--max-steps 1 --eval-steps 0");
    sys_args_add(&args, of->words);
    run_mesh(of->processes);
    if (process.outcome.exit_status == 0 || strstr(process.outcome.err, of->says) == NULL) {
        printf("%s: ended with %d\n%s\n", of->words, process.outcome.exit_status, process.outcome.err);
        test_failure_count++;
    }
    files_remove_folder(test_path("refused"));
}

int main(void) {
    sys_mpi_require();
    text_path = sys_write_text(40000);
    all = test_deep();
    for (unsigned i = 0; i < REFUSALS; i++) {
        check_refusal(&refusals[i]);
    }
    for (unsigned i = 0; i < PAIRS; i++) {
        check_pair(i);
    }
    printf("%d runs of pairs have the bytes of what decides them\n", run_count);
    CHECK(run_count > 0);
    return test_end();
}
