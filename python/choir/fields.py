"""Keyword arguments of functions that accept fields of a config, for editors and type checkers. docs/formats.md
describes the fields. The lines between "generated" and "end" are generated from src/config/*.def
(CONTRIBUTING.md)."""

from __future__ import annotations

from typing import Any, TypedDict


class _Train(TypedDict, total=False):
    # generated: keywords train but batch_sequences compute
    sequence_length: int
    grad_chunks: int
    accumulate: int
    steps: int
    optimizer: str
    learning_rate: float
    warmup_steps: float
    constant_steps: int
    schedule_start: int
    schedule: str
    cooldown_steps: float
    objective: str
    mask_schedule: str
    cooldown_to: float
    freeze: str
    beta1: float
    beta2: float
    weight_decay: float
    clip_norm: float
    dropout: float
    seed: int
    eval_every: int
    eval_sequences: int
    checkpoint_every: int
    keep_checkpoints: int
    expert_copies: bool
    file_bytes: int
    # generated: end


class TrainFields(_Train, total=False):
    """Fields of "train" that choir.train takes as **fields. Not `compute`, which has a parameter in its signature."""

    batch_sequences: int


class FinetuneFields(_Train, total=False):
    """Fields of "train" that choir.finetune takes as **fields. Not `batch_sequences`, which has a parameter in its
    signature."""

    compute: str


class TrainerFields(TrainFields, FinetuneFields, total=False):
    """All fields of "train"."""


class ConfigFields(TrainerFields, total=False):
    """Fields of a config. Those of "router" have dotted keys, as **{"router.cap": 3}."""

    # generated: keywords model
    name: str
    vocab_size: int
    layers: int
    d_model: int
    d_hidden: int
    d_expert: int
    heads: int
    d_head: int
    experts: int
    moe_every: int
    rel_buckets: int
    rel_max_distance: int
    attention: str
    position: str
    rope_theta: float
    rope_fraction: float
    kv_heads: int
    qk_norm: bool
    qk_norm_whole: bool
    tied: bool
    embed_scale: float
    head_scale: float
    norm_eps: float
    activation: str
    expert_activation: str
    shared_experts: int
    dense_layers: int
    layer_capacity: str
    # generated: end
    # generated: keywords parallel
    dispatch_dtype: str
    # generated: end


class _Router(TypedDict, total=False):
    # generated: keywords model.router but name cap
    capacity_factor: float
    eval_capacity_factor: float
    capacity_start: float
    pool: str
    aux_loss_weight: float
    aux_scope: str
    priority: str
    gate_on: str
    z_loss_weight: float
    jitter: float
    random_second: bool
    group_size: int
    experts_per_token: int
    null_experts: int
    solver: str
    solver_lambda: float
    solver_iterations: int
    solver_stages: int
    consistency_weight: float
    decay: float
    threshold_after: int
    normalize_gates: bool
    score: str
    estimator: str
    bias_rate: float
    capacity_schedule: str
    # generated: end


class RouterOptions(_Router, total=False):
    """Options of routers; each router refuses those that it does not take (`choir help routers`)."""

    cap: int


class MoEOptions(RouterOptions, total=False):
    """The **options of choir.torch.MoE."""

    top_k: int


class _Layer(TypedDict, total=False):
    causal: bool
    group: Any
    layer: int
    shared_experts: int
    inject_aux_loss: Any


class LayerOptions(_Router, _Layer, total=False):
    """The **options of choir.torch.ExpertChoice and TokenChoice, without `cap` and `top_k`, which are in their
    signatures."""

    activation: str
    device: Any
    dtype: Any


class ConvertOptions(MoEOptions, _Layer, total=False):
    """The **options of choir.torch.convert: those of MoE that the converted block does not determine."""


class RouteArguments(RouterOptions, total=False):
    """The arguments of choir.route other than the scores and the router."""

    logits: bool
    tokens: Any
    valid: Any
    sequence_length: int
    training: bool
    seed: int
    thresholds: Any
    layer: int
