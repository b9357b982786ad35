/* `offload init`: writes the config.json of a new model, of a known shape or of one chosen for a number of parameters,
 * with the tokenizer's files beside it. */
#include "tools/command/cmd.h"

#include "base/bytes.h"
#include "base/file.h"
#include "engine/hf/hf.h"
#include "engine/hf/shapes.h"
#include "engine/text/tokenizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB_ALONE = 32000, VOCAB_STEP = 64 };

/* Reads "100M". */
static enum ox_status read_count(const char *text, uint64_t *count) {
    static const char units[] = "KMBT";
    char *end = NULL;
    double value = strtod(text, &end);
    const char unit = *end >= 'a' && *end <= 'z' ? (char)(*end - 'a' + 'A') : *end;
    const char *const found = unit != '\0' ? strchr(units, unit) : NULL;
    if (found != NULL) {
        value *= pow(1000, (double)(found - units) + 1);
        end++;
    }
    if (end == text || *end != '\0' || !(value >= 1000) || value > 1e13) {
        return ox_fail(OX_E_CONFIG, "--params: '%s' is no number of parameters from 1K to 10T; write 100M or 1.5B",
                       text);
    }
    *count = (uint64_t)value;
    return OX_OK;
}

static enum ox_status fail_like(const char *like) {
    char names[OX_SHAPE_NAMES_BYTES];
    bool is_family = false;
    for (uint32_t i = 0; ox_shape_at(i) != NULL; i++) {
        is_family |= strcmp(ox_shape_at(i)->family, like) == 0;
    }
    if (is_family) {
        return ox_fail(OX_E_CONFIG, "--params is missing; give the size of the %s, such as --params 100M, or --like "
                       "with the name of a known shape: %s", like, ox_shape_names(names));
    }
    return ox_fail(OX_E_CONFIG, "--like %s: is no known shape; give --params for one of a family, or %s", like,
                   ox_shape_names(names));
}

/* A known shape, with the tokenizer's vocabulary where there is one. */
static enum ox_status known_shape(const struct ox_config *config, const struct ox_shape_request *request,
                                  struct ox_model_config *out) {
    const struct ox_known_shape *const shape = ox_shape_find(config->vocab.like);
    json_t *json = NULL;
    enum ox_status status = shape != NULL ? ox_shape_config(shape, &json) : fail_like(config->vocab.like);
    OX_THEN(status, ox_model_config_parse(config->vocab.like, json, out));
    json_decref(json);
    if (status == OX_OK && (config->files.tokenizer[0] != '\0' || config->vocab.vocab_size > 0)) {
        out->vocab = request->vocab;
        out->bos_id = request->bos_id;
        out->eos_id = request->eos_id;
    }
    return status;
}

/* Takes the vocabulary from --vocab-size, the tokenizer, or neither. */
static enum ox_status read_vocabulary(const struct ox_config *config, struct ox_shape_request *request,
                                      int64_t *pad_id) {
    struct ox_tokenizer *tokenizer = NULL;
    request->bos_id = request->eos_id = *pad_id = -1;
    request->vocab = config->vocab.vocab_size > 0 ? (uint32_t)config->vocab.vocab_size : VOCAB_ALONE;
    if (config->files.tokenizer[0] == '\0') {
        return OX_OK;
    }
    enum ox_status status = ox_hf_check_path("--tokenizer", config->files.tokenizer);
    OX_THEN(status, ox_tokenizer_open(config->files.tokenizer, &tokenizer));
    if (status != OX_OK) {
        return status;
    }
    const uint32_t count = ox_tokenizer_vocab_count(tokenizer);
    if (config->vocab.vocab_size == 0) {
        request->vocab = (uint32_t)ox_align_up(count, VOCAB_STEP);
    } else if (config->vocab.vocab_size < count) {
        status = ox_fail(OX_E_CONFIG, "--vocab-size %" PRIu64 " is less than the %" PRIu32 " tokens of %s; give at "
                         "least that, or leave it out", config->vocab.vocab_size, count, config->files.tokenizer);
    }
    request->bos_id = ox_tokenizer_bos(tokenizer);
    request->eos_id = ox_tokenizer_eos(tokenizer);
    *pad_id = ox_tokenizer_pad(tokenizer);
    ox_tokenizer_close(&tokenizer);
    return status;
}

static enum ox_status write_folder(const struct ox_config *config, const json_t *json) {
    char path[OX_PATH_BYTES], own[OX_PATH_BYTES];
    enum ox_status status = ox_path_join(config->files.output_dir, "config.json", path);
    if (status == OX_OK && ox_path_exists(path)) {
        status = ox_fail(OX_E_CONFIG, "%s: is there already; give --output another folder, or remove it", path);
    }
    OX_THEN(status, ox_folder_make(config->files.output_dir));
    if (status == OX_OK && config->files.tokenizer[0] != '\0' && ox_path_is_folder(config->files.tokenizer)) {
        status = ox_hf_copy_companions(config->files.tokenizer, config->files.output_dir);
    } else if (status == OX_OK && config->files.tokenizer[0] != '\0') {
        status = ox_path_join(config->files.output_dir, "tokenizer.json", own);
        OX_THEN(status, ox_file_copy(config->files.tokenizer, own));
    }
    OX_THEN(status, ox_hf_write_json(config->files.output_dir, "config.json", json));
    return status;
}

static void report(const struct ox_config *config, const struct ox_model *model, const char *reasons) {
    const struct ox_model_config *const c = &model->config;
    if (strcmp(config->tool.format, "json") == 0) {
        printf("{\"family\":\"%s\",\"parameters\":%" PRIu64 ",\"vocab\":%" PRIu32 ",\"hidden\":%" PRIu32
               ",\"layers\":%" PRIu32 ",\"heads\":%" PRIu32 ",\"kv_heads\":%" PRIu32 ",\"width\":%" PRIu32
               ",\"tied\":%s}\n", c->family, model->param_count, c->vocab, c->hidden, c->layers, c->heads, c->kv_heads,
               c->width, c->tied ? "true" : "false");
        return;
    }
    char count[OX_SIZE_TEXT_BYTES];
    printf("%s: %s, %s parameters\n%s", config->files.output_dir, c->family,
           ox_count_text((double)model->param_count, count), reasons);
    printf("next: offload train --model %s --from-scratch --data TEXTS --output RUN%s\n", config->files.output_dir,
           config->files.tokenizer[0] == '\0' ? " --tokenizer DIR" : "");
}

int ox_cmd_init(const struct ox_config *config) {
    struct ox_shape_request request = {.family = config->vocab.like, .contexts = (uint32_t)config->rows.max_seq_length};
    struct ox_model_config chosen;
    struct ox_model *model = NULL;
    json_t *json = NULL;
    char reasons[OX_SHAPE_REASONS_BYTES] = "";
    int64_t pad_id = -1;
    enum ox_status status = read_vocabulary(config, &request, &pad_id);
    if (status == OX_OK && config->vocab.params[0] == '\0') {
        status = known_shape(config, &request, &chosen);
    } else if (status == OX_OK) {
        status = read_count(config->vocab.params, &request.param_count);
        OX_THEN(status, ox_shape_choose(&request, &chosen, reasons));
    }
    OX_THEN(status, ox_model_build(&chosen, &model));
    OX_THEN(status, ox_model_config_json(&chosen, NULL, "float32", &json));
    /* Some families have a default that a smaller vocabulary lacks. */
    if (status == OX_OK &&
        json_object_set_new(json, "pad_token_id", pad_id < 0 ? json_null() : json_integer(pad_id)) != 0) {
        status = ox_fail(OX_E_NOMEM, "no memory for a config.json");
    }
    OX_THEN(status, write_folder(config, json));
    if (status == OX_OK) {
        report(config, model, reasons);
    }
    json_decref(json);
    ox_model_close(&model);
    return ox_cmd_exit(status);
}
