/* `offload generate`: continues a prompt with a model, or answers it. */
#include "tools/command/cmd.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/pool.h"
#include "engine/text/chat.h"
#include "engine/text/text.h"
#include "engine/generate/generate.h"
#include "engine/generate/sample.h"
#include "engine/run/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* rows of a prompt read at once */
enum { PROMPT_FILE_BYTES_MAX = 64 << 20, JSON_BYTES_MAX = 16 << 20, CHUNK_ROWS = 512, BYTE_VALUES = 256 };

/* Text printed while tokens come: what the tokens from `shown` on add to the text of [from, shown). A decoder treats
 * the first piece of a text differently, so one piece that was already printed precedes them. */
struct stream {
    size_t from, shown;
    bool line_open;
};

struct generating {
    const struct ox_config *config;
    struct ox_hf_folder *folder;
    struct ox_tokenizer *tokenizer; /* NULL: the model's tokens are bytes */
    struct ox_template *chat_template; /* this and the renderer: with --chat alone */
    struct ox_chat_renderer *renderer;
    struct ox_generator *generator;
    struct ox_cuda_config cuda;
    struct ox_cuda_device_info gpu;  /* where a GPU computes */
    uint64_t gpu_bytes, process_bytes; /* its memory to use; what driver, code and libraries take of that */
    bool on_gpu;
    struct ox_sampler *sampler;
    struct ox_ids ids, stops;
    size_t prompt_count, text_begin, text_end; /* indices into ids */
    struct stream stream;
    bool streams;
    const char *finish;
    double seconds, step_seconds; /* time of everything, and of the passes after the prompt */
    size_t steps;
    struct ox_logit *top; /* (top_logits), after */
    size_t top_count;
    double nll_sum, logit_sum, logsumexp;
};

/* ---- prompt ------------------------------------------------------------------------------------------ */

static enum ox_status check_options(struct generating *g) {
    const struct ox_config *const config = g->config;
    if (config->prompt[0] != '\0' && config->prompt_file[0] != '\0') {
        return ox_fail(OX_E_CONFIG, "--prompt and --prompt-file are both given; give one of them");
    }
    if (config->chat && config->prompt[0] == '\0' && config->prompt_file[0] == '\0') {
        return ox_fail(OX_E_CONFIG, "--chat has no message to answer; give one by --prompt or --prompt-file");
    }
    if (strcmp(config->prompt, "-") == 0) {
        return ox_fail(OX_E_CONFIG, "--prompt -: the prompt is the text itself; --prompt-file PATH reads it, "
                       "--prompt-file /dev/stdin from the standard input if that is a file, and \"$(cat)\" else");
    }
    if (config->prompt[0] == '@' && ox_path_is_file(config->prompt + 1)) {
        return ox_fail(OX_E_CONFIG, "--prompt %s: the prompt is the text itself; to read the file give --prompt-file "
                       "%s", config->prompt, config->prompt + 1);
    }
    const char *const name = config->system_prompt[0] != '\0' ? "system-prompt"
                             : config->chat_template[0] != '\0' ? "chat-template"
                             : config->chat_template_kwargs[0] != '\0' ? "chat-template-kwargs"
                             : !config->thinking ? "no-thinking" : NULL;
    if (!config->chat && name != NULL) {
        return ox_fail(OX_E_CONFIG, "--%s is for conversations; add --chat, or remove it", name);
    }
    if (config->top_logits > 0 && strcmp(config->format, "json") != 0) {
        return ox_fail(OX_E_CONFIG, "--top-logits is part of the JSON report; add --format json");
    }
    return OX_OK;
}

static enum ox_status open_model(struct generating *g) {
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json", "adapter_config.json"};
    const char *model = g->config->model;
    const char *const adapter = g->config->adapter;
    char found_adapter[OX_CONFIG_TEXT_BYTES];
    char path[OX_PATH_BYTES];
    bool found = false;
    enum ox_status status = ox_hf_check_file(model, true);
    OX_THEN(status, ox_hf_check_folder(model));
    for (int i = 0; status == OX_OK && i < 3; i++) {
        status = ox_path_join(model, names[i], path);
        found = found || (status == OX_OK && ox_path_is_file(path));
    }
    if (status == OX_OK && !found) {
        status = ox_fail(OX_E_CONFIG,
                         "--model %s: has no weights, neither %s nor %s; name a folder with weights", model,
                         names[0], names[1]);
    }
    OX_THEN(status, ox_hf_open(model, true, &g->folder));
    if (status == OX_OK && adapter[0] != '\0') {
        status = ox_run_find_model(adapter, found_adapter);
        OX_THEN(status, ox_hf_load_adapter(g->folder, found_adapter));
    }
    if (status != OX_OK) {
        return status;
    }
    const bool own = g->config->tokenizer[0] == '\0';
    if (adapter[0] != '\0' && ox_folder_has(found_adapter, "tokenizer.json")) {
        model = found_adapter; /* with the template and the ends of turns that it was trained with */
    }
    status = ox_path_join(model, "tokenizer.json", path);
    if (status == OX_OK && own && !ox_path_exists(path) && ox_hf_model(g->folder)->config.vocab == BYTE_VALUES &&
        !ox_tokenizer_has_parts(model)) {
        return g->config->chat ? ox_fail(OX_E_CONFIG, "%s: is a model of bytes without a chat template; leave out "
                                         "--chat, or name a tokenizer with --tokenizer", model)
                               : OX_OK;
    }
    if (status != OX_OK) {
        return status;
    }
    status = own ? OX_OK : ox_hf_check_path("--tokenizer", g->config->tokenizer);
    OX_THEN(status, ox_tokenizer_open(own ? model : g->config->tokenizer, &g->tokenizer));
    return status != OX_OK && own
               ? ox_fail_in(status, "the model folder has no usable tokenizer; name one with --tokenizer")
               : status;
}

static enum ox_status encode_bytes(struct generating *g, const char *where, const char *text, size_t bytes) {
    enum ox_status status = bytes > 0 ? OX_OK : ox_fail(OX_E_CONFIG, "%s: the text is empty, so there is nothing to "
                                                        "continue; give a text", where);
    for (size_t i = 0; i < bytes && status == OX_OK; i++) {
        status = ox_ids_add(&g->ids, (unsigned char)text[i]);
    }
    return status;
}

/* Turns bytes into UTF-8: each byte that is part of no character becomes U+FFFD. */
static enum ox_status decode_bytes(const int32_t *ids, size_t count, char **text, size_t *bytes) {
    static const char replacement[] = "\xef\xbf\xbd";
    const size_t mark_bytes = sizeof replacement - 1;
    char *const raw = malloc(count + 1), *const out = malloc(mark_bytes * count + 1);
    size_t used = 0;
    for (size_t i = 0; raw != NULL && i < count; i++) {
        raw[i] = (char)ids[i];
    }
    for (size_t at = 0; raw != NULL && out != NULL && at < count;) {
        const size_t valid = ox_utf8_valid(raw + at, count - at);
        memcpy(out + used, raw + at, valid);
        used += valid;
        at += valid;
        if (at < count) {
            memcpy(out + used, replacement, mark_bytes);
            used += mark_bytes;
            at++;
        }
    }
    const bool done = raw != NULL && out != NULL;
    free(raw);
    *text = out;
    *bytes = used;
    if (done) {
        out[used] = '\0';
    }
    return done ? OX_OK : ox_fail(OX_E_NOMEM, "no memory for a text of %zu bytes", count);
}

static enum ox_status decode(const struct generating *g, const int32_t *ids, size_t count, char **text,
                             size_t *bytes) {
    return g->tokenizer == NULL ? decode_bytes(ids, count, text, bytes)
                                : ox_decode(g->tokenizer, ids, count, true, text, bytes);
}

static enum ox_status encode_plain(struct generating *g, const char *where, const char *text, size_t bytes) {
    struct ox_encoder *encoder = NULL;
    if (g->tokenizer == NULL) {
        return encode_bytes(g, where, text, bytes);
    }
    enum ox_status status = ox_encoder_open(g->tokenizer, &encoder);
    if (status == OX_OK) {
        status = ox_encode(encoder, text, bytes, true, true, &g->ids);
        status = status == OX_OK ? status : ox_fail_in(status, "%s", where);
    }
    ox_encoder_close(&encoder);
    if (status == OX_OK && g->ids.count == 0) {
        status = ox_fail(OX_E_CONFIG, "%s: the text is empty and the tokenizer adds no first token, so there is "
                         "nothing to continue; give a text", where);
    }
    return status;
}

/* Opens the model's chat template. */
static enum ox_status open_chat(struct generating *g) {
    const struct ox_config *const config = g->config;
    struct ox_chat_options options = {.generation_prompt = true};
    json_t *kwargs = NULL;
    enum ox_status status = ox_chat_kwargs(config->chat_template_kwargs, &kwargs);
    if (status == OX_OK && !config->thinking && json_object_set_new(kwargs, "enable_thinking", json_false()) != 0) {
        status = ox_fail(OX_E_NOMEM, "no memory for the variables of the chat template");
    }
    OX_THEN(status, ox_template_open(config->tokenizer[0] != '\0' ? config->tokenizer : config->model,
                                     config->chat_template, &g->chat_template));
    options.chat_template = g->chat_template;
    options.now = ox_chat_date(config->clock_s);
    options.kwargs = kwargs;
    OX_THEN(status, ox_chat_open(g->tokenizer, &options, &g->renderer));
    json_decref(kwargs);
    return status;
}

/* Renders the prompt as one message. A NUL is refused, as in rows. */
static enum ox_status encode_chat(struct generating *g, const char *where, const char *text, size_t bytes) {
    const struct ox_config *const config = g->config;
    struct ox_chat chat = {.kind = OX_CHAT_MESSAGES};
    struct ox_id_mask marks = {0};
    enum ox_chat_part parts[2] = {OX_PART_PROMPT, OX_PART_PROMPT};
    if (memchr(text, '\0', bytes) != NULL) {
        return ox_fail(OX_E_CONFIG, "%s: the message contains a NUL character; remove it", where);
    }
    const size_t valid = ox_utf8_valid(text, bytes);
    if (valid != bytes) {
        return ox_fail(OX_E_CORRUPT, "%s: the text is not UTF-8 at byte %zu (0x%02x)", where, valid,
                       (unsigned char)text[valid]);
    }
    chat.message_parts = parts;
    chat.conversation =
        config->system_prompt[0] != '\0'
            ? json_pack("{s:[{s:s,s:s},{s:s,s:s}]}", "messages", "role", "system", "content", config->system_prompt,
                        "role", "user", "content", text)
            : json_pack("{s:[{s:s,s:s}]}", "messages", "role", "user", "content", text);
    enum ox_status status =
        chat.conversation != NULL ? OX_OK : ox_fail(OX_E_CONFIG, "%s: --system-prompt is not UTF-8 text", where);
    OX_THEN(status, open_chat(g));
    OX_THEN(status, ox_chat_render(g->renderer, where, &chat, &g->ids, &marks));
    ox_id_mask_free(&marks);
    json_decref(chat.conversation);
    return status;
}

static enum ox_status read_prompt(struct generating *g) {
    const struct ox_config *const config = g->config;
    const bool is_file = config->prompt_file[0] != '\0';
    const char *const where = is_file ? config->prompt_file : "--prompt";
    char *text = NULL;
    size_t bytes = strlen(config->prompt);
    enum ox_status status = OX_OK;
    if (is_file) {
        status = ox_file_read(config->prompt_file, PROMPT_FILE_BYTES_MAX, &text, &bytes);
        if (status == OX_OK && bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* a byte-order mark */
            bytes -= 3;
            memmove(text, text + 3, bytes + 1);
        }
    } else if ((text = strdup(config->prompt)) == NULL) {
        status = ox_fail(OX_E_NOMEM, "no memory for the prompt");
    }
    OX_THEN(status, config->chat ? encode_chat(g, where, text, bytes) : encode_plain(g, where, text, bytes));
    free(text);
    if (status == OX_OK && g->ids.count == 0) {
        return ox_fail(OX_E_CONFIG, "%s: the chat template renders it to nothing, so there is nothing to continue; "
                       "give another with --chat-template, or leave out --chat", where);
    }
    g->prompt_count = g->ids.count;
    g->text_begin = config->chat ? g->prompt_count : 0;
    return status;
}

/* ---- stop tokens ----------------------------------------------------------------------------------- */

/* Adds the ids of "eos_token_id", which is one id or a list. */
static enum ox_status read_stops(struct ox_ids *stops, const char *where, const json_t *json) {
    const json_t *const value = json_object_get(json, "eos_token_id");
    const size_t count = json_is_array(value) ? json_array_size(value) : value == NULL || json_is_null(value) ? 0 : 1;
    enum ox_status status = OX_OK;
    for (size_t i = 0; status == OX_OK && i < count; i++) {
        const json_t *const id = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_integer(id) || json_integer_value(id) < -1 || json_integer_value(id) > INT32_MAX) {
            char text[OX_JSON_EXCERPT_BYTES];
            return ox_fail(OX_E_CONFIG, "%s: \"eos_token_id\" is %s, but must be a token id or a list of them", where,
                           ox_json_excerpt(value, text));
        }
        status = ox_ids_add(stops, json_integer_value(id));
    }
    return status;
}

/* Collects the tokens that end the text: of config.json, generation_config.json, the tokenizer and the chat template.
 * */
static enum ox_status find_stops(struct generating *g) {
    char path[OX_PATH_BYTES];
    json_t *json = NULL;
    if (g->config->ignore_eos) {
        return OX_OK;
    }
    enum ox_status status = read_stops(&g->stops, g->config->model, ox_hf_config(g->folder));
    OX_THEN(status, ox_path_join(g->config->model, "generation_config.json", path));
    if (status == OX_OK && ox_path_exists(path)) {
        status = ox_json_load(path, JSON_BYTES_MAX, &json);
        OX_THEN(status, read_stops(&g->stops, path, json));
        json_decref(json);
    }
    OX_THEN(status, ox_ids_add(&g->stops, g->tokenizer != NULL ? ox_tokenizer_eos(g->tokenizer) : -1));
    return status == OX_OK && g->config->chat ? ox_chat_ends_of_turn(g->renderer, &g->stops) : status;
}

static bool is_stop(const struct generating *g, int32_t id) {
    for (size_t i = 0; i < g->stops.count; i++) {
        if (g->stops.ids[i] == id) {
            return true;
        }
    }
    return false;
}

/* ---- text as it comes -------------------------------------------------------------------------------- */

/* True when the text ends in a replacement character: its last character is incomplete. */
static bool ends_open(const char *text, size_t bytes) {
    return bytes >= 3 && memcmp(text + bytes - 3, "\xef\xbf\xbd", 3) == 0;
}

/* Prints what the tokens up to `count` add. An incomplete character waits for its last bytes, unless `last`. */
static enum ox_status stream_to(struct generating *g, size_t count, bool last) {
    struct stream *const stream = &g->stream;
    const int32_t *const ids = g->ids.ids + stream->from;
    char *before = NULL, *text = NULL;
    size_t before_bytes = 0, bytes = 0;
    if (!g->streams) {
        return OX_OK;
    }
    enum ox_status status = decode(g, ids, stream->shown - stream->from, &before, &before_bytes);
    OX_THEN(status, decode(g, ids, count - stream->from, &text, &bytes));
    if (status == OX_OK && bytes > before_bytes && (last || !ends_open(text, bytes))) {
        const size_t added = bytes - before_bytes;
        if (fwrite(text + before_bytes, 1, added, stdout) != added || fflush(stdout) != 0) {
            status = ox_fail(OX_E_IO, "the text could not be written to stdout");
        }
        stream->from = stream->shown;
        stream->shown = count;
        stream->line_open = text[bytes - 1] != '\n';
    }
    free(before);
    free(text);
    return status;
}

/* ---- tokens ------------------------------------------------------------------------------------------ */

static double seconds_since(uint64_t start_ns) {
    return (double)(ox_clock_ns() - start_ns) / 1e9;
}

static uint32_t threads_of(const struct ox_config *config) {
    return config->compute_threads > 0 ? (uint32_t)config->compute_threads : ox_processor_count();
}

static struct ox_host_claim claim_of(const struct generating *g) {
    const uint32_t threads = threads_of(g->config);
    return (struct ox_host_claim){
        .host_bytes = g->config->host_mem_bytes,
        .address_bytes = threads * OX_CPU_THREAD_ADDRESS_BYTES,
        .beside_bytes = ox_fixed_overhead_bytes(threads, 0, 0) + (g->on_gpu ? (uint64_t)OX_CUDA_HOST_BYTES : 0)};
}

/* The CPU computes in host memory alone. */
static enum ox_status pick_cpu(const struct ox_config *config) {
    return config->device_mem_bytes == 0 ? OX_OK
                                         : ox_fail(OX_E_CONFIG, "--device-mem: generating on the CPU takes host memory "
                                                   "alone; give --host-mem, or --device cuda where there is a GPU");
}

/* Says that the CPU computes although the driver shows a GPU. */
static void warn_of_gpu(void) {
    char why[OX_ERROR_TEXT_BYTES];
    struct ox_cuda_plugin_info plugin;
    snprintf(why, sizeof why, "%s", ox_error_text());
    if (ox_cuda_plugin_query(NULL, &plugin) == OX_OK && plugin.device_count > 0) {
        ox_log(OX_LOG_WARN, "the CPU computes, because the GPU cannot be used: %s", why);
    }
}

/* Decides what computes and what of a GPU's memory may be used, as for a run. Where no GPU can be used, `auto` is the
 * CPU. */
static enum ox_status pick_device(struct generating *g) {
    const struct ox_config *const config = g->config;
    uint64_t process_bytes = OX_CUDA_PROCESS_BYTES, bytes = config->device_mem_bytes;
    if (config->device == OX_DEVICE_CHOICE_CPU) {
        return pick_cpu(config);
    }
    enum ox_status status = ox_cuda_device_look(&g->cuda, &g->gpu, &process_bytes);
    const struct ox_cuda_memory memory = {.gpu = &g->gpu, .process_bytes = process_bytes};
    if (status == OX_OK && bytes == 0) {
        status = ox_cuda_memory_free(&memory, &bytes);
    }
    if (status != OX_OK && config->device == OX_DEVICE_CHOICE_AUTO) {
        warn_of_gpu();
        return pick_cpu(config);
    }
    OX_THEN(status, ox_cuda_memory_check(&memory, bytes));
    g->on_gpu = status == OX_OK;
    g->gpu_bytes = bytes;
    g->process_bytes = process_bytes;
    return status;
}

/* Opens the model's files and makes ids of the prompt, within the memory of the whole command. */
static enum ox_status open_text(struct generating *g) {
    const struct ox_host_claim claim = claim_of(g);
    ox_host_text_begin(&claim, 0);
    enum ox_status status = open_model(g);
    OX_THEN(status, read_prompt(g));
    OX_THEN(status, find_stops(g));
    return ox_host_text_end(&claim, status);
}

static enum ox_status open_generator(struct generating *g) {
    const struct ox_config *const config = g->config;
    const struct ox_model_config *const model = &ox_hf_model(g->folder)->config;
    const uint64_t room = g->prompt_count < model->contexts ? model->contexts - g->prompt_count : 0;
    if (g->prompt_count + (config->max_new_tokens > 0) > model->contexts) {
        return ox_fail(OX_E_CONFIG, "the prompt has %zu tokens, but the model attends to %" PRIu32 " in all, "
                       "including new ones; shorten the prompt", g->prompt_count, model->contexts);
    }
    const uint32_t threads = threads_of(config);
    const struct ox_host_claim claim = claim_of(g);
    enum ox_status status = ox_host_claim_check(&claim);
    const struct ox_generator_config generator = {
        .folder = g->folder,
        .where = config->model,
        .dtype = config->dtype,
        .threads = threads,
        .host_bytes = claim.host_bytes > 0 ? claim.host_bytes : ox_default_host_bytes(&claim),
        .cuda = g->on_gpu ? &g->cuda : NULL,
        .device_bytes = g->gpu_bytes - g->process_bytes,
        .device_beside_bytes = g->process_bytes,
        .contexts = (uint32_t)(g->prompt_count + (config->max_new_tokens < room ? config->max_new_tokens : room)),
        .chunk_rows = g->prompt_count < CHUNK_ROWS ? (uint32_t)g->prompt_count : CHUNK_ROWS};
    const struct ox_sampling sampling = {.temperature = config->temperature, .top_k = config->top_k,
                                         .top_p = config->top_p, .seed = config->seed};
    OX_THEN(status, ox_sampler_open(&sampling, model->vocab, &g->sampler));
    OX_THEN(status, ox_generator_open(&generator, &g->generator));
    return status;
}

/* Computes the report on the logits after the prompt. */
static enum ox_status examine_logits(struct generating *g, const float *logits) {
    const uint32_t vocab = ox_hf_model(g->folder)->config.vocab;
    g->top_count = g->config->top_logits < vocab ? (size_t)g->config->top_logits : vocab;
    g->top = malloc(g->top_count * sizeof *g->top);
    if (g->top == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for %zu logits", g->top_count);
    }
    ox_sampler_top(g->sampler, logits, g->top_count, g->top);
    double sum = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        sum += exp((double)logits[i] - g->top[0].value);
        g->logit_sum += logits[i];
    }
    g->logsumexp = g->top[0].value + log(sum);
    return OX_OK;
}

/* Samples tokens until a stop token, --max-new-tokens or the end of the model's context. */
static enum ox_status generate_all(struct generating *g, const float *logits) {
    const uint64_t start_ns = ox_clock_ns();
    const uint64_t wanted = g->config->max_new_tokens;
    const uint32_t contexts = ox_hf_model(g->folder)->config.contexts;
    enum ox_status status = OX_OK;
    while (status == OX_OK && g->finish == NULL) {
        if (g->ids.count - g->prompt_count == wanted) {
            g->finish = "length";
            break;
        }
        if (g->ids.count == contexts) {
            g->finish = "context";
            break;
        }
        if (g->ids.count > g->prompt_count) {
            status = ox_generator_read(g->generator, &g->ids.ids[g->ids.count - 1], 1, NULL, &logits);
            g->steps++;
        }
        int32_t id = 0;
        OX_THEN(status, ox_sampler_next(g->sampler, logits, g->ids.count - 1, &id));
        OX_THEN(status, ox_ids_add(&g->ids, id));
        if (status == OX_OK && is_stop(g, id)) {
            g->finish = "stop";
        } else if (status == OX_OK) {
            g->text_end = g->ids.count;
            status = stream_to(g, g->text_end, false);
        }
    }
    g->step_seconds = seconds_since(start_ns);
    return status;
}

static enum ox_status generate(struct generating *g) {
    const uint64_t start_ns = ox_clock_ns();
    const bool reports = g->config->top_logits > 0;
    const float *logits = NULL;
    g->text_end = g->prompt_count;
    g->stream = (struct stream){.from = g->text_begin, .shown = g->text_begin};
    g->streams = strcmp(g->config->format, "json") != 0;
    enum ox_status status = ox_generator_read(g->generator, g->ids.ids, (uint32_t)g->prompt_count,
                                              reports ? &g->nll_sum : NULL, &logits);
    OX_THEN(status, ox_hf_verify(g->folder)); /* all weights are read, and nothing is printed yet */
    OX_THEN(status, stream_to(g, g->prompt_count, false));
    if (status == OX_OK && reports) {
        status = examine_logits(g, logits);
    }
    OX_THEN(status, generate_all(g, logits));
    OX_THEN(status, stream_to(g, g->text_end, true));
    OX_THEN(status, ox_hf_verify(g->folder)); /* nobody has written to the weights, which may be read in every pass */
    if (g->streams && g->stream.line_open) {
        putchar('\n');
    }
    g->seconds = seconds_since(start_ns);
    return status;
}

/* ---- report ------------------------------------------------------------------------------------------ */

static double steps_per_second(const struct generating *g) {
    return g->steps > 0 && g->step_seconds > 0 ? (double)g->steps / g->step_seconds : 0;
}

static json_t *ids_json(const struct generating *g) {
    json_t *const out = json_array();
    for (size_t i = 0; out != NULL && i < g->ids.count; i++) {
        json_array_append_new(out, json_integer(g->ids.ids[i]));
    }
    return out;
}

static json_t *logits_json(const struct generating *g) {
    json_t *const top = json_array();
    for (size_t i = 0; top != NULL && i < g->top_count; i++) {
        json_array_append_new(top, json_pack("[i, f]", (int)g->top[i].id, (double)g->top[i].value));
    }
    return json_pack("{s:o, s:f, s:f}", "top", top, "sum", g->logit_sum, "logsumexp", g->logsumexp);
}

static enum ox_status print_json(const struct generating *g) {
    char *text = NULL;
    size_t bytes = 0;
    OX_TRY(decode(g, g->ids.ids + g->text_begin, g->text_end - g->text_begin, &text, &bytes));
    json_t *const json = json_pack(
        "{s:o, s:o, s:o, s:I, s:I, s:s, s:f, s:f}", "model", ox_json_text(g->config->model), "ids", ids_json(g),
        "text", json_stringn(text, bytes), "prompt_tokens", (json_int_t)g->prompt_count, "new_tokens",
        (json_int_t)(g->ids.count - g->prompt_count), "finish", g->finish, "seconds", g->seconds,
        "tokens_per_second", steps_per_second(g));
    free(text);
    if (json != NULL && g->config->top_logits > 0) {
        const size_t judged = g->prompt_count - 1;
        json_object_set_new(json, "prompt_logits", logits_json(g));
        json_object_set_new(json, "prompt_mean_nll",
                            judged > 0 ? json_real(g->nll_sum / (double)judged) : json_null());
    }
    return ox_print_json(stdout, json, JSON_COMPACT | JSON_REAL_PRECISION(17), "the result");
}

static void log_summary(const struct generating *g) {
    static const struct {
        const char *finish, *words;
    } endings[] = {{"length", "--max-new-tokens reached"},
                   {"stop", "the model ended the text"},
                   {"context", "the model's context is full"}};
    const char *words = "";
    for (int i = 0; i < 3; i++) {
        words = strcmp(endings[i].finish, g->finish) == 0 ? endings[i].words : words;
    }
    const bool is_cut = g->config->chat && strcmp(g->finish, "stop") != 0;
    ox_log(OX_LOG_INFO,
           "model %s%s%s: %zu token%s read, %zu new | %.1f s, %.1f tokens per second after the prompt | %s%s",
           g->config->model, g->on_gpu ? " on " : "", g->on_gpu ? g->gpu.name : "", g->prompt_count,
           ox_plural(g->prompt_count), g->ids.count - g->prompt_count, g->seconds, steps_per_second(g), words,
           is_cut ? " before the answer ended: a model that never writes the end of a turn was not trained with this "
                    "chat template" : "");
}

static enum ox_status report(struct generating *g) {
    if (!g->streams) {
        return print_json(g);
    }
    log_summary(g);
    return OX_OK;
}

int ox_cmd_generate(const struct ox_config *given) {
    static struct ox_config config; /* tens of kilobytes */
    static enum ox_status (*const phases[])(struct generating *) = {
        check_options, pick_device, open_text, open_generator, generate, report};
    struct generating g = {.config = &config};
    config = *given;
    enum ox_status status = ox_run_find_model(given->model, config.model);
    for (unsigned i = 0; status == OX_OK && i < sizeof phases / sizeof *phases; i++) {
        status = phases[i](&g);
    }
    free(g.top);
    ox_sampler_close(&g.sampler);
    ox_generator_close(&g.generator);
    ox_ids_free(&g.stops);
    ox_ids_free(&g.ids);
    ox_chat_close(&g.renderer);
    ox_template_close(&g.chat_template);
    ox_tokenizer_close(&g.tokenizer);
    ox_hf_close(&g.folder);
    return ox_cmd_exit(status);
}
