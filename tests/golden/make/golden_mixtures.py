"""Makes tests/golden/mixtures.json: what transformers computes in blocks with a mixture of experts, one case for each way
to route: logits, the chosen, their weights, the output, and every gradient; the load-balancing loss over two layers with
padding; attention with sinks; MXFP4 decoded. In float32, experts one after the other ("eager").

Usage: golden_mixtures.py OUTPUT, with transformers >= 5.6 (the loss of earlier 5.x is wrong). Seeds are redrawn until no choice
is closer than 1e-3."""

import json
import sys

import torch
import transformers
from transformers import AutoConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeMoE
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP, eager_attention_forward
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock, load_balancing_loss_func
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

ROWS, HIDDEN, WIDTH = 11, 8, 6
MARGIN = 1e-3


def draw(shape, scale=1.0):
    """Multiples of 1/64, which JSON writes in few digits and float32 holds."""
    return torch.round(torch.randn(shape) * scale * 64) / 64


def numbers(tensor):
    return [float(f"{value:.9g}") for value in tensor.detach().float().reshape(-1).tolist()]


def config_of(kind, **own):
    config = AutoConfig.for_model(kind, hidden_size=HIDDEN, num_attention_heads=2, num_key_value_heads=2, **own)
    config._experts_implementation = "eager"
    config._experts_implementation_internal = "eager"
    return config


# name, block, config, router of kernels/ops_moe.h
CASES = [
    ("mixtral", MixtralSparseMoeBlock,
     dict(num_local_experts=5, num_experts_per_tok=2, intermediate_size=WIDTH),
     dict(experts=5, chosen=2, scores="softmax", renormalise=True)),
    ("qwen3_moe", Qwen3MoeSparseMoeBlock,
     dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=WIDTH, norm_topk_prob=True),
     dict(experts=8, chosen=3, scores="softmax", renormalise=True)),
    ("olmoe", OlmoeSparseMoeBlock,
     dict(num_experts=6, num_experts_per_tok=2, intermediate_size=WIDTH, norm_topk_prob=False),
     dict(experts=6, chosen=2, scores="softmax", renormalise=False)),
    ("gpt_oss", GptOssMLP,
     dict(num_local_experts=6, num_experts_per_tok=2, intermediate_size=WIDTH),
     dict(experts=6, chosen=2, scores="chosen", renormalise=False)),
    ("deepseek_v2", DeepseekV2Moe,
     dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=WIDTH, n_group=4, topk_group=2,
          topk_method="group_limited_greedy", routed_scaling_factor=1.5, n_shared_experts=1),
     dict(experts=8, chosen=3, scores="softmax", renormalise=False, groups=4, groups_kept=2, scale=1.5)),
    ("deepseek_v3", DeepseekV3MoE,
     dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=WIDTH, n_group=4, topk_group=2,
          routed_scaling_factor=2.5, norm_topk_prob=True, n_shared_experts=1),
     dict(experts=8, chosen=3, scores="sigmoid", renormalise=True, groups=4, groups_kept=2, best_two=True, eps=1e-20,
          scale=2.5)),
    ("glm4_moe", Glm4MoeMoE,
     dict(n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=WIDTH, n_group=1, topk_group=1,
          routed_scaling_factor=1.0, norm_topk_prob=True, n_shared_experts=1),
     dict(experts=6, chosen=2, scores="sigmoid", renormalise=True, eps=1e-20)),
]


def gap_of(router, logits, bias):
    """How far the closest choice is from another; groups have a gap of their own."""
    scores = logits.sigmoid() if router["scores"] == "sigmoid" else logits
    scores = scores + (0 if bias is None else bias)
    groups = router.get("groups", 1)
    gap = float("inf")
    if groups > 1:
        split = scores.view(len(scores), groups, -1)
        rank = split.topk(2, -1)[0].sum(-1) if router.get("best_two") else split.max(-1)[0]
        top = rank.sort(-1, descending=True)
        kept = router["groups_kept"]
        gap = (top[0][:, kept - 1] - top[0][:, kept]).min().item()
        mask = torch.zeros_like(rank).scatter_(1, top[1][:, :kept], 1).bool()
        scores = scores.masked_fill(~mask.repeat_interleave(scores.shape[1] // groups, 1), float("-inf"))
    top = scores.sort(-1, descending=True)[0]
    return min(gap, (top[:, router["chosen"] - 1] - top[:, router["chosen"]]).min().item())


def route(name, block, x):
    gate = block.router if name == "gpt_oss" else block.gate
    if name.startswith(("deepseek", "glm4")):
        logits = torch.nn.functional.linear(x, gate.weight)
        ids, weights = block.route_tokens_to_experts(logits[None] if name == "deepseek_v2" else logits)
        return gate, logits, ids, weights
    logits, weights, ids = gate(x)
    return gate, logits, ids, weights


def block_case(name, module, own, router):
    for seed in range(1000):
        torch.manual_seed(seed)
        block = module(config_of(name, **own)).float()
        for parameter in block.parameters():
            parameter.data = draw(parameter.shape, 0.5)
        bias = None
        if "deepseek_v3" in name or "glm4" in name:
            block.gate.e_score_correction_bias.data = draw(router["experts"], 0.5)
            bias = block.gate.e_score_correction_bias
        block.num_experts = router["experts"]  # which transformers 5.12 forgets in deepseek_v2
        scale = 8.0 if name == "gpt_oss" else 1.0  # so that the clamp at 7 is hit
        x, dy = draw((ROWS, HIDDEN)).requires_grad_(), draw((ROWS, HIDDEN))
        block.experts.gate_up_proj.data *= scale
        gate, logits, ids, weights = route(name, block, x)
        if gap_of(router, logits, bias) > MARGIN:
            break
    y = block.experts(x, ids, weights)
    y.backward(dy)
    order = ids.argsort(-1)
    experts = block.experts
    case = dict(name=name, router=router, rows=ROWS, hidden=HIDDEN, width=WIDTH, x=numbers(x), dy=numbers(dy),
                router_weight=numbers(gate.weight), gate_up=numbers(experts.gate_up_proj),
                down=numbers(experts.down_proj), logits=numbers(logits), chosen=ids.gather(-1, order).reshape(-1).tolist(),
                weights=numbers(weights.gather(-1, order)), y=numbers(y), dx=numbers(x.grad),
                drouter=numbers(gate.weight.grad), dgate_up=numbers(experts.gate_up_proj.grad),
                ddown=numbers(experts.down_proj.grad))
    if bias is not None:
        case["choice_bias"] = numbers(bias)
    if name == "gpt_oss":
        case.update(router_bias=numbers(gate.bias), gate_up_bias=numbers(experts.gate_up_proj_bias),
                    down_bias=numbers(experts.down_proj_bias), drouter_bias=numbers(gate.bias.grad),
                    dgate_up_bias=numbers(experts.gate_up_proj_bias.grad),
                    ddown_bias=numbers(experts.down_proj_bias.grad), alpha=experts.alpha, limit=experts.limit)
    return case


def loss_case():
    experts, chosen, rows = 6, 2, 10
    for seed in range(1000):
        torch.manual_seed(seed)
        layers = [draw((rows, experts)).requires_grad_() for _ in range(2)]
        if all(gap_of(dict(scores="softmax", chosen=chosen), layer, None) > MARGIN for layer in layers):
            break
    mask = torch.ones(2, rows // 2)
    mask[1, 3:] = 0
    loss = load_balancing_loss_func(tuple(layers), experts, chosen, mask)
    loss.backward()
    return dict(experts=experts, chosen=chosen, rows=rows, mask=mask.reshape(-1).int().tolist(), loss=loss.item(),
                logits=[numbers(layer) for layer in layers], dlogits=[numbers(layer.grad) for layer in layers])


def sinks_case():
    torch.manual_seed(2)
    batch, seq, heads, kv_heads, dim = 2, 7, 4, 2, 4
    q, k, v = (draw((batch, n, seq, dim)).requires_grad_() for n in (heads, kv_heads, kv_heads))
    module = torch.nn.Module()
    module.sinks = torch.nn.Parameter(draw(heads) + 1)
    module.num_key_value_groups = heads // kv_heads
    mask = torch.full((seq, seq), float("-inf")).triu(1)[None, None]
    out, _ = eager_attention_forward(module, q, k, v, mask, dim**-0.5)
    dout = draw(out.shape)
    out.backward(dout)
    rows = lambda parts: numbers(torch.cat([p.transpose(1, 2) for p in parts], 2))
    return dict(batch=batch, seq=seq, heads=heads, kv_heads=kv_heads, head_dim=dim, qkv=rows((q, k, v)),
                sinks=numbers(module.sinks), dout=numbers(dout), out=numbers(out), dqkv=rows((q.grad, k.grad, v.grad)),
                dsinks=numbers(module.sinks.grad))


def mxfp4_case():
    """Two experts of three outputs, 64 inputs; back from transformers' (experts, in, out)."""
    torch.manual_seed(3)
    blocks = torch.randint(0, 256, (2, 3, 2, 16), dtype=torch.uint8)
    scales = torch.randint(110, 140, (2, 3, 2), dtype=torch.uint8)
    values = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16).transpose(1, 2)
    return dict(blocks=blocks.reshape(-1).tolist(), scales=scales.reshape(-1).tolist(), values=numbers(values))


def main():
    out = dict(made_by=f"tests/golden/make/golden_mixtures.py, transformers {transformers.__version__}, torch {torch.__version__}",
               blocks=[block_case(*case) for case in CASES], loss=loss_case(), sinks=sinks_case(), mxfp4=mxfp4_case())
    with open(sys.argv[1], "w") as file:
        json.dump(out, file, separators=(",", ":"))
        file.write("\n")


main()
