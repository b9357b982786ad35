/* `offload doctor` as a user of a GPU meets it: the program, the plugin beside it or installed, the driver's library
 * where the loader looks. Plugin and library are those of tests/simt. The program is $OX_BIN, else build/offload. */
#include "tests/kit/test.h"

#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char out_path[PATH_MAX], program_path[PATH_MAX];

static bool copy_file(const char *from, const char *to) {
    enum { PIECE_BYTES = 1 << 16 };
    static char piece[PIECE_BYTES];
    FILE *const in = fopen(from, "rb"), *const out = fopen(to, "wb");
    size_t got = 0;
    bool whole = in != NULL && out != NULL;
    while (whole && (got = fread(piece, 1, PIECE_BYTES, in)) > 0) {
        whole = fwrite(piece, 1, got, out) == got;
    }
    if (in != NULL) {
        fclose(in);
    }
    return out != NULL && fclose(out) == 0 && whole && chmod(to, 0700) == 0;
}

static int run(const char *format) {
    const pid_t child = fork();
    if (child == 0) {
        const int out = open(out_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (out >= 0 && dup2(out, STDOUT_FILENO) >= 0) {
            execl(program_path, "offload", "doctor", "--format", format, (char *)NULL);
        }
        _exit(126);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
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
    char build[PATH_MAX], path[PATH_MAX + 64], plugin[PATH_MAX], installed[PATH_MAX];
    test_build_path("", build);
    const char *const folder = test_folder();
    snprintf(out_path, sizeof out_path, "%s/out", folder);
    snprintf(path, sizeof path, "%s/bin", folder);
    CHECK(mkdir(path, 0700) == 0);
    snprintf(program_path, sizeof program_path, "%s/bin/offload", folder);
    snprintf(plugin, sizeof plugin, "%s/bin/liboffload_cuda.so", folder);
    snprintf(path, sizeof path, "%s/liboffload_simt.so", build);
    CHECK(copy_file(getenv("OX_BIN") != NULL ? getenv("OX_BIN") : "build/offload", program_path));
    CHECK(copy_file(path, plugin));
    snprintf(path, sizeof path, "%s/fake", build);
    setenv("LD_LIBRARY_PATH", path, 1);

    json_error_t error;
    CHECK(run("json") == 0);
    json_t *report = json_load_file(out_path, 0, &error);
    CHECK(json_is_array(report));
    CHECK(holds(record(report, "GPU", "NVIDIA driver"), "value", "580.65.06, for CUDA 13.0"));
    CHECK(holds(record(report, "GPU", "CUDA plugin"), "value", plugin));
    CHECK(holds(record(report, "GPU 0", "device"), "value", "emulated"));
    CHECK(holds(record(report, "GPU 0", "PCIe"), "value", "x16"));
    CHECK(record(report, "GPU", "GPU") == NULL);
    json_decref(report);

    /* As `make install` places it. */
    snprintf(path, sizeof path, "%s/lib", folder);
    snprintf(installed, sizeof installed, "%s/lib/offload/liboffload_cuda.so", folder);
    CHECK(mkdir(path, 0700) == 0);
    snprintf(path, sizeof path, "%s/lib/offload", folder);
    CHECK(mkdir(path, 0700) == 0 && rename(plugin, installed) == 0 && run("json") == 0);
    report = json_load_file(out_path, 0, &error);
    CHECK(holds(record(report, "GPU", "CUDA plugin"), "value", "/lib/offload/liboffload_cuda.so"));
    CHECK(record(report, "GPU 0", "device") != NULL);
    json_decref(report);

    CHECK(unlink(installed) == 0 && run("json") == 0);
    report = json_load_file(out_path, 0, &error);
    const json_t *const missing = record(report, "GPU", "CUDA plugin");
    CHECK(holds(missing, "value", "none") && holds(missing, "warning", "does not open"));
    CHECK(holds(missing, "remedy", "make cuda=1"));
    json_decref(report);
    CHECK(run("text") == 0);
    return test_end();
}
