/* Marks the special-token strings in the texts of a row, so that a rendered text tells which of them a row wrote. A
 * template is a program: what it writes comes from its own text or from a row's, and only a character that no one else
 * writes tells which. */
#include "engine/text/chat_internal.h"

#include <stdlib.h>
#include <string.h>

struct marking {
    const struct ox_special_strings *strings;
    const char *mark;
    struct ox_text text; /* working memory */
};

static enum ox_status no_memory(void) {
    return ox_fail(OX_E_NOMEM, "no memory for the special-token strings of a conversation");
}

enum ox_status ox_special_strings_open(const struct ox_tokenizer *tokenizer, struct ox_special_strings *out) {
    enum ox_status status = OX_OK;
    *out = (struct ox_special_strings){0};
    for (uint32_t i = 0; status == OX_OK && i < tokenizer->added_count; i++) {
        const struct ox_added_token *const token = &tokenizer->added[i];
        if (token->special && token->bytes > 0) {
            status = ox_trie_add(&out->trie, token->text, token->bytes, i);
            out->late = token->normalized ? token->text : out->late;
        }
    }
    return status;
}

void ox_special_strings_close(struct ox_special_strings *strings) {
    ox_trie_free(&strings->trie);
}

/* ---- putting marks ------------------------------------------------------------------------------------------- */

/* Whether a special-token string begins at `pos`; *open: the text ends inside one that would begin there. */
static bool begins(const struct ox_trie *trie, const char *text, size_t bytes, size_t pos, bool *open) {
    bool found = false;
    uint32_t node = 0;
    size_t at = pos;
    do {
        node = ox_trie_child(trie, node, (uint8_t)text[at++]);
        found = found || (node != 0 && trie->nodes[node].token != 0);
    } while (node != 0 && at < bytes);
    *open = node != 0 && trie->nodes[node].child != 0;
    return found;
}

bool ox_special_strings_begin(const struct ox_special_strings *strings, const char *text, size_t bytes, size_t pos) {
    bool open = false;
    return strings->trie.count > 0 && pos < bytes && begins(&strings->trie, text, bytes, pos, &open);
}

/* Writes the text with its marks to marking->text, unless that is NULL; returns how many there are in *count. The end
 * of a key is never marked: templates compare keys. */
static enum ox_status mark_text(struct marking *marking, const char *text, size_t bytes, bool is_key, size_t *count) {
    const struct ox_trie *const trie = &marking->strings->trie;
    enum ox_status status = OX_OK;
    bool ends_open = false;
    size_t copied = 0;
    marking->text.bytes = 0;
    *count = 0;
    for (size_t pos = 0; status == OX_OK && trie->count > 0 && pos < bytes; pos++) {
        bool open = false;
        if (trie->first[(uint8_t)text[pos]] == 0) {
            continue;
        }
        if (begins(trie, text, bytes, pos, &open)) {
            size_t next = pos;
            ox_utf8_next(text, &next);
            status = ox_text_append(&marking->text, text + copied, next - copied);
            OX_TRY(status, ox_text_append(&marking->text, marking->mark, OX_MARK_BYTES));
            copied = next;
            ++*count;
        }
        ends_open = ends_open || open;
    }
    if (status == OX_OK && (*count > 0 || ends_open)) {
        status = ox_text_append(&marking->text, text + copied, bytes - copied);
    }
    if (status == OX_OK && ends_open && !is_key) {
        status = ox_text_append(&marking->text, marking->mark, OX_MARK_BYTES);
        ++*count;
    }
    return status;
}

static enum ox_status count_marks(struct marking *marking, const json_t *value, size_t *count) {
    enum ox_status status = OX_OK;
    const char *key = NULL;
    json_t *member = NULL;
    size_t own = 0;
    if (json_is_string(value)) {
        status = mark_text(marking, json_string_value(value), json_string_length(value), false, &own);
        *count += own;
    }
    for (size_t i = 0; status == OX_OK && i < json_array_size(value); i++) {
        status = count_marks(marking, json_array_get(value, i), count);
    }
    json_object_foreach((json_t *)value, key, member) {
        OX_TRY(status, mark_text(marking, key, strlen(key), true, &own));
        *count += own;
        OX_TRY(status, count_marks(marking, member, count));
    }
    return status;
}

static enum ox_status copy_marked(struct marking *marking, json_t *value, json_t **out);

static enum ox_status copy_text(struct marking *marking, json_t *value, json_t **out) {
    size_t count = 0;
    const enum ox_status status =
        mark_text(marking, json_string_value(value), json_string_length(value), false, &count);
    if (status == OX_OK) {
        *out = count > 0 ? json_stringn(marking->text.data, marking->text.bytes) : json_incref(value);
    }
    return status != OX_OK || *out != NULL ? status : no_memory();
}

static enum ox_status copy_member(struct marking *marking, const char *key, json_t *member, json_t *object) {
    json_t *copy = NULL;
    size_t count = 0;
    enum ox_status status = copy_marked(marking, member, &copy);
    OX_TRY(status, mark_text(marking, key, strlen(key), true, &count));
    OX_TRY(status, ox_text_append(&marking->text, "", 1));
    if (status != OX_OK) {
        json_decref(copy);
        return status;
    }
    return json_object_set_new(object, count > 0 ? marking->text.data : key, copy) == 0 ? OX_OK : no_memory();
}

/* *out is a new reference, to a copy with marks. */
static enum ox_status copy_marked(struct marking *marking, json_t *value, json_t **out) {
    enum ox_status status = OX_OK;
    const char *key = NULL;
    json_t *member = NULL;
    *out = NULL;
    if (json_is_string(value)) {
        return copy_text(marking, value, out);
    }
    if (!json_is_array(value) && !json_is_object(value)) {
        *out = json_incref(value);
        return OX_OK;
    }
    json_t *const copy = json_is_array(value) ? json_array() : json_object();
    status = copy != NULL ? OX_OK : no_memory();
    for (size_t i = 0; status == OX_OK && i < json_array_size(value); i++) {
        status = copy_marked(marking, json_array_get(value, i), &member);
        if (status == OX_OK && json_array_append_new(copy, member) != 0) {
            status = no_memory();
        }
    }
    json_object_foreach(value, key, member) {
        OX_TRY(status, copy_member(marking, key, member, copy));
    }
    if (status != OX_OK) {
        json_decref(copy);
        return status;
    }
    *out = copy;
    return OX_OK;
}

enum ox_status ox_chat_put_marks(const struct ox_special_strings *strings, const char *mark,
                                 const json_t *conversation, json_t **out) {
    struct marking marking = {.strings = strings, .mark = mark};
    size_t count = 0;
    *out = NULL;
    enum ox_status status = count_marks(&marking, conversation, &count);
    if (status == OX_OK && count > 0) {
        status = copy_marked(&marking, (json_t *)conversation, out);
    }
    ox_text_free(&marking.text);
    return status;
}

/* ---- taking them --------------------------------------------------------------------------------------------- */

enum ox_status ox_chat_take_marks(const char *mark, char *text, size_t *bytes, size_t **places, size_t *count) {
    const char *from = text;
    const char *const end = text + *bytes;
    size_t capacity = 0, kept = 0;
    enum ox_status status = OX_OK;
    *count = 0;
    *places = NULL;
    for (;;) {
        const char *const next = memmem(from, (size_t)(end - from), mark, OX_MARK_BYTES);
        const size_t run = (size_t)((next != NULL ? next : end) - from);
        memmove(text + kept, from, run);
        kept += run;
        if (next == NULL) {
            break;
        }
        status = ox_tok_reserve((void **)places, &capacity, *count + 1, sizeof **places);
        if (status != OX_OK) {
            break;
        }
        (*places)[(*count)++] = kept;
        from = next + OX_MARK_BYTES;
    }
    *bytes = kept;
    return status;
}
