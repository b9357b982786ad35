/* What template_long.c uses of template_turns.c. */
#ifndef OX_ENGINE_TEMPLATE_INTERNAL_H
#define OX_ENGINE_TEMPLATE_INTERNAL_H

#include "engine/text/template.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ox_template_render_turns by renderings of all beginnings of the conversation, however long it is. */
OX_MUST enum ox_status ox_template_search_turns(const struct ox_template *chat_template, const json_t *conversation,
                                                const struct tm *now, struct ox_template_turns *out);

#ifdef __cplusplus
}
#endif
#endif
