"""Reads and writes routing records in the format of inference engines. Records are used for forced routing."""

from __future__ import annotations

import base64
import io
import math
from typing import Any, Optional, Sequence, Union

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._errors import ArgumentError
from .request import Routing
from .state import Keeper


def _decoded(text: str, shape: Optional[tuple[int, int]]) -> np.ndarray:
    """Decodes a server's record: base64 of a NumPy file (vLLM) or of raw int32 numbers (SGLang)."""
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
    """Converts a routing record of vLLM or SGLang (`routed_experts`) or Megatron (router replay) to an `assignment`
    for forced routing. The record has the expert numbers of every token, in every layer.

    Pass the result as `assignment` to a converted model or to `Transformer`, which select the rows of their MoE
    layers. If the record has MoE layers only, `assignment[i]` is also the argument of the i-th layer. Gates are
    computed from the current scores and have gradients. Engines do not process the last token that they sample, so
    the record lacks it: pass one token fewer to the model, or pad the record with -1.

    Args:
        routed_experts: the record, a tensor or an array of integers [tokens,layers,K] or [B,T,layers,K], or the
            text that a vLLM or SGLang server sends. Negative numbers mean "no expert". With K of 2 or more, a layer
            with only zeros has no experts: vLLM writes such rows for dense layers.
        num_experts: number of experts of a layer.
        shape: (layers, K) of SGLang's text, which does not contain them. `layers` counts all layers of the model.

    Returns the assignment, [layers,tokens,num_experts] or [layers,B,T,num_experts] bool.

    Raises ArgumentError for a record of another type or shape, for a number that is not below num_experts, and if a
    token has the same expert twice in a layer.

    Example: model(ids, assignment=choir.torch.recorded(output.routed_experts, 64)[:, None])    # one sequence"""
    if isinstance(routed_experts, str):
        routed_experts = _decoded(routed_experts, shape)
    if isinstance(routed_experts, np.ndarray) and routed_experts.dtype.kind in "iu":
        routed_experts = routed_experts.astype(np.int64)  # PyTorch has few operations for unsigned integers
    routes = torch.as_tensor(routed_experts)
    if routes.dim() < 3 or routes.is_floating_point() or routes.is_complex() or routes.dtype == torch.bool:
        raise ArgumentError(
            f"routed_experts is {routes.dtype} of shape {tuple(routes.shape)}; it must be integers [tokens,layers,K] or "
            "[B,T,layers,K]"
        )
    routes = routes.long()
    if routes.numel() and int(routes.max()) >= num_experts:
        raise ArgumentError(f"routed_experts names expert {int(routes.max())}; there are {num_experts}")
    each = torch.where((routes < 0) | _unused_layers(routes), num_experts, routes)
    counts = torch.zeros(*routes.shape[:-1], num_experts + 1, dtype=torch.int32, device=routes.device)
    counts = counts.scatter_add_(-1, each, torch.ones_like(each, dtype=torch.int32))[..., :num_experts]
    if bool((counts > 1).any()):
        *token, layer, expert = (counts > 1).nonzero()[0].tolist()
        raise ArgumentError(
            f"routed_experts names expert {expert} twice for token {', '.join(map(str, token))} in layer {layer}; each of the K "
            f"numbers must be another expert, or -1 where a token has no record. Its shape is {tuple(routes.shape)}: is K the "
            "last dimension?"
        )
    return (counts > 0).movedim(-2, 0)


def _unused_layers(routes: Tensor) -> Tensor:
    """[layers,1] bool: the layers with only zeros, which engines write for dense layers. With one number per token,
    none, because 0 may be expert 0."""
    if routes.shape[-1] < 2:
        return torch.zeros(routes.shape[-2], 1, dtype=torch.bool, device=routes.device)
    return (routes == 0).movedim(-2, 0).flatten(1).all(1)[:, None]


def moe_rows(assignment: Any, moe_layers: Sequence[int], layers: int) -> Union[Tensor, Sequence[Tensor]]:
    """The rows of `assignment` for the MoE layers, whose indices in the model are moe_layers. `assignment` has a
    row for each MoE layer or, like the records of engines, for each of the model's `layers` layers. ArgumentError:
    it has another number of rows."""
    if len(assignment) == len(moe_layers):
        return assignment
    if len(assignment) == layers:
        return [assignment[layer] for layer in moe_layers]
    raise ArgumentError(
        f"assignment has {len(assignment)} layers; it must have {len(moe_layers)}, one per MoE layer of the model, or "
        f"{layers}, one per layer, as the records of vLLM and SGLang"
    )


def _layers_of(model: nn.Module) -> list[Optional[Keeper]]:
    """The MoE layer of each layer of the model, None for a dense layer; only the MoE layers if the model's dense
    layers are unknown."""
    known = [module for module in model.modules() if hasattr(module, "choir_layers")]
    if len(known) != 1:
        return [module for module in model.modules() if isinstance(module, Keeper)]
    moe_layers, layers = known[0].choir_layers
    found = iter([module for module in known[0].modules() if isinstance(module, Keeper)])
    return [next(found) if layer in moe_layers else None for layer in range(layers)]


@torch.no_grad()
def routed_experts(model: nn.Module) -> Tensor:
    """Returns the routing record of the last forward pass, in the format of vLLM and SGLang. `recorded` reads it.

    Args:
        model: a module with choir.torch layers, after a forward pass. A converted model and `Transformer` have rows
            for all of their layers, including dense ones; other models only for their choir.torch layers.

    Returns the expert numbers of each token, [tokens,layers,K] int32, the highest gate first. K is the largest
    number of experts of a token. Tokens with fewer experts, and dense layers, have -1. With a batch, view it as
    [B,T,layers,K].

    Raises ArgumentError if a layer has not run yet, or if layers ran on different numbers of tokens.

    Example: record = choir.torch.routed_experts(model).cpu().numpy()"""
    layers = _layers_of(model)
    routings = [None if layer is None else layer.routing for layer in layers]
    live = [routing for routing, layer in zip(routings, layers) if layer is not None]
    if not live or None in live:
        raise ArgumentError("routed_experts: a layer has no routing yet: run the model, and read the record after its forward")
    if len({len(routing.assignment) for routing in live}) > 1:
        counts = sorted({len(routing.assignment) for routing in live})
        raise ArgumentError(f"routed_experts: layers routed {counts} tokens; a record has as many in each layer")
    n, K = len(live[0].assignment), max(int(routing.assignment.sum(1).max()) for routing in live)
    none = live[0].assignment.new_full((n, K), -1, dtype=torch.int32)
    return torch.stack([none if routing is None else _by_gate(routing, K).to(none.device) for routing in routings], 1)


def _by_gate(routing: Routing, K: int) -> Tensor:
    """[n,K] int32: each token's experts, the highest gate first, then -1."""
    worth = routing.gates.masked_fill(~routing.assignment, -math.inf)
    experts = worth.sort(dim=1, descending=True, stable=True).indices[:, :K]
    experts = experts.masked_fill(~routing.assignment.gather(1, experts), -1)
    return F.pad(experts, (0, K - experts.shape[1]), value=-1).int()
