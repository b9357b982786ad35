/* `offload average`: the mean of checkpoints, element by element, and what it refuses. */
#include "engine/hf/safetensors.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <string.h>

static struct sys_args args;
static struct sys_process process;
static const char *text;

static void train(const char *model, const char *output, const char *more) {
    sys_args_train(&args, model, text, output);
    sys_args_add(&args, "--max-seq-length 16 --batch-size 2 --learning-rate 0.01 --save-steps 2 --max-steps 6 --seed 5 "
                 "--host-mem 64MiB --compute-threads 1 --optimizer-threads 1 --eval-fraction 0.1");
    sys_args_add(&args, more);
    sys_run_well(&args, &process);
}

static void begin(const char *output, const char *more) {
    sys_args_begin(&args, "average");
    sys_args_word(&args, "--output=%s", test_path(output));
    sys_args_add(&args, more);
}

static void refuse(const char *says) {
    sys_run(&args, &process);
    if (process.outcome.exit_status != 2 || !sys_said(&process, says)) {
        sys_complain(&process, says);
    }
}

enum { ELEMS_MAX = 1 << 16 };

static void read_tensor(const struct ox_st_file *file, uint32_t idx, float *values) {
    const struct ox_st_entry *const entry = ox_st_entry(file, idx);
    REQUIRE_OK(entry->count <= ELEMS_MAX ? ox_st_read_f32(file, entry, 0, entry->count, values) : OX_E_NOMEM);
}

/* torch.stack(tensors).double().mean(0).float() */
static void check_mean(const char *mean, const char *const *parts, uint32_t count) {
    static float values[ELEMS_MAX], part[ELEMS_MAX];
    static double sums[ELEMS_MAX];
    struct ox_st_file *file = NULL, *each[3] = {NULL};
    uint32_t wrong = 0;
    REQUIRE_OK(ox_st_open(test_pathf("%s/model.safetensors", mean), &file));
    for (uint32_t k = 0; k < count; k++) {
        REQUIRE_OK(ox_st_open(test_pathf("%s/model.safetensors", parts[k]), &each[k]));
        CHECK(ox_st_count(each[k]) == ox_st_count(file));
    }
    for (uint32_t i = 0; i < ox_st_count(file); i++) {
        const uint64_t elems = ox_st_entry(file, i)->count;
        read_tensor(file, i, values);
        for (uint32_t k = 0; k < count; k++) {
            read_tensor(each[k], i, part);
            for (uint64_t at = 0; at < elems; at++) {
                sums[at] = (k > 0 ? sums[at] : 0) + (double)part[at];
            }
        }
        for (uint64_t at = 0; at < elems; at++) {
            wrong += values[at] != (float)(sums[at] / count);
        }
    }
    CHECK(wrong == 0 && ox_st_count(file) > 10);
    for (uint32_t k = 0; k < count; k++) {
        ox_st_close(&each[k]);
    }
    ox_st_close(&file);
}

int main(void) {
    static const char *const three[] = {"run/checkpoint-2", "run/checkpoint-4", "run/checkpoint-6"};
    text = sys_write_text(4000);
    train(sys_write_model("llama"), "run", "");
    begin("all", "");
    sys_args_word(&args, "%s", test_path("run"));
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.out, "the mean of 3 folders") != NULL);
    check_mean("all", three, 3);
    begin("two", "");
    sys_args_word(&args, "%s", test_path(three[0]));
    sys_args_word(&args, "%s", test_path(three[2]));
    sys_run_well(&args, &process);
    check_mean("two", (const char *const[]){three[0], three[2]}, 2);
    /* A rounded checkpoint counts with its exact weights. */
    train(sys_write_model("llama"), "rounded", "--save-dtype bf16");
    begin("exact", "--save-dtype fp32");
    sys_args_word(&args, "%s", test_path("rounded"));
    sys_run_well(&args, &process);
    const char *const exact = plain_pathf("%s", test_path("exact/model.safetensors"));
    CHECK(files_same(test_path("all/model.safetensors"), exact));
    begin("one", "");
    sys_args_word(&args, "%s", test_path(three[0]));
    refuse("is alone, and a mean is of several");
    begin("weighted", "");
    sys_args_word(&args, "%s:0.5", test_path("run"));
    refuse("the mean is plain");
    train(sys_write_model("gpt2"), "other", "");
    begin("mixed", "");
    sys_args_word(&args, "%s", test_path(three[0]));
    sys_args_word(&args, "%s", test_path("other/checkpoint-2"));
    refuse("has other tensors than");
    train(test_path(three[2]), "adapted", "--lora-r 2");
    begin("adapters", "");
    sys_args_word(&args, "%s", test_path("adapted"));
    refuse("is an adapter, and the mean of two products");
    begin("adapters", "");
    sys_args_word(&args, "%s", test_path("adapted/checkpoint-2"));
    sys_args_word(&args, "%s", test_path("adapted/checkpoint-4"));
    refuse("is an adapter, and the mean of two products");
    sys_args_begin(&args, "average");
    refuse("PATH is missing");
    CHECK(!files_exist("one") && !files_exist("mixed") && !files_exist("adapters"));
    return test_end();
}
