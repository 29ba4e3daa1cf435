"""Experts that processes share, by gloo: outputs and all gradients are those of one process, in float64."""

import copy
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
import warnings

import choir
import testing

from torch_cases import DEVICE, TorchTest, cannot_meet, lacks, run_processes, torch

CASES = (
    ("expert_choice", {"activation": "swiglu"}),
    ("expert_choice", {"pool": "sequence", "normalize_gates": True}),
    ("capped_expert_choice", {"solver": "dykstra", "solver_iterations": 20}),
    ("gshard_top2", {"gate_on": "input"}),
    ("bias_balanced", {}),
    ("quantile_balanced", {"activation": "swiglu", "gate_on": "input"}),
    ("global_topk", {}),
    ("hash", {}),
)
EXACT = {"rtol": 1e-9, "atol": 1e-11}


class Processes:
    """What each has: tokens, ids, padding, a cotangent."""

    padded = True  # without padding expert choice fills every slot

    def __init__(self):
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.dist, self.mesh_of = dist, init_device_mesh
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(5)
        shape = self.size, 3, 8
        self.x = torch.randn(*shape, 16, dtype=torch.float64)
        self.ids, self.valid = torch.randint(0, 99, shape), torch.rand(shape) > 0.2
        self.cotangent = torch.randn_like(self.x)

    def layer(self, router, options, dtype=torch.float64, **more):
        torch.manual_seed(4)
        return choir.torch.MoE(16, 24, 8, router, dtype=dtype, **options, **more)

    def run(self, layer, i, forward=None):
        """Output, and the gradient of x, of process i's tokens; the weights' gradients are added up."""
        x = self.x[i].clone().requires_grad_()
        out = (forward or layer)(x, self.ids[i], self.valid[i] if self.padded else None)
        ((out * self.cotangent[i]).sum() + layer.aux_loss).backward()
        return out.detach(), x.grad

    def alone(self, router, options):
        """One process with all: a layer with the sums of gradients over all processes' tokens; each one's results."""
        whole = self.layer(router, options)
        return whole, [self.run(whole, i) for i in range(self.size)]

    def close(self, found, wanted, what):
        found = found.full_tensor() if hasattr(found, "full_tensor") else found
        torch.testing.assert_close(found, wanted, **EXACT, msg=lambda text: f"{what}: {text}")

    def gradients(self, layer, whole, what, share):
        """share(name, gradient) is what a process should have of the sum over all."""
        for (name, ours), theirs in zip(layer.named_parameters(), whole.parameters()):
            if theirs.grad is not None:
                self.close(ours.grad, share(name, theirs.grad), f"{what} {name}")

    def experts(self):
        from torch.distributed.tensor.parallel import parallelize_module

        mesh = self.mesh_of("cpu", (self.size,), mesh_dim_names=("ep",))
        for self.padded, (router, options) in ((False, CASES[0]), *((True, case) for case in CASES)):
            whole, wanted = self.alone(router, options)
            model = torch.nn.Sequential(self.layer(router, options))
            parallelize_module(model, mesh, {"0": choir.torch.ExpertParallel()})
            assert model[0].w1.to_local().shape[0] == 8 // self.size
            for ours, theirs in zip(self.run(model[0], self.rank), wanted[self.rank]):
                self.close(ours, theirs, f"{router} {options}")
            if model[0].gate.weight.grad is not None:
                self.dist.all_reduce(model[0].gate.weight.grad)
            mean = lambda name, sum_: sum_ / self.size if name.startswith("experts") else sum_  # noqa: E731
            self.gradients(model[0], whole, f"{router} {options}", mean)

    def columns(self):
        """Expert tensor parallelism: all have the same tokens."""
        mesh = self.mesh_of("cpu", (self.size,), mesh_dim_names=("tp",))
        some = CASES[:1] + CASES[3:6]
        for self.padded, (router, options) in ((False, CASES[0]), *((True, case) for case in some)):
            whole = self.layer(router, options)
            wanted, layer = self.run(whole, 0), self.layer(router, options)
            choir.torch.ExpertTensorParallel()._apply(layer, mesh)
            assert layer.w1.to_local().shape[2] == 24 // self.size
            for ours, theirs in zip(self.run(layer, 0), wanted):
                self.close(ours, theirs, router)
            self.gradients(layer, whole, router, lambda name, gradient: gradient)

    def refusals(self):
        mesh = self.mesh_of("cpu", (self.size,), mesh_dim_names=("ep",))
        odd = choir.torch.ExpertChoice(16, 24, 7)
        for module in (odd, torch.nn.Linear(2, 2)):
            try:
                choir.torch.ExpertParallel()._apply(module, mesh)
            except choir.ArgumentError:
                continue
            raise AssertionError(f"{module} was taken")

    def unequal(self):
        """Processes with different numbers of tokens, also 0: where a router allows it, counts are sent; otherwise every
        process raises the error."""
        from torch.distributed.fsdp import fully_shard

        mesh = self.mesh_of("cpu", (self.size,), mesh_dim_names=("ep",))
        self.padded, given = False, (self.x, self.ids, self.cotangent)
        for router, none in (("bias_balanced", False), ("bias_balanced", True), ("hash", True)):
            whole, layer = self.layer(router, {}), self.layer(router, {})
            choir.torch.ExpertParallel()._apply(layer, mesh)
            self.x, self.ids, self.cotangent = (
                [a[: 0 if none and i else 3 - i] for i, a in enumerate(each)] for each in given
            )
            wanted = [self.run(whole, i) for i in range(self.size)]
            for ours, theirs in zip(self.run(layer, self.rank), wanted[self.rank]):
                self.close(ours, theirs, router)
            self.close(layer.w1.grad, whole.w1.grad / self.size, f"{router} w1")
        self.x, self.ids, self.cotangent = given
        for group in (False, True):
            layer = self.layer("expert_choice", {}, group=self.dist.group.WORLD if group else None)
            if not group:
                choir.torch.ExpertParallel()._apply(layer, mesh)
            for tokens in (8 - 2 * self.rank, 8 * self.rank):
                try:
                    layer(torch.zeros(2, tokens, 16, dtype=torch.float64))
                except choir.ArgumentError as error:
                    assert "equally many tokens" in str(error), error
                else:
                    raise AssertionError("unequal numbers were taken")
        flat = self.mesh_of("cpu", (self.size,))
        layer = self.layer("bias_balanced", {})
        fully_shard(layer.experts, mesh=flat), fully_shard(layer, mesh=flat)
        layer(torch.randn(2, 0 if self.rank else 8, 16, dtype=torch.float64)).sum().backward()

    def mixed(self):
        """bf16 by FSDP2's policy, the experts by themselves, and shared out; gates stay float32."""
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = self.mesh_of("cpu", (self.size,), mesh_dim_names=("ep",))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        x = self.x[self.rank].float()
        for router in ("expert_choice", "topk"):
            plain, wanted = self.layer(router, {}, torch.float32), None
            for way in ("block", "experts", "shared out"):
                layer, owned = copy.deepcopy(plain), set()
                if way == "experts":
                    fully_shard(layer.experts, mesh=mesh, mp_policy=policy)
                elif way == "shared out":
                    choir.torch.ExpertParallel()._apply(layer, mesh)
                    owned = set(layer.experts.parameters())
                fully_shard(layer, mesh=mesh, mp_policy=policy, ignored_params=owned)
                out = layer(x)
                assert out.dtype == torch.bfloat16 and layer.routing.gates.dtype == torch.float32, way
                out.float().square().mean().backward()
                wanted = out if wanted is None else wanted
                torch.testing.assert_close(out, wanted, rtol=0.02, atol=0.02, msg=lambda text, way=way: f"{way}: {text}")

    def sequences(self):
        """A DTensor's parts on the mesh of the experts have one loss, of which gradients are the sum; of what is still to
        be summed, the sum is taken."""
        from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

        mesh = self.mesh_of("cpu", (self.size,), mesh_dim_names=("tp",))
        for router in ("expert_choice", "bias_balanced"):
            whole, layer = self.layer(router, {}), self.layer(router, {})
            choir.torch.ExpertParallel()._apply(layer, mesh)
            full = torch.cat(list(self.x), 1)
            layer(distribute_tensor(full, mesh, [Shard(1)])).square().mean().full_tensor().backward()
            parts = [whole(x) for x in self.x]
            torch.cat(parts, 1).square().mean().backward()
            self.close(layer.w1.grad, whole.w1.grad, f"{router} w1")
            self.dist.all_reduce(layer.gate.weight.grad)
            self.close(layer.gate.weight.grad, whole.gate.weight.grad, f"{router} gate")
            out = whole(DTensor.from_local(self.x[0] / self.size, mesh, [Partial()]))
            self.close(out.detach(), whole(self.x[0]).detach(), "Partial")

    def recipes(self):
        """Of docs/python.md: gradients clipped over meshes of several shapes, DDP beside experts that are shared out."""
        from torch.distributed.fsdp import fully_shard
        from torch.nn.parallel import DistributedDataParallel as DDP

        mesh = self.mesh_of("cpu", (self.size // 2, 2), mesh_dim_names=("dp", "ep"))
        flat = self.mesh_of("cpu", (self.size,))
        for way in ("FSDP2", "DDP"):
            whole, layer = self.layer("bias_balanced", {}), self.layer("bias_balanced", {})
            sum(whole(x).square().mean() for x in self.x).div(self.size).backward()
            choir.torch.ExpertParallel()._apply(layer, mesh["ep"] if way == "FSDP2" else flat)
            if way == "FSDP2":
                fully_shard(layer.experts, mesh=mesh["dp"]), fully_shard(layer, mesh=flat)
                run = layer
            else:
                owned = [name for name, _ in layer.named_parameters() if name.startswith("experts.")]
                DDP._set_params_and_buffers_to_ignore_for_model(layer, owned)
                run = DDP(layer)
            run(self.x[self.rank]).square().mean().backward()
            for most in (1e9, 1e-3):
                norm = choir.torch.clip_grad_norm_(layer.parameters(), most)
                self.close(norm, torch.nn.utils.clip_grad_norm_(whole.parameters(), most), f"{way} norm")
                self.gradients(layer, whole, way, lambda name, gradient: gradient)

    def fsdp(self):
        """Beside FSDP2, whose means and those of expert parallelism are one mean over all processes; with sequence-parallel
        input and output; then checkpoints from this layout into others."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor, Shard
        from torch.distributed.tensor.parallel import parallelize_module

        mesh = self.mesh_of("cpu", (self.size // 2, 2), mesh_dim_names=("dp", "ep"))
        flat = self.mesh_of("cpu", (self.size,))
        for router, options in (CASES[0], CASES[4]):
            whole, wanted = self.alone(router, options)
            layer = parallelize_module(self.layer(router, options), mesh["ep"], choir.torch.ExpertParallel())
            fully_shard(layer.experts, mesh=mesh["dp"])
            fully_shard(layer, mesh=flat)
            for ours, theirs in zip(self.run(layer, self.rank), wanted[self.rank]):
                self.close(ours, theirs, router)
            self.gradients(layer, whole, f"FSDP2 {router}", lambda name, sum_: sum_ / self.size)
            x = DTensor.from_local(self.x[self.rank], flat, [Shard(1)], run_check=False)
            if router == "expert_choice":
                out = layer(x, None, DTensor.from_local(self.valid[self.rank], flat, [Shard(1)], run_check=False))
                self.close(out.to_local().detach(), wanted[self.rank][0], "DTensor")
            choir.torch.update_routers(layer), choir.torch.update_routers(whole)
        where = [tempfile.mkdtemp() if not self.rank else None]
        self.dist.broadcast_object_list(where)
        warnings.simplefilter("ignore")
        dcp.save(get_model_state_dict(layer), checkpoint_id=where[0])
        plain = self.layer(*CASES[4])
        shared = parallelize_module(copy.deepcopy(plain), flat, choir.torch.ExpertParallel())
        with torch.no_grad():
            for other in (plain, shared):
                for tensor in (*other.parameters(), other.thresholds):
                    tensor.zero_()
                state = get_model_state_dict(other)
                dcp.load(state, checkpoint_id=where[0])
                set_model_state_dict(other, state)
                self.close(other.thresholds, layer.thresholds, "thresholds")
                self.close(other.w1.detach(), self.layer(*CASES[4]).w1.detach(), "checkpoint")


def process():
    made = Processes()
    for what in sys.argv[2].split(","):
        getattr(made, what)()
    made.dist.barrier()
    made.dist.destroy_process_group()


@unittest.skipUnless(DEVICE == "cpu", "gloo's is the CPU")
class Parallel(TorchTest):
    def lacks(self):
        # torch.accelerator came with PyTorch 2.6, which has everything else that these tests need.
        return lacks("experts that processes share", "compile", "accelerator")

    def newer(self, words):
        """2.6 has neither FSDP2 nor means of DTensors on the CPU."""
        return "" if lacks("shared experts under FSDP2 and sequence parallelism", "cpu.Stream.record_event") else words

    def test_example_under_torchrun(self):
        """Two processes, then one that goes on from their state; choir reads what they trained."""
        if self.lacks() or cannot_meet("examples/train_distributed.py under torchrun"):
            return
        testing.run()
        at = testing.directory()
        example = testing.SOURCE / "examples" / "train_distributed.py"
        for processes, steps in ((2, 20), (1, 25)):
            words = [example, at / "en.model", at / "book.txt", at / "distributed", steps]
            launcher = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
            made = subprocess.run(
                [*launcher, "--nproc-per-node", str(processes), *map(str, words)],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                timeout=900,
            )
            self.assertEqual(made.returncode, 0, made.stderr[:3000])
            self.assertIn(f"step {steps}", made.stdout)
            self.assertNotIn("step 20", made.stdout if processes == 1 else "")
        loss = float(made.stdout.split()[-1])
        self.assertLess(loss, math.log(320) - 0.3)
        page = at / "page_distributed.txt"
        page.write_text((at / "book.txt").read_text()[-3000:])
        output = json.loads(testing.program("eval", at / "distributed" / "model-25", "--text", page, "--json"))
        self.assertTrue(any(abs(number - loss) < 0.5 for number in testing.numbers(output)), output)

    def test_two_processes(self):
        if not self.lacks():
            run_processes(__file__, 2, "experts,columns,refusals" + self.newer(",unequal,mixed,sequences"))

    def test_four_processes(self):
        if not self.lacks():
            run_processes(__file__, 4, "experts" + self.newer(",fsdp,recipes"))


if __name__ == "__main__":
    process() if sys.argv[1:2] == ["process"] else unittest.main()
