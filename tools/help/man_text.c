/* What manual pages say beyond the tables: what a command does, what it leaves behind, and how it is called. Flags
 * and words in back quotes are printed bold. tests/sys/test_man.c wants a page for every command. */
#include "tools/help/help.h"

#include <string.h>

static const char run_folder[] =
    "run.json\tthe identity and branch of the run, as its store and checkpoints carry them; its drives\n"
    "config.resolved.yaml\tevery option but how this process began; --config reads it\n"
    "plan.txt\tthe plan, with every task\n"
    "metrics.jsonl\tone line per step and per evaluation, as JSON\n"
    "trace.bin\twith --trace: what every task did and when, for `offload trace`\n"
    "metrics.prom\twith --report-to prometheus: how the run stands, for a collector of text files\n"
    "events.out.tfevents.N.offload\twith --report-to tensorboard: one for each process\n"
    "checkpoint-N/\tafter step N: a model folder that transformers reads, `optimizer.safetensors`, and "
    "`trainer_state.json` with the hash of every other file; complete as soon as it has this name\n"
    "latest\tthe name of the newest checkpoint\n"
    "cache/\tthe tokens of texts, used again while nothing has changed; --data-cache names another folder\n"
    "offload.save\tmade by you: a checkpoint is saved at the end of the step, and the run goes on\n"
    "offload.stop\tmade by you: a checkpoint is saved, and the run ends with status 0\n"
    "offload-store-N.ox\tin each folder of --nvme: the live state of one run, preallocated and locked\n";

static const char train_signals[] =
    "USR1\tat the end of the step a checkpoint is saved, and the run goes on\n"
    "USR2\tat the end of the step a checkpoint is saved, and the run ends with status 0\n"
    "INT, TERM\tthe step under way is completed unless the one before took longer than --stop-grace-seconds; a "
    "checkpoint is saved, and the run ends with status 128+n\n"
    "a second INT or TERM\tthe process ends at once, also within a step; the last commit is intact\n";

static const struct ox_page pages[] = {
    {.command = "",
     .description =
         "offload trains all parameters of a language model whose weights and optimizer state do not fit the memory "
         "that computes. Device memory, host memory and NVMe drives are used as one memory with three speeds. In goes "
         "a Hugging Face model folder, a text and a memory budget; out comes a Hugging Face model folder, the same to "
         "the last bit whatever the budget was.\n"
         "Flags may be written with - or _, and their value behind a space or =. A switch is turned off by no- before "
         "its name, as in --no-thinking. Sizes are 20GiB (binary) or 20GB (decimal); 20G is 20GiB. The names of flags "
         "are also the keys of a YAML file for --config; flags override it. A name that is not known is an error with "
         "a suggestion, and so is a flag given twice, except --nvme and --data.\n"
         "Results go to stdout, everything else to stderr. An error is one line that names the thing, the place and "
         "the remedy; warnings begin with `warning:`.",
     .usage = "usage, configuration, or no plan that fits the budget",
     .ended = "ended by signal n",
     .examples =
         "offload doctor\tWhat this machine offers, and what holds it back:\n"
         "offload plan --model Qwen3-8B --host-mem 48GiB --nvme /mnt/nvme0:400GiB\tDoes it fit?\n"
         "offload train --model Qwen3-8B --data chats.jsonl --output run1 --host-mem 48GiB --nvme "
         "/mnt/nvme0:400GiB\tFine-tune a model on conversations:\n"
         "offload eval --model run1/checkpoint-500 --data held_out.jsonl\tHow good is it?\n"},
    {.command = "train",
     .description =
         "Trains or fine-tunes every parameter of the model in --model on --data, within the memory that is given, and "
         "leaves checkpoints in --output that are model folders of Hugging Face files. The model is a folder with "
         "weights, or a config.json for a fresh start; its type is llama, mistral, qwen2, qwen3 or gpt2.\n"
         "First a plan is made and checked: which bytes live where and travel when. What does not fit the budget is "
         "refused before anything is written, with the nearest plan that would do; the exit status is 2 then. Then "
         "one line per step tells how it goes, on stderr; the summary at the end goes to stdout. Options under "
         "Placement change speed and traffic, never a bit of the result.\n"
         "With --nvme every step is a commit: after a crash, --resume-from-checkpoint latest goes on at the last one. "
         "Without drives, or with --store-generations 1, it goes on from the newest checkpoint. A run is never "
         "started over another: an output folder with a run in it is refused without --resume-from-checkpoint or "
         "--overwrite-output-dir.\n"
         "A step whose loss or gradient norm is not finite changes nothing and is counted; after "
         "--max-nonfinite-steps in a row the run ends with status 1, and the last good state is kept.",
     .done = "done, or ended by USR2 or offload.stop",
     .failed = "failure: I/O, damaged data, memory, too many steps in a row that were not finite",
     .usage = "usage, configuration, or no plan that fits the budget",
     .ended = "ended by signal n; after the first INT or TERM the state was saved before",
     .files = run_folder,
     .signals = train_signals,
     .examples =
         "offload train --model Qwen3-8B --data chats.jsonl --output run1 --device-mem 20GiB --host-mem 48GiB --nvme "
         "/mnt/nvme0:400GiB --nvme /mnt/nvme1:400GiB\tFine-tune on conversations with two drives:\n"
         "offload train --config run1/config.resolved.yaml --resume-from-checkpoint latest\tGo on after a crash:\n"
         "offload train --model config.json --data corpus --output run2 --max-steps 1000 --dry-run\tThe configuration "
         "and the plan alone:\n"
         "touch run1/offload.save\tSave a checkpoint now:\n",
     .see_also = "plan eval export inspect tokenize doctor"},
    {.command = "plan",
     .description =
         "Makes the plan of a run and prints it: what each kind of byte takes in each tier at its fullest, where "
         "weights, state and gradients live between tasks, and what travels over each link in a step. It takes the "
         "flags of `offload train` and begins no run. When nothing fits, the nearest plan is printed and "
         "the error says which budget would do.",
     .usage = "usage, configuration, or no plan that fits the budget",
     .examples =
         "offload plan --model Qwen3-8B --host-mem 48GiB --nvme /mnt/nvme0:400GiB --dtype bf16\tDoes this machine do?\n"
         "offload plan --config run1/config.resolved.yaml --format json\tThe plan of a run, for another program:\n",
     .see_also = "train doctor"},
    {.command = "eval",
     .description =
         "Mean loss (natural logarithm) per token and perplexity of the model in --model: of each --data, and of all "
         "together. Text is taken as it stands, without BOS and EOS unless --add-bos on or --add-eos on is given; rows "
         "and conversations are as in training.\n"
         "A window is a token and the --max-seq-length tokens behind it, which are predicted; the next one begins "
         "behind it. With --stride N windows begin every N tokens, and each counts the tokens that none before it "
         "did. Weights are held in memory.",
     .examples =
         "offload eval --model run1/checkpoint-500 --data held_out.txt --max-seq-length 1024\tPerplexity of a text:\n"
         "offload eval --model gpt2 --data wiki.txt --max-seq-length 1024 --stride 512 --format json\tWith windows "
         "that overlap, as JSON:\n",
     .see_also = "train generate"},
    {.command = "doctor",
     .description =
         "Looks at this machine and says what the engine will find: processor and instruction sets, the core OpenBLAS "
         "runs as, memory and its limits, kernel, io_uring and direct I/O on each --nvme folder, the NVIDIA driver, "
         "the CUDA plugin and each GPU: its link, power, heat, memory, and who else uses it. What holds the machine "
         "back has a warning and the remedy beside it. Nothing stays behind.",
     .examples = "offload doctor --nvme /mnt/nvme0\tThe machine, and a drive:\n"
                 "offload doctor --format json\tThe same as an array of records:\n",
     .see_also = "bench train"},
    {.command = "bench",
     .description =
         "Measures this machine against its own limits: the optimizer against the speed of memory, drives against "
         "fio, matrix products of OpenBLAS, memory itself, and each operation of a step against its floor. Where "
         "there is a GPU its memory, its link, its products and its optimizer are measured too. Every figure is the "
         "median of some --rounds. With --format json the figures are an array of records with name, value, unit, "
         "limit and ratio. Times depend on what else runs, so a figure below its limit does not change the exit status "
         "unless --strict is given.\n"
         "nvme writes --size to each drive folder several times, which wears flash. all takes fewer rounds, and writes "
         "the profile of the machine to --output.",
     .failed = "failure; with --strict also a figure below its limit",
     .ended = "ended by signal n",
     .files = "offload-bench.tmp\tin each folder of --nvme: what is measured with; gone afterwards, also after a "
              "signal\n",
     .signals = "HUP, INT, TERM\tthe files of the measurement are removed, and the process ends\n",
     .examples = "offload bench adam\tThe optimizer against the speed of memory:\n"
                 "offload bench nvme --nvme /mnt/nvme0 --io-backend uring\tA drive through io_uring:\n"
                 "offload bench ops --device cuda\tEach operation of a step on the GPU against its floor:\n"
                 "offload bench all --nvme /mnt/nvme0 --output machine.json\tA probe of each, and the profile:\n",
     .see_also = "doctor"},
    {.command = "export",
     .description =
         "Writes the weights of a checkpoint or model folder, its config.json and its tokenizer files to --output, as "
         "a folder that transformers loads. A run folder stands for its newest checkpoint. From a checkpoint with bf16 "
         "weights, --save-dtype fp32 takes the exact masters. The folder is complete as soon as it has its name.",
     .files = "config.json\tthe model as transformers describes it\n"
              "model.safetensors\tthe weights; beyond 5 GB, shards with an index\n",
     .examples = "offload export run1 --output model --save-dtype bf16\tThe newest checkpoint of a run, in bf16:\n",
     .see_also = "train inspect"},
    {.command = "inspect",
     .description =
         "Says what a model folder, a safetensors file, a checkpoint, a run folder (its newest checkpoint) or a store "
         "holds: shapes, parameters, step, format of the state. Every file of a checkpoint is compared with its "
         "recorded hash, every part of a store with its checksum. A store on several drives is named by their "
         "folders, parted by commas; it is locked while a run uses it.",
     .done = "whole",
     .failed = "damaged: the report says what; or it could not be read",
     .examples = "offload inspect run1\tThe newest checkpoint of a run:\n"
                 "offload inspect /mnt/nvme0,/mnt/nvme1\tA store on two drives:\n",
     .see_also = "train export"},
    {.command = "tokenize",
     .description =
         "Turns texts into tokens with the `tokenizer.json` in --model; the ids are those of Hugging Face's "
         "tokenizers. Alone it tells how many there are, and how fast. With --output they become a token file, with "
         "--jsonl lines of {\"text\"} become lines of {\"ids\"}; neither adds special tokens.\n"
         "--show prints sequences as training would see them: documents, masked and trained parts, ids. --data-cache "
         "tokenizes now, for a run that is given the same folder later.",
     .examples =
         "offload tokenize --model DIR --data chats.jsonl --max-seq-length 512 --show\tLook before you train:\n"
         "offload tokenize --model DIR --data notes.txt --output notes.bin\tA token file for other programs:\n"
         "offload tokenize --model DIR --jsonl <texts.jsonl >ids.jsonl\tAs a filter:\n",
     .see_also = "train"},
    {.command = "generate",
     .description =
         "Goes on from --prompt (or the text of --prompt-file) with the model in --model, token by token. "
         "--temperature 0 takes the most likely token each time; otherwise --top-k, --top-p and --seed say what is "
         "drawn from and how. --chat puts the prompt, and --system-prompt, into the chat template. The end of a text "
         "or turn ends the answer.\n"
         "Weights that do not fit --host-mem are read anew for every token: slow, but the same text.",
     .examples =
         "offload generate --model run1/checkpoint-500 --prompt \"Once upon a time\" --temperature 0.8 --top-p 0.95\t"
         "Sampled text:\n"
         "offload generate --model Qwen3-8B --chat --prompt \"Why is the sky blue?\"\tAn answer:\n",
     .see_also = "train eval"},
    {.command = "trace",
     .description =
         "Says where the time and the bytes of a run went that was recorded with --trace. report prints the step of "
         "median length: the longest chain of tasks, what each lane did and what held it up, bytes beside the plan's. "
         "With --output it also writes a page: every task on a timeline, what the memory held, who waited for whom, "
         "predicted beside measured. The page is one file without network or libraries, is moved by mouse or keys, and "
         "its tables are there without scripts. --format json prints the numbers of every step.\n"
         "export writes the recording for another viewer: --format perfetto for ui.perfetto.dev, which is also what "
         "is written without it, or --format chrome for viewers of Chrome's JSON.\n"
         "A recording can be read while the run is at work, and after a crash: what is not whole is left out and "
         "counted.",
     .examples =
         "offload train --model DIR --data notes.txt --output run1 --trace on\tRecord a run:\n"
         "offload trace report run1 --output run1.html\tSee a step at a glance:\n"
         "offload trace export run1 --format perfetto --output run1.perfetto-trace\tFor ui.perfetto.dev:\n",
     .see_also = "top train"},
    {.command = "top",
     .description =
         "Shows how a run stands, from what it writes into its folder: step, loss and speed, what each lane does and "
         "waits for, bytes over each link, and with --trace the longest chain of the last step. On a terminal the "
         "picture is redrawn every second until q; elsewhere it is printed whenever a step has ended. --once prints "
         "it and ends.",
     .signals = "HUP, INT, TERM\tthe terminal is restored, and the command ends with status 0\n",
     .examples = "offload top run1\tWatch a run:\n"
                 "offload top run1 --once\tFor a script:\n",
     .see_also = "trace train"},
    {.command = "version",
     .description = "Prints the name and the version of this program on one line. `offload --version` does the same.",
     .see_also = "help"},
    {.command = "help",
     .description =
         "Lists the commands, or the flags of one with their defaults; `offload COMMAND --help` does the same. --as "
         "man writes the manual page of the command, or offload(1), and --as bash, zsh or fish what completes "
         "command lines in that shell. All of them are written from the tables by which arguments are read. make "
         "install puts them in their places.",
     .examples = "offload help train\tThe flags of train:\n"
                 "offload help train --as man | man -l -\tThe manual page of train:\n"
                 "source <(offload help --as bash)\tCompletion in this bash:\n"
                 "offload help --as fish | source\tThe same in fish:\n",
     .see_also = "version"},
};

const struct ox_page *ox_page_find(const char *command) {
    for (unsigned i = 0; i < sizeof pages / sizeof *pages; i++) {
        if (strcmp(pages[i].command, command) == 0) {
            return &pages[i];
        }
    }
    return NULL;
}
