"""The state of routers: thresholds, prices, biases and centroids. A forward pass only adds statistics to sums, and
`update_routers` updates the state once per step from the sums of all processes."""

from __future__ import annotations

import copy
import sys
import warnings
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch import Tensor, nn

from . import compat, host, kmeans
from .experts import Means
from .ranks import group_of, replicas
from .request import Options, Routing
from .scaled import scale_of_step, scales_and_last

LOOKS = 3  # maximum number of searches for a GradScaler that may not have a scale yet


def sums_of(router: str, options: Options, d: int, e: int, device) -> Optional[Tensor]:
    """Zeros [2 + size] float64 for the sums of a step: of all logits, which is not finite if one of them is not;
    the number of forward passes; and the sums of `add_seen`. None: the router has no state. The tensor is not a
    buffer, because DDP would overwrite it with the first process's."""
    others = 2 * e if options.averages else e if options.keeps_own else None
    size = {"bias_balanced": e, "kmeans": e + d * e}.get(router, others)
    return None if size is None else torch.zeros(2 + size, dtype=torch.float64, device=device)


def add_seen(sums: Tensor, layer: Keeper, rows: Tensor, logits: Tensor, routing: Routing) -> None:
    """Adds a forward to the sums of its step. Float64 can represent the sum of any float32 numbers, and keeps NaN and
    inf."""
    e, router = logits.shape[1], layer.router_name
    sums[:1].add_(logits.sum(dtype=torch.float64))
    if router in ("kmeans", "bias_balanced") or layer.options.keeps_own:
        sums[1:2].add_(1)
        sums[2 : 2 + e].add_(routing.demand)
        if router == "kmeans":
            sums[2 + e :].add_((routing.assignment.double().t() @ rows.double()).reshape(-1))
    elif routing.slot_gates is not None:  # every expert has a cut-off
        sums[1 : 2 + e].add_(1)
        sums[2 + e :].add_(routing.cutoffs)
    else:
        known = torch.isfinite(routing.cutoffs)
        sums[1:2].add_(1)
        sums[2 : 2 + e].add_(known)
        sums[2 + e :].add_(torch.where(known, routing.cutoffs, 0.0))


class Keeper(Means):
    """A layer whose router may have state: buffers that change from step to step, and the sums of a step's forward
    passes. It also stores the last forward pass's routing and losses."""

    means = ("thresholds",)
    thresholds: Tensor
    observed: Tensor
    _group: Any = None
    inject_aux_loss: Any = 0.0
    lacks_state = False  # a state_dict without the router's state was loaded
    state_is_saved = False  # trainer_callback saves the state next to the adapters

    def __init__(self, router: str, options: Options, d_model: int, experts: int, device: Any):
        super().__init__()
        self.router_name, self.options, self.d_model = router, options, d_model
        self.register_buffer("thresholds", torch.zeros(experts, dtype=torch.float32, device=device))
        self.register_buffer("observed", torch.zeros((), dtype=torch.int64, device=device))
        self.tally: Optional[Tensor] = None  # the sums of `stats`
        # A GradScaler's scale, and its value at the end of the last step.
        self._scales: list[tuple[Tensor, Tensor]] = []
        self._looks_left = LOOKS
        self._forget()
        self.go_on_from(0)

    @property
    def routing(self) -> Optional[Routing]:
        """The routing of the last forward pass, without gradients; None before the first one."""
        if self._kept is not None:
            self._kept = self._kept.whole()
        return self._kept

    @property
    def aux_loss(self) -> Tensor:
        """[] the router's losses of the last forward pass, times their weights; 0 if it has none. Add it to the
        loss."""
        if self._aux_loss is None:
            return torch.zeros((), device=self.thresholds.device)
        return self._aux_loss

    def keep(self, routing: Routing) -> None:
        """Stores the routing without its graph, and the losses with their graph."""
        gates = ((name, getattr(routing, name)) for name in ("gates", "slot_gates", "choice_gates"))
        kept = {name: None if tensor is None else tensor.detach() for name, tensor in gates}
        # Not _replace: Dynamo of PyTorch 2.11 cannot assign its result to an attribute.
        self._kept = Routing(**{**dict(zip(routing._fields, routing)), **kept})
        weighted = ((routing.aux_loss, self.options.aux_loss_weight), (routing.z_loss, self.options.z_loss_weight))
        losses = [loss * weight for loss, weight in weighted if loss is not None]
        self._aux_loss = sum(losses[1:], losses[0]) if losses else None

    def forget_graph(self) -> None:
        """Releases the results of an earlier forward, which belong to its graph."""
        self._kept: Optional[Routing] = None
        self._aux_loss: Optional[Tensor] = None

    def _forget(self) -> None:
        """Clears the sums of the step, which belong to earlier weights."""
        self.forget_graph()
        self.forget_sums()

    def _apply(self, *given, **options):
        super()._apply(*given, **options)
        self._forget()
        return self

    def _load_from_state_dict(self, given, prefix, *rest):
        super()._load_from_state_dict(given, prefix, *rest)
        self._forget()
        self._unset, self.lacks_state = True, self.sums is not None and prefix + "thresholds" not in given

    def _save_to_state_dict(self, *given):
        super()._save_to_state_dict(*given)
        if self.sums is not None and not self.state_is_saved and _of_adapters() and int(self.observed):
            warnings.warn(
                f"PEFT saves adapters, and not what router '{self.router_name}' has learned: save choir.torch.router_state(model) "
                "too, and load it by choir.torch.load_router_state"
            )

    def warn_of_lacking_state(self) -> None:
        """Warns once, in a forward pass with a state that should have been loaded. Causal routing raises
        instead."""
        self.lacks_state = False
        if not int(self.observed):
            warnings.warn(
                f"router '{self.router_name}': weights were loaded without its state (adapters of PEFT have none), and it begins "
                "anew. choir.torch.load_router_state loads what choir.torch.router_state saved"
            )

    def _without_graph(self) -> dict:
        """The attributes, without those that belong to the graph of the last forward pass or to a loss scaler."""
        loss = None if self._aux_loss is None else self._aux_loss.detach()
        return {**self.__dict__, "_kept": None, "_aux_loss": loss, "_scales": [], "_looks_left": LOOKS}

    def __deepcopy__(self, memo):
        """A copy like nn.Module's, with the same group and loss scaler."""
        made = memo[id(self)] = self.__class__.__new__(self.__class__)
        memo.update({id(shared): shared for shared in (self._group, self.inject_aux_loss)})
        made.__dict__.update(copy.deepcopy(self._without_graph(), memo))
        made.start_step()
        return made

    def __getstate__(self):
        """The state for pickling, without the group, which is valid in its processes only."""
        if self._group is not None:
            warnings.warn("a pickled layer has no group: set layer.group again where it is loaded")
        return {**self._without_graph(), "_group": None}

    def forget_sums(self) -> None:
        d, e, device = self.d_model, len(self.thresholds), self.thresholds.device
        self.sums = sums_of(self.router_name, self.options, d, e, device)
        kmeans_only = {"dtype": torch.float64, "device": device}
        self.seeds = torch.zeros(e, 1 + d, **kmeans_only) if self.router_name == "kmeans" else None
        self._since_update = 0

    @torch.no_grad()
    def start_step(self) -> None:
        """Clears the sums of a step."""
        self._since_update, self._unset = 0, True
        for sums in (self.sums, self.seeds):
            if sums is not None:
                sums.zero_()

    def follow(self, scale: Tensor) -> None:
        """From now on a step also ends when the GradScaler changes its scale, as it does when it skips a step."""
        self._scales = [(scale, scale.clone())]

    def _seek_scaler(self) -> None:
        """Searches for GradScalers: before the first completed step the scaler is unknown, and all steps until then
        may be skipped. All scalers are tracked, and the steps that they have skipped so far also ended a step."""
        self._scales, complete = scales_and_last(self)
        self._looks_left = 0 if complete else self._looks_left - 1

    def _end_skipped_step(self) -> None:
        for scale, seen in self._scales:
            ended = scale != seen
            for sums in (self.sums, self.seeds):
                if sums is not None:
                    sums.masked_fill_(ended.to(sums.device), 0)
            seen.copy_(scale)

    def check_thresholds(self) -> None:
        """Raises RuntimeError if no training step has set thresholds. Until they exist, this is read from the
        device in each call, because copies and averages of models fill buffers without a call to this layer."""
        if not compat.compiling() and self._unset:
            self._unset = not int(self.observed)
            if self._unset:
                loaded = ", or load what choir.torch.router_state saved with choir.torch.load_router_state(model, state)"
                raise RuntimeError(
                    f"causal routing needs thresholds, and no training step has set any (router '{self.router_name}'): "
                    f"call choir.torch.update_routers(model) before each optimizer.step(){loaded if self.lacks_state else ''}"
                )

    @torch.no_grad()
    def go_on_from(self, observed: int) -> None:
        """Sets the number of training steps over which the thresholds are a mean."""
        self.observed.fill_(observed)
        self.start_step()

    @torch.no_grad()
    def observe(self, rows: Tensor, valid, logits: Tensor, routing: Routing) -> None:
        """Adds the statistics of this forward pass to the sums of the step."""
        if self.sums.device != rows.device:  # FSDP2 moves only buffers and parameters
            self.forget_sums()
        if not compat.compiling() and self._since_update and self._looks_left and not self._scales:
            self._seek_scaler()
        self._end_skipped_step()
        add_seen(self.sums, self, rows, logits, routing)
        if self.seeds is not None:
            both = torch.cat([self.seeds, kmeans.seeds_of(rows, logits, valid)])
            found = kmeans.farthest(both, len(self.seeds))
            self.seeds.copy_(torch.where(torch.isfinite(logits).all(), found, self.seeds))
        if compat.compiling():
            return
        self._since_update += 1
        if self._since_update == 1000:
            warnings.warn(
                f"router '{self.router_name}': 1000 training forwards, and thresholds, prices or centroids have not moved; "
                "call choir.torch.update_routers(model) before each optimizer.step()"
            )


def _of_adapters() -> bool:
    """Whether PEFT requests a state_dict for an adapter, from which it drops all other tensors."""
    saving, frame = sys.modules.get("peft.utils.save_and_load"), sys._getframe(1)
    code = getattr(getattr(saving, "get_peft_model_state_dict", None), "__code__", None)
    while code is not None and frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return code is not None and frame is not None


def _moved(layer: Keeper, sums: Tensor, seeds: Optional[Tensor]) -> None:
    """Updates a layer's state from the sums of its step. A step with logits that are not finite changes nothing,
    because its weights will not be updated either."""
    sound, o, sums = torch.isfinite(sums[0]) & (sums[1] > 0), layer.options, sums[2:]
    if o.keeps_own and bool(sound):  # `observe` of a plug-in, on the host
        demand, state = sums.round().long().cpu().numpy(), layer.thresholds.double().cpu().numpy()
        layer.thresholds.copy_(torch.from_numpy(host.moved(o.given, demand, state)))
    layer.observed += sound
    if o.keeps_own:
        return
    e = layer.thresholds.shape[0]
    if layer.router_name == "bias_balanced":
        step = o.bias_rate * torch.sign(sums * e - sums.sum())
        layer.thresholds += torch.where(sound, step, 0.0).to(layer.thresholds.dtype)
        return
    weight = (1 - o.decay) / (1 - o.decay ** layer.observed.double())
    if layer.router_name == "kmeans":
        centroids = layer.gate.weight
        new = kmeans.moved(centroids, weight, sums[:e], sums[e:].view(e, -1), seeds)
        centroids.copy_(torch.where(sound, new, centroids))
        return
    count, total = sums.view(2, e)
    step = weight * (total / count.clamp(min=1) - layer.thresholds)
    layer.thresholds += torch.where(sound & (count > 0), step, 0.0).to(layer.thresholds.dtype)


def _gathered(seeds: Tensor, group) -> Tensor:
    """The farthest tokens of all processes, as many as one process has."""
    if group is None:
        return seeds
    all_seeds = [torch.empty_like(seeds) for _ in range(dist.get_world_size(group))]
    dist.all_gather(all_seeds, seeds, group=group)
    return kmeans.farthest(torch.cat(all_seeds), seeds.shape[0])


@torch.no_grad()
def update_routers(model: nn.Module, group: Any = None) -> None:
    """Updates the state of all choir.torch layers in the model (thresholds, prices, biases, centroids) from the
    forward passes in train mode since the last call. Call it once per training step, between backward() and
    optimizer.step().

    Cut-offs are averaged over forward passes and processes; demand and tokens are summed. One all-reduce makes the
    new state equal on all processes. A plug-in's `observe` is called on the host, with the summed demand. A layer
    whose logits contained NaN or inf in this step, on any process, keeps its state.

    Args:
        model: a module with choir.torch layers, wrapped (DDP, FSDP2, torch.compile) or not.
        group: the torch.distributed group, or DeviceMesh of one dimension, of the processes that have these layers.
            None: all processes whose layers have the same names and sizes. All of these processes must call.

    Raises ArgumentError, on all processes, if layers with the same names and sizes have different weights, as
    stages of a pipeline may have. Pass the stage's group then.

    Example:
        optimizer.register_step_pre_hook(lambda *_: choir.torch.update_routers(model))"""
    named = {name: m for name, m in model.named_modules() if isinstance(m, Keeper) and m.sums is not None}
    if group is None and dist.is_available() and dist.is_initialized():
        group = replicas(model, named)
    if not named:
        return
    layers = list(named.values())
    scale, group, device = scale_of_step(), group_of(group), layers[0].sums.device
    sums = torch.cat([layer.sums.to(device) for layer in layers])
    if group is not None:
        dist.all_reduce(sums, group=group)
    for layer, part in zip(layers, sums.split([layer.sums.numel() for layer in layers])):
        seeds = None if layer.seeds is None else _gathered(layer.seeds, group)
        _moved(layer, part.to(layer.thresholds.device), seeds)
        layer.start_step()
        if scale is not None:
            layer.follow(scale)


def start_step(model: nn.Module) -> None:
    """Discards the statistics of the forward passes since the last `update_routers`. Call it if your loop abandons
    a step. Steps that torch's GradScaler skips are detected, under torch.compile from the first completed step on.

    Args:
        model: a module with choir.torch layers, wrapped or not.

    Example: choir.torch.start_step(model)"""
    for module in model.modules():
        if isinstance(module, Keeper):
            module.start_step()
