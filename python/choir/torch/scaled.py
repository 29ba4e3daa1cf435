"""What a loss scaler does to a layer: it multiplies gradients, and skips steps, of which no layer is told."""

from __future__ import annotations

import sys
import warnings
from typing import Optional

import torch
from torch import Tensor

from . import compat


class _Injected(torch.autograd.Function):
    """The output itself; its backward gives the loss the gradient `factor`, as if factor * loss had been added."""

    @staticmethod
    def forward(ctx, out, loss, factor):
        ctx.save_for_backward(torch.ones_like(loss) * factor)
        return out.view_as(out)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, ctx.saved_tensors[0], None


def injected(out, loss, factor):
    """The output, whose backward pass adds the gradient of factor * loss. factor: a number, a tensor, or a GradScaler, which
    is asked for its scale."""
    if hasattr(factor, "scale"):
        factor = factor.scale(torch.ones_like(loss.detach()))
    elif not isinstance(factor, Tensor):
        _listen(compat.compiling())
    return _Injected.apply(out, loss, factor)


def scale_of_step() -> Optional[Tensor]:
    """The scale of the GradScaler that has an optimizer step now, by which its own step is among the callers. None: there is
    none. The scaler changes this tensor itself, in the steps that it skips always."""
    kinds = (torch.cuda.amp.GradScaler, getattr(torch.amp, "GradScaler", None))
    steps, frame = {kind.step.__code__ for kind in kinds if kind}, sys._getframe(1)
    while frame is not None and frame.f_code not in steps:
        frame = frame.f_back
    scaler = None if frame is None else frame.f_locals["self"]
    return scaler._scale if scaler is not None and scaler.is_enabled() else None


class _Ear:
    """Hears every optimizer's step, from when a number was first injected. numbers: some were since the last one; compiled:
    by code that does not say when it runs."""

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
        _Ear.compiled = False  # said once
        warnings.warn(
            "inject_aux_loss is a number, and a GradScaler multiplies the losses: aux_loss then has too small a gradient. "
            "Set layer.inject_aux_loss = scaler, once; with gradient accumulation a tensor, scaler.scale(torch.ones(())) / "
            "micro-batches, in each step"
        )
    _Ear.numbers = False
