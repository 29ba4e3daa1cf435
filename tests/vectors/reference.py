"""choir's mathematics in its plainest form: double precision, PyTorch's autograd, none of choir's code.

A dense [n,e] matrix of gates instead of a routing record, every expert on every token, whole attention matrices, stored logits.
Written from docs/layer.md and the papers named below; make.py turns it into files.
"""
import math

import numpy as np
import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)

MARGIN = 1e-5  # selections closer than this could differ in float: such inputs are refused


def top_k(scores, k, candidates):
    """The k best of the candidates, ties to the lower index. A near tie that is not an exact one is refused."""
    order = sorted(candidates, key=lambda t: (-scores[t].item(), t))
    if 0 < k < len(order):
        gap = (scores[order[k - 1]] - scores[order[k]]).item()
        assert gap == 0 or gap > MARGIN, "selection too close for float"
    return order[:k]


def pool_of(t, o):
    """Number of the token's pool: its sequence, or 0 for the whole batch."""
    return t // o["T"] if o["pool"] == "sequence" else 0


def expert_choice(scores, live, o):
    """Zhou et al. 2022: every expert takes its k best tokens of a pool; the gate is the raw score."""
    n, e = scores.shape
    held = torch.zeros(n, e)
    for p in range(n):
        pool = [t for t in live if pool_of(t, o) == p]
        k = min(len(pool), max(1, math.floor(len(pool) * o["c"] / e + 0.5)))
        for i in range(e):
            held[top_k(scores[:, i], k, pool), i] = 1
    return held, scores


def token_choice(scores, live, o):
    """Top-K (Shazeer et al. 2017), GShard's top-2 (Lepikhin et al. 2020) and Switch's top-1 (Fedus et al. 2021), without
    their randomness. c = 0: room for all. Null experts (2601.15370) have the last columns of scores, each the same share
    of what the others leave of 1, and compute nothing."""
    (n, real), nulls = scores.shape, o.get("nulls", 0)
    if nulls:
        scores = torch.cat([scores, ((1 - scores.sum(1, keepdim=True)) / nulls).repeat(1, nulls)], 1)
    e = real + nulls
    choices = {"gshard_top2": 2, "switch_top1": 1}.get(o["router"]) or o["K"]
    capacity = min(len(live), math.ceil(o["c"] * choices * len(live) / e))  # nobody asks the same expert twice
    if not o["c"]:
        capacity = len(live)
    best = {t: top_k(scores[t], choices, range(e)) for t in live}
    if choices == 2:  # the order of the two counts as well
        best = {t: top_k(scores[t], 1, range(e)) + [i for i in best[t] if i != best[t][0]] for t in live}
    held = torch.zeros(n, e)
    for rank in range(choices):  # every first choice is placed before any second one, in token order
        for t in live:
            if held[:, best[t][rank]].sum() < capacity:
                held[t, best[t][rank]] = 1
    gate = scores
    if o["router"] == "gshard_top2":  # normalised before dropping
        gate = scores / torch.stack([scores[t, best[t]].sum() if t in best else torch.ones(()) for t in range(n)])[:, None]
    counted = 1 if o["router"] == "gshard_top2" else choices
    asked = sum(F.one_hot(torch.tensor([best[t][rank] for t in live]), e).double() for rank in range(counted)) / counted
    loss = e * (asked.mean(0) * scores[live].mean(0)).sum()
    return held[:, :real], gate[:, :real], loss


def fixed(scores, live, o, tokens):
    """Hash layers (Roller et al. 2021) and the dense layer: gate 1."""
    held, e = torch.zeros_like(scores), scores.shape[1]
    for t in live:
        held[t, int(tokens[t]) % e if o["router"] == "hash" else 0] = 1
    return held, torch.ones_like(scores)


def best_experts(margins, live, count):
    """{token: its `count` best experts}."""
    return {t: top_k(margins[t], count, range(margins.shape[1])) for t in live}


def quantile_balanced(scores, live, o, thresholds):
    """Every token takes the K best of S - beta. beta: given, or 16 rounds of: alpha_t half-way between the K-th and the
    next best of S[t] - beta, beta_i between the (n K / e)-th and the next best of S[:,i] - alpha, shifted to a mean of 1/e."""
    n, e = scores.shape
    K = o["K"]
    beta = torch.zeros(e) if thresholds is None else thresholds.detach()
    if thresholds is None and K < e:
        held = scores.detach()[live]
        k = min(len(live), max(1, math.floor(len(live) * K / e + 0.5)))
        for _ in range(16):
            alpha = (held - beta).sort(1, descending=True)[0][:, K - 1:K + 1].mean(1, keepdim=True)
            beta = (held - alpha).sort(0, descending=True)[0][k - 1:k + 1].mean(0)
            beta = beta - (beta.sum() - 1) / e
    held = torch.zeros(n, e)
    for t, mine in best_experts(scores.detach() - beta, live, K).items():
        held[t, mine] = 1
    return held, scores


def philox(seed, stream, sub, index):
    """64 bits of Philox4x32-10 (Salmon et al. 2011)."""
    c, (k0, k1) = [index & 0xFFFFFFFF, index >> 32, stream, sub], (seed & 0xFFFFFFFF, seed >> 32)
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k1, a & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c[1] << 32 | c[0]


def random_experts(scores, live, o, tokens):
    """THOR (Zuo et al. 2022) in evaluation: K different experts by token id, gate 1/K."""
    n, e = scores.shape
    held, K = torch.zeros(n, e), o["K"]
    for t in live:
        left = list(range(e))
        for j in range(K):
            index = int(tokens[t]) * K + j
            held[t, left.pop(philox(0, 6, o["layer"], index) * len(left) >> 64)] = 1
    return held, torch.full((n, e), 1 / K)


def kmeans(scores, live, o):
    """Every token to the best of x.mu - |mu|^2 / 2, gate 1."""
    held = torch.zeros_like(scores)
    for t, mine in best_experts(scores.detach(), live, 1).items():
        held[t, mine] = 1
    return held, torch.ones_like(scores)


def global_topk(scores, live, o):
    """The n c best pairs, best first; an expert has room for twice its even share, a token for `cap`."""
    n, e = scores.shape
    total, room = max(1, math.floor(len(live) * o["c"] + 0.5)), min(len(live), math.ceil(2 * o["c"] * len(live) / e))
    cap = o["cap"] or e
    held, last = torch.zeros(n, e), math.inf
    for score, t, i in sorted((-scores[t, i].item(), t, i) for t in live for i in range(e)):
        if held.sum() == min(total, len(live) * cap):
            assert score == last or score > last + MARGIN, "selection too close for float"
            break
        last = score
        if held[:, i].sum() < room and held[t].sum() < cap:
            held[t, i] = 1
    return held, scores


def capped_expert_choice(scores, live, o):
    """Of all ways to give every expert k tokens and a token at most `cap` experts the one of largest total score: a
    linear programme, solved by HiGHS."""
    from scipy.optimize import linprog  # here alone: the other vectors do without scipy

    n, e = scores.shape
    k = math.floor(len(live) * o["c"] / e + 0.5)
    value = scores.detach()[live].numpy()
    per_expert = np.kron(np.ones((1, len(live))), np.eye(e))  # variables in the order token, expert
    per_token = np.kron(np.eye(len(live)), np.ones((1, e)))
    found = linprog(-value.ravel(), A_eq=per_expert, b_eq=np.full(e, k), A_ub=per_token, b_ub=np.full(len(live), o["cap"]),
                    bounds=(0, 1), method="highs")
    assert found.success and np.abs(found.x - found.x.round()).max() < 1e-9, "not at a corner"
    held = torch.zeros(n, e)
    held[live] = torch.tensor(found.x.round().reshape(len(live), e))
    return held, scores


def base(logits, live, o):
    """BASE layers (Lewis et al. 2021) in evaluation: every token to its best expert, gate sigmoid(logit)."""
    held = torch.zeros_like(logits)
    for t, mine in best_experts(logits.detach(), live, 1).items():
        held[t, mine] = 1
    return held, torch.sigmoid(logits)


def by_threshold(scores, live, o, thresholds):
    """Causal expert choice: expert i takes every token that scores at least its threshold; with a cap, a token stays with
    the best of S - threshold."""
    margin = (scores - thresholds).detach()
    assert margin[live].abs().min() > MARGIN, "threshold too close for float"
    held = torch.zeros_like(scores)
    for t in live:
        passed = [i for i in range(scores.shape[1]) if margin[t, i] >= 0]
        held[t, top_k(margin[t], o.get("cap") or len(passed), passed)] = 1
    return held, scores


def route(o, scores, valid=None, tokens=None, thresholds=None):
    """Gates [n,e] (differentiable in scores [n,e]), and the unweighted auxiliary loss."""
    (n, e), router = scores.shape, o["router"]
    live = [t for t in range(n) if valid is None or valid[t]]
    chosen = {"expert_choice": expert_choice, "topk": token_choice, "gshard_top2": token_choice, "switch_top1": token_choice,
              "kmeans": kmeans, "global_topk": global_topk, "capped_expert_choice": capped_expert_choice, "base": base}
    if router == "bias_balanced":  # every token takes the K best of S - beta; prices are never solved for
        made = quantile_balanced(scores, live, o, torch.zeros(e) if thresholds is None else thresholds)
    elif router == "quantile_balanced":
        made = quantile_balanced(scores, live, o, thresholds)
    elif router == "random":
        made = random_experts(scores, live, o, tokens)
    elif thresholds is not None:
        made = by_threshold(scores, live, o, thresholds)
    else:
        made = chosen[router](scores, live, o) if router in chosen else fixed(scores, live, o, tokens)
    held, gate, *loss = made
    return torch.where(held > 0, gate, torch.zeros(())), loss[0] if loss else torch.zeros(())


def experts(x, w1, w2, gates):
    """Every expert on every token, weighted by gates that are 0 where not routed."""
    return sum(gates[:, i, None] * (F.gelu(x @ w1[i]) @ w2[i].T) for i in range(w1.shape[0]))


def bucket(distance, buckets, furthest):
    """T5's relative position bucket, unidirectional (Raffel et al. 2020)."""
    exact = buckets // 2
    if distance < exact:
        return distance
    return min(buckets - 1, exact + int(math.log(distance / exact) / math.log(furthest / exact) * (buckets - exact)))


def rmsnorm(x, w):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def attention(x, p, at, s):
    """Causal attention of B sequences; s: the sizes."""
    B, T, H = s["B"], s["T"], s["H"]
    width = x.shape[1] // H
    q, k, v = ((x @ p[f"{at}.{c}.weight"].T).reshape(B, T, H, width).transpose(1, 2) for c in "qkv")
    near = torch.tensor([[bucket(max(i - j, 0), s["buckets"], s["distance"]) for j in range(T)] for i in range(T)])
    scores = q @ k.transpose(-1, -2) / math.sqrt(width) + p[f"{at}.rel_bias"][near].permute(2, 0, 1)
    scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
    return (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(B * T, -1) @ p[f"{at}.o.weight"].T


def transformer(p, tokens, o, s, causal=False):
    """Logits [B*T,V] and the sums of the layers' unweighted auxiliary losses and z-losses; causal: without a look at
    other tokens."""
    tokens = tokens.reshape(-1)
    x, aux, z = p["embed.weight"][tokens], 0.0, 0.0
    for l in range(s["L"]):
        at = f"layers.{l}"
        x = x + attention(rmsnorm(x, p[f"{at}.attn_norm.weight"]), p, f"{at}.attn", s)
        y = rmsnorm(x, p[f"{at}.ffn_norm.weight"])
        if l % 2:
            w1, w2, router = p[f"{at}.moe.experts.w1"], p[f"{at}.moe.experts.w2"], p.get(f"{at}.moe.router.weight")
            scores = torch.ones(len(y), len(w1)) if router is None else torch.softmax(y @ router, 1)
            if o["router"] == "bias_balanced":
                scores = torch.sigmoid(y @ router)
            if causal and "c" in o:
                o = {**o, "c": float(scores.shape[1])}  # where tokens choose: room for all
            if o["router"] == "base":
                scores = y @ router
            if o["router"] == "kmeans":
                scores = y @ router - (router * router).sum(0) / 2
            prices = p.get(f"{at}.moe.thresholds") if causal or o["router"].endswith("_balanced") else None
            gates, more = route({**o, "layer": l}, scores, None, tokens, prices)
            x, aux = x + experts(y, w1, w2, gates), aux + more
            z = z if router is None else z + (torch.logsumexp(y @ router, 1) ** 2).mean()  # Zoph et al. 2022
        else:
            gate, up, down = (p[f"{at}.ffn.{c}.weight"].T for c in ("gate", "up", "down"))
            x = x + (F.gelu(y @ gate) * (y @ up)) @ down
    return rmsnorm(x, p["final_norm.weight"]) @ p["embed.weight"].T / math.sqrt(x.shape[1]), aux, z


def adafactor(w, gradients, rate, beta2, eps1=1e-30, eps2=1e-3, clip=1.0):
    """Shazeer & Stern 2018, algorithms 4 and 5 with beta1 = 0, on one matrix (factored) or vector (not); w after each step."""
    row, col = 0, 0
    for t, g in enumerate(gradients, 1):
        b = beta2 * (1 - beta2 ** (t - 1)) / (1 - beta2**t)
        square = g * g + eps1
        if w.dim() == 2:
            row, col = b * row + (1 - b) * square.sum(1), b * col + (1 - b) * square.sum(0)
            second = torch.outer(row, col) / row.sum()
        else:
            second = col = b * col + (1 - b) * square
        u = g / second.sqrt()
        u = u / max(1.0, u.pow(2).mean().sqrt().item() / clip)
        w = w - rate * max(eps2, w.pow(2).mean().sqrt().item()) * u
        yield w
