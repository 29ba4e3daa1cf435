"""Pools of choir.torch across processes: two of them, by gloo, are one, alone, under DDP and under FSDP2."""

import importlib
import os
import socket
import subprocess
import sys
import unittest

from torch_cases import DEVICE, TorchTest, lacks, torch

E, SIZE = 7, 2  # experts that the processes cannot share evenly


def batches():
    """What each process has, ties planted, and its padding."""
    torch.manual_seed(3)
    x = torch.randn(SIZE, 24, 16)
    x[:, 5] = x[0, 0]
    return x, torch.rand(SIZE, 24) > 0.2


def layer(**more):
    import choir.torch

    torch.manual_seed(4)
    return choir.torch.ExpertChoice(16, 24, E, **more)


def step(run, x, valid):
    out = run(x, None, valid)
    out.square().mean().backward()
    return out.detach()


def process():
    """Body of one of two ranks: prints differences from a single process with all tokens."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, (x, padding) = dist.get_rank(), batches()
    for way in sys.argv[2].split(","):
        for valid in (None, padding):
            alone = layer()
            wanted = step(alone, x.flatten(0, 1), None if valid is None else valid.flatten()).view(SIZE, 24, 16)[
                rank
            ]
            shared = layer(group=dist.group.WORLD)
            run = shared
            if way == "ddp":
                run = torch.nn.parallel.DistributedDataParallel(shared)
            elif way == "fsdp":
                from torch.distributed.fsdp import fully_shard

                run = fully_shard(shared)
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
    def run_all(self, ways):
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(SIZE), "OMP_NUM_THREADS": "1"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        made = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__, "process", ways],
                env={**environment, "RANK": str(rank), "MASTER_PORT": str(port)},
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(SIZE)
        ]
        for one in made:
            _, errors = one.communicate(timeout=300)
            self.assertEqual(one.returncode, 0, errors[-2000:])

    @unittest.skipUnless(DEVICE == "cpu", "gloo's is the CPU")
    def test_two_processes_are_one(self):
        if lacks("pools across processes", "distributed.ProcessGroupGloo"):
            return
        self.run_all("alone,ddp")

    @unittest.skipUnless(DEVICE == "cpu", "gloo's is the CPU")
    def test_under_fsdp(self):
        if not lacks("FSDP2", "compile"):
            importlib.import_module("torch.distributed.fsdp")  # in 1.13, which has no FSDP2, Python 3.11 cannot
            if lacks("FSDP2", "distributed.fsdp.fully_shard"):
                return
            self.run_all("fsdp")


if __name__ == "__main__":
    process() if sys.argv[1:2] == ["process"] else unittest.main()
