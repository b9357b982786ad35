#!/usr/bin/env python3
"""Makes tests/golden/parts/: folders of several parts whose text model is that of a golden case.

    python3 tests/golden/make/golden_parts.py [--output tests/golden]

gemma3 has the names of tensors that transformers writes, mistral3 those that its models have, which other programs
write. It checks that the model of several parts has the text model's logits where there is nothing but text.
"""

import argparse
import json
import os
import shutil

import safetensors.torch
import torch
import transformers


def vision(kind):
    return kind(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=4,
                patch_size=2, **({"head_dim": 8} if kind is transformers.PixtralVisionConfig else {}))


def text_config(case):
    out = transformers.AutoConfig.from_pretrained(case).to_dict()
    out.pop("_name_or_path", None)
    return out


def make(folder, case, kind, config, inner_names):
    text = transformers.AutoModelForCausalLM.from_pretrained(case, dtype=torch.float32, attn_implementation="eager")
    torch.manual_seed(1)
    model = kind(config).eval()
    model.set_attn_implementation("eager")
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    model.tie_weights()
    ids = torch.arange(24)[None] % 50
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, text.eval()(input_ids=ids).logits)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    path = os.path.join(folder, "model.safetensors")
    tensors = safetensors.torch.load_file(path)
    if inner_names:
        tensors = {("model." + name).replace("model.language_model.model.", "model.language_model.")
                   .replace("model.language_model.lm_head", "lm_head"): t for name, t in tensors.items()}
        safetensors.torch.save_file(tensors, path)
    generation = os.path.join(folder, "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)
    for entry in os.listdir(folder):
        os.chmod(os.path.join(folder, entry), 0o644)
    print(folder, sorted({".".join(name.split(".")[:2]) for name in tensors}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--output", default=os.path.join(here, ".."))
    args = parser.parse_args()
    torch.set_num_threads(1)
    gemma = os.path.join(args.output, "gemma3")
    mistral = os.path.join(args.output, "mistral_window")
    config = transformers.Gemma3Config(text_config=text_config(gemma), mm_tokens_per_image=4,
                                       vision_config=vision(transformers.SiglipVisionConfig))
    make(os.path.join(args.output, "parts", "gemma3"), gemma, transformers.Gemma3ForConditionalGeneration, config,
         False)
    config = transformers.Mistral3Config(text_config=text_config(mistral),
                                         vision_config=vision(transformers.PixtralVisionConfig),
                                         tie_word_embeddings=False)
    make(os.path.join(args.output, "parts", "mistral3"), mistral, transformers.Mistral3ForConditionalGeneration, config,
         True)


if __name__ == "__main__":
    main()
