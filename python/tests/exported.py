"""A small trained run of each kind that choir exports, and text to tokenize: for test_export.py and lab/serving."""

import functools
import pathlib
import random

import numpy as np

import choir
import testing

EXPERTS = 8
MODERN = {
    "layers": 4,
    "d_model": 128,
    "d_hidden": 96,
    "d_expert": 32,
    "heads": 4,
    "kv_heads": 2,
    "experts": EXPERTS,
    "position": "rope",
    "activation": "swiglu",
    "expert_activation": "swiglu",
    "train.sequence_length": 32,
    "train.batch_sequences": 8,
    "train.steps": 30,
    "train.learning_rate": 0.05,
    "train.eval_every": 0,
}
MOE = {"router.score": "sigmoid", "moe_every": 1, "dense_layers": 1}
SOFTMAX = {"moe_every": 1, "router.name": "switch_top1"}
BOTH_WAYS = {"attention": "bidirectional", "train.objective": "masked_diffusion"}
TOP_2 = {"router.name": "topk", "router.experts_per_token": 2, "router.aux_loss_weight": 0}
GSHARD = {"router.name": "gshard_top2", "router.aux_loss_weight": 0}
GLM, MIXTRAL = ("Glm4MoeForCausalLM", "glm4moe"), ("MixtralForCausalLM", "llama")
QWEN, QWEN_MOE = ("Qwen3ForCausalLM", "qwen3"), ("Qwen3MoeForCausalLM", "qwen3moe")
HALF = {"qk_norm": True, "rope_fraction": 0.5, "rope_theta": 5000, "embed_scale": 0.5, "head_scale": 0.2}
CAPPED = {"router.name": "capped_expert_choice", "router.cap": 2, "router.capacity_factor": 2}

# Name: the architecture in transformers and in llama.cpp (None: none has it), and what differs from MODERN.
KINDS = {
    "llama": (("LlamaForCausalLM", "llama"), {"moe_every": 0, "tied": False, "embed_scale": 2}),
    "qwen3": (QWEN, {"moe_every": 0, "qk_norm": True, "kv_heads": 1, "d_head": 64}),
    "choice": (GLM, {**MOE, **HALF}),
    "shared": (GLM, {**MOE, "shared_experts": 2, "tied": False, "dense_layers": 0}),
    "capped": (GLM, {**MOE, **CAPPED}),
    "quantile": (GLM, {**MOE, "router.name": "quantile_balanced"}),
    "bias": (GLM, {**MOE, "router.name": "bias_balanced"}),
    "switch": (GLM, {**MOE, "router.name": "switch_top1", "router.aux_loss_weight": 0}),
    "gshard": (GLM, {**MOE, **GSHARD}),
    "mixtral": (MIXTRAL, {**SOFTMAX, **GSHARD, "d_hidden": 48}),
    "mixtral_first": (MIXTRAL, {**SOFTMAX, "router.normalize_gates": True}),
    "qwen3_moe": (
        QWEN_MOE,
        {**SOFTMAX, "qk_norm": True, "router.name": "gshard_top2", "router.random_second": True, "kv_heads": 1},
    ),
    "qwen3_moe_scores": (
        ("Qwen3MoeForCausalLM", None),
        {**SOFTMAX, "qk_norm": True, "moe_every": 2, "router.jitter": 0.1, "layers": 3},
    ),
    "olmoe": (("OlmoeForCausalLM", "olmoe"), {**SOFTMAX, "qk_norm": True, "qk_norm_whole": True, "kv_heads": 0}),
    "every_other": (
        ("ExaoneMoeForCausalLM", "hy_v3"),
        {"router.score": "sigmoid", "moe_every": 2, "qk_norm": True},
    ),
    "llada": ((None, "llada"), {**BOTH_WAYS, "moe_every": 0}),
    "llada_moe": ((None, "llada-moe"), {**BOTH_WAYS, **SOFTMAX, **TOP_2, "qk_norm": True}),
    "rnd1": ((None, "rnd1"), {**BOTH_WAYS, **SOFTMAX, **TOP_2, "qk_norm": True, "router.normalize_gates": True}),
}


@functools.lru_cache(None)
def run(kind: str) -> pathlib.Path:
    """Trained for some steps, so that thresholds are set and norms are not 1."""
    data, at = testing.run().parent / "data", testing.directory() / kind
    fields = {**MODERN, **KINDS[kind][1]}
    first = {key: fields[key] for key in ("router.name",) if key in fields}  # brings its router's defaults
    config = choir.Config(vocab_size=320 + ("attention" in fields), **{**first, **fields})  # with a mask
    config.save(at.with_suffix(".json"))
    testing.program("train", "--config", at.with_suffix(".json"), "--data", data, "--out", at)
    return at


def export(kind: str, form: str, *words) -> pathlib.Path:
    """Exported as is the default: a token has as many experts as in choir."""
    out = testing.directory() / f"{kind}-{form}"
    testing.program("export", run(kind), "--format", form, "--out", out, "--sequences", 0, *words)
    return out


def lines(count: int) -> list:
    """Ordinary and odd text; none with U+2581, which stands for a space in every such tokenizer but choir's."""
    draw = random.Random(3)
    odd = "😀 👩‍🔬|你好,世界|\t\ttab  two|a\r\nb|  lead|trail   |é e\u0301|مرحبا|\x01\x1b[0m\x7f".split("|")
    odd += ["🇩🇪", "\u00a0\u3000", "<0x41>", "\ufffd", "\U0010fffd", "x" * 300]
    planes = [(32, 126), (0xA1, 0x24F), (0x370, 0x3FF), (0x4E00, 0x9FFF), (0x1F300, 0x1F5FF)]
    book = (testing.run().parent / "book.txt").read_text(encoding="utf-8").split("\n")
    made = [draw.choice(book) for _ in range(count // 2)]
    while len(made) < count:
        words = []
        for _ in range(draw.randint(1, 9)):
            strange = draw.random() < 0.4
            words.append(
                draw.choice(odd) if strange else "".join(chr(draw.randint(*draw.choice(planes))) for _ in range(5))
            )
        made.append(draw.choice([" ", "  "]).join(words))
    return made


def choir_logits(checkpoint, tokens):
    with choir.Model.load(checkpoint, tokenizer=False, compute="fp32") as model:
        model.routing = "threshold"
        return model.forward(tokens.astype(np.int32)).logits
