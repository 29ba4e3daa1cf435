"""Fine-tunes a Mixture of Experts of transformers with choir's layers: padded batches, LoRA on the experts, and loads that a
bias balances, without a loss. Then it is saved, loaded and turned back into transformers' own, which vLLM and `choir import`
read. Needs transformers 5 and peft.

python3 examples/finetune_moe.py OUT [FILE] [--model FOLDER] [--steps N]

FILE has a text a line. Without FOLDER (Mixtral, OLMoE, Qwen3Moe, with a tokenizer) it is a small fresh OLMoE that reads bytes.
"""

import argparse
import os
import pathlib

import peft
import torch
import transformers

import choir.torch

LENGTH, BATCH = 96, 16


class Bytes:
    """The tokenizer of the small model: 256 is padding."""

    def __call__(self, texts):
        rows = [list(text.encode())[:LENGTH] for text in texts]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [256] * (longest - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids != 256).long()}


def small():
    """OLMoE-1B-7B's shape in small: of 64 experts a token has 8 there."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.OlmoeConfig(vocab_size=257, num_experts=16, num_experts_per_tok=4, pad_token_id=256, eos_token_id=None, **sizes)
    return transformers.OlmoeForCausalLM(config), Bytes()


def loaded(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    words = {"return_tensors": "pt", "padding": True, "truncation": True, "max_length": LENGTH}
    return transformers.AutoModelForCausalLM.from_pretrained(folder), lambda texts: tokenizer(texts, **words)


def loss_of(model, batch):
    """Labels are -100 where there is padding, which the loss leaves out; the layers hear of it by attention_mask."""
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return model(**batch, labels=labels).loss


@torch.no_grad()
def mean_loss(model, batches):
    model.eval()
    return sum(float(loss_of(model, batch)) for batch in batches) / len(batches)


def train(model, encode, texts, steps):
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-2)
    optimizer.register_step_pre_hook(lambda *_: choir.torch.update_routers(model))
    choir.torch.stats(model)  # counts from here on
    for step in range(1, steps + 1):
        chosen = torch.randint(len(texts), (BATCH,)).tolist()
        loss = loss_of(model.train(), encode([texts[i] for i in chosen]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps:
            fullest = max(layer.max_load for layer in choir.torch.stats(model).values())
            print(f"step {step}  loss {loss.item():.3f}  fullest expert {fullest:.2f} of the mean load", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("file", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__))
    parser.add_argument("--model")
    parser.add_argument("--steps", type=int, default=100)
    words = parser.parse_args()
    folders = [words.out / name for name in ("converted", "transformers")]
    for folder in folders:
        if os.path.lexists(folder):
            parser.error(f"{folder}: exists already; choose another OUT")
    torch.manual_seed(1)
    model, encode = loaded(words.model) if words.model else small()
    texts = [line for line in words.file.read_text(encoding="utf-8").splitlines() if line.strip()]
    held_out = [encode(texts[i : i + BATCH]) for i in range(0, min(len(texts), 4 * BATCH), BATCH)]

    top_k, normalized = model.config.num_experts_per_tok, getattr(model.config, "norm_topk_prob", True)
    choir.torch.convert(model, "bias_balanced", top_k=top_k, normalize_gates=normalized, bias_rate=1e-3)
    before = mean_loss(model, held_out)
    lora = peft.LoraConfig(
        r=8, target_modules=["q_proj", "v_proj"], target_parameters=["experts.gate_up_proj", "experts.down_proj"]
    )
    adapted = peft.get_peft_model(model, lora)
    train(adapted, encode, texts, words.steps)
    model = adapted.merge_and_unload()
    after = mean_loss(model, held_out)
    print(f"loss {before:.4f}, fine-tuned {after:.4f}")

    model.save_pretrained(folders[0])
    again = choir.torch.from_pretrained(folders[0])
    print(f"saved and loaded {mean_loss(again, held_out):.4f}")
    choir.torch.revert(again).save_pretrained(folders[1])  # without what balanced its loads
    print(f"transformers' own {mean_loss(again, held_out):.4f}; choir import {folders[1]} --out CHECKPOINT")


if __name__ == "__main__":
    main()
