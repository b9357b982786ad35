/* Drives of different speed: each gets its share of the state by the profile that the run began with; the run resumes
 * with another profile, and the bits are those of equal drives. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { STEPS = 4 };

static const char words[] = "--gradient-accumulation-steps 2 --max-seq-length 16 --compute-threads 1"
                            " --optimizer-threads 1 --chunk-elems 2048 --weights-tier nvme --state-tier nvme"
                            " --activation-tier host --lr-scheduler-type constant --save-steps 0 --eval-steps 0";

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *text_path, *profile_path;

/* The second drive is three times as fast as the first. */
static const char profile[] =
    "{\"offload_profile\": 2, \"name\": \"two drives\", \"source\": \"made up\", \"gpu\": null, \"host\":"
    " {\"memory_bytes\": 8e9, \"cores\": 2, \"dram_bytes_per_second\": 20e9, \"core_flops_per_second\": 20e9,"
    " \"flops_per_second\": 40e9, \"adam\": {\"threads\": 1, \"f32_seconds_per_param\": 2e-9}}, \"drives\": ["
    "{\"name\": \"slow\", \"read_bytes_per_second\": 1e9, \"write_bytes_per_second\": 1e9,"
    " \"mix_bytes_per_second\": 1e9, \"latency_seconds\": 1e-4, \"flush_seconds\": 1e-3},"
    "{\"name\": \"fast\", \"read_bytes_per_second\": 3e9, \"write_bytes_per_second\": 3e9,"
    " \"mix_bytes_per_second\": 3e9, \"latency_seconds\": 1e-4, \"flush_seconds\": 1e-3}], \"task_seconds\": 1e-5}";

static void begin(const char *name, unsigned steps, bool profiled) {
    sys_args_train(&args, model_path, text_path, name);
    sys_args_word(&args, "--max-steps=%u", steps);
    sys_args_add(&args, words);
    for (unsigned i = 0; i < 2; i++) {
        sys_args_drive(&args, test_pathf("%s-drive-%u", name, i), "64MiB");
    }
    if (profiled) {
        sys_args_word(&args, "--profile=%s", profile_path);
    }
}

static long store_bytes(const char *name, unsigned drive) {
    struct stat info;
    return stat(test_pathf("%s-drive-%u/offload-store-%u.ox", name, drive, drive), &info) == 0
               ? (long)info.st_size : -1;
}

static void compare(const char *name) {
    const char *const left = test_pathf("alike/checkpoint-%u", STEPS);
    const char *const right = test_pathf("%s/checkpoint-%u", name, STEPS);
    CHECK(sys_same_checkpoint(left, right));
}

int main(void) {
    model_path = sys_write_model("llama");
    text_path = sys_write_text(1 << 16);
    profile_path = files_write_text("profile.json", profile);
    begin("alike", STEPS, false);
    sys_run_well(&args, &process);
    begin("uneven", STEPS, true);
    sys_run_well(&args, &process);
    compare("uneven");
    const long alike[] = {store_bytes("alike", 0), store_bytes("alike", 1)};
    const long uneven[] = {store_bytes("uneven", 0), store_bytes("uneven", 1)};
    printf("bytes on two drives: alike %ld and %ld, uneven %ld and %ld\n", alike[0], alike[1], uneven[0], uneven[1]);
    CHECK(alike[0] > 0 && uneven[0] > 0 && alike[0] + alike[1] == uneven[0] + uneven[1]);
    CHECK(labs(alike[1] - alike[0]) * 10 < uneven[1] - uneven[0]);

    begin("later", STEPS / 2, true);
    sys_run_well(&args, &process);
    const long before = store_bytes("later", 0);
    begin("later", STEPS, false);
    sys_args_add(&args, "--resume-from-checkpoint latest");
    sys_run_well(&args, &process);
    compare("later");
    CHECK(store_bytes("later", 0) == before);
    text_path = test_path("later");
    char *const end = sys_curve(text_path, "end");
    CHECK(strstr(end, "\"retries\":0") != NULL && strstr(end, "\"store_read_bytes\":0") == NULL);
    free(end);
    return test_end();
}
