"""choir's routers and Mixture-of-Experts layers for PyTorch models, on the tensors' device (docs/python.md).

layer = choir.torch.ExpertChoice(512, 2048, 16)        # replaces a feed-forward layer
routing = choir.torch.route(scores, "gshard_top2", logits=True)
"""

import importlib

from .convert import convert
from .layer import ExpertChoice, MoE, TokenChoice
from .recorded import recorded, routed_experts
from .request import Routing
from .routers import route
from .saved import load_router_state, router_state
from .state import start_step, update_routers
from .stats import locality, stats
from .transformer import Transformer

__all__ = [
    "ExpertChoice",
    "ExpertParallel",
    "ExpertTensorParallel",
    "MoE",
    "Routing",
    "TokenChoice",
    "Transformer",
    "clip_grad_norm_",
    "convert",
    "from_pretrained",
    "lightning_callback",
    "load_router_state",
    "locality",
    "recorded",
    "revert",
    "route",
    "routed_experts",
    "router_state",
    "start_step",
    "stats",
    "trainer_callback",
    "update_routers",
]


def __getattr__(name):
    """Imports names on first use that require DTensor (not in the oldest releases of PyTorch), transformers or
    Lightning."""
    if name in ("ExpertParallel", "ExpertTensorParallel", "clip_grad_norm_"):
        return getattr(importlib.import_module(".parallel", __name__), name)
    if name in ("from_pretrained", "revert"):
        return getattr(importlib.import_module(".convert", __name__), name)
    if name in ("lightning_callback", "trainer_callback"):
        return getattr(importlib.import_module(".hf", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
