/* Corpora: ids, masks and borders of every form, the choice of BOS and EOS, when a cache is used again, threads, and
 * what is refused. */
#include "base/file.h"
#include "base/log.h"
#include "engine/data/corpus.h"
#include "engine/data/token_cache.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char warning[512];

static void keep_warning(void *context, enum ox_log_level level, const char *line) {
    (void)context;
    if (level == OX_LOG_WARN) {
        snprintf(warning, sizeof warning, "%s", line);
    }
}

/* Byte by byte, but for "the", with BOS and EOS as asked; the chat template is that of ChatML. */
static void write_tokenizer(const char *name, bool adds_bos, bool has_ends, bool merges) {
    static const char *const ends = "{\"id\":257,\"content\":\"<s>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":"
                                    "false,\"normalized\":false,\"special\":true},{\"id\":258,\"content\":\"</s>\","
                                    "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                                    "\"special\":true},{\"id\":259,\"content\":\"<|im_start|>\",\"single_word\":false,"
                                    "\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true},"
                                    "{\"id\":260,\"content\":\"<|im_end|>\",\"single_word\":false,\"lstrip\":false,"
                                    "\"rstrip\":false,\"normalized\":false,\"special\":true}";
    static char text[1 << 15];
    size_t used =
        (size_t)snprintf(text, sizeof text,
                         "{\"added_tokens\":[%s],\"normalizer\":null,\"pre_tokenizer\":null,"
                         "\"post_processor\":null,\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\","
                         "\"byte_fallback\":true,\"vocab\":{",
                         has_ends ? ends : "");
    for (int i = 0; i < 256; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "\"<0x%02X>\":%d,", i, i);
    }
    used += (size_t)snprintf(text + used, sizeof text - used, "\"<0x74><0x68>\":256},\"merges\":[%s]}}",
                             merges ? "\"<0x74> <0x68>\"" : "");
    char path[OX_PATH_BYTES];
    REQUIRE_OK(ox_folder_make(test_path(name)));
    snprintf(path, sizeof path, "%s/tokenizer.json", name);
    files_write(path, text, used);
    used =
        (size_t)snprintf(text, sizeof text,
                         "{%s\"add_bos_token\":%s,\"chat_template\":\"{%% for m in messages %%}<|im_start|>"
                         "{{ m.role }}\\n{{ m.content }}<|im_end|>\\n{%% endfor %%}"
                         "{%% if add_generation_prompt %%}<|im_start|>assistant\\n{%% endif %%}\"}",
                         has_ends ? "\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"," : "", adds_bos ? "true" : "false");
    snprintf(path, sizeof path, "%s/tokenizer_config.json", name);
    files_write(path, text, used);
}

/* ---- configurations, their own copies of paths ---------------------------------------------------------------- */

struct setup {
    const char *path, *tokenizer, *cache;
    struct ox_corpus_config config;
};

static struct setup *set_up(const char *name, const char *tokenizer, const char *cache) {
    static struct setup setups[8]; /* more than a test uses at once */
    static unsigned used;
    struct setup *const setup = &setups[used++ % 8];
    setup->path = test_path(name);
    setup->tokenizer = test_path(tokenizer);
    setup->cache = test_path(cache);
    setup->config = (struct ox_corpus_config){.path = setup->path,
                                              .tokenizer = tokenizer[0] != '\0' ? setup->tokenizer : "",
                                              .cache_dir = cache[0] != '\0' ? setup->cache : "",
                                              .separator = "",
                                              .chat_template = "",
                                              .chat_template_kwargs = "",
                                              .threads = 1};
    return setup;
}

/* Tokens as characters or <id>; "/" before a document, "_" before a token that is not trained. */
static void show(const struct ox_data *data, char *text, size_t room) {
    const uint64_t count = ox_data_token_count(data);
    int32_t tokens[512];
    uint8_t marks[512];
    size_t used = 0;
    CHECK(count <= 512);
    REQUIRE_OK(ox_data_read(data, 0, count, 261, tokens, marks));
    text[0] = '\0';
    for (uint64_t i = 0; i < count && i < 512; i++) {
        const char *const border = (marks[i] & OX_TOKEN_BEGINS) != 0 ? "/" : "";
        const char *const mask = (marks[i] & OX_TOKEN_TRAINED) != 0 ? "" : "_";
        used += (size_t)snprintf(text + used, room - used, tokens[i] < 128 ? "%s%s%c" : "%s%s<%d>", border, mask,
                                 tokens[i]);
    }
}

static void expect_config(const struct ox_corpus_config *config, const char *expected) {
    struct ox_corpus_report report;
    struct ox_data *data = NULL;
    char text[4096] = "";
    const enum ox_status status = ox_corpus_open(config, &data, &report);
    if (status == OX_OK) {
        show(data, text, sizeof text);
        CHECK(report.tokens == ox_data_token_count(data));
        CHECK(report.documents == ox_data_document_count(data) + ox_data_untrained_count(data));
        CHECK(report.tokenized && !report.reused);
    }
    if (status != OX_OK || strcmp(text, expected) != 0) {
        printf("  is       %s %s\n  must be  %s\n", ox_status_name(status), status == OX_OK ? text : ox_error_text(),
               expected);
        test_failure_count++;
    }
    ox_data_close(&data);
}

static void refuse_config(const struct ox_corpus_config *config, enum ox_status expected, const char *words) {
    struct ox_corpus_report report;
    struct ox_data *data = NULL;
    const enum ox_status status = ox_corpus_open(config, &data, &report);
    if (status != expected || data != NULL || strstr(ox_error_text(), words) == NULL) {
        printf("must be refused with '%s': %s %s\n", words, ox_status_name(status),
               status == OX_OK ? "" : ox_error_text());
        test_failure_count++;
    }
    ox_data_close(&data);
}

/* ---- forms --------------------------------------------------------------------------------------------------- */

static void test_texts(void) {
    struct ox_corpus_config *const config = &set_up("a.txt", "both", "")->config;
    files_write_text("a.txt", "the a\n");
    expect_config(config, "/<257><256>e a\n<258>");
    config->plain = true;
    expect_config(config, "/<256>e a\n");
    config->add_bos = OX_ADD_ON;
    expect_config(config, "/<257><256>e a\n");
    config->add_eos = OX_ADD_ON;
    expect_config(config, "/<257><256>e a\n<258>");
    config->plain = false;
    config->add_bos = config->add_eos = OX_ADD_OFF;
    expect_config(config, "/<256>e a\n");
    config->add_bos = config->add_eos = OX_ADD_AUTO;
    config->tokenizer = set_up("a.txt", "no_bos", "")->tokenizer;
    expect_config(config, "/<256>e a\n<258>");

    /* Ends that a text has already are not added again. */
    files_write_text("a.txt", "<s>the a</s>\n");
    expect_config(config, "/<257><256>e a<258>\n");
    config->separator = "--";
    files_write_text("a.txt", "<s>a</s> -- b --\n<s>c-- </s>");
    expect_config(config, "/<257>a<258>/b<258>/<257>c<258>/<258>");
    config->tokenizer = set_up("a.txt", "both", "")->tokenizer;
    expect_config(config, "/<257>a<258>/<257>b<258>/<257>c<258>/<257><258>");
    config->add_bos = config->add_eos = OX_ADD_ON;
    expect_config(config, "/<257>a<258>/<257>b<258>/<257>c<258>/<257><258>");
    config->add_bos = config->add_eos = OX_ADD_AUTO;
    config->tokenizer = set_up("a.txt", "no_bos", "")->tokenizer;

    files_write_text("a.txt", "a<s>-b--\n-c</s>");
    config->separator = "--\\n";
    config->add_eos = OX_ADD_OFF;
    expect_config(config, "/a<257>-b/-c<258>"); /* special strings in texts are tokens */
    config->separator = "\\x2D";
    expect_config(config, "/a<257>/b/c<258>");
    config->separator = "\\x2";
    refuse_config(config, OX_E_CONFIG, "separator");
    config->separator = "\\a";
    refuse_config(config, OX_E_CONFIG, "\"\\a\"");
}

static void test_rows(void) {
    static const char rows[] = "{\"text\": \"the<s>\"}\n"
                               "\n"
                               "{\"prompt\": \"a\", \"completion\": \"b</s>\"}\n"
                               "{\"messages\": [{\"role\": \"user\", \"content\": \"U\"}, {\"role\": \"assistant\", "
                               "\"content\": \"A</s>\"}]}\n";
    struct ox_corpus_config *const config = &set_up("a.jsonl", "both", "")->config;
    struct ox_corpus_report report;
    struct ox_data *data = NULL;
    struct ox_cache_header header;
    files_write_text("a.jsonl", rows);
#define CHAT "/_<259>_u_s_e_r_\n_U_<260>_\n_<259>_a_s_s_i_s_t_a_n_t_\nA"
    expect_config(config, "/<257><256>e<257><258>/_<257>_ab<258>" CHAT "</s><260>_\n");
    config->parse_special = true;
    expect_config(config, "/<257><256>e<257><258>/_<257>_ab<258>" CHAT "<258><260>_\n");
    config->plain = true; /* which rows do not heed */
    expect_config(config, "/<257><256>e<257><258>/_<257>_ab<258>" CHAT "<258><260>_\n");
    config->add_bos = config->add_eos = OX_ADD_OFF;
    expect_config(config, "/<256>e<257>/_ab<258>" CHAT "<258><260>_\n");
    config->add_bos = config->add_eos = OX_ADD_ON;
    config->tokenizer = set_up("a.jsonl", "no_bos", "")->tokenizer;
    expect_config(config, "/<257><256>e<257><258>/_<257>_ab<258>" CHAT "<258><260>_\n");
    REQUIRE_OK(ox_corpus_open(config, &data, &report));
    ox_data_cache_header(data, &header);
    CHECK(ox_data_is_chat(data) && header.source_bytes == sizeof rows - 1 && header.vocab == 261);
    CHECK(report.trained == header.trained_count && report.trained > 0 && report.trained < report.tokens);
    CHECK(report.documents == 3 && report.bytes == sizeof rows - 1);
    ox_data_close(&data);

    /* Rows without a token to be trained on are left out and counted, also from the cache; if all are, none is left. */
#define ASKED "{\"messages\": [{\"role\": \"user\", \"content\": \"U\"}]}\n"
    struct ox_corpus_config *const silent = &set_up("silent.jsonl", "both", "silent_cache")->config;
    files_write_text("silent.jsonl", ASKED "{\"text\": \"a\"}\n" ASKED);
    expect_config(silent, "/<257>a<258>");
    REQUIRE_OK(ox_corpus_open(silent, &data, &report));
    CHECK(report.reused && report.documents == 3 && report.tokens == 3 && ox_data_document_count(data) == 1);
    CHECK(ox_data_untrained_count(data) == 2 && ox_data_is_chat(data));
    ox_data_close(&data);
    files_write_text("silent.jsonl", ASKED);
    expect_config(silent, "");
    REQUIRE_OK(ox_corpus_open(silent, &data, &report));
    CHECK(report.reused && report.documents == 1 && report.tokens == 0 && !ox_data_may_train(data));
    ox_data_close(&data);

    /* An array, of texts alone. */
    static const char array[] = "[{\"text\": \"a\"},\n{\"text\": \"\"}, {\"text\": \"b\"}]";
    files_write_text("a.json", array);
    struct ox_corpus_config *const texts = &set_up("a.json", "both", "")->config;
    expect_config(texts, "/<257>a<258>/<257><258>/<257>b<258>");
    texts->add_bos = texts->add_eos = OX_ADD_OFF;
    expect_config(texts, "/a/b"); /* without tokens it is no document */
    REQUIRE_OK(ox_corpus_open(texts, &data, &report));
    CHECK(!ox_data_is_chat(data));
    ox_data_close(&data);
}

/* A folder's test split and the rest are read apart, and each has its cache. */
static void test_splits(void) {
    struct ox_corpus_config train = set_up("splits", "both", "splits_cache")->config, eval = train;
    struct ox_corpus_report report;
    struct ox_data *data = NULL;
    REQUIRE_OK(ox_folder_make(test_path("splits")));
    files_write_text("splits/train.jsonl", "{\"text\":\"a\"}");
    files_write_text("splits/test.jsonl", "{\"text\":\"b\"}");
    eval.evaluates = true;
    expect_config(&train, "/<257>a<258>");
    expect_config(&eval, "/<257>b<258>");
    REQUIRE_OK(ox_corpus_open(&train, &data, &report));
    CHECK(report.reused);
    ox_data_close(&data);
    REQUIRE_OK(ox_corpus_open(&eval, &data, &report));
    CHECK(report.reused);
    ox_data_close(&data);
}

static void test_folder_of_files(void) {
    struct ox_corpus_config *const config = &set_up("many", "both", "")->config;
    struct ox_corpus_report report;
    struct ox_data *data = NULL;
    REQUIRE_OK(ox_folder_make(test_path("many/deep")));
    files_write_text("many/b", "b");
    files_write_text("many/deep/a", "a");
    files_write_text("many/empty", "");
    config->add_bos = OX_ADD_OFF;
    expect_config(config, "/b<258>/a<258>");
    /* Without a tokenizer they are bytes, unless they look like rows. */
    config->tokenizer = "";
    REQUIRE_OK(ox_corpus_open(config, &data, &report));
    CHECK(ox_data_kind_of(data) == OX_DATA_BYTES && report.tokens == 2 && !report.tokenized && !report.reused);
    ox_data_close(&data);
    files_write_text("many/a.jsonl", "{\"text\":\"r\"}");
    refuse_config(config, OX_E_CONFIG, "holds rows, which needs a tokenizer"); /* beside which others are left out */
    config->format = OX_CORPUS_ROWS;
    refuse_config(config, OX_E_CONFIG, "holds rows, which needs a tokenizer");
    config->format = OX_CORPUS_TEXT;
    refuse_config(config, OX_E_CONFIG, "holds text, which needs a tokenizer");
    config->format = OX_CORPUS_TOKENS;
    refuse_config(config, OX_E_CONFIG, "has no tokens in a known format");
    config->tokenizer = set_up("many", "both", "")->tokenizer;
    config->format = OX_CORPUS_ROWS;
    expect_config(config, "/r<258>");
    bool ready = true;
    REQUIRE_OK(ox_corpus_is_ready(config, &ready));
    CHECK(!ready);
}

/* ---- caches -------------------------------------------------------------------------------------------------- */

/* Counts the files of a cache; nothing temporary stays in it. */
static unsigned count_files(const char *name, const char *ending) {
    CHECK(files_count(name, ".", "") == 0);
    return files_count(name, "", ending);
}

/* Opens a corpus; checks whether the cache was used again, and what it holds. */
static void expect_reused(const struct ox_corpus_config *config, bool reused, const char *expected) {
    struct ox_corpus_report report;
    struct ox_data *data = NULL;
    char text[4096];
    bool ready = !reused;
    REQUIRE_OK(ox_corpus_is_ready(config, &ready));
    REQUIRE_OK(ox_corpus_open(config, &data, &report));
    show(data, text, sizeof text);
    if (report.reused != reused || report.tokenized == reused || ready != reused || strcmp(text, expected) != 0) {
        printf("reused %d, tokenized %d, ready %d: %s must be %s\n", report.reused, report.tokenized, ready, text,
               expected);
        test_failure_count++;
    }
    ox_data_close(&data);
}

static void test_reuse(void) {
    struct setup *const setup = set_up("r.txt", "both", "made/cache");
    struct ox_corpus_config config = setup->config;
    struct stat info;
    files_write_text("r.txt", "the");
    expect_reused(&config, false, "/<257><256>e<258>");
    expect_reused(&config, true, "/<257><256>e<258>");
    CHECK(count_files("made/cache", ".tokens") == 1);

    /* Other contents of the same size, and the time set back. */
    CHECK(stat(setup->path, &info) == 0);
    usleep(20000);
    const int fd = open(setup->path, O_WRONLY);
    const struct timespec times[] = {info.st_atim, info.st_mtim};
    CHECK(fd >= 0 && pwrite(fd, "tha", 3, 0) == 3 && futimens(fd, times) == 0);
    close(fd);
    expect_reused(&config, false, "/<257><256>a<258>");
    expect_reused(&config, true, "/<257><256>a<258>");
    CHECK(count_files("made/cache", ".tokens") == 1);
    /* Touched, but the same. */
    CHECK(utimensat(AT_FDCWD, setup->path, NULL, 0) == 0);
    expect_reused(&config, true, "/<257><256>a<258>");

    /* Options that change ids have a cache of their own, those that do not have none. */
    config.add_eos = OX_ADD_OFF;
    expect_reused(&config, false, "/<257><256>a");
    config.add_bos = OX_ADD_ON;
    config.threads = 3;
    config.parse_special = true;
    config.chat_template = "chatml";
    expect_reused(&config, true, "/<257><256>a");
    config.separator = "h";
    expect_reused(&config, false, "/<257>t/<257>a");
    CHECK(count_files("made/cache", ".tokens") == 3);
    config.separator = "";

    /* Another tokenizer at the same place. */
    write_tokenizer("other", true, true, true);
    config.tokenizer = set_up("r.txt", "other", "")->tokenizer;
    expect_reused(&config, true, "/<257><256>a"); /* another path with the same contents */
    write_tokenizer("other", true, true, false);
    expect_reused(&config, false, "/<257>tha");
}

static void expect_again(const struct ox_corpus_config *config, bool reused) {
    struct ox_corpus_report report;
    struct ox_data *data = NULL;
    REQUIRE_OK(ox_corpus_open(config, &data, &report));
    CHECK(report.reused == reused && report.tokenized != reused);
    ox_data_close(&data);
}

/* The file that notes which times belong to which contents is only believed when it fits, and is not needed. It is only
 * written for texts that are older than the clocks of file systems are coarse, so that one is taken that lies about. */
static void test_stamp(void) {
    struct setup *const setup = set_up("fresh.txt", "both", "stamped");
    files_write_text("fresh.txt", "ab");
    expect_again(&setup->config, false);
    CHECK(count_files("stamped", ".tokens") == 1 && count_files("stamped", ".json") == 0);

    setup->config.path = "tests/golden/chat/chatml/tokenizer_config.json";
    setup->config.format = OX_CORPUS_TEXT;
    expect_again(&setup->config, false);
    CHECK(count_files("stamped", ".json") == 1);
    expect_again(&setup->config, true);
    const char *const path = files_find(setup->cache, "", ".json");
    char *const text = files_read(path, NULL);
    /* With another hash of the contents in it, which shows that it is read: the cache does not fit. */
    char *const digit = strstr(text, "contents\": \"") + 12;
    *digit = *digit == '0' ? '1' : '0';
    files_write_text(path, text);
    free(text);
    expect_again(&setup->config, false);
    files_write_text(path, "{\"stamp\": 1");
    expect_again(&setup->config, true);
    CHECK(unlink(path) == 0);
    expect_again(&setup->config, true);
    CHECK(ox_path_is_file(path)); /* it is written again */
}

static void test_damage(void) {
    struct setup *const setup = set_up("d.txt", "both", "damaged");
    struct ox_corpus_config config = setup->config;
    files_write_text("d.txt", "ab");
    expect_reused(&config, false, "/<257>ab<258>");
    const char *const path = files_find(setup->cache, "", ".tokens");
    static const off_t sizes[] = {0, 10, 20000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CHECK(truncate(path, sizes[i]) == 0);
        warning[0] = '\0';
        ox_log_set_sink(keep_warning, NULL);
        expect_reused(&config, false, "/<257>ab<258>");
        ox_log_set_sink(NULL, NULL);
        CHECK(strstr(warning, "damaged") != NULL && strstr(warning, ".tokens") != NULL);
        expect_reused(&config, true, "/<257>ab<258>");
    }
    /* A cache is data itself. */
    struct ox_corpus_report report;
    struct ox_data *data = NULL;
    config.path = path;
    config.tokenizer = "";
    REQUIRE_OK(ox_corpus_open(&config, &data, &report));
    CHECK(ox_data_kind_of(data) == OX_DATA_CACHE && report.tokens == 4 && !report.reused && !report.tokenized);
    ox_data_close(&data);
}

/* ---- threads ------------------------------------------------------------------------------------------------- */

enum { LONG_BYTES = 4 << 20, MAKERS = 3 };

/* Ids and marks of a corpus, whose caller frees both; *count of them. */
static void read_all(const struct ox_corpus_config *config, int32_t **ids, uint8_t **marks, uint64_t *count) {
    struct ox_corpus_report report;
    struct ox_data *data = NULL;
    REQUIRE_OK(ox_corpus_open(config, &data, &report));
    *count = report.tokens;
    *ids = malloc(*count * sizeof **ids);
    *marks = malloc(*count);
    REQUIRE_OK(ox_data_read(data, 0, *count, 261, *ids, *marks));
    ox_data_close(&data);
}

static void same_by_threads(const char *name, const char *separator) {
    int32_t *ids[2];
    uint8_t *marks[2];
    uint64_t counts[2];
    for (int i = 0; i < 2; i++) {
        struct ox_corpus_config *const config = &set_up(name, "both", "")->config;
        config->threads = i == 0 ? 1 : 3;
        config->separator = separator;
        read_all(config, &ids[i], &marks[i], &counts[i]);
    }
    CHECK(counts[0] == counts[1] && memcmp(ids[0], ids[1], counts[0] * sizeof *ids[0]) == 0 &&
          memcmp(marks[0], marks[1], counts[0]) == 0);
    for (int i = 0; i < 2; i++) {
        free(ids[i]);
        free(marks[i]);
    }
}

static void test_threads(void) {
    char *const text = malloc(LONG_BYTES + 128);
    size_t bytes = 0;
    for (int i = 0; bytes < LONG_BYTES; i++) {
        bytes += (size_t)snprintf(text + bytes, 128, "%sLine %d of the text%s\n", i % 5 == 0 ? "\n" : "", i,
                                  i % 1000 == 0 ? "|" : "");
    }
    files_write("long.txt", text, bytes);
    same_by_threads("long.txt", "");
    same_by_threads("long.txt", "|");
    /* One document, in pieces: its ids are those of the whole text. */
    int32_t *ids;
    uint8_t *marks;
    uint64_t count;
    read_all(&set_up("long.txt", "both", "")->config, &ids, &marks, &count);
    size_t at = 0;
    bool same = true;
    CHECK(ids[0] == 257 && ids[count - 1] == 258);
    for (uint64_t i = 1; i + 1 < count && same && at < bytes; i++) {
        const bool is_pair = ids[i] == 256;
        same = (is_pair ? memcmp(text + at, "th", 2) == 0 : ids[i] == (unsigned char)text[at]) &&
               marks[i] == OX_TOKEN_TRAINED;
        at += is_pair ? 2 : 1;
    }
    CHECK(same && at == bytes);
    free(ids);
    free(marks);

    bytes = 0;
    for (int i = 0; bytes < LONG_BYTES / 8; i++) {
        bytes += (size_t)snprintf(text + bytes, 128,
                                  i % 2 == 0 ? "{\"text\": \"row %d of the text\"}\n"
                                             : "{\"prompt\": \"row %d\", \"completion\": \"the\"}\n",
                                  i);
    }
    files_write("long.jsonl", text, bytes);
    same_by_threads("long.jsonl", "");
    free(text);
}

struct maker {
    struct ox_corpus_config config;
    enum ox_status status;
    uint64_t tokens;
};

static void *make(void *context) {
    struct maker *const maker = context;
    struct ox_corpus_report report;
    struct ox_data *data = NULL;
    maker->status = ox_corpus_open(&maker->config, &data, &report);
    maker->tokens = maker->status == OX_OK ? report.tokens : 0;
    ox_data_close(&data);
    return NULL;
}

/* Several at once, as processes would: all end well, and one file is left. */
static void test_at_once(void) {
    const struct setup *const setup = set_up("long.jsonl", "both", "shared");
    struct maker makers[MAKERS];
    pthread_t threads[MAKERS];
    for (int i = 0; i < MAKERS; i++) {
        makers[i].config = setup->config;
        CHECK(pthread_create(&threads[i], NULL, make, &makers[i]) == 0);
    }
    for (int i = 0; i < MAKERS; i++) {
        pthread_join(threads[i], NULL);
        CHECK(makers[i].status == OX_OK && makers[i].tokens == makers[0].tokens && makers[i].tokens > LONG_BYTES / 20);
    }
    CHECK(count_files("shared", ".tokens") == 1);
}

/* ---- refusals ------------------------------------------------------------------------------------------------ */

static void test_refusals(void) {
    static char long_text[1 << 20];
    struct ox_corpus_config *config = &set_up("bad.jsonl", "both", "refused")->config;
    files_write_text("bad.jsonl", "{\"text\": \"a\"}\n\n{\"text\": 1}\n{nothing\n");
    config->threads = 2;
    refuse_config(config, OX_E_CONFIG, "bad.jsonl:3: ");
    files_write_text("bad.jsonl", "{\"text\": \"a\"}\n{nothing\n");
    refuse_config(config, OX_E_CORRUPT, "bad.jsonl:2:");
    files_write_text("bad.jsonl", "[{\"other\": 1}, {\"text\": \"a\"}\n");
    refuse_config(config, OX_E_CONFIG, "bad.jsonl:1: the row has no known form"); /* before the missing ] */
    files_write_text("bad.jsonl", "{\"text\": \"a\"}");
    config->chat_template = "nobody";
    refuse_config(config, OX_E_CONFIG, "nobody");

    config = &set_up("bad.txt", "both", "refused")->config;
    memset(long_text, 'a', sizeof long_text);
    for (size_t i = 60; i < sizeof long_text; i += 60) {
        long_text[i] = '\n';
    }
    long_text[700001] = '\xff';
    files_write("bad.txt", long_text, sizeof long_text);
    config->threads = 3;
    refuse_config(config, OX_E_CORRUPT, "bad.txt: is not UTF-8 text at byte 700001 (0xff)");
    files_write_text("bad.txt", "\xef\xbb\xbf.\xff");
    refuse_config(config, OX_E_CORRUPT, "at byte 4 (0xff)");
    files_write_text("bad.txt", "");
    refuse_config(config, OX_E_CONFIG, "bad.txt: is empty");
    files_write("bad.txt", "a\0b", 3);
    refuse_config(config, OX_E_CONFIG, "bad.txt: is binary, with a NUL at byte 1, and no text");
    files_write_text("bad.txt", "a");
    const volatile sig_atomic_t stop = 1;
    config->stop = &stop;
    refuse_config(config, OX_E_ABORTED, "bad.txt");
    CHECK(count_files("refused", "") == 0);
    config->stop = NULL;

    config = &set_up("bad.txt", "no_ends", "refused")->config;
    config->add_bos = OX_ADD_ON;
    refuse_config(config, OX_E_CONFIG, "has no BOS token");
    config->add_bos = OX_ADD_OFF;
    config->add_eos = OX_ADD_ON;
    refuse_config(config, OX_E_CONFIG, "has no EOS token");
    config->add_eos = OX_ADD_AUTO;
    expect_config(config, "/a");
    refuse_config(&set_up("missing", "both", "")->config, OX_E_CONFIG, "missing");
    refuse_config(&set_up("bad.txt", "missing", "")->config, OX_E_CONFIG, "missing");
}

int main(void) {
    write_tokenizer("both", true, true, true);
    write_tokenizer("no_bos", false, true, true);
    write_tokenizer("no_ends", false, false, true);
    test_texts();
    test_rows();
    test_folder_of_files();
    test_splits();
    test_reuse();
    test_stamp();
    test_damage();
    test_threads();
    test_at_once();
    test_refusals();
    return test_end();
}
