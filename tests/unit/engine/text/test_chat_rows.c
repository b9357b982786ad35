/* Rows of JSON: the forms, the keys that say what is trained, the names of keys, and what is refused. */
#include "engine/text/chat.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <string.h>

#define ASK           "{\"role\":\"user\",\"content\":\"hi\"}"
#define SAY           "{\"role\":\"assistant\",\"content\":\"yo\"}"
#define SET           "{\"role\":\"system\",\"content\":\"He\"}"
#define ROW(messages) "{\"messages\":[" messages "]}"

/* Writes a row for comparison: of a conversation the JSON, then a letter for each message: t where it is trained, 0
 * where its weight is. */
static void row_with_is(const struct ox_chat_columns *columns, const char *row, enum ox_chat_kind kind,
                        const char *expected) {
    struct ox_chat chat = {0};
    char text[1024] = "";
    REQUIRE_OK(ox_chat_read_line("row", row, strlen(row), columns, &chat));
    CHECK((chat.conversation != NULL) == (chat.kind == OX_CHAT_MESSAGES));
    CHECK((chat.message_parts != NULL) == (chat.text == NULL));
    if (chat.kind == OX_CHAT_MESSAGES) {
        size_t used = json_dumpb(chat.conversation, text, sizeof text - 1, JSON_COMPACT);
        text[used++] = ' ';
        for (size_t i = 0; i < ox_chat_message_count(&chat); i++) {
            text[used++] = "-t0"[chat.message_parts[i]];
        }
    } else {
        snprintf(text, sizeof text, "%s|%s", chat.prompt != NULL ? chat.prompt : "", chat.text);
    }
    for (char *at = text; *at != '\0'; at++) {
        *at = (char)(*at == '"' ? '\'' : *at);
    }
    if (chat.kind != kind || strcmp(text, expected) != 0) {
        printf("%s\n  is       %s\n  must be  %s\n", row, text, expected);
        test_failure_count++;
    }
    ox_chat_free(&chat);
}

static void row_is(const char *row, enum ox_chat_kind kind, const char *expected) {
    row_with_is(NULL, row, kind, expected);
}

#define U(text)  "{'role':'user','content':'" text "'}"
#define A(text)  "{'role':'assistant','content':'" text "'}"
#define S(text)  "{'role':'system','content':'" text "'}"
#define IS(list) "{'messages':[" list "]}"

static void test_rows(void) {
    row_is("{\"text\":\"hi\"}", OX_CHAT_TEXT, "|hi");
    row_is("{\"prompt\":\"hi\",\"completion\":\" yo\"}", OX_CHAT_COMPLETION, "hi| yo");
    row_is(ROW(SET "," ASK "," SAY), OX_CHAT_MESSAGES, IS(S("He") "," U("hi") "," A("yo")) " --t");
    row_is("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
           "\"value\":\"b\"}],\"loss_weight\":0.0},{\"role\":\"assistant\",\"content\":[],\"loss_weight\":1.0},"
           "{\"role\":\"assistant\",\"content\":\"x\",\"loss_weight\":0}]}",
           OX_CHAT_MESSAGES,
           IS("{'role':'user','content':[{'type':'text','text':'a'},{'type':'text','text':'b'}]},"
              "{'role':'assistant','content':[]}," A("x")) " 0t0");
    row_is("{\"messages\":[" ASK "],\"tools\":[],\"documents\":null}", OX_CHAT_MESSAGES,
           "{'messages':[" U("hi") "],'tools':[]} -"); /* templates tell an empty list from none */
    /* What the template may know stays; roles are the template's to judge. */
    row_is("{\"messages\":[{\"role\":\"developer\",\"content\":\"a\",\"name\":\"n\"},{\"role\":\"assistant\","
           "\"reasoning_content\":\"r\",\"content\":null,\"tool_calls\":[{\"id\":\"1\"}]}],\"tools\":[{\"f\":1}],"
           "\"documents\":[{\"d\":2}],\"chat_template_kwargs\":{\"k\":false},\"other\":3}",
           OX_CHAT_MESSAGES,
           "{'messages':[{'role':'developer','content':'a','name':'n'},{'role':'assistant','reasoning_content':'r',"
           "'content':null,'tool_calls':[{'id':'1'}]}],'tools':[{'f':1}],'documents':[{'d':2}],"
           "'chat_template_kwargs':{'k':false}} -t");
    row_is("{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},{\"from\":\"function_call\",\"value\":\"b\"},"
           "{\"from\":\"observation\",\"value\":\"c\"},{\"from\":\"gpt\",\"value\":\"d\"}],\"system\":\"s\","
           "\"tools\":\"[{\\\"f\\\":1}]\"}",
           OX_CHAT_MESSAGES,
           "{'messages':[" S("s") "," U("a") "," A("b") ",{'role':'tool','content':'c'}," A("d")
           "],'tools':[{'f':1}]} --t-t");
    row_is("{\"conversations\":[{\"from\":\"system\",\"value\":\"s\"},{\"from\":\"human\",\"value\":\"a\"},"
           "{\"from\":\"gpt\",\"value\":\"b\"}],\"system\":\"unused\",\"tools\":\"\"}",
           OX_CHAT_MESSAGES, IS(S("s") "," U("a") "," A("b")) " --t");
    row_is("{\"instruction\":\"a\",\"input\":\"\",\"output\":\"b\",\"text\":null}", OX_CHAT_MESSAGES,
           IS(U("a") "," A("b")) " -t");
    row_is("{\"instruction\":\"a\",\"input\":\"i\",\"output\":\"b\",\"system\":\"s\",\"history\":[[\"x\",\"y\"]]}",
           OX_CHAT_MESSAGES, IS(S("s") "," U("x") "," A("y") "," U("a\\ni") "," A("b")) " --t-t");
    row_is("{\"instruction\":\"\",\"input\":\"i\",\"output\":\"b\",\"system\":\"\",\"history\":null}", OX_CHAT_MESSAGES,
           IS(U("i") "," A("b")) " -t");
}

/* Rows of other programs: the same conversation in every form. */
static void test_forms(void) {
    static const char talk[] = IS(U("hi") "," A("yo")) " -t";
    /* TRL: conversations with role and content; a prompt and a completion of messages, the latter trained. */
    row_is("{\"conversations\":[" ASK "," SAY "]}", OX_CHAT_MESSAGES, talk);
    row_is("{\"prompt\":[" ASK "],\"completion\":[" SAY "]}", OX_CHAT_MESSAGES, talk);
    row_is("{\"prompt\":[" ASK "," SAY "," ASK "],\"completion\":[" SAY "],\"system\":\"unused\"}", OX_CHAT_MESSAGES,
           IS(U("hi") "," A("yo") "," U("hi") "," A("yo")) " ---t");
    /* axolotl: any pair of keys, roles by either name. */
    row_is("{\"messages\":[{\"from\":\"human\",\"value\":\"hi\"},{\"from\":\"gpt\",\"value\":\"yo\"}]}",
           OX_CHAT_MESSAGES, talk);
    row_is("{\"conversations\":[{\"from\":\"user\",\"value\":\"hi\"},{\"from\":\"assistant\",\"value\":\"yo\"}]}",
           OX_CHAT_MESSAGES, talk);
    row_is("{\"messages\":[{\"role\":\"human\",\"content\":\"hi\"},{\"role\":\"gpt\",\"value\":\"yo\"}]}",
           OX_CHAT_MESSAGES, talk);
    row_is("{\"messages\":[{\"role\":\"observation\",\"content\":\"hi\"}," SAY "],\"system\":\"s\"}",
           OX_CHAT_MESSAGES, IS(S("s") ",{'role':'observation','content':'hi'}," A("yo")) " --t");
    row_is("{\"conversations\":[{\"from\":\"gpt\",\"value\":\"yo\"},{\"from\":\"gpt\",\"value\":\"a\",\"weight\":0}]}",
           OX_CHAT_MESSAGES, IS(A("yo") "," A("a")) " t0");
    /* From a table: lists as JSON in a text. */
    row_is("{\"messages\":\"[{\\\"role\\\":\\\"user\\\",\\\"content\\\":\\\"hi\\\"}]\"}", OX_CHAT_MESSAGES,
           IS(U("hi")) " -");
    row_is("{\"instruction\":\"hi\",\"context\":\"there\",\"response\":\"yo\",\"category\":\"x\"}", OX_CHAT_MESSAGES,
           IS(U("hi\\nthere") "," A("yo")) " -t");
    /* What is not whole is no form: ultrachat has a prompt beside its messages. */
    row_is("{\"prompt\":\"hi\",\"prompt_id\":\"1\",\"messages\":[" ASK "," SAY "]}", OX_CHAT_MESSAGES, talk);
}

/* What says whether a message is trained, in the words of several programs. */
static void test_flags(void) {
    static const struct {
        const char *key, *yes, *no;
    } flags[] = {{"weight", "1", "0"},        {"loss_weight", "1.0", "0.0"}, {"loss", "true", "false"},
                 {"train", "true", "false"},  {"training", "true", "false"}, {"trainable", "1", "0"},
                 {"mask", "false", "true"},   {"masked", "0", "1"},          {"loss_mask", "1", "0"},
                 {"ignore_loss", "false", "true"}, {"skip", "false", "true"},   {"exclude", "false", "true"},
                 {"supervise", "true", "false"}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        char row[512];
        snprintf(row, sizeof row,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"%s\":%s},{\"role\":\"assistant\","
                 "\"content\":\"b\",\"%s\":%s},{\"role\":\"assistant\",\"content\":\"c\",\"%s\":%s},"
                 "{\"role\":\"assistant\",\"content\":\"d\",\"%s\":null}]}", flags[i].key, flags[i].no, flags[i].key,
                 flags[i].no, flags[i].key, flags[i].yes, flags[i].key);
        row_is(row, OX_CHAT_MESSAGES, IS(U("a") "," A("b") "," A("c") "," A("d")) " 00tt");
    }
    /* Signs of good examples, pictures that are none, and keys with harmless values or names. */
    row_is("{\"messages\":[" ASK "," SAY "],\"images\":[],\"image\":null,\"videos\":\"\",\"audio\":{},\"label\":true,"
           "\"rejected\":false,\"weight\":1,\"score\":3,\"answer\":\"accept\",\"loss_mask\":[]}",
           OX_CHAT_MESSAGES, IS(U("hi") "," A("yo")) " -t");
    row_is("{\"text\":\"a\",\"label\":0,\"answer\":\"accept\",\"train_step\":7}", OX_CHAT_TEXT, "|a");
    const struct ox_chat_columns chosen = {.names = {[OX_COLUMN_COMPLETION] = "chosen"}};
    row_with_is(&chosen, "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}", OX_CHAT_COMPLETION, "a|b");
}

static void test_columns(void) {
    const struct ox_chat_columns question = {
        .names = {[OX_COLUMN_PROMPT] = "question", [OX_COLUMN_COMPLETION] = "answer"}};
    row_with_is(&question, "{\"question\":\"hi\",\"answer\":\" yo\",\"text\":\"unused\"}", OX_CHAT_COMPLETION,
                "hi| yo");
    const struct ox_chat_columns dialog = {.names = {[OX_COLUMN_MESSAGES] = "dialog", [OX_COLUMN_ROLE] = "speaker",
                                                     [OX_COLUMN_CONTENT] = "utterance", [OX_COLUMN_TOOLS] = "functions",
                                                     [OX_COLUMN_SYSTEM] = "rules"}};
    row_with_is(&dialog, "{\"dialog\":[{\"speaker\":\"human\",\"utterance\":\"hi\"},{\"speaker\":\"gpt\",\"utterance\":"
                "\"yo\"},{\"speaker\":\"judge\",\"utterance\":\"x\"}],\"rules\":\"s\",\"functions\":[1]}",
                OX_CHAT_MESSAGES,
                "{'messages':[" S("s") "," U("hi") "," A("yo") ",{'role':'judge','content':'x'}],'tools':[1]} --t-");
    const struct ox_chat_columns task = {.names = {[OX_COLUMN_INSTRUCTION] = "task", [OX_COLUMN_INPUT] = "given",
                                                   [OX_COLUMN_OUTPUT] = "result"}};
    row_with_is(&task, "{\"task\":\"hi\",\"given\":\"there\",\"result\":\"yo\"}", OX_CHAT_MESSAGES,
                IS(U("hi\\nthere") "," A("yo")) " -t");
    const struct ox_chat_columns half = {.names = {[OX_COLUMN_OUTPUT] = "result"}};
    row_with_is(&half, "{\"instruction\":\"hi\",\"result\":\"yo\",\"output\":7}", OX_CHAT_MESSAGES,
                IS(U("hi") "," A("yo")) " -t");
    /* A name chooses one of two forms. */
    const struct ox_chat_columns text = {.names = {[OX_COLUMN_TEXT] = "text"}};
    row_with_is(&text, "{\"instruction\":\"a\",\"output\":\"b\",\"text\":\"c\"}", OX_CHAT_TEXT, "|c");
}

static const struct {
    const char *row, *words;
} bad[] = {
    {"{}", "the row has no known form, which are \"messages\", \"conversations\", "},
    {"[1]", "a row must be an object, but is [1]"},
    {"{\"a\":1,\"b\":{}}", "its keys are \"a\", \"b\"; name them with --column-messages"},
    {"{\"completion\":\"x\"}",
     "a row with \"completion\" also needs \"prompt\"; this one has the keys \"completion\""},
    {"{\"instruction\":\"a\",\"output\":\"b\",\"text\":\"c\"}",
     "the row has two forms at once, alpaca and text; choose"},
    {"{\"messages\":[],\"conversations\":[]}", "two forms at once, messages and sharegpt"},
    {"{\"text\":7}", "\"text\" must be a string, but is 7"},
    {"{\"prompt\":\"x\"}", "a row with \"prompt\" also needs \"completion\""},
    {"{\"prompt\":\"x\",\"completion\":null}", "\"completion\" is null, so the row has nothing to train on"},
    {"{\"text\":null}", "\"text\" is null, so the row has nothing to train on; leave such rows out (jq -c"},
    {"{\"prompt\":[],\"completion\":\"x\"}", "\"completion\" must be a list of messages, as the prompt is, but is"},
    {"{\"prompt\":\"x\",\"completion\":[" SAY "]}", "\"prompt\" must be a list of messages, as the completion is"},
    {"{\"prompt\":[],\"completion\":[" SAY "]}", "\"prompt\" must be a list of at least one message, but is []"},
    {"{\"prompt\":{},\"completion\":\"x\"}", "\"prompt\" must be a string"},
    {"{\"text\":\"a\",\"text\":\"b\"}", "duplicate"},
    {"{\"text\":\"a\"", "not valid JSON"},
    {"{\"text\":\"\xff\"}", "not valid JSON"},
    {"{\"messages\":[]}", "\"messages\" must be a list of at least one message"},
    {"{\"messages\":{}}", "\"messages\" must be"},
    {"{\"messages\":[7]}", "\"messages\" must be a list of objects, but is 7"},
    {"{\"messages\":[{\"content\":\"x\"}]}", "message 1: the key \"role\" is missing"},
    {ROW(ASK ",{\"role\":7,\"content\":\"x\"}"), "message 2: \"role\" must be a string"},
    {ROW(ASK ",{\"role\":\"assistant\"}"), "message 2: the key \"content\" is missing"},
    {ROW(ASK ",{\"role\":\"assistant\",\"content\":null}"), "message 2: \"content\" must be a text"},
    {ROW("{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}"),
     "message 1: \"content\" has a part of the type \"image\", but only text is trained"},
    {ROW("{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}"), "message 1: \"content\" must be a text or"},
    {ROW("{\"role\":\"user\",\"content\":[\"x\"]}"), "message 1: \"content\" must be a text or"},
    {ROW("{\"role\":\"user\",\"content\":\"x\",\"weight\":1}"), "message 1: \"weight\" is 1, but only"},
    {ROW("{\"role\":\"assistant\",\"content\":\"x\",\"loss_weight\":0.5}"), "\"loss_weight\" must be 0 or 1"},
    {ROW("{\"role\":\"assistant\",\"content\":\"x\",\"weight\":\"1\"}"), "\"weight\" must be true, false, 0 or 1"},
    {ROW("{\"role\":\"assistant\",\"content\":7,\"tool_calls\":[{}]}"), "\"content\" must be a text"},
    {ROW("{\"role\":\"assistant\",\"tool_calls\":[]}"), "message 1: the key \"content\" is missing"},
    /* what would be trained although the row or message says no, or not seen */
    {ROW("{\"role\":\"user\",\"content\":\"x\",\"train\":true}"),
     "message 1: \"train\" is true, but only messages of the assistant can be trained; set it to false"},
    {ROW("{\"role\":\"user\",\"content\":\"x\",\"mask\":false}"), "\"mask\" is false, but only"},
    {ROW("{\"role\":\"assistant\",\"content\":\"x\",\"train\":\"False\"}"),
     "\"train\" must be true, false, 0 or 1, but is \"False\""},
    {ROW("{\"role\":\"assistant\",\"content\":\"x\",\"loss\":0.5}"), "\"loss\" must be 0 or 1"},
    {ROW("{\"role\":\"assistant\",\"content\":\"x\",\"loss\":true,\"mask\":true}"), "contradict each other"},
    {ROW("{\"role\":\"assistant\",\"content\":\"x\",\"train_detail\":[{\"begin_offset\":0}]}"),
     "message 1: \"train_detail\" seems to say what is trained, but is not known"},
    {ROW("{\"role\":\"assistant\",\"content\":\"x\",\"lossScale\":2}"), "\"lossScale\" seems to say"},
    {ROW("{\"role\":\"assistant\",\"content\":\"x\",\"exclude_from_loss\":true}"), "\"exclude_from_loss\" seems"},
    {"{\"messages\":[" ASK "," SAY "],\"loss_mask\":[0,1]}", "row: \"loss_mask\" seems to say what is trained"},
    {"{\"messages\":[" ASK "," SAY "],\"images\":[\"boat.png\"]}",
     "row: \"images\" is [\"boat.png\"], but only text is trained; leave such rows out"},
    {"{\"text\":\"x\",\"image\":\"a.png\"}", "\"image\" is \"a.png\", but only text is trained"},
    {"{\"prompt\":\"x\",\"completion\":\"y\",\"videos\":[{\"a\":1}]}", "\"videos\" is"},
    {ROW("{\"role\":\"user\",\"content\":\"x\",\"audio\":\"a.wav\"}"), "message 1: \"audio\" is \"a.wav\""},
    {"{\"prompt\":\"x\",\"completion\":\"y\",\"label\":false}",
     "\"label\" is false, which says that the row is a bad example"},
    {"{\"prompt\":\"x\",\"completion\":\"y\",\"label\":0}", "(jq -c 'select(.label != 0)')"},
    {"{\"messages\":[" ASK "," SAY "],\"attachments\":[\"a.png\"]}", "\"attachments\" is [\"a.png\"], but only text"},
    {"{\"messages\":[" ASK ",{\"role\":\"assistant\",\"content\":\"b\",\"label\":false}]}",
     "\"label\" is false, but the answer would be trained like the others"},
    {"{\"messages\":[" ASK "," SAY "],\"kto_tag\":false}", "\"kto_tag\" is false, which says"},
    {"{\"text\":\"x\",\"rejected\":true}", "\"rejected\" is true, which says"},
    {"{\"text\":\"x\",\"answer\":\"reject\"}", "\"answer\" is \"reject\", which says"},
    {"{\"text\":\"x\",\"weight\":0}", "\"weight\" is 0, which says"},
    {"{\"prompt\":\"x\",\"chosen\":\"y\",\"rejected\":\"z\"}",
     "the row is a preference (chosen, rejected); `offload train --dpo` trains on it as one; to train on what was "
     "chosen alone, give --column-prompt prompt --column-completion chosen, or"},
    {"{\"chosen\":[" ASK "],\"rejected\":[" ASK "]}", "give --column-messages chosen"},
    {"{\"messages\":[" ASK "," SAY "],\"rejected_response\":\"z\"}", "\"rejected_response\" is a worse answer"},
    /* names that are nearly right */
    {ROW("{\"role\":\"Assistant\",\"content\":\"x\"}"),
     "message 1: \"role\" is \"Assistant\", which chat templates know as \"assistant\"; write it so"},
    {ROW("{\"role\":\"USER\",\"content\":\"x\"}"), "which chat templates know as \"user\""},
    {ROW("{\"role\":\"user \",\"content\":\"x\"}"), "which chat templates know as \"user\""},
    {"{\"conversations\":[{\"from\":\"Human\",\"value\":\"x\"}]}", "\"from\" is \"Human\", which chat templates"},
    {"{\"prompt\":\"x\",\"response\":\"y\"}",
     "also needs \"completion\"; this one has the keys \"prompt\", \"response\"; give --column-prompt prompt "
     "--column-completion response (the texts as they are), or --column-instruction prompt --column-output "
     "response (a conversation, by the chat template)"},
    {"{\"question\":\"x\",\"answer\":\"y\"}",
     "give --column-instruction question --column-output answer (a conversation, by the chat template), or "
     "--column-prompt question --column-completion answer (the texts as they are)"},
    {"{\"Question\":\"x\",\"Answer\":\"y\",\"context\":\"z\",\"system_prompt\":\"s\"}",
     "--column-instruction Question --column-output Answer --column-input context --column-system system_prompt ("},
    {"{\"input\":\"x\",\"output\":\"y\"}", "give --column-instruction input --column-output output (a"},
    {"{\"query\":\"x\",\"response\":\"y\"}", "give --column-instruction query --column-output response (a"},
    {"{\"source\":\"x\",\"target\":\"y\"}", "give --column-prompt source --column-completion target (the"},
    {"{\"instruction\":\"x\",\"answer\":\"y\"}", "give --column-instruction instruction --column-output answer (a"},
    {"{\"story\":\"x\",\"id\":7}", "give --column-text story"},
    {"{\"dialog\":[{\"role\":\"user\",\"content\":\"x\"}]}", "give --column-messages dialog"},
    {"{\"input_ids\":[1,-2]}", "row: \"input_ids\" has -2 at position 1"},
    {"{\"input_ids\":[1,2.5]}", "\"input_ids\" has 2.5 at position 1"},
    {"{\"input_ids\":\"1 2\"}", "\"input_ids\" must be a list of whole numbers"},
    {"{\"input_ids\":[1,2],\"labels\":[1]}", "\"labels\" has 1 values for 2 of"},
    {"{\"input_ids\":[1,2],\"labels\":[2,-100]}", "\"labels\" has 2 at position 0, where \"input_ids\" has 1;"},
    {"{\"input_ids\":[1,2],\"labels\":[1,-1]}", "\"labels\" has -1 at position 1, where \"input_ids\" has 2"},
    {"{\"input_ids\":[1,2],\"loss_mask\":[1,2]}", "\"loss_mask\" has 2 at position 1; it must be a whole"},
    {"{\"input_ids\":[1,2,3],\"attention_mask\":[1,0,1]}", "\"attention_mask\" is 0 at position 1, between"},
    {"{\"input_ids\":[1,2,3],\"position_ids\":[0,1,0]}", "\"position_ids\" begin anew at position 2"},
    {"{\"input_ids\":[1,2],\"assistant_mask\":[0,1]}", "\"assistant_mask\" seems to say what is trained"},
    {"{\"text\":\"x\",\"assistant_masks\":[0,1]}", "\"assistant_masks\" seems to say what is trained"},
    {"{\"prompt\":\"x\",\"chosen\":\"y\"}", "give --column-prompt prompt --column-completion chosen (the texts"},
    {"{\"messages\":[" ASK "],\"tools\":{}}", "row: \"tools\" must be a list of tools, but is {}"},
    {"{\"messages\":[" ASK "],\"tools\":\"[\"}", "row: \"tools\" is the text \"[\", which is not "
     "valid JSON of a list of tools; write the list itself, or its JSON in a text"},
    {"{\"messages\":[" ASK "],\"chat_template_kwargs\":[1]}", "\"chat_template_kwargs\" must be an object"},
    {"{\"conversations\":[]}", "\"conversations\" must be a list of at least one message, but is []"},
    {"{\"conversations\":7}", "\"conversations\" must be a list of at least one message, but is 7"},
    {"{\"conversations\":[{\"from\":\"robot\",\"value\":\"a\"}]}",
     "message 1: \"from\" must be human, user,"},
    {"{\"conversations\":[{\"from\":\"human\",\"value\":7}]}", "message 1: \"value\" must be a text"},
    {"{\"conversations\":[{\"from\":\"human\"}]}",
     "message 1: the key \"value\" is missing; the message has the keys \"from\""},
    {ROW(ASK ",{\"role\":\"assistant\",\"text\":\"x\"}"), "message 2: the key \"content\" is missing; the message "
     "has the keys \"role\", \"text\"; give --column-content text"},
    {ROW("{\"speaker\":\"user\",\"content\":\"x\"}"), "message 1: the key \"role\" is missing; the message has the "
     "keys \"speaker\", \"content\"; give --column-role speaker"},
    {"{\"prompt\":[" ASK "],\"completion\":[{\"role\":\"assistant\"}]}", "message 1 of \"completion\": the key"},
    {"[\"Hi\",\"Ho\"]", "but is [\"Hi\",\"Ho\"]; make it {\"prompt\": ..., \"completion\": ...} (jq -c '{prompt"},
    {"[" ASK "," SAY "]", "make it {\"messages\": [...]} (jq -c '{messages: .}')"},
    {"\"x\"", "make it {\"text\": ...} (jq -c '{text: .}')"},
    {"{\"instruction\":\"x\"}", "a row with \"instruction\" also needs \"output\""},
    {"{\"instruction\":\"x\",\"output\":\"y\",\"history\":[[\"a\"]]}", "\"history\" must be a list of [user"},
    {"{\"instruction\":\"x\",\"output\":\"y\",\"history\":\"a\"}", "\"history\" must be a list of [user"},
    {"{\"instruction\":\"x\",\"output\":\"y\",\"input\":{}}", "\"input\" must be a string"},
};

static void test_bad_rows(void) {
    struct ox_chat chat = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const enum ox_status status = ox_chat_read_line("row", bad[i].row, strlen(bad[i].row), NULL, &chat);
        CHECK(chat.conversation == NULL && chat.text == NULL);
        if (status == OX_OK || strstr(ox_error_text(), bad[i].words) == NULL ||
            strncmp(ox_error_text(), "row:", 4) != 0) {
            printf("%s: expected a refusal with '%s', got %s: %s\n", bad[i].row, bad[i].words, ox_status_name(status),
                   status == OX_OK ? "" : ox_error_text());
            test_failure_count++;
        }
    }
    ox_chat_free(&chat);
}

/* Token ids: what labels and masks leave to be trained, and padding at both ends. */
static void test_ids(void) {
    static const struct {
        const char *row, *ids, *marks;
    } cases[] = {
        {"{\"input_ids\":[5,6,7]}", "5 6 7", "111"},
        {"{\"input_ids\":[5,6,7],\"labels\":null,\"text\":\"abc\",\"messages\":[]}", "5 6 7", "111"},
        {"{\"input_ids\":[5,6,7],\"labels\":[-100,6,7]}", "5 6 7", "011"},
        {"{\"input_ids\":[5,6,7],\"labels\":[-100,-100,-100]}", "5 6 7", "000"},
        {"{\"input_ids\":[5,6,7,8],\"completion_mask\":[0,1,1,1],\"assistant_masks\":[1,1,0,1]}", "5 6 7 8", "0101"},
        {"{\"input_ids\":[5,6,7,8],\"loss_mask\":[0,1,1,1],\"labels\":[5,6,7,-100]}", "5 6 7 8", "0110"},
        {"{\"input_ids\":[0,0,5,6,0],\"attention_mask\":[0,0,1,1,0],\"labels\":[-100,-100,5,6,-100]}", "5 6", "11"},
        {"{\"input_ids\":[5,6],\"position_ids\":[3,4],\"token_type_ids\":[0,0]}", "5 6", "11"},
    };
    struct ox_chat chat = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char ids[64] = "", marks[16] = "";
        REQUIRE_OK(ox_chat_read_line("row", cases[i].row, strlen(cases[i].row), NULL, &chat));
        CHECK(chat.kind == OX_CHAT_IDS && chat.trained.count == chat.ids.count);
        for (size_t k = 0; k < chat.ids.count; k++) {
            snprintf(ids + strlen(ids), sizeof ids - strlen(ids), "%s%d", k > 0 ? " " : "", (int)chat.ids.ids[k]);
            snprintf(marks + strlen(marks), sizeof marks - strlen(marks), "%d", chat.trained.marks[k]);
        }
        CHECK(strcmp(ids, cases[i].ids) == 0 && strcmp(marks, cases[i].marks) == 0);
    }
    /* Columns that are named choose another form. */
    const struct ox_chat_columns columns = {.names = {[OX_COLUMN_TEXT] = "text"}};
    static const char both[] = "{\"input_ids\":[5],\"text\":\"abc\"}";
    REQUIRE_OK(ox_chat_read_line("row", both, strlen(both), &columns, &chat));
    CHECK(chat.kind == OX_CHAT_TEXT);
    ox_chat_free(&chat);
}

int main(void) {
    test_ids();
    test_rows();
    test_forms();
    test_flags();
    test_columns();
    test_bad_rows();
    return test_end();
}
