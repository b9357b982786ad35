/* One training divided among ranks in every way: losses, norms, rates and the final files are the same bytes as those
 * of one rank, also where a run goes on with another number of ranks. With OX_TEST_ALL=2 it tries every combination,
 * in `make test-all` every other one, else and under sanitizers fewer. */
#include "tests/kit/run/ranks.inc"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 6, QUICK = 1 };
#else
enum { STRIDE = 2, QUICK = 10 };
#endif

static const char *const shardings[] = {"full_shard", "shard_grad_op", "zero2", "zero1", "shared",
                                       "hybrid_shard", "hybrid_shard_zero2"};
enum { SHARDING_COUNT = sizeof shardings / sizeof *shardings, HYBRID = 5 };
/* Pipelines; those of copies take no drive. Where embedding and head have one table, `vertical` alone. */
static const char *const pipes[] = {
    "--ranks 2 --pipeline-parallel-size 2",
    "--mesh pp=3 --pipeline-schedule 1f1b",
    "--mesh dp=2,pp=2 --pipeline-schedule gpipe",
    "--mesh pp=2 --pipeline-schedule interleaved",
    "--ranks 8 --pipeline-model-parallel-size 2 --sharding zero2",
    "--mesh dp=2,pp=4",
    "--mesh dp=4,pp=2 --pipeline-schedule 1f1b --sharding hybrid_shard --shard-size 2"};
enum { PIPE_COUNT = sizeof pipes / sizeof *pipes };
static const struct family untied = {"llama with a head of its own", "untied", "--dtype fp32"};
static const int counts[] = {2, 3, 4, 8};
enum { COUNT_COUNT = sizeof counts / sizeof *counts };

/* Ranks of hybrid sharding are cut into copies of half of them, which take no drive, as each would need one. */
static void try_ranks(const struct family *family, int ranks, int sharding_idx, int place_idx,
                      const struct result *expected) {
    const bool hybrid = sharding_idx >= HYBRID;
    const char *const sharding = shardings[sharding_idx];
    const struct place *const place = &places[place_idx % (hybrid ? IN_MEMORY_COUNT : PLACE_COUNT)];
    begin_ranks(family, ranks, place->words);
    sys_args_word(&args, "--sharding=%s", sharding);
    if (hybrid) {
        sys_args_word(&args, "--shard-size=%d", ranks % 2 == 0 ? ranks / 2 : 1);
    }
    add_drives(place->drives);
    sys_run(&args, &process);
    end_ranks(plain_pathf("%d ranks, %s", ranks, sharding), place, expected);
}

static void try_pipe(const struct family *family, int pipe, int place_idx, const struct result *expected) {
    const bool copies = strstr(pipes[pipe], "hybrid") != NULL;
    const struct place *const place = &places[place_idx % (copies ? IN_MEMORY_COUNT : PLACE_COUNT)];
    begin_ranks(family, 0, place->words);
    sys_args_add(&args, pipes[pipe]);
    add_drives(place->drives);
    sys_run(&args, &process);
    end_ranks(pipes[pipe], place, expected);
}

/* A run in memory that goes on after each fifth of its steps with other ranks and other copies of the model, from its
 * checkpoints. */
static void change_copies(const struct family *family) {
    static const char *const parts[PARTS] = {
        "--ranks 4 --sharding hybrid_shard --shard-size 2", "--ranks 1",
        "--ranks 6 --sharding hybrid_shard --shard-size 2", "--ranks 3 --sharding no_shard",
        "--ranks 8 --sharding hybrid_shard_zero2 --shard-size 4"};
    struct result expected = run_one(family, PARTS * part_steps(), constant_words);
    for (int i = 0; i < PARTS; i++) {
        begin(family, test_path("ranks"), i == 0 ? fresh : latest);
        sys_args_word(&args, "--max-steps=%d", part_steps() * (i + 1));
        sys_args_add(&args, parts[i]);
        sys_args_add(&args, constant_words);
        sys_run_well(&args, &process);
    }
    compare("copies 2, 1, 3, 3 and 2 in turn", test_path("ranks"), &expected);
    files_remove_folder(test_path("ranks"));
    end_one(&expected);
}

static void run_family(const struct family *family, int first) {
    static const char *const counted[] = {"--ranks 1", "--ranks 4", "--ranks 2", "--ranks 3", "--ranks 8"};
    printf("%s\n", family->name);
    struct result expected = run_one(family, run_steps(), cosine_words);
    CHECK(strstr(expected.steps, "\"grad_scale\":0.") != NULL);
    for (int i = 0; i < COUNT_COUNT; i++) {
        for (int k = 0; k < SHARDING_COUNT; k++) {
            if ((i + k) % (int)(STRIDE * test_stride(QUICK)) != 0 && !all) {
                continue;
            }
            try_ranks(family, counts[i], k, first + i + k, &expected);
        }
    }
    const bool frozen = strstr(family->words, "--freeze") != NULL; /* a rank without anything to train is refused */
    for (int i = 0; i < PIPE_COUNT; i++) {
        const bool many = strstr(pipes[i], "pp=4") != NULL, vertical = strstr(pipes[i], "schedule") == NULL;
        if (!(many && frozen) && (all || test_takes((unsigned)(i + first), vertical ? QUICK : 2 * QUICK))) {
            try_pipe(family, i, first + i, &expected);
        }
    }
    end_one(&expected);
    if (test_takes((unsigned)first, 4)) {
        change_ranks(family, "", counted);
    }
    if (test_takes((unsigned)first, 4)) {
        change_copies(family);
    }
}

/* All schedules, and a run that goes on with other pipelines, from one store. */
static void run_untied(void) {
    static const char *const piped[] = {"--mesh pp=2", "--ranks 3", "--mesh dp=2,pp=3 --pipeline-schedule gpipe",
                                        "--ranks 1", "--mesh pp=4 --pipeline-schedule 1f1b"};
    struct result expected = run_one(&untied, run_steps(), cosine_words);
    for (int i = 0; i < PIPE_COUNT; i++) {
        if (all || test_takes((unsigned)i, QUICK)) {
            try_pipe(&untied, i, i, &expected);
        }
    }
    end_one(&expected);
    change_ranks(&untied, "", piped);
}

/* Sums that travel in fewer bits: the same bits wherever two ranks keep what they divide, which are not those of exact
 * sums. It is named, and a resume with another type warns. */
static void run_narrow(const struct family *family, const char *dtype) {
    static const char *const ways[] = {"--sharding zero2", "--sharding shared", "--sharding shard_grad_op"};
    struct result exact = run_one(family, run_steps(), plain_pathf("%s --ranks 2", cosine_words));
    files_remove_folder(test_path("one"));
    const char *const words = plain_pathf("--ranks 2 --exchange-dtype %s", dtype);
    struct result expected = run_one(family, run_steps(), plain_pathf("%s %s", cosine_words, words));
    CHECK(strcmp(exact.steps, expected.steps) != 0);
    CHECK(strstr(process.outcome.err, "inexact; each sum of gradients is rounded once before it travels") != NULL);
    CHECK(strstr(process.outcome.out, plain_pathf("gradients travelled in %s: inexact", dtype)) != NULL);
    for (int i = 0; i < 3; i++) {
        begin_ranks(family, 0, plain_pathf("%s %s %s", words, ways[i], places[i].words));
        add_drives(places[i].drives);
        sys_run(&args, &process);
        end_ranks(plain_pathf("%s, %s", words, ways[i]), &places[i], &expected);
    }
    begin(family, test_path("ranks"), fresh);
    sys_args_add(&args, plain_pathf("%s %s --max-steps 20", constant_words, words));
    sys_run_well(&args, &process);
    begin(family, test_path("ranks"), latest);
    sys_args_add(&args, plain_pathf("%s --ranks 2 --exchange-dtype fp32 --max-steps 21", constant_words));
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "--exchange-dtype") != NULL);
    files_remove_folder(test_path("ranks"));
    drop(&exact);
    end_one(&expected);
}

int main(void) {
    all = test_deep();
    text_path = sys_write_text(40000);
    run_untied();
    run_narrow(&untied, test_takes(0, 2) ? "q8" : "bf16");
    for (int i = 0; i < FAMILY_COUNT; i++) {
        run_family(&families[i], i);
    }
    printf("%d runs with the bits of one rank\n", run_count);
    return test_end();
}
