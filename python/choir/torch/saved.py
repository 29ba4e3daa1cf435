"""The routers' state, separately from the weights: for tools that do not save buffers, such as adapters (PEFT)."""

from __future__ import annotations

import json
import os
import pathlib
import re
from typing import Any, Iterator, Mapping, Union

import torch
from torch import Tensor, nn

from .._errors import ArgumentError, FormatError
from .state import Keeper

INNER = r"(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
WRAPPERS = re.compile(rf"^(module\.|base_model\.model\.|{INNER})+|(?<![^.]){INNER}")
CALLBACK, ENTRY = "UpdateRouters", "router_state"  # place in Trainer's trainer_state.json


def _state_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The tensors that training updates, by their names in the model without its wrappers."""
    for name, layer in model.named_modules():
        if isinstance(layer, Keeper) and layer.sums is not None:
            prefix = WRAPPERS.sub("", f"{name}." if name else "")
            yield prefix + "thresholds", layer.thresholds
            yield prefix + "observed", layer.observed
            if layer.router_name == "kmeans":
                yield prefix + "gate.weight", layer.gate.weight


def router_state(model: nn.Module) -> dict[str, Tensor]:
    """Returns a copy of the state that routers learn without gradients: thresholds, prices, biases and centroids. A
    model's `state_dict` contains it; PEFT's adapters and other files of trained parameters do not.
    `load_router_state` loads it.

    Args:
        model: a module with choir.torch layers, in a wrapper (PEFT, DDP, torch.compile) or not. The names do not
            depend on wrappers.

    Returns tensors on the CPU by name; {} if no router has state.

    Example:
        adapted.save_pretrained(folder)
        torch.save(choir.torch.router_state(adapted), folder / "routers.pt")"""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in _state_of(model)}


@torch.no_grad()
def load_router_state(model: nn.Module, state: Union[Mapping[str, Tensor], str, os.PathLike]) -> None:
    """Sets the routers' thresholds, prices, biases and centroids to a state that `router_state` returned.

    Args:
        model: a model with the same routers, in any wrapper or none.
        state: the state, or a checkpoint folder of transformers' Trainer that trained adapters with
            `trainer_callback`.

    Raises ArgumentError for a state of other routers, and FormatError for a folder without a state.

    Example:
        model = peft.PeftModel.from_pretrained(choir.torch.convert(base, "bias_balanced"), folder)
        choir.torch.load_router_state(model, torch.load(folder / "routers.pt"))"""
    if isinstance(state, (str, os.PathLike)):
        state = _of_folder(pathlib.Path(state))
    wanted = dict(_state_of(model))
    if set(wanted) != set(state):
        lacking, others = sorted(set(wanted) - set(state)), sorted(set(state) - set(wanted))
        raise ArgumentError(
            f"load_router_state: the state has no {lacking[:3]}, and the model has no {others[:3]}: it belongs to another model or "
            "to other routers"
        )
    for name, tensor in wanted.items():
        if state[name].shape != tensor.shape:
            raise ArgumentError(
                f"load_router_state: {name} has shape {tuple(state[name].shape)}, and {tuple(tensor.shape)} in the model"
            )
    for name, tensor in wanted.items():
        tensor.copy_(state[name])
    for layer in model.modules():
        if isinstance(layer, Keeper):
            layer.start_step()
            layer.lacks_state = False


def to_json(model: nn.Module) -> dict[str, list]:
    """router_state in JSON form for Trainer; JSON preserves every bit of a float32."""
    return {name: tensor.tolist() for name, tensor in router_state(model).items()}


def of_json(callbacks: Any) -> dict[str, Tensor]:
    """The router state in the entry `stateful_callbacks` of Trainer's state; {} if there is none."""
    entry = (callbacks or {}).get(CALLBACK, {})
    entry = entry[0] if isinstance(entry, list) else entry
    held = entry.get("attributes", {}).get(ENTRY, {})
    return {name: torch.tensor(value, dtype=torch.int64 if name.endswith("observed") else None) for name, value in held.items()}


def _of_folder(folder: pathlib.Path) -> dict[str, Tensor]:
    path = folder / "trainer_state.json"
    try:
        state = of_json(json.loads(path.read_text())["stateful_callbacks"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path}: is no state of transformers' Trainer ({type(error).__name__}: {error})") from None
    if not state:
        raise FormatError(
            f"{path}: has no routers' state. Trainer writes it where an adapter is trained with choir.torch.trainer_callback()"
        )
    return state
