"""Mixture-of-Experts layers, which replace a feed-forward layer."""

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
    """The arguments of a forward pass, without its rows. together: ranks of the processes whose rows are shards of
    one tensor."""

    options: request.Options
    token_ids: Optional[Tensor]
    valid: Optional[Tensor]
    assignment: Optional[Tensor]
    sequence_length: int
    together: tuple
    lengths: tuple = ()
    counts: bool = True


class MoE(Keeper):
    """A Mixture-of-Experts layer with any of choir's routers. It replaces a feed-forward layer: the router assigns
    each token to some of the e experts, and the token's output is the sum of their outputs, weighted by gates. The
    residual connection is not included. docs/layer.md has all formulas.

        S = softmax(x Wg)                                   # [n,e] scores of n tokens; score="sigmoid": sigmoids
        out[t] = sum of gate[t,i] * GELU(x[t] w1[i]) w2[i]^T over the experts i of token t

    With most routers, the gate is the score S[t,i]. With gate_on="input", it multiplies the expert's input:
    GELU(gate * x[t] w1[i]) w2[i]^T. Scores are float32 at least, also under autocast and in bf16 modules.

    Args:
        d_model: d, the width of x.
        d_hidden: h, the hidden width of one expert.
        num_experts: e, the number of experts.
        router: name of a built-in router or of a plug-in; `choir.routers()` lists them. With "expert_choice", the
            default, each expert selects the tokens with its highest scores (Zhou et al. 2022).
        causal: how tokens are routed in eval mode. False (default): as in training, so with many routers the tokens
            of a batch compete, and a language model's loss is not causal (docs/causality.md). True: without regard
            to other tokens. Routers that rank tokens then compare scores with `thresholds`, running means of
            training's cut-off scores, and routers with a capacity limit have none. quantile_balanced and
            bias_balanced use their prices and biases in eval mode in both cases.
        group: a torch.distributed group, or a DeviceMesh of one dimension: the tokens of all its processes form one
            pool (expert_choice with pool "batch" only). None (default): the tokens of this process.
        layer: number of this layer (default 0). `random` samples different experts in layers with different
            numbers.
        activation: "gelu" (default), or "geglu" or "swiglu", with which an expert is (act(x w1) * (x w3)) w2^T.
        shared_experts: number of shared experts, which process every token, without a gate (default 0).
        inject_aux_loss: 0 (default): add `aux_loss` to the loss yourself. Otherwise, the backward pass of the
            output adds the gradient of `aux_loss` times this factor, and `aux_loss` is for display only. Use it for
            pipelines and reentrant checkpointing, where `aux_loss` has no gradient. The factor is the number by
            which the loss is multiplied before backward: 1 / micro-batches with gradient accumulation, a
            GradScaler, whose scale is then used, or a tensor that you set in each step.
        device, dtype: of the weights, as for nn.Linear (default None).
        options: options of the router by name, such as cap=3. `choir.Config.router_options(router)` returns them
            with their defaults. `top_k` is the same as `experts_per_token`.

    Shape: x [..., d] to [..., d]. The dimension before the last is the sequence.

    Attributes:
        gate: the router's weight, a Linear; gate.weight [e,d] is Wg^T.
        experts: a module with the experts' weights w1 and w2 [e,d,h], and w3 [e,d,h] with "geglu" and "swiglu".
        aux_loss: [] the router's losses of the last forward pass, times aux_loss_weight and z_loss_weight; 0 if it
            has none. Add it to the loss.
        routing: the `Routing` of the last forward pass, without gradients; None before the first one.
        thresholds: [e] float32, the router's thresholds, prices or biases: a buffer, in the state_dict.
            `choir.torch.update_routers` updates it; call that once per training step.

    Raises ArgumentError for sizes and options that the router does not accept, and UnsupportedError for options
    that choir.torch does not have and for a group with another router. In eval mode with causal=True, a forward
    pass raises RuntimeError if no training step has set the thresholds.

    Example:
        layer = choir.torch.MoE(64, 128, 8, router="capped_expert_choice", cap=3)
        loss = F.mse_loss(layer(x), target) + layer.aux_loss                           # x [B,T,64]"""

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
        """The processes whose tokens form one pool; None: this process alone. You may set a group or a
        DeviceMesh."""
        return self._group

    @group.setter
    def group(self, group: Any) -> None:
        self._group = group_of(group)

    @property
    def capacity_factor(self) -> float:
        """The option capacity_factor: the mean number of experts per token (expert choice), or expert capacity as a
        multiple of an even load (token choice; 0: unlimited). You may set it before any step, for each layer
        separately."""
        return self.options.capacity_factor

    @capacity_factor.setter
    def capacity_factor(self, factor: float) -> None:
        self._given = {**self._given, "capacity_factor": factor}
        self.options = request.options_of(self.options.router, len(self.thresholds), **self._given)

    w1 = property(lambda self: self.experts.w1)
    w2 = property(lambda self: self.experts.w2)
    w3 = property(lambda self: self.experts.w3)

    def compares_tokens(self) -> bool:
        """Whether, in eval mode, a token's experts depend on the other tokens of the call."""
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
        """Routes the tokens of x, and returns the gate-weighted sum of the outputs of each token's experts, in x's
        shape and type.

        Args:
            x: [..., d] floating point. The dimension before the last is the sequence.
            token_ids: [...] integers, required by the routers `hash` and `random`.
            valid: [...] bool. True: route the token; False: padding, whose output is 0. (Attention's
                key_padding_mask has the opposite values.) None: no padding.
            assignment: [..., e] bool, a forced assignment in place of the router's, such as `routing.assignment` of
                an earlier forward pass. Gates are computed from the scores of this call and have gradients. There
                is no balancing loss, and thresholds are not updated.
            pool: the set of tokens that compete in this call, in place of the router's option `pool`: "batch",
                "sequence" (with x [B,T,d], the T tokens of each sample), "group" (`group_size` consecutive tokens)
                or "position" (the tokens at one position of all samples). None: the option.
            lengths: the lengths of sequences that are packed into x one after the other. They are the pools of
                "sequence", and the sequences of aux_scope="sequence".
            taken: the name of `assignment` until version 0.5.

        Raises ArgumentError for wrong shapes, types and devices."""
        assignment = renamed("assignment", assignment, "taken", taken)
        placed, together = None, ()
        if hasattr(x, "placements"):  # a DTensor (sequence parallelism): each process routes its local tokens
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
        """Runs an empty batch as one row of padding: other processes may wait for this one in a collective, and
        weights need gradients."""
        nobody = torch.zeros(1, dtype=torch.bool, device=x.device)
        row = x.reshape(-1, self.d_model).sum(0, keepdim=True)  # zeros that belong to the graph of x
        one = _Call(call.options, nobody.long(), nobody, None, 1, call.together, counts=False)
        out = self._of_rows(row, one)
        self.forget_graph()
        return out[:0].reshape(x.shape) + x.to(out.dtype)

    def _of_rows(self, rows: Tensor, call: _Call) -> Tensor:
        if call.valid is not None:  # padding may contain any values, including NaN
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
        if call.counts and not (compat.again() or compat.transformed(seen[2])):  # recomputed, or buffers are fixed
            with compat.without_autocast(rows.device.type):
                self._count(seen, call, routing)
        if self._injects() and self.aux_loss.requires_grad and not compat.exporting():
            out = injected(out, self.aux_loss, self.inject_aux_loss)
            self._aux_loss = self.aux_loss.detach()
        return out

    def _injects(self) -> bool:
        return not isinstance(self.inject_aux_loss, (int, float)) or self.inject_aux_loss != 0

    if TYPE_CHECKING:
        __call__ = forward  # nn.Module's __call__ returns Any

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
        router = self.router_name if kept.number < 0 else kept  # a plug-in may have been redefined since
        return request.checked_options(router, len(self.thresholds), **{**self._given, "pool": pool})

    def _scores(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the rows in the precision of scores, at least float32, their logits, and their scores."""
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
        for name in WEIGHTS:  # names of versions without the modules `experts` and `gate`
            if prefix + name in given:
                given[f"{prefix}experts.{name}"] = given.pop(prefix + name)
        if prefix + "router" in given:
            given[prefix + "gate.weight"] = given.pop(prefix + "router").t()
        super()._load_from_state_dict(given, prefix, *rest)

    def extra_repr(self) -> str:
        sizes = f"d_model={self.d_model}, d_hidden={self.d_hidden}, experts={len(self.thresholds)}"
        return f"{sizes}, {self.options.text}, causal={self.causal}"


class ExpertChoice(MoE):
    """A Mixture-of-Experts layer with expert choice: each expert selects the tokens with its highest scores (Zhou
    et al. 2022), so all experts have the same load.

    Args:
        d_model: the width of x.
        d_hidden: the hidden width of one expert.
        num_experts: the number of experts.
        cap: maximum number of experts per token (router capped_expert_choice); 0: no limit.
        options: keyword arguments of MoE, such as `capacity_factor`, the mean number of experts per token (2.0),
            `pool`, `causal` and `activation`. choir.Config.router_options("expert_choice") returns the router's
            options with their defaults.

    Shape: x [..., d_model] to [..., d_model].

    Raises what MoE raises.

    Example:
        layer = choir.torch.ExpertChoice(512, 2048, 16, capacity_factor=2.0)
        y = layer(x)                                                            # x [B,T,512]"""

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
    """A Mixture-of-Experts layer with token choice: each token selects its `top_k` best experts.

    Args:
        d_model: the width of x.
        d_hidden: the hidden width of one expert.
        num_experts: the number of experts.
        top_k: the number of experts per token.
        balance: how loads are balanced. "aux": by a load-balancing loss; experts have a capacity limit with top_k 1
            (Switch) and 2 (GShard), and none with 3 or more (as Mixtral and OLMoE are trained). "quantile" or
            "bias": by prices or biases that are subtracted from the scores, without a loss and without a capacity
            limit.
        options: keyword arguments of MoE.

    Shape: x [..., d_model] to [..., d_model].

    Raises ArgumentError for another `balance`, and what MoE raises.

    Example:
        layer = choir.torch.TokenChoice(512, 2048, 64, top_k=8, balance="bias")
        loss = F.mse_loss(layer(x), target) + layer.aux_loss                    # x [B,T,512]"""

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
