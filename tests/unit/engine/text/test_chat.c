/* Conversations: rendered by templates token by token, and ids and masks against transformers
 * (tests/golden/chat/, made by tests/golden/make/golden_chat.py). */
#include "base/file.h"
#include "engine/text/chat.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 8 << 20 };

static const char golden[] = "tests/golden/chat";

struct subject {
    struct ox_tokenizer *tokenizer;
    struct ox_template *chat_template;
    struct ox_chat_renderer *renderer;
};

static struct subject open_folder(const char *path, struct ox_chat_options options) {
    struct subject out = {0};
    REQUIRE_OK(ox_tokenizer_open(path, &out.tokenizer));
    REQUIRE_OK(ox_template_open(path, "", &out.chat_template));
    options.chat_template = out.chat_template;
    REQUIRE_OK(ox_chat_open(out.tokenizer, &options, &out.renderer));
    return out;
}

static struct subject open_family(const char *name, struct ox_chat_options options) {
    char path[OX_PATH_BYTES];
    REQUIRE_OK(ox_path_join(golden, name, path));
    return open_folder(path, options);
}

static void close_subject(struct subject *subject) {
    ox_chat_close(&subject->renderer);
    ox_template_close(&subject->chat_template);
    ox_tokenizer_close(&subject->tokenizer);
}

/* ---- by hand ------------------------------------------------------------------------------------------------- */

/* Tokens as written in the vocabulary, each after a |, or after a * where it is trained. */
static void shown(struct subject *subject, const char *row, char *text, size_t bytes) {
    struct ox_chat chat = {0};
    struct ox_ids ids = {0};
    struct ox_id_mask marks = {0};
    size_t used = 0;
    REQUIRE_OK(ox_chat_read_line("row", row, strlen(row), NULL, &chat));
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
#define ASK0          "{\"role\":\"user\",\"content\":\"hi\",\"weight\":0}"
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
    const struct ox_chat_options prompt = {.generation_prompt = true};
    expect("qwen2.5", ROW(SET "," ASK "," SAY), IM_SYSTEM "|H|e|<|im_end|>|Ċ" IM_USER IM_ANSWER);
    expect("qwen3", ROW(ASK "," SAY), IM_USER IM_ASSISTANT "*<think>*ĊĊ*</think>*ĊĊ*y*o*<|im_end|>|Ċ");
    expect("qwen3", ROW(ASK "," SAY "," ASK "," SAY),
           IM_USER IM_ANSWER IM_USER IM_ASSISTANT "*<think>*ĊĊ*</think>*ĊĊ*y*o*<|im_end|>|Ċ");
    expect("qwen3", ROW(ASK ",{\"role\":\"assistant\",\"content\":\"<think>hi</think>yo\"}"),
           IM_USER IM_ASSISTANT "*<think>*Ċ*h*i*Ċ*</think>*ĊĊ*y*o*<|im_end|>|Ċ");
    expect("qwen3", ROW(ASK ",{\"role\":\"assistant\",\"content\":\"<think>hi</think>yo\"}," ASK),
           IM_USER IM_ANSWER IM_USER);
    expect_with("qwen3", prompt, ROW(ASK), IM_USER IM_ASSISTANT);
}

static void test_llama(void) {
    expect("llama3", ROW(SET "," ASK "," SAY),
           "|<|begin_of_text|>" HEADER("|s|y|s|t|em") "|H|e|<|eot_id|>" HEADER("|u|s|er") "|h|i|<|eot_id|>" HEADER(
               "|as|s|i|s|t|an|t") "*y*o*<|eot_id|>");
    expect("llama3", ROW(ASK ",{\"role\":\"assistant\",\"content\":\" \\n yo\\u2003\"}"),
           "|<|begin_of_text|>" HEADER("|u|s|er") "|h|i|<|eot_id|>" HEADER("|as|s|i|s|t|an|t") "*y*o*<|eot_id|>");
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

/* A template of the test's own beside the tokenizer of a family. */
static struct subject open_with(const char *family, const char *source, struct ox_chat_options options) {
    char path[OX_PATH_BYTES];
    char *text = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/%s/tokenizer.json", golden, family);
    REQUIRE_OK(ox_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    files_write("tokenizer.json", text, bytes);
    files_write_text("chat_template.jinja", source);
    free(text);
    return open_folder(test_folder(), options);
}

static void expect_from(const char *source, struct ox_chat_options options, const char *row, const char *expected) {
    struct subject subject = open_with("chatml", source, options);
    char text[4096];
    shown(&subject, row, text, sizeof text);
    if (strcmp(text, expected) != 0) {
        printf("%s: %s\n  is       %s\n  must be  %s\n", source, row, text, expected);
        test_failure_count++;
    }
    close_subject(&subject);
}

static void refused(struct subject *subject, const char *row, const char *words) {
    struct ox_ids ids = {0};
    struct ox_id_mask marks = {0};
    struct ox_chat chat = {0};
    REQUIRE_OK(ox_chat_read_line("row", row, strlen(row), NULL, &chat));
    CHECK(ox_chat_render(subject->renderer, "f:7", &chat, &ids, &marks) == OX_E_CONFIG);
    if (strstr(ox_error_text(), words) == NULL || strncmp(ox_error_text(), "f:7: ", 5) != 0) {
        printf("%s: expected a refusal with '%s', got %s\n", row, words, ox_error_text());
        test_failure_count++;
    }
    CHECK(ids.count == 0 && marks.count == 0);
    ox_chat_free(&chat);
    ox_ids_free(&ids);
    ox_id_mask_free(&marks);
}

/* A row that the template refuses is refused with its place and the template's words, and nothing is appended. */
static void test_bad_turns(void) {
    struct subject subject = open_with("chatml", "{{ raise_exception('no ' ~ messages[0].role) }}",
                                       (struct ox_chat_options){0});
    refused(&subject, ROW(ASK "," SAY), "f:7: chat template chat_template.jinja of ");
    close_subject(&subject);
    subject = open_with("chatml", "{% if %}", (struct ox_chat_options){0});
    refused(&subject, ROW(ASK "," SAY), "line 1, column");
    close_subject(&subject);
    subject = open_family("chatml", (struct ox_chat_options){.generation_prompt = true});
    refused(&subject, ROW(ASK "," SAY), "cannot end with an assistant message");
    close_subject(&subject);
    subject = open_with("chatml", "{{ messages[-1].content }}", (struct ox_chat_options){0});
    refused(&subject, ROW(ASK "," SAY), "does not show where this assistant turn is");
    ox_chat_close(&subject.renderer);
    const struct ox_chat_options none = {.no_template = "the folder has none"};
    REQUIRE_OK(ox_chat_open(subject.tokenizer, &none, &subject.renderer));
    refused(&subject, ROW(ASK "," SAY), "needs a chat template: the folder has none");
    close_subject(&subject);
}

/* Rows without a template: BOS where the tokenizer adds one, EOS trained. */
static void test_plain_rows(void) {
    expect("chatml", "{\"text\":\"hi<|im_end|>\"}", "*h*i*<|im_end|>");
    expect("chatml", "{\"text\":\"hi<|im_end|>yo\"}", "*h*i*<|im_end|>*y*o*<|im_end|>");
    expect("chatml", "{\"prompt\":\"<|im_start|>hi<|im_end|>\",\"completion\":\"<|im_start|>yo\"}",
           "|<|im_start|>|h|i|<|im_end|>*<|im_start|>*y*o*<|im_end|>");
    expect("chatml", "{\"prompt\":\"hi\",\"completion\":\"yo\"}", "|h|i*y*o*<|im_end|>");
    expect("chatml", "{\"text\":\"\"}", "*<|im_end|>");
    expect("llama2", "{\"prompt\":\"hi\",\"completion\":\" more\"}", "|<s>|▁h|i*▁m*or*e*</s>");
    expect("llama2", "{\"text\":\"hi\"}", "|<s>*▁h*i*</s>");
    /* Ends that a text has already are not added again, also behind white space. */
    expect("llama2", "{\"text\":\"<s>hi</s>\"}", "*<s>*▁h*i*</s>");
    expect("llama2", "{\"prompt\":\"<s>hi\",\"completion\":\" more</s>\"}", "|<s>|▁h|i*▁m*or*e*</s>");
    expect("llama2", "{\"prompt\":\"<s>\",\"completion\":\"\"}", "|<s>*</s>");
    expect("llama2", "{\"prompt\":\"<s\",\"completion\":\">h</s> i\"}", "*<s>*▁h*</s>*▁*▁i*</s>");
    expect("chatml", "{\"text\":\"hi<|im_end|>\\n\"}", "*h*i*<|im_end|>*Ċ");
    const struct ox_chat_options on = {.add_bos = OX_ADD_ON, .add_eos = OX_ADD_ON}, off = {.add_bos = OX_ADD_OFF,
                                       .add_eos = OX_ADD_OFF};
    expect_with("llama2", on, "{\"prompt\":\"<s>hi\",\"completion\":\" more</s>\"}", "|<s>|▁h|i*▁m*or*e*</s>");
    expect_with("llama2", off, "{\"prompt\":\"hi\",\"completion\":\" more\"}", "|▁h|i*▁m*or*e");
    const struct ox_chat_options prompts = {.train_on = OX_TRAIN_ON_PROMPTS}, last = {.train_on = OX_TRAIN_ON_LAST};
    expect_with("chatml", prompts, "{\"prompt\":\"hi\",\"completion\":\"yo\"}", "*h*i*y*o*<|im_end|>");
    expect_with("chatml", last, "{\"prompt\":\"hi\",\"completion\":\"yo\"}", "|h|i*y*o*<|im_end|>");
}

/* ---- special tokens and options ------------------------------------------------------------------------------ */

/* A special token that is searched for after the normalizer is found where the template writes it, but no text of a row
 * may hold it. */
static void test_late_special(void) {
    static const char flag[] = "\"normalized\":false", late[] = "\"normalized\":true ";
    static const char chatml[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    char *text = NULL, shown_text[1024];
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read("tests/golden/chat/chatml/tokenizer.json", FILE_BYTES_MAX, &text, &bytes));
    CHECK(strstr(text, flag) != NULL);
    for (char *at = strstr(text, flag); at != NULL; at = strstr(at, flag)) {
        memcpy(at, late, sizeof late - 1);
    }
    files_write("tokenizer.json", text, bytes);
    free(text);
    files_write_text("chat_template.jinja", chatml);
    struct subject subject = open_folder(test_folder(), (struct ox_chat_options){.train_on = OX_TRAIN_ON_PROMPTS});
    shown(&subject, ROW(ASK), shown_text, sizeof shown_text);
    CHECK(strcmp(shown_text, "*<|im_start|>*u*s*er*Ċ*h*i*<|im_end|>*Ċ") == 0);
    refused(&subject, ROW("{\"role\":\"user\",\"content\":\"a<|im_end|>\"}"), "set it to false");
    close_subject(&subject);
}

#define IM "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" \
           "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

static void test_train_on(void) {
    static const char four[] = ROW(ASK "," SAY "," ASK "," SAY);
    struct ox_chat_options last = {.train_on = OX_TRAIN_ON_LAST}, all = {.train_on = OX_TRAIN_ON_PROMPTS};
    /* Found by rendering beginnings, and by {% generation %}. */
    expect_from(IM, (struct ox_chat_options){0}, four, IM_USER IM_ANSWER IM_USER IM_ANSWER);
    expect_from(IM, last, four, IM_USER IM_ASSISTANT "|y|o|<|im_end|>|Ċ" IM_USER IM_ANSWER);
    expect_with("chatml", last, four, IM_USER IM_ASSISTANT "|y|o|<|im_end|>|Ċ" IM_USER IM_ANSWER);
    expect_from(IM, all, ROW(ASK), "*<|im_start|>*u*s*er*Ċ*h*i*<|im_end|>*Ċ");
    expect_from(IM, all, ROW(ASK ",{\"role\":\"assistant\",\"content\":\"yo\",\"weight\":0}"),
                "*<|im_start|>*u*s*er*Ċ*h*i*<|im_end|>*Ċ*<|im_start|>*as*s*i*s*t*an*t*Ċ|y|o|<|im_end|>*Ċ");
    /* A message of weight 0 is never trained: its content where other prompts are trained, else all of it. */
    expect_from(IM, all, ROW(SET "," ASK0 "," SAY),
                "*<|im_start|>*s*y*s*t*em*Ċ*H*e*<|im_end|>*Ċ*<|im_start|>*u*s*er*Ċ|h|i*<|im_end|>*Ċ"
                "*<|im_start|>*as*s*i*s*t*an*t*Ċ*y*o*<|im_end|>*Ċ");
    expect_from(IM, all, ROW(ASK0 "," SAY "," ASK0 "," SAY), IM_USER IM_ANSWER IM_USER IM_ANSWER);
    expect_with("chatml", all, ROW(ASK0 "," SAY "," ASK0 "," SAY), IM_USER IM_ANSWER IM_USER IM_ANSWER);
    expect_from(IM, all, "{\"prompt\":[" ASK0 "," SAY "," ASK0 "],\"completion\":[" SAY "]}",
                IM_USER IM_ANSWER IM_USER IM_ANSWER);
    static const char twice_told[] = "{% for m in messages %}{{ messages[0].content }}{{ m.content }}{% endfor %}";
    struct subject told = open_with("chatml", twice_told, all);
    refused(&told, ROW(ASK0 "," SAY "," ASK), "message 1: its weight is 0, but the chat template does not write it in");
    close_subject(&told);
    /* A template that marks one turn twice cannot leave a single turn out. */
    static const char twice[] = "{% for m in messages %}{% generation %}y{% endgeneration %}o{% endfor %}";
    expect_from(twice, (struct ox_chat_options){0}, ROW(ASK "," SAY), "*y|o*y|o");
    struct subject subject = open_with("chatml", twice, last);
    refused(&subject, ROW(ASK "," SAY "," ASK "," SAY), "marks 4 {% generation %} blocks");
    close_subject(&subject);
}

/* Variables: those of a row precede those of the options. Lists: as the template reads them. The date. */
static void test_given(void) {
    json_t *const kwargs = json_pack("{s:s,s:s}", "a", "x", "b", "y");
    const struct ox_chat_options options = {
        .kwargs = kwargs, .train_on = OX_TRAIN_ON_PROMPTS, .now = ox_chat_date(1795000000)};
    expect_from("{{ a }}{{ b }}", options, "{\"messages\":[" ASK "],\"chat_template_kwargs\":{\"b\":\"z\"}}", "*x*z");
    expect_from("{{ strftime_now('%d') }}", options, ROW(ASK), "*1*8");
    json_decref(kwargs);
    static const char list[] = ROW("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"y\"},"
                                   "{\"type\":\"text\",\"value\":\"o\"}]}");
    static const struct ox_chat_options all = {.train_on = OX_TRAIN_ON_PROMPTS};
    expect_from("{{ messages[0].content }}", all, list, "*y*o");
    expect_from("{% if messages[0].content is string %}{{ messages[0].content }}{% endif %}", all, list, "*y*o");
    expect_from("{% if messages[0].content is string %}{{ messages[0].content }}{% else %}"
                "{% for p in messages[0].content %}{{ p.text }}{% endfor %}{{ messages[0].content|length }}{% endif %}",
                all, list, "*y*o");
    expect_from("{% if messages[0].content is string %}{{ messages[0].content }}{% else %}"
                "{{ messages[0].content|map(attribute='text')|join('-') }}{% endif %}", all, list, "*y*-*o");
    expect_from("{% for p in messages[0].content %}{{ p.text }}.{% endfor %}", all, list, "*y*.*o*.");
}

/* A text stays text, also where the template joins texts to such a string; a template that looks at it is refused. */
static void test_marks(void) {
    static const struct ox_chat_options all = {.train_on = OX_TRAIN_ON_PROMPTS};
    static const char list[] = ROW("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"<|im_\"},"
                                   "{\"type\":\"text\",\"text\":\"end|>\"}]}");
    static const char whole[] = ROW("{\"role\":\"user\",\"content\":\"<|im_end|>\"}");
    expect_from("{{ messages[0].content }}<|im_end|>", all, whole, "*<*|*i*m*_*en*d*|*>*<|im_end|>");
    expect_from("{{ messages[0].content }}<|im_end|>", all, list, "*<*|*i*m*_*en*d*|*>*<|im_end|>");
    expect_from("{{ '<|' ~ messages[0].content ~ '|>' }}", all, ROW("{\"role\":\"u\",\"content\":\"im_end\"}"),
                "*<|im_end|>");
    struct subject subject = open_with("chatml", "{{ messages[0].content.replace('<|im_end|>', '') }}x", all);
    refused(&subject, whole, "the chat template looks at it");
    close_subject(&subject);
    const struct ox_chat_options parse = {.train_on = OX_TRAIN_ON_PROMPTS, .parse_special = true};
    expect_from("{{ messages[0].content.replace('<|im_end|>', '') }}x", parse, whole, "*x");
}

/* What is noticed of rows: the letters of a special token that are trained, contents that the template leaves out,
 * empty texts. */
static void notes_are(struct subject *subject, const char *row, const char *expected) {
    static const char *const names[OX_NOTE_COUNT] = {
        [OX_NOTE_EMPTY] = "empty ",     [OX_NOTE_BLANK] = "blank ",     [OX_NOTE_SPELLED] = "spelled ",
        [OX_NOTE_FOREIGN] = "foreign ", [OX_NOTE_IGNORED] = "ignored ",
        [OX_NOTE_HALF] = "half ",       [OX_NOTE_JUDGED] = "judged "};
    struct ox_chat_notes before = {0}, after = {0};
    struct ox_chat chat = {0};
    struct ox_ids ids = {0};
    struct ox_id_mask marks = {0};
    char text[128];
    size_t used = 0;
    ox_chat_add_notes(subject->renderer, &before);
    REQUIRE_OK(ox_chat_read_line("row", row, strlen(row), NULL, &chat));
    REQUIRE_OK(ox_chat_render(subject->renderer, "row", &chat, &ids, &marks));
    ox_chat_add_notes(subject->renderer, &after);
    struct ox_chat_noted first = {0};
    for (int i = OX_NOTE_EMPTY; i < OX_NOTE_COUNT; i++) {
        const char *const name = after.rows[i] > before.rows[i] ? names[i] : "";
        used += (size_t)snprintf(text + used, sizeof text - used, "%s", name);
    }
    for (int i = OX_NOTE_PLACED; i < OX_NOTE_COUNT; i++) {
        const struct ox_chat_noted noted = ox_chat_noted(subject->renderer, (enum ox_chat_note)i);
        CHECK(noted.is_there == (after.rows[i] > before.rows[i]));
        first = first.is_there ? first : noted;
    }
    snprintf(text + used, sizeof text - used, "%zu %s", first.message_idx, first.name);
    if (strcmp(text, expected) != 0) {
        printf("%s\n  is       %s\n  must be  %s\n", row, text, expected);
        test_failure_count++;
    }
    ox_chat_free(&chat);
    ox_ids_free(&ids);
    ox_id_mask_free(&marks);
}

static void test_notes(void) {
    static const char picky[] = "{% for m in messages if m.role in ['user', 'assistant'] %}<|im_start|>{{ m.role }}"
                                "\n{{ m.content|trim|replace('x', 'y') }}<|im_end|>\n{% endfor %}"
                                "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    struct subject subject = open_with("chatml", picky, (struct ox_chat_options){0});
    notes_are(&subject, ROW(ASK "," SAY), "0 ");
    notes_are(&subject, ROW("{\"role\":\"developer\",\"content\":\"be brief\"}," ASK "," SAY), "ignored 0 developer");
    notes_are(&subject, ROW(ASK "," SAY ",{\"role\":\"tool\",\"content\":\"12\"}," SAY), "ignored 2 tool");
    /* also where another message says the same, and not where the template changes a text, or drops nothing */
    notes_are(&subject, ROW("{\"role\":\"developer\",\"content\":\"hi\"}," ASK "," SAY), "ignored 0 developer");
    for (int i = 0; i < 8; i++) {
        notes_are(&subject, ROW("{\"role\":\"user\",\"content\":\" x \"}," SAY), "0 ");
        notes_are(&subject, ROW("{\"role\":\"developer\",\"content\":\"\"}," ASK "," SAY), "0 ");
    }
    notes_are(&subject, ROW(ASK "," SAY ",{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"ab\"}]}," SAY),
              "ignored 2 tool");
    notes_are(&subject, ROW(ASK ",{\"role\":\"assistant\",\"content\":\"a<|im_end|>b\"}"), "spelled 0 ");
    notes_are(&subject, ROW("{\"role\":\"user\",\"content\":\"a<|im_end|>\"}," SAY), "0 "); /* it is not trained */
    notes_are(&subject, ROW(ASK ",{\"role\":\"assistant\",\"content\":\"a <\"}"), "0 ");
    notes_are(&subject, ROW(ASK ",{\"role\":\"assistant\",\"content\":\" \"}"), "empty 0 ");
    notes_are(&subject, "{\"text\":\" \"}", "blank 0 ");
    notes_are(&subject, "{\"text\":\"<|im_end|>\"}", "0 ");
    notes_are(&subject, "{\"prompt\":\"a\",\"completion\":\"<|x|y|> <|eot_id|>\"}", "foreign 0 ");
    notes_are(&subject, "{\"prompt\":\"a\",\"completion\":\"\"}", "empty 0 ");
    /* opinions in words of a row or an answer; numbers and empty ones are none */
    notes_are(&subject, "{\"text\":\"a\",\"rating\":\"bad\"}", "judged 0 rating");
    notes_are(&subject, "{\"prompt\":\"a\",\"completion\":\"b\",\"thumbs\":\"down\"}", "judged 0 thumbs");
    notes_are(&subject, "{\"negative\":\"c\",\"messages\":[" ASK "," SAY "]}", "judged 0 negative");
    notes_are(&subject, ROW(ASK ",{\"role\":\"assistant\",\"content\":\"yo\",\"feedback\":{\"a\":1}}"),
              "judged 0 feedback");
    notes_are(&subject, "{\"text\":\"a\",\"rating\":1,\"thumbs\":\"\",\"negative\":[]}", "0 ");
    close_subject(&subject);
}

/* A template that writes a part of what a message says; what it drops of a reasoning is known, and no such thing. */
static void test_half_contents(void) {
#define EACH(content) "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ " content " }}<|im_end|>\n{% endfor %}" \
                      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
#define USER(content) "{\"role\":\"user\",\"content\":" content "}"
#define PARTS "[{\"type\":\"text\",\"text\":\"one\"},{\"type\":\"text\",\"text\":\"two\"}]"
    static const struct {
        const char *source, *user, *notes;
    } cases[] = {{EACH("m.content"), USER("\"a long question\""), "0 "},
                 {EACH("m.content[:6]"), USER("\"a long question\""), "half 0 user"},
                 {EACH("m.content[-6:]"), USER("\"a l\u00f6ng question\""), "half 0 user"},
                 {EACH("m.content.split('|')[0]"), USER("\"a long|question\""), "half 0 user"},
                 {EACH("m.content.split('</think>')[-1]"), USER("\"<think>so</think>yes\""), "0 "},
                 {EACH("m.content|upper"), USER("\"a long question\""), "0 "},
                 {EACH("m.content|replace('long', 'short')"), USER("\"a long question\""), "0 "},
                 {EACH("m.content if m.content is string else m.content[0].text"), USER(PARTS), "half 0 user"},
                 {EACH("m.content if m.content is string else m.content|map(attribute='text')|join"), USER(PARTS),
                  "0 "},
                 {EACH("''"), USER("\"a long question\""), "ignored 0 user"}};
#undef EACH
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct subject subject = open_with("chatml", cases[i].source, (struct ox_chat_options){
            .train_on = OX_TRAIN_ON_PROMPTS});
        char row[256];
        snprintf(row, sizeof row, "{\"messages\":[%s]}", cases[i].user);
        notes_are(&subject, row, cases[i].notes);
        close_subject(&subject);
    }
}

static void test_end_of_turn(void) {
    static const struct {
        const char *source, *token;
    } cases[] = {{IM, "<|im_end|>"},
                 {"{% for m in messages %}{{ m.content }}{{ m.role }}\n{% endfor %}", NULL},
                 {"{% for m in messages %}{{ m.content }} <|endoftext|>\n<|im_end|>{% endfor %}", "<|endoftext|>"},
                 {"{{ raise_exception('no') }}", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct subject subject = open_with("chatml", cases[i].source, (struct ox_chat_options){0});
        int64_t id = 0;
        REQUIRE_OK(ox_chat_end_of_turn(subject.renderer, &id));
        const char *const token = id < 0 ? "none" : ox_tokenizer_token(subject.tokenizer, (uint32_t)id);
        CHECK(strcmp(token, cases[i].token != NULL ? cases[i].token : "none") == 0);
        close_subject(&subject);
    }
}

/* A turn may end with another token than an answer does; one that a template writes within turns ends none. */
static void test_ends_of_turn(void) {
#define EACH(end) "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}" \
                  "<tool>{{ c.function.arguments|tojson }}{% endfor %}" end "{% endfor %}" \
                  "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    static const struct {
        const char *source, *tokens;
    } cases[] = {
        {EACH("<|im_end|>\n"), "<|im_end|>"},
        {EACH("{{ '<|endoftext|>' if m.tool_calls else '<|im_end|>\n' }}"), "<|im_end|><|endoftext|>"},
        {EACH("{{ '<|im_end|>' if not m.tool_calls else '<|endoftext|>' if m.tool_calls|length == 1 else "
              "raise_exception('one') }}"), "<|im_end|><|endoftext|>"},
        {EACH("{{ '<|endoftext|>' if m.tool_calls and m.tool_calls[0].function.arguments is string "
              "else '<|im_end|>' }}"), "<|im_end|><|endoftext|>"},
        {EACH("{{ '<|im_end|>' if loop.last else '<|endoftext|>' }}"), "<|im_end|>"}, /* no end that is trained */
        {EACH("{% for c in m.tool_calls or [] %}a<|endoftext|>{% else %}<|im_end|>{% endfor %}"), "<|im_end|>"},
        {EACH(""), ""},
        {"{{ raise_exception('no') }}", ""}};
#undef EACH
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct subject subject = open_with("chatml", cases[i].source, (struct ox_chat_options){0});
        struct ox_ids ids = {0};
        char tokens[256] = "";
        size_t used = 0;
        REQUIRE_OK(ox_chat_ends_of_turn(subject.renderer, &ids));
        for (size_t k = 0; k < ids.count; k++) {
            used += (size_t)snprintf(tokens + used, sizeof tokens - used, "%s",
                                     ox_tokenizer_token(subject.tokenizer, (uint32_t)ids.ids[k]));
        }
        if (strcmp(tokens, cases[i].tokens) != 0) {
            printf("case %zu: '%s', expected '%s'\n", i, tokens, cases[i].tokens);
            CHECK(false);
        }
        ox_ids_free(&ids);
        close_subject(&subject);
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
    REQUIRE_OK(ox_chat_read(family, json_object_get(line, "row"), NULL, &chat));
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

/* Removes every occurrence of `words`. */
static void strip(char *text, const char *words) {
    const size_t bytes = strlen(words);
    for (char *at = text; (at = strstr(at, words)) != NULL;) {
        memmove(at, at + bytes, strlen(at + bytes) + 1);
    }
}

/* A family whose template has lost {% generation %}: the same turns are found by rendering prefixes. */
static struct subject open_stripped(const char *family) {
    json_t *config = NULL;
    REQUIRE_OK(ox_json_load(plain_pathf("%s/%s/tokenizer_config.json", golden, family), FILE_BYTES_MAX, &config));
    char *const source = strdup(json_string_value(json_object_get(config, "chat_template")));
    strip(source, "{%- generation %}");
    strip(source, "{%- endgeneration %}");
    struct subject out = open_with(family, source, (struct ox_chat_options){.parse_special = true});
    CHECK(!ox_template_marks_generation(out.chat_template, NULL));
    free(source);
    json_decref(config);
    return out;
}

static void test_golden(const char *family) {
    struct subject plain = open_family(family, (struct ox_chat_options){0});
    struct subject special = open_family(family, (struct ox_chat_options){.parse_special = true});
    struct subject stripped = open_stripped(family);
    /* The others have no generation prompt, so that prefixes alone do not say where their turns begin. */
    const bool has_prompt = strcmp(family, "chatml") == 0 || strncmp(family, "qwen", 4) == 0;
    const char *const path = plain_pathf("%s/%s/chats.jsonl", golden, family);
    char *text = NULL;
    size_t bytes = 0, number = 0;
    REQUIRE_OK(ox_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    for (const char *line = text; line < text + bytes; number++) {
        const char *const end = memchr(line, '\n', (size_t)(text + bytes - line));
        json_t *row = NULL;
        REQUIRE_OK(ox_json_parse(path, line, (size_t)(end - line), &row));
        if (!json_is_true(json_object_get(row, "parse_special"))) {
            compare_row(&plain, family, row, number);
        }
        compare_row(&special, family, row, number); /* the same ids where no text holds such a string */
        const json_t *const first = json_array_get(json_object_get(json_object_get(row, "row"), "messages"), 0);
        if (has_prompt && strcmp(json_string_value(json_object_get(first, "role")), "assistant") != 0) {
            compare_row(&stripped, family, row, number);
        }
        json_decref(row);
        line = end + 1;
    }
    CHECK(number >= 14);
    free(text);
    close_subject(&special);
    close_subject(&stripped);
    close_subject(&plain);
}

int main(void) {
    static const char *const families[] = {"chatml",     "qwen2.5",           "qwen3",      "llama2",
                                           "llama3",     "mistral-v1",        "mistral-v3", "mistral-v3-tekken",
                                           "mistral-v7", "mistral-v7-tekken"};
    test_chatml();
    test_qwen();
    test_llama();
    test_mistral();
    test_special_strings();
    test_bad_turns();
    test_plain_rows();
    test_late_special();
    test_train_on();
    test_given();
    test_marks();
    test_notes();
    test_half_contents();
    test_end_of_turn();
    test_ends_of_turn();
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        test_golden(families[i]);
    }
    return test_end();
}
