"""Experts on several processes, with torch.distributed: the placement of their weights, DTensors, determines their
owners.

With expert choice and other routers that fill slots [e,room], the number of rows is known before the call: there is
one all-to-all of equal parts in each direction, without counts, and the host does not wait for the device. With
other routers, processes exchange counts first, and the host waits for them once."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor
from torch.distributed import get_process_group_ranks
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from .._errors import UnsupportedError
from . import select
from .compat import autocast_dtype
from .products import Weights, by_experts, combined, gathered, grouped_product, slots_of, slots_product
from .ranks import check_same
from .request import Routing, Sent


class _Mean(torch.autograd.Function):
    """The identity on a weight; its gradient, a sum over `losses`, becomes their mean."""

    @staticmethod
    def forward(ctx, weight, losses):
        ctx.losses = losses
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx, gradient):
        return gradient / ctx.losses, None


def local_parts(x: DTensor, *others: Optional[Tensor]) -> tuple[DTensor, Tensor, list, tuple]:
    """This process's shard of x, and of the arrays that belong to its tokens; x with the resulting placement, without
    pending sums; and the ranks of the processes that share it."""
    whole = [Replicate() if placement.is_partial() else placement for placement in x.placements]
    x, mesh = x.redistribute(placements=whole), x.device_mesh
    local = [a.to_local() if isinstance(a, DTensor) else a for a in others]
    shared = [placement.is_shard() for placement in whole]
    at = tuple(slice(None) if split else i for split, i in zip(shared, mesh.get_coordinate()))
    return x, x.to_local(), local, tuple(mesh.mesh[at].flatten().tolist()) if any(shared) else ()


def by_owners(rows: Tensor, weights: Weights, sent: Sent) -> Tensor:
    """Sums by_experts over processes, for weights of which each process has a shard: some of the experts, or some of
    their hidden columns."""
    routing = sent.routing
    mesh, placements = weights.w1.device_mesh, weights.w1.placements
    sharded = [i for i, placement in enumerate(placements) if not placement.is_replicate()]
    if not sharded:
        return by_experts(rows, weights.map(DTensor.to_local), routing)
    if len(sharded) > 1 or placements[sharded[0]] not in (Shard(0), Shard(2)):
        raise UnsupportedError(
            f"experts are placed as {tuple(placements)}; one Shard(0) (ExpertParallel) or Shard(2) "
            "(ExpertTensorParallel) is supported. Under FSDP2 call the module that was given to fully_shard"
        )
    if placements[sharded[0]] == Shard(2):
        return _by_columns(rows, weights, routing, mesh[mesh.mesh_dim_names[sharded[0]]] if mesh.ndim > 1 else mesh)
    group = mesh.get_group(sharded[0])
    losses = group.size()
    if sent.together:  # processes with one loss: gradients are summed
        losses //= len(set(sent.together) & set(get_process_group_ranks(group)))
    local = weights.map(lambda w: _Mean.apply(w.to_local(), losses))
    return (_ragged if routing.slots is None else _equal)(rows, local, routing, group)


def _by_columns(rows: Tensor, weights: Weights, routing: Routing, mesh: DeviceMesh) -> Tensor:
    """Sums over processes: of outputs in forward, and of the gradients of rows and gates in backward."""

    def shared(a):
        return DTensor.from_local(a, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])

    given = next(name for name in ("slot_gates", "choice_gates", "gates") if getattr(routing, name) is not None)
    routing = routing._replace(**{given: shared(getattr(routing, given))})
    part = by_experts(shared(rows), weights.map(DTensor.to_local), routing)
    return DTensor.from_local(part, mesh, [Partial()], run_check=False).redistribute(placements=[Replicate()]).to_local()


def _equal(rows: Tensor, weights: Weights, routing: Routing, group) -> Tensor:
    """Sends slots [e,room] to the owners of their experts, and back."""
    n, size, own = rows.shape[0], group.size(), weights.w1.shape[0]
    token, gate = slots_of(routing)
    check_same(len(token) // (size * own), "slots of an expert", rows.device, group)
    parts = [len(token) // size] * size
    came = all_to_all_single_autograd(gathered(rows, gate, token, weights), parts, parts, group)
    here = came.view(size, own, -1, rows.shape[1]).transpose(0, 1)
    y = slots_product(here.flatten(1, 2), weights).view(own, size, -1, rows.shape[1]).transpose(0, 1)
    back = all_to_all_single_autograd(y.reshape(len(token), -1), parts, parts, group)
    return combined(back, gate, token, n, weights)


def _ragged(rows: Tensor, weights: Weights, routing: Routing, group) -> Tensor:
    """Sends pairs of token and expert, sorted by expert, after their counts."""
    n, size, own = rows.shape[0], group.size(), weights.w1.shape[0]
    load = routing.assignment.sum(0)
    even = [own] * size
    received = all_to_all_single(load, even, even, group).view(size, own)  # rows to receive, by sender and local expert
    out, into = torch.stack([load.view(size, own).sum(1), received.sum(1)]).tolist()
    pairs = select.first(routing.assignment.t().reshape(1, -1), sum(out))[0]
    expert, token = pairs // n, pairs % n
    kind, gate = autocast_dtype(rows.device.type) or rows.dtype, routing.every_gate()[token, expert]
    came = all_to_all_single_autograd(gathered(rows, gate, token, weights).to(kind), into, out, group)
    whose = torch.arange(own, device=rows.device).repeat(size).repeat_interleave(received.reshape(-1), output_size=sum(into))
    order = whose.argsort(stable=True)  # rows arrive by process; products need them by expert
    y = _by_ends(came.index_select(0, order), weights, received.sum(0))
    y = torch.zeros_like(y).index_copy(0, order, y)
    back = all_to_all_single_autograd(y, out, into, group)
    return combined(back, gate, token, n, weights)


def _by_ends(rows: Tensor, weights: Weights, load: Tensor) -> Tensor:
    """Applies experts to rows sorted by expert, with load [own] of each."""
    if rows.shape[0] and rows.dtype != torch.float64:
        return grouped_product(rows, weights, load.cumsum(0, dtype=torch.int32))
    each = zip(rows.split(load.tolist()), *(w.unbind() for w in weights[:3] if w is not None))
    return torch.cat([
        Weights(*some, *[None] * (3 - len(some)), *weights[3:]).hidden(lambda w, a=a: a @ w) @ some[1].t()
        for a, *some in each
    ])
