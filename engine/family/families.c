/* The table of model families, in the order in which errors name them. */
#include "engine/family/families.h"

#include "base/assert.h"

#include <stdio.h>
#include <string.h>

static const struct ox_family *const families[] = {
    &ox_family_gpt2,  &ox_family_llama, &ox_family_mistral, &ox_family_phi3,    &ox_family_qwen2,
    &ox_family_qwen3, &ox_family_olmo2, &ox_family_olmo3,   &ox_family_smollm3, &ox_family_gemma2,
    &ox_family_gemma3, &ox_family_granite, &ox_family_cohere2, &ox_family_exaone4, &ox_family_mixtral,
    &ox_family_qwen2_moe, &ox_family_qwen3_moe, &ox_family_olmoe, &ox_family_gpt_oss, &ox_family_glm4_moe,
    &ox_family_deepseek_v3, &ox_family_deepseek_v2, &ox_family_granitemoe,
};

const struct ox_family_row *ox_family_row_at(const struct ox_family *family, uint32_t idx) {
    for (const struct ox_family_row *const *group = family->rows; *group != NULL; group++) {
        for (const struct ox_family_row *row = *group; row->name != NULL; row++) {
            if (idx-- == 0) {
                return row;
            }
        }
    }
    return NULL;
}

const struct ox_family *ox_family_find(const char *model_type) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (strcmp(families[i]->model_type, model_type) == 0) {
            return families[i];
        }
    }
    return NULL;
}

const char *ox_family_names(char text[OX_FAMILY_NAMES_BYTES]) {
    size_t end = 0;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const size_t room = OX_FAMILY_NAMES_BYTES - end;
        const int count = snprintf(text + end, room, "%s%s", i == 0 ? "" : ", ", families[i]->model_type);
        OX_ASSERT(count > 0 && (size_t)count < room);
        end += (size_t)count;
    }
    return text;
}
