#!/usr/bin/env python3
"""Makes the reference results in tests/golden/ with PyTorch and transformers.

    python3 tests/golden/make/golden.py [--output tests/golden] [CASE...]

Needs torch, transformers, peft and safetensors; the build and the tests need none of them. Each case is a small
model with random weights, trained for ten steps. The reference runs in float64, so it has no rounding error
worth naming; transformers itself computes norms, rotary angles and softmax in float32 whatever the model's
dtype, so these three are replaced for that run. The same ten steps in float32 by the untouched library check
the replacement, and what they differ by is recorded as a yardstick for tolerances.
"""

import argparse
import contextlib
import copy
import fnmatch
import json
import math
import os
import shutil

import numpy as np
import peft
import safetensors.torch
import torch
import transformers
from transformers.models.cohere2 import modeling_cohere2
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.exaone4 import modeling_exaone4
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.glm4_moe import modeling_glm4_moe
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.granite import modeling_granite
from transformers.models.granitemoe import modeling_granitemoe
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.mixtral import modeling_mixtral
from transformers.models.olmo2 import modeling_olmo2
from transformers.models.olmo3 import modeling_olmo3
from transformers.models.olmoe import modeling_olmoe
from transformers.models.phi3 import modeling_phi3
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen2_moe import modeling_qwen2_moe
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_moe import modeling_qwen3_moe
from transformers.models.smollm3 import modeling_smollm3

STEPS = 10
WARMUP_STEPS = 3
LEARNING_RATE = 1e-3
MIN_LR_RATIO = 0.1
BETAS = (0.9, 0.95)
EPS = 1e-8
WEIGHT_DECAY = 0.1
IGNORED = -1
# Of tensors above SAMPLE_ABOVE elements every SAMPLE_STRIDE-th is stored; it is prime to all row lengths.
SAMPLE_STRIDE = 7
SAMPLE_ABOVE = 2048
# The last chosen logit of a router and the first that is not differ by at least so much: else rounding chooses
# another expert, and nothing can be compared. In the first step, which also runs in bfloat16, and in all.
FIRST_MARGIN = 0.08
MARGIN = 5e-4
# In the first step, which also runs in 16 bits, no query, key or value lies closer to the bound that it is clamped to, as a
# share of it: else rounding decides whether its gradient passes.
CLAMP_MARGIN = 4e-3


def llama(kind=transformers.LlamaConfig, **sizes):
    defaults = {"max_position_embeddings": 64, "attention_dropout": 0.0, "rms_norm_eps": 1e-5,
                "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None, "rope_parameters": rope(10000.0)}
    return kind(**{**defaults, **sizes})


def rope(theta):
    return {"rope_type": "default", "rope_theta": theta}


def llama3_rope(theta, factor, low, high, original):
    return {"rope_type": "llama3", "rope_theta": theta, "factor": factor, "low_freq_factor": low,
            "high_freq_factor": high, "original_max_position_embeddings": original}


def longrope(pairs, part):
    return {"rope_type": "longrope", "rope_theta": 1000.0, "partial_rotary_factor": part,
            "short_factor": [1.0 + 0.05 * i for i in range(pairs)],
            "long_factor": [1.5 + 0.4 * i for i in range(pairs)]}


def gpt_oss(**sizes):
    yarn = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 0.5,
            "truncate": False, "original_max_position_embeddings": 16}
    return llama(transformers.GptOssConfig, vocab_size=61, hidden_size=32, intermediate_size=32, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=12, tie_word_embeddings=False, sliding_window=5,
                 rope_parameters=yarn, **sizes)


def latent(kind, **sizes):
    """The first layer has an MLP; the rotated part of a head is not its half."""
    return llama(kind, hidden_size=36, num_attention_heads=3, num_key_value_heads=3, intermediate_size=40,
                 kv_lora_rank=20, qk_rope_head_dim=8, qk_nope_head_dim=12, moe_intermediate_size=12, **sizes)


def gpt2(**sizes):
    return transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1,
                                   eos_token_id=2, **sizes)


CASES = {
    "llama_tied_gqa": {
        "config": lambda: llama(vocab_size=67, hidden_size=48, num_hidden_layers=3, num_attention_heads=6,
                                num_key_value_heads=2, head_dim=8, intermediate_size=88,
                                tie_word_embeddings=True),
        "seed": 1, "seq": 29, "batch": 2, "micro_batches": 3, "max_grad_norm": 0.5},
    "llama_untied_odd": {
        "config": lambda: llama(vocab_size=131, hidden_size=40, num_hidden_layers=2, num_attention_heads=5,
                                num_key_value_heads=5, head_dim=12, intermediate_size=52,
                                tie_word_embeddings=False, rms_norm_eps=1e-6, rope_parameters=rope(5000.0)),
        "seed": 2, "seq": 33, "batch": 1, "micro_batches": 2, "max_grad_norm": 1000.0},
    "llama_bias": {
        "config": lambda: llama(vocab_size=59, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                num_key_value_heads=2, head_dim=8, intermediate_size=48,
                                tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
        "seed": 3, "seq": 24, "batch": 2, "micro_batches": 2, "max_grad_norm": 2.8, "ignored_share": 0.2},
    "gpt2_small": {
        "config": lambda: gpt2(n_embd=36, n_layer=3, n_head=3, n_positions=64, vocab_size=89),
        "seed": 4, "seq": 31, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "gpt2_b1": {
        "config": lambda: gpt2(n_embd=24, n_layer=2, n_head=2, n_positions=32, vocab_size=71),
        "seed": 5, "seq": 32, "batch": 1, "micro_batches": 1, "max_grad_norm": 1000.0},
    "mistral_window": {
        "config": lambda: llama(transformers.MistralConfig, vocab_size=83, hidden_size=48, num_hidden_layers=2,
                                num_attention_heads=6, num_key_value_heads=2, head_dim=8, intermediate_size=56,
                                tie_word_embeddings=False, sliding_window=7),
        "seed": 6, "seq": 30, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "qwen2": {  # the last 30 ids of the vocabulary never occur; the first layer sees all, the others a window
        "config": lambda: llama(transformers.Qwen2Config, vocab_size=127, hidden_size=48, num_hidden_layers=3,
                                num_attention_heads=6, num_key_value_heads=2, intermediate_size=64,
                                tie_word_embeddings=True, rms_norm_eps=1e-6, use_sliding_window=True,
                                sliding_window=9, max_window_layers=1, rope_parameters=rope(100.0)),
        "seed": 7, "used_vocab": 97, "seq": 28, "batch": 2, "micro_batches": 2, "max_grad_norm": 1000.0},
    "qwen3": {
        "config": lambda: llama(transformers.Qwen3Config, vocab_size=101, hidden_size=40, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=60,
                                tie_word_embeddings=False, rms_norm_eps=1e-6),
        "seed": 8, "seq": 27, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "qwen3_windows": {  # every third layer sees all, the others a window
        "config": lambda: llama(transformers.Qwen3Config, vocab_size=73, hidden_size=32, num_hidden_layers=4,
                                num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=44,
                                tie_word_embeddings=True, use_sliding_window=True, sliding_window=6,
                                layer_types=["sliding_attention", "full_attention", "sliding_attention",
                                             "sliding_attention"]),
        "seed": 10, "seq": 25, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "smollm3": {  # the second and the fourth layer have neither rotary embedding nor a view of all tokens
        "config": lambda: llama(transformers.SmolLM3Config, vocab_size=77, hidden_size=40, num_hidden_layers=4,
                                num_attention_heads=5, num_key_value_heads=1, intermediate_size=48,
                                tie_word_embeddings=True, no_rope_layer_interval=2, use_sliding_window=True,
                                sliding_window=8, rope_parameters=rope(50000.0)),
        "seed": 11, "seq": 26, "batch": 1, "micro_batches": 3, "max_grad_norm": 0.5},
    "phi3_long": {  # q, k, v in one tensor, gate and up in one; three quarters of a head rotate, beyond the first positions
        "config": lambda: llama(transformers.Phi3Config, vocab_size=71, hidden_size=64, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
                                tie_word_embeddings=False, sliding_window=17, original_max_position_embeddings=20,
                                rope_parameters=longrope(6, 0.75)),
        "seed": 12, "seq": 27, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "phi3_short": {  # the same within the first positions, tied
        "config": lambda: llama(transformers.Phi3Config, vocab_size=61, hidden_size=32, num_hidden_layers=2,
                                num_attention_heads=2, num_key_value_heads=2, intermediate_size=40,
                                tie_word_embeddings=True, original_max_position_embeddings=32,
                                rope_parameters=longrope(8, 1.0)),
        "seed": 13, "seq": 24, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "yarn": {
        "config": lambda: llama(transformers.Qwen3Config, vocab_size=67, hidden_size=40, num_hidden_layers=2,
                                num_attention_heads=3, num_key_value_heads=1, head_dim=16, intermediate_size=44,
                                tie_word_embeddings=True,
                                rope_parameters={"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
                                                 "original_max_position_embeddings": 16, "beta_fast": 2.0,
                                                 "beta_slow": 0.5}),
        "seed": 14, "seq": 40, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "linear_rope": {
        "config": lambda: llama(vocab_size=63, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                num_key_value_heads=2, intermediate_size=40, tie_word_embeddings=True,
                                rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5}),
        "seed": 15, "seq": 24, "batch": 2, "micro_batches": 1, "max_grad_norm": 0.5},
    "olmo2": {  # norms behind the halves, and of all queries and all keys as one
        "config": lambda: llama(transformers.Olmo2Config, vocab_size=69, hidden_size=40, num_hidden_layers=3,
                                num_attention_heads=4, num_key_value_heads=2, intermediate_size=52,
                                tie_word_embeddings=False),
        "seed": 21, "seq": 27, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "olmo3": {  # the same, with windows in all layers but the fourth, and biases
        "config": lambda: llama(transformers.Olmo3Config, vocab_size=61, hidden_size=32, num_hidden_layers=5,
                                num_attention_heads=4, num_key_value_heads=4, intermediate_size=40,
                                tie_word_embeddings=False, sliding_window=6, attention_bias=True),
        "seed": 22, "seq": 26, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "gemma2": {  # caps low enough to bend most scores and logits; the root of 40 is no bfloat16
        "config": lambda: llama(transformers.Gemma2Config, vocab_size=73, hidden_size=40, num_hidden_layers=3,
                                num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=44,
                                query_pre_attn_scalar=10, sliding_window=7, attn_logit_softcapping=1.5,
                                final_logit_softcapping=4.0),
        "seed": 23, "seq": 28, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "gemma3": {  # two rotations, of which that of the layers without a window is scaled
        "config": lambda: llama(transformers.Gemma3TextConfig, vocab_size=67, hidden_size=48, num_hidden_layers=4,
                                num_attention_heads=4, num_key_value_heads=1, head_dim=16, intermediate_size=44,
                                query_pre_attn_scalar=50, sliding_window=8,
                                layer_types=["sliding_attention", "full_attention", "sliding_attention",
                                             "full_attention"],
                                rope_parameters={"full_attention": {"rope_type": "linear", "rope_theta": 1000.0,
                                                                    "factor": 4.0},
                                                 "sliding_attention": rope(50.0)}),
        "seed": 24, "seq": 29, "batch": 1, "micro_batches": 3, "max_grad_norm": 0.5},
    "granite": {
        "config": lambda: llama(transformers.GraniteConfig, vocab_size=71, hidden_size=36, num_hidden_layers=3,
                                num_attention_heads=3, num_key_value_heads=1, intermediate_size=48,
                                tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
                                embedding_multiplier=6.0, attention_multiplier=0.4, residual_multiplier=0.22,
                                logits_scaling=3.0),
        "seed": 25, "seq": 27, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "cohere2": {  # both halves read one norm; the last layer has neither rotation nor window
        "config": lambda: llama(transformers.Cohere2Config, vocab_size=59, hidden_size=48, num_hidden_layers=4,
                                num_attention_heads=4, num_key_value_heads=2, intermediate_size=40,
                                sliding_window=7, logit_scale=0.25),
        "seed": 26, "seq": 28, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "exaone4": {  # the second of four layers neither rotates nor has a window
        "config": lambda: llama(transformers.Exaone4Config, vocab_size=65, hidden_size=40, num_hidden_layers=4,
                                num_attention_heads=5, num_key_value_heads=1, intermediate_size=44,
                                tie_word_embeddings=True, sliding_window=7,
                                layer_types=["sliding_attention", "full_attention", "sliding_attention",
                                             "sliding_attention"]),
        "seed": 27, "seq": 26, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "mixtral": {  # an odd number of experts, and windows
        "config": lambda: llama(transformers.MixtralConfig, vocab_size=61, hidden_size=40, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2, intermediate_size=24,
                                tie_word_embeddings=False, sliding_window=7, num_local_experts=5,
                                num_experts_per_tok=2),
        "seed": 101, "seq": 14, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "mixtral_packed": {  # a file that has all experts in one tensor
        "config": lambda: llama(transformers.MixtralConfig, vocab_size=53, hidden_size=32, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=1, intermediate_size=20,
                                tie_word_embeddings=True, num_local_experts=4, num_experts_per_tok=2),
        "seed": 110, "seq": 13, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5, "packed": True},
    "four_mixtral": {  # each of four experts fills whole groups of elements, so that ranks can divide them
        "config": lambda: llama(transformers.MixtralConfig, vocab_size=61, hidden_size=32, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
                                tie_word_embeddings=False, num_local_experts=4, num_experts_per_tok=2,
                                initializer_range=0.2),
        "seed": 202, "seq": 6, "batch": 1, "micro_batches": 4, "max_grad_norm": 0.5},
    "four_qwen2_moe": {  # whatever groups of features divide, with the gate of an expert of all tokens
        "config": lambda: llama(transformers.Qwen2MoeConfig, vocab_size=61, hidden_size=32, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=4, intermediate_size=24,
                                tie_word_embeddings=True, num_experts=4, num_experts_per_tok=2,
                                moe_intermediate_size=12, norm_topk_prob=False,
                                shared_expert_intermediate_size=20, mlp_only_layers=[0]),
        "seed": 209, "seq": 13, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "qwen3_moe": {  # the layer in the middle has an MLP
        "config": lambda: llama(transformers.Qwen3MoeConfig, vocab_size=67, hidden_size=40, num_hidden_layers=3,
                                num_attention_heads=4, num_key_value_heads=2, head_dim=12, intermediate_size=44,
                                tie_word_embeddings=False, rms_norm_eps=1e-6, num_experts=8,
                                num_experts_per_tok=3, moe_intermediate_size=16, norm_topk_prob=True,
                                mlp_only_layers=[1]),
        "seed": 126, "seq": 12, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "qwen2_moe": {  # every second layer has experts, and one that all tokens get; weights do not sum to 1
        "config": lambda: llama(transformers.Qwen2MoeConfig, vocab_size=59, hidden_size=36, num_hidden_layers=4,
                                num_attention_heads=3, num_key_value_heads=3, intermediate_size=40,
                                tie_word_embeddings=False, rms_norm_eps=1e-6, num_experts=6,
                                num_experts_per_tok=3, moe_intermediate_size=16, norm_topk_prob=False,
                                shared_expert_intermediate_size=20, decoder_sparse_step=2),
        "seed": 113, "seq": 12, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "olmoe": {  # norms of all queries and all keys as one, behind which some are clamped
        "config": lambda: llama(transformers.OlmoeConfig, vocab_size=71, hidden_size=32, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=4, intermediate_size=20,
                                tie_word_embeddings=False, num_experts=7, num_experts_per_tok=3,
                                norm_topk_prob=False, clip_qkv=2.496),
        "seed": 77, "seq": 12, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "qwen2_moe_windows": {  # one of two layers has a window, the other an MLP
        "config": lambda: llama(transformers.Qwen2MoeConfig, vocab_size=53, hidden_size=32, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2, intermediate_size=24,
                                tie_word_embeddings=False, num_experts=5, num_experts_per_tok=2,
                                moe_intermediate_size=12, shared_expert_intermediate_size=16, norm_topk_prob=True,
                                use_sliding_window=True, sliding_window=5, mlp_only_layers=[1],
                                layer_types=["sliding_attention", "full_attention"]),
        "seed": 608, "seq": 13, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "granitemoe": {  # softmax over the chosen alone; the factors of granite
        "config": lambda: llama(transformers.GraniteMoeConfig, vocab_size=59, hidden_size=36, num_hidden_layers=2,
                                num_attention_heads=3, num_key_value_heads=1, intermediate_size=20,
                                tie_word_embeddings=True, attention_bias=True, num_local_experts=6,
                                num_experts_per_tok=3, embedding_multiplier=6.0, attention_multiplier=0.4,
                                residual_multiplier=0.22, logits_scaling=3.0),
        "seed": 614, "seq": 12, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "router_losses": {  # both losses of routers, over all micro-batches of a step; rows without a target count in them
        "config": lambda: llama(transformers.OlmoeConfig, vocab_size=61, hidden_size=32, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2, intermediate_size=20,
                                tie_word_embeddings=False, num_experts=6, num_experts_per_tok=2,
                                norm_topk_prob=False),
        "seed": 410, "seq": 7, "batch": 1, "micro_batches": 4, "max_grad_norm": 0.5, "ignored_share": 0.2,
        "router_losses": (0.3, 0.02)},
    "gpt_oss": {  # experts as wide as the model, so that no shape tells a matrix from its transpose; clamps bind
        "config": lambda: gpt_oss(num_hidden_layers=3, num_local_experts=6, num_experts_per_tok=2),
        "seed": 357, "seq": 12, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5, "expert_gain": 2.5},
    "gpt_oss_mxfp4": {  # the files have the experts in MXFP4, which transformers reads here
        "config": lambda: gpt_oss(num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=3),
        "seed": 209, "seq": 11, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5, "mxfp4": True},
    "glm4_moe": {  # groups of experts, chosen with a bias that makes some scores negative; an MLP in the first layer
        "config": lambda: llama(transformers.Glm4MoeConfig, vocab_size=59, hidden_size=36, num_hidden_layers=3,
                                num_attention_heads=4, num_key_value_heads=2, head_dim=12, intermediate_size=40,
                                tie_word_embeddings=False, attention_bias=True, use_qk_norm=True,
                                n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=12,
                                n_shared_experts=2, n_group=4, topk_group=2, routed_scaling_factor=1.5,
                                first_k_dense_replace=1),
        "seed": 309, "seq": 12, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "glm4_moe_packed": {  # one group; weights that do not sum to 1
        "config": lambda: llama(transformers.Glm4MoeConfig, vocab_size=53, hidden_size=32, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=4, intermediate_size=24,
                                tie_word_embeddings=True, n_routed_experts=5, num_experts_per_tok=2,
                                moe_intermediate_size=16, norm_topk_prob=False, routed_scaling_factor=0.7,
                                first_k_dense_replace=0),
        "seed": 313, "seq": 12, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5, "packed": True},
    "deepseek_v3": {  # latent attention with biases, whose scores yarn scales; values narrower than queries
        "config": lambda: latent(transformers.DeepseekV3Config, vocab_size=59, num_hidden_layers=3,
                                 tie_word_embeddings=False, attention_bias=True, q_lora_rank=16, v_head_dim=10,
                                 n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1, n_group=4,
                                 topk_group=2, routed_scaling_factor=1.5, first_k_dense_replace=1,
                                 rope_parameters={"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
                                                  "original_max_position_embeddings": 16, "beta_fast": 2.0,
                                                  "beta_slow": 0.5, "mscale": 0.8, "mscale_all_dim": 1.2}),
        "seed": 522, "seq": 12, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "deepseek_v3_packed": {  # whole queries, values wider than they, pairs of halves; all experts in one tensor
        "config": lambda: latent(transformers.DeepseekV3Config, vocab_size=53, num_hidden_layers=2,
                                 tie_word_embeddings=True, q_lora_rank=None, v_head_dim=24, rope_interleave=False,
                                 n_routed_experts=5, num_experts_per_tok=2, n_shared_experts=2, n_group=1,
                                 topk_group=1, norm_topk_prob=False, routed_scaling_factor=0.7,
                                 first_k_dense_replace=0),
        "seed": 581, "seq": 12, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5, "packed": True},
    "deepseek_v2": {  # the best groups by their best expert, of a softmax that is not renormalised
        "config": lambda: latent(transformers.DeepseekV2Config, vocab_size=61, num_hidden_layers=2,
                                 tie_word_embeddings=False, q_lora_rank=16, v_head_dim=10, n_routed_experts=8,
                                 num_experts_per_tok=3, n_shared_experts=2, topk_method="group_limited_greedy",
                                 n_group=4, topk_group=2, routed_scaling_factor=1.5, first_k_dense_replace=0),
        "seed": 521, "seq": 12, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "router_bias": {  # after a step the bias of the choice moves, and experts without a token stay as they are
        "config": lambda: llama(transformers.Glm4MoeConfig, vocab_size=59, hidden_size=32, num_hidden_layers=3,
                                num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=40,
                                tie_word_embeddings=False, n_routed_experts=12, num_experts_per_tok=2,
                                moe_intermediate_size=16, n_shared_experts=1, n_group=1, topk_group=1,
                                routed_scaling_factor=1.5, first_k_dense_replace=1),
        "seed": 703, "seq": 5, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5, "router_bias_rate": 0.01,
        "skips_idle": True},
    "llama3_rope": {  # of the eight frequencies one is kept, two are mixed and five stretched
        "config": lambda: llama(vocab_size=79, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
                                num_key_value_heads=1, head_dim=16, intermediate_size=48,
                                max_position_embeddings=512, tie_word_embeddings=True,
                                rope_parameters=llama3_rope(10000.0, 8.0, 1.0, 4.0, 64)),
        "seed": 9, "seq": 62, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    # ---- parts that are not trained (requires_grad=False), by patterns of names ----
    "shared_qwen2": {  # all layers share the weights of the first, each with its own window
        "config": lambda: llama(transformers.Qwen2Config, vocab_size=71, hidden_size=32, num_hidden_layers=4,
                                num_attention_heads=4, num_key_value_heads=2, intermediate_size=40,
                                tie_word_embeddings=True, use_sliding_window=True, sliding_window=9,
                                max_window_layers=2, rope_parameters=rope(100.0)),
        "seed": 71, "seq": 26, "batch": 2, "micro_batches": 3, "max_grad_norm": 0.5, "share_layers": 4},
    "shared_gemma3": {  # two at a time, of two kinds, and one alone
        "config": lambda: llama(transformers.Gemma3TextConfig, vocab_size=67, hidden_size=32, num_hidden_layers=5,
                                num_attention_heads=2, num_key_value_heads=1, head_dim=16, intermediate_size=36,
                                query_pre_attn_scalar=50, sliding_window=8,
                                layer_types=["sliding_attention", "full_attention", "full_attention",
                                             "sliding_attention", "full_attention"],
                                rope_parameters={"full_attention": {"rope_type": "linear", "rope_theta": 1000.0,
                                                                    "factor": 4.0},
                                                 "sliding_attention": rope(50.0)}),
        "seed": 72, "seq": 27, "batch": 1, "micro_batches": 3, "max_grad_norm": 1000.0, "share_layers": 2},
    "frozen_blocks": {  # the gradient passes through two blocks to a table with two uses
        "config": lambda: llama(vocab_size=67, hidden_size=48, num_hidden_layers=3, num_attention_heads=6,
                                num_key_value_heads=2, head_dim=8, intermediate_size=88,
                                tie_word_embeddings=True),
        "frozen": ["model.layers.0.*", "model.layers.1.*"],
        "seed": 20, "seq": 29, "batch": 2, "micro_batches": 3, "max_grad_norm": 0.5},
    "frozen_below": {  # backward ends in the last block
        "config": lambda: llama(vocab_size=83, hidden_size=40, num_hidden_layers=3, num_attention_heads=5,
                                num_key_value_heads=5, head_dim=12, intermediate_size=52,
                                tie_word_embeddings=False),
        "frozen": ["*embed_tokens*", "model.layers.0.*", "model.layers.1.*"],
        "seed": 21, "seq": 26, "batch": 1, "micro_batches": 3, "max_grad_norm": 0.5},
    "frozen_parts": {  # tensors of a unit, one of several in a matrix, and the head's table
        "config": lambda: llama(transformers.Qwen3Config, vocab_size=61, hidden_size=40, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=60,
                                tie_word_embeddings=False, rms_norm_eps=1e-6),
        "frozen": ["*.q_proj.weight", "*.k_norm.weight", "*.up_proj.weight", "model.layers.0.input_layernorm.weight",
                   "model.layers.1.mlp.down_proj.weight", "lm_head.weight"],
        "seed": 22, "seq": 27, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "frozen_table": {  # a tied table that is not trained, beside positions in its unit that are
        "config": lambda: gpt2(n_embd=36, n_layer=2, n_head=3, n_positions=64, vocab_size=73),
        "frozen": ["transformer.wte.weight", "*.ln_1.*", "transformer.h.0.attn.c_attn.weight"],
        "seed": 23, "seq": 31, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    # ---- parameter groups of torch.optim.AdamW: share of the rate, decay (None: the usual), the last that matches ----
    "groups": {
        "config": lambda: llama(transformers.Qwen2Config, vocab_size=71, hidden_size=64, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=1, intermediate_size=36,
                                tie_word_embeddings=False, rms_norm_eps=1e-6),
        "groups": [["model.layers.0.*", 0.1, None], ["*norm.weight", 1.0, 0.3], ["*.up_proj.weight", 3.0, 0.0],
                   ["lm_head.weight", 0.5, 0.02], ["*embed_tokens*", 1.5, 0.5], ["*.q_proj.bias", 2.0, None]],
        "seed": 28, "seq": 27, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    # ---- low-rank adapters by PEFT, which alone are trained ----
    "lora_llama": {  # of all modules, beside a tied table
        "config": lambda: llama(vocab_size=67, hidden_size=48, num_hidden_layers=2, num_attention_heads=6,
                                num_key_value_heads=2, head_dim=8, intermediate_size=56,
                                tie_word_embeddings=True),
        "lora": {"r": 4, "lora_alpha": 6, "target_modules": "all-linear"},
        "seed": 31, "seq": 29, "batch": 2, "micro_batches": 3, "max_grad_norm": 0.5},
    "lora_qwen2": {  # of some modules of fused matrices, with biases
        "config": lambda: llama(transformers.Qwen2Config, vocab_size=61, hidden_size=40, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2, intermediate_size=52,
                                tie_word_embeddings=False),
        "lora": {"r": 3, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "up_proj"], "use_rslora": True},
        "seed": 32, "seq": 27, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "lora_gpt2": {  # matrices that are transposed
        "config": lambda: gpt2(n_embd=36, n_layer=2, n_head=3, n_positions=64, vocab_size=73),
        "lora": {"r": 5, "lora_alpha": 10, "target_modules": ["c_attn", "mlp.c_proj"], "fan_in_fan_out": True},
        "seed": 33, "seq": 31, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "lora_dropout": {
        "config": lambda: llama(vocab_size=61, hidden_size=36, num_hidden_layers=2, num_attention_heads=4,
                                num_key_value_heads=2, head_dim=8, intermediate_size=44, tie_word_embeddings=True),
        "lora": {"r": 3, "lora_alpha": 6, "lora_dropout": 0.25, "target_modules": "all-linear"},
        "objective": {"drop_seed": 9876543210123},
        "seed": 35, "seq": 23, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "lora_saved": {  # beside them norms, a head and a table that were tied, which PEFT parts
        "config": lambda: llama(transformers.Qwen3Config, vocab_size=57, hidden_size=40, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=48,
                                tie_word_embeddings=True),
        "lora": {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "o_proj", "down_proj"],
                 "modules_to_save": ["lm_head", "embed_tokens", "input_layernorm", "1.mlp.up_proj"]},
        "seed": 36, "seq": 25, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "lora_head": {  # the head alone of a tied model, and biases of modules with adapters
        "config": lambda: llama(transformers.Qwen2Config, vocab_size=55, hidden_size=64, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=1, intermediate_size=44,
                                tie_word_embeddings=True),
        "lora": {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "o_proj"], "bias": "lora_only",
                 "modules_to_save": ["lm_head"]},
        "seed": 37, "seq": 25, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "lora_biases": {  # all biases, and positions
        "config": lambda: gpt2(n_embd=36, n_layer=2, n_head=3, n_positions=64, vocab_size=73),
        "lora": {"r": 3, "lora_alpha": 6, "target_modules": ["c_attn", "mlp.c_proj"], "fan_in_fan_out": True,
                 "bias": "all", "modules_to_save": ["wpe"]},
        "seed": 38, "seq": 31, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "lora_tables": {  # of the head and the table of a tied model, which are parted, and dropout before the head's
        "config": lambda: llama(transformers.Qwen3Config, vocab_size=57, hidden_size=40, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=48,
                                tie_word_embeddings=True),
        "lora": {"r": 3, "lora_alpha": 6, "lora_dropout": 0.2,
                 "target_modules": ["q_proj", "o_proj", "embed_tokens", "lm_head"]},
        "objective": {"drop_seed": 9876543210123},
        "seed": 39, "seq": 25, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "lora_tables_gemma2": {  # behind a factor of embeddings, before a cap of logits
        "config": lambda: llama(transformers.Gemma2Config, vocab_size=61, hidden_size=40, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2, head_dim=12, intermediate_size=44,
                                query_pre_attn_scalar=10, attn_logit_softcapping=0.8, final_logit_softcapping=1.5,
                                sliding_window=9, tie_word_embeddings=True),
        "lora": {"r": 4, "lora_alpha": 5, "use_rslora": True, "target_modules": ["embed_tokens", "lm_head"]},
        "seed": 40, "seq": 25, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "lora_table_gpt2": {  # of the embedding alone, beside positions; the head keeps the table that was its own too
        "config": lambda: gpt2(n_embd=36, n_layer=2, n_head=3, n_positions=64, vocab_size=73),
        "lora": {"r": 5, "lora_alpha": 10, "target_modules": ["wte", "c_attn"], "fan_in_fan_out": True},
        "seed": 41, "seq": 31, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "lora_phi3": {  # modules that are fused in the files
        "config": lambda: llama(transformers.Phi3Config, vocab_size=59, hidden_size=40, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2, intermediate_size=44,
                                tie_word_embeddings=False),
        "lora": {"r": 4, "lora_alpha": 4, "target_modules": ["qkv_proj", "o_proj", "gate_up_proj"]},
        "seed": 34, "seq": 26, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "lora_deepseek": {  # of all matrices of latent attention
        "config": lambda: latent(transformers.DeepseekV2Config, vocab_size=57, num_hidden_layers=2,
                                 tie_word_embeddings=False, q_lora_rank=16, v_head_dim=20, n_routed_experts=6,
                                 num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1),
        "lora": {"r": 3, "lora_alpha": 6, "target_modules": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj",
                                                             "o_proj"]},
        "seed": 535, "seq": 13, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "lora_mixtral": {  # of experts, routers and the rest, as PEFT takes "all-linear"
        "config": lambda: llama(transformers.MixtralConfig, vocab_size=53, hidden_size=32, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2, intermediate_size=20,
                                tie_word_embeddings=False, num_local_experts=5, num_experts_per_tok=2),
        "lora": {"r": 3, "lora_alpha": 5, "target_modules": "all-linear", "use_rslora": True},
        "seed": 729, "seq": 13, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "lora_olmoe": {  # of experts that files have in one tensor; the router is trained whole
        "config": lambda: llama(transformers.OlmoeConfig, vocab_size=51, hidden_size=32, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=4, intermediate_size=20,
                                tie_word_embeddings=False, num_experts=6, num_experts_per_tok=3,
                                norm_topk_prob=False),
        "lora": {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "up_proj", "gate_proj", "down_proj"],
                 "modules_to_save": ["gate"]},
        "seed": 739, "seq": 12, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5, "packed": True},
    "lora_qwen2_moe": {  # of the expert of all tokens and its gate; of others one of two parameters
        "config": lambda: llama(transformers.Qwen2MoeConfig, vocab_size=59, hidden_size=32, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2, intermediate_size=40,
                                tie_word_embeddings=False, rms_norm_eps=1e-6, num_experts=4,
                                num_experts_per_tok=2, moe_intermediate_size=12, norm_topk_prob=False,
                                shared_expert_intermediate_size=20, decoder_sparse_step=2),
        "lora": {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "shared_expert.up_proj", "down_proj",
                                                             "shared_expert_gate"],
                 "target_parameters": ["mlp.experts.down_proj"]},
        "seed": 703, "seq": 12, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "lora_gpt_oss": {  # of experts that are transposed, and of the router
        "config": lambda: gpt_oss(num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2),
        "lora": {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj"],
                 "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "router.weight"]},
        "seed": 704, "seq": 12, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    "lora_q8": {  # beside a base whose blocks are kept in eight bits
        "config": lambda: llama(transformers.Qwen2Config, vocab_size=61, hidden_size=64, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2, intermediate_size=36,
                                tie_word_embeddings=False),
        "lora": {"r": 3, "lora_alpha": 6, "target_modules": "all-linear"}, "base_dtype": "q8",
        "seed": 741, "seq": 25, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "lora_dora": {  # magnitudes of rows (DoRA), beside biases, of some modules of fused matrices
        "config": lambda: llama(transformers.Qwen2Config, vocab_size=57, hidden_size=40, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2, intermediate_size=52,
                                tie_word_embeddings=False),
        "lora": {"r": 3, "lora_alpha": 5, "use_dora": True,
                 "target_modules": ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]},
        "seed": 705, "seq": 25, "batch": 2, "micro_batches": 2, "max_grad_norm": 0.5},
    "lora_dora_gpt2": {  # of matrices that are transposed
        "config": lambda: gpt2(n_embd=36, n_layer=2, n_head=3, n_positions=64, vocab_size=71),
        "lora": {"r": 2, "lora_alpha": 3, "use_dora": True, "use_rslora": True,
                 "target_modules": ["c_attn", "mlp.c_proj"], "fan_in_fan_out": True},
        "seed": 706, "seq": 29, "batch": 1, "micro_batches": 2, "max_grad_norm": 0.5},
    # ---- label smoothing, z-loss and noise of embeddings ----
    "loss_terms": {
        "config": lambda: llama(transformers.Gemma2Config, vocab_size=73, hidden_size=40, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=44,
                                query_pre_attn_scalar=10, sliding_window=7, attn_logit_softcapping=None,
                                final_logit_softcapping=4.0),
        "objective": {"smoothing": 0.2, "z_loss": 0.01, "noise": 5.0, "noise_seed": 1234567890123},
        "seed": 31, "seq": 25, "batch": 2, "micro_batches": 3, "max_grad_norm": 0.5, "ignored_share": 0.2},
    "eight_qwen3": {  # can be cut into 2, 4 and 8 groups of features, the vocabulary into uneven ones
        "config": lambda: llama(transformers.Qwen3Config, vocab_size=61, hidden_size=40, num_hidden_layers=2,
                                num_attention_heads=16, num_key_value_heads=8, head_dim=8, intermediate_size=48,
                                tie_word_embeddings=False, attention_bias=True, rms_norm_eps=1e-6),
        "seed": 32, "seq": 26, "batch": 2, "micro_batches": 4, "max_grad_norm": 0.5, "ignored_share": 0.2},
    "eight_gpt2": {
        "config": lambda: gpt2(n_embd=32, n_layer=2, n_head=8, n_positions=32, vocab_size=75),
        "seed": 33, "seq": 21, "batch": 1, "micro_batches": 4, "max_grad_norm": 0.5},
}


# ---- float64 in the places where transformers insists on float32 --------------------------------------


def norm_forward(self, hidden):
    scale = torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    return self.weight * (hidden * scale)


def offset_norm_forward(self, hidden):
    return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.eps) * (1.0 + self.weight)


def layer_norm_forward(self, hidden):
    centred = hidden - hidden.mean(-1, keepdim=True)
    return self.weight * (centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def yarn_ramp(parameters, dim, pair):
    def pair_of(turns):
        original = parameters["original_max_position_embeddings"]
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(parameters["rope_theta"]))

    low, high = pair_of(parameters["beta_fast"]), pair_of(parameters["beta_slow"])
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return min(max((pair - low) / (high - low), 0.0), 1.0)


def rotary_frequency(parameters, dim, pair, length):
    frequency = parameters["rope_theta"] ** -(2 * pair / dim)
    kind = parameters["rope_type"]
    if kind == "linear":
        return frequency / parameters["factor"]
    if kind == "yarn":
        stretched = yarn_ramp(parameters, dim, pair)
        return frequency / parameters["factor"] * stretched + frequency * (1 - stretched)
    if kind == "longrope":
        is_long = length > parameters["original_max_position_embeddings"]
        return frequency / parameters["long_factor" if is_long else "short_factor"][pair]
    if kind != "llama3":
        return frequency
    waves = parameters["original_max_position_embeddings"] * frequency / (2 * math.pi)  # that fit into it
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    kept = min(1.0, max(0.0, (waves - low) / (high - low)))
    return kept * frequency + (1 - kept) * frequency / parameters["factor"]


def rotary_forward(self, x, position_ids, layer_type=None):
    config = self.config
    parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
    gain = self.attention_scaling if layer_type is None else getattr(self, f"{layer_type}_attention_scaling")
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dim = int(dim * parameters.get("partial_rotary_factor", 1.0))
    length = int(position_ids.max()) + 1
    frequencies = [rotary_frequency(parameters, dim, i, length) for i in range(dim // 2)]
    angles = position_ids[..., None].double() * torch.tensor(frequencies, dtype=torch.float64)
    if isinstance(self, modeling_cohere2.Cohere2RotaryEmbedding):
        angles = angles.repeat_interleave(2, dim=-1)
    elif not isinstance(self, modeling_gpt_oss.GptOssRotaryEmbedding):
        angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * gain, angles.sin() * gain


def rotate_neighbours(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return tuple(x * cos + modeling_cohere2.rotate_half(x) * sin for x in (q, k))


def attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0, softcap=None, **unused):
    key = modeling_llama.repeat_kv(key, module.num_key_value_groups)
    value = modeling_llama.repeat_kv(value, module.num_key_value_groups)
    scores = query @ key.transpose(2, 3) * scaling
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    weights = (scores + attention_mask[..., : key.shape[-2]]).softmax(dim=-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def router_forward(self, hidden):
    logits = torch.nn.functional.linear(hidden.reshape(-1, self.hidden_dim), self.weight)
    weights, chosen = torch.topk(logits.softmax(dim=-1), self.top_k, dim=-1)
    if getattr(self, "norm_topk_prob", True):
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return logits, weights, chosen


def rotate_complex(xq, xk, freqs_cis):
    """As transformers' apply_rotary_emb, whose angles rotary_forward makes: pairs of neighbours."""
    cos, sin = (part.unsqueeze(1) for part in freqs_cis)
    turned = []
    for x in (xq, xk):
        even, odd = x[..., 0::2], x[..., 1::2]
        turned.append(torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2))
    return tuple(turned)


class Angles(tuple):
    """What DeepseekV2Attention moves to the device of the queries."""

    def to(self, unused):
        return self


def rotary_halves_forward(self, x, position_ids):
    return Angles(part[..., : part.shape[-1] // 2] for part in rotary_forward(self, x, position_ids))


def gating_forward(self, hidden):
    """GraniteMoeTopKGating's, which has logits and softmax in float32."""
    logits = self.layer(hidden)
    best, chosen = logits.topk(self.top_k, dim=1)
    flat = chosen.flatten()
    order = flat.sort(0).indices
    sizes = torch.bincount(flat, minlength=self.num_experts).tolist()
    gates = best.softmax(dim=1).flatten()
    return order, order.div(self.top_k, rounding_mode="trunc"), gates[order], sizes, logits


def grouped_scores(config, scores):
    """Scores of experts in groups that are not among the best by their best expert become 0."""
    if config.topk_method != "group_limited_greedy":
        return scores, math.inf
    groups = scores.view(len(scores), config.n_group, -1)
    ranks = groups.amax(dim=-1).sort(dim=-1, descending=True)
    kept = torch.zeros_like(groups[..., 0]).scatter_(1, ranks.indices[:, : config.topk_group], 1)
    apart = ranks.values[:, config.topk_group - 1].log() - ranks.values[:, config.topk_group].log()
    return (groups * kept[..., None]).flatten(1), float(apart.detach().min())


def softmax_mixture_forward(self, hidden):
    scores = torch.nn.functional.linear(hidden.flatten(0, 1), self.gate.weight).softmax(dim=-1)
    weights, chosen = grouped_scores(self.config, scores)[0].topk(self.top_k, dim=-1)
    experts = self.experts(hidden.flatten(0, 1), chosen, weights * self.routed_scaling_factor)
    return experts.view(hidden.shape) + self.shared_experts(hidden)


def logits_forward(self, hidden):
    return torch.nn.functional.linear(hidden.reshape(-1, self.weight.shape[1]), self.weight)


@contextlib.contextmanager
def in_float64():
    replaced = []
    for module, name in ((modeling_llama, "Llama"), (modeling_mistral, "Mistral"), (modeling_qwen2, "Qwen2"),
                         (modeling_qwen3, "Qwen3"), (modeling_smollm3, "SmolLM3"), (modeling_phi3, "Phi3"),
                         (modeling_olmo2, "Olmo2"), (modeling_olmo3, "Olmo3"), (modeling_granite, "Granite"),
                         (modeling_gemma2, "Gemma2"), (modeling_gemma3, "Gemma3"), (modeling_cohere2, "Cohere2"),
                         (modeling_exaone4, "Exaone4"), (modeling_mixtral, "Mixtral"),
                         (modeling_qwen2_moe, "Qwen2Moe"), (modeling_qwen3_moe, "Qwen3Moe"),
                         (modeling_olmoe, "Olmoe"), (modeling_gpt_oss, "GptOss"),
                         (modeling_glm4_moe, "Glm4Moe"), (modeling_deepseek_v3, "DeepseekV3"),
                         (modeling_deepseek_v2, "DeepseekV2"), (modeling_granitemoe, "GraniteMoe")):
        norm, forward = (("LayerNorm", layer_norm_forward) if name == "Cohere2"
                         else ("RMSNorm", offset_norm_forward if name.startswith("Gemma") else norm_forward))
        replaced += [(getattr(module, name + norm), "forward", forward),
                     (getattr(module, name + "RotaryEmbedding"), "forward", rotary_forward),
                     (module, "eager_attention_forward", attention_forward)]
        if name == "GptOss":  # computes scores and choice in its own type
            replaced.pop()
        elif hasattr(module, name + "TopKRouter"):
            replaced.append((getattr(module, name + "TopKRouter"), "forward", router_forward))
    replaced.append((modeling_cohere2, "apply_rotary_pos_emb", rotate_neighbours))
    replaced.append((modeling_glm4_moe.Glm4MoeTopkRouter, "forward", logits_forward))
    replaced.append((modeling_granitemoe.GraniteMoeTopKGating, "forward", gating_forward))
    replaced.append((modeling_deepseek_v3.DeepseekV3TopkRouter, "forward", logits_forward))
    replaced.append((modeling_deepseek_v2.DeepseekV2Moe, "forward", softmax_mixture_forward))
    replaced.append((modeling_deepseek_v2.DeepseekV2RotaryEmbedding, "forward", rotary_halves_forward))
    replaced.append((modeling_deepseek_v2, "apply_rotary_emb", rotate_complex))
    kept = [getattr(place, name) for place, name, _ in replaced]
    for place, name, new in replaced:
        setattr(place, name, new)
    try:
        yield
    finally:
        for (place, name, _), old in zip(replaced, kept):
            setattr(place, name, old)


# ---- model and data -----------------------------------------------------------------------------------


def make_model(case):
    config = case["config"]()
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    torch.manual_seed(case["seed"])
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager",
                                                          dtype=torch.float32)
    random = torch.Generator().manual_seed(case["seed"] + 1000)
    offset = 1.0 if config.model_type.startswith("gemma") else 0.0  # of what a norm stores
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=random)
        if parameter.dim() >= 2:
            embeds = is_embedding(name) or name.startswith("lm_head")
            # of a router: so that its choice is clear
            gain = 1.6 if name.endswith(("mlp.gate.weight", "router.weight", "router.layer.weight")) else 0.8
            gain *= case.get("expert_gain", 1.0) if name.endswith("experts.gate_up_proj") else 1.0
            gain /= case.get("expert_gain", 1.0) if name.endswith("experts.down_proj") else 1.0
            parameter.data = noise * (0.2 if embeds else gain / math.sqrt(min(parameter.shape[-2:])))
        else:
            parameter.data = 0.1 * noise + (0.0 if name.endswith("bias") else 1.0 - offset)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.5 * torch.randn(buffer.shape, generator=random) - 0.3)
    for module in model.modules():
        if isinstance(module, modeling_deepseek_v2.DeepseekV2Moe):
            module.num_experts = config.n_routed_experts  # which its choice of groups asks for, and 5.12.1 forgets
    model.tie_weights()
    for name, parameter in model.named_parameters():
        frozen = any(fnmatch.fnmatch(name, pattern) for pattern in case.get("frozen", []))
        parameter.requires_grad_(not frozen)
    return model.eval()


def share_layers(model, count, parameters):
    """Lets so many layers in a row have the first one's values, or be it: the same parameters."""
    layers = model.model.layers
    for idx, layer in enumerate(layers):
        first = dict(layers[idx - idx % count].named_modules())
        for name, module in layer.named_modules():
            for key, parameter in module._parameters.items():
                if parameter is not None and parameters:
                    module._parameters[key] = first[name]._parameters[key]
                elif parameter is not None:
                    parameter.data.copy_(first[name]._parameters[key].data)


def to_mxfp4(model, folder):
    """Writes the folder as gpt-oss is published, with the values of experts drawn; returns what transformers reads."""
    path, random = os.path.join(folder, "model.safetensors"), torch.Generator().manual_seed(4)
    tensors = safetensors.torch.load_file(path)
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inner, outer = tensors.pop(name).shape
        tensors[name + "_blocks"] = torch.randint(0, 256, (experts, outer, inner // 32, 16), generator=random,
                                                  dtype=torch.uint8)
        tensors[name + "_scales"] = torch.randint(120, 124, (experts, outer, inner // 32), generator=random,
                                                  dtype=torch.uint8)
    safetensors.torch.save_file({n: t if t.dtype == torch.uint8 else t.bfloat16() for n, t in tensors.items()}, path,
                                metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    config["dtype"] = "bfloat16"
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)
        file.write("\n")
    read = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager")
    fresh = make_model({"config": lambda: model.config, "seed": 0})
    fresh.load_state_dict({n: t.float() for n, t in read.state_dict().items()})
    return fresh


def round_to_bytes(model):
    """The blocks' weights as eight bits and a scale for 32 hold them."""
    for name, parameter in model.named_parameters():
        if ".layers." in name:
            blocks = parameter.data.reshape(-1, 32)
            scales = (blocks.abs().amax(dim=1, keepdim=True) / 127).bfloat16().float()
            parameter.data = ((blocks / scales).round() * scales).reshape(parameter.shape)


def add_adapters(model, case):
    """The model with adapters of which B is not zero, as training begins with it; else A has no gradient."""
    random = torch.Generator().manual_seed(case["seed"] + 4000)
    if model.config.tie_word_embeddings and {"lm_head", "embed_tokens", "wte"} & set(case["lora"]["target_modules"]):
        # PEFT adds what it merges into either to both; what it computes before is that of two tables
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    config = peft.LoraConfig(task_type="CAUSAL_LM", **case["lora"])
    adapted = peft.get_peft_model(model, config).eval()
    for name, parameter in adapted.named_parameters():
        if ".lora_magnitude_vector" in name:
            parameter.data *= 1 + 0.2 * torch.randn(parameter.shape, generator=random)
        elif ".lora_" in name:
            parameter.data = 0.4 * torch.randn(parameter.shape, generator=random) / math.sqrt(parameter.shape[1])
        elif parameter.requires_grad:  # what is trained whole has departed from the base
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=random) / math.sqrt(parameter.shape[-1])
    return adapted


def merged(adapted, dtype):
    """The weights that PEFT merges into a base of that dtype."""
    whole = copy.deepcopy(adapted)
    for name, parameter in whole.named_parameters():
        if ".lora_" not in name:
            parameter.data = parameter.data.to(dtype)
    names = {n.replace(".base_layer", "").replace(".modules_to_save.default", "").removeprefix("base_model.model.")
             for n, p in adapted.named_parameters()
             if ".lora_" not in n and (".base_layer." in n or p.requires_grad) and not n.endswith("bias")}
    return {n: p.detach().float() for n, p in whole.merge_and_unload().named_parameters() if n in names}


def by_saved_name(model, packed, tensors):
    """Tensors by parameter as they are in files: transformers holds all experts in one, files may have one for each,
    and the names of adapters are those beside the base's."""
    if isinstance(model, peft.PeftModel):
        tensors = {n.removeprefix("base_model.model.").replace(".base_layer", "" if ".lora_" not in n else ".base_layer")
                   .replace(".modules_to_save", "").replace(".default", "")
                   .replace("_magnitude_vector.weight", "_magnitude_vector"): t for n, t in tensors.items()
                   if ".original_module." not in n}
    if packed or model.config.model_type == "gpt_oss" or not hasattr(model.config, "num_experts_per_tok"):
        return tensors
    mixtral = model.config.model_type == "mixtral"
    saved = {}
    for name, tensor in tensors.items():
        front = name.replace(".mlp.", ".block_sparse_moe.") if mixtral and ".lora_" not in name else name
        if name.endswith("experts.gate_up_proj"):
            front = front[: -len("gate_up_proj")]
            for e, (gate, up) in enumerate(t.chunk(2) for t in tensor):
                saved[f"{front}{e}.{'w1' if mixtral else 'gate_proj'}.weight"] = gate
                saved[f"{front}{e}.{'w3' if mixtral else 'up_proj'}.weight"] = up
        elif name.endswith("experts.down_proj"):
            front = front[: -len("down_proj")]
            for e, down in enumerate(tensor):
                saved[f"{front}{e}.{'w2' if mixtral else 'down_proj'}.weight"] = down
        else:
            saved[front] = tensor
    return saved


@contextlib.contextmanager
def watching(model, margins, clamps):
    """Notes how far each router's last chosen logit lies above the next, and what is clamped from its bound."""
    def note(router, unused, output):
        logits = output[4 if isinstance(router, modeling_granitemoe.GraniteMoeTopKGating) else 0].detach()
        if router.top_k < logits.shape[-1]:
            best = logits.topk(router.top_k + 1, dim=-1).values
            margins.append(float((best[:, -2] - best[:, -1]).min()))

    def note_biased(router, unused, output):
        """Choice among groups, and of those that are kept. A score moves by a quarter of its logit at most."""
        scores = output.detach().sigmoid() + router.e_score_correction_bias
        config = router.config
        groups = scores.view(len(scores), config.n_group, -1)
        ranks = groups.topk(2, dim=-1).values.sum(dim=-1).sort(dim=-1, descending=True)
        if config.topk_group < config.n_group:
            margins.append(4 * float((ranks.values[:, config.topk_group - 1] - ranks.values[:, config.topk_group]).min()))
        kept = torch.zeros_like(groups[..., 0]).scatter_(1, ranks.indices[:, : config.topk_group], 1).bool()
        best = groups.masked_fill(~kept[..., None], -math.inf).flatten(1).topk(config.num_experts_per_tok + 1, dim=-1)
        margins.append(4 * float((best.values[:, -2] - best.values[:, -1]).min()))

    def note_softmax(mixture, inputs):
        scores = torch.nn.functional.linear(inputs[0].detach().flatten(0, 1), mixture.gate.weight.detach()).softmax(dim=-1)
        scores, apart = grouped_scores(mixture.config, scores)
        best = scores.topk(mixture.top_k + 1, dim=-1).values.log()
        margins.extend((apart, float((best[:, -2] - best[:, -1]).min())))

    def note_clamped(unused, inputs, output):
        clamps.append(float((output.detach().abs() / model.config.clip_qkv - 1).abs().min()))

    if getattr(model.config, "clip_qkv", None) is not None:
        clamped = [part for module in model.modules() if isinstance(module, modeling_olmoe.OlmoeAttention)
                   for part in (module.q_norm, module.k_norm, module.v_proj)]
    else:
        clamped = []
    hooks = [module.register_forward_hook(note_clamped) for module in clamped]
    hooks += [module.register_forward_hook(note_biased) for module in model.modules()
             if hasattr(module, "e_score_correction_bias")]
    hooks += [module.register_forward_pre_hook(note_softmax) for module in model.modules()
              if isinstance(module, modeling_deepseek_v2.DeepseekV2Moe)]
    hooks += [module.register_forward_hook(note) for module in model.modules()
             if type(module).__name__.endswith(("TopKRouter", "TopKGating"))]
    yield
    for hook in hooks:
        hook.remove()


@contextlib.contextmanager
def counting(model, counts):
    """Adds how many rows choose each expert, by the name of the experts."""
    def note(name):
        def hook(experts, inputs):
            counts[name] = counts.get(name, 0) + torch.bincount(inputs[1].flatten(), minlength=experts.num_experts)
        return hook

    hooks = [module.register_forward_pre_hook(note(name)) for name, module in model.named_modules()
             if name.endswith("mlp.experts")]
    yield
    for hook in hooks:
        hook.remove()


def move_biases(model, counts, rate):
    """DeepSeek-V3, 2.1.2: more for experts with less than an even share, less for those with more."""
    for name, chosen in counts.items() if rate > 0 else ():
        bias = model.get_submodule(name.removesuffix("experts") + "gate").e_score_correction_bias
        bias += rate * torch.sign(chosen.double().mean() - chosen).to(bias.dtype)


def step_without_idle(model, optimizer, counts):
    """AdamW as if an expert without a token were not there: its weights and moments stay, the count of steps goes on."""
    kept = []
    for name, chosen in counts.items():
        for parameter in model.get_submodule(name).parameters():
            state = optimizer.state[parameter]
            moments = [state[k].clone() if k in state else torch.zeros_like(parameter) for k in ("exp_avg", "exp_avg_sq")]
            kept.append((parameter, chosen == 0, parameter.detach().clone(), *moments))
    optimizer.step()
    for parameter, idle, weight, first, second in kept:
        parameter.data[idle] = weight[idle]
        optimizer.state[parameter]["exp_avg"][idle] = first[idle]
        optimizer.state[parameter]["exp_avg_sq"][idle] = second[idle]


def is_embedding(name):
    return any(part in name for part in ("embed_tokens", "wte", "wpe"))


def make_tokens(case, vocab):
    """One stream, where a token often follows from the one before; window w is [w * seq, w * seq + seq]."""
    windows = STEPS * case["micro_batches"] * case["batch"]
    random = torch.Generator().manual_seed(case["seed"] + 2000)
    count = windows * case["seq"] + 1
    free = torch.randint(0, vocab, (count,), generator=random).tolist()
    jumps = torch.rand(count, generator=random).tolist()
    tokens = [free[0]]
    for i in range(1, count):
        tokens.append(free[i] if jumps[i] < 0.4 else (3 * tokens[-1] + 1) % vocab)
    return tokens


def make_batches(case, tokens):
    """[step][micro-batch] of (inputs, targets), each (batch, seq)."""
    seq, batch = case["seq"], case["batch"]
    random = torch.Generator().manual_seed(case["seed"] + 3000)
    steps, window = [], 0
    for _ in range(STEPS):
        step = []
        for _ in range(case["micro_batches"]):
            rows = [tokens[(window + b) * seq : (window + b + 1) * seq + 1] for b in range(batch)]
            window += batch
            inputs = torch.tensor([row[:-1] for row in rows])
            targets = torch.tensor([row[1:] for row in rows])
            ignored = torch.rand(targets.shape, generator=random) < case.get("ignored_share", 0.0)
            step.append((inputs, targets.masked_fill(ignored, IGNORED)))
        steps.append(step)
    return steps


# ---- training -----------------------------------------------------------------------------------------


def learning_rate_at(step):
    if step < WARMUP_STEPS:
        return LEARNING_RATE * (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / (STEPS - WARMUP_STEPS)
    return LEARNING_RATE * (MIN_LR_RATIO + (1 - MIN_LR_RATIO) * 0.5 * (1 + math.cos(math.pi * progress)))


def decays(name, parameter):
    """As transformers' Trainer decides by names, but for embeddings; their adapters are like others."""
    return (parameter.dim() >= 2 and (not is_embedding(name) or ".lora_" in name) and not name.endswith("bias")) or \
        name.endswith("sinks") or "_magnitude_vector" in name


def philox(seed, stream, blocks):
    """Philox-4x32-10 (Salmon et al., SC 2011): four words for each block."""
    b = np.arange(blocks, dtype=np.uint64)
    low = np.uint64(0xFFFFFFFF)
    counter = [b & low, b >> np.uint64(32), np.full_like(b, stream & 0xFFFFFFFF), np.full_like(b, stream >> 32)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * counter[0], np.uint64(0xCD9E8D57) * counter[2]
        counter = [(second >> np.uint64(32)) ^ counter[1] ^ np.uint64(key[0]), second & low,
                   (first >> np.uint64(32)) ^ counter[3] ^ np.uint64(key[1]), first & low]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(counter, axis=1)


@contextlib.contextmanager
def noisy(model, objective, step, mb):
    """NEFTune as the Trainer has it, a hook behind the embedding, with the engine's numbers: of step and micro-batch."""
    def add(module, unused, output):
        words = philox(objective["noise_seed"], (step + 1) << 24 | mb, (output.numel() + 3) // 4).flatten()
        uniform = (words[: output.numel()] >> np.uint64(8)).astype(np.float64) * 2.0 ** -23 - 1.0
        magnitude = objective["noise"] / math.sqrt(output.shape[1] * output.shape[2])
        return output + magnitude * torch.from_numpy(uniform).to(output.dtype).reshape(output.shape)

    hook = model.get_input_embeddings().register_forward_hook(add) if objective.get("noise", 0) > 0 else None
    yield
    if hook is not None:
        hook.remove()


@contextlib.contextmanager
def dropping(model, objective, step, mb):
    """Dropout of adapters with the engine's masks: of step, micro-batch, block and matrix. Modules that read the same
    values share them."""
    slots = {"q_proj": 0, "k_proj": 0, "v_proj": 0, "o_proj": 6, "gate_proj": 8, "up_proj": 8, "down_proj": 10}
    hooks = []

    def hook_of(seed, rate):
        def drop(module, inputs, output):
            x = inputs[0]
            words = philox(seed, (step + 1) << 24 | mb, (x.numel() + 3) // 4).flatten()[: x.numel()]
            kept = (words >> np.uint64(8)).astype(np.float32) >= np.float32(rate) * np.float32(2.0 ** 24)
            return x * torch.from_numpy(kept).to(x.dtype).reshape(x.shape) / (1.0 - rate)
        return drop

    for name, module in model.named_modules():
        parts = name.split(".")
        if "drop_seed" in objective and name.endswith(".lora_dropout.default"):
            if "layers" in parts:
                seed = objective["drop_seed"] ^ (int(parts[parts.index("layers") + 1]) + 1 << 8 | slots[parts[-3]])
            else:  # of a head; embeddings have none
                seed = objective["drop_seed"] ^ (model.config.num_hidden_layers + 1 << 8 | 252)
            hooks.append(module.register_forward_hook(hook_of(seed, module.p)))
    yield
    for hook in hooks:
        hook.remove()


def smoothed(logits, targets, smoothing):
    """The sum of what LabelSmoother of transformers has the mean of, over counted targets."""
    smoother = transformers.trainer_pt_utils.LabelSmoother(epsilon=smoothing, ignore_index=IGNORED)
    counted = (targets != IGNORED).sum()
    return smoother({"logits": logits}, targets) * counted


def step_loss(model, micro_batches, case, step, notes=None):
    """The mean over all counted targets of all micro-batches; gradients add up in the parameters. With weights those
    of the losses of routers too: transformers' balance loss, as if the step were one batch, and the mean square of
    the logarithm of the sum of exponentials."""
    objective, weights = case.get("objective", {}), case.get("router_losses")
    counted = sum(int((targets != IGNORED).sum()) for _, targets in micro_batches)
    total = 0.0
    if weights is not None:
        outputs = [model(input_ids=inputs, use_cache=False, output_router_logits=True) for inputs, _ in micro_batches]
        logits = tuple(torch.cat(layer) for layer in zip(*(output.router_logits for output in outputs)))
        balance = modeling_mixtral.load_balancing_loss_func(logits, model.config.num_experts,
                                                            model.config.num_experts_per_tok)
        z = torch.cat(logits).logsumexp(dim=-1).pow(2).mean()
        (weights[0] * balance + weights[1] * z).backward()
        if notes is not None:
            notes.append((float(balance.detach()), float(z.detach())))
    for mb, (inputs, targets) in enumerate(micro_batches):
        with noisy(model, objective, step, mb), dropping(model, objective, step, mb):
            logits = model(input_ids=inputs, use_cache=False).logits
        if objective.get("smoothing", 0) > 0:
            loss = smoothed(logits, targets, objective["smoothing"])
        else:
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(),
                                                     ignore_index=IGNORED, reduction="sum")
        if objective.get("z_loss", 0) > 0:
            squares = torch.logsumexp(logits, dim=-1).square()
            loss = loss + objective["z_loss"] * squares[targets != IGNORED].sum()
        (loss / counted).backward()
        total += float(loss.detach())
    return total / counted


def groups_of(case, model):
    """The group that decides about each parameter that has one, as (share of the rate, decay or None)."""
    return {name: tuple(group[1:]) for name, parameter in model.named_parameters() if parameter.requires_grad
            for group in case.get("groups", []) if fnmatch.fnmatch(name, group[0])}


def optimizer_of(model, case):
    """AdamW with one group for every pair of rate and decay."""
    own, members = groups_of(case, model), {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            share, decay = own.get(name, (1.0, None))
            usual = WEIGHT_DECAY if decays(name, parameter) else 0.0
            members.setdefault((share, usual if decay is None else decay), []).append(parameter)
    return torch.optim.AdamW([{"params": p, "share": share, "weight_decay": decay}
                              for (share, decay), p in members.items()],
                             lr=LEARNING_RATE, betas=BETAS, eps=EPS, foreach=False)


def train(model, batches, case):
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    optimizer = optimizer_of(model, case)
    result = {"losses": [], "grad_norms": [], "lrs": [], "margins": [], "clamps": [], "router_losses": [], "idle": []}
    with torch.no_grad():
        objective = case.get("objective", {})
        with noisy(model, objective, 0, 0), dropping(model, objective, 0, 0):
            result["logits"] = model(input_ids=batches[0][0][0], use_cache=False).logits.clone()
    for step, micro_batches in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step) * group["share"]
        optimizer.zero_grad()
        margins, clamps, counts = [], [], {}
        with watching(model, margins, clamps), counting(model, counts) if "router_bias_rate" in case else contextlib.nullcontext():
            result["losses"].append(step_loss(model, micro_batches, case, step, result["router_losses"]))
        result["margins"].append(min(margins, default=math.inf))
        result["clamps"].append(min(clamps, default=math.inf))
        if step == 0:
            result["grads"] = {name: parameter.grad.clone() for name, parameter in named}
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), case["max_grad_norm"], foreach=False)
        result["grad_norms"].append(float(norm))
        result["lrs"].append(learning_rate_at(step))
        if case.get("skips_idle", False):
            step_without_idle(model, optimizer, counts)
            result["idle"].append(sum(int((c == 0).sum()) for c in counts.values()))
        else:
            optimizer.step()
        move_biases(model, counts, case.get("router_bias_rate", 0.0))
    result["final"] = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    if "router_bias_rate" in case:
        result["final"].update({name: buffer.clone() for name, buffer in model.named_buffers()
                                if name.endswith("e_score_correction_bias")})
    return result


def round_hi(tensor):
    """float32 to bfloat16, nearest, ties away from zero, as the engine's `hi` plane, and back."""
    bits = tensor.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    bits = (bits + 0x8000) & 0xFFFF0000
    return torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)


def mark_undetermined(model, final):
    """NaN where the arithmetic does not determine the weight: without rotary angles a bias of the keys moves
    all scores of a row alike, so its gradient is zero but for rounding, and Adam makes steps of any noise."""
    if model.config.model_type == "gpt2":
        width = model.config.n_embd
        for name, tensor in final.items():
            if name.endswith(("attn.c_attn.bias", "attn.c_attn.base_layer.bias")):
                tensor[width : 2 * width] = math.nan


def run_bf16(model, batches, case):
    """Step 0 up to its gradients with all weights rounded to bfloat16 and everything else exact."""
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(round_hi(parameter))
        for name, buffer in rounded.named_buffers():
            if name.endswith("embed_scale"):  # has the type of the weights
                buffer.copy_(round_hi(buffer))
        rounded.double()
        objective = case.get("objective", {})
        with noisy(rounded, objective, 0, 0), dropping(rounded, objective, 0, 0):
            logits = rounded(input_ids=batches[0][0][0], use_cache=False).logits.clone()
    loss = step_loss(rounded, batches[0], case, 0)
    grads = {name: parameter.grad for name, parameter in rounded.named_parameters() if parameter.requires_grad}
    norm = math.sqrt(sum(float(grad.pow(2).sum()) for grad in grads.values()))
    return {"logits": logits, "loss": loss, "grads": grads, "grad_norm": norm}


# ---- output -------------------------------------------------------------------------------------------


def sample(tensor):
    flat = tensor.flatten()
    return (flat[::SAMPLE_STRIDE] if flat.numel() > SAMPLE_ABOVE else flat).float().contiguous()


def compare(exact, single):
    """How far the float32 run of transformers is from the reference."""
    def worst(a, b, relative):
        error = float((a - b.double()).nan_to_num(0.0).abs().max())
        return error / float(a.abs().max()) if relative else error

    return {
        "losses": max(abs(a - b) for a, b in zip(exact["losses"], single["losses"])),
        "grad_norms_relative": max(abs(a - b) / a for a, b in zip(exact["grad_norms"], single["grad_norms"])),
        "logits": worst(exact["logits"], single["logits"], False),
        "grads_relative": {n: worst(g, single["grads"][n], True) for n, g in exact["grads"].items()},
        "final": {n: worst(w, single["final"][n], False) for n, w in exact["final"].items()},
    }


def check(name, exact, errors):
    grads, final = max(errors["grads_relative"].values()), max(errors["final"].values())
    print(f"{name}: float32 differs by: losses {errors['losses']:.1e}, logits {errors['logits']:.1e}, "
          f"grads {grads:.1e} of their largest, grad norms {errors['grad_norms_relative']:.1e}, "
          f"final weights {final:.1e}")
    if exact["margins"][0] < FIRST_MARGIN or min(exact["margins"]) < MARGIN:
        raise SystemExit(f"{name}: routers choose by {exact['margins']}, too close for a comparison; "
                         "take another seed")
    if exact["clamps"][0] < CLAMP_MARGIN:
        raise SystemExit(f"{name}: clamped by {exact['clamps'][0]}, too close for a comparison; take another bound")
    if errors["losses"] > 1e-5 or errors["logits"] > 2e-5 or grads > 1e-4 or final > 1e-4:
        raise SystemExit(f"{name}: the float64 reference and transformers in float32 disagree")


def write_json(path, content):
    """One key per line, so that a difference can be read."""
    compact = json.JSONEncoder(separators=(",", ":"))
    lines = [f"{json.dumps(key)}: {compact.encode(value)}" for key, value in content.items()]
    with open(path, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


def make_case(name, folder):
    case = CASES[name]
    model = make_model(case)
    tokens = make_tokens(case, case.get("used_vocab", model.config.vocab_size))
    batches = make_batches(case, tokens)

    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    packed = case.get("packed", False)
    if "share_layers" in case:
        share_layers(model, case["share_layers"], parameters=False)
    model.save_pretrained(folder, save_original_format=not packed)
    extra = {}
    if case.get("base_dtype") == "q8":  # behind what the folder has
        round_to_bytes(model)
    if "lora" in case:
        model = add_adapters(model, case)
        model.save_pretrained(os.path.join(folder, "adapter"))
        os.remove(os.path.join(folder, "adapter", "README.md"))
        for kind, dtype in (("merged", torch.float32), ("merged_bf16", torch.bfloat16)):
            if "base_dtype" in case:  # adapters merge into the folder's weights, as those of other cases do
                break
            whole = by_saved_name(model.get_base_model(), packed, merged(model, dtype))
            extra.update({f"{kind}.{n}": t.contiguous() for n, t in whole.items()})
    if case.get("mxfp4", False):
        model = to_mxfp4(model, folder)
    if "share_layers" in case:
        share_layers(model, case["share_layers"], parameters=True)

    single = train(copy.deepcopy(model), batches, case)
    with in_float64():
        exact = train(copy.deepcopy(model).double(), batches, case)
        bf16 = run_bf16(model, batches, case)
    mark_undetermined(model, exact["final"])
    errors = compare(exact, single)
    check(name, exact, errors)

    named = {kind: by_saved_name(model, packed, tensors) for kind, tensors in (
        ("grad", exact["grads"]), ("bf16_grad", bf16["grads"]), ("final", exact["final"]))}
    tensors = {"logits": exact["logits"].float(), "bf16_logits": bf16["logits"].float()}
    tensors.update({f"{kind}.{n}": sample(t) for kind in named for n, t in named[kind].items()})
    tensors.update(extra)
    safetensors.torch.save_file(tensors, os.path.join(folder, "golden.safetensors"))
    parameters = dict(model.named_parameters())
    write_json(os.path.join(folder, "golden.json"), {
        "versions": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
        "reference": "float64 throughout; stored as float32",
        "seq": case["seq"], "batch": case["batch"], "micro_batches": case["micro_batches"],
        "steps": STEPS,
        "learning_rate": LEARNING_RATE, "warmup_steps": WARMUP_STEPS, "min_lr_ratio": MIN_LR_RATIO,
        "lr_scheduler_type": "cosine",
        "adam_beta1": BETAS[0], "adam_beta2": BETAS[1], "adam_epsilon": EPS,
        "weight_decay": WEIGHT_DECAY, "max_grad_norm": case["max_grad_norm"],
        "frozen": [] if "lora" in case else [n for n, p in parameters.items() if not p.requires_grad],
        **({"objective": case["objective"]} if "objective" in case else {}),
        **({"groups": {n: list(g) for n, g in groups_of(case, model).items()}} if "groups" in case else {}),
        "decayed": list(by_saved_name(model, packed, {n: p for n, p in parameters.items() if decays(n, p)})),
        "sample_stride": SAMPLE_STRIDE, "sample_above": SAMPLE_ABOVE,
        "lrs": exact["lrs"], "losses": exact["losses"], "grad_norms": exact["grad_norms"],
        "bf16_loss": bf16["loss"], "bf16_grad_norm": bf16["grad_norm"],
        "grad_sumsq": {n: float(g.pow(2).sum()) for n, g in named["grad"].items()},
        **({"adapter": "adapter"} if "lora" in case else {}),
        **({"base_dtype": case["base_dtype"]} if "base_dtype" in case else {}),
        **({"share_layers": case["share_layers"]} if "share_layers" in case else {}),
        **({"router_margins": exact["margins"]} if math.isfinite(min(exact["margins"])) else {}),
        **({"router_bias_rate": case["router_bias_rate"], "skips_idle": case["skips_idle"], "idle": exact["idle"]}
           if "router_bias_rate" in case else {}),
        **({"router_weights": case["router_losses"], "router_balance": [b for b, _ in exact["router_losses"]],
            "router_z": [z for _, z in exact["router_losses"]]} if "router_losses" in case else {}),
        "float32_error": errors,
        "inputs": [[inputs.flatten().tolist() for inputs, _ in step] for step in batches],
        "targets": [[targets.flatten().tolist() for _, targets in step] for step in batches],
    })
    if case.get("ignored_share", 0.0) == 0.0:  # bytes cannot say which targets do not count
        with open(os.path.join(folder, "tokens.bytes"), "wb") as file:
            file.write(bytes(tokens))
    files = [os.path.join(place, entry) for place, _, entries in os.walk(folder) for entry in entries]
    for file in files:
        os.chmod(file, 0o644)
    size = sum(os.path.getsize(file) for file in files)
    print(f"{name}: {sum(p.numel() for p in parameters.values())} parameters, {size / 1000:.0f} kB; "
          f"loss {exact['losses'][0]:.4f} to {exact['losses'][-1]:.4f}, "
          f"grad norm {exact['grad_norms'][0]:.3f} to {exact['grad_norms'][-1]:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--output", default=os.path.join(here, ".."))
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    args = parser.parse_args()
    for name in args.cases:
        if name not in CASES:
            parser.error(f"no case {name}; there are {', '.join(CASES)}")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for name in args.cases or CASES:
        make_case(name, os.path.join(args.output, name))


if __name__ == "__main__":
    main()
