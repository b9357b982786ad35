/* Schedules of embeddings, blocks and heads: every family's pass is proven at many shapes; its memory is at most that
 * of the layout by hand that it replaced; faults planted by machine are refused, or change no bit. */
#include "base/json.h"
#include "base/planes.h"
#include "base/prng/prng.h"
#include "engine/model/schedule.h"
#include "kernels/device.h"
#include "tests/kit/draw.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BIG "\"num_hidden_layers\":1,\"max_position_embeddings\":8192,"
#define SMALL "\"num_hidden_layers\":1,\"vocab_size\":64,\"max_position_embeddings\":64,"
static const char llama_8b[] = "{\"model_type\":\"llama\"," BIG "\"hidden_size\":4096,\"num_attention_heads\":32,"
                               "\"num_key_value_heads\":8,\"intermediate_size\":14336,\"vocab_size\":128256}";
static const char mistral_7b[] = "{\"model_type\":\"mistral\"," BIG "\"hidden_size\":4096,\"num_attention_heads\":32,"
                                 "\"num_key_value_heads\":8,\"intermediate_size\":14336,\"vocab_size\":32000}";
static const char qwen2_7b[] = "{\"model_type\":\"qwen2\"," BIG "\"hidden_size\":3584,\"num_attention_heads\":28,"
                               "\"num_key_value_heads\":4,\"intermediate_size\":18944,\"vocab_size\":152064}";
static const char qwen3_8b[] = "{\"model_type\":\"qwen3\"," BIG "\"hidden_size\":4096,\"num_attention_heads\":32,"
                               "\"num_key_value_heads\":8,\"head_dim\":128,\"intermediate_size\":12288,"
                               "\"vocab_size\":151936}";
static const char gpt2_xl[] = "{\"model_type\":\"gpt2\",\"n_embd\":1600,\"n_layer\":1,\"n_head\":25,"
                              "\"n_positions\":4096,\"vocab_size\":50257}";
static const char llama_small[] = "{\"model_type\":\"llama\"," SMALL "\"hidden_size\":24,\"num_attention_heads\":4,"
                                  "\"num_key_value_heads\":2,\"head_dim\":8,\"intermediate_size\":40,"
                                  "\"attention_bias\":true,\"mlp_bias\":true}";
static const char qwen3_small[] = "{\"model_type\":\"qwen3\"," SMALL "\"hidden_size\":24,\"num_attention_heads\":4,"
                                  "\"num_key_value_heads\":2,\"head_dim\":8,\"intermediate_size\":40}";
static const char gpt2_small[] = "{\"model_type\":\"gpt2\",\"n_embd\":24,\"n_layer\":1,\"n_head\":3,"
                                 "\"n_positions\":64,\"vocab_size\":64}";
static const char olmo2_small[] = "{\"model_type\":\"olmo2\"," SMALL "\"hidden_size\":24,\"num_attention_heads\":4,"
                                  "\"num_key_value_heads\":2,\"head_dim\":8,\"intermediate_size\":40}";
static const char gemma3_small[] = "{\"model_type\":\"gemma3_text\"," SMALL "\"hidden_size\":24,"
                                   "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,"
                                   "\"intermediate_size\":40}";
static const char granite_small[] = "{\"model_type\":\"granite\"," SMALL "\"hidden_size\":24,"
                                    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,"
                                    "\"intermediate_size\":40,\"residual_multiplier\":0.22}";
static const char cohere2_small[] = "{\"model_type\":\"cohere2\"," SMALL "\"hidden_size\":32,"
                                    "\"num_attention_heads\":4,\"num_key_value_heads\":2,"
                                    "\"intermediate_size\":40}";
static const char wide_heads[] = "{\"model_type\":\"llama\"," BIG "\"hidden_size\":128,\"num_attention_heads\":32,"
                                 "\"num_key_value_heads\":32,\"head_dim\":64,\"intermediate_size\":64,"
                                 "\"vocab_size\":512}";

/* Blocks with a mixture of experts in the place of the MLP, which no family has yet: as mixtral's, with clamped
 * queries, keys and values as olmoe's, with biases and sinks as gpt-oss's, with an expert of all tokens as
 * qwen2_moe's. */
static const char mixture[] = "{\"model_type\":\"llama\"," SMALL "\"hidden_size\":24,\"num_attention_heads\":4,"
                              "\"num_key_value_heads\":2,\"head_dim\":8,\"intermediate_size\":40}";
static const char mixture_clamped[] = "{\"model_type\":\"qwen3\"," SMALL "\"hidden_size\":24,"
                                      "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,"
                                      "\"intermediate_size\":40}";
static const char mixture_biased[] = "{\"model_type\":\"llama\"," SMALL "\"hidden_size\":24,"
                                     "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,"
                                     "\"intermediate_size\":40,\"attention_bias\":true}";

static const char mixture_shared[] = "{\"model_type\":\"llama\"," SMALL "\"hidden_size\":24,"
                                     "\"num_attention_heads\":4,\"num_key_value_heads\":4,"
                                     "\"intermediate_size\":40}";

/* Latent attention: values narrower than queries that are narrow too, and wider than whole ones. */
#define LATENT(more) "{\"model_type\":\"deepseek_v3\"," SMALL "\"hidden_size\":24,\"num_attention_heads\":3," \
                     "\"num_key_value_heads\":3,\"intermediate_size\":40,\"kv_lora_rank\":12,\"qk_rope_head_dim\":4," \
                     "\"qk_nope_head_dim\":6,\"n_routed_experts\":16,\"moe_intermediate_size\":8," more "}"
static const char latent_narrow[] = LATENT("\"q_lora_rank\":8,\"v_head_dim\":5,\"attention_bias\":true");
static const char latent_whole[] = LATENT("\"q_lora_rank\":null,\"v_head_dim\":13");
static const char adapted_latent[] = LATENT("\"q_lora_rank\":8,\"v_head_dim\":10");

/* Blocks with adapters: of every module, of some modules of a fused matrix, of one whose adapters are the last thing
 * before a norm, a factor, or a sum; the last one has nothing trained before it. */
#define ADAPTED(family) "{\"model_type\":\"" family "\"," SMALL "\"hidden_size\":32,\"num_attention_heads\":4," \
                        "\"num_key_value_heads\":2,\"intermediate_size\":40}"
static const char adapted_all[] = ADAPTED("llama"), adapted_some[] = ADAPTED("qwen3");
static const char adapted_one[] = ADAPTED("phi3"), adapted_post[] = ADAPTED("olmo2");
static const char adapted_parallel[] = ADAPTED("cohere2"), adapted_first[] = ADAPTED("qwen2");
static const char adapted_gpt2[] = "{\"model_type\":\"gpt2\",\"n_embd\":24,\"n_layer\":1,\"n_head\":3,"
                                   "\"n_positions\":64,\"vocab_size\":64}";
static const char adapted_scaled[] = "{\"model_type\":\"granite\"," SMALL "\"hidden_size\":24,"
                                     "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,"
                                     "\"intermediate_size\":40,\"residual_multiplier\":0.22}";
static const struct {
    const char *text, *targets;
} adapted[] = {{adapted_all, "all-linear"},     {adapted_some, "v_proj, o_proj,up_proj"},
               {adapted_one, "qkv_proj"},       {adapted_post, "o_proj,down_proj"},
               {adapted_gpt2, "c_attn,c_proj"}, {adapted_scaled, "q_proj,down_proj"},
               {adapted_parallel, "all-linear"}, {adapted_first, "k_proj,down_proj"},
               {adapted_latent, "q_a_proj,q_b_proj,kv_b_proj,o_proj"}};
enum { ADAPTED_COUNT = sizeof adapted / sizeof *adapted };

static struct ox_lora adapters_of(const char *text) {
    struct ox_lora lora = {.r = 3, .alpha = 4.5};
    for (int i = 0; i < ADAPTED_COUNT; i++) {
        if (adapted[i].text == text) {
            snprintf(lora.targets, sizeof lora.targets, "%s", adapted[i].targets);
            return lora;
        }
    }
    return (struct ox_lora){0};
}

static void add_tensor(struct ox_unit *unit, enum ox_role role, uint64_t count) {
    unit->role_offset[role] = unit->elem_count;
    unit->role_trained[role] = true;
    unit->elem_count += count;
}

static void make_mixture(struct ox_model *model, bool clamped, bool biased, bool shared) {
    enum { EXPERTS = 5, WIDTH = 12, SHARED = 20 };
    struct ox_model_config *const c = &model->config;
    struct ox_unit *const unit = &model->units[model->blocks[0]];
    c->mixture = (struct ox_mixture){.router = {.experts = EXPERTS, .chosen = 2, .scale = 1.0f,
                                                .renormalise = !clamped,
                                                .scores = biased ? OX_SCORES_SOFTMAX_CHOSEN : OX_SCORES_SOFTMAX},
                                     .gate = ox_gate_swiglu(), .width = WIDTH};
    for (int role = OX_ROLE_GATE_UP; role <= OX_ROLE_DOWN_BIAS; role++) {
        unit->role_offset[role] = UINT64_MAX;
    }
    add_tensor(unit, OX_ROLE_ROUTER, EXPERTS * c->hidden);
    add_tensor(unit, OX_ROLE_EXPERT_GATE_UP, EXPERTS * 2 * WIDTH * c->hidden);
    add_tensor(unit, OX_ROLE_EXPERT_DOWN, EXPERTS * WIDTH * c->hidden);
    c->clip_qkv = clamped ? 0.4f : 0.0f;
    if (shared) {
        c->mixture.shared_width = SHARED;
        add_tensor(unit, OX_ROLE_SHARED_GATE_UP, 2 * SHARED * c->hidden);
        add_tensor(unit, OX_ROLE_SHARED_DOWN, SHARED * c->hidden);
        add_tensor(unit, OX_ROLE_SHARED_GATE, c->hidden);
    }
    if (biased) {
        c->mixture.gate = (struct ox_gate){.alpha = 1.702f, .limit = 6.0f, .shift = 1.0f, .interleaved = true};
        add_tensor(unit, OX_ROLE_ROUTER_BIAS, EXPERTS);
        add_tensor(unit, OX_ROLE_EXPERT_GATE_UP_BIAS, EXPERTS * 2 * WIDTH);
        add_tensor(unit, OX_ROLE_EXPERT_DOWN_BIAS, EXPERTS * c->hidden);
        add_tensor(unit, OX_ROLE_SINKS, c->heads);
    }
}

static struct ox_model *model_of(const char *text) {
    struct ox_model_config config = {0};
    struct ox_model *model = NULL;
    json_t *json = NULL;
    REQUIRE_OK(ox_json_parse("test", text, strlen(text), &json));
    REQUIRE_OK(ox_model_config_parse("config.json", json, &config));
    config.lora = adapters_of(text);
    REQUIRE_OK(ox_model_build(&config, &model));
    json_decref(json);
    if (config.lora.r > 0) {
        model->units[model->blocks[0]].gives_dx = text != adapted_first;
    }
    if (text == mixture || text == mixture_clamped || text == mixture_biased || text == mixture_shared) {
        make_mixture(model, text == mixture_clamped, text == mixture_biased, text == mixture_shared);
    }
    return model;
}

static struct ox_shape shape_of(const struct ox_model *model, uint32_t batch, uint32_t seq, enum ox_device_kind device,
                                enum ox_real real) {
    return (struct ox_shape){.model = model, .batch = batch, .seq = seq, .rows = batch * seq,
                             .compute = {.device = device, .real = real, .threads = 2}};
}

static const struct ox_unit *block_of(const struct ox_model *model) {
    return &model->units[model->blocks[0]];
}

static void make(const struct ox_shape *shape, enum ox_pass pass, struct ox_schedule *out) {
    struct ox_list list;
    ox_block_list(shape, block_of(shape->model), &list);
    ox_schedule_make(&list, pass, out);
}

/* An embedding and a head keep nothing: they have two passes of the four. */
static bool has_pass(const struct ox_unit *unit, int pass) {
    return unit->kind == OX_UNIT_BLOCK || pass == OX_PASS_FORWARD || pass == OX_PASS_BACKWARD;
}

/* ---- every family ---- */

static void check_shape(const char *text, const struct ox_shape *shape) {
    static struct ox_schedule schedules[4];
    for (int pass = 0; pass < 4; pass++) {
        make(shape, (enum ox_pass)pass, &schedules[pass]);
        if (ox_schedule_check(&schedules[pass]) != OX_OK) {
            printf("%.24s..., batch %u, seq %u: %s\n", text, shape->batch, shape->seq, ox_error_text());
            CHECK(!"a schedule is refused");
        }
    }
    for (uint32_t i = 0; i < shape->model->stage_count; i++) {
        const struct ox_unit *const unit = &shape->model->units[shape->model->stages[i]];
        for (int pass = 0; pass < 4 && unit->kind != OX_UNIT_BLOCK; pass++) {
            static struct ox_schedule schedule;
            struct ox_list list;
            ox_unit_list(shape, unit, &list);
            ox_schedule_make(&list, (enum ox_pass)pass, &schedule);
            CHECK(!has_pass(unit, pass) || ox_schedule_check(&schedule) == OX_OK);
        }
    }
    const struct ox_schedule *const leaves = &schedules[OX_PASS_FORWARD_KEPT];
    const struct ox_schedule *const finds = &schedules[OX_PASS_BACKWARD_KEPT];
    CHECK(leaves->kept_bytes == finds->kept_bytes);
    for (uint32_t v = 0; v < OX_LIST_VALUES_MAX; v++) {
        const uint32_t home = leaves->list.values[v].home;
        CHECK(leaves->needed[v] == finds->needed[v]);
        CHECK(!leaves->needed[v] || (home == finds->list.values[v].home &&
                                     leaves->places[home].offset == finds->places[home].offset));
    }
}

static void test_families(void) {
    static const char *const texts[] = {llama_8b, mistral_7b, qwen2_7b, qwen3_8b, gpt2_xl, llama_small, qwen3_small,
                                        gpt2_small, olmo2_small, gemma3_small, granite_small, cohere2_small,
                                        wide_heads, mixture, mixture_clamped, mixture_biased, mixture_shared,
                                        latent_narrow, latent_whole};
    static const uint32_t sizes[][2] = {{1, 1}, {1, 8}, {3, 21}, {2, 64}, {1, 2048}, {4, 1024}};
    for (size_t t = 0; t < sizeof texts / sizeof *texts + ADAPTED_COUNT; t++) {
        const char *const text = t < ADAPTED_COUNT ? adapted[t].text : texts[t - ADAPTED_COUNT];
        struct ox_model *model = model_of(text);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            struct ox_shape shape = shape_of(model, sizes[s][0], sizes[s][1], OX_DEVICE_CPU, OX_REAL_F32);
            check_shape(text, &shape);
            shape = shape_of(model, sizes[s][0], sizes[s][1], OX_DEVICE_CUDA, OX_REAL_F32);
            check_shape(text, &shape);
            shape = shape_of(model, sizes[s][0], sizes[s][1], OX_DEVICE_CUDA, OX_REAL_BF16);
            check_shape(text, &shape);
        }
        ox_model_close(&model);
    }
}

/* ---- memory ---- */

/* Bytes that the layout by hand took until November 2026: `kept`, and the work of the four passes. */
struct by_hand {
    const char *text;
    uint32_t batch, seq;
    enum ox_device_kind device;
    enum ox_real real;
    uint64_t kept, work[4];
    double most; /* share of the work of a recomputing backward that is allowed now */
};
static const struct by_hand by_hand[] = {
    {gpt2_xl, 1, 8, OX_DEVICE_CPU, OX_REAL_F32, 769088, {720832, 54144, 1335232, 566144}, 1},
    {gpt2_xl, 4, 1024, OX_DEVICE_CPU, OX_REAL_F32, 393691136, {341924864, 662528, 499518464, 105827328}, 1},
    {gpt2_xl, 1, 4096, OX_DEVICE_CPU, OX_REAL_F32, 393691136, {341924864, 662528, 499518464, 105827328}, 1},
    {gpt2_xl, 1, 8, OX_DEVICE_CUDA, OX_REAL_BF16, 385088, {1322048, 988160, 4752448, 4367360}, 1},
    {gpt2_xl, 4, 1024, OX_DEVICE_CUDA, OX_REAL_BF16, 197083136, {433487872, 262619136, 515407872, 318324736}, 1},
    {gpt2_xl, 1, 4096, OX_DEVICE_CUDA, OX_REAL_BF16, 197083136, {349274112, 178405376, 431194112, 234110976}, 1},
    {llama_8b, 1, 8, OX_DEVICE_CPU, OX_REAL_F32, 2098432, {1939584, 103296, 3446912, 1348480}, 1},
    {llama_8b, 4, 1024, OX_DEVICE_CPU, OX_REAL_F32, 1074331648, {941169664, 1055744, 1311054848, 236723200}, 1},
    {llama_8b, 1, 4096, OX_DEVICE_CPU, OX_REAL_F32, 1074331648, {941169664, 1055744, 1311054848, 236723200}, 1},
    {llama_8b, 1, 8, OX_DEVICE_CUDA, OX_REAL_BF16, 1049856, {2296064, 1377280, 11045120, 9995264}, 1},
    {llama_8b, 4, 1024, OX_DEVICE_CUDA, OX_REAL_BF16, 537460736, {672006144, 201654272, 864944128, 327483392}, 0.81},
    {llama_8b, 1, 4096, OX_DEVICE_CUDA, OX_REAL_BF16, 537460736, {772538368, 302186496, 965476352, 428015616}, 0.745},
    {mistral_7b, 1, 8, OX_DEVICE_CPU, OX_REAL_F32, 2098432, {1939584, 103296, 3446912, 1348480}, 1},
    {mistral_7b, 4, 1024, OX_DEVICE_CPU, OX_REAL_F32, 1074331648, {941169664, 1055744, 1311054848, 236723200}, 1},
    {mistral_7b, 1, 4096, OX_DEVICE_CPU, OX_REAL_F32, 1074331648, {941169664, 1055744, 1311054848, 236723200}, 1},
    {mistral_7b, 1, 8, OX_DEVICE_CUDA, OX_REAL_BF16, 1049856, {2296064, 1377280, 11045120, 9995264}, 1},
    {mistral_7b, 4, 1024, OX_DEVICE_CUDA, OX_REAL_BF16, 537460736, {672006144, 201654272, 864944128, 327483392}, 0.81},
    {mistral_7b, 1, 4096, OX_DEVICE_CUDA, OX_REAL_BF16, 537460736, {772538368, 302186496, 965476352, 428015616}, 0.745},
    {qwen2_7b, 1, 8, OX_DEVICE_CPU, OX_REAL_F32, 2425984, {2299904, 103296, 3823616, 1397632}, 1},
    {qwen2_7b, 4, 1024, OX_DEVICE_CPU, OX_REAL_F32, 1242038272, {1125653504, 1055744, 1554160640, 312122368}, 1},
    {qwen2_7b, 1, 4096, OX_DEVICE_CPU, OX_REAL_F32, 1242038272, {1125653504, 1055744, 1554160640, 312122368}, 1},
    {qwen2_7b, 1, 8, OX_DEVICE_CUDA, OX_REAL_BF16, 1213568, {2312320, 1213440, 10070144, 8856576}, 1},
    {qwen2_7b, 4, 1024, OX_DEVICE_CUDA, OX_REAL_BF16, 621281280, {739016704, 176455680, 960266240, 338984960}, 0.81},
    {qwen2_7b, 1, 4096, OX_DEVICE_CUDA, OX_REAL_BF16, 621281280, {826982400, 264421376, 1048231936, 426950656}, 0.745},
    {qwen3_8b, 1, 8, OX_DEVICE_CPU, OX_REAL_F32, 2066944, {1744256, 103296, 3349888, 1282944}, 1},
    {qwen3_8b, 4, 1024, OX_DEVICE_CPU, OX_REAL_F32, 1058209792, {841161728, 1055744, 1261378560, 203168768}, 1},
    {qwen3_8b, 1, 4096, OX_DEVICE_CPU, OX_REAL_F32, 1058209792, {841161728, 1055744, 1261378560, 203168768}, 1},
    {qwen3_8b, 1, 8, OX_DEVICE_CUDA, OX_REAL_BF16, 1034752, {2199040, 1377280, 10997248, 9962496}, 1},
    {qwen3_8b, 4, 1024, OX_DEVICE_CUDA, OX_REAL_BF16, 529727488, {622329856, 201654272, 840433664, 310706176}, 0.81},
    {qwen3_8b, 1, 4096, OX_DEVICE_CUDA, OX_REAL_BF16, 529727488, {722862080, 302186496, 940965888, 411238400}, 0.745},
    {wide_heads, 1, 8, OX_DEVICE_CPU, OX_REAL_F32, 537856, {327808, 54144, 620672, 82816}, 1},
    {wide_heads, 4, 1024, OX_DEVICE_CPU, OX_REAL_F32, 275316736, {140712960, 662528, 278100992, 2784256}, 1},
    {wide_heads, 1, 4096, OX_DEVICE_CPU, OX_REAL_F32, 275316736, {140712960, 662528, 278100992, 2784256}, 1},
    {wide_heads, 1, 8, OX_DEVICE_CUDA, OX_REAL_BF16, 269568, {1383680, 1246208, 1779968, 1510400}, 1},
    {wide_heads, 4, 1024, OX_DEVICE_CUDA, OX_REAL_BF16, 137953280, {238419968, 168099840, 307363840, 169410560}, 1},
    {wide_heads, 1, 4096, OX_DEVICE_CUDA, OX_REAL_BF16, 137953280, {355729408, 285409280, 424673280, 286720000}, 1},
};

/* The largest sum of what lies in `work` at one step: no layout takes less. */
static uint64_t live_bytes(const struct ox_schedule *schedule) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < schedule->step_count; i++) {
        uint64_t sum = 0;
        for (uint32_t v = 1; v < schedule->list.value_count; v++) {
            const bool is_live = schedule->places[v].memory == OX_MEMORY_WORK && schedule->lives[v].first <= i &&
                                 i <= schedule->lives[v].last;
            sum += is_live ? (schedule->list.values[v].bytes + 63) / 64 * 64 : 0;
        }
        most = sum > most ? sum : most;
    }
    return most;
}

/* What the head took when its parts lay side by side. */
static uint64_t head_by_hand(const struct ox_shape *shape) {
    const struct ox_model_config *const c = &shape->model->config;
    const uint64_t real = ox_real_bytes(shape->compute.real);
    const uint64_t parts[] = {shape->rows * c->hidden * real, shape->rows * sizeof(float), shape->rows * sizeof(float),
                              shape->compute.real == OX_REAL_BF16 ? 0 : 2 * c->hidden * real,
                              ox_ops_norm_scratch_bytes(&shape->compute, c->hidden),
                              ox_ops_head_scratch_bytes(&shape->compute, shape->rows, c->hidden, c->vocab)};
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        sum += (parts[i] + 63) / 64 * 64;
    }
    return sum;
}

static void check_least(const struct ox_shape *shape) {
    static struct ox_schedule schedule;
    for (int pass = 0; pass < 4; pass++) {
        make(shape, (enum ox_pass)pass, &schedule);
        CHECK(schedule.work_bytes == live_bytes(&schedule));
    }
}

static void test_memory(void) {
    for (size_t i = 0; i < sizeof by_hand / sizeof *by_hand; i++) {
        const struct by_hand *const hand = &by_hand[i];
        struct ox_model *model = model_of(hand->text);
        const struct ox_shape shape = shape_of(model, hand->batch, hand->seq, hand->device, hand->real);
        const uint64_t kept = ox_unit_kept_bytes(&shape, model->blocks[0]);
        check_least(&shape);
        CHECK(ox_unit_work_bytes(&shape, model->head_idx, OX_PASS_BACKWARD) <= head_by_hand(&shape));
        CHECK(kept <= hand->kept);
        for (int pass = 0; pass < 4; pass++) {
            /* A kept pass finds less room where less is kept; kept values are many, such a pass is one at a time. */
            const uint64_t saved = pass % 2 == 1 ? hand->kept - kept + hand->kept / 500 : 0;
            const uint64_t work = ox_unit_work_bytes(&shape, model->blocks[0], (enum ox_pass)pass);
            const double most = pass == OX_PASS_BACKWARD ? hand->most : 1;
            if ((double)work > most * (double)(hand->work[pass] + saved)) {
                printf("%.24s..., batch %u, seq %u, pass %d: %llu bytes, by hand %llu\n", hand->text, hand->batch,
                       hand->seq, pass, (unsigned long long)work, (unsigned long long)hand->work[pass]);
                CHECK(!"a pass takes more memory than by hand");
            }
        }
        ox_model_close(&model);
    }
}

/* ---- faults planted by machine ---- */

/* A small unit on the CPU, and what its passes compute. */
struct bench {
    struct ox_model *model;
    uint32_t unit_idx;
    uint16_t *hi; /* weights of an embedding or a head, and the table of either */
    float *grads_table;
    size_t table_elems;
    struct ox_shape shape;
    struct ox_device *device;
    struct ox_lane *lane;
    struct ox_ops ops;
    float *weights, *grads, *x, *y, *dx, *cos_table, *sin_table;
    int32_t *positions;
    unsigned char *work, *kept;
    size_t rows_bytes, block_elems, elems, /* of the block's own unit, and with that of its adapters */
         work_bytes, kept_bytes;
};

static void *room(size_t bytes) {
    void *const memory = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (memory == NULL) {
        exit(1);
    }
    return memory;
}

static float *floats(size_t count, uint64_t stream) {
    float *const values = room(count * sizeof *values);
    ox_normals(7, stream, 0, count, 0.3, values);
    return values;
}

static const struct ox_unit *unit_of(const struct bench *b) {
    return &b->model->units[b->unit_idx];
}

static void make_pass(const struct bench *b, enum ox_pass pass, struct ox_schedule *out) {
    struct ox_list list;
    ox_unit_list(&b->shape, unit_of(b), &list);
    ox_schedule_make(&list, pass, out);
}

static uint32_t unit_idx_of(const struct ox_model *model, enum ox_unit_kind kind) {
    return kind == OX_UNIT_EMBED ? model->embed_idx : kind == OX_UNIT_HEAD ? model->head_idx : model->blocks[0];
}

static void bench_open(struct bench *b, const char *text, enum ox_unit_kind kind) {
    const struct ox_cpu_device_config config = {.thread_count = 1};
    *b = (struct bench){.model = model_of(text)};
    b->unit_idx = unit_idx_of(b->model, kind);
    const struct ox_model_config *const c = &b->model->config;
    b->shape = shape_of(b->model, 2, 5, OX_DEVICE_CPU, OX_REAL_F32);
    b->shape.compute.threads = 1;
    REQUIRE_OK(ox_cpu_device_open(&config, &b->device));
    REQUIRE_OK(ox_device_lane_open(b->device, "compute", &b->lane));
    ox_ops_init_cpu(&b->ops);
    b->elems = b->block_elems = unit_of(b)->elem_count;
    b->elems += unit_of(b)->next == OX_NO_UNIT ? 0 : b->model->units[unit_of(b)->next].elem_count;
    b->rows_bytes = b->shape.rows * c->hidden * sizeof(float);
    for (int pass = 0; pass < 4; pass++) {
        const size_t bytes = ox_unit_work_bytes(&b->shape, b->unit_idx, (enum ox_pass)pass);
        b->work_bytes = bytes > b->work_bytes ? bytes : b->work_bytes;
    }
    b->kept_bytes = ox_unit_kept_bytes(&b->shape, b->unit_idx);
    b->weights = floats(b->elems, 1);
    b->grads = floats(b->elems, 2);
    b->x = floats(b->rows_bytes / 4, 3);
    b->y = floats(b->rows_bytes / 4, 4);
    b->dx = floats(b->rows_bytes / 4, 5);
    b->cos_table = floats(64 * c->head_dim / 2, 6);
    b->sin_table = floats(64 * c->head_dim / 2, 7);
    b->positions = room(b->shape.rows * sizeof *b->positions);
    for (uint32_t i = 0; i < b->shape.rows; i++) {
        b->positions[i] = (int32_t)(i % b->shape.seq);
    }
    b->table_elems = (size_t)c->vocab * c->hidden;
    const size_t planes = b->elems > b->table_elems ? b->elems : b->table_elems;
    b->hi = room(planes * sizeof *b->hi);
    for (size_t i = 0; i < planes; i++) {
        b->hi[i] = ox_bf16_from_f32((float)(i % 23) / 16.0f - 0.7f);
    }
    b->grads_table = room(b->table_elems * sizeof *b->grads_table);
    b->work = room(b->work_bytes);
    b->kept = room(b->kept_bytes);
}

static void bench_close(struct bench *b) {
    void *const memory[] = {b->weights, b->grads, b->x, b->y, b->dx, b->cos_table, b->sin_table, b->positions,
                            b->work, b->kept, b->hi, b->grads_table};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
        free(memory[i]);
    }
    ox_lane_close(&b->lane);
    ox_device_close(&b->device);
    ox_model_close(&b->model);
}

static void run(struct bench *b, const struct ox_schedule *schedule) {
    const struct ox_head_args head = {.table = {.hi = b->hi}, .grads_table = b->grads_table,
                                      .loss_sum = (double *)b->y, .loss_scale = 0.5f};
    struct ox_unit_job job = {.run = {.ops = &b->ops, .lane = b->lane}, .shape = &b->shape,
                              .unit = unit_of(b), .planes = {.hi = b->hi}, .head = &head, .ids = b->positions,
                              .targets = b->positions, .positions = b->positions, .cos_table = b->cos_table,
                              .sin_table = b->sin_table};
    void *const x = unit_of(b)->kind == OX_UNIT_EMBED ? (void *)b->positions : b->x;
    void *const bases[] = {[OX_MEMORY_X] = x, [OX_MEMORY_Y] = b->y, [OX_MEMORY_DX] = b->dx,
                           [OX_MEMORY_WORK] = b->work, [OX_MEMORY_KEPT] = b->kept};
    memset(b->work, 0xff, b->work_bytes); /* numbers that are none */
    float *const own = block_of(b->model)->trained ? b->grads : NULL;
    const struct ox_stage_weights weights = {{b->weights, b->weights + b->block_elems},
                                             {own, b->grads + b->block_elems}};
    ox_schedule_run(schedule, &job, &weights, bases);
    REQUIRE_OK(job.run.status);
    REQUIRE_OK(ox_lane_drain(b->lane));
}

/* Runs `mutant` in the place of its pass, with what belongs before and after it, and hashes all results. */
static uint64_t results(struct bench *b, const struct ox_schedule *proper, const struct ox_schedule *mutant) {
    const size_t count = b->rows_bytes / 4;
    const bool kept = mutant->pass == OX_PASS_FORWARD_KEPT || mutant->pass == OX_PASS_BACKWARD_KEPT;
    const int first = kept ? OX_PASS_FORWARD_KEPT : OX_PASS_FORWARD;
    const int second = kept ? OX_PASS_BACKWARD_KEPT : OX_PASS_BACKWARD;
    ox_normals(7, 2, 0, b->elems, 0.3, b->grads);
    ox_normals(7, 3, 0, count, 0.3, b->x);
    ox_normals(7, 5, 0, count, 0.3, b->dx);
    memset(b->y, 0, b->rows_bytes); /* a loss is added to */
    memset(b->grads_table, 0, b->table_elems * sizeof *b->grads_table);
    memset(b->kept, 0xff, b->kept_bytes);
    run(b, first == (int)mutant->pass ? mutant : &proper[first]);
    run(b, second == (int)mutant->pass ? mutant : &proper[second]);
    uint64_t hash = 1469598103934665603u;
    const struct {
        const void *at;
        size_t bytes;
    } parts[] = {{b->y, b->rows_bytes}, {b->dx, unit_of(b)->gives_dx ? b->rows_bytes : 0}, /* else nothing's */
                 {b->x, b->rows_bytes}, {b->grads, b->elems * 4}, {b->grads_table, b->table_elems * 4}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        for (size_t k = 0; k < parts[i].bytes; k++) {
            hash = (hash ^ ((const unsigned char *)parts[i].at)[k]) * 1099511628211u;
        }
    }
    return hash;
}

/* Another of `count` numbers, if there is another. */
static uint32_t other(uint32_t value, uint32_t count) {
    return count < 2 ? value : (value + 1 + random_u32() % (count - 1)) % count;
}

enum { FAULT_COUNT = 14 };
static const char *const fault_names[FAULT_COUNT] = {
    "two steps in the other order", "a step is missing", "a step runs twice", "another gradient comes in",
    "another gradient goes out", "another gradient is added", "another scratch", "a value lies elsewhere",
    "a value lies in another memory", "a value has another home", "backward for forward",
    "another gradient of weights", "weights' gradient begins or adds", "less memory than is used"};

static void plant(struct ox_schedule *s, int fault) {
    const uint32_t i = random_u32() % s->step_count, v = 1 + random_u32() % (s->list.value_count - 1);
    struct ox_schedule_step *const step = &s->steps[i];
    const uint32_t home = s->list.values[v].home;
    switch (fault) {
    case 0: {
        const uint32_t k = other(i, s->step_count);
        const struct ox_schedule_step kept = *step;
        *step = s->steps[k];
        s->steps[k] = kept;
        break;
    }
    case 1:
        memmove(step, step + 1, (s->step_count - i - 1) * sizeof *step);
        s->step_count--;
        break;
    case 2:
        memmove(step + 1, step, (s->step_count - i) * sizeof *step);
        s->step_count++;
        break;
    case 3:
        step->dout = other(step->dout, s->list.value_count);
        break;
    case 4:
        step->din = other(step->din, s->list.value_count);
        break;
    case 5:
        step->dresidual = other(step->dresidual, s->list.value_count);
        break;
    case 6:
        step->scratch = other(step->scratch, s->list.value_count);
        break;
    case 7:
        s->places[home].offset = random_u32() % (s->work_bytes / 64 + 1) * 64;
        break;
    case 8:
        s->places[home].memory = (enum ox_memory)other(s->places[home].memory, OX_MEMORY_KEPT + 1);
        break;
    case 9:
        s->list.values[v].home = 1 + other(home - 1, s->list.value_count - 1);
        break;
    case 10:
        step->backward = !step->backward;
        break;
    case 11:
        step->dweights = other(step->dweights, s->list.value_count);
        break;
    case 12:
        step->adds_weights = !step->adds_weights;
        break;
    default:
        s->work_bytes -= 64;
        break;
    }
}

/* A mutant that is accepted must compute the same bits, or it counts as missed. A schedule that asks for less memory
 * than it uses computes them too, in a room that is larger than it says. */
static void test_faults(const char *text, enum ox_unit_kind kind) {
    static struct ox_schedule proper[4], mutant;
    struct bench b;
    uint64_t right[4];
    uint32_t refused[FAULT_COUNT] = {0}, harmless = 0, missed = 0;
    bench_open(&b, text, kind);
    for (int pass = 0; pass < 4; pass++) {
        make_pass(&b, (enum ox_pass)pass, &proper[pass]);
    }
    for (int pass = 0; pass < 4; pass++) {
        right[pass] = has_pass(unit_of(&b), pass) ? results(&b, proper, &proper[pass]) : right[0];
    }
    CHECK(right[OX_PASS_FORWARD] == right[OX_PASS_BACKWARD]);
    CHECK(right[OX_PASS_FORWARD] == right[OX_PASS_FORWARD_KEPT]);
    for (int n = 0; n < 4000; n++) {
        const int pass = n % 4, fault = n / 4 % FAULT_COUNT;
        mutant = proper[pass];
        if (!has_pass(unit_of(&b), pass) || (fault == FAULT_COUNT - 1 && mutant.work_bytes == 0)) {
            continue;
        }
        plant(&mutant, fault);
        if (ox_schedule_check(&mutant) != OX_OK) {
            refused[fault]++;
        } else if (fault != FAULT_COUNT - 1 && results(&b, proper, &mutant) == right[pass]) {
            harmless++;
        } else {
            printf("missed in pass %d: %s\n", pass, fault_names[fault]);
            missed++;
        }
    }
    uint32_t sum = 0;
    for (int fault = 0; fault < FAULT_COUNT; fault++) {
        const bool has_none = (b.work_bytes == 0 && (fault == 7 || fault == FAULT_COUNT - 1)) ||
                              (proper[0].step_count == 1 && fault == 0);
        CHECK(refused[fault] > 0 || has_none);
        sum += refused[fault];
    }
    printf("%u faults refused, %u change no bit, %u missed\n", sum, harmless, missed);
    CHECK(missed == 0);
    bench_close(&b);
}

/* Where one matrix alone is trained, and nothing before the block, backward begins there: what the proof demands of
 * every node follows from the way on which it depends on that matrix. */
static void test_parts(const char *text) {
    static struct ox_schedule schedule;
    struct bench b;
    bench_open(&b, text, OX_UNIT_BLOCK);
    struct ox_unit *const unit = &b.model->units[b.model->blocks[0]];
    const struct ox_unit whole = *unit;
    unit->gives_dx = false;
    for (int role = 0; role < OX_ROLE_COUNT; role++) {
        memset(unit->role_trained, 0, sizeof unit->role_trained);
        unit->role_trained[role] = true;
        for (int pass = OX_PASS_FORWARD; whole.role_trained[role] && pass <= OX_PASS_BACKWARD_KEPT; pass++) {
            make(&b.shape, (enum ox_pass)pass, &schedule);
            REQUIRE_OK(ox_schedule_check(&schedule));
        }
    }
    *unit = whole;
    bench_close(&b);
}

/* ---- gradients ---- */

static double product_of(const float *a, const float *b, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

/* The loss is the product of the output with a tensor; moves `at` along `way` both ways. */
static double slope_of(struct bench *b, const struct ox_schedule *forward, float *at, const float *way, size_t count,
                       const float *dy) {
    static const float step = 4e-3f;
    double loss[2];
    for (int side = 0; side < 2; side++) {
        const float by = side == 0 ? step : -step;
        for (size_t i = 0; i < count; i++) {
            at[i] += by * way[i];
        }
        run(b, forward);
        loss[side] = product_of(b->y, dy, b->rows_bytes / 4);
        for (size_t i = 0; i < count; i++) {
            at[i] -= by * way[i];
        }
    }
    return (loss[0] - loss[1]) / (2.0 * (double)step);
}

/* Gradients of the input and of the weights against differences of the loss along two directions. */
static void test_gradients(const char *text) {
    static struct ox_schedule forward, backward;
    struct bench b;
    bench_open(&b, text, OX_UNIT_BLOCK);
    const size_t count = b.rows_bytes / 4;
    float *const dy = floats(count, 11), *const along_x = floats(count, 12), *const along_weights = floats(b.elems, 13);
    if (!block_of(b.model)->trained) {
        memset(along_weights, 0, b.block_elems * sizeof *along_weights);
    }
    make(&b.shape, OX_PASS_FORWARD, &forward);
    make(&b.shape, OX_PASS_BACKWARD, &backward);
    const double by_x = slope_of(&b, &forward, b.x, along_x, count, dy);
    const double by_weights = slope_of(&b, &forward, b.weights, along_weights, b.elems, dy);
    memcpy(b.dx, dy, b.rows_bytes);
    memset(b.grads, 0, b.elems * sizeof *b.grads);
    run(&b, &backward);
    const double x = product_of(b.dx, along_x, count), weights = product_of(b.grads, along_weights, b.elems);
    printf("%.40s...: slopes %.5f %.5f, by differences %.5f %.5f\n", text, x, weights, by_x, by_weights);
    CHECK(fabs(x - by_x) < 5e-3 * (1.0 + fabs(by_x)));
    CHECK(fabs(weights - by_weights) < 5e-3 * (1.0 + fabs(by_weights)));
    free(dy);
    free(along_x);
    free(along_weights);
    bench_close(&b);
}

int main(void) {
    test_families();
    test_memory();
    test_faults(llama_small, OX_UNIT_BLOCK);
    test_faults(qwen3_small, OX_UNIT_BLOCK);
    test_faults(gpt2_small, OX_UNIT_BLOCK);
    test_faults(mixture, OX_UNIT_BLOCK);
    test_faults(mixture_clamped, OX_UNIT_BLOCK);
    test_faults(mixture_biased, OX_UNIT_BLOCK);
    test_faults(mixture_shared, OX_UNIT_BLOCK);
    test_faults(latent_narrow, OX_UNIT_BLOCK);
    test_faults(llama_small, OX_UNIT_HEAD);
    test_faults(gpt2_small, OX_UNIT_HEAD);
    test_faults(gemma3_small, OX_UNIT_EMBED);
    test_faults(gpt2_small, OX_UNIT_EMBED);
    test_parts(qwen3_small);
    test_parts(mixture);
    test_parts(mixture_biased);
    test_parts(mixture_shared);
    test_gradients(qwen3_small);
    test_gradients(mixture);
    test_gradients(mixture_clamped);
    test_gradients(mixture_biased);
    test_gradients(mixture_shared);
    test_gradients(latent_whole);
    test_faults(olmo2_small, OX_UNIT_BLOCK);
    test_faults(gemma3_small, OX_UNIT_BLOCK);
    test_faults(granite_small, OX_UNIT_BLOCK);
    test_faults(cohere2_small, OX_UNIT_BLOCK);
    for (int i = 0; i < ADAPTED_COUNT; i++) {
        test_faults(adapted[i].text, OX_UNIT_BLOCK);
        if (adapted[i].text != adapted_first) {
            test_gradients(adapted[i].text);
        }
    }
    return test_end();
}
