/* trainer_state.json of a checkpoint, and the `latest` beside the checkpoints. What is read is written and read again
 * as the same; whatever `latest` says, only a checkpoint of the folder is found. */
#include "tests/fuzz/fuzz.h"

#include "base/file.h"
#include "engine/checkpoint/checkpoint_internal.h"

#include <string.h>

enum { PART_COUNT = 2 };

static const char *run, *checkpoint, *again, *manifest_path, *latest_path, *files[3];

/* A manifest made anew from the checkpoint's files verifies. */
static void check_collected(void) {
    struct ox_manifest manifest = {.state = {.version = OX_RUN_STATE_VERSION}, .weights_dtype = OX_DTYPE_F32};
    FUZZ_CHECK(ox_manifest_collect(checkpoint, &manifest) == OX_OK && manifest.list.count == 2);
    FUZZ_CHECK(ox_manifest_write(checkpoint, &manifest) == OX_OK && ox_checkpoint_verify(checkpoint) == OX_OK);
    ox_manifest_close(&manifest);
}

/* The files that a manifest may list: these two, with what is in them. */
static void open_paths(void) {
    if (run == NULL) {
        files[0] = fuzz_path("run/checkpoint-7/config.json");
        files[1] = fuzz_path("run/checkpoint-7/model.safetensors");
        files[2] = fuzz_path("again/trainer_state.json");
        fuzz_write(files[0], "{}\n", 3);
        fuzz_write(files[1], "weights", 7);
        manifest_path = fuzz_path("run/checkpoint-7/trainer_state.json");
        again = fuzz_path("again");
        latest_path = fuzz_path("run/latest");
        checkpoint = fuzz_path("run/checkpoint-7");
        run = fuzz_path("run");
        check_collected();
    }
}

static bool same_state(const struct ox_run_state *a, const struct ox_run_state *b) {
    struct ox_run_state left = *a, right = *b;
    const bool same = memcmp(&left.best_eval_loss, &right.best_eval_loss, sizeof left.best_eval_loss) == 0;
    left.best_eval_loss = right.best_eval_loss = 0.0;
    return same && memcmp(&left, &right, sizeof left) == 0;
}

static void check_written(const struct ox_manifest *manifest) {
    struct ox_manifest other;
    FUZZ_CHECK(ox_manifest_write(again, manifest) == OX_OK);
    FUZZ_CHECK(ox_manifest_read(again, &other) == OX_OK);
    FUZZ_CHECK(same_state(&manifest->state, &other.state) && manifest->weights_dtype == other.weights_dtype);
    FUZZ_CHECK(manifest->list.count == other.list.count);
    for (uint32_t i = 0; i < other.list.count; i++) {
        const struct ox_listed_file *const a = &manifest->list.files[i], *const b = &other.list.files[i];
        FUZZ_CHECK(strcmp(a->name, b->name) == 0 && a->bytes == b->bytes);
        FUZZ_CHECK(a->hash.low == b->hash.low && a->hash.high == b->hash.high);
    }
    ox_manifest_close(&other);
}

static uint32_t seen_count;

static void see(void *context, const char *name, uint64_t bytes, enum ox_status status) {
    (void)bytes;
    (void)status;
    (void)context;
    FUZZ_CHECK(strchr(name, '/') == NULL && name[0] != '.');
    seen_count++;
}

static void check_latest(bool whole) {
    char path[OX_PATH_BYTES];
    const enum ox_status status = ox_checkpoint_find_latest(run, path);
    if (status == OX_OK) {
        FUZZ_CHECK(whole && strcmp(path, checkpoint) == 0);
    } else {
        FUZZ_CHECK(!whole);
        fuzz_check_failure(status, run);
    }
}

int fuzz_manifest(const uint8_t *data, size_t bytes) {
    struct fuzz_part parts[PART_COUNT];
    struct ox_manifest manifest;
    struct ox_run_state state;
    open_paths();
    fuzz_split(data, bytes, parts, PART_COUNT);
    fuzz_write_part(manifest_path, &parts[0]);
    fuzz_write_part(latest_path, &parts[1]);
    enum ox_status status = ox_manifest_read(checkpoint, &manifest);
    fuzz_accepted = status == OX_OK;
    FUZZ_CHECK(ox_checkpoint_read_state(checkpoint, &state) == status);
    if (status != OX_OK) {
        FUZZ_CHECK(manifest.list.files == NULL && manifest.list.count == 0);
        fuzz_check_failure(status, manifest_path);
        FUZZ_CHECK(ox_checkpoint_verify(checkpoint) == status);
        check_latest(false);
        return 0;
    }
    FUZZ_CHECK(same_state(&manifest.state, &state));
    check_written(&manifest);
    const bool whole = ox_manifest_check_sizes(checkpoint, &manifest) == OX_OK;
    seen_count = 0;
    status = ox_checkpoint_verify_each(checkpoint, see, NULL);
    FUZZ_CHECK(seen_count == manifest.list.count && (status != OX_OK || whole));
    FUZZ_CHECK(ox_checkpoint_verify(checkpoint) == status);
    if (status != OX_OK) {
        fuzz_check_failure(status, checkpoint);
    }
    check_latest(whole);
    ox_manifest_close(&manifest);
    return 0;
}
