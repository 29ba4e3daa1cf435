"""Centroids that follow the tokens (docs/routers.md, kmeans): columns of the router's weight [d,e]."""

from __future__ import annotations

import torch
from torch import Tensor


def half_squares(centroids: Tensor) -> Tensor:
    """[e]: |mu|^2 / 2"""
    return centroids.double().square().sum(0) / 2


def moved(centroids: Tensor, weight: Tensor, rows: Tensor, closeness: Tensor, taken: Tensor, valid) -> Tensor:
    """Each centroid moved toward the mean of its tokens by `weight`; one without tokens starts again from the token
    that is farthest from all centroids, those that started again before it included. closeness [n,e]:
    x.mu - |mu|^2 / 2."""
    x, mu = rows.double(), centroids.double()
    load = taken.sum(0)
    mean = x.t() @ taken.double() / load.clamp(min=1)
    new = mu + weight * (mean - mu)
    distance = (x.square().sum(1) / 2 - closeness.double().amax(1)).clamp(min=0)
    if valid is not None:
        distance = distance.masked_fill(~valid, 0)
    for i in range(mu.shape[1]):
        far = distance.argmax()
        seeds = (load[i] == 0) & (distance.amax() > 0)
        stays = torch.where(seeds, x.index_select(0, far[None])[0], mu[:, i])
        new = torch.where((torch.arange(mu.shape[1], device=mu.device) == i) & (load[i] == 0), stays[:, None], new)
        near = (x - stays).square().sum(1) / 2
        distance = torch.where(seeds, torch.minimum(distance, near), distance)
    return new.to(centroids.dtype)
