/* The prose of the manual pages: what a command does, which files it leaves, and how to call it. Flags and words in
 * back quotes are printed bold. tests/sys/command/test_man.c requires a page for every command. */
#include "tools/help/help.h"

#include <string.h>

static const char run_folder[] =
    "run.json\tidentity and branch of the run, which its store and checkpoints repeat; its drives\n"
    "run-copy.json\tthe same again, for when run.json is damaged or missing\n"
    "config.resolved.yaml\tall options of the run except those about this start; --config reads it\n"
    "plan.txt\tthe plan, with every task\n"
    "gemms.txt\ton a GPU: the algorithm of cuBLASLt for each kind of GEMM of the run\n"
    "reference.bin\twith --dpo: log-probabilities of all answers by the weights that the run began with\n"
    "metrics.jsonl\tone line per step, evaluation and save, as JSON\n"
    "trace.bin\twith --trace: what every task did and when, for `offload trace`\n"
    "metrics.prom\twith --report-to prometheus: current figures of the run, for a text-file collector\n"
    "events.out.tfevents.N.offload\twith --report-to tensorboard: one file per process\n"
    "checkpoint-N/\tthe state after step N: a model folder that transformers loads, `optimizer.safetensors` unless "
    "only the model is kept, and "
    "`trainer_state.json` with the hash of every other file; complete once it has this name\n"
    "latest\tthe name of the newest checkpoint\n"
    "cache/\ttokenized texts, reused while nothing has changed; --data-cache names another folder\n"
    "offload.save\tcreate it to save a checkpoint at the end of the step; the run continues\n"
    "offload.stop\tcreate it to save a checkpoint at the end of the step and end the run with status 0\n"
    "offload-store-N.ox\tin each --nvme folder: the live state of one run, preallocated and locked\n";

static const char train_signals[] =
    "USR1\tsave a checkpoint at the end of the step; the run continues\n"
    "USR2\tsave a checkpoint at the end of the step; the run ends with status 0\n"
    "INT, TERM, HUP\tcomplete the current step, unless the previous one took longer than --stop-grace-seconds, save a "
    "checkpoint, and end with status 128+n\n"
    "a second INT or TERM\tend at once, even within a step; the last commit is intact\n";

static const struct ox_help_page pages[] = {
    {.command = "",
     .description =
         "offload trains all parameters of a language model whose weights and optimizer state do not fit in device "
         "memory. It uses device memory, host memory and NVMe drives as one memory with three speeds. It takes a "
         "Hugging Face model folder, text data and a memory budget, and writes a Hugging Face model folder, which is "
         "the same to the last bit whatever the budget.\n"
         "Flags may be written with - or _; their value follows a space or =. The prefix no- turns a switch off, as in "
         "--no-thinking. Sizes are 20GiB (binary) or 20GB (decimal); 20G means 20GiB. Flag names are also the keys of "
         "a YAML file for --config; flags override the file. An unknown name is an error with a suggestion, and so is "
         "a flag given twice, except --nvme and --data.\n"
         "Results go to stdout, everything else to stderr. An error is one line that names the thing, the place and "
         "the remedy; warnings begin with `warning:`.",
     .usage = "wrong usage or configuration, or no plan fits the budget",
     .ended = "ended by signal n",
     .examples =
         "offload doctor\tSee what this machine offers and what limits it:\n"
         "offload plan --model Qwen3-8B --host-mem 48GiB --nvme /mnt/nvme0:400GiB\tCheck whether a model fits:\n"
         "offload train --model Qwen3-8B --data chats.jsonl --output run1 --host-mem 48GiB --nvme "
         "/mnt/nvme0:400GiB\tFine-tune a model on conversations:\n"
         "offload eval --model run1/checkpoint-500 --data held_out.jsonl\tMeasure the result on held-out data:\n"},
    {.command = "train",
     .description =
         "Trains or fine-tunes every parameter of the model in --model on --data within the memory budget, and saves "
         "checkpoints in --output, which are Hugging Face model folders. --model is a folder with weights, or a "
         "config.json for training from scratch; its type is llama, mistral, qwen2, qwen3 or gpt2.\n"
         "First it makes and checks a plan: which bytes live where and when they move. A run that does not fit the "
         "budget is refused before anything is written, with exit status 2, the nearest plan, and the budget it needs. "
         "During training, stderr gets one line per step; a summary at the end goes to stdout. Options under Placement "
         "change speed and traffic, never a bit of the result.\n"
         "With --nvme every step is committed: after a crash, --resume-from-checkpoint latest continues from the last "
         "commit. Without drives, or with --store-generations 1, it continues from the newest checkpoint. A run never "
         "overwrites another by accident: an output folder that holds a run is refused without "
         "--resume-from-checkpoint or --overwrite-output-dir.\n"
         "A step whose loss or gradient norm is not finite changes nothing and is counted; after "
         "--max-nonfinite-steps in a row the run ends with status 1 and keeps the last good state.",
     .done = "done, or ended by USR2 or offload.stop",
     .failed = "failure: I/O, damaged data, memory, or too many non-finite steps in a row",
     .usage = "wrong usage or configuration, or no plan fits the budget",
     .ended = "ended by signal n; the first INT, TERM or HUP saves the state before",
     .files = run_folder,
     .signals = train_signals,
     .examples =
         "offload train --model Qwen3-8B --data chats.jsonl --output run1 --device-mem 20GiB --host-mem 48GiB --nvme "
         "/mnt/nvme0:400GiB --nvme /mnt/nvme1:400GiB\tFine-tune on conversations with two drives:\n"
         "offload train --config run1/config.resolved.yaml --resume-from-checkpoint latest\tContinue after a crash:\n"
         "offload train --model config.json --data corpus --output run2 --max-steps 1000 --dry-run\tPrint only the "
         "configuration and the plan:\n"
         "touch run1/offload.save\tSave a checkpoint now:\n",
     .see_also = "plan eval export inspect tokenize doctor"},
    {.command = "plan",
     .description =
         "Makes the plan of a run and prints it: the peak of each tier by kind of data, where weights, optimizer state "
         "and gradients live between tasks, and the bytes that cross each link per step. It takes the flags of "
         "`offload train` and starts no run. When nothing fits, it prints the nearest plan, and the error names a "
         "budget that would do.",
     .usage = "wrong usage or configuration, or no plan fits the budget",
     .files = "~/.config/offload/machine.json\tthe profile of this machine, if there is one; else\n"
              "~/.cache/offload/machine-*.json\twhat runs and plans measured of it; XDG_CONFIG_HOME and XDG_CACHE_HOME "
              "move them, and OFFLOAD_PROFILE names another profile, or builtin: none\n",
     .examples =
         "offload plan --model Qwen3-8B --host-mem 48GiB --nvme /mnt/nvme0:400GiB --dtype bf16\tCheck whether a model "
         "fits this machine:\n"
         "offload plan --config run1/config.resolved.yaml --format json\tThe plan of a run, for another program:\n",
     .see_also = "train doctor"},
    {.command = "eval",
     .description =
         "Computes the mean loss (natural logarithm) per token and the perplexity of the model in --model, for each "
         "--data and for all together. Text is used as is, without BOS and EOS unless --add-bos on or --add-eos on is "
         "given; rows and conversations are treated as in training.\n"
         "A window is one token and the --max-seq-length tokens after it, which are predicted; the next window begins "
         "with the last of them, so every token of a text but the first is predicted once. With --stride N windows "
         "begin every N tokens, and each counts only tokens that no earlier one counted. Weights are held in host "
         "memory.",
     .examples =
         "offload eval --model run1/checkpoint-500 --data held_out.txt --max-seq-length 1024\tPerplexity of a text:\n"
         "offload eval --model gpt2 --data wiki.txt --max-seq-length 1024 --stride 512 --format json\tOverlapping "
         "windows, with the result as JSON:\n",
     .see_also = "train generate"},
    {.command = "doctor",
     .description =
         "Reports what the engine finds on this machine: processor and instruction sets, the core type OpenBLAS uses, "
         "memory and its limits, kernel, io_uring and direct I/O for each --nvme folder, the NVIDIA driver, the CUDA "
         "plugin, and for each GPU its link, power, temperature, memory and other users. Each limitation has a warning "
         "and a remedy. It leaves nothing behind. With --strict it exits with 1 if a run could not use a drive or a "
         "limit.",
     .examples = "offload doctor --nvme /mnt/nvme0\tReport the machine and one drive:\n"
                 "offload doctor --format json\tPrint the report as an array of records:\n",
     .see_also = "bench train"},
    {.command = "bench",
     .description =
         "Measures this machine against its own limits: the optimizer against memory bandwidth, drives against fio, "
         "OpenBLAS GEMMs, host memory, and each operation of a step against its floor. With a GPU it also measures GPU "
         "memory, the link to it, and GEMMs and the optimizer on it. Every figure is the median of --rounds "
         "measurements. GEMMs and operations have fixed sizes, or with --model those of its steps. With --format json "
         "the figures are an array of records with name, value, unit, limit and ratio. Other programs change the "
         "times, so a figure below its limit changes the exit status only with --strict.\n"
         "nvme writes --size to each drive folder several times, which wears flash. all takes fewer rounds, and writes "
         "the profile of the machine to --output.",
     .failed = "failure; with --strict also a figure below its limit",
     .ended = "ended by signal n",
     .files = "offload-bench.tmp\tin each --nvme folder: the measured file; removed at the end and on a signal\n",
     .signals = "HUP, INT, TERM\tremove the measured files and end\n",
     .examples = "offload bench adam\tThe optimizer against memory bandwidth:\n"
                 "offload bench nvme --nvme /mnt/nvme0 --io-backend uring\tA drive through io_uring:\n"
                 "offload bench ops --device cuda\tEach operation of a step on the GPU against its floor:\n"
                 "offload bench all --nvme /mnt/nvme0 --output machine.json\tA short measurement of each, and the "
                 "profile:\n",
     .see_also = "doctor"},
    {.command = "average",
     .description =
         "Writes the mean of the weights of several checkpoints or model folders into --output, a Hugging Face folder. "
         "All must hold the same tensors. The folder of a run stands for all its checkpoints. Sums are in double; of "
         "checkpoints the exact float32 weights are taken. config.json and the tokenizer are those of the last one.",
     .examples = "offload average run1 --output mean\tAll checkpoints that a run has kept:\n"
                 "offload average run1/checkpoint-400 run1/checkpoint-500 --output mean --save-dtype bf16\tTwo, in "
                 "bf16:\n",
     .see_also = "train export eval"},
    {.command = "merge",
     .description =
         "Adds a LoRA adapter to the weights of its model and writes the sum into --output, a Hugging Face folder "
         "without adapters, as merge_and_unload() of PEFT does: in float32, rounded once. The adapter is a folder from "
         "PEFT, a checkpoint of `offload train --lora-r`, or the folder of that run, whose newest checkpoint is "
         "taken. Without --model the model is the one that the adapter names.",
     .examples = "offload merge run1 --output merged\tThe newest adapter of a run, in its model:\n"
                 "offload merge --model Qwen3-8B --adapter PEFTDIR --output merged\tAn adapter that PEFT made:\n",
     .see_also = "train export generate"},
    {.command = "unlock",
     .description =
         "Writes the newest checkpoint of a run of `offload train --share-layers`, or the checkpoint that is given, "
         "as one whose layers each have weights, moments and step count of their own. A loss is the same to the bit "
         "before and after; from the next step on the layers differ. The run goes on from --output with `offload "
         "train --resume-from-checkpoint`, without sharing, or a new run begins with it as --model.",
     .examples = "offload unlock run1 --output unlocked\tThe newest checkpoint of a run:\n"
                 "offload train --config run1/config.resolved.yaml --share-layers '' --output run2 "
                 "--resume-from-checkpoint unlocked\tTraining goes on, each layer by itself:\n",
     .see_also = "train export"},
    {.command = "export",
     .description =
         "Writes the weights of a checkpoint or model folder, its config.json and its tokenizer files to --output, as "
         "a folder that transformers loads. For a run folder it takes the newest checkpoint. From a checkpoint with "
         "bf16 weights, --save-dtype fp32 writes the exact fp32 master weights. The folder gets its name once it is "
         "complete.",
     .files = "config.json\tthe model as transformers describes it\n"
              "model.safetensors\tthe weights; beyond 5 GB, shards with an index\n",
     .examples = "offload export run1 --output model --save-dtype bf16\tThe newest checkpoint of a run, in bf16:\n",
     .see_also = "train inspect"},
    {.command = "init",
     .description =
         "Writes a config.json for a model with fresh weights into the folder --output, and the tokenizer's files "
         "beside it. With --params it chooses width, depth, heads, the width of the MLP and whether the table is tied "
         "by rules that published models follow, and says the reason of each; without, --like names a known shape, "
         "such as llama-3.1-8b. `offload train --from-scratch` trains it.",
     .files = "config.json\tthe model as transformers describes it\n",
     .examples =
         "offload init --params 100M --tokenizer tokenizer --output model\tA Llama of about 100 M parameters for a "
         "tokenizer:\n"
         "offload init --like qwen3-0.6b --output model\tThe shape of a known model:\n",
     .see_also = "train plan tokenize"},
    {.command = "inspect",
     .description =
         "Describes a model folder, a safetensors file, a checkpoint, a run folder (its newest checkpoint) or a store: "
         "shapes, parameters, step, format of the optimizer state. It compares every file of a checkpoint with its "
         "recorded hash, and every part of a store with its checksum. Name a store on several drives by their folders "
         "with commas between them; a store is locked while a run uses it.",
     .done = "intact",
     .failed = "damaged, as the report says, or not readable",
     .examples = "offload inspect run1\tThe newest checkpoint of a run:\n"
                 "offload inspect /mnt/nvme0,/mnt/nvme1\tA store on two drives:\n",
     .see_also = "train export"},
    {.command = "tokenize",
     .description =
         "Turns texts into token ids with the `tokenizer.json` in --model; the ids equal those of Hugging Face's "
         "tokenizers. By default it prints the number of tokens and the speed. --output writes a token file; --jsonl "
         "turns lines of {\"text\"} into lines of {\"ids\"}. Neither adds special tokens.\n"
         "--train makes a new tokenizer of texts or rows, byte-level BPE with the merges and ids that the tokenizers "
         "library learns of the same texts, and writes its files into the folder --output.\n"
         "--show prints sequences as training sees them: documents, masked and trained parts, ids. --data-cache "
         "tokenizes now, for a later run with the same folder.",
     .examples =
         "offload tokenize --model DIR --data chats.jsonl --max-seq-length 512 --show\tCheck the data before "
         "training:\n"
         "offload tokenize --model DIR --data notes.txt --output notes.bin\tWrite a token file for other programs:\n"
         "offload tokenize --model DIR --jsonl <texts.jsonl >ids.jsonl\tUse it as a filter:\n"
         "offload tokenize --train texts/*.txt --vocab-size 32000 --output tokenizer\tMake a tokenizer:\n",
     .see_also = "train init"},
    {.command = "generate",
     .description =
         "Continues --prompt (or the text of --prompt-file) with the model in --model, token by token. --temperature 0 "
         "always takes the most likely token; otherwise --top-k, --top-p and --seed control sampling. --chat puts the "
         "prompt and --system-prompt into the chat template. A token that ends the text or the turn ends the output.\n"
         "Weights that do not fit in --host-mem are read again for every token: slow, but the same text.",
     .examples =
         "offload generate --model run1/checkpoint-500 --prompt \"Once upon a time\" --temperature 0.8 --top-p 0.95\t"
         "Sample a text:\n"
         "offload generate --model Qwen3-8B --chat --prompt \"Why is the sky blue?\"\tAnswer a question:\n",
     .see_also = "train eval"},
    {.command = "trace",
     .description =
         "Shows where the time and the bytes went in a run recorded with `offload train --trace`. report prints the "
         "step of median length: its longest chain of tasks, the work and the waits of each lane, and bytes beside "
         "the plan's. With --output it also writes a page: a timeline of every task, memory use, which lane waited "
         "for which, and predicted beside measured times. The page is one file that needs no network and no library; "
         "mouse and keys move it, and its tables need no scripts. The files of several ranks are shown together, and "
         "what each waited for. --format json prints the numbers of every step.\n"
         "export writes the recording for another viewer: --format perfetto for ui.perfetto.dev, which is the "
         "default, or --format chrome for viewers of Chrome's JSON.\n"
         "A recording can be read while the run works, and after a crash: incomplete records are left out and "
         "counted.",
     .examples =
         "offload train --model DIR --data notes.txt --output run1 --trace on\tRecord a run:\n"
         "offload trace report run1 --output run1.html\tWrite a page that shows a step:\n"
         "offload trace export run1 --format perfetto --output run1.perfetto-trace\tExport for ui.perfetto.dev:\n",
     .see_also = "top train"},
    {.command = "top",
     .description =
         "Shows the progress of a run, read from the files in its folder: step, loss and speed, the work and the "
         "waits of each lane, bytes over each link, and of a run with `offload train --trace` the longest chain of "
         "the last step. On a terminal the display is redrawn every second until q; elsewhere it is printed after "
         "each step. --once prints it once and ends.",
     .signals = "HUP, INT, TERM\trestore the terminal and end with status 0\n",
     .examples = "offload top run1\tWatch a run:\n"
                 "offload top run1 --once\tPrint once, for a script:\n",
     .see_also = "trace train"},
    {.command = "compare",
     .description =
         "Shows runs beside each other, read from the files in their folders: steps, tokens, time, losses and the best "
         "evaluation of each, the options in which they differ, and a plot of their losses. The loss of a run is the "
         "mean of its last tenth. --output writes a page, one file that needs nothing but a browser, with curves of "
         "loss, evaluations, learning rate, norm and speed along steps, tokens or time.",
     .examples = "offload compare run1 run2\tCompare two runs in the terminal:\n"
                 "offload compare run1 run2 run3 --output page.html\tWrite the page:\n",
     .see_also = "trace top train"},
    {.command = "store",
     .description =
         "remove deletes the store that a run has left in a folder of `offload train --nvme`, also those of the "
         "processes of one machine below it. It is refused while a run uses the store. What was committed there and "
         "is in no checkpoint is lost; checkpoints are not touched. A run that has taken all its steps needs no "
         "removal: its last checkpoint has all that the store has, so the next run that is given the folder takes the "
         "store's place.",
     .examples = "offload store remove /mnt/nvme0\tFree the space of a run that is not to go on:\n",
     .see_also = "train inspect"},
    {.command = "version",
     .description = "Prints the name and the version of this program on one line. `offload --version` does the same.",
     .see_also = "help"},
    {.command = "help",
     .description =
         "Lists the commands, or the flags of one with their defaults; `offload COMMAND --help` does the same. --as "
         "man writes the manual page of the command, or offload(1); --as bash, zsh or fish writes the command-line "
         "completion for that shell. All are generated from the tables that parse the arguments. make install installs "
         "them.",
     .examples = "offload help train\tThe flags of train:\n"
                 "offload help train --as man | man -l -\tThe manual page of train:\n"
                 "source <(offload help --as bash)\tCompletion in this bash:\n"
                 "offload help --as fish | source\tCompletion in this fish:\n",
     .see_also = "version"},
};

const struct ox_help_page *ox_page_find(const char *command) {
    for (unsigned i = 0; i < sizeof pages / sizeof *pages; i++) {
        if (strcmp(pages[i].command, command) == 0) {
            return &pages[i];
        }
    }
    return NULL;
}
