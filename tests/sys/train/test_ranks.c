/* One training divided among ranks in every way: losses, norms, rates and the final files are the same bytes as those
 * of one rank, also where a run goes on with another number of ranks. With OX_TEST_ALL=2 it tries every combination,
 * in `make test-all` every other one, else and under sanitizers fewer. */
#include "tests/kit/run/ranks.inc"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 6, QUICK = 1 };
#else
enum { STRIDE = 2, QUICK = 3 };
#endif

static const char *const shardings[] = {"full_shard", "shard_grad_op", "zero2", "zero1", "shared",
                                       "hybrid_shard", "hybrid_shard_zero2"};
enum { SHARDING_COUNT = sizeof shardings / sizeof *shardings, HYBRID = 5 };
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

/* A run on a drive that goes on with another number of ranks every ten steps, and keeps the groups of its beginning. */
static void change_ranks(const struct family *family) {
    static const int ranks[] = {1, 4, 2, 3, 8};
    struct result expected = run_one(family, plain_pathf("--max-steps 50 %s", constant_words));
    for (int i = 0; i < 5; i++) {
        begin(family, test_path("ranks"), i == 0 ? fresh : latest);
        sys_args_word(&args, "--ranks=%d", ranks[i]);
        sys_args_word(&args, "--max-steps=%d", 10 * (i + 1));
        sys_args_add(&args, "--state-tier nvme");
        sys_args_add(&args, constant_words);
        add_drives(1);
        sys_run_well(&args, &process);
    }
    remove_drives(1);
    compare("ranks 1, 4, 2, 3, 8 in turn", test_path("ranks"), &expected);
    files_remove_folder(test_path("ranks"));
    end_one(&expected);
}

/* A run in memory that goes on every ten steps with other ranks and other copies of the model, from its checkpoints. */
static void change_copies(const struct family *family) {
    static const char *const parts[] = {
        "--ranks 4 --sharding hybrid_shard --shard-size 2", "--ranks 1",
        "--ranks 6 --sharding hybrid_shard --shard-size 2", "--ranks 3 --sharding no_shard",
        "--ranks 8 --sharding hybrid_shard_zero2 --shard-size 4"};
    struct result expected = run_one(family, plain_pathf("--max-steps 50 %s", constant_words));
    for (int i = 0; i < 5; i++) {
        begin(family, test_path("ranks"), i == 0 ? fresh : latest);
        sys_args_word(&args, "--max-steps=%d", 10 * (i + 1));
        sys_args_add(&args, parts[i]);
        sys_args_add(&args, constant_words);
        sys_run_well(&args, &process);
    }
    compare("copies 2, 1, 3, 3 and 2 in turn", test_path("ranks"), &expected);
    files_remove_folder(test_path("ranks"));
    end_one(&expected);
}

static void run_family(const struct family *family, int first) {
    printf("%s\n", family->name);
    struct result expected = run_one(family, cosine_words);
    CHECK(strstr(expected.steps, "\"grad_scale\":0.") != NULL);
    for (int i = 0; i < COUNT_COUNT; i++) {
        for (int k = 0; k < SHARDING_COUNT; k++) {
            if ((i + k) % (int)(STRIDE * test_stride(QUICK)) != 0 && !all) {
                continue;
            }
            try_ranks(family, counts[i], k, first + i + k, &expected);
        }
    }
    end_one(&expected);
    if (test_takes((unsigned)first, 2)) {
        change_ranks(family);
    }
    if (test_takes((unsigned)first, 4)) {
        change_copies(family);
    }
}

int main(void) {
    all = test_deep();
    text_path = sys_write_text(40000);
    for (int i = 0; i < FAMILY_COUNT; i++) {
        run_family(&families[i], i);
    }
    printf("%d runs with the bits of one rank\n", run_count);
    return test_end();
}
