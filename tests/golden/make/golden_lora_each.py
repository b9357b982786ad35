"""Writes lora_mixtral/each, an adapter as PEFT saved it for transformers 4: with A and B of each expert's modules; and
lora_mixtral/joined, what PEFT makes of it on transformers 5. Usage: golden_lora_each.py FOLDER"""
import json
import os
import shutil
import sys

import peft
import safetensors.torch
import torch
import transformers

R, ALPHA, SEED = 2, 3, 731


def main(folder):
    each, joined = os.path.join(folder, "each"), os.path.join(folder, "joined")
    for path in (each, joined):
        shutil.rmtree(path, ignore_errors=True)
    os.makedirs(each)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config, random, tensors = model.config, torch.Generator().manual_seed(SEED), {}

    def add(module, outputs, inputs):
        tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn((R, inputs), generator=random)
        tensors[f"base_model.model.{module}.lora_B.weight"] = torch.randn((outputs, R), generator=random)

    for layer in range(config.num_hidden_layers):
        front = f"model.layers.{layer}"
        add(f"{front}.self_attn.q_proj", config.hidden_size, config.hidden_size)
        add(f"{front}.block_sparse_moe.gate", config.num_local_experts, config.hidden_size)
        for expert in range(config.num_local_experts):
            name = f"{front}.block_sparse_moe.experts.{expert}"
            add(f"{name}.w1", config.intermediate_size, config.hidden_size)
            add(f"{name}.w2", config.hidden_size, config.intermediate_size)
            add(f"{name}.w3", config.intermediate_size, config.hidden_size)
    safetensors.torch.save_file(tensors, os.path.join(each, "adapter_model.safetensors"))
    with open(os.path.join(each, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": None, "r": R,
                   "lora_alpha": ALPHA, "lora_dropout": 0.0, "bias": "none", "inference_mode": True,
                   "target_modules": ["q_proj", "gate", "w1", "w2", "w3"]}, file, indent=2)
        file.write("\n")
    peft.PeftModel.from_pretrained(model, each).save_pretrained(joined)
    os.remove(os.path.join(joined, "README.md"))
    for path in (each, joined):
        for name in os.listdir(path):
            os.chmod(os.path.join(path, name), 0o644)


main(sys.argv[1])
