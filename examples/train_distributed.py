"""Trains choir's Transformer on several processes: FSDP2 for all weights, expert parallelism for the experts.

torchrun --nproc-per-node 2 examples/train_distributed.py en.model text.txt run [STEPS]
choir eval run/model-200 --text text.txt

A run that is started again goes on from its last state, in run/state-STEP, on as many processes as there are then:
torchrun --max-restarts 3 starts it by itself when a process dies.
"""

import os
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module

import choir
import choir.torch


def sharded(model, device):
    """Experts by the processes of a machine, or as many of them as divide the experts; all other weights by everybody."""
    everybody, here = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    layers = [block.moe for block in model.layers if block.moe is not None]
    owners = max(n for n in range(1, here + 1) if here % n == 0 and layers[0].w1.shape[0] % n == 0)
    mesh = init_device_mesh(device, (everybody // owners, owners), mesh_dim_names=("dp", "ep"))
    flat = init_device_mesh(device, (everybody,))
    routed = [name for name, module in model.named_modules() if isinstance(module, choir.torch.MoE)]
    parallelize_module(model, mesh["ep"], {name: choir.torch.ExpertParallel() for name in routed})
    if everybody > owners:
        for layer in layers:
            fully_shard(layer.experts, mesh=mesh["dp"])
    owned = {weight for layer in layers for weight in layer.experts.parameters()}
    for block in model.layers:
        fully_shard(block, mesh=flat, ignored_params=owned)
    return fully_shard(model, mesh=flat, ignored_params=owned)


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    tokenizer = choir.Tokenizer(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as file:
        ids = torch.from_numpy(tokenizer.encode(file.read())).long()
    out, steps = sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 200
    sizes = {"layers": 4, "d_model": 64, "d_hidden": 128, "heads": 4, "experts": 8}
    lengths = {"train.sequence_length": 64, "train.batch_sequences": 16}
    config = choir.Config(vocab_size=tokenizer.vocab_size, **sizes, **lengths)
    torch.manual_seed(0)
    model = sharded(choir.torch.Transformer(config).to(device), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)  # weights on meshes of several shapes
    optimizer.register_step_pre_hook(lambda *_: choir.torch.update_routers(model))

    def state():
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    whole = [path.parent for path in pathlib.Path(out).glob("state-*/.metadata")]  # which is written last
    done = max((int(path.name.split("-")[1]) for path in whole), default=0)
    if done:
        found = state()
        dcp.load(found, checkpoint_id=f"{out}/state-{done}")
        set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    for step in range(done + 1, steps + 1):
        draw = torch.Generator().manual_seed(step * processes + rank)  # tokens of its own on each process
        begin = torch.randint(0, len(ids) - 64, (16,), generator=draw)
        batch = torch.stack([ids[i : i + 64] for i in begin]).to(device)
        loss = model.loss(batch)
        optimizer.zero_grad()
        (loss + model.aux_loss).backward()
        choir.torch.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == steps:
            dist.all_reduce(loss := loss.detach())
            if rank == 0:
                print(f"step {step}  loss by batch routing {loss.item() / processes:.4f}", flush=True)
            dcp.save(state(), checkpoint_id=f"{out}/state-{step}")
    with model.to_choir() as made:  # all processes gather it
        if rank == 0:
            made.save(f"{out}/model-{steps}", tokenizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
