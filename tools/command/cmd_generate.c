/* `offload generate`: continues a prompt with a model, answers it, or holds a conversation. */
#include "tools/command/cmd.h"
#include "tools/command/generating.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/pool.h"
#include "engine/text/text.h"
#include "engine/run/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* rows of a prompt read at once */
enum { JSON_BYTES_MAX = 16 << 20, CHUNK_ROWS = 512 };
enum { CONVERSATION_TOKENS = 4096 }; /* room for the keys and values of one */

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
static enum ox_status find_stops(struct ox_generating *g) {
    char path[OX_PATH_BYTES];
    json_t *json = NULL;
    if (g->config->write.ignore_eos) {
        return OX_OK;
    }
    enum ox_status status = read_stops(&g->stops, g->config->files.model, ox_hf_config(g->folder));
    OX_THEN(status, ox_path_join(g->text_folder, "generation_config.json", path));
    if (status == OX_OK && ox_path_exists(path)) {
        status = ox_json_load(path, JSON_BYTES_MAX, &json);
        OX_THEN(status, read_stops(&g->stops, path, json));
        json_decref(json);
    }
    OX_THEN(status, ox_ids_add(&g->stops, g->tokenizer != NULL ? ox_tokenizer_eos(g->tokenizer) : -1));
    return status == OX_OK && g->config->write.chat ? ox_chat_ends_of_turn(g->renderer, &g->stops) : status;
}

static bool is_stop(const struct ox_generating *g, int32_t id) {
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

static enum ox_status print_text(struct ox_generating *g, const char *text, size_t bytes) {
    if (bytes == 0 || !g->streams) {
        return OX_OK;
    }
    g->stream.line_open = text[bytes - 1] != '\n';
    return fwrite(text, 1, bytes, stdout) == bytes && fflush(stdout) == 0
               ? OX_OK : ox_fail(OX_E_IO, "the text could not be written to stdout");
}

/* The text behind the prompt, in *all from byte *begin on. */
static enum ox_status decode_new(const struct ox_generating *g, char **all, size_t *begin, size_t *bytes) {
    char *prompt = NULL;
    const int32_t *const ids = g->ids.ids + g->text_begin;
    *begin = 0;
    enum ox_status status = ox_generating_decode(g, ids, g->text_end - g->text_begin, all, bytes);
    if (status == OX_OK && g->prompt_count > g->text_begin) {
        status = ox_generating_decode(g, ids, g->prompt_count - g->text_begin, &prompt, begin);
    }
    free(prompt);
    *begin = *begin < *bytes ? *begin : *bytes;
    return status;
}

/* Adds what came since the last call to the text behind the prompt, without decoding that anew. *bytes counts it, with
 * a character at its end that is still incomplete. */
static enum ox_status say(struct ox_generating *g, size_t *bytes) {
    struct ox_said *const said = &g->said;
    const int32_t *const ids = g->ids.ids + said->from;
    char *before = NULL, *text = NULL;
    size_t before_bytes = 0, text_bytes = 0;
    enum ox_status status = ox_generating_decode(g, ids, said->shown - said->from, &before, &before_bytes);
    OX_THEN(status, ox_generating_decode(g, ids, g->text_end - said->from, &text, &text_bytes));
    const size_t added = status == OX_OK && text_bytes > before_bytes ? text_bytes - before_bytes : 0;
    if (status == OX_OK && said->bytes + added > said->room) {
        char *const longer = realloc(said->text, 2 * (said->bytes + added));
        status = longer != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "no memory for the text");
        said->text = longer != NULL ? longer : said->text;
        said->room = longer != NULL ? 2 * (said->bytes + added) : said->room;
    }
    if (status == OX_OK && added > 0) {
        memcpy(said->text + said->bytes, text + before_bytes, added);
    }
    *bytes = said->bytes + added;
    free(before);
    free(text);
    return status;
}

/* With stop texts: looks for one in what is new, and prints what cannot be the beginning of one. */
static enum ox_status stream_before_stop(struct ox_generating *g, bool last) {
    struct ox_said *const said = &g->said;
    size_t bytes = 0;
    enum ox_status status = say(g, &bytes);
    if (status != OX_OK || bytes == 0) {
        return status;
    }
    const size_t longest = ox_stop_longest(&g->stop_texts), begin = said->bytes > longest ? said->bytes - longest : 0;
    const size_t found = begin + ox_stop_find(&g->stop_texts, said->text + begin, bytes - begin);
    const bool ends = found < bytes, open = ends_open(said->text, bytes);
    size_t safe = ends || last ? found : found - ox_stop_pending(&g->stop_texts, said->text, found);
    safe = !ends && !last && ends_open(said->text, safe) ? safe - 3 : safe;
    g->text_bytes = ends ? found : SIZE_MAX;
    g->finish = ends ? "stop" : g->finish;
    if (safe > said->printed) {
        status = print_text(g, said->text + said->printed, safe - said->printed);
        said->printed = safe;
    }
    if (!open) {
        said->bytes = bytes;
        said->from = said->shown;
        said->shown = g->text_end;
    }
    return status;
}

/* Prints what the tokens up to `count` add. An incomplete character waits for its last bytes, unless `last`. */
static enum ox_status stream_to(struct ox_generating *g, size_t count, bool last) {
    struct ox_text_stream *const stream = &g->stream;
    const int32_t *const ids = g->ids.ids + stream->from;
    char *before = NULL, *text = NULL;
    size_t before_bytes = 0, bytes = 0;
    if (g->stop_texts.count > 0 && count > g->prompt_count) {
        return stream_before_stop(g, last);
    }
    if (!g->streams || count == stream->from) {
        return OX_OK;
    }
    enum ox_status status = ox_generating_decode(g, ids, stream->shown - stream->from, &before, &before_bytes);
    OX_THEN(status, ox_generating_decode(g, ids, count - stream->from, &text, &bytes));
    if (status == OX_OK && bytes > before_bytes && (last || !ends_open(text, bytes))) {
        status = print_text(g, text + before_bytes, bytes - before_bytes);
        stream->from = stream->shown;
        stream->shown = count;
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
    return config->place.compute_threads > 0 ? (uint32_t)config->place.compute_threads : ox_processor_count();
}

static struct ox_host_claim claim_of(const struct ox_generating *g) {
    const uint32_t threads = threads_of(g->config);
    return (struct ox_host_claim){
        .host_bytes = g->config->memory.host_mem_bytes,
        .address_bytes = threads * OX_CPU_THREAD_ADDRESS_BYTES,
        .beside_bytes = ox_fixed_overhead_bytes(threads, 0, 0) + (g->on_gpu ? (uint64_t)OX_CUDA_HOST_BYTES : 0)};
}

/* The CPU computes in host memory alone. */
static enum ox_status pick_cpu(const struct ox_config *config) {
    const bool given = config->memory.device_mem_bytes > 0;
    return given ? ox_fail(OX_E_CONFIG, "--device-mem: generating on the CPU takes host memory alone; give --host-mem, "
                           "or --device cuda where there is a GPU")
                 : OX_OK;
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
static enum ox_status pick_device(struct ox_generating *g) {
    const struct ox_config *const config = g->config;
    uint64_t process_bytes = OX_CUDA_PROCESS_BYTES, bytes = config->memory.device_mem_bytes;
    if (config->memory.device == OX_DEVICE_CHOICE_CPU) {
        return pick_cpu(config);
    }
    enum ox_status status = ox_cuda_device_look(&g->cuda, &g->gpu, &process_bytes);
    const struct ox_cuda_memory memory = {.gpu = &g->gpu, .process_bytes = process_bytes};
    if (status == OX_OK && bytes == 0) {
        status = ox_cuda_memory_free(&memory, &bytes);
    }
    if (status != OX_OK && config->memory.device == OX_DEVICE_CHOICE_AUTO) {
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
static enum ox_status open_text(struct ox_generating *g) {
    const struct ox_host_claim claim = claim_of(g);
    ox_host_text_begin(&claim, 0);
    enum ox_status status = ox_generating_model(g);
    OX_THEN(status, ox_generating_prompt(g));
    OX_THEN(status, find_stops(g));
    return ox_host_text_end(&claim, status);
}

static enum ox_status open_generator(struct ox_generating *g) {
    const struct ox_config *const config = g->config;
    const struct ox_model_config *const model = &ox_hf_model(g->folder)->config;
    const uint64_t room = g->prompt_count < model->contexts ? model->contexts - g->prompt_count : 0;
    if (g->prompt_count + (config->write.max_new_tokens > 0) > model->contexts) {
        return ox_fail(OX_E_CONFIG, "the prompt has %zu tokens, but the model attends to %" PRIu32 " in all, "
                       "including new ones; shorten the prompt", g->prompt_count, model->contexts);
    }
    const uint32_t threads = threads_of(config);
    const struct ox_host_claim claim = claim_of(g);
    enum ox_status status = ox_host_claim_check(&claim);
    const struct ox_generator_config generator = {
        .folder = g->folder,
        .where = config->files.model,
        .dtype = config->train.dtype,
        .threads = threads,
        .host_bytes = claim.host_bytes > 0 ? claim.host_bytes : ox_default_host_bytes(&claim),
        .cuda = g->on_gpu ? &g->cuda : NULL,
        .device_bytes = g->gpu_bytes - g->process_bytes,
        .device_beside_bytes = g->process_bytes,
        .contexts = g->messages != NULL
                        ? (uint32_t)ox_min_u64(model->contexts, CONVERSATION_TOKENS)
                        : (uint32_t)(g->prompt_count +
                                     (config->write.max_new_tokens < room ? config->write.max_new_tokens : room)),
        .chunk_rows = g->messages == NULL && g->prompt_count < CHUNK_ROWS ? (uint32_t)g->prompt_count : CHUNK_ROWS};
    const struct ox_sampling sampling = {.temperature = config->write.temperature, .top_k = config->write.top_k,
                                         .top_p = config->write.top_p, .seed = config->train.seed,
                                         .repetition_penalty = config->write.repetition_penalty};
    OX_THEN(status, ox_sampler_open(&sampling, model->vocab, &g->sampler));
    OX_THEN(status, ox_generator_open(&generator, &g->generator));
    return status;
}

/* Computes the report on the logits after the prompt. */
static enum ox_status examine_logits(struct ox_generating *g, const float *logits) {
    const uint32_t vocab = ox_hf_model(g->folder)->config.vocab;
    g->top_count = g->config->write.top_logits < vocab ? (size_t)g->config->write.top_logits : vocab;
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
static enum ox_status generate_all(struct ox_generating *g, const float *logits) {
    const uint64_t start_ns = ox_clock_ns();
    const uint64_t wanted = g->config->write.max_new_tokens;
    const uint32_t contexts = ox_generator_room(g->generator);
    enum ox_status status = OX_OK;
    ox_sampler_forget(g->sampler);
    for (size_t i = 0; i < g->ids.count; i++) {
        ox_sampler_see(g->sampler, g->ids.ids[i]);
    }
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
        ox_sampler_see(g->sampler, id);
        if (status == OX_OK && is_stop(g, id)) {
            g->finish = "stop";
        } else if (status == OX_OK) {
            g->text_end = g->ids.count;
            status = stream_to(g, g->text_end, false);
        }
    }
    g->step_seconds += seconds_since(start_ns);
    g->made += g->ids.count - g->prompt_count;
    return status;
}

static json_t *ids_json(const struct ox_generating *g) {
    json_t *const out = json_array();
    for (size_t i = 0; out != NULL && i < g->ids.count; i++) {
        json_array_append_new(out, json_integer(g->ids.ids[i]));
    }
    return out;
}

/* The text up to a stop text; the caller frees it. */
static enum ox_status text_of(const struct ox_generating *g, bool with_prompt, char **text, size_t *bytes) {
    size_t begin = 0;
    enum ox_status status = decode_new(g, text, &begin, bytes);
    if (status == OX_OK) {
        *bytes = g->text_bytes < *bytes - begin ? begin + g->text_bytes : *bytes;
        begin = with_prompt ? 0 : begin;
        *bytes -= begin;
        memmove(*text, *text + begin, *bytes);
        (*text)[*bytes] = '\0';
    }
    return status;
}

static enum ox_status add_sample(struct ox_generating *g) {
    char *text = NULL;
    size_t bytes = 0;
    OX_TRY(text_of(g, true, &text, &bytes));
    const int failed = json_array_append_new(
        g->samples, json_pack("{s:o, s:o, s:I, s:s}", "ids", ids_json(g), "text", json_stringn(text, bytes),
                              "new_tokens", (json_int_t)(g->ids.count - g->prompt_count), "finish", g->finish));
    free(text);
    return failed == 0 ? OX_OK : ox_fail(OX_E_NOMEM, "no memory for a sample");
}

/* Begins an answer behind the tokens read. */
static void begin_answer(struct ox_generating *g) {
    g->text_end = g->prompt_count;
    g->stream = (struct ox_text_stream){.from = g->text_begin, .shown = g->text_begin};
    g->said.bytes = g->said.printed = 0;
    g->said.shown = g->prompt_count;
    g->said.from = g->prompt_count > g->text_begin ? g->prompt_count - 1 : g->text_begin;
    g->text_bytes = SIZE_MAX;
    g->finish = NULL;
}

static enum ox_status generate_one(struct ox_generating *g, const float *logits) {
    enum ox_status status = stream_to(g, g->prompt_count, false);
    OX_THEN(status, generate_all(g, logits));
    OX_THEN(status, stream_to(g, g->text_end, true));
    if (g->streams && g->stream.line_open) {
        putchar('\n');
    }
    return status;
}

/* ---- a conversation ------------------------------------------------------------------------------------ */

/* Answers the messages: reads what the cache does not have of them. */
static enum ox_status answer(struct ox_generating *g) {
    const struct ox_ids before = g->ids;
    const float *logits = NULL;
    size_t same = 0;
    g->ids = (struct ox_ids){0};
    enum ox_status status = ox_generating_encode(g, "the conversation", g->messages);
    const size_t known = ox_min_u64(ox_generator_count(g->generator), g->ids.count > 0 ? g->ids.count - 1 : 0);
    while (status == OX_OK && same < known && before.ids[same] == g->ids.ids[same]) {
        same++;
    }
    free(before.ids);
    if (status == OX_OK && (g->ids.count == 0 || g->ids.count >= ox_generator_room(g->generator))) {
        return ox_fail(OX_E_CONFIG, "the conversation has %zu tokens, and there is room for %" PRIu32 "; begin another",
                       g->ids.count, ox_generator_room(g->generator));
    }
    g->prompt_count = g->text_begin = g->ids.count;
    begin_answer(g);
    ox_generator_rewind(g->generator, (uint32_t)same);
    OX_THEN(status, ox_generator_read(g->generator, g->ids.ids + same, (uint32_t)(g->ids.count - same), NULL, &logits));
    OX_THEN(status, generate_one(g, logits));
    char *text = NULL;
    size_t bytes = 0;
    OX_THEN(status, text_of(g, false, &text, &bytes));
    OX_THEN(status, ox_generating_add(g->messages, "assistant", text));
    free(text);
    return status;
}

/* Each line of the standard input is a message. */
static enum ox_status converse(struct ox_generating *g) {
    const bool asks = isatty(STDIN_FILENO) != 0;
    char *line = NULL;
    size_t room = 0;
    bool any = false; /* messages */
    enum ox_status status = OX_OK;
    if (asks) {
        ox_log(OX_LOG_INFO, "a line is a message; /reset begins another conversation, /exit or Ctrl-D ends");
    }
    while (status == OX_OK) {
        if (asks) {
            fputs("> ", stderr);
        }
        ssize_t bytes = getline(&line, &room, stdin);
        if (bytes < 0 || strcmp(line, "/exit\n") == 0) {
            break;
        }
        bytes -= line[bytes - 1] == '\n';
        line[bytes] = '\0';
        if (strcmp(line, "/reset") == 0) {
            json_array_clear(g->messages);
            status = ox_generating_begin(g, g->messages);
        } else if (bytes > 0) {
            any = true;
            status = ox_generating_check_text("the message", line, (size_t)bytes);
            OX_THEN(status, ox_generating_add(g->messages, "user", line));
            OX_THEN(status, answer(g));
        }
    }
    free(line);
    if (status == OX_OK && !asks && !any) {
        status = ox_fail(OX_E_CONFIG, "the standard input has no line, and so no message; give --prompt TEXT, or a "
                         "line for each message");
    }
    return status == OX_OK ? ox_hf_verify(g->folder) : status;
}

/* ---- one prompt ---------------------------------------------------------------------------------------- */

/* Samples several texts behind one prompt, each with a seed of its own. `logits` are those after the prompt. */
static enum ox_status generate_several(struct ox_generating *g, const float *logits) {
    const uint64_t count = g->config->write.num_return_sequences;
    const size_t bytes = ox_hf_model(g->folder)->config.vocab * sizeof *logits;
    float *const kept = malloc(bytes);
    g->samples = json_array();
    enum ox_status status = kept != NULL && g->samples != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "no memory for samples");
    if (status == OX_OK) {
        memcpy(kept, logits, bytes);
    }
    for (uint64_t k = 0; k < count && status == OX_OK; k++) {
        ox_generator_rewind(g->generator, (uint32_t)g->prompt_count);
        ox_sampler_seed(g->sampler, g->config->train.seed + k);
        g->ids.count = g->prompt_count;
        begin_answer(g);
        if (g->streams) {
            printf("%s[%" PRIu64 "/%" PRIu64 "]\n", k > 0 ? "\n" : "", k + 1, count);
        }
        status = generate_one(g, kept);
        OX_THEN(status, add_sample(g));
    }
    free(kept);
    return status;
}

static enum ox_status generate(struct ox_generating *g) {
    const uint64_t start_ns = ox_clock_ns();
    const bool reports = g->config->write.top_logits > 0;
    const float *logits = NULL;
    g->streams = strcmp(g->config->tool.format, "json") != 0;
    begin_answer(g);
    if (g->messages != NULL) {
        return converse(g);
    }
    enum ox_status status = ox_generator_read(g->generator, g->ids.ids, (uint32_t)g->prompt_count,
                                              reports ? &g->nll_sum : NULL, &logits);
    OX_THEN(status, ox_hf_verify(g->folder)); /* all weights are read, and nothing is printed yet */
    if (status == OX_OK && reports) {
        status = examine_logits(g, logits);
    }
    OX_THEN(status, g->config->write.num_return_sequences > 1 ? generate_several(g, logits) : generate_one(g, logits));
    OX_THEN(status, ox_hf_verify(g->folder)); /* nobody has written to the weights, which may be read in every pass */
    g->seconds = seconds_since(start_ns);
    return status;
}

/* ---- report ------------------------------------------------------------------------------------------ */

static double steps_per_second(const struct ox_generating *g) {
    return g->steps > 0 && g->step_seconds > 0 ? (double)g->steps / g->step_seconds : 0;
}

static json_t *logits_json(const struct ox_generating *g) {
    json_t *const top = json_array();
    for (size_t i = 0; top != NULL && i < g->top_count; i++) {
        json_array_append_new(top, json_pack("[i, f]", (int)g->top[i].id, (double)g->top[i].value));
    }
    return json_pack("{s:o, s:f, s:f}", "top", top, "sum", g->logit_sum, "logsumexp", g->logsumexp);
}

static enum ox_status print_json(const struct ox_generating *g) {
    char *text = NULL;
    size_t bytes = 0;
    OX_TRY(text_of(g, true, &text, &bytes));
    json_t *const json = json_pack(
        "{s:o, s:o, s:o, s:I, s:I, s:s, s:f, s:f}", "model", ox_json_text(g->config->files.model), "ids", ids_json(g),
        "text", json_stringn(text, bytes), "prompt_tokens", (json_int_t)g->prompt_count, "new_tokens",
        (json_int_t)(g->ids.count - g->prompt_count), "finish", g->finish, "seconds", g->seconds,
        "tokens_per_second", steps_per_second(g));
    free(text);
    if (json != NULL && g->samples != NULL) {
        json_object_set(json, "samples", g->samples);
    }
    if (json != NULL && g->config->write.top_logits > 0) {
        const size_t judged = g->prompt_count - 1;
        json_object_set_new(json, "prompt_logits", logits_json(g));
        json_object_set_new(json, "prompt_mean_nll",
                            judged > 0 ? json_real(g->nll_sum / (double)judged) : json_null());
    }
    return ox_print_json(stdout, json, JSON_COMPACT | JSON_REAL_PRECISION(17), "the result");
}

static void log_summary(const struct ox_generating *g) {
    const struct {
        const char *finish, *words;
    } endings[] = {{"length", "--max-new-tokens reached"},
                   {"stop", g->text_bytes == SIZE_MAX ? "the model ended the text" : "a text of --stop came"},
                   {"context", "the model's context is full"}};
    const char *words = "";
    for (int i = 0; i < 3; i++) {
        words = strcmp(endings[i].finish, g->finish) == 0 ? endings[i].words : words;
    }
    const bool is_cut = g->config->write.chat && strcmp(g->finish, "stop") != 0;
    const char *const adapter = g->config->parts.adapter;
    ox_log(OX_LOG_INFO,
           "model %s%s%s%s%s: %zu token%s read, %zu new | %.1f s, %.1f tokens per second after the prompt | %s%s",
           g->config->files.model, adapter[0] != '\0' ? " with the adapter " : "", adapter,
           g->on_gpu ? " on " : "", g->on_gpu ? g->gpu.name : "", g->prompt_count, ox_plural(g->prompt_count),
           g->made, g->seconds, steps_per_second(g), words,
           is_cut ? " before the answer ended: if that is always so, the model was not, or not yet, trained with this "
                    "chat template" : "");
}

static enum ox_status report(struct ox_generating *g) {
    if (g->messages != NULL) {
        return OX_OK;
    }
    if (!g->streams) {
        return print_json(g);
    }
    log_summary(g);
    return OX_OK;
}

int ox_cmd_generate(const struct ox_config *given) {
    static struct ox_config config; /* tens of kilobytes */
    static enum ox_status (*const phases[])(struct ox_generating *) = {
        ox_generating_check, pick_device, open_text, open_generator, generate, report};
    struct ox_generating g = {.config = &config};
    config = *given;
    enum ox_status status = ox_run_find_model(given->files.model, config.files.model);
    for (unsigned i = 0; status == OX_OK && i < sizeof phases / sizeof *phases; i++) {
        status = phases[i](&g);
    }
    free(g.top);
    json_decref(g.messages);
    json_decref(g.samples);
    free(g.said.text);
    ox_stop_texts_close(&g.stop_texts);
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
