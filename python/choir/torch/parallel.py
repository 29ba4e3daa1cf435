"""Placement of experts on several processes, and the norm of gradients with different placements."""

from __future__ import annotations

import itertools
from typing import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from .._errors import ArgumentError, UnsupportedError
from .experts import Experts
from .products import WEIGHTS


class _Parallel(ParallelStyle):
    """Shards the weights of a choir.torch layer's experts along dimension `dim`."""

    dim: int
    what: str

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        experts = getattr(module, "experts", module)
        if not isinstance(experts, Experts):
            raise ArgumentError(f"{type(self).__name__} is for layers of choir.torch, not {type(module).__name__}")
        count, processes = experts.w1.shape[self.dim], device_mesh.size()
        if device_mesh.ndim != 1 or count % processes:
            raise ArgumentError(
                f"{count} {self.what} cannot be shared evenly by a mesh of shape {tuple(device_mesh.shape)}; "
                "the mesh must have one dimension, whose size divides them"
            )
        own = dict(experts.named_parameters(recurse=False))
        if self.dim and not set(own) <= set(WEIGHTS):
            raise UnsupportedError(f"{type(self).__name__}: hidden columns of {', '.join(own)} (convert) cannot be shared out")
        for name, weight in own.items():
            placed = distribute_tensor(weight.detach(), device_mesh, [Shard(self.dim)])
            setattr(experts, name, nn.Parameter(placed, requires_grad=weight.requires_grad))
        return module


class ExpertParallel(_Parallel):
    """Shares a layer's experts out among the processes of a mesh of one dimension, each of which has tokens of its own:

        parallelize_module(model, mesh["ep"], {"layers.*.moe": choir.torch.ExpertParallel()})

    Every process routes its tokens as it would without this, and gets the same outputs. The experts' gradients are means
    over the mesh's processes of those of each process's own loss, as DDP's and FSDP2's are, so FSDP2 beside it needs no
    gradient divisor: fully_shard(block.moe.experts, mesh=mesh["dp"]), then the block over all processes. Processes among
    which a DTensor x is shared out have one loss, and their gradients are added."""

    dim, what = 0, "experts"


class ExpertTensorParallel(_Parallel):
    """Gives each process of a mesh of one dimension some of the hidden columns of every expert. All processes have the same
    tokens, and get the same outputs and gradients of x and the router."""

    dim, what = 2, "hidden columns"


@torch.no_grad()
def clip_grad_norm_(parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
    """torch.nn.utils.clip_grad_norm_ for weights on meshes of several shapes, as experts that are shared out have beside
    FSDP2: the norm of all gradients together, which all processes get, and by which all are scaled. All must call."""
    by_mesh: dict = {}
    for gradient in (weight.grad for weight in parameters if weight.grad is not None):
        by_mesh.setdefault(getattr(gradient, "device_mesh", None), []).append(gradient)
    norms = [torch.nn.utils.get_total_norm(some, norm_type) for some in by_mesh.values()]
    whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    norm = torch.linalg.vector_norm(torch.stack(whole), norm_type) if whole else torch.zeros(())
    scale = (max_norm / (norm + 1e-6)).clamp(max=1)
    for gradient in itertools.chain(*by_mesh.values()):
        (gradient.to_local() if isinstance(gradient, DTensor) else gradient).mul_(scale)
    return norm
