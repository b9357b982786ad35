/* One training whose sequences are cut into groups of rows, divided among ranks in many ways: losses, norms, rates and
 * the final files are the same bytes as those of one rank, also where a run goes on with other ranks. */
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/run/ranks.inc"

#include <unistd.h>

enum { QUICK = 11, HANG_SECONDS = 300 };

#include "tests/kit/run/ranks_processes.inc"

static const struct mesh {
    unsigned processes; /* 0: threads */
    const char *words;
    bool in_memory; /* copies of the state, which a store does not have */
} meshes[] = {{0, "--cp-size 4", false},
              {0, "--context-parallel-size 2", false},
              {2, "--mesh cp=2,pp=2", false},
              {0, "--mesh dp=2,cp=4", false},
              {0, "--ranks 4 --mesh cp=2 --context-groups 2 --cp-comm-type a2a", false},
              {0, "--mesh cp=4 --sharding no_shard", true},
              {0, "--mesh cp=4,pp=2 --pipeline-schedule 1f1b", false},
              {0, "--mesh cp=4 --sharding hybrid_shard --shard-size 2", true},
              {2, "--mesh cp=4", false},
              {2, "--mesh cp=2,pp=2 --cp-comm-type a2a --kept-blocks 1", false},
              {0, "--context-parallel-size 2 --context-parallel-mode ulysses", false},
              {0, "--mesh dp=2,cp=4 --sharding zero2 --context-parallel-mode gather", false}};
enum { MESH_COUNT = sizeof meshes / sizeof *meshes, TWO_GROUPS = 4 };
static const struct family contexts_families[] = {
    {"llama in fp32", "llama", "--dtype fp32"},
    {"gpt2 in bf16, documents packed", "gpt2", "--dtype bf16 --grad-dtype bf16 --packing pack"},
    {"llama in fp16, with steps that overflow", "llama",
     "--dtype fp16 --initial-scale-power 26 --loss-scale-window 9"},
    {"a mixture of experts with latent attention", "deepseek",
     "--dtype fp32 --router-aux-loss-coef 0.02 --router-bias-update-rate 1e-2 --experts-per-unit all"}};
enum { CONTEXTS_FAMILIES = sizeof contexts_families / sizeof *contexts_families };

static void try_mesh(const struct family *family, int mesh, int place_idx, const struct result *expected) {
    const struct place *const place = &places[place_idx % (meshes[mesh].in_memory ? IN_MEMORY_COUNT : PLACE_COUNT)];
    begin_ranks(family, 0, place->words);
    if (mesh != TWO_GROUPS) {
        sys_args_add(&args, "--context-groups 4");
    }
    sys_args_add(&args, meshes[mesh].words);
    add_drives(place->drives);
    run_mesh(meshes[mesh].processes);
    end_ranks(plain_pathf("%u processes, %s", meshes[mesh].processes, meshes[mesh].words), place, expected);
}

/* What cannot be is refused by its words, with a way out. */
static void check_refusals(void) {
    static const char *const cases[][2] = {
        {"--context-parallel-size 3", "3: 16 tokens of --max-seq-length cannot be cut into 6 equal parts"},
        {"--cp-size 4 --context-groups 2", "2: --context-parallel-size 4 needs a group for each rank"},
        {"--cp-size 2 --context-groups 3", "for a new run give 4"},
        {"--mesh dp=2,cp=2 --context-groups 4", "2 data ranks would each sum 2 groups of rows"},
        {"--mesh cp=2,tp=2 --context-groups 4", "a rank would have 2 of the groups of rows, and with"},
        {"--context-groups 2 --mesh dp=3", "3 data ranks would each sum 2 groups of rows; give "
                                            "--context-parallel-size 2"},
        {"--mesh cp=2,dp=3", "and there are 3; give --sum-groups 4"},
        {"--context-groups 2 --neftune-noise-alpha 5", "does not exist with --neftune-noise-alpha yet"},
        {"--cp-size 2 --reduction library", "does not exist with --reduction library yet"},
        {"--cp-size 4 --context-parallel-mode ulysses", "2 key/value heads for 4 ranks; use gather or ring"},
        {"--cp-size 2 --context-groups 4 --cp-comm-type p2p", "2 ranks for 4 --context-groups, and in a ring each"},
        {"--context-parallel-mode circle", "gather"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bool chosen = strstr(cases[i][0], "dp=3") != NULL; /* as many groups of micro-batches as data ranks */
        check_refused(&contexts_families[0], chosen ? "--from-scratch" : fresh, cases[i][0], cases[i][1]);
    }
}

int main(void) {
    text_path = sys_write_text(40000);
    all = test_deep();
    check_refusals();
    for (int f = 0; f < CONTEXTS_FAMILIES; f++) {
        struct result expected = run_one(&contexts_families[f], run_steps(),
                                         plain_pathf("--context-groups 4 %s", cosine_words));
        for (int i = 0; i < MESH_COUNT; i++) {
            if (i != TWO_GROUPS && (all || test_takes((unsigned)(i + f), QUICK))) {
                try_mesh(&contexts_families[f], i, i + f, &expected);
            }
        }
        end_one(&expected);
        if (all || test_takes((unsigned)f, CONTEXTS_FAMILIES)) {
            expected = run_one(&contexts_families[f], run_steps(),
                               plain_pathf("--context-groups 2 %s", cosine_words));
            try_mesh(&contexts_families[f], TWO_GROUPS, f, &expected);
            end_one(&expected);
        }
    }
    static const char *const ranks[5] = {"--cp-size 4 --context-groups 4", "--ranks 1", "--mesh dp=2,cp=4",
                                         "--cp-size 2 --cp-comm-type a2a", "--mesh cp=4,dp=1"};
    change_ranks(&contexts_families[0], "--context-groups 4", ranks);
    static const char *const rings[5] = {"--cp-size 2 --context-parallel-mode ring", "--ranks 1", "--mesh cp=2,pp=2",
                                         "--ranks 1 --cp-comm-type p2p", "--mesh dp=2,cp=2"};
    change_ranks(&contexts_families[1], "--context-groups 2 --context-parallel-mode ring", rings);
    printf("%d runs have the bytes of one rank\n", run_count);
    CHECK(run_count > 2);
    return test_end();
}
