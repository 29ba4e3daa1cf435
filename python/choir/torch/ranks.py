"""One pool over the processes of a torch.distributed group: every process has as many tokens, and each chooses for its
share of the experts. What travels are columns of scores, and back who was chosen; no gradient does."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor

from . import select


def group_of(group):
    """The group of a DeviceMesh of one dimension, or the group itself."""
    return group.get_group() if hasattr(group, "get_group") else group


def _exchanged(parts: Tensor, group) -> Tensor:
    """[processes,...]: part r goes to process r, and its part for this one comes."""
    parts = parts.contiguous()
    out = torch.empty_like(parts)
    dist.all_to_all_single(out, parts, group=group)
    return out


def top_of_all(scores: Tensor, valid, factor: float, group) -> tuple[Tensor, Tensor]:
    """Expert choice in the pool of all processes' tokens, in the order of processes: this one's slots
    [e, min(k, own tokens)], and the cut-offs [e] of the whole pool."""
    (n, e), size = scores.shape, dist.get_world_size(group)
    share = -(-e // size)  # experts of a process; the last ones may be nobody's
    key = select.comparable(scores, valid)  # -inf: takes no part
    key = torch.cat([key, key[:, :1].expand(n, share * size - e)], 1)  # nobody's experts: -inf means the same there
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
