/* `offload tokenize --train`: trains a byte-level BPE tokenizer on texts. */
#include "tools/command/cmd.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/data/corpus_texts.h"
#include "engine/run/host_memory.h"
#include "engine/run/preview.h"
#include "engine/vocab/bpe_train.h"
#include "tools/start/status_line.h"

#include <inttypes.h>
#include <string.h>

static const uint64_t pause_live_ns = UINT64_C(200000000), pause_ns = UINT64_C(5000000000);

enum { TAG_BYTES = 48 };

struct work {
    struct ox_bpe_trainer *trainer;
    const struct ox_bpe_specials *specials;
    char tag[TAG_BYTES]; /* the first that the texts spell and that is no special token; "": none */
    uint64_t tag_count;  /* of that one */
    uint64_t begin_ns, said_ns;
    uint64_t texts, bytes; /* taken */
    bool quiet;
};

/* Whether it is time for another line. */
static bool is_time(struct work *work) {
    const uint64_t now = ox_clock_ns();
    if (work->quiet || now - work->said_ns < (ox_status_is_live() ? pause_live_ns : pause_ns)) {
        return false;
    }
    work->said_ns = now;
    return true;
}

/* Counts what is spelled as <|special tokens|> are and is none of those given: its letters are learned as words. */
static void look_for_tags(struct work *work, const char *text, size_t bytes) {
    static const char inner[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    const char *const end = text + bytes;
    for (const char *at = text; (at = memmem(at, (size_t)(end - at), "<|", 2)) != NULL; at += 2) {
        char tag[TAG_BYTES];
        size_t length = 2;
        while (at + length < end && length < sizeof tag - 3 && strchr(inner, at[length]) != NULL &&
               at[length] != '\0') {
            length++;
        }
        if (length == 2 || (size_t)(end - at) < length + 2 || memcmp(at + length, "|>", 2) != 0) {
            continue;
        }
        snprintf(tag, sizeof tag, "%.*s", (int)length + 2, at);
        bool known = false;
        for (uint32_t i = 0; i < work->specials->count; i++) {
            known = known || strcmp(work->specials->texts[i], tag) == 0;
        }
        if (!known && work->tag[0] == '\0') {
            memcpy(work->tag, tag, sizeof tag);
        }
        work->tag_count += strcmp(work->tag, tag) == 0;
    }
}

static enum ox_status take_text(void *context, const char *text, size_t bytes, bool continues) {
    struct work *const work = context;
    work->texts += !continues;
    work->bytes += bytes;
    look_for_tags(work, text, bytes);
    return ox_bpe_trainer_add(work->trainer, text, bytes, continues);
}

static void say_read(void *context, uint64_t bytes, uint64_t bytes_all) {
    struct work *const work = context;
    struct ox_status_line line = {0};
    if (is_time(work)) {
        ox_status_add(&line, 0, "reading %.0f %%", bytes_all > 0 ? 100 * (double)bytes / (double)bytes_all : 100);
        ox_status_add(&line, 1, "%" PRIu64 " different words", ox_bpe_trainer_word_count(work->trainer));
        ox_status_add(&line, 2, "%.1f MB/s", (double)work->bytes / 1e-3 / (double)(work->said_ns - work->begin_ns));
        ox_status_show(&line);
    }
}

static void say_merged(void *context, uint64_t merges, uint64_t merges_max) {
    struct work *const work = context;
    struct ox_status_line line = {0};
    if (is_time(work)) {
        ox_status_add(&line, 0, "merge %" PRIu64 "/%" PRIu64, merges, merges_max);
        ox_status_show(&line);
    }
}

static enum ox_status read_texts(const struct ox_config *config, struct work *work) {
    const struct ox_text_taker taker = {
        .take = take_text, .progress = say_read, .context = work, .cuts = ox_bpe_trainer_cuts(work->trainer)};
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < config->files.data_count && status == OX_OK; i++) {
        const struct ox_corpus_config corpus = ox_corpus_of_options(config, config->files.data[i].path);
        status = ox_corpus_each_text(&corpus, &taker);
    }
    return status;
}

/* Says which token has which role: "<s>,</s>" alone makes <s> the end of documents, which may not be meant. */
static void say_specials(const struct ox_bpe_specials *specials) {
    static const char *const roles[OX_BPE_ROLE_COUNT] = {"", " ends documents (eos)", " begins them (bos)",
                                                         " pads (pad)", " is unknown (unk)"};
    char text[1024] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < specials->count && used < sizeof text; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s%s", i > 0 ? ", " : "", specials->texts[i],
                                 roles[specials->roles[i]]);
    }
    if (specials->count > 0) {
        ox_log(OX_LOG_INFO, "special tokens: %s", text);
    }
}

static void report(const struct ox_config *config, const struct work *work, const struct ox_bpe_specials *specials,
                   uint32_t vocab_count) {
    const uint64_t words = ox_bpe_trainer_word_count(work->trainer);
    const double seconds = (double)(ox_clock_ns() - work->begin_ns) / 1e9;
    if (strcmp(config->tool.format, "json") == 0) {
        printf("{\"vocab\":%" PRIu32 ",\"texts\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"words\":%" PRIu64
               ",\"seconds\":%.3f}\n", vocab_count, work->texts, work->bytes, words, seconds);
        return;
    }
    char size[OX_SIZE_TEXT_BYTES];
    printf("%s: %" PRIu32 " tokens, from %" PRIu64 " text%s of %s with %" PRIu64 " different words, in %.1f s\n",
           config->files.output_dir, vocab_count, work->texts, ox_plural(work->texts), ox_size_text(work->bytes, size),
           words, seconds);
    fflush(stdout); /* before what is logged */
    say_specials(specials);
    if (work->tag[0] != '\0') {
        ox_log(OX_LOG_WARN, "the texts spell %s, %" PRIu64 " time%s, which is no special token here, so that its "
               "letters are learned as text; if it is meant as one, add it to --special-tokens", work->tag,
               work->tag_count, ox_plural(work->tag_count));
    }
    if (vocab_count < config->vocab.vocab_size) {
        ox_log(OX_LOG_WARN, "the texts have no more pairs to merge: %" PRIu32 " tokens in place of %" PRIu64,
               vocab_count, config->vocab.vocab_size);
    }
}

enum ox_status ox_train_tokenizer(const struct ox_config *config) {
    const struct ox_host_claim claim = {.host_bytes = config->memory.host_mem_bytes,
                                        .beside_bytes = ox_fixed_overhead_bytes(1, 0, 0)};
    struct work work = {.begin_ns = ox_clock_ns(), .said_ns = ox_clock_ns(), .quiet = config->tool.quiet};
    struct ox_bpe_specials specials;
    work.specials = &specials;
    const struct ox_bpe_training training = {.vocab_size = (uint32_t)config->vocab.vocab_size,
                                             .min_frequency = config->vocab.min_frequency,
                                             .words = (enum ox_bpe_words)config->vocab.word_rules,
                                             .specials = &specials,
                                             .progress = say_merged,
                                             .context = &work};
    uint32_t vocab_count = 0;
    ox_host_text_begin(&claim, 0);
    enum ox_status status = ox_bpe_specials_read(config->vocab.special_tokens, &specials);
    OX_THEN(status, ox_bpe_trainer_open(&training, &work.trainer));
    OX_THEN(status, read_texts(config, &work));
    OX_THEN(status, ox_bpe_trainer_run(work.trainer, &vocab_count));
    OX_THEN(status, ox_bpe_trainer_save(work.trainer, config->files.output_dir));
    ox_status_clear();
    if (status == OX_OK) {
        report(config, &work, &specials, vocab_count);
    }
    ox_bpe_trainer_close(&work.trainer);
    ox_bpe_specials_free(&specials);
    return ox_host_text_end(&claim, status);
}
