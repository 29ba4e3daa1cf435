"""One pool over the processes of a torch.distributed group. Every process has the same number of tokens, and
computes the selection of some of the experts. Processes exchange columns of scores, and then the assignment; no
gradients."""

from __future__ import annotations

import math
import weakref
from typing import Optional

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .._errors import ArgumentError
from . import compat, select


def group_of(group):
    """The group of a DeviceMesh of one dimension, or the group itself."""
    return group.get_group() if hasattr(group, "get_group") else group


def check_same(count: int, what: str, device: torch.device, group) -> None:
    """Raises on all processes if their numbers of tokens differ, because exchanges have equal parts. On a CPU the
    error names the numbers; on other devices nothing waits, and a device-side assertion stops the program."""
    most = torch.tensor([count, -count], device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    if device.type == "cpu" and not compat.compiling():
        high, low = most.tolist()
        if high != -low:
            raise ArgumentError(
                f"processes have {-low} to {high} {what}, this one {count}; all must have equally many tokens here: pad "
                "the batch, with valid"
            )
    elif hasattr(torch, "_assert_async"):
        torch._assert_async(most[0] == -most[1])


# By model: the world group, the group found in it, and the number of calls.
_KNOWN: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def replicas(model: nn.Module, layers: dict[str, nn.Module]):
    """The group of the processes whose layers have the same names and sizes. All processes compare their layers at a
    model's first call, and again whenever the number of calls has doubled: pipeline stages that began with equal
    weights then differ. ArgumentError: layers of the same names have different weights."""
    world, found, calls = _KNOWN.get(model, (None, None, 0))
    calls = calls + 1 if world is dist.group.WORLD else 1
    if calls & (calls - 1) == 0:
        gathered: list = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, [(_what(name, layer), _weights_of(layer)) for name, layer in layers.items()])
        _check_weights(gathered)
        found = _group_of_same(gathered) if calls == 1 else found
    _KNOWN[model] = dist.group.WORLD, found, calls
    return found


def _what(name: str, layer: nn.Module) -> tuple:
    return name, layer.router_name, layer.d_model, len(layer.thresholds), layer.layer


def _weights_of(layer: nn.Module) -> Optional[tuple]:
    """A fingerprint that replicas share: the bits of the router's weight, or its placement. None: it cannot be
    determined."""
    weight = getattr(layer.gate, "weight", None)
    if hasattr(weight, "placements"):
        if any(placement.is_shard() for placement in weight.placements):
            return ("shared", *sorted(weight.device_mesh.mesh.flatten().tolist()))
        weight = weight.to_local()
    plain = type(weight) in (Tensor, nn.Parameter)  # the bits of a quantized weight cannot be read
    if not plain or weight.shape != (len(layer.thresholds), layer.d_model):
        return None
    bits = weight.detach().contiguous().view(torch.uint8).reshape(-1).long()
    return "bits", int((bits * torch.arange(1, len(bits) + 1, device=bits.device)).sum())


def _check_weights(gathered: list[list[tuple]]) -> None:
    same: dict = {}
    for each in gathered:
        for i, (what, weights) in enumerate(each):
            if weights is not None and same.setdefault((len(each), i, what), weights) != weights:
                raise ArgumentError(
                    f"update_routers: processes have other weights in layer '{what[0]}' of the same name and sizes. Are they "
                    "stages of a pipeline? Then give group=, the processes that hold this stage; where all hold the same "
                    "layers, group=torch.distributed.group.WORLD"
                )


def _group_of_same(gathered: list[list[tuple]]):
    """The group of the processes with the same names as this one; all processes create all groups."""
    names = [tuple(what for what, _ in each) for each in gathered]
    if len(set(names)) == 1:
        return dist.group.WORLD
    groups = {each: dist.new_group([r for r, held in enumerate(names) if held == each]) for each in dict.fromkeys(names)}
    return groups[names[dist.get_rank()]]


def _exchanged(parts: Tensor, group) -> Tensor:
    """[processes,...]: all-to-all exchange of equal parts."""
    parts = parts.contiguous()
    out = torch.empty_like(parts)
    dist.all_to_all_single(out, parts, group=group)
    return out


def top_of_all(scores: Tensor, valid, factor: float, group) -> tuple[Tensor, Tensor]:
    """Expert choice in one pool of the tokens of all processes, ordered by process. Returns the slots of this
    process's tokens, [e, min(k, local tokens)], and the cut-offs [e] of the whole pool."""
    (n, e), size = scores.shape, dist.get_world_size(group)
    check_same(n, "tokens", scores.device, group)
    share = -(-e // size)  # experts per process, rounded up: the last ones may not exist
    key = select.comparable(scores, valid)  # -inf: padding
    key = torch.cat([key, key[:, :1].expand(n, share * size - e)], 1)  # missing experts, same padding
    columns = _exchanged(key.view(n, size, share).transpose(0, 1), group).reshape(size * n, share)
    held = columns[:, 0] > -math.inf
    index = torch.arange(size * n, device=key.device)[None]
    k = select.per_expert(factor, held.sum()[None], e)
    slots, worst = select.top(columns, index, held[None], k, select.per_expert(factor, size * n, e))
    mark = select.marked(slots, size * n).to(torch.uint8).view(size, n, share)
    taken = _exchanged(mark, group).transpose(0, 1).reshape(n, size * share)[:, :e]
    cutoffs = [torch.empty_like(worst[0]) for _ in range(size)]
    dist.all_gather(cutoffs, worst[0].contiguous(), group=group)
    room = min(n, select.per_expert(factor, size * n, e))
    return select.first(taken.t(), room), torch.cat(cutoffs)[:e]
