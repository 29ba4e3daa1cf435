"""Mixture-of-Experts layers that take the place of a feed-forward one."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence

import torch
from torch import Tensor, nn

from .._errors import ArgumentError, UnsupportedError, renamed
from . import compat, gates, kmeans, request, routers
from .experts import Dense, Experts, Gate, of_other, reads_any
from .products import ACTIVATIONS, WEIGHTS
from .ranks import group_of
from .scaled import injected
from .state import Keeper
from .stats import counted

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..fields import LayerOptions, MoEOptions


class _Call(NamedTuple):
    """Arguments of a forward besides its rows. together: ranks of the processes whose rows are shards of one tensor."""

    options: request.Options
    token_ids: Optional[Tensor]
    valid: Optional[Tensor]
    assignment: Optional[Tensor]
    sequence_length: int
    together: tuple
    lengths: tuple = ()
    counts: bool = True


class MoE(Keeper):
    """x [..., d] to [..., d], without residual: S = softmax(x Wg), or with score="sigmoid" their sigmoids; the router
    chooses; out[t] is the sum over its experts of gate * GELU(x[t] w1[i]) w2[i]^T (docs/layer.md), or with
    gate_on="input" of GELU(gate * x[t] w1[i]) w2[i]^T. Any of choir's routers, with its options: MoE(64, 128, 8,
    router="capped_expert_choice", cap=3). Weights: gate.weight [e,d], as of nn.Linear, which is Wg^T; experts.w1 and .w2
    [e,d,h]. activation: "gelu", or "geglu" or "swiglu", for which an expert is (act(x w1) * (x w3)) w2^T with a third
    weight experts.w3 [e,d,h].

    Scores are float32 at least, under autocast and in bf16 modules too. After a forward, `aux_loss` (the router's
    losses by their weights, aux_loss_weight and z_loss_weight) is to be added to the loss, and `routing` says what was
    chosen.

    In eval mode tokens still compete within the batch: docs/causality.md says what that means for a language model.
    `causal=True` looks at no other token: routers that cut by rank go by thresholds, running means that training keeps
    in the buffer `thresholds` (quantile_balanced and bias_balanced, whose thresholds are prices, do in any case); those with room for
    some have room for all. Buffers are in the state_dict; `choir.torch.update_routers` moves them, once a step.

    group: a torch.distributed group, or DeviceMesh of one dimension, over whose processes the pool of expert_choice
    extends. layer: a number that makes `random` draw otherwise than in other layers. shared_experts: experts that every
    token has beside, without a gate. inject_aux_loss: the output's backward pass adds the gradient of so many times
    `aux_loss`, which is then only to be looked at: for pipelines and reentrant checkpointing, where it has no gradient.
    It is what the loss is multiplied by before backward: 1 / micro-batches with gradient accumulation, a GradScaler itself,
    which is asked for its scale, or a tensor, set in each step."""

    def __init__(
        self,
        d_model: int,
        d_hidden: int,
        num_experts: int,
        router: str = "expert_choice",
        *,
        causal: bool = False,
        group: Any = None,
        layer: int = 0,
        activation: str = "gelu",
        shared_experts: int = 0,
        inject_aux_loss: Any = 0.0,
        device=None,
        dtype=None,
        **options: Unpack[MoEOptions],
    ):
        for name, size in (("d_model", d_model), ("d_hidden", d_hidden), ("num_experts", num_experts)):
            if size < 1:
                raise ArgumentError(f"{name} is {size}; it must be at least 1")
        if "top_k" in options:
            options["experts_per_token"] = options.pop("top_k")
        super().__init__(router, request.options_of(router, num_experts, **options), d_model, num_experts, device)
        self._given, self.d_hidden, self.causal, self.group, self.layer = options, d_hidden, causal, group, layer
        if group is not None and (router != "expert_choice" or self.options.pool != "batch"):
            raise UnsupportedError(
                "group: only router 'expert_choice' with pool 'batch' has pools across processes"
            )
        if activation not in ACTIVATIONS:
            raise ArgumentError(f"activation is {activation!r}; it must be one of {', '.join(ACTIVATIONS)}")
        at = {"device": device, "dtype": dtype}
        self.gate = Gate(d_model, num_experts, not self.options.even, router == "kmeans", **at)
        self.experts = Experts(d_model, d_hidden, num_experts, activation, self.options.gate_on, **at)
        self.shared = Dense(d_model, shared_experts * d_hidden, activation, **at) if shared_experts else None
        self.inject_aux_loss = inject_aux_loss

    @property
    def group(self) -> Any:
        """The processes over which the pool extends; a DeviceMesh may be set."""
        return self._group

    @group.setter
    def group(self, group: Any) -> None:
        self._group = group_of(group)

    @property
    def capacity_factor(self) -> float:
        """Mean number of experts per token; may be set before any step, for each layer separately."""
        return self.options.capacity_factor

    @capacity_factor.setter
    def capacity_factor(self, factor: float) -> None:
        self._given = {**self._given, "capacity_factor": factor}
        self.options = request.options_of(self.options.router, len(self.thresholds), **self._given)

    w1 = property(lambda self: self.experts.w1)
    w2 = property(lambda self: self.experts.w2)
    w3 = property(lambda self: self.experts.w3)

    def compares_tokens(self) -> bool:
        """Whether in eval mode a token's experts depend on the other tokens of the call."""
        o = self.options
        limited = (o.eval_capacity_factor or o.capacity_factor) > 0
        return not self.causal and (o.by_thresholds or (o.limited and limited))

    def reset_parameters(self) -> None:
        """Initializes weights from a normal distribution of variance 1 / fan_in, and resets thresholds."""
        for part in (self.gate, self.experts, self.shared):
            if part is not None:
                part.reset_parameters()
        nn.init.zeros_(self.thresholds)
        self.go_on_from(0)

    def forward(
        self,
        x: Tensor,
        token_ids: Optional[Tensor] = None,
        valid: Optional[Tensor] = None,
        assignment: Optional[Tensor] = None,
        *,
        pool: Optional[str] = None,
        lengths: Sequence[int] = (),
        taken: Optional[Tensor] = None,
    ) -> Tensor:
        """The weighted sum of what each token's experts give, in x's shape and type.

        Args:
            x: [..., d]; the last dimension but one is the sequence.
            token_ids: [...] integers, which `hash` and `random` need.
            valid: [...] bool: True takes part, False is padding, whose output is 0. Attention's key_padding_mask is the
                opposite.
            assignment: [..., e] bool: forced assignment of tokens to experts instead of the router's choice, such as
                `routing.assignment` of an earlier forward; gates are the scores of this call and have gradients. There is
                then no balancing loss, and thresholds are not updated.
            pool: who competes in this call instead of the router's option `pool`: "batch", "sequence" (of x [B,T,d] the T
                tokens of each sample), "group" (of `group_size` tokens as they come) or "position".
            lengths: of sequences that are packed into x, one behind the other: the pools of "sequence", and what `aux_scope`
                sequence means.
            taken: the name of `assignment` until version 0.5.

        Raises ArgumentError for shapes, types and devices that do not fit."""
        assignment = renamed("assignment", assignment, "taken", taken)
        placed, together = None, ()
        if hasattr(x, "placements"):  # a DTensor, as of sequence parallelism: each process routes its own tokens
            from .owners import local_parts

            placed, x, (token_ids, valid, assignment), together = local_parts(x, token_ids, valid, assignment)
        self._check(x)
        rows, length = x.reshape(-1, x.shape[-1]), x.shape[-2] if x.dim() > 2 else 0
        request.check_rows(rows, token_ids, valid)
        request.check_lengths(lengths, rows.shape[0])
        options = self.options if pool is None else self._pooled(pool)
        call = _Call(options, token_ids, valid, assignment, length, together, tuple(lengths))
        if rows.shape[0]:
            if self.causal and not self.training and assignment is None and self.options.by_thresholds:
                self.check_thresholds()
            out = request.shaped(self._of_rows(rows, call), x.shape)
        else:
            out = self._of_none(x, call)
        if placed is None:
            return out
        return type(placed).from_local(out, placed.device_mesh, placed.placements, run_check=False)

    def _of_none(self, x: Tensor, call: _Call) -> Tensor:
        """A batch without tokens is replaced by one of padding: other processes may wait for this one, and weights
        need gradients."""
        nobody = torch.zeros(1, dtype=torch.bool, device=x.device)
        row = x.reshape(-1, self.d_model).sum(0, keepdim=True)  # zeros that belong to the graph of x
        one = _Call(call.options, nobody.long(), nobody, None, 1, call.together, counts=False)
        out = self._of_rows(row, one)
        self.forget_graph()
        return out[:0].reshape(x.shape) + x.to(out.dtype)

    def _of_rows(self, rows: Tensor, call: _Call) -> Tensor:
        if call.valid is not None:  # padding may hold anything, NaN too
            rows = torch.where(call.valid.reshape(-1, 1) != 0, rows, 0.0)
        with compat.without_autocast(rows.device.type):
            seen = self._scores(rows)
            routing = self._choose(seen, call)
        if not compat.exporting():
            self.keep(routing)
            if not compat.compiling() and self.lacks_state:
                self.warn_of_lacking_state()
            if self.training and rows.requires_grad and not torch.is_grad_enabled() and not compat.compiling():
                self._warn_of_lost_gradient()
        out = self.experts(rows, request.Sent(routing, call.together))
        if self.shared is not None:
            out = out + self.shared(rows)
        if call.counts and not (compat.again() or compat.transformed(seen[2])):  # was counted; may change no buffer
            with compat.without_autocast(rows.device.type):
                self._count(seen, call, routing)
        if self._injects() and self.aux_loss.requires_grad and not compat.exporting():
            out = injected(out, self.aux_loss, self.inject_aux_loss)
            self._aux_loss = self.aux_loss.detach()
        return out

    def _injects(self) -> bool:
        return not isinstance(self.inject_aux_loss, (int, float)) or self.inject_aux_loss != 0

    if TYPE_CHECKING:
        __call__ = forward  # nn.Module's returns Any

    def _warn_of_lost_gradient(self) -> None:
        o = self.options
        if (o.balanced and o.aux_loss_weight or o.z_loss_weight) and not self._injects():
            warnings.warn(
                f"aux_loss of router '{self.router_name}' has no gradient: this forward was run without one, as reentrant "
                "checkpointing does. Give inject_aux_loss=1.0 and do not add aux_loss, or checkpoint with use_reentrant=False"
            )

    def _check(self, x: Tensor) -> None:
        request.check_floating(x, "x")
        d, device = self.d_model, self.thresholds.device
        if x.dim() < 1 or x.shape[-1] != d:
            raise ArgumentError(f"x has shape {tuple(x.shape)}; its last dimension must be d_model, {d}")
        if x.device != device:
            raise ArgumentError(f"x is on {x.device} and the layer on {device}; move one with .to(device)")
        o = self.options
        if self.training and (o.threshold_after or o.consistency_weight or o.capacity_start):
            raise UnsupportedError(
                "threshold_after, consistency_weight, capacity_start: only choir's own training does this; leave it 0"
            )

    def _pooled(self, pool: str) -> request.Options:
        """The options with another pool."""
        if self.group is not None and pool != "batch":
            raise UnsupportedError(f"pool is {pool!r}, and the layer has a group: pools across processes are 'batch'")
        kept = self.options.router
        router = self.router_name if kept.number < 0 else kept  # a plug-in may have another definition by now
        return request.checked_options(router, len(self.thresholds), **{**self._given, "pool": pool})

    def _scores(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows in the precision of scores, which is at least float32, with their logits and scores."""
        o = self.options
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        if self.training and o.jitter:
            wide = wide * torch.empty_like(wide).uniform_(1 - o.jitter, 1 + o.jitter)
        logits = self.gate(wide) if reads_any(self.gate) else of_other(self.gate, wide, rows.dtype)
        if self.router_name == "kmeans":
            logits = logits - kmeans.half_squares(self.gate.weight).to(logits.dtype)
        return wide, logits, gates.scores_of(o, logits)

    def _choose(self, seen: tuple, call: _Call) -> request.Routing:
        _, logits, scores = seen
        return routers.choose(
            scores,
            logits,
            name=self.router_name,
            options=call.options,
            tokens=call.token_ids,
            valid=call.valid,
            sequence_length=call.sequence_length,
            training=self.training,
            causal=self.causal and not self.training,
            thresholds=self.thresholds,
            layer=self.layer,
            group=self.group,
            assignment=call.assignment,
            lengths=call.lengths,
            lean=True,
        )

    def _count(self, seen: tuple, call: _Call, routing: request.Routing) -> None:
        wide, logits, scores = seen
        if self.tally is not None:
            with torch.no_grad():
                shares = scores.softmax(1) if self.options.reads_logits else scores
                self.tally = self.tally.to(wide.device).add_(counted(shares, routing.whole(), call.valid))
        if self.training and call.assignment is None and self.sums is not None:
            self.observe(wide, call.valid, logits, routing)

    def _load_from_state_dict(self, given, prefix, *rest):
        for name in WEIGHTS:  # where they stood before `experts` and `gate` were modules
            if prefix + name in given:
                given[f"{prefix}experts.{name}"] = given.pop(prefix + name)
        if prefix + "router" in given:
            given[prefix + "gate.weight"] = given.pop(prefix + "router").t()
        super()._load_from_state_dict(given, prefix, *rest)

    def extra_repr(self) -> str:
        sizes = f"d_model={self.d_model}, d_hidden={self.d_hidden}, experts={len(self.thresholds)}"
        return f"{sizes}, {self.options.text}, causal={self.causal}"


class ExpertChoice(MoE):
    """MoE whose experts choose (Zhou et al. 2022).

    Args:
        d_model, d_hidden: widths of rows and of experts.
        num_experts: experts of the layer.
        cap: experts that a token may have, 0 for any number of them.
        options: of MoE, `capacity_factor`, `pool`, `causal`, `activation` and so on; those of the router and their
            defaults are choir.Config.router_options("expert_choice").

    Shape: [..., d_model] to the same.

    Example: ExpertChoice(512, 2048, 16, capacity_factor=2.0)"""

    def __init__(
        self,
        d_model: int,
        d_hidden: int,
        num_experts: int,
        *,
        cap: int = 0,
        **options: Unpack[LayerOptions],
    ):
        capped = {"router": "capped_expert_choice", "cap": cap} if cap else {"router": "expert_choice"}
        super().__init__(d_model, d_hidden, num_experts, **capped, **options)


class TokenChoice(MoE):
    """MoE whose tokens choose their best experts.

    Args:
        d_model, d_hidden: widths of rows and of experts.
        num_experts: experts of the layer.
        top_k: experts of a token.
        balance: "aux": a balancing loss, with room for some (1 is Switch, 2 GShard) or, from 3 on, for all (as Mixtral
            and OLMoE train); "quantile" or "bias": prices that balance the loads, with neither loss nor limit.
        options: of MoE.

    Shape: [..., d_model] to the same.

    Example: TokenChoice(512, 2048, 64, top_k=8, balance="bias")"""

    def __init__(
        self,
        d_model: int,
        d_hidden: int,
        num_experts: int,
        top_k: int = 2,
        *,
        balance: str = "aux",
        **options: Unpack[LayerOptions],
    ):
        by_prices = {"quantile": "quantile_balanced", "bias": "bias_balanced"}
        if balance not in ("aux", *by_prices):
            raise ArgumentError(f"balance is {balance!r}; it must be 'aux', 'quantile' or 'bias'")
        router = by_prices.get(balance) or {1: "switch_top1", 2: "gshard_top2"}.get(top_k, "topk")
        if router not in ("switch_top1", "gshard_top2"):
            options["top_k"] = top_k
        super().__init__(d_model, d_hidden, num_experts, router, **options)
