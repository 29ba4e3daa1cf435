"""Statistics of layers, collected on the device: a forward pass adds to a few sums, and `stats` reads the sums of
all layers in one copy."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .._errors import ArgumentError
from .._locality import locality as _locality
from .ranks import group_of
from .request import Routing
from .state import Keeper

SUMS = ("forwards", "tokens", "unrouted", "dropped", "demanded", "entropy")


class Stats(NamedTuple):
    """Statistics of one layer since the last call of `stats`."""

    forwards: int
    """number of forward passes"""
    tokens: int
    """number of tokens, without padding"""
    load: list
    """[e] fraction of all assignments that each expert has"""
    max_load: float
    """the largest load divided by the mean load; 1: all loads are equal"""
    experts_per_token: float
    """mean number of experts per token"""
    unrouted: float
    """fraction of tokens without an expert"""
    dropped: float
    """fraction of the tokens' choices that were dropped because the expert was full"""
    entropy: float
    """mean entropy of a token's scores, in nats; sigmoids are divided by their sum first"""
    cutoffs: Optional[list]
    """[e] mean cut-off scores, prices or biases; None: the router has none"""


def counted(scores: Tensor, routing: Routing, valid: Optional[Tensor]) -> Tensor:
    """The sums of one forward pass, float64: those of SUMS, loads [e], cut-offs [e], and 1 where a cut-off is
    finite [e]."""
    assignment, e = routing.assignment, scores.shape[1]
    held = torch.ones_like(assignment[:, 0]) if valid is None else valid.reshape(-1) != 0
    p = scores / scores.sum(1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    entropy = torch.where(held, -torch.special.xlogy(p, p).sum(1), 0.0).sum()
    unrouted = (held & ~assignment.any(1)).sum()
    one = torch.ones_like(entropy)
    counts = (one, held.sum(), unrouted, routing.dropped, routing.demand.sum(), entropy)
    sums = torch.stack([a.double() for a in counts])
    known = torch.zeros(e, device=scores.device) if routing.cutoffs is None else torch.isfinite(routing.cutoffs)
    cutoffs = known if routing.cutoffs is None else torch.where(known, routing.cutoffs, 0.0)
    return torch.cat([sums, *(a.double() for a in (assignment.sum(0), cutoffs, known))])


def _read(sums: list) -> Stats:
    of, e = dict(zip(SUMS, sums)), (len(sums) - len(SUMS)) // 3
    load, cutoffs, known = (sums[len(SUMS) + i * e :][:e] for i in range(3))
    choices, tokens = max(sum(load), 1), max(of["tokens"], 1)
    return Stats(
        forwards=int(of["forwards"]),
        tokens=int(of["tokens"]),
        load=[held / choices for held in load],
        max_load=max(load) * e / choices,
        experts_per_token=sum(load) / tokens,
        unrouted=of["unrouted"] / tokens,
        dropped=of["dropped"] / max(of["demanded"], 1),
        entropy=of["entropy"] / tokens,
        cutoffs=[c / max(k, 1) for c, k in zip(cutoffs, known)] if any(known) else None,
    )


@torch.no_grad()
def stats(model: nn.Module, group: Any = None) -> dict[str, Stats]:
    """Returns routing statistics of every choir.torch layer since the last call, by the layer's name in the model.
    The first call starts the collection. The sums stay on the device, and are read in one copy.

    Args:
        model: a module with choir.torch layers.
        group: a torch.distributed group, or DeviceMesh of one dimension, over whose processes the statistics are
            summed. All of them must call. None: this process only.

    Returns a `Stats` for each layer: tokens, load, max_load, experts_per_token, unrouted, dropped, entropy,
    cutoffs.

    Example:
        choir.torch.stats(model)                          # starts the collection
        ...
        for name, layer in choir.torch.stats(model).items():
            print(name, layer.max_load, layer.unrouted)"""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Keeper)}
    for layer in layers.values():
        if layer.tally is None:
            size = len(SUMS) + 3 * len(layer.thresholds)
            layer.tally = torch.zeros(size, dtype=torch.float64, device=layer.thresholds.device)
    if not layers:
        return {}
    device = next(iter(layers.values())).tally.device
    sums, group = torch.cat([layer.tally.to(device) for layer in layers.values()]), group_of(group)
    if group is not None:
        dist.all_reduce(sums, group=group)
    for layer in layers.values():
        layer.tally.zero_()
    sizes = [layer.tally.numel() for layer in layers.values()]
    return {name: _read(part.tolist()) for name, part in zip(layers, sums.cpu().split(sizes))}


@torch.no_grad()
def locality(model: nn.Module, length: int, valid: Any = None) -> dict[str, dict[str, Any]]:
    """Returns how local the routing of the last forward pass was, by the layer's name: the hit rates of a cache of
    experts, and more (`choir.locality`, docs/locality.md). The routing must be causal. For layers with expert
    choice, this means eval mode with causal=True.

    Args:
        model: a module with choir.torch layers, after a forward pass.
        length: tokens per sequence, T of the forward pass's [B,T,d].
        valid: [B,T], 0 for padding at the end of sequences; None: no padding.

    Returns, for each layer, the dictionary of `choir.locality`.

    Raises ArgumentError for routing that is not causal, and for a length that does not divide the number of tokens.

    Example: choir.torch.locality(model.eval(), 128)["layers.1.moe"]["lru"]["8"]"""
    found = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, Keeper) or layer.routing is None:
            continue
        if layer.compares_tokens() or (layer.training and layer.options.by_thresholds):
            raise ArgumentError(
                f"locality: layer '{name}' routed by batch, which is not causal: set its `causal` to True, call model.eval(), and "
                "run the model again"
            )
        assignment = layer.routing.assignment
        if length < 1 or len(assignment) % length:
            raise ArgumentError(f"locality: length is {length}; it must divide the {len(assignment)} tokens of the last forward")
        found[name] = _locality(assignment.reshape(-1, length, assignment.shape[1]).cpu().numpy(), None if valid is None else torch.as_tensor(valid).cpu().numpy())
    return found
