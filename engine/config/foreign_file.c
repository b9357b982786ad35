/* A configuration file of another program that is given to --config: it is recognised by its keys, and each of them is
 * answered at once. So are several wrong keys in a file of our own. */
#include "engine/config/foreign.h"

#include "base/file.h"
#include "base/log.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <yaml.h>

enum { DEPTH_MAX = 16, KEY_BYTES = 256, VALUE_BYTES = 96, ANSWER_BYTES = 512, LINES_MAX = 200, COLUMN = 46,
       OPTIONS_MAX = 200 };

struct survey {
    yaml_parser_t parser;
    unsigned command, accepted; /* whose answers are given; whose options the file may have */
    char key[KEY_BYTES]; /* of the current value, with the mappings that it is in: "zero_optimization.stage" */
    const char *program; /* whose keys these are, or NULL */
    const char *remedy;  /* what to do with the file if it is no configuration at all, or NULL */
    unsigned unknown_count, line_count;
    bool report;  /* false: only counts */
    double epochs; /* of the file; 0: it gives none */
    FILE *flags;  /* what stands for the keys, as flags */
    bool flagged[OPTIONS_MAX]; /* by index in the option table: is among them */
    struct ox_config scratch; /* takes values, to see whether they are taken */
};

/* By what a file is told: the first key of this list that it has. */
static const struct {
    const char *key, *program, *remedy;
} signs[] = {
    {"peft_type", "the adapter_config.json of an adapter",
     "give its folder with --adapter, and the model that it belongs to with --model"},
    {"architectures", "the config.json of a model", "give it, or its folder, with --model"},
    {"num_hidden_layers", "the config.json of a model", "give it, or its folder, with --model"},
    {"pre_tokenizer", "a tokenizer.json", "give it, or its folder, with --tokenizer"},
    {"weight_map", "the index of a model's weights", "give its folder with --model"},
    {"_from_model_config", "the generation_config.json of a model", "give its folder with --model"},
    {"log_history", "the trainer_state.json of a checkpoint", "give its folder with --model"},
    {"add_bos_token", "the tokenizer_config.json of a model", "give its folder with --tokenizer"},
    {"zero_optimization", "a configuration of DeepSpeed", NULL},
    {"train_micro_batch_size_per_gpu", "a configuration of DeepSpeed", NULL},
    {"compute_environment", "a configuration of Accelerate", NULL},
    {"distributed_type", "a configuration of Accelerate", NULL},
    {"base_model", "a configuration of axolotl", NULL},
    {"finetuning_type", "a configuration of LLaMA-Factory", NULL},
    {"cutoff_len", "a configuration of LLaMA-Factory", NULL},
    {"_component_", "a configuration of torchtune", NULL},
    {"checkpointer", "a configuration of torchtune", NULL},
    {"tensor_model_parallel_size", "a configuration of Megatron", NULL},
    {"dataset_name", "a configuration of TRL", NULL},
    {"model_name_or_path", "a configuration of the Trainer or TRL", NULL},
    {"deepspeed", "a configuration of the Trainer", NULL},
};

static void note_sign(struct survey *s, const char *key) {
    for (unsigned i = 0; i < sizeof signs / sizeof *signs; i++) {
        if (s->program == signs[i].program) {
            return; /* what was seen is as good */
        }
        if (strcmp(signs[i].key, key) == 0) {
            s->program = signs[i].program;
            s->remedy = signs[i].remedy;
            return;
        }
    }
}

/* ---- answers ---------------------------------------------------------------------------------------- */

/* What is known of the current key, or of the mapping that it is in; NULL if nothing is. */
static const char *find_answer(const struct survey *s, const char *value) {
    char key[KEY_BYTES];
    snprintf(key, sizeof key, "%s", s->key);
    for (bool whole = true; key[0] != '\0'; whole = false) {
        for (const char *at = key; at != NULL; at = strchr(at, '.'), at += at != NULL) {
            const char *answer = whole && value[0] != '\0' ? ox_foreign_answer(at, value, s->command) : NULL;
            answer = answer != NULL ? answer : ox_foreign_answer(at, NULL, s->command);
            if (answer != NULL) {
                return answer;
            }
        }
        char *const dot = strrchr(key, '.');
        *(dot != NULL ? dot : key) = '\0';
    }
    return NULL;
}

static bool is_nothing(const char *value) {
    static const char *const words[] = {"", "~", "null", "none", "false", "no"};
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcasecmp(value, words[i]) == 0) {
            return true;
        }
    }
    return false;
}

static unsigned index_of(const struct ox_option *option) {
    uint32_t count = 0;
    return (unsigned)(option - ox_options(&count));
}

/* Adds a flag to those of the whole file, once unless it may be repeated. */
static void add_flag(struct survey *s, const struct ox_option *option, const char *value) {
    bool *const flagged = &s->flagged[index_of(option)];
    if (!*flagged || ox_option_is_list(option)) {
        fprintf(s->flags, " --%s %s", option->name, value);
    }
    *flagged = true;
}

static bool takes(struct survey *s, const struct ox_option *option, const char *value) {
    char where[KEY_BYTES];
    snprintf(where, sizeof where, "--%s", option->name);
    return ox_config_set(&s->scratch, option, value, where) == OX_OK;
}

/* Whether the value is the name of a file or folder that is not here, as of the hub. */
static bool is_elsewhere(const struct ox_option *option, const char *value) {
    static const char *const names[] = {"model", "data", "eval-data", "tokenizer"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(option->name, names[i]) == 0) {
            return access(value, F_OK) != 0;
        }
    }
    return false;
}

/* Adds the flags that an answer names beside its first: "... with --y word"; the value stands for a name in
 * capitals. */
static void add_others(struct survey *s, const char *answer, const char *value) {
    static const char with[] = " with --";
    for (const char *at = answer; (at = strstr(at, with)) != NULL;) {
        const bool always = at[-1] != ','; /* after a comma follows when, or an alternative */
        char name[KEY_BYTES], word[VALUE_BYTES];
        at += sizeof with - 1;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, " ,;."), at);
        at += strlen(name);
        snprintf(word, sizeof word, "%.*s", (int)(at[0] == ' ' ? strcspn(at + 1, " ,;.") : 0), at + (at[0] == ' '));
        const struct ox_option *const option = always && word[0] != '\0' ? ox_option_find_in(name, s->accepted) : NULL;
        const char *const given = isupper((unsigned char)word[0]) != 0 ? value : word;
        if (option != NULL && given[0] != '\0' && takes(s, option, given)) {
            add_flag(s, option, given);
        }
    }
}

/* What happens so many times an epoch, as the share of all steps that options of ours take; true if the key says so. */
static bool write_per_epoch(struct survey *s, const char *value, char out[ANSWER_BYTES]) {
    static const struct {
        const char *key, *option;
    } keys[] = {{"evals_per_epoch", "eval-steps"}, {"saves_per_epoch", "save-steps"}};
    for (unsigned i = 0; i < sizeof keys / sizeof *keys; i++) {
        const struct ox_option *const option = ox_option_find_in(keys[i].option, s->accepted);
        const double each = strtod(value, NULL), times = each * s->epochs;
        char given[VALUE_BYTES] = "0";
        if (strcmp(keys[i].key, s->key) != 0 || option == NULL || !(times > 0)) {
            continue;
        }
        if (times > 1) { /* rounded down: steps are rounded up */
            snprintf(given, sizeof given, "%.6g", floor(1e6 / times) * 1e-6);
        }
        if (takes(s, option, given)) {
            snprintf(out, ANSWER_BYTES, "--%s %s: %g an epoch, %g epoch%s%s", option->name, given, each, s->epochs,
                     s->epochs == 1 ? "" : "s", times > 1 ? "" : "; always so at the end");
            add_flag(s, option, given);
            return true;
        }
    }
    return false;
}

/* Turns "use --x N" into the flag with the value, if that is a value of it; else writes the answer as it is. */
static void write_use(struct survey *s, const char *answer, const char *value, char out[ANSWER_BYTES]) {
    char name[KEY_BYTES], word[VALUE_BYTES] = "", sized[VALUE_BYTES + 8];
    const size_t bytes = strcspn(answer + 6, " ,;.");
    const char *const rest = answer + 6 + bytes;
    snprintf(name, sizeof name, "%.*s", (int)bytes, answer + 6);
    snprintf(word, sizeof word, "%.*s", (int)(rest[0] == ' ' ? strcspn(rest + 1, " ,;.") : 0), rest + 1);
    snprintf(sized, sizeof sized, "%s:SIZE", value);
    const struct ox_option *const option = ox_option_find_in(name, s->accepted);
    const bool placeholder = isupper((unsigned char)word[0]) != 0;
    const char *given = option == NULL || word[0] == '\0'                             ? NULL
                        : !placeholder                                              ? word
                        : option->type == OX_OPT_NVME && strchr(value, '/') != NULL ? sized
                        : value[0] == '\0' || is_elsewhere(option, value)           ? NULL
                                                                                    : value;
    if (given != NULL && (given == sized || takes(s, option, given))) {
        snprintf(out, ANSWER_BYTES, "--%s %s%s", name, given, rest + 1 + strlen(word));
        add_flag(s, option, given);
        add_others(s, answer, value);
    } else {
        snprintf(out, ANSWER_BYTES, "%s", answer);
        if (option != NULL && placeholder && value[0] != '\0' && is_elsewhere(option, value)) {
            add_flag(s, option, word);
        }
    }
}

/* Writes what an option of ours says to the value that it has in the file. */
static void write_own(struct survey *s, const struct ox_option *option, const char *value, char out[ANSWER_BYTES]) {
    const char *const note = ox_foreign_answer(option->name, value, s->command);
    const char *const use = note != NULL && strncmp(note, "use ", 4) == 0 ? note + 4 : "";
    char word[VALUE_BYTES];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(use, " ,;:"), use);
    if (is_nothing(value) && option->type != OX_OPT_BOOL && option->choices == NULL) {
        return;
    }
    if (note != NULL && strncmp(note, "use --", 6) == 0) {
        write_use(s, note, value, out);
    } else if (note != NULL) {
        snprintf(out, ANSWER_BYTES, "%s", note);
        if (word[0] != '\0' && takes(s, option, word)) {
            add_flag(s, option, word);
            add_others(s, note, value);
        }
    } else if (takes(s, option, value)) {
        const bool is_switch = option->type == OX_OPT_BOOL;
        snprintf(out, ANSWER_BYTES, "--%s%s%s, the same", option->name, is_switch ? "=" : " ", value);
        fprintf(s->flags, " --%s%s%s", option->name, is_switch ? "=" : " ", value);
        s->flagged[index_of(option)] = true;
    } else if (strcmp(value, "auto") == 0) {
        snprintf(out, ANSWER_BYTES, "is taken from elsewhere there; --%s says it here", option->name);
    } else {
        snprintf(out, ANSWER_BYTES, "%s", ox_error_text());
    }
}

/* Answers the current key with its value; `list` if that is only the first of several. */
static void take_value(struct survey *s, const char *value, bool list) {
    const bool nested = strchr(s->key, '.') != NULL;
    const struct ox_option *const own = nested ? NULL : ox_option_find_in(s->key, s->accepted);
    /* Sections of a file that nobody knows may have names of ours in them. */
    const struct ox_option *const inner = nested ? ox_option_find_in(strrchr(s->key, '.') + 1, s->accepted) : NULL;
    char answer[ANSWER_BYTES] = "asks for nothing; leave it out";
    char line[KEY_BYTES + VALUE_BYTES], suggestion[OX_SUGGEST_BYTES];
    const char *const means = own == NULL && !nested ? ox_foreign_answer(s->key, NULL, s->command) : NULL;
    const char *ours = NULL;
    const bool done = !nested && !list && ox_foreign_is_done(s->key, value, &ours) && ours == NULL;
    s->unknown_count += !s->report && own == NULL && !done;
    if ((own != NULL && strcmp(own->name, "num-train-epochs") == 0) ||
        (means != NULL && strncmp(means, "use --num-train-epochs", 22) == 0)) {
        s->epochs = strtod(value, NULL);
    }
    if (!s->report || (own != NULL && s->program == NULL) || s->line_count++ >= LINES_MAX) {
        return;
    }
    const char *const found = own == NULL && is_nothing(value) ? ox_foreign_answer(s->key, value, s->command)
                                                               : find_answer(s, value);
    if (write_per_epoch(s, value, answer)) {
        ; /* from the epochs of the file */
    } else if (own != NULL) {
        write_own(s, own, value, answer);
    } else if (found != NULL && strncmp(found, "use --", 6) == 0) {
        write_use(s, found, list ? "" : value, answer);
    } else if (found != NULL) {
        snprintf(answer, sizeof answer, "%s", found);
    } else if (inner != NULL && !is_nothing(value)) {
        write_own(s, inner, value, answer);
    } else if (!is_nothing(value)) {
        const bool near = !nested && ox_option_suggest(s->key, s->accepted, false, suggestion);
        snprintf(answer, sizeof answer, "%s", near ? suggestion : !nested && ox_option_find(s->key) != NULL
                                                  ? "is an option of another command; leave it out"
                                                  : "is not known here");
    }
    snprintf(line, sizeof line, "%s: %s%s%s", s->key, list ? "[" : "", value, list ? ", ...]" : "");
    ox_log(OX_LOG_INFO, "  %-*s  %s", COLUMN, line, answer);
}

/* Says in a line what the program takes for keys that its file leaves out, where that is another value than ours. The
 * values are those of TrainingArguments of transformers, whose subclasses these programs have, and of Megatron. */
static void say_defaults(const struct survey *s) {
    static const struct {
        const char *programs, *name, *value;
    } defaults[] = {{"axolotl LLaMA-Factory Trainer", "weight-decay", "0"}, {"Megatron", "weight-decay", "0.01"},
                    {"axolotl LLaMA-Factory Trainer Megatron", "adam-beta2", "0.999"},
                    {"LLaMA-Factory Trainer", "num-train-epochs", "3"},
                    {"LLaMA-Factory Trainer", "per-device-train-batch-size", "8"},
                    {"LLaMA-Factory", "learning-rate", "5e-5"}};
    static const char *const replaced[][2] = {{"num-train-epochs", "max-steps"},
                                              {"per-device-train-batch-size", "global-batch-size"}};
    char text[ANSWER_BYTES] = "";
    size_t used = 0;
    for (unsigned i = 0; s->program != NULL && i < sizeof defaults / sizeof *defaults; i++) {
        const struct ox_option *const option = ox_option_find_in(defaults[i].name, s->accepted);
        bool counts = option != NULL && !s->flagged[index_of(option)] &&
                      (strcmp(defaults[i].name, "adam-beta2") != 0 || s->scratch.optim.optimizer == OX_OPTIM_ADAMW);
        for (unsigned k = 0; counts && k < sizeof replaced / sizeof *replaced; k++) {
            const struct ox_option *const other = ox_option_find_in(replaced[k][1], s->accepted);
            counts = strcmp(replaced[k][0], defaults[i].name) != 0 || other == NULL || !s->flagged[index_of(other)];
        }
        const char *const last_word = s->program != NULL ? strrchr(s->program, ' ') + 1 : "";
        counts = counts && strstr(defaults[i].programs, strcmp(last_word, "TRL") == 0 ? "Trainer" : last_word) != NULL;
        if (counts) {
            used += (size_t)snprintf(text + used, sizeof text - used, " --%s %s", option->name, defaults[i].value);
        }
    }
    if (used > 0) {
        ox_log(OX_LOG_INFO, "its defaults of what it leaves out, where ours are others:%s", text);
    }
}

/* ---- walking ---------------------------------------------------------------------------------------- */

static bool next(struct survey *s, yaml_event_t *event) {
    return yaml_parser_parse(&s->parser, event) != 0;
}

static void text_of(const yaml_event_t *event, char *text, size_t bytes) {
    snprintf(text, bytes, "%s", event->type == YAML_SCALAR_EVENT ? (const char *)event->data.scalar.value : "");
}

/* Walks the node that begins with `event`, and frees the event; false where the file is not YAML or goes too deep. */
static bool walk(struct survey *s, yaml_event_t *event, unsigned depth);

/* Walks the keys of a mapping; those of a list count as those of its mapping. */
static bool walk_mapping(struct survey *s, unsigned depth) {
    const size_t length = strlen(s->key);
    bool good = true, ended = false;
    while (good && !ended) {
        yaml_event_t key, value;
        char name[KEY_BYTES];
        good = next(s, &key);
        ended = good && key.type == YAML_MAPPING_END_EVENT;
        if (!good || ended) {
            continue;
        }
        text_of(&key, name, sizeof name);
        good = key.type == YAML_SCALAR_EVENT && next(s, &value);
        yaml_event_delete(&key);
        if (good) {
            snprintf(s->key + length, sizeof s->key - length, "%s%s", length > 0 ? "." : "", name);
            note_sign(s, name);
            good = walk(s, &value, depth + 1);
            s->key[length] = '\0';
        }
    }
    return good;
}

/* A list of values is answered by its first one. */
static bool walk_list(struct survey *s, unsigned depth) {
    yaml_event_t event;
    char first[VALUE_BYTES] = "", value[VALUE_BYTES];
    unsigned count = 0;
    while (next(s, &event)) {
        const yaml_event_type_t type = event.type;
        text_of(&event, value, sizeof value);
        if (type != YAML_SCALAR_EVENT && type != YAML_SEQUENCE_END_EVENT) {
            if (!walk(s, &event, depth + 1)) {
                return false;
            }
            continue;
        }
        yaml_event_delete(&event);
        if (type == YAML_SEQUENCE_END_EVENT) {
            if (count > 0) {
                take_value(s, first, count > 1);
            }
            return true;
        }
        if (count++ == 0) {
            memcpy(first, value, sizeof first);
        }
    }
    return false;
}

static bool walk(struct survey *s, yaml_event_t *event, unsigned depth) {
    const yaml_event_type_t type = event->type;
    char value[VALUE_BYTES];
    text_of(event, value, sizeof value);
    yaml_event_delete(event);
    if (depth > DEPTH_MAX) {
        return false;
    }
    if (type == YAML_SCALAR_EVENT && s->key[0] != '\0') {
        take_value(s, value, false);
    }
    return type == YAML_MAPPING_START_EVENT    ? walk_mapping(s, depth)
           : type == YAML_SEQUENCE_START_EVENT ? walk_list(s, depth)
                                               : type == YAML_SCALAR_EVENT || type == YAML_ALIAS_EVENT;
}

/* Walks a file of one mapping; false if it is none. */
static bool walk_file(struct survey *s, const char *text, size_t bytes) {
    yaml_event_t event;
    bool good = yaml_parser_initialize(&s->parser) != 0;
    if (!good) {
        return false;
    }
    yaml_parser_set_input_string(&s->parser, (const unsigned char *)text, bytes);
    for (bool begun = false; good && !begun;) {
        good = next(s, &event);
        begun = good && event.type == YAML_MAPPING_START_EVENT;
        good = good && (begun || event.type == YAML_STREAM_START_EVENT || event.type == YAML_DOCUMENT_START_EVENT);
        if (begun) {
            good = walk(s, &event, 0);
        } else {
            yaml_event_delete(&event);
        }
    }
    yaml_parser_delete(&s->parser);
    return good;
}

enum ox_status ox_config_check_program(const char *path, const char *text, size_t bytes, unsigned command,
                                       unsigned accepted) {
    char *flags = NULL;
    size_t flags_bytes = 0;
    struct survey *const s = calloc(1, sizeof *s);
    if (s == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to read it", path);
    }
    s->command = command;
    s->accepted = accepted;
    ox_config_init(&s->scratch);
    enum ox_status status = OX_OK;
    if (!walk_file(s, text, bytes) || (s->unknown_count < 2 && s->remedy == NULL)) {
        free(s); /* the reader says what is wrong */
        return OX_OK;
    }
    s->flags = open_memstream(&flags, &flags_bytes);
    if (s->flags == NULL) {
        status = ox_fail(OX_E_NOMEM, "%s: no memory to read it", path);
    } else if (s->remedy != NULL) {
        status = ox_fail(OX_E_CONFIG, "--config %s: is %s; %s", path, s->program, s->remedy);
    } else {
        s->report = true;
        ox_log(OX_LOG_INFO, "%s: %s%s", path, s->program != NULL ? s->program : "these keys are not options here",
               s->program != NULL ? "; what its keys are here:" : ":");
        (void)walk_file(s, text, bytes);
        fflush(s->flags);
        if (flags_bytes > 0) {
            ox_log(OX_LOG_INFO, "as flags:%s", flags);
            say_defaults(s);
        }
        status = s->program != NULL
                     ? ox_fail(OX_E_CONFIG, "--config %s: is %s, which the lines above answer key by key; give flags, "
                               "or a file whose keys are names of flags", path, s->program)
                     : ox_fail(OX_E_CONFIG, "--config %s: %u keys are not options of `offload %s`; the lines above say "
                               "what to use", path, s->unknown_count, ox_command_name(command));
    }
    if (s->flags != NULL) {
        fclose(s->flags);
    }
    free(flags);
    free(s);
    return status;
}
