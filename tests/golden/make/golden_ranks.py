#!/usr/bin/env python3
"""Makes tests/golden/ranks.json: 20 steps of PyTorch's DistributedDataParallel and FSDP2 in 2 and 4 processes, and of
FSDP2 with two copies of the model (HYBRID_SHARD) in 4; powersgd.json: 16 steps of DistributedDataParallel with its
PowerSGD hook; and strategies.json: 12 steps by processes that divide features, rows of sequences, both, layers, or
experts.

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
import torch.distributed._functional_collectives as collectives
import transformers
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from transformers.modeling_utils import AttentionInterface

from golden import BETAS, EPS, IGNORED, WEIGHT_DECAY, decays, mark_undetermined

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.normpath(os.path.join(HERE, ".."))
MODELS = ["llama_tied_gqa", "gpt2_small"]
WAYS = [("ddp", 2), ("ddp", 4), ("fsdp2", 2), ("fsdp2", 4), ("hybrid", 4)]
COPIES = 2  # of the last way
STEPS, MICRO_BATCHES, LEARNING_RATE = 20, 8, 1e-3
SAMPLE_STRIDE = 101  # prime to all row lengths


def load(name, **how):
    """The model, as `how` has it, its batches and the largest norm of a gradient."""
    with open(os.path.join(GOLDEN, name, "golden.json"), encoding="utf-8") as file:
        golden = json.load(file)
    def flat(key):
        return [torch.tensor(ids).view(golden["batch"], golden["seq"]) for step in golden[key] for ids in step]
    model = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(GOLDEN, name), dtype=torch.float32,
                                                             **{"attn_implementation": "eager", **how})
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


# ---- strategies: 12 steps by processes that divide features, rows of sequences, both, layers, or experts ----
#
# - features: transformers' own plan of the model (`tp_plan="auto"`), columns and rows of its matrices
# - rows: each process has two chunks of every sequence, one from its beginning and one from its end, and attends to the
#   keys and values of all, which are gathered by hand
# - layers: torch.distributed.pipelining, 1F1B over as many stages as processes
# - experts: each process has micro-batches of its own, and sends every row to those that have its experts

STRATEGY_STEPS, STRATEGY_MICRO_BATCHES = 12, 4
# Model, processes that divide features, rows, layers, and micro-batches; how many of the last divide experts.
STRATEGIES = [("llama_tied_gqa", 2, 1, 1, 1, 1), ("mistral_window", 2, 1, 1, 1, 1), ("llama_tied_gqa", 1, 2, 1, 1, 1),
              ("mistral_window", 1, 4, 1, 1, 1), ("llama_tied_gqa", 2, 2, 1, 1, 1), ("mistral_window", 2, 2, 1, 1, 1),
              ("qwen3", 1, 1, 2, 1, 1), ("llama_untied_odd", 1, 1, 2, 1, 1), ("four_mixtral", 1, 1, 1, 2, 2),
              ("four_mixtral", 1, 1, 1, 4, 4), ("four_mixtral", 1, 1, 1, 4, 2), ("four_mixtral", 2, 1, 1, 1, 1),
              ("four_qwen2_moe", 4, 1, 1, 1, 1)]
STRATEGY_KEYS = ("model", "tensors", "contexts", "pipe", "data", "experts")


# ---- rows of sequences -------------------------------------------------------------------------------------


class Rows:
    """Which rows of sequences the processes of a group have, and their attention."""

    def __init__(self, group, seq):
        self.group, self.count = group, dist.get_world_size(group)
        edges = [seq * i // (2 * self.count) for i in range(2 * self.count + 1)]
        def chunk(i):
            return list(range(edges[i], edges[i + 1]))
        self.each = [torch.tensor(chunk(i) + chunk(2 * self.count - 1 - i)) for i in range(self.count)]
        self.own = self.each[dist.get_rank(group)]
        self.all = torch.cat(self.each)
        self.most = max(len(rows) for rows in self.each)

    def gather(self, tensor):
        return Gather.apply(tensor, self)

    def attend(self, module, query, key, value, attention_mask, scaling, dropout=0.0, sliding_window=None, **_):
        key, value = self.gather(key), self.gather(value)
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        behind = self.own[:, None] - self.all[None, :]
        seen = (behind >= 0) & (behind < (sliding_window or 1 << 30))
        scores = (query @ key.transpose(2, 3) * scaling).masked_fill(~seen, -math.inf)
        return (torch.softmax(scores, -1) @ value).transpose(1, 2).contiguous(), None


class Gather(torch.autograd.Function):
    """The rows of all processes, in dimension 2; gradients of the own rows come back from all."""

    @staticmethod
    def forward(ctx, tensor, rows):
        ctx.rows = rows
        shape = list(tensor.shape)
        padded = torch.nn.functional.pad(tensor, (0, 0, 0, rows.most - shape[2])).contiguous()
        parts = [torch.empty_like(padded) for _ in rows.each]
        dist.all_gather(parts, padded, group=rows.group)
        return torch.cat([part[:, :, :len(own)] for part, own in zip(parts, rows.each)], 2)

    @staticmethod
    def backward(ctx, grad):
        rows = ctx.rows
        grad = grad.contiguous()
        dist.all_reduce(grad, group=rows.group)
        first = sum(len(own) for own in rows.each[:dist.get_rank(rows.group)])
        return grad[:, :, first:first + len(rows.own)], None


# ---- what processes have of parameters ---------------------------------------------------------------------


def own(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Parameters:
    """Of a model of which each process of a group may have a part of a matrix, as its shape tells."""

    def __init__(self, model, shapes, group):
        self.named, self.group = list(model.named_parameters()), group
        self.parts = {name for name, tensor in self.named if tuple(own(tensor).shape) != shapes[name]}

    def clip(self, max_norm):
        total = torch.zeros(2, dtype=torch.float64)  # of what all have, and of parts
        for name, tensor in self.named:
            total[int(name in self.parts)] += own(tensor.grad).double().square().sum()
        dist.all_reduce(total[1:], group=self.group)
        norm = math.sqrt(total.sum())
        for _, tensor in self.named:
            own(tensor.grad).mul_(min(1.0, max_norm / (norm + 1e-6)))
        return norm


def count(micro_batches):
    return sum(int((targets != IGNORED).sum()) for _, targets in micro_batches)


def loss_sum(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum",
                                             ignore_index=IGNORED)


def optimizer_of(named):
    return torch.optim.AdamW(
        [{"params": [p for n, p in named if decays(n, p)], "weight_decay": WEIGHT_DECAY},
         {"params": [p for n, p in named if not decays(n, p)], "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=BETAS, eps=EPS, foreach=False)


def train_divided(name, tensors, contexts):
    """Features and rows: the losses and norms of the run."""
    mesh = init_device_mesh("cpu", (contexts, tensors), mesh_dim_names=("cp", "tp"))
    whole, batches, max_norm = load(name)
    shapes = {n: tuple(p.shape) for n, p in whole.named_parameters()}
    rows = Rows(mesh["cp"].get_group(), batches[0][0].shape[1])
    AttentionInterface.register("gathered", rows.attend)
    how = {"attn_implementation": "gathered"} if contexts > 1 else {}
    model = load(name, **(how | {"tp_plan": "auto", "device_mesh": mesh["tp"]} if tensors > 1 else how))[0]
    parameters = Parameters(model, shapes, mesh["tp"].get_group())
    assert (len(parameters.parts) > 6) == (tensors > 1)
    optimizer = optimizer_of(parameters.named)
    result = {"losses": [], "grad_norms": []}
    for step in range(STRATEGY_STEPS):
        optimizer.zero_grad()
        first = step * STRATEGY_MICRO_BATCHES
        micro_batches = [batches[i % len(batches)] for i in range(first, first + STRATEGY_MICRO_BATCHES)]
        counted = count(micro_batches)
        total = torch.zeros((), dtype=torch.float64)
        for inputs, targets in micro_batches:
            logits = model(input_ids=inputs[:, rows.own], position_ids=rows.own[None], use_cache=False).logits
            nll = loss_sum(own(logits), targets[:, rows.own])
            (nll / counted).backward()
            total += nll.detach()
        dist.all_reduce(total, group=rows.group)
        for _, tensor in parameters.named:
            dist.all_reduce(own(tensor.grad), group=rows.group)
        result["losses"].append(float(total) / counted)
        result["grad_norms"].append(parameters.clip(max_norm))
        optimizer.step()
    return result


# ---- layers ------------------------------------------------------------------------------------------------


class Stage(torch.nn.Module):
    """Successive layers of a model like llama, with the embedding before the first or the head behind the last."""

    def __init__(self, model, idx, count):
        super().__init__()
        inner, layers = model.model, model.model.layers
        self.layers = layers[len(layers) * idx // count:len(layers) * (idx + 1) // count]
        self.embed_tokens = inner.embed_tokens if idx == 0 else None
        self.norm, self.head = (inner.norm, model.lm_head) if idx + 1 == count else (None, None)
        self.rotary = inner.rotary_emb

    def forward(self, x):
        x = self.embed_tokens(x) if self.embed_tokens is not None else x
        positions = torch.arange(x.shape[1])[None]
        mask = torch.full((x.shape[1], x.shape[1]), -math.inf).triu(1)[None, None]
        angles = self.rotary(x, positions)
        for layer in self.layers:
            x = layer(x, attention_mask=mask, position_ids=positions, position_embeddings=angles)
        return self.head(self.norm(x)) if self.head is not None else x


def train_pipe(name, stages):
    rank = dist.get_rank()
    model, batches, max_norm = load(name)
    stage = Stage(model, rank, stages)
    named = list(stage.named_parameters())
    counted = 1
    schedule = Schedule1F1B(PipelineStage(stage, rank, stages, torch.device("cpu")), STRATEGY_MICRO_BATCHES,
                            scale_grads=False, loss_fn=lambda logits, targets: loss_sum(logits, targets) / counted)
    optimizer = optimizer_of(named)
    result = {"losses": [], "grad_norms": []}
    for step in range(STRATEGY_STEPS):
        optimizer.zero_grad()
        first = step * STRATEGY_MICRO_BATCHES
        micro_batches = [batches[i % len(batches)] for i in range(first, first + STRATEGY_MICRO_BATCHES)]
        counted = count(micro_batches)
        inputs, targets = (torch.cat([each[k] for each in micro_batches]) for k in range(2))
        losses = []
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets, losses=losses)
        loss = torch.stack([torch.zeros(())] + [each.detach() for each in losses]).double().sum()
        square = sum(p.grad.double().square().sum() for _, p in named)
        dist.all_reduce(loss)
        dist.all_reduce(square)
        norm = math.sqrt(square)
        for _, tensor in named:
            tensor.grad.mul_(min(1.0, max_norm / (norm + 1e-6)))
        result["losses"].append(float(loss))
        result["grad_norms"].append(norm)
        optimizer.step()
    return result


# ---- experts -----------------------------------------------------------------------------------------------


class Experts(torch.nn.Module):
    """Those of one process, for the rows of all in its group. Nothing is dropped."""

    def __init__(self, experts, group):
        super().__init__()
        self.group, self.ranks, self.act_fn = group, dist.get_world_size(group), experts.act_fn
        self.each = experts.num_experts // self.ranks
        first = dist.get_rank(group) * self.each
        self.gate_up_proj = torch.nn.Parameter(experts.gate_up_proj[first:first + self.each].detach().clone())
        self.down_proj = torch.nn.Parameter(experts.down_proj[first:first + self.each].detach().clone())

    def swap(self, rows, sent, taken):
        return collectives.all_to_all_single_autograd(rows, taken, sent, self.group)

    def forward(self, hidden, top_k_index, top_k_weights):
        chosen = top_k_index.shape[-1]
        experts, order = top_k_index.flatten().sort(stable=True)
        counts = torch.bincount(experts // self.each, minlength=self.ranks)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self.group)
        sent, taken = counts.tolist(), theirs.tolist()
        rows = self.swap(hidden[order // chosen], sent, taken)
        of = torch.empty(sum(taken), dtype=experts.dtype)
        dist.all_to_all_single(of, experts % self.each, taken, sent, group=self.group)
        made = torch.zeros_like(rows)
        for i in range(self.each):
            at = (of == i).nonzero().flatten()
            gate, up = (rows[at] @ self.gate_up_proj[i].T).chunk(2, dim=-1)
            made = made.index_copy(0, at, (self.act_fn(gate) * up) @ self.down_proj[i].T)
        back = self.swap(made, taken, sent)
        weighed = back * top_k_weights.flatten()[order, None]
        return torch.zeros_like(hidden).index_add(0, order // chosen, weighed)


def train_experts(name, ranks, experts):
    """Processes have successive runs of a step's micro-batches; gradients of experts are summed over those that have
    the same, all others over all."""
    group, _ = dist.new_subgroups(group_size=experts)
    same, _ = dist.new_subgroups_by_enumeration([list(range(i, ranks, experts)) for i in range(experts)])
    model, batches, max_norm = load(name)
    shapes = {n: tuple(p.shape) for n, p in model.named_parameters()}
    for layer in model.model.layers:
        layer.mlp.experts = Experts(layer.mlp.experts, group)
    parameters = Parameters(model, shapes, group)
    assert len(parameters.parts) == 2 * len(model.model.layers)
    optimizer = optimizer_of(parameters.named)
    result = {"losses": [], "grad_norms": []}
    for step in range(STRATEGY_STEPS):
        optimizer.zero_grad()
        first, each = step * STRATEGY_MICRO_BATCHES, STRATEGY_MICRO_BATCHES // ranks
        micro_batches = [batches[i % len(batches)] for i in range(first, first + STRATEGY_MICRO_BATCHES)]
        counted = count(micro_batches)
        total = torch.zeros((), dtype=torch.float64)
        for inputs, targets in micro_batches[dist.get_rank() * each:(dist.get_rank() + 1) * each]:
            nll = loss_sum(model(input_ids=inputs, use_cache=False).logits, targets)
            (nll / counted).backward()
            total += nll.detach()
        dist.all_reduce(total)
        for n, tensor in parameters.named:
            dist.all_reduce(tensor.grad, group=same if n in parameters.parts else None)
        result["losses"].append(float(total) / counted)
        result["grad_norms"].append(parameters.clip(max_norm))
        optimizer.step()
    return result


# ---- runs --------------------------------------------------------------------------------------------------


def processes_of(strategy):
    return math.prod(strategy[1:5])


def train_strategy(rank, strategy, folder):
    name, tensors, contexts, pipe, data, experts = strategy
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes_of(strategy)))
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=processes_of(strategy))
    if experts > 1:
        result = train_experts(name, data, experts)
    else:
        result = train_pipe(name, pipe) if pipe > 1 else train_divided(name, tensors, contexts)
    if rank == 0:
        with open(os.path.join(folder, "result"), "w", encoding="utf-8") as file:
            json.dump(result, file)
    dist.barrier()
    dist.destroy_process_group()


def run_strategy(strategy):
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train_strategy, (strategy, folder), nprocs=processes_of(strategy))
        with open(os.path.join(folder, "result"), encoding="utf-8") as file:
            return {**dict(zip(STRATEGY_KEYS, strategy)), **json.load(file)}


def write_strategies(path):
    runs = []
    for strategy in STRATEGIES:
        runs.append(run_strategy(strategy))
        print(f"{strategy}: loss {runs[-1]['losses'][0]:.6f} to {runs[-1]['losses'][-1]:.6f}", flush=True)
    content = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
               "steps": STRATEGY_STEPS, "micro_batches": STRATEGY_MICRO_BATCHES, "learning_rate": LEARNING_RATE}
    with open(path, "w", encoding="utf-8") as file:
        head = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in content.items())
        file.write("{\n" + head + '"runs": [\n' + ",\n".join(json.dumps(each) for each in runs) + "\n]\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default=os.path.join(GOLDEN, "ranks.json"))
    parser.add_argument("--powersgd", default=os.path.join(GOLDEN, "powersgd.json"))
    parser.add_argument("--strategies", default=os.path.join(GOLDEN, "strategies.json"))
    args = parser.parse_args()
    write_strategies(args.strategies)
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
