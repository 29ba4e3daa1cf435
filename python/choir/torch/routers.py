"""choir's routers on the tensor's device: `route` is choir.route in PyTorch operations, with gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch
from torch import Tensor

from .._errors import ArgumentError
from . import gates, select
from .ranks import top_of_all
from .request import Request, Routing, check_floating, checked_options
from .solvers import balance_op, on_host_op

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..fields import RouterOptions


def _filled(q: Request, slots: Tensor) -> dict:
    assignment = select.marked(slots, q.scores.shape[0])
    return {"assignment": assignment, "demand": assignment.sum(0), "slots": slots, "per_token": assignment.shape[1]}


def _expert_choice(q: Request) -> dict:
    if q.group is not None:
        slots, cutoffs = top_of_all(q.scores, q.valid, q.factor, q.group)
    elif pools := _equal_pools(q):  # the host knows k
        n, e = q.scores.shape
        k = select.per_expert(q.factor, n // pools, e)
        slots = select.top_of_equal(q.scores, pools, q.options.pool == "position", k, q.shares)
        made = {"slots": slots, "per_token": e, "full": pools}
        if q.lean and not q.options.normalize_gates:
            return {"assignment": None, "demand": None, "dropped": None, **made}
        assignment = torch.zeros(n, e, dtype=torch.bool, device=slots.device).scatter(0, slots.t(), True)
        return {"assignment": assignment, "demand": slots.new_full((e,), pools * k), **made}
    else:
        index, held, k, _ = _pools(q)
        room = select.per_expert(q.factor, index.shape[1], q.scores.shape[1])
        slots, worst = select.top(q.scores, index, held, k, room)
        cutoffs = select.mean_cutoff(worst)
    return {**_filled(q, slots), "cutoffs": cutoffs}


def _equal_pools(q: Request) -> int:
    """The number of pools, if all have the same size and no token is padding; otherwise 0."""
    n = q.scores.shape[0]
    _check_pool(q)
    if q.valid is not None or _packed(q):
        return 0
    return select.equal_pools(n, q.sequence_length, q.options.pool, q.options.group_size)


def _packed(q: Request) -> bool:
    return q.options.pool == "sequence" and len(q.lengths) > 0


def _check_pool(q: Request) -> None:
    if q.options.pool == "position" and q.sequence_length < 1:
        raise ArgumentError("pool 'position' needs sequence_length: of a layer, x [B,T,d]")


def _pools(q: Request) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The pools: index and held [pools,tokens], k [pools]; and the scores [pools,tokens,e]."""
    n, e = q.scores.shape
    _check_pool(q)
    if _packed(q):
        index = select.packed_pools(q.lengths, n, q.scores.device)
    else:
        index = select.pools(n, q.sequence_length, q.options.pool, q.options.group_size, q.scores.device)
    held = select.members(index, n, q.valid)
    return index, held, select.per_expert(q.factor, held.sum(1), e), q.scores[index.clamp(max=n - 1)]


def _by_token(index: Tensor, values: Tensor, n: int) -> Tensor:
    """Converts values [pools,tokens,e] to [n,e]."""
    spread = torch.zeros(n + 1, values.shape[2], dtype=values.dtype, device=values.device)
    return spread.index_copy(0, index.reshape(-1).clamp(max=n), values.flatten(0, 1))[:n]


def _capped_expert_choice(q: Request) -> dict:
    o, (n, e) = q.options, q.scores.shape
    if not o.cap or o.cap >= e:
        return _expert_choice(q)
    index, held, k, pooled = _pools(q)
    k = torch.minimum(k, o.cap * held.sum(1) // e)
    assignment, beta, demand, *_ = on_host_op(pooled, held, None, None, q.training, 0, o.given)
    per_token = o.cap if o.solver == "exact" else e
    made = {"assignment": _by_token(index, assignment, n), "demand": demand, "per_token": per_token}
    return {**made, "cutoffs": select.mean_cutoff(beta.masked_fill((k < 1)[:, None], math.inf).to(q.scores.dtype))}


def _on_host(q: Request, scores: Tensor) -> dict:
    training = q.training and not q.causal
    seed = torch.randint(1 << 62, (), device=scores.device) if training and q.options.draws else None
    tokens = q.tokens if q.options.reads_ids else None
    state = q.thresholds if q.options.keeps_own or (q.causal and q.options.has_ranking) else None
    asked = (scores[None], q.valid_or_all()[None], tokens, seed, training, q.layer, q.options.given, state)
    assignment, cutoffs, demand, dropped, loss, slope = on_host_op(*asked)
    made = {"assignment": assignment[0], "cutoffs": cutoffs[0].to(scores.dtype), "demand": demand, "dropped": dropped}
    return {**made, "loss": (loss, slope[0])} if q.options.adds_loss else made


def _global_topk(q: Request) -> dict:
    o, (n, e) = q.options, q.scores.shape
    index, held, _, pooled = _pools(q)
    if o.cap:
        assignment, cutoffs, demand, dropped, *_ = on_host_op(pooled, held, None, None, q.training, 0, o.given)
    else:
        made = [_best_pairs(q.factor, scores, among) for scores, among in zip(pooled, held)]
        assignment, demand, dropped, cutoffs = (torch.stack(each) for each in zip(*made))
    demand, dropped = demand if demand.dim() == 1 else demand.sum(0), dropped.sum()
    cutoffs = select.mean_cutoff(cutoffs.to(q.scores.dtype))
    assignment = _by_token(index, assignment, n)
    return {"assignment": assignment, "demand": demand, "dropped": dropped, "cutoffs": cutoffs, "per_token": min(o.cap or e, e)}


def _best_pairs(c: float, scores: Tensor, held: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The highest-scoring pairs of token and expert in one pool."""
    everybody, e = held.sum(), scores.shape[1]
    total = select.per_expert(c / e, everybody * e, 1)
    return select.global_top(scores, held, select.capacity(2 * c, everybody, e), total)


def _by_thresholds(q: Request) -> dict:
    cap, e = q.options.cap, q.scores.shape[1]
    if q.options.has_ranking:
        made = _on_host(q, q.scores)
        return {"assignment": made["assignment"], "demand": made["demand"], "per_token": min(cap or e, e)}
    assignment = select.by_thresholds(q.scores, q.thresholds, q.valid, cap)
    return {"assignment": assignment, "demand": assignment.sum(0), "per_token": min(cap or e, e)}


def _placed(q: Request, choice: Tensor, asks: Optional[Tensor] = None, limited: bool = True) -> dict:
    """Places the choices [n,K] of tokens. If experts have a capacity, earlier tokens are placed first, or those
    with the highest scores (option priority). asks [n,K] bool: the choices that count; None: all."""
    (n, e), K = q.scores.shape, choice.shape[1]
    if q.valid is not None:
        asks = q.valid[:, None].expand_as(choice) if asks is None else asks & q.valid[:, None]
    room, factor, experts = None, K * q.factor, e + q.options.null_experts
    if limited and not q.causal and factor > 0:
        room = select.capacity(factor, q.everybody, experts)
    if room is not None and q.options.priority == "score":  # by the score of the first choice
        first = q.scores.gather(1, choice[:, :1])[:, 0].nan_to_num(nan=-math.inf)
        order = first.sort(descending=True, stable=True).indices
        turns, demand, dropped = select.place(choice[order], None if asks is None else asks[order], e, room)
        assignment = torch.zeros_like(turns).index_copy(0, order, turns)
    else:
        assignment, demand, dropped = select.place(choice, asks, e, room)
    made = {"assignment": assignment, "demand": demand, "dropped": dropped, "choice": choice, "per_token": K}
    if room is None:
        return {**made, "all": asks is None}
    # The host knows this capacity without waiting for the number of valid tokens.
    return {**made, "slots": select.first(assignment.t(), select.capacity(factor, n, experts))}


def _best_alone(q: Request, worth: Tensor, count: int = 1) -> dict:
    """Assigns each token to its best experts, without a capacity limit."""
    return _placed(q, select.best_experts(worth, count), limited=False)


def _switch_top1(q: Request) -> dict:
    return _placed(q, select.best_experts(q.scores, 1, q.softmax))


def _topk(q: Request) -> dict:
    K, nulls = q.options.experts_per_token, q.options.null_experts
    choice = select.best_experts(q.scores, K, q.softmax)
    if not nulls:
        return _placed(q, choice)
    # Each null expert scores an equal part of 1 - the sum of a token's scores. It replaces each of the last choices
    # that has a lower score.
    left = (1 - q.scores.double().sum(1, keepdim=True)) / nulls
    asks = (torch.arange(K, device=choice.device) < K - nulls) | ~(q.scores.gather(1, choice).double() < left)
    return {**_placed(q, choice, asks), "asks": asks}


def _gshard_top2(q: Request) -> dict:
    choice, asks = select.best_experts(q.scores, 2, q.softmax), None
    if q.training and q.options.random_second:
        best = q.scores.gather(1, choice)
        share = best[:, 1] / best.sum(1)
        stays = torch.rand_like(share) < 2 * share
        asks = torch.stack([torch.ones_like(stays), stays], 1)
    return _placed(q, choice, asks)


def _quantile_balanced(q: Request) -> dict:
    K = q.options.experts_per_token
    kept = torch.zeros_like(q.scores[0]) if q.thresholds is None else q.thresholds.to(q.scores.dtype)
    prices = balance_op(q.scores, q.valid, kept, K) if q.training or K == q.scores.shape[1] else kept
    return {**_best_alone(q, q.scores - prices, K), "cutoffs": prices}


def _bias_balanced(q: Request) -> dict:
    prices = torch.zeros_like(q.scores[0]) if q.thresholds is None else q.thresholds.to(q.scores.dtype)
    return {**_best_alone(q, q.scores - prices, q.options.experts_per_token), "cutoffs": prices}


def _base(q: Request) -> dict:
    if not q.training:
        return _best_alone(q, q.logits)
    return {**_on_host(q, q.logits), "per_token": 1, "cutoffs": None}


def _own(q: Request) -> dict:
    """Calls a plug-in, on the host."""
    made = _on_host(q, q.scores)
    cutoffs = made["cutoffs"] if q.options.by_thresholds else None
    return {**made, "cutoffs": cutoffs, "per_token": q.options.choices or q.scores.shape[1]}


CHOOSE: dict[str, Callable[[Request], dict]] = {
    "expert_choice": _expert_choice,
    "capped_expert_choice": _capped_expert_choice,
    "global_topk": _global_topk,
    "topk": _topk,
    "switch_top1": _switch_top1,
    "gshard_top2": _gshard_top2,
    "quantile_balanced": _quantile_balanced,
    "bias_balanced": _bias_balanced,
    "base": _base,
    "kmeans": lambda q: _best_alone(q, q.logits),
    "hash": lambda q: _placed(q, (q.tokens.long() % q.scores.shape[1])[:, None], limited=False),
    "dense": lambda q: _placed(q, torch.zeros_like(q.scores[:, :1], dtype=torch.long), limited=False),
}


def _aux_loss(q: Request, scores: Tensor, made: dict) -> Optional[Tensor]:
    """The load-balancing loss, [] (Switch: e * sum over i of f_i * P_i), or a plug-in's loss; None: the router has
    none. Over the valid tokens, f_i is expert i's fraction of the choices (gshard_top2: of the first choices), and
    P_i its mean score, for sigmoids after division by their sum. aux_scope "sequence": the mean over sequences."""
    n, e = scores.shape
    if not q.options.balanced or ("choice" not in made and not q.options.own):
        return None
    if q.options.adds_loss:
        return _own_loss(q, scores, *made["loss"]) if "loss" in made else None
    choice = made.get("choice")
    choice = choice[:, :1] if q.options.gates == "share" else choice
    by_sequence = q.options.aux_scope == "sequence" and (q.sequence_length > 0 or len(q.lengths) > 0)
    live = scores if q.valid is None else torch.where(q.valid[:, None], scores, 0.0)
    if q.options.score == "sigmoid":
        total = live.sum(1, keepdim=True)
        live = live / torch.where(total == 0, 1.0, total)
    nulls = q.options.null_experts
    if choice is not None and q.valid is None and not by_sequence and not nulls:  # the same with fewer kernels
        all_asked = made.get("all") and choice is made["choice"]
        asked = made["demand"] if all_asked else select.one_hot(choice, e).sum((0, 1))
        return (asked * live.sum(0)).sum() * (e / (n * choice.numel()))
    group, groups = _sequences(q) if by_sequence else (torch.zeros(n, dtype=torch.long, device=scores.device), 1)
    part = q.valid_or_all().to(scores.dtype)[:, None]
    if choice is None:
        asked = made["assignment"].to(scores.dtype) / q.options.choices
    else:
        asked = select.one_hot(choice, e) & made.get("asks", part > 0)[..., None]
        asked = asked.to(scores.dtype).sum(1) / choice.shape[1] * part
    if nulls:  # one column for all null experts, in which f and P are divided by sqrt(nulls)
        asked, live = (torch.cat([x, (part - x.sum(1, keepdim=True)) / nulls**0.5], 1) for x in (asked, live))
    held, f, P = (x.new_zeros(groups, x.shape[1]).index_add(0, group, x) for x in (part, asked, live))
    each = (e + nulls) * (f * P).sum(1) / held[:, 0].clamp(min=1) ** 2
    return each.sum() / (held > 0).sum().clamp(min=1)


def _own_loss(q: Request, scores: Tensor, loss: Tensor, slope: Tensor) -> Tensor:
    """The loss of a plug-in, [], with the given value, and the gradient `slope` [n,e] with respect to the
    scores."""
    live = scores if q.valid is None else torch.where(q.valid[:, None], scores, 0.0)
    return loss.to(scores.dtype) + (slope.to(scores.dtype) * (live - live.detach())).sum()


def _sequences(q: Request) -> tuple[Tensor, int]:
    """The index of each token's sequence, and the number of sequences."""
    n, device = q.scores.shape[0], q.scores.device
    if q.lengths:
        length = torch.tensor(q.lengths, device=device)
        return torch.arange(len(q.lengths), device=device).repeat_interleave(length, output_size=n), len(q.lengths)
    return torch.arange(n, device=device) // q.sequence_length, (n - 1) // q.sequence_length + 1


def _forced(q: Request, assignment: Tensor) -> dict:
    """The routing of a forced assignment. ArgumentError: wrong shape or type, or a router whose gates are not
    scores."""
    if q.options.gates != "score":
        raise ArgumentError(
            f"forced routing (assignment): the gates of router '{q.name}' are not scores of a token and an expert, so they do not "
            "go with other choices; take a router that has option normalize_gates, but gshard_top2"
        )
    n, e = q.scores.shape
    if assignment.shape[-1:] != (e,) or assignment.numel() != n * e or assignment.is_floating_point():
        raise ArgumentError(
            f"assignment is {assignment.dtype} of shape {tuple(assignment.shape)}; it must be bool, with {e} experts for each of the {n} tokens"
        )
    marks = (assignment.reshape(n, e) != 0) & q.valid_or_all()[:, None]
    return {"assignment": marks, "demand": marks.sum(0), "per_token": e}


def choose(scores: Tensor, logits: Tensor, assignment: Optional[Tensor] = None, **asked: Any) -> Routing:
    """Routes scores and logits [n,e], which have gradients; `asked` are the other fields of Request. assignment:
    [...,e] bool, a forced assignment, or None."""
    q = Request(scores=scores.detach(), logits=logits.detach(), shares=scores is not logits, **asked).by_row()
    if assignment is not None:
        made = _forced(q, assignment)
    else:
        made = (_by_thresholds if q.causal and q.options.by_thresholds else CHOOSE.get(q.name, _own))(q)
    aux_loss, z_loss = _aux_loss(q, scores, made), gates.z_loss(q, scores, logits)
    full, chosen = made.pop("full", 0), made.get("choice") if made.pop("all", False) else None
    held = None
    if full:  # all slots are full: gather their scores
        held = scores.t().gather(1, made["slots"])
        worst = held.detach().view(held.shape[0], full, -1)[:, :, -1]
        made["cutoffs"] = worst[:, 0] if full == 1 else worst.double().mean(1).to(worst.dtype)
    of_pairs, slot_gates, choice_gates = gates.made(q.options, scores, logits, made, chosen, held)
    for name in ("asks", "loss"):
        made.pop(name, None)
    made = {"cutoffs": None, "slots": None, "dropped": None, **made}
    made.update(choice=chosen, slot_gates=slot_gates, choice_gates=choice_gates)
    routing = Routing(of_pairs, aux_loss, z_loss, **made)
    return routing if q.lean else routing.whole()


def route(
    scores: Tensor,
    router: str = "expert_choice",
    *,
    logits: bool = False,
    tokens: Optional[Tensor] = None,
    valid: Optional[Tensor] = None,
    sequence_length: int = 0,
    training: bool = False,
    thresholds: Optional[Tensor] = None,
    **options: Unpack[RouterOptions],
) -> Routing:
    """Assigns n tokens to e experts by their scores, like choir.route, but with tensors and on their device. Gates
    and losses have gradients. The assignment is the same as choir.route's, including ties.

    The host does not wait for the device, except with capped_expert_choice, `base` in training, global_topk with a
    cap, and plug-ins (`random` is one), which are routed on the CPU in float32.

    Args:
        scores: [n,e] floating point: scores, or logits with logits=True. One row per token.
        router: name of a built-in router or of a plug-in.
        logits: True: compute scores from logits, by softmax over the experts or sigmoid (option score).
        tokens: [n] integer token ids, required by `hash` and `random`.
        valid: [n] bool; False: padding, which is not routed. None: no padding.
        sequence_length: tokens per sequence, for the pools "sequence" and "position" and for aux_scope "sequence";
            0: one sequence.
        training: True: route as in training. Random numbers come from PyTorch's generator.
        thresholds: [e], on the scores' device. A token is assigned to the experts whose threshold its score
            reaches, independently of other tokens. quantile_balanced and bias_balanced: their prices or biases. A
            plug-in with `observe`: its state. None: no thresholds.
        options: the router's options by name; choir.Config.router_options(router) returns them with their defaults.

    Returns a `Routing`: gates, aux_loss and z_loss in the scores' type, assignment [n,e], loads and cut-offs.

    Raises ArgumentError for arguments that do not fit. NaN does not raise, because the host would have to wait: it
    counts as the lowest score.

    Example:
        routing = choir.torch.route(scores, "gshard_top2", logits=True)
        loss = loss + 0.01 * routing.aux_loss"""
    check_floating(scores, "scores")
    if scores.dim() != 2:
        raise ArgumentError(f"scores has shape {tuple(scores.shape)}; it must be [tokens, experts]")
    if scores.shape[0] < 1:
        raise ArgumentError("scores has 0 tokens; there must be at least 1")
    made = checked_options(router, scores.shape[1], **options)
    if thresholds is not None and not made.keeps_thresholds:
        raise ArgumentError(f"router '{router}' keeps no thresholds to route by")
    if thresholds is not None and (thresholds.shape != scores.shape[1:] or thresholds.device != scores.device):
        raise ArgumentError(
            f"thresholds has shape {tuple(thresholds.shape)} on {thresholds.device}; it must be one per expert, "
            f"({scores.shape[1]},), on {scores.device}"
        )
    if sequence_length < 0:
        raise ArgumentError(f"sequence_length {sequence_length} must not be negative")
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    soft = gates.scores_of(made, wide) if logits else wide
    routing = choose(
        soft,
        wide,
        name=router,
        options=made,
        tokens=tokens,
        valid=valid,
        sequence_length=sequence_length,
        training=training,
        causal=thresholds is not None and not made.keeps_own,
        thresholds=thresholds,
    )
    given = (routing.gates, routing.aux_loss, routing.z_loss)
    return routing._replace(**dict(zip(("gates", "aux_loss", "z_loss"), (x.to(scores.dtype) for x in given))))
