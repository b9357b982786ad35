/* The option table, its setters, the cross-checks and the YAML face. */
#include "engine/config/foreign.h"

#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

static const char *write_yaml(const char *text) {
    files_write_text("run.yaml", text);
    return test_path("run.yaml");
}

static enum ox_status set(struct ox_config *config, const char *name, const char *text) {
    const struct ox_option *const option = ox_option_find(name);
    if (option == NULL) {
        printf("no option %s\n", name);
        exit(1);
    }
    char where[80];
    snprintf(where, sizeof where, "--%s", name);
    return ox_config_set(config, option, text, where);
}

static void set_refused(const char *name, const char *text, const char *words) {
    struct ox_config before, config;
    ox_config_init(&before);
    ox_config_init(&config);
    const enum ox_status status = set(&config, name, text);
    if (status != OX_E_CONFIG || strstr(ox_error_text(), words) == NULL ||
        strstr(ox_error_text(), name) == NULL || memcmp(&before, &config, sizeof config) != 0) {
        printf("--%s '%s': expected a refusal with '%s', got %s: %s\n", name, text, words,
               ox_status_name(status), ox_error_text());
        test_failure_count++;
    }
}

static void yaml_refused(const char *text, const char *words) {
    struct ox_config config;
    ox_config_init(&config);
    const enum ox_status status = ox_config_load_yaml(&config, write_yaml(text), OX_CMD_TRAIN);
    if (status != OX_E_CONFIG || strstr(ox_error_text(), words) == NULL) {
        printf("yaml '%s': expected a refusal with '%s', got %s: %s\n", text, words, ox_status_name(status),
               ox_error_text());
        test_failure_count++;
    }
}

/* Names are near by their words: letters may be wrong and words left out, but no word becomes another one. */
static void test_suggestions(void) {
    static const struct {
        const char *name;
        unsigned command;
        const char *text; /* "": none */
    } cases[] = {
        {"learning_rat", OX_CMD_TRAIN, "did you mean '--learning-rate'?"},
        {"laerning-rate", OX_CMD_TRAIN, "did you mean '--learning-rate'?"},
        {"learningrate", OX_CMD_TRAIN, "did you mean '--learning-rate'?"},
        {"learningRate", OX_CMD_TRAIN, "did you mean '--learning-rate'?"},
        {"warmup", OX_CMD_TRAIN, "did you mean '--warmup-steps', '--warmup-ratio' or '--powersgd-warm-start'?"},
        {"log-steps", OX_CMD_TRAIN, "did you mean '--logging-steps'?"},
        {"grad-norm", OX_CMD_TRAIN, "did you mean '--max-grad-norm'?"},
        {"host-memory", OX_CMD_TRAIN, "did you mean '--host-mem'?"},
        {"no-decay-embedings", OX_CMD_TRAIN, "did you mean '--no-decay-embeddings'?"},
        {"learning_rat", OX_CMD_DOCTOR, ""},
        {"zzzzzz", OX_CMD_TRAIN, ""},
        {"freeze-embeddings", OX_CMD_TRAIN, ""},
        {"min-steps", OX_CMD_TRAIN, ""},
        {"lr-data", OX_CMD_TRAIN, ""},
        {"eval-batch-size", OX_CMD_TRAIN, ""},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[OX_SUGGEST_BYTES];
        const bool found = ox_option_suggest(cases[i].name, cases[i].command, true, text);
        if (found != (cases[i].text[0] != '\0') || (found && strcmp(text, cases[i].text) != 0)) {
            printf("%s: '%s'\n", cases[i].name, found ? text : "");
            test_failure_count++;
        }
    }
}

static void test_table(void) {
    uint32_t count = 0;
    const struct ox_option *const options = ox_options(&count);
    for (uint32_t i = 0; i < count; i++) {
        const unsigned commands = options[i].commands;
        CHECK(ox_option_find_in(options[i].name, commands) == &options[i]);
        CHECK(options[i].alias == NULL || ox_option_find_in(options[i].alias, commands) == &options[i]);
        CHECK((options[i].usual & ~commands) == 0);
        CHECK(strchr(options[i].name, '_') == NULL);
        CHECK(options[i].help[0] != '\0' && strlen(options[i].help) <= 240 && options[i].commands != 0);
        const bool is_text = options[i].type == OX_OPT_TEXT || options[i].type == OX_OPT_PROSE ||
                             options[i].type == OX_OPT_PATTERNS;
        CHECK(is_text ? options[i].text_bytes > 1 : options[i].text_bytes == 0);
        CHECK((options[i].type != OX_OPT_CHOICE) || options[i].choices != NULL);
        for (uint32_t k = 0; k < i; k++) {
            const bool same = strcmp(options[k].name, options[i].name) == 0; /* as in another command */
            if (same && commands == OX_CMD_UNLOCK && options[i].choices != NULL) {
                continue; /* its --moments says what becomes of a run's */
            }
            CHECK((options[k].offset == options[i].offset) == same);
            CHECK(!same || ((options[k].commands & commands) == 0 && options[k].type == options[i].type &&
                            strcmp(options[k].default_text, options[i].default_text) == 0));
        }
    }
    CHECK(ox_option_find("learning_rate") == ox_option_find("learning-rate"));
    CHECK(ox_option_find("learning") == NULL);
    CHECK(ox_option_find("") == NULL);
    test_suggestions();
    CHECK(strcmp(ox_command_name(OX_CMD_EVAL), "eval") == 0);
}

static void test_defaults(void) {
    struct ox_config c;
    ox_config_init(&c);
    CHECK(c.optim.learning_rate == 0 && c.optim.warmup_steps == -1);
    CHECK(c.optim.adam_beta1 == 0.9 && c.optim.adam_beta2 == 0.95 && c.optim.adam_epsilon == 1e-8);
    CHECK(c.optim.weight_decay == 0.1 && c.optim.max_grad_norm == 1.0 && c.optim.decay_embeddings);
    CHECK(c.train.per_device_train_batch_size == 1 && c.train.gradient_accumulation_steps == 0 &&
          c.rows.max_seq_length == 1024);
    CHECK(c.place.chunk_elems == 0 && c.memory.queue_depth == 16 && c.save.eval_windows == 32 && c.train.seed == 42);
    CHECK(c.optim.lr_scheduler_type == OX_LR_LINEAR && c.train.dtype == OX_COMPUTE_FP32 &&
          c.place.prefetch_depth == -1);
    CHECK(strcmp(c.save.save_dtype, "auto") == 0 && c.rows.data_format == OX_FORMAT_AUTO && c.memory.nvme_count == 0);
    CHECK(c.rows.eval_fraction == 0.02 && c.train.stop_grace_seconds == 30.0 && c.train.max_nonfinite_steps == 10);
}

static void test_sizes(void) {
    struct ox_config c;
    ox_config_init(&c);
    set_refused("host-mem", "16", "16 has no unit; did you mean 16GiB?");
    set_refused("drive-endurance", "600", "600 has no unit; did you mean 600TB?");
    set_refused("host-mem", "1.5", "1.5 has no unit; did you mean 1.5GiB?");
    set_refused("device-mem", "65536", "65536 has no unit; did you mean 65536MiB?");
    set_refused("trace-bytes", "268435456", "268435456 has no unit; did you mean 268435456B?");
    set_refused("drive-endurance", "600", "600 has no unit; did you mean 600TB?");
    set_refused("size", "4", "4 has no unit; did you mean 4GiB?");
    set_refused("nvme", "/mnt/a:400", "400 has no unit; did you mean /mnt/a:400GiB?");
    REQUIRE_OK(set(&c, "host-mem", "0"));
    REQUIRE_OK(set(&c, "drive-endurance", "1000001B"));
    CHECK(c.memory.host_mem_bytes == 0 && c.memory.drive_endurance_bytes == 1000001);
}

static void test_set(void) {
    struct ox_config c;
    ox_config_init(&c);
    REQUIRE_OK(set(&c, "learning-rate", "1e-5"));
    REQUIRE_OK(set(&c, "seed", "18446744073709551615"));
    REQUIRE_OK(set(&c, "prefetch-depth", "-1"));
    REQUIRE_OK(set(&c, "device-mem", "1.5GiB"));
    REQUIRE_OK(set(&c, "lr-scheduler-type", "wsd"));
    REQUIRE_OK(set(&c, "dtype", "bf16"));
    REQUIRE_OK(set(&c, "dry-run", "yes"));
    REQUIRE_OK(set(&c, "nvme", "/mnt/a:b:4GiB"));
    REQUIRE_OK(set(&c, "nvme", "/mnt/c"));
    REQUIRE_OK(set(&c, "model", ""));
    CHECK(c.optim.learning_rate == 1e-5 && c.train.seed == UINT64_MAX && c.place.prefetch_depth == -1);
    CHECK(c.memory.device_mem_bytes == UINT64_C(3) << 29 && c.optim.lr_scheduler_type == OX_LR_WSD && c.tool.dry_run);
    CHECK(c.train.dtype == OX_COMPUTE_BF16 && c.memory.nvme_count == 2 && c.memory.nvme[0].bytes == UINT64_C(4) << 30);
    CHECK(strcmp(c.memory.nvme[0].path, "/mnt/a:b") == 0 && strcmp(c.memory.nvme[1].path, "/mnt/c") == 0);
    CHECK(c.memory.nvme[1].bytes == 0);
    set_refused("max-steps", "ten", "not a whole number");
    set_refused("max-steps", "-1", "out of range");
    set_refused("max-steps", "1.5", "not a whole number");
    set_refused("max-steps", " 1", "not a whole number");
    set_refused("max-steps", "", "no value");
    set_refused("seed", "18446744073709551616", "out of range; give 0 to 18446744073709551615");
    set_refused("per-device-train-batch-size", "0", "out of range");
    set_refused("eval-fraction", "0.6", "out of range");
    set_refused("learning-rate", "nan", "not a number");
    set_refused("learning-rate", "1e-5x", "not a number");
    set_refused("learning-rate", "0x1p-3", "not a number");
    set_refused("learning-rate", "1e999", "out of range");
    set_refused("prefetch-depth", "-2", "out of range");
    set_refused("from-scratch", "maybe", "neither true nor false");
    set_refused("device-mem", "20 bananas", "not a size");
    set_refused("lr-scheduler-type", "linea", "constant, linear, cosine, wsd, cosine_with_restarts");
    set_refused("isa", "sse", "auto, scalar, avx2, avx512, neon");
    set_refused("isa", "auto|scalar", "not one of");
    set_refused("nvme", "/mnt/a:40Gx", "does not end in a size");
    set_refused("nvme", "/mnt/a:0", "does not end in a size");
    set_refused("nvme", ":4GiB", "names no folder");
    set_refused("model", "a\nb", "control characters");
    set_refused("data", "", "no value");
    set_refused("data", "a\nb", "not UTF-8 text");
    set_refused("data", "a:2000000", "not a weight");
    set_refused("data", "a:1.2.3", "not a weight");
    set_refused("optimizer", "adam", "adamw, lion, sgd, muon");
    set_refused("moments", "fp32", "f32, bf16, q8");
    set_refused("packing", "both", "auto, stream, pack, pad");
    set_refused("prompt", "a\xff", "UTF-8");
    set_refused("model", "a\xff", "UTF-8");
    char longer[OX_CONFIG_TEXT_BYTES + 1];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    set_refused("model", longer, "too long");
    longer[sizeof longer - 2] = '\0';
    REQUIRE_OK(set(&c, "model", longer));
    CHECK(strcmp(c.files.model, longer) == 0);
    for (uint32_t i = c.memory.nvme_count; i < OX_CONFIG_NVME_MAX; i++) {
        REQUIRE_OK(set(&c, "nvme", "/mnt/d:1GiB"));
    }
    c.files.data_count = 0;
    REQUIRE_OK(set(&c, "data", "a:2.5"));
    REQUIRE_OK(set(&c, "data", "b:c"));
    REQUIRE_OK(set(&c, "data", "/"));
    CHECK(c.files.data_count == 3 && strcmp(c.files.data[0].path, "a") == 0 && c.files.data[0].weight == 2.5);
    CHECK(strcmp(c.files.data[1].path, "b:c") == 0 && c.files.data[1].weight == 1 &&
          strcmp(c.files.data[2].path, "/") == 0);
    REQUIRE_OK(set(&c, "prompt", "two\nlines"));
    CHECK(strcmp(c.write.prompt, "two\nlines") == 0);
    CHECK(set(&c, "nvme", "/mnt/d:1GiB") == OX_E_CONFIG && strstr(ox_error_text(), "more than 16") != NULL);
}

static void test_set_ranks(void) {
    struct ox_config c;
    ox_config_init(&c);
    REQUIRE_OK(set(&c, "sharding_strategy", "SHARD_GRAD_OP")); /* FSDP's name and letters */
    REQUIRE_OK(set(&c, "isa", "AVX2"));
    REQUIRE_OK(set(&c, "ddp_timeout", "1800")); /* the Trainer's name and unit */
    CHECK(c.ranks.sharding == OX_SHARDING_CHOICE_SHARD_GRAD_OP && strcmp(c.place.isa, "avx2") == 0);
    CHECK(c.ranks.comm_timeout_ns == UINT64_C(1800000000000));
    REQUIRE_OK(set(&c, "sharding", "no-shard"));
    CHECK(c.ranks.sharding == OX_SHARDING_CHOICE_NO_SHARD);
    REQUIRE_OK(set(&c, "sharding", "HYBRID_SHARD"));
    CHECK(c.ranks.sharding == OX_SHARDING_CHOICE_HYBRID_SHARD);
    REQUIRE_OK(set(&c, "dp_shard_size", "2"));
    CHECK(c.ranks.shard_size == 2);
    set_refused("sharding", "_HYBRID_SHARD_ZERO2", "; use hybrid_shard_zero2");
    set_refused("sharding", "DDP", "; use no_shard");
    set_refused("sharding", "full", "auto, full_shard, shard_grad_op, zero1, zero2, zero3, no_shard, shared");
    set_refused("comm-timeout", "soon", "'soon' is not a time; write it as 90s or 10min");
    set_refused("comm-timeout", "10ms", "out of range; give 4s to 168h");
    set_refused("comm-timeout", "3s", "out of range; give 4s to 168h");
    set_refused("comm-timeout", "200h", "out of range; give 4s to 168h");
}

/* A valid training configuration with one thing changed by name and text. */
static void check_refused(unsigned command, const char *name, const char *text, const char *words) {
    struct ox_config c;
    ox_config_init(&c);
    REQUIRE_OK(set(&c, "model", "m"));
    REQUIRE_OK(set(&c, "data", "d"));
    REQUIRE_OK(set(&c, "output", "o"));
    REQUIRE_OK(set(&c, "max-steps", "100"));
    REQUIRE_OK(ox_config_validate(&c, command));
    REQUIRE_OK(set(&c, name, text));
    if (ox_config_validate(&c, command) != OX_E_CONFIG || strstr(ox_error_text(), words) == NULL) {
        printf("--%s '%s': expected '%s', got %s\n", name, text, words, ox_error_text());
        test_failure_count++;
    }
}

static void test_validate(void) {
    check_refused(OX_CMD_TRAIN, "model", "", "--model is missing");
    check_refused(OX_CMD_TRAIN, "output", "", "--output is missing");
    check_refused(OX_CMD_TRAIN, "output", "m", "is the --model folder or inside it");
    check_refused(OX_CMD_EXPORT, "output", "", "--output is missing");
    check_refused(OX_CMD_INSPECT, "model", "", "PATH is missing");
    check_refused(OX_CMD_TRAIN, "adam-beta1", "1", "less than 1");
    check_refused(OX_CMD_TRAIN, "adam-beta2", "0.99999999999", "less than 1");
    check_refused(OX_CMD_TRAIN, "adam-epsilon", "0", "more than 0");
    check_refused(OX_CMD_TRAIN, "chunk-elems", "4097", "multiple of 2048");
    check_refused(OX_CMD_TRAIN, "state-tier", "nvme", "--state-tier nvme needs a drive");
    check_refused(OX_CMD_TRAIN, "nvme", "/mnt/a", "has no size");
    check_refused(OX_CMD_TRAIN, "decay-steps", "5", "use wsd");
    check_refused(OX_CMD_TRAIN, "warmup-steps", "101", "exceeds --max-steps");
    check_refused(OX_CMD_TRAIN, "tiles", "2", "--gradient-accumulation-steps");
    check_refused(OX_CMD_TRAIN, "sum-groups", "2",
                  "--sum-groups: 2 exceeds --gradient-accumulation-steps 1, the number of micro-batches; give at most");
    check_refused(OX_CMD_TRAIN, "ranks", "0", "--ranks: '0' is neither auto nor a number of ranks, 1 to 1024");
    check_refused(OX_CMD_TRAIN, "ranks", "1025", "1 to 1024");
    check_refused(OX_CMD_TRAIN, "ranks", "two", "1 to 1024");
    check_refused(OX_CMD_TRAIN, "moments", "q8", "use --moments bf16, or --dtype bf16");
    check_refused(OX_CMD_PLAN, "moments", "q8", "--dtype fp32");

    struct ox_config c;
    ox_config_init(&c);
    REQUIRE_OK(set(&c, "model", "m"));
    REQUIRE_OK(ox_config_validate(&c, OX_CMD_PLAN));
    REQUIRE_OK(ox_config_validate(&c, OX_CMD_INSPECT));
    REQUIRE_OK(set(&c, "moments", "q8"));
    CHECK(ox_config_validate(&c, OX_CMD_PLAN) == OX_E_CONFIG);
    REQUIRE_OK(set(&c, "data", "d"));
    REQUIRE_OK(set(&c, "dtype", "fp16"));
    CHECK(ox_config_validate(&c, OX_CMD_PLAN) == OX_E_CONFIG && strstr(ox_error_text(), "--dtype fp16") != NULL);
    REQUIRE_OK(ox_config_validate(&c, OX_CMD_EVAL)); /* the configuration of a run, with another --dtype: no state */
    REQUIRE_OK(set(&c, "dtype", "bf16"));
    REQUIRE_OK(ox_config_validate(&c, OX_CMD_PLAN));
    REQUIRE_OK(set(&c, "warmup-steps", "1"));
    REQUIRE_OK(set(&c, "warmup-ratio", "0.1"));
    CHECK(ox_config_validate(&c, OX_CMD_PLAN) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "--warmup-ratio") != NULL);
    ox_config_init(&c);
    REQUIRE_OK(set(&c, "model", "m"));
    REQUIRE_OK(set(&c, "from-scratch", "true"));
    REQUIRE_OK(set(&c, "resume", "latest"));
    CHECK(ox_config_validate(&c, OX_CMD_PLAN) == OX_E_CONFIG &&
          strstr(ox_error_text(), "contradict") != NULL);
    ox_config_init(&c);
    REQUIRE_OK(set(&c, "model", "m"));
    REQUIRE_OK(set(&c, "nvme", "/mnt/a:1GiB"));
    REQUIRE_OK(set(&c, "nvme", "/mnt/a:2GiB"));
    CHECK(ox_config_validate(&c, OX_CMD_PLAN) == OX_E_CONFIG && strstr(ox_error_text(), "twice") != NULL);
    ox_config_init(&c);
    REQUIRE_OK(set(&c, "model", "m"));
    REQUIRE_OK(set(&c, "nvme", "/proc:1GiB"));
    REQUIRE_OK(set(&c, "nvme", "/:1GiB"));
    REQUIRE_OK(ox_config_validate(&c, OX_CMD_PLAN));
    REQUIRE_OK(set(&c, "nvme", "/proc/../proc/:1GiB"));
    CHECK(ox_config_validate(&c, OX_CMD_PLAN) == OX_E_CONFIG && strstr(ox_error_text(), "twice") != NULL);
    ox_config_init(&c);
    REQUIRE_OK(set(&c, "model", "m"));
    REQUIRE_OK(set(&c, "num-train-epochs", "0"));
    CHECK(ox_config_validate(&c, OX_CMD_PLAN) == OX_E_CONFIG && strstr(ox_error_text(), "both 0") != NULL);
}

/* The micro-batches that a batch size, their number and the sequences of a step give; 0: refused with `words`. */
static void check_micro_batches(const char *batch, const char *micro, const char *global, uint64_t count,
                                const char *words) {
    struct ox_config c;
    ox_config_init(&c);
    REQUIRE_OK(set(&c, "model", "m"));
    REQUIRE_OK(set(&c, "per-device-train-batch-size", batch));
    REQUIRE_OK(set(&c, "gradient-accumulation-steps", micro));
    REQUIRE_OK(set(&c, "train_batch_size", global)); /* DeepSpeed's name */
    const enum ox_status status = ox_config_validate(&c, OX_CMD_PLAN);
    if (count == 0) {
        CHECK(status == OX_E_CONFIG && strstr(ox_error_text(), words) != NULL);
        return;
    }
    REQUIRE_OK(status);
    CHECK(c.train.gradient_accumulation_steps == count && c.train.global_batch_size == 0);
    REQUIRE_OK(ox_config_validate(&c, OX_CMD_PLAN));
    CHECK(c.train.gradient_accumulation_steps == count);
}

static void test_global_batch(void) {
    check_micro_batches("2", "0", "0", 1, "");
    check_micro_batches("2", "3", "0", 3, "");
    check_micro_batches("2", "0", "64", 32, "");
    check_micro_batches("2", "32", "64", 32, "");
    check_micro_batches("64", "0", "64", 1, "");
    check_micro_batches("65536", "0", "68719476736", OX_MICRO_BATCHES_MAX, "");
    check_micro_batches("4", "0", "10", 0, "10 is not a multiple of --per-device-train-batch-size 4; give 8 or 12");
    check_micro_batches("4", "0", "3", 0, "--per-device-train-batch-size 4; give 4");
    check_micro_batches("1", "0", "1048577", 0, "give at most 1048576");
    check_micro_batches("2", "4", "64", 0, "64 is 32 micro-batches of --per-device-train-batch-size 2, but "
                                           "--gradient-accumulation-steps asks for 4; leave one of them out");
}

static void test_yaml(void) {
    struct ox_config c;
    ox_config_init(&c);
    REQUIRE_OK(set(&c, "nvme", "/old:1GiB"));
    REQUIRE_OK(ox_config_load_yaml(&c,
                                   write_yaml("# a comment\nmodel: ./m\nlearning_rate: 1e-5\nmax-steps: 7\n"
                                              "decay_embeddings: no\ndevice_mem: 2GiB\ndata: 'a # b'\n"
                                              "nvme:\n  - /mnt/a:1GiB\n  - \"/mnt/b:2GiB\"\n"),
                                   OX_CMD_TRAIN));
    CHECK(strcmp(c.files.model, "./m") == 0 && c.optim.learning_rate == 1e-5 && c.train.max_steps == 7 &&
          !c.optim.decay_embeddings);
    CHECK(c.memory.device_mem_bytes == UINT64_C(2) << 30 && strcmp(c.files.data[0].path, "a # b") == 0);
    CHECK(c.memory.nvme_count == 2 && strcmp(c.memory.nvme[0].path, "/mnt/a") == 0 &&
          c.memory.nvme[1].bytes == UINT64_C(2) << 30);
    REQUIRE_OK(ox_config_load_yaml(&c, write_yaml(""), OX_CMD_TRAIN));
    REQUIRE_OK(ox_config_load_yaml(&c, write_yaml("nvme: /mnt/c:1GiB\n"), OX_CMD_TRAIN));
    CHECK(c.memory.nvme_count == 1);

    REQUIRE_OK(ox_config_load_yaml(&c, write_yaml("from_scratch: True\ndecay_all: Yes\ndecay_embeddings: OFF\n"
                                                  "verify_memory: n\nadd_eos: true\n"), OX_CMD_TRAIN));
    CHECK(c.files.from_scratch && c.optim.decay_all && !c.optim.decay_embeddings && !c.memory.verify_memory &&
          c.rows.add_eos == OX_CHOICE_ON);
    yaml_refused("model: None\n", "model has no value");
    yaml_refused("model: Null\n", "model has no value");
    yaml_refused("model: m\nlearning_rat: 1\n",
                 "run.yaml:2: 'learning_rat' is not an option; did you mean 'learning_rate'?");
    yaml_refused("zzzz: 1\n", "offload help train");
    yaml_refused("seed: 1\nmodel: m\nseed: 2\n", "run.yaml:3: 'seed' was set already in line 1");
    yaml_refused("lr: 1\nlearning_rate: 2\n", "already in line 1");
    yaml_refused("model: 'm\n", "not YAML");
    yaml_refused("- model\n", "'option: value'");
    yaml_refused("model: &x m\n", "anchors");
    yaml_refused("model: *x\n", "aliases");
    yaml_refused("model: !!str m\n", "tags");
    yaml_refused("model: {a: b}\n", "single value");
    yaml_refused("model: [a]\n", "single value");
    yaml_refused("nvme: [[a]]\n", "single value");
    yaml_refused("? [a]\n: b\n", "name of an option");
    yaml_refused("model:\n", "run.yaml:1: model has no value");
    yaml_refused("max_steps: null\n", "no value");
    yaml_refused("model: m\n---\nmodel: n\n", "second document");
    yaml_refused("\n\nmax_steps: soon\n", "run.yaml:3: max_steps: 'soon' is not a whole number");
    yaml_refused("model: \"a\\0b\"\n", "NUL");
    yaml_refused("host_mem: 16\n", "run.yaml:1: host_mem: 16 has no unit; did you mean 16GiB?");
    yaml_refused("nvme:\n- /mnt/a:400\n", "run.yaml:2: nvme: 400 has no unit; did you mean /mnt/a:400GiB?");
    /* what earlier versions have recorded */
    REQUIRE_OK(ox_config_load_yaml(&c, write_yaml("nvme:\n- \"/mnt/a:429496729601\"\ndevice_mem: 1500000001\n"),
                                   OX_CMD_TRAIN));
    CHECK(c.memory.nvme_count == 1 && c.memory.nvme[0].bytes == 429496729601 &&
          c.memory.device_mem_bytes == 1500000001);
    ox_config_init(&c);
    CHECK(ox_config_load_yaml(&c, write_yaml("max_steps: 1\n"), OX_CMD_DOCTOR) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "`offload doctor` does not take 'max_steps'") != NULL);
    CHECK(ox_config_load_yaml(&c, "/nonexistent/run.yaml", OX_CMD_TRAIN) != OX_OK);
    CHECK(strstr(ox_error_text(), "/nonexistent/run.yaml") != NULL);
}

/* A written configuration reads back to the same bytes of the struct, whatever the values. */
/* Values that YAML would take for something else when they are written as they are. */
static void test_odd_values(void) {
    static struct ox_config first, second;
    static const char prose[] =
        "a\xc2\x85\xc2\x80 b\xe2\x80\xa8\n \xe2\x80\xa9 \xef\xbb\xbf \xef\xbf\xbe \x7f\t\xc3\xa9\xe4\xb8\xad";
    char *text = NULL;
    ox_config_init(&first);
    REQUIRE_OK(set(&first, "prompt", prose));
    REQUIRE_OK(ox_config_to_yaml(&first, OX_CMD_GENERATE, &text));
    ox_config_init(&second);
    REQUIRE_OK(ox_config_load_yaml(&second, write_yaml(text), OX_CMD_GENERATE));
    CHECK(strcmp(second.write.prompt, prose) == 0);
    free(text);
    ox_config_init(&first);
    REQUIRE_OK(set(&first, "data", "/a:0.00001"));
    REQUIRE_OK(set(&first, "data", "/b:0.1"));
    CHECK(set(&first, "data", "/c:0.0000001") == OX_E_CONFIG && first.files.data_count == 2);
    REQUIRE_OK(set(&first, "data", "/c:3:1"));
    REQUIRE_OK(ox_config_to_yaml(&first, OX_CMD_TRAIN, &text));
    ox_config_init(&second);
    REQUIRE_OK(ox_config_load_yaml(&second, write_yaml(text), OX_CMD_TRAIN));
    CHECK(strstr(text, "\"/a:0.00001\"\n") != NULL && strstr(text, "\"/b:0.1\"\n") != NULL);
    CHECK(second.files.data_count == 3 && strcmp(second.files.data[0].path, "/a") == 0 &&
          second.files.data[0].weight == 0.00001);
    CHECK(strcmp(second.files.data[1].path, "/b") == 0 && second.files.data[1].weight == 0.1);
    CHECK(strcmp(second.files.data[2].path, "/c:3") == 0 && second.files.data[2].weight == 1);
    free(text);
}

static void test_round_trip(void) {
    static const char *const values[][2] = {
        {"model", "path with 'quotes' and \"more\" \\ # : \xc3\xa9"},
        {"data", "a b.txt"},
        {"data", "c.jsonl:0.30000000000000004"},
        {"packing", "pad"},
        {"document-separator", "\\n\\n"},
        {"learning-rate", "0.1"},
        {"weight-decay", "0.30000000000000004"},
        {"adam-epsilon", "4.9406564584124654e-324"},
        {"adam-beta2", "0.99999999999999989"},
        {"seed", "18446744073709551615"},
        {"prefetch-depth", "-1"},
        {"device-mem", "1234567891B"},
        {"comm-timeout", "4234567891ns"},
        {"sharding", "ZERO3"},
        {"ranks", "auto"},
        {"host-mem", "48GiB"},
        {"nvme", "/mnt/x:y:3MiB"},
        {"nvme", "/mnt/z:1KiB"},
        {"lr-scheduler-type", "cosine"},
        {"dtype", "bf16"},
        {"optim", "lion"},
        {"moments", "q8"},
        {"state-tier", "nvme"},
        {"isa", "avx512"},
        {"max-grad-norm", "1e22"},
        {"eval-fraction", "0.12345678901234568"},
        {"decay-embeddings", "false"},
        {"freeze", "all-but *.q_proj.weight"},
        {"freeze", "layers.0-15"},
        {"group", "layers.0-15:lr=0.1x,weight_decay=0"},
        {"group", "embed:lr=1e-5"},
    };
    struct ox_config first, second;
    ox_config_init(&first);
    for (unsigned i = 0; i < sizeof values / sizeof *values; i++) {
        REQUIRE_OK(set(&first, values[i][0], values[i][1]));
    }
    char *text = NULL, *again = NULL;
    REQUIRE_OK(ox_config_to_yaml(&first, OX_CMD_TRAIN, &text));
    ox_config_init(&second);
    REQUIRE_OK(ox_config_load_yaml(&second, write_yaml(text), OX_CMD_TRAIN));
    REQUIRE_OK(ox_config_to_yaml(&second, OX_CMD_TRAIN, &again));
    CHECK(strcmp(text, again) == 0);
    CHECK(memcmp(&first.optim.adam_beta2, &second.optim.adam_beta2, sizeof first.optim.adam_beta2) == 0);
    second.rows.seq_given = first.rows.seq_given; /* a file gives every option */
    CHECK(memcmp(&first, &second, sizeof first) == 0);
    CHECK(strstr(text, "weight_decay: 0.30000000000000004\n") != NULL);
    CHECK(strstr(text, "learning_rate: 0.1\n") != NULL);
    CHECK(strstr(text, "save_wait_seconds: 604800\n") != NULL && strstr(text, "max_grad_norm: 1e+22\n") != NULL);
    CHECK(strstr(text, "host_mem: 48GiB\n") != NULL);
    free(text);
    free(again);
}

/* Checks that each flag which an answer names exists. */
static void check_flags_of(const char *names, const char *answer) {
    for (const char *at = strstr(answer, "--"); at != NULL; at = strstr(at + 2, "--")) {
        char word[64];
        const size_t bytes = strspn(at + 2, "abcdefghijklmnopqrstuvwxyz0123456789-");
        CHECK(bytes < sizeof word);
        snprintf(word, sizeof word, "%.*s", (int)bytes, at + 2);
        const bool negated = strncmp(word, "no-", 3) == 0 && ox_option_find(word + 3) != NULL;
        if (ox_option_find(word) == NULL && !negated && strcmp(word, "config") != 0) {
            printf("%s is answered with --%s, which does not exist\n", names, word);
            test_failure_count++;
        }
    }
}

/* A typing error in the name of an option of ours is no name of another program: it gets a suggestion. */
static void check_typing_errors(void) {
    uint32_t count = 0;
    const struct ox_option *const options = ox_options(&count);
    for (uint32_t i = 0; i < count; i++) {
        const size_t length = strlen(options[i].name);
        for (size_t k = 1 + i % 5; length > 6 && k < length; k += 7) { /* without its letter k */
            char name[64], text[OX_SUGGEST_BYTES], quoted[80];
            snprintf(name, sizeof name, "%.*s%s", (int)k, options[i].name, options[i].name + k + 1);
            snprintf(quoted, sizeof quoted, "'--%s'", options[i].name);
            if (ox_option_find(name) != NULL || options[i].name[k] == '-') {
                continue;
            }
            const char *const answer = ox_foreign_answer(name, NULL, options[i].commands);
            if (answer != NULL && strstr(answer, options[i].name) == NULL) {
                printf("--%s for --%s is answered: %s\n", name, options[i].name, answer);
                test_failure_count++;
            }
            const bool several = strncmp(name, "add-", 4) == 0 || strncmp(name, "adam-beta", 9) == 0;
            if (!ox_option_suggest(name, options[i].commands, true, text) ||
                (!several && strstr(text, quoted) == NULL)) {
                printf("--%s for --%s: %s\n", name, options[i].name, text);
                test_failure_count++;
            }
        }
    }
}

/* Every flag that an answer names exists, and no flag is answered that exists itself in that command. */
static void test_foreign(void) {
    for (unsigned i = 0; i < ox_foreign_count + ox_foreign_value_count; i++) {
        const struct ox_foreign *const entry =
            i < ox_foreign_count ? &ox_foreign_names[i] : &ox_foreign_values[i - ox_foreign_count];
        CHECK((entry->value == NULL) == (i < ox_foreign_count));
        const unsigned commands = entry->commands != 0 ? entry->commands : ~0u;
        char name[96];
        for (const char *at = entry->name; *at != '\0'; at += strspn(at, " ")) {
            snprintf(name, sizeof name, "%.*s", (int)strcspn(at, " "), at);
            at += strlen(name);
            if (entry->value == NULL && ox_option_find_in(name, commands) != NULL) {
                printf("%s is answered, and is an option\n", name);
                test_failure_count++;
            }
            const bool pattern = strpbrk(name, "*[?") != NULL;
            if (!pattern && entry->value == NULL && entry->commands == 0 &&
                ox_foreign_answer(name, NULL, 0) != entry->answer) {
                printf("%s is answered by an earlier entry\n", name);
                test_failure_count++;
            }
        }
        check_flags_of(entry->name, entry->answer);
    }
    check_typing_errors();
    CHECK(ox_foreign_count > 300);
    CHECK(ox_foreign_answer("lora_target_parameters", NULL, OX_CMD_TRAIN) != NULL);
    CHECK(ox_foreign_answer("BF16", NULL, OX_CMD_TRAIN) != NULL);
    CHECK(ox_foreign_answer("do_sample", NULL, OX_CMD_GENERATE) != NULL);
    CHECK(ox_foreign_answer("ref-model", NULL, OX_CMD_EVAL) != NULL);
    CHECK(ox_foreign_answer("bf1", NULL, OX_CMD_TRAIN) == NULL);
    CHECK(ox_foreign_answer("learning-rate", NULL, OX_CMD_TRAIN) == NULL);
    CHECK(strcmp(ox_foreign_command("finetune"), "use `offload train`") == 0 && ox_foreign_command("train") == NULL);
    set_refused("optimizer", "paged_adamw", "; use adamw");
    set_refused("lr-scheduler-type", "reduce_lr_on_plateau", "; use cosine: the rate depends on the step alone");
    set_refused("report-to", "wandb", "; use tensorboard");
    set_refused("dtype", "bfloat16", "; use bf16");
    yaml_refused("bf16: true\n", "'bf16': use --dtype bf16");
}

/* A text that is no value gets what it may have meant. */
static void test_hints(void) {
    static const struct {
        const char *name, *text, *hint;
    } cases[] = {
        {"learning-rate", "1e-5,", "is not a number; write 1e-05"},
        {"learning-rate", "2e\u20135", "; write 2e-05"},
        {"learning-rate", "0,001", "; write 0.001"},
        {"max-steps", "1e3", "is not a whole number; write 1000"},
        {"max-steps", "1_000", "; write 1000"},
        {"max-steps", "12,000", "; write 12000"},
        {"max-steps", "1k", "; write 1000"},
        {"max-steps", "10.0", "; write 10"},
        {"warmup-steps", "10%", "; write 0.1"},
        {"warmup-steps", "1.5", "is neither whole steps nor, below 1, a share of all"},
        {"logging-steps", "0", "is out of range; give 1 to"},
        {"batch-size", "auto", "; give one, or leave it out"},
        {"compute-threads", "all", "; use 0: all cores"},
        {"stop-grace-seconds", "1min", "is not a number; write 60"},
        {"host-mem", "16Gi", "is not a size; write 16GiB"},
        {"host-mem", "50%", "; write it as 20GiB or 1.5TB, or 0 for what is free"},
        {"nvme", "400GiB", "names no folder; write it as /mnt/nvme0:400GiB"},
        {"nvme", "/a:4GiB,/b:4GiB", "is more than one drive; give --nvme before each"},
        {"optimizer", "adamww", "is not one of adamw, lion, sgd, muon; did you mean adamw?"},
        {"lr-scheduler-type", "cosin", "; did you mean cosine?"},
        {"sharding", "zero-3", "; did you mean zero3?"},
        {"weights-tier", "gpu", "; use device"},
        {"io-backend", "io_uring", "; use uring"},
        {"resume-from-checkpoint", "True", "'True': use latest"},
        {"dry-run", "maybe", "is neither true nor false; write one of them"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        set_refused(cases[i].name, cases[i].text, cases[i].hint);
    }
    struct ox_config c;
    ox_config_init(&c);
    REQUIRE_OK(set(&c, "add-bos", "True"));
    REQUIRE_OK(set(&c, "document-mask", "no"));
    REQUIRE_OK(set(&c, "eval-steps", "0.1"));
    REQUIRE_OK(set(&c, "save-steps", "1e3"));
    CHECK(c.rows.add_bos == OX_CHOICE_ON && c.rows.document_mask == OX_CHOICE_OFF);
    CHECK(c.save.eval_steps == 0.1 && c.save.save_steps == 1000);
    REQUIRE_OK(set(&c, "trace", "True"));
    CHECK(strcmp(c.save.trace, "on") == 0);
    REQUIRE_OK(set(&c, "trace", "1"));
    CHECK(strcmp(c.save.trace, "1") == 0);
}

/* A number below 1 is a share of all steps, rounded up, as transformers' TrainerState.compute_steps and
 * TrainingArguments.get_warmup_steps have it: math.ceil(max_steps * share). */
static void test_shares(void) {
    struct ox_config c;
    ox_config_init(&c);
    REQUIRE_OK(set(&c, "model", "m"));
    REQUIRE_OK(set(&c, "eval-steps", "0.1"));
    REQUIRE_OK(set(&c, "save-steps", "0.34"));
    REQUIRE_OK(set(&c, "logging-steps", "0.001"));
    REQUIRE_OK(set(&c, "warmup-steps", "0.03"));
    REQUIRE_OK(ox_config_validate(&c, OX_CMD_PLAN));
    CHECK(c.optim.warmup_steps == -1 && c.optim.warmup_ratio == 0.03);
    ox_config_count_steps(&c, 0);
    CHECK(c.save.eval_steps == 0.1);
    ox_config_count_steps(&c, 101);
    CHECK(c.save.eval_steps == 11 && c.save.save_steps == 35 && c.save.logging_steps == 1);
    ox_config_count_steps(&c, 1000); /* steps stay */
    CHECK(c.save.eval_steps == 11 && c.save.save_steps == 35);
    CHECK(ox_config_steps(0.5, 9) == 5 && ox_config_steps(7, 9) == 7 && ox_config_steps(0, 9) == 0);
}

int main(void) {
    test_table();
    test_shares();
    test_hints();
    test_foreign();
    test_defaults();
    test_sizes();
    test_set();
    test_set_ranks();
    test_validate();
    test_global_batch();
    test_yaml();
    test_odd_values();
    test_round_trip();
    return test_end();
}
