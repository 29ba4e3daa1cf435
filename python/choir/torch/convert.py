"""Replaces the MoE blocks of transformers models by choir's layers. The layers use the weights of the blocks, under
the same names, so converted models are saved, resumed and adapted as before, and can be reverted."""

from __future__ import annotations

import functools
import importlib
import json
import pathlib
import re
import warnings
from typing import TYPE_CHECKING, Any, Iterator, Optional

import torch
from torch import Tensor, nn

from .. import plugin
from .._errors import ArgumentError, FormatError, UnsupportedError, renamed
from .._routers import find
from . import compat
from .experts import Experts, Gate
from .layer import MoE
from .recorded import moe_rows

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..fields import ConvertOptions

BLOCKS = ("MixtralSparseMoeBlock", "OlmoeSparseMoeBlock", "Qwen3MoeSparseMoeBlock")
VERSION = 1  # version of the entry "choir" in config.json
# The keyword argument that passes padding, forced assignment and positions from a model's forward to its blocks.
INPUTS = "choir_inputs"


class _TheirExperts(Experts):
    """Experts that use the weights of the replaced block: gate_up_proj [e,2h,d] and down_proj [e,d,h]."""

    def __init__(self, theirs: nn.Module, gate_on: str):
        nn.Module.__init__(self)
        self.activation, self.gate_on = "swiglu", gate_on
        self.gate_up_proj, self.down_proj = theirs.gate_up_proj, theirs.down_proj

    h = property(lambda self: self.down_proj.shape[2])
    w1 = property(lambda self: self.gate_up_proj[:, : self.h].transpose(1, 2))
    w3 = property(lambda self: self.gate_up_proj[:, self.h :].transpose(1, 2))
    w2 = property(lambda self: self.down_proj)


@functools.lru_cache(None)
def _recorded(theirs: type) -> type:
    """A Gate that also has the type of transformers' router, whose outputs transformers records
    (output_router_logits)."""

    def pickled(self, protocol):
        return _unpickled, (theirs,), self.__dict__.copy()

    return type("RecordedGate", (Gate, theirs), {"__reduce_ex__": pickled})


def _unpickled(theirs: type) -> nn.Module:
    made = _recorded(theirs)
    return made.__new__(made)


class _Converted(MoE):
    """The layer that replaces a block. `inputs` has padding, forced assignment, and positions of packed sequences,
    from the arguments of the model's forward."""

    inputs: Optional[tuple] = None
    noise = 0.0

    def forward(self, hidden_states: Tensor, *given, **options) -> Tensor:
        if self.inputs is not None:
            valid, assignment, position = self.inputs
            length = hidden_states.shape[-2]
            if position is not None and "sequence" in (self.options.pool, self.options.aux_scope):
                options.setdefault("lengths", _lengths_of(position.expand(hidden_states.shape[:-1])))
            options.setdefault("valid", None if valid is None else valid[:, -length:])
            options.setdefault("assignment", None if assignment is None else assignment[self.layer])
        if self.training and self.noise:  # as in Mixtral, also for the experts
            hidden_states = hidden_states * torch.empty_like(hidden_states).uniform_(1 - self.noise, 1 + self.noise)
        return super().forward(hidden_states, *given, **options)


HOOKS = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs")
HOOKS += ("_forward_hooks_always_called", "_backward_pre_hooks", "_backward_hooks", "_is_full_backward_hook")


def _hand_on(before: nn.Module, now: nn.Module) -> None:
    """Moves the hooks of the replaced module to its replacement: PyTorch's, whose handles still remove them, and
    accelerate's, which moves inputs and loads offloaded weights."""
    now.__dict__.update({kind: before.__dict__[kind] for kind in HOOKS})
    _hand_on_loading(before, now)


def _hand_on_loading(before: nn.Module, now: nn.Module) -> None:
    hook = getattr(before, "_hf_hook", None)
    if hook is not None:
        importlib.import_module("accelerate.hooks").add_hook_to_module(now, hook)


def _device_of(block: nn.Module, name: str, learned: bool) -> torch.device:
    """The device on which a block computes: that of its weights, or the one to which accelerate loads offloaded
    weights."""
    meta = next((weight for weight, held in block.named_parameters() if held.is_meta), None)
    if meta is None:
        return block.experts.gate_up_proj.device
    hooks = getattr(getattr(block.experts, "_hf_hook", None), "hooks", [getattr(block.experts, "_hf_hook", None)])
    loading = [hook for hook in hooks if getattr(hook, "offload", False)]
    if not loading:
        raise UnsupportedError(f"{name}.{meta} is on the meta device and has no values: load the weights, then convert the model")
    if not learned:
        raise UnsupportedError(
            f"{name}.{meta} is offloaded (device_map): this router keeps a copy of the gate, which needs its values. Load the "
            'model with device_map={"": "cpu"}, convert it, then offload it: accelerate.disk_offload(model, folder, "cpu")'
        )
    return torch.device(loading[0].execution_device)


def _of_block(block: nn.Module, name: str, layer: int, router: str, options: dict) -> _Converted:
    gate, theirs = block.gate, block.experts
    act = type(getattr(theirs, "act_fn", None)).__name__
    if not hasattr(theirs, "gate_up_proj") or act not in ("SiLUActivation", "SiLU"):
        raise UnsupportedError(
            f"{type(block).__name__} with experts {type(theirs).__name__} ({act}): convert takes the blocks of "
            "transformers 5, whose experts are gate_up_proj and down_proj, with SiLU"
        )
    if router == "topk":
        # Mixtral always divides the gates by their sum; its config has no field for it.
        options = {"top_k": gate.top_k, "normalize_gates": getattr(gate, "norm_topk_prob", True), **options}
    both = theirs.gate_up_proj
    e, double, d = both.shape
    at = {"device": "meta", "dtype": both.dtype, "layer": layer}
    made = _Converted(d, double // 2, e, router, activation="swiglu", **at, **options)
    made.experts, made.noise = _TheirExperts(theirs, made.options.gate_on), getattr(block, "jitter_noise", 0.0)
    made.source = (type(block), gate)
    learned = "weight" in made.gate._parameters
    device = _device_of(block, name, learned)
    if made.shared is not None:
        made.shared.to_empty(device=device).reset_parameters()
    if learned:
        made.gate.weight = gate.weight
    else:
        made.gate.weight = gate.weight.detach().float() if made.gate.means else gate.weight.detach()
    made.gate.__class__ = _recorded(type(gate))
    keeps = made.sums is not None
    made.register_buffer("thresholds", torch.zeros(e, device=device), persistent=keeps)
    made.register_buffer("observed", torch.zeros((), dtype=torch.int64, device=device), persistent=keeps)
    made._forget()
    made.start_step()
    _hand_on(block, made), _hand_on(gate, made.gate), _hand_on_loading(theirs, made.experts)
    if theirs._forward_hooks or theirs._forward_pre_hooks:
        warnings.warn(f"{name}.experts has hooks, which are not called after convert: choir's experts have other arguments")
    return made.train(block.training)


def _cache_of(kwargs: dict) -> Any:
    return kwargs.get("cache", kwargs.get("past_key_values"))  # depends on the release of transformers 5


def _valid_of(mask: Any, kwargs: dict) -> Optional[Tensor]:
    """Which tokens are not padding, [B,...,T] bool, according to the attention mask of a model's call: [B,T] of 0
    and 1, which begins with the tokens of the cache; or [B,1,T,S], True or 0 where one token attends to another, in
    which padding does not attend to itself. None: no mask, or no padding."""
    mask = next(iter(mask.values()), None) if isinstance(mask, dict) else mask
    if mask is None:
        return None
    if isinstance(mask, Tensor) and mask.dim() == 4:
        cache = _cache_of(kwargs)
        own = torch.arange(mask.shape[2], device=mask.device) + (0 if cache is None else cache.get_seq_length())
        mask = mask[:, 0].gather(2, own[None, :, None].expand(mask.shape[0], -1, 1))[..., 0]
        mask = mask if mask.dtype == torch.bool else mask == 0
    elif not isinstance(mask, Tensor) or mask.dim() != 2:
        kind = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        warnings.warn(f"attention_mask is {kind}, which does not say what is padding: every token takes part in routing")
        return None
    valid = mask != 0
    if valid.device.type == "cpu" and compat.has_values(valid) and bool(valid.all()):
        return None  # the same as no mask, but faster
    return valid


def _lengths_of(position: Tensor) -> list:
    """Lengths of the sequences that are packed into rows [B,T] of positions. As in attention, a new sequence begins
    where a position is not the previous one plus 1. The host waits for the device."""
    begins = torch.diff(position, prepend=position[:, :1]) != 1
    begins[:, 0] = True
    at = [*begins.flatten().nonzero().flatten().tolist(), position.numel()]
    return [b - a for a, b in zip(at, at[1:])]


def _send_inputs(module: nn.Module, args: tuple, kwargs: dict):
    """A model's forward pre-hook: adds padding, forced assignment and positions to the keyword arguments, which the
    model passes to its layers."""
    mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
    valid = _valid_of(mask, kwargs)
    assignment = renamed("assignment", kwargs.pop("assignment", None), "taken", kwargs.pop("taken", None))
    if assignment is not None:
        assignment = moe_rows(assignment, *module.choir_layers)
    position = kwargs.get("position_ids", args[2] if len(args) > 2 else None) if mask is None else None
    ids = kwargs.get("input_ids", args[0] if args else None)
    if mask is None and ids is not None and not compat.compiling() and not getattr(module, "_choir_asked", False):
        module._choir_asked = True
        module.warn_if_padding_and_no_attention_mask(ids, mask)
    if not module.training and not compat.compiling() and not getattr(module, "_choir_cached", False):
        _warn_of_cache(module, _cache_of(kwargs))
    return args, {**kwargs, INPUTS: (valid, assignment, position)}


def _warn_of_cache(module: nn.Module, cache: Any) -> None:
    """Warns once, at the first step of generation with a cache, if a router compares the tokens of a call."""
    if cache is None or not int(cache.get_seq_length()):
        return
    module._choir_cached = True
    comparing = [layer.router_name for layer in module.modules() if isinstance(layer, _Converted) and layer.compares_tokens()]
    if comparing:
        warnings.warn(
            f"router '{comparing[0]}' compares the tokens of a call, and with a cache a call has only the newest: the experts "
            "of a token differ from those without a cache, and depend on the other sequences of the batch. Generate with a "
            "model that was converted with causal=True and trained, or with use_cache=False"
        )


def _receive_inputs(module: nn.Module, args: tuple, kwargs: dict):
    """A forward pre-hook of the attention before a block: takes the keyword argument of `_send_inputs` for the block.
    Attention receives it also when activation checkpointing recomputes the layer."""
    inputs = kwargs.pop(INPUTS, None)
    if isinstance(block := module.__dict__.get("choir_block"), _Converted):
        block.inputs = inputs
    return args, kwargs


def _hook(module: nn.Module, hook: Any) -> None:
    if hook not in module._forward_pre_hooks.values():
        module.register_forward_pre_hook(hook, with_kwargs=True)


def _unhook(module: nn.Module) -> None:
    module.__dict__.pop("choir_block", None)
    for number, hook in list(module._forward_pre_hooks.items()):
        if hook in (_send_inputs, _receive_inputs):
            del module._forward_pre_hooks[number]
            module._forward_pre_hooks_with_kwargs.pop(number, None)


# Names of an expert's weights in files, and the order in which they are merged.
FILED = {"w1": 0, "gate_proj": 0, "w3": 1, "up_proj": 1, "w2": 2, "down_proj": 2}


def _from_file(module: nn.Module, state: dict, prefix: str, *rest: Any) -> None:
    """A pre-hook of load_state_dict: renames tensors from the names in files, which Trainer passes when it resumes,
    to the block's names. In files, Mixtral's block has another name, and every expert has separate tensors."""
    for name, child in module.named_children():
        if isinstance(child, _Converted):
            at = f"{prefix}{name}."
            for key in [key for key in state if key.startswith(prefix + "block_sparse_moe.")]:
                state[at + key[len(prefix + "block_sparse_moe.") :]] = state.pop(key)
            found = re.compile(re.escape(at) + r"experts\.(\d+)\.(\w+)\.weight$")
            parts = {key: match.groups() for key in state if (match := found.match(key)) and match[2] in FILED}
            each = {(int(i), FILED[what]): state.pop(key) for key, (i, what) in parts.items()}
            experts = range(len(child.thresholds))
            if all((i, part) in each for i in experts for part in range(3)):
                state[at + "experts.gate_up_proj"] = torch.stack([torch.cat([each[i, 0], each[i, 1]]) for i in experts])
                state[at + "experts.down_proj"] = torch.stack([each[i, 2] for i in experts])


def _blocks(model: nn.Module, names: tuple) -> list[tuple[nn.Module, str, nn.Module]]:
    children = ((parent, name, child) for parent in model.modules() for name, child in parent.named_children())
    return [each for each in children if type(each[2]).__name__ in names]


def _around(model: nn.Module, parents: list[nn.Module]) -> Iterator[nn.Module]:
    """The innermost transformers models that contain these modules."""
    named = {name: module for name, module in model.named_modules() if hasattr(module, "warn_if_padding_and_no_attention_mask")}
    for name, module in model.named_modules():
        if module in parents:
            outer = [n for n in named if n == "" or name == n or name.startswith(n + ".")]
            if outer:
                yield named[max(outer, key=len)]


def convert(model: nn.Module, router: Optional[str] = None, **options: Unpack[ConvertOptions]) -> nn.Module:
    """Replaces the MoE blocks of a loaded transformers model (Mixtral, OLMoE, Qwen3Moe) by choir.torch.MoE layers,
    in place. Without a router, the model returns the same logits as before. With one, the experts and the router's
    weight stay, and that router assigns the tokens. Weights keep their names, so save_pretrained, Trainer and
    adapters work as before. `choir.torch.from_pretrained` loads a saved model, and `choir.torch.revert` restores
    the original blocks.

    Args:
        model: a loaded model of transformers 5.
        router: name of a router, as for choir.torch.MoE. None (default): "topk", which these models use.
        options: keyword arguments of choir.torch.MoE, such as capacity_factor and causal. Default of
            aux_loss_weight: the model's router_aux_loss_coef, times K, divided by the number of MoE layers, as
            transformers computes it.

    Returns `model`. In a converted model:
        - Tokens that attention_mask marks as padding are not routed. Without a mask, all tokens are.
        - With pool="sequence", sequences that are packed into one row, told apart by position_ids, have a pool
          each.
        - `model(ids, assignment=...)`, [layers,B,T,e] bool, forces the assignment. It has a row for each MoE layer
          or, as `recorded` returns it, for each layer of the model.
        - With output_router_logits=True, the model adds its own balancing loss, of top-K choices. Otherwise, add
          the layers' `aux_loss` to the loss.
        - router_jitter_noise and hooks on blocks and gates stay in effect, including accelerate's for offloaded
          weights.

    Raises UnsupportedError for a model without MoE blocks of these three kinds and for weights without values (on
    the meta device), and ArgumentError for options that the router does not accept.

    Example:
        model = transformers.AutoModelForCausalLM.from_pretrained("allenai/OLMoE-1B-7B-0924")
        choir.torch.convert(model, "expert_choice", capacity_factor=2.0, causal=True)"""
    found = _blocks(model, BLOCKS)
    if not found:
        raise UnsupportedError(f"{type(model).__name__} has no block that convert knows: {', '.join(BLOCKS)}")
    config, given = getattr(model, "config", None), dict(options)
    coefficient = getattr(config, "router_aux_loss_coef", None)
    if coefficient is not None and "aux_loss_weight" not in options and "aux_loss_weight" in find(router or "topk").options:
        options["aux_loss_weight"] = coefficient * found[0][2].gate.top_k / len(found)
    names = {module: name for name, module in model.named_modules()}
    made = [_of_block(block, names[block], layer, router or "topk", dict(options)) for layer, (_, _, block) in enumerate(found)]
    for (parent, name, _), layer in zip(found, made):
        setattr(parent, name, layer)
        if hasattr(parent, "self_attn"):
            _hook(parent.self_attn, _receive_inputs)
            parent.self_attn.__dict__["choir_block"] = layer  # not as a submodule
        parent._register_load_state_dict_pre_hook(_from_file, with_module=True)
    for module in _around(model, [parent for parent, _, _ in found]):
        _hook(module, _send_inputs)
        module.choir_layers = _moe_layers(module)
    if config is not None:
        config.choir = {"version": VERSION, "router": router, "options": _written(given)}
        if version := _version_of(router or "topk"):
            config.choir["router_version"] = version
    return model


def _version_of(router: str) -> Optional[str]:
    """The version of a plug-in; None: a built-in router, or a plug-in without a version."""
    found = find(router)
    return (found.version or plugin.version_of(router)) if found.plugin else None


def _moe_layers(model: nn.Module) -> tuple[tuple[int, ...], int]:
    """The indices of the layers of a transformers model that contain one of choir's, and the number of all
    layers."""
    numbers = [i for i, layer in enumerate(model.layers) if any(isinstance(part, _Converted) for part in layer.children())]
    return tuple(numbers), len(model.layers)


def _written(options: dict) -> dict:
    """The options for config.json, without groups, which are valid in their processes only, and without tensors."""
    kept = {name: value for name, value in options.items() if name != "group" and not isinstance(value, Tensor)}
    try:
        return json.loads(json.dumps(kept))
    except TypeError as error:
        raise ArgumentError(f"options of convert must be numbers, strings and booleans: {error}") from None


def revert(model: nn.Module) -> nn.Module:
    """Restores the original MoE blocks of a converted model, in place, with the current weights. The routers' state
    (thresholds, prices, biases) is discarded.

    Args:
        model: a model that `convert` converted, or `from_pretrained` loaded.

    Returns `model`.

    Raises UnsupportedError if a layer has parts that the original block does not have: shared experts, or adapters.
    Merge adapters first.

    Example: choir.torch.revert(model).save_pretrained("folder")"""
    found = _blocks(model, ("_Converted",))
    for parent, name, layer in found:
        if layer.shared is not None or type(layer.experts) is not _TheirExperts or not isinstance(layer.gate, Gate):
            parts = ", ".join(type(part).__name__ for part in (layer.gate, layer.experts))
            raise UnsupportedError(
                f"{name}: {parts}{', shared experts' if layer.shared is not None else ''}: the model's own block cannot "
                "hold this. Merge adapters first (PEFT: merge_and_unload)"
            )
    for parent, name, layer in found:
        kind, gate = layer.source
        with torch.device("meta"):
            block = kind(_config_of(model))
        weight = layer.gate.weight  # a buffer if the router does not train it
        learned = isinstance(weight, nn.Parameter)
        gate.weight = weight if learned else nn.Parameter(weight.to(layer.experts.down_proj.dtype))
        block.gate = gate
        block.experts.gate_up_proj, block.experts.down_proj = layer.experts.gate_up_proj, layer.experts.down_proj
        _hand_on(layer, block), _hand_on_loading(layer.experts, block.experts)
        setattr(parent, name, block.train(layer.training))
    for module in model.modules():
        _unhook(module)
        module.__dict__.pop("choir_layers", None)
    if hasattr(getattr(model, "config", None), "choir"):
        del model.config.choir
    return model


def _config_of(model: nn.Module) -> Any:
    return next(m.config for m in model.modules() if hasattr(getattr(m, "config", None), "num_experts_per_tok"))


def from_pretrained(path: Any, **options: Any) -> nn.Module:
    """Loads a converted model that save_pretrained wrote, with its routers' state.

    Args:
        path: the folder.
        options: keyword arguments of transformers' from_pretrained.

    Returns the model, with choir's layers.

    Raises ArgumentError for a folder whose config.json has no entry of `convert`, and FormatError for missing
    weights.

    Example: model = choir.torch.from_pretrained("folder", dtype=torch.bfloat16)"""
    import transformers

    config = transformers.AutoConfig.from_pretrained(path)
    entry = getattr(config, "choir", None)
    if not isinstance(entry, dict) or entry.get("version") != VERSION:
        raise ArgumentError(
            f"{path}/config.json: entry 'choir' is {entry!r}; it must be what convert wrote (version {VERSION}). Load another "
            "model with transformers, and convert it"
        )
    kind, said = getattr(transformers, config.architectures[0]), transformers.logging.get_verbosity()
    # It would print a table of unknown tensors, which are the routers' state.
    transformers.logging.set_verbosity_error()
    try:
        model, found = kind.from_pretrained(path, output_loading_info=True, **options)
    finally:
        transformers.logging.set_verbosity(said)
    if found["missing_keys"] or found["mismatched_keys"]:
        raise FormatError(f"{path}: no weights for {sorted(map(str, (*found['missing_keys'], *found['mismatched_keys'])))[:5]}")
    convert(model, entry["router"], **entry["options"])
    saved, now = entry.get("router_version"), model.config.choir.get("router_version")
    if saved != now:
        warnings.warn(
            f"{path}: router '{entry['router']}' was version {saved} when the model was saved, and is version {now} here: what it "
            "does may have changed"
        )
    _load_kept(model, pathlib.Path(path))
    return model


KEPT = re.compile(r"\.(\d+)\.\w+\.(thresholds|observed)$")  # groups: the layer's index, the tensor


def _kept_in(folder: pathlib.Path) -> dict[tuple[str, str], Tensor]:
    from safetensors import safe_open

    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            names = [(name, KEPT.search(name)) for name in tensors.keys()]
            found.update({match.groups(): tensors.get_tensor(name) for name, match in names if match})
    return found


def _load_kept(model: nn.Module, folder: pathlib.Path) -> None:
    kept = _kept_in(folder)
    for name, layer in model.named_modules():
        if isinstance(layer, _Converted) and layer.sums is not None:
            for what in ("thresholds", "observed"):
                key = KEPT.search(f"{name}.{what}").groups()
                if key not in kept:
                    raise FormatError(f"{folder}: no tensor {name}.{what}, which router '{layer.router_name}' keeps")
                with torch.no_grad():
                    getattr(layer, what).copy_(kept[key])
            layer.start_step()
