"""Distribution of experts over processes, and the norm of gradients on different device meshes."""

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
    """A ParallelStyle that distributes a layer's experts over the processes of a device mesh of one dimension,
    whose size divides the number of experts. Each process has local tokens, which are sent to the processes of
    their experts.

    Every process routes its local tokens, and gets the same outputs, as without the mesh. Gradients of experts are
    the means, over the mesh's processes, of the gradients of the processes' losses, as with DDP and FSDP2. So FSDP2
    needs no gradient divisor: call fully_shard(block.moe.experts, mesh=mesh["dp"]), then fully_shard the block over
    all processes. If x is a DTensor that is distributed over processes, these have one loss, and their gradients
    are summed.

    Raises, when it is applied, ArgumentError for a module that is not a layer of choir.torch and for a mesh that
    does not fit.

    Example:
        parallelize_module(model, mesh["ep"], {"layers.*.moe": choir.torch.ExpertParallel()})"""

    dim, what = 0, "experts"


class ExpertTensorParallel(_Parallel):
    """A ParallelStyle that distributes the hidden columns of every expert over the processes of a device mesh of
    one dimension, whose size divides d_hidden. All processes must have the same tokens. They get the same outputs,
    and the same gradients of x and of the router's weight.

    Raises, when it is applied, ArgumentError as ExpertParallel, and UnsupportedError for a converted layer
    (`convert`).

    Example:
        parallelize_module(model, mesh["tp"], {"layers.*.moe": choir.torch.ExpertTensorParallel()})"""

    dim, what = 2, "hidden columns"


@torch.no_grad()
def clip_grad_norm_(parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
    """torch.nn.utils.clip_grad_norm_ for weights on several device meshes, such as distributed experts in a model
    with FSDP2. Scales all gradients in place so that their total norm is at most max_norm. All processes must call
    it.

    Args:
        parameters: the weights; those without a gradient are skipped.
        max_norm: the maximum of the total norm.
        norm_type: p of the p-norm; 2: the Euclidean norm.

    Returns [] the total norm of all gradients before scaling, the same on all processes.

    Example: choir.torch.clip_grad_norm_(model.parameters(), 1.0)"""
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
