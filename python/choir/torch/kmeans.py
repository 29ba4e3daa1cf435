"""Centroids as running means of tokens (docs/routers.md, kmeans): rows of the gate's weight [e,d]."""

from __future__ import annotations

import torch
from torch import Tensor


def half_squares(centroids: Tensor) -> Tensor:
    """[e]: |mu|^2 / 2"""
    return centroids.double().square().sum(1) / 2


def farthest(seeds: Tensor, count: int) -> Tensor:
    """Selects `count` tokens, [count,1+d], from seeds [m,1+d]: each row is half the squared distance to the nearest
    centroid, then the token. The first is the token farthest from all centroids; each next one is the farthest from
    the centroids and the tokens selected before it. The result has the distances at the time of selection."""
    distance, x, found = seeds[:, 0], seeds[:, 1:], []
    for _ in range(count):
        at = distance.argmax()[None]
        token = x.index_select(0, at)
        found.append(torch.cat([distance.index_select(0, at)[:, None], token], 1))
        distance = torch.minimum(distance, (x - token).square().sum(1) / 2)
    return torch.cat(found)


def seeds_of(rows: Tensor, closeness: Tensor, valid) -> Tensor:
    """The seeds [n,1+d] of tokens [n,d] and their closeness to the centroids [n,e], x.mu - |mu|^2 / 2. Padding has
    distance 0."""
    x = rows.double()
    distance = (x.square().sum(1) / 2 - closeness.double().amax(1)).clamp(min=0)
    if valid is not None:
        distance = distance.masked_fill(valid.reshape(-1) == 0, 0)
    return torch.cat([distance[:, None], x], 1)


def moved(centroids: Tensor, weight: Tensor, load: Tensor, total: Tensor, seeds: Tensor) -> Tensor:
    """Moves each centroid by `weight` toward the mean of its `load` tokens, whose sum is total [e,d]; one without
    tokens is reset to the next of the farthest tokens, seeds [e,1+d]."""
    mu, empty = centroids.double(), load == 0
    new = mu + weight * (total / load.clamp(min=1)[:, None] - mu)
    seed = seeds.index_select(0, (empty.cumsum(0) - 1).clamp(min=0))
    return torch.where(empty[:, None], torch.where(seed[:, :1] > 0, seed[:, 1:], mu), new).to(centroids.dtype)
