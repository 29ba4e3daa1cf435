"""choir's whole model in PyTorch: for training there, and for export to choir."""

from __future__ import annotations

import copy
import math
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Optional

import torch
import torch.nn.functional as F
from torch import nn

from .. import _options
from .._errors import ArgumentError, renamed
from .._routers import find
from .experts import Dense
from .layer import MoE
from .recorded import moe_rows

if TYPE_CHECKING:
    from ..config import Config
    from ..model import Model
    from ..tokenizer import Tokenizer


class _Norm(nn.Module):
    def __init__(self, d, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


class _HeadNorm(_Norm):
    """Normalizes heads [B,H,T,dh], each separately or all `together`; with a weight for each normalized column."""

    def __init__(self, together, d_head, eps):
        super().__init__(together * d_head, eps)

    def forward(self, x):
        B, H, T, d = x.shape
        rows = x.transpose(1, 2).reshape(B, T, -1, len(self.weight))
        return super().forward(rows).reshape(B, T, H, d).transpose(1, 2)


class _Rope(nn.Module):
    """Rotates the first `width` columns of heads [B,H,T,dh] by their positions, in pairs (c, c + width/2). Angles are
    float64 in a model of any type, because bf16 cannot represent position 257."""

    def __init__(self, width, theta):
        super().__init__()
        self.width, self.theta = width, theta

    def forward(self, x):
        column = torch.arange(0, self.width, 2, dtype=torch.float64, device=x.device)
        angle = torch.arange(x.shape[2], device=x.device)[:, None] * self.theta ** (-column / self.width)
        cosine, sine = angle.cos().to(x), angle.sin().to(x)
        a, b, rest = x.split([angle.shape[1], angle.shape[1], x.shape[3] - 2 * angle.shape[1]], 3)
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine, rest], 3)


class _Attention(nn.Module):
    """Attention, causal or bidirectional, with T5's learned relative position bias or with rope; optionally with
    grouped keys and values, and with norms of heads."""

    def __init__(self, m):
        super().__init__()
        self.heads, self.buckets, self.furthest = m.heads, m.rel_buckets, m.rel_max_distance
        self.both_ways = m.attention == "bidirectional"
        self.kv_heads, d_head = m.kv_heads or m.heads, m.d_head or m.d_model // m.heads
        self.q, self.k, self.v = (
            nn.Linear(m.d_model, heads * d_head, bias=False) for heads in (m.heads, self.kv_heads, self.kv_heads)
        )
        self.o = nn.Linear(m.heads * d_head, m.d_model, bias=False)
        self.q_norm, self.k_norm = (
            _HeadNorm(heads if m.qk_norm_whole else 1, d_head, m.norm_eps) if m.qk_norm else nn.Identity()
            for heads in (m.heads, self.kv_heads)
        )
        if m.position == "rope":
            self.rel_bias, self.rope = None, _Rope(int(m.rope_fraction * d_head), m.rope_theta)
        else:
            self.rel_bias, self.rope = nn.Parameter(0.1 * torch.randn(m.rel_buckets, m.heads)), nn.Identity()
        for layer in (self.q, self.k, self.v, self.o):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)

    def _bias(self, T):
        buckets = self.buckets // 2 if self.both_ways else self.buckets  # the other half is for later positions
        exact = buckets // 2
        wide = math.log(self.furthest / exact)
        far = [exact + int(math.log(d / exact) / wide * (buckets - exact)) for d in range(exact, T)]
        bucket = [*range(min(exact, T)), *(min(buckets - 1, b) for b in far)]
        distance = torch.arange(T, device=self.o.weight.device)[:, None] - torch.arange(T, device=self.o.weight.device)
        bias = torch.zeros_like(distance, dtype=self.o.weight.dtype)
        if self.rel_bias is not None:
            found = torch.tensor(bucket, device=distance.device)[distance.abs()] + buckets * (distance < 0)
            bias = self.rel_bias[found % self.buckets].permute(2, 0, 1)
        return bias if self.both_ways else bias.masked_fill(distance < 0, -math.inf)

    def forward(self, x):
        B, T, _ = x.shape
        heads = self.heads, self.kv_heads, self.kv_heads
        q, k, v = (p(x).view(B, T, h, -1).transpose(1, 2) for p, h in zip((self.q, self.k, self.v), heads))
        q, k = self.rope(self.q_norm(q)), self.rope(self.k_norm(k))
        k, v = (y.repeat_interleave(self.heads // self.kv_heads, 1) for y in (k, v))
        if hasattr(F, "scaled_dot_product_attention"):  # avoids a tensor [B,H,T,T] if possible
            bias = None if self.rel_bias is None else self._bias(T).to(q.dtype)
            causal = bias is None and not self.both_ways
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal)
        else:
            y = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) + self._bias(T), 3) @ v
        return self.o(y.transpose(1, 2).reshape(B, T, -1))


def _capacity(m, number):
    """The capacity factor of MoE layer `number`, if layer_capacity sets one for each layer."""
    weights = [float(weight) for weight in m.layer_capacity.split(",") if weight]
    if not weights:
        return {}
    share = weights[number] * len(weights) / sum(weights)
    return {key: value * share for key, value in m.factors.items() if value}


class _Block(nn.Module):
    def __init__(self, m, layer):
        super().__init__()
        self.attn_norm, self.attn = _Norm(m.d_model, m.norm_eps), _Attention(m)
        self.ffn_norm = _Norm(m.d_model, m.norm_eps)
        self.moe = self.ffn = None  # a block has one of the two
        behind, h = layer + 1 - m.dense_layers, m.d_expert or m.d_hidden
        if not (m.moe_every and behind > 0 and behind % m.moe_every == 0):
            self.ffn = Dense(m.d_model, m.d_hidden, m.activation)
            return
        options = {**m.router, **_capacity(m, behind // m.moe_every - 1), "shared_experts": m.shared_experts}
        self.moe = MoE(m.d_model, h, m.experts, layer=layer, activation=m.expert_activation, **options)

    def _load_from_state_dict(self, given, prefix, *rest):
        """In version 0.3 the shared experts were the block's `ffn`."""
        old = [name for name in given if name.startswith(prefix + "ffn.")] if self.moe is not None else []
        for name in old:
            given[f"{prefix}moe.shared.{name[len(prefix) + 4:]}"] = given.pop(name)
        super()._load_from_state_dict(given, prefix, *rest)

    def forward(self, x, tokens, assignment=None):
        x = x + self.attn(self.attn_norm(x))
        y = self.ffn_norm(x)
        return x + (self.ffn(y) if self.moe is None else self.moe(y, tokens, assignment=assignment))


class Transformer(nn.Module):
    """choir's language model as a PyTorch module: train or modify it with PyTorch, then export it to choir, which
    evaluates, serves and inspects it. `Transformer(config)` has random weights; `Transformer.of(model)` has the
    weights of a choir.Model.

    Args:
        config: a choir.Config with model.vocab_size above 0.

    Shape: tokens [B,T] integers to logits [B,T,V].

    Attributes:
        aux_loss: [] the sum of the layers' auxiliary losses of the last forward pass. Add it to the loss.

    Raises ArgumentError for a config whose values are incompatible or whose vocab_size is 0.

    Example:
        model = choir.torch.Transformer(choir.Config("pico", vocab_size=320))
        loss = model.loss(tokens) + model.aux_loss                                        # tokens [B,T]
        model.export("checkpoint", choir.Tokenizer("en.model"))"""

    def __init__(self, config: Config):
        super().__init__()
        config.check()
        if not config["vocab_size"]:
            raise ArgumentError("model.vocab_size is 0: set it, there is no data here to take it from")
        # A copy, because the caller may change its config.
        self.config, m = copy.copy(config), SimpleNamespace(**config.as_dict()["model"])
        m.factors = {key: m.router[key] for key in ("capacity_factor", "eval_capacity_factor")}
        name = m.router.pop("name")
        defaults = _options.values_of(find(name), {})
        m.router = {"router": name, **{k: v for k, v in m.router.items() if v != defaults[k]}}
        self.embed = nn.Parameter(torch.randn(m.vocab_size, m.d_model))
        self.layers = nn.ModuleList(_Block(m, layer) for layer in range(m.layers))
        self.final_norm = _Norm(m.d_model, m.norm_eps)
        self.head = None if m.tied else nn.Parameter(torch.randn(m.vocab_size, m.d_model) / math.sqrt(m.d_model))
        self.embed_scale, self.head_scale = m.embed_scale, m.head_scale or 1 / math.sqrt(m.d_model)

    @property
    def choir_layers(self) -> tuple[tuple[int, ...], int]:
        """The indices of the MoE layers, and the number of all layers."""
        return tuple(i for i, block in enumerate(self.layers) if block.moe is not None), len(self.layers)

    @property
    def aux_loss(self) -> torch.Tensor:
        losses = [block.moe.aux_loss for block in self.layers if block.moe is not None]
        return torch.stack(losses).sum() if losses else self.embed.new_zeros(())

    def forward(
        self, tokens: torch.Tensor, assignment: Optional[torch.Tensor] = None, *, taken: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        """Returns the logits [B,T,V] of tokens [B,T].

        Args:
            tokens: [B,T] integers, token ids.
            assignment: [layers,B,T,e] bool, a forced assignment in place of the routers', with a row for each MoE
                layer or, like the records of engines, for each layer of the model. None: the routers assign.
            taken: the name of `assignment` until version 0.5."""
        assignment = renamed("assignment", assignment, "taken", taken)
        x = self.embed_scale * F.embedding(tokens, self.embed)  # does not accept -1
        forced = iter(() if assignment is None else moe_rows(assignment, *self.choir_layers))
        for block in self.layers:
            x = block(x, tokens, None if assignment is None or block.moe is None else next(forced))
        return self.head_scale * self.final_norm(x) @ (self.embed if self.head is None else self.head).t()

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy of predicting the next token of tokens [B,T], [] in nats, without the routers'
        auxiliary loss. ArgumentError: a model with bidirectional attention; use `masked_loss`."""
        if self.config["model.attention"] != "causal":
            raise ArgumentError("model.attention is bidirectional, which sees the next token: take masked_loss")
        logits = self(tokens)[:, :-1]
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1).long())

    def masked_loss(self, tokens: torch.Tensor, masked: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The loss of a model that is trained by masking: replaces the `masked` tokens by the mask token, and
        returns the mean over all tokens of weight * cross-entropy at the masked tokens, [].

        Args:
            tokens: [B,T] integers, token ids.
            masked: [B,T] bool.
            weight: [B,T], or a shape that broadcasts to it. If tokens are masked with probability t, t uniform, and
                have weight 1/t, the loss estimates an upper bound in nats per token (docs/diffusion.md)."""
        logits = self(tokens.masked_fill(masked, self.config["vocab_size"] - 1))
        losses = F.cross_entropy(logits.flatten(0, 1), tokens.flatten().long(), reduction="none").view_as(tokens)
        return (losses * masked * weight).mean()

    def _named(self) -> dict[str, torch.Tensor]:
        """All tensors, with the names and shapes that they have in a checkpoint (docs/formats.md)."""
        named = {}
        made = ((f"{path}.{name}".lstrip("."), getattr(module, name)) for path, module in self.named_modules()
                for name in getattr(module, "parametrizations", ()))  # such as weight_norm: the resulting tensors
        for name, tensor in (*self.named_parameters(), *self.named_buffers(), *made):
            name = re.sub(r"(_orig_mod|_checkpoint_wrapped_module)\.", "", name)  # compiled or wrapped modules
            name = re.sub(r"^(embed|head)$", r"\g<0>.weight", name)
            if name.endswith(".moe.gate.weight"):
                name, tensor = name.replace("gate", "router"), tensor.t()
            named[name] = tensor
        return named

    def export(self, path, tokenizer: Optional[Tokenizer] = None) -> None:
        """Writes a checkpoint that `choir eval`, `generate` and Model.load read."""
        with self.to_choir() as model:
            model.save(path, tokenizer)

    def to_choir(self) -> Model:
        """A choir.Model with these weights. Under FSDP2 and expert parallelism all processes must call it."""
        from .. import Model

        model, named = Model(self.config), self._named()
        for name in model.parameters():
            weight = named[name].detach()
            weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
            model.set(name, weight.float().cpu().contiguous().numpy())
        return model

    @classmethod
    @torch.no_grad()
    def of(cls, model: Model) -> Transformer:
        """Returns a Transformer with the config and weights of a choir.Model, including thresholds."""
        made = cls(model.config)
        named = made._named()
        for name in model.parameters():
            named[name].copy_(torch.from_numpy(model.get(name)))
        for block in made.layers:
            if block.moe is not None and bool((block.moe.thresholds != 0).any()):
                # The number of steps is not in the model. With a large one, the running mean changes slowly.
                block.moe.go_on_from(10000)
        return made
