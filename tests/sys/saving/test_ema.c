/* --ema-decay as a user meets it: averages that follow the weights of every step, with the same bits in every home, on
 * every number of ranks and through kills; and what --ema reads of them. */
#include "base/optim_element.h"
#include "engine/hf/safetensors.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 6, ELEMS_MAX = 1 << 16 };
#define DECAY 0.75

static const char common[] = "--batch-size 1 --gradient-accumulation-steps 4 --sum-groups 4 --max-seq-length 16 "
                             "--compute-threads 1 --optimizer-threads 1 --host-mem 64MiB --max-steps 6 "
                             "--eval-fraction 0.1 --save-total-limit 0 --learning-rate 1e-2 --save-steps 1";

static struct sys_args args;
static struct sys_process process;
static const char *model, *text;

static void begin(const char *output, const char *more, bool has_drive) {
    sys_args_train(&args, model, text, output);
    sys_args_add(&args, common);
    sys_args_add(&args, more);
    if (has_drive) {
        sys_args_on_drive(&args, output);
    }
}

static void run(const char *output, const char *more, bool has_drive) {
    begin(output, more, has_drive);
    sys_run_well(&args, &process);
}

/* Follows one tensor through all checkpoints of the run. */
static void check_follows(const char *output, const char *name) {
    static float expected[ELEMS_MAX], weights[ELEMS_MAX], averages[ELEMS_MAX];
    uint32_t wrong = 0;
    for (int step = 1; step <= STEPS; step++) {
        struct ox_st_file *model_file = NULL, *optim = NULL;
        char average[256];
        snprintf(average, sizeof average, "%s.ema", name);
        REQUIRE_OK(ox_st_open(test_pathf("%s/checkpoint-%d/model.safetensors", output, step), &model_file));
        REQUIRE_OK(ox_st_open(test_pathf("%s/checkpoint-%d/optimizer.safetensors", output, step), &optim));
        const struct ox_st_entry *const weight = ox_st_find(model_file, name);
        const struct ox_st_entry *const entry = ox_st_find(optim, average);
        CHECK(weight != NULL && entry != NULL && entry->count == weight->count && weight->count <= ELEMS_MAX);
        if (weight != NULL && entry != NULL && entry->count == weight->count && weight->count <= ELEMS_MAX) {
            REQUIRE_OK(ox_st_read_f32(model_file, weight, 0, weight->count, weights));
            REQUIRE_OK(ox_st_read_f32(optim, entry, 0, entry->count, averages));
            for (uint64_t i = 0; i < weight->count; i++) {
                expected[i] = step == 1 ? weights[i] : ox_average_update(expected[i], weights[i], (float)(1 - DECAY));
                wrong += expected[i] != averages[i];
            }
        }
        ox_st_close(&optim);
        ox_st_close(&model_file);
    }
    CHECK(wrong == 0);
}

static void test_places(void) {
    static const struct {
        const char *words;
        bool has_drive;
    } places[] = {{"", true},
                  {"--device-mem 8MiB --ranks 2 --sharding full_shard", true},
                  {"--ranks 4", false},
                  {"--prefetch-depth 0 --tiles 2 --optimizer-overlap off", true},
                  {"--optimizer-overlap speculative --speculative-units 2", true},
                  {"--device-mem 8MiB --device-state-units 2", false}};
    static const char *const formats[] = {"--moments bf16", "--dtype bf16 --moments q8 --optim lion", ""};
    char words[512];
    for (unsigned i = 0; i < 3; i++) {
        snprintf(words, sizeof words, "--ema-decay 0.75 %s", formats[i]);
        files_remove_folder(test_path("memory"));
        run("memory", words, false);
        if (i == 2) {
            check_follows("memory", "model.layers.1.mlp.down_proj.weight");
            check_follows("memory", "model.norm.weight");
            run("plain", "", false);
            char first[SYS_PATH_BYTES];
            snprintf(first, sizeof first, "%s", test_path("plain/checkpoint-6/model.safetensors"));
            CHECK(files_same(first, test_path("memory/checkpoint-6/model.safetensors")));
        }
        for (unsigned k = 0; k < sizeof places / sizeof *places; k++) {
            if (!test_takes(i * 6 + k, 4)) {
                continue;
            }
            snprintf(words, sizeof words, "--ema-decay 0.75 %s %s", formats[i], places[k].words);
            run("place", words, places[k].has_drive);
            CHECK(sys_same_runs("memory", "place", STEPS));
            files_remove_folder(test_path("place"));
            files_remove_folder(test_path("place-drive"));
        }
    }
}

/* After test_places, against the folder `memory`. */
static void test_resumes(void) {
    for (int part = 0; part < 2; part++) {
        begin("parts", part == 0 ? "--ema-decay 0.75" : "--ema-decay 0.75 --resume latest", true);
        if (part == 0) {
            sys_interrupt(&args, &process, "\nstep 3/", SIGKILL);
        } else {
            sys_run_well(&args, &process);
        }
    }
    CHECK(sys_same_runs("memory", "parts", STEPS));
    begin("again", "--ema-decay 0.75", false);
    sys_args_word(&args, "--resume=%s", test_path("memory/checkpoint-3"));
    sys_run_well(&args, &process);
    char first[SYS_PATH_BYTES];
    snprintf(first, sizeof first, "%s", test_path("memory/checkpoint-6/optimizer.safetensors"));
    CHECK(files_same(first, test_path("again/checkpoint-6/optimizer.safetensors")));
    begin("without", "", false);
    sys_args_word(&args, "--resume=%s", test_path("memory/checkpoint-3"));
    sys_run_well(&args, &process);
    CHECK(sys_said(&process, "which the run goes on without"));
    begin("newly", "--ema-decay 0.75", false);
    sys_args_word(&args, "--resume=%s", test_path("plain/checkpoint-3"));
    sys_run_well(&args, &process);
    CHECK(sys_said(&process, "they begin with its weights"));
}

static double eval_loss(const char *of, const char *more) {
    char words[128];
    snprintf(words, sizeof words, "--max-seq-length 16 --host-mem 64MiB %s", more);
    return sys_eval_loss(test_path(of), text, words);
}

static void test_uses(void) {
    sys_args_begin(&args, "export");
    sys_args_word(&args, "--model=%s", test_path("memory"));
    sys_args_word(&args, "--output=%s", test_path("averaged"));
    sys_args_add(&args, "--ema");
    sys_run_well(&args, &process);
    const double weights = eval_loss("memory", ""), averages = eval_loss("memory", "--ema");
    CHECK(weights != averages && averages == eval_loss("averaged", "") && isfinite(averages));
    sys_args_begin(&args, "export");
    sys_args_word(&args, "--model=%s", test_path("plain"));
    sys_args_word(&args, "--output=%s", test_path("none"));
    sys_args_add(&args, "--ema");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && sys_said(&process, "holds no averages"));
}

/* The value of a key in the last line of an evaluation. */
static double evaluated(const char *output, const char *key) {
    char *const lines = files_read(test_pathf("%s/metrics.jsonl", output), NULL);
    double value = NAN;
    for (char *line = strtok(lines, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        json_t *const row = json_loads(line, 0, NULL);
        const json_t *const found = json_object_get(row, key);
        if (strcmp(json_string_value(json_object_get(row, "type")), "eval") == 0 && found != NULL) {
            value = json_number_value(found);
        }
        json_decref(row);
    }
    free(lines);
    return value;
}

/* --eval-ema: the loss of the averages is that of `eval --ema`, in every home in memory, and nothing of the run changes
 * by it; a best checkpoint may be chosen by it. */
static void test_eval_ema(void) {
    static const char *const formats[] = {"", "--dtype bf16 --moments bf16", "--dtype bf16 --moments q8"};
    static const char *const places[] = {"", "--optimizer-overlap speculative --device-mem 8MiB",
                                         "--ranks 2 --sharding zero1",
                                         "--ranks 2 --sharding zero2 --optimizer-overlap off",
                                         "--ranks 4 --sharding no_shard", "--mesh dp=2,pp=2",
                                         "--device-mem 8MiB --device-state-units 2",
                                         /* on drives, from which weights come back */
                                         "--state-tier nvme --weights-tier host",
                                         "--state-tier nvme --weights-tier host --persist-steps 4",
                                         "--state-tier nvme --weights-tier host --device-mem 8MiB --ranks 2",
                                         "--state-tier nvme --weights-tier device --device-mem 8MiB",
                                         /* with the weights there too */
                                         "--state-tier nvme --weights-tier nvme",
                                         "--state-tier nvme --weights-tier nvme --persist-steps 4 --device-mem 8MiB",
                                         "--state-tier nvme --weights-tier nvme --ranks 2 --sharding full_shard"};
    enum { BYTES = 1601 }; /* whole windows of 16 */
    char *const all = files_read(text, NULL);
    char words[512], first[SYS_PATH_BYTES];
    double averages = 0, weights = 0;
    files_write("held.txt", all, BYTES);
    free(all);
    for (unsigned i = 0; i < 3; i++) {
        const int used = snprintf(words, sizeof words, "--ema-decay 0.75 %s --eval-windows 0 --eval-steps 2 "
                                  "--eval-data=%s --metric-for-best-model loss", formats[i], test_path("held.txt"));
        run("weights", words, false);
        weights = evaluated("weights", "eval_loss");
        for (unsigned k = 0; k < sizeof places / sizeof *places; k++) {
            if (k > 0 && !test_takes(i * (unsigned)(sizeof places / sizeof *places) + k, 5)) {
                continue;
            }
            snprintf(words + used - 4, sizeof words - (size_t)used, "eval_ema_loss --eval-ema %s", places[k]);
            begin("ema", words, false);
            if (strstr(places[k], "nvme") != NULL) {
                sys_args_drive(&args, "ema-drive", "32MiB");
            }
            sys_run_well(&args, &process);
            for (int file = 0; file < 2; file++) {
                const char *const name = file == 0 ? "model" : "optimizer";
                snprintf(first, sizeof first, "%s", test_pathf("weights/checkpoint-6/%s.safetensors", name));
                CHECK(files_same(first, test_pathf("ema/checkpoint-6/%s.safetensors", name)));
            }
            CHECK(evaluated("ema", "eval_loss") == weights);
            CHECK(k == 0 || evaluated("ema", "eval_ema_loss") == averages);
            if (k == 0) {
                averages = evaluated("ema", "eval_ema_loss");
                snprintf(first, sizeof first, "--ema --max-seq-length 16 --host-mem 64MiB %s",
                         i == 0 ? "" : "--dtype bf16");
                const double alone = sys_eval_loss(test_path("ema/checkpoint-6"), test_path("held.txt"), first);
                printf("averages %.9f, by eval %.9f, weights %.9f\n", averages, alone, weights);
                CHECK(fabs(alone - averages) < 1e-9 && averages != weights);
            }
            sys_remove_run("ema");
        }
        files_remove_folder(test_path("weights"));
    }
    static const char *const refused[][2] = {{"--eval-ema", "add --ema-decay"},
                                             {"--eval-ema --ema-decay 0.75 --store-generations 1",
                                              "it has one generation; give --store-generations 2"}};
    for (unsigned i = 0; i < sizeof refused / sizeof *refused; i++) {
        begin("none", refused[i][0], i == 1);
        sys_run(&args, &process);
        CHECK(process.outcome.exit_status == 2 && sys_said(&process, refused[i][1]));
    }
}

/* A run that trains adapters alone averages their A and B. */
static void test_adapters(void) {
    model = test_path("averaged");
    run("adapters", "--ema-decay 0.75 --lora-r 2", false);
    const double weights = eval_loss("adapters", ""), averages = eval_loss("adapters", "--ema");
    CHECK(weights != averages && isfinite(averages));
}

int main(void) {
    model = sys_write_model("llama");
    text = sys_write_text(24000);
    test_places();
    test_resumes();
    test_uses();
    test_eval_ema();
    test_adapters();
    return test_end();
}
