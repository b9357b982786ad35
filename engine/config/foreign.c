/* Answers to names and values of other training programs, from the tables of foreign_names.c and foreign_values.c. */
#include "engine/config/foreign.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 256, PATTERN_BYTES = 96 };

/* Whether the pattern of so many bytes matches. Most have no wildcard, or begin with something else: thousands are
 * asked for each value of a configuration. */
static bool matches_one(const char *at, size_t bytes, const char *text) {
    const size_t plain = strcspn(at, "*?[\\ ");
    if (plain >= bytes) {
        return strncmp(at, text, bytes) == 0 && text[bytes] == '\0';
    }
    if (strncmp(at, text, plain) != 0) {
        return false;
    }
    char pattern[PATTERN_BYTES];
    snprintf(pattern, sizeof pattern, "%.*s", (int)bytes, at);
    return fnmatch(pattern, text, 0) == 0;
}

/* Whether one of the patterns, which are separated by spaces, matches. A pattern without a dot is of a name without
 * one. */
static bool matches(const char *patterns, const char *text) {
    const bool nested = strchr(text, '.') != NULL;
    for (const char *at = patterns; *at != '\0'; at += strspn(at, " ")) {
        const size_t bytes = strcspn(at, " ");
        if ((!nested || memchr(at, '.', bytes) != NULL) && matches_one(at, bytes, text)) {
            return true;
        }
        at += bytes;
    }
    return false;
}

/* Copies a text in small letters, with `dash` for each '_'. */
static void fold(const char *text, char dash, char out[NAME_BYTES]) {
    size_t used = 0;
    for (; *text != '\0' && used + 1 < NAME_BYTES; text++) {
        out[used++] = *text == '_' ? dash : (char)tolower((unsigned char)*text);
    }
    out[used] = '\0';
}

/* The first entry of a list that has the name, and the value where there is one; NULL: none has. */
static const struct ox_foreign *find(const struct ox_foreign *entries, unsigned count, const char *name,
                                     const char *value, unsigned commands) {
    char folded[NAME_BYTES], choice[NAME_BYTES];
    fold(name, '-', folded);
    fold(value != NULL ? value : "", '_', choice);
    for (unsigned i = 0; i < count; i++) {
        const struct ox_foreign *const entry = &entries[i];
        if ((entry->commands == 0 || (entry->commands & commands) != 0) && matches(entry->name, folded) &&
            (value == NULL || matches(entry->value, choice))) {
            return entry;
        }
    }
    return NULL;
}

const char *ox_foreign_answer(const char *name, const char *value, unsigned commands) {
    const struct ox_foreign *const entry =
        value == NULL ? find(ox_foreign_names, ox_foreign_count, name, NULL, commands)
                      : find(ox_foreign_values, ox_foreign_value_count, name, value, commands);
    return entry != NULL ? entry->answer : NULL;
}

bool ox_foreign_is_done(const char *name, const char *value, const char **own) {
    const struct ox_foreign *const entry = find(ox_foreign_same, ox_foreign_same_count, name, value, 0);
    *own = entry != NULL ? entry->answer : NULL;
    return entry != NULL;
}

const char *ox_foreign_command(const char *name) {
    static const struct {
        const char *names, *answer;
    } commands[] = {
        {"finetun* fine-tun* sft pretrain* pre-train* continue* resume fit run start launch full train-* accelerate "
         "torchrun deepspeed mpirun srun python tune-run full-finetune* instruct*", "use `offload train`"},
        {"lora qlora peft adapter*", "use `offload train --lora-r N`"},
        {"merge* fuse", "use `offload merge ADAPTER --output DIR`, which adds an adapter to its model"},
        {"unmerge", "does not exist: an adapter and its model stay as they are beside a merged one"},
        {"dpo", "use `offload train --dpo`"},
        {"grpo ppo kto orpo rlhf reward* rloo distill*",
         "does not exist: preferences are trained by `offload train --dpo`, and nothing by rewards"},
        {"chat", "use `offload generate --chat`"},
        {"infer* complet* sampl* predict ask prompt talk text-generation gen* cli", "use `offload generate`"},
        {"serv* server api deploy vllm web* gui ui board gradio host",
         "does not exist: nothing is served; `offload export` writes a folder that other programs serve, `offload "
         "generate` answers one prompt"},
        {"convert* gguf to-* save* quantiz* pack* upload push publish consolidat* zero-to-fp32*",
         "use `offload export`, which writes a Hugging Face folder; other programs convert that"},
        {"download* pull get fetch login hub search hf",
         "does not exist: nothing is downloaded; `hf download NAME` of huggingface_hub does that, and --model takes "
         "the folder"},
        {"evaluat* validat* test perplexity ppl score lm-eval mmlu", "use `offload eval`"},
        {"benchmark* speed* ds-io ds-nvme-tune profile measure", "use `offload bench`"},
        {"preprocess* prepar* tokeni* encode decode detokeni* dataset* data render show", "use `offload tokenize`"},
        {"info describe ls list verify check* fsck ds-inspect", "use `offload inspect`"},
        {"env environment ds-report diagnos* system machine hardware test-machine", "use `offload doctor`"},
        {"monitor status watch log logs htop ps progress attach", "use `offload top`"},
        {"estimat* mem memory dry-run autotun* tune fit-memory budget dryrun", "use `offload plan`"},
        {"report timeline nsys trace-report", "use `offload trace report RUN`"},
        {"new create scratch", "use `offload init --params 100M --output DIR`, then `offload train --model DIR`"},
        {"stop kill", "write a file offload.stop into the folder of the run, or send it INT: its state is saved"},
        {"update upgrade install uninstall", "use `make install` or `make uninstall` where the program was built"},
        {"usage man commands --commands -help -?", "use `offload help`"},
    };
    char folded[NAME_BYTES];
    fold(name, '-', folded);
    for (unsigned i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (matches(commands[i].names, folded)) {
            return commands[i].answer;
        }
    }
    return NULL;
}
