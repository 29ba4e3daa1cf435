"""Callbacks for the Trainers of Hugging Face and Lightning, which update routers and save their state."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from .saved import CALLBACK, load_router_state, of_json, to_json
from .state import Keeper, update_routers


def _leaves_out(model: Any) -> list[Keeper]:
    """The layers whose state Trainer's checkpoints lack: those of a model with adapters, because only the adapters
    are saved."""
    adapted = isinstance(model, nn.Module) and hasattr(model, "peft_config")
    return [layer for layer in model.modules() if isinstance(layer, Keeper) and layer.sums is not None] if adapted else []


def trainer_callback() -> Any:
    """Returns a callback for transformers' Trainer that calls `update_routers` before each optimizer step.

    Checkpoints of a model with adapters (PEFT) contain only the adapters. The callback adds the routers' state to
    their trainer_state.json, and loads it from there on resume and for load_best_model_at_end. Elsewhere,
    `load_router_state(model, folder)` loads it.

    Example: Trainer(model, ..., callbacks=[choir.torch.trainer_callback()])"""
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    class UpdateRouters(TrainerCallback, ExportableState):
        model: Any = None
        router_state: Any = None  # Trainer may set it; on_train_begin reads the same entry

        def state(self) -> dict:
            return {"args": {}, "attributes": {"router_state": to_json(self.model) if _leaves_out(self.model) else {}}}

        def on_train_begin(self, args, state, control, model=None, **more):
            self.model, layers = model, _leaves_out(model)
            held = of_json(state.stateful_callbacks)
            if layers and held:
                load_router_state(model, held)
            elif layers and state.global_step:
                warnings.warn(
                    "the checkpoint has adapters without the routers' state (written before choir 0.6, or without "
                    "trainer_callback): thresholds, biases and centroids begin anew"
                )
            for layer in layers:
                layer.lacks_state, layer.state_is_saved = False, True
            state.stateful_callbacks.setdefault(CALLBACK, self.state())  # Trainer expects one when it saves

        def on_pre_optimizer_step(self, args, state, control, model=None, **more):
            update_routers(model)

        def on_train_end(self, args, state, control, model=None, **more):
            layers = _leaves_out(model)
            if layers and args.load_best_model_at_end and state.best_model_checkpoint:
                load_router_state(model, state.best_model_checkpoint)
            for layer in layers:
                layer.state_is_saved = False

    return UpdateRouters()


def lightning_callback() -> Any:
    """Returns a callback for Lightning's Trainer that calls `update_routers` between backward and each optimizer
    step. Do not use an optimizer hook instead: Lightning runs forward and backward within optimizer.step(), after
    the hook.

    Example: Trainer(..., callbacks=[choir.torch.lightning_callback()])"""
    from lightning.pytorch import Callback

    class UpdateRouters(Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            update_routers(pl_module)

    return UpdateRouters()
