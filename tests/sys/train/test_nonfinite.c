/* Steps whose loss or gradient is not finite are skipped and counted, change no weights, moments or store, and are
 * fatal if too many come in a row; the state before them is saved.
 *
 * The model is a GPT-2 whose vector for one byte is so large and negative that its logit is minus infinity: harmless
 * wherever another byte comes next, an infinite loss where this one does. The text decides when that happens. */
#include "base/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

enum { SEQ = 16, HIDDEN = 48, WINDOWS = 64, BAD_BYTE = '#' };

static const char common[] = "--max-seq-length 16 --host-mem 32MiB --compute-threads 1 --optimizer-threads 1 "
                             "--data-order sequential --lr-scheduler-type constant --eval-fraction 0 --save-steps 1";

static const char *model_folder;
static struct sys_args args;
static struct sys_process process;

/* ---- the model and the texts ------------------------------------------------------------------------ */

/* Sets `count` floats of a tensor of a safetensors file. */
static void set_values(const char *path, const char *tensor, uint64_t first, uint64_t count, float value) {
    char *data = NULL;
    size_t bytes = 0;
    uint64_t header_bytes = 0;
    REQUIRE_OK(ox_file_read(path, 1 << 24, &data, &bytes));
    memcpy(&header_bytes, data, sizeof header_bytes);
    json_error_t error;
    json_t *const header = json_loadb(data + 8, header_bytes, JSON_DISABLE_EOF_CHECK, &error);
    json_int_t begin = 0, end = 0;
    if (json_unpack(header, "{s:{s:[I, I]}}", tensor, "data_offsets", &begin, &end) != 0) {
        printf("%s: has no tensor %s\n", path, tensor);
        exit(1);
    }
    for (uint64_t i = first; i < first + count; i++) {
        files_patch(path, (int64_t)(8 + header_bytes + (uint64_t)begin + i * sizeof value), &value, sizeof value);
    }
    json_decref(header);
    free(data);
}

/* Windows of a harmless text; those from `bad_first` on, `bad_count` of them, hold the byte. */
static const char *write_windows(const char *name, unsigned bad_first, unsigned bad_count) {
    char text[WINDOWS * SEQ + 1];
    for (unsigned i = 0; i < sizeof text; i++) {
        text[i] = (char)('a' + i * 7 % 26);
    }
    for (unsigned i = bad_first; i < bad_first + bad_count; i++) {
        text[i * SEQ + SEQ / 2] = BAD_BYTE;
    }
    const char *const path = test_path(name);
    files_write(path, text, sizeof text);
    return path;
}

static void make_model(void) {
    const char *const config = sys_write_model("gpt2");
    sys_args_train(&args, config, write_windows("good.txt", 0, 0), "made");
    sys_args_add(&args, common);
    sys_args_add(&args, "--max-steps 1");
    sys_run_well(&args, &process);
    model_folder = test_path("made/checkpoint-1");
    const char *const path = test_path("made/checkpoint-1/model.safetensors");
    CHECK(unlink(test_path("made/checkpoint-1/trainer_state.json")) == 0); /* a checkpoint's files may not change */
    set_values(path, "transformer.ln_f.weight", 0, HIDDEN, 0.01f);
    set_values(path, "transformer.ln_f.bias", 0, HIDDEN, 1.0f);
    set_values(path, "transformer.wte.weight", (uint64_t)BAD_BYTE * HIDDEN, HIDDEN, -3e38f);
}

/* `drive` may be NULL. */
static void begin(const char *text, const char *output, const char *drive, const char *more) {
    const char *path;
    sys_args_train(&args, model_folder, test_path(text), output);
    sys_args_add(&args, common);
    sys_args_add(&args, more);
    if (drive != NULL) {
        path = files_make_folder(drive);
        sys_args_add(&args, "--weights-tier nvme --state-tier nvme");
        sys_args_word(&args, "--nvme=%s:64MiB", path);
    }
}

/* ---- checks ----------------------------------------------------------------------------------------- */

static bool same_checkpoint(const char *a, const char *b) {
    return sys_same_checkpoint(test_path(a), test_path(b));
}

static struct ox_run_state state_of(const char *checkpoint) {
    struct ox_run_state state = {0};
    const char *const path = test_path(checkpoint);
    REQUIRE_OK(ox_checkpoint_verify(path));
    REQUIRE_OK(ox_checkpoint_read_state(path, &state));
    return state;
}

/* Every line is JSON, also where a loss is no number. */
static void check_metrics(const char *output, size_t line_count) {
    char *text = NULL;
    size_t bytes = 0, lines = 0;
    REQUIRE_OK(ox_file_read(test_pathf("%s/metrics.jsonl", output), 1 << 20, &text, &bytes));
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        json_error_t error;
        json_t *const object = json_loads(line, JSON_REJECT_DUPLICATES, &error);
        CHECK(json_is_integer(json_object_get(object, "step")));
        lines += strcmp(json_string_value(json_object_get(object, "type")), "save") != 0;
        json_decref(object);
    }
    CHECK(lines == line_count + 1); /* that of the end */
    free(text);
}

/* The third of five steps is skipped: its checkpoint equals that of the second, except for the counters. */
static void check_skip(const char *output, const char *drive) {
    char before[64], skipped[64], after[64], last[64];
    snprintf(before, sizeof before, "%s/checkpoint-2", output);
    snprintf(skipped, sizeof skipped, "%s/checkpoint-3", output);
    snprintf(after, sizeof after, "%s/checkpoint-4", output);
    snprintf(last, sizeof last, "%s/checkpoint-5", output);
    begin("once.txt", output, drive, "--max-steps 5 --max-nonfinite-steps 2 --max-grad-norm 0");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "warning: step 3 is skipped: loss ") != NULL);
    CHECK(strstr(process.outcome.err, "step 4 is skipped") == NULL);
    CHECK(strstr(process.outcome.out, "1 step was not finite and had no effect") != NULL);
    CHECK(same_checkpoint(before, skipped));
    const struct ox_run_state at_skip = state_of(skipped), at_end = state_of(last);
    CHECK(at_skip.step == 3 && at_skip.optimizer_steps == 2 && at_skip.cursor == 3);
    CHECK(at_skip.nonfinite_steps == 1 && at_skip.nonfinite_in_row == 1);
    CHECK(at_end.step == 5 && at_end.optimizer_steps == 4);
    CHECK(at_end.nonfinite_steps == 1 && at_end.nonfinite_in_row == 0);
    CHECK(state_of(after).optimizer_steps == 3);
    check_metrics(output, 5);
}

static void test_skipped(void) {
    write_windows("once.txt", 2, 1);
    check_skip("memory", NULL);
    check_skip("drives", "drive-a");
    CHECK(same_checkpoint("memory/checkpoint-5", "drives/checkpoint-5"));

    /* Stopped right after the skip, when the store is one step behind the checkpoint. */
    begin("once.txt", "stopped", "drive-b", "--max-steps 3 --max-grad-norm 0");
    sys_run_well(&args, &process);
    begin("once.txt", "stopped", "drive-b", "--max-steps 5 --max-grad-norm 0 --resume latest");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "resumed at step 3 of 5") != NULL);
    CHECK(same_checkpoint("memory/checkpoint-5", "stopped/checkpoint-5"));
}

/* From the third step on nothing is finite: the run ends at the fifth, and leaves the weights of the second. */
static void check_fatal(const char *output, const char *drive) {
    char before[64], at_end[64];
    snprintf(before, sizeof before, "%s/checkpoint-2", output);
    snprintf(at_end, sizeof at_end, "%s/checkpoint-5", output);
    begin("ever.txt", output, drive, "--max-steps 20 --max-nonfinite-steps 3 --max-grad-norm 0");
    sys_run(&args, &process);
    const char *const line = strstr(process.outcome.err, "offload: ");
    CHECK(process.outcome.exit_status == 1 && line != NULL && strchr(line, '\n')[1] == '\0');
    CHECK(line != NULL && strstr(line, "3 steps in a row") != NULL && strstr(line, "--max-nonfinite-steps") != NULL);
    CHECK(line != NULL && strstr(line, "checkpoint-5") != NULL && strstr(line, "--learning-rate") != NULL);
    CHECK(same_checkpoint(before, at_end));
    CHECK(state_of(at_end).nonfinite_in_row == 3 && state_of(at_end).optimizer_steps == 2);

    /* With other data the run resumes from there. */
    begin("good.txt", output, drive, "--max-steps 6 --max-grad-norm 0 --resume latest");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "resumed at step 5 of 6") != NULL);
    CHECK(strstr(process.outcome.err, "the data has changed since") != NULL);
    snprintf(at_end, sizeof at_end, "%s/checkpoint-6", output);
    CHECK(state_of(at_end).optimizer_steps == 3 && state_of(at_end).nonfinite_in_row == 0);
    CHECK(state_of(at_end).nonfinite_steps == 3);
}

static void test_fatal(void) {
    write_windows("ever.txt", 2, WINDOWS - 2);
    check_fatal("fatal", NULL);
    check_fatal("fatal-drives", "drive-c");
    CHECK(same_checkpoint("fatal/checkpoint-6", "fatal-drives/checkpoint-6"));
}

/* Without a single good step, the saved weights are the initial ones. */
static void test_first_step(void) {
    write_windows("always.txt", 0, WINDOWS);
    begin("always.txt", "first", NULL, "--max-steps 5 --max-nonfinite-steps 1 --learning-rate 100");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 1 && strstr(process.outcome.err, "1 step in a row") != NULL);
    CHECK(files_same("made/checkpoint-1/model.safetensors",
                        test_path("first/checkpoint-1/model.safetensors")));
}

int main(void) {
    make_model();
    test_skipped();
    test_fatal();
    test_first_step();
    return test_end();
}
