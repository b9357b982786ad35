#!/usr/bin/env python3
"""Times whole training steps of `offload train` on the CPU beside PyTorch and beside DeepSpeed on the same machine.

    python3 tools/dev/peers/bench_step_peers.py [--only CASE]... [--rounds N] [--steps N] [--threads N] [--folder PATH]
        [--results FILE] [--compile] [--aio JSON]

The model is that of bench_step, a Llama of 97.5 M parameters with a tied head, from the same weights on both sides; a
step has 2 micro-batches of 4 x 512 tokens, AdamW and clipping. Cases:

    fp32, bf16                          PyTorch in float32, or under autocast to bfloat16; all in memory
    fp32-checkpoint, bf16-checkpoint    the same; both sides recompute every block in backward
    fp32-frozen, bf16-frozen            all but the last four blocks frozen: --freeze, and requires_grad=False
    deepspeed-4096, deepspeed-64        bf16; DeepSpeed ZeRO-3 on its CPU accelerator with parameters and optimizer on
                                        NVMe; ours with weights and state on the same drive, and at most HOST_MEM of
                                        host memory. The second has steps of one sequence of 64 tokens
    deepspeed-64-memory                 the same, but ours may use 3 GiB as it likes, less than DeepSpeed takes with its
                                        state on NVMe: it keeps the state in memory, and the drive has its commits
    mixture-fp32, mixture-bf16          a qwen3_moe of 96 M parameters, 32 experts of which a token has 4, beside
                                        transformers' own model as it is by default; 2 micro-batches of 2 x 256 tokens

In each round both sides run one after the other, each in its own process. A round's time of a step is the median of
its steps after the first, with DeepSpeed after the first two; of a mixture the table also has processor time, which other
programs lengthen less: of the steps after the first by the count of them, ours by the difference of a run of one step. The losses of the first step must agree to 1e-3, those
of all steps of fp32-frozen to 1e-5, as both sides then do the same work; otherwise the exit status is 1.

Rounds are appended to --results (build/bench/steps.jsonl), and a table of all in that file is printed, so that cases
can be measured apart; --rounds 0 prints it alone. A case without its peer is reported as skipped; without any peer the
exit status is 77. It needs torch; for DeepSpeed also deepspeed, and what compiles its asynchronous I/O at first use
(libaio-dev, ninja, a C++ compiler). For quiet machines.
"""
import argparse
import importlib.util
import json
import os
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from bench_gpu_peers import build

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
OURS = os.path.join(ROOT, "build/offload")
MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 768, "intermediate_size": 2048,
         "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 12, "vocab_size": 16384,
         "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
         "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True, "initializer_range": 0.02,
         "torch_dtype": "float32"}
ADAM = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8}
MIXTURE = {"vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 6,
           "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "num_experts": 32, "num_experts_per_tok": 4,
           "moe_intermediate_size": 256, "norm_topk_prob": True, "max_position_embeddings": 1024,
           "tie_word_embeddings": True}
DECAY, TOLERANCE, HOST_MEM = 0.1, 1e-3, "4GiB"
FROZEN_TOLERANCE, TRAINED_BLOCKS = 1e-5, 4
AIO = {"block_size": 1 << 20, "queue_depth": 32, "intra_op_parallelism": 2, "single_submit": False,
       "overlap_events": True}
WHOLE, SHORT, HALF = (4, 512, 2), (1, 64, 1), (2, 256, 2)  # sequences, tokens of each, micro-batches
IN_MEMORY = ["--kept-blocks", "auto"]
RECOMPUTED = ["--kept-blocks", "0"]
FROZEN = ["--freeze", f"all-but layers.{MODEL['num_hidden_layers'] - TRAINED_BLOCKS}-{MODEL['num_hidden_layers'] - 1}"]
ON_DRIVE = ["--weights-tier", "nvme", "--state-tier", "nvme"]
CASES = {
    "fp32": (WHOLE, ["--dtype", "fp32", *IN_MEMORY]),
    "fp32-checkpoint": (WHOLE, ["--dtype", "fp32", *RECOMPUTED]),
    "fp32-frozen": (WHOLE, ["--dtype", "fp32", *IN_MEMORY, *FROZEN]),
    "bf16": (WHOLE, ["--dtype", "bf16", *IN_MEMORY]),
    "bf16-frozen": (WHOLE, ["--dtype", "bf16", *IN_MEMORY, *FROZEN]),
    "bf16-checkpoint": (WHOLE, ["--dtype", "bf16", *RECOMPUTED]),
    "deepspeed-4096": (WHOLE, ["--dtype", "bf16", "--host-mem", HOST_MEM, *ON_DRIVE]),
    "deepspeed-64": (SHORT, ["--dtype", "bf16", "--host-mem", HOST_MEM, *ON_DRIVE]),
    "deepspeed-64-memory": (SHORT, ["--dtype", "bf16", "--host-mem", "3GiB"]),
    "mixture-fp32": (HALF, ["--dtype", "fp32", *IN_MEMORY]),
    "mixture-bf16": (HALF, ["--dtype", "bf16", *IN_MEMORY]),
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(CASES), help="measure this case; may be repeated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="of a run, with those that do not count")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--folder", default=os.path.join(ROOT, "build/bench"), help="on the drive, with 8 GB of free space")
    parser.add_argument("--results", help="file of the rounds; default: steps.jsonl in the folder")
    parser.add_argument("--compile", action="store_true", help="PyTorch's model through torch.compile")
    parser.add_argument("--aio", type=json.loads, default={}, help=f"changes to DeepSpeed's {json.dumps(AIO)}")
    parser.add_argument("--peer", choices=list(CASES), help=argparse.SUPPRESS)
    return parser.parse_args()


# ---- what both sides read ------------------------------------------------------------------------------


def hub_tensors(torch, model):
    """Yields the parameters by the names that model folders use."""
    heads = MODEL["num_attention_heads"] * (MODEL["hidden_size"] // MODEL["num_attention_heads"])
    yield "model.embed_tokens.weight", model.embed.weight
    yield "model.norm.weight", model.norm.weight
    for idx, block in enumerate(model.blocks):
        at = f"model.layers.{idx}."
        for name, part in zip("qkv", block.qkv.weight.split(heads)):
            yield at + f"self_attn.{name}_proj.weight", part
        yield at + "self_attn.o_proj.weight", block.out.weight
        for name, part in zip(("gate", "up"), block.gate_up.weight.chunk(2)):
            yield at + f"mlp.{name}_proj.weight", part
        yield at + "mlp.down_proj.weight", block.down.weight
        yield at + "input_layernorm.weight", block.norm1.weight
        yield at + "post_attention_layernorm.weight", block.norm2.weight


def write_model(torch, folder):
    os.makedirs(folder)
    with open(folder + "/config.json", "w", encoding="utf-8") as file:
        json.dump(MODEL, file)
    tensors = [(name, tensor.detach().contiguous().numpy()) for name, tensor in hub_tensors(torch, build(torch, MODEL, False))]
    header, offset = {}, 0
    for name, values in tensors:
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    with open(folder + "/model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors:
            file.write(values.tobytes())


def is_mixture(case):
    return case.startswith("mixture")


def mixture(torch):
    import transformers
    torch.manual_seed(3)
    return transformers.AutoModelForCausalLM.from_config(transformers.Qwen3MoeConfig(**MIXTURE))


def tokens(torch, case, steps):
    """Returns the tokens of a run in order, and one more, the last target."""
    (batch, seq, micro), _ = CASES[case]
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, (MIXTURE if is_mixture(case) else MODEL)["vocab_size"], (steps * micro * batch * seq + 1,), generator=generator)


def write_tokens(torch, path, ids):
    """Writes a token file of llm.c."""
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253))
        file.write(ids.to(torch.int16).numpy().tobytes())


# ---- PyTorch and DeepSpeed, each in its own process -----------------------------------------------------


def groups_of(model):
    """Returns the groups of parameters, with weight decay of matrices alone as in ours."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": DECAY},
            {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}]


def torch_step(torch, options):
    model = mixture(torch) if is_mixture(options.peer) else build(torch, MODEL, "checkpoint" in options.peer)
    if options.peer.endswith("frozen"):
        model.requires_grad_(False)
        for block in model.blocks[-TRAINED_BLOCKS:]:
            block.requires_grad_(True)
    optimizer = torch.optim.AdamW(groups_of(model), fused=True, **ADAM)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled="bf16" in options.peer)
    run = torch.compile(model) if options.compile else model
    if is_mixture(options.peer):
        logits = run

        def run(ids, targets):
            return torch.nn.functional.cross_entropy(logits(input_ids=ids, use_cache=False).logits.float().flatten(0, 1),
                                                     targets.flatten())

    def step(batches):
        loss = 0.0
        for ids, targets in batches:
            with autocast:
                part = run(ids, targets) / len(batches)
            part.backward()
            loss += part.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def deepspeed_step(torch, options):
    os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(20000 + os.getpid() % 20000))
    import deepspeed
    deepspeed.init_distributed("gloo")
    nvme = {"device": "nvme", "nvme_path": options.folder}
    config = {
        "train_micro_batch_size_per_gpu": CASES[options.peer][0][0],
        "gradient_accumulation_steps": CASES[options.peer][0][2],
        "gradient_clipping": 1.0, "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True,
        "optimizer": {"type": "AdamW", "params": {"weight_decay": DECAY, **ADAM}},
        "zero_optimization": {
            "stage": 3, "sub_group_size": 8 << 20, "reduce_bucket_size": 16 << 20,
            "offload_param": {**nvme, "buffer_count": 8, "buffer_size": 16 << 20},
            # Twelve buffers: four tensors read, four read ahead, three written behind, one spare.
            "offload_optimizer": {**nvme, "buffer_count": 12, "pipeline_read": True, "pipeline_write": True}},
        "aio": {**AIO, **options.aio}}
    model = build(torch, MODEL, False)
    engine = deepspeed.initialize(model=model, model_parameters=groups_of(model), config=config)[0]

    def step(batches):
        loss = 0.0
        for ids, targets in batches:
            part = engine(ids, targets)
            engine.backward(part)
            engine.step()
            loss += part.item() / len(batches)
        return loss

    return step


def run_peer(options):
    """Prints one line of JSON: seconds and losses of the steps, and the largest resident size in bytes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch
    import torch.utils.checkpoint
    torch.set_num_threads(options.threads)
    (batch, seq, micro), _ = CASES[options.peer]
    step = (deepspeed_step if options.peer.startswith("deepspeed") else torch_step)(torch, options)
    ids = tokens(torch, options.peer, options.steps)
    inputs, targets = ids[:-1].view(-1, micro, batch, seq), ids[1:].view(-1, micro, batch, seq)
    seconds, losses, processor = [], [], []
    for idx in range(options.steps):
        begin, used = time.perf_counter(), time.process_time()
        losses.append(step(list(zip(inputs[idx], targets[idx]))))
        seconds.append(time.perf_counter() - begin)
        processor.append(time.process_time() - used)
    print(json.dumps({"seconds": seconds, "losses": losses, "processor": sum(processor[1:]) / max(len(processor) - 1, 1),
                      "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}), file=answers, flush=True)
    os._exit(0)


# ---- a round ---------------------------------------------------------------------------------------------


def check(done, name):
    if done.returncode != 0:
        raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr[-1500:]}")
    return done


def run_theirs(options, case, folder):
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
    command = [sys.executable, os.path.abspath(__file__), "--peer", case, "--folder", folder, "--steps", str(options.steps),
               "--threads", str(options.threads), "--aio", json.dumps(options.aio)] + ["--compile"] * options.compile
    done = check(subprocess.run(command, capture_output=True, text=True, env=environment, check=False), "the peer")
    return json.loads(done.stdout.splitlines()[-1])


def run_ours(options, case, folder, steps):
    (batch, seq, micro), words = CASES[case]
    command = [OURS, "train", "--model", options.folder + ("/mixture" if is_mixture(case) else "/model"), "--data", f"{options.folder}/{case}.bin",
               "--eval-data", f"{options.folder}/{case}.bin", "--output", folder + "/run", "--max-steps",
               str(steps), "--max-seq-length", str(seq), "--per-device-train-batch-size", str(batch),
               "--gradient-accumulation-steps", str(micro), "--data-order", "sequential", "--eval-steps", "0",
               "--eval-windows", str(batch), "--save-steps", "0", "--overwrite-output-dir", "--learning-rate", str(ADAM["lr"]), "--warmup-steps", "0",
               "--lr-scheduler-type", "constant", "--weight-decay", str(DECAY), "--compute-threads", str(options.threads),
               "--optimizer-threads", str(options.threads), *words]
    if case.startswith("deepspeed"):
        command += ["--nvme", folder + ":6GiB"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    with tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
        log.seek(0)
        check(subprocess.CompletedProcess(command, status, stderr=log.read()), "offload train")
    with open(folder + "/run/metrics.jsonl", encoding="utf-8") as file:
        steps = [line for line in map(json.loads, file) if line["type"] == "step"]
    return {"seconds": [step["seconds"] for step in steps], "losses": [step["loss"] for step in steps],
            "resident": usage.ru_maxrss << 10, "processor": usage.ru_utime + usage.ru_stime}


def run_ours_again(options, case, folder):
    """Leaves in "processor" the time of a step after the first."""
    if not is_mixture(case) or options.steps == 1:
        return run_ours(options, case, folder, options.steps)
    run_ours(options, case, folder, 1)  # the first run on a machine measures it, for seconds
    alone = run_ours(options, case, folder, 1)["processor"]
    record = run_ours(options, case, folder, options.steps)
    record["processor"] = (record["processor"] - alone) / (options.steps - 1)
    return record


def run_round(options, case):
    record = {"case": case + (", compiled" if options.compile else ""), "threads": options.threads}
    for side, run in (("theirs", run_theirs), ("ours", run_ours_again)):
        folder = tempfile.mkdtemp(prefix=side + "-", dir=options.folder)
        try:
            record[side] = run(options, case, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        os.sync()  # what one side leaves to be written must not slow the other
        record[side]["step"] = statistics.median(record[side]["seconds"][2 if case.startswith("deepspeed") else 1:])
    print(f"{record['case']}: a step takes {record['theirs']['step']:.3f} s there, {record['ours']['step']:.3f} s here",
          file=sys.stderr, flush=True)
    with open(options.results, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


# ---- the report ------------------------------------------------------------------------------------------


def difference(record, steps):
    """Returns the largest relative difference of the losses of so many steps."""
    losses = list(zip(record["ours"]["losses"], record["theirs"]["losses"]))
    return max(abs(ours - theirs) / theirs for ours, theirs in losses[:steps])


def same_work(record):
    if record["case"].startswith("fp32-frozen"):
        return difference(record, None) <= FROZEN_TOLERANCE
    return difference(record, 1) <= TOLERANCE


def print_row(name, records):
    (batch, seq, micro), _ = CASES[name.split(",")[0]]
    rate = {side: batch * seq * micro / statistics.median(r[side]["step"] for r in records) for side in ("theirs", "ours")}
    processor = ""
    if is_mixture(name):
        spent = {side: statistics.median(r[side]["processor"] for r in records) for side in ("theirs", "ours")}
        processor = f"; processor time {spent['theirs']:.2f} s, {spent['ours']:.2f} s: {spent['theirs'] / spent['ours']:.2f}"
    resident = {side: max(r[side]["resident"] for r in records) / 2**30 for side in ("theirs", "ours")}
    ratios = [r["theirs"]["step"] / r["ours"]["step"] for r in records]
    print(f"| {name} | {len(records)} | {rate['theirs']:.1f} | {rate['ours']:.1f} | {statistics.median(ratios):.2f} "
          f"({min(ratios):.2f} to {max(ratios):.2f}){processor} | {records[0]['theirs']['losses'][0]:.5f}, "
          f"{records[0]['ours']['losses'][0]:.5f} | {resident['theirs']:.2f}, {resident['ours']:.2f} |")


def report(options, skipped):
    """Returns whether both sides did the same work in all rounds of the file."""
    records = []
    if os.path.exists(options.results):
        with open(options.results, encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
    print("| Case | Rounds | Theirs, tokens/s | Ours, tokens/s | Ours by theirs | First loss: theirs, ours | "
          "Resident, GiB: theirs, ours |\n|---|---|---|---|---|---|---|")
    for name in dict.fromkeys(record["case"] for record in records):
        print_row(name, [record for record in records if record["case"] == name])
    for name, why in skipped.items():
        print(f"| {name} | skipped: {why} | | | | | |")
    different = [record for record in records if not same_work(record)]
    for record in records:
        print(f"{record['case']}: losses differ by {difference(record, 1):.1e} at first, by {difference(record, None):.1e} "
              "at most", file=sys.stderr)
    return not different


def missing(case):
    needed = ["torch"] + ["deepspeed"] * case.startswith("deepspeed") + ["transformers"] * is_mixture(case)
    absent = [name for name in needed if importlib.util.find_spec(name) is None]
    return " and ".join(absent) + (" are" if len(absent) > 1 else " is") + " not installed" if absent else None


def main():
    options = parse()
    if options.peer:
        return run_peer(options)
    os.makedirs(options.folder, exist_ok=True)
    options.results = options.results or os.path.join(options.folder, "steps.jsonl")
    if not os.path.exists(OURS):
        print(f"{OURS} is missing; run make", file=sys.stderr)
        return 2
    cases = (options.only or list(CASES)) if options.rounds > 0 else []
    skipped = {case: missing(case) for case in cases if missing(case)}
    cases = [case for case in cases if case not in skipped]
    with tempfile.TemporaryDirectory(prefix="steps-", dir=options.folder) as options.folder:
        if cases:
            import torch
            if not all(map(is_mixture, cases)):
                write_model(torch, options.folder + "/model")
            if any(map(is_mixture, cases)):
                mixture(torch).save_pretrained(options.folder + "/mixture")
            for case in cases:
                write_tokens(torch, f"{options.folder}/{case}.bin", tokens(torch, case, options.steps))
        for _ in range(options.rounds):
            for case in cases:
                run_round(options, case)
    same = report(options, skipped)
    return 77 if skipped and not cases else 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
