/* Checkpoints: every plane comes back bit by bit in every format, damage is found, old ones are pruned, and export
 * gives the masters in either dtype. */
#include "base/bytes.h"
#include "base/file.h"
#include "base/json.h"
#include "base/planes.h"
#include "base/prng/prng.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_internal.h"
#include "tests/kit/files.h"
#include "tests/kit/log.h"
#include "tests/kit/test.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct ox_model_config llama = {
    .family = "llama", .vocab = 131, .hidden = 24, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 6, .width = 40,
    .contexts = 32, .norm = OX_NORM_RMS, .act = OX_ACTIVATION_SWIGLU, .layout = OX_WEIGHT_OUT_IN, .norm_eps = 1e-5f,
    .rope = true, .rope_theta = 10000.0, .rotary_part = 1.0, .rotary_dim = 6, .init_range = 0.02,
    .bos_id = -1, .eos_id = -1};
static const struct ox_model_config gpt2 = {
    .family = "gpt2", .vocab = 131, .hidden = 24, .layers = 2, .heads = 4, .kv_heads = 4, .head_dim = 6, .width = 96,
    .contexts = 32, .norm = OX_NORM_LAYER, .act = OX_ACTIVATION_GELU_TANH, .layout = OX_WEIGHT_IN_OUT,
    .norm_eps = 1e-5f, .attention_bias = true, .mlp_bias = true, .norm_bias = true, .out_bias = true,
    .init_range = 0.02, .bos_id = -1, .eos_id = -1};

static struct ox_engine *open_engine_as(const struct ox_model *model, struct ox_state_format state) {
    const struct ox_engine_config config = {
        .model = model,
        .batch = 1,
        .seq = 8,
        .micro_batches = 1,
        .dtype = state.moments != OX_MOMENTS_Q8 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16,
        .state = state,
        .compute_threads = 1,
        .budget = {.unified = true, .host_bytes = 64 * OX_MIB},
        .request = {.prefetch_depth = -1,
                 .act_tier = OX_TIER_COUNT,
                 .weights_tier = OX_TIER_COUNT,
                 .state_tier = OX_TIER_COUNT,
                 .grad_tier = OX_TIER_COUNT},
        .chunk_elems = 2048, /* the embedding and the blocks span chunks */
        .queue_depth = 4,
        .optimizer_threads = 1,
        .isa = OX_ISA_SCALAR,
    };
    struct ox_engine_plan *plan = NULL;
    struct ox_engine *engine = NULL;
    REQUIRE_OK(ox_engine_plan_open(&config, &plan));
    REQUIRE_OK(ox_engine_open(&config, &plan, &engine));
    return engine;
}

static struct ox_engine *open_engine(const struct ox_model *model) {
    return open_engine_as(model, (struct ox_state_format){0});
}

/* Random bits with an exponent that every format can hold, and the values that conversions like to lose. */
static float any_value(uint64_t stream, uint64_t idx) {
    static const uint32_t special[] = {0x80000000u, 1u,          0x80000001u, 0x007fffffu, 0x3f808000u,
                                       0xbf808000u, 0x00008000u, 0x3f7fffffu, 0x7f000000u};
    uint32_t words[4];
    ox_philox(11, stream, idx, words);
    const uint32_t bits =
        words[1] % 8 == 0 ? special[words[2] % (sizeof special / sizeof *special)] : words[0];
    return ox_f32_from_bits((bits & 0x7f800000u) >= 0x7e000000u ? bits & 0xbfffffffu : bits);
}

/* Every plane of every tensor takes values of its own. */
static void fill_engine(struct ox_engine *engine, const struct ox_model *model, uint64_t seed) {
    REQUIRE_OK(ox_engine_load_begin(engine, 1));
    for (uint32_t unit_idx = 0; unit_idx < model->unit_count; unit_idx++) {
        for (uint32_t i = 0; i < ox_engine_chunk_count(engine, unit_idx); i++) {
            struct ox_chunk_view view;
            struct ox_tensor_part piece = {0};
            REQUIRE_OK(ox_engine_chunk_get(engine, unit_idx, i, &view));
            for (int plane = 0; plane < OX_PLANE_COUNT; plane++) {
                if (!ox_plane_exists(view.format, (enum ox_plane)plane)) {
                    continue;
                }
                memset(view.values, 0, view.count * sizeof *view.values);
                piece = (struct ox_tensor_part){0};
                while (ox_tensor_part_next(model, unit_idx, &view, &piece)) {
                    for (uint64_t k = piece.at; k < piece.at + piece.count; k++) {
                        const float value =
                            any_value(seed + (uint64_t)plane, unit_idx * UINT64_C(1000000) + view.first + k);
                        const bool square = plane == OX_PLANE_V && view.format.moments == OX_MOMENTS_Q8;
                        view.values[k] = square ? fabsf(value) : value;
                    }
                }
                CHECK(ox_chunk_values_set(&view, (enum ox_plane)plane) == 0);
            }
            REQUIRE_OK(ox_engine_chunk_put(engine, unit_idx, i, &view));
        }
    }
    REQUIRE_OK(ox_engine_load_commit(engine, NULL, 0));
}

static uint64_t count_in_plane(struct ox_engine *a, struct ox_engine *b, uint32_t unit_idx, uint32_t chunk_idx,
                               enum ox_plane plane) {
    static float copy[2048];
    struct ox_chunk_view view;
    uint64_t differences = 0;
    REQUIRE_OK(ox_engine_chunk_get(a, unit_idx, chunk_idx, &view));
    ox_chunk_values_get(&view, plane);
    memcpy(copy, view.values, view.count * sizeof *copy);
    REQUIRE_OK(ox_engine_chunk_get(b, unit_idx, chunk_idx, &view));
    ox_chunk_values_get(&view, plane);
    for (uint64_t k = 0; k < view.count; k++) {
        differences += ox_f32_bits(copy[k]) != ox_f32_bits(view.values[k]);
    }
    return differences;
}

/* Numbers of all planes, of the gaps too, that differ in a bit; and bytes, unless numbers of eight bits may be written
 * in two ways: with a larger scale and smaller codes. */
static uint64_t count_differences(struct ox_engine *a, struct ox_engine *b, const struct ox_model *model) {
    static unsigned char copy[1 << 16];
    uint64_t differences = 0;
    for (uint32_t unit_idx = 0; unit_idx < model->unit_count; unit_idx++) {
        for (uint32_t i = 0; i < ox_engine_chunk_count(a, unit_idx); i++) {
            struct ox_chunk_view view;
            REQUIRE_OK(ox_engine_chunk_get(a, unit_idx, i, &view));
            const uint64_t bytes = view.count * 2 + view.state_bytes; /* hi and state lie together */
            CHECK((unsigned char *)view.values - (unsigned char *)view.hi == (ptrdiff_t)bytes && bytes <= sizeof copy);
            memcpy(copy, view.hi, bytes);
            REQUIRE_OK(ox_engine_chunk_get(b, unit_idx, i, &view));
            CHECK(view.count * 2 + view.state_bytes == bytes);
            for (uint64_t k = 0; k < bytes && view.format.moments != OX_MOMENTS_Q8; k++) {
                differences += copy[k] != ((unsigned char *)view.hi)[k];
            }
            for (int plane = 0; plane < OX_PLANE_COUNT; plane++) {
                if (ox_plane_exists(view.format, (enum ox_plane)plane)) {
                    differences += count_in_plane(a, b, unit_idx, i, (enum ox_plane)plane);
                }
            }
        }
    }
    return differences;
}

static struct ox_run_state make_state_as(uint64_t step, struct ox_state_format format) {
    return (struct ox_run_state){
        .version = OX_RUN_STATE_VERSION,
        .optimizer = (uint16_t)format.kind,
        .moments = (uint16_t)format.moments,
        .run_id = {UINT64_C(0xfedcba9876543210), 7},
        .step = step,
        .optimizer_steps = step - 1,
        .cursor = 3 * step,
        .seed = UINT64_MAX,
        .data_fingerprint = UINT64_C(0x8000000000000001),
        .tokens_seen = 1234567,
        .nonfinite_steps = 1,
        .numerics_hash = UINT64_C(0xabcdef),
        .best_eval_loss = 3.1415926535897931,
    };
}

static struct ox_run_state make_state(uint64_t step) {
    return make_state_as(step, (struct ox_state_format){0});
}

static struct ox_checkpoint_save make_save(const char *output, enum ox_dtype dtype) {
    return (struct ox_checkpoint_save){.output_dir = output,
                                       .source_model = "",
                                       .weights_dtype = dtype,
                                       .shard_bytes_max = dtype == OX_DTYPE_F32 ? UINT64_MAX : 12000};
}

/* Rounds to nearest, ties to even, as torch.Tensor.to(torch.bfloat16) does. */
static float to_bf16(float value) {
    const uint32_t bits = ox_f32_bits(value), low = bits & 0xffff, odd = bits >> 16 & 1;
    return ox_f32_from_bits((bits & 0xffff0000u) + (low > 0x8000 || (low == 0x8000 && odd != 0) ? 0x10000u : 0));
}

/* The weights of an exported folder against the engine's masters. */
static void check_export(const char *path, struct ox_engine *engine, enum ox_dtype dtype) {
    struct ox_hf_folder *folder = NULL;
    float values[2048];
    int wrong = 0;
    REQUIRE_OK(ox_hf_open(path, true, &folder));
    const struct ox_model *const model = ox_hf_model(folder);
    for (uint32_t unit_idx = 0; unit_idx < model->unit_count; unit_idx++) {
        for (uint32_t i = 0; i < ox_engine_chunk_count(engine, unit_idx); i++) {
            struct ox_chunk_view view;
            struct ox_tensor_part piece = {0};
            REQUIRE_OK(ox_engine_chunk_get(engine, unit_idx, i, &view));
            ox_chunk_values_get(&view, OX_PLANE_MASTER);
            while (ox_tensor_part_next(model, unit_idx, &view, &piece)) {
                REQUIRE_OK(ox_hf_read(folder, piece.tensor_idx, piece.first, piece.count, values));
                for (uint64_t k = 0; k < piece.count; k++) {
                    const float want = dtype == OX_DTYPE_F32 ? view.values[piece.at + k]
                                                             : to_bf16(view.values[piece.at + k]);
                    wrong += ox_f32_bits(want) != ox_f32_bits(values[k]);
                }
            }
        }
    }
    CHECK(wrong == 0);
    ox_hf_close(&folder);
}

static void test_round_trip(const struct ox_model_config *base, bool tied, enum ox_dtype dtype,
                            struct ox_state_format format) {
    struct ox_model_config config = *base;
    struct ox_model *model = NULL;
    char name[64], path[OX_PATH_BYTES];
    config.tied = tied;
    REQUIRE_OK(ox_model_build(&config, &model));
    struct ox_engine *first = open_engine_as(model, format), *second = open_engine_as(model, format);
    snprintf(name, sizeof name, "run-%s-%d-%d-%d%d", config.family, tied, dtype, format.kind, format.moments);
    const char *const output = test_path(name);
    const struct ox_run_state state = make_state_as(10, format);
    const struct ox_checkpoint_save save = make_save(output, dtype);
    fill_engine(first, model, 100);
    REQUIRE_OK(ox_engine_load_begin(second, 1));
    REQUIRE_OK(ox_engine_init_weights(second, 3)); /* what is there before must not show through */
    CHECK(count_differences(first, second, model) > model->param_count);

    REQUIRE_OK(ox_checkpoint_write(first, &state, &save));
    REQUIRE_OK(ox_checkpoint_find_latest(output, path));
    CHECK(strcmp(path, test_pathf("%s/checkpoint-10", output)) == 0);
    REQUIRE_OK(ox_checkpoint_verify(path));
    REQUIRE_OK(ox_checkpoint_load(second, path));
    CHECK(count_differences(first, second, model) == 0);

    struct ox_run_state back;
    REQUIRE_OK(ox_checkpoint_read_state(path, &back));
    CHECK(memcmp(&state, &back, sizeof state) == 0);
    REQUIRE_OK(ox_checkpoint_record_eval(path, 0.5, &(struct ox_last_eval){.step = 10, .loss = 0.75}));
    REQUIRE_OK(ox_checkpoint_verify(path));
    REQUIRE_OK(ox_checkpoint_read_state(path, &back));
    CHECK(back.best_eval_loss == 0.5 && back.step == state.step);
    enum ox_dtype usual = OX_DTYPE_OTHER;
    REQUIRE_OK(ox_export_dtype(path, &usual));
    CHECK(usual == dtype);

    /* The exact masters come from a checkpoint of either dtype, and rounded ones too. */
    snprintf(name, sizeof name, "export-%s-%d-%d-%d%d", config.family, tied, dtype, format.kind, format.moments);
    for (int i = 0; i < 2; i++) {
        const enum ox_dtype to = i == 0 ? OX_DTYPE_F32 : OX_DTYPE_BF16;
        const char *const target = test_path(name);
        REQUIRE_OK(ox_export_folder(path, NULL, false, target, to, i == 0 ? UINT64_MAX : 9000));
        check_export(target, first, to);
        CHECK(ox_export_folder(path, NULL, false, target, to, UINT64_MAX) == OX_E_CONFIG);
        name[0]++;
    }
    ox_engine_close(&first);
    ox_engine_close(&second);
    ox_model_close(&model);
}

struct seen {
    uint32_t files, damaged;
};

static void see(void *context, const char *name, uint64_t bytes, enum ox_status status) {
    struct seen *const seen = context;
    seen->files++;
    seen->damaged += status != OX_OK;
    CHECK(bytes > 0 && (status == OX_OK || strcmp(name, "optimizer.safetensors") == 0));
}

static void test_damage(struct ox_engine *engine) {
    const char *const output = test_path("damaged");
    const char *const old = test_pathf("%s/checkpoint-1", output), *const new = test_pathf("%s/checkpoint-2", output);
    char path[OX_PATH_BYTES];
    CHECK(ox_checkpoint_find_latest(output, path) == OX_E_CONFIG);
    for (uint64_t step = 1; step <= 2; step++) {
        const struct ox_run_state state = make_state(step);
        const struct ox_checkpoint_save save = make_save(output, OX_DTYPE_F32);
        REQUIRE_OK(ox_checkpoint_write(engine, &state, &save));
    }
    struct seen seen = {0};
    REQUIRE_OK(ox_checkpoint_verify_each(new, see, &seen));
    CHECK(seen.files == 3 && seen.damaged == 0);
    files_flip(test_pathf("%s/optimizer.safetensors", new), -100);
    CHECK(ox_checkpoint_verify(new) == OX_E_CORRUPT);
    CHECK(strstr(ox_error_text(), "optimizer.safetensors") != NULL);
    seen = (struct seen){0};
    CHECK(ox_checkpoint_verify_each(new, see, &seen) == OX_E_CORRUPT && seen.files == 3 && seen.damaged == 1);

    /* Cut off, then without its manifest, then with a foreign one: the older checkpoint serves. */
    const char *const moments = test_pathf("%s/optimizer.safetensors", new);
    CHECK(truncate(moments, (off_t)files_size(moments) - 100) == 0);
    for (int i = 0; i < 3; i++) {
        log_warnings = 0;
        REQUIRE_OK(ox_checkpoint_find_latest(output, path));
        CHECK(strcmp(path, old) == 0 && log_warnings == 1);
        const char *const manifest = test_pathf("%s/trainer_state.json", new);
        if (i == 0) {
            CHECK(unlink(manifest) == 0);
        } else if (i == 1) {
            files_write_text(manifest, "{\"global_step\":2}");
        }
    }
    /* The hint goes first: after a run was taken up again at an older step, the newest is not the highest. */
    files_write_text(test_pathf("%s/latest", output), "checkpoint-1");
    log_warnings = 0;
    REQUIRE_OK(ox_checkpoint_find_latest(output, path));
    CHECK(strcmp(path, old) == 0 && log_warnings == 0);
    files_write_text(test_pathf("%s/latest", output), "../damaged/checkpoint-2");
    REQUIRE_OK(ox_checkpoint_find_latest(output, path));
    CHECK(strcmp(path, old) == 0);

    /* A damaged folder with the name of step 2 is renamed, and the step can be saved. */
    const struct ox_run_state state = make_state(2);
    const struct ox_checkpoint_save save = make_save(output, OX_DTYPE_F32);
    REQUIRE_OK(ox_checkpoint_write(engine, &state, &save));
    REQUIRE_OK(ox_checkpoint_verify(new));
    CHECK(ox_path_is_folder(test_pathf("%s/checkpoint-2.old-1", output)));
    REQUIRE_OK(ox_checkpoint_find_latest(output, path));
    CHECK(strcmp(path, new) == 0);

    /* A manifest of ours with a bad value is damage, not another program's file. */
    char *text = NULL;
    size_t bytes = 0;
    const char *const manifest = test_pathf("%s/trainer_state.json", new);
    REQUIRE_OK(ox_file_read(manifest, 1 << 20, &text, &bytes));
    char *const key = strstr(text, "\"run_id\": \"");
    CHECK(key != NULL);
    key[strlen("\"run_id\": \"")] = 'x';
    REQUIRE_OK(ox_file_replace(manifest, text, bytes));
    free(text);
    CHECK(ox_checkpoint_verify(new) == OX_E_CORRUPT && ox_checkpoint_load(engine, new) == OX_E_CORRUPT);
    /* A folder is none of its files. */
    const char *const weights = test_pathf("%s/model.safetensors", old);
    CHECK(unlink(weights) == 0 && mkdir(weights, 0755) == 0 && ox_checkpoint_verify(old) == OX_E_CORRUPT);
    CHECK(strstr(ox_error_text(), "model.safetensors: is a folder") != NULL);
    CHECK(ox_checkpoint_find_latest(output, path) == OX_E_CONFIG);
}

static void test_prune(struct ox_engine *engine) {
    const char *const output = test_path("pruned");
    const char *const strange[] = {"checkpoint-1", "checkpoint-007", "checkpoint-x", "notes.tmp"};
    struct ox_checkpoint_save save = make_save(output, OX_DTYPE_BF16);
    REQUIRE_OK(ox_folder_make(test_pathf("%s/checkpoint-3.tmp/inner", output)));
    for (int i = 0; i < 4; i++) {
        REQUIRE_OK(ox_folder_make(test_pathf("%s/%s", output, strange[i])));
    }
    struct ox_run_state state = make_state(2);
    state.run_id[1]++; /* another run */
    REQUIRE_OK(ox_checkpoint_write(engine, &state, &save));
    CHECK(!ox_path_is_folder(test_pathf("%s/checkpoint-3.tmp", output)));
    save.total_limit = 2;
    for (uint64_t step = 8; step <= 11; step++) {
        state = make_state(step);
        REQUIRE_OK(ox_checkpoint_write(engine, &state, &save));
    }
    CHECK(!ox_path_is_folder(test_pathf("%s/checkpoint-8", output)));
    CHECK(!ox_path_is_folder(test_pathf("%s/checkpoint-9", output)));
    CHECK(!ox_path_is_folder(test_pathf("%s/checkpoint-9.tmp", output)));
    CHECK(ox_path_is_folder(test_pathf("%s/checkpoint-10", output)));
    CHECK(ox_path_is_folder(test_pathf("%s/checkpoint-11", output)));
    CHECK(ox_path_is_folder(test_pathf("%s/checkpoint-2", output)));
    for (int i = 0; i < 4; i++) {
        CHECK(ox_path_is_folder(test_pathf("%s/%s", output, strange[i])));
    }
    /* A step below the highest deletes nothing above it. */
    state = make_state(5);
    save.total_limit = 1;
    REQUIRE_OK(ox_checkpoint_write(engine, &state, &save));
    CHECK(ox_path_is_folder(test_pathf("%s/checkpoint-10", output)));
    char path[OX_PATH_BYTES];
    REQUIRE_OK(ox_checkpoint_find_latest(output, path));
    CHECK(strcmp(path, test_pathf("%s/checkpoint-5", output)) == 0);
    /* Nor is a link, which leads to a checkpoint that somebody has moved. */
    const char *const moved = test_path("moved"), *const link = test_pathf("%s/checkpoint-10", output);
    CHECK(rename(link, moved) == 0 && symlink(moved, link) == 0);
    state = make_state(12);
    REQUIRE_OK(ox_checkpoint_write(engine, &state, &save));
    CHECK(ox_path_is_folder(link) && !ox_path_is_folder(test_pathf("%s/checkpoint-11", output)));
}

/* A checkpoint of the same moment is left as it is. */
static void test_same_step(struct ox_engine *engine) {
    const char *const output = test_path("same"), *const path = test_pathf("%s/checkpoint-4", output);
    const struct ox_checkpoint_save save = make_save(output, OX_DTYPE_F32);
    struct ox_run_state state = make_state(4), back;
    state.best_eval_loss = (double)INFINITY;
    REQUIRE_OK(ox_checkpoint_write(engine, &state, &save));
    REQUIRE_OK(ox_checkpoint_read_state(path, &back));
    CHECK(isinf(back.best_eval_loss));
    files_write_text(test_pathf("%s/mark", path), "x");
    CHECK(unlink(test_pathf("%s/latest", output)) == 0);
    REQUIRE_OK(ox_checkpoint_write(engine, &state, &save));
    CHECK(ox_path_is_file(test_pathf("%s/mark", path)) && ox_path_is_file(test_pathf("%s/latest", output)));
    /* One of another moment is not: it is put aside. */
    uint64_t *const words[] = {&state.optimizer_steps, &state.cursor,       &state.seed,     &state.data_fingerprint,
                               &state.tokens_seen,     &state.numerics_hash, &state.run_id[0], &state.run_id[1]};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        *words[i] ^= 1;
        REQUIRE_OK(ox_checkpoint_write(engine, &state, &save));
        CHECK(ox_path_is_folder(test_pathf("%s.old-%zu", path, i + 1)));
        CHECK(!ox_path_is_file(test_pathf("%s/mark", path)));
    }
}

static void test_no_room(struct ox_engine *engine) {
    const char *const output = test_path("full");
    const struct ox_checkpoint_save save = make_save(output, OX_DTYPE_F32);
    struct ox_run_state state = make_state(1);
    REQUIRE_OK(ox_checkpoint_write(engine, &state, &save));
    CHECK(ox_checkpoint_check_space(output, UINT64_MAX / 2) == OX_E_IO);
    CHECK(strstr(ox_error_text(), output) != NULL && strstr(ox_error_text(), "free") != NULL);
    REQUIRE_OK(ox_checkpoint_check_space(output, 1));
    struct rlimit old, small;
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && getrlimit(RLIMIT_FSIZE, &old) == 0);
    /* Nothing fits, then the weights but not the optimizer's state, then all but not for long. */
    for (rlim_t limit = 16 << 10; limit <= 128 << 10; limit *= 2) {
        small = (struct rlimit){.rlim_cur = limit, .rlim_max = old.rlim_max};
        state = make_state(2);
        CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
        CHECK(ox_checkpoint_write(engine, &state, &save) == OX_E_IO);
        CHECK(setrlimit(RLIMIT_FSIZE, &old) == 0);
        CHECK(!ox_path_is_folder(test_pathf("%s/checkpoint-2.tmp", output)));
        CHECK(!ox_path_is_folder(test_pathf("%s/checkpoint-2", output)));
        REQUIRE_OK(ox_checkpoint_verify(test_pathf("%s/checkpoint-1", output)));
    }
}

/* Weights of a folder that are no numbers are refused by name; others arrive exactly. */
static void test_load_weights(struct ox_engine *engine, const struct ox_model *model) {
    static const uint32_t bad[] = {0x7fc00000u, 0xff800000u, 0x7f7fffffu, 0x3f800000u};
    const uint32_t tensor_idx = 3;
    for (int i = 0; i < 4; i++) {
        char name[32];
        struct ox_hf_writer *writer = NULL;
        struct ox_hf_folder *folder = NULL;
        snprintf(name, sizeof name, "weights-%d", i);
        const char *const path = test_path(name);
        REQUIRE_OK(ox_folder_make(path));
        REQUIRE_OK(ox_hf_create(path, model, NULL, OX_DTYPE_F32, UINT64_MAX, &writer));
        for (uint32_t t = 0; t < model->tensor_count; t++) {
            for (uint64_t k = 0; k < model->tensors[t].count; k++) {
                const float value = t == tensor_idx && k == 5
                                        ? ox_f32_from_bits(bad[i])
                                        : ox_model_init_value(model, &model->tensors[t], 8, k);
                REQUIRE_OK(ox_hf_write(writer, t, k, 1, &value));
            }
        }
        REQUIRE_OK(ox_hf_finish(&writer));
        REQUIRE_OK(ox_hf_open(path, true, &folder));
        REQUIRE_OK(ox_engine_load_begin(engine, 1));
        const enum ox_status status = ox_engine_load_weights(engine, folder);
        snprintf(name, sizeof name, "bad-%d", i);
        const enum ox_status exported = ox_export_folder(path, NULL, false, test_path(name), OX_DTYPE_BF16, UINT64_MAX);
        if (i < 3) {
            CHECK(status == OX_E_CORRUPT && exported == OX_E_CORRUPT);
            CHECK(strstr(ox_error_text(), model->tensors[tensor_idx].name) != NULL);
            CHECK(strstr(ox_error_text(), "model.safetensors") != NULL);
            CHECK(!ox_path_is_folder(test_path(name)));
        } else {
            CHECK(status == OX_OK && exported == OX_OK);
            check_export(path, engine, OX_DTYPE_F32);
            check_export(test_path(name), engine, OX_DTYPE_BF16);
        }
        REQUIRE_OK(ox_engine_load_commit(engine, NULL, 0));
        ox_hf_close(&folder);
    }
}

/* Fresh values are those of the model, with zero moments and gaps. */
static void test_fresh(struct ox_engine *engine, const struct ox_model *model) {
    uint64_t wrong = 0, others = 0;
    fill_engine(engine, model, 200);
    REQUIRE_OK(ox_engine_load_begin(engine, 1));
    REQUIRE_OK(ox_engine_init_weights(engine, 21));
    REQUIRE_OK(ox_engine_load_commit(engine, NULL, 0));
    for (uint32_t unit_idx = 0; unit_idx < model->unit_count; unit_idx++) {
        for (uint32_t i = 0; i < ox_engine_chunk_count(engine, unit_idx); i++) {
            struct ox_chunk_view view;
            struct ox_tensor_part piece = {0};
            REQUIRE_OK(ox_engine_chunk_get(engine, unit_idx, i, &view));
            while (ox_tensor_part_next(model, unit_idx, &view, &piece)) {
                for (uint64_t k = 0; k < piece.count; k++) {
                    uint16_t *const hi = &view.hi[piece.at + k], *const lo = (uint16_t *)view.state.lo + piece.at + k;
                    const float want =
                        ox_model_init_value(model, &model->tensors[piece.tensor_idx], 21, piece.first + k);
                    wrong += ox_f32_bits(ox_plane_join(*hi, *lo)) != ox_f32_bits(want);
                    *hi = *lo = 0;
                }
            }
            for (uint64_t k = 0; k < view.count; k++) {
                others += view.hi[k] != 0;
            }
            for (uint64_t k = 0; k < view.state_bytes; k++) {
                others += ((const unsigned char *)view.state.lo)[k] != 0;
            }
        }
    }
    CHECK(wrong == 0 && others == 0);
}

/* Tokenizer files come along, also from beside a config.json, and a checkpoint of another model is refused.
 */
static void test_companions(struct ox_engine *engine, struct ox_engine *other) {
    const char *const output = test_path("with-tokenizer"), *const source = test_path("source");
    struct ox_checkpoint_save save = make_save(output, OX_DTYPE_F32);
    struct ox_run_state state = make_state(1);
    REQUIRE_OK(ox_folder_make(source));
    files_write_text(test_pathf("%s/tokenizer.json", source), "{}");
    files_write_text(test_pathf("%s/config.json", source), "{}");
    save.source_model = source;
    REQUIRE_OK(ox_checkpoint_write(engine, &state, &save));
    CHECK(ox_path_is_file(test_pathf("%s/checkpoint-1/tokenizer.json", output)));
    state = make_state(2);
    save.source_model = test_pathf("%s/config.json", source);
    REQUIRE_OK(ox_checkpoint_write(engine, &state, &save));
    CHECK(ox_path_is_file(test_pathf("%s/checkpoint-2/tokenizer.json", output)));
    state = make_state(3);
    save.source_model = test_path("gone");
    log_warnings = 0;
    REQUIRE_OK(ox_checkpoint_write(engine, &state, &save));
    CHECK(log_warnings == 1);
    CHECK(ox_checkpoint_load(other, test_pathf("%s/checkpoint-2", output)) == OX_E_CONFIG);
    CHECK(ox_checkpoint_load(engine, source) == OX_E_CONFIG);
}

/* A plane of an engine, all units one behind the other; free() it. */
static float *read_plane(struct ox_engine *engine, const struct ox_model *model, enum ox_plane plane) {
    uint64_t count = 0, at = 0;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        count += model->units[i].elem_count;
    }
    float *const values = calloc(count, sizeof *values);
    for (uint32_t unit_idx = 0; unit_idx < model->unit_count; unit_idx++) {
        for (uint32_t i = 0; i < ox_engine_chunk_count(engine, unit_idx); i++) {
            struct ox_chunk_view view;
            REQUIRE_OK(ox_engine_chunk_get(engine, unit_idx, i, &view));
            if (ox_plane_exists(view.format, plane)) {
                ox_chunk_values_get(&view, plane);
                memcpy(values + at, view.values, view.count * sizeof *values);
            }
            at += view.count;
        }
    }
    return values;
}

/* Compares a plane, element by element: bits, rounded as far as the format's header allows, or zeros. */
static void check_plane(struct ox_engine *from, struct ox_engine *to, const struct ox_model *model,
                        enum ox_plane plane, double error_max, bool zero) {
    float *const before = read_plane(from, model, plane), *const after = read_plane(to, model, plane);
    uint64_t wrong = 0, count = 0;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        count += model->units[i].elem_count;
    }
    for (uint64_t block = 0; block < count; block += OX_Q8_BLOCK) {
        double largest = 0;
        for (uint64_t k = block; k < block + OX_Q8_BLOCK; k++) {
            largest = fmax(largest, fabs((double)before[k]));
        }
        for (uint64_t k = block; k < block + OX_Q8_BLOCK; k++) {
            const double allowed = error_max * fmax(fabs((double)before[k]), largest / 62);
            wrong += zero ? after[k] != 0.0f : !(fabs((double)after[k] - (double)before[k]) <= allowed);
        }
    }
    CHECK(wrong == 0);
    free(before);
    free(after);
}

/* Gentle numbers: what a state holds in training. */
static void fill_gently(struct ox_engine *engine, const struct ox_model *model) {
    fill_engine(engine, model, 500);
    REQUIRE_OK(ox_engine_load_begin(engine, 1));
    for (uint32_t unit_idx = 0; unit_idx < model->unit_count; unit_idx++) {
        for (uint32_t i = 0; i < ox_engine_chunk_count(engine, unit_idx); i++) {
            struct ox_chunk_view view;
            REQUIRE_OK(ox_engine_chunk_get(engine, unit_idx, i, &view));
            for (int plane = 0; plane < OX_PLANE_COUNT; plane++) {
                struct ox_tensor_part piece = {0};
                memset(view.values, 0, view.count * sizeof *view.values);
                while (ox_tensor_part_next(model, unit_idx, &view, &piece)) {
                    for (uint64_t k = piece.at; k < piece.at + piece.count; k++) {
                        const double drawn = ox_uniform(9 + (uint64_t)plane, unit_idx, view.first + k);
                        view.values[k] = (float)(plane == OX_PLANE_V ? drawn * drawn : drawn - 0.5);
                    }
                }
                CHECK(!ox_plane_exists(view.format, (enum ox_plane)plane) ||
                      ox_chunk_values_set(&view, (enum ox_plane)plane) == 0);
            }
            REQUIRE_OK(ox_engine_chunk_put(engine, unit_idx, i, &view));
        }
    }
    REQUIRE_OK(ox_engine_load_commit(engine, NULL, 0));
}

enum { FORMATS = OX_OPTIM_KIND_COUNT * OX_MOMENTS_COUNT };

static struct ox_state_format format_at(int idx) {
    return (struct ox_state_format){(enum ox_optim_kind)(idx / OX_MOMENTS_COUNT),
                                    (enum ox_moments)(idx % OX_MOMENTS_COUNT), false};
}

/* The checkpoint at `path` is of `source`. */
static void load_as(const struct ox_model *model, struct ox_engine *source, struct ox_state_format from,
                    struct ox_state_format to, const char *path) {
    static const double error_max[OX_MOMENTS_COUNT] = {0.0, 1.0 / 128, 1.0 / 16};
    const double error = to.moments > from.moments ? error_max[to.moments] : 0.0;
    struct ox_engine *target = open_engine_as(model, to);
    fill_engine(target, model, 600);
    log_warnings = 0;
    REQUIRE_OK(ox_engine_load_begin(target, 1));
    REQUIRE_OK(ox_checkpoint_load(target, path));
    CHECK(log_warnings == (from.kind != to.kind || from.moments != to.moments));
    const bool q8_master = to.moments == OX_MOMENTS_Q8 && error > 0.0;
    check_plane(source, target, model, OX_PLANE_MASTER, q8_master ? 0x1p-15 : 0.0, false);
    check_plane(source, target, model, OX_PLANE_M, error, false);
    check_plane(source, target, model, OX_PLANE_V, error, !ox_optim_has_v(from.kind) || !ox_optim_has_v(to.kind));
    ox_engine_close(&target);
}

/* From every format to every other: one warning, and exact where the new one holds more. */
static void test_other_formats(const struct ox_model *model) {
    for (int i = 0; i < FORMATS; i++) {
        const struct ox_state_format from = format_at(i);
        struct ox_engine *source = open_engine_as(model, from);
        char name[32];
        snprintf(name, sizeof name, "format-%d", i);
        const struct ox_checkpoint_save save = make_save(test_path(name), OX_DTYPE_F32);
        const struct ox_run_state state = make_state_as(1, from);
        fill_gently(source, model);
        REQUIRE_OK(ox_checkpoint_write(source, &state, &save));
        for (int k = 0; k < FORMATS; k++) {
            load_as(model, source, from, format_at(k), test_pathf("%s/checkpoint-1", save.output_dir));
        }
        ox_engine_close(&source);
    }
}

/* Version 2 named no format, and had one. */
static void test_version_2(struct ox_engine *engine, const struct ox_model *model) {
    const char *const output = test_path("version-2"), *const path = test_pathf("%s/checkpoint-6", output);
    const char *const manifest = test_pathf("%s/trainer_state.json", path);
    const struct ox_checkpoint_save save = make_save(output, OX_DTYPE_F32);
    const struct ox_run_state state = make_state(6);
    struct ox_run_state back, expected = state;
    struct ox_engine *other = open_engine(model);
    json_t *object = NULL;
    REQUIRE_OK(ox_checkpoint_write(engine, &state, &save));
    REQUIRE_OK(ox_json_load(manifest, 1 << 20, &object));
    CHECK(json_object_del(object, "optimizer") == 0 && json_object_del(object, "moments") == 0);
    CHECK(json_object_del(object, "checksum") == 0);
    CHECK(json_dump_file(object, manifest, 0) == 0);
    CHECK(ox_checkpoint_read_state(path, &back) == OX_E_CORRUPT);
    json_object_set_new(object, "format_version", json_integer(2));
    CHECK(json_dump_file(object, manifest, 0) == 0);
    REQUIRE_OK(ox_checkpoint_read_state(path, &back));
    expected.version = OX_RUN_STATE_NAMES_FORMAT; /* what was read does name its format, and is still of an old run */
    CHECK(memcmp(&expected, &back, sizeof expected) == 0);
    log_warnings = 0;
    REQUIRE_OK(ox_engine_load_begin(other, 1));
    REQUIRE_OK(ox_checkpoint_load(other, path));
    CHECK(log_warnings == 0 && count_differences(engine, other, model) == 0);
    json_object_set_new(object, "format_version", json_integer(3));
    json_object_set_new(object, "optimizer", json_string("adamw"));
    json_object_set_new(object, "moments", json_string("q9"));
    CHECK(json_dump_file(object, manifest, 0) == 0);
    CHECK(ox_checkpoint_read_state(path, &back) == OX_E_CORRUPT && strstr(ox_error_text(), "\"q9\"") != NULL);
    json_decref(object);
    ox_engine_close(&other);
}

/* Sizes and the JSON of a manifest are right, and what it says cannot be. */
static void test_contradictions(struct ox_engine *engine) {
    static const struct {
        const char *key;
        json_int_t value;
    } wrong[] = {{"cursor", INT64_MAX},  {"tokens_seen", INT64_MAX - 1},
                 {"global_step", 5},     {"optimizer_steps", 5}, {"nonfinite_steps", 2}, {"nonfinite_in_row", 2},
                 {"format_version", 0},  {"format_version", 99}, {"weights_dtype", -1},  {"optimizer", -1},
                 {"moments", -1},        {"step", -1},           {"files", -1},          {"weights_dtype", 1}};
    const char *const output = test_path("contradictions"), *const path = test_pathf("%s/checkpoint-4", output);
    const char *const manifest = test_pathf("%s/trainer_state.json", path);
    const struct ox_checkpoint_save save = make_save(output, OX_DTYPE_F32);
    const struct ox_run_state state = make_state(4);
    REQUIRE_OK(ox_checkpoint_write(engine, &state, &save));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        json_t *object = NULL;
        REQUIRE_OK(ox_json_load(manifest, 1 << 20, &object));
        json_t *const changed = json_copy(object), *const text = json_string("x");
        json_object_set_new(changed, wrong[i].key,
                            wrong[i].value < 0 ? json_incref(text) : json_integer(wrong[i].value));
        CHECK(json_object_del(changed, "checksum") == 0); /* as earlier versions wrote it */
        CHECK(json_dump_file(changed, manifest, 0) == 0);
        const enum ox_status status = ox_checkpoint_verify(path);
        CHECK((status == OX_E_CORRUPT || status == OX_E_CONFIG) && strstr(ox_error_text(), manifest) != NULL);
        CHECK(json_dump_file(object, manifest, 0) == 0);
        json_decref(object);
        json_decref(changed);
        json_decref(text);
    }
    REQUIRE_OK(ox_checkpoint_verify(path));
}

/* The header of the optimizer's file is whole, and another one. */
static void test_wrong_header(struct ox_engine *engine, const struct ox_model *model) {
    static const struct {
        const char *from, *to; /* equally long; the first one in the file */
    } wrong[] = {{".exp_avg\"", ".exp_avh\""},
                 {"\"F32\"", "\"I32\""},
                 {"[131,24]", "[24,131]"},
                 {"[131,24]", "[3144  ]"}};
    const char *const output = test_path("wrong-header");
    const char *const moments = test_pathf("%s/checkpoint-4/optimizer.safetensors", output);
    const struct ox_checkpoint_save save = make_save(output, OX_DTYPE_F32);
    const struct ox_run_state state = make_state(4);
    REQUIRE_OK(ox_checkpoint_write(engine, &state, &save));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        size_t bytes = 0;
        char *const text = files_read(moments, &bytes);
        const char *const at = memmem(text, bytes, wrong[i].from, strlen(wrong[i].from));
        CHECK(at != NULL);
        files_patch(moments, at == NULL ? 0 : at - text, wrong[i].to, strlen(wrong[i].to));
        struct ox_engine *other = open_engine(model);
        REQUIRE_OK(ox_engine_load_begin(other, 1));
        CHECK(ox_checkpoint_load(other, test_pathf("%s/checkpoint-4", output)) == OX_E_CORRUPT);
        CHECK(strstr(ox_error_text(), moments) != NULL);
        files_patch(moments, at == NULL ? 0 : at - text, wrong[i].from, strlen(wrong[i].from));
        ox_engine_close(&other);
        free(text);
    }
    REQUIRE_OK(ox_checkpoint_verify(test_pathf("%s/checkpoint-4", output)));
}

/* Numbers that a state cannot hold are refused, not stored. */
static void test_bad_numbers(const struct ox_model *model) {
    const struct ox_state_format wide = {0}, narrow = {OX_OPTIM_ADAMW, OX_MOMENTS_Q8, false};
    struct ox_engine *source = open_engine_as(model, wide), *target = open_engine_as(model, narrow);
    const char *const output = test_path("bad-numbers");
    const struct ox_checkpoint_save save = make_save(output, OX_DTYPE_F32);
    const struct ox_run_state state = make_state(1);
    fill_engine(source, model, 700); /* with second moments below zero */
    REQUIRE_OK(ox_checkpoint_write(source, &state, &save));
    REQUIRE_OK(ox_engine_load_begin(target, 1));
    CHECK(ox_checkpoint_load(target, test_pathf("%s/checkpoint-1", output)) == OX_E_CORRUPT);
    CHECK(strstr(ox_error_text(), "second moments of unit 0") != NULL && strstr(ox_error_text(), output) != NULL);
    /* What cannot be stored is counted, for the caller to refuse. */
    struct ox_chunk_view view;
    REQUIRE_OK(ox_engine_load_begin(source, 1));
    REQUIRE_OK(ox_engine_chunk_get(source, 0, 0, &view));
    for (int plane = OX_PLANE_MASTER; plane <= OX_PLANE_M; plane++) {
        memset(view.values, 0, view.count * sizeof *view.values);
        view.values[0] = NAN;
        view.values[1] = INFINITY;
        CHECK(ox_chunk_values_set(&view, (enum ox_plane)plane) == 2);
    }
    ox_engine_close(&source);
    ox_engine_close(&target);
}

int main(void) {
    struct ox_model *model = NULL, *other_model = NULL;
    log_count_warnings(NULL);
    for (int i = 0; i < 8; i++) {
        test_round_trip(i % 2 == 0 ? &llama : &gpt2, i % 4 < 2, i < 4 ? OX_DTYPE_F32 : OX_DTYPE_BF16,
                        (struct ox_state_format){0});
    }
    for (int i = 1; i < FORMATS; i++) {
        test_round_trip(i % 2 == 0 ? &llama : &gpt2, true, i % 2 == 0 ? OX_DTYPE_F32 : OX_DTYPE_BF16, format_at(i));
    }
    REQUIRE_OK(ox_model_build(&llama, &model));
    REQUIRE_OK(ox_model_build(&gpt2, &other_model));
    struct ox_engine *engine = open_engine(model), *other = open_engine(other_model);
    fill_engine(engine, model, 300);
    test_damage(engine);
    test_prune(engine);
    test_same_step(engine);
    test_no_room(engine);
    test_companions(engine, other);
    test_load_weights(engine, model);
    test_fresh(engine, model);
    test_version_2(engine, model);
    test_contradictions(engine);
    test_wrong_header(engine, model);
    test_other_formats(model);
    test_bad_numbers(model);
    ox_engine_close(&engine);
    ox_engine_close(&other);
    ox_model_close(&model);
    ox_model_close(&other_model);
    return test_end();
}
