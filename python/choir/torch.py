"""choir's routers in PyTorch models: the selection is choir's, the products are PyTorch's."""

from __future__ import annotations

import math
from typing import Any, Optional

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from . import _native as native
from .config import Config
from .model import Model
from .routing import Request, Routing, gates_by_thresholds, router_options
from .tokenizer import Tokenizer


def _numpy(tensor: Optional[torch.Tensor]) -> Optional[np.ndarray]:
    """The tensor's own memory where it is contiguous and on the CPU; else a copy there."""
    return None if tensor is None else tensor.detach().cpu().contiguous().numpy()


class _Route(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, request, made):
        made.append(request.route())
        ctx.request = request
        gates = torch.from_numpy(made[0].gates).to(scores.device, scores.dtype)
        return gates, scores.new_tensor(made[0].aux_loss)

    @staticmethod
    def backward(ctx, dgates, daux):
        dscores = ctx.request.backward(_numpy(dgates.float()), float(daux))
        return torch.from_numpy(dscores).to(dgates.device, dgates.dtype), None, None


def route(
    scores: torch.Tensor, router: str = "expert_choice", **arguments: Any
) -> tuple[torch.Tensor, torch.Tensor, Routing]:
    """choir.route as an autograd function: scores [n,e] to (gates [n,e], aux_loss [], what was chosen). Its
    further arguments are those of choir.route; tokens and valid may be tensors.

    Gradients flow through gates and auxiliary loss into scores; the choice is constant. float32 scores on the CPU are not
    copied; they must not be written to before backward. Others pass through the CPU. The auxiliary loss is unweighted:
    add it with a weight of your own."""
    plain = {key: _numpy(value) if isinstance(value, torch.Tensor) else value for key, value in arguments.items()}
    request = Request(_numpy(scores.detach().float()), router, **plain)
    made: list[Routing] = []
    gates, aux_loss = _Route.apply(scores, request, made)
    return gates, aux_loss, made[0]


class ExpertChoice(nn.Module):
    """A Mixture-of-Experts layer that takes the place of a feed-forward one: x [..., d] to [..., d], without residual.

    S = softmax(x Wg); the router chooses; out[t] is the sum over its experts of gate * GELU(x[t] w1[i]) w2[i]^T, as
    docs/layer.md has it. Any router of choir may be named, with its options: ExpertChoice(64, 128, 8,
    router="capped_expert_choice", cap=3). Weights: router [d,e], w1 and w2 [e,d,h]. After a forward, `aux_loss` (weighted
    by aux_loss_weight where the router has one) is to be added to the loss, and `routing` says what was chosen.

    In eval mode tokens still compete within the batch: docs/causality.md says what that means for a language model. `causal`
    True takes thresholds instead, running means that training keeps in the buffer `thresholds` (routers that cut by rank;
    quantile_balanced, whose thresholds are prices, goes by them in any case). What a router draws in training comes from
    PyTorch's generator. Refused are kmeans, whose centroids are not trained by gradients, and training with what only
    choir's own does: threshold_after and consistency_weight.
    """

    def __init__(
        self,
        d_model: int,
        d_hidden: int,
        experts: int,
        router: str = "expert_choice",
        *,
        causal: bool = False,
        **options: Any,
    ):
        super().__init__()
        if router == "kmeans":
            raise native.UnsupportedError("router 'kmeans': its centroids are not trained by gradients; take another")
        made = router_options(router, **options)
        self.router_name, self.options, self.causal = router, options, causal
        self.router = nn.Parameter(torch.randn(d_model, experts) / math.sqrt(d_model))
        self.w1 = nn.Parameter(torch.randn(experts, d_model, d_hidden) / math.sqrt(d_model))
        self.w2 = nn.Parameter(torch.randn(experts, d_model, d_hidden) / math.sqrt(d_hidden))
        self.register_buffer("thresholds", torch.zeros(experts))
        self.register_buffer("observed", torch.zeros((), dtype=torch.int64))
        self._aux_weight, self._decay, self._jitter = made.aux_loss_weight, made.decay, made.jitter
        self._normalize = bool(made.normalize_gates)
        self._only_choir = [name for name in ("threshold_after", "consistency_weight") if getattr(made, name)]
        self._looks = bool(native.lib.choir_router_looks_across_tokens(native.text(router)))
        self.routing: Optional[Routing] = None
        self.aux_loss: Optional[torch.Tensor] = None

    def forward(
        self, x: torch.Tensor, tokens: Optional[torch.Tensor] = None, valid: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        flat = [None if t is None else t.reshape(-1) for t in (tokens, valid)]
        T = x.shape[1] if x.dim() > 2 else 0
        if not self.training and (self.causal if self._looks else bool(self.observed)):
            return self._by_thresholds(rows, flat[1]).view_as(x)
        seed = int(torch.randint(1 << 62, ())) if self.training else 0
        gates, aux_loss, self.routing = route(
            self._jittered(rows) @ self.router,
            self.router_name,
            logits=True,
            tokens=flat[0],
            valid=flat[1],
            sequence_length=T,
            training=self.training,
            seed=seed,
            **self.options,
        )
        self.aux_loss = aux_loss * self._aux_weight
        if self.training:
            self._observe(self.routing)
        return self._experts(rows, gates, self.routing.indices).view_as(x)

    def _jittered(self, rows):
        """What the router reads; in training some options change it."""
        if self.training and self._only_choir:
            raise native.UnsupportedError(f"{self._only_choir[0]}: only choir's own training does this; leave it 0")
        if not (self.training and self._jitter):
            return rows
        return rows * torch.empty_like(rows).uniform_(1 - self._jitter, 1 + self._jitter)

    def _experts(self, rows, gates, indices):
        """Each expert on its tokens; one product for all where they hold equally many."""
        token = torch.from_numpy(np.concatenate(indices)).to(rows.device)
        loads = [len(i) for i in indices]
        gate = gates[token, torch.repeat_interleave(torch.arange(len(loads)), torch.tensor(loads)).to(rows.device)]
        taken = rows[token]
        if len(set(loads)) == 1:
            inner = F.gelu(torch.bmm(taken.view(len(loads), -1, rows.shape[1]), self.w1))
            y = torch.bmm(inner, self.w2.transpose(1, 2)).view(-1, rows.shape[1])
        else:
            parts = [F.gelu(part @ w1) @ w2.t() for part, w1, w2 in zip(taken.split(loads), self.w1, self.w2)]
            y = torch.cat(parts)
        return torch.zeros_like(rows).index_add(0, token, y * gate[:, None])

    @torch.no_grad()
    def _observe(self, routing: Routing):
        """The bias-corrected running mean of cut-offs, as choir keeps it (docs/design.md, section 4)."""
        if routing.cutoffs is None:
            return
        self.observed += 1
        weight = (1 - self._decay) / (1 - self._decay ** int(self.observed))
        cutoffs = torch.from_numpy(routing.cutoffs).to(self.thresholds)
        self.thresholds += torch.where(torch.isfinite(cutoffs), weight * (cutoffs - self.thresholds), 0.0)

    def _by_thresholds(self, rows, valid):
        """Which scores count, choir says: those that reach the experts' thresholds, by the router's own rule."""
        if not bool(self.observed):
            raise RuntimeError(
                f"causal routing needs thresholds, and no training step has set any (router {self.router_name!r})"
            )
        scores = torch.softmax(rows @ self.router, 1)
        by = gates_by_thresholds(
            _numpy(scores.float()), _numpy(self.thresholds), self.router_name, _numpy(valid), **self.options
        )
        chosen = torch.from_numpy(by != 0).to(scores.device)
        gates = scores * chosen
        if self._normalize:
            gates = gates / gates.sum(1, keepdim=True).clamp(min=1e-30)
        self.routing, self.aux_loss = None, scores.new_zeros(())
        return self._experts(rows, gates, [chosen[:, i].nonzero()[:, 0].cpu().numpy() for i in range(by.shape[1])])

    def extra_repr(self) -> str:
        e, d, h = self.w1.shape
        return f"d_model={d}, d_hidden={h}, experts={e}, router={self.router_name!r}, {self.options}"


class _Norm(nn.Module):
    def __init__(self, d, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


class _Attention(nn.Module):
    """Causal, with T5's learned bias by distance."""

    def __init__(self, m):
        super().__init__()
        self.heads, self.buckets, self.furthest = m.heads, m.rel_buckets, m.rel_max_distance
        inner = m.heads * (m.d_head or m.d_model // m.heads)
        self.q, self.k, self.v = (nn.Linear(m.d_model, inner, bias=False) for _ in range(3))
        self.o = nn.Linear(inner, m.d_model, bias=False)
        self.rel_bias = nn.Parameter(0.1 * torch.randn(m.rel_buckets, m.heads))
        for layer in (self.q, self.k, self.v, self.o):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)

    def _bias(self, T):
        exact = self.buckets // 2
        bucket = [
            (
                d
                if d < exact
                else min(
                    self.buckets - 1,
                    exact + int(math.log(d / exact) / math.log(self.furthest / exact) * (self.buckets - exact)),
                )
            )
            for d in range(T)
        ]
        distance = torch.arange(T)[:, None] - torch.arange(T)
        bias = self.rel_bias[torch.tensor(bucket)[distance.clamp(min=0)].to(self.rel_bias.device)].permute(2, 0, 1)
        return bias.masked_fill((distance < 0).to(bias.device), -math.inf)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (p(x).view(B, T, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        p = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) + self._bias(T), 3)
        return self.o((p @ v).transpose(1, 2).reshape(B, T, -1))


class _GEGLU(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in ((d, h), (d, h), (h, d)))
        for layer in (self.gate, self.up, self.down):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)

    def forward(self, x):
        return self.down(F.gelu(self.gate(x)) * self.up(x))


class _Block(nn.Module):
    def __init__(self, m, layer, options):
        super().__init__()
        self.attn_norm, self.attn = _Norm(m.d_model, m.norm_eps), _Attention(m)
        self.ffn_norm = _Norm(m.d_model, m.norm_eps)
        self.moe = self.ffn = None
        if m.moe_every and (layer + 1) % m.moe_every == 0:
            self.moe = ExpertChoice(
                m.d_model, m.d_expert or m.d_hidden, m.experts, m.router.name.decode(), **options
            )
        else:
            self.ffn = _GEGLU(m.d_model, m.d_hidden)

    def forward(self, x, tokens):
        x = x + self.attn(self.attn_norm(x))
        y = self.ffn_norm(x)
        return x + (self.moe(y, tokens) if self.moe else self.ffn(y))


class Transformer(nn.Module):
    """choir's model in PyTorch, by a choir.Config: to train it, or what is made of it, with PyTorch, and to give it back to
    choir, which evaluates, serves and inspects it. Transformer(config) is fresh, Transformer.of(model) has a model's weights.
    tokens [B,T] to logits [B,T,V]; `aux_loss` is to be added to the loss."""

    def __init__(self, config: Config):
        super().__init__()
        self.config, m = config, config.struct.model
        if m.router.name == b"random" and m.moe_every:
            raise native.UnsupportedError("router 'random': choir's layers draw experts of their own; take another router")
        plain, options = router_options(m.router.name.decode()), {}
        for name, _ in plain._fields_:
            value = getattr(m.router, name)
            if name not in ("name", "reserved") and value != getattr(plain, name):
                options[name] = value.decode() if isinstance(value, bytes) else value
        for name in ("random_second", "normalize_gates"):
            if name in options:
                options[name] = bool(options[name])
        self.embed = nn.Parameter(torch.randn(m.vocab_size, m.d_model))
        self.layers = nn.ModuleList(_Block(m, layer, options) for layer in range(m.layers))
        self.final_norm = _Norm(m.d_model, m.norm_eps)

    @property
    def aux_loss(self) -> torch.Tensor:
        losses = [block.moe.aux_loss for block in self.layers if block.moe is not None]
        return torch.stack(losses).sum() if losses else self.embed.new_zeros(())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed[tokens]
        for block in self.layers:
            x = block(x, tokens)
        return self.final_norm(x) @ self.embed.t() / math.sqrt(self.embed.shape[1])

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of each position predicting the next; the routers' auxiliary loss is not in it."""
        logits = self(tokens)[:, :-1]
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))

    def _named(self) -> dict[str, torch.Tensor]:
        """Every tensor under its name in a checkpoint (docs/formats.md)."""
        named = {"embed.weight": self.embed, "final_norm.weight": self.final_norm.weight}
        for i, block in enumerate(self.layers):
            at = f"layers.{i}."
            named.update(
                {f"{at}{part}_norm.weight": getattr(block, f"{part}_norm").weight for part in ("attn", "ffn")}
            )
            named.update({f"{at}attn.{p}.weight": getattr(block.attn, p).weight for p in "qkvo"})
            named[at + "attn.rel_bias"] = block.attn.rel_bias
            if block.moe is not None:
                named.update(
                    {
                        at + "moe.router.weight": block.moe.router,
                        at + "moe.experts.w1": block.moe.w1,
                        at + "moe.experts.w2": block.moe.w2,
                        at + "moe.thresholds": block.moe.thresholds,
                    }
                )
            else:
                named.update({f"{at}ffn.{p}.weight": getattr(block.ffn, p).weight for p in ("gate", "up", "down")})
        return named

    def export(self, path, tokenizer: Optional[Tokenizer] = None) -> None:
        """Writes a checkpoint that `choir eval`, `generate` and Model.load read."""
        with self.to_choir() as model:
            model.save(path, tokenizer)

    def to_choir(self) -> Model:
        """A choir.Model with these weights."""
        model, named = Model(self.config), self._named()
        for name in model.parameters():
            model.set(name, _numpy(named[name].float()))
        return model

    @classmethod
    @torch.no_grad()
    def of(cls, model: Model) -> Transformer:
        """The model with its weights, thresholds included."""
        made = cls(model.config)
        named = made._named()
        for name in model.parameters():
            named[name].copy_(torch.from_numpy(model.get(name)))
        for block in made.layers:
            if block.moe is not None and bool((block.moe.thresholds != 0).any()):
                block.moe.observed.fill_(
                    10000
                )  # choir's file does not say: far along, so that the mean moves slowly
        return made
