/* Says what a file is that `offload inspect` does not describe, and which command is for it. */
#include "tools/command/inspect_other.h"

#include "base/bytes.h"
#include "base/file.h"
#include "engine/data/data.h"
#include "engine/data/foreign_files.h"
#include "engine/text/text.h"

#include <stdbool.h>
#include <string.h>

enum { START_BYTES = 4096 };

struct named {
    const char *ending; /* how the path ends */
    const char *what, *command;
};

static const char shows_rows[] = "`offload tokenize --model DIR --data FILE --show` shows what is trained of it";

/* The first row whose ending fits counts. */
static const struct named kinds[] = {
    {"metrics.jsonl", "the metrics of a run", "`offload top RUN` shows them; for `inspect` give the run's folder"},
    {".jsonl", "a file of rows (JSON lines)", shows_rows},
    {".ndjson", "a file of rows (JSON lines)", shows_rows},
    {".yaml", "a configuration", "`offload plan --config FILE` shows its plan"},
    {".yml", "a configuration", "`offload plan --config FILE` shows its plan"},
    {"trace.bin", "the trace of a run", "`offload trace report RUN` shows it"},
    {"tokenizer.json", "a tokenizer", "`offload tokenize --model DIR --data FILE` uses the one in the folder DIR"},
    {"tokenizer_config.json", "part of a model folder", "give the folder"},
    {"generation_config.json", "part of a model folder", "give the folder"},
    {"model.safetensors.index.json", "part of a model folder", "give the folder"},
    {"trainer_state.json", "part of a checkpoint", "give the folder"},
    {"run.json", "part of a run", "give the run's folder"},
    {"run-copy.json", "part of a run", "give the run's folder"},
    {"machine.json", "a profile of a machine", "`offload plan --profile FILE` reads it"},
    {NULL, NULL, NULL},
};

static bool ends_with(const char *path, const char *ending) {
    const size_t bytes = strlen(path), length = strlen(ending);
    return bytes >= length && strcmp(path + bytes - length, ending) == 0;
}

static enum ox_status refuse(const char *path, const char *what, const char *command) {
    return ox_fail(OX_E_CONFIG, "%s: is %s, not a model, checkpoint or store; %s", path, what, command);
}

/* A safetensors file begins with the length of its header, which is an object. */
static bool is_safetensors(const unsigned char *start, size_t bytes) {
    return bytes > sizeof(uint64_t) && start[sizeof(uint64_t)] == '{';
}

/* A character may be cut off at the end of what was read. */
static bool is_text(const unsigned char *start, size_t bytes) {
    const size_t good = ox_utf8_valid((const char *)start, bytes);
    return memchr(start, 0, bytes) == NULL && (good == bytes || (bytes == START_BYTES && bytes - good < 4));
}

static enum ox_status refuse_by_name(const char *path) {
    for (const struct named *kind = kinds; kind->ending != NULL; kind++) {
        if (ends_with(path, kind->ending)) {
            return refuse(path, kind->what, kind->command);
        }
    }
    return OX_OK;
}

static enum ox_status refuse_tokens(const char *path) {
    enum ox_data_kind kind = OX_DATA_BYTES;
    const enum ox_status status = ox_data_find_kind(path, &kind);
    return status == OX_OK && kind != OX_DATA_BYTES
               ? refuse(path, "a file of tokens", "`offload train --data FILE`, `plan` and `eval` read it")
               : status;
}

enum ox_status ox_inspect_refuse_other(const char *path) {
    unsigned char start[START_BYTES] = {0};
    uint64_t file_bytes = 0;
    enum ox_status status = ox_file_read_start(path, start, sizeof start, &file_bytes);
    const size_t bytes = (size_t)ox_min_u64(file_bytes, sizeof start);
    if (status != OX_OK || is_safetensors(start, bytes) || ends_with(path, ".safetensors")) {
        return status;
    }
    status = refuse_by_name(path);
    OX_THEN(status, refuse_tokens(path));
    OX_THEN(status, ox_foreign_data_check(path, true));
    if (status == OX_OK && bytes > 0 && !ends_with(path, ".json") && is_text(start, bytes)) {
        status = refuse(path, "a text", "`offload tokenize --model DIR --data FILE` counts its tokens");
    }
    return status;
}
