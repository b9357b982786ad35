#!/usr/bin/env python3
"""Makes tests/golden/config_keys.json: which keys of config.json change what transformers computes.

    python3 tests/golden/make/golden_config_keys.py [--output tests/golden] [CASE...]

With cases, the rows of others stay as they are.

Of every family's golden case each key of config.json, and each key that published folders have beside those, is left
out, and given other values. Each such file is a row: the case, the file's changes, and what they do: nothing ("same"),
other logits ("changed"), tensors of other shapes ("shapes"), or an error of transformers ("error").
"""

import argparse
import copy
import json
import os
import warnings

import torch
import transformers

CASES = ("llama_bias", "mistral_window", "qwen2", "qwen3", "qwen3_windows", "smollm3", "phi3_long", "olmo2", "olmo3",
         "gemma2", "gemma3", "granite", "cohere2", "exaone4", "gpt2_small", "mixtral", "qwen3_moe", "qwen2_moe", "olmoe", "gpt_oss", "glm4_moe",
         "deepseek_v3", "lora_deepseek", "granitemoe", "qwen2_moe_windows")
# Bookkeeping that no model reads.
SKIPPED = ("architectures", "dtype", "transformers_version", "model_type", "_attn_implementation", "id2label", "label2id")
# What published folders have beside what version 5 writes, and what other families have.
PUBLISHED = {
    "rope_theta": [123.0], "rope_scaling": [{"rope_type": "linear", "factor": 2.0}], "rope_local_base_freq": [77.0],
    "sliding_window": [None, 3], "use_sliding_window": [True, False], "max_window_layers": [0, 1],
    "sliding_window_pattern": [1, 2, 3], "_sliding_window_pattern": [2], "layer_types": [],
    "attention_bias": [True, False], "mlp_bias": [True, False], "qkv_bias": [True], "head_dim": [4, 32],
    "query_pre_attn_scalar": [4, 100], "attn_logit_softcapping": [None, 0.5], "final_logit_softcapping": [None, 0.5],
    "attention_multiplier": [0.1], "embedding_multiplier": [3.0], "residual_multiplier": [0.5],
    "logits_scaling": [2.0], "logit_scale": [0.5], "partial_rotary_factor": [0.5], "attention_dropout": [0.3],
    "hidden_act": ["gelu", "silu", "relu"], "hidden_activation": ["gelu", "silu", "gelu_pytorch_tanh", None],
    "rms_norm_eps": [0.1], "layer_norm_eps": [0.1], "tie_word_embeddings": [True, False],
    "no_rope_layer_interval": [3], "no_rope_layers": [], "pretraining_tp": [2], "rope_interleaved": [True],
    "use_bidirectional_attention": [True], "is_causal": [False], "cache_implementation": ["hybrid"],
    "use_qk_norm": [True], "qk_layernorm": [True], "num_local_experts": [4], "clip_qkv": [0.1],
    "scale_attn_weights": [False], "scale_attn_by_inverse_layer_idx": [True], "reorder_and_upcast_attn": [True],
    "num_experts": [4], "norm_topk_prob": [True, False], "decoder_sparse_step": [1, 3], "mlp_only_layers": [[], [0], None],
    "experts_per_token": [1], "initial_context_length": [8], "router_jitter_noise": [0.0], "n_group": [2],
    "topk_group": [1], "n_shared_experts": [2], "first_k_dense_replace": [0, 2], "routed_scaling_factor": [2.0],
    "rope_interleave": [True, False], "q_lora_rank": [None, 8], "v_head_dim": [16], "moe_layer_freq": [1],
    "scoring_func": ["sigmoid", "softmax"], "topk_method": ["greedy", "noaux_tc"],
    "swiglu_limit": [7.0], "router_aux_loss_coef": [0.9],
    "initializer_range": [0.5], "use_cache": [False], "max_position_embeddings": [128],
}


def variants_of(key, value):
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value] if value else [1]
    if isinstance(value, float):
        return [1.5 * value if value else 0.5]
    if isinstance(value, str):
        return ["gelu"]
    if isinstance(value, list) and value and isinstance(value[0], str):
        return [value[1:] + value[:1], ["full_attention"] * len(value), ["sliding_attention"] * len(value)]
    if isinstance(value, list) and value:
        return [[1 - x for x in value]]
    if isinstance(value, dict):
        out = []
        for name, inner in value.items():
            for other in [None] if name == "rope_type" else variants_of(name, inner):
                changed = copy.deepcopy(value)
                if other is None:
                    changed[name] = "dynamic"
                    changed.setdefault("factor", 2.0)
                else:
                    changed[name] = other
                out.append(changed)
        return out
    return []


def logits_of(config, weights, ids):
    """The effect's name where there are no logits."""
    try:
        parsed = transformers.AutoConfig.for_model(**copy.deepcopy(config))
        model = transformers.AutoModelForCausalLM.from_config(parsed, attn_implementation="eager", dtype=torch.float32)
    except Exception:
        return "error"
    model.tie_weights()
    names = dict(model.state_dict())
    if {n: t.shape for n, t in names.items()} != {n: t.shape for n, t in weights.items()}:
        return "shapes"
    model.load_state_dict(weights)
    model.tie_weights()
    try:
        with torch.no_grad():
            return model.eval()(input_ids=ids, use_cache=False).logits
    except Exception:
        return "error"


def rows_of(case, folder):
    with open(os.path.join(folder, case, "config.json"), encoding="utf-8") as file:
        base = {k: v for k, v in json.load(file).items() if k not in SKIPPED or k == "model_type"}
    with open(os.path.join(folder, case, "golden.json"), encoding="utf-8") as file:
        golden = json.load(file)
    ids = torch.tensor(golden["inputs"][0][0]).reshape(golden["batch"], golden["seq"])
    model = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(folder, case), dtype=torch.float32,
                                                              attn_implementation="eager")
    weights = model.state_dict()
    with torch.no_grad():
        exact = model.eval()(input_ids=ids, use_cache=False).logits
    files = [({}, [key]) for key in base if key != "model_type"]
    for key in sorted(set(base) | set(PUBLISHED)):
        if key == "model_type":
            continue
        values = variants_of(key, base.get(key))
        values += [v for v in PUBLISHED.get(key, []) if v not in values and v != base.get(key)]
        files += [({key: value}, []) for value in values]
    for changes, missing in files:
        config = {k: v for k, v in {**base, **changes}.items() if k not in missing}
        got = logits_of(config, weights, ids)
        if not isinstance(got, str):
            got = "same" if got.shape == exact.shape and torch.equal(got, exact) else "changed"
        yield {"case": case, "set": changes, "without": missing, "effect": got}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--output", default=os.path.join(here, ".."))
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity(transformers.utils.logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()
    path = os.path.join(args.output, "config_keys.json")
    kept = []
    if args.cases:
        with open(path, encoding="utf-8") as file:
            kept = json.load(file)
    rows = [row for case in CASES for row in (
        rows_of(case, os.path.join(here, "..")) if case in args.cases or not args.cases
        else [row for row in kept if row["case"] == case])]
    lines = [json.dumps(row, separators=(",", ":")) for row in rows]
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(lines) + "\n]\n")
    for effect in ("same", "changed", "shapes", "error"):
        print(effect, sum(row["effect"] == effect for row in rows))


if __name__ == "__main__":
    main()
