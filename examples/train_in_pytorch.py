"""Trains choir's Transformer in PyTorch with capped expert choice, and exports a checkpoint for the program.

python3 examples/train_in_pytorch.py en.model text.txt checkpoint [STEPS]
choir eval checkpoint --text text.txt
"""

import sys

import torch

import choir
import choir.torch

tokenizer = choir.Tokenizer(sys.argv[1])
with open(sys.argv[2], encoding="utf-8") as file:
    ids = torch.from_numpy(tokenizer.encode(file.read())).long()
steps = int(sys.argv[4]) if len(sys.argv) > 4 else 200
config = choir.Config(
    vocab_size=tokenizer.vocab_size,
    layers=4,
    d_model=64,
    d_hidden=128,
    heads=4,
    experts=8,
    **{
        "router.name": "capped_expert_choice",
        "router.cap": 3,
        "train.sequence_length": 64,
        "train.batch_sequences": 16,
    },
)
model = choir.torch.Transformer(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(1, steps + 1):
    begin = torch.randint(0, len(ids) - 64, (16,))
    batch = torch.stack([ids[i : i + 64] for i in begin])
    loss = model.loss(batch)
    optimizer.zero_grad()
    (loss + model.aux_loss).backward()
    choir.torch.update_routers(model)  # thresholds, by which `choir eval` and `generate` route
    optimizer.step()
    if step % 20 == 0 or step == steps:
        print(f"step {step}  loss by batch routing {loss.item():.4f}", flush=True)
model.export(sys.argv[3], tokenizer)
