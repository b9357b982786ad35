"""Writes the seeds of the fuzz targets: small files of every kind the readers know, whole and broken.

    python3 tests/fuzz/seeds.py          into tests/fuzz/seeds/; other files there stay

good-* are opened to their end, bad-* are refused (tests/fuzz/test_seeds.c).
"""
import copy
import gzip
import json
import lzma
import os
import struct

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "seeds")
SPLIT = b"\n%%\n"


def put(target, name, data):
    folder = os.path.join(ROOT, target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode())


def dump(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def parts(*texts):
    return SPLIT.join(t if isinstance(t, bytes) else t.encode() if isinstance(t, str) else dump(t) for t in texts)


# ---- safetensors ------------------------------------------------------------------------------------------------

BITS = {"F32": 32, "F16": 16, "BF16": 16, "I64": 64, "U8": 8, "F8_E4M3": 8, "F4": 4, "F6_E2M3": 6, "BOOL": 8}


def header(tensors, start=0, **more):
    out = dict(more)
    at = start
    for name, dtype, shape in tensors:
        count = 1
        for size in shape:
            count *= size
        out[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + count * BITS[dtype] // 8]}
        at = out[name]["data_offsets"][1]
    return out, at


def st(head, data):
    text = head if isinstance(head, bytes) else dump(head)
    return struct.pack("<Q", len(text)) + text + data


def st_of(tensors, data=None, **more):
    head, size = header(tensors, **more)
    return st(head, data if data is not None else bytes(i * 37 % 256 for i in range(size)))


def safetensors():
    def good(name, data):
        put("safetensors", "good-" + name, data)

    def bad(name, data):
        put("safetensors", "bad-" + name, data)

    good("empty", st({}, b""))
    good("three", st_of([("w", "F32", [2, 3]), ("b", "BF16", [4]), ("h", "F16", [3])], __metadata__={"format": "pt"}))
    halves = struct.pack("<8H", 0, 1, 0x8001, 0x3ff, 0x400, 0x7bff, 0x7c00, 0xfe01)
    good("halves", st_of([("h", "F16", [8])], halves))
    good("scalar", st_of([("s", "F32", []), ("none", "BF16", [0, 5])]))
    good("others", st_of([(d, d, [8]) for d in ("I64", "U8", "F8_E4M3", "F4", "F6_E2M3", "BOOL")]))
    good("padded", st(dump(header([("w", "F32", [1])])[0]) + b"      ", b"\0\0\x80\x3f"))
    good("large", st_of([("w", "BF16", [33, 40]), ("v", "F32", [7])]))

    one = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}

    def changed(**keys):
        return st({"w": {**one, **keys}}, b"\0\0\0\0")

    bad("nothing", b"")
    bad("short", b"\2\0\0\0\0\0\0")
    bad("length", struct.pack("<Q", 1 << 60) + b"{}")
    bad("json", st(b"{", b""))
    bad("twice", st(b'{"w":%s,"w":%s}' % (dump(one), dump(one)), b"\0\0\0\0"))
    bad("array", st(b"[]", b""))
    bad("entry", st({"w": 1}, b""))
    bad("metadata", st({"__metadata__": {"a": 1}}, b""))
    bad("metadata-list", st({"__metadata__": []}, b""))
    bad("dtype", changed(dtype="F33"))
    bad("shape", changed(shape=1))
    bad("rank", changed(shape=[1] * 9))
    bad("negative", changed(shape=[-1]))
    bad("overflow", changed(shape=[1 << 40, 1 << 40]))
    bad("bits", changed(shape=[1 << 60]))
    bad("offsets", changed(data_offsets=[0]))
    bad("backwards", changed(data_offsets=[4, 0]))
    bad("size", changed(data_offsets=[0, 3]))
    bad("half-byte", st({"w": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, b"\0"))
    bad("hole", changed(data_offsets=[1, 5]))
    two, _ = header([("a", "F32", [1]), ("b", "F32", [1])])
    two["b"]["data_offsets"] = [0, 4]
    bad("overlap", st(two, b"\0" * 8))
    bad("cut", st({"w": {**one, "shape": [2], "data_offsets": [0, 8]}}, b"\0\0\0\0"))
    bad("more", st({"w": one}, b"\0" * 5))
    bad("big-integer", st(b'{"w":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]}}', b"\0" * 4))


# ---- model folders ----------------------------------------------------------------------------------------------

LLAMA = {"model_type": "llama", "vocab_size": 16, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}
GPT2 = {"model_type": "gpt2", "vocab_size": 16, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 4}
MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": 8, "tie_word_embeddings": False}
QWEN2 = {**LLAMA, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
QWEN3 = {**LLAMA, "model_type": "qwen3", "head_dim": 4, "attention_bias": True}
ROPE3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 64}


def model():
    def good(name, base, **keys):
        put("model", "good-" + name + ".json", dump({**base, **keys}))

    def bad(name, base, **keys):
        put("model", "bad-" + name + ".json", dump({**base, **keys}))

    good("llama", LLAMA)
    good("llama-full", LLAMA, architectures=["LlamaForCausalLM"], bos_token_id=1, eos_token_id=[2, 3],
         pad_token_id=None, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=500000.0, max_position_embeddings=128,
         attention_bias=True, mlp_bias=True, attention_dropout=0.0, pretraining_tp=1, initializer_range=0.01,
         head_dim=6, torch_dtype="bfloat16", use_cache=True, tie_word_embeddings=False, own_key={"a": [1, None, "x"]})
    good("llama-rope3", LLAMA, rope_theta=1e4, rope_scaling=ROPE3)
    good("llama-rope5", LLAMA, rope_parameters={**ROPE3, "rope_theta": 5e5})
    good("llama-rope-between", LLAMA, rope_scaling={**ROPE3, "original_max_position_embeddings": 100}, head_dim=32)
    good("llama-both", LLAMA, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
         rope_scaling={"type": "llama3", **{k: ROPE3[k] for k in ROPE3 if k != "rope_type"}})
    good("llama-partial", LLAMA, rope_scaling={"rope_type": "default", "partial_rotary_factor": 1.0}, head_dim=None)
    good("llama-layers", LLAMA, num_hidden_layers=3, architectures=["LlamaModel"], hidden_act="swish")
    good("gpt2", GPT2)
    good("gpt2-full", GPT2, n_inner=20, activation_function="gelu_pytorch_tanh", attn_pdrop=0.1, embd_pdrop=0.0,
         layer_norm_epsilon=1e-6, scale_attn_weights=True, tie_word_embeddings=False, architectures=["GPT2Model"])
    good("mistral", MISTRAL)
    good("mistral-no-window", MISTRAL, sliding_window=None, use_sliding_window=None)
    good("mistral-defaults", {k: v for k, v in MISTRAL.items() if k not in ("sliding_window", "num_key_value_heads")},
         num_attention_heads=8, hidden_size=32)
    good("qwen2", QWEN2)
    good("qwen2-types", QWEN2, num_hidden_layers=3,
         layer_types=["full_attention", "sliding_attention", "sliding_attention"])
    good("qwen2-off", QWEN2, use_sliding_window=False)
    good("qwen2-defaults", {k: v for k, v in QWEN2.items() if k not in ("sliding_window", "max_window_layers")})
    good("qwen3", QWEN3)
    good("qwen3-mixed", QWEN3, attention_bias=False, num_hidden_layers=2, use_sliding_window=True, sliding_window=3,
         layer_types=["sliding_attention", "full_attention"])
    good("smollm3", {**LLAMA, "model_type": "smollm3"}, num_hidden_layers=2, no_rope_layers=[1, 0])
    bad("smollm3-rope", {**LLAMA, "model_type": "smollm3"}, no_rope_layers=[2])
    good("qwen3-full", QWEN3, attention_bias=False, layer_types=["full_attention"])
    good("big-integer", LLAMA, model_max_length=10**30)
    put("model", "good-spaces.json", json.dumps(LLAMA, indent=2))

    put("model", "bad-json.json", b'{"model_type": "llama",')
    put("model", "bad-array.json", b"[]")
    put("model", "bad-empty.json", b"{}")
    bad("type", LLAMA, model_type="mamba")
    bad("type-number", LLAMA, model_type=1)
    bad("architecture", LLAMA, architectures=["LlamaForSequenceClassification"])
    bad("quantised", LLAMA, quantization_config={"bits": 4})
    bad("cross", GPT2, add_cross_attention=True)
    bad("act", LLAMA, hidden_act="gelu")
    bad("act-number", LLAMA, hidden_act=3)
    bad("dropout", LLAMA, attention_dropout=0.1)
    bad("rope-type", LLAMA, rope_scaling={"rope_type": "proportional", "factor": 2.0})
    good("rope-yarn", LLAMA, rope_scaling={"rope_type": "yarn", "factor": 2.0, "beta_fast": 4, "truncate": False})
    good("rope-linear", LLAMA, rope_scaling={"type": "linear", "factor": 2.0})
    good("rope-dynamic", LLAMA, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 5e4})
    good("rope-long", LLAMA, rope_scaling={"type": "su", "short_factor": [1, 1], "long_factor": [2, 3.5]})
    good("olmo2", {**LLAMA, "model_type": "olmo2"})
    good("olmo3", {**LLAMA, "model_type": "olmo3"}, sliding_window=3)
    good("gemma2", {**LLAMA, "model_type": "gemma2"}, query_pre_attn_scalar=144, sliding_window=3,
         attn_logit_softcapping=50.0, final_logit_softcapping=None)
    good("gemma3", {**LLAMA, "model_type": "gemma3_text"}, sliding_window_pattern=2,
         rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                          "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})
    bad("gemma3-rope", {**LLAMA, "model_type": "gemma3_text"},
        rope_parameters={"full_attention": {"rope_type": "default"},
                         "sliding_attention": {"rope_type": "linear", "factor": 8.0}})
    good("granite", {**LLAMA, "model_type": "granite"}, embedding_multiplier=12.0, attention_multiplier=0.015625,
         residual_multiplier=0.22, logits_scaling=49.0)
    bad("granite-zero", {**LLAMA, "model_type": "granite"}, logits_scaling=0)
    good("exaone4", {**LLAMA, "model_type": "exaone4"}, sliding_window=3, sliding_window_pattern=2)
    good("cohere2", {**LLAMA, "model_type": "cohere2"}, logit_scale=0.25, layer_norm_eps=1e-5)
    good("mixtral", {**LLAMA, "model_type": "mixtral"}, num_local_experts=4, num_experts_per_tok=2)
    good("qwen3_moe", {**LLAMA, "model_type": "qwen3_moe"}, num_experts=4, num_experts_per_tok=3, decoder_sparse_step=2,
         mlp_only_layers=[0], moe_intermediate_size=8, norm_topk_prob=True)
    good("olmoe", {**LLAMA, "model_type": "olmoe"}, num_experts=4, num_experts_per_tok=1, clip_qkv=8.0)
    good("gpt_oss", {**LLAMA, "model_type": "gpt_oss"}, num_local_experts=4, num_experts_per_tok=2, sliding_window=3,
         swiglu_limit=7.0, quantization_config={"quant_method": "mxfp4"},
         rope_scaling={"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 64})
    good("glm4_moe", {**LLAMA, "model_type": "glm4_moe"}, n_routed_experts=4, num_experts_per_tok=2, n_group=2,
         topk_group=1, moe_intermediate_size=8, n_shared_experts=1, first_k_dense_replace=1, use_qk_norm=True)
    good("granitemoe", {**LLAMA, "model_type": "granitemoe"}, num_local_experts=4, num_experts_per_tok=2,
         residual_multiplier=0.22, logits_scaling=3.0)
    good("deepseek_v3", {**LLAMA, "model_type": "deepseek_v3"}, n_routed_experts=4, num_experts_per_tok=2, n_group=2,
         topk_group=1, moe_intermediate_size=8, n_shared_experts=1, first_k_dense_replace=1, q_lora_rank=6,
         kv_lora_rank=6, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=6, rope_interleave=False,
         num_key_value_heads=LLAMA["num_attention_heads"])
    good("deepseek_v2", {**LLAMA, "model_type": "deepseek_v2"}, n_routed_experts=4, num_experts_per_tok=2,
         topk_method="group_limited_greedy", n_group=2, topk_group=1, moe_intermediate_size=8, q_lora_rank=None,
         kv_lora_rank=6, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=6,
         num_key_value_heads=LLAMA["num_attention_heads"])
    bad("deepseek_v3-heads", {**LLAMA, "model_type": "deepseek_v3"}, qk_rope_head_dim=0)
    bad("glm4_moe-groups", {**LLAMA, "model_type": "glm4_moe"}, n_routed_experts=4, n_group=4)
    bad("gpt_oss-quantised", {**LLAMA, "model_type": "gpt_oss"}, num_local_experts=4, num_experts_per_tok=2,
        quantization_config={"quant_method": "gptq"})
    bad("mixtral-chosen", {**LLAMA, "model_type": "mixtral"}, num_local_experts=4, num_experts_per_tok=5)
    bad("qwen2_moe-layers", {**LLAMA, "model_type": "qwen2_moe"}, num_experts_per_tok=1, mlp_only_layers=[99])
    good("phi3", {**LLAMA, "model_type": "phi3"}, partial_rotary_factor=0.5, sliding_window=3,
         original_max_position_embeddings=64,
         rope_scaling={"type": "longrope", "short_factor": [1], "long_factor": [2]})
    bad("rope-long", LLAMA, rope_scaling={"type": "longrope", "short_factor": [1], "long_factor": [2, 3.5]})
    bad("rope-text", LLAMA, rope_scaling="x")
    bad("rope-key", LLAMA, rope_scaling={"rope_type": "default", "beta": 1})
    bad("rope-two", LLAMA, rope_theta=1.0, rope_parameters={"rope_type": "default", "rope_theta": 2.0})
    bad("rope-factor", LLAMA, rope_scaling={**ROPE3, "factor": 0.0})
    bad("rope-order", LLAMA, rope_scaling={**ROPE3, "low_freq_factor": 9.0})
    bad("rope-missing", LLAMA, rope_scaling={"rope_type": "llama3"})
    bad("theta", LLAMA, rope_theta=0)
    bad("theta-text", LLAMA, rope_theta="x")
    bad("heads", LLAMA, num_attention_heads=3, num_key_value_heads=2, head_dim=4)
    bad("hidden", LLAMA, num_attention_heads=3)
    bad("heads-none", LLAMA, num_attention_heads=0)
    bad("odd", LLAMA, head_dim=3)
    bad("vocab", LLAMA, vocab_size=1 << 33)
    bad("vocab-none", LLAMA, vocab_size=0)
    bad("vocab-text", LLAMA, vocab_size="x")
    bad("bos", LLAMA, bos_token_id=-7)
    bad("tied", LLAMA, tie_word_embeddings=1)
    bad("epsilon", LLAMA, rms_norm_eps=0)
    bad("range", LLAMA, initializer_range=2)
    good("many", LLAMA, vocab_size=1 << 24, hidden_size=1 << 20, num_hidden_layers=30, num_attention_heads=256,
         intermediate_size=1 << 22)
    bad("gpt2-heads", GPT2, n_head=3)
    bad("gpt2-dropout", GPT2, attn_pdrop="x")
    bad("gpt2-scale", GPT2, scale_attn_weights=False)
    bad("gpt2-wide", GPT2, n_embd=1 << 31, n_head=1)
    bad("window", MISTRAL, sliding_window=0)
    bad("types", QWEN2, layer_types=["chunked_attention", "full_attention"], num_hidden_layers=2)
    bad("types-count", QWEN2, layer_types=["full_attention"] * 2)
    bad("types-window", QWEN2, use_sliding_window=False, layer_types=["sliding_attention"])


def llama_tensors(layers, prefix="model.", tied=True, dtype="BF16"):
    out = [(prefix + "embed_tokens.weight", dtype, [16, 8])]
    for i in range(layers):
        p = f"{prefix}layers.{i}."
        out += [(p + "input_layernorm.weight", dtype, [8]), (p + "self_attn.q_proj.weight", dtype, [8, 8]),
                (p + "self_attn.k_proj.weight", dtype, [4, 8]), (p + "self_attn.v_proj.weight", dtype, [4, 8]),
                (p + "self_attn.o_proj.weight", dtype, [8, 8]), (p + "post_attention_layernorm.weight", dtype, [8]),
                (p + "mlp.gate_proj.weight", dtype, [12, 8]), (p + "mlp.up_proj.weight", dtype, [12, 8]),
                (p + "mlp.down_proj.weight", dtype, [8, 12])]
    out.append((prefix + "norm.weight", dtype, [8]))
    return out if tied else out + [("lm_head.weight", dtype, [16, 8])]


def gpt2_tensors(prefix, masks):
    p = prefix + "h.0."
    out = [(prefix + "wte.weight", "F32", [16, 8]), (prefix + "wpe.weight", "F32", [4, 8]),
           (p + "ln_1.weight", "F32", [8]), (p + "ln_1.bias", "F32", [8]), (p + "attn.c_attn.weight", "F32", [8, 24]),
           (p + "attn.c_attn.bias", "F32", [24]), (p + "attn.c_proj.weight", "F32", [8, 8]),
           (p + "attn.c_proj.bias", "F32", [8]), (p + "ln_2.weight", "F32", [8]), (p + "ln_2.bias", "F32", [8]),
           (p + "mlp.c_fc.weight", "F32", [8, 32]), (p + "mlp.c_fc.bias", "F32", [32]),
           (p + "mlp.c_proj.weight", "F32", [32, 8]), (p + "mlp.c_proj.bias", "F32", [8]),
           (prefix + "ln_f.weight", "F32", [8]), (prefix + "ln_f.bias", "F32", [8])]
    return out + ([(p + "attn.bias", "U8", [16]), (p + "attn.masked_bias", "F32", [])] if masks else [])


def hf():
    def single(name, config, tensors, start=0):
        put("hf", name, parts(config, b"", header(tensors, start)[0]))

    def index(shards, **more):
        names = ("a", "b", "c")
        return {"metadata": {"total_size": 1}, "weight_map": {
            t[0]: names[i] + ".safetensors" for i, shard in enumerate(shards) for t in shard}, **more}

    whole = llama_tensors(1)
    halves = [whole[:4], whole[4:]]
    heads = [header(h)[0] for h in halves]
    single("good-llama", LLAMA, whole)
    single("good-bare", LLAMA, llama_tensors(1, prefix=""))
    single("good-f16", LLAMA, llama_tensors(1, dtype="F16"))
    single("good-untied", {**LLAMA, "tie_word_embeddings": False}, llama_tensors(1, tied=False))
    single("good-tied-head", LLAMA, llama_tensors(1, tied=False))
    single("good-gpt2", GPT2, gpt2_tensors("transformer.", True))
    single("good-gpt2-bare", GPT2, gpt2_tensors("", False))
    put("hf", "good-shards", parts(LLAMA, index(halves), *heads))
    single("bad-missing", LLAMA, whole[:-1])
    single("bad-missing-head", {**LLAMA, "tie_word_embeddings": False}, whole)
    single("bad-more", LLAMA, whole + [("model.layers.1.mlp.up_proj.weight", "BF16", [12, 8])])
    single("bad-twice", LLAMA, whole + [("norm.weight", "BF16", [8])])
    single("bad-shape", LLAMA, whole[:-1] + [("model.norm.weight", "BF16", [9])])
    single("bad-rank", LLAMA, whole[:-1] + [("model.norm.weight", "BF16", [2, 2, 2])])
    single("bad-dtype", LLAMA, whole[:-1] + [("model.norm.weight", "I64", [8])])
    single("bad-tied-head", LLAMA, llama_tensors(1)[:-1] + [("model.norm.weight", "BF16", [8]),
                                                           ("x", "U8", [1]), ("lm_head.weight", "BF16", [16, 8])])
    head, _ = header(llama_tensors(1))
    end = head["model.norm.weight"]["data_offsets"][1]
    head["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"dtype": "U8", "shape": [1], "data_offsets": [end, end + 1]}
    head["lm_head.weight"] = {"dtype": "BF16", "shape": [16, 8], "data_offsets": [end + 1, end + 257]}
    put("hf", "bad-other-head", parts(LLAMA, b"", head))
    head = copy.deepcopy(head)
    head["lm_head.weight"]["shape"] = [8, 16]
    put("hf", "bad-head-shape", parts(LLAMA, b"", head))
    put("hf", "bad-no-weights", parts(LLAMA))
    put("hf", "bad-config", parts("{", b"", {}))
    put("hf", "bad-big", parts({**LLAMA, "vocab_size": 1 << 24, "hidden_size": 1 << 20, "num_hidden_layers": 99,
                                "num_attention_heads": 256, "intermediate_size": 1 << 22}, b"", {}))
    put("hf", "bad-header", parts(LLAMA, b"", "[1"))
    put("hf", "bad-index-json", parts(LLAMA, "{", *heads))
    put("hf", "bad-index-empty", parts(LLAMA, {"weight_map": {}}, *heads))
    put("hf", "bad-index-list", parts(LLAMA, [], *heads))
    for name, file in (("up", "../a.safetensors"), ("hidden", ".a"), ("number", 3), ("none", ""), ("absent", "d.st"),
                       ("long", "a" * 300)):
        one = index(halves)
        one["weight_map"][whole[0][0]] = file
        put("hf", "bad-index-" + name, parts(LLAMA, one, *heads))
    one = index(halves)
    one["weight_map"][whole[0][0]] = "b.safetensors"
    put("hf", "bad-index-other", parts(LLAMA, one, *heads))
    one = index(halves)
    del one["weight_map"][whole[0][0]]
    put("hf", "bad-index-unlisted", parts(LLAMA, one, *heads))
    one = index(halves)
    one["weight_map"]["model.extra"] = "b.safetensors"
    put("hf", "bad-index-extra", parts(LLAMA, one, *heads))
    put("hf", "bad-shards-twice", parts(LLAMA, index([whole, [("norm.weight",)]]), header(whole)[0],
                                        header([("norm.weight", "BF16", [8])])[0]))


# ---- tokenizers -------------------------------------------------------------------------------------------------

def byte_chars():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out, more = {}, 0
    for byte in range(256):
        if byte in plain:
            out[byte] = chr(byte)
        else:
            out[byte] = chr(256 + more)
            more += 1
    return out


def added(id_, text, **flags):
    return {"id": id_, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True, **flags}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
LLAMA3_SPLIT = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
TEXT = "He said: don't  go!\n\n12345 \t\u00e9\u0301\u4e2d\u6587 \U0001f600 <s>x<mask> tail\n"


def byte_model(merges=("h e", "l l", "\u0120 t", "\u0120t he"), letters="abcdefghijklmnopqrstuvwxyz.,!'0123456789"):
    """All bytes would make the seed long: ASCII's letters, and the bytes of the other characters of TEXT."""
    chars = byte_chars()
    wanted = sorted({chars[b] for b in (letters + TEXT + " \n").encode()})
    vocab = {c: i for i, c in enumerate(wanted)}
    for merge in merges:
        for text in (*merge.split(" "), merge.replace(" ", "")):
            vocab.setdefault(text, len(vocab))
    return {"type": "BPE", "vocab": vocab, "merges": list(merges)}


def fallback_model(**keys):
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in (0x0a, 0xc3, 0xa9, 0xe4, 0xb8, 0xad, 0xf0, 0x9f, 0x98, 0x80):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for text in [*"\u2581abcdefghilmnorstu.,", "he", "\u2581h", "\u2581he", "ll"]:
        vocab.setdefault(text, len(vocab))
    return {"type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
            "ignore_merges": False, "vocab": vocab,
            "merges": [["h", "e"], ["\u2581", "h"], ["\u2581", "he"], ["l", "l"], ["\u2581h", "e"]], **keys}


def tokenizer_file(model_, **keys):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model_, **keys}


def template(before, after=()):
    ids = {"<s>": 1, "</s>": 2}

    def special(name):
        return {"SpecialToken": {"id": name, "type_id": 0}}

    return {"type": "TemplateProcessing", "pair": [],
            "single": [*map(special, before), {"Sequence": {"id": "A", "type_id": 0}}, *map(special, after)],
            "special_tokens": {n: {"id": n, "ids": [ids[n]], "tokens": [n]} for n in (*before, *after)}}


def tokenizer():
    def good(name, file, *more):
        put("tokenizer", "good-" + name, parts(file, *more))

    def bad(name, file, *more):
        put("tokenizer", "bad-" + name, parts(file, *more))

    level = {"pre_tokenizer": BYTE_LEVEL, "decoder": BYTE_LEVEL}
    base = byte_model()
    count = len(base["vocab"])
    gpt2 = tokenizer_file(base, **level, post_processor=BYTE_LEVEL)
    good("gpt2", gpt2, "", "", "", TEXT)
    good("prefix", tokenizer_file(base, pre_tokenizer={**BYTE_LEVEL, "add_prefix_space": True}, decoder=BYTE_LEVEL), "",
         "", "", TEXT)
    good("added", tokenizer_file(base, **level, added_tokens=[
        added(count, "<s>"), added(count + 1, "<mask>", lstrip=True, rstrip=True),
        added(count + 2, "word", single_word=True, special=False, normalized=True), added(count + 3, "<s>x"),
        added(count + 4, "tail", rstrip=True, special=False), added(count, "<s>")]),
        {"bos_token": "<s>", "eos_token": {"content": "<mask>"}, "add_bos_token": True, "add_eos_token": True,
         "chat_template": "<|im_start|>"}, "", "", "word a word sword <s>x<s> <mask>  tail  \n tail" + TEXT)
    good("llama3", tokenizer_file({**base, "ignore_merges": True}, pre_tokenizer={
        "type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": LLAMA3_SPLIT}, "behavior": "Isolated", "invert": False},
            {**BYTE_LEVEL, "use_regex": False}]}, decoder=BYTE_LEVEL,
        normalizer={"type": "NFC"}), "", {"bos_token_id": 3, "eos_token_id": [4, 5]}, "{{ [INST] }}", TEXT)
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    decoders = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    specials = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")]
    normalizers = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    good("llama2", tokenizer_file(fallback_model(), normalizer=normalizers, decoder=decoders, added_tokens=specials,
                                  post_processor=template(["<s>"], ["</s>"])),
         {"bos_token": {"content": "<s>"}, "add_bos_token": True,
          "chat_template": [{"name": "x", "template": "a"}, {"name": "default", "template": "[INST] <<SYS>>"}]}, "", "",
         TEXT)
    for scheme in ("always", "first", "never"):
        good("metaspace-" + scheme, tokenizer_file(
            fallback_model(byte_fallback=False), pre_tokenizer={**metaspace, "prepend_scheme": scheme},
            decoder={**metaspace, "prepend_scheme": scheme}, added_tokens=specials), "", "", "", "he <s> he" + TEXT)
    good("unsplit", tokenizer_file(fallback_model(fuse_unk=False), pre_tokenizer={**metaspace, "split": False},
                                   decoder={"type": "ByteFallback"}), "", "", "", TEXT)
    good("no-unk", tokenizer_file(fallback_model(unk_token=None, byte_fallback=False)), "", "", "", TEXT)
    for form in ("NFD", "NFKC", "NFKD"):
        good(form.lower(), tokenizer_file(base, **level, normalizer={"type": form}, added_tokens=[
            added(count, "\u00e9", normalized=True)]), "", "", "",
            "\ufb01\u00e9e\u0301\u1e69\uac00\u1100\u1161\u11a8 \u212b\u0344" + TEXT)
    behaviors = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    for behavior in behaviors:
        good("split-" + behavior.lower(), tokenizer_file(base, pre_tokenizer={"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "[aeio]+|\\d"}, "behavior": behavior, "invert": False},
            {"type": "Split", "pattern": {"String": "l"}, "behavior": behavior, "invert": True},
            {"type": "Digits", "individual_digits": behavior == "Removed"}, BYTE_LEVEL]}), "", "", "", TEXT)
    pieces = ["\\s\\S\\d\\D", "[\\s\\d]+", "\\x41\\u0042\\x{1F600}", "(?i)a(?=b)(?!c)(?<=d)(?<!e)(?>f)(g)",
              "a{2}b{3,}c{1,2}", "\\n\\r\\t\\f\\a\\e\\.", "[^a-z]\\P{L}", "x*", "[\\]a]|\\p{Lu}*+"]
    for i, regex in enumerate(pieces):
        good(f"regex-{i}", tokenizer_file(base, pre_tokenizer={"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"}, BYTE_LEVEL]}), "", "", "", TEXT)
    wrong = ["[\\S]", "\\x{41", "\\x4", "\\xff", "a\\", "\\p", "\\pL", "\\k", "[[a]]", "[a&&b]", "(*F)", "(?x)", "a{",
             "a{2}+", "[]", "[^]", "^a", "a$", "(", "\\u12", "a{,2}", "(?P<n>a)", "[a", "a\u00e9\\\u00e9"]
    for i, regex in enumerate(wrong):
        bad(f"regex-{i}", tokenizer_file(base, pre_tokenizer={
            "type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"}), "", "", "", TEXT)
    good("merges", tokenizer_file({"vocab": {"a": 0, "b": 1, "ab": 2, "aa": 3, "abab": 4},
                                   "merges": ["#version: 0.2", "a b", "a a", "ab ab", "a b"]}), "", "", "",
         "abababaaab" * 30)
    good("replace", tokenizer_file(base, **level, normalizer={
        "type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}), "", "", "", TEXT)
    good("text-invalid", gpt2, "", "", "", b"ok \xff\xfe then \xed\xa0\x80")
    good("post", tokenizer_file(fallback_model(), post_processor={"type": "Sequence", "processors": [
        BYTE_LEVEL, template(["<s>"])]}, decoder={"type": "Sequence", "decoders": [
            {"type": "Strip", "content": "h", "start": 2, "stop": 9}, {"type": "ByteFallback"}]}),
        {"add_bos_token": False}, "", "", "he\u00e9" + TEXT)

    good("spaces", tokenizer_file(base, **level, added_tokens=[
        added(count, " ", rstrip=True), added(count + 1, "#", lstrip=True), added(count + 2, "\u2003", rstrip=True),
        *(added(count + 3 + i, f"<{i}>", lstrip=True, rstrip=True) for i in range(12))]), "", "", "",
         "a   b \u2028 #x# \u1680\u2003 \u205f<3> \u3000\u00a0<4>\u0085<5>  <6>" + TEXT)
    words = [added(base["vocab"]["w"], "w", single_word=True, special=False), added(count, "\u4e2d", single_word=True)]
    good("words", tokenizer_file(base, **level, added_tokens=words), "", "", "",
         "w ww \u00e9w w\u0301 w_ w\u203f w\u200d w5 w\u0665 w\u216b -w- \u4e2d\u6587 w")
    good("many-marks", tokenizer_file(base, **level, normalizer={"type": "NFC"}), "", "", "",
         "a" + "\u0301\u0323\u0345\u0300\u05b0\u3099" * 8 +
         "\U0001d15e\U0001d1bc \u1100\u1161\u11a8\u11a7 \ufb2c\u0958")
    more = {**base["vocab"], "\u4e2d": count, "x\u6587": count + 1}
    good("not-bytes", tokenizer_file({**base, "vocab": more}, **level), "", "", "", bytes(range(1, 128)))
    good("strip", tokenizer_file(fallback_model(), decoder={"type": "Sequence", "decoders": [
        {"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never"},
        {"type": "Strip", "content": "e", "start": 1, "stop": 2}, {"type": "Fuse"}]}), "", "", "",
         b"he\x01\x01he\x01\x02\x03\x05 the")
    good("no-such-unk", tokenizer_file(fallback_model(unk_token="<none>", byte_fallback=False)), "", "", "", "he # he")
    good("whole", tokenizer_file(fallback_model(ignore_merges=True)), "", "", "", "\u2581he")
    prefix = {**BYTE_LEVEL, "add_prefix_space": True}
    good("prefix-space", tokenizer_file(base, pre_tokenizer=prefix), "", "", "", " he")
    good("post-bos", tokenizer_file(fallback_model(), post_processor=template(["<s>"])), "", "", "", "he")

    lines = "One  \nTwo \u4e2d\n\u4e2d\u6587\n\n\nx!\r\nyes \t\n a\n'll <s>\nend<s>\nIt's\n5\u0301\n\u0301e"
    qwen = LLAMA3_SPLIT.replace("\\p{N}{1,3}", "\\p{N}")
    for name, split in (("llama3", LLAMA3_SPLIT), ("qwen", qwen)):
        good("cut-" + name, tokenizer_file(base, pre_tokenizer={"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False},
            {**BYTE_LEVEL, "use_regex": False}]}, normalizer={"type": "NFC"}, added_tokens=[
                added(count, "<s>"), added(count + 1, "\n\n", special=False)]), "", "", "", lines)
    good("cut-gpt2", tokenizer_file(base, pre_tokenizer=prefix, added_tokens=[added(count, "<s>")]), "", "", "", lines)
    good("cut-gpt2-plain", tokenizer_file(base, **level, added_tokens=[added(count, "<s>")]), "", "", "", lines)
    full = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{i:02X}>": 3 + i for i in range(256)}}
    for text in ("\u2581", "a", "e", "\u2581a", "\n", "\n\n"):
        full[text] = len(full)
    chars = {**fallback_model(), "vocab": full, "merges": [["\u2581", "a"], ["\n", "\n"]]}
    good("cut-llama2", tokenizer_file(chars, normalizer=normalizers, added_tokens=specials), "", "", "", lines)
    good("cut-metaspace", tokenizer_file(chars, pre_tokenizer=metaspace, added_tokens=specials), "", "", "", lines)

    tiny = {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}

    good("vanish", tokenizer_file(tiny), "", "", "", "??")
    newlines = {"vocab": {"\n": 0, "\n\n": 1}, "merges": ["\n \n"]}
    good("cut-vanish", tokenizer_file(newlines), "", "", "", "\nx\n")
    good("cut-unknown", tokenizer_file({"unk_token": "\n", **newlines}), "", "", "", "\nx\n")

    def one(name, **keys):
        bad(name, tokenizer_file(keys.pop("model", tiny), **keys), "", "", "", "ab")

    bad("json", "{")
    bad("array", "[]")
    one("model-none", model=None)
    one("model-type", model={**tiny, "type": "Unigram"})
    one("vocab-empty", model={"vocab": {}, "merges": []})
    one("vocab-text", model={"vocab": {"a": "x"}, "merges": []})
    one("vocab-large", model={"vocab": {"a": 1 << 40}, "merges": []})
    one("vocab-twice", model={"vocab": {"a": 0, "b": 0}, "merges": []})
    one("merge-missing", model={**tiny, "merges": ["a c"]})
    one("merge-right", model={**tiny, "merges": ["b a"]})
    one("merge-left", model={**tiny, "merges": ["c a"]})
    one("merge-one", model={**tiny, "merges": ["ab"]})
    one("merge-three", model={**tiny, "merges": ["a b c"]})
    one("merge-mixed", model={**tiny, "merges": [["a", "b"], "a b"]})
    one("merge-pair", model={**tiny, "merges": [["a"]]})
    one("dropout", model={**tiny, "dropout": 0.5})
    one("affix", model={**tiny, "end_of_word_suffix": "</w>"})
    one("unk-number", model={**tiny, "unk_token": 5})
    one("fallback-text", model={**tiny, "byte_fallback": "x"})
    one("added-list", added_tokens={})
    one("added-id", added_tokens=[added(9, "x")])
    one("added-flags", added_tokens=[added(3, "x"), added(3, "x", lstrip=True)])
    one("added-missing", added_tokens=[{"id": 3}])
    one("added-long", added_tokens=[added(3, "x" * 4097)])
    one("added-gone", added_tokens=[added(3, "x", normalized=True)],
        normalizer={"type": "Replace", "pattern": {"String": "x"}, "content": ""})
    one("normalizer", normalizer={"type": "Lowercase"})
    one("normalizer-type", normalizer={"type": 5})
    one("normalizer-list", normalizer={"type": "Sequence"})
    one("normalizer-many", normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}] * 17})
    one("pre", pre_tokenizer={"type": "Whitespace"})
    one("pre-behind", pre_tokenizer={"type": "Sequence", "pretokenizers": [BYTE_LEVEL, BYTE_LEVEL]})
    one("pre-behavior", pre_tokenizer={"type": "Split", "pattern": {"String": "a"}, "behavior": "Odd"})
    one("pre-pattern", pre_tokenizer={"type": "Split", "pattern": {}, "behavior": "Isolated"})
    one("pre-empty", pre_tokenizer={"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated"})
    one("metaspace-char", pre_tokenizer={**metaspace, "replacement": "ab"})
    one("metaspace-scheme", pre_tokenizer={**metaspace, "prepend_scheme": "odd"})
    one("metaspace-prefix", pre_tokenizer={**metaspace, "add_prefix_space": False})
    one("decoder", decoder={"type": "WordPiece"})
    one("decoder-regex", decoder={"type": "Replace", "pattern": {"Regex": "a"}, "content": ""})
    one("decoder-strip", decoder={"type": "Strip", "content": "", "start": 1, "stop": 1})
    one("post", post_processor={"type": "RobertaProcessing"})
    one("post-type", post_processor={"single": []})
    one("post-single", post_processor={"type": "TemplateProcessing"})
    one("post-none", post_processor={"type": "TemplateProcessing", "single": []})
    one("post-b", post_processor={"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B"}}]})
    one("post-special", post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}]})
    one("post-id", post_processor={"type": "TemplateProcessing", "special_tokens": {"x": {"ids": [-1]}},
                                   "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}]})
    one("post-far", post_processor={"type": "TemplateProcessing", "special_tokens": {"x": {"ids": [77]}},
                                    "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}]})
    small = tokenizer_file(tiny)
    bad("config-json", small, "{", "", "", "ab")
    good("config-bos", small, {"bos_token": "zz"}, "", "", "ab")
    good("config-eos", small, {"eos_token": "zz"}, "", "", "ab")
    bad("config-decoder", small, {"added_tokens_decoder": {"3": {"content": 1}}}, "", "", "ab")
    bad("config-flag", small, {"add_bos_token": "x"}, "", "", "ab")
    bad("config-flag-eos", small, {"add_eos_token": "x"}, "", "", "ab")
    bad("beside", small, "", "[", "", "ab")
    for i, text in enumerate(["<|start_header_id|><|end_header_id|>", "[INST][SYSTEM_PROMPT] ", "[INST][SYSTEM_PROMPT]",
                              "[INST]' [INST] ' + system_message", "[INST][AVAILABLE_TOOLS]\"[INST]\"",
                              "[INST][AVAILABLE_TOOLS]", "<|im_start|>reasoning_content", "<|im_start|><|im_sep|>",
                              "<|im_start|>You are Qwen, created by Alibaba Cloud", "other"]):
        good(f"template-{i}", small, "", "", text, "ab")


# ---- rows -------------------------------------------------------------------------------------------------------

FAMILIES = ["chatml", "qwen2.5", "qwen3", "llama2", "llama3", "mistral-v1", "mistral-v3", "mistral-v3-tekken",
            "mistral-v7", "mistral-v7-tekken"]


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def chat():
    def rows(name, first, *lines):
        put("chat", name, b"\n".join([first.encode(), *(dump(line) for line in lines)]))

    turns = [message("user", "hi <|im_end|><s>[INST]"), message("assistant", " yo\n")]
    system = [message("system", "He ")]
    for family in FAMILIES:
        rows("good-" + family, family, {"messages": system + turns + turns}, {"messages": turns},
             {"text": "he <s> he"}, {"prompt": "a", "completion": "b</s>"})
        rows("good-special-" + family, family + " special", {"messages": turns})
        rows("good-prompt-" + family, family + " prompt", {"messages": system + turns + turns[:1]})
        rows("bad-roles-" + family, family + " prompt", {"messages": turns})
    for family in FAMILIES[:3]:
        rows("good-tools-" + family, family,
             {"messages": turns + [message("tool", "a"), message("tool", "b"), turns[1]]})
        rows("good-order-" + family, family, {"messages": [turns[1], system[0], turns[0], turns[0], turns[1]]})
    for family in FAMILIES:
        rows("good-last-" + family, family + " last", {"messages": turns + turns})
        rows("good-everything-" + family, family + " everything", {"messages": system + turns})
        rows("good-plain-" + family, family + " plain", {"messages": turns}, {"messages": system + turns})
    rows("good-calls", "chatml plain", {"messages": turns + [
        message("assistant", "x", tool_calls=[{"id": "<|im_end|>"}]), message("developer", "<|im_")],
        "tools": [{"<s>": 1}], "documents": [{"text": "</s>"}], "chat_template_kwargs": {"a": None}})
    rows("good-thinking", "qwen3", {"messages": [
        turns[0], message("assistant", "<think>\nwell\n</think>\n\nyo"), turns[0],
        message("assistant", "yo", reasoning_content="so \n"), message("user", "<tool_response>x</tool_response>"),
        message("assistant", "</think>", weight=0)]})
    rows("good-alpaca", "llama3", {"instruction": "a", "input": "b", "output": "c", "system": "d",
                                   "history": [["e", "f"], ["g", "h"]]},
         {"instruction": "", "input": "x", "output": ""})
    rows("good-sharegpt", "qwen2.5", {"conversations": [
        {"from": "system", "value": "s"}, {"from": "human", "value": "h"}, {"from": "function_call", "value": "f"},
        {"from": "observation", "value": "o"}, {"from": "gpt", "value": "g"}]},
        {"system": "s", "conversations": [{"from": "human", "value": "h"}, {"from": "gpt", "value": "g"}]})
    rows("good-content", "chatml", {"messages": [
        message("user", [{"type": "text", "text": "a"}, {"type": "text", "value": "b"}]), message("assistant", [])]},
        {"messages": [turns[0], {**turns[1], "weight": 1.0, "loss_weight": None, "tool_calls": []}], "tools": []})
    for name, row in {
            "json": None, "empty": {}, "list": [], "messages": {"messages": []}, "messages-text": {"messages": "x"},
            "message": {"messages": [1]}, "role": {"messages": [message(3, "x")]},
            "role-none": {"messages": [{"content": "x"}]}, "content": {"messages": [{"role": "user"}]},
            "content-part": {"messages": [message("user", [{"type": "image"}])]},
            "content-number": {"messages": [message("user", 3)]},
            "calls": {"messages": [message("assistant", 3, tool_calls=[{}])]},
            "tools": {"tools": {}, "messages": turns}, "tools-text": {"tools": "x", "messages": turns},
            "kwargs": {"chat_template_kwargs": 3, "messages": turns},
            "weight": {"messages": [message("assistant", "x", weight=0.5)]},
            "weight-user": {"messages": [message("user", "x", weight=1)]},
            "turns-none": {"conversations": []},
            "turns-from": {"conversations": [{"from": "me", "value": "g"}]},
            "turns-value": {"conversations": [{"from": "human"}]},
            "turns-system": {"conversations": [{"from": "system"}]},
            "turns-system-number": {"system": 3, "conversations": []},
            "alpaca": {"instruction": 3}, "alpaca-input": {"instruction": "a", "input": 3},
            "alpaca-output": {"instruction": "a"}, "alpaca-system": {"instruction": "a", "output": "b", "system": 3},
            "history": {"instruction": "a", "output": "b", "history": 3},
            "history-pair": {"instruction": "a", "output": "b", "history": [["x"]]},
            "completion": {"prompt": "a"}, "prompt": {"prompt": 3}, "text": {"text": 3}, "null": {"text": None},
            "flag": {"messages": [message("assistant", "x", train="no")]},
            "flag-unknown": {"messages": [message("assistant", "x", lossScale=2)]},
            "images": {"images": ["a.png"], "messages": turns}, "marked": {"text": "a", "label": False},
            "preference": {"prompt": "a", "chosen": "b", "rejected": "c"}, "pair": {"question": "a", "answer": "b"},
            "role-case": {"messages": [message("User", "x")]}, "ids": {"input_ids": [1, 2], "labels": [-100, 3]}}.items():
        rows("bad-" + name, "chatml", row)
    rows("good-flags", "chatml", {"messages": [message("user", "a", train=False), message("assistant", "b", mask=True),
                                               message("assistant", "c", loss=True)]})
    rows("good-ids", "chatml", {"input_ids": [1, 2, 0], "labels": [-100, 2, -100], "attention_mask": [1, 1, 0]})
    rows("good-ends", "llama2", {"text": " <s>a</s>\n"}, {"prompt": "<s>", "completion": "</s>"}, {"text": "</s>"})
    answer = lambda text: message("assistant", text)
    rows("good-pairs", "chatml pairs", {"prompt": "ab ", "chosen": "c d", "rejected": ""},
         {"chosen": "ab cd", "rejected": "ab ce"}, {"chosen": "\u00e9a", "rejected": "\u00e8a"},
         {"prompt": [turns[0]], "chosen": [answer("a")], "rejected": [answer("b"), turns[0], answer("c")]},
         {"chosen": [turns[0], answer("a")], "rejected": [turns[0], answer("b")], "tools": []},
         {"prompt": "h", "chosen": [answer("a")], "rejected": [answer("a")]},
         {"prompt": "h", "chosen": [{"from": "human", "value": "h"}, {"from": "gpt", "value": "a"}],
          "rejected": [{"from": "human", "value": "h"}, {"from": "gpt", "value": "b"}]})
    for name, row in {"half": {"chosen": "a"}, "kinds": {"chosen": "a", "rejected": [answer("b")]},
                      "start": {"chosen": [answer("a")], "rejected": [answer("b")]},
                      "prompt": {"prompt": [1], "chosen": "a", "rejected": "b"},
                      "weight": {"prompt": [turns[0]], "chosen": [message("assistant", "a", weight=0)],
                                 "rejected": [answer("b")]}}.items():
        rows("bad-pairs-" + name, "chatml pairs", row)
    rows("good-turns", "chatml", {"conversations": [{"from": "human", "value": "h"}]},
         {"conversations": [{"from": "gpt", "value": "g"}]})
    put("chat", "bad-line", b'chatml\n{"text": "a"')
    put("chat", "bad-utf8", b'chatml\n{"text": "a\xff"}')
    rows("bad-undefined", "chatml", {"messages": [turns[0], message("assistant", None, tool_calls=[{}])]})


# ---- token files, YAML, checkpoints ------------------------------------------------------------------------------

def data():
    def llmc(tokens, magic=20240520, version=1, count=None, form="H"):
        head = struct.pack("<3i", magic, version, len(tokens) if count is None else count).ljust(1024, b"\0")
        return head + struct.pack(f"<{len(tokens)}{form}", *tokens)

    def llmq(tokens, version=1, width=4, count=None, masked=None, masks=b"", magic=b"BIN.TOK\n"):
        head = magic + struct.pack("<3i", version, width, len(tokens) if count is None else count)
        head += struct.pack("<2i", 99, masked if masked is not None else 0)
        return head.ljust(1024, b"\0") + struct.pack(f"<{len(tokens)}I", *tokens) + masks

    small = llmc([1, 2, 3])
    put("data", "good-llmc", llmc(range(40)))
    put("data", "good-llmc3", llmc([1, 128255, 0], 20240801, 7, form="I"))
    put("data", "good-llmq", llmq([5, 6, 70000]))
    put("data", "good-llmq-masks", llmq(range(12), 2, masked=1, masks=b"\x5a\x0f"))
    put("data", "good-llmq-filler", llmq([1], 2, masked=0x2a2a2a2a))
    put("data", "good-folder", parts(small, llmc([9]), llmc([])))
    put("data", "good-id", llmq([0xffffffff]))
    put("data", "bad-bytes", b"plain text\n")
    put("data", "bad-empty", b"")
    put("data", "bad-short", small[:1000])
    put("data", "bad-cut", small[:-1])
    put("data", "bad-more", small + b"\0")
    put("data", "bad-none", llmc([]))
    put("data", "bad-version", llmc([1], version=2))
    put("data", "bad-negative", llmc([1], count=-1))
    put("data", "bad-eval", llmc([1], 20240522))
    put("data", "bad-llmq-version", llmq([1], 3))
    put("data", "bad-llmq-width", llmq([1], width=2))
    put("data", "bad-llmq-negative", llmq([1], count=-5))
    put("data", "bad-llmq-flag", llmq([1], 2, masked=7))
    put("data", "bad-llmq-masks", llmq([1], 2, masked=1))
    put("data", "bad-folder", parts(b"text", b"more"))
    put("data", "mixed-folder", parts(b"text", small))


def documents():
    def one(name, line, *files):
        put("documents", name, line.encode() + b"\n" + parts(*files))

    text = "A first line.\nSecond one.\n\n  Third\n\u00e9t\u00e9 \u4e2d\n\u4e2d end\n5 no cut\n"
    rows = '{"text":"a"}\n\n  {"text":"b, ] \\" \\\\"}  \r\n[1]'
    one("good-text", "text 0", text)
    one("good-pieces", "text 8", text * 4)
    one("good-before", "text-before 8", text * 4)
    one("good-parted", "text 5 ---", text + " --- \n---" + text + "---")
    one("good-folder", "text 16 ##", text + "##" + text, text)
    one("good-mark", "text 0", b"\xef\xbb\xbftext")
    one("good-invalid", "text 4", b"ab\n\xff\xfe\nabc\n\xe4\xb8\n\xe4\xb8\xad")
    one("good-rows", "rows 0", rows)
    one("bad-rows-pretty", "rows 0", '{\n  "a": [\n  1\n  ]\n}\n{\n}')
    one("good-rows-folder", "rows 0", rows, b"\xef\xbb\xbf[{}, 1]\n")
    array = '\n [ {"a": [1, {"b": "]"}]} ,\n\n"x\\"," , 5\n]\n '
    one("good-array", "rows 0", array)
    one("good-array-empty", "rows 0", "[ ]", "1")
    one("bad-array-empty", "rows 0", "[ ]")
    one("bad-array-open", "rows 0", '[{"a": 1}, ')
    one("bad-array-value", "rows 0", '[{"a": 1')
    one("bad-array-missing", "rows 0", "[1,,2]")
    one("bad-array-comma", "rows 0", "[1}]")
    one("bad-array-behind", "rows 0", "[1] x")
    one("bad-blank", "rows 0", " \n\n")
    one("bad-empty", "text 0", "")
    one("bad-separators", "text 0 --", "-- \n --")
    row = b'{"text":"packed"}\n' * 3
    zstd = b"\x28\xb5\x2f\xfd\x20" + bytes([len(row)]) + struct.pack("<I", 1 | len(row) << 3)[:3] + row
    for kind, packed in {"gzip": gzip.compress(row, mtime=0), "xz": lzma.compress(row), "zstd": zstd}.items():
        one(f"good-{kind}", "rows 0", packed)
        one(f"good-{kind}-twice", "rows 0", packed + packed)
        one(f"bad-{kind}-cut", "rows 0", packed[:-5])
        one(f"bad-{kind}-more", "rows 0", packed + b"{}")


def cache():
    def one(name, words, borders, faults=0, magic=b"OXTOKENS", version=1, **keys):
        head = {"tokens": len(words), "documents": len(borders), "trained": 1, "longest": len(words), "vocab": 100,
                "chat": 0, **keys}
        start = magic + struct.pack("<2I", version, 0)
        start += struct.pack("<7Q2I", head["tokens"], head["documents"], head["trained"], 1, 2, 50, head["longest"],
                             head["vocab"], head["chat"]) + struct.pack("<Q", 0x1234)
        put("cache", name, bytes([faults]) + start + parts(struct.pack(f"<{len(words)}I", *words),
                                                           struct.pack(f"<{len(borders)}Q", *borders)))

    few = [5 | 3 << 30, 6, 7 | 1 << 31, 8 | 1 << 30]
    one("good-few", few, [0, 3])
    one("good-chat", few, [0, 3], chat=1)
    one("good-id", [1 << 29], [0])
    one("good-borders", few, [9, 1 << 60])
    one("good-checksum-tokens", few, [0, 3], faults=1 | 1 << 2)
    one("good-checksum-documents", few, [0, 3], faults=1 | 2 << 2)
    one("bad-checksum", few, [0, 3], faults=1)
    one("bad-cut", few, [0, 3], faults=2)
    one("bad-magic", few, [0, 3], magic=b"OXTOKENX")
    one("bad-version", few, [0, 3], version=2)
    one("bad-none", [], [], longest=0, trained=0)
    one("bad-tokens", few, [0, 3], tokens=1 << 40)
    one("bad-documents", few, [0, 3], documents=5)
    one("bad-trained", few, [0, 3], trained=5)
    put("cache", "bad-short", b"\0OXTOK")


def jinja():
    variables = {"messages": [{"role": "user", "content": "Hi\u00e9 "}, {"role": "assistant", "content": "Yes", "n": [1, 2.5, None]}],
                 "tools": None, "add_generation_prompt": True, "s": "a, b", "l": [3, 1, 2], "d": {"b": 1, "a": "x"}}
    good = {
        "chatml": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m['content'] | trim + '<|im_end|>' }}\n"
                  "{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant{% endif %}",
        "loop": "{% for a, b in d.items() if a != 'z' %}{{ loop.index }}{{ loop.last }}{{ loop.nextitem }}{% else %}x{% endfor %}",
        "control": "{% for v in range(9) %}{% if v == 2 %}{% continue %}{% elif v > 4 %}{% break %}{% endif %}{{ v }}{% endfor %}",
        "recursive": "{% for v in [[1], [2, [3]]] recursive %}{{ loop(v) if v is iterable else v }}{% endfor %}",
        "macro": "{% macro f(a, b=l) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{{ caller() if caller }}{% endmacro %}"
                 "{{ f(1, 2, 3, z=4) }}{% call f(5) %}in{% endcall %}",
        "set": "{% set ns = namespace(a=0) %}{% set ns.a = ns.a + 1 %}{% set x | upper %}{{ ns.a }}b{% endset %}{{ x ~ ns }}",
        "blocks": "{% filter indent(2) %}a\nb{% endfilter %}{% generation %}{{ s }}{% endgeneration %}{% raw %}{{ }}{% endraw %}"
                  "{% with q = 1 %}{{ q }}{% endwith %}{#- note -#}",
        "filters": "{{ messages | tojson(indent=2) }}{{ l | sort | map('string') | join('-') }}{{ d | dictsort }}"
                   "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}"
                   "{{ messages | groupby('role') }}{{ l | batch(2, 0) | list }}{{ s | title | replace('a', 'b') }}",
        "methods": "{{ s.split(',') }}{{ s.strip().upper()[::-1] }}{{ '{:>5}|{}'.format(s, 1) }}{{ '%5.1f %s' % (2.5, s) }}"
                   "{{ s.partition(',') }}{{ d.get('q', 1) }}",
        "operators": "{{ 7 // 2 ** 2 - -1 }}{{ 1 < 2 <= 3 }}{{ 'a' in s and not none or l[1:] }}{{ 5 is odd }}{{ 'a' if s else 'b' }}",
        "date": "{{ strftime_now('%d %b %Y') }}",
    }
    for name, source in good.items():
        put("jinja", "good-" + name, parts(source, variables))
    bad = {
        "raised": "{{ raise_exception('no ' ~ s) }}", "undefined": "{{ missing.a }}", "type": "{{ 1 + 'a' }}", "tag": "{% nope %}",
        "filter": "{{ 1 | nope }}", "end": "{% if 1 %}", "string": "{{ 'a }}", "steps": "{% for a in range(99999) %}{{ a }}{% endfor %}",
        "deep": "{{ " + "(" * 300 + "1" + ")" * 300 + " }}", "macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "memory": "{% set x = namespace(a='ab') %}{% for i in range(99) %}{% set x.a = x.a + x.a %}{% endfor %}", "divide": "{{ 1 // 0 }}",
    }
    for name, source in bad.items():
        put("jinja", "bad-" + name, parts(source, variables))


def yaml():
    def good(name, text):
        put("yaml", "good-" + name + ".yaml", text)

    def bad(name, text):
        put("yaml", "bad-" + name + ".yaml", text)

    good("empty", "")
    good("comment", "# nothing\n")
    bad("document", "---\n...\n")
    good("run", "model: a folder/x\ndata: 'it''s'\noutput-dir: \"q\\\"\\\\ \\u00e9\"\nmax_steps: 10\n"
         "learning_rate: 3e-4\ndtype: bf16\ndevice_mem: 20GiB\nhost_mem: 1.5 GB\nfrom_scratch: yes\n"
         "nvme:\n  - /mnt/a:400GiB\n  - /mnt/b\nlr_scheduler_type: wsd\nprefetch_depth: -1\n"
         "seed: 18446744073709551615\nweight_decay: .5\n")
    good("flow", "{model: m, nvme: [/a:1KiB, '/b:2B'], seed: 7}\n")
    good("nvme", "nvme: /mnt/a:3TiB\n")
    good("nvme-none", "nvme: []\n")
    good("data-colon", "data: ['/b:2:1', '/c:x']\n")
    good("folded", "model: >-\n  a\n  b\ndata: |-\n  x\n")
    good("lists", "data: [/a, '/b:2', /c:0.5]\nnvme: [/a:5GiB, /b]\ndocument_separator: '<|end|>'\nadd_bos: on\n"
         "packing: pad\nchat_template: qwen3\noverlong: truncate\ndata_format: jsonl\ndata_cache: /c\n")
    good("separator", "model: m\ndata: d\noutput: o\ndocument_separator: '\\n--'\n")
    run = "model: m\ndata: d\noutput: o\n"
    for i, text in enumerate([
            "from_scratch: true\nresume_from_checkpoint: latest\n",
            "overwrite_output_dir: true\nresume_from_checkpoint: latest\n", "nvme: [/a:1GiB, /a:1GiB]\n",
            "state_tier: nvme\n", "chunk_elems: 1000001\n", "adam_beta1: 1\n", "adam_epsilon: 1e-300\n",
            "max_steps: 0\nnum_train_epochs: 0\n", "warmup_steps: 1\nwarmup_ratio: 0.1\n", "decay_steps: 5\n",
            "min_lr_ratio: .1\nlr_scheduler_type: constant\n", "nvme: [/a]\n", "device_mem: 1GiB\nhost_mem: 1KiB\n",
            "max_steps: 10\nwarmup_steps: 8\ndecay_steps: 8\nlr_scheduler_type: wsd\n"]):
        good(f"check-{i}", run + text)
    good("check-same", "model: m\ndata: d\noutput: m\n")
    good("check-no-data", "model: m\noutput: o\n")
    good("check-no-output", "model: m\ndata: d\n")
    bad("weight-beyond", "data: ['/a:10000000']\n")
    bad("weight-dots", "data: ['/a:1..2']\n")
    good("weight-small", "data: ['/a:0.0625', '/b:0.1', '/c:0', '/d:999999.999']\n")
    good("check-inside", "model: m\ndata: d\noutput: m/sub\n")
    good("check-tiles", run + "tiles: 9\n")
    bad("backend", "io_backend: odd\n")
    bad("prose-long", "prompt: '" + "a" * 40000 + "'\n")
    bad("format", "data_format: odd\n")
    bad("whole", "seed: 99999999999999999999999\n")
    bad("depth", "prefetch_depth: -2\n")
    bad("depth-text", "prefetch_depth: x\n")
    bad("real-range", "adam_beta1: 1e400\n")
    bad("nvme-none", "nvme: [':5GiB']\n")
    bad("nvme-long", "nvme: ['/" + "a" * 1100 + ":5GiB']\n")
    good("weight-large", "data: ['/a:1e7']\n")
    good("weight-text", "data: ['/a:2x']\n")
    bad("data-none", "data: ['']\n")
    bad("data-many", "data: [" + ",".join(f"/{i}" for i in range(70)) + "]\n")
    bad("separator-long", "document_separator: '" + "a" * 1100 + "'\n")
    good("generate", "model: m\nprompt: \"a\\nb\\x01\\t\"\nsystem_prompt: 'c'\nchat: true\n")
    bad("unknown", "learning_rat: 1\n")
    bad("nothing-near", "zzzzzzzzzzzzzzzz: 1\n")
    bad("not-taken", "queue_depth: 5\nhelp: x\n")
    bad("twice", "seed: 1\nseed: 2\n")
    bad("alias", "model: *a\n")
    bad("anchor", "model: &a x\n")
    bad("tag", "seed: !!int 3\n")
    bad("key-list", "[a]: 3\n")
    bad("key-tag", "!!str seed: 3\n")
    bad("map", "model: {a: b}\n")
    bad("list", "- a\n")
    bad("scalar", "model\n")
    bad("map-tag", "!!map {seed: 1}\n")
    bad("two", "seed: 1\n---\nseed: 2\n")
    bad("null", "model: ~\n")
    bad("none", "model:\n")
    bad("syntax", "model: [a\n")
    bad("tab", "model:\n\t- a\n")
    bad("nul", "model: \"a\\0b\"\n")
    bad("number", "seed: x\n")
    bad("negative", "seed: -1\n")
    bad("range", "eval_fraction: 2\n")
    bad("real", "learning_rate: fast\n")
    bad("bool", "from_scratch: maybe\n")
    bad("choice", "dtype: fp8\n")
    bad("size", "host_mem: lots\n")
    bad("size-large", "host_mem: 99999999999EiB\n")
    bad("nvme-size", "nvme: [/a:x]\n")
    bad("nvme-map", "nvme: {a: b}\n")
    bad("nvme-list", "nvme: [[a]]\n")
    bad("nvme-anchor", "nvme: &x [/a:1]\n")
    bad("nvme-many", "nvme: [" + ",".join(f"/{i}:1" for i in range(20)) + "]\n")
    bad("long", "model: " + "a" * 2000 + "\n")
    bad("control", "model: \"a\\nb\"\n")
    bad("utf8", b"model: \xff\n")


# XXH3-128 of the two files that fuzz_manifest.c writes
HASHES = ["7809095c382d5f77daa13e4f205dc5ba", "bdbda1eb6e05adc4800d98e5524fefbc"]


def manifest():
    state = {"global_step": 7, "format_version": 3, "optimizer": "lion", "moments": "q8", "step": 7, "optimizer_steps": 6, "cursor": 56, "tokens_seen": 4480,
             "nonfinite_steps": 1, "nonfinite_in_row": 0, "run_id": "0123456789abcdef" * 2,
             "branch": "00000000000000aa", "seed": "000000000000002a", "data_fingerprint": "fedcba9876543210",
             "numerics_hash": "00000000000000ff",
             "best_eval_loss": 1.25, "weights_dtype": "BF16", "files": {
                 "config.json": {"bytes": 3, "xxh3_128": HASHES[0]},
                 "model.safetensors": {"bytes": 7, "xxh3_128": HASHES[1]}}}

    def one(name, latest="checkpoint-7\n", **keys):
        put("manifest", name, parts({**state, **keys}, latest))

    def files(**keys):
        return {**state["files"], **keys}

    one("good-whole")
    one("good-version-2", format_version=2)
    one("good-no-latest", latest="")
    one("good-other-latest", latest="checkpoint-9")
    one("good-up-latest", latest="../run/checkpoint-7")
    one("good-strange-latest", latest="checkpoint-99999999999999999999\n")
    one("good-null-loss", best_eval_loss=None, weights_dtype="F32")
    one("good-no-files", files={})
    one("good-missing", files=files(other={"bytes": 3, "xxh3_128": "0" * 32}))
    one("good-size", files=files(**{"config.json": {"bytes": 4, "xxh3_128": HASHES[0]}}))
    one("good-content", files=files(**{"config.json": {"bytes": 3, "xxh3_128": "0" * 32}}))
    one("good-folder", files=files(**{"trainer_state.json": {"bytes": 1, "xxh3_128": "0" * 32}}))
    one("bad-global-step", global_step=3)
    one("bad-updates", optimizer_steps=8)
    one("bad-skipped", nonfinite_steps=2)
    scaler = {"scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "_growth_tracker": 7}
    one("good-scaler", scaler=scaler, nonfinite_steps=0, overflow_steps=1, weights_dtype="F16", model_dtype="F16")
    one("bad-overflows", scaler=scaler, overflow_steps=1)
    one("bad-scale", scaler=scaler | {"scale": 3.0})
    one("bad-scale-small", scaler=scaler | {"scale": 0.5})
    one("bad-scale-none", scaler={"_growth_tracker": 7})
    one("bad-in-row", nonfinite_in_row=2)
    put("manifest", "bad-none", b"")
    put("manifest", "bad-json", b"{")
    put("manifest", "bad-foreign", parts({"global_step": 3}, "checkpoint-7"))
    put("manifest", "bad-array", parts([]))
    one("bad-version", format_version=1)
    one("bad-optimizer", optimizer="adam")
    one("bad-moments", moments=8)
    one("bad-moments-none", moments=None)
    one("bad-step", step=-1)
    one("bad-step-text", step="x")
    one("bad-run", run_id="0123")
    one("bad-hex", seed="000000000000002A")
    one("bad-loss", best_eval_loss="x")
    one("bad-dtype", weights_dtype="F64")
    one("bad-dtype-none", weights_dtype=None)
    one("bad-files", files=[])
    one("bad-file", files={"a": 1})
    one("bad-file-hash", files={"a": {"bytes": 1}})
    one("bad-file-bytes", files={"a": {"xxh3_128": "0" * 32}})
    for name, text in (("up", "../x"), ("hidden", ".x"), ("none", ""), ("inner", "a/b")):
        one("bad-name-" + name, files={text: {"bytes": 1, "xxh3_128": "0" * 32}})


if __name__ == "__main__":
    for make in (safetensors, model, hf, tokenizer, chat, data, documents, cache, jinja, yaml, manifest):
        make()
