#!/usr/bin/env python3
"""Makes tests/golden/ranks.json: 20 steps of PyTorch's DistributedDataParallel and FSDP2 in 2 and 4 processes, and of
FSDP2 with two copies of the model (HYBRID_SHARD) in 4.

    python3 tests/golden/make/golden_ranks.py [--output tests/golden/ranks.json]

Needs torch and transformers; the tests need neither. Every process trains in float32 on the CPU, its gradients go over
gloo. Process r takes the r-th of as many equal runs of a step's micro-batches, accumulates their gradients and
communicates with the last of them alone; gradients are then clipped by the norm of all.
"""

import argparse
import contextlib
import json
import math
import os
import tempfile

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from golden import BETAS, EPS, WEIGHT_DECAY, decays, mark_undetermined

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.normpath(os.path.join(HERE, ".."))
MODELS = ["llama_tied_gqa", "gpt2_small"]
WAYS = [("ddp", 2), ("ddp", 4), ("fsdp2", 2), ("fsdp2", 4), ("hybrid", 4)]
COPIES = 2  # of the last way
STEPS, MICRO_BATCHES, LEARNING_RATE = 20, 8, 1e-3
SAMPLE_STRIDE = 101  # prime to all row lengths


def load(name):
    with open(os.path.join(GOLDEN, name, "golden.json"), encoding="utf-8") as file:
        golden = json.load(file)
    def flat(key):
        return [torch.tensor(ids).view(golden["batch"], golden["seq"]) for step in golden[key] for ids in step]
    model = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(GOLDEN, name), dtype=torch.float32,
                                                             attn_implementation="eager")
    return model.eval(), list(zip(flat("inputs"), flat("targets"))), golden["max_grad_norm"]


def spread(model, way):
    """The model as the processes have it, and a function that says whether the next backward communicates."""
    if way == "ddp":
        wrapped = DistributedDataParallel(model)
        return wrapped, lambda last: contextlib.nullcontext() if last else wrapped.no_sync()
    blocks = model.transformer.h if model.config.model_type == "gpt2" else model.model.layers
    mesh = (COPIES, dist.get_world_size() // COPIES)
    mesh = init_device_mesh("cpu", mesh, mesh_dim_names=("replicate", "shard")) if way == "hybrid" else None
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)

    def before(last):
        model.set_requires_gradient_sync(last)
        return contextlib.nullcontext()
    return model, before


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def run_step(model, before, micro_batches):
    """Returns the mean over all targets of all processes; the parameters get its gradient."""
    counted = sum(targets.numel() for _, targets in micro_batches)
    total = torch.zeros((), dtype=torch.float64)
    for idx, (inputs, targets) in enumerate(micro_batches):
        with before(idx == len(micro_batches) - 1):
            logits = model(input_ids=inputs, use_cache=False).logits
            nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
            (nll / counted).backward()  # the processes' gradients are averaged
        total += nll.detach()
    dist.all_reduce(total)
    return float(total) / (counted * dist.get_world_size())


def train(rank, name, way, ranks, folder):
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    model, batches, max_grad_norm = load(name)
    wrapped, before = spread(model, way)
    named = list(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for n, p in named if decays(n, p)], "weight_decay": WEIGHT_DECAY},
         {"params": [p for n, p in named if not decays(n, p)], "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=BETAS, eps=EPS)
    result = {"way": way, "ranks": ranks, "losses": [], "grad_norms": []}
    own = MICRO_BATCHES // ranks
    for step in range(STEPS):
        first = step * MICRO_BATCHES + rank * own
        optimizer.zero_grad()
        micro_batches = [batches[i % len(batches)] for i in range(first, first + own)]
        result["losses"].append(run_step(wrapped, before, micro_batches))
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        result["grad_norms"].append(float(whole(norm)))
        optimizer.step()
    final = {n: whole(p) for n, p in named}
    mark_undetermined(model, final)
    result["final"] = {n: [None if math.isnan(v) else float(f"{v:.9g}") for v in p.flatten()[::SAMPLE_STRIDE].tolist()]
                       for n, p in final.items()}
    if rank == 0:
        with open(os.path.join(folder, "result"), "w", encoding="utf-8") as file:
            json.dump(result, file)
    dist.barrier()
    dist.destroy_process_group()


def run(name, way, ranks):
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, (name, way, ranks, folder), nprocs=ranks)
        with open(os.path.join(folder, "result"), encoding="utf-8") as file:
            return {"model": name, **json.load(file)}


def apart(a, b):
    final = [abs(x - y) for n in a["final"] for x, y in zip(a["final"][n], b["final"][n]) if x is not None]
    losses = [abs(x - y) for x, y in zip(a["losses"], b["losses"])]
    return f"losses {max(losses):.1e}, final weights {max(final):.1e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default=os.path.join(GOLDEN, "ranks.json"))
    args = parser.parse_args()
    runs = []
    for name in MODELS:
        of_model = [run(name, way, ranks) for way, ranks in WAYS]
        for other in of_model:
            print(f"{name}, {other['way']} in {other['ranks']} processes: loss {other['losses'][0]:.4f} to "
                  f"{other['losses'][-1]:.4f}; from ddp in 2: {apart(of_model[0], other)}")
        runs += of_model
    content = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__, "steps": STEPS,
               "micro_batches": MICRO_BATCHES, "learning_rate": LEARNING_RATE, "sample_stride": SAMPLE_STRIDE}
    with open(args.output, "w", encoding="utf-8") as file:
        head = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in content.items())
        file.write("{\n" + head + '"runs": [\n' + ",\n".join(json.dumps(each) for each in runs) + "\n]\n}\n")


if __name__ == "__main__":
    main()
