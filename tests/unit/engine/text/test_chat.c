/* Conversations: rows read, templates by hand token by token, and ids and masks against transformers
 * (tests/golden/chat/, made by tests/golden/make/golden_chat.py). */
#include "base/file.h"
#include "engine/text/chat.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <string.h>

enum { FILE_BYTES_MAX = 8 << 20 };

static const char golden[] = "tests/golden/chat";

struct subject {
    struct ox_tokenizer *tokenizer;
    struct ox_chat_renderer *renderer;
};

static struct subject open_family(const char *name, struct ox_chat_options options) {
    char path[OX_PATH_BYTES];
    struct subject out = {0};
    REQUIRE_OK(ox_path_join(golden, name, path));
    REQUIRE_OK(ox_tokenizer_open(path, &out.tokenizer));
    REQUIRE_OK(ox_chat_open(out.tokenizer, &options, &out.renderer));
    return out;
}

static void close_subject(struct subject *subject) {
    ox_chat_close(&subject->renderer);
    ox_tokenizer_close(&subject->tokenizer);
}

/* ---- by hand ------------------------------------------------------------------------------------------------- */

/* Tokens as written in the vocabulary, each after a |, or after a * where it is trained. */
static void shown(struct subject *subject, const char *row, char *text, size_t bytes) {
    struct ox_chat chat = {0};
    struct ox_ids ids = {0};
    struct ox_id_mask marks = {0};
    size_t used = 0;
    REQUIRE_OK(ox_chat_read_line("row", row, strlen(row), &chat));
    REQUIRE_OK(ox_chat_render(subject->renderer, "row", &chat, &ids, &marks));
    CHECK(ids.count == marks.count);
    text[0] = '\0';
    for (size_t i = 0; i < ids.count && used < bytes; i++) {
        used += (size_t)snprintf(text + used, bytes - used, "%c%s", marks.marks[i] == 1 ? '*' : '|',
                                 ox_tokenizer_token(subject->tokenizer, (uint32_t)ids.ids[i]));
    }
    ox_id_mask_free(&marks);
    ox_ids_free(&ids);
    ox_chat_free(&chat);
}

static void expect_with(const char *family, struct ox_chat_options options, const char *row, const char *expected) {
    struct subject subject = open_family(family, options);
    char text[4096];
    shown(&subject, row, text, sizeof text);
    if (strcmp(text, expected) != 0) {
        printf("%s: %s\n  is       %s\n  must be  %s\n", family, row, text, expected);
        test_failure_count++;
    }
    close_subject(&subject);
}

static void expect(const char *family, const char *row, const char *expected) {
    expect_with(family, (struct ox_chat_options){0}, row, expected);
}

#define ASK           "{\"role\":\"user\",\"content\":\"hi\"}"
#define SAY           "{\"role\":\"assistant\",\"content\":\"yo\"}"
#define SET           "{\"role\":\"system\",\"content\":\"He\"}"
#define ROW(messages) "{\"messages\":[" messages "]}"

#define IM_USER       "|<|im_start|>|u|s|er|Ċ|h|i|<|im_end|>|Ċ"
#define IM_SYSTEM     "|<|im_start|>|s|y|s|t|em|Ċ"
#define IM_ASSISTANT  "|<|im_start|>|as|s|i|s|t|an|t|Ċ"
#define IM_ANSWER     IM_ASSISTANT "*y*o*<|im_end|>|Ċ"
#define HEADER(role)  "|<|start_header_id|>" role "|<|end_header_id|>|ĊĊ"
#define TEXT_INST     "|[|I|<0x4E>|<0x53>|T|]"
#define TEXT_INST_END "|[|/|I|<0x4E>|<0x53>|T|]"

static void test_chatml(void) {
    expect("chatml", ROW(SET "," ASK "," SAY), IM_SYSTEM "|H|e|<|im_end|>|Ċ" IM_USER IM_ANSWER);
    expect("chatml", ROW(ASK "," SAY "," ASK "," SAY), IM_USER IM_ANSWER IM_USER IM_ANSWER);
    expect("chatml", ROW(ASK ",{\"role\":\"tool\",\"content\":\"yo\"}"),
           IM_USER "|<|im_start|>|t|o|o|l|Ċ|y|o|<|im_end|>|Ċ");
    /* A newline that the answer begins with joins the header's: the one token is trained. */
    expect("chatml", ROW(ASK ",{\"role\":\"assistant\",\"content\":\"\\nyo\"}"),
           IM_USER "|<|im_start|>|as|s|i|s|t|an|t*ĊĊ*y*o*<|im_end|>|Ċ");
    expect("chatml", ROW(ASK ",{\"role\":\"assistant\",\"content\":\"\"}"), IM_USER IM_ASSISTANT "*<|im_end|>|Ċ");
    expect("chatml", ROW(ASK ",{\"role\":\"assistant\",\"content\":\"yo\",\"weight\":0}," ASK "," SAY),
           IM_USER IM_ASSISTANT "|y|o|<|im_end|>|Ċ" IM_USER IM_ANSWER);
    expect_with("chatml", (struct ox_chat_options){.generation_prompt = true}, ROW(ASK), IM_USER IM_ASSISTANT);
}

static void test_qwen(void) {
    struct ox_chat_options prompt = {.generation_prompt = true};
    expect("qwen2.5", ROW(SET "," ASK "," SAY), IM_SYSTEM "|H|e|<|im_end|>|Ċ" IM_USER IM_ANSWER);
    expect("qwen3", ROW(ASK "," SAY), IM_USER IM_ASSISTANT "*<think>*ĊĊ*</think>*ĊĊ*y*o*<|im_end|>|Ċ");
    expect("qwen3", ROW(ASK "," SAY "," ASK "," SAY),
           IM_USER IM_ANSWER IM_USER IM_ASSISTANT "*<think>*ĊĊ*</think>*ĊĊ*y*o*<|im_end|>|Ċ");
    expect("qwen3", ROW(ASK ",{\"role\":\"assistant\",\"content\":\"<think>hi</think>yo\"}"),
           IM_USER IM_ASSISTANT "*<think>*Ċ*h*i*Ċ*</think>*ĊĊ*y*o*<|im_end|>|Ċ");
    expect("qwen3", ROW(ASK ",{\"role\":\"assistant\",\"content\":\"<think>hi</think>yo\"}," ASK),
           IM_USER IM_ANSWER IM_USER);
    expect_with("qwen3", prompt, ROW(ASK), IM_USER IM_ASSISTANT);
    prompt.no_thinking = true;
    expect_with("qwen3", prompt, ROW(ASK), IM_USER IM_ASSISTANT "|<think>|ĊĊ|</think>|ĊĊ");
}

static void test_llama(void) {
    expect("llama3", ROW(SET "," ASK "," SAY),
           "|<|begin_of_text|>" HEADER("|s|y|s|t|em") "|H|e|<|eot_id|>" HEADER("|u|s|er") "|h|i|<|eot_id|>" HEADER(
               "|as|s|i|s|t|an|t") "*y*o*<|eot_id|>");
    expect("llama3", ROW(ASK ",{\"role\":\"assistant\",\"content\":\" \\n yo\\u2003\"}"),
           "|<|begin_of_text|>" HEADER("|u|s|er") "|h|i|<|eot_id|>" HEADER("|as|s|i|s|t|an|t") "*y*o*<|eot_id|>");
    expect_with("llama3", (struct ox_chat_options){.generation_prompt = true}, ROW(ASK),
                "|<|begin_of_text|>" HEADER("|u|s|er") "|h|i|<|eot_id|>" HEADER("|as|s|i|s|t|an|t"));
    expect("llama2", ROW(ASK "," SAY "," ASK "," SAY),
           "|<s>|▁" TEXT_INST "|▁h|i|▁" TEXT_INST_END "|▁*y*o*▁*</s>|<s>|▁" TEXT_INST "|▁h|i|▁" TEXT_INST_END
           "|▁*y*o*▁*</s>");
    /* The space of the template and the answer's first letter are one token. */
    expect("llama2", ROW(ASK ",{\"role\":\"assistant\",\"content\":\"do\"}"),
           "|<s>|▁" TEXT_INST "|▁h|i|▁" TEXT_INST_END "*▁d*o*▁*</s>");
    expect_with("llama2", (struct ox_chat_options){.generation_prompt = true}, ROW(ASK),
                "|<s>|▁" TEXT_INST "|▁h|i|▁" TEXT_INST_END);
}

static void test_mistral(void) {
    expect("mistral-v1", ROW(ASK "," SAY "," ASK "," SAY),
           "|<s>|▁|▁" TEXT_INST "|▁h|i|▁" TEXT_INST_END "*▁*y*o*</s>|▁|▁" TEXT_INST "|▁h|i|▁" TEXT_INST_END
           "*▁*y*o*</s>");
    expect("mistral-v3", ROW(ASK "," SAY "," ASK "," SAY),
           "|<s>|[INST]|▁|▁h|i|[/INST]*▁*▁*y*o*</s>|[INST]|▁|▁h|i|[/INST]*▁*▁*y*o*</s>");
    expect("mistral-v3", ROW(ASK ",{\"role\":\"assistant\",\"content\":\"\\nyo \"}"),
           "|<s>|[INST]|▁|▁h|i|[/INST]*▁*▁*y*o*</s>");
    expect("mistral-v3-tekken", ROW(SET "," ASK "," SAY), "|<s>|[INST]|H|e|ĊĊ|h|i|[/INST]*y*o*</s>");
    expect("mistral-v7", ROW(SET "," ASK "," SAY),
           "|<s>|[SYSTEM_PROMPT]|▁|▁|<0x48>|e|[/SYSTEM_PROMPT]|[INST]|▁|▁h|i|[/INST]*▁*▁*y*o*</s>");
    expect("mistral-v7-tekken", ROW(SET "," ASK "," SAY),
           "|<s>|[SYSTEM_PROMPT]|H|e|[/SYSTEM_PROMPT]|[INST]|h|i|[/INST]*y*o*</s>");
}

/* Nobody's text ends a turn, unless it is asked for. */
static void test_special_strings(void) {
    static const char row[] = ROW("{\"role\":\"user\",\"content\":\"hi<|im_end|>\"}," SAY);
    char text[1024];
    struct subject subject = open_family("chatml", (struct ox_chat_options){0});
    shown(&subject, row, text, sizeof text);
    CHECK(strncmp(text, "|<|im_start|>|u|s|er|Ċ|h|i|<|", 30) == 0);
    const char *const first = strstr(text, "<|im_end|>");
    CHECK(first != NULL && strstr(first + 1, "<|im_end|>") != NULL);
    CHECK(first != NULL && strstr(strstr(first + 1, "<|im_end|>") + 1, "<|im_end|>") == NULL);
    close_subject(&subject);
    expect_with("chatml", (struct ox_chat_options){.parse_special = true}, row,
                "|<|im_start|>|u|s|er|Ċ|h|i|<|im_end|>|<|im_end|>|Ċ" IM_ANSWER);
    /* A string that a text begins and the template's next one would end. */
    subject = open_family("mistral-v3", (struct ox_chat_options){0});
    shown(&subject, ROW("{\"role\":\"user\",\"content\":\"</s\"},{\"role\":\"assistant\",\"content\":\"[/INST]<s>\"}"),
          text, sizeof text);
    const char *const inst = strstr(text, "[/INST]");
    CHECK(inst != NULL && strstr(inst + 1, "[/INST]") == NULL && strncmp(text, "|<s>|", 5) == 0);
    CHECK(strstr(text + 1, "|<s>") == NULL && strstr(text, "*<s>") == NULL);
    close_subject(&subject);
}

/* ---- rows ---------------------------------------------------------------------------------------------------- */

/* A row as letters: role, ' where it is not trained though an assistant's, and text. */
static void row_is(const char *row, enum ox_chat_kind kind, const char *expected) {
    struct ox_chat chat = {0};
    char text[512] = "";
    size_t used = 0;
    REQUIRE_OK(ox_chat_read_line("row", row, strlen(row), &chat));
    for (size_t i = 0; i < chat.count; i++) {
        const struct ox_chat_message *const message = &chat.messages[i];
        CHECK(!message->trained || message->role == OX_CHAT_ASSISTANT);
        const bool left_out = message->role == OX_CHAT_ASSISTANT && !message->trained;
        used += (size_t)snprintf(text + used, sizeof text - used, "%c%s(%s)", "SUAT"[message->role],
                                 left_out ? "'" : "", message->text);
    }
    if (chat.kind != kind || strcmp(text, expected) != 0) {
        printf("%s\n  is       %s\n  must be  %s\n", row, text, expected);
        test_failure_count++;
    }
    ox_chat_free(&chat);
}

static void test_rows(void) {
    row_is("{\"text\":\"hi\"}", OX_CHAT_TEXT, "A(hi)");
    row_is("{\"prompt\":\"hi\",\"completion\":\" yo\"}", OX_CHAT_COMPLETION, "U(hi)A( yo)");
    row_is(ROW(SET "," ASK "," SAY), OX_CHAT_MESSAGES, "S(He)U(hi)A(yo)");
    row_is("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
           "\"value\":\"b\"}],\"loss_weight\":0.0},{\"role\":\"assistant\",\"content\":[],\"loss_weight\":1.0},"
           "{\"role\":\"assistant\",\"content\":\"x\",\"loss_weight\":0}],\"tools\":[]}",
           OX_CHAT_MESSAGES, "U(ab)A()A'(x)");
    row_is("{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},{\"from\":\"function_call\",\"value\":\"b\"},"
           "{\"from\":\"observation\",\"value\":\"c\"},{\"from\":\"gpt\",\"value\":\"d\"}],\"system\":\"s\"}",
           OX_CHAT_MESSAGES, "S(s)U(a)A(b)T(c)A(d)");
    row_is("{\"conversations\":[{\"from\":\"system\",\"value\":\"s\"},{\"from\":\"human\",\"value\":\"a\"},"
           "{\"from\":\"gpt\",\"value\":\"b\"}],\"system\":\"unused\"}",
           OX_CHAT_MESSAGES, "S(s)U(a)A(b)");
    row_is("{\"instruction\":\"a\",\"input\":\"\",\"output\":\"b\",\"text\":\"all\"}", OX_CHAT_MESSAGES, "U(a)A(b)");
    row_is("{\"instruction\":\"a\",\"input\":\"i\",\"output\":\"b\",\"system\":\"s\",\"history\":[[\"x\",\"y\"]]}",
           OX_CHAT_MESSAGES, "S(s)U(x)A(y)U(a\ni)A(b)");
    row_is("{\"instruction\":\"\",\"input\":\"i\",\"output\":\"b\",\"system\":\"\",\"history\":null}", OX_CHAT_MESSAGES,
           "U(i)A(b)");
}

static void test_bad_rows(void) {
    static const struct {
        const char *row, *words;
    } bad[] = {
        {"{}", "a row must be an object with"},
        {"[1]", "a row must be an object with"},
        {"{\"completion\":\"x\"}", "a row must be an object with"},
        {"{\"text\":7}", "\"text\" must be a string, but is 7"},
        {"{\"prompt\":\"x\"}", "\"completion\" is missing"},
        {"{\"prompt\":[],\"completion\":\"x\"}", "\"prompt\" must be a string"},
        {"{\"text\":\"a\",\"text\":\"b\"}", "duplicate"},
        {"{\"text\":\"a\"", "not valid JSON"},
        {"{\"text\":\"\xff\"}", "not valid JSON"},
        {"{\"messages\":[]}", "\"messages\" must be a list of at least one message"},
        {"{\"messages\":{}}", "\"messages\" must be"},
        {"{\"messages\":[7]}", "\"messages\" must be a list of objects, but is 7"},
        {"{\"messages\":[{\"content\":\"x\"}]}", "messages[0]: the key \"role\" is missing"},
        {ROW(ASK ",{\"role\":\"bot\",\"content\":\"x\"}"), "messages[1]: \"role\" must be system, user"},
        {ROW(ASK ",{\"role\":\"assistant\"}"), "messages[1]: the key \"content\" is missing"},
        {ROW(ASK ",{\"role\":\"assistant\",\"content\":null}"), "messages[1]: \"content\" must be a text"},
        {ROW("{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}"), "messages[0]: \"content\" must be a text or"},
        {ROW("{\"role\":\"user\",\"content\":[\"x\"]}"), "messages[0]: \"content\" must be a text or"},
        {ROW("{\"role\":\"user\",\"content\":\"x\",\"weight\":1}"), "messages[0]: \"weight\" is 1, but only"},
        {ROW("{\"role\":\"assistant\",\"content\":\"x\",\"loss_weight\":0.5}"), "\"loss_weight\" must be 0 or 1"},
        {ROW("{\"role\":\"assistant\",\"content\":\"x\",\"weight\":\"1\"}"), "\"weight\" must be 0 or 1"},
        {ROW("{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":1}"), "reasoning_content"},
        {ROW("{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[{}]}"), "\"tool_calls\" is not supported"},
        {"{\"messages\":[" ASK "],\"tools\":[{}]}", "row: \"tools\" is not supported"},
        {"{\"conversations\":[]}", "0 turns"},
        {"{\"conversations\":7}", "0 turns"},
        {"{\"conversations\":[{\"from\":\"system\",\"value\":\"a\"}]}", "0 turns"},
        {"{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"}]}", "1 turns"},
        {"{\"conversations\":[{\"from\":\"gpt\",\"value\":\"a\"}]}", "conversations[0]: \"from\" must be human or obs"},
        {"{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},{\"from\":\"human\",\"value\":\"a\"}]}",
         "conversations[1]: \"from\" must be gpt or function_call here"},
        {"{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},{\"from\":\"system\",\"value\":\"a\"}]}",
         "conversations[1]: \"from\" must be human, gpt"},
        {"{\"conversations\":[{\"from\":\"human\",\"value\":7}]}", "conversations[0]: \"value\" must be a string"},
        {"{\"conversations\":[{\"from\":\"human\"}]}", "conversations[0]: the key \"value\" is missing"},
        {"{\"instruction\":\"x\"}", "\"output\" is missing"},
        {"{\"instruction\":\"x\",\"output\":\"y\",\"history\":[[\"a\"]]}", "\"history\" must be a list of [user"},
        {"{\"instruction\":\"x\",\"output\":\"y\",\"history\":\"a\"}", "\"history\" must be a list of [user"},
        {"{\"instruction\":\"x\",\"output\":\"y\",\"input\":{}}", "\"input\" must be a string"},
    };
    struct ox_chat chat = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const enum ox_status status = ox_chat_read_line("row", bad[i].row, strlen(bad[i].row), &chat);
        if (status == OX_OK || chat.count != 0 || strstr(ox_error_text(), bad[i].words) == NULL ||
            strncmp(ox_error_text(), "row:", 4) != 0) {
            printf("%s: expected a refusal with '%s', got %s: %s\n", bad[i].row, bad[i].words, ox_status_name(status),
                   status == OX_OK ? "" : ox_error_text());
            test_failure_count++;
        }
    }
    ox_chat_free(&chat);
}

/* Messages that a template cannot express are refused, and nothing is appended. */
static void test_bad_turns(void) {
    static const struct {
        const char *family, *row, *words;
    } bad[] = {
        {"llama2", ROW(SAY), "message 0: the chat template llama2 needs a message by the user here"},
        {"llama2", ROW(ASK "," ASK), "message 1: the chat template llama2 needs a message by the assistant"},
        {"mistral-v3", ROW(SET), "needs a user message after"},
        {"mistral-v7", ROW(ASK "," SET), "message 1: "},
        {"llama3", ROW(ASK ",{\"role\":\"tool\",\"content\":\"x\"}"), "has no tool messages"},
        {"mistral-v1", ROW(ASK ",{\"role\":\"tool\",\"content\":\"x\"}"), "has no tool messages"},
    };
    struct ox_ids ids = {0};
    struct ox_id_mask marks = {0};
    struct ox_chat chat = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct subject subject = open_family(bad[i].family, (struct ox_chat_options){0});
        REQUIRE_OK(ox_chat_read_line("row", bad[i].row, strlen(bad[i].row), &chat));
        CHECK(ox_chat_render(subject.renderer, "f:7", &chat, &ids, &marks) == OX_E_CONFIG);
        CHECK(ids.count == 0 && marks.count == 0);
        CHECK(strstr(ox_error_text(), bad[i].words) != NULL && strncmp(ox_error_text(), "f:7: ", 5) == 0);
        close_subject(&subject);
    }
    struct subject subject = open_family("chatml", (struct ox_chat_options){.generation_prompt = true});
    REQUIRE_OK(ox_chat_read_line("row", ROW(ASK "," SAY), strlen(ROW(ASK "," SAY)), &chat));
    CHECK(ox_chat_render(subject.renderer, "f:7", &chat, &ids, &marks) == OX_E_CONFIG);
    close_subject(&subject);
    /* A template whose tokens the tokenizer lacks, and one that is not there. */
    subject = open_family("chatml", (struct ox_chat_options){.family = "llama3"});
    CHECK(ox_chat_render(subject.renderer, "f:7", &chat, &ids, &marks) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "no special token <|begin_of_text|>") != NULL);
    close_subject(&subject);
    subject = open_family("chatml", (struct ox_chat_options){.family = "mistral-v1"});
    CHECK(ox_chat_render(subject.renderer, "f:7", &chat, &ids, &marks) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "no BOS") != NULL && ids.count == 0 && marks.count == 0);
    close_subject(&subject);
    ox_chat_free(&chat);
    ox_ids_free(&ids);
    ox_id_mask_free(&marks);
}

/* Rows without a template: BOS where the tokenizer adds one, EOS trained. */
static void test_plain_rows(void) {
    expect("chatml", "{\"text\":\"hi<|im_end|>\"}", "*h*i*<*|*i*m*_*en*d*|*>*<|im_end|>");
    expect("chatml", "{\"prompt\":\"hi\",\"completion\":\"yo\"}", "|h|i*y*o*<|im_end|>");
    expect("chatml", "{\"text\":\"\"}", "*<|im_end|>");
    expect("llama2", "{\"prompt\":\"hi\",\"completion\":\" more\"}", "|<s>|▁h|i*▁m*or*e*</s>");
    expect("llama2", "{\"text\":\"hi\"}", "|<s>*▁h*i*</s>");
}

/* ---- families ------------------------------------------------------------------------------------------------ */

/* A special token that is looked for behind the normalizer would be plain text in a conversation. */
static void test_late_special(void) {
    static const char flag[] = "\"normalized\":false", late[] = "\"normalized\":true ";
    struct subject subject = {0};
    struct ox_chat chat = {0};
    struct ox_ids ids = {0};
    struct ox_id_mask marks = {0};
    char *text = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read("tests/golden/chat/chatml/tokenizer.json", FILE_BYTES_MAX, &text, &bytes));
    CHECK(strstr(text, flag) != NULL);
    for (char *at = strstr(text, flag); at != NULL; at = strstr(at, flag)) {
        memcpy(at, late, sizeof late - 1);
    }
    files_write("tokenizer.json", text, bytes);
    free(text);
    REQUIRE_OK(ox_tokenizer_open(test_folder(), &subject.tokenizer));
    REQUIRE_OK(ox_chat_open(subject.tokenizer, &(struct ox_chat_options){.family = "chatml"}, &subject.renderer));
    REQUIRE_OK(ox_chat_read_line("row", ROW(ASK), strlen(ROW(ASK)), &chat));
    CHECK(ox_chat_render(subject.renderer, "row", &chat, &ids, &marks) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "<|im_start|>") != NULL && strstr(ox_error_text(), "set it to false") != NULL);
    CHECK(ids.count == 0 && marks.count == 0);
    ox_chat_free(&chat);
    close_subject(&subject);
}

static void test_detection(void) {
    static const struct {
        const char *template, *family;
    } cases[] = {
        {"<|im_start|>", "chatml"},
        {"<|im_start|><|im_sep|>", NULL},
        {"<|im_start|><end_of_utterance>", NULL},
        {"<|im_start|>You are Qwen, created by Alibaba Cloud. reasoning_content", "qwen2.5"},
        {"<|im_start|>reasoning_content", "qwen3"},
        {"[INST][SYSTEM_PROMPT] x", "mistral-v7"},
        {"[INST]'[SYSTEM_PROMPT]' + x", "mistral-v7-tekken"},
        {"' [INST] ' + system_message", "mistral-v1"},
        {"[AVAILABLE_TOOLS] [INST]", "mistral-v1"},
        {"[AVAILABLE_TOOLS]\"[INST]\"", "mistral-v3-tekken"},
        {"[AVAILABLE_TOOLS]\"[INST] \"", "mistral-v3"},
        {"<<SYS>>[INST]", "llama2"},
        {"<|start_header_id|>x<|end_header_id|>", "llama3"},
        {"<start_of_turn>", NULL},
    };
    char *text = NULL;
    size_t bytes = 0;
    char path[OX_PATH_BYTES];
    REQUIRE_OK(ox_path_join(golden, "chatml/tokenizer.json", path));
    REQUIRE_OK(ox_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    files_write("tokenizer.json", text, bytes);
    free(text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ox_tokenizer *tokenizer = NULL;
        enum ox_chat_family family = OX_CHAT_FAMILY_COUNT;
        files_write("chat_template.jinja", cases[i].template, strlen(cases[i].template));
        REQUIRE_OK(ox_tokenizer_open(test_folder(), &tokenizer));
        const enum ox_status status = ox_chat_family_pick(tokenizer, NULL, &family);
        if (cases[i].family == NULL) {
            CHECK(status == OX_E_CONFIG && strstr(ox_error_text(), "--chat-template: chatml, qwen2.5, qwen3") != NULL);
        } else if (status != OX_OK || strcmp(ox_chat_family_name(family), cases[i].family) != 0) {
            printf("%s is not %s\n", cases[i].template, cases[i].family);
            test_failure_count++;
        }
        CHECK(ox_chat_family_pick(tokenizer, "mistral-v7", &family) == OX_OK && family == OX_CHAT_MISTRAL_V7);
        CHECK(ox_chat_family_pick(tokenizer, "mistral", &family) == OX_E_CONFIG);
        CHECK(strstr(ox_error_text(), "\"mistral\" is not known") != NULL);
        struct ox_chat_renderer *renderer = NULL;
        const struct ox_chat_options options = {.family = "mistral"};
        CHECK(ox_chat_open(tokenizer, &options, &renderer) == OX_E_CONFIG && renderer == NULL);
        ox_tokenizer_close(&tokenizer);
    }
}

/* ---- against transformers ------------------------------------------------------------------------------------ */

static bool same_list(const json_t *expected, const struct ox_ids *ids, const struct ox_id_mask *marks) {
    bool same = json_array_size(expected) == (ids != NULL ? ids->count : marks->count);
    for (size_t i = 0; i < json_array_size(expected) && same; i++) {
        same = json_integer_value(json_array_get(expected, i)) == (ids != NULL ? ids->ids[i] : marks->marks[i]);
    }
    return same;
}

static void compare_row(struct subject *subject, const char *family, const json_t *line, size_t number) {
    struct ox_chat chat = {0};
    struct ox_ids ids = {0};
    struct ox_id_mask marks = {0};
    REQUIRE_OK(ox_chat_read(family, json_object_get(line, "row"), &chat));
    REQUIRE_OK(ox_chat_render(subject->renderer, family, &chat, &ids, &marks));
    const bool same_ids = same_list(json_object_get(line, "ids"), &ids, NULL);
    const bool same_marks = same_list(json_object_get(line, "mask"), NULL, &marks);
    if (!same_ids || !same_marks) {
        printf("%s, row %zu: the %s differ\n", family, number, same_ids ? "masks" : "ids");
        test_failure_count++;
    }
    ox_chat_free(&chat);
    ox_ids_free(&ids);
    ox_id_mask_free(&marks);
}

static void test_golden(const char *family) {
    struct subject plain = open_family(family, (struct ox_chat_options){0});
    struct subject special = open_family(family, (struct ox_chat_options){.parse_special = true});
    enum ox_chat_family found = OX_CHAT_FAMILY_COUNT;
    char path[OX_PATH_BYTES];
    char *text = NULL;
    size_t bytes = 0, number = 0;
    REQUIRE_OK(ox_chat_family_pick(plain.tokenizer, NULL, &found));
    CHECK(strcmp(ox_chat_family_name(found), family) == 0);
    snprintf(path, sizeof path, "%s/%s/chats.jsonl", golden, family);
    REQUIRE_OK(ox_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    for (const char *line = text; line < text + bytes; number++) {
        const char *const end = memchr(line, '\n', (size_t)(text + bytes - line));
        json_t *row = NULL;
        REQUIRE_OK(ox_json_parse(path, line, (size_t)(end - line), &row));
        if (!json_is_true(json_object_get(row, "parse_special"))) {
            compare_row(&plain, family, row, number);
        }
        compare_row(&special, family, row, number); /* the same ids where no text holds such a string */
        json_decref(row);
        line = end + 1;
    }
    CHECK(number >= 14);
    free(text);
    close_subject(&special);
    close_subject(&plain);
}

int main(void) {
    test_chatml();
    test_qwen();
    test_llama();
    test_mistral();
    test_special_strings();
    test_rows();
    test_bad_rows();
    test_bad_turns();
    test_plain_rows();
    test_late_special();
    test_detection();
    for (unsigned i = 0; i < OX_CHAT_FAMILY_COUNT; i++) {
        test_golden(ox_chat_family_name((enum ox_chat_family)i));
    }
    return test_end();
}
