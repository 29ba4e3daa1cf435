"""Mixture-of-Experts layers that take the place of a feed-forward one."""

from __future__ import annotations

import copy
from typing import Any, Optional

import torch
from torch import Tensor, nn

from .._native import ArgumentError, UnsupportedError
from . import compat, kmeans, request, routers
from .experts import ACTIVATIONS, GATED, Experts, by_experts


class MoE(nn.Module):
    """x [..., d] to [..., d], without residual: S = softmax(x Wg), or with score="sigmoid" their sigmoids; the router
    chooses; out[t] is the sum over its experts of gate * GELU(x[t] w1[i]) w2[i]^T (docs/layer.md). Any of choir's
    routers, with its options: MoE(64, 128, 8, router="capped_expert_choice", cap=3). Weights: router [d,e], w1 and w2 [e,d,h].
    activation: "gelu", or "geglu" or "swiglu", for which an expert is (act(x w1) * (x w3)) w2^T with a third weight w3 [e,d,h].

    Scores are float32 at least, under autocast and in bf16 modules too. After a forward, `aux_loss` (weighted by
    aux_loss_weight where the router has one) is to be added to the loss, and `routing` says what was chosen.

    In eval mode tokens still compete within the batch: docs/causality.md says what that means for a language model.
    `causal=True` looks at no other token: routers that cut by rank go by thresholds, running means that training keeps
    in the buffer `thresholds` (quantile_balanced and bias_balanced, whose thresholds are prices, do in any case); those with room for
    some have room for all. Buffers are in the state_dict.

    group: a torch.distributed group over whose processes the pool of expert_choice extends. layer: a number that makes
    `random` draw otherwise than in other layers."""

    def __init__(
        self,
        d_model: int,
        d_hidden: int,
        experts: int,
        router: str = "expert_choice",
        *,
        causal: bool = False,
        group: Any = None,
        layer: int = 0,
        activation: str = "gelu",
        device=None,
        dtype=None,
        **options: Any,
    ):
        super().__init__()
        self.options = request.options_of(router, experts, **options)
        self.router_name, self.causal, self.group, self.layer = router, causal, group, layer
        if group is not None and (router != "expert_choice" or self.options.pool != "batch"):
            raise UnsupportedError(
                "group: only router 'expert_choice' with pool 'batch' has pools across processes"
            )
        if activation not in ACTIVATIONS:
            raise ArgumentError(f"activation is {activation!r}; it must be one of {', '.join(ACTIVATIONS)}")
        self.activation, at = activation, {"device": device, "dtype": dtype}
        weight = torch.empty(d_model, experts, **at)
        self.w1, self.w2 = (nn.Parameter(torch.empty(experts, d_model, d_hidden, **at)) for _ in range(2))
        self.w3 = nn.Parameter(torch.empty(experts, d_model, d_hidden, **at)) if activation in GATED else None
        if router == "kmeans":
            self.register_buffer("router", weight)  # centroids, which no gradient trains
        else:
            self.router = nn.Parameter(weight)
        self.register_buffer("thresholds", torch.zeros(experts, device=device))
        self.register_buffer("observed", torch.zeros((), dtype=torch.int64, device=device))
        self._moving = "router" if router == "kmeans" else "thresholds"
        self._forget()
        self.reset_parameters()

    def _forget(self) -> None:
        """What an earlier forward left belongs to its graph."""
        self.routing: Optional[request.Routing] = None
        self._before: Optional[Tensor] = None  # the buffer that the last training forward moved, as it found it
        self.aux_loss = torch.zeros((), device=self.thresholds.device)

    def reset_parameters(self) -> None:
        """Normal, of variance 1 / fan_in; thresholds are those of a fresh layer."""
        d, h = self.w1.shape[1:]
        for weight, fan_in in ((self.router, d), (self.w1, d), (self.w2, h), (self.w3, d)):
            if weight is not None:
                nn.init.normal_(weight, std=fan_in**-0.5)
        nn.init.zeros_(self.thresholds)
        self.go_on_from(0)

    def forward(self, x: Tensor, tokens: Optional[Tensor] = None, valid: Optional[Tensor] = None) -> Tensor:
        """x [...,d]. tokens [...]: ids, which `hash` and `random` need. valid [...] bool: False is padding, which takes
        no part."""
        self._check(x)
        rows = x.reshape(-1, x.shape[-1])
        request.check_rows(rows, tokens, valid)
        if rows.shape[0] == 0:
            self._forget()
            return x + 0 * sum(weight.sum() for weight in self.parameters()).to(x.dtype)
        if valid is not None:  # padding may hold anything, NaN too
            rows = torch.where(valid.reshape(-1, 1) != 0, rows, 0.0)
        routing = self._route(rows, tokens, valid, x.shape[-2] if x.dim() > 2 else 0)
        if not compat.exporting():
            self.routing = routing._replace(gates=routing.gates.detach())
            self.aux_loss = routing.aux_loss * self.options.aux_loss_weight
        experts = Experts(self.w1, self.w2, self.w3, self.activation)
        return by_experts(rows, experts, routing).reshape(x.shape)

    def _check(self, x: Tensor) -> None:
        request.check_floating(x, "x")
        d = self.w1.shape[1]
        if x.dim() < 1 or x.shape[-1] != d:
            raise ArgumentError(f"x has shape {tuple(x.shape)}; its last dimension must be d_model, {d}")
        if x.device != self.w1.device:
            raise ArgumentError(f"x is on {x.device} and the layer on {self.w1.device}; move one with .to(device)")
        if x.dtype != self.w1.dtype and compat.autocast_dtype(x.device.type) is None:
            raise ArgumentError(
                f"x is of {x.dtype}, the layer of {self.w1.dtype}; convert one with .to(dtype), or use torch.autocast"
            )
        if self.training and (self.options.threshold_after or self.options.consistency_weight):
            raise UnsupportedError(
                "threshold_after, consistency_weight: only choir's own training does this; leave it 0"
            )

    def _route(self, rows: Tensor, tokens, valid, sequence_length: int) -> request.Routing:
        name, o = self.router_name, self.options
        again = self.training and compat.again()
        found = {self._moving: self._before} if again and self._before is not None else {}
        router, thresholds = found.get("router", self.router), found.get("thresholds", self.thresholds)
        with compat.without_autocast(rows.device.type):
            wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
            if self.training and o.jitter:
                wide = wide * torch.empty_like(wide).uniform_(1 - o.jitter, 1 + o.jitter)
            logits = wide @ router.to(wide.dtype)
            if name == "kmeans":
                logits = logits - kmeans.half_squares(router).to(logits.dtype)
            scores = request.scores_of(name, o, logits)
            causal = self.causal and not self.training
            if causal and self._no_thresholds and name in routers.BY_THRESHOLDS:
                raise RuntimeError(
                    f"causal routing needs thresholds, and no training step has set any (router '{name}')"
                )
            routing = routers.choose(
                scores,
                logits,
                name=name,
                options=o,
                tokens=tokens,
                valid=valid,
                sequence_length=sequence_length,
                training=self.training,
                causal=causal,
                thresholds=thresholds,
                layer=self.layer,
                group=self.group,
            )
            if self.training and not again and not compat.transformed(routing.taken):
                self._observe(wide, valid, logits, routing)
        return routing

    @torch.no_grad()
    def go_on_from(self, observed: int) -> None:
        """Says that the thresholds are the mean of so many training steps."""
        self.observed.fill_(observed)
        self._no_thresholds = not observed  # known on the host, so that forward need not ask the device

    @torch.no_grad()
    def _observe(self, rows: Tensor, valid, logits: Tensor, routing: request.Routing) -> None:
        """The bias-corrected running mean of cut-offs (docs/layer.md), or of each centroid's tokens; prices
        of bias_balanced move by a step."""
        if routing.cutoffs is None and self.router_name != "kmeans":
            return
        self._before = getattr(self, self._moving).clone()
        self.observed += 1
        self._no_thresholds = False
        if self.router_name == "bias_balanced":
            above = routing.demand * len(routing.demand) - routing.demand.sum()
            self.thresholds += self.options.bias_rate * torch.sign(above).to(self.thresholds.dtype)
            return
        decay = self.options.decay
        weight = (1 - decay) / (1 - decay ** self.observed.double())
        if self.router_name == "kmeans":
            held = None if valid is None else valid.reshape(-1) != 0
            self.router.copy_(kmeans.moved(self.router, weight, rows, logits, routing.taken, held))
            return
        step = weight * (routing.cutoffs.double() - self.thresholds)
        self.thresholds += torch.where(torch.isfinite(routing.cutoffs), step, 0.0).to(self.thresholds.dtype)

    def _apply(self, fn, *rest, **options):
        """Thresholds stay float32 when the weights do not: a mean in bf16 would stand still."""
        kept = self.thresholds
        super()._apply(fn, *rest, **options)
        if self.thresholds.dtype in (torch.bfloat16, torch.float16):
            self.thresholds = self.thresholds.float() if kept.is_meta else kept.to(self.thresholds.device)
        self._forget()
        return self

    def _load_from_state_dict(self, state, prefix, *rest):
        super()._load_from_state_dict(state, prefix, *rest)
        if prefix + "observed" in state:
            self._no_thresholds = not int(state[prefix + "observed"])

    def __deepcopy__(self, memo):
        """As nn.Module; what the last forward left belongs to its graph and is not copied."""
        made = self.__class__.__new__(self.__class__)
        memo[id(self)] = made
        zero = torch.zeros((), device=self.thresholds.device)
        state = {**self.__dict__, "routing": None, "_before": None, "aux_loss": zero}
        made.__dict__.update({k: v if k == "group" else copy.deepcopy(v, memo) for k, v in state.items()})
        return made

    def extra_repr(self) -> str:
        e, d, h = self.w1.shape
        return f"d_model={d}, d_hidden={h}, experts={e}, {self.options.text}, causal={self.causal}"


class ExpertChoice(MoE):
    """MoE whose experts choose (Zhou et al. 2022); cap: experts that a token may have, 0 for any number of them."""

    def __init__(self, d_model: int, d_hidden: int, experts: int, *, cap: int = 0, **options: Any):
        capped = {"router": "capped_expert_choice", "cap": cap} if cap else {"router": "expert_choice"}
        super().__init__(d_model, d_hidden, experts, **capped, **options)


class TokenChoice(MoE):
    """MoE whose tokens choose: their best expert (Switch) or their two best ones (GShard), with a balancing loss; or,
    with `balanced`, as many as one likes at prices that balance the experts' loads, with neither loss nor limit."""

    def __init__(
        self,
        d_model: int,
        d_hidden: int,
        experts: int,
        experts_per_token: int = 2,
        *,
        balanced: bool = False,
        **options,
    ):
        if balanced:
            named = {"router": "quantile_balanced", "experts_per_token": experts_per_token}
        elif experts_per_token in (1, 2):
            named = {"router": "switch_top1" if experts_per_token == 1 else "gshard_top2"}
        else:
            raise ArgumentError(
                f"experts_per_token is {experts_per_token}; it must be 1 or 2, unless balanced=True"
            )
        super().__init__(d_model, d_hidden, experts, **named, **options)
