#!/usr/bin/env python3
"""Times whole training steps of a Llama model in PyTorch, for comparison with `offload train` at the same shape.

    python3 tools/dev/peers/bench_gpu_peers.py --config config.json [--mode hbm|fsdp2|deepspeed|all] [--batch N] [--seq N]
        [--micro N] [--steps N] [--recompute] [--compile] [--device cuda|cpu] [--limit SECONDS]

The model is plain PyTorch in bfloat16 with scaled_dot_product_attention and random weights and data. The optimizer is
AdamW over float32 master weights, gradients are clipped by norm, and a step has `micro` micro-batches.

    hbm        everything in device memory: fused AdamW on master weights, bfloat16 weights copied from them
    fsdp2      fully_shard of every block on one rank with CPUOffloadPolicy: masters and optimizer in host memory
    deepspeed  ZeRO-3 with parameters and optimizer on the CPU

Each mode runs in its own process and prints one line of JSON: name, value in tokens per second (median of the steps
after the second), peak device memory in bytes. A mode that cannot run prints the reason on stderr; exit status 77
means that none could.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True)
    parser.add_argument("--mode", choices=["hbm", "fsdp2", "deepspeed", "all"], default="all")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--micro", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--recompute", action="store_true", help="keep only the input of each block, and recompute the rest")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--limit", type=int, default=240, help="time limit of one mode in seconds")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def build(torch, config, recompute):
    """Builds the model, with parameters in float32 on the default device."""
    nn, functional = torch.nn, torch.nn.functional
    hidden, width = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim, eps = config.get("head_dim") or hidden // heads, config.get("rms_norm_eps", 1e-5)

    def rotate(x, angles):
        first, second = x.float().chunk(2, dim=-1)
        cosine, sine = angles
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(hidden, eps=eps), nn.RMSNorm(hidden, eps=eps)
            self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * head_dim, bias=False)
            self.out = nn.Linear(heads * head_dim, hidden, bias=False)
            self.gate_up = nn.Linear(hidden, 2 * width, bias=False)
            self.down = nn.Linear(width, hidden, bias=False)

        # Recomputed within the module: what fully_shard does before its forward is not done again.
        def forward(self, x, cosine, sine):
            if recompute:
                return torch.utils.checkpoint.checkpoint(self.compute, x, cosine, sine, use_reentrant=False)
            return self.compute(x, cosine, sine)

        def compute(self, x, cosine, sine):
            batch, seq, _ = x.shape
            qkv = self.qkv(self.norm1(x)).view(batch, seq, heads + 2 * kv_heads, head_dim).transpose(1, 2)
            q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
            q, k = rotate(q, (cosine, sine)), rotate(k, (cosine, sine))
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)
            x = x + self.out(attended.transpose(1, 2).reshape(batch, seq, heads * head_dim))
            gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
            return x + self.down(functional.silu(gate) * up)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(config["vocab_size"], hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(config["num_hidden_layers"]))
            self.norm = nn.RMSNorm(hidden, eps=eps)
            self.head = nn.Linear(hidden, config["vocab_size"], bias=False)
            if config.get("tie_word_embeddings"):
                self.head.weight = self.embed.weight

        def forward(self, ids, targets):
            place = torch.arange(ids.shape[1], device=ids.device, dtype=torch.float32)
            base = config.get("rope_theta", 10000.0)
            power = torch.arange(0, head_dim, 2, device=ids.device, dtype=torch.float32) / head_dim
            angles = torch.outer(place, base ** -power)
            cosine, sine = angles.cos(), angles.sin()
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x, cosine, sine)
            logits = self.head(self.norm(x))
            return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    torch.manual_seed(1)
    model = Model()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.02)
    return model


def batches(torch, args, config):
    generator = torch.Generator().manual_seed(2)
    shape = (args.micro, args.batch, args.seq + 1)
    ids = torch.randint(0, config["vocab_size"], shape, generator=generator).to(args.device)
    return [(micro[:, :-1].contiguous(), micro[:, 1:].contiguous()) for micro in ids]


def in_memory(torch, args, config):
    with torch.device(args.device):
        model = build(torch, config, args.recompute)
    masters = [parameter.detach().clone() for parameter in model.parameters()]
    model = model.to(torch.bfloat16)
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(masters, lr=1e-4, weight_decay=0.01, fused=True)
    run = torch.compile(model) if args.compile else model
    data = batches(torch, args, config)

    def step():
        loss = 0.0
        for ids, targets in data:
            part = run(ids, targets) / args.micro
            part.backward()
            loss += part.detach()
        for master, weight in zip(masters, weights):
            master.grad = weight.grad.float()
            weight.grad = None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_copy_(weights, masters)
        return loss.item()

    return step


def one_rank(torch, args):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if args.device == "cuda" else "gloo")


def fsdp2(torch, args, config):
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    one_rank(torch, args)
    mesh = torch.distributed.init_device_mesh(args.device, (1,))
    model = build(torch, config, args.recompute)
    policy = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=args.device == "cuda"),
    }
    for block in model.blocks:
        fully_shard(block, **policy)
    fully_shard(model, **policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    data = batches(torch, args, config)

    def step():
        loss = 0.0
        for idx, (ids, targets) in enumerate(data):
            model.set_requires_gradient_sync(idx + 1 == len(data))
            part = model(ids, targets) / args.micro
            part.backward()
            loss += part.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def deepspeed_zero3(torch, args, config):
    import deepspeed
    one_rank(torch, args)
    settings = {
        "train_micro_batch_size_per_gpu": args.batch,
        "gradient_accumulation_steps": args.micro,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "offload_param": {"device": "cpu", "pin_memory": True},
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
        },
    }
    model = build(torch, config, args.recompute)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    data = batches(torch, args, config)

    def step():
        loss = 0.0
        for ids, targets in data:
            part = engine(ids, targets)
            engine.backward(part)
            engine.step()
            loss += part.detach() / args.micro
        return loss.item()

    return step


def measure(args):
    """Measures one mode; runs in its own process."""
    import torch
    import torch.utils.checkpoint
    with open(args.config, encoding="utf-8") as file:
        config = json.load(file)
    if args.device == "cuda" and not torch.cuda.is_available():
        print(f"{args.mode}: skipped: torch sees no GPU", file=sys.stderr)
        return 77
    modes = {"hbm": in_memory, "fsdp2": fsdp2, "deepspeed": deepspeed_zero3}
    try:
        step = modes[args.mode](torch, args, config)
    except ImportError as error:
        print(f"{args.mode}: skipped: {error}", file=sys.stderr)
        return 77
    seconds, losses = [], []
    for _ in range(args.steps):
        begin = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds[2:] or seconds)
    most = torch.cuda.max_memory_allocated() if args.device == "cuda" else 0
    print(json.dumps({"name": f"torch_{args.mode}", "value": args.batch * args.seq * args.micro / median,
                      "unit": "tokens/s", "seconds": median, "device_bytes": most, "losses": losses,
                      "torch": torch.__version__}), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return 0


def main():
    args = parse()
    if args.inside:
        return measure(args)
    worked = False
    for mode in ["hbm", "fsdp2", "deepspeed"] if args.mode == "all" else [args.mode]:
        words = [word for word in sys.argv[1:] if word != "--inside"]
        if "--mode" in words:
            at = words.index("--mode")
            del words[at:at + 2]
        try:
            done = subprocess.run([sys.executable, os.path.abspath(__file__), *words, "--mode", mode, "--inside"],
                                  timeout=args.limit, stderr=subprocess.PIPE, text=True, check=False)
        except subprocess.TimeoutExpired:
            print(f"{mode}: skipped: not finished within {args.limit} s", file=sys.stderr)
            continue
        worked = worked or done.returncode == 0
        if done.returncode == 77:
            sys.stderr.write(done.stderr)
        elif done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            print(f"{mode}: skipped: {lines[-1]}", file=sys.stderr)
    return 0 if worked else 77


if __name__ == "__main__":
    sys.exit(main())
