/* --base-dtype q8 as a user meets it: a run whose frozen blocks are kept in eight bits has the bits of one whose folder
 * holds the numbers that these are, which this test rounds by itself; in every home, on every number of ranks, stopped
 * and killed. What is trained keeps its master; what cannot be is refused by name. */
#include "base/bytes.h"
#include "engine/hf/safetensors.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 4, BLOCK = 32 };

static const char common[] = "--batch-size 1 --gradient-accumulation-steps 4 --sum-groups 4 --max-seq-length 16 "
                             "--compute-threads 1 --optimizer-threads 1 --host-mem 64MiB "
                             "--eval-fraction 0.1 --save-total-limit 0 --learning-rate 1e-2 --save-steps 2";
/* Of the blocks the middle one is trained, or none. */
static const char frozen[] = "--freeze layers.0 --freeze layers.2";
static const char adapted[] = "--lora-r 3 --lora-alpha 6 --lora-target-modules all-linear";

static struct sys_args args;
static struct sys_process process;
static const char *text_path, *chunk = "65536";
static int steps = STEPS;

static void begin(const char *model, const char *output, const char *more) {
    sys_args_train(&args, model, text_path, output);
    sys_args_add(&args, common);
    sys_args_word(&args, "--max-steps=%d", steps);
    sys_args_word(&args, "--chunk-elems=%s", chunk);
    sys_args_add(&args, more);
}

static void run(const char *model, const char *output, const char *more, bool has_drive) {
    begin(test_path(model), output, more);
    if (has_drive) {
        sys_args_on_drive(&args, output);
    }
    sys_run_well(&args, &process);
}

/* ---- the model, and the numbers that eight bits are ----------------------------------------------------- */

/* The folder "base": a model in bf16, whose blocks are 2.25 chunks each. */
static void make_base(void) {
    const char *const path = test_path("wide.json");
    files_write_text(path, "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 256,"
                           " \"hidden_size\": 128, \"intermediate_size\": 256, \"num_hidden_layers\": 3,"
                           " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 64,"
                           " \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"tie_word_embeddings\": true,"
                           " \"hidden_act\": \"silu\"}\n");
    begin(path, "first", "--from-scratch");
    sys_run_well(&args, &process);
    char source[OX_PATH_BYTES];
    snprintf(source, sizeof source, "%s", test_pathf("first/checkpoint-%d", STEPS));
    sys_args_begin(&args, "export");
    sys_args_word(&args, "--model=%s", source);
    sys_args_word(&args, "--output=%s", test_path("base"));
    sys_args_add(&args, "--save-dtype bf16");
    sys_run_well(&args, &process);
}

/* The upper half of a float32 nearest to a number, ties to even. */
static double to_bf16(double number) {
    int exponent;
    const double fraction = frexp(number, &exponent); /* of at least a half: eight bits are behind the point */
    return ldexp(rint(fraction * 256), exponent - 8);
}

/* Rounds the numbers of a tensor, in blocks, and returns the greatest error as a share of the block's scale. */
static double round_tensor(float *numbers, uint64_t count) {
    double worst = 0;
    for (uint64_t first = 0; first < count; first += BLOCK) {
        const uint64_t past = ox_min_u64(first + BLOCK, count);
        double most = 0;
        for (uint64_t i = first; i < past; i++) {
            most = fmax(most, fabs((double)numbers[i]));
        }
        const double scale = most > 0 ? to_bf16((double)(float)(most / 127)) : 0;
        for (uint64_t i = first; i < past; i++) {
            const double was = numbers[i];
            numbers[i] = scale > 0 ? (float)(rint((double)(float)(was / scale)) * scale + 0.0) : 0.0f;
            worst = scale > 0 ? fmax(worst, fabs(was - (double)numbers[i]) / scale) : worst;
        }
    }
    return worst;
}

/* A folder with the numbers of "base" in float32, those of blocks rounded; of which the middle one only if `all`. */
static void make_rounded(const char *name, bool all) {
    enum { MOST = 64 };
    struct ox_st_spec specs[MOST];
    struct ox_st_file *base = NULL;
    struct ox_st_writer *writer = NULL;
    double worst = 0;
    char folder[OX_PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", test_path(name));
    files_copy_folder("base", folder);
    REQUIRE_OK(ox_st_open(test_path("base/model.safetensors"), &base));
    const uint32_t count = ox_st_count(base);
    CHECK(count <= MOST);
    for (uint32_t i = 0; i < count; i++) {
        const struct ox_st_entry *const entry = ox_st_entry(base, i);
        specs[i] = (struct ox_st_spec){.name = entry->name, .dtype = OX_DTYPE_F32, .rank = entry->rank};
        memcpy(specs[i].shape, entry->shape, sizeof specs[i].shape);
    }
    CHECK(unlink(test_pathf("%s/model.safetensors", name)) == 0);
    REQUIRE_OK(ox_st_create(test_pathf("%s/model.safetensors", name), specs, count, &writer));
    for (uint32_t i = 0; i < count; i++) {
        const struct ox_st_entry *const entry = ox_st_entry(base, i);
        float *const numbers = malloc(entry->count * sizeof *numbers);
        CHECK(numbers != NULL);
        REQUIRE_OK(ox_st_read_f32(base, entry, 0, entry->count, numbers));
        if (strstr(entry->name, ".layers.") != NULL && (all || strstr(entry->name, ".layers.1.") == NULL)) {
            worst = fmax(worst, round_tensor(numbers, entry->count));
        }
        REQUIRE_OK(ox_st_write(writer, i, 0, numbers, entry->count * sizeof *numbers));
        free(numbers);
    }
    REQUIRE_OK(ox_st_finish(&writer));
    ox_st_close(&base);
    printf("%s: an error is %.4f of a scale at most\n", name, worst);
    CHECK(worst > 0.49 && worst <= 0.5 * (1 + 1e-5));
}

/* ---- the same bits -------------------------------------------------------------------------------------- */

static void test_same_bits(const char *what, const char *rounded) {
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    static const struct {
        const char *words;
        bool has_drive;
    } places[] = {{"", false},
                  {"", true},
                  {"--device-mem 16MiB", true},
                  {"--device-mem 16MiB --weights-tier host", false},
                  {"--device-mem 16MiB --ranks 2 --sharding full_shard", true},
                  {"--ranks 4", false},
                  {"--ranks 2 --sharding shard_grad_op", false},
                  {"--mesh pp=2", true},
                  {"--prefetch-depth 0 --tiles 2 --optimizer-overlap off --kept-blocks 0", true}};
    enum { PLACES = sizeof places / sizeof *places };
    char words[512];
    for (unsigned i = 0; i < 3; i++) {
        snprintf(words, sizeof words, "--save-dtype fp32 --dtype %s %s", dtypes[i], what);
        run(rounded, "rounded-run", words, false);
        for (unsigned k = 0; k < PLACES; k++) {
            if (!test_takes(i * PLACES + k, 4)) {
                continue;
            }
            snprintf(words, sizeof words, "--base-dtype q8 --save-dtype fp32 --dtype %s %s %s", dtypes[i], what,
                     places[k].words);
            run("base", "q8-run", words, places[k].has_drive);
            CHECK(sys_same_runs("rounded-run", "q8-run", STEPS));
            sys_remove_run("q8-run");
        }
        sys_remove_run("rounded-run");
    }
}

/* A run that is killed goes on from its store, one that is stopped from its checkpoint. That of frozen blocks has their
 * numbers, which are the same in 8 bits again. */
static void test_resumes(const char *what) {
    char words[512];
    snprintf(words, sizeof words, "--base-dtype q8 --save-dtype bf16 %s", what);
    run("base", "whole", words, true);
    for (int has_drive = 0; has_drive <= 1; has_drive++) {
        for (int part = 0; part < 2; part++) {
            begin(test_path("base"), "parts", words);
            sys_args_add(&args, part == 0 ? "" : "--resume latest");
            if (has_drive) {
                sys_args_on_drive(&args, "parts");
            }
            if (part == 1) {
                sys_run_well(&args, &process);
                break;
            }
            sys_interrupt(&args, &process, "\nstep 2/", has_drive ? SIGKILL : SIGUSR2);
        }
        CHECK(sys_same_runs("whole", "parts", STEPS));
        steps = STEPS + 1;
        begin(test_path("base"), "parts", what);
        sys_args_add(&args, "--resume latest --save-dtype bf16");
        if (has_drive) {
            sys_args_on_drive(&args, "parts");
        }
        sys_run(&args, &process);
        steps = STEPS;
        if (process.outcome.exit_status != 2 ||
            !sys_said(&process, has_drive ? "--base-dtype" : "its frozen weights are kept in 8 bits; give --base-dtype "
                                                             "q8 again, or begin a new run")) {
            sys_complain(&process, "a resume in another format");
        }
        sys_remove_run("parts");
    }
    sys_remove_run("whole");
}

/* ---- sizes ---------------------------------------------------------------------------------------------- */

static double planned(const char *more, const char *tier) {
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=%s", test_path("base"));
    sys_args_add(&args, common);
    sys_args_add(&args, more);
    sys_args_add(&args, "--weights-tier nvme --state-tier nvme --format json");
    sys_args_drive(&args, "planned-drive", "32MiB");
    sys_run_well(&args, &process);
    json_t *const json = json_loads(process.outcome.out, 0, NULL);
    const double bytes = json_number_value(json_object_get(json_object_get(json, "peak_bytes"), tier));
    json_decref(json);
    return bytes;
}

static void test_sizes(void) {
    enum { BLOCK_ELEMS = 128 * 128 * 3 + 3 * 128 * 256 + 2 * 128, PAGE = 4096 };
    char words[256];
    snprintf(words, sizeof words, "%s --base-dtype q8", adapted);
    const double wide = planned(adapted, "nvme"), narrow = planned(words, "nvme");
    printf("on the drive: %.0f bytes in bf16, %.0f in 8 bits\n", wide, narrow);
    CHECK(fabs(wide - narrow - 3 * BLOCK_ELEMS * (2 - 34.0 / 32)) <= 3 * PAGE);
    run("base", "told", words, false);
    CHECK(sys_said(&process, "frozen are 476.0 k of 1.13 bytes each"));
    sys_remove_run("told");
}

/* `eval --base-dtype q8` finds what the run's own evaluation found. */
static void test_eval(void) {
    enum { BYTES = 1601 }; /* whole windows of 16 */
    char *const all = files_read(text_path, NULL);
    char words[512], folder[OX_PATH_BYTES];
    files_write("held.txt", all, BYTES);
    free(all);
    snprintf(words, sizeof words, "%s --base-dtype q8 --eval-windows 0 --eval-data=%s", adapted, test_path("held.txt"));
    run("base", "told", words, false);
    char *const curve = sys_curve(test_path("told"), "eval");
    const double found = sys_metric(curve, STEPS, "eval_loss");
    free(curve);
    snprintf(folder, sizeof folder, "%s", test_pathf("told/checkpoint-%d", STEPS));
    snprintf(words, sizeof words, "--max-seq-length 16 --host-mem 64MiB --dtype fp32 --base-dtype q8");
    const double rounded = sys_eval_loss(folder, test_path("held.txt"), words);
    snprintf(words, sizeof words, "--max-seq-length 16 --host-mem 64MiB --dtype fp32");
    const double exact = sys_eval_loss(folder, test_path("held.txt"), words);
    printf("loss %.9f, by eval %.9f, beside the folder's own weights %.9f\n", found, rounded, exact);
    CHECK(fabs(found - rounded) < 1e-12 && exact != rounded && fabs(exact - rounded) < 1e-2);
    sys_remove_run("told");
}

/* ---- refusals ------------------------------------------------------------------------------------------- */

static void refuse(const char *more, const char *says) {
    begin(test_path("base"), "refused", more);
    sys_run(&args, &process);
    if (process.outcome.exit_status != 2 || !sys_said(&process, says)) {
        sys_complain(&process, says);
    }
}

static void test_refusals(void) {
    char words[256];
    refuse("--base-dtype q8",
           "--base-dtype q8: no block is frozen whole, and what is trained keeps its float32 master;");
    refuse("--base-dtype q8 --freeze model.embed_tokens.weight", "--base-dtype q8: no block is frozen whole");
    refuse("--base-dtype q8 --freeze *.up_proj.weight", "--base-dtype q8: no block is frozen whole");
    refuse("--base-dtype q4", "--base-dtype");
    snprintf(words, sizeof words, "--base-dtype q8 %s", adapted);
    chunk = "4096";
    refuse(words, "--chunk-elems 4096: weights in 8 bits (--base-dtype q8) need a multiple of 65536");
}

int main(void) {
    text_path = sys_write_text(24000);
    make_base();
    make_rounded("rounded", true);
    make_rounded("rounded-ends", false);
    test_same_bits(adapted, "rounded");
    test_same_bits(frozen, "rounded-ends");
    test_resumes(adapted);
    test_resumes(frozen);
    test_sizes();
    test_eval();
    test_refusals();
    return test_end();
}
