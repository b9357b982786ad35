/* Mistakes of users and their messages: the exit status (2 for what the user can fix, else 1), exactly one line
 * "offload: ..." on stderr that names the thing, the place and the remedy, and no unfinished file left behind. */
#include "base/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/sys/command/errors.inc"

/* Makes such a copy as another program would leave it: without a list of its files, so that their own checks speak. */
static const char *fresh_model(const char *file) {
    CHECK(unlink(fresh_copy("trainer_state.json")) == 0);
    return test_pathf("model/%s", file);
}

static void refused_train(const char *more, int exit_status, const char *words) {
    begin_train(more);
    refused(exit_status, words);
}

/* ---- options ---------------------------------------------------------------------------------------- */

/* Names and values of other programs. */
static void test_foreign(void) {
    static const struct {
        const char *words, *error;
    } cases[] = {
        {"--optim adam", "use adamw: its decay is apart from the gradient, and --weight-decay 0 makes it Adam"},
        {"--optim paged_adamw_8bit", "use adamw with --moments q8"},
        {"--optim lion_8bit", "use lion with --moments q8"},
        {"--optim adafactor", "use adamw with --moments q8, or lion"},
        {"--optim galore_adamw", "use adamw, with --moments q8 if its state is too large, or lion"},
        {"--device gpu", "--device: 'gpu' is not one of auto, cpu, cuda; use cuda"},
        {"--device cuda:0", "; use cuda; CUDA_VISIBLE_DEVICES chooses among GPUs"},
        {"--gpus 2", "'--gpus': use --ranks N, or --ranks auto; CUDA_VISIBLE_DEVICES chooses among GPUs"},
        {"--early_stopping_patience 3 --eval-fraction 0",
         "--early-stopping-patience: nothing is evaluated; give --eval-data"},
        {"--early_stopping_patience 3 --eval_steps 0", "is evaluated at its end alone; give --eval-steps"},
        {"--early_stopping_threshold 0.1", "--early-stopping-threshold: nothing stops a run early"},
        {"--eval_on_start --eval_fraction 0", "--eval-on-start: nothing is evaluated; give --eval-data"},
        {"--load_best_model_at_end --eval_fraction 0",
         "--load-best-model-at-end: nothing is evaluated; give --eval-data, or"},
        {"--load_best_model_at_end --eval-fraction 0.5 --eval-steps 2 --save-steps 3",
         "checkpoints are not saved right after evaluations, so that none is known to be the best"},
        {"--save_strategy best --eval-fraction 0.5 --eval_strategy no", "nothing is evaluated with --eval-strategy no"},
        {"--greater_is_better true", "a smaller eval_loss is better; leave it out"},
        {"--save_best_only", "use --save-strategy best"},
        {"--metric_for_best_model accuracy", "'accuracy' is not one of eval_loss, eval_perplexity; sets of"},
        {"--max_samples 9", "does not exist: give a shorter file (head -n 1000), --data PATH:0.1 for a tenth of it"},
        {"--exit_duration_in_mins 480", "use --max-time 8h"},
        {"--streaming", "is always so: texts become tokens in a file once"},
        {"--train_on_inputs", "use --train-on prompts; without it prompts are not trained"},
        {"--r 16", "'--r': use --lora-r N"},
        {"--reference_free true", "of --dpo there are --dpo-loss, --dpo-beta"},
        {"--dataset-text-field body", "use --column-text KEY"},
        {"--gradient-clip 1", "use --max-grad-norm X"},
        {"--deterministic", "is always so: the same command gives the same bits"},
        {"--gradient_checkpointing", "is planned: blocks keep their activations where memory allows it"},
        {"--freeze-embeddings", "use --freeze with embed, head, layers.0-15, "},
        {"--eval", "'--eval': use --eval-data FILE with --eval-steps N while training"},
        {"--prompt x", "`offload train` does not take --prompt, a flag of `offload generate`; remove it"},
        {"--save-steps 2.5", "--save-steps: 2.5 is neither whole steps nor, below 1, a share of all"},
        {"--save-steps -0.5", "--save-steps: -0.5 is out of range"},
        {"--warmup-steps 0.1 --warmup-ratio 0.1", "are both given; give one of them"},
        {"--add-bos maybe", "--add-bos: 'maybe' is not one of auto, on, off"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        refused_train(cases[i].words, 2, cases[i].error);
    }
}

static void test_options(void) {
    static const struct {
        const char *words, *error;
    } cases[] = {
        {"--learnin-rate 1", "did you mean '--learning-rate'?"},
        {"--bf16", "'--bf16': use --dtype bf16"},
        {"--optim paged_adamw", "is not one of adamw, lion, sgd, muon; use adamw"},
        {"--zzzzzzzz 1", "`offload help train` lists them"},
        {"--max-steps two", "--max-steps: 'two' is not a whole number"},
        {"--max-steps -2", "--max-steps: -2 is out of range"},
        {"--learning-rate fast", "--learning-rate: 'fast' is not a number"},
        {"--dtype fp8", "--dtype: 'fp8' is not one of fp32, bf16, fp16"},
        {"--max-steps 1 --max-steps 2", "--max-steps is given twice"},
        {"--nvme /tmp", "has no size; write it as /tmp:400GiB"},
        {"--nvme /tmp:1GiB --nvme /tmp:1GiB", "is given twice; give each drive once"},
        {"--state-tier nvme", "--state-tier nvme needs a drive; add --nvme PATH:SIZE"},
        {"--device-state-units 2", "host memory is device memory here, for all units alike; add --device-mem SIZE"},
        {"--kept-blocks 99", "blocks; give 0 to "},
        {"--device-mem 64MiB --device-state-first", "says which units --device-state-units counts"},
        {"--device-mem 64MiB --device-state-units 99", "the embedding, its blocks and the head; give 1 to "},
        {"--device-mem 64MiB --state-tier device --weights-tier host", "where weights and gradients must live too"},
        {"--device-mem 64MiB --grads-tier device", "add --state-tier device, or use host or nvme"},
        {"--max-steps 0 --num-train-epochs 0", "are both 0; give one of them"},
        {"--warmup-steps 1 --warmup-ratio 0.1", "are both given; give one of them"},
        {"--max-steps 2 --warmup-steps 3", "--warmup-steps 3 exceeds --max-steps 2"},
        {"--decay-steps 1", "--decay-steps does not apply to --lr-scheduler-type linear"},
        {"--tiles 4", "exceeds --gradient-accumulation-steps 1"},
        {"--chunk-elems 3000", "is not a multiple of 2048"},
        {"--from-scratch --resume latest", "leave out --from-scratch"},
        {"--overwrite-output-dir --resume latest", "add --no-overwrite-output-dir"},
        {"--isa neon --isa avx2", "--isa is given twice"},
        {"--no-overwrite_output_dir true", "--no-overwrite-output-dir takes no value; write --no-overwrite-output-dir"},
        {"--completion_only_loss", "is the default: of a prompt and its completion"},
        {"--assistant_only_loss", "is the default: of a conversation"},
        {"--ignore_data_skip", "a resumed run goes on at its place in the data"},
        {"--eval_accumulation_steps 4", "an evaluation keeps sums alone"},
        {"--global-batch-size 6 --batch-size 4", "is not a multiple of --per-device-train-batch-size 4; give 4 or 8"},
        {"--global-batch-size 6 --gradient-accumulation-steps 5", "is 6 micro-batches of --per-device-train-batch-size "
                                                                  "1, but --gradient-accumulation-steps asks for 5"},
        {"--train-micro-batch-size-per-gpu 2", "use --per-device-train-batch-size N"},
        {"--per-device-train-batch-size 0", "is out of range; give 1 to 65536"},
        {"--resume latest", "holds no run to go on with; leave out --resume-from-checkpoint"},
        {"--resume /nonexistent", "--resume-from-checkpoint /nonexistent: there is no such file or folder; give"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        refused_train(cases[i].words, 2, cases[i].error);
    }
    begin("train");
    refused(2, "--model is missing; give");
    sys_args_word(&args, "--model=%s", config_path);
    refused(2, "--data is missing; give");
    sys_args_word(&args, "--data=%s", text_path);
    refused(2, "--output is missing; name");
    begin_train("");
    args.count--;
    sys_args_add(&args, "2 --host-mem 1KiB");
    refused(2, "--host-mem is given twice");
    begin("train");
    sys_args_word(&args, "--model=%s", config_path);
    sys_args_word(&args, "--data=%s", text_path);
    sys_args_word(&args, "--output=%s", output);
    sys_args_add(&args, "--max-seq-length 16 --host-mem 64KiB");
    refused(2, "nearest that fits: --host-mem ");
    begin("plan"); /* what is asked for, and need not be */
    sys_args_word(&args, "--model=%s", config_path);
    sys_args_add(&args, "--max-seq-length 16 --host-mem 32MiB --state-tier device --device-mem 600KiB");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && sys_said(&process, ", or leave out --state-tier\n"));
}

static void test_yaml(void) {
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"seed: 1\nlearnin_rate: 1\n", "run.yaml:2: 'learnin_rate' is not an option; did you mean 'learning_rate'?"},
        {"seed: 1\n\nmax_steps: many\n", "run.yaml:3: max_steps: 'many' is not a whole number"},
        {"seed: 1\nseed: 2\n", "run.yaml:2: 'seed' was set already in line 1"},
        {"seed: [1, 2]\n", "run.yaml:1: "},
        {"seed: 1\nmax_steps: ]\n", "run.yaml:2: not YAML"},
        {"- seed\n", "run.yaml:1: lines of the form 'option: value' are expected"},
        {"seed:\n", "run.yaml:1: seed has no value"},
        {"nvme:\n  - /tmp:lots\n", "run.yaml:2: nvme: '/tmp:lots' does not end in a size"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const path = files_write_text("run.yaml", cases[i].text);
        begin_train("");
        sys_args_word(&args, "--config=%s", path);
        refused(2, cases[i].error);
    }
    refused_train("--config /nonexistent.yaml", 2, "/nonexistent.yaml");
}

/* ---- model ------------------------------------------------------------------------------------------ */

static void refused_model(const char *path, int exit_status, const char *words) {
    begin("train");
    sys_args_word(&args, "--model=%s", path);
    sys_args_word(&args, "--data=%s", text_path);
    sys_args_word(&args, "--output=%s", output);
    sys_args_add(&args, common);
    refused(exit_status, words);
}

static void test_config_json(void) {
    refused_model("/nonexistent", 2, "--model /nonexistent: there is no such file or folder; give a folder");
    const char *const path = files_make_folder("empty");
    refused_model(path, 2, "empty/config.json");
    refused_model(files_write_text("odd.json", "{\"model_type\": \"mamba\"}"), 2, "\"mamba\" is not supported");
    refused_model(files_write_text("odd.json", "{\"model_type\": \"llama\""), 1, "odd.json");
    refused_model(files_write_text("odd.json", "{\"model_type\": \"llama\", \"vocab_size\": 256}"), 2, "hidden_size");
}

static void test_weights(void) {
    static const unsigned char not_a_number[] = {0x00, 0x00, 0xc0, 0x7f};
    const char *const folder = test_path("model");
    const char *const path = fresh_model("model.safetensors");
    const off_t whole = (off_t)files_size(path);
    CHECK(truncate(path, whole - 100) == 0);
    refused_model(folder, 1, "model/model.safetensors: tensor \"");
    CHECK(strstr(process.outcome.err, "the file is cut off") != NULL);
    CHECK(truncate(path, 4) == 0);
    refused_model(folder, 1, "has 4 bytes, too few for a safetensors file");

    files_patch(fresh_model("model.safetensors"), 3, "\x7f", 1); /* the header's length */
    refused_model(folder, 1, "claims a header of ");
    files_patch(fresh_model("model.safetensors"), 9, "#", 1); /* within the header */
    refused_model(folder, 1, "model/model.safetensors:1:2: not valid JSON");
    files_patch(fresh_model("model.safetensors"), whole - 400, not_a_number, sizeof not_a_number);
    refused_model(folder, 1, "is nan, which is not a valid weight");

    CHECK(unlink(fresh_model("model.safetensors")) == 0);
    refused_model(folder, 2, "holds neither model.safetensors nor model.safetensors.index.json");
    files_write_text("model/model.safetensors.index.json",
               "{\"weight_map\": {\"model.norm.weight\": \"model-00001-of-00002.safetensors\"}}");
    refused_model(folder, 2, "model-00001-of-00002.safetensors: cannot open");
}

/* ---- data ------------------------------------------------------------------------------------------- */

static void refused_data(const char *path, int exit_status, const char *words) {
    begin("train");
    sys_args_word(&args, "--model=%s", config_path);
    sys_args_word(&args, "--data=%s", path);
    sys_args_word(&args, "--output=%s", output);
    sys_args_add(&args, common);
    refused(exit_status, words);
}

static void test_data(void) {
    refused_data("/nonexistent", 2, "--data /nonexistent: there is no such file or folder");
    refused_data(files_write_text("none.txt", ""), 2, "none.txt: holds no tokens");
    refused_data(files_write_text("short.txt", "A line."), 2, "7 tokens are not one window of --max-seq-length 16 + 1");
    refused_data(files_write_text("short.txt", "A"), 2, "1 token is not one window of --max-seq-length 16 + 1");
    refused_train("--eval-data /nonexistent", 2, "--eval-data /nonexistent: there is no such file");

    /* Ids are checked when they are read, not before the first step: the run exists by then. */
    static unsigned char tokens[1024 + 2 * 64];
    const uint32_t head[] = {20240520, 1, 64};
    memcpy(tokens, head, sizeof head);
    for (unsigned i = 0; i < 64; i++) {
        tokens[1024 + 2 * i + 1] = 3; /* 768 */
    }
    const char *const path = test_path("tokens.bin");
    files_write(path, tokens, sizeof tokens);
    begin("train");
    sys_args_word(&args, "--model=%s", config_path);
    sys_args_word(&args, "--data=%s", path);
    sys_args_word(&args, "--output=%s", output);
    sys_args_add(&args, common);
    sys_run(&args, &process);
    check_error(1, "has the id 768, but the model knows 256 tokens");
    check_nothing_half_written(output);
    files_remove_folder(output);
}

/* ---- output ----------------------------------------------------------------------------------------- */

static void test_output(void) {
    const char *path = test_path("file");
    files_write_text(path, "");
    begin_train("");
    output = test_path("output");
    args.count = 4; /* offload train --model --data */
    sys_args_word(&args, "--output=%s", path);
    sys_args_add(&args, common);
    refused(2, "file: is a file, not a folder; give another name");
    CHECK(files_size(path) == 0);

    args.count = 4;
    sys_args_word(&args, "--output=/proc/offload");
    sys_args_add(&args, common);
    refused(2, "--output /proc/offload: nothing can be written there");

    path = files_make_folder("closed");
    if (geteuid() != 0 && chmod(path, 0500) == 0) {
        args.count = 4;
        sys_args_word(&args, "--output=%s", path);
        sys_args_add(&args, common);
        refused(2, "closed: nothing can be written there");
    }
    args.count = 4;
    sys_args_word(&args, "--output=%s/..", trained);
    sys_args_add(&args, common);
    refused(2, "already holds a run; add --resume-from-checkpoint latest to go on with it, or --overwrite-output-dir");
}

/* ---- records of a run ------------------------------------------------------------------------------- */

/* With the options of a run, what is measured is what that run holds out; each byte is a token. */
static void test_measured(void) {
    static const struct {
        const char *options, *words, *tokens, *says;
        bool warns;
    } rows[] = {
        {"eval_data: held.txt\noutput: run\n", "", " of 41 tokens ", "", false},
        {"eval_fraction: 0.25\noutput: run\n", "", " of 50 tokens ", "measured.txt: what the run held out is ", false},
        {"eval_fraction: 0.01\noutput: run\n", "", " of 200 tokens ", "--eval-fraction 0.01 held nothing out", true},
        {"eval_fraction: 0.25\noutput: run\n", "--data measured.txt", " of 200 tokens ", "", false},
        {"", "", " of 200 tokens ", "", false},
    };
    char text[201], options[256];
    for (int i = 0; i < 200; i++) {
        text[i] = (char)('a' + i % 23);
    }
    text[200] = '\0';
    char *const folder = getcwd(NULL, 0), *const program = realpath(getenv("OX_BIN") != NULL ? getenv("OX_BIN")
                                                                                           : "build/offload", NULL);
    CHECK(program != NULL && setenv("OX_BIN", program, 1) == 0);
    files_write_text("measured.txt", text);
    text[41] = '\0';
    files_write_text("held.txt", text);
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(options, sizeof options, "data: [measured.txt]\n%s", rows[i].options);
        files_write_text("options.yaml", options);
        CHECK(chdir(test_folder()) == 0);
        begin("eval");
        sys_args_word(&args, "--model=%s", trained);
        sys_args_add(&args, "--config options.yaml --max-seq-length 16");
        sys_args_add(&args, rows[i].words);
        sys_run_well(&args, &process);
        CHECK(chdir(folder) == 0);
        CHECK(strstr(process.outcome.out, rows[i].tokens) != NULL && strstr(process.outcome.err, rows[i].says) != NULL);
        CHECK((strstr(process.outcome.err, "trained on") != NULL) == rows[i].warns);
    }
    free(program);
    free(folder);
    /* What the run of the model was trained on is warned of, whoever names it. */
    begin("eval");
    sys_args_word(&args, "--model=%s", trained);
    sys_args_word(&args, "--data=%s", text_path);
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "the run of this model was trained on it") != NULL);
}

static void test_resolved(void) {
    const char *const yaml = test_path("first/config.resolved.yaml");
    begin("plan");
    sys_args_word(&args, "--config=%s", yaml);
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.out, "memory at its fullest") != NULL);
    CHECK(strstr(process.outcome.err, "warning") == NULL);

    begin("eval");
    sys_args_word(&args, "--config=%s", yaml);
    sys_args_word(&args, "--model=%s", trained);
    sys_run_well(&args, &process);
    CHECK(strncmp(process.outcome.out, "loss ", 5) == 0 && strstr(process.outcome.err, "warning") == NULL);
    CHECK(strstr(process.outcome.out, " | model ") != NULL && strstr(process.outcome.out, trained) != NULL);

    begin("generate");
    sys_args_word(&args, "--model=%s", test_path("first"));
    sys_args_add(&args, "--prompt ab --max-new-tokens 2");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "/first/checkpoint-2: 2 tokens read, 2 new") != NULL);

    /* A run folder means its newest checkpoint. The options of a run name the model before training. */
    begin("eval");
    sys_args_word(&args, "--config=%s", yaml);
    sys_args_word(&args, "--model=%s", test_path("first"));
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.out, "/first/checkpoint-2\n") != NULL);
    CHECK(strstr(process.outcome.err, "warning") == NULL);

    test_measured();

    begin("train");
    sys_args_word(&args, "--config=%s", yaml);
    refused(2, "already holds a run");
    CHECK(strncmp(process.outcome.err, "offload: ", 9) == 0); /* no plan comes before */
    sys_args_word(&args, "--output=%s", output);
    sys_run_well(&args, &process);
    CHECK(sys_same_checkpoint(test_path("first/checkpoint-2"), test_path("output/checkpoint-2")));
    files_remove_folder(output);

    sys_args_begin(&args, "train");
    sys_args_word(&args, "--config=%s", yaml);
    sys_args_word(&args, "--model=%s", trained);
    sys_args_word(&args, "--output=%s", output);
    sys_run_well(&args, &process);
    begin("eval");
    sys_args_word(&args, "--config=%s", test_path("output/config.resolved.yaml"));
    sys_args_add(&args, "--quiet");
    sys_run_well(&args, &process);
    CHECK(strncmp(process.outcome.err, "warning: ", 9) == 0);
    CHECK(strstr(process.outcome.err, " is the model that the run began with; to measure what it has trained, add")
          != NULL && strstr(process.outcome.err, "/output/checkpoint-2\n") != NULL);
    files_remove_folder(output);

    /* Unknown flags and names are still errors. */
    begin("eval");
    sys_args_add(&args, "--learning-rate 1");
    refused(2, "`offload eval` does not take --learning-rate");
    begin("eval");
    sys_args_word(&args, "--config=%s", files_write_text("run.yaml", "learnin_rate: 1\n"));
    refused(2, "did you mean 'learning_rate'?");
    begin("doctor");
    sys_args_word(&args, "--config=%s", files_write_text("run.yaml", "seed: 1\n"));
    refused(2, "`offload doctor` does not take 'seed'");
}

static void test_damaged_checkpoint(void) {
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "config.json"};
    char more[SYS_PATH_BYTES + 32];
    snprintf(more, sizeof more, "--resume-from-checkpoint %s", test_path("model"));
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++) {
        const char *const path = fresh_copy(files[i]);
        files_flip(path, (int64_t)files_size(path) / 2);
        char words[128];
        snprintf(words, sizeof words, "model/%s: its content has changed since it was saved; use another", files[i]);
        refused_train(more, 1, words);
    }
    const char *const path = fresh_copy("trainer_state.json");
    files_flip(path, (int64_t)files_size(path) / 2);
    refused_train(more, 1, "model/trainer_state.json");
    CHECK(unlink(fresh_copy("optimizer.safetensors")) == 0);
    refused_train(more, 1, "model/optimizer.safetensors: cannot open");
}

/* A run is known by run.json or its copy, also to the commands that only read its newest checkpoint. */
static void test_lost_run_json(void) {
    static const char *const commands[] = {"export", "eval", "generate", "inspect"};
    static const char *const records[] = {"run.json", "run-copy.json"};
    for (unsigned i = 0; i < 8; i++) {
        files_remove_folder("unsaved");
        files_make_folder("unsaved");
        files_write_text(test_pathf("unsaved/%s", records[i % 2]), "{}");
        begin(commands[i / 2]);
        sys_args_word(&args, "--model=%s", test_path("unsaved"));
        if (i / 2 == 0) {
            sys_args_word(&args, "--output=%s", output);
        } else if (i / 2 == 1) {
            sys_args_word(&args, "--data=%s", text_path);
        } else if (i / 2 == 2) {
            sys_args_add(&args, "--prompt the");
        }
        refused(2, "unsaved: is a run without a complete checkpoint");
    }
    /* A run that goes on holds its folder. */
    const int held = open(test_path("unsaved"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(held >= 0 && flock(held, LOCK_EX) == 0);
    begin("inspect");
    sys_args_word(&args, "--model=%s", test_path("unsaved"));
    refused(2, "unsaved: is a run that goes on and has saved no checkpoint yet");
    close(held);
    files_write_text("unsaved/latest", "checkpoint-2\n");
    begin("inspect");
    sys_args_word(&args, "--model=%s", test_path("unsaved"));
    refused(1, "unsaved/checkpoint-2, is gone; restore it, or name another one");
}

/* ---- --quiet ---------------------------------------------------------------------------------------- */

static void expect_quiet(const char *out) {
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.out, out) == process.outcome.out);
    CHECK(strchr(process.outcome.out, '\n') == strrchr(process.outcome.out, '\n') && process.outcome.err[0] == '\0');
}

/* The result is one line on stdout; warnings and errors stay. */
static void test_quiet(void) {
    begin_train("--quiet --max-steps 2 --save-steps 1 --eval-steps 1");
    expect_quiet("model folder: ");
    files_remove_folder(output);
    char *const text = files_read(text_path, NULL); /* in a file that no run was trained on */
    files_write_text("other.txt", text);
    files_write_text("another.txt", text);
    free(text);
    begin("eval");
    sys_args_word(&args, "--model=%s", trained);
    sys_args_word(&args, "--data=%s", test_path("other.txt"));
    sys_args_word(&args, "--data=%s:2", test_path("another.txt"));
    sys_args_add(&args, "--quiet --max-seq-length 16 --max-windows 2");
    expect_quiet("total: loss ");
    begin("export");
    sys_args_word(&args, "--model=%s", trained);
    sys_args_word(&args, "--output=%s", test_path("exported"));
    sys_args_add(&args, "--quiet");
    expect_quiet(test_path("exported"));
    begin_train("--quiet --max-steps 2 --device-mem 64KiB");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && process.outcome.out[0] == '\0');
    CHECK(strstr(process.outcome.err, "offload: ") == process.outcome.err);
}

/* ---- tables ------------------------------------------------------------------------------------------ */

/* A table without a row is not printed: nothing moves in a run in memory, and a description has no tensors. */
static void test_empty_tables(void) {
    begin_train("--max-steps 1");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "\ntraffic per step: none, all of it stays where it is\n") != NULL);
    CHECK(strstr(process.outcome.out, "traffic per step") == NULL);
    files_remove_folder(output);
    files_make_folder("description");
    char *const text = files_read(config_path, NULL);
    files_write_text("description/config.json", text);
    free(text);
    begin("inspect");
    sys_args_word(&args, "--model=%s", test_path("description"));
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.out, "model folder") != NULL && strstr(process.outcome.out, "tensors") == NULL);
}

int main(void) {
    make_trained();

    test_options();
    test_foreign();
    test_yaml();
    test_config_json();
    test_weights();
    test_data();
    test_output();
    test_resolved();
    test_quiet();
    test_empty_tables();
    test_damaged_checkpoint();
    test_lost_run_json();
    return test_end();
}
