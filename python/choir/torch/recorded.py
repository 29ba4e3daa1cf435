"""Routes that an inference engine recorded, as forced routing takes them."""

from __future__ import annotations

import base64
import io
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor

from .._native import ArgumentError


def _decoded(text: str, shape: Optional[tuple[int, int]]) -> np.ndarray:
    """What a server writes: base64 of a NumPy file (vLLM) or of int32 numbers alone (SGLang)."""
    try:
        held = base64.b64decode(text, validate=True)
        if held.startswith(b"\x93NUMPY"):
            return np.load(io.BytesIO(held), allow_pickle=False)
        if shape is not None:
            return np.frombuffer(held, "<i4").reshape(-1, *shape)
    except ValueError as error:
        raise ArgumentError(f"routed_experts is no base64 of int32 [tokens,layers,K] or of a NumPy file: {error}") from None
    raise ArgumentError("routed_experts is base64 of numbers without a shape, as SGLang's: give shape=(layers, K)")


def recorded(routed_experts: Any, num_experts: int, *, shape: Optional[tuple[int, int]] = None) -> Tensor:
    """The `taken` of layers, [layers,...,num_experts] bool, of experts' numbers [...,layers,K], as vLLM, SGLang
    (`routed_experts`) and Megatron (router replay) give them for every token: `taken[i]` is for the i-th MoE layer, all of
    it for a converted model's or `Transformer`'s keyword `taken`. Gates are those of now, and have gradients.

    Args:
        routed_experts: integers, a tensor or an array: [tokens,layers,K], or [B,T,layers,K]. Negative ones are nobody: a
            token without a record, as of padding, has no expert. Or the text that a server of vLLM or SGLang sends.
        num_experts: experts of a layer.
        shape: (layers, K) of SGLang's text, which does not say. Layers are all of the model's.

    Raises ArgumentError for numbers that are no expert's, or twice the same expert of a token. Engines do not run the last
    token that they sample: its record is missing, so give as many tokens, or pad with -1.

    Example: model(ids, taken=choir.torch.recorded(output.routed_experts, 64)[:, None])    # one sequence"""
    if isinstance(routed_experts, str):
        routed_experts = _decoded(routed_experts, shape)
    if isinstance(routed_experts, np.ndarray) and routed_experts.dtype.kind in "iu":
        routed_experts = routed_experts.astype(np.int64)  # of unsigned ones PyTorch has few operations
    routes = torch.as_tensor(routed_experts)
    if routes.dim() < 3 or routes.is_floating_point() or routes.is_complex() or routes.dtype == torch.bool:
        raise ArgumentError(
            f"routed_experts is {routes.dtype} of shape {tuple(routes.shape)}; it must be integers [tokens,layers,K] or "
            "[B,T,layers,K]"
        )
    routes = routes.long()
    if routes.numel() and int(routes.max()) >= num_experts:
        raise ArgumentError(f"routed_experts names expert {int(routes.max())}; there are {num_experts}")
    each = torch.where(routes < 0, num_experts, routes)
    counts = torch.zeros(*routes.shape[:-1], num_experts + 1, dtype=torch.int32, device=routes.device)
    counts.scatter_add_(-1, each, torch.ones_like(each, dtype=torch.int32))
    if bool((counts[..., :num_experts] > 1).any()):
        raise ArgumentError("routed_experts names an expert twice for a token and layer: is K the last dimension?")
    return (counts[..., :num_experts] > 0).movedim(-2, 0)
