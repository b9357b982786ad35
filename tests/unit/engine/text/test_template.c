/* Chat templates of model folders: where they are found, which one counts, special tokens, and conversations. */
#include "engine/text/template.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <string.h>

static const struct tm now = {.tm_year = 126, .tm_mon = 10, .tm_mday = 20, .tm_wday = 5, .tm_yday = 323};

/* Renders a conversation, with ' for ", by a template for a folder; `expected` begins with "! " where it fails. */
static void chosen_gives(const char *folder, const char *choice, const char *conversation, const char *expected) {
    struct ox_template *chat_template = NULL;
    struct ox_jinja_output output = {0};
    json_t *row = NULL;
    char text[1024];
    snprintf(text, sizeof text, "%s", conversation);
    for (char *at = text; *at != '\0'; at++) {
        *at = (char)(*at == '\'' ? '"' : *at);
    }
    REQUIRE_OK(ox_json_parse("conversation", text, strlen(text), &row));
    REQUIRE_OK(ox_template_open(test_path(folder), choice, &chat_template));
    const enum ox_status status = ox_template_render(chat_template, row, &now, &output);
    char got[1024];
    snprintf(got, sizeof got, "%s%s", status == OX_OK ? "" : "! ",
             status == OX_OK ? output.text : output.error != NULL ? output.error : ox_error_text());
    if (strcmp(got, expected) != 0) {
        printf("%s: %s\n  gives %s\n  not   %s\n", folder, conversation, got, expected);
        test_failure_count++;
    }
    ox_jinja_output_free(&output);
    ox_template_close(&chat_template);
    json_decref(row);
}

static void gives(const char *folder, const char *conversation, const char *expected) {
    chosen_gives(folder, "", conversation, expected);
}

static void write_in(const char *folder, const char *name, const char *text) {
    char path[256];
    files_make_folder(folder);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    files_write_text(path, text);
}

#define HI "{'messages': [{'role': 'user', 'content': 'hi'}]}"
#define HI_TOOLS "{'messages': [{'role': 'user', 'content': 'hi'}], 'tools': [{'name': 'f'}]}"

static void test_found(void) {
    struct ox_template *chat_template = NULL;
    files_make_folder("none");
    CHECK(ox_template_open(test_path("none"), "", &chat_template) == OX_E_CONFIG && chat_template == NULL);
    CHECK(strstr(ox_error_text(), "no chat template") != NULL);
    write_in("one", "chat_template.json", "{\"chat_template\": \"processor {{ messages[0].content }}\"}");
    gives("one", HI, "processor hi");
    write_in("one", "tokenizer_config.json", "{\"chat_template\": \"config {{ messages[0].content }}\"}");
    gives("one", HI, "config hi");
    write_in("one", "chat_template.jinja", "file {{ messages[0].content }}\n");
    gives("one", HI, "file hi");
    write_in("list", "tokenizer_config.json",
             "{\"chat_template\": [{\"name\": \"default\", \"template\": \"plain\"}, {\"name\": \"tool_use\", "
             "\"template\": \"tools {{ tools | length }}\"}]}");
    gives("list", HI, "plain");
    gives("list", HI_TOOLS, "tools 1");
    write_in("more", "chat_template.jinja", "plain");
    files_make_folder("more/additional_chat_templates");
    write_in("more", "additional_chat_templates/tool_use.jinja", "tools");
    write_in("more", "additional_chat_templates/README.md", "{% nothing %}");
    gives("more", HI, "plain");
    gives("more", HI_TOOLS, "tools");
    write_in("broken", "chat_template.jinja", "{% if %}");
    gives("broken", HI, "! line 1, column 7: Expected an expression");
    write_in("unnamed", "tokenizer_config.json", "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"x\"}]}");
    gives("unnamed", HI, "! the model has several chat templates and none is named default; name one with "
                         "--chat-template: rag, chatml, llama2, llama3, mistral-v1, mistral-v3, mistral-v3-tekken, "
                         "mistral-v7, mistral-v7-tekken, qwen2.5, qwen3, gemma, phi3, alpaca, zephyr");
}

/* What a choice for the folder "choices" comes from, or "! " and why it is refused; %s in it is the test's folder. */
static void comes_from(const char *folder, const char *choice, const char *expected) {
    struct ox_template *chat_template = NULL;
    char got[2048], wanted[2048];
    const enum ox_status status = ox_template_open(test_path(folder), choice, &chat_template);
    snprintf(got, sizeof got, "%s%s", status == OX_OK ? "" : "! ",
             status == OX_OK ? ox_template_origin(chat_template) : ox_error_text());
    snprintf(wanted, sizeof wanted, "%s", test_path(""));
    const size_t root_bytes = strlen(wanted);
    for (char *at = strstr(got, wanted); at != NULL; at = strstr(got, wanted)) {
        memmove(at + 1, at + root_bytes, strlen(at + root_bytes) + 1);
        *at = '@';
    }
    if (status != OX_OK ? strstr(got, expected) == NULL : strcmp(got, expected) != 0) {
        printf("%s for %s\n  comes from %s\n  not        %s\n", choice, folder, got, expected);
        test_failure_count++;
    }
    CHECK((status == OX_OK) == (chat_template != NULL) && (status == OX_OK || status == OX_E_CONFIG));
    ox_template_close(&chat_template);
}

static void test_choices(void) {
    char file[256];
    write_in("choices", "tokenizer_config.json",
             "{\"eos_token\": \"</s>\", \"chat_template\": [{\"name\": \"default\", \"template\": \"own\"}, "
             "{\"name\": \"tool_use\", \"template\": \"tools\"}, {\"name\": \"chatml\", "
             "\"template\": \"named{{ eos_token }}\"}]}");
    write_in("choices", "tokenizer.json", "{}");
    chosen_gives("choices", NULL, HI_TOOLS, "tools");
    comes_from("choices", "", "tokenizer_config.json of @choices");
    comes_from("choices/tokenizer.json", "", "tokenizer_config.json of @choices");
    /* A file comes before a name, a name before a built-in template; neither changes with tools. */
    chosen_gives("choices", "chatml", HI_TOOLS, "named</s>");
    comes_from("choices", "chatml", "chatml of @choices");
    chosen_gives("choices", "zephyr", HI_TOOLS, "<|user|>\nhi</s>\n");
    comes_from("choices", "zephyr", "built in: zephyr");
    write_in("files", "own.jinja", "file{{ eos_token }} {{ messages[0].content }}");
    snprintf(file, sizeof file, "%s", test_path("files/own.jinja"));
    chosen_gives("choices", file, HI_TOOLS, "file</s> hi");
    comes_from("choices", file, "@files/own.jinja");
    write_in("files", "config.json", "{\"chat_template\": [{\"name\": \"default\", \"template\": \"json\"}, {\"name\": "
                                     "\"tool_use\", \"template\": \"json tools\"}]}");
    snprintf(file, sizeof file, "%s", test_path("files/config.json"));
    chosen_gives("choices", file, HI, "json");
    chosen_gives("choices", file, HI_TOOLS, "json tools");
    write_in("files", "empty.json", "{}");
    snprintf(file, sizeof file, "%s", test_path("files/empty.json"));
    comes_from("choices", file, "no \"chat_template\" in it");
    comes_from("choices", "klingon", "there is no chat template \"klingon\"; --chat-template takes a file or one of "
                                     "default, tool_use, chatml, llama2,");
    /* A folder without a template, or without a tokenizer_config.json. */
    write_in("bare", "tokenizer.json", "{}");
    comes_from("bare/tokenizer.json", "", "@bare: no chat template");
    chosen_gives("bare/tokenizer.json", "chatml", HI, "<|im_start|>user\nhi<|im_end|>\n");
    chosen_gives("bare", "zephyr", HI, "! line 4, column 25: 'eos_token' is undefined");
}

static uint64_t hash_of(const char *folder, const char *choice, bool uses_date) {
    struct ox_template *chat_template = NULL;
    REQUIRE_OK(ox_template_open(test_path(folder), choice, &chat_template));
    const uint64_t hash = ox_template_hash(chat_template);
    CHECK(ox_template_uses_date(chat_template) == uses_date);
    ox_template_close(&chat_template);
    return hash;
}

static void test_hash(void) {
    write_in("hash", "tokenizer_config.json", "{\"bos_token\": \"<s>\"}");
    write_in("hash", "chat_template.jinja", "a");
    const uint64_t first = hash_of("hash", "", false);
    CHECK(hash_of("hash", "", false) == first && hash_of("hash", "chatml", false) != first);
    write_in("hash", "chat_template.jinja", "b{{ strftime_now('%Y') }}");
    const uint64_t second = hash_of("hash", "", true);
    write_in("hash", "tokenizer_config.json", "{\"bos_token\": \"<b>\"}");
    CHECK(second != first && hash_of("hash", "", true) != second);
    const uint64_t chosen = hash_of("hash", "chatml", false);
    files_make_folder("hash/additional_chat_templates");
    write_in("hash", "additional_chat_templates/rag.jinja", "c");
    CHECK(hash_of("hash", "chatml", false) == chosen && hash_of("hash", "rag", false) != chosen);
    /* Without a choice a single template of another name serves no conversation, so what it made is not used again. */
    write_in("other", "tokenizer_config.json", "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"a\"}]}");
    CHECK(hash_of("other", "", false) != hash_of("other", "rag", false));
    write_in("other", "tokenizer_config.json", "{\"chat_template\": [{\"name\": \"default\", \"template\": \"a\"}]}");
    CHECK(hash_of("other", "", false) == hash_of("other", "default", false));
}

static void test_tokens(void) {
    static const char template[] = "{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}|{{ unk_token }}";
    write_in("tokens", "chat_template.jinja", template);
    write_in("tokens", "tokenizer_config.json",
             "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\", \"lstrip\": true}, \"pad_token\": null}");
    gives("tokens", HI, "<s>|</s>|False|");
    write_in("tokens", "special_tokens_map.json", "{\"unk_token\": {\"content\": \"<unk>\"}, \"bos_token\": \"<b>\"}");
    gives("tokens", HI, "<b>|</s>|False|<unk>");
    write_in("tokens", "tokenizer_config.json", "{\"bos_token\": \"<s>\", \"added_tokens_decoder\": {}}");
    gives("tokens", HI, "<s>||False|");
    gives("tokens", "{'messages': [{}], 'chat_template_kwargs': {'eos_token': '<e>'}}", "<s>|<e>|False|");
}

static void test_conversations(void) {
    write_in("row", "chat_template.jinja",
             "{{ messages }}{{ tools }}{{ documents }}{{ add_generation_prompt }}{{ x }}");
    gives("row", "{'messages': [{'role': 'user', 'content': null, 'm': null, 'n': 1.0}], 'chat_template_kwargs': "
          "{'x': 2}}", "[{'role': 'user', 'n': 1.0}]NoneNoneFalse2");
    gives("row", "{'messages': [{'role': 'a', 'reasoning_content': 'r'}], 'add_generation_prompt': true}",
          "[{'thinking': 'r', 'role': 'a', 'reasoning_content': 'r'}]NoneNoneTrue");
    gives("row", "{'messages': [{'role': 'a', 'thinking': 't', 'reasoning': 'r'}], 'documents': [{'a': 1}]}",
          "[{'thinking': 't', 'role': 'a', 'reasoning': 'r', 'reasoning_content': 't'}]None[{'a': 1}]False");
    gives("row", "{'messages': []}", "! \"messages\" must be a list of at least one message");
    gives("row", "{'messages': ['x']}", "! message 1 must be an object with \"role\" and \"content\"");
    gives("row", "{'messages': [{}], 'documents': ['x']}", "! \"documents\" must be a list of objects");
    gives("row", "{'messages': [{}], 'chat_template_kwargs': 1}", "! \"chat_template_kwargs\" must be an object");
}

/* Renders the conversation with its assistant turns as [[ ]]. */
static void turns_are(const char *source, const char *conversation, const char *expected) {
    struct ox_template *chat_template = NULL;
    struct ox_template_turns turns;
    json_t *row = NULL;
    char text[2048], got[2048] = "! ";
    size_t used = 0;
    write_in("turns", "chat_template.jinja", source);
    snprintf(text, sizeof text, "%s", conversation);
    for (char *at = text; *at != '\0'; at++) {
        *at = (char)(*at == '\'' ? '"' : *at);
    }
    REQUIRE_OK(ox_json_parse("conversation", text, strlen(text), &row));
    REQUIRE_OK(ox_template_open(test_path("turns"), "", &chat_template));
    const enum ox_status status = ox_template_render_turns(chat_template, row, &now, &turns);
    for (size_t i = 0, at = 0; status == OX_OK && i <= turns.count; i++) {
        const size_t begin = i < turns.count ? turns.turns[i].begin_byte : turns.output.text_bytes;
        const size_t end = i < turns.count ? turns.turns[i].end_byte : begin;
        const char *const all = turns.output.text;
        used += (size_t)snprintf(got + used, sizeof got - used, "%.*s%s%.*s%s", (int)(begin - at), all + at,
                                 i < turns.count ? "[[" : "", (int)(end - begin), all + begin,
                                 i < turns.count ? "]]" : "");
        at = end;
    }
    if (status != OX_OK) {
        snprintf(got + 2, sizeof got - 2, "%s", ox_error_text());
    }
    if (expected[0] == '!' ? strstr(got, expected + 2) == NULL || got[0] != '!' : strcmp(got, expected) != 0) {
        printf("%s\n  gives %s\n  not   %s\n", source, got, expected);
        test_failure_count++;
    }
    ox_template_turns_free(&turns);
    ox_template_close(&chat_template);
    json_decref(row);
}

/* A stop ends a rendering at its next step, and the search for turns at the next rendering. */
static void test_stopped(void) {
    struct ox_template *chat_template = NULL;
    struct ox_jinja_output output;
    struct ox_template_turns turns;
    volatile sig_atomic_t stop = 0;
    json_t *const row = json_pack("{s:[{s:s,s:s},{s:s,s:s}]}", "messages", "role", "user", "content", "a", "role",
                                  "assistant", "content", "b");
    REQUIRE_OK(ox_template_open(test_path("none"), "chatml", &chat_template));
    ox_template_heed(chat_template, &stop);
    REQUIRE_OK(ox_template_render_turns(chat_template, row, &now, &turns));
    CHECK(turns.count == 1);
    ox_template_turns_free(&turns);
    stop = 1;
    CHECK(ox_template_render(chat_template, row, &now, &output) == OX_E_ABORTED);
    ox_jinja_output_free(&output);
    CHECK(ox_template_render_turns(chat_template, row, &now, &turns) == OX_E_ABORTED);
    ox_template_turns_free(&turns);
    ox_template_close(&chat_template);
    json_decref(row);
}

/* A conversation of users, calls of tools, reasonings and contents that are also parts of tags. */
static json_t *long_conversation(size_t count) {
    static const char *const users[] = {"What is it?", ">", "user", "And then?"};
    json_t *const messages = json_array();
    json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "system", "content", "Be brief."));
    for (size_t i = 1, at = 0; i < count; i++, at = (at + 1) % 8) {
        char said[64];
        snprintf(said, sizeof said, "%s %zu", at % 3 == 0 ? "answer" : "words", i % 5);
        json_t *const message =
            at == 0 || at == 2 || at == 6 ? json_pack("{s:s,s:s}", "role", "user", "content", users[i % 4])
            : at == 3 ? json_pack("{s:s,s:s,s:[{s:s}]}", "role", "assistant", "content", "", "tool_calls", "name",
                                  "look")
            : at == 4 ? json_pack("{s:s,s:s}", "role", "tool", "content", "12")
                      : json_pack("{s:s,s:s,s:s}", "role", "assistant", "content", said, "thinking", "So.");
        json_array_append_new(messages, message);
    }
    return json_pack("{s:o}", "messages", messages);
}

static enum ox_status long_turns(const struct ox_template *chat_template, size_t count, struct ox_template_turns *out) {
    json_t *const row = long_conversation(count);
    const enum ox_status status = ox_template_render_turns(chat_template, row, &now, out);
    json_decref(row);
    return status;
}

/* The turns of a long conversation, which are found in windows, are those of its beginning, which is searched whole.
 * What is rendered grows as the conversation does; where a template keeps that from being so, it is refused. */
static void test_long_conversations(void) {
#define EACH(before, within) before "{% for m in messages %}<{{ m.role }}>" within "{{ m.content }}" \
    "{% for c in m.tool_calls or [] %}[{{ c.name }}]{% endfor %}</s>\n{% endfor %}" \
    "{% if add_generation_prompt %}<assistant>{% endif %}"
    static const struct {
        const char *source;
        bool is_local;
    } cases[] = {
        {EACH("", ""), true},
        {EACH("{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
              "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}",
              "{% if m.thinking and loop.index0 > ns.last %}(think){{ m.thinking }}(/think){% endif %}"), true},
        {EACH("{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}", ""), true},
        {EACH("", "{{ loop.index if m.role == 'user' }}"), false},
        {EACH("", "{{ messages[(loop.index0 - 300) if loop.index0 > 300 else 0].content if m.role == 'user' }}"),
         false}};
#undef EACH
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ox_template *chat_template = NULL;
        struct ox_template_turns whole, windows;
        write_in("long", "chat_template.jinja", cases[i].source);
        REQUIRE_OK(ox_template_open(test_path("long"), "", &chat_template));
        REQUIRE_OK(long_turns(chat_template, 256, &whole));
        REQUIRE_OK(long_turns(chat_template, 600, &windows));
        const size_t shared = whole.count - 2; /* the last ones may end in another way */
        CHECK(windows.count > 2 * whole.count &&
              memcmp(windows.turns, whole.turns, shared * sizeof *whole.turns) == 0 &&
              memcmp(windows.output.text, whole.output.text, whole.turns[shared - 1].end_byte) == 0);
        ox_template_turns_free(&whole);
        ox_template_turns_free(&windows);
        const enum ox_status status = long_turns(chat_template, 9000, &windows);
        CHECK(status == (cases[i].is_local ? OX_OK : OX_E_CONFIG));
        CHECK(cases[i].is_local ? windows.rendered_messages < 64 * 9000
                                : strstr(ox_error_text(), "a conversation of 9000 messages is too long") != NULL);
        ox_template_turns_free(&windows);
        ox_template_close(&chat_template);
    }
}

#define TWO_TURNS                                                                                              \
    "{'messages': [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': ' b '}, "               \
    "{'role': 'user', 'content': 'c'}, {'role': 'assistant', 'content': 'd'}]}"

static void test_turns(void) {
    turns_are("{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>\n{% endfor %}"
              "{% if add_generation_prompt %}<assistant>{% endif %}",
              TWO_TURNS, "<user>a</s>\n<assistant>[[ b </s>]]\n<user>c</s>\n<assistant>[[d</s>]]\n");
    turns_are("{% for m in messages %}{{ '[' ~ m.content ~ ']' if m.role == 'user' else m.content | trim ~ eos_token }}"
              "{% endfor %}",
              TWO_TURNS, "[a][[b]][c][[d]]");
    /* The last turn alone has a reasoning. */
    turns_are("{% for m in messages %}<{{ m.role }}>{{ '<think></think>' if m.role == 'assistant' and loop.last }}"
              "{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
              TWO_TURNS, "<user>a</s><assistant>[[ b </s>]]<user>c</s><assistant>[[<think></think>d</s>]]");
    turns_are("{% for m in messages %}{% if m.role == 'user' %}({{ m.content }}){% else %}{% generation %}"
              "{{ m.content }}!{% endgeneration %}{% endif %}{% endfor %}",
              TWO_TURNS, "(a)[[ b !]](c)[[d!]]");
    turns_are("{% for m in messages | reverse %}<{{ m.role }}>{{ m.content }}{% endfor %}", TWO_TURNS, "! message 2:");
    turns_are("x", "{'messages': [{'role': 'assistant', 'content': 'b'}]}", "! before a first message is no prompt");
    turns_are("{% set x %}{% generation %}y{% endgeneration %}{% endset %}{{ x }}", TWO_TURNS, "! inside a macro");
}

#define MESSAGES "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
#define PROMPT "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
#define SAYS(role, text) "{'role': '" role "', 'content': '" text "'}"
#define THINKS "{'messages': [" SAYS("user", "a") ", " SAYS("assistant", "<think>r</think>b") ", " SAYS("user", "c") \
    ", " SAYS("assistant", "<think>s</think>d") "]}"

/* What a template writes behind every conversation, or only where something follows. */
static void test_turn_ends(void) {
    turns_are(MESSAGES "</end>\n" PROMPT "{% if not add_generation_prompt %}<stop>{% endif %}", TWO_TURNS,
              "<user>a</end>\n<assistant>[[ b </end>]]\n<user>c</end>\n<assistant>[[d</end>]]\n<stop>");
    turns_are(MESSAGES "<end>{% endfor %}<assistant>",
              "{'messages': [" SAYS("user", "a") ", " SAYS("assistant", "b") "]}",
              "<user>a<end><assistant>[[b<end>]]<assistant>");
    turns_are(MESSAGES "{% if not loop.last or add_generation_prompt %}<|end|>\n{% endif %}" PROMPT, TWO_TURNS,
              "<user>a<|end|>\n<assistant>[[ b <|end|>]]\n<user>c<|end|>\n<assistant>[[d]]");
    /* Without an end token the white space behind the turn is its end. */
    turns_are(MESSAGES "\n" PROMPT, TWO_TURNS, "<user>a\n<assistant>[[ b \n]]<user>c\n<assistant>[[d\n]]");
    turns_are(MESSAGES "</s>" PROMPT, "{'messages': [" SAYS("user", "a") ", " SAYS("assistant", "") "]}",
              "<user>a</s><assistant>[[</s>]]");
}

/* The text before a turn is not the prompt for it. */
static void test_turn_begins(void) {
    static const char last_system[] =
        "{% set s = messages[0].content %}{% for m in messages[1:] %}{% if m.role == 'user' %}[{{ s if loop.last }}"
        "{{ m.content }}]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}";
    turns_are(last_system,
              "{'messages': [" SAYS("system", "S") ", " SAYS("user", "a") ", " SAYS("assistant", "b") ", "
              SAYS("user", "a") ", " SAYS("assistant", "b") "]}", "[a][[b</s>]][a][[b</s>]]");
    turns_are("{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ '\n' if not loop.last }}" PROMPT, TWO_TURNS,
              "<user>a\n<assistant>[[ b ]]\n<user>c\n<assistant>[[d]]");
    /* A prompt opens a reasoning that the conversation has not, or the template drops. */
    turns_are(MESSAGES PROMPT "{{ '<think>\n' if add_generation_prompt }}", TWO_TURNS,
              "<user>a<assistant>[[ b ]]<user>c<assistant>[[d]]");
    turns_are(MESSAGES PROMPT "{{ '<think>\n' if add_generation_prompt }}",
              "{'messages': [" SAYS("user", "a") ", " SAYS("assistant", "<b>B</b>") "]}",
              "<user>a<assistant>[[<b>B</b>]]");
    turns_are("{% for m in messages %}<{{ m.role }}>{{ m.content if loop.last else m.content.split('</think>')[-1] }}"
              "</s>" PROMPT, THINKS, "<user>a</s><assistant>[[b</s>]]<user>c</s><assistant>[[<think>s</think>d</s>]]");
    turns_are("{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}<think>{{ m.reasoning if loop.last }}"
              "</think>{% endif %}{{ m.content }}</s>" PROMPT,
              "{'messages': [" SAYS("user", "a") ", {'role': 'assistant', 'reasoning': 'r', 'content': 'b'}, "
              SAYS("user", "c") ", {'role': 'assistant', 'reasoning': 's', 'content': 'd'}]}",
              "<user>a</s><assistant>[[<think></think>b</s>]]<user>c</s><assistant>[[<think>s</think>d</s>]]");
    /* The assistant begins, or speaks twice; contents repeat; a template without headers. */
    turns_are("<s>" MESSAGES "</s>" PROMPT,
              "{'messages': [" SAYS("assistant", "x") ", " SAYS("user", "x") ", " SAYS("assistant", "x") ", "
              SAYS("assistant", "x") "]}",
              "<s><assistant>[[x</s>]]<user>x</s><assistant>[[x</s>]]<assistant>[[x</s>]]");
    turns_are("{% for m in messages %}{{ m.content }}</s>{% endfor %}", TWO_TURNS, "a</s>[[ b </s>]]c</s>[[d</s>]]");
    /* Without a prompt the model writes the header too. */
    turns_are(MESSAGES "</s>{% endfor %}", TWO_TURNS,
              "<user>a</s>[[<assistant> b </s>]]<user>c</s>[[<assistant>d</s>]]");
    turns_are("{% if messages[-1].role == 'user' %}{{ raise_exception('no') }}{% endif %}" MESSAGES PROMPT, TWO_TURNS,
              "! message 2: the chat template refuses the messages up to it alone: no");
}

/* A content that is also a part of what the template writes: of a tag's end, of a tag, of the words around it. */
static void test_contents_of_tags(void) {
    static const char chatml[] = "{% for m in messages %}<|s|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                                 "{% if add_generation_prompt %}<|s|>assistant\n{% else %}<|endoftext|>{% endif %}";
    static const char *const contents[] = {"b", ">", "|>", "end|>", "im", "s", "assistant", "<|im_end|>", ">\\n"};
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
        const char *const said = contents[i], *const shown = i + 1 < sizeof contents / sizeof *contents ? said : ">\n";
        char row[1024], expected[1024];
        snprintf(row, sizeof row, "{'messages': [" SAYS("user", "%s") ", " SAYS("assistant", "%s") ", "
                 SAYS("user", "%s") ", " SAYS("assistant", "%s") "]}", said, said, said, said);
        snprintf(expected, sizeof expected,
                 "<|s|>user\n%s<|im_end|>\n<|s|>assistant\n[[%s<|im_end|>]]\n<|s|>user\n%s<|im_end|>\n"
                 "<|s|>assistant\n[[%s<|im_end|>]]\n<|endoftext|>", shown, shown, shown, shown);
        turns_are(chatml, row, expected);
    }
    turns_are("{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content | trim }}[/INST]{% else %}"
              " {{ m.content | trim }}</s>{% endif %}{% endfor %}",
              "{'messages': [" SAYS("user", "INST") ", " SAYS("assistant", " INS ") ", " SAYS("user", "T]") ", "
              SAYS("assistant", "/s") "]}",
              "[INST] INST[/INST][[ INS</s>]][INST] T][/INST][[ /s</s>]]");
    /* A template that looks at what is said. */
    turns_are(MESSAGES "{{ '!' if m.content == 'user' }}</s>" PROMPT,
              "{'messages': [" SAYS("user", "user") ", " SAYS("assistant", "yes") "]}",
              "<user>user!</s><assistant>[[yes</s>]]");
    /* Lists of texts, and a reasoning before the content. */
    turns_are("{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content.split('</think>')[-1] }}"
              "{% else %}{{ m.content[0].text }}{% endif %}</end>\n" PROMPT,
              "{'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 'end'}]}, "
              SAYS("assistant", "<think>x</think>d>") ", " SAYS("user", "c") ", " SAYS("assistant", ">") "]}",
              "<user>end</end>\n<assistant>[[d></end>]]\n<user>c</end>\n<assistant>[[></end>]]\n");
}

int main(void) {
    test_stopped();
    test_found();
    test_choices();
    test_hash();
    test_tokens();
    test_conversations();
    test_turns();
    test_turn_ends();
    test_turn_begins();
    test_contents_of_tags();
    test_long_conversations();
    return test_end();
}
