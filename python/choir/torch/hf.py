"""Hugging Face's models, whose MoE blocks become choir's layers; its Trainer and Lightning's, which move routers' state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import torch
from torch import nn

from .._native import UnsupportedError
from .layer import MoE
from .state import update_routers

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..fields import ConvertOptions

BLOCKS = ("MixtralSparseMoeBlock", "OlmoeSparseMoeBlock", "Qwen3MoeSparseMoeBlock")


def _of_block(block: nn.Module, router: str, options: dict) -> MoE:
    gate, theirs = block.gate, block.experts
    act = type(getattr(theirs, "act_fn", None)).__name__
    if not hasattr(theirs, "gate_up_proj") or act not in ("SiLUActivation", "SiLU"):
        raise UnsupportedError(
            f"{type(block).__name__} with experts {type(theirs).__name__} ({act}): convert takes the blocks of "
            "transformers 5, whose experts are gate_up_proj and down_proj, with SiLU"
        )
    if getattr(block, "jitter_noise", 0):
        noise = block.jitter_noise
        raise UnsupportedError(f"{type(block).__name__} has router_jitter_noise {noise}; set it to 0 first")
    both = theirs.gate_up_proj
    e, double, d = both.shape
    if router == "topk":
        # Mixtral always divides the gates by their sum, and has no field that says so.
        options = {"top_k": gate.top_k, "normalize_gates": getattr(gate, "norm_topk_prob", True), **options}
    made = MoE(d, double // 2, e, router, activation="swiglu", device=both.device, dtype=both.dtype, **options)
    with torch.no_grad():
        first, third = both.transpose(1, 2).chunk(2, 2)
        for ours, value in ((made.w1, first), (made.w3, third), (made.w2, theirs.down_proj)):
            ours.copy_(value)
        made.gate.weight.copy_(gate.weight)
    return made.train(block.training)


def convert(model: nn.Module, router: Optional[str] = None, **options: Unpack[ConvertOptions]) -> nn.Module:
    """Replaces the MoE blocks of a loaded transformers model (Mixtral, OLMoE, Qwen3Moe) by choir's layers in place, and
    returns the model. Without a router it gives the same logits as before; with one, the experts and the weight of scores
    are kept, and that router chooses. transformers' own balancing loss no longer sees the layers (leave
    output_router_logits off): add the layers' `aux_loss`.

    Args:
        model: a model of transformers 5.
        router: the name of one of choir's routers; None means `topk`, by which these models route.
        options: keyword arguments of choir.torch.MoE.

    Raises UnsupportedError for a model without MoE blocks of these three kinds.

    Example: choir.torch.convert(model, "expert_choice", capacity_factor=2.0, causal=True)"""
    children = ((parent, name, child) for parent in model.modules() for name, child in parent.named_children())
    found = [each for each in children if type(each[2]).__name__ in BLOCKS]
    if not found:
        raise UnsupportedError(f"{type(model).__name__} has no block that convert knows: {', '.join(BLOCKS)}")
    for parent, name, block in found:
        setattr(parent, name, _of_block(block, router or "topk", options))
    return model


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
