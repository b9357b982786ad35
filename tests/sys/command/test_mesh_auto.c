/* `offload plan --mesh auto` for a model of 8 billion parameters: a pipeline where GPUs do not reach each other and a
 * step is short, data ranks where links between them are fast; and the best of every other kind beside it, with the
 * reason in words; of data ranks the same for what they divide. The sum groups that are given limit the data ranks. A
 * small model on fast links has data ranks, a mixture without them a pipeline. No GPU is needed.
 *
 * And the choice against meshes that are drawn, of all axes, by the same simulator: on ranks of the CPU none that train
 * would take is more than 2 % faster; sizes that are given stay. With OX_TEST_ALL a few meshes of 70 billion parameters
 * on 64 GPUs too, with OX_TEST_ALL=2 200 of them, each of which takes up to a minute of a processor. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static const char config_text[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 128256, \"hidden_size\": 4096, \"intermediate_size\": 14336,"
    " \"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8,"
    " \"max_position_embeddings\": 8192, \"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-5}";

static const char small_text[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 32000, \"hidden_size\": 2048, \"intermediate_size\": 5632,"
    " \"num_hidden_layers\": 4, \"num_attention_heads\": 32, \"num_key_value_heads\": 8,"
    " \"max_position_embeddings\": 8192, \"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-5}";
static const char mixture_text[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 32000, \"hidden_size\": 2048, \"num_hidden_layers\": 12,"
    " \"num_attention_heads\": 16, \"num_key_value_heads\": 4, \"head_dim\": 128, \"num_experts\": 32,"
    " \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 768, \"intermediate_size\": 6144,"
    " \"norm_topk_prob\": true, \"max_position_embeddings\": 8192, \"tie_word_embeddings\": false}";

enum { KINDS = 5 };
static const char *const kinds[KINDS] = {"data", "vertical", "gpipe", "1f1b", "interleaved"};

static struct sys_args args;
static struct sys_process process;

static void check(const char *config_path, const char *words, const char *chosen) {
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=%s", config_path);
    sys_args_add(&args, "--device cuda --dtype bf16 --max-steps 9 --mesh auto");
    sys_args_add(&args, strstr(words, "--ranks") != NULL ? "" : "--ranks 4");
    sys_args_add(&args, words);
    sys_run(&args, &process);
    const char *said = strstr(process.outcome.err, "--mesh auto: takes ");
    said = said != NULL ? said : strstr(process.outcome.out, "--mesh auto: takes ");
    CHECK(process.outcome.exit_status == 0 && said != NULL);
    if (said == NULL) {
        printf("%s: status %d\n%s%s\n", words, process.outcome.exit_status, process.outcome.out, process.outcome.err);
        return;
    }
    printf("%.*s\n", (int)strcspn(said, "\n"), said);
    CHECK(strncmp(said + strlen("--mesh auto: takes "), chosen, strlen(chosen)) == 0);
    const bool all = strstr(words, "--sum-groups") == NULL;
    for (int i = 0; i < KINDS && all; i++) { /* the best of each beside it, in the log and in the table of the plan */
        CHECK(strstr(said, kinds[i]) != NULL && strstr(process.outcome.out, kinds[i]) != NULL);
    }
    CHECK(!all || strstr(said, " at its limit for ") != NULL);
    const char *const table = strstr(process.outcome.out, "the best mesh of every kind");
    CHECK(table != NULL && strstr(table, "(taken)") != NULL);
    printf("%.*s\n", table == NULL ? 0 : 480, table);
}

/* What the data ranks of the last mesh divide: each way with its time, and what binds the one that was taken. */
static void check_division(const char *chosen, const char *const ways[], int count) {
    const char *said = strstr(process.outcome.err, "--sharding auto: takes ");
    said = said != NULL ? said : strstr(process.outcome.out, "--sharding auto: takes ");
    CHECK(said != NULL);
    if (said == NULL) {
        return;
    }
    printf("%.*s\n", (int)strcspn(said, "\n"), said);
    CHECK(strncmp(said + strlen("--sharding auto: takes "), chosen, strlen(chosen)) == 0);
    for (int i = 0; i < count; i++) {
        CHECK(strstr(said, ways[i]) != NULL);
    }
    CHECK(strstr(said, " at its limit for ") != NULL);
}

/* ---- drawn meshes ---- */

#define CONFIG(vocab, hidden, width, layers, heads, kv)                                                           \
    "{\"model_type\": \"llama\", \"vocab_size\": " #vocab ", \"hidden_size\": " #hidden                               \
    ", \"intermediate_size\": " #width ", \"num_hidden_layers\": " #layers ", \"num_attention_heads\": " #heads       \
    ", \"num_key_value_heads\": " #kv ", \"max_position_embeddings\": 131072"                              \
    ", \"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-5}"

static const double LIMIT = 1.02;
enum { FEW = 4 };

/* What a sweep plans. */
struct sweep {
    const char *name, *config, *words;
    uint32_t ranks, micro_batches, draws;
    bool whole; /* OX_TEST_ALL alone: the first FEW, and all with OX_TEST_ALL=2 */
};
static const struct sweep sweeps[] = {
    {"tensor", CONFIG(8192, 512, 1536, 6, 8, 8), "--device cpu --profile docs/profiles/cpu-2-cores.json "
     "--compute-threads 1 --host-mem 4GiB --max-seq-length 512", 8, 2, 5, false},
    {"context", CONFIG(1024, 512, 1024, 4, 4, 1), "--device cpu --profile docs/profiles/cpu-2-cores.json "
     "--compute-threads 1 --host-mem 8GiB --max-seq-length 8192", 4, 1, 3, false},
    {"data", CONFIG(8192, 512, 1536, 6, 8, 8), "--device cpu --profile docs/profiles/cpu-2-cores.json "
     "--compute-threads 1 --host-mem 4GiB --max-seq-length 512", 4, 16, 2, false},
    {"70B", CONFIG(128256, 8192, 28672, 80, 64, 8), "--device cuda --dtype bf16 --profile "
     "docs/profiles/h200-4-drives.json --device-mem 130GiB --host-mem 8TiB --max-seq-length 4096", 64, 128, 200, true},
};

/* The predicted seconds of a step; infinite where train would not take the mesh, or nothing fits. */
static double plan_mesh(const struct sweep *sweep, const char *config_path, const char *mesh, json_t **json) {
    char words[96];
    snprintf(words, sizeof words, "--ranks %u --gradient-accumulation-steps %u", sweep->ranks, sweep->micro_batches);
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=%s", config_path);
    sys_args_add(&args, "--batch-size 1 --max-steps 1000000 --format json");
    sys_args_add(&args, sweep->words);
    sys_args_add(&args, words);
    sys_args_add(&args, mesh);
    sys_run(&args, &process);
    *json = json_loads(process.outcome.out, 0, NULL);
    const json_t *const seconds = json_object_get(*json, "predicted_mean_seconds");
    const bool fits = process.outcome.exit_status == 0 && json_is_true(json_object_get(*json, "feasible"));
    if (!fits && process.outcome.exit_status != 2) {
        sys_complain(&process, mesh);
    }
    return fits ? json_number_value(seconds) : (double)INFINITY;
}

/* Draws sizes whose product is the number of ranks, and an order of stages. */
static void draw(const struct sweep *sweep, uint64_t *state, char *text, size_t bytes) {
    static const char *const orders[] = {"vertical", "gpipe", "1f1b", "interleaved"};
    uint32_t sizes[4] = {1, 1, 1, 1}; /* data, pipe, tensor, context */
    for (uint32_t left = sweep->ranks; left > 1; left /= 2) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sizes[*state >> 62] *= 2;
    }
    const uint32_t order = (uint32_t)(*state >> 40) % 4;
    const int used = snprintf(text, bytes, "--mesh dp=%u,pp=%u,tp=%u,cp=%u", sizes[0], sizes[1], sizes[2], sizes[3]);
    if (sizes[1] > 1) {
        snprintf(text + used, bytes - (size_t)used, " --pipeline-schedule %s%s", orders[order],
                 order == 3 ? " --virtual-pipeline-size 2" : "");
    }
}

static void check_sweep(const struct sweep *sweep, uint64_t seed) {
    const char *const config_path = files_write_text(sweep->name, sweep->config);
    char mesh[128], fastest[128] = "";
    json_t *json = NULL;
    double best = INFINITY;
    const uint32_t draws = sweep->whole && !test_deep() ? FEW : sweep->draws;
    uint32_t fit = 0;
    const double chosen = plan_mesh(sweep, config_path, "--mesh auto", &json);
    CHECK(isfinite(chosen) && json_array_size(json_object_get(json, "meshes")) >= 2);
    json_decref(json);
    for (uint32_t i = 0; i < draws; i++) {
        draw(sweep, &seed, mesh, sizeof mesh);
        const double seconds = plan_mesh(sweep, config_path, mesh, &json);
        json_decref(json);
        fit += isfinite(seconds);
        if (seconds < best) {
            best = seconds;
            snprintf(fastest, sizeof fastest, "%s", mesh);
        }
    }
    printf("%s: chosen %.4g s, the best of %u drawn meshes that can be %.4g s (%s)\n", sweep->name, chosen, fit, best,
           fastest);
    CHECK(chosen <= LIMIT * best && fit > 0);
}

/* Sizes that options give are those of the choice, and the best of each kind that has them is told. */
static void check_given(const struct sweep *sweep) {
    const char *const config_path = files_write_text("given", sweep->config);
    json_t *json = NULL;
    CHECK(isfinite(plan_mesh(sweep, config_path, "--mesh auto --tensor-parallel-size 2", &json)));
    const json_t *const ranks = json_object_get(json, "ranks");
    CHECK(json_integer_value(json_object_get(ranks, "tensor")) == 2);
    size_t i;
    json_t *mesh;
    json_array_foreach(json_object_get(json, "meshes"), i, mesh) {
        CHECK(json_integer_value(json_object_get(mesh, "tensor")) == 2);
    }
    json_decref(json);
    /* Groups of features that are given say which sizes can be. */
    CHECK(isfinite(plan_mesh(sweep, config_path, "--mesh auto --tensor-groups 1", &json)));
    CHECK(json_integer_value(json_object_get(json_object_get(json, "ranks"), "tensor")) == 1);
    CHECK(strstr(process.outcome.err, "ranks that divide features (--tensor-parallel-size) need ") != NULL);
    const json_t *const refused = json_object_get(json, "meshes_refused");
    CHECK(strstr(json_string_value(json_object_get(refused, "tensor")), "and --tensor-groups is 1;") != NULL);
    CHECK(json_is_null(json_object_get(refused, "expert")));
    json_decref(json);
    /* So do groups of rows, which several data ranks do not have each. */
    CHECK(isfinite(plan_mesh(sweep, config_path, "--mesh auto --context-groups 4 --context-parallel-size 4", &json)));
    CHECK(json_integer_value(json_object_get(json_object_get(json, "ranks"), "context")) == 4);
    json_decref(json);
    CHECK(!isfinite(plan_mesh(sweep, config_path, "--mesh auto --context-groups 3", &json)));
    CHECK(strstr(process.outcome.err, "--mesh auto: no mesh of 8 ranks can be, the last of them dp=") != NULL);
    CHECK(strstr(process.outcome.err, "use --max-seq-length 516") != NULL);
    json_decref(json);
}

/* Sizes that are given are tried whatever they are, and if they cannot be it is said why. */
static void check_odd(void) {
    static const struct sweep odd = {
        "odd", CONFIG(1024, 384, 768, 4, 6, 6), "--device cpu --profile docs/profiles/cpu-2-cores.json "
        "--compute-threads 1 --host-mem 4GiB --max-seq-length 120", 6, 4, 0, false};
    static const struct {
        const char *words, *axis, *refusal; /* or NULL */
    } cases[] = {
        {"--tensor-parallel-size 3", "tensor", NULL}, {"--context-parallel-size 3", "context", NULL},
        {"--tensor-parallel-size 2 --tensor-groups 3", NULL, "2 ranks that divide features"},
        {"--sum-groups 1 --tensor-groups 1 --context-parallel-size 1 --freeze embed", NULL, "--mesh auto: no mesh of "
         "these ranks has a plan, such as dp=1,pp=6: --pipeline-parallel-size 6: nothing of"},
    };
    const char *const config_path = files_write_text(odd.name, odd.config);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        char words[128];
        json_t *json = NULL;
        snprintf(words, sizeof words, "--mesh auto %s", cases[i].words);
        const double seconds = plan_mesh(&odd, config_path, words, &json);
        CHECK(isfinite(seconds) == (cases[i].refusal == NULL));
        if (cases[i].refusal != NULL && strstr(process.outcome.err, cases[i].refusal) == NULL) {
            sys_complain(&process, cases[i].refusal);
        }
        if (cases[i].axis != NULL) {
            CHECK(json_integer_value(json_object_get(json_object_get(json, "ranks"), cases[i].axis)) == 3);
        }
        json_decref(json);
    }
}

static bool is_text(const json_t *value, const char *text) {
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

/* The mode of the plan, and of the best mesh of context ranks where they were compared. */
static void check_mode_told(const json_t *json, const char *mode) {
    size_t i;
    json_t *mesh;
    CHECK(is_text(json_object_get(json_object_get(json, "ranks"), "context_mode"), mode));
    json_array_foreach(json_object_get(json, "meshes"), i, mesh) {
        const bool several = json_integer_value(json_object_get(mesh, "context")) > 1;
        CHECK(several ? is_text(json_object_get(mesh, "context_mode"), mode)
                      : json_is_null(json_object_get(mesh, "context_mode")));
    }
}

/* Where heads can be divided, context ranks see each other's keys and values in the way that is faster; a mode that is
 * given stays. Options that no such mesh has are not advised. */
static void check_modes(void) {
    static const struct sweep ways = {
        "modes", CONFIG(1024, 512, 1024, 4, 8, 8), "--device cuda --dtype bf16 --profile "
        "docs/profiles/rtx4090-x4-4-drives.json --device-mem 22GiB --host-mem 64GiB --max-seq-length 16384", 4, 1, 0,
        false};
    const char *const config_path = files_write_text(ways.name, ways.config);
    json_t *json = NULL;
    const double gather = plan_mesh(&ways, config_path, "--mesh cp=4 --context-parallel-mode gather", &json);
    CHECK(json_is_null(json_object_get(json_object_get(json, "with_more"), "library_sums")));
    json_decref(json);
    const double ulysses = plan_mesh(&ways, config_path, "--mesh cp=4 --context-parallel-mode ulysses", &json);
    check_mode_told(json, "ulysses");
    json_decref(json);
    const double chosen = plan_mesh(&ways, config_path, "--mesh auto --context-parallel-size 4", &json);
    CHECK(ulysses < gather && isfinite(gather) && chosen == ulysses);
    CHECK(strstr(process.outcome.err, "cp=4 ulysses, context") != NULL);
    check_mode_told(json, "ulysses");
    json_decref(json);
    const double said = plan_mesh(&ways, config_path, "--mesh auto --cp-size 4 --context-parallel-mode gather", &json);
    CHECK(said == gather && strstr(process.outcome.err, "ulysses") == NULL);
    check_mode_told(json, "gather");
    json_decref(json);
}

/* What is chosen for a model and a machine. */
static const struct {
    const char *config, *words, *chosen;
} cases[] = {
    {config_text, "--profile docs/profiles/rtx4090-x4-4-drives.json --device-mem 22GiB --host-mem 400GiB "
     "--max-seq-length 2048 --batch-size 1 --gradient-accumulation-steps 8", "dp=1,pp=4,"},
    {config_text, "--profile docs/profiles/h200-4-drives.json --device-mem 130GiB --host-mem 1000GiB "
     "--max-seq-length 4096 --batch-size 1 --gradient-accumulation-steps 16 --sum-groups 1 "
     "--pipeline-schedule vertical", "dp=1,pp=2,cp=2,"}, /* one group: no second data rank; pp=4 takes 1.05 of it */
    {small_text, "--profile docs/profiles/h100-x8-4-drives.json --max-seq-length 2048 --batch-size 1 "
     "--gradient-accumulation-steps 16", "dp=4,pp=1, data"},
    {mixture_text, "--profile docs/profiles/rtx4090-x4-4-drives.json --device-mem 22GiB --host-mem 100GiB "
     "--max-seq-length 2048 --batch-size 1 --gradient-accumulation-steps 8 --experts-per-unit all",
     "dp=1,pp=4, vertical"},
    {config_text, "--ranks 2 --profile docs/profiles/rtx4090-x4-4-drives.json --device-mem 22GiB --host-mem 400GiB "
     "--max-seq-length 2048 --batch-size 1 --gradient-accumulation-steps 8", "dp=1,pp=2, vertical"},
};

int main(void) {
    static const char *const ways[] = {" full_shard ", " shard_grad_op ", " zero2 ", " shared ", " hybrid_shard ",
                                       " hybrid_shard_zero2 ", " no_shard "};
    check(files_write_text("model.json", config_text), "--profile docs/profiles/h200-4-drives.json --device-mem 130GiB "
          "--host-mem 1000GiB --max-seq-length 4096 --batch-size 1 --gradient-accumulation-steps 16", "dp=4,pp=1,");
    check_division("full_shard,", ways, 7);
    check_modes();
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (test_takes(i, 5)) {
            check(files_write_text("model.json", cases[i].config), cases[i].words, cases[i].chosen);
        }
    }
    for (unsigned i = 0; i < sizeof sweeps / sizeof *sweeps; i++) {
        if (test_all() || (!sweeps[i].whole && test_takes(i, 3))) {
            check_sweep(&sweeps[i], 7 + i);
        }
    }
    check_given(&sweeps[0]);
    check_odd();
    return test_end();
}
