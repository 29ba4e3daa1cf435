"""Pools of choir.torch across processes: two of them, by gloo, are one, alone, under DDP and under FSDP2."""

import copy
import importlib
import sys
import unittest

import choir

from torch_cases import DEVICE, TorchTest, lacks, run_processes, torch

E, SIZE = 7, 2  # experts that the processes cannot share evenly


def batches():
    """What each process has, ties planted, and its padding."""
    torch.manual_seed(3)
    x = torch.randn(SIZE, 24, 16)
    x[:, 5] = x[0, 0]
    return x, torch.rand(SIZE, 24) > 0.2


def layer(**more):
    torch.manual_seed(4)
    return choir.torch.ExpertChoice(16, 24, E, **more)


def meshes():
    """Whether the group may be a DeviceMesh; elsewhere it is the group itself."""
    return not lacks("a DeviceMesh as group", "accelerator")


def step(run, x, valid):
    out = run(x, None, valid)
    out.square().mean().backward()
    return out.detach()


KEPT = ("expert_choice", "capped_expert_choice", "quantile_balanced", "bias_balanced", "kmeans")


def wrapped(layer, way):
    if way == "fsdp":
        return importlib.import_module("torch.distributed.fsdp").fully_shard(layer)
    return torch.nn.parallel.DistributedDataParallel(layer, broadcast_buffers=way != "ddp without broadcast")


def steps(layer, run, batches):
    """Three steps, each of all batches [steps,batches,n,d]."""
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
    hooked = not lacks("update_routers as an optimizer's hook", "optim.Optimizer.register_step_pre_hook")
    if hooked:
        optimizer.register_step_pre_hook(lambda *_: choir.torch.update_routers(layer))
    for step in batches:
        sum(run(x).square().mean() for x in step).backward()
        if not hooked:
            choir.torch.update_routers(layer)
        optimizer.step()
        optimizer.zero_grad()


def state_is_one(way):
    """Tokens of other kinds on each process, two micro-batches a step: what routers keep is what one process would."""
    import torch.distributed as dist

    rank = dist.get_rank()
    for router in KEPT:
        torch.manual_seed(6)
        alone = choir.torch.MoE(16, 24, 8, router, **({"bias_rate": 0.05} if router == "bias_balanced" else {}))
        shared = copy.deepcopy(alone)
        x = torch.randn(3, SIZE, 2, 40, 16) + torch.arange(SIZE)[:, None, None, None]
        steps(shared, wrapped(shared, way), x[:, rank])
        steps(alone, lambda y: alone(y) / SIZE**0.5, x.flatten(1, 2))
        for name, theirs in alone.state_dict().items():
            ours = shared.state_dict()[name]
            ours = ours.full_tensor() if hasattr(ours, "full_tensor") else ours
            torch.testing.assert_close(ours, theirs, msg=lambda text: f"{way} {router} {name}: {text}")
        for name, ours in shared.named_buffers():  # the same bits everywhere
            every = [torch.empty_like(ours) for _ in range(SIZE)]
            dist.all_gather(every, ours)
            assert torch.equal(every[0], every[1]), f"{way} {router} {name}"


def stages():
    """Layers of other names have each their own state, also on one process more of them; of the same names and sizes, with
    other weights, also where those began alike, nobody can tell; a group tells."""
    import torch.distributed as dist

    rank, x = dist.get_rank(), torch.randn(24, 16)
    for names in (["0", "1"], ["0", "0", "1"]):
        torch.manual_seed(6)
        layers = [choir.torch.MoE(16, 24, 8, "expert_choice") for _ in names]
        own = torch.nn.ModuleDict({n + str(rank): m for i, (n, m) in enumerate(zip(names, layers)) if (i > 0) == rank})
        for module in own.values():
            module(x)
        choir.torch.update_routers(own)
        for module in own.values():
            assert torch.equal(module.thresholds, module.routing.cutoffs), rank
    stage = layers[rank]
    stage(x)
    try:
        choir.torch.update_routers(stage)
    except choir.ArgumentError as error:
        assert "pipeline" in str(error), error
    else:
        raise AssertionError("layers with other weights were taken as one")
    choir.torch.update_routers(stage, group=[dist.new_group([r]) for r in range(SIZE)][rank])
    assert torch.equal(stage.thresholds, stage.routing.cutoffs)
    torch.manual_seed(6)
    alike = choir.torch.ExpertChoice(16, 24, 8)  # on both, until they have learnt
    for turn in range(2):
        alike(x).sum().backward()
        try:
            choir.torch.update_routers(alike)
        except choir.ArgumentError as error:
            assert turn and "pipeline" in str(error), error
        else:
            assert not turn, "stages that began alike were taken as one for ever"
        alike.gate.weight.data.mul_(1 + rank)
    choir.torch.update_routers(torch.nn.Linear(2, 2) if rank else choir.torch.ExpertChoice(16, 24, 8))  # nobody waits


def process():
    """Body of one of two ranks: prints differences from a single process with all tokens."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, (x, padding) = dist.get_rank(), batches()
    for way in sys.argv[2].split(","):
        if way == "stages":
            stages()
            continue
        if way != "alone":
            state_is_one(way)
        for valid in (None, padding):
            alone = layer()
            wanted = step(alone, x.flatten(0, 1), None if valid is None else valid.flatten()).view(SIZE, 24, 16)[
                rank
            ]
            mesh = importlib.import_module("torch.distributed.device_mesh").init_device_mesh if meshes() else None
            shared = layer(group=mesh("cpu", (SIZE,)) if mesh else dist.group.WORLD)
            run = shared if way == "alone" else wrapped(shared, way)
            out = step(run, x[rank], None if valid is None else valid[rank])
            torch.testing.assert_close(out, wanted)
            torch.testing.assert_close(shared.thresholds, alone.thresholds)
            for (name, theirs), ours in zip(alone.named_parameters(), shared.parameters()):
                found = ours.grad.full_tensor() if way == "fsdp" else ours.grad.clone()
                if way == "alone":
                    dist.all_reduce(found)
                    found /= SIZE
                torch.testing.assert_close(found, theirs.grad, msg=lambda text: f"{way} {name}: {text}")
    dist.barrier()
    dist.destroy_process_group()


class Ranks(TorchTest):
    @unittest.skipUnless(DEVICE == "cpu", "gloo's is the CPU")
    def test_two_processes_are_one(self):
        if lacks("pools across processes", "distributed.ProcessGroupGloo"):
            return
        run_processes(__file__, SIZE, "alone,ddp,ddp without broadcast,stages")

    @unittest.skipUnless(DEVICE == "cpu", "gloo's is the CPU")
    def test_under_fsdp(self):
        if not lacks("FSDP2", "compile"):
            importlib.import_module("torch.distributed.fsdp")  # in 1.13, which has no FSDP2, Python 3.11 cannot
            if lacks("FSDP2", "distributed.fsdp.fully_shard", "cpu.Stream.record_event"):
                return
            run_processes(__file__, SIZE, "fsdp")


if __name__ == "__main__":
    process() if sys.argv[1:2] == ["process"] else unittest.main()
