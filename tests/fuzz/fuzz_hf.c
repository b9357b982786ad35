/* A model folder: config.json, an index or none, and up to three safetensors files. The input holds the headers alone:
 * their lengths and data are made here, so that most of what it says about shapes is reached. */
#include "tests/fuzz/fuzz.h"

#include "base/file.h"
#include "engine/hf/hf.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

enum { FILE_COUNT = 3, PART_COUNT = 2 + FILE_COUNT, DATA_BYTES_MAX = 1 << 16, PATTERN_BYTES = 16 };

static struct { const char *folder, *config, *index, *single, *shards[FILE_COUNT]; } paths;

static void open_paths(void) {
    if (paths.folder == NULL) {
        paths.config = fuzz_path("hf/config.json");
        paths.index = fuzz_path("hf/model.safetensors.index.json");
        paths.single = fuzz_path("hf/model.safetensors");
        paths.shards[0] = fuzz_path("hf/a.safetensors");
        paths.shards[1] = fuzz_path("hf/b.safetensors");
        paths.shards[2] = fuzz_path("hf/c.safetensors");
        paths.folder = fuzz_path("hf");
        struct ox_hf_folder *folder = NULL;
        fuzz_check_failure(ox_hf_open(test_folder(), true, &folder), test_folder());
        ox_hf_close(&folder);
    }
}

/* The data that the header asks for, as far as it can be. */
static size_t data_bytes_of(const struct fuzz_part *header) {
    json_t *const json = json_loadb(header->text, header->bytes, 0, NULL);
    const char *name;
    json_t *info;
    json_int_t end = 0;
    json_object_foreach(json, name, info) {
        const json_int_t one = json_integer_value(json_array_get(json_object_get(info, "data_offsets"), 1));
        end = one > end && one <= DATA_BYTES_MAX ? one : end;
    }
    json_decref(json);
    return (size_t)end;
}

static void write_weights(const char *path, const struct fuzz_part *header) {
    if (header->bytes == 0) {
        fuzz_remove(path);
        return;
    }
    const uint64_t header_bytes = header->bytes;
    const size_t data_bytes = data_bytes_of(header), bytes = sizeof header_bytes + header->bytes + data_bytes;
    unsigned char *const file = malloc(bytes), *const data = file + bytes - data_bytes;
    FUZZ_CHECK(file != NULL);
    memcpy(file, &header_bytes, sizeof header_bytes);
    memcpy(file + sizeof header_bytes, header->text, header->bytes);
    for (size_t i = 0; i < data_bytes; i++) {
        data[i] = (unsigned char)(i % PATTERN_BYTES); /* tensors are equal or not by their places */
    }
    fuzz_write(path, file, bytes);
    free(file);
}

static void check_folder(const struct ox_hf_folder *folder) {
    const struct ox_model *const model = ox_hf_model(folder);
    FUZZ_CHECK(ox_hf_has_weights(folder) && json_is_object(ox_hf_config(folder)));
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const uint64_t count = model->tensors[i].count;
        FUZZ_CHECK(count > 0 && count <= DATA_BYTES_MAX);
        float *const values = malloc(count * sizeof *values);
        FUZZ_CHECK(values != NULL && ox_hf_read(folder, i, 0, count, values) == OX_OK);
        FUZZ_CHECK(ox_hf_read(folder, i, count - 1, 1, values) == OX_OK);
        FUZZ_CHECK(strncmp(ox_hf_tensor_path(folder, i), paths.folder, strlen(paths.folder)) == 0);
        free(values);
    }
}

int fuzz_hf(const uint8_t *data, size_t bytes) {
    struct fuzz_part parts[PART_COUNT];
    static const struct fuzz_part none;
    struct ox_hf_folder *folder = NULL;
    open_paths();
    fuzz_split(data, bytes, parts, PART_COUNT);
    const bool sharded = parts[1].bytes > 0;
    fuzz_write_part(paths.config, &parts[0]);
    fuzz_write_part(paths.index, &parts[1]);
    write_weights(paths.single, sharded ? &none : &parts[2]);
    for (size_t i = 0; i < FILE_COUNT; i++) {
        write_weights(paths.shards[i], sharded ? &parts[2 + i] : &none);
    }
    const enum ox_status status = ox_hf_open(paths.folder, true, &folder);
    fuzz_accepted = status == OX_OK;
    if (status == OX_OK) {
        check_folder(folder);
        ox_hf_close(&folder);
        FUZZ_CHECK(ox_hf_open(paths.config, true, &folder) == OX_OK && !ox_hf_has_weights(folder));
        ox_hf_close(&folder);
    } else {
        FUZZ_CHECK(folder == NULL);
        fuzz_check_failure(status, paths.folder);
    }
    return 0;
}
