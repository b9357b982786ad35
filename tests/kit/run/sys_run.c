#include "tests/kit/run/sys_run.h"

#include "base/prng/prng.h"
#include "tests/kit/files.h"
#include "tests/kit/run/advice.h"
#include "tests/kit/terminal.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noreturn)) static void give_up(const char *what, const char *path) {
    printf("%s %s: %s\n", what, path, strerror(errno));
    exit(1);
}

/* ---- files ---------------------------------------------------------------------------------------- */

const char *sys_write_model(const char *family) {
    static const char llama[] =
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 256,"
        " \"hidden_size\": 48, \"intermediate_size\": 96, \"num_hidden_layers\": 3, \"num_attention_heads\": 4,"
        " \"num_key_value_heads\": 2, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5,"
        " \"rope_theta\": 10000.0, \"tie_word_embeddings\": true, \"hidden_act\": \"silu\"}\n";
    static const char gpt2[] =
        "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_embd\": 48,"
        " \"n_layer\": 3, \"n_head\": 4, \"n_positions\": 64, \"n_inner\": 96, \"layer_norm_epsilon\": 1e-5,"
        " \"activation_function\": \"gelu_new\", \"tie_word_embeddings\": true}\n";
    static const char deepseek[] = /* two layers of three have a mixture, whose choice has a bias */
        "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"model_type\": \"deepseek_v3\", \"vocab_size\": 256,"
        " \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 3, \"num_attention_heads\": 4,"
        " \"num_key_value_heads\": 4, \"max_position_embeddings\": 64, \"q_lora_rank\": 12, \"kv_lora_rank\": 16,"
        " \"qk_rope_head_dim\": 4, \"qk_nope_head_dim\": 8, \"v_head_dim\": 8, \"n_routed_experts\": 16,"
        " \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 16, \"n_shared_experts\": 1, \"n_group\": 4,"
        " \"topk_group\": 2, \"first_k_dense_replace\": 1, \"tie_word_embeddings\": false}\n";
    static const char untied[] =
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 256,"
        " \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 3, \"num_attention_heads\": 4,"
        " \"num_key_value_heads\": 2, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5,"
        " \"rope_theta\": 10000.0, \"tie_word_embeddings\": false, \"hidden_act\": \"silu\"}\n";
    static const char mixtral[] = /* each expert of which can be a unit */
        "{\"architectures\": [\"MixtralForCausalLM\"], \"model_type\": \"mixtral\", \"vocab_size\": 256,"
        " \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 3, \"num_attention_heads\": 4,"
        " \"num_key_value_heads\": 2, \"max_position_embeddings\": 64, \"num_local_experts\": 8,"
        " \"num_experts_per_tok\": 2, \"tie_word_embeddings\": false}\n";
    static const char gpt_oss[] = /* 32 experts of which can be a unit */
        "{\"architectures\": [\"GptOssForCausalLM\"], \"model_type\": \"gpt_oss\", \"vocab_size\": 256,"
        " \"hidden_size\": 64, \"intermediate_size\": 32, \"num_hidden_layers\": 1, \"num_attention_heads\": 4,"
        " \"num_key_value_heads\": 2, \"head_dim\": 16, \"max_position_embeddings\": 64, \"sliding_window\": 8,"
        " \"num_local_experts\": 128, \"num_experts_per_tok\": 4, \"tie_word_embeddings\": false}\n";
    const char *const text = strcmp(family, "gpt2") == 0       ? gpt2
                             : strcmp(family, "gpt_oss") == 0  ? gpt_oss
                             : strcmp(family, "mixtral") == 0  ? mixtral
                             : strcmp(family, "deepseek") == 0 ? deepseek
                             : strcmp(family, "untied") == 0   ? untied : llama;
    const char *const path = test_pathf("%s.json", family);
    files_write_text(path, text);
    return path;
}

const char *sys_write_text(size_t bytes) {
    static const char *const nouns[] = {"drive", "layer", "token", "gradient", "plan", "lane", "chunk", "slot"};
    static const char *const verbs[] = {"waits for", "follows", "reads", "keeps", "gives back", "sees"};
    const char *const path = test_path("text.txt");
    FILE *const file = fopen(path, "w");
    size_t written = 0;
    for (uint64_t i = 0; file != NULL && written < bytes; i++) {
        uint32_t words[4];
        ox_philox(1, 2, i, words);
        const int line = fprintf(file, "The %s %s the %s, %u times.\n", nouns[words[0] % 8], verbs[words[1] % 6],
                                 nouns[words[2] % 8], words[3] % 100);
        written += line > 0 ? (size_t)line : bytes;
    }
    if (file == NULL || fclose(file) != 0) {
        give_up("cannot write", path);
    }
    return path;
}

/* The character that stands for a byte in a byte-level vocabulary, with what JSON wants before it. */
static void print_byte(FILE *file, unsigned byte) {
    unsigned moved = 256;
    for (unsigned other = 0; other < byte; other++) {
        moved += other <= ' ' || (other >= 0x7f && other <= 0xa0) || other == 0xad;
    }
    const bool as_it_is = (byte > ' ' && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    fprintf(file, "\"\\u%04x\"", as_it_is ? byte : moved);
}

static void write_tokenizer(const char *path) {
    static const char *const specials[] = {"<|endoftext|>", "<|startoftext|>", "<|im_start|>", "<|im_end|>"};
    FILE *const file = fopen(path, "w");
    if (file == NULL) {
        give_up("cannot write", path);
    }
    fputs("{\"version\":\"1.0\",\"added_tokens\":[", file);
    for (int i = 0; i < SYS_VOCAB - SYS_EOS; i++) {
        fprintf(file, "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                "\"normalized\":false,\"special\":true}", i > 0 ? "," : "", SYS_EOS + i, specials[i]);
    }
    fputs("],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
          "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\","
          "\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\","
          "\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
          "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{", file);
    for (unsigned byte = 0; byte < 256; byte++) {
        print_byte(file, byte);
        fprintf(file, ":%u,", byte);
    }
    fputs("\"he\":256,\"the\":257,\"\\u0120the\":258},\"merges\":[\"h e\",\"t he\",\"\\u0120 the\"]}}\n", file);
    if (fclose(file) != 0) {
        give_up("cannot write", path);
    }
}

const char *sys_write_speaker(void) {
    static const char config[] =
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 263,"
        " \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
        " \"num_key_value_heads\": 2, \"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-5,"
        " \"rope_theta\": 10000.0, \"tie_word_embeddings\": true, \"hidden_act\": \"silu\"}\n";
    static const char tokenizer[] =
        "{\"bos_token\": \"<|startoftext|>\", \"eos_token\": \"<|endoftext|>\", \"add_bos_token\": false,"
        " \"chat_template\": \"{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n'"
        " + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{'<|im_start|>assistant\\n'}}{% endif %}\"}\n";
    files_make_folder("speaker");
    files_write_text("speaker/config.json", config);
    files_write_text("speaker/tokenizer_config.json", tokenizer);
    write_tokenizer(test_path("speaker/tokenizer.json"));
    return test_path("speaker");
}

/* ---- words ---------------------------------------------------------------------------------------- */

void sys_args_word(struct sys_args *args, const char *format, ...) {
    va_list values;
    va_start(values, format);
    char *const word = args->text + args->used;
    const int length = vsnprintf(word, sizeof args->text - args->used, format, values);
    va_end(values);
    if (length < 0 || args->used + (size_t)length + 1 >= sizeof args->text || args->count == SYS_WORDS_MAX) {
        printf("too many words for the program\n");
        exit(1);
    }
    args->used += (size_t)length + 1;
    args->words[args->count++] = word;
    args->words[args->count] = NULL;
}

void sys_args_begin(struct sys_args *args, const char *command) {
    args->used = 0;
    args->count = 0;
    args->out_path = NULL;
    args->program = NULL;
    args->leashed = false;
    args->terminal = NULL;
    args->limit_count = 0;
    sys_args_word(args, "offload");
    sys_args_add(args, command);
}

void sys_args_add(struct sys_args *args, const char *words) {
    char word[SYS_PATH_BYTES];
    for (const char *at = words; *at != '\0';) {
        size_t used = 0;
        while (*at != '\0' && *at != ' ' && used + 1 < sizeof word) {
            at += at[0] == '\\' && at[1] == ' ';
            word[used++] = *at++;
        }
        word[used] = '\0';
        if (used > 0) {
            sys_args_word(args, "%s", word);
        }
        at += *at == ' ';
    }
}

void sys_args_train(struct sys_args *args, const char *model, const char *data, const char *output) {
    sys_args_begin(args, "train");
    sys_args_word(args, "--model=%s", model);
    sys_args_word(args, "--data=%s", data);
    sys_args_word(args, "--output=%s", test_path(output));
}

void sys_args_drive(struct sys_args *args, const char *name, const char *bytes) {
    sys_args_word(args, "--nvme=%s:%s", files_make_folder(name), bytes);
}

void sys_args_on_drive(struct sys_args *args, const char *output) {
    sys_args_add(args, "--weights-tier nvme --state-tier nvme --grads-tier nvme");
    sys_args_drive(args, plain_pathf("%s-drive", output), "32MiB");
}

void sys_remove_run(const char *output) {
    files_remove_folder(test_path(output));
    files_remove_folder(test_pathf("%s-drive", output));
}

void sys_args_limit(struct sys_args *args, int resource, rlim_t most) {
    CHECK(args->limit_count < SYS_LIMITS_MAX);
    args->limits[args->limit_count++] = (struct sys_limit){resource, most};
}

void sys_args_leash(struct sys_args *args) {
    args->leashed = true;
}

/* ---- the program ---------------------------------------------------------------------------------- */

static bool take_limits(const struct sys_args *args) {
    bool taken = true;
    for (int i = 0; i < args->limit_count && taken; i++) {
        struct rlimit limit;
        taken = getrlimit(args->limits[i].resource, &limit) == 0;
        limit.rlim_cur = args->limits[i].most;
        taken = taken && setrlimit(args->limits[i].resource, &limit) == 0;
    }
    return taken;
}

const char *sys_program(void) {
    return getenv("OX_BIN") != NULL ? getenv("OX_BIN") : "build/offload";
}

char *sys_use_emulated(void) {
    char program[SYS_PATH_BYTES];
    char *const before = strdup(sys_program());
    const char *const slash = strrchr(before, '/');
    snprintf(program, sizeof program, "%.*s/emulated/offload", slash == NULL ? 1 : (int)(slash - before),
             slash == NULL ? "." : before);
    setenv("OX_BIN", program, 1);
    return before;
}

void sys_use(char *program) {
    setenv("OX_BIN", program, 1);
    free(program);
}

/* The words lie in a struct that must not move: the pointers go into it. */
static void become(const struct sys_args *args, const char *out_path, int err) {
    setenv("OFFLOAD_PROFILE", "builtin", 0); /* measuring takes seconds, and predictions would depend on it */
    if (args->program != NULL) {
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* it would keep what it has started */
    }
    const int out = open(out_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out >= 0 && dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0 && take_limits(args)) {
        execvp(args->program != NULL ? args->program : sys_program(), args->words);
    }
    _exit(126);
}

/* A pipe keeps 64 KiB; that of a leashed program keeps one write, because each takes a page of it, and it has one. */
static void make_pipe(bool leashed, int ends[2]) {
    const bool made = pipe2(ends, O_CLOEXEC | (leashed ? O_DIRECT : 0)) == 0;
    if (!made || (leashed && fcntl(ends[1], F_SETPIPE_SZ, 1) != getpagesize())) {
        give_up("cannot make", "a pipe");
    }
}

void sys_start(const struct sys_args *args, struct sys_process *process) {
    static unsigned serial;
    int ends[2];
    process->out_path = args->out_path != NULL ? args->out_path : test_pathf("out-%u", serial++);
    process->keeps_out = args->out_path != NULL;
    process->err_bytes = 0;
    process->outcome.err[0] = '\0';
    if (args->terminal != NULL) {
        ends[0] = dup(args->terminal->master);
        ends[1] = args->terminal->slave; /* the last one that is open tells of the end */
        args->terminal->slave = -1;
        setenv("TERM", "xterm", 1);
    } else {
        make_pipe(args->leashed, ends);
    }
    fflush(stdout);
    process->pid = fork();
    if (process->pid == 0) {
        become(args, process->out_path, ends[1]);
    }
    if (process->pid < 0) {
        give_up("cannot start", "a process");
    }
    close(ends[1]);
    process->err_fd = ends[0];
}

/* What does not fit is dropped from the front half. */
bool sys_read(struct sys_process *process) {
    char *const err = process->outcome.err;
    if (process->err_fd < 0) {
        return false;
    }
    if (process->err_bytes == SYS_OUTPUT_BYTES - 1) {
        memmove(err, err + SYS_OUTPUT_BYTES / 2, SYS_OUTPUT_BYTES / 2);
        process->err_bytes -= SYS_OUTPUT_BYTES / 2;
    }
    ssize_t got = 0;
    do {
        got = read(process->err_fd, err + process->err_bytes, SYS_OUTPUT_BYTES - 1 - process->err_bytes);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) {
        close(process->err_fd);
        process->err_fd = -1;
        return false;
    }
    process->err_bytes += (size_t)got;
    err[process->err_bytes] = '\0';
    return true;
}

bool sys_await(struct sys_process *process, const char *words) {
    while (strstr(process->outcome.err, words) == NULL) {
        if (!sys_read(process)) {
            return false;
        }
    }
    return true;
}

void sys_wait(struct sys_process *process) {
    while (sys_read(process)) {
        continue;
    }
    int status = 0;
    struct rusage usage = {0};
    pid_t ended = 0;
    do {
        ended = wait4(process->pid, &status, 0, &usage);
    } while (ended < 0 && errno == EINTR);
    if (ended != process->pid) {
        give_up("cannot wait for", "the program");
    }
    struct sys_outcome *const outcome = &process->outcome;
    outcome->exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    outcome->peak_kib = usage.ru_maxrss;
    outcome->signal_number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (outcome->exit_status == 126) {
        printf("the program cannot be started; build it or set OX_BIN\n");
        exit(1);
    }
    FILE *const file = process->keeps_out ? NULL : fopen(process->out_path, "r");
    const size_t bytes = file == NULL ? 0 : fread(outcome->out, 1, SYS_OUTPUT_BYTES - 1, file);
    outcome->out[bytes] = '\0';
    if (file != NULL) {
        fclose(file);
        unlink(process->out_path);
    }
}

/* Whatever a command says, the options that it names are its own. */
static void check_advice(const struct sys_args *args, const struct sys_process *process) {
    char option[ADVICE_BYTES];
    if (args->program == NULL && advice_find_foreign(process->outcome.err, args->words, option)) {
        sys_complain(process, plain_pathf("`offload %s` names %s, which it does not take", args->words[1], option));
    }
}

void sys_run(const struct sys_args *args, struct sys_process *process) {
    sys_start(args, process);
    sys_wait(process);
    check_advice(args, process);
}

void sys_run_well(const struct sys_args *args, struct sys_process *process) {
    sys_run(args, process);
    if (process->outcome.exit_status != 0) {
        for (int i = 0; i < args->count; i++) {
            printf("%s ", args->words[i]);
        }
        printf("\n... ended with %d (signal %d):\n%s%s\n", process->outcome.exit_status,
               process->outcome.signal_number, process->outcome.out, process->outcome.err);
        exit(1);
    }
}

void sys_interrupt(struct sys_args *args, struct sys_process *process, const char *words, int signal_number) {
    sys_args_leash(args);
    sys_start(args, process);
    CHECK(sys_await(process, words));
    kill(process->pid, signal_number);
    sys_wait(process);
}

bool sys_said(const struct sys_process *process, const char *words) {
    return strstr(process->outcome.err, words) != NULL;
}

void sys_complain(const struct sys_process *process, const char *what) {
    printf("%s: exit status %d, signal %d\n%s\n", what, process->outcome.exit_status, process->outcome.signal_number,
           process->outcome.err);
    test_failure_count++;
}

/* ---- what a run says ------------------------------------------------------------------------------ */

char *sys_curve(const char *folder, const char *type) {
    char begin[64];
    size_t bytes = 0, kept = 0;
    char *const data = files_read(test_pathf("%s/metrics.jsonl", folder), &bytes);
    snprintf(begin, sizeof begin, "{\"type\":\"%s\",", type);
    for (size_t at = 0; at < bytes;) {
        const size_t length = strcspn(data + at, "\n");
        const char *const line = data + at, *const end = strstr(line, ",\"seconds\"");
        if (strncmp(line, begin, strlen(begin)) == 0) {
            const size_t head = end != NULL && end < line + length ? (size_t)(end - line) : length;
            memmove(data + kept, line, head);
            data[kept + head] = '\n';
            kept += head + 1;
        }
        at += length + 1;
    }
    data[kept] = '\0';
    return data;
}

const char *sys_curve_from(const char *curve, unsigned step) {
    char words[64];
    snprintf(words, sizeof words, "\"step\":%u,", step);
    const char *at = strstr(curve, words);
    while (at != NULL && at > curve && at[-1] != '\n') {
        at--;
    }
    return at != NULL ? at : "";
}

double sys_metric(const char *curve, unsigned step, const char *key) {
    char words[64];
    const char *const line = sys_curve_from(curve, step);
    snprintf(words, sizeof words, "\"%s\":", key);
    const char *const at = strstr(line, words);
    return at != NULL && at < line + strcspn(line, "\n") ? strtod(at + strlen(words), NULL) : NAN;
}

double sys_eval_loss(const char *model, const char *data, const char *words) {
    struct sys_args args;
    static struct sys_process process;
    sys_args_begin(&args, "eval");
    sys_args_word(&args, "--model=%s", model);
    sys_args_word(&args, "--data=%s", data);
    sys_args_add(&args, words);
    sys_args_add(&args, "--format json");
    sys_run_well(&args, &process);
    json_t *const json = json_loads(process.outcome.out, JSON_REJECT_DUPLICATES, NULL);
    const json_t *const loss = json_object_get(json, "mean_nll");
    const double value = json_is_number(loss) ? json_number_value(loss) : NAN;
    json_decref(json);
    return value;
}

long sys_number_after(const char *text, const char *words, long otherwise) {
    long number = otherwise;
    for (const char *at = strstr(text, words); at != NULL; at = strstr(at + 1, words)) {
        char *end = NULL;
        const long found = strtol(at + strlen(words), &end, 10);
        number = end != at + strlen(words) ? found : number;
    }
    return number;
}

bool sys_splits_state(const char *folder) {
    unsigned long device = 0, host = 0, nvme = 0;
    char *const text = files_read(plain_pathf("%s/plan.txt", folder), NULL);
    const char *const homes = strstr(text, "homes between tasks");
    const char *const state = homes != NULL ? strstr(homes, "optimizer state") : NULL;
    CHECK(state != NULL && sscanf(state, "optimizer state %lu %lu %lu", &device, &host, &nvme) == 3);
    free(text);
    return device + host > 0 && nvme > 0;
}

bool sys_same_text(const char *what, const char *a, const char *b) {
    size_t at = 0;
    while (a[at] != '\0' && a[at] == b[at]) {
        at++;
    }
    if (a[at] == b[at]) {
        return true;
    }
    while (at > 0 && a[at - 1] != '\n') {
        at--;
    }
    printf("%s part:\n  %.*s\n  %.*s\n", what, (int)strcspn(a + at, "\n"), a + at, (int)strcspn(b + at, "\n"), b + at);
    return false;
}

bool sys_same_checkpoint(const char *a, const char *b) {
    const bool adapters = files_exist(test_pathf("%s/adapter_config.json", a));
    const char *const names[] = {adapters ? "adapter_model.safetensors" : "model.safetensors", "optimizer.safetensors"};
    bool same = true;
    for (int i = 0; i < 2; i++) {
        same = files_same(test_pathf("%s/%s", a, names[i]), test_pathf("%s/%s", b, names[i])) && same;
    }
    return same;
}

bool sys_same_runs(const char *a, const char *b, unsigned steps) {
    static const char *const types[] = {"step", "eval"};
    const char *const folders[2] = {test_path(a), test_path(b)};
    bool same =
        sys_same_checkpoint(test_pathf("%s/checkpoint-%u", a, steps), test_pathf("%s/checkpoint-%u", b, steps));
    for (int i = 0; i < 2; i++) {
        char *const left = sys_curve(folders[0], types[i]), *const right = sys_curve(folders[1], types[i]);
        same = sys_same_text(types[i], left, right) && same;
        free(left);
        free(right);
    }
    return same;
}
