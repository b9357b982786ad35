/* --dtype fp16 as a user meets it: a step that overflows changes nothing but the loss scale, is no bad step and does
 * not advance the schedule; the scale goes into checkpoint and store, so that a run that ended, or was killed, right
 * after such a step goes on with the same bits; a fixed scale, and a scale that cannot be lowered, end the run. Folders
 * in fp16 come and go without a change of bits. */
#include "base/file.h"
#include "base/planes.h"
#include "engine/checkpoint/checkpoint.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <string.h>

enum { STEPS = 14 };

/* The scale begins where the first steps overflow, and grows until some do again. */
static const char grows[] = "--initial-scale-power 25 --loss-scale-window 3 --learning-rate 1e-3 "
                            "--lr-scheduler-type linear --warmup-steps 2 --save-steps 1 --save-total-limit 0";
static const char common[] = "--dtype fp16 --batch-size 2 --max-seq-length 16 --compute-threads 1 "
                             "--optimizer-threads 1 --host-mem 64MiB --eval-fraction 0";

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *text_path;

static void begin(const char *output, const char *model, unsigned steps, const char *more) {
    sys_args_train(&args, model, text_path, output);
    sys_args_add(&args, common);
    sys_args_word(&args, "--max-steps=%u", steps);
    sys_args_add(&args, more);
}

static struct ox_run_state state_of(const char *output, unsigned step) {
    struct ox_run_state state = {0};
    REQUIRE_OK(ox_checkpoint_read_state(test_pathf("%s/checkpoint-%u", output, step), &state));
    return state;
}

/* The lines of the steps, as JSON. */
static json_t *steps_of(const char *output) {
    json_t *const steps = json_array();
    char *text = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read(test_pathf("%s/metrics.jsonl", output), 1 << 20, &text, &bytes));
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        json_t *const object = json_loads(line, 0, NULL);
        const char *const type = json_string_value(json_object_get(object, "type"));
        if (type != NULL && strcmp(type, "step") == 0) {
            json_array_append(steps, object);
        }
        json_decref(object);
    }
    free(text);
    return steps;
}

static bool same_weights(const char *output, unsigned a, unsigned b) {
    char first[OX_PATH_BYTES];
    snprintf(first, sizeof first, "%s", test_pathf("%s/checkpoint-%u/model.safetensors", output, a));
    return files_same(first, test_pathf("%s/checkpoint-%u/model.safetensors", output, b));
}

/* Follows GradScaler and the schedule by the definitions, from the steps that overflowed. Returns how many did. */
static unsigned check_steps(const char *output) {
    json_t *const steps = steps_of(output);
    double scale = 0x1p25;
    unsigned clean = 0, skipped = 0;
    size_t idx;
    const json_t *step;
    CHECK(json_array_size(steps) == STEPS);
    json_array_foreach(steps, idx, step) {
        const bool skips = json_is_true(json_object_get(step, "skipped"));
        const unsigned place = (unsigned)idx - skipped; /* in the schedule */
        const double rate = place < 2 ? 1e-3 * place / 2 : 1e-3 * (STEPS - place) / (STEPS - 2);
        CHECK(json_number_value(json_object_get(step, "loss_scale")) == scale);
        CHECK(fabs(json_number_value(json_object_get(step, "learning_rate")) - rate) <= 1e-12);
        CHECK(json_is_null(json_object_get(step, "grad_norm")) == skips);
        CHECK(!skips || idx == 0 || same_weights(output, (unsigned)idx, (unsigned)idx + 1));
        skipped += skips;
        clean = skips ? 0 : clean + 1;
        scale = skips ? scale / 2 : clean == 3 ? scale * 2 : scale;
        clean = clean == 3 ? 0 : clean;
        const struct ox_run_state state = state_of(output, (unsigned)idx + 1);
        CHECK(ox_run_state_scale(&state) == scale && state.growth_tracker == clean);
        CHECK(state.overflow_steps == skipped && state.optimizer_steps == idx + 1 - skipped);
        CHECK(state.nonfinite_steps == 0 && state.nonfinite_in_row == 0);
    }
    json_decref(steps);
    return skipped;
}

static void test_skips(void) {
    begin("whole", model_path, STEPS, grows);
    sys_args_add(&args, "--from-scratch");
    sys_run_well(&args, &process);
    const unsigned skipped = check_steps("whole");
    printf("%u of %d steps overflowed\n", skipped, STEPS);
    CHECK(skipped >= 2 && skipped <= STEPS - 6);
    CHECK(sys_said(&process, "step 1 is skipped: gradients overflow at a loss scale of 33554432, which is 16777216 "
                             "from here on"));
    CHECK(!sys_said(&process, "warning"));
    CHECK(strstr(process.outcome.out, "overflowed in fp16 and had no effect") != NULL);
}

static void begin_part(const char *name, bool resumes, bool on_drive) {
    begin(name, model_path, STEPS, grows);
    sys_args_add(&args, resumes ? "--resume latest" : "--from-scratch");
    if (on_drive) {
        sys_args_add(&args, "--weights-tier nvme --state-tier nvme");
        sys_args_drive(&args, "parts-drive", "32MiB");
    }
}

/* Ended after some steps, among them the first that overflow; on a drive killed there. */
static void test_resumes(void) {
    for (int on_drive = 0; on_drive <= 1; on_drive++) {
        const char *const name = on_drive ? "drive-parts" : "parts";
        unsigned cuts = 0;
        for (unsigned step = 1; step < STEPS; step += step < 3 ? 1 : 4) {
            char words[32];
            snprintf(words, sizeof words, "\nstep %u/", step);
            begin_part(name, step > 1, on_drive);
            sys_args_leash(&args);
            sys_start(&args, &process);
            if (sys_await(&process, words)) { /* else it went on behind that step, and has come to its end */
                kill(process.pid, on_drive ? SIGKILL : SIGUSR2);
                cuts++;
            }
            sys_wait(&process);
        }
        begin_part(name, true, on_drive);
        sys_run_well(&args, &process);
        printf("%s: ended %u times on the way\n", name, cuts);
        CHECK(cuts > 0 && sys_same_runs("whole", name, STEPS));
    }
}

/* A fixed scale that overflows makes bad steps; one that has come to 1 ends the run, with what was before it saved. */
static void test_ends(void) {
    begin("fixed", model_path, STEPS, "--from-scratch --loss-scale 1e9 --max-nonfinite-steps 2");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 1 && sys_said(&process, "2 steps in a row had a loss or gradient"));
    CHECK(state_of("fixed", 2).nonfinite_steps == 2 && state_of("fixed", 2).scale_code == 0);
    begin("floor", model_path, 60, "--from-scratch --initial-scale-power 1 --learning-rate 100 --max-grad-norm 0 "
          "--lr-scheduler-type constant");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 1);
    CHECK(sys_said(&process, "gradients overflow in fp16 even at a loss scale of 1; what was before is in "));
}

static void export(const char *from, const char *to, const char *words) {
    sys_args_begin(&args, "export");
    sys_args_word(&args, "%s", test_path(from));
    sys_args_word(&args, "--output=%s", test_path(to));
    sys_args_add(&args, words);
}

static bool same_model(const char *a, const char *b) {
    char path[OX_PATH_BYTES];
    snprintf(path, sizeof path, "%s", test_pathf("%s/model.safetensors", a));
    return files_same(path, test_pathf("%s/model.safetensors", b));
}

/* Halves in, halves out: the same bytes of weights, by export and by runs whose only step overflows. */
static void test_folders(void) {
    export("whole/checkpoint-14", "halves", "--save-dtype fp16");
    sys_run_well(&args, &process);
    export("halves", "again", ""); /* auto: as it is */
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.out, "F16") != NULL && same_model("halves", "again"));
    begin("trained", test_path("halves"), 1, "--initial-scale-power 40 --save-dtype fp16");
    sys_run_well(&args, &process);
    CHECK(same_model("halves", "trained/checkpoint-1"));
    export("trained/checkpoint-1", "auto", "");
    sys_run_well(&args, &process);
    CHECK(same_model("halves", "auto"));
}

/* A weight beyond the halves is refused by its tensor's name, and nothing is left. */
static void test_too_large(void) {
    static const float large = -70000;
    char *data = NULL;
    size_t bytes = 0;
    uint64_t header_bytes = 0;
    json_int_t begins = 0, ends = 0;
    export("whole/checkpoint-14", "wide", "--save-dtype fp32");
    sys_run_well(&args, &process);
    const char *const path = test_path("wide/model.safetensors");
    REQUIRE_OK(ox_file_read(path, 1 << 24, &data, &bytes));
    memcpy(&header_bytes, data, sizeof header_bytes);
    json_t *const header = json_loadb(data + 8, header_bytes, 0, NULL);
    CHECK(json_unpack(header, "{s:{s:[I, I]}}", "model.norm.weight", "data_offsets", &begins, &ends) == 0);
    files_patch(path, (int64_t)(8 + header_bytes + (uint64_t)begins), &large, sizeof large);
    json_decref(header);
    free(data);
    export("wide", "wide-halves", "--save-dtype fp16");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2);
    CHECK(sys_said(&process, "tensor \"model.norm.weight\": a weight is -70000, but fp16 ends at 65504"));
    CHECK(!files_exist("wide-halves"));
}

int main(void) {
    model_path = sys_write_model("llama");
    text_path = sys_write_text(8000);
    test_skips();
    test_resumes();
    test_ends();
    test_folders();
    test_too_large();
    return test_end();
}
