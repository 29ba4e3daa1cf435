"""Hugging Face's Trainer and Lightning's, which move routers' state."""

from __future__ import annotations

from typing import Any

from .state import update_routers


def trainer_callback() -> Any:
    """A callback for transformers' Trainer that calls `update_routers` before each step of the optimizer:

        Trainer(model, ..., callbacks=[choir.torch.trainer_callback()])"""
    from transformers import TrainerCallback

    class UpdateRouters(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **more):
            update_routers(model)

    return UpdateRouters()


def lightning_callback() -> Any:
    """A callback for Lightning's Trainer that calls `update_routers` between backward and each step of the optimizer:

        Trainer(..., callbacks=[choir.torch.lightning_callback()])

    A hook of the optimizer would come too early: Lightning runs forward and backward within optimizer.step()."""
    from lightning.pytorch import Callback

    class UpdateRouters(Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            update_routers(pl_module)

    return UpdateRouters()
