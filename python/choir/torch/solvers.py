"""Iterative algorithms as custom operators: each is one node for torch.compile and torch.export.

`choir::balance` consists of PyTorch operations on the tensor's device, and the host does not wait for it.
`choir::on_host` routes on the CPU (host.py). It copies the scores to the host, so on a GPU the host waits for them.
Assignments are piecewise constant and have no gradient. The layer computes gates, which have one, outside the
operators.
"""

import math
from typing import List, Optional

import numpy as np
import torch
from torch import Tensor

from . import host
from .select import comparable, count, per_expert


def balance(scores: Tensor, valid: Optional[Tensor], prices: Tensor, per_token: int) -> Tensor:
    """The prices of quantile_balanced (docs/routers.md): with them, the `per_token` highest values of scores -
    prices of every token load the experts evenly. 16 iterations, starting from `prices`.

    Args:
        scores: [n,e]
        valid: [n] bool, False for padding, or None.
        prices: [e] the initial prices.
        per_token: number of experts per token.

    Returns the prices, [e]."""
    n, e = scores.shape
    some = count(valid, n)
    # new_full avoids a copy from the host.
    some = some if isinstance(some, Tensor) else scores.new_full((), n, dtype=torch.long)
    k = per_expert(per_token, some, e)
    at = torch.stack([k - 1, torch.minimum(k, some - 1)]).clamp(min=0).expand(e, 2)
    most = min(n, per_expert(per_token, n, e) + 1)  # entries of a column that are needed
    beta, columns = prices.to(scores.dtype), scores.t().contiguous()
    for _ in range(16 if per_token < e else 1):
        if per_token < e:
            best = (scores - beta).topk(per_token + 1, dim=1).values
            key = comparable(columns - (best[:, per_token - 1] + best[:, per_token]) / 2)
            key = key if valid is None else key.masked_fill(~valid, -math.inf)
            worst, following = key.topk(most, dim=1).values.gather(1, at).t()
            apart = (worst != following).any()
            beta = torch.where(some > 0, torch.where(apart, (worst + following) / 2, 0.0), beta)
        evened = beta.double() - (beta.double().sum() - 1) / e
        beta = torch.where(some > 0, evened.to(beta.dtype), beta)
    return beta


def on_host(
    scores: Tensor,
    held: Tensor,
    tokens: Optional[Tensor],
    seed: Optional[Tensor],
    training: bool,
    layer: int,
    router: str,
    state: Optional[Tensor] = None,
) -> List[Tensor]:
    """Routes each pool separately on the CPU, in float32.

    Args:
        scores: [pools,n,e]
        held: [pools,n] bool, False for padding and empty places.
        tokens: [n] token ids, or None.
        seed: [] int64 seed of random numbers, or None.
        training: whether to route as in training.
        layer: number of the layer, for random numbers.
        router: the router and its options as JSON (`Options.given`).
        state: [e] state of a plug-in with `observe`, or thresholds of a plug-in with a ranking; else None.

    Returns the assignment [pools,n,e] bool; cut-offs [pools,e]; demand [e] and dropped [], summed over the pools;
    and the loss [] and its gradient [pools,n,e] of routers with a loss of their own, else 0 and an empty tensor
    [0]."""
    given, held = (a.detach().cpu().numpy() for a in (scores.float(), held))
    lowest = np.finfo(np.float32).min
    given = np.nan_to_num(given, nan=lowest, neginf=lowest)
    ids, kept = (None if a is None else a.cpu().numpy() for a in (tokens, state))
    kept = None if kept is None else kept.astype(np.float64)
    call = host.Call(router, training, 0 if seed is None else int(seed), layer, ids, kept)
    made = [host.choose(call, pool, valid) for pool, valid in zip(given, held)]
    slope = np.stack([one.gradient for one in made]) if made[0].gradient is not None else np.zeros(0, np.float32)
    found = (
        np.stack([one.taken for one in made]),
        np.stack([one.cutoffs for one in made]).astype(np.float32),
        sum(one.demand for one in made).astype(np.int64),
        np.array(sum(one.dropped for one in made), np.int64),
        np.array(sum(one.loss for one in made), np.float32),
        slope,
    )
    return [torch.from_numpy(a).to(scores.device) for a in found]


def _balance_fake(scores, valid, prices, per_token):
    return scores.new_empty(scores.shape[1])


def _on_host_fake(scores, held, tokens, seed, training, layer, router, state=None):
    pools, _, e = scores.shape
    counts = (scores.new_empty(size, dtype=torch.int64) for size in ((e,), ()))
    cutoffs = scores.new_empty(pools, e, dtype=torch.float32)
    slope = scores.shape if host.adds_loss(router) else (0,)
    losses = (scores.new_empty(size, dtype=torch.float32) for size in ((), slope))
    return [torch.empty_like(scores, dtype=torch.bool), cutoffs, *counts, *losses]


def _operator(function, fake):
    """The function as a custom operator with a fake implementation, no gradients, and a loop for vmap. Before
    PyTorch 2.4, which has no custom operators, it returns the function itself, which runs but cannot be
    compiled."""
    if not hasattr(torch.library, "custom_op"):
        return function
    made = torch.library.custom_op(f"choir::{function.__name__}", function, mutates_args=())
    made.register_fake(fake)
    made.register_autograd(lambda ctx, *cotangents: (None,) * function.__code__.co_argcount)

    def mapped(info, in_dims, *given):
        each = [[a if d is None else a.select(d, i) for a, d in zip(given, in_dims)] for i in range(info.batch_size)]
        calls = [function(*one) for one in each]
        if isinstance(calls[0], Tensor):
            return torch.stack(calls), 0
        return [torch.stack(parts) for parts in zip(*calls)], [0] * len(calls[0])

    made.register_vmap(mapped)
    return made


balance_op = _operator(balance, _balance_fake)
on_host_op = _operator(on_host, _on_host_fake)
