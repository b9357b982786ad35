/* `offload doctor` as a user of a GPU meets it: the program, the plugin beside it or installed, the driver's library
 * where the loader looks. Plugin and library are those of tests/simt. The program is $OX_BIN, else build/offload. */
#include "base/file.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sys_args args;
static struct sys_process process;

/* The exit status of `offload doctor`, whose answer is in process.outcome.out. */
static int run(const char *format) {
    sys_args_begin(&args, "doctor");
    sys_args_word(&args, "--format=%s", format);
    sys_run(&args, &process);
    return process.outcome.exit_status;
}

/* The record of an item; NULL where there is none. */
static const json_t *record(const json_t *report, const char *group, const char *name) {
    size_t i;
    json_t *item;
    json_array_foreach(report, i, item) {
        if (strcmp(json_string_value(json_object_get(item, "group")), group) == 0 &&
            strcmp(json_string_value(json_object_get(item, "name")), name) == 0) {
            return item;
        }
    }
    return NULL;
}

static bool holds(const json_t *item, const char *key, const char *text) {
    const char *const value = json_string_value(json_object_get(item, key));
    return value != NULL && strstr(value, text) != NULL;
}

int main(void) {
    char real_plugin[PATH_MAX], fake[PATH_MAX];
    const char *const program = getenv("OX_BIN") != NULL ? getenv("OX_BIN") : "build/offload";
    const char *const plugin = test_path("bin/liboffload_cuda.so"), *const copy = test_path("bin/offload");
    test_build_path("liboffload_simt.so", real_plugin);
    test_build_path("fake", fake);
    files_make_folder("bin");
    REQUIRE_OK(ox_file_copy(program, copy));
    REQUIRE_OK(ox_file_copy(real_plugin, plugin));
    CHECK(chmod(copy, 0700) == 0);
    setenv("OX_BIN", copy, 1);
    setenv("LD_LIBRARY_PATH", fake, 1);

    json_error_t error;
    CHECK(run("json") == 0);
    json_t *report = json_loads(process.outcome.out, 0, &error);
    CHECK(json_is_array(report));
    CHECK(holds(record(report, "GPU", "NVIDIA driver"), "value", "580.65.06, for CUDA 13.0"));
    CHECK(holds(record(report, "GPU", "CUDA plugin"), "value", plugin));
    CHECK(holds(record(report, "GPU 0", "device"), "value", "emulated"));
    CHECK(holds(record(report, "GPU 0", "PCIe"), "value", "x16"));
    CHECK(record(report, "GPU", "GPU") == NULL);
    json_decref(report);

    /* As `make install` places it. */
    files_make_folder("lib/offload");
    const char *const installed = test_path("lib/offload/liboffload_cuda.so");
    CHECK(rename(plugin, installed) == 0 && run("json") == 0);
    report = json_loads(process.outcome.out, 0, &error);
    CHECK(holds(record(report, "GPU", "CUDA plugin"), "value", "/lib/offload/liboffload_cuda.so"));
    CHECK(record(report, "GPU 0", "device") != NULL);
    json_decref(report);

    CHECK(unlink(installed) == 0 && run("json") == 0);
    report = json_loads(process.outcome.out, 0, &error);
    const json_t *const missing = record(report, "GPU", "CUDA plugin");
    CHECK(holds(missing, "value", "none") && holds(missing, "warning", "does not open"));
    CHECK(holds(missing, "remedy", "make cuda=1"));
    json_decref(report);
    CHECK(run("text") == 0);
    return test_end();
}
