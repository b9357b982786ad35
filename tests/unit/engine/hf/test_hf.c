/* Model folders: config.json of both families, weights in one file or several, odd and damaged files, and the files
 * that are copied beside a model. */
#include "base/file.h"
#include "base/json.h"
#include "base/planes.h"
#include "engine/hf/hf.h"
#include "tests/kit/files.h"
#include "tests/kit/log.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char llama_json[] =
    "{\"model_type\":\"llama\",\"vocab_size\":40,\"hidden_size\":16,\"intermediate_size\":24,\"num_hidden_"
    "layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"tie_word_embeddings\":true,\"custom\":[1,2.5e-3]}";
static const char gpt2_json[] =
    "{\"model_type\":\"gpt2\",\"vocab_size\":40,\"n_embd\":16,\"n_layer\":2,\"n_head\":2,\"n_positions\":12,"
    "\"tie_word_embeddings\":false}";

static int folder_count;

/* A fresh folder that holds `config` as config.json. */
static void make_folder(const char *config, char *path) {
    char name[32], file[OX_PATH_BYTES];
    snprintf(name, sizeof name, "model-%d", folder_count++);
    REQUIRE_OK(ox_path_join(test_folder(), name, path));
    REQUIRE_OK(ox_folder_make(path));
    REQUIRE_OK(ox_path_join(path, "config.json", file));
    REQUIRE_OK(ox_file_replace(file, config, strlen(config)));
}

/* Writes fresh weights of a model, one element after another through each of `count` writers in turn. */
static void write_weights(const struct ox_model *model, enum ox_dtype dtype, struct ox_hf_writer **writers,
                          uint32_t count) {
    uint32_t turn = 0;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct ox_tensor *const tensor = &model->tensors[i];
        for (uint64_t j = 0; j < tensor->count; j++) {
            const float value = ox_model_init_value(model, tensor, 3, j);
            const uint16_t half = ox_bf16_from_f32(value);
            const void *const data = dtype == OX_DTYPE_BF16 ? (const void *)&half : &value;
            REQUIRE_OK(ox_hf_write(writers[turn++ % count], i, j, 1, data));
        }
    }
}

/* Writes fresh weights of the model that `from` describes into the empty folder `to`. */
static void write_model(const char *from, const char *to, enum ox_dtype dtype, uint64_t limit) {
    struct ox_hf_folder *source = NULL;
    struct ox_hf_writer *writer = NULL;
    REQUIRE_OK(ox_hf_open(from, false, &source));
    CHECK(!ox_hf_has_weights(source));
    const struct ox_model *const model = ox_hf_model(source);
    REQUIRE_OK(ox_hf_create(to, model, ox_hf_config(source), dtype, limit, &writer));
    write_weights(model, dtype, &writer, 1);
    REQUIRE_OK(ox_hf_finish(&writer));
    CHECK(writer == NULL);
    ox_hf_close(&source);
}

static void check_model(const char *path, enum ox_dtype dtype) {
    struct ox_hf_folder *folder = NULL;
    static float values[40 * 64];
    REQUIRE_OK(ox_hf_open(path, true, &folder));
    CHECK(ox_hf_has_weights(folder));
    const struct ox_model *const model = ox_hf_model(folder);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct ox_tensor *const tensor = &model->tensors[i];
        int wrong = 0;
        REQUIRE_OK(ox_hf_read(folder, i, 1, tensor->count - 1, values));
        for (uint64_t j = 1; j < tensor->count; j++) {
            const float value = ox_model_init_value(model, tensor, 3, j);
            wrong +=
                values[j - 1] != (dtype == OX_DTYPE_BF16 ? ox_bf16_to_f32(ox_bf16_from_f32(value)) : value);
        }
        CHECK(wrong == 0);
    }
    ox_hf_close(&folder);
    ox_hf_close(&folder);
}

static bool has_file(const char *folder, const char *name) {
    char path[OX_PATH_BYTES];
    REQUIRE_OK(ox_path_join(folder, name, path));
    return ox_path_is_file(path);
}

static void test_round_trip(void) {
    char from[OX_PATH_BYTES], one[OX_PATH_BYTES], many[OX_PATH_BYTES], file[OX_PATH_BYTES];
    for (int family = 0; family < 2; family++) {
        make_folder(family == 0 ? llama_json : gpt2_json, from);
        make_folder("{}", one);
        make_folder("{}", many);
        write_model(from, one, OX_DTYPE_F32, UINT64_MAX);
        check_model(one, OX_DTYPE_F32);
        CHECK(has_file(one, "model.safetensors") && !has_file(one, "model.safetensors.index.json"));
        write_model(one, many, OX_DTYPE_BF16, 3000);
        check_model(many, OX_DTYPE_BF16);
        CHECK(!has_file(many, "model.safetensors") && has_file(many, "model.safetensors.index.json"));

        struct ox_hf_folder *folder = NULL;
        struct ox_hf_writer *writer = NULL;
        REQUIRE_OK(ox_hf_open(one, true, &folder));
        const struct ox_model *const model = ox_hf_model(folder);
        struct stat info;
        REQUIRE_OK(ox_path_join(one, "model.safetensors", file));
        CHECK(stat(file, &info) == 0 && (uint64_t)info.st_size == ox_hf_bytes(model, OX_DTYPE_F32));
        /* Never into a folder with weights, never without one. */
        CHECK(ox_hf_create(many, model, NULL, OX_DTYPE_F32, UINT64_MAX, &writer) == OX_E_CONFIG);
        CHECK(ox_hf_create("/nowhere", model, NULL, OX_DTYPE_F32, UINT64_MAX, &writer) == OX_E_CONFIG);
        CHECK(writer == NULL);
        if (family == 0) {
            const json_t *const custom = json_object_get(ox_hf_config(folder), "custom");
            CHECK(json_real_value(json_array_get(custom, 1)) == 2.5e-3);
        }
        ox_hf_close(&folder);
    }
    /* A writer that is discarded leaves the folder unchanged. */
    struct ox_hf_folder *folder = NULL;
    struct ox_hf_writer *writer = NULL;
    make_folder("{}", from);
    REQUIRE_OK(ox_hf_open(one, false, &folder));
    REQUIRE_OK(ox_hf_create(from, ox_hf_model(folder), NULL, OX_DTYPE_F32, 5000, &writer));
    ox_hf_discard(&writer);
    REQUIRE_OK(ox_hf_create(from, ox_hf_model(folder), NULL, OX_DTYPE_F32, 5000, &writer));
    ox_hf_discard(&writer);
    ox_hf_close(&folder);
    /* A config.json by its own name has no weights. */
    REQUIRE_OK(ox_path_join(one, "config.json", file));
    REQUIRE_OK(ox_hf_open(file, true, &folder));
    CHECK(!ox_hf_has_weights(folder));
    ox_hf_close(&folder);
}

/* Several writers of the same files leave what one does, whichever ends first; those that joined remove nothing. */
static void test_joined(void) {
    char from[OX_PATH_BYTES], to[OX_PATH_BYTES], again[OX_PATH_BYTES];
    struct ox_hf_folder *source = NULL;
    make_folder(llama_json, from);
    REQUIRE_OK(ox_hf_open(from, false, &source));
    const struct ox_model *const model = ox_hf_model(source);
    for (int i = 0; i < 2; i++) {
        const uint64_t limit = i == 0 ? UINT64_MAX : 3000;
        struct ox_hf_writer *writers[3] = {NULL}, *late = NULL;
        make_folder("{}", to);
        CHECK(ox_hf_join(to, model, OX_DTYPE_BF16, limit, &writers[1]) == OX_E_CONFIG && writers[1] == NULL);
        CHECK(strstr(ox_error_text(), to) != NULL);
        REQUIRE_OK(ox_hf_create(to, model, ox_hf_config(source), OX_DTYPE_BF16, limit, &writers[0]));
        ox_hf_share(writers[0]);
        REQUIRE_OK(ox_hf_join(to, model, OX_DTYPE_BF16, limit, &writers[1]));
        REQUIRE_OK(ox_hf_join(to, model, OX_DTYPE_BF16, limit, &writers[2]));
        write_weights(model, OX_DTYPE_BF16, writers, 3);
        REQUIRE_OK(ox_hf_finish(&writers[i == 0 ? 1 : 0]));
        REQUIRE_OK(ox_hf_join(to, model, OX_DTYPE_BF16, limit, &late));
        ox_hf_discard(&late);
        REQUIRE_OK(ox_hf_finish(&writers[2]));
        REQUIRE_OK(ox_hf_finish(&writers[i == 0 ? 0 : 1]));
        check_model(to, OX_DTYPE_BF16);
        make_folder("{}", again);
        write_model(from, again, OX_DTYPE_BF16, limit);
        const char *const begin = i == 0 ? "model.safetensors" : "model-00002";
        CHECK(files_same(files_find(to, begin, "safetensors"), files_find(again, begin, "safetensors")));
    }
    ox_hf_close(&source);
}

struct extra {
    const char *name; /* NULL: none */
    enum ox_dtype dtype;
    uint64_t shape[2];
    uint32_t rank;
    float value;
};

/* One file with all tensors of the model in `path` but `skipped`, with the last dimension of `widened` one
 * larger, and with an extra tensor. */
static void write_odd_file(const char *path, const char *skipped, const char *widened, struct extra extra) {
    struct ox_hf_folder *folder = NULL;
    struct ox_st_writer *writer = NULL;
    struct ox_st_spec specs[64];
    uint32_t count = 0;
    char file[OX_PATH_BYTES];
    REQUIRE_OK(ox_hf_open(path, false, &folder));
    const struct ox_model *const model = ox_hf_model(folder);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct ox_tensor *const tensor = &model->tensors[i];
        if (skipped != NULL && strcmp(tensor->name, skipped) == 0) {
            continue;
        }
        specs[count] = (struct ox_st_spec){.name = tensor->name,
                                           .dtype = OX_DTYPE_F32,
                                           .rank = tensor->rank,
                                           .shape = {tensor->shape[0], tensor->shape[1]}};
        specs[count].shape[tensor->rank - 1] += widened != NULL && strcmp(tensor->name, widened) == 0;
        count++;
    }
    if (extra.name != NULL) {
        specs[count++] = (struct ox_st_spec){.name = extra.name,
                                             .dtype = extra.dtype,
                                             .rank = extra.rank,
                                             .shape = {extra.shape[0], extra.shape[1]}};
    }
    REQUIRE_OK(ox_path_join(path, "model.safetensors", file));
    unlink(file);
    REQUIRE_OK(ox_st_create(file, specs, count, &writer));
    for (uint32_t i = 0; i < count; i++) {
        const bool is_extra = extra.name != NULL && i == count - 1;
        const uint64_t elems = specs[i].shape[0] * (specs[i].rank == 2 ? specs[i].shape[1] : 1);
        const float value = is_extra ? extra.value : 1.0f;
        for (uint64_t j = 0; j < elems; j++) {
            const uint32_t bytes = ox_dtype_bytes(specs[i].dtype);
            REQUIRE_OK(ox_st_write(writer, i, j * bytes, &value, bytes));
        }
    }
    REQUIRE_OK(ox_st_finish(&writer));
    ox_hf_close(&folder);
}

static void expect(const char *path, enum ox_status wanted, const char *named) {
    struct ox_hf_folder *folder = NULL;
    const enum ox_status status = ox_hf_open(path, true, &folder);
    if (status != wanted || (status != OX_OK && strstr(ox_error_text(), named) == NULL)) {
        printf("%s: %s: %s\n", named, ox_status_name(status), status != OX_OK ? ox_error_text() : "");
    }
    CHECK(status == wanted);
    CHECK(status == OX_OK || strstr(ox_error_text(), named) != NULL);
    ox_hf_close(&folder);
}

static void test_odd_files(void) {
    const struct extra none = {0};
    char path[OX_PATH_BYTES];
    make_folder(llama_json, path);
    expect(path, OX_E_CONFIG, "neither");
    write_odd_file(path, NULL, NULL, none);
    expect(path, OX_OK, "");
    write_odd_file(path, "model.layers.1.mlp.up_proj.weight", NULL, none);
    expect(path, OX_E_CONFIG, "model.layers.1.mlp.up_proj.weight");
    write_odd_file(path, NULL, "model.layers.0.self_attn.k_proj.weight", none);
    expect(path, OX_E_CONFIG, "[8, 17]");
    write_odd_file(path, NULL, NULL,
                   (struct extra){"model.layers.2.mlp.up_proj.weight", OX_DTYPE_F32, {2, 2}, 2, 0});
    expect(path, OX_E_CONFIG, "model.layers.2.mlp.up_proj.weight");
    write_odd_file(path, NULL, NULL, (struct extra){"norm.weight", OX_DTYPE_F32, {16}, 1, 0});
    expect(path, OX_E_CORRUPT, "twice");
    write_odd_file(path, NULL, NULL, (struct extra){"lm_head.weight", OX_DTYPE_F32, {40, 16}, 2, 1});
    expect(path, OX_OK, "");
    write_odd_file(path, NULL, NULL, (struct extra){"lm_head.weight", OX_DTYPE_F32, {40, 16}, 2, 2});
    expect(path, OX_E_CONFIG, "tie_word_embeddings");
    write_odd_file(path, NULL, NULL, (struct extra){"lm_head.weight", OX_DTYPE_F32, {16, 40}, 2, 1});
    expect(path, OX_E_CONFIG, "[16, 40]");

    make_folder(gpt2_json, path);
    write_odd_file(path, "lm_head.weight", NULL, none);
    expect(path, OX_E_CONFIG, "tie_word_embeddings");
    write_odd_file(path, NULL, NULL, (struct extra){"h.1.attn.bias", OX_DTYPE_F32, {12, 12}, 2, 1});
    expect(path, OX_OK, "");
    expect("/nowhere", OX_E_CONFIG, "/nowhere");
    make_folder("{\"model_type\":\"bert\"}", path);
    expect(path, OX_E_CONFIG, "bert");
    make_folder("{", path);
    expect(path, OX_E_CORRUPT, "config.json");
}

static void test_index(void) {
    static const struct {
        const char *index;
        enum ox_status status;
        const char *named;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", OX_E_CORRUPT, "../x"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", OX_E_CORRUPT, "/etc/passwd"},
        {"{\"weight_map\":{\"a\":\"..\"}}", OX_E_CORRUPT, "\"..\""},
        {"{\"weight_map\":{\"a\":\"\"}}", OX_E_CORRUPT, "\"a\""},
        {"{\"weight_map\":{\"a\":7}}", OX_E_CORRUPT, "\"a\""},
        {"{\"weight_map\":{\"a\":\"missing.safetensors\"}}", OX_E_CONFIG, "missing.safetensors"},
        {"{\"weight_map\":{}}", OX_E_CORRUPT, "weight_map"},
        {"[]", OX_E_CORRUPT, "weight_map"},
        {"{\"weight_map\":{\"a\":\"config.json\"}}", OX_E_CORRUPT, "config.json"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\"}}", OX_E_CORRUPT, "does not list"},
    };
    char path[OX_PATH_BYTES], index[OX_PATH_BYTES], file[OX_PATH_BYTES], other[OX_PATH_BYTES];
    make_folder(llama_json, path);
    write_odd_file(path, NULL, NULL, (struct extra){0});
    REQUIRE_OK(ox_path_join(path, "model.safetensors", file));
    REQUIRE_OK(ox_path_join(path, "one.safetensors", other));
    CHECK(rename(file, other) == 0);
    REQUIRE_OK(ox_path_join(path, "model.safetensors.index.json", index));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        REQUIRE_OK(ox_file_replace(index, cases[i].index, strlen(cases[i].index)));
        expect(path, cases[i].status, cases[i].named);
    }
    /* An index that agrees with the file but for one tensor more. */
    char text[8192];
    struct ox_hf_folder *folder = NULL;
    REQUIRE_OK(ox_hf_open(path, false, &folder));
    for (int more = 0; more < 2; more++) {
        size_t filled = (size_t)snprintf(text, sizeof text, "{\"weight_map\":{");
        for (uint32_t i = 0; i < ox_hf_model(folder)->tensor_count; i++) {
            filled += (size_t)snprintf(text + filled, sizeof text - filled, "%s\"%s\":\"one.safetensors\"",
                                       i > 0 ? "," : "", ox_hf_model(folder)->tensors[i].name);
        }
        snprintf(text + filled, sizeof text - filled, "%s}}",
                 more ? ",\"lm_head.weight\":\"one.safetensors\"" : "");
        REQUIRE_OK(ox_file_replace(index, text, strlen(text)));
        expect(path, more ? OX_E_CORRUPT : OX_OK, "tensors");
    }
    ox_hf_close(&folder);
}

/* An error that concerns several sizes together names the file too. */
static void test_too_large(void) {
    static const char json[] =
        "{\"model_type\":\"llama\",\"vocab_size\":16777216,\"hidden_size\":1048576,\"intermediate_size\":4194304,"
        "\"num_hidden_layers\":99,\"num_attention_heads\":256}";
    char path[OX_PATH_BYTES];
    struct ox_hf_folder *folder = NULL;
    make_folder(json, path);
    CHECK(ox_hf_open(path, false, &folder) == OX_E_CONFIG && folder == NULL);
    CHECK(strstr(ox_error_text(), path) != NULL && strstr(ox_error_text(), "parameters") != NULL);
}

static void test_companions(void) {
    static const char *const names[] = {
        "tokenizer.json",      "tokenizer_config.json",  "tokenizer.model",   "merges.txt",
        "chat_template.jinja", "generation_config.json", "training_args.bin", "README.md",
        "tokenizerx"};
    char from[OX_PATH_BYTES], to[OX_PATH_BYTES], file[OX_PATH_BYTES];
    make_folder(llama_json, from);
    REQUIRE_OK(ox_path_join(test_folder(), "companions", to));
    REQUIRE_OK(ox_folder_make(to));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        REQUIRE_OK(ox_path_join(from, names[i], file));
        REQUIRE_OK(ox_file_replace(file, names[i], strlen(names[i])));
    }
    REQUIRE_OK(ox_hf_copy_companions(from, to));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        CHECK(has_file(to, names[i]) == (i < 6));
    }
    CHECK(!has_file(to, "config.json"));
    CHECK(ox_hf_copy_companions("/nowhere", to) == OX_E_CONFIG);
}

/* A folder of links to files elsewhere, of any name: what they lead to is copied. */
static void test_linked_companions(void) {
    static const struct {
        const char *name, *text;
    } files[] = {{"tokenizer.json", "{\"model\": {}}"},
                 {"tokenizer_config.json", "{\"eos_token\": \"</s>\"}"},
                 {"special_tokens_map.json", "{\"bos_token\": \"<s>\"}"},
                 {"added_tokens.json", "{\"<a>\": 512}"},
                 {"vocab.json", "{\"a\": 0}"},
                 {"merges.txt", "#version: 0.2\na b\n"},
                 {"tokenizer.model", "\n\x0e\n\x05<unk>"},
                 {"chat_template.jinja", "{% for m in messages %}{% endfor %}"},
                 {"chat_template.json", "{\"chat_template\": \"\"}"},
                 {"generation_config.json", "{\"eos_token_id\": 2}"}};
    files_make_folder("links");
    const char *const to = files_make_folder("of_links");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        files_write_text(test_pathf("elsewhere-%zu", i), files[i].text);
        CHECK(symlink(test_pathf("elsewhere-%zu", i), test_pathf("links/%s", files[i].name)) == 0);
    }
    files_make_folder("links/additional_chat_templates");
    CHECK(symlink(test_path("elsewhere-7"), test_path("links/additional_chat_templates/rag.jinja")) == 0);
    files_write_text("links/additional_chat_templates/rag.txt", "no template");
    REQUIRE_OK(ox_hf_copy_templates(test_path("links"), to));
    CHECK(files_exist("of_links/additional_chat_templates/rag.jinja"));
    CHECK(!files_exist("of_links/additional_chat_templates/rag.txt"));
    REQUIRE_OK(ox_hf_copy_companions(test_path("links"), to));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *text = NULL;
        size_t bytes = 0;
        struct stat info;
        REQUIRE_OK(ox_file_read(test_pathf("of_links/%s", files[i].name), 100, &text, &bytes));
        CHECK(strcmp(text, files[i].text) == 0);
        CHECK(lstat(test_pathf("of_links/%s", files[i].name), &info) == 0 && S_ISREG(info.st_mode));
        free(text);
    }
}

static char *text_of(const char *name) {
    char *text = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read(test_pathf("tokens/%s", name), 10000, &text, &bytes));
    return text;
}

static bool has_text(const char *name, const char *words) {
    char *const text = text_of(name);
    const bool has = strstr(text, words) != NULL;
    free(text);
    return has;
}

/* What a run knows of its tokenizer stands where transformers reads it, and no other copy is left. */
static void test_tokens(void) {
    const char *const folder = files_make_folder("tokens");
    json_t *const config = json_pack("{s:i, s:[i,i]}", "bos_token_id", 1, "eos_token_id", 2, 7);
    json_t *const templates = json_pack("{s:s}", "default", "{{ mine }}");
    struct ox_hf_tokens tokens = {.templates = templates, .ends = {2, 9}, .end_count = 2, .bos = 3, .pad = 4};
    json_t *with = NULL;
    files_write_text("tokens/chat_template.jinja", "{{ stale }}");
    files_write_text("tokens/chat_template.json", "{\"chat_template\": \"{{ stale }}\"}");
    files_write_text("tokens/tokenizer_config.json", "{\"chat_template\": \"{{ stale }}\", \"eos_token\": \"a\"}");
    files_write_text("tokens/generation_config.json", "{\"eos_token_id\": 5, \"temperature\": 0.5}");
    REQUIRE_OK(ox_hf_write_tokens(folder, config, &tokens));
    CHECK(has_text("chat_template.jinja", "{{ mine }}") && !files_exist(test_path("tokens/chat_template.json")));
    CHECK(has_text("tokenizer_config.json", "{{ mine }}") && has_text("tokenizer_config.json", "\"eos_token\": \"a\""));
    CHECK(!has_text("tokenizer_config.json", "stale") && !has_text("chat_template.jinja", "stale"));
    CHECK(has_text("generation_config.json", "[\n    5,\n    2,\n    7,\n    9\n  ]"));
    CHECK(has_text("generation_config.json", "0.5"));
    REQUIRE_OK(ox_hf_config_with(config, &tokens, &with));
    CHECK(json_array_size(json_object_get(with, "eos_token_id")) == 3 &&
          json_integer_value(json_object_get(with, "bos_token_id")) == 1);
    json_decref(with);
    /* several templates are under the key alone, because a file hides them */
    CHECK(json_object_set_new(templates, "tool_use", json_string("{{ tools }}")) == 0);
    REQUIRE_OK(ox_hf_write_tokens(folder, config, &tokens));
    CHECK(!files_exist(test_path("tokens/chat_template.jinja")));
    CHECK(has_text("tokenizer_config.json", "\"name\": \"tool_use\"") && has_text("tokenizer_config.json", "mine"));
    /* a fresh model takes all ids of its tokenizer */
    tokens.replaces = true;
    REQUIRE_OK(ox_hf_config_with(config, &tokens, &with));
    CHECK(json_array_size(json_object_get(with, "eos_token_id")) == 2 &&
          json_integer_value(json_object_get(with, "bos_token_id")) == 3 &&
          json_integer_value(json_object_get(with, "pad_token_id")) == 4);
    json_decref(with);
    /* what came with the model and is no JSON stays so, because no save may fail for it */
    CHECK(json_object_del(templates, "tool_use") == 0);
    files_write_text("tokens/generation_config.json", "{\"temperature\": 0.6, }");
    files_write_text("tokens/tokenizer_config.json", "{");
    REQUIRE_OK(ox_hf_write_tokens(folder, config, &tokens));
    CHECK(has_text("generation_config.json", "0.6, }") && has_text("chat_template.jinja", "{{ mine }}"));
    json_decref(config);
    json_decref(templates);
}

/* What a stranger's folder may hold: links to a secret, out of the folder and back into it; a sparse file. */
static void test_foreign_companions(void) {
    const char *const secret = files_write_text("secret", "of this user alone");
    files_write_text("secret.json", "{\"auths\": {\"host\": \"dXNlcg==\"}}");
    CHECK(chmod(secret, 0600) == 0);
    files_make_folder("hub/snapshots/1");
    files_make_folder("hub/blobs");
    files_write_text("hub/blobs/abc", "[]");
    files_write_text("hub/other", "[]");
    files_write_text("hub/snapshots/1/own.txt", "own");
    CHECK(chmod(files_write_text("hub/snapshots/1/vocab.json", "{}"), 0640) == 0);
    CHECK(chmod(test_path("hub/snapshots/1/own.txt"), 0444) == 0);
    CHECK(truncate(files_write_text("hub/snapshots/1/tokenizer.json", ""), (off_t)50 << 30) == 0);
    static const struct {
        const char *name, *to;
        bool copied;
    } links[] = {{"tokenizer.model", "../../../secret", false},     {"chat_template.jinja", "../../other", false},
                 {"added_tokens.json", "../../blobs/abc", true},    {"merges.txt", "own.txt", true},
                 {"generation_config.json", "/etc/passwd", false},  {"tokenizer_config.json", "nowhere", false},
                 {"special_tokens_map.json", "../../../secret.json", false}};
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        CHECK(symlink(links[i].to, test_pathf("hub/snapshots/1/%s", links[i].name)) == 0);
    }
    CHECK(symlink(test_path("hub/snapshots/1"), test_path("linked")) == 0);
    const char *const to = files_make_folder("copied");
    log_count_warnings("tokenizer.model (a link that leads out of the folder, to something else)");
    REQUIRE_OK(ox_hf_copy_companions(test_path("linked"), to));
    REQUIRE_OK(ox_hf_copy_companions(test_path("linked"), to));
    CHECK(log_warnings == 1);
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        CHECK(files_exist(test_pathf("copied/%s", links[i].name)) == links[i].copied);
    }
    struct stat info;
    CHECK(!files_exist("copied/tokenizer.json"));
    CHECK(stat(test_path("copied/vocab.json"), &info) == 0 && (info.st_mode & 0777 & ~0640) == 0);
    CHECK(stat(test_path("copied/merges.txt"), &info) == 0 && (info.st_mode & 0600) == 0600); /* its owner's again */
}

static void test_real(void) {
    char path[OX_PATH_BYTES];
    struct ox_hf_folder *folder = NULL;
    float values[64];
    if (test_data_folder() == NULL) {
        return;
    }
    REQUIRE_OK(ox_path_join(test_data_folder(), "models/stories260K", path));
    REQUIRE_OK(ox_hf_open(path, true, &folder));
    const struct ox_model *const model = ox_hf_model(folder);
    CHECK(model->param_count == 260032 && model->unit_count == 7);
    double sum = 0.0;
    REQUIRE_OK(ox_hf_read(folder, 1, 0, 64, values)); /* a trained norm: near one, not all one */
    for (int i = 0; i < 64; i++) {
        sum += values[i];
    }
    CHECK(sum > 1.0 && sum < 640.0 && sum != 64.0);
    ox_hf_close(&folder);
}

int main(void) {
    test_round_trip();
    test_joined();
    test_odd_files();
    test_index();
    test_too_large();
    test_companions();
    test_linked_companions();
    test_tokens();
    test_foreign_companions();
    test_real();
    return test_end();
}
