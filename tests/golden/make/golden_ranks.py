#!/usr/bin/env python3
"""Makes tests/golden/ranks.json: 20 steps of PyTorch's DistributedDataParallel and FSDP2 in 2 and 4 processes, and of
FSDP2 with two copies of the model (HYBRID_SHARD) in 4; and powersgd.json: 16 steps of DistributedDataParallel with its
PowerSGD hook.

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
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
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


# PowerSGD: the hook's own code but for the first Q of each matrix, which is drawn as cpu_optim draws it
LOW_RANK_MODELS = ["llama_untied_odd", "qwen3"]
LOW_RANK_WAYS = [(2, 1), (2, 4), (4, 2)]  # processes, rank
LOW_RANK_STEPS, START, MIN_RATE = 16, 3, 1.1
MASK = (1 << 64) - 1


def mixed(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def drawn(matrix_idx, columns, rank):
    """Q, (columns, rank)."""
    seed = (matrix_idx + 1) << 32
    q = torch.empty(columns, rank)
    for k in range(rank):
        base = (mixed(seed) + k) & MASK
        base = mixed(base)
        for i in range(columns):
            q[i, k] = (mixed((base + i) & MASK) >> 40) * 2.0**-23 - 1.0
    return q


def worth(n, m, rank):
    rank = min(n, m, rank)
    return (n + m) * rank * MIN_RATE < n * m


class Hook:
    """Runs the hook on a bucket, whose first Q it replaces."""

    def __init__(self, numbers, rank):
        self.numbers, self.rank = numbers, rank
        self.state = powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=rank, start_powerSGD_iter=START,
            min_compression_rate=MIN_RATE, use_error_feedback=True, warm_start=True, orthogonalization_epsilon=0)

    def __call__(self, _, bucket):
        assert bucket.is_last() and bucket.index() == 0
        if self.state.iter == START and 0 not in self.state.q_memory_dict:
            ps, qs = [], []
            matrices = [(g, p) for g, p in zip(bucket.gradients(), bucket.parameters()) if g.dim() > 1]
            matrices = [(g.view(g.shape[0], -1), p) for g, p in matrices]
            # as the hook lists them: by shape, where it batches tensors of one, else in the bucket's order
            groups = {}
            for g, p in matrices:
                if worth(*g.shape, self.rank):
                    groups.setdefault((g.shape, g.dtype), []).append((g, p))
            for shape_matrices in groups.values():
                for g, p in shape_matrices:
                    n, m = g.shape
                    rank = min(n, m, self.rank)
                    ps.append(torch.empty(n, rank).flatten())
                    qs.append(drawn(self.numbers[p], m, rank).flatten())
            self.state.p_memory_dict[0] = torch.cat(ps)
            self.state.q_memory_dict[0] = torch.cat(qs)
            self.state.error_dict[0] = torch.zeros_like(bucket.buffer())
        return powerSGD_hook.powerSGD_hook(self.state, bucket)


def train_low_rank(rank, name, ranks, columns, folder):
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    model, batches, max_grad_norm = load(name)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=1000)
    order = [p for _, p in model.named_parameters() if p.dim() > 1]
    hook = Hook({p: i for i, p in enumerate(order)}, columns)
    wrapped.register_comm_hook(None, hook.__call__)
    named = list(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for n, p in named if decays(n, p)], "weight_decay": WEIGHT_DECAY},
         {"params": [p for n, p in named if not decays(n, p)], "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=BETAS, eps=EPS)
    result = {"model": name, "ranks": ranks, "columns": columns, "losses": [], "grad_norms": []}
    own = MICRO_BATCHES // ranks

    def before(last):
        return contextlib.nullcontext() if last else wrapped.no_sync()

    for step in range(LOW_RANK_STEPS):
        first = step * MICRO_BATCHES + rank * own
        optimizer.zero_grad()
        micro_batches = [batches[i % len(batches)] for i in range(first, first + own)]
        result["losses"].append(run_step(wrapped, before, micro_batches))
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        result["grad_norms"].append(float(norm))
        optimizer.step()
    result["matrices"] = [n for n, p in named if p.dim() > 1]
    result["compressed"] = sum(worth(p.shape[0], p[0].numel(), columns) for _, p in named if p.dim() > 1)
    if rank == 0:
        with open(os.path.join(folder, "result"), "w", encoding="utf-8") as file:
            json.dump(result, file)
    dist.barrier()
    dist.destroy_process_group()


def run_low_rank(name, ranks, columns):
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train_low_rank, (name, ranks, columns, folder), nprocs=ranks)
        with open(os.path.join(folder, "result"), encoding="utf-8") as file:
            return json.load(file)


def write_low_rank(path):
    runs = [run_low_rank(name, ranks, columns) for name in LOW_RANK_MODELS for ranks, columns in LOW_RANK_WAYS]
    for each in runs:
        print(f"{each['model']}, {each['ranks']} processes, rank {each['columns']}: {each['compressed']} of "
              f"{len(each['matrices'])} matrices; loss {each['losses'][0]:.4f} to {each['losses'][-1]:.4f}")
    content = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
               "steps": LOW_RANK_STEPS, "start": START, "min_rate": MIN_RATE, "micro_batches": MICRO_BATCHES,
               "learning_rate": LEARNING_RATE}
    with open(path, "w", encoding="utf-8") as file:
        head = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in content.items())
        file.write("{\n" + head + '"runs": [\n' + ",\n".join(json.dumps(each) for each in runs) + "\n]\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default=os.path.join(GOLDEN, "ranks.json"))
    parser.add_argument("--powersgd", default=os.path.join(GOLDEN, "powersgd.json"))
    args = parser.parse_args()
    write_low_rank(args.powersgd)
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
