/* What of the optimizer's state checkpoints keep: --save-only-model and --save-optimizer-limit, what resumes from them,
 * and how long training waits for saves. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct sys_args args;
static struct sys_process process;
static const char *model, *text;

static void begin(const char *output, const char *more) {
    sys_args_train(&args, model, text, output);
    sys_args_add(&args, "--max-seq-length 16 --batch-size 2 --learning-rate 0.01 --save-steps 2 --seed 5 "
                 "--host-mem 64MiB --compute-threads 1 --optimizer-threads 1 --eval-fraction 0.1");
    sys_args_add(&args, more);
    if (strstr(more, "--max-steps") == NULL) {
        sys_args_add(&args, "--max-steps 6");
    }
}

static void run(const char *output, const char *more) {
    begin(output, more);
    sys_run_well(&args, &process);
}

static void refuse(const char *says) {
    sys_run(&args, &process);
    if (process.outcome.exit_status != 2 || !sys_said(&process, says)) {
        sys_complain(&process, says);
    }
}

static bool has_state(const char *output, int step) {
    return files_exist(test_pathf("%s/checkpoint-%d/optimizer.safetensors", output, step));
}

/* Every file of a checkpoint against its hash; one without state is whole too. */
static void inspect(const char *output, int step) {
    sys_args_begin(&args, "inspect");
    sys_args_word(&args, "%s", test_pathf("%s/checkpoint-%d", output, step));
    sys_run_well(&args, &process);
}

static bool same_weights(const char *a, const char *b, int step) {
    char first[SYS_PATH_BYTES];
    snprintf(first, sizeof first, "%s", test_pathf("%s/checkpoint-%d/model.safetensors", a, step));
    return files_same(first, test_pathf("%s/checkpoint-%d/model.safetensors", b, step));
}

/* A run without a store whose checkpoints are models. */
static void test_only_model(void) {
    run("alone", "--save-only-model");
    CHECK(sys_said(&process, "this run cannot be resumed"));
    for (int step = 2; step <= 6; step += 2) {
        CHECK(!has_state("alone", step) && has_state("whole", step) && same_weights("alone", "whole", step));
        inspect("alone", step);
    }
    begin("alone", "--save-only-model --resume latest --max-steps 8");
    refuse("holds the model alone");
    sys_args_begin(&args, "eval");
    sys_args_word(&args, "--model=%s", test_path("alone"));
    sys_args_word(&args, "--data=%s", text);
    sys_args_add(&args, "--max-seq-length 16 --host-mem 64MiB");
    sys_run_well(&args, &process);
}

/* With a store the same run saves while it trains, and goes on from the store. */
static void test_only_model_on_drive(void) {
    for (int part = 0; part < 2; part++) {
        begin("drive", part == 0 ? "--save-only-model" : "--save-only-model --resume latest --max-steps 8");
        sys_args_drive(&args, "drive-drive", "32MiB");
        sys_run_well(&args, &process);
        CHECK(!sys_said(&process, "cannot be resumed"));
    }
    CHECK(sys_said(&process, "the store's last commit"));
    CHECK(!has_state("drive", 8) && same_weights("drive", "whole", 4));
}

/* KiB that a plan has before, or behind, the words. */
static double planned_kib(const char *words) {
    const char *const at = strstr(process.outcome.err, words);
    double size = 0.0;
    char unit[8] = "";
    CHECK(at != NULL && sscanf(at + strlen(words), "%lf %7[A-Za-z]", &size, unit) == 2);
    return strcmp(unit, "MiB") == 0 ? size * 1024.0 : size;
}

/* The newest N checkpoints have the state, and what is kept of others is the model. */
static void test_limit(void) {
    run("bare", "--save-only-model");
    const double bare = planned_kib("checkpoints: ");
    files_remove_folder(test_path("bare"));
    run("limit", "--save-optimizer-limit 1");
    const double each = planned_kib("checkpoints: "), most = planned_kib("at most ");
    CHECK(fabs(most - (2.0 * each + bare)) < 0.01 * most); /* of three, while the third is saved */
    CHECK(!has_state("limit", 2) && !has_state("limit", 4) && has_state("limit", 6));
    CHECK(same_weights("limit", "whole", 4));
    inspect("limit", 4);
    begin("limit", "");
    sys_args_word(&args, "--resume=%s", test_path("limit/checkpoint-4"));
    refuse(plain_pathf("resume from %s", test_path("limit/checkpoint-6")));
    /* What an interrupted deletion leaves goes with the next save. */
    files_write("limit/checkpoint-4/optimizer.safetensors", "left", 4);
    for (int whole = 0; whole < 2; whole++) {
        run(whole ? "whole" : "limit", whole ? "--max-steps 8 --resume latest"
                                             : "--max-steps 8 --resume latest --save-optimizer-limit 2");
    }
    CHECK(!has_state("limit", 4) && has_state("limit", 6) && has_state("limit", 8));
    CHECK(sys_same_runs("limit", "whole", 8));
}

/* After test_limit: each save has a line, in the order of steps, and the end has the sum of what training waited. */
static void test_stalls(void) {
    FILE *const file = fopen(test_path("limit/metrics.jsonl"), "r");
    char line[65536];
    double sum = 0, all = -1;
    int saves = 0, count = -1;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        json_t *const json = json_loads(line, 0, NULL);
        const char *const type = json_string_value(json_object_get(json, "type"));
        if (type != NULL && strcmp(type, "save") == 0) {
            const double stall = json_number_value(json_object_get(json, "stall_seconds"));
            const long long step = json_integer_value(json_object_get(json, "checkpoint_step"));
            CHECK(stall > 0 && stall <= json_number_value(json_object_get(json, "seconds")));
            CHECK(step % 2 == 0 && step <= json_integer_value(json_object_get(json, "step")));
            sum += stall;
            saves++;
        } else if (type != NULL && strcmp(type, "end") == 0) {
            all = all < 0 ? 0 : all;
            count = count < 0 ? 0 : count;
            all += json_number_value(json_object_get(json, "save_stall_seconds"));
            count += (int)json_integer_value(json_object_get(json, "saves"));
        }
        json_decref(json);
    }
    CHECK(file != NULL && fclose(file) == 0);
    CHECK(saves == 4 && count == 4 && all > sum - 1e-9 && all < sum + 1e-9);
    CHECK(strstr(process.outcome.out, "saved, for which training waited") != NULL);
    CHECK(sys_said(&process, "; training waited "));
}

int main(void) {
    model = sys_write_model("llama");
    text = sys_write_text(4000);
    run("whole", "");
    test_only_model();
    test_only_model_on_drive();
    test_limit();
    test_stalls();
    return test_end();
}
