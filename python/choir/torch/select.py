"""Selections in PyTorch operations, on the scores' device. Shapes depend on sizes only, so the host never waits for
the device.

Ties are broken as in libchoir: the lower token first, then the lower expert. `torch.topk` breaks ties arbitrarily,
and differently on CUDA and on a CPU, so a stable sort is used. NaN counts as the lowest score.
"""

from __future__ import annotations

import math
from typing import Optional, Union

import torch
from torch import Tensor

from . import compat

Count = Union[int, Tensor]  # number of tokens: known on the host, or on the device if there is padding


def per_expert(factor: float, n: Count, e: int) -> Count:
    """Tokens per expert, k = n factor / e: the nearest integer, halves up, at least 1 and at most n (`ch_router_k`)."""
    if not isinstance(n, Tensor):
        return min(n, max(1, math.floor(factor * n / e * (1 + 1e-12) + 0.5)))
    k = (factor * n.double() / e * (1 + 1e-12) + 0.5).floor().long().clamp(min=1)
    return torch.minimum(k, n)


def capacity(factor: float, n: Count, e: int) -> Count:
    """Capacity of each expert: n factor / e, rounded up, at most n (`ch_router_capacity`)."""
    if not isinstance(n, Tensor):
        return min(n, math.ceil(factor * n / e * (1 - 1e-12)))
    return torch.minimum((factor * n.double() / e * (1 - 1e-12)).ceil().long(), n)


def count(valid: Optional[Tensor], n: int) -> Count:
    return n if valid is None else valid.sum()


def comparable(scores: Tensor, valid: Optional[Tensor] = None) -> Tensor:
    """Scores for sorting: NaN becomes the lowest number; -inf is reserved for padding."""
    lowest = torch.finfo(scores.dtype).min
    key = scores.nan_to_num(nan=lowest, posinf=math.inf, neginf=lowest)
    return key if valid is None else key.masked_fill(~valid[:, None], -math.inf)


def best_experts(worth: Tensor, count: int, softmax: bool = False) -> Tensor:
    """[n,count]: each token's best experts, of equal ones the lower. softmax: either all scores of a token are NaN or
    none."""
    key = worth if softmax else comparable(worth)
    return key.sort(dim=1, descending=True, stable=True).indices[:, :count]


def one_hot(choice: Tensor, e: int) -> Tensor:
    """One-hot encoding, [...,e] bool, without waiting for the device, as F.one_hot does to check the values."""
    return choice[..., None] == torch.arange(e, device=choice.device)


def pools(n: int, sequence_length: int, pool: str, group_size: int, device) -> Tensor:
    """[pools, tokens]: token indices of each pool (docs/routers.md, Pools); indices from n on are empty places."""
    T = sequence_length if 0 < sequence_length < n else n
    if pool == "position":
        return torch.arange(T, device=device)[:, None] + T * torch.arange(-(-n // T), device=device)
    size = {"batch": n, "sequence": T, "group": min(group_size, n)}[pool]
    return size * torch.arange(-(-n // size), device=device)[:, None] + torch.arange(size, device=device)


def packed_pools(lengths: tuple, n: int, device) -> Tensor:
    """Like `pools`, for packed sequences of these lengths."""
    length, at = torch.tensor(lengths, device=device)[:, None], torch.arange(max(lengths), device=device)
    return (length.cumsum(0) - length + at).masked_fill(at >= length, n)


def members(index: Tensor, n: int, valid: Optional[Tensor]) -> Tensor:
    """[pools, tokens] bool: False for padding and empty places."""
    held = index < n
    return held if valid is None else held & valid[index.clamp(max=n - 1)]


def best(key: Tensor, count: int, shares: bool = False) -> Tensor:
    """Positions [...,count] of the largest values in the last dimension, of equal ones the lower first: the beginning
    of a stable sort. For float32, topk of distinct integers: the bits of the number, mapped to an ascending order,
    with the position, counted down, in the low bits. shares: values of softmax or sigmoids, from 0 on, whose bits are
    already ascending (NaN is represented by the only negative number). vmap, and meta tensors of old releases, cannot
    reinterpret bits: they use a sort."""
    if key.dtype != torch.float32 or key.is_meta or compat.transformed(key):
        return key.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    if not shares:
        key = (key + 0.0).contiguous()  # + 0 turns -0 into 0
    bits = key.view(torch.int32)
    ascending = bits if shares else torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    down = torch.arange(key.shape[-1] - 1, -1, -1, device=key.device)
    return torch.add(down, ascending, alpha=1 << 32).topk(count, dim=-1).indices


def top(scores: Tensor, index: Tensor, held: Tensor, k: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """Each expert's k [pools] best tokens of every pool: slots [e, pools*room], n for an empty slot, and the k-th
    scores [pools,e], inf where k is 0."""
    n, e = scores.shape
    key = comparable(scores)[index.clamp(max=n - 1)].transpose(1, 2)  # [pools,e,tokens]
    key = key.masked_fill(~held[:, None], -math.inf)
    order = best(key, room)
    token = index[:, None].expand_as(key).gather(2, order)
    token = token.masked_fill(torch.arange(room, device=k.device) >= k[:, None, None], n)
    last = order.gather(2, (k - 1).clamp(min=0)[:, None, None].expand(-1, e, 1))
    worst = key.gather(2, last)[:, :, 0].masked_fill((k < 1)[:, None], math.inf)
    return token.transpose(0, 1).reshape(e, -1), worst


def equal_pools(n: int, sequence_length: int, pool: str, group_size: int) -> int:
    """The number of pools, as `pools` divides the tokens, if all have the same size; otherwise 0."""
    if pool == "group" and compat.exporting():  # else only multiples of the size could be exported
        return 0
    T = sequence_length if 0 < sequence_length < n else n
    step = {"batch": n, "group": min(group_size, n)}.get(pool, T)
    return 0 if n % step else T if pool == "position" else n // step


def top_of_equal(scores: Tensor, pools: int, apart: bool, k: int, shares: bool) -> Tensor:
    """Like `top`, for pools without padding: slots [e,pools*k], each pool's best first. apart: consecutive tokens of
    a pool are `pools` tokens apart instead of adjacent."""
    n, e = scores.shape
    key = comparable(scores)
    key = key.view(-1, pools, e).permute(1, 2, 0) if apart else key.view(pools, -1, e).transpose(1, 2)
    order = best(key, k, shares)  # [pools,e,k]
    if pools == 1:
        return order[0]
    pool = torch.arange(pools, device=order.device)[:, None, None]
    token = torch.add(pool, order, alpha=pools) if apart else torch.add(order, pool, alpha=n // pools)
    return token.transpose(0, 1).reshape(e, -1)


def mean_cutoff(worst: Tensor) -> Tensor:
    """[e]: the mean over pools that have a cut-off, else inf."""
    finite = torch.isfinite(worst)
    mean = worst.double().masked_fill(~finite, 0).sum(0) / finite.sum(0)
    return torch.where(finite.any(0), mean, math.inf).to(worst.dtype)


def marked(slots: Tensor, n: int) -> Tensor:
    """[n,e] bool from slots [e,room], where n marks an empty slot."""
    e = slots.shape[0]
    mark = torch.zeros(n + 1, e, dtype=torch.bool, device=slots.device)
    return mark.scatter(0, slots.t(), True)[:n]


def first(taken: Tensor, room: int) -> Tensor:
    """[e,room] from an assignment [e,n]: the indices of assigned tokens, ascending, then n."""
    order = taken.to(torch.uint8).sort(dim=1, descending=True, stable=True)
    return order.indices[:, :room].masked_fill(order.values[:, :room] == 0, taken.shape[1])


def place(choice: Tensor, asks: Optional[Tensor], e: int, room: Optional[Count]) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """Places choices [n,K] until experts are full: first all first choices, in token order, then the second ones,
    and so on. asks [n,K] bool: the choices that count; None: all. room: capacity of each expert; None: no limit.
    Returns the assignment [n,e] bool, demand [e], and the number of dropped choices [], or None without a limit."""
    if room is None:
        taken = torch.zeros(choice.shape[0], e, dtype=torch.bool, device=choice.device)
        taken = taken.scatter(1, choice, True) if asks is None else (one_hot(choice, e) & asks[..., None]).any(1)
        return taken, taken.sum(0), None
    n, K = choice.shape
    # [e,K*n]: on a GPU, sums along the last dimension are several times as fast as along the first
    asked = one_hot(choice.t().reshape(-1), e).t().contiguous()
    asked = asked if asks is None else asked & asks.t().reshape(-1)
    demand, taken = asked.sum(1), asked & (asked.cumsum(1, dtype=torch.int32) <= room)
    return taken.view(e, K, n).any(1).t().contiguous(), demand, demand.sum() - taken.sum()


def global_top(scores: Tensor, valid: Optional[Tensor], room: Count, total: Count):
    """Assigns the `total` highest-scoring pairs, in descending order, except those whose expert already has `room`
    tokens. Returns the assignment [n,e] bool, demand [e], dropped [] and cut-offs [e]."""
    n, e = scores.shape
    key = comparable(scores, valid)
    column = key.t().sort(dim=1, descending=True, stable=True).indices
    rank = torch.zeros_like(column).scatter(1, column, torch.arange(n, device=key.device).expand(e, n)).t()
    able = (rank < room) & (key > -math.inf)
    order = key.reshape(-1).sort(descending=True, stable=True).indices
    fits = able.reshape(-1)[order]
    before = fits.long().cumsum(0) - fits.long()
    reached = torch.zeros_like(fits).scatter(0, order, before < total).view(n, e) & (key > -math.inf)
    taken = reached & able
    worst = torch.where(taken, key, math.inf)
    full = taken.sum(0) == room
    cutoffs = torch.where(full & taken.any(0), worst.amin(0), worst.amin())
    return taken, reached.sum(0), (reached & ~taken).sum(), cutoffs


def by_thresholds(scores: Tensor, thresholds: Tensor, valid: Optional[Tensor], cap: int) -> Tensor:
    """[n,e] bool: whether the score reaches the expert's threshold; under a cap, the experts with the largest
    margins, of equal ones the lower."""
    passes = scores >= thresholds
    if valid is not None:
        passes = passes & valid[:, None]
    if cap and cap < scores.shape[1]:
        margin = comparable(scores - thresholds).masked_fill(~passes, -math.inf)
        best = margin.sort(dim=1, descending=True, stable=True).indices[:, :cap]
        passes = passes & torch.zeros_like(passes).scatter(1, best, True)
    return passes
