"""The effect of loss scalers on a layer: they multiply gradients, and skip steps without informing any layer."""

from __future__ import annotations

import gc
import sys
import warnings
import weakref
from typing import Any, Optional

import torch
from torch import Tensor

from . import compat


class _Injected(torch.autograd.Function):
    """The identity on the output. Its backward pass sets the loss's gradient to `factor`, as if factor * loss had
    been added to the training loss."""

    @staticmethod
    def forward(ctx, out, loss, factor):
        ctx.save_for_backward(torch.ones_like(loss) * factor)
        return out.view_as(out)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, ctx.saved_tensors[0], None


def injected(out, loss, factor):
    """The output, whose backward pass adds the gradient of factor * loss. factor: a number, a tensor, or a
    GradScaler, whose scale is used."""
    # Tested first: code that is compiled for any number cannot read other attributes.
    if isinstance(factor, (int, float)):
        _listen(compat.compiling())
    elif hasattr(factor, "scale"):
        factor = factor.scale(torch.ones_like(loss.detach()))
    return _Injected.apply(out, loss, factor)


def _kinds() -> set[type]:
    """The classes of GradScalers."""
    found, new = set(), {torch.cuda.amp.GradScaler, getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)}
    while new:
        found |= new
        new = {kind for known in new for kind in known.__subclasses__()} - found
    return found


_looked: list = []  # the layer that searched last in this step, and the results


def scales_and_last(layer: Any) -> tuple[list[tuple[Tensor, Tensor]], bool]:
    """The scale of each existing GradScaler, and its scale at the end of the last step that was not skipped; and
    whether all have a scale yet, which they get when they first scale a loss. Takes as long as a garbage collection,
    so only the first layer of a forward calls it."""
    if not _looked or _looked[0]() is layer:
        found = [each for kind in _kinds() for each in gc.get_referrers(kind) if type(each) is kind and each.is_enabled()]
        held = [(each._scale, _before_skips(each)) for each in found if each._scale is not None]
        _looked[:] = weakref.ref(layer), held, len(held) == len(found)
    _, held, complete = _looked
    return [(scale, last.clone()) for scale, last in held], complete


def _before_skips(scaler: Any) -> Tensor:
    """For a scaler that has skipped its last steps, and all known steps, the scale that it began with; for another
    its current scale."""
    first = torch.full_like(scaler._scale, scaler._init_scale)
    return torch.where((scaler._growth_tracker == 0) & (scaler._scale < first), first, scaler._scale)


def scale_of_step() -> Optional[Tensor]:
    """The scale of the GradScaler whose optimizer step is in progress, found among the callers. None: there is none.
    The scaler always changes this tensor in the steps that it skips."""
    _looked.clear()
    steps, frame = {kind.step.__code__ for kind in _kinds()}, sys._getframe(1)
    while frame is not None and frame.f_code not in steps:
        frame = frame.f_back
    scaler = None if frame is None else frame.f_locals["self"]
    return scaler._scale if scaler is not None and scaler.is_enabled() else None


class _Ear:
    """A hook on every optimizer's step, installed when a number is first injected. numbers: some were injected since
    the last step; compiled: by code that does not report when it runs."""

    hears = numbers = compiled = False


@compat.constant
def _listen(compiled: bool) -> bool:
    register = getattr(sys.modules["torch.optim.optimizer"], "register_optimizer_step_pre_hook", None)
    if not _Ear.hears and register is not None:
        register(_hear)
    _Ear.hears = _Ear.numbers = True
    _Ear.compiled |= compiled
    return True


def _hear(*_) -> None:
    if (_Ear.numbers or _Ear.compiled) and scale_of_step() is not None:
        _Ear.compiled = False  # warn once
        warnings.warn(
            "inject_aux_loss is a number, and a GradScaler multiplies the losses: aux_loss then has too small a gradient. "
            "Set layer.inject_aux_loss = scaler, once; with gradient accumulation a tensor, scaler.scale(torch.ones(())) / "
            "micro-batches, in each step"
        )
    _Ear.numbers = False
