/* --share-layers and `offload unlock` as a user meets them: checkpoints have every layer by name and the optimizer's
 * planes once; resumes; homes, ranks and pipelines with the same bits; after an unlock a loss is the same to the bit
 * and a step later the layers differ; what is refused, and how. */
#include "base/file.h"
#include "engine/hf/hf.h"
#include "engine/hf/safetensors.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 4, LAYERS = 3 };

static const char common[] = "--batch-size 1 --gradient-accumulation-steps 4 --sum-groups 4 --max-seq-length 16 "
                             "--compute-threads 1 --optimizer-threads 1 --host-mem 64MiB --eval-fraction 0 "
                             "--save-total-limit 0 --learning-rate 1e-3 --lr-scheduler-type constant --warmup-steps 0";
static const char weights[] = "run/checkpoint-4/model.safetensors";
static const char planes[] = "run/checkpoint-4/optimizer.safetensors";
static const char scratch[] = "--from-scratch --share-layers all";
static struct sys_args args;
static struct sys_process process;
static char model[OX_PATH_BYTES];
static const char *text_path;

static void begin(const char *from, const char *output, int steps, const char *more) {
    sys_args_train(&args, from, text_path, output);
    sys_args_add(&args, common);
    sys_args_word(&args, "--max-steps=%d", steps);
    sys_args_add(&args, more);
}

static void train(const char *output, int steps, const char *more) {
    begin(model, output, steps, more);
    sys_run_well(&args, &process);
}

static void resume(const char *output, const char *from, int steps, const char *more) {
    begin(model, output, steps, more);
    sys_args_word(&args, "--resume-from-checkpoint=%s", from);
    sys_run_well(&args, &process);
}

static void unlock(const char *from, const char *to, const char *more) {
    char output[OX_PATH_BYTES];
    snprintf(output, sizeof output, "%s", test_path(to));
    sys_args_begin(&args, "unlock");
    sys_args_word(&args, "%s", test_path(from));
    sys_args_word(&args, "--output=%s", output);
    sys_args_add(&args, more);
    sys_run(&args, &process);
}

/* A matrix of a layer, or a plane of it ("": the weights); the caller frees it. NULL: the file has none of this
 * name. */
static float *tensor_of(const char *file, int layer, const char *plane, uint64_t *count) {
    struct ox_st_file *opened = NULL;
    char name[128];
    snprintf(name, sizeof name, "model.layers.%d.mlp.up_proj.weight%s", layer, plane);
    float *values = NULL;
    REQUIRE_OK(ox_st_open(test_path(file), &opened));
    const struct ox_st_entry *const entry = ox_st_find(opened, name);
    if (entry != NULL) {
        values = malloc(entry->count * sizeof *values);
        REQUIRE_OK(ox_st_read_f32(opened, entry, 0, entry->count, values));
        *count = entry->count;
    }
    ox_st_close(&opened);
    return values;
}

static bool same_layers(const char *file) {
    uint64_t count = 0, other = 0;
    float *const first = tensor_of(file, 0, "", &count);
    float *const last = tensor_of(file, 2, "", &other);
    CHECK(first != NULL && last != NULL && count == other);
    const bool same = memcmp(first, last, count * sizeof *first) == 0;
    free(first);
    free(last);
    return same;
}

/* Every layer's weights are in the checkpoint, and the first one's moments alone; a resume goes on as if nothing had
 * been; an export has the exact weights of every layer though the checkpoint has bf16. */
static void test_checkpoints(void) {
    uint64_t count = 0;
    train("run", STEPS, scratch);
    CHECK(same_layers(weights));
    float *const own = tensor_of(planes, 0, ".exp_avg", &count);
    float *const none = tensor_of(planes, 1, ".exp_avg", &count);
    CHECK(own != NULL && none == NULL);
    free(own);
    train("again", 2, scratch);
    resume("again", "latest", STEPS, "--share-layers 3");
    CHECK(sys_same_checkpoint(test_path("run/checkpoint-4"), test_path("again/checkpoint-4")));
    sys_remove_run("again");
    train("narrow", STEPS, "--from-scratch --share-layers all --save-dtype bf16 --ema-decay 0.5");
    sys_args_begin(&args, "export");
    sys_args_word(&args, "--model=%s", test_path("narrow"));
    sys_args_word(&args, "--output=%s", test_path("exact"));
    sys_args_add(&args, "--save-dtype fp32");
    sys_run_well(&args, &process);
    CHECK(same_layers("exact/model.safetensors"));
    CHECK(files_same(test_path("exact/model.safetensors"), test_path(weights)));
    files_remove_folder("exact");
    sys_args_word(&args, "--ema");
    sys_run_well(&args, &process);
    CHECK(same_layers("exact/model.safetensors"));
    CHECK(!files_same(test_path("exact/model.safetensors"), test_path(weights)));
    sys_remove_run("narrow");
}

static void test_places(void) {
    static const char *const places[] = {
        "--device-mem 8MiB --tiles 2", "--ranks 2 --sharding full_shard --device-mem 8MiB",
        "--ranks 2 --pipeline-parallel-size 2", "--optimizer-overlap speculative"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char words[256];
        snprintf(words, sizeof words, "%s %s", scratch, places[i]);
        begin(model, "place", STEPS, words);
        if (i != 2) {
            sys_args_on_drive(&args, "place");
        }
        sys_run_well(&args, &process);
        CHECK(sys_same_runs("run", "place", STEPS));
        sys_remove_run("place");
    }
}

/* The step behind an unlock has the loss and the moments that follow; the one behind that has layers that differ. */
static void test_unlock(void) {
    static const struct {
        const char *words;
        float m, v;
    } ways[] = {{"", 1.0f / LAYERS, 1.0f / (LAYERS * LAYERS)}, {"--moments copy", 1, 1}, {"--moments zero", 0, 0}};
    uint64_t count = 0;
    float *const m = tensor_of(planes, 0, ".exp_avg", &count);
    float *const v = tensor_of(planes, 0, ".exp_avg_sq", &count);
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        unlock("run", "unlocked", ways[way].words);
        CHECK(process.outcome.exit_status == 0 && strstr(process.outcome.out, "each layer has its own") != NULL);
        CHECK(files_same(test_path(weights), test_path("unlocked/model.safetensors")));
        for (int layer = 0; layer < LAYERS; layer++) {
            float *const own_m = tensor_of("unlocked/optimizer.safetensors", layer, ".exp_avg", &count);
            float *const own_v = tensor_of("unlocked/optimizer.safetensors", layer, ".exp_avg_sq", &count);
            CHECK(own_m != NULL && own_v != NULL);
            for (uint64_t i = 0; i < count; i++) {
                const float wanted_m = way == 0 ? m[i] / LAYERS : m[i] * ways[way].m;
                const float wanted_v = way == 0 ? v[i] / (LAYERS * LAYERS) : v[i] * ways[way].v;
                CHECK(own_m[i] == wanted_m && own_v[i] == wanted_v);
            }
            free(own_m);
            free(own_v);
        }
        if (way == 0) {
            CHECK(sys_eval_loss(test_path("unlocked"), text_path, "--max-seq-length 16") ==
                  sys_eval_loss(test_path("run/checkpoint-4"), text_path, "--max-seq-length 16"));
        }
        files_remove_folder("unlocked");
    }
    free(m);
    free(v);
    unlock("run", "unlocked", "");
    resume("on", test_path("unlocked"), STEPS + 2, "--save-steps 1");
    resume("locked", test_path("run/checkpoint-4"), STEPS + 2, "--share-layers all");
    char *const own = sys_curve(test_path("on"), "step"), *const locked = sys_curve(test_path("locked"), "step");
    CHECK(sys_metric(own, STEPS + 1, "loss") == sys_metric(locked, STEPS + 1, "loss"));
    CHECK(sys_metric(own, STEPS + 2, "loss") != sys_metric(locked, STEPS + 2, "loss"));
    CHECK(!same_layers("on/checkpoint-5/model.safetensors"));
    CHECK(same_layers("locked/checkpoint-6/model.safetensors"));
    free(own);
    free(locked);
    begin(test_path("unlocked"), "new", 1, ""); /* as a model, each layer by itself, without moments */
    sys_run_well(&args, &process);
    CHECK(!same_layers("new/checkpoint-1/model.safetensors"));
    begin(test_path("unlocked"), "new", 1, "--overwrite-output-dir --share-layers 2"); /* its layers are bit-equal */
    sys_run_well(&args, &process);
}

static void refused(const char *words) {
    if (process.outcome.exit_status != 2 || !sys_said(&process, words)) {
        printf("wanted: %s\n", words);
        sys_complain(&process, "is not refused as it should be");
    }
}

static void refuse(const char *from, const char *more, const char *words) {
    begin(from, "refused", STEPS + 1, more);
    sys_run(&args, &process);
    refused(words);
    files_remove_folder("refused");
}

static void test_refusals(void) {
    char more[OX_PATH_BYTES + 64];
    refuse(test_path("on/checkpoint-6"), "--share-layers 3", "hold different weights (model.layers.1.");
    refuse(model, "--from-scratch --share-layers 4",
           "--share-layers 4: give all, or how many layers in a row share their weights, 2 to 3");
    refuse(model, "--from-scratch --share-layers some", "--share-layers some: give all");
    refuse(test_path("unlocked"), "--share-layers 3 --lora-r 2", "--share-layers: does not exist with --lora-r yet");
    refuse(model, "--from-scratch --share-layers 3 --freeze layers.1",
           "share their weights (--share-layers); mean both or");
    snprintf(more, sizeof more, "--resume-from-checkpoint %s", test_path("run/checkpoint-4"));
    refuse(model, more,
           "3 layers in a row shared their weights and have one optimizer state; give --share-layers 3 again");
    snprintf(more, sizeof more, "--share-layers 2 --resume-from-checkpoint %s", test_path("run/checkpoint-4"));
    refuse(model, more, "--share-layers: in ");
    snprintf(more, sizeof more, "--share-layers 3 --resume-from-checkpoint %s", test_path("unlocked"));
    refuse(model, more, "each layer has weights of its own; leave it out");
    unlock("unlocked", "twice", "");
    refused("no layers share their weights; go on from it as it is");
    unlock("run", "unlocked", "");
    refused("exists already; name a folder that does not");
}

int main(void) {
    snprintf(model, sizeof model, "%s", sys_write_model("llama"));
    text_path = sys_write_text(20000);
    test_checkpoints();
    test_places();
    test_unlock();
    test_refusals();
    return test_end();
}
